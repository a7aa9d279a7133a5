"""What the wgpu backend needs and finds, for `vyre doctor`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from glob import glob
from importlib.util import find_spec

from ...driver.contract.requirement import Check, installed, listed, said
from . import devices


def findings() -> Iterator[Check]:
    yield installed("wgpu", extra="wgpu")
    if find_spec("wgpu") is None:
        return
    if sys.platform.startswith("linux"):  # elsewhere the system brings its own
        yield icd_files()
    why = devices.why_none()
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
        "no driver for Vulkan announces itself",
        "install the driver of the GPU, or mesa-vulkan-drivers to emulate one on the processor",
    )
