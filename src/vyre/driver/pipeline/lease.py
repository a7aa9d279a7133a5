"""Which process compiles a key? The one that has its lease; the others wait for the code."""

from __future__ import annotations

import os
import sys
import threading
from functools import lru_cache
from typing import NamedTuple

LEASE_S = 60.0
"""After so long a lease is void, and so is the lease of a process that has ended."""


class Owner(NamedTuple):
    """One thread of one process. `machine` names the place where `pid` means this process: a running system, and of
    that a container; `started` tells the process from another that gets its number later."""

    machine: str
    pid: int
    started: str
    thread: int

    @property
    def is_this_thread(self) -> bool:
        return self == this_thread()

    @property
    def has_ended(self) -> bool:
        """Whether its process is known to have ended. Of a process elsewhere nothing is known."""
        if self.machine != _machine(os.getpid()):
            return False
        if self.started:
            return _started(self.pid) != self.started
        if os.name != "posix":
            return False  # a signal to ask with would end it
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False


def this_thread() -> Owner:
    pid = os.getpid()
    return Owner(_machine(pid), pid, _own_start(pid), threading.get_ident())


@lru_cache(maxsize=1)
def _machine(pid: int) -> str:
    """`pid` because a fork may come with another place."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read(64).strip()}/{os.readlink('/proc/self/ns/pid')}"
    except (OSError, ValueError):
        import platform

        return f"{platform.node()}/{sys.platform}"


@lru_cache(maxsize=1)
def _own_start(pid: int) -> str:
    return _started(pid)


def _started(pid: int) -> str:
    """When a process began, in a unit of the system; empty where there is none, or where the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *fields = file.read(4096).rpartition(b")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in (b"Z", b"X") or len(fields) < 19 else fields[18].decode("ascii")
