"""What is known of a device, so that text for it can be shorter: found by probing, part of every key.

The defaults ask for nothing: with them every float step is exact on any device that adds, subtracts and multiplies with
one correct rounding.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traits:
    """`fences`: the compiler does algebra on floats unless operands pass through words it cannot know.

    `soft_flush`: the device keeps subnormals, so the functions of `prelude` flush what they give; without it the device
    reads them as zero and flushes by itself. Steps in integers flush in either case.
    `native_divide`, `native_root` and `native_fma`: `/`, `sqrt` and `fma` round once, correctly; else they are computed
    in integers. `wide_fma`: fma goes through f64 and u64, which the device has.
    `strong_swap`: a compare-exchange never fails without a reason.
    """

    fences: bool = True
    soft_flush: bool = True
    native_divide: bool = False
    native_root: bool = False
    native_fma: bool = False
    wide_fma: bool = False
    strong_swap: bool = False


SAFEST = Traits()
"""What the probe begins with."""
