"""How large are the rooms? Figures of the source by script: files, lines, hints, documentation, and errors with a fix.

A raise counts as one with a fix where it says `fix=` or `Fix: `, and as one through a helper where it raises what a
function of ours returns, which brings its own. `tests/house` holds that there is no third kind.
"""

from __future__ import annotations

import argparse
import ast
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from record import record

SOURCE = Path(__file__).parents[1] / "src" / "vyre"
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout and in bench/results")
    options = parser.parse_args()
    layers = sorted({p.relative_to(SOURCE).parts[0] for p in SOURCE.rglob("*.py") if p.parent != SOURCE})
    rows = {"all": figures(SOURCE)} | {layer: figures(SOURCE / layer) for layer in layers}
    if options.json:
        print(record("house", {"layers": rows}))
        return
    print(f"{'':12} {'files':>5} {'lines':>7} median   p90   max  hints  docs   fix  longest")
    for name, row in rows.items():
        print(
            f"{name:12} {row['files']:5} {row['lines']:7} {row['median']:6.0f} {row['p90']:5} {row['max']:5} "
            f"{row['hinted']:6.0%} {row['documented']:5.0%} {row['raises_with_fix']:5.0%}  {row['longest']}"
        )


def figures(folder: Path) -> dict[str, Any]:
    """Of all files below a folder. Shares are of functions, of public functions, and of raises with a text."""
    texts = {p.relative_to(SOURCE).as_posix(): p.read_text("utf-8") for p in sorted(folder.rglob("*.py"))}
    lines = {path: text.count("\n") for path, text in texts.items()}
    trees = [ast.parse(text) for text in texts.values()]
    functions = [f for tree in trees for f in ast.walk(tree) if isinstance(f, FUNCTION)]
    public = [f for tree in trees for f in offered(tree)]
    raised = [
        n.exc for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Raise) and isinstance(n.exc, ast.Call)
    ]
    with_fix = sum(map(says_fix, raised))
    return {
        "files": len(texts),
        "lines": sum(lines.values()),
        "median": statistics.median(lines.values()),
        "p90": sorted(lines.values())[9 * (len(lines) - 1) // 10],
        "max": max(lines.values()),
        "longest": max(lines, key=lambda path: lines[path]),
        "functions": len(functions),
        "hinted": share(sum(map(is_hinted, functions)), len(functions)),
        "public_functions": len(public),
        "documented": share(sum(ast.get_docstring(f) is not None for f in public), len(public)),
        "raises": len(raised),
        "raises_with_fix": share(with_fix, len(raised)),
        "raises_through_helpers": share(sum(not says_fix(r) and is_helper(r) for r in raised), len(raised)),
        "asserts": sum(isinstance(n, ast.Assert) for tree in trees for n in ast.walk(tree)),
    }


def offered(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions of a module and methods of its classes whose names have no underscore in front."""
    for node in tree.body:
        if not getattr(node, "name", "_").startswith("_"):
            inside = node.body if isinstance(node, ast.ClassDef) else [node]
            yield from (f for f in inside if isinstance(f, FUNCTION) and not f.name.startswith("_"))


def is_hinted(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether it says what it returns, and all parameters say what they take."""
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    own = [a for a in named if a.arg not in ("self", "cls")]
    return function.returns is not None and all(a.annotation is not None for a in own)


def says_fix(raised: ast.Call) -> bool:
    return any(k.arg in ("fix", None) for k in raised.keywords) or "Fix: " in ast.unparse(raised)


def is_helper(raised: ast.Call) -> bool:
    """Whether a function makes the error, not a class."""
    name = ast.unparse(raised.func).rpartition(".")[2].lstrip("_")
    return name[:1].islower()


def share(part: int, whole: int) -> float:
    return round(part / whole, 3) if whole else 1.0


if __name__ == "__main__":
    main()
