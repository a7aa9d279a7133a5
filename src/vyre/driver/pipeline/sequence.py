"""One dispatch as several launches (`plan.stages` says which), with the bytes of one.

A sequence is repeated as a whole, until nothing changes or the iterations are used up.

Between launches, memory is known by name: every launch takes what it touches and gives back what it writes, in full.
The caller's inputs are never written, and the outputs are made at the end.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import DispatchFailed, VyreError
from ...foundation.ir.program import Program
from ...foundation.memo import keep
from ..contract.pending import ReadyPending
from ..contract.pipeline import Bound, CompiledPipeline, DispatchPlan
from ..contract.values import DispatchConfig, OutputBuffers, TimedDispatchResult
from ..counters import count_sequence
from ..device_state import WatchedBackend
from ..plan.binding import BindingRole
from ..plan.bounds import reserve_bytes
from ..plan.grid import Grid, LaunchGeometryLimits, boxes, check_grid, resolve_indirect_grid
from ..plan.launch import PlannedDispatch, plan_dispatch
from ..plan.outputs import replace_output_buffers_preserving_slots
from ..plan.stages import acts, based_program, stage_programs
from .deadline import expired

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..policy.decision import Decision
    from .cache import Entry


_MAX_LAUNCHES = 64
"""Launches that one of them keeps bound; those of a grid in memory may always be others."""


@dataclass(frozen=True, slots=True)
class _StageCode:
    """Compiled code of one stage, and its buffers by name in slot order. `base` names the uniform of the base ids."""

    entry: Entry
    program: Program
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    base: str | None = None


class SequencePipeline(CompiledPipeline):
    """A program that a backend runs as several launches."""

    def __init__(
        self,
        backend: WatchedBackend,
        program: Program,
        config: DispatchConfig,
        find: Callable[[WatchedBackend, Program, DispatchConfig], Entry],
        *,
        oversized: bool = False,
    ) -> None:
        """Compile the launches of a grid that fits the device, or of one that does not; the others when first needed.

        `find` gives the compiled code of one launch.
        """
        self.id, self.backend_id = f"{backend.id}:sequence:{program.fingerprint[:16]}", backend.id
        self.backend, self.program, self.config, self._find = backend, program, config, find
        self.segment_count = len(stage_programs(program))
        self._limits = LaunchGeometryLimits.of(backend)
        self._stages = tuple((k, p) for k, p in enumerate(stage_programs(program), 1) if acts(p))
        self._codes: dict[tuple[int, bool], _StageCode] = {}
        for k, stage in self._stages:
            self._code(k, stage, oversized)

    def dispatch(
        self, inputs: Sequence[Buffer], config: DispatchConfig | None = None, *, out: Sequence[Buffer] | None = None
    ) -> OutputBuffers:
        return self._run(self._planned(inputs, config, out), inputs, out, timed=False).outputs

    def bind(self, plan: DispatchPlan, config: DispatchConfig) -> Bound:
        whole = _Whole(plan, config, self._limits)
        return Bound(
            lambda inputs, out: self._run(whole, inputs, out, timed=False).outputs,
            lambda inputs, out: self._run(whole, inputs, out, timed=True),
            lambda inputs, out: ReadyPending(self._run(whole, inputs, out, timed=False).outputs),
        )

    def decisions(self, plan: DispatchPlan, config: DispatchConfig, memory: str) -> Sequence[Decision]:
        return ()  # each launch has code of its own

    def dispatch_timed(
        self, inputs: Sequence[Buffer], config: DispatchConfig | None = None, *, out: Sequence[Buffer] | None = None
    ) -> TimedDispatchResult:
        """The device's times are sums over the launches, where every launch reports its own."""
        return self._run(self._planned(inputs, config, out), inputs, out, timed=True)

    def _planned(self, inputs: Sequence[Buffer], config: DispatchConfig | None, out: Sequence[Buffer] | None) -> _Whole:
        config = self.config if config is None else config
        plan = plan_dispatch(self.program, inputs, config, self._limits.any_grid(), self.backend_id, out=out)
        return _Whole(plan, config, self._limits)

    def _run(
        self, whole: _Whole, inputs: Sequence[Buffer], out: Sequence[Buffer] | None, timed: bool
    ) -> TimedDispatchResult:
        started, plan = time.perf_counter_ns(), whole.plan
        run = _Run(whole, inputs, timed)
        iteration, settled = 0, False
        while iteration < plan.iterations and not settled:
            iteration += 1
            before = dict(run.memory)
            grid = self._grid(plan, run.memory)
            if all(grid):
                self._pass(run, grid)
            settled = not all(grid) or (plan.iterations > 1 and run.same_as(before))
        count_sequence(self.segment_count, run.launches, iteration, fixpoint=settled)
        results = run.results()
        if out is not None:
            targets = list(out)
            replace_output_buffers_preserving_slots(results, targets)
            results = targets
        return TimedDispatchResult(results, time.perf_counter_ns() - started, *run.times)

    def _grid(self, plan: DispatchPlan, memory: dict[str, Buffer]) -> Grid:
        """The grid of the next pass: where it lies in memory, an iteration may change it for the next one."""
        if not plan.indirect:
            grid: Grid = plan.launch.grid
            return grid
        found = resolve_indirect_grid(self.program, [memory[b.name] for b in plan.bindings.inputs])
        assert found is not None
        return check_grid(found, plan.launch.workgroup)

    def _pass(self, run: _Run, grid: Grid) -> None:
        most = self._limits.max_grid_dim
        oversized = any(n > limit for n, limit in zip(grid, most, strict=True))
        for k, stage in self._stages:
            code = self._code(k, stage, oversized, run)
            for first, size in boxes(grid, most):
                where = f"segment {k} of {self.segment_count}"
                if oversized:
                    where += f", workgroups {first} and on"
                try:
                    self._require_current(code)
                    run.launch(code, first, size)
                except VyreError as e:
                    e.context.setdefault("launch", where)
                    raise
                except Exception as e:
                    raise DispatchFailed(
                        f"backend {self.backend_id} raised {type(e).__name__} in {where}: {e}",
                        fix="read the chained error, and correct the backend or what it was given",
                        backend=self.backend_id,
                        pipeline=self.id,
                    ) from e

    def _require_current(self, code: _StageCode) -> None:
        """Raise if the device was lost or recovered between two launches: the memory of the first one is gone."""
        state = self.backend.device_state
        if code.entry.epoch != self.backend.pipelines.epoch:
            raise state.refusal(pipeline=self.id)

    def _code(self, k: int, stage: Program, oversized: bool, run: _Run | None = None) -> _StageCode:
        found = self._codes.get((k, oversized))
        if found is None:
            program, base = based_program(stage) if oversized else (stage, None)
            config = self.config if run is None else run.in_time(self.config)
            found = self._codes[k, oversized] = _StageCode(
                self._find(self.backend, program, config),
                program,
                tuple(b.name for b in program.host_inputs),
                tuple(b.name for b in program.host_outputs),
                base,
            )
        return found


class _Whole:
    """A dispatch that was planned, and its launches, each bound once: memory between them has lengths of the plan."""

    def __init__(self, plan: DispatchPlan, config: DispatchConfig, limits: LaunchGeometryLimits) -> None:
        self.plan, self.timeout, self._limits = plan, config.timeout, limits
        self._config = config.for_one_launch()
        self._launches: dict[tuple[int, Grid], tuple[PlannedDispatch, DispatchConfig, Bound]] = {}

    def launch(
        self, code: _StageCode, grid: Grid, inputs: Sequence[Buffer]
    ) -> tuple[PlannedDispatch, DispatchConfig, Bound]:
        key = id(code), grid  # code is kept by its pipeline, which outlives this
        found = self._launches.get(key)
        if found is None:
            native, config = code.entry.native, self._config.with_(grid_override=grid)
            plan = plan_dispatch(code.program, inputs, config, self._limits, native.backend_id)
            found = plan, config, native.bind(plan, config)
            keep(self._launches, key, found, _MAX_LAUNCHES)
        return found


class _Run:
    """One dispatch: the memory by name, the time left, and what the launches cost."""

    def __init__(self, whole: _Whole, inputs: Sequence[Buffer], timed: bool) -> None:
        begun = time.monotonic()
        self.whole, self.timed, self.plan = whole, timed, whole.plan
        self.memory: dict[str, Buffer] = {}
        for b in self.plan.bindings.bindings:
            if b.input_index is not None:
                self.memory[b.name] = inputs[b.input_index]
            elif b.role is not BindingRole.SHARED:
                self.memory[b.name] = reserve_bytes(b.nbytes, f"buffer {b.name!r}")
        self.given = dict(self.memory)
        self.launches = 0
        self.deadline = None if whole.timeout is None else begun + whole.timeout
        self._written: set[str] = set()
        self._times: list[int | None] = [0, 0, 0]

    @property
    def times(self) -> list[int | None]:
        """Nanoseconds on the device, enqueueing and waiting, as far as every launch said."""
        return self._times if self.timed and self.launches else [None, None, None]

    def launch(self, code: _StageCode, first: Grid, size: Grid) -> None:
        memory, native = self.memory, code.entry.native
        inputs = [memory[name] if name != code.base else self._base(first) for name in code.inputs]
        plan, config, bound = self.whole.launch(code, size, inputs)
        if self.deadline is not None:
            bound = native.bind(plan, self.in_time(config))
        if self.timed:
            result = bound.timed(inputs, None)
            outputs: Any = result.outputs
            told = result.device_ns, result.enqueue_ns, result.wait_ns
            self._times = [None if a is None or b is None else a + b for a, b in zip(self._times, told, strict=True)]
        else:
            outputs = bound.run(inputs, None)
        self.launches += 1
        wanted = [memoryview(memory[name]).nbytes for name in code.outputs]
        if not isinstance(outputs, list) or [memoryview(b).nbytes for b in outputs] != wanted:
            raise DispatchFailed(
                f"backend {native.backend_id} broke its contract: it did not return buffers of {wanted} bytes",
                fix="correct the backend's dispatch: return every output of exactly the planned length",
                pipeline=native.id,
            )
        memory.update(zip(code.outputs, outputs, strict=True))
        self._written.update(code.outputs)

    def _base(self, first: Grid) -> bytes:
        ids = (n * lanes for n, lanes in zip(first, self.plan.launch.workgroup, strict=True))
        return struct.pack("<6I", *first, *ids)

    def in_time(self, config: DispatchConfig) -> DispatchConfig:
        """The config with the time that is left, where there is a deadline."""
        if self.deadline is None:
            return config
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise expired()
        return config.with_(timeout=left)

    def same_as(self, before: dict[str, Buffer]) -> bool:
        """Whether the launches since then have left every byte as it was."""
        memory = self.memory  # a buffer that a backend changed in place has lost its old bytes
        return all(memory[n] is not before[n] and bytearray(before[n]) == memory[n] for n in self._written)

    def results(self) -> OutputBuffers:
        """The host's outputs in slot order, in memory that is not the caller's."""
        found = OutputBuffers()
        for b in self.plan.bindings.outputs:
            data = self.memory[b.name]
            if b.output_byte_range is not None:
                start, end = b.output_byte_range
                data = bytearray(data)[start:end]
            elif data is self.given[b.name]:
                data = bytearray(data)
            found.append(data)
        return found
