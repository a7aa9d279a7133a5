"""The kernels that `vyre bench` measures without a file: a stream of words, of floats, a reduction, a scatter."""

from __future__ import annotations

from ... import In, InOut, Out, atomic_add, barrier, f32, gid, kernel, lid, shared, static_range, u32

BINS = 256
GROUP = 256


@kernel(workgroup=GROUP)
def xor(x: In[u32], y: In[u32], out: Out[u32]) -> None:
    i = gid.x
    if i < len(out):
        out[i] = x[i] ^ y[i]


@kernel(workgroup=GROUP)
def saxpy(alpha: f32, x: In[f32], y: In[f32], out: Out[f32]) -> None:
    i = gid.x
    if i < len(out):
        out[i] = alpha * x[i] + y[i]


@kernel(workgroup=GROUP)
def total(x: In[u32], out: InOut[u32]) -> None:
    """The sum of all words, modulo 2**32: one atomic for each workgroup."""
    part = shared(u32, 256)
    part[lid.x] = x[gid.x] if gid.x < len(x) else u32(0)
    barrier()
    for k in static_range(8):
        if lid.x < 128 >> k:
            part[lid.x] = part[lid.x] + part[lid.x + (128 >> k)]
        barrier()
    if lid.x == 0:
        atomic_add(out, 0, part[0])


@kernel(workgroup=GROUP)
def histogram(x: In[u32], bins: InOut[u32]) -> None:
    i = gid.x
    if i < len(x):
        atomic_add(bins, x[i] >> 24, 1)
