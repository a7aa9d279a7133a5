"""vyre serve: run a script, and answer questions about it over HTTP while it runs."""

from __future__ import annotations

import sys
from contextlib import closing, nullcontext
from typing import Annotated, TypedDict

import typer

from ...errors import ArgumentValueError
from ..app import Json, app
from ..inputs.scripts import Script, Words, require_script, run_script
from ..output import others_on_stderr, print_json


class Document(TypedDict):
    """Printed when the script has ended; where it was served stands on stderr from the start."""

    url: str
    exit_code: int


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
    as_json: Json = False,
) -> None:
    """Run a script, and serve metrics of its dispatches.

    The exit code is that of the script. It needs pip install 'vyre[metrics]'.
    """
    from ...driver.observe.metrics import metrics as of_process

    if metrics is None:
        raise ArgumentValueError("there is nothing to serve", fix="write --metrics PORT")
    require_script(file)
    with (
        closing(of_process()) as found,
        found.serve(metrics, host) as server,
        others_on_stderr() if as_json else nullcontext(),
    ):
        url = f"http://{host}:{server.port}/metrics"
        print(f"metrics at {url}", file=sys.stderr, flush=True)
        code = run_script(file, words or [])
    if as_json:
        print_json(Document(url=url, exit_code=code))
    raise typer.Exit(code)
