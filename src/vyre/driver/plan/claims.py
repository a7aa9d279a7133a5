"""What may be claimed of a dispatch before it runs: the same bytes in every order."""

from __future__ import annotations

from ...foundation.check.determinism import Determinism, determinism
from ...foundation.ir.program import Program
from .launch import LaunchPlan


def proof_of(program: Program, launch: LaunchPlan | None = None) -> Determinism:
    """Why schedules do not change results: of the program over any grid, or of one launch, which may have its own."""
    whole = program._cached("driver.determinism", lambda: determinism(program))
    if launch is None:
        return whole
    x, y, z = (n * size for n, size in zip(launch.grid, launch.workgroup, strict=True))
    return whole if whole.covers((x, y, z)) else determinism(program, launch.grid, launch.workgroup)
