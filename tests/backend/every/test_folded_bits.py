"""What is computed while compiling has the bits of what runs: every operator, conversion and function of f32 and f64,
over special values."""

import itertools

import pytest

from vyre.driver.contract.values import DispatchConfig
from vyre.foundation.ir.dtypes import BY_NAME, bool_, can_cast, f32, f64, i32, u32, u64
from vyre.foundation.ir.nodes import BinOp, Bitcast, Cast, Fma, InvocationId, Lit, Load, Store, UnOp, lit
from vyre.foundation.ir.ops import BINARY_TYPES, FMA_TYPES, UNARY_TYPES, BinaryOp, UnaryOp
from vyre.foundation.ir.program import Program, read, write_only
from vyre.foundation.meaning import mathlib

from ...support.device_backends import IDS, lacking, open_or_skip

SPECIAL = {
    f32: (0, 1, 0x007FFFFF, 0x00800000, 0x1FFFFFFE, 0x20000001, 0x3F7FFFFF, 0x3F800000, 0x3F000000, 0x40490FDB,
          0x4B000001, 0x4F000000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000),
    f64: (0, 1, 0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x380FFFFFF0000000, 0x3FEFFFFFFFFFFFFF, 0x3FF0000000000000,
          0x3FE0000000000000, 0x400921FB54442D18, 0x4330000000000001, 0x43E0000000000000, 0x47EFFFFFF0000000,
          0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, 0x7FF8000000000000),
}  # fmt: skip
"""Bits; each of them has both signs."""
WORDS = (0, 1, 3, 0xFFFFFFFF, 0x80000000, 150)
RESULT = {"compare": bool_, "float_test": bool_, "exponent": i32}


def values(t):
    """Its special values as bits, or of words some."""
    if t not in SPECIAL:
        return [bits % (1 << t.bits) for bits in WORDS]
    return [bits | sign << t.bits - 1 for bits in SPECIAL[t] for sign in (0, 1)]


def operators(t, functions):
    """(text, types of the operands, type of the result, how to make the expression)."""
    for op in BinaryOp:
        if op.is_function == functions and t.name in BINARY_TYPES[op.rule] and (t == f32 or defined(op, t)):
            right = i32 if op.rule == "scale" else t
            yield op.text, (t, right), RESULT.get(op.rule, t), lambda a, b, op=op: BinOp(op, a, b)
    for op in UnaryOp:
        if op.is_function == functions and t.name in UNARY_TYPES[op.rule]:
            yield f"{op.text} of one", (t,), RESULT.get(op.rule, t), lambda a, op=op: UnOp(op, a)
    if functions:
        return
    for s in map(BY_NAME.get, ("u32", "i32", "u64", "i64", "f32", "f64", "bool", "f16", "bf16")):
        if s != t and can_cast(t, s):
            yield f"to {s}", (t,), s, lambda a, s=s: Cast(s, a)
    if t.name in FMA_TYPES:
        yield "fma", (t, t, t), t, Fma
    yield "bits", (t,), u32 if t == f32 else u64, lambda a: Bitcast(u32 if t == f32 else u64, a)


def defined(op, t):
    return not op.is_function or op in mathlib.functions(t)


def known(t, bits):
    return Bitcast(f32, Lit(u32, bits)) if t == f32 else Lit(t, bits)


def rows_of(types, every):
    """Special values, of two operands every so manieth pair, of three a few."""
    rows = list(itertools.product(*map(values, types)))
    return rows[:: {1: 1, 2: every, 3: 43 * every}[len(types)]]


def check(id, t, every, functions=False):
    backend = open_or_skip(id)
    if t in lacking(backend):
        pytest.skip(f"{id} has no {t}")
    at = InvocationId(0)
    for text, types, result, make in operators(t, functions):
        if result in lacking(backend):
            continue
        rows = rows_of(types, every)
        names = "abc"[: len(types)]
        inputs = [read(name, k, s) for k, (name, s) in enumerate(zip(names, types, strict=True))]
        out = write_only("out", len(inputs), result, len(rows))
        given = [
            b"".join(bits.to_bytes(s.size, "little") for bits in c)
            for s, c in zip(types, zip(*rows, strict=True), strict=True)
        ]
        ran = Program([*inputs, out], (64, 1, 1), [Store("out", at, make(*(Load(name, at) for name in names)))])
        (expected,) = backend.dispatch(ran, given, DispatchConfig(grid_override=(-(-len(rows) // 64), 1, 1)))
        part = 40 if functions else len(rows)
        found = b""
        for first in range(0, len(rows), part):
            some = rows[first : first + part]
            body = [Store("out", lit(k), make(*map(known, types, row))) for k, row in enumerate(some)]
            folded = Program([write_only("out", 0, result, len(some))], (1, 1, 1), body)
            found += bytes(backend.dispatch(folded, [], DispatchConfig(grid_override=(1, 1, 1)))[0])
        size = result.size
        for k, row in enumerate(rows):
            same = found[k * size : (k + 1) * size] == bytes(expected)[k * size : (k + 1) * size]
            assert same, f"{text} of {[*map(hex, row)]} of {t} folds to {found[k * size : (k + 1) * size].hex()}"


by_type = pytest.mark.parametrize("t", [f32, f64], ids=str)


@pytest.mark.check
@by_type
def test_operators_and_conversions_fold_to_what_runs(t):
    check("cpu", t, 4)


@pytest.mark.check
@by_type
def test_functions_fold_to_what_runs(t):
    check("cpu", t, 11, functions=True)


@pytest.mark.sweep
@by_type
@pytest.mark.parametrize("id", ["cpu", *IDS])
def test_operators_and_conversions_fold_to_what_runs_for_all_pairs(id, t):
    check(id, t, 1)
