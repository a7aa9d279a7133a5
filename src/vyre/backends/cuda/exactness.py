"""How does a device come to compute the canonical f32? Asked by running it, and remembered on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from ... import __version__
from ...driver.contract.registration import DeviceInfo
from ...driver.selection.remembered import Probe, recall, remember
from ...runtime.device import Built
from ...runtime.float_probe import probe_program, run_probe, why_wrong
from .build import build
from .compile import compiler_version
from .device import CudaDevice
from .driver import Found, driver_version


class Mode(StrEnum):
    """How f32 becomes canonical."""

    NATIVE = "native"
    """Instructions flush."""
    SOFT = "soft"
    """They do not, and the kernel does it."""


@dataclass(frozen=True, slots=True)
class Exactness:
    """The mode in which kernels are canonical, and whether those with f64 are; or why none is."""

    mode: Mode | None
    float64: bool = False
    why_not: str | None = None


def exactness_of(found: Found, run: Callable[[CudaDevice, Built], bytes] | None = None) -> Exactness:
    """What is known of a device, or learned by running kernels on it now."""
    key = identity(found)
    name = f"cuda-exactness-{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}"
    recalled = recall(name, key)
    known = None if recalled is None else _told(recalled)
    if known is None:
        known = probe(found, run or run_probe)
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


def identity(found: Found) -> str:
    """A text that changes with the device, its driver, the compiler and this package."""
    versions = (".".join(map(str, version)) for version in (driver_version(), compiler_version()))
    return "; ".join((__version__, found.name, found.arch, *versions))


def probe(found: Found, run: Callable[[CudaDevice, Built], bytes]) -> Exactness:
    """Try both modes; what the device does by itself is faster."""
    program, opened = probe_program(), CudaDevice(found)
    try:
        native = why_wrong(run, opened, build(program, found.arch))
        soft = why_wrong(run, opened, build(program, found.arch, soft=True))
    finally:
        opened.close()
    if native is not None and soft is not None:
        return Exactness(None, why_not=f"its f32 is not the canonical one (native: {native}; soft: {soft})")
    return Exactness(Mode.NATIVE if native is None else Mode.SOFT, soft is None)
