"""Loops of which it is known how many turns they take.

A `while` of the language is two loops that end with one flag: a loop of a program has 2^32 - 1 turns at most. The
square of that takes a machine centuries: one loop without a count does the same, at a lower price.

A tree of steps through shared memory is a loop around a barrier whose turns differ in which lanes work and in how far
apart their elements lie. Where numbers say how many turns there are, they are written one after the other: then each
has numbers for both.
"""

from __future__ import annotations

from dataclasses import replace

from ...foundation.ir.visit import Steps, run_nested
from ..instructions import function_of
from ..kernel_ir import FLOATS, PURE, Body, If, Ins, Kernel, Local, Loop, Statement, bodies, walk
from ..registers import bits_of, value_of

_LEAVES = frozenset(("barrier", "subgroup", "return"))
"""Where lanes meet or leave, a loop may be built anew around them, with a count."""
_LANES = frozenset(("lid", "gid", "lane"))
_MOST = 1_000
"""Instructions to which the turns of all such loops may come, about half of which are numbers."""
_TRIES = 4 * _MOST
"""Instructions that are written at most, those of loops included that stay loops after all."""


def endless(kernel: Kernel) -> None:
    """Make one loop of such two."""
    unvisited = [kernel.body]
    while unvisited:
        body = unvisited.pop()
        body[:] = [inner for item in body for inner in _merged(item)]
        for item in body:
            unvisited.extend(bodies(item))


def _merged(item: Statement) -> Body:
    if not isinstance(item, Loop) or not item.is_forever:
        return [item]
    constants: Body = [i for i in item.body if isinstance(i, Ins) and i.op == "const"]
    rest = [i for i in item.body if i not in constants]
    inner = rest[0] if len(rest) == 1 else None
    if not isinstance(inner, Loop) or inner.live is not item.live or not inner.is_forever:
        return [item]
    if any(i.op in _LEAVES or (i.op == "index" and i.attr is inner) for i in walk(inner.body) if isinstance(i, Ins)):
        return [item]
    inner.endless = True
    return [*constants, inner]


def turns(kernel: Kernel) -> None:
    """Write the turns of loops around barriers one after the other, where the lanes that work are others each time."""
    trees = {item for item in walk(kernel.body) if isinstance(item, Loop) and _is_tree(item)} if kernel.by_turns else ()
    if trees:
        _Turns(kernel, trees).run()


def _is_tree(item: Loop) -> bool:
    """Whether a loop holds a barrier, and a condition on lanes and on something that the loop changes."""
    inside = list(walk(item.body))
    if not any(i.op == "barrier" for i in inside):
        return False
    changed = {i.attr for i in inside if isinstance(i, Ins) and i.op == "set"}
    loops = {item, *(i for i in inside if isinstance(i, Loop))}
    for branch in inside:
        unvisited = [branch.condition] if isinstance(branch, If) else []
        seen: set[Ins] = set()
        lanes = changes = False
        while unvisited:
            value = unvisited.pop()
            if value not in seen:
                seen.add(value)
                unvisited += value.args
                lanes |= value.op in _LANES
                changes |= value.attr in (changed if value.op == "get" else loops if value.op == "index" else ())
        if lanes and changes:
            return True
    return False


class _Turns:
    """Goes through a kernel with the numbers that its locals are known to be."""

    def __init__(self, kernel: Kernel, trees: set[Loop]) -> None:
        self.kernel, self.trees = kernel, trees
        self.known: dict[Local, int] = {}
        self.same: dict[Ins, Ins] = {}
        self.loops: dict[Loop, Loop] = {}
        self.counters: dict[Loop, int] = {}
        """Loops that are being written turn by turn, with the number of the turn."""
        self.left, self.tries = _MOST, _TRIES
        self.failed = False

    def run(self) -> None:
        out: Body = []
        run_nested(self.body(self.kernel.body, out))
        self.kernel.body = out

    def body(self, items: Body, out: Body) -> Steps:
        for item in items:
            if self.counters:
                self.left -= 1
                self.tries -= 1
                self.failed |= self.left < 0 or self.tries < 0
            if self.failed:
                return
            if isinstance(item, Ins):
                self.step(item, out)
            elif isinstance(item, If):
                yield self.branch(item, out)
            else:
                before, length, left = dict(self.known), len(out), self.left
                tree = item in self.trees
                if tree:
                    yield self.by_turns(item, out)
                if not tree or self.failed:
                    del out[length:]
                    self.known, self.left, self.failed = before, left, False
                    yield self.loop(item, out)
            if out and out[-1].op == "return":
                return

    def number(self, value: Ins) -> int | None:
        value = self.same.get(value, value)
        return value.attr if value.op == "const" and value.dtype not in FLOATS else None

    def step(self, item: Ins, out: Body) -> None:
        found = self.found(item)
        made = item
        if self.counters:
            if found is not None:
                made = Ins("const", item.dtype, attr=found)
            else:
                attr = self.loops.get(item.attr, item.attr) if item.op == "index" else item.attr
                made = replace(item, args=tuple([self.same.get(a, a) for a in item.args]), attr=attr)
            self.same[item] = made
        else:
            self.same.pop(item, None)  # it may have been tried
            made.args = tuple([self.same.get(a, a) for a in item.args])
        out.append(made)
        if item.op == "set":
            number = self.number(item.args[0])
            if number is None:
                self.known.pop(item.attr, None)
            else:
                self.known[item.attr] = number

    def found(self, item: Ins) -> int | None:
        """The bits of an integer or a truth, if they are known."""
        if item.dtype in FLOATS:
            return None
        if item.op == "get":
            return self.known.get(item.attr)
        if item.op == "index":
            return self.counters.get(item.attr)
        if item.op not in PURE or not item.args or item.op == "native":
            return None
        numbers = [self.number(a) for a in item.args]
        values = [value_of(a.dtype, n) for a, n in zip(item.args, numbers, strict=True) if n is not None]
        if len(values) < len(numbers):
            return None
        return bits_of(item.dtype, function_of(item, self.kernel.soft_flush)(*values))

    def branch(self, item: If, out: Body) -> Steps:
        condition = self.number(item.condition)
        if condition is not None and self.counters:
            yield self.body(item.then if condition else item.orelse, out)
            return
        made = If(self.same.get(item.condition, item.condition), [], [])
        out.append(made)
        before = dict(self.known)
        yield self.body(item.then, made.then)
        after, self.known = self.known, dict(before)
        yield self.body(item.orelse, made.orelse)
        self.known = {local: bits for local, bits in self.known.items() if after.get(local) == bits}

    def loop(self, item: Loop, out: Body) -> Steps:
        """A loop that stays one."""
        start, stop = (self.same.get(a, a) for a in (item.start, item.stop))
        made = self.loops[item] = replace(item, start=start, stop=stop, body=[]) if self.counters else item
        out.append(made)
        inside = item.body
        made.body = []
        for one in walk(inside):
            if isinstance(one, Ins) and one.op == "set":
                self.known.pop(one.attr, None)
        before = dict(self.known)
        yield self.body(inside, made.body)
        self.known = before

    def by_turns(self, item: Loop, out: Body) -> Steps:
        start, stop = self.number(item.start), self.number(item.stop)
        if start is None or stop is None:
            self.failed = True
            return
        for turn in range(start, stop):
            live = 1 if item.live is None else self.known.get(item.live)
            if live == 0:
                break
            self.failed |= live is None
            if self.failed:
                break
            self.counters[item] = turn
            yield self.body(item.body, out)
            if out and out[-1].op == "return":
                break
        self.counters.pop(item, None)
