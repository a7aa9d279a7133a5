"""What is a backend? The frozen contract: two required members, and a careful default for everything else.

`id` and `dispatch` are required. Members are only ever added, with defaults, so that a backend written today runs
under every later version. Capability answers are promises about this device: an emulated feature runs while its
`supports_*` is False.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from functools import wraps
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TypeAlias, final

from ..errors import (
    ArgumentTypeError,
    ArgumentValueError,
    DeadlineExceeded,
    DispatchFailed,
    UnsupportedFeature,
    shown,
)
from .values import (
    DEFAULT_CONFIG,
    Dims,
    DispatchConfig,
    FrozenDict,
    ResidentDispatchStep,
    ResidentHandle,
    ResidentReadRange,
    ResidentSequenceTiming,
    Resource,
    TimedDispatchResult,
    dims,
    seconds,
    whole,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from typing_extensions import Buffer

    from ..foundation.program import Program
    from .checks import Check
    from .device import DeviceProfile
    from .exchange import DeviceExchange
    from .pipeline import PipelineCacheSnapshot
    from .plan.launch import DispatchPlan
    from .settings import Knob

CONTRACT_VERSION = 1
PRECEDENCE_UNKNOWN = 0xFFFFFFFF
DEADLINES = ("none", "cooperative", "host")
OutputBuffers: TypeAlias = list["Buffer"]


def core_supported_ops() -> frozenset[str]:
    """Ids of the operations every backend runs."""
    from ..foundation.ops import CORE_IDS  # listing backends does without it, and without profiles

    return CORE_IDS


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendCapability:
    """What a backend does on this device. Every field defaults to no, or to the least.

    `types` are the value types beyond u32 i32 f32 bool and the narrow storage types. `deadline` is how a timeout is
    kept: `none`, `cooperative` (the program stops itself) or `host` (the call returns, the device counts as lost).
    `max_steps` is how large a program it compiles, by `program.stats.steps`, so that none takes minutes; 0 is no limit.
    `exactness` is what a probe of the device found; it is part of every cache key. `extras` are facts this version
    does not know; they must survive JSON.
    """

    ops: frozenset[str] | None = None
    dispatches: bool = True
    memory_model: str = "relaxed"
    types: frozenset[str] = frozenset()
    subgroup_ops: bool = False
    subgroup_size: int | None = None
    f16: bool = False
    bf16: bool = False
    tensor_cores: bool = False
    async_compute: bool = False
    indirect_dispatch: bool = False
    grid_sync: bool = False
    speculation: bool = False
    persistent_threads: bool = False
    distributed: bool = False
    distributed_collectives: bool = False
    host_grid_sync_split: bool = True
    max_workgroup_size: Dims = (1, 1, 1)
    max_workgroups_per_dimension: int = 1
    max_invocations_per_workgroup: int | None = None
    max_shared_bytes: int = 0
    max_storage_buffer_bytes: int = 0
    max_steps: int = 0
    deadline: str = "none"
    exactness: Mapping[str, Any] = field(default_factory=dict)
    extras: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        def settle(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        for f in fields(self):
            value = getattr(self, f.name)
            if f.type == "bool":
                settle(f.name, _flag(f.name, value))
            elif f.type in ("int", "int | None"):
                if value is None and f.type == "int":
                    raise ArgumentTypeError(f"{f.name} is None", fix=f"pass {f.name}=0 where it is unknown")
                settle(f.name, whole(f.name, value, (1 << 64) - 1))
        settle("ops", None if self.ops is None else _names("ops", self.ops))
        settle("types", _names("types", self.types))
        size = dims("max_workgroup_size", self.max_workgroup_size)
        if size is None:
            raise ArgumentTypeError("max_workgroup_size is None", fix="pass max_workgroup_size=(x, y, z)")
        settle("max_workgroup_size", size)
        deadline: object = self.deadline
        if not isinstance(deadline, str) or deadline not in DEADLINES:
            raise ArgumentValueError(
                f"deadline={shown(deadline)} is no way to keep one", fix=f"use one of: {', '.join(DEADLINES)}"
            )
        for name in ("exactness", "extras"):
            settle(name, _facts(name, getattr(self, name)))

    def __eq__(self, other: object) -> bool:
        return self.digest() == other.digest() if isinstance(other, BackendCapability) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest())

    def _repr_html_(self) -> str:
        from ..foundation import html

        rows = [(f.name, _fact_text(getattr(self, f.name))) for f in fields(self) if f.name not in ("ops", "extras")]
        ops = "every core operation" if self.ops is None else f"{len(self.ops)} operations"
        more = [html.code(name, json.dumps(facts, indent=2)) for name, facts in (("extras", self.extras),) if facts]
        return html.page("capability", html.facts([("ops", ops), *rows]), *more)

    def digest(self) -> str:
        """A text that changes when any fact does."""
        facts = {f.name: getattr(self, f.name) for f in fields(self)}
        return json.dumps(facts, sort_keys=True, default=sorted)  # of sets


def _fact_text(value: object) -> object:
    """A fact as a person reads it."""
    if isinstance(value, frozenset):
        return ", ".join(sorted(value)) or "none"
    if isinstance(value, tuple):
        return " x ".join(map(str, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {fact}" for name, fact in value.items()) or "none"
    return "not known" if value is None else value


def _flag(name: str, given: Any) -> bool:
    try:
        return bool(given)
    except Exception as e:  # an array, say
        raise ArgumentTypeError(f"{name} is a {type(given).__name__}", fix=f"pass {name}=True or False") from e


def _names(name: str, given: Any) -> frozenset[str]:
    names = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (None,)
    if not all(isinstance(n, str) for n in names):
        raise ArgumentTypeError(f"{name}={shown(given)} is not a set of names", fix=f"pass {name}=frozenset({{'...'}})")
    return frozenset(names)


def _facts(name: str, given: Any) -> FrozenDict:
    """Our own copy of facts that survive JSON."""
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(
            f"{name} is {type(given).__name__}, not a mapping", fix=f"pass {name}={{'fact': value}}"
        )
    try:
        facts = dict(given)
        if json.loads(json.dumps(facts, allow_nan=False)).keys() != facts.keys():
            raise TypeError("a key is not text")
        return FrozenDict(deepcopy(facts))
    except (TypeError, ValueError, RecursionError) as e:
        raise ArgumentValueError(
            f"{name} does not survive JSON: {e}", fix="use text as keys, and text, numbers, lists and dicts as values"
        ) from e


@dataclass(frozen=True, slots=True)
class BackendPrecedence:
    """Lower wins."""

    id: str
    rank: int = PRECEDENCE_UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRegistration:
    """How to get a backend, without getting it.

    `open(device)` may import the target's library and look for a device; it creates no context, queue, memory or
    thread, and what it returns has its final capability record. It takes the index of one of `devices()`, or nothing.
    `unavailable()` says why it would not open, or None. `devices()` names the devices, best first, and opens none.
    `kind` is device, host, oracle (only when asked for) or distributed (only when asked for). With `probe_key`, the
    answers of `unavailable` and `devices` are remembered across processes for as long as its text stays the same, a
    refusal for a day at most. `emit(program)` is the text that its compiler would get of a valid program without
    grid-wide barriers; it needs no device.
    `checks()` are its findings for `vyre doctor`: what it needs, whether that is here, and what to do if not.
    `knobs` are settings of its own; the name of each begins with the id and an underscore.
    """

    id: str
    open: Callable[..., VyreBackend]
    precedence: int = 500
    unavailable: Callable[[], str | None] = field(default=lambda: None)
    devices: Callable[[], Sequence[DeviceInfo]] | None = None
    kind: str = "device"
    dispatches: bool = True
    probe_key: Callable[[], str] | None = None
    emit: Callable[[Program], str] | None = None
    checks: Callable[[], Iterable[Check]] | None = None
    knobs: Sequence[Knob[Any]] = ()


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device of a backend. `emulated` is a device interface that runs on the processor."""

    index: int
    name: str
    emulated: bool = False


_FINAL = {
    "supports_subgroup_ops": "subgroup_ops",
    "supports_f16": "f16",
    "supports_bf16": "bf16",
    "supports_tensor_cores": "tensor_cores",
    "supports_async_compute": "async_compute",
    "supports_indirect_dispatch": "indirect_dispatch",
    "supports_grid_sync": "grid_sync",
    "supports_speculation": "speculation",
    "supports_persistent_threads": "persistent_threads",
    "supports_distributed_collectives": "distributed_collectives",
    "is_distributed": "distributed",
    "allows_host_grid_sync_split": "host_grid_sync_split",
    "subgroup_size": "subgroup_size",
    "max_workgroup_size": "max_workgroup_size",
    "max_storage_buffer_bytes": "max_storage_buffer_bytes",
    "max_workgroups_per_dimension": "max_workgroups_per_dimension",
    "max_invocations_per_workgroup": "max_invocations_per_workgroup",
    "deadline": "deadline",
}
"""Query of the contract -> field of the capability record."""


PIPELINE_CACHE_ATTRIBUTE = "_vyre_pipeline_cache"
"""Where the driver keeps the pipelines of a backend instance: in the instance, under a name that no author uses."""


def _forget_pipelines(backend: VyreBackend) -> None:
    if (pipelines := vars(backend).get(PIPELINE_CACHE_ATTRIBUTE)) is not None:
        pipelines.clear()


def _ends_pipelines(method: Callable[[Any], None]) -> Callable[[Any], None]:
    """A lifecycle method after which no pipeline from before may run, whoever wrote the method."""

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
    _splits_grid_sync: ClassVar[bool] = False
    """Whether programs with grid-wide barriers are split on the way to the device; the driver's guard does it."""

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
                    f"{cls.__name__} gives contract={contract!r}, which is no version. "
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
            if name in _FINAL:
                raise TypeError(
                    f"{cls.__name__} overrides {name}, which is read from its capability record. "
                    f"Fix: set capability = BackendCapability({_FINAL[name]}=...)"
                )
            if name.startswith("supports_"):
                raise TypeError(
                    f"{cls.__name__} defines {name}, which the contract does not know. "
                    f"Fix: correct the spelling and set the field in BackendCapability, or use its extras"
                )
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
        """Facts of the device for whoever plans and measures."""
        from .device import DeviceProfile

        return DeviceProfile.from_backend(self)

    def metrics(self) -> Mapping[str, int | float]:
        """Counters of this backend, under stable names."""
        return {}

    def pipeline_cache_snapshot(self) -> PipelineCacheSnapshot | None:
        """Hits and misses, where there is a cache that counts them."""
        return None

    @final
    @property
    def supports_subgroup_ops(self) -> bool:
        """Whether subgroup operations are native instructions here."""
        return self.capability.subgroup_ops

    @final
    @property
    def supports_f16(self) -> bool:
        """Whether f16 arithmetic is native here."""
        return self.capability.f16

    @final
    @property
    def supports_bf16(self) -> bool:
        """Whether bf16 arithmetic is native here."""
        return self.capability.bf16

    @final
    @property
    def supports_tensor_cores(self) -> bool:
        return self.capability.tensor_cores

    @final
    @property
    def supports_async_compute(self) -> bool:
        """Whether started dispatches overlap with the caller."""
        return self.capability.async_compute

    @final
    @property
    def supports_indirect_dispatch(self) -> bool:
        return self.capability.indirect_dispatch

    @final
    @property
    def supports_grid_sync(self) -> bool:
        """Whether a grid-wide barrier runs in one launch here; else the driver splits programs at it."""
        return self.capability.grid_sync

    @final
    @property
    def supports_speculation(self) -> bool:
        return self.capability.speculation

    @final
    @property
    def supports_persistent_threads(self) -> bool:
        return self.capability.persistent_threads

    @final
    @property
    def supports_distributed_collectives(self) -> bool:
        return self.capability.distributed_collectives

    @final
    @property
    def is_distributed(self) -> bool:
        return self.capability.distributed

    @final
    @property
    def allows_host_grid_sync_split(self) -> bool:
        return self.capability.host_grid_sync_split

    @final
    @property
    def subgroup_size(self) -> int | None:
        """Lanes of a native subgroup; None where there is none. A program always sees 32."""
        return self.capability.subgroup_size

    @final
    @property
    def max_workgroup_size(self) -> Dims:
        """Most invocations of a workgroup along each axis."""
        return self.capability.max_workgroup_size

    @final
    @property
    def max_storage_buffer_bytes(self) -> int:
        """0 means unreported, not unlimited."""
        return self.capability.max_storage_buffer_bytes

    @final
    @property
    def max_workgroups_per_dimension(self) -> int:
        """Most workgroups along an axis of one launch; the driver splits longer grids."""
        return self.capability.max_workgroups_per_dimension

    @final
    @property
    def max_invocations_per_workgroup(self) -> int:
        """Most invocations of a workgroup in all."""
        stated = self.capability.max_invocations_per_workgroup
        return prod(self.capability.max_workgroup_size) if stated is None else stated

    @final
    @property
    def deadline(self) -> str:
        """How a timeout is kept: `none`, `cooperative` or `host`."""
        return self.capability.deadline

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


class CompiledPipeline(ABC):
    """A program compiled once and dispatched many times, with exactly the bytes of `backend.dispatch`."""

    id: str
    """`<backend>:<what was compiled>`."""
    backend_id: str

    def __reduce__(self) -> NoReturn:
        _unpicklable("a compiled pipeline", "send the program, and compile it on the other side")

    @abstractmethod
    def dispatch(
        self,
        inputs: Sequence[Buffer],
        config: DispatchConfig | None = None,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> OutputBuffers:
        """Run it. Without a config, the one it was compiled with."""

    def dispatch_timed(
        self,
        inputs: Sequence[Buffer],
        config: DispatchConfig | None = None,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> TimedDispatchResult:
        """As `dispatch`, with times."""
        start = time.perf_counter_ns()
        outputs = self.dispatch(inputs, config, out=out)
        return TimedDispatchResult(outputs, time.perf_counter_ns() - start)

    def dispatch_async(
        self,
        inputs: Sequence[Buffer],
        config: DispatchConfig | None = None,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> PendingDispatch:
        """Start a dispatch; as `VyreBackend.dispatch_async`."""
        return ReadyPending(self.dispatch(inputs, config, out=out))

    def launching(self, plan: DispatchPlan, config: DispatchConfig, memory: str) -> tuple[str, str] | None:
        """For `explain`: how this dispatch is launched, and why; None where every one is launched anew, as it comes.

        `memory` is where its buffers are: on the `host`, `resident`, or `both`.
        """
        return None

    def dispatch_batch(
        self,
        batches: Sequence[Sequence[Buffer]],
        config: DispatchConfig | None = None,
        *,
        out: Sequence[Sequence[Buffer]] | None = None,
    ) -> list[OutputBuffers]:
        """Run it on each of several inputs, in order."""
        for what, given in (("batches", batches), ("out", () if out is None else out)):
            if not isinstance(given, Sequence):
                raise ArgumentTypeError(
                    f"{what} is {type(given).__name__}, not a list", fix=f"pass {what} as a list of lists of buffers"
                )
        if out is not None and len(out) != len(batches):
            raise DispatchFailed(
                "outputs do not match the batches",
                fix="pass one list of outputs per batch",
                batches=len(batches),
                outputs=len(out),
            )
        return [self.dispatch(b, config, out=None if out is None else out[k]) for k, b in enumerate(batches)]

    def dispatch_resident(
        self, resources: Sequence[Resource], config: DispatchConfig | None = None
    ) -> list[ResidentHandle]:
        """Run it over memory that stays on the device; the outputs stay there too."""
        raise UnsupportedFeature(
            f"pipelines of backend {self.backend_id} have no resident dispatch",
            fix="dispatch with host buffers, or choose another backend",
            name="resident dispatch",
            backend=self.backend_id,
        )

    def holds(self, grid: Dims) -> bool:
        """Whether all workgroups of this grid run at once, if they wait for each other; else the driver splits it."""
        return True

    def close(self) -> None:  # noqa: B027 - nothing to release by default
        """Release what was compiled; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PendingDispatch(ABC):
    """A dispatch that was started. Its result is handed out once."""

    def __init__(self) -> None:
        self.__renew_locks()
        self.__held: tuple[OutputBuffers] | None = None  # what came, until it is taken
        self.__taken = False

    def __reduce__(self) -> NoReturn:
        _unpicklable("a dispatch that was started", "send what its result() gives")

    def __renew_locks(self) -> None:
        self.__process = os.getpid()
        self.__waiting = threading.Lock()  # one thread at a time is inside `_wait`
        self.__taking = threading.Lock()

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether `result` would return without waiting."""

    @abstractmethod
    def _wait(self, timeout: float | None) -> OutputBuffers:
        """The outputs; raises TimeoutError when `timeout` seconds have passed."""

    @final
    def result(self, timeout: float | None = None) -> OutputBuffers:
        """Wait and take the outputs. After a DeadlineExceeded of the wait the result can still be asked for."""
        self._settle(None if timeout is None else _wait_s(timeout))
        return self.__take()

    await_result = result

    def __await__(self) -> Generator[Any, None, OutputBuffers]:
        """As `result`. An await that is cancelled takes nothing."""
        return self.__awaited().__await__()

    async def __awaited(self) -> OutputBuffers:
        import asyncio  # 50 ms that only those pay who await

        await asyncio.get_running_loop().run_in_executor(None, self._settle, None)
        return self.__take()

    @final
    def _settle(self, timeout: float | None) -> None:
        """Wait until the outputs are here, and leave them. A thread that waits for another's wait keeps its time."""
        start = time.monotonic()
        if self.__process != os.getpid():
            self.__renew_locks()  # whoever held them is not in this process
        if not self.__waiting.acquire(timeout=-1 if timeout is None else timeout):
            raise _not_ended(timeout)
        try:
            if self.__held is None and not self.__taken:
                left = None if timeout is None else max(timeout - (time.monotonic() - start), 0)
                self.__held = (self.__outcome(timeout, left),)
        finally:
            self.__waiting.release()

    def __outcome(self, timeout: float | None, left: float | None) -> OutputBuffers:
        try:
            return self._wait(left)
        except DeadlineExceeded:
            raise  # the dispatch itself ran out of time
        except TimeoutError as e:
            if not self.is_ready():
                raise _not_ended(timeout) from e
        try:
            return self._wait(0)  # it ended just now, or the error is its own
        except DeadlineExceeded:
            raise
        except TimeoutError as e:
            raise DispatchFailed(
                f"the dispatch raised TimeoutError: {e}", fix="raise DeadlineExceeded for a deadline in the backend"
            ) from e

    def __take(self) -> OutputBuffers:
        with self.__taking:
            if self.__held is None:
                raise DispatchFailed("the result was already taken", fix="keep the list that the first call returned")
            (outputs,) = self.__held
            self.__taken, self.__held = True, None  # in this order: whoever waits sees one of them
        return outputs


def _wait_s(timeout: float) -> float:
    """How long a caller is willing to wait, as the locks of Python take it."""
    return min(max(seconds(timeout, -math.inf) or 0.0, 0.0), threading.TIMEOUT_MAX)


def _unpicklable(what: str, fix: str) -> NoReturn:
    raise ArgumentTypeError(f"{what} cannot be pickled or copied", fix=fix)


def _not_ended(timeout: float | None) -> DeadlineExceeded:
    return DeadlineExceeded(
        "the dispatch has not ended yet", fix="wait longer, or dispatch with a timeout", waited_s=timeout
    )


class ReadyPending(PendingDispatch):
    """A dispatch that ended before its handle was made."""

    def __init__(self, outputs: OutputBuffers) -> None:
        super().__init__()
        self._outputs = outputs

    def is_ready(self) -> bool:
        return True

    def _wait(self, timeout: float | None) -> OutputBuffers:
        return self._outputs


class FuturePending(PendingDispatch):
    """A dispatch that runs on an executor."""

    def __init__(self, future: Future[OutputBuffers]) -> None:
        super().__init__()
        self._future = future

    def is_ready(self) -> bool:
        return self._future.done()

    def _wait(self, timeout: float | None) -> OutputBuffers:
        return self._future.result(timeout)
