"""OpenCL C kernels on one device.

Opening it asks the driver for its devices and how the chosen one computes, which is remembered; the context and its
queues are made by the first use.
"""

from __future__ import annotations

from ...driver.contract.capability import BackendCapability
from ...driver.contract.values import U32_MAX
from ...errors import BackendUnavailable
from ...foundation.ir.program import Program
from ...runtime.backend import OffloadBackend, chosen_device
from ...runtime.compiled import OPS
from ...runtime.device import Artifact, Device
from ...runtime.float_probe import Exactness
from .build import build
from .device import OpenCLDevice, polls
from .devices import FORKED, Found, found_devices, is_forked, library
from .emit.text import Mode
from .exactness import exactness_of


class OpenCLBackend(OffloadBackend):
    """Kernels that the installed driver compiles."""

    id = "opencl"

    def __init__(self, device: object = None) -> None:
        """`device` is an index of `platforms.found_devices()`."""
        super().__init__()
        self.found = chosen(device)
        self.device = self.found.name
        self.exactness = exactness_of(self.found.device)
        self.exactness.require(self.device, self.id)
        self.capability = capability(self.found, self.exactness)

    def open_device(self) -> OpenCLDevice:
        assert self.exactness.mode is not None
        return OpenCLDevice(self.found.device, self.exactness.mode)

    def build(self, device: Device, program: Program, *, poll: bool, ulp_budget: int = 0) -> Artifact:
        assert self.exactness.mode is not None
        return build(program, self.exactness.mode, poll=poll)


def chosen(device: object) -> Found:
    """The device with this index, or the first."""
    if is_forked():
        raise BackendUnavailable(FORKED.reason, fix=FORKED.fix, backend=OpenCLBackend.id)
    return chosen_device(found_devices(), device, "OpenCL", OpenCLBackend.id)


def capability(found: Found, exactness: Exactness[Mode]) -> BackendCapability:
    """What the emitter does on this device. Subgroups, f16 and bf16 are emulated, hence not claimed as native."""
    device = found.device
    platform = device.platform
    x, y, z = (*device.max_work_item_sizes, 1, 1)[:3]
    return BackendCapability(
        ops=OPS,
        types=frozenset(("u64", "i64", "f16", "bf16", *(("f64",) if exactness.float64 else ()))),
        async_compute=True,
        max_workgroup_size=(x, y, z),
        max_invocations_per_workgroup=device.max_work_group_size,
        max_workgroups_per_dimension=U32_MAX,
        max_shared_bytes=device.local_mem_size,
        max_storage_buffer_bytes=device.max_mem_alloc_size,
        max_steps=20_000 if found.emulated else 50_000,
        deadline="cooperative" if exactness.mode and polls(device, exactness.mode) else "host",
        exactness={"f32": "canonical", "mode": str(exactness.mode)},
        extras={
            "platform": f"{platform.name.strip()}, {platform.version.strip()}",
            "driver": device.driver_version.strip(),
            "compiler": device.opencl_c_version.strip(),
            "device_version": device.version.strip(),
            "binding": library().VERSION_TEXT,
            "emulated": found.emulated,
            "arms": "small launches go through several queues",
        },
    )
