"""How much runs: the grid of a kernel call, from its options, or from what its invocations write.

A call runs every invocation that can write something. Where neither the index of a write nor an `if` around it says
which these are, the arrays that it reads by id do; a call of which nothing is known is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NoReturn

from ..driver.contract.values import Dims
from ..driver.plan.extent import FAR, Extent
from ..driver.plan.grid import check_grid, grid_for_domain, visits_everything
from ..driver.plan.reach import Read, Write, reach_of
from ..errors import ArgumentValueError

if TYPE_CHECKING:
    from ..foundation.ir.program import Program
    from .bind import Options

Shape = tuple[int, ...]


def choose_grid(
    kernel: str,
    program: Program,
    arrays: Mapping[str, int],
    results: frozenset[str],
    numbers: Mapping[str, int],
    options: Options,
) -> tuple[Dims | None, str]:
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
        return _covering(options.extent, workgroup, "domain= of the call")
    reach = reach_of(program)
    lengths = {b.name: b.count for b in program.buffers} | dict(arrays)
    if not reach.reads_ids and workgroup[1:] == (1, 1):
        return None, ""
    domain, why = _Call(kernel, Extent(reach, lengths, numbers)).domain()
    grid, why = _covering(domain, workgroup, why)
    if len(domain) == 1 and workgroup[1:] == (1, 1) and results:
        everything = visits_everything(program) or any(b.is_workgroup for b in program.buffers)
        longest = max(lengths[name] for name in (arrays if everything else results))
        if grid == grid_for_domain((max(longest, 1),), workgroup):
            return None, ""  # the driver takes the largest result, or the largest array
    return grid, why


def _covering(domain: Shape, workgroup: Dims, source: str) -> tuple[Dims, str]:
    grid = grid_for_domain(domain, workgroup)
    many, each = ("x".join(map(str, dims)) for dims in (domain, workgroup))
    return grid, f"covers {many}, {source}, in workgroups of {each}"


class _Call:
    """The writes of a call, each with the invocations that get there."""

    def __init__(self, kernel: str, extent: Extent) -> None:
        self.kernel, self.extent, self.reach = kernel, extent, extent.reach

    def domain(self) -> tuple[Shape, str]:
        """So many invocations along each axis, and why."""
        reads: dict[str, None] = {}
        domain = [1, 1, 1]
        for axis in sorted(self.reach.axes | {0}):
            found = [self._ids(w, axis, reads) for w in self.reach.writes]
            domain[axis] = max(found, default=0)
        del domain[1 + max(self.reach.axes, default=0) :]
        if reads:
            return tuple(domain), f"the invocations that read {_listed(reads)} by id"
        return tuple(domain), f"the invocations that write {_listed(w.buffer or 'a trap' for w in self.reach.writes)}"

    def _ids(self, w: Write, axis: int, reads: dict[str, None]) -> int:
        """So many ids along an axis get to a write, or matter to it."""
        found = self.extent.confined(w, axis)
        if found is None and axis not in w.axes and w.is_settled and not w.is_atomic:
            return 1  # each of them writes the same
        if found is None:
            found, source = self._read_ids(w, axis)
            reads[source] = None
        steps = [self.extent.step(p, axis) for p in (w.at, *(f.small for f in w.facts), *(r.at for r in w.reads))]
        step = min((s for s in steps if s is not None), default=found)
        if found > step and not self._is_its_own(w, axis):
            raise ArgumentValueError(
                f"{self._name(w)} from a loop over an array that begins at gid.{'xyz'[axis]} and goes in steps of "
                f"{step}, and {found} invocations would go over it more than once",
                fix=f"pass {self._example(axis, step)}, so that they meet every element once",
            )
        return found

    def _is_its_own(self, w: Write, axis: int) -> bool:
        """Whether the id itself is where it writes, whatever loops it goes through."""
        return self.extent.step(w.at, axis) is None and self.extent.confined(w._replace(facts=()), axis) is not None

    def _read_ids(self, w: Write, axis: int) -> tuple[int, str]:
        """So many ids along an axis read something for a write, and of which array."""
        counts: dict[str, int] = {}
        left: dict[str, int] = {}
        for r in w.reads:
            if (n := self.extent.asked(r, axis)) is not None:
                among = left if n > self.extent.lengths[r.buffer] and self.extent.is_left(r) else counts
                among[r.buffer] = max(n, among.get(r.buffer, 0))
        counts = left | counts
        source = max(counts, key=lambda name: counts[name], default="")
        ids = counts.get(source, 0)
        unknown = [r for r in w.reads if not self.extent.is_explained(r, axis, ids)]
        if not source:
            unknown += [r for r in w.reads if r.at is not None and axis in self.reach.axes_of(r.at)]
        if not source or unknown or not self.extent.is_explained(Read(w.buffer, w.at), axis, FAR):
            self._refuse(w, axis, unknown[0] if unknown else None)
        return ids, source

    def _refuse(self, w: Write, axis: int, r: Read | None) -> NoReturn:
        at = f"gid.{'xyz'[axis]}"
        said = "" if r is None else f", nor does the index of {r.buffer}, which it reads"
        some = "" if r is None else f", such as {self._example(axis, self.extent.lengths[r.buffer])}"
        raise ArgumentValueError(
            f"{self._name(w)}, and no index and no if around it says how far {at} goes{said}",
            fix=f"pass {self._example(axis, None)}{some}, or write inside `if {at} < ...`",
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


def _listed(names: Iterable[str]) -> str:
    found = list(dict.fromkeys(names))
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}" if found else "nothing"
