"""The smallest and the largest value that an integer or bool instruction can have, from those of its operands.

Bool is 0 and 1. A result that would wrap in some cases and not in others can be anything of its type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from ..foundation.ir.dtypes import BY_NAME
from .form import BITS, SIGNED

Interval: TypeAlias = tuple[int, int]
"""Lowest and highest value, both included."""

LIMITS: dict[str, Interval] = {"bool": (0, 1)} | {
    t: (-(1 << BITS[t] - 1), (1 << BITS[t] - 1) - 1) if t in SIGNED else (0, (1 << BITS[t]) - 1)
    for t in ("u32", "i32", "u64", "i64")
}
COMPARES = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
KNOWN = COMPARES | frozenset((
    "add", "sub", "mul", "div", "rem", "and", "or", "xor", "not", "shl", "shr", "mulhi", "min", "max", "popcount",
    "clz", "ctz", "convert", "narrow",
))  # fmt: skip
"""Instructions that `result` computes; any other gives `LIMITS`."""


def result(op: str, dtype: str, attr: Any, args: Sequence[Interval]) -> Interval:
    """What an instruction of `KNOWN` gives for operands in these intervals."""
    if op in COMPARES:
        return _compare(op, *args)
    if op == "narrow":
        low, high = BY_NAME[attr].limits
        return args[0] if low <= args[0][0] and args[0][1] <= high else (low, high)
    found = _bool(op, args) if dtype == "bool" else _integer(op, dtype, args)
    return LIMITS[dtype] if found is None else wrapped(found, dtype)


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


def _compare(op: str, a: Interval, b: Interval) -> Interval:
    if op in ("gt", "le"):
        a, b, op = b, a, "lt" if op == "gt" else "ge"
    if op in ("lt", "ge"):
        always, never = a[1] < b[0], a[0] >= b[1]
    else:
        always, never = a == b and a[0] == a[1], a[1] < b[0] or b[1] < a[0]
    if op in ("ge", "ne"):
        always, never = never, always
    return int(always), int(not never)


def _bool(op: str, args: Sequence[Interval]) -> Interval | None:
    (a, *rest) = args
    match op:
        case "and":
            return a[0] & rest[0][0], a[1] & rest[0][1]
        case "or":
            return a[0] | rest[0][0], a[1] | rest[0][1]
        case "not":
            return 1 - a[1], 1 - a[0]
    return None


def _integer(op: str, dtype: str, args: Sequence[Interval]) -> Interval | None:
    """Before it wraps; None for anything."""
    (a, *rest) = args
    b = rest[0] if rest else a
    match op:
        case "add":
            return a[0] + b[0], a[1] + b[1]
        case "sub":
            return a[0] - b[1], a[1] - b[0]
        case "mul":
            corners = [x * y for x in a for y in b]
            return min(corners), max(corners)
        case "mulhi":
            return a[0] * b[0] >> 32, a[1] * b[1] >> 32
        case "min":
            return min(a[0], b[0]), min(a[1], b[1])
        case "max":
            return max(a[0], b[0]), max(a[1], b[1])
        case "convert":
            return a
        case "not":
            return (-1 - a[1], -1 - a[0]) if dtype in SIGNED else (LIMITS[dtype][1] - a[1], LIMITS[dtype][1] - a[0])
        case "popcount" | "clz" | "ctz":
            return 0, BITS[dtype]
        case "shl":
            corners = [x << min(n, 63) for x in a for n in b]
            return min(corners), max(corners)
        case "shr":
            corners = [x >> n for x in a for n in b]
            return min(corners), max(corners)
        case "div" | "rem":
            return _divided(op, a, b) if b[1] > 0 and b[0] >= 0 else None
        case "and" if max(a[0], b[0]) >= 0:
            return 0, min(x[1] for x in (a, b) if x[0] >= 0)
        case "or" | "xor" if min(a[0], b[0]) >= 0:
            low = max(a[0], b[0]) if op == "or" else 0
            return low, (1 << max(a[1], b[1]).bit_length()) - 1
    return None


def _divided(op: str, a: Interval, b: Interval) -> Interval:
    """By a divisor that is positive: the form has no other zero divisors than those nobody reaches."""
    least, most = max(b[0], 1), b[1]
    if op == "div":
        corners = [x // d if x >= 0 else -(-x // d) for x in a for d in (least, most)]
        return min(corners), max(corners)
    if a[0] >= 0 and a[1] < least:
        return a
    return max(min(a[0], 0), 1 - most), min(max(a[1], 0), most - 1)
