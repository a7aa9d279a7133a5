"""How the problems of a reduction are computed: `docs/libs/reduce.md` has the definition, all of these give it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from vyre import (
    In,
    InOut,
    Out,
    barrier,
    bool_,
    const,
    device,
    f32,
    f64,
    fma,
    gid,
    i32,
    i64,
    kernel,
    lid,
    local,
    shared,
    sqrt,
    static_range,
    u32,
    u64,
    wg,
)

T = TypeVar("T")
S = TypeVar("S")
A = TypeVar("A")
R = TypeVar("R")
"""Types of the elements, of a second array, of what elements are joined as, and of the results."""
if TYPE_CHECKING:
    Number: TypeAlias = Any
else:
    Number = TypeVar("Number")  # of any type, which the caller of a helper has

COLUMNS = 64
CHAIN = 16
"""Rows that become one."""
ROWS = CHAIN * CHAIN
CHUNK = COLUMNS * ROWS
"""Elements of a problem that one call makes a row of."""
FOLDS = 6
STRIP_LANES = 16
STRIP = 16
"""Columns of an invocation, where many are beside each other: a workgroup goes along each row for 1 KiB of f32."""
STRIP_COLUMNS = STRIP_LANES * STRIP

SUM, PRODUCT, LEAST, MOST = range(4)
"""How two become one."""
VALUE, TRUTH, SQUARE, TIMES, TIMES_AGAIN, DEVIATION, PLACE = range(7)
"""What is joined: the elements, whether they are not zero, their squares, products with those of another array, or with
those of one that all problems have, squares of their distance from a number of the problem, where that number is."""
PLAIN, QUOTIENT, ROOT, QUOTIENT_ROOT = range(4)
"""What becomes of the number that is left."""

F32 = 4
"""The place of f32 among the types in which elements are joined: u32, i32, u64, i64, f32, f64."""


# ---- kernels ---------------------------------------------------------------------------------------------------------


@device
def converted(v: Number, kind: const) -> Number:
    """An element as the type in which it is joined, by its place in KINDS."""
    if kind == 0:
        return u32(v)
    if kind == 1:
        return i32(v)
    if kind == 2:
        return u64(v)
    if kind == 3:
        return i64(v)
    if kind == F32:
        return f32(v)
    return f64(v)


@device
def joined(a: Number, b: Number, how: const) -> Number:
    """Two numbers as one. Of LEAST and MOST, a NaN stays."""
    if how == SUM:
        c = a + b
    elif how == PRODUCT:
        c = a * b
    elif how == LEAST:
        c = a if a != a else (b if b != b else min(a, b))
    else:
        c = a if a != a else (b if b != b else max(a, b))
    return c


@device
def plus_product(t: Number, a: Number, b: Number, kind: const) -> Number:
    """Rounded once as f32, and twice as any other type."""
    if kind == F32:
        c = fma(a, b, t)
    else:
        c = t + a * b
    return c


@device
def taken(
    t: Number, x: In[T], y: In[S], m: Number, at: u32, place: u32, how: const, what: const, kind: const
) -> Number:
    """The chain t with the element at `at`, which is the `place`-th of its problem; m is a number of the problem."""
    if what == TRUTH:
        c = joined(t, converted(bool_(x[at]), kind), how)
    elif what == PLACE:
        v = converted(x[at], kind)
        c = min(t, place if v == m or (v != v and m != m) else t)
    else:
        v = converted(x[at], kind)
        if what == VALUE:
            c = joined(t, v, how)
        elif what == SQUARE:
            c = plus_product(t, v, v, kind)
        elif what == DEVIATION:
            c = plus_product(t, v - m, v - m, kind)
        elif what == TIMES_AGAIN:
            c = plus_product(t, v, converted(y[place], kind), kind)
        else:
            c = plus_product(t, v, converted(y[at], kind), kind)
    return c


@device
def column(
    x: In[T],
    y: In[S],
    first: Number,
    m: Number,
    base: u32,
    left: u32,
    width: u32,
    across: u32,
    place: u32,
    how: const,
    what: const,
    kind: const,
) -> Number:
    """What becomes of at most 256 rows of `width` elements, `across` from the left.

    They begin at `base`, where `left` elements are left. The first one of the column is the `place`-th of its problem.
    """
    chains = min(left // width // CHAIN, u32(CHAIN))
    at = base + across
    total = first
    for c in range(chains):
        t = first
        for r in range(CHAIN):
            k = c * CHAIN + r
            t = taken(t, x, y, m, at + k * width, place + k * COLUMNS, how, what, kind)
        total = joined(total, t, how)
    if chains < CHAIN:
        t = first
        for r in range(CHAIN):
            k = chains * CHAIN + r
            if k * width + across < left:
                t = taken(t, x, y, m, at + k * width, place + k * COLUMNS, how, what, kind)
        total = joined(total, t, how)
    return total


@device
def of_rows(x: In[T], y: In[S], first: Number, length: u32, inner: u32, how: const, what: const, kind: const) -> Number:
    """256 rows of the problems (o, i), for all i beside each other: a table with rows of 64 * inner."""
    parts = (length + (CHUNK - 1)) // CHUNK
    number = wg.x // inner
    across = wg.x % inner * COLUMNS + lid.x
    o = number // parts
    part = number % parts
    width = inner * COLUMNS
    size = length * inner
    start = part * ROWS * width
    m = y[o * inner + across % inner]
    place = part * CHUNK + across // inner
    return column(x, y, first, m, o * size + start, size - start, width, across, place, how, what, kind)


@device
def strips(
    x: In[T],
    y: In[S],
    m: InOut[S],
    t: InOut[A],
    total: InOut[A],
    first: Number,
    length: u32,
    inner: u32,
    how: const,
    what: const,
    kind: const,
) -> None:
    """As `of_rows`, with 16 columns of an invocation, 16 from each other; what becomes of them is in `total`."""
    parts = (length + (CHUNK - 1)) // CHUNK
    tiles = inner * COLUMNS // STRIP_COLUMNS
    number = wg.x // tiles
    across = wg.x % tiles * STRIP_COLUMNS + lid.x
    o = number // parts
    part = number % parts
    width = inner * COLUMNS
    start = part * ROWS * width
    left = length * inner - start
    at = o * (length * inner) + start + across
    place = part * CHUNK
    for j in static_range(STRIP):
        total[j] = first
        m[j] = y[o * inner + (across + j * STRIP_LANES) % inner]
    chains = min(left // width // CHAIN, u32(CHAIN))
    for c in range(chains):
        for j in static_range(STRIP):
            t[j] = first
        for r in range(CHAIN):
            k = c * CHAIN + r
            for j in static_range(STRIP):
                p = place + k * COLUMNS + (across + j * STRIP_LANES) // inner
                t[j] = taken(t[j], x, y, m[j], at + k * width + j * STRIP_LANES, p, how, what, kind)
        for j in static_range(STRIP):
            total[j] = joined(total[j], t[j], how)
    if chains < CHAIN:
        for j in static_range(STRIP):
            t[j] = first
        for r in range(CHAIN):
            k = chains * CHAIN + r
            for j in static_range(STRIP):
                if k * width + across + j * STRIP_LANES < left:
                    p = place + k * COLUMNS + (across + j * STRIP_LANES) // inner
                    t[j] = taken(t[j], x, y, m[j], at + k * width + j * STRIP_LANES, p, how, what, kind)
        for j in static_range(STRIP):
            total[j] = joined(total[j], t[j], how)


@device
def of_problem(
    x: In[T], y: In[S], row: InOut[A], first: Number, length: u32, how: const, what: const, kind: const
) -> Number:
    """A problem of at most 16,384 elements that lie one after the other, by one workgroup."""
    k = lid.x
    row[k] = column(x, y, first, y[wg.x], wg.x * length, length, COLUMNS, k, k, how, what, kind)
    return folded(row, how)


@device
def folded(row: InOut[A], how: const) -> Number:
    """A row of 64 as one number, by one workgroup."""
    k = lid.x
    barrier()
    if k < 8:
        a = joined(joined(row[k], row[k + 32], how), joined(row[k + 16], row[k + 48], how), how)
        b = joined(joined(row[k + 8], row[k + 40], how), joined(row[k + 24], row[k + 56], how), how)
        row[k] = joined(a, b, how)
    barrier()
    a = joined(joined(row[0], row[4], how), joined(row[2], row[6], how), how)
    b = joined(joined(row[1], row[5], how), joined(row[3], row[7], how), how)
    return joined(a, b, how)


@device
def of_column(
    x: In[T],
    y: In[S],
    waiting: InOut[A],
    first: Number,
    length: u32,
    inner: u32,
    how: const,
    what: const,
    kind: const,
) -> Number:
    """A problem of at most 64 elements that lie `inner` apart, by one invocation: a row, folded depth first."""
    at = gid.x // inner * (length * inner) + gid.x % inner
    m = y[gid.x]
    t = first
    for j in static_range(COLUMNS):
        k = j // 32 + j // 16 % 2 * 2 + j // 8 % 2 * 4 + j // 4 % 2 * 8 + j // 2 % 2 * 16 + j % 2 * 32
        t = first
        if k < length:
            t = taken(first, x, y, m, at + k * inner, k, how, what, kind)
        for level in static_range(FOLDS):
            if j % (2 << level) == (2 << level) - 1:
                t = joined(waiting[level], t, how)
            elif j % (1 << level) == (1 << level) - 1:
                waiting[level] = t
    return t


@device
def ended(total: Number, count: Number, ending: const) -> Number:
    c = total
    if ending == QUOTIENT or ending == QUOTIENT_ROOT:
        c = c / count
    if ending == ROOT or ending == QUOTIENT_ROOT:
        c = sqrt(c)
    return c


@kernel(workgroup=COLUMNS)
def rows(
    x: In[T],
    first: A,
    length: u32,
    inner: u32,
    out: Out[A],
    *,
    how: const,
    what: const,
    kind: const,
    T: const,
    A: const,
) -> None:
    """Every 256 rows become one."""
    out[gid.x] = of_rows(x, x, first, length, inner, how, what, kind)


@kernel(workgroup=COLUMNS)
def rows_with(
    x: In[T],
    y: In[S],
    first: A,
    length: u32,
    inner: u32,
    out: Out[A],
    *,
    how: const,
    what: const,
    kind: const,
    T: const,
    S: const,
    A: const,
) -> None:
    out[gid.x] = of_rows(x, y, first, length, inner, how, what, kind)


@kernel(workgroup=STRIP_LANES)
def wide_rows(
    x: In[T],
    first: A,
    length: u32,
    inner: u32,
    out: Out[A],
    *,
    how: const,
    what: const,
    kind: const,
    T: const,
    A: const,
) -> None:
    """The same, where the rows are a multiple of 256 long."""
    m = local(T, STRIP)
    t = local(A, STRIP)
    total = local(A, STRIP)
    strips(x, x, m, t, total, first, length, inner, how, what, kind)
    for j in static_range(STRIP):
        out[wg.x * STRIP_COLUMNS + lid.x + j * STRIP_LANES] = total[j]


@kernel(workgroup=STRIP_LANES)
def wide_rows_with(
    x: In[T],
    y: In[S],
    first: A,
    length: u32,
    inner: u32,
    out: Out[A],
    *,
    how: const,
    what: const,
    kind: const,
    T: const,
    S: const,
    A: const,
) -> None:
    m = local(S, STRIP)
    t = local(A, STRIP)
    total = local(A, STRIP)
    strips(x, y, m, t, total, first, length, inner, how, what, kind)
    for j in static_range(STRIP):
        out[wg.x * STRIP_COLUMNS + lid.x + j * STRIP_LANES] = total[j]


@kernel(workgroup=COLUMNS)
def problems(
    x: In[T],
    first: A,
    length: u32,
    count: A,
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
    """Problems whose elements lie one after the other, a workgroup each."""
    row = shared(A, COLUMNS)
    total = of_problem(x, x, row, first, length, how, what, kind)
    if lid.x == 0:
        out[wg.x] = R(ended(total, count, ending))


@kernel(workgroup=COLUMNS)
def problems_with(
    x: In[T],
    y: In[S],
    first: A,
    length: u32,
    count: A,
    out: Out[R],
    *,
    how: const,
    what: const,
    kind: const,
    ending: const,
    T: const,
    S: const,
    A: const,
    R: const,
) -> None:
    row = shared(A, COLUMNS)
    total = of_problem(x, y, row, first, length, how, what, kind)
    if lid.x == 0:
        out[wg.x] = R(ended(total, count, ending))


@kernel(workgroup=COLUMNS)
def columns(
    x: In[T],
    first: A,
    length: u32,
    inner: u32,
    count: A,
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
    """Problems beside each other, an invocation each."""
    waiting = local(A, FOLDS)
    if gid.x < len(out):
        total = of_column(x, x, waiting, first, length, inner, how, what, kind)
        out[gid.x] = R(ended(total, count, ending))


@kernel(workgroup=COLUMNS)
def columns_with(
    x: In[T],
    y: In[S],
    first: A,
    length: u32,
    inner: u32,
    count: A,
    out: Out[R],
    *,
    how: const,
    what: const,
    kind: const,
    ending: const,
    T: const,
    S: const,
    A: const,
    R: const,
) -> None:
    waiting = local(A, FOLDS)
    if gid.x < len(out):
        total = of_column(x, y, waiting, first, length, inner, how, what, kind)
        out[gid.x] = R(ended(total, count, ending))
