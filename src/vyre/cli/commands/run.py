"""vyre run: one call of a kernel from a file, with what came out and how long it took."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from ...errors import ArgumentValueError
from ...foundation.durations import duration
from ..app import Json, app
from ..inputs.calls import (
    Argument,
    Backend,
    Choice,
    Domain,
    File,
    Grid,
    Inputs,
    Request,
    Result,
    Sizes,
    Timeout,
    argument_rows,
    choice,
    collected_warnings,
    first_difference,
    interruptible,
    oracle_id,
    output_files,
    plain,
    request,
    require_place,
    result_rows,
    same_bytes,
    shown,
    warn,
    write_array,
)
from ..inputs.programs import load, shape
from ..output import others_on_stderr, print_json, print_table, progress

if TYPE_CHECKING:
    from ...driver.observe.evidence import EvidenceBundle
    from ...front.arrays import Array


SHOWN = 4


class Warm(TypedDict):
    """Calls after the first. `equal`: each gave the bytes of the first."""

    runs: int
    median_ns: int
    min_ns: int
    equal: bool


class RunCheck(TypedDict):
    """Against the backend that says what is right; `difference` is the first one."""

    backend: str
    equal: bool
    difference: str | None


class Document(Choice):
    kernel: str
    file: str
    form: str
    fingerprint: str
    workgroup: list[int]
    grid: list[int]
    inputs: list[Argument]
    first_ns: int
    warm: Warm | None
    outputs: list[Result]
    check: RunCheck | None
    determinism: str
    warnings: list[str]
    evidence: str | None


@app.command()
def run(
    file: File,
    inputs: Inputs = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option("--output", "-o", metavar="NAME=FILE", help="Write a result to file.npy, or its bytes elsewhere."),
    ] = None,
    backend: Backend = None,
    repeat: Annotated[int, typer.Option("--repeat", metavar="N", help="Calls; the first is timed apart.")] = 1,
    sizes: Sizes = None,
    domain: Domain = None,
    grid: Grid = None,
    timeout: Timeout = None,
    evidence: Annotated[
        str | None,
        typer.Option("--evidence", metavar="FILE", help="Also write what `vyre replay` needs to run it elsewhere."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Compare with the reference; unequal is exit code 1.")] = False,
    step: Annotated[
        str | None,
        typer.Option("--step", metavar="X[xYxZ]", help="Go through this invocation, by its gid, and show each line."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a kernel or a program from a file.

    Inputs go by the parameter's name: --input alpha=2.0 --input x=random:1000 --input y=y.npy. Random integers cover
    the whole range of their type and random floats lie from 0 up to 1; unless given, the seed of the first random
    input is 0, of the next 1, and so on. Files other than .npy are read as elements of the declared type. Times are
    those of calls from Python, with all copies. Evidence is of one more dispatch, with its error if it fails.
    """
    if repeat < 1:
        raise ArgumentValueError(f"--repeat {repeat} runs nothing", fix="write --repeat 1 or more")
    asked = request(load(file), inputs, sizes, domain, grid, timeout, backend)
    if step is not None:
        if outputs or check or repeat > 1 or evidence is not None:
            fix = "leave out --output, --repeat, --check and --evidence"
            raise ArgumentValueError("--step shows one invocation and no results", fix=fix)
        show_steps(asked, step, as_json)
        return
    files = output_files(asked, outputs)
    with others_on_stderr():
        if evidence is not None:
            require_place("--evidence", evidence)
            interruptible(lambda: captured(asked, check)).write(evidence)
        document, results = measure(asked, files, repeat, check)
        document["evidence"] = evidence
    for name, array in zip(asked.result_names, results, strict=True):
        if name in files:
            write_array(files[name], array)
    if as_json:
        print_json(plain(document))
    else:
        show(document)
    wrong = (document["check"] or {"equal": True})["equal"] is False or (document["warm"] or {"equal": True})[
        "equal"
    ] is False
    raise typer.Exit(1 if wrong else 0)


class StepsDocument(TypedDict):
    kernel: str
    file: str
    steps: list[dict[str, Any]]


def show_steps(asked: Request, gid: str, as_json: bool) -> None:
    """Each line that one invocation comes to, with its locals before it."""
    stops = asked.steps(shape(gid, f"--step {gid}"))
    if as_json:
        kernel, file = asked.kernel.__name__, asked.loaded.path
        print_json(plain(StepsDocument(kernel=kernel, file=file, steps=[at._asdict() for at in stops])))
        return
    for at in stops:
        values = "  ".join(f"{name}={value}" for name, value in at.locals.items())
        print(f"{at.line:>5}  {at.text if not at.done else 'done':<50}  {values}".rstrip())


def measure(asked: Request, files: dict[str, str], repeat: int, check: bool) -> tuple[Document, list[Array]]:
    """Run it `repeat` times, then once more where it is checked. The results are those of the first call."""
    with collected_warnings() as said, progress(asked.kernel.__name__, repeat + check) as step:
        results, first_ns, times, equal = interruptible(lambda: calls(asked, repeat, step))
        checked = interruptible(lambda: compare(asked, results)) if check else None
        told = asked.explain()  # after the first call, so that it pays for nothing
        chosen = choice(asked, told)
    warm = (
        Warm(runs=len(times), median_ns=int(statistics.median(times)), min_ns=min(times), equal=equal)
        if times
        else None
    )
    document = Document(
        **chosen,
        kernel=asked.kernel.__name__,
        file=asked.loaded.path,
        form=asked.loaded.form,
        fingerprint=asked.program.fingerprint,
        workgroup=list(told.workgroup),
        grid=list(told.grid),
        inputs=argument_rows(asked),
        first_ns=first_ns,
        warm=warm,
        outputs=result_rows(asked, results, files),
        check=checked,
        determinism=told.choice("determinism") or "unproved",
        warnings=said,
        evidence=None,
    )
    return document, results


def captured(asked: Request, check: bool) -> EvidenceBundle:
    """What happens when it runs, with what the reference gives where that is compared."""
    found = asked.evidence()
    if not check:
        return found
    return replace(found, expected=asked._replace(kernel=asked.kernel.on(oracle_id())).evidence().outcome)


def calls(asked: Request, repeat: int, step: Callable[..., None]) -> tuple[list[Array], int, list[int], bool]:
    """Results and time of the first call, times of the others, and whether all gave the same bytes."""
    results, first_ns = asked.run()
    step("warm")
    times, equal = [], True
    for _ in range(repeat - 1):
        again, took = asked.run()
        times.append(took)
        equal = equal and same_bytes(results, again)
        step("warm")
    return results, first_ns, times, equal


def compare(asked: Request, results: list[Array]) -> RunCheck:
    oracle = oracle_id()
    right, _ = asked.run(asked.kernel.on(oracle))
    return RunCheck(
        backend=oracle,
        equal=same_bytes(results, right),
        difference=first_difference(asked.result_names, results, right),
    )


def show(document: Document) -> None:
    where = f" ({document['device']})" if document["device"] else ""
    print(f"{document['kernel']} from {document['file']} on {document['backend']}{where}: {document['why']}")
    for other in document["others"]:
        print(f"  not {other['backend']}: {other['reason']}")
    rows = [("input", a["name"], a["element"], _size(a), a["origin"], _some(a)) for a in document["inputs"]]
    rows += [("output", r["name"], r["element"], _size(r), r["file"] or "", _some(r)) for r in document["outputs"]]
    print_table(("role", "name", "type", "size", "from, to", "values"), rows)
    for r in document["outputs"]:
        print(f"blake3 of {r['name']} {r['blake3']}")
    print(f"first call {duration(document['first_ns'])}, which opens the backend, and compiles or loads")
    if warm := document["warm"]:
        print(f"warm calls {duration(warm['median_ns'])} median, {duration(warm['min_ns'])} least, of {warm['runs']}")
        if not warm["equal"]:
            print(f"calls gave different bytes (determinism: {document['determinism']})")
    if checked := document["check"]:
        verdict = "the same bytes" if checked["equal"] else f"OTHER bytes, first at {checked['difference']}"
        print(f"check: {checked['backend']} gives {verdict}")
    if document["evidence"]:
        print(f"evidence: vyre replay {document['evidence']}")
    warn(document["warnings"])


def _size(row: Argument | Result) -> str:
    return "x".join(map(str, row["shape"])) or "1"


def _some(row: Argument | Result) -> str:
    """The first elements, on one line."""
    return shown(row["head"][:SHOWN], math.prod(row["shape"]))
