"""A grid-wide barrier cuts a program into launches that mean the same, or the program is refused by name."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vyre.errors import InvalidProgram
from vyre.foundation.check.gridsync import contains_grid_sync, free_names, segments, touched
from vyre.foundation.check.validate import Capabilities, validate
from vyre.foundation.ir.dtypes import u32
from vyre.foundation.ir.nodes import (
    AllGather,
    AllReduce,
    Assign,
    AsyncLoad,
    Atomic,
    Barrier,
    Block,
    Broadcast,
    BufferRef,
    BufLen,
    Call,
    If,
    IndirectDispatch,
    InvocationId,
    Let,
    Load,
    Loop,
    Opaque,
    ReduceScatter,
    Region,
    Return,
    Store,
    SubgroupReduce,
    UnOp,
    Var,
    WorkgroupId,
    lit,
)
from vyre.foundation.ir.ops import AtomicOp, CollectiveOp, OpaqueOp, Ordering, ReduceOp
from vyre.foundation.ir.program import ROOT_GENERATOR, Program, read, read_write, workgroup

SYNC, GID = Barrier(Ordering.GRID_SYNC), InvocationId(0)
A, B, C = (Store("dst", GID, lit(n)) for n in (1, 2, 3))
X = Var("x")
USE = Store("dst", GID, X)
BUFFERS = [read("src", 0, u32), read_write("dst", 1, u32), read_write("other", 2, u32), workgroup("tile", u32, 64)]


def program(*body, **options):
    return Program(BUFFERS, (64, 1, 1), body, **options)


def bodies(p):
    return [s.program.entry for s in segments(p)]


def root(*body):
    return (Region(ROOT_GENERATOR, body),)


@pytest.mark.row("B-GS-01")
@pytest.mark.parametrize("count", [0, 1, 3])
def test_n_barriers_make_n_plus_one_segments(count):
    p = program(A, *[SYNC, B] * count)
    assert contains_grid_sync(p) == (count > 0)
    assert bodies(p) == [root(A)] + [root(B)] * count


def test_a_program_without_grid_barrier_is_its_own_segment():
    p = program(A, Barrier(), B)
    (only,) = segments(p)
    assert only.program is p
    assert not contains_grid_sync(p)


@pytest.mark.row("B-GS-01")
def test_buffers_workgroup_and_identity_are_kept():
    p = program(A, SYNC, B, op_id="a.b", exclusive=True)
    for s in segments(p):
        assert s.program.buffers == p.buffers
        assert (s.program.workgroup_size, s.program.entry_op_id, s.program.exclusive) == ((64, 1, 1), "a.b", True)


@pytest.mark.row("B-GS-01")
def test_containers_are_split_and_wrapped_again():
    p = program(Block((A, SYNC, B)), C)
    assert bodies(p) == [root(Block((A,))), root(Block((B,)), C)]
    nested = program(Region("outer", (Block((A, SYNC, SYNC, B)), C), "why"))
    wrap = lambda *body: (Region("outer", body, "why"),)  # noqa: E731
    assert bodies(nested) == [wrap(Block((A,))), wrap(Block(())), wrap(Block((B,)), C)]


def test_several_regions_are_cut_where_the_barrier_is():
    p = Program(BUFFERS, (1, 1, 1), [Region("a", (A, SYNC, B)), Region("b", (C,))])
    assert bodies(p) == [(Region("a", (A,)),), (Region("a", (B,)), Region("b", (C,)))]


def test_empty_segments_are_kept():
    assert bodies(program(SYNC, SYNC)) == [root(), root(), root()]


@pytest.mark.row("B-GS-01")
def test_other_barriers_stay_where_they_are():
    p = program(A, Barrier(), B, SYNC, Barrier(Ordering.ACQ_REL), C)
    assert bodies(p) == [root(A, Barrier(), B), root(Barrier(Ordering.ACQ_REL), C)]


def test_pure_lets_are_computed_again_in_the_order_of_definition():
    b, a = Let("b", GID), Let("a", Var("b") + 1)
    p = program(Let("unused", lit(1)), b, a, SYNC, A, SYNC, Store("dst", Var("a"), lit(1)))
    first, second, third = segments(p)
    assert first.live_in == second.live_in == ()
    assert second.program.entry == root(A)
    assert third.program.entry == root(b, a, Store("dst", Var("a"), lit(1)))
    assert third.live_in == ("b", "a")


def test_a_let_is_computed_again_in_its_own_scope():
    one, two = Let("x", lit(1)), Let("x", lit(2))
    p = program(Block((one, SYNC, USE)), Block((two, USE)))
    assert bodies(p)[1] == root(Block((one, USE)), Block((two, USE)))
    assert validate(segments(p)[1].program) == []


def test_an_inner_scope_takes_from_an_outer_one():
    x, y = Let("x", GID), Let("y", X + 1)
    p = program(x, Block((y, SYNC, Store("dst", Var("y"), lit(1)))))
    assert bodies(p)[1] == root(x, Block((y, Store("dst", Var("y"), lit(1)))))
    assert segments(p)[1].live_in == ("y", "x")


def test_uses_in_branches_and_loops_count():
    x = Let("x", GID)
    for use in (
        If(X > 1, ()),
        If(lit(True), (), (USE,)),
        Loop("i", X, lit(3), ()),
        Loop("i", lit(0), lit(3), (USE,)),
        Block((Let("y", X),)),
    ):
        assert bodies(program(x, SYNC, use))[1] == root(x, use)
    for no_use in (Block((Let("x", lit(2)), USE)), Loop("x", lit(0), lit(3), (USE,))):
        assert segments(program(Block((x, SYNC, A)), no_use))[1].live_in == ()


def test_a_load_may_be_repeated_only_while_nobody_writes():
    x = Let("x", Load("src", GID))
    assert bodies(program(x, A, SYNC, USE))[1] == root(x, USE)
    own = Let("x", Load("dst", GID))
    elsewhere = Store("other", GID, X)
    assert bodies(program(A, SYNC, own, elsewhere, SYNC, elsewhere))[2] == root(own, elsewhere)
    for body in (
        (own, A, SYNC, elsewhere),  # written before the barrier
        (own, SYNC, A, SYNC, elsewhere),  # written between
        (own, SYNC, Store("dst", GID + 1, X)),  # written by another invocation while this one reads again
        (own, Let("_", Atomic(AtomicOp.ADD, "dst", GID, lit(1))), SYNC, elsewhere),
    ):
        with pytest.raises(
            InvalidProgram, match="local 'x' is live across a grid-wide barrier and its value reads 'dst'"
        ):
            segments(program(*body))


@pytest.mark.row("B-GS-07")
@pytest.mark.parametrize(
    "value, why",
    [
        (Atomic(AtomicOp.ADD, "other", lit(0), lit(1)), "has a side effect"),
        (SubgroupReduce(ReduceOp.ADD, GID), "exchanges data"),
        (Call("x", ()), "nothing is known"),
        (Opaque("x", b""), "nothing is known"),
        (UnOp(OpaqueOp(1 << 31), GID), "nothing is known"),
    ],
)
def test_an_impure_value_cannot_cross(value, why):
    with pytest.raises(InvalidProgram, match=why) as caught:
        segments(program(Let("x", value), SYNC, USE))
    assert "'x'" in str(caught.value)
    assert caught.value.context["code"] == "V202"
    assert segments(program(Let("x", value), USE, SYNC, A))


def test_an_impure_dependency_cannot_cross_either():
    atomic = Let("a", Atomic(AtomicOp.ADD, "other", lit(0), lit(1)))
    with pytest.raises(InvalidProgram, match="local 'a'"):
        segments(program(atomic, Let("x", Var("a") + 1), SYNC, USE))


def test_an_assigned_variable_cannot_cross():
    x = Let("x", lit(1))
    for body in (
        (x, Assign("x", lit(2)), SYNC, USE),
        (x, SYNC, Assign("x", lit(2))),
        (x, SYNC, USE, Assign("x", lit(2))),
    ):
        with pytest.raises(InvalidProgram, match="local 'x' is live across a grid-wide barrier and it is assigned to"):
            segments(program(*body))
    assert segments(program(x, Assign("x", lit(2)), USE, SYNC, A))


def test_workgroup_memory_does_not_cross():
    fill, drain = Store("tile", lit(0), lit(1)), Store("dst", GID, Load("tile", lit(0)))
    assert len(segments(program(fill, SYNC, fill))) == 2
    assert len(segments(program(drain, SYNC, fill, drain))) == 2
    with pytest.raises(InvalidProgram, match="workgroup buffer 'tile'"):
        segments(program(fill, SYNC, fill, drain))


@pytest.mark.row("B-GS-07")
@pytest.mark.parametrize(
    "body, why",
    [
        ((If(WorkgroupId(0) < 3, (A, SYNC)),), "inside a branch"),
        ((Loop("i", lit(0), lit(3), (Block((SYNC,)),)),), "inside a loop"),
        ((If(GID < 3, (Return(),)), SYNC, A), "return before a grid-wide barrier"),
        ((A, Return(), Block(()), A, SYNC), "return before a grid-wide barrier"),
        ((A, Return(), SYNC, B), "return before a grid-wide barrier"),
        ((Block((A, Return())), SYNC, B), "return before a grid-wide barrier"),
        ((Loop("i", lit(0), lit(3), (Return(),)), A, SYNC), "return before a grid-wide barrier"),
    ],
)
def test_misplaced_barriers_and_returns_are_refused(body, why):
    with pytest.raises(InvalidProgram, match=why) as caught:
        segments(program(*body))
    assert caught.value.context["code"] == "V201"
    assert caught.value.fix


def test_a_return_after_the_last_barrier_is_no_obstacle():
    assert len(segments(program(A, SYNC, B, If(GID < 3, (Return(),)), A))) == 2


def test_reads_writes_and_lengths_are_listed_per_segment():
    x = Let("x", Load("src", GID))
    p = program(x, If(BufLen("other") > GID, (A,)), SYNC, Store("other", GID, X))
    first, second = segments(p)
    assert (first.reads, first.writes, first.lengths) == ({"src"}, {"dst"}, {"other"})
    assert (second.reads, second.writes, second.lengths) == ({"src"}, {"other"}, set())


@pytest.mark.parametrize(
    "node, reads, writes",
    [
        (Let("x", Atomic(AtomicOp.ADD, "a", Load("b", lit(0)), lit(1))), "ab", "a"),
        (AllReduce("a", CollectiveOp.SUM, 0), "a", "a"),
        (Broadcast("a", 0, 0), "a", "a"),
        (AllGather("a", "b", 0), "a", "b"),
        (ReduceScatter("a", "b", CollectiveOp.SUM, 0), "a", "b"),
        (AsyncLoad("a", "b", lit(0), Load("c", lit(0)), "t"), "ac", "b"),
        (IndirectDispatch("a", 0), "a", ""),
        (Let("x", Call("f", (BufferRef("a"),))), "a", "a"),
        (Loop("i", lit(0), Load("a", lit(0)), (Store("b", lit(0), lit(0)),)), "a", "b"),
    ],
)
def test_what_statements_touch(node, reads, writes):
    found = touched([node])
    assert (found.reads, found.writes) == (set(reads), set(writes))


def test_free_names_respect_scopes():
    nodes = [
        Let("a", Var("b")),
        Block((Let("c", Var("a")),)),
        Let("d", Var("c")),
        Loop("i", Var("i"), Var("n"), (Assign("e", Var("i")),)),
        Let("b", Var("b")),
    ]
    assert free_names(nodes) == {"b", "c", "i", "n", "e"}


@pytest.mark.check
def test_deep_wrappers_need_no_stack():
    inner = (A, SYNC, B)
    for _ in range(1_200):
        inner = (Block(inner),)
    assert len(segments(program(*inner))) == 2


LEAVES = st.sampled_from(
    [A, B, SYNC, SYNC, Let("x", GID), Let("y", X + 1), Store("dst", Var("y"), lit(1)), Let("z", Load("src", GID)),
     Let("w", Load("dst", GID)), Store("other", Var("w"), Var("z")), USE, Barrier(), Assign("x", lit(1)), Return(),
     If(GID < 3, (USE,)), If(GID < 3, (Return(),)), Loop("i", lit(0), lit(2), (USE,))]
)  # fmt: skip
TREES = st.lists(st.recursive(LEAVES, lambda t: st.lists(t, max_size=4).map(Block), max_leaves=10), max_size=8)


@settings(deadline=None, max_examples=400)
@given(TREES)
def test_segments_of_a_valid_program_are_valid_and_free_of_grid_barriers(body):
    p = program(*body)
    everything = Capabilities.everything()
    valid = all(i.severity != "error" for i in validate(p, everything))
    if not valid:
        return
    parts = segments(p)
    assert len(parts) == 1 + sum(isinstance(n, Barrier) and n.ordering is Ordering.GRID_SYNC for n in _flat(body))
    for s in parts:
        assert not contains_grid_sync(s.program)
        assert [i for i in validate(s.program, everything) if i.severity == "error"] == []


def _flat(nodes):
    for node in nodes:
        yield node
        yield from _flat(getattr(node, "body", ()))
