"""The reference as a backend: plan, bind, run an engine, hand back fresh bytes.

Nothing of the caller's is written before a dispatch has succeeded, so results never depend on shared memory.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ... import __version__
from ...driver.admission.program import validate_program_for_backend
from ...driver.contract.backend import VyreBackend
from ...driver.contract.capability import BackendCapability
from ...driver.contract.pending import FuturePending, PendingDispatch
from ...driver.contract.pipeline import CompiledPipeline
from ...driver.contract.values import DEFAULT_CONFIG, U32_MAX, DispatchConfig, OutputBuffers
from ...driver.counters import count_settled
from ...driver.plan.bounds import Counter
from ...driver.plan.grid import LaunchGeometryLimits, check_grid
from ...driver.plan.launch import PlannedDispatch, as_launched, plan_dispatch
from ...driver.plan.outputs import replace_output_buffers_preserving_slots
from ...driver.verify.cases import Exploration
from ...errors import (
    ArgumentTypeError,
    ArgumentValueError,
    DispatchFailed,
    StepLimitExceeded,
    Trap,
    VyreError,
)
from ...foundation.ir.ops import EXPR_IDS, FUNCTION_IDS, LITERAL_IDS, NODE_IDS
from ...foundation.ir.program import Program
from .engines.memory import Memory, Options, Schedule
from .engines.races import Race
from .engines.run import execute

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from typing_extensions import Buffer

CAPABILITY = BackendCapability(
    ops=frozenset((*NODE_IDS.values(), *EXPR_IDS.values(), *LITERAL_IDS.values(), *FUNCTION_IDS.values())),
    types=frozenset(("f16", "bf16", "f64", "u64", "i64")),
    grid_sync=True,  # all workgroups are alive at once; subgroups, indirect grids and f16 are emulated, hence not here
    max_workgroup_size=(1024, 1024, 64),
    max_invocations_per_workgroup=1 << 16,
    max_workgroups_per_dimension=U32_MAX,
    max_shared_bytes=1 << 30,
    max_storage_buffer_bytes=U32_MAX * 8,
    deadline="cooperative",
    exactness={"f32": "canonical"},
)

_ORDERS = (Schedule("reversed"), Schedule("lockstep"), Schedule.seeded(0))
"""Tried besides forward, where the order may show."""


class ReferenceBackend(VyreBackend):
    """The definition of right, through the same contract as every other backend."""

    id = "reference"
    version = __version__
    capability = CAPABILITY

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._limits = LaunchGeometryLimits.of(self)
        self._closed = False
        self._process = os.getpid()
        self._worker: ThreadPoolExecutor | None = None
        self._pending: set[Future[OutputBuffers]] = set()
        self._dispatches = Counter("dispatches", mode="pinning")
        self._async_dispatches = Counter("async_dispatches", mode="pinning")

    def dispatch(
        self,
        program: Program,
        inputs: Sequence[Buffer],
        config: DispatchConfig = DEFAULT_CONFIG,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> OutputBuffers:
        return self.start(program, inputs, config, out)()

    def dispatch_async(
        self,
        program: Program,
        inputs: Sequence[Buffer],
        config: DispatchConfig = DEFAULT_CONFIG,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> PendingDispatch:
        return self.submit(self.start(program, inputs, config, out))

    def compile_native(self, program: Program, config: DispatchConfig) -> ReferencePipeline:
        self._require_open()
        return ReferencePipeline(self, program, config)

    def flush(self) -> None:
        if self._process != os.getpid():
            return  # nothing that the other process started ever ends here
        with self._lock:
            pending = tuple(self._pending)
        for future in pending:
            future.exception()  # the holder of the handle gets the failure

    def shutdown(self) -> None:
        if self._process != os.getpid():
            self._closed = True  # the lock and the thread belong to the other process
            return
        with self._lock:
            self._closed, worker, self._worker = True, self._worker, None
        if worker is not None:
            worker.shutdown()

    def metrics(self) -> Mapping[str, int]:
        return {c.name: c.value for c in (self._dispatches, self._async_dispatches)}

    def start(
        self, program: Program, inputs: Sequence[Buffer], config: DispatchConfig, out: Sequence[Buffer] | None
    ) -> Callable[[], OutputBuffers]:
        """Check everything and copy the inputs; the rest of the dispatch is left to call, from any thread."""
        begun = time.monotonic()
        bound = self._bind(program, inputs, config, out)
        deadline = None if config.timeout is None else begun + config.timeout
        targets = None if out is None else list(out)

        def finish() -> OutputBuffers:
            try:
                bound.run(Options(deadline=deadline))
            except VyreError as e:
                _label(e, config)
                raise
            results: OutputBuffers = [*bound.memory.outputs()]
            if targets is None:
                return results
            replace_output_buffers_preserving_slots(results, targets)
            return targets

        return finish

    def explore(
        self, program: Program, inputs: Sequence[Buffer], config: DispatchConfig, max_steps: int
    ) -> Exploration:
        """Does the order of invocations show? One run tells, with the race detector.

        Without a race, and where no invocation uses an old value that an atomic of another one decides, every order
        gives what this one gave. Where such a value is used, more orders are tried. If those agree the answer
        is a doubt, not a proof: devices have orders of their own.

        An order may take `max_steps` and as many invocations: those that take turns are in memory all at once.
        """
        deadline = None if config.timeout is None else time.monotonic() + config.timeout

        def outcome(options: Options) -> tuple[_Watched, OutputBuffers | Trap]:
            bound = self._bind(program, inputs, config, None)
            if bound.invocations > max_steps:
                raise StepLimitExceeded(
                    f"{bound.invocations} invocations are too many to run in several orders",
                    fix="use a smaller grid",
                    max_steps=max_steps,
                )
            try:
                watched = bound.run(options)
            except Trap as e:
                return _Watched(), e
            return watched, watched.trap or [*bound.memory.outputs()]

        watched, first = outcome(Options(Schedule(), max_steps, True, deadline))
        if watched.race is not None:
            return Exploration([], f"{watched.race}")
        if watched.seen is None:
            return Exploration(first)
        doubt = f"it uses what an atomic returns on {watched.seen.sides}"
        for schedule in _ORDERS:
            _, found = outcome(Options(schedule, max_steps, deadline=deadline))
            if isinstance(first, Trap) != isinstance(found, Trap):
                return Exploration([], f"run forward and {schedule}, only one of the two traps, as {doubt}")
            if not isinstance(first, Trap) and first != found:
                return Exploration([], f"run forward and {schedule}, it gives different bytes, as {doubt}")
        return Exploration(first, doubt=doubt)

    def _bind(
        self, program: Program, inputs: Sequence[Buffer], config: DispatchConfig, out: Sequence[Buffer] | None
    ) -> _Bound:
        """A dispatch that was planned, over copies of its inputs."""
        self._require_open()
        _check_arguments(program, inputs, config, out)
        self._dispatches.add()
        try:
            config = validate_program_for_backend(self, program, config)
            plan = plan_dispatch(program, inputs, config, self._limits, self.id, out=out)
            program = as_launched(program, config)
            return _Bound(program, plan, Memory.build(program, inputs, plan=plan.bindings))
        except VyreError as e:
            _label(e, config)
            raise

    def submit(self, finish: Callable[[], OutputBuffers]) -> PendingDispatch:
        """Let the backend's own thread finish a dispatch."""
        from concurrent.futures import ThreadPoolExecutor  # 10 ms that only asynchronous dispatches pay

        with self._lock:
            if self._closed:
                raise _closed()
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, "vyre-reference")
            future = self._worker.submit(finish)
            self._async_dispatches.add()
            self._pending.add(future)
        future.add_done_callback(self._forget)
        return FuturePending(future)

    def _forget(self, future: Future[OutputBuffers]) -> None:
        with self._lock:
            self._pending.discard(future)

    def _require_open(self) -> None:
        if self._closed:
            raise _closed()
        if self._process != os.getpid():
            raise DispatchFailed(
                "the backend was opened by the process that this one was forked from, and its threads are not here",
                fix="use the spawn start method, or acquire the backend in the child",
                backend=self.id,
            )


def open_backend(device: object = None) -> ReferenceBackend:
    """There is one device, whichever is asked for."""
    return ReferenceBackend()


class _Watched(NamedTuple):
    """What the race detector saw in a dispatch: see `Outcome`."""

    race: Race | None = None
    seen: Race | None = None
    trap: Trap | None = None


class _Bound(NamedTuple):
    """A program, the plan of one dispatch, and its memory."""

    program: Program
    plan: PlannedDispatch
    memory: Memory

    @property
    def invocations(self) -> int:
        return prod(self.memory.indirect_grid() or self.plan.launch.grid) * prod(self.plan.launch.workgroup)

    def run(self, options: Options) -> _Watched:
        """Change the memory as the dispatch does, and say what was seen. A step limit holds for all of it."""
        program, plan, memory = self
        watched = _Watched()
        for turn in range(1, plan.iterations + 1):
            before = memory.image() if plan.iterations > 1 else None
            grid = memory.indirect_grid() or plan.launch.grid  # an iteration may change where the next one runs
            outcome = execute(program, memory, check_grid(grid, plan.launch.workgroup), options)
            race = watched.race or next(iter(outcome.races), None)
            watched = _Watched(race, watched.seen or outcome.seen, outcome.trap)
            if watched.trap is not None:
                break
            if options.max_steps is not None:
                options = replace(options, max_steps=options.max_steps - outcome.steps)
            if before is not None and turn < plan.iterations and before == memory.image():
                count_settled(plan.iterations - turn)
                break  # every further iteration would do the same
        return watched


class ReferencePipeline(CompiledPipeline):
    """A validated program with its backend."""

    backend_id = ReferenceBackend.id

    def __init__(self, backend: ReferenceBackend, program: Program, config: DispatchConfig) -> None:
        self.id = f"{self.backend_id}:{program.fingerprint[:16]}"
        self.backend, self.program, self.config = backend, program, config
        self._open = True

    def dispatch(
        self,
        inputs: Sequence[Buffer],
        config: DispatchConfig | None = None,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> OutputBuffers:
        return self._start(inputs, config, out)()

    def dispatch_async(
        self,
        inputs: Sequence[Buffer],
        config: DispatchConfig | None = None,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> PendingDispatch:
        return self.backend.submit(self._start(inputs, config, out))

    def explore(self, inputs: Sequence[Buffer], config: DispatchConfig, *, max_steps: int) -> Exploration:
        """Does the order of invocations show in what these inputs give? A shadow asks where there is no proof."""
        self._require_open()
        return self.backend.explore(self.program, inputs, config, max_steps)

    def close(self) -> None:
        self._open = False

    def _start(
        self, inputs: Sequence[Buffer], config: DispatchConfig | None, out: Sequence[Buffer] | None
    ) -> Callable[[], OutputBuffers]:
        self._require_open()
        return self.backend.start(self.program, inputs, self.config if config is None else config, out)

    def _require_open(self) -> None:
        if not self._open:
            raise DispatchFailed("the pipeline is closed", fix="compile the program again", pipeline=self.id)


def _check_arguments(program: object, inputs: object, config: object, out: object) -> None:
    """Check the kinds of the arguments; the plan checks their contents."""
    if not isinstance(program, Program):
        raise ArgumentTypeError(
            f"program is a {type(program).__name__}", fix="pass a Program; that of a kernel is kernel.program"
        )
    if not isinstance(config, DispatchConfig):
        raise ArgumentTypeError(f"config is a {type(config).__name__}", fix="pass DispatchConfig(...), or nothing")
    for what, kind, buffers in (("inputs", "inputs", inputs), ("out", "outputs", () if out is None else out)):
        if not (hasattr(buffers, "__len__") and hasattr(buffers, "__getitem__")):
            raise ArgumentTypeError(
                f"{what} is a {type(buffers).__name__}, not a list of buffers",
                fix=f"pass a list with one buffer for each of the program's {kind}",
            )
        for k, buffer in enumerate(buffers):  # type: ignore[var-annotated, arg-type]
            try:
                memoryview(buffer)
            except TypeError:
                pass  # no buffer at all, which the plan says
            except ValueError as e:
                raise ArgumentValueError(
                    f"{what}[{k}] is a {type(buffer).__name__} whose memory was released",
                    fix="pass it before it is released, or pass a copy",
                ) from e


def _label(error: VyreError, config: DispatchConfig) -> None:
    """Let the error say which dispatch it was."""
    if config.label is not None:
        error.context.setdefault("label", config.label)


def _closed() -> DispatchFailed:
    return DispatchFailed("the backend was shut down", fix="acquire it again", backend=ReferenceBackend.id)
