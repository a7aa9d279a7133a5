"""Importing vyre loads no NumPy, no device library and no heavy part of the standard library."""

import builtins
import subprocess
import sys

import pytest

import vyre
import vyre.driver

HEAVY = ("numpy", "asyncio", "importlib.metadata", "hypothesis", "dataclasses", "inspect", "concurrent.futures")
UNUSED = (*HEAVY, "sqlite3", "platformdirs")


@pytest.mark.parametrize(
    "statement", ["import vyre", "from vyre import kernel, In, Out, f32, gid, select", "import vyre.driver"]
)
def test_import_stays_light(statement):
    code = f"import sys\n{statement}\nprint(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sorted(sys.modules))"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert [m for m in UNUSED if m in loaded and m not in bare] == []


def test_the_first_kernel_call_loads_nothing_that_checks_results():
    code = "import sys, vyre.front.call, vyre.backends.cpu.run.launch\nprint(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [m for m in loaded if m.startswith(("vyre.driver.verify", "vyre.foundation.check.determinism"))] == []


def test_every_public_name_resolves():
    for name in vyre._WHERE:
        assert getattr(vyre, name) is not None
    assert set(vyre._WHERE) <= set(dir(vyre))


def test_a_star_import_brings_every_name_and_hides_no_function_of_python():
    names = {}
    exec("from vyre import *", names)
    assert set(vyre._WHERE) - set(names) == set(vyre._WHERE) & set(dir(builtins)) == {"compile", "pow", "round"}
    assert set(vyre.__all__) <= set(names)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        vyre.no_such_name  # noqa: B018


@pytest.mark.parametrize("name", [*sorted(vyre.driver._MODULES), "graph_capture"])
def test_a_module_imports_under_the_name_of_the_documentation(name):
    code = f"import vyre.driver.{name} as found\nimport vyre\nassert found is getattr(vyre.driver, {name!r})\n"
    code += "assert found.__spec__.name == found.__name__"
    subprocess.run([sys.executable, "-c", code], check=True)


FIRST_USES = ("plan.binding", "plan.grid", "plan.launch", "plan.outputs", "contract.backend", "pipeline.key", "guard")
AT_ONCE = f"""
import threading
from importlib import import_module

import vyre.driver

names = {FIRST_USES!r}
failed, start = [], threading.Barrier(len(names))

def first_use(name):
    start.wait()
    try:
        import_module("vyre.driver." + name)
    except BaseException as e:
        failed.append(repr(e))

threads = [threading.Thread(target=first_use, args=(name,)) for name in names]
for t in threads: t.start()
for t in threads: t.join()
print(failed)
"""


@pytest.mark.parametrize("attempt", range(3))
def test_threads_may_import_different_modules_of_a_room_at_once(attempt):
    done = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
