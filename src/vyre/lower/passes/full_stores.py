"""Which outputs does a kernel fill? Those need not be cleared before it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Literal, TypeAlias

from ...foundation.ir.visit import Steps, run_nested
from ..instructions import function_of
from ..kernel_ir import PURE, UNSIGNED, Body, Buffer, If, Ins, Kernel, Loop, Plane, PlaneBound, bodies, walk
from ..registers import value_of

_ONE = Ins("const", "u32", (), 1, uniform=True)
_NONE = Ins("const", "u32", (), 0, uniform=True)
_MOST_STEPS = 64
"""Instructions in a share that is worth computing."""
_MOST_WORDS, _MOST_BOUNDS, _MOST_DEPTH, _MOST_WIDTHS = 16, 16, 64, 4
"""Steps to a value that a call computes, such values, how deep to look for them, and in how many ways."""

_Way: TypeAlias = 'tuple[Literal["stored", "open", "lost"], tuple[PlaneBound, ...]]'
"""What is known of invocations at the end of a body, if the bounds hold: each has stored; goes on; or has ended, or may
have, without."""
_NEGATED = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}
_SWAPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def stored(kernel: Kernel) -> dict[str, Ins]:
    """Buffers whose element k is stored by the invocation with global id k // share, with that share.

    An invocation stores its share in one loop, from the first element to the last; a share of 1 needs none. Shares come
    from constants and lengths: behind a test of the global id against the length of another buffer, a share is 0 unless
    that one is at least as long. The kernel may not read such a buffer: before the store it holds rubbish.
    """
    written: dict[Buffer, None] = {}
    read: set[Buffer] = set()
    for item in walk(kernel.body):
        if item.op == "store":
            written[item.attr] = None  # type: ignore[union-attr]
        elif item.op == "load":
            read.add(item.attr)  # type: ignore[union-attr]
        elif item.op == "atomic":
            read.add(item.attr[1])  # type: ignore[union-attr]
    found = {}
    for b in written:
        if not b.shared and b not in read:
            for path in _Path(kernel, b, False), _Path(kernel, b, True):
                if path.fills() and path.share is not None:
                    found[b.name] = path.share_if_long()
                    break
    return found


def share_of(share: Ins, lengths: Sequence[int]) -> int:
    """A share, from the lengths of the buffers by slot."""
    done: dict[int, Any] = {}
    stack = [share]
    while stack:
        at = stack[-1]
        missing = [a for a in at.args if id(a) not in done]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        if at.op == "const":
            done[id(at)] = value_of(at.dtype, at.attr)
        elif at.op == "len":
            done[id(at)] = lengths[at.attr.slot] & 0xFFFFFFFF
        else:
            done[id(at)] = function_of(at, False)(*(done[id(a)] for a in at.args))
    return int(done[id(share)])


def _is_own(kernel: Kernel, index: Ins) -> bool:
    return index.attr == 0 and (index.op == "gid" or (index.op == "wid" and kernel.workgroup[0] == 1))


def from_lengths(value: Ins) -> bool:
    """Whether the host can compute it: unsigned steps on constants and lengths."""
    unvisited, steps = [value], 0
    while unvisited:
        at = unvisited.pop()
        steps += 1
        known = at.op in ("const", "len") or (bool(at.args) and at.op in PURE)
        if not known or at.dtype not in (*UNSIGNED, "bool") or steps > _MOST_STEPS:
            return False
        unvisited.extend(at.args)
    return True


class _Path:
    """Follows the invocations whose part of one buffer is below its length; with `bounded`, provided that the buffer is
    no longer than the `bounds` that their ids are tested against."""

    def __init__(self, kernel: Kernel, buffer: Buffer, bounded: bool) -> None:
        self.kernel, self.buffer, self.bounded = kernel, buffer, bounded
        self.bounds: dict[Ins, None] = {}
        self.share: Ins | None = None  # the same one on every way
        self.done = False  # all of those that came here have stored
        self.missed = False  # one of them may have ended without

    def fills(self) -> bool:
        run_nested(self.body(self.kernel.body))
        return self.done and not self.missed

    def share_if_long(self) -> Ins:
        """The share, or 0 where a bound is below the length."""
        assert self.share is not None
        found, length = self.share, Ins("len", "u32", (), self.buffer, uniform=True)
        for bound in self.bounds:
            fits = Ins("le", "bool", (length, bound), uniform=True)
            found = Ins("select", "u32", (fits, found, _NONE), uniform=True)
        return found

    def body(self, items: Body) -> Steps:
        for item in items:
            if isinstance(item, Ins):
                if item.op == "return":
                    self.missed |= not self.done
                    self.done = True
                    return
                if self.stores(item) and _is_own(self.kernel, item.args[0]) and self.share in (None, _ONE):
                    self.share, self.done = _ONE, True
                continue
            before = self.done
            if isinstance(item, Loop):
                yield self.body(item.body)
                self.done = before or self.stores_share(item)  # else it may not run at all
                continue
            outcome = self.known(item.condition)
            after = True
            for inner, taken in zip(bodies(item), (True, False), strict=True):
                if outcome is not (not taken):
                    self.done = before
                    yield self.body(inner)
                    after &= self.done
            self.done = after

    def stores(self, item: Ins | If | Loop) -> bool:
        return item.op == "store" and isinstance(item, Ins) and item.attr is self.buffer

    def stores_share(self, loop: Loop) -> bool:
        """Whether a loop stores one share, `gid * share + k` for every k below it, and in every iteration."""
        share = loop.stop
        if loop.live is not None or loop.start.op != "const" or loop.start.attr != 0 or not from_lengths(share):
            return False
        if self.share not in (None, share):
            return False
        if any(item.op == "return" for item in walk(loop.body)):
            return False
        for item in loop.body:
            if self.stores(item) and isinstance(item, Ins) and self.is_place(item.args[0], loop):
                self.share = share
                return True
        return False

    def is_place(self, index: Ins, loop: Loop) -> bool:
        if index.op != "add":
            return False
        for first, k in (index.args, index.args[::-1]):
            if k.op == "index" and k.attr is loop and first.op == "mul":
                for own, share in (first.args, first.args[::-1]):
                    if share is loop.stop and _is_own(self.kernel, own):
                        return True
        return False

    def known(self, condition: Ins) -> bool | None:
        """What a condition is for these invocations, if that is clear."""
        op, args = condition.op, condition.args
        if op in ("gt", "le"):
            op, args = ("lt" if op == "gt" else "ge"), args[::-1]
        if op not in ("lt", "ge") or not _is_own(self.kernel, args[0]):
            return None
        if args[1].op != "len" or args[1].attr is not self.buffer:
            if not self.bounded or not from_lengths(args[1]):
                return None
            self.bounds[args[1]] = None
        return op == "lt"


# ---- row by row, or behind numbers: whether all is stored depends on what lies in memory at a call -------------------


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
        widths = dict.fromkeys(w for store in its for w in _widths(kernel, store.args[0]))
        for width in islice(widths, _MOST_WIDTHS):
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
            if steps > _MOST_WORDS or at.dtype not in (*UNSIGNED, "bool"):
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
