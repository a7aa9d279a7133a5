"""Which steps of a sequence run as one launch: the rules choose, stitching proves, and the backend has to take it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from ...errors import VyreError
from ...foundation.ir.program import Program
from ..admission.program import why_not
from ..contract.backend import VyreBackend
from ..contract.values import ResidentDispatchStep, ResidentHandle
from ..plan.binding import BindingPlan, BindingRole
from ..plan.launch import LaunchPlan, as_launched
from ..policy.decision import Decision
from ..policy.fusion import (
    MOST_PARTS,
    Accept,
    DispatchShape,
    FusionCaps,
    FusionDecision,
    FusionPass,
    NoPipelineDependency,
    OutputConsumedElsewhere,
    decide_fusion,
)
from .stitch import Apart, Launch, Stitched, apart, stitch

_CHAINED = (Accept, OutputConsumedElsewhere)
MOST_ATTEMPTS = 256
"""Pairs of steps of one sequence that are looked at closely: a proof takes milliseconds."""


class FusedStep(NamedTuple):
    """A launch in place of the steps with these numbers. `decisions` say why they are one, and the next is not."""

    step: ResidentDispatchStep
    members: range
    decisions: tuple[Decision, ...]


def fuse(
    steps: Sequence[ResidentDispatchStep],
    names: Sequence[str],
    backend: VyreBackend,
    wanted: Collection[int],
    adopted: Collection[int],
    constants: Mapping[int, bytes],
    refused: Callable[[Program], str | None],
) -> list[FusedStep]:
    """The launches that give the bytes of the steps, in order.

    `wanted` are the ids of memory that is read after all of them, `adopted` is memory of which several handles may be
    the same bytes, and `constants` is memory whose bytes never change. `refused` compiles a program, or says
    why the backend does not.
    """
    chain = _Chain(steps, names, backend, wanted, adopted, constants, refused)
    found: list[FusedStep] = []
    begin = 0
    while begin < len(steps):
        found.append(chain.longest(begin))
        begin = found[-1].members.stop
    return found


class _Chain:
    def __init__(
        self,
        steps: Sequence[ResidentDispatchStep],
        names: Sequence[str],
        backend: VyreBackend,
        wanted: Collection[int],
        adopted: Collection[int],
        constants: Mapping[int, bytes],
        refused: Callable[[Program], str | None],
    ) -> None:
        self.steps, self.names, self.backend, self.refused = steps, names, backend, refused
        self.wanted, self.adopted, self.constants = wanted, adopted, constants
        facts = backend.capability
        self.caps = FusionCaps(facts.max_shared_bytes, backend.max_invocations_per_workgroup)
        self.launches: dict[int, Launch] = {}
        self.attempts = 0

    def longest(self, begin: int) -> FusedStep:
        """The longest run of steps from this one on that is one launch."""
        best: Stitched | None = None
        why: str | None = None
        stop = begin + 1
        while stop < len(self.steps):
            try:
                best = self._joined(begin, stop)
            except Apart as e:
                why = str(e)
                break
            stop += 1
        decisions = []
        step = self.steps[begin]
        names = tuple(self.names[begin:stop])
        if best is not None:
            program = best.launch.program.called("+".join(names))
            if (refusal := self.refused(program)) is not None:
                best, stop, why = None, begin + 1, refusal
        if best is not None:
            decisions.append(decide_fusion(names, None, best.handed_on, best.stored))
            step = ResidentDispatchStep(program, best.launch.memory, grid_override=best.launch.grid)
        if why is not None:
            decisions.append(decide_fusion((self.names[stop - 1], self.names[stop]), why, 0, 0))
        return FusedStep(step, range(begin, stop), tuple(decisions))

    def _joined(self, begin: int, last: int) -> Stitched:
        """Steps `begin` to `last` as one launch. Raises `Apart`."""
        if last - begin >= MOST_PARTS:
            raise apart(f"{MOST_PARTS} steps are one launch already")
        before, after = self._shape(begin, last), self._shape(last, last + 1)
        verdict = self._verdict(before, after, last)
        if isinstance(verdict, NoPipelineDependency) and last + 1 < len(self.steps):
            both = self._shape(last + 1, last + 2)  # which may read what each of the two writes
            if isinstance(self._verdict(after, both, last + 1), _CHAINED):
                verdict = self._verdict(before, both, last + 1)
        if not isinstance(verdict, _CHAINED):
            raise apart(str(verdict))
        if self.attempts >= MOST_ATTEMPTS:
            raise apart(f"{MOST_ATTEMPTS} pairs of steps were tried in this sequence")
        self.attempts += 1
        parts = [self._launch(k) for k in range(begin, last + 1)]
        used = {r.id for part in parts for r in part.memory if isinstance(r, ResidentHandle)}
        shared = used.intersection(self.adopted)
        if len(shared) > 1 and not shared.isdisjoint((*before.outputs, *after.outputs)):
            raise apart("memory of other libraries may be the same bytes")
        found = stitch(parts, lambda id: self._is_wanted_after(last, id), self.constants)
        if (refused := why_not(found.launch.program, self.backend)) is not None:
            raise apart(" ".join(refused.partition(" Fix: ")[0].split()))
        return found

    def _verdict(self, before: DispatchShape, after: DispatchShape, last: int) -> FusionDecision:
        """What the rules say. `last` is the step after which others may want what is handed on."""
        others = {id for id in before.outputs if isinstance(id, int) and self._is_wanted_after(last, id)}
        return FusionPass.decide(before, after, self.caps, others)

    def _shape(self, begin: int, stop: int) -> DispatchShape:
        reads: dict[int, None] = {}
        writes: dict[int, None] = {}
        shared = 0
        for k in range(begin, stop):
            program = self._launch(k).program
            shared += sum(b.nbytes or 0 for b in program.buffers if b.is_workgroup and not b.is_own)
            for decl, r in zip(program.bound_buffers, self._launch(k).memory, strict=True):
                if isinstance(r, ResidentHandle):
                    if decl.is_host_input:
                        reads[r.id] = None
                    if decl.is_host_output:
                        writes[r.id] = None
        size = self._launch(begin).program.workgroup_size
        return DispatchShape("+".join(self.names[begin:stop]), size, shared, tuple(reads), tuple(writes))

    def _is_wanted_after(self, k: int, id: int) -> bool:
        """Whether memory is read after step k, before it is written anew."""
        for step in self.steps[k + 1 :]:
            for decl, r in zip(step.program.bound_buffers, step.resources, strict=True):
                if isinstance(r, ResidentHandle) and r.id == id:
                    return not decl.backend_allocated
        return id in self.wanted

    def _launch(self, k: int) -> Launch:
        found = self.launches.get(k)
        if found is None:
            found = self.launches[k] = _launch(self.steps[k])
        return found


def _launch(step: ResidentDispatchStep) -> Launch:
    """The step with its grid. Raises `Apart` where the backend has yet to say what is wrong with it."""
    program = step.program
    bound = [b for b in BindingPlan.build(program).bindings if b.role is not BindingRole.SHARED]
    sizes = [r.nbytes for r in step.resources if isinstance(r, ResidentHandle)]
    if len(sizes) != len(bound):
        raise apart("one of them takes bytes of the host, or allocates its outputs")
    inputs = [n for b, n in zip(bound, sizes, strict=True) if b.input_index is not None]
    outputs = [n for b, n in zip(bound, sizes, strict=True) if b.output_index is not None]
    try:
        bindings = BindingPlan.from_input_lengths(program, inputs, out_lengths=outputs, resident=True)
        launch = LaunchPlan.prepare(program, bindings, step.config)
    except VyreError as e:
        raise apart(e.message) from None
    return Launch(as_launched(program, step.config), step.resources, launch.grid)
