"""No other user can have code loaded: by another folder on the way, by a link, by a log that was left behind.

What belongs to another user in the folder itself is in `test_disk_cache.py`.
"""

import grp
import os
import pwd
import struct
from pathlib import Path

import pytest

from vyre.driver.pipeline import database as databases
from vyre.driver.pipeline.database import LOGS, is_private, is_unmapped, way_to
from vyre.driver.pipeline.store import DiskPipelineCache

from .test_disk_cache import POSIX, ROOT, folder, forked, key, nothing_told, refused, store

__all__ = ["folder", "nothing_told", "store"]
pytestmark = POSIX
OTHER = 12345


@pytest.fixture
def deep(tmp_path):
    """A cache some folders below one that a test opens to others."""
    opened = tmp_path / "opened"
    folder = opened / "mine" / "cache" / "pipelines"
    made = DiskPipelineCache(folder, readonly=False)
    made.save(key(), b"code")
    made.database().close()
    return opened, folder


def loads(folder):
    found = DiskPipelineCache(folder, readonly=False)
    try:
        return found.load(key()) == b"code"
    finally:
        found.database().close()


@ROOT
def test_a_folder_on_the_way_that_belongs_to_another_user_is_refused(deep, caplog):
    opened, folder = deep
    os.chown(opened, OTHER, OTHER)
    said = refused(DiskPipelineCache(folder, readonly=False), caplog, f"as {opened} belongs to another user")
    assert "others can put another folder in place of" in said


@ROOT
def test_a_folder_on_the_way_that_a_group_can_write_to_is_refused(deep, caplog):
    opened, folder = deep
    os.chown(opened, 0, OTHER)
    opened.chmod(0o775)
    said = refused(DiskPipelineCache(folder, readonly=False), caplog, f"as {opened} can be written by its group")
    assert f"Fix: chmod go-w {opened}; or set VYRE_CACHE_DIR" in said
    opened.chmod(0o1775)  # only its owner can move what is ours in there
    assert loads(folder)
    os.chown(opened, 0, 0)
    opened.chmod(0o775)
    assert loads(folder) == is_private(0)


def test_a_private_group_has_no_other_member(monkeypatch):
    me = pwd.getpwuid(os.geteuid())

    def group(name, *members):
        monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group((name, "x", gid, [*members])))

    group(me.pw_name)
    assert is_private(me.pw_gid)
    group(me.pw_name, me.pw_name, "root")
    assert is_private(me.pw_gid)
    group(me.pw_name, "eve")
    assert not is_private(me.pw_gid)
    group("users")
    assert is_private(me.pw_gid) == (me.pw_gid == 0)
    assert not is_private(OTHER)

    def unknown(gid):
        raise KeyError(gid)

    monkeypatch.setattr(grp, "getgrgid", unknown)
    assert not is_private(me.pw_gid)


@ROOT
@pytest.mark.parametrize("owner", [0, OTHER])
def test_a_link_on_the_way_is_followed_if_only_this_user_can_replace_it(deep, tmp_path, caplog, owner):
    opened, _ = deep
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "way").symlink_to(opened / "mine")
    os.chown(shared / "way", owner, owner, follow_symlinks=False)
    through = shared / "way" / "cache" / "pipelines"
    if owner == 0:
        assert loads(through)
    else:
        refused(DiskPipelineCache(through, readonly=False), caplog, f"as {shared / 'way'} belongs to another user")


@ROOT
def test_a_link_in_the_middle_of_links_is_looked_at(deep, tmp_path, caplog):
    """The one that the path names and the folder at the end are ours; the one between is another user's."""
    opened, _ = deep
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "second").symlink_to(opened / "mine")
    (tmp_path / "first").symlink_to("theirs/second")
    assert loads(tmp_path / "first" / "cache" / "pipelines")
    os.chown(theirs, OTHER, OTHER)
    through = DiskPipelineCache(tmp_path / "first" / "cache" / "pipelines", readonly=False)
    refused(through, caplog, f"as {theirs} belongs to another user")


def test_the_way_to_a_place_goes_through_links_and_back(tmp_path, monkeypatch):
    top = Path(os.path.realpath(tmp_path))
    (top / "a" / "b").mkdir(parents=True)
    (top / "far").symlink_to(top / "a" / "b")
    (top / "near").symlink_to("./a/../far")
    monkeypatch.chdir(top)
    names = [place for place, _ in way_to("near/../.")]
    inside = [os.path.relpath(place, top) for place in names if place.startswith(f"{top}{os.sep}")]
    assert inside == ["near", "a", "far", "a", "a/b"]
    (top / "loop").symlink_to("loop")
    with pytest.raises(databases.CacheProblem, match=r"leads through too many links.* Fix: set VYRE_CACHE_DIR"):
        list(way_to("loop/x"))


@ROOT
@pytest.mark.parametrize("suffix", LOGS)
@pytest.mark.parametrize("how", ["another user's", "a link", "open to others"])
def test_a_log_that_was_put_there_before_the_folder_was_closed_is_refused(store, folder, caplog, tmp_path, suffix, how):
    store.save(key(), b"code")
    store.database().close()
    log = folder / f"{databases.FILE}{suffix}"
    log.unlink(missing_ok=True)
    if how == "a link":
        (tmp_path / "log").write_bytes(b"")
        log.symlink_to(tmp_path / "log")
        text = f"{log} is a link"
    else:
        log.write_bytes(b"")
        log.chmod(0o666)
        text = f"{log} can be written by others"
        if how == "another user's":
            os.chown(log, OTHER, OTHER)
            text = f"{log} belongs to another user"
    refused(DiskPipelineCache(folder, readonly=False), caplog, text)


ACL = struct.Struct("<HHI")
USER_OBJ, USER, GROUP_OBJ, MASK, OTHERS = 1, 2, 4, 16, 32


def test_what_an_access_list_opens_to_another_user_is_refused(store, folder, caplog):
    store.save(key(), b"code")
    store.database().close()
    nobody = 0xFFFFFFFF
    entries = [(USER_OBJ, 7, nobody), (USER, 7, OTHER), (GROUP_OBJ, 0, nobody), (MASK, 7, nobody), (OTHERS, 0, nobody)]
    blob = struct.pack("<I", 2) + b"".join(ACL.pack(*entry) for entry in entries)
    try:
        os.setxattr(folder, "system.posix_acl_access", blob)
    except (AttributeError, OSError) as e:
        pytest.skip(f"there are no access lists here: {e}")
    refused(DiskPipelineCache(folder, readonly=False), caplog, f"{folder} can be written by others")


def test_who_stands_for_users_outside_of_a_container_is_not_another_user(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.write_text("         0       1000          1\n")
    outside.write_text("         0          0 4294967295\n")
    assert is_unmapped(65534, str(inside))
    assert not is_unmapped(65534, str(outside))
    assert not is_unmapped(65534, str(tmp_path / "none"))
    assert not is_unmapped(1000, str(inside))


@ROOT
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_another_user_who_changes_the_way_while_it_is_used_gets_no_code_loaded(tmp_path, caplog):
    """In a folder of theirs they put their own cache in place of ours: it is never opened, whenever they do it."""
    for place in (tmp_path, *tmp_path.parents):
        if place.owner() == "root" and place.name.startswith(("pytest-", "popen-", "test_")):
            place.chmod(0o755)
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o755)
    os.chown(theirs, OTHER, OTHER)
    folder = theirs / "mine" / "pipelines"
    (theirs / "mine").mkdir(mode=0o700)

    def swap():
        os.setgroups([])
        os.setgid(OTHER)
        os.setuid(OTHER)
        (theirs / "mine").rename(theirs / "gone")
        planted = DiskPipelineCache(folder, readonly=False)
        planted.save(key(), b"evil")
        return planted.database().close()

    mine = DiskPipelineCache(folder, readonly=False)
    refused(mine, caplog, f"as {theirs} belongs to another user")
    assert forked(swap) in ("None", "")
    assert DiskPipelineCache(folder, readonly=False).load(key()) is None
