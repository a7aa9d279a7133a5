"""What the invocations of a program write: where, under which conditions, and what of the input goes into it.

A value is a polynomial over the ids of an invocation and over values that all invocations share; `i % n` is written
`i - n * (i // n)`, so that an id which was split into coordinates and put together again is the id. No sum of ids is
taken to wrap.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ...foundation.check.requirements import SUBGROUP_EXPRS
from ...foundation.ir import nodes as ir
from ...foundation.ir.dtypes import bool_, i32, u32
from ...foundation.ir.ops import BinaryOp, UnaryOp
from ...foundation.ir.prints import without_prints
from ...foundation.ir.program import Access, BufferDecl, Program
from ...foundation.ir.visit import Steps, bodies, children, distinct, fold, run_nested, walk_nodes

WORD = 1 << 32
MOST_TERMS, MOST_FACTORS = 64, 8
"""A larger polynomial is one value of which nothing is known: products of sums would take ages."""
LARGE = 1 << 24
"""An id times more than this soon wraps."""
MOST_READS = 256
"""What is made from more reads is not followed."""

Poly = dict[tuple[int, ...], int]
"""A number for each product of atoms; the empty product is the constant."""
Key = tuple[str, object]
"""What a value is made from: a local `v`, shared memory `s`, a read by id `r`, the ids along an axis `w`, or memory `m`
that other invocations change."""
Keys = frozenset[Key]
_MANY: Key = "r", -1


class Atom(NamedTuple):
    """What a polynomial is made of.

    `w` and `l` are the ids of workgroup and place along an axis, `len` the length of a buffer, `num` a number that the
    caller passes, or a word of a table (`shapes[1]`), `/` a quotient of `a` by `b`, `|` one of `a` and `b`, `t` the
    turns of a loop, `a` at most, and `?` any other value. It differs between workgroups along `axes`, or only inside of
    one or from time to time if it is `local`, and adds to an id without wrapping where it is `positive`.
    """

    kind: str
    axes: frozenset[int]
    local: bool
    key: object
    positive: bool = True
    a: Poly | None = None
    b: Poly | None = None


class Fact(NamedTuple):
    """`small < large`, or `<=`, as numbers of 32 bits with or without a sign."""

    small: Poly
    large: Poly
    signed: bool = False
    equal: bool = False


class Read(NamedTuple):
    """One that differs between workgroups; where memory alone says which element it is, there is none. `facts` hold
    where it is inside of every axis."""

    buffer: str
    at: Poly
    facts: tuple[Fact, ...] = ()


class Write(NamedTuple):
    """A store, an atomic, or a trap, which has no buffer. `facts` hold for every invocation that gets there, and `keys`
    are what it is made from."""

    buffer: str
    at: Poly | None
    is_atomic: bool
    facts: tuple[Fact, ...]
    keys: Keys


class Sources(NamedTuple):
    """All that goes into a write: reads by their numbers, unless there are too many, and ids along these axes.

    It `is_settled` if other invocations change nothing of that.
    """

    reads: tuple[int, ...] | None
    axes: frozenset[int]
    is_settled: bool


class _Place(NamedTuple):
    """What holds at a statement: conditions, and what decides whether it is reached."""

    facts: tuple[Fact, ...] = ()
    keys: Keys = frozenset()


def add(a: Poly, b: Poly, scale: int = 1) -> Poly:
    found = dict(a)
    for m, c in b.items():
        found[m] = (found.get(m, 0) + scale * c + WORD // 2) % WORD - WORD // 2
    return {m: c for m, c in found.items() if c}


def multiply(a: Poly, b: Poly) -> Poly:
    found: Poly = {}
    for m, c in a.items():
        found = add(found, {tuple(sorted(m + n)): d for n, d in b.items()}, c)
    return found


def _is_small(a: Poly, b: Poly) -> bool:
    """Whether two may be multiplied."""
    return len(a) * len(b) <= MOST_TERMS and sum(max(map(len, p), default=0) for p in (a, b)) <= MOST_FACTORS


def number(p: Poly) -> int | None:
    """The value of a polynomial that is a number."""
    return p.get((), 0) if not p or list(p) == [()] else None


class Reach:
    """What a program writes. `axes` are those along which it tells workgroups apart, and `numbers` the parameters on
    which it depends how far it writes."""

    def __init__(self, program: Program) -> None:
        self.size = program.workgroup_size
        self.buffers = {b.name: b for b in program.buffers}
        self.atoms: list[Atom] = []
        self.reads: list[Read] = []
        self._numbers: dict[object, int] = {}
        self._names: dict[str, Poly | None] = {}
        self._conditions: dict[str, tuple[tuple[Fact, ...], tuple[Fact, ...]]] = {}
        self._made_from: dict[Key, set[Key]] = {}
        self._read_numbers: dict[object, int] = {}
        self._inside: dict[int, tuple[Poly | None, tuple[Fact, ...]]] = {}  # of an index with axes, what it is there
        self.writes: list[Write] = []
        self._keys: set[Key] = set()
        self._atomics: list[tuple[str, Poly | None]] = []
        self._returned: Keys = frozenset()
        items = list(distinct(program.entry))
        self._written = {i.buffer for i in items if isinstance(i, ir.Store | ir.Atomic)}
        self.axes = frozenset(i.axis for i in items if isinstance(i, ir.InvocationId | ir.WorkgroupId))
        local = ir.LocalId, *SUBGROUP_EXPRS
        self.reads_ids = bool(self.axes) or any(isinstance(i, local) for i in items)
        run_nested(self._block(program.entry, _Place()))
        self._follow()
        self.numbers = frozenset(self._deciding_numbers())

    # ---- what a value is made from ----

    def sources(self, write: Write) -> Sources:
        found = self._leaves(write.keys)
        reads = sorted(k for kind, k in found if kind == "r" and isinstance(k, int))
        axes = frozenset(a for kind, a in found if kind == "w" and isinstance(a, int))
        return Sources(None if _MANY in found else tuple(reads), axes, not any(kind == "m" for kind, _ in found))

    def _leaves(self, keys: Iterable[Key]) -> Keys:
        found = frozenset[Key]().union(*(self._ends.get(k, frozenset([k])) for k in keys))
        if sum(kind == "r" for kind, _ in found) <= MOST_READS:
            return found
        return frozenset(k for k in found if k[0] != "r") | {_MANY}

    def _follow(self) -> None:
        """Find for every local and all shared memory what it is made from in the end."""
        users: dict[Key, list[Key]] = {}
        for key, made_from in self._made_from.items():
            for k in made_from:
                users.setdefault(k, []).append(key)
        self._ends = dict.fromkeys(self._made_from, Keys())
        unseen = dict.fromkeys(self._made_from)
        while unseen:
            key = next(iter(unseen))
            del unseen[key]
            found = self._leaves(self._made_from[key])
            if found != self._ends[key]:
                self._ends[key] = found
                unseen |= dict.fromkeys(users.get(key, ()))

    def _deciding_numbers(self) -> Iterable[str]:
        for w in self.writes:
            apart = self._is_apart(w.at or {})
            told = [p for f in w.facts if apart or self._differs(f.small, f.large) for p in (f.small, f.large)]
            told += [w.at] if w.at else []
            along = [self.atoms[a] for m in w.at or {} for a in m if self.atoms[a].axes]
            if not self.axes <= self.axes_of(w.at or {}) or any(atom.kind != "w" for atom in along):
                told += [self.reads[k].at for k in self.sources(w).reads or ()]  # its own index may not say how far
            for p in told:
                yield from self._numbers_in(p)

    def _is_apart(self, p: Poly) -> bool:
        """Whether a place in a workgroup goes another way than the workgroup does, so that conditions on it count."""
        for m, c in p.items():
            for a in m:
                atom = self.atoms[a]
                if atom.kind == "l" and isinstance(atom.key, int):
                    w = self._numbers.get(("w", atom.key), -1)
                    as_group = tuple(sorted(w if b == a else b for b in m))
                    if p.get(as_group, 0) != c * self.size[atom.key]:
                        return True
        return False

    def _numbers_in(self, p: Poly) -> Iterable[str]:
        unseen = {a for m in p for a in m}
        seen = set[int]()
        while unseen:
            n = unseen.pop()
            seen.add(n)
            atom = self.atoms[n]
            if atom.kind == "num":
                yield str(atom.key)
            unseen |= {a for q in (atom.a, atom.b) if q is not None for m in q for a in m} - seen

    # ---- statements ----

    def _block(self, nodes: tuple[ir.Node, ...], at: _Place) -> Steps:
        for n in nodes:
            self._keys, self._atomics = set(at.keys | self._returned), []
            values = [self._value(e) for e in children(n)]
            keys = frozenset(self._keys)
            for buffer, index in self._atomics:
                self._note(buffer, index, True, at, keys)
            match n:
                case ir.Let(name=name) | ir.Assign(name=name):
                    self._names[name] = values[0]
                    self._made_from.setdefault(("v", name), set()).update(keys)
                    if n.value.type_hint == bool_:
                        self._conditions[name] = self._facts(n.value, True), self._facts(n.value, False)
                case ir.Store(buffer=buffer):
                    self._note(buffer, values[0], False, at, keys)
                case ir.AsyncStore(destination=buffer) | ir.AsyncLoad(destination=buffer):
                    self._note(buffer, None, True, at, keys)
                case ir.Trap():
                    self.writes.append(Write("", None, False, at.facts, keys))
                case ir.Return():
                    self._returned |= at.keys
                case ir.If(condition=condition, then=then, orelse=orelse):
                    yes, no = self._facts(condition, True), self._facts(condition, False)
                    changed = self._assigned(then + orelse)
                    before = {name: self._names[name] for name in changed}
                    yield self._block(then, _Place(at.facts + yes, keys))
                    after = {name: self._names[name] for name in changed}
                    self._names |= before
                    self._forget(changed)
                    yield self._block(orelse, _Place(at.facts + no, keys))
                    self._forget(changed)
                    ends, other_ends = (bool(b) and isinstance(b[-1], ir.Return) for b in (then, orelse))
                    for name, value in after.items():
                        other = self._names[name]
                        self._names[name] = other if ends else value if other_ends else self._either(value, other)
                    at = at._replace(facts=at.facts + (no if ends else ()) + (yes if other_ends else ()))
                case ir.Loop(var=var, body=body):
                    changed = self._assigned(body)
                    extent = None if values[0] is None or values[1] is None else add(values[1], values[0], -1)
                    top = {name: self._changed_by(n, name, self._names[name], extent) for name in changed}
                    self._names |= top
                    self._forget(changed)
                    self._names[var] = None if values[0] is None else add(values[0], self._turns(n, "", extent))
                    self._made_from.setdefault(("v", var), set()).update(keys)
                    yield self._block(body, _Place(at.facts, keys))
                    self._names |= top
                    self._forget(changed)
                case _:
                    for body in bodies(n):
                        yield self._block(body, at)

    def _note(self, buffer: str, index: Poly | None, is_atomic: bool, at: _Place, keys: Keys) -> None:
        if buffer in self.buffers and self.buffers[buffer].is_workgroup:
            self._made_from.setdefault(("s", buffer), set()).update(keys)
        else:
            index, facts = self._element(index)
            self.writes.append(Write(buffer, index, is_atomic, at.facts + facts, keys))

    def _element(self, index: Poly | None) -> tuple[Poly | None, tuple[Fact, ...]]:
        """Which element an index names, and what holds if it names any."""
        atom = next(iter(index))[0] if index is not None and len(index) == 1 and next(iter(index)) else None
        return (index, ()) if atom is None else self._inside.get(atom, (index, ()))

    def _assigned(self, body: tuple[ir.Node, ...]) -> set[str]:
        """The names from outside that it assigns."""
        return {n.name for n in walk_nodes(body) if isinstance(n, ir.Assign) and n.name in self._names}

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._conditions.pop(name, None)

    def _turns(self, loop: ir.Loop, name: str, extent: Poly | None) -> Poly:
        """How often a loop has turned, from 0."""
        axes = self.axes_of(extent) if extent is not None else frozenset[int]()
        return self._atom("t", axes, True, (id(loop), name), True, extent)

    def is_counter(self, atom: int) -> bool:
        """Whether it is below the number of turns: that of a variable is not, after the last or in an inner loop."""
        found = self.atoms[atom]
        return found.kind == "t" and isinstance(found.key, tuple) and found.key[1] == ""

    def _changed_by(self, loop: ir.Loop, name: str, start: Poly | None, extent: Poly | None) -> Poly | None:
        """A value that a loop changes: it goes on in steps, or is its start at first, and then anything."""
        if start is None:
            return None
        steps, from_memory, changed = [], False, self._assigned(loop.body)
        for n in walk_nodes(loop.body):
            if isinstance(n, ir.Assign) and n.name == name:
                steps.append(self._step(n.value, name, changed))
                from_memory |= any(isinstance(e, ir.Load | ir.Atomic | ir.Opaque) for e in distinct(n.value))
        if len(steps) == 1 and (step := steps[0]) is not None:
            return add(start, multiply(step, self._turns(loop, name, extent)))
        if not self.axes_of(start):
            return None
        axes = frozenset[int]() if from_memory else self.axes_of(start)
        return self._either(start, self._atom("?", axes, True, (id(loop), name), False))

    def _step(self, e: ir.Expr, name: str, changed: set[str]) -> Poly | None:
        """By how much `name = e` goes on, if that is the same for all invocations and turns."""
        match e:
            case ir.BinOp(op=BinaryOp.ADD | BinaryOp.SUB as op, left=ir.Var(name=left), right=by) if left == name:
                names = {v.name for v in distinct(by) if isinstance(v, ir.Var)}
                step = self._value(by) if names.isdisjoint(changed) and names <= self._names.keys() else None
                if step is not None and self._is_shared(step):
                    return step if op is BinaryOp.ADD else add({}, step, -1)
        return None

    # ---- conditions ----

    def _facts(self, root: ir.Expr, truth: bool) -> tuple[Fact, ...]:
        """What is known of ids where the condition is true, or false."""
        found: list[Fact] = []
        unseen = [(root, truth)]
        while unseen:
            e, truth = unseen.pop()
            match e:
                case ir.UnOp(op=UnaryOp.LOGICAL_NOT, operand=x):
                    unseen.append((x, not truth))
                case ir.BinOp(op=BinaryOp.AND | BinaryOp.OR as op, left=a, right=b):
                    if (op is BinaryOp.AND) == truth:
                        unseen += [(a, truth), (b, truth)]
                case ir.Var(name=name) if name in self._conditions:
                    found += self._conditions[name][not truth]
                case ir.BinOp(op=BinaryOp() as op, left=a, right=b) if op.rule == "compare":
                    found += self._compared(op, a, b, truth)
        return tuple(found)

    def _compared(self, op: BinaryOp, left: ir.Expr, right: ir.Expr, truth: bool) -> Iterable[Fact]:
        kind = left.type_hint or right.type_hint
        a, b = self._value(left), self._value(right)
        if kind not in (u32, i32) or a is None or b is None:
            return
        if not self._differs(a, b) and not any(self.atoms[n].kind == "l" for p in (a, b) for m in p for n in m):
            return
        if not truth:
            op = _OPPOSITE[op]
        if op in (BinaryOp.GT, BinaryOp.GE):
            a, b = b, a
        if op is not BinaryOp.NE:
            yield Fact(a, b, kind == i32, op not in (BinaryOp.LT, BinaryOp.GT))
        if op is BinaryOp.EQ:
            yield Fact(b, a, kind == i32, True)

    def _differs(self, a: Poly, b: Poly) -> bool:
        """Whether one of them differs between workgroups."""
        return bool(self.axes_of(a) | self.axes_of(b))

    # ---- values ----

    def _atom(
        self, kind: str, axes: frozenset[int], local: bool, key: object, positive: bool = True, *parts: Poly | None
    ) -> Poly:
        n = self._numbers.setdefault((kind, key), len(self.atoms))
        if n == len(self.atoms):
            self.atoms.append(Atom(kind, axes, local, key, positive, *parts))
        return {(n,): 1}

    def _made_of(self, kind: str, key: object, positive: bool, given: list[Poly], *parts: Poly) -> Poly:
        """An atom that differs where those differ of which it is made."""
        axes = frozenset[int]().union(*map(self.axes_of, given))
        return self._atom(kind, axes, not all(map(self._is_shared, given)), key, positive, *parts)

    def _is_shared(self, p: Poly) -> bool:
        return not any(self.atoms[a].axes or self.atoms[a].local for m in p for a in m)

    def axes_of(self, p: Poly) -> frozenset[int]:
        """Along which axes the value differs between workgroups."""
        return frozenset[int]().union(*(self.atoms[a].axes for m in p for a in m))

    def _value(self, root: ir.Expr) -> Poly | None:
        return fold(root, self._combine)

    def _combine(self, e: ir.Expr, below: tuple[Poly | None, ...]) -> Poly | None:
        match e, below:
            case ir.Lit(dtype=t, bits=bits), _ if t in (u32, i32):
                return add({}, {(): bits})
            case ir.Var(name=name), _:
                self._keys.add(("v", name))
                return self._names.get(name)
            case ir.InvocationId(axis=axis), _:
                return add(self._local(axis), self._group(axis), self.size[axis])
            case ir.WorkgroupId(axis=axis), _:
                return self._group(axis)
            case ir.LocalId(axis=axis), _:
                return self._local(axis)
            case ir.BufLen(buffer=name), _:
                return self._atom("len", frozenset(), False, name)
            case ir.Load(buffer=name), (index,):
                return self._load(e, name, index)
            case ir.Atomic(buffer=name), (index, *_):
                self._atomics.append((name, index))
                self._keys |= {("m", name), ("s", name)}
                return None
            case ir.Select(), (_, None, no) if no is not None and number(no) == -1:
                return self._checked(None, e.condition)  # which element is unknown, and not where there is one
        given = [p for p in below if p is not None]
        if len(given) < len(below) or isinstance(e, (*SUBGROUP_EXPRS, ir.Opaque)):
            return None
        match e, given:
            case ((ir.Cast(target=t) | ir.Bitcast(target=t)), [p]) if t in (u32, i32):
                source = e.value.type_hint
                if source is None or source in (u32, i32):
                    return p
            case ir.UnOp(op=UnaryOp.NEGATE), [p]:
                return add({}, p, -1)
            case ir.Select(), [_, yes, no]:
                if number(no) == -1:  # no element has this index
                    return self._checked(yes, e.condition)
                return self._either(yes, no)
            case ir.BinOp(op=op), [a, b]:
                found = self._binary(op, a, b)
                if found is not None and len(found) <= MOST_TERMS:
                    return found
        what = (getattr(e, name, None) for name in ("op", "op_id", "target", "bits", "axis"))
        return self._unknown(e, tuple(what), given)

    def _load(self, e: ir.Expr, name: str, index: Poly | None) -> Poly | None:
        buffer = self.buffers.get(name)
        if buffer is None or buffer.is_workgroup:
            self._keys.add(("s", name))
            return None
        if _is_number(buffer) and index is not None and number(index) == 0:
            return self._atom("num", frozenset(), False, name, False)
        if (
            buffer.access is Access.UNIFORM
            and buffer.element == u32
            and index is not None
            and number(index) is not None
        ):
            return self._atom("num", frozenset(), False, f"{name}[{number(index)}]", False)
        index, facts = self._element(index)
        if index is not None and self.axes_of(index):
            n = self._read_numbers.setdefault((name, frozenset(index.items()), *map(_key, facts)), len(self.reads))
            self._keys.add(("r", n))
            if n == len(self.reads):
                self.reads.append(Read(name, index, facts))
        if name in self._written:
            self._keys.add(("m", name))
        return self._unknown(e, name, [index]) if index is not None and self._is_shared(index) else None

    def _group(self, axis: int) -> Poly:
        self._keys.add(("w", axis))
        return self._atom("w", frozenset([axis]), False, axis)

    def _local(self, axis: int) -> Poly:
        return self._atom("l", frozenset(), True, axis) if self.size[axis] > 1 else {}

    def _unknown(self, e: ir.Expr, what: object, given: list[Poly]) -> Poly:
        """Equal operations on equal values are one value."""
        key = type(e), what, tuple(frozenset(p.items()) for p in given)
        parts = [self._only_adds(p) for p in given]
        op = getattr(e, "op", None)
        positive = (op in _SMALL and all(parts)) or (op is BinaryOp.BIT_AND and any(parts))
        return self._made_of("?", key, positive, given)

    def _only_adds(self, p: Poly) -> bool:
        return all(0 < c <= LARGE and all(self.atoms[a].positive for a in m) for m, c in p.items())

    def _either(self, a: Poly | None, b: Poly | None) -> Poly | None:
        if a is None or b is None or a == b:
            return a if a == b else None
        return self._made_of("|", _pair(a, b), True, [a, b], a, b)

    def _checked(self, inside: Poly | None, condition: ir.Expr) -> Poly | None:
        """An index that names an element only where the condition holds."""
        facts = tuple(_below(f) for f in self._facts(condition, True))
        nowhere: Poly = {(): -1}
        if inside is None:
            found = self._atom("?", frozenset((0, 1, 2)), True, (id(condition), *map(_key, facts)))
        else:
            key = _pair(inside, nowhere), *map(_key, facts)
            found = self._made_of("|", key, True, [inside, nowhere], inside, nowhere)
        self._inside[next(iter(found))[0]] = inside, facts
        return found

    def _binary(self, op: object, a: Poly, b: Poly) -> Poly | None:
        n = number(b)
        match op:
            case BinaryOp.ADD | BinaryOp.WRAPPING_ADD:
                return add(a, b)
            case BinaryOp.SUB | BinaryOp.WRAPPING_SUB:
                return add(a, b, -1)
            case BinaryOp.SATURATING_SUB:
                goes_up = self._only_adds(a) and self._is_shared(b) and min(b.values(), default=0) >= 0
                return add(a, b, -1) if goes_up else self._either(add(a, b, -1), {})
            case BinaryOp.MUL if _is_small(a, b):
                return multiply(a, b)
            case BinaryOp.SHL if n is not None:
                return add({}, a, 1 << n % 32)
            case BinaryOp.SHR if n is not None:
                return self._quotient(a, {(): 1 << n % 32})
            case BinaryOp.DIV if n != 0:
                return self._quotient(a, b)
            case BinaryOp.MOD if n != 0 and _is_small(a, b):
                return add(a, multiply(b, self._quotient(a, b)), -1)
            case BinaryOp.BIT_AND if n is not None and n > 0 and n & n + 1 == 0:
                return add(a, self._quotient(a, {(): n + 1}), -n - 1)
            case BinaryOp.MIN | BinaryOp.MAX:
                return self._either(a, b)
        return None

    def _quotient(self, a: Poly, n: Poly) -> Poly:
        if number(n) == 1:
            return a
        if len(a) == 1:
            ((m, c),) = a.items()
            inner = self.atoms[m[0]] if len(m) == 1 and c == 1 else None
            if inner is not None and inner.kind == "/" and inner.a and inner.b and _is_small(inner.b, n):
                a, n = inner.a, multiply(inner.b, n)  # i // 4 // 8 is i // 32
        return self._made_of("/", _pair(a, n), False, [a, n], a, n)


_SMALL = (
    BinaryOp.BIT_XOR, BinaryOp.BIT_OR, BinaryOp.SHR, BinaryOp.ABS_DIFF, UnaryOp.POPCOUNT, UnaryOp.CLZ, UnaryOp.CTZ,
)  # fmt: skip
"""What of numbers far from wrapping is another one."""
_OPPOSITE = {
    BinaryOp.LT: BinaryOp.GE, BinaryOp.GE: BinaryOp.LT, BinaryOp.GT: BinaryOp.LE, BinaryOp.LE: BinaryOp.GT,
    BinaryOp.EQ: BinaryOp.NE, BinaryOp.NE: BinaryOp.EQ,
}  # fmt: skip


def _below(f: Fact) -> Fact:
    """`i <= size - 1`, which is how a program asks whether an index is inside of an axis, as `i < size`."""
    return Fact(f.small, add(f.large, {(): 1}), f.signed) if f.equal else f


def _key(f: Fact) -> object:
    return _pair(f.small, f.large), f.signed, f.equal


def _pair(a: Poly, b: Poly) -> object:
    return frozenset(a.items()), frozenset(b.items())


def _is_number(b: BufferDecl) -> bool:
    return b.access is Access.UNIFORM and b.count == 1 and b.element in (u32, i32)


def reach_of(program: Program) -> Reach:
    """What a program writes, apart from what it prints."""
    return program._cached("driver.reach", lambda: Reach(without_prints(program)))
