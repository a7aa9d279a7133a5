"""Which copies does a list of transfers need? Neighbours in one piece of memory become one, and no byte changes.

Pure: offsets and lengths in, copies out. Memory is known by the id of its handle, and never joined across handles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..plan.bounds import Checked

_BOUNDS = Checked("resident transfer", "split the transfer into smaller ranges")
FUSED_BYTES = 1 << 16
"""Ranges up to this size are joined: a copy of more takes longer than to ask for it."""


class ResidentTransferInterval(NamedTuple):
    """Bytes of resident memory."""

    handle_id: int
    src: int
    byte_len: int


class ResidentTransferView(NamedTuple):
    """Where a range that was asked for lies: in which copy, and where in it."""

    copy_slot: int = 0
    byte_offset: int = 0
    byte_len: int = 0


@dataclass(frozen=True, slots=True)
class FusedResidentTransfers:
    """The copies that serve some ranges, and each range in its copy, in the order in which they were asked for."""

    copies: tuple[ResidentTransferInterval, ...]
    views: tuple[ResidentTransferView, ...]

    @property
    def bytes(self) -> int:
        return sum(c.byte_len for c in self.copies)


def fuse_resident_transfer_intervals(
    requested: Sequence[ResidentTransferInterval], most_bytes: int | None = None
) -> FusedResidentTransfers:
    """As few copies as touching and overlapping ranges need. Ranges of more than `most_bytes` keep one of their own.

    >>> asked = [ResidentTransferInterval(7, 100, 4), ResidentTransferInterval(7, 104, 8)]
    >>> fuse_resident_transfer_intervals(asked).copies
    (ResidentTransferInterval(handle_id=7, src=100, byte_len=12),)
    """
    order = sorted((k for k, r in enumerate(requested) if r.byte_len), key=lambda k: requested[k][:2])
    copies: list[ResidentTransferInterval] = []
    views = [ResidentTransferView()] * len(requested)
    open_slot: int | None = None
    for k in order:
        r = requested[k]
        end = _BOUNDS.add(r.src, r.byte_len, f"pointer arithmetic of memory {r.handle_id}")
        alone = most_bytes is not None and r.byte_len > most_bytes
        last = None if open_slot is None or alone else copies[open_slot]
        if last is not None and last.handle_id == r.handle_id and r.src <= last.src + last.byte_len:
            assert open_slot is not None
            reached = max(last.src + last.byte_len, end)
            copies[open_slot] = last._replace(byte_len=reached - last.src)
            views[k] = ResidentTransferView(open_slot, r.src - last.src, r.byte_len)
            continue
        copies.append(r)
        views[k] = ResidentTransferView(len(copies) - 1, 0, r.byte_len)
        if not alone:
            open_slot = len(copies) - 1
    return FusedResidentTransfers(tuple(copies), tuple(views))


class ResidentUploadCopy(NamedTuple):
    """Bytes for resident memory; what was joined is a copy of our own."""

    handle_id: int
    dst: int
    data: memoryview | bytearray


def fuse_resident_upload_copies(
    copies: Iterable[ResidentUploadCopy], most_bytes: int | None = None
) -> list[ResidentUploadCopy]:
    """As few copies as give the same memory. A later one wins where two overlap, so their order stays."""
    fused: list[ResidentUploadCopy] = []
    for copy in copies:
        if not len(copy.data):
            continue
        _BOUNDS.add(copy.dst, len(copy.data), f"pointer arithmetic of memory {copy.handle_id}")
        fused.append(copy)
        while len(fused) > 1 and (joined := _joined(fused[-2], fused[-1], most_bytes)) is not None:
            fused[-2:] = [joined]
    return fused


def _joined(last: ResidentUploadCopy, new: ResidentUploadCopy, most_bytes: int | None) -> ResidentUploadCopy | None:
    """Two copies as one, where they touch or overlap; the new one wins."""
    last_end, end = last.dst + len(last.data), new.dst + len(new.data)
    if last.handle_id != new.handle_id or new.dst > last_end or end < last.dst:
        return None
    if new.dst <= last.dst and end >= last_end:
        return new
    if most_bytes is not None and max(len(last.data), len(new.data)) > most_bytes:
        return None
    start = min(last.dst, new.dst)
    if start == last.dst and type(last.data) is bytearray:
        joined = last.data  # it is ours already, and grows
        joined.extend(bytes(max(end - last_end, 0)))
    else:
        joined = bytearray(max(end, last_end) - start)
        joined[last.dst - start : last_end - start] = last.data
    joined[new.dst - start : end - start] = new.data
    return ResidentUploadCopy(last.handle_id, start, joined)


@dataclass(slots=True)
class TransferLedger:
    """What was copied between host and device, in one direction. A failed sum changes nothing."""

    domain: str
    operations: int = field(default=0, init=False)
    """Calls."""
    ranges: int = field(default=0, init=False)
    """What they asked for."""
    copies: int = field(default=0, init=False)
    """What the device was asked for."""
    nbytes: int = field(default=0, init=False)

    def charge(self, ranges: int, copies: Iterable[int]) -> None:
        """One call, with its ranges and the bytes of each copy."""
        sizes = list(copies)
        bounds = Checked(self.domain, "start a new session")
        nbytes = bounds.add(self.nbytes, sum(sizes), "byte accounting")
        self.nbytes, self.copies = nbytes, self.copies + len(sizes)
        self.ranges, self.operations = self.ranges + ranges, self.operations + 1

    def counts(self, name: str) -> dict[str, int]:
        """For metrics, below a name."""
        return {
            f"{name}_operations": self.operations,
            f"{name}_ranges": self.ranges,
            f"{name}_copies": self.copies,
            f"{name}_bytes": self.nbytes,
        }
