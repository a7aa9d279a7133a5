"""sin, cos and tan of f32, for every finite argument, and of pi times it.

x = k pi/2 + r, and r is kept as a pair of numbers, because near a multiple of pi/2 all that is left of x is what
pi/2 holds beyond 24 bits. The fast way takes pi/2 in three parts. It needs r to be clearly larger than k times the
second part, which fails for one argument in thousands, and for large ones more and more often; those, infinities and
NaN take the exact way in integers, in one `If` that vectors skip when no lane needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...ir.build import Builder
from ...ir.dtypes import f32, u32
from ...ir.nodes import BinOp, Bitcast, Cast, Expr, Lit, Select, UnOp, Var
from ...ir.ops import BinaryOp, UnaryOp
from . import coefficients as c
from .coefficients import ROUND
from .steps import absolute, fma, number, polynomial

GUARD = 3.0 * 2**-24
"""Four times the second part of pi/2: r beyond k times this leaves the first subtraction as the larger operand, so
that the error of the second can be computed exactly."""

GUARD_LIMIT = 2.0**-12
"""The largest square of k times GUARD. Up to there, |x| about 137,000, the first subtraction is exact, and k is off by
so little that r stays where the polynomials hold."""


class Reduced(NamedTuple):
    """x = quadrant * pi/2 + high + low; `square` is (high + low)^2."""

    quadrant: Var
    high: Var
    low: Var
    square: Var


def sin(b: Builder, x: Var) -> Expr:
    return Select(x.eq(0.0), x, _wave(b, "sin", _reduce(b, "sin", x), 0))


def cos(b: Builder, x: Var) -> Expr:
    return _wave(b, "cos", _reduce(b, "cos", x), 1)


def tan(b: Builder, x: Var) -> Expr:
    reduced = _reduce(b, "tan", x)
    y, turned = _slope(b, "tan", reduced)
    return Select(x.eq(0.0), x, Select(_bit(reduced.quadrant, 1), turned, y))


def sinpi(b: Builder, x: Var) -> Expr:
    """Of whole numbers it is zero of their sign."""
    value = b.let("sinpi_y", _wave(b, "sinpi", _reduce_halves(b, "sinpi", x), 0))
    return Select(value.eq(0.0), BinOp(BinaryOp.COPYSIGN, number(0.0), x), value)


def cospi(b: Builder, x: Var) -> Expr:
    """Of whole numbers and a half it is +0."""
    return _wave(b, "cospi", _reduce_halves(b, "cospi", x), 1) + 0.0


def tanpi(b: Builder, x: Var) -> Expr:
    """Of whole numbers n it is zero of the sign of n (-1)^n; of n + 1/2 infinity of the sign of (-1)^n."""
    reduced = _reduce_halves(b, "tanpi", x)
    y, turned = _slope(b, "tanpi", reduced)
    odd = _bit(reduced.quadrant, 1)
    back = b.let("tanpi_b", _bit(reduced.quadrant, 2))
    one = Select(back, number(-1.0), number(1.0))
    zero = BinOp(BinaryOp.COPYSIGN, number(0.0), Select(back, -x, x))
    edge = Select(odd, one * float("inf"), zero)
    return Select(reduced.high.eq(0.0), edge, Select(odd, turned, y))


def _slope(b: Builder, name: str, reduced: Reduced) -> tuple[Expr, Expr]:
    """tan r, and -1 / tan r for odd quadrants, where tan r has a second part for the quotient's sake."""
    _, r, low, square = reduced
    w = b.let(f"{name}_w", square * polynomial(square, c.TAN))
    tail = b.let(f"{name}_t", fma(w, r, fma(w, low, low)))
    y = b.let(f"{name}_y", r + tail)
    below = tail - (y - r)
    turned = b.let(f"{name}_v", number(-1.0) / y)
    error = fma(turned, below, fma(turned, y, 1.0))
    return y, fma(turned, error, turned)


def _wave(b: Builder, name: str, reduced: Reduced, shift: int) -> Expr:
    """sin(x + shift * pi/2)"""
    q, r, low, square = reduced
    odd = b.let(f"{name}_o", r + fma(square * polynomial(square, c.SIN), r, low))
    even = fma(square, fma(square, polynomial(square, c.COS), -0.5), 1.0)
    turned = b.let(f"{name}_q", q + shift) if shift else q
    value = b.let(f"{name}_y", Select(_bit(turned, 1), even, odd))
    return Select(_bit(turned, 2), -value, value)


def _bit(word: Expr, mask: int) -> Expr:
    return (word & mask).ne(0)


def _reduce(b: Builder, name: str, x: Var) -> Reduced:
    high_part, middle_part, low_part = c.HALF_PI_PARTS
    shifted = b.let(f"{name}_z", fma(x, c.TWO_OVER_PI_F32, ROUND))
    k = b.let(f"{name}_k", shifted - ROUND)
    first = b.let(f"{name}_f", fma(k, -high_part, x))
    high = b.let(f"{name}_r", fma(k, -middle_part, first))
    low = b.let(f"{name}_l", fma(k, -low_part, fma(k, -middle_part, first - high)))
    quadrant = b.let(f"{name}_n", Bitcast(u32, shifted))
    guard = b.let(f"{name}_g", k * GUARD)
    bound = b.let(f"{name}_c", guard * guard)
    fast = BinOp(BinaryOp.AND, bound <= high * high, bound < GUARD_LIMIT)
    with b.if_(UnOp(UnaryOp.LOGICAL_NOT, fast)):
        exact = _reduce_exactly(b, name, x)
        for var, value in zip((quadrant, high, low), exact, strict=True):
            b.assign(var, value)
    square = b.let(f"{name}_s", fma(high, high, high * (low + low)))
    return Reduced(quadrant, high, low, square)


def _reduce_halves(b: Builder, name: str, x: Var) -> Reduced:
    """pi x in quarter turns. What x is beyond whole turns, and then beyond quarters of them, is exact."""
    turn = b.let(f"{name}_x", fma(UnOp(UnaryOp.TRUNC, x * 0.5), -2.0, x))
    shifted = b.let(f"{name}_z", fma(turn, 2.0, ROUND))
    rest = b.let(f"{name}_f", fma(shifted - ROUND, -0.5, turn))
    high = b.let(f"{name}_r", rest * c.PI)
    low = b.let(f"{name}_l", fma(rest, c.PI_LOW, fma(rest, c.PI, -high)))
    square = b.let(f"{name}_s", fma(high, high, high * (low + low)))
    return Reduced(b.let(f"{name}_n", Bitcast(u32, shifted)), high, low, square)


def _reduce_exactly(b: Builder, name: str, x: Var) -> tuple[Expr, Expr, Expr]:
    """Quadrant, high and low part of x mod pi/2, for |x| >= 1/2.

    x = m 2^e with a whole m of 24 bits. Of 2/pi = 0.b1 b2 b3 ..., bits up to e - 2 give whole turns only, and 96 bits
    from there on leave an error below 2^-70 of a quarter turn; no f32 comes closer to a multiple of pi/2 than 2^-30 of
    one. The product modulo 2^96 has the quadrant in its two top bits and the fraction below them.
    """

    def let(stem: str, value: Expr) -> Var:
        return b.let(f"{name}_{stem}", value)

    zero = Lit(u32, 0)
    bits = let("i", Bitcast(u32, absolute(x)))
    mantissa = let("m", bits & 0x7FFFFF | 0x800000)
    # Bit e - 1 of 2/pi, counted from the first bit of a word of zeros before it: e = field - 150.
    place = let("p", (bits >> 23) - (150 + 1 - 31))
    words = _window(let, place)
    shift = let("h", place & 31)
    left = let("j", 31 - shift)
    a, bb, cc = (let("w", words[i] << shift | words[i + 1] >> 1 >> left) for i in range(3))
    # The low 96 bits of mantissa * (a, bb, cc).
    middle = let("d", mantissa * bb)
    mid = let("d", middle + BinOp(BinaryOp.MUL_HIGH, mantissa, cc))
    carry = Select(mid < middle, Lit(u32, 1), zero)
    top = let("d", mantissa * a + BinOp(BinaryOp.MUL_HIGH, mantissa, bb) + carry)
    bottom = let("d", mantissa * cc)
    # The fraction without the quadrant; from a half on the next multiple is nearer, and the distance is negative.
    beyond = let("e", top >> 29 & 1)
    flip = let("e", zero - beyond)
    f0 = let("e", (top << 2 | mid >> 30) ^ flip)
    f1 = let("e", (mid << 2 | bottom >> 30) ^ flip)
    f2 = bottom << 2 ^ flip
    zeros = let("u", UnOp(UnaryOp.CLZ, f0))
    rest = let("u", 31 - zeros)
    g0 = let("u", f0 << zeros | f1 >> 1 >> rest)
    g1 = f1 << zeros | f2 >> 1 >> rest
    # 24 bits and the 32 bits after them, times pi/2.
    upper = let("v", Cast(f32, g0 & 0xFFFFFF00))
    lower = Cast(f32, g0 << 24 | g1 >> 8) * 2.0**-24
    product = let("v", upper * c.HALF_PI)
    spill = fma(lower, c.HALF_PI, fma(upper, c.HALF_PI_LOW, fma(upper, c.HALF_PI, -product)))
    negative = let("v", x < 0.0)
    scale = let("v", Bitcast(f32, (127 - 32 - zeros) << 23 | (beyond ^ Select(negative, Lit(u32, 1), zero)) << 31))
    quadrant = let("q", (top >> 30) + beyond)
    # Infinity less itself is NaN, and so is NaN.
    return Select(negative, zero - quadrant, quadrant), let("v", product * scale + (x - x)), let("v", spill * scale)


def _window(let: Callable[[str, Expr], Var], place: Var) -> list[Expr]:
    """Four words of 2/pi from the one that holds bit `place` on, chosen without a table by the bits of its number."""
    words: list[Expr] = [Lit(u32, w) for w in (0, *c.TWO_OVER_PI)]
    for step, needed in (4, 7), (2, 5), (1, 4):
        ahead = let("t", _bit(place, 32 * step))
        later = words[step:] + words[-step:]  # the last ones are never taken
        words = [let("t", Select(ahead, later[i], words[i])) for i in range(needed)]
    return words
