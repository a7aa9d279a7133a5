"""Facts derived from a program: which operations it uses, how much of what, and what a backend must offer."""

from __future__ import annotations

from typing import NamedTuple

from ..ir.dtypes import DataType
from ..ir.facts import Requirements, Stats
from ..ir.nodes import (
    AllGather,
    AllReduce,
    AsyncLoad,
    AsyncStore,
    AsyncWait,
    Atomic,
    Barrier,
    BinOp,
    Bitcast,
    Broadcast,
    Call,
    Cast,
    Expr,
    IndirectDispatch,
    Lit,
    Load,
    Loop,
    Node,
    Opaque,
    OpaqueNode,
    ReduceScatter,
    Region,
    Store,
    SubgroupBallot,
    SubgroupLocalId,
    SubgroupReduce,
    SubgroupShuffle,
    SubgroupSize,
    Trap,
    UnOp,
)
from ..ir.ops import EXPR_IDS, FUNCTION_IDS, LITERAL_IDS, NODE_IDS, BinaryOp, OpaqueOp, Ordering, UnaryOp
from ..ir.program import Program
from ..ir.visit import bodies, children, distinct

SUBGROUP_EXPRS = (SubgroupReduce, SubgroupShuffle, SubgroupBallot, SubgroupLocalId, SubgroupSize)
COLLECTIVES = (AllReduce, AllGather, ReduceScatter, Broadcast)


_HEAVY = 50
"""Steps of a loop or a barrier: compilers of every target take that much longer over them."""


def op_ids(item: Expr | Node) -> tuple[str, ...]:
    """Stable ids of one statement or expression, without what is inside it."""
    match item:
        case Call(op_id=op_id):
            return (op_id,)
        case Opaque(kind=kind) | OpaqueNode(kind=kind):
            return (kind,)
        case Lit(dtype=t):
            return (LITERAL_IDS[t.name],)
        case BinOp(op=OpaqueOp() as op) | UnOp(op=OpaqueOp() as op) | Atomic(op=OpaqueOp() as op):
            return EXPR_IDS[type(item).__name__], op.text
        case UnOp(op=UnaryOp() as function) | BinOp(op=BinaryOp() as function) if function.is_function:
            return EXPR_IDS[type(item).__name__], FUNCTION_IDS[function]
        case Node():
            return (NODE_IDS[type(item).__name__],)
    return (EXPR_IDS[type(item).__name__],)


def ops(program: Program) -> frozenset[str]:
    """Stable ids of every operation used."""
    return frozenset(i for item in distinct(program.entry) for i in op_ids(item))


class _Tally(NamedTuple):
    nodes: int = 0
    expressions: int = 0
    loads: int = 0
    stores: int = 0
    atomics: int = 0
    barriers: int = 0
    loops: int = 0
    regions: int = 0
    calls: int = 0
    steps: int = 0


_COUNTED: dict[type, str] = {
    Load: "loads", Store: "stores", Atomic: "atomics", Barrier: "barriers", Loop: "loops", Region: "regions",
    Call: "calls",
}  # fmt: skip


def stats(program: Program) -> Stats:
    tallies: dict[int, _Tally] = {}  # by object, so that sharing costs no time
    depths: dict[int, int] = {}
    kinds: set[str] = set()
    stack: list[tuple[Expr | Node, bool]] = [(node, False) for node in program.entry]
    while stack:
        item, ready = stack.pop()
        if id(item) in tallies:
            continue
        below: list[Expr | Node] = [*children(item)]
        if isinstance(item, Node):
            below += [n for body in bodies(item) for n in body]
        if not ready:
            stack.append((item, True))
            stack.extend((c, False) for c in below)
            continue
        kinds.add(type(item).__name__)
        own = {"nodes" if isinstance(item, Node) else "expressions": 1, "steps": _steps(item)}
        if type(item) in _COUNTED:
            own[_COUNTED[type(item)]] = 1
        tallies[id(item)] = _total([_Tally(**own), *(tallies[id(c)] for c in below)])
        depths[id(item)] = 1 + max((depths[id(c)] for c in below), default=0)
    whole = _total([tallies[id(n)] for n in program.entry])
    depth = max((depths[id(n)] for n in program.entry), default=0)
    return Stats(*whole, depth=depth, kinds=frozenset(kinds))


def _steps(item: Expr | Node) -> int:
    """Of one statement or expression, without what is inside it."""
    match item:
        case Loop() | Barrier():
            return _HEAVY
        case UnOp(op=UnaryOp() as op) | BinOp(op=BinaryOp() as op) if op.is_function:
            from ..meaning.mathlib import steps

            return steps(op)
    return 1


def _total(tallies: list[_Tally]) -> _Tally:
    return _Tally(*map(sum, zip(*tallies, strict=True))) if tallies else _Tally()


def requirements(program: Program) -> Requirements:
    items = list(distinct(program.entry))
    shared = {b.name for b in program.buffers if b.is_workgroup}
    types: set[DataType] = {b.element for b in program.buffers}
    types |= {i.target for i in items if isinstance(i, Cast | Bitcast)} | {i.dtype for i in items if isinstance(i, Lit)}
    names = {t.name for t in types}
    x, y, z = program.workgroup_size

    def has(*classes: type) -> bool:
        return any(isinstance(item, classes) for item in items)

    return Requirements(
        subgroup=has(*SUBGROUP_EXPRS),
        workgroup_atomics=any(isinstance(i, Atomic) and i.buffer in shared for i in items),
        int64=not names.isdisjoint(("u64", "i64")),
        float16="f16" in names,
        bfloat16="bf16" in names,
        float64="f64" in names,
        trap=has(Trap),
        indirect=has(IndirectDispatch),
        collectives=has(*COLLECTIVES),
        async_copy=has(AsyncLoad, AsyncStore, AsyncWait),
        grid_sync=any(isinstance(i, Barrier) and i.ordering is Ordering.GRID_SYNC for i in items),
        invocations=x * y * z,
        workgroup_bytes=sum(b.nbytes or 0 for b in program.buffers if b.is_workgroup and not b.is_own),
        static_bytes=sum(b.nbytes or 0 for b in program.buffers if not b.is_workgroup),
    )


def meets(program: Program) -> bool:
    """Whether its invocations wait for each other, at a barrier or in a subgroup."""
    return program._cached(
        "meets", lambda: any(isinstance(i, (Barrier, *SUBGROUP_EXPRS)) for i in distinct(program.entry))
    )


def may_approximate(program: Program) -> bool:
    """Whether some operation of the program may be computed otherwise under a budget; all others are exact."""
    return program._cached(
        "may_approximate",
        lambda: any(
            isinstance(item, UnOp | BinOp) and isinstance(item.op, UnaryOp | BinaryOp) and item.op.is_function
            for item in distinct(program.entry)
        ),
    )
