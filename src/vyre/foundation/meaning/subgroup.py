"""Subgroups: how many lanes there are, and in which order a reduction joins them.

A subgroup is logical: 32 consecutive local ids on every target, so that a reduction of floats gives the same bits
everywhere. A device whose own width is another one runs it through shared memory.
"""

from __future__ import annotations

from ...errors import ArgumentValueError
from ..ir.value import Value

SUBGROUP_WIDTH = 32
_MOST = 1 << 31
"""The largest power of two that is a u32."""


def reduction_offsets(size: int) -> tuple[int, ...]:
    """Distances of a butterfly over `size` lanes, far to near: every lane ends with the value of all.

    A width that is not a power of two is rounded up; the missing lanes hold the identity.

    >>> reduction_offsets(32)
    (16, 8, 4, 2, 1)
    """
    if not 0 <= size <= _MOST:
        raise ArgumentValueError(
            f"a subgroup of {size} lanes cannot be rounded to a power of two", fix=f"use 0 to {_MOST} lanes"
        )
    return tuple(1 << k for k in reversed(range(max(size - 1, 0).bit_length())))


class SubgroupCaps(Value):
    """What a device says about its own subgroups. A `subgroup_size` of 0 is unknown."""

    supports_subgroup: bool = False
    supports_subgroup_vertex: bool = False
    subgroup_size: int = 0

    @classmethod
    def native(cls, size: int) -> SubgroupCaps:
        """A device whose subgroups always have this many lanes."""
        return cls.from_feature_range(True, False, size, size)

    @classmethod
    def from_feature_range(cls, feature: bool, vertex: bool, least: int, most: int) -> SubgroupCaps:
        """From a feature flag and the range of widths that a driver reports; code must assume the least of them."""
        usable = feature and 0 < least <= most
        return cls(usable, usable and vertex, least if usable else 0)

    def is_usable(self) -> bool:
        """Whether instructions over lanes may be emitted: the device has them, and their width is known."""
        return self.supports_subgroup and self.subgroup_size > 0
