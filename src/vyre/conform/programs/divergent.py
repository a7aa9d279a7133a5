"""Random programs that lean on how lanes are run: data that crosses lanes, loops that lanes leave one by one, indices
out of bounds, atomics whose results are used, subgroups that are not full.

`generate` makes programs of every construct; these are fewer constructs, and every one of them where engines that run
many lanes at once go wrong. Each is deterministic: a lane writes what it owns, reads of shared memory stand behind a
barrier, and an atomic whose result is used is on a location of one lane.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from functools import partial
from math import prod

from ...foundation.ir.dtypes import DataType, bf16, bool_, can_cast, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from ...foundation.ir.nodes import (
    Assign,
    Atomic,
    Barrier,
    BinOp,
    Bitcast,
    BufLen,
    Cast,
    Expr,
    Fma,
    If,
    InvocationId,
    Let,
    Load,
    LocalId,
    Loop,
    Node,
    Return,
    Select,
    Store,
    SubgroupBallot,
    SubgroupLocalId,
    SubgroupReduce,
    SubgroupShuffle,
    Trap,
    UnOp,
    Var,
    WorkgroupId,
    lit,
)
from ...foundation.ir.ops import AtomicOp, BinaryOp, ReduceOp, UnaryOp
from ...foundation.ir.program import Access, BufferDecl, Program
from .random import Case
from .random_exprs import OPERANDS, SHIFTED
from .random_values import edge_bits, random_bytes

SHAPES = (
    (1, 1, 1), (2, 1, 1), (16, 1, 1), (17, 1, 1), (31, 1, 1), (32, 1, 1), (33, 1, 1), (64, 1, 1), (100, 1, 1),
    (256, 1, 1), (257, 1, 1), (1024, 1, 1), (33, 2, 1), (3, 5, 7), (1, 40, 1), (1, 1, 9), (16, 4, 1), (16, 8, 2),
    (5, 1, 3), (8, 8, 1), (48, 3, 1),
)  # fmt: skip
SIZES = (0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 100, 255, 256, 257, 1024)
NARROW = (u8, i8, u16, i16, f16, bf16)
BASE = (u32, i32, f32, bool_)
ORDER_FREE = tuple(op for op in AtomicOp if op.order_free)
COMPARES = tuple(op for op in BinaryOp if op.rule == "compare")
REDUCES = {
    u32: tuple(op for op in ReduceOp),
    i32: (ReduceOp.ADD, ReduceOp.MIN, ReduceOp.MAX),
    f32: (ReduceOp.ADD, ReduceOp.MUL, ReduceOp.MIN, ReduceOp.MAX),
}


def lane_program(
    rng: random.Random, *, trap: bool = False, statements: int = 9, without: Collection[DataType] = ()
) -> Case:
    """One case of at most 1,100 invocations; with `trap` one of them may trap, and then it is the only one.

    `without` are types that a device lacks.
    """
    return _Lanes(rng, without).case(trap, statements)


class _Lanes:
    """One program in the making."""

    def __init__(self, rng: random.Random, without: Collection[DataType]) -> None:
        self.rng = rng
        self.workgroup = rng.choice(SHAPES)
        self.lanes = prod(self.workgroup)
        groups = max(1, min(rng.randint(1, 5), 1100 // self.lanes))
        self.grid = rng.choice(((groups, 1, 1), (groups, 1, 1), (1, groups, 1), (1, 1, groups)))
        self.count = self.lanes * groups
        self.types = [*BASE, *rng.sample(NARROW, 3)]
        if rng.random() < 0.4:
            self.types += rng.sample((u64, i64, f64), 2)
        self.types = [t for t in self.types if t not in without]
        self.made = 0
        self.budget = 60_000 // self.count + 40
        self.together = True  # all lanes of the workgroup are here
        self.last = False  # no barrier comes any more: lanes may return
        self.times = 1
        self.names: list[tuple[str, DataType, bool]] = []
        self.lengths: dict[str, int] = {}
        extent = [w * g for w, g in zip(self.workgroup, self.grid, strict=True)]
        self.own: Expr = (InvocationId(2) * extent[1] + InvocationId(1)) * extent[0] + InvocationId(0)
        if prod(extent[1:]) == 1:
            self.own = InvocationId(0)
        x, y, _ = self.workgroup
        self.local: Expr = (LocalId(2) * y + LocalId(1)) * x + LocalId(0) if self.lanes != x else LocalId(0)
        self.declare()

    # ---- buffers

    def declare(self) -> None:
        rng = self.rng
        self.inputs = []
        for k in range(rng.randint(2, 4)):
            n = rng.choice((*SIZES, self.count, self.count))
            static = n if n and rng.random() < 0.3 else 0
            self.inputs.append(self.buffer(f"in{k}", k, Access.READ_ONLY, rng.choice(self.types), n, static))
        self.inputs.append(self.buffer("few", 5, Access.READ_ONLY, u32, 3, 3))
        self.outputs = []
        for k in range(rng.randint(2, 3)):
            n = rng.choice((self.count, self.count, max(1, self.count - 1), self.count + 7, rng.choice(SIZES[1:])))
            access = rng.choice((Access.READ_WRITE, Access.WRITE_ONLY))
            self.outputs.append(self.buffer(f"out{k}", 8 + k, access, rng.choice(self.types), n, n))
        self.cells = self.buffer("cells", 16, Access.READ_WRITE, rng.choice((u32, i32)), self.count, 0)
        self.bins = self.buffer("bins", 17, Access.READ_WRITE, rng.choice((u32, i32)), rng.choice((1, 3, 40)), 0)
        self.bin_op = rng.choice(ORDER_FREE)
        t = rng.choice(self.types)
        n = rng.choice((self.lanes, self.lanes + 3, max(1, self.lanes - 2)))
        self.shared = self.buffer("shared", 0, Access.WORKGROUP, t, n, n)
        self.counts = self.buffer("counts", 0, Access.WORKGROUP, rng.choice((u32, i32)), self.lanes, self.lanes)

    def buffer(self, name: str, slot: int, access: Access, t: DataType, length: int, static: int) -> BufferDecl:
        self.lengths[name] = length
        return BufferDecl(name, slot, access, t, static)

    def case(self, trap: bool, statements: int) -> Case:
        rng = self.rng
        body = self.body(statements, 3)
        if trap:
            who = rng.choice((rng.randrange(self.count), self.count + 5, self.count))
            when = BinOp(BinaryOp.EQ, self.own, lit(who))
            body.append(If(when, (Trap(self.expr(u32, 1), rng.choice(("first", "second"))),)))
        self.together, self.last = False, True
        body += self.body(4, 3)
        if rng.random() < 0.5:
            body.append(If(self.condition(), (Return(),)))
            body += self.body(2, 2)
        body += [self.store(out) for out in self.outputs]
        decls = [*self.inputs, *self.outputs, self.cells, self.bins, self.shared, self.counts]
        program = Program(decls, self.workgroup, body)
        inputs = tuple(random_bytes(rng, b.element, self.lengths[b.name]) for b in program.host_inputs)
        sized = {b.name: self.lengths[b.name] for b in program.host_outputs if not b.count and not b.is_host_input}
        return Case(program, inputs, self.grid, sized)

    # ---- expressions

    def name(self, t: DataType, mutable: bool = True) -> str:
        self.made += 1
        self.names.append((f"v{self.made}", t, mutable))
        return f"v{self.made}"

    def expr(self, t: DataType, depth: int | None = None) -> Expr:
        rng = self.rng
        depth = rng.randint(1, 3) if depth is None else depth
        self.budget -= self.times
        if depth <= 0 or self.budget < 0:
            return self.leaf(t)
        deeper = depth - 1
        ways: list[Callable[[], Expr]] = [
            lambda: self.leaf(t),
            lambda: Select(self.expr(bool_, deeper), self.expr(t, deeper), self.expr(t, deeper)),
        ]
        sources = [s for s in self.types if can_cast(s, t)]
        ways += [lambda: Cast(t, self.expr(rng.choice(sources), deeper))] * 2
        ways += [partial(self.binary, op, t, deeper) for op in BinaryOp if t in OPERANDS.get(op.rule, ())]
        for one in UnaryOp:
            if t in (SHIFTED if one.rule == "bits" else OPERANDS.get(one.rule, ())):
                ways.append(partial(self.unary, one, t, deeper))
        if t == f32:
            ways += [lambda: Fma(self.expr(f32, deeper), self.expr(f32, deeper), self.expr(f32, deeper))] * 3
        if t in (u32, i32, f32):
            other = rng.choice([s for s in (u32, i32, f32) if s != t])
            ways += [lambda: Bitcast(t, self.expr(other, deeper))] * 3
        if t == bool_:
            ways += [lambda: self.compare(deeper)] * 5
            ways += [lambda: UnOp(UnaryOp.LOGICAL_NOT, self.expr(bool_, deeper))]
            ways += [
                lambda: BinOp(
                    rng.choice((BinaryOp.AND, BinaryOp.OR)), self.expr(bool_, deeper), self.expr(bool_, deeper)
                )
            ]
        return rng.choice(ways)()

    def binary(self, op: BinaryOp, t: DataType, depth: int) -> Expr:
        left = self.expr(t, depth)
        return BinOp(op, left, self.right(op, t, depth))

    def unary(self, op: UnaryOp, t: DataType, depth: int) -> Expr:
        return UnOp(op, self.expr(t, depth))

    def right(self, op: BinaryOp, t: DataType, depth: int) -> Expr:
        if op.rule == "shift":
            return self.expr(u32, depth)
        if op in (BinaryOp.DIV, BinaryOp.MOD):  # a divisor that is known to be zero is refused
            return Load("few", self.own % 3) if t == u32 else self.varying(t)
        return self.expr(t, depth)

    def varying(self, t: DataType) -> Expr:
        """A value that is unknown before the program runs."""
        return Cast(t, Load("few", self.own & 3)) if can_cast(u32, t) else self.leaf(t)

    def leaf(self, t: DataType) -> Expr:
        rng = self.rng
        ways: list[Callable[[], Expr]] = [lambda: self.literal(t)]
        known = [n for n, s, _ in self.names if s == t]
        if known:
            ways += [lambda: Var(rng.choice(known[-6:]))] * 4
        readable = [b for b in self.inputs if b.element == t]
        if readable:
            ways += [lambda: Load((b := rng.choice(readable)).name, self.index(b))] * 3
        if t == u32:
            ways += [lambda: rng.choice((self.own, self.local, InvocationId(0), LocalId(0), WorkgroupId(0)))] * 2
            ways += [lambda: BufLen(rng.choice(self.inputs).name)]
            if self.together:
                ways += [SubgroupLocalId]
        return rng.choice(ways)()

    def literal(self, t: DataType) -> Expr:
        rng = self.rng
        if t == bool_:
            return lit(rng.random() < 0.5)
        if t.is_int:
            low, high = t.limits
            return lit(rng.choice((low, high, 0, 1, 2, 3, rng.randint(low, high))), t)
        if t == f32 and rng.random() < 0.6:
            return Bitcast(f32, lit(rng.choice(edge_bits(f32))))
        return lit(rng.choice((0.0, -0.0, 1.0, -1.0, 0.5, 3.0, 1e-20, 1.2e-38, 6e4, float("inf"), float("nan"))), t)

    def compare(self, depth: int) -> Expr:
        t = self.rng.choice(self.types)
        ops = (BinaryOp.EQ, BinaryOp.NE) if t == bool_ else COMPARES
        return BinOp(self.rng.choice(ops), self.expr(t, depth), self.expr(t, depth))

    def condition(self) -> Expr:
        rng = self.rng
        return rng.choice((
            lambda: self.compare(1),
            lambda: self.own < rng.randrange(self.count + 2),
            lambda: BinOp(BinaryOp.EQ, self.own % rng.randint(2, 5), lit(1)),
            lambda: self.own < BufLen(rng.choice((*self.inputs, *self.outputs)).name),
        ))()  # fmt: skip

    def index(self, buffer: BufferDecl) -> Expr:
        """Mostly of neighbours, sometimes anywhere at all."""
        rng, own = self.rng, self.own
        ways: list[Callable[[], Expr]] = [
            lambda: own,
            lambda: own,
            lambda: own - rng.randint(1, 20),
            lambda: own + rng.randint(1, 20),
            lambda: own * rng.randint(2, 5) + rng.randint(0, 3),
            lambda: lit(self.count - 1) - own,
            lambda: own // 4,
            lambda: BinOp(BinaryOp.BIT_XOR, own, lit(rng.choice((1, 5, 1 << 31)))),
            lambda: own + Load("few", lit(rng.randrange(3))),
            lambda: Load("few", lit(rng.randrange(3))),
            lambda: own % BufLen(buffer.name),
            lambda: self.expr(u32, 1),
        ]
        return rng.choice(ways)()

    # ---- statements

    def body(self, most: int, depth: int) -> list[Node]:
        known = len(self.names)
        out: list[Node] = []
        for _ in range(most):
            if self.budget < 0:
                break
            out += self.statement(depth)
        del self.names[known if depth < 3 else len(self.names) :]
        return out

    def statement(self, depth: int) -> list[Node]:
        rng = self.rng
        ways: list[Callable[[int], list[Node]]] = [
            self.let, self.let, self.assign, self.own_store, self.count_up, self.cell, self.constants,
        ]  # fmt: skip
        if depth > 0:
            ways += [self.branch, self.branch]
            if self.times < 40:
                ways += [self.loop, self.leaving_loop, self.leaving_loop]
            if self.last:
                ways += [self.leave]
        if self.together:
            ways += [self.exchange, self.exchange, self.subgroup, self.subgroup, self.tally]
            if depth > 0:
                ways += [self.uniform_branch, self.uniform_loop]
        return rng.choice(ways)(depth - 1)

    def inside(self, depth: int, *, apart: bool, times: int = 1) -> list[Node]:
        outer = self.together, self.times
        self.together, self.times = self.together and not apart, self.times * times
        found = self.body(self.rng.randint(1, 3), depth)
        self.together, self.times = outer
        return found

    def let(self, depth: int) -> list[Node]:
        t = self.rng.choice(self.types)
        value = self.expr(t)
        return [Let(self.name(t), value)]

    def assign(self, depth: int) -> list[Node]:
        mutable = [(n, t) for n, t, m in self.names if m]
        if not mutable:
            return self.let(depth)
        name, t = self.rng.choice(mutable[-8:])
        return [Assign(name, self.expr(t))]

    def constants(self, depth: int) -> list[Node]:
        """Numbers that only meet after they went through locals."""
        rng = self.rng
        a, b = rng.choice(edge_bits(f32)), rng.choice((0x1FFFFFFF, 0x20000000, 0x00FFFFFF, 0x3F800000, 0x80000000))
        x, y = self.name(f32), self.name(f32)
        steps: tuple[Expr, ...] = (Var(x) * Var(y), Var(x) / Var(y), Fma(Var(x), Var(y), Var(x)), Var(x) - Var(y))
        return [
            Let(x, lit(7.0, f32)), Let(y, lit(2.0, f32)), Assign(x, Bitcast(f32, lit(a))),
            Assign(y, Bitcast(f32, lit(b))), Assign(x, rng.choice(steps)),
        ]  # fmt: skip

    def store(self, out: BufferDecl) -> Node:
        return Store(out.name, self.own, self.expr(out.element))

    def own_store(self, depth: int) -> list[Node]:
        """In place, or nowhere: a store out of bounds is dropped."""
        out = self.rng.choice(self.outputs)
        if self.rng.random() < 0.6:
            return [self.store(out)]
        wild = BinOp(BinaryOp.BIT_OR, self.expr(u32, 1), lit(1 << 31))
        return [Store(out.name, Select(self.condition(), self.own, wild), self.expr(out.element))]

    def count_up(self, depth: int) -> list[Node]:
        """An order-free atomic with an unused result."""
        self.made += 1
        at = self.rng.choice((self.own % 3, lit(0), self.index(self.bins), self.own, Load("few", lit(0))))
        return [Let(f"old{self.made}", Atomic(self.bin_op, "bins", at, self.expr(self.bins.element)))]

    def cell(self, depth: int) -> list[Node]:
        """Any atomic on a location of this lane; the old value is used."""
        rng = self.rng
        b, at = rng.choice(((self.cells, self.own), (self.counts, self.local)))
        op = rng.choice(tuple(AtomicOp)) if b is self.cells else rng.choice((*ORDER_FREE, AtomicOp.EXCHANGE))
        if op not in (*ORDER_FREE, AtomicOp.EXCHANGE, AtomicOp.COMPARE_EXCHANGE):
            op = AtomicOp.EXCHANGE
        swap = op is AtomicOp.COMPARE_EXCHANGE
        expected = self.expr(b.element, 1) if swap else None
        value = Atomic(op, b.name, at, self.expr(b.element), expected)
        return [Let(self.name(b.element), value)]

    def tally(self, depth: int) -> list[Node]:
        """Atomics of all lanes on shared memory, looked at behind a barrier."""
        rng = self.rng
        t, op = self.counts.element, rng.choice(ORDER_FREE)
        self.made += 1
        start = Store("counts", self.local, self.expr(t))
        hit = Let(f"old{self.made}", Atomic(op, "counts", self.local // rng.randint(1, 40), self.expr(t)))
        look = Load("counts", rng.choice((self.local, lit(self.lanes - 1) - self.local, lit(0))))
        return [Barrier(), start, Barrier(), hit, Barrier(), Let(self.name(t), look), Barrier()]

    def exchange(self, depth: int) -> list[Node]:
        rng, t = self.rng, self.shared.element
        give: Node = Store("shared", self.local, self.expr(t))
        if rng.random() < 0.3:
            give = If(self.condition(), (give,))
        others = rng.choice((
            lit(self.lanes - 1) - self.local, self.local + 1, self.local - 1, (self.local + 5) % self.lanes,
            self.expr(u32, 1), lit(0), self.own, BinOp(BinaryOp.BIT_XOR, self.local, lit(1)),
        ))  # fmt: skip
        return [Barrier(), give, Barrier(), Let(self.name(t), Load("shared", others)), Barrier()]

    def subgroup(self, depth: int) -> list[Node]:
        rng = self.rng
        t = rng.choice((u32, i32, f32))
        match rng.randrange(3):
            case 0:
                value: Expr = SubgroupReduce(rng.choice(REDUCES[t]), self.expr(t))
            case 1:
                where = rng.choice((SubgroupLocalId() + 1, SubgroupLocalId() ^ 7, self.expr(u32, 1), lit(31), lit(0)))
                value = SubgroupShuffle(self.expr(t), where)
            case _:
                t = u32
                value = SubgroupBallot(self.expr(bool_))
        return [Let(self.name(t), value)]

    def branch(self, depth: int) -> list[Node]:
        condition = self.condition()
        then = self.inside(depth, apart=True)
        return [If(condition, tuple(then), tuple(self.inside(depth, apart=True) if self.rng.random() < 0.5 else ()))]

    def leave(self, depth: int) -> list[Node]:
        return [If(self.condition(), (*self.inside(depth, apart=True), Return()))]

    def uniform_word(self) -> Expr:
        rng = self.rng
        return rng.choice((WorkgroupId(rng.randrange(3)), Load("few", lit(rng.randrange(3))) & 3, BufLen("few")))

    def uniform_branch(self, depth: int) -> list[Node]:
        condition = BinOp(self.rng.choice((BinaryOp.LT, BinaryOp.EQ)), self.uniform_word(), lit(self.rng.randint(0, 3)))
        if self.rng.random() < 0.15:
            return [If(condition, (Return(),))]
        then = self.inside(depth, apart=False)
        return [If(condition, tuple(then), tuple(self.inside(depth, apart=False) if self.rng.random() < 0.4 else ()))]

    def uniform_loop(self, depth: int) -> list[Node]:
        self.made += 1
        index = f"k{self.made}"
        stop = self.rng.choice((lit(self.rng.randint(0, 3)), self.uniform_word()))
        self.names.append((index, u32, False))
        body = self.inside(depth, apart=False, times=3)
        self.names = [n for n in self.names if n[0] != index]
        return [Loop(index, lit(0), stop, tuple(body))]

    def loop(self, depth: int) -> list[Node]:
        """As many times as the lane says."""
        rng = self.rng
        self.made += 1
        index, first = f"k{self.made}", rng.choice((0, 0, 2, 0xFFFFFFFD))
        stop = rng.choice((self.own % 4, self.expr(u32, 1) & 3, lit(3), lit(1)))
        start: Expr = lit(0)
        if first:
            start, stop = lit(first), rng.choice((lit(min(first + 2, 0xFFFFFFFF)), lit(first) + self.own % 3))
        elif rng.random() < 0.3:
            start = self.own & 1
        self.names.append((index, u32, False))
        body = self.inside(depth, apart=True, times=4)
        self.names = [n for n in self.names if n[0] != index]
        return [Loop(index, start, stop, tuple(body))]

    def leaving_loop(self, depth: int) -> list[Node]:
        """A `while` that lanes leave one by one, with a part that some iterations skip."""
        rng = self.rng
        self.made += 1
        live, turn, index, most = f"live{self.made}", f"turn{self.made}", f"k{self.made}", rng.randint(1, 6)
        outer = self.together, self.times
        self.together, self.times = False, self.times * most
        known = len(self.names)
        first = self.body(rng.randint(0, 2), depth)
        skip = self.condition()
        rest = self.body(rng.randint(0, 2), depth)
        ends = rng.choice((
            self.condition(), Var(turn) >= self.own % most, BinOp(BinaryOp.EQ, Var(turn), self.expr(u32, 1)),
        ))  # fmt: skip
        del self.names[known:]
        self.together, self.times = outer
        inside: list[Node] = [Assign(turn, Var(turn) + 1), *first, If(skip, tuple(rest))]
        inside.insert(rng.randint(1, len(inside)), If(ends, (Assign(live, lit(False)),)))
        begin = rng.choice((lit(True), self.condition()))
        loop = Loop(index, lit(0), lit(most), (If(Var(live), tuple(inside)),))
        self.names.append((turn, u32, True))
        return [Let(live, begin), Let(turn, lit(0)), loop]
