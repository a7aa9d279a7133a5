"""How steep a grey picture is at each pixel, by Sobel's two filters. The border, which lacks neighbours, is 0."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import vyre
from vyre import D2, In, Out, f32, gid, sqrt


@vyre.kernel(workgroup=(16, 16))
def sobel(image: In[f32, D2], out: Out[f32, D2]) -> None:
    i, j = gid.y, gid.x
    h, w = image.shape
    if 0 < i < h - 1 and 0 < j < w - 1:
        right = image[i - 1, j + 1] + 2 * image[i, j + 1] + image[i + 1, j + 1]
        left = image[i - 1, j - 1] + 2 * image[i, j - 1] + image[i + 1, j - 1]
        below = image[i + 1, j - 1] + 2 * image[i + 1, j] + image[i + 1, j + 1]
        above = image[i - 1, j - 1] + 2 * image[i - 1, j] + image[i - 1, j + 1]
        x, y = right - left, below - above
        out[i, j] = sqrt(x * x + y * y)


def solve(image: NDArray[np.float32], backend: str | None = None) -> NDArray[np.float32]:
    found: NDArray[np.float32] = (sobel if backend is None else sobel.on(backend))(image)
    return found


def sample() -> tuple[NDArray[np.float32]]:
    return (np.random.default_rng(1).random((13, 21), np.float32),)
