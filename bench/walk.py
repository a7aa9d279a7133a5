"""How many of the package's functions does a warm kernel call pass? Counted with `sys.setprofile` on what is here.

    python bench/walk.py

Calls into C are not counted. Results go to bench/results/walk.json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from record import record

import vyre
from vyre import In, Out, f32, gid
from vyre.driver import registered_backends

PACKAGE = str(Path(vyre.__file__).parent)
WARM = 20
"""Calls before the one that is counted: a device may do the first ones in another way."""


@vyre.kernel(workgroup=64)
def saxpy(alpha: f32, x: In[f32], y: In[f32], out: Out[f32]):
    i = gid.x
    if i < len(out):
        out[i] = alpha * x[i] + y[i]


def walk(call: Callable[[], Any]) -> list[str]:
    """The functions that a call passes, in order, as `file:name`."""
    found: list[str] = []

    def look(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            found.append(f"{Path(code.co_filename).relative_to(PACKAGE).as_posix()}:{code.co_qualname}")

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def measured(backend: str) -> dict[str, Any]:
    on = saxpy.on(backend)
    x, y, out = np.ones(256, np.float32), np.ones(256, np.float32), np.zeros(256, np.float32)
    results = {}
    for name, call in {"new result": lambda: on(2.0, x, y), "out=": lambda: on(2.0, x, y, out=out)}.items():
        for _ in range(WARM):
            call()
        passed = min((walk(call) for _ in range(9)), key=len)  # how often a wait looks again depends on the machine
        files = {where.partition(":")[0] for where in passed}
        results[name] = {"calls": len(passed), "functions": len(set(passed)), "files": len(files), "walk": passed}
    return results


def main() -> None:
    found = {}
    for listing in registered_backends():
        if listing.id in ("cpu", "cuda", "opencl", "wgpu") and listing.unavailable() is None:
            found[listing.id] = measured(listing.id)
    record("walk", {"kernel": "saxpy, 256 elements", "warm": found})
    for backend, ways in found.items():
        for way, told in ways.items():
            print(
                f"{backend:8} {way:12} {told['calls']:4} calls {told['functions']:4} functions {told['files']:3} files"
            )


if __name__ == "__main__":
    main()
