"""A backend on a device with memory of its own: everything but the target's library and its language.

A concrete backend says how to open its device and how to build a program for it. What lives on the device (the queue,
pooled and resident memory, loaded code) is one session; recovery ends a session and begins another.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..driver.admission.program import validate_program_for_backend
from ..driver.contract.backend import VyreBackend
from ..driver.contract.pending import FuturePending, PendingDispatch
from ..driver.contract.profile import DeviceProfile, DeviceTimingQuality
from ..driver.contract.values import (
    DEFAULT_CONFIG,
    Dims,
    DispatchConfig,
    OutputBuffers,
    ResidentDispatchStep,
    ResidentHandle,
    ResidentReadRange,
    ResidentSequenceTiming,
    TimedDispatchResult,
    named,
)
from ..driver.guard.compile import code_for
from ..driver.plan.bounds import Counter
from ..driver.plan.launch import resolve_workgroup
from ..errors import DeviceLost, DispatchFailed, VyreError
from ..foundation.ir.ops import CORE_IDS, EXPR_IDS, LITERAL_IDS, NODE_IDS
from ..foundation.ir.program import Program
from .device import Built, Device, Facts, Ticket
from .memory_pool import Pool
from .pipeline import OffloadPipeline, WorkPending
from .resident import Residents, run_steps

if TYPE_CHECKING:
    from concurrent.futures import Future

    from typing_extensions import Buffer

_ABSENT = frozenset(NODE_IDS[name] for name in ("AsyncLoad", "AsyncStore", "AsyncWait", "AllGather", "ReduceScatter"))
OPS = (CORE_IDS | {*NODE_IDS.values(), *EXPR_IDS.values(), *LITERAL_IDS.values()}) - _ABSENT
"""What the lowering makes kernels of; the value types that a target lacks are told by `BackendCapability.types`."""

MAX_ROUNDS = 64
"""That a device keeps; who loses one may get another."""


class Session:
    """A device in use, and what lies on it."""

    def __init__(self, device: Device, backend: str) -> None:
        self.device = device
        self.pool = Pool(device)
        self.residents = Residents(device, self.pool, backend)
        self._repeated: list[weakref.ref[Any]] = []
        self._lock = threading.Lock()
        self.left: Ticket | None = None
        """Work that was left behind: until it ends, if ever, the device counts as lost."""

    @property
    def lost(self) -> bool:
        left = self.left
        if left is not None and not self.device.lost():
            try:
                if not left.done():
                    return True
            except VyreError:
                pass  # it failed, and so has ended
            self.left = None
        return self.device.lost()

    def keep(self, planned: Any) -> None:
        """A dispatch has got a `Round`; who got his long ago loses it."""
        with self._lock:
            alive = [ref for ref in self._repeated if ref() is not None]
            alive.append(weakref.ref(planned))
            spare, self._repeated = alive[:-MAX_ROUNDS], alive[-MAX_ROUNDS:]
        for oldest in (ref() for ref in spare):
            if oldest is not None:
                oldest.lose()

    def close(self) -> None:
        with suppress(VyreError):  # of a device that is gone
            self.device.close()  # first: nobody may use memory that is released
        with suppress(VyreError):
            self.residents.close()
            self.pool.clear()  # pipelines from before may keep this alive for a while


class OffloadBackend(VyreBackend):
    """Kernels on a device of its own.

    A subclass sets `id` and `capability`, and gives the three abstract members. `capability.ops` is `OPS`, unless the
    target lacks some of it.
    """

    version = __version__

    def __init__(self) -> None:
        self.open = True
        self._forked = False
        self._session: Session | None = None
        self._lock = threading.RLock()
        self._pending: weakref.WeakSet[WorkPending] = weakref.WeakSet()
        self._futures: set[Future[OutputBuffers]] = set()
        self._compiled = Counter("compiled_programs", mode="pinning")
        self._loaded = Counter("loaded_programs", mode="pinning")
        self._started = Counter("async_dispatches", mode="pinning")
        _backends.add(self)

    # -- what a target gives

    @abstractmethod
    def open_device(self) -> Device:
        """The device, ready for work. Called on first use and by recovery, from any thread, one at a time."""

    @abstractmethod
    def build(self, device: Device, program: Program, *, poll: bool, ulp_budget: int = 0) -> Built:
        """Compile a program that was admitted; its workgroup size is that of the launch.

        `ulp_budget` is a permission: code that is exact is within any.
        """

    @abstractmethod
    def number(self, share: Any, lengths: Sequence[int]) -> int:
        """The value of plain data in `Facts` for buffers of these lengths by slot (see `lower.shares`)."""

    def check_launch(
        self,
        facts: Facts,
        lengths: Sequence[int],
        grid: Dims | None,
        word: Callable[[int, int], int | None] | None = None,
    ) -> None:
        """Raise UnsupportedFeature if the device cannot run this code to its end over buffers of these lengths.

        `grid` is None where it lies in memory. A refusal is asked for again with `word`, which gives an element of an
        input by slot and index, where the host knows it.
        """

    # -- dispatch

    def dispatch(
        self,
        program: Program,
        inputs: Sequence[Buffer],
        config: DispatchConfig = DEFAULT_CONFIG,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> OutputBuffers:
        pipeline, settled = self.pipeline(program, config)
        return pipeline.dispatch(inputs, settled, out=out)

    def dispatch_timed(
        self,
        program: Program,
        inputs: Sequence[Buffer],
        config: DispatchConfig = DEFAULT_CONFIG,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> TimedDispatchResult:
        pipeline, settled = self.pipeline(program, config)
        return pipeline.dispatch_timed(inputs, settled, out=out)

    def dispatch_async(
        self,
        program: Program,
        inputs: Sequence[Buffer],
        config: DispatchConfig = DEFAULT_CONFIG,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> PendingDispatch:
        pipeline, settled = self.pipeline(program, config)
        return pipeline.dispatch_async(inputs, settled, out=out)

    def compile_native(self, program: Program, config: DispatchConfig) -> OffloadPipeline:
        session = self.session()
        program = self._admitted(program, config)
        polls = config.timeout is not None and session.device.polls
        built = self.build(session.device, program, poll=polls, ulp_budget=config.ulp_budget or 0)
        pipeline = OffloadPipeline(self, session, program, config, built)
        self._compiled.add()
        return pipeline

    def load_native(self, program: Program, config: DispatchConfig, payload: bytes) -> OffloadPipeline:
        """The pipeline that `serialize` gave these bytes of. The driver's key says that they are for this device."""
        session, program = self.session(), self._admitted(program, config)
        loaded = OffloadPipeline(self, session, program, config, Built.from_bytes(payload))
        self._loaded.add()
        return loaded

    # -- residency

    def allocate_resident(self, nbytes: int) -> ResidentHandle:
        return self.session().residents.allocate(nbytes)

    def upload_resident(self, ranges: Sequence[tuple[ResidentHandle, int, Buffer]]) -> None:
        self.session().residents.upload(ranges)

    def download_resident(
        self, ranges: Sequence[ResidentReadRange], *, out: Sequence[Buffer] | None = None
    ) -> OutputBuffers:
        return self.session().residents.download(ranges, out)

    def free_resident(self, resource: ResidentHandle) -> None:
        self.session().residents.free(resource)

    def dispatch_resident(
        self,
        steps: Sequence[ResidentDispatchStep],
        *,
        reads: Sequence[ResidentReadRange] = (),
        repeat: int = 1,
        timed: bool = False,
    ) -> tuple[OutputBuffers, ResidentSequenceTiming | None]:
        return run_steps(self, self.session(), steps, reads, repeat, timed=timed)

    # -- lifecycle

    def prepare(self) -> None:
        self.session()

    def flush(self) -> None:
        if self._forked:
            return  # nothing that the other process started ever ends here
        with self._lock:
            session, futures = self._session, tuple(self._futures)
            pending = tuple(self._pending) if self._pending else ()
        for future in futures:
            future.exception()  # the failure belongs to whoever holds the handle
        for started in pending:
            started.settle()
        if session is not None and not session.lost:
            session.device.finish()

    def shutdown(self) -> None:
        if self._forked:
            return
        if self.open:
            self.flush()
        with self._lock:
            self.open = False
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def device_lost(self) -> bool:
        session = self._session
        return session is not None and session.lost

    def try_recover(self) -> None:
        with self._lock:
            self.require_open()
            old, self._session = self._session, None
            if old is not None:
                old.close()
            self._session = Session(self.open_device(), self.id)

    # -- facts

    def device_profile(self) -> DeviceProfile:
        facts = self.capability
        return DeviceProfile(
            backend=self.id,
            device=self.device,
            supports_trap_propagation=True,
            has_mul_high=True,
            has_shared_memory=True,
            max_native_int_width=64,
            max_workgroup_size=self.max_workgroup_size,
            max_invocations_per_workgroup=self.max_invocations_per_workgroup,
            max_shared_memory_bytes=facts.max_shared_bytes,
            max_storage_buffer_binding_size=self.max_storage_buffer_bytes,
            timing_quality=DeviceTimingQuality.DEVICE_TIMESTAMPS,
            supports_device_timestamps=True,
        )

    def metrics(self) -> Mapping[str, int]:
        counted = {c.name: c.value for c in (self._compiled, self._loaded, self._started)}
        session = self._session
        return (
            counted
            | (session.device.counts() if session is not None else {})
            | {
                "pooled_pieces_reused": 0 if session is None else session.pool.reused,
                "pooled_idle_bytes": 0 if session is None else session.pool.idle_bytes,
                "resident_bytes": 0 if session is None else session.residents.nbytes,
            }
        )

    # -- for pipelines

    def session(self) -> Session:
        """The device, opened by the first who needs it."""
        session = self._session
        if session is None or not self.open:
            with self._lock:
                self.require_open()
                if self._session is None:
                    self._session = Session(self.open_device(), self.id)
                session = self._session
        return session

    def require(self, session: Session) -> None:
        """Raise unless the backend is open and this is its device still."""
        if self._session is session:
            if session.left is not None and session.lost:
                raise DeviceLost(
                    "work that nobody waits for any longer still runs on the device",
                    fix="wait until it ends, or call try_recover() on the backend and compile again",
                    backend=self.id,
                )
            return
        self.require_open()
        raise DeviceLost(
            "the device was recovered after this pipeline was compiled",
            fix="compile the program again",
            backend=self.id,
        )

    def require_open(self) -> None:
        if self._forked:
            raise DispatchFailed(
                "the backend was opened by the process that this one was forked from, and its device is not here",
                fix="use the spawn start method",
                backend=self.id,
            )
        if not self.open:
            raise DispatchFailed("the backend was shut down", fix="acquire it again", backend=self.id)

    def watch(self, pending: WorkPending) -> WorkPending:
        """A dispatch was started; whoever flushes waits for it."""
        with self._lock:
            self._pending.add(pending)
        self._started.add()
        return pending

    def start(self, work: Callable[[], OutputBuffers]) -> PendingDispatch:
        """Let a thread of its own run a dispatch in which the host takes part."""
        from concurrent.futures import Future  # 10 ms that only these pay

        future: Future[OutputBuffers] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as e:
                future.set_exception(e)
            with self._lock:
                self._futures.discard(future)

        with self._lock:
            self._futures.add(future)
        try:
            threading.Thread(target=run, name=f"vyre-{self.id}", daemon=True).start()
        except BaseException:
            with self._lock:
                self._futures.discard(future)
            raise
        self._started.add()
        return FuturePending(future)

    def pipeline(self, program: Program, config: DispatchConfig) -> tuple[OffloadPipeline, DispatchConfig]:
        """The compiled program, and the settled config."""
        self.require_open()
        with named(getattr(config, "label", None)):
            settled = validate_program_for_backend(self, program, config)
            native = code_for(self, program, settled).native
        assert isinstance(native, OffloadPipeline)
        return native, settled

    def _admitted(self, program: Program, config: DispatchConfig) -> Program:
        """The program with the workgroup that it is launched with."""
        validate_program_for_backend(self, program, config)
        size = resolve_workgroup(program, config)
        if size == program.workgroup_size:
            return program
        return program._cached(("workgroup", size), lambda: program.replace(workgroup_size=size))


_backends: weakref.WeakSet[OffloadBackend] = weakref.WeakSet()
_left: list[Session] = []


def _mark_forked() -> None:
    for backend in list(_backends):
        backend._lock = threading.RLock()  # whoever held it is not here
        backend.open, backend._forked = False, True
        if backend._session is not None:
            _left.append(backend._session)  # whose release is up to the process that it belongs to
            backend._session = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)
