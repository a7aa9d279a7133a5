"""The kernels that bench/cuda.py measures, as a user would write them for a device of many lanes.

What is written by index arithmetic is declared InOut: the kernels store all of it, and resident memory that a kernel
also reads is not cleared before the launch.
"""

from __future__ import annotations

import vyre
from vyre import (
    In,
    InOut,
    Out,
    atomic_add,
    barrier,
    cos,
    exp,
    f32,
    gid,
    lid,
    log,
    shared,
    sin,
    sqrt,
    subgroup_add,
    subgroup_shuffle,
    tanh,
    u32,
    wg,
)

GROUP = 256
LAST = 1024
"""Lanes of the one group that ends a sum or a scan."""
TURN = 256
"""Elements that 32 lanes take at a time: eight each."""
COUNT_GROUPS = 1024
COUNT_TURN = 4 * GROUP


@vyre.kernel(workgroup=GROUP)
def xor(a: In[u32], b: In[u32], out: Out[u32]) -> None:
    i = gid.x
    if i < len(out):
        out[i] = a[i] ^ b[i]


@vyre.kernel(workgroup=GROUP)
def flip(a: In[u32], out: Out[u32]) -> None:
    i = gid.x
    if i < len(out):
        out[i] = a[i] ^ 0x5A5A5A5A


@vyre.device
def share_of(length: u32, shares: u32) -> u32:
    """Elements of each of so many shares: whole turns, and no element left over."""
    whole = shares * TURN
    return (length + (whole - 1)) // whole * TURN


@vyre.kernel(workgroup=GROUP)
def sum_shares(x: In[f32], totals: InOut[f32]) -> None:
    """32 lanes add up one share; beyond the end is zero."""
    share = share_of(len(x), len(totals))
    start = gid.x // 32 * share + gid.x % 32
    t0 = f32(0)
    t1 = f32(0)
    t2 = f32(0)
    t3 = f32(0)
    t4 = f32(0)
    t5 = f32(0)
    t6 = f32(0)
    t7 = f32(0)
    for k in range(share // TURN):
        at = start + k * TURN
        t0 += x[at]
        t1 += x[at + 32]
        t2 += x[at + 64]
        t3 += x[at + 96]
        t4 += x[at + 128]
        t5 += x[at + 160]
        t6 += x[at + 192]
        t7 += x[at + 224]
    total = subgroup_add(((t0 + t1) + (t2 + t3)) + ((t4 + t5) + (t6 + t7)))
    if gid.x % 32 == 0:
        totals[gid.x // 32] = total


@vyre.kernel(workgroup=LAST)
def sum_last(totals: In[f32], out: InOut[f32]) -> None:
    parts = shared(f32, 32)
    total = f32(0)
    for k in range((len(totals) + (LAST - 1)) // LAST):
        total += totals[k * LAST + lid.x]
    total = subgroup_add(total)
    if lid.x % 32 == 0:
        parts[lid.x // 32] = total
    barrier()
    total = subgroup_add(parts[lid.x % 32])
    if lid.x == 0:
        out[0] = total


@vyre.kernel(workgroup=GROUP)
def total_shares(x: In[u32], totals: InOut[u32]) -> None:
    share = share_of(len(x), len(totals))
    start = gid.x // 32 * share + gid.x % 32
    total = u32(0)
    for k in range(share // TURN):
        at = start + k * TURN
        total += ((x[at] + x[at + 32]) + (x[at + 64] + x[at + 96])) + (
            (x[at + 128] + x[at + 160]) + (x[at + 192] + x[at + 224])
        )
    total = subgroup_add(total)
    if gid.x % 32 == 0:
        totals[gid.x // 32] = total


@vyre.kernel(workgroup=LAST)
def before_shares(totals: InOut[u32]) -> None:
    """One group: each total becomes the sum of those before it."""
    tile = shared(u32, LAST)
    each = (len(totals) + (LAST - 1)) // LAST
    start = lid.x * each
    total = u32(0)
    for k in range(each):
        total += totals[start + k]
    tile[lid.x] = total
    barrier()
    for k in vyre.static_range(10):
        before = u32(0)
        if lid.x >= 1 << k:
            before = tile[lid.x - (1 << k)]
        barrier()
        tile[lid.x] += before
        barrier()
    running = tile[lid.x] - total
    for k in range(each):
        here = totals[start + k]
        totals[start + k] = running
        running += here


@vyre.device
def scan_lanes(v: u32, lane: u32) -> u32:
    """Inclusive sum over the lanes up to this one."""
    for k in vyre.static_range(5):
        before = subgroup_shuffle(v, lane - (1 << k))
        v += before if lane >= 1 << k else u32(0)
    return v


@vyre.kernel(workgroup=GROUP)
def scan_shares(x: In[u32], before: In[u32], out: InOut[u32]) -> None:
    """Inclusive scan: each share starts from what is before it."""
    share = share_of(len(x), len(before))
    lane = gid.x % 32
    start = gid.x // 32 * share + lane
    running = before[gid.x // 32]
    for k in range(share // TURN):
        at = start + k * TURN
        v0 = scan_lanes(x[at], lane)
        v1 = scan_lanes(x[at + 32], lane)
        v2 = scan_lanes(x[at + 64], lane)
        v3 = scan_lanes(x[at + 96], lane)
        v4 = scan_lanes(x[at + 128], lane)
        v5 = scan_lanes(x[at + 160], lane)
        v6 = scan_lanes(x[at + 192], lane)
        v7 = scan_lanes(x[at + 224], lane)
        v1 += subgroup_shuffle(v0, 31)
        v2 += subgroup_shuffle(v1, 31)
        v3 += subgroup_shuffle(v2, 31)
        v4 += subgroup_shuffle(v3, 31)
        v5 += subgroup_shuffle(v4, 31)
        v6 += subgroup_shuffle(v5, 31)
        v7 += subgroup_shuffle(v6, 31)
        out[at] = v0 + running
        out[at + 32] = v1 + running
        out[at + 64] = v2 + running
        out[at + 96] = v3 + running
        out[at + 128] = v4 + running
        out[at + 160] = v5 + running
        out[at + 192] = v6 + running
        out[at + 224] = v7 + running
        running += subgroup_shuffle(v7, 31)


@vyre.kernel(workgroup=GROUP)
def clear_bins(bins: InOut[u32]) -> None:
    bins[lid.x] = 0


@vyre.device
def count_bytes(mine: InOut[u32], first: u32, word: u32) -> None:
    atomic_add(mine, first + (word & 255), 1)
    atomic_add(mine, first + ((word >> 8) & 255), 1)
    atomic_add(mine, first + ((word >> 16) & 255), 1)
    atomic_add(mine, first + (word >> 24), 1)


@vyre.kernel(workgroup=GROUP)
def count(words: In[u32], bins: InOut[u32]) -> None:
    """Bytes, four to a word; every 32 lanes count for themselves. The words are whole turns of all groups."""
    mine = shared(u32, 8 * 256)
    first = lid.x // 32 * 256
    share = len(words) // COUNT_GROUPS
    for k in range(share // COUNT_TURN):
        at = wg.x * share + k * COUNT_TURN + lid.x
        w0 = words[at]
        w1 = words[at + GROUP]
        w2 = words[at + 2 * GROUP]
        w3 = words[at + 3 * GROUP]
        count_bytes(mine, first, w0)
        count_bytes(mine, first, w1)
        count_bytes(mine, first, w2)
        count_bytes(mine, first, w3)
    barrier()
    total = u32(0)
    for k in vyre.static_range(8):
        total += mine[k * 256 + lid.x]
    atomic_add(bins, lid.x, total)


@vyre.kernel(workgroup=64)
def functions(x: In[f32], out: Out[f32]) -> None:
    """The math library, of anything."""
    i = gid.x
    if i < len(out):
        v = x[i]
        out[i] = exp(sin(v)) + log(abs(v)) * cos(v) + tanh(v) - sqrt(abs(v)) / v
