"""Metrics of this process for Prometheus: what is counted anyway, and times of dispatches.

They are timed from the first `metrics()` on. Names are stable, and labels bounded.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ...errors import ArgumentValueError, BackendUnavailable, VyreError
from ...foundation.forking import in_child
from ..counters import (
    SKIPS,
    TIME_BOUNDS_NS,
    Kind,
    Spent,
    Timed,
    counters,
    decision_counters,
    label_counters,
    times,
)
from ..guard.backend import acquired
from ..observers import Dispatched, watch

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_MISSED = "vyre_pipeline_cache_miss"
MOST_LABELS = 256
"""Labels of dispatches that are told apart; the rarest others are one, which is empty."""
LOOPBACK = "127.0.0.1"
_TOTALS: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    (
        "vyre_dispatches",
        "Dispatches, by how the caller asked for them.",
        "how",
        {f"{how}_dispatches": how for how in ("plain", "timed", "async", "resident")},
    ),
    ("vyre_dispatch_failures", "Dispatches that raised.", "", {"failed_dispatches": ""}),
    ("vyre_batches", "Batches of dispatches.", "", {"batches": ""}),
    (
        "vyre_dispatch_bytes",
        "Bytes that dispatches took from the host and gave to it.",
        "direction",
        {"input_bytes": "input", "output_bytes": "output"},
    ),
    (
        "vyre_split",
        "Dispatches that were split into launches, and into what.",
        "kind",
        {f"split_{kind}": kind for kind in ("dispatches", "segments", "sync_points", "launches", "passes")},
    ),
    ("vyre_fixpoints_reached", "Dispatches that stopped because nothing changed.", "", {"fixpoints_reached": ""}),
    ("vyre_iterations_spared", "Iterations that were not run because of that.", "", {"iterations_spared": ""}),
    (
        "vyre_routes",
        "Configs that a pipeline met, and those that needed other code.",
        "event",
        {"routes_opened": "opened", "recompiled_routes": "recompiled"},
    ),
    (
        "vyre_devices",
        "Devices that were lost, also to a deadline, and that came back.",
        "event",
        {"device_losses": "lost", "device_recoveries": "recovered"},
    ),
    ("vyre_plans_made", "Dispatches that were planned.", "", {"plans_made": ""}),
    (
        "vyre_shadow",
        "Dispatches that were computed again, and how that ended.",
        "result",
        {
            "shadow_samples": "compared",
            "shadow_divergences": "differs",
            **{f"shadow_skipped_{r}": f"skipped: {r}" for r in SKIPS},
        },
    ),
)
"""Name, help, label, and the counters with what the label says of each."""


_TIMED = {
    "waited": ("vyre_dispatch_seconds", "How long callers waited for dispatches."),
    "started": ("vyre_started_dispatch_seconds", "From the start of a dispatch until its result was taken."),
    "resident": ("vyre_resident_dispatch_seconds", "How long callers were in dispatches over memory of a device."),
}


class Metrics:
    """A collector for prometheus-client: `prometheus_client.REGISTRY.register(vyre.metrics())`.

    `text()` is the same without a registry, and `serve(port)` shows it over HTTP. `close()` ends the timing.
    """

    def __init__(self) -> None:
        self._end: Callable[[], None] | None = watch(_Times())

    def close(self) -> None:
        if self._end is not None:
            self._end()
            self._end = None

    def text(self) -> str:
        """What Prometheus reads."""
        prometheus = _prometheus()
        registry = prometheus.CollectorRegistry()
        registry.register(self)
        return str(prometheus.generate_latest(registry).decode())

    def serve(self, port: int, host: str = LOOPBACK) -> Server:
        """Answer at `http://host:port/metrics` until it is closed; port 0 takes one that is free."""
        return Server(self, port, host)

    def describe(self) -> list[Metric]:
        return []  # a registry need not collect to know the names

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily

        counted = counters()
        for name, what, label, given in _TOTALS:
            family = CounterMetricFamily(name, what, labels=[label] if label else [])
            for counter, value in given.items():
                family.add_metric([value] if label else [], counted[counter])
            yield family
        seconds = CounterMetricFamily("vyre_shadow_seconds", "Time that shadows took.")
        seconds.add_metric([], counted["shadow_ns"] / 1e9)
        yield seconds
        labelled = CounterMetricFamily("vyre_labelled_dispatches", "Dispatches by their label.", labels=["label"])
        for text, n in sorted(bounded(label_counters()).items()):
            labelled.add_metric([text], n)
        yield labelled
        decided = CounterMetricFamily("vyre_decisions", "Choices that were made.", labels=["what", "choice"])
        for (what, choice), n in sorted(decision_counters().items()):
            decided.add_metric([what, choice], n)
        yield decided
        timed = {
            how: HistogramMetricFamily(name, what, labels=["backend", "label"]) for how, (name, what) in _TIMED.items()
        }
        moved = CounterMetricFamily(
            "vyre_timed_dispatch_bytes", "Bytes of these dispatches.", labels=["backend", "label", "direction"]
        )
        for kind, row in sorted(_bounded_times(times()).items()):
            names = [f"{ns / 1e9:g}" for ns in TIME_BOUNDS_NS] + ["+Inf"]
            buckets = list(zip(names, accumulate(row.counts), strict=True))
            timed[kind.how].add_metric(kind[:2], buckets, row.total_ns / 1e9)
            if kind.how == "waited":
                moved.add_metric([*kind[:2], "input"], row.input_bytes)
                moved.add_metric([*kind[:2], "output"], row.output_bytes)
        yield from timed.values()
        yield moved
        yield from _of_backends()


class _Times:
    """Counts how long dispatches take."""

    def dispatches(self, about: Dispatched) -> Spent:
        return Spent(Kind(about.backend, about.label, about.how), about.input_bytes, about.output_bytes)

    def compiled(self, backend: str, program: str, tier: str, begun: int, ended: int) -> None:
        pass  # which the caches count


def bounded(counted: Mapping[str, int], most: int = MOST_LABELS) -> dict[str, int]:
    """The most frequent labels; all others count under the empty one.

    >>> bounded({"a": 3, "b": 1, "c": 2, "": 5}, 2)
    {'a': 3, 'c': 2, '': 6}
    """
    kept = dict(Counter({label: n for label, n in counted.items() if label}).most_common(most))
    rest = sum(counted.values()) - sum(kept.values())
    return kept | ({"": rest} if rest else {})


def _bounded_times(found: Mapping[Kind, Timed]) -> dict[Kind, Timed]:
    often: Counter[str] = Counter()
    for kind, row in found.items():
        often[kind.label] += sum(row.counts)
    kept = bounded(often)
    merged: dict[Kind, Timed] = {}
    for whole, row in found.items():
        kind = whole if whole.label in kept else whole._replace(label="")
        merged[kind] = _sum(merged[kind], row) if kind in merged else row
    return merged


def _sum(a: Timed, b: Timed) -> Timed:
    return Timed(
        tuple(x + y for x, y in zip(a[0], b[0], strict=True)), *(x + y for x, y in zip(a[1:], b[1:], strict=True))
    )


def _of_backends() -> Iterator[Metric]:
    """What open backends and their pipeline caches say, summed by id."""
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    caches: dict[str, Counter[str]] = {}
    own: dict[str, Counter[str]] = {}
    for guard in acquired():
        caches.setdefault(guard.id, Counter()).update(guard.pipelines.metrics())
        try:
            own.setdefault(guard.id, Counter()).update({str(k): v for k, v in guard.metrics().items()})
        except VyreError:
            continue  # one that is gone
    missed = CounterMetricFamily(
        f"{_MISSED}es_by_reason", "Programs that the driver's caches did not have.", labels=["backend", "reason"]
    )
    for name in sorted({name for counted in caches.values() for name in counted}):
        if name.startswith(f"{_MISSED}_"):
            for backend in sorted(caches):
                missed.add_metric(
                    [backend, name.removeprefix(f"{_MISSED}_").removesuffix("_total")], caches[backend][name]
                )
            continue
        total = name.endswith("_total")
        family = (CounterMetricFamily if total else GaugeMetricFamily)(
            name.removesuffix("_total"), "Of the driver's caches of compiled programs.", labels=["backend"]
        )
        for backend in sorted(caches):
            family.add_metric([backend], caches[backend][name])
        yield family
    yield missed
    each = GaugeMetricFamily("vyre_backend", "What a backend counts or holds.", labels=["backend", "what"])
    for backend in sorted(own):
        for name, value in sorted(own[backend].items()):
            each.add_metric([backend, name], value)
    yield each


# ---- the one of the process -----------------------------------------------------------------------------------------

_metrics: Metrics | None = None
_lock = threading.Lock()


@in_child
def _forked() -> None:
    global _lock
    _lock = threading.Lock()


def metrics() -> Metrics:
    """The metrics of this process. From the first call on, dispatches are timed."""
    global _metrics
    _prometheus()
    with _lock:
        if _metrics is None or _metrics._end is None:
            _metrics = Metrics()
        return _metrics


def _prometheus() -> Any:
    try:
        import prometheus_client
    except ImportError as e:
        raise BackendUnavailable("prometheus-client is not installed", fix="pip install 'vyre[metrics]'") from e
    return prometheus_client


class Server:
    """Metrics over HTTP, from a thread of its own. `port` is the one it listens at."""

    def __init__(self, source: Metrics, port: int, host: str) -> None:
        prometheus = _prometheus()
        registry = prometheus.CollectorRegistry()
        registry.register(source)
        try:
            self._server, self._thread = prometheus.start_http_server(port, addr=host, registry=registry)
        except (OSError, OverflowError) as e:
            raise ArgumentValueError(
                f"metrics cannot be served at {host}:{port}: {e}", fix="name a port that is free, or 0"
            ) from e
        self.port: int = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
