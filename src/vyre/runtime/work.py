"""One dispatch on a device: its buffers, its launches, what it reads back, and when it has to end.

Work is recorded and submitted at once wherever the host has no say in between. It has one when a grid lies in memory,
and when there is a deadline: then launches are cut into parts, with a look at the clock after each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any

from ..driver.contract.traps import NUMBERS_AT, require_no_trap, trap_numbers, trap_words
from ..driver.contract.values import Dims
from ..driver.counters import count_settled
from ..driver.pipeline.deadline import expired
from ..driver.plan.binding import BindingPlan, BindingRole
from ..driver.plan.grid import INDIRECT_BYTES, box_count, boxes, check_grid, grid_words, require_grid_within
from ..driver.plan.launch import LaunchPlan
from ..driver.policy.convergence import choose_convergence, looks
from ..driver.policy.launch import choose_recording
from ..errors import CooperativeResidencyExceeded, DeviceOutOfMemory, UnsupportedFeature, VyreError
from ..foundation.integers import ceil_div
from ..foundation.ir.build import Builder
from ..foundation.ir.dtypes import u32
from ..foundation.ir.nodes import BinOp, InvocationId, lit
from ..foundation.ir.ops import AtomicOp, BinaryOp
from ..foundation.ir.program import Program
from ..lower.length_exprs import number
from .device import Batch, Code, Device, LaunchFacts, Memory, Ticket
from .memory_pool import Piece, piece_bytes

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .backend import OffloadBackend, Session

GRACE_S = 0.3
"""How long work that was asked to end is waited for."""
PART_S = 0.02
"""How long a part of a launch should take where there is a deadline."""
FIRST_PART_GROUPS = 64
_MARGIN_S = 0.01
"""Code that reads a clock is given so much more, so that work that ends in time has run to its end."""
_LAUNCHES = 256
"""After so many launches, what was recorded is submitted."""
_EVERY = 32
"""Launches between the first looks whether one changes anything: to compare, and to read a word back, takes the time of
a few."""
_COMPARED_GROUP = 256
_WORD = 4


class DeviceLaunches:
    """The launches of a dispatch over buffers of certain lengths: all that follows from its plan alone."""

    __slots__ = (
        "backend", "bound", "code", "convergence", "count", "depends", "facts", "grid", "grid_known", "host_part",
        "indirect", "iterations", "lengths", "parts", "pieces", "proved", "recording", "trap_words", "written",
    )  # fmt: skip

    def __init__(
        self,
        backend: OffloadBackend,
        device: Device,
        code: Code,
        facts: LaunchFacts,
        bindings: BindingPlan,
        launch: LaunchPlan,
        iterations: int = 1,
        indirect: tuple[str, int] | None = None,
        *,
        grid_known: bool = True,
        memory: str = "host",
        timed: bool = False,
    ) -> None:
        """`indirect` is the buffer that holds the grid, and the byte at which it does; the first grid may be known.

        `memory` is where the buffers are: on the `host`, `resident`, or `both`. `timed`: it has a deadline.
        """
        self.backend, self.code, self.facts, self.iterations = backend, code, facts, iterations
        self.bound = [b for b in bindings.bindings if b.role is not BindingRole.SHARED]
        self.lengths = tuple(b.element_count for b in self.bound)
        self.pieces = tuple(piece_bytes(device, b.nbytes) for b in self.bound)
        self.grid, self.grid_known = launch.grid, grid_known
        self.indirect: tuple[int, int] | None = None
        if indirect is not None:
            name, offset = indirect
            self.indirect = next(k for k, b in enumerate(self.bound) if b.name == name), offset
        line = 0
        if self.indirect is None and prod(launch.grid[1:]) * prod(launch.workgroup[1:]) == 1:
            line = launch.grid[0] * launch.workgroup[0]
        self.proved = frozenset(
            slot for slot, share in facts.stored.items() if self.lengths[slot] <= line * number(share, self.lengths)
        )
        if self.indirect is None:
            self.require_whole(device, launch.grid)
        each = box_count(launch.grid, device.most_groups)
        self.count = iterations * each
        self.parts = tuple(boxes(launch.grid, device.most_groups)) if each <= _LAUNCHES else None
        """What one iteration launches, unless that is too much to write down."""
        self.host_part = self._host_part(memory)
        """Why the host has a part in each such dispatch, or None: all of it can be kept ready."""
        differs = self.host_part
        if timed or facts.polls or facts.whole:
            differs = "its workgroups wait for each other" if facts.whole else "the host looks for a deadline"
        if facts.traps and iterations > 1:
            differs = "the host says which turn may trap"
        on_host = memory == "host"
        self.trap_words = trap_words(launch.grid, facts.workgroup, grows=indirect is not None) if facts.traps else b""
        self.recording = choose_recording(
            device.small_dispatch_costs if on_host else device.launch_costs,
            copied_bytes=sum(b.nbytes for b in self.bound) if on_host else None,
            differs=differs,
        )
        """Whether it is recorded when it is repeated."""
        self.written = [(slot, b.nbytes) for slot, b in enumerate(self.bound) if b.is_written and b.nbytes]
        within_word = not on_host and any(n % 4 for _, n in self.written)
        self.convergence = choose_convergence(
            iterations,
            _EVERY,
            least=_LAUNCHES,
            hinders="a resident buffer ends within a word" if within_word else None,
        )
        """Whether all iterations run where one of them changes nothing."""
        most = backend.max_storage_buffer_bytes
        for b in self.bound:
            if b.nbytes > most:
                raise UnsupportedFeature(
                    f"buffer {b.name!r} has {b.nbytes} bytes; max is {most}",
                    fix="split the work into smaller buffers, or use another backend",
                    name="max_storage_buffer_bytes",
                    backend=backend.id,
                )
        try:
            self._check(backend, None)
            self.depends = False
        except UnsupportedFeature:
            self.depends = True

    def require_whole(self, device: Device, grid: Dims) -> None:
        """Raise unless workgroups that wait for each other all run at once."""
        if not self.facts.whole:
            return
        most = device.most_together(self.code)
        if prod(grid) > most:
            raise CooperativeResidencyExceeded(
                f"{prod(grid)} workgroups wait for each other, and {most} run at the same time",
                fix="use a smaller grid, or dispatch from host memory without cooperative=True: that is split",
                grid=grid,
                limit=most,
            )

    def require_possible(self, backend: OffloadBackend, views: Sequence[memoryview | None]) -> None:
        """Raise if the device cannot run it. `views` are what the host knows of the buffers, by slot."""
        if not self.depends:
            return

        def word(slot: int, index: int) -> int | None:
            view, b = views[slot], self.bound[slot]
            if view is None or not b.element.is_int:
                return None
            size = b.element_size
            return int.from_bytes(view[index * size : (index + 1) * size], "little", signed=b.element.limits[0] < 0)

        self._check(backend, word)

    def _check(self, backend: OffloadBackend, word: Callable[[int, int], int | None] | None) -> None:
        backend.check_launch(self.facts, self.lengths, None if self.indirect is not None else self.grid, word)

    @property
    def is_simple(self) -> bool:
        """Whether all of it can be submitted at once."""
        return self.indirect is None and self.count < _LAUNCHES

    def _host_part(self, memory: str) -> str | None:
        if memory == "both":
            return "a buffer comes from the host each time"
        if memory == "resident" and self.facts.traps:
            return "the host looks whether it trapped"
        if self.indirect is not None:
            return "its grid lies in memory"
        if not self.is_simple or self.parts is None:
            return f"it has {self.count} launches"
        return None if self.parts else "its grid has no workgroup"

    def grid_at(self, words: bytes) -> Dims:
        """The grid that lies in memory now: an iteration may change it for the next one."""
        return check_grid(grid_words(words), self.facts.workgroup)

    def require_grid(self) -> tuple[int, int]:
        """The slot and byte of the grid, which must lie inside its buffer."""
        assert self.indirect is not None
        slot, offset = self.indirect
        require_grid_within(self.bound[slot].name, offset, self.bound[slot].nbytes)
        return slot, offset


class Work:
    """A dispatch that is being submitted, over memory that is there.

    The first reading is that of the trap's words, if the code has traps; those of the caller follow.
    """

    def __init__(
        self,
        session: Session,
        *,
        timeout: float | None = None,
        begun: float | None = None,
        timed: bool = False,
        ahead: bool = False,
    ) -> None:
        self.session, self._timed, self._ahead = session, timed, ahead
        self.begun = time.monotonic() if begun is None else begun
        self._until = None if timeout is None else self.begun + timeout
        self._pieces: list[Piece] = []
        self._traps: list[tuple[LaunchFacts, Memory, int]] = []
        """With the bytes of their words."""
        self._parts: list[Ticket] = []
        """What was sent off before the last batch, if it is timed."""
        self._recorded = 0
        self.memories: Sequence[Memory] = ()
        """Of the buffers, by slot, of a dispatch over host memory."""
        self.batch = self._new_batch()
        self.ticket: Ticket | None = None
        self._ended = False
        self.enqueue_ns = self.wait_ns = 0

    # -- memory

    def take(self, nbytes: int) -> Memory:
        """Memory until the work ends."""
        piece = self.session.pool.take(nbytes)
        self._pieces.append(piece)
        return piece.memory

    def take_all(self, sizes: Sequence[int]) -> list[Memory]:
        """The same for several, each of exactly the size of a piece."""
        pieces = self.session.pool.take_all(sizes)
        self._pieces += pieces
        return [piece.memory for piece in pieces]

    def release(self) -> None:
        """Give back what was taken, when the work has ended."""
        pieces, self._pieces = self._pieces, []
        if self._ended:
            self.session.pool.give_all(pieces)
        elif pieces:
            with suppress(VyreError):  # after one, the device may still write to this memory
                ticket = self.ticket or self.batch.submit()  # what was recorded before something went wrong
                self.session.pool.give_after(ticket, pieces)

    # -- launches

    def armed(self, launches: DeviceLaunches, memories: Sequence[Memory]) -> Sequence[Memory]:
        """The memory of a program, with words for its traps if it has some."""
        if not launches.facts.traps:
            return memories
        words = launches.trap_words
        trap = self.take(len(words))
        self.batch.write(trap, 0, memoryview(words))
        self._traps.append((launches.facts, trap, len(words)))
        return [*memories, trap]

    def launch(self, launches: DeviceLaunches, memories: Sequence[Memory]) -> None:
        """All iterations of a program over memory that is filled and armed by now, or until one changes nothing."""
        if launches.iterations == 1:
            self._launch_once(launches, memories, 1)
            return
        turns = looks(launches.convergence)
        look, compared = next(turns), None
        for turn in range(1, launches.iterations + 1):
            if turn == look:
                compared = compared or self._compared(launches, memories)
                look = look if compared is not None else 0
            if compared is not None and turn == look:
                compared.remember(self.batch)
            self._launch_once(launches, memories, turn)
            if compared is not None and turn == look:
                look = next(turns)
                if not self._has_changed(compared):
                    count_settled(launches.iterations - turn)
                    return

    def require_no_trap(self) -> None:
        """Wait for what was launched until now, and raise if a trap of it was sprung."""
        if self._traps:
            self._read_traps()
            ticket = self._submit_part()
            self._await(ticket)
            self._after_traps(ticket.take([None] * len(self._traps)))

    def _launch_once(self, launches: DeviceLaunches, memories: Sequence[Memory], turn: int) -> None:
        parts: Iterable[tuple[Dims, Dims]] | None = launches.parts
        grid = launches.grid
        if launches.indirect is not None or parts is None:
            known = launches.indirect is None or (turn == 1 and launches.grid_known)
            grid = grid if known else self._read_grid(launches, memories)
            launches.require_whole(self.session.device, grid)
            parts = boxes(grid, self.session.device.most_groups)
        if launches.facts.traps and (turn > 1 or launches.indirect is not None):
            words = trap_numbers(grid, launches.facts.workgroup, turn)
            self.batch.write(memories[-1], NUMBERS_AT, memoryview(words))
        for base, grid in parts:
            if self._until is not None:
                self._launch_in_time(launches, memories, base, grid)
                continue
            self.batch.launch(launches.code, memories, launches.lengths, base, grid)
            self._recorded += 1
            if self._recorded % _LAUNCHES == 0:
                self._submit_part().wait(None)  # so that a queue holds no more than two of these

    def _compared(self, launches: DeviceLaunches, memories: Sequence[Memory]) -> Compared | None:
        try:
            return Compared(launches.backend, self, [(memories[slot], nbytes) for slot, nbytes in launches.written])
        except DeviceOutOfMemory:
            return None  # all iterations run

    def _has_changed(self, compared: Compared) -> bool:
        """Whether the iteration that was launched last changed any byte since `compared` remembered them."""
        self._read_traps()
        compared.compare(self.batch)
        ticket = self._submit_part()
        self._await(ticket)
        (changed,) = self._after_traps(ticket.take([None] * (len(self._traps) + 1)))
        return any(bytes(changed))

    def _launch_in_time(self, launches: DeviceLaunches, memories: Sequence[Memory], base: Dims, grid: Dims) -> None:
        """A launch in parts that grow until one takes a while."""
        assert self._until is not None
        groups = prod(grid) if launches.facts.whole else FIRST_PART_GROUPS
        position = 0
        while position < prod(grid):
            start, size = part(grid, position, groups)
            position += prod(size)
            begun = time.monotonic()
            if begun >= self._until:
                raise expired()
            at = (base[0] + start[0], base[1] + start[1], base[2] + start[2])
            self.batch.launch(launches.code, memories, launches.lengths, at, size)
            self._await(self._submit_part())
            if time.monotonic() - begun < PART_S / 2:
                groups *= 2

    def _read_grid(self, launches: DeviceLaunches, memories: Sequence[Memory]) -> Dims:
        slot, offset = launches.require_grid()
        self._read_traps()
        self.batch.read(memories[slot], offset, INDIRECT_BYTES)
        ticket = self._submit_part()
        self._await(ticket)
        (words,) = self._after_traps(ticket.take([None] * (len(self._traps) + 1)))
        return launches.grid_at(bytes(words))

    # -- the end

    def submit(self, reads: Sequence[tuple[Memory, int, int]] = ()) -> None:
        """Send off what is left, with readings of (memory, offset, bytes)."""
        if self._traps:
            self._read_traps()
        for memory, offset, nbytes in reads:
            self.batch.read(memory, offset, nbytes)
        self.ticket = self.batch.submit()
        self.enqueue_ns = int((time.monotonic() - self.begun) * 1e9) - self.wait_ns

    def finish(self, into: Sequence[memoryview | None]) -> list[Any]:
        """What was read, once the work is done; nothing is written where it failed."""
        ticket = self.ticket
        assert ticket is not None
        self._await(ticket)
        self._ended = True
        if not self._traps:
            return ticket.take(into)
        results = self._after_traps(ticket.take([None] * (len(self._traps) + len(into))))
        for k, target in enumerate(into):
            if target is not None:
                target[:] = results[k]
                results[k] = target
        return results

    def go_on(self) -> None:
        """It has ended, and there is more to read, over the same memory."""
        if self.ticket is not None and self._timed:
            self._parts.append(self.ticket)
        self._traps.clear()
        self.batch, self._ended = self._new_batch(), False

    @property
    def device_ns(self) -> int | None:
        times = [t.device_ns for t in (*self._parts, self.ticket) if t is not None]
        known = [n for n in times if n is not None]
        return sum(known) if len(known) == len(times) else None

    def _read_traps(self) -> None:
        for _, trap, nbytes in self._traps:
            self.batch.read(trap, 0, nbytes)

    def _after_traps(self, found: list[Any]) -> list[Any]:
        """The readings that follow those of the traps, of which none was sprung."""
        for (facts, *_), words in zip(self._traps, found, strict=False):
            require_no_trap(facts.traps, words, counted=facts.counted)
        return found[len(self._traps) :]

    def _submit_part(self) -> Ticket:
        """Send off what was recorded, and go on with another batch."""
        ticket = self.batch.submit()
        if self._timed:
            self._parts.append(ticket)
        self.batch = self._new_batch()
        return ticket

    def _new_batch(self) -> Batch:
        """Also when the time is over: the work submitted just now has to be waited for, or stopped."""
        seconds = None if self._until is None else max(self._until - time.monotonic(), 0) + _MARGIN_S
        return self.session.device.batch(timed=self._timed, ahead=self._ahead, seconds=seconds)

    def _await(self, ticket: Ticket) -> None:
        begun = time.monotonic()
        try:
            settle(self.session, ticket, self._until)
        finally:
            self.wait_ns += int((time.monotonic() - begun) * 1e9)


def compares() -> Program:
    """Two buffers of words, and a word that becomes 1 where they differ."""
    b = Builder(_COMPARED_GROUP)
    now, before, changed = b.read("now", u32), b.read("before", u32), b.read_write("changed", u32, 1)
    at = InvocationId(0)
    with b.if_(at < now.length), b.if_(BinOp(BinaryOp.NE, now[at], before[at])):
        b.atomic(AtomicOp.OR, changed, lit(0), lit(1))
    return b.program()


class Compared:
    """Memory of a dispatch as it was before an iteration, and code that compares it with what is there after it."""

    def __init__(self, backend: OffloadBackend, work: Work, written: Sequence[tuple[Memory, int]]) -> None:
        """`written` is what the program may change, with its length in bytes; our memory ends with a whole word."""
        self._device: Device = work.session.device
        self._code: Code = work.session.comparing(backend)
        self._pairs = [(m, work.take(n), ceil_div(n, _WORD)) for m, n in written if n]
        self._changed: Memory = work.take(_WORD)

    def remember(self, batch: Batch) -> None:
        for memory, copy, words in self._pairs:
            batch.copy(memory, 0, copy, 0, _WORD * words)

    def compare(self, batch: Batch) -> None:
        """Compare, and read the word."""
        batch.zero(self._changed, 0, _WORD)
        for memory, copy, words in self._pairs:
            grid = ceil_div(words, _COMPARED_GROUP), 1, 1
            for base, size in boxes(grid, self._device.most_groups):
                batch.launch(self._code, [memory, copy, self._changed], (words, words, 1), base, size)
        batch.read(self._changed, 0, _WORD)


def settle(session: Session, ticket: Ticket, until: float | None = None) -> None:
    """Wait for work, until its deadline if it has one. Work that does not end by then is stopped, or else left
    behind; a signal leaves it behind too."""
    try:
        if until is None:
            ticket.wait(None)
        elif not ticket.wait(max(until - time.monotonic(), 0)) or time.monotonic() >= until:
            ticket.stop()
            if not ticket.wait(GRACE_S):
                session.left = ticket
            raise expired()
    except VyreError:
        raise
    except BaseException:
        ticket.stop()
        session.left = ticket
        raise


def plain(data: Buffer) -> memoryview:
    """The bytes of a buffer in one dimension; a copy where they are scattered."""
    view = memoryview(data)
    if not view.c_contiguous:
        return memoryview(view.tobytes())
    return view.cast("B") if view.nbytes else memoryview(b"")


# ---- grids -----------------------------------------------------------------------------------------------------------


def part(grid: Dims, position: int, groups: int) -> tuple[Dims, Dims]:
    """A box that begins at the workgroup number `position`, x counted first, and has at most so many of them.

    >>> part((4, 3, 2), 0, 100), part((4, 3, 2), 4, 9), part((4, 3, 2), 1, 9)
    (((0, 0, 0), (4, 3, 2)), ((0, 1, 0), (4, 2, 1)), ((1, 0, 0), (3, 1, 1)))
    """
    gx, gy, gz = grid
    x, y, z = position % gx, position // gx % gy, position // (gx * gy)
    if x or groups < gx:
        return (x, y, z), (min(gx - x, groups), 1, 1)
    if y or groups < gx * gy:
        return (0, y, z), (gx, min(gy - y, groups // gx), 1)
    return (0, 0, z), (gx, gy, min(gz - z, groups // (gx * gy)))
