"""The error function of f32 and its complement."""

from __future__ import annotations

from ...ir.build import Builder
from ...ir.nodes import Expr, Select, Var
from . import coefficients as c
from .coefficients import ROUND
from .elementary import ONE, exp, power_of_two
from .steps import absolute, fma, number, polynomial

SMALL = 0.8
"""Up to here erf x = x + x P(x^2)."""

CENTRE = 1.5
"""e^(x^2) erfc x is P((x - CENTRE) / (x + CENTRE)) / (x + CENTRE)."""


def erf(b: Builder, x: Var) -> Expr:
    """A polynomial, and beyond SMALL 1 - e^P(|x|), which is 1 from 4 on."""
    size = b.let("erf_a", absolute(x))
    near = b.let("erf_b", Select(size > 4.0, number(4.0), size))
    large = b.let("erf_y", number(1.0) - exp(b, b.let("erf_p", polynomial(near, c.ERF_LARGE))))
    square = b.let("erf_s", x * x)
    small = Select(x.eq(0.0), x, fma(x, polynomial(square, c.ERF), x))
    return Select(size > SMALL, Select(x < 0.0, -large, large), small)


def erfc(b: Builder, x: Var) -> Expr:
    """(1 - x) - x P(x^2) for small x; else u P(q) 2^k e^r, and 2 less that for negative x.

    u = 1 / (|x| + CENTRE), q = (|x| - CENTRE) u, and -x^2 = k ln 2 + r. What rounding took from the sum, its inverse
    and the square is added to r, and u P(q) has a second part. From 9.4 on 2^k is zero.
    """

    def let(stem: str, value: Expr) -> Var:
        return b.let(f"erfc_{stem}", value)

    size = let("a", absolute(x))
    near = let("a", Select(size > 9.4, number(9.4), size))
    total = let("t", near + CENTRE)
    inverse = let("u", number(1.0) / total)
    q = let("q", (near - CENTRE) * inverse)
    tail = let("p", q * polynomial(q, c.ERFC[1:]))
    factor = let("p", tail + c.ERFC[0])
    value = let("v", inverse * factor)
    low = fma(inverse, tail - (factor - c.ERFC[0]), fma(inverse, factor, -value))
    square = let("s", near * near)
    shifted = let("z", fma(square, -c.LOG2_E, ROUND + ONE))
    k = let("k", shifted - (ROUND + ONE))
    lost = fma(near - (total - CENTRE), -inverse, fma(-inverse, total, 1.0)) - fma(near, near, -square)
    r = let("r", fma(k, -c.LN2_HIGH, -square) + fma(k, -c.LN2_LOW, lost))
    rise = fma(r * r, polynomial(r, c.EXP), r)
    large = let("y", (value + fma(value, rise, low)) * power_of_two(shifted))
    beyond = Select(x < 0.0, number(2.0) - large, large)
    return Select(size < SMALL, fma(-x, polynomial(let("s", x * x), c.ERF), number(1.0) - x), beyond)
