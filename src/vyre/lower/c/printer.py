"""A kernel as text in a language with braces. A subclass adds the parts that differ between languages.

A value that is used once, where it was made, is printed inside the expression that uses it, until that gets long. Every
other one gets a name. A load gets one too, so that it stays before the stores that follow it. A value that is used
outside the body that it is made in gets a variable.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from ..kernel_ir import Body, Buffer, If, Ins, Kernel, Local, Loop, Statement, bodies, operands, walk

T = TypeVar("T", Buffer, Local)
_ATOMS = frozenset(("const", "gid", "wid", "lid", "lane", "len", "index"))
"""Printed wherever they are used."""
_NAMED = frozenset(("load", "atomic", "subgroup", "get"))
"""They happen where they stand, so they are not moved."""
_LONG = 72
"""Characters of an expression that gets a name although it is used once."""
_DEEP = 6
"""Parentheses inside each other, likewise: compilers count them."""


class Printer(ABC):
    """Prints the body of one kernel. The text of a value, as given to the hooks, can stand anywhere as an operand."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.lines: list[str] = []
        self.texts: dict[Ins, str] = {}
        self.buffers = _names("buf", kernel.buffers)
        """Buffer -> its name; `len_...` is made from the same word."""
        self.locals = _names("var", _locals(kernel.body))
        self.loops: dict[Loop, str] = {}
        """Loop -> the name of its counter."""
        self.origin: dict[Loop, Loop] = {}
        """The loop that the counter in the body of this one belongs to, where it is another one."""
        self._uses = Counter(a for item in walk(kernel.body) for a in operands(item))
        self._home = _homes(kernel.body)
        self._strays = _strays(kernel.body)
        self._variables: dict[str, str] = {}
        self._depth: dict[Ins, int] = {}
        self._count = 0
        self._inside = 1

    # -- hooks

    @abstractmethod
    def value(self, item: Ins, args: Sequence[str]) -> str:
        """A pure instruction as an operand: an atom, a call, or in parentheses."""

    @abstractmethod
    def define(self, item: Ins, args: Sequence[str], name: str | None) -> Iterable[str]:
        """Lines that do a load, atomic or subgroup operation and name its value; no name: the value is not used."""

    @abstractmethod
    def act(self, item: Ins, args: Sequence[str]) -> Iterable[str]:
        """Lines of a store, barrier, trap or return."""

    @abstractmethod
    def constant(self, dtype: str, name: str, text: str) -> str:
        """A line that names a value for good."""

    @abstractmethod
    def variable(self, dtype: str, name: str) -> str:
        """A line that declares a local, as zero."""

    @abstractmethod
    def loop_head(self, loop: Loop, name: str, start: str, stop: str) -> str:
        """The line that opens a loop, ending in a brace."""

    @abstractmethod
    def truth(self, dtype: str, text: str) -> str:
        """A bool or u32 as a condition."""

    def branch(self, item: If) -> str:
        """The condition of a branch."""
        return self.bare(self.truth(item.condition.dtype, self.texts[item.condition]))

    def assigned(self, item: Ins, text: str) -> str:
        """The value that a local is set to, as an operand."""
        return self.bare(text)

    def before(self, item: If | Loop) -> Iterable[str]:
        """Lines before a branch or a loop."""
        return ()

    def turn(self, loop: Loop) -> Iterable[str]:
        """Lines at the start of each turn of a loop, such as a look at the stop flag."""
        if loop.live is not None:
            yield f"if (!({self.bare(self.truth(loop.live.dtype, self.locals[loop.live]))})) {{ break; }}"

    def end(self, item: If | Loop, body: Body) -> Iterable[str]:
        """Lines at the end of a body that is not empty."""
        return ()

    # -- printing

    def print(self) -> list[str]:
        """The lines of the body, indented once."""
        stack: list[Iterator[Statement | str]] = [iter(self.kernel.body)]
        while stack:
            item = next(stack[-1], None)
            if item is None:
                stack.pop()
            elif isinstance(item, str):
                self._inside -= item.startswith("}")
                self.put(item)
                self._inside += item.endswith("{")
            elif isinstance(item, Ins):
                self._instruction(item)
            else:
                for line in self.before(item):
                    self.put(line)
                self.put(self._open(item))
                self._inside += 1
                for line in self._begin(item):
                    self.put(line)
                stack.append(self._parts(item))
        variables = {name: local.dtype for local, name in self.locals.items()} | self._variables
        return [f"    {self.variable(dtype, name)}" for name, dtype in variables.items()] + self.lines

    def put(self, line: str) -> None:
        self.lines.append("    " * self._inside + line)

    def fresh(self, prefix: str = "v") -> str:
        """A name that nothing else has."""
        self._count += 1
        return f"{prefix}{self._count}"

    def naming(self, dtype: str, name: str, text: str) -> str:
        """A line that gives a value its name."""
        return f"{name} = {text};" if name in self._variables else self.constant(dtype, name, text)

    def length(self, buffer: Buffer) -> str:
        """The name of a buffer's length."""
        return "len" + self.buffers[buffer].removeprefix("buf")

    def bare(self, text: str) -> str:
        """An operand where parentheses around all of it say nothing."""
        if not (text.startswith("(") and text.endswith(")")):
            return text
        level = 0
        for k, c in enumerate(text):
            level += (c == "(") - (c == ")")
            if level == 0 and k < len(text) - 1:
                return text
        return text[1:-1]

    def _open(self, item: If | Loop) -> str:
        if isinstance(item, If):
            return f"if ({self.branch(item)}) {{"
        name = self.loops[self.origin.get(item, item)] = self.fresh("i")
        return self.loop_head(item, name, self.bare(self.texts[item.start]), self.texts[item.stop])

    def _parts(self, item: If | Loop) -> Iterator[Statement | str]:
        """What follows the opening brace, up to the last closing one."""
        for k, body in enumerate(bodies(item)):
            if k and body:
                yield "} else {"
            yield from body
            if body:
                yield from self.end(item, body)
        yield "}"

    def _begin(self, item: If | Loop) -> Iterable[str]:
        if isinstance(item, Loop):
            yield from self.turn(item)

    def _instruction(self, item: Ins) -> None:
        args = [self.texts[a] for a in item.args]
        if item.op == "set":
            self.put(f"{self.locals[item.attr]} = {self.assigned(item, args[0])};")
        elif not item.dtype:
            for line in self.act(item, args):
                self.put(line)
        elif item.op == "index":
            self.texts[item] = self.loops[item.attr]
        elif item.op in _ATOMS:
            self.texts[item] = self.value(item, args)
        elif item.op in _NAMED:
            self._named(item, args)
        elif self._uses[item]:
            self._pure(item, args)

    def _named(self, item: Ins, args: Sequence[str]) -> None:
        wanted = self._uses[item] > 0
        if not wanted and item.op in ("load", "get"):
            return
        name = self.texts[item] = self._name(item) if wanted else ""
        if item.op == "get":
            self.put(self.naming(item.dtype, name, self.locals[item.attr]))
            return
        for line in self.define(item, [self.bare(a) for a in args], name or None):
            self.put(line)

    def _pure(self, item: Ins, args: Sequence[str]) -> None:
        text = self.value(item, args)
        depth = 1 + max((self._depth.get(a, 0) for a in item.args), default=0)
        if self._uses[item] == 1 and self._home[item] and len(text) <= _LONG and depth <= _DEEP:
            self.texts[item], self._depth[item] = text, depth
            return
        name = self.texts[item] = self._name(item)
        self.put(self.naming(item.dtype, name, self.bare(text)))

    def _name(self, item: Ins) -> str:
        name = self.fresh()
        if item in self._strays:
            self._variables[name] = item.dtype
        return name


def _locals(body: Body) -> list[Local]:
    return list(dict.fromkeys(i.attr for i in walk(body) if isinstance(i, Ins) and i.op in ("get", "set")))


def _strays(body: Body) -> set[Ins]:
    """Values that are used outside the body that they are made in, and the bodies inside that."""
    made: set[Ins] = set()  # in the bodies that are open
    found: set[Ins] = set()
    stack: list[tuple[list[Ins], Iterator[Statement]]] = [([], iter(body))]
    while stack:
        here, rest = stack[-1]
        item = next(rest, None)
        if item is None:
            made.difference_update(here)
            stack.pop()
            continue
        found.update(a for a in operands(item) if a not in made)
        if isinstance(item, Ins):
            made.add(item)
            here.append(item)
        stack.extend(([], iter(inner)) for inner in reversed(bodies(item)))
    return found


def _homes(body: Body) -> Counter[Ins]:
    """How often each value is used in the very body that it is made in."""
    found: Counter[Ins] = Counter()
    unvisited = [body]
    while unvisited:
        here = unvisited.pop()
        mine = {item for item in here if isinstance(item, Ins)}
        for item in here:
            found.update(a for a in operands(item) if a in mine)
            unvisited.extend(bodies(item))
    return found


def _names(prefix: str, items: Iterable[T]) -> dict[T, str]:
    """Distinct names that say what the user called it, in letters that every language has."""
    taken: dict[str, int] = {}  # with the number that the next one of this name gets
    found: dict[T, str] = {}
    for item in items:
        word = name = f"{prefix}_{re.sub(r'[^0-9A-Za-z]', '_', item.name)[:48]}"
        while name in taken:
            taken[word] += 1
            name = f"{word}_{taken[word]}"
        taken[name] = 1
        found[item] = name
    return found
