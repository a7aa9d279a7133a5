"""Which sources ran? The commit of a checkout and what was changed in it; of an installed package, its version.

What evidence does not depend on is left out: tests, tools of continuous integration, recorded results, and evidence.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ... import __version__
from ...errors import ArgumentValueError
from ...foundation.formats.blake3 import blake3
from ..pipeline.key import digest_of

Root: TypeAlias = "str | os.PathLike[str] | None"
"""A folder; None belongs to no checkout."""
PACKAGE = Path(__file__).parents[2]
LEFT_OUT = (
    "**/*.evidence", "**/tests/**", "**/test_*.py", "**/conftest.py", "**/.ci/**", "**/.github/**",
    "**/bench/results/**",
)  # fmt: skip
"""Patterns, as git reads them, of files that are no source of a result."""
SLOWEST_S = 30.0
MOST_SOURCE_BYTES = 16 << 20
UNKNOWN = "unknown"
_TREE_FORM = "source-tree-v1"


@dataclass(frozen=True, slots=True)
class SourceProvenance:
    """The sources: what git says, and one text each for the commit with its changes and for all files."""

    git: Mapping[str, str]
    source_fingerprint: str
    source_tree_fingerprint: str

    @classmethod
    def capture_current(cls) -> SourceProvenance:
        """Of this package."""
        git = capture_git_info()
        return cls(git, source_fingerprint(git), source_tree_fingerprint())

    @classmethod
    def capture_at(cls, root: Root) -> SourceProvenance:
        """Of the checkout that the folder belongs to; of none, that nothing is known."""
        git = capture_git_info_at(root)
        return cls(git, source_fingerprint(git), source_tree_fingerprint_at(root))

    def validate(self) -> None:
        """Raise where a text is blank, so that it would name no source."""
        for name in ("source_fingerprint", "source_tree_fingerprint"):
            if not getattr(self, name).strip():
                raise ArgumentValueError(
                    f"{name} of the sources is blank", fix="capture it: SourceProvenance.capture_current()"
                )


def capture_git_info() -> dict[str, str]:
    """What git says of this package's checkout."""
    return capture_git_info_at(_own_checkout())


def capture_git_info_at(root: Root) -> dict[str, str]:
    """Commit, parent, branch, time, and whether files differ from it; where there is no git, that this is not known."""
    commit = _said(root, "rev-parse", "HEAD")
    if commit is None:
        return {"dirty": UNKNOWN}
    told = {"commit": commit}
    for name, words in (
        ("branch", ("rev-parse", "--abbrev-ref", "HEAD")),
        ("parent_commit", ("rev-parse", "--verify", "--quiet", "HEAD^")),
        ("commit_timestamp", ("show", "--no-patch", "--format=%cI", "HEAD")),
    ):
        if said := _said(root, *words):
            told[name] = said
    status = _asked(root, "status", "--porcelain", "-z", "--untracked-files=all", "--", *_pathspec())
    told["dirty"] = UNKNOWN if status is None else "true" if status else "false"
    if status:
        told["dirty_worktree_fingerprint"] = _changes(root, status)
    return told


def source_fingerprint(git: Mapping[str, str]) -> str:
    """The commit, and a digest of what differs from it.

    >>> source_fingerprint({"commit": "4c1f", "dirty": "false"})
    'git:4c1f:dirty=false'
    >>> source_fingerprint({"commit": "4c1f", "dirty": "true", "dirty_worktree_fingerprint": "77ab"})
    'git:4c1f:dirty=true:worktree=77ab'
    """
    if "commit" not in git:
        return f"dist:vyre:{__version__}"
    told = f"git:{git['commit']}:dirty={git.get('dirty', UNKNOWN)}"
    return f"{told}:worktree={git.get('dirty_worktree_fingerprint', UNKNOWN)}" if git.get("dirty") == "true" else told


def source_tree_fingerprint() -> str:
    """A digest of all source files of this package's checkout, committed or not."""
    return source_tree_fingerprint_at(_own_checkout())


def source_tree_fingerprint_at(root: Root) -> str:
    """The same of the checkout that the folder belongs to."""
    listed = _asked(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--full-name", "--",
                    *_pathspec())  # fmt: skip
    if listed is None:
        return f"dist-source:vyre:{__version__}"
    return f"{_TREE_FORM}:{digest_of(_TREE_FORM, *_contents(root, listed)).hex()}"


def _changes(root: Root, status: bytes) -> str:
    """A digest of what differs from the commit: changes of its files, and files that it does not have."""
    diff = _asked(root, "diff", "HEAD", "--binary", "--", *_pathspec()) or b""
    new = _asked(root, "ls-files", "-z", "--others", "--exclude-standard", "--full-name", "--", *_pathspec()) or b""
    return digest_of("worktree-v1", status, diff, *_contents(root, new)).hex()


def _contents(root: Root, listed: bytes) -> Iterator[bytes]:
    """Path and content of each file of a listing, by path; of a link, where it leads."""
    top = Path(_said(root, "rev-parse", "--show-toplevel") or "")
    for name in sorted(set(filter(None, listed.split(b"\0")))):
        path = top / os.fsdecode(name)
        yield name
        try:
            yield os.fsencode(os.readlink(path)) if path.is_symlink() else _content(path)
        except OSError as e:
            yield f"unreadable: {e.strerror}".encode()


def _content(path: Path) -> bytes:
    """Its length, and a digest of what is no longer than a source."""
    with open(path, "rb") as file:
        return f"{os.fstat(file.fileno()).st_size} ".encode() + blake3(file.read(MOST_SOURCE_BYTES))


def _own_checkout() -> Path | None:
    """The folder of this package, if a checkout has it; one may be installed inside a checkout of something else."""
    return None if _asked(PACKAGE, "ls-files", "--error-unmatch", "__init__.py") is None else PACKAGE


def _pathspec() -> list[str]:
    return [":(top)", *(f":(top,exclude,glob){pattern}" for pattern in LEFT_OUT)]


def _said(root: Root, *words: str) -> str | None:
    found = _asked(root, *words)
    return None if found is None else found.decode("utf-8", "replace").strip()


def _asked(root: Root, *words: str) -> bytes | None:
    """What git prints; None where there is no git, no checkout, or no answer."""
    if root is None:
        return None
    command = ["git", "--no-optional-locks", "-c", "core.quotePath=false", *words]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, stdin=subprocess.DEVNULL, timeout=SLOWEST_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return None if done.returncode else done.stdout
