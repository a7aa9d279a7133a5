"""How values look in a notebook: plain tables that take their colours from the page.

Everything that is shown is escaped here and nowhere else: names and texts are the user's. No colour is set, so that
light and dark pages are both legible, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

MAX_ROWS = 100
MAX_LINES = 200
MAX_CHARS = 20_000
MAX_CELL = 2_000
OPEN_LINES = 40
"""Lines of code that are shown at once; more of them wait behind a click."""
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
_CELL = "text-align:left;vertical-align:top;padding:0.15em 1em 0.15em 0"
_RULE = "border-bottom:1px solid currentColor"
_CODE = "margin:0.4em 0;padding:0;background:none;color:inherit;white-space:pre;overflow-x:auto"


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def text(value: object, most: int = MAX_CELL) -> Html:
    """A value as it is read, up to `most` characters, with nothing in it that a browser would act on."""
    if isinstance(value, Html):
        return value
    if isinstance(value, bool):
        value = "yes" if value else "no"
    given = str(value)
    if len(given) > most:
        given = f"{given[:most]}… ({len(given) - most:,} more)"
    plain = given.encode("utf-8", "backslashreplace").decode()  # a lone surrogate cannot be sent
    shown = "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in plain)
    return Html(shown.translate(_ESCAPES))


def page(title: object, *parts: Html) -> str:
    """All the markup shown for one value."""
    head = f'<div style="font-weight:bold;margin:0.4em 0">{text(title)}</div>'
    return f'<div class="vyre">{head}{"".join(parts)}</div>'


def table(titles: Sequence[object], rows: Iterable[Sequence[object]]) -> Html:
    """Rows under titles; beyond `MAX_ROWS` only their number is said."""
    rows = iter(rows)
    shown = "".join(f"<tr>{_cells(row)}</tr>" for row in islice(rows, MAX_ROWS))
    left = sum(1 for _ in rows)
    head = "".join(f'<th style="{_CELL};{_RULE};white-space:nowrap">{text(title)}</th>' for title in titles)
    more = note(f"{left:,} more rows are not shown") if left else ""
    return Html(
        f'<table style="border-collapse:collapse;color:inherit;background:none">'
        f"<thead><tr>{head}</tr></thead><tbody>{shown}</tbody></table>{more}"
    )


def facts(pairs: Iterable[tuple[str, object]]) -> Html:
    """Names and values, without titles."""
    rows = "".join(
        f'<tr><th style="{_CELL};font-weight:normal;opacity:0.75">{text(name)}</th>'
        f'<td style="{_CELL}">{text(value)}</td></tr>'
        for name, value in pairs
    )
    return Html(f'<table style="border-collapse:collapse;color:inherit;background:none"><tbody>{rows}</tbody></table>')


def code(title: object, source: str) -> Html:
    """A text of many lines; one that is too long is cut, and the note says by how much."""
    lines = source.splitlines()
    shown = "\n".join(lines[:MAX_LINES])[:MAX_CHARS]
    count = shown.count("\n") + 1
    cut = len(lines) > count or len(shown) == MAX_CHARS
    more = note(f"{count:,} of {len(lines):,} lines are shown; print() has them all") if cut else ""
    opened = " open" if count <= OPEN_LINES else ""
    body = f'<pre style="{_CODE}">{text(shown, MAX_CHARS)}</pre>{more}'
    return Html(f"<details{opened}><summary>{text(title)}</summary>{body}</details>")


def note(words: object) -> Html:
    return Html(f'<div style="font-style:italic;opacity:0.75">{text(words)}</div>')


def _cells(row: Sequence[object]) -> str:
    return "".join(f'<td style="{_CELL}">{text(value)}</td>' for value in row)
