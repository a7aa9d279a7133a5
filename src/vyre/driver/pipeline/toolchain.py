"""Which compiler made the code, and of which sources? Part of every key, and so of every row on disk.

A backend of another package says its version. Of this package every part that takes part in making code says the digest
of its source, and every function of the math library that of its definition: a new release, or an edited checkout,
loses only the code that the changed parts made.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...foundation.formats.blake3 import blake3
from ...foundation.ir.ops import FUNCTION_IDS
from ..device_state import WatchedBackend
from ..settings.folders import cache_dir, why_not_ours
from ..settings.knobs import CACHE

if TYPE_CHECKING:
    from ...foundation.ir.program import Program
    from ..contract.backend import VyreBackend

PARTS = {
    "foundation": ("foundation",),
    "driver": ("driver/contract", "driver/pipeline", "driver/plan", "driver/policy"),
    "lower": ("lower",),
    "runtime": ("runtime",),
}
"""What takes part in making code for every backend, by folders; `BACKENDS` has a part for each backend."""
BACKENDS = "backends"
NO_PART = ("foundation/language", "foundation/meaning/mathlib")
"""What a program is read from reaches code through its fingerprint, and a function through its definition."""
PART_AFTER_ALL = ("foundation/meaning/mathlib/__init__.py", "foundation/meaning/mathlib/expand.py")
SOURCE, FUNCTION = "source.", "function."
"""How the fields of a key begin that say what made its code."""
MOST_STATES = 16
"""Installations, and states of a checkout, whose digests are kept."""
MOST_BYTES = 1 << 16
_DIGITS = 16
_PACKAGE = __name__.partition(".")[0]
_ROOT = Path(__file__).parents[2]
_ALL = ".functions"
_FUNCTIONS = {op.text: op for op in FUNCTION_IDS}


def toolchain_of(backend: VyreBackend) -> str:
    """The compiler of a backend, if it says which, and the backend, with its version if it comes from elsewhere."""
    compiler = backend.capability.extras.get("compiler")
    own = _folder_of(_class_of(backend)) is not None
    return (f"{compiler}; " if compiler else "") + (backend.id if own else f"{backend.id} {backend.version}")


def lineage_of(backend: VyreBackend, program: Program) -> tuple[tuple[str, str], ...]:
    """What takes part in making the code of a program: name -> digest of its source, or of its definition."""
    own = filter(None, map(_folder_of, _class_of(backend).__mro__))
    used = (*(SOURCE + part for part in (*PARTS, *dict.fromkeys(own))), *(FUNCTION + f for f in functions_of(program)))
    return tuple((name, digest_of_part(name)) for name in used)


def functions_of(program: Program) -> tuple[str, ...]:
    """The functions of the math library that a program uses."""
    return program._cached(
        "driver.functions", lambda: tuple(sorted(op.text for op, id in FUNCTION_IDS.items() if id in program.ops()))
    )


def impacted_entries(lineages: Iterable[Mapping[str, Any]]) -> list[bool]:
    """For the fields of each key whether a part that made its code has changed since: no key finds such code here."""
    return [
        any(name.startswith((SOURCE, FUNCTION)) and digest_of_part(name) != digest for name, digest in lineage.items())
        for lineage in lineages
    ]


def digest_of_part(name: str) -> str:
    """The digest that a part has now, by the field of a key; empty for a function that there is no more."""
    kind, dot, part = name.partition(".")
    if kind + dot == SOURCE:
        return sources().get(part) or _digest([])
    return version_of(part) if part in _FUNCTIONS else ""


def _class_of(backend: VyreBackend) -> type:
    return type(backend.inner if isinstance(backend, WatchedBackend) else backend)


def _folder_of(of: type) -> str | None:
    """The folder of this package that a backend lies in; None: it comes from elsewhere."""
    package, *inside = of.__module__.split(".")
    return "/".join(inside[:2]) if package == _PACKAGE and inside[:1] == [BACKENDS] else None


# ---- digests --------------------------------------------------------------------------------------------------------


@cache
def sources() -> dict[str, str]:
    """Part -> digest of its source."""
    return digests_of_sources(_ROOT, _installed())


def digests_of_sources(root: Path, files: list[tuple[str, int, int]] | None = None) -> dict[str, str]:
    """Of the parts below a folder, with these files. Reading them takes 10 ms, so the digests are kept."""
    there = _files(str(root)) if files is None else files
    return _kept(_state(there), lambda: _digests(root, there))


@cache
def _installed() -> list[tuple[str, int, int]]:
    return _files(str(_ROOT))


@lru_cache(maxsize=64)
def version_of(function: str) -> str:
    """A digest of the steps that a function of the math library is computed by."""
    known = _definitions()
    return known[function] if function in known else _definition(function)


@cache
def _definitions() -> dict[str, str]:
    """The digests of all of them, where they are kept: making them takes 170 ms."""
    state = f"{_state(_installed())}{_ALL}"
    return _kept(state, lambda: {each: _definition(each) for each in _FUNCTIONS} if CACHE.value() == "on" else {})


def _definition(function: str) -> str:
    from ...foundation.ir.dtypes import f32, f64
    from ...foundation.meaning.mathlib import definition, functions

    op = _FUNCTIONS[function]
    return _digest([definition(op, t).fingerprint.encode() for t in (f32, f64) if op in functions(t)])


def _digests(root: Path, files: list[tuple[str, int, int]]) -> dict[str, str]:
    texts: dict[str, list[bytes]] = {name: [] for name in PARTS}
    for name, _, size in files:
        if (part := part_of(name)) is not None:
            each = blake3(name.encode()) + blake3(_read(root / name, size))
            texts.setdefault(part, []).append(each)
    return {part: _digest(each) for part, each in texts.items()}


def _digest(files: list[bytes]) -> str:
    """Of a part without files, as where only bytecode is installed, the version stands for the source."""
    return blake3(b"".join(files) or _version().encode()).hex()[:_DIGITS]


def _version() -> str:
    found: str = sys.modules[_PACKAGE].__version__
    return found


def part_of(file: str) -> str | None:
    """The part of the package that a file belongs to, if it takes part in making code."""
    if file.startswith(_below(NO_PART)) and file not in PART_AFTER_ALL:
        return None
    if file.startswith(f"{BACKENDS}/"):
        return "/".join(file.split("/")[:2])
    return next((part for part, folders in PARTS.items() if file.startswith(_below(folders))), None)


def _below(folders: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{folder}/" for folder in folders)


def _state(files: list[tuple[str, int, int]]) -> str:
    """A name that changes when Python would make bytecode anew: with the time or the size of a file."""
    listed = [
        _version(),
        repr((PARTS, NO_PART, PART_AFTER_ALL)),
        *(f"{name} {mtime} {size}" for name, mtime, size in files),
    ]
    return blake3("\n".join(listed).encode()).hex()[:32]


def _files(root: str) -> list[tuple[str, int, int]]:
    """Name, time and size of each, sorted."""
    found, folders = [], [BACKENDS, *(folder for part in PARTS.values() for folder in part)]
    while folders:
        folder = folders.pop()
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(f"{root}/{folder}") as entries:
            for entry in entries:
                name = f"{folder}/{entry.name}"
                if name.endswith(".py"):
                    info = entry.stat()
                    found.append((name, info.st_mtime_ns, info.st_size))
                elif entry.name != "__pycache__" and entry.is_dir():
                    folders.append(name)
    return sorted(found)


def _read(path: Path, nbytes: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(nbytes)


# ---- kept digests ---------------------------------------------------------------------------------------------------


def _kept(state: str, make: Callable[[], dict[str, str]]) -> dict[str, str]:
    """What was made in this state before, by any process of this user."""
    folder = None if CACHE.value() == "off" else cache_dir() / "sources"
    known = None if folder is None else _known(folder, state)
    if known is not None:
        return known
    found = make()
    if folder is not None and CACHE.value() == "on":
        _keep(folder, state, json.dumps(found))
    return found


def _known(folder: Path, state: str) -> dict[str, str] | None:
    try:
        if why_not_ours(folder.stat()) is not None or why_not_ours(folder.parent.stat()) is not None:
            return None
        found = json.loads(_read(folder / state, MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    whole = isinstance(found, dict) and all(map(_is_digest, found.values()))
    return found if whole and found.keys() >= set(_FUNCTIONS if state.endswith(_ALL) else PARTS) else None


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and len(text) == _DIGITS and text.isalnum()


def _keep(folder: Path, state: str, text: str) -> None:
    """In one step, and instead of the oldest. Where that cannot be, it is made again next time."""
    part = folder / f".{state}.{os.getpid()}"
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        with open(part, "x", encoding="ascii") as file:
            file.write(text)
        os.replace(part, folder / state)
        for old in sorted(os.scandir(folder), key=lambda entry: entry.stat().st_mtime_ns)[:-MOST_STATES]:
            os.unlink(old)
    except OSError:
        return
