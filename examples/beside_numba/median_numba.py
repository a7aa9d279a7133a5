"""`median.py` as numba has it."""

import numpy as np
from numba import cuda, float32


@cuda.jit
def median(image, out):
    j, i = cuda.grid(2)
    h, w = image.shape
    if i < h and j < w:
        window = cuda.local.array(9, float32)
        for k in range(9):
            v = image[min(max(i + k // 3 - 1, 0), h - 1), min(max(j + k % 3 - 1, 0), w - 1)]
            at = k
            for _ in range(k):
                if window[at - 1] <= v:
                    break
                window[at] = window[at - 1]
                at -= 1
            window[at] = v
        out[i, j] = window[4]


def solve(image):
    out = np.zeros_like(image)
    h, w = image.shape
    median[((w + 15) // 16, (h + 15) // 16), (16, 16)](image, out)
    return out
