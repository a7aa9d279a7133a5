"""Which devices does OpenCL offer here, and if none, why?

Devices are named with the version of their platform: an index may mean another device after the next driver update.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from glob import glob
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...driver.contract.registration import DeviceInfo, Unavailable
from ...driver.selection.probe import state_key

VENDORS = "/etc/OpenCL/vendors"
_NOT_FOUND = -1001
"""What the loader answers when it finds no platform."""


@dataclass(frozen=True, slots=True)
class Found:
    """A device of a platform, as the library has it."""

    device: Any
    name: str
    emulated: bool


@cache
def library() -> Any:
    """The binding, imported by the first call.

    It keeps the code of its calls in a folder of the user, and loads no kernel where it cannot make that folder.
    """
    import pyopencl
    from platformdirs import user_cache_dir

    if not _can_be_written(Path(user_cache_dir("pytools", "pytools"))):
        pyopencl._PYOPENCL_NO_CACHE = True
    return pyopencl


def _can_be_written(folder: Path) -> bool:
    """Whether files can be made in a folder, which may not be there yet."""
    while not folder.exists():
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK)


def found_devices() -> list[Found]:
    """Every device of every platform: GPUs first, processors last, and else in the loader's order."""
    cl = library()
    kinds = cl.device_type
    found: list[tuple[int, Found]] = []
    for platform in platforms():
        for device in devices_of(platform):
            kind = device.type
            rank = 0 if kind & kinds.GPU else 2 if kind & kinds.CPU else 1
            found.append((rank, Found(device, name_of(device), bool(kind & kinds.CPU))))
    return [each for _, each in sorted(found, key=lambda item: item[0])]


def platforms() -> list[Any]:
    cl = library()
    try:
        return list(cl.get_platforms())
    except cl.Error as e:
        if e.code == _NOT_FOUND:
            return []
        raise


def devices_of(platform: Any) -> list[Any]:
    """The devices of a platform; a platform that is broken has none."""
    try:
        return list(platform.get_devices())
    except library().Error:
        return []


def name_of(device: Any) -> str:
    """The device with the version of its platform, without the list of what that was built with."""
    return f"{device.name.strip()} / {device.platform.version.split('  ')[0].strip()}"


def infos() -> tuple[DeviceInfo, ...]:
    if find_spec("pyopencl") is None:
        return ()
    return tuple(DeviceInfo(k, found.name, found.emulated) for k, found in enumerate(found_devices()))


FORKED = Unavailable(
    "this process was forked from one that uses OpenCL, and the threads of the driver are not here",
    "use the spawn start method",
)
used_in: set[int] = set()
"""The processes that opened a device: this one, or one that it was forked from."""


def is_forked() -> bool:
    """Whether the process was forked from one that had opened a device. Waiting for a driver never ends here."""
    return bool(used_in - {os.getpid()})


def unavailable() -> Unavailable | None:
    """Why no device can be used, as a registration says it."""
    if is_forked():
        return FORKED
    if find_spec("pyopencl") is None:
        return Unavailable("pyopencl is not installed", "pip install 'vyre[opencl]'")
    try:
        library()
    except (ImportError, OSError) as e:
        again = "reinstall it with pip install --force-reinstall pyopencl"
        return Unavailable(f"pyopencl cannot be loaded ({e})", again)
    return why_none()


def why_none() -> Unavailable | None:
    """Why there is no device, or None: there is one."""
    cl = library()
    try:
        offered = platforms()
        if any(devices_of(platform) for platform in offered):
            return None
    except cl.Error as e:
        return Unavailable(
            f"the OpenCL loader fails ({e})", f"reinstall it, or the drivers named in {vendors_folder()}"
        )
    if offered:
        names = ", ".join(platform.name.strip() for platform in offered)
        return Unavailable(
            f"the OpenCL platforms have no device ({names})", "connect one, or install a driver for the one you have"
        )
    files = icd_files()
    if files:
        named = ", ".join(f"{os.path.basename(path)} names {_library_in(path)}" for path in files)
        return Unavailable(f"no OpenCL driver can be loaded ({named})", "reinstall the driver, or remove the file")
    return Unavailable(
        "no OpenCL driver is installed", "install the one of your GPU, or pocl-opencl-icd for the processor"
    )


def probe_key() -> str:
    """Changes with the binding, the drivers that announce themselves, the devices that they may find, and what hides
    some of them."""
    return state_key(
        packages=("pyopencl", "pocl-binary-distribution"),
        files=(*icd_files(), "/dev/dri/*", "/dev/nvidia*", "/dev/kfd", "/dev/dxg"),
        environ=("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH", "OCL_ICD_FILENAMES", "POCL_DEVICES", "CUDA_VISIBLE_DEVICES"),
    )


def vendors_folder() -> str:
    return os.environ.get("OCL_ICD_VENDORS") or os.environ.get("OPENCL_VENDOR_PATH") or VENDORS


def icd_files() -> list[str]:
    """The files by which drivers announce themselves to the loader."""
    place = vendors_folder()
    return [place] if os.path.isfile(place) else sorted(glob(os.path.join(place, "*.icd")))


def _library_in(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            named = file.readline(4096).strip()
            return (named if named.isprintable() else "what is not text") or "nothing"
    except OSError:
        return "what cannot be read"
