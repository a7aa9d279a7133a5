"""A small dispatch over host memory that is repeated: three nodes of a graph, or more if it launches more.

All buffers lie in one piece of memory: those that only come from the host, those that come and go back, and those that
only go back. So one copy brings the first two and one fetches the last two, whatever the number of buffers. What begins
as zeros is among those that come, where the pinned memory that they come from stays zero.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from ...driver.offload.device import Launch, Round, Slot, Ticket
from ...driver.values import Dims
from ...errors import VyreError
from .graphs import Copy
from .work import Loaded

if TYPE_CHECKING:
    from .device import CudaDevice

_ALIGNED = 256
"""Where buffers begin, as those of the pool do."""


class CudaRound(Round):
    def __init__(
        self,
        device: CudaDevice,
        code: Loaded,
        slots: Sequence[Slot],
        lengths: Sequence[int],
        launches: Sequence[tuple[Dims, Dims]],
    ) -> None:
        self._device = device
        offsets: dict[int, int] = {}
        ends = []
        end = 0
        for share in (_only_comes, _comes_and_goes, _only_goes, _stays):
            for k, slot in enumerate(slots):
                if share(slot):
                    offsets[k] = end
                    end += max(-(-slot.nbytes // _ALIGNED), 1) * _ALIGNED
            ends.append(end)
        first, there, back, end = ends
        self._memory = memory = device.allocate(end)
        take = device.staging.take
        self._pinned = source, target = take(max(there, 1)), take(max(back - first, 1))
        source.view[:there] = bytes(there)
        places = [memory + offsets[k] for k in range(len(slots))]
        commands: list[Launch | Copy] = [Launch(code, places, lengths, base, grid) for base, grid in launches]
        if there:
            commands.insert(0, Copy(int(memory), source.address, there))
        if back > first:
            commands.append(Copy(target.address, memory + first, back - first, back=True))
        self.inputs = [source.view[offsets[k] :][: slot.nbytes] for k, slot in enumerate(slots) if slot.filled]
        self.outputs = [target.view[offsets[k] - first :][: slot.nbytes] for k, slot in enumerate(slots) if slot.read]
        self._go = device.graphs.sequence(device, commands)

    def go(self) -> Ticket:
        return self._go()

    def __del__(self) -> None:
        """Of the device, memory is freed behind work that may still be on its way; that of the host is held as long."""
        device, pinned = self._device, getattr(self, "_pinned", ())
        if not pinned or device.context.lost or sys.is_finalizing():
            return
        gives = [partial(device.staging.give, each) for each in pinned]
        with suppress(VyreError):
            if not device.closed:
                device.hold(device.mark(device.stream), gives)
                return
            for give in gives:  # which waits for the copies
                give()


def _comes(slot: Slot) -> bool:
    return slot.filled or slot.zero


def _only_comes(slot: Slot) -> bool:
    return _comes(slot) and not slot.read


def _comes_and_goes(slot: Slot) -> bool:
    return _comes(slot) and slot.read


def _only_goes(slot: Slot) -> bool:
    return slot.read and not _comes(slot)


def _stays(slot: Slot) -> bool:
    return not slot.read and not _comes(slot)
