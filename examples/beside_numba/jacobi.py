"""Jacobi's method for Laplace's equation: each inner point becomes the mean of its four neighbours, again and again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import vyre
from vyre import D2, In, Out, f32, gid

Floats = NDArray[np.float32]


@vyre.kernel(workgroup=(16, 16))
def jacobi(x: In[f32, D2], out: Out[f32, D2]) -> None:
    i, j = gid.y, gid.x
    h, w = x.shape
    if 0 < i < h - 1 and 0 < j < w - 1:
        out[i, j] = 0.25 * (x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1])
    elif i < h and j < w:
        out[i, j] = x[i, j]


def solve(x: Floats, steps: int, backend: str | None = None) -> Floats:
    step = jacobi if backend is None else jacobi.on(backend)
    for _ in range(steps):
        x = step(x)
    return x


def sample() -> tuple[Floats, int]:
    """A plate that is hot at its upper edge."""
    x = np.zeros((10, 17), np.float32)
    x[0] = 100
    return x, 5
