"""What must a forked process forget? Locks that threads of the parent hold, and devices that only the parent can use.

The one list of such hooks: modules append to it as they are imported, and a child runs it in that order, so that a
module finds those it imports already in order.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

Hook = TypeVar("Hook", bound=Callable[[], object])

hooks: list[Callable[[], object]] = []
before: list[Callable[[], object]] = []
in_parent: list[Callable[[], object]] = []
"""What the forking process does just before it forks, and once it has."""
_one_at_a_time = threading.RLock()
"""Held from the first hook before a fork to the last one after it: another thread may fork at the same time."""


def in_child(hook: Hook) -> Hook:
    """Call it in every process that is forked from this one, first of all; a decorator."""
    hooks.append(hook)
    return hook


def _run(hooks: list[Callable[[], object]]) -> None:
    with ExitStack() as stack:  # one that fails must not keep others from running; Python prints what it raised
        for hook in reversed(hooks):
            stack.callback(hook)


def _before() -> None:
    _one_at_a_time.acquire()
    _run(before)


def _after(hooks: list[Callable[[], object]]) -> None:
    try:
        _run(hooks)
    finally:
        _one_at_a_time.release()  # by the thread that forked, in the child too


def _after_in_child() -> None:
    """Garbage waits: what ends an object may ask for a lock that a hook has yet to renew."""
    collects = gc.isenabled()
    gc.disable()
    try:
        _after(hooks)
    finally:
        if collects:
            gc.enable()


if hasattr(os, "register_at_fork"):  # where there is no such function there is no fork
    os.register_at_fork(before=_before, after_in_parent=lambda: _after(in_parent), after_in_child=_after_in_child)
