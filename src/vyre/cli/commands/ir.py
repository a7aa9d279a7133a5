"""vyre ir: a program in its forms, with what is known of it and what a target's compiler would get."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from ...errors import ArgumentTypeError, ArgumentValueError, BackendUnavailable, UnsupportedFeature
from ..app import Json, app
from ..inputs.calls import File, plain, require_place, write_whole
from ..inputs.programs import Loaded, const, load, pairs
from ..output import others_on_stderr, print_json, print_table

if TYPE_CHECKING:
    from ...foundation.ir.program import Program


class Finding(TypedDict):
    code: str
    severity: str
    place: str
    message: str
    fix: str


class Buffer(TypedDict):
    name: str
    slot: int
    access: str
    element: str
    count: int


class ProgramFacts(TypedDict):
    """Counts of the program, what a backend must offer for it, and whether the schedule can change a result."""

    counts: dict[str, int]
    ops: list[str]
    requirements: dict[str, Any]
    determinism: str
    reasons: list[str]


class Emitted(TypedDict):
    """What the compiler of a target gets: one text per launch."""

    target: str
    texts: list[str]


class Document(TypedDict):
    kernel: str
    file: str
    form: str
    fingerprint: str
    valid: bool
    findings: list[Finding]
    workgroup: list[int]
    buffers: list[Buffer]
    text: str
    wire_bytes: int
    wire_file: str | None
    facts: ProgramFacts | None
    emitted: Emitted | None


Consts = Annotated[
    list[str] | None,
    typer.Option(
        "--const",
        "--input",
        "-i",
        metavar="NAME=NUMBER",
        help="Value of a compile-time parameter, or of a number to compile in.",
    ),
]


@app.command()
def ir(
    file: File,
    consts: Consts = None,
    wire: Annotated[str | None, typer.Option("--wire", metavar="OUT", help="Write the wire form to a file.")] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Operations, buffers, requirements, determinism.")] = False,
    fingerprint: Annotated[bool, typer.Option("--fingerprint", help="Print the fingerprint alone.")] = False,
    emit: Annotated[
        str | None,
        typer.Option(
            "--emit",
            metavar="ID[:DEVICE]",
            help="What the backend's compiler would get; with a device, what that one gets.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the program of a kernel or a file: text, wire, facts, emitted code.

    Without an option the text form, which `vyre run` and the others read again. A program that is not valid is shown
    all the same, with what is wrong on stderr, and exit code 1.
    """
    asked = [name for name, on in (("--stats", stats), ("--fingerprint", fingerprint), ("--emit", emit)) if on]
    if len(asked) > 1 and not as_json:
        raise ArgumentValueError(f"{' and '.join(asked)} cannot be printed together", fix="ask for one, or add --json")
    if wire is not None:
        require_place(f"--wire {wire}", wire)
    loaded = load(file)
    program = program_of(loaded, consts or ())
    with others_on_stderr():  # a backend may open its device to emit
        document = collect(loaded, program, stats=stats, emit=emit)
    if wire is not None:
        blob = program.to_wire()
        write_whole(wire, lambda stream: stream.write(blob))
        document["wire_file"] = wire
    if as_json:
        print_json(plain(document))
    else:
        show(document, fingerprint=fingerprint)
    raise typer.Exit(0 if document["valid"] else 1)


def program_of(loaded: Loaded, consts: Sequence[str]) -> Program:
    values = {name: const("--const", name, text) for name, text in pairs("--const", consts).items()}
    try:
        return loaded.kernel.specialize(**values)
    except ArgumentTypeError as e:
        e.fix = e.fix.replace("pass ", "pass --const ")
        raise


def collect(loaded: Loaded, program: Program, *, stats: bool, emit: str | None) -> Document:
    findings = findings_of(program)
    valid = not any(f["severity"] == "error" for f in findings)
    return Document(
        kernel=loaded.kernel.__name__,
        file=loaded.path,
        form=loaded.form,
        fingerprint=program.fingerprint,
        valid=valid,
        findings=findings,
        workgroup=list(program.workgroup_size),
        buffers=[
            Buffer(name=b.name, slot=b.binding, access=b.access.name.lower(), element=str(b.element), count=b.count)
            for b in program.buffers
        ],
        text=str(program),
        wire_bytes=len(program.to_wire()),
        wire_file=None,
        facts=facts_of(program) if stats else None,
        emitted=emitted(program, emit) if emit is not None and valid else None,
    )


def findings_of(program: Program) -> list[Finding]:
    """What the validator says, of what every full backend offers."""
    from ...foundation.check.validate import validate
    from ...foundation.ir.report import Capabilities

    return [
        Finding(
            code=issue.code.value,
            severity=issue.severity,
            place=f"{issue.span.file}:{issue.span.line}" if issue.span else ".".join(map(str, issue.path)) or "program",
            message=issue.message,
            fix=issue.fix,
        )
        for issue in validate(program, Capabilities.everything())
    ]


def facts_of(program: Program) -> ProgramFacts:
    from ...foundation.check.determinism import determinism

    verdict, counts, needs = determinism(program), program.stats, program.requirements
    return ProgramFacts(
        counts={name: n for name in counts.fields if isinstance(n := getattr(counts, name), int)},
        ops=sorted(program.ops()),
        requirements={name: getattr(needs, name) for name in needs.fields},
        determinism=verdict.verdict,
        reasons=list(verdict.reasons),
    )


def emitted(program: Program, target: str) -> Emitted:
    """The texts of a target, one for each launch that grid-wide barriers cut the program into."""
    from ...foundation.check.gridsync import contains_grid_sync, segments

    parts = [s.program for s in segments(program)] if contains_grid_sync(program) else [program]
    write = _on_device if ":" in target else _without_device
    return Emitted(target=target, texts=[write(part, target) for part in parts])


def _without_device(program: Program, target: str) -> str:
    from ...driver.selection.registry import backend_registration, registered_backends_by_precedence

    record = backend_registration(target)
    if record is not None and record.emit is not None:
        return record.emit(program)
    able = [b.id for b in registered_backends_by_precedence() if b.problem() is None and b.registration.emit]
    if record is None:
        raise BackendUnavailable(f"there is no backend {target}", fix=f"use one of: {', '.join(able)}", backend=target)
    raise UnsupportedFeature(
        f"backend {target} makes no text of programs", fix=f"use one of: {', '.join(able)}", backend=target
    )


def _on_device(program: Program, target: str) -> str:
    from ...front.compile import compile

    native = getattr(compile(program, backend=target), "native", None)
    text = getattr(native, "source", None)
    if not isinstance(text, str):
        raise UnsupportedFeature(
            f"{target} keeps no text of what it compiles",
            fix=f"write --emit {target.partition(':')[0]}",
            backend=target,
        )
    return text


def show(document: Document, *, fingerprint: bool) -> None:
    for f in document["findings"]:
        text = f"{f['severity']}: {f['code']} at {f['place']}: {f['message']}. Fix: {f['fix']}"
        print(text, file=sys.stderr)
    if fingerprint:
        print(document["fingerprint"])
    elif document["emitted"] is not None:
        texts = document["emitted"]["texts"]
        if len(texts) > 1:
            print(f"{len(texts)} texts: grid-wide barriers cut the program into that many launches", file=sys.stderr)
        print("\n".join(text.rstrip("\n") for text in texts))
    elif (facts := document["facts"]) is not None:
        print_table(("fact", "value"), fact_rows(document, facts))
    elif document["wire_file"] is not None:
        print(f"{document['wire_file']}: {document['wire_bytes']} bytes, fingerprint {document['fingerprint']}")
    else:
        print(document["text"].rstrip("\n"))


def fact_rows(document: Document, facts: ProgramFacts) -> list[tuple[str, str]]:
    needs = [f"{name} {n}" if type(n) is int else name for name, n in facts["requirements"].items() if n]
    return [
        ("kernel", f"{document['kernel']} from {document['file']} ({document['form']})"),
        ("fingerprint", document["fingerprint"]),
        ("valid", "yes" if document["valid"] else "no"),
        ("workgroup", "x".join(map(str, document["workgroup"]))),
        *(
            ("buffer", f"{b['name']} @{b['slot']} {b['access']} {b['element']}, {b['count'] or 'any'} elements")
            for b in document["buffers"]
        ),
        ("counts", ", ".join(f"{n} {name}" for name, n in facts["counts"].items() if n)),
        ("operations", ", ".join(facts["ops"])),
        ("requires", ", ".join(needs)),
        ("wire form", f"{document['wire_bytes']} bytes"),
        ("determinism", facts["determinism"]),
        *(("", reason) for reason in facts["reasons"]),
    ]
