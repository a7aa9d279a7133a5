"""What the two engines share: buffers bound for one dispatch, the options of a run, and what a run reports.

Bytes are little-endian and packed as on the host. Every buffer is padded with zeros to a multiple of four bytes (and to
four at least), so that an engine may view it as words; `count` and `nbytes` say where the caller's bytes end.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...errors import ArgumentTypeError, ArgumentValueError, DeviceOutOfMemory, InvalidProgram
from ...foundation.program import BufferDecl, Program

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .races import Race

U32_MAX = 0xFFFFFFFF
Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Schedule:
    """In which order invocations take their turns: `forward`, `reversed`, or at random from a seed."""

    kind: str = "forward"
    seed: int = 0

    @classmethod
    def seeded(cls, seed: int) -> Schedule:
        """Statements of all invocations of all workgroups interleave at random; the same seed, the same order."""
        return cls("seeded", seed)

    @classmethod
    def of(cls, given: Schedule | str) -> Schedule:
        found = cls(given) if isinstance(given, str) and given in ("forward", "reversed") else given
        if not isinstance(found, Schedule) or found.kind not in ("forward", "reversed", "seeded"):
            raise ArgumentValueError(
                f"{given!r} is not a schedule", fix='use "forward", "reversed" or Schedule.seeded(n)'
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
    """What an engine says about a run that ended well; the results are in the memory it was given."""

    oob: OobReport = field(default_factory=OobReport)
    races: tuple[Race, ...] = ()
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
        cls, program: Program, inputs: Sequence[Buffer], output_elements: Mapping[str, int] | None = None
    ) -> Memory:
        """Copy the inputs (one per `program.host_inputs`, in that order) and zero what the backend allocates."""
        sizes = _checked_sizes(program, output_elements or {})
        wanted = program.host_inputs
        if len(inputs) != len(wanted):
            names = ", ".join(b.name for b in wanted) or "nothing"
            raise ArgumentValueError(
                f"the program takes {len(wanted)} input(s) and was given {len(inputs)}",
                fix=f"pass one buffer for each of, in this order: {names}",
            )
        buffers = {b.name: _copy_input(b, given) for b, given in zip(wanted, inputs, strict=True)}
        for b in program.bound_buffers:
            if b.name not in buffers:
                buffers[b.name] = BufferState.zeros(b, _output_count(b, sizes))
        memory = cls(program, buffers)
        for b in program.host_outputs:
            _checked_range(memory.buffers[b.name])
        return memory

    def shared(self) -> dict[str, BufferState]:
        """Fresh workgroup memory, zero."""
        return {b.name: BufferState.zeros(b, b.count) for b in self.program.buffers if b.is_workgroup}

    def outputs(self) -> list[bytearray]:
        """What the host sees afterwards, in slot order: fresh bytes, cut to each buffer's output range."""
        found = []
        for b in self.program.host_outputs:
            start, end = _checked_range(self.buffers[b.name])
            found.append(self.buffers[b.name].data[start:end])
        return found

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
    return max(4, -(-nbytes // 4) * 4)


def _checked_sizes(program: Program, sizes: Mapping[str, int]) -> Mapping[str, int]:
    allocated = {b.name: b for b in program.bound_buffers if b.backend_allocated}
    for name, n in sizes.items():
        if name not in allocated:
            known = ", ".join(allocated) or "none"
            raise ArgumentValueError(
                f"{name!r} is not an output whose size the caller chooses", fix=f"name one of: {known}"
            )
        if type(n) is not int or not 0 <= n <= U32_MAX:
            raise ArgumentValueError(
                f"{n!r} is not a length for {name!r}", fix=f"use a whole number of elements from 0 to {U32_MAX}"
            )
        if allocated[name].count not in (0, n):
            raise ArgumentValueError(
                f"{name!r} has {allocated[name].count} elements and the caller asks for {n}",
                fix=f'drop {name!r} from sizes, or write sizes={{"{name}": {allocated[name].count}}}',
            )
    return sizes


def _copy_input(decl: BufferDecl, given: Buffer) -> BufferState:
    size = element_nbytes(decl)
    try:
        data = bytearray(memoryview(given))  # C order, whatever the strides
    except TypeError as e:
        raise ArgumentTypeError(
            f"input {decl.name!r} is {type(given).__name__}, which holds no bytes",
            fix="pass bytes, a bytearray, a NumPy array, or another object with the buffer protocol",
        ) from e
    nbytes = len(data)
    if decl.nbytes is not None and nbytes != decl.nbytes:
        raise ArgumentValueError(
            f"input {decl.name!r} has {nbytes} bytes and needs {decl.nbytes}",
            fix=f"pass exactly {decl.count} elements of {decl.element.name}",
        )
    if nbytes % size:
        raise ArgumentValueError(
            f"input {decl.name!r} has {nbytes} bytes, no multiple of {size}",
            fix=f"pass whole elements of {decl.element.name}",
        )
    if nbytes // size > U32_MAX:
        raise ArgumentValueError(
            f"input {decl.name!r} has more elements than an index reaches", fix=f"pass at most {U32_MAX} elements"
        )
    data.extend(bytes(padded_nbytes(nbytes) - nbytes))
    return BufferState(decl, data, nbytes // size)


def _output_count(decl: BufferDecl, sizes: Mapping[str, int]) -> int:
    if decl.count:
        return decl.count
    if decl.name in sizes:
        return sizes[decl.name]
    if decl.output_byte_range is not None:
        return -(-decl.output_byte_range[1] // element_nbytes(decl))
    raise ArgumentValueError(
        f"nothing says how long output {decl.name!r} is", fix=f'say it at the call: sizes={{"{decl.name}": n}}'
    )


def _checked_range(state: BufferState) -> tuple[int, int]:
    """The bytes that the host sees."""
    start, end = state.decl.output_byte_range or (0, state.nbytes)
    if not 0 <= start <= end <= state.nbytes:
        raise ArgumentValueError(
            f"the output range {start}:{end} of {state.decl.name!r} leaves its {state.nbytes} bytes",
            fix=f"bind at least {end} bytes, or change output_byte_range",
        )
    return start, end
