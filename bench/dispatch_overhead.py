"""What the driver adds to a warm `dispatch`, over a backend that does nothing.

Two questions. How much: rounds of calls through a compiled pipeline, interleaved with rounds of direct calls to what
the backend compiled; the difference of the medians with a bootstrap interval. Goal: 3 us. Does it stay so
(`--count 1000000`): the median of the last 10,000 calls over that of calls 10,000 to 20,000, at most 1.1, and growth of
resident memory under 1 MiB. Results go to bench/results/dispatch_overhead.json.
"""

from __future__ import annotations

import argparse
import array
import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from record import stamp

import vyre
from vyre import In, Out, f32, gid
from vyre.driver.contract import BackendCapability, CompiledPipeline, VyreBackend
from vyre.driver.contract.values import DEFAULT_CONFIG, DispatchConfig
from vyre.driver.guard import compile as pipeline

GOAL_NS = 3_000
GOAL_RATIO = 1.1
GOAL_GROWTH_BYTES = 1 << 20
WINDOW = 10_000
RESULTS = Path(__file__).parent / "results" / "dispatch_overhead.json"


@vyre.kernel(workgroup=64)
def saxpy(alpha: f32, x: In[f32], y: In[f32], out: Out[f32]):
    i = gid.x
    if i < len(out):
        out[i] = alpha * x[i] + y[i]


class NoopPipeline(CompiledPipeline):
    backend_id, id = "noop", "noop:0"

    def __init__(self) -> None:
        self.outputs = [bytearray(256)]

    def dispatch(self, inputs: Sequence[Any], config: DispatchConfig | None = None, *, out: Any = None) -> list[Any]:
        return self.outputs if out is None else list(out)


class NoopBackend(VyreBackend, contract=1):
    id = "noop"
    capability = BackendCapability(max_workgroup_size=(1024, 1, 1), max_workgroups_per_dimension=65535)

    def dispatch(self, program: Any, inputs: Any, config: Any = DEFAULT_CONFIG, *, out: Any = None) -> list[Any]:
        return []

    def compile_native(self, program: Any, config: Any) -> NoopPipeline:
        return NoopPipeline()


def calls() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Name -> (through the driver, straight to the backend's pipeline), both ready to call."""
    compiled = pipeline.compile(NoopBackend(), saxpy.program)
    direct = compiled.native.dispatch
    inputs = [np.float32([2]), np.zeros(64, np.float32), np.zeros(64, np.float32)]
    out = [np.zeros(64, np.float32)]
    config = DispatchConfig(label="bench", max_output_bytes=4096)
    through = compiled.dispatch
    return {
        "inputs": (lambda: through(inputs), lambda: direct(inputs, DEFAULT_CONFIG, out=None)),
        "inputs, out": (lambda: through(inputs, out=out), lambda: direct(inputs, DEFAULT_CONFIG, out=out)),
        "inputs, config with label and budget": (
            lambda: through(inputs, config),
            lambda: direct(inputs, config, out=None),
        ),
    }


def per_call_ns(call: Callable[[], Any], count: int) -> float:
    rounds = range(count)
    start = time.perf_counter_ns()
    for _ in rounds:
        call()
    return (time.perf_counter_ns() - start) / count


def measure(driver: Callable[[], Any], direct: Callable[[], Any], rounds: int, count: int) -> dict[str, Any]:
    pairs = []
    per_call_ns(driver, count)
    for _ in range(rounds):
        pairs.append((per_call_ns(driver, count), per_call_ns(direct, count)))
    rng = random.Random(1)
    resampled = [medians(rng.choices(pairs, k=len(pairs))) for _ in range(2000)]
    through, straight = medians(pairs)
    return {
        "share_ns": round(through - straight),
        "interval_ns": interval([round(a - b) for a, b in resampled]),
        "ratio": round(through / straight, 2),
        "ratio_interval": interval([round(a / b, 2) for a, b in resampled]),
        "driver_ns": round(through),
        "direct_ns": round(straight),
    }


def medians(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def interval(values: list[float]) -> list[float]:
    """The middle 95 % of bootstrap values."""
    values.sort()
    return [values[len(values) // 40], values[-len(values) // 40]]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def flatness(count: int) -> dict[str, Any]:
    """Times of single calls, early and late, and what memory did between.

    A direct call is timed after each of them: where those drift too, it was the machine.
    """
    driver, direct = calls()["inputs"]
    times, control = (array.array("q", bytes(8 * count)) for _ in range(2))  # written already: writing grows nothing
    clock = time.perf_counter_ns
    before = 0
    for k in range(count):
        if k == 2 * WINDOW:
            gc.collect()
            before = resident_bytes()
        start = clock()
        driver()
        middle = clock()
        direct()
        control[k] = clock() - middle
        times[k] = middle - start
    gc.collect()
    growth = resident_bytes() - before
    early, late = drift(times)
    control_early, control_late = drift(control)
    return {
        "early_ns": early,
        "late_ns": late,
        "ratio": round(late / early, 4),
        "direct_ratio": round(control_late / control_early, 4),
        "growth_bytes": growth,
    }


def drift(times: array.array[int]) -> tuple[float, float]:
    return statistics.median(times[WINDOW : 2 * WINDOW]), statistics.median(times[-WINDOW:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=401)
    parser.add_argument("--calls", type=int, default=500, help="calls in one round; few, so that most are undisturbed")
    parser.add_argument("--count", type=int, help=f"measure flatness over so many calls, at least {4 * WINDOW}")
    parser.add_argument("--repeat", type=int, default=5, help="runs of --count calls; their median ratio counts")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args()
    if options.count is not None and options.count < 4 * WINDOW:
        parser.error(f"--count must be at least {4 * WINDOW}")

    found: dict[str, Any] = {}
    if options.count is None:
        found["share"] = {name: measure(*pair, options.rounds, options.calls) for name, pair in calls().items()}
        good = all(row["interval_ns"][1] <= GOAL_NS for row in found["share"].values())
    else:
        runs = [flatness(options.count) for _ in range(options.repeat)]
        ratio = statistics.median(run["ratio"] for run in runs)
        growth = max(run["growth_bytes"] for run in runs)
        found["flatness"] = {"count": options.count, "ratio": ratio, "growth_bytes": growth, "runs": runs}
        good = ratio <= GOAL_RATIO and growth < GOAL_GROWTH_BYTES

    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kept.update({part: {**stamp(), "result": value} for part, value in found.items()})
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(kept, indent=2) + "\n")

    if options.json:
        print(json.dumps(found))
    for name, row in {} if options.json else found.get("share", {}).items():
        low, high = row["interval_ns"]
        print(
            f"{name:<38} {row['share_ns']:6} ns [{low}, {high}] over a direct call of {row['direct_ns']} ns,"
            f" x{row['ratio']}; goal {GOAL_NS}"
        )
    if not options.json and "flatness" in found:
        for run in found["flatness"]["runs"]:
            print(
                f"{options.count} calls: {run['early_ns']:.0f} ns early, {run['late_ns']:.0f} ns late, ratio"
                f" {run['ratio']} (direct calls: {run['direct_ratio']}), memory grew by {run['growth_bytes']} bytes"
            )
        print(f"median ratio {found['flatness']['ratio']}; goals {GOAL_RATIO} and {GOAL_GROWTH_BYTES} bytes")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
