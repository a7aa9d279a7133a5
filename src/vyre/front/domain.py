"""How much runs: the grid of a kernel call, from its options or from its arrays and the way the kernel indexes them.

An invocation that stores nothing inside an array might as well not run. So results decide where the kernel writes them
at its own id, and what it reads decides where it writes elsewhere; a call of which neither is known, and whose arrays
differ, is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..driver.contract.values import Dims
from ..driver.plan.grid import axes_of, check_grid, grid_for_domain, visits_everything
from ..driver.plan.reach import Access, Reach, reach_of
from ..errors import ArgumentValueError

if TYPE_CHECKING:
    from ..foundation.ir.program import Program
    from .bind import Options

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]


def choose_grid(
    kernel: str, program: Program, read: Shapes, results: Shapes, options: Options, workgroup: Dims
) -> tuple[Dims | None, str]:
    """The grid that the caller or the arrays ask for, and which of them; None leaves one dimension to the driver."""
    if options.config.grid_override is not None:
        return options.config.grid_override, "config.grid_override of the call"
    if options.grid is not None:
        x, y, z = (*options.grid, 1, 1)[:3]
        return check_grid((x, y, z), workgroup), "grid= of the call"
    if options.extent is not None:
        return _covering(options.extent, workgroup, "domain= of the call")
    seen, thick = axes_of(program), 3 if workgroup[2] > 1 else 2 if workgroup[1] > 1 else 1
    if seen > 1 or thick > 1:
        rank, why = (
            (thick, f"has a {thick}-D workgroup") if thick >= seen else (seen, f"reads the {'xyz'[seen - 1]} axis")
        )
        everything = {**results, **read} if visits_everything(program) else results
        name, domain = _plane(f"{kernel} {why}", rank, results, everything)
        _check_plane(f"{kernel} {why}", _Use(program, read, results), domain)
        return _covering(domain, workgroup, f"the shape of {name}")
    return _line(kernel, program, _Use(program, read, results), workgroup)


def _covering(domain: Shape, workgroup: Dims, source: str) -> tuple[Dims, str]:
    grid = grid_for_domain(domain, workgroup)
    many, each = ("x".join(map(str, dims)) for dims in (domain, workgroup))
    return grid, f"covers {many}, {source}, in workgroups of {each}"


class _Use:
    """The arrays of a call beside what the program does with them."""

    def __init__(self, program: Program, read: Shapes, results: Shapes) -> None:
        self.reach: Reach = reach_of(program)
        self.read, self.results = read, results
        self.lengths = {b.name: b.count for b in program.buffers}
        self.lengths |= {name: math.prod(shape) for name, shape in {**read, **results}.items()}
        self.reads = [a for a in self.reach.accesses if a.buffer in read]
        self.writes = [a for a in self.reach.accesses if a.buffer in results and a.writes]

    def need(self, access: Access, axis: int = 0, most: bool = True) -> int | None:
        if access.at is None:
            return None
        return self.reach.need(access.at, self.lengths[access.buffer], self.lengths, axis, most)

    def spreads(self, access: Access, *axes: int) -> bool:
        return access.at is not None and self.reach.spreads(access.at, frozenset(axes))

    def goes_along(self, access: Access) -> frozenset[int]:
        """The axes along which it reads other elements; none where memory or a loop says which."""
        if access.at is None or self.reach.repeats(access.at):
            return frozenset()
        return self.reach.axes(access.at)

    def read_counts(self, most: bool) -> dict[str, int]:
        """Invocations that each input asks for. A neighbour on the left counts only if nothing else does."""
        found: dict[str, int] = {}
        left: dict[str, int] = {}
        for a in self.reads:
            if (n := self.need(a, most=most)) is not None and a.at is not None:
                counts = left if n > self.lengths[a.buffer] and a.at.get((), 0) < 0 else found
                counts[a.buffer] = max(n, counts.get(a.buffer, 0))
        return left | found


def _line(kernel: str, program: Program, use: _Use, workgroup: Dims) -> tuple[Dims | None, str]:
    arrays = {**use.read, **use.results}
    if len(arrays) > 1 and len({use.lengths[name] for name in arrays}) == 1:
        return None, ""  # they agree
    everything = visits_everything(program) or any(b.is_workgroup for b in program.buffers)
    covered = max((use.lengths[name] for name in (arrays if everything else use.results)), default=0)
    asked = [(a, use.need(a, most=not everything)) for a in use.writes]
    counts: dict[str, int] = {}
    for a, n in asked:
        counts[a.buffer] = max(n or 0, counts.get(a.buffer, 0))
    if everything:
        counts = use.read_counts(most=False) or counts
    elif use.reach.traps or any(n is None for _, n in asked):
        counts |= use.read_counts(most=True)
    longest = max(counts, key=lambda name: counts[name], default="")
    runs = max(covered, counts.get(longest, 0))
    lost = [a.buffer for a, n in asked if n is None and not use.spreads(a, 0)]
    if lost and not everything:
        for a in use.reads:
            if use.lengths[a.buffer] > runs and use.need(a) is None and use.goes_along(a):
                size = use.lengths[a.buffer]
                raise ArgumentValueError(
                    f"{kernel} reads {a.buffer} of {size} elements at an index that it computes from its id and writes "
                    f"{lost[0]} of {use.lengths[lost[0]]} at another: how many invocations there are is not clear",
                    fix=f"pass domain={size} for one for each element of {a.buffer}, or domain={runs}",
                )
    if runs <= covered or not use.results:
        return None, ""  # the driver takes the largest result, or the largest array
    how = "writes" if longest in use.results else "reads"
    source = f"what {longest} of {use.lengths[longest]} elements asks for where it {how} it"
    return _covering((runs,), workgroup, source)


def _plane(why: str, rank: int, results: Shapes, everything: Shapes) -> tuple[str, Shape]:
    """The domain of a kernel with two or three axes: the shape that its results of so many axes have in common, and the
    first of these. It has an invocation for every element of `everything`.
    """
    fix = f"pass {_example(rank)} or grid=(x, y, z)"
    listed = ", ".join(f"{name} {shape}" for name, shape in results.items()) or "none"
    found = {shape: name for name, shape in reversed(list(results.items())) if len(shape) == rank}
    if not found:
        raise ArgumentValueError(
            f"{why} and no result has {rank} axes: {listed}", fix=f"{fix}, or a result of {rank} axes"
        )
    if len(found) > 1:
        raise ArgumentValueError(f"{why} and its results differ in shape: {listed}", fix=fix)
    ((domain, source),) = found.items()
    for name, shape in everything.items():
        if math.prod(shape) > math.prod(domain):
            raise ArgumentValueError(
                f"{why} and {name} of shape {shape} has more elements than a result of shape {domain} has invocations",
                fix=fix,
            )
    return source, domain[::-1]


def _example(rank: int) -> str:
    return f"domain=({', '.join(('width', 'height', 'depth')[:rank])})"


def _check_plane(why: str, use: _Use, domain: Shape) -> None:
    """Refuse a domain of the results' shape where they are written across it, or anywhere and inputs are larger."""
    lost = ""
    for a in use.writes:
        result, shape = a.buffer, use.results[a.buffer]
        if a.at is not None and shape[::-1] == domain and domain[0] != domain[1] and use.reach.is_across(a.at):
            given, turned = (", ".join(map(str, d)) for d in (domain, (domain[1], domain[0], *domain[2:])))
            raise ArgumentValueError(
                f"{why} and writes {result} of shape {shape} with gid.y along its last axis, where "
                f"gid.x goes without domain=",
                fix=f"pass domain=({turned}), or write [gid.y * width + gid.x]; domain=({given}) runs it as it is",
            )
        if not use.spreads(a, *range(len(domain))):
            lost = lost or result
    if not lost:
        return
    for a in use.reads:
        axes, shape = use.goes_along(a), use.read[a.buffer]
        if len(shape) == len(domain):
            larger = any(shape[::-1][axis] > domain[axis] for axis in axes)
        else:
            need = use.need(a, min(axes)) if len(axes) == 1 else None
            covers = domain[min(axes)] if need is not None else math.prod(domain)
            larger = bool(axes) and (use.lengths[a.buffer] if need is None else need) > covers
        if larger:
            meant = f"domain={shape[::-1]}" if len(shape) == len(domain) else _example(len(domain))
            raise ArgumentValueError(
                f"{why}, writes {lost} of shape {use.results[lost]} at a computed index and reads {a.buffer} of shape "
                f"{shape} by its id: how many invocations there are is not clear",
                fix=f"pass {meant} for one for each element of {a.buffer}, or domain={domain}",
            )
