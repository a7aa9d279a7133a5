"""The script that measures the source counts what is there."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.check
def test_the_figures_of_the_source_are_those_of_its_files():
    files = [path.read_text("utf-8").count("\n") for path in (ROOT / "src" / "vyre").rglob("*.py")]
    words = [sys.executable, str(ROOT / "bench" / "house.py")]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\n")
    name, count, lines, _, _, longest, hinted, *_ = printed[1].split()
    assert (name, int(count), int(lines), int(longest)) == ("all", len(files), sum(files), max(files))
    assert hinted == "100%"
