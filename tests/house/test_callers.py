"""Every top-level function, class and constant has a reader in the package, is public, or is promised by the ledger."""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "vyre"
PUBLIC = {line.rpartition(".")[2] for line in (ROOT / "tests/contract/public_names.txt").read_text("utf-8").split("\n")}

OTHERS = {
    "conform/": "the suite's cases: callers are the tests and benchmarks that run it",
}
"""Folder -> who calls what is in it."""
LATER: dict[str, str] = {}
"""Name -> the area of the coverage table that its caller comes with."""
WRITERS = {"to_envelope"}
"""Of forms that the command line reads, and that other programs write."""
TYPED = {"dispatch_f32", "dispatch_u32"}
"""Of `vyre.front.typed`, whose callers are users with raw programs."""


def promised(table: object) -> Iterator[str]:
    """The last part of every `path` in the coverage table."""
    for value in table.values() if isinstance(table, dict) else table if isinstance(table, list) else ():
        if isinstance(value, dict) and isinstance(value.get("path"), str):
            yield value["path"].rpartition(".")[2]
        yield from promised(value)


PROMISED = set(promised(tomllib.loads((ROOT / "docs/coverage.toml").read_text("utf-8"))))


def mentions(tree: ast.AST) -> Counter[str]:
    """How often a name is used: read, called or named in a table of strings; imports and docstrings do not count."""
    found: Counter[str] = Counter()
    documentation = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found[name] += 1
            case ast.Constant(value=str(text)) if id(node) not in documentation:
                found.update(re.findall(r"[A-Za-z_]\w*", text) if len(text) < 2000 else ())
    return found


def callerless(trees: dict[str, ast.Module]) -> list[str]:
    """`file: name` of what nothing outside its own definition mentions."""
    everywhere: Counter[str] = Counter()
    for tree in trees.values():
        everywhere.update(mentions(tree))
    found = []
    for path, tree in trees.items():
        for node in tree.body:
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    decorated = isinstance(node, ast.FunctionDef) and bool(node.decorator_list)  # a command, say
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    decorated = False
                case _:
                    continue
            if not name.startswith("__") and not decorated and not everywhere[name] - mentions(node)[name]:
                found.append(f"{path}: {name}")
    return found


def test_every_function_class_and_constant_has_a_reader_or_is_public_or_an_exception_with_a_reason():
    paths = sorted(SOURCE.rglob("*.py"))
    found = callerless({p.relative_to(SOURCE).as_posix(): ast.parse(p.read_text("utf-8")) for p in paths})
    exceptions = LATER.keys() | WRITERS | TYPED
    allowed = PUBLIC | PROMISED | exceptions
    unread = [each for each in found if each.rpartition(" ")[2] not in allowed and not each.startswith(tuple(OTHERS))]
    assert unread == []
    assert {each.rpartition(" ")[2] for each in found} >= exceptions


def test_what_has_no_caller_yet_waits_for_an_area_that_is_still_to_come():
    areas = set(re.findall(r'later = "([^"]+)"', (ROOT / "docs/coverage.toml").read_text("utf-8")))
    assert set(LATER.values()) <= areas


@pytest.mark.parametrize(
    "text, found",
    [
        ("def f(): return 1", ["a.py: f"]),
        ("def f(): return f()", ["a.py: f"]),
        ("class C:\n    'about C'", ["a.py: C"]),
        ("MOST = 3\nFEW: int = MOST", ["a.py: FEW"]),
        ("def f(): ...\nf()", []),
        ("def f(): ...\nTABLE = {'f': 1}\nTABLE", []),
        ("@app.command()\ndef f(): ...", []),
        ("import b\ndef f(): ...\nb.f", []),
    ],
)
def test_what_nothing_calls_is_found(text, found):
    assert callerless({"a.py": ast.parse(text)}) == found
