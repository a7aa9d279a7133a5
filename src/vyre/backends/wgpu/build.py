"""Program -> WGSL with the facts that its launches need, within the limits of a device."""

from __future__ import annotations

from collections.abc import Mapping

from ...driver.policy.code import INLINE, choose_parameters
from ...driver.policy.decision import Decision
from ...errors import UnsupportedFeature
from ...foundation.ir.program import Program
from ...lower import LowerOptions, lower
from ...lower.kernel_ir import Kernel
from ...lower.loop_bounds import turns_of
from ...runtime.device import Artifact, LaunchFacts
from .emit.text import helper_turns, param_words, shared_bytes, wgsl_text
from .emit.traits import SAFEST, Traits

OFF = frozenset(("privatize_atomics",))
"""Copies per worker: a device has too many workers."""


def build(program: Program, traits: Traits, limits: Mapping[str, int], *, immediate_bytes: int = 0) -> Artifact:
    """Compile a program that was admitted; its workgroup size is that of the launch.

    `limits` are those of the adapter, `immediate_bytes` what parameters may take without a buffer of their own.
    """
    kernel = lower(program, options(traits))
    _require_fit(kernel, limits)
    parameters = choose_parameters(4 * param_words(kernel), immediate_bytes)
    text = wgsl_text(kernel, traits, parameters.choice == INLINE)
    return Artifact(text, b"", facts_of(kernel, parameters))


def options(traits: Traits) -> LowerOptions:
    """Functions of the text flush what arithmetic gives; where the device keeps subnormals, they read none as zero."""
    return LowerOptions(off=OFF | {"flush"} if traits.soft_flush else OFF, own_arrays=True)


def emitted_text(program: Program) -> str:
    """WGSL that asks nothing of the device beyond the standard, with parameters in a buffer."""
    kernel = lower(program, options(SAFEST))
    return wgsl_text(kernel, SAFEST, immediates=False)


def facts_of(kernel: Kernel, parameters: Decision) -> LaunchFacts:
    writable = [b.writable for b in kernel.buffers if not b.shared] + [True] * bool(kernel.traps)
    return LaunchFacts.of(
        kernel,
        parameters,
        loop_bound=turns_of(kernel),
        writable=writable,
        words=param_words(kernel),
        immediates=parameters.choice == INLINE,
        helper_turns=helper_turns(kernel),
    )


def _require_fit(kernel: Kernel, limits: Mapping[str, int]) -> None:
    """What admission cannot see: the lowering adds workgroup memory for subgroups, and a buffer for traps."""
    bound = sum(not b.shared for b in kernel.buffers) + bool(kernel.traps)
    for what, name, asked in (
        ("storage buffers, with one for traps," if kernel.traps else "storage buffers",
         "max-storage-buffers-per-shader-stage", bound),
        ("bytes of workgroup memory", "max-compute-workgroup-storage-size", shared_bytes(kernel)),
    ):  # fmt: skip
        if asked > limits[name]:
            raise UnsupportedFeature(
                f"the program needs {asked} {what} and {name} of the device is {limits[name]}",
                fix="use fewer or smaller buffers, or the cpu backend",
                limit=name,
                asked=asked,
                most=limits[name],
            )
