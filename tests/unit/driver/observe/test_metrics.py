"""Metrics say what happened, in a form that Prometheus reads; without them a call is as it was."""

import subprocess
import sys
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest
from prometheus_client import parser

import vyre
from vyre import DispatchConfig, In, InOut, Out, f32, gid, u32
from vyre.cli.commands.serve import Document as ServeDocument
from vyre.driver import counters, observers
from vyre.driver.guard.backend import guarded as guard_of
from vyre.driver.observe import metrics as module
from vyre.driver.observe.metrics import Metrics, bounded
from vyre.errors import ArgumentValueError, BackendUnavailable, Trap

from ....contract.doubles import FullBackend
from ....support import cli_tool
from ....support.cli_tool import document, refused, started

files = cli_tool.files


@vyre.kernel(workgroup=64)
def double(x: In[f32], out: Out[f32]) -> None:
    if gid.x < len(out):
        out[gid.x] = x[gid.x] + x[gid.x]


@vyre.kernel(workgroup=64)
def guarded(x: InOut[u32]) -> None:
    assert x[gid.x] < 5, "five"


X = np.arange(100, dtype=np.float32)


@pytest.fixture(autouse=True)
def _nobody_watches_on():
    """What a test begins ends with it."""
    before = observers.watching()
    yield
    assert observers.watching() == before


@pytest.fixture
def metrics():
    found = Metrics()
    yield found
    found.close()


def samples(text):
    """(name, labels) -> value, as the official parser reads them; a series that stands twice fails."""
    found = {}
    for family in parser.text_string_to_metric_families(text):
        for s in family.samples:
            key = s.name, tuple(sorted(s.labels.items()))
            assert key not in found
            found[key] = s.value
    return found


def grown(before, after, name, **labels):
    key = name, tuple(sorted(labels.items()))
    return after[key] - before.get(key, 0)


@pytest.mark.row("C-ob-4")
def test_counts_equal_dispatches_under_threads(metrics):
    before, calls, threads = samples(metrics.text()), 40, 8
    config = DispatchConfig(label="load")
    seen = []

    def work():
        for _ in range(calls):
            double.on("cpu")(X, config=config)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        seen.append(samples(metrics.text()))  # reads while others count
        workers[0].join(0.01)
    for worker in workers:
        worker.join()
    after, total = samples(metrics.text()), calls * threads
    assert grown(before, after, "vyre_dispatches_total", how="plain") == total
    assert grown(before, after, "vyre_labelled_dispatches_total", label="load") == total
    assert grown(before, after, "vyre_dispatch_seconds_count", backend="cpu", label="load") == total
    assert grown(before, after, "vyre_dispatch_bytes_total", direction="input") == total * X.nbytes
    for direction in ("input", "output"):
        moved = grown(
            before, after, "vyre_timed_dispatch_bytes_total", backend="cpu", label="load", direction=direction
        )
        assert moved == total * X.nbytes
    counts = [s.get(("vyre_dispatches_total", (("how", "plain"),)), 0) for s in seen]
    assert counts == sorted(counts)


def test_buckets_are_cumulative_and_end_with_all(metrics):
    for _ in range(5):
        double.on("cpu")(X, config=DispatchConfig(label="buckets"))
    found = [
        (float(dict(labels)["le"]), n)
        for (name, labels), n in samples(metrics.text()).items()
        if name == "vyre_dispatch_seconds_bucket" and ("label", "buckets") in labels
    ]
    assert [le for le, _ in found] == [ns / 1e9 for ns in counters.TIME_BOUNDS_NS] + [float("inf")]
    assert [n for _, n in found] == sorted(n for _, n in found)
    assert found[-1][1] == 5


def test_the_time_of_a_dispatch_is_counted_where_it_belongs():
    ns = counters.TIME_BOUNDS_NS
    for k, n in ((0, 1), (0, ns[0]), (1, ns[0] + 1), (len(ns) - 1, ns[-1]), (len(ns), ns[-1] + 1)):
        kind = counters.Kind("here", f"{n}", "waited")
        before = counters.times().get(kind)
        assert before is None
        counters.Spent(kind, 3, 4).append(n)
        row = counters.times()[kind]
        assert [i for i, c in enumerate(row.counts) if c] == [k]
        assert (row.total_ns, row.input_bytes, row.output_bytes) == (n, 3, 4)


def test_what_a_thread_timed_outlives_it():
    kind = counters.Kind("here", "ended", "waited")
    worker = threading.Thread(target=lambda: counters.Spent(kind, 0, 0).append(5))
    worker.start()
    worker.join()
    assert sum(counters.times()[kind].counts) == 1


@pytest.fixture
def nothing_counted(monkeypatch):
    """Counts that begin here, in this thread."""
    monkeypatch.setattr(counters, "_ended", counters._Counts())
    monkeypatch.setattr(counters, "_live", [])
    monkeypatch.setattr(counters, "TALLY", counters._Tally())


def test_labels_are_bounded(metrics, nothing_counted):
    for k in range(600):
        counters.Spent(counters.Kind("many", f"label {k}", "waited"), 1, 1).append(5)
        counters.TALLY.counts.label(f"label {k}")
    found = samples(metrics.text())
    rows = [labels for name, labels in found if name == "vyre_dispatch_seconds_count"]
    assert len([r for r in rows if ("backend", "many") in r]) <= module.MOST_LABELS + 1
    assert (
        sum(n for (name, r), n in found.items() if name == "vyre_dispatch_seconds_count" and ("backend", "many") in r)
        == 600
    )
    assert len([1 for name, _ in found if name == "vyre_labelled_dispatches_total"]) <= module.MOST_LABELS + 1
    assert bounded({"a": 1}) == {"a": 1}


def test_any_label_is_text_for_the_parser(metrics):
    odd = 'a "b"\n\\c{d="e"} # é'
    double.on("cpu")(X, config=DispatchConfig(label=odd))
    assert samples(metrics.text())["vyre_dispatch_seconds_count", (("backend", "cpu"), ("label", odd))] >= 1


@pytest.mark.row("C-ob-1", "C-ob-6")
@pytest.mark.parametrize("how", ["dispatch", "dispatch_timed", "dispatch_async"])
def test_every_way_to_dispatch_is_counted_with_its_bytes(metrics, how):
    before = samples(metrics.text())
    with vyre.compile(double.program, backend="cpu") as compiled:
        found = getattr(compiled, how)([X])
        if how == "dispatch_async":
            found.result()
    after = samples(metrics.text())
    name = {"dispatch": "plain"}.get(how, how.removeprefix("dispatch_"))
    assert grown(before, after, "vyre_dispatches_total", how=name) == 1
    assert grown(before, after, "vyre_dispatch_bytes_total", direction="output") == X.nbytes


def test_started_and_resident_dispatches_and_sequences_are_timed_too(metrics):
    config = DispatchConfig(label="ways")
    x = vyre.to_device(X, "cpu")
    warm = vyre.compile(double.program, backend="cpu")
    with warm, vyre.acquire("cpu") as backend:
        out = backend.allocate_resident(X.nbytes)
        source = backend.allocate_resident(X.nbytes)
        resident = vyre.driver.guard.compile.compile(backend, double.program)
        resident.dispatch_resident([source, out], config)  # before the metrics: another closure
        late = Metrics()
        try:
            before = samples(late.text())
            for _ in range(5):
                resident.dispatch_resident([source, out], config)
            for _ in range(3):
                warm.dispatch_async([X], config).result()
            twice = vyre.sequence(lambda a: double(double(a))).on("cpu")
            twice(x)
            after = samples(late.text())
        finally:
            late.close()
        for _ in range(5):
            resident.dispatch_resident([source, out], config)
        last = samples(metrics.text())
    for name, label, n in (("resident", "ways", 5), ("started", "ways", 3), ("resident", "", 1)):
        key = f"vyre_{name}_dispatch_seconds_count"
        assert grown(before, after, key, backend="cpu", label=label) >= n, name
    assert grown(before, after, "vyre_resident_dispatch_seconds_count", backend="cpu", label="ways") in (5, 10)
    assert grown(after, last, "vyre_resident_dispatch_seconds_count", backend="cpu", label="ways") == 5


@pytest.mark.row("C-ob-3")
def test_launches_of_a_split_dispatch_are_counted(metrics):
    before = samples(metrics.text())
    counters.count_sequence(4, 4, 1, fixpoint=False)
    after = samples(metrics.text())
    kinds = {
        kind: grown(before, after, "vyre_split_total", kind=kind) for kind in ("dispatches", "segments", "sync_points")
    }
    assert kinds == {"dispatches": 1, "segments": 4, "sync_points": 3}


def test_a_dispatch_that_raises_is_counted_as_failed_and_timed(metrics):
    before = samples(metrics.text())
    with pytest.raises(Trap):
        guarded.on("cpu")(np.full(3, 7, np.uint32), config=DispatchConfig(label="trap"))
    after = samples(metrics.text())
    assert grown(before, after, "vyre_dispatch_failures_total") == 1
    assert grown(before, after, "vyre_dispatch_seconds_count", backend="cpu", label="trap") == 1


def test_pipelines_that_were_there_before_are_timed_and_stop_being_timed():
    config = DispatchConfig(label="before and after")
    key = "vyre_dispatch_seconds_count", (("backend", "cpu"), ("label", config.label))
    with vyre.compile(double.program, backend="cpu") as compiled:
        before = observers.watching()
        compiled.dispatch([X], config)
        found = Metrics()
        compiled.dispatch([X], config)
        found.close()
        found.close()
        compiled.dispatch([X], config)
        assert samples(found.text())[key] == 1
    assert observers.watching() == before


def test_caches_and_backends_tell_what_they_hold(metrics):
    with vyre.acquire("cpu") as backend:
        backend.dispatch(double.program, [X])
        found = samples(metrics.text())
        now = backend.pipeline_cache_snapshot()
    cpu = (("backend", "cpu"),)
    assert found["vyre_pipeline_cache_misses_total", cpu] >= now.misses >= 1
    assert found["vyre_pipeline_cache_entries", cpu] >= now.entries >= 1
    reasons = {dict(labels)["reason"] for name, labels in found if name == "vyre_pipeline_cache_misses_by_reason_total"}
    assert "empty_cache" in reasons
    assert found["vyre_backend", (("backend", "cpu"), ("what", "compiled_programs"))] >= 1


@pytest.mark.parametrize("id", [b.id for b in vyre.registered_backends_by_precedence() if b.unavailable() is None])
def test_the_cache_of_every_backend_says_what_it_did(id):
    with vyre.acquire(id) as backend:
        before = backend.pipeline_cache_snapshot()
        backend.dispatch(double.program, [X])
        backend.compile_native(double.program, DispatchConfig())
        after = backend.pipeline_cache_snapshot()
    assert after.misses + after.hits > before.misses + before.hits
    assert after.entries >= 1


def test_a_lost_device_and_its_return_are_counted(metrics):
    before = samples(metrics.text())
    full = guard_of(FullBackend())
    full.device_state.lose()
    full.try_recover()
    after = samples(metrics.text())
    assert {e: grown(before, after, "vyre_devices_total", event=e) for e in ("lost", "recovered")} == {
        "lost": 1,
        "recovered": 1,
    }


def test_the_metrics_of_the_process_are_one(monkeypatch):
    monkeypatch.setattr(module, "_metrics", None)
    found = vyre.metrics()
    assert vyre.metrics() is found
    found.close()
    again = vyre.metrics()
    assert again is not found
    again.close()


# ---- over HTTP ------------------------------------------------------------------------------------------------------


def test_metrics_are_served_to_this_machine(metrics):
    double.on("cpu")(X)
    with metrics.serve(0) as server:
        url = f"http://127.0.0.1:{server.port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert samples(answer.read().decode())["vyre_dispatches_total", (("how", "plain"),)] >= 1
        with pytest.raises(
            ArgumentValueError, match=r"cannot be served at 127\.0\.0\.1:.*Fix: name a port that is free"
        ):
            metrics.serve(server.port)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=30)


@pytest.mark.parametrize("port", [-1, 70000])
def test_a_port_that_is_none_is_refused(metrics, port):
    with pytest.raises(ArgumentValueError, match="Fix: name a port that is free, or 0"):
        metrics.serve(port)


def test_without_the_library_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(
        BackendUnavailable, match=r"prometheus-client is not installed\. Fix: pip install 'vyre\[metrics\]'"
    ):
        vyre.metrics()


JOB = """
import sys
import numpy as np
from saxpy import saxpy
print(sys.argv[1:], __name__)
saxpy.on("cpu")(2.0, np.ones(9, np.float32), np.ones(9, np.float32))
print("ran", flush=True)
sys.stdin.readline()
raise SystemExit(3)
"""


def test_a_script_is_run_and_its_metrics_are_served(files):
    (files / "job.py").write_text(JOB)
    words = [sys.executable, "-m", "vyre", "serve", "--metrics", "0", "job.py", "--", "--fast", "1"]
    with started(words, cwd=files, stdin=subprocess.PIPE) as job:
        url = job.stderr.readline().strip().removeprefix("metrics at ")
        assert job.stdout.readline() == "['--fast', '1'] __main__\n"
        assert job.stdout.readline() == "ran\n"
        with urllib.request.urlopen(url, timeout=30) as answer:
            found = samples(answer.read().decode())
        assert found["vyre_dispatch_seconds_count", (("backend", "cpu"), ("label", ""))] == 1
        job.communicate("\n", timeout=60)
    assert job.returncode == 3


def test_a_script_that_fails_shows_where(files, capsys, monkeypatch):
    monkeypatch.setattr(module, "_metrics", None)
    (files / "job.py").write_text("def f():\n    raise ValueError('no')\n\nf()\n")
    assert cli_tool.inside("serve", "--metrics", "0", "job.py") == 1
    said = capsys.readouterr().err
    assert 'File "job.py", line 4' in said
    assert said.endswith("ValueError: no\n")
    assert "runpy" not in said
    (files / "job.py").write_text("print('mine')")
    told = document(capsys, ServeDocument, "serve", "--metrics", "0", "job.py")
    assert told["url"].startswith("http://127.0.0.1:")
    assert told["exit_code"] == 0
    (files / "job.py").write_text("raise SystemExit('why')")
    assert cli_tool.inside("serve", "--metrics", "0", "job.py") == 1
    assert capsys.readouterr().err.endswith("why\n")


def test_what_cannot_be_served_is_said(files, capsys):
    assert "there is nothing to serve" in refused(capsys, "serve", "saxpy.py")
    assert "there is no file" in refused(capsys, "serve", "--metrics", "0", "absent.py")
