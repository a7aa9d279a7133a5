"""Did an iteration change anything? The device compares, and tells it in one word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..driver.plan.binding import Binding, BindingRole
from ..driver.plan.grid import boxes
from ..foundation.integers import ceil_div
from ..foundation.ir.build import Builder
from ..foundation.ir.dtypes import u32
from ..foundation.ir.nodes import BinOp, InvocationId, lit
from ..foundation.ir.ops import AtomicOp, BinaryOp
from ..foundation.ir.program import Program

if TYPE_CHECKING:
    from .backend import OffloadBackend
    from .device import Batch, Code, Device, Memory
    from .work import Work

EVERY = 32
"""Launches between the first looks: to compare, and to read a word back, takes the time of a few."""
_GROUP = 256
_WORD = 4


def is_written(b: Binding) -> bool:
    """Whether a program may change the buffer."""
    return b.role in (BindingRole.OUTPUT, BindingRole.INPUT_OUTPUT, BindingRole.PERSISTENT)


def compares() -> Program:
    """Two buffers of words, and a word that becomes 1 where they differ."""
    b = Builder(_GROUP)
    now, before, changed = b.read("now", u32), b.read("before", u32), b.read_write("changed", u32, 1)
    at = InvocationId(0)
    with b.if_(at < now.length), b.if_(BinOp(BinaryOp.NE, now[at], before[at])):
        b.atomic(AtomicOp.OR, changed, lit(0), lit(1))
    return b.program()


class Compared:
    """Memory of a dispatch as it was before an iteration, and code that compares it with what is there after it."""

    def __init__(self, backend: OffloadBackend, work: Work, written: Sequence[tuple[Memory, int]]) -> None:
        """`written` is what the program may change, with its length in bytes; our memory ends with a whole word."""
        self._device: Device = work.session.device
        self._code: Code = work.session.comparing(backend)
        self._pairs = [(m, work.take(n), ceil_div(n, _WORD)) for m, n in written if n]
        self._changed: Memory = work.take(_WORD)

    def remember(self, batch: Batch) -> None:
        for memory, copy, words in self._pairs:
            batch.copy(memory, 0, copy, 0, _WORD * words)

    def compare(self, batch: Batch) -> None:
        """Compare, and read the word."""
        batch.zero(self._changed, 0, _WORD)
        for memory, copy, words in self._pairs:
            grid = ceil_div(words, _GROUP), 1, 1
            for base, size in boxes(grid, self._device.most_groups):
                batch.launch(self._code, [memory, copy, self._changed], (words, words, 1), base, size)
        batch.read(self._changed, 0, _WORD)
