"""A compiled program and its dispatches, over memory of the caller or over memory that stays on the device."""

from __future__ import annotations

import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ..driver.contract.pending import PendingDispatch
from ..driver.contract.pipeline import DispatchPlan
from ..driver.contract.traps import require_no_trap
from ..driver.contract.values import (
    Dims,
    DispatchConfig,
    OutputBuffers,
    ResidentHandle,
    Resource,
    TimedDispatchResult,
    named,
)
from ..driver.counters import count_decision
from ..driver.plan.compaction import ResultSlot, plan_result_compaction
from ..driver.plan.outputs import OutputSlot, replace_output_buffers_preserving_slots
from ..driver.policy.decision import Decision
from ..driver.policy.launch import NEVER, RECORDED, WHEN_REPEATED
from ..errors import DeviceLost, VyreError
from ..foundation.integers import round_up
from ..foundation.ir.program import Program
from ..foundation.memo import keep
from .device import Artifact, Code, Device, Slot, SmallDispatch, Ticket
from .native import NativePipeline
from .resident import dispatch_over
from .work import DeviceLaunches, Work, plain, settle

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .backend import OffloadBackend, Session

_MAX_RESIDENT_LENGTHS = 64
"""Combinations of lengths of resident memory that a pipeline remembers."""
_NEVER = -sys.maxsize
_WORD = 4
_RECORDED = Decision("recording", RECORDED, "one call copies its inputs, launches it and copies its results")


class _Planned:
    """A dispatch over memory of the caller: its launches, and what goes to the device and comes back."""

    __slots__ = (
        "__weakref__", "counted", "first", "inputs", "launches", "outputs", "plan", "reads", "recording", "repeats",
        "runs", "small_dispatch", "zeros",
    )  # fmt: skip

    def __init__(self, launches: DeviceLaunches, plan: DispatchPlan) -> None:
        self.launches, self.plan = launches, plan
        self.recording = launches.recording
        """The decision, or its outcome by now."""
        self.first = int(launches.recording.numbers.get("first_recorded_run", 0))
        self.runs = 0 if launches.recording.choice == WHEN_REPEATED else _NEVER
        """So far; below zero where the device has no faster way."""
        self.repeats: list[_Repeat] = []
        """The faster way, unless a thread has taken it or there is none."""
        self.small_dispatch: weakref.ref[SmallDispatch] | None = None
        """That of the faster way, wherever it is."""
        bound = list(enumerate(launches.bound))
        self.inputs = [(slot, b.input_index) for slot, b in bound if b.input_index is not None and b.nbytes]
        self.zeros = [
            (slot, round_up(b.nbytes, 4))
            for slot, b in bound
            if b.input_index is None and b.nbytes and slot not in launches.proved
        ]
        self.outputs = []
        for slot, b in bound:
            if b.output_index is not None:
                start, end = b.output_byte_range or (0, b.nbytes)
                self.outputs.append((slot, start, end - start))
        self.counted = {each.output: each for each in plan.counted}
        self.reads = [row for k, row in enumerate(self.outputs) if row[2] and k not in self.counted]
        """What is read at once; of outputs that are counted, what counts is read after that."""

    @property
    def is_recorded(self) -> bool:
        return self.small_dispatch is not None and self.small_dispatch() is not None

    def take(self, session: Session) -> _Repeat | None:
        """The device's faster way, if there is one by now and no other thread uses it."""
        try:
            return self.repeats.pop()
        except IndexError:
            pass
        if self.is_recorded:
            return None  # another thread has it
        self.runs += 1
        if self.runs < self.first:
            return None
        self.runs = _NEVER
        try:
            made = self._prepared(session.device)
        except DeviceLost:
            raise
        except VyreError as e:  # the plain way may still go, and says what is wrong if not
            logging.getLogger("vyre.offload").info("a small dispatch stays slow: %s", e)
            self._settle(Decision("recording", NEVER, f"the device refused: {e.message}"))
            return None
        if made is None:
            self._settle(Decision("recording", NEVER, "the device refused"))
            return None
        self.runs, self.small_dispatch = 0, weakref.ref(made.small_dispatch)
        self._settle(_RECORDED)
        session.keep(self)
        return made

    def _settle(self, recording: Decision) -> None:
        self.recording = recording
        count_decision(recording)

    def give(self, repeat: _Repeat) -> None:
        """For the next one, unless it was lost meanwhile."""
        if self.small_dispatch is not None and self.small_dispatch() is repeat.small_dispatch:
            self.repeats.append(repeat)

    def lose(self) -> None:
        """Have none, until it is worth one again."""
        self.runs, self.small_dispatch, self.recording = 0, None, self.launches.recording
        self.repeats.clear()

    def _prepared(self, device: Device) -> _Repeat | None:
        launches, words = self.launches, self.launches.trap_words
        filled, zero = ({row[0] for row in rows} for rows in (self.inputs, self.zeros))
        read = {slot for slot, _, n in self.outputs if n}
        slots = [Slot(b.nbytes, k in filled, k in zero, k in read) for k, b in enumerate(launches.bound)]
        if words:
            slots.append(Slot(len(words), True, False, True))
        assert launches.parts is not None
        made = device.small_dispatch(launches.code, slots, launches.lengths, launches.parts * launches.iterations)
        if made is None:
            return None
        views = iter(made.outputs)
        results = [next(views)[start : start + n] if n else memoryview(b"") for _, start, n in self.outputs]
        given = [(view, index) for view, (_, index) in zip(made.inputs, self.inputs, strict=False)]
        if words:
            made.inputs[-1][:] = words
        return _Repeat(made, given, results, next(views) if words else None)


class _Repeat(NamedTuple):
    """A small dispatch, and where a dispatch's inputs, by index, its outputs, and the words of its traps lie in it."""

    small_dispatch: SmallDispatch
    inputs: list[tuple[memoryview, int]]
    outputs: list[memoryview]
    traps: memoryview | None


class OffloadPipeline(NativePipeline[_Planned]):
    """A program that a device has loaded."""

    def __init__(
        self, backend: OffloadBackend, session: Session, program: Program, config: DispatchConfig, built: Artifact
    ) -> None:
        super().__init__(backend, program, config)
        self.backend, self.session, self.built = backend, session, built
        self.nbytes = len(built.image) + len(built.source)
        self._code = session.device.load(built)
        for decided in (*built.facts.decisions, *session.device.decisions(self._code)):
            count_decision(decided)
        self._bound: weakref.WeakSet[_Planned] = weakref.WeakSet()
        self.resident_launches: dict[Any, DeviceLaunches] = {}

    @property
    def source(self) -> str:
        """The kernel, as its compiler got it."""
        return self.built.source

    def serialize(self) -> bytes:
        image = self.built.image or self.session.device.image(self.require_open())
        return replace(self.built, image=image).to_bytes()

    def prepared(self, plan: DispatchPlan, config: DispatchConfig) -> _Planned:
        planned = _Planned(self._launches(plan, config, "host"), plan)
        count_decision(planned.recording)
        if plan.iterations > 1:
            count_decision(planned.launches.convergence)
        self._bound.add(planned)
        return planned

    def _launches(self, plan: DispatchPlan, config: DispatchConfig, memory: str) -> DeviceLaunches:
        code, indirect = self.require_open(), self.program.indirect if plan.indirect else None
        made = plan.bindings, plan.launch, plan.iterations, indirect
        timed = config.timeout is not None
        return DeviceLaunches(
            self.backend, self.session.device, code, self.built.facts, *made, memory=memory, timed=timed
        )

    def run(
        self, prepared: _Planned, config: DispatchConfig, inputs: Sequence[Buffer], out: Sequence[Buffer] | None
    ) -> OutputBuffers:
        begun = time.monotonic()
        self.require_possible(prepared, inputs)
        if config.timeout is None and prepared.runs >= 0:
            found = self._repeated(prepared, inputs, out)
            if found is not None:
                return found
        return collect(prepared, self._submitted(prepared, inputs, config, begun), out)

    def run_timed(
        self, prepared: _Planned, config: DispatchConfig, inputs: Sequence[Buffer], out: Sequence[Buffer] | None
    ) -> TimedDispatchResult:
        begun = time.monotonic()
        self.require_possible(prepared, inputs)
        work = self._submitted(prepared, inputs, config, begun, timed=True)
        outputs = collect(prepared, work, out)
        wall_ns = int((time.monotonic() - begun) * 1e9)
        return TimedDispatchResult(outputs, wall_ns, work.device_ns, work.enqueue_ns, work.wait_ns)

    def start(
        self, prepared: _Planned, config: DispatchConfig, inputs: Sequence[Buffer], out: Sequence[Buffer] | None
    ) -> PendingDispatch:
        begun = time.monotonic()
        targets = None if out is None else list(out)
        self.require_possible(prepared, inputs)
        if config.timeout is None and prepared.launches.is_simple:
            work = self._submitted(prepared, inputs, config, begun, ahead=True)
            return self.backend.watch(WorkPending(prepared, work, targets, config.label))
        given: list[Buffer] = [b if type(b) is bytes else bytes(memoryview(b)) for b in inputs]
        return self.backend.start(lambda: self._started(prepared, given, config, targets, begun))

    def dispatch_resident(
        self, resources: Sequence[Resource], config: DispatchConfig | None = None
    ) -> list[ResidentHandle]:
        again = self.repeats.find(id(config), resources)
        kept = None if again is None else again()
        if kept is not None:
            return kept
        with named((config or self.config).label):
            self.require_open()
            return dispatch_over(self, resources, config)

    def decisions(self, plan: DispatchPlan, config: DispatchConfig, memory: str) -> Sequence[Decision]:
        code = self._code
        if code is None:
            return ()
        about_code = *self.built.facts.decisions, *self.session.device.decisions(code)
        launches = self._launches(plan, config, memory)
        recording, converges = launches.recording, (launches.convergence,) if plan.iterations > 1 else ()
        if memory == "host" and recording.choice == WHEN_REPEATED:
            settled = [p.recording for p in list(self._bound) if p.recording is not recording and p.plan == plan]
            recording = next((r for r in settled if r.choice != WHEN_REPEATED), recording)
        return *about_code, recording, *converges

    def holds(self, grid: Dims) -> bool:
        code = self._code
        if not self.built.facts.whole or code is None:
            return True
        return prod(grid) <= self.session.device.most_together(code)

    def close(self) -> None:
        super().close()
        self.resident_launches.clear()

    # -- for dispatches

    def require_open(self) -> Code:
        self.backend.require(self.session)
        return super().require_open()

    def require_possible(self, planned: _Planned, inputs: Sequence[Buffer]) -> None:
        """Raise if the device is gone, or cannot run the dispatch to its end over these inputs."""
        if self.backend._session is not self.session or self.session.left is not None or self._code is None:
            self.require_open()  # which says what is wrong
        launches = planned.launches
        if launches.depends:
            views = [None if b.input_index is None else plain(inputs[b.input_index]) for b in launches.bound]
            launches.require_possible(self.backend, views)

    def remember_launches(self, key: Any, launches: DeviceLaunches) -> None:
        """A resident dispatch of this config over memory of these lengths was planned."""
        keep(self.resident_launches, key, launches, _MAX_RESIDENT_LENGTHS)

    def keep_launched(
        self,
        config: DispatchConfig | None,
        given: Sequence[ResidentHandle],
        go: Callable[[], Ticket],
        kept: list[ResidentHandle],
    ) -> None:
        """From now on a dispatch over exactly this memory is this work."""
        backend, session, waits = self.backend, self.session, not self.session.device.keeps_order

        def again() -> list[ResidentHandle] | None:
            if backend._session is not session or session.left is not None:
                return None  # there is something to say
            ticket = go()
            if waits:
                settle(session, ticket)
            return kept.copy()

        self.keep_ready(session.residents, config, given, again)

    # -- dispatches of host memory

    def _started(
        self,
        planned: _Planned,
        inputs: Sequence[Buffer],
        config: DispatchConfig,
        out: Sequence[Buffer] | None,
        begun: float,
    ) -> OutputBuffers:
        """On a thread of the backend, some time after it was checked."""
        with named(config.label):
            self.require_open()
            return collect(planned, self._submitted(planned, inputs, config, begun), out)

    def _repeated(
        self, planned: _Planned, inputs: Sequence[Buffer], out: Sequence[Buffer] | None
    ) -> OutputBuffers | None:
        """A dispatch that was made often, in the device's faster way. None where there is none, or it is in use."""
        repeat = planned.take(self.session)
        if repeat is None:
            return None
        ended = True
        try:
            for view, index in repeat.inputs:
                view[:] = plain(inputs[index])
            ended = False  # an error from here on may leave it running
            settle(self.session, repeat.small_dispatch.go())
            ended = True
            if repeat.traps is not None:
                facts = planned.launches.facts
                require_no_trap(facts.traps, repeat.traps, counted=facts.counted)
            if out is None:
                views = list(repeat.outputs)
                for k, counted in planned.counted.items():
                    views[k] = views[k][: counted.nbytes(repeat.outputs)]
                return [bytearray(view) for view in views]
            for view, target in zip(repeat.outputs, out, strict=True):
                plain(target)[:] = view
            return list(out)
        finally:
            if ended:
                planned.give(repeat)
            else:
                planned.lose()

    def _submitted(
        self,
        planned: _Planned,
        inputs: Sequence[Buffer],
        config: DispatchConfig,
        begun: float,
        *,
        timed: bool = False,
        ahead: bool = False,
    ) -> Work:
        """The dispatch after everything was checked, from any thread."""
        launches = planned.launches
        work = Work(self.session, timeout=config.timeout, begun=begun, timed=timed, ahead=ahead)
        try:
            work.memories = memories = work.take_all(launches.pieces)
            batch = work.batch
            send = batch.write if ahead else batch.lend
            for slot, index in planned.inputs:
                send(memories[slot], 0, plain(inputs[index]))
            for slot, nbytes in planned.zeros:
                batch.zero(memories[slot], 0, nbytes)
            work.launch(launches, work.armed(launches, memories) if launches.facts.traps else memories)
            work.submit([(memories[slot], start, n) for slot, start, n in planned.reads])
        except BaseException:
            work.release()
            raise
        return work


def collect(planned: _Planned, work: Work, out: Sequence[Buffer] | None, *, releases: bool = True) -> OutputBuffers:
    """The outputs, once the work is done: new ones, or the caller's. `releases`: its memory is given back then."""
    try:
        if out is not None and OutputSlot not in map(type, out):
            work.finish([plain(o) for o, (_, _, n) in zip(out, planned.outputs, strict=True) if n])
            return list(out)
        found = iter(work.finish([None] * len(planned.reads)))
        counted = planned.counted
        results: OutputBuffers = [
            next(found) if n and k not in counted else bytearray() for k, (_, _, n) in enumerate(planned.outputs)
        ]
        if counted:
            _read_counted(planned, work, results)
    finally:
        if releases:
            work.release()
    if out is None:
        return results
    targets = list(out)
    replace_output_buffers_preserving_slots(results, targets)
    return targets


def _read_counted(planned: _Planned, work: Work, results: OutputBuffers) -> None:
    """What counts of the outputs that are counted, now that it is known how much that is: small ones as one copy."""
    slots = [ResultSlot(k, c.nbytes(results), planned.outputs[k][2]) for k, c in planned.counted.items()]
    chosen = plan_result_compaction(slots, step=_WORD)
    if not chosen.selected_readback_bytes:
        return
    work.go_on()
    memories = {k: work.memories[planned.outputs[k][0]] for k in planned.counted}
    alone = [(slot, nbytes) for slot, nbytes, _ in slots if slot in chosen.direct_slots]
    gathered, reads = chosen.compact_records, []
    if len(gathered) == 1:
        alone, gathered = [*alone, (gathered[0].slot, gathered[0].bytes)], ()
    if gathered:
        together = work.take(round_up(chosen.compact_bytes, _WORD))
        for slot, offset, nbytes in gathered:
            work.batch.copy(memories[slot], 0, together, offset, round_up(nbytes, _WORD))
        reads.append((together, 0, chosen.compact_bytes))
    reads += [(memories[slot], 0, nbytes) for slot, nbytes in alone]
    work.submit(reads)
    found = work.finish([None] * len(reads))
    if gathered:
        whole = memoryview(found.pop(0))
        for slot, offset, nbytes in gathered:
            results[slot] = bytearray(whole[offset : offset + nbytes])
    for (slot, _), data in zip(alone, found, strict=True):
        results[slot] = data


class WorkPending(PendingDispatch):
    """A dispatch that was submitted."""

    def __init__(self, planned: _Planned, work: Work, out: Sequence[Buffer] | None, label: str | None) -> None:
        super().__init__()
        self._planned, self._work, self._out, self._label = planned, work, out, label
        self._lock = threading.Lock()
        self._outcome: tuple[OutputBuffers] | Exception | None = None

    def is_ready(self) -> bool:
        if self._outcome is not None:
            return True
        ticket = self._work.ticket
        assert ticket is not None
        try:
            return ticket.done()
        except VyreError:
            return True  # it has failed; a caller that asks for the result is told

    def settle(self) -> None:
        """Wait for the result and keep it, or the failure, for the handle's holder. Never on a lost device."""
        with suppress(Exception):
            while not self._work.session.lost:
                with suppress(TimeoutError):
                    self._wait(_SLICE_S)
                    return

    def _wait(self, timeout: float | None) -> OutputBuffers:
        ticket = self._work.ticket
        assert ticket is not None
        with self._lock:
            if self._outcome is None:
                try:
                    if not ticket.wait(timeout):
                        raise TimeoutError
                    self._outcome = (self._collected(),)
                except TimeoutError:
                    raise
                except Exception as e:
                    self._outcome = e
                except BaseException:  # a signal: they are taken once more, so that none is lost
                    if self._outcome is None and ticket.done():
                        self._outcome = (self._collected(),)
                    raise
                self._work.release()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome[0]

    def _collected(self) -> OutputBuffers:
        """The outputs of work that is done."""
        with named(self._label):
            return collect(self._planned, self._work, self._out, releases=False)

    def __del__(self) -> None:
        with suppress(Exception):
            self._work.release()


_SLICE_S = 0.1
