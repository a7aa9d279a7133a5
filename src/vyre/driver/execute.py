"""The one funnel: every dispatch of a compiled pipeline passes here, is planned once per shape, and is counted.

A pipeline keeps one lane per config. A lane settles everything that does not depend on the call: the config, whether
the program may run, which code serves it. For input lengths it has seen, a warm call counts and
dispatches.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from operator import is_
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import ArgumentTypeError, DeadlineExceeded, DeviceLost, DispatchFailed, VyreError
from .admission import admit, settle_config
from .contract import CompiledPipeline, OutputBuffers, PendingDispatch, VyreBackend
from .deadline import DeadlinePipeline
from .life import Phase
from .plan import plan_dispatch
from .plan.outputs import (
    check_outputs_apart,
    enforce_actual_output_budget,
    replace_output_buffers_preserving_slots,
)
from .repeats import NOTHING, Repeats
from .settings import SHADOW
from .split import SequencePipeline, launch_limits
from .values import DEFAULT_CONFIG, Dims, DispatchConfig, ResidentHandle, Resource, TimedDispatchResult

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..foundation.program import Program
    from .explain import Explanation
    from .guard import GuardedBackend
    from .pipeline.cache import Entry, PipelineCache
    from .pipeline.key import PipelineCacheKey
    from .shadow import Sample, Shadow

Run: TypeAlias = "Callable[[Sequence[Buffer], Sequence[Buffer] | None], OutputBuffers]"
RunResident: TypeAlias = Callable[[Sequence[Resource]], list[ResidentHandle]]
_Planned: TypeAlias = tuple[int, int, list[int], CompiledPipeline]
"""Bytes taken, bytes made, the length of each output, and the code that serves the shape."""
_LaneKey: TypeAlias = tuple[DispatchConfig, object]
"""A settled config, and which shadow is asked for."""
_LISTS = (list, tuple)
_MAX_LANES = 64
"""Configs that a pipeline remembers; a caller who makes a new one for each call stays within it."""
_MAX_SHAPES = 1024
"""Combinations of input lengths that a lane remembers."""
_RETURN_BUFFERS = "return a list of every output, each of exactly the planned length, or write into out and return it"
_SLICE_S = 0.1
"""How long a wait for a started dispatch goes on without looking at the device."""


# ---- counters -------------------------------------------------------------------------------------------------------

SKIPS = ("order", "cost", "memory", "refused", "failed")
"""Why a dispatch that a shadow sampled was not compared."""
_COUNTERS = (
    "plain_dispatches",
    "timed_dispatches",
    "async_dispatches",
    "resident_dispatches",
    "batches",
    "failed_dispatches",
    "input_bytes",
    "output_bytes",
    "lanes_opened",
    "shapes_planned",
    "recompiled_lanes",
    "split_dispatches",
    "split_segments",
    "split_sync_points",
    "split_launches",
    "split_passes",
    "fixpoints_reached",
    "shadow_samples",
    "shadow_divergences",
    "shadow_ns",
    *(f"shadow_skipped_{reason}" for reason in SKIPS),
)
(
    _PLAIN, _TIMED, _ASYNC, _RESIDENT, _BATCHES, _FAILED, _INPUT_BYTES, _OUTPUT_BYTES, _LANES, _SHAPES, _RECOMPILED,
    _SPLIT, _SEGMENTS, _SYNC_POINTS, _LAUNCHES, _PASSES, _FIXPOINTS, _SHADOWED, _DIVERGED, _SHADOW_NS,
) = range(len(_COUNTERS) - len(SKIPS))  # fmt: skip
_MAX_LABELS = 256
_lock = threading.RLock()  # a thread may end, and fold its counts, wherever the collector happens to run


class _Counts:
    """Plain ints that only one thread writes, so that counting takes no lock."""

    __slots__ = ("labels", "numbers")

    def __init__(self) -> None:
        self.numbers = [0] * len(_COUNTERS)
        self.labels: dict[str, int] = {}

    def label(self, label: str, times: int = 1) -> None:
        """Count under a label. When there are too many, the rarest gives way; what it had goes to no label."""
        labels = self.labels
        if label not in labels and len(labels) >= _MAX_LABELS:
            rarest = min(filter(None, labels), key=labels.__getitem__)
            labels[""] = labels.get("", 0) + labels.pop(rarest)
        labels[label] = labels.get(label, 0) + times


class _Tally(threading.local):
    """This thread's counts, which outlive it in `_ended`."""

    def __init__(self) -> None:
        mine = _Counts()
        self.counts, self.numbers, self.labels = mine, mine.numbers, mine.labels
        self._life = _Life()  # dies with the thread
        weakref.finalize(self._life, _fold, mine).atexit = False
        with _lock:
            _live.append(mine)


class _Life:
    __slots__ = ("__weakref__",)


def _fold(counts: _Counts) -> None:
    with _lock:
        _live[:] = [other for other in _live if other is not counts]
        for k, n in enumerate(counts.numbers):
            _ended.numbers[k] += n
        for label, n in counts.labels.items():
            _ended.label(label, n)


def _forked() -> None:
    global _lock
    _lock = threading.RLock()  # a thread that is not in the child may have held the other


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
_live: list[_Counts] = []
_ended = _Counts()
_tally = _Tally()


def counters() -> dict[str, int]:
    """What the funnel did in this process, over all threads."""
    with _lock:
        columns = zip(*(c.numbers for c in (_ended, *_live)), strict=True)
        return dict(zip(_COUNTERS, map(sum, columns), strict=True))


def label_counters() -> dict[str, int]:
    """Dispatches by `DispatchConfig.label`. A thread keeps its 256 most frequent; the rest are under an empty label."""
    found: Counter[str] = Counter()
    with _lock:
        for counts in (_ended, *_live):
            found.update(dict(counts.labels))  # a copy: its thread goes on counting
    return dict(found)


def count_sequence(segments: int, launches: int, passes: int, *, fixpoint: bool) -> None:
    """A dispatch was split into launches; `fixpoint`: it stopped because nothing changed any more."""
    numbers = _tally.numbers
    numbers[_SPLIT] += 1
    numbers[_SEGMENTS] += segments
    numbers[_SYNC_POINTS] += segments - 1
    numbers[_LAUNCHES] += launches
    numbers[_PASSES] += passes
    numbers[_FIXPOINTS] += fixpoint


def count_shadow(elapsed_ns: int, *, diverged: bool, skipped: str | None) -> None:
    """A dispatch was compared with what a reference computes, or skipped for this reason, in this much time."""
    numbers = _tally.numbers
    numbers[_SHADOW_NS] += elapsed_ns
    if skipped is not None:
        numbers[_SHADOW_NS + 1 + SKIPS.index(skipped)] += 1
        return
    numbers[_SHADOWED] += 1
    numbers[_DIVERGED] += diverged


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


# ---- lanes ----------------------------------------------------------------------------------------------------------


class _Lane:
    """A pipeline under one config. `run(inputs, out)` is the warm path."""

    __slots__ = (
        "_cache", "_limits", "_plans", "_sequence", "backend", "config", "entry", "life", "program", "resident", "run",
        "shadow",
    )  # fmt: skip

    def __init__(
        self, backend: GuardedBackend, program: Program, config: DispatchConfig, entry: Entry, cache: PipelineCache
    ) -> None:
        self.backend, self.program, self.config, self.entry, self._cache = backend, program, config, entry, cache
        self.life = backend.life
        self._limits = launch_limits(program, backend, config)
        self._sequence: SequencePipeline | None = None  # for grids over the limit
        self._plans: dict[tuple[int | None, ...] | None, _Planned] = {}
        self.shadow = _shadow_of(backend, program)
        self.run = self._build_run() if self.shadow is None else self.shadow.around(self._build_run(), config)
        self.resident = self._build_resident()
        if self.shadow is not None and _is_resident(entry.native):
            self.resident = self.shadow.around_resident(self.resident, lambda: backend, config)
        _tally.numbers[_LANES] += 1

    def _build_run(self) -> Run:
        """The warm path as one closure: nothing is built, formatted, locked or looked up by name."""
        cache, epoch, plans, plan = self._cache, self.entry.epoch, self._plans, self._plan
        config = self.config
        label, tally, accept = config.label, _tally, self.accept
        enter, leave = self.life.inflight.append, self.life.inflight.pop

        def run(inputs: Sequence[Buffer], out: Sequence[Buffer] | None) -> OutputBuffers:
            enter(None)
            try:
                if cache.epoch != epoch:  # not before entering: recovery changes it first, and then looks who is here
                    raise self._stale()
                try:
                    planned = plans.get(_lengths(inputs, out))
                except (TypeError, ValueError, BufferError):
                    planned = None  # planning says what is wrong
                taken, made, sizes, native = planned or plan(inputs, out)
                counts = tally.numbers
                counts[_PLAIN] += 1
                counts[_INPUT_BYTES] += taken
                counts[_OUTPUT_BYTES] += made
                if label is not None:
                    try:
                        tally.labels[label] += 1
                    except KeyError:
                        tally.counts.label(label)
                try:
                    outputs = native.dispatch(inputs, config, out=out)
                except Exception as e:
                    counts[_FAILED] += 1
                    error = self.failure(e)
                    if error is e:
                        raise
                    raise error from e
                try:
                    if type(outputs) is list:
                        if out is None:
                            if [memoryview(b).nbytes for b in outputs] == sizes:
                                return outputs
                        elif len(outputs) == len(out) and all(map(is_, outputs, out)):
                            return outputs
                except (TypeError, ValueError, BufferError):
                    pass  # no buffers
                with _counting_failures(self):
                    return accept(outputs, out, sizes)
            finally:
                leave()

        return run

    def _build_resident(self) -> RunResident:
        """The same for memory on the device, where there is no copy to hide any cost behind."""
        cache, epoch, life = self._cache, self.entry.epoch, self.life
        config, native, tally = self.config, self.entry.native, _tally
        label, own = config.label, id(config)
        enter, leave, again_not = life.inflight.append, life.inflight.pop, NOTHING[2]
        repeats = getattr(native, "repeats", None)
        if not isinstance(repeats, Repeats) or config.timeout is not None:
            repeats = Repeats()  # which stays empty

        def run(resources: Sequence[Resource]) -> list[ResidentHandle]:
            enter(None)
            try:
                if cache.epoch != epoch:
                    raise self._stale()
                counts = tally.numbers
                counts[_RESIDENT] += 1
                if label is not None:
                    tally.counts.label(label)
                given = resources if life.is_current(resources) else life.unstamped(resources)
                try:
                    which, last, again = repeats.last
                    if which != own or last != resources:
                        again = repeats.find(own, resources) or again_not
                    kept = again()
                    if kept is not None:
                        return kept
                    kept = self.timed(native).dispatch_resident(given, config)
                    return kept if life.is_current(kept) else [life.stamp(h) for h in kept]
                except Exception as e:
                    counts[_FAILED] += 1
                    error = self.failure(e)
                    if error is e:
                        raise
                    raise error from e
            finally:
                leave()

        return run

    def _plan(self, inputs: Sequence[Buffer], out: Sequence[Buffer] | None) -> _Planned:
        """Check a new shape. A plan whose grid lies in memory is good for one call only."""
        with named(self.config.label):
            for what, given in (("inputs", inputs), ("out", () if out is None else out)):
                if not isinstance(given, Sequence):
                    raise ArgumentTypeError(
                        f"{what} is {type(given).__name__}, not a list", fix=f"pass {what} as a list of buffers"
                    )
            plan = plan_dispatch(self.program, inputs, self.config, self._limits, self.backend.id, out=out)
            if out is not None:
                check_outputs_apart(out)
            sizes = [o.layout.read_size for o in plan.outputs]
            native = self.timed(self._code(plan.launch.grid), sizes)
        planned = sum(memoryview(b).nbytes for b in inputs), plan.output_bytes, sizes, native
        _tally.numbers[_SHAPES] += 1
        if not plan.indirect and (out is None or all(_is_buffer(b) for b in out)):
            key = _lengths(inputs, out)
            if key is not None:
                while len(self._plans) >= _MAX_SHAPES:
                    self._plans.pop(next(iter(self._plans)), None)
                self._plans[key] = planned
        return planned

    def _code(self, grid: Dims) -> CompiledPipeline:
        """The compiled program, or the launches that a grid over the device's limit needs, or one whose workgroups
        wait for each other and do not all run at once."""
        native, oversized = self.entry.native, max(grid) > self.backend.max_workgroups_per_dimension
        if isinstance(native, SequencePipeline):
            return native
        if not native.holds(grid):
            if self.config.cooperative or not self.backend.allows_host_grid_sync_split:
                return native  # which refuses, and says how many it holds
        elif not oversized:
            return native
        if self._sequence is None:
            self._sequence = SequencePipeline(self.backend, self.program, self.config, oversized=oversized)
        return self._sequence

    def timed(self, native: CompiledPipeline, sizes: Sequence[int] = ()) -> CompiledPipeline:
        """The same code, kept to the config's deadline if there is one."""
        if self.config.timeout is None:
            return native
        return DeadlinePipeline(native, self.entry, self.life, sizes, keeps_it=self.backend.deadline != "none")

    @contextmanager
    def running(self) -> Iterator[None]:
        """For the calls that are not hot: recovery sees them, and on a device that is gone they are refused."""
        self.life.inflight.append(None)
        try:
            if self._cache.epoch != self.entry.epoch:
                raise self._stale()
            yield
        finally:
            self.life.inflight.pop()

    def prepare(
        self, branch: int, inputs: Sequence[Buffer], out: Sequence[Buffer] | None
    ) -> tuple[list[int], CompiledPipeline]:
        """What `run` does before it dispatches, for the calls that are not hot: the outputs' lengths, and the code."""
        taken, made, sizes, native = self._plan(inputs, out)
        self.count(branch)
        _tally.numbers[_INPUT_BYTES] += taken
        _tally.numbers[_OUTPUT_BYTES] += made
        return sizes, native

    def accept(self, outputs: Any, out: Sequence[Buffer] | None, sizes: list[int]) -> OutputBuffers:
        """What a backend handed back, if it is what was planned. Fresh buffers are copied to where the caller wants."""
        if not isinstance(outputs, list):
            raise self._broken(f"it returned {type(outputs).__name__}", _RETURN_BUFFERS)
        if out is not None and len(outputs) == len(out) and all(map(is_, outputs, out)):
            return outputs
        if any(not _is_buffer(b) for b in outputs):
            raise self._broken("it returned something that holds no bytes", _RETURN_BUFFERS)
        enforce_actual_output_budget(self.config, outputs)
        found = [memoryview(b).nbytes for b in outputs]
        if found != sizes:
            raise self._broken(f"it returned buffers of {found} bytes and {sizes} were planned", _RETURN_BUFFERS)
        if out is None:
            return outputs
        targets = list(out)
        replace_output_buffers_preserving_slots(outputs, targets)
        return targets

    def _broken(self, what: str, fix: str) -> DispatchFailed:
        return DispatchFailed(
            f"backend {self.backend.id} broke its contract: {what}",
            fix=f"correct the backend's dispatch: {fix}",
            backend=self.backend.id,
            pipeline=self.entry.native.id,
        )

    def failure(self, error: Exception) -> VyreError:
        """What the caller gets for what the backend raised: the loss of its device, or one of our errors."""
        found = self.backend.failure(error, self.entry.epoch, pipeline=self.entry.native.id)
        if self.config.label is not None:
            found.context.setdefault("label", self.config.label)
        return found

    def sample(self, inputs: Sequence[Buffer], out: Sequence[Buffer] | None) -> Sample | None:
        """What to hand the outputs to, where a shadow wants this dispatch."""
        return None if self.shadow is None else self.shadow.sample(inputs, self.config, out)

    def count(self, branch: int) -> None:
        _tally.numbers[branch] += 1
        if self.config.label is not None:
            _tally.counts.label(self.config.label)

    def _stale(self) -> DeviceLost:
        return self.life.refusal(pipeline=self.entry.native.id, **self.config.labelled)


def _shadow_of(backend: VyreBackend, program: Program) -> Shadow | None:
    """What the setting `shadow` holds this program's outputs against."""
    if SHADOW.peek() is None:
        return None
    from .shadow import shadow_from_env  # only those pay for it who ask

    return shadow_from_env(backend, program)


def _is_resident(native: CompiledPipeline) -> bool:
    """Whether it runs over memory of the device at all."""
    return type(native).dispatch_resident is not CompiledPipeline.dispatch_resident


def _lengths(inputs: Sequence[Buffer], out: Sequence[Buffer] | None) -> tuple[int | None, ...] | None:
    """What a plan is kept under: the lengths of the inputs, then None and those of the caller's outputs.

    None, which no plan is kept under, where one of the two is no list; looking at an iterator would use it up.
    """
    if type(inputs) not in _LISTS:
        return None
    found: list[int | None] = []  # in plain loops: a comprehension costs a warm call 0.1 us more
    for b in inputs:
        found.append(len(b) if type(b) is bytes else memoryview(b).nbytes)
    if out is not None:
        if type(out) not in _LISTS:
            return None
        if len(out) > 1:
            check_outputs_apart(out)
        found.append(None)
        for b in out:
            view = memoryview(b)
            found.append(view.nbytes if view.c_contiguous and not view.readonly else -1)
    return tuple(found)


def _is_buffer(data: object) -> bool:
    try:
        memoryview(data)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


# ---- pipelines ------------------------------------------------------------------------------------------------------


class DriverPipeline(CompiledPipeline):
    """A handle to compiled code, with the config its dispatches use by default.

    A dispatch that brings no config, or one equal to the default, uses the pipeline's own; any other replaces it. One
    that needs other code (another error budget or workgroup, a deadline) gets it through the cache.
    """

    def __init__(
        self,
        backend: GuardedBackend,
        program: Program,
        config: DispatchConfig,
        key: PipelineCacheKey,
        entry: Entry,
        cache: PipelineCache,
        find: Callable[[DispatchConfig], Entry],
    ) -> None:
        """`find` gives the compiled code for a settled config."""
        self.backend, self.program, self.config, self.key = backend, program, config, key
        self.backend_id, self.id = backend.id, entry.native.id
        self._entry, self._cache, self._find = entry, cache, find
        self._lock = threading.Lock()
        self._closed = False
        self._runs: dict[int, Run] = {}  # by the identity of a config that `_held` keeps alive
        self._resident_runs: dict[int, RunResident] = {}
        self._held: dict[tuple[int, object], tuple[DispatchConfig | None, _Lane]] = {}
        self._lanes: dict[_LaneKey, _Lane] = {}

    @property
    def native(self) -> CompiledPipeline:
        """What the backend compiled, or the passthrough to it."""
        return self._entry.native

    def dispatch(
        self,
        inputs: Sequence[Buffer],
        config: DispatchConfig | None = None,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> OutputBuffers:
        run = self._runs.get(id(config)) if SHADOW.peek() is None else None
        if run is None:
            run = self.lane(config).run
        return run(inputs, out)

    def dispatch_timed(
        self,
        inputs: Sequence[Buffer],
        config: DispatchConfig | None = None,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> TimedDispatchResult:
        lane = self.lane(config)

        def run() -> TimedDispatchResult:
            with lane.running():
                sizes, native = lane.prepare(_TIMED, inputs, out)
                with _counting_failures(lane):
                    result = native.dispatch_timed(inputs, lane.config, out=out)
                    if not isinstance(result, TimedDispatchResult):
                        raise lane._broken(f"it returned {type(result).__name__}", "return a TimedDispatchResult")
                    outputs = lane.accept(result.outputs, out, sizes)
            return result if outputs is result.outputs else replace(result, outputs=outputs)

        sample = lane.sample(inputs, out)
        return run() if sample is None else sample.checked(run, lambda result: result.outputs)

    def dispatch_async(
        self,
        inputs: Sequence[Buffer],
        config: DispatchConfig | None = None,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> PendingDispatch:
        lane = self.lane(config)

        def start() -> PendingDispatch:
            with lane.running():
                sizes, native = lane.prepare(_ASYNC, inputs, out)
                with _counting_failures(lane):
                    held = None if out is None else list(out)  # the caller's list stays his
                    pending = native.dispatch_async(inputs, lane.config, out=held)
                    if not isinstance(pending, PendingDispatch):
                        raise lane._broken(f"it returned {type(pending).__name__}", "return a PendingDispatch")
                    handle = _LanePending(pending, lane, held, sizes)
                    if not pending.is_ready():
                        lane.life.watch(handle)
            return handle

        sample = lane.sample(inputs, out)
        return start() if sample is None else sample.started(start)

    def dispatch_batch(
        self,
        batches: Sequence[Sequence[Buffer]],
        config: DispatchConfig | None = None,
        *,
        out: Sequence[Sequence[Buffer]] | None = None,
    ) -> list[OutputBuffers]:
        return run_batch(self, batches, config, out=out)

    def dispatch_resident(
        self, resources: Sequence[Resource], config: DispatchConfig | None = None
    ) -> list[ResidentHandle]:
        run = self._resident_runs.get(id(config)) if SHADOW.peek() is None else None
        if run is None:
            run = self.lane(config).resident
        return run(resources)

    def explain(self, inputs: Sequence[Buffer], config: DispatchConfig | None = None) -> Explanation:
        """What a dispatch would do, and why. Nothing runs."""
        return explain(self, inputs, config)

    def close(self) -> None:
        """Let go of the compiled code, which others may still use. Later dispatches of this handle are refused."""
        with self._lock:
            self._closed = True
            for table in (self._runs, self._resident_runs, self._held, self._lanes):
                table.clear()

    # -- lanes

    def settle(self, config: DispatchConfig | None) -> DispatchConfig:
        """The config that a dispatch with this one really uses."""
        if not isinstance(config, DispatchConfig | None):
            raise ArgumentTypeError(f"config is {type(config).__name__}", fix="pass DispatchConfig(...), or nothing")
        if config is None or config == DEFAULT_CONFIG:
            return self.config
        return settle_config(config, self.backend)

    def lane(self, config: DispatchConfig | None) -> _Lane:
        """The lane of a config, by identity and else by value. Where a shadow is asked for, it is another one."""
        shadow = SHADOW.peek()
        if (held := self._held.get((id(config), shadow))) is not None:
            return held[1]
        if self._closed:
            raise DispatchFailed("the pipeline is closed", fix="compile the program again", pipeline=self.id)
        with named(getattr(config, "label", None)):
            settled = self.settle(config)
            lane = self._lanes.get((settled, shadow)) or self._open(settled)
        with self._lock:
            if not self._closed:
                _bounded(self._lanes, (settled, shadow), lane)
                self._held[id(config), shadow] = config, lane
                if shadow is None:
                    self._runs[id(config)], self._resident_runs[id(config)] = lane.run, lane.resident
                while len(self._held) > _MAX_LANES:
                    oldest = next(iter(self._held))
                    if oldest[1] is None:  # in this order: an identity must not outlive its config
                        del self._runs[oldest[0]], self._resident_runs[oldest[0]]
                    del self._held[oldest]
        return lane

    def _open(self, config: DispatchConfig) -> _Lane:
        if self._cache.epoch != self._entry.epoch:
            raise self.backend.life.refusal(pipeline=self.id)  # also where other code would have to be compiled
        admit(self.program, self.backend, config)
        entry = self._find(config)
        if entry is not self._entry:
            _tally.numbers[_RECOMPILED] += 1
        return _Lane(self.backend, self.program, config, entry, self._cache)


def _bounded(table: dict[_LaneKey, _Lane], key: _LaneKey, lane: _Lane) -> None:
    table[key] = lane
    while len(table) > _MAX_LANES:
        del table[next(iter(table))]


class _LanePending(PendingDispatch):
    """A started dispatch: its result is held to the config of its lane, and its code stays open until then.

    It belongs to one life of its device. Waits are cut into slices, so that no wait outlives the device, and a signal
    is handled even where a backend waits without looking.
    """

    def __init__(self, pending: PendingDispatch, lane: _Lane, out: Sequence[Buffer] | None, sizes: list[int]) -> None:
        super().__init__()
        self._pending, self._lane, self._out, self._sizes = pending, lane, out, sizes
        self._life_number = lane.life.number
        self._came: tuple[OutputBuffers] | None = None  # kept, so that a refusal can be repeated
        self._failed = False

    def is_ready(self) -> bool:
        with _typed_failures(self._lane):
            return self._pending.is_ready()

    def _wait(self, timeout: float | None) -> OutputBuffers:
        try:
            with _typed_failures(self._lane):
                if self._came is None:
                    self._came = self._outputs(timeout)
                if self._came is not None:
                    self._lane.life.unwatch(self)
                    return self._lane.accept(self._came[0], self._out, self._sizes)
        except VyreError:
            if not self._failed:
                self._failed = True
                self._lane.life.unwatch(self)
                _tally.numbers[_FAILED] += 1
            raise
        raise TimeoutError

    def _outputs(self, timeout: float | None) -> tuple[OutputBuffers] | None:
        """What the backend gives, or None when the time is over and the dispatch is not."""
        pending, end = self._pending, None if timeout is None else time.monotonic() + timeout
        while True:
            self._require_device()
            left = _SLICE_S if end is None else min(max(end - time.monotonic(), 0), _SLICE_S)
            try:
                return (pending.result(left),)
            except DeadlineExceeded as e:
                if "waited_s" not in e.context:
                    raise  # not the wait has ended but the dispatch, ready or not
                if pending.is_ready():
                    return (pending.result(0),)  # it ended just now, or the deadline was its own
                if end is not None and time.monotonic() >= end:
                    return None

    def _require_device(self) -> None:
        """Raise if the device this runs on is gone. After a shutdown, what was started still ends."""
        life = self._lane.life
        if life.number != self._life_number or life.phase not in (Phase.OPEN, Phase.BUSY, Phase.SHUT):
            raise self._lane._stale()


@contextmanager
def _typed_failures(lane: _Lane) -> Iterator[None]:
    try:
        yield
    except Exception as e:
        error = lane.failure(e)
        if error is e:
            raise
        raise error from e


@contextmanager
def _counting_failures(lane: _Lane) -> Iterator[None]:
    try:
        with _typed_failures(lane):
            yield
    except VyreError:
        _tally.numbers[_FAILED] += 1
        raise


# ---- the funnel's own words -----------------------------------------------------------------------------------------


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
    """Dispatch once for each of several inputs, in order. Limits of the config hold for each dispatch.

    An error says at which of them it happened, as `batch_index`; the ones before it have run.
    """
    if not isinstance(pipeline, DriverPipeline):
        return pipeline.dispatch_batch(batches, config, out=out)
    given: tuple[object, object] = batches, () if out is None else out
    if not all(isinstance(g, Sequence) for g in given) or (out is not None and len(out) != len(batches)):
        return CompiledPipeline.dispatch_batch(pipeline, batches, config, out=out)  # which refuses
    run = pipeline.lane(config).run
    _tally.numbers[_BATCHES] += 1
    results: list[OutputBuffers] = []
    for k, inputs in enumerate(batches):
        try:
            results.append(run(inputs, None if out is None else out[k]))
        except VyreError as e:
            e.context.setdefault("batch_index", k)
            raise
    return results


def explain(
    target: DriverPipeline | Program,
    inputs: Sequence[Buffer],
    config: DispatchConfig | None = None,
    *,
    backend: VyreBackend | None = None,
) -> Explanation:
    """What a dispatch of a pipeline, or of a program on a backend, would do, and why. Nothing runs or is compiled."""
    from .explain import explain_dispatch  # only those who ask pay for it

    return explain_dispatch(target, inputs, config, backend)
