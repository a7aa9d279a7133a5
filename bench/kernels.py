"""Random kernels, as users write them, on every backend: does each give the bytes of the exact model?

    python bench/kernels.py --backends cpu,opencl,wgpu --count 20000 --jobs 2     a table
    python bench/kernels.py --backends reference --count 500 --seed 7 --json      bench/results/kernels_reference.json

Kernels are source text made from seeds (vyre/conform/kernels), and the model is exact arithmetic on the same tree, so
that the reference is judged like any other; a kernel meets all the backends in one process. Work is done in blocks of
seeds by processes that end after some of them; a block that is done is kept in build/kernels, and the same command
goes on where it was stopped. A kernel that differs is made small and written there too, as a script. `--name gl` puts
a name of its own into the files, for a backend that the environment makes use another device. `--add` keeps what the
files say of other seeds, with its commit. Exit status 1: a difference.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from importlib import import_module
from typing import Any

from record import HERE, RESULTS, record

from vyre.conform.kernels import check
from vyre.conform.kernels.make import random_kernel
from vyre.conform.kernels.model import expected
from vyre.conform.kernels.shrink import shrunk
from vyre.conform.kernels.tree import Tree, expressions, statements
from vyre.errors import UnsupportedFeature
from vyre.front.kernel import Kernel

BLOCK = 50
KEPT = HERE.parent / "build" / "kernels"
MOST_SCRIPTS = 20


def judged(tree: Tree, backend: str, answer: list[bytes], kernel: Kernel | None = None) -> tuple[str, str]:
    """ "same", "refused" with the reason, or "different" with what differs."""
    try:
        found = check.difference(tree, backend, answer, kernel)
    except UnsupportedFeature as e:
        return "refused", str(e.context.get("name") or e.message.partition(":")[0].partition(", and")[0])
    except Exception as e:  # an error that only this backend has is what this looks for
        return "different", f"{type(e).__name__}: {e}"[:2000]
    return ("same", "") if found is None else ("different", str(found))


class Report:
    """What was found on one backend."""

    def __init__(self) -> None:
        self.verdicts: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.kernels_using: Counter[str] = Counter()
        self.mismatches: list[dict[str, Any]] = []

    def enter(self, tree: Tree, verdict: str, why: str) -> None:
        self.verdicts[verdict] += 1
        if verdict == "refused":
            self.refused[why] += 1
        elif verdict == "different":
            self.mismatches.append({"seed": tree.seed, "difference": why})
        self.kernels_using.update(used(tree))

    def add(self, part: dict[str, Any]) -> None:
        """What another process found."""
        for total in ("verdicts", "refused", "kernels_using"):
            getattr(self, total).update(part[total])
        self.mismatches += part["mismatches"]


def block(backends: list[str], first: int, count: int) -> dict[str, Report]:
    """The reports on some seeds: each kernel is made, understood and computed exactly once for all backends."""
    reports = {backend: Report() for backend in backends}
    for seed in range(first, first + count):
        tree = random_kernel(seed)
        answer, kernel = expected(tree), check.built(tree)
        for backend, report in reports.items():
            report.enter(tree, *judged(tree, backend, answer, kernel))
    return reports


def used(tree: Tree) -> set[str]:
    """What a kernel consists of, for the record of what was tried."""
    found = {s.op for s in statements(tree.body)} | {f"array of {a.t}" for a in tree.arrays}
    found |= {f"{e.op} of {e.t}" if e.op == "cast" else e.op for e in expressions(tree.body)}
    found.add(f"{len(tree.workgroup)} axes")
    return found | ({"helper"} if tree.helpers else set())


@cache
def sources() -> str:
    """What the sources are, in short: a block is kept for these."""
    found = hashlib.blake2b(digest_size=6)
    for path in sorted((HERE.parent / "src").rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


# ---- processes ------------------------------------------------------------------------------------------------------


def run_block(backends: list[str], label: str, first: int, count: int) -> dict[str, dict[str, Any]]:
    """The reports on a block, made by a process of its own unless they are there already."""
    path = KEPT / f"{label}_{sources()}_{first}_{count}.json"
    if not path.exists():
        command = [sys.executable, __file__, "--block", ",".join(backends), str(first), str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            why = f"the process ended with {done.returncode}: {done.stderr[-1500:]}"
            lost = vars(Report()) | {"verdicts": {"different": 1}, "mismatches": [{"seed": first, "difference": why}]}
            return dict.fromkeys(backends, lost)
        KEPT.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        unfinished.write_text(done.stdout)
        unfinished.replace(path)
    found: dict[str, dict[str, Any]] = json.loads(path.read_text())
    return found


def compare(backends: list[str], label: str, seed: int, count: int, jobs: int) -> dict[str, Report]:
    """The reports on all seeds, with progress on stderr."""
    start = time.perf_counter()
    totals = {backend: Report() for backend in backends}
    firsts = range(seed, seed + count, BLOCK)
    with ThreadPoolExecutor(jobs) as pool:
        work = [pool.submit(run_block, backends, label, s, min(BLOCK, seed + count - s)) for s in firsts]
        for done, future in enumerate(as_completed(work), 1):
            for backend, part in future.result().items():
                totals[backend].add(part)
            spent = time.perf_counter() - start
            left = spent / done * (len(work) - done)
            different = sum(len(report.mismatches) for report in totals.values())
            print(
                f"\r{label}: {min(done * BLOCK, count)} of {count}, {different} different, "
                f"{spent / 60:.0f} min, {left / 60:.0f} min left ",
                end="", file=sys.stderr, flush=True,
            )  # fmt: skip
    print(file=sys.stderr)
    return totals


def device_of(backend: str) -> str:
    """What the backend runs on."""
    registration = import_module(f"vyre.backends.{backend.partition(':')[0]}").REGISTRATION
    if (why := registration.unavailable()) is not None:
        raise SystemExit(f"{backend} is not available: {why}")
    device = next(iter(registration.devices()), None) if registration.devices is not None else None
    return device.name if device is not None else backend


def write_script(seed: int, backend: str, label: str) -> str:
    """The kernel that differs, made small, as a program that shows both answers."""
    tree = random_kernel(seed)
    verdict, why = judged(tree, backend, expected(tree))
    if verdict != "different":
        return f"not again: {verdict} {why}"
    kind = why.partition(":")[0]  # an error stays that error; a difference may move

    def differs(candidate: Tree) -> bool:
        again, reason = judged(candidate, backend, expected(candidate))
        return again == "different" and ("Error" not in kind or reason.startswith(kind))

    tree = shrunk(tree, differs)
    answer = expected(tree)
    path = KEPT / f"{label}_{seed}.py"
    path.write_text(check.script(tree, backend, judged(tree, backend, answer)[1], answer))
    return path.relative_to(HERE.parent).as_posix()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backends", default="cpu", help="ids, separated by commas; id:number for a certain device")
    parser.add_argument("--count", type=int, default=500, help="kernels for each backend")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--name", default="", help="what the backend is called in files")
    parser.add_argument("--json", action="store_true", help="write bench/results/kernels_<backend>.json")
    parser.add_argument("--add", action="store_true", help="with --json: keep what the file says now, as `before`")
    parser.add_argument("--block", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.block:
        backends, first, count = options.block
        print(json.dumps(block(backends.split(","), int(first), int(count)), default=vars))
        return 0
    backends = options.backends.split(",")
    devices = {backend: device_of(backend) for backend in backends}
    start = time.perf_counter()
    label = options.name or options.backends.replace(":", "_").replace(",", "_")
    reports = compare(backends, label, options.seed, options.count, options.jobs)
    seconds = round(time.perf_counter() - start, 1)
    different = 0
    for backend, report in reports.items():
        name = options.name or backend.replace(":", "_")
        report.mismatches.sort(key=lambda m: m["seed"])
        for m in report.mismatches[:MOST_SCRIPTS]:
            m["script"] = write_script(m["seed"], backend, name)
        different += len(report.mismatches)
        print(
            f"{name} on {devices[backend]}: {sum(report.verdicts.values())} kernels, "
            f"{report.verdicts['same']} the same, {sum(report.refused.values())} refused, "
            f"{len(report.mismatches)} different"
        )
        for m in report.mismatches:
            print(f"  seed {m['seed']}: {m['difference'][:300]} ({m.get('script', '')})")
        if options.json:
            entry = {
                "backend": backend,
                "device": devices[backend],
                "seeds": [options.seed, options.seed + options.count],
                "kernels": sum(report.verdicts.values()),
                "same": report.verdicts["same"],
                "refused": dict(report.refused.most_common()),
                "mismatches": report.mismatches,
                "kernels_using": dict(sorted(report.kernels_using.items())),
            }
            if options.add and (path := RESULTS / f"kernels_{name}.json").exists():
                before = json.loads(path.read_text())
                entry["before"] = [*before.pop("before", []), before]
            record(f"kernels_{name}", entry)
    print(f"{seconds} s")
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main())
