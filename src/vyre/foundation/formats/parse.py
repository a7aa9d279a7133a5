"""Reads the text form. Every failure is a TextError that shows the place; depth is limited by memory alone."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from ...errors import ArgumentTypeError, IRValueError
from ..ir.dtypes import DataType, f32, f64, i32, i64, u32, u64
from ..ir.nodes import (
    Assign,
    Atomic,
    Barrier,
    BinOp,
    Bitcast,
    Block,
    BufferRef,
    BufLen,
    Call,
    Cast,
    Expr,
    If,
    Let,
    Lit,
    Load,
    Loop,
    Node,
    Opaque,
    Region,
    Return,
    Store,
    SubgroupReduce,
    UnOp,
    Var,
    lit,
)
from ..ir.ops import AtomicOp, CollectiveOp, OpaqueOp, Ordering, UnaryOp
from ..ir.program import BufferDecl, Hints, LinearType, Locality, MemoryKind, Predicate, Program
from .text import (
    ACCESS_WORDS,
    ATOMIC_FUNCTIONS,
    AXIS_WORDS,
    BINARY_FUNCTIONS,
    BRACKET_WORDS,
    CALL_STATEMENTS,
    COMPARE_LEVEL,
    INFIX,
    PLAIN_FUNCTIONS,
    PREDICATES,
    PREFIX,
    REDUCE_FUNCTIONS,
    RESERVED,
    STATEMENT_WORDS,
    TYPE_WORDS,
    UNARY_FUNCTIONS,
    WORDS,
)
from .tokens import MAX_DIGITS, Token, Tokens, show

_NUMBER = re.compile(r"(0[xX][0-9a-fA-F]+|[0-9.]+(?:[eE][+-]?[0-9]+)?)([fiu](?:32|64))?")
_NUMBER_TYPES: dict[str, DataType] = {"u32": u32, "i32": i32, "u64": u64, "i64": i64, "f32": f32, "f64": f64}
_INFIX = {op.text: (op, level) for op, level in INFIX.items()}
_PREFIX = {op.text: (op, level) for op, level in PREFIX.items()}
_ACCESS = {word: access for access, word in ACCESS_WORDS.items()}
_FLAGS: dict[str, dict[str, Any]] = {
    "output": {"is_output": True}, "live": {"live_out": True}, "bytes_extraction": {"bytes_extraction": True},
} | {t.name.lower(): {"linear_type": t} for t in LinearType}  # fmt: skip
_LOCALITIES = {w.name.lower(): w for w in Locality}


def parse_program(text: str) -> Program:
    """The program that a text describes; types after `let` names are checked for spelling only."""
    if not isinstance(text, str):
        raise ArgumentTypeError(
            f"the text of a program is a {type(text).__name__}", fix="pass a string, such as str(program)"
        )
    return _Parser(text).program()


class _Frame:
    """An open bracket of an expression: what was read inside it and what it becomes when it closes."""

    def __init__(self, opened: Token, close: str, build: Callable[..., Expr], arity: tuple[int, ...] = (1,)) -> None:
        self.opened, self.close, self.build, self.arity = opened, close, build, arity
        self.args: list[Expr] = []
        self.operands: list[Expr] = []
        self.operators: list[tuple[Any, int]] = []
        self.atomic = False  # takes the keywords `expected` and `ordering`
        self.keywords: dict[str, Any] = {}


class _Body(NamedTuple):
    """An open brace of statements; `finish` makes them the statement that holds them."""

    nodes: list[Node]
    finish: Callable[[tuple[Node, ...]], None]


class _Parser(Tokens):
    """Reads what tokens mean: expressions, statements, buffers and the whole."""

    # -- expressions

    def expr(self) -> Expr:
        """One expression: operands and operators on explicit stacks, one frame per open bracket."""
        frames = [_Frame(self.token, "", lambda e: e)]
        while True:
            found = self.operand(frames[-1])
            if isinstance(found, Expr):
                frames[-1].operands.append(found)
            else:
                frames.append(found)
                if not self.peek(found.close):
                    continue
            while True:  # after an operand
                frame = frames[-1]
                if frame.operands:
                    if self.infix(frame):
                        break
                    self.reduce(frame, 0)
                    frame.args.append(frame.operands.pop())
                if frame.close and self.accept(","):
                    if self.keyword(frame):
                        continue
                    break
                frames.pop()
                value = self.close(frame)
                if not frames:
                    return value
                frames[-1].operands.append(value)

    def close(self, frame: _Frame) -> Expr:
        if frame.close:
            self.expect(frame.close, f"to match {frame.opened.text!r}")
        if frame.arity and len(frame.args) not in frame.arity:
            takes = " or ".join(map(str, frame.arity))
            message = f"expected {takes} values in these brackets, found {len(frame.args)}"
            raise self.error(message, f"write {takes}, with commas between them", frame.opened)
        return frame.build(*frame.args, **frame.keywords)

    def keyword(self, frame: _Frame) -> bool:
        """After a comma of an atomic: `ordering=` with its word, or the name of the argument that follows."""
        if frame.atomic and self.peek("ordering") and self.peek("=", 1):
            self.at += 2
            frame.keywords["ordering"] = self.choose({o.text: o for o in Ordering}, "a memory ordering")
            return True
        if frame.atomic and self.peek("expected") and self.peek("=", 1):
            if len(frame.args) != 2:
                raise self.error("the expected value stands in the wrong place", "write it after index and value")
            self.at += 2
            frame.arity = (3,)
        return False

    def infix(self, frame: _Frame) -> bool:
        """Take an infix operator, if one follows."""
        found = _INFIX.get(self.token.text) if self.token.kind in ("name", "sign") else None
        if found is None:
            return False
        op, level = found
        compare = level == COMPARE_LEVEL
        self.reduce(frame, level + compare)
        if compare and frame.operators and frame.operators[-1][1] == level:
            raise self.error("comparisons do not chain", "put one of them in parentheses, or join two with `and`")
        frame.operators.append((op, level))
        self.next()
        return True

    def reduce(self, frame: _Frame, level: int) -> None:
        """Apply the operators that bind at least this tightly."""
        while frame.operators and frame.operators[-1][1] >= level:
            op, _ = frame.operators.pop()
            right = frame.operands.pop()
            frame.operands.append(
                UnOp(op, right) if isinstance(op, UnaryOp) else BinOp(op, frame.operands.pop(), right)
            )

    def operand(self, frame: _Frame) -> Expr | _Frame:
        """An operand with the prefix operators before it, which wait in the frame; or the bracket it opens."""
        while True:
            token = self.token
            if token.kind not in ("name", "sign") or token.text not in _PREFIX:
                break
            ahead = self.tokens[self.at + 1]
            if token.text == "-" and ahead.start == token.start + 1:
                if ahead.kind == "number":
                    self.next()
                    return self.number(self.next(), negative=True)
                if ahead.text in ("inf", "inff64"):
                    self.at += 2
                    positive = WORDS[ahead.text]
                    assert isinstance(positive, Lit)
                    return positive.replace(bits=positive.bits | 1 << (positive.dtype.bits or 0) - 1)
            op, level = _PREFIX[token.text]
            if frame.operators and frame.operators[-1][1] > level:
                raise self.error("`not` binds less than the operator before it", "put it in parentheses: (not x)")
            frame.operators.append((op, level))
            self.next()
        if token.kind == "number":
            return self.number(self.next())
        if token.kind == "string" or (token.kind == "name" and token.text not in RESERVED):
            return self.named()
        if token.kind == "name":
            return self.word()
        if self.accept("("):
            return _Frame(token, ")", lambda e: e)
        if self.accept("&"):
            return BufferRef(self.name("a buffer name"))
        raise self.expected("an expression", "write a value, a name or an operation")

    def number(self, token: Token, negative: bool = False) -> Expr:
        digits, suffix = _NUMBER.fullmatch(token.text).groups()  # type: ignore[union-attr]
        whole = digits[:2] in ("0x", "0X") or digits.isdigit()
        t = _NUMBER_TYPES[suffix] if suffix else u32 if whole else f32
        if t.is_float:
            value = -float(digits) if negative else float(digits)
            if abs(value) >= (2.0**128 - 2.0**103 if t == f32 else math.inf):
                raise self.error(f"the number is beyond {t.name}", "write a smaller number, or inf", token)
            return lit(value, t)
        if not whole or len(digits) > MAX_DIGITS:
            raise self.error(
                f"{show(token)} is not a value of {t.name}", "write a whole number, or one without this type", token
            )
        count = int(digits, 0) if digits[:2] in ("0x", "0X") else int(digits)
        try:
            return lit(-count if negative else count, t)
        except IRValueError as error:
            raise self.error(error.message, error.fix, token) from None

    def named(self) -> Expr | _Frame:
        """A local, or an element of a buffer."""
        token = self.token
        name = self.name("a name")
        if self.peek("["):
            return _Frame(self.next(), "]", lambda index: Load(name, index))
        if self.peek("("):
            close = difflib.get_close_matches(name, RESERVED, n=1)
            advice = f"write {close[0]}" if close else 'write call "operation.id"(...) for an operation of a library'
            raise self.error(f"{name!r} is not a function", advice, token)
        return Var(name)

    def word(self) -> Expr | _Frame:
        """What a word of the language starts in an expression."""
        token = self.next()
        word = token.text
        if word in WORDS:
            return WORDS[word]
        if word in AXIS_WORDS:
            if self.accept("["):
                axis = self.integer("an axis")
                self.expect("]", "after the axis")
            else:
                self.expect(".", f"after {word}")
                axis = self.choose({"x": 0, "y": 1, "z": 2}, "an axis")
            return AXIS_WORDS[word](axis)
        if word == "len":
            return BufLen(*self.arguments(word, "n"))
        if word == "opaque":
            return Opaque(*self.arguments(word, "tp"))
        if word == "call":
            op_id = self.string("the id of an operation")
            return self.function(lambda *args: Call(op_id, args), ())
        if word in ATOMIC_FUNCTIONS:
            return self.atomic(ATOMIC_FUNCTIONS[word])
        if word in BRACKET_WORDS:
            return self.bracketed(word)
        if word in PLAIN_FUNCTIONS:
            cls, arity = PLAIN_FUNCTIONS[word]
            return self.function(cls, (arity,))
        if word in UNARY_FUNCTIONS:
            return self.function(partial(UnOp, UNARY_FUNCTIONS[word]), (1,))
        if word in BINARY_FUNCTIONS:
            return self.function(partial(BinOp, BINARY_FUNCTIONS[word]), (2,))
        if word in REDUCE_FUNCTIONS:
            return self.function(partial(SubgroupReduce, REDUCE_FUNCTIONS[word]), (1,))
        if word in TYPE_WORDS:
            return self.function(partial(Cast, TYPE_WORDS[word]), (1,))
        self.at -= 1
        raise self.expected("an expression", f'write a value, or quote a name spelt like this: "{word}"')

    def bracketed(self, word: str) -> Expr | _Frame:
        """`cast<T>(x)`, `bitcast<T>(x)`, `bits<T>(0x1)`, `op<0x80000001>(x, y)`, `atomic_op<0x80000001>(b, i, x)`."""
        self.expect("<", f"after {word}")
        if word in ("op", "atomic_op"):
            op = OpaqueOp(self.integer("the id of an operator"))
            self.expect(">", "after the id")
            if word == "atomic_op":
                return self.atomic(op)
            return self.function(lambda *args: UnOp(op, *args) if len(args) == 1 else BinOp(op, *args), (1, 2))
        t = self.type()
        self.expect(">", "after the type")
        if word == "bits":
            (bits,) = self.integers(1, "the bits")
            return Lit(t, bits)
        return self.function(partial(Cast if word == "cast" else Bitcast, t), (1,))

    def function(self, build: Callable[..., Expr], arity: tuple[int, ...]) -> _Frame:
        return _Frame(self.expect("(", "before the arguments"), ")", build, arity)

    def atomic(self, op: AtomicOp | OpaqueOp) -> _Frame:
        frame = self.function(lambda *args, **keywords: Atomic(op, buffer, *args, **keywords), (2,))
        buffer = self.name("a buffer name")
        self.expect(",", "after the buffer")
        frame.atomic = True
        return frame

    def arguments(self, word: str, letters: str) -> list[Any]:
        """The arguments of a statement-like form, each read by its letter (see CALL_STATEMENTS)."""
        found: list[Any] = []
        for letter in letters:
            self.expect("," if found else "(", f"in the arguments of {word}")
            match letter:
                case "n":
                    found.append(self.name("a buffer name"))
                case "e":
                    found.append(self.expr())
                case "t":
                    found.append(self.string("a quoted text"))
                case "i":
                    found.append(self.integer("a number"))
                case "p":
                    found.append(self.payload())
                case "c":
                    found.append(self.choose({op.text: op for op in CollectiveOp}, "a collective operation"))
        self.expect(")", f"after the arguments of {word}")
        return found

    # -- statements

    def statements(self) -> list[Node]:
        """Everything up to the brace that closes what was opened before."""
        top: list[Node] = []
        stack = [_Body(top, lambda nodes: None)]
        while stack:
            if self.accept("}"):
                body = stack.pop()
                body.finish(tuple(body.nodes))
            elif self.token.kind == "end":
                raise self.error("a block has no end", "close it with }")
            else:
                self.statement(stack)
        return top

    def open(self, stack: list[_Body], build: Callable[[tuple[Node, ...]], Node]) -> None:
        """Open a brace; the statement made of its content goes to the body around it."""
        self.expect("{", "before the statements")
        stack.append(_Body([], lambda nodes: stack[-1].nodes.append(build(nodes))))

    def statement(self, stack: list[_Body]) -> None:
        token, nodes = self.token, stack[-1].nodes
        word = token.text if token.kind == "name" else ""
        if word not in RESERVED:
            nodes.append(self.assignment())
            return
        if word not in STATEMENT_WORDS:
            raise self.expected("a statement", "write let, if, for, an assignment, or another statement")
        self.next()
        if word in CALL_STATEMENTS:
            cls, letters = CALL_STATEMENTS[word]
            nodes.append(cls(*self.arguments(word, letters)))
            return
        match word:
            case "let":
                name = self.name("the name of a local")
                if self.accept(":"):
                    self.type()
                self.expect("=", "before the value")
                nodes.append(Let(name, self.expr()))
            case "if":
                self.open_if(stack, [])
            case "for":
                var = self.name("the name of the loop variable")
                self.expect("in", "after the loop variable")
                start = self.expr()
                self.expect("..", "between the bounds")
                stop = self.expr()
                self.open(stack, lambda body: Loop(var, start, stop, body))
            case "return":
                nodes.append(Return())
            case "block":
                self.open(stack, Block)
            case "barrier":
                ordering = Ordering.SEQ_CST
                if self.accept("("):
                    ordering = self.choose({o.text: o for o in Ordering}, "a memory ordering")
                    self.expect(")", "after the ordering")
                nodes.append(Barrier(ordering))
            case "region":
                generator = self.string("the name of a region")
                source = self.string("the region it comes from") if self.accept("from") else None
                self.open(stack, lambda body: Region(generator, body, source))

    def assignment(self) -> Node:
        """`name = value` or `buffer[index] = value`."""
        name = self.name("a statement")
        if self.accept("["):
            index = self.expr()
            self.expect("]", "after the index")
            self.expect("=", "before the value")
            return Store(name, index, self.expr())
        self.expect("=", "before the value")
        return Assign(name, self.expr())

    def open_if(self, stack: list[_Body], chain: list[tuple[Expr, tuple[Node, ...]]]) -> None:
        """A condition and its branch; `chain` holds those before it, to which this is the `else`."""
        condition = self.expr()
        self.expect("{", "before the statements")

        def finish_if(orelse: tuple[Node, ...]) -> None:
            for test, then in reversed(chain):
                orelse = (If(test, then, orelse),)
            stack[-1].nodes.extend(orelse)

        def finish_then(then: tuple[Node, ...]) -> None:
            chain.append((condition, then))
            if not self.accept("else"):
                finish_if(())
            elif self.accept("if"):
                self.open_if(stack, chain)
            else:
                self.expect("{", "after else")
                stack.append(_Body([], finish_if))

        stack.append(_Body([], finish_then))

    # -- buffers and the whole

    def program(self) -> Program:
        self.expect("program", "at the start")
        self.expect("workgroup", "after program")
        workgroup_size = self.integers(3, "a workgroup axis")
        op_id = self.string("the id of the program") if self.accept("entry") else None
        exclusive = self.accept("exclusive")
        self.expect("{", "before the buffers")
        buffers = []
        while self.peek("buffer"):
            buffers.append(self.buffer())
        entry = self.statements()
        if self.token.kind != "end":
            raise self.expected("the end of the text", "remove what follows the last brace")
        return Program.of_entry(buffers, workgroup_size, entry, op_id=op_id, exclusive=exclusive)

    def buffer(self) -> BufferDecl:
        self.next()
        name = self.name("a buffer name")
        self.expect("@", "before the binding slot")
        binding = self.integer("a binding slot")
        access = self.choose(_ACCESS, "an access")
        element = self.type()
        count = 0
        if self.accept("["):
            count = self.integer("an element count")
            self.expect("]", "after the count")
        more: dict[str, Any] = {}
        hints: dict[str, Any] = {}
        while self.token.kind == "name" and self.tokens[self.at + 1].text not in ("=", "["):  # a statement follows
            word = self.token.text
            if word in _FLAGS:
                more |= _FLAGS[word]
                self.next()
            elif word in _LOCALITIES:
                hints["locality"] = _LOCALITIES[word]
                self.next()
            elif self.accept("kind"):
                self.expect("(", "before the memory kind")
                more["kind"] = self.choose({k.name.lower(): k for k in MemoryKind}, "a memory kind")
                self.expect(")", "after the memory kind")
            elif self.accept("range"):
                more["output_byte_range"] = self.integers(2, "a byte offset")
            elif self.accept("axis"):
                (hints["coalesce_axis"],) = self.integers(1, "an axis")
            elif self.accept("align"):
                (hints["preferred_alignment"],) = self.integers(1, "an alignment")
            elif self.accept("where"):
                more["shape_predicate"] = self.predicate()
            else:
                break
        return BufferDecl(name, binding, access, element, count, hints=Hints(**hints), **more)

    def predicate(self) -> Predicate:
        stack: list[tuple[str, list[Any]]] = []
        while True:
            if self.token.text not in PREDICATES or self.token.kind != "name":
                raise self.expected("a predicate", f"write one of {', '.join(PREDICATES)}")
            stack.append((self.next().text, []))
            self.expect("(", "before the arguments")
            while True:
                kind, args = stack[-1]
                if len(args) == PREDICATES[kind]:
                    self.expect(")", "after the arguments")
                    stack.pop()
                    done = Predicate(kind, tuple(args))
                    if not stack:
                        return done
                    stack[-1][1].append(done)
                    continue
                if args:
                    self.expect(",", "between the arguments")
                if kind in ("and", "or", "not"):
                    break
                args.append(self.integer("a number"))
