"""Blobs put together by hand: the reader takes what the writer writes and refuses every other spelling."""

import struct
from functools import reduce

import pytest

from vyre.errors import WireError, WireUnknownOp, WireVersionError
from vyre.foundation.formats.blake3 import blake3
from vyre.foundation.formats.wire import decode, encode, revision
from vyre.foundation.ir.dtypes import DROPPED_TAGS, u32
from vyre.foundation.ir.nodes import BufferRef, Expr, Let, Lit, Store
from vyre.foundation.ir.program import Program, read_write

OUT = read_write("out", 0, u32, 1)
STORE = Program([OUT], (1, 1, 1), [Store("out", Lit(u32, 0), Lit(u32, 42))])


def holding(expr: Expr) -> Program:
    return Program.of_entry((), (1, 1, 1), [Let("x", expr)])


# ---- an assembler ---------------------------------------------------------------------------------------------------


def reseal(blob, rev=None):
    head = blob[:4] + (blob[4:6] if rev is None else struct.pack("<H", rev)) + blob[6:8]
    return head + blake3(blob[40:]) + blob[40:]


def leb(n):
    return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + leb(n >> 7)


def text(s):
    raw = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<I", len(raw)) + raw


def record(op_id, payload, operands=b"\0"):
    name = op_id.encode() if isinstance(op_id, str) else op_id
    return leb(len(name)) + name + leb(len(payload)) + payload + operands


HINTS = b"\0" + bytes(4) + b"\1"
ONE = struct.pack("<I", 1)


def buffer_meta(name=b"\3\0\0\0out", slot=bytes(4), count=ONE, flags=b"\0\0", span=b"\0", hints=HINTS, late=b"\3\0\0"):
    return name + slot + count + flags + span + hints + late


def meta(magic=b"VYRE-META", op_id=b"\0", workgroup=ONE * 3, exclusive=b"\0", buffers=()):
    return magic + op_id + workgroup + exclusive + leb(len(buffers)) + b"".join(buffers)


def row(index=0, kind=0, access=1, element=1, shape_tag=0, shape=b"\1", hints=HINTS):
    head = leb(index) + bytes([kind, access, element, shape_tag])
    return head + leb(len(shape)) + shape + leb(len(hints)) + hints


def make(metadata=None, statements=(), rows=(), outputs=b"\0", count=None, trailing=b"", rev=6, flags=4, first=None):
    records = [record(first or "vyre.program.metadata", meta() if metadata is None else metadata), *statements]
    body = (leb(len(records)) if count is None else count) + b"".join(records)
    body += leb(len(rows)) + b"".join(rows) + outputs + trailing
    return b"VYRE" + struct.pack("<HH", rev, flags) + blake3(body) + body


def one_buffer(decl=None, rows=None, outputs=b"\1\0"):
    return make(meta(buffers=[decl or buffer_meta()]), rows=[rows or row()], outputs=outputs)


def let(expr):
    return make(statements=[record("vyre.node.let", b"\0" + text("x") + expr)])


U0 = b"\0" + bytes(4)  # a literal


def test_the_hand_assembler_agrees_with_the_writer():
    assert make() == encode(Program.of_entry((), (1, 1, 1), ()))
    assert one_buffer() == encode(Program.of_entry([OUT], (1, 1, 1), ()))
    assert let(U0) == encode(holding(Lit(u32, 0)))


TRUNCATED = {
    "nothing": b"",
    "two bytes": b"\1\2",
    "half the magic": b"VY",
    "magic alone": b"VYRE",
    "half the version": b"VYRE\6",
    "no digest": b"VYRE\6\0\4\0",
    "half the digest": make()[:39],
    "no body": reseal(make()[:40]),
    "unterminated leb": make(count=b"\x80" * 10 + b"\1"),
    "leb over 64 bits": make(count=b"\xff" * 9 + b"\2"),
    "more records than bytes": make(count=b"\xff\xff\3"),
    "trailing byte": make(trailing=b"\0"),
    "string past the end": let(b"\3" + b"\xff\xff\xff\xff" + b"x"),
    "string over its limit and past the end": let(b"\3" + struct.pack("<I", (1 << 20) + 1)),
    "bad UTF-8": let(b"\3" + text(b"\xff")),
    "surrogate in UTF-8": let(b"\3" + text(b"\xed\xa0\x80")),
    "payload with bytes left": make(statements=[record("vyre.node.return", b"\5\0")]),
    "payload too short": make(statements=[record("vyre.node.let", b"\0" + text("x"))]),
    "payload empty": make(statements=[record("vyre.node.let", b"")]),
    "payload past the end": make(statements=[b"\x10vyre.node.return\x7f\5\0"]),
    "statement list past the end": make(statements=[record("vyre.node.block", b"\6\xff\xff\xff\x7f")]),
    "argument list past the end": let(b"\x0b" + text("f") + b"\xff\xff\xff\x7f"),
    "opaque payload past the end": let(b"\x80" + text("k") + b"\xff\xff\xff\x7f"),
    "wide literal too short": let(b"\x80" + text("vyre.literal.u64") + text(bytes(7))),
    "wide literal too long": let(b"\x80" + text("vyre.literal.u64") + text(bytes(9))),
    "bitcast without operand": let(b"\x80" + text("vyre.py.bitcast") + text(b"\1")),
    "bitcast with bytes left": let(b"\x80" + text("vyre.py.bitcast") + text(b"\1" + U0 + b"\0")),
    "bitcast that needs bytes behind it": let(b"\x80" + text("vyre.py.bitcast") + text(b"\1" + U0[:3]) + bytes(9)),
    "shape with bytes left": one_buffer(rows=row(shape=b"\1\0")),
    "shape too short": one_buffer(rows=row(element=8)),
    "hints with bytes left": one_buffer(rows=row(hints=HINTS + b"\0")),
    "metadata without its predicate": make(meta(buffers=[buffer_meta(late=b"\3\0")]), rows=[row()], outputs=b"\1\0"),
    "array size over 32 bits": one_buffer(rows=row(element=8, shape=b"\1" + b"\xff" * 5 + b"\1")),
}
MALFORMED = {
    "no records": make(count=b"\0"),
    "non-minimal leb": make(count=b"\x81\0"),
    "operands": make(statements=[record("vyre.node.return", b"\5", b"\1")]),
    "metadata magic": make(meta(magic=b"VYRE-METB")),
    "entry id flag": make(meta(op_id=b"\2" + text("x"))),
    "workgroup axis 0": make(meta(workgroup=ONE + bytes(4) + ONE)),
    "exclusive flag": make(meta(exclusive=b"\2")),
    "output flag": one_buffer(buffer_meta(flags=b"\2\0")),
    "live flag": one_buffer(buffer_meta(flags=b"\0\xff")),
    "range flag": one_buffer(buffer_meta(span=b"\2\0\0")),
    "range backwards": one_buffer(buffer_meta(span=b"\1\3\2")),
    "range past the end": one_buffer(buffer_meta(span=b"\1\0\5")),
    "axis flag": one_buffer(buffer_meta(hints=b"\2\0" + HINTS[1:])),
    "locality": one_buffer(buffer_meta(hints=HINTS[:-1] + b"\3")),
    "linear type": one_buffer(buffer_meta(late=b"\4\0\0")),
    "extraction flag": one_buffer(buffer_meta(late=b"\3\2\0")),
    "predicate": one_buffer(buffer_meta(late=b"\3\0\x0a")),
    "nested absent predicate": one_buffer(buffer_meta(late=b"\3\0\x09\0")),
    "output without count": one_buffer(buffer_meta(count=bytes(4), flags=b"\1\0"), row(shape=b"\0")),
    "live without count": one_buffer(buffer_meta(count=bytes(4), flags=b"\0\1"), row(shape=b"\0")),
    "workgroup without count": one_buffer(buffer_meta(count=bytes(4)), row(kind=1, access=3, shape=b"\0"), b"\0"),
    "table count": one_buffer(rows=row(shape=b"\2")),
    "table hints": one_buffer(rows=row(hints=b"\0" + bytes(4) + b"\0")),
    "table index": one_buffer(rows=row(index=1)),
    "table length": make(rows=[row()]),
    "memory kind": one_buffer(rows=row(kind=7)),
    "access": one_buffer(rows=row(access=5)),
    "shape tag": one_buffer(rows=row(shape_tag=1)),
    "vector element": one_buffer(rows=row(element=0x14)),
    "unknown element": one_buffer(rows=row(element=0x42)),
    "extension element": one_buffer(rows=row(element=0x80, shape=b"\1\1")),
    "quantized storage": one_buffer(rows=row(element=0x1F, shape=b"\1\1\0\0\0\0")),
    "quantized scale": one_buffer(rows=row(element=0x1F, shape=b"\1\x0e\3\0\0\0")),
    "quantized zero point": one_buffer(rows=row(element=0x1F, shape=b"\1\x0e\0\0\4\0")),
    "tensor scale parameter": one_buffer(rows=row(element=0x1F, shape=b"\1\x0e\0\1\0\0")),
    "group of 0": one_buffer(rows=row(element=0x1F, shape=b"\1\x0e\2\0\0\0")),
    "absent zero point parameter": one_buffer(rows=row(element=0x1F, shape=b"\1\x0e\0\0\0\1")),
    "outputs missing": one_buffer(outputs=b"\0"),
    "outputs twice": one_buffer(outputs=b"\2\0\0"),
    "outputs other": one_buffer(outputs=b"\1\1"),
    "statement tag": make(statements=[record("vyre.node.let", b"\x13")]),
    "resume": make(statements=[record("vyre.node.resume", b"\x0e" + text("t"))]),
    "expression tag": let(b"\x17"),
    "bool literal": let(b"\2\2"),
    "negative zero": let(b"\x0f\0\0\0\x80"),
    "subnormal": let(b"\x0f\1\0\0\0"),
    "other NaN": let(b"\x0f\1\0\xc0\x7f"),
    "axis 3": let(b"\6\3"),
    "binary operator 0": let(b"\x09\0" + U0 * 2),
    "binary operator past the last": let(b"\x09\x22" + U0 * 2),
    "unary operator": let(b"\x0a\x25" + U0),
    "extension operator": let(b"\x0a\x80\0\0\0\x7f" + U0),
    "atomic operator": let(b"\x0e\x0c\0" + text("a") + U0 + b"\0" + U0),
    "atomic ordering": let(b"\x0e\1\6" + text("a") + U0 + b"\0" + U0),
    "expected flag": let(b"\x0e\1\0" + text("a") + U0 + b"\2" + U0 * 2),
    "reduction": let(b"\x11\x08" + U0),
    "collective": make(statements=[record("vyre.node.all_reduce", b"\x0f" + text("a") + b"\7" + bytes(4))]),
    "source flag": make(statements=[record("vyre.node.region", b"\x0b" + text("g") + b"\2" + bytes(4))]),
    "cast type": let(b"\x0d\x42" + U0),
    "vector of nothing": let(b"\x0d\x14\1\0" + U0),
    "bitcast to a vector": let(b"\x80" + text("vyre.py.bitcast") + text(b"\x14" + U0)),
}
UNKNOWN_OP = {
    "first record": make(first="vyre.node.return"),
    "unknown statement": make(statements=[record("vyre.node.jump", b"\5")]),
    "other statement": make(statements=[record("vyre.node.block", b"\5")]),
    "opaque under a statement's id": make(statements=[record("vyre.node.let", b"\x80" + text("k") + bytes(4))]),
    "second metadata": make(statements=[record("vyre.program.metadata", b"\5")]),
}
LIMIT = {
    "65 levels": let(b"\x0a\1" * 63 + U0),
    "predicate of 33 levels": one_buffer(buffer_meta(late=b"\3\0" + b"\x09" * 32 + b"\1" + bytes(4))),
    "65 levels of types": let(b"\x0d" + b"\x14" * 62 + b"\1" + b"\1" * 62 + U0),
    "65 levels of bitcasts": let(
        reduce(lambda inner, _: b"\x80" + text("vyre.py.bitcast") + text(b"\1" + inner), range(63), U0)
    ),
    "string": let(b"\3" + text("x" * ((1 << 20) + 1))),
    "arguments": let(b"\x0b" + text("f") + struct.pack("<I", 4097) + U0 * 4097),
    "record": make(statements=[record("vyre.node.return", b"\5" + bytes(4 << 20))]),
    "table entry": one_buffer(rows=row(shape=bytes(65))),
    "statements": make(
        statements=[record("vyre.node.block", b"\6" + struct.pack("<I", 1_000_001) + b"\5" * 1_000_001)]
    ),
    "buffers": make(meta()[:-1] + leb(16_385) + bytes(16_385)),
    "records": make(count=leb(1_000_002), trailing=bytes(1_000_002)),
    "blob": bytes((64 << 20) + 1),
}


@pytest.mark.parametrize(
    "kind, name",
    [
        (kind, name)
        for kind, cases in [("truncated", TRUNCATED), ("discriminant", MALFORMED), ("limit", LIMIT)]
        for name in cases
    ],
)
def test_a_malformed_blob_is_refused_for_its_reason(kind, name):
    blob = {"truncated": TRUNCATED, "discriminant": MALFORMED, "limit": LIMIT}[kind][name]
    with pytest.raises(WireError) as caught:
        decode(blob)
    assert caught.value.context["kind"] == kind
    assert type(caught.value) is WireError
    assert "Fix: " in str(caught.value)


@pytest.mark.parametrize("name", UNKNOWN_OP)
def test_a_record_must_hold_the_operation_it_names(name):
    with pytest.raises(WireUnknownOp) as caught:
        decode(UNKNOWN_OP[name])
    assert caught.value.diagnostic_code == "E-WIRE-UNKNOWN-OP"


def test_the_neighbours_of_the_limits_are_read():
    for blob in (
        let(b"\x0a\1" * 62 + U0),
        let(b"\x0d" + b"\x14" * 61 + b"\1" + b"\1" * 61 + U0),
        one_buffer(buffer_meta(late=b"\3\0" + b"\x09" * 31 + b"\1" + bytes(4))),
        let(b"\3" + text("x" * (1 << 20))),
        let(b"\x0b" + text("f") + struct.pack("<I", 4096) + U0 * 4096),
        one_buffer(buffer_meta(span=b"\1\0\4")),
        one_buffer(buffer_meta(span=b"\1\4\4")),
        let(b"\x0f\0\0\xc0\x7f"),
        let(b"\x0f\0\0\x80\x80"),
    ):
        assert encode(decode(blob)) == blob


@pytest.mark.parametrize("tag", DROPPED_TAGS)
def test_a_dropped_type_is_refused_by_name(tag):
    tail = {0x0D: b"", 0x13: bytes(4), 0x15: b"\1" + bytes(4), 0x1E: ONE + ONE}.get(tag, b"\1")
    for blob in (let(bytes([0x0D, tag]) + tail + U0), one_buffer(rows=row(element=tag))):
        with pytest.raises(WireError, match=f"the type {DROPPED_TAGS[tag]} is not supported"):
            decode(blob)


def test_buffer_references_are_unknown_to_revision_4():
    reference = encode(holding(BufferRef("a")), 5)
    assert decode(reference) == holding(BufferRef("a"))
    with pytest.raises(WireError, match="unknown expression"):
        decode(reseal(reference, rev=4))


def test_resume_is_refused_by_name():
    with pytest.raises(WireError, match="resume statements are not supported"):
        decode(MALFORMED["resume"])
    with pytest.raises(WireError, match="resume"):
        decode(make(statements=[record("vyre.node.block", b"\6" + ONE + b"\x0e" + text("t"))]))


# ---- the header -----------------------------------------------------------------------------------------------------


def test_the_header_is_checked_in_order():
    good = encode(STORE)
    wrong = bytearray(good)
    wrong[50] ^= 1
    with pytest.raises(WireError) as caught:
        decode(wrong)
    assert caught.value.context["kind"] == "integrity"
    assert caught.value.context["expected"] == good[8:40].hex()
    wrong[6] = 5
    with pytest.raises(WireError) as caught:
        decode(wrong)
    assert caught.value.context["kind"] == "flags"
    wrong[4] = 7
    with pytest.raises(WireVersionError) as caught:
        decode(wrong)
    assert (caught.value.context["found"], caught.value.context["expected"]) == (7, (4, 5, 6))
    wrong[0] = 0
    with pytest.raises(WireError) as caught:
        decode(wrong)
    assert caught.value.context["kind"] == "magic"


@pytest.mark.parametrize("flags", [0, 1, 2, 3, 5, 6, 7, 0x0104, 0xFFFF])
def test_only_one_combination_of_flags_is_read(flags):
    with pytest.raises(WireError) as caught:
        decode(make(flags=flags))
    assert caught.value.context["kind"] == "flags"


@pytest.mark.parametrize("rev", [0, 3, 7, 0x0104, 0xFFFF])
def test_other_revisions_are_not_read(rev):
    for call in (decode, revision):
        with pytest.raises(WireVersionError):
            call(make(rev=rev))


def test_a_blob_is_read_at_the_revision_it_names():
    assert [revision(encode(STORE, rev)) for rev in (4, 5, 6)] == [4, 5, 6]
    with pytest.raises(WireError):
        decode(reseal(encode(STORE, 6), rev=5))
