"""One computation of each value: equal instructions where the first dominates, and locals whose value is known.

A load is the same as an earlier one while nothing between them can have changed the buffer; read-only ones always are.
A branch that gives locals what an earlier one on the same condition gave others, as the argument reductions of a sine
and a cosine do, is gone: its locals are set to those.
"""

from __future__ import annotations

from itertools import count
from typing import Any, NamedTuple

from ...foundation.ir.visit import Steps, run_nested
from ..instructions import COMMUTES
from ..kernel_ir import PURE, Body, Buffer, If, Ins, Kernel, Local
from .effects import Changed, changed_by, changes


def cse(kernel: Kernel) -> None:
    """Merge equal values, and read locals where they were set."""
    _Cse(kernel).run()


class _Branch(NamedTuple):
    """What an `if` without `else` gave to locals, which is all that it does."""

    values: dict[Any, Ins]
    """Its steps by key."""
    given: dict[Local, Ins]
    before: dict[Local, Ins]
    """What is known of locals before it."""
    version: dict[Local, int]
    """Which of their values the locals had after it."""


class _Cse:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.writable = [b for b in kernel.buffers if b.writable]
        self.changes = changes(kernel)
        self.same: dict[Ins, Ins] = {}
        self.known: dict[Local, Ins] = {}
        self.version: dict[Buffer | Local, int] = {}
        self.fresh = count(1)
        self.table: dict[Any, Any] = {}
        self.added: list[Any] = []  # keys of the table, in the order of their scopes

    def run(self) -> None:
        run_nested(self.body(self.kernel.body))

    def forget(self, changed: Changed | list[Local | Buffer]) -> None:
        for one in changed:
            if isinstance(one, Local):
                self.known.pop(one, None)
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
            if isinstance(item, If):
                item.condition = same.get(item.condition, item.condition)
                if (instead := self.repeated(item)) is not None:
                    out += instead
                    continue
                out.append(item)
                before = dict(self.known)
                yield self.body(item.then)
                self.known = dict(before)
                yield self.body(item.orelse)
                self.known = dict(before)
                self.forget(self.changes[item])
                self.note(item, before)
            else:
                out.append(item)
                item.start, item.stop = same.get(item.start, item.start), same.get(item.stop, item.stop)
                self.forget(self.changes[item])
                before = dict(self.known)
                yield self.body(item.body)
                self.known = before
                self.forget(self.changes[item])
        items[:] = out
        for key in self.added[scope:]:
            table.pop(key, None)
        del self.added[scope:]

    def note(self, item: If, before: dict[Local, Ins]) -> None:
        """Remember a branch in case that it comes again; `before` are the values of locals that were known there."""
        given: dict[Local, Ins] = {}
        values: dict[Any, Ins] = {}
        for x in item.then:
            if not isinstance(x, Ins):
                return
            if x.op == "set":
                given[x.attr] = x.args[0]
            elif (key := self.key(x)) is not None:
                values[key] = x
            else:
                return
        if item.orelse:
            return
        self.table[key := ("if", item.condition)] = _Branch(
            values, given, before, {local: self.version[local] for local in given}
        )
        self.added.append(key)

    def repeated(self, item: If) -> list[Ins] | None:
        """What to do instead of a branch, if all that it computes was computed in an earlier one on its condition."""
        branch: _Branch | None = self.table.get(("if", item.condition))
        if branch is None or item.orelse:
            return None
        found: dict[Ins, Ins] = {}
        given: dict[Local, Ins] = {}
        for x in item.then:
            if not isinstance(x, Ins):
                return None
            args = tuple([found.get(a) or self.same.get(a, a) for a in x.args])
            if x.op == "set":
                given[x.attr] = args[0]
                continue
            key = self.key(x, args)
            earlier = branch.values.get(key) or self.table.get(key)
            if key is None or earlier is None:
                return None
            found[x] = earlier
        sources: dict[Local, Local] = {}
        for local, value in given.items():
            for one, other in branch.given.items():
                if (
                    other is value
                    and one in branch.before
                    and branch.before[one] is self.known.get(local)
                    and branch.version[one] == self.version[one]
                ):
                    sources[local] = one
        if sources.keys() != given.keys():
            return None
        instead: list[Ins] = []
        for local, one in sources.items():
            if one not in self.known:
                self.known[one] = Ins("get", one.dtype, attr=one)
                instead.append(self.known[one])
            instead.append(Ins("set", "", (self.known[one],), attr=local))
        for put in instead:
            if put.op == "set":
                self.forget([put.attr])
                self.known[put.attr] = put.args[0]
        return instead

    def key(self, item: Ins, args: tuple[Ins, ...] | None = None) -> Any:
        """A key that equal values share; None for an instruction that never equals another. `args` are its operands,
        where others stand for them."""
        op = item.op
        args = item.args if args is None else args
        if op in PURE:
            if len(args) == 2 and op in COMMUTES and id(args[0]) > id(args[1]):
                args = args[1], args[0]
            return op, item.dtype, item.attr, args
        if op == "load":
            return op, item.attr, args, self.version.get(item.attr, 0)
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
            self.forget([item.attr])
            self.known[item.attr] = item.args[0]
        elif item.op in ("store", "atomic", "barrier"):
            self.forget(changed_by(item, self.writable))
        return False
