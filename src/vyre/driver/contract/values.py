"""The plain values of the contract: how a dispatch is asked for, what comes back, and what stays on a device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from datetime import timedelta
from enum import StrEnum
from operator import index
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

from ...errors import ArgumentTypeError, ArgumentValueError, InvalidProgram, VyreError, shown
from ...foundation.integers import U32_MAX as U32_MAX

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ...foundation.ir.program import Program
    from ..policy.decision import Decision
    from .capability import BackendCapability
    from .pipeline import CompiledPipeline

Dims: TypeAlias = tuple[int, int, int]
Buffers: TypeAlias = Sequence["Buffer"]
OutputBuffers: TypeAlias = list["Buffer"]


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


# ---- one field of a config -----------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class InCode:
    """How a field of a config reaches compiled code.

    A backend uses it where its capability has the fact `needs`, or where `used(value, facts, program)` says so; for any
    other the field is left out of the cache key, and of what the backend compiles with. Values that `compiled` makes
    equal give equal code. The key has it as `name`, with the value that `told` gives.
    """

    needs: str = ""
    used: Callable[[Any, BackendCapability, Program], bool] | None = None
    compiled: Callable[[Any], Any] = _same
    name: str = ""
    told: Callable[[Any], Any] = _same

    def is_used(self, value: Any, facts: BackendCapability, program: Program) -> bool:
        return bool(getattr(facts, self.needs)) if self.used is None else self.used(value, facts, program)


@dataclass(frozen=True, slots=True)
class Option:
    """What the driver knows of a field of a config.

    `check` gives the value to keep, or raises. `result`: which result is right depends on it, so that a reference needs
    it too. `whole`: it is about a whole dispatch, and each of several launches goes without. `code` is how it reaches
    compiled code, if it does. `lacks` names the missing feature in the error of a backend
    without the fact that the code needs.
    """

    doc: str
    check: Callable[[str, Any], Any]
    _: KW_ONLY
    result: bool
    whole: bool
    code: InCode | None
    lacks: str = ""


def listed_fields(cls: Any) -> str:
    """The fields of a record, one line each, from what they say about themselves."""
    return "\n".join(f"    {f.name}: {f.metadata['about'].doc}" for f in fields(cls))


def _up_to(most: int) -> Callable[[str, Any], int | None]:
    return lambda name, value: whole(name, value, most)


def _mode_of(kind: type[StrEnum]) -> Callable[[str, Any], StrEnum | None]:
    return lambda name, value: _mode(name, value, kind)


def _text(name: str, value: Any) -> str | None:
    if not isinstance(value, str | None):
        raise ArgumentTypeError(f"{name} is not text", fix=f"pass {name}='...'", given=value)
    return value


def _yes_or_no(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ArgumentTypeError(f"{name}={shown(value)} is not a bool", fix=f"pass {name}=True, or nothing")
    return value


def _require_or_nothing(name: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value == "require"):
        return value
    raise ArgumentValueError(f"{name}={shown(value)} is not a demand", fix=f'pass {name}="require", or nothing')


def decide_floats(budget: int | None, facts: BackendCapability, program: Program) -> Decision:
    """As `choose_floats`, of a program on a backend with these facts."""
    from ...foundation.check.requirements import may_approximate  # building a config does without these
    from ..policy.code import choose_floats

    if not budget:
        return choose_floats(budget)
    return choose_floats(
        budget,
        native=facts.native_within(budget),
        has_functions=may_approximate(program),
        float64=program.requirements.float64,
    )


def decide_config(config: DispatchConfig, own: DispatchConfig | None = None) -> Decision:
    """What a dispatch is asked for, and whether the config is the pipeline's `own`."""
    from ..policy.decision import Decision  # only `explain` pays for it

    if config is own:
        return Decision("config", "compile time", "the call brings none, or one equal to the default")
    asked = [f.name for f in fields(config) if getattr(config, f.name) != f.default]
    if not asked:
        return Decision("config", "default", "nothing is asked for")
    return Decision("config", "this call", f"it sets {', '.join(asked)}")


def _approximates(budget: int, facts: BackendCapability, program: Program) -> bool:
    from ..policy.code import EXACT

    return decide_floats(budget, facts, program).choice != EXACT


def _unless_auto(mode: StrEnum | None) -> StrEnum | None:
    return None if mode is None or mode.value == "auto" else mode


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchConfig:
    """How to run one dispatch. Every field has a default that means: no opinion."""

    profile: str | None = field(
        default=None,
        metadata={
            "about": Option(
                "the name of a set of defaults for the other fields",
                _text,
                result=False,
                whole=True,
                code=None,
            )
        },
    )
    ulp_budget: int | None = field(
        default=None,
        metadata={
            "about": Option(
                "by how many units in the last place functions such as `sin` may differ; 0 and None both mean exact",
                _up_to(255),
                result=False,
                whole=False,
                code=InCode(used=_approximates, compiled=lambda budget: budget or None),
            )
        },
    )
    timeout: float | None = field(
        default=None,
        metadata={
            "about": Option(
                "seconds for running, and as much before that where the program must be compiled",
                lambda _, value: seconds(value),
                result=False,
                whole=True,
                code=InCode(
                    used=lambda _, facts, __: (
                        facts.deadline == "cooperative"
                    ),  # the code looks; each dispatch says how long
                    compiled=lambda value: None if value is None else math.inf,
                    name="deadline",
                    told=bool,
                ),
            )
        },
    )
    label: str | None = field(
        default=None,
        metadata={
            "about": Option(
                "names the dispatch in errors and counters",
                _text,
                result=False,
                whole=False,
                code=None,
            )
        },
    )
    max_output_bytes: int | None = field(
        default=None,
        metadata={
            "about": Option(
                "refuse a dispatch whose outputs are longer in all",
                _up_to((1 << 64) - 1),
                result=False,
                whole=True,
                code=None,
            )
        },
    )
    workgroup_override: Dims | None = field(
        default=None,
        metadata={
            "about": Option(
                "another workgroup than the program declares, where it cannot tell the difference",
                lambda name, value: dims(name, value),
                result=True,
                whole=False,
                code=InCode(used=lambda size, _, program: bool(size != program.workgroup_size)),
            )
        },
    )
    grid_override: Dims | None = field(
        default=None,
        metadata={
            "about": Option(
                "the grid, counted in workgroups",
                lambda name, value: dims(name, value),
                result=True,
                whole=False,
                code=None,
            )
        },
    )
    fixpoint_iterations: int | None = field(
        default=None,
        metadata={
            "about": Option(
                "how many launches over the same memory, unless nothing changes any more",
                _up_to(U32_MAX),
                result=True,
                whole=True,
                code=None,
            )
        },
    )
    speculation: SpeculationMode | None = field(
        default=None,
        metadata={
            "about": Option(
                "whether the dispatch may race a speculative variant",
                _mode_of(SpeculationMode),
                result=False,
                whole=False,
                code=InCode(needs="speculation", compiled=_unless_auto),
                lacks="speculation",
            )
        },
    )
    persistent_thread: PersistentThreadMode | None = field(
        default=None,
        metadata={
            "about": Option(
                "whether the dispatch may run on threads that outlive it",
                _mode_of(PersistentThreadMode),
                result=False,
                whole=False,
                code=InCode(needs="persistent_threads", compiled=_unless_auto),
                lacks="persistent threads",
            )
        },
    )
    cooperative: bool = field(
        default=False,
        metadata={
            "about": Option(
                "all workgroups run at once, in one launch",
                _yes_or_no,
                result=False,
                whole=False,
                code=InCode(needs="grid_sync"),
                lacks="grid-wide synchronisation",
            )
        },
    )
    output_elements: Mapping[str, int] | None = field(
        default=None,
        metadata={
            "about": Option(
                "by buffer name, the length of outputs whose size is not fixed by the program",
                lambda _, value: None if value is None else _element_counts(value),
                result=True,
                whole=True,
                code=None,
            )
        },
    )

    output_lengths: Mapping[str, str | tuple[str, int]] | None = field(
        default=None,
        metadata={
            "about": Option(
                "by buffer name, the output that says how many elements of it count, or that and the number of its "
                "element: only so many are read back, unless the caller gives memory for them",
                lambda _, value: None if value is None else _length_words(value),
                result=True,
                whole=True,
                code=None,
            )
        },
    )
    determinism: Literal["require"] | None = field(
        default=None,
        metadata={
            "about": Option(
                "`require` refuses a dispatch unless it is proved that no schedule changes its bytes",
                _require_or_nothing,
                result=False,
                whole=True,
                code=None,
            )
        },
    )

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            given = getattr(self, name)
            kept = option.check(name, given)
            if kept is not given:
                object.__setattr__(self, name, kept)

    def with_(self, **changes: Any) -> DispatchConfig:
        """The same config with some fields changed."""
        return replace(self, **changes)

    @property
    def labelled(self) -> dict[str, Any]:
        """The label as context of an error, where there is one."""
        return {} if self.label is None else {"label": self.label}

    def for_one_launch(self) -> DispatchConfig:
        """The config without the fields about the whole dispatch."""
        return self.with_(**{name: getattr(DEFAULT_CONFIG, name) for name, option in OPTIONS.items() if option.whole})

    def for_reference(self) -> DispatchConfig:
        """The part of the config that decides which result is right. A reference is exact, and has no deadline."""
        kept = {name: getattr(self, name) for name, option in OPTIONS.items() if option.result}
        return DispatchConfig(label=self.label, **kept)

    def __hash__(self) -> int:
        found = (getattr(self, f.name) for f in fields(self))
        return hash(tuple([tuple(sorted(v.items())) if type(v) is FrozenDict else v for v in found]))


OPTIONS: Mapping[str, Option] = {f.name: f.metadata["about"] for f in fields(DispatchConfig)}
"""Field of a config -> its option."""
DispatchConfig.__doc__ = f"{DispatchConfig.__doc__}\n\n{listed_fields(DispatchConfig)}"


def seconds(value: float | timedelta | None, least: float = 0.0) -> float | None:
    """A time to wait; a value below `least` is refused."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentTypeError(f"timeout={shown(value)} is not a time", fix="pass seconds or a timedelta")
    if not value >= least:  # also for a NaN
        raise ArgumentValueError(f"timeout={shown(value)} is not a time", fix="pass seconds of 0 or more")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def whole(name: str, value: Any, most: int, *, least: int = 0) -> int | None:
    """A whole number from `least` to `most`, of any type that counts, or None."""
    if value is None:
        return None
    try:
        if isinstance(value, bool):
            raise TypeError
        number = index(value)
    except TypeError:
        raise ArgumentTypeError(
            f"{name}={shown(value)} is not a whole number", fix=f"pass a number from {least} to {most}"
        ) from None
    if not least <= number <= most:
        raise ArgumentValueError(f"{name}={shown(number)} is out of range", fix=f"pass a number from {least} to {most}")
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
            raise ArgumentTypeError(f"output_elements has the key {shown(name)}, which is not a name", fix=fix)
        counts[name] = whole(f"output_elements[{name!r}]", count, U32_MAX)
        if counts[name] is None:
            raise ArgumentTypeError(f"output_elements[{name!r}] is None", fix=fix)
    return FrozenDict(counts)


def _length_words(given: Any) -> FrozenDict:
    """Output -> (the output that has its length, which element of that)."""
    fix = "pass output_lengths={'name of the output': 'name of the output with its length'}"
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(f"output_lengths is {type(given).__name__}, not a mapping", fix=fix)
    found = {}
    for name, said in given.items():
        word, at = said if isinstance(said, tuple | list) and len(said) == 2 else (said, 0)
        if not isinstance(name, str) or not isinstance(word, str):
            raise ArgumentTypeError(f"output_lengths has {shown(name)}: {shown(said)}, which are not names", fix=fix)
        found[name] = word, whole(f"output_lengths[{name!r}][1]", at, U32_MAX) or 0
    return FrozenDict(found)


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

    `incarnation` is the driver's: the one of the device that the memory belongs to. Backends neither set
    it nor look at it.
    """

    owner: int
    id: int
    nbytes: int
    incarnation: int = field(default=0, repr=False, compare=False)


Resource: TypeAlias = HostResource | ResidentHandle
Memory: TypeAlias = bytearray
"""Bytes that belong to the caller who got them."""


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
        """The launch's own options, as a config."""
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
