"""What type an expression has, and which rule of the type system it breaks otherwise.

`infer` applies the operand types of the operator table. An operand of unknown type (None) breaks no
rule, so that one mistake is reported once and not once per expression around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...errors import DiagCode
from ..ir.dtypes import DataType, bool_, bytes_, can_cast, f32, i32, is_narrowing, u32
from ..ir.nodes import (
    Atomic,
    BinOp,
    Bitcast,
    BufferRef,
    Call,
    Cast,
    Expr,
    Fma,
    Lit,
    Load,
    Opaque,
    Select,
    SubgroupBallot,
    SubgroupReduce,
    SubgroupShuffle,
    UnOp,
    Var,
)
from ..ir.ops import ATOMIC_TYPES, BINARY_TYPES, BITCAST_TYPES, FMA_TYPES, UNARY_TYPES, BinaryOp, ReduceOp, UnaryOp
from ..ir.visit import fold

Type = DataType | None
TRUTHS = BINARY_TYPES["logic"]
"""What a condition may be."""
LANES = frozenset(("u32", "i32", "f32"))
"""What subgroup operations exchange."""


class Problem(NamedTuple):
    """A broken rule: `where` names the operand's field, or is empty for the expression itself."""

    code: DiagCode
    where: str
    message: str
    fix: str = ""


def infer(
    expr: Expr, operands: tuple[Type, ...], names: Mapping[str, Type], elements: Mapping[str, DataType]
) -> tuple[Type, list[Problem]]:
    """The type of `expr` from the types of its `children`, and the rules it breaks.

    `names` types the locals in scope, `elements` the buffers. A result that cannot be told is None.
    """
    found: list[Problem] = []
    match expr:
        case Lit():
            return expr.dtype, found
        case Var(name=name):
            return names.get(name), found
        case Load(buffer=buffer):
            if not _may_be(operands[0], "u32"):
                found.append(Problem(DiagCode.V200, "index", f"load index is {operands[0]}"))
            return _element(buffer, elements), found
        case BinOp(op=BinaryOp() as op):
            return _binary(op, operands[0], operands[1], found), found
        case UnOp(op=UnaryOp() as op):
            return _unary(op, operands[0], found), found
        case Select():
            return _select(operands, found), found
        case Cast(target=target):
            _cast(expr, operands[0], found)
            return (target if target.live else None), found
        case Bitcast(target=target):
            source = operands[0] or target
            if not {source.name, target.name} <= BITCAST_TYPES or source.bits != target.bits:
                message = f"bitcast from {operands[0] or 'an unknown type'} to {target}"
                fix = "bitcast between u32, i32 and f32, or between u64, i64 and f64"
                found.append(Problem(DiagCode.V012, "", message, fix))
                return None, found
            return target, found
        case Atomic():
            return _atomic(expr, operands, elements, found), found
        case Fma():
            for name, t in zip("abc", operands, strict=True):
                if not _may_be(t, *FMA_TYPES):
                    found.append(Problem(DiagCode.V028, name, f"operand {name} of fma is {t}"))
            known = [t for t in operands if t is not None]
            if not found and len(set(known)) > 1:
                found.append(Problem(DiagCode.V028, "", f"fma of {', '.join(map(str, known))}"))
            return known[0] if known and not found else None, found
        case SubgroupReduce(op=reduce):
            return _reduce(reduce, operands[0], found), found
        case SubgroupShuffle():
            value, lane = operands
            if not _may_be(value, *LANES):
                found.append(Problem(DiagCode.V218, "value", f"shuffled value is {value}"))
            if not _may_be(lane, "u32"):
                found.append(Problem(DiagCode.V218, "lane", f"shuffle lane is {lane}"))
            return value, found
        case SubgroupBallot():
            if not _may_be(operands[0], *TRUTHS):
                message = f"ballot condition is {operands[0]}"
                found.append(Problem(DiagCode.V218, "condition", message, "compare the value with zero"))
            return u32, found
        case Call() | Opaque() | BufferRef() | BinOp() | UnOp():
            return None, found
    return u32, found  # ids, lengths


def type_of(expr: Expr, names: Mapping[str, Type], elements: Mapping[str, DataType]) -> Type:
    """The type of a whole expression; None where a name, a buffer or an operation is unknown."""
    return fold(expr, lambda item, operands: infer(item, operands, names, elements)[0])


def _may_be(t: Type, *names: str) -> bool:
    return t is None or t.name in names


def _element(buffer: str, elements: Mapping[str, DataType]) -> Type:
    t = elements.get(buffer)
    return t if t is not None and t.live else None


def _binary(op: BinaryOp, a: Type, b: Type, found: list[Problem]) -> Type:
    """The result type; problems go to `found`."""
    sides = (("left", a), ("right", b))
    word = op.name.lower().replace("_", " ")

    allowed = BINARY_TYPES[op.rule]

    def each(code: DiagCode, fix: str = "") -> bool:
        bad = [(where, t) for where, t in sides if not _may_be(t, *allowed)]
        found.extend(Problem(code, where, f"{where} operand of {word} is {t}", fix) for where, t in bad[:1])
        return not bad

    def same(code: DiagCode) -> Type:
        if a is not None and b is not None and a != b:
            found.append(Problem(code, "", f"{word} of {a} and {b}"))
        return a if a == b else None

    match op.rule:
        case "arith":
            return same(DiagCode.V088) if each(DiagCode.V087, "cast the operand to u32, i32 or f32") else None
        case "wrapping":
            return same(DiagCode.V088) if each(DiagCode.V087, "use the plain operator") else None
        case "float" | "function" | "float_function":
            return same(DiagCode.V088) if each(DiagCode.V087, "cast the operand to f32") else None
        case "scale":
            if not _may_be(a, *allowed):
                found.append(
                    Problem(DiagCode.V087, "left", f"left operand of {word} is {a}", "cast the operand to f32")
                )
            elif not _may_be(b, "i32"):
                found.append(Problem(DiagCode.V087, "right", f"right operand of {word} is {b}", "cast it to i32"))
            return a
        case "mod":
            return same(DiagCode.V090) if each(DiagCode.V089) else None
        case "bits":
            if not _may_be(a, *allowed):
                found.append(Problem(DiagCode.V091, "left", f"left operand of {word} is {a}"))
            elif not _may_be(b, *allowed):
                found.append(Problem(DiagCode.V092, "right", f"right operand of {word} is {b}"))
            else:
                return same(DiagCode.V093)
            return None
        case "shift":
            if not _may_be(a, *allowed):
                fix = "cast the shifted value to an integer of at least 32 bits"
                found.append(Problem(DiagCode.V094, "left", f"left operand of {word} is {a}", fix))
                return None
            if not _may_be(b, "u32"):
                found.append(Problem(DiagCode.V094, "right", f"right operand of {word} is {b}"))
            return a
        case "compare":
            t = same(DiagCode.V096)
            if t == bool_ and op not in (BinaryOp.EQ, BinaryOp.NE):
                found.append(Problem(DiagCode.V096, "", "bool values have no order", "cast both operands to u32"))
            return bool_
        case "logic":
            each(DiagCode.V095)
            return bool_
        case "abs_diff":
            each(DiagCode.V086)
            return u32
        case "saturating" | "mul_high":
            each(DiagCode.V085)
            return u32
        case _:  # the operators of the "wave" rule have no meaning on any backend
            found.append(Problem(DiagCode.V097, "", f"{op.text} is not a binary operator"))
            return None


def _unary(op: UnaryOp, t: Type, found: list[Problem]) -> Type:
    def need(code: DiagCode) -> bool:
        if not _may_be(t, *UNARY_TYPES[op.rule]):
            found.append(Problem(code, "operand", f"operand of {op.name.lower()} is {t}"))
            return False
        return True

    match op.rule:
        case "negate":
            return t if need(DiagCode.V099) else None
        case "logic":
            need(DiagCode.V100)
            return bool_
        case "bits":
            return t if need(DiagCode.V101) else None
        case "float" | "float_function":
            return t if need(DiagCode.V102) else None
        case "float_test":
            need(DiagCode.V102)
            return bool_
        case "unpack":
            need(DiagCode.V103)
            return u32
        case "exponent":
            need(DiagCode.V102)
            return i32
        case _:  # a function of f32
            need(DiagCode.V102)
            return f32


def _select(operands: tuple[Type, ...], found: list[Problem]) -> Type:
    condition, a, b = operands
    if not _may_be(condition, *TRUTHS):
        found.append(Problem(DiagCode.V204, "condition", f"select condition is {condition}"))
    if a is not None and b is not None and a != b:
        found.append(Problem(DiagCode.V029, "", f"select between {a} and {b}"))
    return a if a == b else None


def _cast(cast: Cast, source: Type, found: list[Problem]) -> None:
    target = cast.target
    if target == bytes_:
        found.append(Problem(DiagCode.V023, "", "cast to bytes"))
    elif source is None or not target.live:
        return  # a late target is reported as such
    elif not can_cast(source, target):
        found.append(Problem(DiagCode.V012, "", f"no cast from {source} to {target}"))
    elif is_narrowing(source, target) and not _fits(cast.value, target):
        found.append(Problem(DiagCode.V035, "", f"cast from {source} to {target} keeps the low bits only"))


def _fits(value: Expr, target: DataType) -> bool:
    """Whether a narrowing cast visibly loses nothing: of a small literal, or of a value masked by one."""
    if isinstance(value, BinOp) and value.op is BinaryOp.BIT_AND:
        return any(isinstance(side, Lit) and 0 <= side.value <= target.limits[1] for side in (value.left, value.right))
    return isinstance(value, Lit) and target.limits[0] <= value.value <= target.limits[1]


def _atomic(expr: Atomic, operands: tuple[Type, ...], elements: Mapping[str, DataType], found: list[Problem]) -> Type:
    t = _element(expr.buffer, elements)
    if not _may_be(operands[0], "u32"):
        found.append(Problem(DiagCode.V027, "index", f"atomic index is {operands[0]}"))
    if t is not None and not _may_be(t, *ATOMIC_TYPES):
        found.append(Problem(DiagCode.V014, "", f"atomic on a buffer of {t}"))
        return None
    for code, where, given in zip((DiagCode.V057, DiagCode.V058), ("value", "expected"), operands[1:], strict=False):
        if t is not None and given is not None and given != t:
            found.append(Problem(code, where, f"{where} is {given} on a buffer of {t}"))
    return t


def _reduce(op: ReduceOp, t: Type, found: list[Problem]) -> Type:
    if t == f32 and op in (ReduceOp.AND, ReduceOp.OR, ReduceOp.XOR):
        found.append(Problem(DiagCode.V047, "value", f"subgroup {op.text} of f32"))
        return None
    if not _may_be(t, *LANES):
        found.append(Problem(DiagCode.V218, "value", f"subgroup {op.text} of {t}"))
        return None
    return t
