"""Which compiler made the code? Part of every key, and so of every row on disk."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ...foundation.formats.blake3 import blake3
from ..settings.folders import cache_dir, why_not_ours
from ..settings.knobs import CACHE

if TYPE_CHECKING:
    from ..contract.backend import VyreBackend

LAYERS = ("foundation", "driver", "lower", "runtime", "backends")
"""Those that take part in making code of a program."""
MOST_STATES = 16
"""Installations, and states of a checkout, whose digests are kept."""
_DIGITS = 16


def toolchain_of(backend: VyreBackend) -> str:
    """This package and the backend, each with its version, and this package's own source: two states of a checkout
    have one version."""
    package = __name__.partition(".")[0]
    version = sys.modules[package].__version__
    return f"{package} {version} ({sources()}); {backend.id} {backend.version}"


@cache
def sources() -> str:
    """A digest of the source of the layers that make code."""
    return digest_of_sources(Path(__file__).parents[2])


def digest_of_sources(root: Path) -> str:
    """Of the files in the folders of the `LAYERS`.

    Reading them takes 10 ms, so the digest is kept in the cache, under a name that changes when Python would make
    bytecode anew: with the time or the size of a file.
    """
    files = sorted(_files(str(root)))
    state = blake3("".join(f"{name} {mtime} {size}\n" for name, mtime, size in files).encode()).hex()[:32]
    folder = None if CACHE.value() == "off" else cache_dir() / "sources"
    known = "" if folder is None else _kept(folder, state)
    if len(known) == _DIGITS and known.isalnum():
        return known
    text = b"".join(blake3(name.encode()) + blake3(_read(root / name, size)) for name, _, size in files)
    found = blake3(text).hex()[:_DIGITS]
    if folder is not None and CACHE.value() == "on":
        _keep(folder, state, found)
    return found


def _read(path: Path, nbytes: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(nbytes)


def _files(root: str) -> list[tuple[str, int, int]]:
    """Name, time and size of each."""
    found, folders = [], [f"{root}{os.sep}{layer}" for layer in LAYERS]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    info = entry.stat()
                    name = entry.path[len(root) + 1 :].replace(os.sep, "/")
                    found.append((name, info.st_mtime_ns, info.st_size))
                elif entry.name != "__pycache__" and entry.is_dir():
                    folders.append(entry.path)
    return found


def _kept(folder: Path, state: str) -> str:
    try:
        ours = why_not_ours(folder.stat()) is None and why_not_ours(folder.parent.stat()) is None
        return _read(folder / state, 64).decode("ascii") if ours else ""
    except (OSError, ValueError):
        return ""


def _keep(folder: Path, state: str, found: str) -> None:
    """In one step, and instead of the oldest. Where that cannot be, it is read again next time."""
    part = folder / f".{state}.{os.getpid()}"
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        with open(part, "x", encoding="ascii") as file:
            file.write(found)
        os.replace(part, folder / state)
        for old in sorted(os.scandir(folder), key=lambda entry: entry.stat().st_mtime_ns)[:-MOST_STATES]:
            os.unlink(old)
    except OSError:
        return
