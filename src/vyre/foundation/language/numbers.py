"""Numbers of the kernel language: which type they take, what is computed while compiling, and which element they name.

A plain number takes the type of what it meets, and keeps its value: one that does not fit is refused.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from ...errors import KernelError
from ..check.typing import infer
from ..integers import U32_MAX
from ..ir.build import Buffer, Builder
from ..ir.dtypes import DataType, bool_, i32, u32, u64
from ..ir.nodes import (
    BinOp,
    BufLen,
    Cast,
    Expr,
    InvocationId,
    Lit,
    LocalId,
    Select,
    Span,
    Var,
    WorkgroupId,
    lit,
    show_number,
)
from ..ir.ops import BinaryOp
from ..ir.program import Access
from .small.memory import Memory, count_of
from .source import Place
from .values import (
    Const,
    Frame,
    Local,
    Number,
    Scalar,
    Typed,
    common_type,
    default_type,
    float_fits,
    is_zero,
    meeting_type,
    show,
)

BINARY: dict[type[ast.operator], tuple[str, BinaryOp, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", BinaryOp.ADD, operator.add),
    ast.Sub: ("-", BinaryOp.SUB, operator.sub),
    ast.Mult: ("*", BinaryOp.MUL, operator.mul),
    ast.Div: ("/", BinaryOp.DIV, operator.truediv),
    ast.FloorDiv: ("//", BinaryOp.DIV, operator.floordiv),
    ast.Mod: ("%", BinaryOp.MOD, operator.mod),
    ast.BitAnd: ("&", BinaryOp.BIT_AND, operator.and_),
    ast.BitOr: ("|", BinaryOp.BIT_OR, operator.or_),
    ast.BitXor: ("^", BinaryOp.BIT_XOR, operator.xor),
    ast.LShift: ("<<", BinaryOp.SHL, operator.lshift),
    ast.RShift: (">>", BinaryOp.SHR, operator.rshift),
    ast.Pow: ("**", BinaryOp.POW, operator.pow),
}
MAX_FOLDED_BITS = 256
"""Integers known while compiling stay below this; no type holds more than 64 bits."""
MOST_OF_AN_AXIS = 1 << 31
"""Elements along an axis of a buffer with a rank: an i32 below zero is beyond them, whatever is made of it."""
NOWHERE = lit(U32_MAX, u32)
"""The index of no element: a buffer has at most so many."""


_NOT_ABOVE = (BinaryOp.MOD, BinaryOp.BIT_AND, BinaryOp.SHR, BinaryOp.MIN)
"""Of two u32, none of these gives more than the first one."""


class NumberCompiler:
    """What all compilers of expressions share: the builder, the frame, and numbers in both of their forms."""

    def __init__(self, builder: Builder, frame: Frame) -> None:
        self.b, self.frame = builder, frame
        self.temporaries: set[str] = set()  # locals that hold one value and have no name in the source
        self.shapes: dict[str, tuple[Expr, ...]] = {}  # of buffers with a rank, the size of every axis

    def fail(self, node: Place | Span, message: str, fix: str) -> KernelError:
        return self.frame.source.error(node, message, fix)

    # -- numbers that get a type

    def literal(self, number: Number, t: DataType, node: Place) -> Expr:
        """A number as a literal of `t`; refuses one that changes its value or its kind."""
        if t == bool_ or isinstance(number, bool):
            if t == bool_ and isinstance(number, bool):
                return lit(number, t)
            kind, fix = ("bool", "1 or 0") if isinstance(number, bool) else (show_number(number), "True or False")
            raise self.fail(node, f"{kind} meets a value of type {t}", f"write {fix}, or convert with {t}(...)")
        if t.is_float:
            if not float_fits(number, t):
                raise self.fail(
                    node, f"{show_number(number)} does not fit {t}", "use a smaller number, or a wider type"
                )
            return lit(number, t)
        if isinstance(number, float):
            raise self.fail(
                node,
                f"{number!r} meets a value of type {t}",
                "write a whole number, or convert the other side: f32(...)",
            )
        low, high = t.limits
        if not low <= number <= high:
            fix = f"use {low} to {high}, or convert to a wider type"
            if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert) and not t.is_signed:
                fix = f"write ~{t}({show(node.operand)})"
            raise self.fail(node, f"{show_number(number)} does not fit {t}", fix)
        return lit(number, t)

    def typed(self, value: Scalar, node: Place, like: DataType | None = None) -> Typed:
        """A value with its type; a plain number takes `like`, or its own default."""
        if isinstance(value, Typed):
            return value
        t = like or default_type(value.value)
        if like is None and t.is_int and not t.limits[0] <= value.value <= t.limits[1]:
            wide = "i64" if value.value < 0 else "u64"
            fits = -(1 << 63) <= value.value < 1 << 64
            fix = f"write {wide}({value.value})" if fits else "use a number that 64 bits can hold"
            raise self.fail(node, f"{show_number(value.value)} does not fit {t}", fix)
        return Typed(self.literal(value.value, t, node), t)

    def fit(self, value: Scalar, t: DataType, node: Place, what: str) -> Expr:
        """A value that has to be of type `t`."""
        found = self.typed(value, node, t)
        if found.dtype != t:
            fix = f"write {t}({show(node)})"
            if found.dtype.is_signed and found.dtype.is_int and t.is_int and not t.is_signed:
                bits = f"bitcast({t}, {show(node)}) for its bits" if (found.dtype, t) == (i32, u32) else fix[6:]
                fix = f"declare it {found.dtype}, which has numbers below zero, or write {bits}"
            raise self.fail(node, f"{what} is {t}, and this value is {found.dtype}", fix)
        return found.expr

    def alike(
        self, values: list[Scalar], nodes: list[ast.expr], whole: Place, what: str
    ) -> tuple[list[Expr], DataType]:
        """Values of one type: plain numbers take the type of the others."""
        types = [v.dtype for v in values if isinstance(v, Typed)]
        t = types[0] if types else common_type([v.value for v in values if isinstance(v, Const)])
        for other in types:
            if other != t:
                goal = meeting_type(t, other)
                first = {v.dtype: n for n, v in reversed([*zip(nodes, values, strict=True)]) if isinstance(v, Typed)}
                texts = [f"{goal}({show(first[lost])})" for lost in (t, other) if lost != goal]
                side = "one side, for example" if len(texts) == 1 else "both sides:"
                raise self.fail(whole, f"{what} of {t} and {other}", f"convert {side} {' and '.join(texts)}")
        return [self.typed(v, n, t).expr for v, n in zip(values, nodes, strict=True)], t

    # -- values that are used more than once

    def keep(self, value: Typed, stem: str = "t") -> Typed:
        """The value in a local of its own."""
        var = self.b.let(stem, value.expr)
        self.temporaries.add(var.name)
        return Typed(var, value.dtype)

    def once(self, value: Typed) -> Typed:
        """The value in a form that may be written twice without being computed twice."""
        plain = isinstance(value.expr, Var | Lit | BufLen | InvocationId | LocalId | WorkgroupId)
        return value if plain else self.keep(value)

    # -- elements

    def axes_of(self, memory: object) -> tuple[Expr, ...]:
        """The size of every axis of a buffer with a rank."""
        return self.shapes.get(memory.name, ()) if isinstance(memory, Buffer) else ()

    def refuse_slice(self, at: ast.expr, node: Place) -> None:
        if isinstance(at, ast.Slice):
            raise self.fail(node, "slices are not part of kernels", "index one element, in a loop if need be")

    def axes(self, memory: Memory, given: ast.expr, node: Place) -> list[ast.expr]:
        """The index along each axis of what is indexed."""
        nodes = given.elts if isinstance(given, ast.Tuple) else [given]
        name, sizes = memory.name, self.axes_of(memory)
        rank = len(sizes) or 1
        for at in nodes:
            self.refuse_slice(at, at)
        if len(nodes) == rank:
            return nodes
        if rank > 1:
            many = "1 index" if len(nodes) == 1 else f"{len(nodes)} indices"
            place = f"{name}[{', '.join('ijkl'[:rank])}]"
            raise self.fail(node, f"`{name}` has {rank} axes, and {many}", f"write {place}")
        fix = "compute one index: x[row * width + column]"
        if isinstance(memory, Buffer) and not memory.decl.is_workgroup and len(nodes) <= 4 and not sizes:
            role = {Access.READ_ONLY: "In", Access.WRITE_ONLY: "Out"}.get(memory.decl.access, "InOut")
            fix = f"declare {name}: {role}[{memory.element}, D{len(nodes)}], or {fix}"
        what = f"`{name}` has 1 axis" if sizes else f"`{name}` has no rank"
        raise self.fail(node, f"{what}, and {len(nodes)} indices" if nodes else "an index is missing", fix)

    def refuse_decided(self, op: BinaryOp, left: ast.expr, right: ast.expr, t: DataType, node: Place) -> None:
        """Whether something is below zero is a mistake to ask where nothing is."""
        always = {BinaryOp.LT: (False, is_zero(right)), BinaryOp.GE: (True, is_zero(right))}
        always |= {BinaryOp.GT: (False, is_zero(left)), BinaryOp.LE: (True, is_zero(left))}
        truth, decided = always.get(op, (False, False))
        if not decided or t.is_float or t.is_signed or t == bool_:
            return
        asked = left if is_zero(right) else right
        binding = self.frame.find(asked.id) if isinstance(asked, ast.Name) else None
        fix = f"compute it as a signed number, as i32(gid.x) - 1 is, or leave this test out: it is {truth}"
        if isinstance(binding, Local) and not binding.fixed:
            fix = f"make `{show(asked)}` signed at line {binding.line}, as i32(...) or : i32, or leave this test out"
        shown = f"{show(left)} {op.text} {show(right)}"
        raise self.fail(node, f"`{shown}` is always {str(truth).lower()}: {t} is never below zero", fix)

    def index(self, memory: Memory, values: Sequence[Scalar], nodes: list[ast.expr]) -> Expr:
        """The element that these indices name, as one u32; `NOWHERE` where one of them leaves its axis."""
        sizes, count = self.axes_of(memory), count_of(memory)
        if len(sizes) < 2:
            return self._only_index(values[0], nodes[0], count, bool(sizes) or 0 < count <= MOST_OF_AN_AXIS)
        flat: Expr | None = None
        inside: list[Expr] = []
        for size, value, node in zip(sizes, values, nodes, strict=True):
            # `size - 1` wraps where there is nothing; the length of the buffer is 0 then, and is looked at too
            last: Expr = BinOp(BinaryOp.SUB, size, lit(1, u32))
            if isinstance(value, Const):
                word: Expr = self._known_index(value, node, 0)
                if value.value:
                    inside.append(BinOp(BinaryOp.LE, word, last))
            else:
                found = self.once(self._whole(value, node))
                word = found.expr if found.dtype == u32 else Cast(u32, found.expr)
                wide = found.dtype.bits == 64
                bits = found.expr if found.dtype == u64 else Cast(u64, found.expr) if wide else word
                inside.append(BinOp(BinaryOp.LE, bits, Cast(u64, last) if wide else last))
            if flat is None or flat == lit(0, u32):
                flat = word
            else:
                flat = BinOp(BinaryOp.ADD, BinOp(BinaryOp.MUL, flat, size), word)
        assert flat is not None
        return Select(reduce(lambda a, b: BinOp(BinaryOp.AND, a, b), inside), flat, NOWHERE) if inside else flat

    def _only_index(self, value: Scalar, node: ast.expr, count: int, few: bool) -> Expr:
        """One index. Where there are `few` elements, a negative number is beyond them as a u32 too."""
        if isinstance(value, Const):
            return self._known_index(value, node, count)
        found = self._whole(value, node)
        if found.dtype == u32:
            return found.expr
        if found.dtype == i32 and few:
            return Cast(u32, found.expr)
        expr = self.once(found).expr
        if found.dtype == i32:
            return Select(BinOp(BinaryOp.GE, expr, lit(0, i32)), Cast(u32, expr), NOWHERE)
        bits = expr if found.dtype == u64 else Cast(u64, expr)
        return Select(BinOp(BinaryOp.LE, bits, lit(U32_MAX, u64)), Cast(u32, expr), NOWHERE)

    def _known_index(self, value: Const, node: ast.expr, count: int) -> Expr:
        number = value.value
        if isinstance(number, bool) or not isinstance(number, int):
            raise self.fail(node, f"the index {number!r} is not a whole number", "index with whole numbers")
        shown = show_number(number)
        if number < 0:
            raise self.fail(node, f"the index {shown} is negative", "count from the front: x[len(x) - 1]")
        if count and number >= count:
            raise self.fail(node, f"the index {shown} lies outside the {count} elements", f"use 0 to {count - 1}")
        return self.literal(number, u32, node)

    def _whole(self, value: Typed, node: ast.expr) -> Typed:
        """An index as a number of 32 or 64 bits."""
        t = value.dtype
        if not t.is_int:
            goal = "u32" if t == bool_ else "i32"
            raise self.fail(node, f"the index is {t}", f"write {goal}({show(node)})")
        match node, value.expr:
            case ast.BinOp(ast.BinOp(a, ast.Sub(), b), ast.Mod(), n), BinOp(op=BinaryOp.MOD, right=over):
                turns = isinstance(over, Lit) and over.bits & (over.bits - 1) == 0 and not t.is_signed
                if turns or (isinstance(a, ast.BinOp) and isinstance(a.op, ast.Add)):  # (i + n - 1) % n
                    return value
                if not t.is_signed and not self.may_wrap(value.expr.left):
                    return value
                turned = "wraps to a large number" if not t.is_signed else "stays below zero under %"
                fix = f"write ({show(a)} + {show(n)} - {show(b)}) % {show(n)}"
                raise self.fail(node, f"`{show(a)} - {show(b)}` {turned} where it is below zero", fix)
        wide = (i32 if t.is_signed else u32) if t.is_narrow else t
        return value if wide == t else Typed(Cast(wide, value.expr), wide)

    def may_wrap(self, expr: Expr) -> bool:
        """Whether it is a difference of u32 that a negative number would be in Python."""
        match expr:
            case BinOp(op=BinaryOp.SUB, left=a, right=b) if expr.type_hint == u32:
                rounds_down = isinstance(b, BinOp) and b.op in _NOT_ABOVE and b.left == a  # a - a % 4
                most = self._most(b)
                return not (a == b or rounds_down or (most is not None and self._least(a) >= most))
        return False

    def _least(self, expr: Expr) -> int:
        """The least that a u32 may be, if no sum in it wraps."""
        match expr:
            case Lit(bits=bits):
                return bits
            case BinOp(op=BinaryOp.ADD, left=a, right=b):
                return self._least(a) + self._least(b)
            case BinOp(op=BinaryOp.MAX, left=a, right=b):
                return max(self._least(a), self._least(b))
        return 0

    def _most(self, expr: Expr) -> int | None:
        """The most that a u32 may be, where that is plain to see."""
        match expr:
            case Lit(bits=bits):
                return bits
            case LocalId(axis=axis):
                return self.b.workgroup_size[axis] - 1
            case BinOp(op=BinaryOp.MOD, right=Lit(bits=bits)) if bits:
                return bits - 1
            case BinOp(op=BinaryOp.BIT_AND | BinaryOp.MIN, right=Lit(bits=bits)):
                return bits
        return None

    def as_bool(self, value: Scalar) -> Expr:
        """A condition as a bool."""
        if isinstance(value, Const):
            return lit(bool(value.value))
        return value.expr if value.dtype == bool_ else value.expr.ne(0)

    def checked(self, expr: Expr, types: tuple[DataType, ...], node: Place, **parts: Place) -> Typed:
        """An expression under the type rules of the IR; a broken rule is shown at the operand that breaks it."""
        t, problems = infer(expr, types, {}, {d.name: d.element for d in self.b.buffers})
        for problem in problems:
            if problem.code.severity == "error":
                raise self.fail(parts.get(problem.where, node), problem.message, problem.fix or problem.code.fix)
        assert t is not None, expr
        return Typed(expr, t)

    def refuse_narrow(self, t: DataType, node: Place, operand: Place, what: str) -> None:
        if t.is_narrow:
            wide = i32 if t.is_signed else u32
            fix = f"widen it: {wide}({show(operand)})"
            if isinstance(node, ast.AugAssign):
                target, symbol = show(node.target), BINARY[type(node.op)][0]
                fix = f"write {target} = {t}({wide}({target}) {symbol} {show(node.value)})"
            raise self.fail(node, f"{what} of {t}, which only stores", fix)

    # -- numbers known while compiling

    def fold(self, op: ast.operator, a: Number, b: Number, node: Place) -> Const:
        if isinstance(op, ast.MatMult):
            raise self.fail(node, "`@` is not an operator of kernels", "write the loops")
        symbol, _, fold = BINARY[type(op)]
        whole = isinstance(a, int) and isinstance(b, int)
        width = int(a).bit_length() if whole else 0
        if (symbol == "<<" and b > MAX_FOLDED_BITS) or (symbol == "**" and width * b > MAX_FOLDED_BITS):
            raise self.fail(node, f"the value of `{symbol}` is too large", f"keep it below 2 ** {MAX_FOLDED_BITS}")
        if not whole and symbol == "//":
            raise self.fail(node, "`//` does not divide floats", "write /")
        if symbol in ("//", "%") and b and _is_negative(a) != _is_negative(b) and (a % b or not whole):
            raise self.fail(
                node,
                f"`{symbol}` of these numbers rounds down in Python and toward zero in kernels",
                "compute the number before the kernel",
            )
        try:
            result = fold(a, b)
        except ZeroDivisionError:
            raise self.fail(node, "division by zero", "divide by a number that is not zero") from None
        except (TypeError, ValueError, OverflowError) as e:
            raise self.fail(node, f"this has no value: {e}", "correct the numbers") from None
        if isinstance(result, complex):
            raise self.fail(node, "this has no real value", "correct the numbers")
        return Const(result)

    def fold_unary(self, symbol: str, number: Number, node: ast.UnaryOp) -> Const:
        if symbol == "~":
            if isinstance(number, bool) or not isinstance(number, int):
                raise self.fail(node, f"`~` of {number!r}", "apply it to a whole number, or write not")
            return Const(~number)
        return Const(-number if symbol == "-" else +number)


def _is_negative(number: Number) -> bool:
    """Whether it has a minus; an integer may be too large for a float."""
    return number < 0 or (isinstance(number, float) and math.copysign(1, number) < 0)
