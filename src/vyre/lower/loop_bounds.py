"""How many turns do the loops of one invocation take at most? Counted before a launch, from the kernel's shape, the
lengths of its buffers and the numbers that the host can see.

A loop is entered as often as the product of the trips of the loops around says, and then takes as many turns as it has
trips and one more, which only finds out that there is none. Where lanes keep together, that one goes through the body
as well, with no lane left in it, and so enters every loop inside once more, for a single turn. Both branches count.
Lanes that part at a loop take as many turns together as the slowest of them: the bound holds for that too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..foundation.integers import U32_MAX
from ..foundation.ir.dtypes import BY_NAME
from ..foundation.meaning.subgroup import SUBGROUP_WIDTH
from .instructions import BOUNDED, COMPARES, interval_of
from .intervals import LIMITS, Interval, join, meet, wrapped
from .kernel_ir import If, Ins, Kernel, Local, Loop, Statement, bodies, walk
from .registers import value_of

Turns: TypeAlias = "list[Any]"
"""[steps, loops], plain data, stored with code.

A step is [operation, type, attribute, operands...], operands by number; `local` has every value that it is set to.
A loop is [number of the loop around or -1, start, stop, [[condition, truth] around it...], differences], where a
difference is [constant, [factor, step]...]: `stop - start` modulo 2^32, or something that is not smaller.
"""
Word: TypeAlias = Callable[[int, int], "int | None"]
"""(slot, index) -> that element of a read-only buffer, where the host knows it."""

_WORDS = frozenset(("u32", "i32"))
_PARTS = 8
"""Terms in a difference, alternatives of a minimum, conditions around a loop: more say nothing new."""
_DEPTH = 4
"""How far below a value a condition is followed."""
_CHANGES = 3
"""How often the interval of a local may grow before it is taken for anything."""
_ROUNDS = 32
_NO_OPERANDS = 3
"""Items of a step before its operands."""


def turns_of(kernel: Kernel) -> Turns:
    """What `most_turns` needs to know of a kernel."""
    return _Steps(kernel).run()


def most_turns(
    turns: Turns, lengths: Sequence[int], word: Word | None = None, grid: Sequence[int] | None = None
) -> int | None:
    """Turns of all loops of an invocation, at most; None: unknown.

    `lengths` are those of the buffers by slot, `grid` the workgroups along each axis.
    """
    steps, loops = turns
    if not loops:
        return 0
    values = _Values(steps, lengths, word, grid)
    entries: list[tuple[int, int]] = []  # of the loops inside each loop: with lanes and without any
    total = 0
    for around, start, stop, conditions, differences in loops:
        entered, empty = (1, 0) if around < 0 else entries[around]
        trips = values.trips(start, stop, conditions, differences) if entered else 0
        if trips is None:
            return None
        entries.append((entered * trips, entered + empty))
        total += entered * (trips + 1) + empty
    return total


# ---- from a kernel --------------------------------------------------------------------------------------------------


class _Steps:
    """Numbers the values that loops depend on; equal ones get one number."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.steps: list[list[Any]] = []
        self.loops: list[list[Any]] = []
        self.numbers: dict[Ins | Local, int] = {}
        self.equal: dict[Any, int] = {}
        self.sets: dict[Local, list[Ins]] = {}

    def run(self) -> Turns:
        for item in walk(self.kernel.body):
            if isinstance(item, Ins) and item.op == "set":
                self.sets.setdefault(item.attr, []).append(item.args[0])
        unvisited: list[tuple[Statement, int, tuple[tuple[Ins, bool], ...]]]
        unvisited = [(s, -1, ()) for s in reversed(self.kernel.body)]
        while unvisited:
            item, around, conditions = unvisited.pop()
            if isinstance(item, If):
                for body, truth in zip(bodies(item), (True, False), strict=True):
                    inside = (*conditions, (item.condition, truth))[-_PARTS:]
                    unvisited.extend((s, around, inside) for s in reversed(body))
            elif isinstance(item, Loop):
                start, stop = self.number(item.start), self.number(item.stop)
                known = [[self.number(condition), truth] for condition, truth in conditions]
                self.loops.append([around, start, stop, known, self.differences(start, stop)])
                unvisited.extend((s, len(self.loops) - 1, conditions) for s in reversed(item.body))
        for local, values in self.sets.items():
            if local in self.numbers:
                self.steps[self.numbers[local]] += sorted({self.numbers[v] for v in values})
        return [self.steps, self.loops]

    def number(self, value: Ins) -> int:
        """The number of a value, after those of all that it depends on."""
        unvisited: list[Ins | Local] = [value]
        while unvisited:
            at = unvisited[-1]
            if at in self.numbers:
                unvisited.pop()
            elif isinstance(at, Local):  # its values may depend on it: it has a number before they do
                self.numbers[at] = len(self.steps)
                self.steps.append(["local", at.dtype, None])  # its operands come last
                unvisited.extend(self.sets.get(at, ()))
            elif missing := [a for a in _below(at) if a not in self.numbers]:
                unvisited.extend(missing)
            else:
                unvisited.pop()
                self.numbers[at] = self.add(at)
        return self.numbers[value]

    def add(self, at: Ins) -> int:
        op, attr = at.op, at.attr
        match op:
            case "const":
                attr = int(value_of(at.dtype, attr))
            case "lid":
                attr = self.kernel.workgroup[attr]
            case "wid":
                op, attr = "id", [attr, 1]
            case "gid":
                op, attr = "id", [attr, self.kernel.workgroup[attr]]
            case "len":
                attr = attr.slot
            case "load":
                attr = [-1 if attr.writable else attr.slot, attr.element.name]
            case "index" | "get":
                attr = None
            case "lane":
                op, attr = "lid", SUBGROUP_WIDTH
        if not _below(at) and op not in _LEAVES:
            op, attr = "any", None
        step = [op, at.dtype, attr, *(self.numbers[a] for a in _below(at))]
        same: Any = at if op in ("any", "get") or (op == "load" and at.attr.writable) else str(step)
        if op == "index":
            same = at.attr
        found = self.equal.setdefault(same, len(self.steps))
        if found == len(self.steps):
            self.steps.append(step)
        return found

    # -- stop - start, where both grow with the same unknown

    def differences(self, start: int, stop: int) -> list[list[Any]]:
        """Bounds of the trips, if there are any: `(stop - start) mod 2^32`, one for each operand of a minimum."""
        if self.steps[start][0] == "const":
            return []
        least, found = [stop], []
        for at in least:  # which grows
            if self.steps[at][0] == "min" and len(least) < _PARTS:
                least += self.steps[at][3:]
            terms, constant = self.linear(at)
            for step, factor in self.linear(start)[0].items():
                terms[step] = terms.get(step, 0) - factor
            constant -= self.linear(start)[1]
            found.append([constant, *([_near_zero(f), step] for step, f in sorted(terms.items()) if f & U32_MAX)])
        return found

    def linear(self, root: int) -> tuple[dict[int, int], int]:
        """A 32-bit value as factors of steps and a constant, modulo 2^32."""
        terms: dict[int, int] = {}
        constant, parts = 0, 0
        unvisited = [(root, 1)]
        while unvisited:
            at, factor = unvisited.pop()
            op, _, attr, *args = self.steps[at]
            parts += 1
            if op == "const":
                constant += factor * attr
            elif op in ("add", "sub") and parts < _PARTS:
                unvisited += [(args[0], factor), (args[1], factor if op == "add" else -factor)]
            elif op == "mul" and parts < _PARTS and any(self.steps[a][0] == "const" for a in args):
                value, number = args if self.steps[args[1]][0] == "const" else args[::-1]
                unvisited.append((value, factor * self.steps[number][2]))
            elif op == "shl" and self.steps[args[1]][0] == "const":
                unvisited.append((args[0], factor << self.steps[args[1]][2]))
            elif op == "convert" and self.steps[args[0]][1] in _WORDS:
                unvisited.append((args[0], factor))
            else:
                terms[at] = terms.get(at, 0) + factor
        return terms, constant


def _below(at: Ins) -> tuple[Ins | Local, ...]:
    """The operands from which the interval of a value follows; empty where it does not."""
    if at.op == "get":
        return (at.attr,)
    if at.op == "index":
        return at.attr.start, at.attr.stop
    known = at.op in BOUNDED or at.op == "select" or (at.op == "load" and at.attr.element.is_int)
    return at.args if known and all(a.dtype in LIMITS for a in (at, *at.args)) else ()


def _near_zero(factor: int) -> int:
    """The same modulo 2^32, between -2^31 and 2^31."""
    return (factor + 0x80000000 & U32_MAX) - 0x80000000


# ---- with lengths ---------------------------------------------------------------------------------------------------


class _LoopFacts:
    """What holds in one place: intervals of steps, and differences of two of them. With `never`, nothing gets there."""

    def __init__(self, around: _LoopFacts | None = None) -> None:
        self.inside: dict[int, Interval] = {} if around is None else dict(around.inside)
        self.apart: dict[tuple[int, int], Interval] = {} if around is None else dict(around.apart)
        self.never = False


class _Values:
    """The interval of every step, None for one that no invocation computes."""

    def __init__(
        self, steps: list[list[Any]], lengths: Sequence[int], word: Word | None, grid: Sequence[int] | None
    ) -> None:
        self.steps, self.lengths, self.word, self.grid = steps, lengths, word, grid
        self.found: list[Interval | None] = [None] * len(steps)
        self.settle()

    def settle(self) -> None:
        """Until no local changes; where one keeps on growing it has no end."""
        changes: dict[int, int] = {}
        for turn in range(_ROUNDS + 3):
            before = sum(changes.values())
            for k, (op, dtype, *_) in enumerate(self.steps):
                old, new = self.found[k], self.compute(k)
                if op == "local" and new is not None:
                    changes[k] = changes.get(k, 0) + (new != old)
                    low, high = LIMITS[dtype]
                    if turn >= _ROUNDS:
                        new = low, high
                    elif old is not None and changes[k] > _CHANGES:
                        new = low if new[0] < old[0] else new[0], high if new[1] > old[1] else new[1]
                self.found[k] = new
            if turn and before == sum(changes.values()):
                break

    def trips(self, start: int, stop: int, conditions: list[list[Any]], differences: list[list[Any]]) -> int | None:
        facts = self.facts(conditions)
        first, last = self.under(facts, start, _DEPTH), self.under(facts, stop, _DEPTH)
        if facts.never or first is None or last is None:
            return 0
        most = max(0, last[1] - first[0])
        for constant, *terms in differences:
            low = high = constant
            for factor, step in terms:
                at = self.under(facts, step, _DEPTH) or (0, 0)
                low += min(factor * at[0], factor * at[1])
                high += max(factor * at[0], factor * at[1])
            most = min(most, wrapped((low, high), "u32")[1])
        return most if most < U32_MAX else None

    def compute(self, k: int, facts: _LoopFacts | None = None, depth: int = _DEPTH) -> Interval | None:
        """A step from the intervals of its operands, where `facts` hold."""
        op, dtype, attr, *operands = self.steps[k]
        match op:
            case "const":
                return attr, attr
            case "len":
                return self.lengths[attr], self.lengths[attr]
            case "lid":
                return 0, attr - 1
            case "id":
                axis, size = attr
                return LIMITS["u32"] if self.grid is None else (0, min(max(self.grid[axis] * size - 1, 0), U32_MAX))
            case "any":
                return LIMITS[dtype]
            case "local":
                found = self.found[k]
                for value in (self.found[o] for o in operands):
                    found = value if found is None else join(found, value or found)
                return found if operands else LIMITS[dtype]
            case "select":
                return self.select(operands, facts, depth)
        args = [a for o in operands if (a := self.under(facts, o, depth)) is not None]
        if len(args) < len(operands):
            return None
        match op:
            case "get":
                return args[0]
            case "index":
                (first, _), (_, last) = args
                return (first, last - 1) if first < last else None
            case "load":
                return self.load(attr[0], attr[1], args[0])
            case "sub" if facts and (pair := (self.plain(operands[0]), self.plain(operands[1]))) in facts.apart:
                return wrapped(facts.apart[pair], dtype)
        return interval_of(op, dtype, attr, args)

    def load(self, slot: int, element: str, index: Interval) -> Interval:
        """One element that the host knows, or what its type allows."""
        if slot >= 0 and index[0] >= self.lengths[slot]:
            return 0, 0
        found = None
        if slot >= 0 and index[0] == index[1] and self.word is not None:
            found = self.word(slot, index[0])
        return BY_NAME[element].limits if found is None else (found, found)

    # -- conditions

    def select(self, operands: list[int], facts: _LoopFacts | None, depth: int) -> Interval | None:
        """Each side where its condition holds."""
        condition, *sides = operands
        found = None
        for side, truth in zip(sides, (True, False), strict=True):
            here = self.facts([[condition, truth]], facts)
            value = None if here.never else self.under(here, side, depth)
            found = value if found is None else join(found, value or found)
        return found

    def under(self, facts: _LoopFacts | None, k: int, depth: int) -> Interval | None:
        """The interval of a step where `facts` hold."""
        found = self.found[k]
        if found is None or facts is None:
            return found
        if k in facts.inside:
            return meet(found, facts.inside[k])
        if depth == 0 or len(self.steps[k]) == _NO_OPERANDS or self.steps[k][0] == "local":
            return found
        inner = self.compute(k, facts, depth - 1)
        return None if inner is None else meet(found, inner)

    def facts(self, conditions: list[list[Any]], around: _LoopFacts | None = None) -> _LoopFacts:
        """What follows from conditions that are known to be true or false."""
        facts = _LoopFacts(around)
        unvisited = [(condition, truth) for condition, truth in conditions]
        for at, truth in unvisited:  # which grows
            op, dtype, _, *args = self.steps[at]
            now = self.found[at]
            if now is None or now[0] == now[1] != truth:
                facts.never = True
            elif op == "not" and dtype == "bool":
                unvisited.append((args[0], not truth))
            elif op == ("and" if truth else "or") and dtype == "bool" and len(unvisited) < 2 * _PARTS:
                unvisited += [(a, truth) for a in args]
            elif op in COMPARES:
                self.compare(op if truth else _OPPOSITE[op], args[0], args[1], facts)
        return facts

    def compare(self, op: str, a: int, b: int, facts: _LoopFacts) -> None:
        """Learn from a comparison that is true."""
        if op in ("gt", "ge"):
            a, b, op = b, a, "lt" if op == "gt" else "le"
        x, y = self.under(facts, a, 0), self.under(facts, b, 0)
        new: tuple[Interval | None, Interval | None] = None, None
        if x is not None and y is not None:
            if op == "eq":
                new = meet(x, y), meet(x, y)
            elif op == "ne":
                new = _without(x, y), _without(y, x)
            else:
                gap = 1 if op == "lt" else 0
                facts.apart[self.plain(b), self.plain(a)] = gap, max(y[1] - x[0], gap)
                new = meet(x, (x[0], y[1] - gap)), meet(y, (x[0] + gap, y[1]))
        if new[0] is None or new[1] is None:
            facts.never = True
        else:
            facts.inside |= {a: new[0], b: new[1]}

    def plain(self, k: int) -> int:
        """The value before its bits were taken for those of the other 32-bit type: differences are the same."""
        while self.steps[k][0] == "convert" and {self.steps[k][1], self.steps[self.steps[k][3]][1]} <= _WORDS:
            k = self.steps[k][3]
        return k


def _without(x: Interval, y: Interval) -> Interval | None:
    """x, less what is y if that is one number at an end."""
    if y[0] != y[1]:
        return x
    low, high = x[0] + (x[0] == y[0]), x[1] - (x[1] == y[0])
    return (low, high) if low <= high else None


_LEAVES = frozenset(("const", "lid", "id", "len"))
_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
