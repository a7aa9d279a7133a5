"""Commands on their way to an OpenCL device: loaded kernels, batches of work, and what tells that it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import prod
from struct import pack
from typing import TYPE_CHECKING, Any

from ....driver.contract.values import Dims
from ....errors import KernelCompileFailed, UnsupportedFeature
from ....lower.c.emitter import ENTRY
from ....runtime.device import Artifact, Batch, Code, Memory, Ticket

if TYPE_CHECKING:
    from ..device import OpenCLDevice

_NO_LIMIT_NS = 1 << 62
_WORD_ZERO = bytes(4)
_FILL = bytes(16)
"""A fill with a longer pattern is up to sixty times as fast."""


class Loaded:
    """A program that was built, and one kernel of it with the numbers it was last given."""

    def __init__(self, device: OpenCLDevice, built: Artifact, program: Any = None) -> None:
        self.device, self.built = device, built
        facts = built.facts
        self.workgroup = facts.workgroup
        self.buffers: int = facts.extra["buffers"]
        self.traps, self.polls = bool(facts.traps), facts.polls
        self.clock: bool = facts.extra["clock"]
        self.program = _built(device, built) if program is None else program
        self.kernel = device.cl.Kernel(self.program, ENTRY)
        self._numbers: tuple[int, ...] = ()
        if program is None:
            self._require_fit()

    def again(self) -> Loaded:
        """The same program with a kernel of its own."""
        return Loaded(self.device, self.built, self.program)

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

    def aim(self, memories: Sequence[Memory], lengths: Sequence[int], base: Dims, stop: Stop | None) -> None:
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


def _built(device: OpenCLDevice, built: Artifact) -> Any:
    """Build without the binding's own cache and warnings: ours is keyed by more, and a log does not mean failure."""
    cl, context, target = device.cl, device.context, device.target
    make = cl._cl._Program
    program: Any = None
    options = " ".join(built.facts.extra["options"]).encode()
    try:
        program = make(context, [target], [built.image]) if built.image else make(context, built.source)
        program._build(options, [target])
    except cl.Error as e:
        if device.is_to_blame(e.code):
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


class Stop:
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


class OpenCLBatch(Batch):
    """Commands are enqueued as they come: the queue keeps their order, whatever other threads enqueue."""

    def __init__(self, device: OpenCLDevice, timed: bool, queue: int, seconds: float | None) -> None:
        """`queue` is the number of one; all but the first are for work that is ahead."""
        self._device, self._at, self._queue, self._seconds = device, queue, device.queues[queue], seconds
        self._work = Sent(device, timed)

    def write(self, memory: Memory, offset: int, data: memoryview) -> None:
        self.lend(memory, offset, memoryview(bytes(data)))

    def lend(self, memory: Memory, offset: int, data: memoryview) -> None:
        device, work = self._device, self._work
        try:
            work.last = device.cl.enqueue_copy(self._queue, memory, data, dst_offset=offset, is_blocking=False)
        except device.cl.Error as e:
            raise device.failure(e, "copying to the device") from e
        work.kept.append(work.last)  # which holds the bytes, and would wait for the copy when it is dropped

    def zero(self, memory: Memory, offset: int, nbytes: int) -> None:
        with self._device.errors("filling memory"):
            if nbytes:
                self._work.last = enqueue_zero(self._device.cl, self._queue, memory, offset, nbytes)

    def copy(self, source: Memory, source_offset: int, target: Memory, target_offset: int, nbytes: int) -> None:
        device = self._device
        with device.errors("copying on the device"):
            self._work.last = device.cl.enqueue_copy(
                self._queue, target, source, byte_count=nbytes, src_offset=source_offset, dst_offset=target_offset
            )

    def launch(self, code: Code, memories: Sequence[Memory], lengths: Sequence[int], base: Dims, grid: Dims) -> None:
        assert isinstance(code, Loaded)
        device, work = self._device, self._work
        if code.polls and work.word is None:
            work.word = Stop(device, self._seconds, clock=code.clock)
        with device.lock:
            try:
                code.aim(memories, lengths, base, work.word)
                work.last = device.cl.enqueue_nd_range_kernel(
                    self._queue, code.kernel, grid, code.workgroup, g_times_l=True
                )
            except device.cl.Error as e:
                code._numbers = ()
                raise device.failure(e, "launching a kernel") from e
        if code.polls:
            work.kept.append(work.word)
        if work.launches is not None:
            work.launches.append(work.last)

    def read(self, memory: Memory, offset: int, nbytes: int) -> None:
        device, work, data = self._device, self._work, None
        if self._at:
            data = bytearray(nbytes)
            with device.errors("copying from the device"):
                work.last = device.cl.enqueue_copy(self._queue, data, memory, src_offset=offset, is_blocking=False)
            work.kept.append(work.last)
        work.reads.append((memory, offset, nbytes, data))

    def submit(self) -> Ticket:
        device, work = self._device, self._work
        try:
            if work.last is None:
                work.last = device.cl.enqueue_marker(self._queue)
            self._queue.flush()
        except device.cl.Error as e:
            raise device.failure(e, "submitting work") from e
        device.latest[self._at] = work.last
        return work


def enqueue_zero(
    cl: Any, queue: Any, memory: Memory, offset: int, nbytes: int, needed: Sequence[Any] | None = None
) -> Any:
    """Fill some bytes, a multiple of four, behind some events; the event of the last command for it."""
    many = nbytes - nbytes % 16 if offset % 16 == 0 else 0
    event = None
    if many:
        event = cl.enqueue_fill_buffer(queue, memory, _FILL, offset, many, wait_for=needed)
    if many < nbytes:
        event = cl.enqueue_fill_buffer(queue, memory, _WORD_ZERO, offset + many, nbytes - many, wait_for=needed)
    return event


class Launched(Ticket):
    """Commands on their way, of which `last` is the event of the last one."""

    __slots__ = ("_device", "_ended", "last")

    def __init__(self, device: OpenCLDevice, last: Any) -> None:
        self._device, self.last, self._ended = device, last, False

    def done(self) -> bool:
        return self.wait(0)

    def wait(self, seconds: float | None) -> bool:
        if not self._ended:
            self._ended = self._device.wait(self.last, seconds)
        return self._ended

    def take(self, into: Sequence[memoryview | None]) -> list[Any]:
        self.wait(None)
        return []


class Sent(Launched):
    """The commands of a batch. What they use on the host is `kept` until they have ended."""

    __slots__ = ("kept", "launches", "reads", "word")

    def __init__(self, device: OpenCLDevice, timed: bool) -> None:
        self._device, self.last, self._ended = device, None, False
        self.kept: list[Any] = []
        self.launches: list[Any] | None = [] if timed else None
        self.reads: list[tuple[Memory, int, int, bytearray | None]] = []
        """Memory, offset, bytes, and where they lie when the work is done, if it is ahead."""
        self.word: Stop | None = None

    def __del__(self) -> None:
        if self.kept and not self._ended:
            self._device.hold(self.last, self.kept)

    def take(self, into: Sequence[memoryview | None]) -> list[Any]:
        if not self._ended:
            self.wait(None)
        self.kept.clear()
        device = self._device
        events, results = [], []
        try:
            for (memory, offset, nbytes, data), target in zip(self.reads, into, strict=True):
                place: Any = (data or bytearray(nbytes)) if target is None else target
                if data is None:
                    copied = device.cl.enqueue_copy(
                        device.readings, place, memory, src_offset=offset, is_blocking=False
                    )
                    events.append(copied)
                elif target is not None:
                    target[:] = data
                results.append(place)
            if events:
                device.readings.flush()
        except device.cl.Error as e:
            raise device.failure(e, "copying from the device") from e
        if events:
            try:
                device.wait(events[-1], None)
            except BaseException:  # of a signal, say
                with suppress(device.cl.Error):
                    device.readings.finish()  # the caller's memory is not written later
                raise
        return results

    def stop(self) -> None:
        if self.word is not None:
            self.word.set()

    @property
    def device_ns(self) -> int | None:
        if self.launches is None:
            return None
        info = self._device.cl.profiling_info
        with self._device.errors("asking how long a kernel took"):
            return int(sum(e.get_profiling_info(info.END) - e.get_profiling_info(info.START) for e in self.launches))
