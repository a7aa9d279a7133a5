"""Derived facts: operation ids, counts, and what a backend must offer."""

import pytest

from vyre.foundation.check.requirements import op_ids
from vyre.foundation.ir import nodes as ir
from vyre.foundation.ir.dtypes import bf16, f16, f32, f64, i64, u8, u32, u64
from vyre.foundation.ir.facts import Requirements
from vyre.foundation.ir.nodes import (
    AllReduce,
    Assign,
    AsyncWait,
    Atomic,
    Barrier,
    BinOp,
    Bitcast,
    Block,
    Call,
    Cast,
    If,
    IndirectDispatch,
    InvocationId,
    Let,
    Load,
    Loop,
    Opaque,
    OpaqueNode,
    Return,
    Store,
    SubgroupSize,
    Trap,
    UnOp,
    Var,
    lit,
)
from vyre.foundation.ir.ops import (
    CORE_IDS,
    EXPR_IDS,
    NODE_IDS,
    AtomicOp,
    BinaryOp,
    CollectiveOp,
    OpaqueOp,
    Ordering,
    UnaryOp,
)
from vyre.foundation.ir.program import Program, output, read, read_write, workgroup
from vyre.foundation.ir.report import CAPABILITY_BITS, Capabilities

GID = InvocationId(0)


def program(*body, buffers=()):
    return Program(buffers, (8, 4, 2), body)


def test_every_class_has_an_id():
    classes = {n for n, c in vars(ir).items() if isinstance(c, type) and issubclass(c, ir.Expr | ir.Node)}
    from_content = {"Lit", "Call", "Opaque", "OpaqueNode"}
    assert classes - {"Expr", "Node"} == EXPR_IDS.keys() | NODE_IDS.keys() | from_content


@pytest.mark.parametrize(
    "item, ids",
    [
        (lit(1), {"vyre.lit_u32"}),
        (lit(1, u64), {"vyre.literal.u64"}),
        (Call("my.op", ()), {"my.op"}),
        (Opaque("my.kind", b""), {"my.kind"}),
        (OpaqueNode("my.node", b""), {"my.node"}),
        (UnOp(UnaryOp.SIN, lit(1.0)), {"vyre.un_op", "vyre.un_op.sin"}),
        (UnOp(UnaryOp.SQRT, lit(1.0)), {"vyre.un_op"}),
        (BinOp(OpaqueOp(0x80000001), lit(1), lit(1)), {"vyre.bin_op", "opaque_0x80000001"}),
        (Bitcast(u32, lit(1.0)), {"vyre.py.bitcast"}),
        (Return(), {"vyre.node.return"}),
    ],
)
def test_ids_of_one_item(item, ids):
    assert set(op_ids(item)) == ids


def test_ops_lists_everything_inside():
    p = program(If(GID < 3, (Store("a", GID, Load("b", lit(1))),), (Let("x", UnOp(UnaryOp.EXP, lit(1.0))),)))
    assert p.ops() == {
        "vyre.node.region", "vyre.node.if", "vyre.node.store", "vyre.node.let", "vyre.bin_op", "vyre.invocation_id",
        "vyre.lit_u32", "vyre.load", "vyre.un_op", "vyre.un_op.exp", "vyre.lit_f32",
    }  # fmt: skip
    assert p.ops() <= CORE_IDS


def test_stats_count_what_is_written():
    shared = Load("a", GID) + 1
    p = program(
        Let("x", shared * shared),
        Loop("i", lit(0), lit(4), (Store("a", Var("i"), Call("f", (Var("x"),))), Barrier())),
        Let("_", Atomic(AtomicOp.ADD, "a", lit(0), lit(1))),
    )
    s = p.stats
    assert (s.nodes, s.loads, s.stores, s.atomics, s.barriers, s.loops, s.regions, s.calls) == (6, 2, 1, 1, 1, 1, 1, 1)
    assert s.expressions == 9 + 2 + 3 + 3
    assert s.depth == 6  # region, let, *, +, load, id
    assert {"Region", "Loop", "Barrier", "Call"} <= s.kinds
    assert Program.of_entry([], (1, 1, 1), []).stats.nodes == 0


def test_stats_of_a_widely_shared_expression_take_no_time():
    e = lit(1)
    for _ in range(200):
        e = e + e
    s = program(Let("x", e), Let("y", e)).stats
    assert s.expressions == 2 * (2**201 - 1)
    assert s.depth == 203


@pytest.mark.parametrize(
    "bit, p",
    [
        ("subgroup", program(Let("x", SubgroupSize()))),
        (
            "workgroup_atomics",
            program(Let("_", Atomic(AtomicOp.ADD, "t", GID, lit(1))), buffers=[workgroup("t", u32, 4)]),
        ),
        ("int64", program(Let("x", Cast(i64, lit(1))))),
        ("int64", program(buffers=[read("a", 0, u64)])),
        ("float16", program(Let("x", Cast(f16, lit(1.0))))),
        ("bfloat16", program(buffers=[read("a", 0, bf16)])),
        ("float64", program(Let("x", lit(1, f64)))),
        ("trap", program(Trap(lit(1), "t"))),
        ("indirect", program(IndirectDispatch("a", 0))),
        ("collectives", program(AllReduce("a", CollectiveOp.SUM, 0))),
        ("async_copy", program(AsyncWait("t"))),
        ("grid_sync", program(Block((Barrier(Ordering.GRID_SYNC),)))),
    ],
)
def test_each_requirement_alone(bit, p):
    needs = p.requirements
    assert [b for b in CAPABILITY_BITS if getattr(needs, b)] == [bit]


def test_plain_programs_require_nothing():
    p = program(
        Let("x", lit(1)), Assign("x", GID), Barrier(), Let("_", Atomic(AtomicOp.ADD, "a", GID, lit(1))),
        buffers=[read_write("a", 0, u32), workgroup("t", u32, 4)],
    )  # fmt: skip
    assert not any(getattr(p.requirements, b) for b in CAPABILITY_BITS)


def test_sizes_are_summed():
    p = program(buffers=[output("a", 0, u32, 3), read("b", 1, u8, 5), read("c", 2, f32), workgroup("t", u32, 4)])
    needs = p.requirements
    assert (needs.invocations, needs.workgroup_bytes, needs.static_bytes) == (64, 16, 17)


def test_requirements_and_capabilities_share_their_names():
    assert set(CAPABILITY_BITS) <= set(Requirements.fields) & set(Capabilities.fields)
    assert all(getattr(Capabilities.everything(), b) for b in CAPABILITY_BITS)
    assert not any(getattr(Capabilities(), b) for b in CAPABILITY_BITS)


def test_binary_operators_share_one_id():
    binary = {i for op in BinaryOp for i in op_ids(BinOp(op, lit(1), lit(1)))}
    assert binary == {"vyre.bin_op", *(f"vyre.bin_op.{op.text}" for op in BinaryOp if op.is_function)}
