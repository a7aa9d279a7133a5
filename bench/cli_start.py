"""How long the command line takes to start, against a bare interpreter and `pip --version`.

Interleaved processes with their output piped, medians, and the ratio to each peer with a bootstrap 95 % interval.
Goal: 150 ms each. `vyre backends` runs with what it remembers of devices from the first, unmeasured round.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from record import record

GOAL_MS = 150.0
SCRIPT = str(Path(sys.executable).with_name("vyre"))
OURS = {
    "vyre --version": [SCRIPT, "--version"],
    "vyre --help": [SCRIPT, "--help"],
    "vyre backends": [SCRIPT, "backends"],
    "vyre backends --json": [SCRIPT, "backends", "--json"],
    "python -m vyre --help": ["-m", "vyre", "--help"],
}
PEERS = {"python -c pass": ["-c", "pass"], "pip --version": ["-m", "pip", "--version"]}
RESAMPLES = 2000


def measure(rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Milliseconds of each process, by command, in a folder without a project: on the clock, and of the processor."""
    times: dict[str, list[float]] = {name: [] for name in (*OURS, *PEERS)}
    busy: dict[str, list[float]] = {name: [] for name in times}
    with tempfile.TemporaryDirectory() as folder:
        for round in range(rounds + 1):
            for name, words in {**OURS, **PEERS}.items():
                before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
                subprocess.run([sys.executable, *words], cwd=folder, stdout=subprocess.DEVNULL, check=True)
                took, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
                if round:
                    times[name].append(took * 1e3)
                    busy[name].append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3)
    return times, busy


def ratio(ours: list[float], theirs: list[float]) -> list[float]:
    """Median of the ratio of medians, and the bounds of its 95 % interval."""
    draw = random.Random(8)
    found = sorted(
        statistics.median(draw.choices(ours, k=len(ours))) / statistics.median(draw.choices(theirs, k=len(theirs)))
        for _ in range(RESAMPLES)
    )
    at = (len(found) // 2, len(found) * 25 // 1000, len(found) * 975 // 1000)
    return [round(found[k], 2) for k in at]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout and in bench/results")
    options = parser.parse_args()
    times, busy = measure(options.rounds)
    rows = {
        name: {
            "median_ms": round(statistics.median(times[name]), 1),
            "least_ms": round(min(times[name]), 1),
            "processor_ms": round(statistics.median(busy[name]), 1),
            **{f"ratio to {peer}": ratio(times[name], times[peer]) for peer in PEERS},
        }
        for name in OURS
    }
    peers = {
        name: {
            "median_ms": round(statistics.median(times[name]), 1),
            "processor_ms": round(statistics.median(busy[name]), 1),
        }
        for name in PEERS
    }
    if options.json:
        print(record("cli_start", {"rounds": options.rounds, "goal_ms": GOAL_MS, "commands": rows, "peers": peers}))
    else:
        for name, row in {**rows, **peers}.items():
            print(f"{name:<22}", row)
    return 0 if all(row["median_ms"] <= GOAL_MS for row in rows.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
