"""Put the site of this version beside those of others: python docs/publish_version.py SITE FOLDER

FOLDER gets the site as FOLDER/<version>, `versions.json`, which the switch in the header of every page reads, and an
`index.html` that leads to the newest. A version that is there is replaced. Serve FOLDER; pages that are opened from a
disk have no switch.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import vyre


def publish(site: Path, folder: Path, version: str) -> list[str]:
    """All versions in the folder, newest first."""
    target = folder / version
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(site, target)
    versions = sorted((p.name for p in folder.iterdir() if (p / "index.html").exists()), key=_order, reverse=True)
    listed = [{"version": name, "title": name, "aliases": ["latest"] * (not k)} for k, name in enumerate(versions)]
    (folder / "versions.json").write_text(json.dumps(listed, indent=1) + "\n", "utf-8")
    newest = f"{versions[0]}/index.html"
    page = (
        f'<!doctype html><meta charset="utf-8"><title>vyre</title><meta http-equiv="refresh" content="0; url={newest}">'
    )
    (folder / "index.html").write_text(f'{page}<a href="{newest}">vyre {versions[0]}</a>\n', "utf-8")
    return versions


def _order(version: str) -> tuple[tuple[int, int, str], ...]:
    """1.10 is newer than 1.9, and 1.0 newer than 1.0rc1."""
    parts = re.findall(r"\d+|[a-z]+", version)
    return (*((1, int(p), "") if p.isdigit() else (-1, 0, p) for p in parts), (0, 0, ""))


if __name__ == "__main__":
    if len(sys.argv) != 3 or not (Path(sys.argv[1]) / "index.html").exists():
        sys.exit("usage: python docs/publish_version.py SITE FOLDER, where `make docs` has built SITE")
    print("versions:", ", ".join(publish(Path(sys.argv[1]), Path(sys.argv[2]), vyre.__version__)))
