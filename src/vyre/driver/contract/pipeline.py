"""A program compiled once and dispatched many times."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, Self, TypeAlias

from ...errors import ArgumentTypeError, DispatchFailed, UnsupportedFeature
from .pending import PendingDispatch, ReadyPending
from .values import Dims, DispatchConfig, OutputBuffers, ResidentHandle, Resource, TimedDispatchResult, refuse_pickling

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..policy.decision import Decision

Run: TypeAlias = "Callable[[Sequence[Buffer], Sequence[Buffer] | None], OutputBuffers]"
"""(inputs, buffers for the outputs or None) -> outputs."""
Key: TypeAlias = "tuple[Dims | int | None, ...]"
"""The grid that comes with a call, or None; the bytes of each input, None, and those of the caller's outputs."""
RunOver: TypeAlias = "Callable[[Sequence[Buffer], Sequence[Buffer] | None, Key | None], OutputBuffers]"
"""The same, with what is known of the call's buffers, and with a grid in place of the one that the config has."""
RunTimed: TypeAlias = "Callable[[Sequence[Buffer], Sequence[Buffer] | None], TimedDispatchResult]"
Start: TypeAlias = "Callable[[Sequence[Buffer], Sequence[Buffer] | None], PendingDispatch]"
Over: TypeAlias = "Callable[[tuple[int, ...], Dims], Run | None]"
"""(elements of each bound buffer, all of them some, and a grid) -> the dispatch over those, or None."""


class Bound(NamedTuple):
    """A dispatch that was planned: to be run, run with times, or started, any number of times and from any thread.

    `over` gives the same dispatch over other lengths and another grid, at less than the cost of `bind`; None where it
    has to be bound anew.
    """

    run: Run
    timed: RunTimed
    start: Start
    over: Over | None = None


class DispatchPlan(Protocol):
    """One dispatch as the driver planned it, as far as a pipeline needs to know it."""

    @property
    def bindings(self) -> Any: ...
    @property
    def launch(self) -> Any: ...
    @property
    def outputs(self) -> Any: ...
    @property
    def iterations(self) -> int: ...
    @property
    def indirect(self) -> bool: ...
    @property
    def counted(self) -> Any: ...


class CompiledPipeline(ABC):
    """A program compiled once and dispatched many times, with exactly the bytes of `backend.dispatch`."""

    id: str
    """`<backend>:<what was compiled>`."""
    backend_id: str
    in_place = False
    """Whether outputs may be given memory in which inputs lie: results are as if it lay apart, and memory that is both
    is worked in where that cannot be noticed. Outputs that share memory with each other are refused."""

    def __reduce__(self) -> NoReturn:
        refuse_pickling("a compiled pipeline", "send the program, and compile it on the other side")

    @abstractmethod
    def dispatch(
        self, inputs: Sequence[Buffer], config: DispatchConfig | None = None, *, out: Sequence[Buffer] | None = None
    ) -> OutputBuffers:
        """Run it. Without a config, the one it was compiled with."""

    def dispatch_timed(
        self, inputs: Sequence[Buffer], config: DispatchConfig | None = None, *, out: Sequence[Buffer] | None = None
    ) -> TimedDispatchResult:
        """As `dispatch`, with times."""
        return by_host_clock(lambda: self.dispatch(inputs, config, out=out))

    def dispatch_async(
        self, inputs: Sequence[Buffer], config: DispatchConfig | None = None, *, out: Sequence[Buffer] | None = None
    ) -> PendingDispatch:
        """Start a dispatch; as `VyreBackend.dispatch_async`."""
        return ReadyPending(self.dispatch(inputs, config, out=out))

    def bind(self, plan: DispatchPlan, config: DispatchConfig) -> Bound:
        """A dispatch that the driver has planned.

        What follows from the plan and the config is worked out here. Inputs, and buffers for the outputs, are those of
        the call and have the lengths of the plan. A plan whose grid came from memory is for one call.
        """
        dispatch = self.dispatch
        return Bound(
            lambda inputs, out: dispatch(inputs, config, out=out),
            lambda inputs, out: self.dispatch_timed(inputs, config, out=out),
            lambda inputs, out: self.dispatch_async(inputs, config, out=out),
        )

    def decisions(self, plan: DispatchPlan, config: DispatchConfig, memory: str) -> Sequence[Decision]:
        """For `explain`: what was decided about this code, and about this dispatch of it, below the driver.

        `memory` is where its buffers are: on the `host`, `resident`, or `both`.
        """
        from ..policy.decision import Decision  # only `explain` pays for it
        from ..policy.launch import NEVER

        return (Decision("recording", NEVER, f"backend {self.backend_id} records no launches"),)

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


def by_host_clock(run: Callable[[], OutputBuffers]) -> TimedDispatchResult:
    """A dispatch and how long the caller waited for it."""
    start = time.perf_counter_ns()
    return TimedDispatchResult(run(), time.perf_counter_ns() - start)
