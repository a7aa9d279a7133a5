"""Grid-wide barriers as launch boundaries: one segment per stretch between them.

A barrier of the whole grid is the end of one launch and the start of the next. Locals and workgroup memory do not
survive a launch. A `let` whose value is the same when computed again is computed again in every segment that uses it;
anything else that would have to survive is refused, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...errors import DiagCode, InvalidProgram
from ..ir.nodes import (
    AllGather,
    AllReduce,
    Assign,
    AsyncLoad,
    AsyncStore,
    Atomic,
    Barrier,
    BinOp,
    Block,
    Broadcast,
    BufferRef,
    BufLen,
    Call,
    Expr,
    If,
    IndirectDispatch,
    Let,
    Load,
    Loop,
    Node,
    Opaque,
    ReduceScatter,
    Region,
    Return,
    Store,
    SubgroupBallot,
    SubgroupReduce,
    SubgroupShuffle,
    UnOp,
    Var,
)
from ..ir.ops import OpaqueOp, Ordering
from ..ir.program import Program
from ..ir.value import Value
from ..ir.visit import Scopes, Steps, children, distinct, rewrite, run_nested

_MISPLACED = {
    True: ("a branch", DiagCode.V201.fix),
    False: ("a loop", "move it out of the loop: unroll that with static_range(), or make one call per turn"),
}


class Touched(NamedTuple):
    """Buffer names that some statements read, write, or ask the length of."""

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    lengths: frozenset[str] = frozenset()


class Segment(Value):
    """One launch. `live_in` names the locals that are computed again at its start."""

    program: Program
    reads: frozenset[str]
    writes: frozenset[str]
    lengths: frozenset[str]
    live_in: tuple[str, ...] = ()


class Conflict(NamedTuple):
    """Why a program cannot be cut: V201 (place) or V202 (a value that would have to survive), at a statement."""

    code: DiagCode
    node: Node | None
    message: str
    fix: str


def contains_grid_sync(program: Program) -> bool:
    """Whether the program waits for its whole grid anywhere."""
    return program._cached("grid_sync", lambda: any(map(is_sync, distinct(program.entry))))


def segments(program: Program) -> tuple[Segment, ...]:
    """The launches that together mean the program; a program without grid-wide barriers is its own only segment."""
    pieces, carried, conflicts = _cut(program)
    if conflicts:
        first = conflicts[0]
        raise InvalidProgram(first.message, fix=first.fix, code=first.code.value)
    if len(pieces) == 1:
        return (Segment(program, *touched(program.entry)),)
    made = (
        Program(program.buffers, program.workgroup_size, nodes, op_id=program.entry_op_id, exclusive=program.exclusive)
        for nodes in pieces
    )
    return tuple(Segment(p, *touched(p.entry), tuple(names)) for p, names in zip(made, carried, strict=True))


def conflicts(program: Program) -> list[Conflict]:
    """What keeps the program from being cut into segments."""
    return _cut(program)[2] if contains_grid_sync(program) else []


def touched(nodes: Iterable[Node]) -> Touched:
    """What statements do to buffers, by name."""
    reads: set[str] = set()
    writes: set[str] = set()
    lengths: set[str] = set()
    for item in distinct(nodes):
        match item:
            case Load(buffer=b) | IndirectDispatch(count_buffer=b):
                reads.add(b)
            case Store(buffer=b):
                writes.add(b)
            case Atomic(buffer=b) | AllReduce(buffer=b) | Broadcast(buffer=b) | BufferRef(buffer=b):
                reads.add(b)
                writes.add(b)
            case AllGather() | ReduceScatter() | AsyncLoad() | AsyncStore():
                reads.add(item.source)
                writes.add(item.destination)
            case BufLen(buffer=b):
                lengths.add(b)
    return Touched(frozenset(reads), frozenset(writes), frozenset(lengths))


# ---- cutting --------------------------------------------------------------------------------------------------------


def is_sync(item: object) -> bool:
    return isinstance(item, Barrier) and item.ordering is Ordering.GRID_SYNC


def _cut(program: Program) -> tuple[list[list[Node]], list[list[str]], list[Conflict]]:
    """The statements of each segment, the names computed again in each, and what stands against it."""
    found, stretches = _lay_out(program)
    if found:
        return [], [], found
    uses = [touched(nodes) for nodes in stretches]
    found += _lost_memory(program, uses)
    carrier = _Carrier(uses, found)
    pieces = carrier.carry(_between(rewrite(program.entry, node=carrier.split)), 0)
    return pieces, carrier.carried, found


def _lay_out(program: Program) -> tuple[list[Conflict], list[list[Node]]]:
    """Misplaced barriers and returns, and the plain statements of each segment in program order."""
    found: list[Conflict] = []
    stretches: list[list[Node]] = [[]]
    returns: list[tuple[int, Node]] = []
    stack = list(program.entry)[::-1]
    while stack:
        node = stack.pop()
        if isinstance(node, Region | Block):
            stack.extend(reversed(node.body))
            continue
        if is_sync(node):
            stretches.append([])
        else:
            stretches[-1].append(node)
            for inner in distinct(node):
                if isinstance(inner, Return):
                    returns.append((len(stretches), inner))
                elif is_sync(inner):
                    assert isinstance(inner, Node)
                    where, fix = _MISPLACED[isinstance(node, If)]
                    found.append(Conflict(DiagCode.V201, inner, f"grid-wide barrier inside {where}", fix))
    for segment, node in returns:
        if segment < len(stretches):
            message = "return before a grid-wide barrier"
            found.append(Conflict(DiagCode.V201, node, message, "guard the statements instead of returning"))
    return found, stretches


def _lost_memory(program: Program, uses: Sequence[Touched]) -> list[Conflict]:
    found = []
    for buffer in program.buffers:
        if not buffer.is_workgroup:
            continue
        first = next((i for i, use in enumerate(uses) if buffer.name in use.writes), len(uses))
        if any(buffer.name in use.reads for use in uses[first + 1 :]):
            what = "local array" if buffer.is_own else "workgroup buffer"
            found.append(
                Conflict(
                    DiagCode.V202,
                    None,
                    f"{what} {buffer.name!r} is written before a grid-wide barrier and read after it",
                    f"keep the values in a storage buffer, or use another {what} after the barrier",
                )
            )
    return found


def _between(nodes: Iterable[Node]) -> list[list[Node]]:
    pieces: list[list[Node]] = [[]]
    for node in nodes:
        if is_sync(node):
            pieces.append([])
        else:
            pieces[-1].append(node)
    return pieces


class _Carrier:
    """Splits scopes from the inside out, and computes lets again where the second half of a scope needs them."""

    def __init__(self, uses: Sequence[Touched], found: list[Conflict]) -> None:
        self.uses, self.found = uses, found
        self.carried: list[list[str]] = [[] for _ in uses]
        self.passed = 0  # barriers in program order so far

    def split(self, node: Node) -> Node | list[Node]:
        if is_sync(node):
            self.passed += 1
        if not isinstance(node, Region | Block):
            return node
        pieces = _between(node.body)
        if len(pieces) == 1:
            return node
        out: list[Node] = []
        for k, piece in enumerate(self.carry(pieces, self.passed - len(pieces) + 1)):
            out += [Barrier(Ordering.GRID_SYNC)] * (k > 0)
            out.append(node.replace(body=tuple(piece)))
        return out

    def carry(self, pieces: list[list[Node]], first: int) -> list[list[Node]]:
        """The pieces of one scope, which begin in segment `first`, each with the lets it takes from earlier ones."""
        lets: dict[str, tuple[int, Let]] = {}
        changed = {n.name for n in distinct(n for piece in pieces for n in piece) if isinstance(n, Assign)}
        out = []
        for k, piece in enumerate(pieces):
            needed = _closure(free_names(piece) & lets.keys(), lets) if lets else set()
            again = [(name, *lets[name]) for name in lets if name in needed]  # in the order of definition
            for name, since, let in again:
                why = "it is assigned to" if name in changed else self.impure(let.value, first + since, first + k)
                if why:
                    message = f"local {name!r} is live across a grid-wide barrier and {why}"
                    self.found.append(Conflict(DiagCode.V202, let, message, DiagCode.V202.fix))
            if again:
                self.carried[first + k] += [name for name, _, _ in again]
            out.append([*(let for _, _, let in again), *piece])
            lets.update((n.name, (k, n)) for n in piece if isinstance(n, Let))
        return out

    def impure(self, value: Expr, start: int, end: int) -> str:
        """Why a value made in segment `start` may differ when computed in segment `end`; empty when it cannot."""
        for item in distinct(value):
            match item:
                case Atomic():
                    return "its value has a side effect"
                case Load(buffer=b):
                    # segment `end` counts: another invocation may store before this one reads again
                    if any(b in use.writes for use in self.uses[start : end + 1]):
                        return f"its value reads {b!r}, which changes"
                case SubgroupReduce() | SubgroupShuffle() | SubgroupBallot():
                    return "its value exchanges data between invocations"
                case Call() | Opaque() | BufferRef() | BinOp(op=OpaqueOp()) | UnOp(op=OpaqueOp()):
                    return "nothing is known about its value"
        return ""


def _closure(names: Iterable[str], lets: dict[str, tuple[int, Let]]) -> set[str]:
    found: set[str] = set()
    stack = list(names)
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            used = (item.name for item in distinct(lets[name][1].value) if isinstance(item, Var))
            stack.extend(n for n in used if n in lets)
    return found


def free_names(nodes: Iterable[Node]) -> set[str]:
    """Locals that statements read or assign without having bound them."""
    found: set[str] = set()
    bound: Scopes[bool] = Scopes()

    def scope(body: Iterable[Node], variable: str | None = None) -> Steps:
        here = bound.enter()
        if variable is not None:
            bound.bind(variable, True)
        for node in body:
            for item in distinct(children(node)):
                if isinstance(item, Var) and not bound.get(item.name, False):
                    found.add(item.name)
            if isinstance(node, Assign) and not bound.get(node.name, False):
                found.add(node.name)
            for name in node.body_fields:
                yield scope(getattr(node, name), node.var if isinstance(node, Loop) else None)
            if isinstance(node, Let):
                bound.bind(node.name, True)
        bound.leave(here)

    run_nested(scope(nodes))
    return found
