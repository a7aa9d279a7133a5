"""How much of an output counts, where another output says so, and what is read back of it?

`DispatchConfig.output_lengths` names the words that say it. They come first, and then the bytes that count: small
results lie behind each other in one piece of memory, which is one copy. Pure: bytes in, offsets out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import ArgumentValueError, InvalidProgram
from ...foundation.integers import round_up
from ...foundation.ir.dtypes import DataType, packed_size, u32
from ..policy.decision import Decision
from .binding import Binding, BindingPlan
from .bounds import Checked

if TYPE_CHECKING:
    from ...foundation.ir.program import Program
    from ..contract.values import OutputBuffers

COMPACT_BYTES = 64 << 10
"""Results up to this size are gathered: a copy of more takes longer than to ask for it."""
_WORD = 4
_BOUNDS = Checked("result compaction", "read back less in one dispatch")


class ResultSlot(NamedTuple):
    """An output, the bytes of it that count, and all that it has."""

    slot: int
    meaningful_bytes: int
    capacity_bytes: int


class CompactResultRecord(NamedTuple):
    """Where an output lies among those that were gathered."""

    slot: int
    compact_offset: int
    bytes: int


class ResultCompactionPlan(NamedTuple):
    """What is gathered and read as one, which slots are read alone, and the bytes of each kind."""

    compact_records: tuple[CompactResultRecord, ...]
    direct_slots: tuple[int, ...]
    full_capacity_bytes: int
    compact_bytes: int
    direct_bytes: int

    @property
    def selected_readback_bytes(self) -> int:
        return self.compact_bytes + self.direct_bytes

    @property
    def avoided_readback_bytes(self) -> int:
        return self.full_capacity_bytes - self.selected_readback_bytes

    @property
    def avoided_readback_basis_points(self) -> int:
        full = self.full_capacity_bytes
        return self.avoided_readback_bytes * 10_000 // full if full else 0


def plan_result_compaction(
    slots: Sequence[ResultSlot], max_compact_record_bytes: int = COMPACT_BYTES, *, step: int = 1
) -> ResultCompactionPlan:
    """Gather what is no longer than that; each begins at a multiple of `step`.

    >>> plan_result_compaction([ResultSlot(2, 0, 128), ResultSlot(1, 12, 128), ResultSlot(3, 24, 256)], 32)[0]
    (CompactResultRecord(slot=1, compact_offset=0, bytes=12), CompactResultRecord(slot=3, compact_offset=12, bytes=24))
    """
    seen: set[int] = set()
    for slot, meaningful, capacity in slots:
        if slot in seen:
            raise InvalidProgram(f"result {slot} is there twice", fix="name each output once", slot=slot)
        seen.add(slot)
        if meaningful > capacity:
            raise InvalidProgram(
                f"result {slot} is said to have {meaningful} bytes and has room for {capacity}",
                fix="count no more than the output holds",
                slot=slot,
            )
    records: list[CompactResultRecord] = []
    direct: list[int] = []
    full = end = direct_bytes = 0
    for slot, meaningful, capacity in sorted(slots):
        full = _BOUNDS.add(full, capacity, "capacity")
        if not meaningful:
            continue
        if meaningful <= max_compact_record_bytes:
            records.append(CompactResultRecord(slot, round_up(end, step), meaningful))
            end = _BOUNDS.add(records[-1].compact_offset, meaningful, "compact bytes")
        else:
            direct.append(slot)
            direct_bytes = _BOUNDS.add(direct_bytes, meaningful, "direct bytes")
    return ResultCompactionPlan(tuple(records), tuple(direct), full, end, direct_bytes)


class CountedOutput(NamedTuple):
    """An output of which the element `at` of another output, `word`, says how much counts; both by output index."""

    output: int
    word: int
    at: int
    element: DataType
    capacity: int

    def nbytes(self, outputs: Sequence[Any]) -> int:
        """Of what counts, as these outputs say. A count beyond the room counts as all of it."""
        view = memoryview(outputs[self.word]).cast("B")
        count = int.from_bytes(view[self.at * _WORD : self.at * _WORD + _WORD], "little")
        return packed_size(self.element, min(count, self.capacity)) or 0


def counted_outputs(bindings: BindingPlan, said: Mapping[str, Any] | None) -> tuple[CountedOutput, ...]:
    """The outputs whose lengths are said, of a plan with all lengths known."""
    if not said:
        return ()
    outputs = {b.name: b for b in bindings.outputs}
    return tuple(_counted(outputs, name, *word) for name, word in said.items())


def _counted(outputs: Mapping[str, Binding], name: str, word: str, at: int) -> CountedOutput:
    b, by = outputs.get(name), outputs.get(word)
    names = ", ".join(outputs) or "none"
    if b is None or by is None:
        raise ArgumentValueError(
            f"output_lengths has {(name if b is None else word)!r}, which is no output", fix=f"name two of: {names}"
        )
    if b.input_index is not None or b.output_byte_range is not None or b is by:
        why = "says its own length" if b is by else "is not made by the dispatch as a whole"
        raise ArgumentValueError(
            f"output_lengths has {name!r}, which {why}", fix=f"name an output that only the program fills, of: {names}"
        )
    if by.element is not u32 or by.output_byte_range is not None or at >= by.element_count:
        raise ArgumentValueError(
            f"the length of {name!r} cannot be element {at} of {word!r}, which has {by.element_count} of "
            f"{by.element.name}",
            fix=f"count in a u32 output: {word}: Out[u32, {at + 1}]",
        )
    assert b.output_index is not None and by.output_index is not None
    return CountedOutput(b.output_index, by.output_index, at, b.element, b.element_count)


def decide_results(program: Program, counted: Sequence[CountedOutput]) -> Decision:
    """That not all of some outputs is read back."""
    names = [b.name for b in program.host_outputs]
    told = ", ".join(f"{names[c.output]} is as long as {names[c.word]}[{c.at}] says" for c in counted)
    return Decision("results", "counted", told, {"counted": len(counted)})


class CountedSizes(list[int]):
    """The bytes of each output of a dispatch, with -1, which none has, in the place of those that are counted."""

    def __init__(self, sizes: Sequence[int], counted: Sequence[CountedOutput]) -> None:
        super().__init__(sizes)
        self._whole, self._counted = list(sizes), counted
        for each in counted:
            self[each.output] = -1

    def allow(self, found: Sequence[int], outputs: OutputBuffers) -> bool:
        """Whether outputs of these lengths are right: a counted one is there as a whole, or as what counts of it."""
        if len(found) != len(self) or any(n != m for n, m in zip(found, self, strict=True) if m >= 0):
            return False
        return all(found[c.output] in (self._whole[c.output], c.nbytes(outputs)) for c in self._counted)

    def cut(self, outputs: OutputBuffers) -> OutputBuffers:
        """What counts of each, in memory that is not much larger."""
        found = list(outputs)
        for each in self._counted:
            nbytes, view = each.nbytes(outputs), memoryview(outputs[each.output])
            if view.nbytes > nbytes:
                part = view.cast("B")[:nbytes]
                found[each.output] = part if 2 * nbytes >= view.nbytes else bytearray(part)
        return found
