"""Building programs statement by statement: fresh names, nested blocks, numbered buffers.

b = Builder(workgroup=64)
x, out = b.read("x", u32), b.write_only("out", u32)
i = b.let("i", InvocationId(0))
with b.if_(i < out.length):
    b.store(out, i, x[i] * 2)
program = b.program()
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ...errors import ArgumentTypeError, ArgumentValueError, IRValueError
from ..integers import U32_MAX
from .dtypes import DataType, bool_, f64, u32
from .nodes import (
    Assign,
    Atomic,
    Barrier,
    BufLen,
    Expr,
    If,
    Let,
    Lit,
    Load,
    Loop,
    Node,
    Operand,
    Region,
    Return,
    Span,
    Store,
    Trap,
    Var,
    lift,
    lit,
)
from .ops import AtomicOp, Ordering
from .prints import FLOAT_LOG, LOG, LOG_WORDS, LOGS
from .program import Access, BufferDecl, MemoryKind, Program, output
from .value import Value

FOREVER = U32_MAX
"""Trips of each of the two loops that only their flag ends: more than 2**63 turns, which take centuries."""


class Buffer(Value):
    """A declared buffer: `buf[i]` is a load, `buf.length` its length at dispatch."""

    decl: BufferDecl

    @property
    def name(self) -> str:
        return self.decl.name

    @property
    def element(self) -> DataType:
        return self.decl.element

    @property
    def length(self) -> BufLen:
        return BufLen(self.decl.name)

    def __getitem__(self, index: Operand) -> Load:
        return Load(self.decl.name, lift(index), dtype=self.decl.element)


class Builder:
    """Appends statements to the innermost open block. `span` is stamped on every statement made while it is set."""

    def __init__(self, workgroup: int | Iterable[int] = 1) -> None:
        self.workgroup_size = workgroup_shape(workgroup)
        self.buffers: list[BufferDecl] = []
        self.span: Span | None = None
        self._blocks: list[list[Node]] = [[]]
        self._taken = dict.fromkeys(LOGS, 0)  # name -> how many of its numbered variants were tried

    # -- names and buffers

    def fresh(self, stem: str) -> str:
        """`stem`, or `stem_1`, `stem_2`, ...: never used before in this program."""
        stem = stem if stem.isascii() and stem.isidentifier() else "v"
        name = stem
        while name in self._taken:
            self._taken[stem] += 1
            name = f"{stem}_{self._taken[stem]}"
        self._taken[name] = 0
        return name

    def declare(self, decl: BufferDecl) -> Buffer:
        """A buffer exactly as described."""
        self._taken.setdefault(decl.name, 0)
        self.buffers.append(decl)
        return Buffer(decl)

    def buffer(self, name: str, access: Access, element: DataType, count: int = 0) -> Buffer:
        """A bound buffer in the next free slot."""
        return self.declare(BufferDecl(name, self._slot(), access, element, count))

    def read(self, name: str, element: DataType, count: int = 0) -> Buffer:
        """A buffer to read, in the next free slot."""
        return self.buffer(name, Access.READ_ONLY, element, count)

    def read_write(self, name: str, element: DataType, count: int = 0) -> Buffer:
        """A buffer to read and write, in the next free slot."""
        return self.buffer(name, Access.READ_WRITE, element, count)

    def write_only(self, name: str, element: DataType, count: int = 0) -> Buffer:
        """A buffer to write, in the next free slot; zero where nothing is stored."""
        return self.buffer(name, Access.WRITE_ONLY, element, count)

    def uniform(self, name: str, element: DataType, count: int = 1) -> Buffer:
        """A small table that is the same for all invocations, in the next free slot."""
        return self.buffer(name, Access.UNIFORM, element, count)

    def output(self, name: str, element: DataType, count: int) -> Buffer:
        """The result buffer, in the next free slot."""
        return self.declare(output(name, self._slot(), element, count))

    def shared(self, name: str, element: DataType, count: int) -> Buffer:
        """Workgroup memory; it takes a fresh name and no slot."""
        return self.declare(BufferDecl(self.fresh(name), 0, Access.WORKGROUP, element, count))

    def log(self, element: DataType) -> Buffer:
        """The log of what the program prints; that of its f64 values is another one."""
        name = FLOAT_LOG if element == f64 else LOG
        known = next((d for d in self.buffers if d.name == name), None)
        if known is not None:
            return Buffer(known)
        access = Access.WRITE_ONLY if element == f64 else Access.READ_WRITE
        return self.declare(BufferDecl(name, self._slot(), access, element, LOG_WORDS, live_out=True))

    def own(self, name: str, element: DataType, count: int) -> Buffer:
        """An array that each invocation has for itself, zero at its start; it takes a fresh name and no slot."""
        decl = BufferDecl(self.fresh(name), 0, Access.WORKGROUP, element, count, MemoryKind.LOCAL)
        return self.declare(decl)

    def _slot(self) -> int:
        return 1 + max((d.binding for d in self.buffers if not d.is_workgroup), default=-1)

    # -- statements

    def append(self, node: Node) -> None:
        """Any statement as it is, with the current span unless it has its own."""
        self._blocks[-1].append(self._placed(node))

    def _placed(self, node: Node) -> Node:
        return node if node.span is not None or self.span is None else node.replace(span=self.span)

    def let(self, name: str, value: Operand) -> Var:
        """A new local with a fresh name."""
        expr = lift(value)
        var = Var(self.fresh(name), dtype=expr.type_hint)
        self.append(Let(var.name, expr, span=self.span))
        return var

    def assign(self, var: Var, value: Operand) -> None:
        """Another value for a local, of the same type."""
        self.append(Assign(var.name, lift(value, like=var), span=self.span))

    def store(self, buffer: Buffer, index: Operand, value: Operand) -> None:
        """`buffer[index] = value`; a number takes the type of the element."""
        expr = value if isinstance(value, Expr) else lit(value, buffer.element)
        self.append(Store(buffer.name, lift(index), expr, span=self.span))

    def atomic(
        self,
        op: AtomicOp,
        buffer: Buffer,
        index: Operand,
        value: Operand,
        expected: Operand | None = None,
        *,
        name: str = "old",
    ) -> Var:
        """A read-modify-write in a statement of its own; the result is the local that holds the old value."""
        t = buffer.element
        operands = [v if v is None or isinstance(v, Expr) else lit(v, t) for v in (value, expected)]
        assert operands[0] is not None
        return self.let(name, Atomic(op, buffer.name, lift(index), operands[0], operands[1], dtype=t))

    def barrier(self) -> None:
        """The workgroup waits, and then sees what its members wrote."""
        self.append(Barrier(span=self.span))

    def grid_sync(self) -> None:
        """The same for the whole grid."""
        self.append(Barrier(Ordering.GRID_SYNC, span=self.span))

    def return_(self) -> None:
        """End the invocation."""
        self.append(Return(span=self.span))

    @property
    def returned(self) -> bool:
        """Whether the open block has ended in a return, behind which no statement may stand."""
        return bool(self._blocks[-1]) and isinstance(self._blocks[-1][-1], Return)

    def trap(self, tag: str, address: Operand = 0) -> None:
        """Stop the whole dispatch with an error that carries the tag and the address."""
        self.append(Trap(lift(address), tag, span=self.span))

    # -- blocks

    @contextmanager
    def if_(self, condition: Operand) -> Iterator[None]:
        """Statements appended inside run where the condition holds."""
        span, value = self.span, lift(condition)
        body = self._open()
        try:
            yield
        finally:
            self._close(body)
        self.append(If(value, tuple(body), span=span))

    @contextmanager
    def else_(self) -> Iterator[None]:
        """The other side of the `if_` just closed."""
        last = self._blocks[-1][-1] if self._blocks[-1] else None
        if not isinstance(last, If) or last.orelse:
            raise IRValueError("else_ does not follow an if_", fix="open else_ directly after the if_ block")
        body = self._open()
        try:
            yield
        finally:
            self._close(body)
        assert self._blocks[-1][-1] is last
        self._blocks[-1][-1] = last.replace(orelse=tuple(body))

    @contextmanager
    def loop(self, name: str, start: Operand, stop: Operand) -> Iterator[Var]:
        """`for name in start .. stop - 1`; yields the loop variable."""
        span, low, high = self.span, lift(start), lift(stop)
        var = Var(self.fresh(name), dtype=u32)
        body = self._open()
        try:
            yield var
        finally:
            self._close(body)
        self.append(Loop(var.name, low, high, tuple(body), span=span))

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """Statements appended inside belong together, under a name."""
        span, body = self.span, self._open()
        try:
            yield
        finally:
            self._close(body)
        self.append(Region(name, tuple(body), span=span))

    @contextmanager
    def while_flag(self, name: str = "go") -> Iterator[Var]:
        """A loop that runs while a local flag is true: every engine leaves it when the body clears the flag.

        A loop of the IR ends after its trips, whatever the flag says, so one runs inside another.
        """
        flag = self.let(name, Lit(bool_, 1))
        with self.loop("again", 0, FOREVER), self.if_(flag), self.loop("turn", 0, FOREVER), self.if_(flag):
            yield flag

    def _open(self) -> list[Node]:
        body: list[Node] = []
        self._blocks.append(body)
        return body

    def _close(self, body: list[Node]) -> None:
        assert self._blocks[-1] is body, "blocks close in the order in which they were opened"
        self._blocks.pop()

    def mark(self) -> tuple[list[Node], int]:
        """A place in the open block where `insert` may later put a statement."""
        return self._blocks[-1], len(self._blocks[-1])

    def insert(self, mark: tuple[list[Node], int], node: Node) -> None:
        """Put a statement at a place that was marked. No line of the source says it."""
        block, position = mark
        assert any(block is b for b in self._blocks), "the marked block is closed"
        block.insert(position, node)

    def program(self, *, op_id: str | None = None) -> Program:
        """The program, once every block is closed."""
        if len(self._blocks) != 1:
            raise IRValueError("a block is still open", fix="leave every if_, else_ and loop block first")
        return Program(self.buffers, self.workgroup_size, self._blocks[0], op_id=op_id)


def workgroup_shape(workgroup: int | Iterable[int]) -> tuple[int, int, int]:
    """One to three positive sizes, filled up with 1.

    >>> workgroup_shape(64), workgroup_shape((8, 4))
    ((64, 1, 1), (8, 4, 1))
    """
    fix = "write workgroup=256, workgroup=(16, 16) or workgroup=(8, 8, 4)"
    if isinstance(workgroup, int):
        sizes: tuple[int, ...] = (workgroup,)
    elif isinstance(workgroup, tuple | list):
        sizes = tuple(workgroup)
    else:
        raise ArgumentTypeError("workgroup is neither a number nor a tuple", fix=fix, workgroup=workgroup)
    if any(isinstance(n, bool) or not isinstance(n, int) for n in sizes):
        raise ArgumentTypeError("workgroup holds something else than whole numbers", fix=fix, workgroup=workgroup)
    if not 1 <= len(sizes) <= 3 or any(not 1 <= n <= U32_MAX for n in sizes):
        raise ArgumentValueError("workgroup is not one to three positive sizes", fix=fix, workgroup=workgroup)
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z
