"""Reductions and running sums of the segments of an array. `docs/libs/segments.md` defines them to the bit."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentValueError
from ..foundation.ir.dtypes import DataType, bool_, i32, i64, u32, u64
from . import prefix
from .arguments import Given, beside, check_out, chosen, element_of, filled, given, handed, near, on
from .prefix_kernels import BLOCK
from .reduce import ANY, KINDS, MEASURED, Rule, measured_as, neutral, summed_as
from .reduce_kernels import CHUNK, COLUMNS, LEAST, MOST, PLAIN, PRODUCT, QUOTIENT, SUM, TRUTH, VALUE
from .segments_kernels import behind, bounds, by_invocations, by_workgroups, chunks, parts, runs, totals

__all__ = [
    "all",
    "any",
    "count",
    "max",
    "mean",
    "min",
    "offsets",
    "prod",
    "running_max",
    "running_min",
    "running_sum",
    "sum",
]

FEW = 32
"""Elements of a segment that one invocation joins faster than a workgroup."""


def offsets(lengths: Any, *, out: Any = None, backend: str | None = None) -> Any:
    """Where segments of these lengths begin and end, as u32: one number more than there are segments."""
    asked = given("lengths", lengths, (u32, i32))
    shape = (asked.size + 1,)
    check_out(out, shape)
    if not asked.size:
        return filled(0, u32, shape, asked, out, backend)
    upto = prefix.sum(asked.view("u4"), backend=backend)
    return handed(on(behind, backend)(upto, out=out, sizes={"out": shape}, domain=shape[0]), asked, out)


def sum(x: Any, offsets: Any, *, dtype: Any = None, out: Any = None, backend: str | None = None) -> Any:
    """`reduce.sum` of each segment."""
    return _joined(SUM, x, offsets, dtype, out, backend)


def prod(x: Any, offsets: Any, *, dtype: Any = None, out: Any = None, backend: str | None = None) -> Any:
    """`reduce.prod` of each segment."""
    return _joined(PRODUCT, x, offsets, dtype, out, backend)


def min(x: Any, offsets: Any, *, out: Any = None, backend: str | None = None) -> Any:
    """`reduce.min` of each segment; infinity of an empty one, or the largest number of the type."""
    return _extreme(LEAST, x, offsets, out, backend)


def max(x: Any, offsets: Any, *, out: Any = None, backend: str | None = None) -> Any:
    """`reduce.max` of each segment; -infinity of an empty one, or the smallest number of the type."""
    return _extreme(MOST, x, offsets, out, backend)


def mean(x: Any, offsets: Any, *, dtype: Any = None, out: Any = None, backend: str | None = None) -> Any:
    """`reduce.mean` of each segment; NaN of an empty one."""
    asked = given("x", x, MEASURED)
    kind, result = measured_as(element_of(asked), dtype)
    return _of(Rule(SUM, VALUE, kind, 0.0, QUOTIENT), asked, offsets, result, out, backend)


def any(x: Any, offsets: Any, *, out: Any = None, backend: str | None = None) -> Any:
    """`reduce.any` of each segment."""
    return _of(Rule(MOST, TRUTH, u32, 0), given("x", x, ANY), offsets, bool_, out, backend)


def all(x: Any, offsets: Any, *, out: Any = None, backend: str | None = None) -> Any:
    """`reduce.all` of each segment."""
    return _of(Rule(LEAST, TRUTH, u32, neutral(LEAST, u32)), given("x", x, ANY), offsets, bool_, out, backend)


def count(x: Any, offsets: Any, *, out: Any = None, backend: str | None = None) -> Any:
    """`reduce.count` of each segment."""
    return _of(Rule(SUM, TRUTH, u32, 0), given("x", x, ANY), offsets, u32, out, backend)


def running_sum(
    x: Any,
    offsets: Any,
    *,
    exclusive: bool = False,
    dtype: Any = None,
    out: Any = None,
    backend: str | None = None,
) -> Any:
    """`prefix.sum` of each segment, as an array like x; 0 for elements of no segment."""
    return _running(SUM, x, offsets, exclusive, dtype, out, backend)


def running_min(x: Any, offsets: Any, *, exclusive: bool = False, out: Any = None, backend: str | None = None) -> Any:
    """`prefix.min` of each segment."""
    return _running(LEAST, x, offsets, exclusive, None, out, backend)


def running_max(x: Any, offsets: Any, *, exclusive: bool = False, out: Any = None, backend: str | None = None) -> Any:
    """`prefix.max` of each segment."""
    return _running(MOST, x, offsets, exclusive, None, out, backend)


# ---- what they share -------------------------------------------------------------------------------------------------


def _joined(how: int, x: Any, offsets: Any, dtype: Any, out: Any, backend: str | None) -> Any:
    asked = given("x", x, ANY)
    kind, result = summed_as(element_of(asked), dtype)
    return _of(Rule(how, VALUE, kind, neutral(how, kind)), asked, offsets, result, out, backend)


def _extreme(how: int, x: Any, offsets: Any, out: Any, backend: str | None) -> Any:
    asked = given("x", x, ANY)
    t = element_of(asked)
    return _of(Rule(how, VALUE, summed_as(t, None)[0], _first(how, t)), asked, offsets, t, out, backend)


def _first(how: int, t: DataType) -> Any:
    """What an extreme begins with: the first number of the type, or the last."""
    return neutral(how, u32 if t is bool_ else t)


def _segments(asked: Given, offsets: Any) -> Given:
    """Offsets as the caller gives them."""
    found = given("offsets", offsets, (u32, i32, i64, u64))
    if found.ndim != 1 or not found.size:
        raise ArgumentValueError(
            f"offsets have shape {found.shape}",
            fix="pass one number more than there are segments: offsets=[0, 3, 7] for two of them",
        )
    if asked.ndim != 1:
        raise ArgumentValueError(
            f"x has shape {asked.shape}, and segments are of one row", fix="pass x.reshape(-1), or reduce along an axis"
        )
    return found


def _bounds(asked: Given, found: Given, backend: str | None) -> Any:
    t = element_of(found)
    step = chosen(bounds, backend, signed=t in (i32, i64), N=t)
    return beside(step(found, asked.size, sizes={"out": found.size}), asked)


def _of(rule: Rule, asked: Given, offsets: Any, result: DataType, out: Any, backend: str | None) -> Any:
    found = _segments(asked, offsets)
    segments = found.size - 1
    check_out(out, (segments,))
    if not segments:
        return filled(0, result, (0,), asked, out, backend)
    edges = _bounds(asked, found, backend)
    if not asked.size:
        value: Any = float("nan") if rule.ending else rule.first if result is not bool_ else rule.how == LEAST
        return filled(value, result, (segments,), asked, out, backend)
    made = _reduced(rule, near(asked, backend), edges, 1, asked.size, result, out, backend)
    return handed(made, asked, out)


def _reduced(
    rule: Rule, x: Any, limits: Any, scale: int, longest: int, result: DataType, out: Any, backend: str | None
) -> Any:
    """Of longer segments, the rows that their parts become are segments too."""
    segments = limits.size - 1
    consts = {"how": rule.how, "what": rule.what, "kind": KINDS.index(rule.kind), "T": element_of(x), "A": rule.kind}
    above = filled(rule.first, rule.kind, (1,), x, None, backend) if longest <= CHUNK else None
    if longest > CHUNK:
        count = 2 * x.size // CHUNK
        starts = _starts(limits, scale, CHUNK, segments, backend)
        step = chosen(chunks, backend, **consts)
        made = step(x, limits, scale, starts, rule.first, sizes={"out": count * COLUMNS}, grid=count)
        rows = rule._replace(what=VALUE, ending=PLAIN)
        above = _reduced(rows, made, starts, COLUMNS, -(-longest // CHUNK) * COLUMNS, rule.kind, None, backend)
    few = x.size <= FEW * segments
    step = chosen(by_invocations if few else by_workgroups, backend, **consts, ending=rule.ending, R=result)
    launch: dict[str, Any] = {"domain": segments} if few else {"grid": segments}
    return step(x, limits, scale, above, rule.first, out=out, sizes={"out": (segments,)}, **launch)


def _starts(limits: Any, scale: int, size: int, segments: int, backend: str | None) -> Any:
    """Where the parts of each segment begin, and how many there are in all."""
    many = on(parts, backend)(limits, scale, size, sizes={"out": segments + 1}, domain=segments)
    return prefix.sum(many, exclusive=True, backend=backend)


def _running(how: int, x: Any, offsets: Any, exclusive: bool, dtype: Any, out: Any, backend: str | None) -> Any:
    asked = given("x", x, ANY)
    found = _segments(asked, offsets)
    check_out(out, asked.shape)
    t = element_of(asked)
    kind, result = summed_as(t, dtype)
    first = neutral(how, kind) if how == SUM else _first(how, t)
    edges = _bounds(asked, found, backend)
    result = result if how == SUM else t
    if not asked.size or found.size == 1:
        return filled(0, result, asked.shape, asked, out, backend)
    rule = Rule(how, VALUE, kind, first)
    made = _run(rule, near(asked, backend), edges, asked.size, result, bool(exclusive), out, backend)
    return handed(made, asked, out)


def _run(
    rule: Rule,
    x: Any,
    limits: Any,
    longest: int,
    result: DataType,
    exclusive: bool,
    out: Any,
    backend: str | None,
) -> Any:
    """What is before each block of a segment is found in the same way, from the totals of the blocks."""
    segments = limits.size - 1
    count = 2 * x.size // BLOCK if longest > BLOCK else 0
    consts = {"how": rule.how, "kind": KINDS.index(rule.kind), "T": element_of(x), "A": rule.kind}
    if longest <= BLOCK:
        starts, before = limits, filled(rule.first, rule.kind, (1,), x, None, backend)
    else:
        starts = _starts(limits, 1, BLOCK, segments, backend)
        sums = chosen(totals, backend, **consts)(x, limits, starts, rule.first, sizes={"out": count}, domain=count)
        before = _run(rule, sums, starts, -(-longest // BLOCK), rule.kind, True, None, backend)
    step = chosen(runs, backend, **consts, exclusive=exclusive, R=result)
    launch = {"domain": count + segments}
    return step(x, limits, starts, rule.first, count, before, out=out, sizes={"out": x.shape}, **launch)
