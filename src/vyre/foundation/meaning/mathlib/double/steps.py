"""Short names for the expressions that the functions of f64 are made of."""

from __future__ import annotations

from collections.abc import Sequence

from ....ir.build import Builder
from ....ir.dtypes import f64, i64
from ....ir.nodes import Bitcast, Expr, Fma, Operand, Select, UnOp, Var, lit
from ....ir.ops import UnaryOp

INF = float("inf")
NAN = float("nan")


def number(value: Operand) -> Expr:
    """An f64."""
    return value if isinstance(value, Expr) else lit(float(value), f64)


def word(value: int) -> Expr:
    """An i64."""
    return lit(value, i64)


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


def bits_of(x: Expr) -> Bitcast:
    return Bitcast(i64, x)


def power_of_two(k: Expr) -> Bitcast:
    """2^k of a whole k from -1022 to 1023."""
    return Bitcast(f64, (k + word(1023)) << 52)


def clamp(b: Builder, name: str, x: Var, low: float, high: float) -> Var:
    """The nearest number from `low` to `high`; NaN stays."""
    return b.let(f"{name}_x", Select(x > high, number(high), Select(x < low, number(low), x)))
