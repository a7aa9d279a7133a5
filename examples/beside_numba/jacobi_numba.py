"""`jacobi.py` as numba has it."""

import numpy as np
from numba import cuda


@cuda.jit
def jacobi(x, out):
    j, i = cuda.grid(2)
    h, w = x.shape
    if 0 < i < h - 1 and 0 < j < w - 1:
        out[i, j] = 0.25 * (x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1])
    elif i < h and j < w:
        out[i, j] = x[i, j]


def solve(x, steps):
    h, w = x.shape
    x, out = x.copy(), np.zeros_like(x)
    for _ in range(steps):
        jacobi[((w + 15) // 16, (h + 15) // 16), (16, 16)](x, out)
        x, out = out, x
    return x
