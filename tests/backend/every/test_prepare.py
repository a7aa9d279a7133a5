"""`prepare()` leaves nothing but the compilation for the first dispatch: the device is open, and its library loaded."""

import subprocess
import sys

import pytest

from ...support.device_backends import IDS, registration_or_skip

FIRST = """
import sys
from importlib import import_module
import vyre
from vyre import In, Out, gid, u32

@vyre.kernel
def more(x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] + 1

backend = import_module(f"vyre.backends.{sys.argv[1]}").REGISTRATION.open()
backend.prepare()

def refuse(*_):
    raise AssertionError("opened once more")

type(backend).open_device = refuse
pipeline = vyre.driver.pipeline.compile(backend, more.program)
before = set(sys.modules)
(found,) = pipeline.dispatch([bytes(400)])
assert bytes(found) == bytes([1, 0, 0, 0]) * 100
print(sorted(m for m in set(sys.modules) - before if not m.startswith("vyre.")))
"""


@pytest.mark.check
@pytest.mark.parametrize("id", ["cpu", *IDS])
def test_the_first_dispatch_opens_and_loads_nothing(id, tmp_path):
    registration_or_skip(id)
    script = tmp_path / "first.py"
    script.write_text(FIRST)
    done = subprocess.run([sys.executable, script, id], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
