"""What may be set from outside, and by whom. A backend describes its own settings with these."""

from .knobs import COUNT, FOLDER, NAMES, SECONDS, SHARE, YES_OR_NO, Kind, Knob

__all__ = ["COUNT", "FOLDER", "NAMES", "SECONDS", "SHARE", "YES_OR_NO", "Kind", "Knob"]
