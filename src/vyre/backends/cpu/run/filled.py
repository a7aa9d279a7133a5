"""Does a call fill a result, so that it need not be cleared? That may depend on numbers that lie in its memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....driver.contract.values import Dims
from ....driver.policy.decision import Decision
from ....lower.length_exprs import PlainPlane, fills, words_of
from ..device import ffi

FILLED_BYTES = 1 << 20
"""Results of this size and more are worth asking for: 9 us to clear, about what a new answer takes."""
_MOST_KEPT = 64
"""Answers that are remembered."""


def clearing(name: str, nbytes: int, full: bool, plane: bool) -> Decision:
    """Whether a result of its own is cleared before it is computed, for people."""
    numbers = {"bytes": nbytes}
    if full:
        return Decision("clearing", "no", f"every element of {name!r} is stored", numbers)
    if plane and nbytes >= FILLED_BYTES:
        return Decision("clearing", "asked", f"{name!r} is filled if the numbers of a call say so", numbers)
    why = f"fewer than {FILLED_BYTES} bytes" if plane else "some elements may be left as they are"
    return Decision("clearing", "yes", f"{name!r}: {why}", numbers)


class Filled:
    """Whether launches over buffers of certain lengths and a grid fill one of them, with a plane of the kernel."""

    def __init__(self, plane: PlainPlane, slot: int, counts: Sequence[int], grid: Dims, workgroup: Dims) -> None:
        self._plane, self._count, self._counts = plane, counts[slot], counts
        self._extent = [n * size for n, size in zip(grid, workgroup, strict=True)]
        self._words = words_of(plane)
        self._readable = all(k < counts[slot] for slot, k in self._words)
        self._found: dict[tuple[int, ...], bool] = {}

    def by(self, buffers: Any) -> bool:
        """Whether the launch over this memory does."""
        if not self._readable:
            return False
        words = tuple([ffi.cast("uint32_t *", buffers[slot])[k] for slot, k in self._words])
        found = self._found.get(words)
        if found is None:
            known = dict(zip(self._words, words, strict=True))
            found = fills(self._plane, self._count, self._extent, self._counts, known)
            if len(self._found) >= _MOST_KEPT:
                self._found.clear()
            self._found[words] = found
        return found
