"""What people bring from NumPy, numba, CUDA, OpenCL and Triton: each is refused where it stands, with what to write."""

from __future__ import annotations

import itertools
import linecache
import math
import types

import numpy as np
import pytest

import vyre
from vyre.foundation.language.kernel import build_program, read_source
from vyre.foundation.language.refused_syntax import BUFFER_FIXES, BUILTIN_FIXES, FOREIGN_FIXES

HEADER = "def k(x: In[f32], out: InOut[f32], c: InOut[u32], n: u32):"
NAMES = {name: getattr(vyre, name) for name in ("In", "InOut", "Out", "f32", "u32", "i32", "gid", "lid", "shared")}
counter = itertools.count()


class Opaque:
    """A name of another library: something that is called, and has attributes."""

    def __call__(self, *args):
        return 0

    x = property(lambda self: 0)


LIBRARIES = {
    "cuda": types.SimpleNamespace(threadIdx=Opaque(), grid=lambda n: 0),
    "numba_cuda": types.ModuleType("numba.cuda"),
    "tl": types.ModuleType("triton.language"),
    "threadIdx": Opaque(),
}
LIBRARIES["numba_cuda"].threadIdx = Opaque()
LIBRARIES["tl"].load = LIBRARIES["tl"].arange = Opaque()


def error_of(source: str, **names: object) -> vyre.KernelError:
    filename = f"<habit {next(counter)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    scope = {**NAMES, "vyre": vyre, "np": np, "math": math, **names}
    exec(compile(source, filename, "exec", dont_inherit=True), scope)
    with pytest.raises(vyre.KernelError) as caught:
        build_program(read_source(scope["k"], 64), {})
    return caught.value


def refused(source: str, **names: object) -> tuple[str, str, str]:
    """The text under the carets, the message and the fix."""
    e = error_of(source, **names)
    return e.text[e.offset - 1 : e.end_offset - 1], e.message, e.fix


# a line of a kernel, the text under the carets, words of the fix
LINES = [
    ("i = threadIdx.x", "threadIdx.x", "use lid.x"),
    ("i = blockIdx.x * blockDim.x + threadIdx.x", "blockIdx.x", "use wg.x"),
    ("i = gid.x % blockDim.x", "blockDim.x", "@vyre.kernel(workgroup=...)"),
    ("i = cuda.grid(1)", "cuda.grid", "use gid.x, and gid.y"),
    ("i = cuda.threadIdx.x", "cuda.threadIdx.x", "use lid.x"),
    ("tile = cuda.shared.array(256, f32)", "cuda.shared.array", "tile = shared(f32, 256)"),
    ("cuda.syncthreads()", "cuda.syncthreads", "call barrier()"),
    ("__syncthreads()", "__syncthreads", "call barrier()"),
    ("cuda.atomic.add(c, 0, 1)", "cuda.atomic.add", "atomic_add(buf, i, value)"),
    ("atomicAdd(c, 0, 1)", "atomicAdd", "atomic_add(buf, i, value)"),
    ("i = get_global_id(0)", "get_global_id", "use gid.x"),
    ("v = tl.load(x)", "tl.load", "x[i]; outside of x it is 0, so no mask"),
    ("tl.store(out, 1.0)", "tl.store", "x[i] = value; outside of x nothing is written"),
    ("pid = tl.program_id(0)", "tl.program_id", "wg.x for the workgroup"),
    ("offsets = tl.arange(0, 64)", "tl.arange", "what one invocation does"),
    ("v = triton.language.dot(x, x)", "triton.language.dot", "add the products in a for loop"),
    ("v = math.gamma(x[0])", "math.gamma(x[0])", "compute it before the kernel"),
    ("v = np.mean(x)", "np.mean(x)", "divide by f32(len(x))"),
    ("v = np.where(x[0] > 0.0, 1.0, 2.0)", "np.where(x[0] > 0.0, 1.0, 2.0)", "call vyre.select"),
    ("v = np.clip(x[0], 0.0, 1.0)", "np.clip(x[0], 0.0, 1.0)", "max(low, min(x, high))"),
    ("v = np.zeros(4)", "np.zeros(4)", "acc = local(f32, 8)"),
    ("v = np.random.rand()", "np.random.rand()", "pass random numbers"),
    ("v = sorted(x)", "sorted(x)", "np.sort"),
    ("v = print(x[0])", "print(x[0])", "line of its own"),
    ("v = x.sum()", "x.sum", "add in a for loop"),
    ("v = x.shape[0]", "x.shape", "use len(x)"),
    ("v = x.astype(f32)", "x.astype", "f32(x[i])"),
    ("out.append(1.0)", "out.append", "store to x[atomic_add(count, 0, 1)]"),
    ("barrier()", "barrier", "write from vyre import barrier above the kernel"),
    ("v = u64(n)", "u64", "write from vyre import u64 above the kernel"),
    ("v = wg.x", "wg", "write from vyre import wg above the kernel"),
]


@pytest.mark.parametrize("line, caret, fix", LINES, ids=[line for line, *_ in LINES])
def test_a_name_of_another_library_is_refused_with_ours(line, caret, fix):
    shown, message, found = refused(f"{HEADER}\n    {line}\n")
    assert shown == caret
    assert fix in found
    assert "`" in message or "()" in message


@pytest.mark.parametrize(
    "line, caret, fix",
    [
        ("i = cuda.grid(1)", "cuda.grid", "use gid.x"),
        ("i = numba_cuda.threadIdx.x", "numba_cuda.threadIdx.x", "use lid.x"),
        ("i = threadIdx.x", "threadIdx.x", "use lid.x"),
        ("v = tl.load(x)", "tl.load(x)", "x[i]"),
    ],
)
def test_so_is_one_that_is_installed(line, caret, fix):
    shown, _, found = refused(f"{HEADER}\n    {line}\n", **LIBRARIES)
    assert shown == caret
    assert fix in found


def test_a_local_of_the_kernel_is_nobody_elses():
    _, message, fix = refused(f"{HEADER}\n    time = n\n    v = time.x\n")
    assert "`.x` is an attribute" in message
    assert "`time` is one number" in fix


@pytest.mark.parametrize("table", [FOREIGN_FIXES, BUFFER_FIXES, BUILTIN_FIXES], ids=["names", "buffers", "builtins"])
def test_what_a_fix_names_exists(table):
    """Every function that a fix calls is one of the language, of Python, or of the NumPy around the kernel."""
    import builtins
    import re

    known = {*vyre._LANGUAGE.split(), *vyre._TYPES.split(), *dir(builtins), "sort", "kernel"}
    for name, fix in table.items():
        for called in re.findall(r"(\w+)\(", fix):
            assert called in known, (name, called)


# ---- whole kernels --------------------------------------------------------------------------------------------------

# the source of `k`, its line, the text under the carets, words of the message, words of the fix
KERNELS = [
    ("def k(x, out):\n    i = cuda.grid(1)\n    out[i] = x[i]",
     1, "x", "`x` has no annotation", "x: In[f32], or x: f32 for a number"),
    ("def k(x: np.ndarray, out: np.ndarray):\n    out[gid.x] = x[gid.x]",
     1, "np.ndarray", "not a type of kernels", "In[f32], Out[f32], InOut[f32] for a buffer"),
    ("def k(x: 'In[float]', out: Out[f32]):\n    out[gid.x] = x[gid.x]",
     1, "'In[float]'", "does not name an element type", "write In[f32], or In[f32, 4]"),
    ("def k(x: 'In[np.int64]', out: Out[f32]):\n    pass",
     1, "'In[np.int64]'", "does not name an element type", "write In[i64]"),
    ("def k(x: In[f32], BLOCK: 'tl.constexpr'):\n    pass",
     1, "'tl.constexpr'", "cannot be evaluated", "*, N: const = 8"),
    ("def k(x: In[f32], out: Out[f32]):\n    i = blockIdx.x * blockDim.x + threadIdx.x\n    out[i] = x[i]",
     2, "blockIdx.x", "`blockIdx.x` is not part of kernels", "use wg.x"),
    ("def k(x: In[f32], out: Out[f32]):\n    i = gid.x\n    while i < len(x):\n        i += gridDim.x * 64",
     4, "gridDim.x", "not part of kernels", "as a parameter: n: u32"),
    ("def k(x: In[f32], out: Out[f32]):\n    i = gid(0)\n    out[i] = x[i]",
     2, "gid(0)", "`gid` is not called", "write gid.x, gid.y or gid.z"),
    ("def k(x: In[f32], out: Out[f32]):\n    i = gid.x()\n    out[i] = x[i]",
     2, "gid.x", "cannot be called", "leave the parentheses out"),
    ("def k(x: In[f32], out: Out[f32]):\n    i = gid[0]\n    out[i] = x[i]",
     2, "gid", "not a buffer", "write gid.x"),
    ("def k(x: In[f32], out: Out[f32]):\n    total = 0\n    for i in range(9):\n        total += x[i]",
     4, "total += x[i]", "`total` is u32 since line 2, and meets f32", "begin with a float at line 2: total = 0.0"),
    ("def k(x: In[f32], out: Out[f32]):\n    i = gid.x\n    out[i] += x[i]",
     3, "out[i]", "an Out and cannot be read", "InOut[f32]"),
    ("def k(x: In[f32], out: Out[f32]):\n    out = x * 2.0",
     2, "x", "`x` is a buffer, not a value", "x[i]"),
    ("def k(x: In[f32], out: Out[f32]):\n    out[:] = 0.0",
     2, "out[:]", "slices", "index one element"),
    ("def k(x: In[f32], out: Out[f32]):\n    out[...] = 0.0",
     2, "...", "`...` names no element", "x[i]"),
    ("def k(x: In[f32], out: Out[f32]):\n    i, j = gid.x, gid.y\n    out[i, j] = x[i, j]",
     3, "out[i, j]", "`out` has no rank", "declare out: Out[f32, D2]"),
    ("def k(x: In[f32], out: Out[f32]):\n    i, j = gid.x, gid.y\n    out[i] = x[i][j]",
     3, "x[i]", "not a buffer", "write x[i] without an index"),
    ("def k(x: In[f32], out: Out[f32]):\n    n = x.shape[0]\n    if gid.x < n:\n        out[gid.x] = x[gid.x]",
     2, "x.shape", "no `.shape`", "use len(x)"),
    ("def k(x: In[f32], out: Out[f32]):\n    for i, v in enumerate(x):\n        out[i] = v",
     2, "i, v", "one variable", "for i in range(len(x)), and x[i] inside"),
    ("def k(x: In[f32], out: Out[f32]):\n    tile = shared(256, f32)\n    tile[lid.x] = x[gid.x]",
     2, "shared(256, f32)", "a type and then one number", "write shared(f32, 256)"),
    ("def k(x: In[f32], out: Out[f32]):\n    tile = shared(f32, (16, 16))\n    tile[lid.x] = x[gid.x]",
     2, "shared(f32, (16, 16))", "one number of elements", "write shared(f32, 16 * 16)"),
    ("def k(x: In[f32], out: Out[f32]):\n    tile = shared[f32, 256]\n    tile[lid.x] = x[gid.x]",
     2, "shared[f32, 256]", "`shared` is a function", "shared(dtype, count)"),
    ("def k(x: In[f32], out: Out[f32]):\n    tile = shared(np.float32, 64)\n    tile[lid.x] = x[gid.x]",
     2, "np.float32", "not a type of kernels", "write f32"),
    ("def k(x: In[f32], out: Out[f32]):\n    acc = cuda.local.array(4, f32)\n    out[0] = acc[0]",
     2, "cuda.local.array", "not part of kernels", "acc = local(f32, 8)"),
    ("def k(x: In[f32], c: InOut[u32]):\n    cuda.atomic.add(c, 0, 1)",
     2, "cuda.atomic.add", "not part of kernels", "atomic_add(buf, i, value)"),
    ("def k(x: In[f32], c: InOut[u32]):\n    vyre.atomic_add(c[0], 1)",
     2, "vyre.atomic_add(c[0], 1)", "takes 3 arguments, not 2", "atomic_add(buf, i, value)"),
    ("def k(x: In[f32], c: InOut[f32]):\n    vyre.atomic_add(c, 0, x[gid.x])",
     2, "c", "on a buffer of f32", "InOut[u32] or InOut[i32]"),
    ("def k(x: In[f32], out: Out[f32]):\n    vyre.barrier\n    out[gid.x] = x[gid.x]",
     2, "vyre.barrier", "is a function, not a value", "vyre.barrier()"),
    ("def k(x: In[f32], c: InOut[u32]):\n    c[gid.x] == 1",
     2, "c[gid.x] == 1", "not used", "write c[gid.x] = 1 to store it"),
    ("def k(x: In[f32], out: Out[f32]):\n    v: float = x[gid.x]\n    out[gid.x] = v",
     2, "float", "not a type of kernels", "write f32"),
    ("def k(x: In[f32], out: Out[f32]):\n    out[gid.x] = max(x)",
     2, "max(x)", "takes 2 arguments", "compare its elements in a for loop"),
    ("def k(x: In[f32], out: Out[f32]):\n    out[gid.x] = x[gid.x].item()",
     2, "x[gid.x].item", "attribute", "`x[gid.x]` is one number"),
    ("def k(x: In[f32], out: Out[f32]):\n    best = float('inf')\n    out[0] = best",
     2, "float('inf')", "float() is not part of kernels", "math.inf"),
    ("def k(x: In[f32], out: Out[f32]):\n    pid = tl.program_id(0)\n    v = tl.load(x + pid)\n    tl.store(out, v)",
     2, "tl.program_id", "not part of kernels", "wg.x for the workgroup"),
    ("def k(x: In[f32], out: Out[f32]):\n    return x[gid.x] * 2.0",
     2, "x[gid.x] * 2.0", "return nothing", "Out parameter"),
    ("def k(x: In[f32], out: Out[f32]):\n    out[gid.x] = x[gid.x / 2]",
     2, "gid.x / 2", "`/` does not divide u32", "//"),
]  # fmt: skip


@pytest.mark.parametrize("source, line, caret, message, fix", KERNELS, ids=range(len(KERNELS)))
def test_a_wrong_kernel_shows_its_line_and_what_to_write(source, line, caret, message, fix):
    error = error_of(f"{source}\n")
    assert (error.lineno, error.text) == (line, source.split("\n")[line - 1])
    assert error.text[error.offset - 1 : error.end_offset - 1] == caret
    assert message in error.message
    assert fix in error.fix
    assert "^" * len(caret) in str(error)
    assert str(error).endswith(f"Fix: {error.fix}")
