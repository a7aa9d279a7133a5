"""A kernel call over arrays of a device: that device's backend runs it, and results stay there.

What a call means is the same as over NumPy arrays, and so is its plan. Arrays of the host among the arguments are
copied to the device, and back where the caller wants a result in one.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...driver.contract.pending import PendingDispatch
from ...driver.contract.values import HostResource, ResidentHandle, ResidentReadRange, Resource
from ...driver.plan.binding import BindingPlan, BindingRole
from ...driver.policy.decision import Decision
from ...errors import ArgumentTypeError, ArgumentValueError, CooperativeResidencyExceeded, Trap, UnsupportedFeature
from ...foundation.language.kernel import Param
from ..arrays import ARRAY_DTYPES, Array, check_dtype, from_bytes, to_input
from ..bind import ArgumentLayout, CallPlan, Options, OutputPlan, check_array, check_rank
from ..call import NO_OPTIONS, Call, as_called, check_target, compiled_now, kept
from ..debug import with_place
from .array import DeviceBuffer, adopt, device_of, duplicate
from .home import Home, Memory, place_of, settle

if TYPE_CHECKING:
    from ...driver.execute.explanation import Explanation
    from ...driver.execute.pipeline import DriverPipeline
    from ...foundation.ir.program import Program
    from ..kernel import Kernel

_NOTHING = HostResource(b"")
_CONSTANT_BYTES = 256
"""Arguments of the host up to this size may be kept on the device."""


def _may_stay(data: Any, output: int | None) -> bool:
    """Whether these bytes of the host may be kept on the device, when they are asked for again."""
    return output is None and len(data) > 0 and (type(data) is bytes or data.nbytes <= _CONSTANT_BYTES)


class _Like:
    """What a plan asks of an array, said of one on a device."""

    __slots__ = ("dtype", "shape", "size")
    flags = SimpleNamespace(c_contiguous=True)

    def __init__(self, array: DeviceBuffer) -> None:
        self.dtype, self.shape, self.size = array.dtype, array.shape, array.size


class DevicePlan(CallPlan):
    """A plan for a dispatch over resources.

    `slots` are the bound buffers: where the argument is among the values of the call, if there is one, what makes
    bytes of it, and which output it is. `sized` is the config where no memory says how long an output is. `in_parts`:
    a result is a part of a buffer, and has no memory that the dispatch could work in.
    """

    __slots__ = ("in_parts", "sized", "slots")

    def __init__(
        self,
        kernel: Kernel,
        form: ArgumentLayout,
        program: Program,
        arrays: Mapping[str, Any],
        options: Options,
        values: Sequence[Any],
    ) -> None:
        super().__init__(kernel, form, program, arrays, options, values)
        if self.prints:
            raise UnsupportedFeature(
                f"{kernel.__name__} prints, and its arguments live on a device",
                fix="pass arrays of the host, x.numpy() of a device array, or take print() out",
            )
        makers = {b.name: make for b, (_, make) in zip(program.host_inputs, self.inputs, strict=True)}
        outputs = {o.name: k for k, o in enumerate(self.outputs)}
        slots = []
        for b in BindingPlan.build(program).bindings:
            if b.role is not BindingRole.SHARED:
                k = outputs.get(b.name)
                at = form.at[b.name] if k is None else self.outputs[k].at
                slots.append((at, makers.get(b.name), k))
        self.slots = tuple(slots)
        self.in_parts = any(b.output_byte_range is not None for b in program.host_outputs)
        self.sized = self.config if all(o.nbytes for o in self.outputs) else self.sized_config()


class DeviceCall(Call):
    """A call with an argument on a device. `values` are device arrays, arrays of the host and numbers; `given` is what
    the caller passed, and `home` where it runs."""

    __slots__ = ()
    plan: DevicePlan

    def prepare(self, form: ArgumentLayout, program: Program, options: Options) -> None:
        """What a call does first, once it turns out to be one of these."""
        kernel, values = self.kernel, self.values
        self.given, self.inputs = values, []
        self.held = [v._memory for v in values if type(v) is DeviceBuffer]  # which a free() meanwhile does not end
        numbers = _numbers(kernel, form, program, values) if options is NO_OPTIONS else None
        ready = None if numbers is None else kernel._ready.get(numbers)
        if ready is not None and ready[1].changes == ready[3]:
            self.plan, self.home, self.inputs, _ = ready
            return
        self.given = list(values)
        waited: set[int] = set()
        signature: list[object] = [DeviceCall, form, id(program)]
        first: tuple[str, Home] | None = None
        for at, p in form.buffers:
            value = values[at]
            if type(value) is not DeviceBuffer:
                if value is None and p.role == "out":
                    signature.append(None)
                    continue
                value = values[at] = _argument(p, value, waited)
            if type(value) is DeviceBuffer:
                home = value._at()
                if first is None:
                    first = p.name, home
                elif first[1] is not home:
                    raise _apart(first, p.name, home)
                signature += (value.dtype, value.shape, value._is_bfloat)
            else:
                signature += (value.dtype, value.shape, value.flags.c_contiguous)
        self.home = home = self._home(first)
        if kernel.backend is not None and place_of(kernel.backend)[1] != home.name:
            name = "the sequence" if first is None else first[0]
            raise ArgumentValueError(
                f"{name} lives on {home.name} and on({kernel.backend!r}) asks for another device",
                fix=f"drop on(), or pass {name}.numpy()" if first else "drop on() of the kernel",
            )
        key = tuple(signature) if options is NO_OPTIONS else (*signature, options.key)
        plan = kernel._plans.get(key)
        if plan is None or plan.numbers:
            plan = self._find_plan(key, plan, form, program, options)
        assert isinstance(plan, DevicePlan)
        self.plan = plan
        self._keep_apart(form)
        if numbers is not None and all(map(operator.is_, values, self.given)):
            self._make_ready(numbers)

    def _home(self, first: tuple[str, Home] | None) -> Home:
        """Where the call runs; `first` is the first device array, by its name."""
        assert first is not None
        return first[1]

    def _kind(self, form: ArgumentLayout, program: Program, options: Options) -> None:
        """Each plan is worked out."""

    def _make_plan(self, form: ArgumentLayout, program: Program, options: Options, like: CallPlan | None) -> DevicePlan:
        values = self.values
        arrays = {p.name: checked(p, values[at]) for at, p in form.buffers if values[at] is not None}
        return DevicePlan(self.kernel, form, program, arrays, options, values)

    def _make_ready(self, numbers: tuple[object, ...]) -> None:
        """If all memory of the call is there, the next call over the same arrays has nothing to look at."""
        plan, kernel = self.plan, self.kernel
        results = [None if o.at is None else self.values[o.at] for o in plan.outputs]
        usual = not (plan.idle or plan.in_parts)
        if not usual or not all(type(r) is DeviceBuffer and r._memory is not None for r in results):
            return
        changes = self.home.changes
        resources = self._resources([None] * len(results))
        if all(type(r) is ResidentHandle for r in resources) and not any(map(_is_foreign, self.values)):
            kept(kernel._ready, numbers, (plan, self.home, resources, changes))

    def _keep_apart(self, form: ArgumentLayout) -> None:
        """What is written does not overlap, and what is read is copied first if it overlaps that."""
        values = self.values
        written = []
        for at, o in self.plan.targets:
            value = values[at]
            if type(value) is not DeviceBuffer:
                for other_at, other in self.plan.targets:
                    if other_at > at and type(values[other_at]) is not DeviceBuffer:
                        check_target(o, value, other, values[other_at])
            elif value._read_only:
                raise ArgumentValueError(f"{o.name} receives a result and is read-only", fix=f"pass a copy of {o.name}")
            elif value._memory is not None:
                written.append((at, o.name, value._memory.span))
        for k, (_, name, (start, end)) in enumerate(written, 1):
            for _, other_name, (begin, stop) in written[k:]:
                if start < stop and begin < end:
                    raise ArgumentValueError(
                        f"{name} and {other_name} are both written and share memory",
                        fix=f"pass a copy of {other_name}",
                    )
        if written:
            targets = [at for at, _, _ in written]
            for at, _ in form.buffers:
                value = values[at]
                if type(value) is DeviceBuffer and at not in targets and value._memory is not None:
                    begin, stop = value._memory.span
                    if any(start < stop and begin < end for _, _, (start, end) in written):
                        values[at] = duplicate(value)

    def pipeline(self) -> DriverPipeline:
        """The compiled program, on the backend where the arrays live."""
        kernel, plan, home = self.kernel, self.plan, self.home
        key = home, plan.code
        known = kernel._pipelines.get(key)
        if known is not None and known[1].epoch == known[2]:
            return known[0]
        return compiled_now(kernel, key, home.backend, plan)

    # -- what a call does

    def run(self) -> Any:
        plan = self.plan
        if plan.idle:
            return self.hand_back([self._idle(o) for o in plan.outputs])
        compiled = self.pipeline()
        made: list[Memory | None] = [None] * len(plan.outputs)
        resources, foreign = self.inputs, None
        if not resources:
            foreign = self._foreign()
            resources = [] if plan.in_parts else self._resources(made)
        kept: list[ResidentHandle] = []
        try:
            if plan.in_parts:
                self._run_on_host(compiled, made)
            else:
                kept = compiled.dispatch_resident(resources, plan.sized)
        except Trap as e:
            raise with_place(e, plan.program) from None
        except (UnsupportedFeature, CooperativeResidencyExceeded) as e:
            if e.context.get("name") == "long loops" and not self.home.tells:
                self.home.tells, self.inputs = True, []
                self.home.changes += 1
                return self.run()
            too_large = isinstance(e, CooperativeResidencyExceeded) and not plan.config.cooperative
            if not too_large and not str(e.context.get("name")).endswith("resident dispatch"):
                raise
            self._run_on_host(compiled, made)
        else:
            if not self.inputs:
                for k, handle in enumerate(kept):
                    if made[k] is None and handle not in resources:
                        made[k] = Memory(self.home, handle)  # which the backend allocated
        if foreign:
            self._release(foreign)
        return self.hand_back(made)

    def start(self) -> Any:
        """Runs it: no thread has to wait for work over memory of a device."""
        return Started(self.run())

    def explain(self) -> Explanation:
        from ...driver.execute.explanation import explain_dispatch  # only those who ask pay for it

        plan = self.plan
        config = plan.sized_config()
        told = explain_dispatch(
            self.pipeline(),
            self._on_host(zeros=True),
            config.with_(grid_override=(1, 1, 1)) if plan.idle else config,
            memory="both" if any(map(self._is_lent, plan.slots)) else "resident",
            chosen=Decision("backend", self.home.backend.id, f"arguments live on {self.home.name}"),
        )
        return as_called(told, plan)

    # -- resources

    def _resources(self, made: list[Memory | None]) -> list[Resource]:
        """One for each bound buffer; `made` gets the memory of results that the caller has none for."""
        home, values = self.home, self.values
        found: list[Resource] = []
        for at, make, k in self.plan.slots:
            value: Any = None if at is None else values[at]
            if type(value) is DeviceBuffer:
                memory = value._resident()
                found.append(_NOTHING if memory is None else memory.handle)
            elif k is not None and self.plan.outputs[k].role == "out":
                nbytes = self.plan.outputs[k].nbytes
                made[k] = fresh = Memory(home, home.take(nbytes)) if nbytes else None
                found.append(_NOTHING if fresh is None else fresh.handle)
            else:
                data = value if make is None else make(value)
                constant = None
                if _may_stay(data, k):
                    constant = home.constant(data if type(data) is bytes else data.tobytes())
                found.append(HostResource(data) if constant is None else constant)
        return found

    def host_inputs(self) -> list[Any]:
        return self._on_host()

    def _is_lent(self, slot: tuple[int | None, Any, int | None]) -> bool:
        """Whether `_resources` gives bytes of the host for it, however often it is asked."""
        at, make, k = slot
        value: Any = None if at is None else self.values[at]
        if type(value) is DeviceBuffer:
            return value._memory is None
        if k is not None and self.plan.outputs[k].role == "out":
            return not self.plan.outputs[k].nbytes
        return not _may_stay(value if make is None else make(value), k)

    def _on_host(self, *, zeros: bool = False) -> list[Any]:
        """The inputs as arrays of the host; `zeros`: only as long as them."""
        found: list[Any] = []
        for at, make in self.plan.inputs:
            value = self.values[at]
            if type(value) is not DeviceBuffer:
                found.append(value if make is None else make(value))
            elif zeros:
                found.append(np.zeros(value.nbytes, np.uint8))
            else:
                found.append(to_input(value.numpy()))
        return found

    def _run_on_host(self, compiled: DriverPipeline, made: list[Memory | None]) -> None:
        """A program that runs as several dispatches, or gives back parts of buffers, goes through memory of the
        host."""
        out = [o.fresh() for o in self.plan.outputs]
        compiled.dispatch(self._on_host(), self.plan.config, out=out)
        for k, (o, data) in enumerate(zip(self.plan.outputs, out, strict=True)):
            value: Any = None if o.at is None else self.values[o.at]
            memory = value._memory if type(value) is DeviceBuffer else made[k]
            if o.nbytes and memory is None:
                made[k] = memory = Memory(self.home, self.home.take(o.nbytes))
            if memory is not None:
                self.home.backend.upload_resident([(memory.handle, 0, data)])

    # -- other libraries

    def _foreign(self) -> list[Memory]:
        """Memory of other libraries among the arguments, which may be used from now on."""
        found = []
        for value in self.values:
            if _is_foreign(value):
                found.append(value._memory)
                if value._memory.owned:  # the others were asked for just now
                    settle(value._memory)
        return found

    def _release(self, foreign: Sequence[Memory]) -> None:
        """Other libraries go on with their memory after us, and it stays until we are done."""
        exchange = self.home.exchange
        assert exchange is not None
        for stream in {memory.stream for memory in foreign}:
            exchange.release_to(stream)
        keep = [memory.keep for memory in foreign if not memory.owned]
        if keep:
            exchange.keep(keep)

    # -- results

    def _idle(self, o: OutputPlan) -> Memory | None:
        """What a result is when no invocation runs: zeros, or as it was."""
        value: Any = None if o.at is None else self.values[o.at]
        if not o.nbytes or o.role == "inout":
            return None
        device = type(value) is DeviceBuffer
        memory = value._memory if device else Memory(self.home, self.home.take(o.nbytes))
        assert memory is not None
        settle(memory)
        self.home.backend.upload_resident([(memory.handle, 0, bytes(o.nbytes))])
        return None if device else memory

    def hand_back(self, results: Sequence[Any]) -> Any:
        """Results in slot order: what the caller gave for them, with the result in it, else new device arrays."""
        handed: list[Any] = []
        for o, memory in zip(self.plan.outputs, results, strict=True):
            if o.at is None:
                handed.append(self._made(o, memory if o.nbytes else None))
                continue
            target = self.given[o.at]
            if memory is not None and o.nbytes and type(self.values[o.at]) is not DeviceBuffer:
                data = o.fresh()
                self.home.backend.download_resident([ResidentReadRange(memory.handle, 0, o.nbytes)], out=[data])
                target[...] = from_bytes(data, o.dtype, o.shape)
            handed.append(target)
        return handed[0] if len(handed) == 1 else tuple(handed) or None

    def _made(self, o: OutputPlan, memory: Memory | None) -> DeviceBuffer:
        return DeviceBuffer._over(self.home, memory, o.dtype, o.shape, is_bfloat=o.element.name == "bf16")


class Started(PendingDispatch):
    """A call whose work was submitted, and what it returns."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._result = result

    def is_ready(self) -> bool:
        return True

    def _wait(self, timeout: float | None) -> Any:
        return self._result


def _numbers(
    kernel: Kernel, form: ArgumentLayout, program: Program, values: Sequence[Any]
) -> tuple[object, ...] | None:
    """What tells calls over device arrays and Python numbers apart; None for calls over anything else."""
    found: list[object] = [kernel.backend, form, id(program)]  # what is ready holds the plan, and that the program
    for value in values:
        kind = type(value)
        if kind is DeviceBuffer:
            found.append(value._number)
        elif kind is float:
            found.append(value.hex())  # 0.0 is not -0.0
        elif kind is int:
            found.append((value,))  # nor is it the number of an array
        elif value is None:
            found.append(None)
        else:
            return None
    return tuple(found)


def _apart(first: tuple[str, Home], name: str, home: Home) -> ArgumentValueError:
    """The error of a call whose arguments live in two places."""
    there = first[1].name
    if there == home.name:
        return ArgumentValueError(
            f"{first[0]} and {name} live on {there}, which was opened anew between them",
            fix=f'bring both to it: vyre.to_device({first[0]}, "{there}"), vyre.to_device({name}, "{there}")',
        )
    return ArgumentValueError(
        f"{first[0]} lives on {there} and {name} on {home.name}",
        fix=f'bring one to the other: vyre.to_device({name}, "{there}")',
    )


def _is_foreign(value: Any) -> bool:
    """Whether it is an array over memory of another library."""
    return type(value) is DeviceBuffer and value._memory is not None and value._memory.source is not None


def _argument(param: Param, value: Any, waited: set[int]) -> DeviceBuffer | Array:
    """What the caller gives for a buffer, as an array of ours or of the host."""
    device = device_of(value)
    if device is None:
        return check_array(param, value)
    return adopt(param.name, value, device, writes=param.role in ("out", "inout"), waited=waited)


def checked(param: Param, value: DeviceBuffer | Array) -> Any:
    """The argument of a buffer parameter, if it fits."""
    if type(value) is not DeviceBuffer:
        return check_array(param, value)
    assert param.element is not None
    wanted, is_other = ARRAY_DTYPES[param.element.name], value._is_bfloat and param.element.name != "bf16"
    if is_other or value.dtype != wanted:  # the name of a dtype takes 3 us
        fix = f"pass a device array of {wanted.name}"
        if is_other:
            raise ArgumentTypeError(
                f"{param.name} holds bfloat16 and the kernel declares {param.element.name}",
                fix=fix,
                argument=param.name,
            )
        check_dtype(param.name, value.dtype, param.element, fix)
    if param.small is not None and value.shape[-1:] != (param.width,):
        raise ArgumentValueError(
            f"{param.name} has shape {value.shape} and the kernel declares {param.small}",
            fix=f"pass a device array with {param.width} numbers along its last axis",
        )
    if param.count and value.size != param.count:
        raise ArgumentValueError(
            f"{param.name} has {value.size} elements and the kernel declares {param.count}",
            fix=f"pass {param.count} elements, or declare it without a count",
        )
    check_rank(param, value.shape)
    return _Like(value)
