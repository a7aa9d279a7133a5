"""What is counted: plain ints by thread, summed when they are read.

Counting takes no lock, since each thread writes numbers of its own; they outlive it.
"""

from __future__ import annotations

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


class Timed(NamedTuple):
    """Dispatches of one kind that were timed: how many took up to each of `TIME_BOUNDS_NS`, and longer, apart."""

    counts: tuple[int, ...]
    total_ns: int
    input_bytes: int
    output_bytes: int


class _Counts:
    """Plain ints that only one thread writes, so that counting takes no lock."""

    __slots__ = ("decisions", "labels", "numbers", "times")

    def __init__(self) -> None:
        self.numbers = [0] * len(_COUNTERS)
        self.labels: dict[str, int] = {}
        self.decisions: dict[tuple[str, str], int] = {}
        self.times: dict[tuple[str, str], list[int]] = {}
        """(backend, label) -> as in `Timed`, one after the other."""

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
        self.counts, self.numbers, self.labels, self.times = mine, mine.numbers, mine.labels, mine.times
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
        for kind, row in counts.times.items():
            _add(_ended.times, kind, row)


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


def times() -> dict[tuple[str, str], Timed]:
    """(backend, label) -> the dispatches that were timed, where an observer asked for that."""
    found: dict[tuple[str, str], list[int]] = {}
    with _lock:
        for counts in (_ended, *_live):
            for kind, row in dict(counts.times).items():
                _add(found, kind, row, len(found) + 1)
    return {kind: Timed(tuple(row[:-3]), *row[-3:]) for kind, row in found.items()}


def _add(
    times: dict[tuple[str, str], list[int]], kind: tuple[str, str], row: Sequence[int], most: int = _MAX_LABELS
) -> None:
    """When there are too many, the rarest label is dropped; its dispatches go to the empty one."""
    if kind not in times and len(times) >= most and kind[1]:
        rarest = min((k for k in times if k[1]), key=lambda k: sum(times[k][:-3]), default=None)
        if rarest is not None:
            _add(times, (rarest[0], ""), times.pop(rarest))
    times[kind] = [a + b for a, b in zip(times.get(kind, _NO_TIMES), row, strict=True)]


def time_counter(backend: str, label: str, input_bytes: int, output_bytes: int) -> Callable[..., None]:
    """A function that counts a dispatch of this kind and size, which began and ended at these ns."""
    tally, kind, bounds = TALLY, (backend, label), TIME_BOUNDS_NS

    def count(begun: int, ended: int, failed: bool = False, times: object = None) -> None:
        ns = ended - begun
        rows = tally.times
        row = rows.get(kind)
        if row is None:
            _add(rows, kind, _NO_TIMES)
            row = rows[kind]
        row[bisect_left(bounds, ns)] += 1
        row[-3] += ns
        row[-2] += input_bytes
        row[-1] += output_bytes

    return count


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
