"""Kernels: a Python function read as a compute program.

`read_source` looks at the signature once, when the function is decorated; `build_program` compiles the body for given
values of its compile-time parameters and validates the result, so that a kernel that was accepted runs anywhere.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from typing import Any, TypeVar

from ...errors import VyreError
from ..ir.build import Builder, workgroup_shape
from ..ir.dtypes import DataType, bool_, u32
from ..ir.nodes import Bitcast, BufLen, Expr, Load, lit
from ..ir.prints import LOGS
from ..ir.program import Access, Part, Program
from ..ir.value import Value
from . import lang
from .lang import Annotation, const, element_type
from .refused_syntax import FOREIGN_TYPES
from .small.arrays import with_arrays
from .small.memory import Rows
from .small.types import SmallType, element_of, small_type
from .source import FunctionSource
from .stmts import StatementCompiler
from .values import Const, Frame, Local, Members, Outside, adapts, outside_value

RESERVED = ("grid", "domain", "sizes", "config", "check_races", "invocation")
"""Keywords of a kernel's call."""
ACCESS = {
    "in": Access.READ_ONLY,
    "out": Access.WRITE_ONLY,
    "inout": Access.READ_WRITE,
    "uniform": Access.UNIFORM,
    "scalar": Access.UNIFORM,
}


class _NoDefault:
    def __repr__(self) -> str:
        return "NO_DEFAULT"

    def __reduce__(self) -> str:
        return "NO_DEFAULT"  # the same object in every process


NO_DEFAULT: object = _NoDefault()


class Param(Value):
    """A parameter of a kernel. `role` is in, out, inout, uniform, scalar or const; `count` 0 is sized at dispatch,
    `rank` 0 takes arrays of any shape.

    `default` is the number that a scalar or const is where a call gives none; `keyword` says that it goes by name only.
    """

    name: str
    role: str
    element: DataType | None = None
    count: int = 0
    default: object = NO_DEFAULT
    line: int = 0
    keyword: bool = False
    small: SmallType | None = None
    generic: str = ""
    rank: int = 0

    @property
    def width(self) -> int:
        """Numbers of one element."""
        return 1 if self.small is None else len(list(self.small.leaves()))

    @property
    def is_optional(self) -> bool:
        """Whether a call may leave it out."""
        return self.role == "out" or self.default is not NO_DEFAULT

    @property
    def annotation(self) -> object:
        """What its function says of it."""
        if self.generic:
            variable = TypeVar(self.generic)  # type: ignore[misc]
            return (
                variable
                if self.role == "scalar"
                else Annotation(self.role, u32, self.count, None, self.generic, self.rank)
            )
        if self.element is None:
            return const
        count = self.count // self.width
        if self.role == "scalar":
            return self.element if self.small is None else self.small.cls
        return Annotation(self.role, self.element, count, self.small, "", self.rank)


class KernelSource(FunctionSource):
    """A kernel's function, with its signature understood."""

    def __init__(self, fn: Callable[..., Any], workgroup: int | Iterable[int]) -> None:
        self.workgroup = workgroup_shape(workgroup)
        super().__init__(fn)
        self.types: Mapping[str, object] = {}
        self.params = self._read_params()
        self.generics = self._read_generics()
        """The compile-time parameters that are types, of which some annotation speaks."""

    def of_types(self, types: Mapping[str, object]) -> KernelSource:
        """The same function, where these parameters are these types."""
        found = copy(self)
        found.types, found.generics = dict(types), ()
        found.params = found._read_params()
        return found

    def _read_generics(self) -> tuple[str, ...]:
        named = {p.name for p in self.params if p.role == "const"}
        found: dict[str, None] = {}
        for param, arg in zip(self.params, self._args(), strict=True):
            if param.generic and param.generic not in named:
                raise self.error(
                    arg,
                    f"`{param.generic}` stands for a type, and no parameter says which",
                    f"add *, {param.generic}: const",
                )
            found |= {param.generic: None} if param.generic else {}
        for param, arg in zip(self.params, self._args(), strict=True):
            is_type = element_type(param.default) is not None or isinstance(param.default, type)
            if param.role == "const" and param.default is not NO_DEFAULT and is_type != (param.name in found):
                kind = "a type" if param.name in found else "a number"
                raise self.error(arg, f"the default of `{param.name}` is not {kind}", f"give {kind}")
        return tuple(found)

    def _args(self) -> list[ast.arg]:
        args = self.tree.args
        return [*args.posonlyargs, *args.args, *args.kwonlyargs]

    def _read_params(self) -> tuple[Param, ...]:
        args = self.tree.args
        for extra in (args.vararg, args.kwarg):
            if extra is not None:
                raise self.error(extra, "kernels have a fixed list of parameters", "name every parameter")
        if self.tree.returns is not None and self.annotation("return", self.tree.returns) is not None:
            raise self.error(self.tree.returns, "kernels return nothing", "write results to an Out parameter")
        positional = [*args.posonlyargs, *args.args]
        given = self.fn.__defaults__ or ()
        absent = [NO_DEFAULT] * (len(positional) - len(given))
        plain = [self._read_param(arg, default) for arg, default in zip(positional, (*absent, *given), strict=True)]
        for param, arg in zip(plain, positional, strict=True):
            if param.role == "const":
                raise self.error(
                    arg, "a compile-time parameter is positional", f"move it behind `*`: *, {arg.arg}: const"
                )
        named = []
        for arg in args.kwonlyargs:
            param = self._read_param(arg, (self.fn.__kwdefaults__ or {}).get(arg.arg, NO_DEFAULT))
            if param.role not in ("const", "scalar"):
                raise self.error(
                    arg, f"the keyword parameter `{arg.arg}` is a buffer", "move it before `*`; it goes by its name too"
                )
            named.append(param.replace(keyword=True))
        return (*plain, *named)

    def _read_param(self, arg: ast.arg, default: object) -> Param:
        name, line = arg.arg, self.line(arg)
        if name in RESERVED:
            raise self.error(arg, f"`{name}` is a keyword of every kernel call", "choose another name")
        if name in LOGS:
            raise self.error(arg, f"`{name}` is where kernels leave what they print", "choose another name")
        if not name.isascii():
            raise self.error(arg, f"the parameter name `{name}` is not ASCII", "use letters, digits and underscores")
        if arg.annotation is None and name in ("self", "cls"):
            raise self.error(arg, "a kernel is not a method", f"move it out of the class, or drop {name}")
        if arg.annotation is None:
            raise self.error(
                arg, f"the parameter `{name}` has no annotation", f"write {name}: In[f32], or {name}: f32 for a number"
            )
        note = self._resolved(self.annotation(name, arg.annotation), arg)
        t = element_type(note)
        if isinstance(note, TypeVar):
            if default is not NO_DEFAULT:
                raise self.error(arg, f"`{name}` has a default, and no type yet", "leave the default out")
            return Param(name, "scalar", None, 1, default, line, generic=note.__name__)
        if isinstance(note, Annotation) and note.generic:
            return Param(name, note.role, None, note.count, NO_DEFAULT, line, generic=note.generic, rank=note.rank)
        try:
            small = small_type(note)
            words = None if small is None else element_of(small)
        except VyreError as e:
            raise self.error(arg, e.message, e.fix) from e
        if small is not None:
            if default is not NO_DEFAULT and not (isinstance(default, tuple) and type(default) is small.cls):
                raise self.error(arg, f"the default of `{name}` is not a {small}", f"give {small}(...)")
            found = Param(name, "scalar", words, 0, default, line, False, small)
            return found.replace(count=found.width)
        if note is const:
            if name in self.types:
                return Param(name, "const", None, 0, self.types[name], line)
            is_type = element_type(default) is not None or isinstance(default, type)
            if default is not NO_DEFAULT and not is_type and not isinstance(outside_value(default, name), Const):
                raise self.error(arg, f"the default of `{name}` is not a number", "give a number")
            return Param(name, "const", None, 0, default, line)
        if t is not None:
            return Param(name, "scalar", t, 1, self._number(arg, default, t), line)
        if isinstance(note, Annotation) and default is not NO_DEFAULT:
            fix = f"drop it: {name}=... is made by the call where it is left out" if note.role == "out" else "drop it"
            raise self.error(arg, f"the buffer `{name}` has a default", fix)
        if isinstance(note, Annotation):
            found = Param(name, note.role, note.element, note.count, NO_DEFAULT, line, False, note.small)
            return found.replace(count=note.count * found.width, rank=note.rank)
        raise self.error(
            arg.annotation, f"`{ast.unparse(arg.annotation)}` is not a type of kernels", _annotation_fix(note)
        )

    def _resolved(self, note: object, arg: ast.arg) -> object:
        """What an annotation says, where types are given for what it leaves open."""
        try:
            if isinstance(note, TypeVar):
                return self.types.get(note.__name__, note)
            if isinstance(note, Annotation) and note.generic in self.types:
                role: Any = getattr(lang, {"inout": "InOut"}.get(note.role, note.role.capitalize()))
                given = self.types[note.generic]
                rank = getattr(lang, f"D{note.rank}") if note.rank else None
                return role[given, note.count or rank] if note.count or rank else role[given]
        except VyreError as e:
            raise self.error(arg, e.message, e.fix) from e
        return note

    def _number(self, arg: ast.arg, default: object, t: DataType) -> object:
        """The default of a parameter that is a number: one that its type holds."""
        if default is NO_DEFAULT:
            return default
        number = outside_value(default, arg.arg)
        if not isinstance(number, Const) or not adapts(number, t):
            wanted = "True or False" if t == bool_ else "a number" if t.is_float else "a whole number"
            raise self.error(arg, f"the default of `{arg.arg}` is not of type {t}", f"give {wanted}")
        try:
            lit(number.value, t)
        except VyreError as e:
            raise self.error(arg, f"the default of `{arg.arg}`: {e.message}", e.fix) from e
        return number.value


def _annotation_fix(note: object) -> str:
    if isinstance(note, lang.Role):
        return f"name the element type: {note}[f32]"
    if isinstance(note, DataType):
        return "use a type that kernels compute with or store"
    ours = FOREIGN_TYPES.get(getattr(note, "__name__", ""), "f32")
    return f"write {ours} for a number, or In[{ours}], Out[{ours}], InOut[{ours}] for a buffer"


def read_source(fn: Callable[..., Any], workgroup: int | Iterable[int]) -> KernelSource:
    """The parsed function and its parameters; refuses a signature that no kernel can have."""
    return KernelSource(fn, workgroup)


def shapes_name(params: Iterable[Param]) -> str | None:
    """The buffer behind the parameters that holds the shapes of those with a rank; None where there are none.

    It has a u32 for each axis: of the first such parameter its first axis, its second, and then those of the next.
    """
    taken = {p.name for p in params}
    if not any(p.rank > 1 for p in params):
        return None
    return next(name for k in range(len(taken) + 1) if (name := "shapes" + "_" * k) not in taken)


def build_program(source: KernelSource, consts: Mapping[str, object]) -> Program:
    """The program of a kernel for these values of its compile-time parameters."""
    return with_arrays(lambda in_memory: _built(source, consts, in_memory))


def _built(source: KernelSource, consts: Mapping[str, object], in_memory: frozenset[ast.Call]) -> Program:
    builder, frame = Builder(source.workgroup), Frame(source)
    scope, parts = frame.scopes[0], dict[str, Part]()
    for param in source.params:
        if param.role == "const":
            given = source.types.get(param.name)
            known = Const(_const_value(source, param, consts)) if given is None else Outside(given, param.name)
            scope[param.name] = known
            continue
        assert param.element is not None
        buffer = builder.buffer(param.name, ACCESS[param.role], param.element, param.count)
        if param.small is not None and param.role == "scalar":
            scope[param.name] = _members(param, param.small, iter(range(param.width)))
            numbers = zip(param.small.paths(), param.small.leaves(), strict=True)
            parts[param.name] = Part(" ".join(f"{param.name}{path}:{t}" for path, t in numbers), None)
        elif param.small is not None:
            scope[param.name] = Rows(buffer, param.small)
        elif param.role == "scalar":
            load = Load(param.name, lit(0), dtype=param.element)
            scope[param.name] = Local(load, param.element, param.line, "a parameter")
        else:
            scope[param.name] = buffer
    compiler = StatementCompiler(builder, frame)
    compiler.in_memory = in_memory
    compiler.shapes = _shapes(builder, source.params)
    try:
        compiler.block(source.tree.body)
    except RecursionError:
        raise source.error(source.tree, "the kernel is nested too deeply", "bind parts of it to names") from None
    program = builder.program()
    _refuse_invalid(source, program)
    program.unnamed(compiler.temporaries)
    program.parts(parts | compiler.parts)
    return program.called(source.name)


def _members(param: Param, small: SmallType, places: Iterator[int]) -> Members:
    """A parameter that is one small value."""
    items: list[Local | Members] = []
    for t in small.types:
        if isinstance(t, SmallType):
            items.append(_members(param, t, places))
            continue
        load: Expr = Load(param.name, lit(next(places)), dtype=param.element)
        items.append(Local(load if t == param.element else Bitcast(t, load), t, param.line, "a parameter"))
    return Members(tuple(items), small, param.line, "a parameter")


def _shapes(builder: Builder, params: tuple[Param, ...]) -> dict[str, tuple[Expr, ...]]:
    """The sizes of the axes of every parameter that has a rank."""
    found: dict[str, tuple[Expr, ...]] = {p.name: (BufLen(p.name),) for p in params if p.rank == 1}
    name = shapes_name(params)
    if name is not None:
        ranked = [p for p in params if p.rank > 1]
        words = builder.uniform(name, u32, sum(p.rank for p in ranked))
        axes = iter(range(words.decl.count))
        found |= {p.name: tuple(words[next(axes)] for _ in range(p.rank)) for p in ranked}
    return found


def _const_value(source: KernelSource, param: Param, consts: Mapping[str, object]) -> int | float | bool:
    value = consts.get(param.name, param.default)
    found = outside_value(value, param.name)
    if isinstance(found, Const):
        return found.value
    at = next(arg for arg in source.tree.args.kwonlyargs if arg.arg == param.name)
    if value is NO_DEFAULT:
        raise source.error(at, f"the compile-time parameter `{param.name}` has no value", f"pass {param.name}=...")
    raise source.error(
        at, f"the value of `{param.name}` is a {type(value).__name__}, not a number", f"pass a number as {param.name}"
    )


def _refuse_invalid(source: KernelSource, program: Program) -> None:
    """Findings of the validator, each at its statement. A feature that a backend lacks is refused at dispatch."""
    from ..check.validate import validate
    from ..ir.report import Capabilities

    for issue in validate(program, Capabilities.everything()):
        if issue.severity == "error":
            raise source.error(issue.span or source.tree, issue.message, issue.fix)
