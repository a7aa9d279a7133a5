"""Write docs/error-codes.md from the code: python docs/render_error_codes.py"""

from __future__ import annotations

import importlib
from pathlib import Path

from vyre.errors import RESERVED, DiagCode, VyreError

HERE = Path(__file__).parent
MODULES = ("vyre.errors", "vyre.driver.verify.cases", "vyre.driver.pipeline.database", "vyre.driver.resident.reuse")
"""Where errors are defined."""
FAMILIES = {
    "V": "Validation of programs",
    "E": "Programs, wire format, lowering and dialects",
    "B": "Backend capability",
    "C": "Conformance",
    "P": "Runtime",
    "W": "Warnings",
    "N": "Notes",
}


def error_classes() -> list[type[VyreError]]:
    """Every error class, by number and then by name."""
    found = {
        value
        for module in MODULES
        for value in vars(importlib.import_module(module)).values()
        if isinstance(value, type) and issubclass(value, VyreError)
    }
    return sorted(found, key=lambda cls: (int(cls.code), cls.__name__))


def render() -> str:
    lines = [
        "# Errors and their codes",
        "",
        "Every error is a class with a stable number, a diagnostic code and a fix. Numbers and codes are only ever",
        "added: none is removed, renamed or used again, while the words may change. Each has its own address on this",
        "page: `error-codes.html#v010`, `error-codes.html#devicelost`. Made from the code by",
        "`docs/render_error_codes.py`.",
        "",
        "## Error classes",
        "",
        "| class | number | code | meaning |",
        "|---|---|---|---|",
    ]
    for cls in error_classes():
        python = next(base for base in cls.__mro__ if base.__module__ == "builtins")
        lines.append(
            f"| {_anchored(cls.__name__)} | {int(cls.code)} | `{cls.diagnostic_code}` | {_sentence(cls)}"
            f"{'' if python is Exception else f'. Also a `{python.__name__}`'}"
            f"{'. The same call may work later' if cls.retryable else ''} |"
        )
    for family, title in FAMILIES.items():
        lines += ["", f"## {title}", "", "| code | severity | meaning | fix |", "|---|---|---|---|"]
        lines += [f"| {_anchored(c)} | {c.severity} | {c.description} | {c.fix} |" for c in DiagCode if c[0] == family]
    lines += ["", "## Kept free", "", f"{', '.join(f'`{code}`' for code in RESERVED)} have no meaning here.", ""]
    return "\n".join(lines)


def _anchored(name: str) -> str:
    """The name in a table, as the target of `#name` in lower case."""
    return f'<a id="{name.lower()}"></a>`{name}`'


def _sentence(cls: type[VyreError]) -> str:
    """The first sentence of the class's documentation."""
    text = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".").replace("|", "\\|")


if __name__ == "__main__":
    (HERE / "error-codes.md").write_text(render(), "utf-8")
