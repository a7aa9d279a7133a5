"""Which function of f64 defines which operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ....ir.nodes import Expr
from ....ir.ops import BinaryOp, UnaryOp
from . import arcs, circular, exact, exponential, hyperbolic, power

FUNCTIONS: Final[dict[UnaryOp | BinaryOp, Callable[..., Expr]]] = {
    UnaryOp.EXP: exponential.exp,
    UnaryOp.EXP2: exponential.exp2,
    UnaryOp.EXPM1: exponential.expm1,
    UnaryOp.LOG: exponential.log,
    UnaryOp.LOG2: exponential.log2,
    UnaryOp.LOG10: exponential.log10,
    UnaryOp.LOG1P: exponential.log1p,
    UnaryOp.SIN: circular.sin,
    UnaryOp.COS: circular.cos,
    UnaryOp.TAN: circular.tan,
    UnaryOp.ASIN: arcs.asin,
    UnaryOp.ACOS: arcs.acos,
    UnaryOp.ATAN: arcs.atan,
    BinaryOp.ATAN2: arcs.atan2,
    UnaryOp.SINH: hyperbolic.sinh,
    UnaryOp.COSH: hyperbolic.cosh,
    UnaryOp.TANH: hyperbolic.tanh,
    UnaryOp.CBRT: power.cbrt,
    BinaryOp.POW: power.pow,
    BinaryOp.HYPOT: exact.hypot,
    BinaryOp.LDEXP: exact.ldexp,
    BinaryOp.NEXTAFTER: exact.nextafter,
    UnaryOp.FREXP_MANTISSA: exact.frexp_mantissa,
    UnaryOp.FREXP_EXPONENT: exact.frexp_exponent,
}
