"""vyre backends, devices and caps: what is there, what would open, and what a no means."""

import json
import time
from dataclasses import fields

import pytest

from vyre.cli import app
from vyre.cli.commands import backends, caps, devices
from vyre.driver.contract import BackendCapability, BackendRegistration, DeviceInfo, VyreBackend
from vyre.driver.contract.capability import FACTS
from vyre.driver.contract.values import DEFAULT_CONFIG
from vyre.driver.selection import registry

from ...support.cli_plugins import Plugins
from ...support.cli_tool import command, document, inside, parsed, refused


class Board(VyreBackend, contract=1):
    id = "board"
    capability = BackendCapability(
        grid_sync=True, max_workgroup_size=(8, 4, 1), api="Signals", extras={"colour": "green"}
    )

    def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        return []


def board(**fields):
    return BackendRegistration(**{"id": "board", "open": lambda device=None: Board(), **fields})


# ---- backends -------------------------------------------------------------------------------------------------------


def test_backends_are_listed_in_order_with_packages_devices_and_reasons(tmp_path):
    plugins = Plugins(tmp_path)
    plugins.add("broken", "print('noise'); raise RuntimeError('it was never right')", precedence=7)
    plugins.add("twice", "", package="first")
    plugins.add("twice", "", package="second")
    done = command("backends", "--json", cwd=tmp_path, **plugins.environ)
    assert (done.returncode, done.stderr) == (0, "noise\n")
    found = parsed(done.stdout, backends.Document)
    rows = {row["id"]: row for row in found["backends"]}
    assert list(rows) == ["broken", "cuda", "wgpu", "opencl", "cpu", "reference", "twice"]
    assert rows["broken"]["disabled"]
    assert "it was never right" in rows["broken"]["why_not"]
    assert (rows["broken"]["precedence"], rows["broken"]["package"]) == (7, "broken 1.0")
    assert rows["twice"]["why_not"] == "it is provided more than once (first 1.0, second 1.0)"
    assert (rows["cpu"]["kind"], rows["cpu"]["available"], rows["cpu"]["precedence"]) == ("host", True, 100)
    assert rows["reference"]["devices"] == ["Python interpreter"]
    text = command("backends", cwd=tmp_path, **plugins.environ).stdout
    assert text.splitlines()[0].split()[:4] == ["backend", "rank", "kind", "state"]
    assert f"A plain call asks {found['preferred']} first." in text


def test_the_setting_says_who_is_asked_first(tmp_path):
    done = command("backends", "--json", cwd=tmp_path, VYRE_BACKEND="reference:0,cpu")
    assert json.loads(done.stdout)["preferred"] == "reference:0"
    wrong = command("backends", cwd=tmp_path, VYRE_BACKEND=":")
    assert wrong.returncode == 2
    assert "Fix: " in wrong.stderr
    assert "Traceback" not in wrong.stderr


@pytest.mark.parametrize(
    "registrations, code, preferred",
    [
        ([], 1, None),
        ([board(unavailable=lambda: "no power: plug it in")], 1, None),
        ([board(kind="oracle")], 1, None),
        ([board()], 0, "board"),
        ([board(devices=lambda: (DeviceInfo(0, "soft", True),))], 0, "board"),
    ],
)
def test_the_exit_code_says_whether_a_plain_call_finds_one(capsys, registrations, code, preferred):
    with registry.isolated(*registrations):
        found = document(capsys, backends.Document, "backends", code=code)
        assert found["preferred"] == preferred
        assert inside("backends") == code
        said = capsys.readouterr().out
    assert ("A plain call finds no backend." in said) == (preferred is None)
    assert ("no power: plug it in" in said) == any(r.unavailable() for r in registrations)


def test_a_backend_that_does_not_answer_is_not_waited_for(capsys, monkeypatch):
    monkeypatch.setenv("VYRE_ACQUIRE_TIMEOUT", "0.05")
    with registry.isolated(board(unavailable=lambda: time.sleep(30))):
        (row,) = document(capsys, backends.Document, "backends", code=1)["backends"]
    assert "did not answer within 0.05 s" in row["why_not"]


def test_backends_takes_no_arguments(capsys):
    assert "unexpected extra argument" in refused(capsys, "backends", "cpu")


# ---- devices --------------------------------------------------------------------------------------------------------


def test_devices_have_the_names_that_ask_for_them(tmp_path):
    done = command("devices", "--json", cwd=tmp_path)
    found = parsed(done.stdout, devices.Document)
    names = {row["name"] for row in found["devices"]}
    assert {"cpu:0", "reference:0"} <= names
    assert not {row["backend"] for row in found["without"]} & {row["backend"] for row in found["devices"]}
    text = command("devices", "reference", cwd=tmp_path).stdout
    assert text.splitlines()[1].split() == ["reference:0", "Python", "interpreter"]
    unknown = command("devices", "nope", cwd=tmp_path)
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "backend 'nope' is not linked" in unknown.stderr
    assert "Fix: use one of: cpu," in unknown.stderr


def test_backends_without_a_device_are_listed_with_the_reason(capsys):
    gone = board(unavailable=lambda: "no power: plug it in", devices=lambda: ())
    with registry.isolated(gone):
        found = document(capsys, devices.Document, "devices", "board", code=1)
        assert found == {"devices": [], "without": [{"backend": "board", "why_not": "no power: plug it in"}]}
        assert inside("devices") == 1
    assert capsys.readouterr().out == "board: no device: no power: plug it in\n"
    with registry.isolated(board(kind="nonsense")):
        found = document(capsys, devices.Document, "devices", code=1)
        assert "its kind 'nonsense' is not one of" in found["without"][0]["why_not"]
        assert "backend board is disabled" in refused(capsys, "devices", "board", code=1)
    with registry.isolated(board(devices=lambda: ())):
        found = document(capsys, devices.Document, "devices", code=1)
    assert found["without"] == [{"backend": "board", "why_not": "it names no device"}]


# ---- caps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cpu", "reference:0"])
def test_capabilities_are_shown_with_what_each_no_means(name, tmp_path):
    done = command("caps", name, "--json", cwd=tmp_path)
    found = parsed(done.stdout, caps.Document)
    assert found["backend"] == name.partition(":")[0]
    answers = {row["name"]: row for row in found["answers"]}
    assert all((row["answer"] == "yes") == (row["meaning"] is None) for row in answers.values())
    assert answers["f16"]["answer"] == "emulated"
    assert answers["tensor_cores"]["answer"] == "no"
    assert found["facts"]["deadline"] == "cooperative"
    assert found["facts"]["api"] == ""  # it has one way to its device
    assert found["exactness"]["f32"] == "canonical"
    assert {"f64", "u64"} <= set(found["types"])
    assert "vyre.atomic" in found["operations"]
    assert found["limits"]["max_workgroup_size"] == [1024, 1024, 64]


def test_every_answer_of_the_record_has_a_meaning():
    asked = {field.name for field in fields(BackendCapability) if field.type == "bool"}
    assert {name for name, fact in FACTS.items() if fact.no} == asked
    emulated = {name for name, fact in FACTS.items() if fact.emulated}
    assert emulated == {name for name, fact in FACTS.items() if fact.offered} <= asked


def test_what_a_backend_lacks_is_refused_and_not_called_emulated(capsys):
    with registry.isolated(board()):
        found = document(capsys, caps.Document, "caps", "board")
        assert inside("caps", "board") == 0
        said = capsys.readouterr().out
    answers = {row["name"]: row["answer"] for row in found["answers"]}
    assert (answers["f16"], answers["subgroup_ops"], answers["grid_sync"]) == ("no", "no", "yes")
    assert "a program with f16 values is refused" in said
    assert "8 x 4 x 1" in said
    assert found["facts"]["api"] == "Signals"
    assert "Signals" in said
    assert "it keeps none: the driver leaves a call that takes too long" in said
    assert "colour" in said


@pytest.mark.parametrize(
    "words, code, said",
    [
        (["caps", "nope"], 1, "backend 'nope' is not linked"),
        (["caps", "cpu:7"], 1, "backend cpu has no device '7'"),
        (["caps", ":"], 2, "':' is not the name of a backend"),
        (["caps", "cpu", "reference"], 2, "unexpected extra argument"),
    ],
)
def test_a_wrong_name_is_refused_with_the_right_ones(capsys, words, code, said):
    assert said in refused(capsys, *words, code=code)
    assert inside(*words, "--json") == code
    assert parsed(capsys.readouterr().out, app.ErrorDocument)["error"]["fix"]
