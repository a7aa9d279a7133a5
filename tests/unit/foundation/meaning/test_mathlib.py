"""The math library: how near it is, what it does at the edges, and that expansion changes nothing else."""

import random
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

import vyre
from vyre.backends.reference import run
from vyre.conform.programs.random import random_program
from vyre.conform.values.ulps import arguments, canonical, nearest, pairs, points, true_values, ulps
from vyre.foundation.check.gridsync import segments
from vyre.foundation.check.validate import validate
from vyre.foundation.ir.dtypes import f32, i32, u32
from vyre.foundation.ir.nodes import (  # fmt: skip
    Assign,
    Atomic,
    Barrier,
    BinOp,
    Call,
    Cast,
    Fma,
    If,
    InvocationId,
    Let,
    Lit,
    Load,
    Loop,
    Return,
    Select,
    Span,
    Store,
    Trap,
    UnOp,
    Var,
    lit,
)
from vyre.foundation.ir.ops import AtomicOp, BinaryOp, Ordering, UnaryOp
from vyre.foundation.ir.program import Program, read, read_write, write_only
from vyre.foundation.ir.report import Capabilities
from vyre.foundation.ir.visit import children, walk, walk_nodes
from vyre.foundation.meaning import arith, mathlib

from ....support.math_edges import EDGES, INF, MAX, NAN, TINY

GID = InvocationId(0)
ALL = sorted(mathlib.functions(), key=lambda op: op.text)
EXACT = ("fmod", "remainder", "ldexp", "frexp_mantissa", "frexp_exponent", "nextafter")
FUNCTIONS = [op for op in ALL if isinstance(op, UnaryOp) and op.text not in EXACT]
OF_TWO = [op for op in ALL if isinstance(op, BinaryOp) and op.text not in EXACT]
WITHOUT_ERROR = [op for op in ALL if op.text in EXACT]
BOUNDS = {
    "acos": 0.65, "acosh": 1.5, "asin": 0.75, "asinh": 1.05, "atan": 1.15, "atan2": 1.5, "atanh": 0.75,
    "cbrt": 0.75, "cos": 0.9, "cosh": 1.05, "cospi": 0.9, "erf": 1.3, "erfc": 2.6, "exp": 0.9, "exp10": 0.9,
    "exp2": 0.8, "expm1": 1.25, "hypot": 1.0, "log": 0.9, "log10": 0.95, "log1p": 1.5, "log2": 0.95, "pow": 1.3,
    "sin": 0.9, "sinh": 1.1, "sinpi": 1.0, "tan": 1.15, "tanh": 1.05, "tanpi": 1.15,
}  # fmt: skip
"""Units in the last place from the true value; a correctly rounded function has 0.5."""

ALLOWED = {"erfc": 3, "pow": 3}
by_text = pytest.mark.parametrize("op", FUNCTIONS, ids=lambda op: op.text)
exact = pytest.mark.parametrize("op", WITHOUT_ERROR, ids=lambda op: op.text)
of_two = pytest.mark.parametrize("op", OF_TWO, ids=lambda op: op.text)
any_function = pytest.mark.parametrize("op", ALL, ids=lambda op: op.text)


def program(op):
    x, y = Load("x", GID), Load("y", GID)
    second = read("y", 1, i32 if op.rule == "scale" else f32)
    inputs = [read("x", 0, f32)] if isinstance(op, UnaryOp) else [read("x", 0, f32), second]
    value = UnOp(op, x) if isinstance(op, UnaryOp) else BinOp(op, x, y)
    output = write_only("z", len(inputs), i32 if op.rule == "exponent" else f32)
    return Program([*inputs, output], (64, 1, 1), [Store("z", GID, value)])


PROGRAMS = {op: program(op) for op in ALL}


def apply(op, *operands, engine="numpy"):
    kinds = (np.float32, np.int32 if op.rule == "scale" else np.float32)
    columns = [np.asarray(values, kind) for values, kind in zip(operands, kinds, strict=False)]
    n = len(columns[0])
    inputs = [x.tobytes() for x in columns]
    found = run(PROGRAMS[op], inputs, grid=(-(-n // 64), 1, 1), output_elements={"z": n}, engine=engine)
    return np.frombuffer(found.outputs[0], np.int32 if op.rule == "exponent" else np.float32)


# ---- the measure ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "found, exact, off",
    [
        (1.0, 1.0, 0.0),
        (1.0, 1.0 + 2.0**-24, 0.5),
        (1.0, 1.0 - 2.0**-24, 1.0),  # units are half as large below a power of two
        (-3.0, -3.0 - 2.0**-22, 1.0),
        (0.0, 2.0**-130, 0.0),
        (-0.0, 2.0**-130, 0.0),
        (TINY, 2.0**-130, 1.0),
        (0.0, TINY - 2.0**-151, 1.0),  # which rounds to 2^-126
        (0.0, TINY * (1 + 2.0**-23), 2.0),
        (TINY, -TINY / 2, 1.0),
        (INF, 1e39, 0.0),
        (MAX, 1e39, 1.0),
        (INF, MAX, 1.0),
        (-INF, 1e39, 2.0 * 0x7F000001),
        (NAN, NAN, 0.0),
        (NAN, 1.0, INF),
        (1.0, NAN, INF),
    ],
)
def test_distance_from_the_true_value(found, exact, off):
    with_plain_neighbour = ulps(np.array([found, 1.0], np.float32), np.array([exact, 1.0]))
    assert with_plain_neighbour.tolist() == [off, 0.0]
    assert ulps(np.array([found], np.float32), np.array([exact])).tolist() == [off]


def test_points_are_any_bits_and_the_same_every_time():
    x = points(UnaryOp.SIN, 1001, 3)
    assert len(x) == 1001
    assert x.tobytes() == points(UnaryOp.SIN, 1001, 3).tobytes() != points(UnaryOp.SIN, 1001, 4).tobytes()
    assert len({bits >> 23 for bits in points(UnaryOp.SIN, 1 << 14).view(np.uint32).tolist()}) == 512


IN_MPMATH = {
    "exp2": lambda x: mpmath.power(2, x), "exp10": lambda x: mpmath.power(10, x), "log2": lambda x: mpmath.log(x, 2),
    "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)), "pow": mpmath.power,
    "tanpi": lambda x: mpmath.sinpi(x) / mpmath.cospi(x),
}  # fmt: skip


@pytest.mark.parametrize("op", [*FUNCTIONS, *OF_TWO], ids=lambda op: op.text)
def test_what_counts_as_true_is_what_mpmath_gives(op):
    right = IN_MPMATH.get(op.text) or getattr(mpmath, op.text)
    operands = arguments(op, 256, 1)
    exact = true_values(op, *operands)
    checked = 0
    with mp.workprec(400):
        for k in np.flatnonzero(np.isfinite(exact) & (np.abs(exact) > 1e-300)):
            x = [canonical(side[k : k + 1]).item() for side in operands]
            if np.all(np.isfinite(x)):
                checked += 1
                assert abs(mpf(float(exact[k])) / right(*map(mpf, x)) - 1) < 1e-15, x
    assert checked > 50


# ---- accuracy -------------------------------------------------------------------------------------------------------


@by_text
def test_results_are_within_the_recorded_distance_of_the_true_value(op):
    x = points(op, 1 << 16)
    off = ulps(apply(op, x), true_values(op, x))
    worst = int(np.argmax(off))
    assert off[worst] <= BOUNDS[op.text] <= ALLOWED.get(op.text, 2), (float(x[worst]), off[worst])
    assert off[worst] > 0.5  # or the measure itself is broken


@by_text
def test_every_binade_is_covered_from_its_first_to_its_last_number(op):
    fields = np.arange(256, dtype=np.uint32)[:, None] << 23
    bits = (fields | np.array([0, 1, 0x3504F3, 0x3504F4, 0x400000, 0x7FFFFF], np.uint32)).ravel()
    x = np.concatenate([bits, bits | np.uint32(0x80000000)]).view(np.float32)
    assert np.max(ulps(apply(op, x), true_values(op, x))) <= BOUNDS[op.text]


def nearest_to_quarter_turns():
    """The f32 numbers that come closest to multiples of pi/2: denominators of the best fractions for 2^e 2/pi."""
    found = []
    with mp.workprec(500):
        for e in range(-24, 105):
            alpha = mpmath.frac(mpf(2) ** e * 2 / mpmath.pi)
            before, now, rest = 0, 1, alpha
            while now < 2**24:
                found.append((now * 2.0**e, float(abs(now * alpha - mpmath.nint(now * alpha)))))
                whole = int(mpmath.floor(1 / rest))
                before, now, rest = now, whole * now + before, 1 / rest - whole
    return [(x, d) for x, d in found if 0.75 < x <= MAX]


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_arguments_next_to_multiples_of_a_quarter_turn_keep_their_precision(name):
    near = nearest_to_quarter_turns()
    assert 2.0**-30 < min(d for _, d in near) < 2.0**-29  # what the exact reduction counts on
    x = np.array([v for v, _ in near] + [-v for v, _ in near], np.float32)
    with mp.workprec(300):
        exact = np.array([float(getattr(mpmath, name)(mpf(float(v)))) for v in x])
    op = UnaryOp[name.upper()]
    assert np.max(ulps(apply(op, x), exact)) <= BOUNDS[name]
    assert np.max(np.abs(true_values(op, x) / exact - 1)) < 1e-15  # the other tests' measure is good enough here too


def test_both_ways_to_reduce_an_argument_meet_without_a_gap():
    """Around the largest argument of the fast way, and where it gives up because too little is left."""
    edge = np.float32(136_000) + np.arange(-3000, 3000, dtype=np.float32)
    turns = np.arange(1, 2000) * (np.pi / 2)
    close = np.concatenate([turns + turns * s * 2.0**-24 for s in (-9, -4, -3, -2, -1, 0, 1, 2, 3, 4, 9)])
    for name in ("sin", "cos", "tan"):
        op = UnaryOp[name.upper()]
        x = np.concatenate([edge, -edge, close.astype(np.float32)])
        assert np.max(ulps(apply(op, x), true_values(op, x))) <= BOUNDS[name]


def test_powers_of_two_are_exact():
    k = np.arange(-126, 128, dtype=np.float32)
    assert np.array_equal(apply(UnaryOp.EXP2, k), np.exp2(k.astype(np.float64)).astype(np.float32))
    assert np.array_equal(apply(UnaryOp.LOG2, np.exp2(k.astype(np.float64))), k)


def test_powers_of_ten_and_cubes_are_exact():
    k = np.arange(11, dtype=np.float32)
    assert np.array_equal(apply(UnaryOp.EXP10, k), np.power(10, k))
    tens = np.array([float(f"1e{n}") for n in range(-37, 39)], np.float32)
    assert np.array_equal(apply(UnaryOp.LOG10, tens), np.arange(-37, 39, dtype=np.float32))
    roots = np.concatenate([np.arange(1, 257), -np.arange(1.0, 257), np.exp2(np.arange(-42.0, 43.0))]).astype(
        np.float32
    )
    assert np.array_equal(apply(UnaryOp.CBRT, roots**3), roots)


@pytest.mark.parametrize(
    "name",
    [
        "sin",
        "tan",
        "asin",
        "atan",
        "sinh",
        "tanh",
        "cbrt",
        "erf",
        "asinh",
        "atanh",
        "sinpi",
        "tanpi",
        "cos",
        "cosh",
        "cospi",
    ],
)
def test_odd_and_even_functions_are_so_to_the_bit(name):
    sign = 1 if name.startswith("cos") else -1
    op = UnaryOp[name.upper()]
    x = points(op, 1 << 12)
    left, right = apply(op, -x), apply(op, x)
    flipped = np.where(np.isnan(right), right, sign * right)
    assert np.array_equal(left.view(np.uint32), flipped.astype(np.float32).view(np.uint32))


@of_two
def test_results_of_pairs_are_within_the_recorded_distance_of_the_true_value(op):
    x, y = pairs(op, 1 << 16)
    off = ulps(apply(op, x, y), true_values(op, x, y))
    worst = int(np.argmax(off))
    assert off[worst] <= BOUNDS[op.text] <= ALLOWED.get(op.text, 2), (float(x[worst]), float(y[worst]), off[worst])
    assert off[worst] > 0.5


@of_two
def test_pairs_have_all_difficult_numbers_any_bits_and_are_the_same_every_time(op):
    x, y = pairs(op, 1 << 16)
    both = {(float(a), float(b)) for a, b in zip(x.tolist(), y.tolist(), strict=True)}
    assert {(-1.0, 0.5), (2.0**24, -np.inf), (2.0**-149, 2.0**127)} <= both
    assert x.tobytes() == pairs(op, 1 << 16)[0].tobytes() != pairs(op, 1 << 16, 1)[0].tobytes()
    for side in (x, y):
        assert len({bits >> 23 for bits in side.view(np.uint32).tolist()}) == 512


@pytest.mark.parametrize("op", [*OF_TWO, *WITHOUT_ERROR], ids=lambda op: op.text)
def test_both_engines_give_the_same_bits_for_pairs(op):
    operands = arguments(op, 1 << 9, 1)
    assert apply(op, *operands).tobytes() == apply(op, *operands, engine="scalar").tobytes()


@exact
def test_exact_functions_have_every_bit_right(op):
    operands = arguments(op, 1 << 16)
    found, right = apply(op, *operands), true_values(op, *operands)
    if op.rule == "exponent":
        assert np.array_equal(found, right)
    else:
        bits = np.where(np.isnan(right), np.float32(np.nan), nearest(right)).astype(np.float32).view(np.uint32)
        assert np.array_equal(found.view(np.uint32), bits)


@settings(max_examples=300, deadline=None)
@given(x=st.floats(width=32, allow_nan=False, allow_infinity=False), y=st.floats(width=32, allow_nan=False))
def test_remainders_are_those_of_fractions(x, y):
    x, y = (float(np.copysign(0.0, v)) if abs(v) < TINY else v for v in (x, y))
    assume(y != 0)
    (cut,), (near,) = (apply(op, [x], [y]).tolist() for op in (BinaryOp.FMOD, BinaryOp.REMAINDER))
    if np.isinf(y):
        assert (cut, near) == (x, x)
        return
    quotient = Fraction(x) / Fraction(y)
    for found, whole in ((cut, int(quotient)), (near, round(quotient))):
        rest = Fraction(x) - whole * Fraction(y)
        assert found == (float(rest) if abs(rest) >= TINY else 0.0)
        assert np.signbit(found) == (np.signbit(x) if rest == 0 else rest < 0)


def test_powers_of_small_whole_numbers_are_exact():
    x, y = (np.ravel(a).astype(np.float32) for a in np.meshgrid(np.arange(-60, 61), np.arange(9)))
    small = np.abs(x.astype(np.float64)) ** y < 2**24
    x, y = x[small], y[small]
    assert np.array_equal(apply(BinaryOp.POW, x, y), x**y)
    any_x = np.abs(points(UnaryOp.LOG, 1 << 12))
    same = apply(BinaryOp.POW, any_x, np.ones_like(any_x))
    kept = np.where(any_x < TINY, np.float32(0), any_x)
    assert np.array_equal(same[~np.isnan(kept)], kept[~np.isnan(kept)])


def test_a_length_does_not_depend_on_the_order():
    x, y = pairs(BinaryOp.HYPOT, 1 << 14)
    assert apply(BinaryOp.HYPOT, x, y).tobytes() == apply(BinaryOp.HYPOT, -y, x).tobytes()


@pytest.mark.sweep
@any_function
def test_a_sweep_of_many_arguments_stays_within_what_is_allowed(op):
    sweep("--functions", op.text)


@pytest.mark.exhaustive
@any_function
def test_all_arguments_stay_within_what_is_allowed(op):
    sweep("--functions", op.text, "--exhaustive")


@pytest.mark.sweep
def test_the_polynomials_are_those_that_the_fit_finds():
    sweep("--check", tool="math_coefficients")


def sweep(*options, tool="math_sweep"):
    bench = Path(__file__).parents[4] / "bench" / f"{tool}.py"
    done = subprocess.run([sys.executable, bench, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_sweep_compares_bits_with_the_reference():
    sweep("--points", "5000", "--functions", "exp", "sin", "pow", "--compare")


# ---- edges ----------------------------------------------------------------------------------------------------------


@by_text
def test_a_subnormal_argument_reads_as_zero_of_its_sign(op):
    small = np.array([1, 0x400000, 0x7FFFFF], np.uint32)
    for bits, zero in ((small, 0.0), (small | np.uint32(0x80000000), -0.0)):
        found = apply(op, bits.view(np.float32)).view(np.uint32)
        assert set(found.tolist()) == set(apply(op, [zero]).view(np.uint32).tolist())


@by_text
def test_no_result_is_subnormal_and_every_nan_is_the_canonical_one(op):
    bits = apply(op, points(op, 1 << 14)).view(np.uint32)
    assert not np.any((bits & 0x7F800000 == 0) & (bits & 0x7FFFFF != 0))
    nans = bits[(bits & 0x7F800000 == 0x7F800000) & (bits & 0x7FFFFF != 0)]
    assert set(nans.tolist()) <= {0x7FC00000}


@by_text
def test_both_engines_give_the_same_bits(op):
    x = np.concatenate([points(op, 256), np.array([v for v, _ in EDGES[op.text]], np.float32)])
    x = np.concatenate([x, np.array([1e30, -3e38, 11.0, 355.0, 710.0, 1e5, 2e5], np.float32)])  # both ways of sin
    assert apply(op, x).tobytes() == apply(op, x, engine="scalar").tobytes()


# ---- expansion ------------------------------------------------------------------------------------------------------


def functions_in(p):
    return list(filter(mathlib.is_function, walk(p.entry)))


def exp(x):
    return UnOp(UnaryOp.EXP, x)


def sin(x):
    return UnOp(UnaryOp.SIN, x)


def written(*body, buffers=()):
    """What one invocation leaves in `out`, 8 numbers, by both engines."""
    p = Program([write_only("out", 0, f32, 8), *buffers], (1, 1, 1), body)
    results = []
    for engine in ("scalar", "numpy"):
        inputs = [np.arange(5, 13, dtype=np.uint32).tobytes() for _ in p.host_inputs]
        results.append(run(p, inputs, grid=(1, 1, 1), engine=engine).outputs)
    assert results[0] == results[1]
    return np.frombuffer(results[0][0], np.float32)


def one(op, x):
    return float(apply(op, [x])[0])


def test_every_function_has_its_definition():
    assert set(mathlib.functions()) == {op for op in (*UnaryOp, *BinaryOp) if op.is_function}
    mathlib.functions().clear()
    assert mathlib.functions()


def test_a_program_without_functions_is_returned_as_it_is():
    p = Program([write_only("y", 0, f32)], (1, 1, 1), [Store("y", GID, lit(1.0))])
    assert mathlib.expand(p) is p


@any_function
def test_functions_to_keep_stay_and_others_go(op):
    other = UnaryOp.EXP if op is not UnaryOp.EXP else UnaryOp.LOG
    p = program(op)
    assert mathlib.expand(p, frozenset((op,))) is p
    assert mathlib.expand(p, frozenset((other,))) == mathlib.expand(p)
    both = p.replace(entry=(*p.entry, Store("z", GID, UnOp(other, Load("x", GID)))))
    assert {e.op for e in functions_in(mathlib.expand(both, frozenset((op,))))} == {op}


@any_function
def test_expansion_happens_once_and_leaves_core_arithmetic(op):
    p = program(op)
    expanded = mathlib.expand(p)
    assert mathlib.expand(p) is expanded is mathlib.expand(expanded)
    assert not functions_in(expanded)
    assert validate(expanded) == []
    assert Program.from_wire(expanded.to_wire()) == expanded
    assert expanded.ops() <= vyre.core_supported_ops() | {"vyre.py.bitcast"}


def test_equal_programs_expand_to_one_fingerprint():
    assert len({mathlib.expand(program(UnaryOp.TAN)).fingerprint for _ in range(3)}) == 1


def test_only_exact_reductions_and_long_divisions_are_branches():
    for op, p in PROGRAMS.items():
        branches = [n for n in walk_nodes(mathlib.expand(p).entry) if isinstance(n, If)]
        assert len(branches) == (op.text in ("sin", "cos", "tan", "fmod", "remainder")), op


def test_names_of_the_program_are_not_captured():
    body = [
        Let("x", lit(1.0)), Let("exp_k", lit(100.0)), Let("exp_x", lit(200.0)), Let("exp_y", lit(300.0)),
        Loop("x_1", lit(0), lit(1), (Store("out", lit(0), exp(Var("x") + Var("x"))),)),
        Store("out", lit(1), Var("exp_k")), Store("out", lit(2), Var("exp_x")), Store("out", lit(3), Var("exp_y")),
        Store("out", lit(4), exp(Var("exp_k") - lit(99.0))),
    ]  # fmt: skip
    taken = read_write("exp_z", 1, u32, 8)
    assert written(*body, buffers=[taken])[:5].tolist() == [one(UnaryOp.EXP, 2.0), 100, 200, 300, one(UnaryOp.EXP, 1.0)]


def test_functions_stand_wherever_expressions_do():
    two = Cast(u32, UnOp(UnaryOp.EXP2, lit(1.0)))
    three = Cast(u32, UnOp(UnaryOp.LOG2, lit(8.0)))
    body = [
        Let("n", lit(0.0)),
        Loop("i", two, three + lit(1), (Assign("n", Var("n") + Cast(f32, Var("i"))),)),
        Store("out", two, Var("n")),
        If(UnOp(UnaryOp.COS, lit(0.0)) > lit(0.5), (Store("out", lit(0), sin(exp(lit(0.0)))),), (Trap(three, "no"),)),
        If(UnOp(UnaryOp.COS, lit(0.0)).eq(lit(0.0)), (Return(),)),
        Store("out", lit(1), Fma(exp(lit(1.0)), exp(lit(1.0)), Select(exp(lit(0.0)) > 0.5, exp(lit(2.0)), lit(9.0)))),
        Assign("n", exp(Var("n") - lit(4.0))),
        Store("out", lit(3), Var("n")),
    ]  # fmt: skip
    e = one(UnaryOp.EXP, 1.0)
    fused = arith.fma(e, e, one(UnaryOp.EXP, 2.0))
    assert written(*body)[:4].tolist() == [one(UnaryOp.SIN, 1.0), fused, 5.0, e]


def test_a_function_in_a_loop_is_computed_in_every_turn():
    loop = Loop("i", lit(0), lit(4), (Store("out", Var("i"), exp(Cast(f32, Var("i")))),))
    assert written(loop)[:4].tolist() == [one(UnaryOp.EXP, float(i)) for i in range(4)]


@vyre.kernel
def newton(x: vyre.In[vyre.f32], y: vyre.Out[vyre.f32]):
    i = vyre.gid.x
    if i < len(y):
        guess = vyre.f32(1.0)
        turns = vyre.u32(0)
        while abs(vyre.exp(guess) - x[i]) > 0.001 and turns < 50:
            guess = guess - (vyre.exp(guess) - x[i]) / vyre.exp(guess)
            turns += 1
        y[i] = guess + vyre.log2(vyre.exp2(1.0)) - vyre.cos(0.0)


def test_kernels_call_functions_and_leave_their_loops():
    x = np.array([1.0, 2.0, 10.0], np.float32)
    y = np.zeros(3, np.float32)
    newton(x, y=y)
    assert np.allclose(y, np.log(x), atol=1e-3)


def test_memory_keeps_its_order_around_functions():
    cell = read_write("a", 1, u32, 8)

    def seen(e):
        return Cast(f32, e)

    add = Atomic(AtomicOp.ADD, "a", lit(0), lit(1))
    load = Load("a", lit(0))
    body = [
        Store("out", lit(0), seen(load) + UnOp(UnaryOp.EXP2, seen(add) - lit(4.0)) + seen(load) * lit(100.0)),
        Store("out", lit(1), UnOp(UnaryOp.EXP2, seen(load) - lit(4.0)) + seen(add)),
        Store("out", Cast(u32, UnOp(UnaryOp.LOG2, seen(add) - lit(3.0))), seen(add) + UnOp(UnaryOp.EXP2, seen(load))),
        Let("old", Atomic(AtomicOp.ADD, "a", Cast(u32, exp(seen(load) - lit(9.0))) - lit(1), Cast(u32, exp(lit(0.0))))),
        Store("out", lit(3), seen(Var("old")) + seen(load)),
    ]  # fmt: skip
    expected = [5 + 2.0 ** (5 - 4) + 600, 2.0 ** (6 - 4) + 6, 8 + 2**9, 9 + 10]
    assert written(*body, buffers=[cell])[:4].tolist() == expected


def test_an_expression_that_is_index_and_value_is_evaluated_twice():
    cell = read_write("a", 1, u32, 8)
    moved = Load(
        "a", Cast(u32, UnOp(UnaryOp.EXP2, Cast(f32, Atomic(AtomicOp.EXCHANGE, "a", lit(0), lit(1))) - lit(5.0)))
    )
    p = Program([cell], (1, 1, 1), [Store("a", moved, moved)])
    for engine in ("scalar", "numpy"):  # a[2 ** 0] is 6, and a[2 ** (1 - 5)] is what the exchange left
        (found,) = run(p, [np.arange(5, 13, dtype=np.uint32).tobytes()], grid=(1, 1, 1), engine=engine).outputs
        assert np.frombuffer(found, np.uint32).tolist() == [1, 6, 7, 8, 9, 10, 1, 12]


def trees():
    add = Atomic(AtomicOp.ADD, "a", lit(0), lit(1))
    swap = Atomic(AtomicOp.EXCHANGE, "a", lit(0), lit(3))
    leaves = st.sampled_from([Cast(f32, e) for e in (add, swap, Load("a", lit(0)), Load("a", lit(1)))] + [lit(2.0)])
    return st.recursive(
        leaves,
        lambda below: st.one_of(
            st.builds(lambda a, b: BinOp(BinaryOp.ADD, a, b), below, below),
            st.builds(lambda a: UnOp(UnaryOp.ATAN, a), below),
            st.builds(Fma, below, below, below),
            st.builds(lambda a, b, c: Select(a > 4.0, b, c), below, below, below),
            st.builds(lambda a: Cast(f32, Load("a", Cast(u32, a))), below),
        ),
        max_leaves=8,
    )


ATAN = {}


def evaluate(e, cells):
    """Left to right, depth first, in plain Python."""
    below = [evaluate(c, cells) for c in children(e)]
    match e:
        case Lit():
            return e.value
        case Cast(target=t):
            return float(below[0]) if t == f32 else int(below[0])
        case Load():
            return cells[below[0]] if below[0] < 8 else 0
        case Atomic(op=op):
            old, cells[0] = cells[0], cells[0] + 1 if op is AtomicOp.ADD else below[1]
            return old
        case UnOp():
            if below[0] not in ATAN:
                ATAN[below[0]] = one(UnaryOp.ATAN, below[0])
            return ATAN[below[0]]
        case Fma():
            return arith.fma(*below)
        case Select():
            return below[1] if below[0] else below[2]
        case BinOp(op=op):
            return arith.binary(op, f32)(*below)
    raise AssertionError(e)


@settings(max_examples=150, deadline=None)
@given(st.lists(trees(), min_size=1, max_size=3))
def test_any_mix_of_loads_atomics_and_functions_is_evaluated_in_order(values):
    cells = list(range(5, 13))
    body = [Store("out", lit(k), value) for k, value in enumerate(values)]
    expected = [evaluate(value, cells) for value in values]
    assert written(*body, buffers=[read_write("a", 1, u32, 8)])[: len(values)].tolist() == expected


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_with_functions_stay_valid_and_give_one_result(seed):
    case = random_program(random.Random(seed), functions=True, grid_barriers=seed % 4 == 0)
    expanded = mathlib.expand(case.program)
    assert not functions_in(expanded)
    assert not [i for i in validate(expanded, Capabilities.everything()) if i.severity == "error"]
    runs = [
        run(p, case.inputs, grid=case.grid, output_elements=case.output_elements, engine=engine, **options).outputs
        for p, engine, options in (
            (case.program, "scalar", {"raise_on_race": True}),
            (case.program, "scalar", {"schedule": "reversed"}),
            (case.program, "numpy", {}),
            (expanded, "numpy", {}),
        )
    ]
    assert all(r == runs[0] for r in runs)


def test_random_programs_use_functions_only_when_asked():
    cases = [(random_program(random.Random(s), functions=True), random_program(random.Random(s))) for s in range(300)]
    assert {e.op for asked, _ in cases for e in functions_in(asked.program)} == set(ALL)
    assert not any(functions_in(plain.program) for _, plain in cases)


def test_an_expression_shared_many_times_expands_once():
    e = exp(Load("x", GID))
    for _ in range(64):
        e = e + e
    p = Program([read("x", 0, f32), write_only("y", 1, f32)], (1, 1, 1), [Store("y", GID, e)])
    assert len(list(walk_nodes(mathlib.expand(p).entry))) < 20


def test_depth_is_no_limit():
    e = exp(Load("x", GID))
    for _ in range(100_000):
        e = e + lit(1.0)
    inner = Load("x", GID)
    for _ in range(1000):
        inner = UnOp(UnaryOp.LOG, inner)
    buffers = [read("x", 0, f32), write_only("y", 1, f32)]
    deep = mathlib.expand(Program(buffers, (1, 1, 1), [Store("y", GID, e), Store("y", GID, inner)]))
    assert not any(isinstance(n, If) for n in walk_nodes(deep.entry))
    assert len(list(walk_nodes(deep.entry))) > 5000


def test_operands_of_calls_are_expanded_too():
    call = Call("some.op", (exp(Load("x", GID)), Load("x", lit(1))))
    p = Program([read("x", 0, f32), write_only("y", 1, f32)], (1, 1, 1), [Let("v", call), Store("y", GID, call)])
    lets = {n.name: n.value for n in mathlib.expand(p).entry[0].body if isinstance(n, Let)}
    calls = [value for value in lets.values() if isinstance(value, Call)]
    assert len(calls) == 2
    for call in calls:  # its own load comes before it, and a call may change memory
        assert [type(lets[a.name]) for a in call.args] == [BinOp, Load]


def test_new_statements_carry_the_source_of_the_one_they_serve():
    span = Span("kernel.py", 7)
    p = Program([write_only("y", 0, f32)], (1, 1, 1), [Store("y", GID, sin(Cast(f32, GID)), span=span)])
    nodes = [n for n in walk_nodes(mathlib.expand(p).entry) if not n.body_fields]
    assert len(nodes) > 10
    assert {n.span for n in nodes} == {span}


def test_a_program_is_cut_at_grid_wide_barriers_before_it_is_expanded():
    body = [Let("s", sin(Load("x", GID))), Store("y", GID, Var("s")), Barrier(Ordering.GRID_SYNC),
            Store("z", GID, Var("s") + Load("y", GID ^ 1))]  # fmt: skip
    p = Program([read("x", 0, f32), read_write("y", 1, f32), write_only("z", 2, f32)], (2, 1, 1), body)
    cut = [mathlib.expand(s.program) for s in segments(p)]
    assert len(cut) == 2
    assert not any(functions_in(c) for c in cut)
    x = np.array([1.0, 200_000.0], np.float32)
    zeros = np.zeros(2, np.float32).tobytes()
    for engine in ("scalar", "numpy"):
        y, z = run(p, [x.tobytes(), zeros], grid=(1, 1, 1), output_elements={"z": 2}, engine=engine).outputs
        s = apply(UnaryOp.SIN, x)
        assert np.frombuffer(y, np.float32).tolist() == s.tolist()
        assert np.frombuffer(z, np.float32).tolist() == [s[0] + s[1]] * 2
