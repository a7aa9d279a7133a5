"""Short names for the expressions that the functions are made of."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.dtypes import f32
from ...ir.nodes import Expr, Fma, Operand, UnOp, lit
from ...ir.ops import UnaryOp


def number(value: Operand) -> Expr:
    """An f32."""
    return value if isinstance(value, Expr) else lit(float(value), f32)


def fma(x: Operand, y: Operand, z: Operand) -> Fma:
    return Fma(number(x), number(y), number(z))


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """c0 + c1 x + c2 x^2 + ... by Horner's rule."""
    value = number(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = fma(value, x, coefficient)
    return value


def absolute(x: Expr) -> UnOp:
    return UnOp(UnaryOp.ABS, x)


def square_root(x: Expr) -> UnOp:
    return UnOp(UnaryOp.SQRT, x)
