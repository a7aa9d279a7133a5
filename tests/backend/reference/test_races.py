"""The race detector: what it reports, how it says it, and where it keeps quiet."""

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vyre.backends.reference import Schedule, run
from vyre.backends.reference.engines.races import Detector, Site
from vyre.errors import RaceDetected
from vyre.foundation.ir.dtypes import u8, u32
from vyre.foundation.ir.nodes import (  # fmt: skip
    AsyncLoad,
    AsyncWait,
    Atomic,
    Barrier,
    BufLen,
    If,
    InvocationId,
    Let,
    Load,
    LocalId,
    Loop,
    Return,
    Select,
    Span,
    Store,
    Var,
    WorkgroupId,
    lit,
)
from vyre.foundation.ir.ops import AtomicOp, Ordering
from vyre.foundation.ir.program import Program, output, read, read_write, workgroup

SCHEDULES = ["forward", "reversed", Schedule.seeded(1)]
gid, lid, wg = InvocationId(0), LocalId(0), WorkgroupId(0)
OUT, N = output("out", 0, u32, 64), read_write("n", 1, u32, 64)
TILE = workgroup("tile", u32, 64)
BUMP = Let("old", Atomic(AtomicOp.ADD, "n", lit(0), lit(1)))


def races(body, *, wg_size=4, grid=1, buffers=(OUT, N, TILE), schedule="forward"):
    program = Program(buffers, (wg_size, 1, 1), body)
    inputs = [bytes(256) for _ in program.host_inputs]
    return run(program, inputs, grid=(grid, 1, 1), detect_races=True, schedule=schedule).races


def kinds(found):
    return sorted(tuple(sorted((r.first.kind, r.second.kind))) for r in found)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize(
    "body, expected",
    [
        ([Store("out", lit(0), gid)], [("store", "store")]),
        ([Store("out", lit(0), lit(7))], [("store", "store")]),  # the same value is a race as well
        ([Store("n", gid, gid), Store("out", gid, Load("n", gid ^ lit(1)))], [("load", "store")]),
        ([BUMP, If(gid.eq(1), [Store("n", lit(0), lit(5))])], [("atomic_add", "store")]),
        ([Store("tile", lid, gid), Store("out", gid, Load("tile", lid ^ lit(1)))], [("load", "store")]),
        ([BUMP, Store("out", gid, Load("n", lit(0)))], [("atomic_add", "load")]),
        ([BUMP, Let("top", Atomic(AtomicOp.MAX, "n", lit(0), gid))], [("atomic_add", "atomic_max")]),
        ([Let("was", Atomic(AtomicOp.EXCHANGE, "n", lit(0), gid))], [("atomic_exchange", "atomic_exchange")]),
        ([AsyncLoad("n", "tile", lit(0), lit(4), "t"), AsyncWait("t")], [("store", "store")]),
        ([Store("n", gid, gid), AsyncLoad("n", "tile", gid * lit(4) ^ lit(4), lit(4), "t"), AsyncWait("t")],
         [("load", "store"), ("store", "store")]),
    ],
)  # fmt: skip
def test_unordered_accesses_whose_order_matters_are_races(body, expected, schedule):
    assert kinds(races(body, schedule=schedule)) == expected


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize(
    "body",
    [
        [Store("out", gid, gid)],
        [BUMP],
        [Store("out", gid, Load("n", lit(0)))],
        [Store("n", gid, Load("n", gid) + lit(1)), Store("n", gid, Load("n", gid) * lit(2))],
        [Store("n", gid, gid), Barrier(), Store("out", gid, Load("n", wg * lit(4) + (lid ^ lit(1))))],
        [Store("tile", lid, gid), Barrier(), Store("out", gid, Load("tile", lid ^ lit(1)))],
        [Store("n", gid, gid), Barrier(Ordering.GRID_SYNC), Store("out", gid, Load("n", lit(7) - gid))],
        [Store("out", gid + lit(1000), lit(1)), Store("out", lit(1000) + lit(0) * gid, Load("n", lit(99)))],
        [AsyncLoad("n", "tile", lit(0), lit(0), "t"), AsyncWait("t")],
    ],
)
def test_ordered_atomic_owned_and_absorbed_accesses_are_not_races(body, schedule):
    assert races(body, grid=2, schedule=schedule) == ()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_workgroup_barrier_orders_nothing_between_workgroups(schedule):
    body = [Store("n", gid, gid), Barrier(), Store("out", gid, Load("n", lit(7) - gid))]
    assert kinds(races(body, grid=2, schedule=schedule)) == [("load", "store")]
    assert races([Store("n", lid, gid), Barrier()], grid=1, schedule=schedule) == ()


def test_a_write_before_a_barrier_still_races_with_another_workgroup_after_its_own():
    body = [If(wg.eq(0), [Store("n", lit(0), lit(1))]), Barrier(), If(wg.eq(1), [Store("n", lit(0), lit(2))])]
    (race,) = races(body, wg_size=1, grid=2)
    assert (race.first.invocation, race.second.invocation) == ((0, 0, 0), (1, 0, 0))


def test_each_workgroup_has_its_own_shared_memory():
    assert races([Store("tile", lit(0), gid)], wg_size=1, grid=4) == ()


def test_elements_and_not_words_are_what_races_are_about():
    buffers = [read_write("b", 0, u8)]
    assert races([Store("b", gid, lit(1, u8))], buffers=buffers) == ()


def test_a_tree_sum_is_quiet_until_its_barrier_is_taken_out():
    def tree(*between):
        return [
            Store("tile", lid, gid),
            Barrier(),
            Let("s", lit(2)),
            Loop("k", lit(0), lit(2), [
                If(lid < (lit(2) >> Var("k")),
                   [Store("tile", lid, Load("tile", lid) + Load("tile", lid + (lit(2) >> Var("k"))))]),
                *between,
            ]),
        ]  # fmt: skip

    assert races(tree(Barrier()), grid=2) == ()
    assert kinds(races(tree(), grid=2)) == [("load", "store")]


def test_an_atomic_histogram_is_quiet_and_a_plain_one_is_not():
    atomic = Let("old", Atomic(AtomicOp.ADD, "n", gid % lit(3), lit(1)))
    plain = Store("n", gid % lit(3), Load("n", gid % lit(3)) + lit(1))
    assert races([atomic], grid=4) == ()
    assert kinds(races([plain], grid=4)) == [("load", "store"), ("store", "store")]


def test_each_pair_of_statements_is_reported_once_for_each_buffer():
    body = [Loop("i", lit(0), lit(8), [Store("out", Var("i"), gid), Store("n", Var("i"), gid)])]
    found = races(body, wg_size=8, grid=4)
    assert sorted(r.buffer for r in found) == ["n", "out"]


def test_invocations_that_have_ended_leave_their_accesses_behind():
    body = [If(lid.eq(0), [Store("n", lit(1), lit(1)), Return()]), Store("n", lid, lit(2))]
    (race,) = races(body)
    assert {race.first.invocation[0], race.second.invocation[0]} == {0, 1}
    assert (race.buffer, race.index) == ("n", 1)


def test_a_race_shows_both_source_lines():
    first = Store("n", lit(0), lit(1), span=Span("blur.py", 12, text="    n[0] = 1"))
    second = Let("x", Load("n", lit(0)), span=Span("blur.py", 14, text="    x = n[0]"))
    (race,) = races([If(gid.eq(0), [first]), If(gid.eq(1), [second])])
    assert str(race) == (
        "race on n[0]\n"
        "  store by invocation (0, 0, 0) at blur.py:12: n[0] = 1\n"
        "  load by invocation (1, 0, 0) at blur.py:14: x = n[0]"
    )


@pytest.mark.parametrize(
    "statement, text",
    [
        (Store("n", lit(0), gid), "n[0] = gid.x"),
        (Let("x", Load("n", lit(0))), "x = n[0]"),
        (If(Load("n", lit(0)), [Return()]), "if n[0]"),
        (Loop("i", lit(0), Load("n", lit(0)), []), "for i in 0..n[0]"),
        (AsyncWait("t"), "AsyncWait('t')"),
    ],
)
def test_a_statement_without_source_shows_itself_and_its_path(statement, text):
    site = Site(statement, "entry.0.body.3")
    assert (site.place, site.text) == ("entry.0.body.3", text)


def test_a_source_line_without_text_still_has_its_place():
    site = Site(Store("n", lit(0), gid, span=Span("blur.py", 3)), "entry.0")
    assert (site.place, site.text) == ("blur.py:3", "n[0] = gid.x")


def test_a_path_leads_to_the_statement():
    (race,) = races([Let("a", lit(1)), If(Var("a"), [], [Return()]), If(Var("a"), [Store("out", lit(0), gid)])])
    assert race.first.site.path == "entry.0.body.2.then.0"


def test_a_race_may_be_an_error():
    program = Program([OUT], (2, 1, 1), [Store("out", lit(3), gid)])
    with pytest.raises(RaceDetected, match=r"(?s)race on out\[3\].*Fix: put a barrier") as e:
        run(program, [], grid=(1, 1, 1), raise_on_race=True)
    assert e.value.context["races"] == 1
    assert run(program, [], grid=(1, 1, 1)).races == ()


# ---- against the definition -----------------------------------------------------------------------------------------


class _Who:
    def __init__(self, gid, group):
        self.gid, self.group = (gid, 0, 0), group


class _Group:
    def __init__(self, index):
        self.index, self.epoch = index, 0


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_the_detector_finds_a_race_exactly_when_two_accesses_are_unordered(seed):
    """Two remembered accesses for each workgroup must be as good as remembering all of them."""
    rng = random.Random(seed)
    groups = [_Group(k) for k in range(3)]
    lanes = [_Who(k, groups[k // 2]) for k in range(6)]
    detector, locations, history, raced = Detector(), {}, [], False
    for _ in range(rng.randrange(2, 12)):
        action = rng.random()
        if action < 0.25:
            rng.choice(groups).epoch += 1
        elif action < 0.3:
            detector.grid_epoch += 1
        else:
            who, kind = rng.choice(lanes), rng.choice(["load", "store", "atomic_add", "atomic_max", "atomic_exchange"])
            now = (who.gid, who.group.index, who.group.epoch, detector.grid_epoch, kind)
            detector.touch(locations, "b", 0, who, kind, Site(Return(), "entry"))
            for gid_, group, epoch, grid_epoch, other in history:
                ordered = gid_ == who.gid or grid_epoch != now[3] or (group == now[1] and epoch != now[2])
                raced |= not ordered and not (kind == other and kind in ("load", "atomic_add", "atomic_max"))
            history.append(now)
    assert bool(detector.races) == raced


def test_guarded_reads_count_because_both_sides_of_a_select_are_evaluated():
    body = [Store("n", gid, Select(gid.eq(0), lit(0), Load("n", gid - lit(1))))]
    assert kinds(races(body)) == [("load", "store")]


def test_reading_a_buffer_that_nobody_may_write_is_never_a_race():
    buffers = [output("out", 0, u32, 8), read("x", 1, u32)]
    program = Program(buffers, (4, 1, 1), [If(gid < BufLen("out"), [Store("out", gid, Load("x", lit(0)))])])
    result = run(program, [struct.pack("<I", 5)], grid=(2, 1, 1), detect_races=True)
    assert result.races == ()
    assert result.outputs == [struct.pack("<8I", *[5] * 8)]
