"""Which entries may be evicted? Pure: numbers in, a verdict out. Both tiers ask here, memory and disk."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

DECAY_HALF_LIFE_S = 300.0
"""Of code in the memory of a process."""
DISK_HALF_LIFE_S = 7 * 86_400.0
"""Of code on disk: a kernel of last week is worth half of an equal one of today."""


@dataclass(frozen=True, slots=True)
class CacheEntryStats:
    """How often something was used, when last, and how large it is."""

    id: Hashable
    hit_count: int
    last_hit_time_s: float
    nbytes: int = 0

    def heat(self, now_s: float, half_life_s: float = DECAY_HALF_LIFE_S) -> float:
        """Uses, halved with every half-life since the last one. A time that is not finite counts as the oldest.

        >>> [CacheEntryStats("a", 100, 0.0).heat(now) for now in (0, 300, 600)]
        [100.0, 50.0, 25.0]
        """
        age = now_s - self.last_hit_time_s
        if not math.isfinite(age):
            return 0.0
        try:
            heat = self.hit_count * 0.5 ** (max(0.0, age) / half_life_s)
        except OverflowError:
            return 0.0
        return heat if math.isfinite(heat) else 0.0


def entries_to_evict(
    entries: Sequence[CacheEntryStats], capacity: int, now_s: float, half_life_s: float = DECAY_HALF_LIFE_S
) -> list[Hashable]:
    """The ids that must go for `capacity` entries to stay: the coldest first, of equals the earlier one.

    >>> entries_to_evict([CacheEntryStats("a", 9, 0.0), CacheEntryStats("b", 1, 0.0)], 1, 0.0)
    ['b']
    """
    surplus = len(entries) - max(0, capacity)
    if surplus <= 0:
        return []
    return [entries[k].id for k in _coldest_first([e.heat(now_s, half_life_s) for e in entries])[:surplus]]


def select_retention_set(gains: Sequence[float], n: int, k: int) -> list[int]:
    """1 for each of the first `n` entries that stays, 0 for the others: the `k` with the highest gain, of equals the
    earlier one. An entry without a gain does not stay.

    >>> select_retention_set([3, 10, 2, 8, 1], 5, 2)
    [0, 1, 0, 1, 0]
    """
    n = min(n, len(gains))
    best = sorted((i for i in range(n) if gains[i] > 0), key=lambda i: -gains[i])[: max(0, k)]
    stays = set(best)
    return [int(i in stays) for i in range(n)]


def over_budget(
    entries: Sequence[CacheEntryStats],
    *,
    max_entries: int | None = None,
    max_bytes: int,
    now_s: float,
    half_life_s: float = DECAY_HALF_LIFE_S,
) -> list[Hashable]:
    """The ids that must go, the coldest first, until the rest is within both limits."""
    count = len(entries) if max_entries is None else max_entries
    gone = entries_to_evict(entries, count, now_s, half_life_s)
    out = set(gone)
    rest = [e for e in entries if e.id not in out]
    if sum(e.nbytes for e in rest) <= max_bytes:
        return gone
    heats = [e.heat(now_s, half_life_s) for e in rest]
    order, held, fitting = _coldest_first(heats), 0, 0
    for i in reversed(order):
        held += rest[i].nbytes
        if held > max_bytes:
            break
        fitting += 1
    stays = select_retention_set([heats[i] for i in reversed(order)], len(order), fitting)
    kept = {i for i, stay in zip(reversed(order), stays, strict=True) if stay}
    return gone + [rest[i].id for i in order if i not in kept]


def eviction_basis_points(dropped: int, total: int) -> int:
    """Which part of the entries went, in hundredths of a percent; never more than all.

    >>> eviction_basis_points(476, 512)
    9296
    """
    return min(dropped, total) * 10_000 // total if total > 0 else 0


def _coldest_first(heats: Sequence[float]) -> list[int]:
    return sorted(range(len(heats)), key=heats.__getitem__)
