"""Kernels as CUDA C++.

One entry point, `vyre_kernel`. Its arguments, in this order:

1. for each bound buffer, by slot: a pointer to its elements in global memory
2. for each bound buffer, by slot: `unsigned`, its length in elements
3. `unsigned` base_x, base_y, base_z: added to the ids of the workgroups
4. only if the kernel has traps: `unsigned *`, see `driver/contract/traps.py`
5. only if the kernel polls: `const volatile unsigned *`, one word that the device can read while the host changes it;
   the kernel ends soon after it is not zero
6. only if workgroups wait for each other: `unsigned *`, one word that is zero at first; all blocks run at once
7. only if blocks are not workgroups (see `vector` and `blocks`): `unsigned` last_x, the number of invocations of the
   launch along x, less 1

Elements lie in memory as hosts have them; bool is an `unsigned`, f16 and bf16 are their bits. Other blocks have exactly
the size that the kernel says. Shared memory is static unless it is too much (see `dynamic_places`). Memory that the
kernel writes is bound once.

Sums, products and the like of f32 are instructions of the assembler: around those of C++ the compiler drops `x * 1`,
`x / 1` and `x + -0`, and the flush with them. Comparisons are those of C++, and their operands are flushed before: the
compiler makes integer tests of some whose operands were integers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate

from ....foundation.ir.ops import AtomicOp
from ....foundation.meaning.subgroup import SUBGROUP_WIDTH
from ....lower.c.emitter import ENTRY, Dialect, Subgroups
from ....lower.c.library import TYPES, literal
from ....lower.kernel_ir import Buffer, Kernel
from . import vendor_math

STATIC_BYTES = (48 << 10) - 64
"""Shared memory that the compiler lays out, less what a kernel has of its own; more is asked for by the launch."""
SHARED_MEMORY = "extern __shared__ __align__(16) uchar shared_memory[];"
_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_ATOMICS = {
    AtomicOp.ADD: "atomicAdd", AtomicOp.AND: "atomicAnd", AtomicOp.OR: "atomicOr", AtomicOp.XOR: "atomicXor",
    AtomicOp.MIN: "atomicMin", AtomicOp.MAX: "atomicMax", AtomicOp.EXCHANGE: "atomicExch",
}  # fmt: skip
_FULL = 0xFFFFFFFF
_FUNCTION = "static __device__"
_WORDS = {
    "uchar": "typedef unsigned char uchar;",
    "ushort": "typedef unsigned short ushort;",
    "uint": "typedef unsigned int uint;",
    "ulong": "typedef unsigned long long ulong;",
    "as_uint": f"""\
{_FUNCTION} unsigned as_uint(float x) {{ return __float_as_uint(x); }}
{_FUNCTION} unsigned as_uint(int x) {{ return (unsigned)x; }}""",
    "as_int": f"""\
{_FUNCTION} int as_int(float x) {{ return __float_as_int(x); }}
{_FUNCTION} int as_int(unsigned x) {{ return (int)x; }}""",
    "as_float": f"{_FUNCTION} float as_float(unsigned x) {{ return __uint_as_float(x); }}",
    "as_ulong": f"{_FUNCTION} unsigned long long as_ulong(double x) {{ return __double_as_longlong(x); }}",
    "as_long": f"{_FUNCTION} long long as_long(double x) {{ return __double_as_longlong(x); }}",
    "as_double": f"{_FUNCTION} double as_double(unsigned long long x) {{ return __longlong_as_double(x); }}",
    "popcount": f"template <class T> {_FUNCTION} T popcount(T x) {{ return sizeof x == 8 ? __popcll(x) : __popc(x); }}",
    "clz": f"template <class T> {_FUNCTION} T clz(T x) {{ return sizeof x == 8 ? __clzll(x) : __clz(x); }}",
    "mul_hi": f"{_FUNCTION} unsigned mul_hi(unsigned a, unsigned b) {{ return __umulhi(a, b); }}",
    "Pack": "template <class T, int n> struct alignas(n * sizeof(T)) Pack { T at[n]; };",
    "char": "#define char signed char // without a sign on some hosts",
    "long": "#define long long long // 32 bits on some hosts",
}
"""Definitions that the library's functions rely on."""


def build_options(soft_flush: bool) -> list[str]:
    """What the compiler is told; `soft_flush` is that of the kernel."""
    return [
        "--fmad=false",
        f"--ftz={'false' if soft_flush else 'true'}",
        "--prec-div=true",
        "--prec-sqrt=true",
    ]


def dynamic_places(kernel: Kernel) -> dict[Buffer, int]:
    """Where shared buffers lie that are too large for the compiler; nothing where they are not.

    Large elements come first, so that each lies at a multiple of its size.
    """
    shared = sorted((b for b in kernel.buffers if b.shared and not b.own), key=_element_bytes, reverse=True)
    ends = [0, *accumulate(b.count * _element_bytes(b) for b in shared)]
    return dict(zip(shared, ends, strict=False)) if ends[-1] > STATIC_BYTES else {}


def dynamic_bytes(kernel: Kernel) -> int:
    """Shared memory that a launch has to ask for."""
    return max((at + b.count * _element_bytes(b) for b, at in dynamic_places(kernel).items()), default=0)


def _element_bytes(buffer: Buffer) -> int:
    size = buffer.element.size
    assert size is not None  # those of kernels have one
    return size


def with_words(text: str) -> str:
    """The file, with those words of the library at its top that the language lacks."""
    words = set(re.findall(r"\w+", re.sub("//.*", "", text)))
    # literals of `long` have 32 bits on some hosts
    text = re.sub(r"\b(0x[0-9a-f]+|\d+)(u?)l\b", r"\1\2ll", text)
    return "\n".join([line for word, line in _WORDS.items() if word in words] + [text])


_GRID_BARRIER = """\
void grid_barrier(uint *arrived)
{
    __syncthreads();
    if ((threadIdx.x | threadIdx.y | threadIdx.z) == 0u) { // one for all of the block, whose writes are before this
        const uint groups = gridDim.x * gridDim.y * gridDim.z;
        __threadfence();
        const uint turn = atomicAdd(arrived, 1u) / groups;
        while (*(volatile uint *)arrived / groups == turn) { }
        __threadfence();
    }
    __syncthreads();
}"""


class Cuda(Dialect):
    """CUDA C++ for one kernel."""

    function = _FUNCTION
    shared = "__shared__ "
    barrier = "__syncthreads();"
    grid_barrier = "grid_barrier(arrived);"
    hides_zeros = True

    def __init__(self, kernel: Kernel) -> None:
        self.flush = "" if kernel.soft_flush else ".ftz"
        self._places = dynamic_places(kernel)
        self.subgroups = self._warps = _Warps(kernel.lanes)

    def opening(self, kernel: Kernel) -> list[str]:
        return [f"{SHARED_MEMORY} // as much as the launch says"] if self._places else []

    def shared_array(self, buffer: Buffer, element: str, name: str) -> str:
        if not self._places:
            return super().shared_array(buffer, element, name)
        return f"{element} *const {name} = ({element} *)(shared_memory + {self._places[buffer]}u)"

    def head(self, kernel: Kernel) -> list[str]:
        return [f'extern "C" __global__ void __launch_bounds__({kernel.lanes})', ENTRY]

    def pointer(self, element: str, name: str, writable: bool) -> str:
        return f"{'' if writable else 'const '}{element} *__restrict__ {name}"

    def group_id(self, axis: int) -> str:
        return f"blockIdx.{'xyz'[axis]}"

    def local_id(self, axis: int) -> str:
        return f"threadIdx.{'xyz'[axis]}"

    def atomic(self, op: AtomicOp, place: str, args: Sequence[str]) -> str:
        if op is AtomicOp.COMPARE_EXCHANGE:
            return f"atomicCAS(&{place}, {args[1]}, {args[0]})"
        return f"{_ATOMICS[op]}(&{place}, {args[0]})"

    def step(self, op: str, dtype: str, args: Sequence[str]) -> str:
        if op == "div" and dtype == "f32" and args[0] == literal("f32", 0x3F800000):
            return f"rcp_f32({args[1]})"
        if dtype == "f32":
            return f"{op}_f32({', '.join(args)})"
        if op in _OPERATORS:
            return f"({args[0]} {_OPERATORS[op]} {args[1]})"
        return f"{op}({', '.join(args)})"

    def stop_parameters(self) -> list[tuple[str, str]]:
        return [("const volatile uint *stop", "not zero: end soon")]

    def stop_test(self) -> str:
        return "*stop != 0u"

    def grid_parameters(self) -> list[tuple[str, str]]:
        return [("uint *arrived", "workgroups that came to a barrier of the grid")]

    def functions(self) -> dict[str, str]:
        """Besides the float steps, what the machine does in one instruction or two."""
        f32 = f"{self.flush}.f32"
        return {
            **{f"{op}_f32": _instruction(f"{op}_f32", f"{op}.rn{f32}", "f32", 2) for op in _OPERATORS},
            "rcp_f32": _instruction("rcp_f32", f"rcp.rn{f32}", "f32", 1),
            "sqrt_f32": _instruction("sqrt_f32", f"sqrt.rn{f32}", "f32", 1),
            "fma_f32": _instruction("fma_f32", f"fma.rn{f32}", "f32", 3),
            **{f"{op}_f32": _instruction(f"{op}_f32", f"{op}{f32}", "f32", 2) for op in ("min", "max")},
            **{f"{op}_f64": _instruction(f"{op}_f64", f"{op}.f64", "f64", 2) for op in ("min", "max")},
            "flush_f32": """\
float flush_f32(float x) // a subnormal becomes zero of its sign
{
    float found;
    asm("add.rn.ftz.f32 %0, %1, 0f80000000;" : "=f"(found) : "f"(x));
    return found;
}""",
            "quiet_f32": "float quiet_f32(float x)\n{\n    return x != x ? as_float(0x7fc00000u) : x;\n}",
            "quiet_f64": "double quiet_f64(double x)\n{\n    return x != x ? as_double(0x7ff8000000000000ul) : x;\n}",
            "ctz_u32": "uint ctz_u32(uint x)\n{\n    return __clz(__brev(x));\n}",
            "ctz_u64": "ulong ctz_u64(ulong x)\n{\n    return __clzll(__brevll(x));\n}",
            "bitrev_u32": "uint bitrev_u32(uint x)\n{\n    return __brev(x);\n}",
            "bitrev_u64": "ulong bitrev_u64(ulong x)\n{\n    return __brevll(x);\n}",
            **{
                f"{t}_of_{source}": _saturating(t, source, intrinsic)
                for t, source, intrinsic in (
                    ("u32", "f32", "__float2uint_rz"), ("i32", "f32", "__float2int_rz"),
                    ("u64", "f32", "__float2ull_rz"), ("i64", "f32", "__float2ll_rz"),
                    ("u32", "f64", "__double2uint_rz"), ("i32", "f64", "__double2int_rz"),
                    ("u64", "f64", "__double2ull_rz"), ("i64", "f64", "__double2ll_rz"),
                )
            },
            "round_f16": "float round_f16(float x)\n{\n    return load_f16(half_bits(x));\n}",
            "load_f16": """\
float load_f16(ushort bits)
{
    float found;
    asm("cvt.f32.f16 %0, %1;" : "=f"(found) : "h"(bits));
    return found;
}""",
            "store_f16": "ushort store_f16(float x)\n{\n    return x != x ? (ushort)0x7e00u : half_bits(x);\n}",
            "half_bits": """\
ushort half_bits(float x)
{
    ushort found;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(found) : "f"(x));
    return found;
}""",
            **vendor_math.texts(),
            "grid_barrier": _GRID_BARRIER,
            "subgroup_mask": self._warps.mask(),
            "subgroup_lanes": self._warps.count(),
        }  # fmt: skip


class _Warps(Subgroups):
    """A subgroup is a warp: blocks are cut into warps by the same count."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes

    def mask(self) -> str:
        whole, rest = divmod(self.lanes, SUBGROUP_WIDTH)
        partial = f"0x{(1 << rest) - 1:x}u"
        found = f"0x{_FULL:x}u"
        if rest:
            found = f"lid < {whole * SUBGROUP_WIDTH}u ? {found} : {partial}" if whole else partial
        return f"uint subgroup_mask(uint lid) // lanes that are there\n{{\n    return {found};\n}}"

    def count(self) -> str:
        found = f"{SUBGROUP_WIDTH}u"
        if self.lanes % SUBGROUP_WIDTH:
            found = f"min({self.lanes}u - lid / {SUBGROUP_WIDTH}u * {SUBGROUP_WIDTH}u, {SUBGROUP_WIDTH}u)"
        return f"uint subgroup_lanes(uint lid)\n{{\n    return {found};\n}}"

    def ballot(self, name: str) -> str:
        return f"uint {name}(bool x, uint lid)\n{{\n    return __ballot_sync(subgroup_mask(lid), x);\n}}"

    def shuffle(self, name: str, t: str) -> str:
        return f"""\
{TYPES[t]} {name}({TYPES[t]} x, uint lane, uint lid) // 0 from a lane that is not there
{{
    const {TYPES[t]} found = __shfl_sync(subgroup_mask(lid), x, lane & {SUBGROUP_WIDTH - 1}u);
    return lane < subgroup_lanes(lid) ? found : 0;
}}"""

    def reduction(self, name: str, t: str, join: str, identity: str) -> str:
        """The butterfly.

        Lanes that are not there hold the identity at first, and then what the other lanes hold whose number is the same
        modulo the last distance: so a lane looks at the smallest of these, and where that is missing, all are.
        """
        c, half = TYPES[t], SUBGROUP_WIDTH // 2
        if self.lanes % SUBGROUP_WIDTH == 0:
            body = [f"x = {join}(x, __shfl_xor_sync(0x{_FULL:x}u, x, d));"]
        else:
            body = [
                "const uint from = (lid ^ d) & (2u * d - 1u);",
                f"const {c} other = __shfl_sync(subgroup_mask(lid), x, from);",
                f"x = {join}(x, from < subgroup_lanes(lid) ? other : {identity});",
            ]
        return "\n".join([
            f"{c} {name}({c} x, uint lid)", "{",
            "#pragma unroll",
            f"    for (uint d = {half}u; d > 0u; d >>= 1) {{", *(f"        {line}" for line in body), "    }",
            "    return x;", "}",
        ])  # fmt: skip


def _instruction(name: str, instruction: str, t: str, n: int) -> str:
    """A function that is one instruction of the assembler."""
    c, letter = TYPES[t], {"f32": "f", "f64": "d"}[t]
    names = "abc"[:n]
    takes = ", ".join(f"{c} {x}" for x in names)
    given = ", ".join(f'"{letter}"({x})' for x in names)
    places = ", ".join(f"%{k}" for k in range(n + 1))
    return f"""\
{c} {name}({takes})
{{
    {c} found;
    asm("{instruction} {places};" : "={letter}"(found) : {given});
    return found;
}}"""


def _saturating(t: str, source: str, intrinsic: str) -> str:
    """The machine saturates, and makes 0 of a NaN where both have 32 bits."""
    found = f"{intrinsic}(x)"
    if (t, source) not in (("u32", "f32"), ("i32", "f32")):
        found = f"x == x ? {found} : 0"
    return f"{TYPES[t]} {t}_of_{source}({TYPES[source]} x) // saturates; a NaN is 0\n{{\n    return {found};\n}}"
