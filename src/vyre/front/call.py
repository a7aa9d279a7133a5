"""One kernel call: look up or make its plan, run it through the driver, hand results back.

Nothing of the caller's is written before the whole dispatch has succeeded, except where code that cannot fail works in
the caller's arrays, and results never depend on whether arguments share memory.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..driver.contract.pending import PendingDispatch, ReadyPending
from ..driver.contract.values import DEFAULT_CONFIG, decide_config
from ..driver.guard.compile import compile
from ..driver.pipeline.compiler import pipelines_of
from ..driver.plan.launch import lengths
from ..driver.policy.decision import Decision
from ..driver.selection.registry import generation
from ..driver.settings.knobs import BACKEND, STRICT
from ..errors import ArgumentValueError, Trap
from ..foundation.memo import keep
from .arrays import (
    ARRAY_DTYPES,
    Array,
    check_writable,
    destination,
    from_bytes,
    may_share_memory,
    ndarray,
    shown_rows,
    to_input,
)
from .bind import ArgumentLayout, CallPlan, Extent, Options, OutputPlan, check_array
from .compile import backend_for, choice_for
from .debug import require_no_race, show_prints, steps_of, with_place
from .device.array import DeviceBuffer, is_on_device

if TYPE_CHECKING:
    from ..driver.contract.backend import VyreBackend
    from ..driver.contract.values import DispatchConfig
    from ..driver.execute.explanation import Explanation
    from ..driver.execute.pipeline import DriverPipeline
    from ..driver.observe.evidence import EvidenceBundle
    from ..driver.verify.cases import Stop
    from ..foundation.ir.program import Program
    from ..foundation.language.small.types import SmallType
    from .kernel import Kernel

K = TypeVar("K")
V = TypeVar("V")
MAX_PLANS = 256
"""Plans kept per kernel. A caller with more shapes than this pays for planning again, and nothing else."""
NO_OPTIONS = Options(None, None, None, None)


@cache
def _move_call() -> Callable[[Call, ArgumentLayout, Program, Options], None]:
    from .device.host_call import move  # which knows this module

    return move


class Call:
    """A call that is ready to run: its plan, its arguments, with arrays for all buffers, and the dispatch's inputs."""

    __slots__ = ("given", "held", "home", "inputs", "kernel", "plan", "shown", "values")
    inputs: list[Any]
    given: Any
    held: Any
    home: Any
    """These three are for device arrays."""
    shown: dict[int, Any]
    """The caller's arrays of small values that receive results."""
    copied = "{}.copy()"
    """How a caller makes a copy of an argument."""

    def __init__(
        self,
        kernel: Kernel,
        args: tuple[Any, ...],
        named: dict[str, Any],
        grid: Extent,
        domain: Extent,
        sizes: Mapping[str, Any] | None,
        config: DispatchConfig | None,
    ) -> None:
        plain = grid is None and domain is None and sizes is None and config is None
        options = NO_OPTIONS if plain else Options(grid, domain, sizes, config)
        named_so = (len(args), *named)
        form = kernel._forms.get(named_so)
        if form is None:
            form = kernel._forms[named_so] = ArgumentLayout(kernel, len(args), tuple(named))
        self.values = values = [*args, *named.values(), *form.defaults]
        program = kernel._only_program
        if program is None:
            program = kernel.specialize(**{name: values[at] for at, name in form.consts})

        self.kernel = kernel
        signature: list[object] = [form, id(program)]  # 0.05 us; a hash is 0.4. The plan keeps the program, so its id
        for at, p in form.buffers:
            value = values[at]
            if type(value) is not ndarray or p.small is not None:
                if value is None and p.role == "out":
                    signature.append(None)  # out=None asks for a new array, as in NumPy
                    continue
                if type(value) is DeviceBuffer or is_on_device(value):
                    # This becomes a call of another class (0.05 us), because only the loop over the buffers sees it. To
                    # look at them first would cost every call over host arrays 0.25 us.
                    _move_call()(self, form, program, options)
                    return
                if p.small is not None and p.role != "in" and isinstance(value, ndarray):
                    self.shown = {**getattr(self, "shown", {}), at: value}
                value = values[at] = check_array(p, value)
            signature += (value.dtype, value.shape, value.flags.num)
        key = tuple(signature) if options is NO_OPTIONS else (*signature, options.key)
        plan = kernel._plans.get(key)
        if plan is None or plan.numbers:
            plan = self._find_plan(key, plan, form, program, options)
        self.plan = plan
        if len(plan.targets) > 1:
            self._check_targets_apart()
        self.inputs = inputs = []  # in a plain loop: a comprehension costs a warm call 0.1 us more
        for at, make in plan.inputs:
            inputs.append(values[at] if make is None else make(values[at]))

    def _find_plan(
        self, key: tuple[object, ...], known: CallPlan | None, form: ArgumentLayout, program: Program, options: Options
    ) -> CallPlan:
        """The plan for these arrays, if need be for these numbers. A known one tells which of them matter."""
        plans, values = self.kernel._plans, self.values
        if options.extent is not None:
            near = *key[:-1], options.elsewhere
            like = plans.get(near)
            if like is not None:
                return kept(plans, key, like.moved(options.extent))
        kind = self._kind(form, program, options)
        like = known if known is not None or kind is None else self.kernel._kinds.get(kind)
        matter = options.deciding_numbers(self.kernel, form, program) if like is None else like.numbers
        exact = (*key, *[write(values[at]) for at, _, write in matter]) if matter else key
        plan = plans.get(exact)
        if plan is None:
            plan = kept(plans, exact, self._make_plan(form, program, options, like))
            if like is None and kind is not None:
                kept(self.kernel._kinds, kind, plan)
        if known is None and exact is not key:
            plans[key] = plan
        if options.extent is not None and kind is not None and not plan.follows_domain:
            kept(plans, near, plan)
        return plan

    def _kind(self, form: ArgumentLayout, program: Program, options: Options) -> tuple[object, ...] | None:
        """What calls have in common whose plans differ in shapes and grids alone."""
        config = None if options.config is DEFAULT_CONFIG else options.config  # to hash it takes 3 us
        found: list[object] = [form, id(program), options.gives_grid, config]
        for at, _ in form.buffers:
            value = self.values[at]
            if value is None:
                found.append(None)
            elif not value.size:
                return None
            else:
                found += (value.dtype, value.ndim, value.flags.num)
        return tuple(found)

    def _make_plan(self, form: ArgumentLayout, program: Program, options: Options, like: CallPlan | None) -> CallPlan:
        values = self.values
        if like is not None:
            for at, p in form.fixed:
                if values[at] is not None:
                    check_array(p, values[at])
            arrays = {p.name: values[at] for at, p in form.buffers if values[at] is not None}
            return like.resized(self.kernel, arrays, options, values)
        arrays = {p.name: check_array(p, values[at]) for at, p in form.buffers if values[at] is not None}
        return CallPlan(self.kernel, form, program, arrays, options, values)

    def _check_targets_apart(self) -> None:
        """No two arrays that results are written into share memory."""
        values, targets = self.values, self.plan.targets
        for k, (at, o) in enumerate(targets, 1):
            for other_at, other in targets[k:]:
                check_target(o, values[at], other, values[other_at], self.copied)

    def check_targets_again(self) -> None:
        """Between the start and the result, the caller may have changed what the result is written into."""
        for at, o in self.plan.targets:
            target = self.values[at]
            if (target.shape, target.dtype) != (o.shape, o.dtype):
                raise ArgumentValueError(
                    f"{o.name} has become an array of {target.dtype} with shape {target.shape} since the call started",
                    fix=f"give it {o.dtype} and the shape {o.shape} again",
                )
            check_writable(o.name, target, o.element)
        self._check_targets_apart()

    def pipeline(self) -> DriverPipeline:
        """The compiled program, on the backend that `on` named or that is chosen now.

        A pipeline whose backend was shut down or recovered since is compiled anew.
        """
        kernel, plan = self.kernel, self.plan
        name = kernel.backend
        wanted = BACKEND.peek() if name is None else None
        key = name, wanted and (wanted, STRICT.peek()), generation(), plan.code
        known = kernel._pipelines.get(key)
        if known is not None and known[1].epoch == known[2]:
            return known[0]
        return compiled_now(kernel, key, backend_for(name, plan.program), plan)

    def run(self) -> Any:
        plan, compiled = self.plan, self.pipeline()
        if plan.idle:
            return self.hand_back([self._untouched(o) for o in plan.outputs])
        if plan.counted and not compiled.in_place:
            return self._run_counted(compiled)
        values = self.values
        direct = plan.direct if compiled.in_place else None
        out: list[Any]
        if direct is not None:
            out = [values[direct[0]]] if len(direct) == 1 else [values[at] for at in direct]
        else:
            out = self._results(in_place=compiled.in_place)
        if plan.key is None:
            plan.key = lengths(self.inputs, out, plan.over)
        try:
            compiled.dispatch_over(self.inputs, out, plan.key, plan.request)
        except Trap as e:
            raise with_place(e, plan.program) from None
        if direct is not None:
            return out[0] if len(out) == 1 else tuple(out)
        if plan.logs:
            show_prints(plan.prints, out[-len(plan.logs) :])
        return self.hand_back(out)

    def _run_counted(self, compiled: DriverPipeline) -> Any:
        """With results that are no longer than what counts of them. Code that works in place fills what it is given."""
        plan = self.plan
        try:
            out = compiled.dispatch(self.inputs, plan.sized_config())
        except Trap as e:
            raise with_place(e, plan.program) from None
        if plan.logs:
            show_prints(plan.prints, out[-len(plan.logs) :])
        return self.hand_back(out)

    def _results(self, *, in_place: bool) -> list[Any]:
        """Memory for the results: the caller's where the backend may write there."""
        values, plan, out = self.values, self.plan, []
        for o in plan.outputs:
            if o.at is None or (o.role == "inout" and not in_place):  # a backend may read it while it writes
                out.append(o.fresh())
            else:
                out.append(values[o.at] if in_place and o.is_plain else destination(values[o.at], self.inputs))
        if plan.logs:
            out += [np.empty(b.count, ARRAY_DTYPES[b.element.name]) for b in plan.logs]
        return out

    def require_no_race(self, asked: object) -> None:
        """Raise if the order of invocations can show in what the call gives."""
        require_no_race(self, asked)

    def step(self, invocation: object) -> Iterator[Stop]:
        """What one invocation does, line by line."""
        return steps_of(self, invocation)

    def host_inputs(self) -> list[Any]:
        """The inputs of the dispatch, as buffers of the host."""
        return self.inputs

    def start(self) -> PendingCall:
        """Start the dispatch. Results are written into the caller's arrays when they are taken, not before."""
        plan, compiled = self.plan, self.pipeline()
        if plan.idle:
            return PendingCall(self, ReadyPending([self._untouched(o) for o in plan.outputs]))
        return PendingCall(self, compiled.dispatch_async(self.inputs, plan.sized_config()))

    def evidence(self) -> EvidenceBundle:
        """What happens when this call runs, over copies of its arrays."""
        from ..driver.verify.evidence import capture  # only those who ask pay for it

        plan = self.plan
        if plan.idle:
            raise ArgumentValueError(
                "the call runs no invocation", fix="pass arrays with elements, or domain=(number of invocations)"
            )
        file = getattr(self.kernel._source, "filename", None)
        return capture(self.pipeline().backend, plan.program, self.host_inputs(), plan.sized_config(), file=file)

    def explain(self) -> Explanation:
        """What `run` would do. The choice of the backend is part of it, with why the others were not chosen."""
        from ..driver.execute.explanation import explain_dispatch  # only those who ask pay for it

        plan = self.plan
        config = plan.sized_config()
        planned = config.with_(grid_override=(1, 1, 1)) if plan.idle else config
        return as_called(explain_dispatch(self.pipeline(), self.inputs, planned, chosen=self._chosen()), plan)

    def _chosen(self) -> Decision:
        name = self.kernel.backend
        if name is None:
            return choice_for(self.plan.program).decision
        return Decision("backend", self.pipeline().backend_id, f"on({name!r}) asks for it")

    def _untouched(self, o: OutputPlan) -> Any:
        """What a result is when no invocation runs."""
        return o.fresh(np.zeros) if o.at is None or o.role == "out" else to_input(self.values[o.at])

    def hand_back(self, results: Sequence[Any]) -> Any:
        """Results in slot order: in the caller's arrays where there are some, else in new ones."""
        handed: list[Array] = []
        if self.plan.counted:
            results = self.plan.cut(results)
        for o, data in zip(self.plan.outputs, results):  # noqa: B905 - the driver has seen that none is missing
            target = None if o.at is None else self.values[o.at]
            if target is not data:
                if o.is_bool or type(data) is not ndarray:
                    data = from_bytes(data, o.dtype, o.shape)
                if target is not None:
                    target[...] = data
                    data = target
            handed.append(data if o.small is None else self._shown(o, o.small, data))
        return handed[0] if len(handed) == 1 else tuple(handed) or None

    def _shown(self, o: OutputPlan, small: SmallType, data: Array) -> Array:
        """A result of small values: the caller's own array, else the memory as NumPy shows such values."""
        own: Array | None = None if o.at is None else getattr(self, "shown", {}).get(o.at)
        return shown_rows(small, data) if own is None else own


def compiled_now(kernel: Kernel, key: tuple[object, ...], backend: VyreBackend, plan: CallPlan) -> DriverPipeline:
    """The program of a plan, compiled, and kept with the epoch in which it can be used."""
    cache = pipelines_of(backend)
    epoch = cache.epoch  # before compiling: what ends meanwhile is compiled again by the next call
    found = compile(backend, plan.program, plan.request, in_time=True)
    return kept(kernel._pipelines, key, (found, cache, epoch))[0]


def kept(table: dict[K, V], key: K, value: V) -> V:
    """The value, which the table of a kernel has from now on."""
    keep(table, key, value, MAX_PLANS)
    return value


def check_target(o: OutputPlan, target: Array, other: OutputPlan, another: Array, copied: str = "{}.copy()") -> None:
    if may_share_memory(target, another):  # exact for contiguous arrays
        raise ArgumentValueError(
            f"{o.name} and {other.name} are both written and share memory", fix=f"pass {copied.format(other.name)}"
        )


def as_called(told: Explanation, plan: CallPlan) -> Explanation:
    """The explanation of a call, from that of its dispatch; one over no workgroup was explained over one instead."""
    said = [decide_config(plan.request)]
    if plan.grid is not None:
        said.append(plan.grid)
    if plan.idle:
        grid = plan.config.grid_override
        assert grid is not None and plan.grid is not None
        told = replace(told, grid=grid, invocations=0)
        said[-1] = replace(plan.grid, reason=f"{plan.grid.reason}; it has no workgroup")
        nothing = "nothing is launched: new outputs are zero, and updated arrays stay as they are"
        said += [Decision("launch", "none", nothing), Decision("determinism", "proved", "nothing runs")]
    by_what = {d.what: d for d in said}
    decisions = (by_what.get(d.what, d) for d in told.decisions if not (plan.idle and d.what == "recording"))
    return replace(told, decisions=tuple(decisions))


class PendingCall(PendingDispatch):
    """A kernel call that was started. `result` gives what the call would have returned, once."""

    def __init__(self, call: Call, pending: PendingDispatch) -> None:
        super().__init__()
        self._call, self._pending = call, pending
        self._results: Sequence[Any] | None = None

    if TYPE_CHECKING:  # arrays, where a dispatch has buffers

        def result(self, timeout: float | None = None) -> Any: ...  # type: ignore[misc]
        def __await__(self) -> Generator[Any, None, Any]: ...

    def is_ready(self) -> bool:
        return self._pending.is_ready()

    def _wait(self, timeout: float | None) -> Any:
        if self._results is None:
            plan = self._call.plan
            try:
                self._results = self._pending.result(timeout)
            except Trap as e:
                raise with_place(e, plan.program) from None
            if plan.logs and not plan.idle:
                show_prints(plan.prints, self._results[-len(plan.logs) :])
        self._call.check_targets_again()  # if one cannot be written to now, the result is kept for another try
        return self._call.hand_back(self._results)
