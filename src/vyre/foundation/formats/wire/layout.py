"""What is on the wire: tags, fields and limits, in one table that the writer and the reader share.

A blob is `VYRE`, u16 revision, u16 flags, the BLAKE3 digest of the rest, and the rest: records (the first one describes
program and buffers, then one for each statement of the entry), the second half of the buffer table, and the indices of
the buffers a program may leave changed. Numbers are little-endian; leb is unsigned LEB128.
"""

from __future__ import annotations

from ....errors import ArgumentValueError
from ...ir.dtypes import DataType, bool_, f32, f64, i32, i64, u32, u64
from ...ir.nodes import (
    AllGather,
    AllReduce,
    Assign,
    AsyncLoad,
    AsyncStore,
    AsyncWait,
    Atomic,
    Barrier,
    BinOp,
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
    Load,
    LocalId,
    Loop,
    Node,
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
)
from ...ir.ops import LITERAL_IDS

MAGIC = b"VYRE"
REVISIONS = (4, 5, 6)
FLAGS = 0x0004  # payloads of extensions are little-endian; every other bit is reserved
HEADER_BYTES = 40
METADATA_ID = "vyre.program.metadata"
METADATA_MAGIC = b"VYRE-META"

MAX_PROGRAM_BYTES = 64 << 20
MAX_RECORD_BYTES = 4 << 20
MAX_STRING_BYTES = 1 << 20
MAX_OPAQUE_BYTES = 4 << 20
MAX_TABLE_ENTRY_BYTES = 64
MAX_BUFFERS = 16_384
MAX_NODES = 1_000_000
MAX_ARGS = 4_096
MAX_DEPTH = 64
"""Levels of statements, expressions and types together; one statement of the entry is level 1."""
MAX_PREDICATE_DEPTH = 32

Row = tuple[tuple[str, str], ...]
"""(attribute, encoding) in wire order. An encoding is the name of a method of the writer and of the reader."""


def _row(spec: str) -> Row:
    return tuple((name, kind) for name, _, kind in (part.partition(":") for part in spec.split()))


EXPRS: dict[int, tuple[type[Expr], Row]] = {
    3: (Var, _row("name:text")),
    4: (Load, _row("buffer:text index:expr")),
    5: (BufLen, _row("buffer:text")),
    6: (InvocationId, _row("axis:axis")),
    7: (WorkgroupId, _row("axis:axis")),
    8: (LocalId, _row("axis:axis")),
    9: (BinOp, _row("op:binary_op left:expr right:expr")),
    10: (UnOp, _row("op:unary_op operand:expr")),
    11: (Call, _row("op_id:text args:exprs")),
    12: (Select, _row("condition:expr on_true:expr on_false:expr")),
    13: (Cast, _row("target:dtype value:expr")),
    14: (Atomic, _row("op:atomic_op ordering:ordering buffer:text index:expr expected:maybe_expr value:expr")),
    16: (Fma, _row("a:expr b:expr c:expr")),
    17: (SubgroupReduce, _row("op:reduce_op value:expr")),
    18: (SubgroupShuffle, _row("value:expr lane:expr")),
    19: (SubgroupBallot, _row("condition:expr")),
    20: (SubgroupLocalId, ()),
    21: (SubgroupSize, ()),
    22: (BufferRef, _row("buffer:text")),
}
LITERALS: dict[int, DataType] = {0: u32, 1: i32, 2: bool_, 15: f32}
BUFFER_REF, SUBGROUP_REDUCE, OPAQUE = 22, 17, 0x80

WIDE_LITERALS: dict[str, DataType] = {LITERAL_IDS[t.name]: t for t in (u64, i64, f64)}
BITCAST_KIND = "vyre.py.bitcast"
KNOWN_KINDS = frozenset((*WIDE_LITERALS, BITCAST_KIND))
"""Opaque kinds that have a class of their own; `Opaque` itself may not use them."""

NODES: dict[int, tuple[type[Node], Row]] = {
    0: (Let, _row("name:text value:expr")),
    1: (Assign, _row("name:text value:expr")),
    2: (Store, _row("buffer:text index:expr value:expr")),
    3: (If, _row("condition:expr then:nodes orelse:nodes")),
    4: (Loop, _row("var:text start:expr stop:expr body:nodes")),
    5: (Return, ()),
    6: (Block, _row("body:nodes")),
    7: (Barrier, _row("ordering:ordering")),
    8: (IndirectDispatch, _row("count_buffer:text count_offset:u64")),
    9: (AsyncLoad, _row("source:text destination:text offset:expr size:expr tag:text")),
    10: (AsyncWait, _row("tag:text")),
    11: (Region, _row("generator:text source_region:maybe_text body:nodes")),
    12: (AsyncStore, _row("source:text destination:text offset:expr size:expr tag:text")),
    13: (Trap, _row("address:expr tag:text")),
    15: (AllReduce, _row("buffer:text op:collective_op group:u32")),
    16: (AllGather, _row("source:text destination:text group:u32")),
    17: (ReduceScatter, _row("source:text destination:text op:collective_op group:u32")),
    18: (Broadcast, _row("buffer:text root:u32 group:u32")),
    OPAQUE: (OpaqueNode, _row("kind:text payload:payload")),
}
RESUME = 14
"""Reserved: it resumed a trapped program, which nothing here can do."""

PREDICATES: dict[int, tuple[str, Row]] = {
    1: ("at_least", _row("n:u32")),
    2: ("at_most", _row("n:u32")),
    3: ("exactly", _row("n:u32")),
    4: ("multiple_of", _row("n:u32")),
    5: ("mod_equals", _row("modulus:u32 remainder:u32")),
    6: ("affine", _row("scale:signed_leb offset:signed_leb min:signed_leb max:signed_leb")),
    7: ("and", _row("left:predicate right:predicate")),
    8: ("or", _row("left:predicate right:predicate")),
    9: ("not", _row("operand:predicate")),
}


def has_reduce_op(rev: int, dialect: str | None) -> bool:
    """Whether a subgroup reduction names its operator. Revision 4 was written both ways: as a sum without the
    operator, and in dialect `4b` with it."""
    if dialect not in (None, "4b"):
        raise ArgumentValueError(
            "unknown dialect of the wire format", fix='pass dialect="4b", or leave it out', dialect=dialect
        )
    return rev >= 5 or dialect == "4b"


def is_canonical_f32(bits: int) -> bool:
    """Whether a literal may have these bits: no negative zero, no subnormal, one NaN.

    >>> [is_canonical_f32(b) for b in (0, 0x80000000, 1, 0x800000, 0x7F800000, 0x7F800001, 0x7FC00000)]
    [True, False, False, True, True, False, True]
    """
    exponent, fraction = bits & 0x7F800000, bits & 0x007FFFFF
    if exponent == 0x7F800000 and fraction:
        return bits == 0x7FC00000
    return exponent != 0 or bits == 0
