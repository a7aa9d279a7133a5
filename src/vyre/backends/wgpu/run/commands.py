"""Work for a wgpu device: batches of commands, and the tickets by which their end is noticed."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import wgpu  # type: ignore[import-untyped]

from ....driver.contract.values import Dims
from ....driver.plan.binding import BackendLayoutClass, BackendLayoutFingerprint, BackendLayoutSlot
from ....driver.policy.decision import Decision
from ....errors import VyreError
from ....foundation.integers import ceil_div, round_up
from ....runtime.device import Batch, Memory, Ticket
from . import binding_gaps

if TYPE_CHECKING:
    from ..device import WgpuDevice

QUERIES = 128
"""Times in one set of queries: two for each compute pass."""
USAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
_WORD_BYTES = 4
_SPIN_S = 0.0002
_LONGEST_NAP_S = 0.001


class Piece:
    """Memory of the device, or none once it was released. `groups` are the keys of bind groups that hold it."""

    __slots__ = ("buffer", "groups", "nbytes")

    def __init__(self, buffer: Any, nbytes: int) -> None:
        self.buffer, self.nbytes = buffer, nbytes
        self.groups: set[Any] = set()


class Layout(NamedTuple):
    """How a kernel is bound: its table, and the `words` of its parameters; `immediates`: without a buffer for them."""

    table: BackendLayoutFingerprint
    words: int
    immediates: bool

    @classmethod
    def of(cls, writable: Sequence[bool], words: int, immediates: bool) -> Layout:
        """Buffers in group 0, which are arrays of words; a buffer for parameters is group 1."""
        storage, uniform = BackendLayoutClass.STORAGE, BackendLayoutClass.UNIFORM
        slots = [BackendLayoutSlot(0, k, storage, not w, _WORD_BYTES) for k, w in enumerate(writable)]
        if not immediates:
            slots.append(BackendLayoutSlot(1, 0, uniform, True, _WORD_BYTES * words))
        return cls(BackendLayoutFingerprint(tuple(slots)), words, immediates)


class Kernel(NamedTuple):
    """A kernel that the device has loaded, with the library's layouts of its groups, and whether others have them."""

    pipeline: Any
    layout: Layout
    groups: tuple[Any, ...]
    shared: Decision

    def params(self, lengths: Sequence[int], base: Dims, row: int) -> bytes:
        """Lengths, the workgroup id to count from, the workgroups of a row, and two words that are zero."""
        return struct.pack(f"<{self.layout.words}I", *lengths, *base, row, 0, 0)


class Uniform(NamedTuple):
    """A buffer for the parameters of one launch, with its group."""

    buffer: Any
    group: Any


def rows(base: Dims, grid: Dims, most: int) -> Iterator[tuple[Dims, Dims, int]]:
    """A grid as launches (base, size, row) of at most so many workgroups along an axis: a long x axis is folded into
    rows, because every launch waits for the one before.

    >>> list(rows((5, 0, 0), (8, 1, 1), 5)), list(rows((5, 0, 0), (7, 1, 1), 5))
    ([((5, 0, 0), (4, 2, 1), 4)], [((5, 0, 0), (5, 1, 1), 5), ((10, 0, 0), (2, 1, 1), 0)])
    """
    x, y, z = grid
    first, *others = base
    if x > most and y * z == 1:
        least = ceil_div(x, most)  # rows; a few more may leave no rest
        count = next((n for n in range(least, min(2 * least, most + 1)) if x % n == 0), x // most)
        length = min(x // count, most)
        yield base, (length, count, 1), length
        first, x = first + count * length, x - count * length
    for at in range(0, x, most):
        yield (first + at, others[0], others[1]), (min(most, x - at), y, z), 0


class _Reading(NamedTuple):
    """Where a reading lies: the number of its staging buffer, its first byte there, and how many."""

    staging: int
    start: int
    nbytes: int


class _Times(NamedTuple):
    """Where the times of the compute passes lie, and what a tick is."""

    staging: int
    start: int
    marks: int
    tick_ns: float


class WgpuBatch(Batch):
    """Commands for the device. With `later`, they are only kept, for a thread that may wait until it is their turn; by
    then the memory may have been released, so they hold its buffers."""

    def __init__(self, device: WgpuDevice, *, timed: bool, later: bool) -> None:
        self._device = device
        self._later: list[Callable[[], None]] | None = [] if later else None
        self._encoder: Any = None
        self._pass: Any = None
        self._readings: list[_Reading] = []
        self._staging: list[tuple[Any, int]] = []
        """Buffers, each with the bytes of it that are taken."""
        self._uniforms: list[Uniform] = []
        self._queries: list[Any] | None = [] if timed else None
        self._passes = 0

    def write(self, memory: Memory, offset: int, data: memoryview) -> None:
        if not data.nbytes:
            return
        buffer = memory.buffer
        if self._later is None:
            self._write(buffer, offset, data)
        else:
            kept = memoryview(bytes(data))
            self._later.append(lambda: self._write(buffer, offset, kept))

    lend = write

    def zero(self, memory: Memory, offset: int, nbytes: int) -> None:
        if nbytes:
            buffer = memory.buffer
            self._do(lambda: self._commands().clear_buffer(buffer, offset, nbytes))

    def copy(self, source: Memory, source_offset: int, target: Memory, target_offset: int, nbytes: int) -> None:
        if nbytes:
            a, b = source.buffer, target.buffer
            self._do(lambda: self._copy(a, source_offset, b, target_offset, nbytes))

    def launch(self, code: Kernel, memories: Sequence[Memory], lengths: Sequence[int], base: Dims, grid: Dims) -> None:
        if all(grid):
            with self._device.reported("recording work"):
                group = self._device.group(code, memories)
            for at, size, row in rows(base, grid, self._device.row):
                self._do(partial(self._launch, code, group, code.params(lengths, at, row), size))

    def read(self, memory: Memory, offset: int, nbytes: int) -> None:
        if not nbytes:
            self._readings.append(_Reading(0, 0, 0))
            return
        start, end = offset & ~3, round_up(offset + nbytes, 4)
        with self._device.reported("allocating memory to read into", nbytes=nbytes):
            number, at = self._room(end - start)
        self._readings.append(_Reading(number, at + offset - start, nbytes))
        source, target = memory.buffer, self._staging[number][0]
        self._do(lambda: self._commands().copy_buffer_to_buffer(source, start, target, at, end - start))

    def submit(self) -> Sent:
        device = self._device
        ticket = Sent(device, self._readings)
        if self._later is None:
            self._send(ticket)
            device.last = ticket
        else:
            steps, self._later = self._later, None
            device.send(ticket, lambda previous: self._catch_up(ticket, previous, steps))
        return ticket

    # -- with the library

    def _do(self, step: Callable[[], None]) -> None:
        if self._later is None:
            with self._device.reported("recording work"):
                step()
        else:
            self._later.append(step)

    def _catch_up(self, ticket: Sent, previous: Sent | None, steps: list[Callable[[], None]]) -> None:
        """Do the steps that were kept, once the work before has ended."""
        try:
            if previous is not None:
                with suppress(VyreError):  # the holder of that ticket is told
                    previous.wait(None)
            for step in steps:
                self._do(step)
            self._send(ticket)
        except BaseException as e:
            ticket.fail(e)

    def _send(self, ticket: Sent) -> None:
        device = self._device
        with device.reported("submitting work"):
            times = self._resolve_times()
            self._commands()  # if only to notice the end of what was written
            with device.queue:
                self._finish_and_submit()
                ticket.arm([buffer for buffer, _ in self._staging], self._uniforms, times)

    def _finish_and_submit(self) -> None:
        self._end_pass()
        encoder, self._encoder = self._encoder, None
        self._device.submit(encoder)

    def _write(self, buffer: Any, offset: int, data: memoryview) -> None:
        with self._device.reported("writing to the device"):
            if self._encoder is not None:
                self._finish_and_submit()  # for a write comes before all commands that are submitted after it
            self._device.upload(buffer, offset, data)

    def _copy(self, source: Any, source_offset: int, target: Any, target_offset: int, nbytes: int) -> None:
        commands = self._commands()
        if source is not target:
            commands.copy_buffer_to_buffer(source, source_offset, target, target_offset, nbytes)
            return
        between = self._device.raw.create_buffer(size=nbytes, usage=USAGE)
        commands.copy_buffer_to_buffer(source, source_offset, between, 0, nbytes)
        commands.copy_buffer_to_buffer(between, 0, target, target_offset, nbytes)

    def _launch(self, code: Kernel, group: Any, params: bytes, grid: Dims) -> None:
        device = self._device
        commands = self._compute()
        commands.set_pipeline(code.pipeline)
        commands.set_bind_group(0, group)
        if code.layout.immediates:
            commands.set_immediates(0, params, 0, len(params))
        else:
            uniform = device.uniform(code)
            self._uniforms.append(uniform)
            device.upload(uniform.buffer, 0, memoryview(params))  # nothing that was recorded before uses this buffer
            commands.set_bind_group(1, uniform.group)
        commands.dispatch_workgroups(*grid)

    def _commands(self) -> Any:
        self._end_pass()
        if self._encoder is None:
            self._encoder = self._device.raw.create_command_encoder()
        return self._encoder

    def _compute(self) -> Any:
        """The compute pass: launches that follow each other share one, and see what the ones before did."""
        if self._pass is None:
            times = None
            if self._queries is not None:
                at = 2 * self._passes % QUERIES
                if at == 0:
                    self._queries.append(self._device.raw.create_query_set(type="timestamp", count=QUERIES))
                times = {
                    "query_set": self._queries[-1],
                    "beginning_of_pass_write_index": at,
                    "end_of_pass_write_index": at + 1,
                }
                self._passes += 1
            self._pass = self._commands().begin_compute_pass(timestamp_writes=times)
        return self._pass

    def _end_pass(self) -> None:
        if self._pass is not None:
            self._pass.end()
            self._pass = None

    def _room(self, nbytes: int) -> tuple[int, int]:
        """The number of a staging buffer with so many bytes left, and where they begin."""
        taken = round_up(nbytes, 8)
        if self._staging:
            buffer, at = self._staging[-1]
            if at + taken <= buffer.size:
                self._staging[-1] = buffer, at + taken
                return len(self._staging) - 1, at
        self._staging.append((self._device.staging(taken), taken))
        return len(self._staging) - 1, 0

    def _resolve_times(self) -> _Times | None:
        if self._queries is None:
            return None
        if not self._passes:
            return _Times(0, 0, 0, 0.0)
        device = self._device
        usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        between = device.raw.create_buffer(size=8 * QUERIES * len(self._queries), usage=usage)
        number, at = self._room(between.size)
        commands = self._commands()
        for k, queries in enumerate(self._queries):
            count = min(2 * self._passes - k * QUERIES, QUERIES)
            commands.resolve_query_set(queries, 0, count, between, 8 * QUERIES * k)
        commands.copy_buffer_to_buffer(between, 0, self._staging[number][0], at, between.size)
        return _Times(number, at, 2 * self._passes, device.tick_ns)


class Sent(Ticket):
    """Work on its way. It has ended when the buffers that it copies into at last can be read."""

    def __init__(self, device: WgpuDevice, readings: list[_Reading]) -> None:
        self._device, self._readings = device, readings
        self._staging: list[Any] = []
        self._promises: list[Any] = []
        self._uniforms: list[Uniform] = []
        self._times: _Times | None = None
        self._over: Callable[[], bool] | None = None
        self._error: BaseException | None = None
        self._ended = False
        self._found: list[Any] | None = None
        self._device_ns: int | None = None

    def arm(self, staging: list[Any], uniforms: list[Uniform], times: _Times | None) -> None:
        """It was submitted just now."""
        self._device.submitted = self
        self._staging, self._uniforms, self._times = staging, uniforms, times
        if staging:
            self._promises = [binding_gaps.start_mapping(b) for b in staging]
            self._over = lambda: all(map(binding_gaps.is_mapped, self._promises))
        else:
            self._over = binding_gaps.Done(self._device.raw)

    def fail(self, error: BaseException) -> None:
        self._error = error

    def done(self) -> bool:
        if self._ended:
            return True
        if self._error is not None:
            raise self._error
        if self._over is None:  # a thread of ours has yet to send it
            self._device.require()
            return False
        if not self._device.poll(self._over):
            return False
        self._end()
        return True

    def is_over(self) -> bool:
        """Whether nothing of it runs, as of the last poll."""
        return self._over is None or self._over()

    def _end(self) -> None:
        """The buffers can be read; without readings they are given back at once."""
        device = self._device
        with device.queue, device.reported("running the work"):
            if self._ended:
                return
            for promise in self._promises:
                promise.sync_wait()
            if self._uniforms:
                uniforms, self._uniforms = self._uniforms, []  # never twice, whatever interrupts this
                device.keep_uniforms(uniforms)
            if self._times is not None:
                self._device_ns = self._time(self._times)
            if not self._readings:
                self._give_back()
            self._ended = True

    def wait(self, seconds: float | None) -> bool:
        begun = time.monotonic()
        while not self.done():
            passed = time.monotonic() - begun
            if seconds is not None and passed >= seconds:
                return False
            if passed > _SPIN_S:
                nap = min(passed / 64, _LONGEST_NAP_S)
                time.sleep(nap if seconds is None else min(nap, seconds - passed))
        return True

    def take(self, into: Sequence[memoryview | None]) -> list[Any]:
        if not self._ended:
            self.wait(None)
        device = self._device
        with device.queue, device.reported("reading from the device"):
            if self._found is None:  # else a signal came between here and the caller
                self._found = [self._read(r, target) for r, target in zip(self._readings, into, strict=True)]
            self._give_back()
        return self._found

    def _read(self, reading: _Reading, target: memoryview | None) -> Any:
        number, start, nbytes = reading
        if not nbytes:
            return bytearray() if target is None else target
        with self._view(number, start, nbytes) as view:
            if target is None:
                return bytearray(view)
            target.cast("B")[:] = view
        return target

    @contextmanager
    def _view(self, number: int, start: int, nbytes: int) -> Iterator[memoryview]:
        """Bytes of a staging buffer; the library wants whole words, from a multiple of 8."""
        first = start & ~7
        whole = self._staging[number].read_mapped(first, round_up(start + nbytes - first, 4), copy=False)
        view = whole[start - first : start - first + nbytes]
        try:
            yield view
        finally:
            view.release()
            whole.release()

    def _time(self, times: _Times) -> int:
        if not times.marks:
            return 0
        with self._view(times.staging, times.start, 8 * times.marks) as view:
            marks: tuple[int, ...] = struct.unpack(f"<{times.marks}Q", view)
        return round((sum(marks[1::2]) - sum(marks[::2])) * times.tick_ns)

    def _give_back(self) -> None:
        while self._staging:
            buffer = self._staging.pop()
            buffer.unmap()
            self._device.keep_staging(buffer)

    @property
    def device_ns(self) -> int | None:
        return self._device_ns


class Sender:
    """A thread that does one thing after another."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._left: list[None] = []  # one item per piece of work; appending and popping are atomic
        threading.Thread(target=self._run, name="vyre-wgpu-submit", daemon=True).start()

    @property
    def busy(self) -> bool:
        return bool(self._left)

    def send(self, work: Callable[[], None]) -> None:
        self._left.append(None)
        self._work.put(work)

    def stop(self) -> None:
        """End after what was sent before."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # and with it the memory that it holds
            self._left.pop()
