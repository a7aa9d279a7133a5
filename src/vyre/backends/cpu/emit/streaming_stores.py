"""Which results go past the cache?

A store to memory that is not in the cache reads the line first. Where a result is too large to stay there anyway, x86
can write whole lines without reading them: a third less traffic for a kernel with one input. That pays where memory is
what a kernel waits for, and only for neighbours one after the other, because a line that is written in part is slow.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ....lower.kernel_ir import Buffer, Ins, Kernel, walk
from .instructions import STORAGE, vec

if TYPE_CHECKING:
    from .lanes import Lanes

PIECE = 16
"""Bytes of one such store of a vector, which must be aligned to them. NumPy's arrays are, but not to a whole line."""
FENCE = "llvm.x86.sse.sfence"
_LIGHT = 64
"""Instructions of a body that may wait for memory. Larger ones wait for themselves, and would be compiled twice."""
_SCALARS = {"i32": "i32", "float": "i32", "i64": "i64", "double": "i64"}


def streamed(kernel: Kernel) -> frozenset[Ins]:
    """The one store of each buffer that the kernel fills from the first element to the last."""
    items = list(walk(kernel.body))
    if len(items) > _LIGHT:
        return frozenset()
    stores = [i for i in items if isinstance(i, Ins) and i.op == "store"]
    count = Counter(i.attr for i in stores)
    return frozenset(i for i in stores if i.attr.name in kernel.stored and not i.attr.shared and count[i.attr] == 1)


def row(e: Lanes, ins: Ins, raw: str, at: str) -> bool:
    """Store a vector at `at`, if it may go past the cache where the buffer itself is aligned."""
    storage, size, index = STORAGE[ins.attr.element.name], ins.attr.element.size, ins.args[0]
    if ins not in e.streamed or index.op != "gid" or e.width * size % PIECE or e.kernel.workgroup[0] * size % PIECE:
        return False
    kind, lanes = vec(storage, e.width), PIECE // size
    e.past[ins.attr] = PIECE
    for first in range(0, e.width, lanes):
        part = raw
        if lanes < e.width:
            chosen = ", ".join(f"i32 {k}" for k in range(first, first + lanes))
            part = e.w.new(f"shufflevector {kind} {raw}, {kind} poison, <{lanes} x i32> <{chosen}>")
        where = e.w.new(f"getelementptr i8, ptr {at}, i64 {first * size}")
        e.w.line(f"store {vec(storage, lanes)} {part}, ptr {where}, align {PIECE}, !nontemporal !3")
    return True


def one(e: Lanes, ins: Ins, raw: str, at: str) -> bool:
    """Store one element, if it may go past the cache: the next one follows at once, in the same loop."""
    storage = STORAGE[ins.attr.element.name]
    if ins not in e.streamed or storage not in _SCALARS or e.shape.block > 1 or ins.args[0].op in ("gid", "wid"):
        return False
    word = _SCALARS[storage]
    raw = raw if word == storage else e.w.new(f"bitcast {storage} {raw} to {word}")
    e.past[ins.attr] = ins.attr.element.size
    e.w.line(f"store {word} {raw}, ptr {at}, align {ins.attr.element.size}, !nontemporal !3")
    return True


def choose(e: Lanes, past: dict[Buffer, int]) -> str:
    """Which version runs the tiles of a launch: the one whose stores go past the cache where the host asks for it and
    the memory is aligned."""
    wanted = e.enter("%stream", f"load i64, ptr {e.word(14)}")
    ok = e.enter("%streams", f"icmp ne i64 {wanted}, 0")
    for buffer in (b for b, alignment in past.items() if alignment == PIECE):
        address = e.enter(f"%address{buffer.slot}", f"ptrtoint ptr {e.pointer(buffer)} to i64")
        low = e.enter(f"%low{buffer.slot}", f"and i64 {address}, {PIECE - 1}")
        even = e.enter(f"%even{buffer.slot}", f"icmp eq i64 {low}, 0")
        ok = e.enter(f"%streams{buffer.slot}", f"and i1 {ok}, {even}")
    return e.enter("%body", f"select i1 {ok}, ptr @stream, ptr @fast")
