"""The code in README.md and docs runs as written, and the language page names the whole language."""

import linecache
import os
import re
from pathlib import Path

import pytest

import vyre

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```python(?: needs=(\S+))?\n(.*?)```", re.S)
"""The backends that a block names, if it needs more than cpu, and its code."""
REQUIRED = os.environ.get("VYRE_REQUIRE_BACKENDS", "").split(",")


def is_there(name):
    try:
        vyre.acquire(name).shutdown()
    except vyre.BackendUnavailable as e:
        if name in REQUIRED:
            pytest.fail(f"{name} is required: {e}")
        return False
    return True


@pytest.mark.parametrize(
    "page, blocks, shown",
    [
        ("README.md", 7, "proved"),
        ("docs/kernel-language.md", 1, "race on x"),
        ("docs/how-to/shadow-a-backend.md", 1, "2 checked, 0 differ"),
        ("docs/how-to/choose-a-device.md", 5, "fn vyre_kernel"),
    ],
)
def test_every_python_block_runs(page, blocks, shown, capsys):
    scope: dict[str, object] = {"__name__": "page"}
    found = BLOCK.findall((ROOT / page).read_text("utf-8"))
    assert len(found) >= blocks
    for k, (needs, block) in enumerate(found):
        if needs and not all(map(is_there, needs.split(","))):
            continue
        name = f"<{page} block {k}>"
        linecache.cache[name] = (len(block), None, block.splitlines(True), name)  # kernels read their source
        exec(compile(block, name, "exec"), scope)
    assert shown in capsys.readouterr().out


def test_the_language_page_names_every_word_of_the_language():
    words = set(re.findall(r"\w+", (ROOT / "docs/kernel-language.md").read_text("utf-8")))
    assert {*vyre._LANGUAGE.split(), *vyre._TYPES.split()} - {"DataType"} <= words
