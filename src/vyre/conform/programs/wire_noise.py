"""Hostile bytes for the wire reader: good blobs damaged a little, and noise.

A blob may be sealed again after the damage, so that it gets past the digest and into the parser. Nothing but
`WireError` may come out of the reader, and what it accepts must be what the writer makes of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

from ...errors import WireError
from ...foundation.formats.blake3 import blake3
from ...foundation.formats.wire import decode, encode, revision
from ...foundation.formats.wire.layout import FLAGS, HEADER_BYTES, MAGIC, REVISIONS
from ...foundation.ir.dtypes import f32, quantized_type, u8, u32, u64
from ...foundation.ir.nodes import (
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
)
from ...foundation.ir.ops import AtomicOp, BinaryOp, CollectiveOp, OpaqueOp, ReduceOp, UnaryOp
from ...foundation.ir.program import Access, BufferDecl, Hints, LinearType, Predicate, Program
from .random import random_program


def every_class() -> Program:
    """A program, valid or not, in which each class of the IR and each optional field occurs."""
    predicate = Predicate("and", (Predicate("at_least", (1,)), Predicate("not", (Predicate("affine", (1, 2, 3, 4)),))))
    rich = BufferDecl(
        "a",
        3,
        Access.READ_WRITE,
        u32,
        8,
        is_output=True,
        output_byte_range=(4, 8),
        hints=Hints(1, 16),
        linear_type=LinearType.AFFINE,
        shape_predicate=predicate,
    )
    exprs: list[Expr] = [
        Lit(u32, 6),
        Lit(u64, 6),
        Var("v"),
        Load("a", Var("v")),
        BufLen("a"),
        InvocationId(0),
        WorkgroupId(0),
        LocalId(0),
        BinOp(BinaryOp.SUB, Var("v"), Var("w")),
        BinOp(OpaqueOp(0x80000002), Var("v"), Var("w")),
        UnOp(UnaryOp.BIT_NOT, Var("v")),
        Call("f", (Var("v"),)),
        Select(Var("v"), Var("w"), Var("z")),
        Cast(quantized_type(u8), Var("v")),
        Bitcast(f32, Var("v")),
        Atomic(AtomicOp.ADD, "a", Var("v"), Var("w"), Var("z")),
        Atomic(AtomicOp.ADD, "a", Var("v"), Var("w")),
        Fma(Var("v"), Var("w"), Var("z")),
        SubgroupReduce(ReduceOp.ADD, Var("v")),
        SubgroupShuffle(Var("v"), Var("w")),
        SubgroupBallot(Var("v")),
        SubgroupLocalId(),
        SubgroupSize(),
        BufferRef("a"),
        Opaque("k", b"p"),
    ]
    nodes: list[Node] = [
        Let("x", Call("all", tuple(exprs))),
        Assign("x", Var("v")),
        Store("a", Var("v"), Var("w")),
        If(Var("v"), (Return(),), (Return(),)),
        Loop("i", Var("v"), Var("w"), (Barrier(),)),
        Block((Let("y", Var("v")),)),
        IndirectDispatch("a", 4),
        AsyncLoad("a", "b", Var("v"), Var("w"), "t"),
        AsyncStore("a", "b", Var("v"), Var("w"), "t"),
        AsyncWait("t"),
        Region("g", (Return(),), "source"),
        Trap(Var("v"), "t"),
        AllReduce("a", CollectiveOp.SUM, 0),
        AllGather("a", "b", 0),
        ReduceScatter("a", "b", CollectiveOp.SUM, 0),
        Broadcast("a", 0, 0),
        OpaqueNode("k", b"p"),
    ]
    buffers = [rich, BufferDecl("s", 0, Access.WORKGROUP, u32, 2)]
    return Program(buffers, (4, 2, 1), [Region("g", tuple(nodes))], op_id="demo")


def judge(blob: bytes) -> str:
    """`accepted`, the kind of the `WireError` that refused it, or `changed` if it was accepted and reads back
    differently. Any other exception is a bug of the reader and comes through."""
    try:
        program = decode(blob)
    except WireError as error:
        return str(error.context["kind"])
    return "accepted" if encode(program, revision(blob)) == blob else "changed"


def seal(blob: bytes) -> bytes:
    """The blob with the digest of what it holds now."""
    return blob[:8] + blake3(blob[HEADER_BYTES:]) + blob[HEADER_BYTES:]


def corpus(rng: random.Random, size: int = 24) -> list[bytes]:
    """Good blobs of all revisions."""
    plain = every_class().buffers[0].replace(linear_type=LinearType.UNRESTRICTED, shape_predicate=None)
    blobs = [encode(every_class()), encode(every_class().replace(buffers=[plain]), 5), encode(Program.empty())]
    while len(blobs) < size:
        with suppress(WireError):  # an older revision may lack what the program uses
            blobs.append(encode(random_program(rng).program, rng.choice(REVISIONS)))
    return blobs


Mutation = Callable[[random.Random, bytearray, bytes], None]
_BYTES = (0, 1, 2, 3, 5, 6, 8, 9, 0x0A, 0x0D, 0x0E, 0x0F, 0x11, 0x14, 0x1F, 0x7F, 0x80, 0x81, 0xFF)
_WORDS = (0, 1, 2, 63, 64, 65, 0x7F, 0x80, 0x1000, 0x1001, 0x100000, 0x7FFFFFFF, 0x80000000, 0x7FC00001, 0xFFFFFFFF)


def _flip(rng: random.Random, blob: bytearray, donor: bytes) -> None:
    blob[_place(rng, blob)] ^= 1 << rng.randrange(8)


def _overwrite_byte(rng: random.Random, blob: bytearray, donor: bytes) -> None:
    blob[_place(rng, blob)] = rng.choice(_BYTES)


def _overwrite_word(rng: random.Random, blob: bytearray, donor: bytes) -> None:
    at = _place(rng, blob)
    blob[at : at + 4] = rng.choice(_WORDS).to_bytes(4, "little")


def _delete(rng: random.Random, blob: bytearray, donor: bytes) -> None:
    at = _place(rng, blob)
    del blob[at : at + rng.choice((1, 1, 2, 4, 5, 40))]


def _insert(rng: random.Random, blob: bytearray, donor: bytes) -> None:
    at = _place(rng, blob)
    blob[at:at] = rng.randbytes(rng.choice((1, 1, 2, 4, 8)))


def _repeat(rng: random.Random, blob: bytearray, donor: bytes) -> None:
    at = _place(rng, blob)
    blob[at:at] = blob[at : at + rng.randrange(1, 40)] * rng.choice((1, 1, 1, 70))


def _truncate(rng: random.Random, blob: bytearray, donor: bytes) -> None:
    del blob[rng.randrange(len(blob)) :]


def _graft(rng: random.Random, blob: bytearray, donor: bytes) -> None:
    """A span of another good blob over one of the same length."""
    size = rng.randrange(1, 60)
    at, start = _place(rng, blob), rng.randrange(len(donor))
    piece = donor[start : start + size]
    blob[at : at + len(piece)] = piece


_MUTATIONS: tuple[Mutation, ...] = (
    _flip, _flip, _overwrite_byte, _overwrite_byte, _overwrite_word, _overwrite_word, _delete, _insert, _repeat,
    _truncate, _graft,
)  # fmt: skip


def _place(rng: random.Random, blob: bytearray) -> int:
    """Mostly in the body; the header has few bytes and its own checks."""
    low = HEADER_BYTES if len(blob) > HEADER_BYTES and rng.random() < 0.95 else 0
    return rng.randrange(low, len(blob))


def mutate(rng: random.Random, blobs: list[bytes]) -> bytes:
    """One to three damages to one of some good blobs; not sealed."""
    blob = bytearray(rng.choice(blobs))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if blob:
            rng.choice(_MUTATIONS)(rng, blob, rng.choice(blobs))
    return bytes(blob)


def noise(rng: random.Random) -> bytes:
    """Random bytes; two times in three behind a header that is right."""
    body = rng.randbytes(rng.randrange(400))
    if rng.random() < 1 / 3:
        return body
    head = MAGIC + rng.choice(REVISIONS).to_bytes(2, "little") + FLAGS.to_bytes(2, "little")
    return seal(head + bytes(32) + body)
