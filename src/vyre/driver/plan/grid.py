"""How many invocations a dispatch needs, in which workgroups, and whether the device can launch them."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from ...errors import ArgumentValueError, InvalidProgram
from ...foundation.check.requirements import SUBGROUP_EXPRS
from ...foundation.ir import nodes as ir
from ...foundation.ir.nodes import IndirectDispatch
from ...foundation.ir.prints import LOGS, without_prints
from ...foundation.ir.program import Program
from ...foundation.ir.visit import distinct, walk_nodes
from ..contract.values import U32_MAX
from .binding import Binding, BindingPlan, BindingRole
from .bounds import Checked, ceil_div

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..contract.backend import VyreBackend

Grid = tuple[int, int, int]
MAX_POW2 = 1 << 31
MOST_IDS = U32_MAX + 1
"""Along an axis."""
_GRID = Checked("grid", fix="split the work into several dispatches")
INDIRECT_BYTES = 12


# ---- element counts and parameter words -----------------------------------------------------------------------------


def dispatch_element_count(bindings: Iterable[Binding], *, full_span: bool = False) -> int:
    """Invocations that a one-dimensional kernel over these buffers needs, one at least.

    With workgroup memory, or `full_span`, every element of the largest buffer is visited; else every element of the
    largest output, or of the largest input where no output has any. Uniforms never size anything.
    """
    longest = _longest(bindings, full_span)[0]
    return 1 if longest is None else longest.element_count


def dispatch_element_count_for_program(program: Program, bindings: Iterable[Binding]) -> int:
    """The same for a program: atomics and subgroup operations need every element's invocation too."""
    return dispatch_element_count(bindings, full_span=visits_everything(program))


def why_element_count(program: Program, bindings: Iterable[Binding]) -> str:
    """Where that count comes from, in words."""
    longest, what = _longest(bindings, visits_everything(program))
    if longest is None:
        return "covers one invocation, as no buffer has an element"
    elements = "1 element" if longest.element_count == 1 else f"{longest.element_count} elements"
    return f"covers the {elements} of {longest.name}, the longest {what}"


def _longest(bindings: Iterable[Binding], full_span: bool) -> tuple[Binding | None, str]:
    """The buffer whose elements are visited, and among which it is the longest."""
    because = "buffer, as it has atomics or subgroup operations" if full_span else ""
    inputs: list[Binding] = []
    results: list[Binding] = []
    for b in bindings:
        if b.role is BindingRole.SHARED:
            because = because or "buffer, as it has workgroup memory"
        elif b.role is not BindingRole.UNIFORM and b.element_count and b.name not in LOGS:
            (inputs if b.output_index is None else results).append(b)
    among = inputs + results if because else results or inputs
    return max(among, key=lambda b: b.element_count, default=None), because or ("output" if results else "input")


def visits_everything(program: Program) -> bool:
    """Whether an invocation matters beyond the output element of its own id."""
    together = (ir.Atomic, *SUBGROUP_EXPRS)
    entry = without_prints(program).entry
    return program._cached("driver.full_span", lambda: any(isinstance(i, together) for i in distinct(entry)))


def axes_of(program: Program) -> int:
    """How many axes of a grid the program can tell apart: it reads `gid` or `wg` along the last of them."""
    return program._cached("driver.axes", lambda: _axes_of(program))


def _axes_of(program: Program) -> int:
    ids = (ir.InvocationId, ir.WorkgroupId)
    return 1 + max((i.axis for i in distinct(without_prints(program).entry) if isinstance(i, ids)), default=0)


def dispatch_param_words(bindings: Sequence[Binding], element_count: int) -> tuple[int, ...]:
    """The words a kernel gets: the element count, then for slot s at s + 1 the length of its buffer; gaps are 0."""
    bound = [b for b in bindings if b.role is not BindingRole.SHARED]
    words = [0] * max(len(bindings) + 1, *(b.binding + 2 for b in bound), 1)
    words[0] = _GRID.fit(element_count, "element_count", 32)
    for b in bound:
        words[b.binding + 1] = b.element_count
    return tuple(words)


# ---- grids ----------------------------------------------------------------------------------------------------------


def grid_for_domain(domain: Sequence[int], workgroup: Grid) -> Grid:
    """Workgroups that cover `domain` invocations, x first.

    >>> grid_for_domain((640, 481), (16, 16, 1))
    (40, 31, 1)
    """
    if not all(workgroup):
        raise InvalidProgram(f"workgroup {workgroup} has an axis of 0", fix="make every axis non-zero")
    x, y, z = (*domain, 1, 1)[:3]
    return check_grid((ceil_div(x, workgroup[0]), ceil_div(y, workgroup[1]), ceil_div(z, workgroup[2])), workgroup)


def check_grid(grid: Grid, workgroup: Grid) -> Grid:
    """The grid, if every global id fits u32."""
    (x, y, z), (w, h, d) = grid, workgroup
    if x * w <= MOST_IDS and y * h <= MOST_IDS and z * d <= MOST_IDS:
        return grid
    for axis, (groups, width) in enumerate(zip(grid, workgroup, strict=True)):
        if groups * width > MOST_IDS:
            raise ArgumentValueError(
                "the grid overflowed u32: not every global id fits",
                fix="split the work into several dispatches",
                axis="xyz"[axis],
                invocations=groups * width,
                limit=MOST_IDS,
            )
    return grid


def infer_dispatch_grid(elements: int, workgroup: Grid, backend: str = "", *, axes: int = 1) -> Grid:
    """The grid of a dispatch whose caller gives none: a line of workgroups. Nothing guesses a plane.

    `axes` is how many of them the program can tell apart.
    """
    if workgroup[1] != 1 or workgroup[2] != 1 or axes > 1:
        looks = f"a workgroup of {workgroup}" if axes == 1 else f"a program that reads the {'xyz'[axes - 1]} axis"
        raise InvalidProgram(
            f"{looks} has no natural grid",
            fix="pass DispatchConfig(grid_override=(x, y, z)), in workgroups",
            backend=backend,
        )
    return infer_dispatch_grid_for_count(elements, workgroup)


def infer_dispatch_grid_for_count(elements: int, workgroup: Grid) -> Grid:
    """A grid for `elements` invocations that is as near to a line, square or cube as the workgroup is.

    For callers whose kernel computes a linear index; a dispatch takes only the line from here.

    >>> infer_dispatch_grid_for_count(1000, (8, 8, 1))
    (4, 4, 1)
    """
    n = max(elements, 1)
    if workgroup[1] == workgroup[2] == 1:
        return grid_for_domain((n,), workgroup)
    if workgroup[2] == 1:
        side = ceil_sqrt(n)
        return grid_for_domain((side, ceil_div(n, side)), workgroup)
    side = ceil_cbrt(n)
    return grid_for_domain((side, side, ceil_div(n, side * side)), workgroup)


def ceil_sqrt(n: int) -> int:
    return math.isqrt(n - 1) + 1 if n > 0 else 0


def ceil_cbrt(n: int) -> int:
    """The least integer whose cube is at least `n`."""
    low, high = 0, 1 << ceil_div(max(n, 1).bit_length(), 3)
    while low < high:
        middle = (low + high) // 2
        if middle**3 < n:
            low = middle + 1
        else:
            high = middle
    return low


# ---- rounding up to a power of two ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TailMaskPolicy:
    """A launch of `rounded_count` lanes of which the last `tail_lanes` have no element."""

    original_count: int
    rounded_count: int
    tail_lanes: int

    def is_aligned(self) -> bool:
        return self.tail_lanes == 0


def try_coerce_to_pow2_with_tail_mask(count: int) -> TailMaskPolicy:
    """`count` rounded up to a power of two that fits u32."""
    rounded = 1 << (count - 1).bit_length() if count else 0
    if rounded > MAX_POW2:
        raise InvalidProgram(
            f"no power-of-two of 32 bits holds {count} lanes", fix="split the work into several dispatches"
        )
    return TailMaskPolicy(count, rounded, rounded - count)


def coerce_to_pow2_with_tail_mask(count: int) -> TailMaskPolicy:
    """The same; a count that cannot be rounded stays as it is."""
    if count > MAX_POW2:
        return TailMaskPolicy(count, count, 0)
    return try_coerce_to_pow2_with_tail_mask(count)


def boxes(grid: Grid, most: int | Grid) -> Iterator[tuple[Grid, Grid]]:
    """A grid cut into (base, size), each at most so long along an axis. An empty grid has none.

    >>> list(boxes((5, 2, 1), 4))
    [((0, 0, 0), (4, 2, 1)), ((4, 0, 0), (1, 2, 1))]
    """
    axes = [
        [(at, min(limit, n - at)) for at in range(0, n, limit)] for n, limit in zip(grid, _limits(most), strict=True)
    ]
    for z, y, x in product(*reversed(axes)):
        yield (x[0], y[0], z[0]), (x[1], y[1], z[1])


def box_count(grid: Grid, most: int | Grid) -> int:
    """How many `boxes` gives.

    >>> box_count((5, 2, 1), 4), box_count((5, 0, 1), 4)
    (2, 0)
    """
    return math.prod(ceil_div(n, limit) for n, limit in zip(grid, _limits(most), strict=True))


def _limits(most: int | Grid) -> Grid:
    return (most, most, most) if isinstance(most, int) else most


# ---- indirect dispatch ----------------------------------------------------------------------------------------------


def find_indirect_dispatch(program: Program) -> IndirectDispatch | None:
    """The statement that names where the grid lies, if the program takes it from memory."""
    return program._cached("driver.indirect", lambda: _find_indirect(program))


def _find_indirect(program: Program) -> IndirectDispatch | None:
    found = [n for n in walk_nodes(program.entry) if isinstance(n, IndirectDispatch)]
    if len(found) > 1:
        raise InvalidProgram("the program has more than one indirect dispatch source", fix="keep one of them")
    if found and found[0].count_offset % 4:
        raise InvalidProgram(
            f"the indirect grid at byte {found[0].count_offset} is not 4-byte aligned", fix="use a multiple of 4"
        )
    return found[0] if found else None


def resolve_indirect_grid(program: Program, inputs: Sequence[Buffer]) -> Grid | None:
    """The three words of the indirect grid, from the host's inputs; zeros where the buffer starts as zeros."""
    where = find_indirect_dispatch(program)
    if where is None:
        return None
    b = next((b for b in BindingPlan.build(program).bindings if b.name == where.count_buffer), None)
    if b is None or b.role is BindingRole.SHARED:
        raise InvalidProgram(
            f"the grid lies in {where.count_buffer!r}, which the host does not bind", fix="name a bound buffer"
        )
    if b.input_index is None:
        return 0, 0, 0
    data = memoryview(inputs[b.input_index])
    require_grid_within(b.name, where.count_offset, data.nbytes)
    return grid_words(data.cast("B") if data.c_contiguous else data.tobytes(), where.count_offset)


def require_grid_within(buffer: str, offset: int, nbytes: int) -> None:
    """Raise unless a grid lies at this byte of a buffer with so many."""
    fix = f"bind at least {offset + INDIRECT_BYTES} bytes: three u32 words at byte {offset}"
    Checked(f"no grid in buffer {buffer!r}", fix).range_end(offset, INDIRECT_BYTES, nbytes, "grid")


def grid_words(data: Buffer, offset: int = 0) -> Grid:
    """The grid that lies in memory."""
    x, y, z = struct.unpack_from("<III", data, offset)
    return x, y, z


# ---- what a program sees of its workgroups, and what a device allows -------------------------------------------------


def why_workgroup_is_fixed(program: Program) -> str | None:
    """What makes a program's meaning depend on its workgroup size, or None."""
    return program._cached("driver.fixed_workgroup", lambda: _why_fixed(program))


def _why_fixed(program: Program) -> str | None:
    if any(b.is_workgroup for b in program.buffers):
        return "workgroup memory"
    for item in distinct(program.entry):
        if isinstance(item, ir.Barrier):
            return "a barrier"
        if what := _geometry(item):
            return what
    return None


def _geometry(item: ir.Expr | ir.Node) -> str | None:
    """By what it tells workgroups apart: local or workgroup ids, subgroups, or an extension, which might."""
    match item:
        case ir.LocalId():
            return "local ids"
        case ir.WorkgroupId():
            return "workgroup ids"
        case ir.Opaque(kind=kind) | ir.OpaqueNode(kind=kind) | ir.Call(op_id=kind):
            return f"the extension {kind}"
    return "subgroup operations" if isinstance(item, SUBGROUP_EXPRS) else None


@dataclass(frozen=True, slots=True)
class LaunchGeometryLimits:
    """What one launch may be on a device."""

    backend: str
    max_threads_per_block: int
    max_block_dim: Grid
    max_grid_dim: Grid

    @classmethod
    def of(cls, backend: VyreBackend) -> LaunchGeometryLimits:
        most = backend.max_workgroups_per_dimension
        return cls(backend.id, backend.max_invocations_per_workgroup, backend.max_workgroup_size, (most, most, most))

    def any_grid(self) -> LaunchGeometryLimits:
        """The same, for a grid that may become several launches."""
        return replace(self, max_grid_dim=(U32_MAX, U32_MAX, U32_MAX))


def validate_launch_geometry(workgroup: Grid, grid: Grid, limits: LaunchGeometryLimits | None = None) -> None:
    """Raise unless this launch is possible: non-zero axes, sizes of 32 bits, and the device's limits."""
    on = f" on backend {limits.backend}" if limits is not None else ""
    for what, dims in (("workgroup", workgroup), ("grid", grid)):
        if not all(dims):
            raise InvalidProgram(f"zero-sized {what} dimensions {dims}{on}", fix="make every axis non-zero")
    size = Checked("workgroup", fix="use a smaller workgroup").product(workgroup, "invocations per workgroup", 32)
    if limits is None:
        return
    if size > limits.max_threads_per_block:
        raise InvalidProgram(
            f"a workgroup of {size} invocations{on}: max is {limits.max_threads_per_block}",
            fix="use a smaller workgroup",
        )
    for what, dims, most in (
        ("workgroup", workgroup, limits.max_block_dim),
        ("grid", grid, limits.max_grid_dim),
    ):
        for axis in range(3):
            if dims[axis] > most[axis]:
                raise InvalidProgram(
                    f"{what} axis {axis} has size {dims[axis]}{on}: max is {most[axis]}",
                    fix=f"use at most {most[axis]} along that axis, or split the work into several dispatches",
                )
