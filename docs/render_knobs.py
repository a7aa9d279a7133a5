"""Write docs/reference/knobs.md from the code: python docs/render_knobs.py"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vyre.driver.settings.knobs import Knob, all_knobs

PAGE = Path(__file__).parent / "reference" / "knobs.md"
IN_A_FILE = {
    "names of backends": '"cpu"',
    "yes or no": "true",
    "seconds": "{default}",
    "whole number": "{default}",
    "folder": '"~/vyre-cache"',
    "on, off or readonly": '"{default}"',
    "share of dispatches": '"0.01,log"',
}
"""Kind of a knob -> a value as a file says it."""


def render() -> str:
    knobs = all_knobs().values()
    lines = [
        "# Settings",
        "",
        "What may be set from outside a call; [Configure vyre](../how-to/configure.md) says where, and which place",
        "wins. Names are the same in `vyre.config(...)` and in files. A knob that begins with the id of a backend is",
        "that backend's own. Made from the code by `docs/render_knobs.py`.",
        "",
        "| name | variable | takes | default |",
        "|---|---|---|---|",
    ]
    lines += [f"| [`{k.name}`](#{k.name}) | `{k.variable}` | {k.kind.word} | {k.without} |" for k in knobs]
    for knob in knobs:
        lines += ["", *_section(knob)]
    return "\n".join([*lines, ""])


def _section(knob: Knob[Any]) -> list[str]:
    value = IN_A_FILE[knob.kind.word].format(default=8 if knob.default is None else knob.default)
    return [
        f"## {knob.name}",
        "",
        knob.meaning,
        "",
        f"- variable: `{knob.variable}`",
        f"- takes: {knob.kind.word}; in a file, `{knob.name} = {value}`",
        f"- default: {knob.without}",
        f"- read {knob.read}",
    ]


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(render(), "utf-8")
