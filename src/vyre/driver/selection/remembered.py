"""Facts about this machine from earlier processes: small records in the database of the disk cache, so that no process
learns them again.

Each has a digest. A record that is damaged, old, too large or of another version is as good as none, and so is a
database that cannot be used: nothing here ever fails. `VYRE_CACHE=off` is about compiled programs; these are kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ..pipeline.key import digest_of
from ..pipeline.store import DiskPipelineCache, count

if TYPE_CHECKING:
    from ..pipeline.database import Database

SCHEMA = 3
MAX_BYTES = 64 * 1024
MOST_RECORDS = 256
"""Beyond it, those go that were written first."""
REFUSAL_S = 24 * 3600.0
"""How long a refusal is remembered: its cause may be gone without a trace in the key."""


class Remembered(NamedTuple):
    """A record as it is listed: when it was written, and until when it holds; None: while its key does."""

    name: str
    written_s: float
    until_s: float | None


def recall(name: str, key: str) -> dict[str, Any] | None:
    """The record that was remembered under this name with exactly this key. Its fields are for the caller to check."""
    try:
        return DiskPipelineCache.shared().attempt(lambda database: _recalled(database, name, key), None, look=True)
    except Exception:  # a row can hold anything
        return None


def remember(name: str, key: str, record: dict[str, Any], *, for_s: float | None = None) -> None:
    """Keep a record of JSON values, replacing what was there; `for_s` seconds, or while the key holds."""
    try:
        text = json.dumps({"key": key, "written": time.time(), "for_s": for_s, "record": record})
        if len(text) <= MAX_BYTES:
            DiskPipelineCache.shared().attempt(lambda database: _keep(database, name, text), None)
    except Exception:  # of a plugin's record that JSON cannot hold, say
        _tell("a record of %s was not kept", name)


def forget(name: str) -> None:
    """Drop a record that turned out to be wrong."""
    try:
        DiskPipelineCache.shared().attempt(lambda database: _drop(database, name), None, look=True)
    except Exception:
        _tell("a record of %s was not dropped", name)


def _tell(what: str, name: str) -> None:
    """Log it, with the error that is being handled."""
    import logging  # which costs milliseconds, and is needed only here

    logging.getLogger("vyre.cache").debug(what, name, exc_info=True)


# -- for people: these raise a CacheProblem with what to do


def remembered(database: Database) -> list[Remembered]:
    """All sound records, by name."""
    return sorted(found for _, found in _looked_at(database) if found is not None)


def verify(database: Database) -> list[str]:
    """Look at every record; throw out those whose digest does not fit, and say which."""
    bad = [name for name, found in _looked_at(database) if found is None]
    for name in bad:
        _drop(database, name, quarantined=1)
    return bad


# ---- rows -----------------------------------------------------------------------------------------------------------


def seal_of(name: str, text: str) -> bytes:
    return digest_of(f"vyre.probe.{SCHEMA}", name, text)


def _keep(database: Database, name: str, text: str) -> None:
    if database.readonly:
        return
    with database.writing() as connection:
        connection.execute("INSERT OR REPLACE INTO probes VALUES (?, ?, ?)", (name, text, seal_of(name, text)))
        connection.execute(
            "DELETE FROM probes WHERE rowid NOT IN (SELECT rowid FROM probes ORDER BY rowid DESC LIMIT ?)",
            (MOST_RECORDS,),
        )


def _drop(database: Database, name: str, *, quarantined: int = 0) -> None:
    if not database.readonly:
        with database.writing() as connection:
            connection.execute("DELETE FROM probes WHERE name=?", (name,))
            count(connection, quarantined=quarantined)


def _recalled(database: Database, name: str, key: str) -> dict[str, Any] | None:
    with database.borrowed() as connection:
        row = connection.execute("SELECT entry, seal FROM probes WHERE name=?", (name,)).fetchone()
    if row is None:
        return None
    entry = _opened(name, *row)
    if entry is None:
        _drop(database, name, quarantined=1)
        return None
    age = time.time() - entry.written_s
    is_current = entry.key == key and age >= 0 and (entry.for_s is None or age < entry.for_s)  # a NaN is neither
    return entry.record if is_current else None


def _looked_at(database: Database) -> Iterator[tuple[str, Remembered | None]]:
    with database.borrowed() as connection:
        rows = connection.execute("SELECT name, entry, seal FROM probes").fetchall()
    for name, *row in rows:
        entry = _opened(name, *row)
        until = None if entry is None or entry.for_s is None else entry.written_s + entry.for_s
        yield name, None if entry is None else Remembered(name, entry.written_s, until)


class _Entry(NamedTuple):
    key: str
    written_s: float
    for_s: float | None
    record: dict[str, Any]


def _opened(name: object, text: object, seal: object) -> _Entry | None:
    """The entry of a row, if it is what was written."""
    if not (isinstance(name, str) and isinstance(text, str) and len(text) <= MAX_BYTES and seal == seal_of(name, text)):
        return None
    entry = json.loads(text)
    match entry:
        case {"key": str(), "written": float(), "for_s": None | float(), "record": dict()}:
            return _Entry(entry["key"], entry["written"], entry["for_s"], entry["record"])
    return None
