"""Paths and dotted names in the pages that explain the design are those of the code as it is."""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted((ROOT / "docs" / "design").glob("*.md")),
    ROOT / "docs" / "explanation" / "architecture.md",
    ROOT / "CONTRIBUTING.md",
]
NOT_FILES = {"build/site/index.html", "build/versions", "vyre.py"}
"""What `make docs` makes, and how names of extensions begin."""
NAMES = {str(p.relative_to(ROOT)): p.read_text("utf-8") for p in PAGES}
FILE = re.compile(r"(?:[\w.-]+/)*[\w.-]+\.(?:py|toml|json|txt|svg|md|pyi)|(?:\w+/)+[\w./-]+")
DOTTED = re.compile(r"vyre(?:\.[A-Za-z_]\w*)+")
PLACES = ("", "src/vyre", "docs", "docs/design", "src/vyre/driver", "src/vyre/foundation", "src/vyre/lower", "tests")
"""Where a path of a page may begin; a page about a backend names files of its folder."""


def code_of(text: str) -> Iterator[str]:
    """What stands in backticks, blocks of code included."""
    for block in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL):
        yield from block.split("\n")
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def paths(text: str) -> set[str]:
    return {word for code in code_of(text) if (word := code.strip()) and FILE.fullmatch(word)}


def dotted(text: str) -> set[str]:
    return {name for code in code_of(text) for name in DOTTED.findall(code)}


def is_there(path: str, page: str) -> bool:
    backends = ROOT / "src" / "vyre" / "backends"
    named = backends / Path(page).stem
    own = [named] if named.name != "backends" else [b for b in backends.iterdir() if b.is_dir()]
    places = [*(ROOT / p for p in PLACES), *(b / room for b in own for room in ("", "emit", "run"))]
    return any((place / path).exists() for place in places)


def resolves(name: str) -> bool:
    module, *rest = name.split(".")
    found = import_module(module)
    for part in rest:
        if not hasattr(found, part):
            try:
                module = f"{module}.{part}"
                found = import_module(module)
            except ImportError:
                return False
        else:
            found = getattr(found, part)
            module = f"{module}.{part}"
    return True


@pytest.mark.parametrize("page", NAMES)
def test_every_path_of_a_page_is_there(page):
    assert [p for p in sorted(paths(NAMES[page])) if p not in NOT_FILES and not is_there(p, page)] == []


@pytest.mark.parametrize("page", NAMES)
def test_every_dotted_name_of_a_page_resolves(page):
    assert [n for n in sorted(dotted(NAMES[page]) - NOT_FILES) if not resolves(n)] == []


def test_names_are_found_in_sentences_and_blocks_and_wrong_ones_are_caught():
    text = "see `driver/plan/gone.py` and `vyre.errors.VyreError`\n```python\nvyre.nowhere.at_all()\n```\n`x.y / 2`"
    assert paths(text) == {"driver/plan/gone.py"}
    assert dotted(text) == {"vyre.errors.VyreError", "vyre.nowhere.at_all"}
    assert not is_there("driver/plan/gone.py", "docs/design/cpu.md")
    assert is_there("driver/plan/grid.py", "docs/design/cpu.md")
    assert (resolves("vyre.errors.VyreError"), resolves("vyre.nowhere.at_all")) == (True, False)


def test_the_pages_name_something():
    assert sum(len(paths(t)) + len(dotted(t)) for t in NAMES.values()) > 20
