"""Installed packages as they lie in the folders of the path: the same answers as the standard library's."""

import sys
from importlib import metadata

import pytest

from vyre.driver.selection import installed
from vyre.driver.selection.installed import Package, packages, versions_of
from vyre.errors import ArgumentValueError


def info(folder, name, files):
    (folder / name).mkdir(parents=True)
    for file, text in files.items():
        (folder / name / file).write_text(text)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A path of one folder."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_the_packages_of_this_python_are_those_that_the_standard_library_finds():
    theirs = {
        (d.metadata["Name"].lower().replace("_", "-").replace(".", "-"), d.version) for d in metadata.distributions()
    }
    assert {(package.name, package.version) for package in packages()} == theirs
    assert versions_of(["NumPy", "pytest", "no-such-package"]) == {
        "NumPy": metadata.version("numpy"),
        "pytest": metadata.version("pytest"),
        "no-such-package": None,
    }


def test_a_name_is_found_however_it_is_spelled_and_the_first_on_the_path_counts(path, monkeypatch):
    info(path / "new", "My_Plugin.x-2.0.dist-info", {"METADATA": "Name: My_Plugin.x\nVersion: 2.0\n\nVersion: 9\n"})
    info(path / "old", "my_plugin_x-1.0.dist-info", {"METADATA": "Name: my-plugin-x\nVersion: 1.0\n"})
    info(path / "egg", "plain.egg-info", {"PKG-INFO": "Metadata-Version: 1.0\nName: plain\nVersion: 3\n"})
    monkeypatch.setattr(sys, "path", [str(path / name) for name in ("new", "old", "egg", "nowhere", "new")])
    assert [package.label for package in packages()] == ["my-plugin-x 2.0", "my-plugin-x 1.0", "plain 3"]
    assert versions_of(["my.plugin.X", "plain"]) == {"my.plugin.X": "2.0", "plain": "3"}


def test_a_package_without_metadata_has_no_name(path):
    info(path, "odd-1.dist-info", {"entry_points.txt": "[group]\na = os:path\n"})
    (package,) = packages()
    assert (package.name, package.version, package.label) == (None, "", "a package without metadata")
    assert [name for name, _ in package.entry_points("group")] == ["a"]
    assert versions_of(["odd"]) == {"odd": None}


ENTRIES = """
# a comment
[other]
x = nothing:here
[group]
; a = kept as a name
plain = os
deep= os.path : join
extras =os:path.sep [fast]
[group.sub]
y = nothing:here
"""


def test_entry_points_of_one_group_are_read_and_load_their_objects():
    import os

    package = Package({"entry_points.txt": ENTRIES}.get)
    found = dict(package.entry_points("group"))
    assert found.keys() == {"; a", "plain", "deep", "extras"}
    assert found["plain"]() is os
    assert found["deep"]() is os.path.join
    assert found["extras"]() is os.path.sep
    assert package.entry_points("absent") == []
    theirs = metadata.EntryPoint("deep", "os.path : join", "group")
    assert theirs.load() is found["deep"]()


@pytest.mark.parametrize("line", ["this is no entry", "a = not a place!", "a = "])
def test_an_entry_that_names_no_object_says_how_to_write_it(line):
    with pytest.raises(ArgumentValueError, match=r"names no object. Fix: write it as module:name"):
        dict(Package({"entry_points.txt": f"[group]\n{line}\n"}.get).entry_points("group"))["a"]()


class Finder:
    """One that brings a package which lies in no folder."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        return None

    @staticmethod
    def find_distributions(context=None):
        class Brought(metadata.Distribution):
            def read_text(self, name):
                return {"METADATA": "Name: brought\nVersion: 7\n", "entry_points.txt": "[group]\nb = os:path\n"}.get(
                    name
                )

            def locate_file(self, path):
                raise NotImplementedError

        return [Brought()]


def test_packages_that_another_finder_brings_are_found(path, monkeypatch):
    assert versions_of(["brought"]) == {"brought": None}
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert not installed._only_folders()
    assert versions_of(["brought"]) == {"brought": "7"}
    (found,) = [package for package in packages() if package.name == "brought"]
    assert [name for name, _ in found.entry_points("group")] == ["b"]


def test_packages_in_an_archive_on_the_path_are_found(path, monkeypatch, tmp_path):
    import zipfile

    archive = tmp_path / "packages.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("packed-4.dist-info/METADATA", "Name: packed\nVersion: 4\n")
    monkeypatch.setattr(sys, "path", [str(archive)])
    assert versions_of(["packed"]) == {"packed": "4"}


def test_packages_that_are_eggs_are_found(path, monkeypatch, tmp_path):
    egg = tmp_path / "laid-5-py3.11.egg"
    info(egg, "EGG-INFO", {"PKG-INFO": "Name: laid\nVersion: 5\n", "entry_points.txt": "[group]\ne = os:path\n"})
    monkeypatch.setattr(sys, "path", [str(egg)])
    assert versions_of(["laid"]) == {"laid": "5"}


def test_a_file_of_metadata_that_cannot_be_read_is_as_good_as_none(path):
    (path / "odd-1.dist-info" / "METADATA").mkdir(parents=True)
    (path / "file-1.dist-info").write_text("")
    info(path, "raw-1.dist-info", {})
    (path / "raw-1.dist-info" / "METADATA").write_bytes(b"Name: \xff\n")
    assert [package.name for package in packages()] == [None] * 3
