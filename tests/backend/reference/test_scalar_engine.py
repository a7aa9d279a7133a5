"""The scalar engine: each statement and expression by hand, schedules, limits."""

import struct
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vyre.backends.reference import OobReport, Schedule, run
from vyre.conform.programs.strategies import valid_programs
from vyre.errors import DeadlineExceeded, DispatchFailed, InvalidProgram, StepLimitExceeded, Trap
from vyre.foundation.ir import nodes as ir
from vyre.foundation.ir.dtypes import bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from vyre.foundation.ir.nodes import (  # fmt: skip
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
    BufLen,
    Fma,
    If,
    InvocationId,
    Let,
    Load,
    LocalId,
    Loop,
    ReduceScatter,
    Region,
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
from vyre.foundation.ir.program import Program, output, read, read_write, uniform, workgroup

SCHEDULES = ["forward", "reversed", "lockstep", Schedule.seeded(1), Schedule.seeded(2)]
gid, lid, wg = InvocationId(0), LocalId(0), WorkgroupId(0)


def words(*values):
    return struct.pack(f"<{len(values)}I", *values)


def unwords(data, code="I"):
    return list(struct.unpack(f"<{len(data) // struct.calcsize('<' + code)}{code}", data))


def go(program, *inputs, grid=(1, 1, 1), **options):
    return run(program, inputs, grid=grid, engine="scalar", **options)


def values(buffers, body, *inputs, wg_size=1, grid=1, code="I", **options):
    """The elements of the first output."""
    result = go(Program(buffers, (wg_size, 1, 1), body), *inputs, grid=(grid, 1, 1), **options)
    return unwords(result.outputs[0], code)


def value(expr, dtype=u32, code="I", buffers=(), inputs=()):
    """What one invocation computes."""
    return values([output("out", 0, dtype, 1), *buffers], [Store("out", lit(0), expr)], *inputs, code=code)[0]


# ---- programs of the wire pins --------------------------------------------------------------------------------------

ONE = [read_write("out", 0, u32, 1)]
SUM = [Let("acc", lit(0)), Loop("i", lit(0), lit(4), [Assign("acc", Var("acc") + Var("i"))])]


@pytest.mark.parametrize(
    "body, expected",
    [
        ([Store("out", lit(0), lit(42))], 42),
        ([Store("out", lit(0), lit(1) + lit(2))], 3),
        ([*SUM, Store("out", lit(0), Var("acc"))], 6),
        ([Region("outer", [Region("inner", [Store("out", lit(0), lit(7))])])], 7),
    ],
)
def test_pinned_programs_have_their_known_results(body, expected):
    assert values(ONE, body, words(9)) == [expected]


# ---- expressions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expr, dtype, code, expected",
    [
        (lit(7) - lit(9), u32, "I", 2**32 - 2),
        (lit(-7) // lit(2, i32), i32, "i", -3),
        (lit(5) // lit(3), u32, "I", 1),
        (lit(1.5) * lit(2.0), f32, "f", 3.0),
        (lit(1, i64) - lit(2, i64), i64, "q", -1),
        (lit(0, u64) - lit(1, u64), u64, "Q", 2**64 - 1),
        (lit(0.5, f64) + lit(0.25, f64), f64, "d", 0.75),
        (lit(0.5, f16) + lit(0.25, f16), f16, "e", 0.75),
        (lit(300).cast(u8), u8, "B", 44),
        (lit(200).cast(i8), i8, "b", -56),
        (lit(3) < lit(4), bool_, "I", 1),
        (BinOp(BinaryOp.AND, lit(2), lit(True)), bool_, "I", 1),
        (UnOp(UnaryOp.LOGICAL_NOT, lit(2)), bool_, "I", 0),
        (UnOp(UnaryOp.POPCOUNT, lit(0xFF)), u32, "I", 8),
        (UnOp(UnaryOp.UNPACK8_HIGH, lit(0x1234)), u32, "I", 0x12),
        (UnOp(UnaryOp.UNPACK4_HIGH, lit(0x1234, i32)), u32, "I", 3),
        (UnOp(UnaryOp.SQRT, lit(9.0)), f32, "f", 3.0),
        (UnOp(UnaryOp.IS_NAN, lit(0.0) / lit(0.0)), bool_, "I", 1),
        (Select(lit(0), lit(5), lit(6)), u32, "I", 6),
        (Select(lit(True), lit(5), lit(6)), u32, "I", 5),
        (lit(-1.5).cast(i32), i32, "i", -1),
        (Bitcast(u32, lit(1.0)), u32, "I", 0x3F800000),
        (Bitcast(f32, lit(0x40000000)), f32, "f", 2.0),
        (lit(0.0) / lit(0.0), f32, "I", 0x7FC00000),
        (SubgroupSize(), u32, "I", 32),
        (BufLen("out"), u32, "I", 1),
    ],
)  # fmt: skip
def test_an_expression_has_its_value(expr, dtype, code, expected):
    assert value(expr, dtype, code) == expected


def test_fma_rounds_once_and_a_product_with_a_sum_rounds_twice():
    a = lit(1 + 2**-12)
    assert value(Fma(a, a, lit(-1.0 - 2**-11)), f32, "f") == 2**-24
    assert value(a * a + lit(-1.0 - 2**-11), f32, "f") == 0.0


def test_all_operands_are_evaluated_from_left_to_right():
    bump = Atomic(AtomicOp.ADD, "n", lit(0), lit(1))
    buffers = [output("out", 0, u32, 3), read_write("n", 1, u32, 1)]
    body = [
        Store("out", lit(0), bump * lit(10) + bump),  # 0 * 10 + 1
        Store("out", lit(1), Select(lit(False), bump, bump)),  # 2 and 3
        Let("either", BinOp(BinaryOp.OR, bump.eq(4), bump.eq(5))),
        Store("out", lit(2), bump),
    ]
    assert values(buffers, body, words(0)) == [1, 3, 6]


def test_ids_cover_the_grid_with_x_fastest():
    out = [output("out", 0, u32, 48)]
    x, y, z = (InvocationId(k) for k in range(3))
    linear = x + y * lit(4) + z * lit(24)
    code = WorkgroupId(0) + WorkgroupId(1) * lit(10) + LocalId(0) * lit(100) + LocalId(1) * lit(1000)
    p = Program(out, (2, 3, 1), [Store("out", linear, code + z * lit(10000))])
    found = unwords(go(p, grid=(2, 2, 2)).outputs[0])
    assert found == [
        gx // 2 + gy // 3 * 10 + gx % 2 * 100 + gy % 3 * 1000 + gz * 10000
        for gz in range(2) for gy in range(6) for gx in range(4)
    ]  # fmt: skip


# ---- statements -----------------------------------------------------------------------------------------------------


def test_scopes_end_with_their_list_and_assign_reaches_outwards():
    body = [
        Let("x", lit(1)),
        Block([Let("y", lit(10)), Assign("x", Var("x") + Var("y"))]),
        If(lit(1), [Let("y", lit(100)), Assign("x", Var("x") + Var("y"))], [Assign("x", lit(0))]),
        If(lit(False), [Assign("x", lit(0))], [Let("y", lit(1000)), Assign("x", Var("x") + Var("y"))]),
        Region("r", [Let("y", lit(10000)), Assign("x", Var("x") + Var("y"))]),
        Let("y", Var("x")),
        Store("out", lit(0), Var("y")),
    ]
    assert values(ONE, body, words(0)) == [11111]


@pytest.mark.parametrize("start, stop, trips", [(0, 3, 3), (3, 3, 0), (4, 3, 0), (2**32 - 3, 2**32 - 1, 2)])
def test_a_loop_runs_from_start_to_stop_minus_one(start, stop, trips):
    body = [Let("n", lit(0)), Loop("i", lit(start), lit(stop), [Assign("n", Var("n") + lit(1))])]
    assert values(ONE, [*body, Store("out", lit(0), Var("n"))], words(0)) == [trips]


def test_loop_bounds_are_evaluated_once():
    body = [
        Let("n", lit(3)),
        Let("k", lit(0)),
        Loop("i", lit(0), Var("n"), [Assign("n", lit(100)), Assign("k", Var("k") + Var("i"))]),
        Store("out", lit(0), Var("k")),
    ]
    assert values(ONE, body, words(0)) == [3]


def test_a_let_in_a_loop_body_starts_anew_each_time():
    inner = [Let("x", lit(5)), Assign("x", Var("x") + Var("i")), Assign("s", Var("s") + Var("x"))]
    body = [Let("s", lit(0)), Loop("i", lit(0), lit(3), inner), Store("out", lit(0), Var("s"))]
    assert values(ONE, body, words(0)) == [18]


def test_a_while_loop_is_left_when_its_variable_is_false():
    step = [Assign("n", Var("n") + lit(1)), Assign("go", Var("n") < lit(5))]
    body = [Let("go", lit(True)), Let("n", lit(0)), Loop("i", lit(0), lit(0xFFFFFFFF), [If(Var("go"), step)])]
    result = go(Program(ONE, (1, 1, 1), [*body, Store("out", lit(0), Var("n"))]), words(0), max_steps=100)
    assert unwords(result.outputs[0]) == [5]


def test_a_loop_whose_only_if_tests_the_loop_variable_is_not_a_while():
    body = [Let("n", lit(0)), Loop("i", lit(0), lit(4), [If(Var("i"), [Assign("n", Var("n") + Var("i"))])])]
    assert values(ONE, [*body, Store("out", lit(0), Var("n"))], words(0)) == [6]


def test_return_ends_one_invocation_even_inside_a_loop():
    body = [
        Loop("i", lit(0), lit(10), [If(Var("i").eq(gid), [Return()]), Store("out", gid, Var("i") + lit(1))]),
        Store("out", gid, lit(99)),
    ]
    assert values([output("out", 0, u32, 3)], body, wg_size=3) == [0, 1, 2]


def test_deep_nesting_neither_compiles_nor_runs_by_recursion():
    from vyre.backends.reference.engines import scalar
    from vyre.backends.reference.engines.memory import Memory, Options

    e = lit(0)
    for _ in range(5_000):
        e = lit(1) + e
    node = Store("out", lit(0), e)
    for _ in range(2_000):
        node = If(lit(True), [node])
    p = Program(ONE, (1, 1, 1), [node])
    memory = Memory.build(p, [words(0)])
    scalar.execute(p, memory, (1, 1, 1), Options())
    assert unwords(memory.outputs()[0]) == [5_000]


# ---- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype, code, number",
    [(u8, "B", 200), (i8, "b", -3), (u16, "H", 60000), (i16, "h", -300), (f16, "e", 1.5), (u64, "Q", 2**40),
     (f64, "d", 0.1), (f32, "f", 2.5), (i64, "q", -(2**40)), (i32, "i", -5), (bf16, "H", 0x3FC0)],
)  # fmt: skip
def test_an_element_moves_alone_even_at_an_odd_offset(dtype, code, number):
    data = struct.pack(f"<3{code}", 1, number, 1)
    buffers = [read("x", 0, dtype), read_write("y", 1, dtype)]
    found = values(buffers, [Store("y", lit(1), Load("x", lit(1)))], data, struct.pack(f"<3{code}", 7, 7, 7), code=code)
    assert found == [7, number, 7]


def test_any_word_that_is_not_zero_reads_as_true_and_is_stored_as_one():
    buffers = [output("out", 0, bool_, 3), read("x", 1, bool_, 3)]
    assert values(buffers, [Store("out", gid, Load("x", gid))], words(0, 2, 2**31), wg_size=3) == [0, 1, 1]


def test_an_f32_copy_flushes_subnormals_and_settles_nan():
    buffers = [output("out", 0, f32, 3), read("x", 1, f32, 3)]
    found = values(buffers, [Store("out", gid, Load("x", gid))], words(1, 0x80000001, 0xFFC12345), wg_size=3)
    assert found == [0, 0x80000000, 0x7FC00000]


def test_accesses_beyond_the_end_are_absorbed_and_counted():
    bump = Atomic(AtomicOp.ADD, "n", gid, lit(1))
    buffers = [output("out", 0, u32, 2), read("x", 1, u32), read_write("n", 2, u32, 1)]
    body = [Let("old", bump), Store("out", gid, Load("x", gid + lit(1)) + lit(10) + Var("old"))]
    result = go(Program(buffers, (4, 1, 1), body), words(5, 6), words(7))
    assert unwords(result.outputs[0]) == [23, 10]
    assert unwords(result.outputs[1]) == [8]
    assert result.oob == OobReport(loads=3, stores=2, atomics=3)
    assert result.oob


def test_accesses_inside_leave_an_empty_report():
    result = go(Program(ONE, (1, 1, 1), [Store("out", lit(0), lit(1))]), words(0))
    assert result.oob == OobReport()
    assert not result.oob


def test_index_arithmetic_wraps_before_the_check():
    buffers = [output("out", 0, u32, 4)]
    assert values(buffers, [Store("out", lit(0xFFFFFFFF) + lit(3), lit(9))]) == [0, 0, 9, 0]


def test_an_empty_buffer_has_length_zero_and_absorbs_everything():
    buffers = [output("out", 0, u32, 2), read("x", 1, u32), read_write("y", 2, u8)]
    body = [Store("out", lit(0), BufLen("x")), Store("out", lit(1), Load("x", lit(0))), Store("y", lit(0), lit(1, u8))]
    result = go(Program(buffers, (1, 1, 1), body), b"", b"")
    assert result.outputs == [words(0, 0), b""]
    assert result.oob == OobReport(loads=1, stores=1)


def test_outputs_read_zero_where_nothing_is_stored():
    assert values([output("out", 0, u32, 4)], [Store("out", lit(2), lit(1))]) == [0, 0, 1, 0]


def test_a_uniform_is_read_by_every_invocation():
    buffers = [output("out", 0, f32, 2), uniform("k", 1, f32, 1)]
    body = [Store("out", gid, Load("k", lit(0)))]
    assert values(buffers, body, struct.pack("<f", 2.5), wg_size=2, code="f") == [2.5, 2.5]


# ---- atomics --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "op, dtype, before, operand, after",
    [
        (AtomicOp.ADD, u32, 2**32 - 1, 2, 1), (AtomicOp.OR, u32, 5, 2, 7), (AtomicOp.AND, u32, 7, 5, 5),
        (AtomicOp.XOR, u32, 7, 5, 2), (AtomicOp.MIN, u32, 2**32 - 1, 3, 3), (AtomicOp.MAX, u32, 2**31, 3, 2**31),
        (AtomicOp.EXCHANGE, u32, 7, 5, 5), (AtomicOp.MIN, i32, -1, 3, -1), (AtomicOp.MAX, i32, -1, 3, 3),
        (AtomicOp.ADD, i32, 2**31 - 1, 1, -(2**31)),
    ],
)  # fmt: skip
def test_an_atomic_changes_the_element_and_returns_what_was_there(op, dtype, before, operand, after):
    code = "i" if dtype is i32 else "I"
    buffers = [output("out", 0, dtype, 1), read_write("x", 1, dtype, 1)]
    body = [Store("out", lit(0), Atomic(op, "x", lit(0), lit(operand, dtype)))]
    result = go(Program(buffers, (1, 1, 1), body), struct.pack("<" + code, before))
    assert [unwords(o, code) for o in result.outputs] == [[before], [after]]


@pytest.mark.parametrize("expected, after", [(7, 9), (8, 7)])
def test_compare_exchange_writes_only_over_the_expected_value(expected, after):
    cas = Atomic(AtomicOp.COMPARE_EXCHANGE, "x", lit(0), lit(9), lit(expected))
    buffers = [output("out", 0, u32, 1), read_write("x", 1, u32, 1)]
    result = go(Program(buffers, (1, 1, 1), [Store("out", lit(0), cas)]), words(7))
    assert result.outputs == [words(7), words(after)]


HISTOGRAM = Program(
    [read("x", 0, u32), read_write("bins", 1, u32, 4)],
    (8, 1, 1),
    [If(gid < BufLen("x"), [Let("old", Atomic(AtomicOp.ADD, "bins", Load("x", gid) % lit(4), lit(1)))])],
)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_histogram_is_the_same_under_every_schedule(schedule):
    result = go(HISTOGRAM, words(*range(30)), words(0, 0, 0, 100), grid=(4, 1, 1), schedule=schedule)
    assert unwords(result.outputs[0]) == [8, 8, 7, 107]


# ---- barriers -------------------------------------------------------------------------------------------------------

TREE_SUM = Program(
    [read("x", 0, u32), output("out", 1, u32, 3), workgroup("tile", u32, 8)],
    (8, 1, 1),
    [
        Store("tile", lid, Load("x", gid)),
        Barrier(),
        Let("s", lit(4)),
        Loop("k", lit(0), lit(3), [
            If(lid < Var("s"), [Store("tile", lid, Load("tile", lid) + Load("tile", lid + Var("s")))]),
            Barrier(),
            Assign("s", Var("s") >> lit(1)),
        ]),
        If(lid.eq(0), [Store("out", wg, Load("tile", lit(0)))]),
    ],
)  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_tree_sum_in_shared_memory_is_the_same_under_every_schedule(schedule):
    result = go(TREE_SUM, words(*range(24)), grid=(3, 1, 1), schedule=schedule)
    assert unwords(result.outputs[0]) == [sum(range(8)), sum(range(8, 16)), sum(range(16, 24))]
    assert not result.oob


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_shared_memory_is_zero_when_a_workgroup_starts(schedule):
    buffers = [output("out", 0, u32, 6), workgroup("tile", u32, 2)]
    body = [Store("out", gid, Load("tile", lid)), Barrier(), Store("tile", lid, lit(0xA5A5A5A5))]
    assert values(buffers, body, wg_size=2, grid=3, schedule=schedule) == [0] * 6


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_grid_wide_barrier_makes_every_workgroup_wait(schedule):
    buffers = [output("out", 0, u32, 8), read_write("x", 1, u32, 8)]
    body = [
        Store("x", gid, gid * gid),
        Barrier(Ordering.GRID_SYNC),
        Store("out", gid, Load("x", lit(7) - gid)),
    ]
    result = go(Program(buffers, (2, 1, 1), body), bytes(32), grid=(4, 1, 1), schedule=schedule)
    assert unwords(result.outputs[0]) == [k * k for k in reversed(range(8))]


def run_unchecked(program, inputs=(), schedule="forward", grid=(1, 1, 1)):
    """Past the validator, which refuses what these tests need."""
    from vyre.backends.reference.engines import scalar
    from vyre.backends.reference.engines.memory import Memory, Options

    return scalar.execute(program, Memory.build(program, inputs), grid, Options(Schedule.of(schedule)))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("orelse", [[Barrier()], [Let("all", SubgroupBallot(lit(True)))]])
def test_invocations_that_wait_at_two_places_are_an_error_and_no_hang(orelse, schedule):
    p = Program([], (2, 1, 1), [If(lid.eq(0), [Barrier()], orelse)])
    with pytest.raises(InvalidProgram, match=r"wait at .*Fix: move the barrier"):
        run_unchecked(p, schedule=schedule)


@pytest.mark.parametrize("kind", [Ordering.SEQ_CST, Ordering.GRID_SYNC])
def test_a_barrier_does_not_wait_for_invocations_that_have_ended(kind):
    p = Program([], (4, 1, 1), [If(lid < lit(2), [Return()]), Barrier(kind)])
    assert run_unchecked(p, grid=(2, 1, 1)).steps == 8 + 4 + 4


def test_a_race_free_hand_over_by_atomic_slot_depends_on_the_schedule():
    body = [Let("slot", Atomic(AtomicOp.ADD, "n", lit(0), lit(1))), Store("out", Var("slot"), gid)]
    p = Program([output("out", 0, u32, 8), read_write("n", 1, u32, 1)], (4, 1, 1), body)
    found = {}
    for schedule in ("forward", "reversed", Schedule.seeded(0)):
        result = go(p, words(0), grid=(2, 1, 1), schedule=schedule, detect_races=True)
        assert result.races == ()
        found[schedule] = unwords(result.outputs[0])
        assert sorted(found[schedule]) == list(range(8))
    assert found["forward"] == list(range(8))
    assert found["reversed"] == list(reversed(range(8)))
    assert len({tuple(f) for f in found.values()}) == 3


def test_a_seed_is_a_schedule_one_can_repeat():
    body = [Let("slot", Atomic(AtomicOp.ADD, "n", lit(0), lit(1))), Store("out", Var("slot"), gid)]
    p = Program([output("out", 0, u32, 16), read_write("n", 1, u32, 1)], (4, 1, 1), body)
    runs = [go(p, words(0), grid=(4, 1, 1), schedule=Schedule.seeded(s)).outputs[0] for s in (5, 5, 6)]
    assert runs[0] == runs[1] != runs[2]


def test_in_lockstep_every_invocation_of_every_workgroup_takes_a_statement_before_one_takes_the_next():
    bump = Atomic(AtomicOp.ADD, "n", lit(0), lit(1))
    body = [Let("a", bump), Let("b", bump), Store("out", gid, Var("b") * lit(100) + Var("a"))]
    p = Program([output("out", 0, u32, 8), read_write("n", 1, u32, 1)], (4, 1, 1), body)
    found = unwords(go(p, words(0), grid=(2, 1, 1), schedule="lockstep").outputs[0])
    assert found == [(k + 8) * 100 + k for k in range(8)]


@pytest.mark.parametrize("schedule", ["backward", "seeded", 3, Schedule("sideways")])
def test_an_unknown_schedule_is_refused(schedule):
    with pytest.raises(ValueError, match=r"is not a schedule.*Fix: use"):
        go(Program.empty(), schedule=schedule)


# ---- subgroups ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_subgroups_are_32_consecutive_lanes_and_the_last_may_be_partial(schedule):
    buffers = [output("out", 0, u32, 40)]
    body = [Store("out", lid, SubgroupReduce(ReduceOp.ADD, lid) + SubgroupLocalId() * lit(1000))]
    full, partial = sum(range(32)), sum(range(32, 40))
    expected = [full + k * 1000 for k in range(32)] + [partial + k * 1000 for k in range(8)]
    assert values(buffers, body, wg_size=40, schedule=schedule) == expected


@pytest.mark.parametrize(
    "op, expected",
    [(ReduceOp.MUL, 6), (ReduceOp.MIN, 1), (ReduceOp.MAX, 3), (ReduceOp.AND, 0), (ReduceOp.OR, 3), (ReduceOp.XOR, 0)],
)
def test_missing_lanes_contribute_the_identity(op, expected):
    buffers = [output("out", 0, u32, 3)]
    assert values(buffers, [Store("out", lid, SubgroupReduce(op, lid + lit(1)))], wg_size=3) == [expected] * 3


def test_an_f32_sum_follows_the_butterfly():
    data = [1e8, 1.0, -1e8, 1.0] + [0.0] * 28
    buffers = [output("out", 0, f32, 32), read("x", 1, f32, 32)]
    body = [Store("out", lid, SubgroupReduce(ReduceOp.ADD, Load("x", lid)))]
    # distance 2 pairs 1e8 with -1e8 and 1 with 1 before distance 1 joins them; lane order would lose a 1
    assert values(buffers, body, struct.pack("<32f", *data), wg_size=32, code="f") == [2.0] * 32


def test_a_missing_lane_of_a_float_sum_keeps_the_sign_of_zero():
    buffers = [output("out", 0, f32, 1)]
    assert values(buffers, [Store("out", lid, SubgroupReduce(ReduceOp.ADD, -lit(0.0)))]) == [0x80000000]


def test_shuffle_from_a_missing_lane_gives_zero():
    buffers = [output("out", 0, u32, 4)]
    body = [Store("out", lid, SubgroupShuffle(lid + lit(10), Select(lid.eq(3), lit(0xFFFFFFFF), lid + lit(1))))]
    assert values(buffers, body, wg_size=4) == [11, 12, 13, 0]


def test_a_ballot_has_a_bit_for_each_lane_that_says_yes():
    buffers = [output("out", 0, u32, 34)]
    body = [Store("out", lid, SubgroupBallot(lid % lit(2)))]
    assert values(buffers, body, wg_size=34) == [0xAAAAAAAA] * 32 + [2] * 2


def test_lanes_that_have_returned_count_as_missing():
    p = Program([output("out", 0, u32, 4)], (4, 1, 1), [
        If(lid.eq(1), [Return()]),
        Store("out", lid, SubgroupReduce(ReduceOp.ADD, lid) + SubgroupBallot(lit(True)) * lit(100)
              + SubgroupShuffle(lid + lit(5), lit(1)) * lit(10_000)),
    ])  # fmt: skip
    from vyre.backends.reference.engines import scalar
    from vyre.backends.reference.engines.memory import Memory, Options

    for schedule in SCHEDULES:
        memory = Memory.build(p, [])
        scalar.execute(p, memory, (1, 1, 1), Options(Schedule.of(schedule)))
        assert unwords(memory.outputs()[0]) == [1305, 0, 1305, 1305]


def test_two_subgroup_operations_in_one_expression_meet_twice():
    buffers = [output("out", 0, u32, 4)]
    inner = SubgroupReduce(ReduceOp.MAX, lid)
    body = [Store("out", lid, SubgroupReduce(ReduceOp.ADD, inner + lid))]
    assert values(buffers, body, wg_size=4) == [18] * 4


# ---- async copies ---------------------------------------------------------------------------------------------------

COPY = [read("x", 0, u8), read_write("y", 1, u8)]


@pytest.mark.parametrize(
    "offset, size, expected",
    [(0, 4, b"abcd...."), (2, 3, b"cde....."), (6, 4, b"gh\0\0...."), (9, 2, b"\0\0......"), (0, 0, b"........"),
     (1, 0xFFFFFFFF, b"bcdefgh\0")],
)  # fmt: skip
def test_async_load_copies_a_byte_range_to_the_start(offset, size, expected):
    body = [AsyncLoad("x", "y", lit(offset), lit(size), "t"), AsyncWait("t")]
    assert go(Program(COPY, (1, 1, 1), body), b"abcdefgh", b"........").outputs == [expected]


@pytest.mark.parametrize(
    "offset, size, expected",
    [
        (0, 4, b"abcd...."),
        (2, 3, b"..abc..."),
        (6, 4, b"......ab"),
        (9, 2, b"........"),
        (0, 0xFFFFFFFF, b"abc\0\0\0\0\0"),
    ],
)
def test_async_store_copies_the_start_to_a_byte_offset(offset, size, expected):
    source = b"abc" if size > 8 else b"abcdefgh"
    body = [AsyncStore("x", "y", lit(offset), lit(size), "t"), AsyncWait("t")]
    assert go(Program(COPY, (1, 1, 1), body), source, b"........").outputs == [expected]


def test_an_async_payload_is_taken_at_the_start_and_seen_after_the_wait():
    buffers = [output("out", 0, u32, 2), read_write("x", 1, u32, 1), workgroup("tile", u32, 1)]
    body = [
        AsyncLoad("x", "tile", lit(0), lit(4), "t"),
        Store("x", lit(0), lit(9)),
        Store("out", lit(0), Load("tile", lit(0)) + lit(100)),
        AsyncWait("t"),
        Store("out", lit(1), Load("tile", lit(0))),
    ]
    assert go(Program(buffers, (1, 1, 1), body), words(5)).outputs == [words(100, 5), words(9)]


START, WAIT = AsyncLoad("x", "y", lit(0), lit(1), "t"), AsyncWait("t")
LATER = BufLen("x") > lit(100)


@pytest.mark.parametrize(
    "body, message",
    [
        ([START, START, WAIT], "already in flight"),
        ([If(LATER, [START]), WAIT], "was not started"),
        ([START, If(LATER, [WAIT])], "ended while async copy"),
        ([START, If(~BufLen("x"), [Return()]), WAIT], "ended while async copy"),
    ],
)
def test_async_copies_that_do_not_pair_up_are_reported(body, message):
    from vyre.backends.reference.engines import scalar
    from vyre.backends.reference.engines.memory import Memory, Options

    p = Program(COPY, (1, 1, 1), body)
    with pytest.raises(DispatchFailed, match=f"{message}.*Fix: "):
        scalar.execute(p, Memory.build(p, [b"a", b"b"]), (1, 1, 1), Options())


# ---- collectives, trap, limits --------------------------------------------------------------------------------------


def test_collectives_of_one_rank_change_nothing_or_copy():
    buffers = [read("x", 0, u32, 2), read_write("y", 1, u32, 2), read_write("z", 2, u32, 2)]
    body = [
        AllReduce("y", CollectiveOp.SUM, 0),
        Broadcast("y", 0, 0),
        AllGather("y", "z", 0),
        ReduceScatter("x", "y", CollectiveOp.MAX, 0),
    ]
    result = go(Program(buffers, (1, 1, 1), body), words(1, 2), words(3, 4), words(5, 6))
    assert result.outputs == [words(1, 2), words(3, 4)]


def test_a_trap_names_its_address_and_leaves_no_output():
    body = [Store("out", gid, lit(1)), If(gid.eq(2), [ir.Trap(gid + lit(5), "bad input")])]
    data = bytearray(words(0, 0, 0, 0))
    with pytest.raises(Trap, match=r"bad input") as e:
        go(Program([read_write("out", 0, u32, 4)], (4, 1, 1), body), data)
    assert (e.value.context["address"], e.value.context["tag"]) == (7, "bad input")
    assert e.value.context["invocation"] == (2, 0, 0)
    assert data == words(0, 0, 0, 0)


FOREVER = Program(ONE, (1, 1, 1), [Loop("i", lit(0), lit(0xFFFFFFFF), [])])


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_an_endless_loop_ends_at_the_step_limit(schedule):
    with pytest.raises(StepLimitExceeded, match=r"max_steps=500.*Fix: raise max_steps"):
        go(FOREVER, words(0), max_steps=500, schedule=schedule)


def test_the_step_limit_is_exact():
    p = Program(ONE, (2, 1, 1), [*SUM, Store("out", gid, Var("acc"))])
    steps = go(p, words(0)).steps
    assert steps == 2 * (1 + 1 + 4 + 4 + 1)  # let, loop, four assignments in four iterations, store
    assert go(p, words(0), max_steps=steps).steps == steps
    with pytest.raises(StepLimitExceeded):
        go(p, words(0), max_steps=steps - 1)


def test_a_deadline_ends_a_loop():
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"Fix: allow more time"):
        go(FOREVER, words(0), deadline=started + 0.05)
    assert time.monotonic() - started >= 0.05


def test_a_deadline_in_the_past_runs_nothing():
    with pytest.raises(DeadlineExceeded):
        go(Program.empty(), deadline=time.monotonic() - 1)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_deadline_ends_a_grid_without_statements(schedule):
    with pytest.raises(DeadlineExceeded):
        go(Program.empty(), grid=(2**31, 1, 1), deadline=time.monotonic() + 0.02, schedule=schedule)


# ---- every valid program --------------------------------------------------------------------------------------------


SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SETTINGS
@given(valid_programs(), st.integers(0, 99))
def test_deterministic_programs_have_one_result_under_every_schedule_and_no_race(case, seed):
    results = [
        go(case.program, *case.inputs, grid=case.grid, output_elements=case.output_elements, **options)
        for options in (
            {"detect_races": True},
            {"schedule": "reversed"},
            {"schedule": Schedule.seeded(seed), "detect_races": True},
        )
    ]
    assert [r.races for r in results] == [()] * 3
    first = results[0]
    assert all((r.outputs, r.oob, r.steps) == (first.outputs, first.oob, first.steps) for r in results)
