"""A kernel call over device arrays whose memory the host works in: it is one over arrays of the host, whose results are
device arrays again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...driver.plan.launch import lengths
from ...driver.policy.decision import Decision
from ...errors import Trap
from ...foundation.ir.dtypes import bf16
from ..bind import ArgumentLayout, CallPlan, Options, OutputPlan
from ..call import NO_OPTIONS, Call
from ..debug import with_place
from .array import DeviceBuffer, Kind
from .call import DeviceCall, Started, checked
from .home import OPEN, Home, Memory, place_of

if TYPE_CHECKING:
    from ...driver.execute.pipeline import DriverPipeline
    from ...foundation.ir.program import Program


def move(call: Call, form: ArgumentLayout, program: Program, options: Options) -> None:
    """Make it the kind of call that its arguments on a device ask for: one of these where the host works in all memory
    that it is about."""
    kernel, given = call.kernel, call.values
    values = list(given)
    signature: list[object] = [form, id(program), kernel.backend]
    kind: Kind | None = None
    for at, p in form.buffers:
        value = given[at]
        if type(value) is DeviceBuffer:
            lent = value._lent
            if lent is None:
                lent = value._lend()
            if not lent:
                return _leave(call, form, program, options)
            values[at], kind = lent  # type: ignore[misc] # it is not True
            signature.append(kind)
        elif value is None and p.role == "out":
            signature.append(None)
        else:
            return _leave(call, form, program, options)
    key = tuple(signature) if options is NO_OPTIONS else (*signature, options.key)
    plan = kernel._plans.get(key)
    known = plan is not None or (options.extent is not None and (*signature, options.elsewhere) in kernel._plans)
    if kind is None or not (known or _is_possible(call, form, signature)):
        return _leave(call, form, program, options)
    home = kind.home  # and that of all others, which a plan was made for
    state = home.backend.device_state
    if state.incarnation != kind.incarnation or state.phase is not OPEN:
        return _leave(call, form, program, options)
    call.__class__ = HostCall
    call.given, call.home, call.values = given, home, values
    if plan is None or plan.numbers:
        plan = call._find_plan(key, plan, form, program, options)
    call.plan = plan
    if plan.prints:
        call.values = given
        return _leave(call, form, program, options)
    if len(plan.targets) > 1:
        call._check_targets_apart()
    inputs = call.inputs = []  # in a plain loop: a comprehension costs a warm call 0.1 us more
    for at, make in plan.inputs:
        inputs.append(values[at] if make is None else make(values[at]))
    return None


def _is_possible(call: Call, form: ArgumentLayout, signature: list[object]) -> bool:
    """Whether there may be a plan for these arrays."""
    first: Kind | None = None
    for (_, p), kind in zip(form.buffers, signature[3:], strict=True):
        if type(kind) is not Kind:
            continue  # None, of a result that is to be made
        first = first or kind
        if p.small is not None or (kind.is_bfloat and p.element is not bf16):
            return False
        if kind.home is not first.home or kind.incarnation != first.incarnation:
            return False
    name = call.kernel.backend
    return name is None or (first is not None and place_of(name)[1] == first.home.name)


def _leave(call: Call, form: ArgumentLayout, program: Program, options: Options) -> None:
    call.__class__ = DeviceCall
    assert isinstance(call, DeviceCall)
    call.prepare(form, program, options)


class HostCall(Call):
    """A call whose `values` are the memory of device arrays; `given` is what the caller passed, and `home` where it
    lies."""

    __slots__ = ()
    home: Home
    given: list[Any]
    copied = "a copy of {}"
    pipeline = DeviceCall.pipeline  # which asks for nothing that is not here too

    def _make_plan(self, form: ArgumentLayout, program: Program, options: Options, like: CallPlan | None) -> CallPlan:
        for at, p in form.buffers if like is None else form.fixed:
            if self.given[at] is not None:
                checked(p, self.given[at])  # which says what is wrong as of a device array
        return super()._make_plan(form, program, options, like)

    def start(self) -> Any:
        return Started(self.run())

    def _chosen(self) -> Decision:
        return Decision("backend", self.home.backend.id, f"arguments live on {self.home.name}")

    def run(self) -> Any:
        plan, values, given = self.plan, self.values, self.given
        compiled = self.pipeline()  # type: ignore[misc]
        direct = plan.direct
        if direct is None or plan.idle or plan.key is None or not compiled.in_place:
            return self._run_any(compiled)
        out = [values[direct[0]]] if len(direct) == 1 else [values[at] for at in direct]
        try:
            compiled.dispatch_over(self.inputs, out, plan.key, plan.request)
        except Trap as e:
            raise with_place(e, plan.program) from None
        return given[direct[0]] if len(direct) == 1 else tuple([given[at] for at in direct])

    def _run_any(self, compiled: DriverPipeline) -> Any:
        """With results of its own, or results that are copied to where the caller wants them."""
        plan = self.plan
        handed: list[DeviceBuffer] = []
        memory: list[Any] = []
        for o in plan.outputs:
            made, seen = self._new(o) if o.at is None else (self.given[o.at], self.values[o.at])
            handed.append(made)
            memory.append(seen)
        if plan.idle:
            for o, into in zip(plan.outputs, memory, strict=True):
                if o.role == "out":
                    _bytes(into)[:] = 0
        elif compiled.in_place:
            self._dispatch(compiled, memory)
        else:
            out: list[Any] = [bytearray(o.nbytes) for o in plan.outputs]
            self._dispatch(compiled, out)
            for into, result in zip(memory, out, strict=True):
                _bytes(into)[:] = np.frombuffer(result, np.uint8)
        return handed[0] if len(handed) == 1 else tuple(handed) or None

    def _dispatch(self, compiled: DriverPipeline, out: list[Any]) -> None:
        plan = self.plan
        if plan.key is None:
            plan.key = lengths(self.inputs, out, plan.over)
        try:
            compiled.dispatch_over(self.inputs, out, plan.key, plan.request)
        except Trap as e:
            raise with_place(e, plan.program) from None

    def _new(self, o: OutputPlan) -> tuple[DeviceBuffer, Any]:
        """An array for a result, and its memory."""
        home, is_bfloat = self.home, o.element is bf16
        if not o.nbytes:
            return DeviceBuffer._over(home, None, o.dtype, o.shape, is_bfloat=is_bfloat), bytearray()
        memory, exchange = Memory(home, home.take(o.nbytes)), home.exchange
        assert exchange is not None
        array = DeviceBuffer._over(home, memory, o.dtype, o.shape, is_bfloat=is_bfloat)
        return array, exchange.seen_by_host(memory.handle)


def _bytes(memory: Any) -> Any:
    """As an array of bytes."""
    return np.frombuffer(memory, np.uint8)
