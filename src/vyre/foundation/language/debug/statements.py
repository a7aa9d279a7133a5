"""`assert` and `print`: a trap that says what was expected, and records in a log (see `ir.prints`)."""

from __future__ import annotations

import ast

from ...integers import U32_MAX
from ...ir.build import Builder
from ...ir.dtypes import f32, f64, i32, u32, u64
from ...ir.nodes import ASSERTED, Bitcast, Cast, Expr, InvocationId, UnOp, lit
from ...ir.ops import AtomicOp, UnaryOp
from ...ir.prints import HEAD_WORDS, LOG_WORDS, RECORD_HEAD, Part, print_region, words_of
from ..loops import LoopCompiler
from ..values import Const, Frame, Typed


class DebugCompiler(LoopCompiler):
    """Compiles the statements that help to find mistakes."""

    def __init__(self, builder: Builder, frame: Frame) -> None:
        super().__init__(builder, frame)
        self.asserts = 0  # so far: the address of a trap says which of them it is
        self.prints: dict[tuple[Part, ...], int] = {}  # by what they print

    def assertion(self, node: ast.Assert) -> None:
        """A trap behind the opposite of a condition. One that is false before the kernel runs is refused at once."""
        if isinstance(node.test, ast.Tuple):
            raise self.fail(node.test, "a tuple is always true", 'write assert condition, "what went wrong"')
        match node.msg:
            case None:
                text = ast.unparse(node.test)
            case ast.Constant(value=str() as text):
                pass
            case ast.JoinedStr():
                fix = 'write a plain text, and print("...", value) in front of it to see values'
                raise self.fail(node.msg, "the text of an assert is an f-string", fix)
            case _:
                raise self.fail(node.msg, "the text of an assert is not a string", 'write it out: "what went wrong"')
        if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
            raise self.fail(node.msg or node.test, "the text of an assert holds half a character", "write a whole one")
        condition, frame = self.truth(node.test), self.frame
        holds = condition.expr if isinstance(condition, Typed) else lit(bool(condition.value))
        self.asserts += 1
        self.effects += 1
        if isinstance(condition, Typed):
            with self.b.if_(UnOp(UnaryOp.LOGICAL_NOT, holds)):
                self.b.trap(ASSERTED + text, self.asserts)
        elif not condition.value:
            if not (frame.depth or frame.conditional):
                raise self.fail(node.test, f"{ASSERTED}{text}", "correct the numbers that it is made of")
            self.b.trap(ASSERTED + text, self.asserts)

    def printing(self, node: ast.Call) -> None:
        """A region that adds a record to the log, if there is room."""
        for keyword in node.keywords:
            fix = "leave it out: a line has the invocation, and the values with a space between them"
            raise self.fail(keyword, f"print() takes no {keyword.arg or '**'} in a kernel", fix)
        parts: list[Part] = []
        values: list[Typed] = []
        for k, arg in enumerate(node.args):
            if isinstance(arg, ast.Constant) and isinstance(arg.value, str):
                parts.append(f"'{arg.value}")
                continue
            if isinstance(arg, ast.JoinedStr):
                raise self.fail(arg, "an f-string in print()", 'separate text and values by commas: print("x =", x)')
            value = self.settled(self.scalar(arg), *node.args[k + 1 :])
            if isinstance(value, Const):
                parts.append(f"'{value.value}")
            else:
                parts.append(value.dtype.name)
                values.append(value)
        self.effects += 1
        number = self.prints.setdefault(tuple(parts), len(self.prints) + 1)
        with self.b.region(print_region(number, parts)):
            self._record(number, [self.once(v) for v in values])  # a subgroup's value is made where all of it is

    def _record(self, number: int, values: list[Typed]) -> None:
        b, log = self.b, self.b.log(u32)
        size = RECORD_HEAD + sum(words_of(v.dtype) for v in values)
        at = b.let("print_at", lit(LOG_WORDS, u32))
        with b.if_(b.atomic(AtomicOp.ADD, log, 0, 0, name="print_taken") < LOG_WORDS):  # else the sum would wrap
            b.assign(at, b.atomic(AtomicOp.ADD, log, 0, size, name="print_taken"))
        with b.if_(at <= LOG_WORDS - HEAD_WORDS - size):
            words: list[Expr] = [lit(number, u32), *(InvocationId(axis) for axis in range(3))]
            for v in values:
                if v.dtype == f64:
                    b.store(b.log(f64), at + (HEAD_WORDS + len(words)), v.expr)
                words += _words(v)
            for k, word in enumerate(words):
                b.store(log, at + (HEAD_WORDS + k), word)
        with b.else_():
            lost = b.atomic(AtomicOp.ADD, log, 1, 1, name="print_lost")
            with b.if_(lost.eq(U32_MAX)):
                b.atomic(AtomicOp.ADD, log, 2, 1, name="print_lost")


def _words(value: Typed) -> list[Expr]:
    """A value as words of a record. That of f64 lies elsewhere."""
    t, expr = value.dtype, value.expr
    match t.name:
        case "f64":
            return [lit(0, u32)]
        case "u64" | "i64":
            wide = expr if t == u64 else Cast(u64, expr)
            return [Cast(u32, wide), Cast(u32, wide >> 32)]
        case "u32":
            return [expr]
        case "i32" | "f32":
            return [Bitcast(u32, expr)]
        case "i8" | "i16":
            return [Bitcast(u32, Cast(i32, expr))]
        case "f16" | "bf16":
            return [Bitcast(u32, Cast(f32, expr))]
    return [Cast(u32, expr)]
