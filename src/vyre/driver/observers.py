"""Who is told of dispatches? Nobody, unless somebody asks; then each one that a caller waits for, with its times.

A route asks here when it plans. When somebody begins or ends to watch, routes forget their plans and make them anew, so
that a warm call never looks.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from ..foundation.forking import in_child
from .contract.pipeline import Bound

T = TypeVar("T")


class Dispatched(NamedTuple):
    """What is known of a dispatch before it runs. Two that are planned alike have the same one."""

    backend: str
    program: str
    label: str
    input_bytes: int
    output_bytes: int


Tell: TypeAlias = Callable[[int, int, bool], object]
"""(when it began, when it ended, whether it failed), times in ns of `perf_counter_ns`; it must not raise."""
Observer: TypeAlias = Callable[[Dispatched], Tell]
"""What is to be told of each run of such a dispatch."""


class Planning(Protocol):
    """A route, as far as it is known here."""

    def forget(self) -> None:
        """Plan anew."""


class Living(Generic[T]):
    """Those that are alive, for any thread to ask."""

    def __init__(self) -> None:
        self._items: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()

    def add(self, item: T) -> None:
        with self._lock:
            self._items.add(item)

    def __call__(self) -> list[T]:
        with self._lock:
            return list(self._items)

    def forked(self) -> None:
        self._lock = threading.Lock()  # a thread that is not in the child may have held the other


routes: Living[Planning] = Living()
_observers: tuple[Observer, ...] = ()
_lock = threading.Lock()


@in_child
def _forked() -> None:
    global _lock
    _lock = threading.Lock()
    routes.forked()


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
    tells = [observer(about) for observer in observers]
    return bound._replace(run=_told(bound.run, tells), timed=_told(bound.timed, tells))


def _told(run: Callable[[Any, Any], T], tells: list[Tell]) -> Callable[[Any, Any], T]:
    def told_run(inputs: Any, out: Any) -> T:
        failed, begun = True, perf_counter_ns()
        try:
            result = run(inputs, out)
            failed = False
            return result
        finally:
            ended = perf_counter_ns()
            for tell in tells:
                tell(begun, ended, failed)

    return told_run
