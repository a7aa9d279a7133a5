"""What does a warm call do? A dispatch whose plan and config are known fills in pointers and launches.

Everything that can be known before the call is in a closure: nothing is planned, formatted, locked or looked up here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf, prod
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ....driver.contract.pipeline import DispatchPlan, Run
from ....driver.contract.values import Dims, DispatchConfig, OutputBuffers, named
from ....driver.plan.binding import BindingRole
from ....driver.plan.outputs import check_outputs_apart
from ....driver.policy.convergence import choose_convergence
from ....foundation.integers import ceil_div
from ....foundation.memo import keep
from ..abi import NEXT
from ..device import ffi
from .cost import work
from .filled import FILLED_BYTES, Filled
from .host_pool import POOLED_BYTES, copy, fill_zero
from .launch import STREAM_BYTES, LaunchWords, Schedule, lengths_of, schedule

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ....driver.policy.decision import Decision
    from ..build import ObjectFacts
    from .pipeline import CpuPipeline

_from_buffer = ffi.from_buffer
_BYTES = ffi.typeof("char[]")
_EVERY = 4
"""Iterations between the first looks whether one changes anything. To copy memory and compare it costs about what a
short iteration does."""
_MAX_OTHERS = 64
"""Dispatches over memory that takes more than pointers, of those that `over` gave."""
_MAX_CHECKED = 64
"""Places of a call's memory that a launch remembers as good."""
_KEPT_SCRATCH_BYTES = 1 << 16
"""A launch that is kept ready keeps its scratch memory too."""


Again: TypeAlias = "Callable[[], object]"
"""What repeats a dispatch over the same memory."""


class PreparedDispatch:
    """A dispatch over buffers of certain lengths, with all that is known before a call."""

    __slots__ = (
        "_others", "bound", "config", "convergence", "counts", "lengths", "outputs", "pipeline", "plan", "proved",
        "run", "schedule", "streams", "warm",
    )  # fmt: skip

    def __init__(self, pipeline: CpuPipeline, plan: DispatchPlan, config: DispatchConfig) -> None:
        self.pipeline, self.plan, self.config = pipeline, plan, config
        self.bound = [b for b in plan.bindings.bindings if b.role is not BindingRole.SHARED]
        self.counts = tuple(b.element_count for b in self.bound)
        self.lengths = lengths_of(self.counts)
        self.outputs = [(slot, b) for slot, b in enumerate(self.bound) if b.output_index is not None]
        grid, workgroup = plan.launch.grid, plan.launch.workgroup
        facts = pipeline.built.facts
        self.proved = proved(facts, self.counts, grid, workgroup)
        self.streams = sum(b.nbytes for slot, b in self.outputs if slot in facts.stored) >= STREAM_BYTES
        self.schedule = self.spread(grid)
        self.convergence = converges(plan.iterations)
        self._others: dict[tuple[tuple[int, ...], Dims], PreparedDispatch] = {(self.counts, grid): self}
        self.warm = WarmDispatches(self) if config.timeout is None and self.is_plain else None
        self.run: Run = self._any if self.warm is None else self.warm.over(self.counts, grid)

    def over(self, counts: tuple[int, ...], grid: Dims) -> Run | None:
        """The same dispatch over buffers with these numbers of elements, all of them some, and over this grid.

        None where it takes more than pointers and a launch.
        """
        return None if self.warm is None else self.warm.over(counts, grid)

    def otherwise(
        self, counts: tuple[int, ...], grid: Dims, inputs: Sequence[Buffer], out: Sequence[Buffer] | None
    ) -> OutputBuffers:
        """The dispatch that `over` gives, over memory that a warm one does not take."""
        found = self._others.get((counts, grid))
        if found is None:
            found = self.pipeline.planned(inputs, self.config.with_(grid_override=grid), out)
            if found.counts == counts:  # else a thread has just changed what is dispatched over
                keep(self._others, (counts, grid), found, _MAX_OTHERS)
        return found._any(inputs, out)

    def _any(self, inputs: Sequence[Buffer], out: Sequence[Buffer] | None) -> OutputBuffers:
        """A dispatch over any memory, whatever it takes."""
        begun = time.monotonic()
        check_outputs_apart(out or ())
        with named(self.config.label):
            code = self.pipeline.require_open()
            return self.pipeline.finish(code, self, inputs, out, begun)

    def spread(self, grid: Dims) -> Schedule:
        if not all(grid):
            return Schedule(1, 1, True)
        facts = self.pipeline.built.facts
        each = work(facts.cost, self.counts, prod(self.plan.launch.workgroup))
        return schedule(facts, each, grid, self.pipeline.backend.threads)

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

    def ready(self) -> LaunchWords:
        """A launch that only lacks pointers. It has places for all buffers and, behind them, for all inputs."""
        places = len(self.bound) + len(self.plan.bindings.input_indices)
        launch = LaunchWords(places, self.pipeline.built.facts.scratch_bytes)
        launch.aim(self.lengths, self.plan.launch.grid, self.schedule.chunk, self.streams)
        return launch


def proved(facts: ObjectFacts, counts: Sequence[int], grid: Dims, workgroup: Dims) -> frozenset[int]:
    """The buffers every element of which is stored by a launch."""
    line = line_of(grid, workgroup)
    return frozenset([slot for slot, least in fills(facts, counts).items() if line >= least])


def fills(facts: ObjectFacts, counts: Sequence[int]) -> dict[int, float]:
    """How many invocations in a line store every element of the buffers that the code fills."""
    filled = {slot: facts.filled(slot, counts) for slot in facts.stored}
    return {slot: ceil_div(counts[slot], each) if each else inf for slot, each in filled.items()}


def line_of(grid: Dims, workgroup: Dims) -> int:
    """The invocations of a launch, if they lie in a line."""
    return grid[0] * workgroup[0] if grid[1] * grid[2] * workgroup[1] * workgroup[2] == 1 else 0


def converges(iterations: int) -> Decision:
    """Whether all of them run where one changes nothing."""
    return choose_convergence(iterations, _EVERY, least=2 * _EVERY)


class _Places(NamedTuple):
    """Where the pointers of a warm call go: an input that is also an output is bound as the latter."""

    slots: tuple[int, ...]
    """Of the inputs."""
    inputs: tuple[int, ...]
    outputs: tuple[tuple[int, int | None], ...]
    """Place, and the place of the input that it starts as."""
    aligned: tuple[tuple[int, int], ...]
    """Place, and the size of an element."""
    apart: tuple[tuple[int, int, int], ...]
    """Place of an output, and place and slot of an input or of an output after it, which must not overlap it, unless it
    is its own, in place."""

    @classmethod
    def of(cls, prepared: PreparedDispatch) -> _Places:
        size = len(prepared.bound)
        given = [(slot, b) for slot, b in enumerate(prepared.bound) if b.input_index is not None]
        at = {slot: slot if b.output_index is None else size + k for k, (slot, b) in enumerate(given)}
        outputs = tuple((slot, at.get(slot)) for slot, _ in prepared.outputs)
        aligned = [(at[slot], b.element_size) for slot, b in given]
        aligned += [(slot, b.element_size) for slot, b in prepared.outputs]
        apart = [(slot, at[other], other) for slot, _ in outputs for other, _ in given]
        apart += [(slot, other, other) for slot, _ in outputs for other, _ in outputs if slot < other]
        return cls(tuple(at), tuple(at.values()), outputs, tuple(aligned), tuple(apart))

    def fit(self, addresses: Any, nbytes: Sequence[int], *, into: bool) -> bool:
        """Whether the memory of a call, of so many bytes by slot, is aligned, and that of results apart from that of
        inputs."""
        for place, size in self.aligned if into else self.aligned[: len(self.inputs)]:
            if addresses[place] % size:
                return False
        for place, other, slot in self.apart if into else ():
            start, begin = addresses[place], addresses[other]
            if (
                start < begin + nbytes[slot]
                and begin < start + nbytes[place]
                and not (slot == place and start == begin)
            ):
                return False
        return True


class WarmDispatches:
    """Dispatches with results of their own, or where the caller wants them. What they share whatever the lengths of
    buffers and the grid are is known here, so that another length costs little, and another grid less."""

    def __init__(self, prepared: PreparedDispatch) -> None:
        self._prepared, self.workgroup = prepared, prepared.plan.launch.workgroup
        self.code = prepared.pipeline.require_open()
        self.places = places = _Places.of(prepared)
        self.all_places = *places.inputs, *(place for place, _ in places.outputs)
        self.widths = [b.element_size for b in prepared.bound]
        self.names = [b.name for b in prepared.bound]
        self.stored = [slot for slot, _ in prepared.outputs if slot in prepared.pipeline.built.facts.stored]
        self.idle: list[LaunchWords] = []
        self.idle_into: list[LaunchWords] = []
        self._last = prepared.counts, self._sized(prepared.counts)

    def over(self, counts: tuple[int, ...], grid: Dims) -> Run:
        """The dispatch over buffers with so many elements and this grid."""
        known, at = self._last
        if known != counts:
            at = self._sized(counts)
            self._last = counts, at
        return at(grid)

    def _sized(self, counts: tuple[int, ...]) -> Callable[[Dims], Run]:
        """The same for any grid."""
        prepared, code, places, names = self._prepared, self.code, self.places, self.names
        pipeline, idle, idle_into, all_places = prepared.pipeline, self.idle, self.idle_into, self.all_places
        backend, facts, workgroup = pipeline.backend, pipeline.built.facts, self.workgroup
        execute, pages, pool, fit, otherwise = code.run, backend.pages, backend.pool, places.fit, prepared.otherwise
        in_order = slice(0, len(all_places)) if all_places == tuple(range(len(all_places))) else None
        nbytes = list(map(mul, counts, self.widths))
        given_sizes = [nbytes[slot] for slot in places.slots]
        sizes = given_sizes + [nbytes[place] for place, _ in places.outputs]
        lengths, streams = lengths_of(counts), sum([nbytes[slot] for slot in self.stored]) >= STREAM_BYTES
        each, least = work(facts.cost, counts, prod(workgroup)), fills(facts, counts)
        needs = [(place, nbytes[place], source, least.get(place, inf)) for place, source in places.outputs]

        def at(grid: Dims) -> Run:
            plan, line = schedule(facts, each, grid, backend.threads), line_of(grid, workgroup)
            outputs = [(place, size, source, line >= needed) for place, size, source, needed in needs]
            planes = {
                place: Filled(facts.planes[place], place, counts, grid, workgroup)
                for place, size, source, _ in outputs
                if place in facts.planes and source is None and size >= FILLED_BYTES
            }
            begun = [(place, size, source) for place, size, source, full in outputs if source is not None or not full]
            alone = plan.workers == 1 and plan.joins
            aim = lengths, grid, plan.chunk, streams

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
                    return otherwise(counts, grid, inputs, out)
                # from here on no thread can change their lengths, which may have changed since they were planned with
                if list(map(len, pointers)) != wanted or not backend.open or pipeline._code is not code:
                    return otherwise(counts, grid, inputs, out)
                try:
                    launch = ready.pop()
                except IndexError:  # not tested before: another thread may take the last one
                    launch = self._launch(places.inputs if out is None else all_places)
                if launch.aimed is not aim:
                    launch.aim(*aim)
                    launch.aimed = aim
                buffers = launch.buffers
                if out is not None and in_order is not None:
                    buffers[in_order] = pointers
                else:
                    for place, pointer in zip(all_places, pointers):  # noqa: B905 - without results of the caller, inputs only
                        buffers[place] = pointer
                addresses = launch.seen[:]
                if addresses not in launch.checked or launch.checked_for is not nbytes:
                    if not fit(launch.addresses, nbytes, into=out is not None):
                        return otherwise(counts, grid, inputs, out)
                    if launch.checked_for is not nbytes or len(launch.checked) >= _MAX_CHECKED:
                        launch.checked.clear()
                    launch.checked.add(addresses)
                    launch.checked_for = nbytes
                results: OutputBuffers
                if out is None:
                    results = []
                    for place, size, source, is_full in outputs:
                        fresh: Buffer
                        if size < POOLED_BYTES:
                            fresh = bytearray(size)
                            pointer = _from_buffer(fresh)
                        else:
                            zeroed = source is None and not (is_full or (place in planes and planes[place].by(buffers)))
                            fresh, pointer = pages.take(size, f"buffer {names[place]!r}", zeroed=zeroed)
                        buffers[place] = pointer
                        if source is not None:
                            copy(pointer, buffers[source], size)
                        results.append(fresh)
                else:
                    results = out if type(out) is list else list(out)
                    for place, size, source in begun:
                        if source is None:
                            if place not in planes or not planes[place].by(buffers):
                                fill_zero(buffers[place], size)
                        elif buffers[source] != buffers[place]:
                            copy(buffers[place], buffers[source], size)
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

        return at

    def _launch(self, places: Sequence[int]) -> LaunchWords:
        """Words for one launch at a time, whose `seen` are the pointers in these places."""
        every = len(self.names) + len(self.places.inputs)
        launch = LaunchWords(every, self._prepared.pipeline.built.facts.scratch_bytes)
        launch.seen = ffi.buffer(launch.buffers, 8 * (max(places, default=-1) + 1))
        return launch


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
    for place, pointer in zip((*places.inputs, *(place for place, _ in places.outputs)), pointers, strict=True):
        launch.buffers[place] = pointer
    nbytes = [b.nbytes for b in prepared.bound]
    if not places.fit(launch.addresses, nbytes, into=True):
        return None
    if any(other is not None and launch.addresses[other] != launch.addresses[at] for at, other in places.outputs):
        return None
    zeros = [
        (launch.buffers[at], nbytes[at]) for at, other in places.outputs if other is None and at not in prepared.proved
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
