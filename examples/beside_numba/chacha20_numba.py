"""`chacha20.py` as numba has it."""

import numpy as np
from numba import cuda, uint32


@cuda.jit(device=True)
def rotate_left(x, n):
    return uint32((x << uint32(n)) | (x >> uint32(32 - n)))


@cuda.jit(device=True)
def quarter(s, a, b, c, d):
    s[a] += s[b]
    s[d] = rotate_left(s[d] ^ s[a], 16)
    s[c] += s[d]
    s[b] = rotate_left(s[b] ^ s[c], 12)
    s[a] += s[b]
    s[d] = rotate_left(s[d] ^ s[a], 8)
    s[c] += s[d]
    s[b] = rotate_left(s[b] ^ s[c], 7)


@cuda.jit
def chacha20(start, message, out):
    block = cuda.grid(1)
    if block < len(message):
        s = cuda.local.array(16, uint32)
        for k in range(16):
            s[k] = start[k]
        s[12] += uint32(block)
        for _ in range(10):
            for k in range(4):
                quarter(s, k, 4 + k, 8 + k, 12 + k)
            for k in range(4):
                quarter(s, k, 4 + (k + 1) % 4, 8 + (k + 2) % 4, 12 + (k + 3) % 4)
        s[12] += uint32(block)
        for k in range(16):
            out[block, k] = message[block, k] ^ (s[k] + start[k])


def solve(start, message):
    out = np.zeros_like(message)
    chacha20[(len(message) + 63) // 64, 64](start, message, out)
    return out
