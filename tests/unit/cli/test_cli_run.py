"""`vyre run`: kernels and programs from files, arguments from options, results in files and on the screen."""

import json
import os
import signal
import sys
import time

import numpy as np
import pytest

import vyre
from vyre.cli.commands.run import Document, StepsDocument
from vyre.foundation.formats.blake3 import blake3

from ...support import cli_tool
from ...support.cli_tool import SAXPY, command, document, inside, misfits, parsed, refused, started

BACKENDS = [b.id for b in vyre.registered_backends_by_precedence() if b.unavailable() is None]
F32 = np.float32


files = cli_tool.files


# ---- the real entry point -------------------------------------------------------------------------------------------


def test_a_kernel_runs_from_the_shell(files):
    done = command("run", "saxpy.py", "-i", "alpha=2", "-i", "x=arange:100", "-i", "y=ones:100", "-b", "cpu", cwd=files)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "saxpy from saxpy.py on cpu: --backend cpu asks for it" in done.stdout
    assert "[1, 3, 5, 7, ...]" in done.stdout
    right = (2 * np.arange(100) + 1).astype(F32)
    assert blake3(right.tobytes()).hex() in done.stdout


def test_a_wrong_word_is_refused_from_the_shell_without_a_traceback(files):
    done = command("run", "saxpy.py", "-i", "alpha=2", cwd=files)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error: saxpy needs x, y. Fix: add --input x=random:1000 --input y=random:1000\n"


def test_ctrl_c_ends_a_run_that_is_inside_native_code(files):
    words = ["run", "kernels.py:spin", "-i", "n=4000000", "--sizes", "out=64", "-b", "cpu", "-o", "out=out.npy"]
    code = f"from vyre.cli import app; print('up', flush=True); raise SystemExit(app.main({words}))"
    with started([sys.executable, "-c", code], cwd=files) as running:
        running.stdout.readline()
        time.sleep(1.5)  # whether it compiles or runs by then, the answer is the same
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (130, "interrupted\n")
    assert [name for name in os.listdir(files) if "out" in name] == []


NOISY = """
import vyre
from vyre import In, Out, f32, gid


@vyre.kernel(workgroup=4)
def noisy(x: In[f32], out: Out[f32]) -> None:
    i = gid.x
    if i < len(out):
        print("x", x[i])
        assert x[i] < 9.0, "too large"
        out[i] = x[i]
"""


def test_what_a_kernel_prints_stands_on_stderr_and_is_no_result(files):
    (files / "noisy.py").write_text(NOISY, "utf-8")
    done = command("run", "noisy.py", "-i", "x=arange:2", "-b", "cpu", "--check", "--json", cwd=files)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "(0, 0, 0): x f32(0.0)\n(1, 0, 0): x f32(1.0)\n" * 2  # the reference runs it as well
    assert [(o["name"], o["head"]) for o in json.loads(done.stdout)["outputs"]] == [("out", [0.0, 1.0])]


def test_a_failed_assert_says_its_line_without_a_traceback(files):
    (files / "noisy.py").write_text(NOISY, "utf-8")
    done = command("run", "noisy.py", "-i", "x=arange:10", "-b", "cpu", cwd=files)
    assert done.returncode == 1
    assert "noisy.py:11: assertion failed: too large" in done.stderr
    assert "invocation=(9, 0, 0)" in done.stderr


# ---- results --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_gives_the_same_document_of_results(backend, capsys, files):
    words = ["run", "saxpy.py", "-i", "alpha=0.1", "-i", "x=random:1000", "-i", "y=random:1000@7"]
    found = document(capsys, Document, *words, "-b", backend)
    rng = [np.random.default_rng(seed).random(1000, F32) for seed in (0, 7)]
    right = vyre.Kernel.of_program(vyre.parse(_text(files)), "s").on("reference")(0.1, *rng)
    assert found["backend"] == backend
    (out,) = found["outputs"]
    assert (out["name"], out["element"], out["shape"], out["nbytes"]) == ("out", "f32", [1000], 4000)
    assert out["blake3"] == blake3(right.tobytes()).hex()
    assert out["head"] == right[:8].tolist()
    assert [i["origin"] for i in found["inputs"]] == ["number", "random:1000@0", "random:1000@7"]


def _text(files):
    assert inside("ir", "saxpy.py", "--wire", "saxpy.vir") == 0
    return str(vyre.Program.from_wire((files / "saxpy.vir").read_bytes()))


def test_without_a_word_the_best_backend_runs_and_the_others_are_told(capsys, monkeypatch):
    monkeypatch.delenv("VYRE_BACKEND", raising=False)
    found = document(capsys, Document, "run", "saxpy.py", "-i", "alpha=1", "-i", "x=zeros:3", "-i", "y=zeros:3")
    assert found["backend"] == vyre.select(vyre.parse(PROGRAM)).chosen
    assert found["why"] == "the first that is available and runs it"
    assert {o["backend"] for o in found["others"]} == {b.id for b in vyre.registered_backends()} - {found["backend"]}


def test_repetitions_are_timed_apart_and_compared(capsys):
    words = ["run", "saxpy.py", "-i", "alpha=1", "-i", "x=ones:64", "-i", "y=zeros:64", "-b", "cpu"]
    once = document(capsys, Document, *words)
    assert once["warm"] is None
    thrice = document(capsys, Document, *words, "--repeat", "3")
    assert thrice["warm"]["runs"] == 2
    assert thrice["warm"]["equal"] is True
    assert 0 < thrice["warm"]["min_ns"] <= thrice["warm"]["median_ns"]
    assert inside(*words, "--repeat", "3") == 0
    assert "median" in capsys.readouterr().out


def test_an_updated_array_begins_each_repetition_as_it_was_given(capsys):
    words = ["run", "kernels.py:count", "-i", "x=arange:64", "-i", "bins=zeros:4", "-b", "cpu", "--repeat", "3"]
    found = document(capsys, Document, *words)
    assert found["outputs"][0]["head"] == [64, 0, 0, 0]
    assert found["warm"]["equal"] is True


def test_a_compile_time_parameter_goes_by_its_name(capsys):
    words = ["run", "kernels.py:count", "-i", "x=arange:64", "-i", "bins=zeros:4", "-i", "shift=5", "-b", "cpu"]
    found = document(capsys, Document, *words)
    assert found["outputs"][0]["head"] == [32, 32, 0, 0]


def test_check_compares_with_the_reference(capsys):
    words = ["run", "saxpy.py", "-i", "alpha=3", "-i", "x=random:64", "-i", "y=random:64", "-b", "cpu", "--check"]
    found = document(capsys, Document, *words)
    assert found["check"] == {"backend": "reference", "equal": True, "difference": None}
    assert inside(*words) == 0
    assert "check: reference gives the same bytes" in capsys.readouterr().out


def test_unequal_bytes_are_exit_code_1_and_the_first_difference_is_named(capsys, monkeypatch):
    from vyre.cli.commands import run

    right = run.compare
    monkeypatch.setattr(run, "compare", lambda asked, results: right(asked, [results[0] + F32(1)]))
    words = ["run", "saxpy.py", "-i", "alpha=3", "-i", "x=ones:64", "-i", "y=ones:64", "-b", "cpu", "--check"]
    assert inside(*words) == 1
    assert "OTHER bytes, first at out[0]: 5.0 and 4.0" in capsys.readouterr().out


def test_repetitions_that_differ_are_exit_code_1(capsys, monkeypatch):
    from vyre.cli.commands import run

    monkeypatch.setattr(run, "same_bytes", lambda a, b: False)
    words = ["run", "kernels.py:racy", "-i", "x=zeros:64", "--sizes", "out=1", "-b", "cpu", "--repeat", "2"]
    assert inside(*words, "--domain", "64") == 1
    assert "calls gave different bytes (determinism: unproved)" in capsys.readouterr().out


def test_a_domain_gives_a_result_its_shape(capsys):
    found = document(capsys, Document, "run", "kernels.py:image", "--domain", "20x3", "-b", "cpu")
    assert (found["grid"], found["outputs"][0]["shape"]) == ([3, 1, 1], [3, 20])
    found = document(capsys, Document, "run", "kernels.py:image", "--grid", "3x1", "--sizes", "out=3x20", "-b", "cpu")
    assert found["outputs"][0]["shape"] == [3, 20]


PLANES = """
from vyre import D2, In, Out, f32, gid, kernel


@kernel(workgroup=(8, 8))
def double(x: In[f32, D2], out: Out[f32, D2]):
    out[gid.y, gid.x] = x[gid.y, gid.x] * 2.0


@kernel(workgroup=(8, 8))
def ones(out: Out[f32, D2]):
    out[gid.y, gid.x] = 1.0
"""


def test_a_kernel_of_planes_takes_shapes(capsys, files):
    (files / "planes.py").write_text(PLANES)
    found = document(capsys, Document, "run", "planes.py:double", "-i", "x=random:30x50", "-b", "cpu", "--check")
    assert (found["grid"], found["outputs"][0]["shape"]) == ([7, 4, 1], [30, 50])
    found = document(capsys, Document, "run", "planes.py:ones", "--sizes", "out=3x5", "-b", "cpu")
    assert found["outputs"][0]["shape"] == [3, 5]
    said = refused(capsys, "run", "planes.py:double", "-i", "x=random:30", "-b", "cpu")
    assert "Fix: pass --input x=random:HEIGHTxWIDTH, or declare it In[f32, D1]" in said
    assert "Fix: pass --sizes out=HEIGHTxWIDTH" in refused(capsys, "run", "planes.py:ones", "-b", "cpu")


def test_narrow_and_odd_types_are_made_as_declared(capsys):
    words = [
        "-i",
        "x=random:4",
        "-i",
        "h=arange:4",
        "-i",
        "half=random:4",
        "-i",
        "tiny=random:4",
        "-i",
        "wide=random:4",
    ]
    found = document(capsys, Document, "run", "kernels.py:flags", *words, "-b", "reference")
    x, h, half, tiny, wide = found["inputs"]
    assert all(type(v) is bool for v in x["head"])
    assert h["head"] == [0.0, 1.0, 2.0, 3.0]
    assert all(0 <= v < 1 for v in half["head"] + wide["head"])
    assert all(-128 <= v <= 127 for v in tiny["head"])
    out, h2 = found["outputs"]
    assert out["head"] == [not v for v in x["head"]]
    assert (h2["element"], h2["head"]) == ("bf16", h["head"])


def test_the_number_in_a_file_is_the_number_of_the_call(capsys, files):
    """Where the declared type is bfloat16, a file has its bits."""
    text = "import vyre\nfrom vyre import *\n@vyre.kernel\ndef one(v: bf16, out: Out[bf16, 1]):\n    out[gid.x] = v\n"
    (files / "one.py").write_text(text)
    (files / "v.bin").write_bytes(np.uint16([0x3FC0]).tobytes())
    for given, value in (("v.bin", 1.5), ("ones:1", 1.0), ("1.5", 1.5)):
        found = document(capsys, Document, "run", "one.py", "-i", f"v={given}", "-b", "reference")
        assert [row["head"] for row in (*found["inputs"], *found["outputs"])] == [[value], [value]]


def test_infinities_and_nan_survive_json(capsys, files):
    np.save(files / "x.npy", np.array([np.inf, -np.inf, np.nan], F32))
    found = document(
        capsys, Document, "run", "saxpy.py", "-i", "alpha=1", "-i", "x=x.npy", "-i", "y=zeros:3", "-b", "cpu"
    )
    assert found["outputs"][0]["head"] == ["inf", "-inf", "nan"]


# ---- files ----------------------------------------------------------------------------------------------------------


def test_arrays_come_from_files_and_results_go_to_files(capsys, files):
    x = np.linspace(0, 1, 12, dtype=F32).reshape(3, 4)
    np.save(files / "x.npy", x)
    (files / "out.npy").write_text("an older file")
    words = ["-i", "alpha=2", "-i", "x=x.npy", "-i", "y=zeros:3x4", "-o", "out=out.npy", "-b", "cpu"]
    found = document(capsys, Document, "run", "saxpy.py", *words)
    assert found["outputs"][0]["file"] == "out.npy"
    assert np.array_equal(np.load("out.npy"), 2 * x)
    x.tofile("x.bin")
    words = ["-i", "alpha=2", "-i", "x=x.bin", "-i", "y=zeros:12", "-o", "out=out.bin", "-b", "cpu"]
    assert inside("run", "saxpy.py", *words) == 0
    assert (files / "out.bin").read_bytes() == (2 * x).tobytes()
    assert sorted(os.listdir(files)) == ["kernels.py", "out.bin", "out.npy", "saxpy.py", "x.bin", "x.npy"]


PROGRAM = """
program workgroup(64, 1, 1) {
  buffer x @0 read u32
  buffer by @1 uniform u32[1]
  buffer sum @2 write u32
  region "adds" {
    if gid.x < len(sum) {
      sum[gid.x] = x[gid.x] + by[0]
    }
  }
}
"""


@pytest.mark.parametrize("form", ["text", "wire", "envelope"])
def test_a_program_runs_from_each_of_its_forms(form, capsys, files):
    from vyre.foundation.formats.text import to_envelope

    program = vyre.parse(PROGRAM)
    blob = {"text": PROGRAM.encode(), "wire": program.to_wire(), "envelope": to_envelope(program).encode()}[form]
    (files / "adds.program").write_bytes(blob)
    found = document(capsys, Document, "run", "adds.program", "-i", "x=arange:5", "-i", "by=0x10", "-b", "cpu")
    assert (found["form"], found["kernel"]) == (form, "adds")
    assert found["outputs"][0]["head"] == [16, 17, 18, 19, 20]


def test_what_a_file_prints_stays_out_of_the_document(files):
    (files / "talks.py").write_text("print('hello')\n" + SAXPY)
    words = ["-i", "alpha=2", "-i", "x=ones:4", "-i", "y=zeros:4", "-b", "reference", "--json"]
    done = command("run", "talks.py", *words, cwd=files)
    assert done.returncode == 0, done.stderr
    assert parsed(done.stdout, Document)["outputs"][0]["head"] == [2.0, 2.0, 2.0, 2.0]
    assert done.stderr == "hello\n"


def test_imported_kernels_count_where_a_file_defines_none(capsys, files):
    (files / "uses.py").write_text("from saxpy import saxpy\n")
    words = ["-i", "alpha=2", "-i", "x=ones:4", "-i", "y=zeros:4", "-b", "reference"]
    assert inside("run", "uses.py", *words) == 0
    assert "saxpy from uses.py" in capsys.readouterr().out
    del sys.modules["saxpy"]


def test_a_fallback_is_a_warning_on_stderr(capsys, monkeypatch):
    monkeypatch.setenv("VYRE_BACKEND", "no-such-backend,reference")
    monkeypatch.setenv("VYRE_STRICT", "0")
    assert inside("run", "saxpy.py", "-i", "alpha=1", "-i", "x=ones:2", "-i", "y=ones:2") == 0
    said = capsys.readouterr()
    assert "warning: running on reference, because no-such-backend cannot be used" in said.err
    assert "saxpy from saxpy.py on reference" in said.out


SMALL = """
from typing import NamedTuple, TypeVar

import vyre
from vyre import In, Out, c64, const, f32, gid, vec3

T = TypeVar("T")


class Body(NamedTuple):
    position: vec3
    mass: f32


@vyre.kernel
def total(x: In[T], out: Out[T], *, T: const):
    s = T(0)
    for k in range(len(x)):
        s += x[k]
    if gid.x == 0:
        out[0] = s


@vyre.kernel
def moved(by: vec3, bodies: In[Body], out: Out[vec3]):
    if gid.x < len(bodies):
        at = bodies[gid.x].position + by
        out[gid.x] = at


@vyre.kernel
def turned(z: In[c64], out: Out[c64]):
    if gid.x < len(z):
        out[gid.x] = z[gid.x] * 1j
"""


def test_a_generic_kernel_takes_a_type_by_its_name(capsys, files):
    (files / "small.py").write_text(SMALL)
    words = "run", "small.py:total", "-i", "T=i32", "-i", "x=arange:5", "--sizes", "out=1", "-b", "cpu"
    found = document(capsys, Document, *words)
    assert [(i["name"], i["element"]) for i in found["inputs"]] == [("x", "i32"), ("T", "const")]
    assert found["outputs"][0]["head"] == [10]


def test_small_values_are_numbers_and_rows(capsys, files):
    (files / "small.py").write_text(SMALL)
    words = "run", "small.py:moved", "-i", "by=0.5, 0,-1", "-i", "bodies=arange:2", "-b", "cpu", "--check"
    found = document(capsys, Document, *words)
    assert [i["shape"] for i in found["inputs"]] == [[3], [2, 4]]
    assert found["outputs"][0]["shape"] == [2, 3]
    assert found["outputs"][0]["head"] == [0.5, 1.0, 1.0, 4.5, 5.0, 5.0]
    np.arange(4, dtype=np.float32).tofile(files / "z.bin")
    np.save(files / "z.npy", np.array([1j, 2 + 3j], np.complex64))
    for given, head in (("z.bin", ["(-1+0j)", "(-3+2j)"]), ("z.npy", ["(-1+0j)", "(-3+2j)"])):
        found = document(capsys, Document, "run", "small.py:turned", "-i", f"z={given}", "-b", "cpu")
        assert found["outputs"][0]["head"] == head
    said = refused(capsys, "run", "small.py:moved", "-i", "by=1,2", "-i", "bodies=ones:2")
    assert "by is one vec3 and 1,2 has 2 of its 3 numbers. Fix: write --input by=0,0,0" in said
    said = refused(capsys, "run", "small.py:moved", "-i", "by=1,x", "-i", "bodies=ones:2")
    assert "--input by=x is not a number" in said
    assert "Fix: add --input by=1,1,1 --input bodies=random:1000" in refused(capsys, "run", "small.py:moved")


def test_one_invocation_is_shown_line_by_line(capsys, files):
    (files / "small.py").write_text(SMALL)
    words = "run", "small.py:moved", "-i", "by=1,0,0", "-i", "bodies=arange:2", "--step", "1"
    assert inside(*words) == 0
    first, _, third, last = capsys.readouterr().out.splitlines()
    assert first.split()[1:] == ["if", "gid.x", "<", "len(bodies):", "by={'x':", "1.0,", "'y':", "0.0,", "'z':", "0.0}"]
    assert "out[gid.x] = at" in third
    assert third.endswith("at={'x': 5.0, 'y': 5.0, 'z': 6.0}")
    assert "done" in last
    found = document(capsys, StepsDocument, *words)
    assert [at["done"] for at in found["steps"]] == [False, False, False, True]
    assert found["steps"][2]["locals"]["at"] == {"x": 5.0, "y": 5.0, "z": 6.0}
    said = refused(capsys, *words[:-1], "64")
    assert "none of the 64 x 1 x 1 that the call runs. Fix: pass a smaller one, or --domain N" in said
    for more in (["--check"], ["--repeat", "2"], ["-o", "out=o.npy"]):
        assert "Fix: leave out --output, --repeat, --check and --evidence" in refused(capsys, *words, *more)
    assert "--step one: 'one' is not a whole number" in refused(capsys, *words[:-1], "one")


# ---- refusals -------------------------------------------------------------------------------------------------------

GOOD = ("-i", "alpha=1", "-i", "x=ones:4", "-i", "y=ones:4", "-b", "reference")


@pytest.mark.parametrize(
    "words, text",
    [
        (["nope.py"], "there is no file nope.py"),
        (["saxpi.py"], "did you mean saxpy.py?"),
        (["."], ". is a directory"),
        (["saxpy.py:"], "names no kernel"),
        (["saxpy.py:nope"], "has no kernel nope; it has saxpy. Fix: name one: saxpy.py:saxpy"),
        (["kernels.py"], "has 7 kernels: saxpy, count, image, flags, spin, racy, above. Fix: name one: kernels.py:sax"),
        (["saxpy.py", "-i", "alpha"], "--input alpha is not name=value"),
        (["saxpy.py", "-i", "alpha=1", "-i", "alpha=2"], "--input names alpha twice"),
        (["saxpy.py", "-i", "alhpa=1"], "did you mean alpha?"),
        (["saxpy.py", "-i", "zzz=1"], "has no parameter zzz. Fix: use one of: alpha, x, y, out"),
        (["saxpy.py", "-i", "x=3"], "x is an array of f32 and 3 is a number"),
        (["saxpy.py", "-i", "alpha=random:3"], "alpha is one f32 and random:3 has 3 elements"),
        (["saxpy.py", "-i", "x=random:many"], "--input x=random:many: 'many' is not a whole number of 0 or more"),
        (["saxpy.py", "-i", "x=random:1.5"], "'1.5' is not a whole number of 0 or more"),
        (["saxpy.py", "-i", "x=random:4x"], "--input x=random:4x: '' is not a whole number of 0 or more"),
        (["saxpy.py", "-i", "x=zeros:4@1"], "has a seed and nothing random"),
        (["saxpy.py", "-i", "x=random:4@x"], "--input x=random:4@x: 'x' is not a whole number of 0 or more"),
        (["saxpy.py", "-i", "x=random:1e15"], "1000000000000000 elements and a buffer has at most 4294967295"),
        (["saxpy.py", "-i", "x=nope.npy"], "--input x=nope.npy: there is no such file"),
        (["saxpy.py", "-i", "x=saxpy.p"], "did you mean saxpy.py?"),
        (["saxpy.py", *GOOD, "--repeat", "0"], "--repeat 0 runs nothing"),
        (["saxpy.py", *GOOD, "-o", "sum=s.npy"], "has no result sum. Fix: use one of: out"),
        (["saxpy.py", *GOOD, "-o", "out=no/such/dir.npy"], "no file can be there"),
        (["saxpy.py", *GOOD, "-o", "out=."], "no file can be there"),
        (["saxpy.py", *GOOD, "--sizes", "sum=3"], "has no output sum to size"),
        (["saxpy.py", *GOOD, "--domain", "-1"], "--domain -1: '-1' is not a whole number of 0 or more"),
        (["saxpy.py", *GOOD, "--timeout", "-1"], "timeout"),
        (["saxpy.py", "-i", "alpha=1", "-i", "x=ones:4", "-i", "y=ones:5", "-b", "cpu"], "Fix: pass --sizes out=N"),
        (["kernels.py:racy", "-i", "x=ones:4", "--sizes", "out=1", "-b", "cpu"], "Fix: pass --domain N, or write"),
        (["kernels.py:above", "-i", "x=ones:4", "-b", "cpu"], "Fix: pass --domain WIDTHxHEIGHT, such as --domain 4xH"),
        (["kernels.py:count", "-i", "x=ones:4", "-i", "bins=zeros:4", "-i", "shift=x"], "shift=x is not a number"),
    ],
)
def test_wrong_words_are_refused_with_what_to_write(words, text, capsys):
    assert text in refused(capsys, "run", *words)


@pytest.mark.parametrize("dtype", [np.float64, np.int32])
def test_an_array_file_of_another_type_is_the_calls_own_error(dtype, capsys, files):
    np.save(files / "x.npy", np.zeros(4, dtype))
    said = refused(capsys, "run", "saxpy.py", "-i", "alpha=1", "-i", "x=x.npy", "-i", "y=ones:4", "-b", "reference")
    assert f"x holds {np.dtype(dtype)} and the kernel declares f32" in said


def test_damaged_files_are_refused(capsys, files):
    (files / "x.npy").write_bytes(b"not an array")
    (files / "x.bin").write_bytes(b"12345")
    (files / "binary").write_bytes(b"\xff\xfe\x00")
    words = ["run", "saxpy.py", "-i", "alpha=1", "-i", "y=ones:4"]
    assert "x.npy is not an array file" in refused(capsys, *words, "-i", "x=x.npy")
    with open(files / "many.npy", "wb") as stream:
        np.savez(stream, x=np.zeros(4, F32))
    assert "many.npy is an archive of arrays" in refused(capsys, *words, "-i", "x=many.npy")
    assert "x.bin has 5 bytes, which is not a whole number of f32" in refused(capsys, *words, "-i", "x=x.bin")
    assert "neither text nor a program" in refused(capsys, "run", "binary")
    (files / "p.vyre").write_text("program {")
    assert "error: p.vyre: " in refused(capsys, "run", "p.vyre", code=1)
    (files / "p.vir").write_bytes(b"VYRE\x06\x00")
    assert "error: p.vir: " in refused(capsys, "run", "p.vir", code=1)
    for text in ("", "dear reader\n"):
        (files / "letter.txt").write_text(text)
        assert "letter.txt holds no program. Fix: write one with" in refused(capsys, "run", "letter.txt")
    assert "no file is named" in refused(capsys, "run", "")
    (files / "p.vyre").write_text(PROGRAM)
    assert "holds one program" in refused(capsys, "run", "p.vyre:main")


def test_a_file_longer_than_any_program_is_refused(capsys, files, monkeypatch):
    from vyre.cli.inputs import programs

    monkeypatch.setattr(programs, "MAX_PROGRAM_BYTES", 10)
    (files / "p.vyre").write_text(PROGRAM)
    assert "is longer than 10 bytes" in refused(capsys, "run", "p.vyre")


def test_more_elements_than_the_memory_holds_are_refused(capsys, monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    said = refused(capsys, "run", "saxpy.py", "-i", "alpha=1", "-i", "x=zeros:1e6", code=1)
    assert "no memory for x [memory_bytes=10000] [nbytes=4000000]. Fix: ask for fewer elements" in said


def test_memory_that_runs_out_while_elements_are_made_is_said(capsys, monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr(np, "zeros", full)
    assert "no memory for x [nbytes=16]" in refused(capsys, "run", "saxpy.py", "-i", "x=zeros:4", code=1)


def test_what_is_no_plain_file_is_written_to_and_never_replaced(capsys, files):
    (files / "real.bin").write_bytes(b"older")
    (files / "real.bin").chmod(0o640)
    (files / "link.bin").symlink_to("real.bin")
    os.mkfifo(files / "pipe.bin")
    with started(["cat", "pipe.bin"], cwd=files, text=False) as reader:
        for name in ("link.bin", "pipe.bin"):
            assert inside("run", "saxpy.py", *GOOD, "-o", f"out={name}") == 0
        piped = reader.communicate(timeout=60)[0]
    assert piped == np.full(4, 2, F32).tobytes() == (files / "real.bin").read_bytes()
    assert (files / "link.bin").is_symlink()
    assert (files / "pipe.bin").is_fifo()
    assert (files / "real.bin").stat().st_mode & 0o777 == 0o640


def test_a_result_that_cannot_be_written_leaves_nothing_behind(capsys, files, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    said = refused(capsys, "run", "saxpy.py", *GOOD, "-o", "out=out.npy", code=1)
    assert "out.npy cannot be written: No space left on device" in said
    assert sorted(os.listdir(files)) == ["kernels.py", "saxpy.py"]


@pytest.mark.parametrize(
    "source, text",
    [
        ("def f():\n    raise RuntimeError('no data')\n\nf()\n", "bad.py:2: RuntimeError: no data"),
        ("x = 1 +\n", "bad.py:1: SyntaxError: invalid syntax"),
        ("import no_such_module.inside\n", "Fix: install no_such_module into the Python that runs vyre"),
        ("raise SystemExit(3)\n", 'Fix: put what ends the process under `if __name__ == "__main__":`'),
        ("assert False\n", "bad.py:1: AssertionError\n"),
        ("import vyre\n\n@vyre.kernel\ndef k(x):\n    pass\n", "bad.py:4: the parameter `x` has no annotation"),
    ],
)
def test_a_file_that_cannot_be_imported_says_where_and_why(source, text, capsys, files):
    (files / "bad.py").write_text(source)
    assert text in refused(capsys, "run", "bad.py", code=1)


def test_debug_shows_the_traceback_of_the_file(capsys, files):
    (files / "bad.py").write_text("def f():\n    raise RuntimeError('no data')\n\nf()\n")
    assert inside("run", "bad.py", "--debug") == 1
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert said.index("in f") < said.index("Fix: ")


def test_a_file_without_kernels_is_refused(capsys, files):
    (files / "empty.py").write_text("x = 1\n")
    assert "empty.py has no kernel. Fix: write @vyre.kernel" in refused(capsys, "run", "empty.py")


def test_an_error_with_json_is_a_document(capsys):
    assert inside("run", "saxpy.py", "--json") == 2
    said = json.loads(capsys.readouterr().out)
    assert said["error"]["name"] == "ArgumentTypeError"
    assert said["error"]["message"] == "saxpy needs alpha, x, y"


def test_the_check_of_documents_sees_a_wrong_one():
    assert misfits({}, Document) != []
    assert misfits([1], list[str]) == ["[0]: 1 is not <class 'str'>"]
    assert misfits({"a": None}, dict[str, int | None]) == []
    assert misfits({"a": "b"}, dict[str, int | None]) != []


GENERIC = """
from typing import TypeVar

from vyre import In, Out, const, gid, kernel

T = TypeVar("T")


@kernel
def doubled(x: In[T], out: Out[T], *, T: const):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * T(2)
"""


def test_the_type_of_a_generic_kernel_is_an_input(capsys, files, monkeypatch):
    (files / "generic.py").write_text(GENERIC, "utf-8")
    monkeypatch.chdir(files)
    for t, dtype in (("f32", "<f4"), ("vyre.i32", "<i4")):
        found = document(capsys, Document, "run", "generic.py", "-i", "x=arange:4", "-i", f"T={t}", "-b", "cpu")
        assert found["outputs"][0]["blake3"] == blake3((2 * np.arange(4)).astype(dtype).tobytes()).hex()
        assert inside("ir", "generic.py", "--const", f"T={t}") == 0
        assert f"buffer x @0 read {t.removeprefix('vyre.')}" in capsys.readouterr().out
    assert "pass T=vyre.f32" in refused(capsys, "run", "generic.py", "-i", "x=arange:4", "-b", "cpu")
    assert "T=f31 is not a number" in refused(capsys, "run", "generic.py", "-i", "x=arange:4", "-i", "T=f31")
