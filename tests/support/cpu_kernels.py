"""Small kernels that show whose memory was written, how often, and by whom."""

import numpy as np

import vyre
from vyre import In, InOut, Out, atomic_add, atomic_max, f32, f64, gid, i32, u8, u32
from vyre.backends.cpu.run import host_pool as memory
from vyre.driver.guard import compile as pipelines

LARGE = memory.POOLED_BYTES // 4
"""Elements of a result that is pooled."""


def compiled(backend, program, config=None):
    return pipelines.compile(backend, program, config)


def arange(n):
    return np.arange(n, dtype=np.uint32)


@vyre.kernel(workgroup=64)
def halves(x: In[u32], out: Out[u32]):
    if gid.x < len(x):
        out[2 * gid.x] = x[gid.x]


@vyre.kernel(workgroup=64)
def shifted(x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x + 1]


@vyre.kernel(workgroup=64)
def behind(x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x - 1]


@vyre.kernel(workgroup=64)
def bump(n: InOut[u32]):
    if gid.x < len(n):
        n[gid.x] = n[gid.x] + gid.x + 1


@vyre.kernel(workgroup=64)
def histogram(x: In[u8], bins: InOut[u32]):
    if gid.x < len(x):
        atomic_add(bins, u32(x[gid.x]), 1)


@vyre.kernel(workgroup=64)
def largest(x: In[i32], top: InOut[i32]):
    if gid.x < len(x):
        atomic_max(top, 0, x[gid.x])


@vyre.kernel(workgroup=64)
def scaled(x: In[f32], out: Out[f32]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * 0.5


@vyre.kernel(workgroup=64)
def scaled_wide(x: In[f64], out: Out[f64]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * f64(0.5)


@vyre.kernel(workgroup=64)
def stirred(x: In[u32], rounds: u32, out: Out[u32]):
    if gid.x < len(out):
        v = x[gid.x]
        for _ in range(rounds):
            v = v * 1664525 + 1013904223
        out[gid.x] = v


ROUNDS = [1 << bits for bits in range(16, 30, 2)]
"""Of `stirred`: a moment, up to seconds."""
