"""The scalar engine: one invocation, one statement at a time. Exact, slow, and the definition of right.

It runs any schedule, sees races and counts what out-of-bounds rules absorb. An invocation is a program counter and a
list of registers (see `tape`), so switching between invocations costs nothing and all of them can be alive at once.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

from ....driver.contract.traps import Noted
from ....errors import DeadlineExceeded, DispatchFailed, InvalidProgram, StepLimitExceeded, Trap
from ....foundation.check.requirements import meets
from ....foundation.ir.program import Program
from ....foundation.meaning.subgroup import SUBGROUP_WIDTH
from .memory import BufferState, Grid, Memory, OobReport, Options, Outcome
from .operations import DETECTOR, GID, LANE, LID, OOB, SUBGROUP_LANE, WG, BufferRegisters
from .races import Detector, Location
from .tape import Kind, Meeting, Tape, compile_tape

CHECK_EVERY = 1024
"""Steps between two looks at the clock."""


def execute(program: Program, memory: Memory, grid: Grid, options: Options) -> Outcome:
    """Run a valid program over `grid` workgroups, changing `memory` in place."""
    return Run(program, memory, grid, options).run()


class Group:
    """A workgroup in progress. `epoch` counts the barriers it has passed."""

    __slots__ = ("at_barrier", "epoch", "index", "lanes", "live")

    def __init__(self, index: int) -> None:
        self.index = index
        self.epoch = 0
        self.lanes: list[Invocation] = []
        self.live = 0
        self.at_barrier = 0


class _Subgroup:
    """Up to 32 lanes with consecutive local ids; `lanes` keeps those that have ended as well."""

    __slots__ = ("arrived", "lanes", "live")

    def __init__(self) -> None:
        self.lanes: list[Invocation] = []
        self.live = 0
        self.arrived = 0


class Invocation:
    """An invocation. `waits` is the kind of step it waits at, END when it is done, NEXT when it can run."""

    __slots__ = ("gid", "group", "pc", "pending", "registers", "subgroup", "waits")

    def __init__(self, gid: Grid, group: Group, subgroup: _Subgroup, registers: list[Any]) -> None:
        self.gid, self.group, self.subgroup, self.registers = gid, group, subgroup, registers
        self.pc = 0
        self.waits = Kind.NEXT
        self.pending: dict[str, tuple[BufferRegisters, int, bytes]] = {}


class Run:
    def __init__(self, program: Program, memory: Memory, grid: Grid, options: Options) -> None:
        self.program, self.memory, self.grid, self.options = program, memory, grid, options
        self.detector = Detector() if options.detect_races else None
        self.tape: Tape = compile_tape(program, options.detect_races)
        self.oob = [0, 0, 0]
        self.steps = 0
        self.next_check = 0
        self.noted = Noted()
        self.waits = meets(program)
        self.single = options.schedule.kind in ("seeded", "lockstep")
        self.backwards = options.schedule.kind == "reversed"
        self.ready: deque[Invocation] | list[Invocation] = deque()
        self.live = 0
        self.at_grid_barrier = 0
        self.alive: list[Group] = []
        self.blank = list(self.tape.blank)
        self.blank[OOB], self.blank[DETECTOR] = self.oob, self.detector
        self.bind(self.blank, memory.buffers)

    def run(self) -> Outcome:
        self.check()
        groups = self.groups()
        if self.single:
            self.interleave(groups)
        elif self.tape.has_grid_barrier:
            self.drain(list(groups))
        else:
            for group in groups:
                self.drain([group])
        trap = self.noted.trap()
        if self.detector is None:
            return Outcome(OobReport(*self.oob), trap=trap, steps=self.steps)
        return Outcome(OobReport(*self.oob), tuple(self.detector.races), self.detector.seen, trap, self.steps)

    # -- workgroups

    def groups(self, first: int = 0, last: int | None = None) -> Iterator[Group]:
        """Workgroups in the order of the schedule, x fastest, each made when it is asked for; all, or some of them."""
        gx, gy, gz = self.grid
        count = gx * gy * gz
        for k in range(first, count if last is None else last):
            self.check()  # here too, because a statement-free program takes no steps
            index = count - 1 - k if self.backwards else k
            yield self.open_group(index, (index % gx, index // gx % gy, index // (gx * gy)))

    def open_group(self, index: int, wg: Grid) -> Group:
        group = Group(index)
        blank = self.blank.copy()
        self.bind(blank, self.memory.shared())
        blank[WG : WG + 3] = wg
        sx, sy, sz = self.program.workgroup_size
        subgroup = _Subgroup()
        for linear, (z, y, x) in enumerate(product(range(sz), range(sy), range(sx))):
            lane_id = linear % SUBGROUP_WIDTH
            if not lane_id:
                subgroup = _Subgroup()
            registers = blank.copy()
            gid = (wg[0] * sx + x, wg[1] * sy + y, wg[2] * sz + z)
            registers[GID : GID + 3] = gid
            registers[LID : LID + 3] = x, y, z
            registers[SUBGROUP_LANE] = lane_id
            lane = registers[LANE] = Invocation(gid, group, subgroup, registers)
            subgroup.lanes.append(lane)
            subgroup.live += 1
            group.lanes.append(lane)
        group.live = len(group.lanes)
        self.live += group.live
        return group

    def bind(self, registers: list[Any], states: dict[str, BufferState]) -> None:
        for b in self.tape.buffers:
            state = states.get(b.decl.name)
            if state is not None:
                locations: dict[int, Location] = {}
                registers[b.data], registers[b.length], registers[b.locations] = state.data, state.count, locations

    # -- schedules

    def in_order(self, lanes: list[Invocation]) -> list[Invocation]:
        return lanes[::-1] if self.backwards else lanes

    def drain(self, groups: list[Group]) -> None:
        """Each lane runs until it must wait, in lane order."""
        self.alive = groups
        ready = self.ready = deque(lane for group in groups for lane in self.in_order(group.lanes))
        while ready:
            self.advance(ready.popleft())
        self.check_ended()

    def interleave(self, groups: Iterable[Group]) -> None:
        """Lanes of all workgroups take turns of one step each, one after the other or drawn at random."""
        self.alive = list(groups)
        lanes = [lane for group in self.alive for lane in group.lanes]
        if self.options.schedule.kind == "lockstep":
            self.take_turns(deque(lanes))
        else:
            self.draw_lots(lanes)
        self.check_ended()

    def take_turns(self, ready: deque[Invocation]) -> None:
        self.ready = ready
        while ready:
            lane = ready.popleft()
            if self.advance(lane):
                ready.append(lane)

    def draw_lots(self, ready: list[Invocation]) -> None:
        self.ready = ready
        draw = random.Random(self.options.schedule.seed).random
        while ready:
            k = int(draw() * len(ready))
            ready[k], ready[-1] = ready[-1], ready[k]
            lane = ready.pop()
            if self.advance(lane):
                ready.append(lane)

    def check_ended(self) -> None:
        stuck = [lane for group in self.alive for lane in group.lanes if lane.waits is not Kind.END]
        if stuck:
            site = self.tape.steps[stuck[0].pc].site
            raise InvalidProgram(
                f"{len(stuck)} invocation(s) wait at {site.place} for others that will not come",
                fix="move the barrier or subgroup operation out of divergent control flow",
                invocation=stuck[0].gid,
            )

    def check(self) -> None:
        """Enforce the limits; called between workgroups and whenever the step count reaches `next_check`."""
        limit, deadline = self.options.max_steps, self.options.deadline
        if limit is not None and self.steps > limit:
            raise StepLimitExceeded(
                "the program took more steps than allowed",
                fix="raise max_steps, or look for a loop that does not end",
                max_steps=limit,
            )
        if deadline is not None and time.monotonic() > deadline:
            raise DeadlineExceeded("the program did not end in time", fix="allow more time, or do less in one dispatch")
        self.next_check = self.steps + CHECK_EVERY if limit is None else min(self.steps + CHECK_EVERY, limit + 1)

    # -- one lane

    def advance(self, lane: Invocation) -> bool:
        """Run until the lane must wait or is done or, where lanes take turns, for one step.

        True when the lane's turn ended, False when the lane stopped.
        """
        code, single, registers, pc = self.tape.steps, self.single, lane.registers, lane.pc
        while True:
            ops, kind, arg, arg2, target, other, weight, _ = code[pc]
            self.steps += weight
            if self.steps >= self.next_check:
                self.check()
            try:
                for op in ops:
                    op(registers)
            except Trap as e:
                if self.waits and self.detector is None:
                    raise
                self.noted.add(e.first)
                lane.pending.clear()
                kind = Kind.END
            if kind is Kind.NEXT:
                pc = target
            elif kind is Kind.BRANCH:
                pc = target if registers[arg] else other
            elif kind is Kind.LOOP_NEXT:
                registers[arg] += 1
                pc = target if registers[arg] < registers[arg2] else other
            elif kind is Kind.LOOP_ENTER:
                pc = target if registers[arg] < registers[arg2] else other
            else:
                lane.pc, lane.waits = pc, kind
                self.stop(lane, kind)
                return False
            if single:
                lane.pc = pc
                return True

    def stop(self, lane: Invocation, kind: Kind) -> None:
        """The lane waits or is done; let go the lanes that waited for just this."""
        group, subgroup = lane.group, lane.subgroup
        if kind is Kind.END:
            self.end(lane)
        elif kind is Kind.BARRIER:
            group.at_barrier += 1
        elif kind is Kind.GRID_BARRIER:
            self.at_grid_barrier += 1
        else:
            subgroup.arrived += 1
        if subgroup.arrived and subgroup.arrived == subgroup.live:
            subgroup.arrived = 0
            self.meet(subgroup)
        if group.at_barrier and group.at_barrier == group.live:
            group.at_barrier = 0
            group.epoch += 1
            self.release(lane for lane in self.in_order(group.lanes) if lane.waits is Kind.BARRIER)
        if self.at_grid_barrier and self.at_grid_barrier == self.live:
            self.at_grid_barrier = 0
            if self.detector is not None:
                self.detector.grid_epoch += 1
            self.release(lane for g in self.alive for lane in self.in_order(g.lanes) if lane.waits is Kind.GRID_BARRIER)

    def end(self, lane: Invocation) -> None:
        if lane.pending:
            tag = next(iter(lane.pending))
            raise DispatchFailed(
                f"an invocation ended while async copy {tag!r} was in flight",
                fix="wait for the copy on every path to the end",
                invocation=lane.gid,
            )
        lane.group.live -= 1
        lane.subgroup.live -= 1
        self.live -= 1
        lane.registers.clear()  # an ended lane of a large grid should cost little

    def meet(self, subgroup: _Subgroup) -> None:
        """All live lanes stand at a subgroup operation: compute it and let them go."""
        here = [lane for lane in subgroup.lanes if lane.waits is Kind.SUBGROUP]
        meeting: Meeting = self.tape.steps[here[0].pc].arg
        values: list[Any] = [None] * SUBGROUP_WIDTH
        for k, lane in enumerate(subgroup.lanes):
            if lane.waits is Kind.SUBGROUP:
                values[k] = tuple(lane.registers[o] for o in meeting.operands)
        self.release(self.in_order(here))
        for lane, value in zip(subgroup.lanes, meeting.settle(values), strict=False):
            if lane.waits is not Kind.END:
                lane.registers[meeting.result] = value

    def release(self, lanes: Iterable[Invocation]) -> None:
        """Let lanes go on that have met at one step."""
        met = list(lanes)
        pc = met[0].pc
        step = self.tape.steps[pc]
        for lane in met:
            if lane.pc != pc:
                first, second = step.site.place, self.tape.steps[lane.pc].site.place
                raise InvalidProgram(
                    f"invocations of one workgroup wait at two places, {first} and {second}",
                    fix="move the barrier or subgroup operation out of divergent control flow",
                    invocation=lane.gid,
                )
            lane.pc, lane.waits = step.target, Kind.NEXT
        self.ready.extend(met)
