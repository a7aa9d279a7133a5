"""Exact functions of f64, and the length of a vector."""

from __future__ import annotations

from ....ir.build import Builder
from ....ir.dtypes import f64, i32, i64
from ....ir.nodes import BinOp, Bitcast, Cast, Expr, Select, UnOp, Var
from ....ir.ops import BinaryOp, UnaryOp
from .exponential import scaled
from .steps import INF, NAN, absolute, bits_of, fma, number, word

_FIELD = 2047 << 52


def ldexp(b: Builder, x: Var, n: Var) -> Expr:
    """m 2^(e + n), where x = m 2^e: only the last product rounds."""
    m, e = _apart(b, "ldexp", x)
    total = b.let("ldexp_n", e + Cast(i64, n))
    most = b.let("ldexp_n", BinOp(BinaryOp.MIN, BinOp(BinaryOp.MAX, total, word(-1080)), word(1030)))
    return Select(_is_plain(x), scaled(b, "ldexp", m, most), x)


def frexp_mantissa(b: Builder, x: Var) -> Expr:
    """x = found 2^e with |found| from 1/2 to 1; zero, infinities and NaN themselves."""
    m, _ = _apart(b, "frexp", x)
    return Select(_is_plain(x), m * 0.5, x)


def frexp_exponent(b: Builder, x: Var) -> Expr:
    """That e, and 0 of zero, infinities and NaN."""
    _, e = _apart(b, "frexp", x)
    return Cast(i32, Select(_is_plain(x), e + word(1), word(0)))


def nextafter(b: Builder, x: Var, y: Var) -> Expr:
    """One more or less in the bits of x."""
    bits = b.let("nextafter_i", bits_of(x))
    away = (x < y).eq(x > 0.0)
    step = Bitcast(f64, bits + Select(away, word(1), word(-1)))
    near = Select(x.eq(0.0), BinOp(BinaryOp.COPYSIGN, number(2.0**-1074), y), step)
    ordered = BinOp(BinaryOp.AND, x.eq(x), y.eq(y))
    return Select(ordered, Select(x.eq(y), y, near), number(NAN))


def hypot(b: Builder, x: Var, y: Var) -> Expr:
    """The root of a sum of squares that are neither too large nor too small, with what rounding took from it."""

    def let(stem: str, value: Expr) -> Var:
        return b.let(f"hypot_{stem}", value)

    a, other = let("a", absolute(x)), let("a", absolute(y))
    large, small = let("l", Select(other > a, other, a)), let("s", Select(other > a, a, other))
    huge, tiny = let("b", large > 2.0**500), let("b", large < 2.0**-400)
    scale = let("p", Select(huge, number(2.0**-600), Select(tiny, number(2.0**600), number(1.0))))
    u, v = let("u", large * scale), let("v", small * scale)
    square, less = let("q", u * u), let("q", v * v)
    total = let("t", square + less)
    lost = square - total + less + (fma(u, u, -square) + fma(v, v, -less))
    root = let("r", UnOp(UnaryOp.SQRT, total))
    rest = (fma(-root, root, total) + lost) / Select(root.eq(0.0), number(1.0), root + root)
    back = Select(huge, number(2.0**600), Select(tiny, number(2.0**-600), number(1.0)))
    endless = BinOp(BinaryOp.OR, a.eq(INF), other.eq(INF))
    return Select(endless, number(INF), (root + rest) * back)


def _apart(b: Builder, name: str, x: Var) -> tuple[Expr, Var]:
    """m and e with x = m 2^e and |m| from 1 to 2, of a finite x other than zero."""
    small = b.let(f"{name}_s", absolute(x) < 2.0**-1022)
    bits = b.let(f"{name}_i", bits_of(Select(small, x * 2.0**54, x)))
    bias = Select(small, word(1023 + 54), word(1023))
    e = b.let(f"{name}_e", (bits >> 52 & word(2047)) - bias)
    return Bitcast(f64, bits & word(~_FIELD) | word(1023 << 52)), e


def _is_plain(x: Var) -> Expr:
    return BinOp(BinaryOp.AND, x.ne(0.0), absolute(x) < INF)
