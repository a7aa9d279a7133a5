"""What the cuda backend needs and finds, for `vyre doctor`."""

from __future__ import annotations

from collections.abc import Iterator

from ...driver.contract.requirement import Check, installed, said
from ...errors import BackendUnavailable
from . import devices
from .compile import compiler_version


def findings() -> Iterator[Check]:
    yield installed("cuda-bindings", extra="cuda")
    if not devices.is_installed():
        return
    try:
        devices.library()
    except (ImportError, OSError) as e:
        again = "pip install --force-reinstall cuda-bindings"
        yield Check("bindings", "fail", f"cuda-bindings cannot be loaded ({e})", again)
        return
    try:
        compiler = compiler_version()
        yield Check("NVRTC", "ok", f"compiles for CUDA {_text(compiler)}")
    except BackendUnavailable as e:
        compiler = None
        yield Check("NVRTC", "warn", e.message, e.fix)
    if (why := devices.why_none()) is not None:
        yield said("driver", why, "")
        return
    outdated = None if compiler is None else devices.why_outdated(compiler)
    yield said("driver", outdated, f"the NVIDIA driver runs CUDA {_text(devices.driver_version())}", verdict="fail")


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
