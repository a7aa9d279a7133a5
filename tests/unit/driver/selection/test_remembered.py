"""What a probe learned: kept for one key, a refusal for one day, in a private place, and never in the way."""

import json
import math
import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vyre.driver.contract import DeviceInfo
from vyre.driver.selection import remembered as probe
from vyre.driver.selection.remembered import Probe

from ....support.damage import damaged

SOFT = (DeviceInfo(0, "soft raster", emulated=True),)


@pytest.fixture(autouse=True)
def own_place(monkeypatch, tmp_path):
    monkeypatch.setenv("VYRE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def remembered():
    probe.remember("soft", "k", Probe(None, SOFT))
    assert probe.recall("soft", "k") == Probe(None, SOFT)
    return probe.cache_dir() / "probes" / "soft.json"


def test_only_the_user_can_read_the_memory(remembered):
    if os.name == "posix":
        assert {p.stat().st_mode & 0o777 for p in (remembered.parent, remembered.parent.parent)} == {0o700}
        assert remembered.stat().st_mode & 0o077 == 0
    assert [p.name for p in remembered.parent.iterdir()] == ["soft.json"]


def entry_of(file):
    entry = json.loads(file.read_text())
    del entry["check"]
    return entry


def changed(**fields):
    return lambda entry: probe.sealed(entry | fields).decode()


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
        lambda e: probe.sealed(e)[:-9].decode(),
        lambda e: probe.sealed(e).decode() + " " * probe.MAX_BYTES,
        lambda e: probe.sealed({"schema": probe.SCHEMA}).decode(),
        changed(schema=0),
        changed(backend="hard"),
        changed(key="other"),
        changed(unavailable=3),
        changed(devices=None),
        changed(devices=[{"index": 0}]),
        changed(devices=[{"index": "0", "name": "x", "emulated": False}]),
        changed(devices=[{"index": 0, "name": "x", "emulated": False, "more": 1}]),
        changed(written=0, unavailable="unplugged"),
        changed(written="yesterday"),
        changed(written=time.time() + 3600),
        changed(written=10**400),
        changed(written=math.nan),
    ],
)
def test_a_damaged_old_or_foreign_file_is_as_good_as_none(remembered, damage):
    remembered.write_text(damage(entry_of(remembered)))
    assert probe.recall("soft", "k") is None
    probe.remember("soft", "k", Probe("because"))
    assert probe.recall("soft", "k") == Probe("because")


@pytest.fixture
def written(remembered):
    return remembered.read_bytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_any_other_byte_anywhere_makes_a_file_as_good_as_none(remembered, written, data):
    blob = bytearray(written)
    at = data.draw(st.integers(0, len(blob) - 1))
    kept = data.draw(st.sampled_from(["changed", "cut", "more"]))
    blob[at] ^= data.draw(st.integers(1, 255))
    remembered.write_bytes({"changed": blob, "cut": blob[:at], "more": blob + blob[at:]}[kept])
    assert probe.recall("soft", "k") is None


def test_no_field_of_a_file_stops_anything_whatever_it_holds(remembered):
    """Also where the check holds, as in a file of a version that writes other things."""
    real = entry_of(remembered)
    for path, value, entry in damaged(real):
        remembered.write_bytes(probe.sealed(entry))
        found = probe.recall("soft", "k")
        if found is not None:  # what is there could have been written
            assert path[0] in ("unavailable", "devices", "written") or entry == real, (path, value)
            assert found.unavailable is None or type(found.unavailable) is str
            assert all((type(d.index), type(d.name), type(d.emulated)) == (int, str, bool) for d in found.devices)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
@pytest.mark.parametrize("make", [os.mkdir, getattr(os, "mkfifo", None), lambda place: os.symlink(place, place)])
def test_what_is_no_file_is_as_good_as_none(remembered, make):
    remembered.unlink()
    make(remembered)
    assert probe.recall("soft", "k") is None
    probe.remember("soft", "k", Probe("because"))
    assert probe.recall("soft", "k") in (None, Probe("because"))
    probe.forget("soft")
    assert [p.name for p in remembered.parent.iterdir()] in ([], ["soft.json"])


def test_a_file_that_cannot_be_read_is_as_good_as_none(remembered, monkeypatch):
    def denied(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    assert probe.recall("soft", "k") is None


@pytest.mark.parametrize("days", [0.5, 2, 400])
def test_what_was_found_stays_as_long_as_its_key_and_a_refusal_for_a_day(remembered, days, monkeypatch):
    probe.remember("gone", "k", Probe("unplugged"))
    later = time.time() + days * 24 * 3600
    monkeypatch.setattr(probe.time, "time", lambda: later)
    assert probe.recall("soft", "k") == Probe(None, SOFT)
    assert probe.recall("soft", "other") is None
    assert probe.recall("gone", "k") == (Probe("unplugged") if days < 1 else None)


def test_bytes_that_are_no_text_are_as_good_as_none(remembered):
    remembered.write_bytes(b"\xff\xfe\x00")
    assert probe.recall("soft", "k") is None


@pytest.mark.skipif(os.name != "posix", reason="mode bits")
@pytest.mark.parametrize("level", [0, 1])
def test_a_directory_that_others_can_write_to_is_neither_read_nor_written(remembered, level):
    folder = (remembered.parent, remembered.parent.parent)[level]
    folder.chmod(0o777)
    before = remembered.read_bytes()
    assert probe.recall("soft", "k") is None
    probe.remember("soft", "other", Probe("because"))
    probe.forget("soft")
    assert remembered.read_bytes() == before


def test_a_place_that_cannot_be_a_directory_is_no_error(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("in the way")
    for place in (file, file / "below", "bad\0name"):
        monkeypatch.setattr(probe, "cache_dir", lambda place=place: Path(place))
        probe.remember("soft", "k", Probe())
        probe.forget("soft")
        assert probe.recall("soft", "k") is None
    assert file.read_text() == "in the way"


def test_what_is_too_large_or_not_text_is_not_written(remembered):
    before = remembered.read_bytes()
    probe.remember("soft", "k" * probe.MAX_BYTES, Probe())
    probe.remember("soft", "k", Probe(unavailable=object()))
    assert remembered.read_bytes() == before


def test_the_memory_lives_in_the_platforms_place_unless_told_otherwise(monkeypatch, tmp_path):
    assert probe.cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("VYRE_CACHE_DIR")
    assert probe.cache_dir().name in ("vyre", "Cache")
    assert probe.cache_dir().is_absolute()


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
