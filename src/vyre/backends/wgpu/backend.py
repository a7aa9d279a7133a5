"""Any GPU that Vulkan, Metal, Direct3D or OpenGL reaches, as a backend.

Opening it looks at the adapters and asks how the chosen one computes, which is remembered; the device itself is opened
by the first use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...driver.contract.capability import BackendCapability
from ...driver.contract.profile import DeviceProfile, DeviceTimingQuality
from ...driver.contract.values import U32_MAX, Dims
from ...errors import BackendUnavailable, UnsupportedFeature
from ...foundation.ir.program import Program
from ...lower.loop_bounds import most_turns
from ...runtime.backend import OffloadBackend
from ...runtime.compiled import OPS
from ...runtime.device import Artifact, Device, LaunchFacts
from .build import build
from .device import WgpuDevice, most_bytes
from .devices import chosen, is_emulated, is_opengl, name_of
from .exactness import Record, best, describe, record_of
from .run import binding_gaps


class WgpuBackend(OffloadBackend):
    """WGSL kernels on one adapter."""

    id = "wgpu"

    def __init__(self, device: object = None, *, immediates: bool = True) -> None:
        """`device` is an index or part of a name; `immediates=False` gives parameters in buffers."""
        super().__init__()
        found = chosen(device)  # which says what is wrong
        self.adapter = best() if device is None else found
        self.device = name_of(self.adapter)
        self.record = record_of(self.adapter)
        if self.record.why_not is not None:
            raise BackendUnavailable(
                f"{self.device} cannot be used, as {self.record.why_not}",
                fix="update its driver, or use the cpu backend",
                backend=self.id,
            )
        self._immediates = immediates
        self.capability = capability(self.adapter, self.record, immediates)

    def open_device(self) -> WgpuDevice:
        return WgpuDevice(self.adapter, immediates=self._immediates)

    def build(self, device: Device, program: Program, *, poll: bool, ulp_budget: int = 0) -> Artifact:
        assert isinstance(device, WgpuDevice)
        return build(program, self.record.traits, device.limits, immediate_bytes=device.immediate_bytes)

    def check_launch(
        self,
        facts: LaunchFacts,
        lengths: Sequence[int],
        grid: Dims | None,
        word: Callable[[int, int], int | None] | None = None,
    ) -> None:
        """Loops may take half of the turns that the device takes: branches that part may take them twice."""
        limit = self.record.loop_limit
        if limit is None or facts.loop_bound is None:
            return
        turns = most_turns(facts.loop_bound, lengths, word, grid)
        if turns is None or turns + facts.extra["helper_turns"] > limit // 2:
            found = "an unknown number of" if turns is None else f"up to {turns}"
            raise UnsupportedFeature(
                f"loops may take {found} turns, and the device stops an invocation after {limit} without a word",
                fix="use the cpu backend, or bound the loops by half of that with literals and lengths",
                name="long loops",
                backend=self.id,
                device=self.device,
            )

    def device_profile(self) -> DeviceProfile:
        """WGSL has neither wide integers nor the high word of a product."""
        timed = "timestamp-query" in self.adapter.features
        quality = DeviceTimingQuality.DEVICE_TIMESTAMPS if timed else DeviceTimingQuality.HOST_ENQUEUE_WAIT
        return replace(
            super().device_profile(),
            has_mul_high=False,
            max_native_int_width=32,
            timing_quality=quality,
            supports_device_timestamps=timed,
        )


def capability(adapter: Any, record: Record, immediates: bool = True) -> BackendCapability:
    """What the emitter does on this device. Subgroups, 64-bit integers, f16 and bf16 are emulated.

    OpenGL has one context for all threads, so that nothing is promised to go on meanwhile.
    """
    limits, info = adapter.limits, adapter.info
    return BackendCapability(
        ops=OPS,
        api=info["backend_type"],
        types=frozenset(("u64", "i64", "f16", "bf16")),
        async_compute=not is_opengl(adapter),
        max_workgroup_size=(
            limits["max-compute-workgroup-size-x"],
            limits["max-compute-workgroup-size-y"],
            limits["max-compute-workgroup-size-z"],
        ),
        max_invocations_per_workgroup=limits["max-compute-invocations-per-workgroup"],
        max_workgroups_per_dimension=U32_MAX,
        max_shared_bytes=limits["max-compute-workgroup-storage-size"],
        max_storage_buffer_bytes=most_bytes(limits),
        max_steps=10_000 if is_emulated(adapter) else 50_000,
        deadline="host",
        exactness=describe(record, adapter),
        extras={
            "adapter": name_of(adapter),
            "adapter_type": info["adapter_type"],
            "emulated": is_emulated(adapter),
            "driver": info["description"],
            "vendor": info["vendor"],
            "wgpu": binding_gaps.version(),
            "immediate_bytes": limits["max-immediate-size"] if immediates and "immediates" in adapter.features else 0,
        },
    )
