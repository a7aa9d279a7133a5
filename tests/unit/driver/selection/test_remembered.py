"""What was learned is kept for one key, in a private place, and never in the way; that a backend refused, for a day."""

import json
import math
import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vyre.driver.contract import DeviceInfo
from vyre.driver.selection import probe, remembered
from vyre.driver.selection.probe import Probe, recall_probe, remember_probe

from ....support.damage import damaged

SOFT = (DeviceInfo(0, "soft raster", emulated=True),)


@pytest.fixture(autouse=True)
def own_place(monkeypatch, tmp_path):
    monkeypatch.setenv("VYRE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def file():
    remember_probe("soft", "k", Probe(None, SOFT))
    assert recall_probe("soft", "k") == Probe(None, SOFT)
    return remembered.cache_dir() / "probes" / "soft.json"


def test_only_the_user_can_read_the_memory(file):
    if os.name == "posix":
        assert {p.stat().st_mode & 0o777 for p in (file.parent, file.parent.parent)} == {0o700}
        assert file.stat().st_mode & 0o077 == 0
    assert [p.name for p in file.parent.iterdir()] == ["soft.json"]


def entry_of(file):
    entry = json.loads(file.read_text())
    del entry["check"]
    return entry


def changed(**fields):
    return lambda entry: remembered.sealed(entry | fields).decode()


def probed(**fields):
    return lambda entry: remembered.sealed(entry | {"record": entry["record"] | fields}).decode()


@pytest.mark.parametrize(
    "damage",
    [
        lambda e: "",
        lambda e: "not json",
        lambda e: "[]",
        lambda e: "null",
        lambda e: "[" * 30_000,
        lambda e: json.dumps(e),
        lambda e: json.dumps(e | {"check": "00000000"}),
        lambda e: remembered.sealed(e)[:-9].decode(),
        lambda e: remembered.sealed(e).decode() + " " * remembered.MAX_BYTES,
        lambda e: remembered.sealed({"schema": remembered.SCHEMA}).decode(),
        changed(schema=0),
        changed(schema=1),
        changed(name="hard"),
        changed(key="other"),
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
def test_a_damaged_old_or_foreign_file_is_as_good_as_none(file, damage):
    file.write_text(damage(entry_of(file)))
    assert recall_probe("soft", "k") is None
    remember_probe("soft", "k", Probe("because"))
    assert recall_probe("soft", "k") == Probe("because")


@pytest.fixture
def written(file):
    return file.read_bytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_any_other_byte_anywhere_makes_a_file_as_good_as_none(file, written, data):
    blob = bytearray(written)
    at = data.draw(st.integers(0, len(blob) - 1))
    kept = data.draw(st.sampled_from(["changed", "cut", "more"]))
    blob[at] ^= data.draw(st.integers(1, 255))
    file.write_bytes({"changed": blob, "cut": blob[:at], "more": blob + blob[at:]}[kept])
    assert recall_probe("soft", "k") is None


def test_no_field_of_a_file_stops_anything_whatever_it_holds(file):
    """Also where the check holds, as in a file of a version that writes other things."""
    real = entry_of(file)
    for path, value, entry in damaged(real):
        file.write_bytes(remembered.sealed(entry))
        found = recall_probe("soft", "k")
        if found is not None:  # what is there could have been written
            assert path[0] in ("record", "written", "for_s") or entry == real, (path, value)
            assert found.unavailable is None or type(found.unavailable) is str
            assert all((type(d.index), type(d.name), type(d.emulated)) == (int, str, bool) for d in found.devices)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
@pytest.mark.parametrize("make", [os.mkdir, getattr(os, "mkfifo", None), lambda place: os.symlink(place, place)])
def test_what_is_no_file_is_as_good_as_none(file, make):
    file.unlink()
    make(file)
    assert recall_probe("soft", "k") is None
    remember_probe("soft", "k", Probe("because"))
    assert recall_probe("soft", "k") in (None, Probe("because"))
    remembered.forget("soft")
    assert [p.name for p in file.parent.iterdir()] in ([], ["soft.json"])


def test_a_file_that_cannot_be_read_is_as_good_as_none(file, monkeypatch):
    def denied(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    assert recall_probe("soft", "k") is None


@pytest.mark.parametrize("days", [0.5, 2, 400])
def test_what_was_found_stays_as_long_as_its_key_and_a_refusal_for_a_day(file, days, monkeypatch):
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


def test_bytes_that_are_no_text_are_as_good_as_none(file):
    file.write_bytes(b"\xff\xfe\x00")
    assert recall_probe("soft", "k") is None


@pytest.mark.skipif(os.name != "posix", reason="mode bits")
@pytest.mark.parametrize("level", [0, 1])
def test_a_directory_that_others_can_write_to_is_neither_read_nor_written(file, level):
    folder = (file.parent, file.parent.parent)[level]
    folder.chmod(0o777)
    before = file.read_bytes()
    assert recall_probe("soft", "k") is None
    remember_probe("soft", "other", Probe("because"))
    remembered.forget("soft")
    assert file.read_bytes() == before


def test_a_place_that_cannot_be_a_directory_is_no_error(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("in the way")
    for place in (file, file / "below", "bad\0name"):
        monkeypatch.setattr(remembered, "cache_dir", lambda place=place: Path(place))
        remember_probe("soft", "k", Probe())
        remembered.forget("soft")
        assert recall_probe("soft", "k") is None
    assert file.read_text() == "in the way"


def test_what_is_too_large_or_not_text_is_not_written(file):
    before = file.read_bytes()
    remember_probe("soft", "k" * remembered.MAX_BYTES, Probe())
    remember_probe("soft", "k", Probe(unavailable=object()))
    assert file.read_bytes() == before


def test_the_memory_lives_in_the_platforms_place_unless_told_otherwise(monkeypatch, tmp_path):
    assert remembered.cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("VYRE_CACHE_DIR")
    assert remembered.cache_dir().name in ("vyre", "Cache")
    assert remembered.cache_dir().is_absolute()


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
    monkeypatch.setattr("importlib.metadata.version", lambda name: "99")
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
