"""A user's script, run inside a command as `python script.py` would run it."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from ...errors import ArgumentValueError

Script = Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python script.")]
Words = Annotated[list[str] | None, typer.Argument(metavar="[-- ARGS...]", help="What the script gets.")]


def require_script(file: str) -> None:
    if not os.path.isfile(file):
        raise ArgumentValueError(f"there is no file {file}", fix="name a Python script")


def run_script(file: str, words: Sequence[str]) -> int:
    """Run it to its end; its exit code. What it raises is shown as Python shows it, from the script on."""
    require_script(file)
    before = sys.argv, sys.path[:]
    sys.argv, sys.path = [file, *words], [os.path.dirname(os.path.abspath(file)), *sys.path]
    try:
        runpy.run_path(file, run_name="__main__")
    except SystemExit as e:
        if e.code is None or isinstance(e.code, int):
            return e.code or 0
        print(e.code, file=sys.stderr)
        return 1
    except Exception as e:
        trace = e.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != file:
            trace = trace.tb_next
        traceback.print_exception(type(e), e, trace or e.__traceback__)
        return 1
    finally:
        sys.argv, sys.path[:] = before
    return 0
