"""Memory that kernels index: buffers, arrays of each invocation, and both of small values.

An array of an invocation is locals, one for each element, while every index is known when the kernel is compiled, and
up to `MAX_CHOSEN` elements also otherwise: an element is chosen by comparing. Any other one is an array of the program.
Small values lie in columns, one array for each of their numbers; in a parameter they lie in rows, as the caller's do.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from ...ir.build import Buffer, Builder
from ...ir.dtypes import DataType, bool_, u32
from ...ir.nodes import Bitcast, Expr, Lit, Load, Select, lit
from ...ir.program import MAX_OWN_BYTES, Access, Part
from ..source import Place
from ..values import Const, Frame, Group, Scalar, Typed, Value, leaves, several, show
from .groups import GroupCompiler
from .memory import Columns, LocalArray, Memory, Rows, count_of
from .types import SmallType

T = TypeVar("T")
MAX_CELLS = 64
"""Elements of an array that may be locals."""
MAX_CHOSEN = 8
"""Elements that an index known only when the kernel runs chooses from by comparing."""


class _NeedsMemory(Exception):
    """This array cannot be locals after all."""

    def __init__(self, call: ast.Call) -> None:
        self.call = call


def with_arrays(build: Callable[[frozenset[ast.Call]], T]) -> T:
    """What `build` makes, once it knows which calls of `local` are arrays in memory."""
    in_memory: frozenset[ast.Call] = frozenset()
    while True:
        try:
            return build(in_memory)
        except _NeedsMemory as e:
            in_memory |= {e.call}


def zero(t: DataType) -> Expr:
    """What a local holds until it gets a value."""
    return lit(False if t == bool_ else 0, t)


def _key(memory: Memory) -> str:
    return memory.cells[0].name if isinstance(memory, LocalArray) else memory.name


class ArrayCompiler(GroupCompiler):
    """Compiles loads and stores."""

    in_memory: frozenset[ast.Call] = frozenset()
    """Calls of `local` whose arrays cannot be locals."""

    def __init__(self, builder: Builder, frame: Frame) -> None:
        super().__init__(builder, frame)
        self.arrays: list[str] = []  # of invocations, in the order in which they were made
        self.writes: Counter[str] = Counter()  # effects that are stores, by what they store to

    def forget_arrays(self, count: int) -> None:
        """Arrays made after the first `count` are gone: what was stored to them has no effect any more."""
        self.effects -= sum(self.writes.pop(name, 0) for name in self.arrays[count:])
        del self.arrays[count:]

    def elements(self, memory: Memory) -> Scalar:
        count = count_of(memory)
        if count:
            return Const(count)
        if isinstance(memory, Rows):
            return Typed(memory.buffer.length // memory.width, u32)
        assert isinstance(memory, Buffer)
        return Typed(memory.length, u32)

    # -- making

    def own_array(
        self, name: str, element: DataType | SmallType, count: int, call: ast.Call
    ) -> LocalArray | Columns | Buffer:
        """A new array of this invocation, zero."""
        if isinstance(element, SmallType):
            leaves = enumerate(zip(element.leaves(), element.paths(), strict=True))
            parts = [self._column(f"{name}_{k}", t, count, call, name, path) for k, (t, path) in leaves]
            return Columns(name, element, tuple(parts), count)
        return self._column(name, element, count, call, name)

    def _column(
        self, name: str, element: DataType, count: int, call: ast.Call, of: str, path: str = ""
    ) -> LocalArray | Buffer:
        """An array of numbers, which is all of the array `of` or, where there is a path, one field of its elements."""
        if count <= MAX_CELLS and call not in self.in_memory:
            cells = tuple(self.b.let(f"{name}_{k}", zero(element)) for k in range(count))
            self.cells.update(cell.name for cell in cells)
            self.parts |= {cell.name: Part(f"{of}[{k}]{path}", self.b.span) for k, cell in enumerate(cells)}
            self.arrays.append(cells[0].name)
            return LocalArray(name, element, cells, call)
        buffer = self.b.own(name, element, count)
        self.arrays.append(buffer.name)
        self.parts[buffer.name] = Part(f"{of}[]{path}", self.b.span)
        taken = sum(b.nbytes or 0 for b in self.b.buffers if b.is_own)
        if taken > MAX_OWN_BYTES:
            message = f"the local arrays of an invocation take {taken} bytes, and there are {MAX_OWN_BYTES}"
            raise self.fail(call, message, "make it smaller, or keep it in a buffer with a part for each invocation")
        if self.frame.depth or self.frame.conditional:
            span, self.b.span = self.b.span, None  # else the line would be seen in every turn
            with self.b.loop("k", 0, count) as k:
                self.b.store(buffer, k, zero(element))
            self.b.span = span
        return buffer

    def shared_array(self, name: str, element: DataType | SmallType, count: int) -> Columns | Buffer:
        """Memory of the workgroup."""
        if not isinstance(element, SmallType):
            return self.b.shared(name, element, count)
        parts = [self.b.shared(f"{name}_{k}", t, count) for k, t in enumerate(element.leaves())]
        return Columns(name, element, tuple(parts), count)

    # -- elements

    def load(self, memory: Memory, index: Expr, node: Place) -> Value:
        match memory:
            case LocalArray():
                return Typed(self._read_cell(memory, index), memory.element)
            case Columns(element=of, parts=parts):
                at = self.once(Typed(index, u32)).expr
                return self._grouped(of, [self.load(part, at, node) for part in parts])
            case Rows(buffer=buffer, element=of):
                if buffer.decl.access is Access.WRITE_ONLY:
                    fix = f"declare it InOut[{of}]"
                    raise self.fail(node, f"`{buffer.name}` is an Out and cannot be read", fix)
                at, inside = self._row(memory, index)
                found: list[Value] = []
                for k, t in enumerate(of.leaves()):
                    number: Expr = Load(buffer.name, at + k, dtype=buffer.element)
                    number = number if t == buffer.element else Bitcast(t, number)
                    found.append(Typed(number if inside is None else Select(inside, number, zero(t)), t))
                return self._grouped(of, found)
        return super().load(memory, index, node)

    def put(self, memory: Memory, index: Expr, value: Value, node: Place, what: str) -> None:
        """`memory[index] = value`, which is of the right form."""
        if not isinstance(memory, Columns | Rows) and isinstance(value, Group):
            raise self.fail(node, *several(value, show(node)))
        fitted = self.fitted(value, memory.element, node, what)
        if not isinstance(memory, Columns):
            self.effects += 1
            self.writes[_key(memory)] += 1
        match memory:
            case LocalArray():
                self._write_cell(memory, index, leaves(fitted)[0])
            case Columns(parts=parts):
                at = self.once(Typed(index, u32)).expr
                numbers = leaves(self._apart(fitted))
                for part, number in zip(parts, numbers, strict=True):
                    self.put(part, at, number, node, what)
            case Rows():
                self._put_row(memory, index, fitted)
            case Buffer():
                assert isinstance(fitted, Typed)
                self.b.store(memory, index, fitted.expr)

    def _apart(self, value: Value) -> Value:
        """A value that storing a part of it cannot change."""
        if isinstance(value, Group):
            return value._replace(items=tuple(map(self._apart, value.items)))
        return self.keep(value) if isinstance(value, Typed) and self._observes(value.expr) else value

    def _grouped(self, of: SmallType, numbers: list[Value]) -> Group:
        rest = iter(numbers)

        def group(t: SmallType) -> Group:
            return Group(tuple(group(x) if isinstance(x, SmallType) else next(rest) for x in t.types), t)

        return group(of)

    def _row(self, rows: Rows, index: Expr) -> tuple[Expr, Expr | None]:
        """Where the numbers of an element begin, and whether it is one. A product that wraps would be another."""
        if isinstance(index, Lit) and index.bits * rows.width + rows.width < 1 << 32:
            return lit(index.bits * rows.width, u32), None
        at = self.once(Typed(index, u32)).expr
        length = lit(rows.count, u32) if rows.count else rows.buffer.length // rows.width
        return at * rows.width, at < length

    def _put_row(self, rows: Rows, index: Expr, value: Value) -> None:
        at, inside = self._row(rows, index)
        numbers = [self._apart(n) for n in leaves(value)]

        def store() -> None:
            for k, number in enumerate(numbers):
                assert isinstance(number, Typed)
                word = number.expr if number.dtype == rows.buffer.element else Bitcast(rows.buffer.element, number.expr)
                self.b.store(rows.buffer, at + k, word)

        if inside is None:
            store()
        else:
            with self.b.if_(inside):
                store()

    # -- arrays that are locals

    def _cell_number(self, index: Expr) -> int | None:
        number = self.known_number(Typed(index, u32))
        return None if number is None else int(number)

    def _read_cell(self, array: LocalArray, index: Expr) -> Expr:
        known = self._cell_number(index)
        if known is not None:
            return array.cells[known] if known < array.count else zero(array.element)
        at = self._chosen_by(array, index)
        found: Expr = zero(array.element)
        for k, cell in reversed(list(enumerate(array.cells))):
            found = Select(at.eq(k), cell, found)
        return found

    def _write_cell(self, array: LocalArray, index: Expr, value: Scalar) -> None:
        assert isinstance(value, Typed)
        known = self._cell_number(index)
        if known is not None:
            if known < array.count:
                self.b.assign(array.cells[known], value.expr)
            return
        at, stored = self._chosen_by(array, index), self.keep(value).expr
        for k, cell in enumerate(array.cells):
            self.b.assign(cell, Select(at.eq(k), stored, cell))

    def _chosen_by(self, array: LocalArray, index: Expr) -> Expr:
        if array.count > MAX_CHOSEN:
            raise _NeedsMemory(array.call)
        return self.once(Typed(index, u32)).expr
