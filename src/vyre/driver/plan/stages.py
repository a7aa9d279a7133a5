"""Which launches is a dispatch made of, where one launch cannot do it?

A grid-wide barrier on a device without one ends a launch: each segment of the program is a launch of its own. A grid
with more workgroups along an axis than the device takes becomes several launches, whose ids count on from a base.
"""

from __future__ import annotations

from ...foundation.check.gridsync import contains_grid_sync, segments, touched
from ...foundation.ir.dtypes import u32
from ...foundation.ir.nodes import (
    Call,
    Expr,
    IndirectDispatch,
    InvocationId,
    Load,
    Opaque,
    OpaqueNode,
    Trap,
    WorkgroupId,
    lit,
)
from ...foundation.ir.program import Access, BufferDecl, LinearType, Program, uniform
from ...foundation.ir.visit import distinct, rewrite
from ..contract.backend import VyreBackend
from ..contract.values import DispatchConfig
from ..policy.decision import Decision
from ..policy.launch import choose_launch
from .grid import Grid, LaunchGeometryLimits


def segments_needed(program: Program, backend: VyreBackend) -> bool:
    """Whether the program waits for its whole grid and the backend leaves that to the driver."""
    if backend.supports_grid_sync or not backend.allows_host_grid_sync_split:
        return False
    return contains_grid_sync(program)


def launch_limits(program: Program, backend: VyreBackend, config: DispatchConfig) -> LaunchGeometryLimits:
    """The limits of a dispatch: the device's, without that on the grid where it may become several launches.

    A launch that is asked to be cooperative stays one, as does a program with an extension that may use an id, or with
    a grid-wide barrier where the backend wants no launches behind its back.
    """
    limits = LaunchGeometryLimits.of(backend)
    whole = config.cooperative or (contains_grid_sync(program) and not backend.allows_host_grid_sync_split)
    return limits.any_grid() if all(limits.max_grid_dim) and not whole and not _has_unknown(program) else limits


def decide_launch(
    program: Program, backend: VyreBackend, config: DispatchConfig, grid: Grid, *, holds: bool = True
) -> Decision:
    """As `choose_launch`. `holds`: the compiled code runs all workgroups of this grid at once."""
    most, waits = backend.max_workgroups_per_dimension, contains_grid_sync(program)
    return choose_launch(
        grid,
        most,
        stages=sum(map(acts, stage_programs(program))) if waits or max(grid) > most else 1,
        waits=waits,
        has_barrier=backend.supports_grid_sync,
        splits=backend.allows_host_grid_sync_split,
        together=holds or config.cooperative,
    )


# ---- programs -------------------------------------------------------------------------------------------------------


def stage_programs(program: Program) -> tuple[Program, ...]:
    """One program for each segment, with the buffers it touches: to be read, or to be read and written.

    None has outputs of its own, or takes its grid from memory: the pipeline that runs them in turn keeps the memory.
    """
    return program._cached("driver.stages", lambda: tuple(_stage(s.program) for s in segments(program)))


def _stage(segment: Program) -> Program:
    entry = rewrite(segment.entry, node=lambda node: () if isinstance(node, IndirectDispatch) else node)
    reads, writes, lengths = touched(entry)
    kept = (b for b in segment.buffers if b.name in reads | writes | lengths)
    return segment.replace(buffers=tuple(_threaded(b, b.name in writes) for b in kept), entry=entry)


def _threaded(b: BufferDecl, written: bool) -> BufferDecl:
    """The buffer as one launch among several binds it: a first write must keep what it does not touch."""
    access = b.access
    if not b.is_workgroup:
        access = Access.READ_WRITE if written else Access.UNIFORM if access is Access.UNIFORM else Access.READ_ONLY
    return b.replace(
        access=access,
        kind=b.kind if access is b.access else None,
        is_output=False,
        live_out=False,
        output_byte_range=None,
        linear_type=LinearType.UNRESTRICTED,  # how often a buffer is used was checked over the whole program
    )


def acts(stage: Program) -> bool:
    """Whether a launch of it can be noticed."""
    if any(b.access is Access.READ_WRITE for b in stage.buffers) or _has_unknown(stage):
        return True
    return any(isinstance(item, Trap) for item in distinct(stage.entry))


def _has_unknown(program: Program) -> bool:
    """Whether something in it may ask for an id, or do more than write buffers, without showing it."""
    unknown = (Opaque, OpaqueNode, Call)
    return program._cached("driver.unknown", lambda: any(isinstance(i, unknown) for i in distinct(program.entry)))


def based_program(stage: Program) -> tuple[Program, str]:
    """The program with workgroup and global ids that count on from a base, and the name of the uniform that holds it.

    Its words are the first workgroup along each axis and then the first global id along each axis.
    """
    taken = {b.name for b in stage.buffers}
    name = "base"
    while name in taken:
        name += "_"
    slots = {b.binding for b in stage.buffers if not b.is_workgroup}
    slot = next(k for k in range(len(slots) + 1) if k not in slots)

    def counted_on(e: Expr) -> Expr:
        match e:
            case WorkgroupId(axis=axis):
                return e + Load(name, lit(axis), dtype=u32)
            case InvocationId(axis=axis):
                return e + Load(name, lit(3 + axis), dtype=u32)
        return e

    entry = rewrite(stage.entry, expr=counted_on)
    return stage.replace(buffers=(*stage.buffers, uniform(name, slot, u32, 6)), entry=entry), name
