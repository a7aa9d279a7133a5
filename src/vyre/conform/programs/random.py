"""Random valid programs whose result does not depend on the schedule, with inputs to match.

Plain Python over one `random.Random`, so that a long run needs a seed and nothing else. Determinism is built in: an
invocation plainly writes only slots it owns, reads of shared memory are separated from writes by barriers, atomics on
one buffer are one order-free operation whose result nobody uses, and barriers and subgroup operations stand in uniform
flow before any early return. Between grid-wide barriers the same holds for memory that the whole grid shares.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any

from ...foundation.ir.dtypes import DataType, bf16, bool_, can_cast, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from ...foundation.ir.nodes import (
    Assign,
    Atomic,
    Barrier,
    BinOp,
    Bitcast,
    Block,
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
    Region,
    Return,
    Select,
    Store,
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
from ...foundation.ir.ops import AtomicOp, BinaryOp, Ordering, ReduceOp, UnaryOp
from ...foundation.ir.program import Access, BufferDecl, Hints, Locality, Program
from ...foundation.ir.visit import walk_exprs

MAX_INVOCATIONS = 200
STEPS = 12_000
"""Expressions evaluated over all invocations, about: a scalar interpreter in Python does as many in some 10 ms."""

DEPTH = 3
"""How deep statements nest below a region."""

WORKGROUPS = (
    (1, 1, 1), (2, 1, 1), (7, 1, 1), (16, 1, 1), (32, 1, 1), (33, 1, 1), (64, 1, 1), (4, 4, 1), (3, 1, 5), (2, 3, 4),
)  # fmt: skip
WORDS, LONGS, NARROW = (u32, i32), (u64, i64), (u8, u16, i8, i16)
SHIFTED = WORDS + LONGS
FLOATS = (f32, f16, bf16, f64)
ARITHMETIC = SHIFTED + FLOATS
ORDER_FREE = tuple(op for op in AtomicOp if op.order_free)
ATOMIC_ORDERINGS = tuple(o for o in Ordering if o is not Ordering.GRID_SYNC)
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


@dataclass(frozen=True)
class Case:
    """A program, its inputs in the order of `program.host_inputs`, the grid in workgroups, and the lengths of outputs
    that are sized at dispatch."""

    program: Program
    inputs: tuple[bytes, ...]
    grid: tuple[int, int, int]
    output_elements: dict[str, int]


def random_program(
    rng: random.Random,
    *,
    floats: bool = True,
    wide: bool = True,
    atomics: bool = True,
    shared: bool = True,
    barriers: bool = True,
    subgroups: bool = True,
    grid_barriers: bool = False,
    functions: bool = False,
    endless: bool = True,
    max_statements: int = 16,
    without: Collection[DataType] = (),
) -> Case:
    """One case. `wide` adds the types that not every device has (u64 i64 f16 bf16 f64), less those `without`; `shared`
    without `barriers` leaves workgroup memory private to its owner's slots; with `grid_barriers`, workgroups exchange
    data; `functions` adds those of the math library; without `endless` loops, those that end by a condition end after a
    fixed number of turns as well. Validation may warn (narrowing casts), never refuse."""
    types = [u32, i32, bool_, *NARROW]
    if floats:
        types.append(f32)
    if wide:
        types += [u64, i64]
        if floats:
            types += [f16, bf16, f64]
        types = [t for t in types if t not in without]
    turns = 0xFFFFFFFF if endless else 8
    maker = _Maker(
        rng, types, atomics=atomics, barriers=barriers, subgroups=subgroups, functions=functions, turns=turns
    )
    maker.declare(shared=shared, exchange=grid_barriers)
    return maker.case(maker.segments(max_statements) if grid_barriers else maker.regions(max_statements))


# ---- values ---------------------------------------------------------------------------------------------------------

_F32_EDGES = (
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00400000,  # zeros and subnormals
    0x00800000, 0x80800000, 0x00800001, 0x00FFFFFF, 0x01000000, 0x01800000, 0x0C800000,  # around 2**-126, small
    0x1F800000, 0x20000000, 0x9FFFFFFF, 0x1FFFFFFF, 0x34000000,  # products of these land around 2**-126
    0x3F800000, 0xBF800000, 0x3F800001, 0x3F7FFFFF, 0x3F000000, 0xBF000000, 0x40000000, 0x40490FDB, 0xC0200000,
    0x4B000000, 0x4B800001, 0x4EFFFFFF, 0x4F000000, 0xCF000000, 0x4F800000, 0x5F000000,  # around 2**23, 2**31, 2**32
    0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000,  # largest, infinite
    0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFBFFFFF, 0x7FFFFFFF,  # quiet and signalling payloads
)  # fmt: skip
_F64_EDGES = (
    0, 1 << 63, 1, 0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x3FF0000000000000, 0xBFF0000000000000, 0x3FE0000000000000,
    0xC004000000000000, 0x3810000000000000, 0x380FFFFFE0000000, 0x36A0000000000000, 0x47EFFFFFE0000000,
    0x47EFFFFFF0000000, 0x41DFFFFFFFC00000, 0x41E0000000000000, 0x41F0000000000000, 0x43E0000000000000,
    0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000, 0xFFF8000000000001,
    0x7FF0000000000001,
)  # fmt: skip
_F16_EDGES = (
    0, 0x8000, 1, 0x8001, 0x03FF, 0x0400, 0x0401, 0x3C00, 0xBC00, 0x3BFF, 0x3800, 0x4000, 0x6400, 0x7BFF, 0xFBFF,
    0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7C01,
)  # fmt: skip


def edge_bits(t: DataType) -> tuple[int, ...]:
    """Bit patterns of `t` at which engines tend to differ."""
    match t.name:
        case "f32":
            return _F32_EDGES
        case "f64":
            return _F64_EDGES
        case "f16":
            return _F16_EDGES
        case "bf16":
            return tuple(sorted({bits >> 16 for bits in _F32_EDGES}))
        case "bool":
            return 0, 1, 2, 0xFFFFFFFF
    width = t.bits or 0
    high = 1 << width - 1
    return 0, 1, 2, 3, 7, width - 1, width, high - 1, high, high + 1, 2 * high - 1, 2 * high - 2


def random_bytes(rng: random.Random, t: DataType, count: int) -> bytes:
    """`count` elements of `t`, mostly edges."""
    size, edges = t.size or 0, edge_bits(t)

    def bits() -> int:
        roll = rng.random()
        if roll < 0.6:
            return rng.choice(edges)
        return rng.getrandbits(8 * size) if roll < 0.8 else rng.randrange(16)

    return b"".join(bits().to_bytes(size, "little") for _ in range(count))


# ---- the generator --------------------------------------------------------------------------------------------------


@dataclass
class _Slots:
    """A buffer of which each invocation owns `stride` neighbouring slots, counted from either end."""

    decl: BufferDecl
    stride: int
    backwards: bool


@dataclass
class _Shared:
    """A buffer of a workgroup, or of the `whole_grid`, and what the present epoch allows: "own" slots, "read" any, or
    one atomic operation on any."""

    decl: BufferDecl
    phase: str | AtomicOp = "own"
    whole_grid: bool = False


@dataclass
class _Local:
    name: str
    type: DataType
    mutable: bool = True


@dataclass
class _Maker:
    rng: random.Random
    types: list[DataType]
    atomics: bool
    barriers: bool
    subgroups: bool
    functions: bool
    turns: int  # of a `while`, at most
    lengths: dict[str, int] = field(default_factory=dict)
    readable: list[BufferDecl] = field(default_factory=list)
    outputs: list[_Slots] = field(default_factory=list)
    bins: list[tuple[BufferDecl, AtomicOp]] = field(default_factory=list)
    shared: list[_Shared] = field(default_factory=list)
    scopes: list[list[_Local]] = field(default_factory=list)
    own: Expr = field(default_factory=lambda: InvocationId(0))
    fresh: int = 0
    left: int = 0  # statements still to make
    trips: int = 1  # how often the statement being made runs, at most
    steps: int = 0
    uniform: bool = True  # every invocation of the workgroup is here
    may_return: bool = False
    lasting: bool = False  # the value being made is the same whenever it is computed

    # -- geometry and buffers

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

    def declare(self, *, shared: bool, exchange: bool) -> None:
        rng, slot = self.rng, 0
        slots = rng.sample(range(24), 16)  # neither dense nor in order of declaration

        def bound(name: str, access: Access, t: DataType, length: int, static: bool, **more: Any) -> BufferDecl:
            nonlocal slot
            decl = BufferDecl(name, slots[slot], access, t, length if static else 0, **more)
            if rng.random() < 0.1:
                decl = decl.replace(hints=Hints(0, 16, rng.choice(tuple(Locality))))
            slot += 1
            self.lengths[name] = length
            return decl

        for k in range(rng.randint(1, 4)):
            t = rng.choice(self.types)
            if rng.random() < 0.2:
                self.readable.append(bound(f"uni{k}", Access.UNIFORM, t, rng.randint(1, 4), True))
            else:
                length = rng.choice((self.count, self.count, rng.randint(1, self.count + 5), 0))
                self.readable.append(bound(f"in{k}", Access.READ_ONLY, t, length, length > 0 and rng.random() < 0.5))
        single = rng.random() < 0.5  # whether one output is the declared result
        for k in range(rng.randint(1, 3)):
            stride = rng.choice((1, 1, 2))
            length = rng.choice((self.count * stride, self.count * stride, rng.randint(1, self.count * stride + 3)))
            t = rng.choice(self.types)
            static = rng.random() < 0.6
            if single and k == 0:
                decl = bound("out0", Access.READ_WRITE, t, length, True, is_output=True, live_out=True)
                if rng.random() < 0.2:
                    size = t.size or 0
                    start = rng.randint(0, length - 1)
                    decl = decl.replace(output_byte_range=(start * size, rng.randint(start, length) * size))
            else:
                access = rng.choice((Access.READ_WRITE, Access.WRITE_ONLY))
                live = access is Access.READ_WRITE and static and rng.random() < 0.3
                decl = bound(f"out{k}", access, t, length, static, live_out=live)
            self.outputs.append(_Slots(decl, stride, rng.random() < 0.2))
        if self.atomics:
            for k in range(rng.randint(0, 2)):
                length = rng.randint(1, 9)
                decl = bound(f"bins{k}", Access.READ_WRITE, rng.choice(WORDS), length, rng.random() < 0.5)
                self.bins.append((decl, rng.choice(ORDER_FREE)))
        if shared:
            for k in range(rng.randint(0, 2)):
                length = rng.choice((self.lanes, self.lanes, self.lanes + 3, max(1, self.lanes - 1)))
                decl = BufferDecl(f"sh{k}", 0, Access.WORKGROUP, rng.choice(self.types), length)
                self.lengths[decl.name] = length
                self.shared.append(_Shared(decl))
        if exchange:
            for k in range(rng.randint(1, 2)):
                length = rng.choice((self.count, self.count, self.count + 3, max(1, self.count - 2)))
                t, static = rng.choice(self.types), rng.random() < 0.5
                decl = bound(f"grid{k}", Access.READ_WRITE, t, length, static, live_out=static and rng.random() < 0.3)
                self.shared.append(_Shared(decl, whole_grid=True))

    def regions(self, max_statements: int) -> list[Node]:
        """A part in which all invocations go together, one in which they do not, and one with early returns."""
        rng = self.rng
        in_step = rng.randint(0, max_statements)
        apart = rng.randint(0, max_statements - in_step)
        regions: list[Region] = []
        for k, quota in enumerate((in_step, apart, max_statements - in_step - apart)):  # the last has early returns
            body: list[Node] = []
            self.left, self.uniform, self.may_return = quota, k == 0, k == 2
            with self.scope():
                self.own = self.linear_id(InvocationId, self.extent)
                if rng.random() < 0.5:
                    name = self.bind(u32, mutable=False)
                    body.append(Let(name, self.own))
                    self.own = Var(name)
                body += self.statements(DEPTH, quota)
                if k == 2:
                    body += [self.store(out) for out in self.outputs]
                    if rng.random() < 0.1:
                        body.append(Return())
            if body:
                regions.append(Region(f"part{k}", tuple(body)))
        entry: list[Node] = list(regions)
        if rng.random() < 0.3:
            entry = [Region("test.case", tuple(Block(r.body) if rng.random() < 0.5 else r for r in regions))]
        return entry

    def segments(self, max_statements: int) -> list[Node]:
        """Parts with grid-wide barriers between them; the barriers may stand inside wrappers of several parts."""
        rng = self.rng
        count = rng.randint(2, 4)
        local = [s for s in self.shared if not s.whole_grid]
        home = {id(s): rng.randrange(count) for s in local}  # workgroup memory does not outlive its segment
        wide = [s for s in self.shared if s.whole_grid]
        parts: list[list[Node]] = []
        with self.scope():
            self.own = self.linear_id(InvocationId, self.extent)
            head = self.carried_lets()
            for k in range(count):
                self.shared = wide + [s for s in local if home[id(s)] == k]
                for s in wide if k else ():
                    s.phase = self.any_phase(s)
                self.left = quota = max_statements // count
                last = k == count - 1
                self.may_return = last and rng.random() < 0.5
                self.uniform = not self.may_return
                with self.scope():
                    body = [self.exchange(s) for s in wide if rng.random() < 0.9]
                    body += self.statements(DEPTH, quota)
                    body += [self.store(out) for out in self.outputs if last or rng.random() < 0.3]
                parts.append([Block(tuple(body))] if rng.random() < 0.3 else body)
            self.shared = wide + local
        while len(parts) > 1:  # join neighbours around their barrier, some of them in a wrapper
            k = rng.randrange(len(parts) - 1)
            joined = [*parts[k], Barrier(Ordering.GRID_SYNC), *parts.pop(k + 1)]
            wrapper = rng.choice((Block(tuple(joined)), Region("wrap", tuple(joined))))
            parts[k] = [wrapper] if rng.random() < 0.4 else joined
        return [Region("test.segments", (*head, *parts[0]))]

    def exchange(self, s: _Shared) -> Node:
        """Use memory of the whole grid as the present segment allows: leave something for others, or take theirs."""
        name, t = s.decl.name, s.decl.element
        others = self.rng.choice((BufLen(name) - 1 - self.own, self.own + self.lanes, self.index(s.decl)))
        if isinstance(s.phase, AtomicOp):
            self.fresh += 1
            return Let(f"old{self.fresh}", Atomic(s.phase, name, others, self.expr(t)))
        if s.phase == "own":
            return Store(name, self.own, self.expr(t))
        takers = [o for o in self.outputs if o.decl.element == t or can_cast(t, o.decl.element)]
        if not takers:
            return Let(self.bind(t), Load(name, others))
        out = self.rng.choice(takers)
        value = Load(name, others) if out.decl.element == t else Cast(out.decl.element, Load(name, others))
        return Store(out.decl.name, self.slot(out), value)

    def carried_lets(self) -> list[Node]:
        """Names that every segment may use: what they stand for does not change."""
        out: list[Node] = []
        self.lasting = True
        if self.rng.random() < 0.5:
            name = self.bind(u32, mutable=False)
            out.append(Let(name, self.own))
            self.own = Var(name)
        for _ in range(self.rng.randint(0, 3)):
            t = self.rng.choice(self.types)
            value = self.expr(t)
            out.append(Let(self.bind(t, mutable=False), value))
        self.lasting = False
        return out

    def case(self, entry: list[Node]) -> Case:
        rng = self.rng
        decls = [
            *self.readable, *(o.decl for o in self.outputs), *(b for b, _ in self.bins), *(s.decl for s in self.shared),
        ]  # fmt: skip
        rng.shuffle(decls)
        program = Program(decls, self.workgroup, entry)
        fill = random.Random(rng.getrandbits(32))  # one draw, however long the inputs are
        inputs = tuple(random_bytes(fill, b.element, self.lengths[b.name]) for b in program.host_inputs)
        sized = {b.name: self.lengths[b.name] for b in program.host_outputs if not b.count and not b.is_host_input}
        return Case(program, inputs, self.grid, sized)

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
        self.scopes[-1].append(_Local(name, t, mutable))
        return name

    def locals(self, t: DataType | None = None, mutable: bool = False) -> list[_Local]:
        return [v for s in self.scopes for v in s if (t is None or v.type == t) and (v.mutable or not mutable)]

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

    # -- statements

    def statements(self, depth: int, most: int) -> list[Node]:
        """Up to `most` statements in the present scope. A Return can only be the last."""
        out: list[Node] = []
        for _ in range(most):
            if self.left <= 0 or self.steps * self.count > STEPS:
                break
            self.left -= 1
            makers: list[Callable[[int], list[Node]]] = [self.let, self.let, self.let, self.own_store, self.own_store]
            if self.locals(mutable=True):
                makers += [self.assign] * 2
            if self.bins or any(isinstance(s.phase, AtomicOp) for s in self.shared):
                makers += [self.atomic] * 2
            if depth > 0:
                makers += [self.branch] * 3 + [self.block]
                if self.trips <= 8:
                    makers += [self.loop] * 2 + [self.while_loop]
            if self.uniform and self.barriers:
                makers += [self.barrier] * 3
            if self.uniform and self.subgroups:
                makers += [self.subgroup] * 2
            out += self.rng.choice(makers)(depth - 1)
        if self.may_return and depth < DEPTH and self.rng.random() < 0.2:
            out.append(Return())
        return out

    def body(self, depth: int, *, uniform: bool = False, trips: int = 1) -> tuple[Node, ...]:
        """A nested sequence. Shared memory is in the same phase after it as before, so it may run any number of times,
        and statements of the last epoch inside may meet those of the first."""
        outer, phases = (self.uniform, self.trips), [s.phase for s in self.shared]
        self.uniform, self.trips = self.uniform and uniform, self.trips * trips
        with self.scope():
            out = self.statements(depth, self.rng.randint(1, 4))
        self.uniform, self.trips = outer
        if phases != [s.phase for s in self.shared]:
            out.append(Barrier())
            for s, phase in zip(self.shared, phases, strict=True):
                s.phase = phase
        return tuple(out)

    def let(self, depth: int) -> list[Node]:
        t = self.rng.choice(self.types)
        value = self.expr(t)
        return [Let(self.bind(t), value)]

    def assign(self, depth: int) -> list[Node]:
        target = self.rng.choice(self.locals(mutable=True))
        return [Assign(target.name, self.expr(target.type))]

    def slot(self, out: _Slots) -> Expr:
        """One of the slots of `out` that belong to this invocation alone."""
        index = lit(self.count - 1) - self.own if out.backwards else self.own
        return index if out.stride == 1 else index * out.stride + self.rng.randrange(out.stride)

    def own_index(self, s: _Shared) -> Expr:
        return self.own if s.whole_grid else self.local

    def store(self, out: _Slots) -> Node:
        return Store(out.decl.name, self.slot(out), self.expr(out.decl.element))

    def own_store(self, depth: int) -> list[Node]:
        private = [s for s in self.shared if s.phase == "own"]
        if private and self.rng.random() < 0.6:
            s = self.rng.choice(private)
            return [Store(s.decl.name, self.own_index(s), self.expr(s.decl.element))]
        return [self.store(self.rng.choice(self.outputs))]

    def atomic(self, depth: int) -> list[Node]:
        """For its effect: the old value is bound to a name that nobody reads."""
        here = self.bins + [(s.decl, s.phase) for s in self.shared if isinstance(s.phase, AtomicOp)]
        decl, op = self.rng.choice(here)
        ordering = self.rng.choice(ATOMIC_ORDERINGS)
        value = Atomic(op, decl.name, self.index(decl), self.expr(decl.element), None, ordering)
        self.fresh += 1
        return [Let(f"old{self.fresh}", value)]

    def branch(self, depth: int) -> list[Node]:
        uniform = self.uniform and self.rng.random() < 0.5
        if uniform:
            ops = (BinaryOp.LT, BinaryOp.EQ, BinaryOp.GE)
            condition: Expr = BinOp(self.rng.choice(ops), self.uniform_word(), self.uniform_word())
        else:
            condition = self.condition(2)
        then = self.body(depth, uniform=uniform)
        return [If(condition, then, self.body(depth, uniform=uniform) if self.rng.random() < 0.5 else ())]

    def block(self, depth: int) -> list[Node]:
        self.fresh += 1
        body = self.body(depth, uniform=True)
        ends = bool(body) and isinstance(body[-1], Return)  # a block is no place to hide a return before statements
        return [Region(f"block{self.fresh}", body) if ends or self.rng.random() < 0.5 else Block(body)]

    def loop(self, depth: int) -> list[Node]:
        rng = self.rng
        uniform = self.uniform and rng.random() < 0.6
        first = rng.choice((0, 0, 1, 3, 0xFFFFFFFC))
        start, stop = lit(first), lit(min(first + rng.randint(0, 4), 0xFFFFFFFF))
        if rng.random() < 0.5:
            bound = self.uniform_word() if uniform else self.expr(u32, 2)
            start, stop = lit(rng.randrange(2)), BinOp(BinaryOp.MOD, bound, lit(rng.randint(1, 5)))
        with self.scope():
            var = self.bind(u32, mutable=False, prefix="k")
            return [Loop(var, start, stop, self.body(depth, uniform=uniform, trips=4))]

    def while_loop(self, depth: int) -> list[Node]:
        """The shape that a `while` takes: the loop has no end of its own, and leaves once `go` is false."""
        rng = self.rng
        self.fresh += 1
        go, var, turns = Var(f"go{self.fresh}"), f"w{self.fresh}", Var(self.bind(u32, mutable=False, prefix="n"))
        again: Expr = turns < rng.randint(0, 4)
        if rng.random() < 0.5:
            again = BinOp(BinaryOp.AND, again, self.condition(1))
        with self.scope():
            body: tuple[Node, ...] = (Assign(turns.name, turns + 1), *self.body(depth, trips=4))
            if rng.random() < 0.5 and not isinstance(body[-1], Return):
                leave: tuple[Node, ...] = (If(self.condition(1), (Assign(go.name, lit(False)),)),)
                body += (*leave, If(go, self.body(depth, trips=4)))
        inner = If(go, (Assign(go.name, again), If(go, body)))
        return [Let(turns.name, lit(0)), Let(go.name, lit(True)), Loop(var, lit(0), lit(self.turns), (inner,))]

    def barrier(self, depth: int) -> list[Node]:
        """A new epoch, in which shared memory may serve another purpose."""
        for s in self.shared:
            if not s.whole_grid:
                s.phase = self.any_phase(s)
        return [Barrier(self.rng.choice((Ordering.SEQ_CST, Ordering.ACQ_REL)))]

    def any_phase(self, s: _Shared) -> str | AtomicOp:
        phases: list[str | AtomicOp] = ["own", "read"]
        atomic = s.decl.element in WORDS and (self.atomics or not s.whole_grid)
        return self.rng.choice(phases + [self.rng.choice(ORDER_FREE)] * atomic)

    def subgroup(self, depth: int) -> list[Node]:
        rng = self.rng
        t = rng.choice([t for t in (u32, i32, f32) if t in self.types])
        kind = rng.randrange(3)
        value: Expr
        if kind == 0:
            t, value = u32, SubgroupBallot(self.condition(2))
        elif kind == 1:
            value = SubgroupShuffle(self.expr(t), self.expr(u32, 1))
        else:
            bitwise = (ReduceOp.AND, ReduceOp.OR, ReduceOp.XOR)
            op = rng.choice([op for op in ReduceOp if t != f32 or op not in bitwise])
            value = SubgroupReduce(op, self.expr(t))
        return [Let(self.bind(t), value)]


def _varies(e: Expr) -> bool:
    """Whether the value is unknown before the program runs."""
    return any(isinstance(x, Var | Load | BufLen | InvocationId | LocalId | WorkgroupId) for x in walk_exprs(e))
