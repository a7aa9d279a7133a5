"""What may be set from outside a call: one table of knobs, and where each is set.

An argument of a call wins over `with vyre.config(...)`, that over an environment variable, that over the project's file
(`vyre.toml`, or `[tool.vyre]` of `pyproject.toml`), that over the user's file, and that over the default. Arguments,
`config()` and variables are read at every call; files when one is first needed, and again once they have changed, which
is looked for at most once in `LOOK_EVERY_S` seconds, so that a warm call stays cheap. A mistake in an argument or a
variable is an error; one in a file is logged once, and its setting is not set.

A backend declares knobs of its own in its registration; their names begin with its id: `cpu_threads`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from ...errors import ArgumentTypeError, ArgumentValueError, VyreError, shown
from .. import above
from .files import UNREAD, Files, Problem, look

T = TypeVar("T")
LOOK_EVERY_S = 1.0


# ---- kinds of values ------------------------------------------------------------------------------------------------


class Kind(Generic[T]):
    """The type of a knob. `parse` gives None for a text, or a value of `types`, that it cannot read."""

    __slots__ = ("blank_is_unset", "complaint", "fix", "parse", "types", "wants", "word")

    def __init__(
        self,
        word: str,
        types: tuple[type, ...],
        parse: Callable[[Any], T | None],
        *,
        complaint: str,
        fix: str,
        wants: str,
        blank_is_unset: bool = True,
    ) -> None:
        """`fix` may name the `{knob}` as its user spells it; `wants` names the type that it takes."""
        self.word, self.types, self.parse = word, types, parse
        self.complaint, self.fix, self.wants, self.blank_is_unset = complaint, fix, wants, blank_is_unset


class ShadowRate(NamedTuple):
    """A share of all dispatches, and the words behind it."""

    rate: float
    words: tuple[str, ...]

    def __str__(self) -> str:
        return ",".join([str(self.rate).removesuffix(".0"), *self.words])


class Names(tuple[str, ...]):
    """Backends in the order in which they are tried."""

    __slots__ = ()

    def __str__(self) -> str:
        return ",".join(self)


SHADOW_WORDS = ("log", "unordered")
_YES_OR_NO = {**dict.fromkeys(("1", "true", "yes", "on"), True), **dict.fromkeys(("0", "false", "no", "off"), False)}


def _names(text: str) -> Names | None:
    names = Names(name.strip() for name in text.split(","))
    for name in names:
        id, colon, device = name.partition(":")
        if not id.strip() or (colon and not device.strip()):
            return None  # a list with a mistake in it is not used up to the mistake
    return names


def _yes_or_no(given: str | bool) -> bool | None:
    return given if isinstance(given, bool) else _YES_OR_NO.get(given.strip().lower())


def _seconds(given: str | float) -> float | None:
    try:
        seconds = float(given)
    except (ValueError, OverflowError):
        return None
    return seconds if seconds > 0 else None


def _count(given: str | int) -> int | None:
    if isinstance(given, str):
        given = int(given) if given.isascii() and given.isdigit() and len(given) < 20 else 0
    return given if 0 < given < 10**19 else None


def _folder(given: str | os.PathLike[str]) -> str | None:
    path = os.fsdecode(given)
    return path if path and "\0" not in path else None


def _cache_use(given: str | bool) -> str | None:
    text = given if isinstance(given, bool) else given.strip().lower()
    return "readonly" if text == "readonly" else {True: "on", False: "off", None: None}[_yes_or_no(text)]


def _shadow(given: str | float) -> ShadowRate | None:
    rate, *words = (word.strip() for word in given.split(",")) if isinstance(given, str) else (given,)
    try:
        share = float(rate)
    except (ValueError, OverflowError):
        return None
    if not 0 <= share <= 1 or not set(words) <= set(SHADOW_WORDS):
        return None
    return ShadowRate(share, tuple(words))


NAMES = Kind(
    "names of backends", (str,), _names,
    complaint="is not a list of backends: each of them is an id, or an id and a device",
    fix='set {knob} to "id" or "id:device", or to several with commas between them', wants='a text such as "cpu"',
)  # fmt: skip
YES_OR_NO = Kind(
    "yes or no", (bool,), _yes_or_no, complaint="is neither yes nor no", fix="set it to 1 or 0",
    wants="true or false, without quotes",
)  # fmt: skip
SECONDS = Kind(
    "seconds", (int, float), _seconds,
    complaint="is not a time to wait", fix="set it to a number of seconds above 0", wants="a number such as 30.0",
)  # fmt: skip
COUNT = Kind(
    "whole number", (int,), _count,
    complaint="is not a positive whole number", fix="set {knob}=1 or more, or leave it out",
    wants="a whole number such as 256", blank_is_unset=False,
)  # fmt: skip
FOLDER = Kind(
    "folder", (str, os.PathLike), _folder,
    complaint="is not a folder", fix="set {knob} to the path of a folder", wants="a text, the path of a folder",
)  # fmt: skip
CACHE_USE = Kind(
    "on, off or readonly", (str, bool), _cache_use,
    complaint="is none of on, off and readonly", fix="set {knob} to on, off or readonly",
    wants='a text: "on", "off" or "readonly"',
)  # fmt: skip
SHARE = Kind(
    "share of dispatches", (str, int, float), _shadow,
    complaint="is not a share of dispatches",
    fix="set {knob} to a number from 0 to 1, followed by ',unordered' or ',log' where wanted",
    wants='a number, or a text such as "0.01,log"',
)  # fmt: skip


# ---- knobs ----------------------------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """The value that holds here and now. `origin` is `config()`, a variable, the path of a file, or `default`."""

    knob: Knob[Any]
    value: Any
    origin: str

    def __str__(self) -> str:
        """The value as a user would write it."""
        if self.origin == self.knob.variable:
            return f"{self.origin}={self.value}"
        if self.origin == CONFIG:
            return f"config({self.knob.name}={str(self.value)!r})"
        return f"{self.knob.name}={self.value} ({self.origin})"


CONFIG = "config()"
DEFAULT = "default"


class Knob(Generic[T]):
    """One thing that can be set. Its environment variable is `VYRE_` and its name in capitals."""

    __slots__ = ("_key", "default", "kind", "meaning", "name", "read", "variable", "without")

    def __init__(
        self, name: str, kind: Kind[Any], *, default: T, meaning: str, read: str, without: str | None = None
    ) -> None:
        """`read` says when it is looked at; `without`, in words, what a default of None stands for."""
        self.name, self.kind, self.default, self.meaning, self.read = name, kind, default, meaning, read
        self.without = str(default) if without is None else without
        self.variable = f"VYRE_{name.upper()}"
        self._key: Any = _environment_key(self.variable)

    def __repr__(self) -> str:
        return f"<knob {self.name}>"

    def value(self) -> T:
        """The value that holds here and now."""
        value: T = self.setting().value
        return value

    def setting(self) -> Setting:
        """The same, with where it was set."""
        here = _here.get().values
        if self.name in here:
            return Setting(self, here[self.name], CONFIG)
        text = os.environ.get(self.variable)
        if text is not None and (text.strip() or not self.kind.blank_is_unset):
            return Setting(self, self.parse(text, f"{self.variable}={text!r}", self.variable), self.variable)
        if _clock() >= _next_look:
            refresh()
        files = _files  # another thread may find others meanwhile
        if (found := files.values.get(self.name)) is not None:
            return Setting(self, found, files.paths[self.name])
        return Setting(self, self.default, DEFAULT)

    def peek(self) -> object:
        """An object that changes whenever `value()` may: part of a key. None where nothing is set.

        This is on the way of every warm call.
        """
        here = _here.get()
        if here is not _NOTHING and self.name in here.values:
            return here.values[self.name]
        try:
            # Private, and missing elsewhere than in CPython: 0.02 us, where os.environ.get encodes the name first and
            # raises an error inside for what is not set, 0.5 us and more. A warm call asks for three settings.
            text = os.environ._data.get(self._key)  # type: ignore[attr-defined]
        except AttributeError:
            text = os.environ.get(self.variable)
        if text and not text.isspace():
            return text
        if _clock() >= _next_look:
            refresh()
        return _found.get(self.name) if _found else None

    def parse(self, given: object, label: str, spelt: str, *, is_text: bool = True) -> T:
        """The value that was meant; `label` says in an error what was given and where, `spelt` is the knob's name."""
        kind = self.kind
        if not is_text and (not isinstance(given, kind.types) or (isinstance(given, bool) and bool not in kind.types)):
            raise ArgumentTypeError(
                f"{label} is a {type(given).__name__}, and {self.name} takes {kind.word}",
                fix=f"give it {kind.wants}",
            )
        value: T | None = kind.parse(given)
        if value is None:
            raise ArgumentValueError(f"{label} {kind.complaint}", fix=kind.fix.format(knob=spelt))
        return value


def _environment_key(variable: str) -> Any:
    encode = getattr(os.environ, "encodekey", None)
    return variable if encode is None else encode(variable)


BACKEND: Knob[Names] = Knob(
    "backend", NAMES, default=Names(), without="the best that is available",
    meaning="The backend that runs what names none, or several in the order in which they are tried: an id, or an id "
    "and a device (`cpu`, `first:0,second`). A later one is used with a warning.",
    read="by every call that names no backend",
)  # fmt: skip
STRICT = Knob(
    "strict", YES_OR_NO, default=False, without="no",
    meaning="Of several names in `backend`, only the first may be used; where it cannot be, the call fails.",
    read="by every call that names no backend",
)  # fmt: skip
SHADOW: Knob[ShadowRate] = Knob(
    "shadow", SHARE, default=ShadowRate(0.0, ()), without="0",
    meaning="The share of dispatches that an oracle computes again, from 0 to 1. A share of 1 raises a difference; a "
    "smaller one, or `,log` after it, logs it and never fails a dispatch. `,unordered` compares outputs as sets.",
    read="by every dispatch",
)  # fmt: skip
SHADOW_TIMEOUT = Knob(
    "shadow_timeout", SECONDS, default=10.0,
    meaning="How long an oracle may take to compute one dispatch again. A dispatch that takes it longer is not "
    "checked, nor is a later one of the same pipeline and config with as many invocations or more.",
    read="by every dispatch that an oracle computes again",
)  # fmt: skip
EVIDENCE: Knob[str | None] = Knob(
    "evidence", FOLDER, default=None, without="none is written",
    meaning="A folder for evidence: where an oracle finds other outputs than a backend, the dispatch is saved there, "
    "and `vyre replay` runs it again on any machine. A process writes 64 files at most.",
    read="when outputs differ",
)  # fmt: skip
ACQUIRE_TIMEOUT = Knob(
    "acquire_timeout", SECONDS, default=30.0,
    meaning="How long a backend that the user did not name may take to answer before the next one is asked.",
    read="when a backend is chosen",
)  # fmt: skip
CACHE_DIR: Knob[str | None] = Knob(
    "cache_dir", FOLDER, default=None, without="the platform's folder for caches",
    meaning="Where vyre keeps what it can do without. In a file, `~` is the home folder, and a relative path begins "
    "at the folder of the file.",
    read="at every use",
)  # fmt: skip
CACHE: Knob[str] = Knob(
    "cache", CACHE_USE, default="on",
    meaning="Whether compiled programs are kept in `cache_dir` for the processes to come. `readonly` uses what is "
    "there and writes nothing.",
    read="when a program is not in memory",
)  # fmt: skip
CACHE_BYTES = Knob(
    "cache_bytes", COUNT, default=512 << 20,
    meaning="How many bytes of compiled programs `cache_dir` may hold. Beyond, those go that were used least and "
    "longest ago.",
    read="when a program was compiled",
)  # fmt: skip
MAX_STEPS: Knob[int | None] = Knob(
    "max_steps", COUNT, default=None, without="what the backend says: `max_steps` of its capability",
    meaning="The largest program that is compiled, by `program.stats.steps`.",
    read="when a program is compiled for a backend for the first time",
)  # fmt: skip
RESIDENT_BYTES: Knob[int | None] = Knob(
    "resident_bytes", COUNT, default=None, without="nine tenths of the device's memory, where that is known",
    meaning="How many bytes a backend may keep on its device for device arrays and sequences. Beyond, "
    "`DeviceOutOfMemory` is raised.",
    read="when memory is allocated on a device",
)  # fmt: skip
FUSION = Knob(
    "fusion", YES_OR_NO, default=True, without="yes",
    meaning="Steps of a sequence become one launch where that changes no byte. `no` launches each by itself.",
    read="when a sequence is called",
)  # fmt: skip
DEBUG = Knob(
    "debug", YES_OR_NO, default=False, without="no",
    meaning="Tracebacks of mistakes in kernels and arguments show the functions of vyre too.",
    read="when such an error is raised",
)  # fmt: skip
PIPELINE_CACHE_ENTRIES = Knob(
    "pipeline_cache_entries", COUNT, default=256,
    meaning="How many compiled programs a backend keeps in memory.",
    read="when a program is compiled",
)  # fmt: skip
PIPELINE_CACHE_BYTES = Knob(
    "pipeline_cache_bytes", COUNT, default=256 << 20,
    meaning="How many bytes of compiled programs a backend keeps in memory.",
    read="when a program is compiled",
)  # fmt: skip

TABLE: dict[str, Knob[Any]] = {
    knob.name: knob
    for knob in (
        BACKEND,
        STRICT,
        SHADOW,
        SHADOW_TIMEOUT,
        EVIDENCE,
        ACQUIRE_TIMEOUT,
        CACHE_DIR,
        CACHE,
        CACHE_BYTES,
        MAX_STEPS,
        RESIDENT_BYTES,
        FUSION,
        DEBUG,
        PIPELINE_CACHE_ENTRIES,
        PIPELINE_CACHE_BYTES,
    )
}
"""The driver's knobs. `all_knobs` has those of the backends too."""


def all_knobs() -> dict[str, Knob[Any]]:
    """Every knob by name: the driver's, then those of the backends. Loads the record of every backend."""
    return {**TABLE, **{knob.name: knob for knob in above.backend_knobs(None)}}


def find_knob(name: str) -> Knob[Any] | None:
    """The knob of that name. Only the backend whose id it begins with is loaded."""
    if name in TABLE:
        return TABLE[name]
    return next((knob for knob in above.backend_knobs(name) if knob.name == name), None)


def unknown(name: str, where: str, error: type[VyreError] = ArgumentValueError) -> NoReturn:
    from difflib import get_close_matches

    known = sorted(all_knobs())
    close = get_close_matches(name, known, 1)
    asked = f"did you mean {close[0]!r}? " if close else ""
    raise error(
        f"{where} has no setting {name!r}",
        fix=f"{asked}use one of: {', '.join(known)}; those of a backend exist where it is installed",
    )


# ---- here and now ---------------------------------------------------------------------------------------------------


class Here:
    """The settings of all `config()` blocks around this code; those of the last one; and the state before it."""

    __slots__ = ("last", "outer", "values")

    def __init__(self, values: Mapping[str, Any], last: Mapping[str, Any], outer: Here | None) -> None:
        self.values, self.last, self.outer = values, last, outer


_NOTHING = Here({}, {}, None)
_here: ContextVar[Here] = ContextVar("vyre_config", default=_NOTHING)


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Values for `enter`, each as its knob wants it. None asks for the default."""
    values = {}
    for name, value in given.items():
        knob = find_knob(name)
        if knob is None:
            unknown(name, CONFIG, ArgumentTypeError)
        label = f"config({name}={shown(value)})"
        values[name] = knob.default if value is None else knob.parse(value, label, name, is_text=False)
    return values


def enter(values: Mapping[str, Any]) -> None:
    """From here on these hold, in this thread or task, until `leave`."""
    outer = _here.get()
    _here.set(Here({**outer.values, **values}, values, outer))


def leave(values: Mapping[str, Any]) -> None:
    """Ends the block that `enter` began with this very mapping.

    It need not be the last one: a generator may end inside a block that its caller has begun since. Where it was begun
    in another thread or task, as by a generator that is thrown away here, there is nothing to end.
    """
    here, since = _here.get(), []
    while here.last is not values:
        if here.outer is None:
            return
        since.append(here.last)
        here = here.outer
    assert here.outer is not None
    _here.set(here.outer)
    for later in reversed(since):
        enter(later)


_clock = time.monotonic
_next_look = 0.0
_files: Files = UNREAD
_found = _files.values  # by itself, for the warm path
_told: dict[Problem, object] = {}
_backends = 0
"""Which backends there were when the files were read: a name in a file may be a knob of one that came later."""
_this_thread = threading.local()


def refresh() -> None:
    """Look at the files now, and log their problems."""
    for problem in _look():
        if _is_new(problem):
            import logging

            logging.getLogger("vyre.settings").warning("%s", problem)


def files() -> Files:
    """The files that are obeyed, and their problems. The caller reports those, so they are not logged."""
    for problem in _look():
        _is_new(problem)
    return _files


def _look() -> tuple[Problem, ...]:
    """The problems of the files now. It takes no lock: threads that need the first look each take it."""
    global _files, _found, _next_look, _backends
    if getattr(_this_thread, "looks", False):
        return ()  # a backend, loaded for the knob that a file names, asks for a setting
    _this_thread.looks = True
    try:
        if _files is not UNREAD:
            _next_look = _clock() + LOOK_EVERY_S  # meanwhile other threads go on with the known settings
        backends = above.generation()
        files = look(_files if backends == _backends else UNREAD, _from_file)
        _files, _found, _backends = files, files.values, backends
        _next_look = _clock() + LOOK_EVERY_S
    finally:
        _this_thread.looks = False
    return files.problems


def _is_new(problem: Problem) -> bool:
    mark = object()
    return _told.setdefault(problem, mark) is mark


def _from_file(name: str, value: object, path: str) -> object:
    knob = find_knob(name)
    if knob is None:
        unknown(name, path)
    if knob.kind is FOLDER and isinstance(value, str) and value:
        value = os.path.join(os.path.dirname(path), os.path.expanduser(value))
    return knob.parse(value, f"{name}={shown(value)} in {path}", name, is_text=False)
