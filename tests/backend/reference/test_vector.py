"""The NumPy meaning of every operator equals the scalar one, bit for bit, and f32 equals an exact integer model."""

import importlib.util
import math
import zlib
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from vyre.backends.reference.engines import vector
from vyre.errors import IRTypeError, UnsupportedFeature
from vyre.foundation.ir import rounding
from vyre.foundation.ir.dtypes import BY_NAME, bf16, bool_, bytes_, can_cast, f16, f32, f64, i32, i64, u32, u64
from vyre.foundation.ir.ops import AtomicOp, BinaryOp, ReduceOp, UnaryOp
from vyre.foundation.meaning import arith

from ...support.control_word import flush_control

LIVE = [t for t in BY_NAME.values() if t.live]
POINTS = 1 << 16
SAMPLE = 3000
BINARY = [(op, t) for op in BinaryOp for t in LIVE if t.name in arith.BINARY_TYPES[op.rule] and not op.is_function]
BINARY = [(op, t) for op, t in BINARY if t != bool_ or op.text not in ("<", ">", "<=", ">=")]
UNARY = [(op, t) for op in UnaryOp for t in LIVE if t.name in arith.UNARY_TYPES[op.rule] and not op.is_function]
CASTS = [(a, b) for a in LIVE for b in LIVE if can_cast(a, b)]

spec = importlib.util.spec_from_file_location("f32_model", Path(__file__).parents[3] / "bench" / "f32_model.py")
f32_model = importlib.util.module_from_spec(spec)
spec.loader.exec_module(f32_model)


def edge_words(dtype):
    """Bit patterns where something changes: both ends of every range, halves, NaN payloads, subnormals."""
    width = dtype.bits
    top = 1 << width - 1
    if not dtype.is_float:
        small = [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 100]
        words = [w % (1 << width) for n in small for w in (n, -n, top + n, top - n)]
        words += [1 << k for k in range(0, width, 5)] + [
            (1 << k) - 1 for k in (16, 24, 25, 31, 32, 53, 54) if k <= width
        ]
        return sorted({w % (1 << width) for w in words})
    fraction = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}[dtype.name]
    one = ((1 << width - 2 - fraction) - 1) << fraction
    infinity = (2 * (one >> fraction) + 1) << fraction
    unit = 1 << fraction
    exponents = [1, 2, 8, 16, 20, 23, 24, 25, 31, 32, 52, 53, 62, 63, 64, 126, 127]
    powers = [one + s * k * unit for k in exponents for s in (1, -1) if unit <= one + s * k * unit < infinity]
    halves = [one - unit, one + unit // 2, one + unit + unit // 4, one + 5 * unit // 4 + unit]  # 0.5, 1.5, 2.5, ...
    near = [0, unit, 2 * unit, one, one - unit, infinity, *powers[:8]]
    words = [p + d for p in near for d in (-2, -1, 0, 1, 2) if p + d >= 0] + powers + halves
    words += [infinity + 1, infinity + unit // 2, infinity + unit - 1, 1 << fraction - 1, unit - 1]
    return sorted({w | s for w in words for s in (0, top)})


def edges(dtype):
    return np.array(edge_words(dtype), f"u{dtype.size}")


def random_words(dtype, count, seed):
    """Random bits, half of them near an edge, so that exponents meet."""
    rng = np.random.default_rng(seed)
    limit = 1 << dtype.bits
    word = np.dtype(f"u{dtype.size}")
    wild = rng.integers(0, limit, count, dtype=word)
    near = rng.choice(edges(dtype), count) + rng.integers(0, 8, count).astype(word)
    return np.where(rng.integers(0, 2, count) == 1, wild, near)


def array(dtype, words):
    return vector.load(dtype, words.view(vector.storage_dtype(dtype)))


def scalars(dtype, words):
    """The same values for the scalar form."""
    raw, read = words.tobytes(), arith.reader(dtype)
    return [read(raw, k * dtype.size) for k in range(len(words))]


def stored_scalars(dtype, xs):
    buffer = bytearray(dtype.size * len(xs))
    write = arith.writer(dtype)
    for k, x in enumerate(xs):
        write(buffer, k * dtype.size, x)
    return np.frombuffer(buffer, f"u{dtype.size}")


def check(vector_f, scalar_f, operand_types, result_type, seed):
    """Every combination of edges, then random bits: the vector form at full length, the scalar form on a sample."""
    grid = [axis.ravel() for axis in np.meshgrid(*map(edges, operand_types), indexing="ij")]
    wild = [random_words(t, POINTS, seed + k) for k, t in enumerate(operand_types)]
    for words, step in ((grid, max(1, len(grid[0]) // 20_011)), (wild, POINTS // SAMPLE)):
        arrays = [array(t, w) for t, w in zip(operand_types, words, strict=True)]
        with np.errstate(all="raise"):
            result = vector_f(*arrays)
        assert result.dtype == vector.value_dtype(result_type)
        assert result.shape == words[0].shape
        got = vector.store(result_type, result)[::step]
        assert got.dtype == vector.storage_dtype(result_type)
        columns = [scalars(t, w[::step]) for t, w in zip(operand_types, words, strict=True)]
        expected = stored_scalars(result_type, [scalar_f(*xs) for xs in zip(*columns, strict=True)])
        wrong = np.flatnonzero(got.view(expected.dtype) != expected)
        shown = [(*(c[k] for c in columns), got[k], expected[k]) for k in wrong[:5]]
        assert shown == [], f"{len(wrong)} of {len(expected)} differ"


def named(*parts):
    return "-".join(getattr(p, "name", str(p)) for p in parts)


def seed_of(*parts):
    return zlib.crc32(named(*parts).encode())


@pytest.mark.parametrize("op, dtype", BINARY, ids=named)
def test_binary_operators_equal_the_scalar_ones(op, dtype):
    result = bool_ if op.rule in ("compare", "logic") else dtype
    operands = (dtype, u32 if op.rule == "shift" else dtype)
    check(vector.binary(op, dtype), arith.binary(op, dtype), operands, result, seed_of(op, dtype))


@pytest.mark.parametrize("op, dtype", UNARY, ids=named)
def test_unary_operators_equal_the_scalar_ones(op, dtype):
    result = bool_ if op.rule in ("float_test", "logic") else u32 if op.rule == "unpack" else dtype
    check(vector.unary(op, dtype), arith.unary(op, dtype), (dtype,), result, seed_of(op, dtype))


@pytest.mark.parametrize("source, target", CASTS, ids=named)
def test_casts_equal_the_scalar_ones(source, target):
    check(vector.cast(source, target), arith.cast(source, target), (source,), target, seed_of(source, target))


@pytest.mark.parametrize(
    "source, target", [*product([u32, i32, f32], repeat=2), *product([u64, i64, f64], repeat=2)], ids=named
)
def test_bitcasts_equal_the_scalar_ones(source, target):
    check(vector.bitcast(source, target), arith.bitcast(source, target), (source,), target, seed_of(source, target))


def test_fma_equals_the_scalar_one():
    check(vector.fma, arith.fma, (f32, f32, f32), f32, 7)


@pytest.mark.parametrize("dtype", [u32, i32])
def test_atomics_equal_the_scalar_ones(dtype):
    for op in AtomicOp:
        if op.live:
            check(vector.atomic(op, dtype), arith.atomic(op, dtype), (dtype, dtype), dtype, seed_of(op, dtype))


@pytest.mark.parametrize("dtype", [t for t in LIVE if t.name in arith.BINARY_TYPES["arith"]], ids=str)
def test_reductions_and_identities_equal_the_scalar_ones(dtype):
    for op in ReduceOp:
        if dtype.is_float and op.text in ("and", "or", "xor"):
            with pytest.raises(IRTypeError):
                vector.reduce(op, dtype)
            continue
        assert vector.reduce(op, dtype) is vector.binary(arith.REDUCE_AS_BINARY[op], dtype)
        identity = vector.reduce_identity(op, dtype)
        assert identity.dtype == vector.value_dtype(dtype)
        assert repr(identity.item()) == repr(arith.reduce_identity(op, dtype))


def test_every_operator_of_the_table_has_both_forms_or_is_listed_as_undefined():
    undefined = {op for op in (*BinaryOp, *UnaryOp) if op.is_function or op.rule == "wave"}
    assert {op for op, _ in BINARY} | {op for op, _ in UNARY} | undefined == {*BinaryOp, *UnaryOp}
    for op in undefined:
        for engine in (arith, vector):
            with pytest.raises(UnsupportedFeature, match="has no meaning"):
                (engine.binary if isinstance(op, BinaryOp) else engine.unary)(op, f32)


@pytest.mark.parametrize(
    "name, operands",
    [
        ("binary", (BinaryOp.MOD, f32)),
        ("binary", (BinaryOp.LT, bool_)),
        ("unary", (UnaryOp.ABS, i32)),
        ("cast", (f16, u32)),
        ("bitcast", (u64, f32)),
        ("atomic", (AtomicOp.ADD, f32)),
        ("atomic", (AtomicOp.LRU_UPDATE, u32)),
    ],
)
def test_both_forms_refuse_the_same_things_in_the_same_words(name, operands):
    with pytest.raises((IRTypeError, UnsupportedFeature)) as scalar:
        getattr(arith, name)(*operands)
    with pytest.raises(scalar.type) as array:
        getattr(vector, name)(*operands)
    assert str(array.value) == str(scalar.value)


def test_a_type_without_arrays_is_refused():
    for f in (vector.value_dtype, vector.storage_dtype, vector.default):
        with pytest.raises(IRTypeError, match=r"bytes has no array form\. Fix: declare the buffer u8 or u32"):
            f(bytes_)


# ---- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", LIVE, ids=str)
def test_loads_and_stores_equal_the_scalar_ones(dtype):
    words = np.concatenate([edges(dtype), random_words(dtype, 4096, 3)])
    loaded = array(dtype, words)
    assert loaded.dtype == vector.value_dtype(dtype)
    stored = vector.store(dtype, loaded)
    assert stored.dtype == vector.storage_dtype(dtype)
    np.testing.assert_array_equal(stored.view(words.dtype), stored_scalars(dtype, scalars(dtype, words)))
    for raw in (words.tobytes(), bytearray(words.tobytes()), memoryview(words.tobytes())):
        again = vector.store(dtype, vector.load(dtype, raw))
        np.testing.assert_array_equal(again.view(words.dtype), stored.view(words.dtype))


@pytest.mark.parametrize("dtype", LIVE, ids=str)
def test_default_is_the_scalar_default(dtype):
    zero = vector.default(dtype)
    assert zero.dtype == vector.value_dtype(dtype)
    assert repr(zero.item()) == repr(arith.default(dtype))


def test_all_16_bit_floats_survive_a_load_and_a_store():
    words = np.arange(1 << 16, dtype=np.uint16)
    halves = vector.store(f16, vector.load(f16, words.view(np.float16))).view(np.uint16)
    nan = (words & 0x7FFF) > 0x7C00
    np.testing.assert_array_equal(halves, np.where(nan, 0x7E00, words))
    brains = vector.store(bf16, vector.load(bf16, words))
    expected = np.where((words & 0x7FFF) > 0x7F80, 0x7FC0, np.where(words & 0x7F80 == 0, words & 0x8000, words))
    np.testing.assert_array_equal(brains, expected)


# ---- shapes and surroundings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("op, dtype", BINARY, ids=named)
def test_operands_broadcast_and_may_be_single_values(op, dtype):
    f = vector.binary(op, dtype)
    right = u32 if op.rule == "shift" else dtype
    a, b = array(dtype, edges(dtype)), array(right, edges(right))
    result = bool_ if op.rule in ("compare", "logic") else dtype

    def stored(x):
        return vector.store(result, np.asarray(x)).tobytes()

    with np.errstate(all="raise"):
        table = f(a[:, None], b)
        assert table.shape == (len(a), len(b))
        for j in (0, len(b) // 2, len(b) - 1):
            assert stored(table[:, j]) == stored(f(a, b[j]))  # a NumPy scalar
            assert stored(table[-1, j]) == stored(f(a[-1], b[j])) == stored(f(a[-1:].reshape(()), b[j]))


@pytest.mark.parametrize("op, dtype", UNARY, ids=named)
def test_unary_operators_take_single_values_and_strided_arrays(op, dtype):
    f = vector.unary(op, dtype)
    x = array(dtype, edges(dtype))
    with np.errstate(all="raise"):
        whole = f(x)
        np.testing.assert_array_equal(f(x[::2]), whole[::2])
        np.testing.assert_array_equal(f(x[3]), whole[3])
        np.testing.assert_array_equal(f(x[:0]), whole[:0])


@pytest.mark.parametrize("dtype", [f32, f16, bf16, f64], ids=str)
def test_a_result_does_not_depend_on_the_other_lanes(dtype):
    """Pieces of two lanes mostly take the short way that a long array with one tiny value never takes."""
    words = [random_words(dtype, 4096, seed) for seed in range(3)]
    operands = [array(dtype, w) for w in words]
    jobs = [(vector.binary(op, t), 2) for op, t in BINARY if t == dtype and op.rule == "arith"]
    jobs += [(vector.unary(op, t), 1) for op, t in UNARY if t == dtype and op.rule == "float"]
    jobs += [(vector.fma, 3)] * (dtype == f32) + [(vector.cast(dtype, f32), 1)] * (dtype == f64)
    for f, arity in jobs:
        whole = f(*operands[:arity])
        pieces = np.concatenate([f(*(x[k : k + 2] for x in operands[:arity])) for k in range(0, 4096, 2)])
        out = f32 if whole.dtype == np.float32 and dtype != bf16 else dtype
        assert vector.store(out, whole).tobytes() == vector.store(out, pieces).tobytes(), f


def test_casts_and_fma_take_single_values():
    with np.errstate(all="raise"):
        assert vector.fma(np.float32(3), np.float32(5), np.float32(7)) == 22
        for source, target in CASTS:
            x = array(source, edges(source))
            np.testing.assert_array_equal(vector.cast(source, target)(x[5]), vector.cast(source, target)(x)[5])


def test_flushing_hardware_changes_nothing_but_f64():
    """Other packages may leave flush-to-zero on; x86 lets us try it."""
    control = flush_control()
    if control is None:
        pytest.skip("the control word is only reachable on x86-64 Linux with executable pages")
    import ctypes

    _page, save, restore = control
    types = (f32, f16, bf16)
    jobs = [(vector.binary(op, t), t, (t, t)) for op, t in BINARY if t in types and op.rule == "arith"]
    jobs += [(vector.unary(op, t), t, (t,)) for op, t in UNARY if t in types and op.rule == "float"]
    jobs += [(vector.cast(f32, t), t, (f32,)) for t in types] + [(vector.cast(t, f32), f32, (t,)) for t in types]
    jobs += [(vector.fma, f32, (f32, f32, f32))]
    words = {t: [random_words(t, POINTS, seed) for seed in range(3)] for t in types}

    def results():
        return [vector.store(out, f(*(array(t, words[t][k]) for k, t in enumerate(ins)))) for f, out, ins in jobs]

    before = results()
    scalar = [arith.fma(2.0**-63, 2.0**-63 * s, 0.0) for s in (1.0, 1 - 2.0**-24, 1.5)]
    word = ctypes.c_uint32()
    save(word)
    try:
        restore(ctypes.c_uint32(word.value | 0x8040))  # flush results to zero, read operands as zero
        flushed = np.multiply(np.float32(2.0**-100), np.float32(2.0**-40))
        during = results()
        scalar_during = [arith.fma(2.0**-63, 2.0**-63 * s, 0.0) for s in (1.0, 1 - 2.0**-24, 1.5)]
    finally:
        restore(word)
    assert flushed == 0  # the switch was really on
    assert scalar == scalar_during
    for (f, out, _), a, b in zip(jobs, before, during, strict=True):
        assert a.tobytes() == b.tobytes(), (f, out)


# ---- f32 against the integer model ----------------------------------------------------------------------------------


def test_f32_equals_the_integer_model():
    assert f32_model.mismatches(1 << 14, seed=2) == dict.fromkeys(f32_model.MODEL, 0)


@pytest.mark.parametrize("name", ["a+b", "a*b", "a/b", "fma"])
def test_a_lone_lane_equals_the_integer_model(name):
    arity, model = f32_model.MODEL[name]
    operands = [x[-2500:] for x in f32_model.triples(2500 * 6, seed=3)[:arity]]
    operands = [np.concatenate([x, y]) for x, y in zip(operands, gap_operands(arity), strict=True)]
    for words in zip(*(x.tolist() for x in operands), strict=True):
        got = f32_model.engine(name, *(np.array([w], np.uint32) for w in words))
        assert got[0] == model(*words), [hex(w) for w in words]


def gap_operands(arity):
    """Operands whose product lies where flushing and rounding gradually part: just below 2^-126 - 2^-151."""
    k = np.arange(1300, 2100, dtype=np.uint32)  # (1 + k * 2^-23) * (1 - k * 2^-23) = 1 - k^2 * 2^-46
    a, b = np.uint32(64 << 23) | k, np.uint32(63 << 23) | (np.uint32(1 << 24) - 2 * k & np.uint32(0x7FFFFF))
    return [a, b, np.zeros_like(a)][:arity]


def test_the_flush_threshold_is_exact_for_every_lane():
    threshold = 2.0**-126 - 2.0**-151
    for x in (threshold, math.nextafter(threshold, 0), math.nextafter(threshold, 1), 2.0**-126, 2.0**-126 - 2.0**-150):
        for y in (x, -x):
            expected = np.float32(rounding.round_f32(y)).tobytes()
            assert vector.round_f32(np.array([y])).tobytes() == expected
            assert vector.cast(f64, f32)(np.array([y])).tobytes() == expected


def test_the_integer_model_sees_a_product_flushed_after_gradual_rounding(monkeypatch):
    def gradual(x):
        y = x.astype(np.float32)
        return np.where(np.abs(y) < np.float32(2.0**-126), np.copysign(np.float32(0), y), y)

    monkeypatch.setattr(vector, "binary", lambda op, dtype: vector._quiet(lambda a, b: gradual(np.float64(a) * b)))
    a, b, _ = f32_model.triples(1 << 14, seed=2)
    expected = np.fromiter(map(f32_model.multiply, a.tolist(), b.tolist()), np.uint32)
    assert np.count_nonzero(f32_model.engine("a*b", a, b) != expected) > 0


def test_the_integer_model_sees_an_unfused_fma():
    operands = f32_model.triples(1 << 14, seed=2)
    fused = np.fromiter(map(f32_model.fma, *(x.tolist() for x in operands)), np.uint32)
    assert np.count_nonzero(f32_model.engine("a*b+c", *operands) != fused) > 0


def test_the_integer_model_agrees_with_a_few_numbers_done_by_hand():
    one, tiny = f32_model.ONE, 0x00800000
    assert f32_model.add(one, one) == 0x40000000
    assert f32_model.multiply(tiny, 0x3F7FFFFF) == 0  # 2^-126 * (1 - 2^-24) is below 2^-126 in 24 bits
    assert f32_model.multiply(0x00800001, 0x3F7FFFFF) == tiny  # 2^-126 * (1 + 2^-24 - 2^-47)
    assert f32_model.divide(one, 0x40400000) == 0x3EAAAAAB
    assert f32_model.sqrt(0x40000000) == 0x3FB504F3
    assert f32_model.fma(0x3F800001, 0x3F800001, 0xBF800002) == 0x28800000
    assert f32_model.floor(0xBF000000) == 0xBF800000
    assert math.isclose(np.uint32(f32_model.multiply(0x3DCCCCCD, 0x3DCCCCCD)).view(np.float32), 0.01, rel_tol=1e-6)
