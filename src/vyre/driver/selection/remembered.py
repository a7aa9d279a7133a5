"""Facts about this machine from earlier processes: small records on disk, so that no process learns them again.

One file per record under the cache directory, which ends in a check of its bytes. A file that is damaged, old, too
large, of another version or in a directory that others can write to is as good as none: nothing here ever fails.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from ..settings.folders import cache_dir, why_not_ours

SCHEMA = 2
MAX_BYTES = 64 * 1024
REFUSAL_S = 24 * 3600.0
"""How long a refusal is remembered: its cause may be gone without a trace in the key."""


def recall(name: str, key: str) -> dict[str, Any] | None:
    """The record that was remembered under this name with exactly this key. Its fields are for the caller to check."""
    try:
        if (folder := _folder()) is None:
            return None
        file = folder / f"{name}.json"
        if not file.is_file():
            return None  # to open a pipe would wait for its other end
        with file.open("rb") as opened:
            blob = opened.read(MAX_BYTES + 1)
        if len(blob) > MAX_BYTES or (entry := _opened(blob)) is None:
            return None
        return _current(entry, name, key)
    except Exception:  # a file can hold anything
        return None


def remember(name: str, key: str, record: dict[str, Any], *, for_s: float | None = None) -> None:
    """Keep a record of JSON values, replacing what was there in one step; `for_s` seconds, or while the key holds."""
    entry = {"schema": SCHEMA, "name": name, "key": key, "written": time.time(), "for_s": for_s, "record": record}
    import tempfile  # 3 ms, only paid when a record is written

    try:
        blob = sealed(entry)
        if len(blob) > MAX_BYTES or (folder := _folder(create=True)) is None:
            return
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(blob)
            os.replace(temporary, folder / f"{name}.json")
        except OSError:
            os.unlink(temporary)
    except (OSError, ValueError, TypeError):
        return


def forget(name: str) -> None:
    """Drop a record that turned out to be wrong."""
    try:
        if (folder := _folder()) is not None:
            (folder / f"{name}.json").unlink(missing_ok=True)
    except (OSError, ValueError):
        return


def _folder(*, create: bool = False) -> Path | None:
    """The directory of the files, if only this user can write to it or replace it."""
    top = cache_dir()
    folder = top / "probes"
    if create:
        top.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder if why_not_ours(top.stat()) is None and why_not_ours(folder.stat()) is None else None


_SEAL = b', "check": "%08x"}'


def sealed(entry: dict[str, Any]) -> bytes:
    """The bytes of a file with this entry."""
    import zlib

    blob = json.dumps(entry).encode().removesuffix(b"}")
    return blob + _SEAL % zlib.crc32(blob)


def _opened(blob: bytes) -> Any:
    """The entry of a file, if its bytes are those that were written."""
    import zlib

    length = len(_SEAL % 0)
    entry, seal = blob[:-length], blob[-length:]
    return json.loads(entry + b"}") if seal == _SEAL % zlib.crc32(entry) else None


def _current(entry: Any, name: str, key: str) -> dict[str, Any] | None:
    """The record of an entry, if it is what was asked for and neither too old nor from the future."""
    if (entry["schema"], entry["name"], entry["key"]) != (SCHEMA, name, key):
        return None
    written, for_s, record = entry["written"], entry["for_s"], entry["record"]
    if type(written) is not float or type(for_s) not in (float, type(None)) or type(record) is not dict:
        return None
    age = time.time() - written
    return record if age >= 0 and (for_s is None or age < for_s) else None  # a NaN is neither
