"""The scalar meaning of every operator, against exact rationals and hand-written numbers."""

import math
import random
import struct
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vyre.errors import IRTypeError, UnsupportedFeature
from vyre.foundation import arith
from vyre.foundation.dtypes import BY_NAME, bool_, bytes_, can_cast
from vyre.foundation.ir import BinOp, UnOp, Var
from vyre.foundation.ops import AtomicOp, BinaryOp, OpaqueOp, ReduceOp, UnaryOp
from vyre.foundation.typing import infer

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


# ---- an exact model of the float rules, in rationals ----------------------------------------------------------------


def to_bits(x: Fraction, bits: int) -> Fraction:
    """`x` rounded to `bits` significant bits, ties to even, exponents unbounded."""
    exponent = abs(x.numerator).bit_length() - x.denominator.bit_length()
    if abs(x) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (exponent - bits + 1)
    return round(x / unit) * unit


def canonical(x: Fraction, zero: float) -> float:
    """The canonical f32 of an exact result; `zero` is returned for an exact zero."""
    if x == 0:
        return zero
    value = to_bits(x, 24)
    if abs(value) < TINY:
        return math.copysign(0.0, x)
    return math.copysign(INF, x) if abs(value) >= 2**128 else float(value)


def exact_sqrt(x: float) -> Fraction:
    """A rational on the same side of every 24-bit midpoint as the root."""
    scaled = Fraction(x) * Fraction(4) ** 200
    assert scaled.denominator == 1
    root = math.isqrt(scaled.numerator)
    return (root + Fraction(root * root != scaled.numerator, 2)) / Fraction(2) ** 200


def signed(*operands: float) -> float:
    return math.prod(math.copysign(1.0, x) for x in operands)


def exact_add(a, b):
    if a != a or b != b or (math.isinf(a) and b == -a):
        return NAN
    if math.isinf(a) or math.isinf(b):
        return a if math.isinf(a) else b
    return Fraction(a) + Fraction(b), -0.0 if signed(a) + signed(b) == -2 else 0.0


def exact_mul(a, b):
    if a != a or b != b or (math.isinf(a) and b == 0) or (math.isinf(b) and a == 0):
        return NAN
    if math.isinf(a) or math.isinf(b):
        return signed(a, b) * INF
    return Fraction(a) * Fraction(b), signed(a, b) * 0.0


def exact_div(a, b):
    if a != a or b != b or (math.isinf(a) and math.isinf(b)) or a == b == 0:
        return NAN
    if math.isinf(a) or b == 0:
        return signed(a, b) * INF
    if math.isinf(b):
        return signed(a, b) * 0.0
    return Fraction(a) / Fraction(b), signed(a, b) * 0.0


def exact_root(x):
    if x != x or x < 0:
        return NAN
    return x if x in (0, INF) else (exact_sqrt(x), 0.0)


def exact_fma(a, b, c):
    times = exact_mul(a, b)
    if isinstance(times, float):
        return exact_add(times, c)
    if c != c or math.isinf(c):
        return c
    return times[0] + Fraction(c), exact_add(times[1], c)[1] if times[0] == 0 else 0.0


EXACT = {B.ADD: exact_add, B.SUB: lambda a, b: exact_add(a, -b), B.MUL: exact_mul, B.DIV: exact_div}


def finish(exact, rounding):
    return exact if isinstance(exact, float) else rounding(*exact)


def bits_f32(word: int) -> float:
    """Canonical value of a word, by its own route: flush on the decoded number."""
    value = struct.unpack("<f", word.to_bytes(4, "little"))[0]
    return math.copysign(0.0, value) if abs(value) < TINY else value


EDGE_WORDS = [
    0, 1, 0x007FFFFF, 0x00800000, 0x00800001, 0x00FFFFFF, 0x01000000, 0x1F7FFFFF, 0x1F800000, 0x1FB504F3, 0x20000001,
    0x33800000, 0x3EFFFFFF, 0x3F000000, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x3FFFFFFF, 0x40400000, 0x4B7FFFFF,
    0x5F000000, 0x7EFFFFFF, 0x7F000000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000,
]  # fmt: skip
EDGES = [bits_f32(w | s) for w in EDGE_WORDS for s in (0, 1 << 31)]
f32_values = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from(EDGE_WORDS), st.integers(0x007FFFC0, 0x00800040)).map(
    bits_f32
)


# ---- f32 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", EXACT)
def test_f32_arithmetic_rounds_the_exact_result_once_on_all_pairs_of_edges(op):
    f = arith.binary(op, f32)
    wrong = [(a, b) for a in EDGES for b in EDGES if not same(f(a, b), finish(EXACT[op](a, b), canonical))]
    assert wrong == []


@given(f32_values, f32_values)
@example(2.0**-126 * (1 + 2.0**-23), 1 - 2.0**-24)
def test_f32_arithmetic_rounds_the_exact_result_once(a, b):
    for op, model in EXACT.items():
        assert same(arith.binary(op, f32)(a, b), finish(model(a, b), canonical)), op


@given(f32_values)
def test_f32_square_root_is_correctly_rounded(x):
    assert same(arith.unary(U.SQRT, f32)(x), finish(exact_root(x), canonical))


def test_fma_rounds_once_on_all_triples_of_edges():
    few = [*EDGES[::2], -1.0, -0.0, -INF, -TINY, -(2.0**-63)]
    for a, b, c in product(few, few, few):
        assert same(arith.fma(a, b, c), finish(exact_fma(a, b, c), canonical)), (a, b, c)


@given(f32_values, f32_values, f32_values)
def test_fma_rounds_once(a, b, c):
    assert same(arith.fma(a, b, c), finish(exact_fma(a, b, c), canonical))


@given(st.integers(2**23, 2**24 - 1), st.integers(2**23, 2**24 - 1), st.integers(-80, 80), st.integers(-3, 3))
def test_fma_rounds_once_where_the_addend_cancels_or_barely_reaches_the_product(m, n, shift, step):
    a, b = math.ldexp(m, -60), math.ldexp(n, -40)
    for c in (arith.round_f32(math.ldexp(m * n, -100 + shift)), -arith.round_f32(a * b)):
        c = c * (1 + step * 2.0**-23)
        c = arith.round_f32(c)
        assert same(arith.fma(a, b, c), finish(exact_fma(a, b, c), canonical))


def test_fma_is_not_a_product_and_a_sum():
    a, c = 1 + 2.0**-23, -(1 + 2.0**-22)
    assert arith.fma(a, a, c) == 2.0**-46
    assert arith.binary(B.ADD, f32)(arith.binary(B.MUL, f32)(a, a), c) == 0.0


def test_fma_breaks_a_tie_by_a_term_far_below_it():
    half_unit = 1.5 * 2.0**-23  # added to 1 it is a tie between 1 + 2^-23 and 1 + 2^-22
    assert arith.fma(half_unit, 1.0, 1.0) == 1 + 2.0**-22
    assert arith.fma(half_unit, 1 - 2.0**-24, 1.0) == 1 + 2.0**-23
    assert arith.fma(2.0**-80, 2.0**-80, 2.0**24 + 2) == 2.0**24 + 2
    assert arith.fma(4097.0, 4095.0, 2.0) == 2.0**24  # 2^24 + 1: a tie, to even
    assert arith.fma(2.0**-75, -(2.0**-76), TINY) == TINY  # the flush threshold itself, and just below it
    assert arith.fma(2.0**-75, -(2.0**-76) * (1 + 2.0**-23), TINY) == 0.0


@pytest.mark.parametrize("odd", [0, 1])
def test_fma_sees_by_how_little_a_sum_misses_a_tie(odd):
    """The product is 2^-24 * (1 - i^2 * 2^-46): up to i = 2^8 or so, 53 bits do not tell the sum from the tie."""
    c = 1 + odd * 2.0**-23
    assert arith.fma(2.0**-12, 2.0**-12, c) == 1 + odd * 2.0**-22
    for i in range(1, 2048):
        a, b = 2.0**-12 * (1 + i * 2.0**-23), 2.0**-12 * (1 - i * 2.0**-23)
        assert arith.fma(a, b, c) == c
        assert arith.fma(-a, b, -c) == -c


@pytest.mark.parametrize(
    "x, expected",
    [
        (TINY, TINY),
        (TINY - 2.0**-151, TINY),  # a tie between the last 24-bit number below and 2^-126, to even
        (math.nextafter(TINY - 2.0**-151, 0), 0.0),
        (-TINY + 2.0**-150, -0.0),
        (2.0**-149, 0.0),
        (-(2.0**-1074), -0.0),
        (0.0, 0.0),
        (-0.0, -0.0),
        (1 + 2.0**-24, 1.0),
        (1 + 2.0**-24 + 2.0**-52, 1 + 2.0**-23),
        (2.0**128 - 2.0**103, INF),
        (math.nextafter(2.0**128 - 2.0**103, 0), 2.0**128 - 2.0**104),
        (-1e300, -INF),
        (NAN, NAN),
        (-INF, -INF),
    ],
)
def test_round_f32_rounds_then_flushes(x, expected):
    assert same(arith.round_f32(x), expected)
    assert same(arith.canon_f32(x), expected)


def test_flushing_a_gradual_result_is_another_function():
    """Gradually, a product rounds up to 2^-126 from 2^-126 - 2^-150 on; canonically only from 2^-126 - 2^-151 on."""
    multiply = arith.binary(B.MUL, f32)
    differing = between = 0
    for step, k in product(range(64), range(-32, 32)):
        a = 2.0**-63 * (1 + step / 64)
        b = arith.round_f32(math.ldexp(math.floor(2.0**24 / (1 + step / 64)) + k, -24 - 63))
        gradual = struct.unpack("<f", struct.pack("<f", a * b))[0]
        differing += multiply(a, b) != (gradual if gradual >= TINY else 0.0)
        exact = Fraction(a) * Fraction(b) / Fraction(TINY)
        between += 1 - Fraction(1, 2**24) <= exact < 1 - Fraction(1, 2**25)
    assert differing == between == 38


@pytest.mark.parametrize(
    "op, x, expected",
    [
        (U.ROUND, 0.5, 1.0),
        (U.ROUND, -0.5, -1.0),
        (U.ROUND, 2.5, 3.0),
        (U.ROUND, 0.49999997, 0.0),
        (U.ROUND, -0.25, -0.0),
        (U.ROUND, 8388607.5, 8388608.0),
        (U.ROUND, 2.0**31, 2.0**31),
        (U.ROUND, -INF, -INF),
        (U.FLOOR, -0.5, -1.0),
        (U.FLOOR, -0.0, -0.0),
        (U.FLOOR, 0.5, 0.0),
        (U.CEIL, -0.5, -0.0),
        (U.CEIL, TINY, 1.0),
        (U.TRUNC, -1.5, -1.0),
        (U.TRUNC, -0.75, -0.0),
        (U.TRUNC, NAN, NAN),
        (U.SIGN, -0.0, 0.0),
        (U.SIGN, -TINY, -1.0),
        (U.SIGN, INF, 1.0),
        (U.SIGN, NAN, NAN),
        (U.ABS, -0.0, 0.0),
        (U.NEGATE, 0.0, -0.0),
        (U.SQRT, -0.0, -0.0),
        (U.SQRT, -1.0, NAN),
        (U.SQRT, INF, INF),
        (U.RECIPROCAL, -0.0, -INF),
        (U.RECIPROCAL, INF, 0.0),
        (U.RECIPROCAL, 2.0**127, 0.0),  # 2^-127 is flushed
        (U.RECIPROCAL, 2.0**126, TINY),
        (U.INVERSE_SQRT, 0.0, INF),
        (U.INVERSE_SQRT, -0.0, -INF),
        (U.INVERSE_SQRT, -1.0, NAN),
        (U.IS_NAN, NAN, True),
        (U.IS_NAN, INF, False),
        (U.IS_INF, -INF, True),
        (U.IS_INF, NAN, False),
        (U.IS_FINITE, 2.0**127, True),
        (U.IS_FINITE, NAN, False),
    ],
)
def test_unary_floats_at_their_edges(op, x, expected):
    assert same(arith.unary(op, f32)(x), expected)
    if op is not U.RECIPROCAL or math.isinf(expected):
        assert same(arith.unary(op, f64)(x), expected)


def test_round_is_half_away_from_zero_for_the_number_just_below_a_half():
    assert arith.unary(U.ROUND, f64)(math.nextafter(0.5, 0)) == 0.0


def test_inverse_square_root_rounds_twice():
    once, twice = [], []
    for k in range(1, 200):
        x = float(k)
        root = canonical(exact_sqrt(x), 0.0)
        twice.append(canonical(1 / Fraction(root), 0.0))
        once.append(canonical(1 / exact_sqrt(x), 0.0))
        assert arith.unary(U.INVERSE_SQRT, f32)(x) == twice[-1]
    assert once != twice


@pytest.mark.parametrize("dtype", [f32, f64, f16, bf16])
@pytest.mark.parametrize(
    "a, b, least, greatest",
    [
        (-0.0, 0.0, -0.0, 0.0),
        (0.0, -0.0, -0.0, 0.0),
        (NAN, 1.0, 1.0, 1.0),
        (1.0, NAN, 1.0, 1.0),
        (NAN, NAN, NAN, NAN),
        (-INF, INF, -INF, INF),
        (NAN, -0.0, -0.0, -0.0),
        (2.0, 1.0, 1.0, 2.0),
    ],
)
def test_min_and_max_ignore_one_nan_and_order_the_zeros(dtype, a, b, least, greatest):
    assert same(arith.binary(B.MIN, dtype)(a, b), least)
    assert same(arith.binary(B.MAX, dtype)(a, b), greatest)


@pytest.mark.parametrize("dtype", [f32, f64, f16, bf16])
def test_nan_is_unordered_and_the_zeros_are_equal(dtype):
    truths = {op: arith.binary(op, dtype)(NAN, 1.0) for op in (B.EQ, B.NE, B.LT, B.GT, B.LE, B.GE)}
    assert truths == {B.EQ: False, B.NE: True, B.LT: False, B.GT: False, B.LE: False, B.GE: False}
    assert arith.binary(B.EQ, dtype)(-0.0, 0.0) is True
    assert arith.binary(B.LT, dtype)(-0.0, 0.0) is False


# ---- f64, f16, bf16 -------------------------------------------------------------------------------------------------


def gradual64(x: Fraction, zero: float) -> float:
    if x == 0:
        return zero
    try:
        size = float(abs(x))  # correctly rounded, subnormals kept
    except OverflowError:
        size = INF
    return -size if x < 0 else size


F64_EDGES = [
    0.0,
    -0.0,
    2.0**-1074,
    math.nextafter(2.0**-1022, 0),
    2.0**-1022,
    1.0,
    2.0**1023,
    1.7976931348623157e308,
    INF,
]
f64_values = st.sampled_from([*F64_EDGES, -INF, NAN]) | st.integers(0, 2**64 - 1).map(
    lambda n: struct.unpack("<d", n.to_bytes(8, "little"))[0]
)


@given(f64_values, f64_values)
@example(1e308, 1e-308)
@example(1e308, 1e308)
@example(2.0**-1074, 2.0)
def test_f64_is_plain_ieee_with_gradual_underflow(a, b):
    for op, model in EXACT.items():
        assert same(arith.binary(op, f64)(a, b), finish(model(a, b), gradual64)), op


def model16(x: Fraction, zero: float) -> float:
    if x == 0:
        return zero
    value = to_bits(x, 11)
    if abs(value) < Fraction(2) ** -14:
        value = round(x * 2**24) / Fraction(2**24)
    return math.copysign(INF if abs(value) >= 65536 else float(value), x)


def model_bf16(x: Fraction, zero: float) -> float:
    value = canonical(x, zero)
    if value == 0 or math.isinf(value):
        return value
    value = to_bits(Fraction(value), 8)
    return math.copysign(INF, x) if abs(value) >= 2**128 else float(value)


f16_values = st.integers(0, 2**16 - 1).map(lambda n: struct.unpack("<e", n.to_bytes(2, "little"))[0])
bf16_values = st.integers(0, 2**16 - 1).map(lambda n: bits_f32(n << 16))


@given(f16_values, f16_values)
@example(2.0**-24, 3.0)
@example(65504.0, 16.0)
def test_f16_arithmetic_is_one_rounding_of_the_exact_result(a, b):
    for op, model in EXACT.items():
        assert same(arith.binary(op, f16)(a, b), finish(model(a, b), model16)), op
    assert same(arith.unary(U.SQRT, f16)(a), finish(exact_root(a), model16))


@given(bf16_values, bf16_values)
def test_bf16_arithmetic_is_an_f32_step_rounded_to_8_bits(a, b):
    for op, model in EXACT.items():
        assert same(arith.binary(op, bf16)(a, b), finish(model(a, b), model_bf16)), op
    assert same(arith.unary(U.SQRT, bf16)(a), finish(exact_root(a), model_bf16))


def test_every_f16_quotient_of_a_sample_is_one_rounding():
    rng = random.Random(5)
    divide = arith.binary(B.DIV, f16)
    for _ in range(3000):
        a, b = (struct.unpack("<e", rng.randrange(1, 0x7C00).to_bytes(2, "little"))[0] for _ in range(2))
        assert divide(a, b) == model16(Fraction(a) / Fraction(b), 0.0)


@pytest.mark.parametrize(
    "x, half, brain",
    [
        (1 + 2.0**-11, 1.0, 1.0),
        (1 + 3 * 2.0**-11, 1 + 2.0**-9, 1.0),
        (1 + 2.0**-8, 1 + 2.0**-8, 1.0),
        (1 + 3 * 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-6),
        (65519.996, 65504.0, 65536.0),
        (65520.0, INF, 65536.0),
        (2.0**-25, 0.0, 2.0**-25),
        (2.0**-25 * (1 + 2.0**-20), 2.0**-24, 2.0**-25),
        (-(2.0**-26), -0.0, -(2.0**-26)),
        (TINY, 0.0, TINY),
        (3.4028234663852886e38, INF, INF),
        (-INF, -INF, -INF),
        (NAN, NAN, NAN),
    ],
)
def test_casts_to_narrow_floats_round_once(x, half, brain):
    assert same(arith.cast(f32, f16)(x), half)
    assert same(arith.cast(f32, bf16)(x), brain)


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
        assert same(arith.read_element(dtype, buffer, 1), value)
    target = bytearray(b"\xaa" * (len(raw)))
    arith.write_element(dtype, target, 1, value)
    assert target.hex() == "aa" + written + "aa"
    again = memoryview(bytearray(raw))
    arith.write_element(dtype, again, 1, arith.read_element(dtype, again, 1))
    assert bytes(again).hex() == "aa" + written + "bb"


def test_a_stored_nan_has_no_sign():
    for dtype, expected in ((f16, "007e"), (bf16, "c07f"), (f32, "0000c07f"), (f64, "000000000000f87f")):
        target = bytearray(dtype.size)
        arith.write_element(dtype, target, 0, -NAN)
        assert target.hex() == expected


@pytest.mark.parametrize("dtype", LIVE, ids=str)
def test_default_is_what_zero_bytes_read_as(dtype):
    assert same(arith.default(dtype), arith.read_element(dtype, bytes(8), 0))


@given(st.integers(0, M32))
def test_f32_bits_round_trip_to_canonical_bits(word):
    bits = arith.f32_to_bits(arith.f32_from_bits(word))
    assert arith.f32_to_bits(arith.f32_from_bits(bits)) == bits
    assert same(arith.f32_from_bits(word), bits_f32(word))


# ---- totality and refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", LIVE, ids=str)
def test_every_binary_operator_is_defined_or_refused_on_every_type(dtype):
    zero = arith.default(dtype)
    for op in BinaryOp:
        legal = dtype.name in arith.BINARY_TYPES[op.rule]
        if dtype == bool_ and op.rule == "compare":
            legal = op in (B.EQ, B.NE)
        if legal:
            result = arith.binary(op, dtype)(zero, 0 if op.rule == "shift" else zero)
            assert type(result) is (bool if op.rule in ("compare", "logic") else type(zero)), op
        else:
            with pytest.raises(UnsupportedFeature if op.rule == "wave" else IRTypeError):
                arith.binary(op, dtype)


@pytest.mark.parametrize("dtype", LIVE, ids=str)
def test_every_unary_operator_is_defined_or_refused_on_every_type(dtype):
    zero = arith.default(dtype)
    for op in UnaryOp:
        if dtype.name not in arith.UNARY_TYPES[op.rule]:
            with pytest.raises(IRTypeError):
                arith.unary(op, dtype)
        elif op.transcendental:
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
    x, amount = Var("x"), Var("n")
    names = {"x": dtype, "n": u32}
    for op in BinaryOp:
        right = amount if op.rule == "shift" else x
        accepted = not infer(BinOp(op, x, right), (dtype, names[right.name]), names, {})[1]
        assert accepted == defined(lambda op=op: arith.binary(op, dtype)), op
    for op in UnaryOp:
        accepted = not infer(UnOp(op, x), (dtype,), names, {})[1]
        assert accepted == ((op.transcendental and dtype == f32) or defined(lambda op=op: arith.unary(op, dtype))), op


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
        ("unary", (U.SIN, f64), IRTypeError, r"operator sin is not defined on f64\. Fix: cast to one of f32$"),
        ("unary", (U.SIN, f32), UnsupportedFeature, r"sin has no meaning until the math library defines it"),
        ("unary", (OpaqueOp(2**31), u32), UnsupportedFeature, r"Fix: use an operator of the table"),
        ("cast", (f16, u32), IRTypeError, r"no cast from f16 to u32\. Fix: cast through u32, i32 or f32"),
        ("bitcast", (u64, f64), IRTypeError, r"no bitcast from u64 to f64\. Fix: bitcast between"),
        ("atomic", (AtomicOp.ADD, f32), IRTypeError, r"atomic_add is not defined on f32\. Fix: .*i32, u32$"),
        ("atomic", (AtomicOp.FETCH_NAND, u32), UnsupportedFeature, r"atomic_nand has no meaning.*atomic_cas"),
        ("atomic", (OpaqueOp(2**31), u32), UnsupportedFeature, r"opaque_0x80000000 has no meaning"),
        ("reduce_identity", (ReduceOp.AND, f32), IRTypeError, r"operator & is not defined on f32"),
        ("read_element", (bytes_, b"\0", 0), IRTypeError, r"bytes elements cannot be read .*Fix: declare"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_is_refused_with_a_way_out(name, operands, error, text):
    with pytest.raises(error, match=text):
        getattr(arith, name)(*operands)
