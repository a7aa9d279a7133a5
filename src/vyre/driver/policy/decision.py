"""A decision is a value: the module that decides returns it, the funnel counts it, and `explain` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice on the way to the device, out of a few fixed words; `counters` has a number for each that it counts.

    `numbers` are what it was made from, or what it comes to.
    """

    what: str
    choice: str
    reason: str
    numbers: Mapping[str, int | float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.what}: {self.choice} ({self.reason})"
