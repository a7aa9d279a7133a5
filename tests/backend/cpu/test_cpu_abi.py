"""The emitter and the launch agree on every word between them because both ask one module which it is."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vyre.backends.cpu import abi

ROOT = Path(__file__).parents[3]
SHARED = (
    ("BUFFERS", 1), ("LENGTHS", 1), ("GRID", 3), ("TOTAL", 1), ("CHUNK", 1), ("NEXT", 1), ("STOP", 1), ("TRAPPED", 1),
    ("TRAP_LISTS", 1), ("ROW", 1), ("ROWS", 1),    ("STREAM", 1),
)  # fmt: skip
"""Name and number of words."""
WORKER = (("SCRATCH", 1), ("PRIVATES", 1), ("CHUNKS_LEFT", 1))
RENUMBERED = """
import json, sys
from vyre.backends.cpu import abi
assert "vyre.backends.cpu.emit.writer" not in sys.modules and "vyre.backends.cpu.run.launch" not in sys.modules
vars(abi).update(json.loads(sys.argv[1]))
from tests.support.cpu_abi import main
main()
"""


def numbers(groups):
    found, at = {}, 0
    for name, count in groups:
        found[name] = at
        at += count
    return found


def renumbered(shared, worker):
    return numbers(shared) | numbers(worker)


@pytest.mark.parametrize(
    "words",
    [
        renumbered(SHARED, WORKER),
        renumbered(SHARED[::-1], WORKER[::-1]),
        renumbered(SHARED[4:] + SHARED[:4], WORKER[1:] + WORKER[:1]),
    ],
    ids=["as they are", "backwards", "turned"],
)
def test_launches_work_whichever_numbers_the_words_have(words, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", RENUMBERED, json.dumps(words)],
        cwd=ROOT,
        env={**os.environ, "VYRE_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "agreed\n"), done.stderr


def test_stored_code_is_of_the_format_whose_words_these_are():
    """Code that another version stored is loaded where the format is the same: new numbers need a new one."""
    from vyre.backends.cpu.build import FORMAT

    now = renumbered(SHARED, WORKER) | {"SHARED_WORDS": 14, "WORKER_WORDS": 4, "ENTRY": "vyre_run"}
    now["PIECE_BITS"] = 16
    named = {
        node.targets[0].id
        for node in ast.parse(Path(abi.__file__).read_text("utf-8")).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert (FORMAT, {name: getattr(abi, name) for name in named}) == (7, now)
