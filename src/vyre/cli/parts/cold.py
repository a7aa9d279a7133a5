"""What a first call costs, by part: measured by a fresh process that `vyre explain --cold` starts.

The process does what a script does, in the same order: it starts, imports, reads the kernel, plans the call, opens the
disk cache, asks and opens backends, gets the code and dispatches. Importing this module loads nothing that a script
would not.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypedDict, cast

PARTS = {
    "start": "Python starts",
    "numpy": "NumPy is imported",
    "kernel": "vyre is imported, and the kernel is read",
    "plan": "the call is planned",
    "database": "the disk cache is opened",
    "probe": "backends are asked whether they would open",
    "open": "the backend is opened",
    "key": "the program is admitted, and its key is made",
    "code": "its code is loaded or compiled",
    "dispatch": "it is dispatched",
}
AGAIN = 3
"""Processes after the first; the one with the median time is shown."""
_CHILD = """import sys, time
begun = time.monotonic_ns()
sys.path.append(sys.argv[2])
from vyre.cli.parts.cold import main
main(begun)"""
"""The path's last entry is where this package lies, which need not be installed."""


class Took(TypedDict):
    """On the clock, and on the processor by all threads of the process: the latter holds on a busy machine."""

    ms: float
    processor_ms: float


class Run(TypedDict):
    """One process. `tier` is where the code came from: compiled or disk."""

    process: str  # first or second
    backend: str
    device: str
    tier: str
    parts: dict[str, Took]
    all: Took
    next_call_ms: float


class Watch:
    """Nanoseconds by part. What lies between two parts is not counted."""

    def __init__(self, begun: int, started: int) -> None:
        self.ns = {"start": (begun - started, time.process_time_ns())}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        begun = time.monotonic_ns(), time.process_time_ns()
        try:
            yield
        finally:
            before = self.ns.get(name, (0, 0))
            clock, processor = time.monotonic_ns() - begun[0], time.process_time_ns() - begun[1]
            self.ns[name] = before[0] + clock, before[1] + processor

    def taken(self) -> tuple[dict[str, Took], Took]:
        """By part, and in all."""
        clock, processor = (sum(column) for column in zip(*self.ns.values(), strict=True))
        return {name: _took(*ns) for name, ns in self.ns.items()}, _took(clock, processor)


def _took(clock_ns: int, processor_ns: int) -> Took:
    return Took(ms=round(clock_ns / 1e6, 3), processor_ms=round(processor_ns / 1e6, 3))


def main(begun: int) -> None:
    """Measure the call that the words of the process describe, and print it."""
    import json
    import os

    asked = json.loads(sys.argv[1])
    ours = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the file may print, and so may a driver
    watch = Watch(begun, asked.pop("started_ns"))
    try:
        found: object = measure(watch, **asked)
    except Exception as e:
        found = {"error": str(getattr(e, "message", e)), "fix": str(getattr(e, "fix", ""))}
    ours.write(json.dumps(found))
    ours.close()


def measure(watch: Watch, process: str, spec: str, request: dict[str, Any]) -> Run:
    with watch.part("numpy"):
        import numpy  # noqa: F401
    with watch.part("kernel"):
        from ...front.kernel import Kernel  # noqa: F401
    from ..inputs.programs import load
    from ..inputs.requests import request as request_of

    with watch.part("kernel"):
        loaded = load(spec)
    asked = request_of(loaded, **request)
    arguments, options = asked.arguments(), asked.options
    with watch.part("plan"):
        from ...front.call import Call

        extents = (options.get(name) for name in ("grid", "domain", "sizes", "config"))
        call = Call(asked.kernel, (), arguments, *extents)
        plan = call.plan
    with watch.part("database"):
        from ...driver.pipeline.store import DiskPipelineCache

        DiskPipelineCache.shared().attempt(_opened, None)
    with watch.part("probe"):
        _ask(asked.kernel.backend)
    with watch.part("open"):
        from ...front.compile import backend_for

        guard = backend_for(asked.kernel.backend, plan.program)
    with watch.part("key"):
        from ...driver.guard.compile import cache_key, compile_with_telemetry

        cache_key(guard, plan.program, plan.request)
    with watch.part("code"):
        build = compile_with_telemetry(guard, plan.program, plan.request, in_time=True)
    with watch.part("dispatch"):
        if not plan.idle:
            build.pipeline.dispatch(call.inputs, plan.config)
    asked.run()
    _, next_ns = asked.run()
    parts, whole = watch.taken()
    return Run(
        process=process,
        backend=guard.id,
        device=guard.device,
        tier=build.tier,
        parts=parts,
        all=whole,
        next_call_ms=round(next_ns / 1e6, 4),
    )


def _opened(database: Any) -> None:
    with database.borrowed():
        pass


def _ask(name: str | None) -> None:
    """Ask the backend of that name or, as a call without one does, each in turn until one would open."""
    from ...driver.selection.registry import registered_backends_by_precedence
    from ...driver.settings.knobs import BACKEND

    names = (name,) if name is not None else BACKEND.value() or ()
    wanted = {each.partition(":")[0] for each in names}
    for listing in registered_backends_by_precedence():
        if listing.problem() is not None or (wanted and listing.id not in wanted):
            continue
        found = listing.probe(brief=True)
        if found.unavailable is None and (wanted or not found.emulated):
            return


# ---- the process that asks ------------------------------------------------------------------------------------------


def processes(spec: str, request: dict[str, Any]) -> list[Run]:
    """The first process that there ever was, for an empty cache folder; then a later one."""
    import statistics
    import tempfile

    with tempfile.TemporaryDirectory(prefix="vyre-cold-") as folder:
        first = _measured("first", folder, spec, request)
        later = [_measured("second", folder, spec, request) for _ in range(AGAIN)]
    median = statistics.median_low(run["all"]["ms"] for run in later)
    return [first, next(run for run in later if run["all"]["ms"] == median)]


def _measured(process: str, folder: str, spec: str, request: dict[str, Any]) -> Run:
    import json
    import os
    import subprocess
    from pathlib import Path

    from ...errors import DispatchFailed

    environ = {**os.environ, "VYRE_CACHE_DIR": folder, "VYRE_CACHE": "on"}
    started = time.monotonic_ns()
    words = json.dumps({"process": process, "spec": spec, "request": request, "started_ns": started})
    command = [sys.executable, "-P", "-c", _CHILD, words, str(Path(__file__).parents[3])]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    try:
        found: Any = json.loads(done.stdout)
    except ValueError:  # it ended before, or while it wrote
        found = {}
    if "parts" in found:
        return cast("Run", found)
    said = found.get("error") or (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    raise DispatchFailed(f"the fresh process failed: {said}", fix=found.get("fix") or "see what `vyre run` says of it")
