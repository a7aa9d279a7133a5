"""Write docs/coverage.md from docs/coverage.toml: python docs/render_coverage.py"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TITLES = {"re-exports": "Names", "modules": "Modules", "items": "Types and functions of the root"}


def load() -> dict[str, Any]:
    return tomllib.loads((HERE / "coverage.toml").read_text("utf-8"))


def render(ledger: dict[str, Any]) -> str:
    """The ledger as a page: one table per kind of name, those that are still to come below it, and then the rest."""
    lines = [
        "# What of the driver is here",
        "",
        "Every name of the driver's index: where it lives, who uses it, and the test that fails when that use is cut",
        "(`bench/ledger_cuts.py` cuts them all; an annotation is not a use). What is not here yet stands under the",
        "area that it comes with; a name can be here before what uses it, and then its test shows what it does. What",
        "makes no sense in Python stands last, with the reason. Made by `docs/render_coverage.py` from",
        "`docs/coverage.toml`.",
        "",
    ]
    entries = [entry for section in TITLES for entry in ledger[section].values()]
    here, used, void = (sum(field in entry for entry in entries) for field in ("path", "caller", "void"))
    count = f"Of {len(entries)} names {here} are here, and {used} of these are in use; {void} make no sense here."
    lines += [count, ""]
    for section, title in TITLES.items():
        names = ledger[section]
        lines += [f"## {title}", "", '<div class="paths" markdown>', ""]
        lines += ["| name | path | caller | test |", "|---|---|---|---|"]
        lines += [
            f"| `{name}` | `{entry['path']}` | {_caller(entry)} | `{entry['test']}` |"
            for name, entry in names.items()
            if "path" in entry
        ]
        waiting: dict[str, list[str]] = {}
        for name, entry in names.items():
            if "path" not in entry and "later" in entry:
                waiting.setdefault(entry["later"], []).append(f"`{name}`")
        lines += ["", "</div>", "", "| comes with | names |", "|---|---|"]
        lines += [f"| {area} | {', '.join(listed)} |" for area, listed in sorted(waiting.items())]
        lines.append("")
    lines += ["## What makes no sense here", "", "| name | reason |", "|---|---|"]
    lines += [
        f"| `{name}` | {entry['void']} |"
        for section in TITLES
        for name, entry in ledger[section].items()
        if "void" in entry
    ]
    lines.append("")
    return "\n".join(lines)


def _caller(entry: dict[str, str]) -> str:
    return f"`{entry['caller']}`" if "caller" in entry else f"comes with {entry['later']}"


if __name__ == "__main__":
    (HERE / "coverage.md").write_text(render(load()), "utf-8")
