"""Results and arguments of the validator: findings, capabilities, limits."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import DiagCode
from .facts import Requirements
from .nodes import Span
from .value import Value

Path = tuple[str | int, ...]


class Issue(Value):
    """One finding. `path` leads to it from the program: `("entry", 0, "body", 3, "value", "left")`.

    `phase` is program, node, expression, type, memory or limits.
    """

    code: DiagCode
    severity: str
    phase: str
    path: Path
    message: str
    fix: str
    span: Span | None = None

    @property
    def headline(self) -> str:
        """Code, place and message, without the fix."""
        place = f"{self.span.file}:{self.span.line}" if self.span else ".".join(map(str, self.path)) or "program"
        return f"{self.code.value} at {place}: {self.message}"

    def __str__(self) -> str:
        return f"{self.headline}. Fix: {self.fix}"

    def _repr_html_(self) -> str:
        from .. import html

        return html.page(
            f"{self.severity} {self.code.value}", html.facts([("found", self.headline), ("fix", self.fix)])
        )


class Report:
    """Collects findings in order; the same code at the same place is said once."""

    def __init__(self) -> None:
        self._issues: dict[tuple[Path, DiagCode], Issue] = {}

    def add(
        self,
        code: DiagCode,
        phase: str,
        path: Path,
        message: str,
        fix: str = "",
        *,
        span: Span | None = None,
        severity: str = "",
    ) -> None:
        known = span if type(span) is Span else None  # what a statement carries beside its value may be anything
        issue = Issue(code, severity or code.severity, phase, path, message, fix or code.fix, known)
        self._issues.setdefault((path, code), issue)

    def __iter__(self) -> Iterator[Issue]:
        return iter(self._issues.values())

    def __bool__(self) -> bool:
        return bool(self._issues)

    def _repr_html_(self) -> str:
        from .. import html

        rows = [(issue.severity, issue.headline, issue.fix) for issue in self]
        return html.page(f"{len(rows)} findings", html.table(("severity", "finding", "fix"), rows))


class Capabilities(Value):
    """What a target offers, as far as validity depends on it. None stands for no limit, or for the full set.

    `collectives` means those of a single rank, which move nothing; `grid_sync` may be native or by splitting.
    """

    subgroup: bool = False
    workgroup_atomics: bool = False
    int64: bool = False
    float16: bool = False
    bfloat16: bool = False
    float64: bool = False
    trap: bool = False
    indirect: bool = False
    collectives: bool = False
    async_copy: bool = False
    grid_sync: bool = False
    supported_ops: frozenset[str] | None = None
    cast_targets: frozenset[str] | None = None
    max_workgroup_bytes: int | None = None
    max_invocations: int | None = None
    barrier_ignores_exited: bool = False

    @classmethod
    def everything(cls) -> Capabilities:
        """Whatever the language can say and one device can do."""
        return cls().replace(**dict.fromkeys(CAPABILITY_BITS, True))


CAPABILITY_BITS = tuple(name for name, kind in Requirements.__annotations__.items() if kind == "bool")
"""The yes-or-no fields that a program's requirements are compared with."""


class Limits(Value):
    """How large a program may be. `depth` bounds statements and expressions together: the wire form carries 64."""

    nesting: int = 64
    nodes: int = 100_000
    expression_depth: int = 128
    depth: int = 60
    expressions: int = 1_000_000
    buffers: int = 16_384
    text: int = 1 << 20
