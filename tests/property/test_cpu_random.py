"""Random programs on the cpu backend give the bytes of the reference, however they are compiled and dispatched; and
programs that once did not."""

import ctypes
import random
import struct

import pytest

from vyre import errors
from vyre.backends.cpu import CpuBackend, Switches
from vyre.backends.reference import run
from vyre.conform.programs.divergent import lane_program
from vyre.conform.programs.random import random_program
from vyre.driver.contract.values import DispatchConfig
from vyre.driver.guard import compile as pipelines
from vyre.driver.guard.backend import guarded
from vyre.foundation.ir.dtypes import bf16, f16, f32, f64, i16, u8, u32
from vyre.foundation.ir.nodes import (
    Assign,
    Barrier,
    BinOp,
    Bitcast,
    BufLen,
    Fma,
    If,
    InvocationId,
    Let,
    Load,
    LocalId,
    Loop,
    Return,
    Store,
    Trap,
    UnOp,
    Var,
    WorkgroupId,
    lit,
)
from vyre.foundation.ir.ops import BinaryOp, UnaryOp
from vyre.foundation.ir.program import Access, BufferDecl, Program, read, read_write, write_only
from vyre.lower.options import PASSES

from ..support.control_word import flush_control

pytestmark = pytest.mark.check

GID = InvocationId(0)
SWITCHES = (
    Switches(),
    Switches(),
    Switches(scalar=True),
    Switches(soft_flush=True),
    Switches(scalar=True, soft_flush=True),
    *(Switches(off=frozenset((name,))) for name in PASSES),
    Switches(off=frozenset(PASSES)),
    Switches(scalar=True, off=frozenset(PASSES)),
)
WAYS = ("dispatch", "pipeline", "again", "async", "into")


def compiled_for(cache, switches):
    if switches not in cache:
        cache[switches] = CpuBackend(switches, threads=2)
    return cache[switches]


@pytest.fixture(scope="module")
def backends():
    made = {}
    yield made
    for backend in made.values():
        backend.shutdown()


def results(backend, case, config, way, expected):
    """The bytes of all outputs, dispatched in one of several ways."""
    if way == "dispatch":
        found = backend.dispatch(case.program, case.inputs, config)
    else:
        pipeline = pipelines.compile(backend, case.program, config)
        if way == "async":
            found = pipeline.dispatch_async(case.inputs).result()
        elif way == "into":
            targets = [bytearray(b"\xa5" * len(e)) for e in expected]
            for _ in range(2):
                found = pipeline.dispatch(case.inputs, out=targets)
        else:
            for _ in range(3 if way == "again" else 1):
                found = pipeline.dispatch(case.inputs)
    return [bytes(o) for o in found]


def outcome(work):
    """What a dispatch gives, or which trap it ends in."""
    try:
        return work()
    except errors.Trap as e:
        return e.context["tag"], e.context["address"], e.context["invocation"]


def agree(backends, case, rng, seed, guard=False):
    limits = {"grid_override": case.grid, "output_elements": case.output_elements}
    expected = outcome(
        lambda: run(case.program, case.inputs, grid=case.grid, output_elements=case.output_elements).outputs
    )
    for switches in (SWITCHES[0], rng.choice(SWITCHES)):
        backend = compiled_for(backends, switches)
        backend = guarded(backend) if guard else backend
        config = DispatchConfig(**limits, timeout=rng.choice((None, None, 60.0)))
        way = "dispatch" if isinstance(expected, tuple) else rng.choice(WAYS)
        found = outcome(lambda b=backend, c=config, w=way: results(b, case, c, w, expected))
        assert found == expected, f"seed {seed}, {switches}, {way}, grid {case.grid}:\n{case.program}"


@pytest.mark.parametrize("block", range(6))
def test_lanes_that_meet_part_and_stray(backends, block):
    for seed in range(10 * block, 10 * block + 10):
        rng = random.Random(seed)
        agree(backends, lane_program(rng, trap=seed % 5 == 0), rng, seed)


@pytest.mark.sweep
@pytest.mark.parametrize("block", range(64))
def test_many_lanes_that_meet_part_and_stray(backends, block):
    for seed in range(10_000 + 64 * block, 10_064 + 64 * block):
        rng = random.Random(seed)
        agree(backends, lane_program(rng, trap=seed % 5 == 0, statements=14), rng, seed)


@pytest.mark.parametrize("options", [{}, {"functions": True}, {"grid_barriers": True}], ids=["plain", "math", "grid"])
@pytest.mark.parametrize("block", range(2))
def test_programs_of_the_conformance_suite(backends, options, block):
    for seed in range(10 * block, 10 * block + 10):
        rng = random.Random(seed)
        agree(backends, random_program(rng, **options), rng, seed, guard="grid_barriers" in options)


@pytest.mark.sweep
@pytest.mark.parametrize("options", [{}, {"functions": True}, {"grid_barriers": True}], ids=["plain", "math", "grid"])
@pytest.mark.parametrize("block", range(16))
def test_many_programs_of_the_conformance_suite(backends, options, block):
    for seed in range(10_000 + 64 * block, 10_064 + 64 * block):
        rng = random.Random(seed)
        agree(backends, random_program(rng, **options, max_statements=24), rng, seed, guard="grid_barriers" in options)


# ---- programs that once went wrong ----------------------------------------------------------------------------------


def same_bytes(program, inputs, grid=(1, 1, 1)):
    expected = run(program, inputs, grid=grid).outputs
    for switches in dict.fromkeys(SWITCHES[:4] + SWITCHES[-2:]):
        found = CpuBackend(switches, threads=1).dispatch(program, inputs, DispatchConfig(grid_override=grid))
        assert [bytes(o) for o in found] == expected, switches


@pytest.mark.parametrize(
    "dtype, code, values",
    [
        (f32, "I", (0x7F800001, 0x7FC00000, 0xFFBFFFFF, 0x3F800000, 0x41800000, 0x80000000, 0)),
        (f16, "H", (0x7C01, 0x7E00, 0xFE01, 0x3C00, 0x4C00, 0x8000, 0)),
        (bf16, "H", (0x7F81, 0x7FC0, 0xFFBF, 0x3F80, 0x4180, 0x8000, 0)),
    ],
    ids=["f32", "f16", "bf16"],
)
@pytest.mark.parametrize("op", [BinaryOp.MIN, BinaryOp.MAX])
def test_a_minimum_of_a_minimum_ignores_a_nan(dtype, code, values, op):
    n, x = len(values), Load("x", GID)
    buffers, body = [read("x", 0, dtype, n)], []
    for k, constant in enumerate((8.0, -8.0, 0.0, -0.0, float("nan"), float("inf"))):
        inner = BinOp(op, lit(constant, dtype), x + lit(0.0, dtype))
        for name, value in (
            ("of", BinOp(op, inner, UnOp(UnaryOp.TRUNC, x))),
            ("by", BinOp(op, x, lit(constant, dtype))),
        ):
            buffers.append(write_only(f"{name}{k}", len(buffers), dtype, n))
            body.append(Store(f"{name}{k}", GID, value))
    same_bytes(Program(buffers, (n, 1, 1), body), [struct.pack(f"<{n}{code}", *values)])


@pytest.mark.parametrize("n", [40, 64, 200])
def test_a_condition_around_everything_may_be_asked_again_inside(n):
    inside = BinOp(BinaryOp.LT, GID, BufLen("a"))
    add = Store("out", GID, Load("out", GID) + Load("a", GID) + Var("k"))
    again = Loop("k", lit(0), lit(3), (If(inside, (add,)),))
    buffers = [read("a", 0, u32, n), read_write("out", 1, u32, 64)]
    inputs = [struct.pack(f"<{n}I", *range(n)), bytes(256)]
    for body in ([If(inside, (again,))], [again, If(inside, (Return(),)), Store("out", GID, lit(9))]):
        same_bytes(Program(buffers, (16, 1, 1), body), inputs, (16, 1, 1))


def test_a_trap_names_the_lane_that_met_it():
    program = Program(
        [read_write("n", 0, u32, 256)],
        (64, 1, 1),
        [
            Let("turn", lit(0)),
            Loop("k", lit(0), GID % 7, (Assign("turn", Var("turn") + 1),)),
            If(BinOp(BinaryOp.EQ, GID, lit(130)), (Trap(Var("turn") * 3, "met"),)),
            Store("n", GID, Var("turn")),
        ],
    )
    for switches in SWITCHES[1:4]:
        with pytest.raises(errors.Trap) as caught:
            CpuBackend(switches).dispatch(program, [bytes(1024)])
        found = caught.value.context
        assert (found["tag"], found["address"], found["invocation"]) == ("met", 12, (130, 0, 0))


@pytest.mark.parametrize("a, b", [(0x1FFFFFFF, 0x20000000), (0x1E3CE508, 0x1E3CE508)])
def test_constants_that_only_the_compiler_brings_together_round_like_the_machine(a, b):
    x, y = Var("x"), Var("y")
    body = [Let("x", lit(7.0, f32)), Let("y", lit(2.0, f32)), Let("z", lit(3.0, f32)),
            Assign("x", Bitcast(f32, lit(a))), Assign("y", Bitcast(f32, lit(b))), Assign("z", lit(0.0, f32)),
            Store("mul", GID, Bitcast(u32, x * y)), Store("fma", GID, Bitcast(u32, Fma(x, y, Var("z"))))]  # fmt: skip
    same_bytes(Program([write_only("mul", 0, u32, 4), write_only("fma", 1, u32, 4)], (4, 1, 1), body), [])


def test_nothing_is_read_for_lanes_that_returned_in_an_earlier_stretch():
    local, at = LocalId(0), Var("at")
    gone = BinOp(BinaryOp.OR, BinOp(BinaryOp.GE, at, BufLen("a")), BinOp(BinaryOp.GT, local, lit(3)))
    body = [Store("shared", local, GID), Barrier(), Let("at", Load("k", lit(0))), If(gone, (Return(),)),
            If(BinOp(BinaryOp.EQ, WorkgroupId(0), lit(7)), (Return(),)),
            Store("out", GID, Load("a", at) + Load("shared", lit(63) - local))]  # fmt: skip
    buffers = [read("k", 0, u32, 1), read("a", 1, u32, 8), read_write("out", 2, u32, 64),
               BufferDecl("shared", 0, Access.WORKGROUP, u32, 64)]  # fmt: skip
    for wild in (3, 0xF0000000):  # the second one was a segmentation fault
        same_bytes(Program(buffers, (64, 1, 1), body), [struct.pack("<I", wild), bytes(32), bytes(256)])


@pytest.mark.parametrize("word", [0x9FC0, 0x7F80, 0x3F80], ids=["flushing", "towards zero", "downwards"])
def test_the_callers_floating_point_mode_changes_nothing_and_stays(word):
    control = flush_control()
    if control is None:
        pytest.skip("the control word is only reachable on x86-64 Linux with executable pages")
    _page, save, restore = control
    doubles = struct.pack("<8d", *(k * 2.0**-1074 for k in range(8)))
    singles = struct.pack("<8f", *(1 + k * 2.0**-23 for k in range(8)))
    halved = Program(
        [read("x", 0, f64), write_only("y", 1, f64, 8)], (8, 1, 1), [Store("y", GID, Load("x", GID) * lit(0.5, f64))]
    )
    third = Program(
        [read("x", 0, f32), write_only("y", 1, f32, 8)], (8, 1, 1), [Store("y", GID, Load("x", GID) / lit(3.0, f32))]
    )
    cases = [(halved, [doubles]), (third, [singles])]
    expected = [run(program, inputs, grid=(1, 1, 1)).outputs for program, inputs in cases]
    backend = CpuBackend(threads=1)
    native = [backend.compile_native(program, DispatchConfig(grid_override=(1, 1, 1))) for program, _ in cases]
    before, inside = ctypes.c_uint32(), ctypes.c_uint32()
    save(before)
    try:
        restore(ctypes.c_uint32(word))
        found = [pipe.dispatch(inputs) for pipe, (_, inputs) in zip(native, cases, strict=True)]
        save(inside)
    finally:
        restore(before)
    assert [[bytes(o) for o in outputs] for outputs in found] == expected
    assert inside.value & 0xFFC0 == word, "the mode is the caller's own again"


@pytest.mark.parametrize("dtype", [u8, i16, f16, bf16], ids=str)
@pytest.mark.parametrize("lanes", [17, 33])
def test_a_vector_of_which_one_lane_is_left_writes_nobody_elses_bytes(dtype, lanes):
    source = Load("a", BufLen("a") - 1 - GID)
    body = [Store("shared", LocalId(0), GID), Barrier(), Store("out", GID, source)]
    count = 4 * lanes + 3
    buffers = [read("a", 0, dtype, count), read_write("out", 1, dtype, count),
               BufferDecl("shared", 0, Access.WORKGROUP, u32, lanes)]  # fmt: skip
    inputs = [bytes(range(1, 32)) * 10, bytes(dtype.size * count)]
    same_bytes(Program(buffers, (lanes, 1, 1), body), [inputs[0][: dtype.size * count], inputs[1]], grid=(4, 1, 1))
