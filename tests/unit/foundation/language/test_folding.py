"""What is computed while compiling is what would have been computed at run time, to the bit, or it is refused.

Numbers without a type are Python's: integers have no width and floats are binary64 until they meet a type. So the same
bits are asked for where both operands are values of the type, and the answer is one.
"""

import itertools
import linecache
import math
import re

import numpy as np
import pytest

import vyre
from vyre.backends import reference
from vyre.foundation.language.kernel import build_program, read_source

NAMES = ("In", "Out", "u32", "i32", "u64", "i64", "f16", "bf16", "f32", "f64", "bool_", "gid", "select", "fma")
FUNCTIONS = (
    "sqrt", "inverse_sqrt", "reciprocal", "floor", "ceil", "trunc", "sign", "is_nan", "is_inf", "is_finite", "exp",
    "log", "sin", "popcount", "clz", "ctz", "reverse_bits", "rotate_left", "rotate_right", "mul_high", "abs_diff",
    "saturating_add", "saturating_sub", "saturating_mul", "bitcast", "copysign",
)  # fmt: skip
SCOPE = {name: getattr(vyre, name) for name in NAMES + FUNCTIONS} | {"vyre": vyre, "nan": math.nan, "inf": math.inf}
DTYPES = {"u32": "u4", "i32": "i4", "u64": "u8", "i64": "i8", "f16": "f2", "f32": "f4", "f64": "f8", "bool_": "u4"}
counter = itertools.count()

WORDS = [0, 1, 2, 3, 7, 31, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
SIGNED = [0, 1, -1, 3, -3, 7, -7, 0x7FFFFFFF, -0x80000000]
LONG = [0, 1, 5, 63, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
SIGNED_LONG = [0, 1, -1, -7, 3, (1 << 63) - 1, -(1 << 63)]
SINGLES = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    2.5,
    16777216.0,
    2.0**-126,
    -(2.0**127),
    3.4028234663852886e38,
    math.inf,
    -math.inf,
    math.nan,
]
VALUES = {
    "u32": WORDS, "i32": SIGNED, "u64": LONG, "i64": SIGNED_LONG, "f32": SINGLES, "f64": [*SINGLES, 1e300, 5e-324],
    "f16": [0.0, -0.0, 1.5, -2.5, 65504.0, 2.0**-24, math.inf, math.nan],
}  # fmt: skip
FEW = {
    "u32": [0, 3, 31, 0xFFFFFFFF], "i32": [0, 3, -7, -0x80000000],
    "f32": [0.0, -0.0, -1.5, 2.0**-126, math.inf, math.nan],
    "f64": [0.0, -0.0, 1e300, math.nan],
}  # fmt: skip


def program_of(text: str, **names: object) -> vyre.Program:
    filename = f"<fold {next(counter)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    scope = {**SCOPE, **names}
    exec(compile(text, filename, "exec"), scope)
    return build_program(read_source(scope["k"], 1), {})


def bits(answer: bytes, t: str) -> list[int]:
    return np.frombuffer(answer, f"u{np.dtype(DTYPES[t]).itemsize}").tolist()


def folded(expressions: list[str], t: str, backend: str = "reference", **names: object) -> list[int]:
    """The bits of expressions over numbers."""
    lines = [f"    out[{k}] = {e}" for k, e in enumerate(expressions)]
    program = program_of("\n".join([f"def k(out: Out[{t}]):", *lines]), **names)
    return bits(run(program, [], {"out": len(expressions)}, backend), t)


def computed(expression: str, source: str, t: str, *operands: list) -> list[int]:
    """The bits of an expression over the elements x, y, z of buffers."""
    params = ["x", "y", "z"][: len(operands)]
    loads = "; ".join(f"{p} = b_{p}[gid.x]" for p in params)
    head = f"def k({', '.join(f'b_{p}: In[{source}]' for p in params)}, out: Out[{t}]):"
    program = program_of(f"{head}\n    {loads}\n    out[gid.x] = {expression}")
    return bits(run(program, [np.array(o, DTYPES[source]).tobytes() for o in operands], {"out": len(operands[0])}), t)


def run(program: vyre.Program, inputs: list, sizes: dict, backend: str = "reference") -> bytes:
    if backend == "reference":
        (count,) = sizes.values()
        grid = (count if inputs else 1, 1, 1)
        found = [
            bytes(reference.run(program, inputs, grid=grid, output_elements=sizes, engine=e).outputs[0])
            for e in ("scalar", "numpy")
        ]
        assert found[0] == found[1]
        return found[0]
    from vyre.backends import cpu

    with cpu.REGISTRATION.open() as opened:
        return bytes(
            opened.dispatch(program, inputs, vyre.DispatchConfig(output_elements=sizes, grid_override=(1, 1, 1)))[0]
        )


def accepted(expression: str, t: str, pairs: list[tuple]) -> list[tuple]:
    """The pairs of numbers for which an expression is legal, each by itself."""
    lines = {k: f"    out[{k}] = {named(expression, k)}" for k in range(len(pairs))}
    names = numbered(pairs)
    while True:
        order = list(lines)
        try:
            program_of("\n".join([f"def k(out: Out[{t}]):", *lines.values()]), **names)
        except vyre.KernelError as e:
            del lines[order[(e.lineno or 0) - 2]]
        else:
            return [pairs[k] for k in order]


def named(expression: str, k: int, source: str = "") -> str:
    """The expression over the numbers of pair k, each converted to a type if one is given."""
    return re.sub(r"\b([xy])\b", rf"{source}(\g<1>{k})", expression)


def numbered(pairs: list[tuple]) -> dict[str, object]:
    return {f"{n}{k}": v for k, p in enumerate(pairs) for n, v in zip("xy", p, strict=True)}


# ---- numbers without a type -----------------------------------------------------------------------------------------

ARITHMETIC = ("+", "-", "*", "//", "%", "&", "|", "^", "<<", ">>")
COMPARE = ("==", "!=", "<", "<=", ">", ">=")
PLAIN = [
    *((f"x {op} y", t, t) for t in ("u32", "i32") for op in ARITHMETIC),
    *((f"x {op} y", "f32", "f32") for op in ("+", "-", "*", "/", "%")),
    *((f"x {op} y", t, "bool_") for t in ("u32", "i32", "f32") for op in COMPARE),
    *((f"{f}(x, y)", t, t) for t in ("u32", "i32", "f32", "f64") for f in ("min", "max")),
    *((f"{f}(y, x, 1)", "f32", "f32") for f in ("min", "max")),
    *((f"{f}(y, 1.0, x)", "f32", "f32") for f in ("min", "max")),
    *((e, "f32", "f32") for e in ("abs(x)", "-x", "+x", "select(x < y, x, y)", "x if x < y else y")),
    *((e, "i32", "i32") for e in ("abs(x)", "-x", "~x", "select(x < y, x, y)")),
    *(("x < y < 3", t, "bool_") for t in ("u32", "i32", "f32")),
    *(("not x == y", t, "bool_") for t in ("u32", "f32")),
    *(("x == 1 and y == 1 or x == 3", t, "bool_") for t in ("u32", "f32")),
]


@pytest.mark.parametrize("values", [FEW, pytest.param(VALUES, marks=pytest.mark.sweep)], ids=["few", "many"])
@pytest.mark.parametrize("expression, source, t", PLAIN, ids=lambda v: v)
def test_numbers_without_a_type_fold_to_what_values_give(expression, source, t, values):
    """Each pair by itself may be refused; those that are not are computed."""
    pairs = list(itertools.product(values[source], repeat=2))
    run_time = expression
    if ">>" in expression or "<<" in expression:
        run_time = expression.replace("y", "u32(y)")
        pairs = [p for p in pairs if 0 <= p[1] < 32]  # integers without a type have no width
    kept = accepted(expression, t, pairs)
    assert len(kept) > len(pairs) // 8
    texts = [named(expression, k) for k in range(len(kept))]
    want = computed(run_time, source, t, *(list(side) for side in zip(*kept, strict=True)))
    assert folded(texts, t, **numbered(kept)) == want


REFUSED = [
    ("7.5 // 2.0", "does not divide floats", "write /"),
    ("-7.5 % 2", "rounds down in Python", "before the kernel"),
    ("-0.0 % 2.0", "rounds down in Python", "before the kernel"),
    ("7.5 % 0.0", "division by zero", "not zero"),
    ("max(HUGE, 1.0)", "max.. of floats and a whole number beyond them", "smaller"),
    ("min(True, False)", "min is not defined on bool|bool", "cast|write"),
    ("max(True, 1)", "bool meets", "1 or 0"),
    ("u32(300 * -1)", "does not fit u32", "use 0"),
    ("u32(nan)", "does not fit u32", "finite"),
    ("u32(f32(1e40))", "does not fit f32", "smaller"),
    ("7 // -2", "rounds down in Python", "before the kernel"),
    ("1 // 0", "division by zero", "not zero"),
    ("u32(u8(300))", "does not fit u8", "0 to 255"),
]


@pytest.mark.parametrize("expression, message, fix", REFUSED)
def test_what_would_differ_is_refused(expression, message, fix):
    with pytest.raises(vyre.KernelError, match=f"(?s)({message}).*Fix: .*({fix})"):
        program_of(f"def k(out: Out[u32]):\n    out[0] = {expression}", HUGE=10**400, u8=vyre.u8)


DIFFERS = [
    ("bitcast(u32, v + (0.1 + 0.6))", "bitcast(u32, v + (f32(0.1) + f32(0.6)))", 0x3F333333, 0x3F333334),
    ("u32(bool(1e-40))", "u32(bool(f32(1e-40)))", 1, 0),
    ("0xFFFFFFFF >> 33", "u32(0xFFFFFFFF) >> u32(33)", 0, 0x7FFFFFFF),
    ("(1 << 40) >> 33", "u32((u64(1) << 40) >> 33)", 128, 128),
]


@pytest.mark.parametrize("plain, typed, first, second", DIFFERS)
def test_a_number_without_a_type_has_no_width_and_no_rounding(plain, typed, first, second):
    text = f"def k(out: Out[u32]):\n    v = f32(0.0)\n    out[0] = {plain}\n    out[1] = {typed}"
    assert bits(run(program_of(text), [], {"out": 2}), "u32") == [first, second]


def test_the_smallest_of_a_whole_number_and_a_float_is_a_float():
    program = program_of("def k(out: Out[u32]):\n    v = min(1, 2.5)\n    out[0] = bitcast(u32, v)")
    assert bits(run(program, [], {"out": 1}), "u32") == [0x3F800000]


# ---- numbers with a type --------------------------------------------------------------------------------------------

FLOATS, INTEGERS = ("f32", "f64", "f16"), ("u32", "i32", "u64", "i64")
TYPED = [
    *((f"x {op} y", t, t) for t in INTEGERS for op in ("+", "-", "*", "//", "%", "&", "|", "^")),
    *((f"x {op} u32(y & 127)", t, t) for t in ("u32",) for op in ("<<", ">>")),
    *((f"x {op} y", t, t) for t in FLOATS for op in ("+", "-", "*", "/")),
    *((f"x {op} y", t, "bool_") for t in (*INTEGERS, *FLOATS) for op in COMPARE),
    *((f"{f}(x, y)", t, t) for t in (*INTEGERS, *FLOATS) for f in ("min", "max")),
    *(("copysign(x, y)", t, t) for t in FLOATS),
    *(
        (f"{f}(x)", t, t)
        for t in FLOATS
        for f in ("abs", "sqrt", "reciprocal", "floor", "ceil", "trunc", "sign", "vyre.round")
    ),
    *((f"{f}(x)", "f32", "f32") for f in ("inverse_sqrt", "exp", "log", "sin", "-", "+")),
    *((f"{f}(x)", t, "bool_") for t in FLOATS for f in ("is_nan", "is_inf", "is_finite", "bool_")),
    *((f"{f}(x)", t, t) for t in INTEGERS for f in ("abs", "-", "~", "reverse_bits")),
    *((f"{f}(x)", "u32", "u32") for f in ("popcount", "clz", "ctz")),
    *((f"{f}(x, y)", "u32", "u32") for f in FUNCTIONS if f.startswith(("saturating", "abs_diff", "mul_high"))),
    *((f"{f}(x, y)", "u32", "u32") for f in ("rotate_left", "rotate_right")),
    *((f"{t}(x)", s, t) for s in ("f32", "f64") for t in ("u32", "i32")),
    *((f"{t}(x)", "f64", t) for t in ("f32", "u64", "i64")),
    *((f"{t}(x)", s, t) for s in ("u32", "i32") for t in ("f32", "f64", "u64", "i64", "f16")),
    ("fma(x, y, x)", "f32", "f32"),
    ("bitcast(u32, x)", "f32", "u32"),
    ("bitcast(f32, x)", "u32", "f32"),
    ("select(x < y, x, y)", "f32", "f32"),
]


@pytest.mark.sweep
@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("expression, source, t", TYPED, ids=lambda v: v)
def test_numbers_with_a_type_fold_to_what_values_give(expression, source, t, backend):
    pairs = list(itertools.product(VALUES[source], repeat=2))
    if "y" not in expression.replace("vyre", ""):
        pairs = [(v, v) for v in VALUES[source]]
    if "//" in expression or "%" in expression:
        pairs = [p for p in pairs if p[1]]  # a known divisor of zero is refused
    texts = [named(expression, k, source) for k in range(len(pairs))]
    want = computed(expression, source, t, *(list(side) for side in zip(*pairs, strict=True)))
    assert folded(texts, t, backend, **numbered(pairs)) == want
