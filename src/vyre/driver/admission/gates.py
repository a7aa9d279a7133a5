"""May this program be compiled at all? Rules of the process, asked once per program.

A gate looks at a program and allows or denies it. The gates that are installed are asked in order by every compilation;
their verdict on a program is remembered for as long as the same gates are installed.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ...errors import ArgumentTypeError, ArgumentValueError, DispatchFailed, InvalidProgram, VyreError, WireError
from ...foundation.forking import in_child
from ...foundation.memo import keep

if TYPE_CHECKING:
    from ...foundation.ir.program import Program

REMEMBERED = 8192


@dataclass(frozen=True, slots=True)
class Allow:
    """The program may be compiled."""


@dataclass(frozen=True, slots=True)
class Deny:
    """It may not: `policy` names the rule, `detail` says what to do, beginning with `Fix:`."""

    policy: str
    detail: str

    def __post_init__(self) -> None:
        marker, _, fix = self.detail.partition(":")
        if marker != "Fix" or not fix.strip(" ."):
            raise ArgumentValueError(
                f"policy {self.policy} denies without saying what to do", fix='pass detail="Fix: ..."'
            )


EnforceVerdict: TypeAlias = Allow | Deny


class EnforceGate(ABC):
    """A rule about programs. `a & b` asks `b` only about programs that `a` allows."""

    name: str

    @abstractmethod
    def evaluate(self, program: Program) -> EnforceVerdict:
        """The same verdict for the same program, without any other effect."""

    def __and__(self, other: EnforceGate) -> Chain:
        return Chain(self, other)


class Chain(EnforceGate):
    """Gates in order; the first that denies decides."""

    name = "chain"

    def __init__(self, *gates: EnforceGate) -> None:
        for gate in gates:
            _check_gate(gate)
        self.gates = gates

    def evaluate(self, program: Program) -> EnforceVerdict:
        for gate in self.gates:
            verdict = _ask(gate, program)
            if isinstance(verdict, Deny):
                return verdict
        return Allow()


class RegistryGate(EnforceGate):
    """Only operations that are known: `known` holds their ids, or gives them when asked."""

    name = "registry"

    def __init__(self, known: Collection[str] | Callable[[], Collection[str]]) -> None:
        self._known = known

    def evaluate(self, program: Program) -> EnforceVerdict:
        known = self._known() if callable(self._known) else self._known
        unknown = sorted(program.ops() - frozenset(known))
        if not unknown:
            return Allow()
        return Deny(self.name, f"Fix: register {', '.join(unknown)}, or leave the operation out of the program")


# ---- what is installed ----------------------------------------------------------------------------------------------


class GateSet:
    """The gates that hold together, and their verdicts."""

    def __init__(self, gate: Chain) -> None:
        self.gate = gate
        self._lock = threading.Lock()
        self._verdicts: dict[str, EnforceVerdict] = {}

    def verdict(self, program: Program) -> EnforceVerdict:
        try:
            key = program.fingerprint
        except WireError:
            return self.gate.evaluate(program)  # a program without bytes; admission raises its error
        with self._lock:
            known = self._verdicts.get(key)
        if known is None:
            known = self.gate.evaluate(program)
            with self._lock:
                keep(self._verdicts, key, known, REMEMBERED)
        return known

    def renew_lock(self) -> None:
        self._lock = threading.Lock()


_current = GateSet(Chain())


def gates() -> GateSet:
    """Those that are installed now; another object after every change."""
    return _current


def install(gate: EnforceGate) -> None:
    """Ask this gate too, after those that are installed, about everything that is compiled from now on."""
    global _current
    _check_gate(gate)
    _current = GateSet(Chain(*_current.gate.gates, gate))


@contextmanager
def isolated_gates(*gates: EnforceGate) -> Iterator[None]:
    """For tests: these gates are all there are, in every thread, until the block ends."""
    global _current
    before, _current = _current, GateSet(Chain(*gates))
    try:
        yield
    finally:
        _current = before


def enforce(program: Program) -> None:
    """Raise unless the installed gates allow the program."""
    if not _current.gate.gates:
        return
    verdict = _current.verdict(program)
    if isinstance(verdict, Deny):
        raise InvalidProgram(f"policy {verdict.policy} denies the program", fix=verdict.detail, policy=verdict.policy)


def _ask(gate: EnforceGate, program: Program) -> EnforceVerdict:
    try:
        verdict: object = gate.evaluate(program)
    except VyreError:
        raise
    except Exception as e:
        raise DispatchFailed(
            f"gate {gate.name} raised {type(e).__name__}: {e}", fix="correct the gate, which answers Allow() or Deny()"
        ) from e
    if isinstance(verdict, EnforceVerdict):
        return verdict
    raise ArgumentTypeError(
        f"gate {gate.name} answers with {type(verdict).__name__}", fix="return Allow() or Deny(policy, detail)"
    )


def _check_gate(gate: object) -> None:
    if not isinstance(gate, EnforceGate):
        raise ArgumentTypeError(f"{type(gate).__name__} is not a gate", fix="pass a subclass of EnforceGate")


in_child(lambda: _current.renew_lock())  # the thread that held it is not in the child
