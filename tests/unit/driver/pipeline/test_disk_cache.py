"""The disk tier: what one process compiled the next one finds, and what is wrong with the disk costs time alone."""

import json
import logging
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import vyre
from vyre.driver.contract.capability import BackendCapability
from vyre.driver.guard.compile import compile_with_telemetry
from vyre.driver.pipeline import database as databases
from vyre.driver.pipeline import lease as leases
from vyre.driver.pipeline import store as stores
from vyre.driver.pipeline.compiler import key_of
from vyre.driver.pipeline.key import (
    LoweringOptions,
    PipelineCacheKey,
    PipelineDeviceFingerprint,
    PipelineFeatureFlags,
)
from vyre.driver.pipeline.lease import Owner, this_thread
from vyre.driver.pipeline.store import DiskPipelineCache
from vyre.errors import KernelCompileFailed

from ....support import cached_kernels
from ....support.device_backends import registration_or_skip

SCRIPT = Path(cached_kernels.__file__)
BACKENDS = ("cpu", "opencl", "wgpu", "cuda")
POSIX = pytest.mark.skipif(os.name != "posix", reason="mode bits and owners say nothing here")
ROOT = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files to another user and mount"
)


@pytest.fixture(autouse=True)
def nothing_told():
    databases._told.clear()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache" / "pipelines"


@pytest.fixture
def store(folder):
    made = DiskPipelineCache(folder, readonly=False)
    yield made
    for database in made._databases.values():
        database.close()


@pytest.fixture
def on_disk(tmp_path, monkeypatch):
    """The cache of the settings, on, in a folder of its own."""
    monkeypatch.setenv("VYRE_CACHE", "on")
    monkeypatch.setenv("VYRE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pipelines"


def environ(folder, **more):
    return {**os.environ, "VYRE_CACHE": "on", "VYRE_CACHE_DIR": str(folder), "PYTHONWARNINGS": "error", **more}


def child(folder, backend, count=1, first=0, **options):
    """What a process of its own says of so many programs."""
    more, timeout = options.pop("more", {}), options.pop("timeout", 120)
    words = [sys.executable, str(SCRIPT), backend, str(count), str(first)]
    done = subprocess.run(
        words, env=environ(folder, **more), capture_output=True, text=True, timeout=timeout, **options
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) | {"said": done.stderr}


def key(**changes):
    """A key of no backend at all."""
    parts = {
        "version": 3,
        "numerics_version": 1,
        "backend_id": "none",
        "toolchain": "vyre 1; none 1",
        "device": PipelineDeviceFingerprint(1, 2, b"d" * 32, {"extras.driver": '"580"', "api": '""'}),
        "feature_flags": PipelineFeatureFlags.F16,
        "program": "ab" * 32,
        "specs": 0,
        "options": LoweringOptions(),
        "name": "curve",
    }
    return PipelineCacheKey(**(parts | changes))


def rows(folder, query, *values):
    with sqlite3.connect(folder / databases.FILE, isolation_level=None) as connection:
        found = connection.execute(query, values).fetchall()
    connection.close()
    return found


# ---- processes ------------------------------------------------------------------------------------------------------


@pytest.mark.row("A-DC-12")
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_second_process_compiles_nothing_and_gives_the_same_bytes(backend, tmp_path):
    registration_or_skip(backend)
    first, second = child(tmp_path, backend, 3), child(tmp_path, backend, 3)
    assert (first["tiers"], first["compiled"]) == (["compiled"] * 3, 3)
    assert (second["tiers"], second["compiled"]) == (["disk"] * 3, 0)
    assert second["results"] == first["results"]
    assert (first["disk"]["saved"], second["disk"]["hits"]) == (3, 3)


UNUSED = (
    "vyre.lower.from_program",
    "vyre.lower.passes.fold",
    "vyre.lower.canonical_float",
    "vyre.backends.cpu.emit",
)
LOADED = f"""
import sys
sys.path.insert(0, sys.argv[1])
import cached_kernels
out = cached_kernels.curve(cached_kernels.X)
print([name for name in {(*UNUSED, "importlib.metadata", "email", "wgpu", "pyopencl")} if name in sys.modules])
"""


def test_a_second_process_loads_no_part_of_the_compiler_and_no_parser_of_mails(tmp_path):
    words = [sys.executable, "-c", LOADED, str(SCRIPT.parent)]
    said = []
    for backend in ("cpu", "cpu"):
        env = environ(tmp_path, VYRE_BACKEND=backend)
        done = subprocess.run(words, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.strip())
    assert all(name in said[0] for name in UNUSED)
    assert said[1] == "[]"


def test_without_the_cache_the_second_process_compiles_and_nothing_is_kept(tmp_path):
    for _ in range(2):
        assert child(tmp_path / "cache", "cpu", more={"VYRE_CACHE": "off"})["tiers"] == ["compiled"]
    assert DiskPipelineCache(tmp_path / "cache" / "pipelines", readonly=False).summary().counts["misses"] == 0


def test_what_is_in_memory_is_not_looked_for_on_disk(on_disk, monkeypatch):
    guard = vyre.acquire("cpu")
    assert compile_with_telemetry(guard, cached_kernels.program(1)).tier == "compiled"
    guard.pipelines.store = None
    assert compile_with_telemetry(guard, cached_kernels.program(1)).tier == "memory"
    guard.pipelines.store = object()  # any use of which would raise
    assert compile_with_telemetry(guard, cached_kernels.program(1)).tier == "memory"
    guard.shutdown()


def test_processes_that_need_one_program_at_once_compile_it_once(tmp_path):
    go = tmp_path / "go"
    words = [sys.executable, str(SCRIPT), "cpu", "3"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(words, env=environ(tmp_path, VYRE_TEST_GO=str(go)), **pipes) for _ in range(4)]
    try:
        for process in running:
            assert process.stdout.readline() == "ready\n"
        go.touch()
        said = [process.communicate(timeout=120) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    found = [json.loads(out) for out, _ in said]
    assert sum(each["compiled"] for each in found) == 3
    assert len({each["results"] for each in found}) == 1
    assert rows(tmp_path / "pipelines", "SELECT count(*) FROM leases") == [(0,)]


@pytest.mark.row("A-DC-13")
def test_the_folder_is_that_of_the_setting_or_the_platforms(monkeypatch, tmp_path):
    monkeypatch.setenv("VYRE_CACHE_DIR", str(tmp_path))
    assert DiskPipelineCache().folder == tmp_path / "pipelines"
    monkeypatch.delenv("VYRE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    import platformdirs

    assert DiskPipelineCache().folder == Path(platformdirs.user_cache_dir("vyre", appauthor=False)) / "pipelines"
    monkeypatch.setenv("XDG_CACHE_HOME", " ")
    assert DiskPipelineCache().folder == Path(platformdirs.user_cache_dir("vyre", appauthor=False)) / "pipelines"


@POSIX
def test_a_user_without_a_home_has_a_folder_among_temporary_ones_and_none_in_the_current(monkeypatch, tmp_path):
    for name in ("VYRE_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def no_entry(uid):
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", no_entry)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert DiskPipelineCache().folder == tmp_path / f"vyre-{os.geteuid()}" / "pipelines"
    monkeypatch.setenv("XDG_CACHE_HOME", "here")  # that of the platform is nowhere in particular then
    assert DiskPipelineCache().folder == tmp_path / f"vyre-{os.geteuid()}" / "pipelines"


@pytest.mark.row("T7")
def test_a_setting_at_its_default_gives_the_key_of_an_unset_one(monkeypatch):
    def digest():
        guard = vyre.acquire("cpu")
        found = key_of(guard, cached_kernels.program(1), vyre.DispatchConfig()).digest()
        guard.shutdown()
        return found

    unset = digest()
    monkeypatch.setenv("VYRE_CPU_THREADS", str(vyre.acquire("cpu").inner.threads))
    monkeypatch.setenv("VYRE_CACHE_BYTES", str(512 << 20))
    assert digest() == unset


@pytest.mark.row("T4")
def test_a_key_is_the_same_in_every_process(tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import vyre, cached_kernels\n"
        "from vyre.driver.pipeline.compiler import key_of\n"
        "from vyre.driver.contract.values import DEFAULT_CONFIG\n"
        "print(key_of(vyre.acquire('cpu'), cached_kernels.program(1), DEFAULT_CONFIG).digest().hex())"
    )
    found = set()
    for seed in ("0", "1", "2", "31337"):
        words = [sys.executable, "-c", code, str(SCRIPT.parent)]
        done = subprocess.run(words, env=environ(tmp_path, PYTHONHASHSEED=seed), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1


# ---- rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.row("A-DC-1", "A-DC-2", "A-DC-3")
def test_a_key_gives_the_bytes_that_were_saved_for_it_and_no_other(store):
    assert store.load(key()) is None
    store.save(key(), b"code")
    store.save(key(specs=1), b"other code")
    assert (store.load(key()), store.load(key(specs=1)), store.load(key(specs=2))) == (b"code", b"other code", None)
    store.save(key(), b"newer")
    assert store.load(key()) == b"newer"
    (entry,) = [e for e in store.entries() if e.key == key().digest()]
    assert (entry.record, entry.name, entry.nbytes, entry.uses) == (key().record, "curve", 5, 1)
    assert entry.record.device == key().device.facts


def test_a_use_is_counted_once_in_an_hour(store, folder):
    store.save(key(), b"code")
    for ago, uses in ((0, 1), (3500, 1), (3700, 2), (0, 2), (-10, 3)):
        rows(folder, "UPDATE entries SET last_use=?", time.time() - ago)
        assert store.load(key()) == b"code"
        (entry,) = store.entries()
        assert entry.uses == uses
    assert abs(time.time() - entry.last_use_s) < 60
    assert store.counts["hits"] == 5


@pytest.mark.row("A-DC-5")
def test_code_that_is_too_large_is_not_kept(store, monkeypatch):
    monkeypatch.setattr(stores, "MAX_DISK_PIPELINE_BLOB_BYTES", 3)
    for payload in (b"abc", b"abcd"):
        store.save(key(), payload)
        assert store.load(key()) == b"abc"


def test_code_of_a_backend_that_names_no_version_is_not_kept(store):
    nameless = key(toolchain="vyre 1; mine unspecified")
    assert store.load(nameless) is None
    store.save(nameless, b"code")
    assert store.load(nameless) is None
    assert not store.folder.exists()


@pytest.mark.check
@pytest.mark.row("A-DC-10", "T6")
@pytest.mark.parametrize("column", ["record", "name", "seal", "payload"])
def test_an_entry_with_any_byte_changed_is_a_miss_and_thrown_out(store, folder, column):
    wanted, payload = key(), bytes(range(64))
    store.save(wanted, payload)
    ((good,),) = rows(folder, f"SELECT CAST({column} AS BLOB) FROM entries")
    kind = "BLOB" if column in ("seal", "payload") else "TEXT"
    for at in range(len(good)):
        damaged = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        rows(folder, f"UPDATE entries SET {column}=CAST(? AS {kind})", damaged)
        before = store.counts["quarantined"]
        assert store.load(wanted) is None, at
        assert store.counts["quarantined"] == before + 1
        assert rows(folder, "SELECT count(*) FROM entries") == [(0,)]
        assert rows(folder, "SELECT why FROM gone") == [("damaged",)]
        assert str(store.explain(wanted)) == "damaged"
        store.save(wanted, payload)
    assert store.load(wanted) == payload
    assert store.summary().counts["quarantined"] == len(good)


@pytest.mark.parametrize("nonsense", ["text", None, b"\xff", 1e400, -5])
def test_numbers_that_no_digest_covers_may_be_anything(folder, nonsense):
    store = DiskPipelineCache(folder, readonly=False, max_bytes=3000)
    store.save(key(), b"code")
    store.save(key(specs=1), bytes(1000))
    store.load(key(specs=2))
    for column in ("uses", "last_use", "created"):
        rows(folder, f"UPDATE entries SET {column}=?", nonsense)
    rows(folder, "UPDATE leases SET pid=?, thread=?, expires=?", nonsense, nonsense, nonsense)
    other = DiskPipelineCache(folder, readonly=False, max_bytes=3000)
    assert (other.load(key()), other.load(key(specs=2))) == (b"code", None)
    for k in range(3, 9):
        other.save(key(specs=k), bytes(1000))
    assert other.load(key(specs=8)) == bytes(1000)
    assert other.summary().nbytes <= 3000
    assert other.counts["errors"] == 0


@pytest.mark.row("T6")
def test_an_entry_that_was_cut_anywhere_is_a_miss(store, folder):
    payload = bytes(range(100))
    for length in (0, 1, 50, 99):
        store.save(key(), payload)
        rows(folder, "UPDATE entries SET payload=substr(payload, 1, ?)", length)
        assert store.load(key()) is None
    store.save(key(), payload)
    for nonsense in ("text", 7, None, 1.5):
        rows(folder, "UPDATE entries SET payload=?", nonsense)
        assert store.load(key()) is None
        store.save(key(), payload)


def test_a_file_with_bytes_changed_gives_the_code_or_none(folder):
    made = DiskPipelineCache(folder, readonly=False)
    payload = os.urandom(3000)
    for k in range(4):
        made.save(key(specs=k), payload + bytes([k]))
    with made.database().borrowed() as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    made.database().close()
    file = folder / databases.FILE
    whole = file.read_bytes()
    random = np.random.default_rng(5)
    for at in random.integers(0, len(whole), 150):
        for name in (f"{databases.FILE}-wal", f"{databases.FILE}-shm"):
            (folder / name).unlink(missing_ok=True)
        damaged = bytearray(whole)
        damaged[at] ^= random.integers(1, 256)
        file.write_bytes(damaged)
        file.chmod(0o600)
        store = DiskPipelineCache(folder, readonly=False)
        for k in range(4):
            assert store.load(key(specs=k)) in (payload + bytes([k]), None)
            store.give_up(key(specs=k))
        store.database().close()


def test_damaged_machine_code_is_compiled_again(on_disk):
    first = child(on_disk.parent, "cpu")
    rows(on_disk, "UPDATE entries SET payload=payload || x'00'")
    second = child(on_disk.parent, "cpu")
    assert (second["tiers"], second["results"]) == (["compiled"], first["results"])
    assert second["disk"]["quarantined"] == 1
    assert child(on_disk.parent, "cpu")["tiers"] == ["disk"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_code_that_the_backend_refuses_is_thrown_out_and_compiled_again(backend, on_disk, tmp_path):
    """It is what was saved, and the driver does not take it."""
    registration_or_skip(backend)
    first = child(tmp_path / "cache", backend)
    guard = vyre.acquire(backend)
    wanted = key_of(guard, cached_kernels.program(0), vyre.DispatchConfig())
    guard.shutdown()
    with_nonsense = DiskPipelineCache(on_disk, readonly=False)
    assert with_nonsense.load(wanted) is not None, (with_nonsense.explain(wanted), first)
    with_nonsense.save(wanted, b"vcpu but not really")
    second = child(tmp_path / "cache", backend)
    assert (second["tiers"], second["results"]) == (["compiled"], first["results"])
    assert second["disk"]["quarantined"] == 1
    assert child(tmp_path / "cache", backend)["tiers"] == ["disk"]


# ---- leases ---------------------------------------------------------------------------------------------------------


def leased(folder, owner, seconds, wanted=None):
    values = ((wanted or key()).digest(), *owner, time.time() + seconds)
    rows(folder, "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?)", *values)


def test_a_program_that_cannot_be_compiled_leaves_no_lease(on_disk, monkeypatch):
    guard = vyre.acquire("cpu")

    def fail(program, config):
        assert rows(on_disk, "SELECT count(*) FROM leases") == [(1,)]
        raise KernelCompileFailed("no", fix="do")

    monkeypatch.setattr(guard.inner, "compile_native", fail)
    with pytest.raises(KernelCompileFailed):
        vyre.compile(cached_kernels.program(7), backend=guard)
    assert rows(on_disk, "SELECT count(*) FROM leases") == [(0,)]
    guard.shutdown()


def test_the_lease_of_a_process_that_ended_is_taken_over_at_once(store, folder):
    store.save(key(specs=9), b"")  # makes the file
    ended = subprocess.Popen([sys.executable, "-c", ""])
    owner = this_thread()._replace(pid=ended.pid, started=leases._started(ended.pid) or "1")
    ended.wait()
    leased(folder, owner, leases.LEASE_S)
    assert store.load(key()) is None
    assert (store.counts["takeovers"], store.counts["waits"]) == (1, 0)
    assert rows(folder, "SELECT pid FROM leases") == [(os.getpid(),)]


def test_a_process_that_was_killed_and_not_waited_for_has_ended():
    process = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"], stdout=-1)
    process.stdout.readline()
    owner = this_thread()._replace(pid=process.pid, started=leases._started(process.pid))
    assert not owner.has_ended
    process.kill()
    until = time.monotonic() + 60
    while not owner.has_ended and time.monotonic() < until:
        time.sleep(0.001)
    assert owner.has_ended
    process.communicate()


@pytest.mark.parametrize(
    "owner",
    [Owner("another machine", 1, "1", 1), lambda: this_thread()._replace(thread=1)],
    ids=["on another machine", "a thread of this process"],
)
def test_a_lease_of_one_that_may_be_at_work_is_waited_for_until_it_runs_out(store, folder, owner):
    store.save(key(specs=9), b"")
    leased(folder, owner() if callable(owner) else owner, 0.3)
    assert store.load(key()) is None
    assert (store.counts["takeovers"], store.counts["waits"]) == (1, 1)


def test_one_who_waits_gets_what_was_saved(store, folder):
    store.save(key(specs=9), b"")
    leased(folder, this_thread()._replace(thread=1), leases.LEASE_S)
    other, started = DiskPipelineCache(folder, readonly=False), threading.Event()
    found = []

    def wait():
        started.set()
        found.append(other.load(key()))

    thread = threading.Thread(target=wait)
    thread.start()
    started.wait()
    while not other.counts["waits"]:
        time.sleep(0.001)
    store.save(key(), b"code")
    thread.join()
    assert (found, other.counts["hits"]) == ([b"code"], 1)
    other.database().close()


def test_a_thread_does_not_wait_for_itself(store):
    assert store.load(key()) is None
    assert store.load(key()) is None
    assert store.counts["waits"] == 0


def test_a_lease_from_the_future_counts_for_nothing(store, folder):
    """A clock was set back."""
    store.save(key(specs=9), b"")
    leased(folder, Owner("another machine", 1, "1", 1), 10_000)
    assert store.load(key()) is None
    assert store.counts["waits"] == 0


# ---- what may be trusted --------------------------------------------------------------------------------------------


def refused(store, caplog, text):
    """Nothing is loaded or saved, it is said once, and with a Fix."""
    with caplog.at_level(logging.WARNING, "vyre.cache"):
        assert store.load(key()) is None
        store.save(key(), b"code")
        assert store.load(key()) is None
        assert store.explain(key()) is None
    (said,) = caplog.messages
    assert text in said
    assert "Fix: " in said
    caplog.clear()
    assert store.counts["errors"] == 1
    return said


@POSIX
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
@pytest.mark.parametrize("place", ["folder", "its parent"])
def test_a_folder_that_others_can_write_to_is_refused(store, folder, caplog, mode, place):
    store.save(key(), b"code")
    place = folder if place == "folder" else folder.parent
    place.chmod(mode)
    refused(DiskPipelineCache(folder, readonly=False), caplog, f"{place} can be written by others, so no code is")
    place.chmod(0o700)
    assert DiskPipelineCache(folder, readonly=False).load(key()) == b"code"


@POSIX
def test_the_folder_and_the_file_are_for_this_user_alone(store, folder):
    store.save(key(), b"code")
    assert {stat.S_IMODE(place.stat().st_mode) for place in (folder, folder.parent)} == {0o700}
    for file in folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) & 0o022 == 0


@POSIX
def test_a_folder_that_others_can_replace_is_refused(tmp_path, caplog):
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    folder = open_to_all / "cache" / "pipelines"
    store = DiskPipelineCache(folder, readonly=False)
    store.save(key(), b"code")
    open_to_all.chmod(0o777)
    refused(DiskPipelineCache(folder, readonly=False), caplog, f"as {open_to_all} can be written by all")
    open_to_all.chmod(0o1777)  # as /tmp is
    assert DiskPipelineCache(folder, readonly=False).load(key()) == b"code"


@POSIX
@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_link_in_place_of_the_folder_or_the_file_is_refused(store, folder, tmp_path, caplog, what):
    store.save(key(), b"code")
    store.database().close()
    place = folder if what == "folder" else folder / databases.FILE
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    refused(DiskPipelineCache(folder, readonly=False), caplog, f"{place} is a link")


@POSIX
def test_a_file_that_others_can_write_to_is_refused(store, folder, caplog):
    store.save(key(), b"code")
    store.database().close()
    (folder / databases.FILE).chmod(0o666)
    refused(DiskPipelineCache(folder, readonly=False), caplog, f"{databases.FILE} can be written by others")


@ROOT
@pytest.mark.parametrize("what", ["folder", "file", "parent"])
def test_what_belongs_to_another_user_is_refused(store, folder, caplog, what):
    store.save(key(), b"code")
    store.database().close()
    place = {"folder": folder, "file": folder / databases.FILE, "parent": folder.parent}[what]
    os.chown(place, 65534, 65534)
    refused(DiskPipelineCache(folder, readonly=False), caplog, f"{place} belongs to another user, so no code is")


def as_another_user(child):
    """What a process of another user gives."""

    def change():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        return child()

    return forked(change)


@pytest.fixture
def open_way(tmp_path):
    """Others may go to the folder of a test."""
    for place in (tmp_path, *tmp_path.parents):
        if place.owner() == "root" and place.name.startswith(("pytest-", "popen-", "test_")):
            place.chmod(0o755)


@ROOT
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_two_users_do_not_share_code(store, folder, open_way):
    store.save(key(), b"code")
    for place in (folder, folder.parent):
        place.chmod(0o755)

    def other():
        mine = DiskPipelineCache(folder, readonly=False)
        return mine.load(key()), mine.save(key(specs=1), b"theirs"), mine.counts["errors"]

    assert as_another_user(other) == "(None, None, 1)"
    assert (store.load(key()), store.load(key(specs=1))) == (b"code", None)


@ROOT
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_folder_that_cannot_be_written_to_is_read(folder, open_way):
    def fill():
        mine = DiskPipelineCache(folder, readonly=False)
        mine.save(key(), b"code")
        mine.database().close()

    def use():
        said = []
        logging.getLogger("vyre.cache").addHandler(handler := logging.Handler())
        handler.emit = lambda record: said.append(record.getMessage())
        mine = DiskPipelineCache(folder, readonly=False)
        mine.save(key(specs=1), b"more")
        found = [mine.load(key()), mine.load(key()), mine.load(key(specs=1))]
        return found, len(said), "cannot be written to, so nothing is kept there" in said[0]

    folder.parent.mkdir(mode=0o700)
    os.chown(folder.parent, 65534, 65534)
    as_another_user(fill)
    folder.chmod(0o500)
    assert as_another_user(use) == "([b'code', b'code', None], 1, True)"


# ---- disks ----------------------------------------------------------------------------------------------------------


def test_a_cache_that_is_only_read_is_left_as_it_is(store, folder):
    store.save(key(), b"code")
    before = store.entries()
    reader = DiskPipelineCache(folder, readonly=True)
    assert (reader.load(key()), reader.load(key(specs=1))) == (b"code", None)
    reader.save(key(specs=1), b"more")
    reader.give_up(key(specs=1))
    assert store.entries() == before
    assert rows(folder, "SELECT count(*) FROM leases") == [(0,)]
    reader.database().close()


def test_reading_where_there_is_nothing_makes_nothing(tmp_path, caplog):
    reader = DiskPipelineCache(tmp_path / "cache" / "pipelines", readonly=True)
    with caplog.at_level(logging.WARNING, "vyre.cache"):
        assert reader.load(key()) is None
        assert reader.load(key()) is None
    assert len(caplog.messages) == 1
    assert "Fix: let one process run with VYRE_CACHE=on" in caplog.text
    assert list(tmp_path.iterdir()) == []


@ROOT
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    "owner, why", [(65534, "cannot be written to, so nothing is kept there"), (0, "belongs to another user")]
)
def test_a_folder_of_which_nothing_can_be_used_is_told_in_one_way(folder, open_way, owner, why):
    def use():
        said = []
        logging.getLogger("vyre.cache").addHandler(handler := logging.Handler())
        handler.emit = lambda record: said.append(record.getMessage())
        mine = DiskPipelineCache(folder, readonly=False)
        mine.save(key(), b"code")
        return mine.load(key()), len(said), why in said[0]

    folder.mkdir(parents=True)
    for place in (folder.parent, folder):
        os.chown(place, owner, owner)
        place.chmod(0o555)
    assert as_another_user(use) == "(None, 1, True)"


@ROOT
def test_a_full_disk_costs_time_and_no_answer(tmp_path, caplog):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        store = DiskPipelineCache(disk / "pipelines", readonly=False)
        store.save(key(), b"code")
        with caplog.at_level(logging.WARNING, "vyre.cache"):
            for k in range(1, 4):
                store.save(key(specs=k), os.urandom(1 << 19))
        (said,) = caplog.messages
        assert "there is no space left in" in said
        assert "Fix: free some space" in said
        assert store.load(key()) == b"code"
        assert store.load(key(specs=1)) is None
        assert child(disk, "cpu", 1)["tiers"] == ["compiled"]
        store.database().close()
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def a_file_in_its_place(cache):
    cache.write_text("")
    return cache / "below", "cannot be made: Not a directory"


def no_database(cache):
    place = cache / "pipelines"
    place.mkdir(parents=True, mode=0o700)
    cache.chmod(0o700)
    (place / databases.FILE).write_bytes(b"no database" * 1000)
    (place / databases.FILE).chmod(0o600)
    return cache, "is damaged"


def later_schema(cache):
    made = DiskPipelineCache(cache / "pipelines", readonly=False)
    made.save(key(), b"code")
    made.database().close()
    rows(cache / "pipelines", f"PRAGMA user_version={databases.SCHEMA + 1}")
    return cache, "was made by a later version of vyre"


def open_to_all(cache):
    cache.mkdir()
    cache.chmod(0o777)
    return cache, "can be written by others"


def a_link_to_itself(cache):
    cache.symlink_to(cache.name)
    return cache, "cannot be made"


@POSIX
@pytest.mark.check
@pytest.mark.parametrize("make", [a_file_in_its_place, no_database, later_schema, open_to_all, a_link_to_itself])
def test_a_process_that_cannot_use_the_cache_works_and_says_so_once(tmp_path, make):
    """Also though its probes are asked for first, and its programs afterwards."""
    place, why = make(tmp_path / "cache")
    found = child(place, "cpu", 2, more={"PYTHONWARNINGS": "default"})
    assert (found["tiers"], found["compiled"]) == (["compiled"] * 2, 2)
    (said,) = found["said"].splitlines()
    assert said.startswith("nothing is kept on disk: ")
    assert why in said
    assert "Fix: " in said
    assert child(place, "cpu", 1, more={"VYRE_CACHE": "off"})["said"] == ""


@ROOT
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_home_that_cannot_be_written_to_is_said_once(tmp_path, open_way):
    (tmp_path / "home").mkdir(mode=0o755)

    def use():
        said = []
        logging.getLogger("vyre.cache").addHandler(handler := logging.Handler())
        handler.emit = lambda record: said.append(record.getMessage())
        mine = DiskPipelineCache(tmp_path / "home" / ".cache" / "vyre" / "pipelines", readonly=False)
        mine.save(key(), b"code")
        return mine.load(key()), len(said), "cannot be made: Permission denied. Fix: set VYRE_CACHE_DIR" in said[0]

    assert as_another_user(use) == "(None, 1, True)"
    assert list((tmp_path / "home").iterdir()) == []


@pytest.mark.parametrize("content", [b"this is no database " * 300, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_that_is_no_database_is_left_alone(folder, caplog, content):
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o700)
    (folder / databases.FILE).write_bytes(content)
    (folder / databases.FILE).chmod(0o600)
    store = DiskPipelineCache(folder, readonly=False)
    said = refused(store, caplog, "is damaged")
    assert "Fix: run `vyre cache clear`" in said
    assert (folder / databases.FILE).read_bytes() == content
    assert store.clear() == 0
    store.save(key(), b"code")
    assert store.load(key()) == b"code"


def test_a_database_of_a_later_version_is_left_alone(store, folder, caplog):
    store.save(key(), b"code")
    rows(folder, f"PRAGMA user_version={databases.SCHEMA + 1}")
    store.database().close()
    said = refused(DiskPipelineCache(folder, readonly=False), caplog, "was made by a later version of vyre")
    assert "Fix: upgrade vyre, or set VYRE_CACHE_DIR" in said
    assert rows(folder, "SELECT payload FROM entries") == [(b"code",)]


def test_a_database_of_an_earlier_version_is_begun_anew(store, folder):
    store.save(key(), b"code")
    rows(folder, "PRAGMA user_version=0")
    rows(folder, "ALTER TABLE entries DROP COLUMN seal")
    store.database().close()
    again = DiskPipelineCache(folder, readonly=False)
    assert again.load(key()) is None
    again.save(key(), b"new")
    assert again.load(key()) == b"new"


@pytest.mark.parametrize("schema", [0, databases.SCHEMA - 1])
def test_a_database_of_an_earlier_version_is_not_read_nor_called_damaged(folder, caplog, schema):
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o700)
    rows(folder, f"PRAGMA user_version={schema}")
    (folder / databases.FILE).chmod(0o600)
    said = refused(DiskPipelineCache(folder, readonly=True), caplog, "holds nothing for this version of vyre to read")
    assert "Fix: let one process run with VYRE_CACHE=on" in said


def test_a_network_file_system_is_not_used(folder, caplog, monkeypatch):
    folder.mkdir(parents=True, mode=0o700)
    kind = databases.file_system(folder)
    if kind is None:
        pytest.skip("this system does not tell which file system it is")
    monkeypatch.setattr(databases, "NETWORK", {kind})
    said = refused(DiskPipelineCache(folder, readonly=False), caplog, f"lies on a network file system ({kind})")
    assert "Fix: set VYRE_CACHE_DIR to a folder of yours on a local disk" in said


def test_the_file_system_of_a_folder_is_that_of_the_nearest_mount(tmp_path):
    mounts = tmp_path / "mounts"
    place = tmp_path / "a b"
    (place / "deep").mkdir(parents=True)
    point = str(place).replace(" ", "\\040")
    mounts.write_text(
        "1 0 0:1 / / rw shared:1 - ext4 /dev/root rw\n"
        f"2 1 0:2 / {point} rw - nfs4 server:/home rw\n"
        f"3 1 0:2 / {point}x rw - tmpfs tmpfs rw\nshort\n"
    )
    assert databases.file_system(place / "deep", str(mounts)) == "nfs4"
    assert databases.file_system(tmp_path, str(mounts)) == "ext4"
    assert databases.file_system(tmp_path, str(tmp_path / "nowhere")) is None


@pytest.mark.row("T5")
@pytest.mark.parametrize("name", ["-wal", "-shm", ""])
def test_a_file_that_was_removed_stops_nothing(store, folder, name):
    store.save(key(), b"code")
    store.database().close()
    (folder / f"{databases.FILE}{name}").unlink(missing_ok=True)
    again = DiskPipelineCache(folder, readonly=False)
    again.save(key(specs=1), b"more")
    assert again.load(key(specs=1)) == b"more"


def test_where_there_is_no_write_ahead_log_another_journal_does(store, folder):
    store.save(key(), b"code")
    store.database().close()
    rows(folder, "PRAGMA journal_mode=DELETE")
    again = DiskPipelineCache(folder, readonly=False)
    blocker = sqlite3.connect(folder / databases.FILE)
    blocker.execute("BEGIN").execute("SELECT * FROM entries").fetchall()  # with which nobody can change the journal
    assert again.load(key()) == b"code"
    blocker.close()


def test_a_file_that_cannot_be_locked_is_not_waited_for_long(store, folder, monkeypatch, caplog):
    store.save(key(), b"code")
    monkeypatch.setattr(databases, "BUSY_S", 0.05)
    monkeypatch.setattr(databases.Database.writing.__wrapped__, "__defaults__", (0.05,))
    blocker = sqlite3.connect(folder / databases.FILE, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with caplog.at_level(logging.WARNING, "vyre.cache"):
        assert store.load(key()) == b"code"  # though the use cannot be counted
        assert store.load(key(specs=1)) is None
        store.save(key(specs=1), b"more")
    (said,) = caplog.messages
    assert re.search("another process keeps .* locked.* Fix: ", said)
    blocker.execute("ROLLBACK")
    store.save(key(specs=1), b"more")
    assert store.load(key(specs=1)) == b"more"
    blocker.close()


# ---- forks ----------------------------------------------------------------------------------------------------------

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def forked(child):
    """What a forked process gives, as text."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, str(child()).encode())
        except BaseException as e:
            os.write(write, repr(e).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        said = file.read()
    os.waitpid(pid, 0)
    return said


def open_files(folder):
    return [n for n in os.listdir("/proc/self/fd") if str(folder) in _link(f"/proc/self/fd/{n}")]


def _link(path):
    try:
        return os.readlink(path)
    except OSError:
        return ""


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_has_connections_of_its_own(store, folder):
    store.save(key(), b"code")
    if os.path.isdir("/proc/self/fd"):
        assert open_files(folder)
        assert forked(lambda: open_files(folder)) == "[]"
    assert forked(lambda: (store.load(key()), store.save(key(specs=1), b"child"))) == "(b'code', None)"
    assert (store.load(key()), store.load(key(specs=1))) == (b"code", b"child")
    assert rows(folder, "PRAGMA integrity_check") == [("ok",)]


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_process_forked_while_the_cache_was_in_use_does_without_it(store, monkeypatch):
    monkeypatch.setattr(databases, "FORK_WAIT_S", 0.05)
    store.save(key(), b"code")
    with store.database().borrowed() as connection:
        assert forked(lambda: (store.load(key()), store.counts["errors"])) == "(None, 1)"
        assert connection.execute("SELECT count(*) FROM entries").fetchone() == (1,)
    assert store.load(key()) == b"code"


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_process_forked_while_the_pool_was_locked_touches_nothing_of_it(store, folder, monkeypatch):
    monkeypatch.setattr(databases, "FORK_WAIT_S", 0.05)
    store.save(key(), b"code")
    with store.database()._lock:
        assert forked(lambda: (store.load(key()), store.counts["errors"])) == "(None, 1)"
        assert len(store.database()._idle) == 1  # whose it was
    assert store.load(key()) == b"code"


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_comes_before_whoever_asks_later(store, monkeypatch):
    monkeypatch.setattr(databases, "FORK_WAIT_S", 60)
    store.save(key(), b"code")
    database, order = store.database(), []
    after = database.after_fork
    monkeypatch.setattr(database, "after_fork", lambda child: (order.append("forked"), after(child=child)))

    def fork():
        order.append(forked(lambda: store.load(key())))

    def ask():
        with database.borrowed():
            order.append("asked")

    threads = [threading.Thread(target=work) for work in (fork, ask)]
    with database.borrowed():
        for thread, begun in zip(threads, (lambda: database._held, lambda: database._lock._waiters), strict=True):
            thread.start()
            while not begun():
                time.sleep(0.001)
        while len(database._lock._waiters) < 2:  # both wait, for the end of this use
            time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert order[0] == "forked"
    assert sorted(order[1:]) == ["asked", "b'code'"]


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_program_is_loaded_by_a_forked_process_that_opens_its_own_backend(on_disk):
    first = vyre.acquire("cpu")
    assert compile_with_telemetry(first, cached_kernels.program(5)).tier == "compiled"
    assert forked(lambda: compile_with_telemetry(vyre.acquire("cpu"), cached_kernels.program(5)).tier) == "disk"
    first.shutdown()


def test_threads_use_it_at_once(store):
    failed, start = [], threading.Barrier(8)

    def work(n):
        start.wait()
        for k in range(20):
            wanted = key(specs=k % 5)
            found = store.load(wanted)
            if found is None:
                store.save(wanted, b"%d" % (k % 5))
            elif found != b"%d" % (k % 5):
                failed.append((n, k, found))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(store.entries()) == 5
    assert len(store.database()._idle) <= databases.MOST_IDLE


# ---- misses ---------------------------------------------------------------------------------------------------------

CHANGES = {
    "version": 2,
    "numerics_version": 7,
    "toolchain": "vyre 1; none 2",
    "feature_flags": PipelineFeatureFlags.BF16,
    "program": "cd" * 32,
    "specs": 5,
    "ulp_budget": LoweringOptions(vyre.DispatchConfig(ulp_budget=4)),
    "deadline": LoweringOptions(vyre.DispatchConfig(timeout=float("inf"))),
    "workgroup_override": LoweringOptions(vyre.DispatchConfig(workgroup_override=(8, 1, 1))),
    "cooperative": LoweringOptions(vyre.DispatchConfig(cooperative=True)),
}


@pytest.mark.row("T2", "T3", "A-DC-9")
@pytest.mark.parametrize("field", CHANGES)
def test_another_process_is_told_in_which_field_its_key_differs(store, folder, field):
    place = "options" if isinstance(CHANGES[field], LoweringOptions) else field
    store.save(key(), b"code")
    other = DiskPipelineCache(folder, readonly=False)
    wanted = key(**{place: CHANGES[field]})
    assert other.load(wanted) is None
    told = other.explain(wanted)
    assert told.differing == (field,)
    assert told.nearest == key().record
    assert str(told).endswith(f"; the nearest earlier key differs in {field}")
    other.database().close()


@pytest.mark.row("T2")
def test_a_copied_cache_gives_no_hit_on_another_device_and_names_the_fact(store, folder, tmp_path):
    store.save(key(), b"code")
    store.database().close()
    shutil.copytree(folder, tmp_path / "copied")
    for file in (tmp_path / "copied").iterdir():
        file.chmod(0o600)
    tmp_path.chmod(0o700)
    device = replace(key().device, driver_digest=b"e" * 32, facts={"extras.driver": '"581"', "api": '""'})
    copied = DiskPipelineCache(tmp_path / "copied", readonly=False)
    assert copied.load(key(device=device)) is None
    told = copied.explain(key(device=device))
    assert [str(change) for change in told.changes] == ['device.extras.driver: "580" -> "581"']
    assert told.reason == "device_or_runtime_changed"


def test_the_nearest_key_is_that_of_the_same_kernel(store):
    store.save(key(program="11" * 32), b"1")
    store.save(key(program="22" * 32, name="other"), b"2")
    assert store.explain(key(program="33" * 32)).nearest.name == "curve"
    assert store.explain(key(backend_id="elsewhere", program="44" * 32)).nearest is None


def test_a_miss_of_the_first_compilation_is_explained_by_what_other_processes_compiled(on_disk):
    child(on_disk.parent, "cpu")
    guard = vyre.acquire("cpu")
    build = compile_with_telemetry(guard, cached_kernels.program(0), vyre.DispatchConfig(timeout=60.0))
    assert (build.tier, build.evidence.reason, build.evidence.differing) == (
        "compiled",
        "dispatch_policy_changed",
        ("deadline",),
    )
    assert guard.pipelines.metrics()["vyre_pipeline_cache_miss_dispatch_policy_changed_total"] == 1
    guard.shutdown()


@pytest.mark.row("A-DC-9")
def test_a_driver_a_processor_and_a_compiler_are_part_of_the_key():
    def device(**extras):
        class Backend:
            id, device, version = "mine", "board", "1"
            capability = BackendCapability(exactness={"f32": "canonical", "mode": "soft"}, extras=extras)

            def device_profile(self):
                from vyre.driver.contract.profile import DeviceProfile

                return DeviceProfile(backend="mine", device="board")

        return PipelineDeviceFingerprint.of(Backend())

    one = device(driver="580", features="avx2")
    assert one.digest() == device(driver="580", features="avx2").digest()
    for other in (device(driver="581", features="avx2"), device(driver="580", features="avx512f"), device()):
        assert one.digest() != other.digest()
    assert one.facts["extras.driver"] == '"580"'
    assert one.facts["exactness.mode"] == '"soft"'


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_made_the_code_is_part_of_the_fingerprint(backend):
    registration_or_skip(backend)
    guard = vyre.acquire(backend)
    key = key_of(guard, cached_kernels.program(0), vyre.DispatchConfig())
    facts = key.device.facts
    wanted = {
        "cpu": ("extras.processor", "extras.features", "extras.triple", "exactness.flushed_by"),
        "opencl": ("extras.platform", "extras.driver", "exactness.mode"),
        "wgpu": ("extras.driver", "extras.wgpu", "extras.immediate_bytes", "exactness.soft_flush", "exactness.fences"),
        "cuda": ("extras.arch", "extras.driver", "exactness.mode"),
    }[backend]
    assert [name for name in wanted if name not in facts] == []
    compiler = guard.capability.extras.get("compiler")
    assert (compiler is None) == (backend == "wgpu")  # whose compiler comes with the driver
    assert key.toolchain == (f"{compiler}; {backend}" if compiler else backend)
    if backend == "cpu":
        from importlib.metadata import version

        assert version("llvmlite") in key.toolchain
    guard.shutdown()


# ---- room -----------------------------------------------------------------------------------------------------------


def test_beyond_the_budget_the_coldest_goes_and_the_newest_stays(folder, monkeypatch):
    monkeypatch.setattr(stores, "USE_EVERY_S", 0.0)
    store = DiskPipelineCache(folder, readonly=False, max_bytes=4000)
    for k in range(4):
        store.save(key(specs=k), bytes(1000))
    for _ in range(5):
        store.load(key(specs=1))
    store.save(key(specs=4), bytes(1000))
    kept = {entry.record.fields["specs"] for entry in store.entries()}
    assert {1, 4} <= kept
    assert store.summary().nbytes <= 4000
    assert store.counts["evicted"] == 5 - len(kept) > 0
    gone = next(k for k in range(5) if k not in kept)
    assert str(store.explain(key(specs=gone))) == "evicted"
    assert store.entries()[0].record.fields["specs"] == 1  # the hottest


def test_code_that_is_larger_than_the_budget_is_not_kept(folder):
    store = DiskPipelineCache(folder, readonly=False, max_bytes=1000)
    store.save(key(), bytes(900))
    store.save(key(specs=1), bytes(1001))
    assert (store.load(key()), store.load(key(specs=1))) == (bytes(900), None)


def test_the_budget_is_the_setting(on_disk, monkeypatch):
    monkeypatch.setenv("VYRE_CACHE_BYTES", "2500")
    store = DiskPipelineCache()
    for k in range(5):
        store.save(key(specs=k), bytes(1000))
    assert store.summary().nbytes <= 2500


def test_space_is_given_back(store, folder):
    for k in range(20):
        store.save(key(specs=k), os.urandom(50_000))
    assert (folder / databases.FILE).stat().st_size + (folder / f"{databases.FILE}-wal").stat().st_size > 1_000_000
    gone = store.prune(100_000)
    assert len(gone) == 18
    assert store.summary().entries == 2
    assert (folder / databases.FILE).stat().st_size < 300_000
    assert store.clear() == 2
    assert store.entries() == []


def test_every_row_is_looked_at_by_verify(store, folder):
    for k in range(5):
        store.save(key(specs=k), b"code")
    assert store.verify() == []
    rows(folder, "UPDATE entries SET payload=x'00' WHERE key=?", key(specs=2).digest())
    rows(folder, "UPDATE entries SET key=x'0011' WHERE key=?", key(specs=3).digest())
    assert {record.fields["specs"] for record in store.verify()} == {2, 3}
    assert store.verify() == []
    assert len(store.entries()) == 3
