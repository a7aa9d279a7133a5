"""Functions as statements before the statement that uses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias, TypeGuard

from ...ir.build import Builder
from ...ir.dtypes import DataType, f32, f64, i32, u32
from ...ir.nodes import Atomic, BinOp, Bitcast, Call, Cast, Expr, Let, Lit, Load, Loop, Node, Opaque, UnOp, Var
from ...ir.ops import BinaryOp, OpaqueOp, UnaryOp
from ...ir.program import Program
from ...ir.visit import Scopes, Steps, children, distinct, rewrite, run_nested
from . import elementary, exact, gauss, hyperbolic, plane, power, trig
from .double.table import FUNCTIONS as _OF_DOUBLES

Function: TypeAlias = Callable[..., Expr]
"""Appends to a Builder the steps of a function of one or two locals, and gives its value."""

Op: TypeAlias = UnaryOp | BinaryOp

_FUNCTIONS: dict[Op, Function] = {
    UnaryOp.EXP: elementary.exp,
    UnaryOp.EXP2: elementary.exp2,
    UnaryOp.LOG: elementary.log,
    UnaryOp.LOG2: elementary.log2,
    UnaryOp.SIN: trig.sin,
    UnaryOp.COS: trig.cos,
    UnaryOp.TAN: trig.tan,
    UnaryOp.ASIN: elementary.asin,
    UnaryOp.ACOS: elementary.acos,
    UnaryOp.ATAN: elementary.atan,
    UnaryOp.SINH: elementary.sinh,
    UnaryOp.COSH: elementary.cosh,
    UnaryOp.TANH: elementary.tanh,
    UnaryOp.LOG1P: elementary.log1p,
    UnaryOp.EXPM1: elementary.expm1,
    UnaryOp.LOG10: elementary.log10,
    UnaryOp.EXP10: elementary.exp10,
    UnaryOp.CBRT: elementary.cbrt,
    UnaryOp.ASINH: hyperbolic.asinh,
    UnaryOp.ACOSH: hyperbolic.acosh,
    UnaryOp.ATANH: hyperbolic.atanh,
    UnaryOp.SINPI: trig.sinpi,
    UnaryOp.COSPI: trig.cospi,
    UnaryOp.TANPI: trig.tanpi,
    UnaryOp.ERF: gauss.erf,
    UnaryOp.ERFC: gauss.erfc,
    BinaryOp.POW: power.pow,
    BinaryOp.ATAN2: plane.atan2,
    BinaryOp.HYPOT: plane.hypot,
    BinaryOp.FMOD: exact.fmod,
    BinaryOp.REMAINDER: exact.remainder,
    BinaryOp.LDEXP: exact.ldexp,
    BinaryOp.NEXTAFTER: exact.nextafter,
    UnaryOp.FREXP_MANTISSA: exact.frexp_mantissa,
    UnaryOp.FREXP_EXPONENT: exact.frexp_exponent,
}


def functions(dtype: DataType = f32) -> dict[Op, Function]:
    """The definition of every operator that is a function of f32, or of f64."""
    return dict(_OF_DOUBLES if dtype == f64 else _FUNCTIONS)


@cache
def steps(op: UnaryOp | BinaryOp) -> int:
    """Statements and expressions of the definition for f32."""
    return definition(op).stats.steps


def definition(op: Op, dtype: DataType = f32) -> Program:
    """The steps of one operator alone; its operands are locals."""
    b = Builder()
    operands = (Var(name, dtype=t) for name, t in zip("xy", _operand_types(op, dtype), strict=False))
    b.let("z", functions(dtype)[op](b, *operands))
    block, _ = b.mark()
    return Program([], (1, 1, 1), block)


def _operand_types(op: Op, dtype: DataType) -> tuple[DataType, ...]:
    if isinstance(op, UnaryOp):
        return (dtype,)
    return (dtype, i32) if op.rule == "scale" else (dtype, dtype)


def expand(program: Program, keep: frozenset[Op] = frozenset()) -> Program:
    """The same program without functions, except those to `keep`; the program itself where it has none.

    Cut a program at its grid-wide barriers before: a value that a segment could compute again is, once expanded, a
    local that was assigned to.
    """
    return program._cached(("mathlib", keep) if keep else "mathlib", lambda: _expand(program, keep))


def _expand(program: Program, keep: frozenset[Op]) -> Program:
    hoist = _Hoist(program, keep)
    if not any(map(hoist.is_function, distinct(program.entry))):
        return program
    return program.replace(entry=rewrite(program.entry, node=hoist.statement))


class _Hoist:
    """Moves what must be computed earlier to locals with names that the program does not use."""

    def __init__(self, program: Program, keep: frozenset[Op]) -> None:
        self.b, self.keep = Builder(), keep
        self.doubles = _functions_of_doubles(program)
        for name in sorted(_names(program)):
            self.b.fresh(name)

    def is_function(self, item: object) -> bool:
        return is_function(item) and item.op not in self.keep

    def statement(self, node: Node) -> Node | list[Node]:
        """The statement, after the statements that compute its functions."""
        items = list(distinct(children(node)))
        if not any(map(self.is_function, items)):
            return node
        block, start = self.b.mark()
        self.b.span = node.span
        node = self._operands(node, any(map(_changes_memory, items)))
        before = block[start:]
        del block[start:]
        return [*before, node]

    def _operands(self, node: Node, ordered: bool) -> Node:
        """`node` without functions. In an `ordered` statement, which changes memory while it evaluates its operands,
        everything that reads or changes memory moves with them, so that all of it keeps its order. Otherwise nothing
        but the functions moves, and what is shared moves once."""
        roots = [(name, value) for name in node.expr_fields if (value := getattr(node, name)) is not None]
        only = roots[0][1] if len(roots) == 1 else None  # nothing comes after it but the statement, so it may stay
        values: list[Expr] = []
        known: dict[int, Expr] = {}
        again: dict[int, bool] = {}  # whether evaluating an expression again gives the same and does nothing
        stack: list[tuple[Expr, bool]] = [(value, False) for _, value in reversed(roots)]
        while stack:
            item, ready = stack.pop()
            if id(item) in known:
                values.append(known[id(item)])
                continue
            below = children(item)
            if not ready:
                stack.append((item, True))
                stack.extend((child, False) for child in reversed(below))
                continue
            new = values[len(values) - len(below) :]
            del values[len(values) - len(below) :]
            moves = ordered and isinstance(item, Load | Atomic | Call | Opaque)
            again[id(item)] = not moves and all(again[id(child)] for child in below)
            result = item if all(a is b for a, b in zip(below, new, strict=True)) else _with_operands(item, new)
            if self.is_function(result):
                result = self._call(result, f64 if id(item) in self.doubles else f32)
            elif moves and item is not only:
                result = self.b.let("seen", result)
            if again[id(item)]:
                known[id(item)] = result
            values.append(result)
        changes = {name: value for (name, _), value in zip(roots, values, strict=True)}
        return node.replace(**changes)

    def _call(self, item: Expr, dtype: DataType) -> Var:
        assert is_function(item) and not isinstance(item.op, OpaqueOp)
        operands = [
            Var(value.name if isinstance(value, Var) else self.b.let(name, value).name, dtype=t)
            for name, value, t in zip("xy", children(item), _operand_types(item.op, dtype), strict=False)
        ]
        return self.b.let(f"{item.op.text}_y", functions(dtype)[item.op](self.b, *operands))


def _functions_of_doubles(program: Program) -> frozenset[int]:
    """Identities of the functions whose operands are f64. Names need not say their types, so scopes do."""
    elements = {buffer.name: buffer.element for buffer in program.buffers}
    made = (item for item in distinct(program.entry) if isinstance(item, Lit | Cast | Bitcast))
    types = [*elements.values(), *(item.dtype if isinstance(item, Lit) else item.target for item in made)]
    if f64 not in types:
        return frozenset()
    found: set[int] = set()
    names: Scopes[DataType] = Scopes()

    def scope(nodes: Sequence[Node], var: str | None = None) -> Steps:
        here = names.enter()
        if var is not None:
            names.bind(var, u32)
        for node in nodes:
            for item in distinct(children(node)):
                if is_function(item) and children(item)[0].type_in(names.names, elements) == f64:
                    found.add(id(item))
            for inner in node.body_fields:
                yield scope(getattr(node, inner), node.var if isinstance(node, Loop) else None)
            if isinstance(node, Let) and (t := node.value.type_in(names.names, elements)) is not None:
                names.bind(node.name, t)
        names.leave(here)

    run_nested(scope(program.entry))
    return frozenset(found)


def _with_operands(item: Expr, operands: list[Expr]) -> Expr:
    """`item` with other children."""
    left = iter(operands)
    changes: dict[str, object] = {}
    for name in item.expr_fields:
        value = getattr(item, name)
        if isinstance(value, tuple):
            changes[name] = tuple(next(left) for _ in value)
        elif value is not None:
            changes[name] = next(left)
    return item.replace(**changes)


def is_function(item: object) -> TypeGuard[UnOp | BinOp]:
    """Whether an expression is an operator that the math library defines."""
    return isinstance(item, UnOp | BinOp) and isinstance(item.op, UnaryOp | BinaryOp) and item.op.is_function


def _changes_memory(item: object) -> bool:
    return isinstance(item, Atomic | Call | Opaque)


def _names(program: Program) -> set[str]:
    names = {buffer.name for buffer in program.buffers}
    for item in distinct(program.entry):
        if isinstance(item, Var | Let):
            names.add(item.name)
        elif isinstance(item, Loop):
            names.add(item.var)
    return names
