"""Where does natural code fall off? Kernels as people write them first, and loops of small launches, against peers.

    make bench-cliffs                       all rows on one and two threads; writes bench/results/cliffs.json
    .bench/bin/python bench/cliffs.py jacobi gaussian --threads 1     some rows, nothing written

A ratio is our median time over the peer's, both in one process and turn by turn, with a bootstrap interval of 95 %:
below 1 is faster. A goal is met when the interval reaches it. Rows of launches are compared with our own warm call.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from record import record

Call = Callable[[], Any]
RANDOM = np.random.default_rng(20261119)
TURN_S = 0.02
"""One turn of a contender: as many calls as take about this long."""


class Row(NamedTuple):
    """`ours` is called first, `peer` after it; both give what is compared, unless `same` is None."""

    name: str
    what: str
    goal: float
    ours: Call
    peer: Call
    same: Callable[[Any, Any], None] | None = None


def _floats(*shape: int) -> Any:
    return RANDOM.uniform(-1, 1, shape).astype(np.float32)


def _close(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(np.asarray(ours).reshape(-1), np.asarray(theirs).reshape(-1), rtol=2e-3, atol=2e-3)


def _equal(ours: Any, theirs: Any) -> None:
    np.testing.assert_array_equal(np.asarray(ours).reshape(-1), np.asarray(theirs).reshape(-1))


def stencils(k: Any) -> Iterator[Row]:
    n = 1000
    x = _floats(n, n)
    out, theirs = np.empty_like(x), np.empty_like(x)

    def numba() -> Any:
        k.numba_jacobi(n, n, x, theirs)
        return theirs

    flat, size = x.reshape(-1), {"domain": (n, n), "out": out.reshape(-1)}
    for name, kernel in (("16x16", k.jacobi_square), ("256x1", k.jacobi_line)):
        on = kernel.on("cpu")
        yield Row(f"jacobi {name}", "numba", 1.1, lambda on=on: on(n, n, flat, **size), numba, _close)
    ranked = k.jacobi_ranked.on("cpu")
    yield Row("jacobi ranked", "numba", 1.1, lambda: ranked(x, out=out), numba, _close)

    image = RANDOM.integers(0, 256, (1024, 1024), dtype=np.uint8)
    mine, other, blur = np.empty_like(image), np.empty_like(image), k.blur.on("cpu")

    def numba_blur() -> Any:
        k.numba_blur(1024, 1024, image, other)
        return other

    yield Row("blur u8", "numba", 1.1, lambda: blur(1024, 1024, image.reshape(-1), domain=(1024, 1024),
              out=mine.reshape(-1)), numba_blur, _equal)  # fmt: skip


def groups(k: Any) -> Iterator[Row]:
    n = 512
    a, b = _floats(n, n), _floats(n, n)
    out, plain, blas = np.empty(n * n, np.float32), np.empty(n * n, np.float32), np.empty((n, n), np.float32)
    tiles, naive = k.matmul_tiles.on("cpu"), k.matmul_naive.on("cpu")

    def run(on: Any, target: Any) -> Any:
        return on(n, a.reshape(-1), b.reshape(-1), out=target, domain=(n, n))

    yield Row("matmul tiles", "our naive kernel", 1.0, lambda: run(tiles, out), lambda: run(naive, plain), _close)
    yield Row("matmul tiles", "NumPy", 2.0, lambda: run(tiles, out), lambda: np.matmul(a, b, out=blas), _close)

    rows, each = 20_000, 40
    counts = RANDOM.integers(0, 2 * each, rows)
    start = np.concatenate(([0], np.cumsum(counts))).astype(np.uint32)
    columns = RANDOM.integers(0, rows, int(start[-1]), dtype=np.uint32)
    values, x = _floats(int(start[-1])), _floats(rows)
    y, theirs, spmv = np.empty(rows, np.float32), np.empty(rows, np.float32), k.spmv.on("cpu")

    def numba() -> Any:
        k.numba_spmv(start, columns, values, x, theirs)
        return theirs

    yield Row("spmv", "numba", 1.3, lambda: spmv(start, columns, values, x, y=y, domain=32 * rows), numba, _close)

    data = RANDOM.integers(0, 1 << 32, 1 << 20, dtype=np.uint32)
    many = data.size // (2 * k.SCAN)
    scanned, serial, totals = np.empty_like(data), np.empty_like(data), np.empty(many, np.uint32)
    scan = k.blelloch.on("cpu")

    def numba_scan() -> Any:
        k.numba_scan(data, serial)
        return serial

    yield Row("blelloch", "numba, serial", 3.0, lambda: scan(data, out=scanned, totals=totals, grid=many)[0],
              numba_scan, _equal)  # fmt: skip


def launches(k: Any) -> Iterator[Row]:
    import vyre

    n = 200
    a0, b0 = _floats(n, n) + np.float32(n) * np.eye(n, dtype=np.float32), _floats(n)
    fan1, fan2 = k.multipliers.on("cpu"), k.eliminate.on("cpu")

    def ours(a: Any, b: Any, m: Any) -> None:
        for t in range(n - 1):
            fan1(n, t, a, m, domain=n - 1 - t)
            fan2(n, t, m, a, b, domain=(n - t, n - 1 - t))

    def on_host() -> Any:
        a, b, m = a0.copy().reshape(-1), b0.copy(), np.zeros(n * n, np.float32)
        ours(a, b, m)
        return a

    def on_device() -> Any:
        a, b, m = (vyre.to_device(v, "cpu") for v in (a0.reshape(-1), b0, np.zeros(n * n, np.float32)))
        ours(a, b, m)
        return a.numpy()

    def numba() -> Any:
        a, b, m = a0.copy(), b0.copy(), np.zeros((n, n), np.float32)
        k.numba_eliminate(a, b, m)
        return a

    yield Row("gaussian, NumPy arrays", "numba, serial", 4.0, on_host, numba, _close)
    yield Row("gaussian, device arrays", "numba, serial", 4.0, on_device, numba, _close)

    x, scale = _floats(64), k.scale.on("cpu")
    out, theirs = np.empty_like(x), np.empty_like(x)
    near, there = vyre.to_device(x, "cpu"), vyre.to_device(out, "cpu")
    number, size = itertools.count(), itertools.count()

    def numba_scale() -> Any:
        k.numba_scale(np.float32(2), x, theirs)
        return theirs

    yield Row("warm call", "numba", 3.0, lambda: scale(2.0, x, out=out), numba_scale, _equal)
    yield Row("device arrays", "NumPy arrays", 1.0, lambda: scale(2.0, near, out=there), lambda: scale(2.0, x, out=out))
    for place, one, result in (("NumPy", x, out), ("device", near, there)):

        def warm(one: Any = one, result: Any = result) -> Any:
            return scale(2.0, one, out=result)

        def numbered(one: Any = one, result: Any = result) -> Any:
            return scale(float(next(number)), one, out=result)

        def spread(one: Any = one, result: Any = result) -> Any:
            return scale(2.0, one, out=result, domain=next(number) % 4_000 + 64)  # few workgroups that do nothing

        yield Row(f"new number, {place}", "warm call", 1.2, numbered, warm)
        yield Row(f"new domain, {place}", "warm call", 2.0, spread, warm)
    large, into = _floats(40_000), np.empty(40_000, np.float32)

    def sized() -> Any:
        some = next(size) % 39_000 + 64
        return scale(2.0, large[:some], out=into[:some])

    yield Row("new size, NumPy", "warm call", 5.0, sized, lambda: scale(2.0, large[:64], out=into[:64]))
    others = [tuple(vyre.to_device(v[: 64 + k], "cpu") for v in (large, into)) for k in range(1500)]

    def sized_there() -> Any:
        one, result = others[next(size) % len(others)]  # more than are remembered
        return scale(2.0, one, out=result)

    yield Row("new size, device", "warm call", 5.0, sized_there, lambda: scale(2.0, near, out=there))
    yield Row("new result, device", "NumPy arrays", 1.0, lambda: scale(2.0, near), lambda: scale(2.0, x))
    whole, inout = np.zeros(10_000_000, np.float32), k.first_64.on("cpu")
    kept = vyre.to_device(whole, "cpu")
    yield Row(
        "64 of 40 MB in place", "device arrays", 2.0, lambda: inout(whole, domain=64), lambda: inout(kept, domain=64)
    )


GROUPS = {"stencils": stencils, "groups": groups, "launches": launches}


def measure(row: Row, rounds: int) -> dict[str, Any]:
    mine, theirs = row.ours(), row.peer()
    if row.same is not None:
        row.same(mine, theirs)
    turns = [(call, max(1, round(TURN_S / _once(call)))) for call in (row.ours, row.peer)]
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for (call, many), found in zip(turns, times, strict=True):
            start = time.perf_counter()
            for _ in range(many):
                call()
            found.append((time.perf_counter() - start) / many)
    ours, peer = map(statistics.median, times)
    low, high = _interval(*times)
    return {
        "against": row.what, "goal": row.goal, "ours_us": round(ours * 1e6, 2), "peer_us": round(peer * 1e6, 2),
        "ratio": round(ours / peer, 3), "interval": [round(low, 3), round(high, 3)], "met": low <= row.goal,
    }  # fmt: skip


def _once(call: Call) -> float:
    found = []
    for _ in range(3):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)


def _interval(mine: list[float], theirs: list[float], draws: int = 2000) -> tuple[float, float]:
    chance = np.random.default_rng(1)

    def medians(times: list[float]) -> Any:
        t = np.asarray(times)
        return np.median(t[chance.integers(0, t.size, (draws, t.size))], axis=1)

    low, high = np.percentile(medians(mine) / medians(theirs), [2.5, 97.5])
    return float(low), float(high)


def here(group: str, wanted: list[str], rounds: int) -> None:
    """The rows of a group in this process, one line of JSON each."""
    import cliff_kernels

    for row in GROUPS[group](cliff_kernels):
        if not wanted or any(row.name.startswith(w) for w in wanted):
            print(json.dumps([row.name, measure(row, rounds)]), flush=True)


def run(threads: int, wanted: list[str], rounds: int) -> list[dict[str, Any]]:
    """All rows on so many threads, each group in a process of its own."""
    names = "VYRE_CPU_THREADS NUMBA_NUM_THREADS OPENBLAS_NUM_THREADS OMP_NUM_THREADS MKL_NUM_THREADS"
    env = os.environ | dict.fromkeys(names.split(), str(threads))
    found = []
    for group in GROUPS:
        command = [sys.executable, __file__, "--group", group, "--rounds", str(rounds), *wanted]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                name, r = json.loads(line)
                found.append({"row": name, "threads": threads, **r})
                low, high = r["interval"]
                print(f"{threads}  {name:<24} {r['ratio']:7.2f} x {r['against']:<17} [{low:.2f}, {high:.2f}] "
                      f"goal {r['goal']}{'' if r['met'] else '  MISSED'}   {r['ours_us']} us", flush=True)  # fmt: skip
        if child.returncode:
            raise SystemExit(child.returncode)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="*", help="rows whose names begin so; nothing is written")
    parser.add_argument("--threads", type=int, action="append", help="by default 1 and 2")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--group", choices=GROUPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.group:
        here(options.group, options.rows, options.rounds)
        return
    found = [r for threads in options.threads or (1, 2) for r in run(threads, options.rows, options.rounds)]
    if not options.rows and not options.threads:
        record("cliffs", {"cores": os.cpu_count(), "rounds": options.rounds, "rows": found})


if __name__ == "__main__":
    main()
