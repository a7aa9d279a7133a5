"""sin, cos and tan of f64, for every finite argument, by the method of those of f32 (`trig`): x = k pi/2 + r, with r in
two parts; what the fast way cannot do goes to integers, in a branch of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ....ir.build import Builder
from ....ir.dtypes import f64, u32, u64
from ....ir.nodes import BinOp, Bitcast, Cast, Expr, Lit, Select, UnOp, Var, lit
from ....ir.ops import BinaryOp, UnaryOp
from . import coefficients as c
from .steps import absolute, fma, number, polynomial

GUARD = 5.0 * 2**-54
"""More than four times the second part of pi/2."""
GUARD_LIMIT = 2.0**-43
"""The largest square of k times GUARD: |x| about 1.7e9."""
_WORD = (1 << 32) - 1


class Reduced(NamedTuple):
    """x = quadrant * pi/2 + high + low."""

    quadrant: Var
    high: Var
    low: Var


def sin(b: Builder, x: Var) -> Expr:
    return Select(x.eq(0.0), x, _wave(b, "sin", _reduce(b, "sin", x), 0))


def cos(b: Builder, x: Var) -> Expr:
    return _wave(b, "cos", _reduce(b, "cos", x), 1)


def tan(b: Builder, x: Var) -> Expr:
    """The quotient of sine and cosine in two parts each, upside down in odd quadrants."""
    quadrant, r, low = _reduce(b, "tan", x)

    def let(stem: str, value: Expr) -> Var:
        return b.let(f"tan_{stem}", value)

    square = let("s", r * r)
    square_low = let("l", fma(r, r, -square) + (r + r) * low)
    tail = let("t", fma(square * polynomial(square, c.SIN), r, low * fma(square, -0.5, 1.0)))
    sine = let("y", r + tail)
    sine_low = let("w", tail - (sine - r))
    half = let("h", square * 0.5)
    near = let("c", number(1.0) - half)
    lost = number(1.0) - near - half
    rest = let("e", lost + fma(square_low, -0.5, square * square * polynomial(square, c.COS)))
    cosine = let("c", near + rest)
    cosine_low = let("d", rest - (cosine - near))
    odd = let("o", _bit(quadrant, 1))
    above, above_low = let("a", Select(odd, -cosine, sine)), Select(odd, -cosine_low, sine_low)
    below, below_low = let("b", Select(odd, sine, cosine)), Select(odd, sine_low, cosine_low)
    inverse = let("i", number(1.0) / below)
    found = let("q", above * inverse)
    lacking = fma(-found, below, above) + fma(-found, below_low, above_low)
    return Select(x.eq(0.0), x, fma(lacking, inverse, found))


def _wave(b: Builder, name: str, reduced: Reduced, shift: int) -> Expr:
    """sin(x + shift * pi/2)"""
    quadrant, r, low = reduced
    square = b.let(f"{name}_s", fma(r, r, r * (low + low)))
    odd = b.let(f"{name}_o", r + fma(square * polynomial(square, c.SIN), r, low))
    even = fma(square, fma(square, polynomial(square, c.COS), -0.5), 1.0)
    turned = b.let(f"{name}_q", quadrant + lit(shift, u64)) if shift else quadrant
    value = b.let(f"{name}_y", Select(_bit(turned, 1), even, odd))
    return Select(_bit(turned, 2), -value, value)


def _bit(word: Expr, mask: int) -> Expr:
    return (word & lit(mask, u64)).ne(lit(0, u64))


def _reduce(b: Builder, name: str, x: Var) -> Reduced:
    high_part, middle_part, low_part = c.HALF_PI_PARTS
    shifted = b.let(f"{name}_z", fma(x, c.TWO_OVER_PI, c.ROUND))
    k = b.let(f"{name}_k", shifted - c.ROUND)
    first = b.let(f"{name}_f", fma(k, -high_part, x))
    high = b.let(f"{name}_r", fma(k, -middle_part, first))
    low = b.let(f"{name}_l", fma(k, -low_part, fma(k, -middle_part, first - high)))
    quadrant = b.let(f"{name}_n", Bitcast(u64, shifted))
    guard = b.let(f"{name}_g", k * GUARD)
    bound = b.let(f"{name}_c", guard * guard)
    fast = BinOp(BinaryOp.AND, bound <= high * high, bound < GUARD_LIMIT)
    with b.if_(UnOp(UnaryOp.LOGICAL_NOT, fast)):
        exact = _reduce_exactly(b, name, x)
        for var, value in zip((quadrant, high, low), exact, strict=True):
            b.assign(var, value)
    return Reduced(quadrant, high, low)


def _reduce_exactly(b: Builder, name: str, x: Var) -> tuple[Expr, Expr, Expr]:
    """Quadrant, high and low part of x mod pi/2, for |x| >= 1/2.

    x = m 2^e with a whole m of 53 bits. Of 2/pi = 0.b1 b2 b3 ..., bits up to e - 2 give whole turns only, and 192 bits
    from there on leave an error below 2^-137 of a quarter turn; no f64 comes closer to a multiple of pi/2 than 2^-62 of
    one. The product modulo 2^192 has the quadrant in its two top bits and the fraction below them.
    """

    def let(stem: str, value: Expr) -> Var:
        return b.let(f"{name}_{stem}", value)

    def word(value: int) -> Lit:
        return Lit(u64, value)

    bits = let("i", Bitcast(u64, absolute(x)))
    mantissa = let("m", bits & word((1 << 52) - 1) | word(1 << 52))
    # Bit e - 1 of 2/pi, counted from the first of 64 zeros before it: e = field - 1075.
    place = let("p", Cast(u32, bits >> 52) - (1075 + 1 - 63))
    words = _window(let, place)
    shift = let("h", place & 31)
    left = let("j", 31 - shift)
    window = [let("w", Cast(u64, words[i] << shift | words[i + 1] >> 1 >> left)) for i in range(6)]
    limbs = _product(let, mantissa & word(_WORD), mantissa >> 32, window)
    h0, h1, h2 = (let("d", limbs[i] << 32 | limbs[i + 1]) for i in (0, 2, 4))
    # The fraction without the quadrant; from a half on the next multiple is nearer, and the distance is negative.
    beyond = let("e", h0 >> 61 & word(1))
    flip = let("e", word(0) - beyond)
    f0 = let("e", (h0 << 2 | h1 >> 62) ^ flip)
    f1 = let("e", (h1 << 2 | h2 >> 62) ^ flip)
    f2 = h2 << 2 ^ flip
    zeros = let("u", Cast(u32, UnOp(UnaryOp.CLZ, f0)))
    rest = let("u", 63 - zeros)
    g0 = let("u", f0 << zeros | f1 >> 1 >> rest)
    g1 = f1 << zeros | f2 >> 1 >> rest
    # 53 bits and the 64 bits after them, times pi/2.
    upper = let("v", Cast(f64, g0 & word(-(1 << 11) & (1 << 64) - 1)))
    lower = Cast(f64, g0 << 53 | g1 >> 11) * 2.0**-53
    product = let("v", upper * c.HALF_PI)
    spill = fma(lower, c.HALF_PI, fma(upper, c.HALF_PI_LOW, fma(upper, c.HALF_PI, -product)))
    negative = let("v", x < 0.0)
    sign = (beyond ^ Select(negative, word(1), word(0))) << 63
    scale = let("v", Bitcast(f64, Cast(u64, 1023 - 64 - zeros) << 52 | sign))
    quadrant = let("q", (h0 >> 62) + beyond)
    # Infinity less itself is NaN, and so is NaN.
    return Select(negative, word(0) - quadrant, quadrant), let("v", product * scale + (x - x)), let("v", spill * scale)


def _product(let: Callable[[str, Expr], Var], low: Expr, high: Expr, window: list[Var]) -> list[Expr]:
    """The low 192 bits of (2^32 high + low) times six words, in words of 32 bits, first word first."""
    low, high, mask = let("m", low), let("m", high), Lit(u64, _WORD)
    limbs: list[Expr] = [Lit(u64, 0)] * 6
    for factor, up in ((low, 0), (high, 1)):
        carry: Expr = Lit(u64, 0)
        for i in range(5, up - 1, -1):
            total = let("d", factor * window[i] + limbs[i - up] + carry)
            limbs[i - up] = total & mask
            carry = total >> 32
    return limbs


def _window(let: Callable[[str, Expr], Var], place: Var) -> list[Expr]:
    """Seven words of 2/pi from the one that holds bit `place` on, chosen without a table by the bits of its number."""
    table: list[Expr] = [Lit(u32, w) for w in (0, 0, *c.TWO_OVER_PI_WORDS)]
    words = table
    for step, needed in (16, 22), (8, 14), (4, 10), (2, 8), (1, 7):
        ahead = let("t", (place & 32 * step).ne(0))
        words = [let("t", Select(ahead, words[i + step], words[i])) for i in range(needed)]
    last = let("t", (place & 1024).ne(0))
    return [let("t", Select(last, table[32 + i], words[i])) for i in range(7)]
