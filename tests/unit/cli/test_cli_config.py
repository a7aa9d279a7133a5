"""vyre config: what it shows, through its real entry point."""

import json
import os
import subprocess
import sys
from typing import get_type_hints

import pytest

from vyre.cli.commands import config as command
from vyre.driver.settings.knobs import all_knobs


def run(folder, *words, **env):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("VYRE_")}
    home = {"XDG_CONFIG_HOME": str(folder / "home"), "HOME": str(folder / "home"), "LOCALAPPDATA": str(folder / "home")}
    return subprocess.run(
        [sys.executable, "-m", "vyre", "config", *words],
        cwd=folder / "project",
        env={**kept, **home, "NO_COLOR": "1", "COLUMNS": "300", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "project" / ".git").mkdir(parents=True)
    (tmp_path / "home" / "vyre").mkdir(parents=True)
    return tmp_path


def test_show_prints_every_knob(folder):
    done = run(folder, "show", VYRE_BACKEND="cpu,reference", VYRE_STRICT="1")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert set(rows) >= set(all_knobs())
    assert rows["backend"].split() == ["backend", "cpu,reference", "VYRE_BACKEND"]
    assert rows["strict"].split() == ["strict", "yes", "VYRE_STRICT"]
    assert "the platform's folder for caches" in rows["cache_dir"]
    assert "default" not in done.stdout


def test_origin_says_who_set_what_and_which_files_there_are(folder):
    (folder / "project" / "vyre.toml").write_text("cpu_threads = 2\n")
    done = run(folder, "show", "--origin", VYRE_STRICT="no")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines()}
    assert rows["cpu_threads"][1:3] == ["2", str(folder / "project" / "vyre.toml")]
    assert rows["strict"][1:3] == ["no", "VYRE_STRICT"]
    assert rows["shadow"][1:3] == ["0", "default"]
    assert f"project's file: {folder / 'project' / 'vyre.toml'}\n" in done.stdout
    assert "config.toml (not used)" in done.stdout
    (folder / "project" / "vyre.toml").unlink()
    assert "project's file: none\n" in run(folder, "show", "--origin").stdout


def test_json_holds_to_its_schema(folder):
    (folder / "project" / "pyproject.toml").write_text('[tool.vyre]\nshadow = "0.5,log"\n')
    done = run(folder, "show", "--json", VYRE_ACQUIRE_TIMEOUT="2.5")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert list(document) == ["schema", *get_type_hints(command.Document)]
    for row in document["settings"]:
        assert list(row) == list(get_type_hints(command.SettingRow))
        assert all(isinstance(value, str) for key, value in row.items() if key != "value")
        assert row["value"] is None or isinstance(row["value"], str | int | float | bool)
    for row in document["files"]:
        assert list(row) == list(get_type_hints(command.FileRow))
    found = {row["name"]: (row["value"], row["origin"]) for row in document["settings"]}
    assert found["acquire_timeout"] == (2.5, "VYRE_ACQUIRE_TIMEOUT")
    assert found["shadow"] == ("0.5,log", str(folder / "project" / "pyproject.toml"))
    assert found["backend"] == (None, "default")
    assert found["strict"] == (False, "default")
    assert [(row["whose"], row["used"]) for row in document["files"]] == [("project", True), ("user", False)]


def test_the_users_file_is_read(folder):
    path = json.loads(run(folder, "show", "--json").stdout)["files"][1]["path"]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write("strict = true\n")
    document = json.loads(run(folder, "show", "--json").stdout)
    assert next(r for r in document["settings"] if r["name"] == "strict")["origin"] == path
    assert document["files"][1] == {"whose": "user", "path": path, "used": True}


@pytest.mark.parametrize(
    "words, env, file, text",
    [
        (["show"], {"VYRE_STRICT": "perhaps"}, "", "VYRE_STRICT='perhaps' is neither yes nor no"),
        (["show", "--json"], {"VYRE_STRICT": "2"}, "strict = true", "VYRE_STRICT='2' is neither yes nor no"),
        (["shw"], {}, "", "no such command 'shw'"),
        (["show", "--orign"], {}, "", "no such option"),
    ],
)
def test_a_mistake_is_said_with_a_fix_and_no_traceback(folder, words, env, file, text):
    (folder / "project" / "vyre.toml").write_text(file)
    done = run(folder, *words, **env)
    assert done.returncode == 2
    assert text in done.stderr
    assert "Fix: " in done.stderr
    assert "Traceback" not in done.stderr
    if "--json" in words:
        assert text in json.loads(done.stdout)["error"]["message"]
    else:
        assert done.stdout == ""


def test_a_file_that_is_not_obeyed_is_said_once_with_a_fix(folder):
    file = folder / "project" / "vyre.toml"
    others = [] if os.name == "nt" else [("others", None)]
    for text, used in (("bakend = 'cpu'\ncpu_threads = 2", str(file)), ("strict = ", str(file)), *others):
        file.write_text("strict = true" if text == "others" else text)
        file.chmod(0o646 if text == "others" else 0o644)
        done = run(folder, "show", "--origin")
        assert done.returncode == 0
        assert done.stderr.count(str(file)) == done.stderr.count("Fix: ") == 1
        assert f"project's file: {used or 'none'}\n" in done.stdout
        done = run(folder, "show", "--json")
        document = json.loads(done.stdout)
        assert (done.returncode, done.stderr) == (0, "")
        assert [list(row) for row in document["problems"]] == [list(get_type_hints(command.ProblemRow))]
        assert (document["problems"][0]["path"], document["files"][0]["path"]) == (str(file), used)
        assert {row["origin"] for row in document["settings"]} == {"default", *([str(file)] if "cpu" in text else [])}


def test_a_variable_that_no_setting_has_is_noted(folder):
    done = run(folder, "show", VYRE_BAKEND="cpu", VYRE_XYZZY="1")
    assert done.returncode == 0
    assert "VYRE_BAKEND is set and is not a setting; did you mean VYRE_BACKEND?\n" in done.stderr
    assert "VYRE_XYZZY is set and is not a setting\n" in done.stderr
    assert "BAKEND" not in done.stdout
    document = json.loads(run(folder, "show", "--json", VYRE_BAKEND="cpu").stdout)
    assert document["unknown_variables"] == ["VYRE_BAKEND"]


def test_by_itself_it_prints_its_help(folder):
    done = run(folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "show  List every setting" in done.stdout
