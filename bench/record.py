"""Results that can be compared later: each file in bench/results says when, of which commit and on what it was made."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"


def stamp() -> dict[str, Any]:
    """Date, commit (and whether the measured sources differ from it), interpreter and machine.

    Where the sources came without their history, `VYRE_COMMIT` says which commit they are.
    """
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": os.environ.get("VYRE_COMMIT") or _git("rev-parse", "HEAD") or "unknown",
        "uncommitted_changes": "VYRE_COMMIT" not in os.environ
        and bool(_git("status", "--porcelain", "--", "../src", "*.py")),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def record(name: str, result: dict[str, Any]) -> str:
    """Write `bench/results/<name>.json` and return its text."""
    text = json.dumps(stamp() | result, indent=2)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(text + "\n")
    return text


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True, check=False)
    except OSError:  # a machine without git
        return ""
    return done.stdout.strip()
