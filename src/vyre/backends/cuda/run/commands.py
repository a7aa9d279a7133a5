"""Work for a device: code with its parameters, commands in a stream, and what becomes of them."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from math import prod
from struct import Struct
from typing import TYPE_CHECKING, Any

from ....driver.contract.values import Dims
from ....driver.pipeline.deadline import expired
from ....driver.policy.decision import Decision
from ....driver.policy.geometry import choose_threads
from ....foundation.integers import ceil_div
from ....lower.c.emitter import ENTRY
from ....runtime.device import Artifact, Batch, Code, Memory, Ticket
from ..devices import NOT_READY
from ..emit import coarsen
from ..emit.block_size import active_blocks
from .fast_calls import Address
from .staging import DIRECT_BYTES, LARGE_BYTES, Pinned, address_of, new_bytes

if TYPE_CHECKING:
    from ..device import CudaDevice

STAGED_BYTES = 256 << 10
"""Readings up to this size come to the host together with the work; the thread that takes larger ones fetches them."""
STAGED_AHEAD_BYTES = 8 << 20
"""The same where no thread waits right away."""
SPARED = 64
"""Batches whose staging memory comes back only when a thread waits: to ask costs more than the memory is worth."""
TO, FROM = "copying to the device", "copying from the device"
LAUNCHING = "launching a kernel"


class Mark:
    """A point in a stream. Its event comes back to a pool."""

    __slots__ = ("_address", "_calls", "_context", "_ended", "_home", "event")

    def __init__(self, device: CudaDevice, event: tuple[Any, Address], home: list[tuple[Any, Address]]) -> None:
        self.event, self._address = event
        self._home, self._context, self._calls = home, device.context, device.calls
        self._ended = False

    def put(self, stream: Address) -> None:
        """At the end of what the stream has now."""
        self._ended = False
        code = self._calls.record(self._address, stream)
        if code:
            raise self._context.failed(code, "submitting work")

    def ended(self) -> bool:
        if not self._ended:
            code = self._calls.query_event(self._address)
            if code and code != NOT_READY:
                raise self._context.failed(code, "running a kernel")
            self._ended = not code
        return self._ended

    def __del__(self) -> None:
        self._home.append((self.event, self._address))


class Loaded:
    """A kernel that was loaded, and numbers for its launches, which the driver copies."""

    def __init__(self, device: CudaDevice, built: Artifact) -> None:
        cu, ok, facts = device.cu, device.context.ok, built.facts
        x, y, z = facts.extra["block"]
        self.block: Dims = (x, y, z)
        self._lanes = facts.workgroup[0]
        self.buffers: int = facts.extra["buffers"]
        self.shared_bytes: int = facts.extra.get("shared", 0)
        self.traps, self.polls, self.whole = bool(facts.traps), facts.polls, facts.whole
        self._device = device
        self.module = ok(cu.cuModuleLoadData(built.image), "loading a kernel")
        self.function = ok(cu.cuModuleGetFunction(self.module, ENTRY.encode()), "loading a kernel")
        if self.shared_bytes:
            kind = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            ok(cu.cuFuncSetAttribute(self.function, kind, self.shared_bytes), "loading a kernel")
        joined = facts.extra.get("joined", False)
        self.decisions: tuple[Decision, ...] = ()
        if joined:
            decided = choose_threads(partial(active_blocks, cu, ok, self.function, 0))
            self.block = int(decided.numbers["threads"]), 1, 1
            self.decisions = (decided,)
        self._shape = coarsen.KernelText(built.source, self.block, facts.extra["each"], joined)
        self.takes_last = self._shape.takes_last
        self.numbers = Numbers(self)

    def blocks(self, grid: Dims) -> Dims:
        """For a grid of workgroups."""
        return self._shape.blocks(grid[0], self._lanes), grid[1], grid[2]

    @cached_property
    def most_together(self) -> int:
        """Blocks that run at the same time."""
        device = self._device
        with device.context.current():
            each = active_blocks(device.cu, device.context.ok, self.function, self.shared_bytes, prod(self.block))
        return each * device.found.multiprocessors

    def last(self, grid: Dims) -> tuple[int, ...]:
        """The extra argument of a kernel whose blocks are not workgroups."""
        return (grid[0] * self._lanes - 1,) if self.takes_last else ()

    def __del__(self) -> None:
        module = getattr(self, "module", None)
        if module is not None:
            self._device.retire(module)


class Numbers:
    """The parameters of a kernel, in memory that the driver reads them from."""

    def __init__(self, code: Loaded) -> None:
        count, more = code.buffers, code.traps + code.polls + code.whole
        pointers, words = count + more, count + 3 + code.takes_last
        self._layout = Struct(f"={pointers}Q{words}I")
        self._bytes = (ctypes.c_uint64 * (pointers + ceil_div(words, 2)))()
        start = ctypes.addressof(self._bytes)
        wide = [start + 8 * k for k in range(pointers)]
        narrow = [start + 8 * pointers + 4 * k for k in range(words)]
        at = [*wide[:count], *narrow[: count + 3], *wide[count:], *narrow[count + 3 :]]  # as the kernel has them
        self._order = (ctypes.c_void_p * len(at))(*at)
        self.address = ctypes.addressof(self._order)

    def set(
        self,
        memories: Sequence[Memory],
        lengths: Sequence[int],
        base: Dims,
        stop: int | None,
        last: Sequence[int],
        arrived: int | None = None,
    ) -> None:
        """`memories` are those of the buffers, and one for traps if the kernel has some."""
        more = (word for word in (stop, arrived) if word is not None)
        self._layout.pack_into(self._bytes, 0, *memories, *more, *lengths, *base, *last)

    def packed(self) -> bytes:
        """What was set."""
        return bytes(self._bytes)


class CudaBatch(Batch):
    """Commands go to a stream as they come: it keeps their order, and those of other threads do not matter."""

    def __init__(self, device: CudaDevice, timed: bool, ahead: bool, seconds: float | None) -> None:
        self._device, self._timed, self._ahead = device, timed, ahead
        self._until = None if seconds is None else time.monotonic() + seconds
        self._cu, self._stream = device.cu, device.next_beside() if ahead else device.stream
        self._launches: list[tuple[Mark, Mark]] = []
        self._stop: Any = None
        self._reads: list[_Read] = []
        self._ends: list[Callable[[], None]] = []
        self._after: Mark | None = None
        """The point after a launch that may have to be stopped, while nothing comes behind it."""

    def write(self, memory: Memory, offset: int, data: memoryview) -> None:
        device, nbytes, staging = self._device, data.nbytes, self._device.staging
        self._after = None
        used: list[Pinned] = []
        try:
            if nbytes >= LARGE_BYTES:
                device.upload(self._stream, memory + offset, data, used)
            elif nbytes:
                pinned = staging.take(nbytes)
                used.append(pinned)
                pinned.view[:nbytes] = data
                device.do(TO, self._cu.cuMemcpyHtoDAsync, memory + offset, pinned.address, nbytes, self._stream)
        finally:
            self._ends += [partial(staging.give, pinned) for pinned in used]

    def lend(self, memory: Memory, offset: int, data: memoryview) -> None:
        address = address_of(data) if data.nbytes >= DIRECT_BYTES else 0
        if self._device.goes_direct(address, data.nbytes):
            device, self._after = self._device, None
            device.do(TO, self._cu.cuMemcpyHtoDAsync, memory + offset, address, data.nbytes, self._stream)
        else:
            self.write(memory, offset, data)

    def zero(self, memory: Memory, offset: int, nbytes: int) -> None:
        start, fill, count = memory + offset, self._cu.cuMemsetD32Async, nbytes // 4
        if start % 4:  # of another library's memory
            fill, count = self._cu.cuMemsetD8Async, nbytes
        self._after = None
        self._device.do("filling memory", fill, start, 0, count, self._stream)

    def copy(self, source: Memory, source_offset: int, target: Memory, target_offset: int, nbytes: int) -> None:
        self._after = None
        self._device.do(
            "copying on the device",
            self._cu.cuMemcpyDtoDAsync,
            target + target_offset,
            source + source_offset,
            nbytes,
            self._stream,
        )

    def launch(self, code: Code, memories: Sequence[Memory], lengths: Sequence[int], base: Dims, grid: Dims) -> None:
        assert isinstance(code, Loaded)
        device, stream, numbers = self._device, self._stream, code.numbers
        self._await_turn()
        stop = None
        if code.polls:
            if self._stop is None:
                self._stop = device.stops.take()
                self._ends.append(partial(device.stops.give, self._stop))
            stop = ctypes.addressof(self._stop)
        begun = device.mark(stream, timed=True) if self._timed else None
        with device.graphs.lock if code.polls else nullcontext(), device.lock:
            arrived = device.arrived(stream) if code.whole else None
            numbers.set(memories, lengths, base, stop, code.last(grid), arrived)
            sizes = *code.blocks(grid), *code.block, code.shared_bytes
            if arrived is None:
                how = self._cu.cuLaunchKernel
                device.do(LAUNCHING, how, code.function, *sizes, stream, numbers.address, 0)
            else:
                how = self._cu.cuLaunchCooperativeKernel
                device.do(LAUNCHING, how, code.function, *sizes, stream, numbers.address)
            # at once: other threads may fill the queue, and then only a thread that waits for this can make room again
            self._after = device.mark(stream) if code.polls else None
        if begun is not None:
            self._launches.append((begun, device.mark(stream, timed=True)))

    def _await_turn(self) -> None:
        """Code with a deadline can be stopped only once it runs, so it must not stand behind the work of others."""
        until, self._until = self._until, None
        if until is not None:
            before = self._device.mark(self._stream)
            if not self._device.wait(before, max(until - time.monotonic(), 0)):
                raise expired()

    def read(self, memory: Memory, offset: int, nbytes: int) -> None:
        found = _Read(memory + offset, nbytes)
        self._after = None
        self._reads.append(found)
        if nbytes and nbytes <= (STAGED_AHEAD_BYTES if self._ahead else STAGED_BYTES):
            found.pinned = pinned = self._device.staging.take(nbytes)
            self._device.do(FROM, self._cu.cuMemcpyDtoHAsync, pinned.address, found.place, nbytes, self._stream)

    def submit(self) -> Ticket:
        mark = self._after or self._device.mark(self._stream)
        if self._ends:
            self._device.hold(mark, self._ends)
            self._device.prune(SPARED)  # it may be that no thread ever waits
        return Sent(self._device, mark, self._reads, self._launches if self._timed else None, self._stop)


class _Read:
    """Bytes to read, and where they are on the host when the work is done, if they are."""

    __slots__ = ("nbytes", "pinned", "place")

    def __init__(self, place: int, nbytes: int) -> None:
        self.place, self.nbytes = place, nbytes
        self.pinned: Pinned | None = None


class Sent(Ticket):
    __slots__ = ("_device", "_launches", "_mark", "_reads", "_stop")

    def __init__(
        self,
        device: CudaDevice,
        mark: Mark,
        reads: Sequence[_Read] = (),
        launches: Sequence[tuple[Mark, Mark]] | None = None,
        stop: Any = None,
    ) -> None:
        self._device, self._mark, self._reads, self._launches, self._stop = device, mark, reads, launches, stop

    def __del__(self) -> None:
        """The caller did not take these; the copy may still be on its way."""
        left = [partial(self._device.staging.give, read.pinned) for read in self._reads if read.pinned is not None]
        if left:
            self._device.hold(self._mark, left)

    def done(self) -> bool:
        return self._mark.ended()

    def wait(self, seconds: float | None) -> bool:
        ended = self._device.wait(self._mark, seconds)
        if ended:
            self._device.prune()
        return ended

    def take(self, into: Sequence[memoryview | None]) -> list[Any]:
        if not self._mark.ended():
            self.wait(None)
        return [self._taken(read, target) for read, target in zip(self._reads, into, strict=True)]

    def _taken(self, read: _Read, target: memoryview | None) -> Any:
        device, nbytes, pinned = self._device, read.nbytes, read.pinned
        if pinned is not None:
            found: Any = target
            if target is None:
                found = bytearray(pinned.view[:nbytes])
            else:
                target[:] = pinned.view[:nbytes]
            read.pinned = None
            device.staging.give(pinned)
            return found
        if target is None:
            target = new_bytes(nbytes)
        if nbytes:
            device.download(read.place, target)
        return target

    def stop(self) -> None:
        with self._device.ending:  # so that the word does not pass to other work meanwhile
            if self._stop is not None and not self._mark.ended():
                self._stop.value = 1

    @property
    def device_ns(self) -> int | None:
        if self._launches is None:
            return None
        device = self._device
        times = []
        with device.context.current():
            for begun, ended in self._launches:
                found = device.cu.cuEventElapsedTime(begun.event, ended.event)
                times.append(device.context.ok(found, "asking how long a kernel took"))
        return int(sum(times) * 1e6)


class Later(Ticket):
    """A launch that was ready; only a thread that waits pays for a point to wait for, which is at its end or later.

    Launches of the same kind share it, each beginning anew, so one may wait for the end of the next. It keeps what they
    are made from.
    """

    __slots__ = ("__weakref__", "_device", "_kept", "ticket")

    def __init__(self, device: CudaDevice, kept: Any) -> None:
        self._device, self._kept = device, kept
        self.ticket: Sent | None = None

    def _marked(self) -> Sent:
        ticket = self.ticket
        if ticket is None:
            self.ticket = ticket = Sent(self._device, self._device.mark(self._device.stream))
        return ticket

    def done(self) -> bool:
        return self._marked().done()

    def wait(self, seconds: float | None) -> bool:
        return self._marked().wait(seconds)

    def take(self, into: Sequence[memoryview | None]) -> list[Any]:
        return self._marked().take(into)
