"""Stored pipelines in one file, to take to another machine. An entry is used only where its digests fit.

The file is a zip: `pipelines.json` says what there is, and each payload lies under the digest of its key.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ArgumentValueError
from .key import KeyRecord, digest_of
from .store import MAX_DISK_PIPELINE_BLOB_BYTES, DiskPipelineCache

if TYPE_CHECKING:
    import zipfile

INDEX = "pipelines.json"
FORMAT = 1
MAX_INDEX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Archived:
    """An entry of a file; `payload` is None where its digests do not fit."""

    record: KeyRecord
    payload: bytes | None


def write_archive(store: DiskPipelineCache, path: Path, backend: str | None = None) -> list[KeyRecord]:
    """Write the stored pipelines of one backend or of all, replacing the file in one step; returns those written."""
    import zipfile

    written, rows = [], []
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(part, "x", zipfile.ZIP_DEFLATED) as file:
            for entry in store.entries():
                if backend not in (None, entry.record.fields.get("backend_id")):
                    continue
                payload = store.payload(entry.key)
                if payload is None:
                    continue
                record = entry.record
                rows.append(
                    {
                        "record": record.text,
                        "name": record.name,
                        "device": dict(record.device),
                        "seal": _seal(record, payload).hex(),
                    }
                )
                file.writestr(f"payload/{entry.key.hex()}", payload)
                written.append(record)
            file.writestr(INDEX, json.dumps({"format": FORMAT, "entries": rows}))
        part.chmod(0o600)
        os.replace(part, path)
    except OSError as e:
        raise ArgumentValueError(f"{path} cannot be written: {e.strerror or e}", fix="name another file") from e
    finally:
        part.unlink(missing_ok=True)
    return written


def read_archive(path: Path) -> Iterator[Archived]:
    """Every entry of a file that `write_archive` made."""
    import zipfile

    with _told(path):
        file = zipfile.ZipFile(path)
    with file:
        with _told(path):
            index = json.loads(_member(file, INDEX, MAX_INDEX_BYTES) or b"")
            format, rows = index["format"], list(index["entries"])
        if format != FORMAT:
            raise ArgumentValueError(
                f"{path} has format {format!r}", fix="import it with the version of vyre that exported it"
            )
        for row in rows:
            with _told(path):
                entry = _entry(file, row)
            yield entry


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """A file may hold anything."""
    import zipfile

    try:
        yield
    except OSError as e:
        raise ArgumentValueError(f"{path} cannot be read: {e.strerror or e}", fix="name a file of yours") from e
    except (zipfile.BadZipFile, NotImplementedError, ValueError, LookupError, TypeError, RecursionError) as e:
        raise ArgumentValueError(f"{path} is not an export of vyre: {e}", fix="make one: vyre cache export FILE") from e


def _entry(file: zipfile.ZipFile, row: dict[str, Any]) -> Archived:
    record = KeyRecord.parsed(row["record"], json.dumps(row["device"]), str(row["name"]))
    payload = _member(file, f"payload/{record.digest().hex()}", MAX_DISK_PIPELINE_BLOB_BYTES)
    whole = payload is not None and _seal(record, payload).hex() == row["seal"]
    return Archived(record, payload if whole else None)


def _member(file: zipfile.ZipFile, name: str, most: int) -> bytes | None:
    """The bytes of a part of the file, if there is one that is not too long and is what was written."""
    import zipfile
    import zlib

    try:
        with file.open(name) as part:
            found = part.read(most + 1)
    except (KeyError, zipfile.BadZipFile, zlib.error, EOFError):
        return None
    return found if len(found) <= most else None


def _seal(record: KeyRecord, payload: bytes) -> bytes:
    return digest_of(f"vyre.archive.{FORMAT}", record.text, record.name, payload)
