"""Compile many programs at once, before anything needs them."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import ArgumentValueError
from .compile import PipelinePrewarmReport, prewarm

if TYPE_CHECKING:
    from ...foundation.ir.program import Program
    from ..contract.backend import VyreBackend
    from ..contract.values import DispatchConfig

MOST_THREADS = 8
"""Unless a caller asks for more: a compiler takes memory, and several share what they lock."""


@dataclass(frozen=True, slots=True)
class Warmed:
    """What became of one program: a report, or the error of compiling it."""

    program: Program
    report: PipelinePrewarmReport | None
    error: Exception | None
    took_s: float


def prewarm_all(
    wanted: Sequence[tuple[VyreBackend, Program]],
    config: DispatchConfig | None = None,
    *,
    threads: int | None = None,
    done: Callable[[Warmed], object] | None = None,
) -> list[Warmed]:
    """Compile each program on its backend, several at once; in the order in which they were given.

    The calling thread calls `done` as each of them ends. When it is interrupted, or `done` raises, no further program
    is begun; those at which a compiler works are still kept.
    """
    most = min(MOST_THREADS, os.cpu_count() or 1) if threads is None else threads
    if most < 1:
        raise ArgumentValueError(f"threads={most} compile nothing", fix="pass 1 or more, or leave it out")
    left = iter(range(len(wanted)))
    ended: queue.SimpleQueue[tuple[int, Warmed | BaseException]] = queue.SimpleQueue()
    lock, stopped = threading.Lock(), threading.Event()

    def work() -> None:
        while not stopped.is_set():
            with lock:
                k = next(left, None)
            if k is None:
                return
            try:
                ended.put((k, _warmed(*wanted[k], config)))
            except BaseException as e:
                ended.put((k, e))
                return

    found: dict[int, Warmed] = {}
    try:
        for n in range(min(most, len(wanted))):  # no daemons: a compiler must not be unloaded while it works
            context = copy_context()
            threading.Thread(target=context.run, args=(work,), name=f"vyre-prewarm-{n}").start()
        while len(found) < len(wanted):
            k, one = ended.get()
            if isinstance(one, BaseException):
                raise one
            found[k] = one
            if done is not None:
                done(one)
    finally:
        stopped.set()
    return [found[k] for k in range(len(wanted))]


def _warmed(backend: VyreBackend, program: Program, config: DispatchConfig | None) -> Warmed:
    begun = time.monotonic()
    report, error = None, None
    try:
        report = prewarm(backend, program, config)
    except Exception as e:
        error = e
    return Warmed(program, report, error, time.monotonic() - begun)
