"""What expressions of a kernel stand for while it is compiled, and the names of one function."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import NamedTuple

from ..ir.dtypes import DataType, bool_, f32, i32, i64, u32
from ..ir.nodes import Expr, Node, Span, plain_number
from ..ir.rounding import round_bf16, round_f16, round_f32
from . import lang
from .lang import ANNOTATIONS, Ids, Intrinsic, element_type
from .refused_syntax import REFUSED_EXPRESSIONS, foreign_fix
from .small.memory import Memory
from .small.types import SmallType
from .source import FunctionSource, Place, Table

Number = int | float | bool


class Const(NamedTuple):
    """A number known while compiling, not typed yet."""

    value: Number


class Typed(NamedTuple):
    """A value of the running kernel."""

    expr: Expr
    dtype: DataType


class Group(NamedTuple):
    """Several values in one: what `return a, b` gives, or, where it is `of` a type, a small value."""

    items: tuple[Value, ...]
    of: SmallType | None = None


class Outside(NamedTuple):
    """An object of the surrounding Python program, other than a number."""

    what: object
    name: str


class Sizes(NamedTuple):
    """`x.shape`: a number for each axis."""

    buffer: str
    axes: tuple[Typed, ...]


class Nothing(NamedTuple):
    """The result of a call that has none."""

    call: str


class Local(NamedTuple):
    """A name of the function. `fixed` says why it may not be assigned, if so."""

    var: Expr
    dtype: DataType
    line: int
    fixed: str = ""


class Members(NamedTuple):
    """A name of the function that stands for a group."""

    items: tuple[Local | Members, ...]
    of: SmallType | None
    line: int
    fixed: str = ""


class Join:
    """A name that several blocks assign and that goes on behind them: it is declared at `mark`, once its type is
    known."""

    def __init__(self, mark: tuple[list[Node], int]) -> None:
        self.mark = mark
        self.local: Local | Members | None = None


Scalar = Const | Typed
Value = Const | Typed | Group
Result = Const | Typed | Group | Memory | Outside | Sizes | Nothing
Binding = Local | Members | Const | Memory | Outside

ROUND: dict[str, Callable[[float], float]] = {"f16": round_f16, "bf16": round_bf16, "f32": round_f32, "f64": float}


class Frame:
    """One function being compiled: the kernel, or a helper at one place where it is inlined."""

    def __init__(self, source: FunctionSource) -> None:
        self.source = source
        self.scopes: list[dict[str, Binding]] = [{}]
        self.ended: dict[str, tuple[int, Binding]] = {}  # names of blocks that are over, and where the block starts
        self.joins: dict[str, Join] = {}  # names that outlive the branches being compiled
        self.depth = 0  # branches and loops around the current statement
        self.conditional = False  # whether branches and loops are around the function's call

    def find(self, name: str) -> Binding | None:
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def known(self, name: str) -> Binding | None:
        """What an assignment to `name` means: also what another arm of the same `if` made of it."""
        found = self.find(name)
        return self.joins[name].local if found is None and name in self.joins else found


def held(binding: Local | Members) -> Typed | Group:
    """What a name stands for."""
    if isinstance(binding, Local):
        return Typed(binding.var, binding.dtype)
    return Group(tuple(map(held, binding.items)), binding.of)


def leaves(value: Value) -> list[Scalar]:
    """The numbers of a value, in order."""
    return [leaf for item in value.items for leaf in leaves(item)] if isinstance(value, Group) else [value]


def rebuilt(value: Value, numbers: Iterator[Scalar]) -> Value:
    """A value of the same form with these numbers."""
    if isinstance(value, Group):
        return value._replace(items=tuple(rebuilt(item, numbers) for item in value.items))
    return next(numbers)


def same_form(a: Value, b: Value) -> bool:
    """Whether two values have numbers in the same places, of whatever types."""
    if isinstance(a, Group) and isinstance(b, Group):
        return a.of == b.of and len(a.items) == len(b.items) and all(map(same_form, a.items, b.items))
    return not isinstance(a, Group) and not isinstance(b, Group)


def type_text(value: Value) -> str:
    """What a value is, in words of the source."""
    if isinstance(value, Group):
        return str(value.of) if value.of is not None else f"tuple[{', '.join(map(type_text, value.items))}]"
    return str(value.dtype if isinstance(value, Typed) else default_type(value.value))


def several(group: Group, name: str) -> tuple[str, str]:
    """Why a group cannot be used as one number, and what to write."""
    if group.of is not None:
        return f"`{name}` is a {group.of}, not a number", f"write {name}.{group.of.fields[0]}"
    return f"`{name}` is {len(group.items)} values", "unpack them: " + ", ".join(
        "abcdefgh"[: len(group.items)]
    ) + " = ..."


def show(node: Place | Span) -> str:
    """Short source text for a Fix."""
    try:
        text = ast.unparse(node) if isinstance(node, ast.AST) else ""
    except ValueError:  # a number with more digits than Python prints
        text = ""
    return text if 0 < len(text) <= 40 else "..."


def default_type(number: Number) -> DataType:
    """The type of a number that meets no other: bool, f32, u32, or i32 when negative."""
    if isinstance(number, bool):
        return bool_
    return f32 if isinstance(number, float) else u32 if number >= 0 else i32


def adapts(value: Scalar, t: DataType) -> bool:
    """Whether a plain number takes the type `t`."""
    if isinstance(value, Typed):
        return True
    if isinstance(value.value, bool) or t == bool_:
        return isinstance(value.value, bool) and t == bool_
    return t.is_float or isinstance(value.value, int)


def common_type(numbers: list[Number]) -> DataType:
    """The type of numbers that meet each other only."""
    types = [default_type(n) for n in numbers]
    return next((t for t in (f32, i32, u32) if t in types), bool_)


def meeting_type(a: DataType, b: DataType) -> DataType:
    """The type to which values of two types are best converted: none that loses what is below zero."""
    if a.is_float or b.is_float:
        return a if a.is_float else b
    if bool_ in (a, b):
        return a if b == bool_ else b
    if a.is_signed == b.is_signed:
        return max(a, b, key=lambda t: t.bits or 0)
    signed, other = (a, b) if a.is_signed else (b, a)
    return i64 if 64 in (signed.bits, other.bits) else i32


def is_zero(node: ast.expr) -> bool:
    """Whether it is a 0 that the text says."""
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value == 0


def float_fits(number: Number, t: DataType) -> bool:
    """Whether rounding to `t` leaves a finite number finite."""
    try:
        wide = float(number)
    except OverflowError:
        return False
    return not math.isfinite(wide) or math.isfinite(ROUND[t.name](wide))


def outside_value(found: object, name: str) -> Result:
    """What an object of the surrounding program means in a kernel."""
    number = plain_number(found)
    return Outside(found, name) if number is None else Const(number)


def refusal(node: ast.expr) -> tuple[str, str]:
    """Why an expression is not part of the language, and what to write."""
    if isinstance(node, ast.Constant) and node.value is ...:
        return "`...` names no element", "index one element: x[i]"
    if isinstance(node, ast.Constant):
        kind = type(node.value).__name__
        return f"a {kind} is not a value of kernels", "use numbers, True and False"
    return REFUSED_EXPRESSIONS.get(
        type(node).__name__,
        (f"{type(node).__name__} is not part of kernels", "use numbers, names, operators and calls"),
    )


def misplaced(what: object, name: str) -> tuple[str, str]:
    """Why an outside object cannot be used as a value, and what to write."""
    if element_type(what) is not None:
        return f"`{name}` is a type, not a value", f"convert with {name}(x)"
    if isinstance(what, type) and issubclass(what, tuple) and hasattr(what, "_fields"):
        return f"`{name}` is a type, not a value", f"make one: {name}({', '.join(what._fields)})"
    if isinstance(what, Ids):
        return f"`{name}` has three axes", f"write {name}.x"
    if isinstance(what, Intrinsic):
        return f"`{name}` is a function, not a value", f"call it: {name}({what.signature})"
    if isinstance(what, ModuleType) or callable(what):
        return f"`{name}` is not a number", "use numbers and functions of vyre"
    if isinstance(what, Table) and what.items:
        return (
            f"`{name}` is a {what.kind}, not a number",
            f"write {name}{f'.{what.fields[0]}' if what.fields else '[0]'}",
        )
    return f"`{name}` is a {kind_of(what)}, not a number", "pass it as a parameter, for example In[f32]"


def kind_of(what: object) -> str:
    return what.kind if isinstance(what, Table) else type(what).__name__


def undefined(name: str) -> tuple[str, str]:
    """The message and the fix for an undefined name."""
    if isinstance(getattr(lang, name, None), Intrinsic | Ids) or name in ANNOTATIONS:
        return f"`{name}` is not defined", f"write from vyre import {name} above the kernel"
    fix = foreign_fix(name)
    if fix is not None:
        return f"`{name}` is not part of kernels", fix
    return f"`{name}` is not defined", "correct the spelling, or define it before the kernel; a later value is not seen"
