"""What is a backend? The frozen contract: two required members, and a careful default for everything else.

`id` and `dispatch` are required. Members are only ever added, with defaults, so that a backend written today runs
under every later version. Capability answers are promises about this device: an emulated feature runs while its
`supports_*` is False.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Self, TypeVar, overload

from ...errors import UnsupportedFeature
from .capability import FACTS, BackendCapability, core_supported_ops
from .pending import PendingDispatch, ReadyPending
from .pipeline import CompiledPipeline
from .values import (
    DEFAULT_CONFIG,
    Dims,
    DispatchConfig,
    OutputBuffers,
    ResidentDispatchStep,
    ResidentHandle,
    ResidentReadRange,
    ResidentSequenceTiming,
    TimedDispatchResult,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ...foundation.ir.program import Program
    from .exchange import DeviceExchange
    from .profile import DeviceProfile, PipelineCacheSnapshot

CONTRACT_VERSION = 1

T_co = TypeVar("T_co", covariant=True)


class Query(property, Generic[T_co]):
    """A question that a field of the capability record answers: final, typed, and documented by the field.

    `unknown` answers where the record has None.
    """

    def __init__(self, fact: str, unknown: Callable[[BackendCapability], T_co] | None = None) -> None:
        self.fact = fact

        def ask(self: VyreBackend) -> Any:
            return getattr(self.capability, fact)

        def ask_or_derive(self: VyreBackend) -> Any:
            stated = getattr(self.capability, fact)
            return stated if stated is not None or unknown is None else unknown(self.capability)

        answer = ask if unknown is None else ask_or_derive
        kind = str(BackendCapability.__dataclass_fields__[fact].type)
        answer.__annotations__ = {"return": kind if unknown is None else kind.removesuffix(" | None")}
        doc = FACTS[fact].doc
        answer.__doc__ = f"{doc[0].upper()}{doc[1:]}."
        super().__init__(answer)

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type | None = None, /) -> Self: ...
        @overload
        def __get__(self, instance: VyreBackend, owner: type | None = None, /) -> T_co: ...
        def __get__(self, instance: VyreBackend | None, owner: type | None = None, /) -> Self | T_co: ...


PIPELINE_CACHE_ATTRIBUTE = "_vyre_pipeline_cache"
"""Where the driver keeps the pipelines of a backend instance: in the instance, under a name that no author uses.

Not in a table of ours: pipelines refer to their backend, and a weak table would keep both for ever. It also takes
0.14 us to look there, and 0.04 in the instance.
"""


def _forget_pipelines(backend: VyreBackend) -> None:
    if (pipelines := vars(backend).get(PIPELINE_CACHE_ATTRIBUTE)) is not None:
        pipelines.clear()


def _ends_pipelines(method: Callable[[Any], None]) -> Callable[[Any], None]:
    """A lifecycle method after which no pipeline from before may run, whichever class defines it."""

    @wraps(method)
    def ending(self: VyreBackend) -> None:
        method(self)
        _forget_pipelines(self)

    return ending


class VyreBackend(ABC):
    """A deterministic function from (program, inputs, config) to output bytes on one device.

    Outside this package a backend says which contract it was written for: `class Mine(VyreBackend, contract=1)`.
    """

    version: str = "unspecified"
    capability: BackendCapability = BackendCapability()
    contract: ClassVar[int] = CONTRACT_VERSION
    device: str = ""
    """Name or index of the device this instance was opened on; the registry fills it in. Part of every cache key."""

    def __init_subclass__(cls, *, contract: int | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        ours = cls.__module__.partition(".")[0] == __name__.partition(".")[0]
        if contract is None and not ours and not any("_sealed_for" in base.__dict__ for base in cls.__mro__[1:]):
            raise TypeError(
                f"{cls.__name__} does not say which backend contract it implements. "
                f"Fix: write class {cls.__name__}(VyreBackend, contract={CONTRACT_VERSION})"
            )
        if contract is not None:
            if type(contract) is not int:
                raise TypeError(
                    f"{cls.__name__} gives contract={contract!r}, which is not a version. "
                    f"Fix: write class {cls.__name__}(VyreBackend, contract={CONTRACT_VERSION})"
                )
            if contract != CONTRACT_VERSION:
                raise TypeError(
                    f"{cls.__name__} implements contract {contract} and this is contract {CONTRACT_VERSION}. "
                    f"Fix: install the vyre release that knows contract {contract}, or port the backend"
                )
            cls._sealed_for = contract  # type: ignore[attr-defined]
        ends = cls.__mro__.index(VyreBackend)
        for name in (name for base in cls.__mro__[:ends] for name in vars(base)):  # a mixin overrides too
            if name in QUERIES:
                raise TypeError(
                    f"{cls.__name__} overrides {name}, which is read from its capability record. "
                    f"Fix: set capability = BackendCapability({QUERIES[name]}=...)"
                )
            if name.startswith("supports_"):
                raise TypeError(
                    f"{cls.__name__} defines {name}, which the contract does not know. "
                    f"Fix: correct the spelling and set the field in BackendCapability, or use its extras"
                )
        # Wrapped, since a pipeline that outlives its device would run on freed memory, and an author who forgets to end
        # them would learn it from a user's crash. It adds 0.2 us to two calls that happen once in the life of a device.
        for name in ("shutdown", "try_recover"):
            owner = next(base for base in cls.__mro__ if name in vars(base))
            if owner is cls or not issubclass(owner, VyreBackend):
                setattr(cls, name, _ends_pipelines(vars(owner)[name]))

    @property
    @abstractmethod
    def id(self) -> str:
        """Unique name; a class attribute will do."""

    # -- dispatch

    @abstractmethod
    def dispatch(
        self,
        program: Program,
        inputs: Sequence[Buffer],
        config: DispatchConfig = DEFAULT_CONFIG,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> OutputBuffers:
        """Run a program. Inputs and outputs go by slot order; with `out`, results are written there and it is returned
        as a list."""

    def supported_ops(self) -> frozenset[str]:
        """Ids of the operations that are admitted, native or not."""
        return core_supported_ops() if self.capability.ops is None else self.capability.ops

    def dispatch_borrowed(
        self,
        program: Program,
        inputs: Sequence[Buffer],
        config: DispatchConfig = DEFAULT_CONFIG,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> OutputBuffers:
        """As `dispatch`; may bind the caller's memory while it runs."""
        return self.dispatch(program, inputs, config, out=out)

    def dispatch_timed(
        self,
        program: Program,
        inputs: Sequence[Buffer],
        config: DispatchConfig = DEFAULT_CONFIG,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> TimedDispatchResult:
        """As `dispatch`, with times."""
        start = time.perf_counter_ns()
        outputs = self.dispatch_borrowed(program, inputs, config, out=out)
        return TimedDispatchResult(outputs, time.perf_counter_ns() - start)

    def dispatch_async(
        self,
        program: Program,
        inputs: Sequence[Buffer],
        config: DispatchConfig = DEFAULT_CONFIG,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> PendingDispatch:
        """Start a dispatch. Errors of the start are raised here; the handle never reads the caller's inputs."""
        return ReadyPending(self.dispatch(program, inputs, config, out=out))

    def compile_native(self, program: Program, config: DispatchConfig) -> CompiledPipeline | None:
        """The program compiled for this device, or None: the driver then dispatches it through the backend."""
        return None

    # -- residency

    def allocate_resident(self, nbytes: int) -> ResidentHandle:
        """Memory that stays on the device, zero at first."""
        raise self._unsupported("resident buffer allocation", "dispatch over memory of the host")

    def upload_resident(self, ranges: Sequence[tuple[ResidentHandle, int, Buffer]]) -> None:
        """Write (handle, byte offset, bytes) ranges, all in one transfer batch."""
        raise self._unsupported("resident buffer upload", "dispatch over memory of the host")

    def download_resident(
        self, ranges: Sequence[ResidentReadRange], *, out: Sequence[Buffer] | None = None
    ) -> OutputBuffers:
        """Read ranges of resident memory, all in one transfer batch."""
        raise self._unsupported("resident buffer download", "dispatch over memory of the host")

    def free_resident(self, resource: ResidentHandle) -> None:
        """Give resident memory back; its handle is refused from now on."""
        raise self._unsupported("resident buffer release", "dispatch over memory of the host")

    def dispatch_resident(
        self,
        steps: Sequence[ResidentDispatchStep],
        *,
        reads: Sequence[ResidentReadRange] = (),
        repeat: int = 1,
        timed: bool = False,
    ) -> tuple[OutputBuffers, ResidentSequenceTiming | None]:
        """Run steps over resident memory, `repeat` times, then read ranges back."""
        raise self._unsupported("resident dispatch", "dispatch over memory of the host")

    def exchange(self) -> DeviceExchange | None:
        """Resident memory as other libraries see it, or None where they cannot. Opens no device."""
        return None

    # -- lifecycle

    def prepare(self) -> None:  # noqa: B027 - a backend without state has nothing to do
        """Create contexts, queues and whatever the first dispatch would wait for.

        Calling it is optional: a dispatch on a backend that was not prepared prepares what it needs. The capability
        record is right before, from the moment that `BackendRegistration.open` returns.
        """

    def flush(self) -> None:  # noqa: B027
        """Return when everything that was started has ended."""

    def shutdown(self) -> None:
        """Release everything; a second call does nothing. Pipelines from before refuse from now on."""
        _forget_pipelines(self)

    def device_lost(self) -> bool:
        """Whether the device is gone. Asked when something fails, so it need not be fast."""
        return False

    def try_recover(self) -> None:
        """Rebuild the device's state. Every pipeline and handle from before becomes invalid."""
        raise self._unsupported("device recovery", "open it anew: acquire(...)")

    # -- facts

    def device_profile(self) -> DeviceProfile:
        """Facts of the device, for planning and measuring."""
        from .profile import DeviceProfile

        return DeviceProfile.from_backend(self)

    def metrics(self) -> Mapping[str, int | float]:
        """Counters of this backend, under stable names."""
        return {}

    def pipeline_cache_snapshot(self) -> PipelineCacheSnapshot | None:
        """Hits and misses, where there is a cache that counts them."""
        return None

    supports_subgroup_ops: Final = Query[bool]("subgroup_ops")
    supports_f16: Final = Query[bool]("f16")
    supports_bf16: Final = Query[bool]("bf16")
    supports_tensor_cores: Final = Query[bool]("tensor_cores")
    supports_async_compute: Final = Query[bool]("async_compute")
    supports_indirect_dispatch: Final = Query[bool]("indirect_dispatch")
    supports_grid_sync: Final = Query[bool]("grid_sync")
    supports_speculation: Final = Query[bool]("speculation")
    supports_persistent_threads: Final = Query[bool]("persistent_threads")
    supports_distributed_collectives: Final = Query[bool]("distributed_collectives")
    is_distributed: Final = Query[bool]("distributed")
    allows_host_grid_sync_split: Final = Query[bool]("host_grid_sync_split")
    subgroup_size: Final = Query["int | None"]("subgroup_size")
    max_workgroup_size: Final = Query[Dims]("max_workgroup_size")
    max_storage_buffer_bytes: Final = Query[int]("max_storage_buffer_bytes")
    max_workgroups_per_dimension: Final = Query[int]("max_workgroups_per_dimension")
    max_invocations_per_workgroup: Final = Query[int](
        "max_invocations_per_workgroup", lambda facts: prod(facts.max_workgroup_size)
    )
    deadline: Final = Query[str]("deadline")

    def __enter__(self) -> Self:
        self.prepare()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.flush()
        finally:
            self.shutdown()

    def _unsupported(self, name: str, fix: str) -> UnsupportedFeature:
        return UnsupportedFeature(
            f"backend {self.id} has no {name}",
            fix=f"{fix}, or choose another backend",
            name=name,
            backend=self.id,
        )


QUERIES = {name: member.fact for name, member in vars(VyreBackend).items() if isinstance(member, Query)}
"""Query of the contract -> field of the capability record."""
