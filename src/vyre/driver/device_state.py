"""Is the device still there? The state of one backend instance: loss, recovery, shutdown, fork.

A warm dispatch asks nothing here. Whatever ends the use of a device changes the epoch of its pipelines, which every
dispatch compares anyway, and a dispatch enters and leaves a list, so that recovery can see which calls are running.
"""

from __future__ import annotations

import threading
import time
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..errors import ArgumentTypeError, DeviceLost, VyreError
from ..foundation.forking import in_child
from . import counters
from .contract.backend import VyreBackend
from .contract.values import ResidentHandle

if TYPE_CHECKING:
    from .contract.pending import PendingDispatch

T = TypeVar("T")
LOSSES = 3
LOSSES_WITHIN_S = 10.0
"""A device that is lost so often in so short a time is not recovered again."""
DRAIN_S = 0.5
"""How long recovery and shutdown wait for calls that are running; no caller can make them wait longer."""
_POLL_S = 0.002
_SPARE_PENDING = 16


class Phase(Enum):
    """The state of a device, with the message and the fix that its caller gets."""

    OPEN = (
        "the backend was shut down or recovered after this pipeline was compiled",
        "compile the program again, after acquiring the backend again if it was shut down",
    )
    BUSY = (
        "an abandoned call still runs on the device",
        "wait until it ends and try again, or acquire the backend anew",
    )
    LOST = ("the device is lost", "call try_recover() on the backend, then compile, allocate and upload again")
    RECOVERING = ("the device is being recovered", "wait until try_recover() returns, then compile and allocate again")
    GIVEN_UP = (
        f"the device was lost {LOSSES} times within {LOSSES_WITHIN_S:.0f} s and is not recovered again",
        "use another backend, or see to the device and its driver and start a new process",
    )
    SHUT = ("the backend was shut down", "acquire it again, and compile again")
    FORKED = (
        "the backend was opened by the process that this one was forked from, and neither its threads nor its device"
        " are here",
        "use the spawn start method, or acquire the backend in this process",
    )


class Pipelines(Protocol):
    """The cache of pipelines, as far as the state of its device ends them."""

    epoch: int

    def clear(self) -> None: ...
    def expire(self) -> None: ...
    def suspend(self) -> Callable[[], None]: ...
    def forked(self) -> None: ...


class WatchedBackend(VyreBackend):
    """A backend behind the driver's guard, as the floors below know it: with the state of its device and what was
    compiled for it. A program that it admits is split where it must be."""

    inner: VyreBackend
    device_state: DeviceState
    pipelines: Pipelines
    why_device: str = "the backend was opened on it"
    """Which choice of a device was made when it was opened."""

    @abstractmethod
    def require_usable(self) -> None:
        """Raise DeviceLost unless the device is there. One that was lost to a deadline is recovered."""

    @abstractmethod
    def on_device(self, call: Callable[[], T]) -> T:
        """The result of `call`, if the device is there."""

    @abstractmethod
    def failure(self, error: Exception, epoch: int, **context: Any) -> VyreError:
        """The error that the caller gets for the backend's. On a device that is gone, every failure is its loss."""


class DeviceState:
    """The state of one backend instance. Every recovery begins a new `incarnation` of the device."""

    def __init__(self, backend: str, pipelines: Pipelines) -> None:
        self.backend, self.pipelines = backend, pipelines
        self.phase = Phase.OPEN
        self.incarnation = 1
        self.inflight: list[None] = []
        """One item per running call. Appending and popping are atomic, which counting would not be."""
        self.recovery = threading.Lock()
        self.out_of_time = False
        """Whether the device counts as lost only because a dispatch passed its deadline."""
        self._lock = threading.RLock()  # the collector may close things, which may end up here, anywhere
        self._pending: set[PendingDispatch] = set()
        self._look_again = _SPARE_PENDING
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self._abandoned = 0
        self._resume: Callable[[], None] | None = None
        _states.add(self)

    # -- refusals

    def require_open(self) -> None:
        if self.phase is not Phase.OPEN:
            raise self.refusal()

    def refusal(self, **context: Any) -> DeviceLost:
        """The error of a caller that now uses the device, or a pipeline from before."""
        message, fix = self.phase.value
        return DeviceLost(message, fix=fix, backend=self.backend, **context)

    # -- loss

    def lose(self, *, out_of_time: bool = False) -> None:
        """The device is lost. One that only ran out of time is recovered by the next use, and not counted."""
        with self._lock:
            if self.phase not in (Phase.OPEN, Phase.BUSY):
                return
            self.out_of_time = out_of_time
            counters.TALLY.numbers[counters.LOSSES] += 1
            if not out_of_time:
                self._losses.append(time.monotonic())
            often = len(self._losses) == LOSSES and self._losses[-1] - self._losses[0] <= LOSSES_WITHIN_S
            self.phase = Phase.GIVEN_UP if often and not out_of_time else Phase.LOST
            self._resume = None
            self.pipelines.expire()

    def recover(self, rebuild: Callable[[], None], is_lost: Callable[[], bool]) -> None:
        """Rebuild the device and begin a new incarnation. A thread that arrives during recovery waits and returns."""
        before = self.incarnation
        with self.recovery:
            if self.incarnation != before:
                return
            if self.phase is Phase.OPEN and is_lost():
                self.lose()  # no call had noticed
            was = self._begin()
            try:
                self.drain()
                self._rebuild(rebuild)
                if is_lost():
                    was = Phase.LOST
                    raise DeviceLost(
                        "the device is still lost after recovery",
                        fix="see to the device and its driver, or use another backend",
                        backend=self.backend,
                    )
                was = Phase.OPEN
                with self._lock:
                    self.incarnation += 1
                    counters.TALLY.numbers[counters.RECOVERIES] += 1
                    self._abandoned = 0  # also those left behind while we waited
            finally:
                self.pipelines.clear()  # also after a failed recovery: all compiled code has ended
                with self._lock:
                    if self.phase is Phase.RECOVERING:
                        self.phase = was

    def _begin(self) -> Phase:
        with self._lock:
            was = self.phase
            if was not in (Phase.OPEN, Phase.BUSY, Phase.LOST):
                raise self.refusal()
            self.phase, self._resume, self._abandoned = Phase.RECOVERING, None, 0
            self.pipelines.expire()
        return Phase.OPEN if was is Phase.OPEN else Phase.LOST

    def _rebuild(self, rebuild: Callable[[], None]) -> None:
        """Rebuild, unless the backend is shut down by now; a shutdown from now on waits for it."""
        self.inflight.append(None)
        try:
            self._require_recovering()
            rebuild()
            self._require_recovering()
        finally:
            self.inflight.pop()

    def _require_recovering(self) -> None:
        if self.phase is not Phase.RECOVERING:
            raise self.refusal()

    def drain(self) -> None:
        """Wait for the calls that are running, but not for long."""
        end = time.monotonic() + DRAIN_S
        while self.inflight and time.monotonic() < end:
            time.sleep(_POLL_S)

    # -- ends

    def shut(self) -> bool:
        """Whether this is the call that shuts the backend down. In a forked process nothing is touched."""
        with self._lock:
            if self.phase in (Phase.SHUT, Phase.FORKED):
                return False
            self.phase, self._resume = Phase.SHUT, None
            self.pipelines.expire()
        return True

    def forked(self) -> None:
        """This process is a child of the one with the device. Threads that held a lock are not here."""
        self.phase = Phase.FORKED
        self._lock, self.recovery = threading.RLock(), threading.Lock()
        self.pipelines.forked()

    # -- abandoned calls

    def abandon(self, incarnation: int) -> None:
        """A call of this incarnation goes on although its caller has left. The device counts as lost until it ends."""
        with self._lock:
            if incarnation != self.incarnation:
                return  # it runs on the state from before the recovery
            self._abandoned += 1
            if self.phase is Phase.OPEN:
                self.phase, self._resume = Phase.BUSY, self.pipelines.suspend()

    def abandoned_ended(self, incarnation: int) -> None:
        with self._lock:
            if incarnation != self.incarnation or self._abandoned == 0:
                return  # of an incarnation that is over
            self._abandoned -= 1
            if self.phase is Phase.BUSY and self._abandoned == 0 and self._resume is not None:
                self._resume()
                self.phase, self._resume = Phase.OPEN, None

    # -- handles

    def watch(self, pending: PendingDispatch) -> None:
        """Keep a started dispatch until it is ready, so that flush can wait for it."""
        with self._lock:
            self._pending.add(pending)
            crowded = list(self._pending) if len(self._pending) >= self._look_again else []
        if crowded:
            ended = [p for p in crowded if _has_ended(p)]
            with self._lock:
                self._pending.difference_update(ended)
                self._look_again = 2 * len(self._pending) + _SPARE_PENDING

    def unwatch(self, pending: PendingDispatch) -> None:
        with self._lock:
            self._pending.discard(pending)

    def watched(self) -> list[PendingDispatch]:
        with self._lock:
            return list(self._pending)

    def is_current(self, handles: Sequence[Any]) -> bool:
        """Whether all bear the stamp of this incarnation already, so that there is nothing to do."""
        incarnation = self.incarnation
        try:
            for h in handles:
                if type(h) is not ResidentHandle or h.incarnation != incarnation:
                    return False
        except TypeError:
            return False  # not a list: `unstamped` says so
        return True

    def unstamped(self, given: Sequence[Any]) -> list[Any]:
        """All of some resources, as their backend takes them."""
        if not isinstance(given, Sequence):
            raise ArgumentTypeError(
                f"resources is {type(given).__name__}, not a list", fix="pass one resource for each buffer, in a list"
            )
        return [self.unstamp(r) for r in given]

    def stamp(self, given: T) -> T:
        """A handle as the caller gets it: it belongs to this incarnation."""
        if not isinstance(given, ResidentHandle) or given.incarnation == self.incarnation:
            return given
        # built anew at a third of what `replace` costs
        return ResidentHandle(given.owner, given.id, given.nbytes, self.incarnation)  # type: ignore[return-value]

    def unstamp(self, given: T) -> T:
        """A handle for its backend, if its incarnation is not over. A handle without a stamp is the backend's own.

        The stamp stays: no backend looks at it, and handles are equal without it.
        """
        if isinstance(given, ResidentHandle) and given.incarnation not in (0, self.incarnation):
            raise DeviceLost(
                "the memory was on the device before it was recovered",
                fix="allocate and upload it again",
                backend=self.backend,
                handle=given.id,
            )
        return given


def _has_ended(pending: PendingDispatch) -> bool:
    try:
        return pending.is_ready()
    except Exception:
        return True  # its holder gets the error, not the caller that starts another dispatch


_states: weakref.WeakSet[DeviceState] = weakref.WeakSet()


@in_child
def _forked() -> None:
    for state in list(_states):
        state.forked()
