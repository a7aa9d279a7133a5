"""Which parts of the package made stored code, and which code a change of one of them loses."""

import ast
import json
import os
import shutil
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import vyre
from vyre import In, Out, f32, gid
from vyre.driver.guard.compile import compile_with_telemetry
from vyre.driver.pipeline import toolchain
from vyre.driver.pipeline.store import DiskPipelineCache
from vyre.driver.pipeline.toolchain import digests_of_sources
from vyre.foundation.ir.nodes import BinOp
from vyre.foundation.ir.ops import BinaryOp, UnaryOp

from ....support.device_backends import registration_or_skip

BACKENDS = ("cpu", "opencl", "wgpu", "cuda")


@pytest.fixture
def on_disk(tmp_path, monkeypatch):
    """The cache of the settings, on, in a folder of its own."""
    monkeypatch.setenv("VYRE_CACHE", "on")
    monkeypatch.setenv("VYRE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pipelines"


# ---- digests --------------------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path):
    """A package with a file in every part."""
    files = {
        "foundation/check/a.py": "1",
        "foundation/meaning/mathlib/expand.py": "2",
        "foundation/meaning/mathlib/power.py": "3",
        "foundation/language/b.py": "4",
        "driver/contract/c.py": "5",
        "driver/pipeline/d.py": "6",
        "driver/plan/e.py": "7",
        "driver/policy/f.py": "8",
        "driver/guard/g.py": "9",
        "lower/passes/h.py": "a",
        "runtime/i.py": "b",
        "backends/one/j.py": "c",
        "backends/two/run/k.py": "d",
        "front/l.py": "e",
    }
    root = tmp_path / "package"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


PART_OF = {
    "foundation/check/a.py": "foundation",
    "foundation/meaning/mathlib/expand.py": "foundation",
    "foundation/meaning/mathlib/power.py": None,
    "foundation/language/b.py": None,
    "driver/contract/c.py": "driver",
    "driver/pipeline/d.py": "driver",
    "driver/plan/e.py": "driver",
    "driver/policy/f.py": "driver",
    "driver/guard/g.py": None,
    "lower/passes/h.py": "lower",
    "runtime/i.py": "runtime",
    "backends/one/j.py": "backends/one",
    "backends/two/run/k.py": "backends/two",
    "front/l.py": None,
}


@pytest.mark.parametrize("file", PART_OF)
def test_an_edited_file_changes_the_digest_of_its_part_alone(package, on_disk, file):
    before = digests_of_sources(package)
    assert set(before) == {part for part in PART_OF.values() if part}
    (package / file).write_text("edited")
    after = digests_of_sources(package)
    assert [part for part in before if before[part] != after[part]] == [part for part in [PART_OF[file]] if part]
    (package / file).rename(package / file.replace(".py", "_.py"))
    assert (digests_of_sources(package) == after) == (PART_OF[file] is None)


def test_digests_of_sources_are_kept_and_those_that_are_damaged_made_again(package, tmp_path, on_disk, monkeypatch):
    kept = on_disk.parent / "sources"
    first = digests_of_sources(package)
    assert digests_of_sources(package) == first
    assert len(list(kept.iterdir())) == 1
    os.utime(package / "lower/passes/h.py", (1, 1))
    assert digests_of_sources(package) == first  # the bytes are what they were
    assert len(list(kept.iterdir())) == 2
    for damage in (b"", b"\xff" * 16, b"[1]", b"[" * 9999, b'{"lower": "0123456789abcdef"}', b'{"lower": 7}'):
        for file in kept.iterdir():
            file.write_bytes(damage)
        assert digests_of_sources(package) == first
    told = dict.fromkeys(first, "0123456789abcdef")
    for file in kept.iterdir():
        file.write_text(json.dumps(told))
    assert digests_of_sources(package) == told
    monkeypatch.setenv("VYRE_CACHE", "off")
    assert digests_of_sources(package) == first
    monkeypatch.setenv("VYRE_CACHE", "readonly")
    assert digests_of_sources(package) == told
    if os.name == "posix":
        kept.chmod(0o777)  # others may have written it
        assert digests_of_sources(package) == first
    monkeypatch.setenv("VYRE_CACHE_DIR", str(tmp_path / "nowhere"))
    assert digests_of_sources(package) == first
    assert not (tmp_path / "nowhere").exists()


def test_where_there_is_no_source_the_version_stands_for_it(package, on_disk, monkeypatch):
    for file in [*(package / "lower").rglob("*.py"), *(package / "backends").rglob("*.py")]:
        file.rename(file.with_suffix(".pyc"))
    shutil.rmtree(package / "runtime")
    monkeypatch.setattr(vyre, "__version__", "1.0")
    first = digests_of_sources(package)
    assert set(first) == set(toolchain.PARTS)
    assert first["lower"] == first["runtime"] != first["foundation"]
    assert digests_of_sources(package) == first
    monkeypatch.setattr(vyre, "__version__", "1.1")
    second = digests_of_sources(package)
    assert [part for part in first if first[part] != second[part]] == ["lower", "runtime"]


def test_digests_of_few_states_are_kept(package, on_disk, monkeypatch):
    monkeypatch.setattr(toolchain, "MOST_STATES", 3)
    for n in range(5):
        (package / "lower" / "a.py").write_text("x" * n)
        digests_of_sources(package)
    assert len(list((on_disk.parent / "sources").iterdir())) == 3


MAKE_NO_CODE = {
    "driver/admission": "what is compiled was admitted, with a config that is settled",
    "driver/counters": "counts",
    "driver/execute": "runs code",
    "driver/resident": "memory of a caller",
    "driver/selection": "probes, whose answers are facts of the device in the key",
    "driver/settings": "threads; no setting changes code",
    "driver/verify": "runs programs in another order",
    "errors": "refuses",
    "__version__": "a name",
}
"""What those that make code import of the rest of the package, and why a change there changes no code."""


def test_whatever_makes_code_is_a_part_of_the_lineage():
    root, outside = Path(toolchain.__file__).parents[2], set()
    parts = {name for name, _, _ in toolchain._files(str(root)) if toolchain.part_of(name)}
    modules = {name.removesuffix(".py").removesuffix("/__init__") for name in parts}
    for file in (root / name for name in parts if name.startswith(("lower", "runtime", "backends"))):
        inside = file.relative_to(root).with_suffix("").parts
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                module = [*inside[: -node.level], *(node.module or "").split(".")]
                for path in ("/".join(filter(None, [*module, name.name])) for name in node.names):
                    if not modules & {path, path.rpartition("/")[0]}:
                        outside.add("/".join(path.split("/")[: 2 if path.startswith("driver") else 1]))
    assert outside == set(MAKE_NO_CODE)


@pytest.fixture
def afresh():
    """Digests as another process would find them."""
    caches = (toolchain.version_of, toolchain._definitions)
    for each in caches:
        each.cache_clear()
    yield lambda: [each.cache_clear() for each in caches]
    for each in caches:
        each.cache_clear()


def test_versions_of_functions_are_kept_and_are_the_same_where_nothing_is(on_disk, monkeypatch, afresh):
    found = dict.fromkeys(("readonly", "off", "on"))
    for mode in found:
        afresh()
        monkeypatch.setenv("VYRE_CACHE", mode)
        found[mode] = toolchain.version_of("exp"), toolchain.version_of("pow")
        assert (on_disk.parent / "sources").exists() == (mode == "on")
    assert len(set(found.values())) == 1
    (kept,) = (on_disk.parent / "sources").iterdir()
    told = json.loads(kept.read_text())
    assert set(told) == {op.text for op in toolchain.FUNCTION_IDS}
    kept.write_text(json.dumps(told | {"exp": "0123456789abcdef"}))
    afresh()
    assert toolchain.version_of("exp") == "0123456789abcdef"
    told.pop("pow")  # which no version of vyre wrote
    kept.write_text(json.dumps(told))
    afresh()
    assert (toolchain.version_of("exp"), toolchain.version_of("pow")) == found["on"]


# ---- lineage --------------------------------------------------------------------------------------------------------


@vyre.kernel(workgroup=64)
def uses_exp(x: In[f32], out: Out[f32]):
    if gid.x < len(out):
        out[gid.x] = vyre.exp(x[gid.x])


@vyre.kernel(workgroup=64)
def uses_sin(x: In[f32], out: Out[f32]):
    if gid.x < len(out):
        out[gid.x] = vyre.sin(x[gid.x])


@vyre.kernel(workgroup=64)
def uses_none(x: In[f32], out: Out[f32]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * 3.0


LINEAGE = {"exp": uses_exp, "sin": uses_sin, "none": uses_none}


X = np.linspace(-2, 2, 200, dtype=np.float32).tobytes()


def by_reference(program, x):
    with vyre.acquire("reference") as reference:
        return reference.dispatch(program, [x])[0]


def tiers(backend):
    """Where a process that begins now finds the code of each kernel."""
    guard, found = vyre.acquire(backend), {}
    try:
        for name, kernel in LINEAGE.items():
            program = vyre.Program.from_wire(kernel.program.to_wire()).called(kernel.__name__)
            build = compile_with_telemetry(guard, program)
            found[name] = build.tier
            assert bytes(build.pipeline.dispatch([X])[0]) == bytes(by_reference(program, X))
    finally:
        guard.shutdown()
    return found


@pytest.mark.row("A-DC-8")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_with_another_definition_loses_the_code_of_its_users_alone(backend, on_disk, monkeypatch, afresh):
    registration_or_skip(backend)
    assert set(tiers(backend).values()) == {"compiled"}
    assert set(tiers(backend).values()) == {"disk"}
    expand = import_module("vyre.foundation.meaning.mathlib.expand")
    monkeypatch.setitem(expand._FUNCTIONS, UnaryOp.SIN, lambda b, x: b.let("s", BinOp(BinaryOp.MUL, x, x)))
    shutil.rmtree(on_disk.parent / "sources")  # which are of another state of the source
    afresh()
    assert tiers(backend) == {"exp": "disk", "sin": "compiled", "none": "disk"}
    store = DiskPipelineCache(on_disk, readonly=False)
    assert [entry.name for entry in store.impacted()] == ["uses_sin"]
    assert [entry.name for entry in store.invalidate_impacted()] == ["uses_sin"]
    assert store.impacted() == []
    with monkeypatch.context() as later:
        later.setattr("vyre.driver.pipeline.store.CURRENT_PIPELINE_CACHE_KEY_VERSION", 99)
        assert store.impacted() == store._rows() != []
    assert tiers(backend) == {"exp": "disk", "sin": "disk", "none": "disk"}
    assert len(store.entries()) == 3
    store.database().close()


@pytest.mark.parametrize(
    "part, lost", [("backends/cpu", {"cpu"}), ("backends/opencl", {"opencl"}), ("lower", {"cpu", "opencl"})]
)
def test_an_edited_part_loses_the_code_of_the_backends_that_it_is_part_of(part, lost, on_disk, monkeypatch):
    for backend in ("cpu", "opencl"):
        registration_or_skip(backend)
        tiers(backend)
    edited = toolchain.sources() | {part: "0123456789abcdef"}
    monkeypatch.setattr(toolchain, "sources", lambda: edited)
    store = DiskPipelineCache(on_disk, readonly=False)
    assert {entry.record.fields["backend_id"] for entry in store.impacted()} == lost
    for backend in ("cpu", "opencl"):
        assert set(tiers(backend).values()) == {"compiled" if backend in lost else "disk"}
    store.database().close()
