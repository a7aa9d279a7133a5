"""Compile a program for a backend: admit it, look it up, else let the backend compile it.

What comes back is a handle whose dispatches pass the funnel of `execute`. Compiled code is shared by every handle with
the same key; what differs between handles (labels, limits, how long a deadline is) travels with each dispatch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from ...errors import ArgumentTypeError, DispatchFailed, InvalidProgram, KernelCompileFailed, VyreError
from ...foundation.ir import Region
from ...foundation.program import Program
from ..admission import validate_program_for_backend
from ..contract import PIPELINE_CACHE_ATTRIBUTE, CompiledPipeline, OutputBuffers, PendingDispatch, VyreBackend
from ..enforce import enforce
from ..execute import DriverPipeline, named
from ..guard import GuardedBackend, guarded
from ..split import SequencePipeline, segments_needed
from ..values import DEFAULT_CONFIG, DispatchConfig, TimedDispatchResult
from .cache import Entry, Found, PipelineCache, PipelineStore
from .key import LoweringOptions, PipelineCacheKey, PipelineCacheMissEvidence, hex_encode, hex_short

if TYPE_CHECKING:
    from typing_extensions import Buffer

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
    """A pipeline and where it came from; `evidence` explains a miss in memory and is None without one."""

    pipeline: DriverPipeline
    cache_hit: bool
    manifest: PipelineReproManifest
    evidence: PipelineCacheMissEvidence | None = None


@dataclass(frozen=True, slots=True)
class PipelinePrewarmReport:
    pipeline_id: str
    cache_hit: bool
    manifest: PipelineReproManifest


def compile(
    backend: VyreBackend, program: Program, config: DispatchConfig | None = None, *, in_time: bool = False
) -> DriverPipeline:
    """The program compiled for this backend, from its cache if it was compiled before.

    `config` is what dispatches use that bring none of their own, or one equal to the default. `in_time`: a dispatch
    waits for it, so that the timeout of the config holds here too.
    """
    return compile_with_telemetry(backend, program, config, in_time=in_time).pipeline


def compile_with_telemetry(
    backend: VyreBackend, program: Program, config: DispatchConfig | None = None, *, in_time: bool = False
) -> CompiledPipelineBuild:
    """As `compile`, with what the cache did and why."""
    _check_arguments(backend, program, config)
    asked, guard = DEFAULT_CONFIG if config is None else config, guarded(backend)
    with named(asked.label):
        _require_regions(program)
        guard.require_usable()
        enforce(program)
        settled = validate_program_for_backend(guard, program, asked)
        key = key_of(guard, program, settled)
        found = _find(guard, program, key, settled.timeout if in_time else None)

    def code_for(other: DispatchConfig) -> Entry:
        if LoweringOptions.of(other) == key.options:
            return found.entry  # also when the cache has thrown it out
        return _find(guard, program, key_of(guard, program, other), other.timeout).entry

    pipeline = DriverPipeline(guard, program, settled, key, found.entry, guard.life.pipelines, code_for)
    manifest = PipelineReproManifest(
        guard.id, pipeline.id, program.fingerprint, str(key.options), hex_encode(key.digest()), found.hit
    )
    return CompiledPipelineBuild(pipeline, found.hit, manifest, found.evidence)


def prewarm(backend: VyreBackend, program: Program, config: DispatchConfig | None = None) -> PipelinePrewarmReport:
    """Compile without dispatching, so that the first dispatch need not wait."""
    build = compile_with_telemetry(backend, program, config)
    return PipelinePrewarmReport(build.pipeline.id, build.cache_hit, build.manifest)


def pipelines_of(backend: VyreBackend) -> PipelineCache:
    """The memory tier of one backend instance, guarded or not; its lifecycle methods clear it."""
    if isinstance(backend, GuardedBackend):
        return backend.life.pipelines
    return cast("PipelineCache", vars(backend).setdefault(PIPELINE_CACHE_ATTRIBUTE, PipelineCache()))


def attach_store(backend: VyreBackend, store: PipelineStore | None) -> None:
    """Ask `store` before compiling, and give it what was compiled. None: memory only."""
    pipelines_of(backend).store = store


def key_of(backend: VyreBackend, program: Program, config: DispatchConfig) -> PipelineCacheKey:
    """The key under which a settled config finds a program on this backend."""
    return PipelineCacheKey.of(backend, program, config, device=pipelines_of(backend).device_of(backend))


def _check_arguments(backend: object, program: object, config: object) -> None:
    for name, value, kind in (("backend", backend, VyreBackend), ("program", program, Program)):
        if not isinstance(value, kind):
            raise ArgumentTypeError(
                f"{name} is {type(value).__name__}, not a {kind.__name__}",
                fix="call compile(backend, program, config)",
            )
    if not isinstance(config, DispatchConfig | None):
        raise ArgumentTypeError(f"config is {type(config).__name__}", fix="pass DispatchConfig(...), or nothing")


def _require_regions(program: Program) -> None:
    if not program.entry or not all(isinstance(node, Region) for node in program.entry):
        raise InvalidProgram(
            "pipelines are compiled from a top-level Region-wrapped Program",
            fix="build it with Program(buffers, workgroup_size, body), which wraps the body in a region",
        )


def code_for(backend: VyreBackend, program: Program, config: DispatchConfig) -> Entry:
    """The compiled code of a program that was admitted, found or made within the timeout of the config."""
    return _find(guarded(backend), program, key_of(backend, program, config), config.timeout).entry


def _find(guard: GuardedBackend, program: Program, key: PipelineCacheKey, within: float | None) -> Found:
    cache = guard.life.pipelines
    return cache.get(key, lambda epoch: guard.on_device(lambda: _make(guard, program, key, cache, epoch)), within)


# ---- below the memory tier ------------------------------------------------------------------------------------------


@runtime_checkable
class SerializablePipeline(Protocol):
    """A compiled pipeline that can be stored."""

    def serialize(self) -> bytes: ...


@runtime_checkable
class LoadsPipelines(Protocol):
    """A backend that makes pipelines from stored bytes, or answers None for bytes it cannot use."""

    def load_native(self, program: Program, config: DispatchConfig, payload: bytes) -> CompiledPipeline | None: ...


def _make(guard: GuardedBackend, program: Program, key: PipelineCacheKey, cache: PipelineCache, epoch: int) -> Entry:
    config, backend = key.options.config(), guard.inner
    program_bytes = len(program.to_wire())
    if segments_needed(program, guard):
        return Entry(SequencePipeline(guard, program, config), program_bytes, "compiled", epoch)
    if cache.store is not None and isinstance(backend, LoadsPipelines):
        payload = _load(cache, key)
        native = None if payload is None else _checked(backend, _revive(backend, program, config, payload))
        if payload is not None and native is not None:
            return Entry(native, program_bytes + len(payload), "store", epoch)
    try:
        native = _checked(backend, backend.compile_native(program, config))
    except VyreError:
        raise
    except Exception as e:
        raise DispatchFailed(  # and not of the kind that is remembered: memory may have run out
            f"backend {backend.id} raised {type(e).__name__} while compiling: {e}",
            fix="read the chained error, and correct the backend or the program",
            backend=backend.id,
        ) from e
    if native is None:
        return Entry(PassthroughPipeline(backend, program, config), program_bytes, "compiled", epoch)
    code_bytes = int(getattr(native, "nbytes", 0))
    if cache.store is not None and isinstance(native, SerializablePipeline):
        payload = native.serialize()
        code_bytes = code_bytes or len(payload)
        _save(cache, key, payload)
    return Entry(native, program_bytes + code_bytes, "compiled", epoch)


def _checked(backend: VyreBackend, native: CompiledPipeline | None) -> CompiledPipeline | None:
    if not isinstance(native, CompiledPipeline | None):
        raise KernelCompileFailed(
            f"backend {backend.id} compiled the program to {type(native).__name__}, not a CompiledPipeline",
            fix="correct the backend: compile_native returns a CompiledPipeline, or None for a plain dispatch",
            backend=backend.id,
        )
    for name in ("id", "backend_id") if native is not None else ():
        if not isinstance(getattr(native, name, None), str):
            raise KernelCompileFailed(
                f"backend {backend.id} compiled the program to a {type(native).__name__} without {name}",
                fix=f"correct the backend: set {name} of its pipelines, as text",
                backend=backend.id,
            )
    return native


def _load(cache: PipelineCache, key: PipelineCacheKey) -> bytes | None:
    assert cache.store is not None
    try:
        return cache.store.load(key)
    except OSError:
        cache.store_errors += 1  # a store that cannot be read costs time and never an answer
        return None


def _save(cache: PipelineCache, key: PipelineCacheKey, payload: bytes) -> None:
    assert cache.store is not None
    try:
        cache.store.save(key, payload)
    except OSError:
        cache.store_errors += 1


def _revive(
    backend: LoadsPipelines, program: Program, config: DispatchConfig, payload: bytes
) -> CompiledPipeline | None:
    try:
        return backend.load_native(program, config, payload)
    except KernelCompileFailed:
        return None


class PassthroughPipeline(CompiledPipeline):
    """A program whose backend compiles nothing ahead: every dispatch reaches the backend."""

    def __init__(self, backend: VyreBackend, program: Program, config: DispatchConfig = DEFAULT_CONFIG) -> None:
        self.backend_id = backend.id
        self.id = f"{backend.id}:passthrough:{hex_short(bytes.fromhex(program.fingerprint))}"
        self.backend, self.program, self.config = backend, program, config

    def dispatch(
        self,
        inputs: Sequence[Buffer],
        config: DispatchConfig | None = None,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> OutputBuffers:
        return self.backend.dispatch_borrowed(self.program, inputs, config or self.config, out=out)

    def dispatch_timed(
        self,
        inputs: Sequence[Buffer],
        config: DispatchConfig | None = None,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> TimedDispatchResult:
        return self.backend.dispatch_timed(self.program, inputs, config or self.config, out=out)

    def dispatch_async(
        self,
        inputs: Sequence[Buffer],
        config: DispatchConfig | None = None,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> PendingDispatch:
        return self.backend.dispatch_async(self.program, inputs, config or self.config, out=out)
