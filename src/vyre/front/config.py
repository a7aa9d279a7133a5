"""`with vyre.config(...)`: settings for a block of code."""

from __future__ import annotations

from typing import Any

from ..driver.settings import knobs as settings
from ..driver.settings.knobs import Setting

__all__ = ["Setting", "config"]


class config:  # noqa: N801 - used as a verb
    """Settings that hold inside a `with` block, over environment variables and files; arguments of a call win.

    `with vyre.config(backend="cpu", shadow=0.01): ...` takes every knob by its name; None asks for the default. Blocks
    nest, and a block may be entered again. It holds for the code it encloses: an asyncio task started inside keeps what
    held there, a new thread begins without.
    """

    def __init__(self, **knobs: Any) -> None:
        self._values = settings.checked(knobs)

    def __repr__(self) -> str:
        return f"vyre.config({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"

    def __enter__(self) -> None:
        settings.enter(self._values)

    def __exit__(self, *_: object) -> None:
        settings.leave(self._values)

    @staticmethod
    def show() -> tuple[Setting, ...]:
        """Every knob with its value here and now, and who set it."""
        return tuple(knob.setting() for knob in settings.all_knobs().values())
