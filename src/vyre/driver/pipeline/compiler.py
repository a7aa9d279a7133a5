"""The compiled code of a program on a backend: from memory, from a store, or from the backend's compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar, cast, runtime_checkable

from ...errors import DispatchFailed, KernelCompileFailed, VyreError
from ...foundation.ir.program import Program
from ..admission.program import admit
from ..contract.backend import PIPELINE_CACHE_ATTRIBUTE, VyreBackend
from ..contract.pending import PendingDispatch
from ..contract.pipeline import CompiledPipeline
from ..contract.values import DEFAULT_CONFIG, DispatchConfig, OutputBuffers, TimedDispatchResult
from ..counters import count_decision
from ..device_state import WatchedBackend
from ..observers import compiling
from ..plan.stages import segments_needed
from ..policy.decision import Decision
from .cache import Entry, Found, PipelineCache, PipelineStore
from .key import PipelineCacheKey, PipelineCacheMissEvidence, hex_short
from .sequence import SequencePipeline

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")


def pipelines_of(backend: VyreBackend) -> PipelineCache:
    """The memory tier of one backend instance, guarded or not; its lifecycle methods clear it."""
    if isinstance(backend, WatchedBackend):
        return cast("PipelineCache", backend.pipelines)
    return cast("PipelineCache", vars(backend).setdefault(PIPELINE_CACHE_ATTRIBUTE, PipelineCache()))


def attach_store(backend: VyreBackend, store: PipelineStore | None) -> None:
    """Ask `store` before compiling, and save compiled code there. None: memory only."""
    pipelines_of(backend).store = store


def key_of(backend: VyreBackend, program: Program, config: DispatchConfig) -> PipelineCacheKey:
    """The key under which a settled config finds a program on this backend."""
    return PipelineCacheKey.of(backend, program, config, device=pipelines_of(backend).device_of(backend))


def find(guard: WatchedBackend, program: Program, key: PipelineCacheKey, within: float | None) -> Found:
    """The compiled code of a key, found or made within so many seconds."""
    cache = pipelines_of(guard)

    def make(epoch: int) -> Entry:
        made = partial(_make, guard, program, key, cache, epoch)
        return guard.on_device(lambda: compiling(made, guard.id, program.name, lambda entry: entry.tier))

    found = cache.get(key, make, within)
    count_decision(found.decision)
    if found.tier != "memory":
        count_decision(_code_of(guard, found.entry.native))
    return found


def code_for(guard: WatchedBackend, program: Program, config: DispatchConfig) -> Entry:
    """The compiled code of one launch of several: admitted, then found or made within the timeout of the config."""
    admit(program, guard, config)
    return find(guard, program, key_of(guard, program, config), config.timeout).entry


def decide_code(backend: VyreBackend, key: PipelineCacheKey, native: CompiledPipeline | None) -> tuple[Decision, ...]:
    """What runs a program, and where its code comes from: the code that a caller holds, or what `find` would give."""
    cache = pipelines_of(backend)
    if native is not None:
        kept = "still in memory" if key in cache else "no longer in memory; this pipeline keeps it"
        return _code_of(backend, native), Decision("cache", "held", kept)
    cached = cache.forecast(key)
    if cached.choice == "miss":
        return Decision("code", "to be compiled", "no pipeline has this key"), cached
    if cached.choice == "disk":
        return Decision("code", "to be loaded", "a process compiled it before"), cached
    return (cached,)


def _code_of(backend: VyreBackend, native: CompiledPipeline) -> Decision:
    if isinstance(native, PassthroughPipeline):
        return Decision("code", "passthrough", f"backend {backend.id} compiles nothing ahead")
    if isinstance(native, SequencePipeline):
        return Decision("code", "sequence", f"backend {backend.id} compiled each launch of it")
    return Decision("code", "native", f"backend {backend.id} compiled it")


# ---- below the memory tier ------------------------------------------------------------------------------------------


@runtime_checkable
class SerializablePipeline(Protocol):
    """A compiled pipeline that can be stored."""

    def serialize(self) -> bytes: ...


@runtime_checkable
class LoadsPipelines(Protocol):
    """A backend that makes pipelines from stored bytes, or answers None for bytes it cannot use."""

    id: str

    def load_native(self, program: Program, config: DispatchConfig, payload: bytes) -> CompiledPipeline | None: ...


def _make(guard: WatchedBackend, program: Program, key: PipelineCacheKey, cache: PipelineCache, epoch: int) -> Entry:
    config, backend = key.options.config, guard.inner
    program_bytes = len(program.to_wire())
    if segments_needed(program, guard):
        return Entry(SequencePipeline(guard, program, config, code_for), program_bytes, "compiled", epoch)
    if cache.store is None or not isinstance(backend, LoadsPipelines):
        return _compiled(backend, program, key, epoch, None)
    loaded = _ask(cache, lambda store: store.load(key))
    if loaded is not None:
        native = _checked(backend, _revive(backend, program, config, loaded))
        if native is not None:
            return Entry(native, program_bytes + len(loaded), "disk", epoch)
        _ask(cache, lambda store: store.reject(key))
    try:
        entry = _compiled(backend, program, key, epoch, _ask(cache, lambda store: store.explain(key)))
        if isinstance(entry.native, SerializablePipeline):
            payload = entry.native.serialize()
            entry.nbytes = max(entry.nbytes, program_bytes + len(payload))
            _ask(cache, lambda store: store.save(key, payload))
        return entry
    finally:
        _ask(cache, lambda store: store.give_up(key))


def _compiled(
    backend: VyreBackend,
    program: Program,
    key: PipelineCacheKey,
    epoch: int,
    evidence: PipelineCacheMissEvidence | None,
) -> Entry:
    program_bytes, config = len(program.to_wire()), key.options.config
    try:
        native = _checked(backend, backend.compile_native(program, config))
    except VyreError:
        raise
    except Exception as e:
        raise DispatchFailed(  # not a lasting failure: memory may have run out
            f"backend {backend.id} raised {type(e).__name__} while compiling: {e}",
            fix="read the chained error, and correct the backend or the program",
            backend=backend.id,
        ) from e
    if native is None:
        return Entry(PassthroughPipeline(backend, program, config), program_bytes, "compiled", epoch, evidence)
    return Entry(native, program_bytes + int(getattr(native, "nbytes", 0)), "compiled", epoch, evidence)


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


def _ask(cache: PipelineCache, ask: Callable[[PipelineStore], T]) -> T | None:
    """The answer of the store. One that cannot be read or written costs time and never an answer."""
    assert cache.store is not None
    try:
        return ask(cache.store)
    except OSError:
        cache.store_errors += 1
        return None


def _revive(
    backend: LoadsPipelines, program: Program, config: DispatchConfig, payload: bytes
) -> CompiledPipeline | None:
    """The pipeline that the backend makes of stored bytes. Code that it cannot use is compiled again, and logged."""
    try:
        return backend.load_native(program, config, payload)
    except KernelCompileFailed as e:
        _tell(backend.id, e)
    except VyreError:
        raise  # a failure of the device, not of the code
    except Exception as e:  # perhaps a defect of the backend, which compiling hides
        _tell(backend.id, e)
    return None


_told: set[tuple[str, type[Exception]]] = set()


def _tell(backend_id: str, error: Exception) -> None:
    """Log why stored code was not loaded, once in a process for each backend and kind of error."""
    kind = backend_id, type(error)
    if kind not in _told:
        _told.add(kind)
        import logging  # which costs milliseconds, and is needed only here

        logging.getLogger("vyre.cache").warning(
            "backend %s cannot load stored code, which is compiled again: %s: %s",
            backend_id,
            type(error).__name__,
            error,
        )


class PassthroughPipeline(CompiledPipeline):
    """A program whose backend compiles nothing ahead: every dispatch reaches the backend."""

    def __init__(self, backend: VyreBackend, program: Program, config: DispatchConfig = DEFAULT_CONFIG) -> None:
        self.backend_id = backend.id
        self.id = f"{backend.id}:passthrough:{hex_short(bytes.fromhex(program.fingerprint))}"
        self.backend, self.program, self.config = backend, program, config

    def dispatch(
        self, inputs: Sequence[Buffer], config: DispatchConfig | None = None, *, out: Sequence[Buffer] | None = None
    ) -> OutputBuffers:
        return self.backend.dispatch_borrowed(self.program, inputs, config or self.config, out=out)

    def dispatch_timed(
        self, inputs: Sequence[Buffer], config: DispatchConfig | None = None, *, out: Sequence[Buffer] | None = None
    ) -> TimedDispatchResult:
        return self.backend.dispatch_timed(self.program, inputs, config or self.config, out=out)

    def dispatch_async(
        self, inputs: Sequence[Buffer], config: DispatchConfig | None = None, *, out: Sequence[Buffer] | None = None
    ) -> PendingDispatch:
        return self.backend.dispatch_async(self.program, inputs, config or self.config, out=out)
