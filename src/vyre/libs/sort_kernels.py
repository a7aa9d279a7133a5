"""How arrays are sorted: by one digit of 8 bits after the other, from the lowest on. An invocation has a segment."""

from __future__ import annotations

from typing import TypeVar

from vyre import In, Out, const, device, gid, kernel, local, u32

T = TypeVar("T", bound=int)

SEGMENT = 2048
DIGIT = 8
DIGITS = 256
UNSIGNED, SIGNED, FLOATING = range(3)


@device
def digit_of(b: u32, shift: u32, order: const, bits: const) -> u32:
    """A digit of a number that is in the order of the elements; b are the bits of one."""
    sign = u32(1 << (bits - 1))
    key = b
    if order == SIGNED:
        key = b ^ sign
    if order == FLOATING:
        infinity = u32(0x7C00) if bits == 16 else u32(0x7F800000)
        key = ~b if b & sign != 0 else b | sign
        key = u32(0xFFFFFFFF) if b & (sign - 1) > infinity else key
    return (key >> shift) & (DIGITS - 1)


@kernel(workgroup=1)
def digits(x: In[T], length: u32, shift: u32, table: Out[u32], *, order: const, bits: const, T: const) -> None:
    """How often each digit is in each segment: (problem, digit, segment)."""
    segments = (length + (SEGMENT - 1)) // SEGMENT
    o = gid.x // segments
    s = gid.x % segments
    if gid.x < len(table) // DIGITS:
        count = local(u32, DIGITS)
        for k in range(SEGMENT):
            if s * SEGMENT + k < length:
                count[digit_of(u32(x[o * length + s * SEGMENT + k]), shift, order, bits)] += 1
        for d in range(DIGITS):
            table[(o * DIGITS + d) * segments + s] = count[d]


@kernel(workgroup=1)
def moved(
    x: In[T], starts: In[u32], length: u32, shift: u32, out: Out[T], *, order: const, bits: const, T: const
) -> None:
    """Each element goes to the next place of its digit and segment."""
    segments = (length + (SEGMENT - 1)) // SEGMENT
    o = gid.x // segments
    s = gid.x % segments
    if gid.x < len(starts) // DIGITS:
        at = local(u32, DIGITS)
        for d in range(DIGITS):
            at[d] = starts[(o * DIGITS + d) * segments + s]
        for k in range(SEGMENT):
            if s * SEGMENT + k < length:
                v = x[o * length + s * SEGMENT + k]
                d = digit_of(u32(v), shift, order, bits)
                out[o * length + at[d]] = v
                at[d] += 1


@kernel(workgroup=1)
def moved_with(
    x: In[T],
    y: In[u32],
    starts: In[u32],
    length: u32,
    shift: u32,
    out: Out[T],
    also: Out[u32],
    *,
    order: const,
    bits: const,
    T: const,
) -> None:
    """The same, and y goes with it."""
    segments = (length + (SEGMENT - 1)) // SEGMENT
    o = gid.x // segments
    s = gid.x % segments
    if gid.x < len(starts) // DIGITS:
        at = local(u32, DIGITS)
        for d in range(DIGITS):
            at[d] = starts[(o * DIGITS + d) * segments + s]
        for k in range(SEGMENT):
            if s * SEGMENT + k < length:
                i = o * length + s * SEGMENT + k
                v = x[i]
                d = digit_of(u32(v), shift, order, bits)
                out[o * length + at[d]] = v
                also[o * length + at[d]] = y[i]
                at[d] += 1


@kernel(workgroup=64)
def places(length: u32, out: Out[u32]) -> None:
    if gid.x < len(out):
        out[gid.x] = gid.x % length


@kernel(workgroup=64)
def found_at(x: In[u32], y: In[u32], out: Out[u32]) -> None:
    if gid.x < len(out):
        out[gid.x] = x[y[gid.x]]
