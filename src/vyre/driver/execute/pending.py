"""A started dispatch of a pipeline: its result is held to the config of its route."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import DeadlineExceeded, VyreError
from ..contract.pending import PendingDispatch
from ..contract.values import OutputBuffers
from ..counters import FAILED, TALLY
from ..device_state import Phase
from ..observers import tell, watching
from .route import Route, typed_failures

if TYPE_CHECKING:
    from typing_extensions import Buffer

_SLICE_S = 0.1
"""How long a wait for a started dispatch goes on without looking at the device."""


class RoutePending(PendingDispatch):
    """A started dispatch: its result is held to the config of its route, and its code stays open until then.

    It belongs to one incarnation of its device. Waits are cut into slices, so that no wait outlives the device, and a
    signal is handled even where a backend waits without looking.
    """

    def __init__(
        self,
        pending: PendingDispatch,
        route: Route,
        inputs: Sequence[Buffer],
        out: Sequence[Buffer] | None,
        sizes: list[int],
        begun: int,
    ) -> None:
        """It was `begun` at this time of `perf_counter_ns`."""
        super().__init__()
        self._pending, self._route, self._out, self._sizes = pending, route, out, sizes
        self._incarnation = route.device_state.incarnation
        self._came: tuple[OutputBuffers] | None = None  # kept, so that a refusal can be repeated
        self._failed = False
        about = route.about("started", sum(memoryview(b).nbytes for b in inputs), sum(sizes))
        self._sinks, self._begun = [observer.dispatches(about) for observer in watching()], begun

    def is_ready(self) -> bool:
        with typed_failures(self._route):
            return self._pending.is_ready()

    def _wait(self, timeout: float | None) -> OutputBuffers:
        try:
            with typed_failures(self._route):
                if self._came is None:
                    self._came = self._outputs(timeout)
                    if self._came is not None:
                        tell(self._sinks, self._begun)
                if self._came is not None:
                    self._route.device_state.unwatch(self)
                    return self._route.accept(self._came[0], self._out, self._sizes)
        except VyreError:
            if not self._failed:
                self._failed = True
                self._route.device_state.unwatch(self)
                TALLY.numbers[FAILED] += 1
                tell(self._sinks if self._came is None else (), self._begun, failed=True)
            raise
        raise TimeoutError

    def _outputs(self, timeout: float | None) -> tuple[OutputBuffers] | None:
        """The outputs of the backend, or None when the time is over and the dispatch still runs."""
        pending, end = self._pending, None if timeout is None else time.monotonic() + timeout
        while True:
            self._require_device()
            left = _SLICE_S if end is None else min(max(end - time.monotonic(), 0), _SLICE_S)
            try:
                return (pending.result(left),)
            except DeadlineExceeded as e:
                if "waited_s" not in e.context:
                    raise  # the dispatch has ended, not the wait
                if pending.is_ready():
                    return (pending.result(0),)  # it ended just now, or the deadline was its own
                if end is not None and time.monotonic() >= end:
                    return None

    def _require_device(self) -> None:
        """Raise if the device this runs on is gone. After a shutdown, started dispatches still end."""
        state = self._route.device_state
        if state.incarnation != self._incarnation or state.phase not in (Phase.OPEN, Phase.BUSY, Phase.SHUT):
            raise self._route.stale()
