"""What can a backend do on this device? One frozen record; every field defaults to no, or to the least."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any

from ...errors import ArgumentTypeError, ArgumentValueError, shown
from .values import Dims, FrozenDict, dims, listed_fields, whole

_DEADLINES = {
    "none": "it keeps none: the driver leaves a call that takes too long, and the backend with it",
    "cooperative": "the program stops itself, and the backend goes on",
    "host": "the call returns in time, and the device then counts as lost",
}
DEADLINES = tuple(_DEADLINES)


@dataclass(frozen=True, slots=True)
class Fact:
    """The documentation of a field of the record.

    `no` says what a negative answer means for a program. Where `emulated` by other means, `offered` names what
    programs may then contain, by the field of `Capabilities`. `flag` is the flag of compiled code that it sets, and
    `choices` are all texts that it may be, each with its meaning.
    """

    doc: str
    _: KW_ONLY
    no: str = ""
    offered: str = ""
    emulated: str = ""
    flag: str = ""
    choices: Mapping[str, str] = field(default_factory=dict)


def core_supported_ops() -> frozenset[str]:
    """Ids of the operations every backend runs."""
    from ...foundation.ir.ops import CORE_IDS  # listing backends does without it, and without profiles

    return CORE_IDS


def _fact(default: Any, doc: str, **more: Any) -> Any:
    """A field of the record, with its documentation."""
    metadata = {"about": Fact(doc, **more)}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendCapability:
    """What a backend does on this device. Every field defaults to no, or to the least."""

    ops: frozenset[str] | None = _fact(
        None, "ids of the operations that it admits; None: those that every backend runs"
    )
    dispatches: bool = _fact(
        True,
        "whether it runs programs",
        no="it emits programs and runs none",
    )
    api: str = _fact("", "the interface that reaches the device, such as Vulkan, where the backend has several of them")
    memory_model: str = _fact("relaxed", "of atomics")
    types: frozenset[str] = _fact(frozenset(), "value types beyond u32 i32 f32 bool and the narrow storage types")
    subgroup_ops: bool = _fact(
        False,
        "whether subgroup operations are native instructions here",
        no="a program with subgroup operations is refused",
        offered="subgroup",
        emulated="subgroup operations run as ordinary code: slower, with the same bytes",
        flag="SUBGROUP_OPS",
    )
    subgroup_size: int | None = _fact(
        None, "lanes of a native subgroup; None where there is none; a program always sees 32"
    )
    f16: bool = _fact(
        False,
        "whether f16 arithmetic is native here",
        no="a program with f16 values is refused",
        offered="float16",
        emulated="f16 is computed in f32 and rounded once: slower, with the same bytes",
        flag="F16",
    )
    bf16: bool = _fact(
        False,
        "whether bf16 arithmetic is native here",
        no="a program with bf16 values is refused",
        offered="bfloat16",
        emulated="bf16 is computed in f32 and rounded once: slower, with the same bytes",
        flag="BF16",
    )
    tensor_cores: bool = _fact(
        False,
        "whether matrix products use instructions of their own",
        no="matrix products use ordinary instructions",
        flag="TENSOR_CORES",
    )
    async_compute: bool = _fact(
        False,
        "whether started dispatches overlap with the caller",
        no="dispatch_async() runs the program before it returns",
        flag="ASYNC_COMPUTE",
    )
    indirect_dispatch: bool = _fact(
        False,
        "whether the device itself reads a grid that a buffer holds",
        no="a program whose grid a buffer holds is refused",
        offered="indirect",
        emulated="a grid that a buffer holds is read by the host before the launch",
        flag="INDIRECT_DISPATCH",
    )
    grid_sync: bool = _fact(
        False,
        "whether a grid-wide barrier runs in one launch here; else the driver splits programs at it",
        no="a program with grid_sync() is refused, and so is cooperative=True",
        offered="grid_sync",
        emulated="a program with grid_sync() is split into several launches; cooperative=True is refused",
    )
    speculation: bool = _fact(
        False,
        "whether it races speculative variants of a program",
        no='DispatchConfig(speculation="force") is refused',
        flag="SPECULATIVE",
    )
    persistent_threads: bool = _fact(
        False,
        "whether threads outlive a dispatch and take the next one",
        no='each dispatch is a launch of its own; persistent_thread="force" is refused',
        flag="PERSISTENT_THREAD",
    )
    distributed: bool = _fact(
        False,
        "whether it runs on several machines or processes",
        no="it runs on this machine alone",
    )
    distributed_collectives: bool = _fact(
        False,
        "whether collectives reach other processes",
        no="a program with collectives is refused",
        offered="collectives",
        emulated="collectives run over the one process that there is",
    )
    host_grid_sync_split: bool = _fact(
        True,
        "whether the driver may split a program at grid_sync()",
        no="no program is split at grid_sync(): it needs a device that synchronises its grid",
    )
    max_workgroup_size: Dims = _fact((1, 1, 1), "most invocations of a workgroup along x, y, z")  # noqa: RUF009
    max_workgroups_per_dimension: int = _fact(
        1, "most workgroups along an axis of one launch; the driver splits longer grids"
    )
    max_invocations_per_workgroup: int | None = _fact(
        None, "most invocations of a workgroup in all; None: as many as its axes allow"
    )
    max_shared_bytes: int = _fact(0, "shared memory of a workgroup, bytes")
    max_storage_buffer_bytes: int = _fact(0, "bytes of a buffer; 0 means unreported, not unlimited")
    max_steps: int = _fact(
        0, "how large a program it compiles, by program.stats.steps, so that none takes minutes; 0: any number"
    )
    deadline: str = _fact(
        "none",
        "how a timeout is kept: `none`, `cooperative` or `host`",
        choices=_DEADLINES,
    )
    prints: bool = _fact(
        False,
        "whether kernels that print run here",
        no="a kernel with print() is refused",
    )
    exactness: Mapping[str, Any] = _fact(
        {},
        "what a probe of the device found; `native`: functions of the device that an ulp_budget "
        "permits, each with its distance in ulps",
    )
    extras: Mapping[str, Any] = _fact({}, "facts this version does not know; they must survive JSON")

    def __post_init__(self) -> None:
        def settle(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        for f in fields(self):
            value = getattr(self, f.name)
            if f.type == "bool":
                settle(f.name, _flag(f.name, value))
            elif f.type in ("int", "int | None"):
                if value is None and f.type == "int":
                    raise ArgumentTypeError(f"{f.name} is None", fix=f"pass {f.name}=0 where it is unknown")
                settle(f.name, whole(f.name, value, (1 << 64) - 1))
            elif f.type == "Mapping[str, Any]":
                settle(f.name, _facts(f.name, value))
            elif f.type == "str":
                _check_text(f.name, value, FACTS[f.name].choices)
        settle("ops", None if self.ops is None else _names("ops", self.ops))
        settle("types", _names("types", self.types))
        size = dims("max_workgroup_size", self.max_workgroup_size)
        if size is None:
            raise ArgumentTypeError("max_workgroup_size is None", fix="pass max_workgroup_size=(x, y, z)")
        settle("max_workgroup_size", size)

    def __eq__(self, other: object) -> bool:
        return self.digest() == other.digest() if isinstance(other, BackendCapability) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest())

    def _repr_html_(self) -> str:
        from ...foundation import html

        rows = [(f.name, _fact_text(getattr(self, f.name))) for f in fields(self) if f.name not in ("ops", "extras")]
        ops = "every core operation" if self.ops is None else f"{len(self.ops)} operations"
        more = [html.code(name, json.dumps(facts, indent=2)) for name, facts in (("extras", self.extras),) if facts]
        return html.page("capability", html.facts([("ops", ops), *rows]), *more)

    def native_within(self, budget: int) -> list[str]:
        """Functions of the device itself that an ulp_budget permits."""
        apart = self.exactness.get("native")
        known = apart.items() if isinstance(apart, Mapping) else ()
        return sorted(name for name, ulps in known if isinstance(ulps, int | float) and ulps <= budget)

    def digest(self) -> str:
        """A text that changes when any fact does."""
        facts = {f.name: getattr(self, f.name) for f in fields(self)}
        return json.dumps(facts, sort_keys=True, default=sorted)  # of sets


FACTS: Mapping[str, Fact] = {f.name: f.metadata["about"] for f in fields(BackendCapability)}
"""Field of the record -> its documentation."""
BackendCapability.__doc__ = f"{BackendCapability.__doc__}\n\n{listed_fields(BackendCapability)}"


def _fact_text(value: object) -> object:
    """A fact as a person reads it."""
    if isinstance(value, frozenset):
        return ", ".join(sorted(value)) or "none"
    if isinstance(value, tuple):
        return " x ".join(map(str, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {fact}" for name, fact in value.items()) or "none"
    return "not known" if value is None else value


def _flag(name: str, given: Any) -> bool:
    try:
        return bool(given)
    except Exception as e:  # an array, say
        raise ArgumentTypeError(f"{name} is a {type(given).__name__}", fix=f"pass {name}=True or False") from e


def _check_text(name: str, given: Any, choices: Mapping[str, str]) -> None:
    if choices and not (isinstance(given, str) and given in choices):
        raise ArgumentValueError(
            f"{name}={shown(given)} is not one of its texts", fix=f"use one of: {', '.join(choices)}"
        )
    if not isinstance(given, str):
        raise ArgumentTypeError(f"{name}={shown(given)} is not text", fix=f"pass {name}='...'")


def _names(name: str, given: Any) -> frozenset[str]:
    names = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (None,)
    if not all(isinstance(n, str) for n in names):
        raise ArgumentTypeError(f"{name}={shown(given)} is not a set of names", fix=f"pass {name}=frozenset({{'...'}})")
    return frozenset(names)


def _facts(name: str, given: Any) -> FrozenDict:
    """Our own copy of facts that survive JSON."""
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(
            f"{name} is {type(given).__name__}, not a mapping", fix=f"pass {name}={{'fact': value}}"
        )
    try:
        facts = dict(given)
        if json.loads(json.dumps(facts, allow_nan=False)).keys() != facts.keys():
            raise TypeError("a key is not text")
        return FrozenDict(deepcopy(facts))
    except (TypeError, ValueError, RecursionError) as e:
        raise ArgumentValueError(
            f"{name} does not survive JSON: {e}", fix="use text as keys, and text, numbers, lists and dicts as values"
        ) from e
