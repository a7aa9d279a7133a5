"""vyre trace: what a script compiled and dispatched, and when."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Annotated, TypedDict

import typer

from ..app import Json, app
from ..inputs.calls import require_place
from ..inputs.scripts import Script, Words, require_script, run_script
from ..output import others_on_stderr, print_json


class Document(TypedDict):
    """`spans` are dispatches and compilations, of which `dropped` did not fit."""

    trace: str
    spans: int
    dropped: int
    exit_code: int


@app.command()
def trace(
    file: Script,
    words: Words = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="For Perfetto, or chrome://tracing.")
    ] = "trace.json",
    as_json: Json = False,
) -> None:
    """Run a script, and write what it dispatched when.

    One line per thread and per device. The exit code is that of the script; the trace is written in any case.
    """
    from ...driver.observe.trace import Trace

    require_script(file)
    require_place("--output", output)
    found = Trace()
    try:
        with others_on_stderr() if as_json else nullcontext(), found:
            code = run_script(file, words or [])
    finally:
        found.write(output)
    if as_json:
        print_json(Document(trace=output, spans=len(found.spans), dropped=found.dropped, exit_code=code))
    print(f"{len(found.spans):,} dispatches and compilations in {output}", file=sys.stderr)
    raise typer.Exit(code)
