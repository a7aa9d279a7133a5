"""Threads that are woken once per dispatch, and that the process does not wait for at its end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from ....driver.settings.knobs import COUNT, Knob
from ....errors import DeviceOutOfMemory

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
    if (given := THREADS.value()) is not None:
        return given
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Task:
    """Work on a thread of the pool. `result` raises what the work raised."""

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

    def result(self) -> None:
        if self.error is not None:
            raise self.error


class Workers:
    """Idle threads, and new ones where none is idle: a thread that hangs in machine code holds up no other work.

    Threads that are idle beyond `keep` end.
    """

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._idle: list[_Thread] = []
        self._closed = threading.Event()

    def start(self, work: Callable[[], None]) -> Task:
        task = Task(work)
        try:
            thread = self._idle.pop()
        except IndexError:
            try:
                _Thread(self, task)
            except RuntimeError as e:
                raise DeviceOutOfMemory(
                    "no thread could be started", fix="let other threads of the process end first"
                ) from e
        else:
            thread.give(task)
        return task

    def close(self) -> None:
        """Let the idle threads end, and the others when their work has ended."""
        self._closed.set()
        while self._idle:
            try:
                self._idle.pop().give(None)
            except IndexError:
                return

    def _rest(self, thread: _Thread) -> bool:
        """Whether the thread is wanted again."""
        if self._closed.is_set() or len(self._idle) >= self.keep:
            return False
        self._idle.append(thread)
        if self._closed.is_set():  # closed in between, perhaps without having seen this one
            self.close()
        return True


class _Thread:
    __slots__ = ("_pool", "_task", "_wake")

    def __init__(self, pool: Workers, task: Task) -> None:
        self._pool = pool
        self._task: Task | None = task
        self._wake = threading.Lock()
        self._wake.acquire()
        threading.Thread(target=self._loop, name="vyre-cpu", daemon=True).start()

    def give(self, task: Task | None) -> None:
        """Its next work; None ends it."""
        self._task = task
        self._wake.release()

    def _loop(self) -> None:
        while (task := self._task) is not None:
            self._task = None
            task.run()
            del task
            if not self._pool._rest(self):
                return
            self._wake.acquire()
