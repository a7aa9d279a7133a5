"""Whose compiler made the code? Part of every key, and so of what is kept on disk."""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING

from ...foundation.formats.blake3 import blake3

if TYPE_CHECKING:
    from ..contract.backend import VyreBackend

LAYERS = ("foundation", "driver", "lower", "runtime", "backends")
"""Those that take part in making code of a program."""


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

    Reading them takes 10 ms, so the digest is kept beside the bytecode, under a name that changes when bytecode is made
    anew: with the time or the size of a file.
    """
    files = sorted(_files(root))
    state = blake3("".join(f"{name} {mtime} {size}\n" for name, mtime, size in files).encode()).hex()[:32]
    kept = Path(cache_from_source(str(root / "__init__.py"))).parent / f"sources-{state}"
    try:
        known = _read(kept, 64).decode("ascii").strip()
    except (OSError, ValueError):
        known = ""
    if len(known) == 16 and known.isalnum():
        return known
    text = b"".join(blake3(name.encode()) + blake3(_read(root / name, size)) for name, _, size in files)
    found = blake3(text).hex()[:16]
    if not sys.dont_write_bytecode:
        _keep(kept, found)
    return found


def _read(path: Path, nbytes: int) -> bytes:
    with path.open("rb") as file:
        return file.read(nbytes)


def _files(root: Path) -> list[tuple[str, int, int]]:
    """Name, time and size of each."""
    found, folders = [], [str(root / layer) for layer in LAYERS]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    info = entry.stat()
                    name = os.path.relpath(entry.path, root).replace(os.sep, "/")
                    found.append((name, info.st_mtime_ns, info.st_size))
                elif entry.name != "__pycache__" and entry.is_dir():
                    folders.append(entry.path)
    return found


def _keep(place: Path, found: str) -> None:
    """In one step, and instead of those of earlier states. It is a pity where that cannot be, and nothing else."""
    part = place.with_name(f"{place.name}.{os.getpid()}")
    try:
        part.write_text(found, "ascii")
        for old in place.parent.glob("sources-*"):
            if old != part:
                old.unlink(missing_ok=True)
        os.replace(part, place)
    except OSError:
        return
