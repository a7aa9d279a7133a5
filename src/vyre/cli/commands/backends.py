"""vyre backends: what is registered, what would open, and why the rest would not."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

import typer

from ..app import NO, Json, app
from ..output import others_on_stderr, print_json, print_table

if TYPE_CHECKING:
    from ...driver.selection.listing import BackendListing
    from ...driver.selection.probe import Probe

KINDS = {
    "device": "device",
    "host": "processor",
    "oracle": "definition, on request",
    "distributed": "cluster, on request",
}
"""Kind of a registration -> what a user calls it."""


class BackendRow(TypedDict):
    id: str
    precedence: int | None  # None: disabled before it had one
    package: str
    kind: str | None
    available: bool
    why_not: str | None
    disabled: bool
    devices: list[str]
    emulated: bool


class Document(TypedDict):
    preferred: str | None
    backends: list[BackendRow]


@app.command()
def backends(as_json: Json = False) -> None:
    """List backends in the order they are asked, and why one would not open.

    Exit code 1 when a plain call would find none.
    """
    with others_on_stderr():
        document = collect()
    if as_json:
        print_json(document)
    else:
        show(document)
    raise typer.Exit(NO if document["preferred"] is None else 0)


def collect() -> Document:
    from ...driver.selection import registry

    listings = registry.registered_backends_by_precedence()
    found = {listing.id: registry.probed(listing) for listing in listings if listing.problem() is None}
    rows = [_row(listing, found.get(listing.id)) for listing in listings]
    rows += [_disabled(id, why) for id, why in registry.problems().items() if id not in {row["id"] for row in rows}]
    return Document(preferred=registry.preferred(lambda listing: found[listing.id]), backends=rows)


def _row(listing: BackendListing, found: Probe | None) -> BackendRow:
    row = _disabled(listing.id, listing.problem())
    row["precedence"], row["package"] = listing.precedence, listing.provider
    if found is not None and not row["disabled"]:  # it may be disabled since, by what it answered
        row["kind"], row["why_not"] = listing.registration.kind, found.unavailable
        row["available"] = found.unavailable is None
        row["devices"], row["emulated"] = [device.name for device in found.devices], found.emulated
    return row


def _disabled(id: str, why: str | None) -> BackendRow:
    return BackendRow(
        id=id,
        precedence=None,
        package="",
        kind=None,
        available=False,
        why_not=why,
        disabled=why is not None,
        devices=[],
        emulated=False,
    )


def show(document: Document) -> None:
    preferred = document["preferred"]
    rows, styles = [], []
    for row in document["backends"]:
        kind = KINDS.get(row["kind"] or "", "")
        state, style = _state(row)
        rows.append((
            row["id"],
            "" if row["precedence"] is None else str(row["precedence"]),
            f"{kind}, emulated" if row["emulated"] else kind,
            state,
            row["why_not"] or ", ".join(row["devices"]),
            row["package"],
        ))  # fmt: skip
        styles.append(style)
    print_table(("backend", "rank", "kind", "state", "devices, or why not", "package"), rows, styles)
    print("A plain call finds no backend." if preferred is None else f"A plain call asks {preferred} first.")


def _state(row: BackendRow) -> tuple[str, str]:
    if row["disabled"]:
        return "disabled", "red"
    return ("available", "") if row["available"] else ("not available", "dim")
