"""Which files set something, and what do they say? The project's file wins over the user's.

The project's file is the first one met on the way up from the current folder: `vyre.toml`, else a `pyproject.toml` with
a table `[tool.vyre]`. The way ends at the root of a repository (a folder with `.git`) or of the file system. The user's
file is `vyre/config.toml` in the platform's folder for settings.

A file is obeyed only if it belongs to this user or to root and no other user can write to it: on the way up may be
folders where anyone can put one. A mistake in a file never stops a call. It is logged once, and the call goes on
with the settings of the other files, or with the defaults.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from ...errors import ArgumentValueError, VyreError

PROJECT_FILE = "vyre.toml"
SHARED_FILE = "pyproject.toml"
USER_FILE = "config.toml"
MAX_BYTES = 1 << 20
_MAY_BE_OURS = re.compile(rb"""tool["']?\s*(\.\s*["']?vyre|\]|=)""")
"""`[tool.vyre]`, and the other ways to write that table."""

Parse: TypeAlias = Callable[[str, object, str], Any]
"""Name, value and path -> the value as its knob wants it."""
_Seen: TypeAlias = tuple[str, int, int, int, int, int]
"""A file with its identity, the times when its content and its permissions changed, its permissions and its size."""


class Problem(NamedTuple):
    """Why a file, or one setting of it, is not obeyed."""

    path: str
    message: str
    fix: str

    def __str__(self) -> str:
        return f"{self.message}. Fix: {self.fix}"


class Files(NamedTuple):
    """The settings of the files, each with the path of its file; which files are obeyed, and their problems."""

    state: tuple[_Seen, ...] | None = None
    values: Mapping[str, Any] = {}
    paths: Mapping[str, str] = {}
    project: str | None = None
    user: str | None = None
    problems: tuple[Problem, ...] = ()


class _PassedBy(ArgumentValueError):
    """A file that counts as if it were not there: a project's file further up may be obeyed."""


UNREAD = Files()


def look(before: Files, parse: Parse) -> Files:
    """The settings of the files now; `before` itself where no file has changed."""
    project, user = project_candidates(), user_path()
    state = tuple(seen for path in (*project, user) if (seen := _seen(path)) is not None)
    if state == before.state:
        return before
    there = [path for path, *_ in state]
    values: dict[str, Any] = {}
    paths: dict[str, str] = {}
    problems: list[Problem] = []
    obeyed: dict[bool, str] = {}
    for path in sorted(there, key=lambda path: path != user):
        try:
            if (table := _table(path)) is None:
                continue
        except VyreError as e:
            problems.append(Problem(path, e.message, e.fix))
            if isinstance(e, _PassedBy):
                continue
            table = {}
        for name, value in table.items():
            try:
                values[name] = parse(name, value, path)
                paths[name] = path
            except VyreError as e:
                problems.append(Problem(path, e.message, e.fix))
        obeyed[path == user] = path
        if path != user:
            break
    return Files(state, values, paths, obeyed.get(False), obeyed.get(True), tuple(problems))


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
    return path, info.st_ino, info.st_mtime_ns, info.st_ctime_ns, info.st_mode, info.st_size


def _table(path: str) -> Mapping[str, Any] | None:
    """The settings of a file; None for a `pyproject.toml` that is not about us."""
    shared = os.path.basename(path) == SHARED_FILE
    try:
        others = _others(os.lstat(path), is_link=True) if os.path.islink(path) else None
        with open(path, "rb", opener=_open) as file:
            info = os.fstat(file.fileno())
            others = others or _others(info)
            blob = file.read(MAX_BYTES + 1) if stat.S_ISREG(info.st_mode) else b""
    except OSError as e:
        raise _PassedBy(f"{path} cannot be read: {e.strerror}", fix="let this user read it, or remove it") from e
    if shared and _MAY_BE_OURS.search(blob) is None:
        return None  # as most are; reading TOML takes some milliseconds
    if others is not None:
        raise _PassedBy(f"{path} {others}, so its settings are not obeyed", fix=_MAKE_IT_YOURS)
    if len(blob) > MAX_BYTES:
        raise ArgumentValueError(f"{path} is longer than {MAX_BYTES} bytes", fix="keep only settings in it")
    import tomllib

    try:
        table: Any = tomllib.loads(blob.decode())
    except (ValueError, RecursionError) as e:  # also for bytes that are not text
        raise ArgumentValueError(f"{path} is not TOML: {e}", fix="correct it at that place") from e
    if shared:
        tool = table.get("tool")
        table = tool.get("vyre") if isinstance(tool, dict) else None
        if table is not None and not isinstance(table, dict):
            raise ArgumentValueError(f"tool.vyre={table!r} in {path} is not a table", fix="write a table: [tool.vyre]")
    return table  # type: ignore[no-any-return]


_MAKE_IT_YOURS = "let it belong to this user and be written by no other (chmod go-w), or remove it"


def _open(path: str, flags: int) -> int:
    """Open without waiting for the other end of a pipe that took the place of the file."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _others(info: os.stat_result, *, is_link: bool = False) -> str | None:
    """Which other user may have written a file, or made a link to it; or None.

    A group is others, unless it is the one that the user's files get. A link has an owner, and no mode of its own.
    """
    if os.name == "nt":
        return None  # mode bits say nothing there
    if info.st_uid not in (os.geteuid(), 0):
        return "is a link of another user" if is_link else "belongs to another user"
    if is_link:
        return None
    if info.st_mode & stat.S_IWOTH or (info.st_mode & stat.S_IWGRP and info.st_gid != os.getegid()):
        return "can be written by others"
    return None
