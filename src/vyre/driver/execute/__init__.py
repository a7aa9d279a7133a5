"""The one funnel that every dispatch passes."""

from importlib import import_module
from typing import Any

from .. import above

_WHERE = {
    "DriverPipeline": ".pipeline",
    "run_batch": ".pipeline",
    "run_one": ".pipeline",
    "counters": "..counters",
    "label_counters": "..counters",
}
__all__ = ["DriverPipeline", "counters", "explain", "label_counters", "run_batch", "run_one"]


def __getattr__(name: str) -> Any:
    if name == "explain":
        return above.named("explain")  # it guards a backend that is not guarded yet, and guards lie higher
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name], __name__), name)
