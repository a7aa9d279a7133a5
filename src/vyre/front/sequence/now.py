"""Is this thread recording? Every kernel call asks, so the answer must cost nothing while no thread is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import ArgumentTypeError

if TYPE_CHECKING:
    from ..kernel import Kernel


class Recorder(Protocol):
    """What dispatches the kernel calls of a thread that records."""

    def call(self, kernel: Kernel, *call: Any) -> Any:
        """A kernel call: positional and named arguments, grid, domain, sizes, config."""


RECORDERS: list[Recorder] = []
"""Those of all threads."""
READ_LATER = "return the array, and read it after the call; decide on numbers that are passed"


class _Mine(threading.local):
    recorder: Recorder | None = None


_mine = _Mine()


def recorder() -> Recorder | None:
    """That of this thread."""
    return _mine.recorder


def is_recording() -> bool:
    """Whether this thread is."""
    return bool(RECORDERS) and _mine.recorder is not None


@contextmanager
def recording(made: Recorder) -> Iterator[None]:
    """Kernel calls of this thread go to this recorder."""
    if _mine.recorder is not None:
        raise ArgumentTypeError(
            "a sequence was called while another one is recorded",
            fix="call the function itself there: sequence.__wrapped__(...)",
        )
    RECORDERS.append(made)
    _mine.recorder = made
    try:
        yield
    finally:
        _mine.recorder = None
        RECORDERS.remove(made)


def refuse_to_read(what: str, fix: str = READ_LATER) -> None:
    """Raise if this thread is recording: what it would read now is not what a repetition has."""
    if is_recording():
        raise ArgumentTypeError(
            f"{what} while a sequence is recorded: a repetition would not do it again",
            fix=fix,
        )


def refuse_to_look(what: str) -> None:
    """Raise if this thread is recording: a look at the data of one call says nothing about a repetition."""
    if is_recording():
        raise ArgumentTypeError(
            f"{what} of a kernel call while a sequence is recorded: a repetition would not do it again",
            fix="call the function itself: sequence.__wrapped__(...)",
        )
