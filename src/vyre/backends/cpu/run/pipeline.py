"""A compiled program and its dispatches. A warm one is left to `warm`; here is what any dispatch may need."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from ....driver.contract.pending import PendingDispatch
from ....driver.contract.pipeline import Bound, DispatchPlan
from ....driver.contract.values import Dims, DispatchConfig, OutputBuffers, ResidentHandle, Resource, named
from ....driver.counters import count_decision, count_settled
from ....driver.plan.binding import Binding, BindingRole
from ....driver.plan.grid import INDIRECT_BYTES, check_grid, grid_words, require_grid_within
from ....driver.plan.outputs import replace_output_buffers_preserving_slots
from ....driver.policy.convergence import looks
from ....errors import ArgumentValueError, DeviceOutOfMemory
from ....foundation.ir.program import Program
from ....runtime.native import NativePipeline
from ..build import ObjectCode, kernel_text
from ..device import LoadedCode, ffi, load
from .filled import clearing
from .host_pool import HostPool, copy, fill_zero, is_same
from .launch import decide_threads, privatize
from .warm import PreparedDispatch, converges, proved

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import Buffer

    from ....driver.policy.decision import Decision
    from ..backend import CpuBackend

_from_buffer = ffi.from_buffer
_BYTES = ffi.typeof("char[]")


class CpuPipeline(NativePipeline[PreparedDispatch]):
    """Machine code with its backend's threads and memory."""

    in_place = True

    def __init__(self, backend: CpuBackend, program: Program, config: DispatchConfig, built: ObjectCode) -> None:
        super().__init__(backend, program, config)
        self.backend, self.built = backend, built
        self.nbytes = len(built.image)
        self._code = load(built.image)
        count_decision(built.facts.lanes)
        self._elements = tuple(b.element.name for b in program.bound_buffers)

    @property
    def source(self) -> str:
        """The kernel, as its compiler got it. It is made again: code that was stored comes without it."""
        poll = self.config.timeout is not None
        return kernel_text(self.program, self.backend.host, self.backend.switches, poll=poll)[1].text

    def serialize(self) -> bytes:
        return self.built.to_bytes()

    def prepared(self, plan: DispatchPlan, config: DispatchConfig) -> PreparedDispatch:
        prepared = PreparedDispatch(self, plan, config)
        if plan.iterations > 1:
            count_decision(prepared.convergence)
        return prepared

    def decisions(self, plan: DispatchPlan, config: DispatchConfig, memory: str) -> Sequence[Decision]:
        facts, bound = self.built.facts, [b for b in plan.bindings.bindings if b.role is not BindingRole.SHARED]
        counts = [b.element_count for b in bound]
        grid, workgroup = plan.launch.grid, plan.launch.workgroup
        proved_full = proved(facts, counts, grid, workgroup)
        return (
            facts.lanes,
            decide_threads(facts, counts, workgroup, grid, self.backend.threads),
            *(
                clearing(b.name, b.nbytes, slot in proved_full, slot in facts.planes)
                for slot, b in enumerate(bound)
                if b.output_index is not None and b.input_index is None
            ),
            *((converges(plan.iterations),) if plan.iterations > 1 else ()),
        )

    def bind(self, plan: DispatchPlan, config: DispatchConfig) -> Bound:
        prepared = self.prepared(plan, config)
        timed, start = partial(self.run_timed, prepared, config), partial(self.start, prepared, config)
        return Bound(prepared.run, timed, start, prepared.over)

    def run(
        self, prepared: PreparedDispatch, config: DispatchConfig, inputs: Sequence[Buffer], out: Sequence[Buffer] | None
    ) -> OutputBuffers:
        return prepared.run(inputs, out)

    def start(
        self, prepared: PreparedDispatch, config: DispatchConfig, inputs: Sequence[Buffer], out: Sequence[Buffer] | None
    ) -> PendingDispatch:
        begun, code = time.monotonic(), self.require_open()
        targets = None if out is None else list(out)
        given: list[Buffer] = [b if type(b) is bytes else bytes(memoryview(b)) for b in inputs]
        return self.backend.start(lambda: self.finish(code, prepared, given, targets, begun))

    def dispatch_resident(
        self, resources: Sequence[Resource], config: DispatchConfig | None = None
    ) -> list[ResidentHandle]:
        again = self.repeats.find(id(config), resources)
        if again is not None:
            return again()  # type: ignore[return-value]
        residents, settled = self.backend.residents, self.config if config is None else config
        with named(settled.label):
            self.require_open()
            kept, sources, targets = residents.dispatch(
                self.dispatch, self.program, resources, settled, may_allocate=True
            )
        handles = [r for r in resources if isinstance(r, ResidentHandle)]
        if len(handles) == len(resources) and all(any(h is r for r in handles) for h in kept):
            run = self.planned(sources, settled, targets).run

            def once_more() -> list[ResidentHandle]:
                run(sources, targets)
                return kept.copy()

            self.keep_ready(residents, config, handles, once_more)
        return list(kept)

    def require_open(self) -> LoadedCode:
        self.backend.require_open()
        code: LoadedCode = super().require_open()
        return code

    # -- every path but the warm one

    def finish(
        self,
        code: LoadedCode,
        prepared: PreparedDispatch,
        inputs: Sequence[Buffer],
        out: Sequence[Buffer] | None,
        begun: float,
    ) -> OutputBuffers:
        """The dispatch after everything was checked, from any thread. It ends also after a shutdown."""
        facts, timeout = self.built.facts, prepared.config.timeout
        with named(prepared.config.label):
            memory = _Memory(self, prepared, inputs, out, owned=bool(facts.traps) or timeout is not None)
            self._launches(code, prepared, memory, None if timeout is None else begun + timeout)
            return memory.results()

    def _launches(self, code: LoadedCode, prepared: PreparedDispatch, memory: _Memory, until: float | None) -> None:
        facts, workgroup = self.built.facts, prepared.plan.launch.workgroup
        launch = prepared.ready()
        launch.hold = memory
        for slot, pointer in enumerate(memory.pointers):
            launch.buffers[slot] = pointer
        turns = looks(prepared.convergence)
        look, before = next(turns), None
        for turn in range(1, prepared.plan.iterations + 1):
            grid = memory.grid() if prepared.plan.indirect else prepared.plan.launch.grid
            if not all(grid):
                break  # and no iteration changes that
            if turn == look:
                before = memory.image(before)
            plan = prepared.spread(grid) if prepared.plan.indirect else prepared.schedule
            launch.aim(prepared.lengths, grid, plan.chunk, prepared.streams)
            merge = None
            if facts.private:
                invocations = prod(grid) * prod(workgroup)
                merge = privatize(launch, facts, self._elements, prepared.counts, invocations, plan.workers)
                launch.hold = memory, merge  # the copies too, for workers that outlive this call
            if facts.traps:
                launch.arm(grid, workgroup)
            launch.run(code, self.backend.pool, plan, until)
            launch.require_no_trap(facts)
            if merge is not None:
                merge()
            if turn == look and before is not None:
                if before.is_equal():
                    count_settled(prepared.plan.iterations - turn)
                    break
                look = next(turns)


class _Memory:
    """The memory of one dispatch: the caller's where that is safe, and else our own, copied out at the end."""

    def __init__(
        self,
        pipeline: CpuPipeline,
        prepared: PreparedDispatch,
        inputs: Sequence[Buffer],
        out: Sequence[Buffer] | None,
        *,
        owned: bool,
    ) -> None:
        """`owned`: nothing of the caller's is written before the dispatch has succeeded."""
        self._out, self._prepared, self._program = out, prepared, pipeline.program
        bindings = prepared.bound
        given = {b.name: _readable(inputs[b.input_index], b) for b in bindings if b.input_index is not None}
        targets = None if out is None or owned else _targets(out, bindings, given)
        self._direct = targets is not None
        self._made: dict[str, Any] = {}
        self._given = given
        self.pointers: list[Any] = []
        self._pages = pages = pipeline.backend.pages
        for slot, b in enumerate(bindings):
            source = given.get(b.name)
            if b.output_index is None and source is not None:
                self.pointers.append(source)
                continue
            zero = source is None and slot not in prepared.proved
            if targets is not None and b.output_index is not None:
                pointer = targets[b.output_index]
                if zero:
                    fill_zero(pointer, b.nbytes)
            else:
                self._made[b.name], pointer = pages.take(b.nbytes, f"buffer {b.name!r}", zeroed=zero)
            if source is not None and source != pointer:
                copy(pointer, source, b.nbytes)
            self.pointers.append(pointer)
        self.pointers = [p if n else _NOTHING for p, n in zip(self.pointers, prepared.counts, strict=True)]

    def grid(self) -> Dims:
        """The grid that lies in memory now: an iteration may change it for the next one."""
        found = self._program.indirect
        assert found is not None
        name, offset = found
        names = [b.name for b in self._program.bound_buffers]
        slot = names.index(name)
        nbytes = self._prepared.counts[slot] * (self._program.bound_buffers[slot].element.size or 0)
        require_grid_within(name, offset, nbytes)
        words = ffi.buffer(ffi.cast("char *", self.pointers[slot]) + offset, INDIRECT_BYTES)
        return check_grid(grid_words(words), self._prepared.plan.launch.workgroup)

    def image(self, last: _Image | None) -> _Image | None:
        """What the program may change, as it is now; over the memory of an older one. None: there is no room for it."""
        try:
            return (last or _Image(self._prepared, self.pointers, self._pages)).taken()
        except DeviceOutOfMemory:
            return None

    def results(self) -> OutputBuffers:
        if self._direct:
            assert self._out is not None
            return list(self._out)
        found = OutputBuffers()
        for _, b in self._prepared.outputs:
            made = self._made[b.name]
            if b.output_byte_range is not None:
                start, end = b.output_byte_range
                made = made[start:end]
            found.append(made)
        if self._out is None:
            return found
        targets = list(self._out)
        replace_output_buffers_preserving_slots(found, targets)
        return targets


class _Image:
    """A copy of what a program may change."""

    def __init__(self, prepared: PreparedDispatch, pointers: Sequence[Any], pages: HostPool) -> None:
        self._pairs = []
        for b, pointer in zip(prepared.bound, pointers, strict=True):
            if b.is_written and b.nbytes:
                kept, start = pages.take(b.nbytes, f"a copy of buffer {b.name!r}", zeroed=False)
                self._pairs.append((pointer, start, b.nbytes, kept))

    def taken(self) -> Self:
        for pointer, start, nbytes, _ in self._pairs:
            copy(start, pointer, nbytes)
        return self

    def is_equal(self) -> bool:
        """Whether the memory holds the same bytes still."""
        return all(is_same(pointer, start, nbytes) for pointer, start, nbytes, _ in self._pairs)


_NOTHING = ffi.new("char[64]")
"""What a buffer without elements is bound to."""


def _readable(data: Buffer, b: Binding) -> Any:
    """A pointer to the caller's bytes, or to a copy where they are scattered or not aligned."""
    try:
        pointer = _from_buffer(data)
        if _span(pointer)[0] % b.element_size:
            raise ValueError
    except (TypeError, ValueError, BufferError):
        pointer = _from_buffer(bytearray(memoryview(data).tobytes()))
    if len(pointer) < b.nbytes:
        raise _shortened(b, len(pointer))
    return pointer


def _targets(out: Sequence[Buffer], bindings: Sequence[Binding], given: dict[str, Any]) -> list[Any] | None:
    """Pointers to the caller's buffers for the results, if the program may work there. None: it may not.

    A buffer must lie apart from every other one, except from its own input when that is exactly the same memory.
    """
    try:
        pointers = [_from_buffer(_BYTES, o, True) for o in out]
    except (TypeError, ValueError, BufferError):
        return None
    outputs = [b for b in bindings if b.output_index is not None]
    if any(b.output_byte_range is not None for b in outputs):
        return None
    for b, p in zip(outputs, pointers, strict=True):
        if len(p) < b.nbytes:
            raise _shortened(b, len(p))
        if _span(p)[0] % b.element_size:
            return None
    spans = [(b.name, *_span(pointer)) for b, pointer in zip(outputs, pointers, strict=True)]
    taken = [(name, *_span(pointer)) for name, pointer in given.items()]
    for k, (name, start, end) in enumerate(spans):
        for other, begin, stop in (*spans[k + 1 :], *taken):
            if start < stop and begin < end and not (other == name and begin == start):
                return None
    return pointers


def _shortened(b: Binding, nbytes: int) -> ArgumentValueError:
    return ArgumentValueError(
        f"buffer {b.name!r} has {nbytes} bytes by now, and had {b.nbytes} when the dispatch began",
        fix="leave buffers as long as they are until the dispatch has ended",
    )


def _span(pointer: Any) -> tuple[int, int]:
    start = int(ffi.cast("uintptr_t", pointer))
    return start, start + len(pointer)
