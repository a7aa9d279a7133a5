"""Outputs: where the bytes of each lie on the device, and the caller's own memory to put them in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

from ...errors import ArgumentTypeError, ArgumentValueError, InvalidProgram
from ...foundation.ir.dtypes import DataType, packed_size
from .binding import Binding, BindingPlan, byte_lengths
from .bounds import Checked, ceil_div, reserve_bytes

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ...foundation.ir.program import Program
    from ..contract.values import DispatchConfig

_WORD_BYTES = 4
_BYTES = Checked("output layout", fix="split the output into smaller buffers")


# ---- layouts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """Bytes of one output. Whole words are copied from the device, then `trim_start` bytes are skipped.

    `full_size` is the buffer, `read_size` what the host sees; `copy_offset` and `copy_size` are multiples of four that
    stay inside the buffer's words.
    """

    full_size: int
    read_size: int
    copy_offset: int
    copy_size: int
    trim_start: int


@dataclass(frozen=True, slots=True)
class OutputBindingLayout:
    """One output; its device memory has `word_count` words, one at least."""

    binding: int
    name: str
    layout: OutputLayout
    word_count: int


def output_binding_layout(b: Binding) -> OutputBindingLayout:
    """The layout of one output whose length is known."""
    return output_layout_of(b.binding, b.name, b.element, b.element_count, b.output_byte_range)


def output_layout_of(
    binding: int, name: str, element: DataType, count: int, byte_range: tuple[int, int] | None = None
) -> OutputBindingLayout:
    """The layout of `count` elements, of which the host sees `byte_range` (by default all).

    >>> from vyre.foundation.ir.dtypes import u32
    >>> output_layout_of(0, "out", u32, 4, (5, 9)).layout
    OutputLayout(full_size=16, read_size=4, copy_offset=4, copy_size=8, trim_start=1)
    """
    full = packed_size(element, count)
    if not element.bits or full is None:
        raise InvalidProgram(
            f"output {name!r} has elements of type {element.name}, which has no size", fix="use a number type"
        )
    start, end = byte_range or (0, full)
    if not 0 <= start <= end <= full:
        raise InvalidProgram(
            f"the range {start}:{end} of output {name!r} is outside output buffer size {full}",
            fix=f"bind at least {end} bytes, or change output_byte_range",
        )
    words = max(ceil_div(full, _WORD_BYTES), 1)
    offset = start - start % _WORD_BYTES
    stop = min(_BYTES.align_up(end, _WORD_BYTES, name), words * _WORD_BYTES)
    if stop <= offset:  # an empty range at the end still copies one word that is there
        offset, stop = max(stop - _WORD_BYTES, 0), max(stop, _WORD_BYTES)
    layout = OutputLayout(full, end - start, offset, stop - offset, start - offset)
    return OutputBindingLayout(binding, name, layout, words)


def output_binding_layouts(plan: BindingPlan) -> tuple[OutputBindingLayout, ...]:
    """The layouts of all outputs, in slot order."""
    return tuple(output_binding_layout(b) for b in plan.outputs)


def output_layout_from_program(program: Program) -> OutputLayout:
    """The layout of the first output, where the program fixes it."""
    plan = BindingPlan.build(program)
    if not plan.outputs:
        raise InvalidProgram("the program has no output buffer", fix="declare a buffer that the program writes")
    first = plan.outputs[0]
    if first.static_byte_len is None:
        raise InvalidProgram(
            f"output {first.name!r} is sized at dispatch", fix="give it a count, or plan a dispatch with its inputs"
        )
    return output_binding_layout(first).layout


# ---- budget ---------------------------------------------------------------------------------------------------------


def enforce_output_budget(config: DispatchConfig, nbytes: int) -> None:
    """Raise when outputs of `nbytes` bytes are more than the caller wants to read back."""
    limit = config.max_output_bytes
    if limit is not None and nbytes > limit:
        raise ArgumentValueError(
            f"the output of {nbytes} bytes exceeds max_output_bytes={limit}",
            fix=f"raise DispatchConfig(max_output_bytes=...) to {nbytes}, or read back less",
            **config.labelled,
        )


def enforce_actual_output_budget(config: DispatchConfig, outputs: Sequence[Buffer]) -> None:
    """The same for outputs that a backend handed over."""
    if config.max_output_bytes is not None:
        enforce_output_budget(config, sum(byte_lengths(outputs)))


# ---- slots ----------------------------------------------------------------------------------------------------------


@final
class OutputSlot:
    """Memory of the caller that takes one output after another: an arena, and how much of it is in use.

    The slot stays the same object; `view` shows the bytes of the latest output, and an older view shows them too as
    long as the arena was large enough. An output that is larger than the arena becomes the arena, without a copy.

    >>> slot = OutputSlot(8)
    >>> slot.put(b"abc")
    'reused'
    >>> bytes(slot), len(slot), slot.capacity
    (b'abc', 3, 8)
    """

    __slots__ = ("_arena", "_bytes", "_length")

    def __init__(self, capacity: int = 0) -> None:
        self._adopt(reserve_bytes(capacity, "an output slot"))
        self._length = 0

    @classmethod
    def of(cls, data: Buffer) -> OutputSlot:
        """A slot whose arena and contents are this buffer."""
        slot = cls()
        slot._adopt(data)
        return slot

    @property
    def arena(self) -> Buffer:
        return self._arena

    @property
    def capacity(self) -> int:
        return self._bytes.nbytes

    @property
    def view(self) -> memoryview:
        """The bytes in use."""
        return self._bytes[: self._length]

    def put(self, data: Buffer) -> str:
        """Take an output: `reused` when it was copied into the arena, `moved` when it became the arena."""
        source = _plain(data)
        if source.nbytes > self.capacity or self._bytes.readonly:
            self._adopt(data)
            return "moved"
        self._bytes[: source.nbytes] = source
        self._length = source.nbytes
        return "reused"

    def clear(self) -> None:
        """No bytes in use; the arena stays."""
        self._length = 0

    def _adopt(self, data: Buffer) -> None:
        self._arena, self._bytes = data, _plain(data)
        self._length = self._bytes.nbytes

    def __len__(self) -> int:
        return self._length

    def __bytes__(self) -> bytes:
        return bytes(self.view)

    def __repr__(self) -> str:
        return f"<OutputSlot: {self._length} of {self.capacity} bytes in use>"


@dataclass(frozen=True, slots=True)
class OutputSlotStats:
    total_slots: int = 0
    reused_slots: int = 0
    moved_slots: int = 0
    appended_slots: int = 0


@dataclass(frozen=True, slots=True)
class OutputSlotByteStats:
    incoming_bytes: int = 0
    copied_bytes: int = 0
    moved_bytes: int = 0
    appended_bytes: int = 0
    retained_capacity_bytes: int = 0


@dataclass(frozen=True, slots=True)
class OutputReplacementStats:
    """Counts of the outputs put into the caller's slots, and of their bytes."""

    slots: OutputSlotStats
    bytes: OutputSlotByteStats


def replace_output_buffers_preserving_slots(incoming: Iterable[Buffer], outputs: list[Any]) -> OutputReplacementStats:
    """Put outputs into the caller's list, which stays the same list.

    A slot takes any length. Another writable buffer must have exactly the length of its output and is written.
    Positions that the list lacks are appended as slots; those it has too many of are dropped. Nothing is written when
    one of them does not fit.
    """
    arrived = list(incoming)
    sizes = byte_lengths(arrived)
    targets = [
        o if isinstance(o, OutputSlot) else _writable(str(k), o, n)
        for k, (o, n) in enumerate(zip(outputs, sizes, strict=False))
    ]
    copied = moved = appended = reused = retained = 0
    for target, data, nbytes in zip(targets, arrived, sizes, strict=False):
        if isinstance(target, memoryview):
            target[:] = _plain(data)
        elif target.put(data) == "moved":
            moved += nbytes
            continue
        reused += 1
        copied += nbytes
    old = len(targets)
    del outputs[len(arrived) :]
    for data, nbytes in zip(arrived[old:], sizes[old:], strict=True):
        outputs.append(OutputSlot.of(data))
        appended += nbytes
    for o in outputs:
        retained += o.capacity if isinstance(o, OutputSlot) else memoryview(o).nbytes
    return OutputReplacementStats(
        OutputSlotStats(len(arrived), reused, old - reused, len(arrived) - old),
        OutputSlotByteStats(sum(sizes), copied, moved, appended, retained),
    )


def check_outputs(out: Sequence[Buffer | OutputSlot], outputs: Sequence[OutputBindingLayout]) -> None:
    """Raise unless each of the caller's buffers can take its output."""
    for o, layout in zip(out, outputs, strict=True):
        if not isinstance(o, OutputSlot):
            _writable(repr(layout.name), o, layout.layout.read_size)


def check_outputs_apart(out: Sequence[Buffer | OutputSlot]) -> None:
    """Raise when two of the caller's buffers, which can take their outputs, share memory."""
    if len(out) < 2:
        return
    from ctypes import addressof, c_char  # only calls with several outputs pay for it

    views = [(_plain(o.arena if isinstance(o, OutputSlot) else o), k) for k, o in enumerate(out)]
    spans = sorted(
        (start := addressof(c_char.from_buffer(view)), start + view.nbytes, k)
        for view, k in views
        if view.nbytes and not view.readonly
    )
    for (_, end, first), (start, _, second) in pairwise(spans):
        if start < end:
            low, high = sorted((first, second))
            raise ArgumentValueError(
                f"outputs {low} and {high} share memory: two overlapping writable arguments are an error",
                fix="pass separate buffers",
            )


def _plain(data: Buffer) -> memoryview:
    """The bytes of a buffer in one dimension."""
    view = memoryview(data)
    if not view.c_contiguous:
        raise ArgumentTypeError(
            f"an output of type {type(data).__name__} is not contiguous", fix="pass a contiguous buffer"
        )
    if not view.nbytes:  # an empty view cannot be cast
        return memoryview(b"" if view.readonly else bytearray())
    return view.cast("B")


def _writable(name: str, target: Any, nbytes: int) -> memoryview:
    (found,) = byte_lengths([target])
    view = _plain(target)
    if view.readonly:
        raise ArgumentTypeError(
            f"the buffer for output {name} is a read-only {type(target).__name__}",
            fix="pass a bytearray or a writable array",
        )
    if found != nbytes:
        raise ArgumentValueError(
            f"output {name} has {nbytes} bytes and the buffer given for it {found}",
            fix=f"pass a buffer of {nbytes} bytes, or an OutputSlot",
        )
    return view
