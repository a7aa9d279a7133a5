"""The code in README.md and docs runs as written, and the language page names the whole language."""

import linecache
import re
from pathlib import Path

import pytest

import vyre

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "page, blocks, shown",
    [
        ("README.md", 7, "proved"),
        ("docs/kernel-language.md", 1, "race on x"),
        ("docs/how-to/shadow-a-backend.md", 1, "2 checked, 0 differ"),
    ],
)
def test_every_python_block_runs(page, blocks, shown, capsys):
    scope: dict[str, object] = {"__name__": "page"}
    found = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.S)
    assert len(found) >= blocks
    for k, block in enumerate(found):
        name = f"<{page} block {k}>"
        linecache.cache[name] = (len(block), None, block.splitlines(True), name)  # kernels read their source
        exec(compile(block, name, "exec"), scope)
    assert shown in capsys.readouterr().out


def test_the_language_page_names_every_word_of_the_language():
    words = set(re.findall(r"\w+", (ROOT / "docs/kernel-language.md").read_text("utf-8")))
    assert {*vyre._LANGUAGE.split(), *vyre._TYPES.split()} - {"DataType"} <= words
