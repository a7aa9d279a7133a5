"""One run of a sequence's function: its kernel calls are written down, and nothing runs yet.

The arrays that the function sees lie on the device. Memory of an array that the function drops serves the next one of
its size, in every repetition alike.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...driver.contract.pipeline import CompiledPipeline
from ...driver.contract.values import (
    DEFAULT_CONFIG,
    DispatchConfig,
    HostResource,
    ResidentDispatchStep,
    ResidentHandle,
    Resource,
)
from ...driver.execute.fusing import FusedStep, fuse
from ...driver.guard.compile import compile
from ...errors import ArgumentTypeError, ArgumentValueError, UnsupportedFeature, VyreError
from ..arrays import Array
from ..bind import ArgumentLayout, Extent, Options, OutputPlan
from ..device import kernels
from ..device.array import DeviceBuffer, duplicate
from ..device.call import DeviceCall
from ..device.home import Home, Memory

if TYPE_CHECKING:
    from ...driver.execute.explanation import Explanation
    from ...foundation.ir.program import Program
    from ...foundation.language.small.types import SmallType
    from ..kernel import Kernel

_PER_LAUNCH = ("grid_override", "workgroup_override", "output_lengths")
"""Options of a dispatch that a step has, or the reading of its results."""


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel call that was written down."""

    kernel: str
    launch: ResidentDispatchStep
    explanation: Explanation | None


class Recorder:
    """The kernel calls of a function, in order. All memory of the recording belongs to this."""

    def __init__(self, home: Home, given: Sequence[ResidentHandle], *, explains: bool = False) -> None:
        """`given` is the memory of device arrays among the arguments; `explains`: every step is explained at once."""
        self.home, self.explains = home, explains
        self.steps: list[Step] = []
        self.written: set[int] = set()
        """Ids of the memory that some step writes to."""
        self.small: dict[int, SmallType] = {}
        """What the rows of some results are, by the numbers of their arrays."""
        self.counted: dict[int, tuple[DeviceBuffer, int]] = {}
        """Where the words are that say how long some results are: an array, and which word of it."""
        self._known = {handle.id for handle in given}
        self._made: list[weakref.ref[Memory]] = []
        self._owned: list[ResidentHandle] = []
        self._idle: dict[int, list[ResidentHandle]] = {}
        self._constants: dict[bytes, ResidentHandle] = {}

    # -- memory

    def take(self, nbytes: int) -> ResidentHandle:
        """Memory with any contents, until the recording ends."""
        handle = self.home.take(nbytes)
        self._owned.append(handle)
        self._known.add(handle.id)
        return handle

    def nbytes_of(self, used: set[int]) -> int:
        """How much memory of the recording has one of these ids."""
        return sum(handle.nbytes for handle in self._owned if handle.id in used)

    def keep_only(self, used: set[int]) -> None:
        """Free what has none of these ids: intermediate arrays that no launch stores."""
        kept = [handle for handle in self._owned if handle.id in used]
        unused = [handle for handle in self._owned if handle.id not in used]
        self._owned = kept
        for handle in unused:
            self.home.drop(handle, None, None)

    def result(self, nbytes: int) -> Memory:
        """Memory for a result, until the function has dropped it: then for the next one of this size."""
        shelf = self._idle.setdefault(nbytes, [])
        handle = shelf.pop() if shelf else self.take(nbytes)
        memory = self.seen(handle)
        weakref.finalize(memory, shelf.append, handle).atexit = False
        return memory

    def seen(self, handle: ResidentHandle) -> Memory:
        """Our memory, as arrays have it while the function runs."""
        memory = Memory(self.home, handle, owned=False)
        self._made.append(weakref.ref(memory))
        return memory

    def end(self) -> None:
        """The function has returned. Arrays that it kept elsewhere are of no use from now on: they would change."""
        for ref in self._made:
            memory = ref()
            if memory is not None:
                memory.ended = True
        self._made.clear()

    def constant(self, data: bytes) -> ResidentHandle:
        """Memory that holds these bytes in every repetition."""
        known = self._constants.get(data)
        if known is None:
            known = self._constants[data] = self.take(len(data))
            self.home.backend.upload_resident([(known, 0, data)])
        return known

    def fused(self, wanted: set[int], adopted: set[int]) -> list[FusedStep]:
        """Launches that do what the steps do, fewer if they can be. `wanted` is memory that is read after them, and
        `adopted` that of other libraries."""
        names = [step.kernel for step in self.steps]
        constants = {handle.id: data for data, handle in self._constants.items()}
        return fuse(
            [step.launch for step in self.steps], names, self.home.backend, wanted, adopted, constants, self._refused
        )

    def _refused(self, program: Program) -> str | None:
        """Compile a program that does the work of several steps. Why it is no single launch here, if it is not."""
        try:
            native = compile(self.home.backend, program).native
        except VyreError as e:
            return " ".join(e.message.split())
        return None if runs_on_device(native) else "together they are several dispatches here"

    def launches(self, *, tells: bool = False) -> tuple[ResidentDispatchStep, ...]:
        """All steps. `tells`: constants are bytes of the host, for a device that asks how long loops are."""
        if not tells:
            return tuple(step.launch for step in self.steps)
        told: dict[Resource, Resource] = {handle: HostResource(data) for data, handle in self._constants.items()}
        return tuple(
            replace(step.launch, resources=tuple(told.get(r, r) for r in step.launch.resources)) for step in self.steps
        )

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_ending():
            for handle in self._owned:
                with suppress(Exception):  # of a device that is gone
                    self.home.drop(handle, None, None)

    def knows(self, array: DeviceBuffer) -> bool:
        """Whether it is an argument, or was made while recording."""
        memory = array._memory
        return memory is None or memory.handle.id in self._known

    # -- calls

    def call(
        self,
        kernel: Kernel,
        args: tuple[Any, ...],
        named: dict[str, Any],
        grid: Extent,
        domain: Extent,
        sizes: Mapping[str, Any] | None,
        config: DispatchConfig | None,
    ) -> Any:
        return _RecordedCall(self, kernel, args, named, Options(grid, domain, sizes, config)).run()

    def add(self, step: Step, written: Sequence[Resource]) -> None:
        ids = {r.id for r in written if isinstance(r, ResidentHandle)}
        for number, (word, at) in list(self.counted.items()):
            if word._memory is not None and word._memory.handle.id in ids:  # which must stay as it was counted
                self.counted[number] = duplicate(word), at
        self.steps.append(step)
        self.written |= ids


class _RecordedCall(DeviceCall):
    """A kernel call of the function."""

    __slots__ = ("recorder",)

    def __init__(
        self, recorder: Recorder, kernel: Kernel, args: tuple[Any, ...], named: dict[str, Any], options: Options
    ) -> None:
        form = ArgumentLayout(kernel, len(args), tuple(named))
        self.recorder, self.kernel = recorder, kernel
        self.values = values = [*args, *named.values(), *form.defaults]
        for at, p in form.buffers:
            of_ours = kernel.__module__ == kernels.__name__ and p.role == "in"  # which takes shapes in arrays
            value = values[at]
            known = self.recorder.knows(value) if type(value) is DeviceBuffer else value is None or of_ours
            if not known:
                raise ArgumentTypeError(
                    f"{p.name} of {kernel.__name__} is a {type(value).__name__} that is no argument of the "
                    "sequence, and a repetition would not see what becomes of it",
                    fix="pass it to the sequence, or make it with a kernel",
                    argument=p.name,
                )
        program: Program = kernel._only_program or kernel.specialize(**{name: values[at] for at, name in form.consts})
        self.prepare(form, program, options)

    def _home(self, first: tuple[str, Home] | None) -> Home:
        if first is not None and first[1] is not self.recorder.home:
            raise ArgumentValueError(
                f"{first[0]} lives on {first[1].name} and the sequence runs on {self.recorder.home.name}",
                fix=f'bring it there: vyre.to_device({first[0]}, "{self.recorder.home.name}")',
            )
        return self.recorder.home

    def run(self) -> Any:
        plan = self.plan
        self._require_a_step(plan.request)
        made: list[Memory | None] = [None] * len(plan.outputs)
        if plan.idle:
            return self.hand_back([self._idle(o) for o in plan.outputs])
        self._require_one_launch()
        resources, config = tuple(self._resources(made)), plan.config
        launch = ResidentDispatchStep(plan.program, resources, config.grid_override, config.workgroup_override)
        told = self.explain() if self.recorder.explains else None
        written = [r for (_, _, k), r in zip(plan.slots, resources, strict=True) if k is not None]
        self.recorder.add(Step(self.kernel.__name__, launch, told), written)
        handed = self.hand_back(made)
        results = handed if type(handed) is tuple else (handed,)
        for k, (word, at) in plan.counted.items():
            plan.require_word(k)
            self.recorder.counted[results[k]._number] = results[word], at
        return handed

    def _require_one_launch(self) -> None:
        is_several = not runs_on_device(
            self.pipeline().native
        )  # which compiles it, and says here what is wrong with it
        if is_several or self.plan.in_parts:
            does = "runs as several dispatches here" if is_several else "gives back a part of a buffer"
            raise UnsupportedFeature(
                f"{self.kernel.__name__} {does}",
                fix="call it outside of the sequence",
                name="resident dispatch",
                backend=self.home.name,
            )

    def _require_a_step(self, asked: DispatchConfig) -> None:
        more = [
            name
            for name in type(asked).__dataclass_fields__
            if name not in _PER_LAUNCH and getattr(asked, name) != getattr(DEFAULT_CONFIG, name)
        ]
        if more:
            raise ArgumentValueError(
                f"{self.kernel.__name__} is called with {', '.join(more)} in its config, which steps do not have",
                fix="leave it out, or call the kernel outside of the sequence",
            )

    def _resources(self, made: list[Memory | None]) -> list[Resource]:
        """One for each bound buffer, all of it on the device: what the host gives is the same in every repetition."""
        found: list[Resource] = []
        for at, make, k in self.plan.slots:
            value: Any = None if at is None else self.values[at]
            if type(value) is DeviceBuffer:
                found.append(HostResource(b"") if value._memory is None else value._memory.handle)
            elif k is not None:
                nbytes = self.plan.outputs[k].nbytes
                made[k] = fresh = self.recorder.result(nbytes) if nbytes else None
                found.append(HostResource(b"") if fresh is None else fresh.handle)
            else:
                data = value if make is None else make(value)
                found.append(self.recorder.constant(bytes(data)) if len(data) else HostResource(b""))
        return found

    def _make_ready(self, numbers: tuple[object, ...]) -> None:
        """No call outside of the recording is like this one."""

    def _made(self, o: OutputPlan, memory: Memory | None) -> DeviceBuffer:
        made = super()._made(o, memory)
        if o.small is not None:
            self.recorder.small[made._number] = o.small
        return made

    def _is_lent(self, slot: tuple[int | None, Any, int | None]) -> bool:
        return False

    def _idle(self, o: Any) -> Memory | None:
        """What a result is when no invocation runs: as it was. No step makes zeros."""
        if not o.nbytes or o.role == "inout":
            return None
        raise ArgumentValueError(
            f"{self.kernel.__name__} runs over no elements and has a result with some",
            fix="call it outside of the sequence",
        )


def runs_on_device(native: CompiledPipeline) -> bool:
    """Whether it is one launch over memory of the device."""
    return type(native).dispatch_resident is not CompiledPipeline.dispatch_resident


def argument(recorder: Recorder, array: Array) -> tuple[DeviceBuffer, ResidentHandle | None]:
    """An array of the host, as the function sees it, and the memory that a repetition fills."""
    dtype = array.dtype.newbyteorder("=")
    nbytes = array.size * (4 if dtype.char == "?" else dtype.itemsize)
    if not nbytes:
        return DeviceBuffer._over(recorder.home, None, dtype, array.shape), None
    handle = recorder.take(nbytes)
    return DeviceBuffer._over(recorder.home, recorder.seen(handle), dtype, array.shape), handle
