"""Steps of f64 and bits of 64-bit types, at their edges: each backend gives what exact fractions say."""

import math
import struct
from fractions import Fraction

import numpy as np
import pytest

import vyre
from vyre.backends.reference import run
from vyre.conform.programs.random import Case
from vyre.conform.programs.random_values import edge_bits
from vyre.driver.contract.values import DispatchConfig
from vyre.foundation.ir.dtypes import f32, f64, i64, u32, u64
from vyre.foundation.ir.nodes import BinOp, Bitcast, Fma, InvocationId, Load, Select, Store, UnOp, lit
from vyre.foundation.ir.ops import BinaryOp, UnaryOp
from vyre.foundation.ir.program import Program, read, write_only

from ...support import cuda_host
from ...support.device_backends import IDS, lacking, open_or_skip
from ...support.tiers import first_quick

GID = InvocationId(0)
QUIET = 0x7FF8000000000000
WIDTH = 3  # values of one program: a small device binds eight buffers


def number(bits):
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


def bits_of(x):
    return struct.unpack("<Q", struct.pack("<d", x))[0] if x == x else QUIET


def rounded(x):
    """An exact value as a float."""
    try:
        return x.numerator / x.denominator
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def fused(a, b, c):
    if not all(map(math.isfinite, (a, b, c))):
        return a * b + c if not (math.isfinite(a) and math.isfinite(b)) else c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c if a == 0 or b == 0 else 0.0  # the sign of a sum of zeros is that of both, or plus
    return rounded(exact)


def least(a, b):
    if a != a or b != b:
        return b if a != a else a
    return min((a, b), key=lambda x: (x, math.copysign(1.0, x)))


def most(a, b):
    return -least(-a, -b)


def root(x):
    if x != x or x < 0 or math.isinf(x) or x == 0:
        return math.nan if x < 0 else x
    near = math.isqrt(int(Fraction(x) * 4**700))
    return (
        rounded(Fraction(2 * near + 1, 2**701))
        if near * near != Fraction(x) * 4**700
        else rounded(Fraction(near, 2**700))
    )


def whole(f):
    return lambda x: math.copysign(float(f(x)), x) if math.isfinite(x) else x


def half_away(x):
    return math.floor(abs(Fraction(x)) + Fraction(1, 2))


UNARY = {
    UnaryOp.SQRT: root, UnaryOp.FLOOR: whole(math.floor), UnaryOp.CEIL: whole(math.ceil), UnaryOp.ABS: abs,
    UnaryOp.TRUNC: whole(math.trunc), UnaryOp.ROUND: whole(half_away), UnaryOp.NEGATE: lambda x: -x,
}  # fmt: skip
BINARY = {BinaryOp.MIN: least, BinaryOp.MAX: most}
COMPARE = {
    BinaryOp.EQ: lambda a, b: a == b, BinaryOp.NE: lambda a, b: a != b, BinaryOp.LT: lambda a, b: a < b,
    BinaryOp.LE: lambda a, b: a <= b, BinaryOp.GT: lambda a, b: a > b, BinaryOp.GE: lambda a, b: a >= b,
}  # fmt: skip
EDGES = sorted({*edge_bits(f64), *map(bits_of, (0.49999999999999994, 1.5, -2.5, 2.0**52 - 0.5, 2.0, 1e300))})
X, Y, Z = (Load(name, GID, dtype=f64) for name in "xyz")


def operands():
    """Pairs of edges with a third, near ones whose sum cancels, and products at both ends."""
    rng = np.random.default_rng(64)
    pairs = [(a, b) for a in EDGES for b in EDGES]
    thirds = rng.choice(np.array(EDGES, np.uint64), len(pairs)).tolist()
    found = [(a, b, c) for (a, b), c in zip(pairs, thirds, strict=True)]
    for k in range(300):
        a, b = rng.uniform(1, 2, 2) * np.exp2(rng.integers(-511, 511, 2))
        product = float(a * b)
        c = (-product, product * 2.0**-53, -math.nextafter(product, 0), product * 2.0**-107, 2.0**-1074)[k % 5]
        found.append(tuple(map(bits_of, (float(a), float(b), c))))
    return found


def cases():
    """What is computed of x, y and z, and a model of three numbers that gives 64 bits."""
    one, zero = lit(1, u64), lit(0, u64)
    found = {"fma": (Fma(X, Y, Z), lambda a, b, c: bits_of(fused(a, b, c)))}
    for op, f in UNARY.items():
        found[op.text] = UnOp(op, X), lambda a, b, c, f=f: bits_of(f(a))
    for op, f in BINARY.items():
        found[op.text] = BinOp(op, X, Y), lambda a, b, c, f=f: bits_of(f(a, b))
    for op, f in COMPARE.items():
        found[op.text] = Select(BinOp(op, X, Y), one, zero), lambda a, b, c, f=f: int(f(a, b))
    found["bits"] = Bitcast(u64, X), lambda a, b, c: bits_of(a)
    found["signed bits"] = Bitcast(i64, X), lambda a, b, c: bits_of(a)
    found["there and back"] = Bitcast(f64, Bitcast(i64, X) + lit(1, i64)), lambda a, b, c: after(bits_of(a))
    return found


def after(bits):
    return bits_of(number((bits + 1) % 2**64))


CASES = cases()
GROUPS = [list(CASES)[k : k + WIDTH] for k in range(0, len(CASES), WIDTH)]
by_group = pytest.mark.parametrize("names", first_quick(GROUPS, 1), ids=" ".join)


def program(names):
    buffers = [read(n, k, f64) for k, n in enumerate("xyz")]
    outs = [write_only(f"out{k}", 3 + k, CASES[name][0].type_hint) for k, name in enumerate(names)]
    body = [Store(out.name, GID, CASES[name][0]) for out, name in zip(outs, names, strict=True)]
    return Program([*buffers, *outs], (64, 1, 1), body)


def check(names, dispatch):
    rows = operands()
    inputs = [np.array(c, np.uint64).tobytes() for c in zip(*rows, strict=True)]
    outputs = dispatch(program(names), inputs, {f"out{k}": len(rows) for k in range(len(names))}, -(-len(rows) // 64))
    for name, output in zip(names, outputs, strict=True):
        for row, got in zip(rows, np.frombuffer(bytes(output), np.uint64).tolist(), strict=True):
            wanted = CASES[name][1](*map(number, row))
            assert got == wanted, f"{name} of {[*map(hex, row)]} is {got:#x}, not {wanted:#x}"


@by_group
@pytest.mark.parametrize("engine", ["scalar", "numpy"])
def test_both_engines_of_the_reference_compute_f64_exactly(names, engine):
    check(names, lambda p, x, n, grid: run(p, x, grid=(grid, 1, 1), output_elements=n, engine=engine).outputs)


@by_group
@pytest.mark.parametrize("id", ["cpu", *IDS])
def test_every_backend_that_has_f64_computes_it_exactly(names, id):
    backend = open_or_skip(id)
    if f64 in lacking(backend):
        pytest.skip(f"{id} has no f64")
    check(names, lambda p, x, n, grid: backend.dispatch(p, x, DispatchConfig(output_elements=n)))


@pytest.mark.check
@by_group
def test_the_text_for_cuda_computes_f64_exactly(names, tmp_path):
    check(names, lambda p, x, n, grid: cuda_host.run_case(Case(p, tuple(x), (grid, 1, 1), n), tmp_path))


@pytest.mark.parametrize("id", ["reference", "cpu", *IDS])
def test_words_of_64_bits_change_their_sign_where_there_is_no_f64_too(id):
    words = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    body = [Store("out", GID, Bitcast(u64, Bitcast(i64, Load("x", GID)) >> lit(1, u32)))]
    shifted = Program([read("x", 0, u64, 5), write_only("out", 1, u64, 5)], (5, 1, 1), body)
    (found,) = open_or_skip(id).dispatch(shifted, [words.tobytes()], DispatchConfig())
    assert np.frombuffer(bytes(found), np.uint64).tolist() == (words.view(np.int64) >> 1).view(np.uint64).tolist()


def test_kernels_say_fma_and_bitcast_of_f64():
    @vyre.kernel
    def k(x: vyre.In[vyre.f64], out: vyre.Out[vyre.f64], bits: vyre.Out[vyre.u64]) -> None:
        i = vyre.gid.x
        out[i] = vyre.fma(x[i], x[i], -0.5)
        bits[i] = vyre.bitcast(vyre.u64, x[i])

    x = np.array([1.5, 1 + 2.0**-52])
    for id in ("reference", "cpu"):
        out, bits = k.on(id)(x, sizes={"out": 2, "bits": 2})
        assert out.tolist() == [1.75, 0.5 + 2.0**-51]
        assert bits.tolist() == x.view(np.uint64).tolist()


def test_bits_of_another_width_and_an_fma_of_two_types_are_refused():
    def narrow(x: vyre.In[vyre.f64], out: vyre.Out[vyre.u32]) -> None:
        out[0] = vyre.bitcast(vyre.u32, x[0])

    with pytest.raises(vyre.KernelError, match="bitcast from f64 to u32"):
        vyre.kernel(narrow)
    mixed = Store("z", GID, Fma(Load("x", GID), Load("x", GID), Load("y", GID)))
    found = vyre.validate(Program([read("x", 0, f64), read("y", 1, f32), write_only("z", 2, f64)], (1, 1, 1), [mixed]))
    assert any("fma of f64, f64, f32" in str(finding) for finding in found)
