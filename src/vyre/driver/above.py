"""Functions that lower floors call in higher ones. The package root passes them down: no floor imports one above it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

shadow_of: Callable[[Any, Any], Any]
"""(backend, program) -> the shadow that the setting asks for, to check the program's outputs, or None."""
decide_shadow: Callable[[Any], Any]
"""(backend) -> the decision behind that."""
backend_knobs: Callable[[str | None], Iterable[Any]]
"""The settings of backends: of all, or of those whose id a name begins with."""
generation: Callable[[], int]
"""Changes whenever other backends may be there."""
named: Callable[[str], Any]
"""A public name of the driver, wherever it lives."""
