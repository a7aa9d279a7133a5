"""Is a pipeline right? Its outputs held against those of a reference, over a list of cases.

Outputs must be equal byte for byte. A config with an `ulp_budget` grants that many units in the last place to floats of
programs whose operations may be approximated, and to nothing else. A program whose results may depend on the schedule
is refused, unless the caller names a comparison that does not depend on it either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ...errors import BackendError, Trap, VyreError
from ...foundation import html
from ...foundation.check.determinism import Determinism
from ...foundation.ir.program import Program
from ..contract.pipeline import CompiledPipeline
from ..contract.values import DEFAULT_CONFIG, DispatchConfig, OutputBuffers
from ..plan.claims import proof_of
from ..plan.launch import plan_dispatch
from ..plan.outputs import OutputSlot
from .compare import Compare, Comparison, Difference, arrangement, compare_outputs

if TYPE_CHECKING:
    from typing_extensions import Buffer

ReferenceExecutor: TypeAlias = "Callable[[Program, Sequence[Buffer], DispatchConfig], OutputBuffers]"
"""A function that gives the right outputs; the `dispatch` of a backend is one."""
_WHAT = {
    "count": "the number of outputs",
    "length": "the length of an output",
    "value": "an output",
    "trap": "the outcome",
}


# ---- what can go wrong ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DivergenceEvent:
    """Everything known about outputs that differ; inputs and outputs are copies.

    `config` decides which result is right. A side that trapped has no outputs, and its trap is in `traps`.
    """

    case_label: str
    program_fingerprint: str
    backend: str
    reference: str
    inputs: tuple[bytes, ...]
    backend_output: tuple[bytes, ...]
    reference_output: tuple[bytes, ...]
    difference: Difference
    program: Program | None = None
    config: DispatchConfig = DEFAULT_CONFIG
    traps: tuple[Trap | None, Trap | None] = (None, None)


class ConformanceError(BackendError):
    """A pipeline was not shown to be right."""

    diagnostic_code = "C-LAW-001"


class EmptyMatrix(ConformanceError):
    """The list of cases is empty, so that it would prove nothing."""


class NotComparable(ConformanceError):
    """Results may depend on the schedule, so two right ones may differ."""

    diagnostic_code = "C-DET-001"


class BackendRejected(ConformanceError):
    """The pipeline under test raised; its error is chained."""


class ReferenceRejected(ConformanceError):
    """The reference raised, so there is nothing to compare with; its error is chained."""


class Diverged(ConformanceError):
    """Outputs differ. The context names the output, the element, both values and the program; `event` has it all."""

    event: DivergenceEvent | None

    def __init__(self, message: str, /, *, fix: str, event: DivergenceEvent | None = None, **context: object) -> None:
        super().__init__(message, fix=fix, **context)
        self.event = event

    def kept_in(self, file: object) -> None:
        """Say where its evidence is."""
        self.context["evidence"] = str(file)
        self.fix = f"run it again where you like: vyre replay {file}"

    def _identity(self) -> tuple[object, ...]:
        return *super()._identity(), self.event


class Exploration(NamedTuple):
    """Whether the order of invocations shows: the outputs, or the trap, that every order gives.

    `reason` says how it shows, and then there are none. `doubt` says how it may: the outputs are those of some orders.
    The compiled pipelines of an oracle may have a method `explore(inputs, config, *, max_steps)` that gives one.
    """

    outputs: OutputBuffers | Trap
    reason: str = ""
    doubt: str = ""


class Stop(NamedTuple):
    """One invocation in front of a line; `done`, behind its last one.

    An oracle may have a method `step(program, inputs, config, invocation)` that gives these in order, and
    `require_no_race(program, inputs, config)`, which raises `RaceDetected`.
    """

    invocation: tuple[int, int, int]
    file: str
    line: int
    text: str
    locals: dict[str, Any]
    done: bool = False


# ---- one comparison -------------------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """That a backend gives, for one program, the outputs of a reference; both by their names."""

    program: Program
    backend: str
    reference: str
    compare: Compare = "bytes"

    def hold(
        self,
        label: str,
        inputs: tuple[bytes, ...],
        found: tuple[bytes, ...] | Trap,
        expected: tuple[bytes, ...] | Trap,
        config: DispatchConfig,
    ) -> int:
        """Raise `Diverged` unless outputs are the same, or both trapped; else how many ulps a budget let pass.

        Which trap is reported first may depend on the schedule.
        """
        if isinstance(found, Trap) or isinstance(expected, Trap):
            if isinstance(found, Trap) and isinstance(expected, Trap):
                return 0
            seen = Comparison(Difference("trap", None, None, None, _trap_or_not(found), _trap_or_not(expected)))
        else:
            budget = config.ulp_budget or 0
            seen = compare_outputs(self.program, found, expected, compare=self.compare, ulp_budget=budget)
        if seen.difference is None:
            return seen.worst_ulps
        program = self.program.fingerprint
        mine, theirs = (() if isinstance(side, Trap) else side for side in (found, expected))
        raise Diverged(
            f"{_WHAT[seen.difference.kind]} of {self.backend} differs from {self.reference}",
            fix=f"report it to the author of backend {self.backend}: error.event has the inputs and both outputs",
            event=DivergenceEvent(
                label,
                program,
                self.backend,
                self.reference,
                inputs,
                mine,
                theirs,
                seen.difference,
                self.program,
                config,
                (found if isinstance(found, Trap) else None, expected if isinstance(expected, Trap) else None),
            ),
            program=program,
            case=label,
            **seen.difference.facts,
        )

    def rejected_by_backend(self, error: Exception, **context: object) -> BackendRejected:
        return BackendRejected(
            f"{self.backend} does not run the case: {in_words(error)}",
            fix="follow the fix of the backend, or correct the case",
            program=self.program.fingerprint,
            **context,
        )

    def rejected_by_reference(self, error: Exception, **context: object) -> ReferenceRejected:
        return ReferenceRejected(
            f"{self.reference} does not run the program: {in_words(error)}",
            fix="follow the fix of the reference, or run this program without it",
            program=self.program.fingerprint,
            **context,
        )


def _trap_or_not(side: tuple[bytes, ...] | Trap) -> str:
    return f"trap {side.context.get('tag')!r}" if isinstance(side, Trap) else "outputs"


def in_words(error: Exception) -> str:
    """The message of an error, without its fix."""
    return error.message if isinstance(error, VyreError) else f"{type(error).__name__}: {error}"


def copied(buffers: Iterable[Buffer | OutputSlot]) -> tuple[bytes, ...]:
    return tuple(memoryview(b.view if isinstance(b, OutputSlot) else b).tobytes() for b in buffers)


def require_comparable(program: Program, compare: Compare = "bytes") -> None:
    """Raise where schedules may change the program's results over any grid, and the comparison would show it."""
    _require(program, proof_of(program), compare)


def require_dispatch_comparable(
    program: Program, compare: Compare, inputs: Sequence[Buffer], config: DispatchConfig
) -> None:
    """The same for one dispatch: a proof may hold for other grids than this one."""
    if arrangement(compare) is None:
        _require(program, proof_of(program, plan_dispatch(program, inputs, config).launch), compare)


def _require(program: Program, proof: Determinism, compare: Compare) -> None:
    if arrangement(compare) is None and proof.verdict == "unproved":
        raise unproved(program, proof)


def unproved(program: Program, proof: Determinism) -> NotComparable:
    return not_comparable(program, f"the program is not proved deterministic: {'; '.join(proof.reasons)}")


def not_comparable(program: Program, why: str) -> NotComparable:
    return NotComparable(
        why,
        fix="remove what depends on the schedule, or name an order-free comparison: compare='unordered' or a function "
        "of your own, with an environment variable VYRE_SHADOW=1,unordered",
        program=program.fingerprint,
    )


# ---- lists of cases -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConformanceCase:
    label: str
    inputs: tuple[Buffer, ...]


@dataclass(slots=True)
class ConformanceMatrix:
    """Cases to check, in order."""

    cases: list[ConformanceCase] = field(default_factory=list)

    def push(self, label: str, inputs: Iterable[Buffer]) -> None:
        self.cases.append(ConformanceCase(label, tuple(inputs)))

    def is_empty(self) -> bool:
        return not self.cases


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """The results of all cases; `worst_ulps` is how far apart floats were that a budget let pass."""

    cases: int
    errors: tuple[ConformanceError, ...]
    worst_ulps: int = 0

    @property
    def ok(self) -> bool:
        return not self.errors

    def _repr_html_(self) -> str:
        rows = [
            (type(e).__name__, e.message, ", ".join(f"{k}={v!r}" for k, v in sorted(e.context.items())), e.fix)
            for e in self.errors
        ]
        return html.page(
            "every case passed" if self.ok else "not shown to be right",
            html.facts([("cases", f"{self.cases:,}"), ("failed", f"{len(rows):,}"), ("worst ulps", self.worst_ulps)]),
            *([html.table(("failure", "what", "where", "fix"), rows)] if rows else []),
        )


def check_matrix(
    pipeline: CompiledPipeline,
    program: Program,
    reference: ReferenceExecutor,
    matrix: ConformanceMatrix,
    config: DispatchConfig = DEFAULT_CONFIG,
    *,
    compare: Compare = "bytes",
) -> ConformanceReport:
    """Run every case once on the pipeline and then on the reference. One that fails does not stop the others."""
    from .evidence import save  # which reads what is defined here

    if matrix.is_empty():
        raise EmptyMatrix("there are no cases to check", fix="push at least one case with its inputs")
    require_comparable(program, compare)
    claim = Claim(program, pipeline.backend_id, "the reference", compare)
    errors: list[ConformanceError] = []
    worst = 0
    for case in matrix.cases:
        try:
            worst = max(worst, _check_case(claim, pipeline, reference, case, config))
        except ConformanceError as e:
            if isinstance(e, Diverged) and e.event is not None and (file := save(e.event)) is not None:
                e.kept_in(file)
            errors.append(e)
    return ConformanceReport(len(matrix.cases), tuple(errors), worst)


def assert_exhaustive_byte_identity(
    pipeline: CompiledPipeline,
    program: Program,
    reference: ReferenceExecutor,
    matrix: ConformanceMatrix,
    config: DispatchConfig = DEFAULT_CONFIG,
) -> None:
    """Raise the first error, after every case has run."""
    report = check_matrix(pipeline, program, reference, matrix, config)
    if not report.ok:
        raise report.errors[0]


def _check_case(
    claim: Claim,
    pipeline: CompiledPipeline,
    reference: ReferenceExecutor,
    case: ConformanceCase,
    config: DispatchConfig,
) -> int:
    inputs = copied(case.inputs)
    try:
        found = copied(pipeline.dispatch(inputs, config))
    except Exception as e:
        raise claim.rejected_by_backend(e, case=case.label) from e
    try:
        require_dispatch_comparable(claim.program, claim.compare, inputs, config)
        expected = copied(reference(claim.program, inputs, config.for_reference()))
    except NotComparable:
        raise
    except Exception as e:
        raise claim.rejected_by_reference(e, case=case.label) from e
    return claim.hold(case.label, inputs, found, expected, config)
