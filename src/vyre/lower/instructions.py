"""The instructions of the kernel form, a row each: which one computes an operator, how constants fold and what passes
know follow from it. Emitters print them; a test holds each emitter to this table.

A row says what an instruction takes and gives: `T` is its own type, one of `types`; `N` the type of a shift count (u32,
or u64 beside 64 bits); `A` any register type; a name is that type; `?` means that it may be missing. Nothing behind the
arrow is a statement.

Subnormals of f32 turn up from memory, from bits and, on a machine that keeps them, from arithmetic, until a `flush` has
seen them. A machine that flushes reads them as zero where `F32` says so, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import InvalidProgram
from ..foundation.ir import rounding
from ..foundation.ir.dtypes import BY_NAME
from ..foundation.ir.ops import BinaryOp, UnaryOp
from ..foundation.meaning import arith
from . import intervals
from .intervals import LIMITS, Interval
from .registers import BITS, REGISTER_TYPES, bits_of, flush, single, value_of

if TYPE_CHECKING:
    from .kernel_ir import Ins

Function: TypeAlias = Callable[..., Any]
Meaning: TypeAlias = Callable[[str, str, Any], Function]
"""(type of the result, type of the first operand, attr) -> what computes it from values, exactly."""


class F32(Enum):
    """What an instruction does with the subnormals of f32, of operands and of its result."""

    KEEPS = "takes operands as they are; canonical where they are"
    RAW = "its result may be subnormal: a flush follows where it becomes a number"
    STEP = "one rounding: a machine that flushes reads operands as zero and flushes the result; others leave both to us"
    ROOT = "as a step, but of a normal number it is never tiny, and a compiler knows where it is zero"
    TEST = "operands are read as zero by a machine that flushes"
    NATIVE = "the machine's own approximation, operands read as zero"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One row. `operators` of the language it computes, by their meaning, if it has no `meaning` of its own.

    `interval` gives the interval of an integer result from those of the operands, before it wraps; `bounds` the one
    that it never leaves, from its type and attr, where that is not the type's own.
    """

    name: str
    takes: tuple[str, ...]
    gives: str
    types: frozenset[str]
    pure: bool
    operators: tuple[BinaryOp | UnaryOp, ...]
    meaning: Meaning | None
    interval: Callable[..., Interval] | None
    bounds: Callable[[str, Any], Interval] | None
    f32: F32
    commutes: bool


# ---- meaning --------------------------------------------------------------------------------------------------------


def _by_operator(op: BinaryOp | UnaryOp) -> Meaning:
    def meaning(dtype: str, source: str, attr: Any) -> Function:
        if source == "bool" and op in _LOGIC:
            return _LOGIC[op]
        t = BY_NAME[source]
        return arith.binary(op, t) if isinstance(op, BinaryOp) else arith.unary(op, t)

    return meaning


_LOGIC: dict[BinaryOp | UnaryOp, Function] = {
    BinaryOp.BIT_AND: lambda a, b: a and b,
    BinaryOp.BIT_OR: lambda a, b: a or b,
    BinaryOp.BIT_XOR: lambda a, b: a != b,
    UnaryOp.BIT_NOT: lambda a: not a,
}


def _always(f: Function) -> Meaning:
    return lambda dtype, source, attr: f


def _convert(dtype: str, source: str, attr: Any) -> Function:
    return arith.cast(BY_NAME[source], BY_NAME[dtype])


def _bitcast(dtype: str, source: str, attr: Any) -> Function:
    return lambda x: value_of(dtype, bits_of(source, x))


def _narrow(dtype: str, source: str, attr: Any) -> Function:
    return arith.cast(BY_NAME[dtype], BY_NAME[attr])


def _fma(dtype: str, source: str, attr: Any) -> Function:
    return arith.fused(BY_NAME[dtype])


# ---- the table ------------------------------------------------------------------------------------------------------

_ANY = " ".join(REGISTER_TYPES)
_INTS = "u32 i32 u64 i64"
_FLOATS = "f32 f64"
_NUMBERS = f"{_INTS} {_FLOATS}"
_BITS = f"{_INTS} bool"
_ROWS: list[Instruction] = []


def _row(
    name: str,
    signature: str,
    types: str = _ANY,
    *operators: BinaryOp | UnaryOp,
    pure: bool = True,
    meaning: Meaning | None = None,
    interval: Callable[..., Interval] | None = None,
    bounds: Callable[[str, Any], Interval] | None = None,
    f32: F32 = F32.KEEPS,
    commutes: bool = False,
) -> None:
    takes, _, gives = signature.partition("->")
    computed = meaning or (_by_operator(operators[0]) if operators else None)
    _ROWS.append(
        Instruction(
            name, tuple(takes.split()), gives.strip(), frozenset(types.split()), pure, operators, computed, interval,
            bounds, f32, commutes,
        )
    )  # fmt: skip


# fmt: off
_row("const", "-> T")  # attr = bits
_row("gid", "-> u32")  # attr = axis: the global id,
_row("wid", "-> u32")  # of the workgroup,
_row("lid", "-> u32")  # inside the workgroup
_row("gid_lo", "-> u64")  # attr = axis: the smallest and largest global id of the tile that a check stands before
_row("gid_hi", "-> u64")
_row("lane", "-> u32")  # in the logical subgroup of 32
_row("len", "-> u32")  # attr = Buffer: its elements
_row("index", "-> u32")  # attr = Loop: its counter

# integers wrap; floats round once, by their own type, and stay canonical (see `canonical_float.py`)
_row("add", "T T -> T", _NUMBERS, BinaryOp.ADD, BinaryOp.WRAPPING_ADD, interval=intervals.add, f32=F32.STEP,
     commutes=True)
_row("sub", "T T -> T", _NUMBERS, BinaryOp.SUB, BinaryOp.WRAPPING_SUB, interval=intervals.sub, f32=F32.STEP)
_row("mul", "T T -> T", _NUMBERS, BinaryOp.MUL, interval=intervals.mul, f32=F32.STEP, commutes=True)
_row("fma", "T T T -> T", _FLOATS, meaning=_fma, f32=F32.STEP)  # one rounding
# of integers: the divisor is legal; truncating, so that a remainder has the sign of the dividend
_row("div", "T T -> T", _NUMBERS, BinaryOp.DIV, interval=intervals.div, f32=F32.STEP)
_row("rem", "T T -> T", _INTS, BinaryOp.MOD, interval=intervals.rem)
_row("sqrt", "T -> T", _FLOATS, UnaryOp.SQRT, f32=F32.ROOT)  # one rounding
_row("and", "T T -> T", _BITS, BinaryOp.BIT_AND, interval=intervals.both, commutes=True)
_row("or", "T T -> T", _BITS, BinaryOp.BIT_OR, interval=intervals.either, commutes=True)
_row("xor", "T T -> T", _BITS, BinaryOp.BIT_XOR, interval=intervals.odd, commutes=True)
_row("not", "T -> T", _BITS, UnaryOp.BIT_NOT, interval=intervals.complement)
_row("shl", "T N -> T", _INTS, BinaryOp.SHL, interval=intervals.shl)  # by less than the width
_row("shr", "T N -> T", _INTS, BinaryOp.SHR, interval=intervals.shr)  # likewise; a signed type keeps the sign
_row("mulhi", "T T -> T", "u32", BinaryOp.MUL_HIGH, interval=intervals.mulhi, commutes=True)  # high word of the product
_row("neg", "T -> T", _FLOATS, UnaryOp.NEGATE)  # only the sign bit changes, here
_row("abs", "T -> T", _FLOATS, UnaryOp.ABS)  # and here
_row("copysign", "T T -> T", _FLOATS, meaning=_always(math.copysign))  # the size of the first, the sign of the second
# of floats the other operand for one NaN, -0 below +0
_row("min", "T T -> T", _NUMBERS, BinaryOp.MIN, interval=intervals.least, commutes=True)
_row("max", "T T -> T", _NUMBERS, BinaryOp.MAX, interval=intervals.most, commutes=True)
_row("floor", "T -> T", _FLOATS, UnaryOp.FLOOR)  # the sign of zero stays, here
_row("ceil", "T -> T", _FLOATS, UnaryOp.CEIL)  # and here
_row("trunc", "T -> T", _FLOATS, UnaryOp.TRUNC)  # and here
_row("popcount", "T -> T", _INTS, UnaryOp.POPCOUNT, bounds=lambda t, attr: (0, BITS[t]))
_row("clz", "T -> T", _INTS, UnaryOp.CLZ, bounds=lambda t, attr: (0, BITS[t]))  # of 0: the width
_row("ctz", "T -> T", _INTS, UnaryOp.CTZ, bounds=lambda t, attr: (0, BITS[t]))  # likewise
_row("bitrev", "T -> T", _INTS, UnaryOp.REVERSE_BITS)

# floats: false with a NaN, except ne
_row("eq", "T T -> bool", _ANY, BinaryOp.EQ, interval=intervals.eq, f32=F32.TEST, commutes=True)
_row("ne", "T T -> bool", _ANY, BinaryOp.NE, interval=intervals.ne, f32=F32.TEST, commutes=True)
_row("lt", "T T -> bool", _NUMBERS, BinaryOp.LT, interval=intervals.lt, f32=F32.TEST)
_row("le", "T T -> bool", _NUMBERS, BinaryOp.LE, interval=intervals.le, f32=F32.TEST)
_row("gt", "T T -> bool", _NUMBERS, BinaryOp.GT, interval=intervals.gt, f32=F32.TEST)
_row("ge", "T T -> bool", _NUMBERS, BinaryOp.GE, interval=intervals.ge, f32=F32.TEST)

_row("select", "bool T T -> T", meaning=_always(lambda c, a, b: a if c else b))
# integers wrap, floats to integers truncate and saturate with NaN to 0, bool to 0 or 1; to bool is never used (`ne` is)
_row("convert", "A -> T", _NUMBERS, meaning=_convert, interval=intervals.same)
_row("bitcast", "A -> T", _NUMBERS, meaning=_bitcast, f32=F32.RAW)  # of canonical bits, as many
_row("flush", "T -> T", "f32", meaning=_always(flush))  # a subnormal becomes zero of its sign
# any NaN becomes the canonical one
_row("quiet", "T -> T", _FLOATS, meaning=_always(lambda x: x if x == x else math.nan))
_row("round_f16", "T -> T", "f32", meaning=_always(rounding.round_f16))  # the nearest value of that type, as f32
_row("round_bf16", "T -> T", "f32", meaning=_always(rounding.round_bf16))
# attr = a name of `LowerOptions.native`: what the machine has for it
_row("native", "T T? -> T", "f32", f32=F32.NATIVE)
# attr = "u8" ...: wrapped to the range of the narrow type
_row("narrow", "T -> T", "u32 i32", meaning=_narrow, interval=intervals.same,
     bounds=lambda t, attr: BY_NAME[attr].limits)

_row("get", "-> T", pure=False)  # attr = Local
_row("load", "u32 -> T", pure=False, f32=F32.RAW)  # attr = Buffer; the register type of its element
# attr = (AtomicOp, Buffer); index, value, expected -> what was there (`used`: if anything looks)
_row("atomic", "u32 T T? -> T", "u32 i32", pure=False)
# attr = ReduceOp | "shuffle" | "ballot"; stands in uniform flow only
_row("subgroup", "A u32? -> T", "u32 i32 f32", pure=False)

_row("set", "T ->", pure=False)  # attr = Local
_row("store", "u32 T ->", pure=False)  # attr = Buffer; index, value
_row("barrier", "->", pure=False)  # of the workgroup; attr = GRID: of the whole grid, in no branch or loop
_row("trap", "u32 ->", pure=False)  # attr = tag; address
_row("return", "->", pure=False)  # of the invocation
# fmt: on

INSTRUCTIONS: dict[str, Instruction] = {row.name: row for row in _ROWS}
PURE = frozenset(row.name for row in _ROWS if row.pure)
"""Same operands, same value, no effect. A load is none of these: memory changes."""
COMMUTES = frozenset(row.name for row in _ROWS if row.commutes)
BOUNDED = frozenset(row.name for row in _ROWS if row.interval or row.bounds)
"""Instructions whose interval follows from those of their operands; any other gives `LIMITS`."""
OF_OPERATOR: dict[BinaryOp | UnaryOp, str] = {op: row.name for row in _ROWS for op in row.operators}
"""The instruction that computes an operator. Where it is not defined for all operands, `build` puts more before it."""


def named(*kinds: F32) -> frozenset[str]:
    """The instructions that treat subnormals in one of these ways."""
    return frozenset(row.name for row in _ROWS if row.f32 in kinds)


COMPARES = named(F32.TEST)


def instruction(name: str) -> Instruction:
    """The row of this name."""
    found = INSTRUCTIONS.get(name)
    if found is None:
        raise InvalidProgram(
            f"the kernel form has no instruction {name!r}",
            fix="add its row to lower/instructions.py, and print it in each emitter",
        )
    return found


def unprinted(name: str, language: str) -> InvalidProgram:
    """The error of an emitter that does not know how its language says an instruction."""
    instruction(name)
    return InvalidProgram(f"{name} cannot be said in {language}", fix="print it in the emitter of that language")


def interval_of(op: str, dtype: str, attr: Any, args: Sequence[Interval]) -> Interval:
    """What an instruction of `BOUNDED` gives for operands in these intervals."""
    row = INSTRUCTIONS[op]
    limits = LIMITS[dtype] if row.bounds is None else row.bounds(dtype, attr)
    if row.interval is None:
        return limits
    found = row.interval(dtype, *args)
    if row.bounds is None:
        return intervals.wrapped(found, dtype)
    return found if limits[0] <= found[0] and found[1] <= limits[1] else limits


def require(ins: Ins) -> None:
    """Raise unless the table has this instruction with these operands and this result."""
    row = instruction(ins.op)
    own = ins.dtype if row.gives == "T" else ins.args[row.takes.index("T")].dtype if "T" in row.takes else ""
    count = "u64" if BITS.get(own) == 64 else "u32"
    meant = {"T": own, "N": count}
    least = sum(not word.endswith("?") for word in row.takes)
    right = least <= len(ins.args) <= len(row.takes) and (not own or own in row.types)
    for word, arg in zip(row.takes, ins.args, strict=False):
        kind = word.rstrip("?")
        right &= kind == "A" or meant.get(kind, kind) == arg.dtype
    if not right or ins.dtype != meant.get(row.gives, row.gives):
        takes = ", ".join(arg.dtype for arg in ins.args)
        raise InvalidProgram(
            f"{ins.op} does not make {ins.dtype or 'nothing'} of ({takes})", fix="emit it as lower/instructions.py says"
        )


# ---- what an instruction computes ------------------------------------------------------------------------------------

_READS_AS_ZERO = named(F32.STEP, F32.ROOT, F32.TEST)


def function_of(ins: Ins, soft: bool) -> Function:
    """What computes a pure instruction that has operands from their values: for constants, and for tests of emitters.

    The table says what it computes exactly. On a machine that keeps subnormals of f32 (`soft`), arithmetic gives them;
    one that flushes reads them as zero in arithmetic and comparisons.
    """
    return _function(ins.op, ins.dtype, ins.args[0].dtype, ins.attr, soft)


@cache
def _function(op: str, dtype: str, source: str, attr: Any, soft: bool) -> Function:
    row = instruction(op)
    assert row.meaning is not None, f"{op} has no value before it runs"
    if op == "convert" and (source, dtype, soft) == ("f64", "f32", True):
        return single
    exact = row.meaning(dtype, source, attr)
    if source != "f32" or op not in _READS_AS_ZERO:
        return exact
    if not soft:
        return lambda *x: exact(*map(flush, x))
    if row.f32 is F32.TEST:
        return exact
    wide = arith.fma_to_odd if op == "fma" else row.meaning("f64", "f64", attr)
    return lambda *x: single(wide(*x))
