"""Kernels as WGSL, run on a real adapter with nothing of the backend but the emitter: the bytes are the reference's."""

import random
import struct

import pytest

from vyre import errors
from vyre.backends.reference import run
from vyre.backends.wgpu.emit.text import ENTRY, helper_turns, param_words, shared_bytes, wgsl_text
from vyre.backends.wgpu.emit.traits import SAFEST, Traits
from vyre.conform.programs.divergent import lane_program
from vyre.conform.programs.random import Case, random_program
from vyre.errors import UnsupportedFeature
from vyre.foundation.ir.dtypes import bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from vyre.foundation.ir.nodes import (
    Assign,
    Atomic,
    Barrier,
    BinOp,
    Bitcast,
    BufLen,
    Cast,
    Fma,
    If,
    InvocationId,
    Let,
    Lit,
    Load,
    LocalId,
    Loop,
    Return,
    Select,
    Store,
    SubgroupBallot,
    SubgroupReduce,
    SubgroupShuffle,
    Trap,
    UnOp,
    Var,
    WorkgroupId,
    lit,
)
from vyre.foundation.ir.ops import AtomicOp, BinaryOp, ReduceOp, UnaryOp
from vyre.foundation.ir.program import Access, BufferDecl, Program, read, read_write, write_only
from vyre.lower import lower
from vyre.lower.options import PASSES
from vyre.runtime.float_probe import GROUPS, differing, probe_inputs, probe_program

from ...support.golden_programs import PROGRAMS, assert_golden
from ...support.sprung import first_trap
from ...support.wgpu_raw import Shader, options, run_case

GID = InvocationId(0)
NO_PASSES = frozenset(PASSES)
GOLDEN = Traits(native_divide=True, native_root=True, strong_swap=True)
"""Those of lavapipe."""


def words(*values):
    return struct.pack(f"<{len(values)}I", *(v & 0xFFFFFFFF for v in values))


def shared(name, element, count):
    return BufferDecl(name, 0, Access.WORKGROUP, element, count)


def case_of(buffers, body, *, inputs=(), grid=1, workgroup=(1, 1, 1), sized=None):
    return Case(Program(buffers, workgroup, body), tuple(inputs), (grid, 1, 1), sized or {})


def reference(case):
    result = run(case.program, case.inputs, grid=case.grid, output_elements=case.output_elements)
    return [bytes(o) for o in result.outputs]


def assert_agrees(case, traits=SAFEST, **how):
    assert run_case(case, traits, **how) == reference(case)


# ---- random programs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(24))
def test_random_programs_give_the_bytes_of_the_reference(seed):
    case = random_program(random.Random(seed), functions=seed % 4 == 0, without=(f64,))
    off = (frozenset(), NO_PASSES, {PASSES[seed % len(PASSES)]})[seed % 3]
    assert_agrees(case, off=off, immediates=seed % 2 == 0)


@pytest.mark.parametrize("seed", range(8))
def test_programs_whose_lanes_meet_give_the_bytes_of_the_reference(seed):
    case = lane_program(random.Random(seed), without=(f64,))
    assert_agrees(case, off=(NO_PASSES, frozenset())[seed % 2], immediates=seed % 3 > 0)


def test_the_safest_text_is_canonical():
    case = Case(probe_program(), tuple(probe_inputs()), (GROUPS, 1, 1), {})
    (found,) = run_case(case)
    assert differing(found) == ()


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_texts_are_the_ones_that_are_kept(name, request):
    """And devices take them."""
    kernel = lower(PROGRAMS[name](), options(GOLDEN))
    text = wgsl_text(kernel, GOLDEN, True)
    assert_golden(f"wgpu/{name}.wgsl", text, request.config.getoption("--refresh-golden"))
    Shader(kernel, text)


# ---- the interface --------------------------------------------------------------------------------------------------


def test_ids_count_from_the_base():
    body = [Store("out", GID - 64, GID * 1000 + WorkgroupId(0) * 10 + LocalId(0))]
    kernel = lower(Program([write_only("out", 0, u32, 8)], (4, 1, 1), body), options())
    shader = Shader(kernel, wgsl_text(kernel, SAFEST, True))
    (found,) = shader.run([bytes(32)], [8], (2, 1, 1), (16, 0, 0))
    assert found == words(*(g * 1000 + g // 4 * 10 + g % 4 for g in range(64, 72)))


def test_ids_along_all_axes_count_from_their_own_base():
    ids = [*(InvocationId(k) for k in range(3)), *(WorkgroupId(k) for k in range(3))]
    body = [Store("out", lit(k), value) for k, value in enumerate(ids)]
    kernel = lower(Program([write_only("out", 0, u32, 6)], (1, 1, 1), body), options())
    shader = Shader(kernel, wgsl_text(kernel, SAFEST, False), immediates=False)
    (found,) = shader.run([bytes(24)], [6], (1, 1, 1), (5, 6, 7))
    assert found == words(5, 6, 7, 5, 6, 7)


def test_parameters_are_lengths_then_base_then_row_then_two_zeros():
    kernel = lower(Program([read("a", 0, u32), write_only("b", 1, u32)], (1, 1, 1), [Store("b", GID, Load("a", GID))]))
    text = wgsl_text(kernel, SAFEST, True)
    assert text.startswith(
        "struct Params {\n    len_a: u32,\n    len_b: u32,\n    base_x: u32,\n    base_y: u32,\n    base_z: u32,\n"
        "    row: u32,\n    z0: u32,\n    z1: u32,\n}\nvar<immediate> params: Params;\n"
        "@group(0) @binding(0) var<storage, read> buf_a: array<u32>;\n"
        "@group(0) @binding(1) var<storage, read_write> buf_b: array<u32>;\n"
    )
    assert param_words(kernel) == 8
    assert "@group(1) @binding(0) var<uniform> params: Params;" in wgsl_text(kernel, SAFEST, False)


def test_the_same_kernel_gives_the_same_text():
    make = lambda: lane_program(random.Random(3), trap=True).program  # noqa: E731
    assert wgsl_text(lower(make(), options()), SAFEST, True) == wgsl_text(lower(make(), options()), SAFEST, True)


def test_names_of_users_are_no_words_of_the_language():
    names = ("fn", "params", "e", "_", "u32", "__x", "traps", "x" * 300)
    buffers = [read_write(name, slot, u32, 1) for slot, name in enumerate(names)]
    body = [Let("loop", lit(1)), Assign("loop", Var("loop") + Load("fn", lit(0)))]
    body += [Store(name, lit(0), Load(name, lit(0)) + Var("loop") + k) for k, name in enumerate(names)]
    assert_agrees(case_of(buffers, body, inputs=[words(10 * k) for k in range(len(names))]))


def test_no_counter_of_a_loop_has_the_name_of_a_type():
    body = [Let("sum", lit(0))]
    body += [Assign("sum", Var("sum") ^ Load("a", Var("sum") + k)) for k in range(9)]
    body += [Loop(f"k{n}", lit(0), Load("a", lit(n)), [Assign("sum", Var("sum") * 3 + Var(f"k{n}"))]) for n in range(6)]
    case = case_of([read("a", 0, u32), write_only("out", 1, u32, 2)], [*body, Store("out", GID, Var("sum"))])
    case = Case(case.program, (words(*range(3, 12)),), case.grid, {})
    kernel = lower(case.program, options())
    assert "k32" in wgsl_text(kernel, SAFEST, True)
    assert_agrees(case)


# ---- what the compiler would refuse ---------------------------------------------------------------------------------


def test_literals_meet_in_operations_that_the_compiler_would_refuse_to_do_itself():
    values = [
        BinOp(BinaryOp.SHL, lit(-1 & 0xFFFFFFFF), lit(31)),
        Bitcast(u32, BinOp(BinaryOp.SHL, lit(0x7FFFFFFF, i32), lit(4))),
        Bitcast(u32, BinOp(BinaryOp.ADD, lit(0x7FFFFFFF, i32), lit(1, i32))),
        Bitcast(u32, BinOp(BinaryOp.SUB, lit(-0x80000000, i32), lit(1, i32))),
        Bitcast(u32, BinOp(BinaryOp.MUL, lit(-0x80000000, i32), lit(-1, i32))),
        Bitcast(u32, BinOp(BinaryOp.DIV, lit(-0x80000000, i32), lit(-1, i32))),
        Bitcast(u32, BinOp(BinaryOp.MOD, lit(-0x80000000, i32), lit(-1, i32))),
        Bitcast(u32, UnOp(UnaryOp.NEGATE, lit(-0x80000000, i32))),
        BinOp(BinaryOp.DIV, lit(7), lit(2)),
        BinOp(BinaryOp.SUB, lit(0), lit(1)),
        BinOp(BinaryOp.MUL_HIGH, lit(0xFFFFFFFF), lit(0xFFFFFFFF)),
        Bitcast(u32, lit(1.0) / UnOp(UnaryOp.NEGATE, lit(0.0))),
        Bitcast(u32, lit(0.0) * lit(float("inf"))),
        Bitcast(u32, Fma(lit(1e30), lit(1e30), lit(float("-inf")))),
        Cast(u32, lit(1e20)),
        Cast(u32, BinOp(BinaryOp.LT, lit(1.0), lit(float("nan")))),
        Cast(u32, UnOp(UnaryOp.LOGICAL_NOT, lit(True))),
        Cast(u32, BinOp(BinaryOp.SHL, lit((1 << 64) - 1, u64), lit(63))),
        Cast(u32, BinOp(BinaryOp.EQ, lit(5, i64), lit(5, i64))),
    ]
    body = [Store("out", lit(k), value) for k, value in enumerate(values)]
    case = case_of([write_only("out", 0, u32, len(values))], body)
    assert_agrees(case, off=NO_PASSES)
    assert_agrees(case)


LOOK_LIKE_FLOATS = (0, 0x80000000, 0x3F800000, 0xBF800000, 0xFFFFFFFF, 1)


@pytest.mark.parametrize("element", [u32, i32, f32, u64], ids=str)
def test_a_choice_between_words_gives_the_word(element):
    """Mesa takes 0 and 0xBF800000 for 0.0 and -1.0, and gives -0.0 for the first."""

    def word(bits):
        return Cast(u64, lit(bits)) << 32 if element == u64 else Bitcast(element, lit(bits))

    pairs = [(a, b) for a in LOOK_LIKE_FLOATS for b in LOOK_LIKE_FLOATS if a != b]
    body = [Let("first", BinOp(BinaryOp.EQ, Load("a", GID), lit(7)))]
    for k, (a, b) in enumerate(pairs):
        body += [Store("out", GID * 60 + 2 * k, Select(Var("first"), word(a), word(b))), Let(f"x{k}", word(a))]
        body += [If(Var("first"), [Assign(f"x{k}", word(b))]), Store("out", GID * 60 + 2 * k + 1, Var(f"x{k}"))]
    buffers = [read("a", 0, u32), write_only("out", 1, element, 120)]
    assert len(pairs) == 30
    case = case_of(buffers, body, inputs=[words(7, 8)], grid=2)
    assert_agrees(case)
    assert_agrees(case, off=NO_PASSES)


FALSE_FLOATS = ((0x80000000, 0x3F800000), (0, 0xBF800000), (0x3F800000, 0x80000000), (0xBF800000, 0))


@pytest.mark.parametrize("off", [frozenset(), NO_PASSES], ids=["improved", "as it is"])
@pytest.mark.parametrize("element", [u32, i32, u64], ids=str)
def test_words_that_look_like_floats_only_after_a_choice_are_words(element, off):
    """Mesa adds to both words before it chooses, and unrolls loops before it looks at words."""

    def word(bits):
        return Lit(element, bits % 2**32)

    first, k = Var("first"), Cast(element, Var("k"))
    values, body = [], [Let("first", BinOp(BinaryOp.EQ, Load("a", GID), lit(7)))]
    for n, (a, b) in enumerate(FALSE_FLOATS):
        x, y, z = f"x{n}", f"y{n}", f"z{n}"
        body += [Let(x, word(a - 1)), If(first, [Assign(x, word(b - 1))])]
        body += [Let(y, word(a - 4)), Loop("k", lit(0), lit(4), [Assign(y, Var(y) + word(1))])]
        body += [
            Let(z, word(0)),
            Loop("k", lit(0), lit(2), [Assign(z, Select(first, k + word(a - 1), k + word(b - 1)))]),
        ]
        values += [
            Select(first, word(a - 1), word(b - 1)) + word(1),
            Var(x) + word(1),
            Select(first, Var(y), word(b)),
            Var(z),
        ]
        values += [
            Cast(element, first) * word(b - a) + word(a),
            UnOp(UnaryOp.BIT_NOT, Select(first, word(~a), word(~b))),
        ]
    body += [Store("out", GID * len(values) + n, value) for n, value in enumerate(values)]
    buffers = [read("a", 0, u32), write_only("out", 1, element, 2 * len(values))]
    assert_agrees(case_of(buffers, body, inputs=[words(7, 8)], grid=2), off=off)


def test_what_hides_a_literal_does_not_cancel_what_hides_an_operand():
    """`(z ^ 0x80000000) ^ z` is -0.0, which Mesa takes for 0.0."""
    less = UnOp(UnaryOp.NEGATE, lit(0.0))
    x = Load("x", GID)
    values = [x - less, x * less, x + less, less - x, Select(BinOp(BinaryOp.LT, x, lit(1.0)), less, lit(1.0)) + less]
    body = [Store("out", GID * len(values) + k, value) for k, value in enumerate(values)]
    body += [Let("y", less), Loop("k", lit(0), lit(3), [Assign("y", Var("y") - x), Assign("y", Var("y") + x)])]
    body += [Store("y", GID, Var("y"))]
    buffers = [read("x", 0, f32), write_only("out", 1, f32, 4 * len(values)), write_only("y", 2, f32, 4)]
    case = case_of(buffers, body, inputs=[struct.pack("<4f", 0.0, -0.0, 1.0, 1e30)], grid=4)
    assert_agrees(case, off=NO_PASSES)
    assert_agrees(case)


def test_comparisons_stand_beside_each_other_in_a_call():
    """`select(a < b, c > (d), e)` would be a list of types."""
    a, b = Load("a", GID), Load("a", GID + 1)
    less, more = BinOp(BinaryOp.LT, a, b), BinOp(BinaryOp.GT, a, (b + 1))
    value = Select(BinOp(BinaryOp.EQ, a, lit(3)), more, less)
    buffers = [read("a", 0, u32, 8), write_only("out", 1, u32, 8)]
    case = case_of(buffers, [Store("out", GID, Cast(u32, value))], grid=8, inputs=[words(1, 2, 3, 4, 5, 4, 3, 2)])
    assert_agrees(case)


@pytest.mark.parametrize("element", [u32, u8, i64], ids=str)
def test_known_places_beyond_workgroup_memory_are_out_of_bounds(element):
    """The compiler tests an index that it knows, and refuses the text."""
    places = [BufLen("mem") - 5, BufLen("mem") - 1, BufLen("mem"), BufLen("mem") + 0x10000, BufLen("mem") - 6]
    body = [Store("mem", at, Cast(element, lit(k + 1))) for k, at in enumerate(places)]
    body += [Store("out", lit(k), Load("mem", at)) for k, at in enumerate(places)]
    case = case_of([write_only("out", 0, element, 5), shared("mem", element, 5)], body)
    assert_agrees(case, off=NO_PASSES)
    assert_agrees(case)


def test_atomics_at_known_places_beyond_workgroup_memory_do_nothing():
    body = [Store("out", lit(k), Atomic(AtomicOp.ADD, "mem", BufLen("mem") - k % 2, lit(5))) for k in range(4)]
    assert_agrees(case_of([write_only("out", 0, u32, 4), shared("mem", u32, 3)], body))


@pytest.mark.parametrize("element", [u32, i64], ids=str)
@pytest.mark.parametrize("index", [1 << 30, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, (1 << 32) - 4, (1 << 32) - 1])
def test_known_places_beyond_any_buffer_are_out_of_bounds(element, index):
    """WGSL's compiler refuses the last u32 as an index, and OpenGL's whatever is negative as an i32."""
    at, t = lit(index), element
    body = [Store("out", lit(0), Load("x", at)), Store("out", at, lit(3, t)), Store("out", lit(1), lit(4, t))]
    if t is u32:
        body.append(Let("old", Atomic(AtomicOp.ADD, "sum", at, lit(1))))
        body.append(Store("out", lit(2), Var("old") + 7))
    buffers = [read("x", 0, t), read_write("out", 1, t), read_write("sum", 2, u32)]
    assert_agrees(case_of(buffers, body, inputs=[bytes(range(64)), bytes(64), bytes(16)]))


def test_statements_nest_as_deep_as_a_program_may():
    body = [Let("old", Atomic(AtomicOp.COMPARE_EXCHANGE, "out", GID, lit(7), lit(0)))]
    for k in range(55):
        body = [If(Load("out", lit(k)) < k + 1, body)]
    case = case_of([read_write("out", 0, u32, 4)], body, inputs=[bytes(16)], workgroup=(4, 1, 1))
    assert_agrees(case)


@pytest.mark.parametrize("used", [False, True])
def test_f64_is_refused(used):
    body = [Store("out", GID, Load("out", GID) + lit(1.0, f64))] if used else [Return()]
    with pytest.raises(UnsupportedFeature, match=r"no f64\. Fix: use the cpu backend"):
        run_case(case_of([read_write("out", 0, f64, 1)], body, inputs=[bytes(8)]))


# ---- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("atomic", [False, True], ids=["load", "atomic"])
def test_what_is_out_of_bounds_gives_zero_also_after_a_turn_that_was_not(atomic):
    """Variables inside a loop do not begin anew in every turn unless they are told to."""
    at = Var("k") * 3 - 3
    seen = Atomic(AtomicOp.ADD, "a", at, lit(1)) if atomic else Load("a", at)
    body = [
        Let("sum", lit(0)),
        Loop("k", lit(0), lit(6), [Assign("sum", Var("sum") * 10 + seen)]),
        Store("out", GID, Var("sum")),
    ]
    buffers = [read_write("a", 0, u32), write_only("out", 1, u32, 1)]
    case = case_of(buffers, body, inputs=[words(*range(1, 9))])
    assert_agrees(case)
    assert reference(case)[1] == words(14700)


def test_buffers_of_no_length_are_out_of_bounds_everywhere():
    body = [
        Store("out", lit(0), Load("none", lit(0)) + BufLen("none")),
        Store("few", lit(0), lit(9)),
        Let("old", Atomic(AtomicOp.ADD, "few", lit(0), lit(3))),
        Store("out", lit(1), Var("old")),
    ]
    buffers = [read("none", 0, u32), read_write("few", 1, u32), write_only("out", 2, u32, 2)]
    assert_agrees(case_of(buffers, body, inputs=[b"", b""]))


@pytest.mark.parametrize("element", [u8, i8, u16, i16, f16, bf16, bool_, u64, i64, f32], ids=str)
def test_neighbours_in_a_word_are_stored_by_different_lanes(element):
    """Every other element is stored, from lanes side by side, and the others stay."""
    n = 512
    rng = random.Random(5)
    given = rng.randbytes(n * element.size)
    buffers = [read("a", 0, element), read_write("out", 1, element, n)]
    at = GID * 2 + 1
    body = [If(BufLen("out") // 2 > GID, [Store("out", at, Load("a", at))])]
    before = rng.randbytes(n * element.size)
    case = case_of(buffers, body, grid=4, workgroup=(64, 1, 1), inputs=[given, before])
    assert_agrees(case)


def test_narrow_elements_at_literal_places():
    body = [Store("out", lit(k), Load("a", lit(6 - k))) for k in range(7)]
    for element in (u8, i16):
        inputs = [random.Random(1).randbytes(7 * element.size)]
        assert_agrees(case_of([read("a", 0, element, 7), write_only("out", 1, element, 7)], body, inputs=inputs))


@pytest.mark.parametrize(
    "lanes, count, turns", [(64, 1, 0), (64, 64, 0), (64, 65, 0), (64, 1024, 0), (64, 1025, 2), (1, 4000, 250)]
)
def test_workgroup_memory_is_zero_at_first(lanes, count, turns):
    """Also after a kernel that left something there."""
    places = [Store("out", lit(k), Load("mem", lit(k))) for k in {0, count // 2, count - 1}]
    soil = [Loop("k", lit(0), lit(-(-count // lanes)), [Store("mem", Var("k") * lanes + LocalId(0), lit(77))])]
    total = [Let("old", Atomic(AtomicOp.ADD, "sums", lit(0), Load("mem", lit(lanes - 1) - LocalId(0))))]
    for element in (u32, u8, u64):
        if element is not u32:
            soil = [Store("mem", LocalId(0), Cast(element, lit(77)))]
            places = []
        body = [*places, *(total if element is u32 else ()), Barrier(), *soil]
        last = [] if element is u32 else [Barrier(), Store("out", LocalId(0), Cast(u32, Load("mem", LocalId(0))))]
        buffers = [
            write_only("out", 0, u32, max(count, lanes)),
            read_write("sums", 1, u32, 1),
            shared("mem", element, count),
        ]
        case = case_of(buffers, [*body, *last], inputs=[bytes(4)], grid=3, workgroup=(lanes, 1, 1))
        for _ in range(2):
            assert_agrees(case)
        if element is u32:
            assert helper_turns(lower(case.program)) == turns


def test_shared_bytes_are_those_of_the_arrays():
    body = [Store("out", GID, SubgroupReduce(ReduceOp.ADD, Load("long", lit(0)) & lit(1)))]
    buffers = [write_only("out", 0, u32, 1), shared("long", u32, 5), shared("pairs", u64, 3), shared("small", u8, 6)]
    assert shared_bytes(lower(Program(buffers, (40, 1, 1), body))) == 4 * 5 + 8 * 3 + 4 * 2 + 4 * 40


@pytest.mark.parametrize("element", [u32, i32], ids=str)
@pytest.mark.parametrize("space", ["bound", "shared"])
@pytest.mark.parametrize("strong", [False, True], ids=["weak", "strong"])
def test_atomics_know_the_sign_of_their_elements(element, space, strong):
    ops = [*(op for op in AtomicOp if op.live), AtomicOp.COMPARE_EXCHANGE]  # one that swaps, one that does not
    value, name = Cast(element, Load("a", lit(0))), "cells" if space == "bound" else "mem"
    body = []
    for k, op in enumerate(ops):
        body.append(Store(name, lit(k), Cast(element, Load("a", lit(1)))))
        expected = Load(name, lit(k)) + Cast(element, lit(1 - k % 2)) if op is AtomicOp.COMPARE_EXCHANGE else None
        body.append(Let(f"old{k}", Atomic(op, name, lit(k), value, expected)))
        body.append(Store("olds", lit(k), Var(f"old{k}")))
        body.append(Store("news", lit(k), Load(name, lit(k))))
    n = len(ops)
    buffers = [read("a", 0, u32), write_only("olds", 1, element, n), write_only("news", 2, element, n)]
    buffers.append(read_write("cells", 3, element, n) if space == "bound" else shared("mem", element, n))
    inputs = [words(5, -7), *([bytes(4 * n)] if space == "bound" else [])]
    assert_agrees(case_of(buffers, body, inputs=inputs), Traits(strong_swap=strong))


# ---- lanes that meet ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 2, 17, 32, 33, 64, 100])
@pytest.mark.check
def test_subgroups_of_every_size_exchange(lanes):
    u, f = Load("a", GID), Bitcast(f32, Load("a", GID))
    values = [SubgroupReduce(op, u) for op in ReduceOp]
    values += [SubgroupReduce(op, Bitcast(i32, u)) for op in (ReduceOp.ADD, ReduceOp.MIN, ReduceOp.MAX)]
    values += [SubgroupReduce(op, f) for op in (ReduceOp.ADD, ReduceOp.MUL, ReduceOp.MIN, ReduceOp.MAX)]
    values += [SubgroupShuffle(x, LocalId(0) * 5 + 1) for x in (u, f)]
    values += [SubgroupShuffle(Bitcast(i32, u), lit(lanes - 1)), SubgroupBallot(BinOp(BinaryOp.LT, f, lit(0.0)))]
    n = 2 * lanes
    body = [Store("out", GID * len(values) + k, Bitcast(u32, value)) for k, value in enumerate(values)]
    rng = random.Random(lanes)
    numbers = [rng.choice((rng.getrandbits(32), 0x3F800000 + rng.getrandbits(24), 0xA0000000)) for _ in range(n)]
    buffers = [read("a", 0, u32), write_only("out", 1, u32, n * len(values))]
    case = case_of(buffers, body, inputs=[words(*numbers)], grid=2, workgroup=(lanes, 1, 1))
    assert_agrees(case)


def test_barriers_stand_in_loops_whose_end_lies_in_memory():
    turn = [
        Barrier(),
        Store("mem", LocalId(0), Var("x")),
        Barrier(),
        Assign("x", Load("mem", (LocalId(0) + 1) % 64) + Var("x") * 3),
    ]
    body = [Let("x", GID), Loop("k", lit(0), Load("n", lit(0)), turn), Store("out", GID, Var("x"))]
    buffers = [read("n", 0, u32), write_only("out", 1, u32, 128), shared("mem", u32, 64)]
    assert_agrees(case_of(buffers, body, inputs=[words(9)], grid=2, workgroup=(64, 1, 1)))


def test_lanes_of_a_workgroup_exchange_through_storage():
    body = [
        Store("out", GID, GID * 7),
        Barrier(),
        Let("other", Load("out", BinOp(BinaryOp.BIT_XOR, GID, lit(1)))),
        Barrier(),
        Store("out", GID, Var("other") + 1),
    ]
    case = case_of([read_write("out", 0, u32, 128)], body, inputs=[bytes(512)], grid=2, workgroup=(64, 1, 1))
    assert_agrees(case)


# ---- traps ----------------------------------------------------------------------------------------------------------


def trapping(*rest):
    body = [If(BinOp(BinaryOp.EQ, GID, Load("who", lit(0))), [Trap(GID * 2, "odd")]), *rest]
    body.append(If(BinOp(BinaryOp.EQ, GID, Load("who", lit(1))), [Trap(lit(9), "other")]))
    buffers = [read("who", 0, u32), write_only("out", 1, u32, 64), shared("mem", u32, 32)]
    return lambda *who: case_of(buffers, body, inputs=[words(*who)], grid=2, workgroup=(32, 1, 1))


MEETING = (Barrier(), Store("mem", LocalId(0), GID), Barrier(), Store("out", GID, Load("mem", LocalId(0) ^ 1)))
ALONE = (Store("out", GID, GID),)


@pytest.mark.parametrize("rest", [MEETING, ALONE], ids=["lanes that meet", "lanes alone"])
def test_a_trap_says_which_one_and_who(rest):
    make = trapping(*rest)
    assert run_case(make(37, 99))[:5] == (1, 74, 37, 0, 0)
    assert run_case(make(99, 5))[:5] == (2, 9, 5, 0, 0)
    with pytest.raises(errors.Trap):
        reference(make(99, 5))
    assert_agrees(make(99, 99))


def test_the_first_trap_of_a_workgroup_is_the_one_that_is_noted():
    assert run_case(trapping(*MEETING)(37, 38))[:5] == (1, 74, 37, 0, 0)


def test_of_many_traps_the_lowest_is_first():
    body = [Trap(GID, "all")]
    case = case_of([write_only("out", 0, u32, 1)], body, grid=40, workgroup=(64, 1, 1))
    assert run_case(case) == (1, 0, 0, 0, 0)


@pytest.mark.parametrize("rest", [[Barrier()], []], ids=["lanes that meet", "lanes alone"])
def test_loops_of_a_lane_end_after_its_trap(rest):
    """The lane must come to the barrier, and what it does until then does not matter."""
    endless = [
        Let("live", BinOp(BinaryOp.EQ, GID, lit(3))),
        If(Var("live"), [Trap(lit(0), "three")]),
        Loop("k", lit(0), lit(0xFFFFFFFF), [If(Var("live"), [Store("out", GID, Var("k")), Assign("live", lit(True))])]),
        *rest,
    ]
    kernel = lower(Program([write_only("out", 0, u32, 4)], (4, 1, 1), endless), options())
    text = wgsl_text(kernel, SAFEST, True)
    stored, trap = Shader(kernel, text).run([b"\xff" * 16], [4], (1, 1, 1))
    assert stored == b"\xff" * 16
    assert first_trap(kernel, trap) == (1, 0, 3, 0, 0)
    assert (text.count("stopped = true;"), text.split(f"fn {ENTRY}")[1].count("return;")) == (
        (1, 0) if rest else (0, 1)
    )


def test_a_lane_that_has_trapped_still_knows_where_the_others_meet():
    """A loop that it leaves early must not be one that a condition around a barrier comes from."""
    body = [
        If(BinOp(BinaryOp.EQ, GID, lit(3)), [Trap(lit(0), "three")]),
        Let("sum", lit(0)),
        Loop("k", lit(0), BufLen("few"), [Assign("sum", Var("sum") + Load("few", Var("k")))]),
        Let("own", lit(0)),
        Loop("j", lit(0), GID, [Assign("own", Var("own") * 3 + Var("j"))]),
        If(BinOp(BinaryOp.GT, Var("sum"), lit(2)), [Barrier()]),
        Store("out", GID, Var("sum") + Var("own")),
    ]
    buffers = [read("few", 0, u32), write_only("out", 1, u32, 4)]
    case = case_of(buffers, body, inputs=[words(1, 2, 3)], workgroup=(4, 1, 1))
    text = wgsl_text(lower(case.program, options()), SAFEST, True).split(f"fn {ENTRY}")[1]
    heads = [line for line in text.splitlines() if "for (" in line]
    assert ["stopped" in line for line in heads] == [False, True]
    assert run_case(case)[:3] == (1, 0, 3)


def test_barriers_are_of_the_memory_that_lanes_share():
    mem, out = shared("mem", u32, 4), read_write("out", 0, u32, 4)
    through_mem = [Store("mem", LocalId(0), GID), Barrier(), Store("out", GID, Load("mem", LocalId(0) ^ 1))]
    through_out = [
        Store("out", GID, GID),
        Barrier(),
        Let("x", Load("out", GID ^ 1)),
        Store("mem", LocalId(0), Var("x")),
    ]
    for buffers, body, found in (
        ([mem, out], through_mem, (2, 0)),  # one of them after zeroing
        ([mem, out], through_out, (2, 1)),
        ([out], [*through_out[:3], Barrier(), Store("out", GID, Var("x"))], (0, 2)),
        ([out], [Barrier(), Store("out", GID, GID)], (1, 0)),
    ):
        text = wgsl_text(lower(Program(buffers, (4, 1, 1), body), options()), SAFEST, True)
        assert (text.count("workgroupBarrier()"), text.count("storageBarrier()")) == found
