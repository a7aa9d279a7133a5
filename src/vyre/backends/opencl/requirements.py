"""What the opencl backend needs and finds, for `vyre doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from ...driver.contract.requirement import Check, installed, listed, said
from . import devices


def findings() -> Iterator[Check]:
    yield installed("pyopencl", extra="opencl")
    if find_spec("pyopencl") is None:
        return
    files, folder = devices.icd_files(), devices.vendors_folder()
    yield (
        Check("ICD files", "ok", listed(files))
        if files
        else Check(
            "ICD files",
            "warn",
            f"no driver announces itself in {folder}",
            "install the driver of your GPU, or pocl-opencl-icd for the processor",
        )
    )
    try:
        devices.library()
    except (ImportError, OSError) as e:
        yield Check("loader", "fail", f"pyopencl cannot be loaded ({e})", "pip install --force-reinstall pyopencl")
        return
    names = ", ".join(f"{p.name.strip()} {p.version.split('  ')[0].strip()}" for p in devices.platforms())
    yield said("platforms", devices.why_none(), names, verdict="fail" if files else "warn")
