"""What changes in the plan of a dispatch when only the lengths of its buffers or its grid do?

Little: a route plans its first dispatch in full, and those of other lengths and grids after its pattern.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ...foundation.check.gridsync import contains_grid_sync
from ...foundation.integers import ceil_div
from ...foundation.ir.prints import LOGS
from ..contract.values import U32_MAX, Dims, DispatchConfig
from ..plan.binding import Binding, BindingRole
from ..plan.grid import MOST_IDS, visits_everything
from ..policy.launch import choose_launch

if TYPE_CHECKING:
    from ...foundation.ir.program import Program
    from ..contract.pipeline import Bound, Key, Over, Run
    from ..plan.launch import PlannedDispatch
    from ..policy.decision import Decision


Planned: TypeAlias = "tuple[int, int, list[int], Run, Bound | None]"
"""Bytes taken, bytes made, the length of each output, and the dispatch: as it is run, and in all ways if they are
known."""


class Pattern:
    """The plan of dispatches that bring buffers for their results, whatever lengths those and the inputs have.

    `decisions` are those of each such plan.
    """

    __slots__ = ("_asked", "_key_length", "_last", "_most", "_over", "_rows", "_visited", "_workgroup", "decisions")

    def __init__(
        self, program: Program, asked: Dims | None, plan: PlannedDispatch, over: Over, most_workgroups: int
    ) -> None:
        buffers = [b for b in plan.bindings.bindings if b.role is not BindingRole.SHARED]
        self._asked, self._most, self._over = asked, most_workgroups, over
        self._last: _Sized | None = None
        self._workgroup = plan.launch.workgroup
        first_output = len(plan.bindings.input_indices) + 2  # after the grid, and a None
        self._key_length = first_output + len(plan.outputs)
        self._rows = [
            (
                None if b.input_index is None else 1 + b.input_index,
                None if b.output_index is None else first_output + b.output_index,
                b.element_size,
                b.static_byte_len,
            )
            for b in buffers
        ]
        sizing = [k for k, b in enumerate(buffers) if b.role is not BindingRole.UNIFORM and b.name not in LOGS]
        results = [k for k in sizing if buffers[k].output_index is not None]
        shared = len(buffers) < len(plan.bindings.bindings)  # as `plan.grid.dispatch_element_count` has it
        self._visited = sizing if shared or not results or visits_everything(program) else results
        self.decisions: tuple[Decision, ...] = *plan.launch.decisions, choose_launch(plan.launch.grid, most_workgroups)

    @classmethod
    def of(
        cls,
        program: Program,
        config: DispatchConfig,
        plan: PlannedDispatch,
        bound: Bound,
        most_workgroups: int,
        *,
        given: bool,
    ) -> Pattern | None:
        """None where more is looked at in every plan. `given`: the grid of the config came with the call."""
        looked_at = config.determinism, config.max_output_bytes, config.output_elements
        if bound.over is None or plan.indirect or looked_at != (None, None, None) or contains_grid_sync(program):
            return None
        if not all(_is_plain(b) for b in plan.bindings.bindings) or max(plan.launch.grid) > most_workgroups:
            return None
        return cls(program, None if given else config.grid_override, plan, bound.over, most_workgroups)

    def over(self, key: Key) -> Planned | None:
        """The plan for these lengths and the grid that came with the call, if one did.

        None where only the full plan says whether there is one.
        """
        lengths = key[1:]
        sized = self._last
        if sized is None or sized.lengths != lengths:
            self._last = sized = self._sized(key)
        if sized is None:
            return None
        grid = sized.grid if key[0] is None else key[0]
        if type(grid) is not tuple or len(grid) != 3:
            return None
        (x, y, z), (w, h, d), most = grid, self._workgroup, self._most
        if not (type(x) is type(y) is type(z) is int and 0 < x <= most and 0 < y <= most and 0 < z <= most):
            return None
        if x * w > MOST_IDS or y * h > MOST_IDS or z * d > MOST_IDS:
            return None
        run = self._over(sized.counts, grid)
        return None if run is None else (sized.taken, sized.made, sized.sizes, run, None)

    def _sized(self, key: Key) -> _Sized | None:
        """What follows from the lengths alone; None where only the full plan says what is wrong with them."""
        if len(key) != self._key_length:
            return None
        counts: list[int] = []
        sizes: list[int] = []
        taken = 0
        for input_at, output_at, width, static in self._rows:
            n = key[output_at if input_at is None else input_at]  # type: ignore[index] # it is one of the two
            if type(n) is not int or n <= 0 or n % width or n > U32_MAX * width or (static is not None and n != static):
                return None
            if input_at is not None:
                taken += n
            if output_at is not None:
                if key[output_at] != n:
                    return None
                sizes.append(n)
            counts.append(n // width)
        line = ceil_div(max([counts[k] for k in self._visited], default=1), self._workgroup[0])
        return _Sized(key[1:], tuple(counts), taken, sum(sizes), sizes, self._asked or (line, 1, 1))


class _Sized(NamedTuple):
    """What follows from the lengths of a dispatch's buffers."""

    lengths: tuple[object, ...]
    counts: tuple[int, ...]
    taken: int
    made: int
    sizes: list[int]
    grid: Dims
    """Where none comes with the call."""


def _is_plain(b: Binding) -> bool:
    """Whether the host binds all of it, and its length says how many elements it has."""
    if b.role is BindingRole.SHARED:
        return True
    is_bound = b.input_index is not None or b.output_index is not None
    return is_bound and b.output_byte_range is None and b.element.bits == 8 * b.element_size
