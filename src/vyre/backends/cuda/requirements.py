"""What the cuda backend needs and finds, for `vyre doctor`."""

from __future__ import annotations

from collections.abc import Iterator

from ...driver.contract.requirement import Check, installed, said
from ...errors import BackendUnavailable


def findings() -> Iterator[Check]:
    from . import _is_installed

    yield installed("cuda-bindings", extra="cuda")
    if not _is_installed():
        return
    from .compile import compiler_version
    from .devices import driver_version, library, why_none

    try:
        library()
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
    if (why := why_none()) is not None:
        yield said("driver", why, "")
        return
    driver = driver_version()
    yield (
        Check(
            "driver",
            "fail",
            f"the NVIDIA driver runs CUDA {_text(driver)} and NVRTC compiles for {_text(compiler)}",
            f"update the driver, or pip install 'nvidia-cuda-nvrtc=={driver[0]}.*'",
        )
        if compiler is not None and driver[0] < compiler[0]
        else Check("driver", "ok", f"the NVIDIA driver runs CUDA {_text(driver)}")
    )


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
