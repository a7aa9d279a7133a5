"""A compiled program and its dispatches. A warm one is left to `warm`; here is what any dispatch may need."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from ...driver.contract.pending import PendingDispatch
from ...driver.contract.pipeline import CompiledPipeline
from ...driver.contract.values import Dims, DispatchConfig, OutputBuffers, ResidentHandle, Resource, named
from ...driver.plan.binding import Binding
from ...driver.plan.grid import INDIRECT_BYTES, LaunchGeometryLimits, check_grid, grid_words, require_grid_within
from ...driver.plan.launch import plan_dispatch
from ...driver.plan.outputs import OutputSlot, check_outputs, replace_output_buffers_preserving_slots
from ...errors import DispatchFailed
from ...foundation.ir.program import Program
from .build import Built, kernel_text
from .jit import Code, ffi, load
from .launch import privatize
from .memory import copy, fill_zero
from .warm import Shape, Slow, warm, warm_into

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .backend import CpuBackend

_from_buffer = ffi.from_buffer
_BYTES = ffi.typeof("char[]")
_MAX_LANES = 64
"""Configs that a pipeline remembers."""
_MAX_SHAPES = 64
"""Combinations of lengths that it remembers for each of them."""


class CpuPipeline(CompiledPipeline):
    """Machine code with its backend's threads and memory."""

    def __init__(self, backend: CpuBackend, program: Program, config: DispatchConfig, built: Built) -> None:
        self.backend_id = backend.id
        self.id = f"{backend.id}:{program.fingerprint[:16]}"
        self.backend, self.program, self.config, self.built = backend, program, config, built
        self.nbytes = len(built.image)
        self.misaligned = tuple((b.element.size or 1) - 1 for b in program.bound_buffers)
        self._code: Code | None = load(built.image)
        self._limits = LaunchGeometryLimits.of(backend)
        self._elements = tuple(b.element.name for b in program.bound_buffers)
        self._lanes: dict[int, tuple[DispatchConfig | None, dict[Any, Shape]]] = {}
        self._warm: dict[int, dict[Any, Any]] = {}
        self._into: dict[int, dict[Any, Any]] = {}
        self._resident: dict[Any, Any] = {}

    @property
    def source(self) -> str:
        """The kernel, as its compiler got it. It is made again: code that was stored comes without it."""
        poll = self.config.timeout is not None
        return kernel_text(self.program, self.backend.host, self.backend.switches, poll=poll)[1]

    def serialize(self) -> bytes:
        return self.built.to_bytes()

    def dispatch(
        self,
        inputs: Sequence[Buffer],
        config: DispatchConfig | None = None,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> OutputBuffers:
        try:
            pointers = list(map(_from_buffer, inputs))
            if out is None:
                run = self._warm[id(config)][tuple(map(len, pointers))]
            else:
                for b in out:
                    pointers.append(_from_buffer(_BYTES, b, True))  # which must be writable
                run = self._into[id(config)][tuple(map(len, pointers))]
        except (LookupError, TypeError, ValueError, BufferError):
            return self._dispatch(inputs, config, out, time.monotonic())  # new, or not of the plain kind
        try:
            if out is None:
                return run(pointers)  # type: ignore[no-any-return]
            run(pointers, len(out))
            return list(out)
        except Slow:
            return self._dispatch(inputs, config, out, time.monotonic())

    def dispatch_async(
        self,
        inputs: Sequence[Buffer],
        config: DispatchConfig | None = None,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> PendingDispatch:
        begun = time.monotonic()
        targets = None if out is None else list(out)
        with named((config or self.config).label):
            code = self._require_open()
            given: list[Buffer] = [b if type(b) is bytes else bytes(memoryview(b)) for b in inputs]
            shape = self._shape(given, config, targets)  # says now what is wrong
            return self.backend.start(lambda: self._finish(code, shape, given, config, targets, begun))

    def dispatch_resident(
        self, resources: Sequence[Resource], config: DispatchConfig | None = None
    ) -> list[ResidentHandle]:
        residents = self.backend.residents
        key = id(config), *map(id, resources)
        known = self._resident.get(key)
        if known is not None:
            self._require_open()
            kept, sources, targets, _ = known
            self.dispatch(sources, config, out=targets)
            return list(kept)
        settled = self.config if config is None else config
        with named(settled.label):
            self._require_open()
            kept, sources, targets = residents.dispatch(
                self.dispatch, self.program, resources, settled, may_allocate=True
            )
        handles = [r for r in resources if isinstance(r, ResidentHandle)]
        if len(handles) == len(resources) and all(any(h is r for r in handles) for h in kept):
            if len(self._resident) >= _MAX_SHAPES:
                self._resident.clear()
            residents.watch(self)
            self._resident[key] = kept, sources, targets, (config, handles)  # which keep their ids meanwhile
            if not all(map(residents.holds, handles)):
                self._resident.clear()  # another thread freed some of it just now
        return list(kept)

    def forget_resident(self, handle: ResidentHandle) -> None:
        """Memory was freed; what is remembered may hold it."""
        self._resident.clear()

    def close(self) -> None:
        """Calls in flight keep the code until they end."""
        self._code = None
        for table in (self._warm, self._into, self._lanes, self._resident):
            table.clear()

    # -- every other path

    def _dispatch(
        self, inputs: Sequence[Buffer], config: DispatchConfig | None, out: Sequence[Buffer] | None, begun: float
    ) -> OutputBuffers:
        with named((config or self.config).label):
            code = self._require_open()
            shape = self._shape(inputs, config, out)
            return self._finish(code, shape, inputs, config, out, begun)

    def _finish(
        self,
        code: Code,
        shape: Shape,
        inputs: Sequence[Buffer],
        config: DispatchConfig | None,
        out: Sequence[Buffer] | None,
        begun: float,
    ) -> OutputBuffers:
        """The dispatch after everything was checked, from any thread. It ends also after a shutdown."""
        settled = self.config if config is None else config
        facts, timeout = self.built.facts, settled.timeout
        with named(settled.label):
            memory = _Memory(self, shape, inputs, out, owned=bool(facts.traps) or timeout is not None)
            self._launches(code, shape, memory, None if timeout is None else begun + timeout)
            return memory.results()

    def _launches(self, code: Code, shape: Shape, memory: _Memory, until: float | None) -> None:
        facts, workgroup = self.built.facts, shape.plan.launch.workgroup
        launch = shape.ready()
        launch.hold = memory
        for slot, pointer in enumerate(memory.pointers):
            launch.buffers[slot] = pointer
        for _ in range(shape.plan.iterations):
            grid = memory.grid() if shape.plan.indirect else shape.plan.launch.grid
            if not all(grid):
                continue
            plan = shape.spread(grid) if shape.plan.indirect else shape.schedule
            launch.aim(shape.lengths, grid, plan.chunk, shape.streams)
            merge = None
            if facts.private:
                invocations = prod(grid) * prod(workgroup)
                merge = privatize(launch, facts, self._elements, shape.counts, invocations, plan.workers)
                launch.hold = memory, merge  # the copies too, for workers that outlive this call
            launch.run(code, self.backend.pool, plan, until)
            launch.require_no_trap(facts.traps)
            if merge is not None:
                merge()

    def _shape(self, inputs: Sequence[Buffer], config: DispatchConfig | None, out: Sequence[Buffer] | None) -> Shape:
        """The planned dispatch, remembered for equal lengths unless its grid lies in memory."""
        try:
            key: Any = tuple(memoryview(b).nbytes for b in inputs)
            if out is not None:
                key = key, tuple(memoryview(b).nbytes for b in out)
            known = self._lanes[id(config)][1][key]
        except (LookupError, TypeError, ValueError, BufferError):
            pass
        else:
            if out is not None:
                check_outputs(out, known.plan.outputs)
            return known
        settled = self.config if config is None else config
        plan = plan_dispatch(self.program, inputs, settled, self._limits, self.backend_id, out=out)
        shape = Shape(self, plan)
        if not (plan.indirect or any(isinstance(o, OutputSlot) for o in out or ())):
            self._remember(shape, config, key, into=out is not None)
        return shape

    def _remember(self, shape: Shape, config: DispatchConfig | None, key: Any, *, into: bool) -> None:
        if len(self._lanes) >= _MAX_LANES and id(config) not in self._lanes:
            for table in (self._warm, self._into, self._lanes):
                table.clear()
        shapes = self._lanes.setdefault(id(config), (config, {}))[1]
        if len(shapes) >= _MAX_SHAPES:
            shapes.clear()
            for table in (self._warm, self._into):
                table.pop(id(config), None)
        shapes[key] = shape
        code = self._code
        if code is None or (config or self.config).timeout is not None or not shape.is_plain:
            return
        calls = (self._into if into else self._warm).setdefault(id(config), {None: config})  # as long as that exists
        if into:
            calls[key[0] + key[1]] = warm_into(self, shape, code)
        else:
            calls[key] = warm(self, shape, code)

    def _require_open(self) -> Code:
        self.backend.require_open()
        code = self._code
        if code is None:
            raise DispatchFailed("the pipeline is closed", fix="compile the program again", pipeline=self.id)
        return code


class _Memory:
    """The memory of one dispatch: the caller's where that is safe, and else our own, copied out at the end."""

    def __init__(
        self,
        pipeline: CpuPipeline,
        shape: Shape,
        inputs: Sequence[Buffer],
        out: Sequence[Buffer] | None,
        *,
        owned: bool,
    ) -> None:
        """`owned`: nothing of the caller's is written before the dispatch has succeeded."""
        self._out, self._shape, self._program = out, shape, pipeline.program
        bindings = shape.bound
        given = {b.name: _readable(inputs[b.input_index], b) for b in bindings if b.input_index is not None}
        targets = None if out is None or owned else _targets(out, bindings, given)
        self._direct = targets is not None
        self._made: dict[str, Any] = {}
        self._given = given
        self.pointers: list[Any] = []
        pages = pipeline.backend.pages
        for slot, b in enumerate(bindings):
            source = given.get(b.name)
            if b.output_index is None and source is not None:
                self.pointers.append(source)
                continue
            zero = source is None and slot not in shape.proved
            if targets is not None and b.output_index is not None:
                pointer = targets[b.output_index]
                if zero:
                    fill_zero(pointer, b.nbytes)
            else:
                self._made[b.name], pointer = pages.take(b.nbytes, f"buffer {b.name!r}", zeroed=zero)
            if source is not None and source != pointer:
                copy(pointer, source, b.nbytes)
            self.pointers.append(pointer)
        self.pointers = [p if n else _NOTHING for p, n in zip(self.pointers, shape.counts, strict=True)]

    def grid(self) -> Dims:
        """The grid that lies in memory now: an iteration may change it for the next one."""
        found = self._program.indirect
        assert found is not None
        name, offset = found
        names = [b.name for b in self._program.bound_buffers]
        slot = names.index(name)
        nbytes = self._shape.counts[slot] * (self._program.bound_buffers[slot].element.size or 0)
        require_grid_within(name, offset, nbytes)
        words = ffi.buffer(ffi.cast("char *", self.pointers[slot]) + offset, INDIRECT_BYTES)
        return check_grid(grid_words(words), self._shape.plan.launch.workgroup)

    def results(self) -> OutputBuffers:
        if self._direct:
            assert self._out is not None
            return list(self._out)
        found = OutputBuffers()
        for _, b in self._shape.outputs:
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


_NOTHING = ffi.new("char[64]")
"""What a buffer without elements is bound to."""


def _readable(data: Buffer, b: Binding) -> Any:
    """A pointer to the caller's bytes, or to a copy where they are scattered or not aligned."""
    try:
        pointer = _from_buffer(data)
        if not _span(pointer)[0] % b.element_size:
            return pointer
    except (TypeError, ValueError, BufferError):
        pass
    return _from_buffer(bytearray(memoryview(data).tobytes()))


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
    if any(_span(p)[0] % b.element_size for b, p in zip(outputs, pointers, strict=True)):
        return None
    spans = [(b.name, *_span(pointer)) for b, pointer in zip(outputs, pointers, strict=True)]
    taken = [(name, *_span(pointer)) for name, pointer in given.items()]
    for k, (name, start, end) in enumerate(spans):
        for other, begin, stop in (*spans[k + 1 :], *taken):
            if start < stop and begin < end and not (other == name and begin == start):
                return None
    return pointers


def _span(pointer: Any) -> tuple[int, int]:
    start = int(ffi.cast("uintptr_t", pointer))
    return start, start + len(pointer)
