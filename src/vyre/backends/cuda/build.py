"""Program -> CUDA C++ and what the device loads, with the facts that launches need."""

from __future__ import annotations

from ...foundation.ir.program import Program
from ...lower import LowerOptions, lower
from ...lower.kernel_ir import Kernel
from ...runtime.device import Artifact, LaunchFacts
from .compile import compile_text
from .emit.coarsen import KernelText, cuda_code
from .emit.text import build_options, dynamic_bytes
from .emit.vendor_math import within

OFF = frozenset(("privatize_atomics",))
"""Copies per worker: a device has too many workers."""


def build(program: Program, arch: str, *, poll: bool = False, soft: bool = False, ulp_budget: int = 0) -> Artifact:
    """The code of a program that was admitted; its workgroup size is that of the launch.

    `soft` flushes subnormals in the kernel; one that computes with f64 always does. Such a kernel is exact whatever the
    budget: NVIDIA's functions flush or not as the compiler is told.
    """
    kernel, code, options = kernel_code(program, poll=poll, soft=soft, ulp_budget=ulp_budget)
    return Artifact(code.text, compile_text(code.text, arch, options), facts_of(kernel, code))


def facts_of(kernel: Kernel, code: KernelText) -> LaunchFacts:
    return LaunchFacts.of(
        kernel,
        *code.decisions,
        buffers=sum(not b.shared for b in kernel.buffers),
        block=list(code.block),
        each=code.each,
        joined=code.joined,
        shared=dynamic_bytes(kernel),
    )


def emitted_text(program: Program) -> str:
    """CUDA C++, as NVRTC gets it for a device that flushes when asked to, which all known ones do."""
    _, code, _ = kernel_code(program)
    return code.text


def kernel_code(
    program: Program, *, poll: bool = False, soft: bool = False, ulp_budget: int = 0
) -> tuple[Kernel, KernelText, list[str]]:
    """The kernel form, its code, and what the compiler is told."""
    soft = soft or program.requirements.float64
    native = within(program, 0 if soft else ulp_budget)
    # the steps of f32 are assembler, which the compiler leaves alone
    kernel = lower(
        program,
        LowerOptions(soft_flush=soft, poll=poll, off=OFF, native=native, firm=True, grid_sync=True, own_arrays=True),
    )
    return kernel, cuda_code(kernel), build_options(soft)
