"""Fourier transforms of rows of 64 complex numbers, a workgroup for each row, in shared memory and six stages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import vyre
from vyre import In, Out, barrier, c64, cospi, f32, lid, reverse_bits, shared, sinpi, wg

Complex = NDArray[np.complex64]
N, STAGES = 64, 6


@vyre.kernel(workgroup=N // 2)
def fft(x: In[c64], out: Out[c64]) -> None:
    row, k = wg.x * N, lid.x
    tile = shared(c64, N)
    tile[k] = x[row + (reverse_bits(k) >> (32 - STAGES))]
    tile[k + N // 2] = x[row + (reverse_bits(k + N // 2) >> (32 - STAGES))]
    half = 1
    for _ in range(STAGES):
        barrier()
        at = k // half * 2 * half + k % half
        turn = f32(k % half) / f32(half)
        odd = tile[at + half] * c64(cospi(turn), -sinpi(turn))
        even = tile[at]
        tile[at] = even + odd
        tile[at + half] = even - odd
        half *= 2
    barrier()
    out[row + k] = tile[k]
    out[row + k + N // 2] = tile[k + N // 2]


def solve(x: Complex, backend: str | None = None) -> Complex:
    found: Complex = (fft if backend is None else fft.on(backend))(x.ravel(), grid=len(x)).reshape(x.shape)
    return found


def sample() -> tuple[Complex]:
    return (np.random.default_rng(3).random((3, N, 2), np.float32).view(np.complex64)[..., 0],)
