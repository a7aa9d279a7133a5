"""Which packages are installed, and which entry points do they name?

Read from the folders on the path. `importlib.metadata` gives the same answers and takes 30 ms of a first call, most of
them to load a parser of mails; it is asked where packages may lie elsewhere than in folders.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import Distribution

_INFO = (".dist-info", ".egg-info")
_OBJECT = re.compile(r"\s*([\w.]+)\s*(?::\s*([\w.]+)\s*)?(?:\[.*\]\s*)?")


class Package:
    """One installed package. `read` gives the text of one of its files of metadata, None where there is none."""

    def __init__(self, read: Callable[[str], str | None], folder: str = "") -> None:
        self._read, self._folder = read, folder

    @cached_property
    def _head(self) -> dict[str, str]:
        text = self._read("METADATA") or self._read("PKG-INFO") or ""
        lines = text.partition("\n\n")[0].splitlines()
        found = (line.partition(":") for line in lines if not line[:1].isspace())
        return {name.strip().lower(): value.strip() for name, colon, value in found if colon}

    def may_be(self, name: str) -> bool:
        """By the name of its folder, which costs nothing to look at."""
        stem = os.path.basename(self._folder).removesuffix(".egg-info").partition("-")[0]
        return not stem or _spelled(stem) == name

    @property
    def name(self) -> str | None:
        """As all spellings of it are written; None where the metadata cannot be read."""
        try:
            return _spelled(self._head["name"])
        except Exception:  # a finder of another package reads it, and may raise anything
            return None

    @property
    def version(self) -> str:
        try:
            return self._head.get("version", "")
        except Exception:
            return ""

    @property
    def label(self) -> str:
        return "a package without metadata" if self.name is None else f"{self.name} {self.version}"

    def entry_points(self, group: str) -> list[tuple[str, Callable[[], Any]]]:
        """Names of a group, each with what loads its object."""
        text = self._read("entry_points.txt")
        if not text or group not in text:
            return []
        found: list[tuple[str, Callable[[], Any]]] = []
        section = ""
        for line in map(str.strip, text.splitlines()):
            if line.startswith("[") and line.endswith("]"):
                section = line[1:-1]
            elif section == group and line and not line.startswith("#"):
                name, equals, place = line.partition("=")
                if not equals:
                    raise ValueError(f"{line!r} names no object")
                found.append((name.strip(), partial(_loaded, place.strip())))
        return found


def packages() -> Iterator[Package]:
    """Every installed package, in the order of the path."""
    if not _only_folders():
        from importlib import metadata

        yield from (Package(partial(_text, package)) for package in metadata.distributions())
        return
    for place in dict.fromkeys(sys.path):
        try:
            with os.scandir(place or ".") as entries:
                infos = [entry.path for entry in entries if entry.name.lower().endswith(_INFO)]
        except OSError:
            continue
        yield from (Package(partial(_file, info), info) for info in infos)


def version_of(name: str) -> str | None:
    """The version of a package; None where it is not installed."""
    wanted = _spelled(name)
    return next((p.version for p in packages() if p.may_be(wanted) and p.name == wanted), None)


def _spelled(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _only_folders() -> bool:
    """Whether each package lies in a folder of the path: no archive is on it, and no finder brings others."""
    if not all(isinstance(place, str) and not os.path.isfile(place) for place in sys.path):  # type: ignore[redundant-expr]
        return False
    ours = ("_frozen_importlib_external", "_frozen_importlib", "importlib")
    return all(
        getattr(finder, "__module__", type(finder).__module__).partition(".")[0] in ours
        for finder in sys.meta_path
        if hasattr(finder, "find_distributions")
    )


def _file(folder: str, name: str) -> str | None:
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):
        return None


def _text(package: Distribution, name: str) -> str | None:
    return package.read_text(name)


def _loaded(place: str) -> Any:
    """The object that an entry point names as `module:name`."""
    from importlib import import_module

    if (match := _OBJECT.fullmatch(place)) is None:
        raise ValueError(f"{place!r} is no module with a name in it")
    module, names = match.groups()
    return reduce(getattr, names.split(".") if names else (), import_module(module))
