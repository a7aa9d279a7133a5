"""The traceback of a caller's mistake ends at the caller's line; `VYRE_DEBUG=1` shows the functions that found it."""

import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest

import vyre
from vyre import In, Out, const, f32, gid
from vyre.driver.settings import knobs

HERE = Path(__file__).name


@vyre.kernel
def plain(x: In[f32], out: Out[f32], *, n: const = 1):
    if gid.x < len(x):
        out[gid.x] = x[gid.x] * n


def frames(error):
    return [Path(entry.filename).name for entry in traceback.extract_tb(error.__traceback__)]


def wrong_kernel(function):
    def k(x: In[f32], out: Out[f32]):
        out[0] = x[0] + gid.x

    return function(k)


MISTAKES = {
    "type": lambda: plain(np.arange(4)),
    "count": lambda: plain(),
    "number": lambda: plain(np.zeros(4, np.float32), n="text"),
    "started": lambda: plain.start(np.arange(4)),
    "explained": lambda: plain.explain(np.arange(4)),
    "specialized": lambda: plain.specialize(m=3),
    "kernel": lambda: wrong_kernel(vyre.kernel),
    "kernel with options": lambda: wrong_kernel(vyre.kernel(workgroup=4)),
    "text": lambda: vyre.kernel(source="def k(x: In[f32]):\n    x[0] = 1.0"),
    "option": lambda: vyre.kernel(block=4),
}
every_mistake = pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)


@every_mistake
def test_it_ends_at_the_line_of_the_caller(mistake):
    with pytest.raises(vyre.VyreError) as caught:
        mistake()
    assert set(frames(caught.value)) == {HERE}


@every_mistake
def test_it_is_whole_for_authors(mistake, monkeypatch):
    with vyre.config(debug=True), pytest.raises(vyre.VyreError) as caught:
        mistake()
    assert "kernel.py" in frames(caught.value)
    monkeypatch.setenv("VYRE_DEBUG", "perhaps")  # neither yes nor no: nothing is lost
    with pytest.raises(vyre.VyreError) as caught:
        mistake()
    assert "kernel.py" in frames(caught.value)


def test_frames_of_others_inside_ours_stay_and_so_does_the_cause():
    class Argument:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("no elements today")

    with pytest.raises(vyre.ArgumentTypeError, match="no elements today") as caught:
        plain(Argument())
    cause = caught.value.__cause__
    assert isinstance(cause, RuntimeError)
    assert frames(cause)[-1] == HERE

    class Sizes(dict):
        def items(self):
            plain(np.arange(4))

    with pytest.raises(vyre.ArgumentTypeError, match="x holds int64") as caught:
        plain(np.zeros(4, np.float32), sizes=Sizes(out=3))
    names = [entry.name for entry in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-1] == "items"


def test_errors_of_backends_keep_their_frames():
    with pytest.raises(vyre.BackendUnavailable) as caught:
        plain.on("nowhere")(np.zeros(4, np.float32))
    assert "call.py" in frames(caught.value)


SCRIPT = """\
import numpy as np
import vyre
from vyre import In, Out, f32, gid


@vyre.kernel
def k(x: In[f32], out: Out[f32]):
    out[gid.x] = x[gid.x]


def test_of_a_user():
    k(np.arange(4))


if __name__ == "__main__":
    test_of_a_user()
"""


def test_a_script_shows_two_frames_and_pytest_one(tmp_path):
    script = tmp_path / "test_script.py"
    script.write_text(SCRIPT)
    how = {"capture_output": True, "text": True, "timeout": 100, "check": False, "cwd": tmp_path}
    said = subprocess.run([sys.executable, script], **how).stderr
    assert [line.strip() for line in said.splitlines() if line.startswith("  File")] == [
        f'File "{script}", line 16, in <module>',
        f'File "{script}", line 12, in test_of_a_user',
    ]
    assert said.splitlines()[-1].endswith("x holds int64 and the kernel declares f32 [argument='x']. "
                                          "Fix: x.astype(np.float32)")  # fmt: skip
    told = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", script], **how).stdout
    assert "test_script.py:12: ArgumentTypeError" in told
    assert "kernel.py" not in told


def test_the_command_line_shows_all_frames_only_if_asked(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("x[gid.x]", "x[gid.x] + gid.x"))
    how = {"capture_output": True, "text": True, "timeout": 100, "check": False}
    command = [sys.executable, "-m", "vyre", "ir", str(script)]
    assert "Traceback" not in subprocess.run(command, **how).stderr
    assert "kernel.py" in subprocess.run([*command, "--debug"], **how).stderr


def test_a_call_that_succeeds_reads_no_setting_for_it(monkeypatch):
    def read(self):
        raise AssertionError("the knob was read")

    plain.on("reference")(np.zeros(4, np.float32))
    monkeypatch.setattr(type(knobs.DEBUG), "value", read)
    plain.on("reference")(np.zeros(4, np.float32))
