"""The binary form: pinned bytes, lossless round trips, and a refusal for everything that is not canonical."""

import array
import inspect
import itertools
import struct
import sys

import pytest
from hypothesis import given, settings

import vyre.foundation.ir.nodes as ir
from vyre.conform.programs.strategies import arbitrary_programs
from vyre.errors import ArgumentTypeError, ArgumentValueError, WireError, WireVersionError
from vyre.foundation.formats.blake3 import blake3
from vyre.foundation.formats.wire import decode, encode, layout, revision
from vyre.foundation.ir.dtypes import (
    QUANTIZED_STORAGE,
    SIMPLE,
    DataType,
    array_type,
    bool_,
    f32,
    f64,
    i32,
    i64,
    opaque_type,
    quantized_type,
    u8,
    u32,
    u64,
    vec_type,
)
from vyre.foundation.ir.nodes import (
    AllReduce,
    Assign,
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
    Loop,
    Node,
    Opaque,
    OpaqueNode,
    Region,
    Return,
    Store,
    SubgroupLocalId,
    SubgroupReduce,
    UnOp,
    Var,
    lit,
)
from vyre.foundation.ir.ops import NODE_IDS, AtomicOp, BinaryOp, CollectiveOp, OpaqueOp, Ordering, ReduceOp, UnaryOp
from vyre.foundation.ir.program import (
    Access,
    BufferDecl,
    Hints,
    LinearType,
    Locality,
    MemoryKind,
    Predicate,
    Program,
    output,
    read,
    read_write,
    workgroup,
    write_only,
)

OUT = read_write("out", 0, u32, 1)
EXT = 0x80000001


def word(value):
    return Lit(u32, value)


def program(*body, buffers=(OUT,), **options):
    return Program(buffers, (1, 1, 1), body, **options)


def entry(*nodes, buffers=()):
    return Program.of_entry(buffers, (1, 1, 1), nodes)


def holding(expr):
    return entry(Let("x", expr))


# ---- pinned bytes ---------------------------------------------------------------------------------------------------


def accumulate(count):
    return Let("acc", word(0)), Loop("i", word(0), word(count), [Assign("acc", Var("acc") + Var("i"))])


PINNED = {
    "trivial_const": program(Store("out", word(0), word(42))),
    "one_op_add": program(Store("out", word(0), word(1) + word(2))),
    "loop_add": program(*accumulate(4), Store("out", word(0), Var("acc"))),
    "composed_nested": program(Region("outer", [Region("inner", [Store("out", word(0), word(7))])])),
    "region_chain": program(
        Region(
            "vyre.intrinsics.math.accum",
            [
                *accumulate(3),
                Let("dial", Call("vyre-conform.test.identity_u32", [Var("acc")])),
                Store("out", word(0), Var("dial")),
            ],
        )
    ),
}


@pytest.mark.parametrize(
    "name, rev, digest",
    [
        ("trivial_const", 4, "c1f2ccf5754f0e561c767f6d6e2a847947d70e4bd0593b617d53f5aee5cc0428"),
        ("trivial_const", 6, "22325167b0cb84193a1d5cfe581e9e2f95fd5721a5cf3f4fd2fdd80d49dcf062"),
        ("one_op_add", 6, "c202412743128a5f2b944de76a272503b4244e3b009b440613e74cef56cd22ed"),
        ("loop_add", 6, "42042606253dd42ac84317e40997166aa3fb704c4a05ead4cce851f312ee6b4e"),
    ],
)
def test_bytes_hash_to_the_published_digest(name, rev, digest):
    assert blake3(encode(PINNED[name], rev)).hex() == digest


@pytest.mark.parametrize(
    "name, at_4, at_6",
    [
        ("trivial_const", 194, 197),
        ("one_op_add", 201, 204),
        ("loop_add", 254, 257),
        ("composed_nested", 197, 200),
        ("region_chain", 321, 324),
    ],
)
def test_lengths_are_the_published_ones(name, at_4, at_6):
    assert (len(encode(PINNED[name], 4)), len(encode(PINNED[name], 6))) == (at_4, at_6)


def test_every_byte_of_the_smallest_store_is_where_the_format_puts_it():
    u4 = struct.Struct("<I").pack
    metadata = (
        b"VYRE-META" + b"\0" + u4(1) * 3 + b"\0" + b"\1"  # no entry id, workgroup, not exclusive, one buffer
        + u4(3) + b"out" + u4(0) + u4(1) + b"\0\0\0"  # name, slot, count, not output, not live, no range
        + b"\0" + u4(0) + b"\1"  # no axis, no alignment, temporal
    )  # fmt: skip
    region = (
        b"\x0b" + u4(17) + b"vyre.program.root" + b"\0" + u4(1)  # generator, no source, one statement
        + b"\2" + u4(3) + b"out" + b"\0" + u4(0) + b"\0" + u4(42)  # store, index, value
    )  # fmt: skip
    body = (
        b"\2"
        + b"\x15vyre.program.metadata" + b"\x30" + metadata + b"\0"
        + b"\x10vyre.node.region" + b"\x2d" + region + b"\0"
        + b"\1" + b"\0\0\1\1\0" + b"\1\1" + b"\6\0" + u4(0) + b"\1"  # global, read-write, u32, dense, count, hints
        + b"\1\0"
    )  # fmt: skip
    digest = bytes.fromhex("d04e8f0c08a8696c364423ba2b8cd3d9d103526f1253f035ee6ee78adf464f5e")
    assert encode(PINNED["trivial_const"], 4) == b"VYRE" + b"\4\0" + b"\4\0" + digest + body


def test_wide_literals_and_bitcasts_are_opaque_kinds():
    def payload_of(expr):
        blob = encode(holding(expr))
        kind = next(k for k in sorted(layout.KNOWN_KINDS) if k.encode() in blob)
        start = blob.index(kind.encode()) + len(kind)
        size = int.from_bytes(blob[start : start + 4], "little")
        return kind, blob[start + 4 : start + 4 + size]

    assert payload_of(Lit(u64, 1 << 63)) == ("vyre.literal.u64", bytes(7) + b"\x80")
    assert payload_of(lit(-2, i64)) == ("vyre.literal.i64", b"\xfe" + b"\xff" * 7)
    assert payload_of(lit(1.0, f64)) == ("vyre.literal.f64", struct.pack("<d", 1.0))
    assert payload_of(Bitcast(f32, Lit(u32, 5))) == ("vyre.py.bitcast", b"\x0b\0\5\0\0\0")


# ---- the layout covers the IR ---------------------------------------------------------------------------------------


def test_every_class_of_the_ir_has_exactly_one_row_with_all_its_fields():
    classes = {c for c in vars(ir).values() if isinstance(c, type) and issubclass(c, Expr | Node)} - {Expr, Node}
    rows = [*layout.EXPRS.values(), *layout.NODES.values()]
    listed = [cls for cls, _ in rows]
    assert len(listed) == len(set(listed))
    assert classes - set(listed) == {Lit, Bitcast, Opaque}  # spelt by content: literal tags and opaque kinds
    for cls, row in rows:
        assert {name for name, _ in row} == set(cls.compared), cls
    assert {cls.__name__ for cls, _ in layout.NODES.values()} == {*NODE_IDS, "OpaqueNode"}


# ---- round trips ----------------------------------------------------------------------------------------------------


@given(arbitrary_programs())
@settings(max_examples=300, deadline=None)
def test_a_program_survives_the_round_trip_with_its_buffer_order(p):
    blob = encode(p)
    again = decode(blob)
    assert again == p
    assert again.buffers == p.buffers
    assert encode(again) == blob
    assert revision(blob) == 6


@given(arbitrary_programs())
@settings(max_examples=200, deadline=None)
def test_older_revisions_round_trip_whatever_they_can_write(p):
    for rev, dialect in [(4, None), (4, "4b"), (5, None)]:
        try:
            blob = encode(p, rev, dialect)
        except WireError:  # a field, operator or reference of a later revision
            continue
        assert revision(blob) == rev
        assert decode(blob, dialect) == p
        assert encode(decode(blob, dialect), rev, dialect) == blob


EVERY_TYPE = [
    *SIMPLE.values(),
    array_type(0),
    array_type(0xFFFFFFFF),
    opaque_type(EXT),
    *(
        quantized_type(t, scale, zero)
        for t, scale, zero in itertools.product(
            QUANTIZED_STORAGE[:2],
            [("per_tensor", 0), ("per_channel", 0xFFFFFFFF), ("per_group", 1)],
            [None, ("per_tensor", 0), ("per_channel", 0), ("per_group", 0xFFFFFFFF)],
        )
    ),
]


@pytest.mark.parametrize("dtype", EVERY_TYPE, ids=str)
def test_every_type_round_trips_as_an_element_and_as_a_cast_target(dtype):
    p = entry(Let("x", Cast(dtype, word(1))), Let("y", Cast(vec_type(dtype, 255), word(1))))
    p = p.replace(buffers=[read("a", 0, dtype), read("b", 1, dtype, 9)])
    assert decode(encode(p)) == p
    assert decode(encode(p)).buffers == p.buffers


FULL_DECL = BufferDecl(
    "β",
    0xFFFFFFFF,
    Access.WRITE_ONLY,
    u8,
    0xFFFFFFFF,
    kind=MemoryKind.PERSISTENT,
    is_output=True,
    live_out=True,
    output_byte_range=(5, 0xFFFFFFFF),
    hints=Hints(255, 0xFFFFFFFF, Locality.RANDOM),
    bytes_extraction=True,
    linear_type=LinearType.LINEAR,
    shape_predicate=Predicate(
        "and",
        [
            Predicate("not", [Predicate("affine", [-(1 << 63), (1 << 63) - 1, -1, 0])]),
            Predicate("or", [Predicate("mod_equals", [3, 2]), Predicate("at_least", [7])]),
        ],
    ),
)


def test_every_field_of_a_buffer_and_of_the_program_round_trips_at_its_extremes():
    p = Program.of_entry([FULL_DECL], (1, 2, 0xFFFFFFFF), [], op_id="demo.op", exclusive=True)
    again = decode(encode(p))
    assert again == p
    assert again.buffers[0].shape_predicate == FULL_DECL.shape_predicate
    assert (again.entry_op_id, again.exclusive, again.workgroup_size) == ("demo.op", True, (1, 2, 0xFFFFFFFF))


def test_a_range_of_a_buffer_sized_at_dispatch_may_be_any_64_bits():
    p = program(buffers=[read_write("a", 0, u32).replace(output_byte_range=(0, (1 << 64) - 1))])
    assert decode(encode(p)) == p


def test_a_shared_operand_costs_its_bytes_and_not_its_tree():
    expr = Var("x")
    for _ in range(16):
        expr = expr ^ expr
    assert len(encode(holding(expr))) > 6 << 16  # 65,536 leaves written by 16 steps
    for _ in range(40):
        expr = expr ^ expr
    with pytest.raises(WireError, match="a record is too large"):
        encode(holding(expr))


def test_a_program_of_a_hundred_thousand_levels_is_refused_without_recursion():
    expr = Var("x")
    for _ in range(100_000):
        expr = -expr
    with pytest.raises(WireError, match="nested too deeply"):
        encode(holding(expr))
    node = Return()
    for _ in range(100_000):
        node = Block([node])
    with pytest.raises(WireError, match="nested too deeply"):
        encode(entry(node))


# ---- limits: one inside, one outside --------------------------------------------------------------------------------


def tower(levels, leaf=None):
    expr = word(0) if leaf is None else leaf
    for _ in range(levels - 1):
        expr = -expr
    return expr


def casts(levels):
    """A cast at level 2 whose type takes `levels` levels from 3 on."""
    t = u32
    for _ in range(levels - 1):
        t = vec_type(t, 1)
    return holding(Cast(t, word(0)))


def blocks(levels):
    node = Return()
    for _ in range(levels - 1):
        node = Block([node])
    return entry(node)


def bitcasts(levels):
    expr = word(0)
    for _ in range(levels - 2):
        expr = Bitcast(u32, expr)
    return holding(expr)


def predicates(levels):
    p = Predicate("exactly", [1])
    for _ in range(levels - 1):
        p = Predicate("not", [p])
    return program(buffers=[OUT.replace(shape_predicate=p)])


FITS_AND_DOES_NOT = {
    "expression levels": (lambda n: holding(tower(n)), 63),
    "statement levels": (blocks, 64),
    "type levels": (casts, 62),
    "bitcast levels": (bitcasts, 64),
    "predicate levels": (predicates, 32),
    "a part that is met again deeper": (lambda n: entry(Block([Let("x", e := tower(4)), Let("y", tower(n, e))])), 59),
    "string bytes": (lambda n: holding(Var("x" * n)), 1 << 20),
    "call arguments": (lambda n: holding(Call("f", [word(0)] * n)), 4096),
    "buffers": (lambda n: program(buffers=[read("b", i, u32) for i in range(n)]), 16_384),
    "record bytes": (lambda n: entry(OpaqueNode("k", bytes(n - 10))), 4 << 20),
    "payload bytes": (lambda n: holding(Opaque("k", bytes(n - 16))), 4 << 20),
    "statements of a list": (lambda n: entry(Block([Return()] * n)), 1_000_000),
    "count bits": (lambda n: program(buffers=[read("b", 0, u8, n)]), 0xFFFFFFFF),
    "offset bits": (lambda n: entry(IndirectDispatch("b", n)), (1 << 64) - 1),
}


@pytest.mark.parametrize("name", FITS_AND_DOES_NOT)
def test_a_limit_is_met_exactly(name):
    make, limit = FITS_AND_DOES_NOT[name]
    p = make(limit)
    assert decode(encode(p)) == p
    with pytest.raises(WireError) as caught:
        encode(make(limit + 1))
    assert caught.value.context["kind"] == "encode"
    assert "Fix: " in str(caught.value)


def test_an_entry_of_over_a_million_statements_is_refused():
    encode(entry(*[Return()] * 1000))
    with pytest.raises(WireError, match="too many statements"):
        encode(entry(*[Return()] * 1_000_001))


def test_a_payload_over_its_limit_is_refused_before_the_record_is_measured():
    with pytest.raises(WireError, match="an opaque payload is too long"):
        encode(entry(OpaqueNode("k", bytes((4 << 20) + 1))))


def test_a_program_over_64_mib_is_refused():
    nodes = [OpaqueNode("k", bytes(4 << 20 >> 1))] * 33
    with pytest.raises(WireError, match="too large for the wire format"):
        encode(entry(*nodes))


# ---- what the writer refuses ----------------------------------------------------------------------------------------

A = read_write("a", 0, u32, 4)
REFUSED = {
    "slot below zero": program(buffers=[A.replace(binding=-1)]),
    "slot that is text": program(buffers=[A.replace(binding="x")]),
    "slot that is a bool": program(buffers=[A.replace(binding=True)]),
    "slot that is a float": program(buffers=[A.replace(binding=1.0)]),
    "name that is not text": program(buffers=[A.replace(name=7)]),
    "name that is None": program(buffers=[A.replace(name=None)]),
    "name of a str subclass": holding(Var(type("Name", (str,), {})("x"))),
    "lone surrogate": holding(Var("\ud800")),
    "flag that is an int": program(buffers=[A.replace(is_output=1)]),
    "exclusive that is an int": Program((), (1, 1, 1), (), exclusive=1),
    "entry id that is not text": Program((), (1, 1, 1), (), op_id=3),
    "kind that is not one": program(buffers=[A.replace(kind=3)]),
    "hints that are not": program(buffers=[A.replace(hints=(None, 0))]),
    "hint axis": program(buffers=[A.replace(hints=Hints(256))]),
    "hint alignment": program(buffers=[A.replace(hints=Hints(None, -1))]),
    "hint locality": program(buffers=[A.replace(hints=Hints(None, 0, 1))]),
    "linear type": program(buffers=[A.replace(linear_type=3)]),
    "predicate kind": program(buffers=[A.replace(shape_predicate=Predicate("at_best", [1]))]),
    "predicate arity": program(buffers=[A.replace(shape_predicate=Predicate("at_most", [1, 2]))]),
    "predicate number": program(buffers=[A.replace(shape_predicate=Predicate("at_most", [-1]))]),
    "predicate wide number": program(buffers=[A.replace(shape_predicate=Predicate("affine", [1 << 63, 0, 0, 0]))]),
    "predicate operand": program(buffers=[A.replace(shape_predicate=Predicate("not", [3]))]),
    "predicate that is not": program(buffers=[A.replace(shape_predicate="x")]),
    "not a buffer": program(buffers=["a"]),
    "not an element": program(buffers=[A.replace(element="u32")]),
    "workgroup axis 0": Program((), (1, 0, 1), ()),
    "workgroup axis below 0": Program((), (1, 1, -1), ()),
    "workgroup axis too large": Program((), (1 << 32, 1, 1), ()),
    "workgroup memory without count": program(buffers=[workgroup("a", u32, 0)]),
    "output without count": program(buffers=[output("a", 0, u32, 0)]),
    "output flag without count": program(buffers=[A.replace(count=0, is_output=True)]),
    "live flag without count": program(buffers=[A.replace(count=0, live_out=True)]),
    "range backwards": program(buffers=[A.replace(output_byte_range=(3, 2))]),
    "range past the end": program(buffers=[A.replace(output_byte_range=(0, 17))]),
    "range below zero": program(buffers=[A.replace(output_byte_range=(-1, 2))]),
    "range of one number": program(buffers=[A.replace(output_byte_range=(1,))]),
    "vector element": program(buffers=[A.replace(element=vec_type(u32, 4))]),
    "tensor element": program(buffers=[A.replace(element=DataType("tensor", 0x0D, None))]),
    "invented type": holding(Cast(DataType("u32", 1, 31), word(0))),
    "invented tag": holding(Cast(DataType("u33", 0x42, 33), word(0))),
    "array type": holding(Cast(array_type(1 << 32), word(0))),
    "array type of text": holding(Cast(DataType("array", 0x08, 8, ("x",)), word(0))),
    "vector of nothing": holding(Cast(vec_type(u32, 0), word(0))),
    "vector of 256": holding(Cast(vec_type(u32, 256), word(0))),
    "vector of text": holding(Cast(DataType("vec", 0x14, 8, ("x", 1)), word(0))),
    "extension type without high bit": holding(Cast(opaque_type(1), word(0))),
    "scale name": holding(Cast(quantized_type(u8, ("per_row", 0)), word(0))),
    "tensor scale with parameter": holding(Cast(quantized_type(u8, ("per_tensor", 1)), word(0))),
    "group of 0": holding(Cast(quantized_type(u8, ("per_group", 0)), word(0))),
    "channel below 0": holding(Cast(quantized_type(u8, ("per_channel", -1)), word(0))),
    "zero point": holding(Cast(quantized_type(u8, ("per_tensor", 0), ("per_group", 0)), word(0))),
    "type that is not": holding(Cast("u32", word(0))),
    "literal too wide": holding(Lit(u32, 1 << 32)),
    "literal below zero": holding(Lit(i32, -1)),
    "literal that is a float": holding(Lit(f32, 1.0)),
    "literal that is a bool": holding(Lit(bool_, True)),
    "bool literal": holding(Lit(bool_, 2)),
    "wide literal": holding(Lit(u64, 1 << 64)),
    "literal of a narrow type": holding(Lit(u8, 1)),
    "literal of no type": holding(Lit("u32", 1)),
    "negative zero": holding(Lit(f32, 0x80000000)),
    "subnormal": holding(Lit(f32, 1)),
    "negative subnormal": holding(Lit(f32, 0x807FFFFF)),
    "other NaN": holding(Lit(f32, 0x7FC00001)),
    "negative NaN": holding(Lit(f32, 0xFFC00000)),
    "axis 3": holding(InvocationId(3)),
    "axis below 0": holding(InvocationId(-1)),
    "axis that is text": holding(InvocationId("x")),
    "operator of the wrong kind": holding(BinOp(UnaryOp.NEGATE, word(0), word(0))),
    "operator that is text": holding(UnOp("-", word(0))),
    "extension operator without high bit": holding(UnOp(OpaqueOp(5), word(0))),
    "extension operator that is text": holding(UnOp(OpaqueOp("x"), word(0))),
    "ordering": entry(Barrier(4)),
    "reduction": holding(SubgroupReduce(BinaryOp.ADD, word(0))),
    "collective": entry(AllReduce("a", ReduceOp.ADD, 0)),
    "group": entry(AllReduce("a", CollectiveOp.SUM, 1 << 32)),
    "root": entry(Broadcast("a", None, 0)),
    "expression that is a number": holding(5),
    "expression that is a statement": holding(Return()),
    "statement that is an expression": entry(Block([word(1)])),
    "statement that is a known expression": entry(Block([Let("x", e := tower(3)), e])),
    "statement that is text": entry("return"),
    "entry that is a number": entry(5),
    "base class as expression": holding(Expr()),
    "payload that is text": holding(Opaque("k", "x")),
    "payload of a statement": entry(OpaqueNode("k", "x")),
    "kind of a statement": entry(OpaqueNode(5, b"")),
    "bitcast target": holding(Bitcast(vec_type(u32, 2), word(0))),
    "bitcast to text": holding(Bitcast("f32", word(0))),
    "known kind u64": holding(Opaque("vyre.literal.u64", bytes(8))),
    "known kind i64": holding(Opaque("vyre.literal.i64", bytes(8))),
    "known kind f64": holding(Opaque("vyre.literal.f64", bytes(8))),
    "known kind bitcast": holding(Opaque("vyre.py.bitcast", b"\1\x14")),
    "offset": entry(IndirectDispatch("a", -1)),
    "argument": holding(Call("f", [None])),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_bytes_is_refused_by_the_writer(name):
    for rev in (4, 5, 6):
        with pytest.raises(WireError) as caught:
            encode(REFUSED[name], rev)
        assert caught.value.context["kind"] == "encode"
        assert "Fix: " in str(caught.value)


def test_a_refusal_names_the_field_or_the_buffer():
    with pytest.raises(WireError) as caught:
        encode(entry(Store("a", word(0), Load("b", 3))))
    assert caught.value.context["field"] == "Load.index"
    with pytest.raises(WireError) as caught:
        encode(REFUSED["slot below zero"])
    assert caught.value.context["buffer"] == "a"


@pytest.mark.parametrize("rev", [0, 3, 7, True, "6", None, 6.0])
def test_other_revisions_are_not_written(rev):
    with pytest.raises(WireVersionError) as caught:
        encode(Program.empty(), rev)
    assert caught.value.diagnostic_code == "E-WIRE-VERSION"


def test_only_programs_are_written():
    with pytest.raises(ArgumentTypeError, match="has no wire form"):
        encode("program")


@pytest.mark.parametrize(
    "change",
    [
        {"bytes_extraction": True},
        {"linear_type": LinearType.AFFINE},
        {"shape_predicate": Predicate("at_least", [1])},
    ],
)
def test_what_revision_6_brought_is_not_dropped_silently_by_5_and_4(change):
    p = program(buffers=[OUT.replace(**change)])
    assert decode(encode(p, 6)) == p
    for rev in (4, 5):
        with pytest.raises(WireError, match="do not exist before revision 6"):
            encode(p, rev)


def test_buffer_references_begin_with_revision_5():
    p = holding(Call("f", [BufferRef("a")]))
    assert decode(encode(p, 5)) == p
    with pytest.raises(WireError, match="do not exist before revision 5"):
        encode(p, 4)


def test_revision_4_knows_sums_of_subgroups_and_its_dialect_every_reduction():
    add, largest = (holding(SubgroupReduce(op, word(7))) for op in (ReduceOp.ADD, ReduceOp.MAX))
    assert len(encode(add, 4)) + 1 == len(encode(add, 4, "4b")) == len(encode(add, 5))
    assert decode(encode(add, 4)) == add
    assert decode(encode(largest, 4, "4b"), "4b") == largest
    with pytest.raises(WireError, match="knows only sums"):
        encode(largest, 4)
    with pytest.raises(WireError):
        decode(encode(largest, 4, "4b"))
    assert decode(encode(largest, 6, "4b"), "4b") == largest  # the dialect concerns revision 4 alone


def test_an_unknown_dialect_is_refused():
    for call in (lambda: encode(Program.empty(), 4, "4c"), lambda: decode(encode(Program.empty()), "4c")):
        with pytest.raises(ArgumentValueError, match="unknown dialect"):
            call()


# ---- what may be given ----------------------------------------------------------------------------------------------


def test_every_bytes_like_object_is_read():
    p = PINNED["loop_add"]
    blob = encode(p)
    spread = bytes(itertools.chain.from_iterable((b, 0) for b in blob))
    for given_as in (bytearray(blob), memoryview(blob), memoryview(spread)[::2], array.array("B", blob)):
        assert decode(given_as) == p
        assert revision(given_as) == 6


@pytest.mark.parametrize("thing", ["VYRE", None, 5, [86, 89], object()])
def test_what_is_not_bytes_like_is_a_type_error(thing):
    for call in (decode, revision):
        with pytest.raises(ArgumentTypeError, match="cannot be read as bytes"):
            call(thing)


def test_a_released_view_is_a_type_error():
    view = memoryview(b"VYRE")
    view.release()
    with pytest.raises(ArgumentTypeError):
        decode(view)


def test_a_caller_that_has_used_up_the_stack_gets_a_wire_error():
    blob = encode(blocks(64))

    def deep(levels):
        return deep(levels - 1) if levels else decode(blob)

    room = sys.getrecursionlimit() - len(inspect.stack())
    assert deep(10) == blocks(64)
    with pytest.raises(WireError, match="the caller's stack has no room"):
        deep(room - 80)


def test_program_methods_go_through_the_wire():
    p = PINNED["trivial_const"]
    assert Program.from_wire(p.to_wire()) == p
    assert len(p.to_wire(rev=4)) == 194


def test_statements_and_expressions_of_one_byte_are_shared():
    again = decode(encode(entry(Block([Return(), Return()]), Let("x", SubgroupLocalId()))))
    first, second = again.entry[0].body
    assert first is second


def test_hints_of_builders_are_not_on_the_wire():
    typed = holding(Load("a", Var("i", dtype=u32), dtype=f32))
    assert encode(typed) == encode(holding(Load("a", Var("i"))))


def test_cases_that_look_alike_stay_apart():
    cases = [
        holding(Atomic(AtomicOp.ADD, "a", word(0), word(1))),
        holding(Atomic(AtomicOp.ADD, "a", word(0), word(1), word(2))),
        holding(Atomic(AtomicOp.ADD, "a", word(0), word(1), ordering=Ordering.RELAXED)),
        holding(BufLen("a")),
        holding(BufferRef("a")),
        holding(Opaque("a", b"")),
        holding(Fma(Lit(f32, 0), Lit(f32, 0), Lit(f32, 0x3F800000))),
        entry(Let("x", word(0)), AsyncWait("t")),
        entry(If(word(1), [Return()])),
        entry(If(word(1), [], [Return()])),
        entry(Region("g", [])),
        entry(Region("g", [], "")),
        program(buffers=[write_only("a", 0, u32, 1)]),
        program(buffers=[read_write("a", 0, u32, 1)]),
    ]
    blobs = [encode(p) for p in cases]
    assert len(set(blobs)) == len(cases)
    assert [decode(b) for b in blobs] == cases
