"""What happened when: dispatches and compilations of a block of code, for viewers of Chrome traces such as Perfetto."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

from ...errors import ArgumentValueError
from ..contract.values import TimedDispatchResult
from ..guard.backend import acquired
from ..observers import Dispatched, Tell, watch
from .files import written

MOST_SPANS = 1_000_000
"""What one trace holds; it says how many more there were."""
Event: TypeAlias = dict[str, Any]


class _Thread(threading.local):
    """A number of its own for each thread; the system gives those of threads that ended to others."""

    def __init__(self) -> None:
        self.number = next(_threads)


_threads = itertools.count(1)
_HERE = _Thread()


class Span(NamedTuple):
    """A dispatch, or with a `tier` the compilation of a program. Times are in ns of `perf_counter_ns`."""

    about: Dispatched
    thread: int
    begun: int
    ended: int
    failed: bool = False
    tier: str = ""
    enqueue_ns: int | None = None
    wait_ns: int | None = None
    device_ns: int | None = None


class Recording:
    """Spans while a `with` block runs, of all threads."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.names: dict[int, str] = {}
        self.dropped = 0
        self.begun = self.ended = 0
        self._end: Callable[[], None] | None = None

    def __enter__(self) -> Recording:
        if self._end is not None or self.ended:
            raise ArgumentValueError("this recording was begun before", fix="make another one")
        self.begun = perf_counter_ns()
        self._end = watch(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._end is not None
        self._end()
        self.ended, self._end = perf_counter_ns(), None

    def dispatches(self, about: Dispatched) -> Tell:
        def tell(begun: int, ended: int, failed: bool, times: TimedDispatchResult | None) -> None:
            known = (None,) * 3 if times is None else (times.enqueue_ns, times.wait_ns, times.device_ns)
            self._keep(Span(about, _HERE.number, begun, ended, failed, "", *known))

        return tell

    def compiled(self, backend: str, program: str, tier: str, begun: int, ended: int) -> None:
        about = Dispatched(backend, program, "", 0, 0)
        self._keep(Span(about, _HERE.number, max(begun, self.begun), ended, tier=tier))  # it may have begun before us

    def _keep(self, span: Span) -> None:
        if len(self.spans) >= MOST_SPANS:
            self.dropped += 1
            return
        self.names.setdefault(span.thread, threading.current_thread().name)
        self.spans.append(span)


class Trace(Recording):
    """`with vyre.trace() as trace: ...`, then `trace.write("trace.json")`."""

    def __enter__(self) -> Trace:
        super().__enter__()
        return self

    def events(self) -> list[Event]:
        """As Chrome's trace format has them, times in us from the start of the block."""
        spans = sorted(self.spans, key=lambda s: (s.begun, -s.ended))
        pid, threads = os.getpid(), {t: k for k, t in enumerate(dict.fromkeys(s.thread for s in spans), 1)}
        found: list[Event] = [_named("process_name", pid, 0, "vyre")]
        found += [_named("thread_name", pid, k, self.names[t]) for t, k in threads.items()]
        for span in spans:
            found += self._host(span, pid, threads[span.thread])
        return found + list(self._devices(spans, pid + 1))

    def _host(self, span: Span, pid: int, thread: int) -> Iterator[Event]:
        about = span.about
        name = f"compile {_name(about)}" if span.tier else _name(about)
        told: dict[str, object] = {"backend": about.backend}
        told |= {"tier": span.tier} if span.tier else {"input_bytes": about.input_bytes}
        told |= {} if span.tier else {"output_bytes": about.output_bytes, "failed": span.failed}
        told |= {"label": about.label} if about.label else {}
        told |= {} if about.how == "waited" else {"how": about.how}
        if about.how == "started":  # others may begin before it ends
            for phase, ns in (("b", span.begun), ("e", span.ended)):
                both = {"name": name, "cat": "started", "ph": phase, "id": id(span), "pid": pid, "tid": thread}
                yield both | {"ts": (ns - self.begun) / 1000, "args": told if phase == "b" else {}}
            return
        yield self._event(name, "compile" if span.tier else "dispatch", pid, thread, span.begun, span.ended, told)
        if span.enqueue_ns is not None and span.wait_ns is not None:
            middle = min(span.begun + span.enqueue_ns, span.ended)
            yield self._event("enqueue", "host", pid, thread, span.begun, middle, {})
            yield self._event("wait", "host", pid, thread, middle, min(middle + span.wait_ns, span.ended), {})

    def _devices(self, spans: list[Span], pid: int) -> Iterator[Event]:
        """Work of devices, each on a line of its own. When it began there is not known: it ends as late as it can."""
        quality = {guard.id: str(guard.device_profile().timing_quality) for guard in acquired()}
        lines = {id: k for k, id in enumerate(dict.fromkeys(s.about.backend for s in spans if s.device_ns), 1)}
        if lines:
            yield _named("process_name", pid, 0, "devices")
        yield from (_named("thread_name", pid, k, id) for id, k in lines.items())
        free = dict.fromkeys(lines, 0)
        for span in sorted((s for s in spans if s.device_ns), key=lambda s: s.ended):
            id, ns = span.about.backend, span.device_ns or 0
            begun = max(free[id], span.begun, span.ended - ns)
            free[id] = max(begun, span.ended)
            told = {"device_ns": ns, "quality": quality.get(id, "unknown")}
            yield self._event(_name(span.about), "device", pid, lines[id], begun, free[id], told)

    def _event(
        self, name: str, kind: str, pid: int, thread: int, begun: int, ended: int, told: dict[str, object]
    ) -> Event:
        return {
            "name": name, "cat": kind, "ph": "X", "pid": pid, "tid": thread,
            "ts": (begun - self.begun) / 1000, "dur": (ended - begun) / 1000, "args": told,
        }  # fmt: skip

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the file, in one step."""
        document = {
            "traceEvents": self.events(),
            "displayTimeUnit": "ns",
            "otherData": {"dropped": self.dropped},
        }
        return written(path, lambda stream: stream.write(json.dumps(document).encode()))


def _named(what: str, pid: int, thread: int, name: str) -> Event:
    return {"name": what, "ph": "M", "pid": pid, "tid": thread, "args": {"name": name}}


def _name(about: Dispatched) -> str:
    return about.program or "program"


def trace() -> Trace:
    """`with vyre.trace() as found:` records what this process compiles and dispatches, in all threads.

    `found.write(path)` makes a file for Perfetto or chrome://tracing. Backends take times of each dispatch, which may
    cost some.
    """
    return Trace()
