"""Resident memory of the processor: it lies in the memory of the host, and is used there.

The rules are those of every other backend (`offload.resident`). Nothing is copied on the way to a kernel.
"""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ...driver.contract.exchange import DeviceExchange
from ...driver.contract.values import (
    DispatchConfig,
    HostResource,
    ResidentDispatchStep,
    ResidentHandle,
    ResidentOwner,
    ResidentReadRange,
    ResidentSequenceTiming,
    Resource,
    whole,
)
from ...driver.plan.binding import BindingPlan, BindingRole, byte_lengths
from ...driver.resident.memory import (
    MOST_BYTES,
    by_slot,
    byte_range,
    check_targets,
    nbytes_of,
    refuse_host_outputs,
    refuse_shared,
    unknown,
)
from ...errors import ArgumentTypeError, ArgumentValueError, DeviceOutOfMemory
from ...runtime.work import plain

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ...driver.contract.values import OutputBuffers
    from ...foundation.ir.program import Program
    from .pipeline import CpuPipeline

_HOST = 1
"""DLPack's number for the processor."""

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
"""Not views of Python: the collector clears those although somebody works over them."""
Run: TypeAlias = Any
"""`dispatch` of a pipeline."""


class HostResidents:
    """The resident memory of one backend. Ids are never used again."""

    def __init__(self, backend: str) -> None:
        self._owner = ResidentOwner(backend)
        self._lock = threading.RLock()  # the collector may drop memory anywhere
        self._views: dict[int, Bytes] = {}
        self._last = 0
        self._watching: weakref.WeakSet[CpuPipeline] = weakref.WeakSet()

    @property
    def nbytes(self) -> int:
        return sum(view.nbytes for view in list(self._views.values()))

    def allocate(self, nbytes: int) -> ResidentHandle:
        """Memory of zeros."""
        asked = whole("nbytes", nbytes, MOST_BYTES)
        if not asked:
            raise ArgumentValueError(f"{nbytes!r} bytes cannot be resident", fix="allocate at least one byte")
        try:
            return self._kept(np.zeros(asked, np.uint8))
        except (MemoryError, ValueError) as e:
            raise DeviceOutOfMemory(
                "no room for more resident memory", fix="free some of it, or allocate less", requested=asked
            ) from e

    def adopt(self, address: int, nbytes: int) -> ResidentHandle:
        return self._kept(np.ctypeslib.as_array((ctypes.c_ubyte * nbytes).from_address(address)))

    def _kept(self, view: Bytes) -> ResidentHandle:
        with self._lock:
            self._last += 1
            self._views[self._last] = view
            return self._owner.handle(self._last, view.nbytes)

    def free(self, handle: ResidentHandle) -> None:
        self.find(handle, "free_resident")
        if self._views.pop(handle.id, None) is None:
            raise unknown(handle)
        for pipeline in list(self._watching):
            pipeline.forget_resident()

    def watch(self, pipeline: CpuPipeline) -> None:
        """Tell it when memory is freed."""
        with self._lock:
            self._watching.add(pipeline)

    def holds(self, handle: ResidentHandle) -> bool:
        return handle.id in self._views

    def close(self) -> None:
        self._views.clear()

    def find(self, handle: ResidentHandle, context: str) -> Bytes:
        """The memory behind a handle, if it is one of ours and was not freed."""
        if not isinstance(handle, ResidentHandle):
            raise ArgumentTypeError(
                f"{context} got {type(handle).__name__}, not resident memory",
                fix="pass a handle that allocate_resident() gave",
            )
        view = self._views.get(self._owner.resolve(handle, context))
        if view is None:
            raise unknown(handle)
        return view

    def upload(self, ranges: Sequence[tuple[ResidentHandle, int, Buffer]]) -> None:
        given = []
        for handle, offset, data in ranges:
            view = self.find(handle, "upload_resident")
            (nbytes,) = byte_lengths([data])
            start = byte_range(handle, offset, nbytes, "upload")
            given.append((view[start : start + nbytes], plain(data)))
        for target, source in given:
            target[:] = np.frombuffer(source, np.uint8)

    def download(self, ranges: Sequence[ResidentReadRange], out: Sequence[Buffer] | None) -> OutputBuffers:
        found = []
        for r in ranges:
            view = self.find(r.resource, "download_resident")
            nbytes = whole("byte_len", r.byte_len, MOST_BYTES) or 0
            start = byte_range(r.resource, r.byte_offset, nbytes, "download")
            found.append(view[start : start + nbytes])
        if out is None:
            return [bytearray(view.tobytes()) for view in found]
        check_targets([view.nbytes for view in found], out)
        for view, target in zip(found, out, strict=True):
            if view.nbytes:
                np.frombuffer(target, np.uint8)[:] = view  # type: ignore[call-overload]
        return list(out)

    def dispatch(
        self, run: Run, program: Program, resources: Sequence[Resource], config: DispatchConfig, *, may_allocate: bool
    ) -> tuple[list[ResidentHandle], list[Any], list[Any]]:
        """Run a program over resources through the `dispatch` of its pipeline.

        The memory of its outputs, and what that `dispatch` was given for inputs and outputs.
        """
        bindings = [b for b in BindingPlan.build(program).bindings if b.role is not BindingRole.SHARED]
        given = by_slot(bindings, resources)
        refuse_host_outputs(bindings, given, may_allocate)
        refuse_shared(bindings, given)
        views = [
            self.find(r, f"buffer {b.name!r}") if isinstance(r, ResidentHandle) else None
            for b, r in zip(bindings, given, strict=True)
        ]
        lengths = [nbytes_of(r) for r in given]
        inputs = [n or 0 for b, n in zip(bindings, lengths, strict=True) if b.input_index is not None]
        outputs = [n for b, n in zip(bindings, lengths, strict=True) if b.output_index is not None]
        sized = BindingPlan.from_input_lengths(
            program, inputs, config.output_elements, out_lengths=outputs, resident=True
        )
        fresh: list[ResidentHandle] = []
        kept: list[ResidentHandle] = []
        sources: list[Any] = []
        targets: list[Any] = []
        try:
            for b, r, found in zip(
                (b for b in sized.bindings if b.role is not BindingRole.SHARED), given, views, strict=True
            ):
                view = found
                if view is not None and view.nbytes < b.nbytes:
                    raise ArgumentValueError(
                        f"buffer {b.name!r} needs {b.nbytes} bytes and its resident memory has {view.nbytes}",
                        fix=f"allocate at least {b.nbytes} bytes for it",
                    )
                if b.output_index is not None:
                    handle = r if isinstance(r, ResidentHandle) else self.allocate(max(b.nbytes, 1))
                    if view is None:
                        fresh.append(handle)
                        view = self.find(handle, "an output")
                    kept.append(handle)
                    targets.append(view[slice(*(b.output_byte_range or (0, b.nbytes)))])
                if b.input_index is not None:
                    sources.append(r.data if isinstance(r, HostResource) else view[: b.nbytes])  # type: ignore[index, unused-ignore]
            run(sources, config, out=targets)
        except BaseException:
            for handle in fresh:
                self.free(handle)
            raise
        return kept, sources, targets

    def run_steps(
        self,
        run_of: Callable[[Program, DispatchConfig], tuple[Run, Program, DispatchConfig]],
        steps: Sequence[ResidentDispatchStep],
        reads: Sequence[ResidentReadRange],
        repeat: int,
        *,
        timed: bool,
    ) -> tuple[OutputBuffers, ResidentSequenceTiming | None]:
        """Run steps in order, all of it `repeat` times.

        `run_of` gives the `dispatch` of a program's pipeline, the program that it runs, and the settled config.
        """
        begun = time.perf_counter_ns()
        turns = whole("repeat", repeat, (1 << 32) - 1) or 0
        runs = []
        for step in steps:
            config = DispatchConfig(grid_override=step.grid_override, workgroup_override=step.workgroup_override)
            runs.append((step, *run_of(step.program, config)))
        for _ in range(turns):
            for step, run, program, config in runs:
                self.dispatch(run, program, step.resources, config, may_allocate=False)
        outputs = self.download(reads, None)
        return outputs, ResidentSequenceTiming(time.perf_counter_ns() - begun) if timed else None


class HostExchange(DeviceExchange):
    """Memory of the host: every library sees it, and work over it is done when it returns."""

    device = (_HOST, 0)

    def __init__(self, residents: HostResidents) -> None:
        self._residents = residents

    def adopt(self, address: int, nbytes: int) -> ResidentHandle:
        return self._residents.adopt(address, nbytes)

    def address(self, handle: ResidentHandle) -> int:
        view = self._residents.find(handle, "address")
        return int(view.ctypes.data)
