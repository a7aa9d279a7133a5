"""Short loops, several iterations at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....lower.kernel_ir import Ins, Loop
from .uniformity import SAME, Val, assigned

if TYPE_CHECKING:
    from .lanes import Lanes

_WORK = 48
"""Instructions of an unrolled body, about."""
_MOST = 8
_FREE = frozenset(("const", "index", "get", "set", "flush"))


def unrolled(e: Lanes, loop: Loop, start: Val, stop: Val) -> Val:
    """Write a loop over as many iterations as go in groups, where that pays; the counter from which to go on.

    All lanes share the counter, which is given in 64 bits. What is left is less than a group.
    """
    copies = _copies(e, loop)
    if copies < 2:
        return start
    w, before, entry = e.w, e.block, e.env
    head, inside, done = w.fresh("turns"), w.fresh("turns"), w.fresh("turns")
    e.jump(head)
    e.start(head)
    changed = assigned(loop.body)
    index, index_at = e.phis(start)
    phis = {local: e.phis(entry[local]) for local in changed if local in entry}
    header = entry.fork()
    header.own.update((local, val) for local, (val, _) in phis.items())
    after = Val(SAME, (w.new(f"add i64 {index.parts[0]}, {copies}"),))
    e.branch(w.new(f"icmp ule i64 {after.parts[0]}, {stop.parts[0]}"), inside, done)
    e.start(inside)
    e.env = header.fork()
    for k in range(copies):
        mark = len(e.trail)
        here = w.new(f"add i64 {index.parts[0]}, {k}") if k else index.parts[0]
        e.counters[id(loop)] = Val(SAME, (e.near(here),))
        e.lanes(loop.body)
        e.leave(mark)
    last, latch = e.env, e.block
    e.jump(head)
    e.fill_phis("u64", index, index_at, [(before, start), (latch, after)])
    for local, (val, at) in phis.items():
        e.fill_phis(local.dtype, val, at, [(before, entry[local]), (latch, last[local])])
    e.start(done)
    entry.own.update(header.own)
    e.env = entry
    return index


def _copies(e: Lanes, loop: Loop) -> int:
    """How many iterations to write side by side. Loops of a known length are the compiler's business."""
    if not e.fast or loop.live is not None or e.kernel.poll or loop.stop.op == loop.start.op == "const":
        return 1
    work = 1
    for item in loop.body:
        if not isinstance(item, Ins) or item.op in ("atomic", "trap", "return"):
            return 1
        if item.op not in _FREE:
            work += 1 if e.shape.level(item) == SAME else e.parts
    return min(_MOST, 1 << (max(_WORK // work, 1)).bit_length() - 1)
