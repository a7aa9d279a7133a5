"""vyre devices: which devices there are, and the name that asks for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from ..app import NO, Json, app
from ..output import others_on_stderr, print_json, print_table

if TYPE_CHECKING:
    from ...driver.contract.registration import DeviceInfo


class DeviceRow(TypedDict):
    name: str  # what to pass as a backend: "id:index"
    backend: str
    index: int
    device: str
    emulated: bool


class WithoutDevice(TypedDict):
    backend: str
    why_not: str


class Document(TypedDict):
    devices: list[DeviceRow]
    without: list[WithoutDevice]


@app.command()
def devices(
    backend: Annotated[str | None, typer.Argument(metavar="[ID]", help="Of this backend only.")] = None,
    as_json: Json = False,
) -> None:
    """List the devices of one backend, or of all.

    Exit code 1 when there is none.
    """
    with others_on_stderr():
        document = collect(backend)
    if as_json:
        print_json(document)
    else:
        show(document)
    raise typer.Exit(0 if document["devices"] else NO)


def collect(backend: str | None) -> Document:
    from ...driver.selection import registry
    from ...errors import VyreError

    if backend is not None:
        registry.devices(backend)  # an unknown or a broken one raises
    document = Document(devices=[], without=[])
    for listing in registry.registered_backends_by_precedence():
        if backend not in (None, listing.id):
            continue
        found: Sequence[DeviceInfo] = ()
        why = listing.problem()
        try:
            if why is None:
                answer = registry.probed(listing)  # once: it may take its time
                found = answer.devices
                why = None if found else answer.unavailable or "it names no device"
        except VyreError as e:
            why = str(e)
        if why is not None:
            document["without"].append(WithoutDevice(backend=listing.id, why_not=why))
        document["devices"] += [
            DeviceRow(
                name=f"{listing.id}:{d.index}", backend=listing.id, index=d.index, device=d.name, emulated=d.emulated
            )
            for d in found
        ]
    return document


def show(document: Document) -> None:
    rows = [(row["name"], row["device"], "on the processor" if row["emulated"] else "") for row in document["devices"]]
    if rows:
        print_table(("name", "device", "emulated"), rows)
    for missing in document["without"]:
        print(f"{missing['backend']}: no device: {missing['why_not']}")
