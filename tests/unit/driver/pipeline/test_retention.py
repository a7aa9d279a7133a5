"""What may go: the coldest first, within a number of entries and of bytes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vyre.driver
from vyre.driver.pipeline.retention import (
    DECAY_HALF_LIFE_S,
    CacheEntryStats,
    entries_to_evict,
    eviction_basis_points,
    over_budget,
    select_retention_set,
)


@pytest.mark.row("B-EV")
@pytest.mark.parametrize(
    "gains, n, k, stays",
    [
        ([3, 10, 2, 8, 1], 5, 2, [0, 1, 0, 1, 0]),
        ([3, 10, 2, 8, 1], 5, 0, [0, 0, 0, 0, 0]),
        ([3, 0, 2], 3, 3, [1, 0, 1]),
        ([5, 1], 99, 99, [1, 1]),
        ([5, 5, 5], 3, 2, [1, 1, 0]),
        ([1, 9], 1, 1, [1]),
        ([], 0, 3, []),
    ],
)
def test_those_that_gain_most_stay(gains, n, k, stays):
    given = list(gains)
    assert select_retention_set(gains, n, k) == stays
    assert gains == given


@pytest.mark.row("B-EV")
@pytest.mark.parametrize("dropped, total, points", [(1, 2, 5000), (476, 512, 9296), (9, 3, 10_000), (0, 0, 0)])
def test_what_went_is_told_in_basis_points(dropped, total, points):
    assert eviction_basis_points(dropped, total) == points


def stats(*uses_and_ages, now=1000.0):
    return [CacheEntryStats(k, uses, now - age) for k, (uses, age) in enumerate(uses_and_ages)]


@pytest.mark.row("B-HE")
@pytest.mark.parametrize(
    "entries, capacity, gone",
    [
        (stats((1, 0), (1, 0)), 2, []),
        (stats((100, 90_000), (1, 0), (1, 0)), 2, [0]),
        (stats((9, 0), (1, 0), (1, 0)), 1, [1, 2]),
        (stats((5, 60), (2, 60)), 1, [1]),
        (stats((3, 10), (3, 600)), 1, [1]),
        (stats((1, 0), (50, math.nan), (1, 0), (50, -math.inf)), 2, [1, 3]),
        (stats((1, 0)), 0, [0]),
    ],
    ids=["room for all", "ancient", "ties in order", "frequency", "recency", "no times", "no room"],
)
def test_the_coldest_go_first(entries, capacity, gone):
    assert entries_to_evict(entries, capacity, 1000.0) == gone


@pytest.mark.row("B-HE")
def test_heat_halves_with_every_half_life_and_never_grows():
    entry = CacheEntryStats("a", 100, 0.0)
    assert [entry.heat(n * DECAY_HALF_LIFE_S) for n in (-5, 0, 1, 2)] == [100, 100, 50, 25]
    assert entry.heat(math.nan) == entry.heat(math.inf) == entry.heat(1e300) == 0
    assert CacheEntryStats("a", 10**400, 0.0).heat(0) == 0
    assert entries_to_evict(stats((1, 0), (1, 0), (1, 0)), 1, math.nan) == [0, 1]


@given(
    st.lists(st.tuples(st.integers(1, 50), st.floats(0, 5000), st.integers(0, 100)), max_size=20),
    st.integers(0, 20),
    st.integers(0, 600),
)
def test_what_stays_is_within_both_limits_and_nothing_colder_than_it_stays_instead(rows, most, nbytes):
    entries = [CacheEntryStats(k, uses, 5000.0 - age, size) for k, (uses, age, size) in enumerate(rows)]
    gone = over_budget(entries, max_entries=most, max_bytes=nbytes, now_s=5000.0)
    assert len(set(gone)) == len(gone)
    kept = [e for e in entries if e.id not in set(gone)]
    assert len(kept) <= most
    assert sum(e.nbytes for e in kept) <= nbytes
    heats = {e.id: e.heat(5000.0) for e in entries}
    assert all(heats[e.id] >= heats[other] for e in kept for other in gone)
    if gone and len(kept) < most:
        hottest = max(gone, key=lambda id: (heats[id], id))
        assert sum(e.nbytes for e in kept) + entries[hottest].nbytes > nbytes


def test_the_names_of_the_documentation_lead_here():
    for name in ("select_retention_set", "CacheEntryStats", "entries_to_evict", "eviction_basis_points"):
        assert getattr(vyre.driver, name) is getattr(vyre.driver.cache_eviction, name)
    assert vyre.driver.cache_eviction_heat is vyre.driver.cache_eviction
