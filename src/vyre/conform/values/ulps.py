"""How far an f32 result is from the true value, in units of the last place.

The true value is taken from NumPy, or from Python's `math` where NumPy has none, in binary64: its own error of about
one of its units is 2^-29 of one of ours. That holds for sin, cos and tan next to multiples of pi/2 as well, since every
f32 is reduced exactly there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...foundation.ir.ops import BinaryOp, UnaryOp
from ...foundation.ir.rounding import F32_FLUSH, F32_MIN_NORMAL

Array = NDArray[Any]


def _remainder(x: Array, y: Array) -> Array:
    """By two exact remainders, of y and of 2 y, the second of which tells an even quotient from an odd one."""
    size, divisor = np.abs(x), np.abs(y)
    rest = np.fmod(size, divisor)
    odd = np.fmod(size, 2 * divisor) >= divisor
    up = (2 * rest > divisor) | ((2 * rest == divisor) & odd)
    return np.copysign(1.0, x) * np.where(up, rest - divisor, rest)


def _nextafter(x: Array, y: Array) -> Array:
    near = np.nextafter(x.astype(np.float32), y.astype(np.float32)).astype(np.float64)
    tiny = (np.abs(near) < F32_MIN_NORMAL) & (near != 0)
    return np.where(tiny, np.copysign(np.where(x == 0, F32_MIN_NORMAL, 0.0), near), near)


def _quarters(x: Array) -> tuple[Array, Array]:
    """x as a number of halves, modulo 4, and an exact rest of at most a quarter."""
    turn = np.fmod(x, 2.0)
    halves = np.rint(2 * turn)
    return np.mod(halves, 4), turn - halves / 2


def _wave(halves: Array, rest: Array) -> Array:
    sine, cosine = np.sin(np.pi * rest), np.cos(np.pi * rest)
    return np.where(halves % 2 == 0, sine, cosine) * np.where(halves >= 2, -1.0, 1.0)


def _sinpi(x: Array) -> Array:
    value = _wave(*_quarters(x))
    return np.where(value == 0, np.copysign(0.0, x), value)


def _cospi(x: Array) -> Array:
    halves, rest = _quarters(x)
    return _wave((halves + 1) % 4, rest) + 0.0


def _tanpi(x: Array) -> Array:
    halves, rest = _quarters(x)
    slope = np.tan(np.pi * rest)
    even = np.where(rest == 0, np.copysign(0.0, np.where(halves == 2, -x, x)), slope)
    odd = np.where(rest == 0, np.where(halves == 1, np.inf, -np.inf), -1 / slope)
    return np.where(halves % 2 == 0, even, odd)


_BY_NUMPY: Final[dict[str, Callable[..., Any]]] = {
    "acos": np.arccos, "asin": np.arcsin, "atan": np.arctan, "exp10": lambda x: np.power(10.0, x),
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "sinpi": _sinpi, "cospi": _cospi, "tanpi": _tanpi,
    "remainder": _remainder, "nextafter": _nextafter, "frexp_mantissa": lambda x: np.frexp(x)[0],
    "frexp_exponent": lambda x: np.where(np.isfinite(x), np.frexp(x)[1], 0),
    "ldexp": lambda x, n: np.ldexp(x, np.clip(n, -600, 600).astype(np.int32)),
    "pow": np.power, "atan2": np.arctan2, "erf": np.frompyfunc(math.erf, 1, 1), "erfc": np.frompyfunc(math.erfc, 1, 1),
}  # fmt: skip
_LIVELY: Final = {
    "exp": (-90, 90), "exp2": (-128, 130), "sinh": (-90, 90), "cosh": (-90, 90), "tanh": (-10, 10), "log": (0.5, 2),
    "log2": (0.5, 2), "log10": (0.5, 2), "log1p": (-1, 2), "expm1": (-2, 4), "exp10": (-39, 39), "cbrt": (0, 8),
    "asinh": (-4, 4), "acosh": (1, 4), "atanh": (-1.01, 1.01), "sinpi": (-4, 4), "cospi": (-4, 4), "tanpi": (-4, 4),
    "erf": (-4, 4), "erfc": (-4, 10), "asin": (-1.01, 1.01), "acos": (-1.01, 1.01), "atan": (-4, 4),
}  # fmt: skip
"""Where a function does what it is known for; elsewhere most bit patterns give 0, 1, infinity or NaN."""


DIFFICULT: Final = np.array(
    [0.0, 2.0**-149, 2.0**-126, 1e-30, 2.0**-60, 1e-5, 0.1, 0.25, 1 / 3, 0.5, 0.7, 1 - 2.0**-24, 1.0, 1 + 2.0**-23, 1.1,
     1.5, 2.0, 2.5, 3.0, 5.0, 7.0, 10.0, 31.0, 88.7, 126.0, 127.0, 128.0, 149.0, 1e3, 2.0**23 - 0.5, 2.0**23 + 1,
     2.0**24 - 1, 2.0**24, 2.0**25 + 4, 1e10, 2.0**31, 2.0**63, 2.0**64, 1e30, 2.0**127, (2 - 2.0**-23) * 2.0**127,
     np.inf, np.nan], np.float32,
)  # fmt: skip
"""Numbers, each with both signs, whose pairs a function of two must not stumble over."""


def pairs(op: BinaryOp, count: int, seed: int = 0) -> tuple[Array, Array]:
    """`count` pairs of f32: any bits, common sizes, pairs of one size, and pairs that matter, a quarter each; seed 0
    begins with all pairs of difficult numbers. The second of a `scale` is an i32."""
    rng = np.random.default_rng((op.tag, seed))
    quarter = count // 4
    x, y = (rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32) for _ in range(2))
    common, near, lively = (slice(k * quarter, (k + 1) * quarter) for k in (1, 2, 3))
    for side in (x, y):
        side[common] = np.exp2(rng.uniform(-18, 18, quarter)) * rng.choice((-1, 1), quarter)
    with np.errstate(all="ignore"):
        y[near] = x[near] * (np.exp2(rng.uniform(-3, 3, quarter)) * rng.choice((-1, 1), quarter))
    if op is BinaryOp.POW:  # products with the logarithm that neither overflow nor vanish
        x[lively] = np.exp2(rng.uniform(-1, 1, quarter) * np.exp2(rng.uniform(-20, 7, quarter))).astype("f4")
        y[lively] = rng.uniform(-140, 140, quarter) / np.where(x[lively] == 1, 1, np.log2(x[lively].astype("f8")))
    else:
        x[lively] = rng.uniform(-4, 4, quarter)
        y[lively] = rng.uniform(-4, 4, quarter)
    if seed == 0:
        signed = np.concatenate([DIFFICULT, -DIFFICULT])
        first = min(count, len(signed) ** 2)
        x[:first] = np.repeat(signed, len(signed))[:first]
        y[:first] = np.tile(signed, len(signed))[:first]
    if op.rule == "scale":
        small = np.abs(y) < 8
        return x, np.where(small, np.where(small, y, 0) * 64, y.view(np.int32)).astype(np.int32)
    return x, y


def arguments(op: UnaryOp | BinaryOp, count: int, seed: int = 0) -> tuple[Array, ...]:
    """As many arrays as the function has arguments."""
    return pairs(op, count, seed) if isinstance(op, BinaryOp) else (points(op, count, seed),)


def points(op: UnaryOp, count: int, seed: int = 0) -> Array:
    """`count` f32 arguments: half are any bits, a quarter has a common size, a quarter lies where it matters."""
    rng = np.random.default_rng((op.tag, seed))
    quarter = count // 4
    bits = rng.integers(0, 2**32, count - 2 * quarter, dtype=np.uint32)
    sizes = np.exp2(rng.uniform(-8, 18, quarter)) * rng.choice((-1, 1), quarter)
    near = rng.uniform(*_LIVELY.get(op.text, (-200, 200)), quarter)
    return np.concatenate([bits.view(np.float32), sizes.astype(np.float32), near.astype(np.float32)])


def canonical(x: Array) -> Array:
    """f32 numbers with subnormals as zero of their sign."""
    return np.where(np.abs(x) < np.float32(F32_MIN_NORMAL), np.copysign(np.float32(0), x), x)


def true_values(op: UnaryOp | BinaryOp, *operands: Array) -> Array:
    """A function of f32 numbers, in binary64."""
    with np.errstate(all="ignore"):
        wide = [(canonical(x) if x.dtype == np.float32 else x).astype(np.float64) for x in operands]
        exact: Array = (_BY_NUMPY.get(op.text) or getattr(np, op.text))(*wide)
    return exact.astype(np.float64, copy=False)


def nearest(exact: Array) -> Array:
    """The canonical f32 numbers next to binary64 numbers."""
    with np.errstate(all="ignore"):
        single = exact.astype(np.float32)
    size = np.abs(exact)
    edge = np.where(size < F32_FLUSH, np.float32(0), np.float32(F32_MIN_NORMAL))
    small: Array = np.copysign(edge, exact).astype(np.float32)
    return np.where(size < F32_MIN_NORMAL, small, single)


def ulps(found: Array, exact: Array) -> Array:
    """The distance of f32 results from true values. Where one of them is zero or not finite, it counts the canonical
    numbers between the result and the right one (2^-126 comes after 0); a NaN too much or too few is infinitely far.
    Whole numbers are as far as they differ."""
    if found.dtype.kind == "i":
        return np.asarray(np.abs(found - exact))
    right = nearest(exact)
    with np.errstate(all="ignore"):
        exponent = np.frexp(exact)[1]
        error: Array = np.abs(found.astype(np.float64) - exact) * np.ldexp(1.0, 24 - exponent)
        plain = np.isfinite(right) & np.isfinite(found) & (right != 0) & (found != 0)
        if np.all(plain):
            return error
        steps = np.abs(_rank(found) - _rank(right)).astype(np.float64)
        unlike = np.isnan(found) != np.isnan(right)
        steps = np.where(np.isnan(found), np.where(unlike, np.inf, 0.0), np.where(unlike, np.inf, steps))
        return np.where(plain, error, steps)


def _rank(x: Array) -> Array:
    bits = (canonical(x).view(np.uint32) & np.uint32(0x7FFFFFFF)).astype(np.int64)
    return np.where(np.signbit(x), -1, 1) * np.maximum(bits - 0x7FFFFF, 0)
