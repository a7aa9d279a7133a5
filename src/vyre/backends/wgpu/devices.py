"""Which devices are there, and which is the best? Looking creates none of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from typing import Any

from ...driver.contract.registration import DeviceInfo, Unavailable
from ...driver.selection.probe import state_key
from ...errors import BackendUnavailable

_KINDS = ("DiscreteGPU", "IntegratedGPU", "unknown", "CPU")
NOT_INSTALLED = Unavailable("wgpu is not installed", "pip install 'vyre[wgpu]'")
_INSTALL = "install the driver of the GPU, or mesa-vulkan-drivers to emulate one on the processor"
NO_ADAPTER = Unavailable("neither Vulkan, Metal, Direct3D nor OpenGL has a device here", _INSTALL)
ONLY_OPENGL = Unavailable(
    "the only device here is OpenGL on the processor, and any call made while that is busy may end the process",
    _INSTALL,
)
FORKED = Unavailable(
    "this process was forked from one that uses wgpu, and the threads of the driver are not here",
    "use the spawn start method",
)
ICD_FOLDERS = (
    "/usr/share/vulkan/icd.d",
    "/etc/vulkan/icd.d",
    "/usr/local/share/vulkan/icd.d",
    "~/.local/share/vulkan/icd.d",
)
"""Where drivers for Vulkan announce themselves on Linux."""
_FOLDERS = ("XDG_DATA_HOME", "XDG_DATA_DIRS", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS")
"""Variables that name more of such places."""
_looked_in: set[int] = set()
"""The process that looked for adapters."""


def adapters() -> tuple[Any, ...]:
    """The adapters that can be used, best first; one for each device."""
    return ranked(listed())


@cache
def listed() -> tuple[Any, ...]:
    """Whatever the library lists."""
    import wgpu  # type: ignore[import-untyped]

    _looked_in.add(os.getpid())
    from .run import binding_gaps  # with a logger, which asking for the key goes without

    binding_gaps.find_types_quickly()
    with binding_gaps.without_complaints():
        return tuple(wgpu.gpu.enumerate_adapters_sync())


def ranked(found: Iterable[Any]) -> tuple[Any, ...]:
    """Best first, without OpenGL on the processor, and on devices that there is a better adapter for."""
    better = [a for a in found if not is_opengl(a)]
    old = [a for a in found if is_opengl(a) and not is_emulated(a)]
    old = [a for a in old if not any(_same(name_of(a), name_of(b)) for b in better)]
    return tuple(sorted((*better, *old), key=lambda a: (_kind(a), is_opengl(a))))


def name_of(adapter: Any) -> str:
    return str(adapter.info["device"] or adapter.info["description"] or "adapter")


def is_opengl(adapter: Any) -> bool:
    return bool(adapter.info["backend_type"] == "OpenGL")


def is_emulated(adapter: Any) -> bool:
    return bool(adapter.info["adapter_type"] == "CPU")


def infos() -> tuple[DeviceInfo, ...]:
    if why_none() is not None:
        return ()
    return tuple(DeviceInfo(k, name_of(a), is_emulated(a)) for k, a in enumerate(adapters()))


def why_none() -> Unavailable | None:
    """Why there is no device, or None: there is one."""
    if find_spec("wgpu") is None:
        return NOT_INSTALLED
    if _looked_in - {os.getpid()}:
        return FORKED
    try:
        return None if adapters() else ONLY_OPENGL if listed() else NO_ADAPTER
    except Exception as e:  # a broken driver or library may raise anything
        return Unavailable(
            f"looking for adapters failed ({type(e).__name__}: {e})", "see to the driver of the GPU, or reinstall wgpu"
        )


def unavailable() -> Unavailable | None:
    """Why no device can be used, as a registration says it."""
    if (why := why_none()) is not None:
        return why
    from .exactness import best, record_of

    adapter = best()
    if (wrong := record_of(adapter).why_not) is None:
        return None
    return Unavailable(f"{name_of(adapter)} cannot be used, as {wrong}", "update its driver")


def probe_key() -> str:
    """Changes with the library, the drivers that announce themselves, their devices, and what chooses among them."""
    return state_key(
        packages=("wgpu",),
        files=(
            *(f"{folder}/*" for folder in ICD_FOLDERS),
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


def chosen(device: object = None) -> Any:
    """The adapter with this index, or the first one with this part of a name; else the best."""
    if (why := why_none()) is not None:
        raise BackendUnavailable(why.reason, fix=why.fix, backend="wgpu")
    found = adapters()
    if device is None:
        return found[0]
    if isinstance(device, int) and 0 <= device < len(found):
        return found[device]
    if isinstance(device, str):
        for adapter in found:
            if device.lower() in name_of(adapter).lower():
                return adapter
    raise BackendUnavailable(
        f"no device {device!r}",
        fix="use the index or a part of the name of: " + ", ".join(f"{k} {name_of(a)}" for k, a in enumerate(found)),
        backend="wgpu",
    )


def _kind(adapter: Any) -> int:
    kind = adapter.info["adapter_type"]
    return _KINDS.index(kind if kind in _KINDS else "unknown")


def _same(name: str, other: str) -> bool:
    """Whether two names are of one device: OpenGL appends what it likes."""
    return name.startswith(other) or other.startswith(name)
