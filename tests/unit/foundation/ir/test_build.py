"""The builder: fresh names, slots, blocks, and the statements it appends."""

from __future__ import annotations

import pytest

import vyre
from vyre import bool_, f32, gid, i32, u8, u32
from vyre.backends import reference
from vyre.foundation.ir.build import Builder, workgroup_shape
from vyre.foundation.ir.nodes import (
    Assign,
    Atomic,
    Barrier,
    BinOp,
    Bitcast,
    BufLen,
    Cast,
    Fma,
    If,
    InvocationId,
    Let,
    Lit,
    Load,
    LocalId,
    Loop,
    Return,
    Select,
    Span,
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
    lit,
)
from vyre.foundation.ir.ops import AtomicOp, BinaryOp, Ordering, ReduceOp, UnaryOp
from vyre.foundation.ir.program import Access, BufferDecl
from vyre.foundation.ir.report import Capabilities
from vyre.foundation.language import lang


def body(b: Builder):
    return b.program().entry[0].body


def test_a_built_program_runs():
    b = Builder(workgroup=4)
    x, out = b.read("x", u32), b.write_only("out", u32)
    i = b.let("i", InvocationId(0))
    total = b.let("total", 0)
    with b.loop("k", 0, i + 1) as k:
        b.assign(total, total + x[k])
    with b.if_(i < out.length):
        b.store(out, i, total * 2)
    with b.else_():
        b.store(out, 0, 99)
    program = b.program()
    assert [issue for issue in vyre.validate(program) if issue.severity == "error"] == []
    data = b"".join(n.to_bytes(4, "little") for n in (1, 2, 3, 4))
    (got,) = reference.run(program, [data], grid=(1, 1, 1), output_elements={"out": 4}).outputs
    assert list(memoryview(got).cast("I")) == [2, 6, 12, 20]


def test_fresh_names_never_repeat():
    b = Builder()
    b.read("x", u32)
    assert [b.fresh(n) for n in ("x", "x", "y", "y", "x_1", "größe", "class!")] == [
        "x_1", "x_2", "y", "y_1", "x_1_1", "v", "v_1",
    ]  # fmt: skip
    assert b.shared("x", u32, 4).name == "x_3"
    with b.loop("y", 0, 4) as y:
        assert y.name == "y_2"
    assert b.let("y", 1).name == "y_3"


def test_bound_buffers_take_slots_in_order_and_shared_memory_takes_none():
    b = Builder()
    b.read("a", u32)
    b.shared("t", f32, 16)
    b.read_write("b", i32, 8)
    b.uniform("c", f32)
    b.declare(BufferDecl("d", 7, Access.READ_ONLY, u8))
    b.write_only("e", u32)
    b.output("f", u32, 2)
    assert [(d.name, d.binding, d.access, d.count, d.is_output) for d in b.program().buffers] == [
        ("a", 0, Access.READ_ONLY, 0, False), ("t", 0, Access.WORKGROUP, 16, False),
        ("b", 1, Access.READ_WRITE, 8, False), ("c", 2, Access.UNIFORM, 1, False),
        ("d", 7, Access.READ_ONLY, 0, False), ("e", 8, Access.WRITE_ONLY, 0, False),
        ("f", 9, Access.READ_WRITE, 2, True),
    ]  # fmt: skip


def test_statements():
    b = Builder()
    x, small = b.read_write("x", u32), b.write_only("small", u8)
    assert x[3] == Load("x", lit(3))
    assert x[3].dtype == u32
    assert x.length == BufLen("x")
    v = b.let("v", 1.5)
    assert v.dtype == f32
    b.assign(v, 2)
    b.store(small, 0, 200)
    old = b.atomic(AtomicOp.ADD, x, 0, 5)
    b.atomic(AtomicOp.COMPARE_EXCHANGE, x, old, 1, 2, name="seen")
    b.barrier()
    b.grid_sync()
    b.trap("late", x[0])
    b.return_()
    assert body(b) == (
        Let("v", lit(1.5)),
        Assign("v", lit(2.0)),
        Store("small", lit(0), Cast(u8, lit(200))),
        Let("old", Atomic(AtomicOp.ADD, "x", lit(0), lit(5))),
        Let("seen", Atomic(AtomicOp.COMPARE_EXCHANGE, "x", Var("old"), lit(1), lit(2))),
        Barrier(),
        Barrier(Ordering.GRID_SYNC),
        Trap(Load("x", lit(0)), "late"),
        Return(),
    )


def test_blocks_nest():
    b = Builder()
    with b.if_(True):
        with b.if_(False):
            b.barrier()
        with b.else_():
            b.return_()
    with b.while_flag() as go:
        b.assign(go, False)
    yes, no = Lit(bool_, 1), Lit(bool_, 0)
    turns = Loop("turn", lit(0), lit(0xFFFFFFFF), (If(Var("go"), (Assign("go", no),)),))
    assert body(b) == (
        If(yes, (If(no, (Barrier(),), (Return(),)),)),
        Let("go", yes),
        Loop("again", lit(0), lit(0xFFFFFFFF), (If(Var("go"), (turns,)),)),
    )


def test_else_follows_an_if():
    b = Builder()
    with pytest.raises(vyre.IRValueError, match="does not follow") as caught, b.else_():
        pass
    assert "directly after" in caught.value.fix
    with b.if_(True):
        pass
    with b.else_():
        b.barrier()
    with pytest.raises(vyre.IRValueError, match="does not follow"), b.else_():
        pass


def test_an_open_block_is_no_program():
    b = Builder()
    with b.if_(True), pytest.raises(vyre.IRValueError, match="still open"):
        b.program()


def test_an_exception_closes_the_blocks_it_leaves_and_drops_them():
    b = Builder()
    with pytest.raises(KeyError), b.if_(True), b.loop("i", 0, 3):
        raise KeyError
    b.barrier()
    assert body(b) == (Barrier(),)


def test_statements_carry_the_span_they_were_made_under():
    b = Builder()
    b.span = Span("f.py", 3)
    with b.if_(True):
        b.span = Span("f.py", 4)
        b.barrier()
        b.append(Return(span=Span("g.py", 1)))
    (branch,) = body(b)
    assert [branch.span.line, *(n.span.file + str(n.span.line) for n in branch.then)] == [3, "f.py4", "g.py1"]


def test_a_marked_place_takes_a_statement_later():
    b = Builder()
    b.barrier()
    mark = b.mark()
    with b.if_(True):
        b.insert(mark, Let("r", lit(0)))
    assert [type(n) for n in body(b)] == [Barrier, Let, If]


@pytest.mark.parametrize(
    "given, shape", [(1, (1, 1, 1)), (64, (64, 1, 1)), ((8, 4), (8, 4, 1)), ([2, 3, 4], (2, 3, 4))]
)
def test_workgroup_shapes(given, shape):
    assert workgroup_shape(given) == shape
    assert Builder(given).program().workgroup_size == shape


def test_functions_of_the_language_build_expressions_from_expressions():
    x, f = Var("x", dtype=u32), Var("f", dtype=f32)
    assert vyre.sqrt(f) == UnOp(UnaryOp.SQRT, f)
    assert vyre.rotate_left(x, 3) == BinOp(BinaryOp.ROTATE_LEFT, x, lit(3))
    assert vyre.saturating_add(1, x) == BinOp(BinaryOp.SATURATING_ADD, lit(1), x)
    assert vyre.subgroup_min(x) == SubgroupReduce(ReduceOp.MIN, x)
    assert vyre.subgroup_shuffle(f, 3) == SubgroupShuffle(f, lit(3))
    assert vyre.subgroup_ballot(x) == SubgroupBallot(x)
    assert (vyre.subgroup_local_id(), vyre.subgroup_size()) == (SubgroupLocalId(), SubgroupSize())
    assert vyre.bitcast(f32, x) == Bitcast(f32, x)
    assert vyre.select(x, f, 2) == Select(x, f, lit(2.0))
    assert vyre.fma(f, 2, 1) == Fma(f, lit(2.0), lit(1.0))
    assert (gid.x, vyre.lid.y, vyre.wg.z) == (InvocationId(0), LocalId(1), WorkgroupId(2))


def test_names_of_the_language_print_as_themselves():
    assert [repr(n) for n in (vyre.sqrt, vyre.gid, vyre.In, vyre.const)] == ["vyre.sqrt", "vyre.gid", "In", "const"]


def test_every_operator_that_is_no_symbol_has_a_name():
    named = {fn.op for fn in vars(lang).values() if isinstance(fn, lang.Intrinsic)}
    unary = {op for op in UnaryOp if op.rule not in ("negate", "logic", "unpack")} - {UnaryOp.BIT_NOT, UnaryOp.ABS}
    binary = {op for op in BinaryOp if op.text.isidentifier() and op.rule not in ("wave", "wrapping", "logic")}
    atomic = {op for op in AtomicOp if op.live}
    assert named - {None} == unary | (binary - {BinaryOp.MIN, BinaryOp.MAX}) | atomic | set(ReduceOp)
    assert Capabilities.everything().subgroup
