"""Sources are named by their commit and by their content; what is no source changes neither."""

import os
import subprocess

import pytest

import vyre
from vyre.driver import (
    SourceProvenance,
    capture_git_info,
    capture_git_info_at,
    source_fingerprint,
    source_tree_fingerprint,
    source_tree_fingerprint_at,
)
from vyre.driver.observe import provenance
from vyre.errors import ArgumentValueError


def git(root, *words):
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    quiet = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    return subprocess.run(
        ["git", *words], cwd=root, env=os.environ | who | quiet, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    """A checkout with a source, a test and a record."""
    try:
        git(tmp_path, "init", "--quiet", "--initial-branch=work")
    except FileNotFoundError:
        pytest.skip("git is not installed")
    for name, text in (("src/a.py", "a = 1\n"), ("tests/test_a.py", "assert 1\n"), ("bench/results/a.json", "{}\n")):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    return tmp_path


@pytest.mark.row("C-ev-3")
def test_a_clean_checkout_is_its_commit(checkout):
    told = capture_git_info_at(checkout)
    assert told["commit"] == git(checkout, "rev-parse", "HEAD")
    assert (told["dirty"], told["branch"]) == ("false", "work")
    assert "parent_commit" not in told
    assert "dirty_worktree_fingerprint" not in told
    assert source_fingerprint(told) == f"git:{told['commit']}:dirty=false"


def test_a_second_commit_has_a_parent(checkout):
    first = git(checkout, "rev-parse", "HEAD")
    git(checkout, "commit", "--quiet", "--allow-empty", "-m", "second")
    assert capture_git_info_at(checkout)["parent_commit"] == first


@pytest.mark.row("C-ev-4", "C-ev-5", "C-ev-6")
@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "src/a.py").write_text("a = 2\n"),
        lambda root: (root / "src/new.py").write_text("b = 1\n"),
        lambda root: (root / "src/a.py").unlink(),
        lambda root: os.symlink("a.py", root / "src/link.py"),
    ],
    ids=["changed", "new", "deleted", "linked"],
)
def test_a_change_of_a_source_shows_in_both_fingerprints(checkout, change):
    tree = source_tree_fingerprint_at(checkout)
    change(checkout)
    told = capture_git_info_at(checkout)
    assert told["dirty"] == "true"
    assert source_fingerprint(told) == f"git:{told['commit']}:dirty=true:worktree={told['dirty_worktree_fingerprint']}"
    assert source_tree_fingerprint_at(checkout) != tree


@pytest.mark.row("C-ev-3", "C-ev-4")
def test_what_differs_from_the_commit_decides_the_fingerprint_of_the_changes(checkout):
    seen = set()
    for text in ("a = 2\n", "a = 3\n"):
        (checkout / "src/a.py").write_text(text)
        seen.add(capture_git_info_at(checkout)["dirty_worktree_fingerprint"])
    for text in ("b = 1\n", "b = 2\n"):
        (checkout / "src/b.py").write_text(text)
        seen.add(capture_git_info_at(checkout)["dirty_worktree_fingerprint"])
    assert len(seen) == 4


@pytest.mark.row("C-ev-5", "C-ev-6")
@pytest.mark.parametrize(
    "name",
    ["tests/test_a.py", "tests/new.py", "src/test_more.py", "src/conftest.py", "bench/results/a.json", ".ci/run",
     "run.evidence"],
)  # fmt: skip
def test_what_is_no_source_changes_nothing(checkout, name):
    before = capture_git_info_at(checkout), source_tree_fingerprint_at(checkout)
    (checkout / name).parent.mkdir(exist_ok=True)
    (checkout / name).write_text("something else\n")
    assert (capture_git_info_at(checkout), source_tree_fingerprint_at(checkout)) == before


def test_a_folder_below_the_top_belongs_to_the_whole_checkout(checkout):
    assert SourceProvenance.capture_at(checkout / "src") == SourceProvenance.capture_at(checkout)


@pytest.mark.row("C-ev-3")
def test_without_git_the_version_names_the_source(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    found = SourceProvenance.capture_at(tmp_path)
    assert found.git == {"dirty": "unknown"}
    assert found.source_fingerprint == f"dist:vyre:{vyre.__version__}"
    assert found.source_tree_fingerprint == f"dist-source:vyre:{vyre.__version__}"
    found.validate()


def test_without_the_program_git_the_version_names_the_source(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert SourceProvenance.capture_current().source_fingerprint == f"dist:vyre:{vyre.__version__}"


def test_the_sources_of_the_package_are_those_of_its_own_checkout(checkout, monkeypatch):
    package = checkout / "venv" / "vyre"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(provenance, "PACKAGE", package)  # installed inside a checkout of something else
    assert capture_git_info() == {"dirty": "unknown"}
    assert source_tree_fingerprint() == f"dist-source:vyre:{vyre.__version__}"
    git(checkout, "add", ".")
    assert capture_git_info()["commit"] == git(checkout, "rev-parse", "HEAD")
    assert source_tree_fingerprint().startswith("source-tree-v1:")


@pytest.mark.parametrize("blank", ["", " "])
def test_a_blank_fingerprint_is_refused_by_its_name(blank):
    with pytest.raises(ArgumentValueError, match=r"source_fingerprint of the sources is blank.*Fix: capture it"):
        SourceProvenance({}, blank, "x").validate()
    with pytest.raises(ArgumentValueError, match="source_tree_fingerprint of the sources is blank"):
        SourceProvenance({}, "x", blank).validate()
