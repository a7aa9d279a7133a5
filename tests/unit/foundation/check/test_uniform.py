"""Barriers and subgroup operations stand where a whole workgroup arrives, and nowhere else."""

from itertools import pairwise

import pytest

from vyre.foundation.check.uniform import divergences
from vyre.foundation.ir.dtypes import u32
from vyre.foundation.ir.nodes import (
    Assign,
    Atomic,
    Barrier,
    Block,
    BufLen,
    Call,
    If,
    InvocationId,
    Let,
    Load,
    LocalId,
    Loop,
    Opaque,
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
from vyre.foundation.ir.ops import AtomicOp, OpaqueOp, Ordering, ReduceOp
from vyre.foundation.ir.program import Program, read, read_write, uniform, workgroup, write_only

LID, WG, BAR = LocalId(0), WorkgroupId(0), Barrier()
BUFFERS = [
    read("ro", 0, u32),
    read_write("rw", 1, u32),
    uniform("un", 2, u32, 4),
    write_only("wo", 3, u32),
    workgroup("tile", u32, 64),
]
SUM = SubgroupReduce(ReduceOp.ADD, lit(1))


def found(*body, **options):
    return [(d.code.value, d.path[2:]) for d in divergences(Program(BUFFERS, (64, 1, 1), body), **options)]


def codes(*body, **options):
    return [code for code, _ in found(*body, **options)]


def under(condition):
    return codes(If(condition, (BAR,)))


@pytest.mark.parametrize(
    "condition",
    [
        lit(True),
        WG < 3,
        BufLen("rw") > 4,
        SubgroupSize().eq(32),
        Load("ro", WG) > 1,
        Load("un", lit(0)) > 1,
        Load("ro", Load("un", WG)) > BufLen("wo"),
        Select(WG < 3, lit(1), lit(2)) > 1,
    ],
)
def test_uniform_conditions(condition):
    assert under(condition) == []


@pytest.mark.parametrize(
    "condition",
    [
        LID < 3,
        InvocationId(1) < 3,
        SubgroupLocalId() < 3,
        Load("rw", lit(0)) > 1,
        Load("tile", lit(0)) > 1,
        Load("ro", LID) > 1,
        Load("un", InvocationId(0)) > 1,
        Atomic(AtomicOp.ADD, "rw", lit(0), lit(1)) > 1,
        Call("x", ()),
        Opaque("x", b""),
        UnOp(OpaqueOp(1 << 31), lit(1)),
        Var("unknown") > 1,
        SUM > 1,
        SubgroupBallot(lit(True)) > 1,
        SubgroupShuffle(lit(1), lit(1)) > 1,
        (WG < 3).eq(LID < 3),
    ],
)
def test_divergent_conditions(condition):
    assert under(condition) == ["V010"]


def test_both_branches_of_a_divergent_condition_diverge_and_the_rest_does_not():
    assert found(If(LID < 3, (BAR,), (BAR,)), BAR) == [
        ("V010", ("body", 0, "then", 0)),
        ("V010", ("body", 0, "orelse", 0)),
    ]


def test_a_name_carries_the_divergence_of_its_value():
    assert codes(Let("x", LID), If(Var("x") > 1, (BAR,))) == ["V010"]
    assert codes(Let("x", WG), If(Var("x") > 1, (BAR,))) == []
    assert codes(Let("x", WG), Let("y", Var("x") + 1), Block((If(Var("y") > 1, (BAR,)),))) == []


def test_a_uniform_value_assigned_in_a_divergent_branch_diverges():
    assert codes(Let("x", lit(0)), If(LID < 3, (Assign("x", lit(1)),)), If(Var("x") > 0, (BAR,))) == ["V010"]
    assert codes(Let("x", lit(0)), If(WG < 3, (Assign("x", lit(1)),)), If(Var("x") > 0, (BAR,))) == []


def test_what_diverges_late_in_a_loop_diverges_early_in_the_next_round():
    def loop(last):
        return Let("x", lit(0)), Loop("i", lit(0), lit(4), (If(Var("x") > 0, (BAR,)), Assign("x", last)))

    assert codes(*loop(LID)) == ["V010"]
    assert codes(*loop(WG)) == []


def test_a_chain_of_names_through_a_loop_is_followed_backwards():
    names = [f"x{i}" for i in range(50)]
    shift = [Assign(a, Var(b)) for a, b in pairwise(names)]
    body = (*shift, If(Var("x0") > 0, (BAR,)))
    lets = [Let(n, lit(0)) for n in names]
    assert codes(*lets, Loop("i", lit(0), lit(99), (*body, Assign("x49", LID)))) == ["V010"]
    assert codes(*lets, Loop("i", lit(0), lit(99), (*body, Assign("x49", WG)))) == []


def test_loops_diverge_with_their_bounds():
    assert codes(Loop("i", lit(0), LID, (BAR,))) == ["V010"]
    assert codes(Loop("i", LID, lit(9), (BAR,))) == ["V010"]
    assert codes(Loop("i", lit(0), BufLen("ro"), (BAR, If(Var("i") > 2, (BAR,))))) == []
    assert codes(Loop("i", lit(0), LID, (If(Var("i") > 2, (BAR,)),)), BAR) == ["V010"]


def while_loop(condition, *body):
    inner = (Assign("go", condition), If(Var("go"), body))
    return Let("go", lit(True)), Loop("r", lit(0), lit(0xFFFFFFFF), (If(Var("go"), inner),))


def test_a_while_over_uniform_values_is_uniform():
    assert codes(Let("n", WG), *while_loop(Var("n") > 0, BAR, Assign("n", Var("n") - 1)), BAR) == []


def test_a_while_over_divergent_values_is_not_but_meets_after():
    body = Let("n", LID), *while_loop(Var("n") > 0, BAR, Assign("n", Var("n") - 1)), BAR
    assert [path[:2] for _, path in found(*body)] == [("body", 2)]


def test_a_break_on_a_divergent_condition_makes_the_loop_divergent():
    stop = If(LID > 3, (Assign("go", lit(False)),))
    assert codes(Let("n", WG), *while_loop(Var("n") > 0, BAR, stop)) == ["V010"]


def test_a_divergent_return_makes_later_barriers_divergent():
    leave = If(LID < 3, (Return(),))
    assert codes(leave, BAR) == ["V010"]
    assert codes(BAR, leave) == []
    assert codes(Block((leave,)), Block((BAR,))) == ["V010"]
    assert codes(leave, BAR, barrier_ignores_exited=True) == []
    assert codes(If(WG < 3, (Return(),)), BAR) == []


def test_a_return_in_one_branch_does_not_touch_the_other():
    leave = If(LID < 3, (Return(),))
    assert codes(If(WG < 3, (leave,), (BAR,))) == []
    assert codes(If(WG < 3, (leave,), (BAR,)), BAR) == ["V010"]
    assert codes(If(WG < 3, (Let("x", lit(1)),), (leave,)), BAR) == ["V010"]


def test_a_divergent_return_late_in_a_loop_reaches_its_next_round():
    leave = If(LID < 3, (Return(),))
    assert codes(Loop("i", lit(0), lit(4), (BAR, leave))) == ["V010"]
    assert codes(Loop("i", lit(0), lit(4), (BAR, leave)), barrier_ignores_exited=True) == []
    assert codes(Loop("i", lit(0), lit(4), (Loop("j", lit(0), lit(4), (BAR,)), leave))) == ["V010"]


def test_grid_wide_barriers_are_judged_elsewhere():
    assert codes(If(LID < 3, (Barrier(Ordering.GRID_SYNC),))) == []


@pytest.mark.parametrize("op", [SUM, SubgroupShuffle(lit(1), lit(2)), SubgroupBallot(lit(True))])
def test_subgroup_operations_need_uniform_flow(op):
    assert codes(Let("x", op)) == []
    assert found(If(LID < 3, (Let("x", lit(1) + op),))) == [("V203", ("body", 0, "then", 0, "value", "right"))]
    assert codes(If(LID < 3, (If(op > 1, ()),))) == ["V203"]
    assert codes(If(LID < 3, (Store("rw", op, lit(1)),))) == ["V203"]
    assert codes(If(op > 1, ())) == []
    assert codes(Loop("i", lit(0), LID, (Let("x", op),))) == ["V203"]
    assert codes(If(LID < 3, (Return(),)), Let("x", op), barrier_ignores_exited=True) == ["V203"]


def test_lane_numbers_need_none():
    assert codes(If(LID < 3, (Let("x", SubgroupLocalId() + SubgroupSize()),))) == []


def test_names_of_sister_scopes_are_kept_apart():
    assert codes(Block((Let("x", LID),)), Block((Let("x", WG), If(Var("x") > 1, (BAR,))))) == []


def test_deep_nesting_needs_no_stack():
    node = BAR
    for _ in range(1_500):
        node = Block((node,))
    assert codes(node) == []
