"""Names that a package offers, resolved on first use (PEP 562).

Where a package imports its own modules, two threads that import different ones of them for the first time may fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def where(offers: Mapping[str, str]) -> dict[str, str]:
    """Name -> module, from module -> names.

    >>> where({".key": "hex_encode hex_short"})
    {'hex_encode': '.key', 'hex_short': '.key'}
    """
    return {name: module for module, names in offers.items() for name in names.split()}


def lazily(package: str, offers: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for the package: `offers` has the names of each module, as the package would import it."""
    modules = where(offers)

    def resolve(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name], package), name)

    return resolve


def later(package: str, place: str) -> Callable[..., Any]:
    """A function that calls another one, imported by then: `place` is `module:name`, as the package would import it.

    >>> later("vyre", ".foundation.lazy:where")({".key": "hex_short"})
    {'hex_short': '.key'}
    """
    module, _, name = place.partition(":")

    def call(*args: Any, **options: Any) -> Any:
        return getattr(import_module(module, package), name)(*args, **options)

    return call
