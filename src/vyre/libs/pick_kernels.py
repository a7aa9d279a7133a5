"""How elements are chosen, counted, fetched and put: by masks, by values, by places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from vyre import In, InOut, Out, atomic_add, atomic_max, bool_, const, device, f32, f64, gid, i64, kernel, u32, u64

from .reduce_kernels import joined

T = TypeVar("T")
N = TypeVar("N", bound=int)
A = TypeVar("A")
"""Types of elements, of places, and of numbers that are compared or joined."""
if TYPE_CHECKING:
    Number: TypeAlias = Any
else:
    Number = TypeVar("Number")

SEGMENT = 2048


@kernel(workgroup=1)
def kept_of(x: In[T], length: u32, table: Out[u32], *, T: const) -> None:
    """How many elements of each segment are not zero, and behind those how many are."""
    segments = (length + (SEGMENT - 1)) // SEGMENT
    if gid.x < segments:
        end = min(length, (gid.x + 1) * SEGMENT)
        count = u32(0)
        for i in range(gid.x * SEGMENT, end):
            count += u32(bool_(x[i]))
        table[gid.x] = count
        table[segments + gid.x] = end - gid.x * SEGMENT - count


@kernel(workgroup=1)
def kept(x: In[T], mask: In[bool_], starts: In[u32], out: Out[T], *, rest: const, T: const) -> None:
    """What the mask chooses, and with `rest` the others behind it.

    An element that is not chosen is written too, where the next one will be: a processor need not guess then.
    """
    segments = len(starts) // 2
    if gid.x < segments:
        at = starts[gid.x]
        end = starts[gid.x + 1]
        other = starts[segments + gid.x]
        last = starts[segments + gid.x + 1] if gid.x + 1 < segments else len(mask)
        for i in range(gid.x * SEGMENT, min(len(mask), (gid.x + 1) * SEGMENT)):
            v = x[i]
            if at < end:
                out[at] = v
            at += u32(mask[i])
            if rest:
                if other < last:
                    out[other] = v
                other += 1 - u32(mask[i])


@kernel(workgroup=1)
def where_kept(x: In[T], starts: In[u32], out: Out[u32], *, T: const) -> None:
    """The places of the elements that are not zero."""
    if gid.x < len(starts) // 2:
        at = starts[gid.x]
        end = starts[gid.x + 1]
        for i in range(gid.x * SEGMENT, min(len(x), (gid.x + 1) * SEGMENT)):
            if at < end:
                out[at] = i
            at += u32(bool_(x[i]))


@device
def place_of(p: Number, length: u32, signed: const) -> u32:
    """A place as u32; one below zero counts from the end."""
    if signed:
        q = i64(p)
        n = i64(length)
        q = q + n if q < 0 else q
        assert q >= 0 and q < n, "a place outside of the array"
        return u32(q)
    assert u64(p) < u64(length), "a place outside of the array"
    return u32(p)


@kernel(workgroup=64)
def placed(p: In[N], length: u32, out: Out[u32], *, signed: const, N: const) -> None:
    if gid.x < len(p):
        out[gid.x] = place_of(p[gid.x], length, signed)


@kernel(workgroup=64)
def taken_at(x: In[T], p: In[u32], length: u32, inner: u32, out: Out[T], *, T: const) -> None:
    """Element (o, j, i) is the one of x at (o, p[j], i)."""
    if gid.x < len(out):
        row = gid.x // inner
        out[gid.x] = x[(row // len(p) * length + p[row % len(p)]) * inner + gid.x % inner]


@kernel(workgroup=64)
def claimed(p: In[u32], winner: InOut[u32]) -> None:
    """The number of the last one that is put at each place, plus 1."""
    if gid.x < len(p):
        atomic_max(winner, p[gid.x], gid.x + 1)


@kernel(workgroup=64)
def put(into: In[T], values: In[T], winner: In[u32], inner: u32, out: Out[T], *, T: const) -> None:
    if gid.x < len(out):
        w = winner[gid.x // inner]
        v = into[gid.x]
        if w > 0:
            v = values[(w - 1) * inner + gid.x % inner]
        out[gid.x] = v


@kernel(workgroup=64)
def merged(into: In[T], found: In[T], limits: In[u32], out: Out[T], *, how: const, T: const) -> None:
    """What is there, joined with what was found for it, if anything was."""
    if gid.x < len(out):
        v = into[gid.x]
        if limits[gid.x] < limits[gid.x + 1]:
            v = joined(v, found[gid.x], how)
        out[gid.x] = v


@kernel(workgroup=64)
def tallied(x: In[N], counts: InOut[u32], *, N: const) -> None:
    if gid.x < len(x):
        v = i64(x[gid.x])
        assert v >= 0 and v < i64(len(counts)), "a number that is not counted: below 0, or size or more"
        atomic_add(counts, u32(v), 1)


@kernel(workgroup=64)
def evenly(low: A, high: A, step: A, out: Out[A], *, wide: const, A: const) -> None:
    """Edges of equal bins."""
    if gid.x < len(out):
        k = as_float(gid.x, wide)
        edge = low + k * step
        out[gid.x] = high if gid.x + 1 == len(out) else min(edge, high)


@device
def as_float(v: Number, wide: const) -> Number:
    if wide:
        return f64(v)
    return f32(v)


@kernel(workgroup=64)
def binned(
    x: In[T], edges: In[A], scale: A, counts: InOut[u32], *, even: const, wide: const, T: const, A: const
) -> None:
    """Bin k holds what is not below edge k and below the next; the last one its upper edge too."""
    if gid.x < len(x):
        v = as_float(x[gid.x], wide)
        bins = len(counts)
        if v >= edges[0] and v <= edges[bins]:
            k = u32(0)
            if even:
                k = min(u32((v - edges[0]) * scale), bins - 1)
                for _ in range(bins):
                    if v >= edges[k]:
                        break
                    k -= 1
                for _ in range(bins):
                    if k + 1 >= bins or v < edges[k + 1]:
                        break
                    k += 1
            else:
                left = bins - 1
                for _ in range(33):
                    if left == 0:
                        break
                    half = left // 2
                    if edges[k + half + 1] <= v:
                        k += half + 1
                        left -= half + 1
                    else:
                        left = half
            atomic_add(counts, k, 1)
