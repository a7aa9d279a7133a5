"""vyre trace: what a script compiled and dispatched, and when."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ..app import app
from ..inputs.calls import require_place
from ..inputs.scripts import Script, Words, run_script


@app.command()
def trace(
    file: Script,
    words: Words = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="For Perfetto, or chrome://tracing.")
    ] = "trace.json",
) -> None:
    """Run a script, and write what it dispatched when.

    One line per thread and per device. The exit code is that of the script; the trace is written in any case.
    """
    from ...driver.observe.trace import Trace

    require_place("--output", output)
    recorded = Trace()
    try:
        with recorded:
            code = run_script(file, words or [])
    finally:
        recorded.write(output)
    more = f", and {recorded.untimed:,} that are not timed" if recorded.untimed else ""
    print(f"{len(recorded.spans):,} dispatches and compilations in {output}{more}", file=sys.stderr)
    raise typer.Exit(code)
