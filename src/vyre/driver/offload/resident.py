"""What stays on the device: memory that is allocated, filled, computed on and read back by handles.

Buffers of a resident dispatch go by slot order: either one resource for each bound buffer, or one for each input, and
then the outputs are allocated and belong to the caller. Bytes of the host are copied to the device at each dispatch.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import ArgumentTypeError, ArgumentValueError, DeviceOutOfMemory, InvalidProgram
from ..plan.binding import Binding, BindingPlan, BindingRole, byte_lengths
from ..plan.launch import LaunchPlan, resolve_fixpoint_iterations
from ..values import (
    DispatchConfig,
    HostResource,
    ResidentDispatchStep,
    ResidentHandle,
    ResidentOwner,
    ResidentReadRange,
    ResidentSequenceTiming,
    Resource,
    whole,
)
from .device import Batch, Device, Memory
from .launch import Shape, Work, plain
from .memory import Piece, Pool

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..contract import OutputBuffers
    from .backend import OffloadBackend, Session
    from .pipeline import OffloadPipeline

_SHARE = 9, 10
"""How much of a device's memory may be resident; the rest is for what is not."""
_MOST_BYTES = (1 << 63) - 1


class Residents:
    """The resident memory of one device. Ids are never used again."""

    def __init__(self, device: Device, pool: Pool, backend: str) -> None:
        self._device, self._pool, self._owner = device, pool, ResidentOwner(backend)
        self._lock = threading.Lock()
        self._pieces: dict[int, Piece] = {}
        self._last = 0
        self._watching: weakref.WeakSet[OffloadPipeline] = weakref.WeakSet()
        self.nbytes = 0

    def allocate(self, nbytes: int) -> ResidentHandle:
        """Memory of zeros."""
        asked = whole("nbytes", nbytes, _MOST_BYTES)
        if not asked:
            raise ArgumentValueError(f"{nbytes!r} bytes cannot be resident", fix="allocate at least one byte")
        parts, of = _SHARE
        with self._lock:
            most = self._device.memory_bytes * parts // of
            if most and self.nbytes + asked > most:
                raise DeviceOutOfMemory(
                    "no room for more resident memory",
                    fix="free some of it, or allocate less",
                    requested=asked,
                    resident=self.nbytes,
                    limit=most,
                )
            self.nbytes += asked
        try:
            piece = self._pool.take(asked)
            batch = self._device.batch()
            batch.zero(piece.memory, 0, -(-asked // 4) * 4)
            batch.submit()
        except BaseException:
            with self._lock:
                self.nbytes -= asked
            raise
        with self._lock:
            self._last += 1
            self._pieces[self._last] = piece
            return self._owner.handle(self._last, asked)

    def free(self, handle: ResidentHandle) -> None:
        piece = self.find(handle, "free_resident")
        with self._lock:
            if self._pieces.pop(handle.id, None) is None:
                raise _unknown(handle)
            self.nbytes -= handle.nbytes
            watching = list(self._watching)
        for pipeline in watching:
            pipeline.forget_ready()
        self._pool.give_after(self._device.batch().submit(), [piece])  # nobody may have waited for its last use

    def close(self) -> None:
        """Release everything."""
        with self._lock:
            pieces, self._pieces, self.nbytes = self._pieces, {}, 0
        for piece in pieces.values():
            self._device.release(piece.memory)

    def watch(self, pipeline: OffloadPipeline) -> None:
        """Tell it when memory is freed."""
        with self._lock:
            self._watching.add(pipeline)

    def holds(self, handle: ResidentHandle) -> bool:
        return handle.id in self._pieces

    def find(self, handle: ResidentHandle, context: str) -> Piece:
        """The memory behind a handle, if it is one of ours and was not freed."""
        if not isinstance(handle, ResidentHandle):
            raise ArgumentTypeError(
                f"{context} got {type(handle).__name__}, not resident memory",
                fix="pass a handle that allocate_resident() gave",
            )
        piece = self._pieces.get(self._owner.resolve(handle, context))
        if piece is None:
            raise _unknown(handle)
        return piece

    def upload(self, ranges: Sequence[tuple[ResidentHandle, int, Buffer]]) -> None:
        given = []
        for handle, offset, data in ranges:
            piece = self.find(handle, "upload_resident")
            (nbytes,) = byte_lengths([data])
            given.append((piece, self._checked(handle, offset, nbytes, "upload"), plain(data), handle.nbytes))
        batch = self._device.batch()
        for piece, offset, view, end in given:
            if view.nbytes:
                batch = self.write(batch, piece.memory, offset, view, end)
        batch.submit().wait(None)

    def download(self, ranges: Sequence[ResidentReadRange], out: Sequence[Buffer] | None) -> OutputBuffers:
        reads = self.readings(ranges)
        if out is not None:
            self._check_targets(reads, out)
        batch = self._device.batch()
        for memory, offset, nbytes in reads:
            if nbytes:
                batch.read(memory, offset, nbytes)
        into = [None if out is None else plain(out[k]) for k, (_, _, nbytes) in enumerate(reads) if nbytes]
        found = iter(batch.submit().take(into))
        results: OutputBuffers = [next(found) if nbytes else bytearray() for _, _, nbytes in reads]
        return results if out is None else list(out)

    def readings(self, ranges: Sequence[ResidentReadRange]) -> list[tuple[Memory, int, int]]:
        """What to read, as (memory, offset, bytes)."""
        found = []
        for r in ranges:
            piece = self.find(r.resource, "download_resident")
            nbytes = whole("byte_len", r.byte_len, _MOST_BYTES) or 0
            found.append((piece.memory, self._checked(r.resource, r.byte_offset, nbytes, "download"), nbytes))
        return found

    def write(self, batch: Batch, memory: Memory, offset: int, data: memoryview, end: int) -> Batch:
        """Write bytes whose neighbours, up to `end`, stay as they are. The batch to go on with."""
        stop = offset + data.nbytes
        if not self._device.writes_words or (offset % 4 == 0 and (stop % 4 == 0 or stop == end)):
            batch.lend(memory, offset, data)
            return batch
        first, last = offset - offset % 4, -(-stop // 4) * 4
        batch.read(memory, first, 4)
        batch.read(memory, last - 4, 4)
        head, tail = batch.submit().take([None, None])  # after whatever was written to these words before
        words = bytearray(last - first)
        words[:4], words[-4:] = head, tail  # in this order: they may be the same word
        words[offset - first : stop - first] = data
        following = self._device.batch()
        following.write(memory, first, memoryview(words))
        return following

    def _checked(self, handle: ResidentHandle, offset: int, nbytes: int, what: str) -> int:
        start = whole("byte_offset", offset, _MOST_BYTES)
        if start is None or start + nbytes > handle.nbytes:
            raise ArgumentValueError(
                f"the {what} of {nbytes} bytes at {offset} is outside resident memory of {handle.nbytes} bytes",
                fix=f"stay within {handle.nbytes} bytes",
                handle=handle.id,
            )
        return start

    def _check_targets(self, reads: Sequence[tuple[Memory, int, int]], out: Sequence[Buffer]) -> None:
        if not isinstance(out, Sequence):
            raise ArgumentTypeError(f"out is {type(out).__name__}, not a list", fix="pass out as a list of buffers")
        if len(out) != len(reads):
            raise ArgumentValueError(
                f"{len(reads)} range(s) are read into {len(out)} buffer(s)", fix="pass one buffer for each range"
            )
        byte_lengths(out)  # says which of them holds no bytes
        for k, ((_, _, nbytes), target) in enumerate(zip(reads, out, strict=True)):
            view = memoryview(target)
            if view.nbytes != nbytes or view.readonly or not view.c_contiguous:
                raise ArgumentValueError(
                    f"buffer {k} cannot take a range of {nbytes} bytes",
                    fix=f"pass a writable, contiguous buffer of {nbytes} bytes",
                    given=view.nbytes,
                )


def _unknown(handle: ResidentHandle) -> InvalidProgram:
    return InvalidProgram(
        f"resident memory {handle.id} was freed or never allocated",
        fix="allocate it again, and free it once, after its last use",
        handle=handle.id,
    )


class Bound:
    """A program over resources: its shape, its memory, and what to do before it is launched."""

    def __init__(
        self,
        pipeline: OffloadPipeline,
        resources: Sequence[Resource],
        config: DispatchConfig,
        work: Work,
        *,
        may_allocate: bool,
    ) -> None:
        """`may_allocate`: outputs that the caller gives no memory for are allocated, else they are refused."""
        self.session = session = pipeline.session
        residents = session.residents
        given = _by_slot(pipeline, resources)
        bindings = [b for b in BindingPlan.build(pipeline.program).bindings if b.role is not BindingRole.SHARED]
        _refuse_host_outputs(bindings, given, may_allocate)
        pieces = [
            residents.find(r, f"buffer {b.name!r}") if isinstance(r, ResidentHandle) else None
            for b, r in zip(bindings, given, strict=True)
        ]
        _refuse_shared(bindings, given)
        self.shape = self._planned(pipeline, config, bindings, given)
        views = [plain(r.data) if isinstance(r, HostResource) else None for r in given]
        self.shape.require_possible(pipeline.backend, views)
        self._all_resident = all(isinstance(r, ResidentHandle) for r in given)
        self.fresh: list[ResidentHandle] = []
        self.outputs: list[ResidentHandle] = []
        self.memories: list[Memory] = []
        self._uploads: list[tuple[int, memoryview]] = []
        self._ends: list[int] = []
        try:
            for slot, (b, r, piece) in enumerate(zip(self.shape.bound, given, pieces, strict=True)):
                handle = r if isinstance(r, ResidentHandle) else None
                if handle is not None and handle.nbytes < b.nbytes:
                    raise ArgumentValueError(
                        f"buffer {b.name!r} needs {b.nbytes} bytes and its resident memory has {handle.nbytes}",
                        fix=f"allocate at least {b.nbytes} bytes for it",
                        handle=handle.id,
                    )
                if piece is None and b.output_index is not None:
                    handle = residents.allocate(max(b.nbytes, 1))
                    self.fresh.append(handle)
                    piece = residents.find(handle, "an output")
                if isinstance(r, HostResource) and b.input_index is not None and b.nbytes:
                    self._uploads.append((slot, plain(r.data)))
                if handle is not None and b.output_index is not None:
                    self.outputs.append(handle)
                self.memories.append(work.take(b.nbytes) if piece is None else piece.memory)
                self._ends.append(b.nbytes if handle is None else handle.nbytes)
        except BaseException:
            self.undo()
            raise
        self.zeros = [
            slot
            for slot, b in enumerate(self.shape.bound)
            if b.input_index is None and b.nbytes and slot not in self.shape.proved
        ]

    def _planned(
        self,
        pipeline: OffloadPipeline,
        config: DispatchConfig,
        bindings: Sequence[Binding],
        given: Sequence[Resource | None],
    ) -> Shape:
        sizes = [_nbytes(r) for r in given]
        code = pipeline.require_open()
        key = config, tuple(sizes)
        known = pipeline.resident_shapes.get(key)
        if known is not None:
            return known
        inputs = [0] * sum(b.input_index is not None for b in bindings)
        outputs: list[int | None] = [None] * sum(b.output_index is not None for b in bindings)
        for b, nbytes in zip(bindings, sizes, strict=True):
            if b.input_index is not None:
                inputs[b.input_index] = nbytes or 0
            if b.output_index is not None:
                outputs[b.output_index] = nbytes
        program = pipeline.program
        sized = BindingPlan.from_input_lengths(
            program, inputs, config.output_elements, out_lengths=outputs, resident=True
        )
        indirect = (0, 0, 0) if program.indirect is not None else None
        launch = LaunchPlan.prepare(
            program, sized, config, pipeline.limits, indirect=indirect, backend=pipeline.backend_id
        )
        shape = Shape(
            pipeline.backend,
            self.session.device,
            code,
            pipeline.built.facts,
            sized,
            launch,
            resolve_fixpoint_iterations(config, pipeline.backend_id),
            program.indirect,
            grid_known=program.indirect is None,
        )
        pipeline.remember_shape(key, shape)
        return shape

    @property
    def is_ready(self) -> bool:
        """Whether the next dispatch over this memory is one launch and nothing else."""
        shape = self.shape
        return self._all_resident and shape.is_simple and shape.launches == 1 and not (self.zeros or shape.facts.traps)

    def upload(self, work: Work) -> None:
        """What the host gives, once."""
        for slot, data in self._uploads:
            work.batch.lend(self.memories[slot], 0, data)

    def zero(self, work: Work) -> None:
        """Outputs read as zero wherever the program does not store."""
        for slot in self.zeros:
            nbytes = self.shape.bound[slot].nbytes
            odd = nbytes % 4 if nbytes < self._ends[slot] else 0
            work.batch.zero(self.memories[slot], 0, -(-(nbytes - odd) // 4) * 4)
            if odd:
                data = memoryview(bytes(odd))
                work.batch = self.session.residents.write(
                    work.batch, self.memories[slot], nbytes - odd, data, self._ends[slot]
                )

    def undo(self) -> None:
        """Free the outputs of a dispatch that failed."""
        for handle in self.fresh:
            self.session.residents.free(handle)
        self.fresh = []


def dispatch_over(
    pipeline: OffloadPipeline, resources: Sequence[Resource], config: DispatchConfig | None
) -> list[ResidentHandle]:
    """Run a program once over resources; the memory of its outputs, in their order."""
    settled = pipeline.config if config is None else config
    work = Work(pipeline.session, timeout=settled.timeout)
    try:
        bound = Bound(pipeline, resources, settled, work, may_allocate=True)
        shape = bound.shape
        try:
            if bound.is_ready and settled.timeout is None:
                go = pipeline.session.device.ready(shape.code, bound.memories, shape.lengths, shape.grid)
                pipeline.keep_ready(config, [r for r in resources if isinstance(r, ResidentHandle)], go, bound.outputs)
            bound.upload(work)
            bound.zero(work)
            work.launch(shape, work.armed(shape, bound.memories))
            work.submit()
            work.finish([])
        except BaseException:
            bound.undo()
            raise
    finally:
        work.release()
    return list(bound.outputs)


def run_steps(
    backend: OffloadBackend,
    session: Session,
    steps: Sequence[ResidentDispatchStep],
    reads: Sequence[ResidentReadRange],
    repeat: int,
    *,
    timed: bool,
) -> tuple[OutputBuffers, ResidentSequenceTiming | None]:
    """Run steps in order, all of it `repeat` times, with one wait at the end."""
    begun = time.monotonic()
    turns = whole("repeat", repeat, (1 << 32) - 1) or 0
    ranges = session.residents.readings(reads)
    bounds: list[Bound] = []
    work = Work(session, timed=timed)
    try:
        for step in steps:
            config = DispatchConfig(grid_override=step.grid_override, workgroup_override=step.workgroup_override)
            pipeline, settled = backend.pipeline(step.program, config)
            bounds.append(Bound(pipeline, step.resources, settled, work, may_allocate=False))
        armed = [work.armed(bound.shape, bound.memories) for bound in bounds]
        for bound in bounds:
            bound.upload(work)
        for _ in range(turns):
            for bound, memories in zip(bounds, armed, strict=True):
                bound.zero(work)
                work.launch(bound.shape, memories)
        work.submit([r for r in ranges if r[2]])
        found = iter(work.finish([None] * sum(1 for r in ranges if r[2])))
    finally:
        work.release()
    outputs: OutputBuffers = [next(found) if nbytes else bytearray() for _, _, nbytes in ranges]
    if not timed:
        return outputs, None
    wall_ns = int((time.monotonic() - begun) * 1e9)
    return outputs, ResidentSequenceTiming(wall_ns, work.device_ns, work.enqueue_ns, work.wait_ns)


# ---- resources -------------------------------------------------------------------------------------------------------


def _by_slot(pipeline: OffloadPipeline, resources: Sequence[Resource]) -> list[Resource | None]:
    """A resource for each bound buffer; None where the caller gives none."""
    bound = [b for b in BindingPlan.build(pipeline.program).bindings if b.role is not BindingRole.SHARED]
    inputs = [b for b in bound if b.input_index is not None]
    for k, r in enumerate(resources):
        if not isinstance(r, HostResource | ResidentHandle):
            raise ArgumentTypeError(
                f"resource {k} is {type(r).__name__}", fix="pass resident handles, or HostResource(bytes)"
            )
    if len(resources) == len(bound):
        return list(resources)
    if len(resources) == len(inputs):
        given = iter(resources)
        return [next(given) if b.input_index is not None else None for b in bound]
    names = ", ".join(b.name for b in bound) or "nothing"
    raise ArgumentValueError(
        f"expected {len(bound)} resource(s), or {len(inputs)} for the inputs, and received {len(resources)}",
        fix=f"pass one for each of, in this order: {names}",
    )


def _nbytes(resource: Resource | None) -> int | None:
    if isinstance(resource, ResidentHandle):
        return resource.nbytes
    if resource is None:
        return None
    (nbytes,) = byte_lengths([resource.data])
    return nbytes


def _refuse_host_outputs(bindings: Sequence[Binding], given: list[Resource | None], may_allocate: bool) -> None:
    """Nothing is copied back, so results need memory that stays."""
    for slot, (b, r) in enumerate(zip(bindings, given, strict=True)):
        if b.output_index is None or isinstance(r, ResidentHandle):
            continue
        if b.input_index is None and isinstance(r, HostResource):
            if _nbytes(r):
                raise ArgumentValueError(
                    f"output {b.name!r} is given bytes of the host, which a resident dispatch does not write",
                    fix="pass resident memory for it, or an empty HostResource to have it allocated",
                )
            given[slot] = None
        if not may_allocate:
            raise ArgumentValueError(
                f"output {b.name!r} of a step has no resident memory",
                fix="allocate it with allocate_resident() and pass the handle",
            )


def _refuse_shared(bindings: Sequence[Binding], given: Sequence[Resource | None]) -> None:
    """Memory that a program writes is bound once."""
    seen: dict[int, Binding] = {}
    for b, r in zip(bindings, given, strict=True):
        if not isinstance(r, ResidentHandle):
            continue
        other = seen.setdefault(r.id, b)
        if other is not b and (b.output_index is not None or other.output_index is not None):
            raise ArgumentValueError(
                f"buffers {other.name!r} and {b.name!r} are the same resident memory, and the program writes it",
                fix="pass separate memory for what is written",
                handle=r.id,
            )
