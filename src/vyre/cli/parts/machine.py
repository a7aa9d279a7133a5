"""What `vyre doctor` looks at besides backends: Python, packages, settings, the cache folder, processes, the clock."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path

from ... import __version__
from ...driver.contract.requirement import Check

COARSE_NS = 10_000
"""A clock with larger steps than this says little about a dispatch, which takes some 10 us."""
COUNTED_FILES = 100_000


def python() -> list[Check]:
    text = f"{platform.python_implementation()} {platform.python_version()}, {sys.platform} {platform.machine()}"
    return [Check("python", "ok", text)]


def packages() -> list[Check]:
    """Those that vyre cannot do without, as its own metadata lists them."""
    from importlib import metadata

    try:
        needed = [each for each in metadata.requires("vyre") or () if "extra ==" not in each]
    except metadata.PackageNotFoundError:
        return [Check("packages", "warn", f"vyre {__version__} is not installed, only imported", "pip install vyre")]
    found, wrong = [f"vyre {__version__}"], []
    for requirement in needed:
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            wrong.append(Check("packages", "fail", f"{name} is not installed", f"pip install '{requirement}'"))
            continue
        found.append(f"{name} {version}")
        least = re.search(r">=\s*([0-9.]+)", requirement)
        if least and _numbers(version) < _numbers(least[1]):
            detail = f"{name} {version} is older than {least[1]}"
            wrong.append(Check("packages", "fail", detail, f"pip install --upgrade '{requirement}'"))
    return [Check("packages", "ok", ", ".join(found)), *wrong]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.match(r"[0-9.]*", version)[0].strip(".").split(".") if part)  # type: ignore[index]


def settings() -> list[Check]:
    """Those that are set. A mistake in a variable stops everything that reads it, and is raised here.

    Of the backends only those are loaded that a variable belongs to, as any of them may crash.
    """
    from ...driver.settings import knobs as known

    knobs = {knob.variable: knob for knob in known.TABLE.values()}
    strange = [Check("settings", "warn", problem.message, problem.fix) for problem in known.files().problems]
    for variable in sorted(name for name in os.environ if name.startswith("VYRE_") and name not in knobs):
        knob = known.find_knob(variable.removeprefix("VYRE_").lower())
        if knob is None:
            near = get_close_matches(variable, knobs, 1)
            fix = f"did you mean {near[0]}?" if near else "unset it; `vyre config show` lists those that there are"
            strange.append(Check(variable, "warn", "is set and is not a setting", fix))
        else:
            knobs[variable] = knob
    names = [f"{s.knob.name} from {s.origin}" for k in knobs.values() if (s := k.setting()).origin != known.DEFAULT]
    return [Check("settings", "ok", ", ".join(names) or "all at their defaults"), *strange]


def cache_folder() -> list[Check]:
    """Whether probes and compiled code can be kept; without it all works, and every process starts anew."""
    from ...driver.settings.folders import cache_dir

    folder = cache_dir()
    elsewhere = "set VYRE_CACHE_DIR to a folder of yours; until then every process starts anew"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.stat()
        if os.name != "nt" and info.st_uid != os.getuid():
            return [Check("cache", "warn", f"{folder} belongs to another user, so it is not used", elsewhere)]
        if os.name != "nt" and info.st_mode & 0o022:
            return [Check("cache", "warn", f"others can write to {folder}, so it is not used", f"chmod 700 {folder}")]
        journal = _journal(folder)
    except OSError as e:
        return [Check("cache", "warn", f"{folder} cannot be written to: {e.strerror or e}", elsewhere)]
    files, size = _size(folder)
    found = [Check("cache", "ok", f"{folder}, {files} files, {size / 1e6:.1f} MB")]
    if journal != "wal":
        fix = "put the cache on a local disk: set VYRE_CACHE_DIR"
        detail = f"its file system has no write-ahead log ({journal}): processes wait for each other"
        found.append(Check("cache", "warn", detail, fix))
    return found


def _journal(folder: Path) -> str:
    """How a database in the folder would keep its journal."""
    import tempfile

    with tempfile.TemporaryDirectory(dir=folder, prefix=".doctor.") as place:
        try:
            import sqlite3
        except ImportError:
            return "Python was built without sqlite3"
        database = sqlite3.connect(Path(place) / "try.db", timeout=1)
        try:
            return str(database.execute("PRAGMA journal_mode=WAL").fetchone()[0])
        except sqlite3.Error as e:
            return str(e)
        finally:
            database.close()


def _size(folder: Path) -> tuple[int, int]:
    files = total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                continue  # another process replaced it just now
            files += 1
            if files >= COUNTED_FILES:
                return files, total
    return files, total


def processes() -> list[Check]:
    """How multiprocessing starts a process here: a backend that is open cannot be used on the other side of a fork."""
    import multiprocessing

    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    detail = f"multiprocessing starts processes by {method}"
    if method != "fork":
        return [Check("processes", "ok", detail)]
    hint = "open backends after the fork, or call multiprocessing.set_start_method('spawn')"
    return [Check("processes", "ok", f"{detail}; a backend that is open does not survive that", hint)]


def plugins() -> list[Check]:
    """Ids that no call can use, found without loading anything."""
    from ...driver.selection import registry

    listed = registry.registered_backends()
    wrong = [
        Check(
            "plugins", "fail", f"backend {id} is disabled: {why}", "uninstall or correct the package that provides it"
        )
        for id, why in registry.problems().items()
    ]
    packages = sorted({each.provider for each in listed})
    return [Check("plugins", "ok", f"{len(listed)} backends from {', '.join(packages) or 'no package'}"), *wrong]


def clock() -> list[Check]:
    """The smallest step of the clock that measures dispatches."""
    ticks = sorted({time.perf_counter_ns() for _ in range(2000)})
    steps = [after - before for before, after in pairwise(ticks)]
    step_ns = min(steps, default=COARSE_NS)
    detail = f"steps of {step_ns} ns, {time.get_clock_info('perf_counter').implementation}"
    if step_ns < COARSE_NS:
        return [Check("clock", "ok", detail)]
    return [Check("clock", "warn", detail, "measure many dispatches at once; the clock of this machine is coarse")]


GENERAL: dict[str, Callable[[], Sequence[Check]]] = {
    "python": python,
    "packages": packages,
    "settings": settings,
    "cache": cache_folder,
    "processes": processes,
    "plugins": plugins,
    "clock": clock,
}
"""In the order in which they are shown."""
