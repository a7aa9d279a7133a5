"""What every operator computes, as exact scalar Python: the definition that all engines are held to.

Values: integers are Python ints in range, bool is `bool`, floats are `float`. An f32 value is canonical (no subnormal),
an f16 or bf16 value is exactly representable, and a NaN may carry any payload until it is stored.

Lookups (`binary`, `unary`, `cast`, ...) are cached and return plain functions: look up once, call often.

Why binary64 is enough for f32. Round the exact result of + - * / or sqrt of 24-bit numbers to 53 bits and then to 24:
since 53 >= 2 * 24 + 2, the two roundings equal one. They could differ only if the first one moved a result onto or
across a midpoint m of two 24-bit numbers (a 25-bit number), that is by at most 2^-53 of its size. But
  - a product has at most 48 bits, so the first rounding moves nothing;
  - a sum whose exponents differ by up to 28 has at most 53 bits; otherwise the smaller term is below 1/32 of a unit of
    the larger one, whose nearest midpoint is a quarter of a unit away or more;
  - a quotient a / b differs from m, if at all, by more than 2^-49 of its size: a and m * b are, up to a power of two,
    different integers of at most 49 bits; likewise a root by more than 2^-51, from a and m * m.
Exponents must not be bounded for this, and binary64 sees to it: all results lie within 2^-254 .. 2^256. Flushing and
overflow are comparisons with two midpoints, so they too see what the exact result would have shown.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeVar

from ...errors import IRTypeError, UnsupportedFeature
from ..ir.dtypes import DataType, can_cast, f32, f64, i64
from ..ir.ops import (
    ATOMIC_TYPES,
    BINARY_TYPES,
    BITCAST_TYPES,
    FMA_TYPES,
    UNARY_TYPES,
    AtomicOp,
    BinaryOp,
    OpaqueOp,
    ReduceOp,
    UnaryOp,
)
from ..ir.rounding import f32_from_bits, f32_to_bits, round_bf16, round_f16, round_f32, to_odd

Unary = Callable[[Any], Any]
Binary = Callable[[Any, Any], Any]
Buffer = memoryview | bytes | bytearray
OpT = TypeVar("OpT", BinaryOp, UnaryOp)

# ---- type rules -----------------------------------------------------------------------------------------------------

ATOMIC_AS_BINARY: Final[dict[AtomicOp, BinaryOp]] = {
    AtomicOp.ADD: BinaryOp.ADD,
    AtomicOp.OR: BinaryOp.BIT_OR,
    AtomicOp.AND: BinaryOp.BIT_AND,
    AtomicOp.XOR: BinaryOp.BIT_XOR,
    AtomicOp.MIN: BinaryOp.MIN,
    AtomicOp.MAX: BinaryOp.MAX,
}
REDUCE_AS_BINARY: Final[dict[ReduceOp, BinaryOp]] = {
    ReduceOp.ADD: BinaryOp.ADD,
    ReduceOp.MUL: BinaryOp.MUL,
    ReduceOp.MIN: BinaryOp.MIN,
    ReduceOp.MAX: BinaryOp.MAX,
    ReduceOp.AND: BinaryOp.BIT_AND,
    ReduceOp.OR: BinaryOp.BIT_OR,
    ReduceOp.XOR: BinaryOp.BIT_XOR,
}
_ORDERINGS: Final = frozenset((BinaryOp.LT, BinaryOp.GT, BinaryOp.LE, BinaryOp.GE))


def require_binary(op: BinaryOp | OpaqueOp, dtype: DataType) -> BinaryOp:
    """Raise unless `op` has a meaning on `dtype` (of the left operand)."""
    if isinstance(op, OpaqueOp) or op.rule == "wave":
        raise _no_meaning(op.text, "use a subgroup expression, or an operator of the table")
    if dtype.name not in BINARY_TYPES[op.rule] or (dtype.name == "bool" and op in _ORDERINGS):
        raise _wrong_type(op.text, dtype, BINARY_TYPES[op.rule] - ({"bool"} if op in _ORDERINGS else set()))
    return _single_step(op)


def require_unary(op: UnaryOp | OpaqueOp, dtype: DataType) -> UnaryOp:
    """Raise unless `op` has a meaning on `dtype`."""
    if isinstance(op, OpaqueOp):
        raise _no_meaning(op.text, "use an operator of the table")
    if dtype.name not in UNARY_TYPES[op.rule]:
        raise _wrong_type(op.text, dtype, UNARY_TYPES[op.rule])
    return _single_step(op)


def _single_step(op: OpT) -> OpT:
    """Raise if the math library defines `op`: libm differs from machine to machine, so it is never the definition."""
    if op.is_function:
        raise UnsupportedFeature(
            f"{op.text} has no meaning as a single step: the math library defines it",
            fix="run mathlib.expand(program), which needs arithmetic alone",
            op=op.text,
        )
    return op


def require_cast(source: DataType, target: DataType) -> None:
    """Raise unless `source` converts to `target`."""
    if not can_cast(source, target):
        raise IRTypeError(f"no cast from {source} to {target}", fix="cast through u32, i32 or f32")


def require_bitcast(source: DataType, target: DataType) -> None:
    """Raise unless `source` and `target` are words of one width that share bits."""
    if not {source.name, target.name} <= BITCAST_TYPES or source.bits != target.bits:
        fix = "bitcast between u32, i32 and f32, or between u64, i64 and f64"
        raise IRTypeError(f"no bitcast from {source} to {target}", fix=fix)


def require_atomic(op: AtomicOp | OpaqueOp, dtype: DataType) -> AtomicOp:
    """Raise unless `op` is an atomic operator that exists on `dtype`."""
    if isinstance(op, OpaqueOp) or not op.live:
        raise _no_meaning(op.text, "use atomic_cas, or another atomic operator of the table")
    if dtype.name not in ATOMIC_TYPES:
        raise _wrong_type(op.text, dtype, ATOMIC_TYPES)
    return op


def _no_meaning(text: str, fix: str) -> UnsupportedFeature:
    return UnsupportedFeature(f"operator {text} has no meaning", fix=fix, op=text)


def _wrong_type(text: str, dtype: DataType, legal: frozenset[str]) -> IRTypeError:
    return IRTypeError(f"operator {text} is not defined on {dtype}", fix=f"cast to one of {', '.join(sorted(legal))}")


# ---- lookups --------------------------------------------------------------------------------------------------------


@cache
def binary(op: BinaryOp, dtype: DataType) -> Binary:
    """The function of a binary operator whose left operand is `dtype`."""
    require_binary(op, dtype)
    if op in _COMPARE:
        return _COMPARE[op]
    if op.rule == "logic":
        return _both if op is BinaryOp.AND else _either
    return _float_binary(dtype)[op] if dtype.is_float else _int_binary(dtype)[op]


@cache
def unary(op: UnaryOp, dtype: DataType) -> Unary:
    """The function of a unary operator on `dtype`."""
    require_unary(op, dtype)
    if op is UnaryOp.LOGICAL_NOT:
        return operator.not_
    return _float_unary(dtype)[op] if dtype.is_float else _int_unary(dtype)[op]


@cache
def atomic(op: AtomicOp, dtype: DataType) -> Binary:
    """`(old, value) -> new`. The engine compares for COMPARE_EXCHANGE; this is the new value if that succeeds."""
    op = require_atomic(op, dtype)
    return binary(ATOMIC_AS_BINARY[op], dtype) if op in ATOMIC_AS_BINARY else _second


@cache
def reduce(op: ReduceOp, dtype: DataType) -> Binary:
    """One step of a subgroup reduction."""
    return binary(REDUCE_AS_BINARY[op], dtype)


@cache
def reduce_identity(op: ReduceOp, dtype: DataType) -> Any:
    """The e with `reduce(op, dtype)(e, x) == x` for *every* x: -0 for a float sum, NaN for a float minimum."""
    reduce(op, dtype)
    if dtype.is_float:
        return {ReduceOp.ADD: -0.0, ReduceOp.MUL: 1.0}.get(op, math.nan)
    lowest, highest = dtype.limits
    ones = -1 if dtype.is_signed else highest
    return {ReduceOp.MUL: 1, ReduceOp.MIN: highest, ReduceOp.MAX: lowest, ReduceOp.AND: ones}.get(op, 0)


@cache
def cast(source: DataType, target: DataType) -> Unary:
    """The conversion of values; `target` may equal `source`."""
    require_cast(source, target)
    if source == target:
        return _same
    if target.name == "bool":
        return bool  # NaN is true, -0 is false
    if target.is_float:
        if not source.is_float:
            return _rounds_int(target)
        return _ROUND[target.name]
    return _saturate(target) if source.is_float else _wrap(target)


@cache
def bitcast(source: DataType, target: DataType) -> Unary:
    """The same bits under another type; bits that become an f32 are canonicalised, and so are those of floats."""
    require_bitcast(source, target)
    if source == target:
        return _same
    if source == f32:
        wrap = _wrap(target)
        return lambda x: wrap(f32_to_bits(x))
    if target == f32:
        return lambda x: f32_from_bits(x & 0xFFFFFFFF)
    if source == f64:
        wrap = _wrap(target)
        return lambda x: wrap(_DOUBLE_BITS.unpack(_DOUBLE.pack(x if x == x else math.nan))[0])
    if target == f64:
        signed = _wrap(i64)
        return lambda x: _DOUBLE.unpack(_DOUBLE_BITS.pack(signed(x)))[0]
    return _wrap(target)


def default(dtype: DataType) -> Any:
    """Zero of the type: what a load out of bounds gives."""
    if dtype.name == "bool":
        return False
    return 0.0 if dtype.is_float else 0


# ---- rounding -------------------------------------------------------------------------------------------------------

_DOUBLE: Final = struct.Struct("d")
_DOUBLE_BITS: Final = struct.Struct("q")


def fused(dtype: DataType) -> Callable[[float, float, float], float]:
    """What computes `a * b + c` of f32 or f64 values with one rounding."""
    if dtype.name not in FMA_TYPES:
        raise IRTypeError(f"fma is not defined on {dtype}", fix="cast to f32 or f64")
    return fma if dtype == f32 else fma_f64


def fma_f64(a: float, b: float, c: float) -> float:
    """`a * b + c` of f64 values with one rounding: Python divides whole numbers with one."""
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return a * b + c if not (math.isfinite(a) and math.isfinite(b)) else c
    if a == 0 or b == 0:
        return a * b + c
    if c == 0:
        return a * b  # which may vanish, and keeps its sign
    (m, p), (n, q), (k, r) = (x.as_integer_ratio() for x in (a, b, c))
    above, below = m * n * r + k * p * q, p * q * r
    try:
        return above / below
    except OverflowError:
        return math.inf if above > 0 else -math.inf


def fma(a: float, b: float, c: float) -> float:
    """`a * b + c` of f32 values with one rounding."""
    return round_f32(fma_to_odd(a, b, c))


def fma_to_odd(a: float, b: float, c: float) -> float:
    """`a * b + c` of f32 values, rounded to 53 bits in such a way that rounding it again equals one rounding.

    The product is exact in binary64. The sum is rounded to odd: where TwoSum finds an error and the last bit is even,
    step towards the exact value. A number rounded to odd with two or more spare bits rounds on as the exact one would,
    so ties, the flush threshold and the overflow threshold all come out right.
    """
    product = a * b
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)
    if error and error == error and not _DOUBLE_BITS.unpack(_DOUBLE.pack(total))[0] & 1:
        total = math.nextafter(total, math.copysign(math.inf, error))
    return total


# ---- integers -------------------------------------------------------------------------------------------------------


@cache
def _wrap(dtype: DataType) -> Unary:
    lowest, highest = dtype.limits
    mask, bias = highest - lowest, -lowest
    return lambda x: (x + bias & mask) - bias


@cache
def _int_binary(dtype: DataType) -> dict[BinaryOp, Binary]:
    lowest, highest = dtype.limits
    mask, bias, width = highest - lowest, -lowest, (highest - lowest).bit_length()
    wrap = _wrap(dtype)

    def divide_unsigned(a: int, b: int) -> int:
        return a // b if b else mask

    def divide_signed(a: int, b: int) -> int:
        if b == 0:
            return 0
        quotient = abs(a) // abs(b)
        if (a < 0) != (b < 0):
            return -quotient
        return quotient if quotient <= highest else lowest  # MIN / -1

    def remainder(a: int, b: int) -> int:
        if b == 0:
            return 0
        rest = abs(a) % abs(b)
        return -rest if a < 0 else rest

    def rotate_left(a: int, n: int) -> int:
        n &= width - 1
        a &= mask
        return int(wrap(a << n | a >> width - n))

    def add(a: int, b: int) -> int:
        return (a + b + bias & mask) - bias

    def subtract(a: int, b: int) -> int:
        return (a - b + bias & mask) - bias

    return {
        BinaryOp.ADD: add,
        BinaryOp.SUB: subtract,
        BinaryOp.WRAPPING_ADD: add,
        BinaryOp.WRAPPING_SUB: subtract,
        BinaryOp.MUL: lambda a, b: (a * b + bias & mask) - bias,
        BinaryOp.DIV: divide_signed if bias else divide_unsigned,
        BinaryOp.MOD: remainder,
        BinaryOp.MIN: lambda a, b: a if a < b else b,
        BinaryOp.MAX: lambda a, b: b if a < b else a,
        BinaryOp.BIT_AND: operator.and_,
        BinaryOp.BIT_OR: operator.or_,
        BinaryOp.BIT_XOR: operator.xor,
        BinaryOp.SHL: lambda a, n: ((a << (n & width - 1)) + bias & mask) - bias,
        BinaryOp.SHR: lambda a, n: a >> (n & width - 1),
        BinaryOp.ROTATE_LEFT: rotate_left,
        BinaryOp.ROTATE_RIGHT: lambda a, n: rotate_left(a, -n),
        BinaryOp.ABS_DIFF: lambda a, b: abs(a - b),
        BinaryOp.SATURATING_ADD: lambda a, b: min(a + b, highest),
        BinaryOp.SATURATING_SUB: lambda a, b: max(a - b, lowest),
        BinaryOp.SATURATING_MUL: lambda a, b: min(a * b, highest),
        BinaryOp.MUL_HIGH: lambda a, b: a * b >> width,
    }


@cache
def _int_unary(dtype: DataType) -> dict[UnaryOp, Unary]:
    lowest, highest = dtype.limits
    mask = highest - lowest
    width = mask.bit_length()
    wrap = _wrap(dtype)
    return {
        UnaryOp.NEGATE: lambda x: wrap(-x),
        UnaryOp.BIT_NOT: lambda x: wrap(~x),
        UnaryOp.POPCOUNT: lambda x: (x & mask).bit_count(),
        UnaryOp.CLZ: lambda x: width - (x & mask).bit_length(),
        UnaryOp.CTZ: lambda x: (x & -x).bit_length() - 1 if x else width,
        UnaryOp.REVERSE_BITS: lambda x: wrap(int(f"{x & mask:0{width}b}"[::-1], 2)),
        UnaryOp.UNPACK4_LOW: lambda x: x & 0xF,
        UnaryOp.UNPACK4_HIGH: lambda x: x >> 4 & 0xF,
        UnaryOp.UNPACK8_LOW: lambda x: x & 0xFF,
        UnaryOp.UNPACK8_HIGH: lambda x: x >> 8 & 0xFF,
    }


# ---- floats ---------------------------------------------------------------------------------------------------------


def _divide(a: float, b: float) -> float:
    if b:
        return a / b
    if a == 0 or a != a:
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def _sqrt(x: float) -> float:
    return math.sqrt(x) if x >= 0 else math.nan  # -0 >= 0, and its root is -0


def _minimum(a: float, b: float) -> float:
    if a < b or b != b:
        return a
    return a if a == b and math.copysign(1.0, a) < 0 else b


def _maximum(a: float, b: float) -> float:
    if a > b or b != b:
        return a
    return a if a == b and math.copysign(1.0, a) > 0 else b


def _copysign(x: float, y: float) -> float:
    return math.copysign(x, y) if y == y else math.fabs(x)  # a NaN has no sign until it is stored, and then it is +


def _whole(f: Callable[[float], int]) -> Unary:
    """A rounding to whole numbers; the sign of the operand is the sign of a zero result."""
    return lambda x: math.copysign(float(f(x)), x) if math.isfinite(x) else x


def _half_away(x: float) -> int:
    size = abs(x)
    below = math.floor(size)
    return below + (size - below >= 0.5)  # exact: `size + 0.5` would not be


def _sign(x: float) -> float:
    if x == 0:
        return 0.0
    return x if x != x else math.copysign(1.0, x)


@cache
def _float_binary(dtype: DataType) -> dict[BinaryOp, Binary]:
    if dtype.name in ("f16", "bf16"):  # an f32 step, then one rounding
        narrow = _ROUND[dtype.name]
        return {op: _then(narrow, f) for op, f in _float_binary(f32).items()}
    exact = {BinaryOp.MIN: _minimum, BinaryOp.MAX: _maximum, BinaryOp.COPYSIGN: _copysign}
    if dtype.name == "f64":
        return exact | {
            BinaryOp.ADD: operator.add,
            BinaryOp.SUB: operator.sub,
            BinaryOp.MUL: operator.mul,
            BinaryOp.DIV: _divide,
        }
    return exact | {
        BinaryOp.ADD: lambda a, b: round_f32(a + b),
        BinaryOp.SUB: lambda a, b: round_f32(a - b),
        BinaryOp.MUL: lambda a, b: round_f32(a * b),
        BinaryOp.DIV: lambda a, b: round_f32(_divide(a, b)),
    }


@cache
def _float_unary(dtype: DataType) -> dict[UnaryOp, Unary]:
    if dtype.name in ("f16", "bf16"):
        narrow = _ROUND[dtype.name]
        return {op: f if op.rule == "float_test" else _then(narrow, f) for op, f in _float_unary(f32).items()}
    rounded = _ROUND[dtype.name]
    return {
        UnaryOp.NEGATE: operator.neg,
        UnaryOp.ABS: math.fabs,
        UnaryOp.SQRT: lambda x: rounded(_sqrt(x)),
        UnaryOp.RECIPROCAL: lambda x: rounded(_divide(1.0, x)),
        UnaryOp.INVERSE_SQRT: lambda x: rounded(_divide(1.0, rounded(_sqrt(x)))),
        UnaryOp.FLOOR: _whole(math.floor),
        UnaryOp.CEIL: _whole(math.ceil),
        UnaryOp.TRUNC: _whole(math.trunc),
        UnaryOp.ROUND: _whole(_half_away),
        UnaryOp.SIGN: _sign,
        UnaryOp.IS_NAN: math.isnan,
        UnaryOp.IS_INF: math.isinf,
        UnaryOp.IS_FINITE: math.isfinite,
    }


def _then(last: Unary, first: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *operands: last(first(*operands))


def _same(x: Any) -> Any:
    return x


def _second(a: Any, b: Any) -> Any:
    return b


def _both(a: int, b: int) -> bool:
    return a != 0 and b != 0


def _either(a: int, b: int) -> bool:
    return a != 0 or b != 0


_COMPARE: Final[dict[BinaryOp, Binary]] = {
    BinaryOp.EQ: operator.eq,
    BinaryOp.NE: operator.ne,
    BinaryOp.LT: operator.lt,
    BinaryOp.GT: operator.gt,
    BinaryOp.LE: operator.le,
    BinaryOp.GE: operator.ge,
}
_ROUND: Final[dict[str, Unary]] = {"f32": round_f32, "f64": _same, "f16": round_f16, "bf16": round_bf16}


def _rounds_int(target: DataType) -> Unary:
    """Integer or bool to f32 or f64."""
    return (lambda x: round_f32(to_odd(x))) if target == f32 else float


def _saturate(target: DataType) -> Unary:
    lowest, highest = target.limits

    def convert(x: float) -> int:
        if x >= highest:  # Python compares an int and a float exactly
            return highest
        if x <= lowest:
            return lowest
        return int(x) if x == x else 0

    return convert


# ---- memory ---------------------------------------------------------------------------------------------------------


@cache
def reader(dtype: DataType) -> Callable[[Buffer, int], Any]:
    """`(buffer, byte_offset) -> value`, little-endian."""
    name = dtype.name
    unpack = _layout(dtype).unpack_from
    if name == "bool":
        return lambda buffer, offset: unpack(buffer, offset)[0] != 0
    if name == "f32":
        return lambda buffer, offset: f32_from_bits(unpack(buffer, offset)[0])
    if name == "bf16":
        return lambda buffer, offset: f32_from_bits(unpack(buffer, offset)[0] << 16)
    return lambda buffer, offset: unpack(buffer, offset)[0]


@cache
def writer(dtype: DataType) -> Callable[[memoryview | bytearray, int, Any], None]:
    """`(buffer, byte_offset, value)`, little-endian; NaN becomes the canonical one of its type."""
    pack = _layout(dtype).pack_into
    match dtype.name:
        case "f32":
            return lambda buffer, offset, value: pack(buffer, offset, f32_to_bits(value))
        case "bf16":
            return lambda buffer, offset, value: pack(buffer, offset, f32_to_bits(value) >> 16)
        case "f16" | "f64":  # struct writes the quiet NaN without a payload, but may keep a sign
            return lambda buffer, offset, value: pack(buffer, offset, value if value == value else math.nan)
        case _:
            return lambda buffer, offset, value: pack(buffer, offset, value)


_LAYOUTS: Final = {
    "u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "u64": "Q", "i64": "q",
    "bool": "I", "f16": "e", "bf16": "H", "f32": "I", "f64": "d",
}  # fmt: skip


def _layout(dtype: DataType) -> struct.Struct:
    if dtype.name not in _LAYOUTS:
        raise IRTypeError(f"{dtype} elements cannot be read or written", fix="declare the buffer u8 or u32")
    return struct.Struct("<" + _LAYOUTS[dtype.name])
