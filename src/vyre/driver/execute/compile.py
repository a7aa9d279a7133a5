"""Compile a program on a guarded backend: admit it, look it up, else let the backend compile it.

The result is a handle whose dispatches pass the funnel. Compiled code is shared by every handle with the same key;
options that differ between handles (labels, limits, how long a deadline is) travel with each dispatch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from ...errors import ArgumentTypeError, InvalidProgram
from ...foundation.ir.nodes import Region
from ...foundation.ir.program import Program
from ..admission.gates import enforce
from ..admission.program import validate_program_for_backend
from ..contract.values import DEFAULT_CONFIG, DispatchConfig, named
from ..device_state import WatchedBackend
from ..pipeline.cache import Entry
from ..pipeline.compiler import find, key_of
from ..pipeline.key import LoweringOptions, PipelineCacheMissEvidence, hex_encode
from .pipeline import DriverPipeline

MANIFEST_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class PipelineReproManifest:
    """What was compiled, for a report. `program_digest` and `key_digest` are hex."""

    backend_id: str
    pipeline_id: str
    program_digest: str
    dispatch_policy: str
    key_digest: str
    cache_hit: bool
    schema: int = MANIFEST_SCHEMA

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True, slots=True)
class CompiledPipelineBuild:
    """A pipeline and where it came from; `evidence` explains a miss in memory and is None without one.

    `tier` is `memory`, `disk`, or, without a hit, `compiled`.
    """

    pipeline: DriverPipeline
    cache_hit: bool
    manifest: PipelineReproManifest
    evidence: PipelineCacheMissEvidence | None = None
    tier: str = "compiled"


def compile_on(
    guard: WatchedBackend, program: Program, config: DispatchConfig | None, *, in_time: bool
) -> CompiledPipelineBuild:
    """The program compiled for a guarded backend, with what the cache did and why."""
    check_arguments(program, config)
    asked = DEFAULT_CONFIG if config is None else config
    with named(asked.label):
        _require_regions(program)
        guard.require_usable()
        enforce(program)
        settled = validate_program_for_backend(guard, program, asked)
        key = key_of(guard, program, settled)
        found = find(guard, program, key, settled.timeout if in_time else None)

    def code_for(other: DispatchConfig) -> Entry:
        if LoweringOptions.of(other, guard, program) == key.options:
            return found.entry  # also when the cache has thrown it out
        return find(guard, program, key_of(guard, program, other), other.timeout).entry

    pipeline = DriverPipeline(guard, program, settled, key, found.entry, code_for)
    manifest = PipelineReproManifest(
        guard.id, pipeline.id, program.fingerprint, str(key.options), hex_encode(key.digest()), found.hit
    )
    return CompiledPipelineBuild(pipeline, found.hit, manifest, found.evidence, found.tier)


def check_arguments(program: object, config: object) -> None:
    if not isinstance(program, Program):
        raise ArgumentTypeError(
            f"program is {type(program).__name__}, not a Program", fix="call compile(backend, program, config)"
        )
    if not isinstance(config, DispatchConfig | None):
        raise ArgumentTypeError(f"config is {type(config).__name__}", fix="pass DispatchConfig(...), or nothing")


def _require_regions(program: Program) -> None:
    if not program.entry or not all(isinstance(node, Region) for node in program.entry):
        raise InvalidProgram(
            "pipelines are compiled from a top-level Region-wrapped Program",
            fix="build it with Program(buffers, workgroup_size, body), which wraps the body in a region",
        )
