"""Files and places that no friendly user would name: the command says what is wrong, and stays itself."""

import json
import os
import pickle
import signal
import subprocess
import sys

import numpy as np
import pytest

from vyre.cli.app import Commands, ErrorDocument
from vyre.cli.commands.backends import Document as Backends
from vyre.cli.commands.devices import Document as Devices
from vyre.cli.commands.explain import Codes
from vyre.cli.commands.run import Document
from vyre.driver.contract import BackendRegistration
from vyre.driver.selection import registry

from ...support.cli_plugins import Plugins
from ...support.cli_tool import SAXPY, command, document, inside, parsed, refused, started

F32 = np.float32
RUN = ("run", "saxpy.py", "-i", "alpha=1", "-b", "reference")
GOOD = (*RUN, "-i", "x=ones:4", "-i", "y=ones:4")


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    (tmp_path / "saxpy.py").write_text(SAXPY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in [name for name in set(sys.modules) - before if "vyre_file_" in name or name.startswith("outer")]:
        del sys.modules[name]


# ---- array files ----------------------------------------------------------------------------------------------------


def header(text, body=b""):
    """An array file that begins with this text."""
    padded = text.ljust(-(-(len(text) + 11) // 64) * 64 - 11) + "\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode() + body


def described(shape, descr="'<f4'"):
    return header(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}", bytes(16))


class Harm:
    """Leaves a file behind when somebody loads it."""

    def __reduce__(self):
        return (open, ("harm.txt", "w"))


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x09\x00\x10\x00" + b"x" * 16,
        pickle.dumps(Harm()),
        described("(1,)", "'|O'") + pickle.dumps(Harm()),
        described("(1 << 99,)"),
        described("(999999999999999999999999,)"),
        described("(1099511627776,)"),
        described("(-1,)"),
        described("(True, 2)"),
        described("(" + "1," * 65 + ")"),
        header("(" * 5000),
        header("-" * 3000 + "1"),
        header("{'descr': " + "[" * 400 + "]" * 400 + ", 'fortran_order': False, 'shape': (1,)}"),
    ],
)
def test_a_hostile_array_file_is_refused_in_one_line(blob, capsys, files):
    (files / "x.npy").write_bytes(blob)
    said = refused(capsys, *RUN, "-i", "x=x.npy", "-i", "y=ones:4")
    assert said.startswith("error: x.npy is not an array file")
    assert said.count("\n") == 1
    assert len(said) < 400
    assert not (files / "harm.txt").exists()


def test_an_old_array_file_is_read_without_a_warning(capsys, files):
    (files / "x.npy").write_bytes(described("(4L,)"))
    assert inside(*RUN, "-i", "x=x.npy", "-i", "y=ones:4") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["x.npz", "x.bin"])
def test_an_archive_is_never_read_as_elements(name, capsys, files):
    with open(files / name, "wb") as stream:
        np.savez(stream, x=np.zeros(4, F32))
    assert f"{name} is an archive of arrays" in refused(capsys, *RUN, "-i", f"x={name}", "-i", "y=ones:4")


def test_an_array_file_is_known_by_its_content(capsys, files):
    with open(files / "x.array", "wb") as stream:
        np.save(stream, np.full(4, 7, F32))
    found = document(capsys, Document, *RUN, "-i", "x=x.array", "-i", "y=zeros:4")
    assert found["outputs"][0]["head"] == [7.0] * 4


@pytest.mark.parametrize("name", ["folder.npy", "pipe.npy"])
def test_what_is_there_and_is_no_plain_file_is_not_called_missing(name, capsys, files):
    (files / "folder.npy").mkdir()
    os.mkfifo(files / "pipe.npy")
    said = refused(capsys, *RUN, "-i", f"x={name}", "-i", "y=ones:4")
    assert said.startswith(f"error: --input x={name} is not a plain file. Fix: ")


def test_a_missing_file_of_a_number_advises_a_number(capsys):
    said = refused(capsys, "run", "saxpy.py", "-i", "alpha=tow", "-i", "x=ones:4", "-i", "y=ones:4")
    assert "--input alpha=tow: there is no such file. Fix: write a number, or a file: --input alpha=2" in said


def test_a_number_that_is_none_is_a_text_in_the_document(capsys):
    found = document(capsys, Document, "run", "saxpy.py", "-i", "alpha=nan", *GOOD[4:])
    assert found["inputs"][0]["head"] == ["nan"]


# ---- kernel files ---------------------------------------------------------------------------------------------------


def test_a_file_of_a_package_may_import_relatively(capsys, files):
    inner = files / "outer" / "inner"
    inner.mkdir(parents=True)
    (files / "outer" / "__init__.py").write_text("")
    (inner / "__init__.py").write_text("")
    (files / "outer" / "facts.py").write_text("FACTOR = 3\n")
    (inner / "local.py").write_text("TERM = 4\n")
    source = SAXPY.replace("import vyre\n", "import vyre\nfrom ..facts import FACTOR\nfrom .local import TERM\n", 1)
    (inner / "file.py").write_text(source.replace("alpha * x[i] + y[i]", "alpha * x[i] * f32(FACTOR) + f32(TERM)"))
    words = ("run", "outer/inner/file.py", *GOOD[2:])
    assert document(capsys, Document, *words)["outputs"][0]["head"] == [7.0] * 4


@pytest.mark.parametrize(
    "line, text",
    [
        ("raise GeneratorExit", "k.py:1: GeneratorExit"),
        ("class Odd(BaseException): pass\nraise Odd('boo')", "k.py:2: Odd: boo"),
        ("raise SystemExit('bye')", "k.py:1: SystemExit: bye"),
    ],
)
def test_whatever_a_file_raises_is_told_with_its_line(line, text, capsys, files):
    (files / "k.py").write_text(line + "\n")
    assert text in refused(capsys, "ir", "k.py", code=1)


def test_a_missing_module_of_vyre_itself_is_not_to_be_installed(capsys, files):
    (files / "k.py").write_text("import vyre.nope\n")
    assert "Fix: correct the file" in refused(capsys, "ir", "k.py", code=1)


def test_what_a_file_and_its_processes_write_stays_out_of_the_document(files):
    noise = "import os, subprocess\nprint('one')\nos.write(1, b'two\\n')\nsubprocess.run(['echo', 'three'])\n"
    (files / "k.py").write_text(noise + SAXPY)
    done = command("ir", "k.py", "--json", cwd=files)
    assert (done.returncode, json.loads(done.stdout)["kernel"]) == (0, "saxpy")
    assert sorted(done.stderr.split()) == ["one", "three", "two"]


def test_a_program_comes_through_a_pipe(files):
    text = command("ir", "saxpy.py", cwd=files).stdout
    done = subprocess.run(
        [sys.executable, "-m", "vyre", "ir", "/dev/stdin", "--fingerprint"], input=text, capture_output=True, text=True
    )
    assert done.stdout == command("ir", "saxpy.py", "--fingerprint", cwd=files).stdout


# ---- where results go -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [(*GOOD, "-o", "out=/dev/stdout"), (*GOOD, "-o", "out=/dev/fd/1"), ("ir", "saxpy.py", "--wire", "/dev/stdout")],
)
def test_stdout_is_no_place_for_a_result(words, capsys):
    assert "the command itself prints there. Fix: name a file or a pipe" in refused(capsys, *words)


def test_a_result_goes_through_a_pipe_of_the_shell(files):
    line = '"$0" -m vyre "$@" 3>&1 >/dev/null | cat'
    words = ["bash", "-c", line, sys.executable, *GOOD, "-o", "out=/dev/fd/3"]
    done = subprocess.run(words, cwd=files, capture_output=True, timeout=60)
    assert done.stdout == np.full(4, 2, F32).tobytes(), done.stderr


def test_two_results_do_not_share_a_file(capsys, files):
    (files / "two.py").write_text(
        SAXPY.replace("out: Out[f32]", "out: Out[f32], more: Out[f32]").replace(
            "        out[i] =", "        more[i] = x[i]\n        out[i] ="
        )
    )
    words = ("run", "two.py", *GOOD[2:], "-o", "more=a.npy", "-o")
    assert "--output writes ./a.npy twice" in refused(capsys, *words, "out=./a.npy")
    assert inside(*words, "out=b.npy") == 0


def test_no_file_can_be_where_the_wire_form_is_wanted(capsys):
    assert "--wire no/such.vyre: no file can be there" in refused(capsys, "ir", "saxpy.py", "--wire", "no/such.vyre")


# ---- codes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["²", "9" * 5000])
def test_digits_that_are_no_code_are_refused(text, capsys):
    assert "there is no error code" in refused(capsys, "explain", text)


def test_a_code_may_begin_with_zeros(capsys):
    assert document(capsys, Codes, "explain", "01009")["codes"][0]["name"] == "DeadlineExceeded"


def test_a_constant_that_is_no_number_names_its_option(capsys):
    assert "--const n=x is not a number. Fix: write a number: --const n=2" in refused(
        capsys, "ir", "saxpy.py", "--const", "n=x"
    )


CONST = (
    "\n\n@vyre.kernel\ndef add(x: In[f32], y: Out[f32], *, n: vyre.const) -> None:\n    y[gid.x] = x[gid.x] + f32(n)\n"
)


def test_a_missing_constant_is_asked_for_in_the_words_of_the_command(capsys, files):
    (files / "add.py").write_text(SAXPY + CONST)
    words = ("add.py:add", "-i", "x=ones:4")
    assert "Fix: pass --input n=NUMBER" in refused(capsys, "run", *words, "-b", "reference")
    assert "Fix: pass --input n=NUMBER" in refused(capsys, "explain", *words)
    assert "Fix: pass --const n=" in refused(capsys, "ir", "add.py:add")


def test_a_file_in_a_folder_is_suggested_with_its_folder(capsys, files):
    (files / "folder").mkdir()
    (files / "folder" / "kernel.py").write_text(SAXPY)
    assert "did you mean folder/kernel.py?" in refused(capsys, "ir", "folder/kernal.py")


def test_a_size_is_not_ignored_where_a_file_is_measured(capsys):
    assert "--size is for the built-in kernels. Fix: " in refused(capsys, "bench", "saxpy.py", "--size", "4")


# ---- the frame ------------------------------------------------------------------------------------------------------


def test_an_interrupted_command_still_prints_one_document(files):
    (files / "slow.py").write_text("import sys, time\nprint('asleep', flush=True)\ntime.sleep(60)\n")
    words = [sys.executable, "-m", "vyre", "ir", "slow.py", "--json"]
    with started(words, cwd=files) as running:
        assert running.stderr.readline() == "asleep\n"
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (130, "interrupted\n")
    failure = parsed(out, ErrorDocument)["error"]
    assert (failure["name"], failure["message"]) == ("KeyboardInterrupt", "interrupted")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has /dev/full")
@pytest.mark.parametrize("words", [("--json",), ("--debug",), ()])
@pytest.mark.parametrize("full", ["stdout", "stderr"])
def test_a_stream_that_takes_nothing_changes_no_exit_code(words, full, files):
    with open("/dev/full", "w") as place:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, full: place}
        done = subprocess.run([sys.executable, "-m", "vyre", "ir", "nope.py", *words], cwd=files, text=True, **streams)
    assert done.returncode == 2
    assert ("Traceback" in (done.stderr or "")) == (full == "stdout" and "--debug" in words)


@pytest.mark.parametrize("words", [("config", "show"), ("explain", "1009"), ("ir", "nope.py", "--json")])
def test_output_that_nobody_reads_ends_the_command_quietly(words, files):
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "vyre", *words]
    done = subprocess.run(words, cwd=files, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    said = "error: there is no file nope.py" if "--json" in words else ""
    assert (done.returncode, done.stderr.partition(".py.")[0] + ".py" * bool(said)) == (2 if said else 141, said)


def test_help_is_a_word_too(capsys):
    assert inside("help", "run") == 0
    one = capsys.readouterr().out
    assert inside("run", "--help") == 0
    assert capsys.readouterr().out == one
    assert one.startswith("Usage: vyre run ")


@pytest.mark.parametrize(
    "words, names", [((), {"vyre", "vyre run", "vyre config show"}), (("config",), {"vyre config"})]
)
def test_commands_are_a_document_where_none_is_named(words, names, capsys):
    found = document(capsys, Commands, *words)
    assert names <= {each["name"] for each in found["commands"]}


@pytest.mark.parametrize("listed, preferred", [("nonsense", None), ("nonsense,cpu", "cpu"), ("reference", "reference")])
def test_a_backend_that_is_not_there_is_preferred_by_nobody(listed, preferred, capsys, monkeypatch):
    monkeypatch.setenv("VYRE_BACKEND", listed)
    code = 0 if preferred else 1
    assert document(capsys, Backends, "backends", code=code)["preferred"] == preferred


NOISY = "import os\nprint('one')\nos.write(1, b'two\\n')\nclass Odd(BaseException): pass\nraise {}('boo')\n"


@pytest.mark.parametrize("words", [("backends",), ("devices",), ("bench", "--size", "1", "--rounds", "1")])
def test_what_a_plugin_prints_stays_out_of_the_document(words, tmp_path):
    plugins = Plugins(tmp_path)
    plugins.add("noisy", NOISY.format("ValueError"))
    done = command(*words, "--json", cwd=tmp_path, **plugins.environ)
    assert "noisy" in str(json.loads(done.stdout))
    assert sorted(done.stderr.split()) == ["one", "two"]


def test_whatever_a_plugin_raises_disables_it_alone(tmp_path):
    plugins = Plugins(tmp_path)
    plugins.add("odd", NOISY.format("Odd"))
    done = command("backends", "--json", cwd=tmp_path, **plugins.environ)
    rows = {row["id"]: row for row in json.loads(done.stdout)["backends"]}
    assert (done.returncode, rows["cpu"]["disabled"], rows["odd"]["disabled"]) == (0, False, True)
    assert rows["odd"]["why_not"] == "loading its record failed: Odd: boo"
    assert "Traceback" not in done.stderr


def test_a_backend_is_asked_once_for_its_devices(capsys):
    asked = []
    board = BackendRegistration(id="board", open=print, unavailable=lambda: asked.append(1) or "it is not here")
    with registry.isolated(board):
        document(capsys, Devices, "devices", code=1)
    assert asked == [1]
