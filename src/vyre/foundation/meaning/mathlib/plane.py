"""Angle and length of a vector of two f32."""

from __future__ import annotations

from ...ir.build import Builder
from ...ir.dtypes import i32
from ...ir.nodes import BinOp, Bitcast, Expr, Select, Var
from ...ir.ops import BinaryOp
from . import coefficients as c
from .steps import absolute, fma, number, polynomial, square_root

INF = float("inf")


def atan2(b: Builder, y: Var, x: Var) -> Expr:
    """The arc tangent of the quotient that is at most 1, and from there to the octant of the vector."""
    _, _, steep, large, small = _sizes(b, "atan2", x, y)
    q = b.let("atan2_q", small / large)
    square = b.let("atan2_s", q * q)
    diagonal = Select(large.eq(0.0), number(0.0), number(c.HALF_PI / 2))  # zeros, infinities or any other equal sizes
    slanted = fma(q, square * polynomial(square, c.ATAN), q)
    angle = b.let("atan2_p", Select(small.eq(large), diagonal, slanted))
    back = b.let("atan2_n", Bitcast(i32, x) < 0)
    quarter = Select(back, number(c.PI), number(0.0))
    quarter_low = Select(back, number(c.PI_LOW), number(0.0))
    signed = Select(steep.ne(back), -angle, angle)
    from_axis = Select(steep, number(c.HALF_PI_LOW), quarter_low) + signed
    return BinOp(BinaryOp.COPYSIGN, Select(steep, number(c.HALF_PI), quarter) + from_axis, y)


def hypot(b: Builder, x: Var, y: Var) -> Expr:
    """The root of a sum of squares that are neither too large nor too small, by powers of two."""
    a, other, _, large, small = _sizes(b, "hypot", x, y)
    huge, tiny = b.let("hypot_b", large > 2.0**60), b.let("hypot_b", large < 2.0**-48)

    def scale(exponent: int) -> Var:
        scaled = Select(huge, number(2.0**-exponent), Select(tiny, number(2.0**exponent), number(1.0)))
        return b.let("hypot_p", scaled)

    down = scale(70)
    first, second = b.let("hypot_l", large * down), b.let("hypot_s", small * down)
    length = square_root(fma(first, first, second * second)) * scale(-70)
    return Select(BinOp(BinaryOp.OR, a.eq(INF), other.eq(INF)), number(INF), length)


def _sizes(b: Builder, name: str, x: Var, y: Var) -> tuple[Var, Var, Var, Var, Var]:
    """|x|, |y|, whether |y| is larger, the larger and the smaller. A NaN is one of the two."""
    a, other = b.let(f"{name}_a", absolute(x)), b.let(f"{name}_a", absolute(y))
    steep = b.let(f"{name}_t", other > a)
    large = b.let(f"{name}_l", Select(steep, other, a))
    return a, other, steep, large, b.let(f"{name}_m", Select(steep, a, other))
