"""Kernels as OpenCL C.

One entry point, `vyre_kernel`. Its arguments, in this order:

1. for each bound buffer, by slot: a pointer to its elements in global memory
2. for each bound buffer, by slot: `uint`, its length in elements
3. `uint` base_x, base_y, base_z: added to the ids of the workgroups
4. only if the kernel has traps: `uint *`, see `driver/contract/traps.py`
5. only if the kernel polls, in `Mode.PTX`: `ulong *`, one word that is zero before the first launch, and `ulong`, how
   many nanoseconds may pass after that launch began
6. only if the kernel polls, in the other modes: `uint *`, one word; the kernel ends soon after it is not zero

Elements lie in memory as hosts have them; bool is a `uint`, f16 and bf16 are their bits. Workgroups have exactly the
size that the kernel says.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from ....foundation.integers import ceil_div
from ....foundation.ir.ops import AtomicOp
from ....lower.c.emitter import ENTRY, Dialect, emit
from ....lower.kernel_ir import Kernel, walk

_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_ATOMICS = {
    AtomicOp.ADD: "atomic_add", AtomicOp.AND: "atomic_and", AtomicOp.OR: "atomic_or", AtomicOp.XOR: "atomic_xor",
    AtomicOp.MIN: "atomic_min", AtomicOp.MAX: "atomic_max", AtomicOp.EXCHANGE: "atomic_xchg",
}  # fmt: skip


_REGISTERS = 1 << 16
"""Of one of NVIDIA's multiprocessors, on which a whole workgroup runs; a lane has at most 255 of them."""
_FREE_LANES = 256


class Mode(StrEnum):
    """How f32 becomes canonical."""

    PTX = "ptx"
    """Steps are instructions of NVIDIA's assembler, which flush by themselves."""
    NATIVE = "native"
    """The device flushes when it is asked to."""
    SOFT = "soft"
    """The device keeps subnormals, and the kernel flushes them."""


def keeps_subnormals(mode: Mode, float64: bool) -> bool:
    """Whether kernels in this mode must be lowered with `soft_flush`; those that compute with f64 always are."""
    return float64 or mode is Mode.SOFT


def build_options(mode: Mode, float64: bool, lanes: int = 1) -> list[str]:
    """What the device's compiler is told of a kernel whose workgroups have so many lanes; `float64`: it computes with
    f64."""
    options = ["-cl-std=CL1.2", "-w", "-cl-fp32-correctly-rounded-divide-sqrt"]
    if mode is Mode.PTX and lanes > _FREE_LANES:  # or it uses more registers than such a workgroup has
        options.append(f"-cl-nv-maxrregcount={_REGISTERS // ceil_div(lanes, 32) // 32 // 8 * 8}")
    return options if keeps_subnormals(mode, float64) else [*options, "-cl-denorms-are-zero"]


def opencl_text(kernel: Kernel, mode: Mode) -> str:
    """A kernel that was lowered as `keeps_subnormals` says, as a file."""
    return emit(kernel, _Ptx(kernel) if mode is Mode.PTX else _OpenCL())


class _OpenCL(Dialect):
    careful = True
    hides_numbers = True

    def opening(self, kernel: Kernel) -> list[str]:
        found = ["#pragma OPENCL FP_CONTRACT OFF"]
        if _uses_f64(kernel):
            found.append("#pragma OPENCL EXTENSION cl_khr_fp64 : enable")
        return found

    def head(self, kernel: Kernel) -> list[str]:
        x, y, z = kernel.workgroup
        return [f"__kernel __attribute__((reqd_work_group_size({x}, {y}, {z})))", f"void {ENTRY}"]

    def pointer(self, element: str, name: str, writable: bool) -> str:
        return f"{'' if writable else 'const '}__global {element} *restrict {name}"

    def group_id(self, axis: int) -> str:
        return f"get_group_id({axis})"

    def local_id(self, axis: int) -> str:
        return f"get_local_id({axis})"

    def atomic(self, op: AtomicOp, place: str, args: Sequence[str]) -> str:
        if op is AtomicOp.COMPARE_EXCHANGE:
            return f"atomic_cmpxchg(&{place}, {args[1]}, {args[0]})"
        return f"{_ATOMICS[op]}(&{place}, {args[0]})"

    def step(self, op: str, dtype: str, args: Sequence[str]) -> str:
        if op in _OPERATORS:
            return f"({args[0]} {_OPERATORS[op]} {args[1]})"
        return f"{'sqrt_f64' if op == 'sqrt' and dtype == 'f64' else op}({', '.join(args)})"

    def functions(self) -> dict[str, str]:
        return {
            "sqrt_f64": """\
double sqrt_f64(double x) // PoCL's compiler, which may know x, computes in a thread that flushes
{
    const bool small = x > 0.0 && x < 0x1p-1022;
    return small ? sqrt(x * 0x1p128) * 0x1p-64 : sqrt(x);
}"""
        }

    def stop_parameters(self) -> list[tuple[str, str]]:
        return [("const volatile __global uint *stop", "not zero: end soon")]

    def stop_test(self) -> str:
        return "*stop != 0u"


class _Ptx(_OpenCL):
    """The compiler keeps subnormals in some steps and joins others; inside `asm` it does neither."""

    careful = False
    hides_numbers = False
    hides_zeros = True

    def __init__(self, kernel: Kernel) -> None:
        self.flush = "" if kernel.soft_flush else ".ftz"

    def opening(self, kernel: Kernel) -> list[str]:
        return super().opening(kernel)[1:] + [
            "#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable" for _ in range(kernel.poll)
        ]

    def step(self, op: str, dtype: str, args: Sequence[str]) -> str:
        return f"{op}_{dtype}({', '.join(args)})"

    def stop_parameters(self) -> list[tuple[str, str]]:
        return [
            ("volatile __global ulong *began", "when the first invocation came, or 0"),
            ("const ulong budget", "nanoseconds from then on"),
        ]

    def stop_test(self) -> str:
        return "is_late(began, budget)"

    def functions(self) -> dict[str, str]:
        found = {
            "is_late": """\
bool is_late(volatile __global ulong *began, ulong budget)
{
    ulong now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    ulong first = *began;
    if (first == 0ul) {
        first = atom_cmpxchg(began, 0ul, now);
        first = first == 0ul ? now : first;
    }
    return now > first && now - first > budget;
}"""
        }
        for dtype, c, letter, how in (("f32", "float", "f", f".rn{self.flush}.f32"), ("f64", "double", "d", ".rn.f64")):
            for op, n in (("add", 2), ("sub", 2), ("mul", 2), ("div", 2), ("sqrt", 1), ("fma", 3)):
                name = f"{op}_{dtype}"
                places = ", ".join(f"%{k}" for k in range(n + 1))
                names = "abc"[:n]
                takes = ", ".join(f"{c} {x}" for x in names)
                given = ", ".join(f'"{letter}"({x})' for x in names)
                found[name] = f"""\
{c} {name}({takes})
{{
    {c} found;
    asm("{op}{how} {places};" : "={letter}"(found) : {given});
    return found;
}}"""
        return found


def _uses_f64(kernel: Kernel) -> bool:
    elements = any(b.element.name == "f64" for b in kernel.buffers)
    return elements or any(getattr(item, "dtype", "") == "f64" for item in walk(kernel.body))
