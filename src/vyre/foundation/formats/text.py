"""The text form of programs, for people, diffs and tests (`parse.py` reads it back), and the hex envelope.

`parse_program(print_program(p)) == p`: the text carries everything that equality sees, names other than words in
quotes, numbers without a plain spelling as bits. It is not hashed and may change between major versions.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ...errors import TextError
from ..ir.dtypes import BY_NAME, DataType, bool_, f32, u32
from ..ir.nodes import (
    AllGather,
    AllReduce,
    Assign,
    AsyncLoad,
    AsyncStore,
    AsyncWait,
    Atomic,
    Barrier,
    BinOp,
    Bitcast,
    Block,
    Broadcast,
    BufferRef,
    BufLen,
    Call,
    Cast,
    Expr,
    Fma,
    If,
    IndirectDispatch,
    InvocationId,
    Let,
    Lit,
    Load,
    LocalId,
    Loop,
    Node,
    Opaque,
    OpaqueNode,
    ReduceScatter,
    Region,
    Return,
    Select,
    Store,
    SubgroupBallot,
    SubgroupLocalId,
    SubgroupReduce,
    SubgroupShuffle,
    SubgroupSize,
    Trap,
    UnOp,
    Var,
    WorkgroupId,
    f32_bits,
)
from ..ir.ops import AtomicOp, BinaryOp, OpaqueOp, Ordering, ReduceOp, UnaryOp
from ..ir.program import DEFAULT_KIND, Access, BufferDecl, Hints, LinearType, Locality, Predicate, Program
from ..ir.visit import Scopes

T = TypeVar("T")

# ---- vocabulary, shared with the parser -----------------------------------------------------------------------------

INFIX: dict[BinaryOp, int] = {
    op: level
    for level, ops in {
        1: (BinaryOp.OR,),
        2: (BinaryOp.AND,),
        4: tuple(op for op in BinaryOp if op.rule == "compare"),
        5: (BinaryOp.BIT_OR,),
        6: (BinaryOp.BIT_XOR,),
        7: (BinaryOp.BIT_AND,),
        8: (BinaryOp.SHL, BinaryOp.SHR),
        9: (BinaryOp.ADD, BinaryOp.SUB),
        10: (BinaryOp.MUL, BinaryOp.DIV, BinaryOp.MOD),
    }.items()
    for op in ops
}
"""Operator -> how tightly it binds, as in Python; comparisons do not chain, the others group to the left."""
COMPARE_LEVEL = 4
PREFIX: dict[UnaryOp, int] = {UnaryOp.LOGICAL_NOT: 3, UnaryOp.NEGATE: 11, UnaryOp.BIT_NOT: 11}
ATOM = 12

UNARY_FUNCTIONS = {op.text: op for op in UnaryOp if op not in PREFIX}
BINARY_FUNCTIONS = {op.text: op for op in BinaryOp if op not in INFIX}
ATOMIC_FUNCTIONS = {op.text: op for op in AtomicOp}
REDUCE_FUNCTIONS = {f"subgroup_{op.text}": op for op in ReduceOp}
PLAIN_FUNCTIONS: dict[str, tuple[type[Expr], int]] = {
    "select": (Select, 3), "fma": (Fma, 3), "subgroup_shuffle": (SubgroupShuffle, 2),
    "subgroup_ballot": (SubgroupBallot, 1),
}  # fmt: skip
"""Functions whose arguments are all expressions."""
AXIS_WORDS: dict[str, type[InvocationId] | type[WorkgroupId] | type[LocalId]] = {
    "gid": InvocationId, "wg": WorkgroupId, "lid": LocalId,
}  # fmt: skip
WORDS: dict[str, Expr] = {
    "true": Lit(bool_, 1),
    "false": Lit(bool_, 0),
    "inf": Lit(f32, 0x7F800000),
    "nan": Lit(f32, 0x7FC00000),
    "inff64": Lit(BY_NAME["f64"], 0x7FF0000000000000),
    "nanf64": Lit(BY_NAME["f64"], 0x7FF8000000000000),
    "subgroup_local_id": SubgroupLocalId(),
    "subgroup_size": SubgroupSize(),
}
"""Words that are whole expressions."""
TYPE_WORDS = {name: t for name, t in BY_NAME.items() if name.isidentifier()}
BRACKET_WORDS = ("cast", "bitcast", "bits", "op", "atomic_op")
CALL_STATEMENTS: dict[str, tuple[type[Node], str]] = {
    "indirect": (IndirectDispatch, "ni"), "async_load": (AsyncLoad, "nneet"), "async_store": (AsyncStore, "nneet"),
    "async_wait": (AsyncWait, "t"), "trap": (Trap, "et"), "all_reduce": (AllReduce, "nci"),
    "all_gather": (AllGather, "nni"), "reduce_scatter": (ReduceScatter, "nnci"), "broadcast": (Broadcast, "nii"),
    "opaque": (OpaqueNode, "tp"),
}  # fmt: skip
"""Statements written like calls, with how each field reads: name, expression, text, integer, payload, collective."""
_CALL_WORDS = {cls: word for word, (cls, _) in CALL_STATEMENTS.items()}
STATEMENT_WORDS = ("let", "if", "for", "return", "block", "barrier", "region", *CALL_STATEMENTS)
RESERVED = frozenset(
    (
        *UNARY_FUNCTIONS, *BINARY_FUNCTIONS, *ATOMIC_FUNCTIONS, *REDUCE_FUNCTIONS, *PLAIN_FUNCTIONS, *AXIS_WORDS,
        *WORDS, *TYPE_WORDS, *BRACKET_WORDS, *STATEMENT_WORDS, "len", "call", "and", "or", "not", "else", "program",
        "buffer",
    )
)  # fmt: skip
"""A name spelt like one of these is quoted."""

ACCESS_WORDS = {
    Access.READ_ONLY: "read", Access.READ_WRITE: "rw", Access.UNIFORM: "uniform", Access.WORKGROUP: "workgroup",
    Access.WRITE_ONLY: "write",
}  # fmt: skip
PREDICATES = {
    "at_least": 1, "at_most": 1, "exactly": 1, "multiple_of": 1, "mod_equals": 2, "affine": 4, "and": 2, "or": 2,
    "not": 1,
}  # fmt: skip
"""Kind of a shape predicate -> number of arguments; those of and, or, not are predicates."""

NAME = re.compile(r"[^\W\d]\w*")
ESCAPES = {'"': '"', "\\": "\\", "n": "\n", "r": "\r", "t": "\t"}
_ESCAPED = {char: "\\" + letter for letter, char in ESCAPES.items()}
MAX_INDENT = 40
"""Levels that are still indented, so that the text of deep nesting stays linear in its size."""


# ---- words ----------------------------------------------------------------------------------------------------------


def quote(text: str) -> str:
    """A string on one line, printable whatever is in it."""
    body = "".join(_ESCAPED.get(c) or (c if c.isprintable() else f"\\u{{{ord(c):x}}}") for c in text)
    return f'"{body}"'


def name_text(name: str) -> str:
    """A bare word where possible."""
    return name if NAME.fullmatch(name) and name not in RESERVED else quote(name)


def payload_text(payload: bytes) -> str:
    return f'x"{bytes(payload).hex()}"'


def literal_text(e: Lit) -> str:
    """A number as one writes it, with the type behind it unless that is u32 or f32; else its bits."""
    t, bits = e.dtype, e.bits
    if t.name in ("u32", "i32", "u64", "i64") and 0 <= bits < 1 << (t.bits or 0):
        return f"{e.value}{'' if t == u32 else t.name}"
    if t.name == "bool" and bits in (0, 1):
        return "true" if bits else "false"
    if t.name in ("f32", "f64") and 0 <= bits < 1 << (t.bits or 0):
        number, suffix = float(e.value), "" if t == f32 else "f64"
        if number != number:
            word = "nan" + suffix
            if WORDS[word] == e:
                return word
        elif number in (float("inf"), float("-inf")):
            return f"{'-' if number < 0 else ''}inf{suffix}"
        elif t == f32 and f32_bits(number) == bits != 0x80000000:
            return _shortest_f32(number)
        elif t != f32:
            return repr(number) + suffix
    return f"bits<{t.name}>({bits:#x})"


def _shortest_f32(number: float) -> str:
    """The fewest digits that read back as the same f32."""
    wanted = struct.pack("<f", number)
    for digits in range(1, 9):
        shown = float(f"{number:.{digits}g}")
        if abs(shown) < 3.5e38 and f32_bits(shown) == int.from_bytes(wanted, "little"):
            return repr(shown)
    return repr(float(f"{number:.9g}"))


# ---- expressions ----------------------------------------------------------------------------------------------------

_Part = str | tuple[Any, int]


def print_expr(root: Expr) -> str:
    """One expression, with the parentheses it needs."""
    out: list[str] = []
    stack: list[_Part] = [(root, 0)]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            out.append(item)
            continue
        parts, level = _shown(_expr_parts, item[0]) or ([f"<{item[0]!r}>"], ATOM)
        if level < item[1]:
            parts = ["(", *parts, ")"]
        stack.extend(reversed(parts))
    return "".join(out)


def _shown(show: Callable[[Any], T], value: Any) -> T | None:
    """None for a value without text: one of the wrong kind somewhere in a program that is not well-formed. It is
    printed as `<repr>`, which the parser refuses, because a program must be printable to be complained about."""
    try:
        return show(value)
    except (AttributeError, TypeError, ValueError, KeyError):
        return None


def _call(function: str, *args: str | Expr) -> list[_Part]:
    parts: list[_Part] = [function, "("]
    for k, arg in enumerate(args):
        parts.append(", " if k else "")
        parts.append(arg if isinstance(arg, str) else (arg, 0))
    return [*parts, ")"]


def _expr_parts(e: Any) -> tuple[list[_Part], int]:
    """Text and subexpressions in order, and how tightly the whole binds."""
    match e:
        case Lit():
            return [literal_text(e)], ATOM
        case Var(name=name):
            return [name_text(name)], ATOM
        case Load(buffer=buffer, index=index):
            return [name_text(buffer), "[", (index, 0), "]"], ATOM
        case BinOp(op=BinaryOp() as op, left=left, right=right) if op in INFIX:
            level = INFIX[op]
            return [(left, level + (level == COMPARE_LEVEL)), f" {op.text} ", (right, level + 1)], level
        case UnOp(op=UnaryOp() as op, operand=x) if op in PREFIX:
            bare_number = op is UnaryOp.NEGATE and isinstance(x, Lit)  # "-1i32" is a literal
            operand: list[_Part] = ["(", (x, 0), ")"] if bare_number else [(x, PREFIX[op])]
            return [op.text, " " if op is UnaryOp.LOGICAL_NOT else "", *operand], PREFIX[op]
        case BinOp(op=op, left=left, right=right):
            return _call(op_text(op), left, right), ATOM
        case UnOp(op=op, operand=x):
            return _call(op_text(op), x), ATOM
        case BufLen(buffer=buffer):
            return _call("len", name_text(buffer)), ATOM
        case InvocationId(axis=axis) | WorkgroupId(axis=axis) | LocalId(axis=axis):
            word = next(w for w, cls in AXIS_WORDS.items() if cls is type(e))
            return [word, f".{'xyz'[axis]}" if axis in (0, 1, 2) else f"[{axis}]"], ATOM
        case Call(op_id=op_id, args=args):
            return _call(f"call {quote(op_id)}", *args), ATOM
        case Select() | Fma() | SubgroupShuffle() | SubgroupBallot():
            word = next(w for w, (cls, _) in PLAIN_FUNCTIONS.items() if cls is type(e))
            return _call(word, *(getattr(e, name) for name in e.expr_fields)), ATOM
        case Cast(target=t, value=x):
            return _call(t.name if t.name in TYPE_WORDS else f"cast<{t.name}>", x), ATOM
        case Bitcast(target=t, value=x):
            return _call(f"bitcast<{t.name}>", x), ATOM
        case Atomic(op=op, buffer=buffer, index=index, value=value, expected=expected, ordering=ordering):
            parts = _call(
                f"atomic_{op_text(op)}" if isinstance(op, OpaqueOp) else op_text(op), name_text(buffer), index
            )
            parts[-1:] = [", ", (value, 0)]
            if expected is not None:
                parts += [", expected=", (expected, 0)]
            if ordering is not Ordering.SEQ_CST:
                parts.append(f", ordering={ordering.text}")
            return [*parts, ")"], ATOM
        case SubgroupReduce(op=op, value=x):
            return _call(f"subgroup_{op.text}", x), ATOM
        case SubgroupLocalId():
            return ["subgroup_local_id"], ATOM
        case SubgroupSize():
            return ["subgroup_size"], ATOM
        case BufferRef(buffer=buffer):
            return [f"&{name_text(buffer)}"], ATOM
        case Opaque(kind=kind, payload=payload):
            return _call("opaque", quote(kind), payload_text(payload)), ATOM
    raise TypeError(e)


def op_text(op: Any) -> str:
    """The function of an operator without a symbol."""
    return f"op<{op.id:#010x}>" if isinstance(op, OpaqueOp) else str(op.text)


# ---- statements -----------------------------------------------------------------------------------------------------


class _Types(Scopes[DataType | None]):
    """What is known of the type of locals while statements are printed in order."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program

    def of(self, e: Any) -> DataType | None:
        while True:
            match e:
                case Var(name=name):
                    return self.get(name, None)
                case Load(buffer=name) | Atomic(buffer=name):
                    decl = self.program.buffer(name)
                    return decl.element if decl else None
                case UnOp(op=UnaryOp() as op) if op.rule == "unpack":
                    return u32
                case BinOp(op=BinaryOp() as op, left=left):
                    if op.rule in ("compare", "logic"):
                        return bool_
                    e = left
                case Expr():
                    t, operand = e._type_from()  # names and elements are known better here
                    if operand is None:
                        return t
                    e = operand
                case _:
                    return None


def print_program(program: Program) -> str:
    """The canonical text of any program, also of one that is not valid."""
    x, y, z = program.workgroup_size
    head = f"program workgroup({x}, {y}, {z})"
    head += "" if program.entry_op_id is None else f" entry {_shown(quote, program.entry_op_id)}"
    lines = [head + (" exclusive {" if program.exclusive else " {")]
    lines += ["  " + (_shown(_buffer_text, b) or f"<{b!r}>") for b in program.buffers]
    types = _Types(program)
    stack: list[tuple[Any, int]] = [("}", 0), *((n, 1) for n in reversed(program.entry))]
    while stack:  # statements, finished lines, and scopes to leave
        item, depth = stack.pop()
        if isinstance(item, int):
            types.leave(item)
            continue
        pad = "  " * min(depth, MAX_INDENT)
        if isinstance(item, str):
            lines.append(pad + item)
            continue
        head, sections = _shown(partial(_node_parts, types), item) or (f"<{item!r}>", [])
        if not sections:
            lines.append(pad + head)
            continue
        scope = types.enter()
        parts: list[tuple[Any, int]] = []
        for k, (opening, body) in enumerate(sections):
            parts += [("} " + opening if k else opening, depth), *((n, depth + 1) for n in body), (scope, 0)]
        if isinstance(item, Loop):
            types.bind(item.var, u32)
        stack.extend(reversed([*parts, ("}", depth)]))
    return "\n".join(lines) + "\n"


def _node_parts(types: _Types, node: Any) -> tuple[str, list[tuple[str, tuple[Node, ...]]]]:
    """A one-line statement, or the heads and bodies of a nested one."""
    match node:
        case Let(name=name, value=value):
            t = types.of(value)
            types.bind(name, t)
            return f"let {name_text(name)}{f': {t.name}' if t else ''} = {print_expr(value)}", []
        case Assign(name=name, value=value):
            return f"{name_text(name)} = {print_expr(value)}", []
        case Store(buffer=buffer, index=index, value=value):
            return f"{name_text(buffer)}[{print_expr(index)}] = {print_expr(value)}", []
        case If():
            return "", _branches(node)
        case Loop(var=var, start=start, stop=stop, body=body):
            return "", [(f"for {name_text(var)} in {print_expr(start)}..{print_expr(stop)} {{", body)]
        case Return():
            return "return", []
        case Block(body=body):
            return "", [("block {", body)]
        case Barrier(ordering=ordering):
            return "barrier" if ordering is Ordering.SEQ_CST else f"barrier({ordering.text})", []
        case Region(generator=generator, body=body, source_region=source):
            origin = "" if source is None else f" from {quote(source)}"
            return "", [(f"region {quote(generator)}{origin} {{", body)]
        case Node() if (word := _CALL_WORDS.get(type(node))) is not None:
            letters = CALL_STATEMENTS[word][1]
            names = [n for n in node.fields if n != "span"]
            shown = (_argument_text(k, getattr(node, n)) for k, n in zip(letters, names, strict=True))
            return f"{word}({', '.join(shown)})", []
    raise TypeError(node)


def _argument_text(letter: str, value: Any) -> str:
    match letter:
        case "n":
            return name_text(value)
        case "e":
            return print_expr(value)
        case "t":
            return quote(value)
        case "p":
            return payload_text(value)
        case "c":
            return str(value.text)
    return str(value)


def _branches(node: If) -> list[tuple[str, tuple[Node, ...]]]:
    """An if with its chain of `else if`: an else that is nothing but another if."""
    sections = [(f"if {print_expr(node.condition)} {{", node.then)]
    while len(node.orelse) == 1 and isinstance(node.orelse[0], If):
        node = node.orelse[0]
        sections.append((f"else if {print_expr(node.condition)} {{", node.then))
    return [*sections, ("else {", node.orelse)] if node.orelse else sections


# ---- buffers --------------------------------------------------------------------------------------------------------


def _buffer_text(b: BufferDecl) -> str:
    words = [f"buffer {name_text(b.name)} @{b.binding} {ACCESS_WORDS[b.access]}"]
    words.append(f"{b.element.name}[{b.count}]" if b.count else b.element.name)
    if b.kind is not None and b.kind is not DEFAULT_KIND[b.access]:
        words.append(f"kind({b.kind.name.lower()})")
    words += ["output"] * b.is_output + ["live"] * b.live_out
    if b.output_byte_range is not None:
        words.append(f"range({', '.join(map(str, b.output_byte_range))})")
    if b.hints != Hints():
        words += [] if b.hints.coalesce_axis is None else [f"axis({b.hints.coalesce_axis})"]
        words += [f"align({b.hints.preferred_alignment})"] if b.hints.preferred_alignment else []
        words += [] if b.hints.locality is Locality.TEMPORAL else [b.hints.locality.name.lower()]
    words += ["bytes_extraction"] * b.bytes_extraction
    words += [] if b.linear_type is LinearType.UNRESTRICTED else [b.linear_type.name.lower()]
    words += [] if b.shape_predicate is None else [f"where {_predicate_text(b.shape_predicate)}"]
    return " ".join(words)


def _predicate_text(root: Predicate) -> str:
    out: list[str] = []
    stack: list[Any] = [root]
    while stack:
        item = stack.pop()
        if isinstance(item, Predicate):
            parts: list[Any] = [item.kind, "("]
            for k, arg in enumerate(item.args):
                parts += [", " if k else "", arg]
            stack.extend(reversed([*parts, ")"]))
        else:
            out.append(str(item))
    return "".join(out)


# ---- hex envelope ---------------------------------------------------------------------------------------------------

_HEADER = "vyre_ir v0.1"
_HEX_LINE_BYTES = 32


def to_envelope(program: Program, rev: int = 6) -> str:
    """The wire form as lines of text: a header, the number of bytes, then hex."""
    blob = program.to_wire(rev)
    rows = (blob[at : at + _HEX_LINE_BYTES].hex() for at in range(0, len(blob), _HEX_LINE_BYTES))
    return "\n".join((_HEADER, f"wire_bytes {len(blob)}", *rows)) + "\n"


def from_envelope(text: str) -> Program:
    """Read an envelope; upper case, carriage returns and blank lines are fine.

    Raises TextError, with `kind` in its context, for the envelope, and WireError for the bytes inside it.
    """
    from .wire.layout import MAX_PROGRAM_BYTES

    def refuse(kind: str, message: str, fix: str, at: int, **more: int) -> TextError:
        return TextError(message, fix=fix, kind=kind, line=at, column=1, **more)

    lines = [(k, stripped) for k, line in enumerate(text.split("\n"), 1) if (stripped := line.strip(" \t\r"))]
    if not lines or lines[0][1] != _HEADER:
        at = lines[0][0] if lines else 1
        raise refuse("header", "the envelope has no header", f"start it with the line {_HEADER}", at)
    at, size = lines[1] if len(lines) > 1 else (lines[0][0] + 1, "")
    found = re.fullmatch(r"wire_bytes ([0-9]{1,20})", size)
    if found is None:
        raise refuse("length_line", "the envelope has no length", "let the second line be wire_bytes and a number", at)
    wanted = int(found[1])
    if wanted > MAX_PROGRAM_BYTES:
        fix = "split the program"
        raise refuse("too_large", "the program is too large", fix, at, asked=wanted, limit=MAX_PROGRAM_BYTES)
    for at, line in lines[2:]:
        if bad := re.search(r"[^0-9a-fA-F]", line):
            raise refuse("character", f"{bad[0]!r} is not a hex digit", "use 0-9 and a-f only", at)
    digits = "".join(line for _, line in lines[2:])
    if len(digits) % 2:
        raise refuse("odd_length", "the hex ends within a byte", "write two digits per byte", lines[-1][0])
    if len(digits) != 2 * wanted:
        fix = "copy the whole envelope, and leave its length line as it was"
        raise refuse("length", "the length is wrong", fix, lines[1][0], declared=wanted, found=len(digits) // 2)
    return Program.from_wire(bytes.fromhex(digits))
