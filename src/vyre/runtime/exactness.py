"""How does a device come to compute the canonical f32? What a probe found, remembered on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from ..driver.contract.registration import DeviceInfo
from ..driver.selection.remembered import Probe, recall, remember
from ..errors import BackendUnavailable

Mode = TypeVar("Mode", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Exactness(Generic[Mode]):
    """The mode in which kernels are canonical, and whether those with f64 are; or why none is."""

    mode: Mode | None
    float64: bool = False
    why_not: str | None = None

    def require(self, device: str, backend: str) -> None:
        """Raise unless there is such a mode."""
        if self.mode is None:
            raise BackendUnavailable(
                f"{device} cannot be used: {self.why_not}",
                fix="update its driver, or use another device or backend",
                backend=backend,
            )


def known_or_learned(
    backend: str, identity: str, modes: type[Mode], probe: Callable[[], Exactness[Mode]]
) -> Exactness[Mode]:
    """What is remembered of the device that this text tells from others, or what the probe finds now."""
    name = f"{backend}-exactness-{hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()}"
    recalled = recall(name, identity)
    known = None if recalled is None else _told(recalled, modes)
    if known is None:
        known = probe()
        facts = (known.mode or "", "f64" if known.float64 else "")
        remember(name, identity, Probe(known.why_not, tuple(DeviceInfo(k, fact) for k, fact in enumerate(facts))))
    return known


def _told(known: Probe, modes: type[Mode]) -> Exactness[Mode] | None:
    """What a record says, if it is one of ours."""
    if known.unavailable is not None:
        return Exactness(None, why_not=known.unavailable)
    try:
        mode, float64 = (fact.name for fact in known.devices)
        return Exactness(modes(mode), float64 == "f64")
    except ValueError:
        return None
