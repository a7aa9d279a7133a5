"""Which outputs does a kernel fill? Those need not be cleared before it runs."""

from __future__ import annotations

from ...foundation.visit import Steps, run_nested
from ..form import Body, Buffer, If, Ins, Kernel, bodies, walk


def stored(kernel: Kernel) -> frozenset[str]:
    """Buffers of which the invocation with global id x stores element x, for every x below the length.

    Nor may anyone read them: what is there before the store is rubbish.
    """
    written: set[Buffer] = set()
    read: set[Buffer] = set()
    for item in walk(kernel.body):
        if item.op == "store" and _is_own(kernel, item.args[0]):  # type: ignore[union-attr]
            written.add(item.attr)  # type: ignore[union-attr]
        elif item.op == "load":
            read.add(item.attr)  # type: ignore[union-attr]
        elif item.op == "atomic":
            read.add(item.attr[1])  # type: ignore[union-attr]
    return frozenset(b.name for b in written - read if not b.shared and _Path(kernel, b).fills())


def _is_own(kernel: Kernel, index: Ins) -> bool:
    return index.attr == 0 and (index.op == "gid" or (index.op == "wid" and kernel.workgroup[0] == 1))


class _Path:
    """Follows the invocations whose x is below the length of one buffer."""

    def __init__(self, kernel: Kernel, buffer: Buffer) -> None:
        self.kernel, self.buffer = kernel, buffer
        self.done = False  # all of those that came here have stored
        self.missed = False  # one of them may have ended without

    def fills(self) -> bool:
        run_nested(self.body(self.kernel.body))
        return self.done and not self.missed

    def body(self, items: Body) -> Steps:
        for item in items:
            if isinstance(item, Ins):
                if item.op == "return":
                    self.missed |= not self.done
                    self.done = True
                    return
                self.done |= item.op == "store" and item.attr is self.buffer and _is_own(self.kernel, item.args[0])
                continue
            before = self.done
            if not isinstance(item, If):
                yield self.body(item.body)
                self.done = before  # a loop may not run at all
                continue
            outcome = self.known(item.condition)
            after = True
            for inner, taken in zip(bodies(item), (True, False), strict=True):
                if outcome is not (not taken):
                    self.done = before
                    yield self.body(inner)
                    after &= self.done
            self.done = after

    def known(self, condition: Ins) -> bool | None:
        """What a condition is for these invocations, if that is clear."""
        op, args = condition.op, condition.args
        if op in ("gt", "le"):
            op, args = ("lt" if op == "gt" else "ge"), args[::-1]
        if op not in ("lt", "ge") or not _is_own(self.kernel, args[0]):
            return None
        if args[1].op != "len" or args[1].attr is not self.buffer:
            return None
        return op == "lt"
