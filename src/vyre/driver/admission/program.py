"""May this program run here, and with this config?

Two answers for a program: `InvalidProgram` when it is wrong on every backend, `UnsupportedFeature` when another backend
could run it. A config is settled once: its profile is filled in, and a field that this backend cannot keep is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeAlias

from ...errors import BackendError, DiagCode, InvalidProgram, UnsupportedFeature, WireError
from ...foundation.check.requirements import COLLECTIVES, SUBGROUP_EXPRS
from ...foundation.check.validate import SHOWN, check, validate
from ...foundation.forking import in_child
from ...foundation.ir.nodes import AsyncLoad, AsyncStore, AsyncWait, IndirectDispatch, Trap
from ...foundation.ir.ops import EXPR_IDS, LITERAL_IDS, NODE_IDS
from ...foundation.ir.prints import prints_of
from ...foundation.ir.report import CAPABILITY_BITS, Capabilities
from ...foundation.memo import keep, renew
from ..contract.backend import VyreBackend
from ..contract.values import DEFAULT_CONFIG, OPTIONS, Dims, DispatchConfig
from ..device_state import WatchedBackend
from ..plan.launch import as_launched, resolve_fixpoint_iterations
from ..settings.knobs import MAX_STEPS

if TYPE_CHECKING:
    from ...foundation.ir.program import Program

PROFILES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "interactive": {"timeout": 5.0},  # a user is waiting
    "stress": {"timeout": 600.0, "speculation": "disable", "persistent_thread": "disable"},  # the plain path, at length
}
"""Defaults by name. A backend adds its own as `capability.extras["profiles"]`."""

REMEMBERED = 8192
_Key: TypeAlias = tuple[str, str, frozenset[str], bool]
"""Program, capability, operations, and whether there are grid-wide barriers."""
_PROFILE_FIELDS = frozenset(f.name for f in fields(DispatchConfig) if f.default is None) - {"profile", "label"}


# ---- what a backend offers ------------------------------------------------------------------------------------------


def capabilities_of(backend: VyreBackend) -> Capabilities:
    """What programs may contain on this backend, native or emulated: its operations and value types decide.

    A value type that is offered brings its literals. A grid-wide barrier needs a device that has one, or a guard
    that splits the program there.
    """
    facts = backend.capability
    ops = backend.supported_ops() | {LITERAL_IDS[t] for t in facts.types if t in LITERAL_IDS}

    def runs(*classes: type) -> bool:
        return any((NODE_IDS.get(c.__name__) or EXPR_IDS[c.__name__]) in ops for c in classes)

    return Capabilities(
        subgroup=runs(*SUBGROUP_EXPRS),
        workgroup_atomics=EXPR_IDS["Atomic"] in ops,
        int64=facts.types >= {"u64", "i64"},
        float16=facts.f16 or "f16" in facts.types,
        bfloat16=facts.bf16 or "bf16" in facts.types,
        float64="f64" in facts.types,
        trap=runs(Trap),
        indirect=runs(IndirectDispatch),
        collectives=runs(*COLLECTIVES),
        async_copy=runs(AsyncLoad, AsyncStore, AsyncWait),
        grid_sync=_has_grid_sync(backend),
        supported_ops=ops,
        max_workgroup_bytes=facts.max_shared_bytes,
        max_invocations=backend.max_invocations_per_workgroup,
    )


def _has_grid_sync(backend: VyreBackend) -> bool:
    """Whether programs may wait for their whole grid: on the device, or because the guard splits them there."""
    return backend.supports_grid_sync or (isinstance(backend, WatchedBackend) and backend.allows_host_grid_sync_split)


# ---- programs -------------------------------------------------------------------------------------------------------


def admit(program: Program, backend: VyreBackend, config: DispatchConfig = DEFAULT_CONFIG) -> None:
    """Raise unless the backend runs the program with the config's workgroup size. Success is remembered."""
    _no_zero(config.workgroup_override, "workgroup_override", config, backend)
    program = as_launched(program, config)
    facts, ops, whole = backend.capability, backend.supported_ops(), _has_grid_sync(backend)
    last = program._cache.get("admitted")
    if last is not None and last[0] is facts and last[1] is ops and last[2] is whole:
        return
    key = _key(program, backend)
    if key is None or not _admitted.holds(key):
        _check(program, backend)
        if key is not None:
            _admitted.add(key)
    program._cache["admitted"] = facts, ops, whole


def why_not(program: Program, backend: VyreBackend, config: DispatchConfig = DEFAULT_CONFIG) -> str | None:
    """Why the backend does not run the program, or None."""
    try:
        admit(program, backend, config)
    except BackendError as e:
        return str(e)
    return None


def validate_program_for_backend(
    backend: VyreBackend, program: Program, config: DispatchConfig = DEFAULT_CONFIG
) -> DispatchConfig:
    """The settled config, if this dispatch may be planned: config, program and workgroup size."""
    settled = settle_config(config, backend)
    admit(program, backend, settled)
    return settled


def clear() -> None:
    """Forget which programs were admitted."""
    _admitted.clear()


class _Admitted:
    """Programs with the capabilities they were admitted under, the latest `REMEMBERED`."""

    def __init__(self) -> None:
        self._keys: dict[_Key, None] = {}
        self.renew_lock()

    def renew_lock(self) -> None:
        self._lock = threading.Lock()

    def holds(self, key: _Key) -> bool:
        with self._lock:
            found = key in self._keys
            if found:
                renew(self._keys, key)
            return found

    def add(self, key: _Key) -> None:
        with self._lock:
            keep(self._keys, key, None, REMEMBERED)

    def clear(self) -> None:
        with self._lock:
            self._keys.clear()

    def __len__(self) -> int:
        return len(self._keys)


_admitted = _Admitted()
in_child(_admitted.renew_lock)  # a thread that is not in the child may have held it


def _key(program: Program, backend: VyreBackend) -> _Key | None:
    try:
        return program.fingerprint, backend.capability.digest(), backend.supported_ops(), _has_grid_sync(backend)
    except WireError:
        return None  # the validator raises its error


def _check(program: Program, backend: VyreBackend) -> None:
    offered = capabilities_of(backend)
    errors = [i for i in validate(program, offered) if i.severity == "error"]
    if errors:
        _require_sound(program)
    limits = _broken_limits(program, backend)
    if not errors and not limits:
        return
    needs = program.requirements
    missing = [b.replace("_", " ") for b in CAPABILITY_BITS if getattr(needs, b) and not getattr(offered, b)]
    missing += sorted(program.ops() - (offered.supported_ops or frozenset()))
    lines = [*limits, *(issue.headline for issue in errors)]
    lacks = f"; it lacks {', '.join(missing)}" if missing else ""
    more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    raise UnsupportedFeature(
        f"backend {backend.id} does not run the program{lacks}:"
        + "".join(f"\n  {line}" for line in (*lines[:SHOWN], *more)),
        fix=errors[0].fix if errors else next(iter(limits.values())),
        name=", ".join(missing) or "limits",
        backend=backend.id,
    )


def _require_sound(program: Program) -> None:
    """Raise InvalidProgram if no backend could run it. A call may be known to some backend."""
    anywhere = Capabilities.everything()
    if any(i.severity == "error" and i.code is not DiagCode.V056 for i in validate(program, anywhere)):
        check(program, anywhere)


def _broken_limits(program: Program, backend: VyreBackend) -> dict[str, str]:
    """Limits that validity does not depend on, each with its fix: axes of the workgroup, single buffers, all steps."""
    smaller = "choose a smaller workgroup or smaller buffers, or another backend"
    found = {
        f"workgroup axis {axis} is {asked}; max is {most}": smaller
        for axis, (asked, most) in enumerate(zip(program.workgroup_size, backend.max_workgroup_size, strict=True))
        if type(asked) is int and asked > most
    }
    if prints_of(program) and not backend.capability.prints:
        found["it prints, and has no way to show that"] = (
            'take print() out, or run it where it shows: .on("cpu"), or without a name'
        )
    most = backend.max_storage_buffer_bytes
    found |= {
        f"buffer {b.name!r} has {b.nbytes} bytes; max is {most}": smaller
        for b in program.bound_buffers
        if most and (b.nbytes or 0) > most
    }
    most, steps = MAX_STEPS.value() or backend.capability.max_steps, program.stats.steps
    if most and steps > most:
        found[f"it has {steps} steps to compile; max is {most}"] = (
            f"split it into several programs, or raise the limit: {MAX_STEPS.variable}={steps}"
        )
    return found


# ---- configs --------------------------------------------------------------------------------------------------------


def settle_config(config: DispatchConfig, backend: VyreBackend) -> DispatchConfig:
    """The config with its profile's defaults filled in; the same object when there is nothing to fill in.

    Raises for a field that this backend cannot keep. A field that is set wins over the profile.
    """
    if config is DEFAULT_CONFIG:
        return config
    if config.profile is not None:
        config = _filled(config, config.profile, backend)
    resolve_fixpoint_iterations(config, backend.id)
    for name in ("workgroup_override", "grid_override"):
        _no_zero(getattr(config, name), name, config, backend)
    for name, option in OPTIONS.items():
        if option.lacks and option.code is not None and not getattr(backend.capability, option.code.needs):
            asked = getattr(config, name)
            if asked is True:
                raise _lacking(option.lacks, f"{name}=True", config, backend)
            if asked == "force":
                raise _lacking(option.lacks, f'{name}="force"', config, backend)
    return config


def _filled(config: DispatchConfig, name: str, backend: VyreBackend) -> DispatchConfig:
    known = {**PROFILES, **backend.capability.extras.get("profiles", {})}
    if name not in known:
        raise UnsupportedFeature(
            f"backend {backend.id} has no profile {name!r}",
            fix=f"use one of: {', '.join(sorted(known))}",
            name="profile",
            backend=backend.id,
            **config.labelled,
        )
    if wrong := sorted(known[name].keys() - _PROFILE_FIELDS):
        raise BackendError(
            f"profile {name!r} of backend {backend.id} sets {', '.join(wrong)}",
            fix=f"correct the backend's capability; a profile can set: {', '.join(sorted(_PROFILE_FIELDS))}",
            backend=backend.id,
        )
    unset = {field: value for field, value in known[name].items() if getattr(config, field) is None}
    return config.with_(**unset) if unset else config


def _no_zero(dims: Dims | None, name: str, config: DispatchConfig, backend: VyreBackend) -> None:
    if dims is not None and 0 in dims:
        raise InvalidProgram(
            f"{name} {dims} has zero-sized dimensions: axis {dims.index(0)} is 0",
            fix=f"make every axis of {name} at least 1, or leave it out",
            backend=backend.id,
            **config.labelled,
        )


def _lacking(feature: str, asked: str, config: DispatchConfig, backend: VyreBackend) -> UnsupportedFeature:
    return UnsupportedFeature(
        f"backend {backend.id} has no {feature}, which {asked} asks for",
        fix=f"drop {asked}, or choose a backend that has it",
        name=feature,
        backend=backend.id,
        **config.labelled,
    )
