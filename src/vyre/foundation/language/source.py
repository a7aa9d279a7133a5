"""The source of one decorated function: its tree, where every part of it stands, and the outside names it saw.

Names are captured when the function is decorated, so that a number that changes later changes no kernel. Only helper
functions may be defined after the function that calls them.
"""

from __future__ import annotations

import ast
import builtins
import linecache
from collections.abc import Callable, Iterator
from inspect import getblock
from tokenize import TokenError
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ...errors import ArgumentTypeError, KernelError, VyreError
from ..ir.nodes import Span

MISSING = object()
"""What a name means that nothing defines."""

Place = ast.expr | ast.stmt | ast.arg | ast.keyword | ast.excepthandler


class FunctionSource:
    """A parsed function. `locals` are the names it assigns anywhere, parameters included."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        if not isinstance(fn, FunctionType):
            raise ArgumentTypeError(
                "the decorator was not given a function", fix="put it above a def statement", given=type(fn).__name__
            )
        code = fn.__code__
        self.fn, self.name, self.filename = fn, fn.__name__, code.co_filename
        self.locals = frozenset((*code.co_varnames, *code.co_cellvars))
        self.first_line = code.co_firstlineno
        self.tree = self._parse()
        self._cells = dict(zip(code.co_freevars, fn.__closure__ or (), strict=True))
        self._captured = {name: value for name, value in self._outside_names() if value is not MISSING}

    def _parse(self) -> ast.FunctionDef:
        linecache.checkcache(self.filename)
        lines = linecache.getlines(self.filename, self.fn.__globals__)
        self.lines = lines
        if len(lines) < self.first_line:
            raise self._without_source("the source of the function is not available")
        nested = lines[self.first_line - 1][:1].isspace()  # "if 1:" above it keeps the columns of an indented block
        self._line_shift = self.first_line - (2 if nested else 1)
        try:
            block = "".join(getblock(lines[self.first_line - 1 :]))
            module = ast.parse("if 1:\n" + block if nested else block)
        except (SyntaxError, TokenError, RecursionError) as e:
            raise self._without_source("the source of the function cannot be parsed on its own") from e
        found = module.body[0] if module.body else None
        if isinstance(found, ast.If):
            found = found.body[0]
        if isinstance(found, ast.AsyncFunctionDef):
            raise self.error(found, "a kernel cannot be async", "write a plain def")
        if not isinstance(found, ast.FunctionDef) or found.name != self.name:
            raise self._without_source("the source at the line of the function is something else")
        self._refuse_edited(module)
        return found

    def _refuse_edited(self, module: ast.Module) -> None:
        """The file is read anew, and may no longer be what Python compiled: its names and numbers would differ."""
        try:
            whole = compile(module, self.filename, "exec", dont_inherit=True)
        except (SyntaxError, RecursionError):  # `nonlocal` makes no sense out of its surroundings
            return
        ran = self.fn.__code__
        for code in whole.co_consts:
            if isinstance(code, CodeType) and code.co_name == self.name:
                same = code.co_varnames[: _arguments(code)] == ran.co_varnames[: _arguments(ran)]
                if not same or _names_and_numbers(code) - _names_and_numbers(ran):  # tools that check may add some
                    raise self._without_source("the file has changed since the function was imported")

    def _without_source(self, message: str) -> KernelError:
        text = self.lines[self.first_line - 1] if self.first_line <= len(self.lines) else None
        return KernelError(
            message,
            fix="define the function with def in a file or a notebook cell, and reload the module after editing",
            filename=self.filename,
            lineno=self.first_line,
            offset=None,
            text=text,
        )

    # -- places

    def line(self, node: Place | ast.FunctionDef) -> int:
        return node.lineno + self._line_shift

    def span(self, node: Place | ast.FunctionDef, last: Place | None = None) -> Span:
        """Columns count characters from 1, as in `KernelError`; a part that spans lines ends with its first."""
        line = self.line(node)
        text = self.lines[line - 1].rstrip("\n") if line <= len(self.lines) else ""
        end = last or node
        stop = end.end_col_offset if end.end_lineno == node.lineno else None
        start = _characters(text, node.col_offset)
        return Span(self.filename, line, start + 1, (len(text) if stop is None else _characters(text, stop)) + 1, text)

    def error(self, node: Place | ast.FunctionDef | Span, message: str, fix: str) -> KernelError:
        span = node if isinstance(node, Span) else self.span(node)
        return KernelError(
            message,
            fix=fix,
            filename=span.file,
            lineno=span.line,
            offset=span.column,
            end_offset=span.end_column,
            text=span.text,
        )

    # -- outside names

    def outside(self, dotted: str) -> object:
        """What `dotted` meant at decoration; MISSING if nothing."""
        if dotted in self._captured:
            return self._captured[dotted]
        from .lang import DeviceFunction

        late = self._lookup(dotted)
        return late if isinstance(late, DeviceFunction) else MISSING

    def annotation(self, name: str, node: ast.expr) -> object:
        """What the annotation of a parameter (or "return") means: as Python evaluated it, or from its text where
        evaluation was postponed."""
        try:
            given = self.fn.__annotations__.get(name, "")
            if not isinstance(given, str):
                return given
            return self._evaluate(node)
        except VyreError as e:
            raise self.error(node, e.message, e.fix) from e
        except Exception as e:
            raise self.error(
                node, f"the annotation cannot be evaluated: {e}", "import its names at the top of the module"
            ) from e

    def _evaluate(self, annotation: ast.expr) -> object:
        from .lang import ANNOTATIONS

        scope = {**ANNOTATIONS, **self.fn.__globals__}
        for name, cell in self._cells.items():
            try:
                scope[name] = cell.cell_contents
            except ValueError:  # not assigned yet
                scope.pop(name, None)
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
        return eval(compile(ast.Expression(annotation), self.filename, "eval"), scope)

    def _outside_names(self) -> Iterator[tuple[str, object]]:
        """Every outside name in the function, with its attributes as long as they lead through modules and classes."""
        for node in ast.walk(self.tree):
            name = dotted_name(node)
            if name is not None and name.partition(".")[0] not in self.locals:
                yield name, self._lookup(name)

    def _lookup(self, dotted: str) -> object:
        root, *attributes = dotted.split(".")
        value = self._root(root)
        for attribute in attributes:
            if not isinstance(value, ModuleType | type):
                return MISSING
            value = getattr(value, attribute, MISSING)
        return value

    def _root(self, name: str) -> object:
        if name in self._cells:
            try:
                return self._cells[name].cell_contents
            except ValueError:
                return MISSING
        if name in self.fn.__globals__:
            return self.fn.__globals__[name]
        return getattr(builtins, name, MISSING)


def _arguments(code: CodeType) -> int:
    return code.co_argcount + code.co_kwonlyargcount


def _names_and_numbers(code: CodeType) -> set[object]:
    """What compiling the same source again finds again, whatever surrounds it."""
    names = {*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars}
    plain = {name for name in names if not name.startswith("__")}  # in a class these are rewritten
    return plain | {(type(c), c) for c in code.co_consts if type(c) in (int, float)}


def dotted_name(node: ast.AST) -> str | None:
    """`a.b.c` as text, for a chain of attributes that starts at a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def _characters(text: str, nbytes: int) -> int:
    """Characters before a position that the parser counts in UTF-8 bytes."""
    return len(text.encode()[:nbytes].decode(errors="ignore"))
