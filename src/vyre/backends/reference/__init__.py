"""The reference backend: what a program means, as two engines that share one table of operators."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import RunResult, run
    from .memory import OobReport, Schedule
    from .races import Race

__all__ = ["OobReport", "Race", "RunResult", "Schedule", "run"]
_HOME = {"OobReport": "memory", "Race": "races", "RunResult": "backend", "Schedule": "memory", "run": "backend"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
