"""Numbers that follow from the lengths of buffers, as plain data that can be stored with code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from ..foundation.ir.dtypes import u32
from .kernel_ir import Buffer, Ins
from .passes.full_stores import share_of

Share: TypeAlias = "list[Any]"
"""[operation, type, constant or slot, operands...]"""


def plain(value: Ins) -> Share:
    """A value for which `from_lengths` holds; it is a small tree."""
    at = value.attr.slot if value.op == "len" else value.attr
    return [value.op, value.dtype, at, *map(plain, value.args)]


def number(share: Share, lengths: Sequence[int]) -> int:
    """The value, for buffers of these lengths by slot."""
    if share[0] == "const":
        return int(share[2])
    return share_of(_revived(share), lengths)


def _revived(share: Share) -> Ins:
    op, dtype, at, *args = share
    attr = Buffer("", at, u32) if op == "len" else at
    return Ins(op, dtype, tuple(map(_revived, args)), attr)
