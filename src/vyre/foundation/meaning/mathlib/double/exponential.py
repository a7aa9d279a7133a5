"""Exponentials and logarithms of f64."""

from __future__ import annotations

from ....ir.build import Builder
from ....ir.dtypes import f64
from ....ir.nodes import Bitcast, Cast, Expr, Select, Var
from . import coefficients as c
from .steps import INF, NAN, absolute, bits_of, clamp, fma, number, polynomial, power_of_two, word


def exp(b: Builder, x: Var) -> Expr:
    """e^x = 2^k e^r with k = round(x / ln 2); the first difference is exact, and the end of the range vanishes or
    overflows in the last product."""
    k, r, _ = parts(b, "exp", clamp(b, "exp", x, -746.0, 710.0))
    return scaled(b, "exp", fma(r, fma(r, polynomial(r, c.EXP), 1.0), 1.0), k)


def exp2(b: Builder, x: Var) -> Expr:
    """2^x = 2^k 2^r with k = round(x). Whole numbers are exact."""
    near = clamp(b, "exp2", x, -1076.0, 1025.0)
    shifted = b.let("exp2_z", near + c.ROUND)
    r = b.let("exp2_r", near - (shifted - c.ROUND))
    k = b.let("exp2_k", bits_of(shifted) - word(c.ROUND_BITS))
    return scaled(b, "exp2", fma(r, fma(r, polynomial(r, c.EXP2), c.LN2), 1.0), k)


def expm1(b: Builder, x: Var) -> Expr:
    """2^k e^r - 1 in halves, because 2^1024 is not an f64: (2^k r + (2^k - 1)) + 2^k (e^r - 1 - r)."""
    k, r, low = parts(b, "expm1", clamp(b, "expm1", x, -40.0, 710.0))
    half = b.let("expm1_h", power_of_two(k - word(1)))
    head = fma(half, r, half - 0.5)
    value = b.let("expm1_y", fma(half, fma(r * r, polynomial(r, c.EXP), low), head))
    return Select(absolute(x) < 2.0**-54, x, value + value)


def log(b: Builder, x: Var) -> Expr:
    """log x = k ln 2 + log(1 + f) with x = 2^k (1 + f) and 1 + f within a factor of sqrt(2) of 1."""
    k, f = split(b, "log", x)
    return log_specials(x, _log_sum(b, "log", k, f))


def log2(b: Builder, x: Var) -> Expr:
    """log2 x = k + log2(1 + f), like `log`. Powers of two are exact."""
    k, f = split(b, "log2", x)
    return log_specials(x, _scaled_log(b, "log2", f, k, (c.LOG2_E, c.LOG2_E_LOW), number(0.0)))


def log10(b: Builder, x: Var) -> Expr:
    """log10 x = k log10 2 + log10(1 + f), like `log`. Powers of ten are exact."""
    k, f = split(b, "log10", x)
    whole = b.let("log10_w", k * c.LOG10_2)
    return log_specials(x, _scaled_log(b, "log10", f, whole, (c.LOG10_E, c.LOG10_E_LOW), k * c.LOG10_2_LOW))


def log1p(b: Builder, x: Var) -> Expr:
    """log(1 + x) with 1 + x = 2^k (1 + f): k is that of the rounded sum, and f = 2^-k x + (2^-k - 1).

    4 2^-k is built, because 2^-1024 is small.
    """
    total = b.let("log1p_u", x + 1.0)
    k = b.let("log1p_k", (bits_of(total) - word(c.SQRT_HALF_BITS)) >> 52)
    shifted = Bitcast(f64, bits_of(x) - (k << 52))
    f = b.let("log1p_f", Select(k.eq(word(0)), x, shifted + fma(power_of_two(word(2) - k), 0.25, -1.0)))
    value = _log_sum(b, "log1p", b.let("log1p_e", Cast(f64, k)), f)
    return Select(x.eq(0.0), x, log_specials(total, value))


def parts(b: Builder, name: str, x: Var) -> tuple[Var, Var, Expr]:
    """k = round(x / ln 2), x - k ln 2, and what rounding took from that."""
    shifted = b.let(f"{name}_z", fma(x, c.LOG2_E, c.ROUND))
    k = b.let(f"{name}_k", shifted - c.ROUND)
    first = b.let(f"{name}_f", fma(k, -c.LN2, x))
    r = b.let(f"{name}_r", fma(k, -c.LN2_LOW, first))
    return b.let(f"{name}_n", bits_of(shifted) - word(c.ROUND_BITS)), r, fma(k, -c.LN2_LOW, first - r)


def scaled(b: Builder, name: str, value: Expr, k: Var) -> Expr:
    """2^k value in two factors, because neither 2^1024 nor 2^-1074 is normal; only the second product rounds."""
    half = b.let(f"{name}_h", k >> 1)
    return value * power_of_two(half) * power_of_two(k - half)


def split(b: Builder, name: str, x: Var) -> tuple[Var, Var]:
    """k and f with x = 2^k (1 + f)."""
    small = b.let(f"{name}_t", x < 2.0**-1022)
    bits = b.let(f"{name}_i", bits_of(Select(small, x * 2.0**54, x)))
    k = b.let(f"{name}_k", (bits - word(c.SQRT_HALF_BITS)) >> 52)
    f = b.let(f"{name}_f", Bitcast(f64, bits - (k << 52)) - 1.0)
    return b.let(f"{name}_e", Cast(f64, k) - Select(small, number(54.0), number(0.0))), f


def _tail(b: Builder, name: str, f: Var) -> tuple[Var, Var, Expr]:
    """f^2 / 2, s and w with log(1 + f) = f - (f^2 / 2 - s w): s = f / (2 + f), and log(1 + f) is 2 s + s^3 P(s^2)."""
    s = b.let(f"{name}_s", f / (f + 2.0))
    square = b.let(f"{name}_q", s * s)
    half = b.let(f"{name}_h", f * 0.5 * f)
    return half, s, fma(square, polynomial(square, c.LOG), half)


def _log_sum(b: Builder, name: str, k: Var, f: Var) -> Expr:
    """k ln 2 + log(1 + f)."""
    half, s, w = _tail(b, name, f)
    tail = fma(s, w, k * c.LN2_REST)
    return fma(k, c.LN2_SHORT, f - (half - tail))


def _scaled_log(b: Builder, name: str, f: Var, whole: Var, factor: tuple[float, float], rest: Expr) -> Expr:
    """whole + rest + factor log(1 + f), where `whole` is exact and larger than what follows, or zero."""
    high, low = factor
    half, s, w = _tail(b, name, f)
    product = b.let(f"{name}_p", f * high)
    tail = fma(fma(s, w, -half), high, fma(f, low, fma(f, high, -product)))
    total = b.let(f"{name}_y", whole + product)
    return total + (product - (total - whole) + (rest + tail))


def log_specials(x: Expr, value: Expr) -> Expr:
    """-infinity of 0, NaN of less and of NaN, infinity of infinity."""
    beyond = Select(x.eq(0.0), number(-INF), number(NAN))
    return Select(x > 0.0, Select(x < INF, value, number(INF)), beyond)
