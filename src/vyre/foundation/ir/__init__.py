"""What a program is: values, types, operators, statements, programs, and ways to build and walk them.

The statements and expressions themselves are also names of this package: `ir.Store`.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".nodes", __name__), name)
