"""How much runs: the grid of a kernel call, from its options, or from what its invocations write.

A call runs every invocation that can write something. Where neither the index of a write nor an `if` around it says
which these are, the arrays that it reads by id do; a call of which nothing is known is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from ..driver.contract.values import Dims
from ..driver.plan.extent import FAR, Extent, Limit, confined, line_of
from ..driver.plan.grid import check_grid, grid_for_domain, visits_everything
from ..driver.plan.reach import Write, reach_of
from ..errors import ArgumentValueError
from ..foundation.integers import ceil_div
from ..foundation.ir.prints import prints_of

if TYPE_CHECKING:
    from ..foundation.ir.program import Program
    from .bind import Options

Shape = tuple[int, ...]


Told: TypeAlias = "str | tuple[Shape, str]"
"""Why a grid is as it is: in words, or the domain that it covers and where that comes from."""
DOMAIN_OF_THE_CALL = "domain= of the call"


def choose_grid(
    kernel: str,
    program: Program,
    arrays: Mapping[str, int],
    results: Sequence[str],
    numbers: Mapping[str, int],
    options: Options,
) -> tuple[Dims | None, Told]:
    """The grid that the caller asks for, or the kernel with arrays of these lengths and these numbers, and why.

    None leaves one dimension to the driver.
    """
    workgroup = options.config.workgroup_override or program.workgroup_size
    if options.config.grid_override is not None:
        return options.config.grid_override, "config.grid_override of the call"
    if options.grid is not None:
        x, y, z = (*options.grid, 1, 1)[:3]
        return check_grid((x, y, z), workgroup), "grid= of the call"
    if options.extent is not None:
        return grid_for_domain(options.extent, workgroup), (options.extent, DOMAIN_OF_THE_CALL)
    line = line_of(program)
    found = None if line is None or workgroup[1:] != (1, 1) else line.ids(arrays, numbers)
    if line is not None and found is not None:
        ids, of = found
        return _unless_usual((ids,), f"the invocations that write {of}", workgroup, arrays, results, line.visits_all)
    reach = reach_of(program)
    if not reach.writes and prints_of(program):
        raise ArgumentValueError(
            f"{kernel} only prints, and nothing says how much runs", fix="pass domain=(number of invocations)"
        )
    if not reach.reads_ids and workgroup[1:] == (1, 1):
        return None, ""
    lengths = {b.name: b.count for b in program.buffers} | dict(arrays)
    domain, why = _Call(kernel, Extent(reach, lengths, numbers)).domain()
    everything = visits_everything(program) or any(b.is_workgroup for b in program.buffers)
    return _unless_usual(domain, why, workgroup, arrays, results, everything)


def _unless_usual(
    domain: Shape, why: str, workgroup: Dims, arrays: Mapping[str, int], results: Sequence[str], everything: bool
) -> tuple[Dims | None, Told]:
    """The grid over a domain, unless it is what the driver takes: over the largest result, or the largest array."""
    grid = grid_for_domain(domain, workgroup)
    if len(domain) == 1 and workgroup[1:] == (1, 1) and results:
        longest = max(arrays.values()) if everything else max([arrays[name] for name in results])
        if grid[0] == ceil_div(max(longest, 1), workgroup[0]):
            return None, ""
    return grid, (domain, why)


def why_grid(told: Told, workgroup: Dims) -> str:
    """The reason in words."""
    if isinstance(told, str):
        return told
    domain, source = told
    many, each = ("x".join(map(str, dims)) for dims in (domain, workgroup))
    return f"covers {many}, {source}, in workgroups of {each}"


class _Call:
    """The writes of a call, each with the invocations that get there."""

    def __init__(self, kernel: str, extent: Extent) -> None:
        self.kernel, self.extent, self.reach = kernel, extent, extent.reach
        self.limits: dict[tuple[int, int], list[Limit]] = {}
        """By the number of the write, and the axis."""

    def domain(self) -> tuple[Shape, str]:
        """So many invocations along each axis, and why."""
        domain = [1, 1, 1]
        why: dict[str, None] = {}
        for axis in sorted(self.reach.axes | {0}):
            found = []
            for n, w in enumerate(self.reach.writes):
                self.limits[n, axis] = self.extent.limits(w, axis)
                found.append(self._ids(w, axis, self.limits[n, axis]))
            domain[axis], source = max(found, key=lambda f: f[0], default=(0, "write nothing"))
            why[source] = None
        self._require_room(domain)
        return tuple(domain[: 1 + max(self.reach.axes, default=0)]), f"the invocations that {' and '.join(why)}"

    def _require_room(self, domain: Sequence[int]) -> None:
        """Refuse a domain some of whose invocations would write into the rows of others."""
        for (n, w), axis in itertools.product(enumerate(self.reach.writes), self.reach.axes):
            room, at = self.extent.room(self.limits[n, axis], axis, domain), f"gid.{'xyz'[axis]}"
            if room is not None and domain[axis] > room:
                raise ArgumentValueError(
                    f"{self._name(w)} at an index of several axes, which has room for {room} along {at}, and something "
                    f"else asks for {domain[axis]} invocations there",
                    fix=f"pass {self._example(axis, None)}, or write inside `if {at} < n` of a length or number",
                )

    def _ids(self, w: Write, axis: int, limits: list[Limit]) -> tuple[int, str]:
        """So many ids along an axis get to a write, or matter to it, and what they do."""
        extent = self.extent
        found, why = confined(limits), f"write {w.buffer}" if w.buffer else "trap"
        own = confined([limit for limit in limits if limit.is_index])
        if found is not None and own is not None and extent.step(w.at or {}, axis) is None:
            return found, why  # the id itself is where it writes, whatever loops it goes through
        reads, axes, is_settled = self.reach.sources(w)
        if found is None and axis not in axes and is_settled and not w.is_atomic:
            return 1, why  # each of them writes the same
        if found is None:
            found, source = self._read_ids(w, axis, reads)
            why = f"read {source} by id"
        steps = [extent.step(p, axis) for p in (w.at or {}, *(f.small for f in w.facts))]
        steps += [extent.read_step(r, axis) for r in reads or ()]
        step = min((s for s in steps if s is not None), default=found)
        if found > step:
            raise ArgumentValueError(
                f"{self._name(w)} from a loop over an array that begins at gid.{'xyz'[axis]} and goes in steps of "
                f"{step}, and {found} invocations would go over it more than once",
                fix=f"pass {self._example(axis, step)}, so that they meet every element once",
            )
        return found, why

    def _read_ids(self, w: Write, axis: int, reads: tuple[int, ...] | None) -> tuple[int, str]:
        """So many ids along an axis read something for a write, and of which array."""
        extent, of = self.extent, self.reach.reads
        counts: dict[str, int] = {}
        left: dict[str, int] = {}
        for r in reads or ():
            if (n := extent.asked(r, axis)) is not None:
                among = left if extent.is_left(r, axis) else counts
                among[of[r].buffer] = max(n, among.get(of[r].buffer, 0))
        counts = left | counts
        source = max(counts, key=lambda name: counts[name], default="")
        unknown = [r for r in reads or () if extent.asked(r, axis) is None and axis in self.reach.axes_of(of[r].at)]
        if source:
            unknown = [r for r in unknown if not extent.is_explained(of[r].buffer, of[r].at, axis, counts[source])]
        if unknown or not source or not extent.is_explained(w.buffer, w.at or {}, axis, FAR):
            self._refuse(w, axis, of[unknown[0]].buffer if unknown else "")
        return counts[source], source

    def _refuse(self, w: Write, axis: int, unknown: str) -> NoReturn:
        at = f"gid.{'xyz'[axis]}"
        said = f", nor does the index of {unknown}, which it reads" if unknown else ""
        some = f", such as {self._example(axis, self.extent.lengths[unknown])}" if unknown else ""
        raise ArgumentValueError(
            f"{self._name(w)}, and no index and no if around it says how far {at} goes{said}",
            fix=f"pass {self._example(axis, None)}{some}, or write inside `if {at} < n` of a length or number",
        )

    def _name(self, w: Write) -> str:
        return f"{self.kernel} writes {w.buffer}" if w.buffer else f"{self.kernel} traps"

    def _example(self, axis: int, ids: int | None) -> str:
        rank = 1 + max(self.reach.axes, default=0)
        if rank == 1:
            return f"domain={ids or '(number of invocations)'}"
        names: list[str] = ["width", "height", "depth"][:rank]
        if ids is not None:
            names[axis] = str(ids)
        return f"domain=({', '.join(names)})"
