"""Running a program on chosen terms: which engine, which schedule, which limits, and whether races are looked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ....driver.plan.grid import check_grid
from ....errors import ArgumentValueError, InvalidProgram, UnsupportedFeature
from ....foundation.check.validate import validate
from ....foundation.ir import nodes as ir
from ....foundation.ir.ops import OpaqueOp
from ....foundation.ir.program import Program
from ....foundation.ir.report import Capabilities
from ....foundation.ir.visit import walk
from ....foundation.meaning import mathlib
from ....foundation.meaning.own_arrays import in_workgroup_memory
from . import scalar
from .memory import Grid, Memory, OobReport, Options, Outcome, Schedule
from .races import Race, race_detected

if TYPE_CHECKING:
    from typing_extensions import Buffer

ENGINES = ("auto", "numpy", "scalar")


@dataclass(frozen=True, slots=True)
class RunResult:
    """`outputs` are in the order of `program.host_outputs`, cut to their output ranges."""

    outputs: list[bytearray]
    oob: OobReport = field(default_factory=OobReport)
    races: tuple[Race, ...] = ()
    steps: int = 0


def run(
    program: Program,
    inputs: Sequence[Buffer],
    *,
    grid: Grid,
    output_elements: Mapping[str, int] | None = None,
    engine: str = "auto",
    schedule: Schedule | str = "forward",
    max_steps: int | None = None,
    detect_races: bool = False,
    raise_on_race: bool = False,
    deadline: float | None = None,
) -> RunResult:
    """Run `program` over `grid` workgroups.

    Inputs go by slot order and are neither changed nor shared with the outputs. `deadline` is a reading of
    `time.monotonic()`. The engine "auto" is NumPy where that can do the job, else scalar, which alone knows schedules
    and races. A program that takes its grid from memory ignores `grid`.
    """
    options = Options(Schedule.of(schedule), max_steps, detect_races or raise_on_race, deadline)
    require_valid(program)
    memory = Memory.build(program, inputs, output_elements)
    outcome = execute(program, memory, _checked_grid(program, memory, grid), options, engine)
    if outcome.trap is not None:
        raise outcome.trap
    if raise_on_race and outcome.races:
        raise race_detected(outcome.races)
    return RunResult(memory.outputs(), outcome.oob, outcome.races, outcome.steps)


def require_valid(program: Program) -> None:
    """Raise unless the program is valid and this backend knows all of it. Asked once per program object."""
    program._cached("reference.valid", lambda: _require_valid(program))


def _require_valid(program: Program) -> bool:
    for item in walk(program.entry):
        match item:
            case ir.Call(op_id=op_id):
                raise _unsupported(f"a call of {op_id}", "inline the operation before dispatch")
            case ir.Opaque(kind=kind) | ir.OpaqueNode(kind=kind):
                raise _unsupported(f"the extension {kind}", "lower it to core operations first")
            case ir.BinOp(op=OpaqueOp() as op) | ir.UnOp(op=OpaqueOp() as op) | ir.Atomic(op=OpaqueOp() as op):
                raise _unsupported(f"the operator {op.text}", "lower it to core operations first")
    issues = validate(program, Capabilities.everything())
    errors = tuple(issue for issue in issues if issue.severity == "error")
    if errors:
        more = f" and {len(errors) - 1} more" if len(errors) > 1 else ""
        raise InvalidProgram(
            f"{errors[0].code.value}: {errors[0].message}{more}", fix=errors[0].fix, issues=errors, path=errors[0].path
        )
    return True


def _unsupported(what: str, fix: str) -> UnsupportedFeature:
    return UnsupportedFeature(f"the reference backend does not run {what}", fix=fix, backend="reference")


def _checked_grid(program: Program, memory: Memory, grid: Grid) -> Grid:
    if min(grid) < 0:
        raise ArgumentValueError(f"there are no {min(grid)} workgroups", fix="use 0 or more along every axis")
    return check_grid(memory.indirect_grid() or grid, program.workgroup_size)


def execute(program: Program, memory: Memory, grid: Grid, options: Options, engine: str = "auto") -> Outcome:
    """Run a valid program, changing `memory` in place."""
    if engine not in ENGINES:
        raise ArgumentValueError(f"{engine!r} is not an engine", fix=f"use one of: {', '.join(ENGINES)}")
    from . import numpy_engine  # NumPy starts threads of its own when it is loaded

    program = mathlib.expand(in_workgroup_memory(program))
    memory = Memory(program, memory.buffers)
    plain = options.schedule == Schedule() and not options.detect_races
    if engine == "numpy" and not plain:
        raise UnsupportedFeature(
            "the NumPy engine has one schedule and sees no races", fix='use engine="scalar", or "auto"'
        )
    if engine == "numpy" or (engine == "auto" and plain and numpy_engine.can_run(program, grid) is None):
        outcome = numpy_engine.execute(program, memory, grid, options)
    else:
        outcome = scalar.execute(program, memory, grid, options)
    if outcome.trap is not None and not options.detect_races:
        raise outcome.trap
    return outcome
