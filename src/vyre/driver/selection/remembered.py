"""What did a backend's probe learn last time? Remembered on disk, so that choosing need not load every device library.

One small file per backend under the cache directory, which ends in a check of its bytes. A file that is damaged, old,
too large, of another version or in a directory that others can write to is as good as none: nothing here ever fails.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..contract.registration import DeviceInfo
from ..settings.knobs import CACHE_DIR

SCHEMA = 1
MAX_BYTES = 64 * 1024
MAX_AGE_S = 24 * 3600.0
"""Of a refusal: what was in the way may be gone without a trace in the key. What was found stays as long as its key: if
it is there no longer, opening it makes it forgotten."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Why a backend would not open (None: it would), and its devices."""

    unavailable: str | None = None
    devices: tuple[DeviceInfo, ...] = ()

    @property
    def emulated(self) -> bool:
        """Whether there are devices and all of them run on the processor."""
        return bool(self.devices) and all(d.emulated for d in self.devices)


def cache_dir() -> Path:
    """Where vyre keeps what it can do without: the setting `cache_dir`, else the platform's place."""
    if given := CACHE_DIR.value():
        return Path(given)
    import platformdirs  # only those pay for it who have something to remember

    return Path(platformdirs.user_cache_dir("vyre", appauthor=False))


def recall(backend: str, key: str) -> Probe | None:
    """What was learned under exactly this key; a refusal, less than a day ago."""
    try:
        if (folder := _folder()) is None:
            return None
        file = folder / f"{backend}.json"
        if not file.is_file():
            return None  # to open a pipe would wait for its other end
        with file.open("rb") as opened:
            blob = opened.read(MAX_BYTES + 1)
        if len(blob) > MAX_BYTES or (entry := _opened(blob)) is None:
            return None
        return _decode(entry, backend, key)
    except Exception:  # a file can hold anything
        return None


def remember(backend: str, key: str, probe: Probe) -> None:
    """Keep what was learned, replacing what was there in one step."""
    entry = {
        "schema": SCHEMA,
        "backend": backend,
        "key": key,
        "written": time.time(),
        "unavailable": probe.unavailable,
        "devices": [asdict(d) for d in probe.devices],
    }
    import tempfile  # 3 ms that only those pay who learn something

    try:
        blob = sealed(entry)
        if len(blob) > MAX_BYTES or (folder := _folder(create=True)) is None:
            return
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{backend}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(blob)
            os.replace(name, folder / f"{backend}.json")
        except OSError:
            os.unlink(name)
    except (OSError, ValueError, TypeError):
        return


def forget(backend: str) -> None:
    """Drop what is remembered: it turned out to be wrong."""
    try:
        if (folder := _folder()) is not None:
            (folder / f"{backend}.json").unlink(missing_ok=True)
    except (OSError, ValueError):
        return


def state_key(*, packages: Iterable[str] = (), files: Iterable[str] = (), environ: Iterable[str] = ()) -> str:
    """A text for `BackendRegistration.probe_key`: it changes when a package gets another version, when one of the files
    (glob patterns) appears, goes, is written to or is opened to this user, or when one of the environment variables is
    set otherwise. Elsewhere than on Linux devices come and go without a file, and the text changes every day."""
    from glob import glob
    from importlib import metadata

    found: dict[str, object] = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    for pattern in files:
        for path in sorted(glob(os.path.expanduser(pattern))):
            try:
                found[path] = os.stat(path).st_mtime_ns, os.access(path, os.R_OK | os.W_OK)
            except OSError:
                found[path] = None
    for name in environ:
        found[f"${name}"] = os.environ.get(name)
    if sys.platform != "linux":
        found["day"] = time.time() // MAX_AGE_S
    return json.dumps(found, sort_keys=True)


def _folder(*, create: bool = False) -> Path | None:
    """The directory of the files, if nobody else can write to it or put another in its place."""
    top = cache_dir()
    folder = top / "probes"
    if create:
        top.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder if _ours(top) and _ours(folder) else None


def _ours(folder: Path) -> bool:
    info = folder.stat()
    if os.name == "nt":
        return True  # mode bits say nothing there
    return info.st_uid == os.getuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


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


def _decode(entry: Any, backend: str, key: str) -> Probe | None:
    if (entry["schema"], entry["backend"], entry["key"]) != (SCHEMA, backend, key):
        return None
    why, devices = entry["unavailable"], tuple(DeviceInfo(**d) for d in entry["devices"])
    if type(entry["written"]) is not float:
        return None
    age = time.time() - entry["written"]
    if not age >= 0 or (why is not None and age >= MAX_AGE_S):  # it may be no number
        return None
    if why is not None and not isinstance(why, str):
        return None
    typed = all((type(d.index), type(d.name), type(d.emulated)) == (int, str, bool) for d in devices)
    return Probe(why, devices) if typed else None
