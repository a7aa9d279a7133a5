"""How much work is a launch at most? Counted before it starts, from the kernel's shape and the buffers' lengths.

The answer decides whether a dispatch is worth waking threads for, and whether its caller may be inside it: the main
thread sees no signal while it runs machine code, so it never runs code there whose time has no bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from ....foundation.integers import U32_MAX
from ....lower.kernel_ir import Body, If, Ins, Kernel, Loop, Statement
from ....lower.length_exprs import number, plain
from ....lower.passes.full_stores import from_lengths

Cost: TypeAlias = "list[Any]"
"""[instructions, [[largest constant, [slots of lengths], share, cost of the body], ...]]: plain data, stored with code.

A loop runs at most as often as the smallest of its constant, those lengths, and the share if there is one.
"""
_ATOMIC = 32
"""Lanes do their atomics one after another."""
_SHRINKS = frozenset(("shr", "div", "rem", "and"))
"""Unsigned operations whose result is at most their first operand."""


def cost_of(kernel: Kernel) -> Cost:
    """The work of one invocation."""
    return _body(kernel.body)


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


def _body(body: Body) -> Cost:
    """Both sides of a branch count: lanes of one vector may take both."""
    root: Cost = [0, []]
    unvisited: list[tuple[Statement, Cost]] = [(item, root) for item in body]
    while unvisited:
        item, into = unvisited.pop()
        into[0] += _ATOMIC if item.op == "atomic" else 1
        if isinstance(item, If):
            unvisited.extend((inner, into) for inner in (*item.then, *item.orelse))
        elif isinstance(item, Loop):
            most, slots = _bound(item.stop)
            inside: Cost = [0, []]
            share = plain(item.stop) if from_lengths(item.stop) else None
            into[1].append([most, sorted(slots), share, inside])
            unvisited.extend((inner, inside) for inner in item.body)
    return root


def _bound(value: Ins) -> tuple[int, frozenset[int]]:
    """A constant that a u32 never exceeds, and slots of buffers whose lengths it never exceeds either."""
    most, slots = U32_MAX, frozenset[int]()
    unvisited = [value]
    while unvisited:
        at = unvisited.pop()
        if at.op == "const" and at.dtype == "u32":
            most = min(most, at.attr)
        elif at.op == "len":
            if at.attr.shared:
                most = min(most, at.attr.count)
            else:
                slots |= {at.attr.slot}
        elif at.op == "min" and at.dtype == "u32":
            unvisited.extend(at.args)
        elif at.op in _SHRINKS and at.dtype == "u32":
            unvisited.append(at.args[0])
            if at.op == "and":
                unvisited.append(at.args[1])
    return most, slots
