"""vyre profile: where the time of a script went."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated, TypedDict, cast

import typer

from ..app import Json, app
from ..inputs.calls import require_place
from ..inputs.scripts import Script, Words, run_script
from ..output import others_on_stderr, print_json


class Row(TypedDict):
    """One kernel on one backend: what callers waited in all, `device_ns` of it where that is known, and what it took to
    have code. `share` is of the time in all rows."""

    program: str
    backend: str
    calls: int
    failed: int
    ns: int
    device_ns: int | None
    compile_ns: int
    nbytes: int
    share: float
    gigabytes_per_s: float


class Document(TypedDict):
    """`block_ns` is the time of the whole script; `dropped` dispatches did not fit."""

    rows: list[Row]
    block_ns: int
    dropped: int
    exit_code: int


@app.command()
def profile(
    file: Script,
    words: Words = None,
    page: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Also write a page, which loads nothing.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a script, and print where the time went.

    What the script prints goes to stderr. The exit code is that of the script.
    """
    from ...driver.observe.profile import Profile

    if page is not None:
        require_place("--html", page)
    found = Profile(quiet=True)
    with others_on_stderr(), found:
        code = run_script(file, words or [])
    if page is not None:
        found.write(page)
    if as_json:
        rows = [cast("Row", asdict(row) | {"gigabytes_per_s": row.gigabytes_per_s}) for row in found.rows()]
        block = found.ended - found.begun
        print_json(Document(rows=rows, block_ns=block, dropped=found.dropped, exit_code=code))
    else:
        print(found, file=sys.stdout)
    raise typer.Exit(code)
