"""CUDA C++ -> a cubin, by NVRTC. No device is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...errors import BackendUnavailable, KernelCompileFailed

_LOG_CHARACTERS = 4000


def nvrtc() -> Any:
    """The bindings of the compiler, with the compiler behind them."""
    try:
        from cuda.bindings import nvrtc as found  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as e:
        raise _unavailable("the package cuda-bindings cannot be imported", e) from e
    try:
        found.nvrtcVersion()
    except (RuntimeError, OSError) as e:  # the bindings look for the library when it is first called
        raise _unavailable("the library NVRTC cannot be loaded", e) from e
    return found


def compiler_version() -> tuple[int, int]:
    """Major and minor version of NVRTC."""
    _, major, minor = nvrtc().nvrtcVersion()
    return major, minor


def compile_text(text: str, arch: str, options: Sequence[str]) -> bytes:
    """Code for devices of an architecture such as `sm_90`."""
    lib = nvrtc()
    arguments = [f"--gpu-architecture={arch}".encode(), *(o.encode() for o in options)]
    source = text.encode()
    program = _checked(lib, lib.nvrtcCreateProgram(source, b"vyre_kernel.cu", 0, [], []))
    try:
        status = lib.nvrtcCompileProgram(program, len(arguments), arguments)[0]
        if status != lib.nvrtcResult.NVRTC_SUCCESS:
            log = _log(lib, program)
            first = next((line for line in log.splitlines() if "error" in line), status.name)
            raise KernelCompileFailed(
                f"NVRTC refused the kernel for {arch}: {first.strip()}",
                fix="report this program, or use another backend",
                log=log[:_LOG_CHARACTERS],
            )
        return _filled(lib, lib.nvrtcGetCUBINSize, lib.nvrtcGetCUBIN, program)
    finally:
        lib.nvrtcDestroyProgram(program)


def _log(lib: Any, program: Any) -> str:
    return (
        _filled(lib, lib.nvrtcGetProgramLogSize, lib.nvrtcGetProgramLog, program).rstrip(b"\0").decode(errors="replace")
    )


def _filled(lib: Any, size: Callable[..., Any], fill: Callable[..., Any], program: Any) -> bytes:
    """Bytes of a size that the library says and fills: the bindings write into the object itself."""
    found = bytes(_checked(lib, size(program)))
    _checked(lib, fill(program, found))
    return found


def _checked(lib: Any, result: Sequence[Any]) -> Any:
    if result[0] != lib.nvrtcResult.NVRTC_SUCCESS:
        raise KernelCompileFailed(f"NVRTC failed: {result[0].name}", fix="reinstall cuda-bindings and NVRTC")
    return result[1] if len(result) > 1 else None


def _unavailable(what: str, cause: Exception) -> BackendUnavailable:
    first = (str(cause).splitlines() or [type(cause).__name__])[0]
    return BackendUnavailable(f"{what}: {first}", fix="pip install vyre[cuda]", backend="cuda")
