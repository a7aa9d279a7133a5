"""What may be set from outside, and where. A backend describes its own settings with these."""

from ...foundation.lazy import lazily, where

_OFFERS = {
    ".knobs": "COUNT FOLDER Kind Knob NAMES SECONDS SHARE YES_OR_NO",
}
__all__ = sorted(where(_OFFERS))
__getattr__ = lazily(__name__, _OFFERS)
