"""How many invocations along an axis an array asks for, by the way in which a program indexes it.

An index is a polynomial over the ids of an invocation and over values that all invocations share; `i % n` is written
`i - n * (i // n)`, so that an id which was split into coordinates and put together again is the id. These are guesses
for a call that does not say how much runs: they take shared values for one or more, and no sum to wrap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ...foundation.check.requirements import SUBGROUP_EXPRS
from ...foundation.integers import ceil_div
from ...foundation.ir import nodes as ir
from ...foundation.ir.ops import BinaryOp, UnaryOp
from ...foundation.ir.program import Program
from ...foundation.ir.visit import Steps, bodies, children, fold, run_nested, walk_nodes

WORD = 1 << 32
MOST_TERMS, MOST_FACTORS = 64, 8
"""A larger polynomial is one value of which nothing is known: products of sums would take ages."""

Poly = dict[tuple[int, ...], int]
"""A number for each product of atoms; the empty product is the constant."""


class Atom(NamedTuple):
    """What a polynomial is made of: `w` and `l` are the ids of workgroup and place along an axis, `len` the length of
    a buffer, `/` a quotient of `over` by `by`, `?` any other value. It differs between workgroups along `axes`."""

    kind: str
    axes: frozenset[int]
    local: bool
    key: object
    over: Poly | None = None
    by: Poly | None = None


class Access(NamedTuple):
    """`at` is the index: None where memory or other invocations say which element it is."""

    buffer: str
    writes: bool
    at: Poly | None


def _add(a: Poly, b: Poly, scale: int = 1) -> Poly:
    found = dict(a)
    for m, c in b.items():
        found[m] = (found.get(m, 0) + scale * c + WORD // 2) % WORD - WORD // 2
    return {m: c for m, c in found.items() if c}


def _multiply(a: Poly, b: Poly) -> Poly:
    found: Poly = {}
    for m, c in a.items():
        found = _add(found, {tuple(sorted(m + n)): d for n, d in b.items()}, c)
    return found


def _is_small(a: Poly, b: Poly) -> bool:
    """Whether two may be multiplied."""
    return len(a) * len(b) <= MOST_TERMS and sum(max(map(len, p), default=0) for p in (a, b)) <= MOST_FACTORS


def _number(p: Poly) -> int | None:
    """The value of a polynomial that is a number."""
    return p.get((), 0) if not p or list(p) == [()] else None


def _is_negative(p: Poly) -> bool:
    """By its largest products: `w - 2` is positive."""
    degree = max(map(len, p), default=0)
    return any(c < 0 for m, c in p.items() if len(m) == degree)


class Reach:
    """The accesses of a program, each once, and whether an invocation that stores nothing may end the dispatch."""

    def __init__(self, program: Program) -> None:
        self.size = program.workgroup_size
        self.traps = False
        self._accesses: dict[object, Access] = {}
        self._atoms: list[Atom] = []
        self._numbers: dict[object, int] = {}
        self._names: dict[str, tuple[Poly | None, int]] = {}
        run_nested(self._block(program.entry, 0))
        self.accesses = tuple(self._accesses.values())

    def _note(self, buffer: str, writes: bool, at: Poly | None) -> None:
        self._accesses[buffer, writes, None if at is None else frozenset(at.items())] = Access(buffer, writes, at)

    # ---- statements ----

    def _block(self, nodes: tuple[ir.Node, ...], depth: int) -> Steps:
        for n in nodes:
            values = [self._value(e) for e in children(n)]
            match n:
                case ir.Let(name=name):
                    self._names[name] = values[0], depth
                case ir.Assign(name=name):
                    old, declared = self._names.get(name, (None, depth))
                    self._names[name] = (values[0] if declared == depth else self._either(old, values[0])), declared
                case ir.Store(buffer=buffer):
                    self._note(buffer, True, values[0])
                case ir.AsyncStore(destination=buffer):
                    self._note(buffer, True, None)
                case ir.Trap():
                    self.traps = True
                case ir.Loop(var=var, body=body):
                    for inner in walk_nodes(body):
                        if isinstance(inner, ir.Assign) and inner.name in self._names:
                            old, declared = self._names[inner.name]
                            self._names[inner.name] = self._walk(n, old, inner.name), declared
                    self._names[var] = self._turn(n, values[0], values[1]), depth + 1
            for body in bodies(n):
                yield self._block(body, depth if isinstance(n, ir.Region | ir.Block) else depth + 1)

    def _walk(self, loop: ir.Loop, start: Poly | None, name: str) -> Poly | None:
        """A value that a loop changes: it is somewhere beyond an id, or says nothing."""
        axes = frozenset[int]() if start is None else self.axes(start)
        return self._atom("?", axes, True, (id(loop), name)) if axes else None

    def _turn(self, loop: ir.Loop, start: Poly | None, stop: Poly | None) -> Poly | None:
        """A loop that goes as far in every invocation adds to its start; else it is a walk."""
        if start is None or stop is None:
            return None
        extent = _add(stop, start, -1)
        if self.axes(extent):
            return self._walk(loop, extent, loop.var)
        return _add(start, self._atom("?", frozenset(), False, (id(loop), loop.var)))

    # ---- values ----

    def _atom(self, kind: str, axes: frozenset[int], local: bool, key: object, *quotient: Poly) -> Poly:
        n = self._numbers.setdefault((kind, key), len(self._atoms))
        if n == len(self._atoms):
            self._atoms.append(Atom(kind, axes, local, key, *quotient))
        return {(n,): 1}

    def axes(self, p: Poly) -> frozenset[int]:
        """Along which axes the value differs between workgroups."""
        return frozenset[int]().union(*(self._atoms[a].axes for m in p for a in m))

    def _is_shared(self, p: Poly) -> bool:
        return not any(self._atoms[a].axes or self._atoms[a].local for m in p for a in m)

    def _value(self, root: ir.Expr) -> Poly | None:
        return fold(root, self._combine)

    def _combine(self, e: ir.Expr, below: tuple[Poly | None, ...]) -> Poly | None:
        match e, below:
            case ir.Lit(dtype=t, bits=bits), _ if t.name in ("u32", "i32"):
                return _add({}, {(): bits})
            case ir.Var(name=name), _:
                return self._names.get(name, (None, 0))[0]
            case ir.InvocationId(axis=axis), _:
                return _add(self._local(axis), self._group(axis), self.size[axis])
            case ir.WorkgroupId(axis=axis), _:
                return self._group(axis)
            case ir.LocalId(axis=axis), _:
                return self._local(axis)
            case ir.BufLen(buffer=name), _:
                return self._atom("len", frozenset(), False, name)
            case ir.Load(buffer=name), (index,):
                self._note(name, False, index)
                return self._unknown(e, name, below) if index is not None and self._is_shared(index) else None
            case ir.Atomic(buffer=name), (index, *_):
                self._note(name, True, index)
                return None
        given = [p for p in below if p is not None]
        if len(given) < len(below) or isinstance(e, (*SUBGROUP_EXPRS, ir.Opaque)):
            return None
        match e, given:
            case ((ir.Cast(target=t) | ir.Bitcast(target=t)), [p]) if t.name in ("u32", "i32"):
                return p
            case ir.UnOp(op=UnaryOp.NEGATE), [p]:
                return _add({}, p, -1)
            case ir.Select(), [_, yes, no]:
                return self._either(yes, no)
            case ir.BinOp(op=op), [a, b]:
                found = self._binary(op, a, b)
                if found is not None and len(found) <= MOST_TERMS:
                    return found
        what = (getattr(e, name, None) for name in ("op", "op_id", "target", "bits", "axis"))
        return self._unknown(e, tuple(what), below)

    def _group(self, axis: int) -> Poly:
        return self._atom("w", frozenset([axis]), False, axis)

    def _local(self, axis: int) -> Poly:
        return self._atom("l", frozenset(), True, axis) if self.size[axis] > 1 else {}

    def _unknown(self, e: ir.Expr, what: object, below: tuple[Poly | None, ...]) -> Poly:
        """Equal operations on equal values are one value."""
        given = [p or {} for p in below]
        key = type(e), what, tuple(frozenset(p.items()) for p in given)
        axes = frozenset[int]().union(*map(self.axes, given))
        return self._atom("?", axes, not all(map(self._is_shared, given)), key)

    def _either(self, a: Poly | None, b: Poly | None) -> Poly | None:
        """One of two values: one that stays in place, as the limit of a clamp does, tells nothing beside another."""
        if a is None or b is None:
            return None
        if a == b or not self.axes(b):
            return a
        if not self.axes(a):
            return b
        return self._atom("?", self.axes(a) | self.axes(b), True, (frozenset(a.items()), frozenset(b.items())))

    def _binary(self, op: object, a: Poly, b: Poly) -> Poly | None:
        n = _number(b)
        match op:
            case BinaryOp.ADD | BinaryOp.WRAPPING_ADD:
                return _add(a, b)
            case BinaryOp.SUB | BinaryOp.WRAPPING_SUB | BinaryOp.SATURATING_SUB:
                return _add(a, b, -1)
            case BinaryOp.MUL if _is_small(a, b):
                return _multiply(a, b)
            case BinaryOp.SHL if n is not None:
                return _add({}, a, 1 << n % 32)
            case BinaryOp.SHR if n is not None:
                return self._quotient(a, {(): 1 << n % 32})
            case BinaryOp.DIV if n != 0:
                return self._quotient(a, b)
            case BinaryOp.MOD if n != 0:
                return self._rest(a, b)
            case BinaryOp.BIT_AND if n is not None and n > 0 and n & n + 1 == 0:
                return self._rest(a, {(): n + 1})
            case BinaryOp.MIN | BinaryOp.MAX:
                return self._either(a, b)
        return None

    def _rest(self, a: Poly, n: Poly) -> Poly:
        return _add(a, _multiply(n, self._quotient(a, n)), -1)

    def _quotient(self, a: Poly, n: Poly) -> Poly:
        if _number(n) == 1:
            return a
        if len(a) == 1:
            ((m, c),) = a.items()
            inner = self._atoms[m[0]] if len(m) == 1 and c == 1 else None
            if inner is not None and inner.over is not None and inner.by is not None and _is_small(inner.by, n):
                a, n = inner.over, _multiply(inner.by, n)  # i // 4 // 8 is i // 32
        axes, local = self.axes(a) | self.axes(n), not (self._is_shared(a) and self._is_shared(n))
        return self._atom("/", axes, local, (frozenset(a.items()), frozenset(n.items())), a, n)

    # ---- what an index asks for ----

    def _times_id(self, p: Poly, axis: int) -> Poly | None:
        """What the id along an axis is multiplied with in the sum; None where workgroup and place count apart."""
        group, place, size = self._without(p, "w", axis), self._without(p, "l", axis), self.size[axis]
        if size == 1:
            return group
        return place if _add(group, place, -size) == {} else None

    def _without(self, p: Poly, kind: str, axis: int) -> Poly:
        """The products with this id, which is taken out of them."""
        return {m[:k] + m[k + 1 :]: c for m, c in p.items() for k, a in enumerate(m) if self._is(a, kind, axis)}

    def _is(self, atom: int, kind: str, axis: int) -> bool:
        return self._atoms[atom].kind == kind and self._atoms[atom].key == axis

    def _still(self, p: Poly, axis: int) -> Poly:
        """The part of the sum that does not go with the id along an axis."""
        return {m: c for m, c in p.items() if not any(self._is(a, kind, axis) for a in m for kind in "wl")}

    def _kinds(self, p: Poly) -> Iterator[Atom]:
        """The atoms that differ between workgroups."""
        return (self._atoms[a] for m in p for a in m if self._atoms[a].axes)

    def need(self, index: Poly, length: int, lengths: Mapping[str, int], axis: int, most: bool) -> int | None:
        """So many invocations along the axis, and no later one reaches the array; None where that is not known.

        With `most`, fewer may do: how far an id goes in steps of a shared value is not known before the call.
        """
        p: Poly = {}
        for m, c in index.items():
            known = [lengths[str(self._atoms[a].key)] for a in m if self._atoms[a].kind == "len"]
            p = _add(p, {tuple(a for a in m if self._atoms[a].kind != "len"): c * math.prod(known)})
        still, left = self._still(p, axis), length - p.get((), 0)
        if [t.kind for t in self._kinds(p)] == ["/"]:
            return self._need_of_quotient(p, left, lengths, axis, most)
        if any(t.kind != "w" for t in self._kinds(p)) or self.axes(still):
            return None
        step, size = self._times_id(p, axis), 1
        if step is None:
            step, size = self._without(p, "w", axis), self.size[axis]
        number = _number(step)
        if number is not None and number < 0 and size == 1 and not still.keys() - {()} and left > 0:
            return (length - left) // -number + 1  # from its end
        if not step or _is_negative(step) or _is_negative({m: c for m, c in still.items() if m}):
            return None
        if number is None and (size > 1 or not most):
            return None
        return max(0, ceil_div(left, number or 1)) * size

    def _need_of_quotient(self, p: Poly, left: int, lengths: Mapping[str, int], axis: int, most: bool) -> int | None:
        (m,) = (m for m in p if self.axes({m: 1}))
        atom = self._atoms[m[0]]
        by = _number(atom.by or {})
        if len(m) > 1 or p[m] < 0 or any(c < 0 for n, c in p.items() if n) or not by or by < 0 or not atom.over:
            return None
        return self.need(atom.over, by * max(0, ceil_div(left, p[m])), lengths, axis, most)

    def repeats(self, index: Poly) -> bool:
        """Whether it goes round a fixed part of the array, as `gid.x % 8` does."""
        for t in self._kinds(index):
            if t.over is None or t.by is None:
                continue
            per, all_of = self._times_id(t.over, 0), self._times_id(index, 0)
            n = _number(per) if per else None
            if n and all_of and all(c % n == 0 for c in all_of.values()):
                factor = {m: c // n for m, c in all_of.items()}
                return not self.axes(_add(index, _multiply(factor, self._rest(t.over, t.by)), -1))
        return False

    def spreads(self, index: Poly, axes: frozenset[int]) -> bool:
        """Whether it goes along all these axes, so that an element each is what the array asks for."""
        steps = [self._step(index, axis) for axis in axes]
        if not all(steps) or any(t.kind == "?" for t in self._kinds(index)) or self.repeats(index):
            return False
        if any(_is_negative(s) for s in steps if s):
            return True  # a mirror image
        return not _is_negative({m: c for m, c in index.items() if self._is_shared({m: c})})

    def _step(self, p: Poly, axis: int) -> Poly | None:
        """From one place to the next, where a workgroup goes at least as far as it has places."""
        group, place = self._without(p, "w", axis), self._without(p, "l", axis)
        exact = self._times_id(p, axis)
        return exact or (place if group and not _is_negative(_add(group, place, -self.size[axis])) else None)

    def is_across(self, index: Poly) -> bool:
        """Whether y goes from element to element, and x in larger steps."""
        x, y = self._times_id(index, 0), self._times_id(index, 1)
        if not x or not y:
            return False
        far, near = _number(x), _number(y)
        return near is not None and (far is None or far > near > 0)


def reach_of(program: Program) -> Reach:
    return program._cached("driver.reach", lambda: Reach(program))
