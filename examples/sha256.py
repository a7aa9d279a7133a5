"""SHA-256 of many messages at once, one invocation for each message.

The host pads the messages and lays them end to end as big-endian words; the kernel goes over the blocks of its message.
The sixteen words that the schedule looks back on lie in workgroup memory, a column for each invocation. The constants
of the standard are the fractional parts of roots of primes, and are computed here from that definition.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import isqrt
from typing import Literal

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

import vyre
from vyre import In, Out, Uniform, device, gid, lid, rotate_right, shared, u32

LANES = 64


def cube_root(n: int) -> int:
    """The largest integer whose cube is not above n, by Newton's method from above."""
    root = 1 << -(-n.bit_length() // 3)
    while (closer := (2 * root + n // (root * root)) // 3) < root:
        root = closer
    return root


PRIMES = [n for n in range(2, 312) if all(n % d for d in range(2, isqrt(n) + 1))]
START = np.array([isqrt(p << 64) & 0xFFFFFFFF for p in PRIMES[:8]], np.uint32)
ROUNDS = np.array([cube_root(p << 96) & 0xFFFFFFFF for p in PRIMES], np.uint32)


@device
def spread(x: u32, a: u32, b: u32, c: u32) -> u32:
    """The capital sigmas of the standard."""
    return rotate_right(x, a) ^ rotate_right(x, b) ^ rotate_right(x, c)


@device
def mix(x: u32, a: u32, b: u32, c: u32) -> u32:
    """The small sigmas of the standard."""
    return rotate_right(x, a) ^ rotate_right(x, b) ^ (x >> c)


@vyre.kernel(workgroup=LANES)
def digest_each(
    words: In[u32],
    first: In[u32],
    longest: u32,
    start: Uniform[u32, Literal[8]],
    rounds: Uniform[u32, Literal[64]],
    digests: Out[u32],
) -> None:
    """The blocks of message m are first[m] up to first[m + 1]; no message has more than `longest`."""
    recent = shared(u32, 16 * LANES)
    m = gid.x
    if m + 1 < len(first):
        h0, h1, h2, h3 = start[0], start[1], start[2], start[3]
        h4, h5, h6, h7 = start[4], start[5], start[6], start[7]
        for block in range(min(longest, first[m + 1] - first[m])):
            base = (first[m] + block) * 16
            a, b, c, d, e, f, g, h = h0, h1, h2, h3, h4, h5, h6, h7
            for t in range(64):
                word = words[base + t]
                if t >= 16:
                    old = mix(recent[(t + 1) % 16 * LANES + lid.x], 7, 18, 3)
                    new = mix(recent[(t + 14) % 16 * LANES + lid.x], 17, 19, 10)
                    word = recent[t % 16 * LANES + lid.x] + old + recent[(t + 9) % 16 * LANES + lid.x] + new
                recent[t % 16 * LANES + lid.x] = word
                choice = (e & f) ^ (~e & g)
                majority = (a & b) ^ (a & c) ^ (b & c)
                one = h + spread(e, 6, 11, 25) + choice + rounds[t] + word
                two = spread(a, 2, 13, 22) + majority
                a, b, c, d, e, f, g, h = one + two, a, b, c, d + one, e, f, g
            h0 += a
            h1 += b
            h2 += c
            h3 += d
            h4 += e
            h5 += f
            h6 += g
            h7 += h
        digests[m * 8] = h0
        digests[m * 8 + 1] = h1
        digests[m * 8 + 2] = h2
        digests[m * 8 + 3] = h3
        digests[m * 8 + 4] = h4
        digests[m * 8 + 5] = h5
        digests[m * 8 + 6] = h6
        digests[m * 8 + 7] = h7


def padded(message: bytes) -> bytes:
    """A one bit, zeros, and the length in bits: whole blocks of 64 bytes."""
    return message + b"\x80" + bytes(-(len(message) + 9) % 64) + (8 * len(message)).to_bytes(8, "big")


def solve(messages: Sequence[bytes], backend: str | None = None) -> NDArray[np.uint8]:
    """The digests, in rows of 32 bytes."""
    if not messages:
        return np.zeros((0, 32), np.uint8)
    blocks = [padded(message) for message in messages]
    words = np.frombuffer(b"".join(blocks), ">u4").astype(np.uint32)
    counts = [len(block) // 64 for block in blocks]
    first = np.cumsum([0, *counts]).astype(np.uint32)
    call = digest_each if backend is None else digest_each.on(backend)
    digests = np.zeros((len(messages), 8), np.uint32)
    call(words, first, max(counts), START, ROUNDS, digests=digests, domain=len(messages))
    return digests.astype(">u4").view(np.uint8)


def main() -> int:
    rng = np.random.default_rng(2)
    messages = [rng.bytes(n) for n in rng.integers(0, 1000, 2000)]
    digests = solve(messages)
    right = digests.tobytes() == b"".join(hashlib.sha256(message).digest() for message in messages)
    print(f"{len(messages)} digests, {'as' if right else 'NOT as'} hashlib has them")
    print(f"blake3 {blake3(digests.tobytes()).hexdigest()[:32]}")
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
