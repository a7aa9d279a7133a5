"""How running sums and extremes are computed: `docs/libs/prefix.md` has the definition, all of these give it."""

from __future__ import annotations

from typing import TypeVar

from vyre import In, Out, barrier, const, gid, kernel, lid, shared, u32, wg

from .reduce_kernels import converted, joined

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")

SEGMENT = 32
BLOCK = SEGMENT * SEGMENT


@kernel(workgroup=SEGMENT)
def starts(
    x: In[T], first: A, length: u32, within: Out[A], totals: Out[A], *, how: const, kind: const, T: const, A: const
) -> None:
    """Problems whose elements lie one after the other. A workgroup has a block, an invocation a segment of it.

    `within` is what the block has before each segment, `totals` what it has in all.
    """
    blocks = (length + (BLOCK - 1)) // BLOCK
    start = wg.x % blocks * BLOCK + lid.x * SEGMENT
    at = wg.x // blocks * length + start
    row = shared(A, SEGMENT)
    t = first
    for k in range(SEGMENT):
        if start + k < length:
            t = joined(t, converted(x[at + k], kind), how)
    row[lid.x] = t
    barrier()
    before = first
    if lid.x == 0:
        for k in range(SEGMENT):
            t = row[k]
            row[k] = before
            before = joined(before, t, how)
        totals[wg.x] = before
    barrier()
    within[gid.x] = row[lid.x]


@kernel(workgroup=SEGMENT)
def run(
    x: In[T],
    first: A,
    length: u32,
    within: In[A],
    before: In[A],
    out: Out[R],
    *,
    how: const,
    kind: const,
    exclusive: const,
    T: const,
    A: const,
    R: const,
) -> None:
    """The same again: each segment goes on from what is before it in the problem."""
    blocks = (length + (BLOCK - 1)) // BLOCK
    start = wg.x % blocks * BLOCK + lid.x * SEGMENT
    at = wg.x // blocks * length + start
    offset = joined(before[wg.x], within[gid.x], how)
    t = first
    for k in range(SEGMENT):
        if start + k < length:
            if exclusive:
                out[at + k] = R(joined(offset, t, how))
            t = joined(t, converted(x[at + k], kind), how)
            if not exclusive:
                out[at + k] = R(joined(offset, t, how))


@kernel(workgroup=64)
def starts_beside(
    x: In[T],
    first: A,
    length: u32,
    inner: u32,
    within: Out[A],
    totals: Out[A],
    *,
    how: const,
    kind: const,
    T: const,
    A: const,
) -> None:
    """Problems beside each other, whose elements lie `inner` apart: an invocation has a block."""
    if gid.x < len(totals):
        blocks = (length + (BLOCK - 1)) // BLOCK
        number = gid.x // inner
        start = number % blocks * BLOCK
        at = (number // blocks * length + start) * inner + gid.x % inner
        before = first
        for s in range(SEGMENT):
            within[(number * SEGMENT + s) * inner + gid.x % inner] = before
            t = first
            for k in range(SEGMENT):
                if start + s * SEGMENT + k < length:
                    t = joined(t, converted(x[at + (s * SEGMENT + k) * inner], kind), how)
            before = joined(before, t, how)
        totals[gid.x] = before


@kernel(workgroup=64)
def run_beside(
    x: In[T],
    first: A,
    length: u32,
    inner: u32,
    within: In[A],
    before: In[A],
    out: Out[R],
    *,
    how: const,
    kind: const,
    exclusive: const,
    T: const,
    A: const,
    R: const,
) -> None:
    """An invocation has a segment."""
    if gid.x < len(within):
        blocks = (length + (BLOCK - 1)) // BLOCK
        number = gid.x // inner
        block = number // SEGMENT
        start = block % blocks * BLOCK + number % SEGMENT * SEGMENT
        at = (block // blocks * length + start) * inner + gid.x % inner
        offset = joined(before[block * inner + gid.x % inner], within[gid.x], how)
        t = first
        for k in range(SEGMENT):
            if start + k < length:
                if exclusive:
                    out[at + k * inner] = R(joined(offset, t, how))
                t = joined(t, converted(x[at + k * inner], kind), how)
                if not exclusive:
                    out[at + k * inner] = R(joined(offset, t, how))
