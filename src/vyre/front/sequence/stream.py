"""`kernel.map`: calls over a stream of arguments, of which the next ones are on their way while one is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...driver.contract.pending import PendingDispatch, ReadyPending
from ...driver.execute.stream import Hinders, Stream, hinders_of, length_of
from ...driver.policy.overlap import Access, Span
from ...errors import ArgumentTypeError
from ..call import Call, PendingCall
from ..tracebacks import MISTAKES, end_at_the_caller
from .arguments import bounds

if TYPE_CHECKING:
    from ...driver.contract.backend import VyreBackend
    from ...driver.contract.values import DispatchConfig
    from ..bind import Extent
    from ..kernel import Kernel


class KernelStream(Stream[Any]):
    """The results of calls, in order; as `Stream`."""

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except MISTAKES as e:
            end_at_the_caller(e)
            raise


def calls_of(
    kernel: Kernel,
    arguments: tuple[Iterable[Any], ...],
    named: dict[str, Any],
    options: tuple[Extent, Extent, Mapping[str, Any] | None, DispatchConfig | None],
    in_flight: int | None,
    progress: Callable[[int, int | None], object] | bool | None,
) -> KernelStream:
    """The calls of a kernel with one of each of the arguments."""
    _require_iterables(kernel.__name__, arguments)
    hinders = _HindersOf()
    jobs = (_CallJob(partial(Call, kernel, args, named, *options), hinders) for args in zip(*arguments, strict=False))
    return KernelStream(jobs, total=length_of(arguments), in_flight=in_flight, progress=progress)


def calls_of_sequence(
    call: Callable[..., Any],
    arguments: tuple[Iterable[Any], ...],
    named: dict[str, Any],
    progress: Callable[[int, int | None], object] | bool | None,
) -> KernelStream:
    """The calls of a sequence with one of each of the arguments, one after the other."""
    _require_iterables(getattr(call, "__name__", "sequence"), arguments)
    jobs = (_SequenceJob(partial(call, *args, **named)) for args in zip(*arguments, strict=False))
    return KernelStream(jobs, total=length_of(arguments), progress=progress)


class _SequenceJob:
    """A call of a sequence in a stream."""

    __slots__ = ("run",)

    def __init__(self, run: Callable[[], Any]) -> None:
        self.run = run

    def nbytes(self) -> int:
        return 0

    def access(self) -> Access:
        return Access()

    def hinders(self) -> Hinders:
        return Hinders(never="a sequence uploads into memory that the one before works over")

    def wait(self) -> None:
        """Nothing has been read of its arguments."""

    def start(self) -> PendingDispatch:
        return ReadyPending(self.run())  # which nothing asks for, as it never is on its way


def _require_iterables(name: str, arguments: tuple[Iterable[Any], ...]) -> None:
    if not arguments:
        raise ArgumentTypeError(
            f"{name}.map() got nothing to go through", fix="pass an iterable for each positional parameter"
        )
    for k, each in enumerate(arguments):
        if not isinstance(each, Iterable):
            raise ArgumentTypeError(
                f"argument {k} of {name}.map() is a {type(each).__name__}, not an iterable",
                fix="pass what all calls have by its name, and else an iterable with one for each call",
            )


class _HindersOf:
    """What hinders on a backend: mostly the same one as for the call before."""

    def __init__(self) -> None:
        self._known: tuple[object, Hinders] = None, Hinders()

    def __call__(self, backend: VyreBackend) -> Hinders:
        if self._known[0] is not backend:
            self._known = backend, hinders_of(backend)
        return self._known[1]


class _CallJob:
    """A call of a stream."""

    __slots__ = ("_hinders", "_make", "_waits", "call")

    def __init__(self, make: Callable[[], Call], hinders: _HindersOf) -> None:
        self.call, self._make, self._hinders, self._waits = make(), make, hinders, False

    def nbytes(self) -> int:
        return sum(memoryview(data).nbytes for data in self.call.inputs) if type(self.call) is Call else 0

    def access(self) -> Access:
        """Of the arrays that the caller has: what is read may be a copy of one, in the form that a dispatch takes."""
        values = self.call.values
        reads = [Span(0, *bounds(each)) for each in values if isinstance(each, np.ndarray)]
        return Access(reads, [Span(0, *bounds(values[at])) for at, _ in self.call.plan.targets])

    def hinders(self) -> Hinders:
        if type(self.call) is not Call:
            return Hinders(never="its arguments live on the device")
        return self._hinders(self.call.pipeline().backend)

    def wait(self) -> None:
        self._waits = True

    def run(self) -> Any:
        if self._waits:
            self.call = self._make()  # whose copies of arrays are of what they hold now
        return self.call.run()

    def start(self) -> PendingCall:
        return self.call.start()
