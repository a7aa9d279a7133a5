"""What is this device? One value of facts, each unknown one at its most careful value."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING

from ...foundation import html
from ...foundation.meaning.subgroup import SubgroupCaps
from .values import Dims

if TYPE_CHECKING:
    from .backend import VyreBackend


class DeviceTimingQuality(StrEnum):
    """How a backend knows how long a dispatch took."""

    HOST_ONLY = "host_only"
    HOST_ENQUEUE_WAIT = "host_enqueue_wait"
    DEVICE_TIMESTAMPS = "device_timestamps"
    HARDWARE_COUNTERS = "hardware_counters"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """Facts of one device; 0 means unknown. A flag promises that our lowering uses the feature.

    A field is here because some backend can tell it; all of them are part of cache keys.
    """

    backend: str = "unknown"
    device: str = ""
    supports_subgroup_ops: bool = False
    supports_indirect_dispatch: bool = False
    supports_distributed_collectives: bool = False
    supports_f16: bool = False
    supports_bf16: bool = False
    supports_trap_propagation: bool = False
    supports_tensor_cores: bool = False
    has_mul_high: bool = False
    has_subgroup_shuffle: bool = False
    has_shared_memory: bool = False
    max_native_int_width: int = 32
    max_workgroup_size: Dims = (1, 1, 1)
    max_invocations_per_workgroup: int = 1
    max_shared_memory_bytes: int = 0
    max_storage_buffer_binding_size: int = 0
    subgroup_size: int = 0
    compute_units: int = 0
    timing_quality: DeviceTimingQuality = DeviceTimingQuality.HOST_ONLY
    supports_device_timestamps: bool = False
    ideal_vector_pack_bits: int = 0

    def _repr_html_(self) -> str:
        known = {f.name: getattr(self, f.name) for f in fields(self)}
        name = f"{known.pop('backend')} {known.pop('device')}".strip()
        return html.page(f"device profile of {name}", html.facts(known.items()))

    @classmethod
    def conservative(cls, backend: str) -> DeviceProfile:
        """Nothing is known but the backend's name."""
        return cls(backend=backend)

    @classmethod
    def from_backend(cls, backend: VyreBackend) -> DeviceProfile:
        """What the backend's own answers say."""
        from .backend import QUERIES

        width = backend.subgroup_size or 0
        subgroups = SubgroupCaps.from_feature_range(backend.supports_subgroup_ops, False, width, width)
        told = {f.name: getattr(backend, f.name) for f in fields(cls) if f.name in QUERIES}
        told |= {
            "subgroup_size": width,
            "has_subgroup_shuffle": subgroups.is_usable(),
            "max_storage_buffer_binding_size": backend.max_storage_buffer_bytes,
        }
        return cls(backend=backend.id, **told)


@dataclass(frozen=True, slots=True)
class PipelineCacheSnapshot:
    """Counts since the cache was made, and what it holds now."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    entries: int = 0
    nbytes: int = 0
