"""A small dispatch over host memory that is repeated: one graph, of its launches and two that copy.

All buffers lie in one piece of memory: those that only come from the host, those that come and go back, and those that
only go back. So one copy brings the first two and one fetches the last two, whatever the number of buffers. Buffers
that begin as zeros are among those that come: the pinned memory that they come from stays zero.

Kernels copy, which reach pinned memory themselves: the device's own engines for copies begin later than a kernel ends.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from ....driver.contract.values import Dims
from ....errors import VyreError
from ....foundation.integers import ceil_div
from ....foundation.ir.dtypes import u32
from ....foundation.ir.nodes import BufLen, If, InvocationId, Load, Store
from ....foundation.ir.program import Program, read, write_only
from ....runtime.device import Launch, Slot, SmallDispatch, Ticket
from .commands import Loaded, Sent
from .fast_calls import address
from .staging import Pinned

if TYPE_CHECKING:
    from ..device import CudaDevice

_ALIGNED = 256
"""Where buffers begin, as those of the pool do."""
_ORDER = ((True, False), (True, True), (False, True), (False, False))
"""Whether a buffer comes from the host, and whether it goes back."""
_GROUP = 256
_WORD_BYTES = 4
_I = InvocationId(0)
COPY = Program(
    [read("x", 0, u32), write_only("out", 1, u32)],
    (_GROUP, 1, 1),
    [If(BufLen("out") > _I, (Store("out", _I, Load("x", _I)),))],
)


class CudaSmallDispatch(SmallDispatch):
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
        ends, end = [], 0
        for way in _ORDER:
            for k, slot in enumerate(slots):
                if (slot.filled or slot.zero, slot.read) == way:
                    offsets[k] = end
                    end += max(ceil_div(slot.nbytes, _ALIGNED), 1) * _ALIGNED
            ends.append(end)
        first, there, back, _ = ends
        self._pinned: list[Pinned] = []
        self._memory = memory = device.allocate(max(end, _ALIGNED))
        for nbytes in (there, back - first):
            self._pinned.append(device.staging.take(max(nbytes, 1)))
        source, target = self._pinned
        source.view[:there] = bytes(there)
        places = [memory + offsets[k] for k in range(len(slots))]
        commands = [Launch(code, places, lengths, base, grid) for base, grid in launches]
        if there:
            commands.insert(0, _copy(device, source.address, memory, there))
        if back > first:
            commands.append(_copy(device, memory + first, target.address, back - first))
        self.inputs = [source.view[offsets[k] :][: slot.nbytes] for k, slot in enumerate(slots) if slot.filled]
        self.outputs = [target.view[offsets[k] - first :][: slot.nbytes] for k, slot in enumerate(slots) if slot.read]
        self._launch = device.graphs.own(device, commands)
        self._mark, self._stream = device.mark(device.stream), address(device.stream)
        self._sent = Sent(device, self._mark)  # the same each time, since no thread repeats it before it has ended
        self._marked = True

    def go(self) -> Ticket:
        self._marked = False
        self._launch()
        self._mark.put(self._stream)
        self._marked = True
        return self._sent

    def __del__(self) -> None:
        """Of the device, memory is freed behind work that may still be on its way; that of the host is held as long."""
        device, pinned = self._device, getattr(self, "_pinned", ())
        if not pinned or device.context.lost or device.gone or sys.is_finalizing():
            return
        gives = [partial(device.staging.give, each) for each in pinned]
        with suppress(VyreError):
            if not device.closed:
                device.hold(device.mark(device.stream), gives)
            elif getattr(self, "_marked", True) and (not hasattr(self, "_mark") or self._mark.ended()):
                for give in gives:  # else it is unknown when the device lets go of them
                    give()


def _copy(device: CudaDevice, source: int, target: int, nbytes: int) -> Launch:
    count = nbytes // _WORD_BYTES
    return Launch(device.copier, (source, target), (count, count), (0, 0, 0), (ceil_div(count, _GROUP), 1, 1))
