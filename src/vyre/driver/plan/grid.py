"""How many workgroups a dispatch needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import ArgumentValueError
from ...foundation.ir import Atomic, SubgroupBallot, SubgroupLocalId, SubgroupReduce, SubgroupShuffle, SubgroupSize
from ...foundation.program import Access, Program
from ...foundation.visit import walk

Grid = tuple[int, int, int]
MAX_ID = 0xFFFFFFFF
_EVERY_LANE = (Atomic, SubgroupBallot, SubgroupLocalId, SubgroupReduce, SubgroupShuffle, SubgroupSize)


def dispatch_element_count(program: Program, counts: Mapping[str, int]) -> int:
    """Invocations a one-dimensional kernel needs, from the element counts of its bound buffers.

    A program with shared memory, atomics or subgroup operations visits every element of its largest buffer; another
    one visits its largest output, or its largest input when it has no output. Uniforms never size anything.
    """
    sizing = [b for b in program.bound_buffers if b.access is not Access.UNIFORM]
    everything = max((counts[b.name] for b in sizing), default=0)
    results = max((counts[b.name] for b in sizing if b.is_host_output), default=0)
    full_span = any(b.is_workgroup for b in program.buffers) or any(
        isinstance(e, _EVERY_LANE) for e in walk(program.entry)
    )
    return max(everything if full_span or not results else results, 1)


def grid_for_domain(domain: Sequence[int], workgroup: Grid) -> Grid:
    """Workgroups that cover `domain` invocations, x first.

    >>> grid_for_domain((640, 481), (16, 16, 1))
    (40, 31, 1)
    """
    x, y, z = (*domain, 1, 1)[:3]
    return check_grid((-(-x // workgroup[0]), -(-y // workgroup[1]), -(-z // workgroup[2])), workgroup)


def check_grid(grid: Grid, workgroup: Grid) -> Grid:
    """The grid, if every global id fits u32."""
    for axis, (groups, lanes) in enumerate(zip(grid, workgroup, strict=True)):
        if groups * lanes > MAX_ID:
            raise ArgumentValueError(
                "global ids would not fit u32",
                fix="split the work into several dispatches",
                axis="xyz"[axis],
                invocations=groups * lanes,
                limit=MAX_ID,
            )
    return grid
