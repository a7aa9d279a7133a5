"""What may be claimed of a dispatch before it runs: the same bytes in every order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import InvalidProgram
from ...foundation.check.determinism import Determinism, determinism
from ...foundation.ir.program import Program
from ..policy.decision import Decision

PROVED, UNPROVED = "proved", "unproved"

if TYPE_CHECKING:
    from ..contract.values import DispatchConfig
    from .launch import LaunchPlan


def proof_of(program: Program, launch: LaunchPlan | None = None) -> Determinism:
    """Why schedules do not change results: of the program over any grid, or of one launch, which may have its own."""
    whole = program._cached("driver.determinism", lambda: determinism(program))
    if launch is None:
        return whole
    x, y, z = (n * size for n, size in zip(launch.grid, launch.workgroup, strict=True))
    return whole if whole.covers((x, y, z)) else determinism(program, launch.grid, launch.workgroup)


def decide_determinism(program: Program, launch: LaunchPlan) -> Decision:
    """Whether a schedule can change the results of this launch; the program's own verdict is about every grid."""
    whole, proof = proof_of(program), proof_of(program, launch)
    if proof.verdict == "unproved":
        return Decision("determinism", UNPROVED, "; ".join(proof.reasons))
    where = "for this grid" if proof is not whole else proof.verdict.removeprefix("proved").strip() or "for every grid"
    return Decision("determinism", PROVED, where)


def require_proof(program: Program, launch: LaunchPlan, config: DispatchConfig, *, indirect: bool) -> Decision:
    """Raise unless schedules cannot change the results of this launch.

    A grid that is read from memory is known here for one launch of the host; for others, the proof must hold for every
    grid.
    """
    whole = proof_of(program)
    if indirect and (not all(launch.grid) or (config.fixpoint_iterations or 1) > 1):
        proof, is_proved, where = whole, whole.verdict == "proved", "every grid that it may read from memory"
    else:
        proof = proof_of(program, launch)
        is_proved = proof is whole or proof.verdict == "proved"
        where = f"a grid of {launch.grid} workgroups of {launch.workgroup}"
    if is_proved:
        return decide_determinism(program, launch)
    held = "" if whole.verdict == "unproved" else f"use one of the grids that it is {whole.verdict}, "
    raise InvalidProgram(
        f'determinism="require": the program is not proved deterministic for {where}: {"; ".join(proof.reasons)}',
        fix=f"{held}write so that each element is one invocation's, or drop determinism",
        program=program.fingerprint,
        **config.labelled,
    )
