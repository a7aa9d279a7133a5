"""Where may things be kept on disk, and can the files there be trusted?"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from .knobs import CACHE_DIR


def cache_dir() -> Path:
    """The folder for files that vyre can make again: the setting `cache_dir`, else the platform's place."""
    if given := CACHE_DIR.value():
        return Path(given)
    if sys.platform == "linux" and "ANDROID_ROOT" not in os.environ:
        for base in (os.environ.get("XDG_CACHE_HOME", "").strip(), os.path.expanduser("~/.cache")):
            if os.path.isabs(base):
                return Path(base, "vyre")  # as platformdirs has it; importing that takes 8 ms
        import tempfile

        return Path(tempfile.gettempdir(), f"vyre-{os.geteuid()}")  # a user without a home, as in some containers
    import platformdirs

    return Path(platformdirs.user_cache_dir("vyre", appauthor=False))


def why_not_ours(info: os.stat_result) -> str | None:
    """Which other user may have written a file with this status; None where only this user can."""
    if os.name == "nt":
        return None  # mode bits say nothing there
    if info.st_uid != os.geteuid():
        return "belongs to another user"
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written by others"
    return None
