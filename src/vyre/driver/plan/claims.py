"""What may be claimed of a dispatch before it runs: the same bytes in every order, and how exact they are."""

from __future__ import annotations

from ...foundation.check.determinism import Determinism, determinism
from ...foundation.ir.nodes import UnOp
from ...foundation.ir.ops import UnaryOp
from ...foundation.ir.program import Program
from ...foundation.ir.visit import distinct
from .launch import LaunchPlan


def proof_of(program: Program, launch: LaunchPlan | None = None) -> Determinism:
    """Why schedules do not change results: of the program over any grid, or of one launch, which may have its own."""
    whole = program._cached("driver.determinism", lambda: determinism(program))
    if launch is None:
        return whole
    x, y, z = (n * size for n, size in zip(launch.grid, launch.workgroup, strict=True))
    return whole if whole.covers((x, y, z)) else determinism(program, launch.grid, launch.workgroup)


def may_approximate(program: Program) -> bool:
    """Whether some operation of the program may be computed otherwise under a budget; all others are exact."""
    return program._cached(
        "driver.may_approximate",
        lambda: any(
            isinstance(item, UnOp) and isinstance(item.op, UnaryOp) and item.op.transcendental
            for item in distinct(program.entry)
        ),
    )
