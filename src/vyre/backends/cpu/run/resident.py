"""Resident memory of the processor: it lies in the memory of the host, and is used there.

Nothing is copied on the way to a kernel.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ....driver.contract.exchange import DeviceExchange
from ....driver.contract.values import (
    U32_MAX,
    DispatchConfig,
    HostResource,
    ResidentDispatchStep,
    ResidentHandle,
    ResidentReadRange,
    ResidentSequenceTiming,
    Resource,
    whole,
)
from ....driver.plan.binding import BindingRole
from ....errors import DeviceOutOfMemory
from ....runtime.resident_memory import ResidentMemory, Resources, Upload
from .warm import Again, recorded

if TYPE_CHECKING:
    from ....driver.contract.values import OutputBuffers
    from ....foundation.ir.program import Program

_HOST = 1
"""DLPack's number for the processor."""

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
"""Not views of Python: the collector clears those although a kernel works over them."""
Run: TypeAlias = Any
"""`dispatch` of a pipeline."""
_ANY_TURNS = 0
"""A step is repeated in the same way however often."""


class HostResidents(ResidentMemory[Bytes]):
    """The resident memory of the processor."""

    most_fused = 0  # a copy costs no more than its bytes

    def zeros(self, nbytes: int) -> Bytes:
        try:
            return np.zeros(nbytes, np.uint8)
        except (MemoryError, ValueError) as e:
            raise DeviceOutOfMemory(
                "no room for more resident memory", fix="free some of it, or allocate less", requested=nbytes
            ) from e

    def adopt(self, address: int, nbytes: int) -> ResidentHandle:
        return self.keep(np.ctypeslib.as_array((ctypes.c_ubyte * nbytes).from_address(address)), nbytes, own=False)

    def release(self, memory: Bytes) -> None:
        """It goes when no kernel works over it."""

    def close(self) -> None:
        self._kept.clear()
        self.nbytes = 0

    def write(self, uploads: Sequence[Upload]) -> None:
        for _, view, offset, data in uploads:
            view[offset : offset + data.nbytes] = np.frombuffer(data, np.uint8)

    def read(self, reads: Sequence[tuple[Bytes, int, int]], into: Sequence[memoryview | None]) -> Sequence[Any]:
        found: list[Any] = []
        for (view, start, nbytes), target in zip(reads, into, strict=True):
            part = view[start : start + nbytes]
            if target is None:
                found.append(bytearray(part.tobytes()))
            else:
                np.frombuffer(target, np.uint8)[:] = part
                found.append(target)
        return found

    def dispatch(
        self, run: Run, program: Program, resources: Sequence[Resource], config: DispatchConfig, *, may_allocate: bool
    ) -> tuple[list[ResidentHandle], list[Any], list[Any]]:
        """Run a program over resources through the `dispatch` of its pipeline.

        The memory of its outputs, and what that `dispatch` was given for inputs and outputs.
        """
        given = Resources(self, program, resources, may_allocate=may_allocate)
        buffers = [b for b in given.sized(config).bindings if b.role is not BindingRole.SHARED]
        sources: list[Any] = []
        targets: list[Any] = []
        placed = given.placed(buffers)
        try:
            for b, r, _, view in placed:
                if b.output_index is not None:
                    start, end = b.output_byte_range or (0, b.nbytes)
                    targets.append(bytearray() if view is None else view[start:end])
                if b.input_index is not None:
                    sources.append(r.data if isinstance(r, HostResource) else view[: b.nbytes])  # type: ignore[index]
            run(sources, config, out=targets)
        except BaseException:
            given.undo()
            raise
        return given.outputs, sources, targets

    def run_steps(
        self,
        steps: Sequence[ResidentDispatchStep],
        compiled: Callable[[ResidentDispatchStep], tuple[Any, DispatchConfig]],
        reads: Sequence[ResidentReadRange],
        repeat: int,
        *,
        timed: bool,
    ) -> tuple[OutputBuffers, ResidentSequenceTiming | None]:
        """Run steps in order, all of it `repeat` times; `compiled` gives the pipeline and the config of each."""
        begun = time.perf_counter_ns()
        turns = whole("repeat", repeat, U32_MAX) or 0
        kept: list[list[Again]] | None = self.kept_steps(_ANY_TURNS, steps, times=turns)
        is_known = kept is not None
        try:
            runs = None if kept is None else kept.pop()  # which one thread uses at a time
        except IndexError:
            kept = runs = None
        if runs is None and turns:
            self.reuse.bound(() if is_known else self.uses_of(steps), turns)
            runs = self._first_turn(steps, compiled)
            turns -= 1
        for _ in range(turns):
            for run in runs or ():
                run()
        if runs and kept is not None:
            kept.append(runs)
        elif runs and all(isinstance(r, ResidentHandle) for step in steps for r in step.resources):
            self.keep_steps(_ANY_TURNS, steps, [runs])
        outputs: OutputBuffers = self.download(reads, None) if reads else []
        return outputs, ResidentSequenceTiming(time.perf_counter_ns() - begun) if timed else None

    def _first_turn(
        self,
        steps: Sequence[ResidentDispatchStep],
        compiled: Callable[[ResidentDispatchStep], tuple[Any, DispatchConfig]],
    ) -> list[Again]:
        """Run steps once, and find out what running them again takes."""
        found: list[Again] = []
        for step in steps:
            pipeline, config = compiled(step)
            given = step.resources
            _, sources, targets = self.dispatch(pipeline.dispatch, pipeline.program, given, config, may_allocate=False)
            prepared = pipeline.planned(sources, config, targets)
            found.append(recorded(prepared, sources, targets) or partial(prepared.run, sources, targets))
        return found


class HostExchange(DeviceExchange):
    """Memory of the host: every library sees it, and work over it is done when it returns."""

    device = (_HOST, 0)

    def __init__(self, residents: HostResidents) -> None:
        self._residents = residents

    def adopt(self, address: int, nbytes: int) -> ResidentHandle:
        return self._residents.adopt(address, nbytes)

    def seen_by_host(self, handle: ResidentHandle) -> Bytes:
        return self._residents.find(handle, "view")[: handle.nbytes]

    def address(self, handle: ResidentHandle) -> int:
        view = self._residents.find(handle, "address")
        return int(view.ctypes.data)
