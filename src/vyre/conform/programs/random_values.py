"""Random bits of every type, rich in those near which arithmetic changes."""

from __future__ import annotations

import random

from ...foundation.ir.dtypes import DataType

_F32_EDGES = (
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00400000,  # zeros and subnormals
    0x00800000, 0x80800000, 0x00800001, 0x00FFFFFF, 0x01000000, 0x01800000, 0x0C800000,  # around 2**-126, small
    0x1F800000, 0x20000000, 0x9FFFFFFF, 0x1FFFFFFF, 0x34000000,  # products of these land around 2**-126
    0x3F800000, 0xBF800000, 0x3F800001, 0x3F7FFFFF, 0x3F000000, 0xBF000000, 0x40000000, 0x40490FDB, 0xC0200000,
    0x4B000000, 0x4B800001, 0x4EFFFFFF, 0x4F000000, 0xCF000000, 0x4F800000, 0x5F000000,  # around 2**23, 2**31, 2**32
    0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000,  # largest, infinite
    0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFBFFFFF, 0x7FFFFFFF,  # quiet and signalling payloads
)  # fmt: skip
_F64_EDGES = (
    0, 1 << 63, 1, 0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x3FF0000000000000, 0xBFF0000000000000, 0x3FE0000000000000,
    0xC004000000000000, 0x3810000000000000, 0x380FFFFFE0000000, 0x36A0000000000000, 0x47EFFFFFE0000000,
    0x47EFFFFFF0000000, 0x41DFFFFFFFC00000, 0x41E0000000000000, 0x41F0000000000000, 0x43E0000000000000,
    0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000, 0xFFF8000000000001,
    0x7FF0000000000001,
)  # fmt: skip
_F16_EDGES = (
    0, 0x8000, 1, 0x8001, 0x03FF, 0x0400, 0x0401, 0x3C00, 0xBC00, 0x3BFF, 0x3800, 0x4000, 0x6400, 0x7BFF, 0xFBFF,
    0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7C01,
)  # fmt: skip


def edge_bits(t: DataType) -> tuple[int, ...]:
    """Bit patterns of `t` at which engines tend to differ."""
    match t.name:
        case "f32":
            return _F32_EDGES
        case "f64":
            return _F64_EDGES
        case "f16":
            return _F16_EDGES
        case "bf16":
            return tuple(sorted({bits >> 16 for bits in _F32_EDGES}))
        case "bool":
            return 0, 1, 2, 0xFFFFFFFF
    width = t.bits or 0
    high = 1 << width - 1
    return 0, 1, 2, 3, 7, width - 1, width, high - 1, high, high + 1, 2 * high - 1, 2 * high - 2


def random_bytes(rng: random.Random, t: DataType, count: int) -> bytes:
    """`count` elements of `t`, mostly edges."""
    size, edges = t.size or 0, edge_bits(t)

    def bits() -> int:
        roll = rng.random()
        if roll < 0.6:
            return rng.choice(edges)
        return rng.getrandbits(8 * size) if roll < 0.8 else rng.randrange(16)

    return b"".join(bits().to_bytes(size, "little") for _ in range(count))
