"""Exponentials, logarithms, hyperbolic and inverse trigonometric functions of f32.

Each function takes a builder and the argument as a local, appends statements, and returns the result as an expression.
They are made for vectors: no table, no branch, few operations. NaN flows through to the result by arithmetic alone
wherever it can: a clamp is written `select(x > limit, limit, x)`, which keeps NaN and is one machine instruction.
"""

from __future__ import annotations

from typing import NamedTuple

from ...ir.build import Builder
from ...ir.dtypes import f32, i32, u32
from ...ir.nodes import BinOp, Bitcast, Cast, Expr, Select, Var, lit
from ...ir.ops import BinaryOp
from . import coefficients as c
from .coefficients import ROUND
from .steps import absolute, fma, number, polynomial, square_root

ONE = 127  # the exponent field of 1.0


def exp(b: Builder, x: Var) -> Expr:
    """e^x = 2^k e^r with k = round(x / ln 2) and |r| <= ln(2) / 2.

    k stops at 127, because 2^128 is not an f32: the polynomial holds up to r = 0.7, so that the product overflows where
    the function does. 2^-127 is built as zero, and products below 2^-126 flush by themselves.
    """
    scale, r = _exp_parts(b, "exp", x)
    power = b.let("exp_p", fma(r, fma(r, polynomial(r, c.EXP), 1.0), 1.0))
    return power * scale


def exp2(b: Builder, x: Var) -> Expr:
    """2^x = 2^k 2^r with k = round(x), like `exp`. Whole numbers are exact."""
    near = clamp(b, "exp2", x, -127.0, 129.0)
    shifted = b.let("exp2_z", near + (ROUND + ONE))
    shifted = b.let("exp2_z", Select(shifted > ROUND + ONE + 127, number(ROUND + ONE + 127), shifted))
    r = b.let("exp2_r", near - (shifted - (ROUND + ONE)))
    return fma(r, polynomial(r, c.EXP2), 1.0) * power_of_two(shifted)


def log(b: Builder, x: Var) -> Expr:
    """log x = k ln 2 + log(1 + f) with x = 2^k (1 + f) and 1 + f within a factor of sqrt(2) of 1."""
    k, f = split(b, "log", x)
    return _log_specials(x, _log_sum(b, "log", k, f))


def log2(b: Builder, x: Var) -> Expr:
    """log2 x = k + log2(1 + f), like `log`. Powers of two are exact."""
    k, f = split(b, "log2", x)
    tail = f * fma(f, polynomial(f, c.LOG2), c.LOG2_E_LOW)
    return _log_specials(x, k + fma(f, c.LOG2_E, tail))


def log1p(b: Builder, x: Var) -> Expr:
    """log(1 + x) with 1 + x = 2^k (1 + f): k is that of the rounded sum, and f = 2^-k x + (2^-k - 1) is exact.

    4 2^-k is built, because 2^-128 is not an f32.
    """
    total = b.let("log1p_u", x + 1.0)
    k = b.let("log1p_k", (Bitcast(i32, total) - c.SQRT_HALF_BITS) >> 23)
    scaled = Bitcast(f32, Bitcast(i32, x) - (k << 23))
    f = b.let("log1p_f", scaled + fma(Bitcast(f32, (ONE + 2 - k) << 23), 0.25, -1.0))
    value = _log_sum(b, "log1p", b.let("log1p_e", Cast(f32, k)), f)
    return Select(x.eq(0.0), x, _log_specials(total, value))


def log10(b: Builder, x: Var) -> Expr:
    """log10 x = k log10 2 + log10(1 + f), like `log`."""
    k, f = split(b, "log10", x)
    tail = fma(k, c.LOG10_2_LOW, f * fma(f, polynomial(f, c.LOG10), c.LOG10_E_LOW))
    return _log_specials(x, fma(k, c.LOG10_2, fma(f, c.LOG10_E, tail)))


def expm1(b: Builder, x: Var) -> Expr:
    """2^k e^r - 1 = (2^k r + (2^k - 1)) + 2^k (e^r - 1 - r), k and r as in `exp`."""
    scale, r = _exp_parts(b, "expm1", x)
    scale = b.let("expm1_s", scale)
    head = fma(scale, r, scale - 1.0)
    return Select(x.eq(0.0), x, fma(scale, r * r * polynomial(r, c.EXP), head))


def exp10(b: Builder, x: Var) -> Expr:
    """10^x = 2^k 10^r with k = round(x log2 10), like `exp`."""
    near = clamp(b, "exp10", x, -38.0, 38.54)
    shifted = b.let("exp10_z", fma(near, c.LOG2_10, ROUND + ONE))
    shifted = b.let("exp10_z", Select(shifted > ROUND + ONE + 127, number(ROUND + ONE + 127), shifted))
    k = b.let("exp10_k", shifted - (ROUND + ONE))
    r = b.let("exp10_r", fma(k, -c.LOG10_2_LOW, fma(k, -c.LOG10_2, near)))
    return fma(r, polynomial(r, c.EXP10), 1.0) * power_of_two(shifted)


def cbrt(b: Builder, x: Var) -> Expr:
    """a r^2 with r = a^(-1/3), which begins with a third of the exponent and takes two steps of Newton's kind.

    What the product lacks is a third of a - t^3 over t^2. Small numbers are scaled, so that this is not tiny.
    """
    size = b.let("cbrt_a", absolute(x))
    small = b.let("cbrt_b", size < 2.0**-60)
    a = b.let("cbrt_a", Select(small, size * 2.0**60, size))
    third = BinOp(BinaryOp.MUL_HIGH, Bitcast(u32, a), lit(0x55555556, u32))
    r = b.let("cbrt_r", Bitcast(f32, lit(c.INVERSE_CBRT_BITS, u32) - third))
    for terms in (c.CBRT, c.CBRT[:1]):
        e = b.let("cbrt_e", fma(-a * r, r * r, 1.0))
        r = b.let("cbrt_r", fma(r * e, polynomial(e, terms), r))
    square = b.let("cbrt_s", r * r)
    t = b.let("cbrt_t", a * square)
    lacking = fma(-t * t, t, a) * c.CBRT[0]
    value = b.let("cbrt_y", fma(lacking, square, t))
    value = b.let("cbrt_y", Select(small, value * 2.0**-20, value))
    signed = Select(x < 0.0, -value, value)
    return Select(BinOp(BinaryOp.AND, size > 0.0, size < number(float("inf"))), signed, x)


def sinh(b: Builder, x: Var) -> Expr:
    """sinh(k ln 2 + r) from sinh r and cosh r - 1: never a difference of two near numbers, never a quotient."""
    h = _hyperbolic(b, "sinh", x, 1.0)  # k = 0 up to there, for the sake of relative precision
    lost = h.rise - h.difference - h.fall
    tail = fma(h.sum, h.r, fma(h.sum, h.odd, fma(h.difference, h.even, lost)))
    value = b.let("sinh_y", h.difference + tail)
    return Select(x.eq(0.0), x, Select(x < 0.0, -value, value))


def cosh(b: Builder, x: Var) -> Expr:
    h = _hyperbolic(b, "cosh", x)
    return h.rise + (h.fall + fma(h.difference, h.r, fma(h.difference, h.odd, h.sum * h.even)))


def tanh(b: Builder, x: Var) -> Expr:
    """A polynomial up to 0.8, then 1 - 2 / (e^2x + 1), where the quotient is small enough for its error to vanish."""
    size = b.let("tanh_a", absolute(x))
    double = b.let("tanh_d", Select(size > 10.0, number(20.0), size + size))
    power = exp(b, double)
    large = b.let("tanh_y", number(-2.0) / (power + 1.0) + 1.0)
    square = b.let("tanh_s", x * x)
    small = fma(x, square * polynomial(square, c.TANH), x)
    signed = Select(x < 0.0, -large, large)
    return Select(x.eq(0.0), x, Select(size > 0.8, signed, small))


def asin(b: Builder, x: Var) -> Expr:
    big, z, w, low = _arc(b, "asin", x)
    tail = b.let("asin_t", fma(z, w, low))
    head = b.let("asin_h", fma(z, -2.0, c.HALF_PI))
    lost = fma(z, -2.0, number(c.HALF_PI) - head)
    above = b.let("asin_y", head + fma(tail, -2.0, lost + c.HALF_PI_LOW))
    return Select(big, Select(x < 0.0, -above, above), fma(x, w, x))


def acos(b: Builder, x: Var) -> Expr:
    big, z, w, low = _arc(b, "acos", x)
    v = b.let("acos_v", Select(big, z, x))
    tail = b.let("acos_t", fma(v, w, Select(big, low, number(0.0))))
    head = b.let("acos_h", number(c.HALF_PI) - v)
    lost = number(c.HALF_PI) - head - v
    middle = b.let("acos_y", head + (lost + c.HALF_PI_LOW - tail))
    above = b.let("acos_z", z + tail)
    return Select(x > 0.5, above + above, Select(big, middle + middle, middle))


def atan(b: Builder, x: Var) -> Expr:
    """A polynomial up to 1; pi/2 - atan(1 / x) beyond, with what rounding took from the quotient."""
    near = clamp(b, "atan", x, -(2.0**30), 2.0**30)
    big = b.let("atan_b", absolute(x) > 1.0)
    y = b.let("atan_y", Select(big, number(1.0) / near, x))
    square = b.let("atan_s", y * y)
    tail = b.let("atan_t", y * (square * polynomial(square, c.ATAN)))
    left = b.let("atan_n", x < 0.0)
    quarter = b.let("atan_q", Select(left, number(-c.HALF_PI), number(c.HALF_PI)))
    quarter_low = Select(left, number(-c.HALF_PI_LOW), number(c.HALF_PI_LOW))
    head = b.let("atan_h", quarter - y)
    lost = fma(fma(-y, near, 1.0), y, tail)
    above = head + (quarter - head - y + (quarter_low - lost))
    return Select(x.eq(0.0), x, Select(big, above, y + tail))


# ---- shared steps ---------------------------------------------------------------------------------------------------


def clamp(b: Builder, name: str, x: Var, low: float, high: float) -> Var:
    """`x` between two limits; NaN stays."""
    below = b.let(f"{name}_x", Select(x > high, number(high), x))
    return b.let(f"{name}_x", Select(below < low, number(low), below))


def power_of_two(shifted: Var) -> Expr:
    """2^k of a sum whose low bits hold k + 127."""
    return Bitcast(f32, Bitcast(u32, shifted) << 23)


def _exp_parts(b: Builder, name: str, x: Var) -> tuple[Expr, Var]:
    """2^k and r with x = k ln 2 + r."""
    near = clamp(b, name, x, -88.0, 88.73)
    shifted = b.let(f"{name}_z", fma(near, c.LOG2_E, ROUND + ONE))
    shifted = b.let(f"{name}_z", Select(shifted > ROUND + ONE + 127, number(ROUND + ONE + 127), shifted))
    k = b.let(f"{name}_k", shifted - (ROUND + ONE))
    r = b.let(f"{name}_r", fma(k, -c.LN2_LOW, fma(k, -c.LN2_HIGH, near)))
    return power_of_two(shifted), r


def _log_sum(b: Builder, name: str, k: Expr, f: Var) -> Expr:
    """k ln 2 + log(1 + f)."""
    square = b.let(f"{name}_s", f * f)
    tail = fma(square, -0.5, f * square * polynomial(f, c.LOG))
    tail = fma(k, c.LN2_LOW, tail)
    return fma(k, c.LN2_HIGH, f + tail)


def split(b: Builder, name: str, x: Var) -> tuple[Var, Var]:
    """k and f with x = 2^k (1 + f), sqrt(1/2) <= 1 + f < sqrt(2). Any x that is not positive gives some finite pair."""
    bits = b.let(f"{name}_i", Bitcast(i32, x))
    k = b.let(f"{name}_k", (bits - c.SQRT_HALF_BITS) >> 23)
    f = b.let(f"{name}_f", Bitcast(f32, bits - (k << 23)) - 1.0)
    return b.let(f"{name}_e", Cast(f32, k)), f


def _log_specials(x: Var, value: Expr) -> Expr:
    """Infinity and NaN are their own logarithm, that of zero is minus infinity, and below there is none."""
    finite = Select(x < number(float("inf")), value, x)
    return Select(x > 0.0, finite, Select(x.eq(0.0), number(float("-inf")), number(float("nan"))))


class Hyperbolic(NamedTuple):
    """|x| = k ln 2 + r; `rise` is 2^(k-1), `fall` 2^(-k-1), `even` cosh r - 1, and r + `odd` is sinh r."""

    rise: Var
    fall: Var
    sum: Var
    difference: Var
    r: Var
    even: Var
    odd: Var


def _hyperbolic(b: Builder, name: str, x: Var, small: float = 0.0) -> Hyperbolic:
    """k is 0 below `small`, and at most 128, so that r may reach 1."""
    size = b.let(f"{name}_a", absolute(x))
    near = b.let(f"{name}_a", Select(size > 90.0, number(90.0), size))
    bias = ROUND + ONE - 1
    whole = b.let(f"{name}_z", fma(near, c.LOG2_E, bias))
    if small:
        whole = b.let(f"{name}_z", Select(near < small, number(bias), whole))
    whole = b.let(f"{name}_z", Select(whole > bias + 128, number(bias + 128), whole))
    k = b.let(f"{name}_k", whole - bias)
    first = b.let(f"{name}_f", fma(k, -c.LN2_HIGH, near))
    r = b.let(f"{name}_r", fma(k, -c.LN2_LOW, first))
    low = fma(k, -c.LN2_LOW, first - r)
    # Exponent fields 126 + k and 126 - k; what would be below zero is a number too small to matter.
    word = b.let(f"{name}_i", Bitcast(i32, whole))
    rise = b.let(f"{name}_u", Bitcast(f32, word << 23))
    fall = b.let(f"{name}_d", Bitcast(f32, BinOp(BinaryOp.MAX, c.ROUND_BITS + 2 * (ONE - 1) - word, lit(0, i32)) << 23))
    square = b.let(f"{name}_s", r * r)
    even = b.let(f"{name}_c", square * polynomial(square, c.COSH))
    odd = b.let(f"{name}_h", fma(r * square, polynomial(square, c.SINH), low))
    return Hyperbolic(rise, fall, b.let(f"{name}_p", rise + fall), b.let(f"{name}_m", rise - fall), r, even, odd)


def _arc(b: Builder, name: str, x: Var) -> tuple[Var, Var, Var, Var]:
    """Whether |x| > 1/2; then z = sqrt((1 - |x|) / 2) with what rounding took from it, else |x| and 0; and w with
    asin z = z + z w. Beyond 1 the root is NaN."""
    size = b.let(f"{name}_a", absolute(x))
    big = b.let(f"{name}_b", size > 0.5)
    square = b.let(f"{name}_s", Select(big, fma(size, -0.5, 0.5), x * x))
    root = b.let(f"{name}_r", square_root(square))
    z = b.let(f"{name}_z", Select(big, root, size))
    low = fma(-root, root, square) / fma(root, 2.0, 2.0**-100)
    w = b.let(f"{name}_w", square * polynomial(square, c.ASIN))
    return big, z, w, b.let(f"{name}_l", low)
