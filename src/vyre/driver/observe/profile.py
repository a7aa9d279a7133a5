"""Where did the time go? Calls, time, bytes and compilation of each program of a block of code."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ...foundation import html
from ...foundation.durations import duration
from ...foundation.html import Html
from .files import written
from .trace import Recording, Span

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 1.5em auto; max-width: 70em; padding: 0 1em }}
.wide {{ overflow-x: auto }}
td, th {{ font-variant-numeric: tabular-nums }}
td + td {{ white-space: nowrap }}
</style></head><body>{body}</body></html>
"""
_TITLES = ("kernel", "backend", "calls", "time", "a call", "device", "compile", "GB/s", "share")


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One program on one backend. `ns` is what callers waited for `calls`, `compile_ns` what it took to have code, and
    `share` is that of both in all. `device_ns` is None where the backend does not know it."""

    program: str
    backend: str
    calls: int
    failed: int
    ns: int
    device_ns: int | None
    compile_ns: int
    nbytes: int
    share: float

    @property
    def gigabytes_per_s(self) -> float:
        """Of the bytes from the host and to it."""
        return self.nbytes / self.ns if self.ns else 0.0

    def cells(self) -> tuple[str, ...]:
        each = self.ns / self.calls if self.calls else 0
        device = "" if self.device_ns is None else duration(self.device_ns)
        return (
            self.program, self.backend, f"{self.calls:,}", duration(self.ns), duration(each), device,
            duration(self.compile_ns), f"{self.gigabytes_per_s:.2f}", f"{100 * self.share:.1f} %",
        )  # fmt: skip


class Profile(Recording):
    """`with vyre.profile() as found: ...` prints where the time went when the block ends; `found.rows()` has it."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__()
        self.quiet = quiet

    def __enter__(self) -> Profile:
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if not self.quiet:
            print(self)

    def rows(self) -> list[ProfileRow]:
        """The most expensive first."""
        groups: dict[tuple[str, str], list[Span]] = {}
        for span in self.spans:
            groups.setdefault((span.about.program or "program", span.about.backend), []).append(span)
        whole = sum(span.ended - span.begun for span in self.spans) or 1
        rows = [_row(program, backend, spans, whole) for (program, backend), spans in groups.items()]
        return sorted(rows, key=lambda row: -row.share)

    def notes(self) -> list[str]:
        """What the rows do not have."""
        found = [f"the block took {duration(self.ended - self.begun)}"]
        if self.dropped:
            found.append(f"{self.dropped:,} more dispatches did not fit")
        return found

    def __str__(self) -> str:
        lines = [_TITLES, *(row.cells() for row in self.rows())]
        widths = [max(len(line[k]) for line in lines) for k in range(len(_TITLES))]
        shown = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([*shown, *self.notes()])

    def _repr_html_(self) -> str:
        rows = html.table(_TITLES, (row.cells() for row in self.rows()))
        return html.page("where the time went", Html(f'<div class="wide">{rows}</div>'), *map(html.note, self.notes()))

    def write(self, path: str | os.PathLike[str]) -> Path:
        """One page of HTML that loads nothing."""
        page = _PAGE.format(title="where the time went", body=self._repr_html_())
        return written(path, lambda stream: stream.write(page.encode()))


def _row(program: str, backend: str, spans: list[Span], whole: int) -> ProfileRow:
    calls = [s for s in spans if not s.tier]
    ns, compiling = sum(s.ended - s.begun for s in calls), sum(s.ended - s.begun for s in spans if s.tier)
    device = [s.device_ns for s in calls if s.device_ns is not None]
    return ProfileRow(
        program,
        backend,
        len(calls),
        sum(s.failed for s in calls),
        ns,
        sum(device) if device else None,
        compiling,
        sum(s.about.input_bytes + s.about.output_bytes for s in calls),
        (ns + compiling) / whole,
    )


def profile() -> Profile:
    """`with vyre.profile():` prints, when the block ends, what each kernel took: calls, time, GB/s and share."""
    return Profile()
