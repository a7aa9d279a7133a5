"""Where the text of a kernel comes from: files, prompts, `python -c`, standard input, or the caller."""

from __future__ import annotations

import linecache
import os
import select
import subprocess
import sys

import pytest

import vyre
from vyre import Out, f32, gid, u32
from vyre.foundation.language.kernel import read_source

PROGRAM = """\
import vyre
from vyre import Out, gid, u32

SCALE = 7

@vyre.kernel(workgroup=4)
def k(out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = gid.x * SCALE

print("gave", k.on("reference")(sizes={"out": 3}).tolist())
"""
GAVE = "gave [0, 7, 14]"


def python(*options: str, **how: object) -> subprocess.CompletedProcess:
    """What an interpreter of its own says to a program that reaches it in some way."""
    return subprocess.run(
        [sys.executable, *options], capture_output=True, text=True, timeout=100, check=False, **{"input": "", **how}
    )


@pytest.mark.parametrize("text", [PROGRAM, f"from __future__ import annotations\n{PROGRAM}"])
def test_a_kernel_on_the_command_line_has_its_text(text):
    assert GAVE in python("-c", text).stdout


def test_options_before_the_text_and_arguments_behind_it_do_not_matter():
    assert GAVE in python("-Xutf8", "-W", "ignore", f"-c{PROGRAM}", "-c", "def k(out): pass").stdout


@pytest.mark.parametrize("options", [(), ("-",), ("-i",)])
def test_a_file_that_is_the_standard_input_has_its_text(tmp_path, options):
    script = tmp_path / "script"
    script.write_text(PROGRAM)
    with script.open() as file:
        own = os.environ | {"HOME": str(tmp_path)}  # an interactive Python writes its history there
        assert GAVE in python(*options, input=None, stdin=file, env=own).stdout


def test_what_came_through_a_pipe_is_gone_and_the_error_says_what_to_do():
    said = python("-", input=PROGRAM).stderr
    assert "not available: Python keeps nothing of what it reads from a pipe" in said
    assert 'in a file or a notebook cell, or pass its text: vyre.kernel(source="def k(...")' in said


def test_what_exec_ran_is_gone_and_the_error_says_what_to_do():
    names = {"Out": Out, "u32": u32}
    exec("def k(out: Out[u32]):\n    out[0] = 5\n", names)
    with pytest.raises(vyre.KernelError, match=r"not available: exec\(\) keeps nothing of its text") as e:
        read_source(names["k"], 1)
    assert 'pass its text: vyre.kernel(source="def k(...")' in e.value.fix


@pytest.mark.parametrize("text, found", [("5 + m", True), ("5 - m", False), ("5 + n", False)])
def test_of_texts_that_share_a_name_only_the_very_one_counts(monkeypatch, text, found):
    """Names and numbers alone do not tell `+` from `-`."""
    names = {"Out": Out, "u32": u32, "m": 3, "n": 3}
    exec("def k(out: Out[u32]):\n    out[0] = 5 + m\n", names)
    lines = f"def k(out: Out[u32]):\n    out[0] = {text}\n".splitlines(True)
    monkeypatch.setitem(linecache.cache, "<string>", (len(lines), None, lines, "<string>"))
    if found:
        assert read_source(names["k"], 1).name == "k"
    else:
        with pytest.raises(vyre.KernelError, match="not available"):
            read_source(names["k"], 1)


FACTORY = """\
def make(n):
    @vyre.kernel(workgroup=1)
    def made(out: Out[u32]):
        out[0] = n
    return made

print("made", make(5).on("reference")(sizes={"out": 1}).tolist())
"""


def test_kernels_are_defined_at_the_prompt_of_a_terminal(tmp_path):
    pty = pytest.importorskip("pty")
    pid, terminal = pty.fork()
    if pid == 0:
        env = os.environ | {"HOME": str(tmp_path), "PYTHON_BASIC_REPL": "1", "TERM": "dumb"}
        os.execve(sys.executable, [sys.executable, "-q"], env)
    said = ""
    try:
        os.write(terminal, f"{PROGRAM}{FACTORY}print('THE', 'END')\n".encode())
        while "THE END" not in said and select.select([terminal], [], [], 100)[0]:
            said += os.read(terminal, 65536).decode(errors="replace")
        os.write(terminal, b"\x04")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    assert GAVE in said
    assert "made [5]" in said


# ---- the text itself ------------------------------------------------------------------------------------------------


def test_a_kernel_can_be_given_as_text_and_sees_the_names_of_its_caller():
    scale = 3
    k = vyre.kernel(
        source="""
        @vyre.device
        def twice(x):
            return x * 2

        def k(out: Out[u32]):
            if gid.x < len(out):
                out[gid.x] = twice(gid.x) * scale
        """,
        workgroup=4,
    )
    assert k.workgroup == (4, 1, 1)
    assert k.on("reference")(sizes={"out": 3}).tolist() == [0, 6, 12]
    assert (scale, gid, f32) != (0, 0, 0)  # used in the text


def test_an_error_in_a_text_shows_its_line():
    with pytest.raises(vyre.KernelError, match="`missing` is not defined") as e:
        vyre.kernel(source="def k(out: Out[u32]):\n    out[0] = missing\n")
    assert (e.value.lineno, e.value.text) == (2, "    out[0] = missing")
    with pytest.raises(vyre.KernelError, match=r"the text is not Python: (?s:.*)Fix: correct this line") as e:
        vyre.kernel(source="def k(out: Out[u32]):\n    out[0] = (\n")
    assert e.value.lineno == 2
    with pytest.raises(vyre.KernelError, match=r"the text is not Python: .*null bytes"):
        vyre.kernel(source="def k(out):\0")


@pytest.mark.parametrize(
    "text", ["", "x = 1", "def k(out: Out[u32]): pass\nx = 1", "@vyre.kernel\ndef k(out: Out[u32]): pass"]
)
def test_a_text_ends_with_a_plain_function(text):
    with pytest.raises(vyre.ArgumentValueError, match=r"does not end with a plain function.*without a decorator"):
        vyre.kernel(source=text)


def test_a_text_is_a_text_and_stands_alone():
    with pytest.raises(vyre.ArgumentTypeError, match=r"source is a int\. Fix: pass a text"):
        vyre.kernel(source=3)
    with pytest.raises(vyre.ArgumentTypeError, match=r"got a function and a text\. Fix: pass one of them"):
        vyre.kernel(lambda: 0, source="def k(): pass")
