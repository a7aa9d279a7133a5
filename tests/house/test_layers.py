"""Imports point down only, nobody imports a backend, and the neutral layers name no target."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

SOURCE = Path(__file__).parents[2] / "src"
LAYERS_UPWARDS = "errors foundation driver lower runtime backends front libs conform cli"
ROOMS_UPWARDS = {
    "foundation": "above durations forking integers lazy memo html ir meaning check formats language",
    "driver": (
        "above policy settings contract counters observers diagnostics device_state plan admission pipeline execute "
        "guard selection resident observe verify"
    ),
}
LAYERS = LAYERS_UPWARDS.split()
FLOORS = {layer: rooms.split() for layer, rooms in ROOMS_UPWARDS.items()}
"""Rooms of a layer, lowest first; its root may name all of them. An import counts wherever it stands."""
ROOT_MODULES = {"__init__": "root", "__main__": "cli", "errors": "errors"}
NEUTRAL = {"foundation", "driver", "conform", "front", "cli"}
TARGET_WORD = re.compile(
    r"(?i:cuda|wgpu|wgsl|opencl|llvm)"  # no other word holds these
    r"|(?<![A-Za-z])(?i:ptx|ray)(?![A-Za-z])|(?<![A-Z])(?:Ptx|Ray)(?![a-z])"  # but "array" holds this one
)
MODULE_NAME = re.compile(r"(?P<dots>\.*)(?P<name>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)(:\w+)?")
PUBLISHED_NAMES = {"__cuda_array_interface__"}  # a protocol of other packages, which cannot be spelt otherwise


def violations(path: str, source: str) -> list[str]:
    """What is wrong with the module at `path` (`vyre/...`), one line each."""
    parts = PurePosixPath(path).with_suffix("").parts
    layer = ROOT_MODULES.get(parts[1]) if len(parts) == 2 else parts[1]
    if layer != "root" and layer not in LAYERS:
        return [f"{path}: not in a layer"]
    tree = ast.parse(source)
    found = [f"{path}:{line}: {why}" for line, target in imports(parts, tree) if (why := refusal(parts, layer, target))]
    if layer in NEUTRAL:
        found += [f"{path}:{line}: names a target: {text!r}" for line, text in words(tree) if names_target(text)]
    return found


def imports(parts: tuple[str, ...], tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, also inside functions and by a string, as in `import_module("...")` and in
    the tables of names that are resolved on first use."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, name.name) for name in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = [*parts[:-level], *(module or "").split(".")] if level else (module or "").split(".")
                yield from ((node.lineno, ".".join([*filter(None, base), name.name])) for name in names)
            case ast.Constant(value=str(text)) if (found := MODULE_NAME.fullmatch(text)) is not None:
                dots, name = len(found["dots"]), found["name"].split(".")
                path = [*parts[:-dots], *name] if dots else name
                if is_module(path):
                    yield node.lineno, ".".join(path)


def is_module(path: list[str]) -> bool:
    place = SOURCE.joinpath(*path)
    return (
        path[0] == "vyre"
        and path[1:] not in ([], ["backends"])
        and (place.with_suffix(".py").is_file() or (place / "__init__.py").is_file())
    )


def refusal(parts: tuple[str, ...], layer: str, target: str) -> str | None:
    """Why the module at `parts` may not import `target`."""
    top, *rest = target.split(".")
    if top == "numpy" and layer == "foundation":
        return "foundation imports numpy"
    if top != "vyre" or layer == "root" or rest == ["__version__"]:  # the root names everything, lazily
        return None
    goal = rest[0] if rest and rest[0] in LAYERS else "front"  # other names of the root are what users call
    if goal == "backends" and not (layer == "backends" and rest[1:2] == [parts[2]]):
        return f"imports the backend {target}; reach it by its id"
    if LAYERS.index(goal) > LAYERS.index(layer):
        return f"{layer} imports {target}, which lies above it"
    floors = FLOORS.get(layer)
    if floors is None or goal != layer or len(parts) == 2 or parts[2] == "__init__":
        return None
    room = rest[1] if len(rest) > 1 else None
    if parts[2] not in floors:
        return f"{parts[2]} is on no floor"
    if room not in floors:
        return f"imports {target}, which is on no floor"
    return f"{parts[2]} imports {target}, which lies above it" if floors.index(room) > floors.index(parts[2]) else None


def words(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of every identifier and string, docstrings left out."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in docstrings and isinstance(node, ast.Constant):
            continue
        for _, value in ast.iter_fields(node):
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str | bytes):
                    yield getattr(node, "lineno", 0), text if isinstance(text, str) else text.decode("latin-1")


def names_target(text: str) -> bool:
    return text not in PUBLISHED_NAMES and TARGET_WORD.search(text) is not None


@pytest.mark.row("A-ORG-2")
def test_modules_keep_to_their_layers():
    paths = sorted(p.relative_to(SOURCE).as_posix() for p in SOURCE.glob("vyre/**/*.py"))
    found = {path: violations(path, (SOURCE / path).read_text("utf-8")) for path in paths}
    assert {path: what for path, what in found.items() if what} == {}


@pytest.mark.parametrize(
    "path, source",
    [
        ("vyre/errors.py", "import vyre.foundation"),
        ("vyre/foundation/ir/nodes.py", "from vyre.driver.contract import VyreBackend"),
        ("vyre/foundation/ir/nodes.py", "from ..driver import contract"),
        ("vyre/foundation/ir/nodes.py", "from .. import driver"),
        ("vyre/foundation/__init__.py", "from ..driver import contract"),
        ("vyre/foundation/ir/nodes.py", "from vyre import driver"),
        ("vyre/foundation/ir/nodes.py", "def f():\n    import numpy as np"),
        ("vyre/foundation/ir/nodes.py", "from numpy import ndarray"),
        ("vyre/driver/plan/launch.py", "from ...front import run"),
        ("vyre/driver/execute/pipeline.py", "import vyre"),
        ("vyre/driver/execute/pipeline.py", "from vyre import kernel"),
        ("vyre/driver/execute/pipeline.py", "import_module('vyre.front')"),
        ("vyre/driver/selection/registry.py", "import importlib\nimportlib.import_module('vyre.backends.cpu')"),
        (
            "vyre/driver/plan/__init__.py",
            "_OFFERS = {'..guard.backend': 'guarded'}\n__getattr__ = lazily(__name__, _OFFERS)",
        ),
        ("vyre/driver/plan/launch.py", "importlib.import_module(name='..selection', package=__package__)"),
        ("vyre/driver/plan/launch.py", "resolve_name('vyre.driver.guard.backend:guarded')"),
        ("vyre/driver/plan/launch.py", "sys.modules['vyre.front.kernel']"),
        ("vyre/foundation/ir/build.py", "f = later('vyre', 'vyre.lower:lower')"),
        ("vyre/foundation/__init__.py", "where = {'..driver.contract': 'VyreBackend'}"),
        ("vyre/lower/legal.py", "import vyre.backends"),
        ("vyre/front/run.py", "from vyre.backends.reference import REGISTRATION"),
        ("vyre/front/run.py", "from vyre.libs import scan"),
        ("vyre/libs/scan.py", "from vyre import conform"),
        ("vyre/backends/__init__.py", "from .reference import REGISTRATION"),
        ("vyre/backends/cpu.py", "from vyre.backends.reference import run"),
        ("vyre/backends/opencl/emit.py", "from ..cuda import emit"),
        ("vyre/conform/cases.py", "import vyre.cli.app"),
        ("vyre/__main__.py", "import vyre.backends.cpu"),
        ("vyre/helpers.py", ""),
        ("vyre/utils/text.py", ""),
        ("vyre/driver/contract/profile.py", "cuda_streams = 1"),
        ("vyre/driver/contract/profile.py", "class OpenCLThing: pass"),
        ("vyre/driver/contract/profile.py", "def f(*, use_ptx): pass"),
        ("vyre/driver/contract/profile.py", "f(ray=1)"),
        ("vyre/driver/contract/profile.py", "import llvmlite"),
        ("vyre/driver/contract/profile.py", "x.PtxText"),
        ("vyre/front/run.py", "x = f'{y} runs on wgpu'"),
        ("vyre/front/run.py", "x = b'WGSL'"),
        ("vyre/cli/commands/run.py", "f('ray')"),
        ("vyre/conform/cases.py", "class RayCase: pass"),
        ("vyre/foundation/ir/nodes.py", "def f():\n    global llvm_context"),
    ],
)
def test_a_planted_violation_is_caught(path, source):
    assert len(violations(path, source)) == 1


@pytest.mark.parametrize(
    "path, source",
    [
        ("vyre/__init__.py", "if TYPE_CHECKING:\n    from vyre.front import kernel"),
        ("vyre/__main__.py", "from vyre.cli.app import main"),
        ("vyre/errors.py", "from enum import IntEnum"),
        ("vyre/foundation/ir/nodes.py", "from vyre.errors import VyreError\nfrom .types import u32\nfrom . import ops"),
        ("vyre/foundation/ir/nodes.py", "from vyre import errors\nfrom ...errors import VyreError"),
        ("vyre/driver/__init__.py", "from . import plan\nfrom ..foundation import ir"),
        ("vyre/driver/plan/ops.py", "import numpy"),
        ("vyre/driver/execute/route.py", "from ..plan.launch import LaunchPlan\nfrom .pending import RoutePending"),
        ("vyre/driver/execute/route.py", "from .. import above, counters"),
        ("vyre/driver/execute/__init__.py", "_OFFERS = {'..contract.profile': 'Profile', '.route': 'Route'}"),
        ("vyre/driver/selection/registry.py", "GROUP, LOG = 'vyre.backends', 'vyre.guard'"),
        ("vyre/backends/reference.py", "import numpy\nfrom vyre.driver import contract"),
        ("vyre/backends/opencl/backend.py", "import pyopencl\nfrom .emit import text\nfrom ...lower import cfamily"),
        ("vyre/backends/opencl/backend.py", "from vyre.backends.opencl.emit import text"),
        ("vyre/libs/scan.py", "import vyre\nfrom vyre import In, kernel"),
        (
            "vyre/front/run.py",
            "array = ndarray = Array = 'an array; arrays'; traytable = stray(x.__cuda_array_interface__)",
        ),
        ("vyre/front/run.py", '"""Runs on cuda."""\ndef f():\n    """Or on ray."""\nclass C:\n    """Or wgpu."""'),
        ("vyre/driver/contract/profile.py", "count = 1  # cuda has more"),
    ],
)
def test_what_the_design_allows_passes(path, source):
    assert violations(path, source) == []
