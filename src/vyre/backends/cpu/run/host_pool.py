"""Where do results lie? Small ones in fresh bytes, large ones in pages that come back with the last view of them.

A page that was used is warm: the first touch of a fresh one costs more than most kernels do with it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ....errors import DeviceOutOfMemory
from ....foundation.integers import round_up
from ....runtime.memory_pool import size_class
from ..device import ffi

if TYPE_CHECKING:
    from typing_extensions import Buffer

POOLED_BYTES = 1 << 18
"""Results of this size and more are pooled. Below it the allocator's own reuse is as good."""
KEPT_BYTES = 1 << 28
"""Idle pages that a pool keeps at most."""
_PAGE_BYTES = 1 << 16
"""Sizes of pooled results are multiples of it."""

_COMPARED_BYTES = 1 << 18
"""Memory is compared in parts of it, which lie in the cache."""

_PRIVATE: dict[str, int] = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
)  # a forked process gets its own copy
_memset = ffi.cast("void *(*)(void *, int, size_t)", ctypes.cast(ctypes.memset, ctypes.c_void_p).value)
_memmove = ffi.cast("void *(*)(void *, void *, size_t)", ctypes.cast(ctypes.memmove, ctypes.c_void_p).value)


def fill_zero(pointer: Any, nbytes: int) -> None:
    if nbytes:
        _memset(pointer, 0, nbytes)


def copy(target: Any, source: Any, nbytes: int) -> None:
    """Other threads run meanwhile."""
    if nbytes:
        _memmove(target, source, nbytes)


def is_same(a: Any, b: Any, nbytes: int) -> bool:
    """Whether two pieces of memory hold the same bytes. It ends at the first part that differs."""
    import numpy as np

    for at in range(0, nbytes, _COMPARED_BYTES):
        n = min(_COMPARED_BYTES, nbytes - at)
        one, other = (np.frombuffer(ffi.buffer(ffi.cast("char *", p) + at, n), np.uint8) for p in (a, b))
        if not np.array_equal(one, other):
            return False
    return True


def aligned(nbytes: int, alignment: int = 64) -> tuple[Any, Any]:
    """Zeroed memory that starts at a multiple of `alignment`, and what keeps it alive."""
    owner = ffi.new("char[]", nbytes + alignment)
    start = int(ffi.cast("uintptr_t", owner))
    return ffi.cast("void *", round_up(start, alignment)), owner


class HostPool:
    """A pool of large results."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._limit = kept_bytes
        self._lock = threading.Lock()
        self._idle: dict[int, list[mmap.mmap]] = {}
        self._returned: list[mmap.mmap] = []
        self._process = os.getpid()
        self.idle_bytes = 0
        self.reused = 0

    def take(self, nbytes: int, what: str, *, zeroed: bool) -> tuple[Buffer, Any]:
        """A buffer of `nbytes` bytes, and a pointer to it. Not `zeroed`: it holds anything."""
        if nbytes < POOLED_BYTES:
            try:
                fresh = bytearray(nbytes)
            except (MemoryError, OverflowError) as e:
                raise _full(what, nbytes) from e
            return fresh, ffi.from_buffer(fresh)
        size = size_class(nbytes, _PAGE_BYTES)
        with self._lock:
            self._collect()
            shelf = self._idle.get(size)
            block = shelf.pop() if shelf else None
            if block is not None:
                self.idle_bytes -= size
                self.reused += 1
        if block is None:
            block, zeroed = _fresh(size, what, nbytes), False  # the system's pages are zero
        pointer = ffi.from_buffer(block)
        if zeroed:
            fill_zero(pointer, nbytes)
        owned = ffi.gc(pointer, lambda _: self._give_back(block))
        return memoryview(ffi.buffer(owned, nbytes)), pointer

    def close(self) -> None:
        """Return the idle pages to the system, and those in use when they come back."""
        with self._lock:
            self._limit = 0
            self._collect()
            self._idle.clear()
            self.idle_bytes = 0

    def _give_back(self, block: mmap.mmap) -> None:
        """Called wherever the last view of a result is dropped, also inside `take`, so it must not wait."""
        if self._process != os.getpid():
            return
        self._returned.append(block)
        if self._lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self._lock.release()

    def _collect(self) -> None:
        while self._returned:
            block = self._returned.pop()
            size = len(block)
            if self.idle_bytes + size <= self._limit:
                self._idle.setdefault(size, []).append(block)
                self.idle_bytes += size


def _fresh(size: int, what: str, nbytes: int) -> mmap.mmap:
    try:
        block = mmap.mmap(-1, size, **_PRIVATE)
    except (OSError, ValueError, OverflowError, MemoryError) as e:
        raise _full(what, nbytes) from e
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without them
            block.madvise(mmap.MADV_HUGEPAGE)
    return block


def _full(what: str, nbytes: int) -> DeviceOutOfMemory:
    return DeviceOutOfMemory(f"no memory for {what}", fix="use smaller buffers, or free others first", requested=nbytes)
