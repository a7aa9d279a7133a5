"""Hypothesis strategies: programs of every shape, and valid programs with inputs.

`arbitrary_programs` is for code that must carry a program without understanding it (wire form, text form, printing,
validation); `valid_programs` is for code that runs one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import strategies as st

from ...driver.contract.values import U32_MAX
from ...foundation.ir.dtypes import (
    QUANTIZED_STORAGE,
    SCALES,
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
    u32,
    u64,
    vec_type,
)
from ...foundation.ir.nodes import (
    AllGather,
    AllReduce,
    Assign,
    AsyncLoad,
    AsyncStore,
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
    LocalId,
    Loop,
    Node,
    Opaque,
    OpaqueNode,
    ReduceScatter,
    Region,
    Return,
    Select,
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
    f32_bits,
)
from ...foundation.ir.ops import AtomicOp, BinaryOp, CollectiveOp, OpaqueOp, Ordering, ReduceOp, UnaryOp
from ...foundation.ir.program import Access, BufferDecl, Hints, LinearType, Locality, MemoryKind, Predicate, Program
from .random import Case, random_program

__all__ = ["Case", "arbitrary_programs", "valid_programs"]

T = TypeVar("T")
words = st.one_of(st.integers(0, 9), st.sampled_from((U32_MAX, 1 << 31)), st.integers(0, U32_MAX))
names = st.one_of(
    st.sampled_from(("a", "b", "out", "x", "i", "let", "gid", "u32", "a b", "", "0", 'q"\\\n', "длина", "\u2028")),
    st.text(st.characters(codec="utf-8"), max_size=6),
)
kinds = st.one_of(st.sampled_from(("ext.matmul", "vyre.node.let", 'k"')), st.text("ab.é", min_size=1, max_size=5))
extension_ids = st.integers(1 << 31, U32_MAX)


# ---- programs of every shape ----------------------------------------------------------------------------------------


def _scales(channel_axis: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[str, int]]:
    return st.one_of(
        st.just((SCALES[0], 0)),
        st.tuples(st.just(SCALES[1]), channel_axis),
        st.tuples(st.just(SCALES[2]), channel_axis.filter(bool)),
    )


simple_types = st.sampled_from(tuple(SIMPLE.values()))
element_types: st.SearchStrategy[DataType] = st.one_of(
    simple_types,
    st.sampled_from(tuple(t for t in SIMPLE.values() if not t.live)),
    st.integers(1, 1 << 16).map(array_type),
    extension_ids.map(opaque_type),
    st.builds(quantized_type, st.sampled_from(QUANTIZED_STORAGE), _scales(words), st.none() | _scales(words)),
)
cast_types: st.SearchStrategy[DataType] = st.recursive(
    element_types, lambda inner: st.builds(vec_type, inner, st.integers(1, 255)), max_leaves=2
)


@st.composite
def literals(draw: st.DrawFn) -> Lit:
    """A literal as the constructors make them: canonical bits of a type that has literals."""
    t = draw(st.sampled_from((u32, i32, bool_, f32, u64, i64, f64)))
    if t == f32:
        bits = f32_bits(draw(st.floats(width=32)))
        return Lit(f32, 0 if bits == 0x80000000 else bits)
    if t == f64:
        bits = draw(st.integers(0, (1 << 64) - 1))
        nan = bits & 0x7FF0000000000000 == 0x7FF0000000000000 and bits & 0xFFFFFFFFFFFFF
        return Lit(f64, 0x7FF8000000000000 if nan else bits)
    return Lit(t, draw(st.integers(0, 1) if t == bool_ else words | st.integers(0, (1 << (t.bits or 0)) - 1)))


predicates: st.SearchStrategy[Predicate] = st.recursive(
    st.one_of(
        st.builds(
            lambda kind, n: Predicate(kind, (n,)),
            st.sampled_from(("at_least", "at_most", "exactly", "multiple_of")),
            words,
        ),
        st.builds(lambda *args: Predicate("mod_equals", args), words, words),
        st.builds(lambda *args: Predicate("affine", args), *[st.integers(-(1 << 63), (1 << 63) - 1)] * 4),
    ),
    lambda inner: st.one_of(
        st.builds(lambda kind, *args: Predicate(kind, args), st.sampled_from(("and", "or")), inner, inner),
        st.builds(lambda p: Predicate("not", (p,)), inner),
    ),
    max_leaves=4,
)
hints = st.builds(Hints, st.none() | st.integers(0, 255), words, st.sampled_from(Locality))


@st.composite
def buffers(draw: st.DrawFn) -> BufferDecl:
    """A declaration that the wire form can hold."""
    access = draw(st.sampled_from(Access))
    element = draw(element_types)
    count = draw(words)
    output = live = False
    if access is Access.WORKGROUP:
        count = count or 1
    elif count:
        output, live = draw(st.booleans()), draw(st.booleans())
    decl = BufferDecl(
        draw(names),
        draw(words),
        access,
        element,
        count,
        kind=draw(st.none() | st.sampled_from(MemoryKind)),
        is_output=output,
        live_out=live,
    )
    if not draw(st.booleans()):
        return decl
    end = min(draw(words), U32_MAX if decl.nbytes is None else decl.nbytes)
    return decl.replace(
        output_byte_range=draw(st.none() | st.tuples(st.integers(0, end), st.just(end))),
        hints=draw(hints),
        bytes_extraction=draw(st.booleans()),
        linear_type=draw(st.sampled_from(LinearType)),
        shape_predicate=draw(st.none() | predicates),
    )


class _Shapes:
    """Draws expressions and statements. Depth counts what the wire form counts, types included."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.size_left = 120

    def one(self, options: list[Callable[[], T]]) -> T:
        return options[self.draw(st.integers(0, len(options) - 1))]()

    def op(self, table: Any) -> Any:
        return self.draw(st.sampled_from(table)) if self.draw(st.integers(0, 9)) else OpaqueOp(self.draw(extension_ids))

    def leaf(self) -> Expr:
        draw = self.draw
        return self.one(
            [
                lambda: draw(literals()),
                lambda: Var(draw(names)),
                lambda: BufLen(draw(names)),
                lambda: InvocationId(draw(st.integers(0, 2))),
                lambda: WorkgroupId(draw(st.integers(0, 2))),
                lambda: LocalId(draw(st.integers(0, 2))),
                SubgroupLocalId,
                SubgroupSize,
                lambda: BufferRef(draw(names)),
                lambda: Opaque(draw(kinds), draw(st.binary(max_size=9))),
            ]
        )

    def expr(self, depth: int) -> Expr:
        self.size_left -= 1
        draw = self.draw
        if depth <= 0 or self.size_left <= 0 or draw(st.booleans()):
            return self.leaf()

        def e() -> Expr:
            return self.expr(depth - 1)

        return self.one(
            [
                lambda: BinOp(self.op(BinaryOp), e(), e()),
                lambda: UnOp(self.op(UnaryOp), e()),
                lambda: Load(draw(names), e()),
                lambda: Select(e(), e(), e()),
                lambda: Cast(draw(cast_types), e()),
                lambda: Bitcast(draw(simple_types), e()),
                lambda: Fma(e(), e(), e()),
                lambda: Call(draw(names), tuple(e() for _ in range(draw(st.integers(0, 3))))),
                lambda: Atomic(
                    self.op(AtomicOp),
                    draw(names),
                    e(),
                    e(),
                    e() if draw(st.booleans()) else None,
                    draw(st.sampled_from(Ordering)),
                ),
                lambda: SubgroupReduce(draw(st.sampled_from(ReduceOp)), e()),
                lambda: SubgroupShuffle(e(), e()),
                lambda: SubgroupBallot(e()),
                lambda: self.tower(e()),
            ]
        )

    def tower(self, e: Expr) -> Expr:
        """A narrow deep expression: one long chain costs few draws and finds what assumes shallow trees."""
        op = self.draw(st.sampled_from(UnaryOp))
        for _ in range(self.draw(st.integers(1, 6))):
            e = UnOp(op, e)
        return e

    def body(self, depth: int) -> tuple[Node, ...]:
        return tuple(self.node(depth) for _ in range(self.draw(st.integers(0, 3)))) if self.size_left > 0 else ()

    def node(self, depth: int) -> Node:
        self.size_left -= 1
        draw = self.draw

        def e() -> Expr:
            return self.expr(4)

        flat: list[Callable[[], Node]] = [
            lambda: Let(draw(names), e()),
            lambda: Assign(draw(names), e()),
            lambda: Store(draw(names), e(), e()),
            Return,
            lambda: Barrier(draw(st.sampled_from(Ordering))),
            lambda: IndirectDispatch(draw(names), draw(st.integers(0, (1 << 64) - 1))),
            lambda: AsyncLoad(draw(names), draw(names), e(), e(), draw(names)),
            lambda: AsyncStore(draw(names), draw(names), e(), e(), draw(names)),
            lambda: AsyncWait(draw(names)),
            lambda: Trap(e(), draw(names)),
            lambda: AllReduce(draw(names), draw(st.sampled_from(CollectiveOp)), draw(words)),
            lambda: AllGather(draw(names), draw(names), draw(words)),
            lambda: ReduceScatter(draw(names), draw(names), draw(st.sampled_from(CollectiveOp)), draw(words)),
            lambda: Broadcast(draw(names), draw(words), draw(words)),
            lambda: OpaqueNode(draw(kinds), draw(st.binary(max_size=9))),
        ]
        nested: list[Callable[[], Node]] = [
            lambda: If(e(), self.body(depth - 1), self.body(depth - 1)),
            lambda: Loop(draw(names), e(), e(), self.body(depth - 1)),
            lambda: Block(self.body(depth - 1)),
            lambda: Region(draw(names), self.body(depth - 1), draw(st.none() | names)),
        ]
        return self.one(flat + nested * 3 if depth > 0 else flat)


@st.composite
def arbitrary_programs(draw: st.DrawFn) -> Program:
    """Any program that the wire form can hold, valid or not: every class, operator and type, depth below 60."""
    make = Program if draw(st.booleans()) else Program.of_entry
    shapes = _Shapes(draw)
    entry = tuple(
        Region(draw(names), shapes.body(4), draw(st.none() | names)) if draw(st.booleans()) else shapes.node(4)
        for _ in range(draw(st.integers(0, 3)))
    )
    return make(
        draw(st.lists(buffers(), max_size=4)),
        draw(st.tuples(*[st.integers(1, 64) | st.integers(1, U32_MAX)] * 3)),
        entry,
        op_id=draw(st.none() | names),
        exclusive=draw(st.booleans()),
    )


# ---- valid programs with inputs -------------------------------------------------------------------------------------


def valid_programs(**options: Any) -> st.SearchStrategy[Case]:
    """Valid deterministic programs with inputs and a grid; `options` are those of `random_program`.

    Every choice of the generator is a draw, so a failing case shrinks; loops over `random_program(random.Random(seed))`
    are much faster.
    """
    return st.randoms(use_true_random=False).map(lambda rng: random_program(rng, **options))
