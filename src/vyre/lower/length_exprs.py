"""Numbers that follow from the lengths of buffers, as plain data that can be stored with code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from ..foundation.ir.dtypes import u32

if TYPE_CHECKING:
    from .kernel_ir import Ins

Share: TypeAlias = "list[Any]"
"""[operation, type, constant or slot, operands...]"""


def plain(value: Ins) -> Share:
    """A value for which `from_lengths` holds; it is a small tree."""
    at = value.attr.slot if value.op == "len" else value.attr
    return [value.op, value.dtype, at, *map(plain, value.args)]


def number(share: Share, lengths: Sequence[int]) -> int:
    """The value, for buffers of these lengths by slot."""
    return int(share[2]) if share[0] == "const" else _evaluator()(share, lengths)


@cache
def _evaluator() -> Callable[[Share, Sequence[int]], int]:
    """With the kernel form, which a process that loads its code from disk mostly does without."""
    from .kernel_ir import Buffer, Ins
    from .passes.full_stores import share_of

    def revived(share: Share) -> Ins:
        op, dtype, at, *args = share
        attr = Buffer("", at, u32) if op == "len" else at
        return Ins(op, dtype, tuple(map(revived, args)), attr)

    return lambda share, lengths: share_of(revived(share), lengths)
