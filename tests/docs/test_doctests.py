"""The examples in docstrings give what they show."""

import doctest
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
PATHS = sorted(p for p in (SOURCE / "vyre").rglob("*.py") if ">>>" in p.read_text("utf-8"))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("name", [module_name(p) for p in PATHS])
def test_examples_give_what_they_show(name):
    module = importlib.import_module(name)
    ran = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert ran.attempted > 0
    assert ran.failed == 0


def test_there_are_examples():
    assert len(PATHS) > 10
