"""A device behind NVIDIA's driver: a stream in order, others for readings and for work that no thread awaits, and code.

Calls that are given a stream or an event belong to the context of that, whichever is current in the thread; the few
others are made inside `Context.current`.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from ...driver.contract.values import Dims
from ...driver.policy.decision import Decision
from ...driver.policy.launch import LaunchCosts
from ...errors import DeviceLost, DeviceOutOfMemory, KernelCompileFailed, VyreError
from ...foundation.memo import keep
from ...runtime.device import Artifact, Code, Command, Device, Launch, Memory, Slot, Ticket
from ...runtime.exits import skip_exit_handlers
from .build import build
from .devices import NOT_READY, Context, Found, context_of, contexts, library
from .run.commands import FROM, LAUNCHING, TO, CudaBatch, Later, Loaded, Mark, Numbers
from .run.fast_calls import NOTHING, Address, Calls, Setting, address
from .run.graphs import Graphs
from .run.small_dispatch import COPY, CudaSmallDispatch
from .run.staging import DIRECT_BYTES, Crew, Pinned, Staging, StopWords, address_of, copy

SPIN_S = 0.002
"""How long a wait looks again and again before it begins to sleep; most launches are over by then."""
_SLEEP_S = 0.0002
_GLANCE_S = 0.00002
_LEFT_S = 5.0
"""How long a new device waits for work that was left behind on the one before."""
BESIDE = 4
"""Streams for work that no thread waits for right away."""
POOLED_BYTES = 1 << 30
"""Memory that the driver's pool keeps unused."""
_NON_BLOCKING = 1
_WORD_BYTES = 16
MOST_DIRECT = 256
"""Places of pinned memory that are remembered: to ask the driver costs as much as a small copy."""
_HOST_MEMORY = 1
"""CU_MEMORYTYPE_HOST."""
_TIMED, _UNTIMED = 0, 2
_give_way = getattr(os, "sched_yield", lambda: time.sleep(0))


class Place(int):
    """The address of memory, which is freed when the last reference to this is gone."""

    device: CudaDevice | None = None

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.device is not None and not is_ending():
            self.device.free(int(self))


class CudaDevice(Device):
    """Streams, memory and loaded code on one device. Launches run in order without a wait between them."""

    polls = True
    keeps_order = True
    launch_costs = LaunchCosts(launch_ns=3200, record_ns=14_000, replay_ns=1400)
    small_dispatch_costs = LaunchCosts(launch_ns=13_000, record_ns=34_000, replay_ns=8700)
    """Measured on an H200 through cuda.bindings, with 4 KiB from and to the host. Of `record_ns`, 9 and 20 us are the
    driver's, for graphs of one and of three kernels; the rest is an estimate of what is made around them."""
    COUNTS = ("graphs_made", "graphs_changed", "graphs_launched")

    def __init__(self, found: Found) -> None:
        self.found = found
        self.cu = cu = library()
        self.context = context = context_of(found.index)
        self.most_groups = found.most_groups
        self.memory_bytes = self.most_bytes = found.memory_bytes
        self.lock = threading.RLock()
        """Held while a command is enqueued, so that none comes after the memory that it needs was freed."""
        self.ending = threading.RLock()
        """Held while work is stopped or its end is dealt with. A thread that enqueues may have to wait for room in the
        queue until then, so this is another lock."""
        self.closed = False
        self._marks: dict[int, list[tuple[Any, Address]]] = {_TIMED: [], _UNTIMED: []}
        self._held: deque[tuple[Mark, Sequence[Callable[[], None]]]] = deque()
        self._live: set[int] = set()
        self._retired: list[Any] = []
        self._last: list[Mark] = []
        self._turn = 0
        self._direct: dict[tuple[int, int], None] = {}
        self.calls = Calls(cu, context)
        self.graphs = Graphs()
        self._arrived: dict[int, int] = {}
        self._copier: Loaded | None = None
        self._gone: list[bool] = []
        _await_left(context)
        with context.current():
            self.stream, self.readings, self.memory, *self.beside = (
                context.ok(cu.cuStreamCreate(_NON_BLOCKING), "opening the device") for _ in range(3 + BESIDE)
            )
            self._pool = self._new_pool()
        self.staging = Staging(context)
        self.stops = StopWords(self.staging)
        streams = [self.stream, self.readings, self.memory, *self.beside]
        weakref.finalize(
            self, _clear_away, cu, context, streams, self._pool, self._marks, self._retired, self._last, self._live,
            self._gone,
        ).atexit = False  # fmt: skip
        _devices.add(self)

    def _new_pool(self) -> Any:
        cu, ok = self.cu, self.context.ok
        props = cu.CUmemPoolProps()
        props.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        props.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        props.location.id = self.found.index
        pool = ok(cu.cuMemPoolCreate(props), "making a pool of memory")
        kinds = cu.CUmemPool_attribute
        for kind, value in (
            (kinds.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, cu.cuuint64_t(POOLED_BYTES)),
            # an allocation is used by all streams, hence it must not depend on one of them
            (kinds.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0),
        ):
            ok(cu.cuMemPoolSetAttribute(pool, kind, value), "making a pool of memory")
        return pool

    # -- the interface

    def allocate(self, nbytes: int) -> Memory:
        try:
            return self._allocated(nbytes)
        except DeviceOutOfMemory:
            self.wait(self.mark(self.stream), _LEFT_S)  # released memory is free when the work before has ended
            self.context.ok(self.cu.cuMemPoolTrimTo(self._pool, 0), "allocating memory")
        return self._allocated(nbytes)

    def _allocated(self, nbytes: int) -> Place:
        cu, ok = self.cu, self.context.ok
        found = Place(ok(cu.cuMemAllocFromPoolAsync(nbytes, self._pool, self.memory), "allocating memory"))
        found.device = self
        self._live.add(int(found))
        ok(cu.cuStreamSynchronize(self.memory), "allocating memory")  # on which there is nothing else
        return found

    def release(self, memory: Memory) -> None:
        """It is freed with its last reference, behind what was launched by then: a thread may still record work over
        it, and a kernel that writes to freed memory ends all work of the process."""

    def free(self, address: int) -> None:
        if self.context.lost or self.gone:
            return  # before the lock, which in a forked process no thread may ever release
        with self.lock:
            if address in self._live:
                self._live.remove(address)
                self.cu.cuMemFreeAsync(address, self.stream)

    def load(self, built: Artifact) -> Loaded:
        if not built.image:
            raise KernelCompileFailed("the kernel was not compiled", fix="compile the program again")
        with self.context.current():
            self._unload()
            return Loaded(self, built)

    def decisions(self, code: Code) -> Sequence[Decision]:
        assert isinstance(code, Loaded)
        return code.decisions

    def batch(self, *, timed: bool = False, ahead: bool = False, seconds: float | None = None) -> CudaBatch:
        return CudaBatch(self, timed, ahead, seconds)

    def ready(self, code: Code, memories: Sequence[Memory], lengths: Sequence[int], grid: Dims) -> Callable[[], Ticket]:
        assert isinstance(code, Loaded)
        if code.whole:
            return super().ready(code, memories, lengths, grid)
        numbers = Numbers(code)
        numbers.set(memories, lengths, (0, 0, 0), None, code.last(grid))
        setting = Setting(code.blocks(grid), code.block, code.shared_bytes, self.stream)
        later = Later(self, (code, numbers, setting, memories))
        launch, failed = self.calls.launch, self.context.failed
        how, function, given = setting.address, address(code.function), address(numbers.address)

        def plain() -> Ticket:
            result = launch(how, function, given, NOTHING)
            if result:
                raise failed(result, LAUNCHING)
            later.ticket = None
            return later

        return self.graphs.sequence(self, [Launch(code, memories, lengths, (0, 0, 0), grid)], plain)

    def sequence(
        self, commands: Sequence[Command], after: Sequence[Sequence[int]] | None = None
    ) -> Callable[[], Ticket]:
        codes = (command.code for command in commands if isinstance(command, Launch))
        if any(code.polls or code.whole for code in codes):
            return super().sequence(commands)
        return self.graphs.sequence(self, commands, after=after)

    def small_dispatch(
        self, code: Code, slots: Sequence[Slot], lengths: Sequence[int], launches: Sequence[tuple[Dims, Dims]]
    ) -> CudaSmallDispatch:
        assert isinstance(code, Loaded)
        return CudaSmallDispatch(self, code, slots, lengths, launches)

    @property
    def gone(self) -> bool:
        """Whether its last reference is gone, and with it streams and memory."""
        return bool(self._gone)

    @property
    def copier(self) -> Loaded:
        """Copies words, of its own memory and of pinned memory of the host."""
        found = self._copier
        if found is None:
            found = self.load(_built_copier(self.found.arch))  # which may wait for what runs, so nothing is locked
            with self.lock:
                self.require_open("loading a kernel")
                self._copier = found
        return found

    def most_together(self, code: Code) -> int:
        assert isinstance(code, Loaded)
        return code.most_together

    def arrived(self, stream: Any) -> int:
        """A word that is zero for what comes next in a stream. The lock is held until that is there."""
        word = self._arrived.get(int(stream))
        if word is None:
            word = self._arrived[int(stream)] = self._allocated(_WORD_BYTES)
        self.do(LAUNCHING, self.cu.cuMemsetD32Async, word, 0, 1, stream)
        return int(word)

    def finish(self) -> None:
        query, stream = self.calls.query_stream, address(self.stream)

        def ended() -> bool:
            result = query(stream)
            if result and result != NOT_READY:
                raise self.context.failed(result, "running a kernel")
            return not result

        self._look(ended, None)
        self.prune()

    def counts(self) -> dict[str, int]:
        graphs = self.graphs
        return dict(zip(self.COUNTS, (graphs.made, graphs.changed, graphs.launched), strict=True))

    def lost(self) -> bool:
        return self.closed or self.context.lost

    def close(self) -> None:
        """Memory is freed behind the work that still runs; the rest goes with the last reference to the device."""
        with self.graphs.lock, self.lock:  # in between, a graph would be launched over memory that was freed
            if self.closed:
                return
            self.closed, self._copier = True, None
            self.graphs.close()
            if self.context.lost:
                return  # and all that was in it
            for stream in self.beside:
                ended = self.mark(stream)
                self.cu.cuStreamWaitEvent(self.stream, ended.event, 0)
            last = self.mark(self.stream)
            self._last.append(last)
            if not last.ended():
                self.context.unended = last
            while self._live:
                self.cu.cuMemFreeAsync(self._live.pop(), self.stream)
        self._arrived.clear()
        self.staging.close()

    def do(self, doing: str, call: Callable[..., Any], *arguments: Any) -> None:
        """A command, if the device is open."""
        with self.lock:
            self.require_open(doing)
            (code,) = call(*arguments)
        if code:
            raise self.context.failed(int(code), doing)

    def require_open(self, doing: str) -> None:
        if self.closed:
            raise DeviceLost(
                f"the device was closed while {doing}",
                fix="compile, allocate and upload again, after acquiring the backend again if it was shut down",
            )

    def next_beside(self) -> Any:
        with self.lock:
            self._turn = (self._turn + 1) % BESIDE
            return self.beside[self._turn]

    # -- code that no pipeline needs any longer

    def retire(self, module: Any) -> None:
        self._retired.append(module)

    def _unload(self) -> None:
        """Unload it, if nothing runs: the driver would wait for running work."""
        if self._retired and not self.is_busy():
            while self._retired:
                self.cu.cuModuleUnload(self._retired.pop())

    # -- waiting

    def is_busy(self) -> bool:
        return any(self.cu.cuStreamQuery(s)[0] for s in (self.stream, *self.beside))

    def mark(self, stream: Any, *, timed: bool = False) -> Mark:
        """A point in a stream that can be waited for."""
        kind = _TIMED if timed else _UNTIMED
        try:
            event = self._marks[kind].pop()
        except IndexError:
            with self.context.current():
                made = self.context.ok(self.cu.cuEventCreate(kind), "making an event")
            event = made, address(made)
        found = Mark(self, event, self._marks[kind])
        found.put(address(stream))
        return found

    def wait(self, mark: Mark, seconds: float | None) -> bool:
        """Whether a point was reached within this time."""
        return self._look(mark.ended, seconds)

    def _look(self, ended: Callable[[], bool], seconds: float | None) -> bool:
        """Look again and again, instead of blocking, so that signals are handled."""
        if ended():
            return True
        begun = time.monotonic()
        until = None if seconds is None else begun + seconds
        spun = False
        while True:
            now = time.monotonic()
            if until is not None and now >= until:
                return False
            spun = spun or now - begun > SPIN_S
            if spun:
                time.sleep(_SLEEP_S)
            else:
                _give_way()
            if ended():
                return True

    def hold(self, mark: Mark, ends: Sequence[Callable[[], None]]) -> None:
        """Have these called some time after a point was reached."""
        self._held.append((mark, ends))

    def prune(self, spared: int = 0) -> None:
        """Call those whose time has come, except for so many of the last."""
        while len(self._held) > spared:
            with self.ending:
                if not self._held or not self._held[0][0].ended():
                    return
                _, ends = self._held.popleft()
            for end in ends:
                end()

    # -- large copies

    def upload(self, stream: Any, target: int, data: memoryview, used: list[Pinned]) -> None:
        """Enqueue copies of large data. `used` gets what they are made from, until they have been."""
        source, send = address_of(data), self.cu.cuMemcpyHtoDAsync

        def work(crew: Crew) -> None:
            places = deque[tuple[Pinned, Mark | None]]()
            for at, nbytes in crew.pieces():
                if len(places) == 2:  # one is sent while the other is filled
                    pinned, sent = places.popleft()
                else:
                    pinned, sent = self.staging.take(crew.piece_bytes), None
                    used.append(pinned)
                while sent is not None and not sent.ended():
                    if crew.stopped:
                        return
                    time.sleep(_GLANCE_S)
                copy(pinned.address, source + at, nbytes)
                self.do(TO, send, target + at, pinned.address, nbytes, stream)
                places.append((pinned, self.mark(stream)))

        Crew(data.nbytes).run(work)

    def is_pinned(self, address: int, nbytes: int) -> bool:
        """Whether the device reaches this memory of the host, whichever library pinned it."""
        ask, kinds = self.cu.cuPointerGetAttribute, self.cu.CUpointer_attribute
        with self.context.current():
            code, kind = ask(kinds.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
            if code or int(kind) != _HOST_MEMORY:
                return False
            code, start = ask(kinds.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address)
            if code:
                return False
            code, size = ask(kinds.CU_POINTER_ATTRIBUTE_RANGE_SIZE, address)
        return not code and address + nbytes <= int(start) + int(size)

    def goes_direct(self, address: int, nbytes: int) -> bool:
        """Whether a copy from or to this memory needs none of ours in between: it is pinned, or was lately. (Once
        memory is unpinned, the driver makes a copy itself.)"""
        if nbytes < DIRECT_BYTES:
            return False
        key = address, nbytes
        if key in self._direct:
            return True
        if not self.is_pinned(address, nbytes):
            return False
        keep(self._direct, key, None, MOST_DIRECT)
        return True

    def download(self, source: int, target: memoryview) -> None:
        """Copy large data, which is there by now."""
        place, cu = address_of(target), self.cu
        if self.goes_direct(place, target.nbytes):
            self.do(FROM, cu.cuMemcpyDtoHAsync, place, source, target.nbytes, self.readings)
            came = self.mark(self.readings)
            try:
                self.wait(came, None)
            except BaseException:  # such as Ctrl-C: the device may not write to the caller's memory after this
                cu.cuEventSynchronize(came.event)
                raise
            return

        def work(crew: Crew) -> None:
            pinned = self.staging.take(crew.piece_bytes)
            for at, nbytes in crew.pieces():
                self.do(FROM, cu.cuMemcpyDtoHAsync, pinned.address, source + at, nbytes, self.readings)
                came = self.mark(self.readings)
                self.context.ok(cu.cuEventSynchronize(came.event), FROM)
                copy(place + at, pinned.address, nbytes)
            self.staging.give(pinned)

        Crew(target.nbytes).run(work)


@lru_cache(maxsize=4)
def _built_copier(arch: str) -> Artifact:
    return build(COPY, arch)


def _await_left(context: Context) -> None:
    """Wait for work that was left behind: nothing can be loaded while it runs."""
    left = context.unended
    if left is None:
        return
    end = time.monotonic() + _LEFT_S
    while not left.ended():
        if time.monotonic() > end:
            raise DeviceLost(
                "work that no caller waits for any longer still runs on the device",
                fix="wait until it ends and try again, or restart the process",
                device=context.index,
            )
        time.sleep(_SLEEP_S)
    context.unended = None


_devices: weakref.WeakSet[CudaDevice] = weakref.WeakSet()


@atexit.register
def _leave() -> None:
    """A process that ends does not wait for its devices; the driver's exit functions may."""
    with suppress(VyreError):
        left = [context.unended for context in contexts() if not context.lost and context.unended is not None]
        working = [device for device in list(_devices) if not device.context.lost and device.is_busy()]
        if working or not all(mark.ended() for mark in left):
            skip_exit_handlers()


def _clear_away(
    cu: Any,
    context: Context,
    streams: list[Any],
    pool: Any,
    marks: dict[int, list[tuple[Any, Address]]],
    modules: list[Any],
    last: list[Mark],
    live: set[int],
    gone: list[bool],
) -> None:
    """The last reference to the device is gone. Work that still runs is left alone: the driver would wait for it.

    Where the collector finds it together with its users, their finalizers run after this.
    """
    with suppress(VyreError):
        if context.lost or not all(mark.ended() for mark in last):
            return
        gone.append(True)
        with context.current():
            for module in modules:
                cu.cuModuleUnload(module)
            while live:
                cu.cuMemFreeAsync(live.pop(), streams[0])
            cu.cuMemPoolDestroy(pool)
            for stream in streams:
                cu.cuStreamDestroy(stream)
            for events in marks.values():
                while events:
                    cu.cuEventDestroy(events.pop()[0])
