"""What every operator computes, on NumPy arrays: the twin of `foundation.arith`, held to it bit for bit.

A value of a type is an array of `value_dtype(type)`; memory holds `storage_dtype(type)`; `load` and `store` convert.
Operands broadcast. No function warns, and none rests on the machine's treatment of subnormals, except for f64, which is
whatever plain IEEE gives.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ....errors import IRTypeError
from ....foundation.ir import rounding
from ....foundation.ir.dtypes import DataType, f32, f64
from ....foundation.ir.ops import AtomicOp, BinaryOp, ReduceOp, UnaryOp
from ....foundation.meaning import arith

Array = NDArray[Any]
Unary = Callable[[Array], Array]
Binary = Callable[[Array, Array], Array]

# ---- representation -------------------------------------------------------------------------------------------------

_VALUE: Final[dict[str, type[np.generic]]] = {
    "u8": np.uint8, "i8": np.int8, "u16": np.uint16, "i16": np.int16, "u32": np.uint32, "i32": np.int32,
    "u64": np.uint64, "i64": np.int64, "bool": np.bool_, "f16": np.float16, "bf16": np.float32, "f32": np.float32,
    "f64": np.float64,
}  # fmt: skip
_STORAGE: Final = _VALUE | {"bool": np.uint32, "bf16": np.uint16}


def value_dtype(dtype: DataType) -> np.dtype[Any]:
    """What a value of this type is inside a kernel; a bf16 is a float32 that it can represent."""
    return np.dtype(_known(_VALUE, dtype))


def storage_dtype(dtype: DataType) -> np.dtype[Any]:
    """What an element of this type is in a buffer (little-endian)."""
    return np.dtype(_known(_STORAGE, dtype)).newbyteorder("<")


def _known(table: dict[str, type[np.generic]], dtype: DataType) -> type[np.generic]:
    if dtype.name not in table:
        raise IRTypeError(f"{dtype} has no array form", fix="declare the buffer u8 or u32")
    return table[dtype.name]


def load(dtype: DataType, raw: Array | bytes | bytearray | memoryview) -> Array:
    """Values of stored elements (an array of the storage type, or bytes). The result may share memory with `raw`."""
    stored = raw if isinstance(raw, np.ndarray | np.generic) else np.frombuffer(raw, storage_dtype(dtype))
    match dtype.name:
        case "bool":
            return np.asarray(stored != 0)
        case "f32":
            return _flush_bits(stored.view(np.uint32))
        case "bf16":
            return _flush_bits(stored.astype(np.uint32) << np.uint32(16))
        case _:
            return stored


def store(dtype: DataType, values: Array) -> Array:
    """Elements of values, every NaN the canonical one of its type. The result may share memory with `values`."""
    match dtype.name:
        case "f32" | "f64" | "f16":
            return np.where(np.isnan(values), _VALUE[dtype.name](np.nan), values)
        case "bf16":
            bits = np.where(np.isnan(values), np.uint32(0x7FC00000), np.asarray(values).view(np.uint32))
            return (bits >> np.uint32(16)).astype(np.uint16)
        case _:
            return np.asarray(values).astype(storage_dtype(dtype), copy=False)


def default(dtype: DataType) -> Any:
    """Zero of the type, as a NumPy scalar."""
    return value_dtype(dtype).type(0)


def _flush_bits(bits: Array) -> Array:
    """f32 values of 32-bit words, by integer steps alone."""
    subnormal = bits & np.uint32(0x7F800000) == 0
    return np.asarray(np.where(subnormal, bits & np.uint32(0x80000000), bits)).view(np.float32)


_TESTS: Final[dict[BinaryOp, Binary]] = {
    BinaryOp.EQ: np.equal,
    BinaryOp.NE: np.not_equal,
    BinaryOp.LT: np.less,
    BinaryOp.GT: np.greater,
    BinaryOp.LE: np.less_equal,
    BinaryOp.GE: np.greater_equal,
    BinaryOp.AND: np.logical_and,  # of bools and words alike
    BinaryOp.OR: np.logical_or,
}

# ---- lookups --------------------------------------------------------------------------------------------------------


def _quiet(f: Callable[..., Any]) -> Callable[..., Any]:
    """Run `f` without floating-point warnings, whatever the caller's settings are."""

    @wraps(f)
    def call(*operands: Any) -> Any:
        with np.errstate(all="ignore"):
            return f(*operands)

    return call


@cache
def binary(op: BinaryOp, dtype: DataType) -> Binary:
    """The function of a binary operator whose left operand is `dtype`."""
    arith.require_binary(op, dtype)
    if op in _TESTS:
        return _quiet(_TESTS[op])
    return _quiet(_float_binary(dtype)[op] if dtype.is_float else _int_binary(dtype)[op])


@cache
def unary(op: UnaryOp, dtype: DataType) -> Unary:
    """The function of a unary operator on `dtype`."""
    arith.require_unary(op, dtype)
    if op is UnaryOp.LOGICAL_NOT:
        return np.logical_not
    return _quiet(_float_unary(dtype)[op] if dtype.is_float else _int_unary(dtype)[op])


@cache
def atomic(op: AtomicOp, dtype: DataType) -> Binary:
    """`(old, value) -> new`, element by element; order and comparison are the engine's."""
    op = arith.require_atomic(op, dtype)
    return binary(arith.ATOMIC_AS_BINARY[op], dtype) if op in arith.ATOMIC_AS_BINARY else lambda _, value: value


@cache
def reduce(op: ReduceOp, dtype: DataType) -> Binary:
    """One step of a subgroup reduction."""
    return binary(arith.REDUCE_AS_BINARY[op], dtype)


@cache
def reduce_identity(op: ReduceOp, dtype: DataType) -> Any:
    """The identity of `reduce(op, dtype)`, as a NumPy scalar."""
    return value_dtype(dtype).type(arith.reduce_identity(op, dtype))


@cache
def cast(source: DataType, target: DataType) -> Unary:
    """The conversion of values; `target` may equal `source`."""
    arith.require_cast(source, target)
    if source == target:
        return lambda x: x
    if target.name == "bool":
        return lambda x: np.not_equal(x, 0)  # NaN is true, -0 is false
    wanted = value_dtype(target)
    if source.is_float and target.is_int:
        return _quiet(_saturate(target))
    if source.is_float and (source.bits or 0) > (target.bits or 0):
        return _quiet(_NARROW[target.name])
    return _quiet(lambda x: x.astype(wanted))


@cache
def bitcast(source: DataType, target: DataType) -> Unary:
    """The same bits under another type, canonical on either side."""
    arith.require_bitcast(source, target)
    wanted = value_dtype(target)
    if source == target:
        return lambda x: x
    if source == f32:
        return lambda x: store(f32, x).view(wanted)
    if source == f64:
        return lambda x: store(f64, x).view(wanted)
    if target == f32:
        return lambda x: _flush_bits(x.view(np.uint32))
    return lambda x: x.view(wanted)


# ---- rounding -------------------------------------------------------------------------------------------------------


def round_f32(x: Array) -> Array:
    """Round binary64 to 24 bits as if exponents had no bounds, then flush below 2^-126 and overflow to infinity."""
    with np.errstate(all="ignore"):
        return _round_f32(np.asarray(x, np.float64))


def _round_f32(x: Array) -> Array:
    single = x.astype(np.float32)
    if not _meets_threshold(single):
        return single
    # Settled before the conversion, which then meets no subnormal, whatever the machine would do with one.
    size = np.abs(x)
    kept = np.where(size < rounding.F32_FLUSH, 0.0, np.maximum(size, rounding.F32_MIN_NORMAL))
    return np.asarray(np.copysign(kept, x)).astype(np.float32)


def _meets_threshold(single: Array) -> bool:
    """Whether a binary32 result is near enough to 2^-126 (or flushed by the machine) to need another look."""
    return bool(np.any(np.abs(single) <= np.float32(rounding.F32_MIN_NORMAL)))


def _try_f32(step: Binary, exact: Binary) -> Binary:
    """`step` in binary32, which is `exact` everywhere but near 2^-126, in a fraction of the time."""

    def f(a: Array, b: Array) -> Array:
        single = step(a, b)
        return exact(a, b) if _meets_threshold(single) else single

    return f


def _round_f16(x: Array) -> Array:
    return x.astype(np.float16)


def _round_bf16(x: Array) -> Array:
    """Round canonical f32 values to 8 bits, ties to even."""
    bits = np.asarray(x).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(x), rounded.view(np.float32), x)


_NARROW: Final[dict[str, Unary]] = {"f32": _round_f32, "f16": _round_f16, "bf16": _round_bf16}


def fused(dtype: DataType) -> Callable[[Array, Array, Array], Array]:
    """What computes `a * b + c` of f32 or f64 values with one rounding."""
    return fma if arith.fused(dtype) is arith.fma else fma_f64


_fma_slowly = np.frompyfunc(arith.fma_f64, 3, 1)


@_quiet
def fma_f64(a: Array, b: Array, c: Array) -> Array:
    """`a * b + c` of f64 values with one rounding: an exact product and two exact sums, of which the small parts are
    added to odd. Numbers whose product or sum may leave the normal ones are computed one by one."""
    a, b, c = np.broadcast_arrays(*(np.asarray(x, np.float64) for x in (a, b, c)))
    product = a * b
    low = _product_error(a, b, product)
    first, second = _two_sum(c, low)
    high, third = _two_sum(product, first)
    total, error = _two_sum(third, second)
    bits = total.view(np.int64)
    odd = (error != 0) & (bits & 1 == 0)
    found = high + np.where(odd, bits + np.where((error > 0) == (total > 0), 1, -1), bits).view(np.float64)
    size, addend = np.abs(product), np.abs(c)
    plain = (size > 2.0**-900) & (size < 2.0**900) & (addend > 2.0**-900) & (addend < 2.0**900)
    plain &= (np.abs(a) < 2.0**900) & (np.abs(b) < 2.0**900)
    if not np.all(plain):
        found = np.array(found)
        rest = ~plain
        found[rest] = _fma_slowly(a[rest], b[rest], c[rest]).astype(np.float64)
    return found


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """A rounded sum, and what it lacks."""
    total = np.asarray(a + b)
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _product_error(a: Array, b: Array, product: Array) -> Array:
    """What a rounded product lacks."""
    (x, u), (y, v) = _halves(a), _halves(b)
    return np.asarray(((x * y - product) + x * v + u * y) + u * v)


def _halves(x: Array) -> tuple[Array, Array]:
    """A number as a sum of two with 26 bits each."""
    scaled = x * 134217729.0
    high = scaled - (scaled - x)
    return high, x - high


@_quiet
def fma(a: Array, b: Array, c: Array) -> Array:
    """`a * b + c` of f32 values with one rounding: exact product, TwoSum, round to odd, round to 24 bits."""
    product = np.multiply(a, b, dtype=np.float64)
    addend = np.asarray(c, np.float64)
    total = np.asarray(product + addend)
    part = total - product
    error = (product - (total - part)) + (addend - part)
    bits = total.view(np.int64)
    inexact = (error != 0) & (bits & 1 == 0) & np.isfinite(total)
    step = np.where((error > 0) == (total > 0), 1, -1)  # away from zero or towards it
    return _round_f32(np.where(inexact, bits + step, bits).view(np.float64))


# ---- integers -------------------------------------------------------------------------------------------------------


@cache
def _int_binary(dtype: DataType) -> dict[BinaryOp, Binary]:
    number = value_dtype(dtype).type
    assert dtype.bits is not None
    unsigned = np.dtype(f"u{dtype.bits // 8}").type
    width = dtype.bits
    highest = number(dtype.limits[1])

    def divide_unsigned(a: Array, b: Array) -> Array:
        return np.where(b == 0, highest, a // np.where(b == 0, number(1), b))

    def remainder(a: Array, b: Array) -> Array:
        return np.fmod(a, _divisor(b))

    def divide_signed(a: Array, b: Array) -> Array:
        divisor = _divisor(b)
        quotient = (a - np.fmod(a, divisor)) // divisor  # exact, so flooring and truncating agree
        return np.where(b == 0, number(0), np.where(b == number(-1), np.negative(a), quotient))

    def _divisor(b: Array) -> Array:
        """`b` where dividing by it is safe, else 1: a remainder by 0 or -1 is 0."""
        unsafe = (b == 0) | (b == number(-1)) if dtype.is_signed else b == 0
        return np.where(unsafe, number(1), b)

    def amount(n: Array) -> Array:
        return (n & np.uint32(width - 1)).astype(number)

    def rotate_left(a: Array, n: Array) -> Array:
        bits = np.asarray(a).view(unsigned)
        left = (n & np.uint32(width - 1)).astype(unsigned)
        right = unsigned(width) - left & unsigned(width - 1)
        return np.asarray(bits << left | bits >> right).view(number)

    def saturating_add(a: Array, b: Array) -> Array:
        total = np.add(a, b)
        return np.where(total < a, highest, total)

    def saturating_multiply(a: Array, b: Array) -> Array:
        return np.minimum(np.multiply(a, b, dtype=np.uint64), np.uint64(highest)).astype(number)

    return {
        BinaryOp.ADD: np.add,
        BinaryOp.SUB: np.subtract,
        BinaryOp.WRAPPING_ADD: np.add,
        BinaryOp.WRAPPING_SUB: np.subtract,
        BinaryOp.MUL: np.multiply,
        BinaryOp.DIV: divide_signed if dtype.is_signed else divide_unsigned,
        BinaryOp.MOD: remainder,
        BinaryOp.MIN: np.minimum,
        BinaryOp.MAX: np.maximum,
        BinaryOp.BIT_AND: np.bitwise_and,
        BinaryOp.BIT_OR: np.bitwise_or,
        BinaryOp.BIT_XOR: np.bitwise_xor,
        BinaryOp.SHL: lambda a, n: np.left_shift(a, amount(n)),
        BinaryOp.SHR: lambda a, n: np.right_shift(a, amount(n)),
        BinaryOp.ROTATE_LEFT: rotate_left,
        BinaryOp.ROTATE_RIGHT: lambda a, n: rotate_left(a, np.negative(n)),
        BinaryOp.ABS_DIFF: lambda a, b: np.maximum(a, b) - np.minimum(a, b),
        BinaryOp.SATURATING_ADD: saturating_add,
        BinaryOp.SATURATING_SUB: lambda a, b: np.maximum(a, b) - b,
        BinaryOp.SATURATING_MUL: saturating_multiply,
        BinaryOp.MUL_HIGH: lambda a, b: (np.multiply(a, b, dtype=np.uint64) >> np.uint64(width)).astype(number),
    }


@cache
def _int_unary(dtype: DataType) -> dict[UnaryOp, Unary]:
    number = value_dtype(dtype).type
    assert dtype.bits is not None
    width = dtype.bits
    unsigned = np.dtype(f"u{width // 8}").type
    ones = (1 << width) - 1
    fields = {step: unsigned(ones // ((1 << step) + 1)) for step in (32, 16, 8, 4, 2, 1) if step < width}
    """Masks of every second group of `step` bits, the lowest group set: 0x5555..., 0x3333..., ..."""

    def words(f: Unary) -> Unary:
        """`f` on the bits as an unsigned word, the result in the type itself."""
        return lambda x: np.asarray(f(np.asarray(x).view(unsigned))).view(number)

    def popcount(x: Array) -> Array:
        for step in reversed(fields):  # add neighbouring groups, each twice as wide as before
            x = (x & fields[step]) + (x >> unsigned(step) & fields[step])
        return x

    def reverse(x: Array) -> Array:
        for step, low in fields.items():
            x = (x & low) << unsigned(step) | x >> unsigned(step) & low
        return x

    def clz(x: Array) -> Array:
        for step in reversed(fields):
            x = x | x >> unsigned(step)  # every bit below the highest one becomes set
        return popcount(~x)

    def unpack(shift: int, mask: int) -> Unary:
        return lambda x: np.asarray(x).view(unsigned) >> unsigned(shift) & unsigned(mask)

    return {
        UnaryOp.NEGATE: np.negative,
        UnaryOp.BIT_NOT: np.invert,
        UnaryOp.POPCOUNT: words(popcount),
        UnaryOp.CLZ: words(clz),
        UnaryOp.CTZ: words(lambda x: popcount(~x & x - unsigned(1))),
        UnaryOp.REVERSE_BITS: words(reverse),
        UnaryOp.UNPACK4_LOW: unpack(0, 0xF),
        UnaryOp.UNPACK4_HIGH: unpack(4, 0xF),
        UnaryOp.UNPACK8_LOW: unpack(0, 0xFF),
        UnaryOp.UNPACK8_HIGH: unpack(8, 0xFF),
    }


def _saturate(target: DataType) -> Unary:
    lowest, highest = target.limits
    number = value_dtype(target).type
    wide = np.int64 if target.is_signed else np.uint64

    def convert(x: Array) -> Array:
        x = np.asarray(x, np.float64)
        # Strictly inside the bounds as binary64 sees them: an upper bound of 64 bits rounds up to the next power of 2.
        inside = (x > float(lowest)) & (x < float(highest))
        whole = np.where(inside, x, 0.0).astype(wide).astype(number)  # NaN is outside, and becomes 0
        return np.where(x >= float(highest), number(highest), np.where(x <= float(lowest), number(lowest), whole))

    return convert


# ---- floats ---------------------------------------------------------------------------------------------------------


def _minimum(a: Array, b: Array) -> Array:
    return np.where((a < b) | np.isnan(b) | ((a == b) & np.signbit(a)), a, b)


def _maximum(a: Array, b: Array) -> Array:
    return np.where((a > b) | np.isnan(b) | ((a == b) & ~np.signbit(a)), a, b)


def _copysign(x: Array, y: Array) -> Array:
    return np.asarray(np.copysign(x, np.where(np.isnan(y), y.dtype.type(0), y)))


def _half_away(x: Array) -> Array:
    whole = np.trunc(x)
    away = np.where(np.abs(x - whole) >= 0.5, x.dtype.type(1), x.dtype.type(0))  # exact: `x + 0.5` would not be
    return np.asarray(np.copysign(np.abs(whole) + away, x))


def _sign(x: Array) -> Array:
    one = np.copysign(x.dtype.type(1), x)
    return np.where(x == 0, x.dtype.type(0), np.where(np.isnan(x), x, one))


def _then(last: Unary, first: Callable[..., Array], wide: DTypeLike) -> Callable[..., Array]:
    """`first` on operands widened to `wide`, then the rounding `last`."""
    return lambda *operands: last(first(*(np.asarray(x, wide) for x in operands)))


@cache
def _float_binary(dtype: DataType) -> dict[BinaryOp, Binary]:
    if dtype.name in ("f16", "bf16"):
        return {op: _then(_NARROW[dtype.name], f, np.float32) for op, f in _float_binary(f32).items()}
    exact: dict[BinaryOp, Binary] = {BinaryOp.MIN: _minimum, BinaryOp.MAX: _maximum, BinaryOp.COPYSIGN: _copysign}
    steps = {BinaryOp.ADD: np.add, BinaryOp.SUB: np.subtract, BinaryOp.MUL: np.multiply, BinaryOp.DIV: np.divide}
    if dtype.name == "f64":
        return exact | steps
    rounded = {op: _then(_round_f32, step, np.float64) for op, step in steps.items()}
    # Division stays in binary64: vector units exist that approximate it in binary32.
    quick = {op: _try_f32(steps[op], rounded[op]) for op in (BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL)}
    return exact | rounded | quick


@cache
def _float_unary(dtype: DataType) -> dict[UnaryOp, Unary]:
    if dtype.name in ("f16", "bf16"):
        narrow = _NARROW[dtype.name]
        return {
            op: f if op.rule == "float_test" else _then(narrow, f, np.float32) for op, f in _float_unary(f32).items()
        }
    rounded: Unary = _round_f32 if dtype == f32 else lambda x: x
    sqrt = _then(rounded, np.sqrt, np.float64)
    reciprocal = _then(rounded, np.reciprocal, np.float64)
    return {
        UnaryOp.NEGATE: np.negative,
        UnaryOp.ABS: np.abs,
        UnaryOp.SQRT: sqrt,
        UnaryOp.RECIPROCAL: reciprocal,
        UnaryOp.INVERSE_SQRT: lambda x: reciprocal(sqrt(x)),
        UnaryOp.FLOOR: np.floor,
        UnaryOp.CEIL: np.ceil,
        UnaryOp.TRUNC: np.trunc,
        UnaryOp.ROUND: _half_away,
        UnaryOp.SIGN: _sign,
        UnaryOp.IS_NAN: np.isnan,
        UnaryOp.IS_INF: np.isinf,
        UnaryOp.IS_FINITE: np.isfinite,
    }
