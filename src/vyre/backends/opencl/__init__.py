"""The opencl backend: kernels in OpenCL C, built by whichever driver is installed.

Importing this package loads neither the binding nor a driver.
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
    from .backend import OpenCLBackend

__all__ = ["REGISTRATION", "OpenCLBackend"]
_HOME = {"OpenCLBackend": "backend"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def open_backend(device: object = None) -> VyreBackend:
    from .backend import OpenCLBackend

    return OpenCLBackend(device)


def list_devices() -> tuple[DeviceInfo, ...]:
    if find_spec("pyopencl") is None:
        return ()
    from .devices import infos

    return infos()


def unavailable() -> Unavailable | None:
    if find_spec("pyopencl") is None:
        return Unavailable("pyopencl is not installed", "pip install 'vyre[opencl]'")
    try:
        from .devices import library, why_none

        library()
    except (ImportError, OSError) as e:
        again = "reinstall it with pip install --force-reinstall pyopencl"
        return Unavailable(f"pyopencl cannot be loaded ({e})", again)
    return why_none()


def checks() -> Iterator[Check]:
    from .requirements import findings

    return findings()


def emitted_text(program: Program) -> str:
    """OpenCL C for a device that keeps subnormals, which is right on every one."""
    from .build import kernel_text
    from .emit.text import Mode

    _, text, _ = kernel_text(program, Mode.SOFT)
    return text


def probe_key() -> str:
    """Changes with the binding, the drivers that announce themselves, the devices that they may find, and what hides
    some of them."""
    from ...driver.selection.probe import state_key
    from .devices import icd_files

    return state_key(
        packages=("pyopencl", "pocl-binary-distribution"),
        files=(*icd_files(), "/dev/dri/*", "/dev/nvidia*", "/dev/kfd", "/dev/dxg"),
        environ=("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH", "OCL_ICD_FILENAMES", "POCL_DEVICES", "CUDA_VISIBLE_DEVICES"),
    )


REGISTRATION = BackendRegistration(
    id="opencl",
    precedence=40,
    open=open_backend,
    unavailable=unavailable,
    devices=list_devices,
    probe_key=probe_key,
    emit=emitted_text,
    checks=checks,
)
