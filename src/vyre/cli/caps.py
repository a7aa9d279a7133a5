"""vyre caps: what a backend does on a device, and what each no means for a program."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from .app import Json, app
from .output import others_on_stderr, print_json, print_table

if TYPE_CHECKING:
    from ..driver.contract.backend import VyreBackend

EMULATED = {
    "subgroup_ops": ("subgroup", "subgroup operations run as ordinary code: slower, with the same bytes"),
    "f16": ("float16", "f16 is computed in f32 and rounded once: slower, with the same bytes"),
    "bf16": ("bfloat16", "bf16 is computed in f32 and rounded once: slower, with the same bytes"),
    "indirect_dispatch": ("indirect", "a grid that a buffer holds is read by the host before the launch"),
    "grid_sync": (
        "grid_sync",
        "a program with grid_sync() is split into several launches; cooperative=True is refused",
    ),
    "distributed_collectives": ("collectives", "collectives run over the one process that there is"),
}
"""Field of the capability record -> what programs may then contain, and what it means that this is emulated."""

NO_MEANS = {
    "dispatches": "it emits programs and runs none",
    "subgroup_ops": "a program with subgroup operations is refused",
    "f16": "a program with f16 values is refused",
    "bf16": "a program with bf16 values is refused",
    "tensor_cores": "matrix products use ordinary instructions",
    "async_compute": "dispatch_async() runs the program before it returns",
    "indirect_dispatch": "a program whose grid a buffer holds is refused",
    "grid_sync": "a program with grid_sync() is refused, and so is cooperative=True",
    "speculation": 'DispatchConfig(speculation="force") is refused',
    "persistent_threads": 'each dispatch is a launch of its own; persistent_thread="force" is refused',
    "distributed": "it runs on this machine alone",
    "distributed_collectives": "a program with collectives is refused",
    "host_grid_sync_split": "no program is split at grid_sync(): it needs a device that synchronises its grid",
}
"""Field of the capability record -> what it means for a user that it is no."""

DEADLINES = {
    "none": "it keeps none: the driver leaves a call that takes too long, and the backend with it",
    "cooperative": "the program stops itself, and the backend goes on",
    "host": "the call returns in time, and the device then counts as lost",
}

LIMITS = {
    "max_workgroup_size": "lanes of a workgroup along x, y, z",
    "max_invocations_per_workgroup": "lanes of a workgroup",
    "max_workgroups_per_dimension": "workgroups along each axis",
    "max_shared_bytes": "shared memory of a workgroup, bytes",
    "max_storage_buffer_bytes": "bytes of a buffer; 0: not told",
    "max_steps": "steps of a program, by program.stats; 0: any number",
    "subgroup_size": "lanes of a subgroup",
}


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
    deadline: str
    memory_model: str
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
    from ..driver.selection.registry import acquire

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
    from ..driver.admission.program import capabilities_of

    capability, offered = backend.capability, capabilities_of(backend)
    profile = backend.device_profile()
    answers = []
    for field in fields(capability):
        if field.type == "bool":
            bit, emulation = EMULATED.get(field.name, (None, ""))
            if getattr(capability, field.name):
                answers.append(Answer(name=field.name, answer="yes", meaning=None))
            elif bit is not None and getattr(offered, bit):
                answers.append(Answer(name=field.name, answer="emulated", meaning=emulation))
            else:
                meaning = NO_MEANS.get(field.name, "it is not offered")
                answers.append(Answer(name=field.name, answer="no", meaning=meaning))
    limits: dict[str, int | list[int] | None] = {}
    for limit in LIMITS:
        value = getattr(backend if hasattr(backend, limit) else capability, limit)
        limits[limit] = list(value) if isinstance(value, tuple) else value
    return Document(
        backend=backend.id,
        device=backend.device or profile.device,
        version=backend.version,
        answers=answers,
        limits=limits,
        types=["bool", "f32", "i16", "i32", "i8", "u16", "u32", "u8", *sorted(capability.types)],
        deadline=capability.deadline,
        memory_model=capability.memory_model,
        timing=str(profile.timing_quality),
        operations=sorted(backend.supported_ops()),
        exactness=dict(capability.exactness),
        extras=dict(capability.extras),
    )


def show(document: Document) -> None:
    device = f" on {document['device']}" if document["device"] else ""
    print(f"{document['backend']} {document['version']}{device}\n")
    rows = [(a["name"], a["answer"], a["meaning"] or "") for a in document["answers"]]
    print_table(("capability", "answer", "what that means"), rows, ["dim" if row[1] == "no" else "" for row in rows])
    print()
    told = [(name, _text(document["limits"][name]), what) for name, what in LIMITS.items()]
    told += [
        ("types", " ".join(document["types"]), "of values and elements"),
        ("operations", str(len(document["operations"])), "that programs may use; --json names them"),
        ("deadline", document["deadline"], DEADLINES[document["deadline"]]),
        ("memory model", document["memory_model"], "of atomics"),
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
