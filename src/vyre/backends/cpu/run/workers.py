"""Threads that are woken once per dispatch, and that the process does not wait for at its end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from ....driver.settings.knobs import COUNT, Knob
from ....errors import DeviceOutOfMemory
from ..device import LoadedCode, ffi
from .host_pool import aligned
from .wakeups import ASLEEP, CODE, FREE, LEFT, LOOKS, MAIL_BYTES, SHARED, STATE, WORKER, Wakeups, wakeups

THREADS: Knob[int | None] = Knob(
    "cpu_threads",
    COUNT,
    default=None,
    without="one for each processor of the process",
    meaning="How many threads the cpu backend runs a dispatch on.",
    read="when the backend is opened",
)


def thread_count() -> int:
    """Threads that a dispatch may use: the setting, else one for each processor of this process."""
    return processors() if (given := THREADS.value()) is None else given


def processors() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Task:
    """Work in Python on a thread of the pool. `error` is what it raised."""

    __slots__ = ("_ended", "_work", "error")

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._ended = threading.Lock()
        self._ended.acquire()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._work()
        except BaseException as e:
            self.error = e
        finally:
            del self._work  # with the memory it holds on to
            self._ended.release()

    def wait(self, timeout: float = -1) -> bool:
        """Whether it ended within `timeout` seconds; -1 waits for ever. A signal interrupts the main thread's wait."""
        if not self._ended.acquire(timeout=min(timeout, threading.TIMEOUT_MAX)):
            return False
        self._ended.release()
        return True


class Workers:
    """Idle threads, and new ones where none is idle: a thread that hangs in machine code holds up no other work.

    Threads that are idle beyond `keep` end. `looks` is how often one looks for machine code before it sleeps: some,
    where each has a processor for itself.
    """

    def __init__(self, keep: int, looks: int = 0) -> None:
        self.keep, self.looks = keep, looks
        self._idle: list[Thread] = []
        self.closed = threading.Event()

    def start(self, work: Callable[[], None]) -> Task:
        task = Task(work)
        crew: list[Thread] = []
        self.take(crew)
        crew[0].give(task)
        return task

    def take(self, crew: list[Thread]) -> None:
        """Let one more thread be of the crew. No signal comes between its leaving the pool and that."""
        busy = []
        while True:
            try:
                crew.extend(islice(iter(self._idle.pop, None), 1))
            except IndexError:
                self._add()  # and it lies in the pool, unless another caller has taken it by now
                continue
            if crew[-1].is_free:
                break
            busy.append(crew.pop())  # it was left while its code ran
        self._idle[:0] = busy

    def rest(self, crew: list[Thread]) -> None:
        """Let all of a crew lie in the pool; those whose code still runs are not taken before it has ended."""
        for thread in crew:
            thread.leave()
        with suppress(IndexError):
            self._idle.extend(iter(crew.pop, None))
        self._end_some()

    def close(self) -> None:
        """Let the idle threads end, and the others when their work has ended."""
        self.closed.set()
        self._end_some()

    def _add(self) -> None:
        try:
            found = wakeups()
            _ = Thread(self) if found is None else NativeThread(self, found)
        except RuntimeError as e:
            raise DeviceOutOfMemory(
                "no thread could be started", fix="let other threads of the process end first"
            ) from e

    def _end_some(self) -> None:
        """End the threads that the pool has too many of."""
        busy = []
        while len(self._idle) > (0 if self.closed.is_set() else self.keep):
            try:
                thread = self._idle.pop(0)
            except IndexError:
                break
            thread.wanted = not self.closed.is_set()
            if thread.is_free:
                thread.give(None)
            elif thread.wanted:
                busy.append(thread)
        self._idle[:0] = busy


class Crew(list["Thread"]):
    """The threads of one launch, which go back to the pool whatever happens to the one that has them."""

    def __init__(self, pool: Workers) -> None:
        super().__init__()
        self._pool = pool

    def rest(self) -> None:
        self._pool.rest(self)

    def __del__(self) -> None:
        if self:
            self.rest()


class Thread:
    """A thread of a pool, which sleeps in Python. It is given a task, after which it goes back by itself, or is one of
    a crew, and runs machine code."""

    def __init__(self, pool: Workers) -> None:
        self.pool = pool
        self.wanted = True
        """Else it ends after its code."""
        self._task: Task | None = None
        self._last: Task | None = None
        """What it did for a crew."""
        self._there = threading.Lock()
        self._there.acquire()
        self._prepare()
        threading.Thread(target=self._loop, name="vyre-cpu", daemon=True).start()
        self._there.acquire()

    @property
    def is_free(self) -> bool:
        """Whether code that it ran for a crew has ended."""
        return self._last is None or self._last.wait(0)

    def give(self, task: Task | None) -> None:
        """Its next work; None ends it."""
        self._task, self._last = task, None
        self._tell()

    def run(self, code: LoadedCode, shared: Any, worker: Any, holds: object) -> None:
        """Run machine code; `holds` stays in memory until it has ended."""
        self._task = self._last = Task(partial(_run, code, shared, worker, holds))
        self._tell()

    def wait(self, timeout: float, looks: int = 0) -> bool:
        """Whether the code ended within `timeout` seconds, or perhaps some fewer; after looking so often, sleep."""
        return self._last is None or self._last.wait(timeout)

    def leave(self) -> None:
        """The caller waits for the code no longer."""

    def _prepare(self) -> None:
        self._wake = threading.Lock()
        self._wake.acquire()

    def _tell(self) -> None:
        self._wake.release()

    def _sleep(self) -> None:
        """Until there is a task, or none to end with."""
        self._wake.acquire()

    def _loop(self) -> None:
        self.pool._idle.append(self)
        self._there.release()
        while True:
            self._sleep()
            task, self._task = self._task, None
            if task is None:
                return
            of_crew = task is self._last
            task.run()
            del task
            if not of_crew:
                self.pool.rest([self])
            elif not self.wanted:
                return


def _run(code: LoadedCode, shared: Any, worker: Any, holds: object) -> None:
    code.run(shared, worker)


class NativeThread(Thread):
    """One that sleeps in machine code, and is told there what to run."""

    def __init__(self, pool: Workers, calls: Wakeups) -> None:
        self._calls = calls
        self._holds: object = None
        super().__init__(pool)

    @property
    def is_free(self) -> bool:
        return self._flags[STATE] in (FREE, ASLEEP)

    def run(self, code: LoadedCode, shared: Any, worker: Any, holds: object) -> None:
        words = self._words
        self._holds = code, holds
        words[CODE], words[SHARED], words[WORKER] = code.run, shared, worker
        self._calls.tell(self._mail)

    def wait(self, timeout: float, looks: int = 0) -> bool:
        return bool(self._calls.wait(self._mail, looks, int(min(timeout, _MOST_S) * 1e9)))

    def leave(self) -> None:
        if not self._calls.leave(self._mail):
            self._holds = None

    def _prepare(self) -> None:
        self._mail, self._memory = aligned(MAIL_BYTES)
        self._flags, self._words = ffi.cast("int32_t *", self._mail), ffi.cast("void **", self._mail)
        self._flags[LOOKS] = self.pool.looks

    def _tell(self) -> None:
        self._words[CODE] = ffi.NULL
        self._calls.tell(self._mail)

    def _sleep(self) -> None:
        while True:
            self._calls.serve(self._mail)
            left = self._flags[STATE] == LEFT
            if left:
                self._holds = None
            self._flags[STATE] = FREE
            if not (left and self.wanted):
                return


_MOST_S = 0.5
"""One sleep in machine code is no longer than this."""
