"""What metrics add to a warm call, and that they add nothing when they are off again.

Rounds of calls of a compiled pipeline with metrics on, interleaved with rounds without, on `cpu` and over a backend
that does nothing; the difference of the medians with a bootstrap interval. Goal: 2 % of a warm call or 0.1 us.
`--record` writes bench/results/metrics.json.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from dispatch_overhead import NoopBackend, interval, medians, per_call_ns, saxpy
from record import record

import vyre
from vyre.driver.guard import compile as pipeline
from vyre.driver.observe.metrics import Metrics

SIZE = 64


def calls() -> dict[str, Callable[[], Any]]:
    inputs = [np.float32([2]), np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32)]
    out = [np.zeros(SIZE, np.float32)]
    found = {}
    for name, backend in (("cpu", vyre.acquire("cpu")), ("nothing", NoopBackend())):
        compiled = pipeline.compile(backend, saxpy.program)
        found[name] = lambda compiled=compiled: compiled.dispatch(inputs, out=out)
    return found


def measure(call: Callable[[], Any], rounds: int, count: int) -> dict[str, Any]:
    pairs = []
    for _ in range(rounds):
        metrics = Metrics()
        per_call_ns(call, 100)
        on = per_call_ns(call, count)
        metrics.close()
        per_call_ns(call, 100)
        pairs.append((on, per_call_ns(call, count)))
    rng = random.Random(1)
    resampled = [medians(rng.choices(pairs, k=len(pairs))) for _ in range(2000)]
    on, off = medians(pairs)
    return {
        "off_ns": round(off),
        "on_ns": round(on),
        "added_ns": round(on - off),
        "interval_ns": interval([round(a - b) for a, b in resampled]),
        "added_percent": round(100 * (on - off) / off, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--record", action="store_true")
    asked = parser.parse_args()
    result = {name: measure(call, asked.rounds, asked.count) for name, call in calls().items()}
    print(record("metrics", result) if asked.record else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
