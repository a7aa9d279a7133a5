"""Which steps of a sequence know nothing of each other? What each reads and writes, as ranges of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..contract.values import ResidentDispatchStep, ResidentHandle
from ..plan.binding import BindingPlan, BindingRole
from ..policy.overlap import Access, Span, Wait, waits

_EVERYWHERE = 1 << 64


def access_of(step: ResidentDispatchStep, is_adopted: Callable[[int], bool]) -> Access:
    """What a step does with memory that stays. Memory of other libraries, whose handles may overlap, counts as one."""
    reads: list[Span] = []
    writes: list[Span] = []
    bound = [b for b in BindingPlan.build(step.program).bindings if b.role is not BindingRole.SHARED]
    for b, r in zip(bound, step.resources, strict=True):
        if isinstance(r, ResidentHandle):
            span = Span(0, 0, _EVERYWHERE) if is_adopted(r.id) else Span(r.id, 0, r.nbytes)
            (writes if b.is_written else reads).append(span)
    return Access(reads, writes)


def waits_of(
    steps: Sequence[ResidentDispatchStep], is_adopted: Callable[[int], bool] = lambda _: False
) -> list[tuple[Wait, ...]]:
    """For each step, which ones before it have to end first."""
    return waits([access_of(step, is_adopted) for step in steps])
