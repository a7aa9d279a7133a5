"""The plain values of the contract: how a dispatch is asked for, what comes back, and what stays on a device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import ArgumentTypeError, ArgumentValueError, InvalidProgram

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..foundation.program import Program

Dims: TypeAlias = tuple[int, int, int]
U32_MAX = 0xFFFFFFFF


class SpeculationMode(StrEnum):
    """Whether a dispatch may race a speculative variant."""

    AUTO = "auto"
    FORCE = "force"
    DISABLE = "disable"


class PersistentThreadMode(StrEnum):
    """Whether a dispatch may run on threads that outlive it."""

    AUTO = "auto"
    FORCE = "force"
    DISABLE = "disable"


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchConfig:
    """How to run one dispatch. Every field has a default that means: no opinion.

    `timeout` is in seconds. `ulp_budget` 0 and None both mean exact. `grid_override` counts workgroups.
    `output_elements` gives the length of outputs whose size is not fixed by the program, by buffer name. `profile`
    names a set of defaults for the other fields.
    """

    profile: str | None = None
    ulp_budget: int | None = None
    timeout: float | None = None
    label: str | None = None
    max_output_bytes: int | None = None
    workgroup_override: Dims | None = None
    grid_override: Dims | None = None
    fixpoint_iterations: int | None = None
    speculation: SpeculationMode | None = None
    persistent_thread: PersistentThreadMode | None = None
    cooperative: bool = False
    output_elements: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        def settle(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        settle("timeout", _seconds(self.timeout))
        _whole("ulp_budget", self.ulp_budget, 255)
        _whole("max_output_bytes", self.max_output_bytes, (1 << 64) - 1)
        _whole("fixpoint_iterations", self.fixpoint_iterations, U32_MAX)
        for name in ("workgroup_override", "grid_override"):
            settle(name, _dims(name, getattr(self, name)))
        for name, kind in (("speculation", SpeculationMode), ("persistent_thread", PersistentThreadMode)):
            settle(name, _mode(name, getattr(self, name), kind))
        for name in ("profile", "label"):
            if not isinstance(getattr(self, name), str | None):
                raise ArgumentTypeError(f"{name} is not text", fix=f"pass {name}='...'", given=getattr(self, name))
        if self.output_elements is not None:
            for name, count in self.output_elements.items():
                _whole(f"output_elements[{name!r}]", count, U32_MAX)
            settle("output_elements", MappingProxyType(dict(self.output_elements)))

    def with_(self, **changes: Any) -> DispatchConfig:
        """The same config with some fields changed."""
        return replace(self, **changes)

    def __hash__(self) -> int:
        sizes = None if self.output_elements is None else tuple(sorted(self.output_elements.items()))
        return hash((*(getattr(self, f.name) for f in fields(self) if f.name != "output_elements"), sizes))

    def __reduce__(self) -> tuple[Any, ...]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.output_elements is not None:
            values["output_elements"] = dict(self.output_elements)  # a mapping proxy does not pickle
        return _rebuild_config, (values,)


def _rebuild_config(values: dict[str, Any]) -> DispatchConfig:
    return DispatchConfig(**values)


def _seconds(value: float | timedelta | None) -> float | None:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentTypeError(f"timeout={value!r} is not a time", fix="pass seconds or a timedelta")
    if not value >= 0:  # also what is not a number
        raise ArgumentValueError(f"timeout={value!r} is not a time", fix="pass seconds of 0 or more")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _whole(name: str, value: int | None, most: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(f"{name}={value!r} is not a whole number", fix=f"pass a number from 0 to {most}")
    if not 0 <= value <= most:
        raise ArgumentValueError(f"{name}={value} is out of range", fix=f"pass a number from 0 to {most}")


def _dims(name: str, value: Any) -> Dims | None:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 3:
        raise ArgumentTypeError(f"{name}={value!r} is not three numbers", fix=f"pass {name}=(x, y, z)")
    for axis, n in zip("xyz", value, strict=True):
        _whole(f"{name}.{axis}", n, U32_MAX)
    x, y, z = value
    return x, y, z


def _mode(name: str, value: Any, kind: type[StrEnum]) -> StrEnum | None:
    if value is None:
        return None
    try:
        return kind(value)
    except ValueError as e:
        choices = ", ".join(kind)
        raise ArgumentValueError(f"{name}={value!r} is not a mode", fix=f"use one of: {choices}") from e


DEFAULT_CONFIG = DispatchConfig()


@dataclass(frozen=True, slots=True)
class TimedDispatchResult:
    """Outputs with host wall time, and what the backend knows of the device's share."""

    outputs: list[Buffer]
    wall_ns: int
    device_ns: int | None = None
    enqueue_ns: int | None = None
    wait_ns: int | None = None


# ---- resources ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostResource:
    """Bytes of the caller, copied at each dispatch."""

    data: Buffer = b""


class ResidentOwner:
    """One backend instance as the owner of memory. Two owners never accept each other's handles."""

    _ids = itertools.count(1)

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.instance = next(ResidentOwner._ids)

    def resolve(self, handle: ResidentHandle, context: str) -> int:
        """The handle's id, if it is one of ours."""
        if handle.owner != self.instance:
            raise InvalidProgram(
                f"{context} got memory of another backend instance",
                fix="download it there and upload it here",
                handle_instance=handle.owner,
                this_instance=self.instance,
                backend=self.backend,
            )
        return handle.id

    def handle(self, id: int, nbytes: int) -> ResidentHandle:
        return ResidentHandle(self.instance, id, nbytes)


@dataclass(frozen=True, slots=True)
class ResidentHandle:
    """Memory that stays on a device, named by its owner's instance."""

    owner: int
    id: int
    nbytes: int


Resource: TypeAlias = HostResource | ResidentHandle
Memory: TypeAlias = bytearray
MemoryRef: TypeAlias = "Buffer"


@dataclass(frozen=True, slots=True)
class ResidentDispatchStep:
    """One launch over resident memory; a grid sized for one workgroup goes with that workgroup."""

    program: Program
    resources: tuple[Resource, ...]
    grid_override: Dims | None = None
    workgroup_override: Dims | None = None


@dataclass(frozen=True, slots=True)
class ResidentReadRange:
    resource: ResidentHandle
    byte_offset: int
    byte_len: int


@dataclass(frozen=True, slots=True)
class ResidentSequenceTiming:
    wall_ns: int = 0
    device_ns: int | None = None
    enqueue_ns: int | None = None
    wait_ns: int | None = None
