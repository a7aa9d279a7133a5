"""What compiled backends share: the processor's, and those of devices with memory of their own and a queue."""

from __future__ import annotations

from ..foundation.lazy import lazily, where

_OFFERS = {
    ".backend": "OffloadBackend Session",
    ".compiled": "OPS CompiledBackend",
    ".device": "Artifact Batch Device LaunchFacts Ticket",
    ".pipeline": "OffloadPipeline",
}
__all__ = sorted(where(_OFFERS))
__getattr__ = lazily(__name__, _OFFERS)
