"""Random programs of an older commit: do the sources of then and of now give the same bytes on every backend?

    python bench/same_bytes.py f26e18b --count 400                                   a table
    python bench/same_bytes.py f26e18b --backends reference,cpu,opencl,wgpu --json   bench/results/same_bytes.json

The older sources make the programs, written down in the wire form, and run them; then those of this checkout read and
run the same blobs. Each side is a process of its own for each backend, with its own `src` first on the path. A program
that a backend refuses counts by the class of its error. Exit status 1: a difference.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pickle
import random
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from record import HERE, record

ROOT = HERE.parent


def make(count: int, file: Path) -> None:
    """Programs of every kind with their inputs, by whichever sources are on the path."""
    try:
        random_program = import_module("vyre.conform.programs.random").random_program
        lane_program = import_module("vyre.conform.programs.divergent").lane_program
    except ModuleNotFoundError:
        random_program = import_module("vyre.conform.generate").random_program
        lane_program = import_module("vyre.conform.lanes").lane_program
    cases = []
    for seed in range(count):
        rng = random.Random(seed)
        kinds: list[Any] = [
            lambda rng: lane_program(rng, trap=True),
            lane_program,
            random_program,
            lambda rng: random_program(rng, functions=True),
            lambda rng: random_program(rng, grid_barriers=True),
        ]
        case = kinds[seed % len(kinds)](rng)
        cases.append((case.program.to_wire(), case.inputs, case.grid, case.output_elements))
    file.write_bytes(pickle.dumps(cases))


def run(backend: str, file: Path) -> None:
    """Print a digest of what each program gives, one a line."""
    import vyre

    opened = vyre.acquire(backend)
    for blob, inputs, grid, sizes in pickle.loads(file.read_bytes()):
        config = vyre.DispatchConfig(grid_override=grid, output_elements=sizes or None)
        try:
            found = [bytes(o) for o in opened.dispatch(vyre.Program.from_wire(blob), inputs, config)]
            print(hashlib.blake2b(repr([o.hex() for o in found]).encode(), digest_size=16).hexdigest())
        except vyre.VyreError as e:
            print(
                type(e).__name__, *(str(e.context.get(k)) for k in ("tag", "address", "invocation") if k in e.context)
            )


def lines(source: Path, *words: str) -> list[str]:
    """What this script prints as a process over these sources."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", *words],
        env=os.environ | {"PYTHONPATH": str(source)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        what, name, file = sys.argv[2:]
        make(int(name), Path(file)) if what == "make" else run(name, Path(file))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", help="a commit")
    parser.add_argument("--backends", default="reference,cpu")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--json", action="store_true", help="print JSON and write bench/results/same_bytes.json")
    options = parser.parse_args()
    reports: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        old, file = Path(folder) / "old", str(Path(folder) / "programs")
        commit = subprocess.check_output(["git", "rev-parse", options.before], cwd=ROOT, text=True).strip()
        archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        old.mkdir()
        subprocess.run(["tar", "-x"], cwd=old, input=archive.stdout, check=True)
        lines(old / "src", "make", str(options.count), file)
        for backend in options.backends.split(","):
            then = lines(old / "src", "run", backend, file)
            now = lines(ROOT / "src", "run", backend, file)
            reports[backend] = {
                "programs": len(now),
                "digest_before": hashlib.blake2b("\n".join(then).encode(), digest_size=16).hexdigest(),
                "digest_now": hashlib.blake2b("\n".join(now).encode(), digest_size=16).hexdigest(),
                "errors": sum(line[0].isupper() for line in now),
                "different": [
                    {"seed": k, "before": a, "now": b} for k, (a, b) in enumerate(zip(then, now, strict=True)) if a != b
                ],
            }
            if not options.json:
                print(f"{backend:<12}{len(now):>6} programs, {len(reports[backend]['different'])} different")
    if options.json:
        print(record("same_bytes", {"before": commit, "backends": reports}))
    return 1 if any(r["different"] for r in reports.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
