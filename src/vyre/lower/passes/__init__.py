"""The improvements of the kernel form, by name."""

from __future__ import annotations

from collections.abc import Callable

from ...foundation.lazy import later
from ..kernel_ir import Kernel

RUN: dict[str, Callable[[Kernel], None]] = {
    name: later(__name__, f".{module}:{name}")
    for name, module in (
        ("turns", "turns"),
        ("fold", "fold"),
        ("licm", "licm"),
        ("cse", "cse"),
        ("dce", "dce"),
        ("endless", "turns"),
        ("bounds_checks", "bounds_checks"),
        ("flush", "flush"),
        ("privatize_atomics", "privatize_atomics"),
    )
}
