"""Ten kernels, each beside the same one for numba's GPUs: how many lines both take, and whether their values agree.

Where there is no NVIDIA GPU, numba's simulator runs its kernels; without numba, the lines are compared alone. Lines are
those of kernels, helpers and types, without empty lines, comments and docstrings.
"""

from __future__ import annotations

import ast
import os
import shutil
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if (FOLDER / f"{path.stem}_numba.py").exists())


def lines_of_kernels(name: str) -> int:
    """Of all decorated functions and all classes of a file here."""
    text = (FOLDER / f"{name}.py").read_text("utf-8")
    lines, counted = text.splitlines(), set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) or (isinstance(node, ast.FunctionDef) and node.decorator_list):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            counted |= set(range(first, (node.end_lineno or first) + 1))
            if ast.get_docstring(node) is not None:
                counted -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return sum(1 for k in counted if lines[k - 1].strip() and not lines[k - 1].lstrip().startswith("#"))


def agree(ours: Any, theirs: Any) -> bool:
    """Integers to the bit; floats nearly, since numba adds, rounds and calls functions in its own way."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    return np.array_equal(ours, theirs) if ours.dtype.kind == "u" else np.allclose(ours, theirs, 1e-4, 1e-4)


def verdict(name: str) -> str:
    """What the values of numba's kernel are, beside ours."""
    if find_spec("numba") is None:
        return "numba is not installed"
    if shutil.which("nvidia-smi") is None:
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    ours, theirs = import_module(name), import_module(f"{name}_numba")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a grid that is small for a GPU
        return "agree" if agree(ours.solve(*ours.sample()), theirs.solve(*ours.sample())) else "DIFFER"


def main() -> int:
    print(f"{'kernel':<14} {'lines':>5} {'numba':>6}  values")
    said = []
    for name in NAMES:
        said.append(verdict(name))
        print(f"{name:<14} {lines_of_kernels(name):>5} {lines_of_kernels(f'{name}_numba'):>6}  {said[-1]}")
    return 1 if "DIFFER" in said else 0


if __name__ == "__main__":
    raise SystemExit(main())
