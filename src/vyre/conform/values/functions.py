"""What the functions of the math library give: their definitions, one step after the other, each by its scalar meaning.

They have no other definition than their steps, so the model takes those; the steps themselves are in `meaning.arith`.
Functions that are exact are not here: `numbers` computes them as fractions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ...foundation.check.typing import Type, type_of
from ...foundation.ir.build import Builder
from ...foundation.ir.dtypes import DataType, f32, u32
from ...foundation.ir.nodes import (
    Assign,
    BinOp,
    Bitcast,
    Cast,
    Expr,
    Fma,
    If,
    Let,
    Lit,
    Loop,
    Node,
    Select,
    UnOp,
    Var,
)
from ...foundation.ir.ops import BinaryOp, UnaryOp
from ...foundation.meaning import arith, mathlib

Locals = dict[str, Any]


def function(name: str) -> Callable[..., float]:
    """A function of f32 numbers by its name; its definition is read at the first call."""
    op = next(op for op in mathlib.functions() if op.text == name)
    return lambda *operands: _compiled(op)(*operands)


@cache
def _compiled(op: UnaryOp | BinaryOp) -> Callable[..., float]:
    b = Builder()
    operands = [Var(b.fresh(letter), dtype=f32) for letter in ("x" if isinstance(op, UnaryOp) else "xy")]
    result = mathlib.functions()[op](b, *operands)
    body, _ = b.mark()
    types: dict[str, Type] = {v.name: f32 for v in operands}
    steps = [_step(node, types) for node in body]
    value = _value(result, types)

    def run(*given: float) -> float:
        known = dict(zip((v.name for v in operands), given, strict=True))
        for step in steps:
            step(known)
        found: float = value(known)
        return found

    return run


def _step(node: Node, types: dict[str, Type]) -> Callable[[Locals], None]:
    match node:
        case Let(name=name, value=expr) | Assign(name=name, value=expr):
            value = _value(expr, types)
            types[name] = type_of(expr, types, {})
            return lambda known: known.__setitem__(name, value(known))
        case If(condition=condition, then=then, orelse=orelse):
            test = _value(condition, types)
            arms = [[_step(n, types) for n in block] for block in (orelse, then)]
            return lambda known: _all(arms[bool(test(known))], known)
    assert isinstance(node, Loop)
    types[node.var] = u32
    low, high, body = _value(node.start, types), _value(node.stop, types), [_step(n, types) for n in node.body]

    def turns(known: Locals) -> None:
        for turn in range(low(known), high(known)):
            known[node.var] = turn
            _all(body, known)

    return turns


def _all(steps: list[Callable[[Locals], None]], known: Locals) -> None:
    for step in steps:
        step(known)


def _value(expr: Expr, types: dict[str, Type]) -> Callable[[Locals], Any]:
    def of(e: Expr) -> DataType:
        t = type_of(e, types, {})
        assert t is not None
        return t

    match expr:
        case Lit(value=number):
            return lambda known: number
        case Var(name=name):
            return lambda known: known[name]
        case BinOp(op=BinaryOp() as op, left=left, right=right):
            return _applied(arith.binary(op, of(left)), types, left, right)
        case UnOp(op=UnaryOp() as op, operand=x):
            return _applied(arith.unary(op, of(x)), types, x)
        case Fma(a=a, b=b, c=c):
            return _applied(arith.fma, types, a, b, c)
        case Cast(target=target, value=x):
            return _applied(arith.cast(of(x), target), types, x)
        case Bitcast(target=target, value=x):
            return _applied(arith.bitcast(of(x), target), types, x)
    assert isinstance(expr, Select)
    return _applied(lambda c, x, y: x if c else y, types, expr.condition, expr.on_true, expr.on_false)


def _applied(f: Callable[..., Any], types: dict[str, Type], *operands: Expr) -> Callable[[Locals], Any]:
    values = [_value(e, types) for e in operands]
    if len(values) == 1:
        (x,) = values
        return lambda known: f(x(known))
    if len(values) == 2:
        a, b = values
        return lambda known: f(a(known), b(known))
    return lambda known: f(*[value(known) for value in values])
