"""Where do buffers lie on a device? In pieces that are used again: asking a device for memory costs more than a kernel.

A piece comes back when the work that uses it has ended: work that runs beside it must not see it before.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..errors import DeviceOutOfMemory, VyreError
from ..foundation.integers import round_up

if TYPE_CHECKING:
    from .device import Device, Memory, Ticket

LEAST_BYTES = 256
"""No piece is smaller; a buffer without elements is bound to one of these."""
KEPT_BYTES = 1 << 30
"""Idle memory that a pool keeps at most, and never more than a quarter of the device's."""


class Piece(NamedTuple):
    """Memory of a device, with its size."""

    memory: Memory
    nbytes: int


class MemoryPool:
    """The memory of one device."""

    def __init__(self, device: Device, kept_bytes: int | None = None) -> None:
        most = min(KEPT_BYTES, device.memory_bytes // 4) if device.memory_bytes else KEPT_BYTES // 4
        self._device, self._limit = device, most if kept_bytes is None else kept_bytes
        self._lock = threading.RLock()  # the collector may drop a started dispatch, and so give memory back, anywhere
        self._idle: dict[int, list[Piece]] = {}
        self._used: list[tuple[Ticket, Sequence[Piece]]] = []
        self.idle_bytes = 0
        self.reused = 0

    def take(self, nbytes: int) -> Piece:
        """Memory for at least so many bytes, which holds anything."""
        return self.take_all((piece_bytes(self._device, nbytes),))[0]

    def take_all(self, sizes: Sequence[int]) -> list[Piece]:
        """The same for several, each of exactly the size of a piece."""
        if self._used:
            self._collect()
        found: list[Piece] = []
        try:
            for size in sizes:
                with self._lock:
                    shelf = self._idle.get(size)
                    if shelf:
                        self.idle_bytes -= size
                        self.reused += 1
                        found.append(shelf.pop())
                        continue
                found.append(self._fresh(size))
        except BaseException:
            self.give_all(found)
            raise
        return found

    def _fresh(self, size: int) -> Piece:
        try:
            return Piece(self._device.allocate(size), size)
        except DeviceOutOfMemory:
            if not self.clear():
                raise
        return Piece(self._device.allocate(size), size)  # idle pieces may have taken the room

    def give(self, piece: Piece) -> None:
        """Take it back."""
        self.give_all((piece,))

    def give_all(self, pieces: Sequence[Piece]) -> None:
        """Take them back."""
        for piece in pieces:
            with self._lock:
                if self.idle_bytes + piece.nbytes <= self._limit:
                    self._idle.setdefault(piece.nbytes, []).append(piece)
                    self.idle_bytes += piece.nbytes
                    continue
            self._device.release(piece.memory)

    def give_after(self, ticket: Ticket, pieces: Sequence[Piece]) -> None:
        """Take them back once some work has ended."""
        with self._lock:
            self._used.append((ticket, pieces))

    def _collect(self) -> None:
        with self._lock:
            used, self._used = self._used, []
        for ticket, pieces in used:
            try:
                ended = ticket.done()
            except VyreError:
                continue  # the device may still write to this memory
            if not ended:
                self.give_after(ticket, pieces)
                continue
            self.give_all(pieces)

    def clear(self) -> bool:
        """Release what is idle; whether anything was."""
        self._collect()
        with self._lock:
            pieces = [piece for shelf in self._idle.values() for piece in shelf]
            self._idle.clear()
            self.idle_bytes = 0
        for piece in pieces:
            self._device.release(piece.memory)
        return bool(pieces)


def piece_bytes(device: Device, nbytes: int) -> int:
    """How long a piece for so many bytes is on this device."""
    size = size_class(nbytes)
    return round_up(nbytes, 16) if device.most_bytes and nbytes <= device.most_bytes < size else size


def size_class(nbytes: int, step: int = 1) -> int:
    """Four sizes for each power of two, so that buffers of similar lengths share pieces; all multiples of `step`.

    >>> [size_class(n) for n in (0, 256, 257, 320, 1 << 20, (1 << 20) + 1)]
    [256, 256, 320, 320, 1048576, 1310720]
    """
    if nbytes <= LEAST_BYTES:
        return LEAST_BYTES
    step = max(1 << ((nbytes - 1).bit_length() - 3), step)
    return round_up(nbytes, step)
