"""What staying on the device saves: times of one way over times of the other, by turns in one run.

    python bench/resident.py                     cpu, and what else is here
    python bench/resident.py --backend cpu --json    also write bench/results/resident.json

Ten small kernels as a sequence over the same calls one by one (goal on cpu: at most 0.5), over arrays of the host and
of the device; eight inputs of 4 MB as a stream over plain calls; 64 neighbouring words read back at once over one by
one; 20,000 iterations of a program that has settled after 5 over 20 iterations; four steps of one workgroup that have
nothing to do with each other over four in a row; and 4 MB of results of which 4 KB count over all of them. On cpu, ten
kernels over 64 M floats that become one launch, over NumPy (goal 0.2) and, where it is installed, over one loop of
numba on as many threads (goal 1.05).
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cli_start import ratio
from record import record

import vyre
from vyre import In, InOut, Out, f32, gid, u32
from vyre.driver import pipeline as pipelines
from vyre.driver.contract.values import ResidentReadRange
from vyre.front.device.home import home_of

ELEMENTS = 1000
KERNELS = 10
ROUNDS = 31
EACH_S = 0.01
"""How long a round of one way lasts, about."""


@vyre.kernel(workgroup=256)
def saxpy(alpha: f32, x: In[f32], y: In[f32], out: Out[f32]) -> None:
    if gid.x < len(out):
        out[gid.x] = alpha * x[gid.x] + y[gid.x]


@vyre.kernel(workgroup=256)
def upwards(x: InOut[u32], most: u32) -> None:
    if gid.x < len(x) and x[gid.x] < most:
        x[gid.x] += 1


@vyre.kernel(workgroup=64)
def long(x: In[u32], out: Out[u32]) -> None:
    if gid.x < len(out):
        a: u32 = x[gid.x]
        for k in range(20_000):
            a = (a ^ (a >> 3)) * 1664525 + k
        out[gid.x] = a


@vyre.kernel(workgroup=256, lengths={"kept": "n"})
def first_of(x: In[u32], count: u32, kept: Out[u32], n: Out[u32, 1]) -> None:
    if gid.x < len(kept):
        kept[gid.x] = x[gid.x]
    if gid.x == 0:
        n[0] = count


def chain(on: Any, x: Any, y: Any) -> Any:
    for _ in range(KERNELS):
        x = on(0.5, x, y)
    return x


def one_launch() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """The same ten kernels over arrays that no cache holds, as one launch."""
    x, y = (np.random.default_rng(k).random(64 << 20, np.float32) for k in (1, 2))
    steps, out = vyre.sequence(lambda x, y: chain(saxpy, x, y)), np.empty_like(x)
    on_device, half = [vyre.to_device(a, "cpu") for a in (x, y)], np.float32(0.5)
    found = {
        f"{KERNELS} kernels, 64 M, over NumPy": (
            lambda: steps(*on_device),
            lambda: chain(lambda alpha, x, y: half * x + y, x, y),
        )
    }
    try:
        import numba
    except ImportError:
        return found

    @numba.njit(parallel=True)  # type: ignore[untyped-decorator]
    def loop(x: Any, y: Any, out: Any) -> None:
        for i in numba.prange(x.size):
            a = x[i]
            for _ in range(KERNELS):
                a = np.float32(0.5) * a + y[i]
            out[i] = a

    loop(x, y, out)
    assert np.asarray(steps(*on_device)).tobytes() == out.tobytes()
    return found | {f"{KERNELS} kernels, 64 M, over numba": (lambda: steps(*on_device), lambda: loop(x, y, out))}


def apart(run: Callable[..., Any], *arrays: Any) -> Any:
    """A call with one launch for each step."""
    with vyre.config(fusion=False):
        return run(*arrays)


def ways(backend: str) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Name -> (ours, what it is compared with)."""
    x, y = (np.random.default_rng(k).random(ELEMENTS, np.float32) for k in (1, 2))
    kernel = saxpy.on(backend)
    steps = vyre.sequence(lambda x, y: chain(saxpy, x, y)).on(backend)
    assert steps(x, y).tobytes() == chain(kernel, x, y).tobytes()
    on_device = [vyre.to_device(a, backend) for a in (x, y)]
    guard = home_of(backend).backend
    handle = guard.allocate_resident(256)
    ranges = [ResidentReadRange(handle, 4 * k, 4) for k in range(64)]
    settles = pipelines.compile(guard, upwards.program)
    zeros, limit = np.zeros(ELEMENTS, np.uint32), np.uint32(5).tobytes()
    inputs = [np.random.default_rng(k).random(1 << 20, np.float32) for k in range(8)]
    few_words, words = np.arange(64, dtype=np.uint32), np.arange(1 << 20, dtype=np.uint32)
    arms = vyre.sequence(lambda x: tuple(long(x) for _ in range(4))).on(backend)
    in_a_row = vyre.sequence(lambda x: long(long(long(long(x))))).on(backend)
    counted, whole = first_of.on(backend), vyre.Kernel.of_program(first_of.program).on(backend)
    few, many = (vyre.DispatchConfig(fixpoint_iterations=n) for n in (20, 20_000))
    return {
        f"{KERNELS} kernels, arrays of the host": (lambda: steps(x, y), lambda: chain(kernel, x, y)),
        f"{KERNELS} kernels, arrays of the device": (
            lambda: steps(*on_device).numpy(),
            lambda: chain(saxpy, *on_device).numpy(),
        ),
        "8 inputs of 4 MB": (
            lambda: list(kernel.map([0.5] * 8, inputs, inputs)),
            lambda: [kernel(0.5, each, each) for each in inputs],
        ),
        "64 neighbouring words": (
            lambda: guard.download_resident(ranges),
            lambda: [guard.download_resident([r]) for r in ranges],
        ),
        "20,000 iterations over 20": (
            lambda: settles.dispatch([zeros, limit], many),
            lambda: settles.dispatch([zeros, limit], few),
        ),
        "4 steps side by side": (lambda: apart(arms, few_words), lambda: apart(in_a_row, few_words)),
        "4 KB that count of 4 MB": (lambda: counted(words, 1000), lambda: whole(words, 1000)),
    } | (one_launch() if backend == "cpu" else {})


def timed(work: Callable[[], Any], times: int) -> float:
    begun = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - begun) / times


def measured(ours: Callable[[], Any], theirs: Callable[[], Any]) -> dict[str, Any]:
    for work in (ours, theirs, ours, theirs):
        work()
    times = [max(1, round(EACH_S / timed(work, 2))) for work in (ours, theirs)]
    mine, other = [], []
    for _ in range(ROUNDS):
        mine.append(timed(ours, times[0]))
        other.append(timed(theirs, times[1]))
    return {
        "us": round(statistics.median(mine) * 1e6, 2),
        "other_us": round(statistics.median(other) * 1e6, 2),
        "ratio": ratio(mine, other),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", action="append", help="one of them; default: cpu, opencl, wgpu, cuda")
    parser.add_argument("--json", action="store_true", help="also write bench/results/resident.json")
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    for backend in options.backend or ("cpu", "opencl", "wgpu", "cuda"):
        try:
            each = ways(backend)
        except vyre.BackendUnavailable as e:
            print(f"{backend}: {e.message}")
            continue
        found[backend] = {}
        for name, (ours, theirs) in each.items():
            row = found[backend][name] = measured(ours, theirs)
            low, high = row["ratio"][1:]
            print(f"{backend:8} {name:34} {row['us']:>10} us over {row['other_us']:>10} us: "
                  f"{row['ratio'][0]} [{low}, {high}]")  # fmt: skip
    if options.json:
        record("resident", {"load": os.getloadavg()[0], "rounds": ROUNDS, "backends": found})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
