"""Tracebacks of a caller's mistakes end at the caller's line.

The message says what is wrong with a kernel or an argument; the functions of this package that found it are of use
to its authors, who set `VYRE_DEBUG=1`. Errors of devices and drivers keep all of their frames.
"""

from __future__ import annotations

from types import TracebackType

from ..errors import ArgumentTypeError, ArgumentValueError, KernelError, VyreError

MISTAKES = (KernelError, ArgumentTypeError, ArgumentValueError)


def end_at_the_caller(error: BaseException) -> None:
    """Drop this package's frames from the traceback of an error that is about to leave it by a bare `raise`.

    Outside frames called by ours stay, such as the `__array__` of an argument; so do the causes of the error.
    """
    from ..driver.settings.knobs import DEBUG

    try:
        if DEBUG.value():
            return
    except VyreError:  # a setting that says neither yes nor no
        return
    kept: list[TracebackType] = []
    entry = error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_globals.get("__name__", "").partition(".")[0] != "vyre":
            kept.append(entry)
        entry = entry.tb_next
    short: TracebackType | None = None
    for entry in reversed(kept):
        short = TracebackType(short, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    error.__traceback__ = short
