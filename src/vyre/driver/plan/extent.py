"""How far the ids of a call go that write something, once the lengths of its arrays and its numbers are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from ...foundation.integers import ceil_div
from .grid import visits_everything
from .reach import LARGE, WORD, Fact, Poly, Reach, Write, add, reach_of

if TYPE_CHECKING:
    from ...foundation.ir.program import Program

Sum = dict[tuple[object, ...], int]
"""A factor for each part: ids, quotients `("/", sum, by)`, atoms `("?", atom)`, products `("*", part, part)` and values
of which the axes alone are known, `("!", axes)`. The empty part is the constant."""


class Digits(NamedTuple):
    """`top * (over // by)`, and digits of `over` below that, which add `low` at least. `row` is the least factor of a
    digit that is a multiple of the top's, as where rows are written as columns, and how many that digit has."""

    low: int
    top: int
    over: frozenset[tuple[tuple[object, ...], int]]
    by: int
    row: tuple[int, int] | None = None


class Limit(NamedTuple):
    """So many `ids` along an axis, and no later one gets to a write, as a condition or the index says. An index of
    several axes has room for a `row` of them. It is about one of the values `choices`."""

    ids: int
    row: int | None
    choices: list[Sum]
    is_index: bool


MOST_CHOICES = 16
FAR = 1 << 31
"""A bound of so many comes from a length that wrapped below zero."""


def confined(limits: Sequence[Limit]) -> int | None:
    """So many ids along the axis, and no later invocation gets to the write; None where nothing says so.

    An id that only an index of several axes confines stays inside its row.
    """
    known = [limit.ids for limit in limits if limit.row is None]
    rows = [min(limit.ids, limit.row) for limit in limits if limit.row is not None]
    bound = min(known or rows, default=None)
    return bound if bound is None or bound < FAR else None


class Extent:
    """What is known of the ids of one call. `lengths` are those of buffers, `numbers` those that the caller passed."""

    def __init__(self, reach: Reach, lengths: Mapping[str, int], numbers: Mapping[str, int]) -> None:
        self.reach, self.lengths, self.numbers = reach, lengths, numbers
        self._parts: dict[int, list[Sum]] = {}
        self._asked_of: dict[tuple[int, int], int | None] = {}
        self._steps_of: dict[tuple[int, int], int | None] = {}

    # ---- a write ----

    def limits(self, write: Write, axis: int) -> list[Limit]:
        """What the conditions and the index of a write say about the axis."""
        found = []
        constraints = list(self._constraints(write))
        still = self._still(constraints)
        for choices, below, is_index in constraints:
            if (ids := self._most(choices, below, axis)) is not None:
                moving = [{k: c for k, c in s.items() if k not in still} for s in choices]
                found.append(Limit(ids, self._row(moving, below, axis), choices, is_index))
        return found

    def room(self, limits: Iterable[Limit], axis: int, domain: Sequence[int]) -> int | None:
        """How many ids along the axis an index of several axes has room for, where nothing else confines them.

        None: an `if` does, or no other invocation of this domain writes there. 1: another axis counts alike.
        """
        rows = []
        for limit in limits:
            if limit.row is not None:
                rows.append(limit.row)
            elif any(self._is_shared(s, axis, domain) for s in limit.choices):
                rows.append(1)
            else:
                return None
        return min(rows, default=None)

    def _is_shared(self, s: Sum, axis: int, domain: Sequence[int]) -> bool:
        """Whether another axis with several ids counts as this one does in a sum."""
        steps = [s.get(("l", b), 0) if self.reach.size[b] > 1 else s.get(("w", b), 0) for b in range(3)]
        others = (steps[b] for b in range(3) if b != axis and domain[b] > 1)
        return steps[axis] != 0 and steps[axis] in others

    def _constraints(self, write: Write) -> Iterator[tuple[list[Sum], int, bool]]:
        """Values of which one is below a number, and whether that is the index."""
        facts = list(write.facts)
        if write.at is not None:
            facts.append(Fact(write.at, {(): self.lengths[write.buffer]}))
        for n, f in enumerate(facts):
            is_index = n == len(write.facts)
            if f.signed:
                if self._fits(f):
                    yield self.sums(add(f.small, f.large, -1)), int(f.equal), is_index
                continue
            small, below = self.sums(f.small), self._upper(f.large, facts)
            if below is not None:
                yield small, below + f.equal, is_index
                if below < FAR:  # a sum that is negative is no less than this
                    yield [{k: -c for k, c in s.items()} for s in small], 1, is_index

    def _still(self, constraints: Iterable[tuple[list[Sum], int, bool]]) -> set[tuple[object, ...]]:
        """Workgroups and places in them that are 0 wherever something is written: with 1, a sum is too large."""
        found: set[tuple[object, ...]] = set()
        for choices, below, _ in constraints:
            if choices:
                found |= set.intersection(*(self._zeros(s, below) for s in choices))
        return found

    def _zeros(self, s: Sum, below: int) -> set[tuple[object, ...]]:
        least = {k: s[k] if k == () else self._least(k, s[k]) for k in s}
        low = [n for n in least.values() if n is not None]
        if len(low) < len(least):
            return set()
        left = below - sum(low)
        return {
            k
            for k, c in s.items()
            if k[0:1] in (("w",), ("l",)) and c >= left > 0 and not self._wraps(c // self.reach.size[_atom(k)], below)
        }

    def _fits(self, f: Fact) -> bool:
        """Whether the difference of both sides has a sign in 32 bits, which that of `i - 5 < 2**31 - 1` has not."""
        small, large = ([s.get((), 0) for s in self.sums(p)] for p in (f.small, f.large))
        return all(abs(a - b) < FAR for a in small for b in large)

    def _upper(self, p: Poly, facts: Iterable[Fact]) -> int | None:
        """What the value is at most, of 32 bits without a sign."""
        found = [_number(s) for s in self.sums(p)]
        if found and None not in found:
            return max(n % WORD for n in found if n is not None)
        others = [(self._upper(f.large, ()), f.equal) for f in facts if f.small == p and not f.signed]
        return min((n - (not equal) for n, equal in others if n is not None), default=None)

    # ---- a read ----

    def asked(self, read: int, axis: int) -> int | None:
        """How many ids along the axis read an element of an array; None where that is not known."""
        if (read, axis) not in self._asked_of:
            self._asked_of[read, axis] = min((n for n, _ in self._asked_along(read, axis)), default=None)
        return self._asked_of[read, axis]

    def _asked_along(self, read: int, axis: int) -> Iterator[tuple[int, bool]]:
        """By each axis of the array that says so, and whether some of them only read the neighbour on the left."""
        buffer, at, facts = self.reach.reads[read]
        sizes = [(f.small, self._upper(f.large, ())) for f in facts if not f.signed]
        for index, size in sizes or [(at, self.lengths[buffer])]:
            sums = self.sums(index)
            found = [None] if size is None else [self._asked(s, size, axis) for s in sums]
            known = [n for n in found if n is not None]
            if size is not None and len(known) == len(found):
                yield max(known), max(known) > size and all(s.get((), 0) < 0 for s in sums)

    def _asked(self, s: Sum, length: int, axis: int) -> int | None:
        found = self._below(s, length, axis)
        if found is None:
            found = self._below({k: -c for k, c in s.items()}, 1, axis)
        row = self._row([s], length, axis)
        return found if found is None or row is None else min(found, row)

    def is_left(self, read: int, axis: int) -> bool:
        """Whether it reads a neighbour on the left, beside which other reads of the array count."""
        return min(self._asked_along(read, axis), default=(0, False))[1]

    def is_explained(self, buffer: str, at: Poly, axis: int, ids: int) -> bool:
        """Whether so many ids see of an array, at this index, all that any number of them would."""
        if axis not in self.reach.axes_of(at):
            return True
        for s in self.sums(at):
            here = {k: c for k, c in s.items() if self._kind(k) != "t" or c > 0}  # where a loop that goes down begins
            if not self._goes_along(s, axis) or self._asked(here, self.lengths[buffer], axis) is not None:
                continue
            if not any(n <= ids for n in self._periods(s, axis)):
                return False
        return True

    def _goes_along(self, s: Sum, axis: int) -> bool:
        """Whether it differs between ids, other than by the turns of a loop."""
        return any(axis in self._axes(k) for k in s if self._kind(k) != "t")

    def _periods(self, s: Sum, axis: int) -> Iterator[int]:
        """After so many ids the index begins again."""
        rest, groups = self._digits(s)
        if not any(axis in self._axes(k) for k in rest):
            for d in groups:
                found = self._below(dict(d.over), d.by, axis)
                if d.top == 0 and found is not None:
                    yield found

    def read_step(self, read: int, axis: int) -> int | None:
        if (read, axis) not in self._steps_of:
            self._steps_of[read, axis] = self.step(self.reach.reads[read].at, axis)
        return self._steps_of[read, axis]

    def step(self, p: Poly, axis: int) -> int | None:
        """After so many ids, a loop that begins at the id along the axis meets elements of the next one."""
        found: list[int] = []
        for s in self.sums(p):
            w, place, size = s.get(("w", axis), 0), s.get(("l", axis), 0), self.reach.size[axis]
            least = place + 1 if w == place * size else max(w, 1)
            found += [max(1, c * size // w) for k, c in s.items() if w > 0 and c >= least and self._is_endless(k)]
        return min(found, default=None)

    def _is_endless(self, key: tuple[object, ...]) -> bool:
        """Whether it is the turns of a loop that goes as far as the array does."""
        if self._kind(key) != "t":
            return False
        atom = self.reach.atoms[_atom(key)]
        return bool(atom.axes) or atom.a is None or self._turns(atom.a) == WORD - 1

    def _turns(self, extent: Poly) -> int | None:
        found = [_number(s) for s in self.sums(extent)]
        return max((n % WORD for n in found if n is not None), default=None) if None not in found else None

    # ---- sums ----

    def sums(self, p: Poly) -> list[Sum]:
        """The value with numbers for all that the call decides: one sum for each choice."""
        found: list[Sum] = [{}]
        for m, c in p.items():
            terms: list[Sum] = [{(): c}]
            for a in m:
                if a not in self._parts:
                    self._parts[a] = self._part(a)
                parts = self._parts[a]
                terms = [_times(t, part) for t in terms for part in parts]
                if not terms or len(found) * len(terms) > MOST_CHOICES:
                    return [{("!", self.reach.axes_of(p)): 1}]
            found = [_plus(s, t) for s in found for t in terms]
        return found

    def _part(self, a: int) -> list[Sum]:
        """What an atom may be; nothing for a quotient by zero."""
        atom = self.reach.atoms[a]
        match atom.kind:
            case "w" | "l":
                return [{(atom.kind, atom.key): 1}]
            case "len":
                return [{(): self.lengths[str(atom.key)]}]
            case "num" if atom.key in self.numbers:
                return [{(): self.numbers[str(atom.key)]}]
            case "|":
                assert atom.a is not None and atom.b is not None
                return self.sums(atom.a) + self.sums(atom.b)
            case "/":
                assert atom.a is not None and atom.b is not None
                divisors = [_number(by) for by in self.sums(atom.b)]
                if 0 in divisors:
                    return []
                return [self._quotient(a, over, by) for over in self.sums(atom.a) for by in divisors]
        return [{("?", a): 1}]

    def _quotient(self, a: int, over: Sum, by: int | None) -> Sum:
        if by is None or by < 0 or any(k[0:1] in (("/",), ("*",), ("!",)) for k in over):
            return {("?", a): 1}
        if all(c % by == 0 for c in over.values()):
            return {k: c // by for k, c in over.items()}
        n = _number(over)
        return {("/", frozenset(over.items()), by): 1} if n is None else {(): n // by}

    def _axes(self, key: tuple[object, ...]) -> frozenset[int]:
        match key:
            case ("w", int(axis)):
                return frozenset([axis])
            case ("/", frozenset() as over, _):
                return frozenset[int]().union(*(self._axes(k) for k, _ in over))
            case ("*", tuple() as a, tuple() as b):
                return self._axes(a) | self._axes(b)
            case ("!", frozenset() as axes):
                return axes
            case ("?", int(a)):
                return self.reach.atoms[a].axes
        return frozenset()

    def _kind(self, key: tuple[object, ...]) -> str:
        """That of an atom."""
        return self.reach.atoms[_atom(key)].kind if key[0:1] == ("?",) else ""

    def _is_positive(self, key: tuple[object, ...]) -> bool:
        match key:
            case ("?", int(a)):
                return self.reach.atoms[a].positive
            case ("*", tuple() as a, tuple() as b):
                return self._is_positive(a) and self._is_positive(b)
        return key[0] != "!"

    def _row(self, choices: list[Sum], below: int, axis: int) -> int | None:
        """How many ids along an axis an index has before it goes on along the next."""
        found = []
        for s in choices:
            w, place, size = s.get(("w", axis), 0), s.get(("l", axis), 0), self.reach.size[axis]
            others = self._steps_of_others(s, axis)
            step, ids = (place, 1) if w == place * size else (w, size)
            if step == w and (place * size >= below or any(n >= place * size for n in others)):
                others.append(place)  # rows of workgroups, of which its places are all, or go on along another axis
            found += [n // step * ids for n in others if 0 < step < n and n % step == 0]
            for d in self._digits(s)[1]:
                if d.row is not None and d.row[0] * d.row[1] >= below:
                    n = self._below(dict(d.over), d.by * (d.row[0] // d.top), axis)
                    found += [] if n is None else [n]
        return min(found, default=None)

    def _steps_of_others(self, s: Sum, axis: int) -> list[int]:
        """How far an id, or else a workgroup and a place in it, goes along each other axis."""
        found = []
        for b in {0, 1, 2} - {axis}:
            w, place = s.get(("w", b), 0), s.get(("l", b), 0)
            found += [place] if w == place * self.reach.size[b] else [w, place]
        return found

    # ---- how far an id goes ----

    def _most(self, choices: list[Sum], below: int, axis: int) -> int | None:
        found = [self._below(s, below, axis) for s in choices]
        return max(n for n in found if n is not None) if found and None not in found else None

    def _below(self, s: Sum, below: int, axis: int) -> int | None:
        """So many ids along the axis, and the sum of no later one is below a number; None where nothing says so."""
        rest, groups = self._digits(s)
        low, moving = rest.get((), 0), []
        for d in groups:
            low += d.low
            if not 0 <= d.top <= LARGE:
                return None
            if d.top and any(axis in self._axes(k) for k, _ in d.over):
                moving.append(d)
        for k, c in rest.items():
            if k not in ((), ("w", axis)):
                if (least := self._least(k, c)) is None:
                    return None
                low += least
        left, w, place, size = below - low, rest.get(("w", axis), 0), rest.get(("l", axis), 0), self.reach.size[axis]
        if w < 0 or self._wraps(w // size, left):
            return None
        found = [self._below(dict(d.over), d.by * max(0, ceil_div(left, d.top)), axis) for d in moving]
        if w and w == place * size:
            found.append(max(0, ceil_div(left, place)))
        elif w:
            found.append(max(0, ceil_div(left, w)) * size)
        return min((n for n in found if n is not None), default=None)

    def _wraps(self, step: int, below: int) -> bool:
        """Whether ids in these steps come round to small numbers again, as those of a hash do."""
        return step > LARGE or (step > LARGE >> 8 and below > LARGE << 4)

    def _least(self, key: tuple[object, ...], c: int) -> int | None:
        """The least that a part of a sum is; None where that is not known."""
        match key:
            case ("l", int(axis)):
                return min(0, c * (self.reach.size[axis] - 1))
            case ("w", int(axis)):
                return 0 if 0 < c <= LARGE * self.reach.size[axis] else None
            case ("?", int(a)) if c < 0 and self.reach.is_counter(a):
                extent = self.reach.atoms[a].a
                turns = None if extent is None else self._turns(extent)
                return None if turns is None else c * max(0, turns - 1)
        return 0 if 0 < c <= LARGE and self._is_positive(key) else None

    def _digits(self, s: Sum) -> tuple[Sum, list[Digits]]:
        """What has no quotients in a sum, and the others, taken apart into digits: `i` and `i // 8` are `i % 8` and
        `i // 8` with other factors."""
        rest = dict(s)
        groups: list[Digits] = []
        for over in dict.fromkeys(k[1] for k in s if k[0:1] == ("/",)):
            assert isinstance(over, frozenset)
            quotients = sorted((k[2], s[k]) for k in s if k[0:1] == ("/",) and k[1] == over if isinstance(k[2], int))
            of = next(((k, c) for k, c in over if k[0:1] == ("w",)), None)
            factor, lowest, last = 0, 0, 1
            if of is not None and rest.get(of[0], 0) % of[1] == 0:
                factor = rest.get(of[0], 0) // of[1]
            if all(b % a == 0 for (a, _), (b, _) in pairwise(quotients)):
                rest = _plus(rest, {k: -factor * c for k, c in over})
                factors = []
                for by, c in quotients:
                    lowest += min(0, factor * (by // last - 1))
                    factors.append((factor, by // last))
                    factor, last = c + factor * (by // last), by
                larger = [(f, n) for f, n in factors if f > factor > 0 and f % factor == 0]
                groups.append(Digits(lowest, factor, over, last, min(larger, default=None)))
            else:
                groups += [Digits(0, c, over, by) for by, c in quotients]
            for by, _ in quotients:
                rest.pop(("/", over, by), None)
        return rest, groups


class Line:
    """How far a program goes whose every write is at the id along x, under conditions on that id alone: as `Extent`
    finds it, at a fraction of the cost."""

    def __init__(self, reach: Reach, *, visits_all: bool) -> None:
        """`visits_all`: every element of every array has an invocation."""
        self.visits_all = visits_all
        self._writes = []
        """Buffers, and sums that the id is below, or at most: factors and the names in them."""
        for w in reach.writes:
            limits = []
            for f in w.facts:
                terms = [(c, [str(reach.atoms[a].key) for a in m]) for m, c in f.large.items()]
                limits.append((terms, int(f.equal)))
            self._writes.append((w.buffer, limits))
        self._fixed = {name: b.count for name, b in reach.buffers.items() if b.count}

    @classmethod
    def of(cls, program: Program) -> Line | None:
        """None where it is not that simple."""
        reach = reach_of(program)
        (x, y, z), names = reach.size, {(atom.kind, atom.key): n for n, atom in enumerate(reach.atoms)}
        own: Poly = {(names.get(("w", 0), -1),): x}
        if x > 1:
            own[names.get(("l", 0), -1),] = 1
        if (y, z) != (1, 1) or not reach.writes:
            return None
        for w in reach.writes:
            parts = {reach.atoms[a].kind for f in w.facts for m in f.large for a in m}
            if w.at != own or not parts <= {"len", "num"} or any(f.signed or f.small != own for f in w.facts):
                return None
        return cls(reach, visits_all=visits_everything(program) or any(b.is_workgroup for b in program.buffers))

    def ids(self, lengths: Mapping[str, int], numbers: Mapping[str, int]) -> tuple[int, str] | None:
        """So many ids get to a write, and of which buffer; None where a value is not known."""
        found, of = -1, ""
        for buffer, limits in self._writes:
            ids = lengths.get(buffer, FAR)
            for terms, more in limits:
                total = 0
                for c, names in terms:
                    for name in names:
                        value = lengths.get(name, numbers.get(name, self._fixed.get(name)))
                        if value is None:
                            return None
                        c *= value
                    total += c
                ids = min(ids, total % WORD + more)
            if ids >= FAR:
                return None
            if ids > found:
                found, of = ids, buffer
        return found, of


def line_of(program: Program) -> Line | None:
    """The program's line, if it goes along one."""
    return program._cached("driver.line", lambda: Line.of(program))


def _number(s: Sum) -> int | None:
    return s.get((), 0) if not s or list(s) == [()] else None


def _atom(key: tuple[object, ...]) -> int:
    assert isinstance(key[1], int)
    return key[1]


def _plus(a: Sum, b: Sum) -> Sum:
    found = dict(a)
    for k, c in b.items():
        found[k] = (found.get(k, 0) + c + WORD // 2) % WORD - WORD // 2
    return {k: c for k, c in found.items() if c}


def _times(a: Sum, b: Sum) -> Sum:
    found: Sum = {}
    for k, c in a.items():
        for m, d in b.items():
            found = _plus(found, {("*", k, m) if k and m else k or m: c * d})
    return found
