"""Program -> legal typed kernel form, shared by every compiled backend."""

from __future__ import annotations

from collections.abc import Set

from ..foundation.ir.program import Program
from ..foundation.meaning import mathlib
from ..foundation.meaning.own_arrays import in_workgroup_memory
from .from_program import build
from .kernel_ir import Kernel
from .options import DEFAULT_OPTIONS, PASSES, LowerOptions
from .passes import RUN
from .uniformity import mark_uniform

__all__ = ["PASSES", "Kernel", "LowerOptions", "improve", "lower"]


def lower(program: Program, options: LowerOptions = DEFAULT_OPTIONS) -> Kernel:
    """The kernel of a program that was admitted. Grid-wide barriers were split off before, or the emitter has some."""
    kept = frozenset(op for op in mathlib.functions() if op.text in options.native)
    expanded = mathlib.expand(program if options.own_arrays else in_workgroup_memory(program), kept)
    kernel = build(expanded, soft_flush=options.soft_flush, native=options.native, grid_sync=options.grid_sync)
    kernel.poll, kernel.firm = options.poll, options.firm
    improve(kernel, options.off)
    return kernel


def improve(kernel: Kernel, off: Set[str] = frozenset()) -> None:
    """Make every improvement that is not `off`, in place, and then say what is uniform."""
    for name in PASSES:
        if name not in off:
            RUN[name](kernel)
    mark_uniform(kernel)
