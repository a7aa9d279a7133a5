"""Random programs on compiled backends, each compiled in several ways: do all give the bytes of the reference?

    python bench/agree.py --backends cpu,opencl,wgpu --count 300     a table
    python bench/agree.py --backends opencl:nvidia,wgpu:nvidia --json     devices by a part of their name; as JSON, also
                                                                          written to bench/results/agree.json

Programs of every kind come in turn: lanes that meet, part and stray, with traps; expressions of every operator;
functions of the math library; barriers of the whole grid. Each runs as the backend compiles it by itself, and then in
one other way, in turn: without improvements of the lowering, with the flush in software, for a deadline. Exit status 1:
a difference.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any
from unittest.mock import patch

from record import record

from vyre.backends.reference import run as reference
from vyre.conform.programs.divergent import lane_program
from vyre.conform.programs.random import Case, random_program
from vyre.driver.contract import BackendRegistration, VyreBackend
from vyre.driver.contract.values import DispatchConfig
from vyre.driver.guard.backend import guarded
from vyre.errors import Trap, UnsupportedFeature
from vyre.foundation.ir.dtypes import DataType, bf16, f16, f64, i64, u64
from vyre.foundation.ir.visit import walk
from vyre.lower import PASSES

Outcome = list[bytes] | str
"""Bytes of all outputs, the trap that it ended in, or the error."""


@dataclass
class Way:
    """One way of compiling, on a backend of its own: `during` is in force while it compiles."""

    backend: Any
    timeout: float | None = None
    during: Callable[[], AbstractContextManager[Any]] = field(default=nullcontext)


# ---- backends -------------------------------------------------------------------------------------------------------


def opener(name: str) -> tuple[str, Callable[[], VyreBackend]]:
    """The name of the device of `id`, or of `id:part of its name`, and what opens it."""
    id, _, part = name.partition(":")
    registration: BackendRegistration = import_module(f"vyre.backends.{id}").REGISTRATION
    if (why := registration.unavailable()) is not None:
        raise SystemExit(f"{id} is not available: {why}")
    known = registration.devices() if registration.devices is not None else ()
    device = next((d for d in known if part.lower() in d.name.lower()), None)
    if device is None:
        raise SystemExit(f"{id} has no device {part!r}; it has: {', '.join(d.name for d in known)}")
    return device.name, registration.open if not part else lambda: registration.open(device.index)


def ways_of(open_backend: Callable[[], VyreBackend]) -> dict[str, Way]:
    """The first is how the backend compiles by itself."""
    first = open_backend()
    found = {"by itself": Way(guarded(first)), "deadline": Way(guarded(first), 60.0)}
    for name, (backend, during) in _others(first, open_backend):
        found[name] = Way(guarded(backend), during=during)
    return found


def _others(first: VyreBackend, open_backend: Callable[[], Any]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    if first.id == "cpu":
        cpu = import_module("vyre.backends.cpu")
        switches: dict[str, dict[str, Any]] = {
            "scalar": {"scalar": True},
            "software flush": {"soft_flush": True},
            "scalar, software flush": {"scalar": True, "soft_flush": True},
            "no improvement": {"off": frozenset(PASSES)},
            **{f"without {p}": {"off": frozenset((p,))} for p in PASSES},
        }
        for name, values in switches.items():
            yield name, (cpu.CpuBackend(cpu.Switches(**values)), nullcontext)
        return
    build = import_module(f"vyre.backends.{first.id}.build")
    yield "no improvement", (open_backend(), lambda: patch.object(build, "OFF", frozenset(PASSES)))
    other = open_backend()
    if hasattr(other, "exactness"):
        other.exactness = replace(other.exactness, mode=type(other.exactness.mode).SOFT)
        yield "software flush", (other, nullcontext)
    elif hasattr(other, "record"):
        other.record = replace(other.record, traits=type(other.record.traits)())
        yield "nothing on trust", (other, nullcontext)


# ---- programs -------------------------------------------------------------------------------------------------------


def case_of(seed: int, without: list[DataType], endless: bool) -> Case:
    """Every kind of program in turn."""
    rng = random.Random(seed)
    match seed % 5:
        case 0 | 1:
            return lane_program(rng, trap=seed % 10 == 0, without=without)
        case 2:
            return random_program(rng, endless=endless, without=without)
        case 3:
            return random_program(rng, functions=True, endless=endless, without=without)
        case _:
            return random_program(rng, grid_barriers=True, endless=endless, without=without)


def outcome(work: Callable[[], list[Any]]) -> Outcome:
    try:
        return [bytes(o) for o in work()]
    except Trap as e:
        return f"trap {e.context['tag']} {e.context['address']} {e.context['invocation']}"


def expected(case: Case) -> Outcome:
    return outcome(
        lambda: reference(case.program, case.inputs, grid=case.grid, output_elements=case.output_elements).outputs
    )


def result(way: Way, case: Case) -> Outcome | UnsupportedFeature:
    config = DispatchConfig(grid_override=case.grid, output_elements=case.output_elements or None, timeout=way.timeout)
    try:
        with way.during():
            return outcome(lambda: way.backend.dispatch(case.program, case.inputs, config))
    except UnsupportedFeature as e:
        return e
    except Exception as e:  # an error of one of them alone is what this looks for
        return f"{type(e).__name__}: {e}"


def compare(name: str, count: int, seed: int, seconds: float) -> dict[str, Any]:
    """The report on one backend."""
    device, open_backend = opener(name)
    ways = ways_of(open_backend)
    first, *turns = ways
    backend = ways[first].backend
    facts = backend.capability
    without = [t for t in (u64, i64, f16, bf16, f64) if t.name not in facts.types]
    endless = not facts.exactness.get("loop_limit")
    runs: Counter[str] = Counter()
    uses: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    mismatches: list[dict[str, object]] = []
    start = time.perf_counter()
    programs = 0
    for k in range(seed, seed + count):
        if time.perf_counter() - start > seconds:
            break
        programs += 1
        case = case_of(k, without, endless)
        wanted = expected(case)
        for way in (first, turns[k % len(turns)]):
            found = result(ways[way], case)
            runs[way] += 1
            if isinstance(found, UnsupportedFeature):
                refused[str(found.context.get("name", found.message))] += 1
            elif found != wanted:
                mismatches.append({"seed": k, "way": way, "error": found if isinstance(found, str) else ""})
        uses.update({type(item).__name__ for item in walk(case.program.entry)})
        uses.update({f"buffer of {b.element.name}" for b in case.program.buffers})
    return {
        "device": device,
        "facts": {k: v for k, v in facts.extras.items() if isinstance(v, str | bool | int)},
        "programs": programs,
        "runs": dict(runs),
        "refused": dict(refused),
        "mismatches": mismatches,
        "programs_using": dict(sorted(uses.items())),
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backends", default="cpu", help="ids, separated by commas; id:name for a certain device")
    parser.add_argument("--count", type=int, default=300, help="programs for each backend")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time for each backend")
    parser.add_argument("--json", action="store_true", help="print JSON and write bench/results/<name>.json")
    parser.add_argument("--name", default="agree", help="of the file")
    options = parser.parse_args()
    reports = {
        name: compare(name, options.count, options.seed, options.seconds) for name in options.backends.split(",")
    }
    if options.json:
        print(record(options.name, {"seed": options.seed, "backends": reports}))
    else:
        table(reports)
    return 1 if any(r["mismatches"] for r in reports.values()) else 0


def table(reports: dict[str, dict[str, Any]]) -> None:
    print(f"{'backend':<16}{'device':<44}{'programs':>9}{'runs':>7}{'refused':>9}{'different':>11}{'seconds':>9}")
    for name, r in reports.items():
        print(
            f"{name:<16}{r['device'][:42]:<44}{r['programs']:>9}{sum(r['runs'].values()):>7}"
            f"{sum(r['refused'].values()):>9}{len(r['mismatches']):>11}{r['seconds']:>9}"
        )
    for name, r in reports.items():
        for line in r["mismatches"]:
            print(name, line)
        if r["refused"]:
            print(name, "refused:", r["refused"])


if __name__ == "__main__":
    raise SystemExit(main())
