"""Program -> OpenCL C with the facts that its launches need."""

from __future__ import annotations

from ...foundation.ir.program import Program
from ...lower import LowerOptions, lower
from ...lower.kernel_ir import Kernel
from ...runtime.device import Artifact, LaunchFacts
from .emit.text import Mode, build_options, keeps_subnormals, opencl_text

OFF = frozenset(("privatize_atomics",))
"""Copies per worker: a device has too many workers."""


def build(program: Program, mode: Mode, *, poll: bool = False, soft: bool = False) -> Artifact:
    """The text for a program that was admitted; its workgroup size is that of the launch.

    `soft` flushes subnormals in the kernel although the mode would not need it.
    """
    kernel, text, options = kernel_text(program, mode, poll=poll, soft=soft)
    facts = LaunchFacts.of(
        kernel,
        buffers=sum(not b.shared for b in kernel.buffers),
        clock=mode is Mode.PTX,
        options=options,
    )
    return Artifact(text, b"", facts)


def emitted_text(program: Program) -> str:
    """OpenCL C for a device that keeps subnormals, which is right on every one."""
    _, text, _ = kernel_text(program, Mode.SOFT)
    return text


def kernel_text(
    program: Program, mode: Mode, *, poll: bool = False, soft: bool = False
) -> tuple[Kernel, str, list[str]]:
    """The kernel form, its text, and what the driver's compiler is told."""
    float64 = soft or program.requirements.float64
    soft_flush, firm = keeps_subnormals(mode, float64), mode is Mode.PTX
    options = LowerOptions(soft_flush=soft_flush, poll=poll, off=OFF, firm=firm, own_arrays=True)
    kernel = lower(program, options)
    return kernel, opencl_text(kernel, mode), build_options(mode, float64, kernel.lanes)
