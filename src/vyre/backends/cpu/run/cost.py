"""How much work is a launch at most? Counted before it starts, from the kernel's shape and the buffers' lengths.

The answer decides whether a dispatch is worth waking threads for, and whether its caller may be inside it: the main
thread sees no signal while it runs machine code, so it never runs code there whose time has no bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from ....foundation.integers import U32_MAX
from ....lower.length_exprs import number

Cost: TypeAlias = "list[Any]"
"""[instructions, [[largest constant, [slots of lengths], share, cost of the body], ...]]: plain data, stored with code.

A loop runs at most as often as the smallest of its constant, those lengths, and the share if there is one.
"""


def work(cost: Cost, lengths: Sequence[int], invocations: int) -> float:
    """Instructions that so many invocations execute at most."""
    if not cost[1]:
        return float(cost[0] * invocations)
    return invocations * _once(cost, lengths)


def _once(cost: Cost, lengths: Sequence[int]) -> float:
    total = float(cost[0])
    stack: list[tuple[float, Cost]] = [(1.0, inner) for inner in cost[1]]
    while stack:
        times, (most, slots, share, inner) = stack.pop()
        if most == U32_MAX and not slots and share is None:
            return math.inf
        times *= min([most, *(lengths[s] for s in slots), *([] if share is None else [number(share, lengths)])])
        total += times * (inner[0] + 1)
        stack.extend((times, deeper) for deeper in inner[1])
    return total
