"""What happened, as records: a stable code, a place, a fix; for people line by line, for machines as JSON.

The record itself is part of `vyre.errors`, since every error can give one. This module makes records of whatever was
raised: an error of ours, a program with several findings, or an exception of another library.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from ..errors import ArgumentValueError, DiagCode, Diagnostic, InvalidProgram, OpLocation, Severity, VyreError
from ..foundation.ir.report import Issue

__all__ = [
    "Diagnostic", "DiagnosticCode", "OpLocation", "Severity", "diagnostics_of", "from_error", "from_issue", "render",
    "split_fix",
]  # fmt: skip

DiagnosticCode = DiagCode
_FIX = ". Fix: "


def diagnostics_of(error: BaseException) -> tuple[Diagnostic, ...]:
    """Every finding of an invalid program; one record of any other exception."""
    if isinstance(error, InvalidProgram):
        found = tuple(from_issue(issue) for issue in error.issues if isinstance(issue, Issue))
        if found:
            return found
    return (from_error(error),)


def from_error(error: BaseException) -> Diagnostic:
    """One record of an exception. Of a foreign one only the text is known, which may bring a fix."""
    if isinstance(error, VyreError):
        return error.diagnostic()
    message, fix = split_fix(str(error))
    found = Diagnostic.error(DiagCode.E_UNKNOWN, f"{type(error).__name__}: {message}" if message else repr(error))
    return found if fix is None else found.with_fix(fix)


def from_issue(issue: Issue) -> Diagnostic:
    """A finding of the validator; its place is the path in the program, or the line of the kernel's source."""
    return Diagnostic(Severity(issue.severity), issue.code, issue.headline, None, issue.fix)


def split_fix(text: str) -> tuple[str, str | None]:
    """Message and fix of a text, split where the first fix begins; dots at its end are dropped.

    >>> split_fix("it broke. Fix: mend it.")
    ('it broke', 'mend it')
    """
    message, marker, fix = text.partition(_FIX)
    return message, fix.rstrip(".") if marker else None


def render(diagnostics: Iterable[Diagnostic], form: str = "human") -> str:
    """All of them: `human` is one block each, `json` one object per line."""
    if form == "human":
        return "\n".join(d.render_human() for d in diagnostics)
    if form == "json":
        return "\n".join(json.dumps(d.to_dict(), ensure_ascii=False) for d in diagnostics)
    raise ArgumentValueError(f"{form!r} is not a form of a diagnostic", fix="use human or json")
