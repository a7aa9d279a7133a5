"""Runs CUDA C++ on the host: the text is compiled as plain C++, and the threads of a block take turns.

What the language adds is emulated here: ids, shared memory, barriers, warp exchange, atomics, intrinsics, and the few
instructions of the assembler that texts use. So whoever has no such device still sees that texts mean what they should;
it says nothing about what a device's compiler makes of them.
"""

import ctypes
import hashlib
import platform
import re
import shutil
import subprocess
from functools import cache

import pytest

from vyre.backends.cuda.emit.coarsen import cuda_code
from vyre.backends.cuda.emit.text import SHARED_MEMORY
from vyre.backends.reference.engines.memory import Memory
from vyre.driver.contract.traps import trap_words
from vyre.lower import LowerOptions, lower

RUNTIME = r"""
#include <ucontext.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

struct Dim { unsigned x, y, z; };
Dim threadIdx, blockIdx;
static unsigned current, lanes;
static std::vector<ucontext_t> threads;
static std::vector<bool> ended;
static std::vector<unsigned> posted;
static ucontext_t home;

extern "C" void host_barrier() { swapcontext(&threads[current], &home); }

extern "C" unsigned host_exchange(unsigned mask, unsigned value, unsigned from)
{
    const unsigned warp = current / 32u * 32u, here = lanes - warp < 32u ? lanes - warp : 32u;
    if (mask != (here == 32u ? ~0u : (1u << here) - 1u)) { std::fprintf(stderr, "bad mask %x\n", mask); std::abort(); }
    posted[current] = value;
    host_barrier();
    const unsigned found = posted[warp + (from & 31u)];
    host_barrier();
    return found;
}

extern "C" unsigned host_ballot(unsigned mask, unsigned value)
{
    unsigned found = 0u;
    for (unsigned k = 0u; k < 32u; ++k) {
        const unsigned bit = host_exchange(mask, value, k);
        if (mask >> k & 1u) { found |= (bit != 0u) << k; }
    }
    return found;
}

extern "C" float host_add(float a, float b) { return a + b; }
extern "C" float host_sub(float a, float b) { return a - b; }
extern "C" float host_mul(float a, float b) { return a * b; }
extern "C" float host_div(float a, float b) { return a / b; }
extern "C" float host_rcp(float a) { return 1.0f / a; }
extern "C" float host_sqrt(float a) { return std::sqrt(a); }
extern "C" float host_fma(float a, float b, float c) { return std::fma(a, b, c); }
extern "C" unsigned short host_half(float x)
{
    const _Float16 half = (_Float16)x;
    unsigned short bits;
    std::memcpy(&bits, &half, 2);
    return bits;
}
extern "C" float host_of_half(unsigned short bits)
{
    _Float16 half;
    std::memcpy(&half, &bits, 2);
    return (float)half;
}

static void (*kernel)(void **);
static void **arguments;
static void start()
{
    kernel(arguments);
    ended[current] = true;
    swapcontext(&threads[current], &home);
}

extern "C" void host_launch(void (*f)(void **), void **args, Dim grid, Dim block, unsigned flushes)
{
    const unsigned before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(flushes ? before | 0x8040u : before & ~0x8040u);
    kernel = f, arguments = args, lanes = block.x * block.y * block.z;
    threads.resize(lanes), posted.resize((lanes + 31u) / 32u * 32u, 0xdeadbeefu);
    std::vector<std::vector<char>> stacks(lanes, std::vector<char>(1 << 16));
    for (unsigned b = 0; b < grid.x * grid.y * grid.z; ++b) {
        blockIdx = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
        ended.assign(lanes, false);
        for (unsigned t = 0; t < lanes; ++t) {
            getcontext(&threads[t]);
            threads[t].uc_stack.ss_sp = stacks[t].data(), threads[t].uc_stack.ss_size = stacks[t].size();
            makecontext(&threads[t], start, 0);
        }
        for (bool again = true; again;) {
            again = false;
            for (unsigned t = 0; t < lanes; ++t) {
                if (ended[t]) { continue; }
                threadIdx = {t % block.x, t / block.x % block.y, t / block.x / block.y}, current = t;
                swapcontext(&home, &threads[t]);
                again |= !ended[t];
            }
        }
    }
    __builtin_ia32_ldmxcsr(before);
}
"""
"""Compiled once, by itself: what it includes has words that texts define."""

LANGUAGE = r"""
struct Dim { unsigned x, y, z; };
extern Dim threadIdx, blockIdx;
extern "C" {
void host_barrier();
unsigned host_exchange(unsigned, unsigned, unsigned);
unsigned host_ballot(unsigned, unsigned);
float host_add(float, float);
float host_sub(float, float);
float host_mul(float, float);
float host_div(float, float);
float host_rcp(float);
float host_sqrt(float);
float host_fma(float, float, float);
unsigned short host_half(float);
float host_of_half(unsigned short);
void host_launch(void (*)(void **), void **, Dim, Dim, unsigned);
}
#define __device__
#define __global__
#define __launch_bounds__(n)
#define __forceinline__ inline
#define __shared__ static
#define __syncthreads host_barrier
#define gridDim (Dim{1u, 1u, 1u}) // blocks run one after the other, so that only one can wait for all
#define __threadfence()
#define __ballot_sync host_ballot
template <class A, class B> static B same_bits(A x) { B y; __builtin_memcpy(&y, &x, sizeof y); return y; }
template <class T> static T __shfl_sync(unsigned mask, T x, unsigned from)
{
    return same_bits<unsigned, T>(host_exchange(mask, same_bits<T, unsigned>(x), from));
}
template <class T> static T __shfl_xor_sync(unsigned mask, T x, unsigned d)
{
    const unsigned lane = (threadIdx.x + BLOCK_X * (threadIdx.y + BLOCK_Y * threadIdx.z)) % 32u;
    return __shfl_sync(mask, x, lane ^ d);
}
static unsigned __float_as_uint(float x) { return same_bits<float, unsigned>(x); }
static int __float_as_int(float x) { return same_bits<float, int>(x); }
static float __uint_as_float(unsigned x) { return same_bits<unsigned, float>(x); }
static long long __double_as_longlong(double x) { return same_bits<double, long long>(x); }
static double __longlong_as_double(long long x) { return same_bits<long long, double>(x); }
static int __popc(unsigned x) { return __builtin_popcount(x); }
static int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
template <class T> static T reversed(T x, int width)
{
    T y = 0;
    for (int k = 0; k < width; ++k) { y |= (x >> k & 1) << (width - 1 - k); }
    return y;
}
static unsigned __brev(unsigned x) { return reversed(x, 32); }
static unsigned long long __brevll(unsigned long long x) { return reversed(x, 64); }
static unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
template <class F, class T> static T saturated(F x, T low, T high, F end)
{
    return x >= end ? high : x <= (F)low ? low : (T)x;
}
#define CONVERT(name, F, T, low, high, end) static T name(F x) { return saturated<F, T>(x, low, high, end); }
CONVERT(__float2uint_nan, float, unsigned, 0u, ~0u, 0x1p32f)
CONVERT(__float2int_nan, float, int, -0x7fffffff - 1, 0x7fffffff, 0x1p31f)
static unsigned __float2uint_rz(float x) { return x == x ? __float2uint_nan(x) : 0u; }
static int __float2int_rz(float x) { return x == x ? __float2int_nan(x) : 0; }
CONVERT(__float2ull_rz, float, unsigned long long, 0ull, ~0ull, 0x1p64f)
CONVERT(__float2ll_rz, float, long long, -0x7fffffffffffffffll - 1, 0x7fffffffffffffffll, 0x1p63f)
CONVERT(__double2uint_rz, double, unsigned, 0u, ~0u, 0x1p32)
CONVERT(__double2int_rz, double, int, -0x7fffffff - 1, 0x7fffffff, 0x1p31)
CONVERT(__double2ull_rz, double, unsigned long long, 0ull, ~0ull, 0x1p64)
CONVERT(__double2ll_rz, double, long long, -0x7fffffffffffffffll - 1, 0x7fffffffffffffffll, 0x1p63)
template <class T> static T least(T a, T b) { return b != b || (a == b ? __builtin_signbit(a) : a < b) ? a : b; }
template <class T> static T most_of(T a, T b) { return b != b || (a == b ? __builtin_signbit(b) : a > b) ? a : b; }
static float host_flush(float x)
{
    const unsigned bits = __float_as_uint(x);
    return bits & 0x7f800000u ? x : __uint_as_float(bits & 0x80000000u);
}
template <class T> static T min(T a, T b) { return a < b ? a : b; }
template <class T> static T max(T a, T b) { return a > b ? a : b; }
#define FLOATS(name) \
    static float name(float x) { return __builtin_##name##f(x); } \
    static double name(double x) { return __builtin_##name(x); }
FLOATS(floor) FLOATS(ceil) FLOATS(trunc) FLOATS(fabs) FLOATS(sqrt)
static double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
static float copysign(float x, float y) { return __builtin_copysignf(x, y); }
static double copysign(double x, double y) { return __builtin_copysign(x, y); }
#define ATOMIC(name, e) template <class T> static T name(T *p, T v) { const T old = *p; *p = e; return old; }
ATOMIC(atomicAdd, (T)((unsigned)old + (unsigned)v)) ATOMIC(atomicAnd, old & v) ATOMIC(atomicOr, old | v)
ATOMIC(atomicXor, old ^ v) ATOMIC(atomicMin, min(old, v)) ATOMIC(atomicMax, max(old, v)) ATOMIC(atomicExch, v)
template <class T> static T atomicCAS(T *p, T expected, T v)
{
    const T old = *p;
    *p = old == expected ? v : old;
    return old;
}
"""

ENTRY = r"""
template <int... k> struct Counted {};
template <int n, int... k> struct Count : Count<n - 1, n - 1, k...> {};
template <int... k> struct Count<0, k...> { typedef Counted<k...> type; };
template <class... A, int... k> static void call(void (*f)(A...), void **args, Counted<k...>) { f(*(A *)args[k]...); }
template <class... A> static void call(void (*f)(A...), void **args)
{
    call(f, args, typename Count<sizeof...(A)>::type());
}
static void one(void **args) { call(vyre_kernel, args); }
extern "C" void run(void **args, const Dim *grid, const Dim *block, unsigned flushes)
{
    host_launch(one, args, *grid, *block, flushes);
}
"""

_ASM = re.compile(r'asm\("([\w.]+) [^"]*" : "=\w"\(found\) : (.*)\);')
_NAMED = {"min": "least", "max": "most_of", "cvt.rn.f16.f32": "host_half", "cvt.f32.f16": "host_of_half"}


class Dim(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


@cache
def compiler_or_skip():
    found = shutil.which("g++")
    if found is None or platform.machine() != "x86_64":
        pytest.skip("needs g++ on x86")
    return found


def host_text(text, block):
    """The text, with calls instead of instructions of the assembler."""

    def named(match):
        instruction, given = match.groups()
        args = ", ".join(re.findall(r'"\w"\((\w+)\)', given))
        if "0f80000000" in match[0]:
            return f"found = host_flush({args});"
        name = _NAMED.get(instruction) or _NAMED.get(instruction.split(".")[0]) or f"host_{instruction.split('.')[0]}"
        return f"found = {name}({args});"

    text = _ASM.sub(named, text)
    text = text.replace(SHARED_MEMORY, "alignas(16) static uchar shared_memory[1 << 18];")
    assert "asm" not in text
    sizes = f"#define BLOCK_X {block[0]}u\n#define BLOCK_Y {block[1]}u\n"
    sizes += "static const struct { unsigned x; } blockDim = {BLOCK_X};\n"
    return sizes + LANGUAGE + text + ENTRY


class Code:
    """One kernel, ready to run on the host. `folder` takes its files."""

    def __init__(self, kernel, folder, code=None):
        self.kernel = kernel
        self.code = cuda_code(kernel) if code is None else code
        gcc = compiler_or_skip()
        runtime = folder / "runtime.o"
        if not runtime.exists():
            (folder / "runtime.cpp").write_text(RUNTIME)
            flags = ("-O1", "-fPIC", "-ffp-contract=off", "-frounding-math", "-c", "-w")
            subprocess.run([gcc, *flags, folder / "runtime.cpp", "-o", runtime], check=True)
        text = host_text(self.code.text, self.code.block)
        source = folder / f"{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}.cpp"
        library = source.with_suffix(".so")
        if not library.exists():
            source.write_text(text)
            checks = ("-fsanitize=alignment,bounds,shift", "-fsanitize-undefined-trap-on-error")
            flags = ("-std=c++17", "-O0", "-w", "-fwrapv", "-ffp-contract=off", "-fPIC", "-shared", *checks)
            subprocess.run([gcc, *flags, source, runtime, "-o", library], check=True)
        self.library = ctypes.CDLL(str(library))

    def run(self, contents, lengths, grid, cut=0, stop=0, shift=0):
        """What is in the buffers and, where there are any, the trap words after a launch.

        With a `cut`, workgroups below it along x are a launch of their own. Buffers begin `shift` elements behind
        a multiple of 16 bytes, and what lies around them must stay as it is.
        """
        kernel, code = self.kernel, self.code
        bound = [b for b in kernel.buffers if not b.shared]
        memories, places = [], []
        sizes = [b.element.size for b in bound]
        noted = [trap_words(grid, kernel.workgroup)] * bool(kernel.traps)
        for data, size in zip([*contents, *noted], [*sizes, 4], strict=False):
            memory = ctypes.create_string_buffer(b"\xa5" * (len(data) + 128), len(data) + 128)
            at = -ctypes.addressof(memory) % 16 + 32 + shift * size
            memory[at : at + len(data)] = data
            memories.append((memory, at, len(data)))
            places.append(ctypes.c_void_p(ctypes.addressof(memory) + at))
        pointers, more = places[: len(bound)], places[len(bound) :]
        word = ctypes.c_uint(stop)
        more += [ctypes.c_void_p(ctypes.addressof(word))] * kernel.poll
        arrived = ctypes.c_uint(0)
        more += [ctypes.c_void_p(ctypes.addressof(arrived))] * kernel.whole
        for first, last in ((0, cut), (cut, grid[0])):
            groups = last - first
            if groups:
                numbers = [*lengths, first, 0, 0]
                blocks = Dim(code.blocks(groups, kernel.workgroup[0]), *grid[1:])
                words = [ctypes.c_uint(n) for n in numbers]
                end = [ctypes.c_uint(groups * kernel.workgroup[0] - 1)] * code.takes_last
                values = [*pointers, *words, *more, *end]
                args = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
                self.library.run(args, ctypes.byref(blocks), ctypes.byref(Dim(*code.block)), not kernel.soft_flush)
        found = []
        for memory, at, n in memories:
            assert set(memory[:at] + memory[at + n :]) <= {0xA5}, "a kernel wrote outside its buffers"
            found.append(memory[at : at + n])
        return found


def run_case(case, folder, *, off=frozenset(("privatize_atomics",)), poll=False, cut=0, shift=0, code=None):
    """The outputs of a case as the reference's `run` gives them."""
    program = case.program
    kernel = lower(program, LowerOptions(soft_flush=program.requirements.float64, poll=poll, off=off, firm=True))
    memory = Memory.build(program, case.inputs, case.output_elements)
    bound = [memory.buffers[b.name] for b in kernel.buffers if not b.shared]
    made = Code(kernel, folder, code and code(kernel))
    after = made.run([bytes(m.data) for m in bound], [m.count for m in bound], case.grid, cut, shift=shift)
    for m, data in zip(bound, after, strict=False):
        m.data[:] = data
    return [bytes(o) for o in memory.outputs()]
