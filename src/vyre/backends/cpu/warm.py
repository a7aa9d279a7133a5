"""What does a warm call do? A dispatch whose lengths and config were seen before fills in pointers and launches.

Everything that can be known before the call is in a closure: nothing is planned, formatted, locked or looked up here.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ...driver.contract.values import Dims, OutputBuffers
from ...driver.plan.binding import BindingRole
from ...driver.plan.launch import PlannedDispatch
from .jit import Code, ffi
from .launch import NEXT, STREAM_BYTES, Launch, Schedule, schedule
from .memory import POOLED_BYTES, copy, fill_zero

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .pipeline import CpuPipeline

_from_buffer = ffi.from_buffer
_KEPT_SCRATCH_BYTES = 1 << 16
"""A launch that is kept ready keeps its scratch memory too."""


class Shape:
    """A dispatch for buffers of certain lengths, planned."""

    __slots__ = ("_pipeline", "bound", "counts", "lengths", "outputs", "plan", "proved", "schedule", "streams")

    def __init__(self, pipeline: CpuPipeline, plan: PlannedDispatch) -> None:
        self._pipeline, self.plan = pipeline, plan
        self.bound = [b for b in plan.bindings.bindings if b.role is not BindingRole.SHARED]
        self.counts = tuple(b.element_count for b in self.bound)
        self.lengths: Any = ffi.new("int64_t[]", self.counts or (0,))
        self.outputs = [(slot, b) for slot, b in enumerate(self.bound) if b.output_index is not None]
        grid, workgroup = plan.launch.grid, plan.launch.workgroup
        line = grid[0] * workgroup[0] if prod(workgroup[1:]) * prod(grid[1:]) == 1 else 0
        facts = pipeline.built.facts
        self.proved = frozenset(s for s in facts.stored if self.counts[s] <= line * facts.filled(s, self.counts))
        self.streams = sum(b.nbytes for slot, b in self.outputs if slot in facts.stored) >= STREAM_BYTES
        self.schedule = self.spread(grid)

    def spread(self, grid: Dims) -> Schedule:
        if not all(grid):
            return Schedule(1, 1, True)
        at = self._pipeline
        return schedule(at.built.facts, self.counts, self.plan.launch.workgroup, grid, at.backend.threads)

    @property
    def is_plain(self) -> bool:
        """Whether the dispatch is pointers and one launch."""
        plan, facts = self.plan, self._pipeline.built.facts
        return (
            all(self.counts)
            and all(plan.launch.grid)
            and plan.iterations == 1
            and not (facts.traps or facts.private)
            and facts.scratch_bytes <= _KEPT_SCRATCH_BYTES
            and all(b.input_index is not None or b.output_index is not None for b in self.bound)
            and all(b.output_byte_range is None for _, b in self.outputs)
        )

    def ready(self, seen: int = 0) -> Launch:
        """A launch that only lacks pointers. It has places for all buffers and, behind them, for all inputs.

        `seen` is how many bytes of the pointers tell one call's memory from another's.
        """
        places = len(self.bound) + len(self.plan.bindings.input_indices)
        launch = Launch(places, self._pipeline.built.facts.scratch_bytes)
        launch.seen = ffi.buffer(launch.buffers, seen)
        launch.aim(self.lengths, self.plan.launch.grid, self.schedule.chunk, self.streams)
        return launch


class Slow(LookupError):
    """This call is not one for the warm path."""


class _Places(NamedTuple):
    """Where the pointers of a warm call go: an input that is also an output is bound as the latter."""

    inputs: tuple[int, ...]
    outputs: tuple[tuple[int, int, int | None, bool], ...]
    """Place, bytes, the place of the input that it starts as, and whether every element is stored."""
    aligned: tuple[tuple[int, int], ...]
    """Place, and the size of an element."""
    apart: tuple[tuple[int, int, int, int, bool], ...]
    """Place and bytes of an output and of an input which must not overlap, unless it is the same buffer in place."""

    @classmethod
    def of(cls, shape: Shape) -> _Places:
        size = len(shape.bound)
        given = [(slot, b) for slot, b in enumerate(shape.bound) if b.input_index is not None]
        at = {slot: slot if b.output_index is None else size + k for k, (slot, b) in enumerate(given)}
        outputs = tuple((slot, b.nbytes, at.get(slot), slot in shape.proved) for slot, b in shape.outputs)
        aligned = [(at[slot], b.element_size) for slot, b in given]
        aligned += [(slot, b.element_size) for slot, b in shape.outputs]
        apart = tuple(
            (slot, nbytes, at[other], b.nbytes, other == slot) for slot, nbytes, _, _ in outputs for other, b in given
        )
        return cls(tuple(at.values()), outputs, tuple(aligned), apart)

    def check(self, addresses: Any, *, into: bool) -> None:
        """Raise Slow unless the memory of a call is aligned, and that of results apart from that of inputs."""
        for place, size in self.aligned if into else self.aligned[: len(self.inputs)]:
            if addresses[place] % size:
                raise Slow
        for place, nbytes, other, length, same in self.apart if into else ():
            start, begin = addresses[place], addresses[other]
            if start < begin + length and begin < start + nbytes and not (same and start == begin):
                raise Slow


def warm(pipeline: CpuPipeline, shape: Shape, code: Code) -> Callable[[list[Any]], OutputBuffers]:
    """A dispatch with results of its own."""
    backend, run, places = pipeline.backend, code.run, _Places.of(shape)
    inputs, outputs = places.inputs, places.outputs
    seen = 8 * (max(inputs, default=-1) + 1)
    plan, names, pages, pool = shape.schedule, [b.name for b in shape.bound], backend.pages, backend.pool
    alone = plan.workers == 1 and plan.joins
    idle: list[Launch] = []

    def dispatch(pointers: list[Any]) -> OutputBuffers:
        if not backend.open:
            raise Slow
        try:
            launch = idle.pop()
        except IndexError:  # asked for like this because another thread may take the last one
            launch = shape.ready(seen)
        buffers = launch.buffers
        for place, pointer in zip(inputs, pointers):  # noqa: B905 - the key has their number
            buffers[place] = pointer
        addresses = launch.seen[:]
        if addresses != launch.checked:
            places.check(launch.addresses, into=False)
            launch.checked = addresses
        results: OutputBuffers = []
        for place, nbytes, source, proved in outputs:
            fresh: Buffer
            if nbytes < POOLED_BYTES:
                fresh = bytearray(nbytes)
                pointer = _from_buffer(fresh)
            else:
                zeroed = source is None and not proved
                fresh, pointer = pages.take(nbytes, f"buffer {names[place]!r}", zeroed=zeroed)
            buffers[place] = pointer
            if source is not None:
                copy(pointer, buffers[source], nbytes)
            results.append(fresh)
        if alone:
            words = launch.shared
            words[NEXT] = 0
            run(words, launch.first)
        else:
            launch.hold = pointers, results
            launch.run(code, pool, plan, None)
            launch.hold = None
        idle.append(launch)
        return results

    return dispatch


def warm_into(pipeline: CpuPipeline, shape: Shape, code: Code) -> Callable[[list[Any], int], None]:
    """A dispatch with results where the caller wants them. Pointers to those come after those to the inputs."""
    backend, run, places = pipeline.backend, code.run, _Places.of(shape)
    outputs, targets = places.outputs, len(places.outputs)
    order = (*places.inputs, *(place for place, *_ in outputs))
    straight = slice(0, len(order)) if order == tuple(range(len(order))) else None
    seen = 8 * (max(order, default=-1) + 1)
    plan, pool = shape.schedule, backend.pool
    alone = plan.workers == 1 and plan.joins
    idle: list[Launch] = []

    def dispatch(pointers: list[Any], count: int) -> None:
        if not backend.open or count != targets:
            raise Slow
        try:
            launch = idle.pop()
        except IndexError:  # asked for like this because another thread may take the last one
            launch = shape.ready(seen)
        buffers = launch.buffers
        if straight is not None:
            buffers[straight] = pointers
        else:
            for place, pointer in zip(order, pointers):  # noqa: B905 - the key has their number
                buffers[place] = pointer
        addresses = launch.seen[:]
        if addresses != launch.checked:
            places.check(launch.addresses, into=True)
            launch.checked = addresses
        for place, nbytes, source, proved in outputs:
            if source is not None:
                if buffers[source] != buffers[place]:
                    copy(buffers[place], buffers[source], nbytes)
            elif not proved:
                fill_zero(buffers[place], nbytes)
        if alone:
            words = launch.shared
            words[NEXT] = 0
            run(words, launch.first)
        else:
            launch.hold = pointers
            launch.run(code, pool, plan, None)
            launch.hold = None
        idle.append(launch)

    return dispatch
