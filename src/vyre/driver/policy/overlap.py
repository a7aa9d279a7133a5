"""Which work may go on beside other work? Ranges of real memory are compared, and never numbers of slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from .decision import Decision

OVERLAPPED, IN_TURN = "overlapped", "in turn"
OVERLAPPED_BYTES = 64 << 10
"""Inputs up to this size are copied sooner than a dispatch is started and waited for apart."""
WRITE_WRITE, READ_WRITTEN, WRITE_READ = (
    "both write the same memory",
    "it reads what is written",
    "it writes what is read",
)


_REASONS = WRITE_WRITE, READ_WRITTEN, WRITE_READ
"""The first of them is told."""


class Span(NamedTuple):
    """Bytes of a piece of memory: a resident handle's id, or 0 for the host, whose bytes are known by their address."""

    memory: int
    start: int
    stop: int


class Access(NamedTuple):
    """What work reads and writes."""

    reads: Sequence[Span] = ()
    writes: Sequence[Span] = ()


def conflict(earlier: Access, later: Access) -> str | None:
    """Why the later work has to wait for the earlier one; None where they know nothing of each other.

    >>> x, y = Span(1, 0, 8), Span(2, 0, 8)
    >>> conflict(Access(reads=[x], writes=[y]), Access(reads=[Span(2, 4, 6)]))
    'it reads what is written'
    >>> conflict(Access(reads=[x]), Access(reads=[x], writes=[y]))
    """
    if _meet(earlier.writes, later.writes):
        return WRITE_WRITE
    if _meet(earlier.writes, later.reads):
        return READ_WRITTEN
    if _meet(earlier.reads, later.writes):
        return WRITE_READ
    return None


def _meet(a: Sequence[Span], b: Sequence[Span]) -> bool:
    """Whether a range of one shares a byte with a range of the other."""
    if not a or not b:
        return False
    reach: dict[tuple[int, bool], int] = {}
    for memory, start, stop, side in sorted([(*span, False) for span in a] + [(*span, True) for span in b]):
        if stop <= start:
            continue
        if reach.get((memory, not side), start) > start:
            return True
        reach[memory, side] = max(reach.get((memory, side), stop), stop)
    return False


def conflict_among(before: Iterable[Access], later: Access) -> str | None:
    """The first reason to wait for one of several."""
    return next((found for each in before if (found := conflict(each, later)) is not None), None)


@lru_cache(256)
def choose_overlap(
    nbytes: int, *, asked: bool = False, never: str | None = None, no_gain: str | None = None, clash: str | None = None
) -> Decision:
    """Whether an input of a stream is uploaded while the one before is computed.

    `never`: why nothing can be, on this device. `clash`: why this one has to wait, as `conflict` says. `no_gain`: why
    it saves nothing there, which is no reason where the caller has `asked` for several on their way.
    """
    numbers = {"bytes": nbytes, "least_bytes": OVERLAPPED_BYTES}
    if never is not None:
        return Decision("upload", IN_TURN, never, numbers)
    if clash is not None:
        return Decision("upload", IN_TURN, f"{clash} by the input before", numbers)
    if asked:
        return Decision("upload", OVERLAPPED, "in_flight asks for it", numbers)
    if no_gain is not None:
        return Decision("upload", IN_TURN, no_gain, numbers)
    if nbytes < OVERLAPPED_BYTES:
        reason = f"its {nbytes} bytes are copied sooner than a dispatch is started apart"
        return Decision("upload", IN_TURN, reason, numbers)
    return Decision("upload", OVERLAPPED, f"its {nbytes} bytes go to the device while the input before runs", numbers)


class Wait(NamedTuple):
    """A step that another one has to wait for, and why."""

    step: int
    reason: str


def waits(accesses: Sequence[Access]) -> list[tuple[Wait, ...]]:
    """For each step, in order, which ones before it have to end first; those that these wait for are not all named.

    >>> x, y = Span(1, 0, 8), Span(2, 0, 8)
    >>> waits([Access(writes=[x]), Access(writes=[y]), Access(reads=[x])])
    [(), (), (Wait(step=0, reason='it reads what is written'),)]
    """
    seen: dict[int, list[tuple[int, int, int, bool]]] = {}
    found = []
    for k, access in enumerate(accesses):
        mine: dict[int, str] = {}
        for spans, writes in ((access.writes, True), (access.reads, False)):
            for memory, start, stop in spans:
                for begin, end, step, wrote in seen.get(memory, ()):
                    if start < stop and start < end and begin < stop and step != k and (writes or wrote):
                        reason = READ_WRITTEN if not writes else WRITE_WRITE if wrote else WRITE_READ
                        mine[step] = min(reason, mine.get(step, reason), key=_REASONS.index)
        for memory, start, stop in access.writes:  # who comes later waits for this one, which waits for those
            past = seen.setdefault(memory, [])
            past[:] = [p for p in past if not (start <= p[0] and p[1] <= stop)]
        for spans, writes in ((access.writes, True), (access.reads, False)):
            for memory, start, stop in spans:
                if start < stop:
                    seen.setdefault(memory, []).append((start, stop, k, writes))
        found.append(tuple(Wait(*each) for each in sorted(mine.items())))
    return found


class Break(NamedTuple):
    """The first step of a segment, one of the segment before that it waits for, and why."""

    earlier: int
    later: int
    reason: str


BESIDE = "beside"


def choose_arms(order: Sequence[Sequence[Wait]], how: str | None) -> list[Decision]:
    """For each step of a sequence whether it runs beside others. `how` the device can do that, if it can."""
    found = []
    runs, _ = segments(order)
    for run in runs:
        for k in run:
            others = ", ".join(str(each + 1) for each in run if each != k)
            if others:
                told = how or "but this device keeps the order"
                apart = f"step {others} has nothing to do with it: {told}"
                decided = Decision("arm", IN_TURN if how is None else BESIDE, apart)
            elif order[k]:
                last = order[k][-1]
                decided = Decision("arm", IN_TURN, f"{last.reason} by step {last.step + 1}")
            else:
                decided = Decision("arm", IN_TURN, "the next one waits for it")
            found.append(decided)
    return found


def segments(order: Sequence[Sequence[Wait]]) -> tuple[list[range], list[Break]]:
    """Steps as runs of neighbours of which none waits for another one, and where a run ends because one does.

    >>> segments([(), (), (Wait(0, READ_WRITTEN),)])
    ([range(0, 2), range(2, 3)], [Break(earlier=0, later=2, reason='it reads what is written')])
    """
    found: list[range] = []
    breaks: list[Break] = []
    start = 0
    for k, before in enumerate(order):
        inside = next((w for w in before if w.step >= start), None)
        if inside is not None:
            found.append(range(start, k))
            breaks.append(Break(inside.step, k, inside.reason))
            start = k
    return ([*found, range(start, len(order))] if order else []), breaks
