"""Rules that hold for every file of the package, read from its syntax: imports, raises, reads and caches."""

import ast
import builtins
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from vyre import errors
from vyre.cli.app import COMMANDS
from vyre.driver.admission.program import admit
from vyre.driver.contract import VyreBackend
from vyre.driver.contract.values import DEFAULT_CONFIG
from vyre.driver.verify import shadow
from vyre.errors import UnsupportedFeature
from vyre.foundation.ir.dtypes import u32
from vyre.foundation.ir.nodes import Call, Lit, Store
from vyre.foundation.ir.program import Program, output

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "vyre"
PATHS = sorted(p.relative_to(SOURCE).as_posix() for p in SOURCE.rglob("*.py"))
ERRORS = {
    name
    for module in (errors, shadow)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, errors.VyreError)
}
BUILTIN_ERRORS = {
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
}


def source(path: str) -> str:
    return (SOURCE / path).read_text("utf-8")


def offences(of):
    """Module -> what `of(path, text)` says of it, where it says something. One test for all modules, because a test for
    each would be two thousand."""
    return {path: found for path in PATHS if (found := of(path, source(path)))}


# ---- files and folders ----------------------------------------------------------------------------------------------

MOST_LINES, MOST_FILES = 600, 12
FULLER = {"cli/commands", "libs"}
"""Where one command, or one library, is one file."""
SKELETON = {
    "__init__.py", "backend.py", "build.py", "compile.py", "device.py", "devices.py", "emit", "exactness.py",
    "requirements.py", "run",
}  # fmt: skip
BESIDES = {"cpu": {"abi.py", "facts.py"}, "reference": {"engines"}}
"""What only one backend has; `docs/design/backends.md` says why."""
BACKENDS = sorted(p.parent.name for p in SOURCE.glob("backends/*/__init__.py"))


def test_a_file_can_be_read_at_a_sitting():
    lengths = {path: source(path).count("\n") for path in PATHS}
    assert {path: lines for path, lines in lengths.items() if lines > MOST_LINES} == {}


def test_a_folder_can_be_seen_at_a_glance():
    files = Counter(path.rpartition("/")[0] for path in PATHS)
    assert {folder: n for folder, n in files.items() if n > MOST_FILES and folder not in FULLER} == {}


def test_a_file_among_the_commands_is_a_command():
    files = {p.stem for p in (SOURCE / "cli" / "commands").glob("*.py")} - {"__init__"}
    assert files - {"cache_warm"} == set(COMMANDS)  # `vyre cache warm` is one too


@pytest.mark.parametrize("id", BACKENDS)
def test_backends_have_one_skeleton(id):
    here = {p.name for p in (SOURCE / "backends" / id).iterdir() if p.name != "__pycache__"}
    assert here - SKELETON == BESIDES.get(id, set())
    assert {"__init__.py", "backend.py", "requirements.py"} <= here
    if (SOURCE / "backends" / id / "emit").exists():  # it compiles
        assert SKELETON - {"compile.py"} <= here


# ---- imports --------------------------------------------------------------------------------------------------------


def wildcards(tree: ast.AST) -> list[int]:
    return [n.lineno for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.names[0].name == "*"]


@pytest.mark.row("A-ORG-1")
def test_names_are_imported_one_by_one():
    assert offences(lambda path, text: wildcards(ast.parse(text))) == {}


@pytest.mark.row("A-ORG-1")
@pytest.mark.parametrize("path", [p for p in PATHS if p.startswith("driver/") and p.endswith("__init__.py")])
def test_packages_of_the_driver_list_what_they_offer_and_import_none_of_it(path):
    """Two threads that import modules of a package which imports them itself may fail."""
    body = ast.parse(source(path)).body
    offers = any(isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__" for node in body)
    assert offers or len(body) == 1
    own = [ast.unparse(n) for n in body if isinstance(n, ast.ImportFrom) and n.level == 1 and n.module is not None]
    assert own == []


# ---- raises ---------------------------------------------------------------------------------------------------------

OUR_OWN_MISTAKES = {
    ("errors/__init__.py", "__init__"): "an error without a fix",
    ("driver/plan/bounds.py", "__init__"): "a counter of an unknown mode",
    ("foundation/formats/text.py", "_expr_parts"): "an expression class that the printer does not know",
    ("foundation/formats/text.py", "_node_parts"): "a statement class that the printer does not know",
}
"""(module, function) -> what it refuses. Nobody can cause these from outside."""


PROTOCOL = {"StopIteration", "TimeoutError"}
"""What Python, and the wait of a pending dispatch, take as an answer."""


COMMAND_LINE = ("cli/", "__main__.py")
EXITS = {"typer.Exit", "SystemExit"}
"""How a command ends, with an exit code that is an answer; elsewhere nobody may end the process."""


@cache
def makers() -> dict[str, set[str]]:
    """Name of each function or method of the package -> what its definitions return."""
    found: dict[str, set[str]] = {}
    for path in PATHS:
        for node in ast.walk(ast.parse(source(path))):
            if isinstance(node, ast.FunctionDef):
                found.setdefault(node.name, set()).add(ast.unparse(node.returns) if node.returns else "")
    return found


def raises(tree: ast.AST) -> Iterator[tuple[ast.Raise, str, set[str]]]:
    """Every `raise` with the function it is in, and the exceptions that a `try` around it catches there."""

    def visit(node: ast.AST, function: str, caught: frozenset[str]) -> Iterator[tuple[ast.Raise, str, set[str]]]:
        if isinstance(node, ast.Raise):
            yield node, function, set(caught)
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            function, caught = getattr(node, "name", function), frozenset()
        for name, value in ast.iter_fields(node):
            inside = caught
            if isinstance(node, ast.Try) and name == "body":
                handled = (h.type for h in node.handlers if h.type is not None)
                inside |= {ast.unparse(t) for h in handled for t in (h.elts if isinstance(h, ast.Tuple) else [h])}
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child, function, inside)

    return visit(tree, "", frozenset())


def without_fix(path: str, text: str) -> list[str]:
    """Raises whose error may say nothing about what to do next."""
    found = []
    for node, function, caught in raises(ast.parse(text)):
        if path.startswith(COMMAND_LINE) and isinstance(node.exc, ast.Call) and ast.unparse(node.exc.func) in EXITS:
            continue
        why = _complaint(node.exc, caught)
        if why and (path, function) not in OUR_OWN_MISTAKES:
            found.append(f"{path}:{node.lineno}: {why}")
    return found


def _complaint(raised: ast.expr | None, caught: set[str]) -> str | None:
    if not isinstance(raised, ast.Call):
        name = ast.unparse(raised) if raised is not None else ""
        return f"{name} has no text" if name in BUILTIN_ERRORS - PROTOCOL - caught else None
    name = ast.unparse(raised.func).rpartition(".")[2]
    if any(k.arg in ("fix", None) for k in raised.keywords):
        return None
    if name in ERRORS:
        return f"{name} has no fix"
    if name in BUILTIN_ERRORS:
        if name in caught or name == "AttributeError":  # which is how Python says that a name is not there
            return None
        return None if "Fix: " in ast.unparse(raised) else f"{name} has no fix"
    makes = {word for returned in makers().get(name, set()) for word in re.findall(r"\w+", returned)}
    local = name.startswith("_") and name[1:2].isupper()  # a signal between two functions of one module
    return None if local or makes & (ERRORS | {"Exception"}) else f"{name}() does not say that it makes an error"


@pytest.mark.row("A-ORG-3")
def test_every_raise_says_what_to_do_next():
    assert offences(without_fix) == {}


@pytest.mark.row("A-ORG-3")
@pytest.mark.parametrize(
    "text, complaint",
    [
        ("raise ValueError('no')", "ValueError has no fix"),
        ("raise ValueError", "ValueError has no text"),
        ("raise SystemExit(1)", "SystemExit has no fix"),
        ("raise RuntimeError(f'no {x}')", "RuntimeError has no fix"),
        ("raise VyreError('no')", "VyreError has no fix"),
        ("raise errors.DispatchFailed('no')", "DispatchFailed has no fix"),
        ("raise Diverged('no')", "Diverged has no fix"),
        ("raise something('no')", "something() does not say that it makes an error"),
        (
            "def f():\n    try:\n        g()\n    except ValueError:\n        raise ValueError('no')",
            "ValueError has no fix",
        ),
        ("try:\n    def f():\n        raise ValueError('no')\nexcept ValueError: pass", "ValueError has no fix"),
    ],
)
def test_a_raise_without_a_fix_is_caught(text, complaint):
    (found,) = without_fix("driver/x.py", text)
    assert found.endswith(complaint)


@pytest.mark.row("A-ORG-3")
@pytest.mark.parametrize(
    "text",
    [
        "raise",
        "raise error",
        "raise StopIteration",
        "raise VyreError('no', fix='do')",
        "raise VyreError(*args, **options)",
        "raise TypeError('no. Fix: do')",
        "raise AttributeError(name)",
        "try:\n    raise ValueError('no')\nexcept (TypeError, ValueError):\n    pass",
    ],
)
def test_a_raise_with_a_fix_passes(text):
    assert without_fix("driver/x.py", text) == []


def test_a_command_may_end_with_an_exit_code():
    for path, text in (("cli/x.py", "raise typer.Exit(1)"), ("__main__.py", "raise SystemExit(main())")):
        assert without_fix(path, text) == []


# ---- reads ----------------------------------------------------------------------------------------------------------

READS = {
    ("driver/selection/installed.py", "read_text"): "metadata of an installed package, through the standard library"
}
"""(module, call) -> why nothing from outside decides how much it reads."""


def unbounded_reads(path: str, text: str) -> list[str]:
    """Calls that read a file to its end, however long it is."""
    found = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(attr="read" | "readlines" as name), args=[]):
                pass
            case ast.Call(func=ast.Attribute(attr="read_text" | "read_bytes" as name)):
                pass
            case ast.Call(func=ast.Attribute(attr="load" as name, value=ast.Name(id="json" | "tomllib" | "pickle"))):
                pass
            case _:
                continue
        if (path, name) not in READS:
            found.append(f"{path}:{node.lineno}: {name}() has no limit")
    return found


@pytest.mark.row("A-ORG-4")
def test_every_read_of_a_file_has_a_limit():
    assert offences(unbounded_reads) == {}


@pytest.mark.row("A-ORG-4")
def test_a_read_without_a_limit_is_caught():
    for text in ("f.read()", "Path(p).read_text('utf-8')", "p.read_bytes()", "json.load(f)", "f.readlines()"):
        assert len(unbounded_reads("driver/x.py", text)) == 1
    for text in ("f.read(MAX + 1)", "json.loads(text)", "reader.read_u32"):
        assert unbounded_reads("driver/x.py", text) == []


# ---- caches ---------------------------------------------------------------------------------------------------------

FEW = {"DataType", "BinaryOp", "UnaryOp", "AtomicOp", "ReduceOp", "bool"}
"""Types with as many values as the language has; of a program's own there may be any number."""


CACHES = {("lower/instructions.py", "_function"): "its parameters are names of operations and types"}
"""(module, function) -> why it meets only so many arguments."""


def unbounded_caches(path: str, text: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef) or (path, node.name) in CACHES:
            continue
        decorators = {ast.unparse(d).removeprefix("functools.") for d in node.decorator_list}
        if not decorators & {"cache", "lru_cache(maxsize=None)", "lru_cache(None)"}:
            continue
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        if (
            node.args.vararg
            or node.args.kwarg
            or any(a.annotation is None or not {*ast.unparse(a.annotation).split(" | ")} <= FEW for a in given)
        ):
            found.append(f"{path}:{node.lineno}: {node.name} remembers without a bound")
    return found


@pytest.mark.row("A-ORG-5")
def test_no_cache_grows_with_what_users_bring():
    assert offences(unbounded_caches) == {}


@pytest.mark.row("A-ORG-5")
def test_an_unbounded_cache_is_caught():
    for head in ("@cache", "@functools.cache", "@lru_cache(maxsize=None)", "@functools.lru_cache(None)"):
        assert len(unbounded_caches("driver/x.py", f"{head}\ndef f(p: Program): ...")) == 1
    assert len(unbounded_caches("driver/x.py", "@cache\ndef f(x): ...")) == 1
    assert len(unbounded_caches("driver/x.py", "@cache\ndef f(x: bool | Program): ...")) == 1
    assert unbounded_caches("driver/x.py", "@cache\ndef f(op: UnaryOp | BinaryOp): ...") == []
    assert len(unbounded_caches("driver/x.py", "@cache\ndef f(*xs: bool): ...")) == 1
    for text in ("@cache\ndef f(): ...", "@cache\ndef f(t: DataType): ...", "@lru_cache(maxsize=64)\ndef f(p): ..."):
        assert unbounded_caches("driver/x.py", text) == []


# ---- fixtures -------------------------------------------------------------------------------------------------------

UNSUPPORTED = (ROOT / "tests" / "fixtures" / "unsupported_ops.txt").read_text("utf-8").split()


class Plain(VyreBackend, contract=1):
    id = "plain"

    def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        return []


@pytest.mark.row("A-ORG-6")
@pytest.mark.parametrize("op", UNSUPPORTED)
def test_an_operation_that_nobody_registered_is_refused_by_name(op):
    program = Program([output("out", 0, u32, 1)], (1, 1, 1), [Store("out", Lit(u32, 0), Call(op, ()))])
    with pytest.raises(UnsupportedFeature, match=f"it lacks .*{op}"):
        admit(program, Plain())
