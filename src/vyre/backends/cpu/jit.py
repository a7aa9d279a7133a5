"""Text in, machine code out, with one compiler per process and one context per compilation.

`compile_object` gives bytes that can be stored and loaded by another process on the same kind of processor; `load` puts
them into memory. Machine code stays for as long as somebody holds its `LoadedCode`, which a call in flight does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import _cffi_backend  # type: ignore[import-untyped]

from ...errors import KernelCompileFailed
from ...foundation.forking import in_child

if TYPE_CHECKING:
    import llvmlite.binding as llvm  # type: ignore[import-untyped]

ffi: Any = _cffi_backend.FFI()
ENTRY = "vyre_run"
"""The one symbol that a module exports: `void vyre_run(ptr shared, ptr worker)`."""
_SIGNATURE = "void(*)(void *, void *)"
_THOROUGH, _QUICK = 10_000, 20_000
"""Up to the first size a module is optimised; above the second its code is generated in the quickest way. Else the time
would grow with the square of the size where there are many blocks, or many values that are alive."""
_BLOCK = 8
"""A branch counts like so many lines."""
_LIBRARIES_PER_LINKER = 32
"""A linker keeps about 9 KiB for every library it ever had; a fresh one costs 1.5 ms."""


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
    llvm = _llvm()
    try:
        found = dict(llvm.get_host_cpu_features())
    except RuntimeError:  # a processor whose features nobody can tell
        found = {}
    features = ",".join(("+" if found[name] else "-") + name for name in sorted(found))
    version = ".".join(map(str, llvm.llvm_version_info))
    bits = 512 if found.get("avx512f") else 256 if found.get("avx2") else 128
    return Host(llvm.get_process_triple(), llvm.get_host_cpu_name(), features, bits, version)


class LoadedCode:
    """Machine code in memory. `run(shared, worker)` lets go of the interpreter's lock while it runs."""

    __slots__ = ("_library", "nbytes", "run")

    def __init__(self, library: Any, nbytes: int) -> None:
        self._library = library
        self.nbytes = nbytes
        self.run: Callable[[Any, Any], None] = ffi.cast(_SIGNATURE, library[ENTRY])


def compile_object(text: str) -> bytes:
    """The object file of a module in the assembler's text. The larger it is, the less is done for its speed."""
    llvm = _llvm()
    size = text.count("\n") + _BLOCK * text.count("\n  br ")
    machine = _machine(2 if size <= _THOROUGH else 1 if size <= _QUICK else 0)
    context = llvm.create_context()
    try:
        module = llvm.parse_assembly(text, context)
        try:
            module.verify()
            if size <= _THOROUGH:
                _optimize(module)
            found: bytes = machine.emit_object(module)
        finally:
            module.close()
    except RuntimeError as e:
        raise KernelCompileFailed(
            "the compiler rejected the emitted kernel", fix="report the kernel text with the program", log=str(e)
        ) from e
    finally:
        context.close()
    return found


def _optimize(module: Any) -> None:
    """Function by function: what the compiler does for whole modules doubles the time and gains nothing here."""
    llvm = _llvm()
    with llvm.create_pass_builder(_machine(2), _tuning()) as builder:
        for function in module.functions:
            if function.is_declaration:
                continue
            manager = builder.getFunctionPassManager()
            try:
                manager.run(function, builder)
            finally:  # its own close() frees nothing: 80 KiB for each module
                llvm.newpassmanagers.NewPassManager._dispose(manager)
                manager.detach()


def load(image: bytes) -> LoadedCode:
    """Code from an object file that `compile_object` made on this kind of processor."""
    llvm = _llvm()
    builder = llvm.JITLibraryBuilder().add_object_img(image).add_current_process().export_symbol(ENTRY)
    try:
        return LoadedCode(_linkers.link(builder), len(image))
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
                self._current = _llvm().create_lljit_compiler(_new_machine(2), use_jit_link=True, suppress_errors=True)
                self._linked = 0
            self._linked += 1
            return builder.link(self._current, f"kernel{self._linked}")

    def forked(self) -> None:
        self._lock, self._current = threading.Lock(), None


_linkers = _Linkers()
in_child(_linkers.forked)


@cache
def _llvm() -> Any:
    import llvmlite.binding as llvm  # 80 ms that only those pay who compile

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def _new_machine(effort: int) -> llvm.TargetMachine:
    found = host()
    return (
        _llvm()
        .Target.from_triple(found.triple)
        .create_target_machine(
            cpu=found.name, features=found.features, opt=effort, reloc="pic", codemodel="small", jit=True
        )  # small: the linker puts the parts of a library side by side
    )


_machine = cache(_new_machine)


@cache
def _tuning() -> Any:
    """Vectors are the emitter's business: what it leaves scalar is meant to be."""
    tuning = _llvm().create_pipeline_tuning_options(speed_level=2)
    tuning.loop_vectorization = tuning.slp_vectorization = False
    return tuning
