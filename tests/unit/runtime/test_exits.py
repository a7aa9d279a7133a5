"""A process that leaves without what libraries registered for its end, but with all that Python and the user did."""

import ctypes
import subprocess
import sys

import pytest

import vyre
from vyre import In, Out, gid, u32

SCRIPT = """
import atexit, ctypes, os, signal, sys
from vyre.runtime.exits import skip_exit_handlers
libc = ctypes.CDLL(None)
libc.__cxa_atexit(libc.pause, None, None)  # a driver that waits
atexit.register(print, "python's handlers ran")
{skip}
libc.printf(b"the c library's buffer\\n")
print("python's buffer")
{end}
"""
HAS_WAY = sys.platform != "win32" and hasattr(ctypes.CDLL(None), "on_exit")


@vyre.kernel(workgroup=64)
def endless(x: In[u32], rounds: u32, out: Out[u32]):
    """Work for years, if there are many rounds."""
    v = x[gid.x]
    for _ in range(rounds):
        for k in range(rounds):
            v = (v ^ k) * 1664525 + 1013904223
    out[gid.x] = v


def register_with_c(line):
    """Have the C library print a line when the process ends, as a driver would have it do other things."""
    if HAS_WAY:
        libc = ctypes.CDLL(None)
        libc.strdup.restype = ctypes.c_void_p
        libc.__cxa_atexit(libc.puts, ctypes.c_void_p(libc.strdup(line)), None)


pytestmark = pytest.mark.skipif(not HAS_WAY, reason="only glibc can skip exit handlers")


def ended(end, skip="skip_exit_handlers()", timeout=60):
    script = SCRIPT.format(skip=skip, end=end)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=timeout)


@pytest.mark.parametrize(
    "end, status",
    [
        ("", 0),
        ("sys.exit(7)", 7),
        ("sys.exit('no')", 1),
        ("raise KeyError(1)", 1),
        ("libc.exit(9)", 9),
        ("os.kill(os.getpid(), signal.SIGTERM)", -15),
        ("raise KeyboardInterrupt", -2),
    ],
)
def test_the_status_of_the_process_stays(end, status):
    assert ended(end).returncode == status


def test_everything_that_was_written_arrives_and_python_ends_as_ever():
    lines = ended("sys.exit(7)").stdout.splitlines()
    assert sorted(lines) == ["python's buffer", "python's handlers ran", "the c library's buffer"]
    assert lines.index("python's buffer") < lines.index("python's handlers ran")


def test_it_may_be_asked_for_twice_and_while_python_ends():
    done = ended("atexit.register(skip_exit_handlers)\nsys.exit(7)", skip="skip_exit_handlers()")
    assert (done.returncode, len(done.stdout.splitlines())) == (7, 3)
    done = ended("atexit.register(skip_exit_handlers)\nsys.exit(7)", skip="")
    assert (done.returncode, len(done.stdout.splitlines())) == (7, 3)


@pytest.mark.check
def test_without_it_the_process_waits():
    with pytest.raises(subprocess.TimeoutExpired):
        ended("", skip="", timeout=3)
