"""The product of a sparse matrix in compressed rows (CSR) and a vector, in f32.

32 invocations share a row: each adds up every 32nd product, and then they add their sums in pairs. A sum of floats
depends on its order; this order is written down in the kernel, so the result has the same bytes on every machine.
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

import vyre
from vyre import In, Out, f32, gid, static_range, subgroup_shuffle, u32

Floats = NDArray[np.float32]
Words = NDArray[np.uint32]
LANES = 32


@vyre.kernel(workgroup=128)
def multiply(first: In[u32], columns: In[u32], values: In[f32], vector: In[f32], turns: u32, out: Out[f32]) -> None:
    """Row r has the entries first[r] up to first[r + 1]; `turns` times 32 is at least the length of the longest row."""
    row = gid.x // LANES
    lane = gid.x % LANES
    total = 0.0
    for turn in range(turns):
        k = first[row] + turn * LANES + lane
        if k < first[row + 1]:  # which is 0 beyond the last row
            total += values[k] * vector[columns[k]]
    for level in static_range(5):
        total += subgroup_shuffle(total, lane ^ (16 >> level))
    if lane == 0:
        out[row] = total


def solve(first: Words, columns: Words, values: Floats, vector: Floats, backend: str | None = None) -> Floats:
    """Matrix times vector."""
    rows = len(first) - 1
    turns = -(-int(np.diff(first).max(initial=0)) // LANES)
    call = multiply if backend is None else multiply.on(backend)
    product: Floats = call(first, columns, values, vector, turns, sizes={"out": rows}, domain=rows * LANES)
    return product


def random_matrix(rows: int, columns: int, longest: int, seed: int) -> tuple[Words, Words, Floats]:
    """`first`, `columns` and `values` of a matrix whose rows have up to `longest` entries; most have few."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(longest * rng.random(rows) ** 4, columns).astype(np.uint32)
    first = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint32)
    places = [np.sort(rng.choice(columns, n, replace=False)) for n in lengths]
    values = rng.standard_normal(int(first[-1]), dtype=np.float32)
    return first, np.concatenate(places).astype(np.uint32), values


def main() -> int:
    rows = columns = 2000
    first, places, values = random_matrix(rows, columns, longest=300, seed=8)
    vector = np.random.default_rng(9).standard_normal(columns, dtype=np.float32)
    product = solve(first, places, values, vector)
    length = float(np.linalg.norm(product.astype(np.float64)))
    print(f"{rows} x {columns}, {len(values)} entries: the product has the length {length:.3f}")
    print(f"blake3 {blake3(product.tobytes()).hexdigest()[:32]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
