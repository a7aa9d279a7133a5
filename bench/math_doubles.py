"""How far the functions of f64 are from the true value, which mpmath gives with 200 bits.

    python bench/math_doubles.py                                2^17 arguments for each function, on cpu
    python bench/math_doubles.py --points 1048576 --functions sin pow --jobs 2
    python bench/math_doubles.py --record                       also to bench/results and docs/numerics.md

Results that are recorded for some functions leave those of the others as they are. `bits` is a digest of all results:
two backends agree on every argument if it is the same. Exit status 1: one is further than 2 ulp from the true value.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import mpmath
import numpy as np
from math_sweep import document, program
from record import HERE, RESULTS, record

sys.path.insert(0, str(HERE.parent))

from tests.support.doubles import arguments, ulps

from vyre.driver.contract.values import DispatchConfig
from vyre.driver.selection.registry import acquire
from vyre.foundation.ir.dtypes import f64
from vyre.foundation.meaning import mathlib

ALLOWED = 2.0
PART = 1 << 12
OPS = {op.text: op for op in mathlib.functions(f64)}


def worst_of(name: str, rows: list[tuple[float, ...]]) -> tuple[float, tuple[float, ...], int, int]:
    """The largest error among results and where; how many are correctly rounded, and how many were compared."""
    largest, at, right, compared = 0.0, rows[0][:-1], 0, 0
    for *operands, found in rows:
        error = ulps(OPS[name], operands, found)
        if error is None:
            continue
        compared += 1
        right += error <= 0.5
        if error > largest:
            largest, at = error, tuple(operands)
    return largest, at, right, compared


def sweep(name: str, backend: str, points: int, mapped: Any) -> dict[str, Any]:
    operands = arguments(OPS[name], points)
    config = DispatchConfig(output_elements={"z": points})
    (output,) = acquire(backend).dispatch(program(OPS[name], f64), [x.tobytes() for x in operands], config)
    results = np.frombuffer(bytes(output), np.int32 if OPS[name].rule == "exponent" else np.float64)
    rows = list(zip(*(x.tolist() for x in operands), results.tolist(), strict=True))
    found = list(mapped(partial(worst_of, name), [rows[k : k + PART] for k in range(0, points, PART)]))
    largest, at, _, _ = max(found)
    return {
        "points": points,
        "max_ulp": round(largest, 4),
        "at": at,
        "correctly_rounded": round(sum(f[2] for f in found) / max(1, sum(f[3] for f in found)), 5),
        "bits": hashlib.blake2b(bytes(output), digest_size=16).hexdigest(),
    }


def save(backend: str, name: str, row: dict[str, Any]) -> None:
    path = RESULTS / f"doubles_{backend}.json"
    before = json.loads(path.read_text())["functions"] if path.exists() else {}
    functions = dict(sorted((before | {name: row}).items()))
    record(path.stem, {"mpmath": mpmath.__version__, "backend": backend, "functions": functions})
    (HERE.parent / "docs" / "numerics.md").write_text(document())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="cpu", help="id of the backend to measure")
    parser.add_argument("--points", type=int, default=1 << 17, help="arguments for each function")
    parser.add_argument("--functions", nargs="+", choices=sorted(OPS), default=sorted(OPS), metavar="NAME")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--record", action="store_true", help="write bench/results and docs/numerics.md")
    options = parser.parse_args()
    failed = False
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        for name in options.functions:
            row = sweep(name, options.backend, options.points, pool.map)
            failed |= row["max_ulp"] > ALLOWED
            print(f"{name:6}", json.dumps(row), flush=True)
            if options.record:
                save(options.backend, name, row)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
