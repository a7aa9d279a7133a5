"""The result of a backend's probe: whether it would open, and its devices; kept so that choosing loads no library."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from ..contract.registration import DeviceInfo
from .remembered import REFUSAL_S, recall, remember


@dataclass(frozen=True, slots=True)
class Probe:
    """Why a backend would not open (None: it would), and its devices."""

    unavailable: str | None = None
    devices: tuple[DeviceInfo, ...] = ()

    @property
    def emulated(self) -> bool:
        """Whether there are devices and all of them run on the processor."""
        return bool(self.devices) and all(d.emulated for d in self.devices)


def recall_probe(name: str, key: str) -> Probe | None:
    """The probe kept under exactly this key; a refusal only for a day."""
    record = recall(name, key)
    try:
        return None if record is None else _probe(**record)
    except (TypeError, ValueError):  # another version may write other fields
        return None


def remember_probe(name: str, key: str, probe: Probe) -> None:
    """Keep it. Devices stay as long as their key; opening one that is gone makes the process forget them."""
    record = {"unavailable": probe.unavailable, "devices": [asdict(d) for d in probe.devices]}
    remember(name, key, record, for_s=None if probe.unavailable is None else REFUSAL_S)


def _probe(unavailable: object, devices: Iterable[dict[str, object]]) -> Probe | None:
    known = tuple(DeviceInfo(**d) for d in devices)  # type: ignore[arg-type]  # looked at next
    sound = all((type(d.index), type(d.name), type(d.emulated)) == (int, str, bool) for d in known)
    return Probe(unavailable, known) if sound and (unavailable is None or isinstance(unavailable, str)) else None


def state_key(*, packages: Iterable[str] = (), files: Iterable[str] = (), environ: Iterable[str] = ()) -> str:
    """A text for `BackendRegistration.probe_key`: it changes when a package gets another version, when one of the files
    (glob patterns) appears, goes, is written to or is opened to this user, or when one of the environment variables is
    set otherwise. Elsewhere than on Linux devices come and go without a file, and the text changes every day."""
    from glob import glob

    from .installed import versions_of

    found: dict[str, object] = {**versions_of(packages)}
    for pattern in files:
        for path in sorted(glob(os.path.expanduser(pattern))):
            try:
                found[path] = os.stat(path).st_mtime_ns, os.access(path, os.R_OK | os.W_OK)
            except OSError:
                found[path] = None
    for name in environ:
        found[f"${name}"] = os.environ.get(name)
    if sys.platform != "linux":
        found["day"] = time.time() // REFUSAL_S
    return json.dumps(found, sort_keys=True)
