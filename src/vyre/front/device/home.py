"""Where does memory of device arrays live, and when is it freed?

Memory belongs to one open backend, its home. It is freed once neither an array holds it, nor a library that
was given it. Small memory of results is kept for the next result of its size, since a launch over memory that it has
seen before costs far less.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from ...driver.contract.values import ResidentHandle
from ...driver.device_state import Phase
from ...driver.selection import registry
from ...errors import ArgumentTypeError, DeviceOutOfMemory, VyreError
from ...foundation.forking import in_child
from ...foundation.memo import keep, renew
from ..compile import open_backend

if TYPE_CHECKING:
    from ...driver.contract.exchange import DeviceExchange
    from ...driver.guard.backend import GuardedBackend

OPEN = Phase.OPEN  # looked up once: a member of an enum costs 0.05 us
KEPT_BYTES = 64 << 20
"""Memory of results that a home keeps for later ones, in all; one of them is a quarter of it at most."""
MOST_ADOPTED = 256
"""Places of other libraries that a home remembers."""
MOST_NAMES = 256
MOST_CONSTANTS = 64
"""Numbers that a home keeps on its device because calls repeat them."""

_Key = TypeVar("_Key", bound=Hashable)


class Home:
    """An open backend, as the place where memory lives."""

    def __init__(self, backend: GuardedBackend, name: str) -> None:
        self.backend, self.name = backend, name
        self._lock = threading.RLock()  # the collector may drop memory anywhere
        self._dropped: deque[tuple[ResidentHandle, set[int] | None, Any]] = deque()
        self._idle: dict[int, list[ResidentHandle]] = {}
        self._idle_bytes = 0
        self._exchange: tuple[int, DeviceExchange | None] = 0, None
        self._adopted: dict[tuple[int, int], ResidentHandle] = {}
        self._seen: deque[bytes] = deque(maxlen=MOST_CONSTANTS)
        self._constants: dict[bytes, ResidentHandle] = {}
        self.tells = False
        """Whether numbers go to the device as bytes of the host, since it asks how long loops are."""
        self.changes = 0
        """Changes when a constant that was kept is gone."""

    @property
    def exchange(self) -> DeviceExchange | None:
        """How other libraries see the memory here."""
        incarnation, found = self._exchange
        if incarnation != self.backend.device_state.incarnation or self.backend.device_state.phase is not OPEN:
            found = self.backend.exchange()
            self._exchange = self.backend.device_state.incarnation, found
        return found

    @property
    def is_open(self) -> bool:
        return self.backend.device_state.phase is OPEN

    # -- memory

    def take(self, nbytes: int) -> ResidentHandle:
        """Memory with any contents."""
        if self._dropped:
            self.sweep()
        with self._lock:
            shelf = self._idle.get(nbytes)
            while shelf:
                handle = shelf.pop()
                self._idle_bytes -= nbytes
                if self.is_live(handle):
                    return handle
        try:
            return self.backend.allocate_resident(nbytes)
        except DeviceOutOfMemory:
            if not self.forget_idle():
                raise
        return self.backend.allocate_resident(nbytes)

    def is_live(self, handle: ResidentHandle) -> bool:
        """Whether the memory is still on the device."""
        state = self.backend.device_state
        return state.phase is OPEN and handle.incarnation == state.incarnation

    def drop(self, handle: ResidentHandle, lent: set[int] | None, keep: Any) -> None:
        """The last reference is gone. Freed at once, unless the backend is at work, perhaps in this very thread."""
        if lent or keep is not None or self._dropped or self.backend.device_state.inflight:
            self._dropped.append((handle, lent, keep))
            if not self.backend.device_state.inflight:
                self.sweep()
        elif self.is_live(handle):  # most results go so
            try:
                self._put_away(handle)
            except VyreError:
                return

    def sweep(self) -> None:
        while self._dropped:
            try:
                handle, lent, keep = self._dropped.popleft()
            except IndexError:  # another thread was faster
                return
            if not self.is_live(handle):
                continue  # it went with the device
            with suppress(VyreError):
                exchange = self.exchange if lent or keep is not None else None
                if exchange is not None and lent:
                    exchange.wait_for_all(lent)
                if exchange is not None and keep is not None:
                    exchange.keep([keep])
                    self.backend.free_resident(handle)
                else:
                    self._put_away(handle)

    def _put_away(self, handle: ResidentHandle) -> None:
        nbytes = handle.nbytes
        with self._lock:
            if nbytes <= KEPT_BYTES // 4 and self._idle_bytes + nbytes <= KEPT_BYTES:
                self._idle.setdefault(nbytes, []).append(handle)
                self._idle_bytes += nbytes
                return
        self.backend.free_resident(handle)

    def forget_idle(self) -> bool:
        """Free what is kept for later; whether there was anything."""
        with self._lock:
            handles = [handle for shelf in self._idle.values() for handle in shelf]
            self._idle, self._idle_bytes = {}, 0
        for handle in handles:
            if self.is_live(handle):
                self.backend.free_resident(handle)
        return bool(handles)

    def adopt(self, address: int, nbytes: int, *, remember: bool) -> ResidentHandle:
        """Memory of another library. `remember`: only for now, and likely again."""
        exchange, backend, key = self.exchange, self.backend, (address, nbytes)
        assert exchange is not None
        if not remember:
            return backend.device_state.stamp(backend.on_device(lambda: exchange.adopt(address, nbytes)))
        known = self._known(self._adopted, key)
        if known is not None:
            return known
        made = self.adopt(address, nbytes, remember=False)
        kept, spare = self._kept(self._adopted, key, made, MOST_ADOPTED)
        if spare is not None:
            backend.free_resident(spare)
        return kept

    def constant(self, data: bytes) -> ResidentHandle | None:
        """Memory that holds these few bytes, once they have been asked for before."""
        if self.tells:
            return None
        known = self._known(self._constants, data)
        if known is not None:
            return known
        with self._lock:
            if data not in self._seen:
                self._seen.append(data)
                return None
        made = self.backend.allocate_resident(len(data))
        self.backend.upload_resident([(made, 0, data)])
        kept, spare = self._kept(self._constants, data, made, MOST_CONSTANTS)
        if spare is not None:
            self.changes += 1
            self.backend.free_resident(spare)
        return kept

    def _known(self, table: dict[_Key, ResidentHandle], key: _Key) -> ResidentHandle | None:
        with self._lock:
            known = table.get(key)
            if known is None or not self.is_live(known):
                return None
            renew(table, key)  # the call that asks has not used it yet
            return known

    def _kept(
        self, table: dict[_Key, ResidentHandle], key: _Key, made: ResidentHandle, most: int
    ) -> tuple[ResidentHandle, ResidentHandle | None]:
        """What is remembered, and what is to be freed for it: the oldest, or this one if another thread was faster."""
        with self._lock:
            known = self._known(table, key)
            if known is not None:
                return known, made
            table.pop(key, None)  # of memory that is gone
            gone = keep(table, key, made, most)
        return made, next((oldest for _, oldest in gone if self.is_live(oldest)), None)


_lock = threading.Lock()
_homes: dict[str, Home] = {}
_names: dict[tuple[int, str], tuple[str, str]] = {}
_owners: dict[tuple[int, int, int], Home] = {}


def place_of(name: str) -> tuple[str, str]:
    """The backend that a name means, as the front opens it, and as people read it."""
    key = registry.generation(), name
    known = _names.get(key)
    if known is None:
        id, device = registry.locate(name)
        everyone = registry.devices(id)
        shown = id if len(everyone) == 1 and device.name == id else f"{id}:{device.index}"
        known = (id if device.index == everyone[0].index else f"{id}:{device.index}"), shown
        keep(_names, key, known, MOST_NAMES)
    return known


def home_of(name: str) -> Home:
    """The open backend of that name."""
    opened, shown = place_of(name)
    backend = open_backend(opened)
    with _lock:
        home = _homes.get(opened)
        if home is None or home.backend is not backend:
            home = _homes[opened] = Home(backend, shown)
        return home


def home_of_device(name: str, device: tuple[int, int]) -> Home:
    """The first backend that shares memory with other libraries on a device of theirs."""
    key = registry.generation(), *device
    known = _owners.get(key)
    if known is not None and known.is_open:
        return known
    for listing in registry.registered_backends_by_precedence():
        if listing.problem() is not None:
            continue
        found = listing.probe()
        for info in found.devices if found.unavailable is None else ():
            owner = f"{listing.id}:{info.index}"
            try:
                exchange = home_of(owner).exchange
            except VyreError:
                continue
            if exchange is not None and exchange.device == device:
                for other in [k for k in _owners if k[0] != key[0]]:
                    _owners.pop(other, None)  # of a registry that is gone
                _owners[key] = home = home_of(owner)
                return home
    raise ArgumentTypeError(
        f"{name} lives in the memory of a device that no backend here shares (DLPack device {device[0]}:{device[1]})",
        fix=f"copy {name} to host memory first, or install the backend of that device",
        argument=name,
    )


class Memory:
    """Resident memory. It is freed with the last reference to this, if it is `owned`.

    `keep` holds memory of another library, and `source` is the array that it came from; `stream` is the one in which
    that library used it last, as far as known.
    """

    __slots__ = ("__weakref__", "_span", "ended", "handle", "home", "keep", "lent", "owned", "source", "stream")

    def __init__(
        self,
        home: Home,
        handle: ResidentHandle,
        *,
        owned: bool = True,
        keep: Any = None,
        source: Any = None,
        stream: int | None = None,
        start: int | None = None,
    ) -> None:
        """`start` is where it lies, if that is known."""
        self.home, self.handle, self.owned, self.keep = home, handle, owned, keep
        self.source, self.stream = source, stream
        self.lent: set[int] | None = None
        self.ended = False
        """Whether it was a sequence's while it was recorded, and arrays over it are of no use any more."""
        self._span = None if start is None else (start, start + handle.nbytes)

    @property
    def span(self) -> tuple[int, int]:
        """Where it lies, from and to. Memory without addresses lies apart from all other memory."""
        if self._span is None:
            exchange = self.home.exchange
            start = self.handle.id << 64 if exchange is None else exchange.address(self.handle)
            self._span = start, start + self.handle.nbytes
        return self._span

    def lend_to(self, stream: int) -> None:
        """Another library uses it in a stream from now on (-1: it is unknown which): work that is there when the memory
        is dropped comes before its next use."""
        self.lent = (self.lent or set()) | {stream}

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.owned and not is_ending():
            try:
                self.home.drop(self.handle, self.lent, self.keep)
            except Exception:  # of a device that is gone
                return


class Lent:
    """What an array of the host is made over that keeps memory of the device: a call over it goes on beside free()."""

    __slots__ = ("__array_interface__", "_held")

    def __init__(self, seen: Any, memory: Memory) -> None:
        self._held, self.__array_interface__ = (seen, memory), seen.__array_interface__


def settle(memory: Memory, waited: set[int] | None = None) -> None:
    """Order our use of another library's memory after the work that library has queued by now."""
    exchange = None if memory.source is None else memory.home.exchange
    if exchange is not None:
        memory.stream = stream = exchange.stream_of(memory.source)
        if stream is not None and stream not in (waited or ()):
            exchange.wait_for(stream)


@in_child
def _forget() -> None:
    """Nothing on a device belongs to a forked process."""
    global _lock
    _lock = threading.Lock()  # a thread that is not in the child may have held the other
    _homes.clear()
    _owners.clear()
