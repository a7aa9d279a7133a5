"""Is it still right? Live dispatches computed again by a reference, all of them or an exact share.

`ShadowedPipeline(main, reference)` shadows one pipeline, the setting `shadow` everything that is dispatched. The caller
gets the outputs of the main pipeline; the reference works on a copy of the inputs. How outputs are compared, and which
programs can be, is said in `conformance`.

The setting is a share from 0 to 1, followed by `unordered` or `log` where that is wanted: `VYRE_SHADOW=0.01,log`. Every
dispatch reads it; shares are counted by pipeline and config. A deadline bounds the main dispatch and not the reference.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ..errors import ArgumentTypeError, ArgumentValueError, BackendUnavailable, UnsupportedFeature, VyreError
from ..foundation import html
from ..foundation.program import Program
from . import registry
from .compare import Compare, Difference, compare_outputs
from .conformance import (
    BackendRejected,
    Claim,
    ConformanceCase,
    ConformanceError,
    ConformanceMatrix,
    ConformanceReport,
    Diverged,
    DivergenceEvent,
    EmptyMatrix,
    NotComparable,
    ReferenceExecutor,
    ReferenceRejected,
    assert_exhaustive_byte_identity,
    check_matrix,
    copied,
    reference_config,
    require_comparable,
    require_dispatch_comparable,
)
from .contract import CompiledPipeline, OutputBuffers, PendingDispatch
from .diagnostics import from_error
from .execute import DriverPipeline, Run, count_shadow, named
from .pipeline import compile
from .settings import SHADOW
from .values import DEFAULT_CONFIG, DispatchConfig, TimedDispatchResult

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .contract import VyreBackend
    from .values import ResidentHandle, Resource

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

KEPT_EVENTS = 8
"""Divergences that a shadow remembers, the latest; each holds copies of inputs and outputs."""
OnDivergence: TypeAlias = "str | Callable[[ConformanceError], None]"
"""`raise`, `log`, or what to call with the error."""
_log = logging.getLogger("vyre.shadow")


# ---- one shadow -----------------------------------------------------------------------------------------------------


class Shadow:
    """What the outputs of one program are held against, how often, and what was seen so far.

    The first dispatch is sampled and then, evenly, as many as `sample_rate` says.
    """

    def __init__(
        self,
        program: Program,
        reference: CompiledPipeline,
        *,
        backend: str,
        sample_rate: float = 1.0,
        on_divergence: OnDivergence = "raise",
        compare: Compare = "bytes",
    ) -> None:
        """`backend` is the id of what is checked."""
        self._share = _share(sample_rate)
        if not callable(on_divergence) and on_divergence not in ("raise", "log"):
            raise ArgumentValueError(
                f"on_divergence={on_divergence!r} is no reaction",
                fix="use raise, log or a function that takes the error",
            )
        self._on_divergence = on_divergence
        require_comparable(program, compare)
        self.reference, self.claim = reference, Claim(program, backend, reference.backend_id, compare)
        self._dispatches = itertools.count()  # stepping it takes no lock
        self._lock = threading.Lock()
        self.samples = self.divergences = self.worst_ulps = 0
        self.events: deque[DivergenceEvent] = deque(maxlen=KEPT_EVENTS)

    def _repr_html_(self) -> str:
        rows = ((e.case_label, e.difference.kind, e.difference.output, e.difference.element) for e in self.events)
        return html.page(
            f"shadow of {self.claim.backend} by {self.claim.reference}",
            html.facts(
                [
                    ("program", self.claim.program.fingerprint),
                    ("share", self._share),
                    ("checked", f"{self.samples:,}"),
                    ("differ", f"{self.divergences:,}"),
                    ("worst ulps", self.worst_ulps),
                ]
            ),
            *([html.table(("case", "what differs", "output", "element"), rows)] if self.events else []),
        )

    def around(self, run: Run, config: DispatchConfig) -> Run:
        """`run` with its outputs checked, as often as it is their turn."""

        def watched(inputs: Sequence[Buffer], out: Sequence[Buffer] | None) -> OutputBuffers:
            sample = self.sample(inputs, config)
            outputs = run(inputs, out)
            if sample is not None:
                sample.check(outputs)
            return outputs

        return watched

    def sample(self, inputs: Sequence[Buffer], config: DispatchConfig) -> Sample | None:
        """Before a dispatch: what to hand its outputs to, or None when it is not this one's turn."""
        wanted, of = self._share.numerator, self._share.denominator
        if next(self._dispatches) * wanted % of >= wanted:
            return None
        given: object = inputs
        if not isinstance(given, Sequence):
            return None  # looking at an iterator would use it up; the dispatch refuses it
        try:
            return Sample(self, copied(given), config)
        except (TypeError, ValueError, BufferError):
            return None  # the dispatch says what is wrong with them

    def check(self, inputs: tuple[bytes, ...], outputs: OutputBuffers, config: DispatchConfig) -> None:
        """Hold outputs against the reference, and react."""
        begun = time.perf_counter_ns()
        error: ConformanceError | None = None
        ulps = 0
        try:
            with named(config.label):
                require_dispatch_comparable(self.claim.program, self.claim.compare, inputs, config)
                ulps = self.claim.hold("live", inputs, copied(outputs), self._expected(inputs, config), config)
        except ConformanceError as e:
            error = e
        finally:
            self._count(error, ulps, time.perf_counter_ns() - begun)
        if error is not None:
            self._react(error)

    def no_resident(self) -> UnsupportedFeature:
        return UnsupportedFeature(
            "a shadow compares bytes on the host, and resident outputs stay on the device",
            fix=f"dispatch with host buffers, or without a shadow (unset {SHADOW.variable})",
            name="shadowed resident dispatch",
            backend=self.claim.backend,
        )

    def _expected(self, inputs: Sequence[Buffer], config: DispatchConfig) -> tuple[bytes, ...]:
        try:
            return copied(self.reference.dispatch(inputs, reference_config(config)))
        except Exception as e:
            raise self.claim.rejected_by_reference(e) from e

    def _count(self, error: ConformanceError | None, ulps: int, elapsed_ns: int) -> None:
        diverged = isinstance(error, Diverged)
        with self._lock:
            self.samples += 1
            self.divergences += diverged
            self.worst_ulps = max(self.worst_ulps, ulps)
        if isinstance(error, Diverged) and error.event is not None:
            self.events.append(error.event)
        count_shadow(elapsed_ns, diverged=diverged)

    def _react(self, error: ConformanceError) -> None:
        if callable(self._on_divergence):
            self._on_divergence(error)
        elif self._on_divergence == "log":
            _log.warning("%s", from_error(error).render_human())
        else:
            raise error


class Sample(NamedTuple):
    """One dispatch that is to be checked, with its inputs as they were before it."""

    shadow: Shadow
    inputs: tuple[bytes, ...]
    config: DispatchConfig

    def check(self, outputs: OutputBuffers) -> None:
        self.shadow.check(self.inputs, outputs, self.config)

    def after(self, pending: PendingDispatch) -> PendingDispatch:
        """A started dispatch that is checked when its outputs are here."""
        return _SampledPending(pending, self)


class _SampledPending(PendingDispatch):
    def __init__(self, pending: PendingDispatch, sample: Sample) -> None:
        super().__init__()
        self._pending, self._sample = pending, sample
        self._came: OutputBuffers | None = None  # kept, so that a divergence can be repeated

    def is_ready(self) -> bool:
        return self._pending.is_ready()

    def _wait(self, timeout: float | None) -> OutputBuffers:
        if self._came is None:
            self._came = self._pending.result(timeout)
        self._sample.check(self._came)
        return self._came


def _share(rate: Any) -> Fraction:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
        raise ArgumentValueError(f"sample_rate={rate!r} is no share", fix="pass a number from 0 to 1")
    return Fraction(rate).limit_denominator(1_000_000) or Fraction(rate)  # a small share is still one


# ---- pipelines ------------------------------------------------------------------------------------------------------


class ShadowedPipeline(CompiledPipeline):
    """The main pipeline, with a reference that computes its dispatches again.

    With the defaults every dispatch is checked and a difference raises. `shadow` counts, and keeps what was seen.
    Closing it closes both.
    """

    def __init__(
        self,
        main: CompiledPipeline,
        reference: CompiledPipeline,
        *,
        sample_rate: float = 1.0,
        on_divergence: OnDivergence = "raise",
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
        self,
        inputs: Sequence[Buffer],
        config: DispatchConfig | None = None,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> OutputBuffers:
        settled = self._settled(config)
        return self.shadow.around(lambda i, o: self.main.dispatch(i, config, out=o), settled)(inputs, out)

    def dispatch_timed(
        self,
        inputs: Sequence[Buffer],
        config: DispatchConfig | None = None,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> TimedDispatchResult:
        sample = self.shadow.sample(inputs, self._settled(config))
        result = self.main.dispatch_timed(inputs, config, out=out)
        if sample is not None:
            sample.check(result.outputs)
        return result

    def dispatch_async(
        self,
        inputs: Sequence[Buffer],
        config: DispatchConfig | None = None,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> PendingDispatch:
        sample = self.shadow.sample(inputs, self._settled(config))
        pending = self.main.dispatch_async(inputs, config, out=out)
        return pending if sample is None else sample.after(pending)

    def dispatch_resident(
        self, resources: Sequence[Resource], config: DispatchConfig | None = None
    ) -> list[ResidentHandle]:
        raise self.shadow.no_resident()

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

_WORDS = {"log": {"on_divergence": "log"}, "unordered": {"compare": "unordered"}}
_oracle: tuple[int, VyreBackend] | None = None
"""The open oracle, and the generation of the registry that it belongs to."""


def shadow_from_env(backend: VyreBackend, program: Program) -> Shadow | None:
    """The shadow that the setting asks for. Oracles have none: they are what others are held against."""
    settings = _settings()
    if not settings or (oracle := _oracle_for(backend)) is None:
        return None
    compare = settings.get("compare", "bytes")
    require_comparable(program, compare)
    try:
        reference = compile(oracle, program)
    except VyreError as e:
        raise Claim(program, backend.id, oracle.id).rejected_by_reference(e) from e
    return Shadow(program, reference, backend=backend.id, **settings)


def _settings() -> dict[str, Any]:
    """Arguments of a shadow; none where there shall be none."""
    asked = SHADOW.value()
    if not asked.rate:
        return {}
    settings: dict[str, Any] = {"sample_rate": asked.rate}
    for word in asked.words:
        settings |= _WORDS[word]
    return settings


def _oracle_for(backend: VyreBackend) -> VyreBackend | None:
    global _oracle
    oracles = [
        listing
        for listing in registry.registered_backends_by_precedence()
        if listing.problem() is None and listing.registration.kind == "oracle"
    ]
    if any(listing.id == backend.id for listing in oracles):
        return None
    if not oracles:
        raise BackendUnavailable(
            f"{SHADOW.setting()} asks for a shadow and no oracle is registered",
            fix=f"install one, or unset {SHADOW.variable}",
        )
    at = registry.generation()
    if _oracle is None or _oracle[0] != at:
        _oracle = at, registry.acquire(oracles[0].id)
    return _oracle[1]
