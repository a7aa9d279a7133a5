"""A divergence leaves a file that tells the same story anywhere, without the backend that was wrong."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, barrier, f32, gid, lid, shared, u32
from vyre.backends.cpu import REGISTRATION as CPU
from vyre.backends.reference import REGISTRATION as REFERENCE
from vyre.cli.commands.bench import Document as BenchDocument
from vyre.cli.commands.replay import Document
from vyre.cli.commands.run import Document as RunDocument
from vyre.driver import EvidenceBundle
from vyre.driver.guard.compile import compile as compiled
from vyre.driver.selection.registry import isolated
from vyre.driver.verify import evidence
from vyre.driver.verify.evidence import CANNOT, DIFFERENT, SAME, replay
from vyre.driver.verify.shadow import ConformanceMatrix, Diverged, check_matrix
from vyre.errors import ArgumentTypeError
from vyre.foundation.ir.ops import BinaryOp

from ....support import cli_tool
from ....support.cli_tool import document, inside, parsed, refused
from ....support.mistaken import contracted, mistaken, other_operator, stale, tail_lost, without_barriers

files = cli_tool.files


@vyre.kernel(workgroup=8)
def double(x: In[u32], out: Out[u32]) -> None:
    if gid.x < len(out):
        out[gid.x] = x[gid.x] + x[gid.x]


@vyre.kernel(workgroup=8)
def triple(x: In[u32], out: Out[u32]) -> None:
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * 3


@vyre.kernel(workgroup=8)
def polynomial(x: In[f32], out: Out[f32]) -> None:
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * 3.9 + 0.1


@vyre.kernel(workgroup=64)
def reversed_groups(x: In[u32], out: Out[u32]) -> None:
    tile = shared(u32, 64)
    tile[lid.x] = x[gid.x]
    barrier()
    out[gid.x] = tile[63 - lid.x]


@vyre.kernel(workgroup=8)
def at_most_nine(x: InOut[u32]) -> None:
    if gid.x < len(x):
        assert x[gid.x] < 10, "ten"
        x[gid.x] += 1


WORDS = np.arange(1, 20, dtype=np.uint32)
FLOATS = np.linspace(0.1, 1, 19, dtype=np.float32)
PLANTED = {
    "wrong op": ([(double, WORDS)], {"change": other_operator(BinaryOp.ADD, BinaryOp.SUB)}),
    "wrong tail": ([(double, WORDS)], {"twist": tail_lost}),
    "stale cache": ([(double, WORDS), (triple, WORDS)], {"change": stale()}),
    "contraction": ([(polynomial, FLOATS)], {"change": contracted}),
    "race": ([(reversed_groups, np.arange(1, 129, dtype=np.uint32))], {"change": without_barriers, "inner": CPU}),
}
ADD_IS_SUB = {"change": other_operator(BinaryOp.ADD, BinaryOp.SUB)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where evidence goes."""
    monkeypatch.setenv("VYRE_EVIDENCE", str(tmp_path / "kept"))
    monkeypatch.setattr(evidence, "_saved", set())
    return tmp_path / "kept"


def diverged(planted, *calls):
    """The error of the last call on a backend with this mistake, under a shadow."""
    with isolated(mistaken(**planted), REFERENCE), vyre.config(shadow="1"):
        *before, (kernel, x) = calls
        for each, given in before:
            each(given)
        with pytest.raises(Diverged) as e:
            kernel(x)
        return e.value


REPLAYS = """
import sys
from vyre.cli import app
for file in sys.argv[1:]:
    assert app.main(["replay", file, "--json", "--on", "reference"]) == 1
    print(end=chr(0))
"""


@pytest.mark.row("A-SH-7")
def test_every_divergence_is_reproduced_by_a_fresh_process_that_lacks_the_backend(folder):
    errors = {name: diverged(planted, *calls) for name, (calls, planted) in PLANTED.items()}
    paths = [e.context["evidence"] for e in errors.values()]
    assert {e.fix for e in errors.values()} == {f"run it again where you like: vyre replay {path}" for path in paths}
    done = subprocess.run([sys.executable, "-c", REPLAYS, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = [parsed(text, Document) for text in done.stdout.split("\0")[:-1]]
    for (name, error), told in zip(errors.items(), printed, strict=True):
        event = error.event
        bundle = EvidenceBundle.read(error.context["evidence"])
        assert (bundle.outcome.by, bundle.outcome.outputs) == ("mistaken", event.backend_output), name
        assert bundle.expected.outputs == event.reference_output, name
        facts = event.difference.facts
        assert (told["verdict"], told["as_expected"]) == (DIFFERENT, True), name
        assert told["difference"] == {
            "kind": "value", "output": "out", "element": facts["element"],
            "found": facts["expected"], "expected": facts["found"],
        }, name  # fmt: skip
        assert told["notes"] == [], name


def test_on_the_backend_that_was_wrong_the_same_comes_out(folder):
    path = diverged(ADD_IS_SUB, (double, WORDS)).context["evidence"]
    bundle = EvidenceBundle.read(path)
    with isolated(mistaken(**ADD_IS_SUB), REFERENCE):
        again, right = replay(bundle, "mistaken"), replay(bundle, "reference")
    assert (again.verdict, again.as_expected, again.outcome) == (SAME, False, bundle.outcome)
    assert (right.verdict, right.as_expected) == (DIFFERENT, True)
    assert str(right) == "different: element 0 of out: reference gives 2 (0x00000002), mistaken gave 0 (0x00000000)"
    assert "element 0 of out" in right._repr_html_()


def test_what_is_captured_and_replayed_is_not_compared(folder, monkeypatch):
    monkeypatch.setenv("VYRE_SHADOW", "1")
    with isolated(mistaken(**ADD_IS_SUB), REFERENCE):
        bundle = double.on("mistaken").evidence(WORDS)
        assert bundle.outcome.error is None
        assert replay(bundle, "mistaken").verdict == SAME
    assert not folder.exists()


def test_without_the_setting_nothing_is_written(files):
    before = set(files.iterdir())
    error = diverged(ADD_IS_SUB, (double, WORDS))
    assert "evidence" not in error.context
    assert set(files.iterdir()) == before


def test_a_divergence_that_is_repeated_has_one_file_and_a_process_writes_so_many(folder, monkeypatch):
    monkeypatch.setattr(evidence, "MOST_SAVED", 2)
    for _ in range(3):
        assert "evidence" in diverged(ADD_IS_SUB, (double, WORDS)).context
    assert len(list(folder.iterdir())) == 1
    assert "evidence" in diverged(ADD_IS_SUB, (double, WORDS[:4])).context
    assert "evidence" not in diverged(ADD_IS_SUB, (double, WORDS[:5])).context
    assert len(list(folder.iterdir())) == 2


def test_evidence_that_cannot_be_written_is_logged_and_the_divergence_is_told(tmp_path, monkeypatch, caplog):
    (tmp_path / "taken").write_text("a file, and no folder")
    monkeypatch.setenv("VYRE_EVIDENCE", str(tmp_path / "taken"))
    error = diverged(ADD_IS_SUB, (double, WORDS))
    assert "evidence" not in error.context
    assert any("the evidence of a difference was not saved" in r.getMessage() for r in caplog.records)


def test_a_case_of_a_matrix_that_differs_leaves_evidence(folder):
    cases = ConformanceMatrix()
    cases.push("small", [WORDS])
    with isolated(mistaken(**ADD_IS_SUB), REFERENCE):
        pipe = compiled(vyre.acquire("mistaken"), double.program)
        (error,) = check_matrix(pipe, double.program, vyre.acquire("reference").dispatch, cases).errors
    assert EvidenceBundle.read(error.context["evidence"]).outcome.outputs == error.event.backend_output


def test_an_event_without_its_program_is_no_evidence():
    error = diverged(ADD_IS_SUB, (double, WORDS))
    with pytest.raises(ArgumentTypeError, match=r"does not have its program.*Fix: take it from the error"):
        evidence.evidence_of(replace(error.event, program=None))


# ---- verdicts -------------------------------------------------------------------------------------------------------


def captured(kernel=double, x=WORDS, on="reference"):
    return kernel.on(on).evidence(x)


def test_what_every_backend_gives_is_the_same_on_every_backend():
    bundle = captured(polynomial, FLOATS)
    for each in vyre.registered_backends_by_precedence():
        if each.unavailable() is None:
            assert replay(bundle, each.id).verdict == SAME, each.id
    assert replay(bundle).backend == vyre.select(polynomial.program).backend.id


def test_an_error_is_the_same_where_the_same_error_comes_out():
    trapped = captured(at_most_nine, WORDS)
    assert trapped.outcome.error["name"] == "Trap"
    assert replay(trapped, "cpu").verdict == SAME
    quiet = replace(trapped, outcome=captured(at_most_nine, WORDS[:5]).outcome)
    told = replay(quiet, "cpu")
    assert told.verdict == DIFFERENT
    assert told.difference is None
    assert told.why.startswith("cpu gives Trap: the program trapped")
    assert "gave 1 outputs, 20 bytes" in told.why


def test_other_numbers_and_lengths_of_outputs_are_told():
    bundle = captured()
    shorter = replace(bundle, outcome=replace(bundle.outcome, outputs=(b"\0" * 8,)))
    assert replay(shorter).why.startswith("the length of out: cpu gives 76, reference gave 8")
    none = replace(bundle, outcome=replace(bundle.outcome, outputs=()))
    assert replay(none).why.startswith("the number of the outputs: cpu gives 1, reference gave 0")


def test_what_cannot_be_run_says_why():
    bundle = captured()
    assert replay(bundle.without_inputs()).why.startswith("the inputs were left out of the evidence")
    absent = replay(bundle, "nowhere")
    assert absent.verdict == CANNOT
    assert "'nowhere' is not linked" in absent.why
    assert str(absent).startswith("cannot: ")


def test_why_outputs_may_differ_although_no_backend_is_wrong_is_noted():
    bundle = captured()
    other = replace(bundle, outcome=replace(bundle.outcome, outputs=(b"\0" * 76,)), numerics_version=0)
    assert replay(other).notes == ("defined results changed since: numerics version 0 then, 1 now",)

    @vyre.kernel(workgroup=8)
    def last(x: In[u32], out: Out[u32]) -> None:
        out[0] = x[gid.x]

    found = last.on("reference").evidence(WORDS, sizes={"out": 1})
    wrong = replace(found, outcome=replace(found.outcome, outputs=(b"\xff" * 4,)))
    assert replay(wrong, "reference").notes[0].startswith("the order of invocations may be why: ")


# ---- commands -------------------------------------------------------------------------------------------------------


def test_a_run_is_written_and_replayed_by_commands(files, capsys):
    words = ["run", "saxpy.py", "-i", "alpha=2", "-i", "x=arange:9", "-i", "y=ones:9", "-b", "cpu"]
    told = document(capsys, RunDocument, *words, "--check", "--evidence", "a.evidence")
    assert told["evidence"] == "a.evidence"
    bundle = EvidenceBundle.read("a.evidence")
    assert (bundle.outcome.by, bundle.expected.by) == ("cpu", "reference")
    assert bundle.expected.outputs == bundle.outcome.outputs
    assert bundle.program.name == "saxpy"
    found = document(capsys, Document, "replay", "a.evidence", "--on", "reference")
    assert (found["verdict"], found["backend"], found["as_expected"]) == (SAME, "reference", True)
    assert inside("replay", "a.evidence") == 0
    said = capsys.readouterr().out
    assert said.endswith("same\nthe same as reference gave then\n")
    assert "there: cpu (" in said
    assert inside(*words, "--evidence", "a.evidence") == 0
    assert "evidence: vyre replay a.evidence\n" in capsys.readouterr().out


def test_a_run_that_fails_leaves_evidence_of_its_error(files, capsys):
    (files / "k.py").write_text(
        "import vyre\nfrom vyre import InOut, gid, u32\n\n@vyre.kernel\ndef k(x: InOut[u32]):\n"
        "    if gid.x < len(x):\n        assert x[gid.x] < 3, 'three'\n        x[gid.x] += 1\n"
    )
    assert inside("run", "k.py", "-i", "x=arange:5", "--evidence", "a.evidence") == 1
    assert EvidenceBundle.read("a.evidence").outcome.error["message"].endswith("three")
    capsys.readouterr()
    assert inside("replay", "a.evidence", "--on", "reference") == 0
    assert "gives Trap: the program trapped" in capsys.readouterr().out


def test_a_difference_is_told_with_exit_code_one(files, capsys):
    bundle = captured()
    replace(bundle, outcome=replace(bundle.outcome, outputs=(b"\0" * 76,)), numerics_version=0).write("a.evidence")
    assert inside("replay", "a.evidence", "--on", "cpu") == 1
    said = capsys.readouterr().out
    assert "different: element 0 of out: cpu gives 2 (0x00000002), reference gave 0 (0x00000000)\n" in said
    assert "note: defined results changed since" in said
    absent = document(capsys, Document, "replay", "a.evidence", "--on", "nowhere", code=1)
    assert (absent["verdict"], absent["difference"], absent["as_expected"]) == (CANNOT, None, None)


def test_words_that_make_no_sense_are_refused(files, capsys):
    assert "cannot be read" in refused(capsys, "replay", "absent.evidence")
    assert "is no evidence of vyre" in refused(capsys, "replay", "saxpy.py")
    run = ["run", "saxpy.py", "-i", "alpha=2", "-i", "x=arange:9", "-i", "y=ones:9"]
    assert "no file can be there" in refused(capsys, *run, "--evidence", "no/where.evidence")
    assert "is a folder or a device" in refused(capsys, *run, "--evidence", "/dev/null")


def test_a_bench_whose_bytes_differ_keeps_both(folder, capsys):
    with isolated(mistaken(twist=tail_lost), REFERENCE):
        told = document(
            capsys,
            BenchDocument,
            "bench",
            "--backends",
            "reference,mistaken",
            "--rounds",
            "1",
            "--size",
            "1001",
            code=1,
        )
    rows = [row for row in told["rows"] if row["equal"] is False]
    assert rows
    assert all(row["backend"] == "mistaken" for row in rows)
    found = EvidenceBundle.read(rows[0]["evidence"])
    assert (found.outcome.by, found.expected.by) == ("mistaken", "reference")
    assert found.outcome.outputs != found.expected.outputs
