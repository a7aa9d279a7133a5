"""Rounding of numbers to the float types, and their bits. Why binary64 is enough for it stands in `meaning.arith`."""

from __future__ import annotations

import math
import struct
from typing import Final

_SINGLE: Final = struct.Struct("f")  # native: converts by the machine's own cast, to infinity on overflow
_DOUBLE: Final = struct.Struct("d")
_QUAD: Final = struct.Struct("Q")
_WORD: Final = struct.Struct("<I")
_SINGLE_LE: Final = struct.Struct("<f")
_HALF: Final = struct.Struct("<e")

F32_MIN_NORMAL: Final = 2.0**-126
F32_BEYOND: Final = 2.0**128
F32_FLUSH: Final = 2.0**-126 - 2.0**-151
"""Anything smaller is flushed. Below 2^-126 24-bit numbers are 2^-150 apart; this is the midpoint of the last one and
2^-126, and the tie goes to 2^-126, whose significand is even."""


def round_f32(x: float) -> float:
    """Round to 24 bits as if exponents had no bounds, then flush below 2^-126 and overflow to infinity.

    >>> round_f32(2.0**-126 - 2.0**-151) == 2.0**-126, round_f32(-(2.0**-126) + 2.0**-150)
    (True, -0.0)
    """
    if -F32_MIN_NORMAL < x < F32_MIN_NORMAL:
        return math.copysign(0.0 if -F32_FLUSH < x < F32_FLUSH else F32_MIN_NORMAL, x)
    single: float = _SINGLE.unpack(_SINGLE.pack(x))[0]
    return single


def to_odd(number: int) -> float:
    """An integer as a float whose last bit says whether anything was cut off: rounding it again equals one rounding."""
    cut = number.bit_length() - 53
    if cut <= 0:
        return float(number)
    kept = abs(number) >> cut
    return math.ldexp(kept | (kept << cut != abs(number)), cut) * (-1 if number < 0 else 1)


def round_f16(x: float) -> float:
    """Round to binary16, subnormals kept.

    After an f32 step this is still a correct single rounding: 24 >= 2 * 11 + 2 bits, and results of f16 operands are
    0 or at least 2^-48, so the f32 flush never touches what could round to an f16 above zero (2^-25 and up).
    """
    if -65520.0 < x < 65520.0:
        half: float = _HALF.unpack(_HALF.pack(x))[0]
        return half
    return x * math.inf  # NaN stays NaN


def round_bf16(x: float) -> float:
    """Round to 8 bits as if exponents had no bounds, then flush below 2^-126 and overflow to infinity.

    >>> round_bf16(1 + 2.0**-8 + 2.0**-40), round_bf16(-(2.0**-126) * 0.75)
    (1.0078125, -0.0)
    """
    if x != x or x in (math.inf, -math.inf):
        return x
    bits: int = _QUAD.unpack(_DOUBLE.pack(x))[0]
    rounded: float = _DOUBLE.unpack(_QUAD.pack(bits + (1 << 44) - 1 + (bits >> 45 & 1) & -1 << 45))[0]
    if -F32_MIN_NORMAL < rounded < F32_MIN_NORMAL:
        return math.copysign(0.0, x)
    return rounded if -F32_BEYOND < rounded < F32_BEYOND else math.copysign(math.inf, x)


def f32_to_bits(x: float) -> int:
    """Canonical bits of an f32 value; every NaN is 0x7FC00000."""
    if x != x:
        return 0x7FC00000
    bits: int = _WORD.unpack(_SINGLE_LE.pack(round_f32(x)))[0]
    return bits


def f32_from_bits(bits: int) -> float:
    """The canonical value of 32 bits."""
    if not bits & 0x7F800000:
        return -0.0 if bits >> 31 else 0.0
    value: float = _SINGLE_LE.unpack(_WORD.pack(bits))[0]
    return value
