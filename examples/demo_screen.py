"""What the demo prints: rows on stdout as they come, progress on stderr where somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

Row = dict[str, Any]


class Screen:
    """`quiet` leaves stdout to somebody else. Colours, and whether there are any, are the terminal's and NO_COLOR's."""

    def __init__(self, quiet: bool) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="replace")  # a device may have any name, a terminal any encoding
        self.out = Console(quiet=quiet, highlight=False)
        self.err = Console(stderr=True, highlight=False)

    @contextmanager
    def working(self, what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """A bar that is gone afterwards; gives what moves it."""
        columns = TextColumn("  {task.description}"), BarColumn(bar_width=24), TimeElapsedColumn()
        with Progress(*columns, console=self.err, transient=True, disable=not self.err.is_terminal) as progress:
            task = progress.add_task(what, total=total)
            yield lambda done: progress.update(task, completed=done)

    def title(self, text: str) -> None:
        self.out.print()
        self.out.print(Text(text, style="bold"))

    def say(self, text: str, style: str = "") -> None:
        self._indented(Text(text, style=style))

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> None:
        """A # before a head marks a column of numbers."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_header=any(heads))
        for head in heads:
            number = head.startswith("#")
            table.add_column(head.removeprefix("#"), justify="right" if number else "left", overflow="fold")
        for row in rows:
            table.add_row(*row)
        self._indented(table)

    def answer_heads(self) -> None:
        self._answer_line("backend", "device", "took", "first price", "blake3", style="dim")

    def answer(self, row: Row) -> None:
        """One line at a time: the next backend may take its time."""
        device = f"{'emulated: ' if row['emulated'] else ''}{row['device']}"
        if row["error"]:
            self._answer_line(row["backend"], device, "failed", "", "", style="red")
            self.say(f"  {row['error']}", style="red")
        else:
            took, price = f"{row['seconds']:.2f} s", f"{row['price']:.6f}"
            self._answer_line(row["backend"], device, took, price, row["blake3"])

    def _answer_line(self, *texts: str, style: str = "") -> None:
        """Widths follow from the screen alone, so that all lines agree; what is least needed goes first."""
        width = self.out.width
        digest = 32 if width >= 120 else 16
        wide = width >= 76
        widths = (10, width - digest - 43 if wide else 0, -8 if width >= 42 else 0, -11 if wide else 0, digest)
        line = Text("  ")
        for text, room in zip(texts, widths, strict=True):
            if room:
                cell = Text(text[:digest] if text == texts[-1] else text, style=style)
                cell.truncate(abs(room), overflow="ellipsis")
                cell.align("right" if room < 0 else "left", abs(room))
                line.append(cell).append("  ")
        line.rstrip()
        self.out.print(line, no_wrap=True, crop=True)

    def peers(self, rows: Sequence[Row], why: str) -> None:
        self.title("The same maths elsewhere")
        shown: list[list[str | Text]] = []
        for row in rows:
            if row["error"]:
                shown.append([row["name"], row["version"], Text(row["error"], "red"), "", ""])
            else:
                price, digest = f"{row['price']:.6f}", row["blake3"][:16]
                shown.append([row["name"], row["version"], row["departs"], price, digest])
        self.table(("library", "version", "departs at", "#first price", "blake3"), shown)
        self.say(why, style="dim")

    def race(self, race: Row) -> None:
        self.title(f"A race, found: {race['element']} in {race['kernel']}")
        source = Syntax(
            race["source"].rstrip(),
            "python",
            theme="ansi_dark",
            background_color="default",
            line_numbers=True,
            start_line=race["first_line"],
            highlight_lines={side["line"] for side in race["sides"]},
            word_wrap=True,
        )
        self._indented(source)
        for side in race["sides"]:
            where = f"{race['file']}:{side['line']}"
            self.say(f"{where}  {side['kind']} by invocation {side['invocation'][0]}: {side['text']}", style="red")
        self.say(f"Fix: {race['fix']}")
        self.say(f"with barrier() between them: {race['races_when_repaired']} races", style="dim")

    def selection(self, selection: Row) -> None:
        self.title("Why a plain call runs where it runs")
        rows = [(n, Text(why, "green" if n == selection["chosen"] else "")) for n, why in selection["reasons"]]
        self.table(("backend", "verdict"), rows)

    def calls(self, calls: Sequence[Row], options: int, about: str) -> None:
        self.title("First and warm calls, in milliseconds")
        heads = ("backend", "#one step, first", "#warm", f"#{options:,} prices, warm")
        rows = [[c["backend"], *(f"{c[key] * 1e3:,.3f}" for key in ("first", "warm", "many"))] for c in calls]
        self.table(heads, rows)
        self.say(about, style="dim")

    def _indented(self, what: Any) -> None:
        self.out.print(Padding(what, (0, 0, 0, 2), expand=False))
