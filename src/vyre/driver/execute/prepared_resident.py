"""Dispatches of a compiled pipeline that are ready to run again: those over memory that stays on the device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ...foundation.memo import keep
from ..contract.values import DispatchConfig, ResidentHandle, Resource

Again: TypeAlias = Callable[[], list[ResidentHandle] | None]
"""A resident dispatch once more: its outputs, or None where it has to be looked at first."""
MAX_READY = 256
"""Dispatches that a pipeline keeps ready; the oldest goes first."""


class Repeats:
    """Resident dispatches that a compiled pipeline keeps ready, as its attribute `repeats`.

    `table` has them by the identities of a config and of the handles, all of which are kept. `last` is the latest
    one, with its arguments: to compare them costs a warm launch less than to make a key of them.
    """

    __slots__ = ("_kept", "_lock", "_uses", "last", "table")

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the collector may free memory anywhere
        self._kept: dict[tuple[int, ...], tuple[object, Sequence[ResidentHandle]]] = {}
        self._uses: dict[int, set[tuple[int, ...]]] = {}
        self.table: dict[tuple[int, ...], Again] = {}
        self.last: tuple[int, object, Again] = NOTHING

    def __len__(self) -> int:
        return len(self.table)

    def keep(self, config: DispatchConfig | None, given: Sequence[ResidentHandle], again: Again) -> None:
        """From now on, and until it is forgotten, this is a dispatch over exactly this memory."""
        key = id(config), *map(id, given)  # 0.05 us each; a hash of a config takes 3, and `_kept` keeps all of them
        with self._lock:  # the table's entries are kept alive, and `forget` finds them
            self._kept[key] = config, given
            for handle in given:
                self._uses.setdefault(handle.id, set()).add(key)
            for old, _ in keep(self.table, key, again, MAX_READY):
                self._drop(old)

    def find(self, config: int, given: Sequence[Resource]) -> Again | None:
        """The dispatch kept for these; the config is given by its identity."""
        found = self.table.get((config, *map(id, given)))
        if found is not None and type(given) is list:
            last = config, given.copy(), found
            self.last = last
            if self.table.get((config, *map(id, given))) is not found:
                self.last = NOTHING  # it was forgotten just now
        return found

    def forget(self, handle: ResidentHandle) -> None:
        """Its memory was freed."""
        with self._lock:
            for key in list(self._uses.get(handle.id, ())):
                self._drop(key)

    def _drop(self, key: tuple[int, ...]) -> None:
        self.table.pop(key, None)
        self.last = NOTHING  # it may be this one, whose objects are no longer kept
        for other in self._kept.pop(key, (None, ()))[1]:
            uses = self._uses.get(other.id, set())
            uses.discard(key)
            if not uses:
                self._uses.pop(other.id, None)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self.table.clear()
            self.last = NOTHING
            self._kept.clear()
            self._uses.clear()


NOTHING: tuple[int, object, Again] = (0, None, lambda: None)
