"""A device behind OpenCL: a queue in order, and others for readings and for work that no thread awaits.

The binding's errors do not leave this package: `OpenCLDevice.failed` turns them into ours.
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
from contextlib import contextmanager
from math import prod
from typing import Any

from ...driver.contract.values import U32_MAX, Dims
from ...errors import (
    DeviceLost,
    DeviceOutOfMemory,
    DispatchFailed,
    VyreError,
)
from ...foundation.forking import in_child
from ...runtime.device import Artifact, Code, Command, Device, Launch, Memory, Ticket
from ...runtime.exits import skip_exit_handlers
from .devices import library, used_in
from .emit.text import Mode
from .run.arms import arms
from .run.commands import Launched, Loaded, OpenCLBatch

SPIN_S = 0.005
"""How long a wait looks again and again before it begins to sleep; most launches are over by then."""
SPIN_ON_PROCESSOR_S = 0.0002
"""The same where the device is the processor, which the work itself needs."""
_SLEEP_S = 0.0005
BESIDE = 4
"""Queues for work that no thread waits for right away."""
_SPARE_HELD = 64
_FULL = frozenset((-4, -6))
"""No memory: of the device for an object, of the host."""
_LOST = frozenset((-2, -33, -34, -36, -58, -9999))
"""The device, its context or its queue are not (or no longer) what they were; a kernel faulted."""
_RESOURCES = -5
"""Either the launch needs more than there is, or everything does from now on."""
_TOO_LARGE = -61


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
        self.most_groups = (0x7FFFFFFF, 0xFFFF, 0xFFFF) if self.nvidia else U32_MAX
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
        used_in.add(os.getpid())
        with self.errors("opening the device"):
            self.context = cl.Context([device])
            timed = cl.command_queue_properties.PROFILING_ENABLE
            self.queues = [cl.CommandQueue(self.context, device, timed)]
            self.readings = cl.CommandQueue(self.context, device)
        self.arms: list[Any] = []
        """Queues for commands of a sequence that run beside others of it; all sequences share them."""
        _devices.add(self)

    # -- the interface

    def allocate(self, nbytes: int) -> Memory:
        with self.errors("allocating memory"):
            return self.cl.Buffer(self.context, self.cl.mem_flags.READ_WRITE, nbytes)

    def release(self, memory: Memory) -> None:
        """The driver does it, once neither work nor an object of ours holds the memory.

        Not before: a thread that still records a launch over memory that is gone would end the process.
        """

    def load(self, built: Artifact) -> Loaded:
        with self.errors("loading a kernel"):
            return Loaded(self, built)

    def image(self, code: Code) -> bytes:
        with self.errors("reading a compiled kernel"):
            (found,) = code.program.get_info(self.cl.program_info.BINARIES)
            return bytes(found)

    def batch(self, *, timed: bool = False, ahead: bool = False, seconds: float | None = None) -> OpenCLBatch:
        if self._lost:
            raise self.failed(min(_LOST), "starting work")
        if self._held:
            self._prune()
        return OpenCLBatch(self, timed, self.next_beside() if ahead else 0, seconds)

    def ready(self, code: Code, memories: Sequence[Memory], lengths: Sequence[int], grid: Dims) -> Callable[[], Ticket]:
        assert isinstance(code, Loaded)
        with self.errors("preparing a launch"):
            own = code.again()
            own.aim(memories, lengths, (0, 0, 0), None)
        kernel, local, queue = own.kernel, code.workgroup, self.queues[0]
        bound = tuple(memories)  # which a kernel does not keep
        enqueue, error = self.cl.enqueue_nd_range_kernel, self.cl.Error

        def go() -> Ticket:
            assert bound
            try:
                event = enqueue(queue, kernel, grid, local, g_times_l=True)
                queue.flush()  # or looking at it would never end
            except error as e:
                raise self.failure(e, "launching a kernel") from e
            self.latest[0] = event
            return Launched(self, event)

        return go

    def sequence(
        self, commands: Sequence[Command], after: Sequence[Sequence[int]] | None = None
    ) -> Callable[[], Ticket]:
        """Where launches leave room for others, those that need not wait go through several queues."""
        launches = [c for c in commands if isinstance(c, Launch)]
        leaves_room = any(prod(c.grid) < self.target.max_compute_units for c in launches)
        if after is None or not leaves_room or any(c.code.polls for c in launches):
            return super().sequence(commands)
        return arms(self, commands, after)

    def lost(self) -> bool:
        return self._lost

    def close(self) -> None:
        """Work that still runs keeps what it needs; the driver releases the rest with the last reference to it."""
        self._lost = True
        self.leave()

    def leave(self) -> None:
        """Let no thread wait for work that still runs: releasing a queue or a copy would."""
        if self.is_busy():
            _keep(self)

    def is_busy(self) -> bool:
        return any(not self._has_ended(event) for event in list(self.latest.values()))

    def next_beside(self) -> int:
        """The number of a queue for work that no thread waits for right away."""
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

    def wait(self, event: Any, seconds: float | None) -> bool:
        """Whether an event came within this time. Looks instead of blocking, so that signals are handled."""
        begun = time.monotonic()
        while True:
            try:
                status = event.get_info(self.status_info)
                if status == self._done:
                    event.wait()  # at once: only now do other queues see what it wrote
                    return True
            except self.cl.Error as e:
                raise self.failure(e, "asking for a result") from e
            if status < 0:
                raise self.failed(status, "running a kernel")
            waited = time.monotonic() - begun
            if seconds is not None and waited >= seconds:
                return False
            if waited < self._spin_s:
                _give_way()
            else:
                time.sleep(min(waited / 100, _SLEEP_S))

    def hold(self, event: Any, kept: Any) -> None:
        """Keep what the device reads or writes on the host until an event has come, for work that was dropped before.

        Called by the collector, in the middle of anything.
        """
        with self.lock:
            self._held.append((event, kept))
            if len(self._held) >= self._look_again:  # there may never be other work
                self._prune()

    def _prune(self) -> None:
        with self.lock:
            held, self._held = self._held, []
            left = [each for each in held if not self._has_ended(each[0])]
            self._held += left
            self._look_again = 2 * len(self._held) + _SPARE_HELD

    # -- errors

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except self.cl.Error as e:
            raise self.failure(e, doing) from e

    def is_to_blame(self, code: int) -> bool:
        """Whether a status tells of the device, and not of what it was asked for."""
        return code in _LOST or code in _FULL

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
    """In a forked process: the thread that holds the library's locks is not here, so asking or releasing may hang."""
    for device in list(_devices):
        _keep(device)
        device.lock = threading.RLock()  # the thread that held it is not here
        _devices.discard(device)


atexit.register(_leave_all)
_give_way = getattr(os, "sched_yield", lambda: None)
