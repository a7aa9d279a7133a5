"""What did it spare that memory stays on the device? Inputs that were uploaded once and bound again.

The first dispatch over uploaded memory has paid for it; each one after it has spared an upload of as many bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import count

from ...errors import InvalidProgram
from ..contract.values import ResidentHandle

_U64_MAX = (1 << 64) - 1


class ResidentGraphReuseTelemetryError(InvalidProgram):
    """A figure left the range of 64 bits, or went backwards. `counter` in its context names the first one that did."""


@dataclass(frozen=True, slots=True)
class ResidentGraphReuseTelemetry:
    """Uploads that were made and their bytes, and those that were spared."""

    cold_uploads: int = 0
    warm_reuses: int = 0
    upload_bytes: int = 0
    avoided_upload_bytes: int = 0

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not 0 <= value <= _U64_MAX:
                over = "overflowed" if value > 0 else "is below zero"
                raise ResidentGraphReuseTelemetryError(
                    f"{f.name} {over}", fix="start a new session", counter=f.name, value=value
                )

    def __add__(self, other: ResidentGraphReuseTelemetry) -> ResidentGraphReuseTelemetry:
        return ResidentGraphReuseTelemetry(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def delta_since(self, earlier: ResidentGraphReuseTelemetry) -> ResidentGraphReuseTelemetry:
        """What came to it since then."""
        for f in fields(self):
            now, then = getattr(self, f.name), getattr(earlier, f.name)
            if now < then:
                raise ResidentGraphReuseTelemetryError(
                    f"{f.name} went back from {then} to {now}",
                    fix="compare figures of one session, the earlier one first",
                    counter=f.name,
                )
        return ResidentGraphReuseTelemetry(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)))


class Use:
    """How often memory that was uploaded is bound. `tick` counts one, from any thread, without a lock."""

    __slots__ = ("_count", "more", "nbytes", "paid", "tick")

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.paid, self.more = nbytes, 0, 0
        self._count = count()
        self.tick = self._count.__next__

    @property
    def warm(self) -> int:
        """Since the last upload, but for the one that has paid for it."""
        return max(self.times - self.paid - 1, 0)

    @property
    def times(self) -> int:
        return int(repr(self._count)[len("count(") : -1]) + self.more  # what the next tick would give


class Reuse:
    """The figures of one resident memory, live."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the collector may free memory anywhere
        self._uses: dict[int, Use] = {}
        self._cold = self._bytes = self._warm = self._avoided = 0

    def uploaded(self, handle: ResidentHandle, nbytes: int) -> bool:
        """Bytes go to this memory. Whether that is the first time: what was kept over it did not count."""
        with self._lock:
            self._cold, self._bytes = self._cold + 1, self._bytes + nbytes
            use = self._uses.get(handle.id)
            if use is None:
                self._uses[handle.id] = Use(handle.nbytes)
                return True
            self._settle(use)
            return False

    def freed(self, handle: ResidentHandle) -> None:
        with self._lock:
            use = self._uses.pop(handle.id, None)
            if use is not None:
                self._settle(use)

    def _settle(self, use: Use) -> None:
        """Keep what was spared until now: the next dispatch pays."""
        times = use.times
        warm = max(times - use.paid - 1, 0)
        self._warm, self._avoided, use.paid = self._warm + warm, self._avoided + warm * use.nbytes, times

    def of(self, handles: Iterable[ResidentHandle]) -> list[Use]:
        """Those of them that were uploaded."""
        return [use for h in handles if (use := self._uses.get(h.id)) is not None]

    def bound(self, uses: Iterable[Use], times: int) -> None:
        """So many dispatches have bound each of these."""
        with self._lock:
            for use in uses:
                use.more += times

    def figures(self) -> ResidentGraphReuseTelemetry:
        with self._lock:
            found = ResidentGraphReuseTelemetry(self._cold, self._warm, self._bytes, self._avoided)
            for use in self._uses.values():
                found += ResidentGraphReuseTelemetry(0, use.warm, 0, use.warm * use.nbytes)
        return found
