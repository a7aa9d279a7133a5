"""Statements of the kernel language.

The IR has neither `while` nor `break`. `while c: body` becomes

    go = true; loop { if go { go = c; if go { body } } }

`break` clears `go`, `continue` clears a flag of the iteration, and what follows either in its block is guarded by the
flag. Every engine leaves a loop whose whole body is `if go`.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

from ..build import Buffer
from ..dtypes import DataType, bool_, i32, u32
from ..ir import Cast, Expr, Lit, Select, Var, lit
from ..lang import DeviceFunction, Intrinsic, shared, static_range
from .exprs import (
    Binding,
    Const,
    Local,
    Nothing,
    Outside,
    Scalar,
    Typed,
    adapts,
    show,
)
from .inline import Flags, HelperCompiler, Inlining
from .source import Place, dotted_name
from .words import REFUSED_STATEMENTS

MAX_UNROLLED = 65_536
"""Iterations of one static_range; more is a mistake, or belongs in a range."""


class StatementCompiler(HelperCompiler):
    """Compiles the statements of a kernel into its builder."""

    # -- blocks

    @contextmanager
    def scope(self, line: int) -> Iterator[dict[str, Binding]]:
        """The block that starts at `line`: names assigned inside end with it."""
        frame = self.frame
        names: dict[str, Binding] = {}
        frame.scopes.append(names)
        frame.depth += 1
        yield names
        frame.scopes.pop()
        frame.depth -= 1
        frame.ended.update(dict.fromkeys(names, line))

    def block(self, body: Iterable[ast.stmt]) -> bool:
        """Compiles statements in order; True when no path leads past them."""
        todo = deque(body)
        while todo:
            node = todo.popleft()
            self.b.span = self.frame.source.span(node)
            if isinstance(node, ast.If):
                self._header(node, node.test)
                condition = self.truth(node.test)
                if isinstance(condition, Const):  # decided while compiling: the other side is never looked at
                    todo.extendleft(reversed(node.body if condition.value else node.orelse))
                    continue
                if isinstance(self.frame, Inlining) and _returns(node):
                    return self._returning_if(node, condition, list(todo))
                self._if(node, condition, node.body, node.orelse)
            else:
                self.statement(node)
            if isinstance(node, ast.Return | ast.Break | ast.Continue):
                return True  # Python accepts dead code; the IR does not
            flags = self.loops[-1] if self.loops else None
            if todo and flags and flags.guard is not None and _jumps(node):
                with self.b.if_(flags.guard):
                    return self.block(todo)
        return False

    def _header(self, node: ast.stmt, last: ast.expr) -> None:
        self.b.span = self.frame.source.span(node, last)

    def _if(self, node: ast.If, condition: Typed, then: list[ast.stmt], orelse: list[ast.stmt]) -> bool:
        line = self.frame.source.line(node)
        with self.b.if_(condition.expr), self.scope(line):
            ends = self.block(then)
        if not orelse:
            return False
        with self.b.else_(), self.scope(line):
            return self.block(orelse) and ends

    def _returning_if(self, node: ast.If, condition: Typed, rest: list[ast.stmt]) -> bool:
        """In a helper, what follows an if that returns belongs to its other side."""
        then_ends, else_ends = _always_returns(node.body), _always_returns(node.orelse)
        if not (then_ends or else_ends):
            at = next(n for n in ast.walk(node) if isinstance(n, ast.Return))
            raise self.fail(
                at,
                "this return leaves a helper on some paths of a branch only",
                "end every path of the branch with return",
            )
        then = node.body if then_ends else [*node.body, *rest]
        orelse = node.orelse if else_ends else [*node.orelse, *rest]
        return self._if(node, condition, then, orelse)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=[target], value=value):
                self._assign(target, value)
            case ast.Assign():
                self._assign_all(node)
            case ast.AugAssign():
                self._augmented(node)
            case ast.AnnAssign():
                self._annotated(node)
            case ast.Expr():
                self._expression(node)
            case ast.For():
                self._for(node)
            case ast.While():
                self._while(node)
            case ast.Return():
                self.leave(node)
            case ast.Break() | ast.Continue():
                self._jump(node)
            case ast.Pass():
                pass
            case _:
                name = type(node).__name__
                raise self.fail(
                    node, *REFUSED_STATEMENTS.get(name, (f"{name} is not part of kernels", "use if, for, while, ="))
                )

    def _expression(self, node: ast.Expr) -> None:
        value = node.value
        if isinstance(value, ast.Constant) and (isinstance(value.value, str) or value.value is ...):
            return  # a docstring, or `...` for pass
        effects = self.effects
        found = self.value(value)
        if isinstance(found, Nothing):
            return
        if isinstance(found, Outside | Buffer) or self.effects == effects:
            if isinstance(value, ast.Call) and isinstance(self.outside(dotted_name(value.func)), DeviceFunction):
                return
            raise self.fail(value, "this value is not used", "assign it to a name, or remove the line")

    # -- assignment

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        match target:
            case ast.Name():
                called = self.outside(dotted_name(value.func)) if isinstance(value, ast.Call) else None
                if called is shared and isinstance(value, ast.Call):
                    self._shared(target, value)
                    return
                self.hint = target.id if isinstance(called, Intrinsic) else ""
                binding = self.frame.find(target.id)
                self.wanted = binding.dtype if isinstance(binding, Local) else None
                found = self.scalar(value)
                self.hint = ""
                self.bind(target, found, value)
            case ast.Subscript():
                buffer = self.indexed(target)
                self.wanted = buffer.element
                given, position = self.scalars(value, target.slice)
                self.store(buffer, self.index(position, target.slice, buffer.decl.count), given, target, value)
            case ast.Tuple() | ast.List():
                self._unpack(target, value)
            case _:
                raise self.fail(target, f"`{show(target)}` cannot be assigned", "assign to a name or an element: x[i]")

    def bind(self, target: ast.Name, value: Scalar, at: ast.expr, declared: DataType | None = None) -> None:
        """Give a name a value: a new local the first time, an assignment later."""
        name, line = target.id, self.frame.source.line(target)
        binding = self.frame.find(name)
        if isinstance(binding, Local) and not binding.fixed:
            assert isinstance(binding.var, Var)
            found = self.typed(value, at, binding.dtype) if adapts(value, binding.dtype) else self.typed(value, at)
            if found.dtype != binding.dtype or declared not in (None, binding.dtype):
                raise self.fail(
                    at if declared in (None, binding.dtype) else target,
                    f"`{name}` is {binding.dtype} since line {binding.line} and cannot become "
                    f"{declared or found.dtype}",
                    f"write {binding.dtype}({show(at)}), or use another name",
                )
            self.b.assign(binding.var, found.expr)
            return
        if binding is not None:
            what = binding.fixed if isinstance(binding, Local) else "a buffer"
            what = "known while compiling" if isinstance(binding, Const) else what
            raise self.fail(target, f"`{name}` is {what} and cannot be assigned", "use another name")
        if declared is not None:
            found = Typed(self.fit(value, declared, at, f"`{name}`"), declared)
        else:
            found = self.typed(value, at)
        if isinstance(found.expr, Var) and found.expr.name in self.temporaries:
            self.temporaries.discard(found.expr.name)
            var = found.expr
        else:
            var = self.b.let(name, found.expr)
        self.frame.scopes[-1][name] = Local(var, found.dtype, line)

    def store(self, buffer: Buffer, index: Expr, value: Scalar, target: ast.Subscript, at: Place) -> None:
        if not buffer.decl.writable:
            raise self.fail(
                target,
                f"`{buffer.name}` cannot be written",
                f"declare it Out[{buffer.element}] or InOut[{buffer.element}]",
            )
        self.effects += 1
        self.b.store(buffer, index, self.fit(value, buffer.element, at, f"`{show(target)}`"))

    def _assign_all(self, node: ast.Assign) -> None:
        """`a = b = value`."""
        for target in node.targets:
            if not isinstance(target, ast.Name):
                raise self.fail(target, "only names are assigned in a chain", "assign each on a line of its own")
        value = self.scalar(node.value)
        if isinstance(value, Typed):
            value = self.keep(value)
            assert isinstance(value.expr, Var)
            self.temporaries.discard(value.expr.name)  # several names copy it
        for target in node.targets:
            assert isinstance(target, ast.Name)
            self.bind(target, value, node.value)

    def _unpack(self, target: ast.Tuple | ast.List, value: ast.expr) -> None:
        """`a, b = b, a`: every value is computed before the first target changes."""
        if not isinstance(value, ast.Tuple | ast.List):
            raise self.fail(value, "only a list of values can be unpacked", "write a, b = x, y")
        for item in (*target.elts, *value.elts):
            if isinstance(item, ast.Starred):
                raise self.fail(item, "`*` is not part of kernels", "write the values one by one")
        if len(target.elts) != len(value.elts):
            raise self.fail(
                target, f"{len(value.elts)} values for {len(target.elts)} targets", "write as many values as targets"
            )
        held = [
            v if isinstance(v, Const) else self.keep(v, at.id if isinstance(at, ast.Name) else "t")
            for v, at in zip(self.scalars(*value.elts), target.elts, strict=True)
        ]
        for left, right, found in zip(target.elts, value.elts, held, strict=True):
            match left:
                case ast.Name():
                    self.bind(left, found, right)
                case ast.Subscript():
                    buffer = self.indexed(left)
                    index = self.index(self.scalar(left.slice), left.slice, buffer.decl.count)
                    self.store(buffer, index, found, left, right)
                case _:
                    raise self.fail(left, f"`{show(left)}` cannot be assigned", "assign to names and elements: x[i]")

    def _augmented(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            before = self.settled(self.scalar(node.target), node.value)
            after = self._combined(node, before)
            self.bind(node.target, after, node.value)
            return
        if not isinstance(node.target, ast.Subscript):
            raise self.fail(node.target, f"`{show(node.target)}` cannot be assigned", "assign to a name or an element")
        buffer = self.indexed(node.target)
        at = node.target.slice
        index = self.once(Typed(self.index(self.scalar(at), at, buffer.decl.count), u32)).expr
        before = self.settled(self.load(buffer, index, node.target), node.value)
        self.store(buffer, index, self._combined(node, before), node.target, node.value)

    def _combined(self, node: ast.AugAssign, before: Scalar) -> Scalar:
        self.wanted = before.dtype if isinstance(before, Typed) else None
        return self.binary(node.op, before, self.scalar(node.value), node, node.target, node.value)

    def _annotated(self, node: ast.AnnAssign) -> None:
        t = self.dtype(node.annotation)
        if node.value is None:
            raise self.fail(node, f"`{show(node.target)}` gets a type and no value", "assign a value on the same line")
        if not isinstance(node.target, ast.Name):
            raise self.fail(node.target, "only names take an annotation", "leave the annotation out")
        self.wanted = t
        self.bind(node.target, self.scalar(node.value), node.value, t)

    def _shared(self, target: ast.Name, call: ast.Call) -> None:
        dtype, count = self.arguments(call, "shared", shared.signature)
        t, size = self.dtype(dtype), self.scalar(count)
        if not isinstance(size, Const) or isinstance(size.value, bool | float):
            raise self.fail(
                count, "the size of shared memory is not known while compiling", "use a number or a const parameter"
            )
        if size.value < 1:
            raise self.fail(count, f"shared memory of {size.value} elements", "make it at least 1")
        if self.frame.depth:
            raise self.fail(call, "shared memory is declared inside a branch or loop", "declare it at the top")
        if self.frame.find(target.id) is not None:
            raise self.fail(target, f"`{target.id}` has another meaning already", "use another name")
        self.frame.scopes[-1][target.id] = self.b.shared(target.id, t, size.value)

    # -- loops

    def _jump(self, node: ast.Break | ast.Continue) -> None:
        flags = self.loops[-1]  # Python itself refuses break outside a loop
        if isinstance(node, ast.Break) and flags.go is not None:
            self.b.assign(flags.go, Lit(bool_, 0))
        if flags.step is not None:
            self.b.assign(flags.step, Lit(bool_, 0))

    @contextmanager
    def _iteration(self, node: ast.For | ast.While, go: Var | None) -> Iterator[dict[str, Binding]]:
        """One pass through a loop's body, with the flags that its jumps need."""
        step = self.b.let("step", Lit(bool_, 1)) if any(_jumps(n, ast.Continue) for n in node.body) else None
        self.loops.append(Flags(go, step))
        with self.scope(self.frame.source.line(node)) as names:
            yield names
        self.loops.pop()

    def _while(self, node: ast.While) -> None:
        self._no_else(node)
        self._header(node, node.test)
        self.effects += 1  # it may not end: never run one that Python would not run
        with self.b.while_flag() as go:
            self.frame.depth += 1
            self.b.assign(go, self.as_bool(self.truth(node.test)))
            with self.b.if_(go), self._iteration(node, go):
                self.block(node.body)
            self.frame.depth -= 1

    def _for(self, node: ast.For) -> None:
        self._no_else(node)
        self._header(node, node.iter)
        if not isinstance(node.target, ast.Name):
            raise self.fail(node.target, "a loop has one variable", "write for i in range(n)")
        binding = self.frame.find(node.target.id)
        if binding is not None:
            raise self.fail(node.target, f"`{node.target.id}` has another meaning already", "use another name")
        called = self.outside(dotted_name(node.iter.func)) if isinstance(node.iter, ast.Call) else None
        if not isinstance(node.iter, ast.Call) or (called is not range and called is not static_range):
            raise self.fail(node.iter, "loops run over range() or static_range()", "write for i in range(len(x))")
        if node.iter.keywords or not 1 <= len(node.iter.args) <= 3:
            raise self.fail(node.iter, "a range takes one to three numbers", "write range(start, stop, step)")
        breaks = any(_jumps(n, ast.Break) for n in node.body)
        go = self.b.let("go", Lit(bool_, 1)) if breaks else None
        if called is static_range:
            self._unrolled(node, node.target, node.iter, go)
        else:
            self._counted(node, node.target, node.iter, go)

    def _unrolled(self, node: ast.For, target: ast.Name, call: ast.Call, go: Var | None) -> None:
        numbers: list[int] = []
        for arg, value in zip(call.args, self.scalars(*call.args), strict=True):
            if not isinstance(value, Const) or isinstance(value.value, bool | float):
                raise self.fail(
                    arg, "static_range() needs whole numbers known while compiling", "use range(), or a const parameter"
                )
            numbers.append(value.value)
        turns = self._python_range(numbers, call)
        if len(turns) > MAX_UNROLLED:
            raise self.fail(call, f"static_range() of {len(turns)} turns", "use range()")
        span = self.b.span
        for number in turns:
            self.b.span = span
            with self._while_set(go), self._iteration(node, go) as names:
                names[target.id] = Const(number)
                self.block(node.body)

    def _while_set(self, go: Var | None) -> AbstractContextManager[None]:
        """The block of one turn: the loop is over once its flag is clear."""
        return nullcontext() if go is None else self.b.if_(go)

    def _python_range(self, numbers: list[int], call: ast.Call) -> range:
        if len(numbers) == 3 and numbers[2] == 0:
            raise self.fail(call.args[2], "a range with step 0 does not move", "use another step")
        return range(*numbers)

    def _counted(self, node: ast.For, target: ast.Name, call: ast.Call, go: Var | None) -> None:
        start, stop, make = self._trips(call)
        with self.b.loop(target.id if make is None else "turn", start, stop) as turn, self._while_set(go):
            item = Typed(turn, u32) if make is None else make.at(turn)
            var = turn if make is None else self.b.let(target.id, item.expr)
            with self._iteration(node, go) as names:
                names[target.id] = Local(var, item.dtype, self.frame.source.line(target), "a loop variable")
                self.block(node.body)

    def _trips(self, call: ast.Call) -> tuple[Expr, Expr, _Item | None]:
        """Bounds of a loop, and how its variable follows from the turn (None: it is the turn)."""
        values = self.scalars(*call.args)
        if all(isinstance(v, Const) for v in values):
            return self._known_trips(values, call)
        low, high, step = [[Const(0), *values, Const(1)], [*values, Const(1)], values][len(values) - 1]
        at_low, at_high, at_step = call.args[0], call.args[min(1, len(values) - 1)], call.args[-1]
        t = next(v.dtype for v in (low, high, step) if isinstance(v, Typed))
        for v, at in ((low, at_low), (high, at_high), (step, at_step)):
            if isinstance(v, Typed) and (v.dtype != t or t not in (u32, i32)):
                want = t if t in (u32, i32) else u32
                raise self.fail(at, f"this bound of the range is {v.dtype}", f"write {want}({show(at)})")
        if isinstance(step, Const) and (isinstance(step.value, bool | float) or step.value == 0):
            raise self.fail(
                at_step, f"a range with step {step.value!r} does not move", "use a whole number that is not 0"
            )
        to_zero = (
            t == u32 and isinstance(high, Const) and high.value == -1 and isinstance(step, Const) and step.value < 0
        )
        first = self.typed(low, at_low, t)
        last = None if to_zero else self.typed(high, at_high, t)
        if isinstance(step, Const):
            if t == u32 and step.value == 1:
                assert last is not None
                return first.expr, last.expr, None
            first = first if isinstance(first.expr, Lit) else self.keep(first, "start")
            span = self._span_of(first.expr, None if last is None else self.once(last).expr, t, step.value < 0)
            turns = span if abs(step.value) == 1 else self._ceil_div(span, lit(abs(int(step.value)), u32))
            return lit(0), turns, _Item(first.expr, lit(abs(int(step.value)), u32), step.value < 0, t)
        return self._dynamic_trips(first, last, self.keep(step, "step"), t)

    def _known_trips(self, values: Sequence[Scalar], call: ast.Call) -> tuple[Expr, Expr, _Item | None]:
        numbers: list[int] = []
        for v, at in zip(values, call.args, strict=True):
            assert isinstance(v, Const)
            if isinstance(v.value, bool | float):
                raise self.fail(at, f"{v.value!r} is not a whole number", "use whole numbers in range()")
            numbers.append(v.value)
        turns = self._python_range(numbers, call)
        t = i32 if turns and min(turns[0], turns[-1]) < 0 else u32
        start = turns.start if turns else 0
        if t == u32 and turns.step == 1:
            return self.literal(start, u32, call), self.literal(start + len(turns), u32, call), None
        first = self.literal(start, t, call)
        size = self.literal(abs(turns.step), u32, call)
        return lit(0), self.literal(len(turns), u32, call), _Item(first, size, turns.step < 0, t)

    def _span_of(self, first: Expr, last: Expr | None, t: DataType, down: bool) -> Expr:
        """How far the range reaches, as u32; 0 when it is empty."""
        if last is None:  # down to 0 and including it: what Python writes as a stop of -1
            return first + 1
        ends = (first, last) if down else (last, first)
        a, b = ends if t == u32 else (Cast(u32, ends[0]), Cast(u32, ends[1]))
        return Select(first > last if down else first < last, a - b, lit(0))

    def _dynamic_trips(
        self, first: Typed, last: Typed | None, step: Typed, t: DataType
    ) -> tuple[Expr, Expr, _Item | None]:
        assert last is not None
        low, high = self.keep(first, "start").expr, self.once(last).expr
        up = self._span_of(low, high, t, down=False)
        if t == u32:
            turns: Expr = Select(step.expr.eq(0), lit(0), self._ceil_div(up, step.expr))
        else:
            down = self._span_of(low, high, t, down=True)
            size = Cast(u32, Select(step.expr < 0, -step.expr, step.expr))
            turns = Select(step.expr.eq(0), lit(0), self._ceil_div(Select(step.expr < 0, down, up), size))
        size_bits = step.expr if t == u32 else Cast(u32, step.expr)
        return lit(0), turns, _Item(low, size_bits, False, t)

    def _ceil_div(self, span: Expr, size: Expr) -> Expr:
        whole = self.keep(Typed(span, u32), "span").expr
        return Select(whole.eq(0), lit(0), (whole - 1) // size + 1)

    def _no_else(self, node: ast.For | ast.While) -> None:
        if node.orelse:
            raise self.fail(
                node.orelse[0], "`else` of a loop is not part of kernels", "set a flag before break, and test it"
            )


class _Item(NamedTuple):
    """The variable of a loop that does not count from its start by 1: first + turn * size, or first - turn * size."""

    first: Expr
    size: Expr
    down: bool
    dtype: DataType

    def at(self, turn: Expr) -> Typed:
        offset = turn if self.size == lit(1) else turn * self.size
        if isinstance(self.first, Lit) and self.first.bits == 0 and not self.down:
            return Typed(offset if self.dtype == u32 else Cast(i32, offset), self.dtype)
        if self.dtype == u32:
            return Typed(self.first - offset if self.down else self.first + offset, u32)
        whole = Cast(u32, self.first)
        return Typed(Cast(i32, whole - offset if self.down else whole + offset), i32)


def _jumps(node: ast.stmt, *kinds: type[ast.stmt]) -> bool:
    """Whether a statement may leave the iteration around it; loops inside keep their own jumps."""
    if isinstance(node, ast.If):
        return any(_jumps(n, *kinds) for n in (*node.body, *node.orelse))
    return isinstance(node, kinds or (ast.Break, ast.Continue))


def _always_returns(body: list[ast.stmt]) -> bool:
    last = body[-1] if body else None
    if isinstance(last, ast.If):
        return _always_returns(last.body) and _always_returns(last.orelse)
    return isinstance(last, ast.Return)


def _returns(node: ast.stmt) -> bool:
    return any(isinstance(n, ast.Return) for n in ast.walk(node))
