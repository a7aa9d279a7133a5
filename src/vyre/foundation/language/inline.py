"""Helpers of kernels: a device function's statements in place of its call.

Names are its own, types follow from the arguments. The IR cannot leave a block early, so what follows an `if` that
returns becomes its other side, and several returns meet in one local.
"""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Iterable
from typing import NamedTuple, TypeVar, get_args, get_origin

from ...errors import KernelError, VyreError
from ..ir.build import Buffer, Builder
from ..ir.dtypes import DataType, bool_, f32, i32, u32
from ..ir.nodes import Let, Lit, Node, Var
from ..ir.program import Part
from .calls import CallCompiler
from .lang import Annotation, DeviceFunction, const, element_type
from .small.arrays import zero
from .small.groups import Form
from .small.memory import Memory
from .small.types import small_type
from .source import FunctionSource, Place, frozen
from .values import (
    Binding,
    Const,
    Frame,
    Group,
    Local,
    Members,
    Nothing,
    Outside,
    Result,
    Scalar,
    Typed,
    Value,
    default_type,
    leaves,
    outside_value,
    rebuilt,
    same_form,
    show,
    type_text,
)

WIDENED = ((u32, i32), (u32, f32), (i32, f32))
"""Types of plain numbers, and what they become together with other plain numbers."""


class Flags(NamedTuple):
    """How statements leave a loop: `go` ends it, `step` ends the iteration. None where the body never does."""

    go: Var | None
    step: Var | None

    @property
    def guard(self) -> Var | None:
        return self.go if self.step is None else self.step


class Inlining(Frame):
    """A helper in place of its call: where its result goes, and which helpers are around it."""

    def __init__(self, device: DeviceFunction, outer: tuple[DeviceFunction, ...], mark: tuple[list[Node], int]) -> None:
        super().__init__(device.source)
        self.chain = (*outer, device)
        self.mark = mark
        self.declared: Form | None = None  # what `->` says
        self.preferred: dict[int, DataType] = {}  # for plain numbers that it returns, by their place in the result
        self.result: Value | None = None
        self.bare: ast.Return | None = None  # a return without a value
        self.vars: list[Var] = []  # hold the result where several returns meet
        self.live: Var | None = None  # false once something returned, where that is tested
        self.guessed: set[int] = set()  # the numbers of the result whose type is only the default of a plain number


class _Retyped(Exception):
    """A number that a helper returns has this type after all."""

    def __init__(self, place: int, dtype: DataType) -> None:
        self.place, self.dtype = place, dtype


class HelperCompiler(CallCompiler):
    """Compiles calls of helpers, and the return statements that only they have."""

    def __init__(self, builder: Builder, frame: Frame) -> None:
        super().__init__(builder, frame)
        self.loops: list[Flags] = []

    @abstractmethod
    def block(self, body: Iterable[ast.stmt]) -> bool:
        """Compiles statements in order; True when no path leads past them."""

    def leave(self, node: ast.Return) -> None:
        frame = self.frame
        if not isinstance(frame, Inlining):
            if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
                raise self.fail(node.value, "kernels return nothing", "store the value to an Out parameter")
            self.b.return_()
            return
        if node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None):
            frame.bare = node
        else:
            self._give_back(frame, node.value)
        if frame.live is not None:
            self.b.assign(frame.live, Lit(bool_, 0))
        for flag in {flag.name: flag for flags in self.loops for flag in flags if flag is not None}.values():
            self.b.assign(flag, Lit(bool_, 0))

    def _give_back(self, frame: Inlining, node: ast.expr) -> None:
        """The result of a helper, at one of its returns."""
        self.wanted = frame.declared if isinstance(frame.declared, DataType) else None
        parts = node.elts if isinstance(node, ast.Tuple) else None
        value = self.operand(node) if parts is None else Group(tuple(self.operands(*parts)))
        what = f"the result of {frame.source.name}()"
        if frame.declared is not None:
            value = self.fitted(value, frame.declared, node, what)
        if not frame.depth:
            frame.result = value
            return
        if frame.result is not None and not same_form(value, frame.result):
            raise self.fail(
                node,
                f"{frame.source.name}() returns {type_text(frame.result)} elsewhere and {type_text(value)} here",
                "return values of one form",
            )
        first = not frame.vars
        numbers: list[Typed] = []
        at = parts if parts is not None and len(parts) == len(leaves(value)) else []
        for place, number in enumerate(leaves(value)):
            numbers.append(self._number_of_result(frame, place, number, at[place] if place < len(at) else node))
        if first:
            for place, number in enumerate(leaves(value)):
                t = numbers[place].dtype
                frame.vars.append(Var(self.b.fresh(frame.source.name), dtype=t))
                self.b.insert(frame.mark, Let(frame.vars[-1].name, zero(t)))
                if isinstance(number, Const) and place not in frame.preferred:
                    frame.guessed.add(place)
            frame.result = rebuilt(value, (Typed(var, n.dtype) for var, n in zip(frame.vars, numbers, strict=True)))
        for var, number in zip(frame.vars, numbers, strict=True):
            self.b.assign(var, number.expr)

    def _number_of_result(self, frame: Inlining, place: int, number: Scalar, node: ast.expr) -> Typed:
        """One number of a result, in the type that it has at the other returns."""
        so_far = frame.vars[place].dtype if frame.vars else frame.preferred.get(place)
        if place in frame.guessed and isinstance(number, Const) and (so_far, default_type(number.value)) in WIDENED:
            raise _Retyped(place, default_type(number.value))
        t = self.typed(number, node, so_far)
        if frame.vars and t.dtype != so_far:
            if place in frame.guessed:
                raise _Retyped(place, t.dtype)
            raise self.fail(
                node,
                f"{frame.source.name}() returns {so_far} elsewhere and {t.dtype} here",
                f"write {so_far}({show(node)})",
            )
        return t

    def declared(
        self, name: str, group: Group, at: Place, line: int, mark: tuple[list[Node], int] | None = None
    ) -> Members:
        """Locals for the numbers of a group under one name: here, or at a place where they are zero until then."""

        def local(stem: str, path: str, value: Value) -> Local | Members:
            if isinstance(value, Group):
                fields = value.of.fields if value.of else range(len(value.items))
                form = f"{path}.%s" if value.of else f"{path}[%s]"
                items = zip(fields, value.items, strict=True)
                return Members(tuple(local(f"{stem}_{f}", form % f, item) for f, item in items), value.of, line)
            number = self.typed(value, at)
            if mark is None:
                var = self.b.let(stem, number.expr)
            else:
                var = Var(self.b.fresh(stem), dtype=number.dtype)
                self.b.insert(mark, Let(var.name, zero(number.dtype)))
                self.b.assign(var, number.expr)
            self.parts[var.name] = Part(path, self.b.span)
            return Local(var, number.dtype, line)

        found = local(name, name, group)
        assert isinstance(found, Members)
        return found

    def inline(self, device: DeviceFunction, node: ast.Call) -> Result:
        outer = self.frame.chain if isinstance(self.frame, Inlining) else ()
        if device in outer:
            cycle = " -> ".join(d.__name__ for d in (*outer[outer.index(device) :], device))
            raise self.fail(node, f"helpers call each other in a circle: {cycle}", "use a loop")
        self.hint = ""
        source = device.source
        changed = {n.id for n in ast.walk(source.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        names = {
            arg.arg: self._parameter(source, arg, found, at, arg.arg in changed)
            for arg, found, at in self._matched(source, node)
        }
        mark, buffers, effects, arrays = self.b.mark(), len(self.b.buffers), self.effects, len(self.arrays)
        caller, loops, span = self.frame, self.loops, self.b.span
        writes = self.writes.copy()
        preferred: dict[int, DataType] = {}
        while True:
            frame = Inlining(device, outer, mark)
            frame.conditional = caller.depth > 0 or caller.conditional
            frame.scopes[0].update(names)
            frame.declared, frame.preferred = self._result_form(source), preferred
            self.frame, self.loops = frame, []
            try:
                ended = self.block(source.tree.body)
            except _Retyped as e:  # a number was returned first, and a value of another type later: start again
                preferred[e.place] = e.dtype
                del mark[0][mark[1] :], self.b.buffers[buffers:], self.arrays[arrays:]
                self.effects, self.writes = effects, writes.copy()
            except KernelError as e:
                e.add_note(f"in {source.name}(), called at {caller.source.filename}:{caller.source.line(node)}")
                raise
            else:
                break
        if frame.result is not None and (frame.bare is not None or not ended):
            raise source.error(
                frame.bare or source.tree, f"{source.name}() may end without a value", "end every path with return"
            )
        self.frame, self.loops, self.b.span = caller, loops, span
        self.forget_arrays(arrays)
        return Nothing(f"{source.name}()") if frame.result is None else frame.result

    def _result_form(self, source: FunctionSource) -> Form | None:
        node = source.tree.returns
        note = None if node is None else source.annotation("return", node)
        return None if node is None or note is None else self._form_of(source, note, node)

    def _form_of(self, source: FunctionSource, note: object, node: Place) -> Form | None:
        """What an annotation declares a value to be; None where it leaves that open."""
        if isinstance(note, TypeVar):
            return None
        if get_origin(note) is tuple and Ellipsis not in get_args(note):
            return tuple(self._form_of(source, part, node) for part in get_args(note))
        try:
            form = element_type(note) or small_type(note)
        except VyreError as e:
            raise source.error(node, e.message, e.fix) from e
        if form is None:
            fix = "write f32, u32, tuple[f32, u32], ... or None"
            raise source.error(node, f"`{show(node)}` is not a type of kernels", fix)
        return form

    def _matched(self, source: FunctionSource, node: ast.Call) -> list[tuple[ast.arg, Value | Memory, Place]]:
        """Each parameter of a helper with its argument and where that stands."""
        spec = source.tree.args
        positional, named = [*spec.posonlyargs, *spec.args], [*spec.args, *spec.kwonlyargs]
        signature = ", ".join(a.arg for a in [*positional, *spec.kwonlyargs])
        fix = f"write {source.name}({signature})"
        for extra in (spec.vararg, spec.kwarg):
            if extra is not None:
                raise source.error(extra, "helpers have a fixed list of parameters", "name every parameter")
        if len(node.args) > len(positional):
            count = len(positional)
            raise self.fail(node, f"{source.name}() takes {count} positional arguments, not {len(node.args)}", fix)
        goals: dict[str, ast.expr] = {}
        for arg, value in zip(positional, node.args, strict=False):
            goals[arg.arg] = value
        for keyword in node.keywords:
            if keyword.arg in goals or keyword.arg not in {a.arg for a in named}:
                raise self.fail(keyword, f"{source.name}() has no place for `{keyword.arg or '**'}`", fix)
            goals[keyword.arg] = keyword.value
        found: dict[str, Value | Memory] = {}
        for k, (name, value) in enumerate(goals.items()):
            result = self.argument(value)
            later = list(goals.values())[k + 1 :]
            found[name] = self.settled(result, *later) if isinstance(result, Const | Typed | Group) else result
        given = source.fn.__defaults__ or ()
        last = positional[len(positional) - len(given) :]
        defaults = {arg.arg: value for arg, value in zip(last, given, strict=True)} | (source.fn.__kwdefaults__ or {})
        matched: list[tuple[ast.arg, Value | Memory, Place]] = []
        for arg in [*positional, *spec.kwonlyargs]:
            if arg.arg in found:
                matched.append((arg, found[arg.arg], goals[arg.arg]))
                continue
            default: Result | None = outside_value(defaults[arg.arg], arg.arg) if arg.arg in defaults else None
            if isinstance(default, Outside):
                default = self.captured(frozen(default.what), node)
            if not isinstance(default, Const | Group):
                raise self.fail(node, f"{source.name}() needs a value for `{arg.arg}`", fix)
            matched.append((arg, default, node))
        return matched

    def _parameter(
        self, source: FunctionSource, arg: ast.arg, given: Value | Memory, at: Place, changed: bool
    ) -> Binding:
        """What a helper's parameter means inside it. Without an annotation it takes whatever it is given."""
        name = arg.arg
        note = None if arg.annotation is None else source.annotation(name, arg.annotation)
        if isinstance(note, TypeVar) or (isinstance(note, Annotation) and note.generic):
            is_buffer = isinstance(note, Annotation)
            if is_buffer == isinstance(given, Const | Typed | Group):
                if is_buffer:
                    raise self.fail(at, f"`{name}` is a buffer, and this is a value", "pass a buffer")
                fix = f"pass an element: {show(at)}[i]"
                raise self.fail(at, f"`{name}` is a value, and this is a buffer", fix)
            note = None
        t = element_type(note)
        small = self.small(note, arg.annotation or arg)
        known = t is not None or small is not None or note is const or isinstance(note, Annotation)
        if not (note is None or known):
            assert arg.annotation is not None
            raise source.error(
                arg.annotation, f"`{show(arg.annotation)}` is not a type of kernels", "write In[f32], f32, u32, ..."
            )
        if not isinstance(given, Const | Typed | Group):
            if t is not None or small is not None or note is const:
                raise self.fail(at, f"`{name}` is a value, and this is a buffer", f"pass an element: {show(at)}[i]")
            if isinstance(note, Annotation) and (note.small or note.element) != given.element:
                message = f"`{name}` is a buffer of {note.small or note.element}, and this one holds {given.element}"
                raise self.fail(at, message, "pass another buffer")
            rank = len(self.shapes.get(given.name, ())) if isinstance(given, Buffer) else 0
            if isinstance(note, Annotation) and note.rank != rank:
                has = f"{rank} {'axis' if rank == 1 else 'axes'}" if rank else "no rank"
                say = note.replace(rank=rank)
                raise self.fail(at, f"`{name}` is declared {note}, and this one has {has}", f"declare {name}: {say}")
            return given
        if isinstance(note, Annotation):
            raise self.fail(at, f"`{name}` is a buffer, and this is a value", "pass a buffer")
        if isinstance(given, Group) or small is not None:
            if note is const:
                raise self.fail(at, f"`{name}` has to be known while compiling", "pass a number or a const parameter")
            whole = given if note is None else self.fitted(given, small or t or (), at, f"`{name}`")
            assert isinstance(whole, Group)
            members = self.declared(name, whole, at, source.line(arg))
            self.parts |= {var.name: self.parts[var.name]._replace(span=None) for var in variable(members)}
            return members
        number = self.known_number(given) if note is const else None
        if number is not None:
            given = Const(number)
        if isinstance(given, Const) and (note is const or (t is None and not changed)):
            return given
        if note is const:
            raise self.fail(at, f"`{name}` has to be known while compiling", "pass a number or a const parameter")
        value = self.typed(given, at) if t is None else Typed(self.fit(given, t, at, f"`{name}`"), t)
        var = self.b.let(name, value.expr)
        self.parts[var.name] = Part(name, None)
        return Local(var, value.dtype, source.line(arg))


def variable(binding: Local | Members) -> list[Var]:
    """The locals of the program behind a name."""
    if isinstance(binding, Members):
        return [var for item in binding.items for var in variable(item)]
    assert isinstance(binding.var, Var)
    return [binding.var]
