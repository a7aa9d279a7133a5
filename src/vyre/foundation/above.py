"""What a program asks of the rooms above it: its text, its wire form, what is known of it.

The package root says where each function is; the first use imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

canonicalize: Callable[..., Any]
decode: Callable[..., Any]
determinism: Callable[..., Any]
encode: Callable[..., bytes]
fingerprint: Callable[..., str]
ops: Callable[..., frozenset[str]]
print_program: Callable[..., str]
requirements: Callable[..., Any]
stats: Callable[..., Any]
validate: Callable[..., list[Any]]

where: dict[str, str] = {}
"""Name -> the module that defines it."""


def __getattr__(name: str) -> Any:
    if name not in where:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(where[name]), name)
    return found
