"""Program -> legal typed kernel form, shared by every compiled backend."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from ..foundation.lazy import lazily
from .options import DEFAULT_OPTIONS, PASSES, LowerOptions

if TYPE_CHECKING:
    from ..foundation.ir.program import Program
    from .kernel_ir import Kernel as Kernel

__all__ = ["PASSES", "Kernel", "LowerOptions", "improve", "lower"]
__getattr__ = lazily(__name__, {".kernel_ir": "Kernel"})


def lower(program: Program, options: LowerOptions = DEFAULT_OPTIONS) -> Kernel:
    """The kernel of a program that was admitted. Grid-wide barriers were split off before, or the emitter has some."""
    from ..foundation.meaning import mathlib  # 10 ms that a process pays which compiles
    from ..foundation.meaning.own_arrays import in_workgroup_memory
    from .from_program import build

    kept = frozenset(op for op in mathlib.functions() if op.text in options.native)
    expanded = mathlib.expand(program if options.own_arrays else in_workgroup_memory(program), kept)
    kernel = build(expanded, soft_flush=options.soft_flush, native=options.native, grid_sync=options.grid_sync)
    kernel.poll, kernel.firm, kernel.by_turns = options.poll, options.firm, options.by_turns
    improve(kernel, options.off)
    return kernel


def improve(kernel: Kernel, off: Set[str] = frozenset()) -> None:
    """Make every improvement that is not `off`, in place, and then say what is uniform."""
    from .passes import RUN
    from .uniformity import mark_uniform

    for name in PASSES:
        if name not in off:
            RUN[name](kernel)
    mark_uniform(kernel)
