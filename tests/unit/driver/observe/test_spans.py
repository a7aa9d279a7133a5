"""OpenTelemetry's own SDK, in memory, gets a span of each dispatch and compilation."""

import sys

import numpy as np
import pytest

import vyre
from vyre import DispatchConfig, In, InOut, Out, Trap, f32, gid, u32

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="opentelemetry-sdk is not installed")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
export = pytest.importorskip("opentelemetry.sdk.trace.export")


@vyre.kernel(workgroup=64)
def double(x: In[f32], out: Out[f32]) -> None:
    if gid.x < len(out):
        out[gid.x] = x[gid.x] + x[gid.x]


@vyre.kernel(workgroup=64)
def guarded(x: InOut[u32]) -> None:
    assert x[gid.x] < 5, "five"


X = np.arange(100, dtype=np.float32)


@pytest.fixture
def provider():
    found, kept = sdk.TracerProvider(), memory.InMemorySpanExporter()
    found.add_span_processor(export.SimpleSpanProcessor(kept))
    found.kept = kept.get_finished_spans
    yield found
    found.shutdown()


def test_each_dispatch_is_a_child_of_the_callers_span(provider):
    with vyre.spans(provider), provider.get_tracer("app").start_as_current_span("request"):
        for _ in range(3):
            double.on("cpu")(X, config=DispatchConfig(label="here"))
    *rest, request = provider.kept()
    found = [span for span in rest if span.name == "vyre.dispatch"]
    assert len(found) == 3
    for span in found:
        assert span.parent.span_id == request.context.span_id
        assert request.start_time <= span.start_time < span.end_time <= request.end_time
        assert (span.attributes["vyre.backend"], span.attributes["vyre.program"]) == ("cpu", "double")
        assert (span.attributes["vyre.label"], span.attributes["vyre.input_bytes"]) == ("here", X.nbytes)
        assert span.status.is_ok or span.status.is_unset


def test_one_that_fails_says_so_and_a_compilation_is_one_too(provider):
    with vyre.spans(provider), vyre.acquire("cpu") as backend:
        backend.dispatch(double.program, [X])
        with pytest.raises(Trap):
            guarded.on("cpu")(np.full(3, 7, np.uint32))
    found = provider.kept()
    assert [s.status.status_code.name for s in found if s.name == "vyre.dispatch"] == ["UNSET", "ERROR"]
    assert "vyre.compile" in {s.name for s in found}


def test_none_is_made_after_the_end_and_an_exporter_that_fails_harms_nothing(provider):
    class Broken(export.SpanProcessor if hasattr(export, "SpanProcessor") else sdk.SpanProcessor):
        def on_end(self, span):
            raise RuntimeError("broken")

    with vyre.spans(provider):
        pass
    double.on("cpu")(X)
    assert provider.kept() == ()
    provider.add_span_processor(Broken())
    with vyre.spans(provider):
        assert (double.on("cpu")(X) == 2 * X).all()


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(
        vyre.BackendUnavailable, match=r"opentelemetry-api is not installed.*Fix: pip install 'vyre\[otel\]'"
    ):
        vyre.spans()
