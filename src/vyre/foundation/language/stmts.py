"""Statements of the kernel language.

A local of the IR ends with its block, and a name of Python does not: a name that every way through an `if` assigns,
and that is read behind it, is declared in front of it. Flat source stays flat: long chains of `elif`, and of guards
such as `if c: break`, go on behind a flag instead of one level deeper each.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from ..ir.build import Buffer
from ..ir.dtypes import DataType, bool_, f32, i32, u32, u64
from ..ir.nodes import Expr, Let, Lit, Var, show_number
from .inline import Inlining, zero
from .lang import DeviceFunction, Intrinsic, shared
from .loops import LoopCompiler, may_wrap
from .refused_syntax import REFUSED_STATEMENTS
from .source import (
    Names,
    Place,
    Table,
    always_returns,
    arms,
    assigned,
    assigned_in_every,
    dotted_name,
    is_elif,
    jumps,
    read_first,
    returns,
)
from .values import Const, Join, Local, Nothing, Outside, Scalar, Sizes, Typed, adapts, misplaced, show

MANY_ARMS, MANY_GUARDS = 16, 8
"""Arms of one `if`, and guards in one block, that may nest."""


class StatementCompiler(LoopCompiler):
    """Compiles the statements of a kernel into its builder."""

    # -- blocks

    def block(self, body: Iterable[ast.stmt]) -> bool:
        """Compiles statements in order; True when no path leads past them."""
        unvisited = deque(body)
        while unvisited:
            node = unvisited.popleft()
            self.b.span = self.frame.source.span(node)
            if isinstance(node, ast.If):
                self.header(node, node.test)
                condition = self.truth(node.test)
                if isinstance(condition, Const):  # decided while compiling: the other side is never looked at
                    unvisited.extendleft(reversed(node.body if condition.value else node.orelse))
                    continue
                if isinstance(self.frame, Inlining) and returns(node):
                    return self._returning_if(self.frame, node, condition, list(unvisited))
                self._if(node, condition, unvisited)
            else:
                self.statement(node)
            if isinstance(node, ast.Return | ast.Break | ast.Continue) or self.b.returned:
                return True  # Python accepts dead code; the IR does not
            flags = self.loops[-1] if self.loops else None
            if unvisited and flags and flags.guard is not None and jumps(node):
                return self._guarded(flags.guard, list(unvisited), jumps)
        return False

    def _guarded(self, flag: Var, rest: list[ast.stmt], leaves: Callable[[ast.stmt], bool]) -> bool:
        """What follows a statement that may jump: it runs while the flag that the jump clears is set."""
        frame = self.frame
        if sum(map(leaves, rest)) < MANY_GUARDS:
            with self.b.if_(flag):
                frame.depth += 1
                ends = self.block(rest)
                frame.depth -= 1
            return ends
        ends = False
        while rest and not ends:
            size = next((k for k, node in enumerate(rest, 1) if leaves(node)), len(rest))
            part, rest = rest[:size], rest[size:]
            with self._joined(assigned(part), rest), self.b.if_(flag), self.scope(frame.source.line(part[0])):
                ends = self.block(part)
        return ends

    @contextmanager
    def _joined(self, names: Names | None, rest: Iterable[ast.stmt]) -> Iterator[None]:
        """Of the names that the coming blocks assign on every path, those that `rest` reads stay."""
        frame, after, mark = self.frame, list(rest), self.b.mark()
        kept = [
            name
            for name in sorted(names or ())
            if frame.find(name) is None and (name in frame.joins or read_first(after, name))
        ]
        here = {name: Join(mark) for name in kept if name not in frame.joins}
        frame.joins |= here
        yield
        for name in kept:
            local = frame.joins[name].local
            if local is not None:
                frame.scopes[-1][name] = local
        for name in here:
            del frame.joins[name]

    def _if(self, node: ast.If, condition: Typed, rest: Iterable[ast.stmt]) -> bool:
        with self._joined(assigned_in_every(arms(node)), rest):
            return self._chain(node, condition)

    def _chain(self, node: ast.If, condition: Typed) -> bool:
        """`if`, `elif`, ..., `else`. A long chain breaks off, and goes on where a flag says that no arm was taken."""
        line, ends, depth = self.frame.source.line(node), True, 0
        mark, more = self.b.mark(), None
        with ExitStack() as stack:
            while True:
                with self.b.if_(condition.expr), self.scope(line):
                    ends = self.block(node.body) and ends
                orelse = node.orelse
                if not orelse:
                    return False
                depth += 1
                stack.enter_context(self.b.else_())
                if depth == MANY_ARMS and is_elif(orelse):
                    self.b.span = self.frame.source.span(orelse[0])
                    if more is None:
                        more = Var(self.b.fresh("more"), dtype=bool_)
                        self.b.insert(mark, Let(more.name, Lit(bool_, 0)))
                    self.b.assign(more, Lit(bool_, 1))
                    stack.close()
                    stack.enter_context(self.b.if_(more))
                    self.b.assign(more, Lit(bool_, 0))
                    depth = 0
                following: Scalar = Const(True)
                while is_elif(orelse) and isinstance(following, Const):
                    (inner,) = orelse
                    assert isinstance(inner, ast.If)
                    self.header(inner, inner.test)
                    following = self.truth(inner.test)
                    if isinstance(following, Const):
                        orelse = inner.body if following.value else inner.orelse
                    else:
                        node, condition = inner, following
                if isinstance(following, Const):
                    with self.scope(line):
                        return self.block(orelse) and ends

    def _returning_if(self, frame: Inlining, node: ast.If, condition: Typed, rest: list[ast.stmt]) -> bool:
        """In a helper, what follows an if that returns belongs to its other side, or runs while nothing returned."""
        then_ends, else_ends = always_returns(node.body), always_returns(node.orelse)
        flat = len(arms(node)) <= MANY_ARMS and sum(map(returns, rest)) < MANY_GUARDS
        if flat and (then_ends or else_ends or not rest):
            line = frame.source.line(node)
            with self.b.if_(condition.expr), self.scope(line):
                ends = self.block(node.body if then_ends else [*node.body, *rest])
            orelse = node.orelse if else_ends else [*node.orelse, *rest]
            if not orelse:
                return False
            with self.b.else_(), self.scope(line):
                return self.block(orelse) and ends
        if frame.live is None:
            frame.live = Var(self.b.fresh("live"), dtype=bool_)
            self.b.insert(frame.mark, Let(frame.live.name, Lit(bool_, 1)))
        ends = self._if(node, condition, rest)
        return self._guarded(frame.live, rest, returns) if rest and not ends else ends

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
                self.for_(node)
            case ast.While():
                self.while_(node)
            case ast.Return():
                self.leave(node)
            case ast.Break() | ast.Continue():
                self.jump(node)
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
        if isinstance(found, Outside) and isinstance(found.what, Intrinsic):
            raise self.fail(value, *misplaced(found.what, found.name))
        if isinstance(found, Outside | Buffer) or self.effects == effects:
            if isinstance(value, ast.Call) and isinstance(self.outside(dotted_name(value.func)), DeviceFunction):
                return
            fix = "assign it to a name, or remove the line"
            if isinstance(value, ast.Compare) and isinstance(value.ops[0], ast.Eq):
                fix = f"write {show(value.left)} = {show(value.comparators[0])} to store it"
            raise self.fail(value, "this value is not used", fix)

    # -- assignment

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        match target:
            case ast.Name():
                called = self.outside(dotted_name(value.func)) if isinstance(value, ast.Call) else None
                if called is shared and isinstance(value, ast.Call):
                    self._shared(target, value)
                    return
                binding = self.frame.known(target.id)
                table = None if isinstance(value, ast.Tuple | ast.List) else self.table(value)
                if table is not None and binding is None and target.id in self.frame.source.assigned_once:
                    self.frame.scopes[-1][target.id] = Outside(table, target.id)
                    return
                self.hint = target.id if isinstance(called, Intrinsic) else ""
                self.wanted = binding.dtype if isinstance(binding, Local) else None
                found = self.scalar(value)
                self.hint = ""
                self.bind(target, found, value)
            case ast.Subscript():
                buffer, nodes = self.indexed(target)
                self.wanted = buffer.element
                given, *places = self.scalars(value, *nodes)
                self.store(buffer, self.index(buffer, places, nodes), given, target, value)
            case ast.Tuple() | ast.List():
                self._unpack(target, value)
            case _:
                raise self.fail(target, f"`{show(target)}` cannot be assigned", "assign to a name or an element: x[i]")

    def bind(self, target: ast.Name, value: Scalar, at: ast.expr, declared: DataType | None = None) -> None:
        """Give a name a value: a new local the first time, an assignment later."""
        name, line = target.id, self.frame.source.line(target)
        binding = self.frame.known(name)
        if isinstance(binding, Local) and not binding.fixed:
            assert isinstance(binding.var, Var)
            if (
                binding.dtype in (u32, u64)
                and isinstance(value, Const)
                and type(value.value) is int
                and value.value < 0
            ):
                raise self.fail(
                    at,
                    f"`{name}` is {binding.dtype} since line {binding.line}, "
                    f"and {show_number(value.value)} is below zero",
                    f"begin with a signed number at line {binding.line}: {name}: i{binding.dtype.bits} = ...",
                )
            found = self.typed(value, at, binding.dtype) if adapts(value, binding.dtype) else self.typed(value, at)
            if found.dtype != binding.dtype or declared not in (None, binding.dtype):
                other = declared or found.dtype
                fix = f"write {binding.dtype}({show(at)}), or use another name"
                if other.is_int and other.is_signed and binding.dtype.is_int and not binding.dtype.is_signed:
                    fix = (
                        f"begin with a signed number at line {binding.line}: {name}: {other} = ..., or use another name"
                    )
                raise self.fail(
                    at if declared in (None, binding.dtype) else target,
                    f"`{name}` is {binding.dtype} since line {binding.line} and cannot become {other}",
                    fix,
                )
            self.b.assign(binding.var, found.expr)
            if self.frame.find(name) is None:  # another arm of the same if declared it
                self.frame.scopes[-1][name] = binding
            return
        if binding is not None:
            what = binding.fixed if isinstance(binding, Local) else "a buffer"
            what = "known while compiling" if isinstance(binding, Const | Outside) else what
            raise self.fail(target, f"`{name}` is {what} and cannot be assigned", "use another name")
        if declared is not None:
            found = Typed(self.fit(value, declared, at, f"`{name}`"), declared)
        else:
            found = self.typed(value, at)
        join = self.frame.joins.get(name)
        if join is not None:
            var = Var(self.b.fresh(name), dtype=found.dtype)
            self.b.insert(join.mark, Let(var.name, zero(found.dtype)))
            self.b.assign(var, found.expr)
            join.local = Local(var, found.dtype, line)
        elif isinstance(found.expr, Var) and found.expr.name in self.temporaries:
            self.temporaries.discard(found.expr.name)
            var = found.expr
        else:
            var = self.b.let(name, found.expr)
        if name in self.frame.source.assigned_once:
            number = self.known_number(found)
            if number is not None:
                self.numbers[var.name] = number
            if may_wrap(found.expr):
                self.differences.add(var.name)
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
        table = None if isinstance(value, ast.Tuple | ast.List) else self.table(value)
        if table is not None:
            self._unpack_table(target, table, value)
            return
        sizes = self.sizes(value)
        if sizes is not None:
            self._unpack_sizes(target, sizes, value)
            return
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
                    buffer, nodes = self.indexed(left)
                    self.store(buffer, self.index(buffer, self.scalars(*nodes), nodes), found, left, right)
                case _:
                    raise self.fail(left, f"`{show(left)}` cannot be assigned", "assign to names and elements: x[i]")

    def _unpack_table(self, target: ast.Tuple | ast.List, table: Table, value: ast.expr) -> None:
        """`width, height = SIZE`."""
        for left, found in zip(target.elts, self.row(target, table, value), strict=True):
            if not isinstance(left, ast.Name) or not isinstance(found, Const):
                raise self.fail(left, f"`{show(left)}` gets no number", "unpack numbers to names: a, b = PAIR")
            self.bind(left, found, value)

    def _unpack_sizes(self, target: ast.Tuple | ast.List, sizes: Sizes, value: ast.expr) -> None:
        """`height, width = x.shape`."""
        rank = len(sizes.axes)
        if len(target.elts) != rank:
            raise self.fail(target, f"{rank} values for {len(target.elts)} targets", "write a name for each axis")
        for left, size in zip(target.elts, sizes.axes, strict=True):
            if not isinstance(left, ast.Name):
                raise self.fail(left, f"`{show(left)}` gets no number", "unpack to names: height, width = x.shape")
            self.bind(left, size, value)

    def _augmented(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            before = self.settled(self.scalar(node.target), node.value)
            self.bind(node.target, self._combined(node, before), node.value)
            return
        if not isinstance(node.target, ast.Subscript):
            raise self.fail(node.target, f"`{show(node.target)}` cannot be assigned", "assign to a name or an element")
        buffer, nodes = self.indexed(node.target)
        index = self.once(Typed(self.index(buffer, self.scalars(*nodes), nodes), u32)).expr
        before = self.settled(self.load(buffer, index, node.target), node.value)
        self.store(buffer, index, self._combined(node, before), node.target, node.value)

    def _combined(self, node: ast.AugAssign, before: Scalar) -> Scalar:
        self.wanted = before.dtype if isinstance(before, Typed) else None
        after = self.scalar(node.value)
        binding = self.frame.find(node.target.id) if isinstance(node.target, ast.Name) else None
        if (
            isinstance(binding, Local)
            and binding.dtype in (u32, i32)
            and isinstance(after, Typed)
            and after.dtype.is_float
        ):
            t, number = after.dtype, "0.0" if after.dtype == f32 else f"{after.dtype}(0)"
            fix = f"begin with a float at line {binding.line}: {show(node.target)} = {number}"
            raise self.fail(
                node, f"`{show(node.target)}` is {binding.dtype} since line {binding.line}, and meets {t}", fix
            )
        return self.binary(node.op, before, after, node, node.target, node.value)

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
        if isinstance(dtype, ast.Constant) or isinstance(count, ast.Tuple | ast.List):
            first, second = (count, dtype) if isinstance(dtype, ast.Constant) else (dtype, count)
            size_text = " * ".join(map(show, second.elts)) if isinstance(second, ast.Tuple | ast.List) else show(second)
            fix = f"write shared({show(first)}, {size_text})"
            raise self.fail(call, "shared() takes a type and then one number of elements", fix)
        t, size = self.dtype(dtype), self.constant(count)
        if not isinstance(size, Const):
            raise self.fail(
                count, "the size of shared memory is not known while compiling", "use a number or a const parameter"
            )
        if isinstance(size.value, bool | float):
            raise self.fail(count, f"{size.value!r} is not a whole number", "give the number of elements")
        if not 1 <= size.value <= u32.limits[1]:
            fix = "make it at least 1" if size.value < 1 else "make it as small as the workgroup needs"
            raise self.fail(count, f"shared memory of {show_number(size.value)} elements", fix)
        if self.frame.depth or self.frame.conditional:
            fix = "call the helper at the top" if self.frame.conditional else "declare it at the top"
            raise self.fail(call, "shared memory is declared inside a branch or loop", fix)
        if self.frame.find(target.id) is not None:
            raise self.fail(target, f"`{target.id}` has another meaning already", "use another name")
        self.frame.scopes[-1][target.id] = self.b.shared(target.id, t, size.value)
