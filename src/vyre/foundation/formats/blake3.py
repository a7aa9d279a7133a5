"""BLAKE3-256, which seals and names programs: the `blake3` package where it is installed, the same in Python where not.

Keys and files depend on this digest, so a missing wheel may cost time and never an answer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from ..integers import ceil_div

_CHUNK_BYTES, _BLOCK_BYTES = 1024, 64
_CHUNK_START, _CHUNK_END, _PARENT, _ROOT = 1, 2, 4, 8
_MASK = 0xFFFFFFFF
_IV = (
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
)  # fmt: skip
_PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_QUARTERS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip


def _schedule() -> tuple[tuple[int, ...], ...]:
    """Which message words each of the seven rounds mixes in, in order."""
    rounds = [tuple(range(16))]
    for _ in range(6):
        rounds.append(tuple(rounds[-1][i] for i in _PERMUTATION))
    return tuple(rounds)


_SCHEDULE = _schedule()
_Words = tuple[int, ...]


def _compress(chaining: _Words, block: bytes, counter: int, flags: int) -> _Words:
    """The next chaining value: eight words."""
    m = struct.unpack("<16I", block.ljust(_BLOCK_BYTES, b"\0"))
    v = [*chaining, *_IV[:4], counter & _MASK, counter >> 32 & _MASK, len(block), flags]
    for order in _SCHEDULE:
        for k, (a, b, c, d) in enumerate(_QUARTERS):
            va, vb, vc, vd = v[a], v[b], v[c], v[d]
            va = (va + vb + m[order[2 * k]]) & _MASK
            vd ^= va
            vd = vd >> 16 | vd << 16 & _MASK
            vc = (vc + vd) & _MASK
            vb ^= vc
            vb = vb >> 12 | vb << 20 & _MASK
            va = (va + vb + m[order[2 * k + 1]]) & _MASK
            vd ^= va
            vd = vd >> 8 | vd << 24 & _MASK
            vc = (vc + vd) & _MASK
            vb ^= vc
            v[a], v[b], v[c], v[d] = va, vb >> 7 | vb << 25 & _MASK, vc, vd
    return tuple(v[i] ^ v[i + 8] for i in range(8))


def _chunk(data: bytes, counter: int, last: int) -> _Words:
    """Chaining value of up to 1024 bytes; `last` is _ROOT when they are the whole input."""
    chaining: _Words = _IV
    starts = range(0, len(data), _BLOCK_BYTES) or range(1)
    for start in starts:
        flags = _CHUNK_START if start == 0 else 0
        if start == starts[-1]:
            flags |= _CHUNK_END | last
        chaining = _compress(chaining, data[start : start + _BLOCK_BYTES], counter, flags)
    return chaining


def _parent(left: _Words, right: _Words, last: int) -> _Words:
    return _compress(_IV, struct.pack("<16I", *left, *right), 0, _PARENT | last)


def pure_blake3(data: bytes) -> bytes:
    """The 32-byte digest, without the package.

    >>> pure_blake3(b"").hex()[:16]
    'af1349b9f5f9a1a6'
    """
    chunks = max(1, ceil_div(len(data), _CHUNK_BYTES))
    if chunks == 1:
        return struct.pack("<8I", *_chunk(data, 0, _ROOT))
    subtrees: list[_Words] = []  # one per set bit of the number of chunks taken in, largest first
    for index in range(chunks - 1):
        value = _chunk(data[index * _CHUNK_BYTES : (index + 1) * _CHUNK_BYTES], index, 0)
        done = index + 1
        while done % 2 == 0:
            value, done = _parent(subtrees.pop(), value, 0), done // 2
        subtrees.append(value)
    value = _chunk(data[(chunks - 1) * _CHUNK_BYTES :], chunks - 1, 0)
    while subtrees:
        left = subtrees.pop()
        value = _parent(left, value, 0 if subtrees else _ROOT)
    return struct.pack("<8I", *value)


def _choose() -> Callable[[bytes], bytes]:
    try:
        from blake3 import blake3 as native
    except ImportError:
        return pure_blake3
    return lambda data: native(data).digest()


blake3 = _choose()
"""The 32-byte digest."""
