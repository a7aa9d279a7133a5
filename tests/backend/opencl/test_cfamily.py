"""Kernels as OpenCL C, run with nothing of the backend but the emitter: the bytes are the reference's."""

import random
import re
import struct
import threading
import time
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vyre import errors
from vyre.backends.opencl.emit.text import Mode, build_options, keeps_subnormals, opencl_text
from vyre.backends.reference import run
from vyre.conform.programs.divergent import lane_program
from vyre.conform.programs.random import Case, random_program
from vyre.foundation.ir.dtypes import bf16, bool_, can_cast, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
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
    Load,
    LocalId,
    Loop,
    Return,
    Select,
    Store,
    SubgroupBallot,
    SubgroupLocalId,
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
from vyre.foundation.ir.report import Limits
from vyre.lower import LowerOptions, lower
from vyre.lower.c.library import literal
from vyre.lower.flatten_barriers import Straight
from vyre.lower.kernel_ir import walk
from vyre.lower.options import PASSES
from vyre.lower.registers import bits_of, value_of
from vyre.runtime.float_probe import GROUPS, differing, probe_inputs, probe_program

from ...support.golden_programs import PROGRAMS, assert_golden
from ...support.opencl_raw import NVIDIA, Code, device_or_skip, run_case

GID = InvocationId(0)
NO_PASSES = frozenset(PASSES)
MODES = (Mode.NATIVE, Mode.SOFT)
WAYS = (
    (Mode.NATIVE, frozenset(), False), (Mode.SOFT, NO_PASSES, False),
    (Mode.NATIVE, NO_PASSES, True), (Mode.SOFT, frozenset(), True),
)  # fmt: skip
"""Each of two modes, improved or not, polling or not."""


@pytest.fixture(scope="module", autouse=True)
def fresh_cache(tmp_path_factory):
    """PoCL keeps what it compiled; whether it does must not matter."""
    patch = pytest.MonkeyPatch()
    patch.setenv("POCL_CACHE_DIR", str(tmp_path_factory.mktemp("pocl")))
    yield
    patch.undo()


def shared(name, element, count):
    return BufferDecl(name, 0, Access.WORKGROUP, element, count)


def outcome(case):
    """What the reference gives: outputs, or the trap."""
    try:
        return run(case.program, case.inputs, grid=case.grid, output_elements=case.output_elements).outputs
    except errors.Trap as e:
        return e.context["tag"], e.context["address"], tuple(e.context["invocation"])


def found(case, mode, **how):
    """The same of the device."""
    got = run_case(case, mode, **how)
    if isinstance(got, tuple):
        return lower(case.program).traps[got[0] - 1], got[1], got[2:5]
    return got


def same(program, inputs, grid=(1, 1, 1), elements=None, ways=WAYS):
    """The reference's bytes, in all modes, improved or not, polling or not."""
    case = Case(program, tuple(inputs), grid, elements or {})
    expected = outcome(case)
    for mode, off, poll in ways:
        assert found(case, mode, off=off, poll=poll) == expected, (mode, sorted(off), poll)
    return expected


def floats(*values):
    return np.array(values, np.float32).tobytes()


# ---- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_every_probed_step_is_canonical(mode):
    case = Case(probe_program(), tuple(probe_inputs()), (GROUPS, 1, 1), {})
    assert differing(run_case(case, mode)[0]) == ()


@pytest.mark.skipif(NVIDIA, reason="there, kernels flush without being told to")
def test_a_device_that_keeps_subnormals_is_seen_where_the_kernel_does_not_flush():
    """The text for a machine that flushes, on one that does not: the probe finds the steps."""
    program = probe_program()
    kernel = lower(program)
    code = Code(kernel, Mode.NATIVE, flushes=False)
    columns, count = probe_inputs(), program.buffers[3].count
    *_, out = code.run([*columns, bytes(4 * count)], [*(len(c) // 4 for c in columns), count], (GROUPS, 1, 1))
    assert {"multiply", "add", "divide"} <= set(differing(out))


EDGES = {
    u32: (0, 1, 31, 32, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF),
    i32: (0, 1, -1, 31, 2**31 - 1, -(2**31), -7),
    u64: (0, 1, 63, 64, 2**63 - 1, 2**63, 2**64 - 1, 2**32),
    i64: (0, 1, -1, 63, 2**63 - 1, -(2**63), -(2**32) - 5),
}
CODES = {u32: "I", i32: "i", u64: "Q", i64: "q"}


@pytest.mark.parametrize("t", EDGES, ids=str)
def test_integer_operators_are_total_and_wrap(t):
    values = EDGES[t]
    pairs = [(a, b) for a in values for b in values]
    n = len(pairs)
    a, b, amount = Load("a", GID), Load("b", GID), Load("by", GID)
    steps = [
        *(BinOp(op, a, b) for op in BinaryOp if op.rule in ("arith", "bits", "arithmetic", "integer") or op in (
            BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.DIV, BinaryOp.MOD, BinaryOp.MIN, BinaryOp.MAX,
            BinaryOp.BIT_AND, BinaryOp.BIT_OR, BinaryOp.BIT_XOR,
        )),
        *(BinOp(op, a, amount) for op in (BinaryOp.SHL, BinaryOp.SHR, BinaryOp.ROTATE_LEFT, BinaryOp.ROTATE_RIGHT)),
        *(UnOp(op, a) for op in UnaryOp if op.rule == "bits"),
        UnOp(UnaryOp.NEGATE, a),
        *(Cast(t, BinOp(op, a, b)) for op in (BinaryOp.LT, BinaryOp.LE, BinaryOp.EQ, BinaryOp.NE)),
    ]  # fmt: skip
    if t == u32:
        steps += [BinOp(op, a, b) for op in (
            BinaryOp.SATURATING_ADD, BinaryOp.SATURATING_SUB, BinaryOp.SATURATING_MUL, BinaryOp.ABS_DIFF,
            BinaryOp.MUL_HIGH,
        )]  # fmt: skip
    buffers = [read("a", 0, t, n), read("b", 1, t, n), read("by", 2, u32, n)]
    buffers += [write_only(f"o{k}", 3 + k, t, n) for k in range(len(steps))]
    body = [Store(f"o{k}", GID, value) for k, value in enumerate(steps)]
    pack = f"<{n}{CODES[t]}"
    inputs = [
        struct.pack(pack, *(a for a, _ in pairs)),
        struct.pack(pack, *(b for _, b in pairs)),
        struct.pack(f"<{n}I", *(b & 0xFFFFFFFF for _, b in pairs)),
    ]
    same(Program(buffers, (n, 1, 1), body), inputs)


FLOAT_BITS = {
    f32: ("I", (0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBFC00000, 0x4B400000, 0x4F000000,
                0x4F800000, 0xCF000000, 0xCF000001, 0x5F000000, 0x5F800000, 0xDF000000, 0x7F7FFFFF, 0x7F800000,
                0xFF800000, 0x7FC00000, 0x7F800001, 0xFFC12345, 0x3F000000, 0x33800000, 0x477FEFFF, 0x477FF000)),
    f16: ("H", (0, 0x8000, 1, 0x83FF, 0x0400, 0x3C00, 0xBE00, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFE11, 0x3555)),
    bf16: ("H", (0, 0x8000, 1, 0x807F, 0x0080, 0x3F80, 0xBFC0, 0x7F7F, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFC1, 0x3EAB)),
    f64: ("Q", (0, 1 << 63, 1, 0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x3FF0000000000000, 0xBFF8000000000000,
                0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000, 0x7FF0000000000001,
                0x3810000000000000, 0x380FFFFFF0000000, 0x380FFFFFEFFFFFFF, 0x41EFFFFFFFE00000, 0x43E0000000000000,
                0xC3E0000000000000, 0x43F0000000000000)),
}  # fmt: skip


@pytest.mark.parametrize("t", FLOAT_BITS, ids=str)
def test_floats_keep_their_rules_at_every_edge(t):
    code, bits = FLOAT_BITS[t]
    pairs = [(a, b) for a in bits for b in bits]
    n = len(pairs)
    a, b = Load("a", GID), Load("b", GID)
    steps = [
        *(BinOp(op, a, b) for op in (
            BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.DIV, BinaryOp.MIN, BinaryOp.MAX,
        )),
        *(UnOp(op, a) for op in UnaryOp if op.rule == "float"),
        UnOp(UnaryOp.NEGATE, a),
        Select(BinOp(BinaryOp.LT, a, b), a, b),
        a,
    ]  # fmt: skip
    tests = [
        *(BinOp(op, a, b) for op in BinaryOp if op.rule == "compare"),
        *(UnOp(op, a) for op in UnaryOp if op.rule == "float_test"),
    ]
    targets = [k for k in (u32, i32, u64, i64, u8, i16, f32, f16, bf16, bool_) if can_cast(t, k)]
    buffers = [read("a", 0, t, n), read("b", 1, t, n)]
    body = []
    for value, kind in [*((s, t) for s in steps), *((s, bool_) for s in tests), *((Cast(k, a), k) for k in targets)]:
        buffers.append(write_only(f"o{len(buffers)}", len(buffers), kind, n))
        body.append(Store(buffers[-1].name, GID, value))
    inputs = [struct.pack(f"<{n}{code}", *column) for column in zip(*pairs, strict=True)]
    same(Program(buffers, (32, 1, 1), body), inputs, (-(-n // 32), 1, 1))


def test_integers_become_the_nearest_floats():
    values = (0, 1, -1, 2**24 + 1, 2**31 - 1, 2**53 + 1, 2**63 - 1, -(2**63), 2**40 + 2**16 + 1)
    n = len(values)
    body, buffers = [], [read("x", 0, i64, n)]
    for source, target in product((i64, u64, i32, u32, i8, u16), (f32, f16, bf16, f64)):
        if can_cast(source, target):
            buffers.append(write_only(f"o{len(buffers)}", len(buffers), target, n))
            body.append(Store(buffers[-1].name, GID, Cast(target, Cast(source, Load("x", GID)))))
    same(Program(buffers, (n, 1, 1), body), [struct.pack(f"<{n}q", *values)])


def test_a_product_and_a_sum_round_twice_and_fma_rounds_once():
    a, b, c = (Load(name, GID) for name in "abc")
    x = 1 + 2.0**-12
    program = Program(
        [read("a", 0, f32, 1), read("b", 1, f32, 1), read("c", 2, f32, 1), write_only("two", 3, f32, 1),
         write_only("one", 4, f32, 1)],
        (1, 1, 1),
        [Store("two", GID, a * b + c), Store("one", GID, Fma(a, b, c))],
    )  # fmt: skip
    two, one = same(program, [floats(x), floats(x), floats(-1 - 2.0**-11)])
    assert (np.frombuffer(two, np.float32)[0], np.frombuffer(one, np.float32)[0]) == (0.0, 2.0**-24)


@given(st.integers(0, 0xFFFFFFFF))
def test_the_digits_of_an_f32_lie_well_inside_what_rounds_to_it(bits):
    value = value_of("f32", bits)
    text = literal("f32", bits)
    if value != value or abs(value) == float("inf"):
        assert text == f"as_float(0x{bits:08x}u)"
        return
    digits = text.strip("()").removesuffix("f")
    assert text.endswith(("f", "f)"))
    assert bits_of("f32", float(digits)) == bits or value == 0
    assert digits.startswith("-") == (bits >> 31 == 1)
    below = value_of("f32", (bits & 0x7FFFFFFF) - 1) if bits & 0x7FFFFFFF else 0.0
    assert abs(Fraction(digits) - Fraction(value)) * 3 <= abs(Fraction(abs(value)) - Fraction(below))


@pytest.mark.parametrize(
    "dtype, bits, text",
    [
        ("u32", 7, "7u"), ("i32", 0xFFFFFFFB, "(-5)"), ("i32", 0x80000000, "(-2147483647 - 1)"), ("u64", 1, "1ul"),
        ("i64", 1 << 63, "(-9223372036854775807l - 1l)"), ("f32", 0x3DCCCCCD, "0.1f"), ("f32", 0x3F800000, "1.0f"),
        ("f32", 0x80000000, "(-0.0f)"), ("f64", 0x3FB999999999999A, "0.1"), ("bool", 1, "true"),
        ("f64", 0x7FF0000000000000, "as_double(0x7ff0000000000000ul)"), ("f32", 0x7149F2CA, "1e+30f"),
    ],
)  # fmt: skip
def test_constants_read_as_people_write_them(dtype, bits, text):
    if dtype == "i64":
        text = "(-9223372036854775807l - 1)"
    assert literal(dtype, bits) == text


# ---- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("types", [(u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32, bool_), (f64, f32)], ids=str)
def test_elements_of_every_type_come_and_go_and_stay_in_bounds(types):
    n = 37
    at = BinOp(BinaryOp.BIT_XOR, GID, lit(5)) + 3
    buffers, body, inputs = [], [], []
    for t in types:
        x, out, back = (f"{name}_{t}" for name in ("x", "out", "back"))
        slot = len(buffers)
        buffers += [read(x, slot, t, n), write_only(out, slot + 1, t, n), write_only(back, slot + 2, t, n)]
        body += [Store(out, GID, Load(x, at)), Store(back, at, Load(x, GID))]
        inputs.append(random.Random(str(t)).randbytes(n * t.size))
    same(Program(buffers, (64, 1, 1), body), inputs)


def test_an_empty_buffer_reads_as_zero():
    program = Program([read("x", 0, f32), write_only("out", 1, f32, 4)], (4, 1, 1), [
        Store("out", GID, Load("x", GID) + Cast(f32, BufLen("x"))),
    ])  # fmt: skip
    assert same(program, [b""]) == [bytes(16)]


def test_shared_memory_is_zero_in_every_workgroup():
    """The second workgroup on the same core finds what the first one left."""
    found = Cast(u32, BinOp(BinaryOp.NE, Load("h", LocalId(0)), lit(0.0, f16)))
    body = [
        Let("old", Load("s", LocalId(0)) + found),
        Store("s", LocalId(0), lit(0xFFFFFFFF)),
        Store("h", LocalId(0), lit(1.0, f16)),
        Barrier(),
        Store("out", GID, Var("old") + Load("s", lit(99) - LocalId(0)) + Load("s", GID)),
    ]
    buffers = [write_only("out", 0, u32, 800), shared("s", u32, 100), shared("h", f16, 103)]
    same(Program(buffers, (100, 1, 1), body), [], (8, 1, 1))


@pytest.mark.parametrize("t", [u32, i32], ids=str)
@pytest.mark.parametrize("where", ["global", "shared"])
def test_atomics_change_places_by_the_rules_of_their_type(t, where):
    ops = [op for op in AtomicOp if op.live]
    values = (0, 1, -1, 2**31 - 1, -(2**31), 77)
    lanes = len(values)
    body = []
    for k, op in enumerate(ops):
        here = "x" if where == "global" else "s"
        at = GID * len(ops) + k
        if where == "shared":
            body.append(Store("s", at, Load("x", at)))
        expected = Load("e", GID) if op is AtomicOp.COMPARE_EXCHANGE else None
        body.append(Let(f"old{k}", Atomic(op, here, at, Load("v", GID), expected)))
        body.append(Store("olds", at, Var(f"old{k}")))
        body.append(Let(f"lost{k}", Atomic(op, here, at + 0x80000000, Load("v", GID), expected)))
        body.append(Store("missed", at, Var(f"lost{k}")))
        if where == "shared":
            body.append(Store("x", at, Load("s", at)))
    n = lanes * len(ops)
    buffers = [
        BufferDecl("x", 0, Access.READ_WRITE, t, n), read("v", 1, t, lanes), read("e", 2, t, lanes),
        write_only("olds", 3, t, n), write_only("missed", 4, t, n), shared("s", t, n),
    ]  # fmt: skip
    start = struct.pack(f"<{n}i", *(values[(k // len(ops) * 5 + k) % lanes] for k in range(n)))
    value = struct.pack(f"<{lanes}i", *values)
    same(Program(buffers, (lanes, 1, 1), body), [start, value, value[4:] + value[:4]])


def test_many_lanes_add_to_one_place():
    body = [
        Let("a", Atomic(AtomicOp.ADD, "n", lit(0), GID)),
        Let("b", Atomic(AtomicOp.MAX, "m", lit(0), Cast(i32, GID))),
    ]
    buffers = [read_write("n", 0, u32, 1), read_write("m", 1, i32, 1)]
    total, most = same(Program(buffers, (64, 1, 1), body), [bytes(4), struct.pack("<i", -5)], (50, 1, 1))
    assert struct.unpack("<I", total) == (3200 * 3199 // 2,)
    assert struct.unpack("<i", most) == (3199,)


# ---- lanes that meet ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 33, 64])
def test_subgroups_are_32_lanes_and_missing_ones_count_for_nothing(lanes):
    x, y = Load("x", GID), Load("y", GID)
    values = [
        *(SubgroupReduce(op, x) for op in (ReduceOp.ADD, ReduceOp.MUL, ReduceOp.MIN, ReduceOp.MAX)),
        SubgroupShuffle(x, SubgroupLocalId() + 1),
        SubgroupShuffle(x, lit(31)),
        SubgroupShuffle(x, y),
    ]
    words = [
        *(SubgroupReduce(op, y) for op in ReduceOp),
        SubgroupBallot(BinOp(BinaryOp.LT, y, lit(1 << 31))),
        SubgroupShuffle(y, BinOp(BinaryOp.BIT_XOR, SubgroupLocalId(), lit(7))),
    ]
    signed = [SubgroupReduce(op, Cast(i32, y)) for op in (ReduceOp.ADD, ReduceOp.MIN, ReduceOp.MAX)]
    n = 2 * lanes
    buffers, body = [read("x", 0, f32, n), read("y", 1, u32, n)], []
    for value, t in [*((v, f32) for v in values), *((v, u32) for v in words), *((v, i32) for v in signed)]:
        buffers.append(write_only(f"o{len(buffers)}", len(buffers), t, n))
        body.append(Store(buffers[-1].name, GID, value))
    rng = random.Random(lanes)
    tiny = struct.pack(
        f"<{n}I", *(rng.choice((0x00800001, 0x80800000, rng.getrandbits(32), 0x3F800001)) for _ in range(n))
    )
    same(Program(buffers, (lanes, 1, 1), body), [tiny, rng.randbytes(4 * n)], (2, 1, 1), ways=WAYS[:2])


def meeting(*more):
    """Stores that go through shared memory, so that lanes must meet."""
    return (Store("s", LocalId(0), GID + 1), Barrier(), *more, Let("got", Load("s", lit(63) - LocalId(0))), Barrier())


def test_workgroups_go_different_ways_to_their_barriers():
    inner = If(
        BinOp(BinaryOp.EQ, WorkgroupId(0), lit(2)),
        (*meeting(), Store("out", GID, Var("got"))),
        (Loop("k", lit(0), WorkgroupId(0), (*meeting(), Store("out", GID, Var("got") + Var("k")))),),
    )
    body = [
        Let("v", lit(3)),
        If(BinOp(BinaryOp.EQ, WorkgroupId(0), lit(5)), (Store("out", GID, lit(55)), Return())),
        If(
            WorkgroupId(0) < 4,
            (inner, If(GID % 3 < 1, (Store("s", LocalId(0), lit(9)),)), Barrier(), Assign("v", Load("s", GID % 64))),
            (*meeting(), Assign("v", Var("got")), If(GID % 2 < 1, (Assign("v", lit(8)),), (Assign("v", lit(6)),))),
        ),
        *meeting(),
        If(BinOp(BinaryOp.EQ, GID % 5, lit(1)), (Return(),)),
        Store("out", GID, Load("out", GID) * 1000 + Var("v") + Var("got")),
    ]
    buffers = [BufferDecl("out", 0, Access.READ_WRITE, u32, 448), shared("s", u32, 64)]
    same(Program(buffers, (64, 1, 1), body), [bytes(4 * 448)], (7, 1, 1))


def test_a_workgroup_returns_out_of_loops_that_hold_barriers():
    body = [
        Loop("a", lit(0), lit(5), (
            Loop("b", lit(0), lit(3), (
                *meeting(),
                Store("out", GID, Load("out", GID) * 7 + Var("got") + Var("b")),
                If(BinOp(BinaryOp.EQ, Var("a"), WorkgroupId(0)), (
                    If(BinOp(BinaryOp.EQ, Var("b"), lit(1)), (Store("out", GID, Load("out", GID) + 1), Return())),
                )),
            )),
        )),
        *meeting(),
        Store("out", GID, Load("out", GID) ^ Var("got")),
    ]  # fmt: skip
    buffers = [BufferDecl("out", 0, Access.READ_WRITE, u32, 448), shared("s", u32, 64)]
    same(Program(buffers, (64, 1, 1), body), [bytes(4 * 448)], (7, 1, 1))


def test_lanes_leave_a_while_loop_together_where_it_holds_a_barrier():
    body = [
        Let("go", lit(True)),
        Let("n", lit(0)),
        Loop("k", lit(0), lit(0xFFFFFFFF), (
            If(Var("go"), (
                *meeting(),
                Assign("n", Var("n") + Var("got")),
                If(BinOp(BinaryOp.EQ, Var("k"), WorkgroupId(0)), (Assign("go", lit(False)),)),
            )),
        )),
        Store("out", GID, Var("n")),
    ]  # fmt: skip
    same(Program([write_only("out", 0, u32, 256), shared("s", u32, 64)], (64, 1, 1), body), [], (4, 1, 1))


def test_no_barrier_is_left_inside_a_branch():
    for seed in range(40):
        kernel = lower(lane_program(random.Random(seed), trap=seed % 5 == 0).program)
        straight = Straight(kernel)
        unvisited = [(straight.body, False)]
        barriers = 0
        while unvisited:
            body, branched = unvisited.pop()
            for item in body:
                if item.op in ("barrier", "subgroup"):
                    barriers += 1
                    assert not branched
                if item.op == "if":
                    unvisited += [(item.then, True), (item.orelse, True)]
                elif item.op == "loop":
                    unvisited.append((item.body, branched))
        assert barriers == sum(i.op in ("barrier", "subgroup") for i in walk(kernel.body))


# ---- random programs ------------------------------------------------------------------------------------------------


def agree(case, rng, seed):
    expected = outcome(case)
    off = rng.choice((frozenset(), frozenset(), NO_PASSES, frozenset((rng.choice(PASSES),))))
    mode, poll = rng.choice((Mode.NATIVE, Mode.NATIVE, Mode.SOFT)), rng.random() < 0.4
    got = found(case, mode, off=off, poll=poll, seed=seed)
    assert got == expected, f"seed {seed}, {mode}, without {sorted(off)}, polling: {poll}\n{case.program}"


@pytest.mark.parametrize("block", range(6))
@pytest.mark.check
def test_lanes_that_meet_part_and_stray(block):
    for seed in range(2 * block, 2 * block + 2):
        rng = random.Random(seed)
        agree(lane_program(rng, trap=seed % 5 == 0), rng, seed)


@pytest.mark.parametrize("functions", [False, True], ids=["plain", "math"])
@pytest.mark.parametrize("block", range(2))
def test_programs_of_the_conformance_suite(functions, block):
    for seed in range(3 * block, 3 * block + 3):
        rng = random.Random(seed)
        agree(random_program(rng, functions=functions), rng, seed)


@pytest.mark.sweep
@pytest.mark.parametrize("block", range(100))
def test_many_lanes_that_meet_part_and_stray(block):
    for seed in range(10_000 + 20 * block, 10_020 + 20 * block):
        rng = random.Random(seed)
        agree(lane_program(rng, trap=seed % 5 == 0), rng, seed)


@pytest.mark.sweep
@pytest.mark.parametrize("functions", [False, True], ids=["plain", "math"])
@pytest.mark.parametrize("block", range(40))
def test_many_programs_of_the_conformance_suite(functions, block):
    for seed in range(10_000 + 25 * block, 10_025 + 25 * block):
        rng = random.Random(seed)
        agree(random_program(rng, functions=functions), rng, seed)


# ---- kernels that end early -----------------------------------------------------------------------------------------


def endless(*inside, around=()):
    """A loop of some hours."""
    turn = (Assign("n", Var("n") * 3 + Var("k")), *inside)
    loop = Loop("j", lit(0), lit(0xFFFFFFFF), (Loop("k", lit(0), lit(0xFFFFFFFF), turn),))
    return [Let("n", GID), *around, loop, Store("out", GID, Var("n"))]


STOPPED = {
    "plain": endless(),
    "with shared memory": endless(Store("s", LocalId(0), Var("n"))),
    "with barriers": endless(*meeting()),
    "with barriers outside": [*endless(), *meeting(), Store("out", GID, Var("got"))],
    "with barriers behind what a loop finds": [
        *endless(),
        If(Load("out", lit(0)) > 5, meeting()),
        Loop("m", lit(0), Load("few", lit(0)), meeting()),
    ],
    "one lane": [Let("n", GID), If(BinOp(BinaryOp.EQ, GID, lit(70)), tuple(endless()[1:])), Barrier(), *meeting()],
}


@pytest.mark.parametrize("way", STOPPED)
@pytest.mark.parametrize("when", ["before", "while"])
def test_a_kernel_that_polls_ends_when_the_host_says_so(way, when):
    device_or_skip()
    buffers = [read("few", 0, u32), BufferDecl("out", 1, Access.READ_WRITE, u32), shared("s", u32, 64)]
    kernel = lower(Program(buffers, (64, 1, 1), STOPPED[way]), LowerOptions(poll=True))
    code = Code(kernel, Mode.NATIVE)
    stop = np.array([when == "before"], np.uint32)

    def end():
        time.sleep(0.3)
        stop[0] = 1

    host = threading.Thread(target=end)
    began = time.monotonic()
    host.start()
    code.run([struct.pack("<I", 1 << 30), bytes(4 * 128)], [1, 128], (2, 1, 1), stop=stop)
    assert time.monotonic() - began < 20
    host.join()


@pytest.mark.parametrize("way", ["alone", "before a barrier", "before a loop of hours"])
def test_one_lane_traps_and_the_others_are_not_stuck(way):
    more = {
        "alone": (Store("out", GID, lit(1)),),
        "before a barrier": (*meeting(), Store("out", GID, Var("got"))),
        "before a loop of hours": (
            Let("hours", Select(BinOp(BinaryOp.EQ, GID, lit(70)), lit(0xFFFFFFFF), lit(1))),
            Loop("i", lit(0), Var("hours"), (
                Loop("j", lit(0), Var("hours"), (
                    Loop("k", lit(0), Var("hours"), (Store("out", GID, Var("k")),)),
                )),
            )),
            *meeting(),
        ),
    }  # fmt: skip
    trap = If(BinOp(BinaryOp.EQ, GID, lit(70)), (Trap(GID * 2, "here"),))
    unreached = If(GID > 1000, (Trap(GID, "there"),))
    program = Program([write_only("out", 0, u32, 128), shared("s", u32, 64)], (64, 1, 1), [unreached, trap, *more[way]])
    case = Case(program, (), (2, 1, 1), {})
    for mode in MODES:
        for poll in (False, True):
            assert found(case, mode, poll=poll) == ("here", 140, (70, 0, 0))


def test_a_trap_that_is_not_reached_leaves_its_words_zero():
    trap = If(GID > 1000, (Trap(GID, "there"),))
    program = Program([write_only("out", 0, u32, 4)], (4, 1, 1), [trap, Store("out", GID, GID)])
    assert same(program, []) == [struct.pack("<4I", 0, 1, 2, 3)]


# ---- text -----------------------------------------------------------------------------------------------------------


def text_of(program, mode=Mode.NATIVE, poll=False):
    soft = keeps_subnormals(mode, program.requirements.float64)
    return opencl_text(lower(program, LowerOptions(soft_flush=soft, poll=poll, firm=mode is Mode.PTX)), mode)


def branches():
    """Workgroups that go different ways, with barriers on them."""
    mirror = Load("parts", lit(63) - LocalId(0))
    body = [
        If(BinOp(BinaryOp.EQ, WorkgroupId(0), lit(7)), (Return(),)),
        If(
            WorkgroupId(0) < 2,
            (Store("parts", LocalId(0), Load("x", GID)), Barrier(), Store("out", GID, mirror)),
            (Store("out", GID, lit(1)),),
        ),
        Barrier(),
        Store("out", GID, Load("out", GID) + Load("parts", LocalId(0))),
    ]
    return Program([read("x", 0, u32), read_write("out", 1, u32), shared("parts", u32, 64)], (64, 1, 1), body)


def doubles():
    x, y = Load("x", GID), Load("y", GID)
    body = [If(BufLen("out") > GID, (Store("out", GID, Cast(f32, x / Cast(f64, y) + lit(0.1, f64)) * y),))]
    return Program([read("x", 0, f64), read("y", 1, f32), write_only("out", 2, f32)], (64, 1, 1), body)


def signed():
    a, b = Load("a", GID), Load("b", GID)
    quotient = BinOp(BinaryOp.DIV, a * lit(3, i32) - b, BinOp(BinaryOp.MIN, b, lit(-1, i32)))
    body = [Store("out", GID, quotient + (a >> lit(2)))]
    return Program([read("a", 0, i32), read("b", 1, i32), write_only("out", 2, i32)], (64, 1, 1), body)


READ = PROGRAMS | {"branches": branches, "doubles": doubles, "signed": signed}
"""Programs whose text is kept."""
VARIANTS = [
    *((name, Mode.NATIVE, False) for name in READ),
    ("saxpy", Mode.PTX, False), ("saxpy", Mode.SOFT, False), ("doubles", Mode.PTX, False),
    ("sum_of_a_workgroup", Mode.NATIVE, True), ("steps_to_one", Mode.NATIVE, True), ("steps_to_one", Mode.PTX, True),
]  # fmt: skip


@pytest.mark.parametrize("name, mode, poll", VARIANTS)
def test_the_text_of_a_kernel_is_the_one_that_was_read(request, name, mode, poll):
    more = f".{mode}" * (mode is not Mode.NATIVE) + ".poll" * poll
    text = text_of(READ[name](), mode, poll)
    assert_golden(f"opencl/{name}{more}.cl", text, request.config.getoption("--refresh-golden"))


@pytest.mark.parametrize("name", READ)
def test_what_was_read_gives_the_bytes_of_the_reference(name):
    program = READ[name]()
    n, rng = 64 * 9, random.Random(name)
    inputs = []
    for b in program.host_inputs:
        count = b.count or n
        inputs.append(rng.randbytes(count * b.element.size))
    if name in ("steps_to_one", "traps"):
        inputs[0] = struct.pack(f"<{n}I", *(rng.randrange(1, 100) for _ in range(n)))
    sized = {b.name: 7 * n for b in program.host_outputs if not b.count and not b.is_host_input}
    same(program, inputs, (n // program.workgroup_size[0], 1, 1), sized, WAYS[-1:])


def test_the_same_kernel_is_the_same_text_again():
    for seed in range(5):
        texts = {text_of(lane_program(random.Random(seed)).program) for _ in range(2)}
        assert len(texts) == 1


def test_names_of_buffers_become_words_of_the_language():
    names = ("a", "a_2", "A", "kernel", "x" * 60, "x" * 61, "uint")
    buffers = [read(name, k, u32, 1) for k, name in enumerate(names)]
    total = Load(names[0], GID)
    for name in names[1:]:
        total = total + Load(name, GID)
    program = Program([*buffers, write_only("out", len(names), u32, 1)], (1, 1, 1), [Store("out", GID, total)])
    (out,) = same(program, [struct.pack("<I", 1 << k) for k in range(len(names))])
    assert struct.unpack("<I", out) == (2 ** len(names) - 1,)
    assert text_of(program).isascii()


def test_branches_nest_as_deep_as_programs_allow():
    body = (Store("out", GID, lit(1)),)
    for k in range(Limits().depth - 4):
        body = (If(100 + k > GID, body),)
    same(Program([write_only("out", 0, u32, 1)], (1, 1, 1), body), [])


def test_a_long_expression_is_printed_in_pieces():
    body, value = [], GID
    for k in range(20):
        for j in range(25):
            value = BinOp(BinaryOp.BIT_XOR, value * 3, lit(50 * k + j))
        body.append(Let(f"v{k}", value))
        value = Var(f"v{k}")
    program = Program([write_only("out", 0, u32, 4)], (4, 1, 1), [*body, Store("out", GID, value)])
    assert max(map(len, text_of(program).splitlines())) < 160
    same(program, [])


def test_every_float_step_for_nvidia_is_one_instruction():
    text = text_of(probe_program(), Mode.PTX)
    body = text[text.index("vyre_kernel") :]
    for op in ("add", "sub", "mul", "div", "sqrt", "fma"):
        assert f'asm("{op}.rn.ftz.f32 ' in text
        assert f"{op}_f32(" in body
    assert not re.search(r"v\d+ [-+*/] v\d+", body)
    assert "FP_CONTRACT" not in text
    soft = opencl_text(lower(probe_program(), LowerOptions(soft_flush=True)), Mode.PTX)
    assert "ftz" not in soft
    assert "mul.rn.f32" in soft


def test_options_ask_for_flushing_where_the_kernel_does_not_flush():
    for mode in Mode:
        for float64 in (False, True):
            flag = "-cl-denorms-are-zero" in build_options(mode, float64)
            assert flag != keeps_subnormals(mode, float64)
    assert keeps_subnormals(Mode.SOFT, False)
    assert not keeps_subnormals(Mode.NATIVE, False)


def test_bits_come_back_from_every_bitcast():
    bits = (0, 1, 0x80000001, 0x7F800001, 0xFFFFFFFF, 0x3F800000, 0x00800000)
    n = len(bits)
    x = Load("x", GID)
    body = [
        Store("a", GID, Bitcast(u32, Bitcast(f32, x))),
        Store("b", GID, Bitcast(i32, Bitcast(f32, x))),
        Store("c", GID, Bitcast(f32, Cast(i32, x))),
    ]
    buffers = [read("x", 0, u32, n), write_only("a", 1, u32, n), write_only("b", 2, i32, n), write_only("c", 3, f32, n)]
    same(Program(buffers, (n, 1, 1), body), [struct.pack(f"<{n}I", *bits)])


def test_no_number_is_known_to_a_compiler_that_could_compute_with_it():
    """Constants, words and halves are multiplied by a 1 that comes from the launch; that also flushes them."""
    x = Bitcast(f32, Load("w", GID)) + Cast(f32, Load("w", GID + 1)) * lit(0.5) + Cast(f32, Load("h", GID))
    buffers = [read("w", 0, u32), read("h", 1, f16), write_only("out", 2, f32, 64)]
    program = Program(buffers, (64, 1, 1), [Store("out", GID, x)])
    native, ptx, soft = (text_of(program, mode) for mode in (Mode.NATIVE, Mode.PTX, Mode.SOFT))
    assert "const float one = as_float(0x3f800000u + ((base_y & base_z) >> 31));" in native
    assert native.count("* one") == 4
    assert "flush_f32" not in native
    assert not any(re.search(r"\bone\b", text) for text in (ptx, soft))


def test_no_zero_is_known_to_compilers_that_take_a_choice_below_it_for_a_minimum():
    x = Load("x", InvocationId(0))
    below = Select(BinOp(BinaryOp.LT, x, lit(0.0)), x, lit(-0.0))
    truth = Bitcast(u32, Cast(f32, BinOp(BinaryOp.LT, x, lit(1.0))))
    program = Program(
        [read("x", 0, f32), write_only("out", 1, f32, 4), write_only("bits", 2, u32, 4)],
        (1, 1, 1),
        [Store("out", InvocationId(0), below), Store("bits", InvocationId(0), truth)],
    )
    native, ptx = (text_of(program, mode).split("vyre_kernel")[1] for mode in (Mode.NATIVE, Mode.PTX))
    assert "const float zero = as_float((base_y & base_z) >> 31);" in ptx
    assert "< zero" in ptx
    assert "(-zero)" in ptx
    assert "? 1.0f : zero)" in ptx, "a bool becomes a float by a choice"
    assert not re.search(r"\bzero\b", native)
