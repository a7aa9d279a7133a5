"""The code in README.md and docs runs as written and prints what stands below it; the language page is complete."""

import doctest
import linecache
import os
import re
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest

import vyre
from vyre.driver import counters
from vyre.driver.selection import registry
from vyre.driver.verify.shadow import Diverged

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.S | re.M)
"""Language, the rest of the line, and the text of a block."""
REQUIRED = os.environ.get("VYRE_REQUIRE_BACKENDS", "").split(",")


def is_there(name):
    try:
        vyre.acquire(name).shutdown()
    except vyre.BackendUnavailable as e:
        if name in REQUIRED:
            pytest.fail(f"{name} is required: {e}")
        return False
    return True


def blocks(page):
    """(language, options, text, whether it follows the block before directly) of every block."""
    text = (ROOT / page).read_text("utf-8")
    end = 0
    for found in FENCE.finditer(text):
        yield (
            found[1],
            dict(re.findall(r'(\w+)="?([^"\s]+)"?', found[2])),
            found[3],
            text[end : found.start()] == "\n\n",
        )
        end = found.end()


def differs(want, got):
    """Why the output is not the one shown, where `...` stands for anything; empty if it is."""
    checker, flags = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.REPORT_NDIFF
    if checker.check_output(want, got, flags):
        return ""
    return checker.output_difference(doctest.Example("", want), got, flags)


def run_page(page, folder, capsys):
    """Run the Python blocks of a page, in one scope, and its commands; yields what each block printed.

    A Python block with a title is a file of that name, for the commands. A text block that follows a Python block
    directly is what it prints. A block that needs a device that is not here prints nothing.
    """
    scope: dict[str, object] = {"__name__": "page"}
    printed = None
    for k, (language, options, text, follows) in enumerate(blocks(page)):
        name = f"<{page} block {k}>"
        if language == "text" and follows and printed is not None:
            assert not (why := differs(text, printed)), f"{name}: {why}"
        printed = None
        if language == "python" and "title" in options:
            (folder / options["title"]).write_text(text, "utf-8")
        elif language == "python":
            if "needs" in options and not all(map(is_there, options["needs"].split(","))):
                yield ""
                continue
            linecache.cache[name] = (len(text), None, text.splitlines(True), name)  # kernels read their source
            exec(compile(text, name, "exec"), scope)
            printed = capsys.readouterr().out
            yield printed
        elif language == "console":
            run_console(name, text, folder)


def run_console(name, text, folder):
    """Run the commands after `$`, each of which begins with `vyre`, and compare what they print."""
    for command, shown in re.findall(r"^\$ vyre (.*)\n((?:(?!\$ ).*\n)*)", text, re.M):
        done = subprocess.run(
            [sys.executable, "-m", "vyre", *command.split()],
            cwd=folder,
            env=os.environ | {"NO_COLOR": "1", "COLUMNS": "100"},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, f"{name}: {done.stderr}"
        assert not (why := differs(shown, done.stdout)), f"{name}: {why}"


PAGES = [
    ("README.md", 2, "proved"),
    ("docs/index.md", 1, "same bytes"),
    ("docs/kernel-language.md", 2, "race on x"),
    ("docs/explanation/determinism.md", 1, ""),
    ("docs/tutorial/first-kernel.md", 5, "@@@@"),
    ("docs/tutorial/working-together.md", 6, "unproved"),
    ("docs/tutorial/everywhere.md", 5, "the same bytes on cpu, reference"),
    ("docs/how-to/from-numba.md", 1, "[0. 0. 4. 4. 0.]"),
    ("docs/how-to/shadow-a-backend.md", 2, "2 checked, 0 differ"),
    ("docs/how-to/choose-a-device.md", 5, "fn vyre_kernel"),
    ("docs/how-to/keep-data-on-a-device.md", 5, "ndarray 2097152"),
    ("docs/how-to/configure.md", 3, "VYRE_MINE_CORES"),
    ("docs/how-to/run-from-the-shell.md", 0, ""),
    ("docs/how-to/what-is-remembered.md", 1, ""),
    ("docs/how-to/see-where-time-goes.md", 2, "trace.json"),
    ("docs/how-to/watch-a-process.md", 1, "vyre_dispatch_seconds_count"),
    ("docs/how-to/keep-evidence.md", 2, "halve.evidence"),
    ("docs/how-to/debug-a-divergence.md", 5, "differ"),
    ("docs/how-to/debug-a-kernel.md", 5, "odd: u32(7)"),
    ("docs/how-to/add-floats.md", 3, "proved"),
    ("docs/libs/index.md", 6, "(64, 64) True"),
    ("docs/libs/reduce.md", 3, "True"),
    ("docs/libs/random.md", 3, "3.14"),
    ("docs/libs/linalg.md", 2, "(64, 300, 100)"),
    ("docs/libs/sort.md", 1, "[4 1 3 0 5 2]"),
    ("docs/libs/pick.md", 2, "[0 2 4 5 7]"),
    ("docs/libs/segments.md", 3, "[0 3 3 8]"),
    ("docs/libs/prefix.md", 3, "[0 4 4 6]"),
]
"""Page, how many Python blocks it has at least, and something that they print."""


@pytest.mark.parametrize("page, blocks, shown", PAGES)
def test_every_python_block_runs(page, blocks, shown, capsys, tmp_path):
    installed = [b.registration for b in vyre.registered_backends_by_precedence() if b.problem() is None]
    with registry.isolated(*installed), chdir(tmp_path):  # what a page registers or writes ends with it
        printed = list(run_page(page, tmp_path, capsys))
    assert len(printed) >= blocks
    assert shown in "".join(printed)


WRONG = "docs/how-to/debug-a-divergence.md"
"""It has a backend that is wrong."""
ELSEWHERE = tuple(
    f"docs/{page}.md"
    for page in (
        "how-to/run-from-the-shell",
        "explanation/determinism",
        "how-to/what-is-remembered",
        "how-to/keep-evidence",
    )
)
"""Their dispatches run in other processes, have no shadow, or are only described."""


@pytest.mark.check
@pytest.mark.parametrize("setting", ["1", "0.01,log"])
@pytest.mark.parametrize("page, blocks, shown", PAGES)
def test_every_python_block_runs_under_a_shadow(page, blocks, shown, setting, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("VYRE_SHADOW", setting)
    monkeypatch.setenv("VYRE_SHADOW_TIMEOUT", "600")  # also on a machine that does much else
    before = counters.counters()
    if setting == "1" and page == WRONG:
        with pytest.raises(Diverged, match="an output of hasty differs from reference"):
            test_every_python_block_runs(page, blocks, shown, capsys, tmp_path)
        return
    test_every_python_block_runs(page, blocks, shown, capsys, tmp_path)
    seen = {name: n - before[name] for name, n in counters.counters().items()}
    assert seen["shadow_samples"] > 0 or page in ELSEWHERE
    assert seen["shadow_divergences"] == 0 or page == WRONG


def test_every_page_with_code_is_run():
    with_code = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "docs").rglob("*.md")
        if re.search(r"^```(?:python|console)", path.read_text("utf-8"), re.M)
    }
    elsewhere = {"docs/how-to/write-a-backend.md"}  # test_backend_template.py builds what it shows
    assert with_code - {page for page, *_ in PAGES} == elsewhere


def test_output_that_is_not_the_one_shown_is_caught(capsys, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(6 * 7)\n```\n\n```text\n41\n```\n")
    with pytest.raises(AssertionError, match="block 1"):
        list(run_page(page, tmp_path, capsys))
    page.write_text("```python\nprint(6 * 7)\n```\n\nNot what it printed:\n\n```text\n41\n```\n")
    assert list(run_page(page, tmp_path, capsys)) == ["42\n"]


def test_the_language_page_names_every_word_of_the_language():
    words = set(re.findall(r"\w+", (ROOT / "docs/kernel-language.md").read_text("utf-8")))
    assert {*vyre._LANGUAGE.split(), *vyre._TYPES.split()} - {"DataType"} <= words
