"""vyre cache: what is stored, why something is not, and taking it to another machine."""

import json
import os
import zipfile
from dataclasses import replace

import pytest

import vyre
from vyre.cli.commands import cache
from vyre.cli.commands.cache_warm import Warmed
from vyre.driver.contract import DeviceInfo
from vyre.driver.contract.values import DEFAULT_CONFIG
from vyre.driver.guard import compile as compiling
from vyre.driver.pipeline import archive, toolchain
from vyre.driver.pipeline import database as databases
from vyre.driver.pipeline import key as keys
from vyre.driver.pipeline.archive import read_archive, write_archive
from vyre.driver.pipeline.store import DiskPipelineCache
from vyre.driver.selection import registry
from vyre.driver.selection.probe import Probe, recall_probe, remember_probe
from vyre.errors import ArgumentValueError

from ...support import probes
from ...support.cli_tool import SAXPY, command, document, files, inside, refused  # noqa: F401
from ...support.device_backends import registration_or_skip

RUN = ("run", "saxpy.py", "-i", "alpha=2", "-i", "x=arange:10", "-i", "y=arange:10", "--backend", "cpu")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("VYRE_CACHE", "on")
    monkeypatch.setenv("VYRE_CACHE_DIR", str(tmp_path / "cache"))
    registry.refresh()  # so that nothing is in memory
    return tmp_path / "cache" / "pipelines"


@pytest.fixture
def stored(tmp_path, place):
    """saxpy, compiled by a process of its own."""
    done = command(*RUN, cwd=tmp_path, VYRE_CACHE_DIR=str(place.parent), VYRE_CACHE="on")
    assert done.returncode == 0, done.stderr
    return DiskPipelineCache(place, readonly=False)


def test_an_empty_cache_is_shown_and_nothing_is_made(capsys, place):
    found = document(capsys, cache.Stats, "cache", "stats")
    assert (found["entries"], found["use"], found["folder"]) == (0, "on", str(place))
    assert document(capsys, cache.Listing, "cache", "ls") == {"entries": [], "probes": []}
    assert document(capsys, cache.Verified, "cache", "verify") == {"entries": 0, "probes": 0, "damaged": []}
    assert document(capsys, cache.Removed, "cache", "prune") == {"removed": 0, "bytes": 0}
    assert document(capsys, cache.Cleared, "cache", "clear") == {"removed": 0, "bytes": 0, "probes": 0}
    assert not place.exists()
    assert "nothing is stored yet" in refused(capsys, "cache", "export", "x.zip")


def test_what_is_stored_is_listed_and_counted(capsys, stored):
    (entry,) = document(capsys, cache.Listing, "cache", "ls")["entries"]
    assert (entry["kernel"], entry["backend"], entry["uses"]) == ("saxpy", "cpu", 1)
    assert entry["bytes"] > 500
    found = document(capsys, cache.Stats, "cache", "stats")
    assert (found["entries"], found["bytes"], found["backends"]) == (1, entry["bytes"], {"cpu": 1})
    assert (found["counts"]["saved"], found["counts"]["misses"], found["compiling"]) == (1, 1, 0)
    assert document(capsys, cache.Listing, "cache", "ls", "--backend", "opencl") == {"entries": [], "probes": []}
    assert inside("cache", "ls") == 0
    assert f"{entry['key'][:16]}  saxpy   cpu" in capsys.readouterr().out
    assert inside("cache", "stats") == 0
    assert "of cpu" in capsys.readouterr().out


def test_a_stored_kernel_is_found_and_one_that_is_not_there_differs_in_one_field(capsys, stored):
    found = document(capsys, cache.Why, "cache", "why", "saxpy.py", "--backend", "cpu")
    assert (found["on_disk"], found["reason"], found["changes"]) == (True, None, [])
    found = document(capsys, cache.Why, "cache", "why", "saxpy.py", "-b", "cpu", "--timeout", "5", code=1)
    assert (found["on_disk"], found["reason"], found["nearest"]) == (False, "dispatch_policy_changed", "saxpy")
    assert found["changes"] == [{"field": "deadline", "was": "False", "now": "True"}]
    assert inside("cache", "why", "saxpy.py", "-b", "cpu", "--timeout", "5") == 1
    said = capsys.readouterr().out
    assert "not on disk: dispatch_policy_changed\nthe nearest stored key is one of saxpy; it differs in\n" in said
    assert inside("cache", "why", "saxpy.py", "-b", "cpu") == 0
    assert "on disk: a call loads it" in capsys.readouterr().out
    assert len(stored.entries()) == 1  # nothing was compiled


EDITED = {**toolchain.sources(), "lower": "0123456789abcdef"}
FIELDS = {
    "version": (keys, "CURRENT_PIPELINE_CACHE_KEY_VERSION", 99),
    "numerics_version": (keys, "NUMERICS_VERSION", 99),
    "source.lower": (toolchain, "sources", lambda: EDITED),
}


@pytest.mark.parametrize("field", FIELDS)
def test_another_version_or_source_is_named(capsys, stored, monkeypatch, field):
    monkeypatch.setattr(*FIELDS[field])
    found = document(capsys, cache.Why, "cache", "why", "saxpy.py", "-b", "cpu", code=1)
    assert (found["reason"], [c["field"] for c in found["changes"]]) == ("device_or_runtime_changed", [field])


FACTS = {
    "device": ("cpu", {"processor": "another"}, ["device.extras.processor"]),
    "driver version": ("opencl", {"driver": "99.0"}, ["device.extras.driver"]),
    "toolchain": ("cpu", {"compiler": "99.0, llvmlite 9"}, ["toolchain"]),
    "toolchain of a driver": ("opencl", {"compiler": "OpenCL C 9"}, ["toolchain"]),
}


@pytest.mark.parametrize("what", FACTS)
def test_another_device_driver_or_compiler_is_named(capsys, tmp_path, monkeypatch, what):
    backend, facts, fields = FACTS[what]
    registration_or_skip(backend)
    assert document(capsys, Warmed, "cache", "warm", "saxpy.py", "-b", backend)["kernels"][0]["on_disk"]
    guard = vyre.acquire(backend)
    opened, changed = type(guard.inner), {**guard.capability.extras, **facts}
    init = opened.__init__

    def changes(self, *args, **options):
        init(self, *args, **options)
        self.capability = replace(self.capability, extras=changed)

    guard.shutdown()
    monkeypatch.setattr(opened, "__init__", changes)
    registry.refresh()  # so that the front opens it anew
    try:
        found = document(capsys, cache.Why, "cache", "why", "saxpy.py", "-b", backend, code=1)
    finally:
        registry.refresh()
    assert (found["reason"], [c["field"] for c in found["changes"]]) == ("device_or_runtime_changed", fields)
    assert next(iter(facts.values())) in found["changes"][0]["now"]


def test_another_constant_is_named(capsys, place):
    assert inside("cache", "warm", "saxpy.py", "-b", "cpu", "--const", "alpha=2") == 0
    capsys.readouterr()
    assert document(capsys, cache.Why, "cache", "why", "saxpy.py", "-b", "cpu", "--const", "alpha=2")["on_disk"]
    found = document(capsys, cache.Why, "cache", "why", "saxpy.py", "-b", "cpu", "--const", "alpha=2.5", code=1)
    assert (found["reason"], found["nearest"]) == ("program_changed", "saxpy")
    assert found["changes"] == [{"field": "specs.alpha", "was": "2.0 (f32)", "now": "2.5 (f32)"}]
    found = document(capsys, cache.Why, "cache", "why", "saxpy.py", "-b", "cpu", code=1)
    assert found["changes"] == [{"field": "specs.alpha", "was": "2.0 (f32)", "now": "None"}]


WAVES = """
import vyre
from vyre import In, Out, f32, gid


@vyre.kernel(workgroup=64)
def waves(x: In[f32], out: Out[f32]) -> None:
    if gid.x < len(out):
        out[gid.x] = vyre.sin(x[gid.x]) + vyre.exp(x[gid.x])


@vyre.kernel(workgroup=64)
def growth(x: In[f32], out: Out[f32]) -> None:
    if gid.x < len(out):
        out[gid.x] = vyre.exp(x[gid.x])
"""


def test_another_definition_of_a_function_is_named_and_takes_the_kernels_that_use_it(
    capsys, place, tmp_path, monkeypatch
):
    (tmp_path / "waves.py").write_text(WAVES)
    assert inside("cache", "warm", "waves.py", "-b", "cpu") == 0
    capsys.readouterr()
    before = toolchain.version_of
    monkeypatch.setattr(toolchain, "version_of", lambda name: "0" * 16 if name == "sin" else before(name))
    found = document(capsys, cache.Why, "cache", "why", "waves.py:waves", "-b", "cpu", code=1)
    assert found["reason"] == "device_or_runtime_changed"
    assert found["changes"] == [{"field": "function.sin", "was": before("sin"), "now": "0" * 16}]
    assert document(capsys, cache.Why, "cache", "why", "waves.py:growth", "-b", "cpu")["on_disk"]
    assert document(capsys, cache.Stats, "cache", "stats")["impacted"] == 1
    gone = document(capsys, cache.Removed, "cache", "prune", "--stale")
    assert (gone["removed"], [e["kernel"] for e in listed(capsys)]) == (1, ["growth"])
    assert document(capsys, cache.Removed, "cache", "prune", "--stale")["removed"] == 0
    assert "--stale takes no number of bytes" in refused(capsys, "cache", "prune", "--stale", "--bytes", "1")


def listed(capsys):
    return document(capsys, cache.Listing, "cache", "ls")["entries"]


# ---- ahead of time --------------------------------------------------------------------------------------------------


@pytest.mark.check
def test_the_kernels_of_a_file_are_compiled_ahead_and_a_process_of_its_own_loads_them(capsys, tmp_path, place):
    (tmp_path / "waves.py").write_text(WAVES)
    found = document(capsys, Warmed, "cache", "warm", "waves.py", "-b", "cpu")
    assert [(r["kernel"], r["backend"], r["tier"], r["on_disk"], r["problem"]) for r in found["kernels"]] == [
        ("waves", "cpu", "compiled", True, None),
        ("growth", "cpu", "compiled", True, None),
    ]
    words = ("run", "waves.py:waves", "-i", "x=arange:10", "--backend", "cpu")
    done = command(*words, cwd=tmp_path, VYRE_CACHE_DIR=str(place.parent), VYRE_CACHE="on")
    assert done.returncode == 0, done.stderr
    assert DiskPipelineCache(place, readonly=True).summary().counts["saved"] == 2
    registry.refresh()
    again = document(capsys, Warmed, "cache", "warm", "waves.py", "-b", "cpu", "--threads", "1")
    assert [r["tier"] for r in again["kernels"]] == ["disk", "disk"]
    assert inside("cache", "warm", "waves.py:growth", "-b", "cpu") == 0
    said = capsys.readouterr().out
    assert "growth  cpu      memory" in said
    assert "waves " not in said


def test_a_kernel_that_cannot_be_compiled_ahead_is_told_and_the_others_are(capsys, tmp_path, place):
    more = SAXPY + (
        "\n\n@vyre.kernel(workgroup=64)\ndef scaled(x: In[f32], out: Out[f32], *, k: vyre.const):\n"
        "    if gid.x < len(out):\n        out[gid.x] = x[gid.x] * f32(k)\n"
    )
    (tmp_path / "two.py").write_text(more)
    found = document(capsys, Warmed, "cache", "warm", "two.py", "-b", "cpu", code=1)["kernels"]
    assert [(r["kernel"], r["on_disk"]) for r in found] == [("saxpy", True), ("scaled", False)]
    assert "scaled needs a value for its compile-time parameter k" in found[1]["problem"]
    assert "Fix: pass --const k=..." in found[1]["problem"]
    assert inside("cache", "warm", "two.py", "-b", "cpu") == 1
    assert "scaled: scaled needs a value" in capsys.readouterr().out
    found = document(capsys, Warmed, "cache", "warm", "two.py", "-b", "cpu", "--const", "k=2")["kernels"]
    assert [r["on_disk"] for r in found] == [True, True]
    said = refused(capsys, "cache", "warm", "two.py", "--const", "q=2")
    assert "no kernel of two.py has a parameter q. Fix: drop --const q" in said
    found = document(capsys, Warmed, "cache", "warm", "saxpy.py", "-b", "reference", code=1)["kernels"]
    assert [(r["backend"], r["on_disk"]) for r in found] == [("reference", False)]  # it compiles nothing
    (tmp_path / "none.py").write_text("")
    assert "has no kernel" in refused(capsys, "cache", "warm", "none.py")
    assert "compile nothing" in refused(capsys, "cache", "warm", "saxpy.py", "--threads", "0")


@pytest.mark.parametrize("use", ["off", "readonly"])
def test_nothing_is_compiled_ahead_where_nothing_is_kept(capsys, monkeypatch, use):
    monkeypatch.setenv("VYRE_CACHE", use)
    assert f"VYRE_CACHE={use} keeps nothing. Fix: run it with VYRE_CACHE=on" in refused(
        capsys, "cache", "warm", "saxpy.py"
    )


def test_an_edited_kernel_is_another_program(capsys, stored, tmp_path):
    text = (tmp_path / "saxpy.py").read_text()
    (tmp_path / "saxpy.py").write_text(text.replace("alpha * x", "alpha + x"))
    found = document(capsys, cache.Why, "cache", "why", "saxpy.py", "-b", "cpu", code=1)
    assert (found["reason"], found["nearest"]) == ("program_changed", "saxpy")
    assert [c["field"] for c in found["changes"]] == ["program"]


def test_a_backend_of_which_nothing_is_stored_has_an_empty_cache(capsys, stored):
    with vyre.driver.selection.registry.isolated():
        assert refused(capsys, "cache", "why", "saxpy.py", "-b", "cpu", code=1)
    found = stored.explain(compiling.cache_key(vyre.acquire("reference"), vyre.Program.empty()))
    assert str(found) == "empty_cache"


def test_what_was_thrown_out_is_told_from_what_never_was(capsys, stored):
    gone = document(capsys, cache.Removed, "cache", "prune", "--bytes", "0")
    assert gone["removed"] == 1
    found = document(capsys, cache.Why, "cache", "why", "saxpy.py", "-b", "cpu", code=1)
    assert (found["reason"], found["nearest"], found["changes"]) == ("evicted", None, [])
    assert "is below 0" in refused(capsys, "cache", "prune", "--bytes", "-1")


def test_a_damaged_entry_is_found_and_thrown_out(capsys, stored):
    with stored.database().writing() as connection:
        connection.execute("UPDATE entries SET payload=x'00'")
    found = document(capsys, cache.Verified, "cache", "verify", code=1)
    assert (found["entries"], found["damaged"]) == (0, ["saxpy"])
    assert inside("cache", "verify") == 0
    said = capsys.readouterr().out
    assert said.startswith("0 entries and ")
    assert "probes are sound, 0 were damaged" in said
    found = document(capsys, cache.Why, "cache", "why", "saxpy.py", "-b", "cpu", code=1)
    assert found["reason"] == "damaged"


def test_a_file_that_is_no_database_is_refused_and_cleared(capsys, stored, place):
    stored.database().close()
    (place / databases.FILE).write_bytes(b"no database" * 100)
    for name in ("-wal", "-shm"):
        (place / f"{databases.FILE}{name}").unlink(missing_ok=True)
    assert "is damaged" in refused(capsys, "cache", "stats", code=1)
    assert document(capsys, cache.Cleared, "cache", "clear")["removed"] == 0
    assert document(capsys, cache.Stats, "cache", "stats")["entries"] == 0


def test_what_was_learned_of_devices_is_shown_verified_and_cleared(capsys, place):
    remember_probe("npu", "k", Probe(None, (DeviceInfo(0, "board"),)))
    remember_probe("npu-devices", "k", Probe("unplugged"))
    remember_probe("soft", "k", Probe(None))
    assert document(capsys, cache.Stats, "cache", "stats")["probes"] == 3
    found = document(capsys, cache.Listing, "cache", "ls", "--backend", "npu")["probes"]
    assert [(row["name"], row["until"] is None) for row in found] == [("npu", True), ("npu-devices", False)]
    assert inside("cache", "ls") == 0
    assert "soft" in capsys.readouterr().out
    probes.put(place.parent, "npu", probes.rows(place.parent)["npu"], seal=b"another")
    found = document(capsys, cache.Verified, "cache", "verify", code=1)
    assert found == {"entries": 0, "probes": 2, "damaged": ["npu"]}
    assert document(capsys, cache.Stats, "cache", "stats")["counts"]["quarantined"] == 1
    assert document(capsys, cache.Cleared, "cache", "clear") == {"removed": 0, "bytes": 0, "probes": 2}
    assert probes.rows(place.parent) == {}
    assert recall_probe("soft", "k") is None


def test_a_plan_says_that_a_program_will_be_loaded(stored, tmp_path, place):
    words = ("explain", *RUN[1:], "--json")
    done = command(*words, cwd=tmp_path, VYRE_CACHE_DIR=str(place.parent), VYRE_CACHE="readonly")
    assert done.returncode == 0, done.stderr
    guard = vyre.acquire("cpu")
    from vyre.cli.inputs.programs import load

    program = load("saxpy.py").kernel.program
    inputs = [b"\0" * 4, bytes(40), bytes(40)]
    told = compiling.explain(program, inputs, backend=guard)
    assert (told.choice("code"), told.choice("cache")) == ("to be loaded", "disk")
    stored.clear()
    told = compiling.explain(program, inputs, backend=guard)
    assert (told.choice("code"), told.choice("cache")) == ("to be compiled", "miss")
    guard.shutdown()


# ---- elsewhere ------------------------------------------------------------------------------------------------------


@pytest.mark.check
def test_what_was_exported_is_used_where_it_is_imported(capsys, stored, tmp_path, monkeypatch):
    assert document(capsys, cache.Exported, "cache", "export", "x.zip") == {"file": "x.zip", "entries": 1}
    if os.name == "posix":
        assert os.stat("x.zip").st_mode & 0o077 == 0
    monkeypatch.setenv("VYRE_CACHE_DIR", str(tmp_path / "other"))
    found = document(capsys, cache.Imported, "cache", "import", "x.zip")
    assert (found["added"], found["known"], found["damaged"]) == (1, 0, 0)
    assert [(d["backend"], d["entries"], d["usable"], d["why"]) for d in found["devices"]] == [("cpu", 1, True, [])]
    assert document(capsys, cache.Why, "cache", "why", "saxpy.py", "-b", "cpu")["on_disk"]
    assert document(capsys, cache.Imported, "cache", "import", "x.zip")["known"] == 1
    done = command(*RUN, cwd=tmp_path, VYRE_CACHE_DIR=str(tmp_path / "other"), VYRE_CACHE="on")
    assert done.returncode == 0
    assert DiskPipelineCache(tmp_path / "other" / "pipelines", readonly=True).summary().counts["saved"] == 0


def test_code_for_another_processor_gives_no_hit_and_says_why(capsys, stored, tmp_path, monkeypatch):
    (entry,) = stored.entries()
    facts = {**entry.record.device, "extras.processor": '"neoverse-v2"', "extras.triple": '"aarch64-linux-gnu"'}
    foreign = keys.KeyRecord({**entry.record.fields, "device": "00" * 32}, facts, "saxpy")
    elsewhere = DiskPipelineCache(tmp_path / "arm" / "pipelines", readonly=False)
    elsewhere.add(foreign, b"code for another processor")
    write_archive(elsewhere, tmp_path / "arm.zip")
    stored.clear()
    found = document(capsys, cache.Imported, "cache", "import", "arm.zip", code=1)
    (row,) = found["devices"]
    assert (row["usable"], found["added"]) == (False, 1)
    assert {c["field"] for c in row["why"]} == {"device.extras.processor", "device.extras.triple"}
    assert inside("cache", "import", "arm.zip") == 1
    assert "which cannot be used here\nfield" in capsys.readouterr().out
    found = document(capsys, cache.Why, "cache", "why", "saxpy.py", "-b", "cpu", code=1)
    assert (found["on_disk"], found["reason"]) == (False, "device_or_runtime_changed")
    assert {c["field"] for c in found["changes"]} == {"device.extras.processor", "device.extras.triple"}


def test_entries_of_a_backend_that_is_not_here_are_kept(capsys, stored, tmp_path):
    (entry,) = stored.entries()
    foreign = keys.KeyRecord({**entry.record.fields, "backend_id": "npu"}, entry.record.device, "saxpy")
    stored.add(foreign, b"code")
    write_archive(stored, tmp_path / "npu.zip", "npu")
    stored.clear()
    (row,) = document(capsys, cache.Imported, "cache", "import", "npu.zip", code=1)["devices"]
    assert "'npu' is not linked" in row["problem"]
    assert inside("cache", "import", "npu.zip") == 1
    assert "is not linked" in capsys.readouterr().out
    assert len(stored.entries()) == 1


def test_a_damaged_entry_of_a_file_is_left_out(stored, tmp_path, capsys):
    write_archive(stored, tmp_path / "good.zip")
    with zipfile.ZipFile(tmp_path / "good.zip") as good, zipfile.ZipFile(tmp_path / "bad.zip", "w") as bad:
        for name in good.namelist():
            data = good.read(name)
            bad.writestr(name, data if name == archive.INDEX else data[:-1] + bytes([data[-1] ^ 1]))
    stored.clear()
    found = document(capsys, cache.Imported, "cache", "import", "bad.zip", code=1)
    assert (found["added"], found["damaged"], stored.entries()) == (0, 1, [])


@pytest.mark.parametrize(
    "content, text",
    [
        (b"", "is not an export of vyre"),
        (b"PK but no zip", "is not an export of vyre"),
        ({"format": 2, "entries": []}, "has format 2"),
        ({"entries": []}, "is not an export of vyre"),
        ({"format": 1, "entries": [{}]}, "is not an export of vyre"),
        (
            {"format": 1, "entries": [{"record": "[]", "device": {}, "name": "", "seal": ""}]},
            "is not an export of vyre",
        ),
        ([], "is not an export of vyre"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_export_is_refused(capsys, tmp_path, content, text):
    path = tmp_path / "x.zip"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(archive.INDEX, json.dumps(content))
    assert text in refused(capsys, "cache", "import", "x.zip")


def test_parts_that_are_too_long_are_not_read(stored, tmp_path, monkeypatch):
    write_archive(stored, tmp_path / "x.zip")
    monkeypatch.setattr(archive, "MAX_DISK_PIPELINE_BLOB_BYTES", 10)
    assert [entry.payload for entry in read_archive(tmp_path / "x.zip")] == [None]
    monkeypatch.setattr(archive, "MAX_INDEX_BYTES", 10)
    with pytest.raises(ArgumentValueError, match="is not an export of vyre"):
        list(read_archive(tmp_path / "x.zip"))


def test_code_with_another_definition_of_a_function_cannot_be_used_and_says_which(capsys, tmp_path, place, monkeypatch):
    (tmp_path / "waves.py").write_text(WAVES)
    assert inside("cache", "warm", "waves.py", "-b", "cpu") == 0
    capsys.readouterr()
    assert document(capsys, cache.Exported, "cache", "export", "x.zip")["entries"] == 2
    assert document(capsys, cache.Imported, "cache", "import", "x.zip")["devices"][0]["entries"] == 2
    before = toolchain.version_of
    monkeypatch.setattr(toolchain, "version_of", lambda name: "0" * 16 if name == "sin" else before(name))
    rows = document(capsys, cache.Imported, "cache", "import", "x.zip")["devices"]
    assert sorted((r["usable"], r["entries"], [c["field"] for c in r["why"]]) for r in rows) == [
        (False, 1, ["function.sin"]),
        (True, 1, []),
    ]


def test_a_file_that_cannot_be_written_is_refused(stored, tmp_path, capsys):
    said = refused(capsys, "cache", "export", "nowhere/x.zip")
    assert "cannot be written" in said
    assert list(tmp_path.glob("**/.x.zip*")) == []


def test_damaged_rows_are_not_exported(stored, tmp_path):
    with stored.database().writing() as connection:
        connection.execute("UPDATE entries SET payload=x'00'")
    assert write_archive(stored, tmp_path / "x.zip") == []


def test_the_key_of_a_call_is_that_of_its_compilation(place):
    guard = vyre.acquire("cpu")
    from vyre.cli.inputs.programs import load

    program = load("saxpy.py").kernel.program
    assert compiling.cache_key(guard, program) == compiling.compile(guard, program).key
    assert compiling.cache_key(guard, program, DEFAULT_CONFIG) == compiling.cache_key(guard, program)
    assert compiling.cache_key(vyre.acquire("cpu:0"), program) == compiling.cache_key(guard, program)
    guard.shutdown()
