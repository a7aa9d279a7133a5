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


def refused(source: str, **names: object) -> tuple[str, str, str]:
    """The text under the carets, the message and the fix."""
    filename = f"<habit {next(counter)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    scope = {**NAMES, "vyre": vyre, "np": np, "math": math, **names}
    exec(compile(source, filename, "exec", dont_inherit=True), scope)
    with pytest.raises(vyre.KernelError) as caught:
        build_program(read_source(scope["k"], 64), {})
    e = caught.value
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
    ("v = np.zeros(4)", "np.zeros(4)", "shared()"),
    ("v = np.random.rand()", "np.random.rand()", "pass random numbers"),
    ("v = sorted(x)", "sorted(x)", "np.sort"),
    ("print(x[0])", "print(x[0])", "store what you want to see"),
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
    assert "bind the number" in fix


@pytest.mark.parametrize("table", [FOREIGN_FIXES, BUFFER_FIXES, BUILTIN_FIXES], ids=["names", "buffers", "builtins"])
def test_what_a_fix_names_exists(table):
    """Every function that a fix calls is one of the language, of Python, or of the NumPy around the kernel."""
    import builtins
    import re

    known = {*vyre._LANGUAGE.split(), *vyre._TYPES.split(), *dir(builtins), "sort", "kernel"}
    for name, fix in table.items():
        for called in re.findall(r"(\w+)\(", fix):
            assert called in known, (name, called)
