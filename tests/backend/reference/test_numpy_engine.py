"""The NumPy engine by hand: lanes that part and meet, memory, atomics, subgroups, limits."""

import struct
import time

import numpy as np
import pytest

from vyre.backends.reference import OobReport, run
from vyre.backends.reference.engines import numpy_engine
from vyre.backends.reference.engines.memory import Memory, Options
from vyre.errors import DeadlineExceeded, InvalidProgram, StepLimitExceeded, Trap, UnsupportedFeature
from vyre.foundation.ir import nodes as ir
from vyre.foundation.ir.dtypes import bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from vyre.foundation.ir.nodes import (  # fmt: skip
    AllReduce,
    Assign,
    AsyncLoad,
    AsyncWait,
    Atomic,
    Barrier,
    BinOp,
    Bitcast,
    Block,
    BufLen,
    Fma,
    If,
    IndirectDispatch,
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
    SubgroupSize,
    UnOp,
    Var,
    WorkgroupId,
    lit,
)
from vyre.foundation.ir.ops import AtomicOp, BinaryOp, CollectiveOp, Ordering, ReduceOp, UnaryOp
from vyre.foundation.ir.program import Program, output, read, read_write, workgroup, write_only

gid, lid, wg = InvocationId(0), LocalId(0), WorkgroupId(0)
TRUE = lit(True)


def go(program, *inputs, grid=(1, 1, 1), **options):
    return run(program, inputs, grid=grid, engine="numpy", **options)


def numbers(data, dtype=np.uint32):
    return np.frombuffer(data, dtype).tolist()


def lanes(body, *, n=8, groups=1, buffers=(), inputs=(), dtype=u32, out=np.uint32, count=None, **options):
    """The elements of `out`, with one invocation for each."""
    made = output("out", 0, dtype, count or n * groups)
    result = go(Program([made, *buffers], (n, 1, 1), body), *inputs, grid=(groups, 1, 1), **options)
    return numbers(result.outputs[0], out)


def each(value, **options):
    return lanes([Store("out", gid, value)], **options)


def unchecked(program):
    """The first output of a program that validation would refuse."""
    memory = Memory.build(program, [])
    numpy_engine.execute(program, memory, (1, 1, 1), Options())
    return numbers(memory.outputs()[0])


def words(*values):
    return np.array(values, np.uint32)


# ---- lanes that part and meet ---------------------------------------------------------------------------------------


def test_both_sides_of_a_branch_run_for_their_own_lanes():
    body = [
        Let("a", lit(0)),
        Let("b", gid * 10),
        If(gid < 3, [Assign("a", gid + 1)], [Assign("a", lit(100)), Assign("b", lit(7))]),
        Store("out", gid, Var("a") + Var("b")),
    ]
    assert lanes(body, n=5) == [1, 12, 23, 107, 107]


@pytest.mark.parametrize("bound, expected", [(0, [2, 2, 2]), (3, [1, 1, 1]), (2, [1, 1, 2])])
def test_a_branch_may_be_taken_by_no_lane_by_all_or_by_some(bound, expected):
    assert lanes([If(gid < bound, [Store("out", gid, lit(1))], [Store("out", gid, lit(2))])], n=3) == expected


def test_a_condition_may_be_a_word():
    assert lanes([If(gid & 2, [Store("out", gid, lit(1))])], n=4) == [0, 0, 1, 1]


def test_a_value_that_is_the_same_for_all_lanes_stays_apart_where_some_lanes_change_it():
    body = [
        Let("x", lit(5)),
        If((gid & 1).eq(0), [Assign("x", lit(6))]),
        Let("y", Var("x")),
        If(gid < 2, [Assign("x", lit(9))]),
        Store("out", gid, Var("x") * 10 + Var("y")),
    ]
    assert lanes(body, n=4) == [96, 95, 66, 55]


def test_names_of_sibling_scopes_do_not_meet():
    body = [
        If(gid < 2, [Let("t", lit(1)), Store("out", gid, Var("t"))], [Let("t", gid), Store("out", gid, Var("t"))]),
        Block([Let("t", lit(40)), If(gid.eq(0), [Store("out", gid, Var("t"))])]),
    ]
    assert lanes(body, n=4) == [40, 1, 2, 3]


@pytest.mark.parametrize("depth", [1, 20])
def test_branches_nest(depth):
    body = [Assign("x", Var("x") + 100)]
    for k in range(depth):
        body = [If(gid >= depth - k, [Assign("x", Var("x") + 1), *body])]
    n = depth + 1
    expected = [min(k, depth) + 100 * (k >= depth) for k in range(n)]
    assert lanes([Let("x", lit(0)), *body, Store("out", gid, Var("x"))], n=n) == expected


def test_a_returned_lane_does_nothing_more():
    body = [
        Store("out", gid, lit(1)),
        If(gid < 2, [Return()], [If(gid.eq(3), [Store("out", gid, lit(5)), Return()])]),
        Store("out", gid, Load("out", gid) + 1),
    ]
    assert lanes(body, n=5) == [1, 1, 2, 5, 2]


def test_locals_stay_with_their_lanes_after_others_return():
    body = [
        Let("x", gid * 3),
        Let("same", lit(1000)),
        If((gid & 1).eq(1), [Return()]),
        Assign("x", Var("x") + Var("same")),
        Store("out", gid, Var("x")),
    ]
    assert lanes(body, n=6) == [1000, 0, 1006, 0, 1012, 0]


def test_all_lanes_may_return():
    assert lanes([Store("out", gid, lit(3)), Return()], n=3) == [3, 3, 3]


def test_loop_bounds_belong_to_a_lane():
    body = [
        Let("sum", lit(0)),
        Loop("k", gid, gid * 2, [Assign("sum", Var("sum") + Var("k"))]),
        Store("out", gid, Var("sum")),
    ]
    assert lanes(body, n=6) == [sum(range(k, 2 * k)) for k in range(6)]


@pytest.mark.parametrize("start, stop, trips", [(0, 0, 0), (5, 3, 0), (2, 3, 1), (0xFFFFFFFC, 0xFFFFFFFF, 3)])
def test_a_loop_runs_from_start_to_below_stop(start, stop, trips):
    body = [
        Let("n", lit(0)),
        Loop("k", lit(start), lit(stop), [Assign("n", Var("n") + 1)]),
        Store("out", gid, Var("n")),
    ]
    assert lanes(body, n=2) == [trips, trips]


def test_loop_bounds_are_read_once():
    body = [
        Let("end", lit(3)),
        Let("n", lit(0)),
        Loop("k", lit(0), Var("end"), [Assign("end", lit(100)), Assign("n", Var("n") + 1)]),
        Store("out", gid, Var("n")),
    ]
    assert lanes(body, n=2) == [3, 3]


def test_a_lane_may_return_from_inside_a_loop():
    body = [
        Let("n", lit(0)),
        Loop(
            "k",
            lit(0),
            gid,
            [
                Assign("n", Var("n") + 1),
                If(BinOp(BinaryOp.AND, gid.eq(5), Var("k").eq(2)), [Store("out", gid, lit(77)), Return()]),
            ],
        ),
        Store("out", gid, Var("n")),
    ]
    assert lanes(body, n=8) == [0, 1, 2, 3, 4, 77, 6, 7]


def test_all_lanes_may_return_from_inside_a_loop():
    body = [Loop("k", lit(0), gid + 1, [Store("out", gid, Var("k") + 9), Return()]), Store("out", gid, lit(1))]
    assert lanes(body, n=3) == [9, 9, 9]


def loop_while(condition, body, flag="go"):
    guarded = If(Var(flag), [Assign(flag, condition), If(Var(flag), body)])
    return [Let(flag, TRUE), Loop(f"k_{flag}", lit(0), lit(0xFFFFFFFF), [guarded])]


def test_while_ends_for_each_lane_in_its_own_time():
    n = Var("n", dtype=u32)
    halve = If((n & 1).eq(0), [Assign("n", n >> 1)], [Assign("n", n * 3 + 1)])
    body = [
        Let("n", gid + 1),
        Let("steps", lit(0)),
        *loop_while(n.ne(1), [halve, Assign("steps", Var("steps") + 1)]),
        Store("out", gid, Var("steps") * 1000 + n),
    ]
    assert [x // 1000 for x in lanes(body, n=10)] == [0, 1, 7, 2, 5, 8, 16, 3, 19, 6]
    assert all(x % 1000 == 1 for x in lanes(body, n=10))


def test_while_loops_nest_and_keep_what_the_inner_one_declared():
    i, j = Var("i", dtype=u32), Var("j", dtype=u32)
    inner = [Let("j", i), *loop_while(j < gid, [Assign("j", j + 1), Assign("t", Var("t") + 1)], "inner")]
    body = [
        Let("i", lit(0)),
        Let("t", lit(0)),
        *loop_while(i < gid, [*inner, Assign("i", i + 1)]),
        Store("out", gid, Var("t")),
    ]
    assert lanes(body, n=6) == [k * (k + 1) // 2 for k in range(6)]


def test_a_broken_while_runs_only_the_rest_that_its_flag_guards():
    n = Var("n", dtype=u32)
    rest = [
        Assign("n", n + 1),
        Let("seen", n * 2),
        If(n.eq(gid), [Assign("go", lit(False))]),
        If(Var("go"), [Assign("late", Var("late") + Var("seen"))]),
    ]
    body = [Let("n", lit(0)), Let("late", lit(0)), *loop_while(n < 4, rest), Store("out", gid, n * 100 + Var("late"))]
    assert lanes(body, n=6) == [420, 100, 202, 306, 412, 420]


def test_a_flag_hidden_by_another_name_does_not_end_the_loop():
    hidden = [Assign("n", Var("n") + 1), Let("go", lit(False)), If(Var("go"), [Assign("n", lit(99))])]
    body = [
        Let("go", TRUE),
        Let("n", lit(0)),
        Loop("k", lit(0), lit(4), [If(Var("go"), hidden)]),
        Store("out", gid, Var("n")),
    ]
    program = Program([output("out", 0, u32, 2)], (2, 1, 1), body)
    assert unchecked(program) == [4, 4]


def test_a_flag_that_is_false_from_the_start_runs_nothing():
    body = [Let("go", gid < 2), Loop("k", lit(0), lit(3), [If(Var("go"), [Store("out", gid, Var("k") + 1)])])]
    assert lanes(body, n=4) == [3, 3, 0, 0]


def test_a_flag_may_be_a_word():
    body = [
        Let("left", gid),
        Let("n", lit(0)),
        Loop(
            "k",
            lit(0),
            lit(0xFFFFFFFF),
            [If(Var("left"), [Assign("left", Var("left") - 1), Assign("n", Var("n") + 2)])],
        ),
        Store("out", gid, Var("n")),
    ]
    assert lanes(body, n=4) == [0, 2, 4, 6]


# ---- ids ------------------------------------------------------------------------------------------------------------


def test_ids_count_x_first_in_every_axis():
    size, grid = (2, 3, 2), (3, 2, 2)
    linear = InvocationId(0) + InvocationId(1) * 6 + InvocationId(2) * 36
    parts = [WorkgroupId(a) for a in range(3)] + [LocalId(a) for a in range(3)]
    code = lit(0)
    for part in parts:
        code = code * 10 + part
    program = Program([output("out", 0, u32, 144)], size, [Store("out", linear, code)])
    found = numbers(go(program, grid=grid).outputs[0])
    expected = [
        int(f"{x // 2}{y // 3}{z // 2}{x % 2}{y % 3}{z % 2}") for z in range(4) for y in range(6) for x in range(6)
    ]
    assert found == expected


@pytest.mark.parametrize("chunk", [1, 5, 12, 1 << 17])
def test_results_do_not_depend_on_how_workgroups_are_cut_into_chunks(monkeypatch, chunk):
    monkeypatch.setattr(numpy_engine, "CHUNK_LANES", chunk)
    body = [
        Store("tile", lid, gid + 1),
        Barrier(),
        If(wg.eq(2), [Return()]),
        Store("out", gid, Load("tile", lit(3) - lid) * 10 + wg),
    ]
    found = lanes(body, n=4, groups=5, buffers=[workgroup("tile", u32, 4)])
    assert found == [0 if g == 2 else (g * 4 + 4 - k) * 10 + g for g in range(5) for k in range(4)]


def test_shared_memory_bounds_the_chunk(monkeypatch):
    monkeypatch.setattr(numpy_engine, "CHUNK_SHARED_BYTES", 40)
    body = [Store("tile", lid, gid), Barrier(), Store("out", gid, Load("tile", lit(1) - lid))]
    assert lanes(body, n=2, groups=4, buffers=[workgroup("tile", u32, 4)]) == [1, 0, 3, 2, 5, 4, 7, 6]


def test_an_empty_grid_runs_nothing():
    program = Program([output("out", 0, u32, 2)], (2, 1, 1), [Store("out", gid, lit(1))])
    assert numbers(go(program, grid=(0, 1, 1)).outputs[0]) == [0, 0]


def test_an_indirect_grid_is_read_by_the_caller_and_skipped_by_the_engine():
    program = Program(
        [read("n", 0, u32, 3), output("out", 1, u32, 4)],
        (1, 1, 1),
        [IndirectDispatch("n", 0), Store("out", gid, gid + 1)],
    )
    assert numbers(go(program, words(3, 1, 1), grid=(1, 1, 1)).outputs[0]) == [1, 2, 3, 0]


# ---- memory ---------------------------------------------------------------------------------------------------------


def test_accesses_beyond_the_end_are_absorbed_and_counted_for_active_lanes_only():
    body = [
        If(gid < 6, [Store("out", gid, Load("x", gid) + 1)]),
        If(gid.eq(7), [Store("out", gid * 7, lit(1)), Let("_", Atomic(AtomicOp.ADD, "out", gid - 8, lit(1)))]),
    ]
    program = Program([read("x", 0, u32), output("out", 1, u32, 5)], (8, 1, 1), body)
    result = go(program, words(10, 20, 30, 40))
    assert numbers(result.outputs[0]) == [11, 21, 31, 41, 1]
    assert result.oob == OobReport(loads=2, stores=2, atomics=1)


def test_an_index_that_all_lanes_share_misses_once_per_lane():
    past = BufLen("out") + 3
    body = [
        Store("out", past, Load("x", past)),
        Store("tile", past, lit(1)),
        Let("t", Load("tile", past)),
        Let("_", Atomic(AtomicOp.ADD, "out", past, lit(1))),
        Store("out", gid, Var("t")),
    ]
    buffers = [read("x", 0, u32), output("out", 1, u32, 6), workgroup("tile", u32, 2)]
    result = go(Program(buffers, (3, 1, 1), body), words(1, 2), grid=(2, 1, 1))
    assert numbers(result.outputs[0]) == [0] * 6
    assert result.oob == OobReport(loads=12, stores=12, atomics=6)


def test_an_index_wraps_before_it_is_checked():
    assert each(Load("x", gid - 1), n=3, buffers=[read("x", 1, u32)], inputs=[words(5, 6)]) == [0, 5, 6]


@pytest.mark.parametrize("dtype", [u8, u32, u64, f64])
def test_an_empty_buffer_reads_as_zero_and_takes_no_store(dtype):
    body = [Store("x", gid, Load("x", gid)), Store("x", lit(0), Load("x", lit(0))), Store("out", gid, BufLen("x"))]
    program = Program([read_write("x", 0, dtype), output("out", 1, u32, 2)], (2, 1, 1), body)
    result = go(program, b"")
    assert [bytes(o) for o in result.outputs] == [b"", bytes(8)]
    assert result.oob == OobReport(loads=4, stores=4)


def test_where_lanes_store_to_one_element_the_last_one_wins():
    assert lanes([Store("out", gid >> 2, gid)], n=8, count=2) == [3, 7]
    assert lanes([Store("out", lit(0), gid)], n=8, count=1) == [7]


def test_inputs_are_not_changed():
    x = words(1, 2)
    assert each(lit(0), n=2, buffers=[read_write("x", 1, u32)], inputs=[x]) == [0, 0]
    go(Program([read_write("x", 0, u32)], (2, 1, 1), [Store("x", gid, lit(9))]), x)
    assert x.tolist() == [1, 2]


def test_f32_is_canonical_from_load_to_store():
    bits = words(0x00000001, 0x807FFFFF, 0x7F800001, 0xFFFFFFFF, 0x80000000, 0x3F800000)
    copied = each(Load("x", gid), n=6, dtype=f32, buffers=[read("x", 1, f32)], inputs=[bits])
    assert copied == [0, 0x80000000, 0x7FC00000, 0x7FC00000, 0x80000000, 0x3F800000]
    cast = each(Bitcast(u32, Bitcast(f32, Load("x", gid))), n=6, buffers=[read("x", 1, u32)], inputs=[bits])
    assert cast == copied


def test_f32_arithmetic_rounds_twice_and_fma_once():
    a = 1 + 2.0**-12
    x = np.array([a, 1e-30, 3e38], np.float32)
    buffers = [read("x", 1, f32)]
    v = Load("x", gid, dtype=f32)
    twice = each(v * v + lit(-(1 + 2.0**-11)), n=3, dtype=f32, out=np.float32, buffers=buffers, inputs=[x])
    once = each(Fma(v, v, lit(-(1 + 2.0**-11))), n=3, dtype=f32, out=np.float32, buffers=buffers, inputs=[x])
    assert twice[0] == 0.0
    assert once[0] == 2.0**-24
    assert twice[2] == once[2] == float("inf")
    assert each(v * v, n=3, dtype=f32, out=np.float32, buffers=buffers, inputs=[x])[1] == 0.0


def test_bool_words_read_as_true_when_not_zero_and_are_stored_as_one():
    found = each(Load("x", gid), n=3, dtype=bool_, buffers=[read("x", 1, bool_)], inputs=[words(0, 2, 0xFFFFFFFF)])
    assert found == [0, 1, 1]


@pytest.mark.parametrize(
    "dtype, kind, stored, expected",
    [
        (u8, np.uint8, [255, 0, 7], [255, 0, 7]),
        (i8, np.int8, [-1, -128, 7], [0xFFFFFFFF, 0xFFFFFF80, 7]),
        (u16, np.uint16, [65535, 0, 7], [65535, 0, 7]),
        (i16, np.int16, [-1, -32768, 7], [0xFFFFFFFF, 0xFFFF8000, 7]),
        (u64, np.uint64, [2**64 - 1, 2**32, 7], [0xFFFFFFFF, 0, 7]),
        (i64, np.int64, [-1, -(2**63), 7], [0xFFFFFFFF, 0, 7]),
    ],
)
def test_other_integers_load_cast_and_store(dtype, kind, stored, expected):
    raw = np.array(stored, kind)
    assert each(u32(Load("x", gid)), n=3, buffers=[read("x", 1, dtype)], inputs=[raw]) == expected
    back = each(
        dtype(Load("x", gid)), n=3, dtype=dtype, out=kind, buffers=[read("x", 1, u32)], inputs=[words(*expected)]
    )
    assert back == [int(np.array([e], np.uint32).astype(kind)[0]) for e in expected]


@pytest.mark.parametrize(
    "dtype, expected",
    [
        (f16, struct.pack("<3e", 1.5, 65504.0, 6e-8)),
        (bf16, bytes.fromhex("c03f 8047 8133")),
        (f64, struct.pack("<3d", 1.5, 65504.0, float(np.float32(6e-8)))),
    ],
)
def test_other_floats_are_stored_as_themselves(dtype, expected):
    x = np.array([1.5, 65504.0, 6e-8], np.float32)
    program = Program(
        [read("x", 0, f32), output("out", 1, dtype, 3)], (3, 1, 1), [Store("out", gid, dtype(Load("x", gid)))]
    )
    assert bytes(go(program, x).outputs[0]) == expected


def test_narrow_stores_leave_their_neighbours_alone():
    program = Program([read_write("x", 0, u8)], (2, 1, 1), [Store("x", gid * 2 + 1, u8(gid + 1))])
    assert bytes(go(program, b"\xff" * 5).outputs[0]) == b"\xff\x01\xff\x02\xff"


def test_select_and_logic_take_words_and_bools():
    even = (gid & 1).eq(0)
    assert each(Select(gid & 2, lit(5), gid), n=4) == [0, 1, 5, 5]
    assert each(u32(BinOp(BinaryOp.AND, gid & 2, even)), n=4) == [0, 0, 1, 0]
    assert each(u32(BinOp(BinaryOp.OR, even, gid & 2)), n=4) == [1, 0, 1, 1]
    assert each(u32(UnOp(UnaryOp.LOGICAL_NOT, gid & 1)), n=4) == [1, 0, 1, 0]
    assert each(u32(UnOp(UnaryOp.LOGICAL_NOT, even)), n=4) == [0, 1, 0, 1]


# ---- atomics --------------------------------------------------------------------------------------------------------

BINS = read_write("bins", 1, u32)


def test_all_operands_are_evaluated_also_those_that_are_not_chosen():
    hit = Atomic(AtomicOp.ADD, "bins", lit(0), lit(1))
    other = Atomic(AtomicOp.ADD, "bins", lit(1), lit(1))
    body = [
        Let("a", Select(gid < 2, hit, other)),
        Let("b", BinOp(BinaryOp.AND, lit(False), hit)),
        Let("c", BinOp(BinaryOp.OR, TRUE, other)),
    ]
    result = go(Program([BINS], (4, 1, 1), body), words(0, 0))
    assert numbers(result.outputs[0]) == [8, 8]


ORDERED = {
    AtomicOp.ADD: lambda old, v: old + v & 0xFFFFFFFF,
    AtomicOp.OR: lambda old, v: old | v,
    AtomicOp.AND: lambda old, v: old & v,
    AtomicOp.XOR: lambda old, v: old ^ v,
    AtomicOp.MIN: min,
    AtomicOp.MAX: max,
    AtomicOp.EXCHANGE: lambda old, v: v,
}


@pytest.mark.parametrize("op", ORDERED, ids=lambda op: op.text)
@pytest.mark.parametrize("spread", [1, 3, 64])
@pytest.mark.parametrize("uses", [True, False])
def test_atomics_take_effect_in_lane_order(op, spread, uses):
    rng = np.random.default_rng(spread)
    at, values = rng.integers(0, spread + 1, 64, np.uint32), rng.integers(0, 2**32, 64, np.uint32)
    start = rng.integers(0, 2**32, spread, np.uint32)
    now, old = start.tolist(), []
    for i, v in zip(at.tolist(), values.tolist(), strict=True):
        old.append(now[i] if i < spread else 0)
        if i < spread:
            now[i] = ORDERED[op](now[i], v)
    body = [Let("old", Atomic(op, "bins", Load("at", gid), Load("v", gid)))]
    body += [Store("out", gid, Var("old"))] if uses else []
    buffers = [output("out", 0, u32, 64), BINS, read("at", 2, u32), read("v", 3, u32)]
    result = go(Program(buffers, (64, 1, 1), body), start, at, values)
    assert numbers(result.outputs[1]) == now
    assert numbers(result.outputs[0]) == (old if uses else [0] * 64)
    assert result.oob.atomics == int((at == spread).sum())


@pytest.mark.parametrize("uses", [True, False])
def test_atomics_of_one_place_take_a_value_of_each_lane(uses):
    body = [Let("old", Atomic(AtomicOp.ADD, "bins", lit(1), lit(3)))]
    body += [Store("out", gid, Var("old"))] if uses else []
    result = go(Program([output("out", 0, u32, 4), BINS], (4, 1, 1), body), words(5, 2**32 - 4))
    assert numbers(result.outputs[1]) == [5, 8]
    assert numbers(result.outputs[0]) == ([2**32 - 4, 2**32 - 1, 2, 5] if uses else [0] * 4)


@pytest.mark.parametrize("op, expected", [(AtomicOp.MIN, -5), (AtomicOp.MAX, 3)])
@pytest.mark.parametrize("uses", [True, False])
def test_signed_atomics_compare_signed(op, expected, uses):
    body = [Let("old", Atomic(op, "bins", lit(0), Load("v", gid)))]
    body += [Store("out", gid, Var("old"))] if uses else []
    buffers = [output("out", 0, i32, 3), read_write("bins", 1, i32), read("v", 2, i32)]
    result = go(Program(buffers, (3, 1, 1), body), np.array([0], np.int32), np.array([-5, 3, -2], np.int32))
    assert numbers(result.outputs[1], np.int32) == [expected]


@pytest.mark.parametrize("spread", [1, 2, 8])
def test_compare_exchange_lets_the_first_lane_that_matches_win(spread):
    body = [Let("old", Atomic(AtomicOp.COMPARE_EXCHANGE, "bins", gid % spread, gid + 10, lit(0)))]
    body += [Store("out", gid, Var("old"))]
    result = go(Program([output("out", 0, u32, 8), BINS], (8, 1, 1), body), np.zeros(spread, np.uint32))
    assert numbers(result.outputs[1]) == [10 + k for k in range(spread)]
    assert numbers(result.outputs[0]) == [0 if k < spread else 10 + k % spread for k in range(8)]


def test_compare_exchange_leaves_what_does_not_match():
    body = [Let("old", Atomic(AtomicOp.COMPARE_EXCHANGE, "bins", gid // 2, lit(9), lit(1)))]
    result = go(Program([BINS], (4, 1, 1), body), words(1, 7))
    assert numbers(result.outputs[0]) == [9, 7]


def test_workgroup_atomics_stay_in_their_workgroup():
    body = [
        Let("_", Atomic(AtomicOp.ADD, "tile", gid & 1, lid + 1)),
        Let("_2", Atomic(AtomicOp.MAX, "tile", lit(2), gid)),
        Barrier(),
        Store("out", gid, Load("tile", lid)),
    ]
    assert lanes(body, n=3, groups=2, buffers=[workgroup("tile", u32, 3)]) == [4, 2, 2, 2, 4, 5]


def test_atomics_of_lanes_that_are_not_active_do_nothing():
    body = [If((gid & 1).eq(1), [Let("_", Atomic(AtomicOp.ADD, "bins", lit(0), gid))])]
    assert numbers(go(Program([BINS], (6, 1, 1), body), words(0)).outputs[0]) == [9]


# ---- barriers and subgroups -----------------------------------------------------------------------------------------


def test_a_tree_of_barriers_sums_a_workgroup():
    tile = workgroup("tile", u32, 8)
    body = [Store("tile", lid, gid)]
    for width in (4, 2, 1):
        both = Load("tile", lid) + Load("tile", lid + width)
        body += [Barrier(), If(lid < width, [Store("tile", lid, both)])]
    body += [Barrier(), If(lid.eq(0), [Store("out", wg, Load("tile", lit(0)))])]
    assert lanes(body, n=8, groups=3, buffers=[tile], count=3) == [28, 92, 156]


def test_a_grid_wide_barrier_shows_every_store_to_every_workgroup(monkeypatch):
    monkeypatch.setattr(numpy_engine, "CHUNK_LANES", 1)
    body = [Store("x", gid, gid + 1), Barrier(Ordering.GRID_SYNC), Store("out", gid, Load("x", lit(5) - gid))]
    x = read_write("x", 1, u32)
    assert lanes(body, n=2, groups=3, buffers=[x], inputs=[np.zeros(6, np.uint32)]) == [6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize("n", [1, 31, 32, 33, 70])
def test_a_subgroup_is_32_lanes_and_the_last_one_may_be_partial(n):
    total = each(SubgroupReduce(ReduceOp.ADD, gid + 1), n=n, groups=2)
    local = [range(k - k % 32, min(k - k % 32 + 32, n)) for k in range(n)]
    assert total == [sum(g * n + j + 1 for j in local[k]) for g in range(2) for k in range(n)]
    ballot = each(SubgroupBallot((gid & 1).eq(0)), n=n, groups=2)
    assert ballot == [sum(1 << j % 32 for j in local[k] if (g * n + j) % 2 == 0) for g in range(2) for k in range(n)]
    shuffled = each(SubgroupShuffle(gid + 1, SubgroupLocalId() + 1), n=n, groups=2)
    assert shuffled == [g * n + k + 2 if k + 1 in local[k] else 0 for g in range(2) for k in range(n)]
    assert each(SubgroupLocalId() + SubgroupSize() * 100, n=n) == [3200 + k % 32 for k in range(n)]


@pytest.mark.parametrize("lane, expected", [(31, 32), (32, 0), (2**32 - 1, 0)])
def test_a_shuffle_from_beyond_the_subgroup_gives_zero(lane, expected):
    assert each(SubgroupShuffle(gid + 1, lit(lane)), n=32) == [expected] * 32


def test_returned_lanes_are_missing_from_their_subgroup():
    body = [If(gid >= 3, [Return()]), Store("out", gid, SubgroupReduce(ReduceOp.MIN, lit(9) - gid))]
    assert unchecked(Program([output("out", 0, u32, 4)], (4, 1, 1), body)) == [7, 7, 7, 0]


def test_a_workgroup_that_went_elsewhere_is_not_in_the_subgroups():
    body = [If(wg.eq(1), [Store("out", gid, SubgroupReduce(ReduceOp.ADD, gid))], [Store("out", gid, lit(1))])]
    assert lanes(body, n=3, groups=3) == [1, 1, 1, 12, 12, 12, 1, 1, 1]


def test_a_float_reduction_is_a_butterfly():
    rng = np.random.default_rng(3)
    x = (rng.random(32, np.float32) * np.float32(10.0) ** rng.integers(-6, 6, 32)).astype(np.float32)
    v = x.copy()
    for d in (16, 8, 4, 2, 1):
        v = v + v[np.arange(32) ^ d]
    value = SubgroupReduce(ReduceOp.ADD, Load("x", gid))
    assert each(value, n=32, dtype=f32, out=np.float32, buffers=[read("x", 1, f32)], inputs=[x]) == v.tolist()
    assert len(set(v.tolist())) == 1
    assert v[0] != np.add.accumulate(x)[-1]


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_a_trap_ends_the_dispatch():
    program = Program([output("out", 0, u32, 8)], (8, 1, 1), [If(gid > 4, [ir.Trap(gid * 2, "too far")])])
    with pytest.raises(Trap, match="the program trapped: too far") as caught:
        go(program)
    found = caught.value
    assert (found.context["address"], found.context["tag"], found.context["invocation"]) == (10, "too far", (5, 0, 0))
    assert [one.invocation[0] for one in found.first] == [5, 6, 7]
    assert (found.trapped, found.overflow) == (3, 0)


def test_a_trap_that_no_lane_reaches_does_nothing():
    assert lanes([If(gid > 8, [ir.Trap(gid, "never")]), Store("out", gid, lit(1))], n=2) == [1, 1]


def test_the_step_limit_counts_statements_of_active_lanes():
    program = Program([output("out", 0, u32, 8)], (8, 1, 1), [If(gid < 2, [Store("out", gid, lit(1))])])
    assert go(program).steps == 10
    assert numbers(go(program, max_steps=10).outputs[0])[:3] == [1, 1, 0]
    with pytest.raises(StepLimitExceeded, match="more steps than allowed"):
        go(program, max_steps=9)


def test_a_loop_without_end_meets_its_deadline():
    forever = Program(
        [output("out", 0, u32, 1)], (4, 1, 1), [Loop("k", lit(0), lit(0xFFFFFFFF), [Store("out", lit(0), Var("k"))])]
    )
    with pytest.raises(DeadlineExceeded, match="did not end in time"):
        go(forever, deadline=time.monotonic() + 0.05)


def test_a_deadline_that_has_passed_runs_nothing():
    with pytest.raises(DeadlineExceeded):
        go(Program.empty(), deadline=time.monotonic() - 1)


@pytest.mark.parametrize(
    "body, name",
    [
        ([AsyncLoad("x", "tile", lit(0), lit(4), "t"), AsyncWait("t")], "AsyncLoad"),
        ([AllReduce("y", CollectiveOp.SUM, 0)], "AllReduce"),
    ],
)
def test_statements_left_to_the_scalar_engine_are_refused_by_name(body, name):
    buffers = [read("x", 0, u32), read_write("y", 1, u32), workgroup("tile", u32, 1)]
    program = Program(buffers, (1, 1, 1), body)
    assert numpy_engine.can_run(program, (1, 1, 1)) == f"the NumPy engine has no code for {name}"
    with pytest.raises(UnsupportedFeature, match=name):
        go(program, words(1), words(2))
    assert numbers(run(program, [words(1), words(2)], grid=(1, 1, 1), engine="auto").outputs[0]) == [2]


def test_a_grid_wide_barrier_over_too_many_workgroups_is_refused():
    program = Program([write_only("out", 0, u32)], (64, 1, 1), [Barrier(Ordering.GRID_SYNC)])
    most = numpy_engine.GRID_SYNC_LANES // 64
    assert numpy_engine.can_run(program, (most, 1, 1)) is None
    assert "grid-wide barrier" in (numpy_engine.can_run(program, (most + 1, 1, 1)) or "")


def test_one_program_runs_on_many_sizes():
    program = Program(
        [read("x", 0, u32), write_only("out", 1, u32)], (4, 1, 1), [Store("out", gid, Load("x", gid) + 1)]
    )
    for n in (1, 4, 9):
        x = np.arange(n, dtype=np.uint32)
        result = go(program, x, grid=(-(-n // 4), 1, 1), output_elements={"out": n})
        assert numbers(result.outputs[0]) == (x + 1).tolist()


def test_the_caller_s_floating_point_settings_are_neither_used_nor_changed():
    with np.errstate(all="raise"):
        x = np.array([3e38, 0.0], np.float32)
        v = Load("x", gid, dtype=f32)
        assert each(v * v / v, n=2, dtype=f32, buffers=[read("x", 1, f32)], inputs=[x]) == [0x7F800000, 0x7FC00000]
        assert np.geterr()["over"] == "raise"


def test_a_deep_expression_needs_no_deep_stack():
    value = gid
    for _ in range(20_000):
        value = value + 1
    assert unchecked(Program([output("out", 0, u32, 2)], (2, 1, 1), [Store("out", gid, value)])) == [20_000, 20_001]


def test_an_expression_without_code_is_refused():
    program = Program([output("out", 0, u32, 1)], (1, 1, 1), [Store("out", gid, ir.Call("some.op", (gid,)))])
    with pytest.raises(UnsupportedFeature, match="no code for Call"):
        numpy_engine.compile_program(program)
    weak = Atomic(AtomicOp.FETCH_NAND, "bins", lit(0), lit(1))
    with pytest.raises(UnsupportedFeature, match="atomic_nand has no meaning"):
        numpy_engine.compile_program(Program([BINS], (1, 1, 1), [Let("_", weak)]))


@pytest.mark.parametrize(
    "body, message",
    [
        ([Store("out", Var("i"), lit(0))], "variable 'i' is not declared"),
        ([Store("nowhere", lit(0), lit(0))], "buffer 'nowhere' is not declared"),
    ],
)
def test_a_name_that_nobody_declared_is_refused(body, message):
    with pytest.raises(InvalidProgram, match=message):
        numpy_engine.compile_program(Program([output("out", 0, u32, 1)], (1, 1, 1), body))
