"""A product of matrices: a workgroup makes 32 x 32 elements of it, each of its invocations 4 x 4 in registers.

Tiles of both matrices go through shared memory, 8 columns and 8 rows at a time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import vyre
from vyre import D2, In, Out, barrier, f32, lid, local, shared, static_range, wg

Floats = NDArray[np.float32]
TILE, DEEP, OWN = 32, 8, 4
SIDE = TILE // OWN


@vyre.kernel(workgroup=(SIDE, SIDE))
def matmul(a: In[f32, D2], b: In[f32, D2], out: Out[f32, D2]) -> None:
    left = shared(f32, TILE * DEEP)
    right = shared(f32, DEEP * TILE)
    acc = local(f32, OWN * OWN)
    top, start = wg.y * TILE, wg.x * TILE
    for first in range(0, a.shape[1], DEEP):
        for k in range(OWN):
            row, column = lid.y + SIDE * k, lid.x + SIDE * k
            left[row * DEEP + lid.x] = a[top + row, first + lid.x]
            right[lid.y * TILE + column] = b[first + lid.y, start + column]
        barrier()
        for k in range(DEEP):
            for i in static_range(OWN):
                for j in static_range(OWN):
                    acc[i * OWN + j] += left[(lid.y * OWN + i) * DEEP + k] * right[k * TILE + lid.x * OWN + j]
        barrier()
    for i in static_range(OWN):
        for j in static_range(OWN):
            out[top + lid.y * OWN + i, start + lid.x * OWN + j] = acc[i * OWN + j]


def solve(a: Floats, b: Floats, backend: str | None = None) -> Floats:
    shape = len(a), b.shape[1]
    found: Floats = (matmul if backend is None else matmul.on(backend))(a, b, sizes={"out": shape})
    return found


def sample() -> tuple[Floats, Floats]:
    rng = np.random.default_rng(6)
    return rng.random((37, 19), np.float32), rng.random((19, 45), np.float32)
