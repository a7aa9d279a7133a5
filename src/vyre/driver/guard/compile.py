"""Compile, prewarm and explain on any backend, guarded or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import ArgumentTypeError
from ...foundation.ir.program import Program
from ..admission.program import validate_program_for_backend
from ..contract.backend import VyreBackend
from ..contract.values import DEFAULT_CONFIG, DispatchConfig
from ..execute.compile import CompiledPipelineBuild, PipelineReproManifest, check_arguments, compile_on
from ..execute.pipeline import DriverPipeline
from ..pipeline.compiler import key_of
from ..pipeline.key import PipelineCacheKey
from .backend import guarded

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..execute.explanation import Explanation


@dataclass(frozen=True, slots=True)
class PipelinePrewarmReport:
    """`tier` says where the code was found: in `memory`, on `disk`, or nowhere, so that it was `compiled`."""

    pipeline_id: str
    cache_hit: bool
    manifest: PipelineReproManifest
    tier: str = "compiled"


def compile(
    backend: VyreBackend, program: Program, config: DispatchConfig | None = None, *, in_time: bool = False
) -> DriverPipeline:
    """The program compiled for this backend, from its cache if it was compiled before.

    `config` is used by dispatches without one of their own, or with one equal to the default. `in_time`: a dispatch
    waits for it, so that the timeout of the config holds here too.
    """
    return compile_with_telemetry(backend, program, config, in_time=in_time).pipeline


def compile_with_telemetry(
    backend: VyreBackend, program: Program, config: DispatchConfig | None = None, *, in_time: bool = False
) -> CompiledPipelineBuild:
    """As `compile`, with what the cache did and why."""
    if not isinstance(backend, VyreBackend):
        raise ArgumentTypeError(
            f"backend is {type(backend).__name__}, not a VyreBackend", fix="call compile(backend, program, config)"
        )
    return compile_on(guarded(backend), program, config, in_time=in_time)


def prewarm(backend: VyreBackend, program: Program, config: DispatchConfig | None = None) -> PipelinePrewarmReport:
    """Compile without dispatching, so that the first dispatch need not wait."""
    build = compile_with_telemetry(backend, program, config)
    return PipelinePrewarmReport(build.pipeline.id, build.cache_hit, build.manifest, build.tier)


def cache_key(backend: VyreBackend, program: Program, config: DispatchConfig | None = None) -> PipelineCacheKey:
    """The key under which a call finds the compiled program. Nothing is compiled."""
    guard = guarded(backend)
    check_arguments(program, config)
    settled = validate_program_for_backend(guard, program, DEFAULT_CONFIG if config is None else config)
    return key_of(guard, program, settled)


def explain(
    target: DriverPipeline | Program,
    inputs: Sequence[Buffer],
    config: DispatchConfig | None = None,
    *,
    backend: VyreBackend | None = None,
) -> Explanation:
    """What a dispatch of a pipeline, or of a program on a backend, would do, and why. Nothing runs or is compiled."""
    from ..execute.explanation import explain_dispatch  # only `explain` pays for it

    if isinstance(target, DriverPipeline):
        return target.explain(inputs, config)
    return explain_dispatch(target, inputs, config, None if backend is None else guarded(backend))
