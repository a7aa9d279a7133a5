"""Numbers at which machines differ: elements of arrays, plain numbers of a kernel's source, scalar arguments."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np

from ..programs.random_values import edge_bits
from .numbers import from_bits, number
from .tree import BITS, FIELDS, FLOATS, limits, parts

_SMALL = (
    0.0,
    -0.0,
    math.nan,
    0.0,
    -0.0,
    math.nan,
    math.inf,
    1.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.0,
    1.5,
    -2.5,
    0.1,
    3.0,
    7.0,
    100.0,
    255.0,
    255.5,
    256.0,
    300.0,
    -1.5,
)
_F32 = (
    2.0**-126, -(2.0**-126), 2.0**-127, 1e-45, -1e-40, 2.0**-125, 1.1754942e-38, math.inf, -math.inf, math.nan,
    2.0**23, 2.0**24 + 1, 2.0**31, -(2.0**31), 2.0**32, 2.0**63, 3.4028234663852886e38, 1e-30, 1e30, 2.0**-63,
    65504.0, 65519.9, 32767.5, -32768.9, -128.9, 127.5,
)  # fmt: skip
_PLAIN: dict[str, tuple[float, ...]] = {
    "f32": _SMALL + _F32,
    "bf16": _SMALL + tuple(x for x in _F32 if x < 3.4e38 or x == math.inf or x != x),
    "f16": (*_SMALL, 2.0**-14, 2.0**-24, -(2.0**-15), 1e-8, math.inf, -math.inf, 65504.0, 2048.0, 2049.0),
    "f64": (*_SMALL, *_F32, 2.0**-1022, 5e-324, 1e300, 2.0**53 + 1, 2.0**64),
}
EXTRA_BITS: dict[str, tuple[int, ...]] = {
    "f32": (0x3F000001, 0x3EFFFFFF, 0x437F8000, 0x43960000, 0x477FE000, 0x46FFFF00, 0xC3000000, 0x4B7FFFFF, 0xCF000001,
            0x5F800000, 0x00800002, 0x80800001, 0xFFC12345, 0x7F812345, 0x3FC00000, 0x40200000, 0xC0200000),
    "f16": (0x3555, 0x0200, 0x83FF, 0x5BF8, 0x5CB0, 0xD800, 0x77FF, 0x7D01),
    "bf16": (0x0080, 0x007F, 0x8040, 0x4380, 0x4396, 0x7F7F, 0x7FA0, 0xFFC1),
}  # fmt: skip


def elements(rng: random.Random, t: str, count: int) -> bytes:
    """`count` elements: edges, any bits, and small numbers, mixed in a way of its own for each array."""
    if t in FIELDS:
        columns = [elements(rng, part, count) for part in parts(t)]
        sizes = [BITS[part] // 8 for part in parts(t)]
        rows = ([c[k * n : k * n + n] for c, n in zip(columns, sizes, strict=True)] for k in range(count))
        return b"".join(item for row in rows for item in row)
    size = BITS[t] // 8
    edges = (*edge_bits(_element(t)), *EXTRA_BITS.get(t, ()))
    edgy, wild = rng.choice(((0.7, 0.9), (0.4, 0.6), (0.1, 0.3), (0.2, 1.0)))

    def bits() -> int:
        roll = rng.random()
        if roll < edgy:
            return rng.choice(edges)
        return rng.getrandbits(8 * size) if roll < wild else _small(rng, t)

    return b"".join(bits().to_bytes(size, "little") for _ in range(count))


def _element(t: str) -> Any:
    from ...foundation.ir.dtypes import BY_NAME

    return BY_NAME[t]


def _small(rng: random.Random, t: str) -> int:
    if t not in FLOATS:
        low = -9 if t[0] == "i" else 0
        return rng.randint(low, 20) & (1 << BITS[t]) - 1 if t != "bool" else rng.randint(0, 1)
    value = np.float64(rng.choice((rng.randint(-40, 300), rng.randint(-40, 40) / 4, rng.uniform(-2, 2))))
    if t == "bf16":
        return int(np.float32(value).view(np.uint32)) >> 16
    kind: Any = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[t]
    return int.from_bytes(kind(value).tobytes(), "little")


def plain(rng: random.Random, t: str) -> int | float | bool:
    """A number that source may hold where a value of this type is."""
    if t == "bool":
        return rng.random() < 0.5
    if t in FLOATS:
        roll = rng.random()
        if roll < 0.15:
            return rng.choice((0, 1, -1, 2, 3, 10, 255, 1000))
        return rng.choice(_PLAIN[t]) if roll < 0.85 else round(rng.uniform(-10, 10), 3)
    low, high = limits(t)
    edges = (0, 1, 2, 3, 5, 7, 8, 31, 32, 63, 64, 100, 127, high, high - 1, low, high // 2, high // 2 + 1, low + 1)
    roll = rng.random()
    if roll < 0.1:
        return rng.randint(low, high)
    return rng.choice(edges) if low == 0 or roll < 0.7 else rng.choice((-1, -2, -7, -100, -128))


def captured(rng: random.Random, value: int | float | bool) -> Any:
    """The same number as something that a Python program has lying around; a NumPy scalar may round it."""
    if isinstance(value, bool):
        return rng.choice((value, np.bool_(value)))
    if isinstance(value, float):
        kinds: list[Any] = [float, float, np.float64]
        if math.isnan(value) or abs(value) <= 3.4028234663852886e38 or math.isinf(value):
            kinds.append(np.float32)
        return rng.choice(kinds)(value)
    fitting = [k for k in (np.uint8, np.int16, np.uint32, np.int64) if np.iinfo(k).min <= value <= np.iinfo(k).max]
    return rng.choice([int, int, *fitting])(value)


def scalar(rng: random.Random, t: str) -> Any:
    """An argument for a parameter that is a number: a value of the type, or one that only the host knows."""
    if t == "bool":
        return rng.random() < 0.5
    if t in FIELDS:
        return tuple(scalar(rng, kind) for _, kind in FIELDS[t])
    if t in FLOATS:
        value = from_bits(int.from_bytes(elements(rng, t, 1), "little"), t)
        return float(value) if not math.isnan(value) else math.nan
    return int(number(from_bits(int.from_bytes(elements(rng, t, 1), "little"), t), t))


def small(rng: random.Random, t: str) -> tuple[Any, ...]:
    """The fields of a small value as numbers that source may hold."""
    return tuple(small(rng, kind) if kind in FIELDS else plain(rng, kind) for _, kind in FIELDS[t])


def table(rng: random.Random, t: str) -> tuple[Any, list[Any]]:
    """A few numbers as something that a Python program has lying around, and the numbers themselves."""
    count = rng.randint(1, 4)
    if t in FLOATS:
        numbers = [rng.choice((0.0, 0.5, -1.5, 2.0, 3.25, 100.0)) for _ in range(count)]
        kinds: list[Any] = [tuple, list, np.float32, np.float64]
    else:
        numbers = [rng.choice((0, 1, 2, 3, 5, 31, 100)) for _ in range(count)]
        kinds = [tuple, list, np.uint32, np.int64, np.uint8]
    kind = rng.choice(kinds)
    return (kind(numbers) if kind in (tuple, list) else np.array(numbers, kind)), numbers
