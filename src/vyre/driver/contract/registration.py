"""How to get a backend, without getting it: the record that an entry point leads to, and the devices it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...foundation.ir.program import Program
    from ..settings.knobs import Knob
    from .backend import VyreBackend
    from .requirement import Check

PRECEDENCE_UNKNOWN = 0xFFFFFFFF


class Unavailable(str):
    """Why a backend would not open: the text `reason: fix`, which is what users read, and its two parts.

    `fix` says what to do; it may be empty where a plain text names none.
    """

    __slots__ = ("fix", "reason")
    reason: str
    fix: str

    def __new__(cls, reason: str, fix: str = "") -> Unavailable:
        made = super().__new__(cls, f"{reason}: {fix}" if fix else reason)
        made.reason, made.fix = reason, fix
        return made

    @classmethod
    def of(cls, why: str) -> Unavailable:
        """The answer of an `unavailable()`, which may be a plain text: its last colon is where the fix begins."""
        if type(why) is cls:
            return why
        reason, _, fix = why.rpartition(": ")
        return cls(reason, fix) if reason else cls(why)

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # for pickle: str has one part
        return self.reason, self.fix


@dataclass(frozen=True, slots=True)
class BackendPrecedence:
    """Lower wins."""

    id: str
    rank: int = PRECEDENCE_UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRegistration:
    """How to get a backend, without getting it.

    `open(device)` may import the target's library and look for a device; it creates no context, queue, memory or
    thread, and what it returns has its final capability record. It takes the index of one of `devices()`, or nothing.
    `unavailable()` says why it would not open, as an `Unavailable` or a text `reason: fix`, or None. `devices()` names
    the devices, best first, and opens none.
    `kind` is device, host, oracle (only when asked for) or distributed (only when asked for). With `probe_key`, the
    answers of `unavailable` and `devices` are remembered across processes for as long as its text stays the same, a
    refusal for a day at most. `emit(program)` is the text that its compiler would get of a valid program without
    grid-wide barriers; it needs no device.
    `checks()` are its findings for `vyre doctor`: what it needs, whether that is here, and what to do if not.
    `knobs` are settings of its own; the name of each begins with the id and an underscore.
    """

    id: str
    open: Callable[..., VyreBackend]
    precedence: int = 500
    unavailable: Callable[[], str | None] = field(default=lambda: None)
    devices: Callable[[], Sequence[DeviceInfo]] | None = None
    kind: str = "device"
    dispatches: bool = True
    probe_key: Callable[[], str] | None = None
    emit: Callable[[Program], str] | None = None
    checks: Callable[[], Iterable[Check]] | None = None
    knobs: Sequence[Knob[Any]] = ()


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device of a backend. `emulated` is a device interface that runs on the processor."""

    index: int
    name: str
    emulated: bool = False
