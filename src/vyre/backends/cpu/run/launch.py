"""One launch: the memory that machine code sees, on how many threads it runs, and how it ends.

`abi.py` says which word of it is what.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from math import inf, prod
from typing import Any, NamedTuple, TypeAlias

from ....driver.contract.traps import TOLD_BITS, told
from ....driver.contract.values import Dims
from ....driver.pipeline.deadline import expired
from ....driver.policy.decision import Decision
from ....driver.policy.geometry import ALONG_Y
from ....errors import MOST_TRAPS, Trap
from ....foundation.integers import ceil_div
from ..abi import (
    BUFFERS,
    CHUNK,
    CHUNKS_LEFT,
    GRID,
    LENGTHS,
    NEXT,
    PIECE_BITS,
    PRIVATES,
    ROW,
    ROWS,
    SCRATCH,
    SHARED_WORDS,
    STOP,
    STREAM,
    TOTAL,
    TRAP_LISTS,
    TRAPPED,
    WORKER_WORDS,
)
from ..build import ObjectFacts
from ..device import LoadedCode, ffi
from .cost import work
from .host_pool import aligned
from .workers import Crew, Workers

INLINE_WORK = 1 << 22
"""Instructions up to which a dispatch runs on its caller's thread alone. Vectors do about 100 of them in a nanosecond,
and waking another thread takes 30 us."""
SEEN_WORK = 1 << 26
"""Instructions up to which the main thread makes one call. Beyond it, it takes a few chunks at a time, because it sees
no signal inside; and it only waits where the time of a chunk has no bound."""
_CHUNKS_PER_LOOK = 4
_ALL_CHUNKS = (1 << 64) - 1
_CHUNK_WORK = 1 << 22
"""Instructions between two looks at the stop flag, about."""
_CHUNKS_PER_WORKER = 16
_UNKNOWN_CHUNK = 64
"""Workgroups in a chunk where the time of one is unknown."""
_LOOK_S = 0.05
"""A signal that another thread received is seen after this time."""
_GRACE_S = 0.1
"""How long workers that were told to stop are waited for."""
STREAM_BYTES = 1 << 25
"""Results of this size together go past the cache: a reader would not find them there."""
PRIVATE_BYTES = 1 << 20
"""A buffer up to this size is copied for each worker, so that its atomics meet no other thread."""


ONE, SEVERAL = "one", "several"


class Schedule(NamedTuple):
    """How a launch is spread: over how many workers, how many workgroups at a time, and what the main thread does.

    `joins`: it works like any other caller. `sliced`: it works too, and comes back for signals.
    """

    workers: int
    chunk: int
    joins: bool
    sliced: bool = False


def schedule(facts: ObjectFacts, each: float, grid: Dims, threads: int) -> Schedule:
    """`each` is what one workgroup executes at most."""
    total = prod(grid)
    most = each * total
    if most <= INLINE_WORK:
        return Schedule(1, total, True)
    workers = min(threads, total, max(int(min(most / INLINE_WORK, threads)), 1))
    chunk = ceil_div(total, workers * _CHUNKS_PER_WORKER)
    chunk = min(chunk, _UNKNOWN_CHUNK if most == inf else int(_CHUNK_WORK / (most / total)))
    row = grid[facts.lanes.choice == ALONG_Y]
    chunk = max(chunk - chunk % row if chunk > row else chunk, 1)  # rows are run from end to end
    return Schedule(workers, chunk, most <= SEEN_WORK, most > SEEN_WORK and chunk * (most / total) <= SEEN_WORK)


def decide_threads(facts: ObjectFacts, lengths: Sequence[int], workgroup: Dims, grid: Dims, threads: int) -> Decision:
    """The schedule of a launch, for people."""
    if not all(grid):
        return Decision("threads", ONE, "there is nothing to run")
    each = work(facts.cost, lengths, prod(workgroup))
    plan, most = schedule(facts, each, grid, threads), each * prod(grid)
    numbers: dict[str, int | float] = {"threads": plan.workers, "chunk": plan.chunk}
    bounded = f"at most {most:.0f} instructions" if most < inf else "work without a bound"
    if most < inf:
        numbers["instructions"] = most
    if plan.workers == 1:
        why = "as long as waking others takes" if most <= INLINE_WORK else "there is one, or one workgroup"
        reason = f"{bounded}; {why}"
    else:
        reason = f"{bounded}; {plan.workers} threads take {plan.chunk} workgroups at a time"
    if not plan.joins:
        reason += ", and the main thread comes back for signals" if plan.sliced else ", and the main thread waits"
    return Decision("threads", ONE if plan.workers == 1 else SEVERAL, reason, numbers)


Lengths: TypeAlias = "tuple[Any, int]"
"""Element counts by slot, as the code reads them, and where they lie."""


def lengths_of(counts: Sequence[int]) -> Lengths:
    made = ffi.new("int64_t[]", counts or (0,))
    return made, _address(made)


class LaunchWords:
    """Words and pointers for one launch at a time. `hold` is what must stay in memory until it has ended."""

    __slots__ = (
        "_lengths", "_scratch_bytes", "addresses", "aimed", "buffers", "checked", "checked_for", "first", "hold",
        "lists", "seen", "shared", "workers",
    )  # fmt: skip

    def __init__(self, slots: int, scratch_bytes: int) -> None:
        self.shared: Any = ffi.new("int64_t[]", SHARED_WORDS)
        self.buffers: Any = ffi.new("void *[]", max(slots, 1))
        self.addresses: Any = ffi.cast("uintptr_t *", self.buffers)
        self.shared[BUFFERS] = _address(self.buffers)
        self.workers: list[Worker] = []
        self.hold: object = None
        self.lists: Any = None
        self.aimed: object = None
        """What it was last aimed at."""
        self.seen: Any = None
        self.checked: set[bytes] = set()
        """What `seen` showed when memory was found good: numbers lie elsewhere in each call, but in few places."""
        self.checked_for: object = None
        """The lengths for which it was."""
        self._scratch_bytes = scratch_bytes
        self._lengths: Any = None
        self.first: Any = self.worker(0).words

    def aim(self, lengths: Lengths, grid: Dims, chunk: int, streams: bool = False) -> None:
        """Set what does not depend on the memory of a call."""
        self._lengths, where = lengths
        words, (x, y, z) = self.shared, grid
        words[LENGTHS] = where
        words[GRID], words[GRID + 1], words[GRID + 2] = x, y, z
        words[TOTAL], words[CHUNK], words[STREAM] = x * y * z, chunk, streams

    def worker(self, k: int) -> Worker:
        while len(self.workers) <= k:
            self.workers.append(Worker(len(self.buffers), self._scratch_bytes))
        return self.workers[k]

    def run(self, code: LoadedCode, pool: Workers, plan: Schedule, until: float | None) -> None:
        """Run to the end, or raise. An error before the end leaves this launch to workers that may still run it."""
        words = self.shared
        words[NEXT] = words[STOP] = words[TRAPPED] = 0
        for k in range(plan.workers):
            self.worker(k)
        joins = until is None and (plan.joins or threading.current_thread() is not threading.main_thread())
        if joins and plan.workers == 1:
            code.run(words, self.workers[0].words)
            return
        sliced = until is None and plan.sliced and not joins
        works = joins or sliced
        crew = Crew(pool)
        try:
            for k in range(int(works), plan.workers):
                pool.take(crew)
                crew[-1].run(code, words, self.workers[k].words, self)
            if joins:
                code.run(words, self.workers[0].words)
            elif sliced:
                self._run_slices(code)
            looks = pool.looks if works else 0  # else it would be in the way of the others
            for one in crew:
                while not one.wait(_LOOK_S if until is None else min(max(until - time.monotonic(), 0), _LOOK_S), looks):
                    if until is not None and time.monotonic() >= until:
                        raise expired()
        except BaseException:
            words[STOP] = 1
            end = time.monotonic() + _GRACE_S
            for one in crew:
                one.wait(max(end - time.monotonic(), 0))
            raise
        finally:
            crew.rest()

    def _run_slices(self, code: LoadedCode) -> None:
        words, own = self.shared, self.workers[0]
        own.limit(_CHUNKS_PER_LOOK)
        try:
            while words[NEXT] < words[TOTAL] and not words[STOP]:
                code.run(words, own.words)
        finally:
            own.limit(_ALL_CHUNKS)

    def arm(self, grid: Dims, workgroup: Dims) -> None:
        """For code with traps: the lists are empty."""
        words = self.shared
        if self.lists is None:
            self.lists = ffi.new("uint64_t[]", TOLD_BITS // PIECE_BITS * MOST_TRAPS)
            words[TRAP_LISTS] = _address(self.lists)
        elif words[TRAPPED]:
            ffi.memmove(self.lists, bytes(ffi.sizeof(self.lists)), ffi.sizeof(self.lists))
        words[ROW], words[ROWS] = grid[0] * workgroup[0], grid[1] * workgroup[1]

    def require_no_trap(self, facts: ObjectFacts) -> None:
        words = self.shared
        if facts.traps and words[TRAPPED]:
            first = told(self.lists, PIECE_BITS, 64, facts.traps, words[ROW], words[ROWS])
            raise Trap.of(first, words[TRAPPED]) if facts.counted else Trap.of(first[:1])


class Worker:
    """What one thread has for itself: scratch memory, and its own copies of buffers."""

    __slots__ = ("_owner", "privates", "words")

    def __init__(self, slots: int, scratch_bytes: int) -> None:
        scratch, self._owner = aligned(scratch_bytes)
        self.privates: Any = ffi.new("void *[]", slots)
        self.words: Any = ffi.new("void *[]", WORKER_WORDS)
        self.words[SCRATCH], self.words[PRIVATES] = scratch, self.privates
        self.limit(_ALL_CHUNKS)

    def limit(self, chunks: int) -> None:
        """How many chunks one call takes."""
        self.words[CHUNKS_LEFT] = ffi.cast("void *", chunks)


def _address(pointer: Any) -> int:
    return int(ffi.cast("intptr_t", pointer))


# ---- private copies -------------------------------------------------------------------------------------------------


def privatize(
    launch: LaunchWords,
    facts: ObjectFacts,
    elements: Sequence[str],
    counts: Sequence[int],
    invocations: int,
    workers: int,
) -> Callable[[], None]:
    """Give each worker its own copy of the buffers that only take part in order-free atomics; what merges them.

    The first worker has the buffer itself, so that one alone needs no copy.
    """
    merges: list[Callable[[], None]] = []
    for slot, op in facts.private.items():
        count = counts[slot]
        alone = workers == 1
        fits = alone or (count * 4 <= PRIVATE_BYTES and count <= invocations)
        launch.worker(0).privates[slot] = launch.buffers[slot] if fits else ffi.NULL
        for k in range(1, workers):
            if not fits:
                launch.worker(k).privates[slot] = ffi.NULL
                continue
            copy, merge = _copy(launch.buffers[slot], op, elements[slot], count)
            launch.worker(k).privates[slot] = copy
            merges.append(merge)

    def merge_all() -> None:
        for merge in merges:
            merge()

    return merge_all


def _copy(target: Any, op: str, element: str, count: int) -> tuple[Any, Callable[[], None]]:
    import numpy as np

    dtype = np.dtype({"u32": "<u4", "i32": "<i4"}[element])
    combine, start = {
        "ADD": (np.add, 0),
        "OR": (np.bitwise_or, 0),
        "XOR": (np.bitwise_xor, 0),
        "AND": (np.bitwise_and, -1 if element == "i32" else 0xFFFFFFFF),
        "MIN": (np.minimum, np.iinfo(dtype).max),
        "MAX": (np.maximum, np.iinfo(dtype).min),
    }[op]
    mine = np.full(count, start, dtype)

    def merge() -> None:
        whole = np.frombuffer(ffi.buffer(target, mine.nbytes), dtype)
        combine(whole, mine, out=whole)

    return ffi.from_buffer(mine), merge
