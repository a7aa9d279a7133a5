"""Is it still right? Live dispatches computed again by a reference, all of them or an exact share.

`ShadowedPipeline(main, reference)` shadows one pipeline, the setting `shadow` everything that is dispatched. The caller
gets the outputs of the main pipeline; the reference works on a copy of the inputs, with the lengths that the call
decided, in the thread that asks for the outputs and for at most `shadow_timeout` seconds.

The setting is a share from 0 to 1, followed by `unordered` or `log` where that is wanted: `VYRE_SHADOW=0.01,log`. Every
dispatch reads it; shares are counted by pipeline and config. A share of 1 raises a difference; a smaller one, or `log`,
logs it, and then no dispatch ever fails because of its shadow.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ...errors import ArgumentTypeError, ArgumentValueError, BackendUnavailable
from ...foundation.ir.program import Program
from ..contract.pending import PendingDispatch
from ..contract.pipeline import CompiledPipeline
from ..contract.values import DEFAULT_CONFIG, DispatchConfig, OutputBuffers, TimedDispatchResult
from ..counters import count_decision
from ..execute.pipeline import DriverPipeline
from ..guard.compile import compile
from ..policy.decision import Decision
from ..selection import registry
from ..settings.knobs import DEFAULT, SHADOW, SHADOW_TIMEOUT, ShadowRate
from .cases import (
    BackendRejected,
    ConformanceCase,
    ConformanceError,
    ConformanceMatrix,
    ConformanceReport,
    Diverged,
    DivergenceEvent,
    EmptyMatrix,
    Exploration,
    NotComparable,
    ReferenceExecutor,
    ReferenceRejected,
    assert_exhaustive_byte_identity,
    check_matrix,
)
from .compare import Compare, Difference, compare_outputs
from .evidence import save
from .samples import OnDivergence, Sample, Shadow

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..contract.backend import VyreBackend
    from ..contract.values import ResidentHandle, Resource

__all__ = [
    "BackendRejected",
    "ConformanceCase",
    "ConformanceError",
    "ConformanceMatrix",
    "ConformanceReport",
    "Difference",
    "Diverged",
    "DivergenceEvent",
    "EmptyMatrix",
    "Exploration",
    "NotComparable",
    "ReferenceExecutor",
    "ReferenceRejected",
    "Sample",
    "Shadow",
    "ShadowedPipeline",
    "assert_exhaustive_byte_identity",
    "check_matrix",
    "compare_outputs",
    "shadow_from_env",
]  # fmt: skip


# ---- pipelines ------------------------------------------------------------------------------------------------------


class ShadowedPipeline(CompiledPipeline):
    """The main pipeline, with a reference that computes its dispatches again.

    With the defaults every dispatch is checked and a difference raises; with a share below 1 it is logged, unless
    `on_divergence` asks for something else. `shadow` counts, and keeps the latest divergences. Closing it closes both.
    """

    def __init__(
        self,
        main: CompiledPipeline,
        reference: CompiledPipeline,
        *,
        sample_rate: float = 1.0,
        on_divergence: OnDivergence | None = None,
        compare: Compare = "bytes",
    ) -> None:
        self.program = _program_of(main)
        if _program_of(reference).fingerprint != self.program.fingerprint:
            raise ArgumentValueError(
                "the two pipelines were compiled from different programs", fix="compile one program for both backends"
            )
        self.main, self.reference = main, reference
        self.id, self.backend_id = main.id, main.backend_id
        self.shadow = Shadow(
            self.program,
            reference,
            backend=main.backend_id,
            sample_rate=sample_rate,
            on_divergence=on_divergence,
            compare=compare,
        )

    def dispatch(
        self, inputs: Sequence[Buffer], config: DispatchConfig | None = None, *, out: Sequence[Buffer] | None = None
    ) -> OutputBuffers:
        settled = self._settled(config)
        return self.shadow.around(lambda i, o, _: self.main.dispatch(i, config, out=o), settled)(inputs, out, None)

    def dispatch_timed(
        self, inputs: Sequence[Buffer], config: DispatchConfig | None = None, *, out: Sequence[Buffer] | None = None
    ) -> TimedDispatchResult:
        sample = self.shadow.sample(inputs, self._settled(config), out)
        if sample is None:
            return self.main.dispatch_timed(inputs, config, out=out)
        return sample.checked(lambda: self.main.dispatch_timed(inputs, config, out=out), lambda r: r.outputs)

    def dispatch_async(
        self, inputs: Sequence[Buffer], config: DispatchConfig | None = None, *, out: Sequence[Buffer] | None = None
    ) -> PendingDispatch:
        sample = self.shadow.sample(inputs, self._settled(config), out)
        if sample is None:
            return self.main.dispatch_async(inputs, config, out=out)
        return sample.started(lambda: self.main.dispatch_async(inputs, config, out=out))

    def dispatch_resident(
        self, resources: Sequence[Resource], config: DispatchConfig | None = None
    ) -> list[ResidentHandle]:
        def backend() -> VyreBackend:
            found: VyreBackend = getattr(self.main, "backend")  # noqa: B009 - a pipeline need not have one
            return found

        run = self.shadow.around_resident(
            lambda given: self.main.dispatch_resident(given, config), backend, self._settled(config)
        )
        return run(resources)

    def close(self) -> None:
        self.main.close()
        self.reference.close()

    def _settled(self, config: DispatchConfig | None) -> DispatchConfig:
        """The config that the main pipeline really uses."""
        if isinstance(self.main, DriverPipeline):
            return self.main.settle(config)
        own: DispatchConfig = getattr(self.main, "config", DEFAULT_CONFIG)
        return own if config is None else config


def _program_of(pipeline: CompiledPipeline) -> Program:
    program = getattr(pipeline, "program", None)
    if not isinstance(program, Program):
        raise ArgumentTypeError(
            f"{type(pipeline).__name__} does not say which program it runs",
            fix="pass pipelines that compile(backend, program) returned",
        )
    return program


# ---- the setting ----------------------------------------------------------------------------------------------------

NONE, SOME, ALL = "none", "a share", "all"
_WORDS = {"log": {"on_divergence": "log"}, "unordered": {"compare": "unordered"}}
_opened: tuple[tuple[int, int], VyreBackend] | None = None
"""The open oracle, and the process and the generation of the registry that it belongs to."""


class _NoReference(CompiledPipeline):
    """A program that the oracle does not compile, or that has no oracle: its dispatches say why."""

    def __init__(self, oracle: str, error: Exception) -> None:
        self.id = self.backend_id = oracle
        self._error = error

    def _refuse(self) -> NoReturn:
        self._error.__traceback__ = None  # which would grow with every dispatch
        raise self._error

    def dispatch(
        self, inputs: Sequence[Buffer], config: DispatchConfig | None = None, *, out: Sequence[Buffer] | None = None
    ) -> OutputBuffers:
        self._refuse()

    def explore(self, inputs: Sequence[Buffer], config: DispatchConfig, *, max_steps: int) -> Exploration:
        self._refuse()


def decide_shadow(backend: VyreBackend) -> Decision:
    """Which dispatches an oracle computes again, as the setting asks."""
    asked = SHADOW.setting()
    rate = asked.value.rate
    if asked.origin == DEFAULT:
        return Decision("shadow", NONE, f"{SHADOW.variable} is not set")
    if not rate:
        return Decision("shadow", NONE, f"{asked} asks for none")
    if backend.id in oracles():
        return Decision("shadow", NONE, f"{asked}, and {backend.id} is an oracle: others are compared with it")
    again = "every dispatch" if rate == 1 else "this share of the dispatches"
    return Decision("shadow", ALL if rate == 1 else SOME, f"{asked}: an oracle computes {again} again", {"share": rate})


def shadow_from_env(backend: VyreBackend, program: Program) -> Shadow | None:
    """The shadow that the setting asks for."""
    decided = decide_shadow(backend)
    count_decision(decided)
    if decided.choice == NONE:
        return None
    settings = _settings(SHADOW.value())
    reference: CompiledPipeline
    try:
        oracle = _oracle()
        reference = _compiled(oracle, program)
    except Exception as e:
        if settings["sample_rate"] == 1 and "on_divergence" not in settings:
            raise  # every dispatch shall be checked, and none can be
        reference = _NoReference("no oracle", e)
    return Shadow(program, reference, backend=backend.id, keep=lambda event: save(event, backend), **settings)


def _compiled(oracle: VyreBackend, program: Program) -> CompiledPipeline:
    try:
        return compile(oracle, program)
    except Exception as e:
        return _NoReference(oracle.id, e)


def _settings(asked: ShadowRate) -> dict[str, Any]:
    """Arguments of a shadow."""
    SHADOW_TIMEOUT.value()  # a mistake in it raises now, and not in place of every check
    settings: dict[str, Any] = {"sample_rate": asked.rate}
    for word in asked.words:
        settings |= _WORDS[word]
    return settings


def oracles() -> list[str]:
    """The ids of those that say what is right."""
    everyone = registry.registered_backends_by_precedence()
    return [each.id for each in everyone if each.problem() is None and each.registration.kind == "oracle"]


def _oracle() -> VyreBackend:
    global _opened
    found = oracles()
    if not found:
        raise BackendUnavailable(
            f"{SHADOW.setting()} asks for a shadow and no oracle is registered",
            fix=f"install one, or unset {SHADOW.variable}",
        )
    at = os.getpid(), registry.generation()
    if _opened is None or _opened[0] != at:
        _opened = at, registry.acquire(found[0])
    return _opened[1]
