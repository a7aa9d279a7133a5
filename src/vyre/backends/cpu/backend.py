"""The processor as a backend: kernels compiled for exactly this one, on all of its cores.

Opening it loads the compiler, to ask which processor this is; threads are started by the first dispatch that is worth
them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...driver.contract.capability import BackendCapability
from ...driver.contract.profile import DeviceProfile
from ...driver.contract.values import (
    U32_MAX,
    DispatchConfig,
    OutputBuffers,
    ResidentDispatchStep,
    ResidentReadRange,
    ResidentSequenceTiming,
)
from ...driver.plan.launch import as_launched
from ...foundation.formats.blake3 import blake3  # hashlib loads OpenSSL, in 2 ms
from ...foundation.ir.program import Program
from ...runtime.compiled import OPS, CompiledBackend
from .build import ObjectCode, Switches, build
from .devices import Host, host
from .exactness import why_not_hardware
from .run.host_pool import HostPool
from .run.pipeline import CpuPipeline
from .run.wakeups import WAKE_LOOKS
from .run.workers import Workers, processors, thread_count

if TYPE_CHECKING:
    from .run.resident import HostExchange, HostResidents


class CpuBackend(CompiledBackend):
    """Machine code for the processor that runs it."""

    id = "cpu"
    not_in_a_child = "its threads are"
    after_fork = "use the spawn start method, or acquire the backend in the child"

    def __init__(self, switches: Switches | None = None, threads: int | None = None) -> None:
        """`switches` change how code is made, and `threads` on how many threads it runs; never what it computes."""
        super().__init__()
        self.switches = Switches() if switches is None else switches
        self.threads = thread_count() if threads is None else threads
        self.host = host()
        why = "the caller asks for it" if self.switches.soft_flush else why_not_hardware(self.host)
        if why is not None:
            self.switches = replace(self.switches, soft_flush=True)
        self.capability = capability(self.host, self.switches, why)
        self.pool = Workers(keep=2 * self.threads, looks=WAKE_LOOKS if self.threads <= processors() else 0)
        weakref.finalize(self, self.pool.close).atexit = False
        self.pages = HostPool()
        self._residents: HostResidents | None = None

    def compile_native(self, program: Program, config: DispatchConfig) -> CpuPipeline:
        self.require_open()
        program = as_launched(program, config)
        built = build(program, self.host, self.switches, poll=config.timeout is not None)
        self._compiled.add()
        return CpuPipeline(self, program, config, built)

    def load_native(self, program: Program, config: DispatchConfig, payload: bytes) -> CpuPipeline:
        """The pipeline that `serialize` gave these bytes of. The driver's key says that they are for this processor."""
        self.require_open()
        loaded = CpuPipeline(self, as_launched(program, config), config, ObjectCode.from_bytes(payload))
        self._loaded.add()
        return loaded

    # -- residency

    def dispatch_resident(
        self,
        steps: Sequence[ResidentDispatchStep],
        *,
        reads: Sequence[ResidentReadRange] = (),
        repeat: int = 1,
        timed: bool = False,
    ) -> tuple[OutputBuffers, ResidentSequenceTiming | None]:
        return self.residents.run_steps(steps, self.step_pipeline, reads, repeat, timed=timed)

    def exchange(self) -> HostExchange:
        from .run.resident import HostExchange

        return HostExchange(self.residents)

    @property
    def residents(self) -> HostResidents:
        """Made by the first use, with NumPy."""
        self.require_open()
        if self._residents is None:
            from .run.resident import HostResidents

            with self._lock:
                if self._residents is None:
                    self._residents = HostResidents(self.id)
        return self._residents

    # -- lifecycle

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

    @property
    def device(self) -> str:  # type: ignore[override]
        """No name: there is one processor, and its keys are the same however it was asked for."""
        return ""

    def device_profile(self) -> DeviceProfile:
        return replace(
            super().device_profile(),
            device=self.host.name,
            compute_units=self.threads,
            ideal_vector_pack_bits=self.host.vector_bits,
        )

    def metrics(self) -> Mapping[str, int]:
        from ...runtime.resident_memory import NO_TRANSFERS  # which a first dispatch does without

        residents = self._residents
        return dict(super().metrics()) | {
            "pooled_results_reused": self.pages.reused,
            "pooled_idle_bytes": self.pages.idle_bytes,
            "resident_bytes": 0 if residents is None else residents.nbytes,
            **(NO_TRANSFERS if residents is None else residents.transfers()),
        }

    def on_thread(self, run: Callable[[], None]) -> None:
        self.pool.start(run)


def open_backend(device: object = None) -> CpuBackend:
    """There is one device, whichever is asked for."""
    return CpuBackend()


def capability(found: Host, switches: Switches, why_soft: str | None) -> BackendCapability:
    """What the emitter does on this processor. Subgroups, f16 and bf16 are emulated, hence not claimed as native."""
    return BackendCapability(
        ops=OPS,
        types=frozenset(("u64", "i64", "f64", "f16", "bf16")),
        async_compute=True,
        prints=True,
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
            "features": blake3(found.features.encode()).hex()[:32],
            "triple": found.triple,
            "compiler": found.compiler,
            "emitter": "scalar" if switches.scalar else f"vectors of {found.vector_bits} bits",
            "improvements_off": sorted(switches.off),
        },
    )
