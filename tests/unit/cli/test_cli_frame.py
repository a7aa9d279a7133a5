"""The frame of the command line: where things are printed, how a command fails, and what it costs to start."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
import types
from importlib import import_module
from pathlib import Path
from typing import is_typeddict

import pytest

from vyre import __version__
from vyre.cli import app, output
from vyre.errors import ArgumentTypeError, BackendUnavailable

from ...support.cli_plugins import Plugins, shared_cache
from ...support.cli_tool import command, inside, misfits, parsed, refused, started

CODE = "import sys; from vyre.cli.app import main; code = main({words!r}); {then}; sys.exit(code)"


def python(code, **environ):
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environ}, capture_output=True, text=True, timeout=60
    )


def terminal(words, **environ):
    """What a process shows on a wide terminal, with its exit code."""
    environ = {"TERM": "xterm-256color", "COLUMNS": "250", "LINES": "40", **environ}
    shown = b""
    pid, end = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, *words], {**os.environ, **environ})
    while True:
        try:
            blob = os.read(end, 1 << 16)
        except OSError:  # Linux says so when the other end is closed
            break
        if not blob:
            break
        shown += blob
    os.close(end)
    return shown.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def planted(monkeypatch):
    """Adds a command `planted` whose body is given."""
    before = list(app.app.registered_commands)

    def plant(body):
        module = types.ModuleType("vyre.cli.commands.planted")
        monkeypatch.setitem(sys.modules, "vyre.cli.commands.planted", module)
        monkeypatch.setitem(app.COMMANDS, "planted", "Planted by a test.")

        @app.app.command()
        def planted(as_json: app.Json = False) -> None:
            """Planted by a test."""
            body()

    yield plant
    app.app.registered_commands[:] = before


# ---- start ----------------------------------------------------------------------------------------------------------


def test_the_script_and_the_module_are_one_program(tmp_path):
    script = Path(sys.executable).with_name("vyre")
    module = command("--version", cwd=tmp_path)
    assert (module.returncode, module.stdout, module.stderr) == (0, f"vyre {__version__}\n", "")
    if script.exists():
        done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, module.stdout)


def test_help_names_every_command_and_loads_none_of_them():
    then = "print([m for m in sys.modules if m.startswith(('vyre.', 'rich', 'numpy', 'pydantic'))], file=sys.stderr)"
    done = python(CODE.format(words=["--help"], then=then))
    assert done.returncode == 0
    assert all(name in done.stdout for name in app.COMMANDS)
    assert set(eval(done.stderr)) == {"vyre.errors", "vyre.cli", "vyre.cli.app", "vyre.cli.output"}


def test_backends_are_listed_without_rich_numpy_or_a_device_library(tmp_path):
    then = "print([m for m in ('rich', 'numpy', 'pydantic', 'cuda', 'wgpu', 'pyopencl') if m in sys.modules])"
    code = CODE.format(words=["backends", "--json"], then=then)
    environ = {"VYRE_CACHE_DIR": str(shared_cache(tmp_path))}
    python(code, **environ)  # remembers what it learned
    assert python(code, **environ).stdout.splitlines()[-1] == "[]"


def test_the_package_does_not_load_the_command_line():
    code = "import sys, vyre; vyre.kernel; print([m for m in ('typer', 'rich', 'vyre.cli') if m in sys.modules])"
    assert python(code).stdout == "[]\n"


def test_without_a_command_the_help_is_shown(capsys):
    assert inside() == 0
    assert "Commands:" in capsys.readouterr().out


def test_the_version_is_a_document_too(capsys):
    assert inside("--version", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "version": __version__}


def test_a_shell_completes_commands_and_options(tmp_path):
    environ = {"_VYRE_COMPLETE": "complete_bash", "COMP_WORDS": "vyre de", "COMP_CWORD": "1"}
    assert command(cwd=tmp_path, **environ).stdout.split() == ["devices"]
    environ |= {"COMP_WORDS": "vyre caps --j", "COMP_CWORD": "2"}
    assert command(cwd=tmp_path, **environ).stdout.split() == ["--json"]


def test_completion_is_shown_in_a_shell_and_refused_elsewhere(tmp_path):
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m vyre --show-completion; exit $?"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "_VYRE_COMPLETE=complete_bash" in done.stdout
    nowhere = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(tmp_path)}
    for option in ("--show-completion", "--install-completion"):
        refused = command(option, cwd=tmp_path, **nowhere)
        assert refused.returncode == 1
        assert "Fix: run it from the prompt of bash, zsh, fish or PowerShell" in refused.stderr
    assert list(tmp_path.iterdir()) == []


# ---- failing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, said",
    [
        (["doctr"], "there is no command 'doctr'. Fix: did you mean doctor?"),
        (["zzz"], f"there is no command 'zzz'. Fix: use one of: {', '.join(app.COMMANDS)}"),
        (["--nope"], ". Fix: see `vyre --help`"),
        (["caps", "--nope", "cpu"], ". Fix: see `vyre caps --help`"),
        (["caps"], "missing argument 'ID[:DEVICE]'. Fix: see `vyre caps --help`"),
        (["doctor", "--timeout", "soon"], "Fix: see `vyre doctor --help`"),
        (["doctor", "--timeout", "0"], "--timeout 0 is not a time to wait. Fix: give a number of seconds above 0"),
        (["doctor", "--timeout", "nan"], "--timeout nan is not a time to wait"),
    ],
)
def test_wrong_usage_says_where_to_look(capsys, words, said):
    assert said in refused(capsys, *words, code=2)


def test_wrong_usage_is_a_document_where_one_was_asked_for(capsys):
    for words in (["--json", "--nope"], ["caps", "--json"], ["nope", "--json"]):
        assert inside(*words) == 2
        said = capsys.readouterr()
        error = parsed(said.out, app.ErrorDocument)["error"]
        assert (error["code"], error["name"]) == (1999, "ArgumentValueError")
        assert f"{error['message']}. Fix: {error['fix']}" in said.err


@pytest.mark.parametrize(
    "error, code", [(BackendUnavailable, 1), (ArgumentTypeError, 2), (KeyError, 1), (RecursionError, 1)]
)
def test_the_exit_code_follows_from_the_error(planted, capsys, error, code):
    def body():
        raise error("it went wrong", fix="do this", asked=9) if issubclass(error, app.VyreError) else error("odd")

    planted(body)
    assert inside("planted", "--json") == code
    said = capsys.readouterr()
    failure = parsed(said.out, app.ErrorDocument)["error"]
    assert "Traceback" not in said.err
    assert said.err.count("\n") == 1
    if issubclass(error, app.VyreError):
        assert said.err == "error: it went wrong [asked=9]. Fix: do this\n"
        assert failure == {
            "code": int(error.code), "name": error.__name__, "message": "it went wrong", "fix": "do this",
            "context": {"asked": "9"},
        }  # fmt: skip
    else:
        assert said.err.startswith(f"error: {error.__name__}: ")
        assert said.err.endswith("Fix: run again with --debug and report it\n")
        assert failure["name"] == error.__name__


def test_debug_shows_the_traceback_wherever_it_stands(planted, capsys):
    def body():
        raise ValueError("planted\nin two lines")

    planted(body)
    for words in (["--debug", "planted"], ["planted", "--debug"]):
        assert inside(*words) == 1
        said = capsys.readouterr().err
        assert "Traceback" in said
        assert said.endswith("error: ValueError: planted in two lines. Fix: run again with --debug and report it\n")


def test_words_after_two_dashes_are_no_options(planted, capsys):
    planted(lambda: None)
    said = refused(capsys, "planted", "--", "--debug", "--json")
    assert "unexpected extra argument" in said


def test_json_may_stand_before_the_command(capsys):
    assert inside("--json", "devices", "reference") == 0
    assert json.loads(capsys.readouterr().out)["devices"][0]["name"] == "reference:0"


def test_an_interrupt_is_reported_in_one_line(planted, capsys):
    def body():
        raise KeyboardInterrupt

    planted(body)
    assert inside("planted") == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_ctrl_c_ends_a_command_that_waits_for_a_backend(tmp_path):
    plugins = Plugins(tmp_path)
    plugins.add("hangs", "import pathlib, time; pathlib.Path('began').touch(); time.sleep(60)")
    words = [sys.executable, "-m", "vyre", "doctor", "hangs"]
    with started(words, cwd=tmp_path, env=plugins.whole_environ) as running:
        while not (tmp_path / "began").exists():
            assert running.poll() is None
            time.sleep(0.02)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (130, "", "interrupted\n")


def test_a_reader_that_has_seen_enough_ends_a_command_quietly(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "vyre", "devices", "reference", "--json"],
        cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_results_that_cannot_be_written_are_an_error_of_their_own(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    words = [sys.executable, "-m", "vyre", "devices", "reference"]
    said = "error: the results cannot be written: No space left on device. Fix: free some space, or write elsewhere\n"
    for unbuffered in ("", "1"):
        environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                words, cwd=tmp_path, env=environ, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
            )
        assert (done.returncode, done.stderr) == (1, said)
    closed = subprocess.run(["sh", "-c", '"$@" >&- 2>&-', "sh", *words], cwd=tmp_path, timeout=60)
    assert closed.returncode == 0


# ---- printing -------------------------------------------------------------------------------------------------------


def test_colours_are_for_terminals_that_want_them(tmp_path):
    plugins = Plugins(tmp_path)
    plugins.add("broken", "raise RuntimeError('[red]no markup[/red]')")
    words = ["-m", "vyre", "backends"]
    environ = plugins.environ
    coloured, code = terminal(words, **environ)
    plain, _ = terminal(words, NO_COLOR="1", **environ)
    dumb, _ = terminal(words, TERM="dumb", **environ)
    assert code == 0
    assert "\x1b[31m" in coloured
    assert "\x1b[31m" not in plain
    assert "\x1b[" not in dumb
    assert all("reference" in shown and "no markup" in shown for shown in (coloured, plain, dumb))
    piped = command("backends", cwd=tmp_path, **environ)
    assert "\x1b[" not in piped.stdout
    assert "RuntimeError: [red]no markup[/red]" in piped.stdout


def test_a_terminal_without_the_characters_gets_others(tmp_path):
    done = command("devices", "reference", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    code = "import sys; from vyre.cli.output import plain_streams; plain_streams(); print('\\u03bc')"
    assert python(code, PYTHONIOENCODING="ascii").stdout == "?\n"


PROGRESS = """
import time
from vyre.cli.output import progress
with progress("measuring", total=4) as step:
    for k in range(4):
        time.sleep({seconds})
        step("part")
print("done")
"""


def test_progress_is_shown_on_a_terminal_for_work_over_a_second():
    slow, _ = terminal(["-c", PROGRESS.format(seconds=0.5)])
    quick, _ = terminal(["-c", PROGRESS.format(seconds=0.01)])
    assert "measuring: part" in slow
    assert quick == "done\r\n"
    piped = python(PROGRESS.format(seconds=0.3))
    assert (piped.stdout, piped.stderr) == ("done\n", "")


def test_documents_hold_only_what_json_has(capsys):
    output.print_json({"a": float("nan"), "b": {2, 1}, "c": (Path("x"), None, True), "d": [float("-inf"), 0.5]})
    expected = {"schema": 1, "a": None, "b": [1, 2], "c": ["x", None, True], "d": [None, 0.5]}
    assert json.loads(capsys.readouterr().out) == expected


def test_tables_in_files_are_columns_without_trailing_blanks(capsys):
    output.print_table(("name", "of what"), [("a", ""), ("longer", "x")], ["red"])
    assert capsys.readouterr().out == "name    of what\na\nlonger  x\n"


TABLE = """
from vyre.cli.output import print_table
rows = [("pipeline_cache_entries", "as many as there are", "VYRE_PIPELINE_CACHE_ENTRIES"), ("shadow", "", "")]
print_table(("setting", "value", "variable"), rows)
"""


@pytest.mark.parametrize("columns", [30, 57, 58, 80])
def test_names_in_tables_stay_whole_on_narrow_terminals(columns):
    shown, _ = terminal(["-c", TABLE], COLUMNS=str(columns), NO_COLOR="1")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert max(map(len, lines)) <= columns
    words = " ".join(lines).split()
    assert {"setting", "pipeline_cache_entries", "VYRE_PIPELINE_CACHE_ENTRIES", "shadow"} <= set(words)
    first, *_ = (line for line in lines if "pipeline_cache_entries" in line)
    assert ("VYRE_" in first) == (columns >= 58), "cells follow each other only where columns have no room"


# ---- commands -------------------------------------------------------------------------------------------------------


def test_the_help_of_all_commands_says_what_each_says_itself():
    described = {info["name"]: info for info in app.describe()}
    assert {name.split()[1] for name in described if " " in name} == set(app.COMMANDS)
    for name, line in app.COMMANDS.items():
        assert described[f"vyre {name}"]["summary"] == line


def test_every_command_takes_json_and_declares_its_document():
    described = app.describe()
    groups = {info["name"] for info in described if any(o["name"].startswith(info["name"] + " ") for o in described)}
    for info in described:
        if info["name"] not in groups:
            assert any("--json" in p["flags"] for p in info["parameters"]), info["name"]
    for name in app.COMMANDS:
        declared = vars(import_module(f"vyre.cli.commands.{name}"))
        assert any(is_typeddict(each) for each in declared.values()), name


def test_a_description_has_what_a_reference_needs():
    caps = next(info for info in app.describe() if info["name"] == "vyre caps")
    argument = next(p for p in caps["parameters"] if p["kind"] == "argument")
    assert (argument["metavar"], argument["required"], argument["flags"]) == ("ID[:DEVICE]", True, [])
    assert misfits(caps, app.CommandInfo) == []
    doctor = next(info for info in app.describe() if info["name"] == "vyre doctor")
    timeout = next(p for p in doctor["parameters"] if p["name"] == "timeout")
    assert (timeout["flags"], timeout["default"]) == (["--timeout"], "60.0")
