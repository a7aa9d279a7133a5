"""Hold the vector engine's f32 to the rules, on bit patterns chosen to break it.

The rules are modelled here a second time, in Python integers alone: a finite number is `n * 2^e`, every exact result
is kept as integers, and one function rounds to 24 bits, flushes and overflows. Nothing is shared with the engine.

    python bench/f32_model.py            2^20 triples, a table
    python bench/f32_model.py --json     the same as JSON, also written to bench/results/f32_model.json

Exit status 1 means a mismatch.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from vyre.backends.reference.engines import vector
from vyre.foundation.ir.dtypes import f32
from vyre.foundation.ir.ops import BinaryOp, UnaryOp

SIGN, INF, NAN, ONE = 0x80000000, 0x7F800000, 0x7FC00000, 0x3F800000
SPECIALS = [
    0, 1, 0x007FFFFF, 0x00400000, 0x00800000, 0x00800001, 0x00FFFFFF, 0x01000000, 0x33800000, 0x34000000, 0x3EFFFFFF,
    0x3F000000, 0x3F7FFFFF, ONE, 0x3F800001, 0x3FC00000, 0x40000000, 0x40200000, 0x4AFFFFFF, 0x4B000000, 0x4B7FFFFF,
    0x4F000000, 0x4F7FFFFF, 0x4F800000, 0x7E800000, 0x7F000000, 0x7F7FFFFE, 0x7F7FFFFF, INF, INF + 1, NAN, 0x7FFFFFFF,
]  # fmt: skip

# ---- the model: bits in, bits out, integers in between --------------------------------------------------------------


def canon(x: int) -> int:
    """Bits with a subnormal flushed and a NaN made canonical."""
    size = x & ~SIGN
    if size > INF:
        return NAN
    return x if size >= 0x00800000 else x & SIGN


def parts(x: int) -> tuple[int, int]:
    """`(n, e)` of a finite canonical value `n * 2^e`, the sign in n."""
    if not x & INF:
        return 0, -149
    n = x & 0x7FFFFF | 0x800000
    return (-n if x & SIGN else n), (x >> 23 & 0xFF) - 150


def rounded(n: int, e: int, zero: int, sticky: bool = False) -> int:
    """Bits of `n * 2^e` rounded to 24 bits and flushed. `zero` is the result for n = 0.

    `sticky`: the exact value lies strictly between n and the next integer away from zero.
    """
    if n == 0:
        return zero
    sign, n = (SIGN, -n) if n < 0 else (0, n)
    n, e = n << 1 | sticky, e - 1
    drop = n.bit_length() - 24
    if drop > 0:
        rest, half = n & (1 << drop) - 1, 1 << drop - 1
        n >>= drop
        n += rest > half or (rest == half and n & 1)
        e += drop
    else:
        n <<= -drop
        e += drop
    if n == 1 << 24:
        n, e = n >> 1, e + 1
    if e + 23 < -126:
        return sign
    if e + 23 > 127:
        return sign | INF
    return sign | e + 150 << 23 | n & 0x7FFFFF


def add(a: int, b: int) -> int:
    return fma(a, ONE, b)


def multiply(a: int, b: int) -> int:
    a, b = canon(a), canon(b)
    sign, x, y = (a ^ b) & SIGN, a & ~SIGN, b & ~SIGN
    if x > INF or y > INF or (x == INF and y == 0) or (x == 0 and y == INF):
        return NAN
    if x == INF or y == INF:
        return sign | INF
    (n, e), (m, f) = parts(a), parts(b)
    return rounded(n * m, e + f, sign)


def divide(a: int, b: int) -> int:
    a, b = canon(a), canon(b)
    sign, x, y = (a ^ b) & SIGN, a & ~SIGN, b & ~SIGN
    if x > INF or y > INF or (x == INF and y == INF) or (x == 0 and y == 0):
        return NAN
    if x == INF or y == 0:
        return sign | INF
    if y == INF:
        return sign
    (n, e), (m, f) = parts(x), parts(y)
    quotient, rest = divmod(n << 30, m)
    return rounded(quotient, e - 30 - f, 0, rest != 0) | sign


def fma(a: int, b: int, c: int) -> int:
    a, b, c = canon(a), canon(b), canon(c)
    sign, x, y, z = (a ^ b) & SIGN, a & ~SIGN, b & ~SIGN, c & ~SIGN
    if x > INF or y > INF or z > INF or (x == INF and y == 0) or (x == 0 and y == INF):
        return NAN
    if x == INF or y == INF:
        return NAN if z == INF and c & SIGN != sign else sign | INF
    if z == INF:
        return c
    (n, e), (m, f), (k, g) = parts(a), parts(b), parts(c)
    n, e = n * m, e + f
    low = min(e, g)
    both_negative_zeros = n == 0 and k == 0 and sign and c & SIGN
    return rounded((n << e - low) + (k << g - low), low, SIGN if both_negative_zeros else 0)


def sqrt(a: int) -> int:
    a = canon(a)
    if a & ~SIGN == 0 or a == INF or a & ~SIGN > INF:
        return a
    if a & SIGN:
        return NAN
    n, e = parts(a)
    shift = 40 + (e & 1)
    root = math.isqrt(n << shift)
    return rounded(root, e - shift >> 1, 0, root * root != n << shift)


def less(a: int, b: int) -> int:
    a, b = canon(a), canon(b)
    if NAN in (a, b):
        return 0
    x, y = (-(v & ~SIGN) if v & SIGN else v for v in (a, b))
    return int(x < y)


def is_zero(a: int) -> int:
    return int(canon(a) & ~SIGN == 0)


def absolute(a: int) -> int:
    return canon(a) & ~SIGN


def floor(a: int) -> int:
    a = canon(a)
    n, e = parts(a)
    if a & ~SIGN >= INF or e >= 0 or n == 0:
        return a
    return rounded(n >> -e, 0, 0)  # Python shifts towards minus infinity


MODEL: dict[str, tuple[int, Callable[..., int]]] = {
    "a+b": (2, add),
    "a*b": (2, multiply),
    "a*b+c": (3, lambda a, b, c: add(multiply(a, b), c)),
    "a/b": (2, divide),
    "sqrt": (1, sqrt),
    "fma": (3, fma),
    "a<b": (2, less),
    "a==0": (1, is_zero),
    "abs": (1, absolute),
    "floor": (1, floor),
}
"""Name -> number of operands, function of bits. A test gives 0 or 1."""

# ---- the engine under test ------------------------------------------------------------------------------------------


def engine(name: str, *operands: Any) -> Any:
    """What the vector engine makes of the same bits."""
    a, b, c = ([vector.load(f32, x) for x in operands] + [None, None])[:3]
    binary, unary = (lambda op, *xs: vector.binary(op, f32)(*xs)), (lambda op, x: vector.unary(op, f32)(x))
    match name:
        case "a+b":
            result = binary(BinaryOp.ADD, a, b)
        case "a*b":
            result = binary(BinaryOp.MUL, a, b)
        case "a*b+c":
            result = binary(BinaryOp.ADD, binary(BinaryOp.MUL, a, b), c)
        case "a/b":
            result = binary(BinaryOp.DIV, a, b)
        case "fma":
            result = vector.fma(a, b, c)
        case "a<b":
            return binary(BinaryOp.LT, a, b).astype(np.uint32)
        case "a==0":
            return binary(BinaryOp.EQ, a, np.float32(0)).astype(np.uint32)
        case _:
            result = unary(UnaryOp[name.upper()], a)
    return vector.store(f32, result).view(np.uint32)


def triples(count: int, seed: int = 1) -> list[Any]:
    """Three columns of bit patterns in six parts: random, around 2^-126, specials, products next to 2^-126,
    addends that cancel a product up to a few units, and sums a hair from a tie."""
    rng = np.random.default_rng(seed)
    part, rest = count // 6, count - 5 * (count // 6)

    def words(low: int = 0, high: int = 1 << 32, size: int = part) -> Any:
        return rng.integers(low, high, size, dtype=np.uint32)

    def signed(bits: Any) -> Any:
        return bits | words(0, 2, len(bits)) << np.uint32(31)

    def normal(exponent: Any, mantissa: Any) -> Any:
        return signed(exponent.astype(np.uint32) << np.uint32(23) | mantissa.astype(np.uint32) & np.uint32(0x7FFFFF))

    random = [words(), words(), words()]
    around = [signed(words(0x00800000 - 64, 0x00800000 + 64)) for _ in range(3)]
    around[1] = np.where(words(0, 2) == 1, around[1], signed(words(ONE - 64, ONE + 64)))
    special = [signed(np.array(SPECIALS, np.uint32)[words(0, len(SPECIALS))]) for _ in range(3)]

    exponent, mantissa = rng.integers(1, 128, part), rng.integers(0, 1 << 23, part)
    # the mantissa that brings the product next to a power of two, and its neighbours
    inverse = (1 << 47) // (mantissa + (1 << 23)) + rng.integers(-2, 3, part)
    next_to = [normal(exponent, mantissa), normal(128 - exponent - rng.integers(0, 2, part), inverse), signed(words())]

    a, b = (normal(rng.integers(60, 190, rest), rng.integers(0, 1 << 23, rest)) for _ in range(2))
    product = np.fromiter(map(multiply, a.tolist(), b.tolist()), np.uint32, rest)
    cancelling = [a, b, (product ^ np.uint32(SIGN)) + words(0, 4, rest)]

    # c * (1 + 2^-24 * (1 + i * 2^-23) * (1 - i * 2^-23)) misses the tie by i^2 * 2^-70
    exponent, i = rng.integers(40, 200, part), rng.integers(0, 1 << 11, part)
    split = rng.integers(20, 180, part)
    beside = normal(exponent - 24 + 127 - split - (i > 0), np.where(i > 0, (1 << 24) - 2 * i, 0))
    hair = [normal(split, i), beside, normal(exponent, rng.integers(0, 1 << 23, part))]
    parts = (random, around, special, next_to, cancelling, hair)
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def mismatches(count: int, seed: int = 1) -> dict[str, int]:
    """Mismatching triples per operation."""
    operands = triples(count, seed)
    columns = [x.tolist() for x in operands]
    found = {}
    for name, (arity, model) in MODEL.items():
        got = engine(name, *operands[:arity])
        expected = np.fromiter(map(model, *columns[:arity]), np.uint32, count)
        found[name] = int(np.count_nonzero(got != expected))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1 << 20)
    parser.add_argument("--json", action="store_true", help="print JSON and write bench/results/f32_model.json")
    options = parser.parse_args()
    start = time.perf_counter()
    found = mismatches(options.count)
    if options.json:
        from record import record  # found beside this file when it runs as a script; tests load it from elsewhere

        seconds = round(time.perf_counter() - start, 1)
        facts = {"numpy": np.__version__, "triples": options.count, "seconds": seconds, "mismatches": found}
        print(record("f32_model", facts))
    else:
        for name, count in found.items():
            print(f"{name:8} {count:8} of {options.count}")
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
