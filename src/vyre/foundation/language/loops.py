"""Loops of the kernel language.

The IR has neither `while` nor `break`. `while c: body` becomes

    go = true; loop { if go { loop { if go { go = c; if go { body } } } } }

where each loop has as many turns as a loop can have: together they never run out, and one would within a minute.
`break` clears `go`, `continue` clears a flag of the iteration, and what follows either in its block is guarded by the
flag. Every engine leaves a loop whose whole body is `if go`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from ..ir.build import Builder
from ..ir.dtypes import DataType, bool_, i32, u32
from ..ir.nodes import BinOp, Cast, Expr, Lit, Select, Var, lit, show_number
from ..ir.ops import BinaryOp
from .inline import Flags, HelperCompiler, Inlining
from .lang import static_range
from .source import Table, dotted_name, jumps, returns
from .values import Binding, Const, Frame, Local, Outside, Result, Scalar, Typed, outside_value, show

MAX_UNROLLED = 2_048
"""Turns of all unrolled loops of a kernel. With one short statement in each they compile in two seconds on a processor;
more belong in a range."""
MAX_STATEMENTS = 50_000
"""Statements of a kernel with its helpers and unrolled loops written out, which take half a minute."""
UNROLL_LESS = "use range(), which a kernel turns in while it runs"


class LoopCompiler(HelperCompiler):
    """Compiles `for` and `while`, and the jumps inside them."""

    turns = 0  # of unrolled loops, so far
    statements = 0

    def __init__(self, builder: Builder, frame: Frame) -> None:
        super().__init__(builder, frame)
        self.differences: set[str] = set()  # locals of u32 that have one value, which may have wrapped below zero

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
        frame.ended.update({name: (line, binding) for name, binding in names.items()})

    def header(self, node: ast.stmt, last: ast.expr) -> None:
        """Puts what follows at the first line of a compound statement."""
        self.b.span = self.frame.source.span(node, last)

    def jump(self, node: ast.Break | ast.Continue) -> None:
        flags = self.loops[-1]  # Python itself refuses break outside a loop
        if isinstance(node, ast.Break) and flags.go is not None:
            self.b.assign(flags.go, Lit(bool_, 0))
        if flags.step is not None:
            self.b.assign(flags.step, Lit(bool_, 0))

    @contextmanager
    def _iteration(self, node: ast.For | ast.While, go: Var | None) -> Iterator[dict[str, Binding]]:
        """One pass through a loop's body, with the flags that its jumps need."""
        step = self.b.let("step", Lit(bool_, 1)) if any(jumps(n, ast.Continue) for n in node.body) else None
        self.loops.append(Flags(go, step))
        with self.scope(self.frame.source.line(node)) as names:
            yield names
        self.loops.pop()

    def while_(self, node: ast.While) -> None:
        self._no_else(node)
        self.header(node, node.test)
        self.effects += 1  # it may not end: never run one that Python would not run
        header, self.b.span = self.b.span, None  # the line says the condition alone
        with self.b.while_flag() as go:
            self.frame.depth += 1
            self.b.span = header
            self.b.assign(go, self.as_bool(self.truth(node.test)))
            with self.while_set(go), self._iteration(node, go):
                self.block(node.body)
            self.frame.depth -= 1
            self.b.span = None
        self.b.span = header

    def for_(self, node: ast.For) -> None:
        self._no_else(node)
        self.header(node, node.iter)
        names = node.target.elts if isinstance(node.target, ast.Tuple | ast.List) else [node.target]
        for name in names:
            if not isinstance(name, ast.Name):
                raise self.fail(name, "a loop has a name for its variable", "write for i in range(n)")
            if self.frame.find(name.id) is not None and name.id not in self.frame.source.unwanted:
                raise self.fail(name, f"`{name.id}` has another meaning already", "use another name")
        breaks = any(jumps(n, ast.Break) for n in node.body) or (isinstance(self.frame, Inlining) and returns(node))
        called = self.outside(dotted_name(node.iter.func)) if isinstance(node.iter, ast.Call) else None
        items = self._items(node.iter, called)
        if items is not None:
            go = self.b.let("go", Lit(bool_, 1)) if breaks else None
            self._unrolled(node, items, go)
            return
        if not isinstance(node.target, ast.Name):
            fix = (
                "write for i in range(len(x)), and x[i] inside"
                if called in (enumerate, zip)
                else "write for i in range(n)"
            )
            raise self.fail(node.target, "a loop has one variable", fix)
        if not isinstance(node.iter, ast.Call) or (called is not range and called is not static_range):
            fix = "write for i in range(len(x))"
            raise self.fail(node.iter, "loops run over range(), static_range() or a tuple of numbers", fix)
        if node.iter.keywords or not 1 <= len(node.iter.args) <= 3:
            raise self.fail(node.iter, "a range takes one to three numbers", "write range(start, stop, step)")
        go = self.b.let("go", Lit(bool_, 1)) if breaks else None
        if called is static_range:
            self._unrolled(node, self._static_range(node.iter), go)
        else:
            self._counted(node, node.target, node.iter, go)

    def _items(self, node: ast.expr, called: object) -> Sequence[object] | None:
        """What a loop over tables goes through, also in `enumerate()` and `zip()`; None for any other loop."""
        if not isinstance(node, ast.Call):
            table = self.table(node)
            return None if table is None else table.items
        if (called is not enumerate and called is not zip) or node.keywords or not node.args:
            return None
        tables = [self.table(arg) for arg in node.args]
        found = [table.items for table in tables if table is not None]
        if len(found) < len(tables) or (called is enumerate and len(found) != 1):
            return None
        pairs = enumerate(found[0]) if called is enumerate else zip(*found)  # noqa: B905 - as short as Python's
        return [Table("tuple", tuple(pair)) for pair in pairs]

    def row(self, target: ast.Tuple | ast.List, item: object, at: ast.expr) -> list[Result]:
        """What each name of `a, b` gets of an item."""
        count = len(item.items) if isinstance(item, Table) else 1
        if not isinstance(item, Table) or count != len(target.elts):
            many = "a number" if not isinstance(item, Table) else f"{count} values"
            raise self.fail(target, f"{many} for {len(target.elts)} targets", "write as many names as there are values")
        return [outside_value(part, show(at)) for part in item.items]

    def _static_range(self, call: ast.Call) -> range:
        numbers: list[int] = []
        for arg in call.args:
            value = self.constant(arg)
            if not isinstance(value, Const) or isinstance(value.value, bool | float):
                raise self.fail(
                    arg, "static_range() needs whole numbers known while compiling", "use range(), or a const parameter"
                )
            numbers.append(value.value)
        turns = self._python_range(numbers, call)
        if _length(turns) > MAX_UNROLLED:
            raise self.fail(
                call,
                f"static_range() of {show_number(_length(turns))} turns, of which a kernel has at most {MAX_UNROLLED}",
                UNROLL_LESS,
            )
        return turns

    def _unrolled(self, node: ast.For, items: Iterable[object], go: Var | None) -> None:
        span = self.b.span
        for item in items:
            self.turns += 1
            if self.turns > MAX_UNROLLED:
                raise self.fail(
                    node.iter, f"the unrolled loops of the kernel have more than {MAX_UNROLLED} turns", UNROLL_LESS
                )
            self.b.span = span
            with self.while_set(go), self._iteration(node, go) as names:
                names.update(self._variables(node, item))
                self.block(node.body)
            if self.b.returned:
                return

    def _variables(self, node: ast.For, item: object) -> dict[str, Binding]:
        """The names of one turn."""
        target = node.target
        if isinstance(target, ast.Tuple | ast.List):
            targets, parts = target.elts, self.row(target, item, node.iter)
        else:
            targets, parts = [target], [outside_value(item, show(node.iter))]
        found: dict[str, Binding] = {}
        for name, part in zip(targets, parts, strict=True):
            assert isinstance(name, ast.Name)
            assert isinstance(part, Const | Outside)
            found[name.id] = part
        return found

    @contextmanager
    def while_set(self, flag: Var | None) -> Iterator[None]:
        """A block that runs while a flag is set: one turn of a loop, what follows a jump. No line says so."""
        if flag is None:
            yield
            return
        span, self.b.span = self.b.span, None
        with self.b.if_(flag):
            self.b.span = span
            yield
            span, self.b.span = self.b.span, None
        self.b.span = span

    def _python_range(self, numbers: list[int], call: ast.Call) -> range:
        if len(numbers) == 3 and numbers[2] == 0:
            raise self.fail(call.args[2], "a range with step 0 does not move", "use another step")
        return range(*numbers)

    def _counted(self, node: ast.For, target: ast.Name, call: ast.Call, go: Var | None) -> None:
        trips = self._trips(call)
        with ExitStack() as stack:
            start, stop, make = trips.start, trips.stop, trips.item
            if trips.last_apart:
                part = stack.enter_context(self.b.loop("part", 0, 2))
                stack.enter_context(self.while_set(go))
                stop = Select(part.eq(0), stop, lit(1))
            turn = stack.enter_context(self.b.loop(target.id if make is None else "turn", start, stop))
            stack.enter_context(self.while_set(go))
            item = Typed(turn, u32) if make is None else make.at(turn)
            if trips.last_apart:
                item = Typed(Select(part.eq(0), item.expr, lit(0)), u32)
            var = turn if make is None else self.b.let(target.id, item.expr)
            names = stack.enter_context(self._iteration(node, go))
            names[target.id] = Local(var, item.dtype, self.frame.source.line(target), "a loop variable")
            self.block(node.body)

    def _trips(self, call: ast.Call) -> _Trips:
        values = self.scalars(*call.args)
        if all(isinstance(v, Const) for v in values):
            return self._known_trips(values, call)
        low, high, step = [[Const(0), *values, Const(1)], [*values, Const(1)], values][len(values) - 1]
        at_low, at_high, at_step = call.args[0], call.args[min(1, len(values) - 1)], call.args[-1]
        t = next(v.dtype for v in (low, high, step) if isinstance(v, Typed))
        types = {v.dtype for v in (low, high, step) if isinstance(v, Typed)}
        for v, at in ((low, at_low), (high, at_high), (step, at_step)):
            if isinstance(v, Typed) and (v.dtype != t or t not in (u32, i32)):
                if types == {u32, i32}:
                    at = next(n for x, n in ((low, at_low), (high, at_high), (step, at_step)) if _is_u32(x))
                    raise self.fail(at, "bounds of the range are u32 and i32", f"write i32({show(at)})")
                want = i32 if v.dtype.is_signed else u32
                raise self.fail(at, f"this bound of the range is {v.dtype}", f"write {want}({show(at)})")
        down = isinstance(step, Const) and step.value < 0
        low, high = self._unwrapped(low, at_low, down), self._last(high, at_high, down)
        if not isinstance(step, Const):
            first, last = self.typed(low, at_low, t), self.typed(high, at_high, t)
            return self._dynamic_trips(first, last, self.keep(step, "step"), t)
        if isinstance(step.value, bool | float) or step.value == 0:
            raise self.fail(
                at_step, f"a range with step {step.value!r} does not move", "use a whole number that is not 0"
            )
        if abs(step.value) > 0xFFFFFFFF:
            raise self.fail(at_step, f"the step {show_number(step.value)} is beyond 32 bits", "use a smaller step")
        size, down = lit(abs(step.value), u32), step.value < 0
        first = self.typed(low, at_low, t)
        if t == u32 and down and isinstance(high, Const) and type(high.value) is int and high.value == -1:
            return self._trips_to_zero(first, size)
        last = self.typed(high, at_high, t)
        if down and self.may_wrap(first.expr):  # below zero it ends at once: so it does at 0
            first = Typed(_saturating(first.expr), u32)
        if t == u32 and step.value == 1:
            return _Trips(first.expr, last.expr)
        first = first if isinstance(first.expr, Lit) else self.keep(first, "start")
        span = self._span_of(first.expr, self.once(last).expr, t, down)
        return _Trips(lit(0), self._ceil_div(span, size), _Item(first.expr, size, down, t))

    def _unwrapped(self, low: Scalar, at: ast.expr, down: bool) -> Scalar:
        """Where a range begins. Down from below zero there is nothing; up from there, numbers that u32 lacks."""
        if not isinstance(low, Typed):
            return low
        named = isinstance(low.expr, Var) and low.expr.name in self.differences
        if down or not (self.may_wrap(low.expr) or named):
            return low
        match at:
            case ast.BinOp(left, ast.Sub(), right):
                by = show(right) if isinstance(right, ast.Constant) else f"i32({show(right)})"
                fix = f"write i32({show(left)}) - {by} for numbers below zero, "
                fix += f"or saturating_sub({show(left)}, {show(right)}) to begin at 0"
            case _:
                fix = "compute it with i32 for numbers below zero, or with saturating_sub(a, b) to begin at 0"
        raise self.fail(at, f"`{show(at)}` is u32 and wraps where it is below zero", fix)

    def _last(self, high: Scalar, at: ast.expr, down: bool) -> Scalar:
        """Where a range ends: up to a number below zero there is nothing, as there is up to 0."""
        if not isinstance(high, Typed) or not self.may_wrap(high.expr):
            return high
        if down:
            fix = "count with i32: range(i32(...), i32(...) - 1, -1)"
            raise self.fail(at, f"`{show(at)}` is u32 and wraps where it is below zero", fix)
        return Typed(_saturating(high.expr), u32)

    def _trips_to_zero(self, first: Typed, size: Expr) -> _Trips:
        """Down to 0 and including it, which Python writes as a stop of -1.

        From `n - 1` there are n elements, none when n is 0: a stop of -1 shows that no wrapping is meant. From any
        other number of u32 there may be 2**32, one more than a loop has turns.
        """
        match first.expr:
            case BinOp(op=BinaryOp.SUB, left=total, right=Lit(bits=taken)) if taken:
                turns = total if taken == 1 else _saturating(total - (taken - 1))
                count = self.keep(Typed(turns, u32), "count").expr
                return _Trips(lit(0), self._ceil_div(count, size), _Item(count - 1, size, True, u32))
        start = self.keep(first, "start").expr
        if size == lit(1):
            return _Trips(lit(0), start, _Item(start, size, True, u32), last_apart=True)
        return _Trips(lit(0), start // size + 1, _Item(start, size, True, u32))

    def _known_trips(self, values: Sequence[Scalar], call: ast.Call) -> _Trips:
        numbers: list[int] = []
        for v, at in zip(values, call.args, strict=True):
            assert isinstance(v, Const)
            if isinstance(v.value, bool | float):
                raise self.fail(at, f"{v.value!r} is not a whole number", "use whole numbers in range()")
            numbers.append(v.value)
        turns = self._python_range(numbers, call)
        if not turns:
            return _Trips(lit(0), lit(0))
        t = i32 if min(turns[0], turns[-1]) < 0 else u32
        for number in (turns[0], turns[-1], turns[0] + _length(turns) if t == u32 and turns.step == 1 else 0):
            if not t.limits[0] <= number <= t.limits[1]:
                raise self.fail(
                    call, f"range() reaches {show_number(number)}, which is beyond {t}", "use smaller numbers"
                )
        if t == u32 and turns.step == 1:
            return _Trips(lit(turns[0], u32), lit(turns[0] + len(turns), u32))
        count = _length(turns)
        if count > 0xFFFFFFFF:
            raise self.fail(call, f"range() of {count} turns", f"use at most {0xFFFFFFFF}")
        size = lit(abs(turns.step) if count > 1 else 1, u32)
        return _Trips(lit(0), lit(count, u32), _Item(lit(turns[0], t), size, turns.step < 0, t))

    def _span_of(self, first: Expr, last: Expr, t: DataType, down: bool) -> Expr:
        """How far the range reaches, as u32; 0 when it is empty."""
        ends = (first, last) if down else (last, first)
        a, b = ends if t == u32 else (Cast(u32, ends[0]), Cast(u32, ends[1]))
        return Select(first > last if down else first < last, a - b, lit(0))

    def _dynamic_trips(self, first: Typed, last: Typed, step: Typed, t: DataType) -> _Trips:
        low, high = self.keep(first, "start").expr, self.once(last).expr
        up = self._span_of(low, high, t, down=False)
        if t == u32:
            turns: Expr = Select(step.expr.eq(0), lit(0), self._ceil_div(up, step.expr))
        else:
            down = self._span_of(low, high, t, down=True)
            size = Cast(u32, Select(step.expr < 0, -step.expr, step.expr))
            turns = Select(step.expr.eq(0), lit(0), self._ceil_div(Select(step.expr < 0, down, up), size))
        size_bits = step.expr if t == u32 else Cast(u32, step.expr)
        return _Trips(lit(0), turns, _Item(low, size_bits, False, t))

    def _ceil_div(self, span: Expr, size: Expr) -> Expr:
        if size == lit(1):
            return span
        whole = self.keep(Typed(span, u32), "span").expr
        return Select(whole.eq(0), lit(0), (whole - 1) // size + 1)

    def _no_else(self, node: ast.For | ast.While) -> None:
        if node.orelse:
            raise self.fail(
                node.orelse[0], "`else` of a loop is not part of kernels", "set a flag before break, and test it"
            )


def _saturating(difference: Expr) -> Expr:
    assert isinstance(difference, BinOp)
    return BinOp(BinaryOp.SATURATING_SUB, difference.left, difference.right)


def _is_u32(value: Scalar) -> bool:
    return isinstance(value, Typed) and value.dtype == u32


class _Trips(NamedTuple):
    """Bounds of a loop, and how its variable follows from the turn (None: it is the turn).

    With `last_apart` there is one turn more, in which the variable is 0.
    """

    start: Expr
    stop: Expr
    item: _Item | None = None
    last_apart: bool = False


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


def _length(turns: range) -> int:
    """What `len` says, also of ranges too long for it."""
    return (turns[-1] - turns[0]) // turns.step + 1 if turns else 0
