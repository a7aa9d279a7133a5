"""Backends whose target has memory of its own and a queue: what they share."""

from __future__ import annotations

from .backend import OPS, OffloadBackend, Session
from .device import TRAP_BYTES, TRAP_WORDS, Batch, Built, Device, Facts, Ticket
from .pipeline import OffloadPipeline

__all__ = [
    "OPS",
    "TRAP_BYTES",
    "TRAP_WORDS",
    "Batch",
    "Built",
    "Device",
    "Facts",
    "OffloadBackend",
    "OffloadPipeline",
    "Session",
    "Ticket",
]
