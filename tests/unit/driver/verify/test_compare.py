"""Outputs are equal byte for byte, or the first difference is named by output, element and value."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vyre.driver.verify.compare import (
    arrangement,
    compare_outputs,
    first_differing_byte,
    may_approximate,
    ulps_apart,
    unordered,
)
from vyre.errors import ArgumentValueError
from vyre.foundation.ir.dtypes import bf16, bool_, f16, f32, f64, i8, i32, i64, u8, u16, u32, u64
from vyre.foundation.ir.nodes import InvocationId, Lit, Load, Store, UnOp
from vyre.foundation.ir.ops import UnaryOp
from vyre.foundation.ir.program import Program, read, write_only


def program(element, sine=False, **output):
    """One output of this type; with `sine`, some operation may be approximated."""
    value = UnOp(UnaryOp.SIN, Load("x", InvocationId(0))) if sine else Lit(f32, 0)
    out = write_only("out", 1, element).replace(**output)
    body = [Store("side", InvocationId(0), value)]
    return Program([read("x", 0, f32), out, write_only("side", 2, f32)], (1, 1, 1), body)


def differ(element, found, expected, *, side=(b"", b""), sine=False, **options):
    return compare_outputs(program(element, sine), [found, side[0]], [expected, side[1]], **options)


def test_equal_bytes_have_no_difference():
    assert differ(u32, b"abcd", b"abcd") == (None, 0)
    assert differ(f32, b"\0\0\xc0\x7f", b"\0\0\xc0\x7f").difference is None


@pytest.mark.row("A-SH-8")
@pytest.mark.parametrize(
    "element, form, found, expected",
    [
        (u8, "<B", 255, 254),
        (i8, "<b", -1, 1),
        (u16, "<H", 65535, 1),
        (u32, "<I", 5, 4),
        (i32, "<i", -5, 5),
        (u64, "<Q", 1 << 63, 0),
        (i64, "<q", -(1 << 63), 0),
        (f16, "<e", 1.5, -1.5),
        (f32, "<f", 0.5, 0.25),
        (f64, "<d", 0.1, 0.2),
        (bool_, "<I", 1, 0),
    ],
)
def test_a_difference_has_the_values_of_its_element(element, form, found, expected):
    seven = struct.pack(form, 1) * 7
    mine, theirs = (seven + struct.pack(form, value) for value in (found, expected))
    difference = differ(element, mine, theirs, ulp_budget=255).difference  # no budget without an inexact operation
    assert (difference.kind, difference.output, difference.element) == ("value", "out", 7)
    assert (difference.found, difference.expected) == (found, expected)
    assert difference.found_bits == "0x" + struct.pack(form, found)[::-1].hex()
    assert difference.facts["expected"] == f"{expected} ({difference.expected_bits})"
    assert difference.byte_offset // element.size == 7


def test_a_bf16_is_shown_as_the_number_it_is():
    difference = differ(bf16, b"\x80\x3f", b"\x00\x40").difference
    assert (difference.found, difference.expected, difference.ulps) == (1.0, 2.0, 128)


def test_the_number_of_outputs_and_their_length_are_differences_of_their_own():
    count = compare_outputs(program(u32), [b"", b""], [b""]).difference
    assert (count.kind, count.output, count.found, count.expected) == ("count", None, 2, 1)
    assert count.facts == {"found": 2, "expected": 1}
    length = differ(u32, bytes(8), bytes(12)).difference
    assert (length.kind, length.output, length.found, length.expected) == ("length", "out", 8, 12)
    assert (length.byte_offset, length.element) == (8, 2)
    assert differ(u32, b"\1" + bytes(7), bytes(12)).difference.byte_offset == 0


def test_outputs_are_looked_at_in_slot_order():
    assert differ(u32, bytes(4), b"\1\0\0\0", side=(bytes(4), b"\1\0\0\0")).difference.output == "out"
    assert differ(u32, bytes(4), bytes(4), side=(bytes(4), b"\1\0\0\0")).difference.output == "side"


def test_elements_count_from_the_start_of_the_buffer():
    p = program(u32, output_byte_range=(8, 16))
    difference = compare_outputs(p, [bytes(8), b""], [bytes(4) + b"\1\0\0\0", b""]).difference
    assert (difference.element, difference.byte_offset, difference.expected) == (3, 4, 1)
    cut = program(u32, output_byte_range=(6, 11))
    difference = compare_outputs(cut, [bytes(5), b""], [b"\1" + bytes(4), b""]).difference
    assert (difference.element, difference.found, difference.expected) == (1, b"\0\0", b"\1\0")


# ---- budgets --------------------------------------------------------------------------------------------------------


def test_only_operations_without_an_exact_definition_have_a_budget():
    assert may_approximate(program(u32, sine=True))
    assert not may_approximate(program(u32))


@pytest.mark.row("A-SH-8")
@pytest.mark.parametrize("budget, found", [(0, 1), (1, 1), (1, 2), (2, 2), (2, 3)])
def test_floats_may_differ_by_as_many_ulps_as_the_budget_has(budget, found):
    bits = 0x3F800000
    result = differ(f32, (bits + found).to_bytes(4, "little"), bits.to_bytes(4, "little"), sine=True, ulp_budget=budget)
    if found <= budget:
        assert result == (None, found)
    else:
        assert result.difference.ulps == found


@pytest.mark.row("A-SH-8")
@pytest.mark.parametrize("element", [u8, u16, u32, u64, i32, i64, bool_])
def test_integers_have_no_budget(element):
    found = bytes(element.size - 1) + b"\1"
    assert differ(element, found, bytes(element.size), sine=True, ulp_budget=255).difference.output == "out"


def test_the_first_element_over_the_budget_is_named():
    mine, theirs = struct.pack("<3I", 1, 5, 9), struct.pack("<3I", 2, 0, 0)
    assert differ(f32, mine, theirs, sine=True, ulp_budget=4).difference.element == 1


def test_a_part_of_a_float_has_no_ulps():
    p = program(f32, sine=True, output_byte_range=(2, 6))
    assert compare_outputs(p, [b"\1\0\0\0", b""], [bytes(4), b""], ulp_budget=9).difference.byte_offset == 0


@pytest.mark.parametrize("element, form", [(f16, "<e"), (f32, "<f"), (f64, "<d")])
@pytest.mark.parametrize(
    "a, b, ulps",
    [
        (0.0, -0.0, 0),
        (math.nan, math.nan, 0),
        (math.nan, 1.0, (1 << 64) - 1),
        (math.inf, math.inf, 0),
        (1.0, 1.0, 0),
    ],
)
def test_zeros_are_one_number_and_so_are_nans(element, form, a, b, ulps):
    assert ulps_apart(struct.pack(form, a), struct.pack(form, b), element).tolist() == [ulps]


@pytest.mark.parametrize("element", [f16, bf16, f32, f64])
def test_ulps_count_across_zero_and_up_to_infinity(element):
    def pack(bits):
        return bits.to_bytes(element.size, "little")

    sign = 1 << element.bits - 1
    assert ulps_apart(pack(3), pack(sign | 4), element).tolist() == [7]
    infinity = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF0 << 48}[element.name]
    assert ulps_apart(pack(infinity), pack(infinity - 1), element).tolist() == [1]
    assert ulps_apart(pack(infinity), pack(sign | infinity), element).tolist() == [2 * infinity]
    assert ulps_apart(pack(infinity), pack(infinity + 1), element).tolist() == [(1 << 64) - 1]


@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFFFFFF))
def test_ulps_are_symmetric_and_zero_only_for_one_number(a, b):
    x, y = a.to_bytes(4, "little"), b.to_bytes(4, "little")
    apart = int(ulps_apart(x, y, f32)[0])
    assert apart == int(ulps_apart(y, x, f32)[0])
    values = [struct.unpack("<f", data)[0] for data in (x, y)]
    assert (apart == 0) == (values[0] == values[1] or all(math.isnan(v) for v in values))


# ---- arrangements ---------------------------------------------------------------------------------------------------


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_the_first_differing_byte_is_the_first(a, b):
    at = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert first_differing_byte(a, b) == at


@given(st.lists(st.integers(0, 0xFFFFFFFF), max_size=20), st.randoms())
def test_unordered_outputs_are_equal_in_any_order(values, random):
    shuffled = random.sample(values, len(values))
    mine, theirs = (b"".join(v.to_bytes(4, "little") for v in vs) for vs in (values, shuffled))
    assert differ(u32, mine, theirs, compare="unordered").difference is None


def test_unordered_outputs_still_hold_the_same_elements():
    difference = differ(u16, b"\1\0\2\0", b"\2\0\2\0", compare="unordered").difference
    assert (difference.found, difference.expected) == (1, 2)
    assert unordered("out", b"abc", u16) == b"abc"  # no whole elements


def test_a_comparison_is_known_or_a_function():
    assert arrangement("bytes") is None
    assert arrangement("unordered") is unordered
    assert arrangement(bytes.join) == bytes.join
    with pytest.raises(
        ArgumentValueError, match=r"'sorted' is not a comparison\. Fix: use one of: bytes, unordered; or"
    ):
        arrangement("sorted")
