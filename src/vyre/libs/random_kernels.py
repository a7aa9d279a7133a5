"""Random numbers from counters: the generators of Random123, and what is made of their words.

`philox4x32` and `threefry2x32` are helpers that any kernel may call.
"""

from __future__ import annotations

import math
from typing import TypeVar

from vyre import (
    In,
    Out,
    const,
    cospi,
    device,
    f32,
    f64,
    fma,
    gid,
    is_finite,
    kernel,
    lid,
    local,
    log,
    mul_high,
    nextafter,
    rotate_left,
    sinpi,
    sqrt,
    static_range,
    u32,
    wg,
)

T = TypeVar("T")
inf = math.inf

LANES = 64
"""Blocks of a tile."""
WORDS = 4
TILE = LANES * WORDS
ATTEMPTS = 64
UNIFORM, NORMAL, EXPONENTIAL = range(3)

PHILOX_FACTORS = (0xD2511F53, 0xCD9E8D57)
PHILOX_STEPS = (0x9E3779B9, 0xBB67AE85)
THREEFRY_TURNS = (13, 15, 26, 6, 17, 29, 16, 24)
THREEFRY_PARITY = 0x1BD11BDA


@device
def philox4x32(c0: u32, c1: u32, c2: u32, c3: u32, k0: u32, k1: u32) -> tuple[u32, u32, u32, u32]:
    """Philox4x32-10: four words of a counter and a key of two."""
    for turn in static_range(10):
        a = mul_high(c0, u32(PHILOX_FACTORS[0]))
        b = c0 * u32(PHILOX_FACTORS[0])
        c = mul_high(c2, u32(PHILOX_FACTORS[1]))
        d = c2 * u32(PHILOX_FACTORS[1])
        c0 = c ^ c1 ^ (k0 + u32(turn * PHILOX_STEPS[0] % 2**32))
        c1 = d
        c2 = a ^ c3 ^ (k1 + u32(turn * PHILOX_STEPS[1] % 2**32))
        c3 = b
    return c0, c1, c2, c3


@device
def threefry2x32(c0: u32, c1: u32, k0: u32, k1: u32) -> tuple[u32, u32]:
    """Threefry2x32-20: two words of a counter and a key of two."""
    k2 = k0 ^ k1 ^ u32(THREEFRY_PARITY)
    c0 += k0
    c1 += k1
    for turn in static_range(20):
        c0 += c1
        c1 = rotate_left(c1, u32(THREEFRY_TURNS[turn % 8])) ^ c0
        if turn % 12 == 3:
            c0 += k1
            c1 += k2 + (turn + 1) // 4
        elif turn % 12 == 7:
            c0 += k2
            c1 += k0 + (turn + 1) // 4
        elif turn % 12 == 11:
            c0 += k0
            c1 += k1 + (turn + 1) // 4
    return c0, c1


@device
def block(first: u32, above: u32, attempt: u32, stream: u32, k0: u32, k1: u32) -> tuple[u32, u32, u32, u32]:
    """The words of this invocation's block: the `first` one, of which `above` is the upper half, plus its id."""
    low = first + (wg.x * LANES + lid.x)
    high = above + u32(low < first)
    return philox4x32(low, high, attempt, stream, k0, k1)


@kernel(workgroup=LANES)
def words(k0: u32, k1: u32, stream: u32, first: u32, above: u32, skipped: u32, out: Out[u32]) -> None:
    a, b, c, d = block(first, above, 0, stream, k0, k1)
    at = wg.x * TILE + lid.x - skipped
    out[at] = a
    out[at + LANES] = b
    out[at + 2 * LANES] = c
    out[at + 3 * LANES] = d


@device
def above_zero(word: u32) -> f32:
    """Evenly in (0, 1]."""
    return fma(f32(word), 2.0**-32, 2.0**-33)


@device
def below_one(word: u32) -> f32:
    """Evenly in [0, 1), in steps of 2^-24."""
    return f32(word >> 8) * 2.0**-24


@device
def normal_pair(a: u32, b: u32) -> tuple[f32, f32]:
    """Box and Muller: two words as two normal numbers."""
    far = sqrt(-2.0 * log(above_zero(a)))
    turn = below_one(b) * 2.0
    return far * cospi(turn), far * sinpi(turn)


@kernel(workgroup=LANES)
def floats(
    k0: u32,
    k1: u32,
    stream: u32,
    first: u32,
    above: u32,
    skipped: u32,
    offset: f32,
    scale: f32,
    out: Out[f32],
    *,
    what: const,
) -> None:
    a, b, c, d = block(first, above, 0, stream, k0, k1)
    at = wg.x * TILE + lid.x - skipped
    if what == NORMAL:
        p, q = normal_pair(a, b)
        r, s = normal_pair(c, d)
    elif what == EXPONENTIAL:
        p, q = -log(above_zero(a)), -log(above_zero(b))
        r, s = -log(above_zero(c)), -log(above_zero(d))
    else:
        p, q, r, s = below_one(a), below_one(b), below_one(c), below_one(d)
    out[at] = fma(scale, p, offset)
    out[at + LANES] = fma(scale, q, offset)
    out[at + 2 * LANES] = fma(scale, r, offset)
    out[at + 3 * LANES] = fma(scale, s, offset)


@device
def below_one_of_two(a: u32, b: u32) -> f64:
    return f64(a >> 5) * 2.0**-27 + f64(b >> 6) * 2.0**-53


@kernel(workgroup=LANES)
def wide_floats(
    k0: u32, k1: u32, stream: u32, first: u32, above: u32, skipped: u32, low: f64, scale: f64, out: Out[f64]
) -> None:
    """Evenly, in steps of 2^-53: 27 bits of a word, and 26 of the one that a second attempt has."""
    a, b, c, d = block(first, above, 0, stream, k0, k1)
    e, f, g, h = block(first, above, 1, stream, k0, k1)
    at = wg.x * TILE + lid.x - skipped
    out[at] = low + scale * below_one_of_two(a, e)
    out[at + LANES] = low + scale * below_one_of_two(b, f)
    out[at + 2 * LANES] = low + scale * below_one_of_two(c, g)
    out[at + 3 * LANES] = low + scale * below_one_of_two(d, h)


@kernel(workgroup=64)
def scaled(u: In[f32], upto: In[f32], out: Out[f32]) -> None:
    """Parts of the last number, each below it."""
    if gid.x < len(out):
        total = upto[len(upto) - 1]
        assert total > 0.0 and is_finite(total), "the weights add up to zero or to infinity"
        out[gid.x] = min(u[gid.x] * total, nextafter(total, 0.0))


@kernel(workgroup=64)
def races(waits: In[f32], weights: In[f32], out: Out[f32]) -> None:
    """When each one comes, if it comes so often."""
    if gid.x < len(out):
        out[gid.x] = waits[gid.x] / weights[gid.x] if weights[gid.x] > 0.0 else inf


@kernel(workgroup=64)
def weighed(weights: In[f32], out: Out[f32]) -> None:
    """The weights, none of which is negative, NaN or infinite."""
    if gid.x < len(out):
        w = weights[gid.x]
        assert w >= 0.0 and is_finite(w), "a weight is negative, infinite or no number"
        out[gid.x] = w


@kernel(workgroup=LANES)
def integers(
    k0: u32,
    k1: u32,
    stream: u32,
    first: u32,
    above: u32,
    skipped: u32,
    least: u32,
    width: u32,
    out: Out[T],
    *,
    T: const,
) -> None:
    """Multiples of the word by `width`, of which the upper half is the number. Those that would make some numbers more
    likely than others are drawn again; a width of 0 is 2^32."""
    refused = (u32(0) - width) % width if width > 0 else u32(0)
    found = local(u32, WORDS)
    waits = local(u32, WORDS)
    for j in static_range(WORDS):
        waits[j] = 1
    for attempt in range(ATTEMPTS):
        if waits[0] + waits[1] + waits[2] + waits[3] == 0:
            break
        a, b, c, d = block(first, above, attempt, stream, k0, k1)
        word = local(u32, WORDS)
        word[0] = a
        word[1] = b
        word[2] = c
        word[3] = d
        for j in static_range(WORDS):
            if waits[j] == 1:
                found[j] = mul_high(word[j], width) if width > 0 else word[j]
                waits[j] = u32(word[j] * width < refused)
    at = wg.x * TILE + lid.x - skipped
    for j in static_range(WORDS):
        out[at + j * LANES] = T(least + found[j])
