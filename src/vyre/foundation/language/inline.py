"""Helpers of kernels: a device function's statements in place of its call.

Names are its own, types follow from the arguments. The IR cannot leave a block early, so what follows an `if` that
returns becomes its other side, and several returns meet in one local.
"""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

from ...errors import KernelError
from ..ir.build import Buffer, Builder
from ..ir.dtypes import DataType, bool_, f32, i32, u32
from ..ir.nodes import Expr, Let, Lit, Node, Var, lit
from .calls import CallCompiler
from .lang import Annotation, DeviceFunction, const, element_type
from .source import FunctionSource, Place
from .values import Binding, Const, Frame, Local, Nothing, Result, Scalar, Typed, default_type, outside_value, show

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
        self.declared: DataType | None = None  # what `->` says
        self.preferred: DataType | None = None  # for plain numbers that it returns
        self.result: Scalar | None = None
        self.bare: ast.Return | None = None  # a return without a value
        self.var: Var | None = None  # holds the result where several returns meet
        self.live: Var | None = None  # false once something returned, where that is tested
        self.guessed = False  # whether its type is only the default of a plain number


class _Retyped(Exception):
    """The numbers that a helper returns have this type after all."""

    def __init__(self, dtype: DataType) -> None:
        self.dtype = dtype


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
        if self.loops:
            raise self.fail(node, "a helper returns from inside a loop", "assign the result to a name, and break")
        if frame.live is not None:
            self.b.assign(frame.live, Lit(bool_, 0))
        if node.value is None:
            frame.bare = node
            return
        if isinstance(node.value, ast.Tuple):
            raise self.fail(
                node.value, "a helper returns one value", "write one helper per value, or store to a buffer"
            )
        self.wanted = frame.declared
        value = self.scalar(node.value)
        if frame.declared is not None:
            value = Typed(
                self.fit(value, frame.declared, node.value, f"the result of {frame.source.name}()"), frame.declared
            )
        if not frame.depth:
            frame.result = value
            return
        so_far = frame.result.dtype if isinstance(frame.result, Typed) else frame.preferred
        if frame.guessed and isinstance(value, Const) and (so_far, default_type(value.value)) in WIDENED:
            raise _Retyped(default_type(value.value))
        t = self.typed(value, node.value, so_far)
        if frame.var is None:
            frame.var = Var(self.b.fresh(frame.source.name), dtype=t.dtype)
            self.b.insert(frame.mark, Let(frame.var.name, zero(t.dtype)))
            frame.result = Typed(frame.var, t.dtype)
            frame.guessed = isinstance(value, Const) and frame.preferred is None
        assert isinstance(frame.result, Typed)
        if t.dtype != frame.result.dtype:
            if frame.guessed:
                raise _Retyped(t.dtype)
            raise self.fail(
                node.value,
                f"{frame.source.name}() returns {frame.result.dtype} elsewhere and {t.dtype} here",
                f"write {frame.result.dtype}({show(node.value)})",
            )
        self.b.assign(frame.var, t.expr)

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
        mark, buffers, effects = self.b.mark(), len(self.b.buffers), self.effects
        caller, loops, span = self.frame, self.loops, self.b.span
        preferred: DataType | None = None
        while True:
            frame = Inlining(device, outer, mark)
            frame.conditional = caller.depth > 0 or caller.conditional
            frame.scopes[0].update(names)
            frame.declared, frame.preferred = _result_type(source), preferred
            self.frame, self.loops = frame, []
            try:
                ended = self.block(source.tree.body)
            except _Retyped as e:  # a number was returned first, and a value of another type later: start again
                preferred = e.dtype
                del mark[0][mark[1] :], self.b.buffers[buffers:]
                self.effects = effects
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
        return Nothing(f"{source.name}()") if frame.result is None else frame.result

    def _matched(self, source: FunctionSource, node: ast.Call) -> list[tuple[ast.arg, Scalar | Buffer, Place]]:
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
        found: dict[str, Scalar | Buffer] = {}
        for k, (name, value) in enumerate(goals.items()):
            result = self.argument(value)
            later = list(goals.values())[k + 1 :]
            found[name] = result if isinstance(result, Buffer) else self.settled(result, *later)
        given = source.fn.__defaults__ or ()
        last = positional[len(positional) - len(given) :]
        defaults = {arg.arg: value for arg, value in zip(last, given, strict=True)} | (source.fn.__kwdefaults__ or {})
        matched: list[tuple[ast.arg, Scalar | Buffer, Place]] = []
        for arg in [*positional, *spec.kwonlyargs]:
            if arg.arg in found:
                matched.append((arg, found[arg.arg], goals[arg.arg]))
                continue
            default = outside_value(defaults[arg.arg], arg.arg) if arg.arg in defaults else None
            if not isinstance(default, Const):
                raise self.fail(node, f"{source.name}() needs a value for `{arg.arg}`", fix)
            matched.append((arg, default, node))
        return matched

    def _parameter(
        self, source: FunctionSource, arg: ast.arg, given: Scalar | Buffer, at: Place, changed: bool
    ) -> Binding:
        """What a helper's parameter means inside it. Without an annotation it takes whatever it is given."""
        name = arg.arg
        note = None if arg.annotation is None else source.annotation(name, arg.annotation)
        t = element_type(note)
        if not (arg.annotation is None or t is not None or note is const or isinstance(note, Annotation)):
            assert arg.annotation is not None
            raise source.error(
                arg.annotation, f"`{show(arg.annotation)}` is not a type of kernels", "write In[f32], f32, u32, ..."
            )
        if isinstance(given, Buffer):
            if t is not None or note is const:
                raise self.fail(at, f"`{name}` is a value, and this is a buffer", f"pass an element: {show(at)}[i]")
            if isinstance(note, Annotation) and note.element != given.element:
                raise self.fail(
                    at,
                    f"`{name}` is a buffer of {note.element}, and this one holds {given.element}",
                    "pass another buffer",
                )
            rank = len(self.shapes.get(given.name, ()))
            if isinstance(note, Annotation) and note.rank != rank:
                has = f"{rank} {'axis' if rank == 1 else 'axes'}" if rank else "no rank"
                say = note.replace(rank=rank)
                raise self.fail(at, f"`{name}` is declared {note}, and this one has {has}", f"declare {name}: {say}")
            return given
        if isinstance(note, Annotation):
            raise self.fail(at, f"`{name}` is a buffer, and this is a value", "pass a buffer")
        number = self.known_number(given) if note is const else None
        if number is not None:
            given = Const(number)
        if isinstance(given, Const) and (note is const or (t is None and not changed)):
            return given
        if note is const:
            raise self.fail(at, f"`{name}` has to be known while compiling", "pass a number or a const parameter")
        value = self.typed(given, at) if t is None else Typed(self.fit(given, t, at, f"`{name}`"), t)
        return Local(self.b.let(name, value.expr), value.dtype, source.line(arg))


def zero(t: DataType) -> Expr:
    """What a local holds until a branch gives it a value."""
    return lit(False if t == bool_ else 0, t)


def _result_type(source: FunctionSource) -> DataType | None:
    node = source.tree.returns
    note = None if node is None else source.annotation("return", node)
    t = element_type(note)
    if node is not None and note is not None and t is None:
        raise source.error(node, f"`{show(node)}` is not a type of kernels", "write f32, u32, ... or None")
    return t
