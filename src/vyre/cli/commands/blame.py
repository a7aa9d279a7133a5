"""vyre blame: which operation of a recorded dispatch does a backend compute wrongly?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from ...errors import ArgumentValueError
from ..app import Json, app
from ..inputs.calls import interruptible, require_place
from ..output import others_on_stderr, print_json, progress

if TYPE_CHECKING:
    from ...driver.verify.blame import Blamed


class RightOperand(TypedDict):
    expression: str
    value: str


class Document(TypedDict):
    """`operation` computes `expression` wrongly, from these operands: `found` in place of `expected`, in this
    invocation. The smallest dispatch that shows it is `program`, in the file `evidence`."""

    file: str
    operation: str
    expression: str
    operands: list[RightOperand]
    backend: str
    reference: str
    invocation: list[int] | None
    found: str
    expected: str
    statements: int
    statements_before: int
    tries: int
    program: str
    evidence: str


@app.command()
def blame(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Evidence of a dispatch whose outputs differ.")],
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="BACKEND", help="The backend that is wrong; default: the one that it ran on."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="For the smallest dispatch; default: FILE.small.evidence."),
    ] = None,
    tries: Annotated[int, typer.Option("--tries", metavar="N", help="Dispatches to try at most.")] = 1500,
    as_json: Json = False,
) -> None:
    """Find the operation that a backend computes wrongly.

    The backend has to be here. It and the reference run smaller and smaller dispatches, as long as they differ and no
    order of invocations explains it. In what is left, the values of all expressions are compared, operands first.
    """
    from ...driver.observe.evidence import EvidenceBundle
    from ...driver.verify.blame import blame as find

    if tries < 1:
        raise ArgumentValueError(f"--tries {tries} tries nothing", fix="write --tries 1000 or more")
    target = output or f"{file.removesuffix('.evidence')}.small.evidence"
    require_place("--output", target)
    bundle = EvidenceBundle.read(file)
    with others_on_stderr(), progress("blame", tries) as step:
        found = interruptible(lambda: find(bundle, on, tries=tries, step=step))
        found.bundle.write(target)
    document = documented(file, found, target)
    if as_json:
        print_json(document)
    else:
        show(document)


def documented(file: str, found: Blamed, target: str) -> Document:
    wrong, bundle = found.wrong, found.bundle
    facts = wrong.difference.facts
    return Document(
        file=file,
        operation=wrong.operation,
        expression=wrong.expression,
        operands=[RightOperand(expression=o.expression, value=o.value) for o in wrong.operands],
        backend=bundle.backend_id,
        reference=bundle.expected.by if bundle.expected is not None else "",
        invocation=list(wrong.invocation) if wrong.invocation else None,
        found=str(facts["found"]),
        expected=str(facts["expected"]),
        statements=found.statements,
        statements_before=found.whole,
        tries=found.tries,
        program=str(bundle.program),
        evidence=str(Path(target)),
    )


def show(told: Document) -> None:
    print(f"{told['operation']} is wrong on {told['backend']}: {told['expression']}")
    for operand in told["operands"]:
        print(f"  where {operand['expression']} is {operand['value']}")
    where = "" if told["invocation"] is None else f" in invocation {tuple(told['invocation'])}"
    print(f"  {told['backend']} gives {told['found']}, and {told['reference']} {told['expected']}{where}")
    print(f"{told['statements']} of {told['statements_before']} statements are left after {told['tries']} tries:")
    print(told["program"])
    print(f"evidence: vyre replay {told['evidence']}")
