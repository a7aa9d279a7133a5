"""`vyre ir`: a program as text, wire, facts and emitted code."""

import json

import pytest

import vyre
from vyre.cli.commands.ir import Document
from vyre.driver.selection.registry import isolated

from ...support import cli_tool
from ...support.cli_tool import command, document, inside, refused

EMITTERS = {"cuda": "__global__", "opencl": "__kernel", "wgpu": "@compute", "cpu": "define"}
INVALID = """
program workgroup(64, 1, 1) {
  buffer out @0 write u32
  region "r" {
    out[gid.x] = nobody
  }
}
"""
GRID_WIDE = """
program workgroup(64, 1, 1) {
  buffer a @0 rw u32
  region "r" {
    a[gid.x] = gid.x
    barrier(grid_sync)
    a[gid.x] = a[gid.x] + 1
  }
}
"""


files = cli_tool.files


def test_the_text_form_is_what_the_shell_shows(files):
    done = command("ir", "saxpy.py", cwd=files)
    assert (done.returncode, done.stderr) == (0, "")
    program = vyre.parse(done.stdout)
    assert [b.name for b in program.buffers] == ["alpha", "x", "y", "out"]
    assert vyre.validate(program) == []


def test_a_missing_file_is_refused_from_the_shell(files):
    done = command("ir", "nope.vyre", cwd=files)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: there is no file nope.vyre. Fix: ")


def test_the_wire_form_of_each_form_is_the_same_program(capsys, files):
    assert inside("ir", "saxpy.py", "--wire", "a.vir") == 0
    assert capsys.readouterr().out.startswith("a.vir: ")
    assert inside("ir", "a.vir") == 0
    (files / "b.vyre").write_text(capsys.readouterr().out)
    assert inside("ir", "b.vyre", "--wire", "c.vir") == 0
    assert (files / "a.vir").read_bytes() == (files / "c.vir").read_bytes()
    prints = set()
    for file in ("saxpy.py", "a.vir", "b.vyre"):
        capsys.readouterr()
        assert inside("ir", file, "--fingerprint") == 0
        prints.add(capsys.readouterr().out.strip())
    assert prints == {vyre.Program.from_wire((files / "a.vir").read_bytes()).fingerprint}


def test_the_document_has_everything(capsys, files):
    found = document(capsys, Document, "ir", "saxpy.py", "--stats", "--emit", "cpu", "--wire", "a.vir")
    program = vyre.parse(found["text"])
    assert found["fingerprint"] == program.fingerprint
    assert (found["valid"], found["findings"], found["wire_file"]) == (True, [], "a.vir")
    assert found["wire_bytes"] == len((files / "a.vir").read_bytes())
    assert found["buffers"][3] == {"name": "out", "slot": 3, "access": "write_only", "element": "f32", "count": 0}
    assert found["facts"]["counts"]["loads"] == 3
    assert found["facts"]["determinism"] == "proved for grids with one workgroup along y and z"
    store = f"saxpy.py:{cli_tool.SAXPY_STORE}"
    met = f"on other grids, store and store of two invocations may meet in 'out', at {store}"
    assert found["facts"]["reasons"] == [met]
    assert found["facts"]["requirements"]["invocations"] == 64
    assert "vyre.node.store" in found["facts"]["ops"]
    assert found["emitted"]["target"] == "cpu"
    assert document(capsys, Document, "ir", "saxpy.py")["facts"] is None


def test_stats_say_why_a_program_is_not_proved_deterministic(capsys):
    assert inside("ir", "kernels.py:racy", "--stats") == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith("determinism"))
    assert "unproved" in lines[at]
    assert "out" in lines[at + 1]


@pytest.mark.parametrize("target", EMITTERS)
def test_code_of_every_target_is_emitted_without_its_device(target, capsys):
    assert inside("ir", "saxpy.py", "--emit", target) == 0
    assert EMITTERS[target] in capsys.readouterr().out


@pytest.mark.parametrize("target", ["cpu", "opencl", "wgpu"])
def test_code_for_a_device_is_what_its_pipeline_holds(target, capsys):
    if why := next(b for b in vyre.registered_backends() if b.id == target).unavailable():
        pytest.skip(why)
    assert inside("ir", "saxpy.py", "--emit", f"{target}:0") == 0
    text = capsys.readouterr().out
    assert inside("ir", "saxpy.py") == 0
    compiled = vyre.compile(vyre.parse(capsys.readouterr().out), backend=f"{target}:0")
    assert text.rstrip("\n") == compiled.native.source.rstrip("\n")


def test_a_program_that_is_cut_into_launches_has_a_text_for_each(capsys, files):
    (files / "two.vyre").write_text(GRID_WIDE)
    found = document(capsys, Document, "ir", "two.vyre", "--emit", "cpu")
    assert len(found["emitted"]["texts"]) == 2
    assert inside("ir", "two.vyre", "--emit", "cpu") == 0
    said = capsys.readouterr()
    assert "2 texts: grid-wide barriers cut the program" in said.err
    assert said.out.count("define void @vyre_run") == 2


def test_compile_time_parameters_take_values(capsys):
    texts = []
    for words in ([], *([option, "shift=3"] for option in ("--const", "--input", "-i"))):
        assert inside("ir", "kernels.py:count", *words) == 0
        texts.append(capsys.readouterr().out)
    assert ">> 30" in texts[0]
    assert ">> 3" in texts[1]
    assert texts[1] == texts[2] == texts[3]
    for option in ("--const", "-i"):
        assert inside("run", "kernels.py:count", "-i", "x=ones:4", "-i", "bins=zeros:4", option, "shift=0") == 0
        assert "0, 4, 0, 0" in capsys.readouterr().out.replace(" ", "").replace(",", ", ")
    assert "no compile-time parameter x" in refused(capsys, "ir", "kernels.py:count", "--const", "x=3")


def test_an_invalid_program_is_shown_with_its_findings_and_exit_code_1(capsys, files):
    (files / "bad.vyre").write_text(INVALID)
    assert inside("ir", "bad.vyre") == 1
    said = capsys.readouterr()
    assert "out[gid.x] = nobody" in said.out
    assert said.err.startswith("error: V066 at ")
    assert "Fix: " in said.err
    found = document(capsys, Document, "ir", "bad.vyre", "--emit", "cpu", "--stats", code=1)
    assert (found["valid"], found["emitted"]) == (False, None)
    assert [(f["code"], f["severity"]) for f in found["findings"]] == [("V066", "error")]


def test_a_text_that_is_no_program_says_where(capsys, files):
    (files / "bad.vyre").write_text("program workgroup(64, 1, 1) {\n  bufer x\n}\n")
    assert "line" in refused(capsys, "ir", "bad.vyre", code=1)


@pytest.mark.parametrize(
    "words, code, text",
    [
        (["--emit", "reference"], 1, "backend reference makes no text of programs"),
        (["--emit", "reference:0"], 1, "reference:0 keeps no text of what it compiles"),
        (["--emit", "nobody"], 1, "there is no backend nobody [backend='nobody']. Fix: use one of: "),
        (["--emit", "nobody:0"], 1, "backend 'nobody' is not linked"),
        (["--stats", "--fingerprint"], 2, "--stats and --fingerprint cannot be printed together"),
        (["--wire", "no/such/file.vir"], 2, "--wire no/such/file.vir: no file can be there"),
        (["--const", "n"], 2, "--const n is not name=value"),
    ],
)
def test_wrong_words_are_refused(words, code, text, capsys):
    assert text in refused(capsys, "ir", "saxpy.py", *words, code=code)


def test_what_a_target_cannot_express_is_said(capsys):
    said = refused(capsys, "ir", "kernels.py:flags", "--emit", "wgpu", code=1)
    assert "f64" in said


def test_an_emitter_of_another_package_is_asked_by_its_id(capsys):
    mine = vyre.BackendRegistration(id="mine", open=lambda device=None: None, emit=lambda p: f"mine {len(p.buffers)}")
    with isolated(mine):
        assert inside("ir", "saxpy.py", "--emit", "mine") == 0
    assert capsys.readouterr().out == "mine 4\n"


def test_an_error_with_json_is_a_document(capsys):
    assert inside("ir", "nope.py", "--json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["name"] == "ArgumentValueError"
