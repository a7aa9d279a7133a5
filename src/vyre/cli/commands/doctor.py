"""vyre doctor: does it work on this machine, and if not, what to do?

Each backend is examined in a process of its own (see examine.py), so one that crashes or hangs spoils nothing else.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import IO, Annotated, Any, TypedDict

import typer

from ... import __version__
from ...driver.contract.requirement import Check
from ...errors import ArgumentValueError, VyreError
from ..app import NO, Json, app
from ..output import print_json, print_table, progress
from ..parts.machine import GENERAL

STEP_S = 60.0
"""A step of a backend that takes longer has hung: the slowest seen is a first compilation of 4 s."""
GENERAL_S = 20.0
KILLED_S = 5.0
MOST_S = 86_400.0
_GENERAL = "general"
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_ORACLE = "oracle"


class Finding(TypedDict):
    area: str  # general, or the backend
    name: str
    verdict: str  # ok, warn, fail
    detail: str
    fix: str  # empty where there is nothing to do


class Document(TypedDict):
    version: str
    verdict: str  # the worst of all
    working: list[str]  # backends whose bytes were those of the reference
    preferred: str | None  # the backend a plain call asks first; None too where one was named
    findings: list[Finding]


@app.command()
def doctor(
    backend: Annotated[
        str | None, typer.Argument(metavar="[ID[:DEVICE]]", help="Of all backends, examine this one only.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="For each step of a backend.")
    ] = STEP_S,
    as_json: Json = False,
) -> None:
    """Check that vyre works on this machine, and say what to do where it does not.

    Exit code 0 when nothing is broken and at least one backend besides the reference computes the right bytes.
    """
    if not 0 < timeout <= MOST_S:
        raise ArgumentValueError(f"--timeout {timeout:g} is not a time to wait", fix="give a number of seconds above 0")
    document, found_one = collect(backend, timeout)
    if as_json:
        print_json(document)
    else:
        show(document)
    raise typer.Exit(0 if found_one and document["verdict"] != "fail" else NO)


def collect(backend: str | None, step_s: float) -> tuple[Document, bool]:
    """The findings, and whether a backend other than the oracle works."""
    from ...driver.selection import registry

    names = [each.id for each in registry.registered_backends_by_precedence()]
    if backend is not None:
        if backend.partition(":")[0] not in names:
            registry.acquire(backend)  # raises, and says which there are
        names = [backend]
    findings = list(general())
    after_general = len(findings)
    kinds: dict[str, str] = {}
    asked = None if backend else _started("vyre", "backends", "--json", stderr=subprocess.DEVNULL)
    try:
        with progress("examining backends", total=len(names)) as step:
            for name, (found, kind) in zip(names, _examined(names, step_s, step), strict=True):
                findings += [_finding(name, check) for check in found]
                if kind is not None:
                    kinds[name] = kind
        preferred, lost = (None, []) if asked is None else _preferred(asked, step_s)
    finally:
        if asked is not None:
            _end(asked)
    findings[after_general:after_general] = lost
    verdicts = {finding["verdict"] for finding in findings}
    document = Document(
        version=__version__,
        verdict=next((verdict for verdict in ("fail", "warn") if verdict in verdicts), "ok"),
        working=list(kinds),
        preferred=preferred,
        findings=findings,
    )
    wanted = [_ORACLE] if backend else []  # a user who asks for the oracle itself is answered about it
    return document, any(kind != _ORACLE or kind in wanted for kind in kinds.values())


def _preferred(asked: subprocess.Popen[str], seconds: float) -> tuple[str | None, list[Finding]]:
    """The backend that a plain call asks first, and what is wrong if there is none. Another process says it, as that
    loads the backends' libraries; if it crashes, the examination of that backend tells more."""
    try:
        answer = json.loads(asked.communicate(timeout=seconds)[0])
        found = answer["preferred"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):  # the last: an error, which the settings have shown
        return None, []
    if found is not None:
        return str(found), []
    return None, [_finding(_GENERAL, _no_backend([row["id"] for row in answer["backends"] if row["available"]]))]


def _no_backend(available: Sequence[str]) -> Check:
    from ...driver.settings.knobs import BACKEND, DEFAULT

    asked = BACKEND.setting()
    if asked.origin == DEFAULT:
        return Check("plain call", "fail", "it finds no backend", "see below what each of them lacks")
    detail = f"it fails: backend={asked.value} ({asked.origin}) is not available here"
    return Check("plain call", "fail", detail, f"use one of: {', '.join(available)}; or leave it out")


def _finding(area: str, check: Check) -> Finding:
    return Finding(area=area, name=check.name, verdict=check.verdict, detail=check.detail, fix=check.fix)


# ---- the machine ----------------------------------------------------------------------------------------------------


def general() -> Iterator[Finding]:
    for name, check in GENERAL.items():
        for found in guarded(name, check, GENERAL_S):
            yield _finding(_GENERAL, found)


def guarded(name: str, check: Callable[[], Sequence[Check]], seconds: float) -> Sequence[Check]:
    """What a check finds, or that it raised, or that it hangs; it is then left behind."""
    answers: queue.SimpleQueue[Sequence[Check]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put(check())
        except VyreError as e:
            answers.put([Check(name, "fail", e.message, e.fix)])
        except Exception as e:
            answers.put(
                [Check(name, "fail", f"{type(e).__name__}: {e}", "report it with the output of `vyre doctor --json`")]
            )

    threading.Thread(target=run, name=f"vyre-check-{name}", daemon=True).start()
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        return [Check(name, "fail", f"no answer within {seconds:g} s", "see whether a disk or a network hangs")]


# ---- backends -------------------------------------------------------------------------------------------------------

Examined = tuple[list[Check], str | None]
"""What was found of a backend, and its kind if it works."""


def _examined(names: Sequence[str], step_s: float, step: Callable[..., None]) -> list[Examined]:
    """All of them side by side: most of the time goes to waiting for libraries to load."""
    results: dict[int, Examined] = {}
    running: list[subprocess.Popen[str]] = []

    def work(place: int, name: str) -> None:
        try:
            results[place] = examined(name, step_s, running.append)
        except OSError as e:
            results[place] = (
                [Check("start", "fail", f"no process can be started: {e}", "free memory, or raise ulimit -u")],
                None,
            )
        step(name)

    threads = [threading.Thread(target=work, args=item, daemon=True) for item in enumerate(names)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for process in running:
            process.kill()  # after Ctrl-C; does nothing to one that has ended
    return [results[place] for place in range(len(names))]


def examined(
    name: str,
    step_s: float,
    started: Callable[[subprocess.Popen[str]], None] = lambda process: None,
    module: str = "vyre.cli.parts.examine",
) -> Examined:
    """Examine a backend in a process of its own, which gets `step_s` for each step."""
    found: list[Check] = []
    doing, kind = "start", None
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        process = _started(module, name, stderr=complaints)
        started(process)
        try:
            for line in _lines(process, step_s):
                match _parsed(line):
                    case {"begin": str(doing)}:
                        pass
                    case {"check": [str(title), str(verdict), str(detail), str(fix)]}:
                        found.append(Check(title, verdict, detail, fix))
                    case {"end": kind}:
                        doing = "exit"
            if process.wait(step_s) != 0:
                found.append(_died(doing, process.returncode, complaints))
        except (TimeoutError, subprocess.TimeoutExpired):
            found.append(_hung(doing, step_s))
        finally:
            _end(process)
    return found, kind


def _started(*words: str, stderr: IO[str] | int) -> subprocess.Popen[str]:
    """A module in a process that finds the same modules as this one, and no others."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(place for place in sys.path if place)}
    words = (sys.executable, "-P", "-m", *words)
    pipe = subprocess.PIPE
    return subprocess.Popen(words, env=environ, stdin=subprocess.DEVNULL, stdout=pipe, stderr=stderr, text=True)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    with suppress(subprocess.TimeoutExpired):  # a process that hangs in the system's kernel stays
        process.wait(KILLED_S)


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:  # something that was printed before the process took stdout for itself
        return None


def _lines(process: subprocess.Popen[str], step_s: float) -> Iterator[str]:
    """The lines of a process; TimeoutError when the next, or the end, takes too long."""
    assert process.stdout is not None
    stdout = process.stdout
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        with stdout:
            for line in stdout:
                lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=step_s)
        except queue.Empty:
            raise TimeoutError from None
        if not line:
            return
        yield line


def _hung(doing: str, step_s: float) -> Check:
    fix = "restart the driver or the machine, or allow more: vyre doctor --timeout SECONDS"
    return Check(doing, "fail", f"no answer within {step_s:g} s", fix)


def _died(doing: str, code: int, complaints: IO[str]) -> Check:
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    complaints.seek(0)
    said = complaints.read(1 << 16).strip().splitlines()
    last = f": {said[-1].strip()}" if said else ""
    fix = "reinstall or update its driver and its library; other backends are not affected"
    return Check(doing, "fail", f"the process that examined it {how}{last}", fix)


# ---- showing --------------------------------------------------------------------------------------------------------


def show(document: Document) -> None:
    rows: list[tuple[str, ...]] = []
    styles = []
    area = ""
    for finding in document["findings"]:
        first = finding["area"] if finding["area"] != area else ""
        area = finding["area"]
        rows.append((first, finding["verdict"], finding["name"], finding["detail"]))
        styles.append(_STYLES[finding["verdict"]] if finding["verdict"] != "ok" else "")
        if finding["fix"]:
            rows.append(("", "", "", f"{'Hint' if finding['verdict'] == 'ok' else 'Fix'}: {finding['fix']}"))
            styles.append("")
    print_table(("", "", "check", "finding"), rows, styles)
    working = ", ".join(document["working"]) or "nothing"
    preferred = document["preferred"]
    print(f"\nRight bytes came from: {working}." + (f" A plain call asks {preferred} first." if preferred else ""))
