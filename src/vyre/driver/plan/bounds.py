"""Bounds at the border: numbers that reach a device or a report fit their width, or the call says which one does not.

Python's integers never wrap, so the only questions left are how wide the receiver is and what to say when a number is
wider. Nothing here clamps in silence.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import DeviceOutOfMemory, InvalidProgram
from ...foundation.integers import ceil_div as ceil_div
from ...foundation.integers import round_up

if TYPE_CHECKING:
    from typing import NoReturn

MAX_STAGING_BYTES = 1 << 46
"""More than any machine of today holds in one piece: a request beyond it is a mistake, not a shortage."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Arithmetic in one domain. A result that does not fit `bits` raises InvalidProgram with `field` in its context."""

    domain: str
    fix: str

    def fit(self, value: int, field: str, bits: int = 64) -> int:
        if not 0 <= value < 1 << bits:
            self._refuse(f"{field} overflowed u{bits}", field, value=value)
        return value

    def add(self, a: int, b: int, field: str, bits: int = 64) -> int:
        return self.fit(a + b, field, bits)

    def mul(self, a: int, b: int, field: str, bits: int = 64) -> int:
        return self.fit(a * b, field, bits)

    def product(self, dims: Sequence[int], field: str, bits: int = 64) -> int:
        """The product of all dims; a zero among them makes it zero, however large the others are."""
        total = 1
        for n in dims:
            total *= n
        return self.fit(total, field, bits)

    def align_up(self, value: int, alignment: int, field: str, *, least: int = 0, bits: int = 64) -> int:
        """The next multiple of `alignment` that is at least `value` and `least`."""
        if alignment <= 0:
            self._refuse(f"{field}: the alignment must be non-zero", field, alignment=alignment)
        return self.fit(round_up(max(value, least), alignment), field, bits)

    def range_end(self, start: int, length: int, limit: int, field: str) -> int:
        """The end of `length` bytes from `start`, which must lie within `limit`."""
        end = self.add(start, length, field)
        if end > limit:
            self._refuse(f"{field} ends at {end}, beyond {limit}", field, end=end, limit=limit)
        return end

    def _refuse(self, what: str, field: str, **numbers: int) -> NoReturn:
        raise InvalidProgram(f"{self.domain}: {what}", fix=self.fix, issues=(), field=field, **numbers)


def reserve_bytes(nbytes: int, domain: str, *, limit: int = MAX_STAGING_BYTES) -> bytearray:
    """Zeros for staging; a request over the limit, or one the host cannot serve, names its domain."""
    if 0 <= nbytes <= limit:
        try:
            return bytearray(nbytes)
        except (MemoryError, OverflowError):
            pass
    raise DeviceOutOfMemory(
        f"no host memory for {domain}", fix="split the work into smaller pieces", requested=nbytes, limit=limit
    )


class Counter:
    """A count shared by threads, which never wraps and never shows a rejected value.

    The mode decides at the border: `checked` raises and changes nothing, `pinning` stays at the largest
    value, `repair` lets a subtraction below zero end at zero. The last two call `on_event(before, amount)`: pinning
    once, when the border is reached, and repair each time.
    """

    def __init__(
        self,
        name: str,
        bits: int = 64,
        mode: str = "checked",
        *,
        start: int = 0,
        on_event: Callable[[int, int], None] | None = None,
    ) -> None:
        if mode not in ("checked", "pinning", "repair"):
            raise ValueError(f"{mode!r} is not a mode of a counter")
        self.name, self.mode = name, mode
        self._most = (1 << bits) - 1
        self._bits = bits
        self._value = start
        self._on_event = on_event
        self._lock = threading.Lock()

    @property
    def value(self) -> int:
        return self._value

    def add(self, amount: int = 1, guard: Callable[[int], None] | None = None) -> int:
        """Count; returns the value before. `guard` sees the next value first and may refuse it by raising."""
        with self._lock:
            before = self._value
            after = before + amount
            pinned = after > self._most
            if pinned:
                if self.mode != "pinning":
                    raise self._overflow("add", amount)
                after = self._most
            if guard is not None:
                guard(after)
            self._value = after
        if pinned and before < self._most and self._on_event is not None:
            self._on_event(before, amount)
        return before

    def sub(self, amount: int = 1) -> int:
        """Take away; returns the value before."""
        with self._lock:
            before = self._value
            if amount > before and self.mode != "repair":
                raise self._overflow("sub", amount)
            self._value = max(before - amount, 0)
        if amount > before and self._on_event is not None:
            self._on_event(before, amount)
        return before

    def next(self) -> int:
        """Hand out the value and move on; the last one is never handed out."""
        return self.add(1)

    def raise_to(self, value: int) -> int:
        """The larger of both, from now on."""
        with self._lock:
            if not 0 <= value <= self._most:
                raise self._overflow("max", value)
            self._value = max(self._value, value)
            return self._value

    def _overflow(self, what: str, amount: int) -> InvalidProgram:
        field = f"u{self._bits} {what}"
        return InvalidProgram(
            f"counter {self.name} overflowed", fix="start a new counter", field=field, value=self._value, amount=amount
        )
