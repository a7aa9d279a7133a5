"""Where do all invocations of a workgroup arrive together? Barriers and subgroup operations may stand only there.

Divergence spreads along a graph: from values to the names they are assigned to, from conditions to the bodies they
guard, from a body to every name that is assigned in it. It starts at ids and writable memory. A name is one vertex
for all its assignments, so that loops need no second pass and a `while` over uniform values stays uniform.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ...errors import DiagCode
from ..ir.nodes import (
    Assign,
    Atomic,
    Barrier,
    BinOp,
    Call,
    Expr,
    If,
    InvocationId,
    Let,
    Load,
    LocalId,
    Loop,
    Node,
    Opaque,
    Return,
    Span,
    SubgroupBallot,
    SubgroupLocalId,
    SubgroupReduce,
    SubgroupShuffle,
    UnOp,
    Var,
)
from ..ir.ops import OpaqueOp, Ordering
from ..ir.program import Access, Program
from ..ir.report import Path
from ..ir.visit import Scopes, Steps, run_nested
from .wellformed import parts

DIVERGENT = 0
_EXCHANGES = (SubgroupReduce, SubgroupShuffle, SubgroupBallot)
_SOURCES = (InvocationId, LocalId, SubgroupLocalId, *_EXCHANGES, Atomic, Call, Opaque)


class Divergence(NamedTuple):
    """A barrier (V010) or subgroup operation (V203) that some invocations of a workgroup may miss."""

    code: DiagCode
    path: Path
    span: Span | None
    message: str


def divergences(program: Program, *, barrier_ignores_exited: bool = False) -> list[Divergence]:
    """All such places in program order. A grid-wide barrier has rules of its own and is not looked at here."""
    flow = _Flow(program)
    run_nested(flow.sequence(program.entry, ("entry",), flow.vertex(), ()))
    reached = flow.reached()
    found = []
    for meeting in flow.meetings:
        exited = any(e in reached for e in meeting.exits)
        if meeting.body in reached or (exited and not (barrier_ignores_exited and meeting.code is DiagCode.V010)):
            what = "barrier" if meeting.code is DiagCode.V010 else "subgroup operation"
            why = "under a divergent condition" if meeting.body in reached else "after a divergent return"
            found.append(Divergence(meeting.code, meeting.path, meeting.span, f"{what} {why}"))
    return found


class _Meeting(NamedTuple):
    code: DiagCode
    path: Path
    span: Span | None
    body: int
    exits: tuple[int, ...]


class _Flow:
    """The graph: vertices are names, bodies and exits; an edge leads to a vertex that diverges with its source."""

    def __init__(self, program: Program) -> None:
        # no invocation can change these during the dispatch, so one index gives one value
        self.constant = {b.name for b in program.buffers if b.access in (Access.READ_ONLY, Access.UNIFORM)}
        self.edges: list[list[int]] = [[]]  # DIVERGENT is the first vertex
        self.names: Scopes[int] = Scopes()
        self.exit: int = self.vertex()
        self.meetings: list[_Meeting] = []

    def vertex(self, *causes: int) -> int:
        self.edges.append([])
        self.link(causes, len(self.edges) - 1)
        return len(self.edges) - 1

    def link(self, causes: Iterable[int], effect: int) -> None:
        for cause in causes:
            self.edges[cause].append(effect)

    def reached(self) -> set[int]:
        found, stack = {DIVERGENT}, [DIVERGENT]
        while stack:
            new = [v for v in self.edges[stack.pop()] if v not in found]
            found.update(new)
            stack.extend(new)
        return found

    def sequence(
        self,
        nodes: tuple[Node, ...],
        path: Path,
        body: int,
        loops: tuple[int, ...],
        bind: tuple[str, int] | None = None,
    ) -> Steps:
        """One scope, entered by the invocations for which vertex `body` stands."""
        scope = self.names.enter()
        if bind is not None:
            self.names.bind(*bind)
        for i, node in enumerate(nodes):
            here = (*path, i)
            causes = self.causes(node, here, body, loops)
            match node:
                case Let():
                    self.names.bind(node.name, self.vertex(body, *causes))
                case Assign():
                    self.link((body, *causes), self.names.get(node.name, DIVERGENT))
                case If():
                    inner, before = self.vertex(body, *causes), self.exit
                    yield self.sequence(node.then, (*here, "then"), inner, loops)
                    after, self.exit = self.exit, before
                    yield self.sequence(node.orelse, (*here, "orelse"), inner, loops)
                    if after != self.exit:
                        self.exit = self.vertex(after, self.exit)
                case Loop():
                    inner = self.vertex(body, *causes)
                    left = self.vertex()  # returned in an earlier iteration
                    yield self.sequence(node.body, (*here, "body"), inner, (*loops, left), (node.var, inner))
                case Return():
                    self.exit = self.vertex(self.exit, body)
                    for loop in loops:
                        self.link((body,), loop)
                case Barrier() if node.ordering is not Ordering.GRID_SYNC:
                    self.meetings.append(_Meeting(DiagCode.V010, here, node.span, body, (self.exit, *loops)))
                case _:
                    for name in node.body_fields:
                        yield self.sequence(getattr(node, name), (*here, name), body, loops)
        self.names.leave(scope)

    def causes(self, node: Node, path: Path, body: int, loops: tuple[int, ...]) -> set[int]:
        """What the values of a statement depend on; notes the subgroup operations in them."""
        found: set[int] = set()
        seen: set[int] = set()
        stack: list[tuple[Expr, Path]] = [
            (e, (*path, *keys)) for keys, e in reversed(list(parts(node))) if isinstance(e, Expr)
        ]
        while stack:
            item, here = stack.pop()
            if id(item) in seen:
                continue
            seen.add(id(item))
            if isinstance(item, Var):
                found.add(self.names.get(item.name, DIVERGENT))
            elif self.diverges(item):
                found.add(DIVERGENT)
            if isinstance(item, _EXCHANGES):
                self.meetings.append(_Meeting(DiagCode.V203, here, node.span, body, (self.exit, *loops)))
            stack.extend(reversed([(c, (*here, *keys)) for keys, c in parts(item)]))
        return found

    def diverges(self, item: Expr) -> bool:
        """Whether invocations may see different values although all operands agree."""
        match item:
            case Load():
                return item.buffer not in self.constant
            case BinOp(op=OpaqueOp()) | UnOp(op=OpaqueOp()):
                return True
        return isinstance(item, _SOURCES)
