"""Binding plans: order, roles, lengths, and what two plans share."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vyre.driver.plan.binding import (
    MAX_SLOT,
    BackendLayoutClass,
    BackendLayoutFingerprint,
    BackendLayoutSlot,
    BindingPlan,
    BindingRole,
    BindingSetFingerprint,
    binding_plans_share_layout,
    byte_lengths,
    element_size_bytes,
)
from vyre.errors import ArgumentTypeError, ArgumentValueError, InvalidProgram
from vyre.foundation.ir.dtypes import array_type, bool_, f64, i4, opaque_type, u8, u16, u32, u64, vec_type
from vyre.foundation.ir.program import (
    Access,
    BufferDecl,
    Hints,
    MemoryKind,
    Program,
    output,
    read,
    read_write,
    uniform,
    workgroup,
    write_only,
)

R = BindingRole


def program(*buffers):
    return Program(buffers, (64, 1, 1), ())


def planned(*buffers, lengths=(), **more):
    return BindingPlan.from_input_lengths(program(*buffers), lengths, **more)


def one(plan):
    (binding,) = plan.bindings
    return binding


# ---- order ----------------------------------------------------------------------------------------------------------


@pytest.mark.row("B-BIND-01")
def test_inputs_and_outputs_go_by_slot_and_not_by_declaration():
    declared = (read("p", 9, u32), output("q", 8, u32, 5), read("r", 0, u32), output("s", 1, u32, 6))
    plan = planned(*declared, lengths=(8, 12))
    assert [b.binding for b in plan.bindings] == [0, 1, 8, 9]
    assert plan.input_indices == (2, 0)
    assert plan.output_indices == (3, 1)
    assert plan.shared_indices == ()
    r, s, q, p = plan.bindings
    assert (r.input_index, r.element_count) == (0, 2)
    assert (p.input_index, p.element_count) == (1, 3)
    assert (s.output_index, q.output_index) == (0, 1)
    assert [b.name for b in plan.inputs] == ["r", "p"]
    assert [b.name for b in plan.outputs] == ["s", "q"]


def test_the_plan_agrees_with_the_program_about_who_is_an_input():
    p = program(
        read("a", 3, u32),
        read_write("b", 1, u32),
        uniform("c", 2, u32, 1),
        write_only("d", 0, u32, 4),
        output("e", 4, u32, 4),
        workgroup("f", u32, 8),
        BufferDecl("g", 5, Access.READ_ONLY, u32, kind=MemoryKind.PERSISTENT),
        BufferDecl("h", 6, Access.READ_WRITE, u32, 2, live_out=True),
    )
    plan = BindingPlan.build(p)
    assert [b.name for b in plan.inputs] == [b.name for b in p.host_inputs] == ["b", "c", "a", "g"]
    assert [b.name for b in plan.outputs] == [b.name for b in p.host_outputs] == ["d", "b", "e", "h"]
    assert {b.name: b.role for b in plan.bindings} == {
        "a": R.INPUT, "b": R.INPUT_OUTPUT, "c": R.UNIFORM, "d": R.OUTPUT, "e": R.OUTPUT, "f": R.SHARED,
        "g": R.PERSISTENT, "h": R.OUTPUT,
    }  # fmt: skip
    assert plan.shared_indices == (5,)


@pytest.mark.row("B-BIND-10")
def test_two_bound_buffers_of_one_slot_are_refused_by_name():
    with pytest.raises(InvalidProgram, match=r"'a' and 'b' share slot 3.*Fix: give each"):
        BindingPlan.build(program(read("a", 3, u32), read("c", 1, u32), read_write("b", 3, u32)))
    shared = BindingPlan.build(program(read("a", 0, u32), workgroup("s", u32, 4), workgroup("t", u32, 4)))
    assert len(shared.bindings) == 3  # workgroup memory has no slot


@pytest.mark.parametrize("slot, ok", [(0, True), (MAX_SLOT, True), (MAX_SLOT + 1, False), (0xFFFFFFFF, False)])
def test_a_slot_beyond_the_table_is_refused(slot, ok):
    if ok:
        assert one(BindingPlan.build(program(read("a", slot, u32)))).binding == slot
    else:
        with pytest.raises(InvalidProgram, match=r"'a' has slot \d+ .*Fix: use a slot from 0 to 65535"):
            BindingPlan.build(program(read("a", slot, u32)))


def test_a_count_beyond_32_bits_is_refused():
    with pytest.raises(InvalidProgram, match=r"has count 4294967296 .*Fix: use a count from 0"):
        BindingPlan.build(program(read("a", 0, u32, 1 << 32)))


# ---- lengths --------------------------------------------------------------------------------------------------------


@pytest.mark.row("B-BIND-02")
@pytest.mark.parametrize("nbytes, host, resident", [(4, False, False), (8, True, True), (12, False, True)])
def test_a_static_input_is_exact_on_the_host_and_may_be_longer_on_the_device(nbytes, host, resident):
    decl = read("a", 0, u32, 2)
    for ok, flag, words in ((host, False, "expected 8 bytes"), (resident, True, "at least 8 bytes")):
        if ok:
            found = one(planned(decl, lengths=(nbytes,), resident=flag))
            assert (found.element_count, found.nbytes, found.static_byte_len) == (2, 8, 8)
        else:
            with pytest.raises(ArgumentValueError, match=rf"{words}.*Fix: pass 2 elements of u32"):
                planned(decl, lengths=(nbytes,), resident=flag)


@pytest.mark.row("B-BIND-03")
def test_a_runtime_sized_input_counts_its_own_elements():
    found = one(planned(read("a", 0, u32), lengths=(12,)))
    assert (found.element_count, found.nbytes, found.static_byte_len) == (3, 12, None)
    assert one(planned(read("a", 0, u32), lengths=(0,))).element_count == 0
    assert one(BindingPlan.build(program(read("a", 0, u32)))).element_count == 0


@pytest.mark.row("B-BIND-05")
def test_packed_nibbles_take_half_a_byte_each():
    decl = read("a", 0, i4, 3)
    found = one(BindingPlan.build(program(decl)))
    assert (found.element_size, found.static_byte_len, found.nbytes) == (1, 2, 2)
    for nbytes in (2, 3):
        assert one(planned(decl, lengths=(nbytes,), resident=True)).element_count == 3
    with pytest.raises(ArgumentValueError, match="at least 2 bytes"):
        planned(decl, lengths=(1,), resident=True)
    assert one(planned(read("a", 0, i4), lengths=(3,))).element_count == 6


@pytest.mark.row("B-BIND-06")
def test_a_plan_that_is_kept_checks_lengths_again():
    plan = BindingPlan.build(program(read("a", 0, u32, 4)))
    plan.validate_input_byte_lengths((16,), resident=True)
    plan.validate_input_byte_lengths((20,), resident=True)
    with pytest.raises(ArgumentValueError, match="at least 16 bytes"):
        plan.validate_input_byte_lengths((12,), resident=True)


@pytest.mark.parametrize("given", [(), (4,), (4, 4, 4)])
def test_the_number_of_inputs_must_match(given):
    with pytest.raises(ArgumentValueError, match=rf"expected 2 input buffer\(s\) and received {len(given)}.*: a, b"):
        planned(read("b", 1, u32), read("a", 0, u32), lengths=given)


@pytest.mark.parametrize("element, nbytes, ok", [(u32, 3, False), (u32, 4, True), (u16, 3, False), (u8, 3, True)])
def test_an_input_holds_whole_elements(element, nbytes, ok):
    if ok:
        assert one(planned(read("a", 0, element), lengths=(nbytes,))).element_count == nbytes // element.size
    else:
        with pytest.raises(ArgumentValueError, match=rf"3 bytes, no multiple of {element.size}.*Fix: pass whole"):
            planned(read("a", 0, element), lengths=(nbytes,))


def test_an_input_has_no_more_elements_than_an_index_reaches():
    assert one(planned(read("a", 0, u8), lengths=(0xFFFFFFFF,))).element_count == 0xFFFFFFFF
    with pytest.raises(ArgumentValueError, match=r"more elements than an index reaches.*Fix: pass at most 4294967295"):
        planned(read("a", 0, u8), lengths=(1 << 32,))


def test_lengths_come_from_any_buffer():
    given = [b"1234", bytearray(5), memoryview(bytes(6)), np.zeros((2, 3), np.uint32), np.zeros(8, np.uint32)[::2]]
    assert byte_lengths(given) == (4, 5, 6, 24, 16)
    with pytest.raises(ArgumentTypeError, match=r"buffer 1 is list, which holds no bytes.*Fix: pass bytes"):
        byte_lengths([b"", [1, 2]])
    with pytest.raises(ArgumentTypeError, match="buffer 0 is str"):
        BindingPlan.from_inputs(program(read("a", 0, u32)), ["text"])


# ---- alignment and types --------------------------------------------------------------------------------------------


@pytest.mark.row("B-BIND-04")
@pytest.mark.parametrize("hint, element, found", [(0, u32, 4), (64, u32, 64), (2, u32, 4), (0, f64, 8), (1, u8, 1)])
def test_the_alignment_is_the_larger_of_hint_and_element(hint, element, found):
    decl = read("a", 0, element).replace(hints=Hints(preferred_alignment=hint))
    assert one(BindingPlan.build(program(decl))).preferred_alignment == found


@pytest.mark.row("B-BIND-04")
@pytest.mark.parametrize("hint", [48, 3, -4])
def test_an_alignment_is_a_power_of_two(hint):
    decl = read("a", 0, u32).replace(hints=Hints(preferred_alignment=hint))
    with pytest.raises(InvalidProgram, match=rf"preferred_alignment={hint}.*Fix: use 0 or a power of two"):
        BindingPlan.build(program(decl))


@pytest.mark.row("B-OUT-07")
def test_a_type_without_a_size_cannot_be_bound():
    assert [element_size_bytes(t) for t in (u8, u16, u32, u64, bool_, i4)] == [1, 2, 4, 8, 4, 1]
    for dtype, words in (
        (opaque_type(0x80000001), "no fixed size"),
        (vec_type(u32, 0), "Vec count must be > 0"),
        (array_type(0), "no fixed size"),
    ):
        with pytest.raises(InvalidProgram, match=rf"{words}.*Fix: use a number type"):
            element_size_bytes(dtype)
        with pytest.raises(InvalidProgram, match=words):
            BindingPlan.build(program(read("a", 0, dtype, 1)))


# ---- outputs of open length -----------------------------------------------------------------------------------------

OUT = write_only("out", 5, u32)


def out_length(*buffers, lengths=(), sizes=None, out_lengths=None):
    plan = planned(*buffers, OUT, lengths=lengths, output_elements=sizes, out_lengths=out_lengths)
    return next(b.element_count for b in plan.bindings if b.name == "out")


def test_an_open_output_takes_the_length_that_the_inputs_share():
    two = (read("a", 0, u32), read_write("b", 1, u16))
    assert out_length(*two, lengths=(12, 6)) == 3
    with pytest.raises(ArgumentValueError, match=r"'out' is not clear: .*\(a 3, b 4\).*Fix: .*\{\"out\": n\}"):
        out_length(*two, lengths=(12, 8))


def test_uniforms_and_static_inputs_size_nothing():
    others = (uniform("n", 0, u32, 1), uniform("m", 1, u32), read("table", 2, u32, 7))
    with pytest.raises(ArgumentValueError, match=r"nothing says how long output 'out' is.*Fix: .*output_elements"):
        out_length(*others, lengths=(4, 8, 28))
    assert out_length(*others, read("x", 3, u8), lengths=(4, 8, 28, 9)) == 9


def test_what_the_caller_says_comes_first_then_its_buffer_then_the_inputs():
    a = read("a", 0, u32)
    assert out_length(a, lengths=(12,), sizes={"out": 7}, out_lengths=(16,)) == 7
    assert out_length(a, lengths=(12,), out_lengths=(16,)) == 4
    assert out_length(a, lengths=(12,), out_lengths=(None,)) == 3
    assert out_length(a, lengths=(12,), sizes={"out": 0}) == 0
    with pytest.raises(ArgumentValueError, match=r"for output 'out' has 6 bytes, no multiple of 4.*Fix: pass whole"):
        out_length(a, lengths=(12,), out_lengths=(6,))
    with pytest.raises(ArgumentValueError, match=r"expected 1 output buffer\(s\) and received 2.*: out"):
        out_length(a, lengths=(12,), out_lengths=(12, 12))


def test_an_open_output_with_a_range_is_as_long_as_the_range_needs():
    ranged = OUT.replace(output_byte_range=(4, 10))
    assert planned(ranged).bindings[0].element_count == 3


@pytest.mark.parametrize(
    "sizes, words",
    [
        ({"b": 3}, "'b' is not an output whose length the caller chooses"),
        ({"nope": 3}, "name one of: out, fixed"),
        ({"out": -1}, "-1 is not a length for output 'out'"),
        ({"out": 1 << 32}, "use a whole number from 0 to 4294967295"),
        ({"out": 2.0}, "2.0 is not a length"),
        ({"fixed": 3}, "'fixed' has 4 elements and the caller asks for 3"),
    ],
)
def test_sizes_that_cannot_be_meant_are_refused(sizes, words):
    with pytest.raises(ArgumentValueError, match=words):
        planned(read_write("b", 0, u32), OUT, output("fixed", 6, u32, 4), lengths=(4,), output_elements=sizes)


def test_a_size_may_repeat_what_the_program_fixes():
    plan = planned(output("fixed", 6, u32, 4), output_elements={"fixed": 4})
    assert one(plan).element_count == 4


# ---- shared layouts -------------------------------------------------------------------------------------------------


@pytest.mark.row("B-BIND-07")
def test_layouts_ignore_names_lengths_and_alignment():
    a = BindingPlan.build(program(read("a", 0, u32), output("o", 1, u32, 4)))
    b = BindingPlan.build(
        program(output("p", 1, u32, 900), read("x", 0, u32, 7).replace(hints=Hints(preferred_alignment=64)))
    )
    wider = BindingPlan.build(program(read("a", 0, u64), output("o", 1, u32, 4)))
    more = BindingPlan.build(program(read("a", 0, u32), output("o", 1, u32, 4), workgroup("s", u32, 4)))
    assert binding_plans_share_layout(a, b)
    assert not binding_plans_share_layout(a, wider)
    assert not binding_plans_share_layout(a, more)
    slots = BindingSetFingerprint.from_plan(more).slots
    assert list(slots) == sorted(slots)
    assert BindingSetFingerprint.from_plan(a) == BindingSetFingerprint.from_plan(a)


@pytest.mark.row("B-BIND-07")
def test_building_again_gives_an_equal_plan():
    def make():
        return BindingPlan.build(program(read("a", 0, u32), output("o", 1, u32, 4)))

    assert make() == make()


@pytest.mark.row("B-BIND-08")
@given(st.permutations(range(6)))
def test_a_device_table_does_not_depend_on_the_order_it_was_listed_in(order):
    slots = [BackendLayoutSlot(k % 2, k, BackendLayoutClass.STORAGE, k == 3, 4) for k in range(6)]
    found = BackendLayoutFingerprint(tuple(slots[k] for k in order))
    assert found == BackendLayoutFingerprint(tuple(slots))
    assert hash(found) == hash(BackendLayoutFingerprint(tuple(slots)))


@pytest.mark.row("B-BIND-08")
def test_a_device_table_says_what_each_buffer_is():
    buffers = (
        read_write("b", 2, u16),
        uniform("u", 0, u32, 1),
        read("a", 1, u32),
        write_only("o", 3, u8, 4),
        workgroup("s", u32, 4),
    )
    found = BackendLayoutFingerprint.from_plan(BindingPlan.build(program(*buffers)), group=1)
    storage, uniform_ = BackendLayoutClass.STORAGE, BackendLayoutClass.UNIFORM
    assert found.slots == (
        BackendLayoutSlot(1, 0, uniform_, True, 4),
        BackendLayoutSlot(1, 1, storage, True, 4),
        BackendLayoutSlot(1, 2, storage, False, 2),
        BackendLayoutSlot(1, 3, storage, False, 1),
    )


DECLS = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.sampled_from([Access.READ_ONLY, Access.READ_WRITE, Access.WRITE_ONLY, Access.UNIFORM]),
        st.sampled_from([u8, u16, u32, u64]),
        st.integers(1, 9),
    ),
    max_size=8,
    unique_by=lambda d: d[0],
)


@pytest.mark.row("B-BIND-09")
@settings(max_examples=256)
@given(DECLS, DECLS, st.randoms())
def test_plans_agree_with_a_plain_list_of_facts(first, second, random):
    def build(decls):
        shuffled = [BufferDecl(f"b{slot}", slot, access, element, n) for slot, access, element, n in decls]
        random.shuffle(shuffled)
        return BindingPlan.build(program(*shuffled)), program(*shuffled)

    def facts(decls):
        return sorted((slot, access, element.size) for slot, access, element, _ in decls)

    (a, p), (b, _) = build(first), build(second)
    slots = [x.binding for x in a.bindings]
    assert slots == sorted(slots)
    assert len(a.input_indices) == sum(access is not Access.WRITE_ONLY for _, access, _, _ in first)
    assert [p.buffers[k].name for k in a.input_indices] == [x.name for x in p.host_inputs]
    assert [p.buffers[k].name for k in a.output_indices] == [x.name for x in p.host_outputs]
    assert [x.input_index for x in a.inputs] == list(range(len(a.inputs)))
    assert [x.output_index for x in a.outputs] == list(range(len(a.outputs)))
    assert binding_plans_share_layout(a, b) == (facts(first) == facts(second))
