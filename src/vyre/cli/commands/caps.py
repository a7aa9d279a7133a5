"""vyre caps: what a backend does on a device, and what each no means for a program."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from ..app import Json, app
from ..output import others_on_stderr, print_json, print_table

if TYPE_CHECKING:
    from ...driver.contract.backend import VyreBackend
    from ...driver.contract.capability import Fact
    from ...foundation.ir.report import Capabilities


class Answer(TypedDict):
    name: str
    answer: str  # yes (an instruction of the device, or the backend's own), emulated, no
    meaning: str | None  # of everything but yes


class Document(TypedDict):
    backend: str
    device: str
    version: str
    answers: list[Answer]
    limits: dict[str, int | list[int] | None]
    types: list[str]
    facts: dict[str, str]
    timing: str
    operations: list[str]
    exactness: dict[str, Any]
    extras: dict[str, Any]


@app.command()
def caps(
    name: Annotated[str, typer.Argument(metavar="ID[:DEVICE]", help="A backend, with an index or part of a name.")],
    as_json: Json = False,
) -> None:
    """Show what a backend can do on a device, and what each "no" means."""
    from ...driver.selection.registry import acquire

    with others_on_stderr():
        backend = acquire(name)
        try:
            document = collect(backend)
        finally:
            backend.shutdown()
    if as_json:
        print_json(document)
    else:
        show(document)


def collect(backend: VyreBackend) -> Document:
    from ...driver.admission.program import capabilities_of
    from ...driver.contract.capability import FACTS

    capability, offered = backend.capability, capabilities_of(backend)
    profile = backend.device_profile()
    answers: list[Answer] = []
    limits: dict[str, int | list[int] | None] = {}
    texts: dict[str, str] = {}
    for field in fields(capability):
        value = getattr(backend if hasattr(backend, field.name) else capability, field.name)
        match field.type:
            case "bool":
                answers.append(_answer(field.name, FACTS[field.name], value, offered))
            case "int" | "int | None":
                limits[field.name] = value
            case "Dims":
                limits[field.name] = list(value)
            case "str":
                texts[field.name] = value
    return Document(
        backend=backend.id,
        device=backend.device or profile.device,
        version=backend.version,
        answers=answers,
        limits=limits,
        types=["bool", "f32", "i16", "i32", "i8", "u16", "u32", "u8", *sorted(capability.types)],
        facts=texts,
        timing=str(profile.timing_quality),
        operations=sorted(backend.supported_ops()),
        exactness=dict(capability.exactness),
        extras=dict(capability.extras),
    )


def _answer(name: str, fact: Fact, yes: bool, offered: Capabilities) -> Answer:
    if yes:
        return Answer(name=name, answer="yes", meaning=None)
    if fact.offered and getattr(offered, fact.offered):
        return Answer(name=name, answer="emulated", meaning=fact.emulated)
    return Answer(name=name, answer="no", meaning=fact.no)


def show(document: Document) -> None:
    from ...driver.contract.capability import FACTS

    device = f" on {document['device']}" if document["device"] else ""
    print(f"{document['backend']} {document['version']}{device}\n")
    rows = [(a["name"], a["answer"], a["meaning"] or "") for a in document["answers"]]
    print_table(("capability", "answer", "what that means"), rows, ["dim" if row[1] == "no" else "" for row in rows])
    print()
    told = [(name, _text(value), FACTS[name].doc) for name, value in document["limits"].items()]
    told += [
        ("types", " ".join(document["types"]), "of values and elements"),
        ("operations", str(len(document["operations"])), "that programs may use; --json names them"),
        *(
            (name, value or "-", FACTS[name].choices.get(value, FACTS[name].doc))
            for name, value in document["facts"].items()
        ),
        ("timing", document["timing"].replace("_", " "), "how the time of a dispatch is known"),
    ]
    told += [(f"exactness: {key}", _text(value), "") for key, value in document["exactness"].items()]
    told += [(key, _text(value), "") for key, value in document["extras"].items()]
    print_table(("limit or fact", "value", ""), told)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " x ".join(map(str, value))
    return "unknown" if value is None else str(value)
