"""Can the schedule change a result? A static proof that it cannot, or the reasons why there is none.

Two accesses of different invocations to one location are harmless if both read, if both are the same order-free atomic
whose old value nobody uses, if a barrier lies between them, or if they can never meet: their indices, as linear forms
in the ids, differ. Every other pair leaves the program unproved. When no pair is left, every load sees one possible
value, by induction over the barriers.

Index arithmetic wraps, so a proof holds up to some number of invocations per axis: `gid.x * 4` meets itself after
2**30. An axis that the program never asks for must have one workgroup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations_with_replacement
from typing import NamedTuple

from .ir import (
    AllGather,
    AllReduce,
    Assign,
    AsyncLoad,
    AsyncStore,
    AsyncWait,
    Atomic,
    Barrier,
    BinOp,
    Bitcast,
    Broadcast,
    BufLen,
    Cast,
    Expr,
    If,
    InvocationId,
    Let,
    Lit,
    Load,
    LocalId,
    Loop,
    Node,
    ReduceScatter,
    Store,
    Trap,
    UnOp,
    Var,
    WorkgroupId,
)
from .ops import BinaryOp, OpaqueOp, Ordering, UnaryOp
from .program import Access, Program
from .value import Value
from .visit import Scopes, Steps, children, distinct, fold, run_nested

WORD = 1 << 32
EXTENTS = (WORD, 1 << 30, 1 << 28, 1 << 24, 1 << 20)
"""Invocations per axis for which a proof is tried, most first."""
MOST_PLACES = 300  # accesses to one buffer that are compared pairwise
MOST_BARRIERS = 1000
MOST_REASONS = 10

Atom = tuple[str, int | str]
"""`g`, `l`, `w` with an axis; `k` with the number of a loop; `u` with the name of a value all invocations share."""
Bounds = Mapping[Atom, tuple[int, int]]
Group = Mapping[str, int]


class Determinism(Value):
    """`verdict` is `proved` or `unproved`; `extent` is how many invocations per axis the proof covers."""

    verdict: str
    reasons: tuple[str, ...] = ()
    extent: tuple[int, int, int] = (0, 0, 0)

    def covers(self, invocations: tuple[int, int, int]) -> bool:
        """Whether a dispatch of this many invocations per axis is proved deterministic."""
        return self.verdict == "proved" and all(n <= e for n, e in zip(invocations, self.extent, strict=True))


def determinism(program: Program) -> Determinism:
    """The verdict for a program; one that is not valid is unproved."""
    from .report import Capabilities
    from .validate import validate

    broken = next((i for i in validate(program, Capabilities.everything()) if i.severity == "error"), None)
    if broken is not None:
        return Determinism("unproved", (f"the program is not valid: {broken.headline}",))
    if refused := _refused(program):
        return Determinism("unproved", refused)
    places = _Places(program)
    run_nested(places.sequence(program.entry, _Epochs(frozenset((0,)), frozenset((0,))), {}))
    used = {(type(e), e.axis) for e in distinct(program.entry) if isinstance(e, InvocationId | WorkgroupId | LocalId)}
    axes = {axis for _, axis in used}
    reasons: tuple[str, ...] = ()
    for most in EXTENTS:
        x, y, z = (most if i in axes else size for i, size in enumerate(program.workgroup_size))
        found = _meetings(places.by_buffer, _Grid(program.workgroup_size, (x, y, z)))
        if not found:
            return Determinism("proved", (), (x, y, z))
        reasons = reasons or found
        if all(a.index is None for group in places.by_buffer.values() for a in group):
            break  # no extent would help
    return Determinism("unproved", reasons)


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


# ---- linear forms ---------------------------------------------------------------------------------------------------


class Form(NamedTuple):
    """`const` plus coefficients times atoms, modulo 2**32; coefficients are signed and not zero."""

    const: int
    terms: tuple[tuple[Atom, int], ...] = ()


def _form(const: int, terms: Mapping[Atom, int]) -> Form:
    signed = {a: (c + WORD // 2) % WORD - WORD // 2 for a, c in terms.items()}
    return Form(const % WORD, tuple(sorted(((a, c) for a, c in signed.items() if c), key=repr)))


def _sum(a: Form, b: Form, scale: int = 1) -> Form:
    terms = dict(a.terms)
    for atom, c in b.terms:
        terms[atom] = terms.get(atom, 0) + scale * c
    return _form(a.const + scale * b.const, terms)


def _times(a: Form, scale: int) -> Form:
    return _form(a.const * scale, {atom: c * scale for atom, c in a.terms})


def linear(root: Expr, names: Mapping[str, Form | None], constant: frozenset[str]) -> Form | None:
    """The value of a 32-bit expression as a linear form, or None. `constant` buffers do not change in a dispatch."""

    def combine(e: Expr, below: tuple[Form | None, ...]) -> Form | None:
        match e, below:
            case Lit(), _:
                return Form(e.bits) if e.dtype.name in ("u32", "i32") else None
            case Var(name=name), _:
                return names.get(name)
            case InvocationId(axis=axis), _:
                return Form(0, ((("g", axis), 1),))
            case LocalId(axis=axis), _:
                return Form(0, ((("l", axis), 1),))
            case WorkgroupId(axis=axis), _:
                return Form(0, ((("w", axis), 1),))
            case BufLen(buffer=name), _:
                return Form(0, ((("u", f"len {name}"), 1),))
            case Load(buffer=name), (Form(const, ()),) if name in constant:
                return Form(0, ((("u", f"load {name} {const}"), 1),))
            case (Cast(target=t) | Bitcast(target=t)), (Form() as x,):
                return x if t.name in ("u32", "i32") else None
            case UnOp(op=UnaryOp.NEGATE), (Form() as x,):
                return _times(x, -1)
            case BinOp(op=op), (Form() as x, Form() as y):
                return _combine(op, x, y)
        return None

    return fold(root, combine)


def _combine(op: BinaryOp | OpaqueOp, x: Form, y: Form) -> Form | None:
    match op:
        case BinaryOp.ADD | BinaryOp.WRAPPING_ADD:
            return _sum(x, y)
        case BinaryOp.SUB | BinaryOp.WRAPPING_SUB:
            return _sum(x, y, -1)
        case BinaryOp.MUL if not y.terms:
            return _times(x, y.const)
        case BinaryOp.MUL if not x.terms:
            return _times(y, x.const)
        case BinaryOp.SHL if not y.terms:
            return _times(x, 1 << y.const % 32)
    return None
