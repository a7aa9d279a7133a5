"""Which work may go on beside other work: ranges of real memory decide."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vyre.driver.policy.overlap import (
    BESIDE,
    IN_TURN,
    OVERLAPPED,
    OVERLAPPED_BYTES,
    READ_WRITTEN,
    WRITE_READ,
    WRITE_WRITE,
    Access,
    Break,
    Span,
    Wait,
    choose_arms,
    choose_overlap,
    conflict,
    conflict_among,
    segments,
    waits,
)


def spans(*memories):
    return [Span(memory, 0, 8) for memory in memories]


def access(reads=(), writes=()):
    return Access(spans(*reads), spans(*writes))


@pytest.mark.row("B-ACC-01")
@pytest.mark.parametrize(
    "earlier, later, why",
    [
        (access([0], [1]), access([2], [3]), None),
        (Access(), access([2], [3]), None),
        (access([1], [2]), Access(), None),
        (access([0], [1]), access([0], [2]), None),
        (access([0], [1]), access([2], [1]), WRITE_WRITE),
        (access([0], [1]), access([1], [2]), READ_WRITTEN),
        (access([0], [1]), access([2], [0]), WRITE_READ),
        (access([0], [1]), access([1], [0, 1]), WRITE_WRITE),
        (access([2], [1]), access([0], [1]), WRITE_WRITE),
    ],
)
def test_work_waits_for_what_it_shares_memory_with(earlier, later, why):
    assert conflict(earlier, later) == why
    assert (conflict(later, earlier) == WRITE_WRITE) == (why == WRITE_WRITE)


@pytest.mark.row("B-ACC-01")
def test_ranges_of_one_memory_are_apart_until_they_share_a_byte():
    left = Access(writes=[Span(7, 0, 8)])
    assert conflict(left, Access(reads=[Span(7, 8, 16)])) is None
    assert conflict(left, Access(reads=[Span(7, 7, 16)])) == READ_WRITTEN
    assert conflict(left, Access(reads=[Span(8, 0, 8), Span(7, 3, 3)])) is None


RANGES = st.lists(
    st.builds(lambda m, a, n: Span(m, a, a + n), st.integers(0, 2), st.integers(0, 20), st.integers(0, 5))
)


@given(a=RANGES, b=RANGES)
def test_ranges_meet_exactly_where_two_of_them_share_a_byte(a, b):
    def taken(spans):
        return {(s.memory, k) for s in spans for k in range(s.start, s.stop)}

    assert (conflict(Access(writes=a), Access(reads=b)) is not None) == bool(taken(a) & taken(b))


@pytest.mark.row("B-ACC-04")
def test_a_thousand_ranges_are_compared():
    many = access(range(1000), range(1000, 2000))
    assert conflict(many, access(range(2000, 3000), range(3000, 4000))) is None
    assert conflict_among([Access(), many], access([1999])) == READ_WRITTEN


@pytest.mark.row("B-ACC-02")
@pytest.mark.parametrize(
    "nbytes, options, choice, why",
    [
        (OVERLAPPED_BYTES, {}, OVERLAPPED, "go to the device while the input before runs"),
        (OVERLAPPED_BYTES - 1, {}, IN_TURN, "copied sooner than a dispatch is started"),
        (1 << 30, {"clash": READ_WRITTEN}, IN_TURN, "reads what is written by the input before"),
        (1 << 30, {"no_gain": "of no use"}, IN_TURN, "of no use"),
        (1, {"no_gain": "of no use", "asked": True}, OVERLAPPED, "in_flight asks for it"),
        (1, {"never": "cannot", "asked": True}, IN_TURN, "cannot"),
        (1, {"clash": WRITE_WRITE, "asked": True}, IN_TURN, "both write"),
    ],
)
def test_uploads_overlap_where_they_may_and_where_it_saves_time(nbytes, options, choice, why):
    decided = choose_overlap(nbytes, **options)
    assert (decided.what, decided.choice) == ("upload", choice)
    assert why in decided.reason
    assert decided.numbers["bytes"] == nbytes


ACCESSES = st.lists(st.builds(Access, RANGES, RANGES), max_size=8)


@given(ACCESSES)
@settings(max_examples=30)
def test_steps_wait_for_exactly_those_that_they_conflict_with(steps):
    """Directly, or by way of others."""
    order = waits(steps)
    reached: list[set[int]] = []
    for k, before in enumerate(order):
        assert all(conflict(steps[w.step], steps[k]) is not None for w in before)
        reached.append({w.step for w in before}.union(*(reached[w.step] for w in before)))
    for k, step in enumerate(steps):
        direct = {j for j in range(k) if conflict(steps[j], step) is not None}
        assert direct <= reached[k]


@pytest.mark.row("B-ACC-05")
def test_a_segment_ends_at_a_conflict_with_any_of_its_steps():
    x_written, apart, x_read = access([], [1]), access([2], [3]), access([1], [4])
    order = waits([x_written, apart, x_read])
    assert order == [(), (), (Wait(0, READ_WRITTEN),)]
    assert segments(order) == ([range(2), range(2, 3)], [Break(0, 2, READ_WRITTEN)])
    assert segments([]) == ([], [])
    assert segments(waits([apart])) == ([range(1)], [])
    chain = waits([access([], [1]), access([1], [2]), access([2], [1])])
    assert [len(run) for run in segments(chain)[0]] == [1, 1, 1]


@given(ACCESSES)
@settings(max_examples=30)
def test_no_step_of_a_segment_conflicts_with_another(steps):
    runs, breaks = segments(waits(steps))
    assert [k for run in runs for k in run] == list(range(len(steps)))
    assert len(breaks) == max(len(runs) - 1, 0)
    assert all(conflict(steps[j], steps[k]) is None for run in runs for k in run for j in run if j < k)
    assert all(conflict(steps[b.earlier], steps[b.later]) is not None for b in breaks)


def test_the_first_reason_of_several_is_told():
    both = access([1], [2])
    assert waits([both, access([2], [1])])[1] == (Wait(0, READ_WRITTEN),)
    assert waits([both, access([2], [2])])[1] == (Wait(0, WRITE_WRITE),)
    assert waits([both, access([], [1])])[1] == (Wait(0, WRITE_READ),)


def test_a_thousand_steps_are_looked_at_once_each():
    steps = [access([k], [k + 1]) for k in range(2000)]
    assert waits(steps)[1:] == [(Wait(k, READ_WRITTEN),) for k in range(1999)]


def test_arms_say_which_steps_they_are_beside_and_why_not():
    order = waits([access([1], [2]), access([1], [3]), access([2, 3], [4])])
    told = choose_arms(order, "on two queues")
    assert [d.choice for d in told] == [BESIDE, BESIDE, IN_TURN]
    assert "step 2 has nothing to do with it: on two queues" in told[0].reason
    assert told[2].reason == "it reads what is written by step 2"
    assert [d.choice for d in choose_arms(order, None)] == [IN_TURN] * 3
    assert "keeps the order" in choose_arms(order, None)[0].reason
    assert choose_arms([], None) == []
