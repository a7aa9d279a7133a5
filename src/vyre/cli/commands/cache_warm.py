"""What `vyre cache warm` does: the kernels of a file compiled, and what became of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from ...errors import ArgumentTypeError, VyreError
from ..inputs.programs import Loaded
from ..output import print_table, progress
from .ir import program_of


class WarmRow(TypedDict):
    kernel: str
    backend: str | None
    tier: str | None  # where its code was: disk or memory, or nowhere, so that it was compiled
    seconds: float | None
    on_disk: bool  # whether the next process loads it
    problem: str | None


class Warmed(TypedDict):
    file: str
    kernels: list[WarmRow]


def warm_all(
    loaded: Sequence[Loaded], consts: Mapping[str, str], backend: str | None, timeout: float | None, threads: int | None
) -> Warmed:
    from ...driver.contract.values import DispatchConfig
    from ...driver.guard.compile import cache_key
    from ...driver.guard.prewarm import prewarm_all
    from ...driver.pipeline.store import DiskPipelineCache
    from ...front.compile import backend_for

    rows = [WarmRow(kernel=each.kernel.__name__, backend=None, tier=None, seconds=None, on_disk=False, problem=None)
            for each in loaded]  # fmt: skip
    config, wanted = DispatchConfig(timeout=timeout), {}
    require_known(loaded, consts)
    for k, each in enumerate(loaded):
        own = [f"{p.name}={consts[p.name]}" for p in each.kernel.params if p.name in consts]
        try:
            program = program_of(each, own)
            wanted[k] = backend_for(backend or each.kernel.backend, program), program
        except VyreError as e:
            rows[k]["problem"] = str(e)
    with progress("compiling", len(wanted)) as step:
        warmed = prewarm_all(list(wanted.values()), config, threads=threads, done=lambda one: step(one.program.name))
    for (k, (guard, program)), one in zip(wanted.items(), warmed, strict=True):
        row = rows[k]
        row["backend"] = guard.id
        if one.error is not None and not isinstance(one.error, VyreError):
            raise one.error
        if one.report is None:
            row["problem"] = str(one.error)
            continue
        row["tier"], row["seconds"] = one.report.tier, round(one.took_s, 4)
        row["on_disk"] = DiskPipelineCache.shared().holds(cache_key(guard, program, config))
    return Warmed(file=loaded[0].path, kernels=rows)


def require_known(loaded: Sequence[Loaded], consts: Mapping[str, str]) -> None:
    known = {p.name for each in loaded for p in each.kernel.params}
    for name in consts:
        if name not in known:
            raise ArgumentTypeError(f"no kernel of {loaded[0].path} has a parameter {name}", fix=f"drop --const {name}")


def show_warmed(document: Warmed) -> None:
    def words(row: WarmRow) -> tuple[str, ...]:
        took = "" if row["seconds"] is None else f"{1e3 * row['seconds']:.0f} ms"
        return row["kernel"], row["backend"] or "-", row["tier"] or "-", took, "yes" if row["on_disk"] else "no"

    print_table(("kernel", "backend", "code", "took", "on disk"), [words(row) for row in document["kernels"]])
    for row in document["kernels"]:
        if row["problem"]:
            print(f"{row['kernel']}: {row['problem']}")
