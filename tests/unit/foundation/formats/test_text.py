"""The text form: what it looks like, that it loses nothing, and that every mistake is shown where it is."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vyre.conform.programs.random import random_program
from vyre.conform.programs.strategies import arbitrary_programs, cast_types, valid_programs
from vyre.errors import IRValueError, TextError
from vyre.foundation.formats.parse import parse_program
from vyre.foundation.formats.text import print_expr, print_program
from vyre.foundation.ir.dtypes import (
    array_type,
    bool_,
    bytes_,
    f32,
    f64,
    i8,
    i32,
    i64,
    opaque_type,
    parse_dtype,
    quantized_type,
    u8,
    u32,
    u64,
    vec_type,
)
from vyre.foundation.ir.nodes import (
    AllReduce,
    Assign,
    AsyncLoad,
    AsyncWait,
    Atomic,
    Barrier,
    BinOp,
    Bitcast,
    Block,
    BufferRef,
    BufLen,
    Call,
    Cast,
    Fma,
    If,
    IndirectDispatch,
    InvocationId,
    Let,
    Lit,
    Load,
    LocalId,
    Loop,
    Opaque,
    OpaqueNode,
    Region,
    Return,
    Select,
    Store,
    SubgroupReduce,
    SubgroupSize,
    Trap,
    UnOp,
    Var,
    WorkgroupId,
    lit,
)
from vyre.foundation.ir.ops import AtomicOp, BinaryOp, CollectiveOp, OpaqueOp, Ordering, ReduceOp, UnaryOp
from vyre.foundation.ir.program import (
    Access,
    BufferDecl,
    Hints,
    LinearType,
    Locality,
    MemoryKind,
    Predicate,
    Program,
    output,
    read,
    read_write,
    workgroup,
)

gid, lid = InvocationId(0), LocalId(0)


def expression(text):
    (node,) = parse_program(f"program workgroup(1, 1, 1) {{ v = {text} }}").entry
    return node.value


def statements(text):
    return parse_program(f"program workgroup(1, 1, 1) {{ {text} }}").entry


# ---- goldens --------------------------------------------------------------------------------------------------------

XOR = """\
program workgroup(64, 1, 1) entry "demo.xor" {
  buffer a @0 read u32
  buffer b @1 read u32
  buffer out @2 rw u32[1024] output live
  region "vyre.program.root" {
    let i: u32 = gid.x
    if i < len(out) {
      out[i] = a[i] ^ b[i]
    }
  }
}
"""


def test_an_elementwise_program_as_text():
    i = Var("i")
    body = [Let("i", gid), If(i < BufLen("out"), [Store("out", i, Load("a", i) ^ Load("b", i))])]
    buffers = [read("a", 0, u32), read("b", 1, u32), output("out", 2, u32, 1024)]
    program = Program(buffers, (64, 1, 1), body, op_id="demo.xor")
    assert str(program) == XOR
    assert parse_program(XOR) == program


SUMS = """\
program workgroup(32, 1, 1) {
  buffer x @0 read f32
  buffer sums @1 write f32
  buffer bins @2 rw u32[8]
  buffer tile @0 workgroup f32[32]
  region "load" {
    tile[lid.x] = x[gid.x]
    barrier
    let half: u32 = 16
    let go: bool = true
    for turn in 0..4294967295 {
      if go {
        go = half > 0
        if go {
          if lid.x < half {
            let other: f32 = tile[lid.x + half]
            tile[lid.x] = fma(other, 1.0, tile[lid.x])
          } else if lid.x == half {
            tile[lid.x] = -(0.0)
          } else {
            return
          }
          half = half >> 1
        }
      }
    }
  }
  region "store" from "load" {
    let old: u32 = atomic_add(bins, bitcast<u32>(tile[0]) % 8, 1, ordering=relaxed)
    sums[wg.x] = select(is_nan(tile[0]), inf, tile[0])
  }
}
"""


def test_a_program_with_shared_memory_loops_and_atomics_as_text():
    half, go, tile = Var("half"), Var("go"), Load("tile", lid)
    step = If(
        lid < half,
        [
            Let("other", Load("tile", lid + half)),
            Store("tile", lid, Fma(Var("other"), lit(1.0), tile)),
        ],
        [If(BinOp(BinaryOp.EQ, lid, half), [Store("tile", lid, lit(-0.0))], [Return()])],
    )
    turn = If(go, [Assign("go", half > 0), If(go, [step, Assign("half", half >> 1)])])
    load = [
        Store("tile", lid, Load("x", gid)),
        Barrier(),
        Let("half", lit(16)),
        Let("go", lit(True)),
        Loop("turn", lit(0), lit(0xFFFFFFFF), [turn]),
    ]
    first = Load("tile", lit(0))
    old = Atomic(AtomicOp.ADD, "bins", Bitcast(u32, first) % 8, lit(1), ordering=Ordering.RELAXED)
    store = [
        Let("old", old),
        Store("sums", WorkgroupId(0), Select(UnOp(UnaryOp.IS_NAN, first), lit(float("inf")), first)),
    ]
    program = Program(
        [
            read("x", 0, f32),
            BufferDecl("sums", 1, Access.WRITE_ONLY, f32),
            read_write("bins", 2, u32, 8),
            workgroup("tile", f32, 32),
        ],
        (32, 1, 1),
        [Region("load", load), Region("store", store, "load")],
    )
    assert str(program) == SUMS
    assert parse_program(SUMS) == program


ODDITIES = """\
program workgroup(2, 3, 4) exclusive {
  buffer "len" @7 read quantized<i8;per_group:32;none>[4] kind(push) range(0, 4) axis(1) align(16) streaming affine \
where and(at_least(1), not(affine(-2, 0, 1, 9)))
  buffer raw @9 rw bytes[5] output bytes_extraction
  let x = op<0x80000001>(cast<array<16 B>>("a b"), u32(-7i32))
  "let" = call "lib.op"(&raw, opaque("ext.e", x"00ff"), gid[7])
  block {
  }
  all_reduce(raw, sum, 0)
  async_load("len", raw, 0, subgroup_size, "t")
  async_wait("t")
  trap(subgroup_max(7u64), "why \\"\\n\\u{0}")
  indirect(raw, 12)
  barrier(grid_sync)
  opaque("ext.n", x"")
  let y: u32 = atomic_cas(raw, 0, 1, expected=2)
  let z: f64 = bits<f32>(0x7f800001) + nanf64
}
"""


def test_what_ordinary_programs_do_not_have_as_text():
    quantized = quantized_type(i8, ("per_group", 32))
    where = Predicate("and", (Predicate("at_least", (1,)), Predicate("not", (Predicate("affine", (-2, 0, 1, 9)),))))
    program = Program.of_entry(
        [
            BufferDecl(
                "len",
                7,
                Access.READ_ONLY,
                quantized,
                4,
                kind=MemoryKind.PUSH,
                output_byte_range=(0, 4),
                hints=Hints(1, 16, Locality.STREAMING),
                linear_type=LinearType.AFFINE,
                shape_predicate=where,
            ),
            BufferDecl("raw", 9, Access.READ_WRITE, bytes_, 5, is_output=True, bytes_extraction=True),
        ],
        (2, 3, 4),
        [
            Let("x", BinOp(OpaqueOp(0x80000001), Cast(array_type(16), Var("a b")), Cast(u32, lit(-7)))),
            Assign("let", Call("lib.op", [BufferRef("raw"), Opaque("ext.e", b"\x00\xff"), InvocationId(7)])),
            Block([]),
            AllReduce("raw", CollectiveOp.SUM, 0),
            AsyncLoad("len", "raw", lit(0), SubgroupSize(), "t"),
            AsyncWait("t"),
            Trap(SubgroupReduce(ReduceOp.MAX, Lit(u64, 7)), 'why "\n\0'),
            IndirectDispatch("raw", 12),
            Barrier(Ordering.GRID_SYNC),
            OpaqueNode("ext.n", b""),
            Let("y", Atomic(AtomicOp.COMPARE_EXCHANGE, "raw", lit(0), lit(1), lit(2))),
            Let("z", BinOp(BinaryOp.ADD, Lit(f32, 0x7F800001), Lit(f64, 0x7FF8000000000000))),
        ],
        exclusive=True,
    )
    text = ODDITIES.replace("let y: u32", "let y: bytes").replace("let z: f64", "let z: f32")
    assert str(program) == text
    assert parse_program(ODDITIES) == program, "the type after a name is only spelling"


# ---- nothing is lost ------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(arbitrary_programs())
def test_text_of_any_program_reads_back_as_that_program(program):
    text = print_program(program)
    again = parse_program(text)
    assert again == program
    assert again.buffers == program.buffers
    assert print_program(again) == text


@settings(max_examples=40, deadline=None)
@given(valid_programs())
def test_text_of_a_valid_program_reads_back_as_that_program(case):
    assert parse_program(str(case.program)) == case.program


@pytest.mark.parametrize("seed", range(60))
def test_text_of_a_random_program_reads_back_as_that_program(seed):
    program = random_program(random.Random(seed)).program
    assert parse_program(str(program)) == program
    assert parse_program(str(program)).fingerprint == program.fingerprint


def test_equal_programs_have_equal_text_whatever_their_makers_knew_of_types():
    bare = Program([read("a", 0, f32)], (1, 1, 1), [Let("x", Load("a", gid)), Let("y", Var("x"))])
    told = Program([read("a", 0, f32)], (1, 1, 1), [Let("x", Load("a", gid, dtype=f32)), Let("y", Var("x", dtype=f32))])
    assert bare == told
    assert str(bare) == str(told)
    assert "let y: f32 = x" in str(bare)


def test_a_name_has_the_type_of_its_own_scope():
    inner = Block([Let("x", lit(True)), Let("y", Var("x"))])
    text = str(Program([], (1, 1, 1), [Let("x", lit(1.0)), inner, Let("z", Var("x")), Let("w", Var("nobody"))]))
    assert "let y: bool = x" in text
    assert "let z: f32 = x" in text
    assert "let w = nobody" in text


@pytest.mark.parametrize(
    "name, shown",
    [
        ("x", "x"),
        ("_x9", "_x9"),
        ("output", "output"),
        ("длина", "длина"),
        ("let", '"let"'),
        ("min", '"min"'),
        ("u32", '"u32"'),
        ("gid", '"gid"'),
        ("", '""'),
        ("9x", '"9x"'),
        ("a b", '"a b"'),
        ('"\\', '"\\"\\\\"'),
        ("\u2028\ud800", '"\\u{2028}\\u{d800}"'),
    ],
)
def test_a_name_is_quoted_only_where_it_is_no_plain_word(name, shown):
    assert print_expr(Var(name)) == shown
    assert expression(shown) == Var(name)
    assert statements(f"{shown}[{shown}] = {shown}[{shown}]") == (Store(name, Var(name), Load(name, Var(name))),)


@pytest.mark.parametrize(
    "literal, shown",
    [
        (Lit(u32, 0), "0"),
        (Lit(u32, 0xFFFFFFFF), "4294967295"),
        (Lit(i32, 5), "5i32"),
        (Lit(i32, 0x80000000), "-2147483648i32"),
        (Lit(u64, 2**64 - 1), "18446744073709551615u64"),
        (Lit(i64, 2**64 - 1), "-1i64"),
        (Lit(bool_, 1), "true"),
        (Lit(bool_, 0), "false"),
        (Lit(bool_, 2), "bits<bool>(0x2)"),
        (Lit(f32, 0x3F800000), "1.0"),
        (Lit(f32, 0x3DCCCCCD), "0.1"),
        (Lit(f32, 0xBF800000), "-1.0"),
        (Lit(f32, 0x00800000), "1.1754944e-38"),
        (Lit(f32, 0x7F7FFFFF), "3.4028235e+38"),
        (Lit(f32, 0x7F800000), "inf"),
        (Lit(f32, 0xFF800000), "-inf"),
        (Lit(f32, 0x7FC00000), "nan"),
        (Lit(f32, 0x7FC00001), "bits<f32>(0x7fc00001)"),
        (Lit(f32, 0x00000001), "bits<f32>(0x1)"),
        (Lit(f32, 0x80000000), "bits<f32>(0x80000000)"),
        (UnOp(UnaryOp.NEGATE, Lit(f32, 0)), "-(0.0)"),
        (Lit(f64, 0x3FB999999999999A), "0.1f64"),
        (Lit(f64, 1 << 63), "-0.0f64"),
        (Lit(f64, 1), "5e-324f64"),
        (Lit(f64, 0x7FF0000000000000), "inff64"),
        (Lit(f64, 0xFFF0000000000000), "-inff64"),
        (Lit(f64, 0x7FF8000000000000), "nanf64"),
        (Lit(f64, 0xFFF8000000000000), "bits<f64>(0xfff8000000000000)"),
        (Lit(u8, 3), "bits<u8>(0x3)"),
        (Lit(u32, 1 << 32), "bits<u32>(0x100000000)"),
        (Cast(u8, Lit(u32, 3)), "u8(3)"),
    ],
)
def test_a_literal_keeps_its_type_and_bits(literal, shown):
    assert print_expr(literal) == shown
    assert expression(shown) == literal


@given(st.integers(0, 2**32 - 1))
def test_every_f32_pattern_survives(bits):
    assert expression(print_expr(Lit(f32, bits))) == Lit(f32, bits)


a, b, c = Var("a"), Var("b"), Var("c")


@pytest.mark.parametrize(
    "tree, shown",
    [
        (a + b * c, "a + b * c"),
        ((a + b) * c, "(a + b) * c"),
        (a - b - c, "a - b - c"),
        (a - (b - c), "a - (b - c)"),
        ((a << b) | c & a, "a << b | c & a"),
        ((a < b).eq(c), "(a < b) == c"),
        (a < (b + c), "a < b + c"),
        (-(a + b), "-(a + b)"),
        (-a + b, "-a + b"),
        (UnOp(UnaryOp.NEGATE, -a), "--a"),
        (~lit(-1), "~-1i32"),
        (-lit(-1), "-(-1i32)"),
        (a - lit(-1), "a - -1i32"),
        (UnOp(UnaryOp.LOGICAL_NOT, a < b), "not a < b"),
        (UnOp(UnaryOp.LOGICAL_NOT, a) < b, "(not a) < b"),
        (BinOp(BinaryOp.AND, a, UnOp(UnaryOp.LOGICAL_NOT, b)), "a and not b"),
        (BinOp(BinaryOp.OR, BinOp(BinaryOp.AND, a, b), c), "a and b or c"),
        (BinOp(BinaryOp.AND, BinOp(BinaryOp.OR, a, b), c), "(a or b) and c"),
        (BinOp(BinaryOp.MIN, a + b, Load("a", b + c)), "min(a + b, a[b + c])"),
        (Cast(vec_type(u32, 4), a), "cast<vec<u32;4>>(a)"),
        (Cast(opaque_type(0x80000005), a), "cast<opaque<0x80000005>>(a)"),
        (UnOp(OpaqueOp(0x80000005), a), "op<0x80000005>(a)"),
        (Atomic(OpaqueOp(0x80000005), "b", a, c), "atomic_op<0x80000005>(b, a, c)"),
        (Call("f", []), 'call "f"()'),
    ],
)
def test_parentheses_stand_where_grouping_needs_them(tree, shown):
    assert print_expr(tree) == shown
    assert expression(shown) == tree


@pytest.mark.parametrize(
    "text, tree",
    [
        ("((a))", a),
        ("a# comment, then }\n+ b", a + b),
        ("0x10", lit(16)),
        ("0xffi32", lit(255, i32)),
        ("1f32", lit(1.0)),
        ("2e3", lit(2000.0)),
        ("-0.0", lit(-0.0)),
        ("1e-45", lit(0.0)),
        ("not not a", UnOp(UnaryOp.LOGICAL_NOT, UnOp(UnaryOp.LOGICAL_NOT, a))),
        ("a -1", a - 1),
        ("cast<vec<vec<u32;2>;3>>(a)", Cast(vec_type(vec_type(u32, 2), 3), a)),
        ("atomic_add(b, 0, 1, ordering=acquire)", Atomic(AtomicOp.ADD, "b", lit(0), lit(1), None, Ordering.ACQUIRE)),
    ],
)
def test_other_spellings_that_people_write(text, tree):
    assert expression(text) == tree


def test_line_breaks_and_comments_mean_nothing():
    squeezed = " ".join(XOR.split())
    spread = "# a program\n" + XOR.replace(" ", "\r\n\t").replace("{", "{ # open")
    assert parse_program(squeezed) == parse_program(spread) == parse_program(XOR)


def test_a_statement_may_start_with_the_word_of_a_buffer_attribute():
    program = Program.of_entry([read("a", 0, u32)], (1, 1, 1), [Assign("live", lit(1)), Store("range", lit(0), a)])
    assert parse_program(str(program)) == program


def test_a_type_may_touch_the_sign_behind_it():
    assert statements("let x: vec<u32;4>= 1") == (Let("x", lit(1)),)


# ---- depth ----------------------------------------------------------------------------------------------------------

DEEP = 100_000


def chain(make, depth=DEEP // 5):
    e = Var("x")
    for _ in range(depth):
        e = make(e)
    return e


@pytest.mark.parametrize(
    "make",
    [lambda e: e + 1, lambda e: BinOp(BinaryOp.SUB, lit(1), e), lambda e: ~e, lambda e: Load("b", e), lambda e: u8(e)],
    ids=["left", "right", "prefix", "index", "cast"],
)
def test_a_deep_expression_prints_and_parses(make):
    program = Program([], (1, 1, 1), [Let("y", chain(make))])
    assert parse_program(str(program)) == program


@pytest.mark.check
def test_a_very_deep_expression_prints_and_parses():
    program = Program([], (1, 1, 1), [Let("y", chain(lambda e: BinOp(BinaryOp.SUB, a, e), DEEP))])
    assert parse_program(str(program)) == program


@pytest.mark.check
@pytest.mark.parametrize(
    "make",
    [
        lambda body: Block([body]),
        lambda body: If(a, [body]),
        lambda body: If(a, [], [body]),
        lambda body: Loop("k", lit(0), lit(1), [body]),
    ],
    ids=["block", "then", "else", "loop"],
)
def test_deep_statements_print_and_parse(make):
    node = Return()
    for _ in range(DEEP // 5):
        node = make(node)
    program = Program.of_entry([], (1, 1, 1), [node])
    text = str(program)
    assert len(text) < DEEP // 5 * 200, "indentation stops growing"
    assert parse_program(text) == program


def test_a_deep_predicate_prints_and_parses():
    p = Predicate("exactly", (1,))
    for _ in range(DEEP // 5):
        p = Predicate("not", (p,))
    program = Program([read("a", 0, u32).replace(shape_predicate=p)], (1, 1, 1), [])
    assert parse_program(str(program)) == program


@pytest.mark.parametrize("opener", ["(", "a[", "-", "min(1, ", "not ", "u32("])
def test_endless_nesting_is_a_text_error_and_not_a_crash(opener):
    with pytest.raises(TextError, match="expected"):
        expression(opener * (DEEP // 5))


def test_a_hostile_type_name_costs_linear_time():  # a quadratic reading would run into the time limit of tests
    with pytest.raises(TextError, match="is not a type"):
        expression("cast<" + "vec<" * DEEP + "u32" + ";2>" * DEEP + ">(a)")


# ---- what is not well-formed still prints ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "program",
    [
        Program([], (1, 1, 1), [Let("x", None)]),
        Program([], (1, 1, 1), [Let(5, BinOp(None, "a", 3))]),
        Program([], (1, 1, 1), [Let("x", Lit(None, "bits"))]),
        Program([], (1, 1, 1), [Let("x", Atomic(AtomicOp.ADD, "b", a, b, ordering=None))]),
        Program.of_entry([], (1, 1, 1), ["not a statement", If(a, [7])]),
        Program.of_entry([], ("x", None, 1), [], op_id=9),
        Program.of_entry([None], (1, 1, 1), []),
        Program.of_entry([read("a", 0, None)], (1, 1, 1), []),
    ],
)
def test_a_malformed_program_prints_and_is_refused_by_the_parser(program):
    text = str(program)
    with pytest.raises(TextError):
        parse_program(text)


# ---- mistakes -------------------------------------------------------------------------------------------------------


def test_an_error_shows_the_line_and_points_at_the_place():
    with pytest.raises(TextError) as caught:
        parse_program("program workgroup(1, 1, 1) {\n  let x = min(1,\n    \t} )\n}")
    error = caught.value
    assert (error.context["line"], error.context["column"]) == (3, 6)
    assert error.message == "expected an expression, found '}'\n    3 |      } )\n      |      ^"
    assert str(error).endswith("Fix: write a value, a name or an operation")


def test_an_error_far_into_a_long_line_shows_its_surroundings():
    with pytest.raises(TextError) as caught:
        expression("1 + " * 500 + "}")
    shown, caret = caught.value.message.split("\n")[1:]
    assert len(shown) < 120
    assert shown[caret.index("^")] == "}"


@pytest.mark.parametrize(
    "text, message, fix",
    [
        ('"abc', "the string does not end on its line", "close it"),
        ("a ? b", "'?' has no meaning here", "remove it"),
        ("12abc", "'1' has no meaning here", "remove it"),
        ('"a\\q"', "\\q is not an escape", "write"),
        ('"\\u{110000}"', "is not an escape", "write"),
        ("gid", "expected '.' after gid, found '}'", "write . here"),
        ("gid.w", "expected an axis, found 'w'", "write one of x, y, z"),
        ("call f()", "expected the id of an operation, found 'f'", "write it in quotes"),
        ("len(1)", "expected a buffer name, found '1'", "write a name"),
        ("&for", "'for' is a word of the language", 'quote the name: "for"'),
        ('opaque("k", 1)', "expected a payload, found '1'", 'x"00ff"'),
        ('opaque("k", x"0")', "the payload has half a byte at its end", "two hex digits"),
        ("bits<u32>(a)", "expected the bits, found 'a'", "write a whole number"),
        ("bits<u32>(1.5)", "the bits must be a whole number", "digits only"),
        ("gid[- 1]", "the sign stands apart from its number", "remove the space"),
        ("cast<1>(a)", "expected a type, found '1'", "such as u32"),
        ("cast<u31>(a)", "'u31' is not a type", "use u32"),
        ("cast<handle>(a)", "'handle' is a type that programs cannot use", "use u32"),
        ("cast<vec<u32", "is not a type", "use u32"),
        ("min(1)", "expected 2 values in these brackets, found 1", "write 2, with commas between them"),
        ("op<0x80000001>(1, 2, 3)", "expected 1 or 2 values in these brackets, found 3", "write 1 or 2"),
        ("a[]", "expected 1 values in these brackets, found 0", "write 1"),
        ("(1, 2)", "expected 1 values in these brackets, found 2", "write 1"),
        ("a < b < c", "comparisons do not chain", "parentheses"),
        ("a + not b", "`not` binds less than the operator before it", "(not x)"),
        ("+ a", "expected an expression, found '+'", "write a value"),
        ("let", "expected an expression, found 'let'", 'quote a name spelt like this: "let"'),
        ("1e39", "the number is beyond f32", "inf"),
        ("1e400f64", "the number is beyond f64", "inf"),
        ("1.5i32", "'1.5i32' is not a value of i32", "whole number"),
        ("4294967296", "4294967296 does not fit u32", "use a value from 0"),
        ("-1", "-1 does not fit u32", "use a value from 0"),
        ("9" * 5000, "is not a value of u32", "whole number"),
        ("popcont(1)", "'popcont' is not a function", "write popcount"),
        ("frobnicate(1)", "'frobnicate' is not a function", 'write call "operation.id"(...)'),
        ("(a", "expected ')' to match '(', found '}'", "write ) here"),
        ("atomic_cas(b, 1, expected=2, 3)", "the expected value stands in the wrong place", "after index and value"),
        ("atomic_add(b, 1, 2, ordering=often)", "expected a memory ordering, found 'often'", "relaxed"),
    ],
)
def test_a_wrong_expression_is_explained(text, message, fix):
    with pytest.raises(TextError) as caught:
        expression(text)
    assert message in caught.value.message
    assert fix in caught.value.fix
    assert caught.value.context["line"] == 1


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "expected 'program' at the start, found the end of the text"),
        ("program", "expected 'workgroup' after program"),
        ("program workgroup(1, 1) {}", "expected ',' after a workgroup axis, found ')'"),
        ("program workgroup(1, 1, 1) { block {", "a block has no end"),
        ("program workgroup(1, 1, 1) { } x", "expected the end of the text, found 'x'"),
        ("program workgroup(1, 1, 1) { min(1, 2) }", "expected a statement, found 'min'"),
        ("program workgroup(1, 1, 1) { 7 }", "expected a statement, found '7'"),
        ("program workgroup(1, 1, 1) { x + 1 }", "expected '=' before the value"),
        ("program workgroup(1, 1, 1) { for k of 1 {} }", "expected 'in' after the loop variable"),
        ("program workgroup(1, 1, 1) { for k in 1 {} }", "expected '..' between the bounds"),
        ("program workgroup(1, 1, 1) { if a return }", "expected '{' before the statements"),
        ("program workgroup(1, 1, 1) { if a {} else return }", "expected '{' after else"),
        ("program workgroup(1, 1, 1) { all_reduce(a, mean, 0) }", "expected a collective operation, found 'mean'"),
        ("program workgroup(1, 1, 1) { buffer a 0 read u32 }", "expected '@' before the binding slot"),
        ("program workgroup(1, 1, 1) { buffer a @0 own u32 }", "expected an access, found 'own'"),
        ("program workgroup(1, 1, 1) { buffer a @0 read u32 kind(tape) }", "expected a memory kind, found 'tape'"),
        ("program workgroup(1, 1, 1) { buffer a @0 read u32 where big(1) }", "expected a predicate, found 'big'"),
        ("program workgroup(1, 1, 1) { buffer a @0 read u32 huge }", "expected '=' before the value, found '}'"),
    ],
)
def test_a_wrong_program_is_explained(text, message):
    with pytest.raises(TextError) as caught:
        parse_program(text)
    assert message in caught.value.message


TEXTS = [XOR, SUMS, ODDITIES]
PIECES = [
    *' \n"\\(){}[]<>=.,:;@#-+~&x0',
    "let ",
    "if ",
    "else ",
    "not ",
    "u32",
    "1i32",
    "0x",
    "1e9",
    'x"0',
    "vec<",
    "\ud800",
]


def mutated(text, rng):
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text) + 1)
        match rng.randrange(4):
            case 0:
                text = text[:at] + text[at + rng.randint(1, 8) :]
            case 1:
                text = text[:at] + rng.choice(PIECES) + text[at:]
            case 2:
                text = text[:at] + rng.choice(PIECES) + text[at + 1 :]
            case 3:
                end = rng.randrange(len(text) + 1)
                text = text[:at] + text[end : end + 12] + text[at:]
    return text


def read_or_refuse(text):
    """Only a program or a TextError comes out, and a program that was read prints and reads as itself."""
    try:
        program = parse_program(text)
    except TextError:
        return
    assert parse_program(str(program)) == program


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(TEXTS), st.integers(0, 2**32))
def test_a_damaged_text_reads_as_a_program_or_raises_a_text_error(text, seed):
    read_or_refuse(mutated(text, random.Random(seed)))


@settings(deadline=None)
@given(st.text() | st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_reads_as_a_program_or_raises_a_text_error(text):
    read_or_refuse(text)
    read_or_refuse("program workgroup(1, 1, 1) { " + text)


@pytest.mark.fuzz
def test_damaged_texts_for_long():
    for seed in range(100_000):
        rng = random.Random(seed)
        text = rng.choice(TEXTS) if seed % 4 else str(random_program(rng).program)
        read_or_refuse(mutated(text, rng))


# ---- type names -----------------------------------------------------------------------------------------------------


@given(cast_types)
def test_a_type_is_found_by_its_name(t):
    assert parse_dtype(t.name) == t


@pytest.mark.parametrize(
    "name",
    ["", "U32", "u32 ", "vec<u32>", "vec<u32;4", "array<4>", "opaque<1>", "quantized<i8;none;none>", "array<4 B>\n"],
)
def test_other_spellings_are_not_types(name):
    with pytest.raises(IRValueError, match="is not a type"):
        parse_dtype(name)


def test_a_quantized_type_needs_a_storage_type():
    with pytest.raises(IRValueError, match="f32 cannot store quantized values"):
        parse_dtype("quantized<f32;per_tensor:0;none>")


@pytest.mark.parametrize("name", ["tensor<u32;4>", "sparse_csr<u32>", "device_mesh<2>", "handle<7>"])
def test_types_that_cannot_be_used_are_named_as_such(name):
    with pytest.raises(IRValueError, match="is a type that programs cannot use"):
        parse_dtype(name)
