"""What the wgpu backend needs and finds, for `vyre doctor`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from glob import glob
from importlib.util import find_spec

from ...driver.contract.requirement import Check, installed, listed, said
from . import devices

NONE_ANNOUNCED = "no driver for Vulkan announces itself"


def findings() -> Iterator[Check]:
    yield installed("wgpu", extra="wgpu")
    if find_spec("wgpu") is None:
        return
    files = icd_files() if sys.platform.startswith("linux") else None  # elsewhere the system brings its own
    if files is not None and files.detail != NONE_ANNOUNCED:
        yield files  # before a driver is loaded, which may end this process
    why = devices.why_none()
    if files is not None and files.detail == NONE_ANNOUNCED:
        yield files if why else Check("ICD files", "ok", f"{NONE_ANNOUNCED}, and an adapter is found without one")
    names = "" if why else ", ".join(devices.name_of(a) for a in devices.adapters())
    yield said("adapters", why, names)
    if why is None:
        from .exactness import best, record_of

        adapter = best()
        wrong = record_of(adapter).why_not
        name = devices.name_of(adapter)
        yield (
            Check("f32", "ok", f"{name} computes the canonical f32")
            if wrong is None
            else Check("f32", "fail", f"{name} cannot be used, as {wrong}", "update its driver")
        )


def icd_files() -> Check:
    """The drivers that the loader of Vulkan will try."""
    if given := os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES"):
        files = given.split(os.pathsep)
        missing = [path for path in files if not os.path.exists(path)]
        if missing:
            return Check(
                "ICD files",
                "warn",
                f"the environment names {listed(missing)}, which is not there",
                "unset VK_DRIVER_FILES and VK_ICD_FILENAMES, or correct them",
            )
    else:
        files = sorted(path for folder in devices.ICD_FOLDERS for path in glob(f"{os.path.expanduser(folder)}/*.json"))
    if files:
        return Check("ICD files", "ok", listed(files))
    return Check(
        "ICD files",
        "warn",
        NONE_ANNOUNCED,
        "install the driver of the GPU, or mesa-vulkan-drivers to emulate one on the processor",
    )
