"""Which files set something, and what do they say? The project's file wins over the user's.

The project's file is the first one met on the way up from the current folder: `vyre.toml`, else a `pyproject.toml` with
a table `[tool.vyre]`. The way ends at the root of a repository (a folder with `.git`) or of the file system. The user's
file is `vyre/config.toml` in the platform's folder for settings.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from ..errors import ArgumentValueError, VyreError

PROJECT_FILE = "vyre.toml"
SHARED_FILE = "pyproject.toml"
USER_FILE = "config.toml"
MAX_BYTES = 1 << 20
_MAY_BE_OURS = re.compile(rb"""tool["']?\s*(\.\s*["']?vyre|\]|=)""")
"""`[tool.vyre]`, and the other ways to write that table."""

Parse: TypeAlias = Callable[[str, object, str], Any]
"""Name, value and path -> the value as its knob wants it."""
_Seen: TypeAlias = tuple[str, int, int, int, int]
"""A file with its identity, the times when its content and its permissions changed, and its size."""


class Files(NamedTuple):
    """What the files set, each with the path of its file; or what is wrong with one of them."""

    state: tuple[_Seen, ...] | None = None
    values: Mapping[str, Any] = {}
    paths: Mapping[str, str] = {}
    project: str | None = None
    error: Mistake | None = None


class Mistake:
    """An error that is raised anew for everyone who needs the files."""

    def __init__(self, error: VyreError) -> None:
        self._made = type(error), error.message, error.fix, error.context

    def again(self) -> VyreError:
        cls, message, fix, context = self._made
        return cls(message, fix=fix, **context)


UNREAD = Files()


def look(before: Files, parse: Parse) -> Files:
    """What the files say now; `before` itself where they are as they were."""
    project, user = project_candidates(), user_path()
    state = tuple(seen for path in (*project, user) if (seen := _seen(path)) is not None)
    if state == before.state:
        return before
    there = [path for path, *_ in state]
    values: dict[str, Any] = {}
    paths: dict[str, str] = {}
    found: str | None = None
    try:
        if user in there:
            _add(_table(user), user, parse, values, paths)
        for path in there:
            if path != user and (table := _table(path)) is not None:
                _add(table, path, parse, values, paths)
                found = path
                break
    except VyreError as e:
        return Files(state, error=Mistake(e))
    return Files(state, values, paths, found)


def project_candidates() -> list[str]:
    """Where the project's file may be, nearest first."""
    try:
        folder = os.getcwd()
    except OSError:
        return []  # it was removed
    return [os.path.join(up, name) for up in _upwards(folder) for name in (PROJECT_FILE, SHARED_FILE)]


def user_path() -> str:
    """Where the user's file is, if there is one."""
    if sys.platform == "linux" and "ANDROID_ROOT" not in os.environ:
        base = os.environ.get("XDG_CONFIG_HOME", "").strip() or os.path.expanduser("~/.config")
        return os.path.join(base, "vyre", USER_FILE)  # as platformdirs has it; importing that takes 8 ms
    import platformdirs

    return os.path.join(platformdirs.user_config_dir("vyre", appauthor=False), USER_FILE)


def _upwards(folder: str) -> Iterator[str]:
    while True:
        yield folder
        above = os.path.dirname(folder)
        if above == folder or os.path.lexists(os.path.join(folder, ".git")):
            return
        folder = above


def _seen(path: str) -> _Seen | None:
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(info.st_mode):
        return None
    return path, info.st_ino, info.st_mtime_ns, info.st_ctime_ns, info.st_size


def _table(path: str) -> Mapping[str, Any] | None:
    """The settings of a file; None for a `pyproject.toml` that is not about us."""
    shared = os.path.basename(path) == SHARED_FILE
    try:
        with open(path, "rb") as file:
            blob = file.read(MAX_BYTES + 1)
    except OSError as e:
        raise ArgumentValueError(
            f"{path} cannot be read: {e.strerror}", fix="let this user read it, or remove it"
        ) from e
    if shared and _MAY_BE_OURS.search(blob) is None:
        return None  # as most are; reading TOML takes some milliseconds
    if len(blob) > MAX_BYTES:
        raise ArgumentValueError(f"{path} is longer than {MAX_BYTES} bytes", fix="keep only settings in it")
    import tomllib

    try:
        table: Any = tomllib.loads(blob.decode())
    except (ValueError, RecursionError) as e:  # bytes that are no text, too
        raise ArgumentValueError(f"{path} is not TOML: {e}", fix="correct it at that place") from e
    if shared:
        tool = table.get("tool")
        table = tool.get("vyre") if isinstance(tool, dict) else None
        if table is not None and not isinstance(table, dict):
            raise ArgumentValueError(f"tool.vyre={table!r} in {path} is no table", fix="write a table: [tool.vyre]")
    return table  # type: ignore[no-any-return]


def _add(
    table: Mapping[str, Any] | None, path: str, parse: Parse, values: dict[str, Any], paths: dict[str, str]
) -> None:
    for name, value in (table or {}).items():
        values[name] = parse(name, value, path)
        paths[name] = path
