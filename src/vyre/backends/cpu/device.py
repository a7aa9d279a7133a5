"""Machine code in memory, for as long as a `LoadedCode` is held, which a call in flight does.

The processor needs no more of a device than this: its memory is the host's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import _cffi_backend  # type: ignore[import-untyped]

from ...errors import KernelCompileFailed
from ...foundation.forking import in_child
from .abi import ENTRY
from .compile import new_machine
from .devices import library

ffi: Any = _cffi_backend.FFI()
_SIGNATURE = "void(*)(void *, void *)"
_LIBRARIES_PER_LINKER = 32
"""A linker keeps about 9 KiB for every library it ever had; a fresh one costs 1.5 ms."""


class LoadedCode:
    """Machine code in memory. `run(shared, worker)` lets go of the interpreter's lock while it runs."""

    __slots__ = ("_library", "nbytes", "run")

    def __init__(self, linked: Any, nbytes: int) -> None:
        self._library = linked
        self.nbytes = nbytes
        self.run: Callable[[Any, Any], None] = ffi.cast(_SIGNATURE, linked[ENTRY])


def load(image: bytes) -> LoadedCode:
    """Code from an object file that `compile_object` made on this kind of processor."""
    return LoadedCode(link(image, ENTRY), len(image))


def link(image: bytes, *names: str) -> Any:
    """What such a file exports: addresses by name, for as long as this is held."""
    builder = library().JITLibraryBuilder().add_object_img(image).add_current_process()
    for name in names:
        builder.export_symbol(name)
    try:
        return _linkers.link(builder)
    except RuntimeError as e:
        raise KernelCompileFailed(
            "the machine code could not be loaded", fix="compile the program again", log=str(e)
        ) from e


class _Linkers:
    """The linker that the next library goes to. A used-up one lives on in the libraries that it linked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: Any = None
        self._linked = 0

    def link(self, builder: Any) -> Any:
        with self._lock:
            if self._current is None or self._linked >= _LIBRARIES_PER_LINKER:
                self._current = library().create_lljit_compiler(new_machine(2), use_jit_link=True, suppress_errors=True)
                self._linked = 0
            self._linked += 1
            return builder.link(self._current, f"kernel{self._linked}")

    def forked(self) -> None:
        self._lock, self._current = threading.Lock(), None


_linkers = _Linkers()
in_child(_linkers.forked)
