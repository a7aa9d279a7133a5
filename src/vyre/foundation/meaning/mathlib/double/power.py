"""x^y and the cube root of f64."""

from __future__ import annotations

from ....ir.build import Builder
from ....ir.dtypes import f64, u64
from ....ir.nodes import BinOp, Bitcast, Cast, Expr, Select, UnOp, Var, lit
from ....ir.ops import BinaryOp, UnaryOp
from . import coefficients as c
from .exponential import scaled
from .steps import INF, NAN, absolute, bits_of, clamp, fma, number, polynomial, word


def cbrt(b: Builder, x: Var) -> Expr:
    """a r^2 with r = a^(-1/3), which begins with a third of the exponent and takes two steps of Newton's kind; then a
    third of what the cube of that lacks, over its square. Small numbers are scaled."""
    size = b.let("cbrt_a", absolute(x))
    small = b.let("cbrt_b", size < 2.0**-900)
    a = b.let("cbrt_a", Select(small, size * 2.0**300, size))
    third = Bitcast(u64, a) // lit(3, u64)
    r = b.let("cbrt_r", Bitcast(f64, lit(c.INVERSE_CBRT_BITS, u64) - third))
    for _ in range(2):
        e = b.let("cbrt_e", fma(-a * r, r * r, 1.0))
        r = b.let("cbrt_r", fma(r * e, polynomial(e, c.CBRT), r))
    t = b.let("cbrt_t", a * r * r)
    square = b.let("cbrt_s", t * t)
    lacking = fma(-square, t, a) - fma(t, t, -square) * t
    value = b.let("cbrt_y", fma(lacking * r, r * (1 / 3), t))
    signed = BinOp(BinaryOp.COPYSIGN, Select(small, value * 2.0**-100, value), x)
    return Select(BinOp(BinaryOp.AND, size > 0.0, size < INF), signed, x)


def pow(b: Builder, x: Var, y: Var) -> Expr:
    """2^(y log2 |x|), where the logarithm and the product have two parts each."""
    size = b.let("pow_a", absolute(x))
    high, low = _log2(b, size)
    product = b.let("pow_t", y * high)
    near = clamp(b, "pow", product, -1080.0, 1030.0)
    rest = Select(near.eq(product), fma(y, low, fma(y, high, -product)), number(0.0))
    shifted = b.let("pow_z", near + c.ROUND)
    r = b.let("pow_r", near - (shifted - c.ROUND) + rest)
    k = b.let("pow_k", bits_of(shifted) - word(c.ROUND_BITS))
    found = scaled(b, "pow", fma(r, fma(r, polynomial(r, c.EXP2), c.LN2), 1.0), k)
    value = b.let("pow_v", Select(size.eq(1.0), number(1.0), found))
    # The sign of a negative x stays where y is odd, and only whole y are powers of a finite one.
    even = b.let("pow_h", UnOp(UnaryOp.TRUNC, y * 0.5))
    whole = b.let("pow_w", UnOp(UnaryOp.TRUNC, y).eq(y))
    odd = BinOp(BinaryOp.AND, whole, (even + even).ne(y))
    turned = BinOp(BinaryOp.AND, odd, bits_of(x) < word(0))
    real = BinOp(BinaryOp.OR, whole, BinOp(BinaryOp.OR, x >= 0.0, size.eq(INF)))
    signed = Select(turned, -value, Select(real, value, number(NAN)))
    return Select(BinOp(BinaryOp.OR, y.eq(0.0), x.eq(1.0)), number(1.0), signed)


def _log2(b: Builder, x: Var) -> tuple[Var, Expr]:
    """log2 x in two parts, with 65 bits or more; infinite ones of 0 and infinity, and NaN of NaN.

    x = 2^k m / p, where p is 5/4, 1 or 3/4, so that p m = 1 + f is near 1. With s = f / (2 + f) in two parts,
    log2(1 + f) is (2 / ln 2) (s + s^3 / 3) + s^5 P(s^2), of which the first two terms have two parts. The high part of
    log2 p is so short that its sum with k is exact.
    """

    def let(stem: str, value: Expr) -> Var:
        return b.let(f"pow_{stem}", value)

    small = let("b", x < 2.0**-1022)
    bits = let("i", bits_of(Select(small, x * 2.0**54, x)))
    k = let("k", (bits - word(c.SQRT_HALF_BITS)) >> 52)
    m = let("m", Bitcast(f64, bits - (k << 52)))
    below, above = let("b", m < c.POW_BELOW), let("b", m > c.POW_ABOVE)

    def chosen(first: float, middle: float, last: float) -> Expr:
        return Select(below, number(first), Select(above, number(last), number(middle)))

    factor = let("p", chosen(1.25, 1.0, 0.75))
    near = let("f", m * factor)
    f = let("f", near - 1.0)
    whole = let(
        "k", Cast(f64, k) - Select(small, number(54.0), number(0.0)) - chosen(c.LOG2_5_4[0], 0.0, c.LOG2_3_4[0])
    )
    divisor = let("d", f + 2.0)
    inverse = let("r", number(1.0) / divisor)
    f_low = let("l", fma(m, factor, -near))
    s = let("s", f * inverse)
    divisor_low = f - (divisor - 2.0) + f_low
    s_low = let("s", (fma(-s, divisor, f) + fma(-s, divisor_low, f_low)) * inverse)
    square = let("q", s * s)
    square_low = let("q", fma(s, s, -square) + (s + s) * s_low)
    cube = let("c", square * s)
    cube_low = fma(square, s, -cube) + fma(square, s_low, square_low * s)
    third = let("t", cube * c.LOG2_E_TWO_THIRDS)
    third_low = fma(cube, c.LOG2_E_TWO_THIRDS_LOW, fma(cube, c.LOG2_E_TWO_THIRDS, -third))
    third_low = fma(cube_low, c.LOG2_E_TWO_THIRDS, third_low)
    rest = fma(cube * square, polynomial(square, c.POW), third_low)
    head = let("h", s * (2 * c.LOG2_E))
    head_low = fma(s_low, 2 * c.LOG2_E, fma(s, 2 * c.LOG2_E_LOW, fma(s, 2 * c.LOG2_E, -head)))
    both = let("h", head + third)
    sum_low = third - (both - head) + (head_low + rest)
    first = let("h", whole + both)
    tail = let("l", (both - (first - whole)) + (sum_low - chosen(c.LOG2_5_4[1], 0.0, c.LOG2_3_4[1])))
    high = let("h", first + tail)
    low = tail - (high - first)
    return let("h", Select(x.eq(0.0), number(-INF), Select(x < INF, high, x))), low
