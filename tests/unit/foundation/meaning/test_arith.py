"""The scalar meaning of every operator, against hand-written numbers; floats have a file of their own."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vyre.errors import IRTypeError, UnsupportedFeature
from vyre.foundation.check.typing import infer
from vyre.foundation.ir import rounding
from vyre.foundation.ir.dtypes import BY_NAME, bool_, bytes_, can_cast
from vyre.foundation.ir.nodes import BinOp, UnOp, Var
from vyre.foundation.ir.ops import AtomicOp, BinaryOp, OpaqueOp, ReduceOp, UnaryOp
from vyre.foundation.meaning import arith
from vyre.foundation.meaning.mathlib import functions

f32, f64, f16, bf16 = (BY_NAME[name] for name in ("f32", "f64", "f16", "bf16"))
u8, u16, u32, u64 = (BY_NAME[name] for name in ("u8", "u16", "u32", "u64"))
i8, i16, i32, i64 = (BY_NAME[name] for name in ("i8", "i16", "i32", "i64"))
LIVE = [t for t in BY_NAME.values() if t.live]
INF, NAN = math.inf, math.nan
TINY = 2.0**-126
B, U = BinaryOp, UnaryOp


def same(a, b):
    """Equal as values of a kernel: NaN equals NaN, +0 differs from -0."""
    if isinstance(a, float) and isinstance(b, float):
        return (a != a and b != b) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return type(a) is type(b) and a == b


def bits_f32(word: int) -> float:
    """Canonical value of a word, by its own route: flush on the decoded number."""
    value = struct.unpack("<f", word.to_bytes(4, "little"))[0]
    return math.copysign(0.0, value) if abs(value) < TINY else value


# ---- integers -------------------------------------------------------------------------------------------------------

M32, M64, N32, N64 = 2**32 - 1, 2**64 - 1, -(2**31), -(2**63)


@pytest.mark.parametrize(
    "op, dtype, a, b, expected",
    [
        (B.ADD, u32, M32, 1, 0),
        (B.ADD, i32, 2**31 - 1, 1, N32),
        (B.ADD, u64, M64, 2, 1),
        (B.SUB, u32, 0, 1, M32),
        (B.SUB, i32, N32, 1, 2**31 - 1),
        (B.WRAPPING_ADD, i64, 2**63 - 1, 1, N64),
        (B.WRAPPING_SUB, u64, 0, 1, M64),
        (B.MUL, u32, 65537, 65537, 131073),
        (B.MUL, i32, 65536, 32768, N32),
        (B.MUL, i32, N32, -1, N32),
        (B.MUL, u64, M64, M64, 1),
        (B.DIV, u32, 7, 0, M32),
        (B.DIV, u32, 7, 2, 3),
        (B.DIV, u64, 0, 0, M64),
        (B.DIV, i32, 7, 0, 0),
        (B.DIV, i32, -7, 2, -3),
        (B.DIV, i32, 7, -2, -3),
        (B.DIV, i32, N32, -1, N32),
        (B.DIV, i32, N32, 1, N32),
        (B.DIV, i64, N64, -1, N64),
        (B.MOD, u32, 7, 0, 0),
        (B.MOD, u32, 7, 4, 3),
        (B.MOD, i32, -7, 4, -3),
        (B.MOD, i32, 7, -4, 3),
        (B.MOD, i32, N32, -1, 0),
        (B.MOD, i32, -7, 0, 0),
        (B.MOD, i64, N64, 10, -8),
        (B.MIN, u32, M32, 0, 0),
        (B.MIN, i32, -1, 0, -1),
        (B.MAX, i32, -1, 0, 0),
        (B.BIT_AND, i32, -1, 5, 5),
        (B.BIT_OR, i32, N32, 1, N32 + 1),
        (B.BIT_XOR, i64, -1, 0, -1),
        (B.SHL, u32, 1, 31, 2**31),
        (B.SHL, u32, 3, 32, 3),
        (B.SHL, u32, 3, M32, 2**31),
        (B.SHL, i32, 1, 31, N32),
        (B.SHL, i32, -1, 33, -2),
        (B.SHL, u64, 1, 63, 2**63),
        (B.SHL, u64, 1, 64, 1),
        (B.SHR, u32, 2**31, 31, 1),
        (B.SHR, i32, N32, 31, -1),
        (B.SHR, i32, -5, 33, -3),
        (B.SHR, i64, -1, 63, -1),
        (B.ROTATE_LEFT, u32, 0x80000001, 1, 3),
        (B.ROTATE_LEFT, u32, 0x80000001, 32, 0x80000001),
        (B.ROTATE_LEFT, i32, N32, 1, 1),
        (B.ROTATE_RIGHT, u32, 1, 1, 2**31),
        (B.ROTATE_RIGHT, i32, 1, 1, N32),
        (B.ROTATE_RIGHT, u64, 1, 65, 2**63),
        (B.ABS_DIFF, u32, 3, M32, M32 - 3),
        (B.SATURATING_ADD, u32, M32, 1, M32),
        (B.SATURATING_ADD, u32, M32 - 1, 1, M32),
        (B.SATURATING_SUB, u32, 3, 4, 0),
        (B.SATURATING_MUL, u32, 65536, 65536, M32),
        (B.SATURATING_MUL, u32, 65535, 65537, M32),
        (B.MUL_HIGH, u32, M32, M32, M32 - 1),
        (B.MUL_HIGH, u32, 65536, 65535, 0),
        (B.EQ, i8, -1, -1, True),
        (B.LT, i16, -1, 0, True),
        (B.GE, u8, 255, 0, True),
        (B.NE, bool_, True, False, True),
        (B.AND, u32, 2, 4, True),
        (B.AND, bool_, True, False, False),
        (B.OR, u32, 0, 0, False),
        (B.OR, bool_, False, True, True),
    ],
)
def test_binary_integers_at_their_edges(op, dtype, a, b, expected):
    assert same(arith.binary(op, dtype)(a, b), expected)


@pytest.mark.parametrize(
    "op, dtype, x, expected",
    [
        (U.NEGATE, u32, 1, M32),
        (U.NEGATE, i32, N32, N32),
        (U.NEGATE, i64, 5, -5),
        (U.BIT_NOT, u32, 0, M32),
        (U.BIT_NOT, i32, 0, -1),
        (U.POPCOUNT, i32, -1, 32),
        (U.POPCOUNT, u64, M64, 64),
        (U.CLZ, u32, 0, 32),
        (U.CLZ, u32, 1, 31),
        (U.CLZ, i32, -1, 0),
        (U.CLZ, u64, 0, 64),
        (U.CTZ, u32, 0, 32),
        (U.CTZ, i32, N32, 31),
        (U.CTZ, i64, N64, 63),
        (U.REVERSE_BITS, u32, 1, 2**31),
        (U.REVERSE_BITS, i32, 1, N32),
        (U.REVERSE_BITS, u64, 0b110, 3 << 61),
        (U.LOGICAL_NOT, u32, 0, True),
        (U.LOGICAL_NOT, bool_, True, False),
        (U.UNPACK4_LOW, u32, 0xABCD, 0xD),
        (U.UNPACK4_HIGH, u32, 0xABCD, 0xC),
        (U.UNPACK8_LOW, i32, -1, 0xFF),
        (U.UNPACK8_HIGH, i32, -0x8000, 0x80),
    ],
)
def test_unary_integers_at_their_edges(op, dtype, x, expected):
    assert same(arith.unary(op, dtype)(x), expected)


@given(st.integers(), st.integers(0, M32), st.sampled_from([u32, i32, u64, i64]))
def test_integers_wrap_like_machine_words(seed, amount, dtype):
    """The low bytes of the unbounded result, read back as the type."""
    size = dtype.bits // 8

    def word(n):
        return int.from_bytes((n % 2**dtype.bits).to_bytes(size, "little"), "little", signed=dtype.is_signed)

    a, b = word(seed), word(seed * 0x9E3779B97F4A7C15 + 1)
    shift = amount % dtype.bits
    assert arith.binary(B.ADD, dtype)(a, b) == word(a + b)
    assert arith.binary(B.SUB, dtype)(a, b) == word(a - b)
    assert arith.binary(B.MUL, dtype)(a, b) == word(a * b)
    assert arith.binary(B.SHL, dtype)(a, amount) == word(a * 2**shift)
    assert arith.binary(B.SHR, dtype)(a, amount) == a // 2**shift
    turned = arith.binary(B.ROTATE_LEFT, dtype)(a, amount)
    assert arith.binary(B.ROTATE_RIGHT, dtype)(turned, amount) == a
    assert arith.unary(U.REVERSE_BITS, dtype)(arith.unary(U.REVERSE_BITS, dtype)(a)) == a
    quotient, rest = arith.binary(B.DIV, dtype)(a, b), arith.binary(B.MOD, dtype)(a, b)
    if b:
        assert word(quotient * b + rest) == a
        assert abs(rest) < abs(b)
        assert rest == 0 or (rest < 0) == (a < 0)


# ---- conversions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source, target, x, expected",
    [
        (i8, u64, -1, M64),
        (i8, i32, -128, -128),
        (u8, i8, 255, -1),
        (u64, u32, 2**32 + 5, 5),
        (i64, i16, 0x18000, -0x8000),
        (u32, i32, 2**31, N32),
        (i32, bool_, -1, True),
        (bool_, i8, True, 1),
        (bool_, f32, True, 1.0),
        (f32, bool_, NAN, True),
        (f32, bool_, -0.0, False),
        (f64, bool_, 2.0**-1074, True),
        (f32, u32, -1.0, 0),
        (f32, u32, 3.99, 3),
        (f32, u32, 2.0**32, M32),
        (f32, u32, 2.0**32 - 2**8, 2**32 - 2**8),
        (f32, i32, -2.5, -2),
        (f32, i32, 2.0**31, 2**31 - 1),
        (f32, i32, -(2.0**31), N32),
        (f32, i32, -INF, N32),
        (f32, i32, INF, 2**31 - 1),
        (f32, i32, NAN, 0),
        (f64, i64, 2.0**63, 2**63 - 1),
        (f64, i64, math.nextafter(2.0**63, 0), 2**63 - 1024),
        (f64, u64, 2.0**64, M64),
        (f64, u64, math.nextafter(2.0**64, 0), 2**64 - 2048),
        (f64, u8, 255.9, 255),
        (f64, u8, 256.0, 255),
        (f64, i8, -128.9, -128),
        (u32, f32, 2**24 + 1, 2.0**24),
        (u32, f32, 2**24 + 3, 2.0**24 + 4),
        (u32, f32, M32, 2.0**32),
        (i32, f32, -(2**24) - 1, -(2.0**24)),
        (u64, f64, 2**53 + 1, 2.0**53),
        (u64, f64, M64, 2.0**64),
        (i64, f64, N64, -(2.0**63)),
        (f64, f32, 1 + 2.0**-24, 1.0),
        (f64, f32, 1e39, INF),
        (f64, f32, -1e-40, -0.0),
        (f32, f64, 0.5, 0.5),
        (f16, f32, 2.0**-24, 2.0**-24),
        (f32, f32, -0.0, -0.0),
        (u16, u16, 7, 7),
    ],
)
def test_casts_extend_wrap_saturate_and_round(source, target, x, expected):
    assert same(arith.cast(source, target)(x), expected)


@given(st.integers(0, M32))
def test_bitcasts_are_canonical_on_either_side(word):
    value = arith.bitcast(u32, f32)(word)
    assert same(value, bits_f32(word))
    bits = arith.bitcast(f32, u32)(value)
    exponent, fraction = word >> 23 & 0xFF, word & 0x7FFFFF
    if exponent == 255 and fraction:
        assert bits == 0x7FC00000
    else:
        assert bits == (word if exponent else word & 2**31)
    signed_word = arith.bitcast(u32, i32)(word)
    assert signed_word % 2**32 == word
    assert arith.bitcast(i32, u32)(signed_word) == word
    assert same(arith.bitcast(i32, f32)(signed_word), value)
    assert arith.bitcast(f32, i32)(value) % 2**32 == bits
    assert arith.bitcast(u32, u32)(word) == word


# ---- atomics, reductions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "op, dtype, old, value, new",
    [
        (AtomicOp.ADD, u32, M32, 2, 1),
        (AtomicOp.ADD, i32, 2**31 - 1, 1, N32),
        (AtomicOp.OR, u32, 1, 2, 3),
        (AtomicOp.AND, i32, -1, 6, 6),
        (AtomicOp.XOR, u32, 3, 1, 2),
        (AtomicOp.MIN, u32, 1, M32, 1),
        (AtomicOp.MIN, i32, 1, -1, -1),
        (AtomicOp.MAX, i32, 1, -1, 1),
        (AtomicOp.EXCHANGE, u32, 1, 9, 9),
        (AtomicOp.COMPARE_EXCHANGE, i32, 1, 9, 9),
    ],
)
def test_atomics_give_the_new_value(op, dtype, old, value, new):
    assert arith.atomic(op, dtype)(old, value) == new


@pytest.mark.parametrize("dtype", [u32, i32, u64, i64, f32, f64, f16, bf16])
@pytest.mark.parametrize("op", ReduceOp)
def test_a_missing_lane_changes_no_reduction(op, dtype):
    if dtype.is_float and op in (ReduceOp.AND, ReduceOp.OR, ReduceOp.XOR):
        with pytest.raises(IRTypeError, match=f"is not defined on {dtype}"):
            arith.reduce(op, dtype)
        return
    identity = arith.reduce_identity(op, dtype)
    values = [0.0, -0.0, 1.0, -2.0, INF, -INF, NAN] if dtype.is_float else [0, 1, *dtype.limits]
    assert type(identity) is type(values[0])
    for x in values:
        assert same(arith.reduce(op, dtype)(identity, x), x)
        assert same(arith.reduce(op, dtype)(x, identity), x)


# ---- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype, stored, value, written",
    [
        (u8, "ff", 255, "ff"),
        (i8, "ff", -1, "ff"),
        (u16, "3412", 0x1234, "3412"),
        (i16, "0080", -0x8000, "0080"),
        (u32, "ffffffff", M32, "ffffffff"),
        (i32, "ffffffff", -1, "ffffffff"),
        (u64, "0100000000000080", 2**63 + 1, "0100000000000080"),
        (i64, "0000000000000080", N64, "0000000000000080"),
        (bool_, "00000080", True, "01000000"),
        (bool_, "00000000", False, "00000000"),
        (f32, "0000c03f", 1.5, "0000c03f"),
        (f32, "ffff7f80", -0.0, "00000080"),
        (f32, "01000000", 0.0, "00000000"),
        (f32, "00008000", TINY, "00008000"),
        (f32, "0100a0ff", NAN, "0000c07f"),
        (f32, "000080ff", -INF, "000080ff"),
        (f64, "0100000000000000", 2.0**-1074, "0100000000000000"),
        (f64, "010000000000f0ff", NAN, "000000000000f87f"),
        (f16, "0100", 2.0**-24, "0100"),
        (f16, "01fe", NAN, "007e"),
        (bf16, "803f", 1.0, "803f"),
        (bf16, "7f80", -0.0, "0080"),
        (bf16, "8000", TINY, "8000"),
        (bf16, "81ff", NAN, "c07f"),
    ],
)
def test_elements_are_canonical_both_ways(dtype, stored, value, written):
    raw = bytes.fromhex("aa" + stored + "bb")
    for buffer in (raw, bytearray(raw), memoryview(raw)):
        assert same(arith.reader(dtype)(buffer, 1), value)
    target = bytearray(b"\xaa" * (len(raw)))
    arith.writer(dtype)(target, 1, value)
    assert target.hex() == "aa" + written + "aa"
    again = memoryview(bytearray(raw))
    arith.writer(dtype)(again, 1, arith.reader(dtype)(again, 1))
    assert bytes(again).hex() == "aa" + written + "bb"


def test_a_stored_nan_has_no_sign():
    for dtype, expected in ((f16, "007e"), (bf16, "c07f"), (f32, "0000c07f"), (f64, "000000000000f87f")):
        target = bytearray(dtype.size)
        arith.writer(dtype)(target, 0, -NAN)
        assert target.hex() == expected


@pytest.mark.parametrize("dtype", LIVE, ids=str)
def test_default_is_what_zero_bytes_read_as(dtype):
    assert same(arith.default(dtype), arith.reader(dtype)(bytes(8), 0))


@given(st.integers(0, M32))
def test_f32_bits_round_trip_to_canonical_bits(word):
    bits = rounding.f32_to_bits(rounding.f32_from_bits(word))
    assert rounding.f32_to_bits(rounding.f32_from_bits(bits)) == bits
    assert same(rounding.f32_from_bits(word), bits_f32(word))


# ---- totality and refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", LIVE, ids=str)
def test_every_binary_operator_is_defined_or_refused_on_every_type(dtype):
    zero = arith.default(dtype)
    for op in BinaryOp:
        legal = dtype.name in arith.BINARY_TYPES[op.rule]
        if dtype == bool_ and op.rule == "compare":
            legal = op in (B.EQ, B.NE)
        if legal and not op.is_function:
            result = arith.binary(op, dtype)(zero, 0 if op.rule == "shift" else zero)
            assert type(result) is (bool if op.rule in ("compare", "logic") else type(zero)), op
        else:
            with pytest.raises(UnsupportedFeature if legal or op.rule == "wave" else IRTypeError):
                arith.binary(op, dtype)


@pytest.mark.parametrize("dtype", LIVE, ids=str)
def test_every_unary_operator_is_defined_or_refused_on_every_type(dtype):
    zero = arith.default(dtype)
    for op in UnaryOp:
        if dtype.name not in arith.UNARY_TYPES[op.rule]:
            with pytest.raises(IRTypeError):
                arith.unary(op, dtype)
        elif op.is_function:
            with pytest.raises(UnsupportedFeature):
                arith.unary(op, dtype)
        else:
            result = arith.unary(op, dtype)(zero)
            assert type(result) is (bool if op.rule in ("float_test", "logic") else type(zero)), op


def test_every_rule_of_the_operator_table_has_its_types():
    assert {op.rule for op in BinaryOp} == set(arith.BINARY_TYPES)
    assert {op.rule for op in UnaryOp} == set(arith.UNARY_TYPES)
    for names in (*arith.BINARY_TYPES.values(), *arith.UNARY_TYPES.values()):
        assert names <= {t.name for t in LIVE}


@pytest.mark.parametrize("dtype", LIVE, ids=str)
def test_what_the_type_rules_accept_has_a_meaning_and_nothing_else(dtype):
    x, amount, whole = Var("x"), Var("n"), Var("k")
    names = {"x": dtype, "n": u32, "k": i32}
    library = functions(dtype) if dtype in (f32, f64) else {}
    for op in BinaryOp:
        right = amount if op.rule == "shift" else whole if op.rule == "scale" else x
        accepted = not infer(BinOp(op, x, right), (dtype, names[right.name]), names, {})[1]
        assert accepted == (op in library or defined(lambda op=op: arith.binary(op, dtype))), op
    for op in UnaryOp:
        accepted = not infer(UnOp(op, x), (dtype,), names, {})[1]
        assert accepted == (op in library or defined(lambda op=op: arith.unary(op, dtype))), op


def defined(lookup):
    try:
        return callable(lookup())
    except (IRTypeError, UnsupportedFeature):
        return False


@pytest.mark.parametrize("source", LIVE, ids=str)
def test_every_pair_of_types_casts_or_is_refused(source):
    for target in LIVE:
        if can_cast(source, target):
            assert type(arith.cast(source, target)(arith.default(source))) is type(arith.default(target))
        else:
            with pytest.raises(IRTypeError, match=f"no cast from {source} to {target}"):
                arith.cast(source, target)


@pytest.mark.parametrize(
    "name, operands, error, text",
    [
        ("binary", (B.MOD, f32), IRTypeError, r"operator % is not defined on f32\. Fix: cast to one of i32, i64"),
        ("binary", (B.LT, bool_), IRTypeError, r"operator < is not defined on bool\. Fix: .*u8$"),
        ("binary", (B.ADD, u8), IRTypeError, r"operator \+ is not defined on u8\. Fix: .*u32"),
        ("binary", (B.MUL_HIGH, i32), IRTypeError, r"mul_high is not defined on i32\. Fix: cast to one of u32$"),
        ("binary", (B.BALLOT, u32), UnsupportedFeature, r"wave_ballot has no meaning.*Fix: use a subgroup"),
        ("binary", (OpaqueOp(2**31), u32), UnsupportedFeature, r"opaque_0x80000000 has no meaning"),
        ("unary", (U.ABS, i32), IRTypeError, r"operator abs is not defined on i32\. Fix: cast to one of bf16"),
        ("unary", (U.ERF, f64), IRTypeError, r"operator erf is not defined on f64\. Fix: cast to one of f32$"),
        ("unary", (U.SIN, f32), UnsupportedFeature, r"sin has no meaning as a single step.*Fix: run mathlib"),
        ("unary", (OpaqueOp(2**31), u32), UnsupportedFeature, r"Fix: use an operator of the table"),
        ("cast", (f16, u32), IRTypeError, r"no cast from f16 to u32\. Fix: cast through u32, i32 or f32"),
        ("bitcast", (u64, f32), IRTypeError, r"no bitcast from u64 to f32\. Fix: bitcast between"),
        ("atomic", (AtomicOp.ADD, f32), IRTypeError, r"atomic_add is not defined on f32\. Fix: .*i32, u32$"),
        ("atomic", (AtomicOp.FETCH_NAND, u32), UnsupportedFeature, r"atomic_nand has no meaning.*atomic_cas"),
        ("atomic", (OpaqueOp(2**31), u32), UnsupportedFeature, r"opaque_0x80000000 has no meaning"),
        ("reduce_identity", (ReduceOp.AND, f32), IRTypeError, r"operator & is not defined on f32"),
        ("reader", (bytes_,), IRTypeError, r"bytes elements cannot be read .*Fix: declare"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_is_refused_with_a_way_out(name, operands, error, text):
    with pytest.raises(error, match=text):
        getattr(arith, name)(*operands)
