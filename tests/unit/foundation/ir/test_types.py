"""Every operator has exactly the operand types of its row, and the result type that goes with them."""

import itertools

import pytest

from vyre.errors import DiagCode
from vyre.foundation.check.typing import infer, type_of
from vyre.foundation.ir.dtypes import LIVE_TAGS, SIMPLE, bool_, bytes_, can_cast, f16, f32, i32, u8, u32, u64, vec4u32
from vyre.foundation.ir.nodes import (
    Atomic,
    BinOp,
    Bitcast,
    BufferRef,
    BufLen,
    Call,
    Cast,
    Fma,
    InvocationId,
    Load,
    LocalId,
    Opaque,
    Select,
    SubgroupBallot,
    SubgroupLocalId,
    SubgroupReduce,
    SubgroupShuffle,
    SubgroupSize,
    UnOp,
    Var,
    WorkgroupId,
    lit,
)
from vyre.foundation.ir.ops import AtomicOp, BinaryOp, OpaqueOp, ReduceOp, UnaryOp

LIVE = [SIMPLE[tag] for tag in sorted(LIVE_TAGS)]
NAMES = {t.name: t for t in LIVE}
WORDS = "u32 i32 u64 i64"
FLOATS = "f16 bf16 f32 f64"
NARROW = "u8 u16 i8 i16"
SAME = {  # rule: types of both operands
    "arith": f"{WORDS} {FLOATS}",
    "wrapping": WORDS,
    "mod": WORDS,
    "bits": WORDS,
    "abs_diff": "u32",
    "saturating": "u32",
    "mul_high": "u32",
    "float": FLOATS,
    "function": "f32",
    "float_function": "f32 f64",
}
ONE_OPERAND = {
    "negate": f"{WORDS} {FLOATS}",
    "bits": WORDS,
    "logic": "u32 bool",
    "float": FLOATS,
    "float_test": FLOATS,
    "function": "f32",
    "float_function": "f32 f64",
    "exponent": "f32 f64",
    "unpack": "u32 i32",
}


def typed(e, *operands):
    result, problems = infer(e, operands, {}, {})
    return result, [p.code for p in problems]


def legal_pair(op, a, b):
    """The result type, or None; written out from the rules, apart from the code under test."""
    if op.rule in SAME:
        return a if a == b and a.name in SAME[op.rule].split() else None
    if op.rule == "scale":
        return a if a.name in ("f32", "f64") and b == i32 else None
    if op.rule == "shift":
        return a if a.name in WORDS.split() and b == u32 else None
    if op.rule == "compare":
        ordered = op not in (BinaryOp.EQ, BinaryOp.NE)
        return bool_ if a == b and not (ordered and a == bool_) else None
    if op.rule == "logic":
        return bool_ if {a.name, b.name} <= {"u32", "bool"} else None
    return None


@pytest.mark.parametrize("op", BinaryOp)
def test_binary_operators_accept_exactly_their_types(op):
    for a, b in itertools.product(LIVE, LIVE):
        wanted = legal_pair(op, a, b)
        result, problems = typed(BinOp(op, lit(1), lit(1)), a, b)
        assert (problems == []) == (wanted is not None), (op, a, b)
        if wanted is not None:
            assert result == wanted


@pytest.mark.parametrize("op", UnaryOp)
def test_unary_operators_accept_exactly_their_types(op):
    for t in LIVE:
        legal = t.name in ONE_OPERAND[op.rule].split()
        result, problems = typed(UnOp(op, lit(1)), t)
        assert (problems == []) == legal, (op, t)
        if legal:
            assert result == {"logic": bool_, "float_test": bool_, "unpack": u32, "exponent": i32}.get(op.rule, t)


def test_casts_follow_the_cast_table():
    for a, b in itertools.product(LIVE, LIVE):
        result, problems = typed(Cast(b, Var("x")), a)
        assert result == b
        assert (DiagCode.V012 in problems) == (not can_cast(a, b))
        narrows = a.is_int and b.is_int and a.bits > b.bits
        assert (DiagCode.V035 in problems) == narrows


@pytest.mark.parametrize("value, narrows", [(255, False), (256, True)])
def test_a_literal_that_fits_is_not_narrowed(value, narrows):
    for e in (lit(value), lit(value) & Var("x"), Var("x") & lit(value)):
        assert (typed(Cast(u8, e), u32)[1] == [DiagCode.V035]) == narrows


def test_bitcasts_stay_among_words_of_one_width():
    for a, b in itertools.product(LIVE, LIVE):
        legal = any({a.name, b.name} <= words for words in ({"u32", "i32", "f32"}, {"u64", "i64", "f64"}))
        assert (typed(Bitcast(b, Var("x")), a) == (b, [])) == legal


def test_late_casts_have_no_type_of_their_own():
    assert typed(Cast(vec4u32, lit(1)), u32) == (None, [])
    assert typed(Cast(bytes_, lit(1)), u32) == (None, [DiagCode.V023])


@pytest.mark.parametrize("op", ReduceOp)
def test_subgroup_reductions(op):
    bitwise = op in (ReduceOp.AND, ReduceOp.OR, ReduceOp.XOR)
    for t in LIVE:
        legal = t in (u32, i32) or (t == f32 and not bitwise)
        result, problems = typed(SubgroupReduce(op, Var("x")), t)
        assert (problems == []) == legal
        assert result == (t if legal else None)
        assert t != f32 or not bitwise or problems == [DiagCode.V047]


def test_selects_want_a_truth_and_equal_arms():
    for c, a, b in itertools.product(LIVE, LIVE, LIVE):
        result, problems = typed(Select(Var("c"), Var("a"), Var("b")), c, a, b)
        assert (DiagCode.V204 in problems) == (c not in (u32, bool_))
        assert (DiagCode.V029 in problems) == (a != b)
        assert result == (a if a == b else None)


@pytest.mark.parametrize(
    "e, t",
    [
        (BufLen("b"), u32),
        (InvocationId(0), u32),
        (WorkgroupId(1), u32),
        (LocalId(2), u32),
        (SubgroupLocalId(), u32),
        (SubgroupSize(), u32),
        (SubgroupBallot(lit(True)), u32),
        (SubgroupShuffle(lit(1.0), lit(1)), f32),
        (Fma(lit(1.0), lit(1.0), lit(1.0)), f32),
        (Var("x"), u64),
        (Load("h", lit(0)), f16),
        (Load("late", lit(0)), None),
        (Load("none", lit(0)), None),
        (Atomic(AtomicOp.ADD, "s", lit(0), lit(-1)), i32),
        (Atomic(AtomicOp.ADD, "none", lit(0), lit(1)), None),
        (Call("x", (lit(1),)), None),
        (Opaque("x", b""), None),
        (BufferRef("s"), None),
        (BinOp(OpaqueOp(1 << 31), lit(1), lit(1)), None),
        (UnOp(OpaqueOp(1 << 31), lit(1)), None),
        (Var("unknown") + 1, None),
        (Var("x") + lit(1, u64) * Var("x"), u64),
    ],
)
def test_type_of_whole_expressions(e, t):
    assert type_of(e, {"x": u64}, {"h": f16, "late": vec4u32, "s": i32}) == t


def test_an_unknown_operand_breaks_no_rule():
    for e, n in [
        *((BinOp(op, lit(1), lit(1)), 2) for op in BinaryOp if op.rule != "wave"),
        *((UnOp(op, lit(1)), 1) for op in UnaryOp),
        (Select(lit(1), lit(1), lit(1)), 3),
        (Cast(u8, lit(1)), 1),
        (Bitcast(u32, lit(1)), 1),
        (Fma(lit(1), lit(1), lit(1)), 3),
        (Load("b", lit(1)), 1),
        (SubgroupShuffle(lit(1), lit(1)), 2),
        (SubgroupReduce(ReduceOp.AND, lit(1)), 1),
        (SubgroupBallot(lit(1)), 1),
        (Atomic(AtomicOp.ADD, "b", lit(1), lit(1)), 2),
    ]:
        assert typed(e, *[None] * n)[1] == []


def test_typing_a_deep_expression_needs_no_stack():
    e = lit(1)
    for _ in range(20_000):
        e = e + 1
    assert type_of(e, {}, {}) == u32
