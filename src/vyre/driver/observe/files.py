"""Files of records: seen whole or not at all, and by their owner alone."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ...errors import ArgumentValueError


def written(path: str | os.PathLike[str], save: Callable[[IO[bytes]], object]) -> Path:
    """Let `save` write the file; one that is there is replaced."""
    target, part = Path(os.path.realpath(path)), None
    if target.exists() and not target.is_file():
        raise ArgumentValueError(f"{path} is a folder or a device", fix="name another file")
    try:
        descriptor, part = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)  # for its owner alone
        with os.fdopen(descriptor, "wb") as stream:
            save(stream)
        os.replace(part, target)
    except OSError as e:
        raise ArgumentValueError(f"{path} cannot be written: {e.strerror or e}", fix="name another file") from e
    finally:
        if part is not None:
            Path(part).unlink(missing_ok=True)
    return Path(path)
