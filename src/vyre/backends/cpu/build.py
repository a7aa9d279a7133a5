"""Program -> object code with the facts that its launches need; also as bytes that another process can load."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ...driver.policy.decision import Decision
from ...errors import KernelCompileFailed
from ...foundation.ir.program import Program
from ...lower.length_exprs import PlainPlane, Share, number
from .compile import compile_object
from .devices import Host, host
from .run.cost import Cost

if TYPE_CHECKING:
    from ...lower.kernel_ir import Kernel
    from .emit.kernel import Emitted

FORMAT = 7
_HEADER = struct.Struct("<4sI")
_MAGIC = b"vcpu"


@dataclass(frozen=True, slots=True)
class Switches:
    """How to compile. The bytes that programs produce are the same with each of them.

    `scalar` emits one lane after another. `soft_flush` leaves the floating-point environment of the machine alone.
    `off` names improvements of the lowering that are not made.
    """

    scalar: bool = False
    soft_flush: bool = False
    off: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """What a launch must know of its code. Slots count the bound buffers; `private` says which atomic combines them.

    `stored` are slots that the code fills, with the share of an invocation as plain data; `planes` those that it fills
    where the words of a call say so. `counted`: each invocation runs to its end or its trap.
    """

    scratch_bytes: int
    traps: tuple[str, ...]
    counted: bool
    stored: dict[int, Share]
    planes: dict[int, PlainPlane]
    private: dict[int, str]
    cost: Cost
    lanes: Decision

    def filled(self, slot: int, lengths: Sequence[int]) -> int:
        """Elements of a buffer that each invocation stores, in a launch over buffers of these lengths."""
        return number(self.stored[slot], lengths)


@dataclass(frozen=True, slots=True)
class ObjectCode:
    image: bytes
    facts: ObjectFacts

    def to_bytes(self) -> bytes:
        header = json.dumps({"format": FORMAT, **asdict(self.facts)}).encode()
        return _HEADER.pack(_MAGIC, len(header)) + header + self.image

    @classmethod
    def from_bytes(cls, payload: bytes) -> ObjectCode:
        try:
            magic, length = _HEADER.unpack_from(payload)
            found: dict[str, Any] = json.loads(payload[_HEADER.size : _HEADER.size + length])
            if magic != _MAGIC or found.pop("format") != FORMAT:
                raise ValueError("another format")
            private = {int(slot): op for slot, op in found.pop("private").items()}
            traps, stored = tuple(found.pop("traps")), {int(slot): s for slot, s in found.pop("stored").items()}
            planes, lanes = {int(slot): p for slot, p in found.pop("planes").items()}, Decision(**found.pop("lanes"))
            facts = ObjectFacts(**found, traps=traps, stored=stored, planes=planes, private=private, lanes=lanes)
            return cls(payload[_HEADER.size + length :], facts)
        except (struct.error, ValueError, KeyError, TypeError) as e:
            raise KernelCompileFailed("the stored code is damaged", fix="compile the program again") from e


def build(program: Program, host: Host, switches: Switches, *, poll: bool = False) -> ObjectCode:
    """Compile a program that was admitted; its workgroup size is that of the launch."""
    from .facts import facts_of  # with the lowering, which code that is there already does without

    kernel, emitted = kernel_text(program, host, switches, poll=poll)
    return ObjectCode(compile_object(emitted.text), facts_of(kernel, emitted))


def kernel_text(program: Program, host: Host, switches: Switches, *, poll: bool = False) -> tuple[Kernel, Emitted]:
    """The kernel form, and what was emitted for it."""
    from ...lower import LowerOptions, lower
    from .emit.kernel import Target, emit

    soft = soft_flush(program, host, switches)
    kernel = lower(program, LowerOptions(soft_flush=soft, poll=poll, off=switches.off, by_turns=True))
    width = 1 if switches.scalar else host.vector_bits // 32
    return kernel, emit(kernel, Target(width=width, mxcsr=host.x86))


def emitted_text(program: Program) -> str:
    """LLVM's assembler for this processor."""
    return kernel_text(program, host(), Switches())[1].text


def soft_flush(program: Program, host: Host, switches: Switches) -> bool:
    """Whether f32 steps flush by themselves: where the machine would flush f64 too, or flushes otherwise than we do."""
    return switches.soft_flush or not host.x86 or program.requirements.float64
