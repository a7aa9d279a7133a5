"""The kernels that bench/cpu.py measures, as a user would write them."""

from __future__ import annotations

import vyre
from vyre import In, InOut, Out, atomic_add, exp, f32, gid, lid, log, sqrt, u8, u16, u32, wg

BLOCK = 256
SUM_LANES = 2048
"""Partial sums of the first step of a sum."""
GROUP = 64
PARTS = 16
"""Groups that add up one block of a scan."""


@vyre.kernel(workgroup=BLOCK)
def xor(a: In[u32], b: In[u32], out: Out[u32]):
    i = gid.x
    if i < len(out):
        out[i] = a[i] ^ b[i]


@vyre.kernel(workgroup=BLOCK)
def saxpy(alpha: f32, x: In[f32], y: In[f32], out: Out[f32]):
    i = gid.x
    if i < len(out):
        out[i] = alpha * x[i] + y[i]


@vyre.kernel(workgroup=GROUP)
def partial_sums(x: In[f32], out: Out[f32]):
    """Lane k of a group sums every 64th element of the group's share: neighbours read neighbours."""
    share = len(x) // (len(out) // GROUP)
    start = wg.x * share + lid.x
    total = f32(0)
    for k in range(share // GROUP):
        total += x[start + k * GROUP]
    out[gid.x] = total


@vyre.kernel(workgroup=1)
def last_sum(x: In[f32], out: Out[f32, 1]):
    total = f32(0)
    for k in range(len(x)):
        total += x[k]
    out[0] = total


@vyre.kernel(workgroup=GROUP)
def block_totals(x: In[u32], out: Out[u32]):
    """What each lane adds up; a block is shared by some groups."""
    share = len(x) // (len(out) // GROUP)
    start = wg.x * share + lid.x
    total = u32(0)
    for k in range(share // GROUP):
        total += x[start + k * GROUP]
    out[gid.x] = total


@vyre.kernel(workgroup=1)
def scan_blocks(x: In[u32], totals: In[u32], out: Out[u32]):
    """Inclusive scan: every block starts from what the blocks before it add up to."""
    share = len(x) // (len(totals) // (GROUP * PARTS) + 1)
    total = u32(0)
    for k in range(gid.x * (GROUP * PARTS)):
        total += totals[k]
    for k in range(share):
        total += x[gid.x * share + k]
        out[gid.x * share + k] = total


@vyre.kernel(workgroup=BLOCK)
def histogram(data: In[u8], bins: InOut[u32, 256]):
    i = gid.x
    if i < len(data):
        atomic_add(bins, u32(data[i]), 1)


@vyre.kernel(workgroup=BLOCK)
def chain(x: In[f32], y: In[f32], out: Out[f32]):
    """Ten elementwise steps in one pass."""
    i = gid.x
    if i < len(out):
        a = x[i]
        b = y[i]
        a = a * 1.5
        a = a + b
        b = b - 0.25
        a = a * b
        a = a + 3.0
        a = min(a, 100.0)
        a = max(a, -100.0)
        b = a * a
        a = a - b
        out[i] = a + 0.5


@vyre.kernel(workgroup=(64, 1))
def matmul_naive(a: In[f32], b: In[f32], n: u32, out: Out[f32]):
    row = gid.y
    column = gid.x
    total = f32(0)
    for k in range(n):
        total += a[row * n + k] * b[k * n + column]
    out[row * n + column] = total


@vyre.kernel(workgroup=(64, 1))
def matmul_tiled(a: In[f32], b: In[f32], n: u32, out: Out[f32]):
    """Each invocation computes a column of eight, so that one row of b serves eight rows of a."""
    row = gid.y * 8
    column = gid.x
    t0 = f32(0)
    t1 = f32(0)
    t2 = f32(0)
    t3 = f32(0)
    t4 = f32(0)
    t5 = f32(0)
    t6 = f32(0)
    t7 = f32(0)
    for k in range(n):
        x = b[k * n + column]
        at = row * n + k
        t0 += a[at] * x
        t1 += a[at + n] * x
        t2 += a[at + 2 * n] * x
        t3 += a[at + 3 * n] * x
        t4 += a[at + 4 * n] * x
        t5 += a[at + 5 * n] * x
        t6 += a[at + 6 * n] * x
        t7 += a[at + 7 * n] * x
    at = row * n + column
    out[at] = t0
    out[at + n] = t1
    out[at + 2 * n] = t2
    out[at + 3 * n] = t3
    out[at + 4 * n] = t4
    out[at + 5 * n] = t5
    out[at + 6 * n] = t6
    out[at + 7 * n] = t7


@vyre.kernel(workgroup=64)
def dfa_scan(
    text: In[u32], table: In[u16], symbols: In[u8, 256], accepting: u32, warm_up: u32, share: u32, out: Out[u32]
):
    """Matches that end in this invocation's share of the text, four bytes to a word.

    It starts `warm_up` words early, which is longer than any pattern, so that the automaton knows what went before.
    A state is the place of its row in the table; those that accept begin at `accepting`.
    """
    begin = gid.x * share
    state = u32(0)
    for k in range(min(begin, warm_up)):
        word = text[begin - min(begin, warm_up) + k]
        for b in range(4):
            state = u32(table[state + u32(symbols[(word >> (b * 8)) & 255])])
    count = u32(0)
    for k in range(share):
        word = text[begin + k]
        for b in range(4):
            state = u32(table[state + u32(symbols[(word >> (b * 8)) & 255])])
            count += u32(state >= accepting)
    out[gid.x] = count


@vyre.device
def normal_cdf(d: f32) -> f32:
    k = 1.0 / (1.0 + 0.2316419 * abs(d))
    p = k * (0.31938153 + k * (-0.356563782 + k * (1.781477937 + k * (-1.821255978 + k * 1.330274429))))
    tail = 0.39894228 * exp(-0.5 * d * d) * p
    return 1.0 - tail if d > 0.0 else tail


@vyre.kernel(workgroup=BLOCK)
def black_scholes(
    price: In[f32], strike: In[f32], years: In[f32], rate: f32, volatility: f32, call: Out[f32], put: Out[f32]
):
    i = gid.x
    if i < len(call):
        s = price[i]
        x = strike[i]
        t = years[i]
        root = sqrt(t)
        d1 = (log(s / x) + (rate + 0.5 * volatility * volatility) * t) / (volatility * root)
        d2 = d1 - volatility * root
        c1 = normal_cdf(d1)
        c2 = normal_cdf(d2)
        discounted = x * exp(-rate * t)
        call[i] = s * c1 - discounted * c2
        put[i] = discounted * (1.0 - c2) - s * (1.0 - c1)


@vyre.kernel(workgroup=(64, 1))
def mandelbrot(left: f32, top: f32, step: f32, width: u32, limit: u32, count: Out[u32]):
    a = left + f32(gid.x) * step
    b = top + f32(gid.y) * step
    x = 0.0
    y = 0.0
    n = u32(0)
    while n < limit:
        xx = x * x
        yy = y * y
        if xx + yy > 4.0:
            break
        y = 2.0 * x * y + b
        x = xx - yy + a
        n += 1
    count[gid.y * width + gid.x] = n


@vyre.kernel(workgroup=64)
def small(a: In[u32], b: In[u32], out: Out[u32]):
    i = gid.x
    if i < len(out):
        out[i] = a[i] ^ b[i]
