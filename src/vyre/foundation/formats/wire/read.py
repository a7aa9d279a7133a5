"""From bytes to a program, for bytes that anyone may have made.

Every length is checked before anything of that length is built, nesting is counted, and a second spelling of the same
value is refused, so that an accepted blob is what the writer makes of its program. Nothing but `WireError` comes out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum
from typing import Any, NoReturn, TypeVar

from ....errors import ArgumentTypeError, WireError, WireUnknownOp, WireVersionError
from ...ir.dtypes import (
    ARRAY_TAG,
    DROPPED_TAGS,
    OPAQUE_TAG,
    QUANTIZED_STORAGE,
    QUANTIZED_TAG,
    SCALES,
    SIMPLE,
    VEC_TAG,
    DataType,
    array_type,
    opaque_type,
    quantized_type,
    vec_type,
)
from ...ir.nodes import Bitcast, Expr, Lit, Node, Opaque
from ...ir.ops import NODE_IDS, AtomicOp, BinaryOp, CollectiveOp, OpaqueOp, Ordering, ReduceOp, UnaryOp
from ...ir.program import Access, BufferDecl, Hints, LinearType, Locality, MemoryKind, Predicate, Program
from ..blake3 import blake3
from . import layout
from .layout import EXPRS, LITERALS, NODES, PREDICATES, WIDE_LITERALS

E = TypeVar("E", bound=Enum)
Blob = bytes | bytearray | memoryview
_DAMAGED = "write the program again with to_wire(); these bytes are damaged or not canonical"
_SHARED = {cls: cls() for table in (EXPRS, NODES) for cls, row in table.values() if not row}  # one byte each


def revision(blob: Blob) -> int:
    """The revision a blob says it was written at; nothing behind the version is looked at."""
    return _revision(_as_bytes(blob))


def decode(blob: Blob, dialect: str | None = None) -> Program:
    """The program in a blob of revision 4, 5 or 6. `dialect="4b"` reads revision 4 as its second writer wrote it."""
    layout.has_reduce_op(4, dialect)
    data = _as_bytes(blob)
    rev = _revision(data)
    if len(data) < layout.HEADER_BYTES:
        _truncated("the header is incomplete", len(data))
    flags = int.from_bytes(data[6:8], "little")
    if flags != layout.FLAGS:
        raise WireError(
            "the header has flags this version does not know",
            fix="write the program again without compression or sealing",
            kind="flags",
            expected=layout.FLAGS,
            found=flags,
        )
    sealed, actual = data[8:40], blake3(data[layout.HEADER_BYTES :])
    if sealed != actual:
        raise WireError(
            "the digest does not match the contents",
            fix="fetch the file again; it was changed after it was written",
            kind="integrity",
            expected=sealed.hex(),
            actual=actual.hex(),
        )
    try:
        return Reader(data, layout.HEADER_BYTES, rev, dialect).program()
    except RecursionError:
        raise WireError(
            "the caller's stack has no room left for the levels of the program",
            fix="decode from a place with fewer calls below it",
            kind="limit",
        ) from None


def _as_bytes(blob: Blob) -> bytes:
    try:
        view = memoryview(blob)
        if view.nbytes <= layout.MAX_PROGRAM_BYTES:
            return view.tobytes()
    except (TypeError, ValueError, BufferError, NotImplementedError) as e:
        raise ArgumentTypeError(
            f"a {type(blob).__name__} cannot be read as bytes", fix="pass bytes, bytearray or a memoryview"
        ) from e
    raise WireError(
        "the blob is larger than any program",
        fix="split the program before writing it",
        kind="limit",
        nbytes=view.nbytes,
        limit=layout.MAX_PROGRAM_BYTES,
    )


def _revision(data: bytes) -> int:
    if len(data) < len(layout.MAGIC):
        _truncated("the blob ends inside the magic", len(data))
    if not data.startswith(layout.MAGIC):
        raise WireError(
            "the blob does not start with VYRE", fix="pass what to_wire() returned", kind="magic", found=data[:4].hex()
        )
    if len(data) < 6:
        _truncated("the blob ends inside the version", len(data))
    found = int.from_bytes(data[4:6], "little")
    if found not in layout.REVISIONS:
        raise WireVersionError(
            "this revision of the wire format cannot be read",
            fix="write the program at revision 4, 5 or 6, or update vyre",
            kind="version",
            expected=layout.REVISIONS,
            found=found,
        )
    return found


def _truncated(message: str, offset: int) -> NoReturn:
    raise WireError(message, fix="fetch the whole file again, or write it again", kind="truncated", offset=offset)


class Reader:
    """Reads forward from `pos` and never past `end`, which moves inward while a part with a length is read."""

    def __init__(self, data: bytes, pos: int, rev: int, dialect: str | None) -> None:
        self.data, self.pos, self.end, self.rev = data, pos, len(data), rev
        self._reduce_ops = layout.has_reduce_op(rev, dialect)
        kinds = {kind for table in (EXPRS, NODES, PREDICATES) for _, row in table.values() for _, kind in row}
        self._take: dict[str, Callable[[int], Any]] = {kind: getattr(self, kind) for kind in kinds}

    # -- failures

    def _bad(self, message: str, fix: str = _DAMAGED, **context: object) -> NoReturn:
        raise WireError(message, fix=fix, kind="discriminant", offset=self.pos, **context)

    def _over(self, what: str, asked: int, limit: int) -> NoReturn:
        raise WireError(
            f"{what} exceeds its limit",
            fix="split the program before writing it",
            kind="limit",
            offset=self.pos,
            asked=asked,
            limit=limit,
        )

    # -- the program

    def program(self) -> Program:
        records = self._length("the number of records", self.leb(), layout.MAX_NODES + 1)
        if not records:
            self._bad("there is no metadata record")
        op_id, end = self._open_record()
        if op_id != layout.METADATA_ID:
            raise WireUnknownOp(
                "the first record does not describe the program",
                fix=_DAMAGED,
                kind="discriminant",
                expected=layout.METADATA_ID,
                found=op_id[:80],
            )
        head, decls = self._metadata()
        self._close_record(end)
        entry = [self._statement() for _ in range(records - 1)]
        buffers = self._buffer_table(decls)
        program = Program.of_entry(buffers, entry=entry, **head)
        self._outputs(program)
        if self.pos != self.end:
            _truncated("bytes follow the end of the program", self.pos)
        return program

    def _open_record(self) -> tuple[str, int]:
        """The operation of the next record, and where this reader's end was; until closed, it is the payload's end."""
        op_id = self._text(self.leb())
        size = self._length("a record", self.leb(), layout.MAX_RECORD_BYTES)
        end, self.end = self.end, self.pos + size
        return op_id, end

    def _close(self, end: int) -> None:
        if self.pos != self.end:
            _truncated("bytes are left over inside a part with a length", self.pos)
        self.end = end

    def _close_record(self, end: int) -> None:
        self._close(end)
        if operands := self.leb():
            self._bad("a record has operands", operands=operands)

    def _statement(self) -> Node:
        op_id, end = self._open_record()
        known = NODES.get(self.data[self.pos]) if self.pos < self.end else None
        expected = NODE_IDS.get(known[0].__name__) if known else None
        if expected in (None, op_id):  # none: an opaque statement, or a tag that the next line refuses
            node = self.node(1)
            expected = expected or getattr(node, "kind", None)
        if op_id != expected:
            raise WireUnknownOp(
                "a record's operation is not that of its payload",
                fix=_DAMAGED,
                kind="discriminant",
                expected=str(expected)[:80],
                found=op_id[:80],
            )
        self._close_record(end)
        return node

    def _metadata(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        if self._raw(len(layout.METADATA_MAGIC)) != layout.METADATA_MAGIC:
            self._bad("the metadata record does not start with VYRE-META")
        op_id = self.maybe_text()
        workgroup = self.u32(), self.u32(), self.u32()
        if not all(workgroup):
            self._bad("a workgroup axis is 0", workgroup=workgroup)
        exclusive = self.flag()
        count = self._length("the number of buffers", self.leb(), layout.MAX_BUFFERS)
        decls = [self._buffer() for _ in range(count)]
        return {"workgroup_size": workgroup, "op_id": op_id, "exclusive": exclusive}, decls

    def _buffer(self) -> dict[str, Any]:
        decl: dict[str, Any] = {
            "name": self.text(), "binding": self.u32(), "count": self.u32(), "is_output": self.flag(),
            "live_out": self.flag(), "output_byte_range": (self.leb(), self.leb()) if self.flag() else None,
            "hints": self.hints(),
        }  # fmt: skip
        if self.rev >= 6:
            decl["linear_type"] = self._enum(LinearType)
            decl["bytes_extraction"] = self.flag()
            tag = self._byte()
            decl["shape_predicate"] = self._predicate(tag, 0) if tag else None
        return decl

    def _buffer_table(self, decls: list[dict[str, Any]]) -> list[BufferDecl]:
        if (count := self.leb()) != len(decls):
            self._bad("the two halves of the buffer table differ in length", first=len(decls), second=count)
        return [self._table_entry(index, decl) for index, decl in enumerate(decls)]

    def _table_entry(self, index: int, decl: dict[str, Any]) -> BufferDecl:
        if (found := self.leb()) != index:
            self._bad("the buffer table is out of order", expected=index, found=found)
        kind, access, tag = self._enum(MemoryKind), self._enum(Access), self._byte()
        if shape := self._byte():
            self._bad("a buffer has an unknown shape", tag=shape)
        end = self._open("a shape")
        count = self.leb()
        element = self._element(tag)
        self._close(end)
        end = self._open("hints")
        hints = self.hints()
        self._close(end)
        buffer = BufferDecl(access=access, kind=kind, element=element, **decl)
        if count != buffer.count or hints != buffer.hints:
            self._bad("the two halves of the buffer table differ", buffer=buffer.name)
        if not count and (buffer.is_workgroup or buffer.is_output or buffer.live_out):
            self._bad("workgroup memory or an output has count 0", buffer=buffer.name)
        start, stop = buffer.output_byte_range or (0, 0)
        if start > stop or (buffer.nbytes is not None and stop > buffer.nbytes):
            self._bad("an output byte range does not lie inside its buffer", buffer=buffer.name)
        return buffer

    def _open(self, what: str) -> int:
        size = self._length(what, self.leb(), layout.MAX_TABLE_ENTRY_BYTES)
        end, self.end = self.end, self.pos + size
        return end

    def _element(self, tag: int) -> DataType:
        if tag == ARRAY_TAG:
            return array_type(self._leb32())
        if tag == OPAQUE_TAG:
            return opaque_type(self._extension(self._leb32()))
        if tag == QUANTIZED_TAG:
            return self._quantized(self._simple(self._leb32()), *(self._leb32() for _ in range(4)))
        if tag == VEC_TAG:
            self._bad("a vector cannot be the element of a buffer", tag=tag)
        return self._simple(tag)

    def _outputs(self, program: Program) -> None:
        wanted = program.output_indices
        if (count := self.leb()) != len(wanted):
            self._bad("the output set is not that of the buffers", expected=len(wanted), found=count)
        for index in wanted:
            if (found := self.leb()) != index:
                self._bad("the output set is not that of the buffers", expected=index, found=found)

    # -- statements and expressions

    def node(self, level: int) -> Node:
        self._enter(level)
        tag = self._byte()
        known = NODES.get(tag)
        if known is None:
            if tag == layout.RESUME:
                self._bad("resume statements are not supported", fix="write the program without resume", tag=tag)
            self._bad("unknown statement", tag=tag)
        cls, row = known
        if not row:
            return _SHARED[cls]  # type: ignore[return-value]
        return cls(**{name: self._take[kind](level + 1) for name, kind in row})

    def expr(self, level: int) -> Expr:
        self._enter(level)
        tag = self._byte()
        if tag in LITERALS:
            return self._literal(LITERALS[tag])
        if tag == layout.OPAQUE:
            return self._opaque(level)
        known = EXPRS.get(tag)
        if known is None or (tag == layout.BUFFER_REF and self.rev < 5):
            self._bad("unknown expression", tag=tag, rev=self.rev)
        cls, row = known
        if not row:
            return _SHARED[cls]  # type: ignore[return-value]
        return cls(**{name: self._take[kind](level + 1) for name, kind in row})

    def _enter(self, level: int) -> None:
        if level > layout.MAX_DEPTH:
            self._over("nesting", level, layout.MAX_DEPTH)

    def _literal(self, t: DataType) -> Lit:
        if t.name == "bool":
            return Lit(t, int(self.flag()))
        bits = self.u32()
        if t.name == "f32" and not layout.is_canonical_f32(bits):
            self._bad("an f32 literal is not canonical", bits=f"0x{bits:08x}")
        return Lit(t, bits)

    def _opaque(self, level: int) -> Expr:
        kind = self.text()
        if kind not in layout.KNOWN_KINDS:
            return Opaque(kind, self.payload())
        size = self._length("an opaque payload", self.u32(), layout.MAX_OPAQUE_BYTES)
        end, self.end = self.end, self.pos + size
        expr: Expr
        if kind == layout.BITCAST_KIND:
            expr = Bitcast(self._simple(self._byte()), self.expr(level + 1))
        else:
            expr = Lit(WIDE_LITERALS[kind], self.u64())
        self._close(end)
        return expr

    # -- fields: one method for each encoding of the layout

    def maybe_expr(self, level: int) -> Expr | None:
        return self.expr(level) if self.flag() else None

    def exprs(self, level: int) -> tuple[Expr, ...]:
        count = self._length("an argument list", self.u32(), layout.MAX_ARGS)
        return tuple([self.expr(level) for _ in range(count)])

    def nodes(self, level: int) -> tuple[Node, ...]:
        count = self._length("a statement list", self.u32(), layout.MAX_NODES)
        return tuple([self.node(level) for _ in range(count)])

    def _length(self, what: str, count: int, limit: int) -> int:
        """`count` items of at least one byte each are still to come."""
        if count > self.end - self.pos:
            _truncated(f"{what} is longer than what is left", self.pos)
        if count > limit:
            self._over(what, count, limit)
        return count

    def _raw(self, size: int) -> bytes:
        start, stop = self.pos, self.pos + size
        if stop > self.end:
            _truncated("the bytes end inside a field", start)
        self.pos = stop
        return self.data[start:stop]

    def _byte(self) -> int:
        pos = self.pos
        if pos >= self.end:
            _truncated("the bytes end inside a field", pos)
        self.pos = pos + 1
        return self.data[pos]

    def u32(self, level: int = 0) -> int:
        return int.from_bytes(self._raw(4), "little")

    def u64(self, level: int = 0) -> int:
        return int.from_bytes(self._raw(8), "little")

    def leb(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                _truncated("a LEB128 number does not end", self.pos)
        if value >> 64:
            _truncated("a LEB128 number exceeds 64 bits", self.pos)
        if byte == 0 and shift:
            self._bad("a LEB128 number is longer than needed", value=value)
        return value

    def _leb32(self) -> int:
        value = self.leb()
        if value >> 32:
            _truncated("a type parameter exceeds 32 bits", self.pos)
        return value

    def signed_leb(self, level: int = 0) -> int:
        value = self.leb()
        return value - (1 << 64) if value >> 63 else value

    def flag(self) -> bool:
        byte = self._byte()
        if byte > 1:
            self._bad("a flag is neither 0 nor 1", found=byte)
        return byte == 1

    def axis(self, level: int = 0) -> int:
        byte = self._byte()
        if byte > 2:
            self._bad("an axis is not 0, 1 or 2", found=byte)
        return byte

    def text(self, level: int = 0) -> str:
        return self._text(self.u32())

    def _text(self, size: int) -> str:
        raw = self._raw(self._length("a string", size, layout.MAX_STRING_BYTES))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            _truncated("a string is not UTF-8", self.pos - size)

    def maybe_text(self, level: int = 0) -> str | None:
        return self.text() if self.flag() else None

    def payload(self, level: int = 0) -> bytes:
        return self._raw(self._length("an opaque payload", self.u32(), layout.MAX_OPAQUE_BYTES))

    def _enum(self, enum: type[E]) -> E:
        return self._member(enum, self._byte())

    def _member(self, enum: type[E], tag: int) -> E:
        found: E | None = _MEMBERS[enum].get(tag)
        if found is None:
            self._bad(f"unknown {enum.__name__}", tag=tag)
        return found

    def _op(self, enum: type[E]) -> E | OpaqueOp:
        tag = self._byte()
        if tag != layout.OPAQUE:
            return self._member(enum, tag)
        ident = self._extension(self.u32())
        known: E | None = _MEMBERS[enum].get(ident)
        return OpaqueOp(ident) if known is None else known

    def _extension(self, ident: int) -> int:
        if not ident >> 31:
            self._bad("the id of an extension lacks its high bit", id=f"0x{ident:08x}")
        return ident

    def binary_op(self, level: int = 0) -> BinaryOp | OpaqueOp:
        return self._op(BinaryOp)

    def unary_op(self, level: int = 0) -> UnaryOp | OpaqueOp:
        return self._op(UnaryOp)

    def atomic_op(self, level: int = 0) -> AtomicOp | OpaqueOp:
        return self._op(AtomicOp)

    def collective_op(self, level: int = 0) -> CollectiveOp:
        return self._enum(CollectiveOp)

    def ordering(self, level: int = 0) -> Ordering:
        return self._enum(Ordering)

    def reduce_op(self, level: int = 0) -> ReduceOp:
        return self._enum(ReduceOp) if self._reduce_ops else ReduceOp.ADD

    def dtype(self, level: int) -> DataType:
        self._enter(level)
        tag = self._byte()
        if tag == ARRAY_TAG:
            return array_type(self.u32())
        if tag == OPAQUE_TAG:
            return opaque_type(self._extension(self.u32()))
        if tag == VEC_TAG:
            element, lanes = self.dtype(level + 1), self._byte()
            if not lanes:
                self._bad("a vector type has no lanes")
            return vec_type(element, lanes)
        if tag == QUANTIZED_TAG:
            return self._quantized(self.dtype(level + 1), *struct.unpack("<BIBI", self._raw(10)))
        return self._simple(tag)

    def _simple(self, tag: int) -> DataType:
        if tag in DROPPED_TAGS:
            self._bad(f"the type {DROPPED_TAGS[tag]} is not supported", fix="use another type", tag=tag)
        found = SIMPLE.get(tag)
        if found is None:
            self._bad("unknown type", tag=tag)
        return found

    def _quantized(self, storage: DataType, scale: int, param: int, zero: int, zero_param: int) -> DataType:
        if storage not in QUANTIZED_STORAGE:
            self._bad(f"{storage} cannot store quantized values")
        zero_point = None
        if zero:
            zero_point = self._scale(zero - 1, zero_param)
        elif zero_param:
            self._bad("an absent zero point has a parameter", param=zero_param)
        return quantized_type(storage, self._scale(scale, param), zero_point)

    def _scale(self, tag: int, param: int) -> tuple[str, int]:
        if tag >= len(SCALES):
            self._bad("unknown scale of a quantized type", tag=tag)
        if (tag == 0 and param) or (tag == 2 and not param):
            self._bad("a scale of a quantized type has an impossible parameter", scale=SCALES[tag], param=param)
        return SCALES[tag], param

    def hints(self) -> Hints:
        axis = self._byte() if self.flag() else None
        return Hints(axis, self.u32(), self._enum(Locality))

    def predicate(self, depth: int) -> Predicate:
        return self._predicate(self._byte(), depth)

    def _predicate(self, tag: int, depth: int) -> Predicate:
        known = PREDICATES.get(tag)
        if known is None:
            self._bad("unknown shape predicate", tag=tag)
        if depth >= layout.MAX_PREDICATE_DEPTH:
            self._over("nesting of a shape predicate", depth + 1, layout.MAX_PREDICATE_DEPTH)
        kind, row = known
        return Predicate(kind, tuple(self._take[form](depth + 1) for _, form in row))


_MEMBERS: dict[type[Enum], dict[int, Any]] = {
    enum: {getattr(member, "tag", member.value): member for member in enum}
    for enum in (
        Access, MemoryKind, Locality, LinearType, BinaryOp, UnaryOp, AtomicOp, ReduceOp, CollectiveOp, Ordering,
    )
}  # fmt: skip
