"""How does a device come to compute the canonical f32? Asked by running it, and remembered on disk."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from ... import __version__
from ...runtime.device import Artifact
from ...runtime.float_probe import Exactness, known_or_learned, probe_program, run_probe, why_wrong
from .build import build
from .compile import compiler_version
from .device import CudaDevice
from .devices import Found, driver_version


class Mode(StrEnum):
    """How f32 becomes canonical."""

    NATIVE = "native"
    """Instructions flush."""
    SOFT = "soft"
    """They do not, and the kernel does it."""


def exactness_of(found: Found, run: Callable[[CudaDevice, Artifact], bytes] | None = None) -> Exactness[Mode]:
    """What is known of a device, or learned by running kernels on it now."""
    return known_or_learned("cuda", identity(found), Mode, lambda: probe(found, run or run_probe))


def identity(found: Found) -> str:
    """A text that changes with the device, its driver, the compiler and this package."""
    versions = (".".join(map(str, version)) for version in (driver_version(), compiler_version()))
    return "; ".join((__version__, found.name, found.arch, *versions))


def probe(found: Found, run: Callable[[CudaDevice, Artifact], bytes]) -> Exactness[Mode]:
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
