"""One shadow: which dispatches are sampled, what it keeps of them, how the reference judges them, and the counts.

Outputs that differ are a divergence. Everything else that keeps a dispatch from being checked is a skip: it is counted
by its reason, and logged once. A program whose results a schedule might change is judged on this data:
where the reference finds no race and no order that shows, bytes are compared. Where it cannot tell, they are compared
too, and only a difference is a skip.

A check that raises leaves the caller's memory as it was before the dispatch, so that no caller works on with bytes that
are wrong.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf, prod
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ...errors import (
    ArgumentValueError,
    BackendUnavailable,
    DeadlineExceeded,
    DeviceOutOfMemory,
    InvalidProgram,
    StepLimitExceeded,
    Trap,
    UnsupportedFeature,
    VyreError,
)
from ...foundation import html
from ...foundation.ir.program import Program
from ...foundation.memo import keep
from ..contract.pending import PendingDispatch
from ..contract.pipeline import CompiledPipeline, Key, RunOver
from ..contract.values import (
    DEFAULT_CONFIG,
    DispatchConfig,
    HostResource,
    OutputBuffers,
    ResidentHandle,
    ResidentReadRange,
    named,
)
from ..counters import SKIPS, count_shadow
from ..diagnostics import from_error
from ..execute.route import RunResident
from ..plan.binding import BindingPlan, BindingRole
from ..plan.claims import proof_of
from ..plan.launch import plan_dispatch
from ..plan.outputs import replace_output_buffers_preserving_slots
from ..resident.memory import by_slot, nbytes_of
from ..settings.knobs import SHADOW_TIMEOUT
from .cases import (
    Claim,
    ConformanceError,
    Diverged,
    DivergenceEvent,
    Exploration,
    NotComparable,
    copied,
    in_words,
    not_comparable,
    unproved,
)
from .compare import Compare, arrangement
from .evidence import save

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..contract.backend import VyreBackend
    from ..contract.values import Resource
    from ..plan.launch import PlannedDispatch

KEPT_EVENTS = 8
"""Divergences that a shadow remembers, the latest; each holds copies of inputs and outputs."""
JUDGED_FIRST, JUDGED = 1 << 14, 1 << 18
"""Steps of a program without a proof that are judged, before outputs are compared and when they differ.

A step is one statement of one invocation; the larger number takes seconds, and memory of the order of 100 MB.
"""
OnDivergence: TypeAlias = "str | Callable[[ConformanceError], None]"
"""`raise`, `log`, or a function to call with the error."""
_Taken: TypeAlias = "tuple[tuple[bytes, ...], DispatchConfig, PlannedDispatch, Callable[[], object]]"
"""Inputs, config, plan and `put_back` of a sample."""
T = TypeVar("T")
_KEPT_PROOFS = 1024
_KEPT_NOTES = 4096
_log = logging.getLogger("vyre.shadow")
_noted: dict[tuple[str, str, str], None] = {}
"""Skips that were logged: program, backend and reason."""


# ---- one shadow -----------------------------------------------------------------------------------------------------


class Shadow:
    """Checks outputs of one program against a reference, and counts the results.

    The first dispatch is sampled and then, evenly, as many as `sample_rate` says. `samples` were compared, and `skips`
    says how many could not be, by reason: `order`, `cost`, `memory`, `refused`, `failed`.
    """

    def __init__(
        self,
        program: Program,
        reference: CompiledPipeline,
        *,
        backend: str,
        sample_rate: float = 1.0,
        on_divergence: OnDivergence | None = None,
        compare: Compare = "bytes",
        keep: Callable[[DivergenceEvent], object] = save,
    ) -> None:
        """`backend` is the id of the checked backend. By default a share of 1 raises, and a smaller one logs.

        `keep` gets each divergence, and says where its evidence is, if it made any.
        """
        self._share = _share(sample_rate)
        if on_divergence is None:
            on_divergence = "raise" if self._share == 1 else "log"
        if not callable(on_divergence) and on_divergence not in ("raise", "log"):
            raise ArgumentValueError(
                f"on_divergence={on_divergence!r} is not a reaction",
                fix="use raise, log or a function that takes the error",
            )
        self._on_divergence = on_divergence
        self._order_free, self._keep = arrangement(compare) is not None, keep
        self.reference, self.claim = reference, Claim(program, backend, reference.backend_id, compare)
        self._dispatches = itertools.count()  # stepping it takes no lock
        self._passed_on: list[None] = []
        self._lock = threading.Lock()
        self._proofs: dict[object, bool] = {}
        self._too_many = self._too_many_to_judge = inf  # invocations
        self.samples = self.divergences = self.worst_ulps = 0
        self.skips: Counter[str] = Counter()
        self.events: deque[DivergenceEvent] = deque(maxlen=KEPT_EVENTS)

    def _repr_html_(self) -> str:
        rows = ((e.case_label, e.difference.kind, e.difference.output, e.difference.element) for e in self.events)
        return html.page(
            f"shadow of {self.claim.backend} by {self.claim.reference}",
            html.facts(
                [
                    ("program", self.claim.program.fingerprint),
                    ("share", self._share),
                    ("checked", f"{self.samples:,}"),
                    ("differ", f"{self.divergences:,}"),
                    ("worst ulps", self.worst_ulps),
                    *((f"skipped: {reason}", f"{n:,}") for reason, n in sorted(self.skips.items())),
                ]
            ),
            *([html.table(("case", "what differs", "output", "element"), rows)] if self.events else []),
        )

    # -- before a dispatch

    def around(self, run: RunOver, config: DispatchConfig) -> RunOver:
        """`run` with its outputs checked, as often as it is their turn."""

        def watched(inputs: Sequence[Buffer], out: Sequence[Buffer] | None, key: Key | None) -> OutputBuffers:
            grid = None if key is None else key[0]
            sample = self.sample(inputs, config if grid is None else config.with_(grid_override=grid), out)
            return run(inputs, out, key) if sample is None else sample.checked(lambda: run(inputs, out, key), list)

        return watched

    def around_resident(
        self, run: RunResident, backend: Callable[[], VyreBackend], config: DispatchConfig
    ) -> RunResident:
        """The same for memory of the device, which is read before a sampled dispatch and after it."""

        def watched(resources: Sequence[Resource]) -> list[ResidentHandle]:
            if not self._is_due():
                return run(resources)
            before = _Overwritten(resources)
            sample = self._taken(config, lambda: self._resident_inputs(before, backend(), config))
            return sample.checked(lambda: run(resources), lambda kept: sample.downloaded(before.made(kept), backend()))

        return watched

    def sample(
        self, inputs: Sequence[Buffer], config: DispatchConfig, out: Sequence[Buffer] | None = None
    ) -> Sample | None:
        """The sample that checks the outputs of a dispatch, or None when it is not this one's turn."""
        given: tuple[object, object] = inputs, () if out is None else out
        if not self._is_due() or not all(isinstance(g, Sequence) for g in given):
            return None  # looking at an iterator would use it up; the dispatch refuses it

        def taken() -> _Taken:
            wanted = _wanted(config)
            plan = plan_dispatch(self.claim.program, inputs, wanted, out=out)
            self._require_affordable(plan)  # before anything is copied
            return copied(inputs), _sized(wanted, plan.bindings), plan, self._undo(out)

        return self._taken(config, taken)

    def _undo(self, out: Sequence[Buffer] | None) -> Callable[[], object]:
        """A function that restores the caller's buffers to their present bytes."""
        if out is None or not self._may_raise:
            return _nothing
        targets, before = list(out), [bytearray(b) for b in copied(out)]
        return lambda: replace_output_buffers_preserving_slots(before, targets)

    @property
    def _may_raise(self) -> bool:
        return self._on_divergence != "log"

    def _is_due(self) -> bool:
        """Whether the next dispatch is sampled. One that fails passes its turn on."""
        if self._passed_on:
            self._passed_on.clear()
            return True
        wanted, of = self._share.numerator, self._share.denominator
        return next(self._dispatches) * wanted % of < wanted

    def _taken(self, config: DispatchConfig, take: Callable[[], _Taken]) -> Sample:
        try:
            return Sample(self, config, *take())
        except Exception as e:  # if the dispatch fails too, its error says why; else it cannot be checked
            return Sample(self, config, problem=e)

    def _resident_inputs(self, before: _Overwritten, backend: VyreBackend, config: DispatchConfig) -> _Taken:
        program, wanted = self.claim.program, _wanted(config)
        bound = [b for b in BindingPlan.build(program).bindings if b.role is not BindingRole.SHARED]
        given = by_slot(bound, before.resources)
        lengths = [nbytes_of(r) for r in given]
        sized = BindingPlan.from_input_lengths(
            program,
            [n or 0 for b, n in zip(bound, lengths, strict=True) if b.input_index is not None],
            wanted.output_elements,
            out_lengths=[n or None for b, n in zip(bound, lengths, strict=True) if b.output_index is not None],
            resident=True,
        )
        sources = [r for b, r in zip(bound, given, strict=True) if b.input_index is not None]
        ranges = [
            ResidentReadRange(r, 0, b.nbytes)
            for b, r in zip(sized.inputs, sources, strict=True)
            if b.nbytes and r is not None and not isinstance(r, HostResource)
        ]
        came = iter(backend.download_resident(ranges) if ranges else ())
        inputs = copied(
            r.data if isinstance(r, HostResource) else next(came) if b.nbytes else b""
            for b, r in zip(sized.inputs, sources, strict=True)
        )
        wanted = _sized(wanted, sized)
        plan = plan_dispatch(program, inputs, wanted)
        self._require_affordable(plan)
        if self._may_raise:
            writes = (program.buffers[b.buffer_index].writable for b in bound)
            before.keep(backend, [r for r, is_written in zip(given, writes, strict=True) if is_written])
        return inputs, wanted, plan, before.put_back

    def _require_affordable(self, plan: PlannedDispatch) -> None:
        """Raise for a dispatch as large as one that took too long before, or larger."""
        if _invocations(plan) >= self._too_many:
            raise DeadlineExceeded(f"{self.claim.reference} ran out of time over as few invocations", fix=_COST_FIX)

    def _is_proved(self, plan: PlannedDispatch) -> bool:
        """Whether no schedule changes the result, or the comparison does not depend on it."""
        if self._order_free:
            return True
        if plan.indirect and plan.iterations > 1:
            return False  # one iteration may change the grid of the next
        key = plan.launch.grid, plan.launch.workgroup
        known = self._proofs.get(key)
        if known is None:
            known = proof_of(self.claim.program, plan.launch).verdict != "unproved"
            keep(self._proofs, key, known, _KEPT_PROOFS)
        return known

    # -- after it

    def check(self, sample: Sample, found: OutputBuffers | Trap) -> None:
        """Compare the outputs of a dispatch with the reference, and react."""
        begun = time.perf_counter_ns()
        error: Diverged | None = None
        skipped: Exception | None = None
        ulps = 0
        try:
            with named(sample.config.label):
                ulps = self._hold(sample, found)
        except Diverged as e:
            error = e
        except Exception as e:
            skipped = e
        self._count(error, None if skipped is None else _reason(skipped), ulps, time.perf_counter_ns() - begun)
        if skipped is not None:
            self._note(skipped, sample.plan)
        if error is not None:
            if error.event is not None and (path := self._keep(error.event)) is not None:
                error.kept_in(path)
            self._react(error)

    def _hold(self, sample: Sample, found: OutputBuffers | Trap) -> int:
        """How many ulps a budget let pass; raises `Diverged`, or why the dispatch cannot be checked."""
        inputs, wanted, plan = sample.required
        result = _outcome(found)
        until = time.monotonic() + SHADOW_TIMEOUT.value()
        proved, judged = self._is_proved(plan), None
        if not proved and _invocations(plan) < self._too_many_to_judge:
            try:
                judged = self._judged(sample, until, JUDGED_FIRST)
            except _COSTLY:
                self._too_many_to_judge = _invocations(plan)
        expected = self._expected(inputs, wanted) if judged is None else _outcome(judged.outputs)
        if self._order_free and isinstance(result, Trap) != isinstance(expected, Trap):
            raise self._order_shows("only one of the two trapped")
        try:
            return self.claim.hold("live", inputs, result, expected, wanted.with_(ulp_budget=sample.config.ulp_budget))
        except Diverged:
            if not proved:
                self._require_no_doubt(judged or self._judged_at_length(sample, until))
            raise

    def _expected(self, inputs: tuple[bytes, ...], wanted: DispatchConfig) -> tuple[bytes, ...] | Trap:
        try:
            return copied(self.reference.dispatch(inputs, wanted.with_(timeout=SHADOW_TIMEOUT.value())))
        except Trap as e:
            return e

    def _judged_at_length(self, sample: Sample, until: float) -> Exploration:
        try:
            return self._judged(sample, until, JUDGED)
        except _COSTLY as e:
            raise StepLimitExceeded(
                "outputs differ, and it would take too long to tell whether the order of invocations is why",
                fix="check a smaller dispatch of the same program",
            ) from e

    def _require_no_doubt(self, judged: Exploration) -> None:
        """Outputs differ: raise if that may be a matter of order."""
        if judged.doubt:
            raise not_comparable(
                self.claim.program, f"outputs differ, and the order of invocations may be why: {judged.doubt}"
            )

    def _judged(self, sample: Sample, until: float, max_steps: int) -> Exploration:
        """The exploration of the program on this data; raises where the order shows."""
        inputs, wanted, plan = sample.required
        explore: Callable[..., Exploration] | None = getattr(
            getattr(self.reference, "native", self.reference), "explore", None
        )
        if explore is None:
            raise unproved(self.claim.program, proof_of(self.claim.program, plan.launch))
        left = wanted.with_(timeout=max(until - time.monotonic(), 0))
        judged = explore(inputs, left, max_steps=max_steps)
        if judged.reason:
            raise self._order_shows(judged.reason)
        return judged

    def _order_shows(self, how: str) -> NotComparable:
        return not_comparable(self.claim.program, f"the result depends on the order of invocations: {how}")

    def _count(self, error: Diverged | None, skipped: str | None, ulps: int, elapsed_ns: int) -> None:
        with self._lock:
            self.samples += skipped is None
            self.divergences += error is not None
            self.worst_ulps = max(self.worst_ulps, ulps)
            if skipped is not None:
                self.skips[skipped] += 1
        if error is not None and error.event is not None:
            self.events.append(error.event)
        count_shadow(elapsed_ns, diverged=error is not None, skipped=skipped)

    def _note(self, error: Exception, plan: PlannedDispatch | None) -> None:
        """Say once why dispatches of this program are not checked."""
        reason, claim = _reason(error), self.claim
        if isinstance(error, DeadlineExceeded) and plan is not None:
            self._too_many = min(self._too_many, _invocations(plan))
        key = claim.program.fingerprint, claim.backend, reason
        if key in _noted:
            return
        keep(_noted, key, None, _KEPT_NOTES)
        fix = error.fix if isinstance(error, VyreError) else _OTHER_FIX
        if isinstance(error, DeadlineExceeded):
            fix = _COST_FIX
        _log.warning(
            "a dispatch of %s was not checked (%s): %s [program=%r]. Fix: %s",
            claim.backend, reason, in_words(error), claim.program.fingerprint, fix,
        )  # fmt: skip

    def _react(self, error: Diverged) -> None:
        if callable(self._on_divergence):
            self._on_divergence(error)
        elif self._on_divergence == "log":
            _log.warning("%s", from_error(error).render_human())
        else:
            raise error


def _wanted(config: DispatchConfig) -> DispatchConfig:
    """The config of the reference. Dispatches are counted by label, and its own are not the caller's."""
    return config.for_reference().with_(label=None)


def _sized(config: DispatchConfig, bindings: BindingPlan) -> DispatchConfig:
    """The config with the length of every output that something other than the program decided."""
    counts = {b.name: b.element_count for b in bindings.outputs if b.input_index is None and b.static_byte_len is None}
    return config.with_(output_elements=counts) if counts else config


def _outcome(found: OutputBuffers | Trap) -> tuple[bytes, ...] | Trap:
    return found if isinstance(found, Trap) else copied(found)


def _invocations(plan: PlannedDispatch) -> int:
    return prod(plan.launch.grid) * prod(plan.launch.workgroup) * plan.iterations


_COSTLY = (DeadlineExceeded, StepLimitExceeded)
_FULL = (MemoryError, DeviceOutOfMemory)
_REFUSALS = (UnsupportedFeature, InvalidProgram, BackendUnavailable)
_KINDS: tuple[tuple[type[Exception], ...], ...] = ((NotComparable,), _COSTLY, _FULL, _REFUSALS, (Exception,))
_COST_FIX = f"raise {SHADOW_TIMEOUT.variable}, or let smaller dispatches be checked"
_OTHER_FIX = "correct what it says, or run this program without a shadow"


def _reason(error: Exception) -> str:
    return next(reason for reason, kinds in zip(SKIPS, _KINDS, strict=True) if isinstance(error, kinds))


def _nothing() -> None:
    """There is nothing to put back."""


class _Overwritten:
    """Memory of the device that a dispatch writes, as it was before."""

    def __init__(self, resources: Sequence[Resource]) -> None:
        self.resources = resources
        self._backend: VyreBackend | None = None
        self._before: list[tuple[ResidentHandle, int, Buffer]] = []
        self._fresh: list[ResidentHandle] = []

    def keep(self, backend: VyreBackend, written: Sequence[Resource | None]) -> None:
        self._backend = backend
        handles = [r for r in written if isinstance(r, ResidentHandle) and r.nbytes]
        ranges = [ResidentReadRange(h, 0, h.nbytes) for h in handles]
        came = copied(backend.download_resident(ranges) if ranges else ())
        self._before = [(h, 0, data) for h, data in zip(handles, came, strict=True)]

    def made(self, kept: list[ResidentHandle]) -> list[ResidentHandle]:
        """Note what the dispatch allocated; its caller does not get it where the check raises."""
        self._fresh = [h for h in kept if h not in self.resources]
        return kept

    def put_back(self) -> None:
        if self._backend is None:
            return
        if self._before:
            self._backend.upload_resident(self._before)
        for handle in self._fresh:
            self._backend.free_resident(handle)


@dataclass(slots=True)
class Sample:
    """One dispatch that is to be checked: its inputs as they were before it, and what of its config changes the result.

    `config` is the dispatch's own. `put_back` makes memory that it writes what it was. `problem` is why it cannot be
    checked, should it succeed.
    """

    shadow: Shadow
    config: DispatchConfig
    inputs: tuple[bytes, ...] = ()
    wanted: DispatchConfig = DEFAULT_CONFIG
    plan: PlannedDispatch | None = None
    put_back: Callable[[], object] = _nothing
    problem: Exception | None = None

    @property
    def required(self) -> tuple[tuple[bytes, ...], DispatchConfig, PlannedDispatch]:
        """Inputs, config and plan for the reference; raises the problem where there is one."""
        if self.problem is not None:
            raise self.problem
        assert self.plan is not None
        return self.inputs, self.wanted, self.plan

    def checked(self, run: Callable[[], T], outputs: Callable[[T], OutputBuffers]) -> T:
        """The result of `run`, after a check of its `outputs`, or of its trap."""
        result = self._of(run)
        try:
            found: OutputBuffers = outputs(result)
        except Exception as e:
            self.problem, found = self.problem or e, []
        try:
            self.check(found)
        except BaseException as e:
            self.undo(e)
            raise
        return result

    def undo(self, why: BaseException) -> None:
        """Put the caller's memory back, or say in the error that it holds what the dispatch left there."""
        try:
            self.put_back()
        except Exception as e:
            left = f"as the dispatch left it: {in_words(e)}"
            if isinstance(why, VyreError):
                why.context["memory"] = left
            else:
                why.add_note(f"memory is {left}")

    def check(self, found: OutputBuffers | Trap) -> None:
        self.shadow.check(self, found)

    def downloaded(self, kept: Sequence[ResidentHandle], backend: VyreBackend) -> OutputBuffers:
        """The bytes that the host would have seen of outputs that stay on the device."""
        if self.plan is None:
            return []
        ranges = []
        for b, o, handle in zip(self.plan.bindings.outputs, self.plan.outputs, kept, strict=True):
            ranges.append(ResidentReadRange(handle, (b.output_byte_range or (0, 0))[0], o.layout.read_size))
        filled = [r for r in ranges if r.byte_len]
        came = iter(backend.download_resident(filled) if filled else ())
        return [next(came) if r.byte_len else b"" for r in ranges]

    def started(self, start: Callable[[], PendingDispatch]) -> PendingDispatch:
        """A dispatch that is checked when its outputs are here."""
        return _SampledPending(self._of(start), self)

    def _of(self, run: Callable[[], T]) -> T:
        try:
            return run()
        except Trap as e:
            self.check(e)
            raise
        except BaseException:
            self.shadow._passed_on.append(None)
            raise


class _SampledPending(PendingDispatch):
    def __init__(self, pending: PendingDispatch, sample: Sample) -> None:
        super().__init__()
        self._pending, self._sample = pending, sample
        self._came: OutputBuffers | Exception | None = None  # kept, so that a divergence can be repeated
        self._is_checked = False

    def is_ready(self) -> bool:
        return self._pending.is_ready()

    def _wait(self, timeout: float | None) -> OutputBuffers:
        if self._came is None:
            try:
                self._came = self._pending.result(timeout)
            except Trap as e:
                self._came = e
        if not self._is_checked:
            assert not isinstance(self._came, Exception) or isinstance(self._came, Trap)
            try:
                self._sample.check(self._came)
            except Exception as e:
                self._sample.undo(e)
                self._came = e
            self._is_checked = True
        if isinstance(self._came, Exception):
            raise self._came
        return self._came


def _share(rate: Any) -> Fraction:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
        raise ArgumentValueError(f"sample_rate={rate!r} is not a share", fix="pass a number from 0 to 1")
    return Fraction(rate).limit_denominator(1_000_000) or Fraction(rate)  # a small share is still one
