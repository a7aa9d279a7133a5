"""Statements of the kernel language.

A local of the IR ends with its block, and a name of Python does not: a name that every way through an `if` assigns,
and that is read behind it, is declared in front of it. Flat source stays flat: long chains of `elif`, and of guards
such as `if c: break`, go on behind a flag instead of one level deeper each.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NoReturn

from ...errors import KernelError
from ..ir.build import Buffer
from ..ir.dtypes import DataType, bool_, f32, i32, u32, u64
from ..ir.nodes import Expr, Let, Lit, Var, show_number
from ..ir.visit import walk_exprs
from .debug.statements import DebugCompiler
from .inline import Inlining, variable
from .lang import DeviceFunction, Intrinsic, local, shared
from .loops import MAX_STATEMENTS
from .refused_syntax import REFUSED_STATEMENTS
from .small.arrays import zero
from .small.memory import Columns, LocalArray, Memory, Rows
from .small.types import SmallType
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
    never_ends,
    read_first,
    returns,
)
from .values import (
    Binding,
    Const,
    Group,
    Join,
    Local,
    Members,
    Nothing,
    Outside,
    Scalar,
    Sizes,
    Typed,
    Value,
    adapts,
    held,
    leaves,
    misplaced,
    rebuilt,
    same_form,
    show,
    type_text,
)

MANY_ARMS, MANY_GUARDS = 16, 8
"""Arms of one `if`, and guards in one block, that may nest."""


class StatementCompiler(DebugCompiler):
    """Compiles the statements of a kernel into its builder."""

    # -- blocks

    def block(self, body: Iterable[ast.stmt]) -> bool:
        """Compiles statements in order; True when no path leads past them."""
        unvisited = deque(body)
        while unvisited:
            node = unvisited.popleft()
            self.b.span = self.frame.source.span(node)
            self.statements += 1
            if self.statements > MAX_STATEMENTS:
                raise self.fail(
                    node,
                    f"the kernel has more than {MAX_STATEMENTS} statements, with all helpers and turns written out",
                    "call a helper once, in a loop, and use range()",
                )
            if isinstance(node, ast.If):
                self.header(node, node.test)
                condition = self.truth(node.test)
                if isinstance(condition, Const):  # decided while compiling: the other side is never looked at
                    unvisited.extendleft(reversed(node.body if condition.value else node.orelse))
                    continue
                if isinstance(self.frame, Inlining) and returns(node) and not self.loops:
                    return self._returning_if(self.frame, node, condition, list(unvisited))
                self._if(node, condition, unvisited)
            else:
                if isinstance(self.frame, Inlining) and returns(node) and not isinstance(node, ast.Return):
                    self.live(self.frame)
                self.statement(node)
            if isinstance(node, ast.Return | ast.Break | ast.Continue) or self.b.returned or never_ends(node):
                return True  # Python accepts dead code; the IR does not
            flag = self.loops[-1].guard if self.loops else self.frame.live if isinstance(self.frame, Inlining) else None
            if unvisited and flag is not None and self.leaves_block(node):
                return self._guarded(flag, list(unvisited), self.leaves_block)
        return False

    def leaves_block(self, node: ast.stmt) -> bool:
        """Whether what follows a statement in its block may have to be skipped: it may jump, or return."""
        return (bool(self.loops) and jumps(node)) or (isinstance(self.frame, Inlining) and returns(node))

    def live(self, frame: Inlining) -> Var:
        """The flag of a helper that a return clears."""
        if frame.live is None:
            frame.live = Var(self.b.fresh("live"), dtype=bool_)
            self.b.insert(frame.mark, Let(frame.live.name, Lit(bool_, 1)))
        return frame.live

    def _guarded(self, flag: Var, rest: list[ast.stmt], leaves: Callable[[ast.stmt], bool]) -> bool:
        """What follows a statement that may jump: it runs while the flag that the jump clears is set."""
        frame = self.frame
        if sum(map(leaves, rest)) < MANY_GUARDS:
            with self.while_set(flag):
                frame.depth += 1
                ends = self.block(rest)
                frame.depth -= 1
            return ends
        ends = False
        while rest and not ends:
            size = next((k for k, node in enumerate(rest, 1) if leaves(node)), len(rest))
            part, rest = rest[:size], rest[size:]
            with self._joined(assigned(part), rest), self.while_set(flag), self.scope(frame.source.line(part[0])):
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
        live = self.live(frame)
        ends = self._if(node, condition, rest)
        return self._guarded(live, rest, returns) if rest and not ends else ends

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
            case ast.Assert():
                self.assertion(node)
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
        if isinstance(value, ast.Call) and self.outside(dotted_name(value.func)) is print:
            self.printing(value)
            return
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
                if called in (shared, local) and isinstance(value, ast.Call):
                    self._array(target, value, called is shared)
                    return
                binding = self.frame.known(target.id)
                table = None if isinstance(value, ast.Tuple | ast.List) else self.table(value)
                if table is not None and binding is None and target.id in self.frame.source.assigned_once:
                    self.frame.scopes[-1][target.id] = Outside(table, target.id)
                    return
                self.hint = target.id if isinstance(called, Intrinsic) else ""
                self.wanted = binding.dtype if isinstance(binding, Local) else None
                found = self.operand(value)
                self.hint = ""
                self.bind(target, found, value)
            case ast.Attribute():
                self._refuse_field(target)
            case ast.Subscript():
                buffer, nodes = self.indexed(target)
                self.wanted = _number_type(buffer)
                given, *positions = self.operands(value, *nodes)
                places = [self.one(p, at) for p, at in zip(positions, nodes, strict=True)]
                self.store(buffer, self.index(buffer, places, nodes), given, target, value)
            case ast.Tuple() | ast.List():
                self._unpack(target, value)
            case _:
                raise self.fail(target, f"`{show(target)}` cannot be assigned", "assign to a name or an element: x[i]")

    def _refuse_field(self, target: ast.Attribute) -> NoReturn:
        """`v.x = ...`."""
        name = show(target.value)
        of = self.value(target.value)
        if isinstance(of, Group) and of.of is not None and target.attr in of.of.fields:
            fix = f"make another one: {name} = {name}._replace({target.attr}=...)"
            raise self.fail(target, f"the fields of `{name}` cannot be assigned", fix)
        raise self.fail(target, f"`{show(target)}` cannot be assigned", "assign to a name or an element: x[i]")

    def bind(self, target: ast.Name, value: Value, at: ast.expr, declared: DataType | SmallType | None = None) -> None:
        """Give a name a value: a new local the first time, an assignment later."""
        name, line = target.id, self.frame.source.line(target)
        if name in self.frame.source.unwanted:
            return
        binding = self.frame.known(name)
        if isinstance(value, Group) or isinstance(binding, Members) or isinstance(declared, SmallType):
            self._bind_group(target, value if declared is None else self.fitted(value, declared, at, f"`{name}`"), at)
            return
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
            raise self._fixed(target, binding)
        if declared is not None:
            found = Typed(self.fit(value, declared, at, f"`{name}`"), declared)
        else:
            found = self.typed(value, at)
        join = self.frame.joins.get(name)
        if join is not None:
            var = Var(self.b.fresh(name), dtype=found.dtype)
            self.b.insert(join.mark, Let(var.name, zero(found.dtype)))
            self.b.assign(var, found.expr)
            self.frame.scopes[-1][name] = join.local = Local(var, found.dtype, line)
            return
        if isinstance(found.expr, Var) and found.expr.name in self.temporaries:
            self.temporaries.discard(found.expr.name)
            var = found.expr
        else:
            var = self.b.let(name, found.expr)
        if name in self.frame.source.assigned_once:
            number = self.known_number(found)
            if number is not None:
                self.numbers[var.name] = number
            if self.may_wrap(found.expr):
                self.differences.add(var.name)
        self.frame.scopes[-1][name] = Local(var, found.dtype, line)

    def _fixed(self, target: ast.Name, binding: Binding) -> KernelError:
        what = binding.fixed if isinstance(binding, Local | Members) else "a buffer"
        what = "an array" if isinstance(binding, LocalArray | Columns) else what
        what = "known while compiling" if isinstance(binding, Const | Outside) else what
        return self.fail(target, f"`{target.id}` is {what} and cannot be assigned", "use another name")

    def _bind_group(self, target: ast.Name, value: Value, at: ast.expr) -> None:
        """`bind`, of several values: all of them are computed before the first changes."""
        name, line = target.id, self.frame.source.line(target)
        binding = self.frame.known(name)
        if isinstance(binding, Local | Members) and not binding.fixed:
            before = held(binding)
            if not same_form(before, value):
                was, now = type_text(before), type_text(value)
                message = f"`{name}` is {was} since line {binding.line} and cannot become {now}"
                raise self.fail(at, message, "use another name")
            variables = variable(binding)
            own = {var.name for var in variables}
            found: list[Typed] = []
            for number, old in zip(leaves(value), leaves(before), strict=True):
                t = old.dtype if isinstance(old, Typed) else None
                item = self.typed(number, at, t)
                if item.dtype != t:
                    message = (
                        f"`{name}` is {type_text(before)} since line {binding.line}, and this is {type_text(value)}"
                    )
                    raise self.fail(at, message, f"convert its numbers to {t}, or use another name")
                reads = any(isinstance(e, Var) and e.name in own for e in walk_exprs(item.expr))
                found.append(self.keep(item) if reads else item)
            for var, item in zip(variables, found, strict=True):
                self.b.assign(var, item.expr)
            if self.frame.find(name) is None:
                self.frame.scopes[-1][name] = binding
            return
        if binding is not None:
            raise self._fixed(target, binding)
        assert isinstance(value, Group)
        join = self.frame.joins.get(name)
        members = self.declared(name, value, at, line, None if join is None else join.mark)
        if join is not None:
            join.local = members
        self.frame.scopes[-1][name] = members

    def store(self, buffer: Memory, index: Expr, value: Value, target: ast.Subscript, at: Place) -> None:
        decl = buffer.decl if isinstance(buffer, Buffer) else buffer.buffer.decl if isinstance(buffer, Rows) else None
        if decl is not None and not decl.writable:
            raise self.fail(
                target,
                f"`{buffer.name}` cannot be written",
                f"declare it Out[{buffer.element}] or InOut[{buffer.element}]",
            )
        self.put(buffer, index, value, at, f"`{show(target)}`")

    def _assign_all(self, node: ast.Assign) -> None:
        """`a = b = value`."""
        for target in node.targets:
            if not isinstance(target, ast.Name):
                raise self.fail(target, "only names are assigned in a chain", "assign each on a line of its own")
        value = self.operand(node.value)
        if isinstance(value, Group):
            value = rebuilt(value, iter([self.keep(self.typed(n, node.value)) for n in leaves(value)]))
        elif isinstance(value, Typed):
            value = self.keep(value)
        for number in leaves(value):  # several names copy it
            if isinstance(number, Typed) and isinstance(number.expr, Var):
                self.temporaries.discard(number.expr.name)
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
        parts = value.elts if isinstance(value, ast.Tuple | ast.List) else []
        for item in (*target.elts, *parts):
            if isinstance(item, ast.Starred):
                raise self.fail(item, "`*` is not part of kernels", "write the values one by one")
        if isinstance(value, ast.Tuple | ast.List):
            given: Sequence[Value] = self.operands(*parts)
        else:
            whole = self.operand(value)
            if not isinstance(whole, Group):
                raise self.fail(value, "this is one value, and cannot be unpacked", "write a, b = x, y")
            given, parts = whole.items, [value] * len(whole.items)
        if len(target.elts) != len(given):
            message = f"{len(given)} values for {len(target.elts)} targets"
            raise self.fail(target, message, "write as many values as targets")
        held = [self._held_apart(v, at) for v, at in zip(given, target.elts, strict=True)]
        for left, right, found in zip(target.elts, parts, held, strict=True):
            match left:
                case ast.Name():
                    self.bind(left, found, right)
                case ast.Subscript():
                    buffer, nodes = self.indexed(left)
                    self.store(buffer, self.index(buffer, self.scalars(*nodes), nodes), found, left, right)
                case _:
                    raise self.fail(left, f"`{show(left)}` cannot be assigned", "assign to names and elements: x[i]")

    def _held_apart(self, value: Value, at: ast.expr) -> Value:
        """A value that no assignment to another target can change."""
        if isinstance(value, Group):
            return value._replace(items=tuple(self._held_apart(item, at) for item in value.items))
        return value if isinstance(value, Const) else self.keep(value, at.id if isinstance(at, ast.Name) else "t")

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
            before = self.settled(self.operand(node.target), node.value)
            self.bind(node.target, self._combined(node, before), node.value)
            return
        if isinstance(node.target, ast.Attribute):
            self._refuse_field(node.target)
        if not isinstance(node.target, ast.Subscript):
            raise self.fail(node.target, f"`{show(node.target)}` cannot be assigned", "assign to a name or an element")
        buffer, nodes = self.indexed(node.target)
        index = self.once(Typed(self.index(buffer, self.scalars(*nodes), nodes), u32)).expr
        before = self.settled(self.load(buffer, index, node.target), node.value)
        self.store(buffer, index, self._combined(node, before), node.target, node.value)

    def _combined(self, node: ast.AugAssign, before: Value) -> Value:
        self.wanted = before.dtype if isinstance(before, Typed) else None
        after = self.operand(node.value)
        binding = self.frame.find(node.target.id) if isinstance(node.target, ast.Name) else None
        if (
            isinstance(binding, Local)
            and not binding.fixed
            and binding.dtype in (u32, i32)
            and isinstance(after, Typed)
        ):
            t, name, fix = after.dtype, show(node.target), ""
            if t.is_float:
                number = "0.0" if t == f32 else f"{t}(0)"
                fix = f"begin with a float at line {binding.line}: {name} = {number}"
            elif t.is_int and t.is_signed and binding.dtype == u32 and not isinstance(node.op, ast.LShift | ast.RShift):
                fix = f"begin with a signed number at line {binding.line}: {name}: {t} = ..."
            if fix:
                message = f"`{name}` is {binding.dtype} since line {binding.line}, and meets {t}"
                raise self.fail(node, message, fix)
        return self.combined(node.op, before, after, node, node.target, node.value)

    def _annotated(self, node: ast.AnnAssign) -> None:
        t = self.form(node.annotation)
        if node.value is None:
            raise self.fail(node, f"`{show(node.target)}` gets a type and no value", "assign a value on the same line")
        if not isinstance(node.target, ast.Name):
            raise self.fail(node.target, "only names take an annotation", "leave the annotation out")
        self.wanted = t if isinstance(t, DataType) else None
        self.bind(node.target, self.operand(node.value), node.value, t)

    def _array(self, target: ast.Name, call: ast.Call, is_shared: bool) -> None:
        """`tile = shared(f32, 256)`, `acc = local(f32, 8)`."""
        word, what = ("shared", "shared memory") if is_shared else ("local", "a local array")
        dtype, count = self.arguments(call, word, shared.signature)
        if isinstance(dtype, ast.Constant) or isinstance(count, ast.Tuple | ast.List):
            first, second = (count, dtype) if isinstance(dtype, ast.Constant) else (dtype, count)
            size_text = " * ".join(map(show, second.elts)) if isinstance(second, ast.Tuple | ast.List) else show(second)
            fix = f"write {word}({show(first)}, {size_text})"
            raise self.fail(call, f"{word}() takes a type and then one number of elements", fix)
        t, size = self.form(dtype), self.constant(count)
        if not isinstance(size, Const):
            fix = "use a number or a const parameter"
            raise self.fail(count, f"the size of {what} is not known while compiling", fix)
        if isinstance(size.value, bool | float):
            raise self.fail(count, f"{size.value!r} is not a whole number", "give the number of elements")
        if not 1 <= size.value <= u32.limits[1]:
            fix = "make it at least 1" if size.value < 1 else "make it as small as the work needs"
            raise self.fail(count, f"{what} of {show_number(size.value)} elements", fix)
        if is_shared and (self.frame.depth or self.frame.conditional):
            fix = "call the helper at the top" if self.frame.conditional else "declare it at the top"
            raise self.fail(call, "shared memory is declared inside a branch or loop", fix)
        if self.frame.find(target.id) is not None:
            raise self.fail(target, f"`{target.id}` has another meaning already", "use another name")
        self.frame.scopes[-1][target.id] = (
            self.shared_array(target.id, t, size.value) if is_shared else self.own_array(target.id, t, size.value, call)
        )


def _number_type(memory: Memory) -> DataType | None:
    return memory.element if isinstance(memory.element, DataType) else None
