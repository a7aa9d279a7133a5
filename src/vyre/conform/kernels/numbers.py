"""What every operator gives, from the documents: integers wrap, floats are exact fractions that are rounded once.

Values are Python's: int, bool, float. An f32 or bf16 value is never subnormal, an f16 value may be. Nothing here knows
how an engine computes: a sum or a quotient of floats is a ratio of two integers of any size. (Functions of the math
library are the exception: `functions` says why.)
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from ..values.functions import function
from .tree import BITS, FLOATS, FUNCTIONS, INTS, WIDE, limits

Function = Callable[..., Any]


class Format(NamedTuple):
    """A float type of less than 64 bits: digits of the significand, exponents, and whether it keeps subnormals."""

    digits: int
    least: int
    most: int
    gradual: bool


FORMATS = {"f16": Format(11, -14, 15, True), "bf16": Format(8, -126, 127, False), "f32": Format(24, -126, 127, False)}


def rounded(n: int, d: int, form: Format) -> float:
    """n / d (n not 0) to nearest, ties to even, as if exponents had no bounds; then flushed, or beyond all bounds.

    >>> rounded(2**25 + 2, 2, FORMATS["f32"]), rounded(1, 3 << 140, FORMATS["f32"]), rounded(-65520, 1, FORMATS["f16"])
    (16777216.0, 0.0, -inf)
    """
    sign, n = (-1.0, -n) if n < 0 else (1.0, n)
    top = n.bit_length() - d.bit_length()  # 2^(top - 1) < n / d < 2^(top + 1)
    if n << max(0, -top) < d << max(0, top):
        top -= 1
    unit = top - form.digits + 1
    if form.gradual:
        unit = max(unit, form.least - form.digits + 1)
    n, d = (n, d << unit) if unit >= 0 else (n << -unit, d)
    q, rest = divmod(n, d)
    if 2 * rest > d or (2 * rest == d and q & 1):
        q += 1
    if q == 0:
        return sign * 0.0
    exponent = q.bit_length() - 1 + unit
    if exponent > form.most:
        return sign * math.inf
    if exponent < form.least and not form.gradual:
        return sign * 0.0
    return sign * math.ldexp(q, unit)


def number(x: int | float, t: str) -> Any:
    """A plain number as a value of the type."""
    if t == "bool":
        return bool(x)
    if t in INTS:
        return int(x)
    if t == "f64" or (isinstance(x, float) and (not math.isfinite(x) or x == 0)):
        return float(x)
    if x == 0:
        return 0.0
    return rounded(*x.as_integer_ratio(), FORMATS[t])


# ---- floats ---------------------------------------------------------------------------------------------------------


def _finite(*values: float) -> bool:
    return all(map(math.isfinite, values))


def _add(a: float, b: float) -> float:
    if not _finite(a, b) or a + b == 0:  # of two f32 numbers this is zero only if it is so exactly
        return a + b
    (n, d), (m, e) = a.as_integer_ratio(), b.as_integer_ratio()
    return rounded(n * e + m * d, d * e, FORMATS["f32"])


def _multiply(a: float, b: float) -> float:
    if not _finite(a, b) or a == 0 or b == 0:
        return a * b
    (n, d), (m, e) = a.as_integer_ratio(), b.as_integer_ratio()
    return rounded(n * m, d * e, FORMATS["f32"])


def _fma(a: float, b: float, c: float) -> float:
    if not _finite(a, b, c):
        return a * b + c
    (n, d), (m, e), (k, f) = a.as_integer_ratio(), b.as_integer_ratio(), c.as_integer_ratio()
    top, bottom = n * m * f + k * d * e, d * e * f
    if top == 0:  # a product of zeros has a sign; a sum that cancels is +0
        return a * b + c if a == 0 or b == 0 else 0.0
    return rounded(top, bottom, FORMATS["f32"])


def _special_quotient(a: float, b: float) -> float | None:
    """a / b where that is not a fraction."""
    if math.isnan(a) or math.isnan(b) or (a == 0 and b == 0) or (math.isinf(a) and math.isinf(b)):
        return math.nan
    sign = math.copysign(1.0, a) * math.copysign(1.0, b)
    if b == 0 or math.isinf(a):
        return sign * math.inf
    return sign * 0.0 if a == 0 or math.isinf(b) else None


def _divide(a: float, b: float) -> float:
    special = _special_quotient(a, b)
    if special is not None:
        return special
    (n, d), (m, e) = a.as_integer_ratio(), b.as_integer_ratio()
    return rounded(n * e if m > 0 else -n * e, abs(m) * d, FORMATS["f32"])


def _divide_f64(a: float, b: float) -> float:
    special = _special_quotient(a, b)
    return a / b if special is None else special


def _sqrt(x: float) -> float:
    """Of an f32: the root of n * 4^k has 40 digits or more, and one more that says whether there is a rest."""
    if not x > 0 or math.isinf(x):
        return x if x == 0 or x == math.inf else math.nan
    n, d = x.as_integer_ratio()  # d is a power of two
    half = (d.bit_length() + 1) // 2
    n = n << 2 * half - (d.bit_length() - 1) << 80
    root = math.isqrt(n)
    return rounded(2 * root + (root * root != n), 1 << half + 41, FORMATS["f32"])


def _sqrt_f64(x: float) -> float:
    return math.sqrt(x) if x >= 0 else math.nan


def _less(a: float, b: float) -> bool:
    """Whether `a` comes first, -0 before +0."""
    return a < b or (a == b and math.copysign(1.0, a) < math.copysign(1.0, b))


def _min(a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    return a if _less(a, b) else b


def _max(a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    return b if _less(a, b) else a


def _whole(part: Callable[[float], int]) -> Function:
    return lambda x: math.copysign(float(abs(part(x))), x) if math.isfinite(x) else x


def _nearest(x: float) -> int:
    n, d = abs(x).as_integer_ratio()
    return (2 * n + d) // (2 * d)  # halves away from zero; the sign is put back by _whole


def _sign(x: float) -> float:
    return x if math.isnan(x) else 0.0 if x == 0 else math.copysign(1.0, x)


def _remainder(a: float, b: float, nearest: bool) -> float:
    """What is left of a after a whole number of b, in units that both are multiples of."""
    if not math.isfinite(a) or math.isnan(b) or b == 0:
        return math.nan
    if math.isinf(b) or a == 0:
        return a
    (n, d), (m, e) = abs(a).as_integer_ratio(), abs(b).as_integer_ratio()
    q, rest = divmod(n * e, m * d)
    if nearest and (2 * rest > m * d or (2 * rest == m * d and q & 1)):
        rest -= m * d
    if rest == 0:
        return math.copysign(0.0, a)
    return rounded(rest if a > 0 else -rest, d * e, FORMATS["f32"])


def _ldexp(x: float, n: int) -> float:
    if not math.isfinite(x) or x == 0:
        return x
    m, d = x.as_integer_ratio()
    n = max(min(n, 999), -999)
    return rounded(m << max(n, 0), d << max(-n, 0), FORMATS["f32"])


def _next(x: float, y: float) -> float:
    if math.isnan(x) or math.isnan(y):
        return math.nan
    if x == y:
        return y
    if x == 0:
        return math.copysign(2.0**-126, y)
    if math.isinf(x):
        return math.copysign((2 - 2.0**-23) * 2.0**127, x)
    part, exponent = math.frexp(abs(x))
    whole, unit = int(part * 2**24), exponent - 24
    up = abs(y) > abs(x) and (x > 0) == (y > 0)
    if whole == 2**23 and not up:  # half a unit: below a power of two numbers are closer
        whole, unit = 2**24, unit - 1
    whole += 1 if up else -1
    found = rounded(whole << max(unit, 0), 1 << max(-unit, 0), FORMATS["f32"])
    return math.copysign(found, x)


def _frexp(x: float) -> tuple[float, int]:
    return math.frexp(x) if math.isfinite(x) else (x, 0)


def _copysign(a: float, b: float) -> float:
    return abs(a) if math.isnan(b) else math.copysign(a, b)


_F32: dict[str, Function] = {
    "+": _add, "-": lambda a, b: _add(a, -b), "*": _multiply, "/": _divide, "min": _min, "max": _max, "fma": _fma,
    "neg": lambda x: -x, "abs": lambda x: math.copysign(x, 1.0), "sqrt": _sqrt, "reciprocal": lambda x: _divide(1.0, x),
    "inverse_sqrt": lambda x: _divide(1.0, _sqrt(x)), "floor": _whole(math.floor), "ceil": _whole(math.ceil),
    "trunc": _whole(math.trunc), "round": _whole(_nearest), "sign": _sign, "is_nan": math.isnan, "is_inf": math.isinf,
    "is_finite": math.isfinite, "copysign": _copysign,
}  # fmt: skip
_EXACT: dict[str, Function] = {
    "fmod": lambda a, b: _remainder(a, b, False), "remainder": lambda a, b: _remainder(a, b, True), "ldexp": _ldexp,
    "nextafter": _next, "frexp_mantissa": lambda x: _frexp(x)[0], "frexp_exponent": lambda x: _frexp(x)[1],
}  # fmt: skip
_DEFINED = {name: function(name) for name in (*FUNCTIONS, "pow", "atan2", "hypot") if name not in _EXACT}
_F64 = _F32 | {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": _divide_f64, "sqrt": _sqrt_f64,
    "reciprocal": lambda x: _divide_f64(1.0, x), "inverse_sqrt": lambda x: _divide_f64(1.0, _sqrt_f64(x)),
}  # fmt: skip


def _then(t: str, f: Function) -> Function:
    """An f32 step, and one rounding to the half float."""

    def both(*values: float) -> Any:
        result = f(*values)
        return result if isinstance(result, bool) else number(result, t)

    return both


# ---- integers -------------------------------------------------------------------------------------------------------


def wrapped(x: int, t: str) -> int:
    low, high = limits(t)
    return (x - low) % (high - low + 1) + low


def _integers(t: str) -> dict[str, Function]:
    low, high = limits(t)
    width, ones = BITS[t], (1 << BITS[t]) - 1

    def wrap(x: int) -> int:
        return (x - low) % (ones + 1) + low

    def divide(a: int, b: int) -> int:
        if b == 0:
            return 0 if low else ones
        return wrap(abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1))

    def remainder(a: int, b: int) -> int:
        return 0 if b == 0 else abs(a) % abs(b) * (-1 if a < 0 else 1)

    def rotate(a: int, n: int) -> int:
        text = f"{a & ones:0{width}b}"
        return wrap(int(text[n % width :] + text[: n % width], 2))

    return {
        "+": lambda a, b: wrap(a + b), "-": lambda a, b: wrap(a - b), "*": lambda a, b: wrap(a * b), "//": divide,
        "%": remainder, "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b, "min": min,
        "max": max, "<<": lambda a, n: wrap(a << n % width), ">>": lambda a, n: a >> n % width,
        "rotate_left": rotate, "rotate_right": lambda a, n: rotate(a, width - n % width),
        "abs_diff": lambda a, b: abs(a - b), "saturating_add": lambda a, b: min(a + b, high),
        "saturating_sub": lambda a, b: max(a - b, 0), "saturating_mul": lambda a, b: min(a * b, high),
        "mul_high": lambda a, b: a * b >> width, "neg": lambda x: wrap(-x), "~": lambda x: wrap(~x),
        "abs": lambda x: wrap(abs(x)), "popcount": lambda x: f"{x & ones:b}".count("1"),
        "clz": lambda x: width - (x & ones).bit_length(),
        "ctz": lambda x: width if x == 0 else len(f"{x & ones:b}") - len(f"{x & ones:b}".rstrip("0")),
        "reverse_bits": lambda x: wrap(int(f"{x & ones:0{width}b}"[::-1], 2)),
    }  # fmt: skip


OPERATORS: dict[str, dict[str, Function]] = {
    "f32": _F32 | _EXACT | _DEFINED | {"%": _EXACT["fmod"], "**": _DEFINED["pow"]},
    "f64": _F64,
    **{t: {op: _then(t, f) for op, f in _F32.items()} for t in ("f16", "bf16")},
    **{t: _integers(t) for t in WIDE},
    "bool": {"&": lambda a, b: a and b, "|": lambda a, b: a or b, "^": lambda a, b: a != b},
}
"""Type of the (left) operand -> operator -> what it gives."""
COMPARE: dict[str, Function] = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip


# ---- conversions and memory -----------------------------------------------------------------------------------------


def cast(source: str, target: str) -> Function:
    if source == target:
        return lambda x: x
    if target == "bool":
        return lambda x: x != 0
    if target in FLOATS:
        return lambda x: number(int(x) if isinstance(x, bool) else x, target)
    if source not in FLOATS:
        return lambda x: wrapped(int(x), target)
    low, high = limits(target)

    def saturated(x: float) -> int:
        if math.isnan(x):
            return 0
        return (high if x > 0 else low) if math.isinf(x) else min(max(math.trunc(x), low), high)

    return saturated


def bitcast(source: str, target: str) -> Function:
    return lambda x: from_bits(to_bits(x, source), target)


NAN_BITS = {"f16": 0x7E00, "bf16": 0x7FC0, "f32": 0x7FC00000, "f64": 0x7FF8 << 48}
"""The one NaN that memory holds."""


def to_bits(x: Any, t: str) -> int:
    """The element that a store leaves."""
    if t not in FLOATS:
        return int(x) & (1 << BITS[t]) - 1
    if math.isnan(x):
        return NAN_BITS[t]
    if t == "bf16":
        return to_bits(x, "f32") >> 16
    return int.from_bytes(struct.pack({"f16": "<e", "f32": "<f", "f64": "<d"}[t], x), "little")


def from_bits(bits: int, t: str) -> Any:
    """What a load gives: subnormals of f32 and bf16 read as zero of their sign."""
    if t == "bool":
        return bits != 0
    if t in INTS:
        return wrapped(bits, t)
    if t == "bf16":
        return from_bits(bits << 16, "f32")
    if t == "f32" and not bits & 0x7F800000:
        return -0.0 if bits >> 31 else 0.0
    size = BITS[t] // 8
    return struct.unpack({"f16": "<e", "f32": "<f", "f64": "<d"}[t], bits.to_bytes(size, "little"))[0]
