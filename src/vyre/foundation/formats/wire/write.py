"""From a program to bytes. Whatever the reader would refuse is refused here, so that every blob can be read back."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, NoReturn, TypeGuard

from ....errors import ArgumentTypeError, WireError, WireVersionError
from ...ir.dtypes import (
    ARRAY_TAG,
    OPAQUE_TAG,
    QUANTIZED_STORAGE,
    QUANTIZED_TAG,
    SCALES,
    SIMPLE,
    VEC_TAG,
    DataType,
    array_type,
    bool_,
    f32,
    opaque_type,
    quantized_type,
    vec_type,
)
from ...ir.nodes import Bitcast, BufferRef, Expr, Lit, Node, Opaque, OpaqueNode
from ...ir.ops import NODE_IDS, AtomicOp, BinaryOp, CollectiveOp, OpaqueOp, Ordering, ReduceOp, UnaryOp
from ...ir.program import Access, BufferDecl, Hints, LinearType, Locality, MemoryKind, Predicate, Program
from ..blake3 import blake3
from . import layout
from .layout import EXPRS, LITERALS, NODES, PREDICATES, WIDE_LITERALS, Row

_EXPR_TAGS = {cls: (tag, row) for tag, (cls, row) in EXPRS.items()}
_NODE_TAGS = {cls: (tag, row) for tag, (cls, row) in NODES.items()}
_PREDICATE_TAGS = {kind: (tag, row) for tag, (kind, row) in PREDICATES.items()}
_LITERAL_TAGS = {dtype: tag for tag, dtype in LITERALS.items()}
_WIDE_KINDS = {dtype: kind for kind, dtype in WIDE_LITERALS.items()}


def encode(program: Program, rev: int = 6, dialect: str | None = None) -> bytes:
    """The binary form at a revision. `dialect="4b"` writes revision 4 with the operators of subgroup reductions."""
    if not isinstance(program, Program):
        raise ArgumentTypeError(f"a {type(program).__name__} has no wire form", fix="pass a Program")
    if type(rev) is not int or rev not in layout.REVISIONS:
        raise WireVersionError(
            "this revision of the wire format cannot be written",
            fix="write revision 4, 5 or 6",
            kind="version",
            expected=layout.REVISIONS,
            found=rev,
        )
    if len(program.entry) > layout.MAX_NODES:
        _refuse("the entry has too many statements", "split the program", limit=layout.MAX_NODES)
    records = [_record(layout.METADATA_ID, Writer(rev, dialect).metadata(program))]
    size = layout.HEADER_BYTES + len(records[0])
    for node in program.entry:
        records.append(_record(_op_id(node), Writer(rev, dialect).statement(node)))
        size += len(records[-1])
        _check_program_size(size)
    tail = Writer(rev, dialect)
    tail.tables(program)
    body = b"".join((_leb(len(records)), *records, tail.out))
    _check_program_size(layout.HEADER_BYTES + len(body))
    return layout.MAGIC + struct.pack("<HH", rev, layout.FLAGS) + blake3(body) + body


def _refuse(message: str, fix: str, **context: object) -> NoReturn:
    raise WireError(message, fix=fix, kind="encode", **context)


def _check_program_size(size: int) -> None:
    if size > layout.MAX_PROGRAM_BYTES:
        _refuse("the program is too large for the wire format", "split it", limit=layout.MAX_PROGRAM_BYTES)


def _fits(value: object, bits: int) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 1 << bits  # a bool or a NumPy number would not read back equal


def _leb(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _utf8(value: object) -> bytes:
    if type(value) is not str:
        _refuse(f"{value!r} is not a str", "use a plain str for names, kinds and tags")
    try:
        raw = value.encode()
    except UnicodeEncodeError:
        _refuse("a string holds a lone surrogate, which has no UTF-8 form", "use text that UTF-8 can hold", text=value)
    if len(raw) > layout.MAX_STRING_BYTES:
        _refuse("a string is too long", "shorten it", nbytes=len(raw), limit=layout.MAX_STRING_BYTES)
    return raw


def _op_id(node: object) -> str:
    if isinstance(node, OpaqueNode):
        return node.kind
    return NODE_IDS.get(type(node).__name__, "")  # the statement itself is checked when it is written


def _record(op_id: str, payload: bytes) -> bytes:
    name = _utf8(op_id)
    return b"".join((_leb(len(name)), name, _leb(len(payload)), payload, b"\0"))


def _rebuilt(t: DataType) -> DataType | None:
    """The type that the reader makes of this one's tag and parameters."""
    match t.tag, t.args:
        case tag, ():
            return SIMPLE.get(tag)
        case 0x08, (size,) if _fits(size, 32):
            return array_type(size)
        case 0x14, (DataType() as element, lanes) if _fits(lanes, 8) and lanes:
            return vec_type(element, lanes)
        case 0x1F, (storage, scale, zero) if storage in QUANTIZED_STORAGE and _is_scale(scale):
            return quantized_type(storage, scale, zero) if zero is None or _is_scale(zero) else None
        case 0x80, (extension,) if _fits(extension, 32) and extension >> 31:
            return opaque_type(extension)
    return None


def _is_scale(value: object) -> bool:
    match value:
        case ("per_tensor", param):
            return type(param) is int and param == 0
        case ("per_channel", param):
            return _fits(param, 32)
        case ("per_group", param):
            return _fits(param, 32) and param > 0
    return False


def _scale_tags(t: DataType) -> tuple[int, int, int, int]:
    """Scale tag and parameter, zero-point tag and parameter; the zero point counts from 1, 0 is none."""
    _, scale, zero = t.args
    return SCALES.index(scale[0]), scale[1], *((0, 0) if zero is None else (1 + SCALES.index(zero[0]), zero[1]))


class Writer:
    """Appends encoded parts to `out`.

    Statements, expressions and types are given their level and return how many levels they take, so that a part met
    again is copied instead of walked again: a shared operand costs its bytes, not its tree.
    """

    def __init__(self, rev: int, dialect: str | None = None) -> None:
        self.out = bytearray()
        self.rev = rev
        self._reduce_ops = layout.has_reduce_op(rev, dialect)
        self._base = 0
        self._seen: dict[int, tuple[int, int, int]] = {}  # id -> start, end, levels
        kinds = {kind for table in (EXPRS, NODES, PREDICATES) for _, row in table.values() for _, kind in row}
        self._put: dict[str, Callable[[Any, int], int]] = {kind: getattr(self, kind) for kind in kinds}

    # -- whole parts

    def statement(self, node: Node) -> bytes:
        """The payload of one statement of the entry."""
        self.node(node, 1)
        return bytes(self.out)

    def expr_bytes(self, expr: Expr) -> bytes:
        """The bytes of one expression. The caller keeps every expression alive as long as this writer."""
        known = self._seen.get(id(expr))
        if known is None:
            if len(self.out) > layout.MAX_PROGRAM_BYTES:  # what earlier calls left is only a shortcut
                self.out.clear()
                self._seen.clear()
            self._base = len(self.out)
            self.expr(expr, 1)
            return bytes(self.out[self._base :])
        return bytes(self.out[known[0] : known[1]])

    def metadata(self, program: Program) -> bytes:
        """The payload of the first record: the program's own facts and the first half of the buffer table."""
        self.out += layout.METADATA_MAGIC
        self.maybe_text(program.entry_op_id)
        for axis in program.workgroup_size:
            if not axis:
                _refuse("a workgroup axis is 0", "make every axis at least 1", workgroup=program.workgroup_size)
            self.u32(axis)
        self.flag(program.exclusive)
        if len(program.buffers) > layout.MAX_BUFFERS:
            _refuse("the program has too many buffers", "bind fewer", limit=layout.MAX_BUFFERS)
        self.out += _leb(len(program.buffers))
        for decl in program.buffers:
            if type(decl) is not BufferDecl:
                _refuse(f"a {type(decl).__name__} is not a buffer declaration", "declare buffers with BufferDecl")
            try:
                self._buffer(decl)
            except WireError as error:
                error.context.setdefault("buffer", decl.name)
                raise
            self._check_size()
        return bytes(self.out)

    def _buffer(self, decl: BufferDecl) -> None:
        self.text(decl.name)
        self.u32(decl.binding)
        self.u32(decl.count)
        self.flag(decl.is_output)
        self.flag(decl.live_out)
        self._member(decl.access, Access)
        self._element(decl.element)
        if decl.count == 0 and (decl.is_workgroup or decl.is_output or decl.live_out):
            _refuse("workgroup memory or an output has count 0", "give the buffer a static count")
        self._range(decl)
        self.hints(decl.hints)
        if self.rev >= 6:
            self._enum(decl.linear_type, LinearType)
            self.flag(decl.bytes_extraction)
            if decl.shape_predicate is None:
                self.out.append(0)
            else:
                self.predicate(decl.shape_predicate, 0)
        elif decl.bytes_extraction or decl.shape_predicate or decl.linear_type is not LinearType.UNRESTRICTED:
            _refuse(
                "bytes_extraction, linear_type and shape_predicate do not exist before revision 6",
                "write revision 6, or leave the three at their defaults",
                rev=self.rev,
            )

    def _range(self, decl: BufferDecl) -> None:
        match decl.output_byte_range:
            case None:
                self.out.append(0)
            case (start, end) if _fits(start, 64) and _fits(end, 64):
                if start > end or (decl.nbytes is not None and end > decl.nbytes):
                    _refuse(
                        "the output byte range does not lie inside the buffer",
                        "make it start <= end <= the buffer's size in bytes",
                        range=(start, end),
                        nbytes=decl.nbytes,
                    )
                self.out += b"\1" + _leb(start) + _leb(end)
            case other:
                _refuse(f"{other!r} is not a byte range", "use None or two non-negative integers")

    def tables(self, program: Program) -> None:
        """What follows the records: the second half of the buffer table, and the outputs."""
        self.out += _leb(len(program.buffers))
        for index, decl in enumerate(program.buffers):
            self.out += _leb(index)
            self._enum(decl.kind, MemoryKind)
            self._enum(decl.access, Access)
            shape = b"".join(map(_leb, (decl.count, *_shape_parameters(decl.element))))
            self.out += bytes((decl.element.tag, 0)) + _leb(len(shape)) + shape
            size_at = len(self.out)
            self.out.append(0)
            self.hints(decl.hints)
            self.out[size_at] = len(self.out) - size_at - 1
        outputs = program.output_indices
        self.out += b"".join(map(_leb, (len(outputs), *outputs)))

    def buffer_key(self, decl: BufferDecl, kind_tag: int) -> bytes:
        """The order of buffers in canonical form. The tag of the memory kind is the caller's: it is not the wire's."""
        self.text(decl.name)
        self.u32(decl.binding)
        self._enum(decl.access, Access)
        self.out.append(kind_tag)
        self.dtype(decl.element, 1)
        self.u32(decl.count)
        self.flag(decl.is_output)
        self.flag(decl.live_out)
        self.out.append(decl.output_byte_range is not None)
        for edge in decl.output_byte_range or ():
            self.u64(edge)
        self.hints(decl.hints)
        self.flag(decl.bytes_extraction)
        self._enum(decl.linear_type, LinearType)
        if decl.shape_predicate is not None:
            self.predicate(decl.shape_predicate, 0)
        return bytes(self.out)

    # -- statements and expressions

    def node(self, node: Node, level: int) -> int:
        known = _NODE_TAGS.get(type(node))
        if known is None:
            _refuse(
                f"a {type(node).__name__} is not a statement",
                "build the program from the statements and expressions of the IR",
            )
        return self._nested(node, level, known)

    def expr(self, expr: Expr, level: int) -> int:
        known = _EXPR_TAGS.get(type(expr))
        if known is not None:
            if self.rev < 5 and type(expr) is BufferRef:
                _refuse("buffer references do not exist before revision 5", "write revision 5 or 6", rev=self.rev)
        elif type(expr) not in (Lit, Bitcast, Opaque):
            _refuse(
                f"a {type(expr).__name__} is not an expression",
                "build the program from the statements and expressions of the IR",
            )
        return self._nested(expr, level, known)

    def _nested(self, item: Any, level: int, row: tuple[int, Row] | None) -> int:
        known = self._seen.get(id(item))
        start = len(self.out)
        if known is not None:
            first, last, levels = known
            self._check_level(level + levels - 1)
            self.out += self.out[first:last]
        else:
            self._check_level(level)
            levels = 1 + (self._row(item, level + 1, *row) if row else self._special(item, level + 1))
            if levels > 1:
                self._seen[id(item)] = start, len(self.out), levels
        self._check_size()
        return levels

    def _row(self, item: Expr | Node, level: int, tag: int, row: Row) -> int:
        self.out.append(tag)
        levels = 0
        for name, kind in row:
            try:
                levels = max(levels, self._put[kind](getattr(item, name), level))
            except WireError as error:
                error.context.setdefault("field", f"{type(item).__name__}.{name}")
                raise
        return levels

    def _special(self, expr: Lit | Bitcast | Opaque, level: int) -> int:
        match expr:
            case Lit(dtype=t, bits=bits):
                self._literal(t, bits)
            case Bitcast(target=target, value=value):
                if type(target) is not DataType or SIMPLE.get(target.tag) != target:
                    _refuse(f"no bitcast to {target!r}", "bitcast to u32, i32 or f32")
                self.out.append(layout.OPAQUE)
                self.text(layout.BITCAST_KIND)
                start = len(self.out) + 4
                self.out += bytes((0, 0, 0, 0, target.tag))
                levels = self.expr(value, level)
                struct.pack_into("<I", self.out, start - 4, len(self.out) - start)
                return levels
            case Opaque(kind=kind, payload=payload):
                if kind in layout.KNOWN_KINDS:
                    _refuse("this opaque kind has a class of its own", "build a Lit or a Bitcast", opaque_kind=kind)
                self.out.append(layout.OPAQUE)
                self.text(kind)
                self.payload(payload)
        return 0

    def _literal(self, t: DataType, bits: int) -> None:
        tag, wide = _LITERAL_TAGS.get(t), _WIDE_KINDS.get(t)
        if not _fits(bits, 64 if wide else 1 if tag == _LITERAL_TAGS[bool_] else 32):
            _refuse(f"no {t} literal has the bits {bits!r}", "build literals with lit(value, dtype)")
        if wide is not None:
            self.out.append(layout.OPAQUE)
            self.text(wide)
            self.out += struct.pack("<IQ", 8, bits)
        elif tag is None:
            _refuse(f"{t} has no literals", "build literals with lit(value, dtype), which casts where it must")
        elif t == bool_:
            self.out += bytes((tag, bits))
        elif t == f32 and not layout.is_canonical_f32(bits):
            _refuse(
                f"0x{bits:08x} is not a canonical f32 literal",
                "build literals with lit(value, f32), which flushes subnormals and spells negative zero -(0.0)",
            )
        else:
            self.out += struct.pack("<BI", tag, bits)

    def _check_level(self, level: int) -> None:
        if level > layout.MAX_DEPTH:
            _refuse(
                "the program is nested too deeply for the wire format",
                "bind parts of long expressions with let, and flatten nested statements",
                limit=layout.MAX_DEPTH,
            )

    def _check_size(self) -> None:
        if len(self.out) - self._base > layout.MAX_RECORD_BYTES:
            _refuse(
                "a record is too large for the wire format",
                "split the statement, or bind fewer buffers",
                limit=layout.MAX_RECORD_BYTES,
            )

    # -- fields: one method for each encoding of the layout

    def maybe_expr(self, expr: Expr | None, level: int) -> int:
        self.out.append(expr is not None)
        return 0 if expr is None else self.expr(expr, level)

    def exprs(self, items: tuple[Expr, ...], level: int) -> int:
        return self._list(items, level, self.expr, layout.MAX_ARGS)

    def nodes(self, items: tuple[Node, ...], level: int) -> int:
        return self._list(items, level, self.node, layout.MAX_NODES)

    def _list(self, items: tuple[Any, ...], level: int, put: Callable[[Any, int], int], limit: int) -> int:
        if len(items) > limit:
            _refuse("a list is too long", "split it", asked=len(items), limit=limit)
        self.out += struct.pack("<I", len(items))
        return max((put(item, level) for item in items), default=0)

    def text(self, value: str, level: int = 0) -> int:
        raw = _utf8(value)
        self.out += struct.pack("<I", len(raw)) + raw
        return 0

    def maybe_text(self, value: str | None, level: int = 0) -> int:
        self.out.append(value is not None)
        return 0 if value is None else self.text(value)

    def payload(self, value: bytes, level: int = 0) -> int:
        if type(value) is not bytes:
            _refuse(f"a {type(value).__name__} is not a payload", "pass bytes")
        if len(value) > layout.MAX_OPAQUE_BYTES:
            _refuse("an opaque payload is too long", "split it", asked=len(value), limit=layout.MAX_OPAQUE_BYTES)
        self.out += struct.pack("<I", len(value)) + value
        return 0

    def _number(self, value: int, form: str, bits: int) -> int:
        if not _fits(value, bits):
            _refuse(f"{value!r} is not an integer of {bits} bits", f"use an int from 0 to {(1 << bits) - 1}")
        self.out += struct.pack(form, value)
        return 0

    def u32(self, value: int, level: int = 0) -> int:
        return self._number(value, "<I", 32)

    def u64(self, value: int, level: int = 0) -> int:
        return self._number(value, "<Q", 64)

    def axis(self, value: int, level: int = 0) -> int:
        if not _fits(value, 2) or value > 2:
            _refuse(f"{value!r} is not an axis", "use 0, 1 or 2")
        self.out.append(value)
        return 0

    def flag(self, value: bool) -> None:
        if type(value) is not bool:
            _refuse(f"{value!r} is not a bool", "use True or False")
        self.out.append(value)

    def signed_leb(self, value: int, level: int = 0) -> int:
        if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
            _refuse(f"{value!r} is not a signed integer of 64 bits", "use a smaller number")
        self.out += _leb(value & (1 << 64) - 1)
        return 0

    def _member(self, value: object, enum: type[Enum]) -> None:
        if type(value) is not enum:
            _refuse(f"{value!r} is not a {enum.__name__}", f"use a member of {enum.__name__}")

    def _enum(self, value: Any, enum: type[Enum]) -> int:
        self._member(value, enum)
        self.out.append(getattr(value, "tag", value.value))
        return 0

    def _op(self, value: Any, enum: type[BinaryOp | UnaryOp | AtomicOp]) -> int:
        if type(value) is OpaqueOp:
            ident = value.id
            if not _fits(ident, 32) or not ident >> 31:
                _refuse(f"{ident!r} is not the id of an extension", "make ids with extension_id(name)")
            if (known := enum.of_tag(ident)) is not None:
                _refuse(f"the extension 0x{ident:08x} has an operator of its own", f"use {known!r}")
        else:
            self._member(value, enum)
            ident = value.tag
            if not ident >> 31:
                self.out.append(ident)
                return 0
        self.out += struct.pack("<BI", layout.OPAQUE, ident)
        return 0

    def binary_op(self, value: BinaryOp | OpaqueOp, level: int = 0) -> int:
        return self._op(value, BinaryOp)

    def unary_op(self, value: UnaryOp | OpaqueOp, level: int = 0) -> int:
        return self._op(value, UnaryOp)

    def atomic_op(self, value: AtomicOp | OpaqueOp, level: int = 0) -> int:
        return self._op(value, AtomicOp)

    def collective_op(self, value: CollectiveOp, level: int = 0) -> int:
        return self._enum(value, CollectiveOp)

    def ordering(self, value: Ordering, level: int = 0) -> int:
        return self._enum(value, Ordering)

    def reduce_op(self, value: ReduceOp, level: int = 0) -> int:
        if self._reduce_ops:
            return self._enum(value, ReduceOp)
        if value is not ReduceOp.ADD:
            _refuse("revision 4 knows only sums of subgroups", "write revision 5 or 6, or dialect 4b", op=value)
        return 0

    def dtype(self, t: DataType, level: int) -> int:
        self._check_level(level)
        self._known(t)
        self.out.append(t.tag)
        if t.tag in (ARRAY_TAG, OPAQUE_TAG):
            return 1 + self.u32(t.args[0])
        if t.tag == VEC_TAG:
            levels = self.dtype(t.args[0], level + 1)
            self.out.append(t.args[1])
            return 1 + levels
        if t.tag == QUANTIZED_TAG:
            levels = self.dtype(t.args[0], level + 1)
            self.out += struct.pack("<BIBI", *_scale_tags(t))
            return 1 + levels
        return 1

    def _known(self, t: DataType) -> None:
        if type(t) is not DataType or _rebuilt(t) != t:
            _refuse(
                f"{t!s} is not a type of the wire format", "use one of the declared types, with parameters in range"
            )

    def _element(self, t: DataType) -> None:
        self._known(t)
        if t.tag == VEC_TAG:
            _refuse(f"{t} cannot be the element of a buffer", "use the element type of the vector, and a larger count")

    def hints(self, value: Hints) -> None:
        if type(value) is not Hints:
            _refuse(f"{value!r} is not a Hints", "use Hints(...)")
        self.out.append(value.coalesce_axis is not None)
        if value.coalesce_axis is not None:
            self._number(value.coalesce_axis, "<B", 8)
        self.u32(value.preferred_alignment)
        self._enum(value.locality, Locality)

    def predicate(self, value: Predicate, depth: int) -> int:
        known = _PREDICATE_TAGS.get(value.kind) if type(value) is Predicate else None
        if known is None or len(value.args) != len(known[1]):
            _refuse(f"{value!r} is not a shape predicate", "use Predicate with a kind and the numbers it takes")
        if depth >= layout.MAX_PREDICATE_DEPTH:
            _refuse("a shape predicate is nested too deeply", "flatten it", limit=layout.MAX_PREDICATE_DEPTH)
        tag, row = known
        self.out.append(tag)
        for (_, kind), arg in zip(row, value.args, strict=True):
            self._put[kind](arg, depth + 1)
        self._check_size()
        return 0


def _shape_parameters(t: DataType) -> Iterable[int]:
    if t.tag in (ARRAY_TAG, OPAQUE_TAG):
        return (t.args[0],)
    if t.tag == QUANTIZED_TAG:
        return (t.args[0].tag, *_scale_tags(t))
    return ()
