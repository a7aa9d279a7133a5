"""The fingerprint sees everything a program means, and nothing of how it was written down."""

import os
import random
import struct
import subprocess
import sys
from enum import Enum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vyre.foundation.ir.nodes as ir
from vyre.conform.programs.strategies import arbitrary_programs
from vyre.conform.programs.wire_noise import every_class
from vyre.errors import WireError, WireVersionError
from vyre.foundation.formats.blake3 import blake3
from vyre.foundation.formats.canon import canonicalize, fingerprint, vsa_fingerprint
from vyre.foundation.formats.wire import decode, encode, layout
from vyre.foundation.formats.wire.write import Writer
from vyre.foundation.ir.dtypes import DataType, bool_, f32, i32, u8, u32, u64, vec_type
from vyre.foundation.ir.nodes import (
    Atomic,
    BinOp,
    Bitcast,
    Block,
    Call,
    Cast,
    Expr,
    If,
    InvocationId,
    Let,
    Lit,
    Load,
    Node,
    Opaque,
    Region,
    Return,
    Store,
    UnOp,
    Var,
)
from vyre.foundation.ir.ops import AtomicOp, BinaryOp, OpaqueOp, UnaryOp
from vyre.foundation.ir.program import Access, BufferDecl, Hints, MemoryKind, Predicate, Program, read, read_write
from vyre.foundation.ir.value import Value
from vyre.foundation.ir.visit import rewrite, walk, walk_exprs

# The rule, written a second time.
COMMUTING = {
    BinaryOp.ADD, BinaryOp.WRAPPING_ADD, BinaryOp.SATURATING_ADD, BinaryOp.MUL, BinaryOp.SATURATING_MUL,
    BinaryOp.BIT_AND, BinaryOp.BIT_OR, BinaryOp.BIT_XOR, BinaryOp.EQ, BinaryOp.NE, BinaryOp.AND, BinaryOp.OR,
    BinaryOp.MIN, BinaryOp.MAX, BinaryOp.ABS_DIFF,
}  # fmt: skip
KEPT = {BinaryOp.ADD, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX}
LITERAL_TYPES = (u32, i32, f32, bool_)
A, B = Load("a", Lit(u32, 0)), Load("b", Lit(u32, 0))


def word(value):
    return Lit(u32, value)


def holding(*exprs):
    return Program.of_entry((), (1, 1, 1), [Let("x", e) for e in exprs])


def ordered(expr):
    (node,) = canonicalize(holding(expr)).entry
    return node.value


def is_literal(e):
    return isinstance(e, Lit) and e.dtype in LITERAL_TYPES


def may_swap(e):
    if not isinstance(e, BinOp) or e.op not in COMMUTING:
        return False
    if any(isinstance(part, Atomic | Call | Opaque) for part in walk_exprs(e)):
        return False
    return is_literal(e.left) or is_literal(e.right) or e.op not in KEPT


# ---- operands -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", BinaryOp)
def test_a_literal_moves_right_of_what_is_not_one_exactly_where_the_operator_commutes(op):
    assert op.commutes == (op in COMMUTING)
    for value in (word(7), Lit(i32, 7), Lit(f32, 0), Lit(bool_, 1)):
        right, left = BinOp(op, A, value), BinOp(op, value, A)
        assert ordered(right) == right
        assert ordered(left) == (right if op in COMMUTING else left)


@pytest.mark.parametrize("op", sorted(COMMUTING, key=lambda op: op.tag))
def test_two_literals_go_in_the_order_of_their_bytes(op):
    assert ordered(BinOp(op, word(2), word(1))) == BinOp(op, word(1), word(2))
    assert ordered(BinOp(op, word(1), word(2))) == BinOp(op, word(1), word(2))
    # Little-endian: 256 is 00 01, which precedes 01 00; and the tag precedes the bits, so f32 comes last.
    assert ordered(BinOp(op, word(1), word(256))) == BinOp(op, word(256), word(1))
    assert ordered(BinOp(op, Lit(f32, 0), Lit(bool_, 1))) == BinOp(op, Lit(bool_, 1), Lit(f32, 0))


@pytest.mark.parametrize("op", sorted(COMMUTING, key=lambda op: op.tag))
def test_other_operands_are_sorted_but_for_the_four_that_keep_their_order(op):
    assert ordered(BinOp(op, A, B)) == BinOp(op, A, B)
    assert ordered(BinOp(op, B, A)) == (BinOp(op, B, A) if op in KEPT else BinOp(op, A, B))


@pytest.mark.parametrize(
    "effect",
    [
        Atomic(AtomicOp.ADD, "a", word(0), word(1)),
        Call("f", [word(1)]),
        Opaque("k", b""),
        Load("b", Atomic(AtomicOp.ADD, "a", word(0), word(1))),
        Bitcast(u32, Cast(u32, Call("f", []))),
    ],
)
def test_an_operand_with_effects_never_moves(effect):
    for e in (
        BinOp(BinaryOp.BIT_XOR, effect, A),
        BinOp(BinaryOp.BIT_XOR, A, effect),
        word(1) + effect,
        effect ^ effect,
    ):
        assert ordered(e) == e
    inside = Call("f", [word(1) + A, Var("y")])  # but what is inside one is ordered
    assert ordered(inside) == Call("f", [A + word(1), Var("y")])


def test_wide_literals_and_bitcasts_are_ordinary_operands():
    wide = Lit(u64, 5)
    assert ordered(wide + A) == wide + A
    assert ordered(wide & A) == A & wide  # 0x80 follows every other tag
    assert ordered(wide & Lit(u64, 4)) == Lit(u64, 4) & wide
    assert ordered(word(1) & wide) == BinOp(BinaryOp.BIT_AND, wide, word(1))
    assert ordered(Bitcast(u32, A) ^ B) == B ^ Bitcast(u32, A)


def test_operands_are_ordered_inside_out():
    inner = word(1) & A
    assert ordered((B ^ A) ^ inner) == (A & word(1)) ^ (A ^ B)
    assert ordered(UnOp(UnaryOp.NEGATE, inner)) == UnOp(UnaryOp.NEGATE, A & word(1))


def test_an_operator_of_an_extension_is_left_alone():
    e = BinOp(OpaqueOp(0x80000001), word(1), A)
    assert ordered(e) == e


# ---- blocks and buffers ---------------------------------------------------------------------------------------------


def test_a_block_is_dissolved_unless_it_declares():
    store, declare = Store("a", word(0), word(1)), Let("x", word(1))
    p = Program.of_entry(
        (),
        (1, 1, 1),
        [Block([store, Block([Block([]), Block([declare])])]), If(word(1), [Block([store])], [Block([declare])])],
    )
    assert canonicalize(p).entry == (store, Block([declare]), If(word(1), [store], [Block([declare])]))


def test_a_region_is_kept_with_its_name():
    p = Program.of_entry((), (1, 1, 1), [Region("g", [Region("h", [])])])
    assert canonicalize(p) == p


def test_buffers_go_by_the_bytes_of_their_key():
    names = ["b", "a", "aa", "x" * 256, "x" * 255]
    p = Program([read(n, i, u32) for i, n in enumerate(names)], (1, 1, 1), [])
    # The length comes first and its low byte before its high byte, so 256 precedes 1.
    assert [b.name for b in canonicalize(p).buffers] == ["x" * 256, "a", "b", "aa", "x" * 255]


def test_buffers_of_one_name_go_by_the_other_fields():
    base = BufferDecl("a", 3, Access.READ_WRITE, u32, 4)
    later = [
        base.replace(binding=4),
        base.replace(access=Access.UNIFORM, kind=base.kind),
        base.replace(kind=MemoryKind.LOCAL),
        base.replace(element=i32),
        base.replace(count=5),
        base.replace(is_output=True),
        base.replace(live_out=True),
        base.replace(output_byte_range=(0, 1)),
        base.replace(hints=Hints(0)),
        base.replace(bytes_extraction=True),
    ]
    for other in later:
        for pair in ([base, other], [other, base]):
            assert canonicalize(Program(pair, (1, 1, 1), [])).buffers == (base, other)
    push, persistent = base.replace(kind=MemoryKind.PUSH), base.replace(kind=MemoryKind.PERSISTENT)
    assert canonicalize(Program([push, persistent], (1, 1, 1), [])).buffers == (persistent, push)


# ---- fingerprints ---------------------------------------------------------------------------------------------------


def test_the_fingerprint_is_the_digest_of_the_canonical_bytes():
    p = Program([read_write("b", 1, u32), read("a", 0, u32)], (1, 1, 1), [Let("x", word(1) & A)])
    assert p.fingerprint == fingerprint(p) == blake3(encode(canonicalize(p))).hex()
    assert p.fingerprint != blake3(encode(p)).hex()
    assert len(p.fingerprint) == 64
    assert bytes.fromhex(p.fingerprint) == struct.pack("<8I", *vsa_fingerprint(p))


def test_small_programs_are_their_own_canonical_form():
    out, queue = read_write("out", 0, u32, 1), read_write("queue_len", 0, u32, 1)
    frontier = read_write("frontier_out", 0, u32, 2)
    store = Store("frontier_out", InvocationId(0), word(0))
    trivial = Program([out], (1, 1, 1), [Store("out", word(0), word(42))])
    for p in (
        trivial,
        Program([queue], (1, 1, 1), [Store("queue_len", word(0), word(0))]),
        Program([frontier], (256, 1, 1), [If(BinOp(BinaryOp.LT, InvocationId(0), word(2)), [store])]),
    ):
        assert canonicalize(p) == p
        assert p.fingerprint == blake3(encode(p)).hex()
    assert trivial.fingerprint == "22325167b0cb84193a1d5cfe581e9e2f95fd5721a5cf3f4fd2fdd80d49dcf062"
    assert trivial.fingerprint_at(6) == trivial.fingerprint
    assert trivial.fingerprint_at(4) == "c1f2ccf5754f0e561c767f6d6e2a847947d70e4bd0593b617d53f5aee5cc0428"


def test_a_program_without_bytes_has_no_fingerprint():
    deep = A
    for _ in range(100_000):
        deep = deep ^ A
    for p in (holding(deep), holding(word(1) + 5).replace(entry=[Let("x", 5)]), holding(Lit(f32, 1))):
        with pytest.raises(WireError):
            _ = p.fingerprint
        with pytest.raises(WireError):
            canonicalize(p)
    with pytest.raises(WireVersionError):
        holding(A).fingerprint_at(3)


def test_a_shared_operand_is_ordered_once():
    shared = word(1) & A
    for _ in range(15):
        shared = shared ^ shared  # 32,768 leaves
    assert len(holding(shared).fingerprint) == 64


def test_forgetting_bytes_written_earlier_changes_no_order(monkeypatch):
    writer = Writer(6)
    exprs = [A ^ B, (A ^ B) ^ A, A]
    first = [writer.expr_bytes(e) for e in exprs]
    monkeypatch.setattr(layout, "MAX_PROGRAM_BYTES", 1)  # every call now begins anew
    assert [writer.expr_bytes(e) for e in [*exprs, B, *exprs]][-3:] == first
    assert len(writer.out) < sum(map(len, first))


@given(arbitrary_programs())
@settings(max_examples=200, deadline=None)
def test_canonical_form_is_reached_in_one_step_and_round_trips(p):
    once = canonicalize(p)
    twice = canonicalize(once)
    assert twice == once
    assert twice.buffers == once.buffers
    assert decode(encode(once)).fingerprint == p.fingerprint
    for e in walk(once.entry):
        if may_swap(e):
            assert not (is_literal(e.left) and not is_literal(e.right))


@given(arbitrary_programs(), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_order_of_buffers_swapped_operands_and_blocks_are_not_seen(p, rng):
    def swap(e):
        return BinOp(e.op, e.right, e.left) if may_swap(e) and rng.random() < 0.5 else e

    def wrap(node):
        if isinstance(node, Let) or rng.random() < 0.5:
            return node
        return [Block([]), Block([node])]

    buffers = list(p.buffers)
    rng.shuffle(buffers)
    other = p.replace(buffers=buffers, entry=rewrite(p.entry, expr=swap, node=wrap))
    assert other.fingerprint == p.fingerprint


# ---- every field is seen --------------------------------------------------------------------------------------------

OTHER_KIND = {"at_least": "at_most", "and": "or"}


def others(value, name=""):
    """Values that differ from this one in exactly one place."""
    if isinstance(value, DataType):
        yield vec_type(u8, 2) if name == "target" and value != f32 else i32 if value == u64 else u64
    elif isinstance(value, Value):
        for field in value.compared:
            yield from (value.replace(**{field: v}) for v in others(getattr(value, field), field))
        if isinstance(value, Expr):
            yield Var("other")
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, str):
        yield OTHER_KIND.get(value, value + "'")
    elif isinstance(value, bytes):
        yield value + b"\0"
    elif isinstance(value, Enum):
        members = list(type(value))
        yield members[(members.index(value) + 1) % len(members)]
    elif isinstance(value, tuple):
        for k, item in enumerate(value):
            yield from ((*value[:k], v, *value[k + 1 :]) for v in others(item))
        if value and isinstance(value[0], Expr):
            yield (*value, Var("v"))
        if value and isinstance(value[0], Node):
            yield (*value, Return())
            yield value[:-1]
    elif value is None:
        yield {
            "expected": Var("v"), "source_region": "", "output_byte_range": (0, 4), "coalesce_axis": 0,
            "shape_predicate": Predicate("exactly", [1]),
        }[name]  # fmt: skip


def test_the_sample_holds_every_class():
    classes = {c for c in vars(ir).values() if isinstance(c, type) and issubclass(c, Expr | Node)} - {Expr, Node}
    assert {type(item) for item in walk(every_class().entry)} == classes


def test_any_single_change_changes_the_fingerprint():
    p = every_class()
    changed = [p.replace(entry=e) for e in others(p.entry)]
    changed += [p.replace(buffers=b) for b in others(p.buffers)]
    changed += [p.replace(workgroup_size=w) for w in others(p.workgroup_size)]
    changed += [p.replace(op_id="other"), p.replace(op_id=None), p.replace(exclusive=True)]
    changed += [p.replace(buffers=p.buffers[:1]), p.replace(entry=p.entry * 2)]
    seen, refused = {p.fingerprint: p}, []
    for q in changed:
        try:
            name = q.fingerprint
        except WireError:
            refused.append(q)
            continue
        assert name not in seen, (q, seen[name])
        seen[name] = q
    assert len(changed) > 200
    assert len(refused) == 2, refused  # the predicates not' and affine'


def test_the_fingerprint_does_not_depend_on_the_hash_seed():
    rng = random.Random(5)
    p = every_class()
    copies = [p] + [p.replace(buffers=rng.sample(p.buffers, len(p.buffers))) for _ in range(3)]
    blobs = "\n".join(encode(q).hex() for q in copies)
    code = (
        "import sys; from vyre.foundation.ir.program import Program\n"
        "for line in sys.stdin: print(Program.from_wire(bytes.fromhex(line)).fingerprint)"
    )
    for seed in ("0", "1", "12345"):
        env = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", code], input=blobs, capture_output=True, text=True, env=env, check=True, timeout=60
        )
        assert done.stdout.split() == [p.fingerprint] * 4
