"""`vyre bench`: every backend in turn, with intervals, and whether the bytes agree."""

import json
import statistics

import pytest

import vyre
from vyre.cli.commands import bench
from vyre.cli.commands.bench import Document, median_with_interval

from ...support import cli_tool
from ...support.cli_tool import command, document, inside, refused

GIVEN = ("-i", "alpha=2", "-i", "x=random:1000", "-i", "y=random:1000")
DEVICES = [
    b.id
    for b in vyre.registered_backends_by_precedence()
    if b.unavailable() is None and b.registration.kind != "oracle"
]


files = cli_tool.files


def test_a_table_is_printed_from_the_shell(files):
    done = command("bench", "saxpy.py", *GIVEN, "--backends", "cpu,reference", "--rounds", "3", cwd=files)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    head, note, titles, *rows = done.stdout.splitlines()
    assert " cores, " in head
    assert "on this machine" in note
    assert titles.split() == ["kernel", "backend", "first", "warm", "interval", "GB/s", "bytes"]
    assert [row.split()[:2] for row in rows] == [["saxpy", "cpu"], ["saxpy", "reference"]]
    assert len({row.split()[-1] for row in rows}) == 1
    assert all(" equal " in row for row in rows)


def test_wrong_words_are_refused_from_the_shell(files):
    done = command("bench", "--backends", "nobody", cwd=files)
    assert (done.returncode, done.stdout) == (1, ""), "as `vyre run --backend nobody` does"
    assert done.stderr.startswith("error: there is no backend nobody [backend='nobody']. Fix: use some of: ")


@pytest.mark.check
def test_the_built_in_kernels_agree_on_every_backend(capsys):
    backends = ",".join([*DEVICES, "reference"])
    found = document(capsys, Document, "bench", "--size", "1000", "--rounds", "2", "--backends", backends)
    assert list(dict.fromkeys(row["kernel"] for row in found["rows"])) == ["xor", "saxpy", "total", "histogram"]
    assert len(found["rows"]) == 4 * len(DEVICES) + 4
    for row in found["rows"]:
        assert (row["error"], row["equal"], row["rounds"]) == (None, True, 2)
        assert 0 < row["low_ns"] <= row["warm_ns"] <= row["high_ns"]
        assert row["first_ns"] > 0
    assert found["machine"]["cores"] >= 1


def test_the_built_in_kernels_compute_what_they_say():
    import numpy as np

    from vyre.cli.parts import bench_kernels as kernels

    for size in (0, 1, 255, 256, 257, 5000):
        x = np.random.default_rng(size).integers(0, 1 << 32, size, np.uint32)
        right = np.bincount(x >> 24, minlength=kernels.BINS)
        if size:
            assert kernels.total.on("cpu")(x, np.zeros(1, np.uint32))[0] == x.sum(dtype=np.uint32)
        assert np.array_equal(kernels.histogram.on("cpu")(x, np.zeros(kernels.BINS, np.uint32)), right)


def test_without_a_list_all_but_the_reference_are_measured(capsys):
    found = document(capsys, Document, "bench", "saxpy.py", *GIVEN, "--rounds", "1")
    assert [row["backend"] for row in found["rows"]] == DEVICES
    assert found["absent"]["reference"] == "only measured when asked for"


def test_backends_take_turns_and_every_round_begins_with_another(capsys, monkeypatch):
    order = []
    run = bench.Request.run
    monkeypatch.setattr(bench.Request, "run", lambda self, kernel: order.append(kernel.backend) or run(self, kernel))
    document(capsys, Document, "bench", "saxpy.py", *GIVEN, "--backends", "cpu,reference", "--rounds", "3")
    assert order == ["cpu", "reference", "cpu", "reference", "reference", "cpu", "cpu", "reference"]


def test_a_backend_that_cannot_run_the_kernel_is_a_row_without_times(capsys):
    if "wgpu" not in DEVICES:
        pytest.skip("needs a backend without f64")
    words = [word for name in ("x", "h", "half", "tiny", "wide") for word in ("-i", f"{name}=random:8")]
    words += ["--backends", "wgpu,cpu", "--rounds", "1"]
    found = document(capsys, Document, "bench", "kernels.py:flags", *words)
    refusing, running = found["rows"]
    assert "f64" in refusing["error"]
    assert (refusing["warm_ns"], refusing["equal"], running["equal"]) == (None, None, True)
    assert inside("bench", "kernels.py:flags", *words) == 0
    said = capsys.readouterr()
    assert "not measured" in said.out
    assert "flags on wgpu: " in said.err


def test_different_bytes_are_exit_code_1(capsys, monkeypatch):
    monkeypatch.setattr(bench, "same_bytes", lambda a, b: a is b)
    words = ["bench", "saxpy.py", *GIVEN, "--backends", "cpu,reference", "--rounds", "1"]
    assert inside(*words) == 1
    assert "DIFFERENT" in capsys.readouterr().out


def test_no_backend_at_all_is_exit_code_1(capsys):
    if "wgpu" not in DEVICES:
        pytest.skip("needs a backend without f64")
    words = [word for name in ("x", "h", "half", "tiny", "wide") for word in ("-i", f"{name}=random:8")]
    found = document(capsys, Document, "bench", "kernels.py:flags", *words, "--backends", "wgpu", code=1)
    assert found["rows"][0]["error"]


def test_where_only_oracles_are_nobody_is_measured(capsys):
    from vyre.driver.selection.registry import isolated

    mine = vyre.BackendRegistration(id="mine", open=lambda device=None: None, kind="oracle")
    with isolated(mine):
        assert "no backend here can be measured" in refused(capsys, "bench", code=1)


@pytest.mark.parametrize(
    "words, text",
    [
        (["--rounds", "0"], "--rounds 0 measures nothing"),
        (["--size", "many"], "--size many: 'many' is not a whole number of 0 or more"),
        (["--input", "x=zeros:3"], "--input needs a FILE"),
        (["--domain", "3"], "--domain needs a FILE"),
        (["--backends", ","], "--backends names no backend"),
        (["nope.py"], "there is no file nope.py"),
        (["saxpy.py"], "saxpy needs alpha, x, y"),
        (["saxpy.py", "-i", "alpha=1", "-i", "x=zeros:3", "-i", "y=zeros:4"], "Fix: pass --sizes out=N"),
    ],
)
def test_wrong_words_are_refused(words, text, capsys):
    assert text in refused(capsys, "bench", *words)


def test_an_error_with_json_is_a_document(capsys):
    assert inside("bench", "--rounds", "0", "--json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["name"] == "ArgumentValueError"


def test_the_interval_holds_the_median_and_shrinks_with_more_rounds():
    few = [90, 95, 100, 105, 110]
    many = few * 40
    for times in (few, many, [7], [1, 1000]):
        median, low, high = median_with_interval(times)
        assert median == int(statistics.median(times))
        assert min(times) <= low <= median <= high <= max(times)
    assert median_with_interval(many)[2] - median_with_interval(many)[1] < 20
    assert median_with_interval(few) == median_with_interval(few)
