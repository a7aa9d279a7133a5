"""Canonical form and fingerprint: programs that mean the same for these three reasons have the same name.

1. Buffers are declared in another order.
2. The operands of a commutative operator are swapped: a literal goes to the right, and other operands go in the order
   of their wire bytes. `+ * min max` of two operands that are not literals keep theirs, and an operand that may have an
   effect (an atomic, a call, an opaque expression) is never moved past another.
3. A block that declares nothing stands around statements.

Nothing is renamed and nothing is folded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from ..ir.nodes import Atomic, BinOp, Block, Call, Expr, Let, Lit, Node, Opaque
from ..ir.ops import BinaryOp
from ..ir.program import BufferDecl, MemoryKind, Program
from ..ir.visit import children, rewrite
from .blake3 import blake3
from .wire.layout import LITERALS
from .wire.write import Writer, encode

_KEPT = frozenset((BinaryOp.ADD, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX))
_CORE_LITERALS = frozenset(LITERALS.values())
# The sort key numbers the memory kinds like the wire, but for the last two.
_KIND_KEYS: dict[MemoryKind | None, int] = {kind: kind.value for kind in MemoryKind}
_KIND_KEYS |= {MemoryKind.PERSISTENT: 5, MemoryKind.PUSH: 6}
_CANONICAL_REVISION = 6


def canonicalize(program: Program) -> Program:
    """The representative of all programs with this one's fingerprint. Raises WireError if it has no wire form."""
    program.to_wire(_CANONICAL_REVISION)  # the orders below are orders of wire bytes
    return Program.of_entry(
        sorted(program.buffers, key=_buffer_key),
        program.workgroup_size,
        rewrite(program.entry, expr=_Operands().order, node=_splice),
        op_id=program.entry_op_id,
        exclusive=program.exclusive,
    )


def fingerprint(program: Program, rev: int = 6) -> str:
    """BLAKE3 of the canonical wire form at a revision, 64 hex digits. Raises WireError if there is no such form."""
    return blake3(encode(program.canonicalized(), rev)).hex()


def vsa_fingerprint(program: Program) -> tuple[int, ...]:
    """The fingerprint as eight 32-bit words, lowest byte first."""
    return struct.unpack("<8I", bytes.fromhex(program.fingerprint))


def _buffer_key(decl: BufferDecl) -> bytes:
    return Writer(_CANONICAL_REVISION).buffer_key(decl, _KIND_KEYS[decl.kind])


def _splice(node: Node) -> Node | Iterable[Node]:
    if isinstance(node, Block) and not any(isinstance(child, Let) for child in node.body):
        return node.body
    return node


class _Operands:
    """Orders operands bottom-up, so that every operand met is already canonical."""

    def __init__(self) -> None:
        self._writer = Writer(_CANONICAL_REVISION)
        self._effects: dict[int, tuple[Expr, bool]] = {}  # by id, so each entry keeps its expression alive

    def order(self, expr: Expr) -> Expr:
        if isinstance(expr, BinOp) and self._should_swap(expr):
            expr = BinOp(expr.op, expr.right, expr.left)
        self._has_effects(expr)
        return expr

    def _should_swap(self, expr: BinOp) -> bool:
        op, left, right = expr.op, expr.left, expr.right
        if not isinstance(op, BinaryOp) or not op.commutes or self._has_effects(left) or self._has_effects(right):
            return False
        left_literal, right_literal = _is_literal(left), _is_literal(right)
        if left_literal != right_literal:
            return left_literal
        if op in _KEPT and not left_literal:
            return False
        return self._writer.expr_bytes(left) > self._writer.expr_bytes(right)

    def _has_effects(self, expr: Expr) -> bool:
        known = self._effects.get(id(expr))
        if known is None:
            found = isinstance(expr, Atomic | Call | Opaque) or any(map(self._has_effects, children(expr)))
            known = self._effects[id(expr)] = expr, found
        return known[1]


def _is_literal(expr: Expr) -> bool:
    return isinstance(expr, Lit) and expr.dtype in _CORE_LITERALS
