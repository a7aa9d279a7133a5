"""The one funnel that every dispatch passes."""

from typing import Any

from ...foundation.lazy import lazily, where
from .. import above

_OFFERS = {
    "..counters": "counters label_counters",
    ".pipeline": "DriverPipeline run_batch run_one",
}
_HIGHER = ("explain",)
"""They belong here too, and guard a backend that is not guarded yet: guards lie higher."""
__all__ = sorted((*where(_OFFERS), *_HIGHER))
_own = lazily(__name__, _OFFERS)


def __getattr__(name: str) -> Any:
    return above.named(name) if name in _HIGHER else _own(name)
