"""A dozen small programs whose emitted texts are kept, so that a change of an emitter shows what it changes."""

from pathlib import Path

from vyre.foundation.ir.dtypes import f16, f32, i32, u8, u32, u64
from vyre.foundation.ir.nodes import (
    Assign,
    Atomic,
    Barrier,
    BinOp,
    BufLen,
    Cast,
    Fma,
    If,
    InvocationId,
    Let,
    Load,
    LocalId,
    Loop,
    Select,
    Store,
    SubgroupBallot,
    SubgroupReduce,
    Trap,
    UnOp,
    Var,
    WorkgroupId,
    lit,
)
from vyre.foundation.ir.ops import AtomicOp, BinaryOp, ReduceOp, UnaryOp
from vyre.foundation.ir.program import Access, BufferDecl, Program, read, read_write, write_only

GID, LID = InvocationId(0), LocalId(0)
TEXTS = Path(__file__).parents[1] / "golden"


def shared(name, element, count):
    return BufferDecl(name, 0, Access.WORKGROUP, element, count)


def where_inside(name, *body):
    return If(BufLen(name) > GID, body)


def equal(a, b):
    return BinOp(BinaryOp.EQ, a, b)


def xor():
    body = [where_inside("out", Store("out", GID, Load("a", GID) ^ Load("b", GID)))]
    return Program([read("a", 0, u32), read("b", 1, u32), write_only("out", 2, u32)], (64, 1, 1), body)


def saxpy():
    body = [where_inside("y", Store("y", GID, lit(2.5) * Load("x", GID) + Load("y", GID)))]
    return Program([read("x", 0, f32), read_write("y", 1, f32)], (64, 1, 1), body)


def float_steps():
    x, y = Load("x", GID), Load("y", GID)
    values = [
        Fma(x, y, lit(0.5)), x / y, UnOp(UnaryOp.SQRT, x), BinOp(BinaryOp.MIN, x, y), UnOp(UnaryOp.ROUND, x),
        Select(BinOp(BinaryOp.LT, x, y), lit(-1.0), lit(0.0)), Cast(f32, Cast(i32, x)),
    ]  # fmt: skip
    body = [Store("out", GID * len(values) + k, value) for k, value in enumerate(values)]
    return Program([read("x", 0, f32), read("y", 1, f32), write_only("out", 2, f32)], (64, 1, 1), body)


def sine():
    body = [where_inside("out", Store("out", GID, UnOp(UnaryOp.SIN, Load("x", GID))))]
    return Program([read("x", 0, f32), write_only("out", 1, f32)], (64, 1, 1), body)


def narrow():
    brighter = BinOp(BinaryOp.MIN, Cast(u32, Load("pixels", GID)) * 2, lit(255))
    body = [where_inside("pixels", Store("pixels", GID, Cast(u8, brighter)))]
    return Program([read_write("pixels", 0, u8)], (64, 1, 1), body)


def halves():
    body = [Store("out", GID, Load("a", GID) * lit(0.5, f16))]
    return Program([read("a", 0, f16), write_only("out", 1, f16)], (64, 1, 1), body)


def long_integers():
    body = [Store("out", GID, (Load("a", GID) * lit(6364136223846793005, u64) + GID.cast(u64)) >> 33)]
    return Program([read("a", 0, u64), write_only("out", 1, u64)], (64, 1, 1), body)


def histogram():
    bin_of = Cast(u32, Load("data", GID))
    body = [where_inside("data", Let("old", Atomic(AtomicOp.ADD, "bins", bin_of, lit(1))))]
    return Program([read("data", 0, u8), read_write("bins", 1, u32, 256)], (64, 1, 1), body)


def sum_of_a_workgroup():
    half = BinOp(BinaryOp.SHR, lit(32), Var("k"))
    step = If(half > LID, [Store("mem", LID, Load("mem", LID) + Load("mem", LID + half))])
    body = [
        Store("mem", LID, Load("a", GID)),
        Barrier(),
        Loop("k", lit(0), lit(6), [step, Barrier()]),
        If(equal(LID, lit(0)), [Store("sums", WorkgroupId(0), Load("mem", lit(0)))]),
    ]
    return Program([read("a", 0, f32), write_only("sums", 1, f32), shared("mem", f32, 64)], (64, 1, 1), body)


def subgroups():
    values = [SubgroupReduce(ReduceOp.ADD, Load("a", GID)), Cast(f32, SubgroupBallot(Load("a", GID) < lit(0.0)))]
    body = [Store("out", GID * 2 + k, value) for k, value in enumerate(values)]
    return Program([read("a", 0, f32), write_only("out", 1, f32)], (48, 1, 1), body)


def steps_to_one():
    odd = equal(Var("n") & 1, lit(1))
    turn = [
        Assign("n", Select(odd, Var("n") * 3 + 1, Var("n") // 2)),
        Assign("steps", Var("steps") + 1),
        Assign("more", BinOp(BinaryOp.GT, Var("n"), lit(1))),
    ]
    body = [
        Let("n", Load("a", GID)),
        Let("steps", lit(0)),
        Let("more", BinOp(BinaryOp.GT, Var("n"), lit(1))),
        Loop("k", lit(0), lit(1000), [If(Var("more"), turn)]),
        Store("out", GID, Var("steps")),
    ]
    return Program([read("a", 0, u32), write_only("out", 1, u32)], (64, 1, 1), body)


def traps():
    bad = BinOp(BinaryOp.GE, Load("index", GID), BufLen("table"))
    body = [
        If(bad, [Trap(GID, "index out of range")]),
        Store("mem", LID, Load("table", Load("index", GID))),
        Barrier(),
        Store("out", GID, Load("mem", lit(63) - LID)),
    ]
    buffers = [read("index", 0, u32), read("table", 1, i32), write_only("out", 2, i32), shared("mem", i32, 64)]
    return Program(buffers, (64, 1, 1), body)


PROGRAMS = {
    make.__name__: make
    for make in (
        xor, saxpy, float_steps, sine, narrow, halves, long_integers, histogram, sum_of_a_workgroup, subgroups,
        steps_to_one, traps,
    )
}  # fmt: skip


def assert_golden(path, text, refresh):
    """Hold a text against the one that is kept under `golden`; with `refresh`, keep it."""
    kept = TEXTS / path
    if refresh:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(text, "utf-8")
    assert kept.exists(), f"no {path} is kept: run with --refresh-golden"
    assert kept.read_text("utf-8") == text, f"{path} has changed: look at it, and run with --refresh-golden"
