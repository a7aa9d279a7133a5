"""What comes back: layouts of outputs, the byte budget, and slots that are used again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vyre.driver.contract.values import DispatchConfig
from vyre.driver.plan.binding import BindingPlan
from vyre.driver.plan.outputs import (
    OutputLayout,
    OutputReplacementStats,
    OutputSlot,
    OutputSlotByteStats,
    OutputSlotStats,
    enforce_actual_output_budget,
    enforce_output_budget,
    output_binding_layout,
    output_binding_layouts,
    output_layout_from_program,
    output_layout_of,
    replace_output_buffers_preserving_slots,
)
from vyre.errors import ArgumentTypeError, ArgumentValueError, DeviceOutOfMemory, InvalidProgram
from vyre.foundation.ir.dtypes import array_type, i4, opaque_type, u8, u16, u32, vec_type
from vyre.foundation.ir.program import Program, output, read, read_write, write_only


def program(*buffers):
    return Program(buffers, (64, 1, 1), ())


def layout(element, count, byte_range=None):
    return output_layout_of(0, "out", element, count, byte_range).layout


# ---- layouts --------------------------------------------------------------------------------------------------------


@pytest.mark.row("B-OUT-01")
def test_packed_nibbles_are_rounded_up_to_bytes_and_words():
    found = output_layout_of(0, "out", i4, 3)
    assert (found.layout.full_size, found.layout.read_size, found.word_count) == (2, 2, 1)


@pytest.mark.row("B-OUT-02")
@pytest.mark.parametrize("dtype", [array_type(0), vec_type(u32, 0), opaque_type(0x80000001)], ids=str)
def test_elements_of_no_bytes_are_refused(dtype):
    with pytest.raises(InvalidProgram, match=r"'out' has elements of type .* no size.*Fix: use a number type"):
        output_layout_of(0, "out", dtype, 3)


@pytest.mark.row("B-OUT-04")
def test_a_range_is_copied_as_whole_words():
    assert layout(u32, 4, (5, 9)) == OutputLayout(full_size=16, read_size=4, copy_offset=4, copy_size=8, trim_start=1)
    assert layout(u32, 4) == OutputLayout(16, 16, 0, 16, 0)
    assert layout(u32, 4, (0, 16)) == layout(u32, 4)


@pytest.mark.row("B-OUT-05")
def test_a_copy_is_a_multiple_of_a_word_even_where_the_buffer_is_not():
    assert layout(u16, 3) == OutputLayout(full_size=6, read_size=6, copy_offset=0, copy_size=8, trim_start=0)


def test_an_empty_output_still_copies_a_word_that_is_there():
    assert layout(u32, 0) == OutputLayout(0, 0, 0, 4, 0)
    assert layout(u32, 4, (16, 16)) == OutputLayout(16, 0, 12, 4, 4)
    assert layout(u32, 4, (4, 4)) == OutputLayout(16, 0, 0, 4, 4)


@pytest.mark.parametrize("byte_range", [(0, 17), (9, 8), (17, 17), (-4, 4)])
def test_a_range_outside_the_buffer_is_refused(byte_range):
    with pytest.raises(InvalidProgram, match=r"range .* of output 'out' is outside output buffer size 16.*Fix: bind"):
        layout(u32, 4, byte_range)


@given(st.sampled_from([u8, u16, u32, i4]), st.integers(0, 50), st.data())
def test_every_range_can_be_cut_from_the_words_that_are_copied(element, count, data):
    full = -(-element.bits * count // 8)
    start = data.draw(st.integers(0, full))
    end = data.draw(st.integers(start, full))
    found = output_layout_of(1, "out", element, count, (start, end))
    memory = bytes((7 * k + 1) % 251 for k in range(full)).ljust(4 * found.word_count, b"\0")
    o = found.layout
    copied = memory[o.copy_offset : o.copy_offset + o.copy_size]
    assert len(copied) == o.copy_size  # nothing beyond the buffer's words
    assert o.copy_offset % 4 == o.copy_size % 4 == 0
    assert o.copy_size >= 4
    assert copied[o.trim_start : o.trim_start + o.read_size] == memory[start:end]
    assert o.full_size == full


def test_layouts_come_in_slot_order_with_the_lengths_of_the_dispatch():
    p = program(write_only("late", 7, u16), read_write("early", 1, u32), read("a", 0, u32))
    plan = BindingPlan.from_input_lengths(p, (12, 8), {"late": 3})
    first, second = output_binding_layouts(plan)
    assert (first.name, first.binding, first.layout.read_size, first.word_count) == ("early", 1, 8, 2)
    assert (second.name, second.binding, second.layout.read_size, second.word_count) == ("late", 7, 6, 2)
    assert output_binding_layout(plan.outputs[0]) == first


@pytest.mark.row("B-OUT-06")
def test_the_first_output_of_a_program():
    assert output_layout_from_program(program(output("b", 2, u32, 9), output("a", 1, u32, 4))).full_size == 16
    with pytest.raises(InvalidProgram, match=r"no output buffer.*Fix: declare a buffer"):
        output_layout_from_program(program(read("a", 0, u32)))
    with pytest.raises(InvalidProgram, match=r"'o' is sized at dispatch.*Fix: give it a count"):
        output_layout_from_program(program(write_only("o", 0, u32)))


@pytest.mark.row("B-OUT-03")
def test_the_budget_counts_all_outputs_together():
    config = DispatchConfig(max_output_bytes=8, label="step 3")
    enforce_actual_output_budget(config, [bytes(4), bytearray(4)])
    enforce_output_budget(config, 8)
    with pytest.raises(ArgumentValueError, match=r"9 bytes exceeds max_output_bytes=8.*step 3.*Fix: raise"):
        enforce_actual_output_budget(config, [bytes(4), bytearray(5)])
    enforce_actual_output_budget(DispatchConfig(), [bytes(1 << 20)])
    enforce_actual_output_budget(DispatchConfig(max_output_bytes=0), [b""])


# ---- slots ----------------------------------------------------------------------------------------------------------


def slots(*capacities):
    return [OutputSlot(n) for n in capacities]


@pytest.mark.row("A-OUT-1")
def test_a_slot_that_is_large_enough_keeps_its_arena_and_gets_new_contents():
    outputs = slots(8, 8)
    before, arenas = list(outputs), [s.arena for s in outputs]
    replace_output_buffers_preserving_slots([b"first", b"second"], outputs)
    stats = replace_output_buffers_preserving_slots([b"abc", b""], outputs)
    assert all(a is b for a, b in zip(outputs, before, strict=True))
    assert all(s.arena is a for s, a in zip(outputs, arenas, strict=True))
    assert [bytes(s) for s in outputs] == [b"abc", b""]
    assert [bytes(s.view) for s in outputs] == [b"abc", b""]
    assert [len(s) for s in outputs] == [3, 0]
    assert (stats.slots.reused_slots, stats.bytes.retained_capacity_bytes) == (2, 16)


@pytest.mark.row("A-OUT-2")
def test_fewer_outputs_drop_the_slots_that_are_left_over():
    outputs = slots(8, 8, 8)
    first, same = outputs[0], outputs
    stats = replace_output_buffers_preserving_slots([b"x"], outputs)
    assert outputs is same
    assert len(outputs) == 1
    assert outputs[0] is first
    assert stats.slots == OutputSlotStats(total_slots=1, reused_slots=1)


@pytest.mark.row("A-OUT-3")
@pytest.mark.parametrize("make", [bytearray, bytes, lambda data: np.frombuffer(data, np.uint8)])
def test_an_output_larger_than_the_arena_becomes_the_arena(make):
    (slot,) = outputs = slots(2)
    big = make(b"larger")
    stats = replace_output_buffers_preserving_slots([big], outputs)
    assert outputs[0] is slot
    assert slot.arena is big
    assert bytes(slot) == b"larger"
    assert stats.bytes.moved_bytes == 6
    assert slot.capacity == 6


def test_a_slot_never_writes_into_memory_that_cannot_be_written():
    (slot,) = outputs = [OutputSlot.of(b"read-only")]
    replace_output_buffers_preserving_slots([bytearray(b"new")], outputs)
    assert bytes(slot) == b"new"
    replace_output_buffers_preserving_slots([b"ok"], outputs)
    assert bytes(slot) == b"ok"
    assert slot.capacity == 3


@pytest.mark.row("A-OUT-4")
def test_the_numbers_of_a_mixed_replacement():
    stats = replace_output_buffers_preserving_slots([b"ab", b"cd", b"e"], slots(8, 1))
    assert stats == OutputReplacementStats(
        OutputSlotStats(total_slots=3, reused_slots=1, moved_slots=1, appended_slots=1),
        OutputSlotByteStats(
            incoming_bytes=5, copied_bytes=2, moved_bytes=2, appended_bytes=1, retained_capacity_bytes=11
        ),
    )


@pytest.mark.row("A-OUT-5")
def test_the_list_stays_the_same_list_when_slots_are_appended():
    outputs = slots(4)
    same, extra = outputs, bytearray(b"two")
    replace_output_buffers_preserving_slots([b"one", extra], outputs)
    assert outputs is same
    assert [bytes(s) for s in outputs] == [b"one", b"two"]
    assert outputs[1].arena is extra


def test_a_plain_buffer_of_the_right_length_is_written():
    array, raw = np.zeros((1, 2), np.uint16), bytearray(3)
    outputs = [array, raw, OutputSlot(), bytearray()]
    stats = replace_output_buffers_preserving_slots([b"abcd", b"efg", b"h", b""], outputs)
    assert outputs[0] is array
    assert (array.tobytes(), raw) == (b"abcd", b"efg")
    assert (stats.slots.reused_slots, stats.slots.moved_slots, stats.bytes.copied_bytes) == (3, 1, 7)
    assert stats.bytes.retained_capacity_bytes == 8


@pytest.mark.parametrize(
    "target, error, words",
    [
        (bytearray(3), ArgumentValueError, "output 1 has 2 bytes and the buffer given for it 3.*Fix: pass a buffer of"),
        (b"ab", ArgumentTypeError, "for output 1 is a read-only bytes.*Fix: pass a bytearray"),
        (np.zeros(4, np.uint8)[::2], ArgumentTypeError, "not contiguous.*Fix: pass a contiguous"),
        ("ab", ArgumentTypeError, "str, which holds no bytes"),
    ],
)
def test_when_one_output_does_not_fit_none_is_written(target, error, words):
    slot = OutputSlot(4)
    slot.put(b"old")
    with pytest.raises(error, match=words):
        replace_output_buffers_preserving_slots([b"new", b"ab"], [slot, target])
    assert bytes(slot) == b"old"


def test_a_cleared_slot_keeps_its_arena():
    slot = OutputSlot(4)
    slot.put(b"abc")
    slot.clear()
    assert (len(slot), slot.capacity, bytes(slot.view)) == (0, 4, b"")
    assert repr(slot) == "<OutputSlot: 0 of 4 bytes in use>"


def test_an_arena_that_cannot_be_had_is_an_error_with_numbers():
    with pytest.raises(DeviceOutOfMemory, match=r"no host memory for an output slot .*requested=\d+.*Fix: split"):
        OutputSlot(1 << 60)


@given(st.lists(st.integers(0, 9), max_size=6), st.lists(st.binary(max_size=9), max_size=6))
def test_any_outputs_arrive_in_any_slots(capacities, incoming):
    outputs = slots(*capacities)
    kept = list(outputs)
    stats = replace_output_buffers_preserving_slots([bytearray(b) for b in incoming], outputs)
    assert [bytes(s) for s in outputs] == incoming
    assert all(a is b for a, b in zip(outputs, kept, strict=False))
    s, b = stats.slots, stats.bytes
    assert s.total_slots == len(incoming) == s.reused_slots + s.moved_slots + s.appended_slots
    assert b.incoming_bytes == sum(map(len, incoming)) == b.copied_bytes + b.moved_bytes + b.appended_bytes
    assert b.retained_capacity_bytes == sum(x.capacity for x in outputs)
    assert s.appended_slots == max(0, len(incoming) - len(capacities))
