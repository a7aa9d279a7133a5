"""What do axes cost? Kernels with ranked buffers against the same kernels with one index, on the cpu backend.

    python bench/ranked.py             a table
    python bench/ranked.py --record    bench/results/ranked_cpu.json

Each pair takes turns in one process, over the same arrays, and gives the same bytes. A ratio above 1 means that the
kernel with axes is slower; it has to stay below 1.25.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from record import record

import vyre
from vyre import D2, In, Out, f32, gid, i32, u32

MOST = 1.25
TURNS = 60


@vyre.kernel(workgroup=(64, 4))
def jacobi_flat(height: u32, width: u32, x: In[f32], out: Out[f32]) -> None:
    i, j = gid.y, gid.x
    if i > 0 and i < height - 1 and j > 0 and j < width - 1:
        at = i * width + j
        out[at] = f32(0.2) * (x[at] + x[at - width] + x[at + width] + x[at - 1] + x[at + 1])


@vyre.kernel(workgroup=(64, 4))
def jacobi(x: In[f32, D2], out: Out[f32, D2]) -> None:
    i, j = gid.y, gid.x
    height, width = x.shape
    if i > 0 and i < height - 1 and j > 0 and j < width - 1:
        out[i, j] = f32(0.2) * (x[i, j] + x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1])


@vyre.kernel(workgroup=(64, 4))
def jacobi_signed(x: In[f32, D2], out: Out[f32, D2]) -> None:
    i, j = i32(gid.y), i32(gid.x)
    height, width = i32(x.shape[0]), i32(x.shape[1])
    if i > 0 and i < height - 1 and j > 0 and j < width - 1:
        out[i, j] = f32(0.2) * (x[i, j] + x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1])


@vyre.kernel(workgroup=(64, 4))
def product_flat(height: u32, depth: u32, width: u32, a: In[f32], b: In[f32], out: Out[f32]) -> None:
    i, j = gid.y, gid.x
    if i < height and j < width:
        total = 0.0
        for k in range(depth):
            total += a[i * depth + k] * b[k * width + j]
        out[i * width + j] = total


@vyre.kernel(workgroup=(64, 4))
def product(a: In[f32, D2], b: In[f32, D2], out: Out[f32, D2]) -> None:
    i, j = gid.y, gid.x
    if i < out.shape[0] and j < out.shape[1]:
        total = 0.0
        for k in range(a.shape[1]):
            total += a[i, k] * b[k, j]
        out[i, j] = total


def pairs() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """The calls of each pair: with axes, and with one index."""
    rng = np.random.default_rng(0)
    x = rng.random((1000, 1100), np.float32)
    a, b = rng.random((300, 400), np.float32), rng.random((400, 500), np.float32)
    flat, ranked = np.zeros_like(x), np.zeros_like(x)
    c, d = np.zeros((300, 500), np.float32), np.zeros((300, 500), np.float32)
    stencil = jacobi_flat.on("cpu"), jacobi.on("cpu"), jacobi_signed.on("cpu")
    matrix = product_flat.on("cpu"), product.on("cpu")

    def old() -> Any:
        return stencil[0](1000, 1100, x, out=flat, domain=(1100, 1000))

    return {
        "jacobi, 1000 x 1100": (lambda: stencil[1](x, out=ranked), old),
        "jacobi with signed ids": (lambda: stencil[2](x, out=ranked), old),
        "product, 300 x 400 x 500": (
            lambda: matrix[1](a, b, out=d),
            lambda: matrix[0](300, 400, 500, a, b, out=c, domain=(500, 300)),
        ),
    }


def measure(calls: tuple[Callable[[], Any], Callable[[], Any]]) -> dict[str, float]:
    """The median of the ratios of turns, and the better times of both."""
    results = [np.asarray(call()).tobytes() for call in calls]
    if results[0] != results[1]:
        raise SystemExit("the two kernels give different bytes")
    took: list[list[float]] = [[], []]
    for turn in range(TURNS):
        for k in (0, 1) if turn % 2 else (1, 0):
            begun = time.perf_counter()
            calls[k]()
            took[k].append(time.perf_counter() - begun)
    ratios = [x / y for x, y in zip(*took, strict=True)]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "axes_us": round(min(took[0]) * 1e6, 1),
        "one_index_us": round(min(took[1]) * 1e6, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Kernels with axes against kernels with one index.")
    parser.add_argument("--record", action="store_true", help="write bench/results/ranked_cpu.json")
    options = parser.parse_args()
    found = {name: measure(calls) for name, calls in pairs().items()}
    for name, row in found.items():
        print(f"{name:28} {row['ratio']:6.3f}   {row['axes_us']:8.1f} us against {row['one_index_us']:8.1f} us")
    if options.record:
        record("ranked_cpu", {"turns": TURNS, "most": MOST, "pairs": found})
    return int(any(row["ratio"] > MOST for row in found.values()))


if __name__ == "__main__":
    raise SystemExit(main())
