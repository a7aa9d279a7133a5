"""The improvements of the kernel form, by name."""

from __future__ import annotations

from collections.abc import Callable

from ..kernel_ir import Kernel
from .bounds_checks import bounds_checks
from .cse import cse
from .dce import dce
from .endless import endless
from .flush import flush
from .fold import fold
from .licm import licm
from .privatize_atomics import privatize_atomics

RUN: dict[str, Callable[[Kernel], None]] = {
    "fold": fold,
    "licm": licm,
    "cse": cse,
    "dce": dce,
    "endless": endless,
    "bounds_checks": bounds_checks,
    "flush": flush,
    "privatize_atomics": privatize_atomics,
}
