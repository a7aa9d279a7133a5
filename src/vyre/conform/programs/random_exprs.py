"""Random expressions of any type, over the buffers and names that a program has at that point."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from math import prod

from ...foundation.ir.dtypes import DataType, bf16, bool_, can_cast, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from ...foundation.ir.nodes import (
    BinOp,
    Bitcast,
    BufLen,
    Cast,
    Expr,
    Fma,
    InvocationId,
    Load,
    LocalId,
    Select,
    SubgroupLocalId,
    SubgroupSize,
    UnOp,
    Var,
    WorkgroupId,
    lit,
)
from ...foundation.ir.ops import AtomicOp, BinaryOp, UnaryOp
from ...foundation.ir.program import Access, BufferDecl
from ...foundation.ir.visit import walk_exprs
from .random_values import edge_bits

MAX_INVOCATIONS = 200
STEPS = 12_000
"""Expressions evaluated over all invocations, about: a scalar interpreter in Python does as many in some 10 ms."""
WORKGROUPS = (
    (1, 1, 1), (2, 1, 1), (7, 1, 1), (16, 1, 1), (32, 1, 1), (33, 1, 1), (64, 1, 1), (4, 4, 1), (3, 1, 5), (2, 3, 4),
)  # fmt: skip
WORDS, LONGS, NARROW = (u32, i32), (u64, i64), (u8, u16, i8, i16)
SHIFTED = WORDS + LONGS
FLOATS = (f32, f16, bf16, f64)
ARITHMETIC = SHIFTED + FLOATS
OPERANDS = {
    "arith": ARITHMETIC, "wrapping": SHIFTED, "mod": SHIFTED, "bits": SHIFTED, "shift": SHIFTED, "saturating": (u32,),
    "abs_diff": (u32,), "mul_high": (u32,), "negate": ARITHMETIC, "float": FLOATS,
}  # fmt: skip
"""Rule of an operator whose result has the type of its (left) operand -> those types."""


@cache
def _binary_of(t: DataType) -> list[BinaryOp]:
    """Operators whose result, and left operand, have this type."""
    return [op for op in BinaryOp if t in OPERANDS.get(op.rule, ())]


@cache
def _unary_of(t: DataType) -> list[UnaryOp]:
    return [op for op in UnaryOp if t in (SHIFTED if op.rule == "bits" else OPERANDS.get(op.rule, ()))]


@dataclass
class OwnedSlots:
    """A buffer of which each invocation owns `stride` neighbouring slots, counted from either end."""

    decl: BufferDecl
    stride: int
    backwards: bool


@dataclass
class SharedBuffer:
    """A buffer of a workgroup, or of the `whole_grid`, and what the present epoch allows: "own" slots, "read" any, or
    one atomic operation on any."""

    decl: BufferDecl
    phase: str | AtomicOp = "own"
    whole_grid: bool = False


@dataclass
class RandomLocal:
    name: str
    type: DataType
    mutable: bool = True


@dataclass
class ProgramExpressions:
    """A program in the making: its geometry, buffers and names, and the expressions over them."""

    rng: random.Random
    types: list[DataType]
    atomics: bool
    barriers: bool
    subgroups: bool
    functions: bool
    turns: int  # of a `while`, at most
    lengths: dict[str, int] = field(default_factory=dict)
    readable: list[BufferDecl] = field(default_factory=list)
    outputs: list[OwnedSlots] = field(default_factory=list)
    bins: list[tuple[BufferDecl, AtomicOp]] = field(default_factory=list)
    shared: list[SharedBuffer] = field(default_factory=list)
    scopes: list[list[RandomLocal]] = field(default_factory=list)
    own: Expr = field(default_factory=lambda: InvocationId(0))
    fresh: int = 0
    left: int = 0  # statements still to make
    trips: int = 1  # how often the statement being made runs, at most
    steps: int = 0
    uniform: bool = True  # every invocation of the workgroup is here
    may_return: bool = False
    lasting: bool = False  # the value being made is the same whenever it is computed

    # -- geometry

    def __post_init__(self) -> None:
        rng = self.rng
        self.workgroup = rng.choice(WORKGROUPS)
        self.lanes = prod(self.workgroup)
        groups = min(rng.randint(1, 4), MAX_INVOCATIONS // self.lanes)
        self.grid = rng.choice(((groups, 1, 1), (groups, 1, 1), (1, groups, 1), (1, 1, groups)))
        self.count = self.lanes * groups
        self.extent = tuple(w * g for w, g in zip(self.workgroup, self.grid, strict=True))
        self.local = self.linear_id(LocalId, self.workgroup)

    def linear_id(self, id_type: type[InvocationId] | type[LocalId], extent: tuple[int, ...]) -> Expr:
        """x fastest; axes of extent 1 are left out."""
        index: Expr | None = None
        for axis in (2, 1, 0):
            if extent[axis] > 1 or axis == 0:
                index = id_type(axis) if index is None else index * extent[axis] + id_type(axis)
        assert index is not None
        return index

    # -- names

    @contextmanager
    def scope(self) -> Iterator[None]:
        self.scopes.append([])
        yield
        self.scopes.pop()

    def bind(self, t: DataType, mutable: bool = True, prefix: str = "v") -> str:
        """A new name in the innermost scope; the caller emits its Let after the value was made."""
        self.fresh += 1
        name = f"{prefix}{self.fresh}"
        self.scopes[-1].append(RandomLocal(name, t, mutable))
        return name

    def locals(self, t: DataType | None = None, mutable: bool = False) -> list[RandomLocal]:
        return [v for s in self.scopes for v in s if (t is None or v.type == t) and (v.mutable or not mutable)]

    def slot(self, out: OwnedSlots) -> Expr:
        """One of the slots of `out` that belong to this invocation alone."""
        index = lit(self.count - 1) - self.own if out.backwards else self.own
        return index if out.stride == 1 else index * out.stride + self.rng.randrange(out.stride)

    def own_index(self, s: SharedBuffer) -> Expr:
        return self.own if s.whole_grid else self.local

    # -- expressions

    def expr(self, t: DataType, depth: int | None = None) -> Expr:
        depth = self.rng.choice((1, 2, 2, 3)) if depth is None else depth
        self.steps += self.trips
        if depth <= 0 or self.steps * self.count > STEPS:
            return self.leaf(t)
        return self.rng.choice(self.makers(t))(depth - 1)

    def leaf(self, t: DataType) -> Expr:
        rng = self.rng
        options: list[Callable[[], Expr]] = [lambda: self.literal(t)]
        if known := self.locals(t):
            options += [lambda: Var(rng.choice(known).name)] * 3
        if any(b.element == t for b in self.loadable()):
            options += [lambda: self.load(t)] * 2
        if t == u32:
            options += [self.word]
        if t == f32:
            options += [lambda: self.tiny(0)]
        return rng.choice(options)()

    def word(self) -> Expr:
        """A u32 that is there without loading it."""
        rng = self.rng
        axis = rng.randrange(3)
        options: list[Expr] = [self.own, InvocationId(axis), LocalId(axis), WorkgroupId(axis), self.local]
        options += [BufLen(rng.choice(self.readable + [o.decl for o in self.outputs]).name)]
        if self.uniform and self.subgroups:
            options += [SubgroupLocalId(), SubgroupSize()]
        return rng.choice(options)

    def literal(self, t: DataType) -> Expr:
        rng = self.rng
        if t == bool_:
            return lit(rng.random() < 0.5)
        if t.is_int:
            low, high = t.limits
            return lit(rng.choice((low, low + 1, 0, 1, 2, 3, 5, high, high - 1, rng.randint(low, high))), t)
        small = rng.randint(-8, 8)
        return lit(rng.choice((0.0, -0.0, 0.5, float(small), 3.4e38, 1.2e-38, 1e-30, float("inf"), float("nan"))), t)

    def divisor(self, t: DataType, depth: int) -> Expr:
        """Anything whose value is not known to be zero before the program runs."""
        e = self.expr(t, depth)
        return e if _varies(e) else lit(self.rng.choice((1, 2, 3, 7, 100)), t)

    def condition(self, depth: int) -> Expr:
        return self.expr(self.rng.choice((bool_, bool_, u32)), depth)

    def loadable(self) -> list[BufferDecl]:
        """Buffers that hold a value this invocation may read now."""
        if self.lasting:
            return self.readable
        own = [o.decl for o in self.outputs if o.decl.access is Access.READ_WRITE]
        return self.readable + own + [s.decl for s in self.shared if isinstance(s.phase, str)]

    def load(self, t: DataType) -> Expr:
        decl = self.rng.choice([b for b in self.loadable() if b.element == t])
        for out in self.outputs:
            if out.decl is decl:
                return Load(decl.name, self.slot(out))
        for sh in self.shared:
            if sh.decl is decl and sh.phase == "own":
                return Load(decl.name, self.own_index(sh))
        return Load(decl.name, self.index(decl))

    def index(self, decl: BufferDecl) -> Expr:
        """Inside or outside; a constant index stays inside, because validation refuses the other kind."""
        rng, length = self.rng, self.lengths[decl.name]
        options: list[Callable[[], Expr]] = [lambda: self.own, lambda: self.own, self.word]
        options += [lambda: self.own + rng.choice((1, 3, 0xFFFFFFFF)), lambda: BufLen(decl.name) - 1 - self.own]
        if length:
            options += [lambda: lit(rng.randrange(length)), lambda: BinOp(BinaryOp.MOD, self.expr(u32, 1), lit(length))]
        options += [lambda: self.own ^ self.expr(u32, 1)]
        return rng.choice(options)()

    def makers(self, t: DataType) -> list[Callable[[int], Expr]]:
        """Every way to compute a `t`, one entry per operator."""
        rng = self.rng

        def binary(op: BinaryOp) -> Callable[[int], Expr]:
            def make(depth: int) -> Expr:
                left = self.expr(t, depth)
                if op in (BinaryOp.DIV, BinaryOp.MOD):
                    return BinOp(op, left, self.divisor(t, depth))
                return BinOp(op, left, self.expr({"shift": u32, "scale": i32}.get(op.rule, t), depth))

            return make

        def unary(op: UnaryOp, operands: tuple[DataType, ...]) -> Callable[[int], Expr]:
            return lambda depth: UnOp(op, self.expr(rng.choice(operands), depth))

        found = [binary(op) for op in _binary_of(t)] + [unary(op, (t,)) for op in _unary_of(t)]
        if t == bool_:
            found += [self.comparison] * 6 + [self.logic] * 3
            if f32 in self.types:
                found += [lambda d: BinOp(rng.choice((BinaryOp.EQ, BinaryOp.NE)), self.tiny(d), lit(0.0))] * 2
            tested = tuple(s for s in self.types if s in FLOATS)
            found += [unary(op, tested) for op in UnaryOp if op.rule == "float_test" and tested]
            found += [unary(UnaryOp.LOGICAL_NOT, (u32, bool_))]
        if t == u32:
            found += [unary(op, WORDS) for op in UnaryOp if op.rule == "unpack"]
        if t == i32 and self.functions:
            found += [unary(UnaryOp.FREXP_EXPONENT, (f32,))]
        if t == f32 and self.functions:
            found += [unary(op, (f32,)) for op in UnaryOp if op.is_function and op.rule != "exponent"]
            found += [binary(op) for op in BinaryOp if op.is_function]
        if t == f32:
            found += [lambda d: Fma(self.expr(f32, d), self.expr(f32, d), self.expr(f32, d))] * 2
            found += [self.tiny] * 3
        if t in FLOATS:
            found += [lambda d: self.unchanged(t, d)] * 2
        found += [lambda d: Select(self.condition(d), self.expr(t, d), self.expr(t, d))] * 2
        sources = [s for s in self.types if can_cast(s, t)]
        found += [lambda d: Cast(t, self.expr(rng.choice(sources), d))] * 3
        same_bits = [s for s in (u32, i32, f32) if s in self.types and s != t]
        if t in (u32, i32, f32):
            found += [lambda d: Bitcast(t, self.expr(rng.choice(same_bits), d))] * 2
        return found

    def tiny(self, depth: int) -> Expr:
        """An f32 made of a word that is computed here, which is mostly a subnormal or next to one."""
        word, rng = self.expr(u32, depth), self.rng

        def part(mask: int) -> Expr:
            return BinOp(BinaryOp.BIT_AND, word, lit(mask))

        options: tuple[Callable[[], Expr], ...] = (
            lambda: part(rng.choice((1, 0xFF, 0x7FFFFF, 0x807FFFFF, 0x00FFFFFF))),
            lambda: BinOp(BinaryOp.SHR, word, lit(rng.choice((9, 9, 8, 20)))),
            lambda: part(0x80000001) ^ lit(rng.choice(edge_bits(f32))),
            lambda: Cast(u32, Cast(rng.choice((u8, u16)), word)),
        )
        return Bitcast(f32, rng.choice(options)())

    def unchanged(self, t: DataType, depth: int) -> Expr:
        """A float after a step that gives the same number, except that it flushes."""
        x, rng = self.expr(t, depth), self.rng
        op, neutral = rng.choice((
            (BinaryOp.ADD, 0.0), (BinaryOp.ADD, -0.0), (BinaryOp.SUB, 0.0), (BinaryOp.MUL, 1.0), (BinaryOp.DIV, 1.0),
        ))  # fmt: skip
        if t == f32 and rng.random() < 0.2:
            return rng.choice((lambda: Fma(x, lit(1.0), lit(-0.0)), lambda: Fma(lit(0.0), lit(-0.0), x)))()
        return BinOp(op, x, lit(neutral, t))

    def comparison(self, depth: int) -> Expr:
        t, rng = self.rng.choice(self.types), self.rng
        ops = [op for op in BinaryOp if op.rule == "compare" and (t != bool_ or op in (BinaryOp.EQ, BinaryOp.NE))]
        if t in FLOATS and rng.random() < 0.4:
            return BinOp(rng.choice(ops), self.expr(t, depth), lit(rng.choice((0.0, -0.0)), t))
        return BinOp(rng.choice(ops), self.expr(t, depth), self.expr(t, depth))

    def logic(self, depth: int) -> Expr:
        return BinOp(self.rng.choice((BinaryOp.AND, BinaryOp.OR)), self.condition(depth), self.condition(depth))

    def uniform_word(self) -> Expr:
        """A u32 that all invocations of a workgroup agree on, whatever they did before."""
        rng = self.rng
        options: list[Callable[[], Expr]] = [
            lambda: WorkgroupId(rng.randrange(3)),
            lambda: BufLen(rng.choice(self.readable).name),
            lambda: lit(rng.randrange(4)),
        ]
        constant = [b for b in self.readable if b.element == u32 and self.lengths[b.name]]
        if constant:
            options.append(lambda: Load(rng.choice(constant).name, lit(0)))
        return rng.choice(options)()


def _varies(e: Expr) -> bool:
    """Whether the value is unknown before the program runs."""
    return any(isinstance(x, Var | Load | BufLen | InvocationId | LocalId | WorkgroupId) for x in walk_exprs(e))
