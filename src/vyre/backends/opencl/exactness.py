"""How does a device come to compute the canonical f32? Asked by running it, and remembered on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import __version__
from ...runtime.device import Artifact
from ...runtime.float_probe import Exactness, known_or_learned, probe_program, run_probe, why_wrong
from .build import build
from .device import OpenCLDevice
from .devices import library
from .emit.text import Mode


def candidates(device: Any) -> tuple[Mode, ...]:
    """What to try, the fastest first."""
    if "nvidia" in device.platform.vendor.lower():
        return (Mode.PTX, Mode.NATIVE, Mode.SOFT)
    return (Mode.NATIVE, Mode.SOFT)


def exactness_of(device: Any, run: Callable[[OpenCLDevice, Artifact], bytes] | None = None) -> Exactness[Mode]:
    """What is known of a device, or learned by running kernels on it now.

    A device without memory to spare, or one that is lost meanwhile, is not judged, and raises what it says.
    """
    return known_or_learned("opencl", identity(device), Mode, lambda: probe(device, run or run_probe))


def identity(device: Any) -> str:
    """A text that changes with the device, its driver, the binding and this package."""
    platform = device.platform
    parts = (__version__, library().VERSION_TEXT, platform.name, platform.version, device.name, device.version)
    return "; ".join((*(part.strip() for part in parts), device.driver_version))


def probe(device: Any, run: Callable[[OpenCLDevice, Artifact], bytes]) -> Exactness[Mode]:
    """Try the modes one after the other; the first that is canonical is used."""
    program, opened, reasons = probe_program(), OpenCLDevice(device), []
    try:
        for mode in candidates(device):
            wrong = why_wrong(run, opened, build(program, mode))
            if wrong is None:
                has_f64 = "cl_khr_fp64" in device.extensions
                soft_works = has_f64 and why_wrong(run, opened, build(program, mode, soft=True)) is None
                return Exactness(mode, soft_works)
            reasons.append(f"{mode}: {wrong}")
    finally:
        opened.close()
    return Exactness(None, why_not=f"its f32 is not the canonical one ({'; '.join(reasons)})")
