"""How far are a device's own functions from the math library? For all 2^32 arguments of each, on the device.

    python bench/cuda_native.py                                 writes bench/results/cuda_native.json
    python bench/cuda_native.py --only exp,log --bits 24        fewer arguments, evenly spread; nothing written

The same programs run with and without an `ulp_budget`, and a third one compares the words that they gave. Quotients are
of 2^32 random pairs. `backends/cuda/emit/vendor_math.py` must not claim less than what is found here.
"""

from __future__ import annotations

import argparse
import struct
import time

from record import record

from vyre.backends.cuda.emit.vendor_math import APART
from vyre.driver.contract.values import DispatchConfig, ResidentReadRange
from vyre.driver.guard import compile as pipeline
from vyre.driver.selection.registry import acquire
from vyre.foundation.ir.build import Builder
from vyre.foundation.ir.dtypes import f32, u32
from vyre.foundation.ir.nodes import (
    Atomic,
    BinOp,
    Bitcast,
    BufLen,
    Expr,
    If,
    InvocationId,
    Let,
    Load,
    Select,
    Store,
    UnOp,
    lit,
)
from vyre.foundation.ir.ops import AtomicOp, BinaryOp, UnaryOp
from vyre.foundation.ir.program import Program, read, read_write, write_only
from vyre.foundation.meaning import mathlib

AT = InvocationId(0)
FUNCTIONS = {op.text: op for op in mathlib.functions() if op.text in APART}
ROOTS = {"sqrt": UnaryOp.SQRT, "inverse_sqrt": UnaryOp.INVERSE_SQRT, "reciprocal": UnaryOp.RECIPROCAL}
NAMES = (*FUNCTIONS, *ROOTS, "div")
CHUNK = 1 << 26
BUDGET = 255
INFINITY = 0x7F800000


def mixed(word: Expr) -> Expr:
    """Bits that look random."""
    for multiplier in (0x7FEB352D, 0x846CA68B):
        word = (word ^ (word >> 15)) * multiplier
    return word ^ (word >> 16)


def values(name: str) -> Program:
    """y[i] is the operation of the float with the bits start + i * step."""
    bits = Load("place", lit(0)) + AT * Load("place", lit(1))
    x: Expr = Bitcast(f32, bits)
    if name in FUNCTIONS:
        y: Expr = UnOp(FUNCTIONS[name], x)
    elif name in ROOTS:
        y = UnOp(ROOTS[name], x)
    else:
        y = Bitcast(f32, mixed(bits)) / Bitcast(f32, mixed(bits ^ 0x9E3779B9))
    if name not in FUNCTIONS:  # a budget is for programs with a function: this one is of NaN alone
        y = Select(x.eq(x), y, UnOp(UnaryOp.EXP, x)) if name in ROOTS else Select(y.eq(y), y, UnOp(UnaryOp.EXP, y))
    body = [If(BufLen("y") > AT, [Store("y", AT, y)])]
    return Program([read("place", 0, u32, 2), write_only("y", 1, f32)], (256, 1, 1), body)


def comparison() -> Program:
    """worst[0]: most floats between two elements; worst[1]: subnormals in b; worst[2]: pairs that differ."""
    b = Builder()
    sizes, ranks = [], []
    for name in "ab":
        word = b.let(name, Load(name, AT))
        size = b.let(f"{name}_size", word & 0x7FFFFFFF)
        sizes.append(size)
        ranks.append(b.let(f"{name}_rank", Select(word > 0x7FFFFFFF, 0x80000000 - size, 0x80000000 + size)))
    nan = [size > INFINITY for size in sizes]
    apart = BinOp(BinaryOp.MAX, *ranks) - BinOp(BinaryOp.MIN, *ranks)
    both, one = BinOp(BinaryOp.AND, *nan), BinOp(BinaryOp.OR, *nan)
    worst = b.let("worst", Select(both, lit(0), Select(one, lit(0xFFFFFFFF), apart)))
    tiny = BinOp(BinaryOp.AND, sizes[1] > 0, sizes[1] < 0x00800000)
    higher = Let("m", Atomic(AtomicOp.MAX, "found", lit(0), worst))
    one_more, one_tiny = (Let(f"n{k}", Atomic(AtomicOp.ADD, "found", lit(k), lit(1))) for k in (2, 1))
    block, _ = b.mark()
    body = [If(BufLen("a") > AT, [*block, If(worst.ne(0), [higher, one_more]), If(tiny, [one_tiny])])]
    return Program([read("a", 0, u32), read("b", 1, u32), read_write("found", 2, u32, 3)], (256, 1, 1), body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--only", default=",".join(NAMES))
    parser.add_argument("--bits", type=int, default=32, help="of 2^32 arguments, how many are taken")
    options = parser.parse_args()
    backend = acquire(options.backend)
    chunk = min(CHUNK, 1 << options.bits)
    place, a, b, found = (backend.allocate_resident(n) for n in (8, 4 * chunk, 4 * chunk, 12))
    compare = pipeline.compile(backend, comparison())
    rows = {}
    for name in options.only.split(","):
        program, begun = values(name), time.perf_counter()
        exact, native = (pipeline.compile(backend, program, DispatchConfig(ulp_budget=n)) for n in (None, BUDGET))
        backend.upload_resident([(found, 0, bytes(12))])
        for k in range((1 << options.bits) // chunk):
            step = 1 << 32 - options.bits
            backend.upload_resident([(place, 0, struct.pack("<2I", k * chunk * step, step))])
            exact.dispatch_resident([place, a])
            native.dispatch_resident([place, b])
            compare.dispatch_resident([a, b, found])
            backend.flush()
        worst, tiny, other = struct.unpack("<3I", backend.download_resident([ResidentReadRange(found, 0, 12)])[0])
        rows[name] = {"ulps": worst, "differing": other, "subnormal": tiny}
        print(
            f"{name:13} {worst:10} ulp {other:10} differ {tiny} subnormal {time.perf_counter() - begun:6.2f} s",
            flush=True,
        )
    for handle in (place, a, b, found):
        backend.free_resident(handle)
    if options.bits == 32 and options.only == ",".join(NAMES):
        record("cuda_native", {"device": backend.device, "functions": rows})


if __name__ == "__main__":
    main()
