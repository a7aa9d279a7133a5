"""What a command prints: results on stdout, everything else on stderr.

Colours and widths are rich's business: none without a terminal, with `NO_COLOR` or on a dumb terminal. Texts are
printed as they are: a device may well be called "[GPU]".
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = 1
"""Version of every JSON document. Fields are only added."""

PATIENCE_S = 1.0
"""Work that takes longer shows its progress."""

_WIDE = 1000  # columns without a terminal: a line that goes to a file or to grep is not broken
_NAME = 27  # letters of the longest setting; a longer word is a path or a hash, which may be broken


def console() -> Console:
    """Where results go."""
    return _console(stderr=False)


def notes() -> Console:
    """Where everything else goes."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDE
    return Console(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


def print_json(document: Mapping[str, Any]) -> None:
    """The one document of a command with --json. A number that JSON lacks becomes null."""
    import json

    print(json.dumps({"schema": SCHEMA, **_plain(document)}, indent=2))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(each) for each in value)
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()) -> None:
    """Results in columns; `styles` is one of rich's per row. Without a terminal, lines are not broken to fit.

    On a terminal that is too narrow for the words of all columns, the cells of a row follow each other.
    """
    if sys.stdout.isatty():
        from rich.table import Table

        shown, widths = console(), _least_widths([columns, *rows])
        if sum(widths) + 2 * (len(columns) - 1) > shown.width:
            for row, style in zip_longest([columns, *rows], ["bold", *styles[: len(rows)]], fillvalue=""):
                shown.print(_flowing(row, shown.width), style=style or None, overflow="fold")
            return
        table = Table(box=None, pad_edge=False)
        for k, (column, least) in enumerate(zip(columns, widths, strict=True)):
            name = all(len(row[k]) <= least for row in rows)  # stays whole; a path is folded, never cut off
            table.add_column(column, overflow="fold", no_wrap=name)
        for row, style in zip_longest(rows, styles[: len(rows)], fillvalue=""):
            table.add_row(*row, style=style or None)
        shown.print(table)
        return
    lines = [columns, *rows]  # what rich would print, without the 25 ms that it takes to load
    widths = [max(len(line[k]) for line in lines) for k in range(len(columns))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _least_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Of columns whose names stay whole."""
    words = ([word for cell in column for word in cell.split()] for column in zip(*rows, strict=True))
    return [min(max(map(len, column), default=0), _NAME) for column in words]


def _flowing(cells: Sequence[str], width: int) -> str:
    from textwrap import fill

    return fill("  ".join(filter(None, cells)), width, subsequent_indent="  ", break_on_hyphens=False)


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """A bar on stderr for work over a second, on a terminal only. Gives `step(note="", advance=1)`.

    with progress("measuring", total=21) as step:
        for ...:
            step()
    """
    if not sys.stderr.isatty():
        yield lambda note="", advance=1: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    count = () if total is None else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), *count, TimeElapsedColumn())
    bar = Progress(*columns, console=notes(), transient=True)
    task = bar.add_task(what, total=total)
    lock, ended = threading.Lock(), threading.Event()

    def show() -> None:
        if not ended.wait(PATIENCE_S):
            with lock:
                if not ended.is_set():
                    bar.start()

    def step(note: str = "", advance: int = 1) -> None:
        bar.update(task, advance=advance, description=f"{what}: {note}" if note else what)

    threading.Thread(target=show, name="vyre-progress", daemon=True).start()
    try:
        yield step
    finally:
        ended.set()
        with lock:
            bar.stop()


@contextmanager
def others_on_stderr() -> Iterator[None]:
    """Send what kernel files, plugins, libraries and their processes print meanwhile to stderr: it is not a result."""
    with redirect_stdout(sys.stderr), ExitStack() as undo:
        with suppress(OSError):  # where one of the two is closed
            kept = os.dup(1)
            undo.callback(os.close, kept)
            os.dup2(2, 1)
            undo.callback(os.dup2, kept, 1)
        yield


def plain_streams() -> None:
    """Let no character stop a text: one that the terminal cannot show is replaced. A closed stream takes everything."""
    closed: Any = None
    if sys.stdout is closed:  # `vyre ... >&-`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    if sys.stderr is closed:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def silence(stream: TextIO | None = None) -> None:
    """Discard what is still in the buffer of `stream` (stdout): its reader is gone, and a flush would fail at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, (stream or sys.stdout).fileno())
