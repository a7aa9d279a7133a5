"""One f32 operation at a time, on Python's floats: what the definitions of `vyre.libs` are written with in tests."""

import math
import struct
from fractions import Fraction

from vyre.conform.kernels.numbers import FORMATS, rounded

TINY = 2.0**-126


def f32(x):
    """A number rounded once to f32, and flushed."""
    if x != x:
        return math.nan  # there is one
    if math.isinf(x) or x == 0:
        return float(x)
    try:
        found = struct.unpack("f", struct.pack("f", x))[0]  # of a float, to nearest even
    except OverflowError:
        found = math.copysign(math.inf, x)
    return found if abs(found) >= TINY else math.copysign(0.0, x)


def add(a, b):
    return f32(a + b)  # a sum of two f32 in binary64 rounds to f32 as the exact one does, as do all below


def multiply(a, b):
    return f32(a * b)


def divide(a, b):
    return f32(a / b)


def root(a):
    return f32(math.sqrt(a))


def fma(a, b, c):
    """a * b + c, rounded once."""
    if not all(map(math.isfinite, (a, b, c))):
        return f32(a * b + c)
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c
    return rounded(exact.numerator, exact.denominator, FORMATS["f32"])
