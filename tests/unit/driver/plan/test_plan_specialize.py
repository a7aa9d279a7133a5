"""Constants of a pipeline: values, maps of them, and keys that never take one for another."""

import itertools
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vyre.driver.plan.specialize import (
    SpecCacheKey,
    SpecMap,
    SpecValue,
    program_vsa_fingerprint,
    versioned_specialization_artifact_key,
    vsa_specialization_key,
)
from vyre.errors import ArgumentTypeError, ArgumentValueError, WireError
from vyre.foundation.ir.dtypes import (
    SIMPLE,
    array_type,
    bool_,
    f16,
    f32,
    f64,
    i8,
    i32,
    opaque_type,
    quantized_type,
    u8,
    u32,
    vec_type,
)
from vyre.foundation.ir.program import Program, read

NUMBERS = st.one_of(
    st.integers(0, (1 << 32) - 1), st.integers(-(1 << 31), -1), st.booleans(), st.floats(width=32, allow_nan=False)
)
VALUES = st.one_of(NUMBERS, st.sampled_from([*SIMPLE.values(), vec_type(u32, 2), array_type(8)])).map(SpecValue.of)
MAPS = st.dictionaries(st.text(max_size=4), VALUES, max_size=4)
PARAMETRIC = (
    vec_type(u32, 2),
    vec_type(u32, 4),
    vec_type(f32, 2),
    vec_type(vec_type(u32, 2), 2),
    array_type(4),
    array_type(8),
    quantized_type(i8),
    quantized_type(u8),
    quantized_type(i8, ("per_group", 32)),
    quantized_type(i8, ("per_channel", 1), ("per_tensor", 0)),
    opaque_type(0x80000001),
    opaque_type(0x80000002),
)


# ---- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value, dtype, kind, number, hashed",
    [
        (7, None, "u32", 7.0, 0x700),
        (0xFFFFFFFF, u32, "u32", 4294967295.0, 0xFFFFFFFF00),
        (-1, None, "i32", -1.0, 0xFFFFFFFF01),
        (5, i32, "i32", 5.0, 0x501),
        (1.5, None, "f32", 1.5, 0x3FC0000002),
        (3, f32, "f32", 3.0, 0x4040000002),
        (True, None, "bool", 1.0, 0x103),
        (0, bool_, "bool", 0.0, 0x003),
        (f32, None, "dtype", 11.0, 0xB04),
    ],
)
def test_a_value_knows_its_kind_number_and_hash(value, dtype, kind, number, hashed):
    found = SpecValue.of(value, dtype)
    assert (found.kind, found.as_pipeline_f64(), found.cache_hash()) == (kind, number, hashed)
    assert found.value == value


@pytest.mark.parametrize(
    "value, dtype, error, words",
    [
        (-1, u32, ArgumentValueError, "-1 is not a constant of type u32.*Fix: use a whole number from 0 to 4294967295"),
        (1 << 32, None, ArgumentValueError, "4294967296 is not a constant of type u32"),
        (-(1 << 31) - 1, None, ArgumentValueError, "is not a constant of type i32"),
        (1.5, u32, ArgumentValueError, "1.5 is not a constant of type u32"),
        (2, bool_, ArgumentValueError, "2 is not a constant of type bool"),
        (10**400, f32, ArgumentValueError, "is not a constant of type f32.*Fix: use a value in the range"),
        (2**128, f32, ArgumentValueError, "is not a constant of type f32"),
        (1e39, None, ArgumentValueError, r"1e\+39 is not a constant of type f32.*Fix: use a value in the range"),
        (1.0, f64, ArgumentTypeError, "there are no f64 constants.*Fix: use u32, i32, f32 or bool"),
        (1, f16, ArgumentTypeError, "no f16 constants"),
        ("4", None, ArgumentTypeError, "'4' is not a constant.*Fix: pass a number"),
    ],
)
def test_a_value_that_is_no_constant_is_refused(value, dtype, error, words):
    with pytest.raises(error, match=words):
        SpecValue.of(value, dtype)


@pytest.mark.row("B-SPEC-05")
def test_types_differ_from_each_other_and_from_numbers():
    types = [SpecValue.of(t) for t in (f32, u32, i32)]
    zeros = [SpecValue.of(0, t) for t in (u32, i32, f32, bool_)]
    assert len({v.cache_hash() for v in (*types, *zeros)}) == len({*types, *zeros}) == 7
    assert SpecValue.of(f32) == SpecValue.of(f32)
    assert SpecValue.of(f32).cache_hash() == SpecValue.of(f32).cache_hash()


@pytest.mark.row("B-SPEC-06", "B-SPEC-08")
def test_every_type_has_a_hash_of_its_own():
    hashes = [SpecValue.of(t).cache_hash() for t in (*SIMPLE.values(), *PARAMETRIC)]
    assert len(set(hashes)) == len(SIMPLE) + len(PARAMETRIC)
    assert all(0 <= h < 1 << 64 for h in hashes)
    for a, b in itertools.combinations(PARAMETRIC, 2):
        assert SpecMap({"T": a}).cache_hash() != SpecMap({"T": b}).cache_hash()


def test_a_type_that_the_wire_cannot_hold_is_refused():
    with pytest.raises(WireError, match="Fix: "):
        SpecValue.of(vec_type(u32, 0))


@pytest.mark.row("B-SPEC-07")
def test_zeros_keep_their_sign_and_nans_are_one():
    assert SpecValue.of(0.0) != SpecValue.of(-0.0)
    assert SpecValue.of(0.0).cache_hash() != SpecValue.of(-0.0).cache_hash()
    other = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000123))[0]
    assert SpecValue.of(math.nan) == SpecValue.of(other)
    assert SpecValue.of(math.nan).cache_hash() == 0x7FC0000002
    assert math.isnan(SpecValue.of(math.nan).value)
    assert SpecValue.of(1e-45).value > 0  # a constant keeps its bits; a kernel flushes them when it reads them


# ---- maps -----------------------------------------------------------------------------------------------------------


@pytest.mark.row("B-SPEC-01")
@given(MAPS, st.randoms())
def test_the_order_of_insertion_does_not_matter(values, random):
    names = list(values)
    random.shuffle(names)
    built = SpecMap()
    for name in names:
        built = built.insert(name, values[name])
    assert built == SpecMap(values)
    assert built.cache_hash() == SpecMap(values).cache_hash()
    assert list(built) == sorted(values)
    assert hash(built) == hash(SpecMap(values))


@pytest.mark.row("B-SPEC-02")
@given(MAPS, MAPS)
def test_two_maps_have_one_key_only_when_they_are_equal(a, b):
    one, two = SpecMap(a), SpecMap(b)
    assert (one == two) == (a == b)
    same = SpecCacheKey.new(1, 2, (64, 1, 1), one) == SpecCacheKey.new(1, 2, (64, 1, 1), two)
    assert same == (a == b)


@pytest.mark.row("B-SPEC-02")
def test_every_part_of_a_key_counts():
    specs = SpecMap({"n": 1})
    key = SpecCacheKey.new(1, 2, (64, 1, 1), specs)
    assert key == SpecCacheKey(1, 2, (64, 1, 1), specs.cache_hash())
    others = [
        SpecCacheKey.new(9, 2, (64, 1, 1), specs),
        SpecCacheKey.new(1, 9, (64, 1, 1), specs),
        SpecCacheKey.new(1, 2, (64, 1, 2), specs),
        SpecCacheKey.new(1, 2, (64, 1, 1), specs.insert("n", 2)),
    ]
    assert len({key, *others}) == 5


def test_a_map_is_frozen_and_has_its_numbers():
    specs = SpecMap({"unroll": 4, "scale": 0.5, "on": True, "T": f32})
    assert specs.to_numeric_constants() == {"T": 11.0, "on": 1.0, "scale": 0.5, "unroll": 4.0}
    assert specs["unroll"] == SpecValue.of(4)
    assert specs.insert("unroll", 8)["unroll"].value == 8
    assert specs["unroll"].value == 4
    assert len(specs) == 4
    assert not specs.is_empty()
    assert SpecMap().is_empty()
    assert repr(SpecMap({"a": 1})) == "SpecMap({'a': SpecValue(kind='u32', bits=1, type=None)})"


def test_hashes_stay_what_they_are():
    """They are part of keys on disk."""
    assert SpecMap().cache_hash() == 0xCBF29CE484222325
    assert SpecMap({"K": 1}).cache_hash() == 0xA24E953B0087CFA2
    assert SpecMap({"A": 1, "B": 2}).cache_hash() == 0xF42BB59246E5B39F


@pytest.mark.row("B-SPEC-04")
def test_a_name_does_not_run_into_what_follows():
    assert SpecMap({"ab": 1, "cd": 2}).cache_hash() != SpecMap({"abc": 1, "d": 2}).cache_hash()
    key = versioned_specialization_artifact_key
    assert key(1, "ab", "cd") != key(1, "abc", "d")
    value = struct.pack("<Q", SpecValue.of(1).cache_hash()).decode("latin-1")
    assert SpecMap({"a": 1, "b": 1}).cache_hash() != SpecMap({f"a{value}b": 1}).cache_hash()


# ---- keys -----------------------------------------------------------------------------------------------------------

A, B = (Program([read("x", slot, u32)], (64, 1, 1), ()) for slot in (0, 1))


@pytest.mark.row("B-LAU-01")
def test_a_fingerprint_is_eight_little_endian_words():
    words = program_vsa_fingerprint(A)
    assert len(words) == 8
    assert b"".join(w.to_bytes(4, "little") for w in words).hex() == A.fingerprint


@pytest.mark.row("B-SPEC-03")
def test_a_key_of_128_bits_has_the_program_above_and_the_constants_below():
    one, two = SpecMap({"n": 1}).cache_hash(), SpecMap({"n": 2}).cache_hash()
    keys = [vsa_specialization_key(p, h) for p in (A, B) for h in (one, two)]
    assert len(set(keys)) == 4
    assert keys[0] >> 64 == keys[1] >> 64 != keys[2] >> 64
    assert [k & (1 << 64) - 1 for k in keys] == [one, two, one, two]
    low, high = program_vsa_fingerprint(A)[:2]
    assert keys[0] >> 64 == low | high << 32


def test_every_part_of_an_artifact_key_counts():
    key = versioned_specialization_artifact_key
    found = [key(1, "s", "b"), key(2, "s", "b"), key(1, "t", "b"), key(1, "s", "c"), key(1, "b", "s")]
    assert len(set(found)) == 5
    assert all(len(k) == 64 and int(k, 16) >= 0 for k in found)
    assert key(1, "s", "b") == "7d927749908127a66e38d657014096d4f24926e5b4a9b7762dad79bdd0ea3607"
