"""Which packages are installed, and which entry points do they name?

Read from the folders on the path. `importlib.metadata` gives the same answers and takes 30 ms of a first call, most of
them to load a parser of mails; it is asked where packages may lie elsewhere than in folders.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING, Any

from ...errors import ArgumentValueError

if TYPE_CHECKING:
    from importlib.metadata import Distribution

_MOST = 1 << 20
"""Characters of a file of metadata that are read."""
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

    def may_be(self, names: Container[str]) -> bool:
        """Whether it is one of these, by the name of its folder, which costs nothing to look at."""
        stem = os.path.basename(self._folder).removesuffix(".egg-info").partition("-")[0]
        return not stem or _spelled(stem) in names

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
        except Exception:  # as above
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
                    raise _wrong(line)
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


def versions_of(names: Iterable[str]) -> dict[str, str | None]:
    """The version of each package, of the first on the path; None where it is not installed."""
    wanted = {_spelled(name): name for name in names}
    found: dict[str, str | None] = dict.fromkeys(wanted.values())
    for package in packages():
        if package.may_be(wanted) and (name := wanted.get(package.name or "")) is not None and found[name] is None:
            found[name] = package.version
    return found


def _spelled(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _only_folders() -> bool:
    """Whether each package lies in a folder of the path: no archive or egg is on it, and no finder brings others."""
    if not all(isinstance(p, str) and not p.endswith(".egg") and not os.path.isfile(p) for p in sys.path):  # type: ignore[redundant-expr]
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
            return file.read(_MOST)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):
        return None


def _text(package: Distribution, name: str) -> str | None:
    return package.read_text(name)


def _loaded(place: str) -> Any:
    """The object that an entry point names as `module:name`."""
    from importlib import import_module

    if (match := _OBJECT.fullmatch(place)) is None:
        raise _wrong(place)
    module, names = match.groups()
    return reduce(getattr, names.split(".") if names else (), import_module(module))


def _wrong(text: str) -> ArgumentValueError:
    return ArgumentValueError(f"{text!r} names no object", fix="write it as module:name")
