"""Which observers are told of dispatches? None, unless one asks; then of each, with its times.

A route asks here when it plans. When an observer begins or ends to watch, routes forget their plans and make them
anew, so that a warm call never looks.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

from ..foundation.forking import in_child
from .contract.pipeline import Bound, Run, RunTimed
from .counters import Spent

if TYPE_CHECKING:
    from .contract.values import OutputBuffers, TimedDispatchResult

T = TypeVar("T")
P = ParamSpec("P")


class Dispatched(NamedTuple):
    """What is known of a dispatch before it runs. Two that are planned alike have the same one."""

    backend: str
    program: str
    label: str
    input_bytes: int
    output_bytes: int
    how: str = "waited"


Tell: TypeAlias = "Callable[[int, int, bool, TimedDispatchResult | None], object]"
"""(when it began, when it ended, whether it failed, the times of the backend), in ns of `perf_counter_ns`; it must not
raise."""


class Observer(Protocol):
    """Who is told."""

    def dispatches(self, about: Dispatched) -> Tell | Spent:
        """What is to be told of each run of such a dispatch, or where to put how long it took.

        For one that is told, the backend takes times of each dispatch, which may cost some.
        """

    def compiled(self, backend: str, program: str, tier: str, begun: int, ended: int) -> None:
        """A program was compiled, or loaded from disk, as `tier` says."""


class Planning(Protocol):
    """A route, as far as it is known here."""

    def forget(self) -> None:
        """Plan anew."""


class Living(Generic[T]):
    """Those that are alive, for any thread to ask. One such list lives as long as the process."""

    def __init__(self) -> None:
        self._items: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()
        in_child(self._forked)

    def add(self, item: T) -> None:
        with self._lock:
            self._items.add(item)

    def __call__(self) -> list[T]:
        with self._lock:
            return list(self._items)

    def _forked(self) -> None:
        self._lock = threading.Lock()  # a thread that is not in the child may have held the other


routes: Living[Planning] = Living()
_observers: tuple[Observer, ...] = ()
_lock = threading.Lock()


@in_child
def _forked() -> None:
    global _lock
    _lock = threading.Lock()


def watch(observer: Observer) -> Callable[[], None]:
    """Tell it of every dispatch from now on, of all threads; the function that is returned ends this."""
    global _observers
    with _lock:
        _observers = (*_observers, observer)
    _plan_anew()

    def end() -> None:
        global _observers
        with _lock:
            _observers = tuple(o for o in _observers if o is not observer)
        _plan_anew()

    return end


def _plan_anew() -> None:
    for route in routes():
        route.forget()


def watching() -> tuple[Observer, ...]:
    """Who is told now; a plan that was made for others is forgotten."""
    return _observers


def told(bound: Bound, about: Dispatched, observers: tuple[Observer, ...]) -> Bound:
    """The dispatch, telling these of each run."""
    if not observers:
        return bound
    sinks = [observer.dispatches(about) for observer in observers]
    timed = _told_timed(bound.timed, sinks)
    if not all(isinstance(sink, Spent) for sink in sinks):
        return bound._replace(run=lambda inputs, out: timed(inputs, out).outputs, timed=timed)
    run = bound.run
    for sink in sinks:
        run = _spending(run, sink)  # type: ignore[arg-type]
    return bound._replace(run=run, timed=timed)


def _spending(run: Run, spent: Spent) -> Run:
    append, enough, now = spent.append, Spent.ENOUGH, perf_counter_ns

    def spending_run(inputs: Any, out: Any) -> OutputBuffers:
        begun = now()
        try:
            return run(inputs, out)
        finally:
            append(now() - begun)
            if len(spent) > enough:
                spent.fold()

    return spending_run


def _told_timed(run: RunTimed, sinks: Sequence[Tell | Spent]) -> RunTimed:
    def told_timed(inputs: Any, out: Any) -> TimedDispatchResult:
        result, begun = None, perf_counter_ns()
        try:
            result = run(inputs, out)
            return result
        finally:
            tell(sinks, begun, failed=result is None, times=result)

    return told_timed


def tell(
    sinks: Sequence[Tell | Spent], begun: int, *, failed: bool = False, times: TimedDispatchResult | None = None
) -> None:
    """A dispatch has ended just now."""
    ended = perf_counter_ns()
    for sink in sinks:
        if isinstance(sink, Spent):
            sink.append(ended - begun)
            if len(sink) > Spent.ENOUGH:
                sink.fold()
        else:
            sink(begun, ended, failed, times)


def told_call(call: Callable[P, T], about: Dispatched, observers: Sequence[Observer]) -> Callable[P, T]:
    """The same for any other function that is a dispatch."""
    if not observers:
        return call
    sinks = [observer.dispatches(about) for observer in observers]

    def told_once(*given: P.args, **named: P.kwargs) -> T:
        failed, begun = True, perf_counter_ns()
        try:
            found = call(*given, **named)
            failed = False
            return found
        finally:
            tell(sinks, begun, failed=failed)

    return told_once


def compiling(make: Callable[[], T], backend: str, program: str, tier: Callable[[T], str]) -> T:
    """What `make` gives; who watches is told."""
    begun = perf_counter_ns()
    made = make()
    for observer in _observers:
        observer.compiled(backend, program, tier(made), begun, perf_counter_ns())
    return made
