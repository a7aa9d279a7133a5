"""vyre replay: what `kernel.evidence`, `vyre run --evidence` or a shadow wrote, run again here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from ..app import Json, app
from ..inputs.calls import Timeout, interruptible
from ..output import others_on_stderr, print_json, progress

if TYPE_CHECKING:
    from ...driver.observe.evidence import EvidenceBundle
    from ...driver.verify.evidence import Replayed


class Document(TypedDict):
    """`as_expected` is null where there was no reference; `difference` is the first one to what was recorded."""

    file: str
    verdict: str
    backend: str
    device: str
    why: str
    notes: list[str]
    difference: dict[str, Any] | None
    as_expected: bool | None
    evidence: dict[str, Any]


@app.command()
def replay(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Evidence of a dispatch.")],
    on: Annotated[
        str | None, typer.Option("--on", metavar="BACKEND", help="id or id:device; default: as a call chooses.")
    ] = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Run a recorded dispatch again, and say whether the same comes out.

    The backend that it ran on need not be here. Exit code 0: the same; 1: something else, or it cannot be run here.
    Nothing of the file is run but its program, as one dispatch.
    """
    from ...driver.observe.evidence import EvidenceBundle
    from ...driver.verify import evidence

    bundle = EvidenceBundle.read(file)
    with others_on_stderr(), progress("replay", 1) as step:
        found = interruptible(lambda: evidence.replay(bundle, on, timeout=timeout))
        step("replay")
    if as_json:
        print_json(document(file, bundle, found))
    else:
        show(file, bundle, found)
    raise typer.Exit(0 if found.verdict == evidence.SAME else 1)


def document(file: str, bundle: EvidenceBundle, found: Replayed) -> Document:
    difference = found.difference
    return Document(
        file=file,
        verdict=found.verdict,
        backend=found.backend,
        device=found.device,
        why=found.why,
        notes=list(found.notes),
        difference=None
        if difference is None
        else {
            "kind": difference.kind,
            "output": difference.output,
            "element": difference.element,
            **{name: str(value) for name, value in difference.facts.items() if name in ("found", "expected")},
        },
        as_expected=found.as_expected,
        evidence=bundle.to_dict(),
    )


def show(file: str, bundle: EvidenceBundle, found: Replayed) -> None:
    then = f" ({bundle.machine.device})" if bundle.machine.device else ""
    print(f"{bundle.program.name or 'program'} {bundle.program_digest[:16]}, recorded {bundle.date}")
    print(f"there: {bundle.backend_id}{then} gave {bundle.outcome}")
    if bundle.expected is not None:
        print(f"       {bundle.expected.by} gave {bundle.expected}, which was to be compared")
    here = f" ({found.device})" if found.device else ""
    if found.outcome is not None:
        print(f"here:  {found.backend}{here} gives {found.outcome}")
    print(f"{found.verdict}: {found.why}" if found.why else found.verdict)
    if found.as_expected is not None and bundle.expected is not None:
        print(f"{'the same as' if found.as_expected else 'NOT what'} {bundle.expected.by} gave then")
    for note in found.notes:
        print(f"note: {note}")
