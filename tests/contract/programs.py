"""Small programs that show what a dispatch did, and arrays to feed them."""

import struct

import vyre
from vyre import In, InOut, Out, barrier, exp, f32, gid, lid, shared, trap, u32


def words(*values):
    return struct.pack(f"<{len(values)}I", *values)


def unwords(data):
    return list(struct.unpack(f"<{len(data) // 4}I", data))


@vyre.kernel(workgroup=4)
def number_kernel(out: Out[u32]):
    out[gid.x] = gid.x + 1


@vyre.kernel(workgroup=4)
def count_kernel(n: InOut[u32]):
    if gid.x < len(n):
        n[gid.x] = n[gid.x] + 1


@vyre.kernel(workgroup=4)
def lane_kernel(x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = lid.x + x[gid.x]


@vyre.kernel(workgroup=4)
def add_kernel(a: In[u32], b: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = a[gid.x] + b[gid.x]


@vyre.kernel(workgroup=4)
def exp_kernel(x: In[f32], out: Out[f32]):
    out[gid.x] = exp(x[gid.x])


@vyre.kernel(workgroup=4)
def scatter_kernel(order: In[u32], out: Out[u32]):
    if gid.x < len(order):
        out[order[gid.x]] = gid.x


@vyre.kernel(workgroup=4)
def split_kernel(x: In[u32], low: Out[u32], high: Out[u32]):
    if gid.x < len(x):
        low[gid.x] = x[gid.x] & 0xFFFF
        high[gid.x] = x[gid.x] >> 16


@vyre.kernel(workgroup=4)
def neighbour_kernel(x: In[u32], out: Out[u32]):
    tile = shared(u32, 4)
    tile[lid.x] = x[gid.x]
    barrier()
    out[gid.x] = tile[(lid.x + 1) & 3]


@vyre.kernel(workgroup=(4, 2))
def plane_kernel(out: Out[u32]):
    out[gid.y * 8 + gid.x] = gid.x + 10 * gid.y


@vyre.kernel(workgroup=1)
def long_kernel(n: InOut[u32]):
    for k in range(0xFFFFFFFF):
        n[0] = n[0] ^ k


@vyre.kernel(workgroup=1)
def trap_kernel(n: InOut[u32]):
    n[0] = 7
    if n[0] == 7:
        trap("seven")


NUMBER = number_kernel.program
"""out[i] = i + 1 for every invocation; without a bound, so that the output shows how many there were."""
COUNT = count_kernel.program
"""n[i] += 1."""
LANE = lane_kernel.program
"""Depends on the workgroup size."""
ADD = add_kernel.program
EXP = exp_kernel.program
SCATTER = scatter_kernel.program
SPLIT = split_kernel.program
NEIGHBOUR = neighbour_kernel.program
PLANE = plane_kernel.program
LONG = long_kernel.program
"""Hours of work."""
TRAP = trap_kernel.program
