"""What the two engines share: buffers bound for one dispatch, the options of a run, and what a run reports.

Bytes are little-endian and packed as on the host. Every buffer is padded with zeros to a multiple of four bytes (and to
four at least), so that an engine may view it as words; `count` and `nbytes` say where the caller's bytes end.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ....driver.plan.binding import BindingPlan, BindingRole
from ....driver.plan.outputs import output_binding_layouts
from ....errors import ArgumentValueError, DeviceOutOfMemory, InvalidProgram, Trap
from ....foundation.integers import round_up
from ....foundation.ir.program import BufferDecl, Program

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .races import Race

Grid = tuple[int, int, int]
_NAMED = ("forward", "reversed", "lockstep")


@dataclass(frozen=True, slots=True)
class Schedule:
    """In which order invocations take their turns: `forward`, `reversed`, in `lockstep`, or at random from a seed.

    In lockstep all invocations of all workgroups are at the same statement, as far as they take the same branches.
    """

    kind: str = "forward"
    seed: int = 0

    def __str__(self) -> str:
        return {"seeded": f"at random from seed {self.seed}", "lockstep": "in lockstep"}.get(self.kind, self.kind)

    @classmethod
    def seeded(cls, seed: int) -> Schedule:
        """Statements of all invocations of all workgroups interleave at random; the same seed, the same order."""
        return cls("seeded", seed)

    @classmethod
    def of(cls, given: Schedule | str) -> Schedule:
        found = cls(given) if isinstance(given, str) and given in _NAMED else given
        if not isinstance(found, Schedule) or found.kind not in (*_NAMED, "seeded"):
            raise ArgumentValueError(
                f"{given!r} is not a schedule", fix='use "forward", "reversed", "lockstep" or Schedule.seeded(n)'
            )
        return found


@dataclass(frozen=True, slots=True)
class Options:
    """How to run. `deadline` is a reading of `time.monotonic()`.

    A step is one statement of one invocation, and a loop adds one per iteration.
    """

    schedule: Schedule = field(default_factory=Schedule)
    max_steps: int | None = None
    detect_races: bool = False
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class OobReport:
    """Accesses beyond the end of a buffer, which the rules absorb: zero loads, dropped stores, idle atomics."""

    loads: int = 0
    stores: int = 0
    atomics: int = 0

    def __bool__(self) -> bool:
        return bool(self.loads or self.stores or self.atomics)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an engine says about a run that ended well; the results are in the memory it was given.

    Of the race detector are `races`, and `seen`: two atomics that do not race, though the order shows in what one
    returns. A run goes on after a trap, without the invocation that trapped, if none waits for others or with the
    detector: others may race for it. Else the first one raises.
    """

    oob: OobReport = field(default_factory=OobReport)
    races: tuple[Race, ...] = ()
    seen: Race | None = None
    trap: Trap | None = None
    steps: int = 0


@dataclass(slots=True)
class BufferState:
    """One buffer during a dispatch."""

    decl: BufferDecl
    data: bytearray
    count: int

    @classmethod
    def zeros(cls, decl: BufferDecl, count: int) -> BufferState:
        try:
            return cls(decl, bytearray(padded_nbytes(count * element_nbytes(decl))), count)
        except (MemoryError, OverflowError) as e:
            raise DeviceOutOfMemory(
                f"no memory for buffer {decl.name!r}",
                fix="use a smaller buffer",
                count=count,
                element=decl.element.name,
            ) from e

    @property
    def nbytes(self) -> int:
        """Bytes without the padding."""
        return self.count * element_nbytes(self.decl)


@dataclass(slots=True)
class Memory:
    """Every bound buffer by name. Workgroup memory is not here: `shared` makes it anew for each workgroup."""

    program: Program
    buffers: dict[str, BufferState]

    @classmethod
    def build(
        cls,
        program: Program,
        inputs: Sequence[Buffer],
        output_elements: Mapping[str, int] | None = None,
        *,
        plan: BindingPlan | None = None,
    ) -> Memory:
        """Copy the inputs (one per `program.host_inputs`, in that order) and zero what the backend allocates."""
        plan = plan or BindingPlan.from_inputs(program, inputs, output_elements)
        output_binding_layouts(plan)  # which refuses a range that leaves its buffer
        buffers: dict[str, BufferState] = {}
        for b in plan.bindings:
            if b.role is BindingRole.SHARED:
                continue
            state = buffers[b.name] = BufferState.zeros(program.buffers[b.buffer_index], b.element_count)
            if b.input_index is not None:
                state.data[: b.nbytes] = memoryview(inputs[b.input_index]).tobytes()  # C order, whatever the strides
        return cls(program, buffers)

    def shared(self) -> dict[str, BufferState]:
        """Fresh workgroup memory, zero."""
        return {b.name: BufferState.zeros(b, b.count) for b in self.program.buffers if b.is_workgroup}

    def outputs(self) -> list[bytearray]:
        """What the host sees afterwards, in slot order: fresh bytes, cut to each buffer's output range."""
        states = [self.buffers[b.name] for b in self.program.host_outputs]
        ranges = [state.decl.output_byte_range or (0, state.nbytes) for state in states]
        return [state.data[start:end] for state, (start, end) in zip(states, ranges, strict=True)]

    def image(self) -> list[bytes]:
        """A copy of every byte."""
        return [bytes(state.data) for state in self.buffers.values()]

    def indirect_grid(self) -> Grid | None:
        """The grid that the program reads from memory, if it does."""
        found = self.program.indirect
        if found is None:
            return None
        name, offset = found
        state = self.buffers.get(name)
        if state is None or offset + 12 > state.nbytes:
            raise InvalidProgram(
                f"no grid in buffer {name!r}",
                fix=f"bind at least {offset + 12} bytes: three u32 words at byte {offset}",
                nbytes=0 if state is None else state.nbytes,
            )
        x, y, z = struct.unpack_from("<III", state.data, offset)
        return x, y, z


def element_nbytes(decl: BufferDecl) -> int:
    size = decl.element.size
    if size is None or not decl.element.live:
        raise InvalidProgram(
            f"buffer {decl.name!r} has elements of type {decl.element.name}, which programs cannot store",
            fix="use a number type",
        )
    return size


def padded_nbytes(nbytes: int) -> int:
    return max(4, round_up(nbytes, 4))
