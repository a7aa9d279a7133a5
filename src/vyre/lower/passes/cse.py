"""One computation of each value: equal instructions where the first dominates, and locals whose value is known.

A load is the same as an earlier one while nothing between them can have changed the buffer; read-only ones always are.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from ...foundation.ir.visit import Steps, run_nested
from ..instructions import COMMUTES
from ..kernel_ir import PURE, Body, Buffer, If, Ins, Kernel, Local
from .effects import Changed, changed_by, changes


def cse(kernel: Kernel) -> None:
    """Merge equal values, and read locals where they were set."""
    _Cse(kernel).run()


class _Cse:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.writable = [b for b in kernel.buffers if b.writable]
        self.changes = changes(kernel)
        self.same: dict[Ins, Ins] = {}
        self.known: dict[Local, Ins] = {}
        self.version: dict[Buffer, int] = {}
        self.fresh = count(1)
        self.table: dict[Any, Ins] = {}
        self.added: list[Any] = []  # keys of the table, in the order of their scopes

    def run(self) -> None:
        run_nested(self.body(self.kernel.body))

    def forget(self, changed: Changed | list[Local | Buffer]) -> None:
        for one in changed:
            if isinstance(one, Local):
                self.known.pop(one, None)
            else:
                self.version[one] = next(self.fresh)

    def body(self, items: Body) -> Steps:
        """Rewrites the list in place."""
        same, table = self.same, self.table
        scope = len(self.added)
        out: Body = []
        for item in items:
            if isinstance(item, Ins):
                if item.args and not same.keys().isdisjoint(item.args):
                    item.args = tuple([same.get(a, a) for a in item.args])
                if (key := self.key(item)) is not None:
                    earlier = table.get(key)
                    if earlier is not None:
                        same[item] = earlier
                        continue
                    table[key] = item
                    self.added.append(key)
                elif self.is_known(item):
                    continue
                out.append(item)
                continue
            out.append(item)
            if isinstance(item, If):
                item.condition = same.get(item.condition, item.condition)
                before = dict(self.known)
                yield self.body(item.then)
                self.known = dict(before)
                yield self.body(item.orelse)
                self.known = before
            else:
                item.start, item.stop = same.get(item.start, item.start), same.get(item.stop, item.stop)
                self.forget(self.changes[item])
                before = dict(self.known)
                yield self.body(item.body)
                self.known = before
            self.forget(self.changes[item])
        items[:] = out
        for key in self.added[scope:]:
            del table[key]
        del self.added[scope:]

    def key(self, item: Ins) -> Any:
        """A key that equal values share; None for an instruction that never equals another."""
        op = item.op
        if op in PURE:
            args: Any = item.args
            if len(args) == 2 and op in COMMUTES and id(args[0]) > id(args[1]):
                args = args[1], args[0]
            return op, item.dtype, item.attr, args
        if op == "load":
            return op, item.attr, item.args, self.version.get(item.attr, 0)
        return None

    def is_known(self, item: Ins) -> bool:
        """A read of a local whose value is known, or a write of the value that it has."""
        if item.op == "get":
            value = self.known.setdefault(item.attr, item)
            if value is item:
                return False
            self.same[item] = value
            return True
        if item.op == "set":
            if self.known.get(item.attr) is item.args[0]:
                return True
            self.known[item.attr] = item.args[0]
        elif item.op in ("store", "atomic", "barrier"):
            self.forget(changed_by(item, self.writable))
        return False
