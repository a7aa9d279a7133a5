"""A device behind OpenCL: a queue in order, others for readings and for work that nobody waits for, and kernels.

Nothing of the binding's errors leaves this file: they become ours where the library is called.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import prod
from struct import pack
from typing import Any

from ...driver.contract.values import Dims
from ...errors import (
    DeviceLost,
    DeviceOutOfMemory,
    DispatchFailed,
    KernelCompileFailed,
    UnsupportedFeature,
    VyreError,
)
from ...foundation.forking import in_child
from ...lower.c.emitter import ENTRY
from ...runtime.device import Batch, Built, Code, Device, Memory, Ticket
from ...runtime.exits import skip_exit_handlers
from .devices import library
from .emit.text import Mode

SPIN_S = 0.005
"""How long a wait looks again and again before it begins to sleep; most launches are over by then."""
SPIN_ON_PROCESSOR_S = 0.0002
"""The same where the device is the processor, which has better things to do."""
_SLEEP_S = 0.0005
BESIDE = 4
"""Queues for work that nobody waits for right away."""
_SPARE_HELD = 64
_NO_LIMIT_NS = 1 << 62
_FULL = frozenset((-4, -6))
"""No memory: of the device for an object, of the host."""
_LOST = frozenset((-2, -33, -34, -36, -58, -9999))
"""The device, its context or its queue are not (or no longer) what they were; a kernel faulted."""
_RESOURCES = -5
"""Either the launch needs more than there is, or everything does from now on."""
_TOO_LARGE = -61
_WORD_ZERO = bytes(4)
_FILL = bytes(16)
"""A fill with a longer pattern is up to sixty times as fast."""


class OpenCLDevice(Device):
    """Context, queues and loaded programs on one device."""

    def __init__(self, device: Any, mode: Mode = Mode.NATIVE) -> None:
        """`mode` is the one that its kernels are built in."""
        self.cl = cl = library()
        self.target = device
        self.lock = threading.RLock()
        """Held while the arguments of a kernel are set and the kernel is enqueued."""
        self._lost = False
        self.nvidia = "nvidia" in device.platform.vendor.lower()
        self.most_groups = (0x7FFFFFFF, 0xFFFF, 0xFFFF) if self.nvidia else 0xFFFFFFFF
        self.polls = polls(device, mode)
        self.memory_bytes = device.global_mem_size
        self.most_bytes = device.max_mem_alloc_size
        self._held: list[tuple[Any, Any]] = []
        self._look_again = _SPARE_HELD
        self._turn = 0
        self.latest: dict[int, Any] = {}
        """The last command of each queue; those before it end earlier."""
        self._spin_s = SPIN_ON_PROCESSOR_S if device.type & cl.device_type.CPU else SPIN_S
        self._done = cl.command_execution_status.COMPLETE
        self.status_info = cl.event_info.COMMAND_EXECUTION_STATUS
        with self.errors("opening the device"):
            self.context = cl.Context([device])
            timed = cl.command_queue_properties.PROFILING_ENABLE
            self.queues = [cl.CommandQueue(self.context, device, timed)]
            self.readings = cl.CommandQueue(self.context, device)
        _devices.add(self)

    # -- the interface

    def allocate(self, nbytes: int) -> Memory:
        with self.errors("allocating memory"):
            return self.cl.Buffer(self.context, self.cl.mem_flags.READ_WRITE, nbytes)

    def release(self, memory: Memory) -> None:
        """The driver does it, once neither work nor anybody here holds the memory.

        Not before: a thread that still records a launch over memory that is gone would end the process.
        """

    def load(self, built: Built) -> _LoadedKernel:
        with self.errors("loading a kernel"):
            return _LoadedKernel(self, built)

    def image(self, code: Code) -> bytes:
        with self.errors("reading a compiled kernel"):
            (found,) = code.program.get_info(self.cl.program_info.BINARIES)
            return bytes(found)

    def batch(self, *, timed: bool = False, seconds: float | None = None) -> _Batch:
        if self._lost:
            raise self.failed(min(_LOST), "starting work")
        return _Batch(self, timed, seconds)

    def ready(self, code: Code, memories: Sequence[Memory], lengths: Sequence[int], grid: Dims) -> Callable[[], Ticket]:
        assert isinstance(code, _LoadedKernel)
        with self.errors("preparing a launch"):
            own = code.again()
            own.aim(memories, lengths, (0, 0, 0), None)
        kernel, extent, local, queue = own.kernel, code.extent(grid), code.workgroup, self.queues[0]
        bound = tuple(memories)  # which a kernel does not keep
        enqueue, error = self.cl.enqueue_nd_range_kernel, self.cl.Error

        def go() -> Ticket:
            assert bound
            try:
                event = enqueue(queue, kernel, extent, local)
                queue.flush()  # or looking at it would never end
            except error as e:
                raise self.failure(e, "launching a kernel") from e
            self.latest[0] = event
            return _Ticket(self, event)

        return go

    def lost(self) -> bool:
        return self._lost

    def close(self) -> None:
        """What still runs keeps what it needs; the driver releases the rest when nobody holds it any longer."""
        self._lost = True
        self.leave()

    def leave(self) -> None:
        """Let nobody wait for work that still runs: releasing a queue or a copy would."""
        if self.is_busy():
            _keep(self)

    def is_busy(self) -> bool:
        return any(not self._has_ended(event) for event in list(self.latest.values()))

    def next_beside(self) -> int:
        """The number of a queue for work that nobody waits for right away."""
        with self.lock, self.errors("opening a queue"):
            turn = self._turn % BESIDE + 1
            if turn == len(self.queues):
                timed = self.cl.command_queue_properties.PROFILING_ENABLE
                self.queues.append(self.cl.CommandQueue(self.context, self.target, timed))
            self._turn = turn
            return turn

    def _has_ended(self, event: Any) -> bool:
        try:
            return bool(event.get_info(self.status_info) <= self._done)
        except self.cl.Error:
            return True

    # -- waiting

    def is_done(self, event: Any) -> bool:
        try:
            status = event.get_info(self.status_info)
            if status == self._done:
                event.wait()  # at once: only now do other queues see what it wrote
                return True
        except self.cl.Error as e:
            raise self.failure(e, "asking for a result") from e
        if status < 0:
            raise self.failed(status, "running a kernel")
        return False

    def wait(self, event: Any, seconds: float | None) -> bool:
        """Whether an event came within this time. Looks instead of blocking, so that signals are handled."""
        if self.is_done(event):
            return True
        begun = time.monotonic()
        until = None if seconds is None else begun + seconds
        while True:
            now = time.monotonic()
            if until is not None and now >= until:
                return False
            waited = now - begun
            if waited < self._spin_s:
                _give_way()
            else:
                time.sleep(min(waited / 100, _SLEEP_S))
            if self.is_done(event):
                return True

    def hold(self, event: Any, kept: Any = None) -> None:
        """Keep what the device reads or writes on the host until an event has come."""
        with self.lock:
            self._held.append((event, kept))
            if len(self._held) >= self._look_again:  # nobody may ever wait
                self.prune()

    def prune(self) -> None:
        if self._held:
            with self.lock:
                self._held = [held for held in self._held if not self._has_ended(held[0])]
                self._look_again = 2 * len(self._held) + _SPARE_HELD

    # -- errors

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except self.cl.Error as e:
            raise self.failure(e, doing) from e

    def failure(self, error: Any, doing: str) -> VyreError:
        return self.failed(error.code, doing, str(error))

    def failed(self, code: int, doing: str, text: str = "") -> VyreError:
        """Our error for a status of the library."""
        about = {"status": code, "device": self.target.name.strip(), **({"driver_says": text} if text else {})}
        if code == _RESOURCES:
            try:
                self.queues[0].finish()
            except self.cl.Error:
                code = min(_LOST)
        if code in _LOST or self._lost:
            self._lost = True
            return DeviceLost(
                f"the device was lost while {doing}",
                fix="call try_recover() on the backend, then compile, allocate and upload again",
                **about,
            )
        if code in _FULL:
            return DeviceOutOfMemory(
                f"no memory while {doing}", fix="use smaller buffers, or free others first", **about
            )
        if code == _TOO_LARGE:
            return DispatchFailed(
                f"a buffer is too large for the device while {doing}",
                fix=f"use buffers of at most {self.most_bytes} bytes",
                **about,
            )
        return DispatchFailed(
            f"the driver failed while {doing}",
            fix="read what the driver says; update it, or use another backend",
            **about,
        )


def polls(device: Any, mode: Mode) -> bool:
    """Whether a kernel sees a clock, or a word that the host writes while it runs."""
    on_this_processor = device.type & library().device_type.CPU and "pocl" in device.platform.version.lower()
    return mode is Mode.PTX or bool(on_this_processor)


_devices: weakref.WeakSet[OpenCLDevice] = weakref.WeakSet()


def _keep(kept: Any) -> None:
    """Never release it.

    A list of ours would be emptied when the process ends, and releasing what a device works on waits for the work: a
    kernel of a minute is a minute. One reference too many outlives every module.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _leave_all() -> None:
    """At the end of the process: where a device works, releasing anything that it uses may wait for the work."""
    busy = [device for device in list(_devices) if device.is_busy()]
    if not busy:
        return
    # Users may hold objects of the binding, which only the collector knows: 8 ms for 42,000 objects, and only where a
    # device is busy as the process ends.
    binding = type(busy[0].context).__module__
    for kept in (*busy, *(found for found in gc.get_objects() if type(found).__module__ == binding)):
        _keep(kept)
    skip_exit_handlers()


@in_child
def _keep_all() -> None:
    """In a forked process: whoever holds the library's locks is not here, so that asking or releasing may hang."""
    for device in list(_devices):
        _keep(device)
        _devices.discard(device)


atexit.register(_leave_all)
_give_way = getattr(os, "sched_yield", lambda: None)


class _LoadedKernel:
    """A program that was built, and one kernel of it with the numbers it was last given."""

    def __init__(self, device: OpenCLDevice, built: Built, program: Any = None) -> None:
        self.device, self.built = device, built
        facts = built.facts
        self.workgroup = facts.workgroup
        self.buffers: int = facts.extra["buffers"]
        self.traps, self.polls = bool(facts.traps), facts.polls
        self.clock: bool = facts.extra["clock"]
        self.program = _program(device, built) if program is None else program
        self.kernel = device.cl.Kernel(self.program, ENTRY)
        self._numbers: tuple[int, ...] = ()
        if program is None:
            self._require_fit()

    def again(self) -> _LoadedKernel:
        """The same program with a kernel of its own."""
        return _LoadedKernel(self.device, self.built, self.program)

    def _require_fit(self) -> None:
        """What admission cannot see: the lowering adds workgroup memory where lanes exchange values."""
        info, target, find = self.device.cl.kernel_work_group_info, self.device.target, self.kernel.get_work_group_info
        limits = [("bytes of workgroup memory", find(info.LOCAL_MEM_SIZE, target), target.local_mem_size)]
        if not self.device.nvidia:  # which answers 256 for workgroups that it runs
            limits.append(("invocations in a workgroup", prod(self.workgroup), find(info.WORK_GROUP_SIZE, target)))
        for what, asked, most in limits:
            if asked > most:
                raise UnsupportedFeature(
                    f"the kernel needs {asked} {what} and the device has {most} for it",
                    fix="use a smaller workgroup or less workgroup memory, or the cpu backend",
                    name=what,
                    device=target.name.strip(),
                )

    def extent(self, grid: Dims) -> Dims:
        x, y, z = self.workgroup
        return grid[0] * x, grid[1] * y, grid[2] * z

    def aim(self, memories: Sequence[Memory], lengths: Sequence[int], base: Dims, stop: _Stop | None) -> None:
        """Set the arguments. A number that is there already stays: setting one costs fifty times what memory does."""
        set_arg, count = self.kernel.set_arg, self.buffers
        for k in range(count):
            set_arg(k, memories[k])
        numbers = (*lengths, *base)
        if numbers != self._numbers:
            old = self._numbers or (None,) * len(numbers)
            for k, (number, last) in enumerate(zip(numbers, old, strict=True)):
                if number != last:
                    set_arg(count + k, pack("=I", number))
            self._numbers = numbers
        at = 2 * count + 3
        if self.traps:
            set_arg(at, memories[count])
            at += 1
        if self.polls:
            assert stop is not None
            set_arg(at, stop.memory)
            if self.clock:
                set_arg(at + 1, pack("=Q", stop.budget_ns))


def _program(device: OpenCLDevice, built: Built) -> Any:
    """Build without the binding's own cache and warnings: ours is keyed by more, and a log is no failure."""
    cl, context, target = device.cl, device.context, device.target
    make = cl._cl._Program
    program: Any = None
    options = " ".join(built.facts.extra["options"]).encode()
    try:
        program = make(context, [target], [built.image]) if built.image else make(context, built.source)
        program._build(options, [target])
    except cl.Error as e:
        if e.code in _LOST | _FULL:
            raise
        log = ""
        with suppress(cl.Error, AttributeError):
            log = str(program.get_build_info(target, cl.program_build_info.LOG)).strip()
        raise KernelCompileFailed(
            "the driver's compiler rejected the kernel",
            fix="read the log; update the driver, or use another backend",
            log=log or str(e),
            device=device.target.name.strip(),
        ) from e
    return program


class _Stop:
    """How code that polls is told to end: a word of the host's, or a time."""

    def __init__(self, device: OpenCLDevice, seconds: float | None, *, clock: bool) -> None:
        cl = device.cl
        flags = cl.mem_flags
        self._word: Any = None
        self.budget_ns = _NO_LIMIT_NS if seconds is None else int(min(seconds * 1e9, _NO_LIMIT_NS))
        if clock:
            self.memory = cl.Buffer(device.context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=bytes(8))
        else:
            self._word = bytearray(4096)  # as large as a page: a driver may want whole ones
            self.memory = cl.Buffer(device.context, flags.READ_ONLY | flags.USE_HOST_PTR, hostbuf=self._word)

    def set(self) -> None:
        if self._word is not None:
            self._word[:4] = b"\1\0\0\0"


class _Batch(Batch):
    """Commands are enqueued as they come: the queue keeps their order, and other threads' do not matter."""

    def __init__(self, device: OpenCLDevice, timed: bool, seconds: float | None) -> None:
        self._device, self._timed, self._seconds = device, timed, seconds
        self._last: Any = None
        self._launches: list[Any] = []
        self._stop: _Stop | None = None
        self._reads: list[_Read] = []
        self._at = 0
        self._queue = device.queues[0]

    @property
    def ahead(self) -> bool:
        return self._at != 0

    @ahead.setter
    def ahead(self, ahead: bool) -> None:
        self._at = self._device.next_beside() if ahead else 0
        self._queue = self._device.queues[self._at]

    def write(self, memory: Memory, offset: int, data: memoryview) -> None:
        self.lend(memory, offset, memoryview(bytes(data)))

    def lend(self, memory: Memory, offset: int, data: memoryview) -> None:
        device = self._device
        with device.errors("copying to the device"):
            self._last = device.cl.enqueue_copy(self._queue, memory, data, dst_offset=offset, is_blocking=False)
        device.hold(self._last)  # which holds the bytes, and would wait for the copy when it is dropped

    def zero(self, memory: Memory, offset: int, nbytes: int) -> None:
        device = self._device
        many = nbytes - nbytes % 16 if offset % 16 == 0 else 0
        with device.errors("filling memory"):
            if many:
                self._last = device.cl.enqueue_fill_buffer(self._queue, memory, _FILL, offset, many)
            if many < nbytes:
                self._last = device.cl.enqueue_fill_buffer(
                    self._queue, memory, _WORD_ZERO, offset + many, nbytes - many
                )

    def copy(self, source: Memory, source_offset: int, target: Memory, target_offset: int, nbytes: int) -> None:
        device = self._device
        with device.errors("copying on the device"):
            self._last = device.cl.enqueue_copy(
                self._queue, target, source, byte_count=nbytes, src_offset=source_offset, dst_offset=target_offset
            )

    def launch(self, code: Code, memories: Sequence[Memory], lengths: Sequence[int], base: Dims, grid: Dims) -> None:
        assert isinstance(code, _LoadedKernel)
        device = self._device
        if code.polls and self._stop is None:
            self._stop = _Stop(device, self._seconds, clock=code.clock)
        with device.lock:
            try:
                code.aim(memories, lengths, base, self._stop)
                self._last = device.cl.enqueue_nd_range_kernel(
                    self._queue, code.kernel, code.extent(grid), code.workgroup
                )
            except device.cl.Error as e:
                code._numbers = ()
                raise device.failure(e, "launching a kernel") from e
        if code.polls:
            device.hold(self._last, self._stop)
        if self._timed:
            self._launches.append(self._last)

    def read(self, memory: Memory, offset: int, nbytes: int) -> None:
        device = self._device
        found = _Read(memory, offset, nbytes)
        self._reads.append(found)
        if self.ahead:
            found.data = bytearray(nbytes)
            with device.errors("copying from the device"):
                self._last = device.cl.enqueue_copy(
                    self._queue, found.data, memory, src_offset=offset, is_blocking=False
                )
            device.hold(self._last)

    def submit(self) -> Ticket:
        device = self._device
        with device.errors("submitting work"):
            if self._last is None:
                self._last = device.cl.enqueue_marker(self._queue)
            self._queue.flush()
        device.latest[self._at] = self._last
        return _Ticket(device, self._last, self._reads, self._launches if self._timed else None, self._stop)


class _Read:
    """Bytes to read, and where they are once they came."""

    __slots__ = ("data", "memory", "nbytes", "offset")

    def __init__(self, memory: Memory, offset: int, nbytes: int) -> None:
        self.memory, self.offset, self.nbytes = memory, offset, nbytes
        self.data: Any = None


class _Ticket(Ticket):
    __slots__ = ("_device", "_last", "_launches", "_reads", "_stop")

    def __init__(
        self,
        device: OpenCLDevice,
        last: Any,
        reads: Sequence[_Read] = (),
        launches: Sequence[Any] | None = None,
        stop: _Stop | None = None,
    ) -> None:
        self._device, self._last, self._reads, self._launches, self._stop = device, last, reads, launches, stop

    def done(self) -> bool:
        return self._device.is_done(self._last)

    def wait(self, seconds: float | None) -> bool:
        ended = self._device.wait(self._last, seconds)
        if ended:
            self._device.prune()
        return ended

    def take(self, into: Sequence[memoryview | None]) -> list[Any]:
        self.wait(None)
        device = self._device
        events, results = [], []
        for read, target in zip(self._reads, into, strict=True):
            if read.data is not None:
                if target is not None:
                    target[:] = read.data
                results.append(read.data if target is None else target)
                continue
            place: Any = bytearray(read.nbytes) if target is None else target
            with device.errors("copying from the device"):
                events.append(
                    device.cl.enqueue_copy(
                        device.readings, place, read.memory, src_offset=read.offset, is_blocking=False
                    )
                )
            results.append(place)
        if events:
            with device.errors("copying from the device"):
                device.readings.flush()
            try:
                device.wait(events[-1], None)
            except BaseException:  # of a signal, say
                with suppress(device.cl.Error):
                    device.readings.finish()  # what the caller gave is not written later
                raise
        return results

    def stop(self) -> None:
        if self._stop is not None:
            self._stop.set()

    @property
    def device_ns(self) -> int | None:
        if self._launches is None:
            return None
        info = self._device.cl.profiling_info
        with self._device.errors("asking how long a kernel took"):
            return int(sum(e.get_profiling_info(info.END) - e.get_profiling_info(info.START) for e in self._launches))
