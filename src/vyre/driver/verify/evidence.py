"""Evidence of dispatches: captured, saved where outputs differ, and run again here, on any backend.

A replay asks whether the program, with these inputs, gives here what it gave there. Since every backend has the same
right answer, the backend that it ran on need not be installed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ArgumentTypeError, BackendUnavailable, UnsupportedFeature, VyreError
from ...foundation import html
from ...foundation.ir.program import Program
from ...foundation.meaning.numerics import NUMERICS_VERSION
from ..contract.backend import VyreBackend
from ..contract.values import DEFAULT_CONFIG, DispatchConfig
from ..guard.compile import compile
from ..observe.evidence import SUFFIX, DispatchTimingEvidence, EvidenceBundle, Machine, Outcome
from ..observe.provenance import SourceProvenance
from ..pipeline.key import digest_of
from ..pipeline.toolchain import toolchain_of
from ..plan.claims import proof_of
from ..plan.launch import plan_dispatch
from ..selection import registry
from ..settings import knobs
from ..settings.knobs import EVIDENCE
from .cases import DivergenceEvent, copied
from .compare import Difference, compare_outputs

if TYPE_CHECKING:
    from typing_extensions import Buffer

MOST_SAVED = 64
"""Files that a process writes by itself."""
SAME, DIFFERENT, CANNOT = "same", "different", "cannot"
_log = logging.getLogger("vyre.evidence")
_saved: set[tuple[int, str]] = set()
"""Processes and files."""


@contextmanager
def alone(**settings: str) -> Iterator[None]:
    """What runs inside is compared with nothing, and leaves no evidence by itself."""
    values = knobs.checked({"shadow": None, "evidence": None, **settings})
    knobs.enter(values)
    try:
        yield
    finally:
        knobs.leave(values)


# ---- capturing ------------------------------------------------------------------------------------------------------


def capture(
    backend: VyreBackend,
    program: Program,
    inputs: Sequence[Buffer],
    config: DispatchConfig | None = None,
    *,
    file: str | None = None,
) -> EvidenceBundle:
    """Dispatch the program once and keep what happened, an error of the dispatch included.

    `file` is where the program was written, so that the evidence says which commit of its author it belongs to.
    """
    config = DEFAULT_CONFIG if config is None else config
    held = copied(inputs)
    timing = DispatchTimingEvidence()
    try:
        with alone():
            timed = compile(backend, program, config).dispatch_timed(held, config)
        timing = DispatchTimingEvidence.from_timed_dispatch(timed)
        outcome = Outcome(backend.id, copied(timed.outputs))
    except VyreError as e:
        outcome = Outcome.raised(backend.id, e)
    return EvidenceBundle(
        program, outcome, SourceProvenance.capture_current(), inputs=held, config=_decisive(config), timing=timing,
        machine=_machine(backend), author=_author(file),
    )  # fmt: skip


def _author(file: str | None) -> SourceProvenance | None:
    if file is None or not os.path.isfile(file):
        return None  # a prompt, say
    found = SourceProvenance.capture_at(os.path.dirname(os.path.abspath(file)))
    return found if "commit" in found.git else None


def evidence_of(event: DivergenceEvent, backend: VyreBackend | None = None) -> EvidenceBundle:
    """What differed, for a file. `backend` is the one that was checked, where it is at hand."""
    if event.program is None:
        raise ArgumentTypeError("this event does not have its program", fix="take it from the error that was raised")
    sides = (event.backend, event.backend_output), (event.reference, event.reference_output)
    outcome, expected = (
        Outcome(by, outputs) if trap is None else Outcome.raised(by, trap)
        for (by, outputs), trap in zip(sides, event.traps, strict=True)
    )
    return EvidenceBundle(
        event.program, outcome, SourceProvenance.capture_current(), inputs=event.inputs, expected=expected,
        config=_decisive(event.config), machine=Machine() if backend is None else _machine(backend),
    )  # fmt: skip


def _decisive(config: DispatchConfig) -> DispatchConfig:
    """What of a config decides which results are right."""
    return config.for_reference().with_(label=None, ulp_budget=config.ulp_budget)


def _machine(backend: VyreBackend) -> Machine:
    return Machine(backend.version, backend.device_profile().device, toolchain_of(backend))


def save(event: DivergenceEvent, backend: VyreBackend | None = None) -> Path | None:
    """Write the evidence into the folder that the setting names, if it names one."""
    return keep(lambda: evidence_of(event, backend))


def keep(make: Callable[[], EvidenceBundle]) -> Path | None:
    """Write what `make` gives into the folder that the setting `evidence` names; None where it names none, or where
    that fails: this is logged, and nothing else fails because of it."""
    folder = EVIDENCE.value()
    if folder is None:
        return None
    try:
        bundle = make()
        assert bundle.replay is not None
        gave = digest_of(bundle.replay.capsule_digest, *bundle.outcome.outputs).hex()
        name = f"{bundle.program_digest[:12]}-{bundle.backend_id}-{gave[:8]}{SUFFIX}"
        key = os.getpid(), name  # the same answer to the same dispatch has one file
        if key not in _saved and len(_saved) >= MOST_SAVED:
            return None
        os.makedirs(folder, mode=0o700, exist_ok=True)
        path = bundle.write(Path(folder, name))
        _saved.add(key)
        return path
    except (VyreError, OSError, MemoryError) as e:
        _log.warning("the evidence of a difference was not saved: %s", e)
        return None


# ---- replaying ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replayed:
    """What running it again shows. `verdict` is `same`, `different` or `cannot`; `why` says more of the last.

    `difference` is the first one to what was recorded. `as_expected`: whether this run gave what the reference gave
    then, where outputs had been compared. `notes` say why the two may differ although no backend is wrong.
    """

    verdict: str
    backend: str
    device: str = ""
    why: str = ""
    outcome: Outcome | None = None
    difference: Difference | None = None
    as_expected: bool | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.verdict}: {self.why}" if self.why else self.verdict, *self.notes]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html.page(self.verdict, html.facts([("on", self.backend), ("why", self.why or "")]))


def require_bundle(what: str, given: object) -> None:
    """Raise where `what` was given something else, such as the path of a file."""
    if not isinstance(given, EvidenceBundle):
        raise ArgumentTypeError(
            f"{what}() got a {type(given).__name__}", fix='read the file first: EvidenceBundle.read("FILE")'
        )


def replay(bundle: EvidenceBundle, backend: str | None = None, *, timeout: float | None = None) -> Replayed:
    """Run what the evidence holds, on the backend of that name, or the one that a call would choose."""
    require_bundle("replay", bundle)
    named = backend or "any backend"
    if bundle.inputs is None:
        return Replayed(CANNOT, named, why="the inputs were left out of the evidence; only their digests are there")
    try:
        if backend is None:
            found = registry.select(bundle.program, allow_oracle=True).backend
        else:
            found = registry.acquire(backend)
    except (BackendUnavailable, UnsupportedFeature) as e:
        return Replayed(CANNOT, named, why=str(e))
    try:
        return _replayed(bundle, found, bundle.inputs, timeout)
    finally:
        found.shutdown()


def _replayed(bundle: EvidenceBundle, backend: VyreBackend, inputs: Sequence[bytes], timeout: float | None) -> Replayed:
    config = bundle.config.with_(timeout=timeout)
    try:
        with alone():
            found = compile(backend, bundle.program, config).dispatch(inputs, config)
        outcome = Outcome(backend.id, copied(found))
    except (BackendUnavailable, UnsupportedFeature) as e:
        return Replayed(CANNOT, backend.id, why=str(e))
    except VyreError as e:
        outcome = Outcome.raised(backend.id, e)
    then = bundle.outcome
    difference = _first_difference(bundle, outcome, then)
    is_same = _same(bundle, outcome, then)
    why = "" if is_same else _in_words(bundle, outcome, then, difference)
    return Replayed(
        SAME if is_same else DIFFERENT,
        backend.id,
        backend.device_profile().device,
        why,
        outcome,
        difference,
        None if bundle.expected is None else _same(bundle, outcome, bundle.expected),
        () if is_same else tuple(_doubts(bundle, inputs)),
    )


def _first_difference(bundle: EvidenceBundle, found: Outcome, expected: Outcome) -> Difference | None:
    if found.error is not None or expected.error is not None:
        return None
    budget = bundle.config.ulp_budget or 0
    return compare_outputs(bundle.program, found.outputs, expected.outputs, ulp_budget=budget).difference


def _same(bundle: EvidenceBundle, found: Outcome, expected: Outcome) -> bool:
    """Of errors, the name counts: which invocation traps first may depend on the schedule."""
    if found.error is not None or expected.error is not None:
        return found.error is not None and expected.error is not None and found.error["name"] == expected.error["name"]
    return _first_difference(bundle, found, expected) is None


def _in_words(bundle: EvidenceBundle, found: Outcome, then: Outcome, difference: Difference | None) -> str:
    if difference is None:
        return f"{found.by} gives {found}; {then.by} gave {then}"
    where = f"element {difference.element} of {difference.output}" if difference.output else "the outputs"
    if difference.kind != "value":
        where = f"the {'number' if difference.kind == 'count' else 'length'} of {difference.output or 'the outputs'}"
    facts = difference.facts
    return f"{where}: {found.by} gives {facts['found']}, {then.by} gave {facts['expected']}"


def _doubts(bundle: EvidenceBundle, inputs: Sequence[bytes]) -> list[str]:
    """Why outputs may differ although every backend is right."""
    doubts = []
    if bundle.numerics_version != NUMERICS_VERSION:
        doubts.append(
            f"defined results changed since: numerics version {bundle.numerics_version} then, {NUMERICS_VERSION} now"
        )
    try:
        proof = proof_of(bundle.program, plan_dispatch(bundle.program, inputs, bundle.config).launch)
    except VyreError:
        return doubts
    if proof.verdict == "unproved":
        doubts.append(f"the order of invocations may be why: {'; '.join(proof.reasons)}")
    return doubts
