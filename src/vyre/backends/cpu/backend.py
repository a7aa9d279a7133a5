"""The processor as a backend: kernels compiled for exactly this one, on all of its cores.

Opening it loads the compiler, to ask which processor this is; threads are started by the first dispatch that is worth
them.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...driver.admission.program import validate_program_for_backend
from ...driver.contract.backend import VyreBackend
from ...driver.contract.capability import BackendCapability
from ...driver.contract.pending import FuturePending, PendingDispatch
from ...driver.contract.profile import DeviceProfile
from ...driver.contract.values import (
    DEFAULT_CONFIG,
    U32_MAX,
    DispatchConfig,
    OutputBuffers,
    ResidentDispatchStep,
    ResidentHandle,
    ResidentReadRange,
    ResidentSequenceTiming,
    named,
)
from ...driver.guard.compile import code_for
from ...driver.plan.bounds import Counter
from ...driver.plan.launch import resolve_workgroup
from ...errors import DispatchFailed
from ...foundation.ir.ops import CORE_IDS, EXPR_IDS, LITERAL_IDS, NODE_IDS
from ...foundation.ir.program import Program
from .build import Built, Switches, build
from .exactness import why_not_hardware
from .jit import Host, host
from .memory import Pages
from .pipeline import CpuPipeline
from .pool import Pool, thread_count

if TYPE_CHECKING:
    from concurrent.futures import Future

    from typing_extensions import Buffer

    from .resident import HostExchange, HostResidents

_ABSENT = frozenset(NODE_IDS[name] for name in ("AsyncLoad", "AsyncStore", "AsyncWait", "AllGather", "ReduceScatter"))
_OPS = (CORE_IDS | {*NODE_IDS.values(), *EXPR_IDS.values(), *LITERAL_IDS.values()}) - _ABSENT


class CpuBackend(VyreBackend):
    """Machine code for the processor that runs it."""

    id = "cpu"
    version = __version__

    def __init__(self, switches: Switches | None = None, threads: int | None = None) -> None:
        """`switches` change how code is made, and `threads` on how many threads it runs; never what it computes."""
        self.switches = Switches() if switches is None else switches
        self.threads = thread_count() if threads is None else threads
        self.host = host()
        why = "the caller asks for it" if self.switches.soft_flush else why_not_hardware(self.host)
        if why is not None:
            self.switches = replace(self.switches, soft_flush=True)
        self.capability = capability(self.host, self.switches, why)
        self.pool = Pool(keep=2 * self.threads)
        weakref.finalize(self, self.pool.close).atexit = False
        self.pages = Pages()
        self._residents: HostResidents | None = None
        self.open = True
        self._forked = False
        self._lock = threading.Lock()
        self._pending: set[Future[OutputBuffers]] = set()
        self._compiled = Counter("compiled_programs", mode="pinning")
        self._loaded = Counter("loaded_programs", mode="pinning")
        self._started = Counter("async_dispatches", mode="pinning")
        _backends.add(self)

    # -- dispatch

    def dispatch(
        self,
        program: Program,
        inputs: Sequence[Buffer],
        config: DispatchConfig = DEFAULT_CONFIG,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> OutputBuffers:
        pipeline, settled = self._pipeline(program, config)
        return pipeline.dispatch(inputs, settled, out=out)

    def dispatch_async(
        self,
        program: Program,
        inputs: Sequence[Buffer],
        config: DispatchConfig = DEFAULT_CONFIG,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> PendingDispatch:
        pipeline, settled = self._pipeline(program, config)
        return pipeline.dispatch_async(inputs, settled, out=out)

    def compile_native(self, program: Program, config: DispatchConfig) -> CpuPipeline:
        self.require_open()
        program = self._admitted(program, config)
        built = build(program, self.host, self.switches, poll=config.timeout is not None)
        self._compiled.add()
        return CpuPipeline(self, program, config, built)

    def load_native(self, program: Program, config: DispatchConfig, payload: bytes) -> CpuPipeline:
        """The pipeline that `serialize` gave these bytes of. The driver's key says that they are for this processor."""
        self.require_open()
        loaded = CpuPipeline(self, self._admitted(program, config), config, Built.from_bytes(payload))
        self._loaded.add()
        return loaded

    # -- residency

    def allocate_resident(self, nbytes: int) -> ResidentHandle:
        self.require_open()
        return self.residents.allocate(nbytes)

    def upload_resident(self, ranges: Sequence[tuple[ResidentHandle, int, Buffer]]) -> None:
        self.require_open()
        self.residents.upload(ranges)

    def download_resident(
        self, ranges: Sequence[ResidentReadRange], *, out: Sequence[Buffer] | None = None
    ) -> OutputBuffers:
        self.require_open()
        return self.residents.download(ranges, out)

    def free_resident(self, resource: ResidentHandle) -> None:
        self.require_open()
        self.residents.free(resource)

    def dispatch_resident(
        self,
        steps: Sequence[ResidentDispatchStep],
        *,
        reads: Sequence[ResidentReadRange] = (),
        repeat: int = 1,
        timed: bool = False,
    ) -> tuple[OutputBuffers, ResidentSequenceTiming | None]:
        def run_of(program: Program, config: DispatchConfig) -> tuple[Any, Program, DispatchConfig]:
            pipeline, settled = self._pipeline(program, config)
            return pipeline.dispatch, pipeline.program, settled

        self.require_open()
        return self.residents.run_steps(run_of, steps, reads, repeat, timed=timed)

    def exchange(self) -> HostExchange:
        from .resident import HostExchange

        return HostExchange(self.residents)

    @property
    def residents(self) -> HostResidents:
        """Made by the first who needs it, with NumPy."""
        if self._residents is None:
            from .resident import HostResidents

            with self._lock:
                if self._residents is None:
                    self._residents = HostResidents(self.id)
        return self._residents

    # -- lifecycle

    def flush(self) -> None:
        if self._forked:
            return  # nothing that the other process started ever ends here
        with self._lock:
            pending = tuple(self._pending)
        for future in pending:
            future.exception()  # the failure belongs to whoever holds the handle

    def shutdown(self) -> None:
        self.open = False
        if self._forked:
            return
        self.flush()
        self.pool.close()
        self.pages.close()
        if self._residents is not None:
            self._residents.close()

    # -- facts

    def device_profile(self) -> DeviceProfile:
        return DeviceProfile(
            backend=self.id,
            device=self.host.name,
            supports_trap_propagation=True,
            has_mul_high=True,
            has_shared_memory=True,
            max_native_int_width=64,
            max_workgroup_size=self.max_workgroup_size,
            max_invocations_per_workgroup=self.max_invocations_per_workgroup,
            max_shared_memory_bytes=self.capability.max_shared_bytes,
            max_storage_buffer_binding_size=self.max_storage_buffer_bytes,
            compute_units=self.threads,
            ideal_vector_pack_bits=self.host.vector_bits,
        )

    def metrics(self) -> Mapping[str, int]:
        counted = {c.name: c.value for c in (self._compiled, self._loaded, self._started)}
        return counted | {
            "pooled_results_reused": self.pages.reused,
            "pooled_idle_bytes": self.pages.idle_bytes,
            "resident_bytes": 0 if self._residents is None else self._residents.nbytes,
        }

    # -- for pipelines

    def start(self, work: Callable[[], OutputBuffers]) -> PendingDispatch:
        """Let a thread of the pool finish a dispatch."""
        from concurrent.futures import Future  # 10 ms that only asynchronous dispatches pay

        future: Future[OutputBuffers] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as e:
                future.set_exception(e)
            with self._lock:
                self._pending.discard(future)

        with self._lock:
            self._pending.add(future)
        try:
            self.pool.start(run)
        except BaseException:
            with self._lock:
                self._pending.discard(future)
            raise
        self._started.add()
        return FuturePending(future)

    def require_open(self) -> None:
        if self._forked:
            raise DispatchFailed(
                "the backend was opened by the process that this one was forked from, and its threads are not here",
                fix="use the spawn start method, or acquire the backend in the child",
                backend=self.id,
            )
        if not self.open:
            raise DispatchFailed("the backend was shut down", fix="acquire it again", backend=self.id)

    def _pipeline(self, program: Program, config: DispatchConfig) -> tuple[CpuPipeline, DispatchConfig]:
        self.require_open()
        with named(getattr(config, "label", None)):
            settled = validate_program_for_backend(self, program, config)
            native = code_for(self, program, settled).native
        assert isinstance(native, CpuPipeline)
        return native, settled

    def _admitted(self, program: Program, config: DispatchConfig) -> Program:
        """The program with the workgroup that it is launched with."""
        validate_program_for_backend(self, program, config)
        size = resolve_workgroup(program, config)
        if size == program.workgroup_size:
            return program
        return program._cached(("workgroup", size), lambda: program.replace(workgroup_size=size))


def capability(found: Host, switches: Switches, why_soft: str | None) -> BackendCapability:
    """What the emitter does on this processor. Subgroups, f16 and bf16 are emulated, hence not claimed as native."""
    return BackendCapability(
        ops=_OPS,
        types=frozenset(("u64", "i64", "f64", "f16", "bf16")),
        async_compute=True,
        indirect_dispatch=False,
        max_workgroup_size=(1024, 1024, 64),
        max_invocations_per_workgroup=1 << 16,
        max_workgroups_per_dimension=U32_MAX,
        max_shared_bytes=1 << 24,
        max_storage_buffer_bytes=U32_MAX * 8,
        max_steps=200_000,
        deadline="cooperative",
        exactness={"f32": "canonical", "flushed_by": "processor" if why_soft is None else f"software: {why_soft}"},
        extras={
            "processor": found.name,
            "features": hashlib.blake2b(found.features.encode(), digest_size=16).hexdigest(),
            "triple": found.triple,
            "compiler": found.compiler,
            "emitter": "scalar" if switches.scalar else f"vectors of {found.vector_bits} bits",
            "improvements_off": sorted(switches.off),
        },
    )


_backends: weakref.WeakSet[CpuBackend] = weakref.WeakSet()


def _mark_forked() -> None:
    for backend in list(_backends):
        backend.open, backend._forked = False, True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)
