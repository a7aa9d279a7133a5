"""Hyperbolic functions of f64: |x| = k ln 2 + r, from sinh r and cosh r, never as a difference of near numbers."""

from __future__ import annotations

from typing import NamedTuple

from ....ir.build import Builder
from ....ir.nodes import BinOp, Expr, Select, Var
from ....ir.ops import BinaryOp
from . import coefficients as c
from .steps import absolute, bits_of, fma, number, polynomial, power_of_two, word


class Parts(NamedTuple):
    """Half of sinh |x|, and half of cosh |x|: a first part each, and the rest."""

    sine: Var
    sine_rest: Expr
    cosine: Var
    cosine_rest: Expr


def sinh(b: Builder, x: Var) -> Expr:
    half = _parts(b, "sinh", x, 710.5)
    value = b.let("sinh_y", half.sine + half.sine_rest)
    signed = BinOp(BinaryOp.COPYSIGN, value + value, x)
    return Select(absolute(x) < 2.0**-28, x, signed)


def cosh(b: Builder, x: Var) -> Expr:
    half = _parts(b, "cosh", x, 710.5)
    value = b.let("cosh_y", half.cosine + half.cosine_rest)
    return value + value


def tanh(b: Builder, x: Var) -> Expr:
    """The quotient; 1 from 22 on."""
    half = _parts(b, "tanh", x, 22.0)

    def joined(first: Var, rest: Expr) -> tuple[Var, Var]:
        rest = b.let("tanh_l", rest)
        total = b.let("tanh_h", first + rest)
        return total, b.let("tanh_l", rest - (total - first))

    above, above_low = joined(half.sine, half.sine_rest)
    below, below_low = joined(half.cosine, half.cosine_rest)
    inverse = b.let("tanh_i", number(1.0) / below)
    q = b.let("tanh_q", above * inverse)
    lacking = fma(-q, below, above) + fma(-q, below_low, above_low)
    value = fma(lacking, inverse, q)
    return Select(absolute(x) < 2.0**-28, x, BinOp(BinaryOp.COPYSIGN, value, x))


def _parts(b: Builder, name: str, x: Var, most: float) -> Parts:
    """k is 0 below 1, for the sake of relative precision; numbers beyond `most` count as it."""

    def let(stem: str, value: Expr) -> Var:
        return b.let(f"{name}_{stem}", value)

    size = let("a", absolute(x))
    near = let("a", Select(size > most, number(most), size))
    shifted = let("z", Select(near < 1.0, number(c.ROUND), fma(near, c.LOG2_E, c.ROUND)))
    whole = let("k", shifted - c.ROUND)
    r = let("r", fma(whole, -c.LN2_LOW, fma(whole, -c.LN2, near)))
    k = let("k", bits_of(shifted) - word(c.ROUND_BITS))
    rise = let("u", power_of_two(k - word(2)))
    fall = let("d", Select(whole > 64.0, number(0.0), power_of_two(word(-2) - k)))
    square = let("s", r * r)
    odd = let("o", r * square * polynomial(square, c.SINH))
    even = let("e", square * polynomial(square, c.COSH))
    total, difference = let("t", rise + fall), let("m", rise - fall)
    sine_lost, cosine_lost = rise - difference - fall, rise - total + fall
    # k = 0: the difference is zero, and r the first part
    start = let("f", Select(whole.eq(0.0), r * 0.5, difference))
    linear = Select(whole.eq(0.0), number(0.0), total * r)
    sine_rest = linear + fma(total, odd, fma(difference, even, sine_lost))
    cosine_rest = fma(difference, r, fma(difference, odd, fma(total, even, cosine_lost)))
    return Parts(start, sine_rest, total, cosine_rest)
