"""Resident memory of a device, and dispatches over it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ..driver.contract.values import (
    U32_MAX,
    DispatchConfig,
    HostResource,
    ResidentDispatchStep,
    ResidentHandle,
    ResidentReadRange,
    ResidentSequenceTiming,
    Resource,
    whole,
)
from ..driver.counters import count_decision
from ..driver.plan.launch import LaunchPlan, resolve_fixpoint_iterations
from ..driver.policy.overlap import Wait
from ..driver.resident.arms import waits_of
from ..foundation.integers import round_up
from .device import Batch, Command, Device, Launch, Memory, Ticket, Zero
from .memory_pool import MemoryPool, Piece
from .resident_memory import ResidentMemory, Resources, Upload
from .work import DeviceLaunches, Work, plain, settle

if TYPE_CHECKING:
    from ..driver.contract.values import OutputBuffers
    from .backend import OffloadBackend, Session
    from .pipeline import OffloadPipeline

_SHARE = 9, 10
"""How much of a device's memory may be resident; the rest is for other buffers."""
_MAX_COMMANDS = 1024
"""Steps with more of them are not kept."""
_PART_COMMANDS = 256
"""When steps are repeated, so many commands go to the device together."""
_PARTS_AHEAD = 4
"""So many of such parts may wait in its queue."""


class Residents(ResidentMemory[Piece]):
    """The resident memory of one device."""

    def __init__(self, device: Device, pool: MemoryPool, backend: str) -> None:
        super().__init__(backend)
        self._device, self._pool = device, pool

    @property
    def device_limit(self) -> int:
        parts, of = _SHARE
        return self._device.memory_bytes * parts // of

    def zeros(self, nbytes: int) -> Piece:
        piece = self._pool.take(nbytes)
        batch = self._device.batch()
        batch.zero(piece.memory, 0, round_up(nbytes, 4))
        batch.submit()
        return piece

    def adopt(self, memory: Memory, nbytes: int) -> ResidentHandle:
        """Memory of another library, which is not freed with its handle."""
        return self.keep(Piece(memory, nbytes), nbytes, own=False)

    def end(self, handle: ResidentHandle) -> int:
        """Where memory ends that must not be written. Behind our own there is room up to the next word."""
        return handle.nbytes + (handle.id in self._adopted)

    def release(self, memory: Piece) -> None:
        self._pool.give_after(self._device.batch().submit(), [memory])  # its last use may not have been waited for

    def close(self) -> None:
        """Release everything."""
        with self._lock:
            pieces, self._kept, self.nbytes = self._kept, {}, 0
        for id, piece in pieces.items():
            if id not in self._adopted:
                self._device.release(piece.memory)

    def write(self, uploads: Sequence[Upload]) -> None:
        batch = self._device.batch()
        for handle, piece, offset, data in uploads:
            if data.nbytes:
                batch = self.write_within(batch, piece.memory, offset, data, handle.nbytes)
        batch.submit().wait(None)

    def read(self, reads: Sequence[tuple[Piece, int, int]], into: Sequence[memoryview | None]) -> Sequence[Any]:
        batch = self._device.batch()
        for piece, offset, nbytes in reads:
            batch.read(piece.memory, offset, nbytes)
        return batch.submit().take(into)

    def write_within(self, batch: Batch, memory: Memory, offset: int, data: memoryview, end: int) -> Batch:
        """Write bytes whose neighbours, up to `end`, stay as they are. The batch to go on with."""
        stop = offset + data.nbytes
        if not self._device.writes_words or (offset % 4 == 0 and (stop % 4 == 0 or stop == end)):
            batch.lend(memory, offset, data)
            return batch
        first, last = offset - offset % 4, round_up(stop, 4)
        batch.read(memory, first, 4)
        batch.read(memory, last - 4, 4)
        head, tail = batch.submit().take([None, None])  # after whatever was written to these words before
        words = bytearray(last - first)
        words[:4], words[-4:] = head, tail  # in this order: they may be the same word
        words[offset - first : stop - first] = data
        following = self._device.batch()
        following.write(memory, first, memoryview(words))
        return following


class Bound:
    """A program over resources: its launches, its memory, and what to do before it is launched."""

    def __init__(
        self,
        pipeline: OffloadPipeline,
        resources: Sequence[Resource],
        config: DispatchConfig,
        work: Work,
        *,
        may_allocate: bool,
    ) -> None:
        """`may_allocate`: outputs that the caller gives no memory for are allocated, else they are refused."""
        self.session = session = pipeline.session
        residents = session.residents
        self._resources = given = Resources(residents, pipeline.program, resources, may_allocate=may_allocate)
        self.launches = self._planned(pipeline, config)
        views = [plain(r.data) if isinstance(r, HostResource) else None for r in given.given]
        self.launches.require_possible(pipeline.backend, views)
        self.memories: list[Memory] = []
        self._uploads: list[tuple[int, memoryview]] = []
        self._ends: list[int] = []
        placed = given.placed(self.launches.bound)
        try:
            for slot, (b, r, handle, piece) in enumerate(placed):
                if isinstance(r, HostResource) and b.input_index is not None and b.nbytes:
                    self._uploads.append((slot, plain(r.data)))
                self.memories.append(work.take(b.nbytes) if piece is None else piece.memory)
                self._ends.append(b.nbytes if handle is None else residents.end(handle))
        except BaseException:
            self.undo()
            raise
        self.zeros = [
            slot
            for slot, b in enumerate(self.launches.bound)
            if b.input_index is None and b.nbytes and slot not in self.launches.proved
        ]

    @property
    def outputs(self) -> list[ResidentHandle]:
        return self._resources.outputs

    def _planned(self, pipeline: OffloadPipeline, config: DispatchConfig) -> DeviceLaunches:
        code = pipeline.require_open()
        memory = "resident" if self._resources.all_resident else "both"
        key = config, memory, tuple(self._resources.sizes)
        known = pipeline.resident_launches.get(key)
        if known is not None:
            return known
        program, sized = pipeline.program, self._resources.sized(config)
        indirect = (0, 0, 0) if program.indirect is not None else None
        launch = LaunchPlan.prepare(
            program, sized, config, pipeline.limits, indirect=indirect, backend=pipeline.backend_id
        )
        launches = DeviceLaunches(
            pipeline.backend,
            self.session.device,
            code,
            pipeline.built.facts,
            sized,
            launch,
            resolve_fixpoint_iterations(config, pipeline.backend_id),
            program.indirect,
            grid_known=program.indirect is None,
            memory=memory,
            timed=config.timeout is not None,
        )
        count_decision(launches.recording)
        pipeline.remember_launches(key, launches)
        return launches

    def commands(self) -> list[Command]:
        """All of a dispatch over this memory, where the host has no part in it; else nothing."""
        launches = self.launches
        if launches.host_part is not None:
            return []
        assert launches.parts is not None
        found: list[Command] = []
        for slot in self.zeros:
            nbytes = launches.bound[slot].nbytes
            if nbytes < self._ends[slot] and (nbytes % 4 or launches.bound[slot].element_size % 4):
                return []  # there are neighbours within a word
            found.append(Zero(self.memories[slot], 0, round_up(nbytes, 4)))
        each = [Launch(launches.code, self.memories, launches.lengths, base, grid) for base, grid in launches.parts]
        return found + each * launches.iterations

    def upload(self, work: Work) -> None:
        """What the host gives, once."""
        for slot, data in self._uploads:
            work.batch.lend(self.memories[slot], 0, data)

    def zero(self, work: Work) -> None:
        """Outputs read as zero wherever the program does not store."""
        for slot in self.zeros:
            nbytes = self.launches.bound[slot].nbytes
            odd = nbytes % 4 if nbytes < self._ends[slot] else 0
            work.batch.zero(self.memories[slot], 0, round_up(nbytes - odd, 4))
            if odd:
                data = memoryview(bytes(odd))
                work.batch = self.session.residents.write_within(
                    work.batch, self.memories[slot], nbytes - odd, data, self._ends[slot]
                )

    def undo(self) -> None:
        """Free the outputs of a dispatch that failed."""
        self._resources.undo()


def dispatch_over(
    pipeline: OffloadPipeline, resources: Sequence[Resource], config: DispatchConfig | None
) -> list[ResidentHandle]:
    """Run a program once over resources; the memory of its outputs, in their order."""
    settled = pipeline.config if config is None else config
    work = Work(pipeline.session, timeout=settled.timeout)
    try:
        bound = Bound(pipeline, resources, settled, work, may_allocate=True)
        launches = bound.launches
        try:
            commands = [] if settled.timeout is not None else bound.commands()
            if commands:
                go = _ready(pipeline.session.device, commands)
                pipeline.keep_launched(
                    config, [r for r in resources if isinstance(r, ResidentHandle)], go, bound.outputs
                )
            bound.upload(work)
            bound.zero(work)
            work.launch(launches, work.armed(launches, bound.memories))
            work.submit()
            work.finish([])
        except BaseException:
            bound.undo()
            raise
    finally:
        work.release()
    return list(bound.outputs)


def run_steps(
    backend: OffloadBackend,
    session: Session,
    steps: Sequence[ResidentDispatchStep],
    reads: Sequence[ResidentReadRange],
    repeat: int,
    *,
    timed: bool,
) -> tuple[OutputBuffers, ResidentSequenceTiming | None]:
    """Run steps in order, all of it `repeat` times, with one wait at the end."""
    begun = time.monotonic()
    turns = whole("repeat", repeat, U32_MAX) or 0
    runs: Runs | None = (
        None if timed or session.left is not None else session.residents.kept_steps(turns, steps, times=turns)
    )
    if runs is not None and not reads:
        _run_again(session, runs, ())
        return [], None
    reading = session.residents.reading(reads)
    ranges = [(piece.memory, offset, nbytes) for piece, offset, nbytes in reading.copies]
    if runs is not None:
        return reading.results(_run_again(session, runs, ranges), None), None
    session.residents.reuse.bound(session.residents.uses_of(steps), turns)
    bounds: list[Bound] = []
    work = Work(session, timed=timed)
    try:
        for step in steps:
            pipeline, settled = backend.step_pipeline(step)
            bounds.append(Bound(cast("OffloadPipeline", pipeline), step.resources, settled, work, may_allocate=False))
        if not timed and (runs := _runs(session, steps, bounds, turns)):
            session.residents.keep_steps(turns, steps, runs)
            return reading.results(_run_again(session, runs, ranges), None), None
        armed = [work.armed(bound.launches, bound.memories) for bound in bounds]
        for bound in bounds:
            bound.upload(work)
        may_trap = False
        for _ in range(turns):
            for bound, memories in zip(bounds, armed, strict=True):
                if may_trap:
                    work.require_no_trap()  # as one dispatch after the other would
                bound.zero(work)
                work.launch(bound.launches, memories)
                may_trap = bool(bound.launches.facts.traps)
        work.submit(ranges)
        found = work.finish([None] * len(ranges))
    finally:
        work.release()
    outputs = reading.results(found, None)
    if not timed:
        return outputs, None
    wall_ns = int((time.monotonic() - begun) * 1e9)
    return outputs, ResidentSequenceTiming(wall_ns, work.device_ns, work.enqueue_ns, work.wait_ns)


Runs: TypeAlias = list[tuple[Callable[[], Ticket], int]]
"""What to do, and how often."""


def _runs(session: Session, steps: Sequence[ResidentDispatchStep], bounds: Sequence[Bound], turns: int) -> Runs:
    """Steps, so many times, in as few parts as can be repeated; nothing if the host has a part in one of the steps."""
    device, commands = session.device, [bound.commands() for bound in bounds]
    once = [command for each in commands for command in each]
    if not all(commands) or not once or not turns or len(once) > _MAX_COMMANDS:
        return []
    each = min(turns, max(1, _PART_COMMANDS // len(once)))
    times, left = divmod(turns, each)
    apart = not any(bound.launches.facts.whole for bound in bounds)  # such fill the device alone

    def part(size: int) -> Callable[[], Ticket]:
        order = waits_of(list(steps) * size, session.residents.is_adopted) if apart else None
        return _ready(device, once * size, None if order is None else _after(order, [len(c) for c in commands] * size))

    found = [(part(each), times)]
    return [*found, (part(left), 1)] if left else found


def _after(order: Sequence[Sequence[Wait]], lengths: Sequence[int]) -> list[tuple[int, ...]] | None:
    """For each command the ones that it waits for, where steps are so many commands each; None if all are in order."""
    ends = list(accumulate(lengths))
    found: list[tuple[int, ...]] = []
    for k, waited in enumerate(order):
        found.append(tuple(ends[w.step] - 1 for w in waited))
        found += [(at,) for at in range(ends[k] - lengths[k], ends[k] - 1)]
    in_order = all(k - 1 in waited for k, waited in enumerate(found) if k)
    return None if in_order else found


def _run_again(session: Session, runs: Runs, reads: Sequence[tuple[Memory, int, int]]) -> Sequence[Any]:
    """Run work that was kept, then its readings. Without any, the caller does not wait where the device keeps order."""
    for go, times in runs:
        for k in range(1, times + 1):
            ticket = go()
            if k % _PARTS_AHEAD == 0:
                settle(session, ticket)
    if not reads and session.device.keeps_order:
        return []
    work = Work(session)
    work.submit(reads)
    return work.finish([None] * len(reads))


def _ready(
    device: Device, commands: Sequence[Command], after: Sequence[Sequence[int]] | None = None
) -> Callable[[], Ticket]:
    first = commands[0]
    if len(commands) == 1 and isinstance(first, Launch) and not any(first.base):
        return device.ready(first.code, first.memories, first.lengths, first.grid)
    return device.sequence(commands, after)
