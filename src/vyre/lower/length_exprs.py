"""Numbers that follow from the lengths of buffers, and from words in them, as plain data to store with code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from ..foundation.ir.dtypes import u32

if TYPE_CHECKING:
    from .kernel_ir import Ins, Plane

Share: TypeAlias = "list[Any]"
"""[operation, type, constant or slot, operands...]; of a word, the slot and its index instead."""
PlainPlane: TypeAlias = "tuple[Share | None, list[tuple[int, bool, Share]]]"
"""The width and the bounds of a `Plane`."""


def plain(value: Ins) -> Share:
    """A value for which `from_lengths` holds, or one of a plane; it is a small tree."""
    if value.op == "load":
        return [value.op, value.dtype, [value.attr.slot, value.args[0].attr]]
    at = value.attr.slot if value.op == "len" else value.attr
    return [value.op, value.dtype, at, *map(plain, value.args)]


def plain_plane(plane: Plane) -> PlainPlane:
    width = None if plane.width is None else plain(plane.width)
    return width, [(axis, below, plain(bound)) for axis, below, bound in plane.bounds]


def words_of(plane: PlainPlane) -> list[tuple[int, int]]:
    """Slot and index of the words that a plane depends on."""
    width, bounds = plane
    found: dict[tuple[int, int], None] = {}
    unvisited = [share for share in (width, *(share for _, _, share in bounds)) if share is not None]
    while unvisited:
        op, _, at, *args = unvisited.pop()
        if op == "load":
            found[at[0], at[1]] = None
        unvisited += args
    return list(found)


def fills(
    plane: PlainPlane, count: int, extent: Sequence[int], lengths: Sequence[int], words: dict[tuple[int, int], int]
) -> bool:
    """Whether all of `count` elements are stored, by so many invocations along each axis."""

    def value(share: Share) -> int:
        return number(_with(share, words), lengths)

    width, bounds = plane
    wide = count if width is None else value(width)
    if not count or not wide:
        return not count
    last = min(wide, count) - 1, (count - 1) // wide, 0
    if any(k >= n for k, n in zip(last, extent, strict=True)):
        return False
    return all(last[axis] + (1 if below else 0) <= value(bound) for axis, below, bound in bounds)


def _with(share: Share, words: dict[tuple[int, int], int]) -> Share:
    """A share of lengths alone, for these words."""
    op, dtype, at, *args = share
    if op == "load":
        return ["const", dtype, words[at[0], at[1]]]
    return [op, dtype, at, *(_with(a, words) for a in args)]


def number(share: Share, lengths: Sequence[int]) -> int:
    """The value, for buffers of these lengths by slot."""
    return int(share[2]) if share[0] == "const" else _evaluator()(share, lengths)


@cache
def _evaluator() -> Callable[[Share, Sequence[int]], int]:
    """With the kernel form, which a process that loads its code from disk mostly does without."""
    from .kernel_ir import Buffer, Ins
    from .passes.full_stores import share_of

    def revived(share: Share) -> Ins:
        op, dtype, at, *args = share
        attr = Buffer("", at, u32) if op == "len" else at
        return Ins(op, dtype, tuple(map(revived, args)), attr)

    return lambda share, lengths: share_of(revived(share), lengths)
