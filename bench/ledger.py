"""The rows of docs/coverage.toml that have a caller: where the caller uses the name, and what happens without that.

A use is computed while the program runs. An import is none, nor is what only type checkers read: an annotation, an
alias of a type, the type of a `cast`, what stands under `TYPE_CHECKING`.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
SECTIONS = ("re-exports", "modules", "items")
SECONDS = 300
IMPORTING = threading.Lock()
"""Threads that import modules which import each other may find half of one."""
SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Row(NamedTuple):
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


def resolve(path: str) -> object:
    """What a dotted path leads to: a module, or something in one."""
    try:
        return import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(import_module(module), name)


def find(tree: ast.AST, symbol: str) -> ast.AST | None:
    """The function or class of that dotted name; without one, all of it."""
    found: ast.AST | None = tree
    for part in symbol.split(".") if symbol else ():
        nodes = ast.walk(found) if found is not None else ()
        found = next((node for node in nodes if isinstance(node, SCOPES) and node.name == part), None)
    return found


# ---- uses -----------------------------------------------------------------------------------------------------------


def uses(row: Row, tree: ast.Module) -> list[ast.expr]:
    """Where the caller reads the name while it runs; if nowhere, where it does so while it is loaded."""
    scope = find(tree, row.caller.partition("::")[2])
    if scope is None:
        return []
    names, attributes = _spellings(row, tree)
    unread = {id(part) for node in ast.walk(scope) for part in _for_type_checkers(node)}
    found = [(node, runs) for node, runs, local in _computed(scope, unread) if _is_one(node, names - local, attributes)]
    return [node for node, runs in found if runs] or [node for node, _ in found]


def _computed(
    node: ast.AST, unread: set[int], runs: bool = False, local: frozenset[str] = frozenset()
) -> Iterator[tuple[ast.expr, bool, frozenset[str]]]:
    """Every expression below that is computed, whether a call does it, and the names that are variables there."""
    if isinstance(node, ast.expr):
        yield node, runs, local
    for field, value in ast.iter_fields(node):
        inside = isinstance(node, FUNCTIONS) and field == "body"
        names = local | _variables(node) if inside else local
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and id(child) not in unread:
                yield from _computed(child, unread, runs or inside, names)


def _for_type_checkers(node: ast.AST) -> Sequence[ast.AST | None]:
    """The parts of it that a running program does not read, or reads to no end."""
    match node:
        case ast.arg(annotation=annotation):
            return [annotation]
        case ast.FunctionDef(returns=returns) | ast.AsyncFunctionDef(returns=returns):
            return [returns]
        case ast.AnnAssign(annotation=annotation, value=value):
            return [annotation, value if ast.unparse(annotation).endswith("TypeAlias") else None]
        case ast.Call(func=ast.Name(id="cast"), args=[type, *_]):
            return [type]
        case ast.ClassDef(bases=bases):
            return [base.slice for base in bases if isinstance(base, ast.Subscript)]
        case ast.If(test=test, body=body) if ast.unparse(test).endswith("TYPE_CHECKING"):
            return body
    return []


def _variables(function: ast.AST) -> frozenset[str]:
    """What a function calls its own: parameters, and what it assigns."""
    nodes = list(ast.walk(function))
    return frozenset(n.arg for n in nodes if isinstance(n, ast.arg)) | frozenset(
        n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    )


def _is_one(node: ast.expr, names: frozenset[str], attributes: frozenset[str]) -> bool:
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            return name in names
        case ast.Attribute(value=ast.Name(), ctx=ast.Load()):
            return ast.unparse(node) in attributes
    return False


def _spellings(row: Row, tree: ast.Module) -> tuple[frozenset[str], frozenset[str]]:
    """What the file calls the thing, as a name and as an attribute of a module; of a module, also all it gets there."""
    home, _, last = row.path.rpartition(".")
    package = row.file.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").split("/")
    is_module = row.path in _modules()
    homes = () if is_module else (home, getattr(resolve(row.path), "__module__", None))
    names = {last} if ".".join(package) in homes else set()
    attributes = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        base = package[: len(package) - node.level + row.file.endswith("/__init__.py")] if node.level else []
        module = ".".join(base + (node.module.split(".") if node.module else []))
        for alias in node.names:
            path, spelling = f"{module}.{alias.name}", alias.asname or alias.name
            if is_module:
                if path == row.path or f"{module}.".startswith(f"{row.path}."):
                    names.add(spelling)
            elif alias.name == last and resolve(path) is resolve(row.path):
                names.add(spelling)
            elif path in _modules() and getattr(resolve(path), last, None) is resolve(row.path):
                attributes.add(f"{spelling}.{last}")
    return frozenset(names), frozenset(attributes)


@cache
def _modules() -> frozenset[str]:
    source = ROOT / "src"
    found = (path.relative_to(source).with_suffix("").parts for path in source.rglob("*.py"))
    return frozenset(".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in found)


# ---- the cut --------------------------------------------------------------------------------------------------------

CUT = """
class _Cut:
    def __getattr__(self, name):
        open({reached!r}, "a").close()
        raise RuntimeError("this use is cut")
_cut = _Cut()
"""


def outcome(row: Row) -> str:
    """What the row's test does when every use in the caller raises: it `fails`, as it should, or something else."""
    with tempfile.TemporaryDirectory() as folder:
        source, reached = Path(folder) / "src", Path(folder) / "reached"
        shutil.copytree(ROOT / "src", source)  # with the bytecode: compiling takes a second
        file = Path(folder) / row.file
        with IMPORTING:
            file.write_text(cut(row, file.read_text("utf-8"), reached), "utf-8")
        done = run([row.test], source)
        if done == "fails" and not reached.exists():
            return "fails elsewhere"
        return done


def cut(row: Row, source: str, reached: Path) -> str:
    """The text of the caller's file with every use raising, after it has left a file that says so."""
    tree = ast.parse(source)
    gone = {id(node) for node in uses(row, tree)}
    if not gone:
        raise LookupError(f"{row.caller} does not use {row.name}")

    class Cut(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            if id(node) in gone:
                return ast.copy_location(ast.parse("_cut.now", mode="eval").body, node)  # patterns take no call
            return self.generic_visit(node)

    tree = ast.fix_missing_locations(Cut().visit(tree))
    after = next((i for i, s in enumerate(tree.body) if not _is_head(s)), len(tree.body))
    tree.body[after:after] = ast.parse(CUT.format(reached=str(reached))).body
    return ast.unparse(tree)


def _is_head(statement: ast.stmt) -> bool:
    """The docstring, or an import from the future."""
    is_future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
    return is_future or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))


def run(tests: list[str], source: Path) -> str:
    """Run tests against a copy of the package: `passes`, `fails`, or `skips` where none of them could run."""
    options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", ""]
    unwanted = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k not in unwanted} | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode not in (0, 1, 2, 4):
        raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    if done.returncode:
        return "fails"
    return "passes" if " passed" in done.stdout else "skips"
