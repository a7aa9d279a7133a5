"""What kernels index: buffers, arrays of each invocation, and both of small values."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ...ir.build import Buffer
from ...ir.dtypes import DataType
from ...ir.nodes import Var
from .types import SmallType


@dataclass(frozen=True, slots=True)
class LocalArray:
    """An array of each invocation, as one local for each element."""

    name: str
    element: DataType
    cells: tuple[Var, ...]
    call: ast.Call

    @property
    def count(self) -> int:
        return len(self.cells)


@dataclass(frozen=True, slots=True)
class Columns:
    """Small values in workgroup memory, or in an array of each invocation."""

    name: str
    element: SmallType
    parts: tuple[Buffer | LocalArray, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Small values in a parameter: the numbers of each lie next to each other."""

    buffer: Buffer
    element: SmallType

    @property
    def name(self) -> str:
        return self.buffer.name

    @property
    def width(self) -> int:
        return len(list(self.element.leaves()))

    @property
    def count(self) -> int:
        return self.buffer.decl.count // self.width


Memory = Buffer | LocalArray | Columns | Rows


def count_of(memory: Memory) -> int:
    """So many elements, where that is known while compiling; else 0."""
    return memory.decl.count if isinstance(memory, Buffer) else memory.count
