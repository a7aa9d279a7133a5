"""How far the functions of the math library are from the true value, and that a backend computes them to the bit.

    python bench/math_sweep.py                                  2^24 arguments for each function, on the reference
    python bench/math_sweep.py --points 1048576 --functions sin cos
    python bench/math_sweep.py --backend cpu --compare          the same bits as the reference
    python bench/math_sweep.py --backend cpu --exhaustive --jobs 16
                                                                every one of the 2^32 arguments, by 16 processes;
                                                                2^28 pairs for functions of two
    python bench/math_sweep.py --record                         also to bench/results and docs/numerics.md

Results that are recorded for some functions leave those of the others as they are. `bits` is a digest of the digests of
all chunks of results, in order: two backends agree on every argument if it is the same. Exit status 1: a result is
further from the true value than its function may be, or bits differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from record import HERE, RESULTS, record

from vyre.conform.values.ulps import arguments, nearest, true_values, ulps
from vyre.driver.contract.values import DispatchConfig
from vyre.driver.selection.registry import acquire
from vyre.foundation.ir.dtypes import DataType, f32, f64, i32
from vyre.foundation.ir.nodes import BinOp, Bitcast, Cast, Fma, If, InvocationId, Load, Node, Select, Store, UnOp
from vyre.foundation.ir.ops import BinaryOp, UnaryOp
from vyre.foundation.ir.program import Program, read, write_only
from vyre.foundation.ir.visit import bodies, children, walk_exprs
from vyre.foundation.meaning import mathlib

CHUNK = 1 << 20
EXACT = ("fmod", "remainder", "ldexp", "frexp_mantissa", "frexp_exponent", "nextafter")
ALLOWED = {"erfc": 3.0, "pow": 3.0, **dict.fromkeys(EXACT, 0.0)}
"""Units in the last place, where they are not 2."""
OPS = {op.text: op for op in mathlib.functions()}
Array = NDArray[Any]
Op = UnaryOp | BinaryOp
PAIRS = 1 << 28


def program(op: Op, t: DataType = f32) -> Program:
    gid = InvocationId(0)
    x, y = Load("x", gid), Load("y", gid)
    inputs, value = [read("x", 0, t)], UnOp(op, x) if isinstance(op, UnaryOp) else BinOp(op, x, y)
    if isinstance(op, BinaryOp):
        inputs.append(read("y", 1, i32 if op.rule == "scale" else t))
    output = write_only("z", len(inputs), i32 if op.rule == "exponent" else t)
    return Program([*inputs, output], (256, 1, 1), [Store("z", gid, value)])


@cache
def evaluator(backend: str, op: Op) -> Callable[..., Array]:
    pipeline = acquire(backend).compile_native(program(op), DispatchConfig())

    def evaluate(*operands: Array) -> Array:
        config = DispatchConfig(output_elements={"z": len(operands[0])})
        outputs = pipeline.dispatch([x.tobytes() for x in operands], config)
        return np.frombuffer(outputs[0], np.int32 if op.rule == "exponent" else np.float32)

    return evaluate


class Job(NamedTuple):
    """A function on a backend: over so many arguments, or over all there are (0); and whether to compare bits."""

    backend: str
    name: str
    count: int
    compare: bool

    @property
    def chunks(self) -> range:
        return range(-(-(self.count or (1 << 32 if self.unary else PAIRS)) // CHUNK))

    @property
    def unary(self) -> bool:
        return isinstance(OPS[self.name], UnaryOp)

    def operands(self, chunk: int) -> tuple[Array, ...]:
        """The same ones on every machine."""
        first = chunk * CHUNK
        if not self.count and self.unary:
            return (np.arange(first, first + CHUNK, dtype=np.int64).astype(np.uint32).view(np.float32),)
        return arguments(OPS[self.name], min(CHUNK, self.count - first) if self.count else CHUNK, chunk)


class Found(NamedTuple):
    """Of one chunk: the largest error and where, how many are correctly rounded, and not those of the reference."""

    points: int
    worst: float
    at: tuple[float, ...]
    rounded: int
    different: int
    digest: bytes
    seconds: float


def measure(job: Job, chunk: int) -> Found:
    op = OPS[job.name]
    operands = job.operands(chunk)
    start = time.perf_counter()
    y = evaluator(job.backend, op)(*operands)
    seconds = time.perf_counter() - start
    exact = true_values(op, *operands)
    off = ulps(y, exact)
    k = int(np.argmax(off))
    right = nearest(exact)
    rounded = int(np.count_nonzero((y == right) | (np.isnan(y) & np.isnan(right))))
    different = 0
    if job.compare:
        different = int(np.count_nonzero(evaluator("reference", op)(*operands).view(np.uint32) != y.view(np.uint32)))
    digest = hashlib.blake2b(y.tobytes(), digest_size=16).digest()
    return Found(len(y), float(off[k]), tuple(float(x[k]) for x in operands), rounded, different, digest, seconds)


def sweep(job: Job, mapped: Callable[..., Iterable[Found]]) -> dict[str, Any]:
    found = list(mapped(partial(measure, job), job.chunks))
    worst = max(found, key=lambda f: f.worst)
    total = sum(f.points for f in found)
    result = {
        "points": total,
        "max_ulp": round(worst.worst, 4),
        "at": worst.at if len(worst.at) > 1 else worst.at[0],
        "correctly_rounded": round(sum(f.rounded for f in found) / max(1, total), 5),
        "bits": hashlib.blake2b(b"".join(f.digest for f in found), digest_size=16).hexdigest(),
        "seconds": round(sum(f.seconds for f in found), 2),
    }
    return result | ({"different_from_reference": sum(f.different for f in found)} if job.compare else {})


def operations(op: Op, t: DataType = f32) -> tuple[int, int]:
    """Operators of the main path, and of the branch that few arguments take."""
    counts = [0, 0]
    stack: list[tuple[Node, int]] = [(n, 0) for n in mathlib.expand(program(op, t)).entry]
    while stack:
        node, rare = stack.pop()
        kinds = (BinOp, UnOp, Fma, Select, Cast, Bitcast)
        counts[rare] += sum(isinstance(e, kinds) for e in walk_exprs(children(node)))
        inside = 1 if rare or isinstance(node, If) else 0
        stack += [(n, inside) for body in bodies(node) for n in body]
    return counts[0], counts[1]


# ---- recording ------------------------------------------------------------------------------------------------------


def save(backend: str, exhaustive: bool, found: dict[str, Any]) -> None:
    name = f"math_{'exhaustive' if exhaustive else 'sweep'}_{backend}"
    path = RESULTS / f"{name}.json"
    before = json.loads(path.read_text())["functions"] if path.exists() else {}
    record(name, {"numpy": np.__version__, "backend": backend, "functions": dict(sorted((before | found).items()))})
    (HERE.parent / "docs" / "numerics.md").write_text(document())


def document() -> str:
    """docs/numerics.md: its text, with two tables of what was measured."""
    text = (Path(__file__).parent / "numerics.txt").read_text()
    return text.replace("DOUBLES\n", table(f64, "doubles_*.json")).replace("TABLE\n", table(f32, "math_*.json"))


def table(t: DataType, files: str) -> str:
    """Of every function, where it was measured for most arguments."""
    rows = ["| function | operations | rare branch | largest error, ulp | at | correctly rounded | arguments | on |"]
    rows.append("|---|---|---|---|---|---|---|---|")
    measured: dict[str, list[tuple[int, str, dict[str, Any]]]] = {name: [] for name in OPS}
    for path in sorted(RESULTS.glob(files)):
        result = json.loads(path.read_text())
        for name, row in result["functions"].items():
            measured[name].append((row["points"], result["backend"], row))
    for name in sorted(OPS):
        most = max((count for count, _, _ in measured[name]), default=0)
        best = [(backend, row) for count, backend, row in measured[name] if count == most]
        if not best:
            continue
        main, rare = operations(OPS[name], t)
        row = best[0][1]
        on = ", ".join(backend for backend, other in best if other["bits"] == row["bits"])
        share = f"{100 * row['correctly_rounded']:.2f} %"
        size = f"2^{most.bit_length() - 1}" if most & most - 1 == 0 else f"{most:,}"
        place = row["at"] if isinstance(row["at"], list) else [row["at"]]
        at = ", ".join(f"{x:.9g}" for x in place) if row["max_ulp"] else ""
        rows.append(f"| `{name}` | {main} | {rare or ''} | {row['max_ulp']:.3f} | {at} | {share} | {size} | {on} |")
    return "\n".join(rows) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="reference", help="id of the backend to measure")
    parser.add_argument("--points", type=int, default=1 << 24, help="arguments for each function")
    parser.add_argument("--functions", nargs="+", choices=sorted(OPS), default=sorted(OPS), metavar="NAME")
    parser.add_argument("--exhaustive", action="store_true", help="all 2^32 arguments, or 2^28 pairs")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--compare", action="store_true", help="run the reference too, and compare bits")
    parser.add_argument("--record", action="store_true", help="write bench/results and docs/numerics.md")
    options = parser.parse_args()
    if options.jobs == 1:
        return run(options, map)
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        return run(options, pool.map)


def run(options: argparse.Namespace, mapped: Callable[..., Iterable[Found]]) -> int:
    failed = False
    for name in options.functions:
        row = sweep(Job(options.backend, name, 0 if options.exhaustive else options.points, options.compare), mapped)
        failed |= row["max_ulp"] > ALLOWED.get(name, 2.0) or row.get("different_from_reference", 0) > 0
        print(f"{name:5}", json.dumps(row), flush=True)
        if options.record:
            save(options.backend, options.exhaustive, {name: row})
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
