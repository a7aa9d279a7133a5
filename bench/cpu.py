"""The cpu backend against NumPy and every peer that is installed, each row in one process, round by round.

    make bench-cpu                     all rows; writes bench/results/cpu.json (draw it with bench/chart.py)
    python bench/cpu.py xor scan       some rows, nothing written
    python bench/cpu.py --rounds 5     a quick look

Each round runs every contender for 50 ms, in random order, and times the last run; outputs are allocated before.
A ratio is the median time of the best peer over ours, with a bootstrap interval of 95 %; a goal is met when the
interval reaches it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cpu_kernels as kernels
import cpu_peers
import numpy as np
from record import record

import vyre
from vyre.driver.selection.registry import acquire

BACKEND = "cpu"
WARM_UP_S = 0.05
COLD = Path(__file__).with_name("cpu_cold.py")
Call = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """`data` makes the inputs, `ours` the calls to measure by name, `check` raises when a result is wrong."""

    name: str
    title: str
    data: Callable[[], dict[str, Any]]
    ours: Callable[[dict[str, Any]], dict[str, Call]]
    check: Callable[[dict[str, Any], Any], None]
    goal: float = 1.0
    nbytes: int = 0
    repeat: int = 1
    peer: str | None = None
    """The peer that the goal names; by default the best one."""
    peer_row: str = ""


# ---- inputs ---------------------------------------------------------------------------------------------------------

N = 1 << 24
RANDOM = np.random.default_rng(20261116)


def _words() -> dict[str, Any]:
    return {"a": RANDOM.integers(0, 1 << 32, N, dtype=np.uint32), "b": RANDOM.integers(0, 1 << 32, N, dtype=np.uint32)}


def _floats() -> dict[str, Any]:
    return {
        "alpha": 2.5,
        "x": RANDOM.uniform(-10, 10, N).astype(np.float32),
        "y": RANDOM.uniform(-10, 10, N).astype(np.float32),
    }


def _counts() -> dict[str, Any]:
    return {"x": RANDOM.integers(0, 1 << 32, N, dtype=np.uint32)}


def _bytes() -> dict[str, Any]:
    return {"data": RANDOM.integers(0, 256, 64 << 20, dtype=np.uint8)}


def _matrices(n: int = 1024) -> dict[str, Any]:
    return {name: RANDOM.uniform(-1, 1, (n, n)).astype(np.float32) for name in "ab"}


def _options(n: int = 1 << 22) -> dict[str, Any]:
    return {
        "price": RANDOM.uniform(5, 30, n).astype(np.float32),
        "strike": RANDOM.uniform(1, 100, n).astype(np.float32),
        "years": RANDOM.uniform(0.25, 10, n).astype(np.float32),
        "rate": 0.02,
        "volatility": 0.3,
    }


def _plane() -> dict[str, Any]:
    return {"left": -2.0, "top": -1.25, "step": 2.5 / 1024, "width": 1024, "height": 1024, "limit": 256}


def _text() -> dict[str, Any]:
    """64 MB of lower-case text, 100 literals of which none ends another, and their automaton."""
    chance = random.Random(7)
    patterns: list[bytes] = []
    while len(patterns) < 100:
        new = bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=chance.randint(5, 12)))
        if not any(p.endswith(new) or new.endswith(p) for p in patterns):
            patterns.append(new)
    text = RANDOM.integers(97, 123, 64 << 20, dtype=np.uint8)
    for place in RANDOM.integers(0, text.size - 16, 6000):
        pattern = patterns[chance.randrange(100)]
        text[place : place + len(pattern)] = np.frombuffer(pattern, np.uint8)
    table, accepting, wide, symbols = _automaton(patterns)
    return {
        "text": text,
        "patterns": patterns,
        "table": table,
        "accepting": accepting,
        "wide_table": wide.reshape(-1),
        "symbols": symbols,
    }


def _automaton(patterns: list[bytes]) -> tuple[np.ndarray, int, np.ndarray, np.ndarray]:
    """Aho-Corasick as full tables, over the bytes in use and over all bytes.

    In the narrow one a state is the place of its row, and those at which a pattern ends come last, from the number on
    that goes with the table; it has room for every u16 and symbol, so that no lookup is out of bounds. In the wide one
    a state is a number and its high bit says that a pattern ended.
    """
    used = sorted(set(b"".join(patterns)))
    symbols = np.zeros(256, np.uint8)
    symbols[used] = np.arange(1, len(used) + 1)
    children: list[dict[int, int]] = [{}]
    ends = [False]
    for pattern in patterns:
        at = 0
        for byte in pattern:
            if byte not in children[at]:
                children[at][byte] = len(children)
                children.append({})
                ends.append(False)
            at = children[at][byte]
        ends[at] = True
    wide = np.zeros((len(children), 256), np.uint16)
    fail, queue = [0] * len(children), list(children[0].values())
    for byte, child in children[0].items():
        wide[0, byte] = child
    for at in queue:
        ends[at] = ends[at] or ends[fail[at]]
        wide[at] = wide[fail[at]]
        for byte, child in children[at].items():
            fail[child] = int(wide[fail[at], byte])
            wide[at, byte] = child
            queue.append(child)
    width, order = len(used) + 1, np.argsort(ends, kind="stable")
    place = np.empty(len(children), np.uint16)
    place[order] = np.arange(len(children)) * width
    table = np.zeros((1 << 16) + 256, np.uint16)
    for k, byte in enumerate(used):
        table[place.astype(int) + k + 1] = place[wide[:, byte]]
    wide |= np.array(ends)[wide].astype(np.uint16) << 15
    return table, (len(ends) - sum(ends)) * width, wide, symbols


# ---- ours -----------------------------------------------------------------------------------------------------------


def _kernel(kernel: Any, *names: str, out: Callable[[dict[str, Any]], Any], **fixed: Any) -> Callable[..., Any]:
    """A kernel over some of the data, with its outputs allocated."""

    def prepare(d: dict[str, Any]) -> dict[str, Call]:
        on, arguments, target = kernel.on(BACKEND), [d[n] for n in names], out(d)
        return {"vyre": lambda: on(*arguments, out=target, **fixed)}

    return prepare


def _sum(d: dict[str, Any]) -> dict[str, Call]:
    parts, total = np.empty(kernels.SUM_LANES, np.float32), np.empty(1, np.float32)
    first, last = kernels.partial_sums.on(BACKEND), kernels.last_sum.on(BACKEND)
    return {"vyre": lambda: last(first(d["x"], out=parts), out=total)[0]}


def _scan(d: dict[str, Any]) -> dict[str, Call]:
    """One block per core; nobody starts from what the last block adds up to."""
    blocks = max(os.cpu_count() or 1, 2)
    totals, out = np.empty((blocks - 1) * kernels.GROUP * kernels.PARTS, np.uint32), np.empty_like(d["x"])
    before = d["x"][: d["x"].size // blocks * (blocks - 1)]
    first, last = kernels.block_totals.on(BACKEND), kernels.scan_blocks.on(BACKEND)
    return {"vyre": lambda: last(d["x"], first(before, out=totals), out=out, grid=(blocks, 1, 1))}


def _histogram(d: dict[str, Any]) -> dict[str, Call]:
    bins, on = np.empty(256, np.uint32), kernels.histogram.on(BACKEND)

    def run() -> Any:
        bins.fill(0)
        return on(d["data"], bins)

    return {"vyre": run}


def _matmul(kernel: Any, rows: int) -> Callable[[dict[str, Any]], dict[str, Call]]:
    def prepare(d: dict[str, Any]) -> dict[str, Call]:
        n = d["a"].shape[0]
        out, on = np.empty((n, n), np.float32), kernel.on(BACKEND)
        a, b = d["a"].reshape(-1), d["b"].reshape(-1)
        return {"vyre": lambda: on(a, b, n, out=out, grid=(n // 64, n // rows, 1))}

    return prepare


def _dfa(d: dict[str, Any]) -> dict[str, Call]:
    lanes = 16384
    words = d["text"].view(np.uint32)
    out, on = np.empty(lanes, np.uint32), kernels.dfa_scan.on(BACKEND)

    def run() -> int:
        on(words, d["table"], d["symbols"], d["accepting"], 4, words.size // lanes, out=out)
        return int(out.sum())

    return {"vyre": run}


def _black_scholes(d: dict[str, Any]) -> dict[str, Call]:
    call, put = np.empty_like(d["price"]), np.empty_like(d["price"])
    on = kernels.black_scholes.on(BACKEND)
    inputs = [d[n] for n in ("price", "strike", "years", "rate", "volatility")]
    return {"vyre": lambda: on(*inputs, call=call, put=put)}


def _mandelbrot(d: dict[str, Any]) -> dict[str, Call]:
    out = np.empty((d["height"], d["width"]), np.uint32)
    on = kernels.mandelbrot.on(BACKEND)
    inputs = [d[n] for n in ("left", "top", "step", "width", "limit")]
    return {"vyre": lambda: on(*inputs, count=out, grid=(d["width"] // 64, d["height"], 1))}


def _small(d: dict[str, Any]) -> dict[str, Call]:
    out, on = np.empty_like(d["a"]), kernels.small.on(BACKEND)
    pipe = vyre.compile(kernels.small.program, backend=BACKEND)
    inputs, outputs = [d["a"], d["b"]], [out]
    return {"vyre pipeline": lambda: pipe.dispatch(inputs, out=outputs), "vyre": lambda: on(d["a"], d["b"], out=out)}


# ---- checks ---------------------------------------------------------------------------------------------------------


def _equal(expected: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any], Any], None]:
    cache: dict[int, Any] = {}

    def check(d: dict[str, Any], found: Any) -> None:
        if id(d) not in cache:
            cache[id(d)] = expected(d)
        np.testing.assert_array_equal(np.asarray(found).reshape(-1), np.asarray(cache[id(d)]).reshape(-1))

    return check


def _close(expected: Callable[[dict[str, Any]], Any], **tolerance: float) -> Callable[[dict[str, Any], Any], None]:
    def check(d: dict[str, Any], found: Any) -> None:
        for f, e in zip(np.atleast_2d(found), np.atleast_2d(expected(d)), strict=True):
            np.testing.assert_allclose(np.asarray(f).reshape(-1), np.asarray(e).reshape(-1), **tolerance)

    return check


def _no_check(d: dict[str, Any], found: Any) -> None:
    """Peers contract and approximate, so pictures and counts may differ in single places."""


def _occurrences(d: dict[str, Any], found: Any) -> None:
    text = d["text"].tobytes()
    if "matches" not in d:
        d["matches"] = int(_count_matches(d, text))
    if int(found) != d["matches"]:
        raise AssertionError(f"{found} matches and not {d['matches']}")


def _count_matches(d: dict[str, Any], text: bytes) -> int:
    import re

    return sum(len(re.findall(b"(?=" + p + b")", text)) for p in d["patterns"])


ROWS = (
    Row("xor", "u32 xor, 16 M", _words, _kernel(kernels.xor, "a", "b", out=lambda d: np.empty_like(d["a"])),
        _equal(lambda d: d["a"] ^ d["b"]), 0.95, 3 * 4 * N),
    Row("saxpy", "f32 saxpy, 16 M", _floats,
        _kernel(kernels.saxpy, "alpha", "x", "y", out=lambda d: np.empty_like(d["x"])),
        _close(lambda d: np.float32(d["alpha"]) * d["x"] + d["y"], rtol=1e-5, atol=1e-5), 0.95, 3 * 4 * N),
    Row("sum", "f32 sum, 16 M", _floats, _sum, _close(lambda d: d["x"].astype(np.float64).sum(), rtol=0, atol=4.0),
        0.95, 4 * N),
    Row("scan", "u32 prefix sum, 16 M", _counts, _scan, _equal(lambda d: np.cumsum(d["x"], dtype=np.uint32)), 1.0,
        2 * 4 * N),
    Row("histogram", "256 bins of 64 MB", _bytes, _histogram,
        _equal(lambda d: np.bincount(d["data"], minlength=256)), 1.0, 64 << 20),
    Row("chain", "ten steps fused, 16 M", _floats,
        _kernel(kernels.chain, "x", "y", out=lambda d: np.empty_like(d["x"])),
        _no_check, 1.0, 3 * 4 * N),
    Row("matmul_naive", "matmul 1024, naive", _matrices, _matmul(kernels.matmul_naive, 1),
        _close(lambda d: d["a"] @ d["b"], rtol=0, atol=1e-3), 0.0, 0, peer="numba", peer_row="matmul"),
    Row("matmul", "matmul 1024, tiled", _matrices, _matmul(kernels.matmul_tiled, 8),
        _close(lambda d: d["a"] @ d["b"], rtol=0, atol=1e-3), 1.0, 0, peer="numba"),
    Row("dfa", "DFA scan, 64 MB, 100 patterns", _text, _dfa, _occurrences, 1.0, 64 << 20),
    Row("black_scholes", "Black-Scholes, 4 M", _options, _black_scholes,
        _no_check, 1.0, 5 * 4 << 22),
    Row("mandelbrot", "Mandelbrot, 1024 x 1024, 256", _plane, _mandelbrot, _no_check, 1.0),
    Row("small", "warm call, 64 elements", lambda: {k: v[:64].copy() for k, v in _words().items()}, _small,
        _equal(lambda d: d["a"] ^ d["b"]), 0.0, 0, repeat=1000),
)  # fmt: skip


# ---- measuring ------------------------------------------------------------------------------------------------------


def measure(row: Row, rounds: int) -> dict[str, Any]:
    """Times of every contender, and our ratio to the peer that counts."""
    data = row.data()
    ours = row.ours(data)
    peers = cpu_peers.contenders(row.peer_row or row.name, data)
    for call in ours.values():
        row.check(data, call())
    for name, call in peers.items():
        if name.startswith("numba") or name in ("hyperscan", "pyahocorasick"):
            row.check(data, call())
    everyone = ours | peers
    slow = {name for name, call in everyone.items() if _once(call) > 0.4}
    order = list(everyone)
    times: dict[str, list[float]] = {name: [] for name in order}
    gc.disable()
    chance = random.Random(0)
    for _ in range(rounds):
        for name in chance.sample(order, len(order)):
            if name in slow and len(times[name]) >= 3:
                continue
            call = everyone[name]
            warm_up(call)
            start = time.perf_counter()
            for _ in range(row.repeat):
                call()
            times[name].append((time.perf_counter() - start) / row.repeat)
    gc.enable()
    medians = {name: statistics.median(t) for name, t in times.items()}
    mine = "vyre pipeline" if "vyre pipeline" in ours else "vyre"
    rivals = {n: m for n, m in medians.items() if n in peers and (row.peer is None or n == row.peer)}
    best = min(rivals, key=rivals.__getitem__) if rivals else None
    result: dict[str, Any] = {
        "title": row.title,
        "goal": row.goal,
        "seconds": {n: round(m, 9) for n, m in sorted(medians.items(), key=lambda item: item[1])},
        "best_peer": best,
    }
    if row.nbytes:
        result["gb_per_s"] = {n: round(row.nbytes / m / 1e9, 2) for n, m in medians.items()}
    if best is not None:
        low, high = interval(times[best], times[mine])
        result |= {"ratio": round(medians[best] / medians[mine], 3), "interval": [round(low, 3), round(high, 3)]}
        result["met"] = high >= row.goal
    return result


def warm_up(call: Call) -> None:
    """Until the threads of whoever ran before, which may go on spinning, are asleep and one's own are awake."""
    end = time.perf_counter() + WARM_UP_S
    call()
    while time.perf_counter() < end:
        call()


def _once(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def interval(theirs: list[float], mine: list[float], draws: int = 2000) -> tuple[float, float]:
    """Bootstrap interval of the ratio of medians, 95 %."""
    chance = np.random.default_rng(1)

    def medians(times: list[float]) -> np.ndarray:
        t = np.asarray(times)
        return np.median(t[chance.integers(0, t.size, (draws, t.size))], axis=1)

    low, high = np.percentile(medians(theirs) / medians(mine), [2.5, 97.5])
    return float(low), float(high)


def compile_times(rounds: int) -> dict[str, Any]:
    """Milliseconds of a cold compile of a small kernel, and of loading its object code, each in a fresh process."""
    found = []
    for _ in range(rounds):
        done = subprocess.run([sys.executable, str(COLD)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        found.append([float(x) for x in done.stdout.split()])
    cold, reload = (statistics.median(column) for column in zip(*found, strict=True))
    return {"cold_ms": round(cold, 2), "cold_goal_ms": 40, "reload_ms": round(reload, 3), "reload_goal_ms": 3}


# ---- showing --------------------------------------------------------------------------------------------------------


def show(r: dict[str, Any]) -> None:
    others = "  ".join(f"{n} {_time(s)}" for n, s in r["seconds"].items())
    if "ratio" in r:
        low, high = r["interval"]
        verdict = "" if not r["goal"] else "  met" if r["met"] else f"  MISSED (goal {r['goal']})"
        print(
            f"{r['title']:<30} {r['ratio']:6.2f} x {r['best_peer']:<8} [{low:.2f}, {high:.2f}]{verdict}   {others}",
            flush=True,
        )
    else:
        print(f"{r['title']:<30} no peer   {others}")


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds > 1e-4 else f"{seconds * 1e6:.2f} us"


def alone(row: Row, rounds: int) -> dict[str, Any]:
    """A row in a process of its own: memory is fresh there, and nobody's threads are left over from another row."""
    command = [sys.executable, __file__, row.name, "--rounds", str(rounds), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"some of: {', '.join(r.name for r in ROWS)}, compile")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", action="store_true", help="one row, here, as a line of JSON")
    options = parser.parse_args()
    unknown = set(options.rows) - {r.name for r in ROWS} - {"compile"}
    if unknown:
        parser.error(f"no row is called {', '.join(sorted(unknown))}")
    acquire(BACKEND)
    chosen = [r for r in ROWS if not options.rows or r.name in options.rows]
    if options.json:
        if len(chosen) != 1:
            parser.error("name one row with --json")
        print(json.dumps(measure(chosen[0], options.rounds)))
        return
    results = {}
    for row in chosen:
        results[row.name] = alone(row, options.rounds)
        show(results[row.name])
    found: dict[str, Any] = {"cores": os.cpu_count(), "rounds": options.rounds, "rows": results}
    if not options.rows or "compile" in options.rows:
        found["compile"] = compile_times(min(options.rounds, 9))
        print(found["compile"])
    if not options.rows:
        record("cpu", found)


if __name__ == "__main__":
    main()
