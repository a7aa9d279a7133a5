"""What was learned is kept for one key, in a private place, and never in the way; that a backend refused, for a day."""

import json
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from vyre.driver.contract import DeviceInfo
from vyre.driver.pipeline import store
from vyre.driver.pipeline.database import FILE
from vyre.driver.pipeline.store import DiskPipelineCache
from vyre.driver.selection import probe, remembered
from vyre.driver.selection.probe import Probe, recall_probe, remember_probe
from vyre.driver.settings.folders import cache_dir

from ....support import probes
from ....support.damage import damaged

SOFT = (DeviceInfo(0, "soft raster", emulated=True),)


@pytest.fixture(autouse=True)
def own_place(monkeypatch, tmp_path):
    monkeypatch.setenv("VYRE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def cache(tmp_path):
    """A folder in which one probe is remembered."""
    remember_probe("soft", "k", Probe(None, SOFT))
    assert recall_probe("soft", "k") == Probe(None, SOFT)
    return tmp_path / "cache"


def changed(**fields):
    return lambda entry: entry | fields


def probed(**fields):
    return lambda entry: entry | {"record": entry["record"] | fields}


def quarantined():
    return DiskPipelineCache.shared().summary().counts["quarantined"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda e: "",
        lambda e: "not json",
        lambda e: "[]",
        lambda e: "null",
        lambda e: "[" * 30_000,
        lambda e: json.dumps(e) + " " * remembered.MAX_BYTES,
        lambda e: b"\xff\xfe\x00",
        lambda e: {},
        changed(key="other"),
        changed(key=1),
        changed(record=None),
        changed(record={}),
        probed(unavailable=3),
        probed(more=1),
        probed(devices=None),
        probed(devices=[{"index": 0}]),
        probed(devices=[{"index": "0", "name": "x", "emulated": False}]),
        probed(devices=[{"index": 0, "name": "x", "emulated": False, "more": 1}]),
        changed(written=0.0, for_s=60.0),
        changed(for_s="long"),
        changed(written="yesterday"),
        changed(written=time.time() + 3600),
        changed(written=10**400),
        changed(written=math.nan),
    ],
)
def test_a_damaged_old_or_foreign_record_is_as_good_as_none(cache, damage):
    probes.put(cache, "soft", damage(probes.rows(cache)["soft"]))
    assert recall_probe("soft", "k") is None
    remember_probe("soft", "k", Probe("because"))
    assert recall_probe("soft", "k") == Probe("because")


@pytest.mark.parametrize("seal", [b"", b"\0" * 32, "text", 7])
def test_a_record_whose_digest_does_not_fit_is_thrown_out_and_counted(cache, seal):
    before = quarantined()
    probes.put(cache, "soft", probes.rows(cache)["soft"], seal=seal)
    assert recall_probe("soft", "k") is None
    assert probes.rows(cache) == {}
    assert quarantined() == before + 1


def test_a_record_under_the_name_of_another_is_thrown_out(cache):
    remember_probe("hard", "k", Probe("because"))
    probes.put(cache, "soft", probes.rows(cache)["hard"], seal=remembered.seal_of("hard", "any"))
    assert recall_probe("soft", "k") is None
    assert list(probes.rows(cache)) == ["hard"]


def test_any_other_byte_anywhere_makes_a_record_as_good_as_none(cache):
    entry = probes.rows(cache)["soft"]
    text = json.dumps(entry)
    seal = remembered.seal_of("soft", text)
    for at in range(len(text)):
        for wrong in (text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :], text[:at], text + text[at:]):
            probes.put(cache, "soft", wrong, seal)
            assert recall_probe("soft", "k") is None, (at, wrong)
    for at in range(len(seal)):
        probes.put(cache, "soft", text, seal[:at] + bytes([seal[at] ^ 1]) + seal[at + 1 :])
        assert recall_probe("soft", "k") is None, at
    probes.put(cache, "soft", text, seal)
    assert recall_probe("soft", "k") == Probe(None, SOFT)


def test_no_field_of_a_record_stops_anything_whatever_it_holds(cache):
    """Also where the digest holds, as in a record of a version that writes other things."""
    real = probes.rows(cache)["soft"]
    for path, value, entry in damaged(real):
        probes.put(cache, "soft", entry)
        found = recall_probe("soft", "k")
        if found is not None:  # what is there could have been written
            assert path[0] in ("record", "written", "for_s") or entry == real, (path, value)
            assert found.unavailable is None or type(found.unavailable) is str
            assert all((type(d.index), type(d.name), type(d.emulated)) == (int, str, bool) for d in found.devices)


@pytest.mark.parametrize("days", [0.5, 2, 400])
def test_what_was_found_stays_as_long_as_its_key_and_a_refusal_for_a_day(cache, days, monkeypatch):
    remember_probe("gone", "k", Probe("unplugged"))
    later = time.time() + days * 24 * 3600
    monkeypatch.setattr(remembered.time, "time", lambda: later)
    assert recall_probe("soft", "k") == Probe(None, SOFT)
    assert recall_probe("soft", "other") is None
    assert recall_probe("gone", "k") == (Probe("unplugged") if days < 1 else None)


def test_a_record_is_whatever_json_can_say():
    record = {"mode": "soft", "limit": None, "flags": [True, 1, 0.5], "deep": {"a": {}}}
    remembered.remember("some", "k", record)
    assert remembered.recall("some", "k") == record
    assert remembered.recall("some", "other") is None
    remembered.remember("some", "k", {"no": "probe"})
    assert recall_probe("some", "k") is None
    remembered.forget("some")
    assert remembered.recall("some", "k") is None


@pytest.mark.skipif(os.name != "posix", reason="mode bits")
@pytest.mark.parametrize("level", [0, 1])
def test_a_directory_that_others_can_write_to_is_neither_read_nor_written(cache, level):
    before = probes.rows(cache)
    DiskPipelineCache.shared().database().close()
    (cache, cache / "pipelines")[level].chmod(0o777)
    assert recall_probe("soft", "k") is None
    remember_probe("soft", "other", Probe("because"))
    remembered.forget("soft")
    assert probes.rows(cache) == before


def test_a_place_that_cannot_be_a_directory_is_no_error(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("in the way")
    for place in (file, file / "below", "bad\0name"):
        monkeypatch.setattr(store, "cache_dir", lambda place=place: Path(place))
        remember_probe("soft", "k", Probe())
        remembered.forget("soft")
        assert recall_probe("soft", "k") is None
    assert file.read_text() == "in the way"


def test_what_is_too_large_or_not_text_is_not_written(cache):
    before = probes.rows(cache)
    remember_probe("soft", "k" * remembered.MAX_BYTES, Probe())
    remember_probe("soft", "k", Probe(unavailable=object()))
    assert probes.rows(cache) == before


def test_files_of_earlier_versions_are_ignored(tmp_path):
    old = tmp_path / "cache" / "probes"
    old.mkdir(parents=True, mode=0o700)
    (old / "soft.json").write_text('{"schema": 2, "name": "soft", "key": "k", "record": {}}')
    assert recall_probe("soft", "k") is None
    remember_probe("soft", "k", Probe("because"))
    assert [file.name for file in old.iterdir()] == ["soft.json"]


def test_records_that_were_written_first_go_first(tmp_path, monkeypatch):
    monkeypatch.setattr(remembered, "MOST_RECORDS", 3)
    for name in ("a", "b", "c", "a", "d"):
        remember_probe(name, "k", Probe(name))
    assert sorted(probes.rows(tmp_path / "cache")) == ["a", "c", "d"]


def test_where_nothing_may_be_written_records_are_read(cache, monkeypatch):
    monkeypatch.setenv("VYRE_CACHE", "readonly")
    before = probes.rows(cache)
    assert recall_probe("soft", "k") == Probe(None, SOFT)
    remember_probe("soft", "k", Probe("because"))
    remembered.forget("soft")
    probes.put(cache, "soft", before["soft"], seal=b"wrong")
    assert recall_probe("soft", "k") is None
    assert probes.rows(cache) == before


def test_without_a_cache_of_programs_records_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("VYRE_CACHE", "off")
    remember_probe("soft", "k", Probe(None, SOFT))
    assert recall_probe("soft", "k") == Probe(None, SOFT)


def test_threads_and_forked_processes_remember_at_once(tmp_path):
    """Each name is written by several, and every reader sees a whole record or none."""
    failed = []

    def work(who):
        for n in range(20):
            remember_probe(f"p{n % 5}", "k", Probe(f"{who} {n}" * 50))
            found = recall_probe(f"p{n % 5}", "k")
            if found is None or len(set(found.unavailable.split())) > 52:
                failed.append((who, n, found))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    words = [sys.executable, "-c", FORKING]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "the child's the parent's the child's"), done.stderr
    assert len(probes.rows(tmp_path / "cache")) == 6


FORKING = """
import os
from vyre.driver.selection.remembered import recall, remember
remember("fork", "k", {"by": "the parent's"})
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    before = recall("fork", "k")["by"]
    remember("fork", "k", {"by": "the child's"})
    os.write(write, f"{recall('fork', 'k')['by']} {before}".encode())
    os._exit(0)
os.close(write)
with os.fdopen(read) as file:
    print(file.read(), end=" ")
os.waitpid(pid, 0)
print(recall("fork", "k")["by"], end="")
"""


@pytest.mark.parametrize("when", ["never opened", "open"])
def test_a_database_that_is_damaged_or_of_a_later_version_is_no_error(cache, when):
    if when == "never opened":
        DiskPipelineCache.shared().database().close()
    (cache / "pipelines" / FILE).write_bytes(b"nonsense" * 3000)
    for name in (f"{FILE}-wal", f"{FILE}-shm"):
        (cache / "pipelines" / name).unlink(missing_ok=True)
    assert recall_probe("soft", "k") in (None, Probe(None, SOFT))
    remember_probe("soft", "k", Probe())
    remembered.forget("soft")


def test_the_memory_lives_in_the_platforms_place_unless_told_otherwise(monkeypatch, tmp_path):
    assert cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("VYRE_CACHE_DIR")
    assert cache_dir().name in ("vyre", "Cache")
    assert cache_dir().is_absolute()


def test_a_state_key_changes_with_packages_files_and_variables(tmp_path, monkeypatch):
    def key():
        return probe.state_key(packages=["numpy", "no-such-package"], files=[f"{tmp_path}/*.icd"], environ=["VYRE_X"])

    seen = [key()]
    assert key() == seen[0]
    assert '"no-such-package": null' in seen[0]
    (tmp_path / "a.icd").write_text("1")
    seen.append(key())
    os.utime(tmp_path / "a.icd", ns=(5, 5))
    seen.append(key())
    (tmp_path / "dangling.icd").symlink_to(tmp_path / "nowhere")
    seen.append(key())
    monkeypatch.setenv("VYRE_X", "")
    seen.append(key())
    monkeypatch.setattr(probe.os, "access", lambda path, how: False)  # which a superuser never sees
    seen.append(key())
    monkeypatch.setattr("vyre.driver.selection.installed.versions_of", lambda names: dict.fromkeys(names, "99"))
    seen.append(key())
    assert len(set(seen)) == len(seen)


def test_where_devices_leave_no_file_a_state_key_lasts_for_a_day(monkeypatch):
    day = 24 * 3600
    for platform, keys in (("linux", 1), ("win32", 2), ("darwin", 2)):
        monkeypatch.setattr(probe.sys, "platform", platform)
        seen = set()
        for now in (100 * day, 100 * day + 60, 101 * day - 60, 101 * day + 60):
            monkeypatch.setattr(probe.time, "time", lambda now=now: now)
            seen.add(probe.state_key())
        assert len(seen) == keys
