"""CUDA kernels on one device.

Opening it asks the driver for its devices and how the chosen one computes, which is remembered; the context and its
streams are made by the first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from ...driver.contract.capability import BackendCapability
from ...driver.contract.values import U32_MAX
from ...errors import DeviceLost
from ...foundation.ir.program import Program
from ...foundation.meaning.subgroup import SUBGROUP_WIDTH
from ...runtime.backend import OffloadBackend, chosen_device
from ...runtime.compiled import OPS
from ...runtime.device import Artifact, Device
from ...runtime.float_probe import Exactness, differing, probe_program, run_probe
from .build import build
from .compile import compiler_version
from .device import CudaDevice
from .devices import Found, driver_version, found_devices
from .emit.vendor_math import APART
from .exactness import Mode, exactness_of
from .run.exchange import CudaExchange

_OWN_SHARED_BYTES = 16
"""Shared memory that a kernel has besides the program's: whether a lane has stopped."""
_NVIDIA = 0x10DE


class CudaBackend(OffloadBackend):
    """Kernels that NVRTC compiles for exactly this device."""

    id = "cuda"

    def __init__(self, device: object = None) -> None:
        """`device` is an index of `driver.found_devices()`."""
        super().__init__()
        self.found = chosen(device)
        self.device = self.found.name
        self.exactness = exactness_of(self.found)
        self.exactness.require(self.device, self.id)
        self.capability = capability(self.found, self.exactness)
        self._opened = False

    def open_device(self) -> CudaDevice:
        opened = CudaDevice(self.found)
        if self._opened:
            self._require_working(opened)
        self._opened = True
        return opened

    def _require_working(self, device: CudaDevice) -> None:
        """A device that was recovered must still compute what it did."""
        program = probe_program()
        wrong = differing(run_probe(device, build(program, self.found.arch, soft=self.exactness.mode is Mode.SOFT)))
        if wrong:
            device.close()
            raise DeviceLost(
                f"the device computes differently after recovery, in {', '.join(wrong)}",
                fix="restart the process; see to the device if that does not help",
                backend=self.id,
            )

    def build(self, device: Device, program: Program, *, poll: bool, ulp_budget: int = 0) -> Artifact:
        soft = self.exactness.mode is Mode.SOFT
        return build(program, self.found.arch, poll=poll, soft=soft, ulp_budget=ulp_budget)

    def metrics(self) -> Mapping[str, int]:
        return dict.fromkeys(CudaDevice.COUNTS, 0) | dict(super().metrics())  # also before there is a device

    def exchange(self) -> CudaExchange:
        return CudaExchange(self)


def chosen(device: object) -> Found:
    """The device with this index, or the first."""
    return chosen_device(found_devices(), device, "CUDA", CudaBackend.id)


def capability(found: Found, exactness: Exactness[Mode]) -> BackendCapability:
    """What the emitter does on this device. f16 and bf16 are computed in f32, hence not claimed as native."""
    return BackendCapability(
        ops=OPS,
        types=frozenset(("u64", "i64", "f16", "bf16", *(("f64",) if exactness.float64 else ()))),
        subgroup_ops=True,
        subgroup_size=SUBGROUP_WIDTH,
        async_compute=True,
        grid_sync=found.multiprocessors > 0,
        max_workgroup_size=found.most_size,
        max_invocations_per_workgroup=found.most_lanes,
        max_workgroups_per_dimension=U32_MAX,
        max_shared_bytes=found.shared_bytes - _OWN_SHARED_BYTES,
        max_storage_buffer_bytes=found.memory_bytes,
        max_steps=50_000,
        deadline="cooperative",
        exactness={
            "f32": "canonical",
            "mode": str(exactness.mode),
            "native": dict(APART) if exactness.mode is Mode.NATIVE else {},
        },
        extras={
            "vendor_id": _NVIDIA,
            "arch": found.arch,
            "driver": ".".join(map(str, driver_version())),
            "compiler": f"NVRTC {'.'.join(map(str, compiler_version()))}",
            "binding": metadata.version("cuda-bindings"),
            "emulated": False,
            "arms": "they are branches of one graph",
        },
    )
