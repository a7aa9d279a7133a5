"""The kernels that bench/cuda.py measures, as a user would write them for a device of many lanes.

What is written by index arithmetic is declared InOut: the kernels store all of it, and resident memory that a kernel
also reads is not cleared before the launch.
"""

from __future__ import annotations

from typing import Any

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
TURN = 512
"""Elements that 32 lanes take at a time: sixteen each."""
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


def orbit_of(workgroup: int) -> Any:
    """Arithmetic in a loop, in workgroups of this size, which no invocation knows of."""

    @vyre.kernel(workgroup=workgroup)
    def orbit(x: In[u32], out: Out[u32]) -> None:
        i = gid.x
        if i < len(out):
            v = x[i]
            for _ in range(256):
                v = v * u32(1664525) + u32(1013904223)
            out[i] = v

    return orbit


@vyre.kernel(workgroup=LAST)
def sum_last(totals: In[f32], out: InOut[f32]) -> None:
    parts = shared(f32, 32)
    total = f32(0)
    for k in range((len(totals) + (4 * LAST - 1)) // (4 * LAST)):
        a = k * (4 * LAST) + lid.x * 4
        total += (totals[a] + totals[a + 1]) + (totals[a + 2] + totals[a + 3])
    total = subgroup_add(total)
    if lid.x % 32 == 0:
        parts[lid.x // 32] = total
    barrier()
    total = subgroup_add(parts[lid.x % 32])
    if lid.x == 0:
        out[0] = total


@vyre.device
def share_of(length: u32, shares: u32) -> u32:
    """Elements of each of so many shares: whole turns, and no element left over."""
    whole = shares * TURN
    return (length + (whole - 1)) // whole * TURN


def scan_of(element: Any) -> tuple[Any, Any, Any]:
    """The three steps of an inclusive prefix sum of u32 or f32.

    32 lanes do a share, four neighbouring elements each, four times a turn. First every share is added up, then one
    group adds the totals up, and then the shares begin with what is before them. Sums of f32 are those of this text.
    """

    @vyre.kernel(workgroup=GROUP)
    def totals(x: In[element], sums: InOut[element]) -> None:
        share = share_of(len(x), len(sums))
        first = gid.x // 32 * share + gid.x % 32 * 4
        total = element(0)
        for k in range(share // TURN):
            a = first + k * TURN
            b = a + 128
            c = a + 256
            d = a + 384
            ab = ((x[a] + x[a + 1]) + (x[a + 2] + x[a + 3])) + ((x[b] + x[b + 1]) + (x[b + 2] + x[b + 3]))
            cd = ((x[c] + x[c + 1]) + (x[c + 2] + x[c + 3])) + ((x[d] + x[d + 1]) + (x[d + 2] + x[d + 3]))
            total += ab + cd
        total = subgroup_add(total)
        if gid.x % 32 == 0:
            sums[gid.x // 32] = total

    @vyre.device
    def up_to(v: element, lane: u32) -> element:
        """The sum over the lanes up to this one; there is nothing before the first."""
        for k in vyre.static_range(5):
            v += element(subgroup_shuffle(v, lane - (1 << k)))
        return v

    @vyre.kernel(workgroup=LAST)
    def before(sums: InOut[element]) -> None:
        """One group: each total becomes the sum of those before it."""
        parts = shared(element, 32)
        lane = lid.x % 32
        share = (len(sums) + 4 * LAST - 1) // (4 * LAST) * 128
        first = lid.x // 32 * share + lane * 4
        total = element(0)
        for k in range(share // 128):
            a = first + k * 128
            total += (sums[a] + sums[a + 1]) + (sums[a + 2] + sums[a + 3])
        total = subgroup_add(total)
        if lane == 0:
            parts[lid.x // 32] = total
        barrier()
        running = subgroup_shuffle(up_to(parts[lane], lane), lid.x // 32 - 1)
        for k in range(share // 128):
            a = first + k * 128
            a0 = sums[a]
            a1 = sums[a + 1]
            a2 = sums[a + 2]
            a3 = sums[a + 3]
            up = up_to((a0 + a1) + (a2 + a3), lane)
            here = running + subgroup_shuffle(up, lane - 1)
            sums[a] = here
            sums[a + 1] = here + a0
            sums[a + 2] = here + (a0 + a1)
            sums[a + 3] = here + ((a0 + a1) + a2)
            running += subgroup_shuffle(up, 31)

    @vyre.kernel(workgroup=GROUP)
    def scan(x: In[element], sums: In[element], out: InOut[element]) -> None:
        share = share_of(len(x), len(sums))
        lane = gid.x % 32
        mine = len(sums) - 1 - gid.x // 32  # the last ones first: the caches still hold them
        first = mine * share + lane * 4
        running = element(sums[mine])
        for k in range(share // TURN):
            a = first + k * TURN
            b = a + 128
            c = a + 256
            d = a + 384
            a0 = x[a]
            a1 = x[a + 1]
            a2 = x[a + 2]
            a3 = x[a + 3]
            b0 = x[b]
            b1 = x[b + 1]
            b2 = x[b + 2]
            b3 = x[b + 3]
            c0 = x[c]
            c1 = x[c + 1]
            c2 = x[c + 2]
            c3 = x[c + 3]
            d0 = x[d]
            d1 = x[d + 1]
            d2 = x[d + 2]
            d3 = x[d + 3]
            a01 = a0 + a1
            a02 = a01 + a2
            a03 = a02 + a3
            b01 = b0 + b1
            b02 = b01 + b2
            b03 = b02 + b3
            c01 = c0 + c1
            c02 = c01 + c2
            c03 = c02 + c3
            d01 = d0 + d1
            d02 = d01 + d2
            d03 = d02 + d3
            sa = up_to(a03, lane)
            sb = up_to(b03, lane)
            sc = up_to(c03, lane)
            sd = up_to(d03, lane)
            here = running + subgroup_shuffle(sa, lane - 1)
            out[a] = here + a0
            out[a + 1] = here + a01
            out[a + 2] = here + a02
            out[a + 3] = here + a03
            running += subgroup_shuffle(sa, 31)
            here = running + subgroup_shuffle(sb, lane - 1)
            out[b] = here + b0
            out[b + 1] = here + b01
            out[b + 2] = here + b02
            out[b + 3] = here + b03
            running += subgroup_shuffle(sb, 31)
            here = running + subgroup_shuffle(sc, lane - 1)
            out[c] = here + c0
            out[c + 1] = here + c01
            out[c + 2] = here + c02
            out[c + 3] = here + c03
            running += subgroup_shuffle(sc, 31)
            here = running + subgroup_shuffle(sd, lane - 1)
            out[d] = here + d0
            out[d + 1] = here + d01
            out[d + 2] = here + d02
            out[d + 3] = here + d03
            running += subgroup_shuffle(sd, 31)

    return totals, before, scan


SCAN_U32 = scan_of(u32)
SCAN_F32 = scan_of(f32)


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
