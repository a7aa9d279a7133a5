"""How segments of an array are reduced, and run through: as `reduce` and `prefix` do it with problems of one length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from vyre import In, Out, const, device, gid, kernel, lid, local, reverse_bits, shared, static_range, u32, wg

from .prefix_kernels import BLOCK
from .prefix_kernels import SEGMENT as STRETCH
from .reduce_kernels import CHUNK, COLUMNS, FOLDS, column, converted, ended, folded, joined, taken

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")
N = TypeVar("N", bound=int)
"""Types of the elements, of what they are joined as, of results, and of offsets."""
if TYPE_CHECKING:
    Number: TypeAlias = Any
else:
    Number = TypeVar("Number")


@kernel(workgroup=64)
def bounds(offsets: In[N], length: u32, out: Out[u32], *, signed: const, N: const) -> None:
    """Offsets as u32: they do not fall, and none is above the length."""
    if gid.x < len(out):
        here = offsets[gid.x]
        if gid.x + 1 < len(out):
            assert here <= offsets[gid.x + 1], "an offset is above the next one"
        else:
            assert u32(here) <= length, "the last offset is above the number of elements"
        if signed:
            assert here >= 0, "an offset is negative"
        out[gid.x] = u32(here)


@kernel(workgroup=64)
def behind(upto: In[u32], out: Out[u32]) -> None:
    """0, and then these numbers."""
    if gid.x > 0 and gid.x < len(out):
        out[gid.x] = upto[gid.x - 1]


@kernel(workgroup=64)
def parts(offsets: In[u32], scale: u32, size: u32, out: Out[u32]) -> None:
    """How many parts of this size each segment has, if it has more than one, and 0 behind them."""
    if gid.x + 1 < len(offsets):
        length = (offsets[gid.x + 1] - offsets[gid.x]) * scale
        if length > size:
            out[gid.x] = (length + (size - 1)) // size


@device
def segment_of(starts: In[u32], part: u32) -> u32:
    """The last segment that begins at this part or before it."""
    low = u32(0)
    left = len(starts) - 1
    for _ in range(33):
        if left == 0:
            break
        half = left // 2
        if starts[low + half + 1] <= part:
            low += half + 1
            left -= half + 1
        else:
            left = half
    return low


@kernel(workgroup=COLUMNS)
def chunks(
    x: In[T],
    offsets: In[u32],
    scale: u32,
    starts: In[u32],
    first: A,
    out: Out[A],
    *,
    how: const,
    what: const,
    kind: const,
    T: const,
    A: const,
) -> None:
    """Each 16,384 elements of a segment become a row."""
    if wg.x < starts[len(starts) - 1]:
        s = segment_of(starts, wg.x)
        done = (wg.x - starts[s]) * CHUNK
        base = offsets[s] * scale
        left = offsets[s + 1] * scale - base - done
        out[gid.x] = column(x, x, first, x[0], base + done, left, COLUMNS, lid.x, lid.x, how, what, kind)


@kernel(workgroup=COLUMNS)
def by_workgroups(
    x: In[T],
    offsets: In[u32],
    scale: u32,
    above: In[A],
    first: A,
    out: Out[R],
    *,
    how: const,
    what: const,
    kind: const,
    ending: const,
    T: const,
    A: const,
    R: const,
) -> None:
    """Segments of at most 16,384 elements; of the others the totals are in `above`."""
    row = shared(A, COLUMNS)
    base = offsets[wg.x] * scale
    length = offsets[wg.x + 1] * scale - base
    if length <= CHUNK:
        row[lid.x] = column(x, x, first, x[0], base, length, COLUMNS, lid.x, lid.x, how, what, kind)
    total = folded(row, how)
    if lid.x == 0:
        if length > CHUNK:
            total = above[wg.x]
        out[wg.x] = R(ended(total, A(length), ending))


@kernel(workgroup=COLUMNS)
def by_invocations(
    x: In[T],
    offsets: In[u32],
    scale: u32,
    above: In[A],
    first: A,
    out: Out[R],
    *,
    how: const,
    what: const,
    kind: const,
    ending: const,
    T: const,
    A: const,
    R: const,
) -> None:
    """The same, an invocation each: no more columns are folded than have elements."""
    if gid.x < len(out):
        base = offsets[gid.x] * scale
        length = offsets[gid.x + 1] * scale - base
        total = first
        if length > CHUNK:
            total = above[gid.x]
        elif length > 2:
            waiting = local(A, FOLDS)
            folds = u32(0)
            for k in static_range(FOLDS):
                if length > 1 << k:
                    folds = k + 1
            for j in range(COLUMNS):
                if j >> folds != 0:
                    break
                k = reverse_bits(j) >> (32 - folds)
                t = first
                if length > COLUMNS:
                    t = column(x, x, first, x[0], base, length, COLUMNS, k, k, how, what, kind)
                elif k < length:
                    t = taken(first, x, x, x[0], base + k, k, how, what, kind)
                ends = j + 1
                for level in static_range(FOLDS):
                    if ends & 1 != 0:
                        waiting[level] = t
                        ends = 0
                    elif ends != 0:
                        t = joined(waiting[level], t, how)
                        ends = ends >> 1
                total = t
        elif length > 0:
            total = taken(first, x, x, x[0], base, 0, how, what, kind)
            if length > 1:
                total = joined(total, taken(first, x, x, x[0], base + 1, 1, how, what, kind), how)
        out[gid.x] = R(ended(total, A(length), ending))


@kernel(workgroup=64)
def totals(
    x: In[T],
    offsets: In[u32],
    starts: In[u32],
    first: A,
    out: Out[A],
    *,
    how: const,
    kind: const,
    T: const,
    A: const,
) -> None:
    """What each 1,024 elements of a longer segment are in all."""
    if gid.x < starts[len(starts) - 1]:
        s = segment_of(starts, gid.x)
        begin = offsets[s] + (gid.x - starts[s]) * BLOCK
        end = min(offsets[s + 1], begin + BLOCK)
        total = first
        for stretch in range(STRETCH):
            at = begin + stretch * STRETCH
            if at >= end:
                break
            t = first
            for k in range(STRETCH):
                if at + k < end:
                    t = joined(t, converted(x[at + k], kind), how)
            total = joined(total, t, how)
        out[gid.x] = total


@kernel(workgroup=64)
def runs(
    x: In[T],
    offsets: In[u32],
    starts: In[u32],
    first: A,
    blocks: u32,
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
    """What there is at each element: of shorter segments by an invocation, behind those for blocks of longer ones."""
    begin = u32(0)
    end = u32(0)
    base = first
    if gid.x < blocks:
        if gid.x < starts[len(starts) - 1]:
            s = segment_of(starts, gid.x)
            begin = offsets[s] + (gid.x - starts[s]) * BLOCK
            end = min(offsets[s + 1], begin + BLOCK)
            base = before[gid.x]
    elif gid.x - blocks + 1 < len(offsets):
        begin = offsets[gid.x - blocks]
        end = offsets[gid.x - blocks + 1]
        if end - begin > BLOCK:
            end = begin
    total = first
    for stretch in range(STRETCH):
        at = begin + stretch * STRETCH
        if at >= end:
            break
        offset = joined(base, total, how)
        t = first
        for k in range(STRETCH):
            if at + k < end:
                if exclusive:
                    out[at + k] = R(joined(offset, t, how))
                t = joined(t, converted(x[at + k], kind), how)
                if not exclusive:
                    out[at + k] = R(joined(offset, t, how))
        total = joined(total, t, how)
