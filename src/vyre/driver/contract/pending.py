"""A dispatch that was started: wait for it, and take its outputs once."""

from __future__ import annotations

import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NoReturn, final

from ...errors import DeadlineExceeded, DispatchFailed
from .values import OutputBuffers, refuse_pickling, seconds

if TYPE_CHECKING:
    from concurrent.futures import Future


class PendingDispatch(ABC):
    """A dispatch that was started. Its result is handed out once."""

    def __init__(self) -> None:
        self.__renew_locks()
        self.__held: tuple[OutputBuffers] | None = None  # the outputs, until they are taken
        self.__taken = False

    def __reduce__(self) -> NoReturn:
        refuse_pickling("a dispatch that was started", "send what its result() gives")

    def __renew_locks(self) -> None:
        self.__process = os.getpid()
        self.__waiting = threading.Lock()  # one thread at a time is inside `_wait`
        self.__taking = threading.Lock()

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether `result` would return without waiting."""

    @abstractmethod
    def _wait(self, timeout: float | None) -> OutputBuffers:
        """The outputs; raises TimeoutError when `timeout` seconds have passed."""

    @final
    def result(self, timeout: float | None = None) -> OutputBuffers:
        """Wait and take the outputs. After a DeadlineExceeded of the wait the result can still be asked for."""
        self._settle(None if timeout is None else _wait_s(timeout))
        return self.__take()

    await_result = result

    def __await__(self) -> Generator[Any, None, OutputBuffers]:
        """As `result`. An await that is cancelled takes nothing."""
        return self.__awaited().__await__()

    async def __awaited(self) -> OutputBuffers:
        import asyncio  # 50 ms, only paid by an await

        await asyncio.get_running_loop().run_in_executor(None, self._settle, None)
        return self.__take()

    @final
    def _settle(self, timeout: float | None) -> None:
        """Wait until the outputs are here, and leave them. A thread that waits for another's wait keeps its time."""
        start = time.monotonic()
        if self.__process != os.getpid():
            self.__renew_locks()  # the threads that held them are not in this process
        if not self.__waiting.acquire(timeout=-1 if timeout is None else timeout):
            raise _not_ended(timeout)
        try:
            if self.__held is None and not self.__taken:
                left = None if timeout is None else max(timeout - (time.monotonic() - start), 0)
                self.__held = (self.__outcome(timeout, left),)
        finally:
            self.__waiting.release()

    def __outcome(self, timeout: float | None, left: float | None) -> OutputBuffers:
        try:
            return self._wait(left)
        except DeadlineExceeded:
            raise  # the dispatch itself ran out of time
        except TimeoutError as e:
            if not self.is_ready():
                raise _not_ended(timeout) from e
        try:
            return self._wait(0)  # it ended just now, or the error is its own
        except DeadlineExceeded:
            raise
        except TimeoutError as e:
            raise DispatchFailed(
                f"the dispatch raised TimeoutError: {e}", fix="raise DeadlineExceeded for a deadline in the backend"
            ) from e

    def __take(self) -> OutputBuffers:
        held = None
        try:
            with self.__taking:
                held = self.__held
                if held is None:
                    raise DispatchFailed(
                        "the result was already taken", fix="keep the list that the first call returned"
                    )
                self.__taken, self.__held = True, None  # in this order: a thread that waits sees one of them
        except BaseException:
            if held is not None:  # a signal came on the way out, and the caller has no result
                self.__held, self.__taken = held, False
            raise
        return held[0]


def _wait_s(timeout: float) -> float:
    """How long a caller is willing to wait, as the locks of Python take it."""
    return min(max(seconds(timeout, -math.inf) or 0.0, 0.0), threading.TIMEOUT_MAX)


def _not_ended(timeout: float | None) -> DeadlineExceeded:
    return DeadlineExceeded(
        "the dispatch has not ended yet", fix="wait longer, or dispatch with a timeout", waited_s=timeout
    )


class ReadyPending(PendingDispatch):
    """A dispatch that ended before its handle was made."""

    def __init__(self, outputs: OutputBuffers) -> None:
        super().__init__()
        self._outputs = outputs

    def is_ready(self) -> bool:
        return True

    def _wait(self, timeout: float | None) -> OutputBuffers:
        return self._outputs


class FuturePending(PendingDispatch):
    """A dispatch that runs on an executor."""

    def __init__(self, future: Future[OutputBuffers]) -> None:
        super().__init__()
        self._future = future

    def is_ready(self) -> bool:
        return self._future.done()

    def _wait(self, timeout: float | None) -> OutputBuffers:
        return self._future.result(timeout)
