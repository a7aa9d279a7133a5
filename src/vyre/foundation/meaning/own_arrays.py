"""Arrays that each invocation has for itself, as memory of the workgroup: for engines that have no such arrays."""

from __future__ import annotations

from ..integers import U32_MAX
from ..ir.nodes import BufLen, Expr, Load, LocalId, Node, Select, Store, lit
from ..ir.program import BufferDecl, MemoryKind, Program
from ..ir.visit import rewrite


def in_workgroup_memory(program: Program) -> Program:
    """The same program, with one array of the workgroup in place of each such array.

    Element i of invocation k lies at i * lanes + k, so that neighbours reach neighbours.
    """
    own = {b.name: b for b in program.buffers if b.is_own}
    return program._cached("shared.arrays", lambda: _rewritten(program, own)) if own else program


def _rewritten(program: Program, own: dict[str, BufferDecl]) -> Program:
    x, y, z = program.workgroup_size
    lane: Expr = LocalId(0)
    lane = lane + LocalId(1) * x if y > 1 or z > 1 else lane
    lane = lane + LocalId(2) * (x * y) if z > 1 else lane
    lanes = x * y * z

    def place(name: str, index: Expr) -> Expr:
        return Select(index < own[name].count, index * lanes + lane, lit(U32_MAX))

    def expr(e: Expr) -> Expr:
        if isinstance(e, Load) and e.buffer in own:
            return e.replace(index=place(e.buffer, e.index))
        return lit(own[e.buffer].count) if isinstance(e, BufLen) and e.buffer in own else e

    def node(n: Node) -> Node:
        return n.replace(index=place(n.buffer, n.index)) if isinstance(n, Store) and n.buffer in own else n

    buffers = [
        b.replace(count=b.count * lanes, kind=MemoryKind.SHARED) if b.name in own else b for b in program.buffers
    ]
    return program.replace(buffers=buffers, entry=rewrite(program.entry, expr=expr, node=node))
