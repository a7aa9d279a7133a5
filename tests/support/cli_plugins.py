"""Packages with backends, made of files in a folder, and an environment in which a process finds them."""

from __future__ import annotations

import os
from pathlib import Path


def shared_cache(folder: Path) -> Path:
    """One for all tests of a run: asking every device anew takes seconds."""
    return folder.parent / "vyre-cache"


class Plugins:
    """Each `add` is an installed package `<id>` 1.0 that offers the backend `<id>` from the module `<id>_backend`."""

    def __init__(self, folder: Path) -> None:
        self.place = folder / "site"
        self.place.mkdir()
        self.environ = {
            "PYTHONPATH": str(self.place),
            "VYRE_CACHE_DIR": str(shared_cache(folder)),
        }

    def add(self, id: str, source: str, precedence: int = 600, package: str | None = None) -> None:
        package = package or id
        info = self.place / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        points = f"[vyre.backends]\n{id}.{precedence} = {id}_backend:REGISTRATION\n"
        (info / "entry_points.txt").write_text(points)
        (self.place / f"{id}_backend.py").write_text(source)

    @property
    def whole_environ(self) -> dict[str, str]:
        return {**os.environ, **self.environ}
