"""Dispatches and compilations as OpenTelemetry spans, through its API alone: the application says who gets them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns, time_ns
from types import TracebackType
from typing import Any

from ...errors import ArgumentTypeError, BackendUnavailable
from ..contract.values import TimedDispatchResult
from ..observers import Dispatched, Tell, watch


class Spans:
    """`with vyre.spans():`, or from the call on until `close()`. Each is a child of the span in which the caller is."""

    def __init__(self, provider: Any = None) -> None:
        try:
            from opentelemetry import trace
        except ImportError as e:
            raise BackendUnavailable("opentelemetry-api is not installed", fix="pip install 'vyre[otel]'") from e
        if provider is not None and not callable(getattr(provider, "get_tracer", None)):
            raise ArgumentTypeError(
                f"spans() got a {type(provider).__name__}", fix="pass a TracerProvider of OpenTelemetry, or nothing"
            )
        self._tracer, self._failed = trace.get_tracer("vyre", tracer_provider=provider), trace.StatusCode.ERROR
        self._epoch = time_ns() - perf_counter_ns()
        self._end: Callable[[], None] | None = watch(self)

    def close(self) -> None:
        if self._end is not None:
            self._end()
            self._end = None

    def __enter__(self) -> Spans:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def dispatches(self, about: Dispatched) -> Tell:
        attributes: dict[str, str | int] = {f"vyre.{name}": value for name, value in about._asdict().items()}

        def tell(begun: int, ended: int, failed: bool, times: TimedDispatchResult | None) -> None:
            known: dict[str, str | int] = (
                {} if times is None or times.device_ns is None else {"vyre.device_ns": times.device_ns}
            )
            self._span("vyre.dispatch", attributes | known, begun, ended, failed)

        return tell

    def compiled(self, backend: str, program: str, tier: str, begun: int, ended: int) -> None:
        about: dict[str, str | int] = {"vyre.backend": backend, "vyre.program": program, "vyre.tier": tier}
        self._span("vyre.compile", about, begun, ended)

    def _span(self, name: str, attributes: dict[str, str | int], begun: int, ended: int, failed: bool = False) -> None:
        with suppress(Exception):  # what exports it is not ours, and no dispatch fails because of it
            span = self._tracer.start_span(name, attributes=attributes, start_time=self._epoch + begun)
            if failed:
                span.set_status(self._failed)
            span.end(self._epoch + ended)


def spans(provider: Any = None) -> Spans:
    """Make spans of OpenTelemetry from now on, of all threads, until `close()` or the end of a `with` block.

    They go to the application's tracer provider, or to the one that is given.
    """
    return Spans(provider)
