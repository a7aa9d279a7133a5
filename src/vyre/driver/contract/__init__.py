"""What is a backend? Two required members, and a careful default for everything else."""

from typing import TYPE_CHECKING

from ...foundation.lazy import lazily, where

if TYPE_CHECKING:
    from .backend import CONTRACT_VERSION as CONTRACT_VERSION
    from .backend import PIPELINE_CACHE_ATTRIBUTE as PIPELINE_CACHE_ATTRIBUTE
    from .backend import VyreBackend as VyreBackend
    from .capability import DEADLINES as DEADLINES
    from .capability import BackendCapability as BackendCapability
    from .capability import core_supported_ops as core_supported_ops
    from .pending import FuturePending as FuturePending
    from .pending import PendingDispatch as PendingDispatch
    from .pending import ReadyPending as ReadyPending
    from .pipeline import Bound as Bound
    from .pipeline import CompiledPipeline as CompiledPipeline
    from .registration import PRECEDENCE_UNKNOWN as PRECEDENCE_UNKNOWN
    from .registration import BackendPrecedence as BackendPrecedence
    from .registration import BackendRegistration as BackendRegistration
    from .registration import DeviceInfo as DeviceInfo
    from .registration import Unavailable as Unavailable
    from .values import OutputBuffers as OutputBuffers

_OFFERS = {
    ".backend": "CONTRACT_VERSION PIPELINE_CACHE_ATTRIBUTE VyreBackend",
    ".capability": "BackendCapability DEADLINES core_supported_ops",
    ".pending": "FuturePending PendingDispatch ReadyPending",
    ".pipeline": "Bound CompiledPipeline",
    ".registration": "BackendPrecedence BackendRegistration DeviceInfo PRECEDENCE_UNKNOWN Unavailable",
    ".values": "OutputBuffers",
}
__all__ = sorted(where(_OFFERS))
__getattr__ = lazily(__name__, _OFFERS)
