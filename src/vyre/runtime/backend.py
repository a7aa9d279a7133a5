"""A backend on a device with memory of its own: everything but the target's library and its language.

A concrete backend says how to open its device and how to build a program for it. The state on the device (the queue,
pooled and resident memory, loaded code) is one session; recovery ends a session and begins another.
"""

from __future__ import annotations

import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from ..driver.contract.profile import DeviceProfile, DeviceTimingQuality
from ..driver.contract.values import (
    Dims,
    DispatchConfig,
    OutputBuffers,
    ResidentDispatchStep,
    ResidentReadRange,
    ResidentSequenceTiming,
)
from ..driver.plan.launch import as_launched
from ..errors import BackendUnavailable, DeviceLost, VyreError
from ..foundation.ir.program import Program
from .compiled import CompiledBackend
from .device import Artifact, Code, Device, LaunchFacts, Ticket
from .memory_pool import MemoryPool
from .pipeline import OffloadPipeline, WorkPending
from .resident import Residents, run_steps
from .resident_memory import NO_TRANSFERS
from .work import compares

MAX_SMALL_DISPATCHES = 64
"""Recordings of small dispatches that a device keeps; a dispatch that loses its own may get another."""


class Session:
    """A device in use, and what lies on it."""

    def __init__(self, device: Device, backend: str) -> None:
        self.device = device
        self.pool = MemoryPool(device)
        self.residents = Residents(device, self.pool, backend)
        self._repeated: list[weakref.ref[Any]] = []
        self._comparing: Code = None
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
        """A dispatch was recorded as a `SmallDispatch`; the one that was recorded longest ago loses its recording."""
        with self._lock:
            alive = [ref for ref in self._repeated if ref() is not None]
            alive.append(weakref.ref(planned))
            spare, self._repeated = alive[:-MAX_SMALL_DISPATCHES], alive[-MAX_SMALL_DISPATCHES:]
        for oldest in (ref() for ref in spare):
            if oldest is not None:
                oldest.lose()

    def comparing(self, backend: OffloadBackend) -> Code:
        """Code that compares memory with a copy of it; see `work.Compared`."""
        with self._lock:
            if self._comparing is None:
                self._comparing = self.device.load(backend.build(self.device, compares(), poll=False))
            return self._comparing

    def close(self) -> None:
        with suppress(VyreError):  # of a device that is gone
            self.device.close()  # first: no thread may use memory that is released
        with suppress(VyreError):
            self.residents.close()
            self.pool.clear()  # pipelines from before may keep this alive for a while


class OffloadBackend(CompiledBackend):
    """Kernels on a device of its own.

    A subclass sets `id` and `capability`, and gives the three abstract members. `capability.ops` is `OPS`, unless the
    target lacks some of it.
    """

    not_in_a_child = "its device is"
    after_fork = "use the spawn start method"

    def __init__(self) -> None:
        super().__init__()
        self._session: Session | None = None
        self._pending: weakref.WeakSet[WorkPending] = weakref.WeakSet()

    # -- what a target gives

    @abstractmethod
    def open_device(self) -> Device:
        """The device, ready for work. Called on first use and by recovery, from any thread, one at a time."""

    @abstractmethod
    def build(self, device: Device, program: Program, *, poll: bool, ulp_budget: int = 0) -> Artifact:
        """Compile a program that was admitted; its workgroup size is that of the launch.

        `ulp_budget` is a permission: code that is exact is within any.
        """

    def check_launch(
        self,
        facts: LaunchFacts,
        lengths: Sequence[int],
        grid: Dims | None,
        word: Callable[[int, int], int | None] | None = None,
    ) -> None:
        """Raise UnsupportedFeature if the device cannot run this code to its end over buffers of these lengths.

        `grid` is None where it lies in memory. A refusal is asked for again with `word`, which gives an element of an
        input by slot and index, where the host knows it.
        """

    def compile_native(self, program: Program, config: DispatchConfig) -> OffloadPipeline:
        session = self.session()
        program = as_launched(program, config)
        polls = config.timeout is not None and session.device.polls
        built = self.build(session.device, program, poll=polls, ulp_budget=config.ulp_budget or 0)
        pipeline = OffloadPipeline(self, session, program, config, built)
        self._compiled.add()
        return pipeline

    def load_native(self, program: Program, config: DispatchConfig, payload: bytes) -> OffloadPipeline:
        """The pipeline that `serialize` gave these bytes of. The driver's key says that they are for this device."""
        program, built = as_launched(program, config), Artifact.from_bytes(payload)
        loaded = OffloadPipeline(self, self.session(), program, config, built)
        self._loaded.add()
        return loaded

    # -- residency

    @property
    def residents(self) -> Residents:
        return self.session().residents

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
        super().flush()
        with self._lock:
            session, pending = self._session, tuple(self._pending) if self._pending else ()
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
        return replace(
            super().device_profile(),
            timing_quality=DeviceTimingQuality.DEVICE_TIMESTAMPS,
            supports_device_timestamps=True,
        )

    def metrics(self) -> Mapping[str, int]:
        session = self._session
        return (
            dict(super().metrics())
            | (session.device.counts() if session is not None else {})
            | {
                "pooled_pieces_reused": 0 if session is None else session.pool.reused,
                "pooled_idle_bytes": 0 if session is None else session.pool.idle_bytes,
                "resident_bytes": 0 if session is None else session.residents.nbytes,
            }
            | (NO_TRANSFERS if session is None else session.residents.transfers())
        )

    # -- for pipelines

    def session(self) -> Session:
        """The device, opened by the first call that needs it."""
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
                    "work that no caller waits for any longer still runs on the device",
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

    def watch(self, pending: WorkPending) -> WorkPending:
        """A dispatch was started; `flush` waits for it."""
        with self._lock:
            self._pending.add(pending)
        self._started.add()
        return pending

    def let_go(self) -> None:
        if self._session is not None:
            _left.append(self._session)  # which only its own process may release
            self._session = None


_left: list[Session] = []


class Named(Protocol):
    """A device that was found."""

    @property
    def name(self) -> str: ...


F = TypeVar("F", bound=Named)


def chosen_device(known: Sequence[F], device: object, kind: str, backend: str) -> F:
    """The device with this index, or the first."""
    index = 0 if device is None else device
    if type(index) is int and 0 <= index < len(known):
        return known[index]
    listed = ", ".join(f"{k} ({f.name})" for k, f in enumerate(known))
    raise BackendUnavailable(
        f"there is no {kind} device {index!r}",
        fix=f"use one of: {listed}" if known else "install a driver",
        backend=backend,
    )
