"""Intervals of whole numbers, and what the steps of integers and bools make of them. Bool is 0 and 1.

A rule gets the type of the result and the intervals of the operands; what it gives may leave the type, and is `wrapped`
then. A result that would wrap in some cases and not in others can be anything of its type.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from .registers import BITS, SIGNED

Interval: TypeAlias = tuple[int, int]
"""Lowest and highest value, both included."""

LIMITS: dict[str, Interval] = {"bool": (0, 1)} | {
    t: (-(1 << BITS[t] - 1), (1 << BITS[t] - 1) - 1) if t in SIGNED else (0, (1 << BITS[t]) - 1)
    for t in ("u32", "i32", "u64", "i64")
}


def join(a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), max(a[1], b[1])


def meet(a: Interval, b: Interval) -> Interval | None:
    """What is in both, or None."""
    low, high = max(a[0], b[0]), min(a[1], b[1])
    return (low, high) if low <= high else None


def wrapped(exact: Interval, dtype: str) -> Interval:
    """An interval of whole numbers, once they wrapped to the type."""
    limits = LIMITS[dtype]
    size = limits[1] - limits[0] + 1
    times = (exact[0] - limits[0]) // size
    if times != (exact[1] - limits[0]) // size:
        return limits
    return exact[0] - times * size, exact[1] - times * size


# ---- rules ----------------------------------------------------------------------------------------------------------


def add(t: str, a: Interval, b: Interval) -> Interval:
    return a[0] + b[0], a[1] + b[1]


def sub(t: str, a: Interval, b: Interval) -> Interval:
    return a[0] - b[1], a[1] - b[0]


def mul(t: str, a: Interval, b: Interval) -> Interval:
    return _hull(x * y for x in a for y in b)


def mulhi(t: str, a: Interval, b: Interval) -> Interval:
    return a[0] * b[0] >> 32, a[1] * b[1] >> 32


def least(t: str, a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), min(a[1], b[1])


def most(t: str, a: Interval, b: Interval) -> Interval:
    return max(a[0], b[0]), max(a[1], b[1])


def same(t: str, a: Interval) -> Interval:
    return a


def shl(t: str, a: Interval, n: Interval) -> Interval:
    return _hull(x << min(k, 63) for x in a for k in n)


def shr(t: str, a: Interval, n: Interval) -> Interval:
    return _hull(x >> k for x in a for k in n)


def div(t: str, a: Interval, b: Interval) -> Interval:
    """By a divisor that is positive: the form has no other zero divisors than those that no lane reaches."""
    if not _may_divide(b):
        return LIMITS[t]
    return _hull(x // d if x >= 0 else -(-x // d) for x in a for d in (max(b[0], 1), b[1]))


def rem(t: str, a: Interval, b: Interval) -> Interval:
    if not _may_divide(b):
        return LIMITS[t]
    if a[0] >= 0 and a[1] < max(b[0], 1):
        return a
    return max(min(a[0], 0), 1 - b[1]), min(max(a[1], 0), b[1] - 1)


def complement(t: str, a: Interval) -> Interval:
    low, high = LIMITS[t]
    return low + high - a[1], low + high - a[0]


def both(t: str, a: Interval, b: Interval) -> Interval:
    if t == "bool":
        return a[0] & b[0], a[1] & b[1]
    if max(a[0], b[0]) < 0:
        return LIMITS[t]
    return 0, min(x[1] for x in (a, b) if x[0] >= 0)


def either(t: str, a: Interval, b: Interval) -> Interval:
    if t == "bool":
        return a[0] | b[0], a[1] | b[1]
    if min(a[0], b[0]) < 0:
        return LIMITS[t]
    return max(a[0], b[0]), _ones(a, b)


def odd(t: str, a: Interval, b: Interval) -> Interval:
    """Of `xor`."""
    return LIMITS[t] if t == "bool" or min(a[0], b[0]) < 0 else (0, _ones(a, b))


def lt(t: str, a: Interval, b: Interval) -> Interval:
    return int(a[1] < b[0]), int(a[0] < b[1])


def gt(t: str, a: Interval, b: Interval) -> Interval:
    return lt(t, b, a)


def ge(t: str, a: Interval, b: Interval) -> Interval:
    return complement("bool", lt(t, a, b))


def le(t: str, a: Interval, b: Interval) -> Interval:
    return ge(t, b, a)


def eq(t: str, a: Interval, b: Interval) -> Interval:
    return int(a == b and a[0] == a[1]), int(meet(a, b) is not None)


def ne(t: str, a: Interval, b: Interval) -> Interval:
    return complement("bool", eq(t, a, b))


def _hull(corners: Iterable[int]) -> Interval:
    found = list(corners)
    return min(found), max(found)


def _ones(a: Interval, b: Interval) -> int:
    """The largest number of as many bits as either has."""
    return (1 << max(a[1], b[1]).bit_length()) - 1


def _may_divide(b: Interval) -> bool:
    return b[1] > 0 and b[0] >= 0
