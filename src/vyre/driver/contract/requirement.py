"""What does a backend need on this machine, and is it there? Findings that `vyre doctor` prints.

A registration offers them by its `checks`; the backend need not be available for that: a check names what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .registration import Unavailable

__all__ = ["VERDICTS", "Check", "installed", "said"]

VERDICTS = ("ok", "warn", "fail")
"""It is as it should be; something is missing or slow, and all else works; what is here is broken."""


class Check(NamedTuple):
    """One finding. `fix` is what to do next: needed unless the verdict is ok, and a hint then."""

    name: str
    verdict: str
    detail: str
    fix: str = ""


def installed(package: str, extra: str | None = None, name: str | None = None) -> Check:
    """Whether a package is installed, and which version; `extra` of vyre brings it."""
    from importlib import metadata

    try:
        return Check(name or package, "ok", f"{package} {metadata.version(package)}")
    except metadata.PackageNotFoundError:
        wanted = package if extra is None else f"'vyre[{extra}]'"
        return Check(name or package, "warn", f"{package} is not installed", f"pip install {wanted}")


def said(name: str, why: str | None, ok: str, *, verdict: str = "warn") -> Check:
    """A check from what `unavailable()` answers; None is `ok`."""
    if why is None:
        return Check(name, "ok", ok)
    why = Unavailable.of(why)
    return Check(name, verdict, why.reason, why.fix or "resolve that, or use another backend")


def listed(files: Sequence[str], limit: int = 4) -> str:
    """The first few of some paths."""
    more = f" and {len(files) - limit} more" if len(files) > limit else ""
    return ", ".join(files[:limit]) + more


def sound(found: Iterable[object]) -> Iterable[Check]:
    """The findings of a backend's code. An item that is not a `Check` becomes a failed one that says so."""
    for each in found:
        if isinstance(each, Check) and each.verdict in VERDICTS and all(type(field) is str for field in each):
            lacks_fix = each.verdict != "ok" and not each.fix.strip()
            yield each._replace(fix="ask the author of the backend") if lacks_fix else each
        else:
            yield Check("checks", "fail", f"{each!r} is not a check", "correct the checks of the registration")
