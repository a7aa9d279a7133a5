"""The backend-neutral middle: the contract of backends, their selection, and the way of a program from bytes to bytes.

Every name is resolved on first use (PEP 562), under the spelling that the driver's documentation uses.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from . import above

_NAMES = {
    "admission.gates": "Allow Chain Deny EnforceGate EnforceVerdict RegistryGate",
    "admission.program": "admit settle_config validate_program_for_backend",
    "contract": (
        "BackendCapability BackendPrecedence BackendRegistration CompiledPipeline DeviceInfo OutputBuffers "
        "PendingDispatch VyreBackend core_supported_ops"
    ),
    "contract.profile": "DeviceProfile DeviceTimingQuality PipelineCacheSnapshot",
    "contract.stream": "Backend Executable Streamable stream_chunks",
    "contract.values": (
        "DispatchConfig HostResource Memory PersistentThreadMode ResidentDispatchStep ResidentHandle "
        "ResidentReadRange ResidentSequenceTiming Resource SpeculationMode TimedDispatchResult"
    ),
    "diagnostics": "Diagnostic OpLocation Severity",
    "execute.compile": "CompiledPipelineBuild",
    "execute.pipeline": "run_batch run_one",
    "guard.backend": "GuardedBackend",
    "guard.compile": "compile compile_with_telemetry explain prewarm",
    "observe.evidence": "DispatchTimingEvidence EvidenceArtifact EvidenceBundle ReplayEvidence",
    "observe.provenance": (
        "SourceProvenance capture_git_info capture_git_info_at source_fingerprint source_tree_fingerprint "
        "source_tree_fingerprint_at"
    ),
    "pipeline.compiler": "PassthroughPipeline",
    "pipeline.key": (
        "CURRENT_PIPELINE_CACHE_KEY_VERSION PipelineCacheIdentity PipelineCacheKey PipelineCacheMissEvidence "
        "PipelineCacheMissReason PipelineDeviceFingerprint PipelineFeatureFlags hex_encode hex_short"
    ),
    "pipeline.retention": "CacheEntryStats entries_to_evict eviction_basis_points select_retention_set",
    "pipeline.store": "DiskPipelineCache",
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
    "resident.memory": "validate_buffer_ownership",
    "resident.reuse": "ResidentGraphReuseTelemetry ResidentGraphReuseTelemetryError",
    "selection.registry": (
        "Selection acquire acquire_preferred_dispatch_backend backend_dispatches backend_precedence "
        "backend_registration devices register registered_backends registered_backends_by_precedence select"
    ),
    "verify.shadow": "ShadowedPipeline",
}
_ALIASES = {
    "BackendError": "..errors:BackendError",
    "DiagnosticCode": "..errors:DiagCode",
    "Error": "..errors:VyreError",
    "SubgroupCaps": "..foundation.meaning.subgroup:SubgroupCaps",
    "compile_owned": "guard.compile:compile",
    "compile_owned_with_telemetry": "guard.compile:compile_with_telemetry",
    "compile_shared": "guard.compile:compile",
    "compile_shared_with_telemetry": "guard.compile:compile_with_telemetry",
    "dispatch_param_words_into": "plan.grid:dispatch_param_words",
    "program_vsa_fingerprint_words": "plan.specialize:program_vsa_fingerprint",
    "resolve_fixpoint_iterations_usize": "plan.launch:resolve_fixpoint_iterations",
    "try_dispatch_param_words": "plan.grid:dispatch_param_words",
    "try_dispatch_param_words_into": "plan.grid:dispatch_param_words",
}
"""Names whose twins differ only in ownership elsewhere, and names that live in a lower layer."""
_MODULES = {
    "accounting": "plan.bounds",
    "arm_independence": "policy.overlap",
    "async_copy_overlap": "policy.overlap",
    "allocation": "plan.bounds",
    "backend": "contract",
    "cache_eviction": "pipeline.retention",
    "cache_eviction_heat": "pipeline.retention",
    "cache_invalidation": "pipeline.toolchain",
    "checked": "plan.bounds",
    "device": "contract.profile",
    "split": "pipeline.sequence",
    "stream": "contract.stream",
    "values": "contract.values",
    "binding": "plan.binding",
    "command_reuse_policy": "policy.launch",
    "device_convergence": "policy.convergence",
    "device_profile": "contract.profile",
    "enforce": "admission.gates",
    "evidence": "observe.evidence",
    "device_diagnostic_aggregation": "contract.traps",
    "observability": "observe.metrics",
    "error": "..errors",
    "fixpoint_iterations": "plan.launch",
    "fusion": "policy.fusion",
    "grid_sync": "pipeline.sequence",
    "launch": "plan.launch",
    "numeric": "plan.bounds",
    "output_slots": "plan.outputs",
    "param_inlining": "policy.code",
    "program_walks": "plan",
    "registry": "admission.gates",  # of operations, not of backends: the dialects are still to come
    "reservation_policy": "plan.bounds",
    "residency": "resident.reuse",
    "resident_transfer_fusion": "resident.transfers",
    "result_compaction": "plan.compaction",
    "shadow": "verify.shadow",
    "specialization": "plan.specialize",
    "transfer_accounting": "resident.transfers",
    "subgroup": "..foundation.meaning.subgroup",
    "validation": "admission.program",
}
"""Module of the driver's documentation -> the module that answers the same question here."""
_ROOMS = (
    "admission contract counters device_state diagnostics execute guard observe observers pipeline plan policy "
    "resident selection settings verify"
)

_LENT: dict[str, str] = vars(sys.modules[__name__.partition(".")[0]])["_LENT_TO_DRIVER"]
"""Names that live in higher layers: `vyre` itself says where."""
_WHERE: dict[str, str] = {
    **{name: f"{module}:{name}" for module, names in _NAMES.items() for name in names.split()},
    **_ALIASES,
    **_MODULES,
    **{room: room for room in _ROOMS.split()},
}
__all__ = sorted((*_WHERE, *_LENT))


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name) or _LENT.get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = where.partition(":")
    found = import_module(module if module.startswith(".") else f".{module}", __name__)
    value = getattr(found, attribute) if attribute else found
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# ---- modules under the names of the documentation -------------------------------------------------------------------


class _Finder:
    """`import vyre.driver.backend` imports the module that answers the same question here."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        where = _MODULES.get(name) or _LENT.get(name)
        if package != __name__ or where is None or ":" in where:
            return None
        return ModuleSpec(fullname, _Loader(where))  # type: ignore[arg-type]  # importing its base class takes time


class _Loader:
    def __init__(self, where: str) -> None:
        self._where = where

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._where if self._where.startswith(".") else f".{self._where}", __name__)
        self._spec = module.__spec__  # which the import system is about to replace
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


sys.meta_path.append(_Finder())


# ---- what lower floors ask of higher ones ---------------------------------------------------------------------------


def _shadow_of(backend: Any, program: Any) -> Any:
    from .verify.shadow import shadow_from_env  # only dispatches with a shadow pay for it

    return shadow_from_env(backend, program)


def _decide_shadow(backend: Any) -> Any:
    from .verify.shadow import decide_shadow

    return decide_shadow(backend)


def _backend_knobs(name: str | None) -> Any:
    from .selection.registry import backend_knobs

    return backend_knobs(name)


def _generation() -> int:
    from .selection.registry import generation

    return generation()


above.shadow_of, above.decide_shadow = _shadow_of, _decide_shadow
above.backend_knobs, above.generation = _backend_knobs, _generation
above.named = __getattr__
