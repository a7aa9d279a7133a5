"""How arrays are sorted: by one digit of 8 bits after the other, from the lowest on. An invocation has a segment.

Short rows are sorted at once: by insertion, or by a bitonic network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from vyre import In, InOut, Out, atomic_add, barrier, const, device, gid, kernel, lid, local, shared, u32, u64, wg

T = TypeVar("T", bound=int)
V = TypeVar("V")
K = TypeVar("K", bound=int)
"""Types of the bits of elements, of what goes with them, and of the numbers that are compared."""
if TYPE_CHECKING:
    Number: TypeAlias = Any
else:
    Number = TypeVar("Number")  # of any type, which the caller of a helper has

SEGMENT = 2048
DIGIT = 8
DIGITS = 256
UNSIGNED, SIGNED, FLOATING, DISTINCT = range(4)
"""Orders: of floats, every NaN is one, or NaN with other bits are others."""
INFINITIES = (0, 0x7C00, 0x7F800000, 0, 0x7FF0000000000000)
"""By the bits of a type, in sixteens."""
SHORT = 16
NETWORK = 1024
LANES = 128


@device
def number(v: Number, bits: const) -> Number:
    if bits == 64:
        return u64(v)
    return u32(v)


@device
def key_of(v: Number, order: const, bits: const, down: const) -> Number:
    """A number that is in the order of the elements; v are the bits of one."""
    b = number(v, bits)
    key = b
    if order == SIGNED:
        key = b ^ (1 << (bits - 1))
    if order == FLOATING or order == DISTINCT:
        key = ~b & ((1 << bits) - 1) if b & (1 << (bits - 1)) != 0 else b | (1 << (bits - 1))
    if order == FLOATING:
        key = (1 << bits) - 1 if b & ((1 << (bits - 1)) - 1) > INFINITIES[bits // 16] else key
    if order == DISTINCT:
        key = (key - ((1 << (bits - 1)) - 1 - INFINITIES[bits // 16])) & ((1 << bits) - 1)
    if down:
        key = ~key & ((1 << bits) - 1)
    return key


@device
def digit_of(v: Number, shift: u32, order: const, bits: const, down: const) -> u32:
    return u32(key_of(v, order, bits, down) >> shift) & (DIGITS - 1)


@kernel(workgroup=1)
def digits(
    x: In[T],
    length: u32,
    shift: u32,
    table: Out[u32],
    *,
    order: const,
    bits: const,
    down: const,
    T: const,
) -> None:
    """How often each digit is in each segment: (problem, digit, segment)."""
    segments = (length + (SEGMENT - 1)) // SEGMENT
    o = gid.x // segments
    s = gid.x % segments
    if gid.x < len(table) // DIGITS:
        count = local(u32, DIGITS)
        for k in range(SEGMENT):
            if s * SEGMENT + k < length:
                count[digit_of(x[o * length + s * SEGMENT + k], shift, order, bits, down)] += 1
        for d in range(DIGITS):
            table[(o * DIGITS + d) * segments + s] = count[d]


@kernel(workgroup=1)
def moved(
    x: In[T],
    starts: In[u32],
    length: u32,
    shift: u32,
    out: Out[T],
    *,
    order: const,
    bits: const,
    down: const,
    T: const,
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
                d = digit_of(v, shift, order, bits, down)
                out[o * length + at[d]] = v
                at[d] += 1


@kernel(workgroup=1)
def moved_with(
    x: In[T],
    y: In[V],
    starts: In[u32],
    length: u32,
    shift: u32,
    out: Out[T],
    also: Out[V],
    *,
    order: const,
    bits: const,
    down: const,
    T: const,
    V: const,
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
                d = digit_of(v, shift, order, bits, down)
                out[o * length + at[d]] = v
                also[o * length + at[d]] = y[i]
                at[d] += 1


@kernel(workgroup=64)
def inserted(x: In[T], length: u32, out: Out[u32], *, order: const, bits: const, down: const, T: const) -> None:
    """The places of the elements of rows of at most 16, in order: an invocation has a row, and inserts each element."""
    if gid.x < len(out) // length:
        if bits == 64:
            keys = local(u64, SHORT)
        else:
            keys = local(u32, SHORT)
        who = local(u32, SHORT)
        for k in range(length):
            key = key_of(x[gid.x * length + k], order, bits, down)
            at = k
            for back in range(k):
                if keys[k - 1 - back] <= key:
                    break
                keys[k - back] = keys[k - 1 - back]
                who[k - back] = who[k - 1 - back]
                at = k - 1 - back
            keys[at] = key
            who[at] = k
        for k in range(length):
            out[gid.x * length + k] = who[k]


@device
def exchange(keys: InOut[K], who: InOut[u32], length: u32, size: u32, step: u32, flip: const) -> None:
    """A step of a bitonic network: elements `step` apart, or with `flip` those that mirror each other in 2 `step`."""
    for k in range(NETWORK // 2 // LANES):
        n = k * LANES + lid.x
        if n < size // 2:
            low = n // step * (2 * step) + n % step
            high = low + step
            if flip:
                high = n // step * (2 * step) + (2 * step - 1 - n % step)
            if high < length and (keys[low] > keys[high] or (keys[low] == keys[high] and who[low] > who[high])):
                key = keys[low]
                keys[low] = keys[high]
                keys[high] = key
                w = who[low]
                who[low] = who[high]
                who[high] = w


@kernel(workgroup=LANES)
def networked(
    x: In[T], length: u32, size: u32, out: Out[u32], *, order: const, bits: const, down: const, T: const
) -> None:
    """The same of rows of at most 1024, a workgroup each; `size` is the power of two from the length on.

    Nothing is exchanged with the places behind the row, since all that would be there comes last.
    """
    if bits == 64:
        keys = shared(u64, NETWORK)
    else:
        keys = shared(u32, NETWORK)
    who = shared(u32, NETWORK)
    for k in range(NETWORK // LANES):
        n = k * LANES + lid.x
        if n < length:
            keys[n] = key_of(x[wg.x * length + n], order, bits, down)
            who[n] = n
    barrier()
    for up in range(10):
        if u32(1) << up < size:
            exchange(keys, who, length, size, u32(1) << up, True)
            barrier()
            for down_ in range(up):
                exchange(keys, who, length, size, u32(1) << (up - 1 - down_), False)
                barrier()
    for k in range(NETWORK // LANES):
        n = k * LANES + lid.x
        if n < length:
            out[wg.x * length + n] = who[n]


@kernel(workgroup=64)
def places(length: u32, out: Out[u32]) -> None:
    if gid.x < len(out):
        out[gid.x] = gid.x % length


@kernel(workgroup=64)
def found_at(x: In[V], order: In[u32], length: u32, kept: u32, out: Out[V], *, V: const) -> None:
    """The elements of each row at the places of a row of `kept` ones."""
    if gid.x < len(out):
        out[gid.x] = x[gid.x // kept * length + order[gid.x]]


@kernel(workgroup=64)
def first_of_rows(x: In[V], length: u32, kept: u32, out: Out[V], *, V: const) -> None:
    if gid.x < len(out):
        out[gid.x] = x[gid.x // kept * length + gid.x % kept]


@kernel(workgroup=64)
def before(
    x: In[T],
    v: In[T],
    length: u32,
    each: u32,
    out: Out[u32],
    *,
    order: const,
    bits: const,
    right: const,
    T: const,
) -> None:
    """How many elements of a sorted row come before a value, or with `right` do not come behind it."""
    if gid.x < len(out):
        base = gid.x // each * length
        key = key_of(v[gid.x], order, bits, False)
        low = u32(0)
        left = length
        for _ in range(33):
            if left == 0:
                break
            half = left // 2
            here = key_of(x[base + low + half], order, bits, False)
            goes = here < key
            if right:
                goes = here <= key
            if goes:
                low += half + 1
                left -= half + 1
            else:
                left = half
        out[gid.x] = low


@kernel(workgroup=64)
def begins(x: In[T], order: In[u32], out: Out[u32], *, T: const) -> None:
    """1 where the bits of the elements in this order are not those of the one before."""
    if gid.x < len(out):
        new = True
        if gid.x > 0:
            new = x[order[gid.x]] != x[order[gid.x - 1]]
        out[gid.x] = u32(new)


@kernel(workgroup=64)
def numbered(order: In[u32], upto: In[u32], out: Out[u32]) -> None:
    """The number of its value, for each element: how many begin up to it, less one."""
    if gid.x < len(order):
        out[order[gid.x]] = upto[gid.x] - 1


@kernel(workgroup=64)
def distinct_ones(x: In[T], order: In[u32], upto: In[u32], out: Out[T], where: Out[u32], *, T: const) -> None:
    """Each value where it begins in this order."""
    if gid.x < len(order) and (gid.x == 0 or upto[gid.x] != upto[gid.x - 1]):
        out[upto[gid.x] - 1] = x[order[gid.x]]
        where[upto[gid.x] - 1] = order[gid.x]


@kernel(workgroup=64)
def how_often(upto: In[u32], counts: InOut[u32]) -> None:
    if gid.x < len(upto):
        atomic_add(counts, upto[gid.x] - 1, 1)
