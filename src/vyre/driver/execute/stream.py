"""A stream of inputs: results in order, while a few of the next inputs are on their way already."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from ...errors import ArgumentTypeError, ArgumentValueError, VyreError, shown
from ..contract.values import whole
from ..counters import count_decision
from ..policy.overlap import IN_TURN, Access, Span, choose_overlap, conflict_among

if TYPE_CHECKING:
    from ..contract.backend import VyreBackend
    from ..contract.pending import PendingDispatch
    from ..policy.decision import Decision

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
IN_FLIGHT = 2
"""One input is computed while the next one is uploaded."""
_MOST_IN_FLIGHT = 1 << 16
_EVERY_S = 0.1
"""Progress on a terminal is written that often."""
_HOST = 1
"""DLPack's number for the processor."""


class Hinders(NamedTuple):
    """Why nothing is started while another input runs: it cannot be, or it saves nothing."""

    never: str | None = None
    no_gain: str | None = None


class Job(Protocol[T_co]):
    """One input, with all that a dispatch of it needs."""

    def nbytes(self) -> int:
        """Bytes of its input."""

    def access(self) -> Access:
        """The host memory that it reads and writes."""

    def hinders(self) -> Hinders:
        """What keeps it from being started while another one runs."""

    def wait(self) -> None:
        """It runs after others that were on their way when it was made: what they write is not yet what it has read."""

    def run(self) -> T_co: ...
    def start(self) -> PendingDispatch:
        """Its `result()` is what `run` would return."""


class _Started(NamedTuple):
    number: int
    access: Access
    pending: Any


class Stream(Iterator[T]):
    """The results of a stream of inputs, in order.

    Inputs are taken as results are: no more than a few are on their way. An error says which input it was, as
    `batch_index`, and no later one is started. After Ctrl-C, what was on its way can still be taken, and nothing more
    is started. `decision` says how the last input went to the device, and why.
    """

    def __init__(
        self, jobs: Iterable[Job[T]], *, total: int | None = None, in_flight: int | None = None, progress: Any = None
    ) -> None:
        asked = whole("in_flight", in_flight, _MOST_IN_FLIGHT, least=1)
        self._jobs, self._asked, self._tell = iter(jobs), asked is not None, _teller(progress)
        self._in_flight = asked or IN_FLIGHT
        self.total, self.done = total, 0
        self.decision: Decision | None = None
        self._queue: deque[_Started] = deque()
        self._held: Job[T] | None = None  # which runs once nothing else does
        self._error: Exception | None = None  # of the input after those that are on their way
        self._taken = 0
        self._came: tuple[T] | None = None
        self._is_asked = False

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        if self._is_asked:
            raise ArgumentValueError(
                "a stream was asked for a result while it looks for the one before, in another thread or by its inputs",
                fix="let one thread take the results, and hand them to the others",
            )
        self._is_asked = True  # as at the end, Python turns to no other thread and no signal before the next line
        try:
            self._look()
        finally:
            self._is_asked = False
        came, self._came = self._came, None
        assert came is not None
        return came[0]

    def _look(self) -> None:
        """Have the next result."""
        try:
            if self._came is None:
                self._fill()
                self._come()
                self.done += 1
            self._tell(self.done, self.total)
        except StopIteration:
            self._end()
            if isinstance(self._tell, _Line):
                self._tell.end()
            raise
        except Exception:
            self.close()
            raise
        except BaseException:
            self._end()  # and what has come or is on its way stays
            raise

    def close(self) -> None:
        """Take no more inputs, and wait for those on their way. What they give is dropped."""
        self._end()
        self._came = None
        while self._queue:
            with suppress(Exception):
                self._queue[0].pending.result()
            self._queue.popleft()

    def _end(self) -> None:
        self._jobs, self._held, self._error = iter(()), None, None

    def _fill(self) -> None:
        """Start as many as may be on their way."""
        while self._held is None and self._error is None and len(self._queue) < self._in_flight:
            try:
                job = next(self._jobs)
                never, no_gain = job.hinders()
                access = Access() if never is not None else job.access()
                clash = conflict_among((started.access for started in self._queue), access)
                decided = choose_overlap(job.nbytes(), asked=self._asked, never=never, no_gain=no_gain, clash=clash)
                count_decision(decided)
                self.decision = decided
                if decided.choice == IN_TURN:
                    if self._queue:
                        job.wait()
                    self._held = job
                else:
                    self._queue.append(_Started(self._taken, access, job.start()))
            except StopIteration:
                return
            except Exception as e:
                self._error = e
            self._taken += 1

    def _come(self) -> None:
        """Wait for the next result. Python handles signals around calls, of which there is none after it has come."""
        number = self._taken - 1
        try:
            if self._queue:
                number = self._queue[0].number
                self._came = (self._queue[0].pending.result(),)
                del self._queue[0]
            elif self._held is not None:
                self._came = (self._held.run(),)
                self._held = None
            elif self._error is not None:
                raise self._error
            else:
                raise StopIteration
        except VyreError as e:
            e.context.setdefault("batch_index", number)
            raise


def hinders_of(backend: VyreBackend) -> Hinders:
    """What keeps inputs from being uploaded while another one is computed, on this backend."""
    if not backend.supports_async_compute:
        return Hinders(never=f"backend {backend.id} starts nothing that goes on by itself")
    exchange = backend.exchange()
    if exchange is not None and exchange.device[0] == _HOST:
        return Hinders(no_gain="the device reads inputs where they lie")
    if backend.capability.extras.get("emulated"):
        return Hinders(no_gain="the processor is the device, and would do both")
    return Hinders()


def host_span(buffer: Any) -> Span:
    """Where a buffer of the host lies."""
    import numpy as np  # which the caller of such buffers has loaded

    try:
        array = np.frombuffer(buffer, np.uint8)
    except (ValueError, TypeError, BufferError):
        return Span(0, 0, 0)  # it is empty, or no buffer
    start = array.__array_interface__["data"][0]
    return Span(0, start, start + array.nbytes)


def _teller(progress: Any) -> Callable[[int, int | None], object]:
    if progress is None or progress is False:
        return lambda done, total: None
    if progress is True:
        return _Line()
    if not callable(progress):
        raise ArgumentTypeError(
            f"progress={shown(progress)} is no function", fix="pass progress=True, or a function of (done, total)"
        )
    found: Callable[[int, int | None], object] = progress
    return found


class _Line:
    """Progress in one line of a terminal; nothing where there is none."""

    def __init__(self) -> None:
        self._shown, self._next, self._text = sys.stderr.isatty(), 0.0, ""

    def __call__(self, done: int, total: int | None) -> None:
        if not self._shown:
            return
        self._text, now = str(done) if total is None else f"{done} of {total}", time.monotonic()
        if now >= self._next:
            self._next = now + _EVERY_S
            self._write(self._text)

    def end(self) -> None:
        if self._text:
            self._write(f"{self._text}\n")
            self._text = ""

    def _write(self, text: str) -> None:
        sys.stderr.write(f"\r{text}")
        sys.stderr.flush()


def length_of(given: Sequence[object]) -> int | None:
    """How many there are of the shortest, if all of them say so."""
    try:
        return min(map(len, given), default=None)  # type: ignore[arg-type]
    except TypeError:
        return None
