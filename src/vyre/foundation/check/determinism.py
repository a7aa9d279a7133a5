"""Can the schedule change a result? A static proof that it cannot, or the reasons why there is none.

Two accesses of different invocations to one location are harmless if both read, if both are the same order-free atomic
whose old value is unused, if a barrier lies between them, or if they can never meet: their indices, as linear forms
in the ids, differ. Every other pair leaves the program unproved. When no pair is left, every load sees one possible
value, by induction over the barriers.

A proof holds up to some number of invocations per axis. Index arithmetic wraps: `gid.x * 4` meets itself after 2**30.
And a program that never looks at `gid.y` does the same once more in every row of the grid: it is proved for one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations_with_replacement
from typing import NamedTuple

from ..integers import ceil_div
from ..ir.dtypes import u32
from ..ir.nodes import (
    AllGather,
    AllReduce,
    Assign,
    AsyncLoad,
    AsyncStore,
    AsyncWait,
    Atomic,
    Barrier,
    BinOp,
    Broadcast,
    Expr,
    If,
    Let,
    Lit,
    Load,
    Loop,
    Node,
    ReduceScatter,
    Select,
    Span,
    Store,
    Trap,
    UnOp,
    Var,
)
from ..ir.ops import BinaryOp, Ordering, UnaryOp
from ..ir.program import Access, Program
from ..ir.value import Value
from ..ir.visit import Scopes, Steps, children, distinct, fold, run_nested
from .linear import MOST_TERMS, WORD, Atom, LinearForm, linear, plus
from .typing import Type, type_of

EXTENTS = (WORD, 1 << 30, 1 << 28, 1 << 26, 1 << 24, 1 << 22, 1 << 20)
"""Invocations per axis for which a proof is tried, most first."""
_AXES = ((0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,))
"""Axes that may have several workgroups, in the order in which a proof is tried."""
MOST_PLACES = 300  # accesses to one buffer that are compared pairwise
MOST_PAIRS = 1_000_000  # of accesses to all buffers together
MOST_COMPARISONS = 5_000  # of pairs; those that differ alike are compared once
MOST_BARRIERS = 1000
MOST_REASONS = 10
_NOWHERE = Lit(u32, WORD - 1)
"""The index of no element, since a buffer has fewer: `x[i, j]` has it where i or j is out of range."""
_NOT_LINEAR = ", as an index is not a sum of ids times numbers that the text has"
MOST_ROUNDS = 64  # bounds that close in on each other one by one would take ages; stopping early proves less

Bounds = Mapping[Atom, tuple[int, int]]
Dims = tuple[int, int, int]


class Determinism(Value):
    """What is proved. `verdict` says it in words: `proved` where it holds for every grid that was asked about, `proved
    for grids with ...` where it holds for some of them, else `unproved`. `extent` is how many invocations per axis the
    proof covers, and `reasons` say why it does not cover more."""

    verdict: str
    reasons: tuple[str, ...] = ()
    extent: Dims = (0, 0, 0)

    def covers(self, invocations: Dims) -> bool:
        """Whether a dispatch of this many invocations per axis is proved deterministic."""
        return all(n <= e for n, e in zip(invocations, self.extent, strict=True))


def determinism(program: Program, grid: Dims | None = None, workgroup: Dims | None = None) -> Determinism:
    """The verdict for a program over every grid, or over this `grid` of workgroups, which may be provable alone.

    `workgroup` is the size of a workgroup where a dispatch has another than the program declares. A program that is not
    valid is unproved.
    """
    from .validate import Capabilities, validate  # which imports much that is not needed here

    broken = next((i for i in validate(program, Capabilities.everything()) if i.severity == "error"), None)
    if broken is not None:
        return Determinism("unproved", (f"the program is not valid: {broken.headline}",))
    if refused := _refused(program):
        return Determinism("unproved", refused)
    places = _Places(program)
    run_nested(places.sequence(program.entry, _Epochs(frozenset((0,)), frozenset((0,))), {}))
    size = workgroup or program.workgroup_size

    def meetings(extent: Dims) -> tuple[str, ...]:
        return _meetings(places.by_buffer, places.shared, _Grid(size, extent))

    if grid is None:
        return _widest(meetings, size)
    x, y, z = (n * s for n, s in zip(grid, size, strict=True))
    found = meetings((x, y, z))
    return Determinism("unproved", found) if found else Determinism("proved", (), (x, y, z))


def _widest(meetings: Callable[[Dims], tuple[str, ...]], size: Dims) -> Determinism:
    """A proof for as many axes as possible, and then for as many invocations along them."""
    found = [meetings((WORD, WORD, WORD))]
    if not found[0]:
        return Determinism("proved", (), (WORD, WORD, WORD))
    for axes in _AXES:
        x, y, z = ([max(most, s) if axis in axes else s for most in EXTENTS] for axis, s in enumerate(size))
        extents = list(zip(x, y, z, strict=True))
        found.append(meetings(extents[-1]))
        if _TOO_MANY in found[-1]:
            break
        if not found[-1]:
            extent = next(e for e in extents if not meetings(e))
            return Determinism(_condition(extent, size), tuple(f"on other grids, {r}" for r in found[0]), extent)
    return Determinism("unproved", min(found, key=len))


def _condition(extent: Dims, size: Dims) -> str:
    """The verdict of a proof that does not hold for every grid."""
    axes = list(zip("xyz", extent, size, strict=True))
    few, one = [a for a, e, s in axes if s < e < WORD], [a for a, e, s in axes if e == s]
    words = [f"at most 2**{max(extent).bit_length() - 1} invocations along {' and '.join(few)}"] if few else []
    words += [f"one workgroup along {' and '.join(one)}"] if one else []
    return f"proved for grids with {', '.join(words)}"


def _refused(program: Program) -> tuple[str, ...]:
    reasons: dict[str, None] = {}
    barriers = 0
    for item in distinct(program.entry):
        match item:
            case Trap():
                reasons["which trap is reported first depends on the schedule"] = None
            case AsyncLoad() | AsyncStore() | AsyncWait():
                reasons["asynchronous copies are not analysed"] = None
            case AllReduce() | AllGather() | ReduceScatter() | Broadcast():
                reasons["collective operations are not analysed"] = None
            case Barrier():
                barriers += 1
    if barriers > MOST_BARRIERS:
        reasons["too many barriers to analyse"] = None
    return tuple(reasons)


# ---- places of access -----------------------------------------------------------------------------------------------


class _Epochs(NamedTuple):
    """The barriers that an invocation may have passed last: of its workgroup, and of the grid. 0 is the start."""

    group: frozenset[int]
    grid: frozenset[int]


class _Passage(NamedTuple):
    """What a statement does to epochs: `open_*` when some way through it meets no barrier, `last_*` where ways end."""

    open_group: bool = True
    open_grid: bool = True
    last_group: frozenset[int] = frozenset()
    last_grid: frozenset[int] = frozenset()

    def after(self, e: _Epochs) -> _Epochs:
        return _Epochs(
            self.last_group | (e.group if self.open_group else frozenset()),
            self.last_grid | (e.grid if self.open_grid else frozenset()),
        )


class Place(NamedTuple):
    """One access in the text; `op` is None for a plain one, and an atomic is `blind` when its old value is unused."""

    writes: bool
    op: object
    blind: bool
    at: LinearForm | None
    bounds: frozenset[tuple[Atom, tuple[int, int]]]
    epochs: _Epochs

    @property
    def name(self) -> str:
        return str(getattr(self.op, "text", "store" if self.writes else "load"))


_Sources = dict[Place, Span | None]
"""Places, each with the source of the first statement that makes such an access."""


class _Places:
    """Collects the accesses to memory that an invocation writes, each with the facts known at its place."""

    def __init__(self, program: Program) -> None:
        everything = list(distinct(program.entry))
        self.elements = {b.name: b.element for b in program.buffers}
        fixed = {b.name for b in program.buffers if b.access in (Access.READ_ONLY, Access.UNIFORM)}
        self.shared = {b.name for b in program.buffers if b.is_workgroup}
        self.constant = frozenset(n for n in fixed if self.elements[n].name in ("u32", "i32"))
        self.changed = {n.name for n in everything if isinstance(n, Assign)}
        self.read = {e.name for e in everything if isinstance(e, Var)}
        self.by_buffer: dict[str, _Sources] = {
            b.name: {} for b in program.buffers if b.name not in fixed and not b.is_own
        }
        self.forms: Scopes[LinearForm | None] = Scopes()
        self.types: Scopes[Type] = Scopes()
        self.facts: Scopes[_AccessFacts] = Scopes()
        self.loops = 0
        self.passages = _passages(program.entry)

    def sequence(self, nodes: tuple[Node, ...], epochs: _Epochs, bounds: Bounds) -> Steps:
        mark = self.forms.enter()  # all three tables bind the same names at the same time
        for node in nodes:
            self.note(node, epochs, bounds)
            match node:
                case Let():
                    t = type_of(node.value, self.types.names, self.elements)
                    if node.name in self.changed:
                        self.bind(node.name, None, t, _AccessFacts())
                    else:
                        form = linear(node.value, self.forms.names, self.constant)
                        self.bind(node.name, form, t, self.learn(node.value))
                case If():
                    told = self.learn(node.condition)
                    yield self.sequence(node.then, epochs, _narrow(bounds, told.if_true))
                    yield self.sequence(node.orelse, epochs, _narrow(bounds, told.if_false))
                case Loop():
                    yield self.loop(node, epochs, bounds)
                case _:
                    for name in node.body_fields:
                        yield self.sequence(getattr(node, name), epochs, bounds)
            epochs = self.passages[id(node)].after(epochs)
        self.leave(mark)

    def loop(self, node: Loop, epochs: _Epochs, bounds: Bounds) -> Steps:
        self.loops += 1
        atom: Atom = ("k", self.loops)
        start = linear(node.start, self.forms.names, self.constant)
        stop = linear(node.stop, self.forms.names, self.constant)
        low = start.const if start is not None and not start.terms else 0
        high = stop.const - 1 if stop is not None and not stop.terms else WORD - 1
        mark = self.forms.enter()
        self.bind(node.var, LinearForm(0, ((atom, 1),)), u32, _AccessFacts())
        # the body may follow itself
        yield self.sequence(node.body, self.passages[id(node)].after(epochs), {**bounds, atom: (low, high)})
        self.leave(mark)

    def bind(self, name: str, form: LinearForm | None, t: Type, facts: _AccessFacts) -> None:
        self.forms.bind(name, form)
        self.types.bind(name, t)
        self.facts.bind(name, facts)

    def leave(self, mark: int) -> None:
        self.forms.leave(mark)
        self.types.leave(mark)
        self.facts.leave(mark)

    def note(self, node: Node, epochs: _Epochs, bounds: Bounds) -> None:
        known = frozenset(bounds.items())
        blind = node.value if isinstance(node, Let) and node.name not in self.read else None

        def add(buffer: str, index: Expr, writes: bool, op: object = None, unused: bool = False) -> None:
            if buffer not in self.by_buffer:
                return
            here = known
            if isinstance(index, Select) and index.on_false == _NOWHERE:
                here = frozenset(_narrow(bounds, self.learn(index.condition).if_true).items())
                index = index.on_true
            form = linear(index, self.forms.names, self.constant)
            self.by_buffer[buffer].setdefault(Place(writes, op, unused, form, here, epochs), node.span)

        for e in distinct(children(node)):
            if isinstance(e, Load):
                add(e.buffer, e.index, False)
            elif isinstance(e, Atomic):
                add(e.buffer, e.index, True, e.op, e is blind)
        if isinstance(node, Store):
            add(node.buffer, node.index, True)

    def learn(self, condition: Expr) -> _AccessFacts:
        """What a condition says about ids and loop variables, either way."""

        def combine(e: Expr, below: tuple[_AccessFacts, ...]) -> _AccessFacts:
            match e:
                case Var(name=name):
                    return self.facts.get(name, _AccessFacts())
                case UnOp(op=UnaryOp.LOGICAL_NOT):
                    return _AccessFacts(below[0].if_false, below[0].if_true)
                case BinOp(op=BinaryOp.AND):
                    return _AccessFacts(_both(below[0].if_true, below[1].if_true))
                case BinOp(op=BinaryOp.OR):
                    return _AccessFacts((), _both(below[0].if_false, below[1].if_false))
                case BinOp(op=BinaryOp() as op) if op in _OPPOSITE:
                    if type_of(e.left, self.types.names, self.elements) != u32:
                        return _AccessFacts()  # signed order is another one
                    left = linear(e.left, self.forms.names, self.constant)
                    right = linear(e.right, self.forms.names, self.constant)
                    return _AccessFacts(_compare(op, left, right), _compare(_OPPOSITE[op], left, right))
            return _AccessFacts()

        return fold(condition, combine)


Known = tuple[tuple[Atom, tuple[int, int]], ...]


class _AccessFacts(NamedTuple):
    if_true: Known = ()
    if_false: Known = ()


def _both(a: Known, b: Known) -> Known:
    """What is known where both hold: the bounds of each atom once."""
    return tuple(_narrow(dict(a), b).items())[:MOST_TERMS]


_OPPOSITE = {
    BinaryOp.LT: BinaryOp.GE, BinaryOp.GE: BinaryOp.LT, BinaryOp.GT: BinaryOp.LE, BinaryOp.LE: BinaryOp.GT,
    BinaryOp.EQ: BinaryOp.NE, BinaryOp.NE: BinaryOp.EQ,
}  # fmt: skip
_MIRROR = {
    BinaryOp.LT: BinaryOp.GT, BinaryOp.GT: BinaryOp.LT, BinaryOp.LE: BinaryOp.GE, BinaryOp.GE: BinaryOp.LE,
    BinaryOp.EQ: BinaryOp.EQ, BinaryOp.NE: BinaryOp.NE,
}  # fmt: skip


def _compare(op: BinaryOp, left: LinearForm | None, right: LinearForm | None) -> Known:
    """Bounds of a bare atom that is compared with a number; anything longer might have wrapped."""
    if left is None or right is None:
        return ()
    if not left.terms:
        op, left, right = _MIRROR[op], right, left
    if right.terms or left.const or len(left.terms) != 1 or left.terms[0][1] != 1:
        return ()
    c = right.const
    low, high = {
        BinaryOp.LT: (0, c - 1),
        BinaryOp.LE: (0, c),
        BinaryOp.GT: (c + 1, WORD - 1),
        BinaryOp.GE: (c, WORD - 1),
        BinaryOp.EQ: (c, c),
        BinaryOp.NE: (1 if c == 0 else 0, WORD - 1),
    }[op]
    return ((left.terms[0][0], (low, high)),)


def _narrow(bounds: Bounds, facts: Iterable[tuple[Atom, tuple[int, int]]]) -> Bounds:
    new = dict(bounds)
    for atom, (low, high) in facts:
        old = new.get(atom, (0, WORD - 1))
        new[atom] = max(low, old[0]), min(high, old[1])
    return new


def _passages(entry: tuple[Node, ...]) -> dict[int, _Passage]:
    """How epochs pass through every statement, by object."""
    done: dict[int, _Passage] = {}
    stack: list[tuple[Node, bool]] = [(n, False) for n in entry]
    while stack:
        node, ready = stack.pop()
        if id(node) in done:
            continue
        lists = [getattr(node, name) for name in node.body_fields]
        if not ready:
            stack.append((node, True))
            stack.extend((n, False) for body in lists for n in body)
        elif isinstance(node, Barrier):
            here, grid = frozenset((id(node),)), node.ordering is Ordering.GRID_SYNC
            done[id(node)] = _Passage(False, not grid, here, here if grid else frozenset())
        else:
            inner = [_through(done[id(n)] for n in body) for body in lists]
            skipped = [_Passage()] if isinstance(node, Loop) or not inner else []
            done[id(node)] = _either([*inner, *skipped])
    return done


def _through(passages: Iterable[_Passage]) -> _Passage:
    total, e = _Passage(), _Epochs(frozenset(), frozenset())
    for p in passages:
        e = p.after(e)
        total = _Passage(total.open_group and p.open_group, total.open_grid and p.open_grid, *e)
    return total


def _either(passages: list[_Passage]) -> _Passage:
    return _Passage(
        any(p.open_group for p in passages),
        any(p.open_grid for p in passages),
        frozenset().union(*(p.last_group for p in passages)),
        frozenset().union(*(p.last_grid for p in passages)),
    )


# ---- meetings -------------------------------------------------------------------------------------------------------


class _Grid(NamedTuple):
    """Workgroup size, and invocations per axis at most."""

    size: Dims
    extent: Dims

    def bounds(self, atom: Atom) -> tuple[int, int]:
        kind, axis = atom
        if kind not in ("g", "l", "w"):
            return 0, WORD - 1
        assert isinstance(axis, int)
        most = {"g": self.extent[axis], "l": self.size[axis], "w": ceil_div(self.extent[axis], self.size[axis])}
        return 0, most[kind] - 1


_TOO_MANY = "memory is accessed in too many places to compare"


def _meetings(buffers: Mapping[str, _Sources], shared: set[str], grid: _Grid) -> tuple[str, ...]:
    """A sentence for every pair of accesses that different invocations may make to one location in any order."""
    found: dict[str, str] = {}  # one for each kind of pair, with where the first one is
    known: dict[object, bool] = {}

    def may_meet(a: Place, b: Place, same_group: bool) -> bool:
        x, y = (LinearForm(0), LinearForm(0)) if a.at is None or b.at is None else (a.at, b.at)
        apart = x.const - y.const, x.terms, y.terms, a.bounds, b.bounds, same_group  # all that the answer depends on
        if apart not in known:
            known[apart] = _may_meet(a, b, grid, same_group=same_group)
        return known[apart]

    if sum(len(places) ** 2 for places in buffers.values() if len(places) <= MOST_PLACES) > MOST_PAIRS:
        return (_TOO_MANY,)
    for buffer, places in buffers.items():
        if not any(p.writes for p in places):
            continue
        if len(places) > MOST_PLACES:
            found[buffer] = f"{buffer!r} is accessed in too many places to compare"
            continue
        for a, b in combinations_with_replacement(places, 2):
            said = f"{a.name} and {b.name} of two invocations may meet in {buffer!r}"
            if a.at is None or b.at is None:
                said += _NOT_LINEAR
            if said in found or _harmless(a, b):
                continue
            if len(known) > MOST_COMPARISONS:
                return (*found.values(), _TOO_MANY)
            together = a.epochs.group & b.epochs.group and may_meet(a, b, True)
            across = buffer not in shared and a.epochs.grid & b.epochs.grid
            if together or (across and may_meet(a, b, False)):
                found[said] = said + _where(places[a], places[b])
                if len(found) >= MOST_REASONS:
                    return tuple(found.values())
    return tuple(found.values())


def _where(a: Span | None, b: Span | None) -> str:
    """The source of two accesses, if it is known."""
    lines = dict.fromkeys(f"{s.file}:{s.line}" for s in (a, b) if s is not None)
    return f", at {' and '.join(lines)}" if lines else ""


def _harmless(a: Place, b: Place) -> bool:
    if not a.writes and not b.writes:
        return True
    return a.blind and b.blind and a.op is b.op and bool(getattr(a.op, "order_free", False))


class _Unknown:
    """An integer between bounds with a factor, in a sum that is zero."""

    __slots__ = ("atom", "factor", "high", "low")

    def __init__(self, atom: Atom | None, factor: int, low: int, high: int) -> None:
        self.atom, self.factor, self.low, self.high = atom, factor, low, high

    @property
    def span(self) -> tuple[int, int]:
        ends = self.factor * self.low, self.factor * self.high
        return min(ends), max(ends)


def _may_meet(a: Place, b: Place, grid: _Grid, *, same_group: bool) -> bool:
    """Whether two different invocations, of one workgroup or of two, can have the same index at `a` and `b`."""
    blank = a.at is None or b.at is None
    left, right = _expanded(LinearForm(0) if blank else a.at, LinearForm(0) if blank else b.at, grid)
    unknowns = list(_differences(left, right, dict(a.bounds), dict(b.bounds), grid, same_group))
    if any(u.low > u.high for u in unknowns):
        return False
    start = left.const - right.const
    low = start + sum(u.span[0] for u in unknowns)
    high = start + sum(u.span[1] for u in unknowns)
    turns = range(ceil_div(low, WORD), high // WORD + 1)  # how often the difference may have wrapped around
    if len(turns) > 8:
        return True
    return any(_can_differ(unknowns, start - turn * WORD, grid, same_group) for turn in turns)


def _expanded(a: LinearForm | None, b: LinearForm | None, grid: _Grid) -> tuple[LinearForm, LinearForm]:
    """Where one axis appears both as global id and as its parts, only the parts remain."""
    assert a is not None
    assert b is not None
    atoms = {atom for atom, _ in (*a.terms, *b.terms)}
    for axis in range(3):
        if ("g", axis) in atoms and (("l", axis) in atoms or ("w", axis) in atoms):
            gone = LinearForm(0, ((("g", axis), -1), (("l", axis), 1), (("w", axis), grid.size[axis])))
            a, b = (plus(f, gone, dict(f.terms).get(("g", axis), 0)) for f in (a, b))
    return a, b


def _differences(
    a: LinearForm, b: LinearForm, at_a: Bounds, at_b: Bounds, grid: _Grid, same_group: bool
) -> Iterator[_Unknown]:
    """The index of one access minus that of the other, without the constants, as unknowns."""
    in_a, in_b = dict(a.terms), dict(b.terms)
    ids: list[Atom] = [(kind, axis) for kind in "glw" for axis in range(3)]
    for atom in dict.fromkeys([*ids, *in_a, *in_b]):
        fa, fb = in_a.get(atom, 0), in_b.get(atom, 0)
        (low_a, high_a), (low_b, high_b) = (_meet(grid.bounds(atom), at.get(atom)) for at in (at_a, at_b))
        if atom[0] == "u":
            if fa != fb:
                yield _Unknown(None, fa - fb, low_a, high_a)
        elif atom[0] == "k" or fa != fb:
            yield _Unknown(None, fa, low_a, high_a)
            yield _Unknown(None, -fb, low_b, high_b)
            if atom[0] != "k":
                yield _Unknown(atom, 0, *_apart(atom, (low_a - high_b, high_a - low_b), grid, same_group))
        else:
            yield _Unknown(atom, fa, *_apart(atom, (low_a - high_b, high_a - low_b), grid, same_group))


def _meet(a: tuple[int, int], b: tuple[int, int] | None) -> tuple[int, int]:
    return a if b is None else (max(a[0], b[0]), min(a[1], b[1]))


def _apart(atom: Atom, free: tuple[int, int], grid: _Grid, same_group: bool) -> tuple[int, int]:
    """How far an id of one invocation can be from that of another."""
    kind, axis = atom
    assert isinstance(axis, int)
    if not same_group or kind == "l":
        return free
    reach = grid.size[axis] - 1 if kind == "g" else 0
    return _meet(free, (-reach, reach))


def _can_differ(unknowns: list[_Unknown], start: int, grid: _Grid, same_group: bool) -> bool:
    """Whether the sum can be zero while the two invocations are two."""
    now = [_Unknown(u.atom, u.factor, u.low, u.high) for u in unknowns]
    for _ in range(MOST_ROUNDS):
        changed = False
        low, high = start + sum(u.span[0] for u in now), start + sum(u.span[1] for u in now)
        if low > 0 or high < 0:
            return False
        for u in now:
            if not u.factor:
                continue
            rest = low - u.span[0], high - u.span[1]
            ends = sorted((-rest[0] * u.factor, -rest[1] * u.factor))
            square = u.factor * u.factor
            tight = max(u.low, ceil_div(ends[0], square)), min(u.high, ends[1] // square)
            if tight[0] > tight[1]:
                return False
            if tight != (u.low, u.high):
                u.low, u.high = tight
                changed = True
                break
        if not changed:
            break
    equal = {u.atom for u in now if u.atom is not None and u.low == u.high == 0}
    for axis in range(3):
        same_global = ("g", axis) in equal
        if same_group and grid.size[axis] > 1 and not (same_global or ("l", axis) in equal):
            return True
        if not same_group and grid.extent[axis] > grid.size[axis] and not (same_global or ("w", axis) in equal):
            return True
    return False
