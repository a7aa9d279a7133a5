"""The cpu backend: the embedded default, on every core and vector register of the processor.

Importing this package loads no compiler.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ...driver.contract.backend import VyreBackend
from ...driver.contract.registration import BackendRegistration, DeviceInfo, Unavailable
from .run.workers import THREADS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...driver.contract.requirement import Check
    from ...foundation.ir.program import Program
    from .backend import CpuBackend
    from .build import Switches

__all__ = ["REGISTRATION", "CpuBackend", "Switches"]
_HOME = {"CpuBackend": "backend", "Switches": "build"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def open_backend(device: object = None) -> VyreBackend:
    from .backend import CpuBackend

    return CpuBackend()


def list_devices() -> tuple[DeviceInfo, ...]:
    import platform

    return (DeviceInfo(0, platform.machine() or "processor"),)


def unavailable() -> Unavailable | None:
    for package, module in (("llvmlite", "llvmlite"), ("cffi", "_cffi_backend")):
        if find_spec(module) is None:
            return Unavailable(f"{package} is not installed", f"pip install {package}")
    return None


def checks() -> Iterator[Check]:
    from .requirements import findings

    return findings()


def emitted_text(program: Program) -> str:
    """LLVM's assembler for this processor."""
    from .build import Switches, kernel_text
    from .jit import host

    _, text, _ = kernel_text(program, host(), Switches())
    return text


REGISTRATION = BackendRegistration(
    id="cpu",
    precedence=100,
    open=open_backend,
    unavailable=unavailable,
    devices=list_devices,
    kind="host",
    emit=emitted_text,
    knobs=(THREADS,),
    checks=checks,
)
