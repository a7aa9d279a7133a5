"""The scalar meaning of every float operator, against exact rationals."""

import math
import random
import struct
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vyre.errors import IRValueError
from vyre.foundation.ir import rounding
from vyre.foundation.ir.dtypes import BY_NAME
from vyre.foundation.ir.nodes import Cast, UnOp, lit
from vyre.foundation.ir.ops import BinaryOp, UnaryOp
from vyre.foundation.meaning import arith

f32, f64, f16, bf16 = (BY_NAME[name] for name in ("f32", "f64", "f16", "bf16"))
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
    for c in (rounding.round_f32(math.ldexp(m * n, -100 + shift)), -rounding.round_f32(a * b)):
        c = c * (1 + step * 2.0**-23)
        c = rounding.round_f32(c)
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
    assert same(rounding.round_f32(x), expected)
    assert same(rounding.round_f32(x), expected)


def test_flushing_a_gradual_result_is_another_function():
    """Gradually, a product rounds up to 2^-126 from 2^-126 - 2^-150 on; canonically only from 2^-126 - 2^-151 on."""
    multiply = arith.binary(B.MUL, f32)
    differing = between = 0
    for step, k in product(range(64), range(-32, 32)):
        a = 2.0**-63 * (1 + step / 64)
        b = rounding.round_f32(math.ldexp(math.floor(2.0**24 / (1 + step / 64)) + k, -24 - 63))
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


def rounded_once(x: Fraction, bits: int) -> float:
    value = to_bits(x, bits) if x else x
    if abs(value) < Fraction(2) ** -126:
        return math.copysign(0.0, x)
    return math.copysign(INF, x) if abs(value) >= 2**128 else float(value)


f64_near = st.builds(math.ldexp, st.floats(-2, 2), st.integers(-130, 128)) | f64_values
integers = st.builds(lambda n, k: n << k, st.integers(-(2**70), 2**70), st.integers(0, 40))


@given(f64_near)
@example(1 + 2.0**-8 + 2.0**-40)
@example(TINY * (1 - 2.0**-9))
@example(TINY * (1 - 2.0**-8))
@example(math.nextafter(2.0**128 - 2.0**119, 0))
@example(2.0**128 - 2.0**119)
@example(1.7976931348623157e308)
def test_rounding_any_number_to_bf16_is_one_rounding(x):
    if math.isfinite(x):
        want = rounded_once(Fraction(x), 8)
        assert same(rounding.round_bf16(x), math.copysign(want, x) if want == 0 else want)
    else:
        assert same(rounding.round_bf16(x), x)


@given(f64_near.filter(math.isfinite) | integers)
@example(1 + 2.0**-11 + 2.0**-40)
@example(1 + 2.0**-8 + 2.0**-40)
@example((1 << 60) + (1 << 36) + 1)
@example(-(1 << 60) - (1 << 52) - 1)
@example(TINY - 2.0**-150)
def test_literals_are_rounded_once(number):
    exact = Fraction(number)
    for dtype, want in ((f32, rounded_once(exact, 24)), (bf16, rounded_once(exact, 8)), (f16, model16(exact, 0.0))):
        literal = lit(number, dtype)
        if dtype != f32:
            assert isinstance(literal, Cast)
            literal = literal.value
            assert arith.cast(f32, dtype)(want) == want  # the cast changes nothing
        value = -0.0 if isinstance(literal, UnOp) else literal.value
        assert value == want
        if number != 0:
            assert math.copysign(1, value) == math.copysign(1, want)


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64])
def test_integers_beyond_every_float_are_no_literals(dtype):
    with pytest.raises(IRValueError, match=r"\(about 2\*\*20000\) does not fit") as caught:
        lit(1 << 20_000, dtype)
    assert "smaller" in caught.value.fix
