"""Does the test that the ledger names for a row fail when the row's caller no longer uses the name?

    python bench/ledger_cuts.py                  every row of docs/coverage.toml that has a caller, and a record
    python bench/ledger_cuts.py Resource launch  these rows only, without a record

For each row the package is copied, every use of the name inside its caller raises instead (an annotation is not a use),
and the row's test runs against the copy. A row whose test still passes is a survivor: its test proves nothing about its
caller. A test that passes nowhere proves nothing either, so each is run once without a cut. Exit status 1: a survivor.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from record import record

ROOT = Path(__file__).parents[1]
SECTIONS = ("re-exports", "modules", "items")
SECONDS = 300


@dataclass(frozen=True)
class Row:
    """A line of the ledger that has a caller."""

    name: str
    path: str
    caller: str
    test: str

    @property
    def file(self) -> str:
        return self.caller.partition("::")[0]


def rows() -> list[Row]:
    ledger = tomllib.loads((ROOT / "docs" / "coverage.toml").read_text("utf-8"))
    entries = [(name, entry) for section in SECTIONS for name, entry in ledger[section].items()]
    return [Row(name, e["path"], e["caller"], e["test"]) for name, e in entries if "caller" in e]


# ---- the cut --------------------------------------------------------------------------------------------------------


def uses(row: Row, tree: ast.Module) -> list[ast.expr]:
    """Where the caller reads the name while it runs; if nowhere, where it does so while it is loaded."""
    names = set(_names(row, tree))
    scope = _find(tree, row.caller.partition("::")[2])
    found = [node for node in _evaluated(scope) if _is_named(node, names)]
    inside = [node for function in _functions(scope) for node in _evaluated(function) if _is_named(node, names)]
    return inside or found


def cut(row: Row, source: str) -> str:
    """The text of the caller's file with every use raising."""
    tree = ast.parse(source)
    gone = {id(node) for node in uses(row, tree)}
    if not gone:
        raise LookupError(f"{row.caller} does not use {row.name}")

    class Cut(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            if id(node) in gone:
                return ast.copy_location(ast.parse("_cut()", mode="eval").body, node)
            return self.generic_visit(node)

    tree = ast.fix_missing_locations(Cut().visit(tree))
    after = next((i for i, s in enumerate(tree.body) if not _is_head(s)), len(tree.body))
    text = "def _cut():\n    raise RuntimeError('this use is cut')"
    tree.body[after:after] = ast.parse(text).body
    return ast.unparse(tree)


def _is_head(statement: ast.stmt) -> bool:
    """The docstring, or an import from the future."""
    is_future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
    return is_future or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))


def _names(row: Row, tree: ast.Module) -> Iterator[str]:
    """What the file calls the thing: of a module, also everything it imports from there."""
    last = row.path.rpartition(".")[2]
    is_module = row.path in _modules()
    if not is_module:
        yield last
    package = row.file.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").split("/")
    is_package = row.file.endswith("/__init__.py")
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        base = package[: len(package) - node.level + is_package] if node.level else []
        module = ".".join(base + (node.module.split(".") if node.module else []))
        for alias in node.names:
            if f"{module}.{alias.name}" == row.path or (
                is_module and (module == row.path or module.startswith(row.path + "."))
            ):
                yield alias.asname or alias.name


def _modules() -> set[str]:
    source = ROOT / "src"
    found = (path.relative_to(source).with_suffix("").parts for path in source.rglob("*.py"))
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in found}


def _find(tree: ast.AST, symbol: str) -> ast.AST:
    for part in symbol.split(".") if symbol else ():
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        tree = next(node for node in ast.walk(tree) if isinstance(node, kinds) and node.name == part)
    return tree


def _functions(tree: ast.AST) -> list[ast.AST]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]


def _evaluated(tree: ast.AST) -> Iterator[ast.expr]:
    """Every expression below `tree` that is computed: no annotation, and nothing for type checkers only."""
    unvisited = [tree]
    while unvisited:
        node = unvisited.pop()
        if isinstance(node, ast.expr):
            yield node
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "type_comment"):
                continue
            if isinstance(node, ast.If) and field == "body" and ast.unparse(node.test).endswith("TYPE_CHECKING"):
                continue
            children = value if isinstance(value, list) else [value]
            unvisited.extend(child for child in children if isinstance(child, ast.AST))


def _is_named(node: ast.expr, names: set[str]) -> bool:
    match node:
        case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
            return name in names
    return False


# ---- the run --------------------------------------------------------------------------------------------------------


def is_killed(row: Row) -> bool:
    """Whether the row's test fails once the caller is cut."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src", ignore=shutil.ignore_patterns("__pycache__"))
        file = Path(folder) / row.file
        file.write_text(cut(row, file.read_text("utf-8")), "utf-8")
        return not _passes([row.test], Path(folder) / "src")


def _passes(tests: list[str], source: Path) -> bool:
    options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", ""]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode not in (0, 1, 2, 4):
        raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 0 and " passed" in done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only these rows")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    assert find_spec("pytest") is not None
    chosen = [row for row in rows() if not asked.names or row.name in asked.names]
    tests = sorted({row.test for row in chosen})
    if not _passes(tests, ROOT / "src"):
        print("the tests of the ledger do not pass as they are. Fix: run them with `pytest` first")
        return 1
    survivors = []
    with ThreadPoolExecutor(asked.jobs) as pool:
        for done, (row, killed) in enumerate(zip(chosen, pool.map(is_killed, chosen), strict=True), 1):
            print(f"{done}/{len(chosen)}  {'fails' if killed else 'PASSES'}  {row.name}  {row.test}", flush=True)
            if not killed:
                survivors.append(row.name)
    if not asked.names:
        record("ledger_cuts", {"rows": len(chosen), "survivors": survivors})
    print(f"{len(chosen)} rows, {len(survivors)} survivors: {', '.join(survivors) or 'none'}")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main())
