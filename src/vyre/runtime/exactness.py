"""How does a device come to compute the canonical f32? What a probe found, remembered on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from ..driver.selection.remembered import REFUSAL_S, recall, remember
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
    name = record_name(backend, identity)
    known = _read(recall(name, identity), modes)
    if known is None:
        known = probe()
        remember(name, identity, asdict(known), for_s=None if known.why_not is None else REFUSAL_S)
    return known


def record_name(backend: str, identity: str) -> str:
    """The name of the record of one device: each has its own."""
    return f"{backend}-exactness-{hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()}"


def _read(record: dict[str, Any] | None, modes: type[Mode]) -> Exactness[Mode] | None:
    """What a record says, if it is one of ours."""
    match record:
        case {"mode": None, "why_not": str() as why_not}:
            return Exactness(None, why_not=why_not)
        case {"mode": str() as mode, "float64": bool() as float64, "why_not": None} if mode in set(modes):
            return Exactness(modes(mode), float64)
    return None
