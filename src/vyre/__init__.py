"""Write a compute program once, run it on whatever is there, get the same bytes everywhere.

Names are resolved on first use (PEP 562): importing vyre loads no NumPy and no device library.
"""

from __future__ import annotations

__version__ = "0.1.0"

_ERRORS = (
    "ArgumentTypeError ArgumentValueError BackendError BackendUnavailable CooperativeResidencyExceeded "
    "DeadlineExceeded DeviceLost DeviceOutOfMemory DiagCode DispatchFailed ErrorCode IRTypeError IRValueError "
    "InvalidProgram KernelCompileFailed KernelError PoisonedLock RaceDetected StepLimitExceeded TextError Trap "
    "UnsupportedFeature VyreError WireError WireUnknownOp WireVersionError"
)
_LANGUAGE = (
    "D1 D2 D3 D4 In InOut Out Uniform const device gid lid wg shared local barrier grid_sync static_range trap "
    "vec2 vec3 vec4 c64 dot cross length normalize conj "
    "atomic_add atomic_and atomic_cas atomic_exchange atomic_max atomic_min atomic_or atomic_sub atomic_xor "
    "bitcast select fma abs_diff acos acosh asin asinh atan atan2 atanh cbrt ceil clz copysign cos cosh cospi ctz erf "
    "erfc exp exp10 exp2 expm1 floor fmod frexp_exponent frexp_mantissa hypot inverse_sqrt is_finite is_inf is_nan "
    "ldexp log log10 log1p log2 mul_high nextafter popcount pow reciprocal remainder reverse_bits rotate_left "
    "rotate_right round saturating_add saturating_mul saturating_sub sign sin sinh sinpi sqrt tan tanh tanpi trunc "
    "subgroup_add subgroup_and subgroup_ballot subgroup_local_id subgroup_max subgroup_min subgroup_mul subgroup_or "
    "subgroup_shuffle subgroup_size subgroup_xor"
)
_CONTRACT = (
    "BackendCapability BackendPrecedence BackendRegistration CompiledPipeline DeviceInfo PendingDispatch VyreBackend "
    "core_supported_ops"
)
_REGISTRY = (
    "Selection acquire acquire_preferred_dispatch_backend devices registered_backends registered_backends_by_precedence"
)
_TYPES = "DataType bf16 bool_ f16 f32 f64 i16 i32 i64 i8 u16 u32 u64 u8"

_WHERE: dict[str, str] = {
    **dict.fromkeys(_ERRORS.split(), "errors"),
    **dict.fromkeys(_LANGUAGE.split(), "foundation.language.lang"),
    **dict.fromkeys(_TYPES.split(), "foundation.ir.dtypes"),
    **dict.fromkeys(_CONTRACT.split(), "driver.contract"),
    **dict.fromkeys(_REGISTRY.split(), "driver.selection.registry"),
    **dict.fromkeys(["DeviceProfile", "DeviceTimingQuality"], "driver.contract.profile"),
    "Check": "driver.contract.requirement",
    "NUMERICS_VERSION": "foundation.meaning.numerics",
    **dict.fromkeys(
        ["DispatchConfig", "PersistentThreadMode", "SpeculationMode", "TimedDispatchResult"], "driver.contract.values"
    ),
    **dict.fromkeys(["BufferDecl", "Program"], "foundation.ir.program"),
    **dict.fromkeys(["Issue", "validate"], "foundation.check.validate"),
    **dict.fromkeys(["compile", "prewarm"], "front.compile"),
    "select": "front.select",  # this one also answers for whole programs
    **dict.fromkeys(["Kernel", "kernel"], "front.kernel"),
    **dict.fromkeys(["KernelSequence", "sequence"], "front.sequence.function"),
    **dict.fromkeys(["DeviceBuffer", "empty", "to_device"], "front.device.array"),
    "Builder": "foundation.ir.build",
    "config": "front.config",
    "metrics": "driver.observe.metrics",
    "profile": "driver.observe.profile",
    "spans": "driver.observe.spans",
    "trace": "driver.observe.trace",
    "parse": "foundation.formats.parse:parse_program",
}
"""Public name -> module that defines it, with the name it has there when that is another one."""

__all__ = sorted(_WHERE.keys() - {"compile", "pow", "round"})
"""What `from vyre import *` brings: those that are names of Python's own functions too are left to Python."""


_LENT_TO_DRIVER = {
    "DeviceBuffer": "..front.device.array:DeviceBuffer",
    "TypedDispatchExt": "..front.typed:TypedDispatchExt",
    "graph_capture": "..runtime.device",
}
"""Names of `vyre.driver` that live in layers above it, and where: the driver itself names none of these layers."""


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _WHERE:
        raise AttributeError(f"module 'vyre' has no attribute {name!r}")
    module, _, attribute = _WHERE[name].partition(":")
    value = getattr(import_module(f"vyre.{module}"), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
