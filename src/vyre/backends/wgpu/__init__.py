"""The wgpu backend: GPUs of any make, through WGSL.

Importing this package loads neither the library nor a driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...driver.contract.backend import VyreBackend
from ...driver.contract.registration import BackendRegistration, DeviceInfo, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...driver.contract.requirement import Check
    from ...foundation.ir.program import Program
    from .backend import WgpuBackend

__all__ = ["REGISTRATION", "WgpuBackend"]


def __getattr__(name: str) -> Any:
    if name != "WgpuBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(".backend", __name__).WgpuBackend


def open_backend(device: object = None) -> VyreBackend:
    from .backend import WgpuBackend

    return WgpuBackend(device)


def list_devices() -> tuple[DeviceInfo, ...]:
    from . import devices

    return devices.devices()


def unavailable() -> Unavailable | None:
    """Why no device can be had."""
    from . import devices

    if (why := devices.why_none()) is not None:
        return why
    from .exactness import best, record_of

    adapter = best()
    if (wrong := record_of(adapter).why_not) is None:
        return None
    return Unavailable(f"{devices.name_of(adapter)} cannot be used, as {wrong}", "update its driver")


def checks() -> Iterator[Check]:
    from .requirements import findings

    return findings()


def emitted_text(program: Program) -> str:
    """WGSL that asks nothing of the device beyond the standard, with parameters in a buffer."""
    from ...lower import LowerOptions, lower
    from .build import OFF
    from .emit.text import wgsl_text
    from .emit.traits import SAFEST

    kernel = lower(program, LowerOptions(soft_flush=SAFEST.soft_flush, off=OFF))
    return wgsl_text(kernel, SAFEST, immediates=False)


_FOLDERS = ("XDG_DATA_HOME", "XDG_DATA_DIRS", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS")
"""Variables that say where drivers announce themselves."""


def probe_key() -> str:
    import os

    from ...driver.selection.probe import state_key

    return state_key(
        packages=("wgpu",),
        files=(
            "/usr/share/vulkan/icd.d/*",
            "/etc/vulkan/icd.d/*",
            "/usr/local/share/vulkan/icd.d/*",
            "~/.local/share/vulkan/icd.d/*",
            "/run/opengl-driver/share/vulkan/icd.d/*",
            "/usr/share/glvnd/egl_vendor.d/*",
            *(
                f"{folder}/vulkan/icd.d/*"
                for name in _FOLDERS
                for folder in os.environ.get(name, "").split(":")
                if folder
            ),
            "/dev/dri/*",
            "/dev/nvidia*",
            "/dev/dxg",
        ),
        environ=(
            "VK_ICD_FILENAMES",
            "VK_DRIVER_FILES",
            "VK_ADD_DRIVER_FILES",
            "__EGL_VENDOR_LIBRARY_FILENAMES",
            "LIBGL_DRIVERS_PATH",
            "LIBGL_ALWAYS_SOFTWARE",
            "GALLIUM_DRIVER",
            "MESA_LOADER_DRIVER_OVERRIDE",
            "LD_LIBRARY_PATH",
            *_FOLDERS,
            *sorted(name for name in os.environ if name.startswith("WGPU")),
        ),
    )


REGISTRATION = BackendRegistration(
    id="wgpu",
    precedence=30,
    open=open_backend,
    unavailable=unavailable,
    devices=list_devices,
    probe_key=probe_key,
    emit=emitted_text,
    checks=checks,
)
