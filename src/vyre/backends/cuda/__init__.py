"""The cuda backend: kernels in CUDA C++, compiled by NVRTC for the device at hand.

Importing this package loads neither the bindings nor the driver.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ...driver.contract.backend import VyreBackend
from ...driver.contract.registration import BackendRegistration, DeviceInfo, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...driver.contract.requirement import Check
    from ...foundation.ir.program import Program
    from .backend import CudaBackend

__all__ = ["REGISTRATION", "CudaBackend"]
_HOME = {"CudaBackend": "backend"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def open_backend(device: object = None) -> VyreBackend:
    from .backend import CudaBackend

    return CudaBackend(device)


def list_devices() -> tuple[DeviceInfo, ...]:
    if unavailable() is not None:
        return ()
    from .devices import infos

    return infos()


def unavailable() -> Unavailable | None:
    if not _is_installed():
        return Unavailable("cuda-bindings is not installed", "pip install 'vyre[cuda]'")
    from ...errors import BackendUnavailable
    from .compile import compiler_version
    from .devices import driver_version, library, why_none

    try:
        library()
    except (ImportError, OSError) as e:
        again = "reinstall it with pip install --force-reinstall cuda-bindings"
        return Unavailable(f"cuda-bindings cannot be loaded ({e})", again)
    if why := why_none():
        return why
    try:
        compiler = compiler_version()
    except BackendUnavailable as e:
        return Unavailable(e.message, e.fix)
    driver = driver_version()
    if driver[0] < compiler[0]:
        return Unavailable(
            f"the NVIDIA driver runs CUDA {driver[0]}.{driver[1]} and NVRTC compiles for {compiler[0]}.{compiler[1]}",
            f"update the driver, or pip install 'nvidia-cuda-nvrtc=={driver[0]}.*'",
        )
    return None


def _is_installed() -> bool:
    try:
        return find_spec("cuda.bindings") is not None
    except ImportError:  # there is no package cuda at all, or it is something else
        return False


def checks() -> Iterator[Check]:
    from .requirements import findings

    return findings()


def emitted_text(program: Program) -> str:
    """CUDA C++, as NVRTC gets it for a device that flushes when asked to, which all known ones do."""
    from .build import kernel_code

    _, code, _ = kernel_code(program)
    return code.text


def probe_key() -> str:
    """Changes with the bindings and the compiler, with the driver's library, and with what hides devices."""
    from ...driver.selection.probe import state_key

    return state_key(
        packages=("cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"),
        files=("/dev/nvidia[0-9]*", *(f"{place}/libcuda.so*" for place in LIBRARIES)),
        environ=("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH"),
    )


LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
)
"""Where drivers are installed."""

REGISTRATION = BackendRegistration(
    id="cuda",
    precedence=10,
    open=open_backend,
    unavailable=unavailable,
    devices=list_devices,
    probe_key=probe_key,
    emit=emitted_text,
    checks=checks,
)
