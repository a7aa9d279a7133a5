"""Which launches become one? Rules over shapes alone: whether one program can do the work of two is proved elsewhere.

A consumer joins the launch that makes what it reads where both have one workgroup size and fit together into the
device. What others want besides is stored as well as handed on.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import NamedTuple, TypeAlias

from .decision import Decision

JOINED, APART = "joined", "apart"
MOST_PARTS = 32
"""Launches that become one at most."""


class DispatchShape(NamedTuple):
    """What a launch is to its neighbours: its workgroup, and the memory that it reads and writes."""

    id: str
    workgroup_size: tuple[int, int, int]
    shared_memory_bytes: int
    inputs: tuple[Hashable, ...]
    outputs: tuple[Hashable, ...]


class FusionCaps(NamedTuple):
    """What one launch may have; the defaults are what every GPU gives."""

    max_shared_memory_bytes: int = 16_384
    max_invocations_per_workgroup: int = 256

    @classmethod
    def high_end(cls) -> FusionCaps:
        return cls(131_072, 1024)


class Accept(NamedTuple):
    """They may become one launch; `intermediates` are handed on and wanted by no other."""

    intermediates: tuple[Hashable, ...]

    def __str__(self) -> str:
        return f"{len(self.intermediates)} intermediate arrays stay in registers"


class WorkgroupSizeMismatch(NamedTuple):
    upstream: tuple[int, int, int]
    downstream: tuple[int, int, int]

    def __str__(self) -> str:
        return f"their workgroups are {self.upstream} and {self.downstream}"


class InvocationBudgetExceeded(NamedTuple):
    workgroup: tuple[int, int, int]
    invocations: int
    cap: int

    def __str__(self) -> str:
        return f"a workgroup of {self.workgroup} has {self.invocations} invocations, and {self.cap} may be"


class SharedMemoryBudget(NamedTuple):
    needed: int
    cap: int

    def __str__(self) -> str:
        return f"together they need {self.needed} bytes of shared memory, and there are {self.cap}"


class OutputConsumedElsewhere(NamedTuple):
    """What is handed on is wanted by another too: it has to be stored all the same."""

    output: Hashable

    def __str__(self) -> str:
        return "another reads the intermediate array, which is stored too"


class NoPipelineDependency(NamedTuple):
    def __str__(self) -> str:
        return "the later one reads nothing that the earlier one writes"


FusionDecision: TypeAlias = (
    Accept
    | WorkgroupSizeMismatch
    | InvocationBudgetExceeded
    | SharedMemoryBudget
    | OutputConsumedElsewhere
    | NoPipelineDependency
)


class FusionPass:
    """The rules, in the order in which they are asked."""

    @staticmethod
    def decide(
        upstream: DispatchShape, downstream: DispatchShape, caps: FusionCaps, other_consumers: Collection[Hashable]
    ) -> FusionDecision:
        """`other_consumers` is the memory that launches besides `downstream`, or the caller, read after `upstream`."""
        size = upstream.workgroup_size
        if size != downstream.workgroup_size:
            return WorkgroupSizeMismatch(size, downstream.workgroup_size)
        invocations = size[0] * size[1] * size[2]
        if invocations > caps.max_invocations_per_workgroup:
            return InvocationBudgetExceeded(size, invocations, caps.max_invocations_per_workgroup)
        shared = upstream.shared_memory_bytes + downstream.shared_memory_bytes
        if shared > caps.max_shared_memory_bytes:
            return SharedMemoryBudget(shared, caps.max_shared_memory_bytes)
        consumed = [out for out in upstream.outputs if out in downstream.inputs]
        for out in consumed:
            if out in other_consumers:
                return OutputConsumedElsewhere(out)
        return Accept(tuple(consumed)) if consumed else NoPipelineDependency()


def decide_fusion(names: tuple[str, ...], why_apart: str | None, handed_on: int, stored: int) -> Decision:
    """Neighbouring launches, named: one launch, or two and why."""
    numbers = {"launches": len(names), "arrays handed on": handed_on, "of them stored": stored}
    if why_apart is not None:
        return Decision("fusion", APART, f"{' and '.join(names)}: {why_apart}", numbers)
    kept = f", {stored} of them stored for others" if stored else ""
    arrays = f"{handed_on} array{'s' if handed_on != 1 else ''} handed on in registers{kept}"
    return Decision("fusion", JOINED, f"{', '.join(names)} are one launch: {arrays}", numbers)
