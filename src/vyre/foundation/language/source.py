"""The source of one decorated function: its tree, where every part of it stands, and the outside names it saw.

Names are captured when the function is decorated, so that a number that changes later changes no kernel. Only helper
functions may be defined after the function that calls them.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import linecache
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from inspect import getblock
from textwrap import dedent
from tokenize import TokenError
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar

from ...errors import ArgumentTypeError, ArgumentValueError, KernelError, VyreError
from ..ir.nodes import Span
from .refused_syntax import foreign_fix

MISSING = object()
"""The meaning of an undefined name."""

MAX_NUMBERS = 4096
"""In one table that a kernel captures. Longer ones are data, and data is passed."""


class Table(NamedTuple):
    """Numbers of the surrounding program in a row, or under names, as they were when the function was decorated.

    An item may be a table again. `kind` is what it was: a tuple, a list, an array, or the name of a class.
    """

    kind: str
    items: tuple[object, ...]
    fields: tuple[str, ...] = ()
    cls: type | None = None


Place = ast.expr | ast.stmt | ast.arg | ast.keyword | ast.excepthandler


class FunctionSource:
    """A parsed function. `locals` are the names it assigns anywhere, parameters included; one statement alone assigns
    those in `assigned_once`, and those in `unwanted` are written only to leave something out."""

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
        self._around = self._names_around()
        self._captured = {name: frozen(value) for name, value in self._outside_names() if value is not MISSING}
        names = [n for n in ast.walk(self.tree) if isinstance(n, ast.Name)]
        stores = Counter(n.id for n in names if isinstance(n.ctx, ast.Store))
        self.assigned_once = frozenset(name for name, count in stores.items() if count == 1)
        self.unwanted = {"_"}.difference(n.id for n in names if isinstance(n.ctx, ast.Load))

    def _parse(self) -> ast.FunctionDef:
        self.lines = lines = source_lines(self.fn)
        if len(lines) < self.first_line:
            raise self._without_source(
                f"the source of the function is not available{_why_not(self.filename)}",
                f'define it in a file or a notebook cell, or pass its text: vyre.kernel(source="def {self.name}(...")',
            )
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

    def _without_source(self, message: str, fix: str = "") -> KernelError:
        text = self.lines[self.first_line - 1] if self.first_line <= len(self.lines) else None
        return KernelError(
            message,
            fix=fix or "define the function with def in a file or a notebook cell, and reload the module after editing",
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
            fix = foreign_fix(ast.unparse(node).strip("'\"")) or "import its names at the top of the module"
            raise self.error(node, f"the annotation cannot be evaluated: {e}", fix) from e

    def _evaluate(self, annotation: ast.expr) -> object:
        from .lang import ANNOTATIONS

        open_types: dict[str, object] = {arg.arg: TypeVar(arg.arg) for arg in self.tree.args.kwonlyargs}
        open_types |= {t.__name__: t for t in getattr(self.fn, "__type_params__", ())}
        scope = {**open_types, **ANNOTATIONS, **self.fn.__globals__, **self._around}
        for name, cell in self._cells.items():
            try:
                scope[name] = cell.cell_contents
            except ValueError:  # not assigned yet
                scope.pop(name, None)
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
        return eval(compile(ast.Expression(annotation), self.filename, "eval"), scope)

    def _names_around(self) -> dict[str, object]:
        """Locals of the function around this one that no closure has: those that postponed annotations name."""
        texts = [note for note in self.fn.__annotations__.values() if isinstance(note, str)]
        if sys.flags.optimize:  # then Python closes over nothing that only an assert reads
            texts += [ast.unparse(node) for node in ast.walk(self.tree) if isinstance(node, ast.Assert)]
        if not texts:
            return {}
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not any(code is self.fn.__code__ for code in frame.f_code.co_consts):
            frame = frame.f_back
        if frame is None or frame.f_locals is self.fn.__globals__:
            return {}
        words = set(re.findall(r"\w+", " ".join(texts)))
        return {name: value for name, value in frame.f_locals.items() if name in words}

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
            if not isinstance(value, ModuleType | type) and not (isinstance(value, Enum) and attribute == "value"):
                return MISSING
            value = getattr(value, attribute, MISSING)
        return value

    def _root(self, name: str) -> object:
        if name in self._cells:
            try:
                return self._cells[name].cell_contents
            except ValueError:
                return MISSING
        if sys.flags.optimize and name in self._around:
            return self._around[name]
        if name in self.fn.__globals__:
            return self.fn.__globals__[name]
        return getattr(builtins, name, MISSING)


# -- text


def source_lines(fn: FunctionType) -> list[str]:
    """The text that a function was compiled from, from its first line on; empty where it is gone.

    Python keeps it for files, notebooks, and the prompt of 3.13. Where texts share a name, as those of `exec`, `-c` and
    older prompts do, one counts only if it compiles to this very function.
    """
    name = fn.__code__.co_filename
    linecache.checkcache(name)
    lines = linecache.getlines(name, fn.__globals__)
    if name not in SHARED_NAMES:
        return lines
    elsewhere: list[str] = _command_line() if name == "<string>" else list(_standard_input())
    for text in ("".join(lines), *elsewhere):
        for part in (text, *_definitions(text)):
            if _compiles_to(part, fn.__code__):
                return part.splitlines(keepends=True)
    return []


SHARED_NAMES = ("<string>", "<stdin>")
"""File names that say how a text reached Python, and not which one it is."""


def _command_line() -> list[str]:
    return [argument.removeprefix("-c") for argument in sys.orig_argv[1:]]


def _standard_input() -> Iterator[str]:
    """What was typed at the prompt, and the file that the shell gave as standard input. A pipe is read only once."""
    history = sys.modules.get("readline")  # loaded by the prompt of a terminal
    if history is not None:
        count = history.get_current_history_length()
        yield "".join(f"{history.get_history_item(k) or ''}\n" for k in range(1, count + 1))
    try:
        about = os.fstat(0)
        if stat.S_ISREG(about.st_mode):
            yield os.pread(0, about.st_size, 0).decode()
    except (OSError, UnicodeDecodeError, AttributeError):  # closed, not text, or a system without pread
        pass


def _definitions(text: str) -> Iterator[str]:
    """The functions and classes of a text, latest first: at a prompt, each is compiled on its own."""
    lines = text.splitlines(keepends=True)
    for k in reversed(range(len(lines))):
        if lines[k].startswith(("@", "def ", "class ")):
            try:
                yield "".join(getblock(lines[k:]))
            except (SyntaxError, TokenError):
                continue


def _compiles_to(text: str, wanted: CodeType) -> bool:
    """Whether the text holds this function: same operations, names and numbers, on the same lines."""
    flags = wanted.co_flags & __future__.annotations.compiler_flag
    try:
        unvisited = [compile(text, wanted.co_filename, "exec", flags, dont_inherit=True)]
    except (SyntaxError, ValueError, RecursionError):
        return False
    while unvisited:
        code = unvisited.pop()
        if code == wanted:
            return True
        unvisited += [c for c in code.co_consts if isinstance(c, CodeType)]
    return False


def _why_not(filename: str) -> str:
    if filename == "<stdin>":
        return ": Python keeps nothing of what it reads from a pipe"
    return ": exec() keeps nothing of its text" if filename == "<string>" else ""


def defined_by(text: str, names: dict[str, object]) -> FunctionType:
    """The function that a text ends with. The text is run among copies of these names, and may define helpers first."""
    from hashlib import sha256  # which loads OpenSSL, in 2 ms

    text = dedent(text)
    filename = f"<source {sha256(text.encode(errors='replace')).hexdigest()[:12]}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    try:
        tree = ast.parse(text, filename)
    except (SyntaxError, ValueError, RecursionError) as e:
        at = (e.lineno, e.offset, e.text) if isinstance(e, SyntaxError) else (1, None, None)
        raise KernelError(
            f"the text is not Python: {getattr(e, 'msg', '') or e}",
            fix="correct this line",
            filename=filename,
            lineno=at[0],
            offset=at[1],
            text=at[2],
        ) from e
    last = tree.body[-1] if tree.body else None
    found = None
    if isinstance(last, ast.FunctionDef):
        scope = dict(names)
        exec(compile(tree, filename, "exec", dont_inherit=True), scope)
        found = scope[last.name]
    if not isinstance(found, FunctionType):
        raise ArgumentValueError(
            "the text does not end with a plain function",
            fix='pass source="def k(x: In[f32], out: Out[f32]): ...", without a decorator',
        )
    return found


def frozen(value: object, depth: int = 8) -> object:
    """Tuples, lists, small arrays, NamedTuples and dataclasses as tables of what they hold now; all else as it is."""
    found = _contents(value)
    if found is None or not depth:
        return value
    items = tuple(frozen(item, depth - 1) for item in found[0])
    return (
        Table(type(value).__name__, items, found[1], type(value)) if sum(map(_count, items)) <= MAX_NUMBERS else value
    )


def _contents(value: object) -> tuple[Sequence[object], tuple[str, ...]] | None:
    """The items of a container, and their names; None for other objects, and for containers with too many."""
    fields = getattr(type(value), "__dataclass_fields__", None)
    if fields is not None:
        return [getattr(value, name, MISSING) for name in fields], tuple(fields)
    if isinstance(value, tuple | list):
        return (value, getattr(value, "_fields", ())) if len(value) <= MAX_NUMBERS else None
    if (type(value).__module__, type(value).__name__) == ("numpy", "ndarray"):
        array: Any = value
        if array.ndim and array.size <= MAX_NUMBERS and array.dtype.kind in "biuf":
            return array.tolist(), ()
    return None


def _count(item: object) -> int:
    return sum(map(_count, item.items)) if isinstance(item, Table) else 1


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


# ---- where control and names go, read off the syntax before anything is compiled -----------------------------------

Names = frozenset[str]


def jumps(node: ast.stmt, *kinds: type[ast.stmt]) -> bool:
    """Whether a statement may leave the iteration around it; loops inside keep their own jumps."""
    unvisited = [node]
    while unvisited:
        item = unvisited.pop()
        if isinstance(item, kinds or (ast.Break, ast.Continue)):
            return True
        if isinstance(item, ast.If):
            unvisited += [*item.body, *item.orelse]
    return False


def returns(node: ast.stmt) -> bool:
    return any(isinstance(n, ast.Return) for n in ast.walk(node))


def never_ends(node: ast.stmt) -> bool:
    """Whether control never comes out behind a statement: `while True:` without a break."""
    return (
        isinstance(node, ast.While)
        and isinstance(node.test, ast.Constant)
        and bool(node.test.value)
        and not any(jumps(n, ast.Break) for n in node.body)
    )


def always_returns(body: Sequence[ast.stmt]) -> bool:
    last = body[-1] if body else None
    while isinstance(last, ast.If):
        if not always_returns(last.body):
            return False
        last = last.orelse[-1] if last.orelse else None
    return isinstance(last, ast.Return)


def is_elif(orelse: Sequence[ast.stmt]) -> bool:
    return len(orelse) == 1 and isinstance(orelse[0], ast.If)


def arms(node: ast.If) -> list[list[ast.stmt]]:
    """The bodies of `if`, `elif`, ..., and of `else`, which is empty where there is none."""
    found = [node.body]
    while len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        node = node.orelse[0]
        found.append(node.body)
    return [*found, node.orelse]


def assigned(body: Iterable[ast.stmt]) -> Names | None:
    """Names that have a value wherever control leaves these statements at their end; None where it never does."""
    found: Names = frozenset()
    for node in body:
        match node:
            case ast.Assign(targets=targets):
                found |= {name for target in targets for name in _stored(target)}
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                found |= {name}
            case ast.If():
                inner = assigned_in_every(arms(node))
                if inner is None:
                    return None
                found |= inner
            case ast.Return() | ast.Break() | ast.Continue():
                return None
    return found


def assigned_in_every(bodies: Iterable[Sequence[ast.stmt]]) -> Names | None:
    """Names that have a value whichever of the bodies control came through."""
    found = [names for names in map(assigned, bodies) if names is not None]
    return frozenset.intersection(*found) if found else None


def read_first(body: Iterable[ast.stmt], name: str) -> bool:
    """Whether these statements may read the value that `name` has before them."""
    return _first_use(body, name) == "read"


def _stored(target: ast.expr) -> Names:
    match target:
        case ast.Name(id=name):
            return frozenset((name,))
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return frozenset().union(*map(_stored, items))
    return frozenset()


def _reads(node: ast.AST | None, name: str) -> bool:
    return node is not None and any(
        isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) for n in ast.walk(node)
    )


def _first_use(body: Iterable[ast.stmt], name: str) -> str:
    """What becomes of a name: read, replaced (or control gone), or untouched."""
    for node in body:
        match node:
            case ast.If():
                uses = {_first_use(arm, name) for arm in arms(node)}
                if "read" in uses or any(_reads(t, name) for t in _tests(node)):
                    return "read"
                if uses == {"replaced"}:
                    return "replaced"
            case ast.For(target=ast.Name(id=target), iter=source) if target == name:
                return "read" if _reads(source, name) else "replaced"
            case ast.For(iter=source, body=inner) | ast.While(test=source, body=inner):
                if _reads(source, name) or _first_use(inner, name) == "read":
                    return "read"
            case ast.AugAssign(target=ast.Name(id=target), value=value):
                if target == name or _reads(value, name):
                    return "read"
            case _:
                if _reads(node, name):
                    return "read"
                if isinstance(node, ast.Return | ast.Break | ast.Continue) or name in (assigned([node]) or ()):
                    return "replaced"
    return "untouched"


def _tests(node: ast.If) -> list[ast.expr]:
    found = [node.test]
    while len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        node = node.orelse[0]
        found.append(node.test)
    return found
