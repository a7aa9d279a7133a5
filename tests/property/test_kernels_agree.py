"""Random kernels, written as users write them, give the bytes of the exact model on every backend."""

import contextlib
import io
import random
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path

import pytest

from vyre.conform.kernels import check, numbers
from vyre.conform.kernels.inputs import elements
from vyre.conform.kernels.make import random_kernel
from vyre.conform.kernels.model import expected
from vyre.conform.kernels.shrink import shrunk
from vyre.conform.kernels.tree import FIELDS, FUNCTIONS, PAIRED, TYPES, E, S, expressions, statements
from vyre.conform.kernels.write import source
from vyre.errors import UnsupportedFeature

from ..support.device_backends import REQUIRED, open_or_skip
from ..support.math_edges import EDGES
from ..support.tiers import first_quick

ROOT = Path(__file__).parents[2]

CHUNKS = [
    *first_quick((("reference", first, 10) for first in range(0, 380, 10)), 4),
    *first_quick((("cpu", first, 5) for first in range(380, 440, 5)), 4),
    *first_quick((("opencl", first, 5) for first in range(440, 470, 5)), 1),
    *first_quick((("wgpu", first, 5) for first in range(470, 500, 5)), 1),
]
"""Backend, first seed, kernels: 500 in all, most of them in `make check`."""


@pytest.mark.parametrize("backend, first, count", CHUNKS)
def test_random_kernels_give_the_bytes_of_the_model(backend, first, count):
    if backend not in ("reference", "cpu"):
        open_or_skip(backend).shutdown()
    if backend == "opencl":
        agree_in_a_process(backend, first, count)
        return
    for seed in range(first, first + count):
        agrees(random_kernel(seed), backend)


def agree_in_a_process(backend, first, count):
    """Of their own: some compilers of drivers end the process over a kernel that they do not like."""
    script = f"""
from tests.property.test_kernels_agree import agrees, random_kernel
for seed in range({first}, {first + count}):
    agrees(random_kernel(seed), {backend!r})
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=100)
    if "LLVM ERROR: " in done.stderr and backend not in REQUIRED:
        pytest.skip(f"{backend}: the driver ended the process: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr


@pytest.mark.sweep
@pytest.mark.parametrize("backend", ["reference", "cpu", "opencl", "wgpu", "cuda"])
@pytest.mark.parametrize("first", range(100_000, 102_000, 100))
def test_many_random_kernels_give_the_bytes_of_the_model(backend, first):
    if backend not in ("reference", "cpu"):
        open_or_skip(backend).shutdown()
    for seed in range(first, first + 100):
        agrees(random_kernel(seed), backend)


def agrees(tree, backend):
    answer = expected(tree)
    try:
        found = check.difference(tree, backend, answer)
    except UnsupportedFeature:  # a type or a loop that the device lacks
        return
    except Exception as e:
        e.add_note(check.script(tree, backend, type(e).__name__, answer))
        raise
    assert found is None, check.script(tree, backend, found, answer)


# ---- the generator --------------------------------------------------------------------------------------------------

SOME = range(1000, 1040)


def test_a_seed_is_one_kernel():
    for seed in SOME:
        assert repr(random_kernel(seed)) == repr(random_kernel(seed))  # by text: a NaN does not equal itself
        assert source(random_kernel(seed)) != source(random_kernel(seed + 1))


@pytest.mark.check
def test_no_order_of_invocations_shows():
    for seed in SOME:
        tree = random_kernel(seed)
        assert expected(tree) == expected(tree, backwards=True), source(tree)


def test_the_order_of_invocations_shows_where_they_share_an_element():
    tree = next(t for t in map(random_kernel, SOME) if t.array("out0").t == "u32" and t.array("out0").size)
    racing = S("store", "out0", (E("num", "u32", data=("0", 0)), E("id", "u32", data=("gid", "x"))))
    tree = replace(tree, body=(racing,), workgroup=(4,), grid=(2, 1, 1))
    assert expected(tree) != expected(tree, backwards=True)


@cache
def many_kernels():
    return [random_kernel(seed) for seed in range(2000, 2600)]


@pytest.mark.check
def test_kernels_are_of_every_kind():
    trees = many_kernels()
    ops = {e.op for t in trees for e in expressions(t.body)} | {s.op for t in trees for s in statements(t.body)}
    written = "\n".join(map(source, trees))
    assert {a.t for t in trees for a in t.arrays} == {*TYPES, *FIELDS}
    assert {len(t.workgroup) for t in trees} == {1, 2, 3}
    assert {t.call[0] for t in trees} == {"grid", "domain"}
    assert any(0 in t.grid for t in trees)
    assert {e.t for t in trees for e in expressions(t.body) if e.op == "cast"} == set(TYPES)
    missing = {
        "+", "-", "*", "/", "//", "%", "&", "|", "^", "<<", ">>", "min", "max", "neg", "abs", "~", "sqrt", "floor",
        "ceil", "round", "trunc", "sign", "reciprocal", "inverse_sqrt", "is_nan", "is_inf", "is_finite", "fma",
        "bitcast", "cast", "choose", "compare", "and", "or", "not", "popcount", "clz", "ctz", "reverse_bits",
        "rotate_left", "rotate_right", "mul_high", "abs_diff", "saturating_add", "saturating_sub", "saturating_mul",
        "load", "len", "size", "id", "turn", "call", "let", "assign", "augment", "swap", "chain", "store", "stores",
        "store_augment", "atomic", "if", "for", "while", "break", "continue", "return", "shared", "barrier",
        "grid_sync", "subgroup", "together", "copysign", "ldexp", "frexp_exponent", *FUNCTIONS, *PAIRED,
    } - ops  # fmt: skip
    assert not missing
    assert "f32" in {e.t for t in trees for e in expressions(t.body) if e.op == "%"}
    assert {"%", "**"} <= {
        s.data[1] for t in trees for s in statements(t.body) if s.op == "augment" and s.args[0].t == "f32"
    }
    for word in ("static_range(", "@device", "const", "Uniform[", "InOut[", "1e999", " if ", "select(", "= local("):
        assert word in written


def test_kernels_use_every_form_that_values_have():
    trees = many_kernels()
    bodies = [body for t in trees for body in (t.body, *(h.body for h in t.helpers))]
    ops = {e.op for b in bodies for e in expressions(b)} | {s.op for b in bodies for s in statements(b)}
    missing = {
        "make", "field", "item", "replace", "same", "differ", "dot", "cross", "length", "normalize", "conj", "small",
        "shape", "at", "extents", "local", "unpack", "each", "assert", "bitcast",
    } - ops  # fmt: skip
    assert not missing
    buffers = {(a.role, a.t) for t in trees for a in t.arrays}
    assert {(role, t) for role in ("in", "inout", "out") for t in FIELDS} <= buffers
    assert set(FIELDS) <= {t for tree in trees for _, t, _ in tree.scalars}
    assert {1, 2, 3, 4} <= {len(a.shape) for t in trees for a in t.arrays if a.ranked}
    assert {"u32", "i32", "f32"} <= {e.t for b in bodies for e in expressions(b) if e.op == "bitcast"}
    assert {len(h.more) for t in trees for h in t.helpers} == {0, 1, 2}
    kept = [value for t in trees for _, value in t.captured]
    assert {"Held", "tuple", "list", "ndarray", "float32", "uint32", "int", "float", "bool"} <= {
        type(v).__name__ for v in kept
    }
    assert any(t.generic for t in trees)
    assert any(t.left_out for t in trees)
    written = "\n".join(map(source, trees))
    for literal in (
        "0x[0-9a-f]", "0x[0-9A-F]+_", "0b[01]", "0o[0-7]", r"\d_\d{3}", r"\de[+-]\d", r"\dE[+-]\d", r"[( ]\.\d",
        r"\d\.[),\]]", r"\dj", "True|False", r"-\d",
    ):  # fmt: skip
        assert re.search(literal, written), literal
    for form in ("enumerate(", "zip(", " in (", ": const = ", "T: const", "*= ", "local(Body,", "shared(Pair,"):
        assert form in written, form


# ---- the model ------------------------------------------------------------------------------------------------------


def test_numbers_round_once_and_flush_after_rounding():
    f32 = numbers.OPERATORS["f32"]
    least = 2.0**-126
    assert f32["*"](2.0**-63, 2.0**-63) == least
    assert f32["*"](1 - 2.0**-24, least) == 0
    assert f32["*"](1 + 2.0**-23, least * 0.5) == 0
    assert f32["*"]((2 - 2.0**-23) * 2.0**-64, (1 + 2.0**-23) * 2.0**-63) == least  # 24 bits below it round up to it
    assert numbers.to_bits(f32["*"](-least, 0.5), "f32") == 0x80000000
    assert f32["+"](2.0**24, 1.0) == 2.0**24
    assert f32["+"](2.0**24, 3.0) == 2.0**24 + 4
    assert f32["fma"](1 + 2.0**-23, 1 - 2.0**-23, -1.0) == -(2.0**-46)
    assert f32["sqrt"](2.0) == 1.41421353816986083984375
    assert f32["sqrt"](2.0**-126) == 2.0**-63
    assert numbers.OPERATORS["f16"]["*"](2.0**-14, 0.5) == 2.0**-15
    assert numbers.OPERATORS["bf16"]["+"](256.0, 1.0) == 256.0
    assert numbers.cast("f32", "u8")(300.0) == 255
    assert numbers.cast("f32", "i8")(float("nan")) == 0


@pytest.mark.parametrize("name", sorted(EDGES))
def test_functions_of_the_model_have_the_edges_that_the_tables_have(name):
    f = numbers.OPERATORS["f32"][name]
    for *operands, wanted in EDGES[name]:
        values = [numbers.number(x, "f32") if isinstance(x, float) else x for x in operands]
        t = "i32" if isinstance(wanted, int) else "f32"
        assert numbers.to_bits(f(*values), t) == numbers.to_bits(numbers.number(wanted, t), t), (name, operands)


@pytest.mark.parametrize("t", TYPES)
def test_elements_are_what_memory_holds(t):
    """Bits that a store leaves are read back as the same value."""
    size = numbers.BITS[t] // 8
    data = elements(random.Random(t), t, 300)
    for k in range(0, len(data), size):
        value = numbers.from_bits(int.from_bytes(data[k : k + size], "little"), t)
        again = numbers.from_bits(numbers.to_bits(value, t), t)
        assert numbers.to_bits(again, t) == numbers.to_bits(value, t)


# ---- what a difference looks like -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wanted",
    [
        lambda t: t.helpers,
        lambda t: t.generic,
        lambda t: t.left_out,
        lambda t: any(a.t in FIELDS and a.role != "out" for a in t.arrays),
        lambda t: any(kind in FIELDS for _, kind, _ in t.scalars),
        lambda t: any(a.t in ("Pair", "Body") and a.given for a in t.arrays),
    ],
    ids=["helpers", "generic", "defaults", "small", "argument", "given"],
)
def test_a_difference_is_shown_as_a_script_that_runs(wanted):
    tree = next(t for t in many_kernels() if wanted(t) and t.captured and t.results[0].size)
    answer = expected(tree)
    text = check.script(tree, "reference", "nothing", answer)
    path = f"<script {tree.seed}>"
    check.linecache.cache[path] = (len(text), None, text.splitlines(True), path)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(text, path, "exec"), {"__name__": "script"})
    assert said.getvalue().splitlines().count("True") == len(tree.results)


def test_the_first_element_that_differs_is_named():
    tree = next(t for t in map(random_kernel, SOME) if t.results[0].t == "u32" and t.results[0].size > 2)
    answer = expected(tree)
    wrong = [bytes(answer[0][:8]) + bytes([answer[0][8] ^ 1]) + answer[0][9:], *answer[1:]]
    found = check.compare(tree, wrong, answer)
    assert found is not None
    assert found.element == 2
    assert str(found).startswith(f"{tree.results[0].name}[2] is ")
    short = check.compare(tree, [answer[0][:4], *answer[1:]], answer)
    assert short is not None
    assert short.found == "4 bytes"
    assert check.compare(tree, answer, answer) is None


def test_a_kernel_shrinks_to_what_makes_the_difference():
    """Planted: whatever computes a square root is wrong."""
    tree = min(filter(roots, map(random_kernel, SOME)), key=lambda t: prod(t.grid) * prod(t.workgroup))
    small = shrunk(tree, roots)
    assert roots(small)
    assert len(list(statements(small.body))) <= 3 < len(list(statements(tree.body)))
    assert len(small.arrays) <= len(tree.arrays)


def roots(tree):
    return any(e.op == "sqrt" for e in expressions(tree.body))
