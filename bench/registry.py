"""Time of the first listing of backends in a fresh process and of later ones, with 100 installed distributions.

Half of the distributions offer a backend whose module raises when imported, so a listing that imports one fails. The
first listing counts from `import vyre.driver.selection.registry`; byte code is compiled before, as after an install.
Goals:
100 ms and 50 us.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from record import record

GOALS = {"first_ms": 100.0, "later_us": 50.0}
CHILD = """
import time
start = time.perf_counter()
from vyre.driver.selection.registry import registered_backends
listed = registered_backends()
first = time.perf_counter() - start
rounds = 20_000
start = time.perf_counter()
for _ in range(rounds):
    registered_backends()
later = (time.perf_counter() - start) / rounds
print(first * 1e3, later * 1e6, len(listed))
"""


def install(folder: Path, distributions: int) -> None:
    """Distributions as files; every second one offers a backend that cannot be imported."""
    for i in range(distributions):
        info = folder / f"plugin_{i}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: plugin-{i}\nVersion: 1.0\n")
        group = "vyre.backends" if i % 2 == 0 else "console_scripts"
        (info / "entry_points.txt").write_text(f"[{group}]\nplugin{i}.{i} = plugin_{i}:REGISTRATION\n")
        (folder / f"plugin_{i}.py").write_text("raise RuntimeError('imported')\n")


def measure(rounds: int, distributions: int) -> dict[str, float]:
    """Medians over fresh processes; the first process only compiles."""
    samples = []
    with tempfile.TemporaryDirectory() as name:
        plugins, compiled = Path(name, "plugins"), Path(name, "compiled")
        plugins.mkdir()
        install(plugins, distributions)
        env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        env |= {"PYTHONPATH": str(plugins), "PYTHONPYCACHEPREFIX": str(compiled)}
        for _ in range(rounds + 1):
            done = subprocess.run([sys.executable, "-c", CHILD], env=env, check=True, capture_output=True, text=True)
            samples.append([float(x) for x in done.stdout.split()])
    first, later, listed = (statistics.median(column) for column in zip(*samples[1:], strict=True))
    return {"first_ms": round(first, 1), "later_us": round(later, 3), "listed": int(listed)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--distributions", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args()
    result = {
        "rounds": options.rounds,
        "distributions": options.distributions,
        **measure(options.rounds, options.distributions),
        "goals": GOALS,
    }
    text = record("registry", result)
    if options.json:
        print(text)
    else:
        print(f"first listing {result['first_ms']:8.1f} ms   goal {GOALS['first_ms']:.0f}")
        print(f"later ones    {result['later_us']:8.3f} us   goal {GOALS['later_us']:.0f}")
    return 0 if all(result[name] <= goal for name, goal in GOALS.items()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
