"""Program -> kernel form, one to one: every operator of the table in legal, total steps.

No optimisation here except what the form itself asks for: a `let` never assigned is a value, a loop whose body is
one `if` over a local is left as soon as that local is false.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from ..errors import InvalidProgram, UnsupportedFeature
from ..foundation.check.requirements import meets
from ..foundation.check.typing import infer
from ..foundation.integers import U32_MAX
from ..foundation.ir import nodes as ir
from ..foundation.ir.dtypes import DataType, u32
from ..foundation.ir.ops import AtomicOp, BinaryOp, Ordering, UnaryOp
from ..foundation.ir.program import Program
from ..foundation.ir.visit import Scopes, Steps, in_order, run_nested
from .canonical_float import FloatSteps
from .instructions import OF_OPERATOR
from .kernel_ir import BITS, FLOATS, GRID, SIGNED, Body, Buffer, If, Ins, Kernel, Local, Loop, register_of

_UNPACK = {
    UnaryOp.UNPACK4_LOW: (0, 0xF),
    UnaryOp.UNPACK4_HIGH: (4, 0xF),
    UnaryOp.UNPACK8_LOW: (0, 0xFF),
    UnaryOp.UNPACK8_HIGH: (8, 0xFF),
}


def build(
    program: Program, *, soft_flush: bool = False, native: Set[str] = frozenset(), grid_sync: bool = False
) -> Kernel:
    """The kernel of a valid program without functions of the math library that are not `native`.

    Grid-wide barriers are refused unless the emitter has them. With `soft_flush` every f32 step flushes by itself;
    without it the machine does (see `exact`).
    """
    return _Builder(program, soft_flush, native, grid_sync).run()


def changed_lets(program: Program) -> frozenset[int]:
    """Identities of the `Let`s whose local is assigned to later."""
    found: set[int] = set()
    names: Scopes[int] = Scopes()

    def scope(nodes: Sequence[ir.Node], var: str | None = None) -> Steps:
        here = names.enter()
        if var is not None:
            names.bind(var, 0)
        for node in nodes:
            if isinstance(node, ir.Assign):
                found.add(names.get(node.name, 0))
            for inner in node.body_fields:
                yield scope(getattr(node, inner), node.var if isinstance(node, ir.Loop) else None)
            if isinstance(node, ir.Let):
                names.bind(node.name, id(node))
        names.leave(here)

    run_nested(scope(program.entry))
    return frozenset(found)


class _Typed:
    """A value of the program: its register and its own type, which a register type does not tell."""

    __slots__ = ("dtype", "ins")

    def __init__(self, ins: Ins, dtype: DataType) -> None:
        self.ins, self.dtype = ins, dtype


class _Builder:
    def __init__(self, program: Program, soft_flush: bool, native: Set[str], grid_sync: bool) -> None:
        self.program, self.grid_sync = program, grid_sync
        self.changed = changed_lets(program)
        self.names: Scopes[_Typed | tuple[Local, DataType]] = Scopes()
        self.elements = {b.name: b.element for b in program.buffers}
        self.out: Body = []
        self.traps: list[str] = []
        self.floats = FloatSteps(self.emit, self.const, soft_flush, native)
        bound = [Buffer(b.name, k, b.element, writable=b.writable) for k, b in enumerate(program.bound_buffers)]
        shared = [b for b in program.buffers if b.is_workgroup]
        bound += [
            Buffer(b.name, len(bound) + k, b.element, shared=True, writable=True, count=b.count, own=b.is_own)
            for k, b in enumerate(shared)
        ]
        self.buffers = {b.name: b for b in bound}

    def run(self) -> Kernel:
        run_nested(self.scope(self.program.entry))
        return Kernel(
            self.program.workgroup_size,
            tuple(self.buffers.values()),
            self.out,
            soft_flush=self.floats.soft,
            traps=tuple(self.traps),
            meets=meets(self.program),
        )

    # -- emitting

    def emit(self, op: str, dtype: str, *args: Ins, attr: Any = None, guarded: bool = False) -> Ins:
        found = Ins(op, dtype, args, attr, guarded=guarded)
        self.out.append(found)
        return found

    def const(self, dtype: str, bits: int) -> Ins:
        return self.emit("const", dtype, attr=bits & (1 << BITS[dtype]) - 1)

    # -- statements

    def scope(self, nodes: Sequence[ir.Node]) -> Steps:
        here = self.names.enter()
        for node in nodes:
            match node:
                case ir.If(condition=condition, then=then, orelse=orelse):
                    branch = If(self.truth(self.expr(condition)), [])
                    self.out.append(branch)
                    yield self.inside(branch.then, then)
                    yield self.inside(branch.orelse, orelse)
                case ir.Loop():
                    yield self.loop(node)
                case ir.Block(body=body) | ir.Region(body=body):
                    yield self.scope(body)
                case _:
                    self.statement(node)
        self.names.leave(here)

    def inside(self, body: Body, nodes: Sequence[ir.Node]) -> Steps:
        """A scope of statements that has a body of its own."""
        outer, self.out = self.out, body
        yield self.scope(nodes)
        self.out = outer

    def statement(self, node: ir.Node) -> None:
        match node:
            case ir.Let(name=name, value=value):
                found = self.expr(value)
                if id(node) not in self.changed:
                    self.names.bind(name, found)
                    return
                local = Local(name, found.ins.dtype)
                self.emit("set", "", found.ins, attr=local)
                self.names.bind(name, (local, found.dtype))
            case ir.Assign(name=name, value=value):
                found = self.expr(value)
                target = self.names.names[name]
                assert isinstance(target, tuple)
                self.emit("set", "", found.ins, attr=target[0])
            case ir.Store(buffer=name, index=index, value=value):
                at, stored = self.expr(index).ins, self.expr(value)
                buffer = self.buffers[name]
                self.emit("store", "", at, self.to_memory(stored), attr=buffer, guarded=True)
            case ir.Return():
                self.emit("return", "")
            case ir.Barrier(ordering=ordering):
                whole = ordering is Ordering.GRID_SYNC
                if whole and not self.grid_sync:
                    raise InvalidProgram(
                        "a grid-wide barrier cannot be inside one launch", fix="split the program into segments first"
                    )
                self.emit("barrier", "", attr=GRID if whole else None)
            case ir.Trap(address=address, tag=tag):
                at = self.expr(address).ins
                if tag not in self.traps:
                    self.traps.append(tag)
                self.emit("trap", "", at, attr=tag)
            case ir.IndirectDispatch():
                pass  # read where the grid is chosen
            case ir.AllReduce(group=0) | ir.Broadcast(group=0, root=0):
                pass  # one rank: nothing to combine
            case _:
                raise _unsupported(f"{type(node).__name__} statements")

    def loop(self, node: ir.Loop) -> Steps:
        start, stop = self.expr(node.start).ins, self.expr(node.stop).ins
        loop = Loop(start, stop)
        nodes: Sequence[ir.Node] = node.body
        outer = self.out
        match node.body:
            case (ir.If(condition=ir.Var(name=name), then=then, orelse=()),) if name != node.var:
                # a `while`: once the local is false no later iteration does anything
                nodes = then
                target = self.names.names[name]
                if isinstance(target, tuple):
                    loop.live = target[0]
                else:
                    branch = If(self.truth(target), [])
                    outer.append(branch)
                    outer = branch.then
        outer.append(loop)
        here = self.names.enter()
        counter = Ins("index", "u32", attr=loop)
        loop.body.append(counter)
        self.names.bind(node.var, _Typed(counter, u32))
        yield self.inside(loop.body, nodes)
        self.names.leave(here)

    # -- expressions

    def expr(self, root: ir.Expr) -> _Typed:
        """Emit what computes `root`, left to right."""
        return in_order(root, self.leaf, self.operation)

    def leaf(self, e: ir.Expr) -> _Typed | None:
        match e:
            case ir.Lit(dtype=dtype, bits=bits):
                return _Typed(self.const(dtype.name, bits), dtype)
            case ir.Var(name=name):
                found = self.names.names[name]
                if isinstance(found, _Typed):
                    return found
                local, dtype = found
                return _Typed(self.emit("get", local.dtype, attr=local), dtype)
            case ir.InvocationId(axis=axis):
                return _Typed(self.emit("gid", "u32", attr=axis), u32)
            case ir.WorkgroupId(axis=axis):
                return _Typed(self.emit("wid", "u32", attr=axis), u32)
            case ir.LocalId(axis=axis):
                return _Typed(self.emit("lid", "u32", attr=axis), u32)
            case ir.BufLen(buffer=name):
                buffer = self.buffers[name]
                if buffer.shared:
                    return _Typed(self.const("u32", buffer.count), u32)
                return _Typed(self.emit("len", "u32", attr=buffer), u32)
            case ir.SubgroupLocalId():
                return _Typed(self.emit("lane", "u32"), u32)
            case ir.SubgroupSize():
                return _Typed(self.const("u32", 32), u32)
            case ir.Call() | ir.Opaque() | ir.BufferRef():
                raise _unsupported(f"{type(e).__name__} expressions")
            case _:
                return None

    def operation(self, e: ir.Expr, args: list[_Typed]) -> _Typed:
        dtype, _ = infer(e, tuple(a.dtype for a in args), {}, self.elements)
        if dtype is None:
            raise InvalidProgram("an expression has no type", fix="validate the program")
        return _Typed(self.value(e, args, dtype), dtype)

    def value(self, e: ir.Expr, args: list[_Typed], dtype: DataType) -> Ins:
        first = args[0]
        ins = [a.ins for a in args]
        match e:
            case ir.BinOp(op=BinaryOp() as op):
                return self.binary(op, first.dtype, first, args[1])
            case ir.UnOp(op=UnaryOp() as op):
                return self.unary(op, first)
            case ir.Select():
                nowhere = dtype == u32 and ins[2].op == "const" and ins[2].attr == U32_MAX
                return self.emit("select", ins[1].dtype, self.truth(first), ins[1], ins[2], guarded=nowhere)
            case ir.Cast(target=target):
                return self.cast(first, target)
            case ir.Bitcast(target=target):
                return self.bitcast(first, target.name)
            case ir.Fma():
                return self.floats.fma(*ins)
            case ir.Load(buffer=name):
                return self.load(self.buffers[name], ins[0])
            case ir.Atomic(op=AtomicOp() as op, buffer=name):
                buffer = self.buffers[name]
                operands = ins[:3] if op is AtomicOp.COMPARE_EXCHANGE else ins[:2]
                return self.emit("atomic", dtype.name, *operands, attr=(op, buffer), guarded=True)
            case ir.SubgroupReduce(op=reduce):
                return self.emit("subgroup", first.ins.dtype, ins[0], attr=reduce)
            case ir.SubgroupShuffle():
                return self.emit("subgroup", first.ins.dtype, *ins, attr="shuffle")
            case ir.SubgroupBallot():
                return self.emit("subgroup", "u32", self.truth(first), attr="ballot")
        raise _unsupported(f"{type(e).__name__} with {getattr(e, 'op', None)!r}")

    # -- memory

    def load(self, buffer: Buffer, index: Ins) -> Ins:
        """One with an index for which it may be none reads whatever is at its place: rows stay rows. What such a load
        gave is zero outside, and zero is a place."""
        if index.op == "select" and index.guarded and index.args[2].attr == U32_MAX:
            found = self.load(buffer, index.args[1])
            zero = self.const(found.dtype, 0)
            return self.emit("select", found.dtype, index.args[0], found, zero, guarded=True)
        found = self.emit("load", buffer.register, index, attr=buffer, guarded=True)
        match buffer.element.name:
            case "bool":
                return self.emit("ne", "bool", found, self.const("u32", 0))
            case "f32" | "bf16":
                return self.emit("flush", "f32", found)
        return found

    def to_memory(self, stored: _Typed) -> Ins:
        if stored.dtype.name == "bool":
            return self.emit("convert", "u32", stored.ins)
        return self.emit("quiet", stored.ins.dtype, stored.ins) if stored.ins.dtype in FLOATS else stored.ins

    # -- operators

    def truth(self, x: _Typed) -> Ins:
        return x.ins if x.ins.dtype == "bool" else self.emit("ne", "bool", x.ins, self.const(x.ins.dtype, 0))

    def binary(self, op: BinaryOp, dtype: DataType, left: _Typed, right: _Typed) -> Ins:
        a, b, t = left.ins, right.ins, left.ins.dtype
        if op.rule == "compare":
            return self.emit(OF_OPERATOR[op], "bool", a, b)
        if op.rule == "logic":
            return self.emit("and" if op is BinaryOp.AND else "or", "bool", self.truth(left), self.truth(right))
        if dtype.is_float:
            return self.floats.binary(op, dtype.name, a, b)
        match op:
            case BinaryOp.DIV | BinaryOp.MOD:
                return self.divide(op, a, b)
            case BinaryOp.SHL | BinaryOp.SHR:
                return self.emit(OF_OPERATOR[op], t, a, self.count(b, t))
            case BinaryOp.ROTATE_LEFT | BinaryOp.ROTATE_RIGHT:
                return self.rotate(a, b, op is BinaryOp.ROTATE_LEFT)
            case BinaryOp.ABS_DIFF:
                return self.emit("sub", t, self.emit("max", t, a, b), self.emit("min", t, a, b))
            case BinaryOp.SATURATING_ADD:
                total = self.emit("add", t, a, b)
                return self.emit("select", t, self.emit("lt", "bool", total, a), self.const(t, -1), total)
            case BinaryOp.SATURATING_SUB:
                rest = self.emit("sub", t, a, b)
                return self.emit("select", t, self.emit("lt", "bool", a, b), self.const(t, 0), rest)
            case BinaryOp.SATURATING_MUL:
                over = self.emit("ne", "bool", self.emit("mulhi", t, a, b), self.const(t, 0))
                return self.emit("select", t, over, self.const(t, -1), self.emit("mul", t, a, b))
        if op not in OF_OPERATOR:
            raise _unsupported(f"operator {op.text}")
        return self.emit(OF_OPERATOR[op], t, a, b)

    def divide(self, op: BinaryOp, a: Ins, b: Ins) -> Ins:
        """Where the divisor is 0, or the quotient does not fit, divide by 1: that is right for every remainder."""
        t = a.dtype
        zero = self.emit("eq", "bool", b, self.const(t, 0))
        bad = zero
        if t in SIGNED:
            lowest = self.emit("eq", "bool", a, self.const(t, 1 << BITS[t] - 1))
            bad = self.emit(
                "or", "bool", zero, self.emit("and", "bool", lowest, self.emit("eq", "bool", b, self.const(t, -1)))
            )
        safe = self.emit("select", t, bad, self.const(t, 1), b)
        if op is BinaryOp.MOD:
            return self.emit("rem", t, a, safe)
        quotient = self.emit("div", t, a, safe)
        return self.emit("select", t, zero, self.const(t, 0 if t in SIGNED else -1), quotient)

    def count(self, n: Ins, t: str) -> Ins:
        """A shift count below the width of `t`, in an unsigned type of that width."""
        masked = self.emit("and", "u32", n, self.const("u32", BITS[t] - 1))
        return self.emit("convert", "u64", masked) if BITS[t] == 64 else masked

    def rotate(self, a: Ins, n: Ins, left: bool) -> Ins:
        t = a.dtype
        wide = "u64" if BITS[t] == 64 else "u32"
        bits = a if t == wide else self.emit("convert", wide, a)
        back = self.emit("sub", "u32", self.const("u32", 0), n)
        by, rest = (n, back) if left else (back, n)
        high = self.emit("shl", wide, bits, self.count(by, t))
        low = self.emit("shr", wide, bits, self.count(rest, t))
        found = self.emit("or", wide, high, low)
        return found if t == wide else self.emit("convert", t, found)

    def unary(self, op: UnaryOp, x: _Typed) -> Ins:
        a, t = x.ins, x.ins.dtype
        if op is UnaryOp.LOGICAL_NOT:
            return self.emit("not", "bool", self.truth(x))
        if x.dtype.is_float:
            return self.floats.unary(op, x.dtype.name, a)
        if op is UnaryOp.NEGATE:
            return self.emit("sub", t, self.const(t, 0), a)
        if op in _UNPACK:
            shift, mask = _UNPACK[op]
            word = a if t == "u32" else self.emit("convert", "u32", a)
            low = self.emit("shr", "u32", word, self.const("u32", shift)) if shift else word
            return self.emit("and", "u32", low, self.const("u32", mask))
        if op not in OF_OPERATOR:
            raise _unsupported(f"operator {op.text}")
        return self.emit(OF_OPERATOR[op], t, a)

    def cast(self, x: _Typed, target: DataType) -> Ins:
        a, source = x.ins, x.dtype
        if source == target:
            return a
        if target.name == "bool":
            return self.truth(x)
        t = register_of(target)
        if target.is_float:
            wide = a if a.dtype == t else self.floats.convert(t, a)
            return self.floats.rounded(target.name, wide) if target.name in ("f16", "bf16") else wide
        if source.is_float:
            found = self.emit("convert", t, a)
            if target.is_narrow:
                low, high = target.limits
                found = self.emit("min", t, found, self.const(t, high))
                found = self.emit("max", t, found, self.const(t, low)) if low else found
            return found
        found = a if a.dtype == t else self.emit("convert", t, a)
        return self.emit("narrow", t, found, attr=target.name) if target.is_narrow else found

    def bitcast(self, x: _Typed, target: str) -> Ins:
        a = x.ins
        if a.dtype == target:
            return a
        if a.dtype in FLOATS:
            return self.emit("bitcast", target, self.emit("quiet", a.dtype, a))
        if target == "f32":
            return self.emit("flush", "f32", self.emit("bitcast", "f32", a))
        if target == "f64":
            return self.emit("bitcast", "f64", a)
        return self.emit("convert", target, a)


def _unsupported(what: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        f"compiled backends do not run {what}", fix="use a backend that does, or lower them to core operations first"
    )
