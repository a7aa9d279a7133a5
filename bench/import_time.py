"""Wall time of `import vyre` and of the first kernel names, less a bare interpreter's.

Interleaved processes, medians. Goals: 60 ms and 120 ms.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from record import record

STATEMENTS = {
    "bare": "pass",
    "import vyre": "import vyre",
    "from vyre import kernel, In, Out, f32, gid": "from vyre import kernel, In, Out, f32, gid",
}
GOALS_MS = {"import vyre": 60.0, "from vyre import kernel, In, Out, f32, gid": 120.0}


def measure(rounds: int) -> dict[str, float]:
    """Median milliseconds of a process for each statement."""
    times: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for _ in range(rounds):
        for name, code in STATEMENTS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout and in bench/results")
    options = parser.parse_args()
    medians = measure(options.rounds)
    rows = {name: round(medians[name] - medians["bare"], 1) for name in GOALS_MS}
    if options.json:
        print(record("import_time", {"rounds": options.rounds, "milliseconds": rows, "goals": GOALS_MS}))
    else:
        for name, value in rows.items():
            print(f"{name:<46} {value:7.1f} ms   goal {GOALS_MS[name]:.0f}")
    return 0 if all(rows[name] <= goal for name, goal in GOALS_MS.items()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
