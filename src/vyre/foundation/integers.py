"""Whole numbers that every layer counts with."""

from __future__ import annotations

U32_MAX = 0xFFFFFFFF


def ceil_div(value: int, divisor: int) -> int:
    """Whole parts of `divisor` that hold `value`.

    >>> ceil_div(65537, 65536)
    2
    """
    return -(-value // divisor)


def round_up(value: int, step: int) -> int:
    """The smallest multiple of `step` that is not below `value`.

    >>> round_up(17, 16)
    32
    """
    return -(-value // step) * step
