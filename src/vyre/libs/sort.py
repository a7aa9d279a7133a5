"""Stable sorting, and what follows from it. `docs/libs/sort.md` says in which order."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError, shown
from ..foundation.ir.dtypes import bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from ..front.sequence.now import refuse_to_read
from . import prefix
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
from .linalg import turned
from .sort_kernels import (
    DIGIT,
    DIGITS,
    DISTINCT,
    FLOATING,
    NETWORK,
    SEGMENT,
    SHORT,
    SIGNED,
    UNSIGNED,
    before,
    begins,
    digits,
    distinct_ones,
    first_of_rows,
    found_at,
    how_often,
    inserted,
    moved,
    moved_with,
    networked,
    numbered,
    places,
)

__all__ = ["argsort", "pairs", "searchsorted", "sort", "topk", "unique"]

SORTED = (f32, u32, i32, f16, u8, i8, u16, i16, f64, u64, i64)
CARRIED = (*SORTED, bool_)
"""What goes along with keys."""


def sort(
    x: Any, axis: int | None = -1, *, descending: bool = False, out: Any = None, backend: str | None = None
) -> Any:
    """The elements along an axis from the least to the greatest, or the other way. No bit of an element changes."""
    asked = given("x", x, SORTED)
    row = _row(asked, axis, out)
    if not asked.size:
        return filled(0, element_of(asked), row.shape, asked, out, backend)
    target = None if out is None else target_of(out, asked.dtype).view(bits_of(asked.dtype))
    how = How.of(asked, descending)
    keys = row.last(near(asked, backend).view(bits_of(asked.dtype)), backend)
    there = target if row.inner == 1 else None
    if row.length <= NETWORK:
        order = _at_once(how, keys, row, None, backend)
        found = _at(keys, order, row.length, row.length, there, backend)
    else:
        found, _ = _by_digits(how, keys, None, row, there, None, backend)
    raw = row.back(found, target, backend)
    return handed(raw.view(asked.dtype.newbyteorder("=")), asked, out)


def argsort(
    x: Any, axis: int | None = -1, *, descending: bool = False, out: Any = None, backend: str | None = None
) -> Any:
    """The places of the elements along an axis, in their order, as u32; equal ones one after the other as they are."""
    asked = given("x", x, SORTED)
    row = _row(asked, axis, out)
    if not asked.size:
        return filled(0, u32, row.shape, asked, out, backend)
    target = None if out is None else target_of(out, np.dtype(np.uint32))
    keys = row.last(near(asked, backend).view(bits_of(asked.dtype)), backend)
    there = target if row.inner == 1 else None
    order = ordered(How.of(asked, descending), keys, row, there, backend)
    return handed(row.back(order, target, backend), asked, out)


def pairs(
    keys: Any,
    values: Any,
    axis: int | None = -1,
    *,
    descending: bool = False,
    out: tuple[Any, Any] | None = None,
    backend: str | None = None,
) -> tuple[Any, Any]:
    """The keys in their order, and the values, an array of the same shape, as they go with them."""
    asked, carried = given("keys", keys, SORTED), given("values", values, CARRIED)
    if asked.shape != carried.shape:
        raise ArgumentValueError(
            f"keys have shape {asked.shape} and values {carried.shape}",
            fix="pass arrays of one shape, or take more with pick.take(values, sort.argsort(keys), axis=0)",
        )
    first, second = _two(out)
    row = _row(asked, axis, first)
    check_out(second, row.shape)
    if not asked.size:
        return (
            filled(0, element_of(asked), row.shape, asked, first, backend),
            filled(0, element_of(carried), row.shape, asked, second, backend),
        )
    how = How.of(asked, descending)
    raw = row.last(near(asked, backend).view(bits_of(asked.dtype)), backend)
    also = row.last(near(carried, backend).view(bits_of(carried.dtype)), backend)
    n = row.length
    targets = [
        None if o is None else target_of(o, x.dtype).view(bits_of(x.dtype))
        for o, x in ((first, asked), (second, carried))
    ]
    there = targets if row.inner == 1 else [None, None]
    if n <= NETWORK:
        order = _at_once(how, raw, row, None, backend)
        raw = _at(raw, order, n, n, there[0], backend)
        also = _at(also, order, n, n, there[1], backend)
    else:
        raw, also = _by_digits(how, raw, also, row, there[0], there[1], backend)
    raw, also = row.back(raw, targets[0], backend), row.back(also, targets[1], backend)
    where = asked if isinstance(carried, np.ndarray) else carried
    return (
        handed(raw.view(asked.dtype.newbyteorder("=")), where, first),
        handed(also.view(carried.dtype.newbyteorder("=")), where, second),
    )


def topk(
    x: Any, k: Any, *, largest: bool = True, out: tuple[Any, Any] | None = None, backend: str | None = None
) -> tuple[Any, Any]:
    """The k greatest elements of each row, or the k least, in order, and their places in it as u32.

    Of equal ones the first come first. NaN is the greatest of all.
    """
    asked = given("x", x, SORTED)
    row = _row(asked, -1, None)
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 0 <= k <= row.length:
        raise ArgumentValueError(
            f"k={shown(k)} of {row.length} elements", fix=f"pass a whole number from 0 to {row.length}"
        )
    shape = (*asked.shape[:-1], int(k))
    first, second = _two(out)
    check_out(first, shape)
    check_out(second, shape)
    if not math.prod(shape):
        return (
            filled(0, element_of(asked), shape, asked, first, backend),
            filled(0, u32, shape, asked, second, backend),
        )
    bits = bits_of(asked.dtype)
    keys = near(asked, backend).view(bits)
    order = ordered(How.of(asked, largest), keys, row, None, backend)
    step = chosen(first_of_rows, backend, V=u32)
    target = None if second is None else target_of(second, np.dtype(np.uint32))
    where = step(beside(order, keys), row.length, k, out=target, sizes={"out": shape})
    target = None if first is None else target_of(first, asked.dtype).view(bits)
    values = _at(keys, where, row.length, int(k), target, backend, shape)
    return handed(values.view(asked.dtype.newbyteorder("=")), asked, first), handed(where, asked, second)


def unique(
    x: Any,
    *,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    size: int | None = None,
    backend: str | None = None,
) -> Any:
    """The different elements in order, by their bits: -0 is not +0, and NaN with other bits are others, at the end.

    With these, also as u32: where each stands first, the number of its value for each element, and how often each is
    there. `size` makes results that long, cut or filled up with 0: inside a sequence, nothing else says how long.
    """
    asked = given("x", x, SORTED)
    n, bits = asked.size, bits_of(asked.dtype)
    if n:
        keys = near(asked, backend).view(bits)
        order = ordered(How.of(asked, False, distinct=True), keys, Row(1, n, 1, (n,)), None, backend)
        new = chosen(begins, backend, T=TYPES[bits.newbyteorder("=")])(keys, order, sizes={"out": n})
        upto = prefix.sum(new, backend=backend)
    if size is None:
        refuse_to_read("the number of different elements was read", "pass size=, how long the results shall be")
        size = int(np.asarray(upto)[-1]) if n else 0
    else:
        size = counted("size", size)
    shape, empty = (size,), not n or not size
    if empty:
        first, where, counts = (filled(0, t, shape, asked, None, backend) for t in (element_of(asked), u32, u32))
    else:
        step = chosen(distinct_ones, backend, T=TYPES[bits.newbyteorder("=")])
        raw, where = step(keys, order, upto, sizes={"out": shape, "where": shape}, domain=n)
        first, where = handed(raw.view(asked.dtype.newbyteorder("=")), asked, None), handed(where, asked, None)
    found = [first]
    if return_index:
        found.append(where)
    if return_inverse:
        inverse = on(numbered, backend)(order, upto, sizes={"out": asked.shape}, domain=n) if n else None
        found.append(filled(0, u32, asked.shape, asked, None, backend) if not n else handed(inverse, asked, None))
    if return_counts:
        if not empty:
            zeros = chosen(fill, backend, T=u32)(0, sizes={"out": shape})
            counts = handed(on(how_often, backend)(upto, zeros), asked, None)
        found.append(counts)
    return tuple(found) if len(found) > 1 else first


def searchsorted(x: Any, values: Any, side: str = "left", *, out: Any = None, backend: str | None = None) -> Any:
    """Where values would go in rows that are sorted, as u32: before the elements that are equal, or on the `right`.

    x has one row, or one for each row of the values. The order is that of `sort`.
    """
    asked, found = given("x", x, SORTED), given("values", values, SORTED)
    t = element_of(asked)
    if element_of(found) is not t:
        raise ArgumentTypeError(
            f"x holds {asked.dtype} and values {found.dtype}", fix=f"pass values.astype(np.{asked.dtype})"
        )
    if not asked.ndim or (asked.ndim > 1 and asked.shape[:-1] != found.shape[:-1]):
        raise ArgumentValueError(
            f"x has shape {asked.shape} and values {found.shape}", fix="pass one row as x, or a row for each of values"
        )
    if side not in ("left", "right"):
        raise ArgumentValueError(f"side={shown(side)}", fix='pass side="left" or side="right"')
    check_out(out, found.shape)
    where = asked if isinstance(found, np.ndarray) else found
    length = asked.shape[-1]
    if not found.size or not length:
        return filled(0, u32, found.shape, where, out, backend)
    how, bits = How.of(asked, False), bits_of(asked.dtype)
    consts = {"order": how.order, "bits": how.bits, "right": side == "right", "T": TYPES[bits.newbyteorder("=")]}
    step = chosen(before, backend, **consts)
    each = found.size if asked.ndim == 1 else found.shape[-1]
    result = step(asked.view(bits), found.view(bits_of(found.dtype)), length, each, out=out, sizes={"out": found.shape})
    return handed(result, where, out)


# ---- what they share -------------------------------------------------------------------------------------------------


class How(NamedTuple):
    """In which order elements are, by their bits."""

    order: int
    bits: int
    down: bool

    @classmethod
    def of(cls, x: Given, descending: bool, *, distinct: bool = False) -> How:
        order = {"u": UNSIGNED, "i": SIGNED, "f": DISTINCT if distinct else FLOATING}[x.dtype.kind]
        return cls(order, 8 * x.dtype.itemsize, bool(descending))

    def consts(self, x: Any) -> dict[str, Any]:
        """For kernels over these bits, in the order of their names."""
        t = TYPES[x.dtype.newbyteorder("=")]
        return {"order": self.order, "bits": self.bits, "down": self.down, "T": t}


class Row(NamedTuple):
    """What is sorted: element k of row (o, i) is at `(o * length + k) * inner + i`."""

    outer: int
    length: int
    inner: int
    shape: tuple[int, ...]

    def last(self, x: Any, backend: str | None) -> Any:
        """The array with the elements of each row one after the other."""
        return x if self.inner == 1 else turned(x, self.outer, self.length, self.inner, None, self.shape, backend)

    def back(self, x: Any, out: Any, backend: str | None) -> Any:
        """That undone."""
        return x if self.inner == 1 else turned(x, self.outer, self.inner, self.length, out, self.shape, backend)


def _row(x: Given, axis: Any, out: Any) -> Row:
    if not x.ndim:
        raise ArgumentValueError("x has no axes, along which it would be sorted", fix="pass an array with one or more")
    if isinstance(axis, tuple):
        raise ArgumentValueError(f"axis={shown(axis)} is not one axis", fix="pass one number")
    e = extent(x, axis)
    shape = x.shape if axis is not None else (x.size,)
    check_out(out, shape)
    return Row(e.outer, e.length, e.inner, shape)


def _two(out: Any) -> tuple[Any, Any]:
    if out is None:
        return None, None
    if not isinstance(out, tuple) or len(out) != 2:
        raise ArgumentTypeError("out is not a tuple of two arrays", fix="pass out=(first, second), or drop out")
    return out


def _at(x: Any, order: Any, length: int, kept: int, out: Any, backend: str | None, shape: Any = None) -> Any:
    """The elements of rows at `kept` places of each."""
    step = chosen(found_at, backend, V=TYPES[x.dtype.newbyteorder("=")])
    return step(x, order, length, kept, out=out, sizes={"out": order.shape if shape is None else shape})


def ordered(how: How, keys: Any, row: Row, out: Any, backend: str | None, *, used: int | None = None) -> Any:
    """The places of the elements of each row in order. `used` is how many of their bits are."""
    if row.length <= NETWORK:
        return _at_once(how, keys, row, out, backend)
    first = beside(on(places, backend)(row.length, sizes={"out": row.shape}), keys)
    return _by_digits(how, keys, first, row, None, out, backend, used=used)[1]


def _at_once(how: How, keys: Any, row: Row, out: Any, backend: str | None) -> Any:
    """The same of short rows."""
    consts, n, count = how.consts(keys), row.length, row.outer * row.inner
    if n <= SHORT:
        return chosen(inserted, backend, **consts)(keys, n, out=out, sizes={"out": row.shape}, domain=count)
    size = 1 << (n - 1).bit_length()
    return chosen(networked, backend, **consts)(keys, n, size, out=out, sizes={"out": row.shape}, grid=count)


def _by_digits(
    how: How, x: Any, y: Any, row: Row, out: Any, also: Any, backend: str | None, *, used: int | None = None
) -> tuple[Any, Any]:
    """The bits x in order, and y with them if there is one."""
    consts, used = how.consts(x), how.bits if used is None else used
    parts = -(-row.length // SEGMENT)
    count = row.outer * row.inner
    launch: dict[str, Any] = {"domain": count * parts}
    for shift in range(0, used, DIGIT):
        last = shift + DIGIT >= used
        table = chosen(digits, backend, **consts)(
            x, row.length, shift, sizes={"table": (count, parts * DIGITS)}, **launch
        )
        starts = prefix.sum(table, 1, exclusive=True, backend=backend)
        there = out if last else None
        if y is None:
            step = chosen(moved, backend, **consts)
            x = step(x, starts, row.length, shift, out=there, sizes={"out": row.shape}, **launch)
        else:
            with_it = chosen(moved_with, backend, **consts, V=TYPES[y.dtype.newbyteorder("=")])
            sizes = {"out": row.shape, "also": row.shape}
            there_too = also if last else None
            x, y = with_it(x, y, starts, row.length, shift, out=there, also=there_too, sizes=sizes, **launch)
    return x, y
