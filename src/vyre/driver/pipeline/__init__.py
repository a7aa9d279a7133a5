"""Compile a program once, find it again, and know why when it was not found."""

from __future__ import annotations

from typing import Any

from .. import above
from ..contract.profile import PipelineCacheSnapshot
from .cache import (
    DEFAULT_PIPELINE_CACHE_BYTES,
    DEFAULT_PIPELINE_CACHE_ENTRIES,
    PipelineCache,
    PipelineCacheAudit,
    PipelineCacheAuditReport,
    PipelineStore,
    pipeline_cache_limits_from_env,
)
from .compiler import (
    PassthroughPipeline,
    attach_store,
    pipelines_of,
)
from .key import (
    CURRENT_PIPELINE_CACHE_KEY_VERSION,
    LoweringOptions,
    PipelineCacheIdentity,
    PipelineCacheKey,
    PipelineCacheMissEvidence,
    PipelineCacheMissReason,
    PipelineDeviceFingerprint,
    PipelineFeatureFlags,
    dispatch_policy_cache_digest,
    dispatch_policy_cache_string,
    hex_encode,
    hex_short,
)

__all__ = [
    "CURRENT_PIPELINE_CACHE_KEY_VERSION",
    "DEFAULT_PIPELINE_CACHE_BYTES",
    "DEFAULT_PIPELINE_CACHE_ENTRIES",
    "LoweringOptions",
    "PassthroughPipeline",
    "PipelineCache",
    "PipelineCacheAudit",
    "PipelineCacheAuditReport",
    "PipelineCacheIdentity",
    "PipelineCacheKey",
    "PipelineCacheMissEvidence",
    "PipelineCacheMissReason",
    "PipelineCacheSnapshot",
    "PipelineDeviceFingerprint",
    "PipelineFeatureFlags",
    "PipelineStore",
    "attach_store",
    "dispatch_policy_cache_digest",
    "dispatch_policy_cache_string",
    "hex_encode",
    "hex_short",
    "pipeline_cache_limits_from_env",
    "pipelines_of",
]
_HIGHER = {"CompiledPipelineBuild", "compile", "compile_with_telemetry", "prewarm"}


def __getattr__(name: str) -> Any:
    """Compiling for a backend that is not guarded yet belongs here too, and guards lie higher."""
    if name not in _HIGHER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return above.named(name)
