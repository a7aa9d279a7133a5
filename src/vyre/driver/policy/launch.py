"""How is a dispatch launched, and who keeps its deadline?"""

from __future__ import annotations

from ...foundation.check.gridsync import contains_grid_sync
from ...foundation.ir.program import Program
from ..contract.backend import VyreBackend
from ..contract.values import Dims, DispatchConfig
from ..plan.stages import launch_count, segments_needed
from .decision import Decision

SEQUENCE, COOPERATIVE, PLAIN = "in sequence", "cooperative", "plain"
NONE, BY_BACKEND, BY_DRIVER = "none", "kept by the backend", "kept by the driver"


def choose_launch(
    program: Program, backend: VyreBackend, config: DispatchConfig, grid: Dims, *, holds: bool = True
) -> Decision:
    """One launch, or several in sequence. `holds`: the compiled code runs all workgroups of this grid at once."""
    limit = backend.max_workgroups_per_dimension
    why = []
    if segments_needed(program, backend):
        why.append("the device has no grid-wide barrier")
    if max(grid) > limit:
        why.append(f"the device takes {limit} workgroups along an axis")
    if not holds and not config.cooperative and backend.allows_host_grid_sync_split:
        why.append("its workgroups wait for each other, and do not all run at once")
    if why:
        numbers = {"launches": launch_count(program, grid, limit), "workgroups_per_axis": limit}
        return Decision("launch", SEQUENCE, " and ".join(why), numbers)
    if backend.supports_grid_sync and contains_grid_sync(program):
        return Decision("launch", COOPERATIVE, "its workgroups wait for each other, and all run at once")
    return Decision("launch", PLAIN, "the device takes the whole grid", {"workgroups_per_axis": limit})


def choose_deadline(backend: VyreBackend, config: DispatchConfig) -> Decision:
    """Who ends a dispatch that takes too long."""
    if config.timeout is None:
        return Decision("deadline", NONE, "no timeout is set")
    if backend.deadline == "none":
        reason = f"kept by the driver, which leaves the call behind: backend {backend.id} keeps none"
        return Decision("deadline", BY_DRIVER, reason, {"timeout_s": config.timeout})
    return Decision(
        "deadline", BY_BACKEND, f"kept by backend {backend.id} as: {backend.deadline}", {"timeout_s": config.timeout}
    )
