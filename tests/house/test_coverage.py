"""The ledger of the driver's names is true: each is importable, used and proved by a test, or comes with an area.

A name that makes no sense here is not to be had at all, and the ledger says why.
"""

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

import vyre.driver

ROOT = Path(__file__).parents[2]


def load(folder, name):
    spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


render_coverage = load("docs", "render_coverage")
ledger = load("bench", "ledger")
LEDGER = render_coverage.load()
SECTIONS = {"re-exports": 132, "modules": 64, "items": 18}
ENTRIES = [(section, name, entry) for section in SECTIONS for name, entry in LEDGER[section].items()]
HERE = [(name, entry) for _, name, entry in ENTRIES if "path" in entry]
VOID = [(name, entry) for _, name, entry in ENTRIES if "void" in entry]
ROWS = [pytest.param(row, id=row.name) for row in ledger.rows()]


@cache
def parsed(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text("utf-8"))


def test_the_ledger_has_every_name():
    assert {section: len(LEDGER[section]) for section in SECTIONS} == SECTIONS
    assert set(LEDGER) == {*SECTIONS, "areas"}


def test_an_entry_is_here_or_comes_with_an_area_or_is_void():
    for section, name, entry in ENTRIES:
        assert set(entry) in ({"path", "caller", "test"}, {"path", "later", "test"}, {"later"}, {"void"}), name
        assert entry.get("later", LEDGER["areas"][0]) in LEDGER["areas"], name
        if "path" not in entry and section != "modules":
            assert name not in vyre.driver._WHERE


def test_every_area_still_brings_something():
    assert set(LEDGER["areas"]) == {entry["later"] for _, _, entry in ENTRIES if "later" in entry}


def test_what_is_void_has_a_reason_and_is_not_to_be_had():
    for name, entry in VOID:
        assert re.fullmatch(r"[^\n|]+[^\n|.]", entry["void"]), name
        assert not hasattr(vyre.driver, name), name
        assert importlib.util.find_spec(f"vyre.driver.{name}") is None, name


def test_a_name_is_importable_from_the_driver_under_its_own_spelling():
    offered = dir(vyre.driver)
    for name, entry in HERE:
        assert getattr(vyre.driver, name) is ledger.resolve(entry["path"]), name
        assert name in offered


def test_a_name_has_a_caller():
    for row in ledger.rows():
        assert row.file.startswith("src/"), row.name
        assert ledger.uses(row, parsed(row.file)), f"{row.caller} does not use {row.path}"


def test_a_name_has_a_test():
    for name, entry in HERE:
        path, _, function = entry["test"].partition("::")
        assert Path(path).name.startswith("test_"), name
        assert function.rpartition(".")[2].startswith("test_"), name
        assert ledger.find(parsed(path), function) is not None, f"{path} has no {function}"


@pytest.mark.sweep
@pytest.mark.timeout(2 * ledger.SECONDS)
@pytest.mark.parametrize("row", ROWS)
def test_the_test_of_a_name_fails_when_its_caller_is_cut(row):
    does = ledger.outcome(row)
    if does == "skips":
        pytest.skip(f"{row.test} cannot run here")
    assert does == "fails", f"without {row.name} in {row.caller}, {row.test} {does}"


# ---- what counts as a use -------------------------------------------------------------------------------------------


def uses_of(text, path="vyre.errors.VyreError", caller="src/vyre/made.py::f"):
    return [ast.unparse(node) for node in ledger.uses(ledger.Row("name", path, caller, ""), ast.parse(text))]


@pytest.mark.parametrize(
    "text",
    [
        "from .errors import VyreError\ndef f(x): return isinstance(x, VyreError)",
        "from .errors import VyreError as E\ndef f(x): return isinstance(x, E)",
        "def f(x):\n    from . import errors\n    return errors.VyreError(x)",
        "from .errors import VyreError\ndef f(x):\n    match x:\n        case VyreError(): return 1",
        "from .errors import VyreError\ndef f(x=VyreError()): pass",
        "from .errors import VyreError\nclass f(VyreError): pass",
    ],
)
def test_what_is_computed_is_a_use(text):
    assert len(uses_of(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "from .errors import VyreError\ndef f(x): return x",
        "def f(x):\n    from .errors import VyreError\n    return x",
        "from .errors import VyreError\ndef f(x: VyreError, *y: VyreError) -> VyreError: return x",
        "from .errors import VyreError\ndef f(x):\n    y: VyreError = x\n    return y",
        "from .errors import VyreError\ndef f(x):\n    y: TypeAlias = VyreError\n    return x",
        "from .errors import VyreError\ndef f(x): return cast(VyreError, x)",
        "from .errors import VyreError\nclass f(list[VyreError]): pass",
        "from .errors import VyreError\ndef f(x):\n    if TYPE_CHECKING:\n        VyreError(x)",
        "from .errors import VyreError\ndef f(VyreError): return VyreError",
        "from .errors import BackendError as VyreError\ndef f(x): return VyreError(x)",
        "from .errors import VyreError\ndef f(x): return x.VyreError",
        "from .errors import VyreError\ndef g(x): return VyreError(x)",
    ],
)
def test_an_import_an_annotation_and_a_namesake_are_none(text):
    assert uses_of(text) == []


def test_of_a_module_whatever_comes_from_it_is_a_use():
    wire = ".foundation.formats.wire"
    text = f"from {wire}.read import one\nfrom {wire} import read\ndef f(x): return one, read.all"
    assert uses_of(text, "vyre.foundation.formats.wire") == ["one", "read"]
    assert uses_of(text, "vyre.foundation.formats.wire.read") == ["one", "read"]
    assert uses_of(text, "vyre.foundation.formats.wire.write") == []


def test_a_use_while_it_is_loaded_counts_where_there_is_no_other():
    text = "from .errors import VyreError\ndef f(x=VyreError(0)): return VyreError(1), VyreError(2)"
    assert len(uses_of(text)) == 2


# ---- the page -------------------------------------------------------------------------------------------------------


def test_the_page_is_up_to_date():
    page = (ROOT / "docs" / "coverage.md").read_text("utf-8")
    assert page == render_coverage.render(LEDGER), "run python docs/render_coverage.py"


def test_an_unknown_name_of_the_driver_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        vyre.driver.no_such_name  # noqa: B018


def test_twins_are_one_function():
    for name, target in vyre.driver._ALIASES.items():
        assert getattr(vyre.driver, name).__name__ == target.partition(":")[2]
