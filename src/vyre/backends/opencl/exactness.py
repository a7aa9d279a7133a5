"""How does a device come to compute the canonical f32? Asked by running it, and remembered on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ... import __version__
from ...driver.contract.registration import DeviceInfo
from ...driver.selection.remembered import Probe, recall, remember
from ...runtime.device import Built
from ...runtime.float_probe import probe_program, run_probe, why_wrong
from .build import build
from .device import OpenCLDevice
from .platforms import library
from .text import Mode


@dataclass(frozen=True, slots=True)
class Exactness:
    """The mode in which kernels are canonical, and whether those with f64 are; or why none is."""

    mode: Mode | None
    float64: bool = False
    why_not: str | None = None


def candidates(device: Any) -> tuple[Mode, ...]:
    """What to try, the fastest first."""
    if "nvidia" in device.platform.vendor.lower():
        return (Mode.PTX, Mode.NATIVE, Mode.SOFT)
    return (Mode.NATIVE, Mode.SOFT)


def exactness_of(device: Any, run: Callable[[OpenCLDevice, Built], bytes] | None = None) -> Exactness:
    """What is known of a device, or learned by running kernels on it now.

    A device without memory to spare, or one that is lost meanwhile, is not judged, and raises what it says.
    """
    key = identity(device)
    name = f"opencl-exactness-{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}"
    recalled = recall(name, key)
    known = None if recalled is None else _told(recalled)
    if known is None:
        known = probe(device, run or run_probe)
        facts = (known.mode or "", "f64" if known.float64 else "")
        remember(name, key, Probe(known.why_not, tuple(DeviceInfo(k, fact) for k, fact in enumerate(facts))))
    return known


def _told(known: Probe) -> Exactness | None:
    """What a record says, if it is one of ours."""
    if known.unavailable is not None:
        return Exactness(None, why_not=known.unavailable)
    try:
        mode, float64 = (fact.name for fact in known.devices)
        return Exactness(Mode(mode), float64 == "f64")
    except ValueError:
        return None


def identity(device: Any) -> str:
    """A text that changes with the device, its driver, the binding and this package."""
    platform = device.platform
    parts = (__version__, library().VERSION_TEXT, platform.name, platform.version, device.name, device.version)
    return "; ".join((*(part.strip() for part in parts), device.driver_version))


def probe(device: Any, run: Callable[[OpenCLDevice, Built], bytes]) -> Exactness:
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
