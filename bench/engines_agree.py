"""Random programs on both reference engines: do all runs of one program give the same bytes?

    python bench/engines_agree.py --count 2000 --seed 0     a summary
    python bench/engines_agree.py --json     the same as JSON, also written to bench/results/engines_agree.json

Each program runs on the scalar engine forwards, backwards and in a random interleaving with the race detector on, on
the NumPy engine with all workgroups at once and one at a time, and in canonical form. Exit status 1: a difference.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from record import record

from vyre.backends.reference import RunResult, Schedule, run
from vyre.backends.reference.engines import numpy_engine
from vyre.conform.programs.random import Case, random_program
from vyre.foundation.ir.program import Program
from vyre.foundation.ir.visit import walk

Result = tuple[tuple[bytes, ...], object]
TOGETHER = numpy_engine.CHUNK_LANES


def results(case: Case, seed: int, seconds: dict[str, float]) -> dict[str, Result | str]:
    """Outputs and out-of-bounds counts of every way to run the case, or the error it ended in."""

    def go(engine: str, program: Program, **options: Any) -> RunResult:
        start = time.perf_counter()
        found = run(
            program, case.inputs, grid=case.grid, output_elements=case.output_elements, engine=engine, **options
        )
        seconds[engine] += time.perf_counter() - start
        return found

    def one_by_one() -> RunResult:
        numpy_engine.CHUNK_LANES = 1
        try:
            return go("numpy", case.program)
        finally:
            numpy_engine.CHUNK_LANES = TOGETHER

    ways: dict[str, Callable[[], RunResult]] = {
        "scalar forward": lambda: go("scalar", case.program),
        "scalar reversed": lambda: go("scalar", case.program, schedule="reversed"),
        "scalar interleaved": lambda: go("scalar", case.program, schedule=Schedule.seeded(seed), raise_on_race=True),
        "numpy": lambda: go("numpy", case.program),
        "numpy one workgroup at a time": one_by_one,
        "numpy canonical form": lambda: go("numpy", case.program.canonicalized()),
    }
    found: dict[str, Result | str] = {}
    for name, way in ways.items():
        try:
            outcome = way()
            found[name] = tuple(bytes(o) for o in outcome.outputs), outcome.oob
        except Exception as e:  # an error of one engine alone is what this looks for
            found[name] = f"{type(e).__name__}: {e}"
    return found


def compare(count: int, seed: int) -> dict[str, Any]:
    """The report on programs `seed` to `seed + count - 1`."""
    seconds = {"scalar": 0.0, "numpy": 0.0}
    uses: Counter[str] = Counter()
    mismatches: list[dict[str, object]] = []
    for k in range(seed, seed + count):
        case = random_program(random.Random(k))
        found = results(case, k, seconds)
        expected = found["scalar forward"]
        wrong = [name for name, result in found.items() if result != expected or isinstance(result, str)]
        if wrong:
            errors = sorted({r for r in found.values() if isinstance(r, str)})
            mismatches.append({"seed": k, "ways": wrong, "errors": errors})
        uses.update({type(item).__name__ for item in walk(case.program.entry)})
        uses.update({f"buffer of {b.element.name}" for b in case.program.buffers})
    return {
        "programs": count,
        "seed": seed,
        "runs": count * 6,
        "mismatches": mismatches,
        "programs_using": dict(sorted(uses.items())),
        "seconds": {engine: round(s, 1) for engine, s in seconds.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON and write bench/results/engines_agree.json")
    options = parser.parse_args()
    report = compare(options.count, options.seed)
    if options.json:
        print(record("engines_agree", {"numpy": np.__version__} | report))
    else:
        print(f"{report['programs']} programs from seed {options.seed}, {report['runs']} runs, {report['seconds']}")
        for line in report["mismatches"]:
            print(line)
        print("no difference" if not report["mismatches"] else "DIFFERENT")
    return 1 if report["mismatches"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
