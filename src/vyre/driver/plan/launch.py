"""The launch itself: everything a backend needs to know for one dispatch, in one call.

    plan = plan_dispatch(program, inputs, config)
    plan.bindings   which buffer goes where, with its length
    plan.launch     workgroup, grid, parameter words
    plan.outputs    what to read back
    plan.iterations how often to launch

A plan depends on the byte lengths of the inputs and not on their contents, unless `plan.indirect` says that the grid
came from memory; so it can be kept and used again for other inputs of the same lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...errors import InvalidProgram
from ...foundation.ir.program import Program
from ..contract.pipeline import Key
from ..contract.values import DEFAULT_CONFIG, DispatchConfig
from ..policy.decision import Decision
from ..policy.geometry import choose_workgroup, grid_from
from .binding import BindingPlan, byte_lengths
from .bounds import Checked
from .compaction import CountedOutput, counted_outputs
from .grid import (
    Grid,
    LaunchGeometryLimits,
    axes_of,
    check_grid,
    dispatch_element_count_for_program,
    dispatch_param_words,
    find_indirect_dispatch,
    infer_dispatch_grid,
    resolve_indirect_grid,
    validate_launch_geometry,
    why_element_count,
    why_workgroup_is_fixed,
)
from .outputs import (
    OutputBindingLayout,
    OutputSlot,
    check_outputs,
    check_outputs_apart,
    enforce_output_budget,
    output_binding_layouts,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

_LAUNCH = Checked("a launch must fit in u32", fix="use a smaller grid_override")
_ONE: Grid = (1, 1, 1)


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One launch. `param_words` are the element count and then, at slot + 1, the length of each bound buffer.

    `decisions` are those about its workgroup and its grid, and about determinism where the caller demands it.
    """

    element_count: int = 1
    workgroup: Grid = _ONE
    grid: Grid = _ONE
    param_words: tuple[int, ...] = ()
    max_binding_alignment: int = 1
    decisions: tuple[Decision, ...] = field(default=(), compare=False)

    @classmethod
    def prepare(
        cls,
        program: Program,
        bindings: BindingPlan,
        config: DispatchConfig = DEFAULT_CONFIG,
        limits: LaunchGeometryLimits | None = None,
        *,
        indirect: Grid | None = None,
        backend: str = "",
    ) -> LaunchPlan:
        """The launch of a program over sized bindings. `indirect` is a grid from memory: it wins, and may be empty."""
        backend = backend or (limits.backend if limits is not None else "")
        workgroup = resolve_workgroup(program, config)
        validate_launch_geometry(workgroup, _ONE, limits)
        grid = config.grid_override if indirect is None else indirect
        if grid is None:
            elements = dispatch_element_count_for_program(program, bindings.bindings)
            grid = infer_dispatch_grid(elements, workgroup, backend, axes=axes_of(program))
            covers = f"{why_element_count(program, bindings.bindings)}, in workgroups of {workgroup[0]}"
            decided = grid_from(grid, covers=covers)
        else:
            if indirect is None and not all(grid):
                raise InvalidProgram(
                    f"grid_override {grid} must be non-zero on every axis: zero-sized grid dimensions",
                    fix="use 1 or more on every axis, or do not dispatch",
                    **config.labelled,
                )
            check_grid(grid, workgroup)
            source = None if indirect is None else find_indirect_dispatch(program)
            memory = None if source is None else source.count_buffer
            decided = grid_from(grid, memory=memory, given="grid_override")
            elements = _LAUNCH.mul(grid[0], workgroup[0], "element_count", 32)
        if all(grid):
            validate_launch_geometry(workgroup, grid, limits)
        launch = cls(
            elements,
            workgroup,
            grid,
            dispatch_param_words(bindings.bindings, elements),
            max((b.preferred_alignment for b in bindings.bindings), default=1),
            (choose_workgroup(program.workgroup_size, config.workgroup_override), decided),
        )
        if config.determinism is None:
            return launch
        from .claims import require_proof  # which loads the prover

        proved = require_proof(program, launch, config, indirect=indirect is not None)
        return replace(launch, decisions=(*launch.decisions, proved))


@dataclass(frozen=True, slots=True)
class PlannedDispatch:
    """What one dispatch binds, launches and reads back. `indirect`: its grid was read from this call's inputs.

    Of outputs that are `counted` only what counts is read back.
    """

    bindings: BindingPlan
    launch: LaunchPlan
    outputs: tuple[OutputBindingLayout, ...]
    iterations: int = 1
    indirect: bool = False
    counted: tuple[CountedOutput, ...] = ()

    @property
    def output_bytes(self) -> int:
        return sum(o.layout.read_size for o in self.outputs)


def plan_dispatch(
    program: Program,
    inputs: Sequence[Buffer],
    config: DispatchConfig = DEFAULT_CONFIG,
    limits: LaunchGeometryLimits | None = None,
    backend: str = "",
    *,
    out: Sequence[Buffer | OutputSlot] | None = None,
) -> PlannedDispatch:
    """Plan one dispatch. Raises ArgumentValueError for the caller's arguments, InvalidProgram for all else.

    `out` are the caller's buffers for the outputs: one that is not a slot must have exactly its output's length, and
    tells the length of an output that nothing else sizes.
    """
    iterations = resolve_fixpoint_iterations(config, backend)
    out_lengths = None
    if out is not None:
        out_lengths = [None if isinstance(o, OutputSlot) else byte_lengths((o,))[0] for o in out]
    bindings = BindingPlan.build(program).sized(byte_lengths(inputs), config.output_elements, out_lengths=out_lengths)
    indirect = resolve_indirect_grid(program, inputs)
    launch = LaunchPlan.prepare(program, bindings, config, limits, indirect=indirect, backend=backend)
    outputs = output_binding_layouts(bindings)
    counted = counted_outputs(bindings, config.output_lengths)
    plan = PlannedDispatch(bindings, launch, outputs, iterations, indirect is not None, counted if out is None else ())
    enforce_output_budget(config, plan.output_bytes)
    if out is not None:
        check_outputs(out, outputs)
    return plan


def lengths(
    inputs: Sequence[Buffer], out: Sequence[Buffer] | None, grid: Grid | None = None, check_out: bool = True
) -> Key | None:
    """The key of a kept plan: the grid that comes with the call, the lengths of the inputs, then None and those of the
    caller's outputs. `check_out`: outputs that share memory with each other are refused.

    None, which is never a key, where one of the two is not a list; looking at an iterator would use it up. Memory
    that cannot be written has -1, which is never part of a key either.
    """
    kind = type(inputs)
    if kind is not list and kind is not tuple:
        return None
    found: list[Grid | int | None] = [grid]  # in plain loops: a comprehension costs a warm call 0.1 us more
    for b in inputs:
        found.append(len(b) if type(b) is bytes else memoryview(b).nbytes)
    if out is not None:
        kind = type(out)
        if kind is not list and kind is not tuple:
            return None
        if check_out and len(out) > 1:
            check_outputs_apart(out)
        found.append(None)
        for b in out:
            view = memoryview(b)
            found.append(view.nbytes if view.c_contiguous and not view.readonly else -1)
    return tuple(found)


def resolve_workgroup(program: Program, config: DispatchConfig) -> Grid:
    """The workgroup to launch: the caller's, where the program cannot tell the difference, else the declared one."""
    declared, asked = program.workgroup_size, config.workgroup_override
    if asked is None or asked == declared:
        return declared
    if why := why_workgroup_is_fixed(program):
        raise InvalidProgram(
            f"workgroup_override {asked} is refused: the program uses {why}, which depends on its workgroup {declared}",
            fix="drop workgroup_override, or build the program with that workgroup",
            **config.labelled,
        )
    return asked


def as_launched(program: Program, config: DispatchConfig) -> Program:
    """The program with the workgroup that it is launched with."""
    size = resolve_workgroup(program, config)
    if size == program.workgroup_size:
        return program
    return program._cached(("workgroup", size), lambda: program.replace(workgroup_size=size))


def resolve_fixpoint_iterations(config: DispatchConfig, backend: str = "") -> int:
    """How often a dispatch launches its program over the same memory."""
    asked = config.fixpoint_iterations
    if asked == 0:
        raise InvalidProgram(
            f"fixpoint_iterations must be at least 1: backend {backend} has no zero-iteration dispatch",
            fix="pass 1 or more, or leave it out",
            **config.labelled,
        )
    return asked or 1
