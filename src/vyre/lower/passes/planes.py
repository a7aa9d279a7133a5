"""Which outputs are filled row by row, or behind numbers? Whether they are depends on what lies in memory at a call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from ..kernel_ir import PURE, UNSIGNED, Body, Buffer, If, Ins, Kernel, Loop, Plane, PlaneBound, walk

_MOST_STEPS, _MOST_BOUNDS, _MOST_DEPTH = 16, 16, 64
"""What is worth computing at a call, and looking for."""

_Way: TypeAlias = 'tuple[Literal["stored", "open", "lost"], tuple[PlaneBound, ...]]'
"""What is known of invocations at the end of a body, if the bounds hold: each has stored; goes on; or has ended, or may
have, without."""
_NEGATED = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}
_SWAPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def planes(kernel: Kernel) -> dict[str, Plane]:
    """Of buffers that the kernel does not read: before the store they hold rubbish."""
    stores: dict[Buffer, list[Ins]] = {}
    read: set[Buffer] = set()
    changed: set[Buffer] = set()
    for item in walk(kernel.body):
        if isinstance(item, Ins):
            if item.op == "store":
                stores.setdefault(item.attr, []).append(item)
            elif item.op == "load":
                read.add(item.attr)
            elif item.op == "atomic":
                changed.add(item.attr[1])
    found = {}
    for buffer, its in stores.items():
        if buffer.shared or buffer in read or buffer in changed:
            continue
        for width in dict.fromkeys(w for store in its for w in _widths(kernel, store.args[0])):
            rows = _Rows(kernel, buffer, width, changed | stores.keys())
            if width is not None and not rows.is_known(width):
                continue
            state, bounds = rows.body(kernel.body, 0)
            if state == "stored" and len(bounds) <= _MOST_BOUNDS:
                found[buffer.name] = Plane(width, tuple(dict.fromkeys(bounds)))
                break
    return found


def _widths(kernel: Kernel, index: Ins) -> Iterator[Ins | None]:
    """What may be the width, as an index says."""
    if index.op == "select":
        index = index.args[1]
    if _axis(kernel, index) == 0:
        yield None
    elif index.op == "add":
        for row, x in (index.args, index.args[::-1]):
            if row.op == "mul" and _axis(kernel, x) == 0:
                yield from (w for y, w in (row.args, row.args[::-1]) if _axis(kernel, y) == 1)


def _axis(kernel: Kernel, value: Ins) -> int | None:
    """The axis along which it is the global id."""
    axis = value.attr
    return axis if value.op == "gid" or (value.op == "wid" and kernel.workgroup[axis] == 1) else None


class _Rows:
    """Follows the invocations that should store one element each."""

    def __init__(self, kernel: Kernel, buffer: Buffer, width: Ins | None, written: set[Buffer]) -> None:
        self.kernel, self.buffer, self.width, self.written = kernel, buffer, width, written

    def body(self, items: Body, depth: int) -> _Way:
        bounds: tuple[PlaneBound, ...] = ()
        for item in items:
            if isinstance(item, Ins):
                if item.op == "return":
                    return "lost", bounds
                if item.op == "store" and item.attr is self.buffer:
                    more = self.place(item.args[0])
                    if more is not None:
                        return "stored", bounds + more
                continue
            state, more = self.loop(item) if isinstance(item, Loop) else self.branch(item, depth)
            bounds += more
            if state != "open":
                return state, bounds
        return "open", bounds

    def loop(self, loop: Loop) -> _Way:
        """It may not run at all."""
        return ("lost" if any(item.op == "return" for item in walk(loop.body)) else "open"), ()

    def branch(self, item: If, depth: int) -> _Way:
        """Both ways, if they end alike; else the one that is taken where the condition's bounds hold."""
        if depth > _MOST_DEPTH:
            return "lost", ()
        (first, mine), (second, theirs) = (self.body(inner, depth + 1) for inner in (item.then, item.orelse))
        if first == second:
            return first, mine + theirs
        for state, more, truth in ((first, mine, True), (second, theirs, False)):
            if state != "lost" and (bounds := self.assumed(item.condition, truth)) is not None:
                return state, bounds + more
        return ("lost" if "lost" in (first, second) else "open"), ()

    def place(self, index: Ins) -> tuple[PlaneBound, ...] | None:
        """The bounds under which an index is the invocation's own."""
        if index.op == "select":
            bounds = self.assumed(index.args[0], True)
            own = self.place(index.args[1]) if index.args[1].op != "select" else None
            return None if bounds is None or own is None else bounds + own
        return () if any(self.is_width(w) for w in _widths(self.kernel, index)) else None

    def is_width(self, value: Ins | None) -> bool:
        """Whether it is the same value: a word is often read anew at each of its uses."""
        if value is None or self.width is None or value is self.width:
            return value is self.width
        pairs = [(value, self.width)]
        while pairs:
            a, b = pairs.pop()
            if (a.op, a.dtype, a.attr, len(a.args)) != (b.op, b.dtype, b.attr, len(b.args)) or not self.is_known(a):
                return False
            pairs += zip(a.args, b.args, strict=True)
        return True

    def assumed(self, condition: Ins, truth: bool) -> tuple[PlaneBound, ...] | None:
        """Bounds of ids that make a condition so."""
        found: list[PlaneBound] = []
        unvisited = [(condition, truth)]
        while unvisited:
            at, wanted = unvisited.pop()
            if at.op == "not" and at.dtype == "bool":
                unvisited.append((at.args[0], not wanted))
            elif at.op == ("and" if wanted else "or") and at.dtype == "bool":
                unvisited += ((a, wanted) for a in at.args)
            elif at.op in _NEGATED and len(found) < _MOST_BOUNDS:
                op, (own, bound) = at.op if wanted else _NEGATED[at.op], at.args
                if _axis(self.kernel, own) is None:
                    op, own, bound = _SWAPPED[op], bound, own
                axis = _axis(self.kernel, own)
                if axis is None or op not in ("lt", "le") or not self.is_known(bound):
                    return None
                found.append((axis, op == "lt", bound))
            else:
                return None
        return tuple(found)

    def is_known(self, value: Ins) -> bool:
        """Whether the host can compute it at a call."""
        unvisited, steps = [value], 0
        while unvisited:
            at = unvisited.pop()
            steps += 1
            if steps > _MOST_STEPS or at.dtype not in (*UNSIGNED, "bool"):
                return False
            if at.op == "load":
                word = at.attr.element.name == "u32" and not at.attr.shared and at.attr not in self.written
                if not word or at.args[0].op != "const":
                    return False
                continue
            if at.op not in ("const", "len") and not (at.args and at.op in PURE):
                return False
            unvisited.extend(at.args)
        return True
