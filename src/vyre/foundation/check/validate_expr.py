"""Rules of expressions: types, names, buffers, and what the target must offer for them."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import DiagCode
from ..ir.dtypes import DataType, bytes_
from ..ir.nodes import (
    Atomic,
    BinOp,
    Bitcast,
    BufferRef,
    BufLen,
    Call,
    Cast,
    Expr,
    InvocationId,
    Lit,
    Load,
    LocalId,
    Opaque,
    Span,
    SubgroupBallot,
    SubgroupLocalId,
    SubgroupReduce,
    SubgroupShuffle,
    SubgroupSize,
    UnOp,
    Var,
    WorkgroupId,
)
from ..ir.ops import AtomicOp, BinaryOp, OpaqueOp, Ordering
from ..ir.program import Access, BufferDecl
from ..ir.report import Capabilities, Path, Report
from .typing import Type, infer
from .wellformed import parts

_SUBGROUP = (SubgroupReduce, SubgroupShuffle, SubgroupBallot, SubgroupLocalId, SubgroupSize)
_TYPE_BITS = {"f16": "float16", "bf16": "bfloat16", "f64": "float64"}


class ExprRules:
    """Checks expressions of one program. `names` is kept by the caller and types the locals in scope."""

    def __init__(
        self,
        buffers: Mapping[str, BufferDecl],
        names: Mapping[str, Type],
        capabilities: Capabilities | None,
        report: Report,
    ) -> None:
        self.buffers, self.names, self.capabilities, self.report = buffers, names, capabilities, report
        self.elements = {name: b.element for name, b in buffers.items()}

    def check(self, root: Expr, path: Path, span: Span | None) -> Type:
        """Report whatever `root` breaks, operands first, and return its type."""
        types: list[Type] = []
        stack: list[tuple[Expr, Path, Expr | None, int]] = [(root, path, None, -1)]
        while stack:
            item, here, parent, arity = stack.pop()
            if arity >= 0:
                operands = tuple(types[len(types) - arity :])
                del types[len(types) - arity :]
                types.append(self._rules(item, operands, here, parent, span))
                continue
            below = list(parts(item))
            stack.append((item, here, parent, len(below)))
            stack.extend((child, (*here, *keys), item, -1) for keys, child in reversed(below))
        return types[0]

    def offers(self, t: DataType, path: Path, span: Span | None) -> bool:
        """Whether values of this type can exist here (V215)."""
        if not t.live:
            self.report.add(DiagCode.V215, "type", path, f"type {t} is carried, not executed", span=span)
            return False
        bit = _TYPE_BITS.get(t.name)
        if bit is not None and self.capabilities is not None and not getattr(self.capabilities, bit):
            self.report.add(DiagCode.V215, "type", path, f"the target has no {t} values", span=span)
        return True

    def _rules(self, e: Expr, operands: tuple[Type, ...], path: Path, parent: Expr | None, span: Span | None) -> Type:
        result, problems = infer(e, operands, self.names, self.elements)
        for p in problems:
            self.report.add(p.code, "type", (*path, p.where) if p.where else path, p.message, p.fix, span=span)

        def say(code: DiagCode, message: str, phase: str = "expression", fix: str = "") -> None:
            self.report.add(code, phase, path, message, fix, span=span)

        match e:
            case Lit(dtype=t):
                self.offers(t, path, span)
            case Var(name=name):
                if name not in self.names:
                    say(DiagCode.V066, f"{name!r} is not declared")
            case BufLen(buffer=name):
                if name not in self.buffers:
                    say(DiagCode.V067, f"length of {name!r}, which is not declared", "memory")
            case InvocationId(axis=axis) | WorkgroupId(axis=axis) | LocalId(axis=axis):
                if axis not in (0, 1, 2):
                    say(DiagCode.V068, f"axis {axis}")
            case Load():
                self._load(e, path, span)
            case Atomic():
                self._atomic(e, path, span)
            case Cast(target=t):
                allowed = self.capabilities.cast_targets if self.capabilities is not None else None
                if self.offers(t, path, span) and allowed is not None and t.name not in allowed:
                    say(DiagCode.V034, f"the target has no cast to {t}", "type")
            case Bitcast(target=t):
                self.offers(t, path, span)
            case BinOp(op=OpaqueOp() as op) | UnOp(op=OpaqueOp() as op):
                say(DiagCode.V030, f"operator {op.text} is not registered")
            case BinOp():
                if e.op in (BinaryOp.DIV, BinaryOp.MOD) and _is_zero(e.right):
                    say(DiagCode.V044, "division by zero", "type")
            case Call(op_id=op_id):
                known = self.capabilities.supported_ops or frozenset() if self.capabilities is not None else None
                if known is not None and op_id not in known:
                    say(DiagCode.V056, f"call of {op_id!r}, which the target does not run", fix="inline the call")
            case BufferRef(buffer=name):
                if not isinstance(parent, Call):
                    say(DiagCode.V051, f"buffer {name!r} is used as a value", "memory")
                if name not in self.buffers:
                    say(DiagCode.V052, f"reference to {name!r}, which is not declared", "memory")
            case Opaque(kind=kind):
                say(DiagCode.V030, f"expression kind {kind!r} is not registered")
            case _ if isinstance(e, _SUBGROUP):
                if self.capabilities is None or not self.capabilities.subgroup:
                    say(DiagCode.V041, f"{type(e).__name__} needs subgroups")
        self._wide(e, operands, path, span)
        return result

    def _load(self, e: Load, path: Path, span: Span | None) -> None:
        decl = self.buffers.get(e.buffer)
        if decl is None:
            self.report.add(DiagCode.V065, "memory", path, f"load from {e.buffer!r}, which is not declared", span=span)
        else:
            if decl.access is Access.WRITE_ONLY:
                self.report.add(DiagCode.V213, "memory", path, f"{e.buffer!r} is write-only", span=span)
            self.bytes_access(decl, path, span)

    def bytes_access(self, decl: BufferDecl, path: Path, span: Span | None) -> None:
        if decl.element == bytes_ and not decl.bytes_extraction:
            self.report.add(DiagCode.V013, "memory", path, f"access to the bytes of {decl.name!r}", span=span)

    def _atomic(self, e: Atomic, path: Path, span: Span | None) -> None:
        def say(code: DiagCode, message: str) -> None:
            self.report.add(code, "memory", path, message, span=span)

        if isinstance(e.op, OpaqueOp):
            self.report.add(DiagCode.V030, "expression", path, f"operator {e.op.text} is not registered", span=span)
        else:
            if not e.op.live:
                say(DiagCode.V216, f"{e.op.text} is carried, not executed")
            compares = e.op in (AtomicOp.COMPARE_EXCHANGE, AtomicOp.COMPARE_EXCHANGE_WEAK)
            if compares and e.expected is None:
                say(DiagCode.V059, f"{e.op.text} without an expected value")
            if not compares and e.expected is not None:
                say(DiagCode.V060, f"{e.op.text} with an expected value")
        if e.ordering is Ordering.GRID_SYNC:
            say(DiagCode.V042, f"atomic with ordering {e.ordering.text}")
        decl = self.buffers.get(e.buffer)
        if decl is None:
            say(DiagCode.V061, f"atomic on {e.buffer!r}, which is not declared")
            return
        self.bytes_access(decl, path, span)
        if decl.is_own:
            say(DiagCode.V009, f"atomic on {e.buffer!r}, which each invocation has for itself")
        elif decl.access is Access.WORKGROUP:
            if self.capabilities is not None and not self.capabilities.workgroup_atomics:
                say(DiagCode.V025, f"atomic on workgroup buffer {e.buffer!r}")
        elif decl.access is not Access.READ_WRITE:
            say(DiagCode.V009, f"atomic on {e.buffer!r}, which is {decl.access.name.lower().replace('_', '-')}")

    def _wide(self, e: Expr, operands: tuple[Type, ...], path: Path, span: Span | None) -> None:
        if self.capabilities is None or self.capabilities.int64 or not isinstance(e, BinOp | UnOp):
            return
        if wide := next((t for t in operands if t is not None and t.name in ("u64", "i64")), None):
            self.report.add(DiagCode.V084, "type", path, f"arithmetic on {wide}", span=span)


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Lit) and e.bits == 0 and e.dtype.is_int
