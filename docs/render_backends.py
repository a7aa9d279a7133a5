"""Write docs/reference/backends.md from docs/capabilities.json: python docs/render_backends.py [--record]

With --record, the capability records of every device that is found here are first put into the JSON file; those of
other machines stay.
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import vyre
from vyre.foundation.ir.ops import EXPR_IDS, LITERAL_IDS, NODE_IDS

HERE = Path(__file__).parent
RECORDS = HERE / "capabilities.json"
PAGE = HERE / "reference" / "backends.md"
FACTS = {
    "types": "value types beyond u32 i32 f32 bool",
    "deadline": "how a deadline is kept",
    "exactness": "canonical f32 by",
    "subgroup_ops": "native subgroup instructions",
    "grid_sync": "native grid-wide barrier",
    "async_compute": "started dispatches overlap",
    "prints": "`print()` of a kernel",
    "max_workgroup_size": "workgroup, at most",
    "max_invocations_per_workgroup": "invocations of a workgroup, at most",
    "max_shared_bytes": "workgroup memory, at most",
    "max_storage_buffer_bytes": "one buffer, at most",
    "max_steps": "steps of a program to compile, at most",
}
"""Fact -> how the page calls it."""
EVERYTHING = {*NODE_IDS.values(), *EXPR_IDS.values(), *LITERAL_IDS.values(), *vyre.core_supported_ops()}


def load() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(RECORDS.read_text("utf-8"))
    return found


def facts(backend: vyre.VyreBackend) -> dict[str, Any]:
    """What the page tells of a capability record."""
    record = {f.name: getattr(backend.capability, f.name) for f in fields(backend.capability)}
    record["types"] = sorted(record["types"])
    record["exactness"] = {k: v for k, v in record["exactness"].items() if k not in ("f32", "device")}
    record["max_workgroup_size"] = list(record["max_workgroup_size"])
    record["missing"] = sorted(EVERYTHING - backend.supported_ops())
    return {name: record[name] for name in (*FACTS, "missing")}


def record() -> dict[str, dict[str, Any]]:
    """The records of this machine."""
    found: dict[str, dict[str, Any]] = {}
    for listing in vyre.registered_backends_by_precedence():
        if listing.unavailable() is not None:
            continue
        for device in vyre.devices(listing.id) or (None,):
            name = listing.id if device is None else f"{listing.id}:{device.index}"
            backend = vyre.acquire(name)
            on_processor = listing.registration.kind in ("host", "oracle")
            title = listing.id if device is None or on_processor else f"{listing.id}, {_short(device.name)}"
            found[title] = {
                "precedence": listing.precedence,
                **facts(backend),
            }
            backend.shutdown()
    return found


def render(records: dict[str, dict[str, Any]]) -> str:
    """The page: a column per device."""
    rows = sorted(records.items(), key=lambda item: (item[1]["precedence"], item[0]))
    lines = [
        "# Backends",
        "",
        "What each backend said about the devices that it was tested on: the capability records, as",
        "`vyre.acquire(name).capability` gives them. Yours may have other limits; ask it, or run `vyre caps ID`.",
        "Made by `docs/render_backends.py` from `docs/capabilities.json`.",
        "",
        "Two questions have two answers. What a program may contain is `supported_ops()`: all backends run the",
        "[core](ops.md#ids). The lines about *native* instructions only say how: without them the same thing is done",
        "in another way, with the same bytes.",
        "",
    ]
    lines += ["| | " + " | ".join(title for title, _ in rows) + " |", "|---" * (len(rows) + 1) + "|"]
    for name, words in ({"precedence": "precedence"} | FACTS).items():
        lines.append(f"| {words} | " + " | ".join(_shown(name, found[name]) for _, found in rows) + " |")
    without: dict[str, list[str]] = {}
    for title, found in rows:
        without.setdefault(", ".join(f"`{op}`" for op in found["missing"]), []).append(title)
    lines += ["", "## What they do not run", ""]
    lines += [f"- {'; '.join(titles)}: {ops}." for ops, titles in without.items() if ops]
    lines += ["", "None of this can be written in a kernel; it comes from builders and files.", ""]
    lines += [
        "## How a deadline is kept",
        "",
        "*cooperative*: the code itself looks, and stops. *host*: the call returns in time, and a kernel that does not",
        "end by itself costs the device, which the next call opens again. *none*: the driver leaves the call behind.",
        "",
    ]
    return "\n".join(lines)


def _short(device: str) -> str:
    """A device's name without what is in parentheses, and the driver's alone where both are there."""
    return device.rpartition(" / ")[2].partition(" (")[0].partition("+")[0]


def _shown(name: str, value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case int() if name.endswith("_bytes"):
            return _bytes(value)
        case int():
            return f"{value:,}"
        case dict():
            return "; ".join(f"{k.replace('_', ' ')} {_shown('', v)}" for k, v in value.items()) or "definition"
        case []:
            return "none"
        case [int(), *_]:
            return " x ".join(f"{n:,}" for n in value)
        case list():
            return " ".join(value) if name == "types" else ", ".join(f"`{v}`" for v in value)
    return str(value)


def _bytes(n: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.4g} {unit}"
    return f"{n} bytes"


if __name__ == "__main__":
    if "--record" in sys.argv:
        known = load() if RECORDS.exists() else {}
        RECORDS.write_text(json.dumps(known | record(), indent=1, sort_keys=True) + "\n", "utf-8")
    PAGE.write_text(render(load()), "utf-8")
