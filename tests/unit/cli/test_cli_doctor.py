"""vyre doctor: every finding has a verdict and a fix, and nothing that is broken stops it."""

import os
import time
from pathlib import Path

import pytest

from vyre.cli.commands import doctor
from vyre.cli.parts import examine, machine
from vyre.driver.contract import requirement as checks
from vyre.driver.contract.requirement import Check
from vyre.driver.selection.registry import acquire, registered_backends_by_precedence
from vyre.errors import VyreError

from ...support.cli_plugins import Plugins, shared_cache
from ...support.cli_tool import command, parsed, refused

LIAR = """
import vyre
from vyre.driver.contract.requirement import Check

class Liar(vyre.VyreBackend, contract=1):
    id = "liar"
    capability = vyre.acquire("reference").capability

    def dispatch(self, program, inputs, config=vyre.DispatchConfig(), *, out=None):
        first, *rest = vyre.acquire("reference").dispatch(program, inputs, config)
        return [bytes(first[:-1]) + bytes([first[-1] ^ 1]), *rest]

def findings():
    yield Check("cable", "ok", "it is plugged in")
    yield Check("colour", "warn", "it is grey")
    yield "not a check"
    raise ValueError("that was all")

REGISTRATION = vyre.BackendRegistration(
    id="liar", open=lambda device=None: Liar(), precedence=600, kind="host", checks=findings
)
"""
CRASHES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
HANGS = "print('noise'); import time; time.sleep(60)"
NO_ICD = {
    "OCL_ICD_VENDORS": "/nonexistent",
    "OPENCL_VENDOR_PATH": "/nonexistent",
    "VK_ICD_FILENAMES": "/nonexistent",
    "VK_DRIVER_FILES": "/nonexistent",
    "__EGL_VENDOR_LIBRARY_FILENAMES": "/nonexistent",
}


def examined(tmp_path, *words, **environ):
    """The document of `vyre doctor` in a process, with the exit code; findings by area and name."""
    environ = {"VYRE_CACHE_DIR": str(shared_cache(tmp_path)), **environ}
    done = command("doctor", *words, "--json", cwd=tmp_path, **environ)
    assert done.stderr == ""
    found = parsed(done.stdout, doctor.Document)
    for finding in found["findings"]:
        assert finding["verdict"] in checks.VERDICTS
        assert finding["fix"] or finding["verdict"] == "ok", finding
        assert finding["detail"]
    return found, {(f["area"], f["name"]): f for f in found["findings"]}, done.returncode


# ---- through the entry point ----------------------------------------------------------------------------------------


def test_a_machine_with_everything_is_examined_backend_by_backend(tmp_path):
    found, findings, code = examined(tmp_path)
    assert code == 0
    assert {"cpu", "reference"} <= set(found["working"])
    assert found["preferred"] in found["working"]
    assert ("general", "plain call") not in findings  # there is nothing to say about one that works
    areas = {area for area, _ in findings}
    assert areas == {"general", *(each.id for each in registered_backends_by_precedence())}
    for name in machine.GENERAL:
        assert findings["general", name]["verdict"] == "ok", findings["general", name]
    for id in found["working"]:
        assert findings[id, "parity"]["detail"] == "2048 bytes are those of the reference"
        assert findings[id, "timing"]["verdict"] == "ok"
    assert "processor" in {name for area, name in findings if area == "cpu"}


def test_without_any_icd_the_rest_still_works(tmp_path):
    found, findings, code = examined(tmp_path, VYRE_CACHE_DIR=str(tmp_path / "cache"), **NO_ICD)
    assert code == 0
    assert found["verdict"] == "warn"
    assert found["preferred"] == "cpu"
    icd = findings["opencl", "ICD files"]
    assert (icd["verdict"], icd["detail"]) == ("warn", "no driver announces itself in /nonexistent")
    assert findings["opencl", "available"]["verdict"] == "warn"
    assert findings["wgpu", "ICD files"]["verdict"] == "warn"
    assert findings["cpu", "parity"]["verdict"] == "ok"


def test_broken_plugins_are_named_and_spoil_nothing_else(tmp_path):
    plugins = Plugins(tmp_path)
    plugins.add("broken", "print('noise'); raise RuntimeError('it was never right')", precedence=5)
    plugins.add("crashes", CRASHES)
    plugins.add("leaves", "raise SystemExit(3)")
    plugins.add("liar", LIAR)
    plugins.add("twice", "", package="first")
    plugins.add("twice", "", package="second")
    found, findings, code = examined(tmp_path, **plugins.environ, **NO_ICD)
    assert (code, found["verdict"]) == (1, "fail")
    assert {"cpu", "reference"} <= set(found["working"])
    assert "liar" not in found["working"]

    def said(area, name):
        assert findings[area, name]["verdict"] == "fail"
        return findings[area, name]["detail"]

    assert said("broken", "record") == "loading its record failed: RuntimeError: it was never right"
    assert said("crashes", "record") == "the process that examined it was ended by signal 11"
    assert said("leaves", "record") == "loading its record failed: SystemExit: 3"
    assert said("liar", "parity") == "1 bytes of 2048 differ from the reference"
    assert findings["liar", "cable"]["verdict"] == "ok"
    assert findings["liar", "colour"]["fix"] == "ask the author of the backend"
    assert "backend twice is disabled: it is provided more than once" in said("general", "plugins")
    stopped = [f["detail"] for f in found["findings"] if (f["area"], f["name"]) == ("liar", "checks")]
    assert stopped == ["'not a check' is not a check", "they stopped: ValueError: that was all"]


@pytest.mark.check
def test_a_backend_that_hangs_is_left_alone(tmp_path):
    plugins = Plugins(tmp_path)
    plugins.add("hangs", HANGS)
    _, findings, code = examined(tmp_path, "hangs", "--timeout", "3", **plugins.environ)
    assert code == 1
    assert "no answer within 3 s" in {f["detail"] for (area, _), f in findings.items() if area == "hangs"}


@pytest.mark.check
def test_a_cache_that_cannot_be_written_to_is_said_and_not_needed(tmp_path):
    (tmp_path / "file").touch()
    for folder, why in ((tmp_path / "file" / "cache", "Not a directory"), (Path("/proc/none"), "")):
        done = command("doctor", "cpu", cwd=tmp_path, VYRE_CACHE_DIR=str(folder))
        assert done.returncode == 0
        assert f" {folder} cannot be written to: {why}" in done.stdout
        assert "Fix: set VYRE_CACHE_DIR to a folder of yours; until then every process starts anew" in done.stdout
        assert "Right bytes came from: cpu." in done.stdout


def test_a_wrong_setting_is_named(tmp_path):
    (tmp_path / "vyre.toml").write_text("strict = 'perhaps'\n")
    done = command("doctor", "cpu", "--json", cwd=tmp_path, VYRE_CACHE_DIR=str(shared_cache(tmp_path)))
    found = parsed(done.stdout, doctor.Document)
    fine, finding = [f for f in found["findings"] if f["name"] == "settings"]
    assert (done.returncode, fine["verdict"], finding["verdict"], done.stderr) == (0, "ok", "warn", "")
    assert "vyre.toml" in finding["detail"]
    assert finding["fix"] == "give it true or false, without quotes"


@pytest.mark.check
def test_settings_are_those_of_backends_too_and_a_misspelt_one_is_said(tmp_path):
    _, findings, code = examined(tmp_path, "reference", VYRE_CPU_THREADS="1")
    assert "cpu_threads from VYRE_CPU_THREADS" in findings["general", "settings"]["detail"]
    done = command("doctor", "reference", cwd=tmp_path, VYRE_STRIKT="1", VYRE_QQQQQQQQ="1")
    assert (code, done.returncode) == (0, 0)
    said = " ".join(done.stdout.split())
    assert "VYRE_STRIKT is set and is not a setting Fix: did you mean VYRE_STRICT?" in said
    assert "VYRE_QQQQQQQQ is set and is not a setting Fix: unset it; `vyre config show` lists" in said
    _, findings, code = examined(tmp_path, "reference", VYRE_CPU_THREADS="0")
    assert (code, findings["general", "settings"]["verdict"]) == (1, "fail")


@pytest.mark.check
def test_a_plain_call_that_would_fail_is_a_finding(tmp_path):
    found, findings, code = examined(tmp_path, VYRE_BACKEND="nobody")
    finding = findings["general", "plain call"]
    assert (code, found["preferred"], finding["verdict"]) == (1, None, "fail")
    assert finding["detail"] == "it fails: backend=nobody (VYRE_BACKEND) is not available here"
    assert "cpu" in finding["fix"]


@pytest.mark.check
def test_one_backend_is_examined_alone_and_an_unknown_one_refused(tmp_path, capsys):
    found, findings, code = examined(tmp_path, "reference")
    assert (code, found["working"], {area for area, _ in findings}) == (
        0,
        ["reference"],
        {"general", "reference"},
    )
    found, findings, code = examined(tmp_path, "cpu:7")
    assert (code, found["working"]) == (1, [])
    assert findings["cpu:7", "dispatch"]["detail"] == "backend cpu has no device '7'"
    assert "backend 'nope' is not linked" in refused(capsys, "doctor", "nope", code=1)


# ---- one at a time --------------------------------------------------------------------------------------------------


def test_a_check_that_raises_or_hangs_is_a_finding():
    def raises():
        raise KeyError("odd")

    def refuses():
        raise VyreError("it is wrong", fix="mend it")

    (finding,) = doctor.guarded("x", raises, 5)
    assert finding[:3] == ("x", "fail", "KeyError: 'odd'")
    assert doctor.guarded("x", refuses, 5) == [Check("x", "fail", "it is wrong", "mend it")]
    (finding,) = doctor.guarded("x", lambda: time.sleep(5), 0.01)
    assert finding[:3] == ("x", "fail", "no answer within 0.01 s")


@pytest.mark.parametrize(
    "source, seconds, expected",
    [
        ("import sys; print('{\"begin\": \"looking\"}', flush=True); sys.exit('out of luck')", 10,
         ("looking", "the process that examined it ended with exit code 1: out of luck")),
        ("print('{\"end\": \"host\"}', flush=True); import os; os._exit(9)", 10,
         ("exit", "the process that examined it ended with exit code 9")),
        ("print('{\"end\": \"host\"}', flush=True); import os, time; os.close(1); time.sleep(9)", 1,
         ("exit", "no answer within 1 s")),
    ],
)  # fmt: skip
def test_how_an_examination_ends_is_told(tmp_path, monkeypatch, source, seconds, expected):
    (tmp_path / "examiner.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    (finding,), _ = doctor.examined("some", seconds, module="examiner")
    assert (finding.name, finding.detail) == expected
    assert finding.fix


def test_the_sample_of_the_reference_is_the_recorded_one(monkeypatch):
    with acquire("reference") as reference:
        assert examine.parity(reference).verdict == "ok"
        monkeypatch.setattr(examine, "RECORDED", "0" * 64)
        changed = examine.parity(reference)
    assert changed[1:3] == ("fail", "the reference computes other bytes than it did when it was released")


def test_a_cache_folder_of_others_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("VYRE_CACHE_DIR", str(tmp_path))
    (tmp_path / "some.json").write_text("x" * 250_000)
    tmp_path.chmod(0o700)
    assert machine.cache_folder() == [Check("cache", "ok", f"{tmp_path}, 1 files, 0.2 MB")]
    tmp_path.chmod(0o770)
    assert machine.cache_folder()[0][2:] == (
        f"others can write to {tmp_path}, so it is not used",
        f"chmod 700 {tmp_path}",
    )
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert f"{tmp_path} belongs to another user, so it is not used" in machine.cache_folder()[0].detail


def test_a_file_system_without_a_write_ahead_log_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("VYRE_CACHE_DIR", str(tmp_path))
    assert machine._journal(tmp_path) == "wal"
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(machine, "_journal", lambda folder: "delete")
    assert machine.cache_folder()[1].detail.startswith("its file system has no write-ahead log (delete)")


def test_packages_that_are_missing_or_old_are_named(monkeypatch):
    from importlib import metadata

    asked = ["numpy>=99999.1", "no_such_package>=1", "rich>=1; extra == 'x'", "blake3"]
    monkeypatch.setattr(metadata, "requires", lambda name: asked)
    _, old, missing = machine.packages()
    assert old.fix == "pip install --upgrade 'numpy>=99999.1'"
    assert missing[1:] == ("fail", "no_such_package is not installed", "pip install 'no_such_package>=1'")

    def gone(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", gone)
    assert machine.packages()[0].verdict == "warn"


def test_a_coarse_clock_and_the_start_method_are_named(monkeypatch):
    assert machine.clock()[0].verdict == "ok"
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 0)
    assert machine.clock()[0].verdict == "warn"
    import multiprocessing

    for method in ("fork", "spawn"):
        monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: method)  # noqa: B023
        (finding,) = machine.processes()
        assert (finding.verdict, bool(finding.fix)) == ("ok", method == "fork")


def test_reasons_become_findings_with_a_fix():
    assert checks.said("x", None, "fine") == Check("x", "ok", "fine")
    assert checks.said("x", "it is off: turn it on", "") == Check("x", "warn", "it is off", "turn it on")
    assert checks.said("x", "it is off", "")[2:] == ("it is off", "resolve that, or use another backend")
    assert checks.installed("no-such-package", extra="x").fix == "pip install 'vyre[x]'"
    assert checks.listed(["a", "b", "c"], limit=2) == "a, b and 1 more"
