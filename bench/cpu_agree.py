"""Random programs on the cpu backend, compiled in several ways: do all give the bytes of the reference?

    python bench/cpu_agree.py --count 300 --seed 0     a summary
    python bench/cpu_agree.py --json     the same as JSON, also written to bench/results/cpu_agree.json

Every program runs as vector code and as scalar code; then, in turn, with the flush in software, without any of the
improvements, without one of them, and compiled for a deadline. Exit status 1: a difference.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from typing import Any

from record import record

from vyre.backends.cpu.backend import CpuBackend
from vyre.backends.cpu.build import Switches
from vyre.conform.generate import Case, random_program
from vyre.driver.guard import guarded
from vyre.driver.registry import acquire
from vyre.driver.values import DispatchConfig
from vyre.foundation.visit import walk
from vyre.lower import PASSES

VECTOR = guarded(CpuBackend())
SCALAR = guarded(CpuBackend(Switches(scalar=True)))
IN_TURN = {
    "software flush": (guarded(CpuBackend(Switches(soft_flush=True))), None),
    "no improvement": (guarded(CpuBackend(Switches(off=frozenset(PASSES)))), None),
    "scalar, software flush": (guarded(CpuBackend(Switches(scalar=True, soft_flush=True))), None),
    "deadline": (VECTOR, 60.0),
    **{f"without {p}": (guarded(CpuBackend(Switches(off=frozenset((p,))))), None) for p in PASSES},
}


def case_of(seed: int) -> Case:
    """Every fifth with barriers of the whole grid, every second with functions of the math library."""
    return random_program(random.Random(seed), grid_barriers=seed % 5 == 0, functions=seed % 2 == 0)


def run(backend: Any, case: Case, timeout: float | None) -> list[bytes] | str:
    config = DispatchConfig(grid_override=case.grid, output_elements=case.output_elements or None, timeout=timeout)
    try:
        return [bytes(o) for o in backend.dispatch(case.program, case.inputs, config)]
    except Exception as e:  # an error of one of them alone is what this looks for
        return f"{type(e).__name__}: {e}"


def compare(count: int, seed: int) -> dict[str, Any]:
    reference = acquire("reference")
    turns = list(IN_TURN)
    ways: Counter[str] = Counter()
    uses: Counter[str] = Counter()
    mismatches: list[dict[str, object]] = []
    start = time.perf_counter()
    for k in range(seed, seed + count):
        case = case_of(k)
        expected = run(reference, case, None)
        turn = turns[k % len(turns)]
        for name, (backend, timeout) in {
            "vector": (VECTOR, None),
            "scalar": (SCALAR, None),
            turn: IN_TURN[turn],
        }.items():
            found = run(backend, case, timeout)
            ways[name] += 1
            if found != expected or isinstance(found, str):
                mismatches.append({"seed": k, "way": name, "error": found if isinstance(found, str) else ""})
        uses.update({type(item).__name__ for item in walk(case.program.entry)})
        uses.update({f"buffer of {b.element.name}" for b in case.program.buffers})
    return {
        "programs": count,
        "seed": seed,
        "runs": dict(ways),
        "mismatches": mismatches,
        "programs_using": dict(sorted(uses.items())),
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON and write bench/results/cpu_agree.json")
    options = parser.parse_args()
    report = compare(options.count, options.seed)
    if options.json:
        print(record("cpu_agree", report))
    else:
        print(f"{report['programs']} programs from seed {options.seed}, {report['runs']}, {report['seconds']} s")
        for line in report["mismatches"]:
            print(line)
        print("no difference" if not report["mismatches"] else "DIFFERENT")
    return 1 if report["mismatches"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
