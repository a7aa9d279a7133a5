"""The one boundary: every backend that is acquired stands behind a guard.

A dispatch of the guard finds the program's pipeline and goes through the funnel, where admission, limits, deadlines and
counting are. Everything else of the contract reaches the backend: facts as they are, calls to the device only while it
is there, and their failures as errors of ours.
"""

from __future__ import annotations

import weakref
from abc import update_abstractmethods
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, wraps
from inspect import getattr_static, isfunction, unwrap
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from ...errors import (
    ArgumentTypeError,
    BackendError,
    DeadlineExceeded,
    DeviceLost,
    DispatchFailed,
    UnsupportedFeature,
    VyreError,
)
from ...foundation.memo import keep
from ..admission.gates import gates
from ..admission.program import validate_program_for_backend
from ..contract.backend import QUERIES, VyreBackend
from ..contract.capability import BackendCapability
from ..contract.pending import PendingDispatch
from ..contract.pipeline import CompiledPipeline
from ..contract.values import (
    DEFAULT_CONFIG,
    Buffers,
    DispatchConfig,
    OutputBuffers,
    ResidentDispatchStep,
    ResidentHandle,
    ResidentReadRange,
    ResidentSequenceTiming,
    TimedDispatchResult,
)
from ..counters import FAILED, RESIDENT, TALLY
from ..device_state import DeviceState, Phase, WatchedBackend
from ..execute.compile import check_arguments, compile_on
from ..execute.pipeline import DriverPipeline
from ..observers import Dispatched, Living, told_call, watching
from ..pipeline.cache import PipelineCache
from ..pipeline.compiler import PassthroughPipeline, find, key_of, pipelines_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ...foundation.ir.program import Program
    from ..contract.profile import PipelineCacheSnapshot

T = TypeVar("T")
DEVICE_STATE_ATTRIBUTE = "_vyre_device_state"
GUARD_ATTRIBUTE = "_vyre_guard"
"""In the instance, as its pipelines are and for the same reason and price: see `PIPELINE_CACHE_ATTRIBUTE`."""
FACTS = frozenset(("supported_ops", "device_profile", "metrics", "pipeline_cache_snapshot"))
"""Members that are asked of the backend whatever the state of its device."""
NO_RANGES: tuple[()] = ()  # Python has one empty tuple
acquired: Living[GuardedBackend] = Living()
"""Those to which a reference is left."""
_MAX_HANDLES = 256
"""Programs, each with a config, that a guard dispatches without looking for their pipelines again."""


def guarded(backend: VyreBackend) -> GuardedBackend:
    """The backend behind its guard; a guard is its own."""
    if isinstance(backend, GuardedBackend):
        return backend
    known: weakref.ref[GuardedBackend] | None = vars(backend).get(GUARD_ATTRIBUTE)
    guard = None if known is None else known()
    if guard is None:
        guard = GuardedBackend(backend)
        vars(backend)[GUARD_ATTRIBUTE] = weakref.ref(guard)
    return guard


def _listed(what: str, given: Any) -> Any:
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise ArgumentTypeError(f"{what} is a {type(given).__name__}, not a list", fix=f"pass the {what} as a list")
    return given


def _forwarding(cls: type[GuardedBackend]) -> type[GuardedBackend]:
    """Let every member of the contract reach the backend unless the guard has its own, also those added later."""
    for name in vars(VyreBackend):
        if name.startswith("_") or name in QUERIES or name in vars(cls) or name == "contract":
            continue
        member = getattr_static(VyreBackend, name)
        setattr(cls, name, _method(name, member) if isfunction(member) else property(_attribute(name)))
    return update_abstractmethods(cls)


def _attribute(name: str) -> Callable[[GuardedBackend], Any]:
    return lambda self: getattr(self.inner, name)


def _method(name: str, member: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(member)
    def fact(self: GuardedBackend, *args: Any, **options: Any) -> Any:
        return getattr(self.inner, name)(*args, **options)

    @wraps(member)
    def call(self: GuardedBackend, *args: Any, **options: Any) -> Any:
        return self.on_device(lambda: getattr(self.inner, name)(*args, **options))

    return fact if name in FACTS else call


class _Ready(NamedTuple):
    """The caller's step or steps, the epoch in which they were prepared, the backend's form of them, and its code."""

    given: object
    epoch: int
    steps: Any
    code: object = None
    """Held, because code is closed with its last holder."""


@_forwarding
class GuardedBackend(WatchedBackend):
    """A backend and the state of its device. `inner` is the backend itself."""

    def __init__(self, inner: VyreBackend) -> None:
        facts: object = inner.capability
        if not isinstance(facts, BackendCapability):
            raise BackendError(
                f"the capability record of backend {inner.id} is {type(facts).__name__}",
                fix="correct the backend: set capability = BackendCapability(...)",
                backend=inner.id,
            )
        self.inner = inner
        self.pipelines: PipelineCache = pipelines_of(inner)
        fresh = DeviceState(inner.id, self.pipelines)
        self.device_state: DeviceState = vars(inner).setdefault(DEVICE_STATE_ATTRIBUTE, fresh)
        self._handles: dict[object, DriverPipeline] = {}
        self._steps: dict[int, _Ready] = {}
        acquired.add(self)

    @property
    def id(self) -> str:
        return self.inner.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.inner!r}>"

    # -- dispatch

    def dispatch(
        self, program: Program, inputs: Buffers, config: DispatchConfig = DEFAULT_CONFIG, *, out: Buffers | None = None
    ) -> OutputBuffers:
        return self._handle(program, config).dispatch(inputs, out=out)

    dispatch_borrowed = dispatch

    def dispatch_timed(
        self, program: Program, inputs: Buffers, config: DispatchConfig = DEFAULT_CONFIG, *, out: Buffers | None = None
    ) -> TimedDispatchResult:
        return self._handle(program, config).dispatch_timed(inputs, out=out)

    def dispatch_async(
        self, program: Program, inputs: Buffers, config: DispatchConfig = DEFAULT_CONFIG, *, out: Buffers | None = None
    ) -> PendingDispatch:
        return self._handle(program, config).dispatch_async(inputs, out=out)

    def supported_ops(self) -> frozenset[str]:
        return frozenset(self.inner.supported_ops())  # which is the same object, unless the author gave another set

    def compile_native(self, program: Program, config: DispatchConfig) -> CompiledPipeline:
        """The program compiled, behind the same guard."""
        return compile_on(self, program, config, in_time=False).pipeline

    def _handle(self, program: Program, config: DispatchConfig) -> DriverPipeline:
        """The pipeline of a program, looked for once per config and state of the device."""
        try:
            key = (program.fingerprint, config, self.pipelines.epoch, gates())
            handle = self._handles.get(key)
        except (AttributeError, TypeError, VyreError):  # no program, no config, or one that cannot be encoded
            return compile_on(self, program, config, in_time=False).pipeline  # which raises the error
        if handle is None:
            handle = compile_on(self, program, config, in_time=True).pipeline
            keep(self._handles, key, handle, _MAX_HANDLES)
        return handle

    # -- residency

    def allocate_resident(self, nbytes: int) -> ResidentHandle:
        return self.device_state.stamp(self.on_device(lambda: self.inner.allocate_resident(nbytes)))

    def upload_resident(self, ranges: Sequence[tuple[ResidentHandle, int, Buffer]]) -> None:
        own = []
        for each in _listed("ranges", ranges):
            if not isinstance(each, tuple | list) or len(each) != 3:
                raise ArgumentTypeError(
                    f"a range to upload is a {type(each).__name__}", fix="pass [(handle, byte offset, data), ...]"
                )
            handle, offset, data = each
            own.append((self.device_state.unstamp(handle), offset, data))
        self.on_device(lambda: self.inner.upload_resident(own))

    def download_resident(
        self, ranges: Sequence[ResidentReadRange], *, out: Sequence[Buffer] | None = None
    ) -> OutputBuffers:
        own = self._own(ranges)
        return self.on_device(lambda: self.inner.download_resident(own, out=out))

    def free_resident(self, resource: ResidentHandle) -> None:
        own = self.device_state.unstamp(resource)
        self.on_device(lambda: self.inner.free_resident(own))

    def dispatch_resident(
        self,
        steps: Sequence[ResidentDispatchStep],
        *,
        reads: Sequence[ResidentReadRange] = NO_RANGES,
        repeat: int = 1,
        timed: bool = False,
    ) -> tuple[OutputBuffers, ResidentSequenceTiming | None]:
        ready = self._ready(steps)
        ranges = self._own(reads)
        numbers = TALLY.numbers
        try:
            run = partial(self.inner.dispatch_resident, ready.steps, reads=ranges, repeat=repeat, timed=timed)
            if observers := watching():
                names = dict.fromkeys(step.program.name or "program" for step in ready.steps)
                about = Dispatched(self.id, " + ".join(names), "", 0, 0, "resident")
                found = told_call(self.on_device, about, observers)(run)
            else:
                found = self.on_device(run)
        except UnsupportedFeature:  # which it says before anything runs: the caller may have another way
            raise
        except Exception:
            numbers[RESIDENT] += 1
            numbers[FAILED] += 1
            raise
        numbers[RESIDENT] += 1
        return found

    def _ready(self, steps: Sequence[ResidentDispatchStep]) -> _Ready:
        """Steps over memory of this incarnation, each with its program admitted and compiled.

        A tuple of steps that was looked at is not looked at again, and equal ones stay the same objects: backends
        remember steps by identity.
        """
        state, epoch = self.device_state, self.pipelines.epoch
        known = self._steps.get(id(steps))
        if known is not None and known.given is steps and known.epoch == epoch:
            return known
        for step in _listed("steps", steps):
            if not isinstance(step, ResidentDispatchStep):
                raise ArgumentTypeError(
                    f"a step is a {type(step).__name__}", fix="pass [ResidentDispatchStep(program, resources), ...]"
                )
            for resource in _listed("resources of a step", step.resources):
                state.unstamp(resource)
        if unwrap(type(self.inner).dispatch_resident) is VyreBackend.dispatch_resident:
            return _Ready(steps, epoch, steps)  # which it refuses
        self.require_usable()
        each = [self._compiled(step) for step in steps]
        found = [ready.steps for ready in each]
        ready = _Ready(steps, epoch, tuple(found) if type(steps) is tuple else found, tuple(r.code for r in each))
        if type(steps) is tuple and all(type(step.resources) is tuple for step in steps):
            self._keep(steps, ready)
        return ready

    def _compiled(self, step: ResidentDispatchStep) -> _Ready:
        """One step. It stays one launch: nothing splits a program over memory that is not the host's."""
        epoch = self.pipelines.epoch
        known = self._steps.get(id(step))
        if known is not None and known.given is step and known.epoch == epoch:
            return known
        check_arguments(step.program, step.config)
        settled = validate_program_for_backend(self.inner, step.program, step.config)
        code = find(self, step.program, key_of(self, step.program, settled), None).entry
        native = None if isinstance(code.native, PassthroughPipeline) else code.native
        ready = _Ready(step, epoch, replace(step, pipeline=native), code)
        self._keep(step, ready)
        return ready

    def _keep(self, given: object, ready: _Ready) -> None:
        # By identity (0.05 us), since a hash of steps goes through their programs and configs (3 us a config). `ready`
        # holds the caller's object, so that no other object can have its id as long as this is kept.
        keep(self._steps, id(given), ready, _MAX_HANDLES)

    def _own(self, ranges: Sequence[ResidentReadRange]) -> list[ResidentReadRange]:
        own: list[ResidentReadRange] = []
        if ranges is NO_RANGES:  # what most resident dispatches read: a warm one spares a microsecond
            return own
        for r in _listed("ranges", ranges):
            if not isinstance(r, ResidentReadRange):
                raise ArgumentTypeError(
                    f"a range to read is a {type(r).__name__}",
                    fix="pass [ResidentReadRange(handle, byte offset, byte length), ...]",
                )
            self.device_state.unstamp(r.resource)
            own.append(r)
        return own

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError(
            f"the open backend {self.id} cannot be pickled or copied",
            fix="send its name, and call vyre.acquire() on the other side",
        )

    def pipeline_cache_snapshot(self) -> PipelineCacheSnapshot:
        """Of the backend's own cache, if it counts; else of the driver's, which every program goes through."""
        found = self.inner.pipeline_cache_snapshot()
        return self.pipelines.snapshot() if found is None else found

    # -- lifecycle

    def flush(self) -> None:
        self.on_device(self.inner.flush)
        for pending in self.device_state.watched():
            try:
                pending._settle(None)
            except Exception:  # kept in the handle, whose `result` raises it
                continue
        self.device_state.require_open()

    def shutdown(self) -> None:
        if not self.device_state.shut():
            return
        self._handles.clear()
        self._steps.clear()
        self.device_state.drain()
        self._typed(self.inner.shutdown)

    def device_lost(self) -> bool:
        return self.device_state.phase not in (Phase.OPEN, Phase.SHUT) or self._is_lost()

    def try_recover(self) -> None:
        """Rebuild the device's state. It waits half a second for running calls, and no longer."""
        if unwrap(type(self.inner).try_recover) is VyreBackend.try_recover:
            self.inner.try_recover()  # which refuses, and nothing has ended
        self._handles.clear()
        self._steps.clear()
        self.device_state.recover(lambda: self._typed(self.inner.try_recover), self._is_lost)

    def __exit__(self, *_: object) -> None:
        try:
            if self.device_state.phase is Phase.OPEN:  # else flushing would hide why the block ended
                self.flush()
        finally:
            self.shutdown()

    # -- the device

    def require_usable(self) -> None:
        """Raise DeviceLost unless the device is there. One that was lost to a deadline is recovered."""
        state = self.device_state
        if state.phase is Phase.LOST and state.out_of_time:
            with suppress(UnsupportedFeature):
                self.try_recover()
        state.require_open()
        if self._is_lost():
            state.lose()
            state.require_open()

    def on_device(self, call: Callable[[], T]) -> T:
        """The result of `call`, if the device is there."""
        self.require_usable()
        state, epoch = self.device_state, self.pipelines.epoch
        state.inflight.append(None)
        try:
            state.require_open()  # again: from now on, recovery waits for us
            try:
                return call()
            except Exception as e:
                error = self.failure(e, epoch)
                if error is e:
                    raise
                raise error from e
        finally:
            state.inflight.pop()

    def failure(self, error: Exception, epoch: int, **context: Any) -> VyreError:
        """The error that the caller gets for the backend's. On a device that is gone, every failure is its loss."""
        state = self.device_state
        current = state.pipelines.epoch == epoch
        if isinstance(error, DeadlineExceeded):
            if current and self._is_lost():
                state.lose(out_of_time=True)
            return error
        if current and (isinstance(error, DeviceLost) or self._is_lost()):
            state.lose()
        if isinstance(error, DeviceLost):
            return error
        if state.pipelines.epoch != epoch and state.phase not in (Phase.BUSY, Phase.SHUT):
            return state.refusal(**context)
        return error if isinstance(error, VyreError) else self._raised(error, **context)

    def _is_lost(self) -> bool:
        try:
            return bool(self.inner.device_lost())
        except Exception:  # a backend that cannot say is still used, and its failure is logged
            import logging  # which costs milliseconds, and is needed only here

            logging.getLogger("vyre.guard").warning("device_lost() of backend %s raised", self.id, exc_info=True)
            return False

    def _typed(self, method: Callable[[], None]) -> None:
        try:
            method()
        except VyreError:
            raise
        except Exception as e:
            raise self._raised(e) from e

    def _raised(self, error: Exception, **context: Any) -> DispatchFailed:
        return DispatchFailed(
            f"backend {self.id} raised {type(error).__name__}: {error}",
            fix="read the chained error, and correct the backend or what it was given",
            backend=self.id,
            **context,
        )
