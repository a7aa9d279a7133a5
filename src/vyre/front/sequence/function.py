"""`@vyre.sequence`: a function that calls kernels is run once for each kind of arguments, and then repeated as a whole.

A repetition uploads the arguments, dispatches all steps with one call, and downloads the results. It runs no Python of
the function.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, ParamSpec, TypeVar, cast

import numpy as np

from ...driver.contract.values import OutputBuffers, ResidentDispatchStep, ResidentHandle, ResidentReadRange
from ...driver.counters import count_decision
from ...driver.guard.compile import compile
from ...driver.policy.overlap import choose_arms
from ...driver.resident.arms import waits_of
from ...driver.selection.registry import generation
from ...driver.settings.knobs import BACKEND, FUSION, SHADOW, STRICT
from ...errors import ArgumentTypeError, ArgumentValueError, Trap, UnsupportedFeature
from ...foundation.memo import keep
from ..arrays import HOST_DEVICES, WORD, Array, from_bytes, shown_rows, to_input
from ..call import Call
from ..compile import choose
from ..debug import with_place
from ..device.array import DeviceBuffer
from ..device.home import Home, Memory, home_of
from ..kernel import imported, is_at_its_name
from ..tracebacks import MISTAKES, end_at_the_caller
from .arguments import PLAIN, At, Given, filled, walked
from .now import recording, refuse_to_look
from .recording import Recorder, Step, argument
from .stream import KernelStream, calls_of_sequence

if TYPE_CHECKING:
    from ...driver.contract.exchange import DeviceExchange
    from ...driver.execute.fusing import FusedStep
    from ...driver.policy.decision import Decision
    from ...foundation.language.small.types import SmallType
    from ..kernel import Kernel

P = ParamSpec("P")
R = TypeVar("R")
MOST_KINDS = 64
"""Kinds of arguments for which a sequence keeps recordings, the oldest out first."""
_WITHOUT_MEMORY = ("resident buffer allocation", "resident buffer upload", "resident dispatch")
"""What a backend lacks that keeps nothing on its device."""
_WORD = 4
MOST_ALIKE = 8
"""Recordings of one kind: one for each thread at work, and for each set of results on the device that is in use."""


@dataclass(frozen=True, slots=True)
class SequenceExplanation:
    """What a call does. `str()` is for people."""

    device: str
    steps: tuple[Step, ...]
    launches: tuple[range, ...]
    """The steps of each launch."""
    decisions: tuple[Decision, ...]
    """Why steps are one launch, or are not."""
    arms: tuple[Decision, ...]
    """For each launch, whether it runs beside others."""
    uploaded_bytes: int
    downloaded_bytes: int
    device_bytes: int

    def __str__(self) -> str:
        n = len(self.launches)
        few = "" if n == len(self.steps) else f" in {n} launch{'es' if n != 1 else ''}"
        lines = [
            f"{len(self.steps)} steps on {self.device}{few}, dispatched together",
            f"uploads {self.uploaded_bytes:,} bytes, downloads {self.downloaded_bytes:,}, and holds "
            f"{self.device_bytes:,} on the device",
        ]
        lines += map(str, self.decisions)
        said: tuple[Decision, ...] = ()  # what a step has like the one before is not said again
        for k, step in enumerate(self.steps, 1):
            told = step.explanation
            assert told is not None
            lines.append(f"step {k}: {step.kernel}, {told.invocations:,} invocations")
            lines += (
                f"  {arm}" for arm, members in zip(self.arms, self.launches, strict=True) if members.start == k - 1
            )
            lines += (f"  {decision}" for decision in told.decisions if decision not in said)
            said = told.decisions
        return "\n".join(lines)


class KernelSequence(Generic[P, R]):
    """A function that calls kernels, as one dispatch. Call it with what the function takes.

    `backend` is None or what `on` named.
    """

    backend: str | None = None

    def __init__(self, function: Callable[P, R]) -> None:
        if not inspect.isfunction(function):
            raise ArgumentTypeError(
                f"sequence() got a {type(function).__name__}", fix="write @vyre.sequence above a function"
            )
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise ArgumentTypeError(
                f"{function.__name__} is no plain function", fix="call kernels in a function that returns their results"
            )
        update_wrapper(self, function)
        self._function, self._parameters = function, tuple(inspect.signature(function).parameters)
        self._recordings: dict[tuple[object, ...], list[_Recording]] = {}
        self._named: dict[str, KernelSequence[P, R]] = {}
        self._last_home: tuple[tuple[object, ...], Home] | None = None
        self._lock = threading.Lock()

    __wrapped__: Callable[P, R]
    __name__: str
    __qualname__: str

    def on(self, backend: str) -> KernelSequence[P, R]:
        """The same sequence on this backend ("id" or "id:device"), or an error; never on another one."""
        if not isinstance(backend, str):
            raise ArgumentTypeError(f"on() got a {type(backend).__name__}", fix='name a backend: .on("cpu")')
        other = self._named.get(backend)
        if other is None:
            other = KernelSequence(self._function)
            other.backend = backend
            self._named[backend] = other
        return other

    def __call__(self, *args: P.args, **named: P.kwargs) -> R:
        try:
            return cast("R", self._call(args, named))
        except MISTAKES as e:
            end_at_the_caller(e)
            raise

    def map(
        self,
        *arguments: Iterable[Any],
        progress: Callable[[int, int | None], object] | bool | None = None,
        **named: Any,
    ) -> KernelStream:
        """As `map` of a kernel: a call with one of each of these iterables after the other, each when the one before
        has ended."""
        try:
            refuse_to_look("map()")
            return calls_of_sequence(self, arguments, named, progress)
        except MISTAKES as e:
            end_at_the_caller(e)
            raise

    def __getattr__(self, name: str) -> NoReturn:
        """What kernels have and sequences have not."""
        instead = {
            "start": "call it on a thread: concurrent.futures.ThreadPoolExecutor().submit(sequence, ...)",
            "evidence": "ask the kernel of a step: kernel.evidence(...)",
        }.get(name)
        said = f"a sequence has no {name}"
        raise AttributeError(said if instead is None else f"{said}. Fix: {instead}", name=name, obj=self)

    def explain(self, *args: P.args, **named: P.kwargs) -> SequenceExplanation:
        """What a call with these arguments does: steps, copies, memory, and every decision with its reason.

        The function runs once for it, and none of its kernels.
        """
        self._require_fitting(args, named)
        given = Given(self._parameters, args, named)
        return _Recording(self._function, given, self._home(given), explains=True).explanation()

    def _call(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        given = Given(self._parameters, args, named)
        home = self._home(given)
        key = home, home.backend.device_state.incarnation, given.kind, FUSION.peek()
        made = self._unused(key)
        if made is None:
            self._require_fitting(args, named)
        try:
            if made is not None:
                return made.repeat(given)
            made = _Recording(self._function, given, home)
            return made.first(given)
        except UnsupportedFeature as e:
            if e.context.get("name") not in _WITHOUT_MEMORY or given.home is not None:
                raise
            return _over_host_memory(self._function, given, home)
        finally:
            if made is not None:
                self._put_back(key, made)

    def _require_fitting(self, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        try:
            inspect.signature(self._function).bind(*args, **named)
        except TypeError as e:
            shown = f"{self.__name__}{inspect.signature(self._function)}"
            raise ArgumentTypeError(f"{self.__name__}() was called wrongly: {e}", fix=f"call {shown}") from e

    def _home(self, given: Given) -> Home:
        """Where the device arrays among the arguments live; else what `on` named, or what is chosen."""
        found = given.home
        if found is None:
            asked = generation(), BACKEND.peek(), STRICT.peek()
            known = self._last_home
            if known is not None and known[0] == asked and known[1].is_open:
                return known[1]
            home = home_of(self.backend or choose().chosen)
            self._last_home = asked, home
            return home
        if self.backend is not None and home_of(self.backend) is not found:
            raise ArgumentValueError(
                f"an argument lives on {found.name} and on({self.backend!r}) asks for another device",
                fix="drop on(), or pass arrays of the host",
            )
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        """A sequence travels as its name; the function is Python."""
        if not is_at_its_name(
            self, lambda found: isinstance(found, KernelSequence) and found._function is self._function
        ):
            raise ArgumentTypeError(
                f"no module has the sequence {self.__name__} under its name, so that it cannot be pickled",
                fix="define it at the top of a module",
            )
        return imported, (self.__module__, self.__qualname__, self.backend)

    def __copy__(self) -> KernelSequence[P, R]:
        return self

    def __deepcopy__(self, memo: object) -> KernelSequence[P, R]:
        return self  # what it keeps changes no result

    def _unused(self, key: tuple[object, ...]) -> _Recording | None:
        """A recording whose memory no other thread uses, and no array that a call returned."""
        with self._lock:
            shelf = self._recordings.get(key, [])
            at = next((k for k, made in enumerate(shelf) if not made.is_lent), None)
            return None if at is None else shelf.pop(at)

    def _put_back(self, key: tuple[object, ...], made: _Recording) -> None:
        with self._lock:
            shelf = self._recordings.pop(key, [])
            keep(self._recordings, key, [made, *shelf][:MOST_ALIKE], MOST_KINDS)


def sequence(function: Callable[P, R]) -> KernelSequence[P, R]:
    """Record a function that calls kernels, and repeat it as one dispatch.

    It takes and returns arrays, of the host or of a device, and numbers; arrays that it makes stay on the device. It
    runs once for each kind of arguments: types, shapes and numbers. What it decides must follow from these alone.
    """
    return KernelSequence(function)


class _Result(NamedTuple):
    """An array that the function returned: it is an argument, or lies over the memory of one, or over our own.

    `small` is what its rows are, where a kernel said so, and `counted` where the word is that says how long it is.
    """

    argument: int | None
    over: int | None
    array: DeviceBuffer | None
    small: SmallType | None
    counted: tuple[Memory, int] | None


class _Recording:
    """The steps of a function for one kind of arguments, and their memory."""

    def __init__(self, function: Callable[..., Any], given: Given, home: Home, *, explains: bool = False) -> None:
        """Run the function, and write its kernel calls down. Nothing runs on the device."""
        self.home, self._recorder = home, Recorder(home, given.handles, explains=explains)
        seen, self._filled = [], []
        for at, array in enumerate(given.arrays):
            if type(array) is DeviceBuffer:
                seen.append(array)
                continue
            on_device, handle = argument(self._recorder, array)
            seen.append(on_device)
            if handle is not None:
                self._filled.append((at, handle))
        self._results: list[_Result] = []
        try:
            with recording(self._recorder):
                returned = given.call(function, seen)
            self._form = walked(returned, lambda _, part: self._looked_at(part, seen))
        finally:
            self._recorder.end()
        self._wanted = {handle.id for handle in given.handles} | {handle.id for _, handle in self._filled}
        for result in self._results:
            if result.array is not None and result.array._memory is not None:
                self._wanted.add(result.array._memory.handle.id)
            if result.counted is not None:
                self._wanted.add(result.counted[0].handle.id)
        self._fused: list[FusedStep] = []
        self._steps = self._launches(given.adopted)
        self._on_device = given.home is not None
        self._written = [(at, handle) for at, handle in self._filled if handle.id in self._recorder.written]
        written = {at for at, _ in self._written}
        given.require_apart(written | given.places_of(self._recorder.written))
        self._reads = [ResidentReadRange(handle, 0, seen[at].nbytes) for at, handle in self._written]
        self._words: list[ResidentReadRange] = []
        if not self._on_device:
            self._reads += filter(None, map(_read_back, self._results))
            words = [r.counted for r in self._results if r.counted is not None]
            self._words = [ResidentReadRange(memory.handle, _WORD * at, _WORD) for memory, at in words]
        self._in_place = _InPlace.of(home, given, self._filled, (*self._reads, *self._words))
        self._ids = tuple(handle.id for handle in given.handles)
        self._rebound: dict[tuple[int, ...], tuple[ResidentDispatchStep, ...]] = {}
        self._lent: list[weakref.ref[Memory]] = []

    def _launches(self, adopted: set[int]) -> tuple[ResidentDispatchStep, ...]:
        """The steps, with those together that are one launch."""
        if not FUSION.value() or len(self._recorder.steps) < 2:
            return self._recorder.launches()
        self._fused = self._recorder.fused(self._wanted, adopted)
        for each in self._fused:
            for decision in each.decisions:
                count_decision(decision)
        return tuple(each.step for each in self._fused)

    @property
    def is_lent(self) -> bool:
        """Whether an array that a call returned lies over its memory."""
        self._lent = [ref for ref in self._lent if ref() is not None]
        return bool(self._lent)

    def first(self, given: Given) -> Any:
        try:
            found = self.repeat(given)
        except UnsupportedFeature as e:
            if e.context.get("name") != "long loops":
                raise
            self._steps = self._recorder.launches(tells=True)  # refused before anything ran
            return self.repeat(given)
        self._recorder.keep_only(self._used())
        return found

    def _used(self) -> set[int]:
        """Ids of the memory that a repetition reads or writes."""
        in_steps = {r.id for step in self._steps for r in step.resources if isinstance(r, ResidentHandle)}
        return self._wanted | in_steps

    def repeat(self, given: Given) -> Any:
        targets = [given.target(at) for at, _ in self._written]  # which refuses before anything runs
        self._upload(given)
        try:
            outputs = self._dispatched(self._bound(given))
        except Trap as e:
            raise with_place(e, *(step.program for step in self._steps)) from None
        return self._handed_back(given, targets, outputs if not self._words else self._with_counted(outputs))

    def _with_counted(self, outputs: OutputBuffers) -> OutputBuffers:
        """All that is read back, once the words say how long some of it is; those come last."""
        plain, words = outputs[: len(self._reads)], outputs[len(self._reads) :]
        ranges = []
        for result, word in zip((r for r in self._results if r.counted is not None), words, strict=True):
            assert result.array is not None and result.array._memory is not None
            most = result.array.nbytes
            width = most // result.array.size
            count = int.from_bytes(memoryview(word), "little")
            ranges.append(ResidentReadRange(result.array._memory.handle, 0, min(width * count, most)))
        read = self.home.backend.download_resident if self._in_place is None else self._in_place.read
        return [*plain, *read(ranges)]

    def _dispatched(self, steps: tuple[ResidentDispatchStep, ...]) -> OutputBuffers:
        """All steps together; one by one where a shadow is asked for, which checks dispatches."""
        backend = self.home.backend
        if SHADOW.peek() is None and self._in_place is not None:
            backend.dispatch_resident(steps)
            return self._in_place.results()
        if SHADOW.peek() is None:
            return backend.dispatch_resident(steps, reads=[*self._reads, *self._words])[0]
        for step in steps:
            if all(isinstance(r, ResidentHandle) for r in step.resources):
                compile(backend, step.program).dispatch_resident(step.resources, step.config)
            else:
                backend.dispatch_resident([step])
        return backend.download_resident([*self._reads, *self._words])

    def explanation(self) -> SequenceExplanation:
        recorder = self._recorder
        how = self.home.backend.capability.extras.get("arms")
        return SequenceExplanation(
            self.home.name,
            tuple(recorder.steps),
            tuple(each.members for each in self._fused) or tuple(range(k, k + 1) for k in range(len(recorder.steps))),
            tuple(decision for each in self._fused for decision in each.decisions),
            tuple(choose_arms(waits_of(self._steps), how)),
            sum(handle.nbytes for _, handle in self._filled),
            sum(r.byte_len for r in (*self._reads, *self._words)),
            recorder.nbytes_of(self._used()),
        )

    def _upload(self, given: Given) -> None:
        if self._in_place is not None:
            self._in_place.fill(given)
            return
        ranges = [(handle, 0, to_input(given.arrays[at])) for at, handle in self._filled]
        if ranges:
            self.home.backend.upload_resident(ranges)

    def _looked_at(self, value: Any, seen: Sequence[Any]) -> Any:
        """A part of what the function returned, with `At` in place of an array."""
        if type(value) is DeviceBuffer:
            if not self._recorder.knows(value):
                raise ArgumentTypeError(
                    "the function returned a device array that it was not given and did not make while it was recorded",
                    fix="pass it to the sequence, and call kernels in this thread alone",
                )
            recorder, number = self._recorder, value._number
            word, at = recorder.counted.get(number, (None, 0)) if value.size else (None, 0)
            counted = None if word is None or word._memory is None else (word._memory, at)
            self._results.append(_result(value, seen, recorder.small.get(number), counted))
            return At(len(self._results) - 1)
        if type(value) in PLAIN or isinstance(value, np.generic):
            return value
        raise ArgumentTypeError(
            f"the function returned a {type(value).__name__}, which a repetition would not make again",
            fix="return the arrays that kernels gave, in tuples, lists or dicts",
        )

    def _handed_back(self, given: Given, targets: Sequence[Array], outputs: Sequence[Any]) -> Any:
        """What the function returned, as arrays like those that were given; written arguments have their results."""
        found, last = iter(outputs), iter(outputs[len(self._reads) :])
        written = [(target, next(found)) for target in targets]
        handed = [self._handed(r, given, found if r.counted is None else last) for r in self._results]
        for target, data in written:
            target[...] = from_bytes(data, target.dtype.newbyteorder("="), target.shape)
        return filled(self._form, handed)

    def _handed(self, result: _Result, given: Given, found: Iterator[Any]) -> Any:
        if result.array is None:
            assert result.argument is not None
            return given.object(result.argument)
        array = result.array
        if self._on_device:
            return self._lend(array, None if result.over is None else given.arrays[result.over])
        if array._memory is None:
            numbers: Array = np.empty(array.shape, array.dtype)
        else:
            data = next(found)
            width = array.nbytes // max(array.size, 1)
            shape = array.shape if result.counted is None else (memoryview(data).nbytes // width,)
            numbers = from_bytes(data, array.dtype, shape)
        return numbers if result.small is None else shown_rows(result.small, numbers)

    def _lend(self, array: DeviceBuffer, over: Any) -> DeviceBuffer:
        """A new array over memory of the recording, which is not used again before that array is gone, or over that of
        a device array among the arguments."""
        memory = array._memory
        if type(over) is DeviceBuffer:
            memory = over._memory
        elif memory is not None:
            memory = Memory(self.home, memory.handle, owned=False, keep=self)
            self._lent.append(weakref.ref(memory))
        return DeviceBuffer._over(self.home, memory, array.dtype, array.shape, is_bfloat=array._is_bfloat)

    def _bound(self, given: Given) -> tuple[ResidentDispatchStep, ...]:
        """The steps over the device arrays of this call."""
        handles = given.handles
        ids = tuple(handle.id for handle in handles)
        if ids == self._ids:
            return self._steps
        known = self._rebound.get(ids)
        if known is None:
            other = dict(zip(self._ids, handles, strict=True))
            known = tuple(
                replace(step, resources=tuple(other.get(getattr(r, "id", 0), r) for r in step.resources))
                for step in self._steps
            )
            keep(self._rebound, ids, known, MOST_ALIKE)
        return known


class _InPlace:
    """The memory of a recording on a device that works in memory of the host: nothing is uploaded, but copied there."""

    def __init__(self, exchange: DeviceExchange, filled: Sequence[tuple[int, Array]], read: Sequence[Array]) -> None:
        self._exchange, self._filled, self._read = exchange, filled, read

    @classmethod
    def of(
        cls,
        home: Home,
        given: Given,
        filled: Sequence[tuple[int, ResidentHandle]],
        reads: Sequence[ResidentReadRange],
    ) -> _InPlace | None:
        exchange = home.exchange
        if exchange is None or exchange.device[0] not in HOST_DEVICES:
            return None
        seen: list[tuple[int, Array]] = []
        for at, handle in filled:
            array = given.arrays[at]
            dtype = WORD if array.dtype.char == "?" else array.dtype.newbyteorder("=")
            seen.append((at, exchange.seen_by_host(handle).view(dtype).reshape(array.shape)))
        found = cls(exchange, seen, ())
        found._read = [found._part(r) for r in reads]
        return found

    def _part(self, r: ResidentReadRange) -> Array:
        whole: Array = self._exchange.seen_by_host(r.resource)
        return whole[r.byte_offset : r.byte_offset + r.byte_len]

    def fill(self, given: Given) -> None:
        for at, memory in self._filled:
            np.copyto(memory, given.arrays[at])

    def results(self) -> OutputBuffers:
        return [part.copy().data for part in self._read]

    def read(self, ranges: Sequence[ResidentReadRange]) -> OutputBuffers:
        return [self._part(r).copy().data for r in ranges]


def _result(
    array: DeviceBuffer, seen: Sequence[Any], small: SmallType | None, counted: tuple[Memory, int] | None
) -> _Result:
    at = next((k for k, each in enumerate(seen) if each is array), None)
    if at is not None:
        return _Result(at, None, None, None, None)
    over = (k for k, each in enumerate(seen) if each._memory is not None and each._memory is array._memory)
    return _Result(None, next(over, None), array, small, counted)


def _read_back(result: _Result) -> ResidentReadRange | None:
    array = result.array
    if array is None or array._memory is None or result.counted is not None:
        return None
    return ResidentReadRange(array._memory.handle, 0, array.nbytes)


class _HostRecorder:
    """Dispatches the kernel calls of a function over memory of the host, where a backend has no other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.counted: dict[int, tuple[Array, int]] = {}
        """Results that are counted, by identity, each with how long it is."""

    def call(self, kernel: Kernel, args: tuple[Any, ...], named: dict[str, Any], *rest: Any) -> Any:
        made = Call(kernel.on(self.name), args, named, *rest)
        counted = made.plan.counted
        if not counted:
            return made.run()
        for k in counted:
            made.plan.require_word(k)
        whole = {o.name: np.zeros(o.shape, o.dtype) for k, o in enumerate(made.plan.outputs) if k in counted}
        handed = Call(kernel.on(self.name), args, {**named, **whole}, *rest).run()
        self.counted |= {
            id(handed[k]): (handed[k], int(handed[word].reshape(-1)[at])) for k, (word, at) in counted.items()
        }
        return handed

    def cut(self, part: Any) -> Any:
        """What counts of an array that a function returns."""
        array, count = self.counted.get(id(part), (None, 0))
        return part if array is None else array.reshape(-1)[:count].copy()


def _over_host_memory(function: Callable[..., Any], given: Given, home: Home) -> Any:
    """A call on a backend whose memory is that of the host, step by step. The caller's arrays change at its end."""
    copies = [np.array(a, order="C") for a in given.arrays]
    recorder = _HostRecorder(home.name)
    with recording(recorder):
        returned = given.call(function, copies)
    changed = [
        at for at, (a, b) in enumerate(zip(given.arrays, copies, strict=True)) if np.asarray(a).tobytes() != b.tobytes()
    ]
    given.require_apart(changed)
    targets = [given.target(at) for at in changed]
    for at, target in zip(changed, targets, strict=True):
        target[...] = copies[at]
    own = {id(copy): at for at, copy in enumerate(copies)}
    return walked(returned, lambda _, part: given.object(own[id(part)]) if id(part) in own else recorder.cut(part))
