"""Choosing, counting, fetching and putting elements. `docs/libs/pick.md` defines each result."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError, shown
from ..foundation.ir.dtypes import DataType, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from ..front.arrays import ARRAY_DTYPES
from ..front.device.array import DeviceBuffer, device_of
from ..front.sequence.now import refuse_to_read
from . import prefix, reduce, segments
from .arguments import (
    TYPES,
    Given,
    beside,
    bits_of,
    check_out,
    chosen,
    counted,
    element_of,
    extent,
    fill,
    filled,
    given,
    handed,
    near,
    on,
    target_of,
)
from .pick_kernels import (
    SEGMENT,
    binned,
    claimed,
    evenly,
    kept,
    kept_of,
    merged,
    placed,
    put,
    taken_at,
    tallied,
    where_kept,
)
from .reduce_kernels import LEAST, MOST, SUM
from .sort import CARRIED, How, Row, ordered
from .sort_kernels import UNSIGNED, found_at

__all__ = [
    "bincount",
    "compact",
    "histogram",
    "nonzero",
    "partition",
    "scatter",
    "scatter_add",
    "scatter_max",
    "scatter_min",
    "take",
]

WHOLE = (u32, i32, u8, i8, u16, i16, u64, i64)
SUMMED = (f32, f64, i32, u32, i64, u64)
BINNED = (f32, f16, f64, u8, u16, i8, i16)
"""What is a float exactly."""


def compact(x: Any, mask: Any, *, size: int | None = None, out: Any = None, backend: str | None = None) -> Any:
    """The elements for which the mask is true, in their order, as one row.

    `size` makes the row that long, cut or filled up with 0, as does the length of `out`: inside a sequence, nothing
    else says how long it is.
    """
    asked, flags = _masked(x, mask)
    bits = bits_of(asked.dtype)
    starts, length = _starts(flags, size, out, backend)
    if not length or not flags.size:
        return filled(0, element_of(asked), (length,), asked, out, backend)
    target = None if out is None else target_of(out, asked.dtype).view(bits)
    step = chosen(kept, backend, rest=False, T=TYPES[bits.newbyteorder("=")])
    found = step(asked.view(bits), flags, starts, out=target, sizes={"out": (length,)}, domain=_segments(flags))
    return handed(found.view(asked.dtype.newbyteorder("=")), asked, out)


def nonzero(x: Any, *, size: int | None = None, out: Any = None, backend: str | None = None) -> Any:
    """The places of the elements that are not zero, in the flattened array, as u32. NaN is not zero.

    `size` and `out` are those of `compact`.
    """
    asked = given("x", x, reduce.ANY)
    starts, length = _starts(asked, size, out, backend)
    if not length or not asked.size:
        return filled(0, u32, (length,), asked, out, backend)
    step = chosen(where_kept, backend, T=element_of(asked))
    found = step(asked, starts, out=out, sizes={"out": (length,)}, domain=_segments(asked))
    return handed(found, asked, out)


def partition(x: Any, mask: Any, *, out: Any = None, backend: str | None = None) -> tuple[Any, Any]:
    """The elements for which the mask is true and behind them the others, both in order; and how many are true."""
    asked, flags = _masked(x, mask)
    shape, bits = (asked.size,), bits_of(asked.dtype)
    check_out(out, shape)
    count = handed(reduce.count(flags, backend=backend), asked, None)
    if not asked.size:
        return filled(0, element_of(asked), shape, asked, out, backend), count
    starts = _begins(flags, backend)
    target = None if out is None else target_of(out, asked.dtype).view(bits)
    step = chosen(kept, backend, rest=True, T=TYPES[bits.newbyteorder("=")])
    found = step(asked.view(bits), flags, starts, out=target, sizes={"out": shape}, domain=_segments(flags))
    return handed(found.view(asked.dtype.newbyteorder("=")), asked, out), count


def take(x: Any, places: Any, axis: int | None = None, *, out: Any = None, backend: str | None = None) -> Any:
    """The elements at these places of the flattened array, or of an axis. Places below zero count from the end."""
    asked, p = given("x", x, CARRIED), given("places", places, WHOLE)
    if isinstance(axis, tuple):
        raise ArgumentValueError(f"axis={shown(axis)} is not one axis", fix="pass one number")
    e = extent(asked, axis)
    k = 0 if axis is None else int(axis) % asked.ndim
    shape = p.shape if axis is None else (*asked.shape[:k], *p.shape, *asked.shape[k + 1 :])
    check_out(out, shape)
    where = asked if isinstance(p, np.ndarray) else p
    if not math.prod(shape):
        return filled(0, element_of(asked), shape, where, out, backend)
    found = _placed(p, e.length, asked, backend)
    bits = bits_of(asked.dtype)
    target = None if out is None else target_of(out, asked.dtype).view(bits)
    step = chosen(taken_at, backend, T=TYPES[bits.newbyteorder("=")])
    raw = step(near(asked, backend).view(bits), found, e.length, e.inner, out=target, sizes={"out": shape})
    return handed(raw.view(asked.dtype.newbyteorder("=")), where, out)


def scatter(into: Any, places: Any, values: Any, *, out: Any = None, backend: str | None = None) -> Any:
    """A copy with the values put at these places of the first axis. Of several for one place, the last one is there."""
    asked, p, v = _scattered(into, places, values, CARRIED)
    inner = math.prod(asked.shape[1:])
    check_out(out, asked.shape)
    if not asked.size:
        _placed(p, asked.shape[0], asked, backend)
        return filled(0, element_of(asked), asked.shape, asked, out, backend)
    bits = bits_of(asked.dtype)
    zeros = beside(chosen(fill, backend, T=u32)(0, sizes={"out": asked.shape[0]}), asked)
    winner = on(claimed, backend)(_placed(p, asked.shape[0], asked, backend), zeros) if p.size else zeros
    target = None if out is None else target_of(out, asked.dtype).view(bits)
    step = chosen(put, backend, T=TYPES[bits.newbyteorder("=")])
    raw = step(asked.view(bits), v.view(bits_of(v.dtype)), winner, inner, out=target, sizes={"out": asked.shape})
    return handed(raw.view(asked.dtype.newbyteorder("=")), asked, out)


def scatter_add(into: Any, places: Any, values: Any, *, out: Any = None, backend: str | None = None) -> Any:
    """A copy of a row, in which each element has become its sum with the sum of the values for its place.

    The values for one place are added in their order, by the definition of `reduce.sum`.
    """
    return _merged(SUM, into, places, values, out, backend)


def scatter_min(into: Any, places: Any, values: Any, *, out: Any = None, backend: str | None = None) -> Any:
    """A copy of a row with the least of each element and the values for its place."""
    return _merged(LEAST, into, places, values, out, backend)


def scatter_max(into: Any, places: Any, values: Any, *, out: Any = None, backend: str | None = None) -> Any:
    """A copy of a row with the greatest of each element and the values for its place."""
    return _merged(MOST, into, places, values, out, backend)


def bincount(
    x: Any, size: int | None = None, *, weights: Any = None, out: Any = None, backend: str | None = None
) -> Any:
    """How often each number below `size` is there, as u32, or the sum of the weights of its elements.

    Without a size, all numbers up to the greatest are counted.
    """
    asked = given("x", x, WHOLE)
    if size is None and out is None:
        refuse_to_read("the greatest number was read", "pass size=, one more than the greatest number can be")
        size = int(np.asarray(reduce.max(asked, backend=backend))) + 1 if asked.size else 0
    size = counted("size", max(size, 0) if size is not None else math.prod(getattr(out, "shape", (0,))))
    check_out(out, (size,))
    if weights is not None:
        weighed = given("weights", weights, SUMMED)
        zeros = beside(chosen(fill, backend, T=element_of(weighed))(0, sizes={"out": size}), weighed)
        return scatter_add(zeros, asked, weighed, out=out, backend=backend)
    zeros = chosen(fill, backend, T=u32)(0, out=out, sizes={"out": size})
    if asked.size:
        zeros = chosen(tallied, backend, N=element_of(asked))(asked, zeros if out is None else out)
    return handed(zeros, asked, out)


def histogram(
    x: Any, bins: Any = 10, range: Any = None, *, out: Any = None, backend: str | None = None
) -> tuple[Any, Any]:
    """How many elements lie in each bin, as u32, and the edges of the bins.

    Bin k holds what is not below edge k and below the next one; the last bin holds its upper edge too. What lies
    outside, and NaN, is in none. `bins` is how many equal ones there are in `range`, a pair of numbers, or all edges.
    """
    asked = given("x", x, BINNED)
    kind = f64 if element_of(asked) is f64 else f32
    wide, scale = kind is f64, 0.0
    even = isinstance(bins, int | np.integer) and not isinstance(bins, bool)
    if even:
        low, high, step = _even(asked, int(bins), range, kind, backend)
        scale = 1 / step if step > 1e-30 else 0.0
        edges = chosen(evenly, backend, wide=wide, A=kind)(low, high, step, sizes={"out": int(bins) + 1})
    else:
        edges = _edges(bins, kind)
    count = edges.size - 1
    check_out(out, (count,))
    counts = chosen(fill, backend, T=u32)(0, out=out, sizes={"out": count})
    if asked.size:
        scale = scale if wide else float(np.float32(scale))
        by_edges = chosen(binned, backend, even=even, wide=wide, T=element_of(asked), A=kind)
        counts = by_edges(asked, beside(edges, asked), scale, counts if out is None else out)
    return handed(counts, asked, out), handed(edges, asked, None)


# ---- what they share -------------------------------------------------------------------------------------------------


def _masked(x: Any, mask: Any) -> tuple[Given, Given]:
    asked, flags = given("x", x, CARRIED), given("mask", mask, (bool_,))
    if asked.shape != flags.shape:
        raise ArgumentValueError(
            f"x has shape {asked.shape} and mask {flags.shape}", fix="pass a mask of the shape of x"
        )
    return asked, flags


def _segments(x: Given) -> int:
    return -(-x.size // SEGMENT)


def _begins(flags: Given, backend: str | None) -> Any:
    """Where what each segment keeps begins, and behind that where the rest of each does."""
    step = chosen(kept_of, backend, T=element_of(flags))
    many = _segments(flags)
    table = step(flags, flags.size, sizes={"table": 2 * many}, domain=many)
    return prefix.sum(table, exclusive=True, backend=backend)


def _starts(flags: Given, size: Any, out: Any, backend: str | None) -> tuple[Any, int]:
    """Those, and how long the result is: as the caller says, or else as many as are kept."""
    there = getattr(out, "shape", None)
    starts = _begins(flags, backend) if flags.size else None
    if size is None and there is None:
        refuse_to_read("the number of elements that were kept was read", "pass size=, how long the result shall be")
        return starts, int(np.asarray(starts)[_segments(flags)]) if flags.size else 0
    length = counted("size", size if size is not None else math.prod(there or ()))
    check_out(out, (length,))
    return starts, length


def _placed(p: Given, length: int, like: Given, backend: str | None) -> Any:
    """Places as u32, of an axis of this length."""
    if not p.size:
        return p
    t = element_of(p)
    step = chosen(placed, backend, signed=t in (i8, i16, i32, i64), N=t)
    return beside(step(p, length, sizes={"out": p.size}), like)


def _scattered(into: Any, places: Any, values: Any, allowed: tuple[DataType, ...]) -> tuple[Given, Given, Given]:
    asked, p, v = given("into", into, allowed), given("places", places, WHOLE), given("values", values, allowed)
    if element_of(v) is not element_of(asked):
        raise ArgumentTypeError(
            f"into holds {asked.dtype} and values {v.dtype}", fix=f"pass values.astype(np.{asked.dtype})"
        )
    if not asked.ndim or p.ndim != 1 or v.shape != (*p.shape, *asked.shape[1:]):
        raise ArgumentValueError(
            f"into has shape {asked.shape}, places {p.shape} and values {v.shape}",
            fix="pass places as one row of numbers of the first axis of into, and for each a value or row of values",
        )
    return asked, p, v


def _merged(how: int, into: Any, places: Any, values: Any, out: Any, backend: str | None) -> Any:
    asked, p, v = _scattered(into, places, values, SUMMED)
    if asked.ndim != 1:
        raise ArgumentValueError(f"into has shape {asked.shape} and not one axis", fix="pass one row")
    n, t = asked.size, element_of(asked)
    check_out(out, (n,))
    found = _placed(p, n, asked, backend)
    counts = beside(chosen(fill, backend, T=u32)(0, sizes={"out": n}), asked)
    if p.size:
        counts = chosen(tallied, backend, N=u32)(found, counts)
    limits = segments.offsets(counts, backend=backend)
    if not p.size or not n:
        sums = filled(0, t, (n,), asked, None, backend)
    else:
        row = Row(1, p.size, 1, (p.size,))
        order = ordered(How(UNSIGNED, 32, False), found, row, None, backend, used=max((n - 1).bit_length(), 1))
        bits = bits_of(v.dtype)
        step = chosen(found_at, backend, V=TYPES[bits.newbyteorder("=")])
        sorted_ = step(near(v, backend).view(bits), order, p.size, p.size, sizes={"out": p.size})
        join = {SUM: segments.sum, LEAST: segments.min, MOST: segments.max}[how]
        sums = join(sorted_.view(v.dtype.newbyteorder("=")), limits, backend=backend)
    step = chosen(merged, backend, how=how, T=t)
    return handed(step(asked, sums, limits, out=out, sizes={"out": (n,)}), asked, out)


def _even(x: Given, bins: int, range: Any, kind: DataType, backend: str | None) -> tuple[float, float, float]:
    """Where so many equal bins begin and end, and how wide each is, as numbers of this type."""
    if not 1 <= bins <= 1 << 24:
        raise ArgumentValueError(f"bins={bins}", fix="pass a number from 1 to 2**24, or all edges")
    if range is None:
        refuse_to_read("the least and the greatest element were read", "pass range=(low, high)")
        low, high = 0.0, 1.0
        if x.size:
            low, high = (float(np.asarray(f(x, backend=backend))) for f in (reduce.min, reduce.max))
    else:
        try:
            low, high = (float(v) for v in range)
        except (TypeError, ValueError) as e:
            raise ArgumentTypeError(f"range={shown(range)} is no pair of numbers", fix="pass range=(low, high)") from e
    if low == high:
        low, high = low - 0.5, high + 0.5
    rounded: Any = np.float64 if kind is f64 else np.float32
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = float(rounded(low)), float(rounded(high))
        step = float(rounded((high - low) / bins))
    if not (math.isfinite(step) and low < high):
        raise ArgumentValueError(
            f"the range from {low} to {high} has no bins", fix="pass range=(low, high), finite and in order"
        )
    return low, high, step


def _edges(bins: Any, kind: DataType) -> Given:
    if device_of(bins) is not None or type(bins) is DeviceBuffer:
        found = given("bins", bins, (kind,))
        if found.ndim == 1 and found.size > 1:
            return found
    else:
        there = np.asarray(bins)
        if there.ndim == 1 and there.size > 1 and there.dtype.kind in "iuf":
            if not (np.diff(there) >= 0).all():
                raise ArgumentValueError("the edges of the bins do not ascend", fix="pass np.sort(edges)")
            return there.astype(ARRAY_DTYPES[kind.name])
    raise ArgumentTypeError(f"bins={shown(bins)} are no edges", fix="pass how many bins, or two edges or more")
