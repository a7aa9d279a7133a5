"""The backend-neutral middle: what a backend is, which there are, and how a program gets from bytes to bytes.

Every name is resolved on first use (PEP 562), under the spelling that the driver's documentation uses.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_NAMES = {
    "admission": "admit settle_config validate_program_for_backend",
    "contract": (
        "BackendCapability BackendPrecedence BackendRegistration CompiledPipeline DeviceInfo OutputBuffers "
        "PendingDispatch VyreBackend core_supported_ops"
    ),
    "device": "DeviceProfile DeviceTimingQuality",
    "diagnostics": "Diagnostic OpLocation Severity",
    "enforce": "Allow Chain Deny EnforceGate EnforceVerdict RegistryGate",
    "execute": "explain run_batch run_one",
    "guard": "GuardedBackend",
    "pipeline": (
        "CURRENT_PIPELINE_CACHE_KEY_VERSION CompiledPipelineBuild PassthroughPipeline PipelineCacheIdentity "
        "PipelineCacheKey PipelineCacheMissEvidence PipelineCacheMissReason PipelineCacheSnapshot "
        "PipelineDeviceFingerprint PipelineFeatureFlags compile compile_with_telemetry hex_encode hex_short prewarm"
    ),
    "plan.binding": (
        "BackendLayoutClass BackendLayoutFingerprint BackendLayoutSlot Binding BindingPlan BindingRole "
        "BindingSetFingerprint binding_plans_share_layout borrowed_input_slices element_size_bytes"
    ),
    "plan.grid": (
        "IndirectDispatch LaunchGeometryLimits TailMaskPolicy coerce_to_pow2_with_tail_mask dispatch_element_count "
        "dispatch_element_count_for_program dispatch_param_words find_indirect_dispatch infer_dispatch_grid "
        "infer_dispatch_grid_for_count try_coerce_to_pow2_with_tail_mask validate_launch_geometry"
    ),
    "plan.launch": "LaunchPlan resolve_fixpoint_iterations",
    "plan.outputs": (
        "OutputBindingLayout OutputLayout OutputSlot enforce_actual_output_budget output_binding_layout "
        "output_binding_layouts output_layout_from_program replace_output_buffers_preserving_slots"
    ),
    "plan.specialize": "SpecCacheKey SpecMap SpecValue program_vsa_fingerprint",
    "registry": (
        "Selection acquire acquire_preferred_dispatch_backend backend_dispatches backend_precedence "
        "backend_registration devices register registered_backends registered_backends_by_precedence select"
    ),
    "shadow": "ShadowedPipeline",
    "stream": "Backend Executable Streamable stream_chunks",
    "values": (
        "DispatchConfig HostResource Memory PersistentThreadMode ResidentDispatchStep ResidentHandle "
        "ResidentReadRange ResidentSequenceTiming Resource SpeculationMode TimedDispatchResult"
    ),
}
_ALIASES = {
    "BackendError": "..errors:BackendError",
    "DiagnosticCode": "..errors:DiagCode",
    "Error": "..errors:VyreError",
    "SubgroupCaps": "..foundation.subgroup:SubgroupCaps",
    "DeviceBuffer": "..front.device_array:DeviceBuffer",  # arrays are met one layer up
    "TypedDispatchExt": "..front.typed:TypedDispatchExt",
    "compile_owned": "pipeline:compile",
    "compile_owned_with_telemetry": "pipeline:compile_with_telemetry",
    "compile_shared": "pipeline:compile",
    "compile_shared_with_telemetry": "pipeline:compile_with_telemetry",
    "dispatch_param_words_into": "plan.grid:dispatch_param_words",
    "program_vsa_fingerprint_words": "plan.specialize:program_vsa_fingerprint",
    "resolve_fixpoint_iterations_usize": "plan.launch:resolve_fixpoint_iterations",
    "try_dispatch_param_words": "plan.grid:dispatch_param_words",
    "try_dispatch_param_words_into": "plan.grid:dispatch_param_words",
}
"""Names whose twins differ only in ownership elsewhere, and names that live in another layer."""
_ROOMS = {
    "accounting": "checked",
    "admission": "admission",
    "allocation": "checked",
    "backend": "contract",
    "binding": "plan.binding",
    "checked": "checked",
    "contract": "contract",
    "device": "device",
    "device_profile": "device",
    "diagnostics": "diagnostics",
    "enforce": "enforce",
    "error": "..errors",
    "execute": "execute",
    "fixpoint_iterations": "plan.launch",
    "graph_capture": "offload.device",
    "grid_sync": "split",
    "guard": "guard",
    "launch": "plan.launch",
    "numeric": "checked",
    "output_slots": "plan.outputs",
    "pipeline": "pipeline",
    "plan": "plan",
    "program_walks": "plan",
    "registry": "registry",
    "reservation_policy": "checked",
    "shadow": "shadow",
    "specialization": "plan.specialize",
    "split": "split",
    "stream": "stream",
    "subgroup": "..foundation.subgroup",
    "validation": "admission",
    "values": "values",
}
"""Module name -> the module that answers the same question here."""

_WHERE: dict[str, str] = {
    **{name: f"{module}:{name}" for module, names in _NAMES.items() for name in names.split()},
    **_ALIASES,
    **_ROOMS,
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _WHERE[name].partition(":")
    found = import_module(module if module.startswith(".") else f".{module}", __name__)
    value = getattr(found, attribute) if attribute else found
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
