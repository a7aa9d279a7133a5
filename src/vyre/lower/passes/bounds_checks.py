"""Accesses that need no test: in every dispatch, or in the tiles of workgroups for which a short check says so.

An access of several axes has an index, or a value, that a `guarded` select makes of whether it is inside of them.

The check looks at ranges of indices (`ranges`). Conditions around an access narrow them, and so does a return
before it: behind `if i >= len(a): return` an index i is below the length of a, whatever the dispatch.
"""

from __future__ import annotations

from ...foundation.integers import U32_MAX
from ...foundation.ir.visit import Steps, run_nested
from ..kernel_ir import Body, Buffer, If, Ins, Kernel, Loop, walk
from .dce import dce
from .full_stores import planes, stored
from .ranges import Ranges

_ACCESSES = frozenset(("load", "store", "atomic"))
_CONDITIONS, _CODE = 64, 2000
"""A check of more conditions would cost more than it saves, and so would looking for them in more code."""
_GROWING = frozenset(("add", "sub", "mul", "shl"))
_STEPS = 100
"""How far one proof goes."""


def bounds_checks(kernel: Kernel) -> None:
    """Drop tests of axes that the conditions around them imply, clear `guarded` where an access is always in bounds,
    mark what the check covers, and fill in `stored` and `planes`."""
    if any(isinstance(item, Ins) and item.op == "select" and item.guarded for item in walk(kernel.body)):
        _Implied(kernel).run()
        dce(kernel)
    _Cover(kernel).run()
    kernel.stored = stored(kernel)
    kernel.planes = {name: plane for name, plane in planes(kernel).items() if name not in kernel.stored}


class _Walk:
    """Goes through a kernel with the facts that hold at each place."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.ranges = Ranges(kernel)
        self.ends: set[int] = set()  # bodies that always end the invocation
        self.steps = 0  # left to a proof

    def run(self) -> None:
        run_nested(self.body(self.kernel.body))

    def visit(self, item: Ins | If | Loop) -> None:
        """An instruction, or a statement before what is inside."""

    def body(self, items: Body) -> Steps:
        ranges = self.ranges
        outer = ranges.enter()
        for item in items:
            self.visit(item)
            if isinstance(item, Ins):
                continue
            if isinstance(item, If):
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

    def is_below(self, value: Ins, bound: Ins | Buffer, strict: bool) -> bool:
        """Whether value < bound (or <=) is known without any check; of a buffer, its length is meant."""
        self.steps -= 1
        if self.steps < 0:
            return False
        if value is bound or (value.op == "len" and value.attr is bound):
            return not strict
        ranges = self.ranges
        for other, k in ranges.above.get(value, ()):
            if self.is_below(other, bound, strict and k == 0):
                return True
        if isinstance(bound, Ins) and self._is_below_value(value, bound, strict):
            return True
        a, b = (*value.args, value, value)[:2]
        match value.op:
            case "min" | "and":
                return self.is_below(a, bound, strict) or self.is_below(b, bound, strict)
            case "shr" | "div":
                return self.is_below(a, bound, strict)
            case "rem":
                return self.is_below(a, bound, strict) or self.is_below(b, bound, False)
            case "select":
                return all(self.is_below(x, bound, strict) for x in value.args[1:])
            case "index":
                return self.is_below(value.attr.stop, bound, False)
            case "sub":
                less = b.op == "const" and b.attr > 0
                return ranges.is_at_most(b, a) and self.is_below(a, bound, strict and not less)
            case "add" if b.op == "const" or a.op == "const":
                x, step = (a, b.attr) if b.op == "const" else (b, a.attr)
                known = ranges.above.get(x, ())
                return any(k >= step and self.is_below(other, bound, strict and k == step) for other, k in known)
        return False

    def _is_below_value(self, value: Ins, bound: Ins, strict: bool) -> bool:
        """By what the bound is."""
        if bound.op == "const":
            top = self.ranges.of(value)
            return not top.needs and top.top <= bound.attr - strict
        if bound.op == "sub" and not strict:  # what is below n is at most n - 1
            n, one = bound.args
            return one.op == "const" and one.attr == 1 and self.is_below(value, n, True)
        return False


class _Implied(_Walk):
    """Takes away the tests of axes that the conditions around them make needless."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.same: dict[Ins, Ins] = {}

    def visit(self, item: Ins | If | Loop) -> None:
        same = self.same
        if isinstance(item, If):
            item.condition = same.get(item.condition, item.condition)
        elif isinstance(item, Loop):
            item.start, item.stop = same.get(item.start, item.start), same.get(item.stop, item.stop)
        elif not same.keys().isdisjoint(item.args):
            item.args = tuple(same.get(a, a) for a in item.args)
        if isinstance(item, Ins) and item.op == "select" and item.guarded and self.holds(item.args[0]):
            same[item] = item.args[1]

    def holds(self, condition: Ins) -> bool:
        """Whether all its parts hold wherever this place is reached."""
        unvisited = [condition]
        while unvisited:
            c = unvisited.pop()
            self.steps = self.ranges.fuel = _STEPS
            if c.op == "and" and c.dtype == "bool":
                unvisited += c.args
                continue
            compares = c.op in ("lt", "le") and c.args[0].dtype == "u32"
            if not compares or not self.is_below(c.args[0], c.args[1], c.op == "lt"):
                return False
        return True


class _Cover(_Walk):
    """Says of accesses, and of the tests of axes, where they need nothing but the check."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.conditions: dict[Ins, None] = {}

    def run(self) -> None:
        super().run()
        if self.conditions:
            self.kernel.check = self.ranges.check(set(self.conditions))

    def visit(self, item: Ins | If | Loop) -> None:
        if isinstance(item, Ins) and item.guarded:
            if item.op in _ACCESSES:
                self.access(item)
            elif item.op == "select" and len(self.ranges.code.body) <= _CODE:
                needs = self.ranges.proof(item.args[0], True)
                item.covered = bool(needs) and self.takes(frozenset(needs or ()))

    def takes(self, needs: frozenset[Ins]) -> bool:
        """Whether the check asks for these too."""
        if len(self.conditions.keys() | needs) > _CONDITIONS:
            return False
        self.conditions.update((step, None) for step in self.ranges.code.body if step in needs)
        return True

    def access(self, item: Ins) -> None:
        buffer: Buffer = item.attr[1] if item.op == "atomic" else item.attr
        index, inside = item.args[0], True
        while index.op == "select" and index.covered:
            index, inside = index.args[1], False  # which it is only where the check holds
        self.steps, self.ranges.fuel = _STEPS, _STEPS
        if inside and self.is_below(index, buffer, True):
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
        if not needs and inside:
            item.guarded = False
        else:
            item.covered = self.takes(needs)
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
