"""How does a pipeline run under one config? Everything that does not depend on the call is settled here once.

A route holds the settled config, the admitted program and the code that serves it. For input lengths and a grid that it
has seen, a warm call counts and dispatches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import is_
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from ...errors import ArgumentTypeError, DeviceLost, DispatchFailed, VyreError
from ...foundation.memo import keep
from .. import above
from ..contract.backend import VyreBackend
from ..contract.pending import PendingDispatch
from ..contract.pipeline import Bound, CompiledPipeline, Key, RunOver
from ..contract.values import (
    Dims,
    DispatchConfig,
    OutputBuffers,
    ResidentHandle,
    Resource,
    decide_floats,
    named,
)
from ..counters import FAILED, INPUT_BYTES, OUTPUT_BYTES, PLAIN, PLANS, RESIDENT, ROUTES, TALLY, count_decision
from ..device_state import WatchedBackend
from ..observers import Dispatched, routes, told, told_call, watching
from ..pipeline.compiler import code_for
from ..pipeline.deadline import DeadlinePipeline
from ..pipeline.sequence import SequencePipeline
from ..plan.compaction import CountedSizes, decide_results
from ..plan.launch import lengths, plan_dispatch
from ..plan.outputs import (
    check_outputs_apart,
    enforce_actual_output_budget,
    replace_output_buffers_preserving_slots,
)
from ..plan.stages import decide_launch, launch_limits
from ..policy.decision import Decision
from ..policy.launch import BY_BACKEND, NONE, SEQUENCE, choose_deadline
from ..settings.knobs import SHADOW
from .pattern import Pattern, Planned
from .prepared_resident import NOTHING, Repeats

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ...foundation.ir.program import Program
    from ..pipeline.cache import Entry

RunResident: TypeAlias = Callable[[Sequence[Resource]], list[ResidentHandle]]
T = TypeVar("T")
_MAX_PLANS = 1024
"""Combinations of input lengths that a route remembers."""
_RETURN_BUFFERS = "return a list of every output, each of exactly the planned length, or write into out and return it"


class Sample(Protocol):
    """One dispatch that a shadow wants to check."""

    def checked(self, run: Callable[[], T], outputs: Callable[[T], OutputBuffers]) -> T: ...
    def started(self, start: Callable[[], PendingDispatch]) -> PendingDispatch: ...


class Shadow(Protocol):
    """A checker that computes dispatches again and compares, as far as the funnel knows it."""

    def around(self, run: RunOver, config: DispatchConfig) -> RunOver: ...
    def around_resident(
        self, run: RunResident, backend: Callable[[], VyreBackend], config: DispatchConfig
    ) -> RunResident: ...
    def sample(
        self, inputs: Sequence[Buffer], config: DispatchConfig, out: Sequence[Buffer] | None
    ) -> Sample | None: ...


class Route:
    """A pipeline under one config. `run(inputs, out, key)` is the warm path."""

    __slots__ = (
        "__weakref__", "_cache", "_limits", "_patterns", "_plans", "_sequence", "backend", "config", "device_state",
        "entry", "program", "resident", "run", "shadow",
    )  # fmt: skip

    def __init__(self, backend: WatchedBackend, program: Program, config: DispatchConfig, entry: Entry) -> None:
        self.backend, self.program, self.config, self.entry = backend, program, config, entry
        self.device_state, self._cache = backend.device_state, backend.pipelines
        self._limits = launch_limits(program, backend, config)
        self._sequence: SequencePipeline | None = None  # for grids over the limit
        self._plans: dict[Key | None, Planned] = {}
        self._patterns: dict[bool, Pattern] = {}
        """By whether the grid comes with the call."""
        self.shadow = _shadow_of(backend, program)
        run = self._build_run()
        self.run = run if self.shadow is None else self.shadow.around(run, config)
        self.resident = self._told_resident()
        routes.add(self)
        TALLY.numbers[ROUTES] += 1
        count_decision(decide_floats(config.ulp_budget, backend.capability, program))

    def _build_run(self) -> RunOver:
        """The warm path as one closure: nothing is built, formatted, locked or looked up by name."""
        cache, epoch, known, plan, again = self._cache, self.entry.epoch, self._plans.get, self._plan, self._plan_again
        label, tally, accept = self.config.label, TALLY, self.accept
        enter, leave = self.device_state.inflight.append, self.device_state.inflight.pop
        check_out = not self.entry.native.in_place or self.config.timeout is not None

        def run(inputs: Sequence[Buffer], out: Sequence[Buffer] | None, key: Key | None) -> OutputBuffers:
            enter(None)
            try:
                if cache.epoch != epoch:  # not before entering: recovery changes it first, then looks for calls
                    raise self.stale()
                try:
                    if key is None:
                        key = lengths(inputs, out, None, check_out)
                    planned = known(key)
                except (TypeError, ValueError, BufferError):
                    planned = None  # planning says what is wrong
                taken, made, sizes, go, _ = planned or again(key) or plan(PLAIN, inputs, out, key)
                counts = tally.numbers
                counts[PLAIN] += 1
                counts[INPUT_BYTES] += taken
                counts[OUTPUT_BYTES] += made
                if label is not None:
                    try:
                        tally.labels[label] += 1
                    except KeyError:
                        tally.counts.label(label)
                try:
                    outputs = go(inputs, out)
                except Exception as e:
                    counts[FAILED] += 1
                    error = self.failure(e)
                    if error is e:
                        raise
                    raise error from e
                if outputs is out and type(outputs) is list:
                    return outputs
                try:
                    if type(outputs) is list and len(outputs) == len(sizes):
                        k = 0
                        for b in outputs:
                            if memoryview(b).nbytes != sizes[k] if out is None else b is not out[k]:
                                break
                            k += 1  # noqa: SIM113 - all other ways cost a warm call 0.1 us
                        else:
                            return outputs
                except (TypeError, ValueError, BufferError):
                    pass  # no buffers
                with counting_failures(self):
                    return accept(outputs, out, sizes)
            finally:
                leave()

        return run

    def _build_resident(self) -> RunResident:
        """The same for memory on the device, where there is no copy to hide any cost behind."""
        cache, epoch, state = self._cache, self.entry.epoch, self.device_state
        config, native, tally = self.config, self.entry.native, TALLY
        label, own = config.label, id(config)
        enter, leave, again_not = state.inflight.append, state.inflight.pop, NOTHING[2]
        repeats = getattr(native, "repeats", None)
        if not isinstance(repeats, Repeats) or config.timeout is not None:
            repeats = Repeats()  # which stays empty

        def run(resources: Sequence[Resource]) -> list[ResidentHandle]:
            enter(None)
            try:
                if cache.epoch != epoch:
                    raise self.stale()
                counts = tally.numbers
                counts[RESIDENT] += 1
                if label is not None:
                    tally.counts.label(label)
                given = resources if state.is_current(resources) else state.unstamped(resources)
                try:
                    which, last, again = repeats.last
                    if which != own or last != resources:
                        again = repeats.find(own, resources) or again_not
                    kept = again()
                    if kept is not None:
                        return kept
                    kept = self.timed(native).dispatch_resident(given, config)
                    return kept if state.is_current(kept) else [state.stamp(h) for h in kept]
                except Exception as e:
                    counts[FAILED] += 1
                    error = self.failure(e)
                    if error is e:
                        raise
                    raise error from e
            finally:
                leave()

        return run

    def _told_resident(self) -> RunResident:
        """What `resident` is, as long as the same observers watch."""
        run = self._build_resident()
        if self.shadow is not None and _is_resident(self.entry.native):
            run = self.shadow.around_resident(run, lambda: self.backend, self.config)
        return told_call(run, self.about("resident"), watching())

    def about(self, how: str, taken: int = 0, made: int = 0) -> Dispatched:
        """What observers are told of a dispatch."""
        return Dispatched(self.backend.id, self.program.name, self.config.label or "", taken, made, how)

    def _plan_again(self, key: Key | None) -> Planned | None:
        """Plan for lengths or a grid that are new as the dispatch before was planned; None where that does not do."""
        pattern = None if key is None else self._patterns.get(key[0] is not None)
        if pattern is None or key is None:
            return None
        found = pattern.over(key)
        if found is not None:
            TALLY.numbers[PLANS] += 1
            for decided in pattern.decisions:
                count_decision(decided)
            keep(self._plans, key, found, _MAX_PLANS)
            if watching():  # since the pattern was looked up: its plans tell of nothing
                self.forget()
        return found

    def _plan(
        self, branch: int, inputs: Sequence[Buffer], out: Sequence[Buffer] | None, known: Key | None = None
    ) -> Planned:
        """Plan for lengths that are new. A plan whose grid lies in memory is good for one call only."""
        observers = watching()
        grid = None if known is None else known[0]
        config = self.config if grid is None else self.config.with_(grid_override=grid)
        with named(self.config.label):
            for what, given in (("inputs", inputs), ("out", () if out is None else out)):
                if not isinstance(given, Sequence):
                    raise ArgumentTypeError(
                        f"{what} is {type(given).__name__}, not a list", fix=f"pass {what} as a list of buffers"
                    )
            plan = plan_dispatch(self.program, inputs, config, self._limits, self.backend.id, out=out)
            if out is not None:
                check_outputs_apart(out)
            sizes: list[int] = [o.layout.read_size for o in plan.outputs]
            if plan.counted:
                sizes = CountedSizes(sizes, plan.counted)
            native = self.timed(self._code(plan.launch.grid), sizes)
            taken, made = sum(memoryview(b).nbytes for b in inputs), plan.output_bytes
            try:
                with counting_failures(self):
                    bound: object = native.bind(plan, config)
                    if not isinstance(bound, Bound):
                        raise self.broken(f"bind returned {type(bound).__name__}", "return a contract.Bound from bind")
            except VyreError:
                self._count(branch, taken, made)  # a dispatch that the backend cannot run counts as failed
                raise
        bound = told(bound, self.about("waited", taken, made), observers)
        planned = taken, made, sizes, bound.run, bound
        TALLY.numbers[PLANS] += 1
        for decided in plan.launch.decisions:
            count_decision(decided)
        if plan.counted:
            count_decision(decide_results(self.program, plan.counted))
        if not plan.indirect and (out is None or all(_is_buffer(b) for b in out)):
            key = lengths(inputs, out, grid)  # type: ignore[arg-type] # which the config has taken
            if key is not None:
                keep(self._plans, key, planned, _MAX_PLANS)
                most, comes_along = self.backend.max_workgroups_per_dimension, grid is not None
                pattern = Pattern.of(self.program, config, plan, bound, most, given=comes_along)
                if out is not None and pattern is not None and not observers:
                    self._patterns[comes_along] = pattern
                if watching() is not observers:
                    self.forget()
        return planned

    def forget(self) -> None:
        self._patterns.clear()
        self._plans.clear()
        self.resident = self._told_resident()

    def _code(self, grid: Dims) -> CompiledPipeline:
        """The compiled program, or the launches that a dispatch over this grid is made of."""
        native = self.entry.native
        decided = launch_of(self.program, self.backend, self.config, grid, native)
        count_decision(decided)
        if isinstance(native, SequencePipeline) or decided.choice != SEQUENCE:
            return native  # it refuses a grid whose workgroups do not all run at once, and says how many it holds
        if self._sequence is None:
            oversized = max(grid) > self.backend.max_workgroups_per_dimension
            self._sequence = SequencePipeline(self.backend, self.program, self.config, code_for, oversized=oversized)
        return self._sequence

    def timed(self, native: CompiledPipeline, sizes: Sequence[int] = ()) -> CompiledPipeline | DeadlinePipeline:
        """The same code, kept to the config's deadline if there is one."""
        decided = deadline_of(self.backend, self.config)
        if decided.choice == NONE:
            return native
        count_decision(decided)
        return DeadlinePipeline(native, self.entry, self.device_state, sizes, keeps_it=decided.choice == BY_BACKEND)

    @contextmanager
    def running(self) -> Iterator[None]:
        """For the calls that are not hot: recovery sees them, and on a device that is gone they are refused."""
        self.device_state.inflight.append(None)
        try:
            if self._cache.epoch != self.entry.epoch:
                raise self.stale()
            yield
        finally:
            self.device_state.inflight.pop()

    def prepare(self, branch: int, inputs: Sequence[Buffer], out: Sequence[Buffer] | None) -> tuple[list[int], Bound]:
        """The first half of `run`, for the calls that are not hot: the outputs' lengths, and the bound dispatch."""
        try:
            planned = self._plans.get(lengths(inputs, out))
        except (TypeError, ValueError, BufferError):
            planned = None
        if planned is None or planned[-1] is None:
            planned = self._plan(branch, inputs, out)
        taken, made, sizes, _, bound = planned
        assert bound is not None
        self._count(branch, taken, made)
        return sizes, bound

    def accept(self, outputs: Any, out: Sequence[Buffer] | None, sizes: list[int]) -> OutputBuffers:
        """The outputs of a backend, if they are as planned. Fresh buffers are copied to the caller's."""
        if not isinstance(outputs, list):
            raise self.broken(f"it returned {type(outputs).__name__}", _RETURN_BUFFERS)
        if out is not None and len(outputs) == len(out) and all(map(is_, outputs, out)):
            return outputs
        if any(not _is_buffer(b) for b in outputs):
            raise self.broken("it returned something that holds no bytes", _RETURN_BUFFERS)
        enforce_actual_output_budget(self.config, outputs)
        found = [memoryview(b).nbytes for b in outputs]
        if type(sizes) is CountedSizes and sizes.allow(found, outputs):
            return sizes.cut(outputs)
        if found != sizes:
            raise self.broken(f"it returned buffers of {found} bytes and {sizes} were planned", _RETURN_BUFFERS)
        if out is None:
            return outputs
        targets = list(out)
        replace_output_buffers_preserving_slots(outputs, targets)
        return targets

    def broken(self, what: str, fix: str) -> DispatchFailed:
        return DispatchFailed(
            f"backend {self.backend.id} broke its contract: {what}",
            fix=f"correct the backend's dispatch: {fix}",
            backend=self.backend.id,
            pipeline=self.entry.native.id,
        )

    def failure(self, error: Exception) -> VyreError:
        """The error that the caller gets for the backend's: the loss of its device, or one of our errors."""
        found = self.backend.failure(error, self.entry.epoch, pipeline=self.entry.native.id)
        if self.config.label is not None:
            found.context.setdefault("label", self.config.label)
        return found

    def sample(self, inputs: Sequence[Buffer], out: Sequence[Buffer] | None) -> Sample | None:
        """The sample that checks the outputs, where a shadow wants this dispatch."""
        return None if self.shadow is None else self.shadow.sample(inputs, self.config, out)

    def _count(self, branch: int, taken: int, made: int) -> None:
        TALLY.numbers[branch] += 1
        TALLY.numbers[INPUT_BYTES] += taken
        TALLY.numbers[OUTPUT_BYTES] += made
        if self.config.label is not None:
            TALLY.counts.label(self.config.label)

    def stale(self) -> DeviceLost:
        return self.device_state.refusal(pipeline=self.entry.native.id, **self.config.labelled)


def launch_of(
    program: Program, backend: VyreBackend, config: DispatchConfig, grid: Dims, native: CompiledPipeline | None
) -> Decision:
    """How a dispatch of this code is launched; of code that is not compiled yet, if it holds every grid."""
    holds = native is None or isinstance(native, SequencePipeline) or native.holds(grid)
    return decide_launch(program, backend, config, grid, holds=holds)


def deadline_of(backend: VyreBackend, config: DispatchConfig) -> Decision:
    """Whether backend or driver ends a dispatch under this config that takes too long."""
    return choose_deadline(config.timeout, backend=backend.id, keeps=backend.deadline)


def _shadow_of(backend: VyreBackend, program: Program) -> Shadow | None:
    """The shadow that the setting asks for, to check this program's outputs."""
    if SHADOW.peek() is None:
        return None
    found: Shadow | None = above.shadow_of(backend, program)
    return found


def _is_resident(native: CompiledPipeline) -> bool:
    """Whether it runs over memory of the device at all."""
    return type(native).dispatch_resident is not CompiledPipeline.dispatch_resident


def _is_buffer(data: object) -> bool:
    try:
        memoryview(data)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


@contextmanager
def typed_failures(route: Route) -> Iterator[None]:
    try:
        yield
    except Exception as e:
        error = route.failure(e)
        if error is e:
            raise
        raise error from e


@contextmanager
def counting_failures(route: Route) -> Iterator[None]:
    try:
        with typed_failures(route):
            yield
    except VyreError:
        TALLY.numbers[FAILED] += 1
        raise
