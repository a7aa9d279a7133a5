"""Threads that are woken once per dispatch, and that the process does not wait for at its end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from ....driver.settings.knobs import COUNT, Knob
from ....errors import DeviceOutOfMemory
from ..device import LoadedCode, ffi
from .host_pool import aligned
from .wakeups import CODE, FREE, LOOKS, MAIL_BYTES, SHARED, STATE, WORKER, Wakeups, wakeups

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


class Running(Protocol):
    """Machine code on a thread of the pool. Whoever waits for it leaves it in any case."""

    def wait(self, timeout: float, looks: int = 0) -> bool:
        """Whether it ended within `timeout` seconds, or perhaps some fewer; after looking so often it sleeps."""

    def leave(self) -> None:
        """Nobody waits for it any more."""


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

    def wait(self, timeout: float = -1, looks: int = 0) -> bool:
        """Whether it ended within `timeout` seconds; -1 waits for ever. A signal interrupts the main thread's wait."""
        if not self._ended.acquire(timeout=min(timeout, threading.TIMEOUT_MAX)):
            return False
        self._ended.release()
        return True

    def leave(self) -> None:
        pass


class Workers:
    """Idle threads, and new ones where none is idle: a thread that hangs in machine code holds up no other work.

    Threads that are idle beyond `keep` end. `looks` is how often one looks for machine code before it sleeps: some,
    where each has a processor for itself.
    """

    def __init__(self, keep: int, looks: int = 0) -> None:
        self.keep, self.looks = keep, looks
        self._idle: list[Thread] = []
        self._closed = threading.Event()

    def start(self, work: Callable[[], None]) -> Task:
        task = Task(work)
        self.take().give(task)
        return task

    def take(self) -> Thread:
        """A thread that waits for work, and goes back by itself after what it is given, or when it is left."""
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            found = wakeups()
            return Thread(self) if found is None else NativeThread(self, found)
        except RuntimeError as e:
            raise DeviceOutOfMemory(
                "no thread could be started", fix="let other threads of the process end first"
            ) from e

    def close(self) -> None:
        """Let the idle threads end, and the others when their work has ended."""
        self._closed.set()
        while self._idle:
            try:
                self._idle.pop().give(None)
            except IndexError:
                return

    def rest(self, thread: Thread) -> bool:
        """Whether the thread is wanted again."""
        if self._closed.is_set() or len(self._idle) >= self.keep:
            return False
        self._idle.append(thread)
        if self._closed.is_set():  # closed in between, perhaps without having seen this one
            self.close()
        return True


class Thread:
    """A thread of a pool, which sleeps in Python. Between two tasks it lies in the pool."""

    def __init__(self, pool: Workers) -> None:
        self._pool = pool
        self._task: Task | None = None
        self._prepare()
        threading.Thread(target=self._loop, name="vyre-cpu", daemon=True).start()

    def give(self, task: Task | None) -> None:
        """Its next work; None ends it."""
        self._task = task
        self._tell()

    def run(self, code: LoadedCode, shared: Any, worker: Any, holds: object, running: list[Running]) -> None:
        """Run machine code, which is then among those `running`; `holds` stays in memory until it has ended."""
        task = Task(partial(_run, code, shared, worker, holds))
        running.append(task)
        self.give(task)

    def _prepare(self) -> None:
        self._wake = threading.Lock()
        self._wake.acquire()

    def _tell(self) -> None:
        self._wake.release()

    def _sleep(self) -> None:
        """Until there is a task, or None to end with."""
        self._wake.acquire()

    def _loop(self) -> None:
        while True:
            self._sleep()
            task, self._task = self._task, None
            if task is None:
                return
            task.run()
            del task
            if not self._pool.rest(self):
                return


def _run(code: LoadedCode, shared: Any, worker: Any, holds: object) -> None:
    code.run(shared, worker)


class NativeThread(Thread):
    """One that sleeps in machine code, and is told there what to run. It is out of the pool until it is left."""

    def __init__(self, pool: Workers, calls: Wakeups) -> None:
        self._calls = calls
        self._holds: object = None
        super().__init__(pool)

    def _prepare(self) -> None:
        self._mail, self._memory = aligned(MAIL_BYTES)
        self._flags, self._words = ffi.cast("int32_t *", self._mail), ffi.cast("void **", self._mail)
        self._flags[LOOKS] = self._pool.looks

    def _tell(self) -> None:
        self._words[CODE] = ffi.NULL
        self._calls.tell(self._mail)

    def _sleep(self) -> None:
        while True:
            self._calls.serve(self._mail)
            if self._flags[STATE] != FREE:  # there is work in Python
                self._flags[STATE] = FREE
                return
            self._holds = None
            if not self._pool.rest(self):
                return

    def run(self, code: LoadedCode, shared: Any, worker: Any, holds: object, running: list[Running]) -> None:
        words = self._words
        self._holds = code, holds
        words[CODE], words[SHARED], words[WORKER] = code.run, shared, worker
        running.append(self)
        self._calls.tell(self._mail)

    def wait(self, timeout: float, looks: int = 0) -> bool:
        return bool(self._calls.wait(self._mail, looks, int(min(timeout, _MOST_S) * 1e9)))

    def leave(self) -> None:
        if self._calls.leave(self._mail):
            return  # it goes back to the pool by itself
        self._holds = None
        if not self._pool.rest(self):
            self.give(None)


_MOST_S = 0.5
"""One sleep in machine code is no longer than this."""
