"""A backend that translates programs to Python: a generator per invocation, which yields at every barrier."""

import sys
import time
from array import array
from functools import partial
from itertools import product
from typing import Any

import vyre
from vyre.driver import LaunchGeometryLimits, replace_output_buffers_preserving_slots, validate_program_for_backend
from vyre.driver.plan import plan_dispatch
from vyre.foundation import arith, ir, mathlib, own_arrays, typing, visit


class PygenBackend(vyre.VyreBackend, contract=1):
    id = "pygen"
    version = "0.1.0"
    capability = vyre.BackendCapability(
        ops=vyre.core_supported_ops() | {"vyre.node.trap", "vyre.py.bitcast"},
        types=frozenset(("u64", "i64")),
        max_workgroup_size=(1024, 1024, 64),
        max_invocations_per_workgroup=1024,
        max_workgroups_per_dimension=65535,
        max_shared_bytes=1 << 16,
        max_storage_buffer_bytes=1 << 30,
        deadline="cooperative",
    )

    def dispatch(self, program: vyre.Program, inputs: Any, config: Any = None, *, out: Any = None) -> list[Any]:
        return self.compile_native(program, config or vyre.DispatchConfig()).dispatch(inputs, out=out)

    def compile_native(self, program: vyre.Program, config: vyre.DispatchConfig) -> "PygenPipeline":
        return PygenPipeline(self, program, validate_program_for_backend(self, program, config))


class PygenPipeline(vyre.CompiledPipeline):
    backend_id = "pygen"

    def __init__(self, backend: PygenBackend, program: vyre.Program, config: vyre.DispatchConfig) -> None:
        self.id = f"pygen:{program.fingerprint[:16]}"
        self.program, self.config = own_arrays.in_workgroup_memory(program), config
        self.limits = LaunchGeometryLimits.of(backend)
        self.source, names = emit(mathlib.expand(self.program), polls=config.timeout is not None)
        try:
            exec(self.source, names)
        except (SyntaxError, RecursionError, MemoryError) as e:
            fix = "nest loops, branches and expressions less deeply, or choose another backend"
            raise vyre.KernelCompileFailed(f"Python refuses the emitted source: {e}", fix=fix, backend="pygen") from e
        self.kernel = names["kernel"]

    def dispatch(self, inputs: Any, config: vyre.DispatchConfig | None = None, *, out: Any = None) -> list[Any]:
        start, settings = time.monotonic(), config or self.config

        def tick() -> None:
            if settings.timeout is not None and time.monotonic() - start >= settings.timeout:
                raise vyre.DeadlineExceeded("the program did not end in time", fix="allow more time, or do less")

        def bound(b: Any) -> tuple[str, Any]:
            data = bytes(b.nbytes) if b.input_index is None else memoryview(inputs[b.input_index]).tobytes()
            return b.name, array(CODES.get(b.element.name, "I"), data)

        plan = plan_dispatch(self.program, inputs, settings, self.limits, "pygen", out=out)
        memory, size = dict(map(bound, plan.bindings.bindings)), plan.launch.workgroup
        for _ in range(plan.iterations):
            for wg in product(*map(range, plan.launch.grid)):
                tick()
                memory |= map(bound, (b for b in plan.bindings.bindings if b.role == "shared"))  # zeros again
                lanes = [self.kernel(memory, size, wg, lid, tick) for lid in product(*map(range, size))]
                while lanes:  # each runs to its next barrier, or to its end
                    lanes = [lane for lane in lanes if next(lane, False)]
        ranges = {b.name: slice(*(b.output_byte_range or (None,))) for b in plan.bindings.outputs}
        results = [bytearray(memory[name].tobytes()[part]) for name, part in ranges.items()]
        if out is None:
            return results
        replace_output_buffers_preserving_slots(results, targets := list(out))
        return targets


def store(convert: Any, data: Any, i: int, value: Any) -> None:
    if i < len(data):
        data[i] = convert(value)


def atomic(change: Any, data: Any, i: int, value: int, *expected: int) -> Any:
    old = data[i] if i < len(data) else 0
    if expected in ((), (old,)):
        store(int, data, i, change(old, value))
    return old


CODES = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "i32": "i", "u64": "Q", "i64": "q"}  # of `array`; else "I"
LOADED: dict[str, Any] = {"f32": arith.f32_from_bits, "bool": bool}
FUNCTIONS: dict[Any, Any] = {  # {f} in the spelling of `n`, which has operands of types `t` and is itself of type `own`
    ir.BinOp: lambda n, t, own: arith.binary(n.op, t[0]), ir.UnOp: lambda n, t, own: arith.unary(n.op, t[0]),
    ir.Cast: lambda n, t, own: arith.cast(t[0], own), ir.Bitcast: lambda n, t, own: arith.bitcast(t[0], own),
    ir.Fma: lambda n, t, own: arith.fused(own), ir.Select: lambda n, t, own: lambda test, a, b: a if test else b,
    ir.Load: lambda n, t, own: lambda data, i: LOADED.get(own.name, int)(data[i] if i < len(data) else 0),
    ir.Store: lambda n, t, own: partial(store, arith.f32_to_bits if t[1].name == "f32" else int),
    ir.Atomic: lambda n, t, own: partial(atomic, arith.atomic(n.op, own)),
}  # fmt: skip
SPELLING: dict[Any, str] = {  # {x} are the operands, separated by commas
    ir.Let: "v_{n.name} = {x}", ir.Assign: "v_{n.name} = {x}", ir.If: "if {x}:", ir.Block: "if 1:", ir.Region: "if 1:",
    ir.Loop: "for v_{n.var} in range({x}):", ir.Return: "return", ir.Barrier: "yield True",
    ir.Trap: "raise Trap('the program trapped: ' {n.tag!r}, fix='correct the input', address={x}, tag={n.tag!r})",
    ir.Lit: "{n.value!r}", ir.Var: "v_{n.name}", ir.BufLen: "len(b['{n.buffer}'])", ir.WorkgroupId: "wg[{n.axis}]",
    ir.LocalId: "lid[{n.axis}]", ir.InvocationId: "(wg[{n.axis}] * size[{n.axis}] + lid[{n.axis}])",
    **dict.fromkeys((ir.BinOp, ir.UnOp, ir.Cast, ir.Bitcast, ir.Fma, ir.Select), "{f}({x})"),
    **dict.fromkeys((ir.Load, ir.Store, ir.Atomic), "{f}(b['{n.buffer}'], {x})"),
}  # fmt: skip


def emit(program: vyre.Program, polls: bool) -> tuple[str, dict[str, Any]]:
    """Source of `kernel(b, size, wg, lid, tick)` and the names it uses; with `polls`, it ticks in every loop."""
    elements, types = {b.name: b.element for b in program.buffers}, dict[str, Any]()
    names: dict[str, Any] = {"Trap": vyre.Trap, "inf": float("inf"), "nan": float("nan")}
    lines = ["def kernel(b, size, wg, lid, tick):", " if False: yield"]  # a generator, also without a barrier

    def spell(n: Any, operands: Any) -> tuple[str, Any]:
        t, f = tuple(dtype for _, dtype in operands), f"f{len(names)}"
        own = typing.infer(n, t, types, elements)[0]
        names[f] = FUNCTIONS[type(n)](n, t, own) if type(n) in FUNCTIONS else None
        return SPELLING[type(n)].format(n=n, f=f, x=", ".join(text for text, _ in operands)), own

    def body(nodes: tuple[ir.Node, ...], indent: str) -> visit.Steps:
        lines.append(indent + ("tick()" if polls else "pass"))
        for n in nodes:
            operands = [visit.fold(child, spell) for child in visit.children(n)]
            lines.append(indent + spell(n, operands)[0])
            if isinstance(n, ir.Let | ir.Loop):
                types[n.name if isinstance(n, ir.Let) else n.var] = operands[0][1]
            for k, inside in enumerate(visit.bodies(n)):
                lines.extend([f"{indent}else:"] * k)
                yield body(inside, indent + " ")
            match n:  # a `while`: once its variable is false, no later turn does anything
                case ir.Loop(var=var, body=(ir.If(condition=ir.Var(name=name), orelse=()),)) if name != var:
                    lines.append(f"{indent} if not v_{name}: break")

    visit.run_nested(body(program.entry, " "))
    return "\n".join(lines), names


def unavailable() -> str | None:
    return None if sys.byteorder == "little" else "buffers are little-endian and this processor is not"


REGISTRATION = vyre.BackendRegistration(
    id="pygen", precedence=600, kind="host", open=lambda device=None: PygenBackend(), unavailable=unavailable
)
