"""A trace and a profile have every dispatch that a caller waits for, of every thread, and nothing of the rest."""

import json
import threading
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest

import vyre
from vyre import DispatchConfig, In, InOut, Out, f32, gid, u32
from vyre.cli.commands.profile import Document
from vyre.cli.commands.trace import Document as TraceDocument
from vyre.driver import observers
from vyre.driver.counters import counters
from vyre.driver.observe import trace as module
from vyre.driver.observe.profile import Profile
from vyre.errors import ArgumentValueError, Trap

from ....support import cli_tool
from ....support.cli_tool import document, inside, refused

files = cli_tool.files
IDS = [b.id for b in vyre.registered_backends_by_precedence() if b.unavailable() is None]


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


def checked(path):
    """The events of a file, which are as the format wants them: spans of one line lie inside or beside one another."""
    told = json.loads(path.read_text("utf-8"))
    assert set(told) == {"traceEvents", "displayTimeUnit", "otherData"}
    lines = {}
    for e in told["traceEvents"]:
        assert (type(e["name"]), type(e["pid"]), type(e["tid"])) == (str, int, int)
        if e["ph"] == "M":
            assert e["name"] in ("process_name", "thread_name")
            assert isinstance(e["args"]["name"], str)
            continue
        if e["cat"] == "started":  # which may overlap
            assert e["ph"] in ("b", "e")
            assert type(e["id"]) is int
            continue
        assert e["ph"] == "X"
        assert e["ts"] >= 0 <= e["dur"]
        lines.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"], e))
    for spans in lines.values():
        assert [s[:1] for s in spans] == sorted(s[:1] for s in spans)
        open_until = []
        for begun, ended, _ in spans:
            while open_until and open_until[-1] <= begun + 1e-6:
                open_until.pop()
            assert not open_until or ended <= open_until[-1] + 1e-6
            open_until.append(ended)
    return [e for e in told["traceEvents"] if e["ph"] == "X"], told


@pytest.mark.parametrize("id", IDS)
def test_dispatches_and_compilations_are_in_the_file(tmp_path, id):
    kernel = double.on(id)
    with vyre.trace() as found:
        for _ in range(3):
            assert (kernel(X, config=DispatchConfig(label="here")) == 2 * X).all()
    events, _ = checked(found.write(tmp_path / "t.json"))
    dispatches = [e for e in events if e["cat"] == "dispatch"]
    assert len(dispatches) == 3
    args = dispatches[0]["args"]
    assert (args["backend"], args["label"], args["failed"]) == (id, "here", False)
    assert (args["input_bytes"], args["output_bytes"]) == (X.nbytes, X.nbytes)
    assert {e["name"] for e in dispatches} == {"double"}
    device = [e for e in events if e["cat"] == "device"]
    assert all(e["args"]["device_ns"] > 0 and e["args"]["quality"] for e in device)
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in pairwise(device))


def test_a_compilation_says_where_the_code_came_from(tmp_path):
    with vyre.acquire("cpu") as backend, vyre.trace() as found:
        backend.dispatch(double.program, [X])
        backend.dispatch(double.program, [X])
    events, _ = checked(found.write(tmp_path / "t.json"))
    assert [(e["name"], e["args"]["tier"]) for e in events if e["cat"] == "compile"] == [("compile double", "compiled")]
    assert len([e for e in events if e["cat"] == "dispatch"]) == 2


def test_every_thread_has_its_line(tmp_path):
    def work():
        for _ in range(10):
            double.on("cpu")(X)

    with vyre.trace() as found:
        workers = [threading.Thread(target=work, name=f"worker {k}") for k in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    events, told = checked(found.write(tmp_path / "t.json"))
    assert len([e for e in events if e["cat"] == "dispatch"]) == 40
    names = {e["args"]["name"] for e in told["traceEvents"] if e["name"] == "thread_name"}
    assert names >= {f"worker {k}" for k in range(4)}


def test_what_fails_and_what_is_not_timed_is_told(tmp_path):
    compiled = vyre.compile(double.program, backend="cpu")
    with compiled, vyre.trace() as found:
        compiled.dispatch_async([X]).result()
        with pytest.raises(Trap):
            guarded.on("cpu")(np.full(3, 7, np.uint32))
    events, told = checked(found.write(tmp_path / "t.json"))
    assert [e["args"]["failed"] for e in events if e["cat"] == "dispatch"] == [True]
    assert [e["ph"] for e in told["traceEvents"] if e.get("cat") == "started"] == ["b", "e"]
    assert told["otherData"] == {"dropped": 0}


def test_started_dispatches_that_overlap_are_timed_from_start_to_result(tmp_path):
    compiled = vyre.compile(double.program, backend="cpu")
    with compiled, vyre.trace() as trace, vyre.profile() as profile:
        first, second = compiled.dispatch_async([X]), compiled.dispatch_async([X], DispatchConfig(label="second"))
        first.result()
        second.result()
    _, told = checked(trace.write(tmp_path / "t.json"))
    started = [e for e in told["traceEvents"] if e.get("cat") == "started"]
    assert [e["ph"] for e in started] == ["b", "e", "b", "e"]
    assert [e["args"].get("label") for e in started] == [None, None, "second", None]
    (row,) = profile.rows()
    assert (row.calls, row.nbytes) == (2, 4 * X.nbytes)


@pytest.mark.parametrize("place", ["host", "device"])
def test_each_call_of_a_sequence_is_one_that_is_timed(place, monkeypatch):
    monkeypatch.setenv("VYRE_FUSION", "no")
    twice = vyre.sequence(lambda x: double(double(x))).on("cpu")
    x = X if place == "host" else vyre.to_device(X, "cpu")
    with vyre.profile() as found:
        for _ in range(3):
            twice(x)
    (row,) = [row for row in found.rows() if row.calls]
    assert (row.program, row.calls, row.failed) == ("double", 3, 0)
    assert row.ns > 0


def test_a_call_of_a_sequence_that_traps_is_counted_as_failed():
    before = counters()
    with pytest.raises(Trap):
        vyre.sequence(lambda x: guarded(x)).on("cpu")(np.full(3, 7, np.uint32))
    after = counters()
    names = ("resident_dispatches", "failed_dispatches")
    assert [after[name] - before[name] for name in names] == [1, 1]


def test_nothing_is_recorded_outside_the_block_and_recordings_may_overlap():
    double.on("cpu")(X)
    before = observers.watching()
    with vyre.trace() as outer:
        double.on("cpu")(X)
        with Profile(quiet=True) as inner:
            double.on("cpu")(X)
        double.on("cpu")(X)
    double.on("cpu")(X)
    assert [sum(not s.tier for s in r.spans) for r in (outer, inner)] == [3, 1]
    assert observers.watching() == before
    with pytest.raises(ArgumentValueError, match=r"begun before\. Fix: make another one"), outer:
        pass


def test_a_trace_holds_so_many_spans(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "MOST_SPANS", 2)
    double.on("cpu")(X)
    with vyre.trace() as found:
        for _ in range(5):
            double.on("cpu")(X)
    assert (len(found.spans), found.dropped) == (2, 3)
    _, told = checked(found.write(tmp_path / "t.json"))
    assert told["otherData"]["dropped"] == 3


# ---- where the time went --------------------------------------------------------------------------------------------


def test_a_profile_adds_up(capsys):
    with vyre.profile() as found:
        for _ in range(4):
            double.on("cpu")(X)
            double.on("reference")(X)
    rows = found.rows()
    assert {(r.program, r.backend, r.calls, r.nbytes) for r in rows} == {
        ("double", "cpu", 4, 8 * X.nbytes), ("double", "reference", 4, 8 * X.nbytes),
    }  # fmt: skip
    assert sum(r.share for r in rows) == pytest.approx(1)
    assert [r.share for r in rows] == sorted((r.share for r in rows), reverse=True)
    assert all(r.ns > 0 and r.gigabytes_per_s == r.nbytes / r.ns for r in rows)
    said = capsys.readouterr().out
    assert said == f"{found}\n"
    assert said.split()[:4] == ["kernel", "backend", "calls", "time"]
    assert "the block took " in said


def test_a_profile_of_nothing_is_empty(capsys):
    with vyre.profile() as found:
        pass
    assert found.rows() == []
    assert capsys.readouterr().out.startswith("kernel")


class Page(HTMLParser):
    """What a page would load, and the tags that are open."""

    def __init__(self):
        super().__init__()
        self.loads, self.open, self.texts = [], [], []

    def handle_starttag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in ("src", "href", "srcset", "data")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_the_page_loads_nothing_and_shows_names_as_text(tmp_path):
    def named(x: In[f32], out: Out[f32]) -> None:
        if gid.x < len(out):
            out[gid.x] = x[gid.x]

    odd = vyre.kernel(named).program.called("<script>alert(1)</script>")
    with Profile(quiet=True) as found, vyre.acquire("cpu") as backend:
        backend.dispatch(odd, [X])
    text = found.write(tmp_path / "p.html").read_text("utf-8")
    page = Page()
    page.feed(text)
    assert page.loads == []
    assert page.open == []
    assert "<script" not in text
    assert "<script>alert(1)</script>" in page.texts
    assert "color-scheme: light dark" in text
    assert "overflow-x: auto" in text
    assert 'content="width=device-width' in text


def test_a_file_that_cannot_be_written_is_said(tmp_path):
    with vyre.trace() as found:
        pass
    with pytest.raises(ArgumentValueError, match=r"cannot be written.*Fix: name another file"):
        found.write(tmp_path / "no" / "where.json")


# ---- commands -------------------------------------------------------------------------------------------------------

JOB = """
import sys
import numpy as np
from saxpy import saxpy
print("given", sys.argv[1:])
for _ in range(3):
    saxpy.on("cpu")(2.0, np.ones(9, np.float32), np.ones(9, np.float32))
raise SystemExit(int(sys.argv[1]))
"""


def test_a_script_is_traced(files, capsys):
    (files / "job.py").write_text(JOB)
    assert inside("trace", "job.py", "-o", "t.json", "--", "0") == 0
    said = capsys.readouterr()
    assert said.out == "given ['0']\n"
    assert " dispatches and compilations in t.json" in said.err
    events, _ = checked(files / "t.json")
    assert len([e for e in events if e["name"] == "saxpy"]) >= 3
    assert inside("trace", "job.py", "--", "3") == 3
    checked(files / "trace.json")
    capsys.readouterr()
    told = document(capsys, TraceDocument, "trace", "job.py", "0")
    assert (told["trace"], told["dropped"], told["exit_code"]) == ("trace.json", 0, 0)
    assert told["spans"] >= 3


def test_a_script_that_fails_is_traced_as_far_as_it_came(files, capsys):
    (files / "job.py").write_text(JOB.replace("raise SystemExit", "raise ValueError"))
    assert inside("trace", "job.py", "-o", "t.json", "--", "7") == 1
    assert "ValueError: 7" in capsys.readouterr().err
    assert len([e for e in checked(files / "t.json")[0] if e["name"] == "saxpy"]) >= 3


def test_a_script_is_profiled(files, capsys):
    (files / "job.py").write_text(JOB)
    told = document(capsys, Document, "profile", "job.py", "0", "--html", "p.html")
    assert [(r["program"], r["backend"], r["calls"], r["failed"]) for r in told["rows"]] == [("saxpy", "cpu", 3, 0)]
    assert told["exit_code"] == 0
    assert "saxpy" in (files / "p.html").read_text("utf-8")
    assert inside("profile", "job.py", "--", "2") == 2
    said = capsys.readouterr()
    assert said.out.startswith("kernel")
    assert "given ['2']" in said.err


def test_what_cannot_be_recorded_is_said(files, capsys):
    for word in ("trace", "profile"):
        assert "there is no file absent.py" in refused(capsys, word, "absent.py")
        said = refused(capsys, word, "job.py", "--epochs", "3")
        assert "no such option: --epochs. Fix: write -- before what the script gets" in said
    assert not (files / "trace.json").exists()
    assert "no file can be there" in refused(capsys, "trace", "saxpy.py", "-o", "no/where.json")
    assert "no file can be there" in refused(capsys, "profile", "saxpy.py", "--html", "no/where.html")
