"""Inputs that find mistakes: the edges of u32, well-known bit patterns, and a fixed set of arbitrary words."""

from __future__ import annotations

from ...driver.verify.cases import ConformanceMatrix

U32_EDGES = (
    0, 1, 2, 3, 0xFFFFFFFF, 0xFFFFFFFE, 1 << 31, (1 << 31) - 1, 0xAAAAAAAA, 0x55555555, 0xDEADBEEF, 0xCAFEF00D,
)  # fmt: skip
ARBITRARY_WORDS = 24
SEED = 0xD5E4A7B93C6D102F
_MASK = (1 << 64) - 1


def splitmix64(seed: int, count: int) -> list[int]:
    """The first values of the generator of that name.

    >>> [hex(x) for x in splitmix64(1234567, 2)]
    ['0x599ed017fb08fc85', '0x2c73f08458540fa5']
    """
    found = []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & _MASK
        z = seed
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
        found.append(z ^ z >> 31)
    return found


def u32_witnesses() -> tuple[int, ...]:
    """The edges, then the arbitrary words; the same in every process."""
    return (*U32_EDGES, *(x & 0xFFFFFFFF for x in splitmix64(SEED, ARBITRARY_WORDS)))


def u32_matrix() -> ConformanceMatrix:
    """One case per witness, for programs whose only input is one u32."""
    matrix = ConformanceMatrix()
    for word in u32_witnesses():
        matrix.push(f"u32:{word:#010x}", [word.to_bytes(4, "little")])
    return matrix
