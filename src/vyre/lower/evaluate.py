"""What every pure instruction computes, as scalar Python: for constants, and for tests that emitters are held to.

Values: integers are Python ints in the range of their register, bool is `bool`, floats are `float`, an f32 being
exactly representable. Subnormals of f32 turn up from memory, from bits and, on a machine that keeps them (`soft`), from
arithmetic, until a `flush` has seen them. A machine that flushes reads them as zero in arithmetic and comparisons, and
nowhere else.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from ..foundation.ir import rounding
from ..foundation.ir.dtypes import BY_NAME, f32, u32
from ..foundation.ir.ops import BinaryOp, UnaryOp
from ..foundation.meaning import arith
from .form import BITS, FLOATS, SIGNED, Ins

READS_AS_ZERO = frozenset(("add", "sub", "mul", "div", "fma", "sqrt", "eq", "ne", "lt", "le", "gt", "ge"))
"""Instructions whose f32 operands a flushing machine reads as zero when they are subnormal."""

_BINARY = {
    "add": BinaryOp.ADD, "sub": BinaryOp.SUB, "mul": BinaryOp.MUL, "div": BinaryOp.DIV, "rem": BinaryOp.MOD,
    "and": BinaryOp.BIT_AND, "or": BinaryOp.BIT_OR, "xor": BinaryOp.BIT_XOR, "shl": BinaryOp.SHL, "shr": BinaryOp.SHR,
    "min": BinaryOp.MIN, "max": BinaryOp.MAX, "mulhi": BinaryOp.MUL_HIGH,
}  # fmt: skip
_UNARY = {
    "not": UnaryOp.BIT_NOT, "neg": UnaryOp.NEGATE, "abs": UnaryOp.ABS, "sqrt": UnaryOp.SQRT, "floor": UnaryOp.FLOOR,
    "ceil": UnaryOp.CEIL, "trunc": UnaryOp.TRUNC, "popcount": UnaryOp.POPCOUNT, "clz": UnaryOp.CLZ, "ctz": UnaryOp.CTZ,
    "bitrev": UnaryOp.REVERSE_BITS,
}  # fmt: skip
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
_LOGIC: dict[str, Callable[..., bool]] = {
    "and": operator.and_, "or": operator.or_, "xor": operator.xor, "not": operator.not_,
}  # fmt: skip
_SINGLE = struct.Struct("f")  # native: rounds as the machine does, to infinity on overflow
_WORD = struct.Struct("I")
_DOUBLE = struct.Struct("d")
_LONG = struct.Struct("Q")
_TINY = rounding.F32_MIN_NORMAL

Function = Callable[..., Any]


def value_of(dtype: str, bits: int) -> Any:
    """The value of a `const`."""
    if dtype == "bool":
        return bits != 0
    if dtype == "f32":
        return _SINGLE.unpack(_WORD.pack(bits))[0]
    if dtype == "f64":
        return _DOUBLE.unpack(_LONG.pack(bits))[0]
    return bits - (1 << BITS[dtype]) if dtype in SIGNED and bits >> BITS[dtype] - 1 else bits


def bits_of(dtype: str, value: Any) -> int:
    """The bits of a value; every NaN is the canonical one."""
    if dtype in FLOATS:
        if value != value:
            return 0x7FC00000 if dtype == "f32" else 0x7FF8000000000000
        small, wide = (_SINGLE, _WORD) if dtype == "f32" else (_DOUBLE, _LONG)
        return int(wide.unpack(small.pack(value))[0])
    return int(value) & (1 << BITS[dtype]) - 1


def function_of(ins: Ins, soft: bool) -> Function:
    """What computes a pure instruction that has operands from their values."""
    return _function(ins.op, ins.dtype, ins.args[0].dtype, ins.attr, soft)


@cache
def _function(op: str, dtype: str, source: str, attr: Any, soft: bool) -> Function:
    if op in _COMPARE:
        return _flushing(_COMPARE[op]) if source == "f32" and not soft else _COMPARE[op]
    if dtype == "bool" and op in _LOGIC:
        return _LOGIC[op]
    if op in _SPECIAL:
        return _SPECIAL[op]
    match op:
        case "convert":
            if dtype == "f32" and source == "f64" and soft:
                return single
            return arith.cast(BY_NAME[source], BY_NAME[dtype])
        case "bitcast":
            return lambda x: value_of(dtype, bits_of(source, x))
        case "narrow":
            return arith.cast(BY_NAME[dtype], BY_NAME[attr])
        case "fma":
            return (lambda a, b, c: single(arith.fma_to_odd(a, b, c))) if soft else _flushing(arith.fma)
    if op in READS_AS_ZERO and dtype == "f32":
        if not soft:
            return _flushing(_plain(op, "f32"))
        exact = _plain(op, "f64")
        return lambda *x: single(exact(*x))
    return _plain(op, dtype)


def _plain(op: str, dtype: str) -> Function:
    t = BY_NAME[dtype]
    return arith.binary(_BINARY[op], t) if op in _BINARY else arith.unary(_UNARY[op], t)


def _flushing(f: Function) -> Function:
    return lambda *x: f(*map(flush, x))


def single(x: float) -> float:
    """The nearest f32, subnormals kept. One rounding of + - * / sqrt as well, as `arith` shows: below 2^-126 results
    only have fewer bits."""
    return float(_SINGLE.unpack(_SINGLE.pack(x))[0])


def flush(x: float) -> float:
    return math.copysign(0.0, x) if -_TINY < x < _TINY else x


_SPECIAL: dict[str, Function] = {
    "flush": flush,
    "quiet": lambda x: x if x == x else math.nan,
    "copysign": math.copysign,
    "select": lambda c, a, b: a if c else b,
    "round_f16": rounding.round_f16,
    "round_bf16": rounding.round_bf16,
    "mulhi": arith.binary(BinaryOp.MUL_HIGH, u32),
    "abs": arith.unary(UnaryOp.ABS, f32),
}
