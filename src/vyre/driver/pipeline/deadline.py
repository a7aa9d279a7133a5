"""A backend that can keeps its deadlines. For any other the driver does: it abandons a call that takes too long.

With a timeout, outputs go to memory of their own and are copied to the caller's when the dispatch has succeeded, so
that nothing of the caller's is written after an error. An abandoned call reads copies of the inputs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from ...errors import DeadlineExceeded
from ..contract.pending import PendingDispatch
from ..contract.pipeline import Bound, CompiledPipeline, DispatchPlan
from ..contract.values import DispatchConfig, OutputBuffers, ResidentHandle, Resource

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..device_state import DeviceState
    from .cache import Entry

T = TypeVar("T")
_Work: TypeAlias = "Callable[[Sequence[Buffer], Sequence[Buffer] | None], T]"


def expired(**context: object) -> DeadlineExceeded:
    return DeadlineExceeded(
        "the program did not end in time", fix="allow more time, or do less in one dispatch", **context
    )


class Call(Generic[T]):
    """A call on a thread of its own, which its caller may leave behind."""

    def __init__(self, work: Callable[[], T], until: float, left_behind: Callable[[], Callable[[], None]]) -> None:
        """`left_behind` is called when the caller stops waiting; the function it returns, when the call ends."""
        self._until, self._left_behind = until, left_behind
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._at_end: Callable[[], None] | None = None
        self._outcome: tuple[T] | BaseException | None = None
        context = copy_context()  # settings of the caller's thread hold here too

        def run() -> None:
            try:
                if time.monotonic() >= until:
                    raise expired()
                self._outcome = (context.run(work),)
            except BaseException as e:
                self._outcome = e  # raised in the thread that waits
            with self._lock:
                self._ended.set()
            if self._at_end is not None:
                self._at_end()

        threading.Thread(target=run, name="vyre-call", daemon=True).start()  # if it hangs, it must not hold up the exit

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or its time has."""
        return self._ended.is_set() or time.monotonic() >= self._until

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it is over within `timeout` seconds."""
        left = self._until - time.monotonic()
        self._ended.wait(min(max(left if timeout is None else min(timeout, left), 0), threading.TIMEOUT_MAX))
        return self.is_over

    def leave(self) -> None:
        with self._lock:
            if not self._ended.is_set() and self._at_end is None:
                self._at_end = self._left_behind()

    def outcome(self) -> T:
        """Its result or error; DeadlineExceeded when it has not ended."""
        if not self._ended.is_set():
            self.leave()
            raise expired()
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome[0]


def call_within(work: Callable[[], T], seconds: float, left_behind: Callable[[], Callable[[], None]]) -> T:
    """The result of `work`, which is left behind after so many seconds, or when the wait is interrupted."""
    call = Call(work, time.monotonic() + seconds, left_behind)
    try:
        call.wait()
    except BaseException:
        call.leave()
        raise
    return call.outcome()


class DeadlinePipeline:
    """The dispatches of a compiled pipeline that have a deadline. Outputs are never those of the caller."""

    def __init__(
        self, native: CompiledPipeline, entry: Entry, state: DeviceState, sizes: Sequence[int], *, keeps_it: bool
    ) -> None:
        """`sizes` are the bytes of each output. `keeps_it`: the backend ends a dispatch in time by itself."""
        self._entry = entry  # a call that is left behind still runs its code, which is closed with the entry
        self.native, self._device_state, self._sizes, self._keeps_it = native, state, sizes, keeps_it

    def bind(self, plan: DispatchPlan, config: DispatchConfig) -> Bound:
        seconds, native = _seconds(config), self.native.bind(plan, config)

        def start(inputs: Sequence[Buffer], out: Sequence[Buffer] | None) -> PendingDispatch:
            own = self._own(out)
            if self._keeps_it:
                return native.start(inputs, own)
            work = partial(self._apart, native.run, _copies(inputs), own)
            return CallPending(Call(work, time.monotonic() + seconds, self._left_behind()))

        return Bound(self._within(native.run, seconds), self._within(native.timed, seconds), start)

    def dispatch_resident(
        self, resources: Sequence[Resource], config: DispatchConfig | None = None
    ) -> list[ResidentHandle]:
        assert config is not None
        seconds, work = _seconds(config), partial(self.native.dispatch_resident, resources, config)
        return work() if self._keeps_it else call_within(work, seconds, self._left_behind())

    def _within(self, work: _Work[T], seconds: float) -> _Work[T]:
        def run(inputs: Sequence[Buffer], out: Sequence[Buffer] | None) -> T:
            own = self._own(out)
            if self._keeps_it:
                return work(inputs, own)
            return call_within(partial(self._apart, work, _copies(inputs), own), seconds, self._left_behind())

        return run

    def _apart(self, work: _Work[T], inputs: Sequence[Buffer], out: Sequence[Buffer] | None) -> T:
        """On a thread of its own, which holds this and so the code."""
        return work(inputs, out)

    def _own(self, out: Sequence[Buffer] | None) -> list[Buffer] | None:
        """Memory in place of the caller's: its lengths may be all that says how long an output is."""
        return None if out is None else [bytearray(n) for n in self._sizes]

    def _left_behind(self) -> Callable[[], Callable[[], None]]:
        """The function to call when a call that starts now is left behind."""
        state, incarnation = self._device_state, self._device_state.incarnation

        def left() -> Callable[[], None]:
            state.abandon(incarnation)
            return lambda: state.abandoned_ended(incarnation)

        return left


class CallPending(PendingDispatch):
    """A dispatch that the driver keeps to its deadline."""

    def __init__(self, call: Call[OutputBuffers]) -> None:
        super().__init__()
        self._call = call

    def is_ready(self) -> bool:
        return self._call.is_over

    def _wait(self, timeout: float | None) -> OutputBuffers:
        if not self._call.wait(timeout):
            raise TimeoutError
        return self._call.outcome()


def _seconds(config: DispatchConfig) -> float:
    """How long a dispatch may take. One without any time is not started."""
    assert config.timeout is not None
    if config.timeout <= _NO_TIME_S:
        raise expired(timeout=config.timeout)
    return config.timeout


_NO_TIME_S = 1e-6
"""Less than any launch takes."""


def _copies(inputs: Sequence[Buffer]) -> list[Buffer]:
    return [b if type(b) is bytes else bytes(memoryview(b)) for b in inputs]
