"""What a compiler knows of memory, because the kernel stored it or cleared it, takes no flush away."""

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, barrier, bitcast, f32, gid, lid, shared, u32
from vyre.lower import lower
from vyre.lower.kernel_ir import Ins, walk

from ...support.device_backends import registration_or_skip

BITS = np.array([1, 0x007FFFFF, 0x80000001, 0x807FFFFF, 0x00800000, 0x3F800000] * 11, np.uint32)


@vyre.kernel(workgroup=1)
def less_cleared(a: In[f32], out: Out[f32]):
    s = shared(f32, 1)
    if gid.x < len(a) and gid.x < len(out):
        out[gid.x] = a[gid.x] - s[0]


@vyre.kernel(workgroup=16)
def plus_shared(a: In[f32], out: Out[f32]):
    s = shared(f32, 16)
    s[lid.x] = -0.0
    barrier()
    if gid.x < len(a) and gid.x < len(out):
        out[gid.x] = a[gid.x] + s[lid.x]


@vyre.kernel(workgroup=16)
def less_stored(a: In[f32], acc: InOut[f32], out: Out[u32]):
    i = gid.x
    if i < len(acc) and i < len(a) and i < len(out):
        acc[i] = 0.0
        acc[i] = a[i] - acc[i]
        out[i] = bitcast(u32, a[i] - acc[i])


@vyre.kernel(workgroup=16)
def times_stored(a: In[f32], acc: InOut[f32]):
    i = gid.x
    if i < len(acc) and i < len(a):
        acc[i] = 1.0
        acc[i] = a[i] * acc[i]


@vyre.kernel(workgroup=16)
def turned_in_shared(a: In[f32], out: Out[u32]):
    """What goes into shared memory is a number, so that what comes out is one too: in arithmetic, tests and bits."""
    s = shared(f32, 32)
    i = gid.x
    x = a[i] if i < len(a) else f32(2)
    s[lid.x] = x
    s[lid.x + 16] = -abs(x) if x > 0 else x * 0.5
    barrier()
    y, z = s[15 - lid.x], s[31 - lid.x]
    if i < len(out):
        out[i] = bitcast(u32, y - z) ^ bitcast(u32, z * 2) ^ u32(y == 0) ^ (u32(z < 0) << 1) ^ bitcast(u32, y)


@vyre.kernel(workgroup=16)
def bits_in_shared(a: In[u32], out: Out[u32]):
    s = shared(f32, 16)
    i = gid.x
    word = a[i] if i < len(a) else u32(2)
    s[lid.x] = bitcast(f32, word)
    barrier()
    y = s[15 - lid.x]
    if i < len(out):
        out[i] = bitcast(u32, y + 0.0) ^ u32(y == 0) ^ bitcast(u32, y)


def flushed(kernel):
    """Whether loads from shared memory are, on a machine that flushes."""
    loads = [i for i in walk(lower(kernel.program).body) if isinstance(i, Ins) and i.op == "flush"]
    return any(i.args[0].op == "load" and i.args[0].attr.shared for i in loads)


def test_numbers_that_were_flushed_are_not_flushed_again_behind_shared_memory():
    assert not flushed(bits_in_shared)
    assert not flushed(turned_in_shared)


KERNELS = (less_cleared, plus_shared, less_stored, times_stored, turned_in_shared, bits_in_shared)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("backend", ["cpu", "opencl", "wgpu", "cuda"])
def test_a_subnormal_that_meets_a_number_from_memory_is_zero(backend, kernel):
    registration_or_skip(backend)

    def results(name):
        arrays = {"a": BITS if kernel is bits_in_shared else BITS.view(np.float32)}
        if "acc" in [p.name for p in kernel.params]:
            arrays["acc"] = np.full(len(BITS), 7, np.float32)
        found = kernel.on(name)(**arrays)
        return [np.asarray(x).tobytes() for x in (found if isinstance(found, tuple) else (found,))]

    assert results(backend) == results("reference")
