"""What is a backend? Two required members, and a careful default for everything else."""

from .backend import CONTRACT_VERSION, PIPELINE_CACHE_ATTRIBUTE, VyreBackend
from .capability import DEADLINES, BackendCapability, core_supported_ops
from .pending import FuturePending, PendingDispatch, ReadyPending
from .pipeline import CompiledPipeline
from .registration import PRECEDENCE_UNKNOWN, BackendPrecedence, BackendRegistration, DeviceInfo
from .values import OutputBuffers

__all__ = [
    "CONTRACT_VERSION",
    "DEADLINES",
    "PIPELINE_CACHE_ATTRIBUTE",
    "PRECEDENCE_UNKNOWN",
    "BackendCapability",
    "BackendPrecedence",
    "BackendRegistration",
    "CompiledPipeline",
    "DeviceInfo",
    "FuturePending",
    "OutputBuffers",
    "PendingDispatch",
    "ReadyPending",
    "VyreBackend",
    "core_supported_ops",
]
