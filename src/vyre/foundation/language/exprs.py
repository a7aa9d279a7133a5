"""Expressions of the kernel language: Python syntax in, typed IR out.

A number that is known while compiling stays a Python number (`Const`) until it meets a typed value, whose type it then
takes. Nothing else is converted silently. Evaluation is left to right: a value that a later atomic or helper call in
the same expression could change is first bound to a local.
"""

from __future__ import annotations

import ast
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import ModuleType
from typing import Any, overload

from ..ir.build import Buffer, Builder
from ..ir.dtypes import DataType, bool_, u32
from ..ir.nodes import (
    BinOp,
    Expr,
    Load,
    Select,
    UnOp,
    Var,
    show_number,
)
from ..ir.ops import AtomicOp, BinaryOp, UnaryOp
from ..ir.program import Access, Part
from ..ir.visit import walk_exprs
from .lang import DeviceFunction, Ids, Intrinsic, element_type
from .numbers import BINARY, NumberCompiler
from .refused_syntax import BUFFER_FIXES, FOREIGN_TYPES, foreign_fix
from .small.memory import Columns, LocalArray, Memory, Rows
from .source import MISSING, Place, dotted_name
from .values import (
    Const,
    Frame,
    Group,
    Local,
    Members,
    Nothing,
    Outside,
    Result,
    Scalar,
    Sizes,
    Typed,
    Value,
    adapts,
    held,
    kind_of,
    misplaced,
    outside_value,
    refusal,
    several,
    show,
    undefined,
)

BOOL_FORMS = {BinaryOp.BIT_AND: BinaryOp.AND, BinaryOp.BIT_OR: BinaryOp.OR, BinaryOp.BIT_XOR: BinaryOp.NE}
"""Bit operators on two bools are the logical ones."""
COMPARE: dict[type[ast.cmpop], tuple[BinaryOp, Callable[[Any, Any], bool]]] = {
    ast.Eq: (BinaryOp.EQ, operator.eq),
    ast.NotEq: (BinaryOp.NE, operator.ne),
    ast.Lt: (BinaryOp.LT, operator.lt),
    ast.LtE: (BinaryOp.LE, operator.le),
    ast.Gt: (BinaryOp.GT, operator.gt),
    ast.GtE: (BinaryOp.GE, operator.ge),
}
LONG_CHAIN = 24
"""Operators after which `a + b + c + ...` goes on from a local: a program's expressions have a limited depth."""


class ExpressionCompiler(NumberCompiler, ABC):
    """Compiles expressions of the current frame into the builder's open block."""

    def __init__(self, builder: Builder, frame: Frame) -> None:
        super().__init__(builder, frame)
        self.effects = 0  # statements so far that must not run when Python would not run them
        self.hint = ""  # the name that the value being compiled is assigned to
        self.wanted: DataType | None = None  # the type that `1 if c else 0` takes where it stands
        self.cells: set[str] = set()  # locals that are elements of arrays: a helper may change them
        self.parts: dict[str, Part] = {}  # what locals and arrays are of, where they are part of what the source names
        self._acting: dict[ast.expr, bool] = {}

    # -- values

    def value(self, node: ast.expr) -> Result:
        """Whatever an expression stands for."""
        wanted, self.wanted = self.wanted, None
        match node:
            case ast.Constant(value=bool() | int() | float() as number):
                return Const(number)
            case ast.Name():
                return self._name(node)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Subscript():
                return self._load(node)
            case ast.BinOp():
                return self._operator(node)
            case ast.UnaryOp():
                return self._unary(node)
            case ast.BoolOp():
                return self._logic(node)
            case ast.Compare():
                return self._compare(node)
            case ast.IfExp():
                return self._ternary(node, wanted)
            case ast.Call():
                return self._call(node)
        raise self.fail(node, *refusal(node))

    def scalar(self, node: ast.expr) -> Scalar:
        """The value of an expression that must have one."""
        return self.one(self.operand(node), node)

    def one(self, found: Value, node: ast.expr) -> Scalar:
        """A value that must not be several."""
        if isinstance(found, Group):
            raise self.fail(node, *several(found, show(node)))
        return found

    def operand(self, node: ast.expr) -> Value:
        """The value of an expression that must have one, or several in one."""
        found = self.argument(node)
        if not isinstance(found, Const | Typed | Group):
            what = "a buffer" if isinstance(found, Buffer) else "an array"
            raise self.fail(node, f"`{show(node)}` is {what}, not a value", f"index it: {show(node)}[i]")
        return found

    def argument(self, node: ast.expr) -> Value | Memory:
        """Values or a buffer: what a helper can be given."""
        found = self.value(node)
        match found:
            case Nothing(call=call):
                raise self.fail(node, f"{call} has no value", "call it as a statement of its own")
            case Sizes(buffer=name, axes=axes):
                names = ", ".join("hwdn"[: len(axes)])
                raise self.fail(
                    node, f"`{name}.shape` is several numbers", f"write {name}.shape[0], or {names} = {name}.shape"
                )
            case Outside(what=what, name=name):
                small = self.captured(what, node)
                if small is None:
                    raise self.fail(node, *misplaced(what, name))
                return small
        return found

    @abstractmethod
    def captured(self, what: object, node: Place) -> Group | None:
        """A NamedTuple of the surrounding program as a small value."""

    def scalars(self, *nodes: ast.expr) -> list[Scalar]:
        """Several values from left to right, each as it was when its turn came."""
        found: list[Scalar] = []
        for k, node in enumerate(nodes):
            value = self.scalar(node)
            found.append(self.settled(value, *nodes[k + 1 :]))
        return found

    def operands(self, *nodes: ast.expr) -> list[Value]:
        """The same, where each may be several in one."""
        return [self.settled(self.operand(node), *nodes[k + 1 :]) for k, node in enumerate(nodes)]

    @overload
    def settled(self, value: Scalar, *later: ast.expr) -> Scalar: ...
    @overload
    def settled(self, value: Value, *later: ast.expr) -> Value: ...
    def settled(self, value: Value, *later: ast.expr) -> Value:
        """`value` in a form that compiling `later` cannot change."""
        if isinstance(value, Group):
            return value._replace(items=tuple(self.settled(item, *later) for item in value.items))
        if isinstance(value, Typed) and any(map(self._acts, later)) and self._observes(value.expr):
            return self.keep(value)
        return value

    @overload
    def once(self, value: Typed) -> Typed: ...
    @overload
    def once(self, value: Value) -> Value: ...
    def once(self, value: Value) -> Value:
        """The value in a form that may be written twice without being computed twice."""
        if isinstance(value, Group):
            return value._replace(items=tuple(map(self.once, value.items)))
        if isinstance(value, Const):
            return value
        changes = isinstance(value.expr, Var) and value.expr.name in self.cells
        return self.keep(value) if changes else super().once(value)

    def _acts(self, node: ast.expr) -> bool:
        """Whether evaluating it may change memory."""
        if node not in self._acting:
            calls = (n for n in ast.walk(node) if isinstance(n, ast.Call))
            called = (self.outside(dotted_name(call.func)) for call in calls)
            self._acting[node] = any(
                isinstance(f, DeviceFunction) or (isinstance(f, Intrinsic) and isinstance(f.op, AtomicOp))
                for f in called
            )
        return self._acting[node]

    def _observes(self, expr: Expr) -> bool:
        """Whether it reads memory that the program may change."""
        writable = {d.name for d in self.b.buffers if d.writable}
        return any(
            (isinstance(e, Load) and e.buffer in writable) or (isinstance(e, Var) and e.name in self.cells)
            for e in walk_exprs(expr)
        )

    # -- names

    def outside(self, dotted: str | None) -> object:
        """What an outside name means; MISSING also for names of the function itself."""
        source = self.frame.source
        return MISSING if dotted is None or dotted.partition(".")[0] in source.locals else source.outside(dotted)

    def _name(self, node: ast.Name) -> Result:
        name = node.id
        binding = self.frame.find(name)
        if isinstance(binding, Local | Members):
            return held(binding)
        if binding is not None:
            return binding
        if name in self.frame.ended:
            line, was = self.frame.ended[name]
            fix = f"write `{name} = ...` above line {line}, so that it has a value on every path"
            if isinstance(was, Const) or (isinstance(was, Local | Members) and was.fixed):
                fix = f"copy it in the loop to a name that is assigned above line {line}"
            raise self.fail(node, f"`{name}` is assigned only inside the block that starts at line {line}", fix)
        if name in self.frame.source.locals:
            raise self.fail(node, f"`{name}` is used before it is assigned", f"assign `{name}` above this line")
        found = self.outside(name)
        if found is MISSING:
            raise self.fail(node, *undefined(name))
        return outside_value(found, name)

    def _attribute(self, node: ast.Attribute) -> Result:
        dotted = dotted_name(node)
        found = self.outside(dotted)
        if dotted is not None and found is not MISSING:
            return outside_value(found, dotted)
        fix = foreign_fix(dotted) if dotted and dotted.partition(".")[0] not in self.frame.source.locals else None
        if fix is not None:
            raise self.fail(node, f"`{dotted}` is not part of kernels", fix)
        base = self.value(node.value)
        if isinstance(base, Group):
            return self.field(base, node)
        if isinstance(base, Buffer | LocalArray | Columns | Rows):
            sizes = self.axes_of(base)
            if node.attr == "size":
                return self.elements(base)
            if sizes and node.attr == "shape":
                return Sizes(base.name, tuple(Typed(size, u32) for size in sizes))
            if sizes and node.attr == "ndim":
                return Const(len(sizes))
            fix = BUFFER_FIXES.get(node.attr, "use x[i], len(x) or x.size")
            raise self.fail(node, f"buffers have no `.{node.attr}`", fix)
        if isinstance(base, Outside) and isinstance(base.what, Ids):
            if node.attr in ("x", "y", "z"):
                return Typed(getattr(base.what, node.attr), u32)
            raise self.fail(node, f"`{base.name}` has no axis `{node.attr}`", "use .x, .y or .z")
        if isinstance(base, Outside) and isinstance(base.what, ModuleType | type):
            own = isinstance(base.what, ModuleType) and node.attr in ("abs", "len", "max", "min", "range")
            fix = f"use Python's {node.attr}" if own else "correct the spelling"
            raise self.fail(node, f"`{base.name}` has no `{node.attr}`", fix)
        fix = "bind the number to a name before the kernel, or pass it as a parameter"
        if isinstance(base, Typed):
            fix = f"`{show(node.value)}` is one number: use it as it is, or convert it with f32(...)"
        raise self.fail(node, f"`.{node.attr}` is an attribute that kernels cannot read", fix)

    @abstractmethod
    def field(self, group: Group, node: ast.Attribute) -> Value:
        """`v.x`."""

    @abstractmethod
    def item(self, group: Group, at: ast.expr, name: str) -> Value:
        """`v[0]`."""

    def length(self, memory: Memory) -> Scalar:
        """What `len` says: of a buffer with a rank, the size of its first axis."""
        sizes = self.axes_of(memory)
        return Typed(sizes[0], u32) if sizes else self.elements(memory)

    @abstractmethod
    def elements(self, memory: Memory) -> Scalar:
        """`x.size`."""

    def truth(self, node: ast.expr) -> Scalar:
        """A condition: bool, u32 (not zero), or a number known while compiling."""
        value = self.scalar(node)
        if isinstance(value, Typed) and value.dtype not in (bool_, u32):
            raise self.fail(node, f"the condition is {value.dtype}", f"write {show(node)} != 0")
        return value

    # -- operators

    def _operator(self, node: ast.BinOp) -> Value:
        chain: list[ast.BinOp] = []  # a + b + c + ... leans to the left, as long as the source line
        first: ast.expr = node
        while isinstance(first, ast.BinOp):
            chain.append(first)
            first = first.left
        left = self.operand(first)
        for k, step in enumerate(reversed(chain)):
            left = self.settled(left, step.right)
            self.wanted = left.dtype if isinstance(left, Typed) else None
            left = self.combined(step.op, left, self.operand(step.right), step, step.left, step.right)
            if isinstance(left, Typed) and k % LONG_CHAIN == LONG_CHAIN - 1 and k + 1 < len(chain):
                left = self.keep(left)
        return left

    @abstractmethod
    def combined(self, op: ast.operator, a: Value, b: Value, node: Place, at_a: ast.expr, at_b: ast.expr) -> Value:
        """`binary`, also of small values."""

    def binary(self, op: ast.operator, a: Scalar, b: Scalar, node: Place, at_a: ast.expr, at_b: ast.expr) -> Scalar:
        if isinstance(a, Const) and isinstance(b, Const):
            return self.fold(op, a.value, b.value, node)
        if type(op) not in BINARY:
            raise self.fail(node, "`@` is not an operator of kernels", "write the loops")
        symbol, ir_op, _ = BINARY[type(op)]
        if ir_op.rule == "shift":
            return self._shift(ir_op, a, b, node, at_a, at_b)
        if bool_ in (v.dtype for v in (a, b) if isinstance(v, Typed)) and any(map(_is_plain_number, (a, b))):
            sides = [f"u32({show(n)})" if isinstance(v, Typed) else show(n) for v, n in ((a, at_a), (b, at_b))]
            raise self.fail(node, f"`{symbol}` of a bool and a number", f"write {f' {symbol} '.join(sides)}")
        (left, right), t = self.alike([a, b], [at_a, at_b], node, f"`{symbol}`")
        self.refuse_narrow(t, node, at_a if isinstance(a, Typed) else at_b, f"`{symbol}`")
        if ir_op is BinaryOp.DIV and t != bool_ and t.is_float != (symbol == "/"):
            raise self.fail(node, f"`{symbol}` does not divide {t}", f"write {'//' if symbol == '/' else '/'}")
        if symbol == "**" and not t.is_float:
            raise self.fail(node, f"`**` of {t}", "multiply: x * x")
        if symbol == "%" and t.is_float:
            ir_op = BinaryOp.FMOD
        if symbol in ("//", "%") and isinstance(b, Const) and b.value == 0:
            raise self.fail(at_b, "division by zero", "divide by a number that is not zero")
        if t == bool_:
            ir_op = BOOL_FORMS.get(ir_op, ir_op)
        return self.checked(BinOp(ir_op, left, right), (t, t), node, left=at_a, right=at_b)

    def _shift(self, op: BinaryOp, a: Scalar, b: Scalar, node: Place, at_a: ast.expr, at_b: ast.expr) -> Typed:
        left = self.typed(a, at_a)
        self.refuse_narrow(left.dtype, node, at_a, f"`{op.text}`")
        width = left.dtype.bits or 32
        if isinstance(b, Const) and not (isinstance(b.value, int) and 0 <= b.value < width):
            raise self.fail(
                at_b, f"shift by {show_number(b.value)} of a {width}-bit value", f"shift by 0 to {width - 1}"
            )
        right = self.typed(b, at_b, u32)
        if right.dtype != u32:
            given = at_b.args[0] if isinstance(at_b, ast.Call) and show(at_b.func) == str(right.dtype) else at_b
            raise self.fail(at_b, f"the shift count is {right.dtype}, and counts are u32", f"write u32({show(given)})")
        return self.checked(BinOp(op, left.expr, right.expr), (left.dtype, u32), node, left=at_a, right=at_b)

    @abstractmethod
    def signed(self, symbol: str, group: Group, node: ast.UnaryOp) -> Group:
        """`-v`, `+v` and `~v`."""

    def _unary(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            value = self.truth(node.operand)
            if isinstance(value, Const):
                return Const(not value.value)
            return Typed(UnOp(UnaryOp.LOGICAL_NOT, value.expr), bool_)
        found = self.operand(node.operand)
        symbol = {ast.USub: "-", ast.UAdd: "+", ast.Invert: "~"}[type(node.op)]
        if isinstance(found, Group):
            return self.signed(symbol, found, node)
        value = found
        if isinstance(value, Const):
            return self.fold_unary(symbol, value.value, node)
        if symbol == "+":
            return value
        if value.dtype == bool_:
            fix = f"write not {show(node.operand)}" if symbol == "~" else f"write i32({show(node.operand)})"
            raise self.fail(node, f"`{symbol}` of a bool", fix)
        self.refuse_narrow(value.dtype, node, node.operand, f"`{symbol}`")
        op = UnaryOp.NEGATE if symbol == "-" else UnaryOp.BIT_NOT
        return self.checked(UnOp(op, value.expr), (value.dtype,), node, operand=node.operand)

    def _logic(self, node: ast.BoolOp) -> Scalar:
        """Eager, so that nothing an operand does may have an effect: Python would skip it."""
        conjunction = isinstance(node.op, ast.And)
        found: list[Expr] = []
        effects = self.effects
        for k, part in enumerate(node.values):
            value = self.truth(part)
            if k and self.effects != effects:
                word = "and" if conjunction else "or"
                raise self.fail(
                    part, f"the right side of `{word}` has an effect, and runs always", "use a nested if instead"
                )
            effects = self.effects
            if isinstance(value, Const):
                if bool(value.value) != conjunction:
                    return Const(not conjunction)
                continue
            settled = self.settled(value, *node.values[k + 1 :])
            assert isinstance(settled, Typed)
            found.append(settled.expr)
        if not found:
            return Const(conjunction)
        if len(found) == 1 and found[0].type_hint != bool_:
            return Typed(found[0].ne(0), bool_)
        return Typed(balanced(BinaryOp.AND if conjunction else BinaryOp.OR, found), bool_)

    def _compare(self, node: ast.Compare) -> Scalar:
        for op in node.ops:
            if type(op) not in COMPARE:
                word = {ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in"}[type(op)]
                fix = "compare with == or !=" if word.startswith("is") else "compare with each value: x == 1 or x == 2"
                raise self.fail(node, f"`{word}` is not an operator of kernels", fix)
        nodes = [node.left, *node.comparators]
        values: list[Value] = []
        for k, part in enumerate(nodes):
            effects = self.effects
            value = self.settled(self.operand(part), *nodes[k + 1 :])
            if k > 1 and self.effects != effects:
                raise self.fail(
                    part,
                    "a later part of a chained comparison has an effect, and runs always",
                    "use a nested if instead",
                )
            values.append(self.once(value) if 0 < k < len(node.ops) else value)
        found: list[Expr] = []
        for k, op in enumerate(node.ops):
            ir_op, fold = COMPARE[type(op)]
            a, b = values[k], values[k + 1]
            if isinstance(a, Const) and isinstance(b, Const):
                if not fold(a.value, b.value):
                    return Const(False)
                continue
            if isinstance(a, Group) or isinstance(b, Group):
                found.append(self.same(ir_op, a, b, node, *nodes[k : k + 2]))
                continue
            (left, right), t = self.alike([a, b], nodes[k : k + 2], node, f"`{ir_op.text}`")
            self.refuse_decided(ir_op, nodes[k], nodes[k + 1], t, node)
            found.append(self.checked(BinOp(ir_op, left, right), (t, t), node).expr)
        return Typed(balanced(BinaryOp.AND, found), bool_) if found else Const(True)

    @abstractmethod
    def same(self, op: BinaryOp, a: Value, b: Value, node: Place, at_a: ast.expr, at_b: ast.expr) -> Expr:
        """Whether groups are equal, or differ."""

    def _ternary(self, node: ast.IfExp, wanted: DataType | None) -> Value:
        """`a if c else b if d else ...`, eager like `and` and `or`."""
        conditions: list[Expr] = []
        arms: list[Value] = []
        nodes: list[ast.expr] = []
        rest: ast.expr = node
        effects = 0

        def refuse_effects(at: ast.expr) -> None:
            if conditions and self.effects != effects:
                raise self.fail(at, "an arm of a conditional expression has an effect", "use an if statement instead")

        while isinstance(rest, ast.IfExp):
            condition = self.truth(rest.test)
            refuse_effects(rest.test)
            effects = self.effects
            if isinstance(condition, Const):
                rest = rest.body if condition.value else rest.orelse
                continue
            chosen = self.settled(condition, rest.body, rest.orelse)
            assert isinstance(chosen, Typed)
            conditions.append(chosen.expr)
            self.wanted = wanted
            arms.append(self.settled(self.operand(rest.body), rest.orelse))
            nodes.append(rest.body)
            refuse_effects(rest.body)
            rest = rest.orelse
        self.wanted = wanted
        arms.append(self.operand(rest))
        nodes.append(rest)
        refuse_effects(rest)
        if not conditions:
            return arms[0]
        if any(isinstance(arm, Group) for arm in arms):
            return self.group_choice(conditions, arms, nodes, node)
        scalars = [arm for arm in arms if not isinstance(arm, Group)]
        if wanted is not None and all(isinstance(arm, Const) and adapts(arm, wanted) for arm in scalars):
            scalars[0] = self.typed(scalars[0], nodes[0], wanted)
        return self.choice(conditions, scalars, nodes, node)

    @abstractmethod
    def group_choice(self, conditions: list[Expr], arms: list[Value], nodes: list[ast.expr], node: Place) -> Group:
        """`choice`, of groups."""

    def choice(self, conditions: list[Expr], arms: list[Scalar], nodes: list[ast.expr], node: Place) -> Typed:
        """The arm of the first condition that holds, or the last arm."""
        (*exprs, result), t = self.alike(arms, nodes, node, "a choice")
        for k, (condition, expr) in enumerate(zip(reversed(conditions), reversed(exprs), strict=True), 1):
            result = Select(condition, expr, result)
            if k % LONG_CHAIN == 0 and k < len(conditions):
                result = self.keep(Typed(result, t)).expr
        return Typed(result, t)

    # -- buffers

    def buffer(self, node: ast.expr, indexed: bool = False) -> Memory:
        """The buffer or array that an expression names."""
        return self.memory(self.value(node), node, indexed)

    def memory(self, found: Result, node: ast.expr, indexed: bool) -> Memory:
        """What an expression names, as memory."""
        if isinstance(found, Buffer | LocalArray | Columns | Rows):
            return found
        name = show(node)
        fix = f"name a buffer: a parameter such as {name}: In[f32], or shared()"
        if indexed and isinstance(found, Outside) and isinstance(found.what, Ids):
            fix = f"write {name}.x, {name}.y or {name}.z"
        elif indexed and isinstance(found, Typed | Const):
            fix = f"it is one value: write {name} without an index"
        elif isinstance(found, Outside) and not callable(found.what):
            raise self.fail(
                node,
                f"`{name}` is a {kind_of(found.what)}, not a buffer",
                f"pass it as a parameter: {name}: In[f32]",
            )
        raise self.fail(node, f"`{name}` is not a buffer", fix)

    def indexed(self, node: ast.Subscript) -> tuple[Memory, list[ast.expr]]:
        """What `x[...]` indexes, and its indices, with the forms of indexing that kernels lack refused."""
        self.refuse_slice(node.slice, node)
        memory = self.buffer(node.value, indexed=True)
        return memory, self.axes(memory, node.slice, node)

    def sizes(self, node: ast.expr) -> Sizes | None:
        """`x.shape` of a buffer with a rank; None for any other expression, which is not compiled here."""
        if not (isinstance(node, ast.Attribute) and node.attr == "shape" and isinstance(node.value, ast.Name)):
            return None
        found = self.value(node) if isinstance(self.frame.find(node.value.id), Buffer) else None
        return found if isinstance(found, Sizes) else None

    def _load(self, node: ast.Subscript) -> Result:
        sizes = self.sizes(node.value)
        if sizes is not None:
            return self._size(sizes, node.slice)
        self.refuse_slice(node.slice, node)
        found = self.value(node.value)
        if isinstance(found, Group):
            return self.item(found, node.slice, show(node.value))
        memory = self.memory(found, node.value, indexed=True)
        nodes = self.axes(memory, node.slice, node)
        return self.load(memory, self.index(memory, self.scalars(*nodes), nodes), node)

    def _size(self, sizes: Sizes, at: ast.expr) -> Typed:
        axis, rank = self.constant(at), len(sizes.axes)
        if not isinstance(axis, Const) or not (type(axis.value) is int and -rank <= axis.value < rank):
            raise self.fail(
                at, f"`{sizes.buffer}` has {rank} {'axis' if rank == 1 else 'axes'}", f"use 0 to {rank - 1}"
            )
        return sizes.axes[axis.value]

    @abstractmethod
    def constant(self, node: ast.expr) -> Scalar:
        """The value where a number known while compiling is needed."""

    def load(self, memory: Memory, index: Expr, node: Place) -> Value:
        buffer = memory
        assert isinstance(buffer, Buffer)
        if buffer.decl.access is Access.WRITE_ONLY:
            raise self.fail(
                node, f"`{buffer.name}` is an Out and cannot be read", f"declare it InOut[{buffer.element}]"
            )
        return Typed(Load(buffer.name, index, dtype=buffer.element), buffer.element)

    # -- types and calls

    def dtype(self, node: ast.expr) -> DataType:
        """The type that an expression names."""
        found = self.value(node)
        t = element_type(found.what) if isinstance(found, Outside) else None
        if t is None:
            ours = FOREIGN_TYPES.get(getattr(found.what, "__name__", "")) if isinstance(found, Outside) else None
            fix = f"write {ours}" if ours else "use u32, i32, f32, bool or another type"
            raise self.fail(node, f"`{show(node)}` is not a type of kernels", fix)
        return t

    @abstractmethod
    def _call(self, node: ast.Call) -> Result:
        """What a call computes."""


def _is_plain_number(value: Scalar) -> bool:
    return isinstance(value, Const) and not isinstance(value.value, bool)


def balanced(op: BinaryOp, parts: list[Expr]) -> Expr:
    """`parts` under an operator that is the same however they are grouped: in their order, and no deeper than need
    be."""
    while len(parts) > 1:
        pairs = [parts[k : k + 2] for k in range(0, len(parts), 2)]
        parts = [BinOp(op, *pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]
