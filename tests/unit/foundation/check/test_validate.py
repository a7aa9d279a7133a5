"""Every rule has a program that breaks it and a neighbour that keeps it; nothing makes the validator raise."""

import pickle

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vyre.conform.programs.strategies import arbitrary_programs, valid_programs
from vyre.errors import DiagCode, InvalidProgram
from vyre.foundation.check.validate import Capabilities, Issue, Limits, check, validate
from vyre.foundation.ir import nodes as ir
from vyre.foundation.ir.dtypes import (
    SIMPLE,
    array_type,
    bf16,
    bool_,
    bytes_,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u32,
    u64,
    vec_type,
)
from vyre.foundation.ir.nodes import (
    AllGather,
    AllReduce,
    Assign,
    AsyncLoad,
    AsyncStore,
    AsyncWait,
    Atomic,
    Barrier,
    BinOp,
    Bitcast,
    Block,
    Broadcast,
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
    ReduceScatter,
    Region,
    Return,
    Select,
    Span,
    Store,
    SubgroupBallot,
    SubgroupReduce,
    SubgroupShuffle,
    SubgroupSize,
    Trap,
    UnOp,
    Var,
    WorkgroupId,
    lit,
)
from vyre.foundation.ir.ops import CORE_IDS, AtomicOp, BinaryOp, CollectiveOp, OpaqueOp, Ordering, ReduceOp, UnaryOp
from vyre.foundation.ir.program import (
    Access,
    BufferDecl,
    Hints,
    LinearType,
    MemoryKind,
    Predicate,
    Program,
    output,
    read,
    read_write,
    uniform,
    workgroup,
    write_only,
)

EVERYTHING = Capabilities.everything()
ONE, TWO, HALF, TRUE = lit(1), lit(2), lit(0.5), lit(True)
MINUS = lit(-1, i32)
WIDE = lit(1, u64)
BYTE = lit(1, u8)
GID, LID = InvocationId(0), LocalId(0)

BUFFERS = (
    read("src", 0, u32),
    read_write("dst", 1, u32),
    uniform("one", 3, u32, 1),
    read_write("real", 4, f32),
    workgroup("tile", u32, 64),
    read_write("signed", 5, i32),
)


def program(*body, buffers=BUFFERS, workgroup_size=(64, 1, 1)):
    return Program(buffers, workgroup_size, body)


MADE = write_only("made", 2, u32)


def value(e):
    """A program whose only interest is an expression."""
    return program(Let("v", e))


def declare(*buffers):
    return Program(buffers, (64, 1, 1), [])


def without(**missing):
    return EVERYTHING.replace(**missing)


def codes(p, capabilities=EVERYTHING, **options):
    return [i.code.value for i in validate(p, capabilities, **options)]


def binary(op, a, b):
    return value(BinOp(op, a, b))


def unary(op, a):
    return value(UnOp(op, a))


def atomic(op=AtomicOp.ADD, buffer="dst", index=ONE, given=ONE, **rest):
    return value(Atomic(op, buffer, index, given, **rest))


def block(depth):
    node = Return()
    for _ in range(depth):
        node = Block((node,))
    return node


def sum_of(terms):
    e = ONE
    for _ in range(terms - 1):
        e = e + ONE
    return e


SYNC = Barrier(Ordering.GRID_SYNC)
WHILE = (
    Let("go", TRUE),
    Let("n", lit(4)),
    Loop(
        "round",
        lit(0),
        lit(0xFFFFFFFF),
        (If(Var("go"), (Assign("go", Var("n") > 0), If(Var("go"), (Assign("n", Var("n") - 1), Barrier())))),),
    ),
)
FITS, FITS_NOT = Predicate("at_least", (4,)), Predicate("not", (Predicate("at_least", (4,)),))
NO_SHARED_ATOMICS, NO_WIDE = without(workgroup_atomics=False), without(int64=False)

# code: (a program that breaks it, a neighbour that keeps it[, capabilities])
RULES = {
    "V008": (program(Let("x", ONE), Block((Let("x", ONE),))), program(Block((Let("x", ONE),)), Let("x", ONE))),
    "V009": (atomic(buffer="src"), atomic()),
    "V010": (program(If(LID < 3, (Barrier(),))), program(If(WorkgroupId(0) < 3, (Barrier(),)))),
    "V011": (
        program(Loop("i", ONE, TWO, (Assign("i", ONE),))),
        program(Loop("i", ONE, TWO, (Let("j", Var("i")), Assign("j", ONE)))),
    ),
    "V012": (value(Cast(u8, HALF)), value(Cast(i32, HALF))),
    "V013": (
        program(Let("v", Load("raw", ONE)), buffers=[read("raw", 0, bytes_)]),
        program(Let("v", Load("raw", ONE)), buffers=[read("raw", 0, u8)]),
    ),
    "V014": (atomic(buffer="real", given=HALF), atomic(buffer="signed", given=MINUS)),
    "V018": (program(block(61)), program(block(58))),
    "V019": (program(*[Return()] * 100_000), program(*[Let(f"x{i}", ONE) for i in range(10)])),
    "V022": (declare(output("a", 0, u32, 4), output("b", 1, u32, 4)), declare(output("a", 0, u32, 4))),
    "V023": (value(Cast(bytes_, ONE)), value(Cast(u8, ONE))),
    "V025": (atomic(buffer="tile"), atomic(), NO_SHARED_ATOMICS),
    "V027": (atomic(index=MINUS), atomic(index=ONE)),
    "V028": (value(Fma(HALF, ONE, HALF)), value(Fma(HALF, HALF, HALF))),
    "V029": (value(Select(TRUE, ONE, HALF)), value(Select(TRUE, ONE, TWO))),
    "V030": (value(Opaque("x.y", b"")), value(ONE)),
    "V031": (program(OpaqueNode("x.y", b"")), program(Return())),
    "V032": (program(Let("x", ONE), Let("x", ONE)), program(Let("x", ONE), Assign("x", ONE))),
    "V033": (value(sum_of(129)), value(sum_of(50))),
    "V034": (value(Cast(i32, ONE)), value(Cast(f32, ONE)), without(cast_targets=frozenset(["f32"]))),
    "V035": (value(Cast(u8, GID)), value(Cast(u8, GID & 0xFF))),
    "V036": (
        program(Store("a", lit(4), ONE), buffers=[read_write("a", 0, u32, 4)]),
        program(Store("a", lit(3), ONE), buffers=[read_write("a", 0, u32, 4)]),
    ),
    "V041": (value(SubgroupSize()), value(ONE), without(subgroup=False)),
    "V042": (atomic(ordering=Ordering.GRID_SYNC), atomic(ordering=Ordering.RELAXED)),
    "V043": (program(Barrier(Ordering.RELAXED)), program(Barrier(Ordering.ACQUIRE))),
    "V044": (value(GID // lit(0)), value(GID // ONE)),
    "V045": (program(Let("x", ONE), Assign("x", HALF)), program(Let("x", ONE), Assign("x", TWO))),
    "V046": (program(AllReduce("dst", CollectiveOp.SUM, 1)), program(AllReduce("dst", CollectiveOp.SUM, 0))),
    "V047": (value(SubgroupReduce(ReduceOp.XOR, HALF)), value(SubgroupReduce(ReduceOp.ADD, HALF))),
    "V051": (value(BufferRef("dst")), value(Load("dst", ONE))),
    "V052": (value(Call("a.b", (BufferRef("no"),))), value(Call("a.b", (BufferRef("dst"),))), None),
    "V056": (value(Call("a.b", ())), value(ONE)),
    "V057": (atomic(given=MINUS), atomic(buffer="signed", given=MINUS)),
    "V058": (
        atomic(AtomicOp.COMPARE_EXCHANGE, expected=MINUS),
        atomic(AtomicOp.COMPARE_EXCHANGE, expected=ONE),
    ),
    "V059": (atomic(AtomicOp.COMPARE_EXCHANGE), atomic(AtomicOp.COMPARE_EXCHANGE, expected=ONE)),
    "V060": (atomic(expected=ONE), atomic()),
    "V061": (atomic(buffer="no"), atomic()),
    "V063": (program(Store("src", ONE, ONE)), program(Store("dst", ONE, ONE))),
    "V064": (program(Store("no", ONE, ONE)), program(Store("made", ONE, ONE), buffers=[MADE])),
    "V065": (value(Load("no", ONE)), value(Load("src", ONE))),
    "V066": (value(Var("no")), program(Let("yes", ONE), Let("v", Var("yes")))),
    "V067": (value(BufLen("no")), value(BufLen("dst"))),
    "V068": (value(InvocationId(3)), value(InvocationId(2))),
    "V070": (
        program(
            Let("v", Load("a", ONE) + Load("a", TWO)),
            buffers=[read("a", 0, u32).replace(linear_type=LinearType.AFFINE)],
        ),
        value(Load("src", ONE) + Load("src", TWO)),
    ),
    "V083": (
        declare(read("a", 0, u32, 8).replace(shape_predicate=FITS_NOT)),
        declare(read("a", 0, u32, 8).replace(shape_predicate=FITS)),
    ),
    "V084": (value(WIDE + WIDE), value(Cast(u32, WIDE)), NO_WIDE),
    "V085": (
        binary(BinaryOp.SATURATING_ADD, MINUS, MINUS),
        binary(BinaryOp.SATURATING_ADD, ONE, ONE),
    ),
    "V086": (binary(BinaryOp.ABS_DIFF, MINUS, MINUS), binary(BinaryOp.ABS_DIFF, ONE, TWO)),
    "V087": (binary(BinaryOp.ADD, TRUE, TRUE), binary(BinaryOp.ADD, MINUS, MINUS)),
    "V088": (binary(BinaryOp.ADD, ONE, MINUS), binary(BinaryOp.ADD, ONE, TWO)),
    "V089": (binary(BinaryOp.MOD, HALF, HALF), binary(BinaryOp.MOD, MINUS, MINUS)),
    "V090": (binary(BinaryOp.MOD, ONE, MINUS), binary(BinaryOp.MOD, ONE, TWO)),
    "V091": (binary(BinaryOp.BIT_OR, HALF, ONE), binary(BinaryOp.BIT_OR, TWO, ONE)),
    "V092": (binary(BinaryOp.BIT_OR, ONE, TRUE), binary(BinaryOp.BIT_OR, WIDE, WIDE)),
    "V093": (binary(BinaryOp.BIT_OR, ONE, MINUS), binary(BinaryOp.BIT_OR, MINUS, MINUS)),
    "V094": (binary(BinaryOp.SHL, ONE, MINUS), binary(BinaryOp.SHL, MINUS, ONE)),
    "V095": (binary(BinaryOp.AND, TRUE, HALF), binary(BinaryOp.AND, TRUE, ONE)),
    "V096": (binary(BinaryOp.LT, ONE, MINUS), binary(BinaryOp.LT, BYTE, BYTE)),
    "V097": (binary(BinaryOp.SHUFFLE, ONE, ONE), value(SubgroupShuffle(ONE, ONE))),
    "V099": (unary(UnaryOp.NEGATE, TRUE), unary(UnaryOp.NEGATE, MINUS)),
    "V100": (unary(UnaryOp.LOGICAL_NOT, HALF), unary(UnaryOp.LOGICAL_NOT, ONE)),
    "V101": (unary(UnaryOp.CLZ, HALF), unary(UnaryOp.CLZ, WIDE)),
    "V102": (unary(UnaryOp.SQRT, ONE), unary(UnaryOp.SQRT, HALF)),
    "V103": (unary(UnaryOp.UNPACK4_LOW, HALF), unary(UnaryOp.UNPACK4_LOW, MINUS)),
    "V105": (Program.of_entry([], (1, 1, 1), []), Program.empty()),
    "V106": (program(workgroup_size=(0, 1, 1)), program(workgroup_size=(1, 1, 1))),
    "V107": (declare(read("a", 0, u32), read("a", 1, u32)), declare(read("a", 0, u32), read("b", 1, u32))),
    "V108": (declare(read("a", 0, u32), read("b", 0, u32)), declare(read("a", 0, u32), workgroup("b", u32, 1))),
    "V109": (declare(workgroup("a", u32, 0)), declare(workgroup("a", u32, 1))),
    "V110": (declare(output("a", 0, array_type(12), 4)), declare(output("a", 0, u32, 4))),
    "V112": (program(Return(), Let("x", ONE)), program(Let("x", ONE), Return())),
    "V115": (
        Program([], (1, 1, 1), [Region("a#self-exclusive", ()), Region("a#self-exclusive", ())]),
        Program([], (1, 1, 1), [Region("a#self-exclusive", ()), Region("a", ()), Region("a", ())]),
    ),
    "V116": (
        program(Let("_", Atomic(AtomicOp.ADD, "dst", GID, ONE)), Store("dst", GID, ONE)),
        program(Let("_", Atomic(AtomicOp.ADD, "dst", GID, ONE)), Barrier(), Store("dst", GID, ONE)),
    ),
    "V117": (
        program(AsyncLoad("src", "tile", ONE, ONE, "")),
        program(AsyncLoad("src", "tile", ONE, ONE, "t"), AsyncWait("t")),
    ),
    "V120": (program(Assign("dst", ONE)), program(Let("x", ONE), Assign("x", TWO))),
    "V121": (program(Store("dst", ONE, HALF)), program(Store("real", ONE, HALF))),
    "V122": (program(Store("dst", MINUS, ONE)), program(Store("dst", ONE, ONE))),
    "V123": (program(If(HALF, ())), program(If(ONE, ()))),
    "V124": (program(Loop("i", MINUS, ONE, ())), program(Loop("i", ONE, ONE, ()))),
    "V125": (program(Loop("i", ONE, HALF, ())), program(Loop("i", ONE, TWO, ()))),
    "V126": (program(IndirectDispatch("src", 6)), program(IndirectDispatch("src", 8))),
    "V127": (program(IndirectDispatch("tile", 8)), program(IndirectDispatch("src", 8))),
    "V128": (
        program(AsyncWait("")),
        program(AsyncStore("tile", "dst", ONE, ONE, "t"), AsyncWait("t")),
    ),
    "V130": (
        declare(read_write("a", 0, u32).replace(live_out=True)),
        declare(read_write("a", 0, u32, 1).replace(live_out=True)),
    ),
    "V200": (value(Load("src", MINUS)), value(Load("src", ONE))),
    "V201": (program(If(WorkgroupId(0) < 3, (SYNC,))), program(Block((SYNC,)))),
    "V202": (
        program(Let("x", Load("dst", GID)), Store("dst", GID + 1, Var("x")), SYNC, Store("dst", GID, Var("x"))),
        program(Let("x", Load("src", GID)), Store("dst", GID + 1, Var("x")), SYNC, Store("dst", GID, Var("x"))),
    ),
    "V203": (
        program(If(LID < 3, (Let("v", SubgroupReduce(ReduceOp.ADD, ONE)),))),
        program(Let("v", SubgroupReduce(ReduceOp.ADD, LID)), If(Var("v") > LID, ())),
    ),
    "V204": (value(Select(HALF, ONE, TWO)), value(Select(ONE, ONE, TWO))),
    "V206": (
        program(AsyncLoad("src", "one", ONE, ONE, "t"), AsyncWait("t")),
        program(AsyncLoad("src", "tile", ONE, ONE, "t"), AsyncWait("t")),
    ),
    "V207": (
        program(AsyncLoad("src", "no", ONE, ONE, "t"), AsyncWait("t")),
        program(AsyncLoad("src", "dst", ONE, ONE, "t"), AsyncWait("t")),
    ),
    "V208": (
        declare(workgroup("a", u32, 17)),
        declare(workgroup("a", u32, 16)),
        without(max_workgroup_bytes=64),
    ),
    "V209": (
        program(workgroup_size=(4, 4, 5)),
        program(workgroup_size=(4, 4, 4)),
        without(max_invocations=64),
    ),
    "V210": (declare(read("1a", 0, u32)), declare(read("_a1", 0, u32))),
    "V211": (
        declare(output("a", 0, u32, 4).replace(output_byte_range=(0, 17))),
        declare(output("a", 0, u32, 4).replace(output_byte_range=(16, 16))),
    ),
    "V212": (program(Trap(HALF, "t")), program(Trap(ONE, "t"))),
    "V213": (value(Load("made", ONE)).replace(buffers=[MADE]), value(Load("dst", ONE))),
    "V214": (declare(write_only("a", 0, u32)), declare(read_write("a", 0, u32))),
    "V215": (value(Lit(f64, 0)), value(HALF), without(float64=False)),
    "V216": (atomic(AtomicOp.FETCH_NAND), atomic(AtomicOp.MAX)),
    "V217": (value(Lit(u32, -1)), value(Lit(u32, 1))),
    "V218": (value(SubgroupShuffle(ONE, MINUS)), value(SubgroupShuffle(MINUS, ONE))),
}
NEVER_REPORTED = {
    "V015": "loop bounds are V124 and V125",
    "V016": "calls are known to whoever inlines them; here there is no table of operations",
    "V017": "calls are inlined, so none is nested",
    "V020": "needs a table of operations",
    "V021": "needs a table of operations",
    "V053": "needs a table of operations",
    "V054": "needs a table of operations",
    "V055": "a divergent return makes every later barrier V010",
    "V098": "every target negates i32",
    "V104": "an operator outside the table is a malformed field, V217",
    "V205": "what is bound is not part of a program",
}


def test_every_code_is_in_exactly_one_table():
    known = {c.value for c in DiagCode if c.value.startswith("V")}
    assert known == RULES.keys() | NEVER_REPORTED.keys()
    assert not RULES.keys() & NEVER_REPORTED.keys()


def with_capabilities(rule):
    broken, kept, *rest = RULES[rule]
    return broken, kept, rest[0] if rest else EVERYTHING


@pytest.mark.parametrize("rule", RULES)
def test_a_program_that_breaks_the_rule_is_told(rule):
    broken, _, capabilities = with_capabilities(rule)
    found = [i for i in validate(broken, capabilities) if i.code.value == rule]
    assert found
    for issue in found:
        assert issue.severity == DiagCode(rule).severity
        assert issue.message
        assert issue.fix
        assert not issue.message.endswith(".")
        assert issue.phase in ("program", "node", "expression", "type", "memory", "limits")


@pytest.mark.parametrize("rule", RULES)
def test_its_neighbour_keeps_the_rule(rule):
    _, kept, capabilities = with_capabilities(rule)
    assert rule not in codes(kept, capabilities)


@pytest.mark.parametrize("rule", [r for r in RULES if r not in ("V013", "V023", "V110", "V117", "V128")])
def test_one_mistake_is_one_error(rule):
    broken, _, capabilities = with_capabilities(rule)
    errors = {i.code.value for i in validate(broken, capabilities) if i.severity == "error"}
    assert errors <= {rule}


MORE_BROKEN = [
    ("V009", value(Atomic(AtomicOp.ADD, "made", ONE, ONE)).replace(buffers=[MADE])),
    ("V009", atomic(buffer="one")),
    ("V012", value(Bitcast(u64, ONE))),
    ("V012", value(Bitcast(f32, WIDE))),
    ("V012", value(Cast(u8, HALF))),
    ("V013", program(Store("raw", ONE, ONE), buffers=[read_write("raw", 0, bytes_)])),
    ("V013", program(Let("_", Atomic(AtomicOp.ADD, "raw", ONE, ONE)), buffers=[read_write("raw", 0, bytes_)])),
    ("V018", program(If(TRUE, (Block((Let("v", sum_of(60)),)),)))),
    ("V018", program(block(70))),
    ("V019", value(Call("x", tuple([Call("y", (ONE,) * 4000)] * 300)))),
    ("V030", binary(OpaqueOp(1 << 31), ONE, ONE)),
    ("V030", unary(OpaqueOp(1 << 31), ONE)),
    ("V030", atomic(OpaqueOp(1 << 31))),
    ("V032", program(Loop("i", ONE, TWO, (Let("x", ONE), Let("x", ONE))))),
    ("V008", program(Loop("i", ONE, TWO, (Let("i", ONE),)))),
    ("V008", program(Let("i", ONE), Loop("i", ONE, TWO, ()))),
    ("V044", value(Load("signed", ONE) % lit(0, i32))),
    ("V046", program(Broadcast("dst", 1, 0))),
    ("V046", program(AllReduce("tile", CollectiveOp.SUM, 0))),
    ("V046", program(AllReduce("src", CollectiveOp.SUM, 0))),
    ("V046", program(AllGather("src", "no", 0))),
    ("V046", program(AllGather("src", "real", 0))),
    ("V046", program(ReduceScatter("src", "one", CollectiveOp.MAX, 0))),
    ("V070", declare(read("a", 0, u32).replace(linear_type=LinearType.LINEAR))),
    ("V070", declare(read("a", 0, u32).replace(linear_type=LinearType.RELEVANT))),
    ("V085", binary(BinaryOp.MUL_HIGH, MINUS, MINUS)),
    ("V087", binary(BinaryOp.MUL, BYTE, BYTE)),
    ("V087", binary(BinaryOp.WRAPPING_ADD, HALF, HALF)),
    ("V089", binary(BinaryOp.MOD, TRUE, TRUE)),
    ("V094", binary(BinaryOp.ROTATE_LEFT, HALF, ONE)),
    ("V096", binary(BinaryOp.LT, TRUE, TRUE)),
    ("V102", unary(UnaryOp.EXP, Cast(f16, HALF))),
    ("V102", unary(UnaryOp.IS_NAN, ONE)),
    ("V105", Program.of_entry([], (1, 1, 1), [Let("x", ONE)])),
    ("V106", program(workgroup_size=("a", 1, 1))),
    ("V106", program(workgroup_size=(1, -1, 1))),
    ("V106", program(workgroup_size=(1, 1, 1 << 32))),
    ("V106", program(workgroup_size=(True, 1, 1))),
    ("V130", declare(read_write("a", 0, u32).replace(is_output=True))),
    ("V201", program(Let("n", ONE), Loop("i", ONE, TWO, (SYNC,)))),
    ("V201", program(If(WorkgroupId(0) < 3, (Return(),)), SYNC)),
    ("V202", program(Let("x", Atomic(AtomicOp.ADD, "dst", ONE, ONE)), SYNC, Store("dst", GID, Var("x")))),
    ("V202", program(Let("x", ONE), Assign("x", TWO), SYNC, Store("dst", GID, Var("x")))),
    ("V202", program(Store("tile", LID, ONE), SYNC, Store("dst", GID, Load("tile", LID)))),
    ("V207", program(AsyncWait("t"))),
    ("V207", program(AsyncLoad("src", "tile", ONE, ONE, "t"))),
    ("V122", program(AsyncLoad("src", "tile", HALF, ONE, "t"), AsyncWait("t"))),
    ("V210", program(Let("a b", ONE))),
    ("V210", program(Loop("", ONE, TWO, ()))),
    ("V211", declare(read_write("a", 0, u32).replace(output_byte_range=(4, 0)))),
    ("V215", declare(read("a", 0, vec_type(u32, 3)))),
    ("V215", value(Cast(SIMPLE[0x04], ONE))),
    ("V218", value(SubgroupBallot(HALF))),
    ("V218", value(SubgroupReduce(ReduceOp.ADD, WIDE))),
    ("V218", value(SubgroupReduce(ReduceOp.AND, TRUE))),
]


@pytest.mark.parametrize("rule, broken", MORE_BROKEN, ids=[f"{i}-{c}" for i, (c, _) in enumerate(MORE_BROKEN)])
def test_further_ways_to_break_a_rule(rule, broken):
    assert rule in codes(broken)


FINE = {
    "i32 shifts and negation": value(-(MINUS << 3) >> 1),
    "a literal of every type": program(
        *(Let(f"v{t.name}", lit(1, t)) for t in (u32, i32, f32, u64, i64, f64, u8, i8, i16, f16, bf16)), Let("b", TRUE)
    ),
    "half arithmetic": value(Cast(f16, HALF) * Cast(f16, HALF)),
    "a while loop over uniform values with a barrier in it": program(*WHILE),
    "single-rank collectives": program(
        AllGather("src", "dst", 0), ReduceScatter("src", "dst", CollectiveOp.SUM, 0), Broadcast("dst", 0, 0)
    ),
    "an output sized at dispatch": program(Store("out", GID, ONE), buffers=[write_only("out", 0, u32)]),
    "names reused in sister scopes": program(Block((Let("x", ONE),)), Block((Let("x", HALF),))),
    "a narrow constant": value(lit(200, u8)),
    "unordered floats compared": value(HALF.eq(HALF)),
    "select between narrow values": value(Select(TRUE, BYTE, BYTE)),
    "a trap": program(Trap(GID, "why")),
    "predicates": declare(
        *(
            read(f"p{i}", i, u32, 12).replace(shape_predicate=Predicate(kind, args))
            for i, (kind, args) in enumerate(
                [
                    ("at_least", (12,)),
                    ("at_most", (12,)),
                    ("exactly", (12,)),
                    ("multiple_of", (3,)),
                    ("mod_equals", (5, 2)),
                    ("affine", (2, -4, 20, 20)),
                    ("and", (FITS, FITS)),
                    ("or", (FITS_NOT, FITS)),
                    ("not", (FITS_NOT,)),
                ]
            )
        )
    ),
}


@pytest.mark.parametrize("what", FINE)
def test_good_programs_have_no_findings(what):
    assert [i for i in validate(FINE[what], EVERYTHING) if i.code != "V035"] == []


@pytest.mark.parametrize(
    "kind, args",
    [
        ("at_least", (13,)), ("at_most", (11,)), ("exactly", (11,)), ("multiple_of", (5,)), ("multiple_of", (0,)),
        ("mod_equals", (5, 3)), ("mod_equals", (0, 0)), ("affine", (2, -4, 21, 99)), ("affine", (2, -4, 0, 19)),
        ("and", (FITS, FITS_NOT)), ("or", (FITS_NOT, FITS_NOT)), ("not", (FITS,)),
    ],
)  # fmt: skip
def test_a_count_that_breaks_its_predicate(kind, args):
    assert codes(declare(read("p", 0, u32, 12).replace(shape_predicate=Predicate(kind, args)))) == ["V083"]


def test_a_predicate_says_nothing_about_a_count_known_at_dispatch():
    assert codes(declare(read("p", 0, u32).replace(shape_predicate=FITS_NOT))) == []


# ---- capabilities ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code, p",
    [
        ("V041", value(SubgroupReduce(ReduceOp.ADD, ONE))),
        ("V046", program(AllReduce("dst", CollectiveOp.SUM, 0))),
    ],
)
def test_what_only_some_targets_have_is_refused_without_capabilities(code, p):
    assert codes(p, None) == [code]
    assert codes(p, EVERYTHING) == []


@pytest.mark.parametrize(
    "p",
    [
        value(WIDE * WIDE),
        atomic(buffer="tile"),
        value(Cast(f16, HALF)),
        value(Lit(f64, 0) + Lit(f64, 0)),
        value(Load("narrow", ONE)).replace(buffers=[read("narrow", 0, i8)]),
        value(Call("a.b", (ONE,))),
        program(Trap(ONE, "t")),
    ],
)
def test_the_universal_mode_accepts(p):
    assert codes(p, None) == []


@pytest.mark.parametrize(
    "bit, code, p",
    [
        ("subgroup", "V041", value(SubgroupBallot(TRUE))),
        ("workgroup_atomics", "V025", atomic(buffer="tile")),
        ("int64", "V084", value(-lit(1, i64))),
        ("int64", "V084", value(WIDE < WIDE)),
        ("float16", "V215", value(Cast(f16, HALF))),
        ("bfloat16", "V215", declare(read("a", 0, bf16))),
        ("float64", "V215", value(Cast(f64, ONE))),
        ("trap", "V056", program(Trap(ONE, "t"))),
        ("indirect", "V056", program(IndirectDispatch("src", 0))),
        ("collectives", "V046", program(Broadcast("dst", 0, 0))),
        ("async_copy", "V056", program(AsyncLoad("src", "tile", ONE, ONE, "t"), AsyncWait("t"))),
        ("grid_sync", "V056", program(SYNC)),
    ],
)
def test_each_capability_is_needed_by_something(bit, code, p):
    assert set(codes(p, without(**{bit: False}))) == {code}
    assert codes(p) == []


def test_an_operation_outside_the_supported_set_is_told_once_at_its_first_use():
    p = program(Let("a", Fma(HALF, HALF, HALF)), Let("b", Fma(HALF, HALF, HALF)))
    found = validate(p, without(supported_ops=CORE_IDS - {"vyre.fma"}))
    assert [(i.code, i.path) for i in found] == [("V056", ("entry", 0, "body", 0, "value"))]
    assert "vyre.fma" in found[0].message
    assert codes(p, without(supported_ops=CORE_IDS)) == []


def test_a_call_is_fine_where_the_target_runs_it():
    p = value(Call("a.b", (ONE,)))
    assert codes(p, without(supported_ops=CORE_IDS | {"a.b"})) == []


def test_a_divergent_return_is_fine_where_barriers_ignore_it():
    p = program(If(LID < 3, (Return(),)), Barrier())
    assert codes(p) == ["V010"]
    assert codes(p, without(barrier_ignores_exited=True)) == []


# ---- options --------------------------------------------------------------------------------------------------------


def test_shadowing_can_be_allowed_but_not_a_second_let_in_one_scope():
    shadow = program(Let("x", ONE), Block((Let("x", HALF), Assign("x", HALF))), Assign("x", ONE))
    assert codes(shadow) == ["V008"]
    assert codes(shadow, allow_shadowing=True) == []
    assert codes(program(Let("x", ONE), Let("x", ONE)), allow_shadowing=True) == ["V032"]


def test_mixed_access_is_an_error_in_a_fused_program_only():
    p = RULES["V116"][0]
    assert [(i.code, i.severity) for i in validate(p)] == [("V116", "warning")]
    assert [(i.code, i.severity) for i in validate(p, fused=True)] == [("V116", "error")]


@pytest.mark.parametrize(
    "limits, at, beyond, code",
    [
        (Limits(nodes=4), program(*[Let("x", ONE)][:1], Block(()), Block(())), program(*[Block(())] * 4), "V019"),
        (Limits(expressions=3), value(sum_of(2)), value(sum_of(3)), "V019"),
        (Limits(nesting=3), program(block(1)), program(block(2)), "V018"),
        (Limits(expression_depth=3), value(sum_of(3)), value(sum_of(4)), "V033"),
        (Limits(depth=4), value(sum_of(2)), value(sum_of(3)), "V018"),
        (Limits(buffers=1), declare(read("a", 0, u32)), declare(read("a", 0, u32), read("b", 1, u32)), "V019"),
    ],
)
def test_limits_bite_one_beyond(limits, at, beyond, code):
    assert codes(at, limits=limits) == []
    assert codes(beyond, limits=limits) == [code]


@pytest.mark.parametrize("depth", [57, 58])
def test_what_validates_can_be_encoded(depth):
    for p in (program(block(depth)), value(sum_of(depth))):
        assert codes(p) == []
        assert Program.from_wire(p.to_wire()) == p


def test_a_deep_place_is_named():
    (issue,) = validate(value(sum_of(1000)))
    assert issue.path == ("entry", 0, "body", 0, "value", *["left"] * 128)


# ---- reports --------------------------------------------------------------------------------------------------------


def test_findings_come_in_program_order_with_paths_and_spans():
    span = Span("kernel.py", 7)
    p = program(
        Let("a", ONE + HALF, span=span),
        If(TRUE, (Store("dst", ONE, HALF),), (Let("b", Var("no") + ONE),)),
        Loop("i", HALF, TWO, (Assign("i", ONE),)),
    )
    found = validate(p)
    assert [(i.code, i.path) for i in found] == [
        ("V088", ("entry", 0, "body", 0, "value")),
        ("V121", ("entry", 0, "body", 1, "then", 0)),
        ("V066", ("entry", 0, "body", 1, "orelse", 0, "value", "left")),
        ("V124", ("entry", 0, "body", 2, "start")),
        ("V011", ("entry", 0, "body", 2, "body", 0)),
    ]
    assert [i.span for i in found] == [span, None, None, None, None]
    assert str(found[0]) == "V088 at kernel.py:7: add of u32 and f32. Fix: cast one operand to the type of the other"
    assert str(found[3]).startswith("V124 at entry.0.body.2.start: start is f32. Fix: ")


def test_a_mistake_does_not_cascade():
    wrong = ONE + HALF
    assert codes(program(Let("x", wrong), Store("dst", Var("x") * 2, Var("x") & ONE), If(Var("x"), ()))) == ["V088"]
    assert codes(program(Store("dst", Load("no", ONE), Load("no", ONE) + HALF))) == ["V065", "V065"]


@pytest.mark.parametrize("span", [3, "kernel.py:7", GID < 3])
def test_a_span_that_is_none_is_left_out(span):
    broken = Let("v", Var("no"), span=span)
    deep = block(70).replace(span=span)
    assert [i.span for p in (program(broken), program(deep)) for i in validate(p)] == [None, None]


def test_an_issue_is_a_value():
    issue = validate(value(Var("no")))[0]
    assert issue == Issue(DiagCode.V066, "error", "expression", issue.path, "'no' is not declared", DiagCode.V066.fix)
    assert pickle.loads(pickle.dumps(issue)) == issue


def test_the_list_is_the_callers_own():
    p = value(Var("no"))
    validate(p).clear()
    assert len(validate(p)) == len(p.validate()) == 1


def test_check_raises_with_the_first_findings_and_all_issues():
    check(value(ONE))
    check(RULES["V035"][0])  # a warning does not raise
    with pytest.raises(InvalidProgram) as caught:
        check(value(Var("no")))
    assert str(caught.value) == (
        "the program breaks a rule:\n  V066 at entry.0.body.0.value: 'no' is not declared. "
        "Fix: bind the variable with let before using it"
    )
    p = program(*(Let(f"v{i}", Var("no")) for i in range(7)), Let("w", Cast(u8, GID)))
    with pytest.raises(InvalidProgram, match="breaks 7 rules") as caught:
        check(p)
    assert caught.value.message.endswith("\n  and 2 more")
    assert len(caught.value.issues) == 8
    with pytest.raises(InvalidProgram):
        check(RULES["V116"][0], fused=True)
    with pytest.raises(InvalidProgram):
        check(value(SubgroupSize()))


# ---- whatever it is given -------------------------------------------------------------------------------------------


class Odd(ir.Expr):
    """An expression class that nobody knows."""


MALFORMED = {
    "a statement that is none": program(None),
    "an expression as a statement": program(ONE),
    "a statement as an expression": program(Let("x", Return())),
    "no expression": program(Let("x", None)),
    "an unknown expression class": value(Odd()),
    "None among arguments": value(Call("a", (None,))),
    "a name that is no string": program(Let(3, ONE)),
    "a name that has no bytes": program(Let("\ud800", ONE)),
    "a tag that has no bytes": program(Trap(ONE, "\udfff")),
    "a buffer name that is no string": value(Load(None, ONE)),
    "a buffer that is none": declare(None),
    "a negative binding": declare(read("a", -1, u32)),
    "a huge count": declare(read("a", 0, u32, 1 << 32)),
    "a float count": declare(read("a", 0, u32, 1.5)),
    "a string for a type": declare(BufferDecl("a", 0, Access.READ_ONLY, "u32")),
    "a string for an access": declare(BufferDecl("a", 0, "rw", u32, kind=MemoryKind.GLOBAL)),
    "a forged type": declare(read("a", 0, u32.replace(bits=64))),
    "a type with a strange tag": declare(read("a", 0, u32.replace(tag="x"))),
    "hints that are none": declare(read("a", 0, u32).replace(hints=None)),
    "a huge hint": declare(read("a", 0, u32).replace(hints=Hints(coalesce_axis=256))),
    "a strange hint": declare(read("a", 0, u32).replace(hints=Hints(locality=3))),
    "a strange range": declare(read("a", 0, u32).replace(output_byte_range=(0, "x"))),
    "an unknown predicate": declare(read("a", 0, u32).replace(shape_predicate=Predicate("odd", (1,)))),
    "half a predicate": declare(read("a", 0, u32).replace(shape_predicate=Predicate("and", (FITS,)))),
    "a literal beyond its type": value(Lit(bool_, 2)),
    "a literal of a narrow type": value(Lit(u8, 1)),
    "a literal that is a string": value(Lit(u32, "1")),
    "a subnormal literal": value(Lit(f32, 1)),
    "a negative zero literal": value(Lit(f32, 0x80000000)),
    "a NaN literal with a payload": value(Lit(f32, 0x7FC00001)),
    "an operator that is none": value(BinOp(UnaryOp.CLZ, ONE, ONE)),
    "an axis that is no number": value(InvocationId("x")),
    "a negative rank": program(Broadcast("dst", -1, 0)),
    "an ordering that is none": program(Barrier(None)),
    "a tuple for an optional operand": atomic(expected=(ONE,)),
    "an op id that is no string": Program([], (1, 1, 1), [], op_id=3),
    "an exclusive that is no bool": Program([], (1, 1, 1), [], exclusive="yes"),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_programs_are_reported_as_that_alone(what):
    assert set(codes(MALFORMED[what])) == {"V217"}
    assert set(codes(MALFORMED[what], None)) == {"V217"}


def test_a_program_of_the_wrong_things_is_reported_in_moderation():
    assert len(codes(program(*[Let(i, None) for i in range(1000)]))) == 20


def test_a_statement_used_as_an_expression_elsewhere_is_found():
    shared = Let("x", ONE)
    assert codes(program(shared, Let("y", shared))) == ["V217"]


def test_depth_and_sharing_cost_neither_stack_nor_time():
    assert codes(value(sum_of(20_000))) == ["V033"]
    assert codes(program(block(20_000))) == ["V018"]
    doubled = ONE
    for _ in range(58):
        doubled = doubled + doubled
    assert codes(value(doubled)) == ["V019"]
    blocks = Block(())
    for _ in range(55):
        blocks = Block((blocks, blocks))
    assert codes(program(blocks)) == ["V019"]
    wrong = None
    for _ in range(100_000):
        wrong = UnOp(UnaryOp.NEGATE, wrong)
    assert codes(value(wrong)) == ["V217"]


def test_large_flat_programs_are_checked_in_linear_time():
    many = [Let(f"x{i}", ONE + ONE) for i in range(4_000)]
    branches = [If(Var("x0") < 3, (Let("y", ONE),)) for _ in range(4_000)]
    assert codes(program(*many, *branches)) == []


SLOW = settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@SLOW
@given(arbitrary_programs())
def test_no_program_makes_the_validator_raise(p):
    first = validate(p), validate(p, EVERYTHING), validate(p, Capabilities(), allow_shadowing=True, fused=True)
    again = Program.of_entry(p.buffers, p.workgroup_size, p.entry, op_id=p.entry_op_id, exclusive=p.exclusive)
    assert first[:2] == (validate(again), validate(again, EVERYTHING))
    for issues in first:
        assert len({(i.path, i.code) for i in issues}) == len(issues)


@SLOW
@given(valid_programs())
def test_generated_programs_are_valid(case):
    assert [i for i in validate(case.program, EVERYTHING) if i.severity == "error"] == []


CLASSES = [c for c in vars(ir).values() if isinstance(c, type) and issubclass(c, ir.Expr | ir.Node)]
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.sampled_from([ONE, HALF, Return(), u32, vec_type(u32, 2), BinaryOp.ADD, UnaryOp.CLZ, AtomicOp.ADD]),
    st.sampled_from([Ordering.SEQ_CST, OpaqueOp(1 << 31), OpaqueOp("x"), ReduceOp.ADD, CollectiveOp.SUM, "dst", "x"]),
    st.tuples(),
    st.just((None, 1, "x")),
)


@st.composite
def junk(draw, inner):
    cls = draw(st.sampled_from(CLASSES))
    fields = {}
    for name in cls.fields:
        listy = cls._kinds[name].endswith("...]")
        fields[name] = draw(st.lists(inner, max_size=3)) if listy else draw(inner)
    return cls(**fields)


@SLOW
@given(
    st.lists(st.recursive(JUNK, junk, max_leaves=12), max_size=4),
    st.tuples(JUNK, JUNK, JUNK),
    st.lists(
        st.one_of(
            JUNK,
            st.builds(
                lambda name, binding, element, count, rest: BufferDecl(
                    name, binding, Access.READ_WRITE, element, count, output_byte_range=rest
                ),
                JUNK, JUNK, JUNK, JUNK, st.none() | st.tuples(JUNK, JUNK),
            ),
        ),
        max_size=3,
    ),
)  # fmt: skip
def test_nothing_at_all_makes_the_validator_raise(body, workgroup_size, buffers):
    p = Program(buffers, workgroup_size, body)
    for capabilities in (None, Capabilities(), EVERYTHING, without(max_invocations=8, supported_ops=frozenset())):
        for issue in validate(p, capabilities):
            assert str(issue)
