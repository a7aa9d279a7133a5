"""Which processor is this, as the compiler sees it? There is one device, and where it is missing, a package is."""

from __future__ import annotations

import platform
import sys
import threading
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from ...driver.contract.registration import DeviceInfo, Unavailable
from ...foundation import forking
from ...foundation.forking import in_child


def unavailable() -> Unavailable | None:
    for package, module in (("llvmlite", "llvmlite"), ("cffi", "_cffi_backend")):
        if find_spec(module) is None:
            return Unavailable(f"{package} is not installed", f"pip install {package}")
    return None


def infos() -> tuple[DeviceInfo, ...]:
    return (DeviceInfo(0, platform.machine() or "processor"),)


@cache
def library() -> Any:
    """LLVM behind its binding, imported by the first call."""
    import llvmlite.binding as llvm  # type: ignore[import-untyped]  # 80 ms that only a process that compiles pays

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


# ---- forks

FORK_WAIT_S = 10.0
"""How long a fork waits for a thread that is in LLVM, which compiles for some seconds at most."""
_held: list[Any] = []


def _lock() -> Any:
    """What the binding holds around every call, and around the end of every object; None before it is imported."""
    return getattr(getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None), "_lock", None)


def _before_fork() -> None:
    """A child would wait for ever for a lock that a thread of the parent holds."""
    lock = _lock()
    if lock is not None and lock._lock.acquire(timeout=FORK_WAIT_S):
        _held.append(lock._lock)


def _after_fork() -> None:
    if _held:
        _held.pop().release()


@in_child
def _forked() -> None:
    if not _held and (lock := _lock()) is not None:
        lock._lock = threading.RLock()
    _after_fork()


forking.before.append(_before_fork)
forking.in_parent.append(_after_fork)


@dataclass(frozen=True, slots=True)
class Host:
    """The processor that code is made for. `vector_bits` is the width of its widest registers."""

    triple: str
    name: str
    features: str
    vector_bits: int
    compiler: str

    @property
    def x86(self) -> bool:
        return self.triple.startswith(("x86_64", "i386", "i686"))


@cache
def host() -> Host:
    """This machine's processor, as the compiler sees it."""
    import llvmlite

    llvm = library()
    try:
        found = dict(llvm.get_host_cpu_features())
    except RuntimeError:  # a processor whose features the compiler cannot tell
        found = {}
    features = ",".join(("+" if found[name] else "-") + name for name in sorted(found))
    version = f"{'.'.join(map(str, llvm.llvm_version_info))}, llvmlite {llvmlite.__version__}"
    bits = 512 if found.get("avx512f") else 256 if found.get("avx2") else 128
    return Host(llvm.get_process_triple(), llvm.get_host_cpu_name(), features, bits, version)
