"""The ledger of the driver's names is true: each is importable, used and proved by a test, or comes with an area."""

import ast
import importlib
import importlib.util
from functools import cache
from pathlib import Path

import pytest

import vyre.driver

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("render_coverage", ROOT / "docs" / "render_coverage.py")
render_coverage = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(render_coverage)
LEDGER = render_coverage.load()
SECTIONS = {"re-exports": 132, "modules": 64, "items": 18}
ENTRIES = [
    pytest.param(section, name, entry, id=f"{section}-{name}")
    for section in SECTIONS
    for name, entry in LEDGER[section].items()
]
HERE = [p for p in ENTRIES if "path" in p.values[2]]


@cache
def parsed(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text("utf-8"))


def find(path: str, symbol: str) -> ast.AST | None:
    """The function or class of that dotted name."""
    scope: ast.AST | None = parsed(path)
    for part in symbol.split("."):
        scope = next(
            (
                node
                for node in ast.walk(scope)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == part
            ),
            None,
        )
        if scope is None:
            return None
    return scope


def mentions(tree: ast.AST) -> set[str]:
    """Every name that the code reads, calls or imports; not what it defines, and no string."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.ImportFrom(module=module, names=names):
                found.update((module or "").split("."))
                found.update(alias.name for alias in names)
            case ast.Import(names=names):
                found.update(part for alias in names for part in alias.name.split("."))
    return found


def resolve(path: str) -> object:
    """What a dotted path leads to: a module, or something in one."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


def test_the_ledger_has_every_name():
    assert {section: len(LEDGER[section]) for section in SECTIONS} == SECTIONS
    assert set(LEDGER) == {*SECTIONS, "areas"}


@pytest.mark.parametrize("section, name, entry", ENTRIES)
def test_an_entry_is_here_or_comes_with_an_area(section, name, entry):
    assert set(entry) in ({"path", "caller", "test"}, {"path", "later", "test"}, {"later"})
    assert entry.get("later", LEDGER["areas"][0]) in LEDGER["areas"]
    if "path" not in entry and section != "modules":
        assert name not in vyre.driver._WHERE


@pytest.mark.parametrize("section, name, entry", HERE)
def test_a_name_is_importable_from_the_driver_under_its_own_spelling(section, name, entry):
    assert getattr(vyre.driver, name) is resolve(entry["path"])
    assert name in dir(vyre.driver)


@pytest.mark.parametrize("section, name, entry", [p for p in HERE if "caller" in p.values[2]])
def test_a_name_has_a_caller(section, name, entry):
    path, _, symbol = entry["caller"].partition("::")
    scope = find(path, symbol) if symbol else parsed(path)
    assert scope is not None, f"{path} has no {symbol}"
    assert path.startswith("src/")
    assert entry["path"].rpartition(".")[2] in mentions(scope)


@pytest.mark.parametrize("section, name, entry", HERE)
def test_a_name_has_a_test(section, name, entry):
    path, _, function = entry["test"].partition("::")
    assert Path(path).name.startswith("test_")
    assert function.rpartition(".")[2].startswith("test_")
    assert find(path, function) is not None, f"{path} has no {function}"


def test_the_page_is_up_to_date():
    page = (ROOT / "docs" / "coverage.md").read_text("utf-8")
    assert page == render_coverage.render(LEDGER), "run python docs/render_coverage.py"


def test_an_unknown_name_of_the_driver_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        vyre.driver.no_such_name  # noqa: B018


def test_twins_are_one_function():
    for name, target in vyre.driver._ALIASES.items():
        assert getattr(vyre.driver, name).__name__ == target.partition(":")[2]
