"""The disk tier: code that any process of this user has compiled, found by key.

One row for each pipeline: the fields of its key, so that a miss can be explained, the code, and a digest over both. A
row whose digest does not fit is never used; it is thrown out and counted. One process compiles a key while the others
wait for it. A problem with the file or its folder is logged once, and programs are compiled as if there were no
disk.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import ArgumentValueError
from ...foundation.meaning.numerics import NUMERICS_VERSION
from ..settings.folders import cache_dir
from ..settings.knobs import CACHE, CACHE_BYTES
from .database import SCHEMA, TABLES, CacheProblem, Database, tell
from .key import (
    CURRENT_PIPELINE_CACHE_KEY_VERSION,
    KeyRecord,
    PipelineCacheKey,
    PipelineCacheMissEvidence,
    PipelineCacheMissReason,
    digest_of,
)
from .lease import LEASE_S, Owner, this_thread
from .retention import DISK_HALF_LIFE_S, CacheEntryStats, over_budget
from .toolchain import impacted_entries

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")
FOLDER = "pipelines"
MAX_DISK_PIPELINE_BLOB_BYTES = 64 << 20
"""The largest code that is kept."""
AFTER_EVICTION = 0.75
"""How full an eviction leaves the store, so that not every save evicts."""
MOST_GONE = 256
"""Rows about evicted pipelines."""
NEAREST = 32
"""Rows that a miss is compared with, besides those of the same program or name."""
_PAUSES_S = (0.001, 0.002, 0.004, 0.008, 0.015, 0.03)
USE_EVERY_S = 3600.0
"""A use that follows another within this time is not counted: writing it down takes longer than loading the code."""
_USE_WAIT_S = 0.02
COUNTS = ("misses", "saved", "evicted", "quarantined", "takeovers")
"""Counters over all processes."""


@dataclass(frozen=True, slots=True)
class StoredPipeline:
    """A row without its code. Times are seconds since 1970."""

    key: bytes
    record: KeyRecord
    nbytes: int
    created_s: float
    uses: int
    last_use_s: float

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def stats(self) -> CacheEntryStats:
        return CacheEntryStats(self.key, self.uses, self.last_use_s, self.nbytes)


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """The contents of the store, and the counts of all processes since it was made."""

    folder: Path
    entries: int
    nbytes: int
    file_bytes: int
    backends: Mapping[str, int]
    counts: Mapping[str, int]
    leases: int
    probes: int


class DiskPipelineCache:
    """Compiled pipelines on disk, in one folder; without one, in the folder that the settings name at each use.

    `readonly` and `max_bytes` too are those of the settings unless given. Any thread may use it, also after a fork.
    """

    def __init__(
        self, folder: Path | None = None, *, readonly: bool | None = None, max_bytes: int | None = None
    ) -> None:
        self._folder, self._readonly, self._max_bytes = folder, readonly, max_bytes
        self._databases: dict[tuple[Path, bool], Database] = {}
        self._refused: dict[Database, CacheProblem] = {}
        self._leases: set[tuple[bytes, Owner]] = set()
        self.counts: Counter[str] = Counter()
        """Counts of this process, by the names of `COUNTS`; and `hits`, `waits` and `errors`."""

    @staticmethod
    def shared() -> DiskPipelineCache:
        """The store of all backends that selection opens; settings give its folder and mode at each use."""
        return _shared

    # -- for the compiler: nothing here raises because of a disk

    def load(self, key: PipelineCacheKey) -> bytes | None:
        """The code of a key; None: the caller compiles it. Other threads and processes wait for what it saves."""
        if not keeps(key):
            return None
        return self._unless_refused(lambda database: self._load(database, key.record), None)

    def save(self, key: PipelineCacheKey, payload: bytes) -> None:
        if not keeps(key):
            return
        self._unless_refused(lambda database: self._save(database, key.record, payload), None)
        self.give_up(key)

    def give_up(self, key: PipelineCacheKey) -> None:
        """Save nothing more for a key that was asked for; a thread that waits for it takes over."""
        digest, owner = key.digest(), this_thread()
        if (digest, owner) in self._leases:
            self._leases.discard((digest, owner))
            self._unless_refused(lambda database: _drop_lease(database, digest, owner), None)

    def reject(self, key: PipelineCacheKey) -> None:
        """The backend could not use the loaded code."""
        self._unless_refused(lambda database: self._throw_out(database, key.record, "damaged"), None)

    def holds(self, key: PipelineCacheKey) -> bool:
        """Whether there is a sound row of a key. Nothing is counted or made."""
        return self._unless_refused(lambda database: self._peek(database, key.digest()) is not None, False, look=True)

    def explain(self, key: PipelineCacheKey) -> PipelineCacheMissEvidence | None:
        """Why a key is not here, from the rows of all processes. None where there is nothing to read."""
        return self._unless_refused(lambda database: _evidence(database, key.record), None, look=True)

    # -- for people: these raise a CacheProblem with what to do

    @property
    def folder(self) -> Path:
        return cache_dir() / FOLDER if self._folder is None else self._folder

    @property
    def is_on(self) -> bool:
        return self._readonly is not None or CACHE.value() != "off"

    def database(self) -> Database:
        """The database in the current folder of the settings."""
        readonly = CACHE.value() == "readonly" if self._readonly is None else self._readonly
        place = self.folder, readonly
        found = self._databases.get(place)
        return self._databases.setdefault(place, Database(self.folder, readonly=readonly)) if found is None else found

    def entries(self) -> list[StoredPipeline]:
        """All that is there, the hottest first."""
        now = time.time()
        return sorted(self._rows(), key=lambda entry: -entry.stats.heat(now, DISK_HALF_LIFE_S))

    def summary(self) -> StoreSummary:
        with self.database().borrowed() as connection:
            one = connection.execute
            entries, nbytes = one("SELECT count(*), ifnull(sum(nbytes), 0) FROM entries").fetchone()
            backends = dict(one("SELECT backend, count(*) FROM entries GROUP BY backend ORDER BY backend").fetchall())
            counts = dict(one("SELECT name, n FROM counts").fetchall())
            pages, page_bytes = (one(f"PRAGMA {what}").fetchone()[0] for what in ("page_count", "page_size"))
            probes = one("SELECT count(*) FROM probes").fetchone()[0]
            leases = one("SELECT count(*) FROM leases WHERE expires > ?", (time.time(),)).fetchone()[0]
        known = {name: counts.get(name, 0) for name in COUNTS}
        return StoreSummary(self.folder, entries, nbytes, pages * page_bytes, backends, known, leases, probes)

    def verify(self) -> list[KeyRecord]:
        """Look at every row; throw out those whose digest does not fit, and say which."""
        bad = []
        database = self.database()
        with database.borrowed() as connection:
            keys = [key for (key,) in connection.execute("SELECT key FROM entries")]
        for key in keys:
            with database.borrowed() as connection:
                row = connection.execute(f"SELECT {_ROW} FROM entries WHERE key=?", (key,)).fetchone()
            if row is not None and _verified(key, row) is None:
                record = _told(row[0], row[1])
                bad.append(record)
                if not database.readonly:
                    self._throw_out(database, record, "damaged", key)
        return bad

    def prune(self, max_bytes: int) -> list[StoredPipeline]:
        """Throw out the coldest until so many bytes are left, and give their space back; what went."""
        if max_bytes < 0:
            raise ArgumentValueError(f"max_bytes={max_bytes} is below 0", fix="pass a number of bytes")
        database, rows = self.database(), {entry.key: entry for entry in self._rows()}
        now = time.time()
        coldest = over_budget(
            [e.stats for e in rows.values()], max_bytes=max_bytes, now_s=now, half_life_s=DISK_HALF_LIFE_S
        )
        gone = [rows[key] for key in coldest if isinstance(key, bytes)]
        self._drop(database, gone, now)
        return gone

    def impacted(self) -> list[StoredPipeline]:
        """The entries that no process of this installation finds: a part that made their code has changed since, or the
        meaning of keys or numbers."""
        rows = self._rows()
        stale = impacted_entries(entry.record.fields for entry in rows)
        now = {"version": CURRENT_PIPELINE_CACHE_KEY_VERSION, "numerics_version": NUMERICS_VERSION}
        return [
            entry
            for entry, is_stale in zip(rows, stale, strict=True)
            if is_stale or any(entry.record.fields.get(name) != number for name, number in now.items())
        ]

    def invalidate_impacted(self) -> list[StoredPipeline]:
        """Throw out the entries that are `impacted`, and give their space back; what went."""
        gone = self.impacted()
        self._drop(self.database(), gone, time.time())
        return gone

    def clear(self) -> int:
        """Throw out everything; how many there were. A damaged file, or one of a later version, is deleted."""
        database = self.database()
        try:
            with database.writing() as connection:
                found: int = connection.execute("SELECT count(*) FROM entries").fetchone()[0]
                for table in TABLES:
                    connection.execute(f"DELETE FROM {table}")
            self._shrink(database)
        except CacheProblem as e:
            if not e.lasting or database.readonly:
                raise
            database.remove()
            found = 0
        self._refused.clear()
        return found

    def payload(self, key: bytes) -> bytes | None:
        """The code of a row, if its digest fits."""
        return self._peek(self.database(), key)

    def add(self, record: KeyRecord, payload: bytes) -> bool:
        """A row from elsewhere; whether there was none yet."""
        with self.database().writing() as connection:
            there = connection.execute("SELECT 1 FROM entries WHERE key=?", (record.digest(),)).fetchone()
            if there is None:
                _insert(connection, record, payload)
        return there is None

    def metrics(self) -> dict[str, int]:
        """Counters of this process, under stable names."""
        return {
            f"vyre_pipeline_cache_disk_{name}_total": self.counts[name] for name in ("hits", *COUNTS, "waits", "errors")
        }

    # -- inside

    def _unless_refused(self, use: Callable[[Database], T], otherwise: T, *, look: bool = False) -> T:
        return self.attempt(use, otherwise, look=look) if self.is_on else otherwise

    def attempt(self, use: Callable[[Database], T], otherwise: T, *, look: bool = False) -> T:
        """The result of `use`; where it only looks, nothing is made for it. A problem is logged; after one that lasts,
        the database is not used again."""
        database = self.database()
        if database in self._refused or (look and not database.path.exists()):
            return otherwise
        try:
            database.examine()
            return use(database)
        except CacheProblem as e:
            problem = e
        except OSError as e:
            why = e.strerror or str(e)
            problem = CacheProblem(f"{self.folder} cannot be used: {why}", fix="see to the disk", lasting=False)
        self.counts["errors"] += 1
        if problem.lasting:
            self._refused[database] = problem
        if self.is_on:  # else it is about probes, which cost little
            tell(problem)
        return otherwise

    def _load(self, database: Database, record: KeyRecord) -> bytes | None:
        key, waits = record.digest(), 0
        until = time.monotonic() + LEASE_S
        while (payload := self._found(database, record, key)) is None:
            if database.readonly or self._leased(database, key):
                break
            if not waits:
                self.counts["waits"] += 1
            if time.monotonic() > until:
                break  # compiled twice is better than not at all
            time.sleep(_PAUSES_S[min(waits, len(_PAUSES_S) - 1)])
            waits += 1
        self.counts["misses"] += payload is None
        return payload

    def _peek(self, database: Database, key: bytes) -> bytes | None:
        with database.borrowed() as connection:
            row = connection.execute(f"SELECT {_ROW} FROM entries WHERE key=?", (key,)).fetchone()
        return None if row is None else _verified(key, row)

    def _found(self, database: Database, record: KeyRecord, key: bytes) -> bytes | None:
        """The code of a row that fits. One that does not is thrown out."""
        with database.borrowed() as connection:
            row = connection.execute(f"SELECT {_ROW} FROM entries WHERE key=?", (key,)).fetchone()
        if row is None:
            return None
        if (payload := _verified(key, row)) is None:
            self._throw_out(database, record, "damaged")
            return None
        self.counts["hits"] += 1
        if not database.readonly and not 0 <= time.time() - row[-1] < USE_EVERY_S:
            self._used(database, key)
        return payload

    def _used(self, database: Database, key: bytes) -> None:
        try:
            with database.writing(_USE_WAIT_S) as connection:
                connection.execute("UPDATE entries SET uses=uses+1, last_use=? WHERE key=?", (time.time(), key))
        except CacheProblem as e:
            if e.lasting:
                raise

    def _leased(self, database: Database, key: bytes) -> bool:
        """Whether this thread has the lease of a key now. Another may have it, or have saved the code meanwhile."""
        owner, now = this_thread(), time.time()
        with database.borrowed() as connection:
            row = connection.execute(f"SELECT {_LEASE} FROM leases WHERE key=?", (key,)).fetchone()
        if row is not None and not _is_void(row, now):
            return False
        with database.writing() as connection:
            row = connection.execute(f"SELECT {_LEASE} FROM leases WHERE key=?", (key,)).fetchone()
            saved = connection.execute("SELECT 1 FROM entries WHERE key=?", (key,)).fetchone()
            if saved is not None or (row is not None and not _is_void(row, now)):
                return False
            values = (key, *owner, now + LEASE_S)
            connection.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?)", values)
            count(connection, misses=1, takeovers=int(row is not None))
        self.counts["takeovers"] += row is not None
        self._leases.add((key, owner))
        return True

    def _save(self, database: Database, record: KeyRecord, payload: bytes) -> None:
        limit = CACHE_BYTES.value() if self._max_bytes is None else self._max_bytes
        if database.readonly or len(payload) > min(limit, MAX_DISK_PIPELINE_BLOB_BYTES):
            return
        key, owner = record.digest(), this_thread()
        with database.writing() as connection:
            _insert(connection, record, payload)
            connection.execute(_DROP_LEASE, (key, owner.pid, owner.thread))
            gone = _evict(connection, key, limit)
            count(connection, saved=1, evicted=gone)
        self._leases.discard((key, owner))
        self.counts["saved"] += 1
        self.counts["evicted"] += gone

    def _throw_out(self, database: Database, record: KeyRecord, why: str, key: bytes | None = None) -> None:
        self.counts["quarantined"] += 1
        if database.readonly:
            return
        with database.writing() as connection:
            _delete(connection, record.digest() if key is None else key, record, why, time.time())
            count(connection, quarantined=1)

    def _rows(self) -> list[StoredPipeline]:
        with self.database().borrowed() as connection:
            return list(_entries(connection))

    def _drop(self, database: Database, gone: list[StoredPipeline], now: float) -> None:
        with database.writing() as connection:
            for entry in gone:
                _delete(connection, entry.key, entry.record, "evicted", now)
            connection.execute("DELETE FROM leases WHERE expires <= ?", (now,))
            count(connection, evicted=len(gone))
        self._shrink(database)

    def _shrink(self, database: Database) -> None:
        with database.borrowed() as connection:
            connection.executescript("PRAGMA incremental_vacuum")  # which `execute` would leave after the first page
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def keeps(key: PipelineCacheKey) -> bool:
    """Whether code of a key may outlive the process: its backend must say which version of it made it."""
    return not key.toolchain.endswith(" unspecified")


# ---- rows -----------------------------------------------------------------------------------------------------------

_ROW = "record, name, seal, payload, ifnull(CAST(last_use AS REAL), 0)"
_LEASE = "machine, CAST(pid AS INTEGER), started, CAST(thread AS INTEGER), ifnull(CAST(expires AS REAL), 0)"
_NUMBERS = ", ".join(
    f"ifnull(CAST({name} AS {kind}), 0)"
    for name, kind in (("nbytes", "INTEGER"), ("created", "REAL"), ("uses", "INTEGER"), ("last_use", "REAL"))
)
"""A column that no digest covers may hold anything: these read it as a number."""
_DROP_LEASE = "DELETE FROM leases WHERE key=? AND pid=? AND thread=?"


def _seal(key: bytes, record: str, name: str, payload: bytes) -> bytes:
    return digest_of(f"vyre.store.{SCHEMA}", key, record, name, payload)


def _verified(key: bytes, row: tuple[Any, ...]) -> bytes | None:
    """The code of a row, if every part of it is as it was written."""
    record, name, seal, payload, _ = row
    typed = (type(record), type(name), type(seal), type(payload)) == (str, str, bytes, bytes)
    return payload if typed and seal == _seal(key, record, name, payload) else None


def _insert(connection: sqlite3.Connection, record: KeyRecord, payload: bytes) -> None:
    key, text, now = record.digest(), record.text, time.time()
    known = [str(record.fields.get(name, "")) for name in ("backend_id", "program", "device", "toolchain")]
    connection.execute(
        "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?)",
        (key, text, record.name, *known, len(payload), now, now, _seal(key, text, record.name, payload), payload),
    )
    facts = json.dumps(dict(record.device))
    connection.execute("INSERT OR REPLACE INTO devices VALUES (?, ?)", (known[2], facts))
    connection.execute("DELETE FROM gone WHERE key=?", (key,))


def _delete(connection: sqlite3.Connection, key: bytes, record: KeyRecord, why: str, now: float) -> None:
    connection.execute("DELETE FROM entries WHERE key=?", (key,))
    backend = str(record.fields.get("backend_id", ""))
    connection.execute(
        "INSERT OR REPLACE INTO gone VALUES (?, ?, ?, ?, ?, ?)", (key, record.text, record.name, backend, why, now)
    )
    connection.execute(
        "DELETE FROM gone WHERE key NOT IN (SELECT key FROM gone ORDER BY at DESC LIMIT ?)", (MOST_GONE,)
    )


def _evict(connection: sqlite3.Connection, newest: bytes, limit: int) -> int:
    """Evict rows over the budget, the coldest first; the newest stays."""
    held: int = connection.execute("SELECT sum(nbytes) FROM entries").fetchone()[0]
    if held <= limit:
        return 0
    now = time.time()
    rows = {entry.key: entry for entry in _entries(connection) if entry.key != newest}
    left = int(limit * AFTER_EVICTION) - (held - sum(entry.nbytes for entry in rows.values()))
    stats = [entry.stats for entry in rows.values()]
    gone = over_budget(stats, max_bytes=max(0, left), now_s=now, half_life_s=DISK_HALF_LIFE_S)
    for key in gone:
        if isinstance(key, bytes):
            _delete(connection, key, rows[key].record, "evicted", now)
    return len(gone)


def count(connection: sqlite3.Connection, **more: int) -> None:
    for name, n in more.items():
        if n:
            connection.execute(
                "INSERT INTO counts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET n = n + excluded.n", (name, n)
            )


def _drop_lease(database: Database, key: bytes, owner: Owner) -> None:
    if not database.readonly:
        with database.writing() as connection:
            connection.execute(_DROP_LEASE, (key, owner.pid, owner.thread))


def _is_void(lease: tuple[Any, ...], now: float) -> bool:
    """Whether another thread may have it: it ran out, its process ended, or it is this thread's own."""
    owner, expires = Owner(*lease[:4]), lease[4]
    return not now < expires <= now + LEASE_S + 1 or owner.is_this_thread or owner.has_ended


def _told(record: object, name: object, device: object = "{}") -> KeyRecord:
    """The record of a row, without a check of its digest."""
    try:
        return KeyRecord.parsed(str(record), str(device), str(name))
    except (ValueError, RecursionError):
        return KeyRecord({}, {}, str(name))


def _entries(connection: sqlite3.Connection) -> Iterator[StoredPipeline]:
    devices = dict(connection.execute("SELECT digest, facts FROM devices").fetchall())
    columns = f"key, record, name, device, {_NUMBERS}"
    for key, record, name, device, *numbers in connection.execute(f"SELECT {columns} FROM entries").fetchall():
        yield StoredPipeline(key, _told(record, name, devices.get(device, "{}")), *numbers)


def _evidence(database: Database, wanted: KeyRecord) -> PipelineCacheMissEvidence:
    key, program = wanted.digest(), wanted.fields["program"]
    with database.borrowed() as connection:
        backend = wanted.fields["backend_id"]
        total: int = connection.execute("SELECT count(*) FROM entries WHERE backend=?", (backend,)).fetchone()[0]
        rows = connection.execute(
            "SELECT record, name, facts FROM entries LEFT JOIN devices ON digest = device WHERE backend = ? "
            "ORDER BY program = ? DESC, name = ? DESC, last_use DESC LIMIT ?",
            (backend, program, wanted.name, NEAREST),
        ).fetchall()
        gone = connection.execute("SELECT why FROM gone WHERE key=?", (key,)).fetchone()
    near = [_told(record, name, facts or "{}") for record, name, facts in reversed(rows)]
    found = PipelineCacheMissEvidence.from_records(near, wanted)
    why = next((r for r in PipelineCacheMissReason if gone and r.value == gone[0]), None)
    return replace(found, total_entries=total, gone=why)


_shared = DiskPipelineCache()
