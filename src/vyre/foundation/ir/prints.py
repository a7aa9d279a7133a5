"""What a program prints: records in a log, a buffer of its own behind all others.

A `print` of a kernel is a region of stores, whose name says what they mean; everything else about it is ordinary. So
it travels with the program, and who reads the log needs nothing but the program. The first word of the log counts the
words taken, and the next two the records for which no room was left. A record is the number of its `print`, counted
from 1, the invocation, and the values: one word each, low half first where there are two. Values of f64, which no word
holds, lie at the same place of a second log.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from .dtypes import DataType
from .nodes import Node, Region
from .program import BufferDecl, Program
from .visit import rewrite, walk_nodes

LOG, FLOAT_LOG = LOGS = "vyre_print", "vyre_print_f64"
LOG_WORDS = 1 << 16
"""256 KiB, which is five to ten thousand records."""
HEAD_WORDS, RECORD_HEAD = 3, 4
_MARK = "vyre.py.print "

Part = str
"""A text with `'` in front of it, or the name of the type of a value."""


def print_region(number: int, parts: Sequence[Part]) -> str:
    """The name of the region of the print with that number."""
    return _MARK + json.dumps([number, *parts], ensure_ascii=True)


def prints_of(program: Program) -> dict[int, tuple[Part, ...]]:
    """What each print of a program writes, by its number; empty for one that prints nothing."""
    return program._cached("prints", lambda: _prints_of(program))


def _prints_of(program: Program) -> dict[int, tuple[Part, ...]]:
    if all(b.name != LOG for b in program.buffers):
        return {}
    found: dict[int, tuple[Part, ...]] = {}
    for node in walk_nodes(program.entry):
        if _is_print(node):
            assert isinstance(node, Region)
            number, *parts = json.loads(node.generator.removeprefix(_MARK))
            found[number] = tuple(parts)
    return found


def without_prints(program: Program) -> Program:
    """The same program without what it prints."""
    return program._cached("without prints", lambda: _without_prints(program)) if prints_of(program) else program


def _without_prints(program: Program) -> Program:
    return program.replace(
        buffers=[b for b in program.buffers if not is_log(b)],
        entry=rewrite(program.entry, node=lambda n: () if _is_print(n) else n),
    )


def is_log(buffer: BufferDecl) -> bool:
    """Whether a buffer is one of the logs."""
    return buffer.name in LOGS


def _is_print(node: Node) -> bool:
    return isinstance(node, Region) and node.generator.startswith(_MARK)


def words_of(t: DataType) -> int:
    """Words that a value of this type takes in a record."""
    return 2 if t.name in ("u64", "i64") else 1
