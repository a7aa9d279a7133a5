"""What is counted: plain ints by thread, summed when they are read.

Counting takes no lock, since each thread writes numbers of its own; they outlive it.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter

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
    "lanes_opened",
    "shapes_planned",
    "recompiled_lanes",
    "split_dispatches",
    "split_segments",
    "split_sync_points",
    "split_launches",
    "split_passes",
    "fixpoints_reached",
    "iterations_spared",
    "shadow_samples",
    "shadow_divergences",
    "shadow_ns",
    *(f"shadow_skipped_{reason}" for reason in SKIPS),
)
(
    PLAIN, TIMED, ASYNC, RESIDENT, BATCHES, FAILED, INPUT_BYTES, OUTPUT_BYTES, ROUTES, PLANS, RECOMPILED,
    _SPLIT, _SEGMENTS, _SYNC_POINTS, _LAUNCHES, _PASSES, _FIXPOINTS, _SPARED, _SHADOWED, _DIVERGED, _SHADOW_NS,
) = range(len(_COUNTERS) - len(SKIPS))  # fmt: skip
_MAX_LABELS = 256
_lock = threading.RLock()  # a thread may end, and fold its counts, wherever the collector happens to run


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
