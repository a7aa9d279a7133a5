"""The one funnel: every dispatch of a compiled pipeline passes here, is planned once per shape, and is counted.

A pipeline keeps one route per config.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import repeat
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ...errors import ArgumentTypeError, DispatchFailed
from ...foundation.check.gridsync import contains_grid_sync
from ...foundation.memo import keep
from ..admission.program import admit, settle_config
from ..contract.pending import PendingDispatch
from ..contract.pipeline import CompiledPipeline, DispatchPlan, Key, RunOver
from ..contract.values import (
    DEFAULT_CONFIG,
    DispatchConfig,
    OutputBuffers,
    ResidentHandle,
    Resource,
    TimedDispatchResult,
    named,
)
from ..counters import ASYNC, BATCHES, RECOMPILED, TALLY, TIMED
from ..device_state import WatchedBackend
from ..observers import routes
from ..policy.decision import Decision
from ..policy.overlap import Access
from ..settings.knobs import SHADOW
from .pending import RoutePending
from .route import Route, RunResident, counting_failures
from .stream import Hinders, Stream, hinders_of, host_span, length_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ...foundation.ir.program import Program
    from ..pipeline.cache import Entry
    from ..pipeline.key import PipelineCacheKey
    from .explanation import Explanation

_RouteKey: TypeAlias = tuple[DispatchConfig, object]
"""A settled config, and which shadow is asked for."""
_MAX_ROUTES = 64
"""Configs that a pipeline remembers; a caller that makes a new one for each call stays within it."""


class DriverPipeline(CompiledPipeline):
    """A handle to compiled code, with the config its dispatches use by default.

    A dispatch that brings no config, or one equal to the default, uses the pipeline's own; any other replaces it. One
    that needs other code (another error budget or workgroup, a deadline) gets it through the cache.
    """

    def __init__(
        self,
        backend: WatchedBackend,
        program: Program,
        config: DispatchConfig,
        key: PipelineCacheKey,
        entry: Entry,
        find: Callable[[DispatchConfig], Entry],
    ) -> None:
        """`find` gives the compiled code for a settled config."""
        self.backend, self.program, self.config, self.key = backend, program, config, key
        self.backend_id, self.id = backend.id, entry.native.id
        self.in_place = entry.native.in_place and not contains_grid_sync(program)  # which may be split into dispatches
        self._entry, self._find = entry, find
        self._lock = threading.Lock()
        self._closed = False
        # By the identity of a config, 0.05 us: its hash takes 3. `_held` keeps it, so that no other has its id.
        self._runs: dict[int, RunOver] = {}
        self._resident_runs: dict[int, RunResident] = {}
        self._held: dict[tuple[int, object], tuple[DispatchConfig | None, Route]] = {}
        self._routes: dict[_RouteKey, Route] = {}
        routes.add(self)

    def forget(self) -> None:
        """Observers begin or end to watch."""
        with self._lock:
            for (identity, shadow), (_, route) in self._held.items():
                route.forget()
                if shadow is None:
                    self._resident_runs[identity] = route.resident

    @property
    def native(self) -> CompiledPipeline:
        """The backend's compiled code, or the passthrough to the backend."""
        return self._entry.native

    def dispatch(
        self, inputs: Sequence[Buffer], config: DispatchConfig | None = None, *, out: Sequence[Buffer] | None = None
    ) -> OutputBuffers:
        run = self._runs.get(id(config)) if SHADOW.peek() is None else None
        if run is None:
            run = self.route(config).run
        return run(inputs, out, None)

    def dispatch_over(
        self, inputs: Sequence[Buffer], out: Sequence[Buffer] | None, key: Key | None, config: DispatchConfig | None
    ) -> OutputBuffers:
        """Dispatch, for a caller that knows the lengths of its buffers, or has a grid to put in place of the config's:
        to look at buffers, or to make a config for each of many grids, costs about what a small launch does.

        `plan.launch.lengths` makes the key, and it has to be right. No argument goes by its name: that costs 0.1 us.
        """
        run = self._runs.get(id(config)) if SHADOW.peek() is None else None
        if run is None:
            run = self.route(config).run
        return run(inputs, out, key)

    def dispatch_timed(
        self, inputs: Sequence[Buffer], config: DispatchConfig | None = None, *, out: Sequence[Buffer] | None = None
    ) -> TimedDispatchResult:
        route = self.route(config)

        def run() -> TimedDispatchResult:
            with route.running():
                sizes, bound = route.prepare(TIMED, inputs, out)
                with counting_failures(route):
                    result = bound.timed(inputs, out)
                    if not isinstance(result, TimedDispatchResult):
                        raise route.broken(f"it returned {type(result).__name__}", "return a TimedDispatchResult")
                    outputs = route.accept(result.outputs, out, sizes)
            return result if outputs is result.outputs else replace(result, outputs=outputs)

        sample = route.sample(inputs, out)
        return run() if sample is None else sample.checked(run, lambda result: result.outputs)

    def dispatch_async(
        self, inputs: Sequence[Buffer], config: DispatchConfig | None = None, *, out: Sequence[Buffer] | None = None
    ) -> PendingDispatch:
        route = self.route(config)

        def start() -> PendingDispatch:
            with route.running():
                sizes, bound = route.prepare(ASYNC, inputs, out)
                with counting_failures(route):
                    held, begun = None if out is None else list(out), perf_counter_ns()  # not the caller's list
                    pending = bound.start(inputs, held)
                    if not isinstance(pending, PendingDispatch):
                        raise route.broken(f"it returned {type(pending).__name__}", "return a PendingDispatch")
                    handle = RoutePending(pending, route, inputs, held, sizes, begun)
                    if not pending.is_ready():
                        route.device_state.watch(handle)
            return handle

        sample = route.sample(inputs, out)
        return start() if sample is None else sample.started(start)

    def run_batch(
        self,
        batches: Iterable[Sequence[Buffer]],
        config: DispatchConfig | None = None,
        *,
        in_flight: int | None = None,
        progress: Callable[[int, int | None], object] | bool | None = None,
    ) -> Stream[OutputBuffers]:
        """Dispatch once for each of a stream of inputs: an iterator over their outputs, in order.

        Inputs are taken as outputs are. Where that saves time, one is uploaded while the one before is computed;
        `in_flight` says how many may be on their way, wherever they can be. `progress` is a function of (done, total or
        None), or True for a line on the terminal.
        """
        given: object = batches
        if not isinstance(given, Iterable) or isinstance(given, str | bytes | bytearray | memoryview):
            raise ArgumentTypeError(
                f"batches is {type(batches).__name__}, not a list", fix="pass batches as a list of lists of buffers"
            )
        hinders = hinders_of(self.backend)
        jobs = (_Job(self, inputs, config, None, hinders) for inputs in batches)
        TALLY.numbers[BATCHES] += 1
        return Stream(jobs, total=length_of([batches]), in_flight=in_flight, progress=progress)

    def dispatch_batch(
        self,
        batches: Sequence[Sequence[Buffer]],
        config: DispatchConfig | None = None,
        *,
        out: Sequence[Sequence[Buffer]] | None = None,
    ) -> list[OutputBuffers]:
        """Dispatch once for each of several inputs, in order. Limits of the config hold for each dispatch.

        An error says at which of them it happened, as `batch_index`; the ones before it have run.
        """
        given: tuple[object, object] = batches, () if out is None else out
        if not all(isinstance(g, Sequence) for g in given) or (out is not None and len(out) != len(batches)):
            return CompiledPipeline.dispatch_batch(self, batches, config, out=out)  # which refuses
        hinders = hinders_of(self.backend)
        targets: Iterable[Sequence[Buffer] | None] = repeat(None) if out is None else out
        jobs = (_Job(self, inputs, config, each, hinders) for inputs, each in zip(batches, targets, strict=False))
        TALLY.numbers[BATCHES] += 1
        return list(Stream(jobs))

    def dispatch_resident(
        self, resources: Sequence[Resource], config: DispatchConfig | None = None
    ) -> list[ResidentHandle]:
        run = self._resident_runs.get(id(config)) if SHADOW.peek() is None else None
        if run is None:
            run = self.route(config).resident
        return run(resources)

    def explain(self, inputs: Sequence[Buffer], config: DispatchConfig | None = None) -> Explanation:
        """What a dispatch would do, and why. Nothing runs."""
        from .explanation import explain_dispatch  # only `explain` pays for it

        chosen = Decision("backend", self.backend_id, "the pipeline was compiled for it")
        return explain_dispatch(self, inputs, config, chosen=chosen)

    def decisions(self, plan: DispatchPlan, config: DispatchConfig, memory: str) -> Sequence[Decision]:
        return self.native.decisions(plan, config, memory)

    def close(self) -> None:
        """Let go of the compiled code, which others may still use. Later dispatches of this handle are refused."""
        with self._lock:
            self._closed = True
            for table in (self._runs, self._resident_runs, self._held, self._routes):
                table.clear()

    # -- routes

    def settle(self, config: DispatchConfig | None) -> DispatchConfig:
        """The config that a dispatch with this one really uses."""
        if not isinstance(config, DispatchConfig | None):
            raise ArgumentTypeError(f"config is {type(config).__name__}", fix="pass DispatchConfig(...), or nothing")
        if config is None or config == DEFAULT_CONFIG:
            return self.config
        return settle_config(config, self.backend)

    def route(self, config: DispatchConfig | None) -> Route:
        """The route of a config, by identity and else by value. Where a shadow is asked for, it is another one."""
        shadow = SHADOW.peek()
        if (held := self._held.get((id(config), shadow))) is not None:
            return held[1]
        if self._closed:
            raise DispatchFailed("the pipeline is closed", fix="compile the program again", pipeline=self.id)
        with named(getattr(config, "label", None)):
            settled = self.settle(config)
            route = self._routes.get((settled, shadow)) or self._open(settled)
        with self._lock:
            if not self._closed:
                keep(self._routes, (settled, shadow), route, _MAX_ROUTES)
                gone = keep(self._held, (id(config), shadow), (config, route), _MAX_ROUTES)
                if shadow is None:
                    self._runs[id(config)], self._resident_runs[id(config)] = route.run, route.resident
                for (identity, asked), _ in gone:  # which holds the configs: no identity may outlive its own
                    if asked is None:
                        del self._runs[identity], self._resident_runs[identity]
        return route

    def _open(self, config: DispatchConfig) -> Route:
        if self.backend.pipelines.epoch != self._entry.epoch:
            raise self.backend.device_state.refusal(pipeline=self.id)  # also where other code would have to be compiled
        admit(self.program, self.backend, config)
        entry = self._find(config)
        if entry is not self._entry:
            TALLY.numbers[RECOMPILED] += 1
        return Route(self.backend, self.program, config, entry)


def run_one(
    pipeline: CompiledPipeline,
    inputs: Sequence[Buffer],
    config: DispatchConfig | None = None,
    *,
    out: Sequence[Buffer] | None = None,
) -> OutputBuffers:
    """Dispatch once."""
    return pipeline.dispatch(inputs, config, out=out)


def run_batch(
    pipeline: CompiledPipeline,
    batches: Sequence[Sequence[Buffer]],
    config: DispatchConfig | None = None,
    *,
    out: Sequence[Sequence[Buffer]] | None = None,
) -> list[OutputBuffers]:
    """Dispatch once for each of several inputs, in order."""
    return pipeline.dispatch_batch(batches, config, out=out)


class _Job(NamedTuple):
    """An input of a stream, and where its outputs go."""

    pipeline: DriverPipeline
    inputs: Sequence[Buffer]
    config: DispatchConfig | None
    out: Sequence[Buffer] | None
    why: Hinders

    def nbytes(self) -> int:
        try:
            return sum(memoryview(b).nbytes for b in self.inputs)
        except TypeError:
            return 0  # the dispatch says what is wrong

    def access(self) -> Access:
        try:
            return Access([*map(host_span, self.inputs)], [*map(host_span, self.out or ())])
        except TypeError:
            return Access()  # the same

    def hinders(self) -> Hinders:
        return self.why

    def wait(self) -> None:
        """Nothing has been read of its buffers."""

    def run(self) -> OutputBuffers:
        return self.pipeline.dispatch(self.inputs, self.config, out=self.out)

    def start(self) -> PendingDispatch:
        return self.pipeline.dispatch_async(self.inputs, self.config, out=self.out)
