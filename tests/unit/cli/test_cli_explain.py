"""`vyre explain`: why a run would go as it goes, and what an error code means."""

import json

import pytest

import vyre
from vyre.cli.commands.explain import Codes, Cold, Plan
from vyre.cli.parts import cold
from vyre.cli.parts.codes import ADVICE, error_classes, is_code, meanings
from vyre.cli.parts.cold import PARTS
from vyre.errors import DiagCode, ErrorCode

from ...support import cli_tool
from ...support.cli_tool import command, document, inside, refused

GIVEN = ("-i", "alpha=2", "-i", "x=zeros:1000", "-i", "y=zeros:1000")
BACKENDS = [b.id for b in vyre.registered_backends_by_precedence() if b.unavailable() is None]


files = cli_tool.files


# ---- plans ----------------------------------------------------------------------------------------------------------


def test_the_plan_of_a_run_is_shown_from_the_shell(files):
    done = command("explain", "saxpy.py", *GIVEN, "-b", "cpu", "--timeout", "2.5", cwd=files)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("saxpy from saxpy.py would run on cpu")
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert "--backend cpu asks for it" in lines["backend"]
    assert "16x1x1" in lines["grid"]
    assert "2.5 s" in lines["deadline"]
    assert "1000 x f32" in done.stdout


def test_an_unknown_code_is_refused_from_the_shell(files):
    done = command("explain", "1099", cwd=files)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: there is no error code 1099. Fix: did you mean ")


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_dispatched(backend, capsys):
    from vyre.driver.counters import counters

    before = counters()
    found = document(capsys, Plan, "explain", "saxpy.py", *GIVEN, "-b", backend)
    after = counters()
    assert found["backend"] == found["plan"]["backend"] == backend
    assert {d["what"] for d in found["plan"]["decisions"]} >= {"backend", "workgroup", "grid", "launch", "deadline"}
    assert [b["name"] for b in found["plan"]["bindings"]] == ["alpha", "x", "y", "out"]
    assert found["plan"]["output_bytes"] == 4000
    assert found["determinism"] == "proved"
    dispatched = [name for name in before if "dispatches" in name and before[name] != after[name]]
    assert dispatched == []


@pytest.mark.parametrize(
    "grid, found",
    [("16", "proved"), ("16,1,1", "proved"), ("16,2", "unproved"), ("16,1,2", "unproved"), ("0", "proved")],
)
def test_a_grid_is_proved_or_not(grid, found, capsys):
    """Every row computes the same elements."""
    told = document(capsys, Plan, "explain", "saxpy.py", *GIVEN, "-b", "cpu", "--grid", grid)
    assert told["determinism"] == found
    reason = next(d["reason"] for d in told["plan"]["decisions"] if d["what"] == "determinism")
    store = f"saxpy.py:{cli_tool.SAXPY_STORE}"
    assert reason == {
        "16": "for grids with one workgroup along y and z",
        "16,1,1": "for grids with one workgroup along y and z",
        "0": "nothing runs",
    }.get(grid, f"store and store of two invocations may meet in 'out', at {store}")


def test_without_a_backend_the_others_are_told(capsys, monkeypatch):
    monkeypatch.delenv("VYRE_BACKEND", raising=False)
    found = document(capsys, Plan, "explain", "saxpy.py", *GIVEN)
    assert found["why"] == "the first that is available and runs it"
    assert "reference" in {o["backend"] for o in found["others"]}
    assert inside("explain", "saxpy.py", *GIVEN) == 0
    assert "not reference: " in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, text",
    [
        (["saxpy.py"], "saxpy needs alpha, x, y. Fix: add --input alpha=1"),
        (["kernels.py"], "has 7 kernels"),
        (["nope.py", *GIVEN], "there is no file nope.py"),
        (["no/such", *GIVEN], "there is no file no/such"),
        (["saxpy.py", "-i", "alpha=1", "-i", "x=zeros:3", "-i", "y=zeros:4"], "Fix: pass --sizes out=N"),
        (["V012", "-i", "x=zeros:3"], "--input is for a run and V012 is not a file"),
    ],
)
def test_wrong_words_are_refused(words, text, capsys):
    assert text in refused(capsys, "explain", *words)


def test_a_backend_that_is_not_there_is_said(capsys):
    assert "backend 'nobody' is not linked" in refused(capsys, "explain", "saxpy.py", *GIVEN, "-b", "nobody", code=1)


def test_an_error_with_json_is_a_document(capsys):
    assert inside("explain", "V999", "--json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["message"] == "there is no error code V999"


# ---- codes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["1009", "DeadlineExceeded", "deadlineexceeded"])
def test_a_class_goes_by_its_number_and_by_its_name(code, capsys):
    (found,) = document(capsys, Codes, "explain", code)["codes"]
    assert (found["name"], found["number"], found["retryable"]) == ("DeadlineExceeded", 1009, False)
    assert found["link"].endswith("#deadlineexceeded")
    assert inside("explain", code) == 0
    said = capsys.readouterr().out
    assert said.startswith("DeadlineExceeded (1009)\n")
    for line in ("meaning: ", "typical cause: ", "Fix: ", "more: "):
        assert f"\n{line}" in said


@pytest.mark.parametrize("name", ["ArgumentTypeError", "argumentvalueerror", "WireUnknownOp"])
def test_a_class_is_explained_without_a_code_that_says_nothing(name, capsys):
    assert inside("explain", name) == 0
    said = capsys.readouterr().out
    assert said.lower().startswith(f"{name.lower()} (1999{', e-wire-unknown-op' if name == 'WireUnknownOp' else ''})")


def test_a_number_that_classes_share_lists_them_all(capsys):
    found = document(capsys, Codes, "explain", "1005")["codes"]
    assert [m["name"] for m in found] == ["DispatchFailed", "RaceDetected", "StepLimitExceeded", "Trap"]


@pytest.mark.parametrize("code", ["V012", "v012", "E-WIRE-VERSION", "E_WIRE_VERSION", "W-DEPREC-001"])
def test_a_diagnostic_code_is_explained(code, capsys):
    (found,) = document(capsys, Codes, "explain", code)["codes"]
    known = DiagCode(code.upper().replace("_", "-"))
    assert (found["code"], found["meaning"], found["fix"]) == (known.value, known.description, known.fix)
    assert found["severity"] == known.severity


def test_what_may_work_later_is_said(capsys):
    assert inside("explain", "DeviceOutOfMemory") == 0
    assert "the same call may work later" in capsys.readouterr().out


def test_every_error_class_number_and_code_is_explained():
    assert set(error_classes()) == set(ADVICE)
    for name in error_classes():
        (found,) = meanings(name)
        assert all((found["meaning"], found["cause"], found["fix"]))
    for number in ErrorCode:
        assert meanings(str(int(number)))
    for code in DiagCode:
        assert is_code(code.value)
        assert meanings(code.value)[0]["fix"]


def test_every_link_leads_to_an_anchor(request):
    page = (request.config.rootpath / "docs" / "error-codes.md").read_text("utf-8")
    for code in (*error_classes(), *(c.value for c in DiagCode)):
        (found,) = meanings(code)
        path, _, anchor = found["link"].partition("#")
        assert path == "docs/error-codes.md"
        assert f'<a id="{anchor}"></a>' in page


@pytest.mark.parametrize(
    "code, text",
    [
        ("V0", "did you mean V008 or V009 or V010?"),
        ("DeadlineExeeded", "did you mean DeadlineExceeded"),
        ("1", "did you mean 1001"),
        ("zzzzzz", "see docs/error-codes.md for all of them"),
    ],
)
def test_a_code_that_does_not_exist_is_refused_with_the_nearest(code, text, capsys):
    assert text in refused(capsys, "explain", code)


def test_a_code_that_is_kept_free_says_so(capsys):
    from vyre.errors import RESERVED

    assert f"{RESERVED[0]} is kept free" in refused(capsys, "explain", RESERVED[0])


def test_a_file_named_like_a_code_is_the_file(capsys, files):
    (files / "V012").write_text('program workgroup(1, 1, 1) {\n  buffer out @0 write u32\n  region "r" {\n  }\n}\n')
    found = document(capsys, Plan, "explain", "V012", "--sizes", "out=3", "-b", "reference")
    assert found["kernel"] == "V012"


# ---- first calls ----------------------------------------------------------------------------------------------------


@pytest.mark.check
def test_a_first_call_is_measured_by_part_in_two_fresh_processes(files, capsys):
    found = document(capsys, Cold, "explain", "saxpy.py", *GIVEN, "-b", "cpu", "--cold")
    assert [(run["process"], run["tier"]) for run in found["runs"]] == [("first", "compiled"), ("second", "disk")]
    for run in found["runs"]:
        assert (run["backend"], list(run["parts"])) == ("cpu", list(PARTS))
        assert all(took["processor_ms"] >= 0 and took["ms"] >= 0 for took in run["parts"].values())
        assert run["all"]["ms"] == pytest.approx(sum(took["ms"] for took in run["parts"].values()), abs=0.1)
        assert run["next_call_ms"] > 0


@pytest.mark.check
@pytest.mark.parametrize("backend", [b for b in BACKENDS if b != "cpu"])
def test_a_first_call_is_measured_on_every_backend(files, backend):
    done = command("explain", "saxpy.py", *GIVEN, "-b", backend, "--cold", cwd=files, VYRE_BACKEND="reference")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"saxpy from saxpy.py on {backend}")
    columns = "first process, code from the compiler"
    assert columns in done.stdout
    for said in (*PARTS.values(), "in all, to the first result", "a call after it"):
        assert f"\n{said} " in done.stdout


def test_what_a_fresh_process_cannot_do_is_said(files, capsys, monkeypatch):
    (files / "fails.py").write_text(FAILS)
    said = refused(capsys, "explain", "fails.py", "-i", "x=zeros:10", "-b", "cpu", "--cold", code=1)
    assert "the fresh process failed: " in said
    assert "only at home" in said
    monkeypatch.setattr(cold, "_CHILD", "raise SystemExit('it crashed')")
    said = refused(capsys, "explain", "saxpy.py", *GIVEN, "--cold", code=1)
    assert "the fresh process failed: it crashed. Fix: see what `vyre run` says of it" in said
    assert "--cold is for a run and 1009 is not a file" in refused(capsys, "explain", "1009", "--cold")


@pytest.mark.check
def test_what_a_file_prints_and_the_names_of_its_neighbours_change_nothing(files, capsys):
    (files / "json.py").write_text("raise RuntimeError('not this one')\n")
    (files / "loud.py").write_text("print('{}')\n" + (files / "saxpy.py").read_text())
    found = document(capsys, Cold, "explain", "loud.py", *GIVEN, "-b", "cpu", "--cold")
    assert [run["tier"] for run in found["runs"]] == ["compiled", "disk"]


FAILS = """
import sys
import vyre
from vyre import In, Out, f32, gid
if "pytest" not in sys.modules:
    raise RuntimeError("only at home")
@vyre.kernel
def copy(x: In[f32], out: Out[f32]):
    out[gid.x] = x[gid.x]
"""
