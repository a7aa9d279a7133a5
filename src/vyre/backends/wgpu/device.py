"""A wgpu device as the driver sees it: memory, kernels, and a queue that one thread uses at a time.

The library ends the process when work is submitted to a device that is gone, or when the memory of one is read. So
every use of the queue goes through one lock and asks first. Where the device is the processor, `submit` waits inside
the library for the work before it; there a thread of ours submits, so that the caller does not wait.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import wgpu  # type: ignore[import-untyped]

from ...driver.contract.values import Dims
from ...driver.plan.binding import BackendLayoutClass, BackendLayoutSlot
from ...driver.policy.code import choose_layout
from ...driver.policy.decision import Decision
from ...errors import (
    BackendError,
    DeviceLost,
    DeviceOutOfMemory,
    DispatchFailed,
    KernelCompileFailed,
    UnsupportedFeature,
    VyreError,
)
from ...foundation.forking import in_child
from ...foundation.integers import round_up
from ...foundation.memo import keep, renew
from ...runtime.device import Artifact, Device, Memory, Ticket
from ...runtime.exits import skip_exit_handlers
from .devices import is_emulated, name_of
from .emit.text import ENTRY
from .run import binding_gaps
from .run.commands import USAGE, Kernel, Layout, Piece, Sender, Sent, Uniform, WgpuBatch, rows

WIDE = ("shader-f64", "shader-int64")
FEATURES = ("immediates", "timestamp-query", *WIDE)
"""Features that are requested where the device has them."""
BINDING_BYTES = "max-storage-buffer-binding-size"
BUFFER_BYTES = "max-buffer-size"
PIECE_BYTES = 1 << 26
"""Longer uploads go in pieces, so that the library's own copies stay small."""
MAX_STAGING_BYTES = 1 << 28
"""Idle buffers to read into; which are at least a page."""
MAX_GROUPS = 512
MAX_LAYOUTS = 64
MAX_UNIFORMS = 64
_PAGE = 4096
_STAGING = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST


class WgpuDevice(Device):
    """A device in use. Any thread makes buffers, groups and kernels; the `queue` belongs to one at a time."""

    writes_words = True

    def __init__(self, adapter: Any, *, immediates: bool = True) -> None:
        """`immediates=False` gives parameters in buffers, also where the device has a shorter way."""
        _bury()
        features = [f for f in FEATURES if f in adapter.features]
        try:
            self.raw = adapter.request_device_sync(required_features=features, required_limits=dict(adapter.limits))
        except Exception as e:
            raise DispatchFailed(
                f"the device did not open: {e}",
                fix="close what else uses the device, or see to its driver",
                device=name_of(adapter),
            ) from e
        binding_gaps.stop_thread(self.raw)
        self.limits: dict[str, int] = dict(self.raw.limits)
        self.name = name_of(adapter)
        self.row = self.limits["max-compute-workgroups-per-dimension"]
        """Workgroups along an axis of what the library calls a dispatch."""
        self.most_groups = (min(self.row**2, 0xFFFFFFFF), self.row, self.row)
        self.most_bytes = most_bytes(self.limits)
        self.immediate_bytes = self.limits["max-immediate-size"] if immediates and "immediates" in features else 0
        self.is_wide = all(f in features for f in WIDE)
        """Whether kernels may compute in f64 and u64."""
        self.tick_ns = binding_gaps.nanoseconds_per_tick(self.raw) if "timestamp-query" in features else 0.0
        self.queue = threading.RLock()
        self.last: Sent | None = None
        """The ticket of the last batch."""
        self.submitted: Sent | None = None
        """The ticket of the last one that is on the device."""
        self.is_emulated = is_emulated(adapter)
        self._sender: Sender | None = None
        self._lost = self._suspect = self._closed = False
        self._tables = threading.Lock()
        self._groups: dict[Any, Any] = {}
        self._layouts: dict[Layout, tuple[tuple[Any, ...], Any]] = {}
        self._staging: OrderedDict[Any, None] = OrderedDict()
        self._uniforms: list[Uniform] = []
        self._destroy, self.raw.destroy = self.raw.destroy, self._destroyed
        _devices.add(self)

    # -- memory

    def allocate(self, nbytes: int) -> Piece:
        size = max(round_up(nbytes, 16), 16)
        if size > self.most_bytes:
            limit = min((BINDING_BYTES, BUFFER_BYTES), key=lambda name: self.limits[name])
            raise UnsupportedFeature(
                f"a buffer of {nbytes} bytes is over {limit} of the device, {self.limits[limit]} bytes",
                fix="split the data over several dispatches, or use the cpu backend",
                device=self.name,
            )
        with self.reported("allocating memory", nbytes=size):
            return Piece(self.raw.create_buffer(size=size, usage=USAGE), size)

    def release(self, memory: Memory) -> None:
        """The library keeps what work uses until that has ended; nothing is destroyed, for work that was recorded and
        submitted later would end the process."""
        with self._tables:
            for key in memory.groups:
                self._groups.pop(key, None)
            memory.groups.clear()
        memory.buffer = None

    def staging(self, nbytes: int) -> Any:
        """A buffer that the host can read, not much longer than asked."""
        with self._tables:
            for buffer in self._staging:
                if nbytes <= buffer.size <= 2 * max(nbytes, _PAGE):
                    del self._staging[buffer]
                    return buffer
        return self.raw.create_buffer(size=round_up(nbytes, _PAGE), usage=_STAGING)

    def keep_staging(self, buffer: Any) -> None:
        if buffer.size > MAX_STAGING_BYTES:
            return
        with self._tables:
            self._staging[buffer] = None
            while sum(b.size for b in self._staging) > MAX_STAGING_BYTES:
                self._staging.popitem(last=False)

    # -- kernels

    def load(self, built: Artifact) -> Kernel:
        extra = built.facts.extra
        layout = Layout.of(extra["writable"], extra["words"], extra["immediates"])
        decided = choose_layout(len(layout.table.slots), known=layout in self._layouts)
        with self.reported("compiling the kernel", KernelCompileFailed, "report the program with the log"):
            groups, whole = self._laid_out(layout)
            module = self.raw.create_shader_module(code=built.source)
            entry = {"module": module, "entry_point": ENTRY}
            return Kernel(self.raw.create_compute_pipeline(layout=whole, compute=entry), layout, groups, decided)

    def decisions(self, code: Kernel) -> Sequence[Decision]:
        return (code.shared,)

    def _laid_out(self, layout: Layout) -> tuple[tuple[Any, ...], Any]:
        """The library's layouts: of the groups, and of all."""
        with self._tables:
            known = self._layouts.get(layout)
            if known is not None:
                renew(self._layouts, layout)
                return known
        groups = tuple(
            self.raw.create_bind_group_layout(
                entries=[
                    {"binding": slot.binding, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": _kind(slot)}}
                    for slot in layout.table.slots
                    if slot.group == group
                ]
            )
            for group in ((0,) if layout.immediates else (0, 1))
        )
        size = 4 * layout.words if layout.immediates else 0
        found = groups, self.raw.create_pipeline_layout(bind_group_layouts=list(groups), immediate_size=size)
        with self._tables:
            keep(self._layouts, layout, found, MAX_LAYOUTS)
        return found

    def group(self, code: Kernel, memories: Sequence[Piece]) -> Any:
        """The bind group of a kernel over memory, kept for the next launch."""
        key = (code.groups[0], *memories)
        with self._tables:
            known = self._groups.get(key)
            if known is not None:
                renew(self._groups, key)
                return known
        found = self._bound(code.groups[0], [m.buffer for m in memories])
        with self._tables:
            for m in memories:
                m.groups.add(key)
            for old, _ in keep(self._groups, key, found, MAX_GROUPS):
                for m in old[1:]:
                    m.groups.discard(old)
        return found

    def _bound(self, layout: Any, buffers: Sequence[Any]) -> Any:
        if None in buffers:
            raise DispatchFailed("a buffer was released before its launch", fix="keep memory until its work has ended")
        entries = [
            {"binding": k, "resource": {"buffer": b, "offset": 0, "size": b.size}} for k, b in enumerate(buffers)
        ]
        return self.raw.create_bind_group(layout=layout, entries=entries)

    def uniform(self, code: Kernel) -> Uniform:
        """A buffer for the parameters of a launch. They are all alike in a pool of this size and layout."""
        size = round_up(4 * code.layout.words, 16)
        with self._tables:
            for k, found in enumerate(self._uniforms):
                if found.buffer.size == size:
                    return self._uniforms.pop(k)
        usage = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
        buffer = self.raw.create_buffer(size=size, usage=usage)
        return Uniform(buffer, self._bound(code.groups[1], [buffer]))

    def keep_uniforms(self, used: list[Uniform]) -> None:
        with self._tables:
            self._uniforms += used[: MAX_UNIFORMS - len(self._uniforms)]

    # -- the queue

    def batch(self, *, timed: bool = False, ahead: bool = False, seconds: float | None = None) -> WgpuBatch:
        self.require()
        return WgpuBatch(self, timed=timed and bool(self.tick_ns), later=self.is_emulated and self._is_busy())

    def ready(
        self, code: Kernel, memories: Sequence[Memory], lengths: Sequence[int], grid: Dims
    ) -> Callable[[], Ticket]:
        if not (all(grid) and code.layout.immediates):
            return super().ready(code, memories, lengths, grid)
        with self.reported("recording work"):
            group = self.group(code, memories)
        launches = [(code.params(lengths, at, row), size) for at, size, row in rows((0, 0, 0), grid, self.row)]
        nothing: list[Any] = []

        def go() -> Ticket:
            if self.is_emulated and self._is_busy():
                batch = self.batch()
                batch.launch(code, memories, lengths, (0, 0, 0), grid)
                return batch.submit()
            ticket = Sent(self, nothing)
            with self.reported("submitting work"):
                encoder = self.raw.create_command_encoder()
                commands = encoder.begin_compute_pass()
                commands.set_pipeline(code.pipeline)
                commands.set_bind_group(0, group)
                for params, size in launches:
                    commands.set_immediates(0, params, 0, len(params))
                    commands.dispatch_workgroups(*size)
                commands.end()
                with self.queue:
                    self.submit(encoder)
                    ticket.arm(nothing, nothing, None)
            self.last = ticket
            return ticket

        return go

    def upload(self, buffer: Any, offset: int, data: memoryview) -> None:
        """Queue a copy of bytes, padded with zeros to whole words."""
        whole = data.nbytes & ~3
        with self.queue:
            self.require()
            for at in range(0, whole, PIECE_BYTES):
                piece = data[at : min(at + PIECE_BYTES, whole)]
                self.raw.queue.write_buffer(buffer, offset + at, piece)
                if piece.nbytes == PIECE_BYTES:
                    self.raw.queue.submit([])  # begin to copy
            if whole < data.nbytes:
                self.raw.queue.write_buffer(buffer, offset + whole, bytes(data[whole:]).ljust(4, b"\0"))

    def submit(self, encoder: Any) -> None:
        with self.queue:
            self.require()
            self.raw.queue.submit([encoder.finish()])

    def send(self, ticket: Sent, work: Callable[[Sent | None], None]) -> None:
        """Let a thread of ours submit; it is told what to wait for."""
        with self._tables:
            previous, self.last = self.last, ticket
            if self._sender is None:
                self._sender = Sender()
                weakref.finalize(self, self._sender.stop).atexit = False
            self._sender.send(lambda: work(previous))

    def poll(self, ended: Callable[[], bool]) -> bool:
        """Whether something has ended. False also while another thread has the queue."""
        if not self.queue.acquire(blocking=False):
            return False
        try:
            self.require()
            if not ended():
                binding_gaps.poll(self.raw)
            return ended()
        finally:
            self.queue.release()

    def _is_busy(self) -> bool:
        if self._sender is not None and self._sender.busy:
            return True
        try:
            return self.last is not None and not self.last.done()
        except VyreError:
            return False

    # -- the end

    def lost(self) -> bool:
        if self._suspect and not self._lost:
            self._suspect = False
            try:
                self.raw.create_buffer(size=16, usage=USAGE)
            except wgpu.GPUError as e:
                self._lost = _tells_loss(e)
        return self._lost

    def suspect(self) -> None:
        """Some device of this process was lost."""
        self._suspect = True

    def require(self) -> None:
        """Raise DeviceLost unless the device is there."""
        if self._closed or self._lost or (self._suspect and self.lost()):
            raise self.gone()

    def gone(self) -> DeviceLost:
        return DeviceLost(
            "the device was closed" if self._closed else "the device is lost",
            fix="call try_recover() on the backend, then compile, allocate and upload again",
            device=self.name,
        )

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        _devices.discard(self)
        with self._tables:
            if self._sender is not None:
                self._sender.stop()
            for table in (self._groups, self._layouts, self._staging):
                table.clear()
            self._uniforms.clear()
        _left_behind.append(self)
        _bury()

    def end(self) -> bool:
        """Whether nothing runs any more on a device that was closed, so that it can be released."""
        if not self.queue.acquire(blocking=False):
            return False
        try:
            binding_gaps.poll(self.raw)
            if self.submitted is not None and not self.submitted.is_over():
                return False
            self._destroy()
            return True
        finally:
            self.queue.release()

    def _destroyed(self) -> None:
        """Stands for the library's `destroy`, so that no thread is inside the library meanwhile."""
        with self.queue:
            self._lost = True
            self._destroy()

    @contextmanager
    def reported(
        self,
        what: str,
        error: type[BackendError] = DispatchFailed,
        fix: str = "report the program with the log",
        **context: object,
    ) -> Iterator[None]:
        """Whatever the library raises becomes an error of ours; once the device is gone, that it is."""
        self.require()
        try:
            yield
        except VyreError:
            raise
        except (wgpu.GPUError, RuntimeError, ValueError, TypeError, AttributeError) as e:
            if _tells_loss(e):
                self._lost = True
            if self._lost or self._closed:
                raise self.gone() from e
            message = f"{what} failed"
            if isinstance(e, wgpu.GPUOutOfMemoryError):
                error, fix = DeviceOutOfMemory, "free resident memory, or dispatch less at once"
                message = "the device is out of memory"
            raise error(message, fix=fix, device=self.name, log=str(e), **context) from e


def _kind(slot: BackendLayoutSlot) -> str:
    """What the library calls such a buffer."""
    if slot.kind is BackendLayoutClass.UNIFORM:
        return "uniform"
    return "read-only-storage" if slot.read_only else "storage"


def most_bytes(limits: Any) -> int:
    """The longest buffer that can be bound."""
    return int(min(limits[BINDING_BYTES], limits[BUFFER_BYTES])) & ~15


def _tells_loss(error: Exception) -> bool:
    return "device is lost" in str(error).lower()


# ---- all devices of the process --------------------------------------------------------------------------------------

_devices: weakref.WeakSet[WgpuDevice] = weakref.WeakSet()
_left_behind: list[WgpuDevice] = []
"""Closed, and perhaps busy: releasing one would wait."""


def _bury() -> None:
    """Release those that were left behind and have ended since."""
    _left_behind[:] = [device for device in _left_behind if not device.end()]


def _suspect_all() -> None:
    for device in list(_devices):
        device.suspect()


binding_gaps.when_lost(_suspect_all)


@atexit.register
def _leave() -> None:
    """A process that ends does not wait for its devices."""
    busy = [*_left_behind, *(d for d in list(_devices) if d._is_busy())]
    for device in busy:
        binding_gaps.forget(device.raw)
    if busy:
        skip_exit_handlers()


@in_child
def _forked() -> None:
    binding_gaps.leave_to_parent()
    _devices.clear()
    _left_behind.clear()
