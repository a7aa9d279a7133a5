"""Inverse trigonometric functions of f64."""

from __future__ import annotations

from typing import NamedTuple

from ....ir.build import Builder
from ....ir.nodes import BinOp, Expr, Select, UnOp, Var
from ....ir.ops import BinaryOp, UnaryOp
from . import coefficients as c
from .steps import INF, NAN, absolute, bits_of, fma, number, polynomial, word

FAR = 0.4142
"""Quotients beyond this, about tan(pi / 8), are measured from the diagonal."""


class Arc(NamedTuple):
    """asin v = v + tail: v is x or, where |x| is `big`, sqrt((1 - |x|) / 2), whose rounding is part of the tail."""

    big: Var
    v: Var
    tail: Var


def asin(b: Builder, x: Var) -> Expr:
    """pi/2 - 2 asin v beyond 1/2."""
    big, v, tail = _arc(b, "asin", x)
    head = b.let("asin_h", fma(v, -2.0, c.HALF_PI))
    lost = fma(v, -2.0, number(c.HALF_PI) - head)
    above = head + fma(tail, -2.0, lost + c.HALF_PI_LOW)
    return BinOp(BinaryOp.COPYSIGN, Select(big, above, x + tail), x)


def acos(b: Builder, x: Var) -> Expr:
    """pi/2 - asin x; beyond 1/2 it is 2 asin v, or pi less that."""
    big, v, tail = _arc(b, "acos", x)
    head = b.let("acos_h", number(c.HALF_PI) - v)
    lost = number(c.HALF_PI) - head - v
    middle = b.let("acos_m", head + (lost + c.HALF_PI_LOW - tail))
    above = b.let("acos_a", v + tail)
    return Select(x > 0.5, above + above, Select(big, middle + middle, middle))


def _arc(b: Builder, name: str, x: Var) -> Arc:
    size = b.let(f"{name}_a", absolute(x))
    big = b.let(f"{name}_b", size > 0.5)
    square = b.let(f"{name}_s", Select(big, fma(size, -0.5, 0.5), x * x))
    v = b.let(f"{name}_v", Select(big, UnOp(UnaryOp.SQRT, square), x))
    rest = fma(-v, v, square) / Select(v.eq(0.0), number(1.0), v + v)
    w = square * polynomial(square, c.ASIN)
    return Arc(big, v, b.let(f"{name}_t", fma(v, w, Select(big, rest, number(0.0)))))


def atan(b: Builder, x: Var) -> Expr:
    """The angle of (1, |x|)."""
    size = b.let("atan_a", absolute(x))
    near = b.let("atan_a", Select(size > 2.0**100, number(2.0**100), size))
    steep = b.let("atan_b", near > 1.0)
    small = b.let("atan_y", Select(steep, number(1.0), near))
    large = b.let("atan_x", Select(steep, near, number(1.0)))
    first = Select(steep, number(2.0), number(0.0))
    sign = Select(steep, number(-1.0), number(1.0))
    return BinOp(BinaryOp.COPYSIGN, _angle(b, "atan", small, large, first, sign), x)


def atan2(b: Builder, y: Var, x: Var) -> Expr:
    """The angle of the vector from the nearest axis, and from there to its octant. Infinities and zeros stand for
    vectors along an axis or a diagonal; the others are scaled."""

    def let(stem: str, value: Expr) -> Var:
        return b.let(f"atan2_{stem}", value)

    width, height = let("a", absolute(x)), let("a", absolute(y))
    steep = let("b", height > width)
    large, small = let("x", Select(steep, height, width)), let("y", Select(steep, width, height))
    scale = let(
        "f", Select(large > 2.0**900, number(2.0**-200), Select(large < 2.0**-400, number(2.0**500), number(1.0)))
    )
    endless = let("i", large.eq(INF))
    both = Select(small.eq(INF), number(1.0), number(0.0))
    below = let("x", Select(BinOp(BinaryOp.OR, endless, large.eq(0.0)), number(1.0), large * scale))
    above = let("y", Select(endless, both, small * scale))
    back = let("n", bits_of(x) < word(0))
    first = Select(steep, number(2.0), Select(back, number(4.0), number(0.0)))
    sign = Select(steep.ne(back), number(-1.0), number(1.0))
    found = BinOp(BinaryOp.COPYSIGN, _angle(b, "atan2", above, below, first, sign), y)
    ordered = BinOp(BinaryOp.AND, x.eq(x), y.eq(y))
    return Select(ordered, found, number(NAN))


def _angle(b: Builder, name: str, small: Var, large: Var, first: Expr, sign: Expr) -> Expr:
    """first pi/4 + sign atan(small / large), for 0 <= small <= large. The angle of a quotient near 1 is that of the
    difference over the sum, pi/4 further."""

    def let(stem: str, value: Expr) -> Var:
        return b.let(f"{name}_{stem}", value)

    zero = number(0.0)
    far = let("f", small > large * FAR)
    total, difference = let("t", small + large), let("d", small - large)
    above = let("n", Select(far, difference, small))
    below = let("m", Select(far, total, large))
    above_low = Select(far, small - (difference + large), zero)
    below_low = Select(far, small - (total - large), zero)
    inverse = let("i", number(1.0) / below)
    q = let("q", above * inverse)
    q_low = (fma(-q, below, above) + fma(-q, below_low, above_low)) * inverse
    square = let("s", q * q)
    sign = let("g", sign)
    tail = let("w", sign * fma(q * square, polynomial(square, c.ATAN), q_low))
    eighths = let("e", first + Select(far, sign, zero))
    base = let("h", eighths * c.QUARTER_PI)
    base_low = fma(eighths, c.QUARTER_PI_LOW, fma(eighths, c.QUARTER_PI, -base))
    turned = let("p", sign * q)
    head = let("k", base + turned)
    return head + (turned - (head - base) + (base_low + tail))
