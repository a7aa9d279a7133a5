"""One number stands for all defined results: when one of them changes, so must the number.

`--refresh-golden` records new operations, and all results of a new number.
"""

import itertools
import json
import random
import struct
from functools import partial
from pathlib import Path

import vyre
from vyre.driver.pipeline import PipelineCacheKey
from vyre.foundation.formats.blake3 import blake3
from vyre.foundation.ir.dtypes import DataType, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from vyre.foundation.ir.nodes import BinOp, Cast, InvocationId, Load, Store, UnOp, lit
from vyre.foundation.ir.ops import AtomicOp, BinaryOp, ReduceOp, UnaryOp
from vyre.foundation.ir.program import Program, output, read
from vyre.foundation.meaning import arith
from vyre.foundation.meaning.mathlib import functions
from vyre.foundation.meaning.numerics import NUMERICS_VERSION

from ....support.cached_kernels import program

FILE = Path(__file__).parents[3] / "golden" / "numerics.json"
TYPES = (bool_, u8, u16, u32, u64, i8, i16, i32, i64, f16, bf16, f32, f64)
FLOATS = {"f16": ("e", "H", 5, 10), "bf16": (None, "H", 8, 7), "f32": ("f", "I", 8, 23), "f64": ("d", "Q", 11, 52)}


def edges(dtype: DataType):
    """Values of a type at which results change: zeros, ones, the ends, halves, subnormals, infinities, NaN."""
    if dtype is bool_:
        return [False, True]
    if dtype.name in FLOATS:
        _, _, exponent, mantissa = FLOATS[dtype.name]
        top, one = (1 << exponent) - 1, ((1 << exponent - 1) - 1) << mantissa
        bits = [0, 1, (1 << mantissa) - 1, 1 << mantissa, one, one + 1, one | 1 << mantissa - 1, one + (3 << mantissa)]
        bits += [one - (1 << mantissa), (top << mantissa) - 1, top << mantissa, top << mantissa | 1 << mantissa - 1]
        sign = 1 << exponent + mantissa
        return [value(dtype, each) for each in (*bits, *(b | sign for b in bits[:-1]))]
    width, signed = 8 * dtype.size, dtype.name.startswith("i")
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if signed else (0, (1 << width) - 1)
    return sorted({low, low + 1, -1 if signed else 0, 0, 1, 2, 3, 7, width - 1, high // 2, high - 1, high})


def value(dtype, bits):
    return arith.reader(dtype)(bits.to_bytes(dtype.size, "little"), 0)


def results():
    """Name of each operation and type, with a function and the operands to call it with."""
    for dtype in TYPES:
        values = edges(dtype)
        one, two = [(x,) for x in values], list(itertools.product(values, values))
        for op in UnaryOp:
            yield f"{op.name} {dtype.name}", partial(arith.unary, op, dtype), one
        for kind, find in ((BinaryOp, arith.binary), (AtomicOp, arith.atomic), (ReduceOp, arith.reduce)):
            for op in kind:
                yield f"{kind.__name__} {op.name} {dtype.name}", partial(find, op, dtype), two
        for target in TYPES:
            yield f"{dtype.name} to {target.name}", partial(arith.cast, dtype, target), one
    for dtype in (f32, f64):
        triples = list(itertools.product(edges(dtype)[::2], edges(dtype)[1::3], edges(dtype)[::3]))
        yield f"fma {dtype.name}", partial(arith.fused, dtype), triples


def plain(found):
    if isinstance(found, float):
        return struct.pack("<d", found).hex() if found == found else "nan"
    return repr(found)


def digests():
    """Each operation, conversion and function -> a digest of its results."""
    found = {}
    for name, find, operands in results():
        try:
            compute = find()
        except vyre.VyreError:
            continue  # it has no meaning for the type
        text = " ".join(plain(compute(*each)) for each in operands)
        found[name] = blake3(text.encode()).hex()[:16]
    assert len(found) > 300
    return found | digests_of_functions()


def digests_of_functions():
    """Of every function of f32 and f64 at every edge and at arguments between, as the reference computes them."""
    return digests_on(f32, 1000) | digests_on(f64, 200)


def digests_on(dtype, count):
    source = random.Random(7)
    x = [*edges(dtype), *(source.uniform(-1, 1) * 2.0 ** source.randint(-20, 20) for _ in range(count))]
    given = struct.pack(f"<{len(x)}{'f' if dtype == f32 else 'd'}", *x)
    found = {}
    for op in sorted(functions(dtype), key=lambda op: op.name):
        at = InvocationId(0)
        value, other = Load("x", at, dtype=dtype), Load("x", lit(len(x) - 1) - at, dtype=dtype)
        if isinstance(op, BinaryOp):
            call = BinOp(op, value, other if op.rule != "scale" else Cast(i32, other))
        else:
            call = UnOp(op, value)
        element = i32 if op.rule == "exponent" else dtype
        body = [Store("out", at, call)]
        computed = Program([read("x", 0, dtype, len(x)), output("out", 1, element, len(x))], (1, 1, 1), body)
        (results,) = vyre.acquire("reference").dispatch(computed, [given])
        found[f"function {op.name}{'' if dtype == f32 else ' f64'}"] = blake3(bytes(results)).hex()[:16]
    assert len(found) >= 7
    return found


def test_a_changed_result_needs_another_version(request):
    found, known = digests(), json.loads(FILE.read_text()) if FILE.exists() else {"version": 0, "results": {}}
    same_version = known["version"] == NUMERICS_VERSION
    changed = (
        {name for name, digest in known["results"].items() if found.get(name) != digest} if same_version else set()
    )
    assert changed == set(), "raise NUMERICS_VERSION: these results are not what they were"
    if request.config.getoption("--refresh-golden"):
        known = {"version": NUMERICS_VERSION, "results": found}
        FILE.write_text(json.dumps(known, indent=0, sort_keys=True) + "\n")
    assert known == {"version": NUMERICS_VERSION, "results": found}, "run this with --refresh-golden"


def test_the_version_is_part_of_every_key():
    key = PipelineCacheKey.of(vyre.acquire("reference"), program(0), vyre.DispatchConfig())
    assert key.facts()["numerics_version"] == NUMERICS_VERSION == vyre.NUMERICS_VERSION


def test_the_page_about_numbers_says_which_version_it_is():
    page = (Path(__file__).parents[4] / "docs" / "numerics.md").read_text("utf-8")
    assert f"`vyre.NUMERICS_VERSION` is {NUMERICS_VERSION}" in " ".join(page.split())
