"""What does one operation do to the registers of an invocation? Small functions, of which a step of a tape is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ....errors import DispatchFailed, Trap, Trapped
from ....foundation.integers import ceil_div
from ....foundation.ir import nodes as ir
from ....foundation.ir.dtypes import DataType
from ....foundation.ir.ops import AtomicOp
from ....foundation.ir.program import BufferDecl
from ....foundation.meaning import arith
from ....foundation.meaning.subgroup import SUBGROUP_WIDTH, reduction_offsets
from .races import Site

Registers = list[Any]
Op = Callable[[Registers], None]

# The first registers are the same in every program.
OOB, LANE, DETECTOR = 0, 1, 2
"""Counters of absorbed accesses (loads, stores, atomics), the invocation itself, the race detector if there is one."""
GID, WG, LID, SUBGROUP_LANE = 3, 6, 9, 12
FIRST_FREE = 13


class BufferRegisters(NamedTuple):
    """Where a buffer's bytes, its element count and (for the race detector) its locations are."""

    decl: BufferDecl
    data: int
    length: int
    locations: int


def move(out: int, a: int) -> Op:
    def run(r: Registers) -> None:
        r[out] = r[a]

    return run


def unary(f: Callable[[Any], Any], out: int, a: int) -> Op:
    def run(r: Registers) -> None:
        r[out] = f(r[a])

    return run


def binary(f: Callable[[Any, Any], Any], out: int, a: int, b: int) -> Op:
    def run(r: Registers) -> None:
        r[out] = f(r[a], r[b])

    return run


def select(out: int, condition: int, a: int, b: int) -> Op:
    def run(r: Registers) -> None:
        r[out] = r[a] if r[condition] else r[b]

    return run


def fma(f: Callable[[Any, Any, Any], Any], out: int, a: int, b: int, c: int) -> Op:
    def run(r: Registers) -> None:
        r[out] = f(r[a], r[b], r[c])

    return run


def load(buffer: BufferRegisters, out: int, index: int, traced: bool, site: Site) -> Op:
    decl, data, count, locations = buffer
    read, zero, size = arith.reader(decl.element), arith.default(decl.element), decl.element.size or 0
    name = decl.name

    def run(r: Registers) -> None:
        i = r[index]
        if i < r[count]:
            r[out] = read(r[data], i * size)
        else:
            r[out] = zero
            r[OOB][0] += 1

    def traced_run(r: Registers) -> None:
        i = r[index]
        if i < r[count]:
            r[DETECTOR].touch(r[locations], name, i, r[LANE], "load", site)
        run(r)

    return traced_run if traced and decl.writable else run


def store(buffer: BufferRegisters, index: int, value: int, traced: bool, site: Site) -> Op:
    decl, data, count, locations = buffer
    write, size, name = arith.writer(decl.element), decl.element.size or 0, decl.name

    def run(r: Registers) -> None:
        i = r[index]
        if i < r[count]:
            write(r[data], i * size, r[value])
        else:
            r[OOB][1] += 1

    def traced_run(r: Registers) -> None:
        i = r[index]
        if i < r[count]:
            r[DETECTOR].touch(r[locations], name, i, r[LANE], "store", site)
        run(r)

    return traced_run if traced else run


def atomic(
    op: AtomicOp,
    buffer: BufferRegisters,
    out: int,
    index: int,
    value: int,
    expected: int | None,
    uses_old: bool,
    traced: bool,
    site: Site,
) -> Op:
    decl, data, count, locations = buffer
    read, write = arith.reader(decl.element), arith.writer(decl.element)
    change, size, name, kind = arith.atomic(op, decl.element), decl.element.size or 0, decl.name, op.text

    def run(r: Registers) -> None:
        i = r[index]
        if i >= r[count]:
            r[out] = 0
            r[OOB][2] += 1
            return
        old = read(r[data], i * size)
        if expected is None or old == r[expected]:
            write(r[data], i * size, change(old, r[value]))
        r[out] = old

    def traced_run(r: Registers) -> None:
        i = r[index]
        if i < r[count]:
            r[DETECTOR].touch(r[locations], name, i, r[LANE], kind, site, uses_old)
        run(r)

    return traced_run if traced else run


def trap(address: int, tag: str) -> Op:
    def run(r: Registers) -> None:
        raise Trap.of([Trapped(tag, r[address], r[LANE].gid)])

    return run


# ---- bytes ----------------------------------------------------------------------------------------------------------


def _touch_bytes(r: Registers, b: BufferRegisters, start: int, end: int, kind: str, site: Site) -> None:
    """Tell the race detector about a range of bytes."""
    if not b.decl.writable or start >= end:
        return
    size = b.decl.element.size or 1
    for i in range(start // size, ceil_div(end, size)):
        r[DETECTOR].touch(r[b.locations], b.decl.name, i, r[LANE], kind, site)


def _bytes_of(r: Registers, b: BufferRegisters, start: int, end: int) -> bytes:
    """Bytes [start, end), zero beyond the end of the buffer."""
    nbytes = r[b.length] * (b.decl.element.size or 0)
    return bytes(r[b.data][start : min(end, nbytes)]).ljust(end - start, b"\0")


def async_start(
    node: ir.AsyncLoad | ir.AsyncStore,
    source: BufferRegisters,
    destination: BufferRegisters,
    offset: int,
    size: int,
    traced: bool,
    site: Site,
) -> Op:
    """The payload is taken now and kept by the invocation; only what fits the destination is kept."""
    loads, tag = isinstance(node, ir.AsyncLoad), node.tag

    def run(r: Registers) -> None:
        pending = r[LANE].pending
        if tag in pending:
            raise DispatchFailed(
                f"an async copy with tag {tag!r} is already in flight",
                fix="wait for the first copy, or use another tag",
                invocation=r[LANE].gid,
            )
        begin, to = (r[offset], 0) if loads else (0, r[offset])
        room = r[destination.length] * (destination.decl.element.size or 0) - to
        end = begin + max(0, min(r[size], room))
        if traced:
            readable = r[source.length] * (source.decl.element.size or 0)
            _touch_bytes(r, source, begin, min(end, readable), "load", site)
        pending[tag] = (destination, to, _bytes_of(r, source, begin, end))

    return run


def async_wait(tag: str, traced: bool, site: Site) -> Op:
    def run(r: Registers) -> None:
        pending = r[LANE].pending
        if tag not in pending:
            raise DispatchFailed(
                f"a wait for async copy {tag!r}, which was not started",
                fix="start the copy on every path that leads to the wait",
                invocation=r[LANE].gid,
            )
        destination, to, payload = pending.pop(tag)
        if traced:
            _touch_bytes(r, destination, to, to + len(payload), "store", site)
        r[destination.data][to : to + len(payload)] = payload

    return run


def copy(source: BufferRegisters, destination: BufferRegisters, traced: bool, site: Site) -> Op:
    """The whole of one buffer into another, as far as both reach."""

    def run(r: Registers) -> None:
        source_nbytes = r[source.length] * (source.decl.element.size or 0)
        nbytes = min(source_nbytes, r[destination.length] * (destination.decl.element.size or 0))
        if traced:
            _touch_bytes(r, source, 0, nbytes, "load", site)
            _touch_bytes(r, destination, 0, nbytes, "store", site)
        r[destination.data][:nbytes] = _bytes_of(r, source, 0, nbytes)

    return run


# ---- subgroups ------------------------------------------------------------------------------------------------------


def settle(e: ir.Expr, dtype: DataType) -> Callable[[list[Any]], list[Any]]:
    """How 32 lanes' operands (None for a missing lane) become 32 results."""
    match e:
        case ir.SubgroupReduce(op=op):
            combine, identity = arith.reduce(op, dtype), arith.reduce_identity(op, dtype)
            distances = reduction_offsets(SUBGROUP_WIDTH)

            def reduce(lanes: list[Any]) -> list[Any]:
                v = [identity if x is None else x[0] for x in lanes]
                for d in distances:
                    v = [combine(v[i], v[i ^ d]) for i in range(SUBGROUP_WIDTH)]
                return v

            return reduce
        case ir.SubgroupShuffle():
            zero = arith.default(dtype)

            def shuffle(lanes: list[Any]) -> list[Any]:
                found = [lanes[x[1]] if x is not None and x[1] < SUBGROUP_WIDTH else None for x in lanes]
                return [zero if x is None else x[0] for x in found]

            return shuffle
        case _:

            def ballot(lanes: list[Any]) -> list[Any]:
                return [sum(1 << i for i, x in enumerate(lanes) if x is not None and x[0])] * SUBGROUP_WIDTH

            return ballot
