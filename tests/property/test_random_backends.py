"""Random programs on backends with a device of their own give the bytes of the reference, however they are dispatched;
so do lengths around every boundary, and operands for which machines have their own ideas.

VYRE_RANDOM_PROGRAMS is the number of random programs for each backend.
"""

import os
import random

import numpy as np
import pytest

from vyre import errors
from vyre.backends.reference import run
from vyre.conform.programs.divergent import lane_program
from vyre.conform.programs.random import Case, random_program
from vyre.conform.programs.random_values import edge_bits, random_bytes
from vyre.driver.contract.values import DispatchConfig
from vyre.driver.guard import compile as pipelines
from vyre.driver.guard.backend import guarded
from vyre.foundation.check.typing import infer
from vyre.foundation.ir.dtypes import BY_NAME, can_cast, f32, i32, u32
from vyre.foundation.ir.nodes import (
    Atomic,
    BinOp,
    Bitcast,
    BufLen,
    Cast,
    Fma,
    If,
    InvocationId,
    Let,
    Lit,
    Load,
    Store,
    UnOp,
    lit,
)
from vyre.foundation.ir.ops import AtomicOp, BinaryOp, UnaryOp
from vyre.foundation.ir.program import Program, read, read_write, write_only
from vyre.foundation.ir.visit import children, rewrite_expr

from ..support.device_backends import IDS, VARIANTS, lacking, open_or_skip, variant

pytestmark = pytest.mark.check

GID = InvocationId(0)
PROGRAMS = int(os.environ.get("VYRE_RANDOM_PROGRAMS", "200"))
BLOCKS = 10
WAYS = ("dispatch", "pipeline", "again", "async", "into")
SIZES = (0, 1, 31, 32, 33, 255, 256, 257, 1024, 65_537)


@pytest.fixture(scope="module", params=IDS)
def backend(request):
    opened = guarded(open_or_skip(request.param))
    yield opened
    opened.shutdown()


def results(backend, case, config, way, expected):
    """The bytes of all outputs, dispatched in one of several ways."""
    if way == "dispatch":
        found = backend.dispatch(case.program, case.inputs, config)
    else:
        pipeline = pipelines.compile(backend, case.program, config)
        if way == "async":
            first, second = (pipeline.dispatch_async(case.inputs) for _ in range(2))
            found = second.result()
            assert [bytes(o) for o in first.result()] == [bytes(o) for o in found]
        elif way == "into":
            targets = [bytearray(b"\xa5" * len(e)) for e in expected]
            for _ in range(2):
                found = pipeline.dispatch(case.inputs, out=targets)
        else:
            for _ in range(3 if way == "again" else 1):
                found = pipeline.dispatch(case.inputs)
    return [bytes(o) for o in found]


def outcome(work):
    """What a dispatch gives, or which trap it ends in."""
    try:
        return work()
    except errors.Trap as e:
        return e.context["tag"], e.context["address"], e.context["invocation"]


def reference(case):
    return outcome(lambda: run(case.program, case.inputs, grid=case.grid, output_elements=case.output_elements).outputs)


def agrees(backend, case, rng, what, ways=(), timeouts=(None, None, 60.0)):
    """Whether it ran; with limits of the device that the program breaks, it does not."""
    expected = reference(case)
    for way in ways or [rng.choice(WAYS)]:
        config = DispatchConfig(
            grid_override=case.grid, output_elements=case.output_elements, timeout=rng.choice(timeouts)
        )
        way = "dispatch" if isinstance(expected, tuple) else way
        try:
            found = outcome(lambda c=config, w=way: results(backend, case, c, w, expected))
        except errors.UnsupportedFeature as e:
            if e.context.get("name", "limits") != "limits":  # such as a type: then the generator is wrong
                raise
            return False
        assert found == expected, f"{what}, {way}, grid {case.grid}, {difference(found, expected)}:\n{case.program}"
    return True


def difference(found, expected):
    """Where outputs begin to differ."""
    if not isinstance(found, list) or not isinstance(expected, list):
        return f"{found if isinstance(found, tuple) else 'no trap'} for {expected}"
    for k, (f, e) in enumerate(zip(found, expected, strict=True)):
        if f != e:
            at = next((i for i, (x, y) in enumerate(zip(f, e, strict=False)) if x != y), min(len(f), len(e)))
            here = slice(at - at % 8, at - at % 8 + 16)
            return f"output {k} of {len(e)} bytes from byte {at}: {f[here].hex()} for {e[here].hex()}"
    return "nothing"


def kinds(rng, seed, without):
    """Every kind of random program in turn."""
    match seed % 5:
        case 0 | 1:
            return lane_program(rng, trap=seed % 10 == 0, without=without)
        case 2:
            return random_program(rng, endless=False, without=without)
        case 3:
            return random_program(rng, functions=True, endless=False, without=without)
        case _:
            return random_program(rng, grid_barriers=True, endless=False, without=without)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_programs(backend, block):
    ran = 0
    seeds = range(block, PROGRAMS, BLOCKS)
    for seed in seeds:
        rng = random.Random(1_000_000 + seed)
        ran += agrees(backend, kinds(rng, seed // BLOCKS, lacking(backend)), rng, f"seed {seed}")
    assert ran >= 0.9 * len(seeds), "a device that refuses programs of a thousand invocations proves little"


@pytest.mark.parametrize("id, name", [(id, name) for id in IDS for name in VARIANTS[id]])
def test_random_programs_compiled_in_another_way(id, name, monkeypatch):
    backend = guarded(variant(id, name, monkeypatch))
    for seed in range(PROGRAMS // 20):
        rng = random.Random(2_000_000 + seed)
        agrees(backend, kinds(rng, seed, lacking(backend)), rng, f"seed {seed} with {name}")
    backend.shutdown()


# ---- lengths --------------------------------------------------------------------------------------------------------


def elementwise(t):
    """y[i] = f(x[i]) as far as both go."""
    x = Load("x", GID)
    value = Cast(t, Cast(u32, x) * 3 + 1) if t.is_narrow and t.is_int else x + x
    return Program(
        [read("x", 0, t), write_only("y", 1, t)], (64, 1, 1), [If(BufLen("y") > GID, (Store("y", GID, value),))]
    )


def backwards(t):
    """Into memory that holds something, from the other end; the last workgroup reaches too far."""
    return Program(
        [read("x", 0, t), read_write("y", 1, t)], (64, 1, 1), [Store("y", BufLen("y") - 1 - GID, Load("x", GID))]
    )


def counted(t):
    bin = BinOp(BinaryOp.BIT_AND, Load("x", GID), lit(15))
    body = If(BufLen("x") > GID, (Let("old", Atomic(AtomicOp.ADD, "y", bin, lit(1))),))
    return Program([read("x", 0, u32), read_write("y", 1, u32, 16)], (64, 1, 1), [body])


NAMES = ("u32", "f32", "u8", "i16", "f16", "bf16", "u64")


@pytest.mark.parametrize("make, name", [*((m, n) for m in (elementwise, backwards) for n in NAMES), (counted, "u32")])
def test_every_length(backend, make, name):
    t = BY_NAME[name]
    if t in lacking(backend):
        pytest.skip(f"no {t} here")
    program = make(t)
    rng = random.Random(name)
    for n in SIZES:
        data = np.random.default_rng(n).bytes(n * t.size)
        inputs = (data,)
        if make is not elementwise:
            inputs += (bytes(64) if make is counted else bytes(reversed(data)),)
        case = Case(program, inputs, (max(1, -(-n // 64)), 1, 1), {"y": n} if make is elementwise else {})
        assert agrees(backend, case, rng, f"{n} elements", WAYS if n < 2000 else WAYS[:2])


# ---- operands for which machines have their own ideas ---------------------------------------------------------------

TYPES = ("u32", "i32", "u64", "i64", "f32", "f64", "f16", "bf16", "u8", "i8", "u16", "i16", "bool")
AMOUNTS = (0, 1, 31, 32, 40, 63, 64, 0x80000000, 0xFFFFFFFF)
FUNCTIONS = [op for op in UnaryOp if op.is_function]
OF_TWO = [op for op in BinaryOp if op.is_function]
A, B = Load("a", GID), Load("b", GID)


def typed(t, values):
    """(type, value) of those that exist for operands of this type."""
    elements = {"a": t, "b": t, "n": u32}
    for value in values:
        operands = tuple(elements[o.buffer] for o in children(value))
        dtype, wrong = infer(value, operands, {}, elements)
        if dtype is not None and not wrong:
            yield dtype, value


def operators(t):
    """Every operator with operands of the type; a divisor may be 0 and -1, a shift count too large."""
    values = [BinOp(op, A, Load("n", GID) if op.rule == "shift" else B) for op in BinaryOp if op not in OF_TWO]
    values += [UnOp(op, A) for op in UnaryOp if op not in FUNCTIONS]
    values += [Bitcast(other, A) for other in (u32, i32, f32)]
    values += [Fma(A, B, B), Fma(B, A, A)]
    return typed(t, values)


def casts(t):
    """To every type; a float may be infinite or no number at all."""
    return [(BY_NAME[name], Cast(BY_NAME[name], A)) for name in TYPES if can_cast(t, BY_NAME[name])]


def with_edges(t, values):
    """A program that stores every value, in a buffer for each type, on edges crossed with edges."""
    pairs = [(x, y) for x in edge_bits(t) for y in edge_bits(t)]
    n = len(pairs)
    inputs = [packed(t, column) for column in zip(*pairs, strict=True)]
    inputs.append(packed(u32, [AMOUNTS[k % len(AMOUNTS)] for k in range(n)]))
    stores, counts = [], {}
    for dtype, value in values:
        stores.append(Store(f"to_{dtype}", GID + n * counts.get(dtype, 0), value))
        counts[dtype] = counts.get(dtype, 0) + 1
    buffers = [read("a", 0, t, n), read("b", 1, t, n), read("n", 2, u32, n)]
    buffers += [write_only(f"to_{v}", 3 + k, v, counts[v] * n) for k, v in enumerate(counts)]
    program = Program(buffers, (64, 1, 1), [If(n > GID, tuple(stores))])
    return Case(program, tuple(inputs), (-(-n // 64), 1, 1), {})


def packed(t, bits):
    return b"".join(b.to_bytes(t.size, "little") for b in bits)


@pytest.mark.parametrize("name", TYPES)
def test_every_operator_on_edges(backend, name):
    t = BY_NAME[name]
    if t in lacking(backend):
        pytest.skip(f"no {t} here")
    assert agrees(backend, with_edges(t, operators(t)), random.Random(name), f"operators of {t}", ("dispatch",))


@pytest.mark.parametrize("name", TYPES)
def test_every_cast_on_edges(backend, name):
    t = BY_NAME[name]
    if t in lacking(backend):
        pytest.skip(f"no {t} here")
    found = [(target, value) for target, value in casts(t) if target not in lacking(backend)]
    for part in (found[:5], found[5:]):  # few devices bind more buffers than eight
        assert agrees(backend, with_edges(t, part), random.Random(name), f"casts of {t}", ("dispatch",))


@pytest.mark.parametrize("op", [*FUNCTIONS, *OF_TWO], ids=lambda op: op.text)
def test_every_function_of_the_math_library_on_edges(backend, op):
    of_two = BinOp(op, A, Cast(i32, B) if op.rule == "scale" else B) if op in OF_TWO else None
    values = [of_two] if of_two is not None else [UnOp(op, A), UnOp(op, A * B)]
    case = with_edges(f32, [(i32 if op.rule == "exponent" else f32, value) for value in values])
    assert agrees(backend, case, random.Random(op.text), op.text, ("dispatch",))


WILD = (0, 5, 9, 10, 11, 0x7FFFFFFF, 0x80000000, 0x40000000, 0xC0000001, 0xFFFFFFF6, 0xFFFFFFFF)


@pytest.mark.parametrize("name", ["u32", "f32", "u8", "i16", "f16", "u64", "bool"])
def test_an_index_may_be_anything(backend, name):
    """Loads give 0, stores are dropped, atomics return 0; neighbours keep their bytes."""
    t = BY_NAME[name]
    n = 10
    at = Load("at", GID)
    body = [
        Store("loaded", GID, Load("x", at)),
        Store("stored", at, Load("x", GID % n)),
        Let("old", Atomic(AtomicOp.ADD, "cells", at, lit(7))),
        Store("seen", GID, Load("cells", GID + n) + at),
    ]
    buffers = [read("x", 0, t), read("at", 1, u32), write_only("loaded", 2, t, len(WILD)), read_write("stored", 3, t),
               read_write("cells", 4, u32), write_only("seen", 5, u32, len(WILD))]  # fmt: skip
    data = random_bytes(random.Random(name), t, n)
    inputs = (data, packed(u32, WILD), data[::-1] if t.size == 1 else data, packed(u32, range(n)))
    case = Case(Program(buffers, (len(WILD), 1, 1), body), inputs, (1, 1, 1), {})
    assert agrees(backend, case, random.Random(name), f"wild indices of {t}", WAYS)


@pytest.mark.parametrize("name", ["u32", "u8", "f16"])
@pytest.mark.parametrize("length, groups", [(1000, 4), (1000, 16), (1021, 16), (4097, 3)])
def test_outputs_are_zero_where_nobody_stores_whatever_their_memory_held(backend, name, length, groups):
    t = BY_NAME[name]
    rubbish = Cast(t, lit(0xA5A5)) if t.is_int else lit(-5.5, t)
    fill = Program([write_only("y", 0, t)], (64, 1, 1), [Store("y", GID, rubbish)])
    third = Program([write_only("y", 0, t)], (64, 1, 1), [If((GID % 3).eq(1), (Store("y", GID, rubbish),))])
    short = Program([write_only("y", 0, t)], (64, 1, 1), [Store("y", GID, rubbish)])
    rng = random.Random(length)
    for way in WAYS:
        for program, grid in ((fill, 80), (third, groups), (fill, 80), (short, groups)):
            assert agrees(backend, Case(program, (), (grid, 1, 1), {"y": length}), rng, "pooled memory", (way,))


# ---- what a compiler computes instead of the device -----------------------------------------------------------------


def with_literals(t, values, rng):
    """Every value on literals, which a compiler that is left to itself computes by rules of its own."""
    edges = edge_bits(t)
    stores, counts = [], {}
    for dtype, value in values:
        divides = isinstance(value, BinOp) and value.op in (BinaryOp.DIV, BinaryOp.MOD)
        for _ in range(12):
            a, b = rng.choice(edges), rng.choice(edges[1:] if divides else edges)  # the first is zero
            known = {"a": literal(t, a), "b": literal(t, b), "n": lit(rng.choice(AMOUNTS))}
            given = rewrite_expr(value, lambda e, known=known: known[e.buffer] if isinstance(e, Load) else e)
            stores.append(Store(f"to_{dtype}", lit(counts.get(dtype, 0)), given))
            counts[dtype] = counts.get(dtype, 0) + 1
    buffers = [write_only(f"to_{v}", k, v, counts[v]) for k, v in enumerate(counts)]
    return Case(Program(buffers, (1, 1, 1), stores), (), (1, 1, 1), {})


def literal(t, bits):
    return Bitcast(f32, lit(bits)) if t == f32 else Lit(t, bits)


@pytest.mark.parametrize("name", ["u32", "i32", "f32", "u64", "i64", "f64"])
@pytest.mark.parametrize("id", IDS)
def test_every_operator_on_literals_that_nobody_folds(id, name, monkeypatch):
    backend = guarded(variant(id, "no improvements", monkeypatch))
    t, rng = BY_NAME[name], random.Random(name)
    if t in lacking(backend):
        pytest.skip(f"no {t} here")
    case = with_literals(t, operators(t), rng)
    for timeout in (None, 60.0):
        assert agrees(backend, case, rng, f"literals of {t}", ("dispatch",), (timeout,))
    backend.shutdown()
