"""What a program is and means. Backends of other packages walk and evaluate programs with these modules."""

from importlib import import_module
from typing import Any

from . import above

above.where |= {
    name: f"{__name__}.{module}"
    for module, names in {
        "check.determinism": "determinism",
        "check.requirements": "ops requirements stats",
        "check.validate": "validate",
        "formats.canon": "canonicalize fingerprint",
        "formats.text": "print_program",
        "formats.wire": "decode encode",
    }.items()
    for name in names.split()
}
_MODULES = {
    "arith": ".meaning.arith",
    "mathlib": ".meaning.mathlib",
    "own_arrays": ".meaning.own_arrays",
    "typing": ".check.typing",
    "visit": ".ir.visit",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(_MODULES[name], __name__)
