"""What people write before anybody told them what is fast: the kernels of bench/cliffs.py, and numba's of the same."""

from __future__ import annotations

import numba
import numpy as np

import vyre
from vyre import D2, In, InOut, Out, barrier, f32, gid, i32, lid, shared, subgroup_add, subgroup_local_id, u8, u32, wg

TILE = 16
SCAN = 256


def _jacobi(height: u32, width: u32, x: In[f32], out: Out[f32]) -> None:
    j, i = gid.x, gid.y
    if i < height and j < width:
        at = i * width + j
        if i > 0 and i < height - 1 and j > 0 and j < width - 1:
            out[at] = f32(0.2) * (x[at] + x[at - 1] + x[at + 1] + x[at - width] + x[at + width])
        else:
            out[at] = x[at]


jacobi_square = vyre.kernel(workgroup=(16, 16))(_jacobi)
jacobi_line = vyre.kernel(workgroup=(256, 1))(_jacobi)


@vyre.kernel(workgroup=(16, 16))
def jacobi_ranked(x: In[f32, D2], out: Out[f32, D2]) -> None:
    i, j = gid.y, gid.x
    height, width = x.shape
    if i > 0 and i < height - 1 and j > 0 and j < width - 1:
        out[i, j] = f32(0.2) * (x[i, j] + x[i, j - 1] + x[i, j + 1] + x[i - 1, j] + x[i + 1, j])
    elif i < height and j < width:
        out[i, j] = x[i, j]


@vyre.kernel(workgroup=(16, 16))
def blur(height: u32, width: u32, image: In[u8], out: Out[u8]) -> None:
    x, y = gid.x, gid.y
    if x < width and y < height:
        total = u32(0)
        for dy in range(-1, 2):
            for dx in range(-1, 2):
                row = min(max(i32(y) + dy, 0), i32(height) - 1)
                column = min(max(i32(x) + dx, 0), i32(width) - 1)
                total += u32(image[u32(row) * width + u32(column)])
        out[y * width + x] = u8(total // 9)


@vyre.kernel(workgroup=(TILE, TILE))
def matmul_tiles(n: u32, a: In[f32], b: In[f32], out: Out[f32]) -> None:
    left = shared(f32, TILE * TILE)
    right = shared(f32, TILE * TILE)
    row, column = gid.y, gid.x
    total = f32(0)
    for t in range(n // TILE):
        left[lid.y * TILE + lid.x] = a[row * n + t * TILE + lid.x]
        right[lid.y * TILE + lid.x] = b[(t * TILE + lid.y) * n + column]
        barrier()
        for k in range(TILE):
            total += left[lid.y * TILE + k] * right[k * TILE + lid.x]
        barrier()
    out[row * n + column] = total


@vyre.kernel(workgroup=(TILE, TILE))
def matmul_naive(n: u32, a: In[f32], b: In[f32], out: Out[f32]) -> None:
    row, column = gid.y, gid.x
    total = f32(0)
    for k in range(n):
        total += a[row * n + k] * b[k * n + column]
    out[row * n + column] = total


@vyre.kernel(workgroup=128)
def spmv(start: In[u32], columns: In[u32], values: In[f32], x: In[f32], y: Out[f32]) -> None:
    row = gid.x // 32
    lane = subgroup_local_id()
    total = f32(0)
    if row < len(y):
        for k in range(start[row] + lane, start[row + 1], 32):
            total += values[k] * x[columns[k]]
    total = subgroup_add(total)
    if lane == 0 and row < len(y):
        y[row] = total


@vyre.kernel(workgroup=SCAN)
def blelloch(x: In[u32], out: Out[u32], totals: Out[u32]) -> None:
    tile = shared(u32, 2 * SCAN)
    t, first = lid.x, wg.x * (2 * SCAN)
    tile[2 * t] = x[first + 2 * t]
    tile[2 * t + 1] = x[first + 2 * t + 1]
    offset = u32(1)
    d = u32(SCAN)
    while d > 0:
        barrier()
        if t < d:
            a, b = offset * (2 * t + 1) - 1, offset * (2 * t + 2) - 1
            tile[b] = tile[b] + tile[a]
        offset = offset * 2
        d = d // 2
    barrier()
    if t == 0:
        totals[wg.x] = tile[2 * SCAN - 1]
        tile[2 * SCAN - 1] = 0
    d = u32(1)
    while d < 2 * SCAN:
        offset = offset // 2
        barrier()
        if t < d:
            a, b = offset * (2 * t + 1) - 1, offset * (2 * t + 2) - 1
            was = tile[a]
            tile[a] = tile[b]
            tile[b] = tile[b] + was
        d = d * 2
    barrier()
    out[first + 2 * t] = tile[2 * t]
    out[first + 2 * t + 1] = tile[2 * t + 1]


@vyre.kernel(workgroup=64)
def multipliers(n: u32, t: u32, a: In[f32], m: InOut[f32]) -> None:
    i = t + 1 + gid.x
    if i < n:
        m[i * n + t] = a[i * n + t] / a[t * n + t]


@vyre.kernel(workgroup=(16, 16))
def eliminate(n: u32, t: u32, m: In[f32], a: InOut[f32], b: InOut[f32]) -> None:
    i, j = t + 1 + gid.y, t + gid.x
    if i < n and j < n:
        a[i * n + j] = a[i * n + j] - m[i * n + t] * a[t * n + j]
        if gid.x == 0:
            b[i] = b[i] - m[i * n + t] * b[t]


@vyre.kernel(workgroup=64)
def scale(by: f32, x: In[f32], out: Out[f32]) -> None:
    i = gid.x
    if i < len(out):
        out[i] = by * x[i]


@vyre.kernel(workgroup=64)
def first_64(x: InOut[f32]) -> None:
    if gid.x < 64:
        x[gid.x] = x[gid.x] + 1.0


# ---- numba ----------------------------------------------------------------------------------------------------------


@numba.njit(parallel=True)
def numba_jacobi(height, width, x, out):
    for i in numba.prange(height):
        for j in range(width):
            if i > 0 and i < height - 1 and j > 0 and j < width - 1:
                out[i, j] = np.float32(0.2) * (x[i, j] + x[i, j - 1] + x[i, j + 1] + x[i - 1, j] + x[i + 1, j])
            else:
                out[i, j] = x[i, j]


@numba.njit(parallel=True)
def numba_blur(height, width, image, out):
    for y in numba.prange(height):
        for x in range(width):
            total = 0
            for dy in range(-1, 2):
                for dx in range(-1, 2):
                    row = min(max(y + dy, 0), height - 1)
                    column = min(max(x + dx, 0), width - 1)
                    total += image[row, column]
            out[y, x] = total // 9


@numba.njit(parallel=True)
def numba_spmv(start, columns, values, x, y):
    for row in numba.prange(y.size):
        total = np.float32(0)
        for k in range(start[row], start[row + 1]):
            total += values[k] * x[columns[k]]
        y[row] = total


@numba.njit
def numba_scan(x, out):
    total = np.uint32(0)
    for k in range(x.size):
        if k % (2 * SCAN) == 0:
            total = np.uint32(0)
        out[k] = total
        total = np.uint32(total + x[k])


@numba.njit
def numba_eliminate(a, b, m):
    n = a.shape[0]
    for t in range(n - 1):
        for i in range(t + 1, n):
            m[i, t] = a[i, t] / a[t, t]
        for i in range(t + 1, n):
            for j in range(t, n):
                a[i, j] -= m[i, t] * a[t, j]
            b[i] -= m[i, t] * b[t]


@numba.njit(parallel=True)
def numba_scale(by, x, out):
    for i in numba.prange(x.size):
        out[i] = by * x[i]
