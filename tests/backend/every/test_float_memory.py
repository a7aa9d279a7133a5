"""What a compiler knows of memory, because the kernel stored it or cleared it, takes no flush away."""

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, barrier, bitcast, f32, gid, lid, shared, u32

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


@pytest.mark.parametrize("kernel", [less_cleared, plus_shared, less_stored, times_stored], ids=lambda k: k.__name__)
@pytest.mark.parametrize("backend", ["cpu", "opencl", "wgpu", "cuda"])
def test_a_subnormal_that_meets_a_number_from_memory_is_zero(backend, kernel):
    registration_or_skip(backend)

    def results(name):
        arrays = {"a": BITS.view(np.float32)}
        if "acc" in [p.name for p in kernel.params]:
            arrays["acc"] = np.full(len(BITS), 7, np.float32)
        found = kernel.on(name)(**arrays)
        return [np.asarray(x).tobytes() for x in (found if isinstance(found, tuple) else (found,))]

    assert results(backend) == results("reference")
