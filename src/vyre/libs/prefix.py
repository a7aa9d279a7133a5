"""Running sums and extremes along an axis. `docs/libs/prefix.md` defines them to the bit."""

from __future__ import annotations

import math
from typing import Any

from ..errors import ArgumentValueError, shown
from ..foundation.ir.dtypes import DataType
from .arguments import Extent, Given, check_out, chosen, element_of, extent, filled, given, handed, near
from .prefix_kernels import BLOCK, SEGMENT, run, run_beside, starts, starts_beside
from .reduce import ANY, KINDS, neutral, summed_as
from .reduce_kernels import LEAST, MOST, SUM

__all__ = ["max", "min", "sum"]


def sum(
    x: Any,
    axis: int | None = None,
    *,
    exclusive: bool = False,
    dtype: Any = None,
    out: Any = None,
    backend: str | None = None,
) -> Any:
    """The sum of the elements up to each one, or with `exclusive` of those before it.

    Integers wrap; narrow ones are added as 32-bit ones, and `dtype` takes a wider type.
    """
    return _along(SUM, x, axis, exclusive, dtype, out, backend)


def min(
    x: Any, axis: int | None = None, *, exclusive: bool = False, out: Any = None, backend: str | None = None
) -> Any:
    """The least of the elements up to each one, or of those before it; NaN from the first NaN on.

    Before the first element that is infinity, or the largest number of the type.
    """
    return _along(LEAST, x, axis, exclusive, None, out, backend)


def max(
    x: Any, axis: int | None = None, *, exclusive: bool = False, out: Any = None, backend: str | None = None
) -> Any:
    """The greatest of the elements up to each one, or of those before it; NaN from the first NaN on.

    Before the first element that is -infinity, or the smallest number of the type.
    """
    return _along(MOST, x, axis, exclusive, None, out, backend)


def _along(how: int, x: Any, axis: Any, exclusive: bool, dtype: Any, out: Any, backend: str | None) -> Any:
    asked = given("x", x, ANY)
    t = element_of(asked)
    kind, result = summed_as(t, dtype)
    if isinstance(axis, tuple):
        raise ArgumentValueError(f"axis={shown(axis)} is not one axis", fix="pass one number")
    e = extent(asked, axis)
    shape = (asked.size,) if axis is None else asked.shape
    check_out(out, shape)
    result = result if how == SUM else t
    if not asked.size:
        return filled(0, result, shape, asked, out, backend)
    found = near(asked, backend)
    first = neutral(how, t if how != SUM else kind)
    numbers = e._replace(shape=shape)
    return handed(_prefixes(how, kind, first, found, numbers, result, bool(exclusive), out, backend), asked, out)


def _prefixes(
    how: int,
    kind: DataType,
    first: Any,
    x: Given,
    e: Extent,
    result: DataType,
    exclusive: bool,
    out: Any,
    backend: str | None,
) -> Any:
    """Of all problems at once. What is before each block is found in the same way, from the totals of the blocks."""
    blocks = -(-e.length // BLOCK)
    count = e.outer * blocks * e.inner
    beside = e.inner > 1
    consts = {"how": how, "kind": KINDS.index(kind), "T": element_of(x), "A": kind}
    numbers = (first, e.length, e.inner) if beside else (first, e.length)
    launch: dict[str, Any] = {"domain": count} if beside else {"grid": count}
    within, totals = chosen(starts_beside if beside else starts, backend, **consts)(
        x, *numbers, sizes={"within": count * SEGMENT, "totals": count}, **launch
    )
    if blocks == 1:
        before = filled(first, kind, (count,), totals, None, backend)
    else:
        above = Extent(e.outer, blocks, e.inner, (math.prod((e.outer, blocks, e.inner)),))
        before = _prefixes(how, kind, first, totals, above, kind, True, None, backend)
    step = chosen(run_beside if beside else run, backend, **consts, exclusive=exclusive, R=result)
    if beside:
        launch = {"domain": count * SEGMENT}
    return step(x, *numbers, within, before, out=out, sizes={"out": e.shape}, **launch)
