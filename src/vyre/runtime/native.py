"""Code of a compiled backend: what its dispatches share, wherever they run.

The driver plans a dispatch, and `bind` prepares all of it that can be prepared before the call. A dispatch that comes
without a plan, straight to the pipeline, is planned here and remembered for a while.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..driver.contract.pending import PendingDispatch
from ..driver.contract.pipeline import Bound, CompiledPipeline, DispatchPlan, by_host_clock
from ..driver.contract.values import DispatchConfig, OutputBuffers, ResidentHandle, TimedDispatchResult, named
from ..driver.execute.prepared_resident import Again, Repeats
from ..driver.plan.grid import LaunchGeometryLimits
from ..driver.plan.launch import lengths, plan_dispatch
from ..errors import DispatchFailed
from ..foundation.ir.program import Program
from ..foundation.memo import keep

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..driver.resident.reuse import Use
    from .compiled import CompiledBackend
    from .resident_memory import ResidentMemory

P = TypeVar("P")
_MAX_PLANNED = 64
"""Dispatches without a plan of the driver that a pipeline remembers."""


class NativePipeline(CompiledPipeline, Generic[P]):
    """A program that was compiled; P is a dispatch of it that was prepared."""

    def __init__(self, backend: CompiledBackend, program: Program, config: DispatchConfig) -> None:
        self.backend_id = backend.id
        self.id = f"{backend.id}:{program.fingerprint[:16]}"
        self.program, self.config = program, config
        self.limits = LaunchGeometryLimits.of(backend)
        self.repeats = Repeats()
        self._code: Any = None
        self._planned: dict[Any, P] = {}

    @abstractmethod
    def prepared(self, plan: DispatchPlan, config: DispatchConfig) -> P:
        """What a dispatch needs besides the memory of its call. Raises if the device cannot run it."""

    @abstractmethod
    def run(
        self, prepared: P, config: DispatchConfig, inputs: Sequence[Buffer], out: Sequence[Buffer] | None
    ) -> OutputBuffers:
        """The dispatch; see `Bound`."""

    def run_timed(
        self, prepared: P, config: DispatchConfig, inputs: Sequence[Buffer], out: Sequence[Buffer] | None
    ) -> TimedDispatchResult:
        return by_host_clock(lambda: self.run(prepared, config, inputs, out))

    @abstractmethod
    def start(
        self, prepared: P, config: DispatchConfig, inputs: Sequence[Buffer], out: Sequence[Buffer] | None
    ) -> PendingDispatch: ...

    def bind(self, plan: DispatchPlan, config: DispatchConfig) -> Bound:
        of = self.prepared(plan, config), config
        return Bound(partial(self.run, *of), partial(self.run_timed, *of), partial(self.start, *of))

    def dispatch(
        self, inputs: Sequence[Buffer], config: DispatchConfig | None = None, *, out: Sequence[Buffer] | None = None
    ) -> OutputBuffers:
        settled = self.config if config is None else config
        with named(settled.label):
            return self.run(self.planned(inputs, settled, out), settled, inputs, out)

    def dispatch_timed(
        self, inputs: Sequence[Buffer], config: DispatchConfig | None = None, *, out: Sequence[Buffer] | None = None
    ) -> TimedDispatchResult:
        settled = self.config if config is None else config
        with named(settled.label):
            return self.run_timed(self.planned(inputs, settled, out), settled, inputs, out)

    def dispatch_async(
        self, inputs: Sequence[Buffer], config: DispatchConfig | None = None, *, out: Sequence[Buffer] | None = None
    ) -> PendingDispatch:
        settled = self.config if config is None else config
        with named(settled.label):
            return self.start(self.planned(inputs, settled, out), settled, inputs, out)

    def planned(self, inputs: Sequence[Buffer], config: DispatchConfig, out: Sequence[Buffer] | None) -> P:
        """The prepared dispatch of a call that comes without a plan."""
        self.require_open()
        try:
            sizes = lengths(inputs, out)
            known = self._planned.get((config, sizes))
        except (TypeError, ValueError, BufferError):
            sizes = known = None  # planning says what is wrong
        if known is not None:
            return known
        plan = plan_dispatch(self.program, inputs, config, self.limits, self.backend_id, out=out)
        found = self.prepared(plan, config)
        if sizes is not None and not plan.indirect:
            keep(self._planned, (config, sizes), found, _MAX_PLANNED)
        return found

    def require_open(self) -> Any:
        """The code, unless it was closed or what it runs on is gone."""
        code = self._code
        if code is None:
            raise DispatchFailed("the pipeline is closed", fix="compile the program again", pipeline=self.id)
        return code

    def keep_ready(
        self,
        residents: ResidentMemory[Any],
        config: DispatchConfig | None,
        given: Sequence[ResidentHandle],
        again: Again,
    ) -> None:
        """From now on, and until some of it is freed, this is a dispatch over exactly this memory."""
        residents.watch(self)
        self.repeats.keep(config, given, _counting(residents.uses(self.program, given), again))
        for r in given:
            if not residents.holds(r):
                self.repeats.forget(r)  # another thread freed it just now

    def forget_resident(self, handle: ResidentHandle) -> None:
        """Memory was freed; forget the dispatches kept ready over it."""
        self.repeats.forget(handle)

    def close(self) -> None:
        """Calls in flight keep the code until they end."""
        self._code = None
        self.repeats.clear()
        self._planned.clear()


def _counting(uses: Sequence[Use], again: Again) -> Again:
    """The same, and that it binds memory which was uploaded."""
    if not uses:
        return again
    if len(uses) == 1:
        tick = uses[0].tick

        def counted() -> list[ResidentHandle] | None:
            tick()
            return again()

        return counted
    ticks = tuple(use.tick for use in uses)

    def counted_all() -> list[ResidentHandle] | None:
        for each in ticks:
            each()
        return again()

    return counted_all
