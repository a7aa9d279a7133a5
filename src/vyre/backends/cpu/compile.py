"""LLVM's assembler -> object code: bytes that can be stored and loaded by a process on the same kind of processor.

Each compilation has a context of its own, so that threads compile side by side.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from ...errors import KernelCompileFailed
from .devices import host, library

if TYPE_CHECKING:
    import llvmlite.binding as llvm  # type: ignore[import-untyped]

_THOROUGH, _QUICK = 10_000, 20_000
"""Up to the first size a module is optimised; above the second its code is generated in the quickest way. Else the time
would grow with the square of the size where there are many blocks, or many values that are alive."""
_BLOCK = 8
"""A branch counts like so many lines."""


def compile_object(text: str) -> bytes:
    """The object file of a module in the assembler's text. The larger it is, the less is done for its speed."""
    llvm = library()
    size = text.count("\n") + _BLOCK * text.count("\n  br ")
    machine = _machine(2 if size <= _THOROUGH else 1 if size <= _QUICK else 0)
    context = llvm.create_context()
    try:
        module = llvm.parse_assembly(text, context)
        try:
            module.verify()
            if size <= _THOROUGH:
                optimize(module)
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


def optimize(module: Any) -> None:
    """Function by function: what the compiler does for whole modules doubles the time and gains nothing here."""
    llvm = library()
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


def new_machine(effort: int) -> llvm.TargetMachine:
    found = host()
    return (
        library()
        .Target.from_triple(found.triple)
        .create_target_machine(
            cpu=found.name, features=found.features, opt=effort, reloc="pic", codemodel="small", jit=True
        )  # small: the linker puts the parts of a library side by side
    )


_machine = cache(new_machine)


@cache
def _tuning() -> Any:
    """Vectors are the emitter's business: code that it leaves scalar is meant to be so."""
    tuning = library().create_pipeline_tuning_options(speed_level=2)
    tuning.loop_vectorization = tuning.slp_vectorization = False
    return tuning
