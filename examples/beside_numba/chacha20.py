"""ChaCha20, the cipher of RFC 8439: each invocation makes 64 bytes of the key stream and lays them over the message."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import vyre
from vyre import D2, In, InOut, Out, gid, local, rotate_left, u32

Words = NDArray[np.uint32]


@vyre.device
def quarter(s: InOut[u32], a: u32, b: u32, c: u32, d: u32) -> None:
    s[a] += s[b]
    s[d] = rotate_left(s[d] ^ s[a], 16)
    s[c] += s[d]
    s[b] = rotate_left(s[b] ^ s[c], 12)
    s[a] += s[b]
    s[d] = rotate_left(s[d] ^ s[a], 8)
    s[c] += s[d]
    s[b] = rotate_left(s[b] ^ s[c], 7)


@vyre.kernel
def chacha20(start: In[u32], message: In[u32, D2], out: Out[u32, D2]) -> None:
    block = gid.x
    if block < len(message):
        s = local(u32, 16)
        for k in range(16):
            s[k] = start[k]
        s[12] += block
        for _ in range(10):
            for k in range(4):
                quarter(s, k, 4 + k, 8 + k, 12 + k)
            for k in range(4):
                quarter(s, k, 4 + (k + 1) % 4, 8 + (k + 2) % 4, 12 + (k + 3) % 4)
        s[12] += block
        for k in range(16):
            out[block, k] = message[block, k] ^ (s[k] + start[k])


def solve(start: Words, message: Words, backend: str | None = None) -> Words:
    found: Words = (chacha20 if backend is None else chacha20.on(backend))(start, message)
    return found


def sample() -> tuple[Words, Words]:
    """The state of RFC 8439, section 2.4.2: constants, key, counter, nonce; and a message of five blocks."""
    constants = np.frombuffer(b"expand 32-byte k", "<u4")
    key = np.frombuffer(bytes(range(32)), "<u4")
    nonce = np.frombuffer(bytes.fromhex("000000000000004a00000000"), "<u4")
    start = np.concatenate([constants, key, [1], nonce]).astype(np.uint32)
    return start, np.arange(80, dtype=np.uint32).reshape(5, 16)
