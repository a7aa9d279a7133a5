"""Program -> CUDA C++ and what the device loads, with the facts that launches need."""

from __future__ import annotations

from ...driver.offload.device import Built, Facts
from ...foundation.program import Program
from ...lower import LowerOptions, lower
from ...lower.form import Kernel
from ...lower.shares import plain
from .compile import compile_text
from .text import build_options
from .vector import Code, cuda_code

OFF = frozenset(("private",))
"""Copies per worker: a device has too many workers."""


def build(program: Program, arch: str, *, poll: bool = False, soft: bool = False) -> Built:
    """The code of a program that was admitted; its workgroup size is that of the launch.

    `soft` flushes subnormals in the kernel; one that computes with f64 always does.
    """
    kernel, code, options = kernel_code(program, poll=poll, soft=soft)
    slots = {b.name: b.slot for b in kernel.buffers}
    facts = Facts(
        workgroup=kernel.workgroup,
        traps=kernel.traps,
        stored={slots[name]: plain(share) for name, share in kernel.stored.items()},
        polls=kernel.poll,
        extra={
            "buffers": sum(not b.shared for b in kernel.buffers),
            "block": list(code.block),
            "each": code.each,
        },
    )
    return Built(code.text, compile_text(code.text, arch, options), facts)


def kernel_code(program: Program, *, poll: bool = False, soft: bool = False) -> tuple[Kernel, Code, list[str]]:
    """The kernel form, its code, and what the compiler is told."""
    soft = soft or program.requirements.float64
    kernel = lower(program, LowerOptions(soft_flush=soft, poll=poll, off=OFF))
    return kernel, cuda_code(kernel), build_options(soft)
