"""How far the functions of the math library are from the true value, and that a backend computes them to the bit.

    python bench/math_sweep.py                                  2^24 arguments for each function, on the reference
    python bench/math_sweep.py --points 1048576 --functions sin cos
    python bench/math_sweep.py --backend cpu --compare          the same bits as the reference
    python bench/math_sweep.py --backend cpu --exhaustive       every one of the 2^32 arguments
    python bench/math_sweep.py --record                         also to bench/results and docs/numerics.md

Results that are recorded for some functions leave those of the others as they are. `bits` is a digest of all results in
order: two backends agree on every argument if it is the same. Exit status 1: a result is more than 2 units off, or bits
differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from record import HERE, RESULTS, record

from vyre.conform.values.ulps import nearest, points, true_values, ulps
from vyre.driver.contract.values import DispatchConfig
from vyre.driver.selection.registry import acquire
from vyre.foundation.ir.dtypes import f32
from vyre.foundation.ir.nodes import BinOp, Bitcast, Cast, Fma, If, InvocationId, Load, Node, Select, Store, UnOp
from vyre.foundation.ir.ops import UnaryOp
from vyre.foundation.ir.program import Program, read, write_only
from vyre.foundation.ir.visit import bodies, children, walk_exprs
from vyre.foundation.meaning import mathlib

CHUNK = 1 << 20
ALLOWED = 2.0
OPS = {op.text: op for op in mathlib.functions()}
Array = NDArray[Any]


def program(op: UnaryOp) -> Program:
    gid = InvocationId(0)
    body = [Store("y", gid, UnOp(op, Load("x", gid)))]
    return Program([read("x", 0, f32), write_only("y", 1, f32)], (256, 1, 1), body)


def evaluator(backend: str, op: UnaryOp) -> Callable[[Array], Array]:
    pipeline = acquire(backend).compile_native(program(op), DispatchConfig())

    def evaluate(x: Array) -> Array:
        outputs = pipeline.dispatch([x.tobytes()], DispatchConfig(output_elements={"y": len(x)}))
        return np.frombuffer(outputs[0], np.float32)

    return evaluate


def arguments(op: UnaryOp, count: int, exhaustive: bool) -> Iterator[Array]:
    """The arguments in chunks; the same ones on every machine."""
    if exhaustive:
        for first in range(0, 1 << 32, CHUNK):
            yield np.arange(first, first + CHUNK, dtype=np.int64).astype(np.uint32).view(np.float32)
        return
    for seed, first in enumerate(range(0, count, CHUNK)):
        yield points(op, min(CHUNK, count - first), seed)


def sweep(backend: str, op: UnaryOp, count: int, exhaustive: bool, compare: bool) -> dict[str, Any]:
    evaluate = evaluator(backend, op)
    reference = evaluator("reference", op) if compare else None
    digest = hashlib.blake2b(digest_size=16)
    total = rounded = different = 0
    worst, at, seconds = 0.0, 0.0, 0.0
    for x in arguments(op, count, exhaustive):
        start = time.perf_counter()
        y = evaluate(x)
        seconds += time.perf_counter() - start
        exact = true_values(op, x)
        off = ulps(y, exact)
        k = int(np.argmax(off))
        if off[k] > worst:
            worst, at = float(off[k]), float(x[k])
        right = nearest(exact)
        rounded += int(np.count_nonzero((y == right) | (np.isnan(y) & np.isnan(right))))
        total += len(x)
        digest.update(y.tobytes())
        if reference is not None:
            different += int(np.count_nonzero(reference(x).view(np.uint32) != y.view(np.uint32)))
    result = {
        "points": total,
        "max_ulp": round(worst, 4),
        "at": at,
        "correctly_rounded": round(rounded / max(1, total), 5),
        "bits": digest.hexdigest(),
        "seconds": round(seconds, 2),
    }
    return result | ({"different_from_reference": different} if compare else {})


def operations(op: UnaryOp) -> tuple[int, int]:
    """Operators of the main path, and of the branch that few arguments take."""
    counts = [0, 0]
    stack: list[tuple[Node, int]] = [(n, 0) for n in mathlib.expand(program(op)).entry]
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
    """docs/numerics.md: its text, and a table of what was measured."""
    text = (Path(__file__).parent / "numerics.txt").read_text()
    rows = ["| function | operations | rare branch | largest error, ulp | correctly rounded | arguments | on |"]
    rows.append("|---|---|---|---|---|---|---|")
    measured: dict[str, list[tuple[int, str, dict[str, Any]]]] = {name: [] for name in OPS}
    for path in sorted(RESULTS.glob("math_*.json")):
        result = json.loads(path.read_text())
        for name, row in result["functions"].items():
            measured[name].append((row["points"], result["backend"], row))
    for name in sorted(OPS):
        main, rare = operations(OPS[name])
        for count, backend, row in sorted(measured[name], key=lambda m: m[:2]):
            share = f"{100 * row['correctly_rounded']:.2f} %"
            size = f"2^{count.bit_length() - 1}" if count & count - 1 == 0 else f"{count:,}"
            rows.append(f"| `{name}` | {main} | {rare or ''} | {row['max_ulp']:.3f} | {share} | {size} | {backend} |")
    return text.replace("TABLE\n", "\n".join(rows) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="reference", help="id of the backend to measure")
    parser.add_argument("--points", type=int, default=1 << 24, help="arguments for each function")
    parser.add_argument("--functions", nargs="+", choices=sorted(OPS), default=sorted(OPS), metavar="NAME")
    parser.add_argument("--exhaustive", action="store_true", help="all 2^32 arguments")
    parser.add_argument("--compare", action="store_true", help="run the reference too, and compare bits")
    parser.add_argument("--record", action="store_true", help="write bench/results and docs/numerics.md")
    options = parser.parse_args()
    failed = False
    for name in options.functions:
        row = sweep(options.backend, OPS[name], options.points, options.exhaustive, options.compare)
        failed |= row["max_ulp"] > ALLOWED or row.get("different_from_reference", 0) > 0
        print(f"{name:5}", json.dumps(row), flush=True)
        if options.record:
            save(options.backend, options.exhaustive, {name: row})
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
