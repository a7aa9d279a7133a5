"""A device with memory of its own and a queue that keeps order: what a backend says of its target.

Everything else that such a backend does (planning, pooling, deadlines, residency, reading back) is the same for all of
them and stands in this package.
"""

from __future__ import annotations

import hashlib
import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeAlias

from ..driver.contract.values import U32_MAX, Dims
from ..driver.policy.decision import Decision
from ..driver.policy.launch import LaunchCosts
from ..errors import KernelCompileFailed
from ..lower.kernel_ir import Kernel
from ..lower.length_exprs import plain

Memory: TypeAlias = Any
"""A piece of device memory, as the target's library has it."""
Code: TypeAlias = Any
"""A kernel that the device has loaded."""


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """What a launch must know of its code; plain data, stored with it.

    `stored` are slots of buffers of which every element is stored, with the share of an invocation (see
    `lower.length_exprs`). `loop_bound` bounds the turns of all loops of one invocation (see `lower.loop_bounds`).
    `whole`: workgroups wait for each other, so that a launch is not cut. `counted`: no invocation waits for others, so
    that each runs to its end or its trap. `extra` is the backend's own. `decisions` were made when it was built.
    """

    workgroup: Dims
    traps: tuple[str, ...] = ()
    stored: dict[int, list[Any]] = field(default_factory=dict)
    loop_bound: list[Any] | None = None
    polls: bool = False
    whole: bool = False
    counted: bool = True
    extra: dict[str, Any] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()

    @classmethod
    def of(cls, kernel: Kernel, *decisions: Decision, loop_bound: list[Any] | None = None, **extra: Any) -> LaunchFacts:
        """Those that follow from the lowered program."""
        slots = {b.name: b.slot for b in kernel.buffers}
        stored = {slots[name]: plain(share) for name, share in kernel.stored.items()}
        return cls(
            kernel.workgroup, kernel.traps, stored, loop_bound, kernel.poll, kernel.whole, not kernel.meets, extra,
            decisions,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Artifact:
    """A program for a device: text that people can read, what the device loads, and facts for launching it."""

    source: str
    image: bytes
    facts: LaunchFacts

    def to_bytes(self) -> bytes:
        """All of it, for a process to come."""
        source = self.source.encode()
        head = json.dumps({"format": FORMAT, "source_bytes": len(source), **asdict(self.facts)}).encode()
        payload = _LENGTH.pack(len(head)) + head + source + self.image
        return _MAGIC + _digest(payload) + payload

    @classmethod
    def from_bytes(cls, payload: bytes) -> Artifact:
        try:
            magic, digest, payload = payload[:4], payload[4:20], payload[20:]
            if magic != _MAGIC or digest != _digest(payload):
                raise ValueError("other bytes than were stored")
            (length,) = _LENGTH.unpack_from(payload)
            at = _LENGTH.size + length
            found: dict[str, Any] = json.loads(payload[_LENGTH.size : at])
            if found.pop("format") != FORMAT:
                raise ValueError("another format")
            end = at + found.pop("source_bytes")
            x, y, z = found.pop("workgroup")
            stored = {int(slot): share for slot, share in found.pop("stored").items()}
            decisions = tuple(Decision(**decided) for decided in found.pop("decisions"))
            plain = {"workgroup": (x, y, z), "traps": tuple(found["traps"]), "stored": stored, "decisions": decisions}
            facts = LaunchFacts(**found | plain)
            return cls(payload[at:end].decode(), payload[end:], facts)
        except (struct.error, ValueError, KeyError, TypeError, AttributeError) as e:
            raise KernelCompileFailed("the stored code is damaged", fix="compile the program again") from e


class Launch(NamedTuple):
    """One launch of a sequence; see `Batch.launch`."""

    code: Code
    memories: Sequence[Memory]
    lengths: Sequence[int]
    base: Dims
    grid: Dims


class Zero(NamedTuple):
    """Memory that a sequence fills with zeros; see `Batch.zero`."""

    memory: Memory
    offset: int
    nbytes: int


Command: TypeAlias = Launch | Zero


class Slot(NamedTuple):
    """A buffer of a dispatch over host memory: whether the host fills it, or it begins as zeros, and whether it is read
    back."""

    nbytes: int
    filled: bool
    zero: bool
    read: bool


FORMAT = 4
_LENGTH = struct.Struct("<I")
_MAGIC = b"vdev"


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=16).digest()


class Ticket(ABC):
    """Work that was submitted. Its readings can be taken once it is done."""

    __slots__ = ()

    @abstractmethod
    def done(self) -> bool:
        """Whether it has ended; raises what went wrong on the device."""

    @abstractmethod
    def wait(self, seconds: float | None) -> bool:
        """Whether it has ended within this time. Signals are handled meanwhile."""

    @abstractmethod
    def take(self, into: Sequence[memoryview | None]) -> list[Any]:
        """What was read, in order, once; written to the given memory, or new where there is none. Waits."""

    def stop(self) -> None:  # noqa: B027 - code that does not poll cannot be asked
        """Ask code that polls to end early."""

    @property
    def device_ns(self) -> int | None:
        """How long the launches took, by the device's own clock; only for a batch that was to be timed."""
        return None


class SmallDispatch(ABC):
    """A small dispatch over host memory that can be repeated, each time when the one before has ended.

    `inputs` are the slots that are filled, in memory of the host that is written before `go`, and `outputs` those that
    are read, which hold the results when the ticket is done. The caller may drop it without waiting.
    """

    inputs: Sequence[memoryview]
    outputs: Sequence[memoryview]

    @abstractmethod
    def go(self) -> Ticket:
        """All of it, once."""


class Batch(ABC):
    """Work in order, filled by one thread and submitted as a whole. Nothing before it in the queue is overtaken."""

    @abstractmethod
    def write(self, memory: Memory, offset: int, data: memoryview) -> None:
        """Copy bytes to the device. The caller's are not looked at after this returns.

        Any length; see also `Device.writes_words`.
        """

    def lend(self, memory: Memory, offset: int, data: memoryview) -> None:
        """As `write`, of bytes that stay there and unchanged until the ticket is done."""
        self.write(memory, offset, data)

    @abstractmethod
    def zero(self, memory: Memory, offset: int, nbytes: int) -> None:
        """Fill with zeros; multiples of 4."""

    @abstractmethod
    def copy(self, source: Memory, source_offset: int, target: Memory, target_offset: int, nbytes: int) -> None:
        """Copy on the device; multiples of 4."""

    @abstractmethod
    def launch(self, code: Code, memories: Sequence[Memory], lengths: Sequence[int], base: Dims, grid: Dims) -> None:
        """Run code over buffers, by slot, with their lengths in elements.

        `grid` workgroups are run, whose ids count from `base`. A kernel with traps has one more memory at the end, for
        `trap_words`.
        """

    @abstractmethod
    def read(self, memory: Memory, offset: int, nbytes: int) -> None:
        """Read bytes back, as one more reading of the ticket. Any offset and length."""

    @abstractmethod
    def submit(self) -> Ticket:
        """Send it off."""


class Device(ABC):
    """A device in use: context, queue, loaded code. Recovery closes one and opens another."""

    most_groups: int | Dims = U32_MAX
    """Workgroups along one axis, or along each, of one launch; longer grids become several."""
    polls: bool = False
    """Whether code that polls can be stopped: it looks at a word that `Ticket.stop` sets, or at a clock."""
    memory_bytes: int = 0
    """All memory of the device; 0 where unknown."""
    most_bytes: int = 0
    """The most that one piece of memory may have; 0 where unknown."""
    writes_words: bool = False
    """Whether a write must begin at a multiple of 4, and may also change the bytes that fill its last word."""

    keeps_order: bool = False
    """Whether no thread needs to wait for a launch that was `ready`: work that any thread submits after it runs after
    it, unless its batch is ahead."""
    launch_costs: LaunchCosts = LaunchCosts()
    """Of a launch over resident memory, by `ready`; recorded and repeated as one by `ready` and `sequence`."""
    small_dispatch_costs: LaunchCosts = LaunchCosts()
    """Of a small dispatch over host memory, plain, and recorded by `small_dispatch`."""

    @abstractmethod
    def allocate(self, nbytes: int) -> Memory:
        """Memory for at least so many bytes, in multiples of 16, with any contents. Raises DeviceOutOfMemory."""

    @abstractmethod
    def release(self, memory: Memory) -> None:
        """Free it once the work that was submitted has ended."""

    @abstractmethod
    def load(self, built: Artifact) -> Code:
        """The code, from the image or, where that is empty, from the source. Raises KernelCompileFailed."""

    def decisions(self, code: Code) -> Sequence[Decision]:
        """What was decided when it was loaded."""
        return ()

    def image(self, code: Code) -> bytes:
        """What `load` takes instead of the source, in a process to come; empty where the source is as good."""
        return b""

    @abstractmethod
    def batch(self, *, timed: bool = False, ahead: bool = False, seconds: float | None = None) -> Batch:
        """New work. `seconds` is how long its polling code may run where that is told by a clock.

        `ahead`: its caller does not wait for it right away, and it is over memory of its own. Readings should then be
        on the host as soon as the work is done, and it may run beside other work; else a target that reads faster into
        the memory that `Ticket.take` gets may wait for that.
        """

    def ready(self, code: Code, memories: Sequence[Memory], lengths: Sequence[int], grid: Dims) -> Callable[[], Ticket]:
        """A launch from base 0 that can be repeated, from any thread: all preparation is done here."""

        def go() -> Ticket:
            batch = self.batch()
            batch.launch(code, memories, lengths, (0, 0, 0), grid)
            return batch.submit()

        return go

    def sequence(
        self, commands: Sequence[Command], after: Sequence[Sequence[int]] | None = None
    ) -> Callable[[], Ticket]:
        """Commands in order that can be repeated, from any thread, as one where the target can.

        `after`: a command needs to wait for these alone, by their places, and those that they wait for. A target may
        run others beside it.
        """

        def go() -> Ticket:
            batch = self.batch()
            for command in commands:
                if isinstance(command, Launch):
                    batch.launch(*command)
                else:
                    batch.zero(*command)
            return batch.submit()

        return go

    def small_dispatch(
        self, code: Code, slots: Sequence[Slot], lengths: Sequence[int], launches: Sequence[tuple[Dims, Dims]]
    ) -> SmallDispatch | None:
        """A dispatch over host memory as one, where that is faster: launches of (base, grid) over buffers by slot."""
        return None

    def most_together(self, code: Code) -> int:
        """Workgroups of code that is `LaunchFacts.whole` that run at the same time."""
        return 0

    def finish(self) -> None:
        """Wait for all that was submitted, except for batches that are ahead."""
        self.batch().submit().wait(None)

    def counts(self) -> dict[str, int]:
        """Figures that a target reports of its work, by name."""
        return {}

    @abstractmethod
    def lost(self) -> bool: ...

    @abstractmethod
    def close(self) -> None:
        """Release everything, without waiting for work that does not end."""
