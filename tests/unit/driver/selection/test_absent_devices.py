"""A backend whose library is not installed names no devices and says what to install; nothing is raised."""

import subprocess
import sys

import pytest

HIDDEN = """
import sys
sys.modules[{module!r}] = None  # as if it were not installed
import vyre
from vyre.driver.selection.registry import backend_registration
print(vyre.devices({id!r}))
print(backend_registration({id!r}).unavailable())
"""


@pytest.mark.parametrize("id,module", [("cuda", "cuda"), ("opencl", "pyopencl"), ("wgpu", "wgpu")])
def test_a_backend_without_its_library_names_no_devices_and_says_what_to_install(id, module, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN.format(id=id, module=module)],
        capture_output=True,
        text=True,
        env={"VYRE_CACHE_DIR": str(tmp_path), "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    devices, why = done.stdout.splitlines()
    assert devices == "()"
    assert f"pip install 'vyre[{id}]'" in why
