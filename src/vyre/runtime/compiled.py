"""A backend that compiles programs: what does not depend on where its code runs.

A program that reaches `compile_native` was admitted, by the guard or by `dispatch` of the backend itself.
"""

from __future__ import annotations

import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .. import __version__
from ..driver.admission.program import validate_program_for_backend
from ..driver.contract.backend import VyreBackend
from ..driver.contract.pending import FuturePending, PendingDispatch
from ..driver.contract.pipeline import CompiledPipeline
from ..driver.contract.profile import DeviceProfile
from ..driver.contract.values import (
    DEFAULT_CONFIG,
    Buffers,
    DispatchConfig,
    OutputBuffers,
    ResidentDispatchStep,
    ResidentHandle,
    ResidentReadRange,
    TimedDispatchResult,
    named,
)
from ..driver.plan.bounds import Counter
from ..errors import DispatchFailed
from ..foundation.forking import in_child
from ..foundation.ir.ops import CORE_IDS, EXPR_IDS, LITERAL_IDS, NODE_IDS
from ..foundation.ir.program import Program

if TYPE_CHECKING:
    from concurrent.futures import Future

    from typing_extensions import Buffer

    from .resident_memory import ResidentMemory

_ABSENT = frozenset(NODE_IDS[name] for name in ("AsyncLoad", "AsyncStore", "AsyncWait", "AllGather", "ReduceScatter"))
OPS = (CORE_IDS | {*NODE_IDS.values(), *EXPR_IDS.values(), *LITERAL_IDS.values()}) - _ABSENT
"""What the lowering makes kernels of; the value types that a target lacks are told by `BackendCapability.types`."""


class CompiledBackend(VyreBackend):
    """Compiled programs, resident memory and started dispatches of one processor or device."""

    version = __version__
    not_in_a_child: ClassVar[str]
    """What a forked process lacks of the backend, for the message."""
    after_fork: ClassVar[str]
    """What to do there instead."""

    def __init__(self) -> None:
        self.open = True
        self._forked = False
        self._lock = threading.RLock()
        self._futures: set[Future[OutputBuffers]] = set()
        self._compiled = Counter("compiled_programs", mode="pinning")
        self._loaded = Counter("loaded_programs", mode="pinning")
        self._started = Counter("async_dispatches", mode="pinning")
        _backends.add(self)

    # -- what a target gives

    @property
    @abstractmethod
    def residents(self) -> ResidentMemory[Any]:
        """Its resident memory. Raises unless the backend is open."""

    def on_thread(self, run: Callable[[], None]) -> None:
        """Let a thread run this, which never raises."""
        threading.Thread(target=run, name=f"vyre-{self.id}", daemon=True).start()

    def let_go(self) -> None:
        """This process was forked: threads and devices are its parent's."""

    # -- dispatch

    def dispatch(
        self, program: Program, inputs: Buffers, config: DispatchConfig = DEFAULT_CONFIG, *, out: Buffers | None = None
    ) -> OutputBuffers:
        pipeline, settled = self.pipeline(program, config)
        return pipeline.dispatch(inputs, settled, out=out)

    def dispatch_timed(
        self, program: Program, inputs: Buffers, config: DispatchConfig = DEFAULT_CONFIG, *, out: Buffers | None = None
    ) -> TimedDispatchResult:
        pipeline, settled = self.pipeline(program, config)
        return pipeline.dispatch_timed(inputs, settled, out=out)

    def dispatch_async(
        self, program: Program, inputs: Buffers, config: DispatchConfig = DEFAULT_CONFIG, *, out: Buffers | None = None
    ) -> PendingDispatch:
        pipeline, settled = self.pipeline(program, config)
        return pipeline.dispatch_async(inputs, settled, out=out)

    def pipeline(self, program: Program, config: DispatchConfig) -> tuple[CompiledPipeline, DispatchConfig]:
        """A program that came without the guard: admitted here, compiled, and with its config settled."""
        self.require_open()
        with named(getattr(config, "label", None)):
            settled = validate_program_for_backend(self, program, config)
            return self.compile_native(program, settled), settled

    def step_pipeline(self, step: ResidentDispatchStep) -> tuple[CompiledPipeline, DispatchConfig]:
        """The compiled program of a step, and its config; a step that came without the guard is compiled here."""
        if getattr(step.pipeline, "backend", None) is self:
            assert step.pipeline is not None
            return step.pipeline, step.config
        return self.pipeline(step.program, step.config)

    @abstractmethod
    def compile_native(self, program: Program, config: DispatchConfig) -> CompiledPipeline:
        """Compile a program that was admitted, with the workgroup that it is launched with."""

    # -- residency

    def allocate_resident(self, nbytes: int) -> ResidentHandle:
        return self.residents.allocate(nbytes)

    def upload_resident(self, ranges: Sequence[tuple[ResidentHandle, int, Buffer]]) -> None:
        self.residents.upload(ranges)

    def download_resident(
        self, ranges: Sequence[ResidentReadRange], *, out: Sequence[Buffer] | None = None
    ) -> OutputBuffers:
        return self.residents.download(ranges, out)

    def free_resident(self, resource: ResidentHandle) -> None:
        self.residents.free(resource)

    # -- lifecycle

    def flush(self) -> None:
        if self._forked:
            return  # nothing that the other process started ever ends here
        with self._lock:
            futures = tuple(self._futures)
        for future in futures:
            future.exception()  # the failure belongs to the holder of the handle

    def require_open(self) -> None:
        if self._forked:
            raise DispatchFailed(
                "the backend was opened by the process that this one was forked from, and "
                f"{self.not_in_a_child} not here",
                fix=self.after_fork,
                backend=self.id,
            )
        if not self.open:
            raise DispatchFailed("the backend was shut down", fix="acquire it again", backend=self.id)

    # -- facts

    def device_profile(self) -> DeviceProfile:
        return DeviceProfile(
            backend=self.id,
            device=self.device,
            supports_trap_propagation=True,
            has_mul_high=True,
            has_shared_memory=True,
            max_native_int_width=64,
            max_workgroup_size=self.max_workgroup_size,
            max_invocations_per_workgroup=self.max_invocations_per_workgroup,
            max_shared_memory_bytes=self.capability.max_shared_bytes,
            max_storage_buffer_binding_size=self.max_storage_buffer_bytes,
        )

    def metrics(self) -> Mapping[str, int]:
        return {c.name: c.value for c in (self._compiled, self._loaded, self._started)}

    # -- for pipelines

    def start(self, work: Callable[[], OutputBuffers]) -> PendingDispatch:
        """Let a thread finish a dispatch in which the host takes part."""
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
            self.on_thread(run)
        except BaseException:
            with self._lock:
                self._futures.discard(future)
            raise
        self._started.add()
        return FuturePending(future)


_backends: weakref.WeakSet[CompiledBackend] = weakref.WeakSet()


@in_child
def _mark_forked() -> None:
    for backend in list(_backends):
        backend._lock = threading.RLock()  # the thread that held it is not here
        backend.open, backend._forked = False, True
        backend.let_go()
