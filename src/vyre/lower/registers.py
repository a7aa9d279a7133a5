"""Register types of the kernel form, and the values and bits that they hold.

Values: integers are Python ints in the range of their register, bool is `bool`, floats are `float`, an f32 being
exactly representable.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from ..foundation.ir import rounding

REGISTER_TYPES = ("bool", "u32", "i32", "u64", "i64", "f32", "f64")
BITS = {"bool": 1, "u32": 32, "i32": 32, "u64": 64, "i64": 64, "f32": 32, "f64": 64}
SIGNED = frozenset(("i32", "i64"))
FLOATS = frozenset(("f32", "f64"))
UNSIGNED = frozenset(("u32", "u64"))

_SINGLE = struct.Struct("f")  # native: rounds as the machine does, to infinity on overflow
_WORD = struct.Struct("I")
_DOUBLE = struct.Struct("d")
_LONG = struct.Struct("Q")
_TINY = rounding.F32_MIN_NORMAL


def value_of(dtype: str, bits: int) -> Any:
    """The value of a `const`."""
    if dtype == "bool":
        return bits != 0
    if dtype == "f32":
        return _SINGLE.unpack(_WORD.pack(bits))[0]
    if dtype == "f64":
        return _DOUBLE.unpack(_LONG.pack(bits))[0]
    return bits - (1 << BITS[dtype]) if dtype in SIGNED and bits >> BITS[dtype] - 1 else bits


def bits_of(dtype: str, value: Any) -> int:
    """The bits of a value; every NaN is the canonical one."""
    if dtype in FLOATS:
        if value != value:
            return 0x7FC00000 if dtype == "f32" else 0x7FF8000000000000
        small, wide = (_SINGLE, _WORD) if dtype == "f32" else (_DOUBLE, _LONG)
        return int(wide.unpack(small.pack(value))[0])
    return int(value) & (1 << BITS[dtype]) - 1


def single(x: float) -> float:
    """The nearest f32, subnormals kept. One rounding of + - * / sqrt as well, as `arith` shows: below 2^-126 results
    only have fewer bits."""
    return float(_SINGLE.unpack(_SINGLE.pack(x))[0])


def flush(x: float) -> float:
    return math.copysign(0.0, x) if -_TINY < x < _TINY else x
