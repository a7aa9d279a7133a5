"""Bytes on their way between the host and a device, through host memory that the device can reach.

Small ones are copied there and back at once. Large ones are cut into pieces which a few threads copy, each piece being
on its way while others are copied: one thread alone is slower than the device's own wires.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ....foundation.integers import ceil_div
from ..devices import Context, library

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

LARGE_BYTES = 1 << 20
"""From here on, copies are made in pieces."""
DIRECT_BYTES = 64 << 10
"""From here on, it is asked whether memory of the caller is pinned, and so needs no copy of ours."""
SHARED_BYTES = 4 << 20
"""From here on, threads share them."""
PIECE_BYTES = 1 << 20, 2 << 20
"""The least and the most that is copied at once."""
WORKERS = max(2, min(4, os.cpu_count() or 1))
"""With more of them, they wait for each other more than they copy."""
KEPT_BYTES = 64 << 20
"""Idle memory that the pool keeps at most."""
_LEAST_BYTES = 4096
_PORTABLE, _MAPPED = 1, 2
_WORDS = 1024


class Pinned(NamedTuple):
    """Host memory that does not move."""

    address: int
    nbytes: int
    view: Any


class Staging:
    """Pinned memory for one device, in powers of two, used again and again."""

    def __init__(self, context: Context) -> None:
        self._context, self._cu = context, library()
        self._lock = threading.RLock()  # the collector may give memory back anywhere
        self._idle: dict[int, list[Pinned]] = {}
        self._idle_bytes = 0
        self._closed = False

    def take(self, nbytes: int) -> Pinned:
        size = max(1 << (nbytes - 1).bit_length(), _LEAST_BYTES)
        with self._lock:
            shelf = self._idle.get(size)
            if shelf:
                self._idle_bytes -= size
                return shelf.pop()
        with self._context.current():
            found = self._context.ok(self._cu.cuMemHostAlloc(size, _PORTABLE | _MAPPED), "allocating host memory")
        address = int(found)
        return Pinned(address, size, np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(address)).data)

    def give(self, pinned: Pinned) -> None:
        """Take it back; the device does not use it any longer."""
        with self._lock:
            if not self._closed and self._idle_bytes + pinned.nbytes <= KEPT_BYTES:
                self._idle.setdefault(pinned.nbytes, []).append(pinned)
                self._idle_bytes += pinned.nbytes
                return
        self._free([pinned])

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle = [pinned for shelf in self._idle.values() for pinned in shelf]
            self._idle.clear()
        self._free(idle)

    def _free(self, pinned: list[Pinned]) -> None:
        if pinned and not self._context.lost:
            with self._context.current():
                for each in pinned:
                    self._cu.cuMemFreeHost(each.address)


class StopWords:
    """Words that the host sets and running kernels see."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._free: list[Any] = []
        self._lock = threading.Lock()

    def take(self) -> Any:
        """A word that is zero."""
        with self._lock:
            if not self._free:
                page = self._staging.take(4 * _WORDS)
                self._free = [ctypes.c_uint32.from_address(page.address + 4 * k) for k in range(_WORDS)]
            word = self._free.pop()
        word.value = 0
        return word

    def give(self, word: Any) -> None:
        """No kernel looks at it any longer."""
        self._free.append(word)


def address_of(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


def new_bytes(nbytes: int) -> memoryview:
    """Memory of the host with any contents: what is about to be written need not be cleared."""
    return np.empty(nbytes, np.uint8).data


def copy(target: int, source: int, nbytes: int) -> None:
    """Other threads run meanwhile."""
    ctypes.memmove(target, source, nbytes)


class Crew:
    """Threads, the caller's among them, that share pieces of a range. `stopped` says that one of them has failed."""

    def __init__(self, nbytes: int) -> None:
        least, most = PIECE_BYTES
        share = ceil_div(nbytes, WORKERS * _LEAST_BYTES) * _LEAST_BYTES
        self.piece_bytes = size = min(max(share, least), most)
        self.stopped = False
        self._pieces = iter([(at, min(size, nbytes - at)) for at in range(0, nbytes, size)])
        self._helpers = min(WORKERS, ceil_div(nbytes, size)) - 1 if nbytes >= SHARED_BYTES else 0
        self._lock = threading.Lock()
        self._failed: BaseException | None = None

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Those of one worker, as (offset, bytes), while none has failed."""
        while not self.stopped:
            with self._lock:
                piece = next(self._pieces, None)
            if piece is None:
                return
            yield piece

    def run(self, work: Callable[[Crew], None]) -> None:
        """Let all do the work; the caller gets what one of them raised."""

        def guarded() -> None:
            try:
                work(self)
            except BaseException as e:
                self._failed, self.stopped = e, True

        helping = [_threads().submit(guarded) for _ in range(self._helpers)]
        guarded()
        try:
            for helper in helping:
                if not helper.cancel():  # it may not even have begun
                    helper.result()
        except BaseException:  # such as Ctrl-C: no helper may write to the caller's memory after this
            self.stopped = True
            for helper in helping:
                if not helper.cancel():
                    helper.result()
            raise
        if self._failed is not None:
            raise self._failed


@cache
def _threads() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # 10 ms that only large copies pay

    return ThreadPoolExecutor(WORKERS - 1, "vyre-cuda-copy")
