"""What must a launch know of its code? Told while that is compiled, from the kernel form and from what was emitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...foundation.integers import U32_MAX
from ...lower.kernel_ir import Body, If, Ins, Kernel, Loop, Statement, walk
from ...lower.length_exprs import plain, plain_plane
from ...lower.passes.full_stores import from_lengths
from .build import ObjectFacts
from .run.cost import Cost

if TYPE_CHECKING:
    from .emit.kernel import Emitted

_ATOMIC = 32
"""Lanes do their atomics one after another."""
_SHRINKS = frozenset(("shr", "div", "rem", "and"))
"""Unsigned operations whose result is at most their first operand."""


def facts_of(kernel: Kernel, emitted: Emitted) -> ObjectFacts:
    slots = {b.name: b.slot for b in kernel.buffers}
    private = {}
    for item in walk(kernel.body):
        if isinstance(item, Ins) and item.op == "atomic" and item.attr[1].private and not item.attr[1].shared:
            private[item.attr[1].slot] = item.attr[0].name
    stored = {slots[name]: plain(share) for name, share in kernel.stored.items()}
    planes = {slots[name]: plain_plane(plane) for name, plane in kernel.planes.items()}
    return ObjectFacts(
        emitted.scratch_bytes, kernel.traps, not kernel.meets, stored, planes, private, cost_of(kernel), emitted.lanes
    )


def cost_of(kernel: Kernel) -> Cost:
    """The work of one invocation."""
    return _body(kernel.body)


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
