"""The plain values of the contract: how a dispatch is asked for, what comes back, and what stays on a device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from enum import StrEnum
from operator import index
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from ...errors import ArgumentTypeError, ArgumentValueError, InvalidProgram, VyreError, shown

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ...foundation.ir.program import Program
    from .pipeline import CompiledPipeline

Dims: TypeAlias = tuple[int, int, int]
OutputBuffers: TypeAlias = list["Buffer"]
U32_MAX = 0xFFFFFFFF


class FrozenDict(dict[str, Any]):
    """A dict that stays as it is. It copies, pickles and prints as JSON like any other."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise ArgumentTypeError("this mapping is part of a frozen value", fix="make a new value with the change")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


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

    `timeout` is in seconds: for running, and as much before that where the program must be compiled. `ulp_budget` 0 and
    None both mean exact. `grid_override` counts workgroups. `output_elements` gives the length of outputs whose size is
    not fixed by the program, by buffer name. `profile` names a set of defaults for the other fields.
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

        settle("timeout", seconds(self.timeout))
        for name, most in _MOST.items():
            settle(name, whole(name, getattr(self, name), most))
        for name in ("workgroup_override", "grid_override"):
            settle(name, dims(name, getattr(self, name)))
        for name, kind in (("speculation", SpeculationMode), ("persistent_thread", PersistentThreadMode)):
            settle(name, _mode(name, getattr(self, name), kind))
        for name in ("profile", "label"):
            if not isinstance(getattr(self, name), str | None):
                raise ArgumentTypeError(f"{name} is not text", fix=f"pass {name}='...'", given=getattr(self, name))
        if not isinstance(self.cooperative, bool):
            raise ArgumentTypeError(
                f"cooperative={shown(self.cooperative)} is not a bool", fix="pass cooperative=True, or nothing"
            )
        if self.output_elements is not None:
            settle("output_elements", _element_counts(self.output_elements))

    def with_(self, **changes: Any) -> DispatchConfig:
        """The same config with some fields changed."""
        return replace(self, **changes)

    @property
    def labelled(self) -> dict[str, Any]:
        """The label as context of an error, where there is one."""
        return {} if self.label is None else {"label": self.label}

    def __hash__(self) -> int:
        sizes = None if self.output_elements is None else tuple(sorted(self.output_elements.items()))
        return hash((*(getattr(self, f.name) for f in fields(self) if f.name != "output_elements"), sizes))


_MOST = {"ulp_budget": 255, "max_output_bytes": (1 << 64) - 1, "fixpoint_iterations": U32_MAX}


def seconds(value: float | timedelta | None, least: float = 0.0) -> float | None:
    """A time to wait; what is below `least` is no time."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentTypeError(f"timeout={shown(value)} is not a time", fix="pass seconds or a timedelta")
    if not value >= least:  # also what is not a number
        raise ArgumentValueError(f"timeout={shown(value)} is not a time", fix="pass seconds of 0 or more")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def whole(name: str, value: Any, most: int) -> int | None:
    """A whole number from 0 to `most`, of any type that counts, or None."""
    if value is None:
        return None
    try:
        if isinstance(value, bool):
            raise TypeError
        number = index(value)
    except TypeError:
        raise ArgumentTypeError(
            f"{name}={shown(value)} is not a whole number", fix=f"pass a number from 0 to {most}"
        ) from None
    if not 0 <= number <= most:
        raise ArgumentValueError(f"{name}={shown(number)} is out of range", fix=f"pass a number from 0 to {most}")
    return number


def dims(name: str, value: Any) -> Dims | None:
    """Three whole numbers, or None."""
    if value is None:
        return None
    if isinstance(value, str | bytes | bytearray | memoryview) or not isinstance(value, Sequence) or len(value) != 3:
        raise ArgumentTypeError(f"{name}={shown(value)} is not three numbers", fix=f"pass {name}=(x, y, z)")
    x, y, z = (whole(f"{name}.{axis}", n, U32_MAX) for axis, n in zip("xyz", value, strict=True))
    if x is None or y is None or z is None:
        raise ArgumentTypeError(f"{name}={shown(value)} is not three numbers", fix=f"pass {name}=(x, y, z)")
    return x, y, z


def _element_counts(given: Any) -> FrozenDict:
    fix = "pass output_elements={'name of the output': elements}"
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(f"output_elements is {type(given).__name__}, not a mapping", fix=fix)
    counts = {}
    for name, count in given.items():
        if not isinstance(name, str):
            raise ArgumentTypeError(f"output_elements has the key {shown(name)}, which is no name", fix=fix)
        counts[name] = whole(f"output_elements[{name!r}]", count, U32_MAX)
        if counts[name] is None:
            raise ArgumentTypeError(f"output_elements[{name!r}] is None", fix=fix)
    return FrozenDict(counts)


def _mode(name: str, value: Any, kind: type[StrEnum]) -> StrEnum | None:
    if value is None:
        return None
    try:
        return kind(value)
    except (ValueError, TypeError) as e:
        choices = ", ".join(kind)
        raise ArgumentValueError(f"{name}={shown(value)} is not a mode", fix=f"use one of: {choices}") from e


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
    """Memory that stays on a device, named by its owner's instance.

    `life` is the driver's: which life of the device the memory belongs to. Backends neither set it nor look at it.
    """

    owner: int
    id: int
    nbytes: int
    life: int = field(default=0, repr=False, compare=False)


Resource: TypeAlias = HostResource | ResidentHandle
Memory: TypeAlias = bytearray


@dataclass(frozen=True, slots=True)
class ResidentDispatchStep:
    """One launch over resident memory; a grid sized for one workgroup goes with that workgroup.

    `pipeline` is the driver's: the program of an admitted step, as this backend compiled it.
    """

    program: Program
    resources: tuple[Resource, ...]
    grid_override: Dims | None = None
    workgroup_override: Dims | None = None
    pipeline: CompiledPipeline | None = field(default=None, repr=False, compare=False)

    @property
    def config(self) -> DispatchConfig:
        """What the launch is asked for, as a config."""
        return DispatchConfig(grid_override=self.grid_override, workgroup_override=self.workgroup_override)


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


def named(label: str | None) -> AbstractContextManager[None]:
    """Errors from inside say which dispatch it was."""
    return _UNNAMED if label is None else _named(label)


_UNNAMED = nullcontext()


@contextmanager
def _named(label: str) -> Iterator[None]:
    try:
        yield
    except VyreError as e:
        e.context.setdefault("label", label)
        raise


def refuse_pickling(what: str, fix: str) -> NoReturn:
    raise ArgumentTypeError(f"{what} cannot be pickled or copied", fix=fix)
