"""The memory tier: the compiled code of one backend, by key. One compilation per key; the coldest goes first."""

from __future__ import annotations

import itertools
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ...errors import DeadlineExceeded, KernelCompileFailed, UnsupportedFeature, VyreError
from ...foundation.memo import keep, renew
from ..contract.pipeline import CompiledPipeline
from ..contract.profile import PipelineCacheSnapshot
from ..policy.decision import Decision
from ..settings.knobs import PIPELINE_CACHE_BYTES, PIPELINE_CACHE_ENTRIES
from .key import PipelineCacheKey, PipelineCacheMissEvidence, PipelineCacheMissReason, PipelineDeviceFingerprint
from .retention import CacheEntryStats, over_budget

if TYPE_CHECKING:
    from ..contract.backend import VyreBackend
    from ..contract.capability import BackendCapability

T = TypeVar("T")
DEFAULT_PIPELINE_CACHE_ENTRIES = PIPELINE_CACHE_ENTRIES.default
DEFAULT_PIPELINE_CACHE_BYTES = PIPELINE_CACHE_BYTES.default
_REMEMBERED_KEYS = 256
"""Keys kept, also of evicted entries, to explain a miss; and failures kept, not to compile them again."""
_LASTING = (KernelCompileFailed, UnsupportedFeature)
"""Failures that the same key meets again. Others (no memory, a lost device) may pass."""


class PipelineStore(Protocol):
    """A tier below memory, for code that outlives its backend."""

    def load(self, key: PipelineCacheKey) -> bytes | None:
        """Exactly the bytes that were saved for an equal key, or None."""

    def save(self, key: PipelineCacheKey, payload: bytes) -> None: ...

    def give_up(self, key: PipelineCacheKey) -> None:
        """Nothing more is saved for a key that was asked for, whether anything was or not."""

    def reject(self, key: PipelineCacheKey) -> None:
        """The backend cannot use the loaded code."""

    def holds(self, key: PipelineCacheKey) -> bool:
        """Whether `load` would find it, without any effect."""

    def explain(self, key: PipelineCacheKey) -> PipelineCacheMissEvidence | None:
        """Why a key is not there."""

    def metrics(self) -> dict[str, int]:
        """Counters under stable names."""


def pipeline_cache_limits_from_env() -> tuple[int, int]:
    """Entries and bytes that a backend's memory tier may hold."""
    return PIPELINE_CACHE_ENTRIES.value(), PIPELINE_CACHE_BYTES.value()


# ---- counting -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PipelineCacheAuditReport:
    hits: int
    misses: int
    unknowns: int
    hit_rate_bps: int | None
    below_alarm_threshold: bool


@dataclass(slots=True)
class PipelineCacheAudit:
    """Observed lookups and their hit rate in basis points. An unknown outcome counts neither way."""

    hits: int = 0
    misses: int = 0
    unknowns: int = 0

    def observe(self, hit: bool | None) -> None:
        if hit is None:
            self.unknowns += 1
        elif hit:
            self.hits += 1
        else:
            self.misses += 1

    def snapshot(self, alarm_bps: int = 0) -> PipelineCacheAuditReport:
        """`alarm_bps` 0 never alarms; a rate equal to it does not either."""
        known = self.hits + self.misses
        rate = self.hits * 10_000 // known if known else None
        return PipelineCacheAuditReport(
            self.hits, self.misses, self.unknowns, rate, rate is not None and rate < alarm_bps
        )


# ---- the cache ------------------------------------------------------------------------------------------------------


class Entry:
    """One compiled pipeline, shared by the cache and every handle to it; closed when the last of them lets go."""

    __slots__ = ("__weakref__", "_process", "epoch", "evidence", "last_use_s", "native", "nbytes", "tier", "uses")

    def __init__(
        self,
        native: CompiledPipeline,
        nbytes: int,
        tier: str,
        epoch: int,
        evidence: PipelineCacheMissEvidence | None = None,
    ) -> None:
        """`evidence` is the store's, which knows earlier keys of other processes too."""
        self.native = native
        self.nbytes = nbytes
        self.tier = tier
        self.epoch = epoch
        self.evidence = evidence
        self.uses, self.last_use_s = 1, time.monotonic()
        self._process = os.getpid()

    def __del__(
        self, is_ending: Callable[[], bool] = sys.is_finalizing, process: Callable[[], int] = os.getpid
    ) -> None:  # a finalizer would hold the code, which may hold its backend, which holds us
        if is_ending() or getattr(self, "_process", 0) != process():  # the names of this module may be gone by then
            return  # and so may a device library; in a forked process the code is still its parent's
        self.native.close()


@dataclass(frozen=True, slots=True)
class Found:
    """An entry and how it was found: in `memory`, from the `disk`, or `compiled` now, with the reason of the miss."""

    entry: Entry
    tier: str
    evidence: PipelineCacheMissEvidence | None = None

    @property
    def hit(self) -> bool:
        return self.tier != "compiled"

    @property
    def decision(self) -> Decision:
        return decide_cache(self.tier, self.evidence)


def decide_cache(tier: str, evidence: PipelineCacheMissEvidence | None) -> Decision:
    """Where the code of a key comes from; of code that is compiled, why it was not there."""
    if tier == "compiled":
        return Decision("cache", "miss", str(evidence))
    why = {"memory": "a pipeline with this key was compiled before", "disk": "a stored pipeline has this key"}
    return Decision("cache", tier, why[tier])


class _Flight:
    """One compilation that several threads wait for."""

    def __init__(self, epoch: int, evidence: PipelineCacheMissEvidence) -> None:
        self.owner = threading.get_ident()
        self.epoch = epoch
        self.evidence = evidence
        self.landed = threading.Event()
        self.apart = False
        """Whether a thread of its own lands it."""
        self.entry: Entry | None = None
        self.error: Exception | None = None

    @property
    def known_evidence(self) -> PipelineCacheMissEvidence:
        told = None if self.entry is None else self.entry.evidence
        return self.evidence if told is None else told


def _fly(flight: _Flight, make: Callable[[int], Entry]) -> None:
    """Compile for all threads that wait."""
    try:
        flight.entry = make(flight.epoch)
    except Exception as e:
        flight.error = fresh(e)  # it holds no frames
        raise


def fresh(error: Exception) -> Exception:
    """An equal error that no other thread holds: the thread that catches it may add to its context."""
    if isinstance(error, VyreError):
        error = copy(error)
        error.context = dict(error.context)
    return error


def _remember(table: dict[PipelineCacheKey, T], key: PipelineCacheKey, value: T) -> None:
    table.pop(key, None)  # it becomes the youngest
    keep(table, key, value, _REMEMBERED_KEYS)


class PipelineCache:
    """The pipelines of one backend instance.

    `epoch` names a state of the device, and no two have the same: a pipeline of another epoch belongs to a state that
    has ended.
    """

    def __init__(self) -> None:
        self._epochs = itertools.count()
        self.epoch = next(self._epochs)
        self.store: PipelineStore | None = None
        self.audit = PipelineCacheAudit()
        self.reasons: Counter[PipelineCacheMissReason] = Counter()
        self.evictions = 0
        self.store_errors = 0
        self._lock = threading.RLock()
        self._entries: dict[PipelineCacheKey, Entry] = {}
        self._nbytes = 0
        self._failures: dict[PipelineCacheKey, VyreError] = {}
        self._flights: dict[PipelineCacheKey, _Flight] = {}
        self._seen: dict[PipelineCacheKey, None] = {}
        self._device: tuple[BackendCapability, str, PipelineDeviceFingerprint] | None = None

    def get(self, key: PipelineCacheKey, make: Callable[[int], Entry], within: float | None = None) -> Found:
        """The entry of a key, made by `make(epoch)` if it is not there; threads that ask meanwhile wait for it.

        A lasting failure is remembered and raised again; any other is raised in every thread that waited. After
        `within` seconds the caller gets DeadlineExceeded, and compilation goes on: it then has a thread of its own.
        """
        limits = pipeline_cache_limits_from_env()
        end = None if within in (None, math.inf) else time.monotonic() + within
        while True:
            ours: _Flight | None = None
            try:
                with self._lock:
                    if (entry := self._entries.get(key)) is not None:
                        entry.uses += 1
                        entry.last_use_s = time.monotonic()
                        self.audit.observe(True)
                        return Found(entry, "memory")
                    if (failure := self._failures.get(key)) is not None:
                        renew(self._failures, key)
                        raise fresh(failure)
                    flight = self._flights.get(key)
                    if flight is None:
                        ours = flight = self._flights[key] = _Flight(self.epoch, self.evidence(key))
                        _remember(self._seen, key, None)
                if ours is not None and end is None:
                    _fly(ours, make)
                elif ours is not None:
                    self._fly_apart(key, ours, make, limits)
            finally:  # whatever interrupts this thread, also in here, the waiting threads must not wait for ever
                if ours is not None and not ours.apart:
                    try:
                        self._land(key, ours, limits)
                    except BaseException:
                        self._land(key, ours, limits)
                        raise
            if flight.owner == threading.get_ident() and ours is None:
                raise KernelCompileFailed(
                    "compiling the program asks for the same program compiled",
                    fix="let compile_native compile what it was given without the pipeline cache",
                    backend=key.backend_id,
                )
            left = None if end is None else min(max(end - time.monotonic(), 0), threading.TIMEOUT_MAX)
            if not flight.landed.wait(left):
                raise DeadlineExceeded(
                    "the program was not compiled in time",
                    fix="call again: compiling goes on, and what comes of it is kept; else allow more time, or compile "
                    "before the clock starts, with vyre.compile(program)",
                    backend=key.backend_id,
                    timeout=within,
                )
            if flight.error is not None:
                raise fresh(flight.error)
            if flight.entry is not None:
                if ours is not None:
                    return Found(flight.entry, flight.entry.tier, flight.known_evidence)
                with self._lock:
                    self.audit.observe(True)
                return Found(flight.entry, "memory")
            # the thread that compiled was interrupted: a thread that waited takes over

    def _fly_apart(
        self, key: PipelineCacheKey, flight: _Flight, make: Callable[[int], Entry], limits: tuple[int, int]
    ) -> None:
        """Compile on a thread of its own, for which no caller waits. The process does, at its exit: a compiler must not
        be unloaded while it works."""
        context = copy_context()

        def run() -> None:
            flight.owner = threading.get_ident()
            try:
                context.run(_fly, flight, make)
            except BaseException:
                pass  # raised in the threads that wait
            finally:
                self._land(key, flight, limits)

        flight.owner = 0
        threading.Thread(target=run, name="vyre-compile", daemon=False).start()
        flight.apart = True

    def _land(self, key: PipelineCacheKey, flight: _Flight, limits: tuple[int, int]) -> None:
        """Wake the threads that wait, and keep the result. A second call does no harm."""
        gone: list[Entry] = []
        with self._lock:
            if self._flights.get(key) is flight:
                gone = self._landed(key, flight, limits)
                del self._flights[key]
        flight.landed.set()
        del gone  # closing code that no caller holds may take other locks, so not under ours

    def _landed(self, key: PipelineCacheKey, flight: _Flight, limits: tuple[int, int]) -> list[Entry]:
        """Keep the result of a flight; returns the entries that had to go for it."""
        self.reasons[flight.known_evidence.reason] += 1
        self.audit.observe(flight.entry is not None and flight.entry.tier != "compiled")
        if flight.epoch != self.epoch:
            return []  # the device state it was made for is gone
        if flight.entry is not None:
            return self._keep(key, flight.entry, limits)
        if isinstance(flight.error, _LASTING):
            _remember(self._failures, key, flight.error)
        return []

    def _keep(self, key: PipelineCacheKey, entry: Entry, limits: tuple[int, int]) -> list[Entry]:
        self._entries[key] = entry
        self._nbytes += entry.nbytes
        max_entries, max_bytes = limits
        if len(self._entries) <= max_entries and self._nbytes <= max_bytes:
            return []
        cold: list[Any] = [key]  # code that is too large for all of it is held by its callers alone
        if entry.nbytes <= max_bytes:
            others = [
                CacheEntryStats(other, each.uses, each.last_use_s, each.nbytes)
                for other, each in self._entries.items()
                if each is not entry
            ]
            room = max_bytes - entry.nbytes
            cold = over_budget(others, max_entries=max_entries - 1, max_bytes=room, now_s=time.monotonic())
        gone = [self._entries.pop(each) for each in cold]
        self._nbytes -= sum(each.nbytes for each in gone)
        self.evictions += len(gone)
        return gone

    def evidence(self, key: PipelineCacheKey) -> PipelineCacheMissEvidence:
        """Why `key` is not in memory, from the keys that were asked for before."""
        with self._lock:
            return PipelineCacheMissEvidence.from_keys(self._seen, key)

    def forecast(self, key: PipelineCacheKey) -> Decision:
        """What `get` would find; nothing is counted."""
        if key in self:
            return decide_cache("memory", None)
        told = None
        if self.store is not None:
            with suppress(OSError):  # a store that cannot be read has nothing
                if self.store.holds(key):
                    return decide_cache("disk", None)
                told = self.store.explain(key)
        return decide_cache("compiled", told or self.evidence(key))

    def peek(self, key: PipelineCacheKey) -> Entry | None:
        """The entry of a key, if it is here; nothing is counted."""
        return self._entries.get(key)

    def __contains__(self, key: PipelineCacheKey) -> bool:
        return key in self._entries

    def clear(self) -> None:
        """Forget everything. Pipelines that are held elsewhere refuse from now on; counts stay."""
        with self._lock:
            self.epoch = next(self._epochs)
            gone, self._entries = self._entries, {}
            self._failures.clear()
            self._nbytes = 0
            self._device = None
        del gone

    def expire(self) -> None:
        """As `clear`, but compiled code is closed later: another thread may still run it."""
        with self._lock:
            self.epoch = next(self._epochs)

    def suspend(self) -> Callable[[], None]:
        """Let every pipeline refuse until the returned function is called; it does nothing once they have ended."""
        with self._lock:
            before = self.epoch
            meanwhile = self.epoch = next(self._epochs)

        def resume() -> None:
            with self._lock:
                if self.epoch == meanwhile:
                    self.epoch = before

        return resume

    def forked(self) -> None:
        """This is a child process: pipelines refuse, and the thread that held the lock is not here."""
        self._lock = threading.RLock()
        self.epoch = next(self._epochs)

    def device_of(self, backend: VyreBackend) -> PipelineDeviceFingerprint:
        """The fingerprint of the backend's device, computed again only when it or its capability record is another."""
        capability, device, known = backend.capability, backend.device, self._device
        if known is None or known[0] is not capability or known[1] != device:
            known = self._device = capability, device, PipelineDeviceFingerprint.of(backend)
        return known[2]

    def snapshot(self) -> PipelineCacheSnapshot:
        with self._lock:
            return PipelineCacheSnapshot(
                self.audit.hits, self.audit.misses, self.evictions, len(self._entries), self._nbytes
            )

    def metrics(self) -> dict[str, int]:
        """Counters under stable names."""
        now = self.snapshot()
        return (
            {
                "vyre_pipeline_cache_hits_total": now.hits,
                "vyre_pipeline_cache_misses_total": now.misses,
                "vyre_pipeline_cache_evictions_total": now.evictions,
                "vyre_pipeline_cache_store_errors_total": self.store_errors,
                "vyre_pipeline_cache_entries": now.entries,
                "vyre_pipeline_cache_bytes": now.nbytes,
            }
            | {
                f"vyre_pipeline_cache_miss_{reason.metric_suffix}_total": self.reasons[reason]
                for reason in PipelineCacheMissReason
            }
            | ({} if self.store is None else self.store.metrics())
        )
