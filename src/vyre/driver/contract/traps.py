"""Which invocations trapped? Words that a launch leaves, and what the host reads from them.

An invocation that traps counts itself, and offers its number to lists that keep the lowest numbers. A list is
`MOST_TRAPS` words, each the complement of a number and a piece of what the invocation tells, so that 0 is an empty word
and a larger word comes first. To offer is to go through the list with atomic maxima and to carry on with the smaller
word: whatever the order, the list ends up sorted and complete. Lists of the same numbers and of other pieces have them
in the same order, which puts what was told together again. So the same is told on every device, without locks and
within a fixed size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from math import prod

from ...errors import MOST_TRAPS, Trap, Trapped
from .values import Dims

TOLD_BITS = 64
"""Of each invocation: the index of the tag, and the address."""
HEAD_WORDS = 8
"""Before the lists of a device: turn of the first trap (0: none), how many in that turn, invocations along x, along y,
bits of a piece, the turn that runs now, two words that are free."""
NUMBERS_AT = 8
"""The byte from which on the host says of each turn what `trap_numbers` has."""
_BITS = 16, 8, 4, 2, 1
_MASK = 0xFFFFFFFF
_ENOUGH = 16 * MOST_TRAPS


def piece_bits(invocations: int) -> int:
    """Bits of a piece, in words that also hold the number of an invocation; 0: there is no room, none is told.

    >>> [piece_bits(n) for n in (1, 65_535, 65_536, 1 << 24, (1 << 31) - 1, 1 << 31)]
    [16, 16, 8, 4, 1, 0]
    """
    return next((bits for bits in _BITS if invocations < 1 << 32 - bits), 0)


def trap_numbers(grid: Dims, workgroup: Dims, turn: int = 1) -> bytes:
    """What an invocation that traps has to know: invocations along x and y, bits of a piece, and the turn."""
    row, rows = ((g * w) & _MASK for g, w in zip(grid[:2], workgroup[:2], strict=True))
    return struct.pack("<4I", row, rows, piece_bits(prod(grid) * prod(workgroup)), turn)


def trap_words(grid: Dims, workgroup: Dims, *, grows: bool = False) -> bytes:
    """What a launch over this grid is given, in which nothing trapped yet; `grows`: the grid may be any other."""
    bits = min(_BITS) if grows else piece_bits(prod(grid) * prod(workgroup))
    lists = TOLD_BITS // bits if bits else 0
    return bytes(NUMBERS_AT) + trap_numbers(grid, workgroup) + bytes(8 + 4 * MOST_TRAPS * lists)


def require_no_trap(tags: Sequence[str], data: object, *, counted: bool) -> None:
    """Raise if one was sprung. `counted`: each invocation ran to its end or its trap, and not to that of another."""
    words = memoryview(data).cast("B").cast("I")  # type: ignore[arg-type]
    if not words[0]:
        return
    _, count, row, rows, bits, *_ = words[:HEAD_WORDS]
    if not bits:
        raise Trap(
            "the program trapped",
            fix="correct the input or the condition that leads to this trap",
            tag=" or ".join(tags),
            trapped=count,
        )
    first = told(words[HEAD_WORDS:], bits, 32, tags, row, rows)
    raise Trap.of(first, count) if counted else Trap.of(first[:1])


class Noted:
    """The same for code that runs on the host."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[Trapped] = []

    def add(self, found: Iterable[Trapped], count: int = 1) -> None:
        """So many trapped, `found` among them: all that may be one of the first."""
        self.count += count
        self._first += found
        if len(self._first) > _ENOUGH:
            self._first = self._ordered()

    def trap(self) -> Trap | None:
        return Trap.of(self._ordered(), self.count) if self.count else None

    def _ordered(self) -> list[Trapped]:
        return sorted(self._first, key=lambda one: one.invocation[::-1])[:MOST_TRAPS]


def told(words: Sequence[int], bits: int, width: int, tags: Sequence[str], row: int, rows: int) -> list[Trapped]:
    """What lists of words of this width hold, the lowest number first."""
    found = []
    for k in range(MOST_TRAPS):
        if not words[k]:
            break
        number = value = 0
        for n in range(TOLD_BITS // bits):
            word = ~words[n * MOST_TRAPS + k] & (1 << width) - 1
            number, piece = word >> bits, word & (1 << bits) - 1
            value |= piece << n * bits
        place = number % row, number // row % rows, number // (row * rows)
        found.append(Trapped(tags[value & _MASK], value >> 32, place))
    return found
