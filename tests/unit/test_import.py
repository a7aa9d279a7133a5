"""Importing vyre loads no NumPy, no device library and no heavy part of the standard library."""

import builtins
import subprocess
import sys

import pytest

import vyre

HEAVY = ("numpy", "asyncio", "importlib.metadata", "hypothesis", "dataclasses", "inspect", "concurrent.futures")


@pytest.mark.parametrize(
    "statement", ["import vyre", "from vyre import kernel, In, Out, f32, gid, select", "import vyre.driver"]
)
def test_import_stays_light(statement):
    code = f"import sys\n{statement}\nprint(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sorted(sys.modules))"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert [m for m in HEAVY if m in loaded and m not in bare] == []


def test_every_public_name_resolves():
    for name in vyre._WHERE:
        assert getattr(vyre, name) is not None
    assert set(vyre._WHERE) <= set(dir(vyre))


def test_a_star_import_brings_every_name_and_hides_no_function_of_python():
    names = {}
    exec("from vyre import *", names)
    assert set(vyre._WHERE) - set(names) == set(vyre._WHERE) & set(dir(builtins)) == {"compile", "round"}
    assert set(vyre.__all__) <= set(names)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        vyre.no_such_name  # noqa: B018
