"""What does a warm call do? A dispatch whose plan and config are known fills in pointers and launches.

Everything that can be known before the call is in a closure: nothing is planned, formatted, locked or looked up here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ....driver.contract.pipeline import DispatchPlan, Run
from ....driver.contract.values import Dims, DispatchConfig, OutputBuffers, named
from ....driver.plan.binding import BindingRole
from ....driver.policy.convergence import choose_convergence
from ..abi import NEXT
from ..device import ffi
from .host_pool import POOLED_BYTES, copy, fill_zero
from .launch import STREAM_BYTES, LaunchWords, Schedule, schedule

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ....driver.policy.decision import Decision
    from .pipeline import CpuPipeline

_from_buffer = ffi.from_buffer
_BYTES = ffi.typeof("char[]")
_EVERY = 4
"""Iterations between the first looks whether one changes anything. To copy memory and compare it costs about what a
short iteration does."""
_KEPT_SCRATCH_BYTES = 1 << 16
"""A launch that is kept ready keeps its scratch memory too."""


Again: TypeAlias = "Callable[[], object]"
"""What repeats a dispatch over the same memory."""


class PreparedDispatch:
    """A dispatch over buffers of certain lengths, with all that is known before a call."""

    __slots__ = (
        "bound", "config", "convergence", "counts", "lengths", "outputs", "pipeline", "plan", "proved", "run",
        "schedule", "streams",
    )  # fmt: skip

    def __init__(self, pipeline: CpuPipeline, plan: DispatchPlan, config: DispatchConfig) -> None:
        self.pipeline, self.plan, self.config = pipeline, plan, config
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
        self.convergence = converges(plan.iterations)
        self.run: Run = warm(self) if config.timeout is None and self.is_plain else self._any

    def _any(self, inputs: Sequence[Buffer], out: Sequence[Buffer] | None) -> OutputBuffers:
        """A dispatch over any memory, whatever it takes."""
        begun = time.monotonic()
        with named(self.config.label):
            code = self.pipeline.require_open()
            return self.pipeline.finish(code, self, inputs, out, begun)

    def spread(self, grid: Dims) -> Schedule:
        if not all(grid):
            return Schedule(1, 1, True)
        at = self.pipeline
        return schedule(at.built.facts, self.counts, self.plan.launch.workgroup, grid, at.backend.threads)

    @property
    def is_plain(self) -> bool:
        """Whether the dispatch is pointers and one launch."""
        plan, facts = self.plan, self.pipeline.built.facts
        return (
            all(self.counts)
            and all(plan.launch.grid)
            and plan.iterations == 1
            and not (facts.traps or facts.private)
            and facts.scratch_bytes <= _KEPT_SCRATCH_BYTES
            and all(b.input_index is not None or b.output_index is not None for b in self.bound)
            and all(b.output_byte_range is None for _, b in self.outputs)
        )

    def ready(self, seen: int = 0) -> LaunchWords:
        """A launch that only lacks pointers. It has places for all buffers and, behind them, for all inputs.

        `seen` is how many bytes of the pointers tell one call's memory from another's.
        """
        places = len(self.bound) + len(self.plan.bindings.input_indices)
        launch = LaunchWords(places, self.pipeline.built.facts.scratch_bytes)
        launch.seen = ffi.buffer(launch.buffers, seen)
        launch.aim(self.lengths, self.plan.launch.grid, self.schedule.chunk, self.streams)
        return launch


def converges(iterations: int) -> Decision:
    """Whether all of them run where one changes nothing."""
    return choose_convergence(iterations, _EVERY, least=2 * _EVERY)


class _Places(NamedTuple):
    """Where the pointers of a warm call go: an input that is also an output is bound as the latter."""

    slots: tuple[int, ...]
    """Of the inputs."""
    inputs: tuple[int, ...]
    outputs: tuple[tuple[int, int, int | None, bool], ...]
    """Place, bytes, the place of the input that it starts as, and whether every element is stored."""
    aligned: tuple[tuple[int, int], ...]
    """Place, and the size of an element."""
    apart: tuple[tuple[int, int, int, int, bool], ...]
    """Place and bytes of an output and of an input which must not overlap, unless it is the same buffer in place."""

    @classmethod
    def of(cls, prepared: PreparedDispatch) -> _Places:
        size = len(prepared.bound)
        given = [(slot, b) for slot, b in enumerate(prepared.bound) if b.input_index is not None]
        at = {slot: slot if b.output_index is None else size + k for k, (slot, b) in enumerate(given)}
        outputs = tuple((slot, b.nbytes, at.get(slot), slot in prepared.proved) for slot, b in prepared.outputs)
        aligned = [(at[slot], b.element_size) for slot, b in given]
        aligned += [(slot, b.element_size) for slot, b in prepared.outputs]
        apart = tuple(
            (slot, nbytes, at[other], b.nbytes, other == slot) for slot, nbytes, _, _ in outputs for other, b in given
        )
        return cls(tuple(at), tuple(at.values()), outputs, tuple(aligned), apart)

    def fit(self, addresses: Any, *, into: bool) -> bool:
        """Whether the memory of a call is aligned, and that of results apart from that of inputs."""
        for place, size in self.aligned if into else self.aligned[: len(self.inputs)]:
            if addresses[place] % size:
                return False
        for place, nbytes, other, length, same in self.apart if into else ():
            start, begin = addresses[place], addresses[other]
            if start < begin + length and begin < start + nbytes and not (same and start == begin):
                return False
        return True


def warm(prepared: PreparedDispatch) -> Run:
    """A dispatch with results of its own, or where the caller wants them."""
    pipeline, any_memory = prepared.pipeline, prepared._any
    code, backend = pipeline.require_open(), pipeline.backend
    execute, places = code.run, _Places.of(prepared)
    given, outputs = places.inputs, places.outputs
    all_places = (*given, *(place for place, *_ in outputs))
    straight = slice(0, len(all_places)) if all_places == tuple(range(len(all_places))) else None
    sizes = [prepared.bound[slot].nbytes for slot in (*places.slots, *(slot for slot, _ in prepared.outputs))]
    given_sizes, seen = sizes[: len(given)], 8 * (max(given, default=-1) + 1)
    all_seen = 8 * (max(all_places, default=-1) + 1)
    plan, names, pages, pool = prepared.schedule, [b.name for b in prepared.bound], backend.pages, backend.pool
    alone = plan.workers == 1 and plan.joins
    idle: list[LaunchWords] = []
    idle_into: list[LaunchWords] = []

    def run(inputs: Sequence[Buffer], out: Sequence[Buffer] | None) -> OutputBuffers:
        try:
            pointers = list(map(_from_buffer, inputs))
            if out is None:
                wanted, ready = given_sizes, idle
            else:
                for b in out:
                    pointers.append(_from_buffer(_BYTES, b, True))  # which must be writable
                wanted, ready = sizes, idle_into
        except (TypeError, ValueError, BufferError):
            return any_memory(inputs, out)
        # from here on no thread can change their lengths, which may have changed since they were planned with
        if list(map(len, pointers)) != wanted or not backend.open or pipeline._code is not code:
            return any_memory(inputs, out)
        try:
            launch = ready.pop()
        except IndexError:  # not tested before: another thread may take the last one
            launch = prepared.ready(seen if out is None else all_seen)
        buffers = launch.buffers
        if out is not None and straight is not None:
            buffers[straight] = pointers
        else:
            for place, pointer in zip(all_places, pointers):  # noqa: B905 - without results of the caller, inputs only
                buffers[place] = pointer
        addresses = launch.seen[:]
        if addresses != launch.checked:
            if not places.fit(launch.addresses, into=out is not None):
                return any_memory(inputs, out)
            launch.checked = addresses
        results: OutputBuffers = []
        if out is None:
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
        else:
            results += out
            for place, nbytes, source, proved in outputs:
                if source is not None:
                    if buffers[source] != buffers[place]:
                        copy(buffers[place], buffers[source], nbytes)
                elif not proved:
                    fill_zero(buffers[place], nbytes)
        if alone:
            words = launch.shared
            words[NEXT] = 0
            execute(words, launch.first)
        else:
            launch.hold = pointers, results
            launch.run(code, pool, plan, None)
            launch.hold = None
        ready.append(launch)
        return results

    return run


def recorded(prepared: PreparedDispatch, sources: Sequence[Buffer], targets: Sequence[Buffer]) -> Again | None:
    """The dispatch over exactly this memory, by one thread at a time: a call of machine code and what must be zeroed.
    None where that is not all of it."""
    if prepared.config.timeout is not None or not prepared.is_plain:
        return None
    plan, places = prepared.schedule, _Places.of(prepared)
    if plan.workers > 1 or not plan.joins:
        return None
    pointers = [_from_buffer(b) for b in (*sources, *targets)]
    sizes = [prepared.bound[slot].nbytes for slot in (*places.slots, *(slot for slot, _ in prepared.outputs))]
    if list(map(len, pointers)) != sizes:
        return None
    launch = prepared.ready()
    for place, pointer in zip((*places.inputs, *(place for place, *_ in places.outputs)), pointers, strict=True):
        launch.buffers[place] = pointer
    if not places.fit(launch.addresses, into=True):
        return None
    if any(other is not None and launch.addresses[other] != launch.addresses[at] for at, _, other, _ in places.outputs):
        return None
    zeros = [
        (launch.buffers[at], nbytes) for at, nbytes, other, proved in places.outputs if other is None and not proved
    ]
    launch.hold = pointers
    pipeline = prepared.pipeline
    code = pipeline.require_open()
    execute, words = code.run, launch.shared

    def again() -> None:
        if pipeline._code is not code:
            pipeline.require_open()
        for pointer, nbytes in zeros:
            fill_zero(pointer, nbytes)
        words[NEXT] = 0
        execute(words, launch.first)  # the launch holds all that its words point to

    return again
