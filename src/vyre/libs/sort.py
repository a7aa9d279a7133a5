"""Stable sorting along the last axis. `docs/libs/sort.md` says in which order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import ArgumentValueError
from ..foundation.ir.dtypes import f16, f32, i8, i16, i32, u8, u16, u32
from ..front.device.array import to_device
from . import prefix
from .arguments import TYPES, Given, bits_of, check_out, chosen, element_of, filled, given, handed, near, on, target_of
from .sort_kernels import DIGIT, DIGITS, FLOATING, SEGMENT, SIGNED, UNSIGNED, digits, moved, moved_with, places

__all__ = ["argsort", "sort"]

SORTED = (f32, u32, i32, f16, u8, i8, u16, i16)


def sort(x: Any, *, out: Any = None, backend: str | None = None) -> Any:
    """The elements along the last axis from the least to the greatest. No bit of an element changes."""
    asked, found = _rows(x, out, backend)
    if found is None:
        return filled(0, element_of(asked), asked.shape, asked, out, backend)
    target = None if out is None else target_of(out, asked.dtype).view(bits_of(asked.dtype))
    raw, _ = _by_digits(asked, found, None, target, None, backend)
    return handed(raw.view(asked.dtype.newbyteorder("=")), asked, out)


def argsort(x: Any, *, out: Any = None, backend: str | None = None) -> Any:
    """The places of the elements along the last axis, from least to greatest, as u32; equal ones in order."""
    asked, found = _rows(x, out, backend)
    if found is None:
        return filled(0, u32, asked.shape, asked, out, backend)
    first = on(places, backend)(asked.shape[-1], sizes={"out": asked.shape})
    target = None if out is None else target_of(out, np.dtype(np.uint32))
    _, order = _by_digits(asked, found, _beside(first, found), None, target, backend)
    return handed(order, asked, out)


def _beside(made: Any, x: Given) -> Any:
    """An array of the host where x is, if that is a device: calls take both."""
    return made if isinstance(x, np.ndarray) or not isinstance(made, np.ndarray) else to_device(made, x.device)


def _rows(x: Any, out: Any, backend: str | None) -> tuple[Given, Given | None]:
    """The array that was passed, and its bits where several calls read them; None if it has none."""
    asked = given("x", x, SORTED)
    if not asked.ndim:
        raise ArgumentValueError("x has no axes, along which it would be sorted", fix="pass an array with one or more")
    check_out(out, asked.shape)
    return asked, near(asked, backend).view(bits_of(asked.dtype)) if asked.size else None


def _by_digits(like: Given, x: Any, y: Any, out: Any, also: Any, backend: str | None) -> tuple[Any, Any]:
    """The bits x in the order of `like`, and y with them if there is one."""
    length, outer = like.shape[-1], math.prod(like.shape[:-1])
    bits = 8 * like.dtype.itemsize
    order = {"u": UNSIGNED, "i": SIGNED, "f": FLOATING}[like.dtype.kind]
    consts: dict[str, Any] = {"order": order, "bits": bits, "T": TYPES[x.dtype.newbyteorder("=")]}
    segments = outer * -(-length // SEGMENT)
    for shift in range(0, bits, DIGIT):
        last = shift + DIGIT == bits
        table = chosen(digits, backend, **consts)(
            x, length, shift, sizes={"table": (outer, segments // outer * DIGITS)}, domain=segments
        )
        starts = prefix.sum(table, 1, exclusive=True, backend=backend)
        if y is None:
            x = chosen(moved, backend, **consts)(
                x, starts, length, shift, out=out if last else None, sizes={"out": like.shape}, domain=segments
            )
        else:
            x, y = chosen(moved_with, backend, **consts)(
                x,
                y,
                starts,
                length,
                shift,
                also=also if last else None,
                sizes={"out": like.shape, "also": like.shape},
                domain=segments,
            )
    return x, y
