"""What stays on the device: the rules of resident memory, wherever it lies.

Memory is allocated, filled, computed on and read back by handles. Buffers of a resident dispatch go by slot order:
either one resource for each bound buffer, or one for each input, and then the outputs are allocated and belong to the
caller. Bytes of the host are copied at each dispatch.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from ..driver.contract.values import (
    DispatchConfig,
    Memory,
    OutputBuffers,
    ResidentDispatchStep,
    ResidentHandle,
    ResidentOwner,
    ResidentReadRange,
    Resource,
    whole,
)
from ..driver.plan.binding import Binding, BindingPlan, BindingRole, byte_lengths
from ..driver.resident.memory import (
    MOST_BYTES,
    by_slot,
    byte_range,
    check_targets,
    nbytes_of,
    no_memory,
    refuse_host_outputs,
    refuse_shared,
    unknown,
    validate_buffer_ownership,
)
from ..driver.resident.reuse import Reuse, Use
from ..driver.resident.transfers import (
    FUSED_BYTES,
    ResidentTransferInterval,
    ResidentTransferView,
    ResidentUploadCopy,
    TransferLedger,
    fuse_resident_transfer_intervals,
    fuse_resident_upload_copies,
)
from ..driver.settings.knobs import RESIDENT_BYTES
from ..errors import ArgumentTypeError, ArgumentValueError, DeviceOutOfMemory
from ..foundation.memo import keep
from .work import plain

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..foundation.ir.program import Program

M = TypeVar("M")
_MAX_REPEATS = 64
"""Lists of steps that are kept ready."""


class Watching(Protocol):
    """An object that remembers handles, and lets go of one that was freed."""

    def forget_resident(self, handle: ResidentHandle) -> None: ...


class Upload(NamedTuple):
    """Bytes of the host, and where they go in the memory of a handle."""

    handle: ResidentHandle
    memory: Any
    offset: int
    data: memoryview


class ResidentMemory(ABC, Generic[M]):
    """The resident memory of one backend. Ids are never used again."""

    most_fused = FUSED_BYTES
    """Ranges up to this size that touch are copied as one."""

    def __init__(self, backend: str) -> None:
        self.owner = ResidentOwner(backend)
        self._lock = threading.RLock()  # the collector may drop memory anywhere
        self._kept: dict[int, M] = {}
        self._adopted: set[int] = set()
        """Ids of memory of other libraries."""
        self._last = 0
        self.nbytes = 0
        """Of memory that is ours."""
        self._watching: weakref.WeakSet[Any] = weakref.WeakSet()
        self._repeats: dict[tuple[int, ...], _Kept] = {}
        self.reuse = Reuse()
        self.uploaded, self.downloaded = TransferLedger("resident upload"), TransferLedger("resident download")

    @property
    def device_limit(self) -> int | None:
        """How many bytes may be resident on this device, where that is known."""
        return None

    @abstractmethod
    def zeros(self, nbytes: int) -> M:
        """New memory. Raises DeviceOutOfMemory."""

    @abstractmethod
    def release(self, memory: M) -> None:
        """Memory of ours was freed, and no pipeline knows it any longer."""

    @abstractmethod
    def write(self, uploads: Sequence[Upload]) -> None:
        """All of it, as one transfer."""

    @abstractmethod
    def read(self, reads: Sequence[tuple[M, int, int]], into: Sequence[memoryview | None]) -> Sequence[Any]:
        """Ranges of (memory, offset, bytes), none empty, as one transfer: new buffers, or what is given for one."""

    def allocate(self, nbytes: int) -> ResidentHandle:
        """Memory of zeros."""
        asked = whole("nbytes", nbytes, MOST_BYTES)
        if not asked:
            raise ArgumentValueError(f"{nbytes!r} bytes cannot be resident", fix="allocate at least one byte")
        self._reserve(asked)
        try:
            memory = self.zeros(asked)
        except BaseException:
            self._reserve(-asked)
            raise
        return self.keep(memory, asked)

    def _reserve(self, nbytes: int) -> None:
        """Count bytes before the device is asked for them, so that no thread gets more than there may be."""
        asked, device = RESIDENT_BYTES.value(), self.device_limit
        limit = min((n for n in (asked, device) if n), default=None)
        with self._lock:
            if limit is not None and nbytes > 0 and self.nbytes + nbytes > limit:
                raise DeviceOutOfMemory(
                    "no room for more resident memory",
                    fix="free some of it, or "
                    + (f"raise {RESIDENT_BYTES.variable}" if limit == asked else "allocate less"),
                    requested=nbytes,
                    resident=self.nbytes,
                    limit=limit,
                )
            self.nbytes += nbytes

    def keep(self, memory: M, nbytes: int, *, own: bool = True) -> ResidentHandle:
        """A handle of memory; what is not our own is not freed with it."""
        with self._lock:
            self._last += 1
            self._kept[self._last] = memory
            if not own:
                self._adopted.add(self._last)
            return self.owner.handle(self._last, nbytes)

    def find(self, handle: ResidentHandle, context: str) -> M:
        """The memory behind a handle, if it is one of ours and was not freed."""
        if not isinstance(handle, ResidentHandle):
            raise ArgumentTypeError(
                f"{context} got {type(handle).__name__}, not resident memory",
                fix="pass a handle that allocate_resident() gave",
            )
        self.owner.resolve(handle, context)
        return self.held(handle)

    def held(self, handle: ResidentHandle) -> M:
        """The memory behind a handle of ours, if it was not freed."""
        memory = self._kept.get(handle.id)
        if memory is None:
            raise unknown(handle)
        return memory

    def holds(self, handle: ResidentHandle) -> bool:
        return handle.id in self._kept

    def is_adopted(self, id: int) -> bool:
        """Whether it is memory of another library, of which several handles may overlap."""
        return id in self._adopted

    def watch(self, pipeline: Watching) -> None:
        """Tell it when memory is freed."""
        with self._lock:
            self._watching.add(pipeline)

    def free(self, handle: ResidentHandle) -> None:
        self.find(handle, "free_resident")
        with self._lock:
            memory = self._kept.pop(handle.id, None)
            if memory is None:
                raise unknown(handle)
            own = handle.id not in self._adopted
            self._adopted.discard(handle.id)
            watching = list(self._watching)
        self._forget_ready(handle, watching)
        self.reuse.freed(handle)
        if own:
            self.release(memory)
            with self._lock:
                self.nbytes -= handle.nbytes

    def _forget_ready(self, handle: ResidentHandle, watching: Iterable[Watching]) -> None:
        for pipeline in watching:
            pipeline.forget_resident(handle)
        self.forget_steps(handle)

    def upload(self, ranges: Sequence[tuple[ResidentHandle, int, Buffer]]) -> None:
        given: dict[int, tuple[ResidentHandle, M]] = {}
        copies = []
        for handle, offset, data in ranges:
            given[handle.id] = handle, self.find(handle, "upload_resident")
            (nbytes,) = byte_lengths([data])
            copies.append(ResidentUploadCopy(handle.id, byte_range(handle, offset, nbytes, "upload"), plain(data)))
        fused = fuse_resident_upload_copies(copies, self.most_fused) if len(copies) > 1 and self.most_fused else copies
        with self._lock:
            self.uploaded.charge(len(copies), (len(c.data) for c in fused))
        self.write([Upload(*given[c.handle_id], c.dst, memoryview(c.data)) for c in fused])
        for id, nbytes in _sums(copies):
            handle = given[id][0]
            if self.reuse.uploaded(handle, nbytes):
                self._forget_ready(handle, list(self._watching))

    def download(self, ranges: Sequence[ResidentReadRange], out: Sequence[Buffer] | None) -> OutputBuffers:
        reading = self.reading(ranges)
        if out is not None:
            check_targets(reading.sizes, out)
        return reading.results(self.read(reading.copies, reading.into(out)), out)

    def reading(self, ranges: Sequence[ResidentReadRange]) -> Reading[M]:
        """The copies that ranges need; they are counted as made."""
        memories: dict[int, M] = {}
        asked = []
        for r in ranges:
            memories[r.resource.id] = self.find(r.resource, "download_resident")
            nbytes = whole("byte_len", r.byte_len, MOST_BYTES) or 0
            at = byte_range(r.resource, r.byte_offset, nbytes, "download")
            asked.append(ResidentTransferInterval(r.resource.id, at, nbytes))
        reading = Reading(asked, memories, self.most_fused)
        with self._lock:
            self.downloaded.charge(len(asked), (nbytes for _, _, nbytes in reading.copies))
        return reading

    def transfers(self) -> dict[str, int]:
        """What was copied, and what was spared, for metrics."""
        return _transfers(self.uploaded, self.downloaded, self.reuse)

    # -- steps

    def keep_steps(self, turns: int, steps: Sequence[ResidentDispatchStep], runs: Any) -> None:
        """From now on, and until some of their memory is freed, exactly these steps so many times are these runs."""
        if not all(type(step.resources) is tuple for step in steps):
            return  # a list may be another one at the next call
        handles = {r.id: r for step in steps for r in step.resources if isinstance(r, ResidentHandle)}
        kept = _Kept(runs, handles.keys(), (steps, tuple(steps)), self.uses_of(steps))
        keep(self._repeats, _identity(turns, steps), kept, _MAX_REPEATS)
        for handle in handles.values():
            if not self.holds(handle):
                self.forget_steps(handle)  # another thread freed it just now

    def kept_steps(self, turns: int, steps: Sequence[ResidentDispatchStep], *, times: int = 1) -> Any:
        """What was kept for them, or None, and it counts as bound so many times."""
        found = self._repeats.get(_identity(turns, steps))
        if found is None:
            return None
        if found.uses:
            self.reuse.bound(found.uses, times)
        return found.runs

    def uses_of(self, steps: Sequence[ResidentDispatchStep]) -> list[Use]:
        """Of the uploaded memory that steps read, for each time that one does."""
        return [use for step in steps for use in self.uses(step.program, step.resources)]

    def uses(self, program: Program, resources: Sequence[Resource]) -> list[Use]:
        """Of the uploaded memory among these that the program reads: there is one for each of its buffers, or for each
        input."""
        bound = [b for b in BindingPlan.build(program).bindings if b.role is not BindingRole.SHARED]
        if len(resources) == len(bound):
            resources = [r for b, r in zip(bound, resources, strict=True) if b.input_index is not None]
        return self.reuse.of(r for r in resources if isinstance(r, ResidentHandle))

    def forget_steps(self, handle: ResidentHandle) -> None:
        """Its memory is gone."""
        for key, kept in list(self._repeats.items()):
            if handle.id in kept.handles:
                self._repeats.pop(key, None)


def _transfers(uploaded: TransferLedger, downloaded: TransferLedger, reuse: Reuse) -> dict[str, int]:
    spared = {f"resident_reuse_{name}": n for name, n in asdict(reuse.figures()).items()}
    return uploaded.counts("resident_upload") | downloaded.counts("resident_download") | spared


NO_TRANSFERS = _transfers(TransferLedger("upload"), TransferLedger("download"), Reuse())
"""The figures of a backend that has copied nothing yet."""


class _Kept(NamedTuple):
    """Steps that are ready, with the ids of their memory; `steps` keep their identities meanwhile. `uses` are those of
    uploaded memory."""

    runs: Any
    handles: Set[int]
    steps: object
    uses: list[Use]


def _sums(copies: Iterable[ResidentUploadCopy]) -> Iterable[tuple[int, int]]:
    """The bytes for each handle."""
    found: dict[int, int] = {}
    for c in copies:
        if len(c.data):
            found[c.handle_id] = found.get(c.handle_id, 0) + len(c.data)
    return found.items()


def _identity(turns: int, steps: Sequence[ResidentDispatchStep]) -> tuple[int, ...]:
    """A key by identity, 0.05 us: a hash would go through programs and configs, 3 us each. `_Kept` keeps the steps."""
    return (turns, id(steps)) if type(steps) is tuple else (turns, *map(id, steps), 0)


class Reading(Generic[M]):
    """Ranges to read, and the copies from (memory, offset, bytes) that serve them."""

    def __init__(
        self, asked: Sequence[ResidentTransferInterval], memories: Mapping[int, M], most_fused: int = FUSED_BYTES
    ) -> None:
        self.sizes = [r.byte_len for r in asked]
        copies: Sequence[ResidentTransferInterval] = [r for r in asked if r.byte_len]
        self._views: Sequence[ResidentTransferView] | None = None
        if len(copies) > 1 and most_fused:
            fused = fuse_resident_transfer_intervals(asked, most_fused)
            if len(fused.copies) < len(copies):
                copies, self._views = fused.copies, fused.views
        self.copies = [(memories[c.handle_id], c.src, c.byte_len) for c in copies]

    def into(self, out: Sequence[Buffer] | None) -> list[memoryview | None]:
        """Where each copy goes: straight to the caller's buffer, if it is one range."""
        if out is None or self._views is not None:
            return [None] * len(self.copies)
        return [plain(target) for target, nbytes in zip(out, self.sizes, strict=True) if nbytes]

    def results(self, found: Sequence[Any], out: Sequence[Buffer] | None) -> OutputBuffers:
        """What the caller asked for, of what was copied."""
        if self._views is None:
            if out is not None:
                return list(out)
            each = iter(found)
            return [next(each) if nbytes else bytearray() for nbytes in self.sizes]
        results: OutputBuffers = []
        for k, view in enumerate(self._views):
            at = view.byte_offset
            part = memoryview(found[view.copy_slot])[at : at + view.byte_len] if view.byte_len else b""
            if out is None:
                results.append(Memory(part))
            else:
                plain(out[k])[:] = part
        return results if out is None else list(out)


class Placed(NamedTuple, Generic[M]):
    """A buffer of a program, what the caller gave for it, and its resident memory, if it has some."""

    buffer: Binding
    given: Resource | None
    handle: ResidentHandle | None
    memory: M | None


class Resources(Generic[M]):
    """What a caller gives a program to run over, by slot. `sizes` are the bytes of each, None where there is none."""

    def __init__(
        self, residents: ResidentMemory[M], program: Program, resources: Sequence[Resource], *, may_allocate: bool
    ) -> None:
        """`may_allocate`: outputs that the caller gives no memory for are allocated, else they are refused."""
        self._residents, self._program, self._may_allocate = residents, program, may_allocate
        self._bindings = [b for b in BindingPlan.build(program).bindings if b.role is not BindingRole.SHARED]
        self.given = by_slot(self._bindings, resources)
        validate_buffer_ownership(residents.owner, self._bindings, self.given)
        refuse_host_outputs(self._bindings, self.given, may_allocate)
        self._found = [residents.held(r) if isinstance(r, ResidentHandle) else None for r in self.given]
        refuse_shared(self._bindings, self.given)
        self.sizes = [nbytes_of(r) for r in self.given]
        if may_allocate:  # else the steps are counted as a whole
            residents.reuse.bound(residents.uses(program, resources), 1)
        self.all_resident = all(isinstance(r, ResidentHandle) for r in self.given)
        self.fresh: list[ResidentHandle] = []
        self.outputs: list[ResidentHandle] = []
        """The memory of the outputs, in their order, once they are `placed`."""

    def sized(self, config: DispatchConfig) -> BindingPlan:
        """The program's buffers, as long as this memory says."""
        inputs = [0] * sum(b.input_index is not None for b in self._bindings)
        outputs: list[int | None] = [None] * sum(b.output_index is not None for b in self._bindings)
        for b, nbytes in zip(self._bindings, self.sizes, strict=True):
            if b.input_index is not None:
                inputs[b.input_index] = nbytes or 0
            if b.output_index is not None:
                outputs[b.output_index] = nbytes
        return BindingPlan.from_input_lengths(
            self._program, inputs, config.output_elements, out_lengths=outputs, resident=True
        )

    def placed(self, buffers: Sequence[Binding]) -> list[Placed[M]]:
        """Every buffer with its memory, which is long enough; outputs without any get some."""
        found: list[Placed[M]] = []
        try:
            for b, r, known in zip(buffers, self.given, self._found, strict=True):
                handle, memory = r if isinstance(r, ResidentHandle) else None, known
                if handle is not None and handle.nbytes < b.nbytes:
                    raise ArgumentValueError(
                        f"buffer {b.name!r} needs {b.nbytes} bytes and its resident memory has {handle.nbytes}",
                        fix=f"allocate at least {b.nbytes} bytes for it",
                        handle=handle.id,
                    )
                if memory is None and b.output_index is not None and (self._may_allocate or b.nbytes):
                    if not self._may_allocate:
                        raise no_memory(b)
                    handle = self._residents.allocate(max(b.nbytes, 1))
                    self.fresh.append(handle)
                    memory = self._residents.find(handle, "an output")
                if handle is not None and b.output_index is not None:
                    self.outputs.append(handle)
                found.append(Placed(b, r, handle, memory))
        except BaseException:
            self.undo()
            raise
        return found

    def undo(self) -> None:
        """Free the outputs of a dispatch that failed."""
        for handle in self.fresh:
            self._residents.free(handle)
        self.fresh = []
