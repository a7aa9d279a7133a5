"""How matrices are multiplied and transposed: `docs/libs/linalg.md` has the definition, all of these give it."""

from __future__ import annotations

from typing import TypeVar

from vyre import In, Out, barrier, const, gid, kernel, lid, local, shared, static_range, u32, wg

from .reduce_kernels import converted, plus_product

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")

CHUNK = 128
"""Products that one chain adds up."""
LANES = 64
ROWS = 8
"""Rows of the result that an invocation computes, so that it reads each element of the second matrix once for them."""
TILE = 32
TILE_ROWS = 8


@kernel(workgroup=(LANES, 1))
def products(
    a: In[T],
    b: In[T],
    zero: A,
    height: u32,
    width: u32,
    depth: u32,
    a_row: u32,
    a_step: u32,
    a_batch: u32,
    b_batch: u32,
    out: Out[R],
    *,
    kind: const,
    T: const,
    A: const,
    R: const,
) -> None:
    """Element (row, k) of the first matrix lies at `row * a_row + k * a_step`, and a batch `a_batch` further."""
    i = gid.y * ROWS
    j = gid.x
    left = gid.z * a_batch + i * a_row
    right = gid.z * b_batch + j
    total = local(A, ROWS)
    for r in static_range(ROWS):
        total[r] = zero
    chunks = (min(depth, len(a)) + (CHUNK - 1)) // CHUNK  # of resident numbers, a device may know no other bound
    for chunk in range(chunks):
        part = local(A, ROWS)
        for r in static_range(ROWS):
            part[r] = zero
        for step in range(min(u32(CHUNK), depth - chunk * CHUNK)):
            k = chunk * CHUNK + step
            w = converted(b[right + k * width], kind)
            for r in static_range(ROWS):
                v = converted(a[left + r * a_row + k * a_step], kind)
                part[r] = plus_product(part[r], v, w, kind)
        for r in static_range(ROWS):
            total[r] += part[r]
    if j < width:
        for r in static_range(ROWS):
            if i + r < height:
                out[(gid.z * height + i + r) * width + j] = R(total[r])


@kernel(workgroup=LANES)
def product_of_each(x: In[T], y: In[T], out: Out[R], *, kind: const, T: const, R: const) -> None:
    i = gid.x // len(y)
    j = gid.x % len(y)
    if gid.x < len(out):
        out[gid.x] = R(converted(x[i], kind) * converted(y[j], kind))


@kernel(workgroup=(TILE, TILE_ROWS))
def transposed(x: In[T], height: u32, width: u32, out: Out[T], *, T: const) -> None:
    """A workgroup turns a square, so that reads and writes both go along rows."""
    square = shared(T, TILE * (TILE + 1))
    start = wg.z * height * width
    for r in static_range(TILE // TILE_ROWS):
        i = wg.y * TILE + lid.y + r * TILE_ROWS
        j = wg.x * TILE + lid.x
        if i < height and j < width:
            square[(lid.y + r * TILE_ROWS) * (TILE + 1) + lid.x] = x[start + i * width + j]
    barrier()
    for r in static_range(TILE // TILE_ROWS):
        j = wg.x * TILE + lid.y + r * TILE_ROWS
        i = wg.y * TILE + lid.x
        if i < height and j < width:
            out[start + j * height + i] = square[lid.x * (TILE + 1) + lid.y + r * TILE_ROWS]
