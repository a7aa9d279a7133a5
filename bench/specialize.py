"""What is gained when a number of a kernel is compiled in, and after how many calls that has paid for its compilation.

    python bench/specialize.py           prints JSON
    python bench/specialize.py --record  keeps it in bench/results too

Calls with the number and calls of the variant take turns. `speed` is the median time with the number over that of the
variant, with a bootstrap interval of 95 %; `pays_after` the calls that save what compiling the variant took, or null
where the interval does not say that calls are faster.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from record import record

import vyre
from vyre import In, Kernel, Out, f32, gid, u32
from vyre.driver.selection.registry import acquire, registered_backends

ROUNDS = 31


@vyre.kernel(workgroup=256)
def saxpy(alpha: f32, x: In[f32], y: In[f32], out: Out[f32]) -> None:
    i = gid.x
    if i < len(out):
        out[i] = alpha * x[i] + y[i]


@vyre.kernel(workgroup=256)
def horner(n: u32, x: In[f32], y: In[f32], out: Out[f32]) -> None:
    i = gid.x
    if i < len(out):
        a = f32(1.0)
        for _ in range(n):
            a = a * x[i] + y[i]
        out[i] = a


@vyre.kernel(workgroup=256)
def rotate_rows(width: u32, x: In[u32], out: Out[u32]) -> None:
    i = gid.x
    if i < len(out):
        out[i] = x[i // width * width + (i + 1) % width]


def cases(n: int) -> dict[str, tuple[Kernel, dict[str, Any], list[Any]]]:
    x, y = np.linspace(0, 1, n, dtype=np.float32), np.ones(n, np.float32)
    return {
        "saxpy": (saxpy, {"alpha": 2.0}, [x, y]),
        "horner": (horner, {"n": 8}, [x, y]),
        "rotate_rows": (rotate_rows, {"width": 640}, [np.arange(n, dtype=np.uint32)]),
    }


def compile_s(backend: str, kernel: Kernel, numbers: dict[str, Any]) -> float:
    """Making the variant's program and compiling it, with nothing in memory or on disk."""
    with acquire(backend) as guard:
        guard.pipelines.store = None
        vyre.compile(kernel.program, backend=guard)  # loads the compiler
        begun = time.perf_counter()
        vyre.compile(kernel.specialize(**numbers), backend=guard)
        return time.perf_counter() - begun


def measured(backend: str, n: int, name: str) -> dict[str, Any]:
    kernel, numbers, arrays = cases(n)[name]
    general, fixed = kernel.on(backend), Kernel.of_program(kernel.specialize(**numbers), name).on(backend)
    ways: tuple[Callable[[], Any], ...] = lambda: general(*numbers.values(), *arrays), lambda: fixed(*arrays)
    assert ways[0]().tobytes() == ways[1]().tobytes()
    repeats = max(3, 200_000 // n)
    pairs = [(per_call_s(ways[0], repeats), per_call_s(ways[1], repeats)) for _ in range(ROUNDS)]
    rng = random.Random(1)
    ratios = sorted(speed(rng.choices(pairs, k=len(pairs))) for _ in range(2000))
    low, high = ratios[len(ratios) // 40], ratios[-len(ratios) // 40]
    saved = statistics.median(a for a, _ in pairs) - statistics.median(b for _, b in pairs)
    cost = compile_s(backend, kernel, numbers)
    return {
        "backend": backend,
        "elements": n,
        "kernel": name,
        "speed": round(speed(pairs), 2),
        "interval": [round(low, 2), round(high, 2)],
        "compile_ms": round(1e3 * cost, 1),
        "pays_after": round(cost / saved) if low > 1 else None,
    }


def per_call_s(call: Callable[[], Any], repeats: int) -> float:
    begun = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - begun) / repeats


def speed(pairs: list[tuple[float, float]]) -> float:
    return statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    asked = parser.parse_args()
    here = [each.id for each in registered_backends() if each.id != "reference" and each.unavailable() is None]
    load = os.getloadavg()[0]
    rows = [measured(backend, n, name) for backend in here for n in (1000, 1_000_000) for name in cases(1)]
    result = {"load": round(load, 1), "cores": os.cpu_count(), "rounds": ROUNDS, "rows": rows}
    print(record("specialize", result) if asked.record else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
