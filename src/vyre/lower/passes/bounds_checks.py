"""Accesses that need no test: in every dispatch, or in the tiles of workgroups for which a short check says so.

The check looks at ranges of indices (`ranges`). Conditions around an access narrow them, and so does a return
before it: behind `if i >= len(a): return` an index i is below the length of a, whatever the dispatch.
"""

from __future__ import annotations

from ...foundation.integers import U32_MAX
from ...foundation.ir.visit import Steps, run_nested
from ..kernel_ir import Body, Buffer, If, Ins, Kernel
from .full_stores import stored
from .ranges import Ranges

_ACCESSES = frozenset(("load", "store", "atomic"))
_CONDITIONS, _CODE = 64, 2000
"""A check of more conditions would cost more than it saves, and so would looking for them in more code."""
_GROWING = frozenset(("add", "sub", "mul", "shl"))
_STEPS = 100
"""How far one proof goes."""


def bounds_checks(kernel: Kernel) -> None:
    """Clear `guarded` where an access is always in bounds, mark what the check covers, and fill in `stored`."""
    _Cover(kernel).run()
    kernel.stored = stored(kernel)


class _Cover:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.ranges = Ranges(kernel)
        self.conditions: set[Ins] = set()
        self.ends: set[int] = set()  # bodies that always end the invocation
        self.steps = 0  # left to a proof

    def run(self) -> None:
        run_nested(self.body(self.kernel.body))
        if self.conditions:
            self.kernel.check = self.ranges.check(self.conditions)

    def body(self, items: Body) -> Steps:
        ranges = self.ranges
        outer = ranges.enter()
        for item in items:
            if isinstance(item, Ins):
                if item.op in _ACCESSES and item.guarded:
                    self.access(item)
            elif isinstance(item, If):
                for inner, truth in ((item.then, True), (item.orelse, False)):
                    if inner:
                        here = ranges.enter()
                        ranges.assume(item.condition, truth)
                        yield self.body(inner)
                        ranges.leave(here)
                for inner, truth in ((item.then, True), (item.orelse, False)):
                    if id(inner) in self.ends:
                        ranges.assume(item.condition, not truth)
            else:
                yield self.body(item.body)
        ranges.leave(outer)
        last = items[-1] if items else None
        if isinstance(last, If):
            if id(last.then) in self.ends and id(last.orelse) in self.ends:
                self.ends.add(id(items))
        elif last is not None and last.op == "return":
            self.ends.add(id(items))

    def access(self, item: Ins) -> None:
        buffer: Buffer = item.attr[1] if item.op == "atomic" else item.attr
        index = item.args[0]
        self.steps, self.ranges.fuel = _STEPS, _STEPS
        if self.is_below(index, buffer, True):
            item.guarded = False
            item.whole = self.whole(index)
            return
        ranges = self.ranges
        if len(ranges.code.body) > _CODE:
            return
        found = ranges.of(index)
        if found.hi == U32_MAX:
            return
        fits = ranges.code.compare("lt", found.hi, ranges.length(buffer))
        if fits is False:
            return
        needs = found.needs if fits is True else found.needs | {fits}
        if not needs:
            item.guarded = False
        elif len(self.conditions | needs) <= _CONDITIONS:
            self.conditions |= needs
            item.covered = True
        if not item.guarded or item.covered:
            item.whole = self.whole(index)

    def whole(self, index: Ins) -> frozenset[Ins]:
        """The steps of an index in bounds that do not wrap: their ranges grew from those of their operands. A
        step that a condition or the code of the check bounds instead may have wrapped before."""
        found: set[Ins] = set()
        unvisited = [index]
        while unvisited:
            v = unvisited.pop()
            if v.op not in _GROWING or v in found or self.ranges.above.get(v) or self.ranges.exact(v) is not None:
                continue
            if self.ranges.of(v).hi != U32_MAX:  # else it may have wrapped, which a fact about its user does not show
                found.add(v)
                unvisited.extend(v.args)
        return frozenset(found)

    def is_below(self, value: Ins, buffer: Buffer, strict: bool) -> bool:
        """Whether value < length (or <=) is known without any check."""
        self.steps -= 1
        if self.steps < 0:
            return False
        if value.op == "len":
            return value.attr is buffer and not strict
        ranges = self.ranges
        for bound, k in ranges.above.get(value, ()):
            if self.is_below(bound, buffer, strict and k == 0):
                return True
        a, b = (*value.args, value, value)[:2]
        match value.op:
            case "min" | "and":
                return self.is_below(a, buffer, strict) or self.is_below(b, buffer, strict)
            case "shr" | "div":
                return self.is_below(a, buffer, strict)
            case "rem":
                return self.is_below(a, buffer, strict) or self.is_below(b, buffer, False)
            case "select":
                return all(self.is_below(x, buffer, strict) for x in value.args[1:])
            case "index":
                return self.is_below(value.attr.stop, buffer, False)
            case "sub":
                less = b.op == "const" and b.attr > 0
                return ranges.is_at_most(b, a) and self.is_below(a, buffer, strict and not less)
        return False
