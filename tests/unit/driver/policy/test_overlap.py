"""Which work may go on beside other work: ranges of real memory decide."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vyre.driver.policy.overlap import (
    IN_TURN,
    OVERLAPPED,
    OVERLAPPED_BYTES,
    READ_WRITTEN,
    WRITE_READ,
    WRITE_WRITE,
    Access,
    Span,
    choose_overlap,
    conflict,
    conflict_among,
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
