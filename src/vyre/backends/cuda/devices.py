"""NVIDIA's driver behind its Python binding: which devices there are, contexts, and what its answers mean.

The driver's errors do not leave this package: `Context.ok` turns a failed call into an error of ours.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from ...driver.contract.registration import DeviceInfo, Unavailable
from ...driver.contract.values import Dims
from ...driver.selection.probe import state_key
from ...errors import (
    BackendUnavailable,
    DeviceLost,
    DeviceOutOfMemory,
    DispatchFailed,
    KernelCompileFailed,
    VyreError,
)
from ...foundation.forking import in_child
from .compile import compiler_version

NOT_READY = 600
_FULL = 2
_UNREADABLE = frozenset((200, 209, 218, 222, 300))
"""The image is damaged, or for another architecture."""
_LOST = frozenset((
    4, 46, 101, 201, 214, 220, 226, 400, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 999,
))  # fmt: skip
"""A kernel faulted, the hardware did, or the context is gone: no call succeeds from now on."""
CAPTURING = 900
_CAPTURE = range(CAPTURING, 909)
"""Another library captures a graph, which most calls may not be part of."""
_NO_DEVICE = 100
_FORKED = 3
_ATTRIBUTE = "CU_DEVICE_ATTRIBUTE_"
_LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
)
"""Where drivers are installed."""


def library() -> Any:
    """The binding, imported by the first call."""
    from cuda.bindings import driver  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return driver


# ---- devices ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """A device, as its driver describes it."""

    index: int
    name: str
    arch: str
    memory_bytes: int
    shared_bytes: int
    most_lanes: int
    most_size: Dims
    most_groups: Dims
    multiprocessors: int = 0
    """Multiprocessors, if blocks can wait for each other; 0 where they cannot."""


def unavailable() -> Unavailable | None:
    """Why no device can be used, as a registration says it."""
    if not is_installed():
        return Unavailable("cuda-bindings is not installed", "pip install 'vyre[cuda]'")
    try:
        library()
    except (ImportError, OSError) as e:
        again = "reinstall it with pip install --force-reinstall cuda-bindings"
        return Unavailable(f"cuda-bindings cannot be loaded ({e})", again)
    if why := why_none():
        return why
    try:
        return why_outdated(compiler_version())
    except BackendUnavailable as e:
        return Unavailable(e.message, e.fix)


def is_installed() -> bool:
    try:
        return find_spec("cuda.bindings") is not None
    except ImportError:  # there is no package cuda at all, or it is something else
        return False


def why_none() -> Unavailable | None:
    """Why there is no device, or None: there is one."""
    try:
        cu = library()
        code = int(cu.cuInit(0)[0])
        if code == 0:
            _, count = cu.cuDeviceGetCount()
            code = 0 if count else _NO_DEVICE
    except RuntimeError:  # the binding looks for the library when it is first called
        return Unavailable("no NVIDIA driver is installed", "install it from https://www.nvidia.com/drivers")
    if code == _NO_DEVICE:
        return Unavailable("the NVIDIA driver finds no device", "connect one, or see CUDA_VISIBLE_DEVICES")
    if code == _FORKED:
        return Unavailable("this process was forked from one that uses the NVIDIA driver", "use the spawn start method")
    if code:
        return Unavailable(
            f"the NVIDIA driver does not start ({name_of(code)})", "reinstall it, or restart the machine"
        )
    return None


def driver_version() -> tuple[int, int]:
    """The newest CUDA that the driver runs."""
    number = library().cuDriverGetVersion()[1]
    return number // 1000, number % 1000 // 10


def why_outdated(compiler: tuple[int, int]) -> Unavailable | None:
    """Why the driver does not run what the compiler makes, or None."""
    driver = driver_version()
    if driver[0] >= compiler[0]:
        return None
    return Unavailable(
        f"the NVIDIA driver runs CUDA {driver[0]}.{driver[1]} and NVRTC compiles for {compiler[0]}.{compiler[1]}",
        f"update the driver, or pip install 'nvidia-cuda-nvrtc=={driver[0]}.*'",
    )


def probe_key() -> str:
    """Changes with the bindings and the compiler, with the driver's library, and with what hides devices."""
    return state_key(
        packages=("cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"),
        files=("/dev/nvidia[0-9]*", *(f"{place}/libcuda.so*" for place in _LIBRARIES)),
        environ=("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH"),
    )


def found_devices() -> list[Found]:
    """All devices, in the driver's order, which puts the fastest first."""
    if why := why_none():
        raise BackendUnavailable(why.reason, fix=why.fix, backend="cuda")
    cu = library()
    return [_described(cu, index) for index in range(cu.cuDeviceGetCount()[1])]


def infos() -> tuple[DeviceInfo, ...]:
    if unavailable() is not None:
        return ()
    return tuple(DeviceInfo(found.index, found.name) for found in found_devices())


def _described(cu: Any, index: int) -> Found:
    _, device = cu.cuDeviceGet(index)

    def number(name: str) -> int:
        return int(cu.cuDeviceGetAttribute(getattr(cu.CUdevice_attribute, _ATTRIBUTE + name), device)[1])

    def dims(name: str) -> Dims:
        return number(f"{name}_X"), number(f"{name}_Y"), number(f"{name}_Z")

    return Found(
        index,
        cu.cuDeviceGetName(256, device)[1].partition(b"\0")[0].decode(errors="replace").strip(),
        f"sm_{number('COMPUTE_CAPABILITY_MAJOR')}{number('COMPUTE_CAPABILITY_MINOR')}",
        int(cu.cuDeviceTotalMem(device)[1]),
        number("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        number("MAX_THREADS_PER_BLOCK"),
        dims("MAX_BLOCK_DIM"),
        dims("MAX_GRID_DIM"),
        number("MULTIPROCESSOR_COUNT") if number("COOPERATIVE_LAUNCH") else 0,
    )


# ---- results ---------------------------------------------------------------------------------------------------------


def name_of(code: int) -> str:
    """The driver's name for a result, with its number."""
    try:
        return f"{library().CUresult(code).name.removeprefix('CUDA_ERROR_')}, {code}"
    except ValueError:
        return str(code)


class Context:
    """The primary context of a device. All libraries in a process share it; we retain it once, and never reset it."""

    def __init__(self, index: int) -> None:
        self.index, self.lost = index, False
        self.unended: Any = None
        """Asks whether work that was left behind has ended."""
        self._cu = cu = library()
        self._retained = False
        self._device = self.ok(cu.cuDeviceGet(index), "looking for the device")
        try:
            self.handle = self.ok(cu.cuDevicePrimaryCtxRetain(self._device), "opening the device")
        except DeviceLost as e:
            raise _beyond_help("the driver keeps the device from a process in which a kernel has faulted", e) from e
        self._retained = True

    def ok(self, result: Sequence[Any], doing: str) -> Any:
        """The value of a call, if it succeeded."""
        if result[0]:
            raise self.failed(int(result[0]), doing)
        return result[1] if len(result) > 1 else None

    def failed(self, code: int, doing: str) -> VyreError:
        """Our error for a result."""
        about = {"driver_says": name_of(code), "device": self.index}
        if code in _LOST or self.lost:
            self.lost = True
            return DeviceLost(
                f"the device was lost while {doing}",
                fix="call try_recover() on the backend, then compile, allocate and upload again",
                **about,
            )
        if code == _FULL:
            return DeviceOutOfMemory(
                f"no memory while {doing}", fix="use smaller buffers, or free others first", **about
            )
        if code in _UNREADABLE:
            return KernelCompileFailed(
                "the driver cannot read the compiled kernel",
                fix="compile the program again; update the driver if it happens again",
                **about,
            )
        if code in _CAPTURE:
            return DispatchFailed(
                f"another library captures a graph, such as torch.cuda.graph does, while {doing}",
                fix="call vyre before or after the capture: its work cannot be part of it",
                **about,
            )
        return DispatchFailed(
            f"the driver failed while {doing}",
            fix="read what the driver says; update it, or use another backend",
            **about,
        )

    @contextmanager
    def current(self) -> Iterator[None]:
        """For calls without a stream to say where they belong. Afterwards the thread has the context that it had."""
        self.ok(self._cu.cuCtxPushCurrent(self.handle), "entering the context")
        try:
            yield
        finally:
            self._cu.cuCtxPopCurrent()

    def give_up(self) -> None:
        """Let go of a context that was lost, so that a new one can be made: every library must let go of it."""
        cu = self._cu
        if self._retained:
            cu.cuDevicePrimaryCtxRelease(self._device)
            self._retained = False
        code, _, active = cu.cuDevicePrimaryCtxGetState(self._device)
        if code or active:
            raise _beyond_help("the device is lost, and other libraries in this process hold its context")


def _beyond_help(message: str, cause: VyreError | None = None) -> DeviceLost:
    return DeviceLost(message, fix="restart the process", **({} if cause is None else cause.context))


_contexts: dict[int, Context] = {}
_lock = threading.Lock()


def context_of(index: int) -> Context:
    """The context of a device: the one that is there, or a new one after a loss."""
    with _lock:
        known = _contexts.get(index)
        if known is not None and not known.lost:
            return known
        if known is not None:
            known.give_up()
            del _contexts[index]
        found = _contexts[index] = Context(index)
        return found


def contexts() -> list[Context]:
    """Those that are open."""
    return list(_contexts.values())


@in_child
def _forget() -> None:
    """Nothing of the driver works in a forked process."""
    global _lock
    _lock = threading.Lock()
    for context in _contexts.values():
        context.lost = True
    _contexts.clear()
