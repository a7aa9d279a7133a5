"""vyre explain: the plan of a run with its reasons, or what an error code means."""

from __future__ import annotations

from os.path import exists, isfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from ...errors import ArgumentValueError, DiagCode
from ..app import Json, app
from ..inputs.calls import (
    Backend,
    Choice,
    Domain,
    Grid,
    Inputs,
    Request,
    Sizes,
    Timeout,
    choice,
    collected_warnings,
    interruptible,
    plain,
    request,
    warn,
)
from ..inputs.programs import load
from ..output import others_on_stderr, print_json, print_table, progress
from ..parts.codes import Meaning, is_code, meanings
from ..parts.cold import PARTS, Run, Took, processes

if TYPE_CHECKING:
    from ...driver.execute.explanation import Explanation


class Codes(TypedDict):
    """Of an error code. Several classes may share a number."""

    codes: list[Meaning]


class Plan(Choice):
    """Of a run: `plan` holds the buffers, the grid and every decision with its reason; `determinism` is `proved` if no
    schedule can change a byte of this very run."""

    kernel: str
    file: str
    plan: dict[str, Any]
    determinism: str
    warnings: list[str]


class Cold(TypedDict):
    """Of a first call: the first process with an empty cache folder, then the median of three later ones."""

    kernel: str
    file: str
    runs: list[Run]


@app.command()
def explain(
    what: Annotated[
        str, typer.Argument(metavar="FILE[:KERNEL] | CODE", help="What `vyre run` takes, or an error code.")
    ],
    inputs: Inputs = None,
    backend: Backend = None,
    sizes: Sizes = None,
    domain: Domain = None,
    grid: Grid = None,
    timeout: Timeout = None,
    cold: Annotated[bool, typer.Option("--cold", help="Show what a first call costs, by part.")] = False,
    as_json: Json = False,
) -> None:
    """Show the plan of a run with every reason, or what an error code means.

    The plan takes the options of `vyre run`. The program is compiled, and nothing is dispatched. A code is a number
    (1009), a diagnostic code (V012) or a class (DeadlineExceeded).

    With --cold, fresh processes make the call and measure themselves: the first with an empty cache folder, then a
    second one. Caches of a device's driver are left as they are.
    """
    options = {
        "--input": inputs,
        "--backend": backend,
        "--sizes": sizes,
        "--domain": domain,
        "--grid": grid,
        "--timeout": timeout,
        "--cold": cold or None,
    }
    if not _names_file(what):
        for option, value in options.items():
            if value is not None:
                raise ArgumentValueError(
                    f"{option} is for a run and {what} is not a file", fix=f"name a file, or drop {option}"
                )
        codes = Codes(codes=meanings(what))
        print_json(plain(codes)) if as_json else show_codes(codes)
        return
    words: dict[str, Any] = {"inputs": inputs, "size_options": sizes, "domain": domain, "grid": grid}
    words |= {"timeout": timeout, "backend": backend}
    asked = request(load(what), **words)
    if cold:
        show_cold(asked, what, words, as_json)
        return
    with others_on_stderr():
        document, told = plan_of(asked)
    print_json(plain(document)) if as_json else show_plan(document, told)


def show_cold(asked: Request, what: str, words: dict[str, Any], as_json: bool) -> None:
    with progress(f"starting {asked.kernel.__name__} in fresh processes"):
        runs = interruptible(lambda: processes(what, words))
    document = Cold(kernel=asked.kernel.__name__, file=asked.loaded.path, runs=runs)
    if as_json:
        print_json(plain(document))
        return
    second = runs[-1]
    where = f" ({second['device']})" if second["device"] else ""
    print(f"{document['kernel']} from {document['file']} on {second['backend']}{where}: milliseconds of")
    rows = [(said, *(_times(run["parts"][part]) for run in runs)) for part, said in PARTS.items()]
    rows.append(("in all, to the first result", *(_times(run["all"]) for run in runs)))
    rows.append(("a call after it", *(f"{run['next_call_ms']:.3f}" for run in runs)))
    columns = (f"{run['process']} process, code {_FROM.get(run['tier'], run['tier'])}" for run in runs)
    print_table(("part (on the clock, of the processor)", *columns), rows)


_FROM = {"compiled": "from the compiler", "disk": "from disk"}


def _times(took: Took) -> str:
    return f"{took['ms']:.1f} ({took['processor_ms']:.1f})"


def _names_file(what: str) -> bool:
    """A file is there, or it has the look of one; anything else is a code, spelt rightly or not."""
    name = what.rpartition(":")[0] or what
    if exists(what) or exists(name):
        return not is_code(what) or isfile(what)
    return not is_code(what) and (Path(name).suffix != "" or "/" in what or "\\" in what)


def plan_of(asked: Request) -> tuple[Plan, Explanation]:
    with collected_warnings() as said, progress(f"planning {asked.kernel.__name__}"):
        told = interruptible(asked.explain)
        chosen = choice(asked, told)
    document = Plan(
        **chosen,
        kernel=asked.kernel.__name__,
        file=asked.loaded.path,
        plan=told.to_dict(),
        determinism=told.choice("determinism") or "unproved",
        warnings=said,
    )
    return document, told


def show_plan(document: Plan, told: Explanation) -> None:
    where = f" ({document['device']})" if document["device"] else ""
    print(f"{document['kernel']} from {document['file']} would run on {document['backend']}{where}")
    decided = [(d.what, d.choice, document["why"] if d.what == "backend" else d.reason) for d in told.decisions]
    print_table(("decision", "choice", "reason"), decided)
    for other in document["others"]:
        print(f"not {other['backend']}: {other['reason']}")
    buffers = [(str(b.slot), b.name, b.role, f"{b.elements} x {b.element}", str(b.nbytes)) for b in told.bindings]
    print_table(("slot", "buffer", "role", "elements", "bytes"), buffers)
    print(f"{told.invocations} invocations, {told.output_bytes} bytes of results")
    print(f"program {told.program}")
    warn(document["warnings"])


def show_codes(document: Codes) -> None:
    for k, m in enumerate(document["codes"]):
        codes = (c for c in (m["code"], m["diagnostic"]) if c != DiagCode.E_UNKNOWN)  # which says nothing
        title = f"{m['name']} ({', '.join(codes)})" if m["name"] else f"{m['code']} ({m['severity']})"
        print(f"{chr(10) if k else ''}{title}")
        print(f"meaning: {m['meaning']}")
        if m["cause"]:
            print(f"typical cause: {m['cause']}")
        print(f"Fix: {m['fix']}")
        if m["retryable"]:
            print("retry: the same call may work later")
        print(f"more: {m['link']}")
