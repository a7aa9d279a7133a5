"""How a process ends while a device still works for it: drivers register functions with the C library that wait."""

from __future__ import annotations

import ctypes
import os


def skip_exit_handlers() -> None:
    """When the process ends, call nothing that was registered with the C library before now.

    Python still does all it does at its end, the C library writes its buffers, and the exit status stays
    as it is. Only glibc has a way; elsewhere nothing changes.
    """
    if os.name != "posix":
        return
    libc = ctypes.CDLL(None)
    if not (hasattr(libc, "on_exit") and hasattr(libc, "__cxa_atexit")):
        return
    # The last one registered is called first. Functions of the first kind are given the status and an argument, those
    # of the second an argument and the status: `fflush(NULL)`, then `_exit(status)`.
    libc.on_exit(libc._exit, None)
    libc.__cxa_atexit(libc.fflush, None, None)
