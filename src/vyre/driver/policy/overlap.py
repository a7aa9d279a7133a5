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
