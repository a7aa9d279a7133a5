"""Functions of f32 whose results are exact, in integers: remainders, exponents, neighbours."""

from __future__ import annotations

from ...ir.build import Builder
from ...ir.dtypes import f32, i32, u32
from ...ir.nodes import BinOp, Bitcast, Cast, Expr, Lit, Select, Var, lit
from ...ir.ops import BinaryOp
from .steps import absolute, number

INF = float("inf")
FRACTION, LEADING = 0x7FFFFF, 0x800000
AT_ONCE = 7
"""Bits of a quotient that one division of words finds: what is left of 25 bits is shifted by as many."""

MOST_TURNS = -(-255 // AT_ONCE)


def fmod(b: Builder, x: Var, y: Var) -> Expr:
    """x less the multiple of y that is nearest towards zero."""
    return _remainder(b, "fmod", x, y, nearest=False)


def remainder(b: Builder, x: Var, y: Var) -> Expr:
    """x less the nearest multiple of y, the even one of two."""
    return _remainder(b, "remainder", x, y, nearest=True)


def _remainder(b: Builder, name: str, x: Var, y: Var, nearest: bool) -> Expr:
    """|x| is r 2^n and |y| is m, both in half units of the last place of y; long division by few bits at a time."""

    def let(stem: str, value: Expr) -> Var:
        return b.let(f"{name}_{stem}", value)

    size, divisor = let("a", absolute(x)), let("a", absolute(y))
    bits, word = let("i", Bitcast(u32, size)), let("i", Bitcast(u32, divisor))
    field = let("e", word >> 23)
    n = let("n", Cast(i32, bits >> 23) - Cast(i32, field) + 1)
    m = let("m", (word & FRACTION | LEADING) << 1)
    r = let("r", bits & FRACTION | LEADING)
    q = let("q", Lit(u32, 0)) if nearest else None
    kept = let("k", BinOp(BinaryOp.OR, n < 0, BinOp(BinaryOp.OR, size.eq(0.0), divisor.eq(INF))))
    more = let("g", n > 0)
    with b.loop(f"{name}_t", 0, MOST_TURNS), b.if_(more):
        step = let("s", BinOp(BinaryOp.MIN, n, lit(AT_ONCE, i32)))
        shifted = let("r", r << Cast(u32, step))
        if q is not None:
            b.assign(q, shifted // m)
        b.assign(r, shifted % m)
        b.assign(n, n - step)
        b.assign(more, n > 0)
    beyond = None
    if q is not None:
        double = let("d", r << 1)
        beyond = let("b", BinOp(BinaryOp.OR, double > m, BinOp(BinaryOp.AND, double.eq(m), (q & 1).eq(1))))
        r = let("r", Select(beyond, m - r, r))
    # r has at most 24 bits, so that it is exact as an f32; then its exponent becomes that of the result.
    found = let("f", Bitcast(u32, Cast(f32, r)))
    tiny = BinOp(BinaryOp.OR, r.eq(0), (found >> 23) + field <= 151)
    value = Select(tiny, number(0.0), Bitcast(f32, found + ((field - 151) << 23)))
    signed = let("v", BinOp(BinaryOp.COPYSIGN, value, x))
    result: Expr = signed if beyond is None else Select(beyond, -signed, signed)
    defined = BinOp(BinaryOp.AND, size < INF, divisor > 0.0)
    return Select(defined, Select(kept, x, result), number(float("nan")))


def ldexp(b: Builder, x: Var, n: Var) -> Expr:
    """x 2^n, by the exponent field alone: zero where it would be below 1, infinity where it would be above 254."""
    bits = b.let("ldexp_i", Bitcast(i32, x))
    more = b.let("ldexp_n", BinOp(BinaryOp.MAX, BinOp(BinaryOp.MIN, n, lit(512, i32)), lit(-512, i32)))
    field = b.let("ldexp_e", (bits >> 23 & 255) + more)
    edge = BinOp(BinaryOp.COPYSIGN, Select(field > 0, number(INF), number(0.0)), x)
    inside = BinOp(BinaryOp.AND, field > 0, field < 255)
    scaled = Select(inside, Bitcast(f32, bits + (more << 23)), edge)
    size = b.let("ldexp_a", absolute(x))
    return Select(BinOp(BinaryOp.AND, size > 0.0, size < INF), scaled, x)


def frexp_mantissa(b: Builder, x: Var) -> Expr:
    """x 2^-e for the e that puts it between 1/2 and 1."""
    scaled = Bitcast(f32, Bitcast(u32, x) & 0x807FFFFF | 126 << 23)
    size = b.let("frexp_a", absolute(x))
    return Select(BinOp(BinaryOp.AND, size > 0.0, size < INF), scaled, x)


def frexp_exponent(b: Builder, x: Var) -> Expr:
    """That e, and 0 of zero, infinities and NaN."""
    field = b.let("frexp_e", Bitcast(i32, x) >> 23 & 255)
    normal = BinOp(BinaryOp.AND, field > 0, field < 255)
    return Select(normal, field - 126, lit(0, i32))


def nextafter(b: Builder, x: Var, y: Var) -> Expr:
    """One more or less in the bits of x; below 2^-126 comes 0."""
    bits = b.let("nextafter_i", Bitcast(i32, x))
    away = (x < y).eq(x > 0.0)
    step = Bitcast(f32, bits + Select(away, lit(1, i32), lit(-1, i32)))
    near = Select(x.eq(0.0), BinOp(BinaryOp.COPYSIGN, number(2.0**-126), y), step)
    ordered = BinOp(BinaryOp.AND, x.eq(x), y.eq(y))
    return Select(ordered, Select(x.eq(y), y, near), number(float("nan")))
