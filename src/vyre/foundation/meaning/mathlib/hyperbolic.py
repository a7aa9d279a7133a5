"""Inverse hyperbolic functions of f32: polynomials near zero, beyond it a logarithm of a number in two parts."""

from __future__ import annotations

from ...ir.build import Builder
from ...ir.dtypes import f32, i32
from ...ir.nodes import Bitcast, Cast, Expr, Select, Var
from . import coefficients as c
from .elementary import ONE, split
from .steps import absolute, fma, number, polynomial, square_root

LARGE = 2.0**12
"""From here on sqrt(x^2 +- 1) is |x|, as far as the logarithm can tell."""


def asinh(b: Builder, x: Var) -> Expr:
    """A polynomial up to 1/2, then log(|x| + sqrt(x^2 + 1))."""
    size = b.let("asinh_a", absolute(x))
    square = b.let("asinh_s", x * x)
    small = fma(x, square * polynomial(square, c.ASINH), x)
    above = b.let("asinh_y", _log_of_sum(b, "asinh", size, 1.0))
    signed = Select(x < 0.0, -above, above)
    return Select(size < number(float("inf")), Select(size > 0.5, signed, Select(x.eq(0.0), x, small)), x)


def acosh(b: Builder, x: Var) -> Expr:
    """sqrt(2 t) (1 + t P(t)) with t = x - 1 up to 3/2, then log(x + sqrt(x^2 - 1)). Below 1 the root is NaN."""
    t = b.let("acosh_d", x - 1.0)
    root = b.let("acosh_r", square_root(t + t))
    small = fma(root, t * polynomial(t, c.ACOSH), root)
    above = _log_of_sum(b, "acosh", x, -1.0)
    return Select(x < 1.5, small, Select(x < number(float("inf")), above, x))


def atanh(b: Builder, x: Var) -> Expr:
    """A polynomial up to 1/2, then half the logarithm of (1 + |x|) / (1 - |x|), whose divisor is exact."""
    size = b.let("atanh_a", absolute(x))
    square = b.let("atanh_s", x * x)
    small = fma(x, square * polynomial(square, c.ATANH), x)
    above = b.let("atanh_n", size + 1.0)
    lost = b.let("atanh_t", size - (above - 1.0))
    below = b.let("atanh_d", number(1.0) - size)
    inverse = b.let("atanh_r", number(1.0) / below)
    quotient = b.let("atanh_q", above * inverse)
    low = b.let("atanh_l", (fma(-quotient, below, above) + lost) * inverse)
    half = b.let("atanh_y", _log_of_parts(b, "atanh", quotient, low, number(0.0)) * 0.5)
    edge = Select(size.eq(1.0), number(float("inf")), number(float("nan")))
    large = b.let("atanh_y", Select(size < 1.0, half, edge))
    return Select(size < 0.5, Select(x.eq(0.0), x, small), Select(x < 0.0, -large, large))


def _log_of_sum(b: Builder, name: str, x: Var, sign: float) -> Expr:
    """log(x + sqrt(x^2 + sign)); where x is LARGE, log(x / 2) + 2 ln 2."""
    root = b.let(f"{name}_r", square_root(fma(x, x, sign)))
    lacking = fma(x, x, fma(-root, root, sign)) / (root + root)
    total = b.let(f"{name}_z", root + x)
    low = b.let(f"{name}_l", x - (total - root) + lacking)
    large = b.let(f"{name}_b", x > LARGE)
    total = b.let(f"{name}_z", Select(large, x * 0.5, total))
    low = b.let(f"{name}_l", Select(large, number(0.0), low))
    return _log_of_parts(b, name, total, low, Select(large, number(2.0), number(0.0)))


def _log_of_parts(b: Builder, name: str, high: Var, low: Var, more: Expr) -> Expr:
    """log((high + low) 2^more) for a `low` of about half a unit of `high`."""
    k, f = split(b, name, high)
    scaled = b.let(f"{name}_l", low * Bitcast(f32, (ONE - Cast(i32, k)) << 23))
    total = b.let(f"{name}_e", k + more)
    square = b.let(f"{name}_s", f * f)
    tail = fma(square, -0.5, fma(f * square, polynomial(f, c.LOG), fma(-f, scaled, scaled)))
    return fma(total, c.LN2_HIGH, f + fma(total, c.LN2_LOW, tail))
