"""A program as a flat tape: one step per statement, each a list of small functions on a list of registers.

Flat, because nesting depth is user data: neither compiling nor running a program recurses. A step ends by saying what
comes next, so an invocation is a program counter and its registers, and a scheduler may switch between invocations
after any step. A subgroup operation inside an expression ends a step early, because lanes meet there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from ....errors import InvalidProgram, UnsupportedFeature
from ....foundation.check.typing import infer
from ....foundation.ir import nodes as ir
from ....foundation.ir import rounding
from ....foundation.ir.dtypes import DataType, f32, u32
from ....foundation.ir.ops import AtomicOp, BinaryOp, Ordering, UnaryOp
from ....foundation.ir.program import Program
from ....foundation.ir.visit import distinct, in_order
from ....foundation.meaning import arith
from ....foundation.meaning.subgroup import SUBGROUP_WIDTH
from . import operations
from .operations import FIRST_FREE, GID, LID, SUBGROUP_LANE, WG, BufferRegisters, Op
from .races import Site


class Kind(IntEnum):
    """How a step ends. Up to LOOP_NEXT the invocation goes on; from BARRIER on it waits or is done."""

    NEXT = 0
    BRANCH = 1
    LOOP_ENTER = 2
    LOOP_NEXT = 3
    BARRIER = 4
    GRID_BARRIER = 5
    SUBGROUP = 6
    END = 7


class Step(NamedTuple):
    """`target` is where the tape goes on, `other` the other way of a branch or the way out of a loop.

    `arg` and `arg2` are registers: of a condition; of a loop variable and its end; or the operation of a subgroup.
    """

    ops: tuple[Op, ...]
    kind: Kind
    arg: Any
    arg2: int
    target: int
    other: int
    weight: int
    site: Site


class Meeting(NamedTuple):
    """A subgroup operation: `settle` turns the values of 32 lanes (None: no such lane) into as many results."""

    operands: tuple[int, ...]
    result: int
    settle: Callable[[list[Any]], list[Any]]


@dataclass(frozen=True, slots=True)
class Tape:
    steps: tuple[Step, ...]
    blank: tuple[Any, ...]
    """Registers before anything is bound: constants are in place."""
    buffers: tuple[BufferRegisters, ...]
    has_grid_barrier: bool
    scopes: tuple[Scope, ...] = ()
    """The locals in sight of each step, outermost block first, where the tape is for stepping."""


class Operand(NamedTuple):
    register: int
    dtype: DataType
    temporary: bool = False


Scope = tuple[tuple[dict[str, Operand], int], ...]
"""Locals by name, block by block: of each, so many as there were. Copies would take the square of a long program."""


def compile_tape(program: Program, traced: bool, stepping: bool = False) -> Tape:
    """The tape of a valid program; `traced` tapes tell the race detector about every access."""
    key = "reference.tape", traced, stepping
    return program._cached(key, lambda: _Compiler(program, traced, stepping).run())


def unsupported(what: str, fix: str, **context: object) -> UnsupportedFeature:
    return UnsupportedFeature(f"the reference engine does not run {what}", fix=fix, backend="reference", **context)


class _Label:
    """A place on the tape that is not known yet."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = -1


class _Draft:
    """A step whose targets are labels."""

    __slots__ = ("arg", "arg2", "kind", "ops", "other", "site", "target", "weight")

    def __init__(self, ops: tuple[Op, ...], kind: Kind, weight: int, site: Site) -> None:
        self.ops, self.kind, self.weight, self.site = ops, kind, weight, site
        self.arg: Any = 0
        self.arg2 = 0
        self.target: _Label | None = None  # None: the next step
        self.other: _Label | None = None

    @property
    def is_jump(self) -> bool:
        return self.kind is Kind.NEXT and not self.ops and not self.weight

    def goes_to(self, at: int) -> int:
        return at + 1 if self.target is None else self.target.at


class _Compiler:
    def __init__(self, program: Program, traced: bool, stepping: bool) -> None:
        self.program, self.traced = program, traced
        self.in_sight: list[Scope] | None = [] if stepping else None
        self.unvisited: list[Callable[[], None]] = []
        self.drafts: list[_Draft] = []
        self.blank: list[Any] = [None] * FIRST_FREE
        self.free: list[int] = []
        self.constants: dict[tuple[DataType, int], int] = {}
        self.scopes: list[dict[str, Operand]] = [{}]
        self.ops: list[Op] = []
        self.site = Site(ir.Return(), "entry")
        self.weight = 1
        self.has_grid_barrier = False
        self.read = {e.name for e in distinct(program.entry) if isinstance(e, ir.Var)}
        self.blind: ir.Expr | None = None  # the atomic of this statement, where nothing reads what it returns
        self.elements = {b.name: b.element for b in program.buffers}
        self.buffers: dict[str, BufferRegisters] = {}
        for b in program.buffers:
            self.buffers[b.name] = BufferRegisters(b, self.fresh(), self.fresh(), self.fresh())

    def run(self) -> Tape:
        self.body(self.program.entry, "entry")
        while self.unvisited:
            self.unvisited.pop()()
        self.site = Site(ir.Return(), "end")
        self.draft(Kind.END, weight=0)
        in_sight = tuple(self.in_sight or ())
        return Tape(self.link(), tuple(self.blank), tuple(self.buffers.values()), self.has_grid_barrier, in_sight)

    def link(self) -> tuple[Step, ...]:
        """Turn labels into places. No target is a mere jump; jumps lead forward, so one pass is enough."""
        arrival = list(range(len(self.drafts)))
        for k in range(len(arrival) - 1, -1, -1):
            if self.drafts[k].is_jump:
                arrival[k] = arrival[self.drafts[k].goes_to(k)]
        steps = []
        for k, d in enumerate(self.drafts):
            target = k if d.kind is Kind.END else arrival[d.goes_to(k)]
            other = target if d.other is None else arrival[d.other.at]
            steps.append(Step(d.ops, d.kind, d.arg, d.arg2, target, other, d.weight, d.site))
        return tuple(steps)

    # -- registers

    def fresh(self, value: Any = None) -> int:
        self.blank.append(value)
        return len(self.blank) - 1

    def take(self) -> int:
        return self.free.pop() if self.free else self.fresh()

    def drop(self, *operands: Operand) -> None:
        self.free.extend(o.register for o in operands if o.temporary)

    def constant(self, lit: ir.Lit) -> Operand:
        key = (lit.dtype, lit.bits)
        if key not in self.constants:
            value = rounding.f32_from_bits(lit.bits) if lit.dtype == f32 else lit.value
            self.constants[key] = self.fresh(value)
        return Operand(self.constants[key], lit.dtype)

    def local(self, name: str) -> Operand:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise InvalidProgram(f"variable {name!r} is not bound", fix="bind it with let before using it")

    def buffer(self, name: str) -> BufferRegisters:
        if name not in self.buffers:
            raise InvalidProgram(f"buffer {name!r} is not declared", fix="declare the buffer")
        return self.buffers[name]

    # -- statements

    def draft(self, kind: Kind, weight: int | None = None) -> _Draft:
        """End the current step."""
        step = _Draft(tuple(self.ops), kind, self.weight if weight is None else weight, self.site)
        self.ops, self.weight = [], 0
        self.drafts.append(step)
        if self.in_sight is not None:
            self.in_sight.append(tuple((s, len(s)) for s in self.scopes if s))
        return step

    def mark(self, label: _Label) -> None:
        label.at = len(self.drafts)

    def jump(self, label: _Label) -> None:
        self.weight = 0
        self.draft(Kind.NEXT).target = label

    def later(self, *work: Callable[[], None]) -> None:
        """Queue work, to be done in this order before whatever is queued already."""
        self.unvisited.extend(reversed(work))

    def body(self, nodes: tuple[ir.Node, ...], path: str) -> None:
        """Queue a scope of statements."""

        def open_scope() -> None:
            self.scopes.append({})

        def close_scope() -> None:
            self.free.extend(o.register for o in self.scopes.pop().values())

        statements = [lambda n=n, k=k: self.statement(n, f"{path}.{k}") for k, n in enumerate(nodes)]
        self.later(open_scope, *statements, close_scope)

    def statement(self, node: ir.Node, path: str) -> None:
        self.site, self.weight = Site(node, path), 1
        self.blind = node.value if isinstance(node, ir.Let) and node.name not in self.read else None
        match node:
            case ir.Let(name=name, value=value):
                local = self.assigned(value, None)
                self.draft(Kind.NEXT)
                self.scopes[-1][name] = local
            case ir.Assign(name=name, value=value):
                self.assigned(value, self.local(name))
                self.draft(Kind.NEXT)
            case ir.Store(buffer=buffer, index=index, value=value):
                at, stored = self.expr(index), self.expr(value)
                self.ops.append(
                    operations.store(self.buffer(buffer), at.register, stored.register, self.traced, self.site)
                )
                self.drop(at, stored)
                self.draft(Kind.NEXT)
            case ir.If():
                self.branch(node, path, None)
            case ir.Loop():
                self.loop(node, path)
            case ir.Block(body=body) | ir.Region(body=body):
                self.body(body, f"{path}.body")
            case ir.Return():
                self.draft(Kind.END)
            case ir.Barrier(ordering=ordering):
                wide = ordering is Ordering.GRID_SYNC
                self.has_grid_barrier |= wide
                self.draft(Kind.GRID_BARRIER if wide else Kind.BARRIER)
            case ir.AsyncLoad() | ir.AsyncStore():
                offset, size = self.expr(node.offset), self.expr(node.size)
                source, destination = self.buffer(node.source), self.buffer(node.destination)
                self.ops.append(
                    operations.async_start(
                        node, source, destination, offset.register, size.register, self.traced, self.site
                    )
                )
                self.drop(offset, size)
                self.draft(Kind.NEXT)
            case ir.AsyncWait(tag=tag):
                self.ops.append(operations.async_wait(tag, self.traced, self.site))
                self.draft(Kind.NEXT)
            case ir.Trap(address=address, tag=tag):
                at = self.expr(address)
                self.ops.append(operations.trap(at.register, tag))
                self.drop(at)
                self.draft(Kind.NEXT)
            case ir.IndirectDispatch():
                pass  # a mark for the caller that chooses the grid
            case ir.AllReduce() | ir.Broadcast() | ir.AllGather() | ir.ReduceScatter():
                self.collective(node)
            case ir.OpaqueNode(kind=kind):
                raise unsupported("opaque statements", "lower the statement to core ones first", kind=kind)
            case _:
                raise unsupported(f"{type(node).__name__} statements", "lower the statement to core ones first")

    def assigned(self, value: ir.Expr, into: Operand | None) -> Operand:
        """Evaluate into a local: an existing one, or one of its own."""
        found = self.expr(value)
        if into is None and found.temporary:
            return Operand(found.register, found.dtype)
        target = into or Operand(self.take(), found.dtype)
        self.ops.append(operations.move(target.register, found.register))
        self.drop(found)
        return target

    def branch(self, node: ir.If, path: str, when_false: _Label | None) -> None:
        condition = self.expr(node.condition)
        self.drop(condition)
        step = self.draft(Kind.BRANCH)
        step.arg = condition.register
        orelse, end = _Label(), _Label()
        step.other = when_false or orelse
        self.later(
            lambda: self.body(node.then, f"{path}.then"),
            lambda: self.jump(end),
            lambda: self.mark(orelse),
            lambda: self.body(node.orelse, f"{path}.orelse"),
            lambda: self.mark(end),
        )

    def loop(self, node: ir.Loop, path: str) -> None:
        site = self.site
        start, stop = self.expr(node.start), self.expr(node.stop)
        counter, limit = self.take(), self.take()
        self.ops += [operations.move(counter, start.register), operations.move(limit, stop.register)]
        self.drop(start, stop)
        enter = self.draft(Kind.LOOP_ENTER)
        enter.arg, enter.arg2 = counter, limit
        inside, end = _Label(), _Label()
        enter.other = end
        self.mark(inside)
        self.scopes.append({node.var: Operand(counter, u32)})

        def close() -> None:
            self.scopes.pop()
            self.free += [counter, limit]
            self.site = site
            again = self.draft(Kind.LOOP_NEXT, weight=1)
            again.arg, again.arg2, again.target, again.other = counter, limit, inside, end
            self.mark(end)

        match node.body:
            case (ir.If(condition=ir.Var(name=name), orelse=()) as only,) if name != node.var:
                # A `while`: once the variable is false no later iteration does anything, so the loop is left.
                self.later(lambda: self.while_body(only, f"{path}.body.0", end), close)
            case body:
                self.later(lambda: self.body(body, f"{path}.body"), close)

    def while_body(self, node: ir.If, path: str, end: _Label) -> None:
        self.site, self.weight = Site(node, path), 1
        self.branch(node, path, end)

    def collective(self, node: ir.AllReduce | ir.Broadcast | ir.AllGather | ir.ReduceScatter) -> None:
        """With one rank a reduction or broadcast changes nothing, and a gather or scatter is a copy."""
        if node.group != 0 or (isinstance(node, ir.Broadcast) and node.root != 0):
            raise unsupported("collectives between devices", "use group 0 (and root 0), or a distributed backend")
        if isinstance(node, ir.AllGather | ir.ReduceScatter):
            source, destination = self.buffer(node.source), self.buffer(node.destination)
            self.ops.append(operations.copy(source, destination, self.traced, self.site))
        self.draft(Kind.NEXT)

    # -- expressions

    def expr(self, root: ir.Expr) -> Operand:
        """Append what computes `root`, left to right, and say where the value will be."""
        return in_order(root, self.leaf, self.operation)

    def leaf(self, e: ir.Expr) -> Operand | None:
        match e:
            case ir.Lit():
                return self.constant(e)
            case ir.Var(name=name):
                return self.local(name)
            case ir.InvocationId(axis=axis):
                return Operand(GID + axis, u32)
            case ir.WorkgroupId(axis=axis):
                return Operand(WG + axis, u32)
            case ir.LocalId(axis=axis):
                return Operand(LID + axis, u32)
            case ir.BufLen(buffer=name):
                return Operand(self.buffer(name).length, u32)
            case ir.SubgroupLocalId():
                return Operand(SUBGROUP_LANE, u32)
            case ir.SubgroupSize():
                return self.constant(ir.Lit(u32, SUBGROUP_WIDTH))
            case ir.Call(op_id=op_id):
                raise unsupported("calls", "inline the operation before dispatch", op_id=op_id)
            case ir.Opaque(kind=kind):
                raise unsupported("opaque expressions", "lower the expression to core ones first", kind=kind)
            case ir.BufferRef(buffer=name):
                raise unsupported("buffer references", "load an element of the buffer", buffer=name)
            case _:
                return None

    def operation(self, e: ir.Expr, args: list[Operand]) -> Operand:
        self.drop(*args)  # an operation reads before it writes, so its result may take the place of an operand
        out = self.take()
        a, b, c, *_ = [o.register for o in args] + [0, 0, 0]
        first = args[0].dtype
        match e:
            case ir.BinOp(op=BinaryOp() as op):
                self.ops.append(operations.binary(arith.binary(op, first), out, a, b))
            case ir.UnOp(op=UnaryOp() as op):
                self.ops.append(operations.unary(arith.unary(op, first), out, a))
            case ir.Select():
                self.ops.append(operations.select(out, a, b, c))
            case ir.Cast(target=target):
                self.ops.append(operations.unary(arith.cast(first, target), out, a))
            case ir.Bitcast(target=target):
                self.ops.append(operations.unary(arith.bitcast(first, target), out, a))
            case ir.Fma():
                self.ops.append(operations.fma(arith.fused(first), out, a, b, c))
            case ir.Load(buffer=name):
                self.ops.append(operations.load(self.buffer(name), out, a, self.traced, self.site))
            case ir.Atomic(op=AtomicOp() as op, buffer=name):
                expected = c if op is AtomicOp.COMPARE_EXCHANGE else None
                uses_old = e is not self.blind
                self.ops.append(
                    operations.atomic(op, self.buffer(name), out, a, b, expected, uses_old, self.traced, self.site)
                )
            case ir.SubgroupReduce() | ir.SubgroupShuffle() | ir.SubgroupBallot():
                step = self.draft(Kind.SUBGROUP)
                step.arg = Meeting(tuple(o.register for o in args), out, operations.settle(e, first))
            case _:
                raise unsupported(f"{type(e).__name__} with {getattr(e, 'op', None)!r}", "use an operator of the table")
        dtype, _ = infer(e, tuple(o.dtype for o in args), {}, self.elements)
        if dtype is None:
            raise InvalidProgram(f"an expression at {self.site.place} has no type", fix="validate the program")
        return Operand(out, dtype, True)
