"""What can a backend do on this device? One frozen record; every field defaults to no, or to the least."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import Any

from ...errors import ArgumentTypeError, ArgumentValueError, shown
from .values import Dims, FrozenDict, dims, whole

DEADLINES = ("none", "cooperative", "host")


def core_supported_ops() -> frozenset[str]:
    """Ids of the operations every backend runs."""
    from ...foundation.ir.ops import CORE_IDS  # listing backends does without it, and without profiles

    return CORE_IDS


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendCapability:
    """What a backend does on this device. Every field defaults to no, or to the least.

    `types` are the value types beyond u32 i32 f32 bool and the narrow storage types. `deadline` is how a timeout is
    kept: `none`, `cooperative` (the program stops itself) or `host` (the call returns, the device counts as lost).
    `max_steps` is how large a program it compiles, by `program.stats.steps`, so that none takes minutes; 0 is no limit.
    `exactness` is what a probe of the device found; it is part of every cache key. `extras` are facts this version
    does not know; they must survive JSON.
    """

    ops: frozenset[str] | None = None
    dispatches: bool = True
    memory_model: str = "relaxed"
    types: frozenset[str] = frozenset()
    subgroup_ops: bool = False
    subgroup_size: int | None = None
    f16: bool = False
    bf16: bool = False
    tensor_cores: bool = False
    async_compute: bool = False
    indirect_dispatch: bool = False
    grid_sync: bool = False
    speculation: bool = False
    persistent_threads: bool = False
    distributed: bool = False
    distributed_collectives: bool = False
    host_grid_sync_split: bool = True
    max_workgroup_size: Dims = (1, 1, 1)
    max_workgroups_per_dimension: int = 1
    max_invocations_per_workgroup: int | None = None
    max_shared_bytes: int = 0
    max_storage_buffer_bytes: int = 0
    max_steps: int = 0
    deadline: str = "none"
    exactness: Mapping[str, Any] = field(default_factory=dict)
    extras: Mapping[str, Any] = field(default_factory=dict)

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
        settle("ops", None if self.ops is None else _names("ops", self.ops))
        settle("types", _names("types", self.types))
        size = dims("max_workgroup_size", self.max_workgroup_size)
        if size is None:
            raise ArgumentTypeError("max_workgroup_size is None", fix="pass max_workgroup_size=(x, y, z)")
        settle("max_workgroup_size", size)
        deadline: object = self.deadline
        if not isinstance(deadline, str) or deadline not in DEADLINES:
            raise ArgumentValueError(
                f"deadline={shown(deadline)} is no way to keep one", fix=f"use one of: {', '.join(DEADLINES)}"
            )
        for name in ("exactness", "extras"):
            settle(name, _facts(name, getattr(self, name)))

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

    def digest(self) -> str:
        """A text that changes when any fact does."""
        facts = {f.name: getattr(self, f.name) for f in fields(self)}
        return json.dumps(facts, sort_keys=True, default=sorted)  # of sets


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
