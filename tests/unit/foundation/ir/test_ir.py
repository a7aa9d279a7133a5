"""Programs are frozen values: structure decides equality, and depth never matters."""

import copy
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest

from vyre.errors import IRTypeError, IRValueError
from vyre.foundation.check.typing import infer
from vyre.foundation.ir import ops
from vyre.foundation.ir.dtypes import (
    BY_NAME,
    DROPPED_TAGS,
    SIMPLE,
    array_type,
    bool_,
    can_cast,
    element_count,
    extension_id,
    f16,
    f32,
    f64,
    i4,
    i32,
    i64,
    opaque_type,
    packed_size,
    quantized_type,
    u8,
    u32,
    u64,
    vec_type,
)
from vyre.foundation.ir.nodes import (
    Assign,
    BinOp,
    Block,
    BufLen,
    Call,
    Cast,
    Expr,
    If,
    InvocationId,
    Let,
    Lit,
    Load,
    Loop,
    Node,
    Region,
    Return,
    Select,
    Span,
    Store,
    SubgroupSize,
    UnOp,
    Var,
    lift,
    lit,
)
from vyre.foundation.ir.ops import AtomicOp, BinaryOp, CollectiveOp, OpaqueOp, Ordering, ReduceOp, UnaryOp
from vyre.foundation.ir.program import (
    Access,
    BufferDecl,
    MemoryKind,
    Program,
    output,
    read,
    read_write,
    storage,
    uniform,
    workgroup,
    write_only,
)
from vyre.foundation.ir.visit import bodies, children, rewrite, rewrite_expr, walk, walk_exprs, walk_nodes

I = InvocationId(0)  # noqa: E741


def deep(n: int) -> Expr:
    e: Expr = Var("x")
    for _ in range(n):
        e = e + 1
    return e


# ---- values


def test_equal_structure_means_equal_value_and_hash():
    a, b = Store("out", I, Load("a", I) + 1), Store("out", I, Load("a", I) + 1)
    assert a == b
    assert hash(a) == hash(b)
    assert a is not b
    assert a != Store("out", I, Load("a", I) + 2)
    assert Lit(u32, 1) != Lit(i32, 1)
    assert Lit(bool_, 1) != 1


def test_a_span_is_not_part_of_a_statement():
    assert Return(span=Span("k.py", 3)) == Return()
    assert hash(Let("x", I, span=Span("k.py", 3))) == hash(Let("x", I))


def test_a_type_hint_is_not_part_of_a_name():
    assert Var("x", dtype=f32) == Var("x")
    assert Load("a", I, dtype=f32) == Load("a", I)


def test_values_are_frozen():
    node = Store("out", I, I)
    with pytest.raises(AttributeError, match=r"replace\(buffer="):
        node.buffer = "other"
    with pytest.raises(AttributeError, match="frozen"):
        del node.buffer
    with pytest.raises(AttributeError, match="frozen"):
        Program.empty().entry = ()
    assert node.replace(buffer="other") == Store("other", I, I)


def test_values_print_as_code_that_rebuilds_them():
    scope = dict(globals())
    for value in (
        Store("out", I, Load("a", I) + 1),
        If(BufLen("a") > I, [Return()], [Block([])]),
        Loop("k", lit(0), lit(4), [Assign("x", Var("x") * 2.5)]),
        read("a", 0, f32),
        Call("op", (I, SubgroupSize())),
        Region("g", [], "source"),
        BufferDecl("b", 1, Access.READ_ONLY, u8, kind=MemoryKind.PUSH),
    ):
        assert eval(repr(value), scope) == value


@pytest.mark.check
def test_depth_is_no_limit_for_equality_hash_print_and_walk():
    a, b = deep(100_000), deep(100_000)
    assert a == b
    assert hash(a) == hash(b)
    assert a != deep(99_999)
    assert len(repr(a)) > 100_000
    assert sum(1 for _ in walk_exprs(a)) == 200_001
    assert rewrite_expr(a, lambda e: Var("y") if e == Var("x") else e) != a
    nested: Node = Return()
    for _ in range(50_000):
        nested = Block([nested])
    assert sum(1 for _ in walk_nodes([nested])) == 50_001
    assert rewrite([nested], node=lambda n: n) == (nested,)


def test_shared_parts_cost_nothing_extra():
    a: Expr = Var("x")
    b: Expr = Var("x")
    for _ in range(200):  # a tree of 2**200 nodes, 201 objects
        a, b = a + a, b + b
    assert a == b
    assert rewrite_expr(a, lambda e: e) is a


def test_values_survive_pickle_and_copy():
    p = Program([read("a", 0, f32)], (4, 1, 1), [Return(span=Span("k.py", 3))], op_id="x", exclusive=True)
    q = pickle.loads(pickle.dumps(p))
    assert q == p
    assert q.entry[0].body[0].span == Span("k.py", 3)
    assert copy.deepcopy(p) == p


def test_lists_become_tuples():
    assert If(I, [Return()]).then == (Return(),)
    assert Call("f", [I]).args == (I,)


# ---- expressions


def test_operators_lift_numbers_to_the_other_operands_type():
    x = Load("a", I, dtype=f32)
    assert (x * 2).right == Lit(f32, 0x40000000)
    assert (1 + I).left == Lit(u32, 1)
    assert (Var("k", dtype=i32) - 1).right == Lit(i32, 1)
    assert (Var("k", dtype=i64) + 1).right == Lit(i64, 1)
    assert lift(True) == Lit(bool_, 1)
    assert lift(-1) == Lit(i32, 0xFFFFFFFF)


@pytest.mark.parametrize(
    "build, fix",
    [
        (lambda: I / 2, "//"),
        (lambda: Var("x", dtype=f32) // 2.0, "write /"),
        (lambda: bool(I < 3), "use If or select"),
        (lambda: I + 1.5, "convert one side"),
        (lambda: I + "a", "Python number"),
        (lambda: lit(1.5, u32), "write an integer"),
        (lambda: lit(1, vec_type(u32, 2)), "number type"),
    ],
)
def test_wrong_operands_are_refused_with_a_fix(build, fix):
    with pytest.raises(IRTypeError, match="Fix: ") as caught:
        build()
    assert fix in str(caught.value)


JUNK = ["x", "1", b"1", [], [1.0], (), {}, None, 1j, object(), len, np.zeros(3), np.zeros(1), np.array(3), np.str_("1")]


@pytest.mark.parametrize("dtype", [t for t in SIMPLE.values() if t.live], ids=str)
def test_a_type_called_with_what_is_no_number_says_so(dtype):
    for junk in JUNK:
        with pytest.raises(
            IRTypeError, match=f"a {type(junk).__name__} is not a number of type {dtype.name}.*Fix: write"
        ):
            dtype(junk)
    for number in (np.int8(1), np.float32(1.0) if dtype.is_float else np.uint64(1), np.bool_(True), Fraction(1)):
        if dtype.is_float or not isinstance(number, Fraction):
            assert dtype(number) == dtype(1)
    with pytest.raises(IRTypeError, match="a Fraction is not a number"):
        dtype(Fraction(10**400))
    if dtype.name == "bool":
        return
    with pytest.raises(IRValueError, match=r"does not fit.*Fix: use a"):
        dtype(-(10**400))
    if dtype.is_int:
        for number in (math.nan, math.inf, 1.5, np.float32(1.0)):
            with pytest.raises(IRTypeError, match=r"literal.*Fix: write an integer"):
                dtype(number)


def test_a_literal_of_no_number_is_refused_without_a_type_too():
    for junk in JUNK:
        with pytest.raises(IRTypeError, match=r"is not a number\. Fix: write an integer or a float"):
            lit(junk)


@pytest.mark.parametrize("value, dtype", [(-1, u32), (1 << 32, u32), (1 << 31, i32), (256, u8), (1 << 64, u64)])
def test_literals_are_range_checked(value, dtype):
    with pytest.raises(IRValueError, match="does not fit"):
        lit(value, dtype)


def test_the_largest_and_smallest_literals_fit():
    assert lit((1 << 32) - 1).value == (1 << 32) - 1
    assert lit(-(1 << 31), i32).value == -(1 << 31)
    assert lit((1 << 64) - 1, u64).value == (1 << 64) - 1


def test_f32_literals_are_canonical():
    assert lit(-0.0) == UnOp(UnaryOp.NEGATE, Lit(f32, 0))
    assert lit(1e-40) == Lit(f32, 0)
    assert lit(-1e-40) == UnOp(UnaryOp.NEGATE, Lit(f32, 0))
    assert lit(float("nan")) == Lit(f32, 0x7FC00000)
    assert lit(1e300) == Lit(f32, 0x7F800000)
    assert lit(-1e300) == Lit(f32, 0xFF800000)
    assert lit(2.0**-126) == Lit(f32, 0x00800000)
    assert lit(0.1).value == pytest.approx(0.1)
    assert lit(-0.0, f64) == Lit(f64, 1 << 63)
    assert lit(True).value is True


def test_narrow_literals_are_casts_of_words():
    assert lit(3, u8) == Cast(u8, Lit(u32, 3))
    assert lit(0.5, f16) == Cast(f16, Lit(f32, 0x3F000000))


def test_a_type_is_callable_as_a_cast_or_a_literal():
    assert u32(I) == Cast(u32, I)
    assert f32(1) == Lit(f32, 0x3F800000)


@pytest.mark.parametrize("t", [t for t in SIMPLE.values() if t.live], ids=str)
def test_a_type_hint_is_the_type_that_the_rules_give(t):
    x = Var("x", dtype=t)
    for e in (UnOp(op, x) for op in UnaryOp):
        found, problems = infer(e, (t,), {"x": t}, {})
        assert problems or e.type_hint == found, e
    for u in (u for u in SIMPLE.values() if u.live):
        for e in (BinOp(op, x, Var("y", dtype=u)) for op in BinaryOp):
            found, problems = infer(e, (t, u), {"x": t, "y": u}, {})
            assert problems or e.type_hint == found, e


def test_type_hints_follow_operands():
    x = Load("a", I, dtype=f32)
    assert (x + 1).type_hint == f32
    assert (x < 1).type_hint == bool_
    assert (-x).type_hint == f32
    assert Select(x < 1, x, x).type_hint == f32
    assert Var("v").type_hint is None
    assert (Var("v") + x).type_hint == f32
    assert Call("f", ()).type_hint is None
    assert BufLen("a").type_hint == u32


# ---- types


def test_packed_sizes_use_bits():
    assert packed_size(i4, 3) == 2
    assert packed_size(u32, 3) == 12
    assert packed_size(opaque_type(0x80000001), 3) is None
    assert element_count(u32, 11) == 2
    assert element_count(i4, 3) == 6


def test_extension_ids_have_the_high_bit():
    assert extension_id("") == 0x811C9DC5
    assert extension_id("a") == 0xE40C292C


def test_casts_are_the_table():
    whole = [BY_NAME[n] for n in ("u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "bool")]
    assert all(can_cast(a, b) for a in whole for b in whole)
    assert can_cast(u32, f32)
    assert can_cast(f32, i32)
    assert can_cast(f16, f32)
    assert can_cast(u64, f32)
    assert not can_cast(u8, f32)
    assert not can_cast(f16, u32)
    assert can_cast(f64, i64)
    assert not can_cast(f16, f64)
    assert not can_cast(array_type(4), array_type(4))


def test_type_tags_are_unique_and_dropped_ones_absent():
    assert len({t.name for t in SIMPLE.values()}) == len(SIMPLE)
    assert not set(SIMPLE) & set(DROPPED_TAGS)


def test_quantized_types_store_small_numbers_only():
    assert quantized_type(i4).bits == 4
    with pytest.raises(IRValueError, match="cannot store"):
        quantized_type(f32)


# ---- the table of operators


@pytest.mark.parametrize("table", [BinaryOp, UnaryOp, AtomicOp, ReduceOp, CollectiveOp, Ordering])
def test_operator_tags_are_unique_and_found_again(table):
    assert len({row.tag for row in table}) == len(table)
    assert all(table.of_tag(row.tag) is row for row in table)
    assert table.of_tag(0x7F) is None


def test_every_class_has_an_id():
    ours = "vyre.foundation.ir.nodes"
    classes = [c for c in Expr.__subclasses__() if c.__module__ == ours and c.__name__ not in ("Lit", "Call", "Opaque")]
    assert {c.__name__ for c in classes} == set(ops.EXPR_IDS)
    statements = [c for c in Node.__subclasses__() if c.__module__ == ours and c.__name__ != "OpaqueNode"]
    assert {c.__name__ for c in statements} == set(ops.NODE_IDS)


def test_core_ids_leave_out_what_a_backend_may_lack():
    core = {"vyre.node.return", "vyre.node.barrier", "vyre.lit_u32", "vyre.bin_op", "vyre.atomic", "vyre.un_op.exp"}
    assert core <= ops.CORE_IDS
    for absent in (
        "vyre.node.trap",
        "vyre.node.all_reduce",
        "vyre.subgroup_reduce",
        "vyre.py.bitcast",
    ):
        assert absent not in ops.CORE_IDS


def test_an_extension_operator_is_carried():
    assert BinOp(OpaqueOp(0x80000001), I, I).op.text == "opaque_0x80000001"


# ---- buffers and programs


def test_memory_kind_follows_access_unless_given():
    assert read("a", 0, u32).kind is MemoryKind.READONLY
    assert storage("a", 0, Access.READ_WRITE, u32).kind is MemoryKind.GLOBAL
    assert workgroup("a", u32, 4).kind is MemoryKind.SHARED
    assert uniform("a", 0, u32).kind is MemoryKind.UNIFORM
    assert BufferDecl("a", 0, Access.READ_ONLY, u32, kind=MemoryKind.PUSH).kind is MemoryKind.PUSH


@pytest.mark.parametrize(
    "decl, allocated, takes, gives",
    [
        (read("a", 0, u32), False, True, False),
        (uniform("a", 0, u32, 1), False, True, False),
        (read_write("a", 0, u32), False, True, True),
        (write_only("a", 0, u32), True, False, True),
        (output("a", 0, u32, 4), True, False, True),
        (workgroup("a", u32, 4), False, False, False),
        (read_write("a", 0, u32, 4).replace(live_out=True), True, False, True),
    ],
)
def test_access_decides_what_the_host_gives_and_gets(decl, allocated, takes, gives):
    assert (decl.backend_allocated, decl.is_host_input, decl.is_host_output) == (allocated, takes, gives)


def test_the_positional_abi_is_slot_order():
    p = Program([read_write("z", 2, u32), read("b", 1, u32), workgroup("t", u32, 4), read("a", 0, u32)], (1, 1, 1), [])
    assert [b.name for b in p.host_inputs] == ["a", "b", "z"]
    assert [b.name for b in p.host_outputs] == ["z"]
    assert p.output_indices == (0,)


def test_declaration_order_is_not_part_of_a_program():
    a, b = read("a", 0, u32), read_write("b", 1, u32)
    p, q = Program([a, b], (1, 1, 1), [Return()]), Program([b, a], (1, 1, 1), [Return()])
    assert p == q
    assert hash(p) == hash(q)
    assert p != Program([a, a], (1, 1, 1), [Return()])
    assert p != p.replace(workgroup_size=(2, 1, 1))
    assert p != "p"


def test_a_bare_body_is_wrapped_and_regions_are_not():
    assert Program([], (1, 1, 1), [Return()]).entry == (Region("vyre.program.root", (Return(),)),)
    assert Program([], (1, 1, 1), [Region("r", ())]).entry == (Region("r", ()),)
    assert Program.empty().entry == (Region("vyre.program.root", ()),)
    assert Program.of_entry([], (1, 1, 1), [Return()]).entry == (Return(),)


# ---- walks


def test_children_come_in_evaluation_order():
    assert children(Select(Var("c"), Var("t"), Var("f"))) == (Var("c"), Var("t"), Var("f"))
    assert children(Call("f", (Var("a"), Var("b")))) == (Var("a"), Var("b"))
    assert bodies(If(I, [Return()], [Block([])])) == ((Return(),), (Block(()),))


def test_walk_visits_parents_first_in_program_order():
    program = [Let("x", I), If(Var("x"), [Store("o", Var("x"), lit(1))])]
    kinds = [type(item).__name__ for item in walk(program)]
    assert kinds == ["Let", "InvocationId", "If", "Var", "Store", "Var", "Lit"]


def test_rewrite_may_replace_drop_and_multiply_statements():
    nodes = [If(I, [Return(), Store("o", I, lit(1))]), Return()]
    dropped = rewrite(nodes, node=lambda n: () if isinstance(n, Return) else n)
    assert dropped == (If(I, [Store("o", I, lit(1))]),)
    doubled = rewrite(nodes, node=lambda n: (n, n) if isinstance(n, Store) else n)
    assert len(doubled[0].then) == 3
    bumped = rewrite(nodes, expr=lambda e: lit(2) if e == lit(1) else e)
    assert bumped[0].then[1].value == lit(2)
    assert bumped[1] is nodes[1]
