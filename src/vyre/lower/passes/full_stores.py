"""Which outputs does a kernel fill? Those need not be cleared before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...foundation.ir.visit import Steps, run_nested
from ..instructions import function_of
from ..kernel_ir import PURE, UNSIGNED, Body, Buffer, If, Ins, Kernel, Loop, bodies, walk
from ..registers import value_of

_ONE = Ins("const", "u32", (), 1, uniform=True)
_NONE = Ins("const", "u32", (), 0, uniform=True)
_MOST_STEPS = 64
"""Instructions in a share that is worth computing."""


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
