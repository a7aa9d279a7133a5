"""x^y of f32: 2^(y log2 |x|), where the logarithm and the product have two parts each."""

from __future__ import annotations

from ...ir.build import Builder
from ...ir.dtypes import f32, i32
from ...ir.nodes import BinOp, Bitcast, Cast, Expr, Select, UnOp, Var
from ...ir.ops import BinaryOp, UnaryOp
from . import coefficients as c
from .coefficients import ROUND
from .elementary import ONE, clamp
from .steps import absolute, fma, number, polynomial

INF = float("inf")


def pow(b: Builder, x: Var, y: Var) -> Expr:
    size = b.let("pow_a", absolute(x))
    high, low = _log2(b, size)
    product = b.let("pow_t", y * high)
    near = clamp(b, "pow", product, -127.0, 129.0)
    rest = Select(near.eq(product), fma(y, low, fma(y, high, -product)), number(0.0))
    shifted = b.let("pow_z", near + (ROUND + ONE))
    r = b.let("pow_r", near - (shifted - (ROUND + ONE)) + rest)
    # 2^k in two factors, because neither 2^128 nor 2^-127 is an f32.
    word = b.let("pow_i", Bitcast(i32, shifted) - c.ROUND_BITS)
    half = b.let("pow_i", word >> 1)
    found = (
        fma(r, polynomial(r, c.EXP2), 1.0) * Bitcast(f32, (half + 64) << 23) * Bitcast(f32, (word - half + 63) << 23)
    )
    value = b.let("pow_v", Select(size.eq(1.0), number(1.0), found))
    # The sign of a negative x stays where y is odd, and only whole y are powers of a finite one.
    even = b.let("pow_h", UnOp(UnaryOp.TRUNC, y * 0.5))
    whole = b.let("pow_w", UnOp(UnaryOp.TRUNC, y).eq(y))
    odd = BinOp(BinaryOp.AND, whole, (even + even).ne(y))
    turned = BinOp(BinaryOp.AND, odd, Bitcast(i32, x) < 0)
    real = BinOp(BinaryOp.OR, whole, BinOp(BinaryOp.OR, x >= 0.0, size.eq(INF)))
    signed = Select(turned, -value, Select(real, value, number(float("nan"))))
    return Select(BinOp(BinaryOp.OR, y.eq(0.0), x.eq(1.0)), number(1.0), signed)


def _log2(b: Builder, x: Var) -> tuple[Var, Expr]:
    """log2 x in two parts, with 34 bits or more; infinite ones of 0 and infinity, and NaN of NaN.

    x = 2^k m / p, where p is 5/4, 1 or 3/4, so that p m = 1 + f is near 1 and exact. With s = f / (2 + f) in two parts,
    log2(1 + f) is (2 / ln 2) s + s^3 P(s^2). The high part of log2 p is so short that its sum with k is exact.
    """

    def let(stem: str, value: Expr) -> Var:
        return b.let(f"pow_{stem}", value)

    bits = let("i", Bitcast(i32, x))
    k = let("k", (bits - c.SQRT_HALF_BITS) >> 23)
    m = let("m", Bitcast(f32, bits - (k << 23)))
    below, above = let("b", m < c.POW_BELOW), let("b", m > c.POW_ABOVE)

    def chosen(first: float, middle: float, last: float) -> Expr:
        return Select(below, number(first), Select(above, number(last), number(middle)))

    f = let("f", fma(m, chosen(1.25, 1.0, 0.75), -1.0))
    whole = let("k", Cast(f32, k) - chosen(c.LOG2_5_4[0], 0.0, c.LOG2_3_4[0]))
    divisor = let("d", f + 2.0)
    inverse = let("r", number(1.0) / divisor)
    s = let("s", f * inverse)
    s_low = fma(-s, f - (divisor - 2.0), fma(-s, divisor, f)) * inverse
    square = let("q", s * s)
    head = let("h", s * c.LOG2_E2)
    tail = fma(s, c.LOG2_E2_LOW, fma(s, c.LOG2_E2, -head))
    tail = fma(s_low, c.LOG2_E2, fma(s * square, polynomial(square, c.POW), tail))
    first = let("h", whole + head)
    rest = let("l", (head - (first - whole)) + (tail - chosen(c.LOG2_5_4[1], 0.0, c.LOG2_3_4[1])))
    high = let("h", first + rest)
    low = rest - (high - first)
    return let("h", Select(x.eq(0.0), number(-INF), Select(x < INF, high, x))), low
