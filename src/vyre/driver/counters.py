"""What is counted: plain ints by thread, summed when they are read.

Counting takes no lock, since each thread writes numbers of its own; they outlive it.
"""

from __future__ import annotations

import sys
import threading
import weakref
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..foundation.forking import in_child
from .policy.decision import Decision

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
    "routes_opened",
    "plans_made",
    "recompiled_routes",
    "split_dispatches",
    "split_segments",
    "split_sync_points",
    "split_launches",
    "split_passes",
    "fixpoints_reached",
    "iterations_spared",
    "device_losses",
    "device_recoveries",
    "shadow_samples",
    "shadow_divergences",
    "shadow_ns",
    *(f"shadow_skipped_{reason}" for reason in SKIPS),
)
(
    PLAIN, TIMED, ASYNC, RESIDENT, BATCHES, FAILED, INPUT_BYTES, OUTPUT_BYTES, ROUTES, PLANS, RECOMPILED,
    _SPLIT, _SEGMENTS, _SYNC_POINTS, _LAUNCHES, _PASSES, _FIXPOINTS, _SPARED, LOSSES, RECOVERIES, _SHADOWED, _DIVERGED,
    _SHADOW_NS,
) = range(len(_COUNTERS) - len(SKIPS))  # fmt: skip
_MAX_LABELS = 256
TIME_BOUNDS_NS = (*(n * 10**k for k in range(2, 9) for n in (10, 25, 50)), 10**10)
"""1, 2.5, 5, 10 us and so on to 10 s."""
_NO_TIMES = (0,) * (len(TIME_BOUNDS_NS) + 1 + 3)
_lock = threading.RLock()  # a thread may end, and fold its counts, wherever the collector happens to run


class Kind(NamedTuple):
    """Dispatches that are timed together; `how` callers asked for them is waited, started or resident."""

    backend: str
    label: str
    how: str


class Timed(NamedTuple):
    """Dispatches of one kind that were timed: how many took up to each of `TIME_BOUNDS_NS`, and longer, apart."""

    counts: tuple[int, ...]
    total_ns: int
    input_bytes: int
    output_bytes: int


class _Counts:
    """Plain ints that only one thread writes, so that counting takes no lock."""

    __slots__ = ("decisions", "labels", "numbers")

    def __init__(self) -> None:
        self.numbers = [0] * len(_COUNTERS)
        self.labels: dict[str, int] = {}
        self.decisions: dict[tuple[str, str], int] = {}

    def label(self, label: str, times: int = 1) -> None:
        """Count under a label. When there are too many, the rarest is dropped; its count goes to the empty label."""
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
        self._end = _ThreadEnd()  # goes with the thread
        weakref.finalize(self._end, _fold, mine).atexit = False
        with _lock:
            _live.append(mine)


class _ThreadEnd:
    __slots__ = ("__weakref__",)


def _fold(counts: _Counts) -> None:
    with _lock:
        _live[:] = [other for other in _live if other is not counts]
        for k, n in enumerate(counts.numbers):
            _ended.numbers[k] += n
        for label, n in counts.labels.items():
            _ended.label(label, n)
        for made, n in counts.decisions.items():
            _ended.decisions[made] = _ended.decisions.get(made, 0) + n


@in_child
def _forked() -> None:
    global _lock
    _lock = threading.RLock()  # a thread that is not in the child may have held the other


_live: list[_Counts] = []
_ended = _Counts()
TALLY = _Tally()


def counters() -> dict[str, int]:
    """Counts of the funnel in this process, over all threads."""
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


def decision_counters() -> dict[tuple[str, str], int]:
    """(what, choice) -> how often it was decided so.

    Code is counted when it was compiled or loaded, a config when a pipeline first sees it, and a dispatch once for
    each combination of lengths that was planned.
    """
    found: Counter[tuple[str, str]] = Counter()
    with _lock:
        for counts in (_ended, *_live):
            found.update(dict(counts.decisions))
    return dict(found)


class Spent(list[int]):
    """How long dispatches of one kind took, in ns, as far as that is not counted yet.

    Any thread appends, without a lock, and calls `fold` where it sees more than `ENOUGH`.
    """

    __slots__ = ("__weakref__", "input_bytes", "kind", "output_bytes")
    ENOUGH = 1024

    def __init__(self, kind: Kind, input_bytes: int, output_bytes: int) -> None:
        super().__init__()
        self.kind, self.input_bytes, self.output_bytes = kind, input_bytes, output_bytes
        with _lock:
            _spent.add(self)

    __hash__ = object.__hash__  # type: ignore[assignment] # it stands for itself

    def __eq__(self, other: object) -> bool:
        return self is other

    def fold(self) -> None:
        with _lock:
            new = self[:]
            del self[: len(new)]
            if new:
                row = [0] * len(_NO_TIMES)
                for ns in new:
                    row[bisect_left(TIME_BOUNDS_NS, ns)] += 1
                row[-3:] = sum(new), len(new) * self.input_bytes, len(new) * self.output_bytes
                _add(self.kind, row)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():
            self.fold()


_spent: weakref.WeakSet[Spent] = weakref.WeakSet()
_times: dict[Kind, list[int]] = {}
"""As in `Timed`, one after the other."""


def times() -> dict[Kind, Timed]:
    """The dispatches that were timed, where an observer asked for that."""
    with _lock:
        for spent in list(_spent):
            spent.fold()
        return {kind: Timed(tuple(row[:-3]), *row[-3:]) for kind, row in _times.items()}


def _add(kind: Kind, row: Sequence[int]) -> None:
    """When there are too many, the rarest label is dropped; its dispatches go to the empty one."""
    if kind not in _times and len(_times) >= _MAX_LABELS and kind.label:
        rarest = min((k for k in _times if k.label), key=lambda k: sum(_times[k][:-3]), default=None)
        if rarest is not None:
            _add(rarest._replace(label=""), _times.pop(rarest))
    _times[kind] = [a + b for a, b in zip(_times.get(kind, _NO_TIMES), row, strict=True)]


def count_decision(decided: Decision) -> None:
    """A decision was made, and is acted upon."""
    decisions, made = TALLY.counts.decisions, (decided.what, decided.choice)
    decisions[made] = decisions.get(made, 0) + 1


def count_sequence(segments: int, launches: int, passes: int, *, fixpoint: bool) -> None:
    """A dispatch was split into launches; `fixpoint`: it stopped because nothing changed any more."""
    numbers = TALLY.numbers
    numbers[_SPLIT] += 1
    numbers[_SEGMENTS] += segments
    numbers[_SYNC_POINTS] += segments - 1
    numbers[_LAUNCHES] += launches
    numbers[_PASSES] += passes
    numbers[_FIXPOINTS] += fixpoint


def count_settled(spared: int) -> None:
    """A dispatch stopped, because an iteration had changed nothing, and so many were not run."""
    TALLY.numbers[_FIXPOINTS] += 1
    TALLY.numbers[_SPARED] += spared


def count_shadow(elapsed_ns: int, *, diverged: bool, skipped: str | None) -> None:
    """A dispatch was compared with a reference, or skipped for this reason, in this much time."""
    numbers = TALLY.numbers
    numbers[_SHADOW_NS] += elapsed_ns
    if skipped is not None:
        numbers[_SHADOW_NS + 1 + SKIPS.index(skipped)] += 1
        return
    numbers[_SHADOWED] += 1
    numbers[_DIVERGED] += diverged
