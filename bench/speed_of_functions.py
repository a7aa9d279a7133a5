"""How fast the functions of the math library are on the cpu backend, beside NumPy, numba and torch in one process.

    python bench/speed_of_functions.py                    every function of f32 and f64 that one of them has too
    python bench/speed_of_functions.py exp pow --rounds 5
    python bench/speed_of_functions.py --record           also to bench/results/speed_of_functions.json

Round by round every contender computes 2^20 numbers for 10 ms, in random order, into an array that is there already;
the last run is timed. A ratio is the median time of the best peer over ours: above 1, ours is faster. `operations` are
those of the main path in the IR, comparisons and selections among them. Peers that are not installed are not there.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from math_sweep import operations, program
from numpy.typing import NDArray
from record import record

from vyre.driver.contract.values import DispatchConfig
from vyre.driver.selection.registry import acquire
from vyre.foundation.ir.dtypes import DataType, f32, f64
from vyre.foundation.ir.ops import BinaryOp
from vyre.foundation.meaning import mathlib

Array = NDArray[Any]
Call = Callable[[], Any]
POINTS = 1 << 20
WARM_UP_S = 0.01
NUMPY = {
    "acos": "arccos", "asin": "arcsin", "atan": "arctan", "acosh": "arccosh", "asinh": "arcsinh", "atanh": "arctanh",
    "atan2": "arctan2", "pow": "power",
}  # fmt: skip
NUMBA = {"pow": "x ** y", **{name: f"math.{name}(x)" for name in ("erf", "erfc")}}


RANGES = {"exp10": (-30, 30), "acosh": (1, 100), **dict.fromkeys(("asin", "acos", "atanh"), (-1, 1))} | dict.fromkeys(
    ("log", "log2", "log10", "log1p", "cbrt"), (0.01, 100)
)


def inputs(op: Any, t: DataType) -> tuple[Array, ...]:
    """Common numbers."""
    rng = np.random.default_rng(op.tag)
    kind = np.float32 if t == f32 else np.float64
    if isinstance(op, BinaryOp):
        x = rng.uniform(0.1, 4, POINTS)
        return x.astype(kind), rng.uniform(-4, 4, POINTS).astype(kind)
    return (rng.uniform(*RANGES.get(op.text, (-20, 20)), POINTS).astype(kind),)


def contenders(op: Any, t: DataType) -> dict[str, Call]:
    operands = inputs(op, t)
    out = np.empty(POINTS, operands[0].dtype)
    pipeline = acquire("cpu").compile_native(program(op, t), DispatchConfig())
    config = DispatchConfig(output_elements={"z": POINTS})
    views, into = [memoryview(x).cast("B") for x in operands], [memoryview(out).cast("B")]
    found: dict[str, Call] = {"vyre": lambda: pipeline.dispatch(views, config, out=into)}
    name = NUMPY.get(op.text, op.text)
    if hasattr(np, name):
        function, theirs = getattr(np, name), np.empty_like(out)
        found["numpy"] = lambda: function(*operands, out=theirs)
    return found | _of_numba(op.text, name, operands) | _of_torch(op.text, operands)


def _of_numba(text: str, name: str, operands: tuple[Array, ...]) -> dict[str, Call]:
    try:
        numba = import_module("numba")
    except ImportError:
        return {}
    letters = "xy"[: len(operands)]
    body = NUMBA.get(text, f"np.{name}({', '.join(letters)})")
    scope: dict[str, Any] = {"np": np, "math": import_module("math")}
    exec(f"def f({', '.join(letters)}):\n    return {body}", scope)
    signature = f"{operands[0].dtype}({', '.join(str(x.dtype) for x in operands)})"
    out = np.empty_like(operands[0])
    try:
        function = numba.vectorize([signature], target="parallel")(scope["f"])
        function(*operands, out=out)
    except numba.core.errors.NumbaError:
        return {}
    return {"numba": lambda: function(*operands, out=out)}


def _of_torch(text: str, operands: tuple[Array, ...]) -> dict[str, Call]:
    try:
        torch = import_module("torch")
    except ImportError:
        return {}
    if not hasattr(torch, text):
        return {}
    tensors = [torch.from_numpy(x) for x in operands]
    out, function = torch.empty_like(tensors[0]), getattr(torch, text)
    return {"torch": lambda: function(*tensors, out=out)}


def timed(call: Call) -> float:
    end = time.perf_counter() + WARM_UP_S
    while True:
        start = time.perf_counter()
        call()
        stop = time.perf_counter()
        if stop >= end:
            return stop - start


def measure(op: Any, t: DataType, rounds: int) -> dict[str, Any]:
    with np.errstate(all="ignore"):
        calls = contenders(op, t)
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name in random.sample(list(calls), len(calls)):
                times[name].append(timed(calls[name]))
    ours = times.pop("vyre")
    row: dict[str, Any] = {
        "operations": operations(op, t)[0],
        "ns_each": round(statistics.median(ours) / POINTS * 1e9, 3),
    }
    if times:
        best = min(times, key=lambda name: statistics.median(times[name]))
        ratios = sorted(theirs / own for theirs, own in zip(times[best], ours, strict=True))
        row |= {"best_peer": best, "ratio": round(statistics.median(times[best]) / statistics.median(ours), 3)}
        row |= {"quartiles": [round(ratios[len(ratios) // 4], 3), round(ratios[3 * len(ratios) // 4], 3)]}
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("functions", nargs="*", help="names; all without any")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--record", action="store_true", help="write bench/results/speed_of_functions.json")
    options = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    for t in (f32, f64):
        for op in sorted(mathlib.functions(t), key=lambda op: op.text):
            if op.rule not in ("function", "float_function") or (
                options.functions and op.text not in options.functions
            ):
                continue
            found[f"{op.text} {t}"] = row = measure(op, t, options.rounds)
            print(f"{op.text:15} {t}", json.dumps(row), flush=True)
    if options.record:
        record("speed_of_functions", {"points": POINTS, "rounds": options.rounds, "functions": found})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
