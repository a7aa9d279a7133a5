"""vyre serve: run a script, and answer questions about it over HTTP while it runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ...errors import ArgumentValueError
from ..app import app
from ..inputs.scripts import Script, Words, run_script


@app.command()
def serve(
    file: Script,
    words: Words = None,
    metrics: Annotated[
        int | None, typer.Option("--metrics", metavar="PORT", help="Prometheus reads /metrics here; 0: a free port.")
    ] = None,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Where to listen; only this machine may ask by default.")
    ] = "127.0.0.1",
) -> None:
    """Run a script, and serve metrics of its dispatches.

    The exit code is that of the script. It needs pip install 'vyre[metrics]'.
    """
    from ...driver.observe.metrics import metrics as of_process

    if metrics is None:
        raise ArgumentValueError("there is nothing to serve", fix="write --metrics PORT")
    with of_process().serve(metrics, host) as server:
        print(f"metrics at http://{host}:{server.port}/metrics", file=sys.stderr, flush=True)
        code = run_script(file, words or [])
    raise typer.Exit(code)
