"""How fast is `vyre.libs` on this processor? Speed of ours over that of NumPy.

    python bench/libs.py             a table
    python bench/libs.py --record    bench/results/libs_cpu.json
    python bench/libs.py --errors    rounding errors over those of NumPy, of 1,000 seeded inputs

Each pair takes turns in one process, over the same arrays and with results that are there already, where the peer takes
them. A speed above 1 means that ours is faster; the interval is of the median, by bootstrap.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from record import record

from vyre.libs import linalg, pick, prefix, random, reduce, segments, sort

ROUNDS = 21
N = 1 << 24
Call = Callable[[], Any]


def pairs() -> dict[str, tuple[Call, Call]]:
    """Ours and the peer's, by name."""
    rng = np.random.default_rng(0)
    x = rng.random(N, np.float32)
    square, small, out = x.reshape(4096, 4096), x[: 1 << 20].reshape(1024, 1024), np.empty_like(x)
    whole, words = x.view(np.uint32), np.empty(N, np.uint32)
    vector, keys = small[0].copy(), rng.integers(0, 1 << 32, 1 << 20, dtype=np.uint32)
    turned, product = np.empty((4096, 4096), np.float32), np.empty((1024, 1024), np.float32)
    sfc = np.random.Generator(np.random.SFC64(0))
    mask, pixels = x < 0.5, (x * 256).astype(np.uint8)
    places = rng.integers(0, N, 1 << 20, dtype=np.uint32)
    edges = np.concatenate(([0], np.sort(rng.choice(N, (1 << 16) - 1, replace=False)), [N]))
    here = {"backend": "cpu"}
    return {
        "sum, 16 M f32": (lambda: reduce.sum(x, **here), lambda: x.sum()),
        "sum of rows, 4096 x 4096": (lambda: reduce.sum(square, 1, **here), lambda: square.sum(1)),
        "sum of columns, 4096 x 4096": (lambda: reduce.sum(square, 0, **here), lambda: square.sum(0)),
        "sum of rows, 1 M x 16": (lambda: reduce.sum(x.reshape(-1, 16), 1, **here), lambda: x.reshape(-1, 16).sum(1)),
        "min, 16 M f32": (lambda: reduce.min(x, **here), lambda: x.min()),
        "argmax, 16 M f32": (lambda: reduce.argmax(x, **here), lambda: x.argmax()),
        "var, 16 M f32": (lambda: reduce.var(x, **here), lambda: x.var()),
        "sum, 100 f32": (lambda: reduce.sum(x[:100], **here), lambda: x[:100].sum()),
        "prefix sum, 16 M f32": (lambda: prefix.sum(x, out=out, **here), lambda: np.cumsum(x, out=out)),
        "prefix sum, 16 M u32": (lambda: prefix.sum(whole, out=words, **here), lambda: np.cumsum(whole, out=words)),
        "normal, 16 M f32": (
            lambda: random.normal(N, seed=1, out=out, **here),
            lambda: sfc.standard_normal(N, np.float32, out=out),
        ),
        "uniform, 16 M f32": (
            lambda: random.uniform(N, seed=1, out=out, **here),
            lambda: sfc.random(N, np.float32, out=out),
        ),
        "integers, 16 M u32": (
            lambda: random.integers(N, 0, 1000, dtype=np.uint32, seed=1, out=words, **here),
            lambda: sfc.integers(0, 1000, N, np.uint32),
        ),
        "sort, 1 M u32": (lambda: sort.sort(keys, **here), lambda: np.sort(keys)),
        "argsort, 1 M u32": (lambda: sort.argsort(keys, **here), lambda: np.argsort(keys, kind="stable")),
        "top 100 of 1 M u32": (lambda: sort.topk(keys, 100, **here), lambda: np.sort(np.partition(keys, -100)[-100:])),
        "unique, 1 M u32": (lambda: sort.unique(keys, **here), lambda: np.unique(keys)),
        "argsort, 1000 u32": (
            lambda: sort.argsort(keys[:1000], **here),
            lambda: np.argsort(keys[:1000], kind="stable"),
        ),
        "compact, 16 M f32": (lambda: pick.compact(x, mask, **here), lambda: x[mask]),
        "take, 1 M of 16 M f32": (lambda: pick.take(x, places, **here), lambda: np.take(x, places)),
        "histogram, 16 M f32": (
            lambda: pick.histogram(x, 256, (0, 1), **here),
            lambda: np.histogram(x, 256, (0, 1)),
        ),
        "bincount, 16 M u8": (lambda: pick.bincount(pixels, 256, **here), lambda: np.bincount(pixels, minlength=256)),
        "scatter_add, 1 M f32 to 1000": (
            lambda: pick.scatter_add(x[:1000], places % 1000, x[: 1 << 20], **here),
            lambda: np.add.at(x[:1000].copy(), places % 1000, x[: 1 << 20]),
        ),
        "sum of 64 k segments, 16 M f32": (
            lambda: segments.sum(x, edges, **here),
            lambda: np.add.reduceat(x, edges[:-1]),
        ),
        "matmul, 1024": (
            lambda: linalg.matmul(small, small, out=product, **here),
            lambda: np.matmul(small, small, out=product),
        ),
        "matvec, 1024": (lambda: linalg.matvec(small, vector, **here), lambda: small @ vector),
        "transpose, 4096": (
            lambda: linalg.transpose(square, out=turned, **here),
            lambda: np.copyto(turned, square.T),
        ),
    }


def measure(ours: Call, peer: Call, rounds: int) -> dict[str, Any]:
    took: list[list[float]] = [[], []]
    for call in (ours, peer):
        call()
    for turn in range(rounds):
        for k in (0, 1) if turn % 2 else (1, 0):
            begun = time.perf_counter()
            (ours, peer)[k]()
            took[k].append(time.perf_counter() - begun)
    speed = statistics.median(took[1]) / statistics.median(took[0])
    rng = np.random.default_rng(1)
    mine, theirs = (np.array(t)[rng.integers(0, rounds, (2000, rounds))] for t in took)
    low, high = np.quantile(np.median(theirs, 1) / np.median(mine, 1), (0.025, 0.975))
    return {
        "speed": round(speed, 3),
        "interval": [round(float(low), 3), round(float(high), 3)],
        "ours_ms": round(statistics.median(took[0]) * 1e3, 4),
        "peer_ms": round(statistics.median(took[1]) * 1e3, 4),
    }


def errors() -> None:
    """Errors are in units of what a rounding may cost there: 1e-7 of the sizes that are added, or of the result."""
    rng = np.random.default_rng(0)
    for name in ("sum", "mean", "dot", "var"):
        mine, theirs = [], []
        for k in range(1000):
            n = int(np.exp(rng.uniform(np.log(2), np.log(40_000))))
            x = rng.random(n, np.float32) if k % 2 else rng.standard_normal(n).astype(np.float32)
            y = rng.random(n, np.float32) if name == "dot" else None
            exact = x.astype(np.float64)
            if y is None:
                found, peer = getattr(reduce, name)(x), getattr(x, name)()
                true = getattr(exact, name)()
            else:
                found, peer, true = reduce.dot(x, y), np.dot(x, y), exact @ y.astype(np.float64)
            unit = 1e-7 * (np.abs(exact).sum() if name in ("sum", "dot") else abs(true)) + 1e-30
            mine.append(abs(float(found) - true) / unit + 1e-3)
            theirs.append(abs(float(peer) - true) / unit + 1e-3)
        mean = np.exp(np.mean(np.log(np.array(mine) / np.array(theirs))))
        print(f"{name:5} geometric mean {mean:.2f}, largest {max(mine) / max(theirs):.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(description="vyre.libs on the processor, beside NumPy.")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--record", action="store_true", help="write bench/results/libs_cpu.json")
    parser.add_argument("--errors", action="store_true", help="compare rounding errors, and nothing else")
    options = parser.parse_args()
    if options.errors:
        errors()
        return 0
    found = {}
    for name, (ours, peer) in pairs().items():
        found[name] = row = measure(ours, peer, options.rounds)
        low, high = row["interval"]
        times = f"{row['ours_ms']:9.3f} ms, peer {row['peer_ms']:9.3f} ms"
        print(f"{name:28} {row['speed']:7.2f} ({low:.2f} to {high:.2f})   {times}")
    if options.record:
        record("libs_cpu", {"rounds": options.rounds, "peer": f"numpy {np.__version__}", "pairs": found})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
