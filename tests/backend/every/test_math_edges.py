"""The functions of the math library on every backend: one table of edges, and the reference's bits elsewhere."""

import numpy as np
import pytest

import vyre
from vyre.backends.reference import run
from vyre.conform.programs.random import Case
from vyre.conform.values.ulps import arguments
from vyre.driver.contract.values import DispatchConfig
from vyre.foundation.formats.parse import parse_program
from vyre.foundation.ir.dtypes import extension_id, f32, i32
from vyre.foundation.ir.nodes import BinOp, InvocationId, Load, Store, UnOp, lit
from vyre.foundation.ir.ops import BinaryOp, UnaryOp
from vyre.foundation.ir.program import Program, read, write_only
from vyre.foundation.ir.rounding import f32_to_bits
from vyre.foundation.meaning import mathlib

from ...support import cuda_host
from ...support.device_backends import IDS, open_or_skip
from ...support.math_edges import EDGES
from ...support.tiers import first_quick

GID = InvocationId(0)
FUNCTIONS = {op.text: op for op in mathlib.functions()}
POINTS, MANY = 1 << 12, 1 << 20
PART = 32  # a program has only so many steps
by_name = pytest.mark.parametrize("name", sorted(FUNCTIONS))


def call(name, *operands):
    op = FUNCTIONS[name]
    return (UnOp if isinstance(op, UnaryOp) else BinOp)(op, *operands)


def types(name):
    """Of the arguments and of the result."""
    return [i32 if isinstance(x, int) else f32 for x in EDGES[name][0]]


def program(name):
    *operands, result = types(name)
    inputs = [read("xy"[k], k, t) for k, t in enumerate(operands)]
    body = [Store("z", GID, call(name, *(Load(b.name, GID) for b in inputs)))]
    return Program([*inputs, write_only("z", len(inputs), result)], (64, 1, 1), body)


def columns(name):
    """The arguments of all edges, by place."""
    given = list(zip(*EDGES[name], strict=True))[:-1]
    return [np.array(x, np.int32 if t == i32 else np.float32) for x, t in zip(given, types(name), strict=False)]


def shown(name, found):
    """Edges by their arguments, with the bits of the result."""
    bits = np.frombuffer(found, np.uint32).tolist()
    return {repr(x): hex(y) for (*x, _), y in zip(EDGES[name], bits, strict=True)}


def wanted(name):
    bits = [y % 2**32 if isinstance(y, int) else f32_to_bits(float(np.float32(y))) for *_, y in EDGES[name]]
    return shown(name, np.array(bits, np.uint32).tobytes())


def test_every_function_has_edges():
    assert set(EDGES) == set(FUNCTIONS)


@pytest.mark.parametrize("engine", ["numpy", "scalar"])
@by_name
def test_both_engines_of_the_reference_give_the_edges(name, engine):
    n = len(EDGES[name])
    inputs = [x.tobytes() for x in columns(name)]
    found = run(program(name), inputs, grid=(-(-n // 64), 1, 1), output_elements={"z": n}, engine=engine)
    assert shown(name, found.outputs[0]) == wanted(name)


@pytest.mark.parametrize("id", ["cpu", *IDS])
@by_name
def test_every_backend_gives_the_edges_and_the_bits_of_the_reference(name, id):
    both = zip(columns(name), arguments(FUNCTIONS[name], POINTS), strict=True)
    inputs = [np.concatenate(pair).tobytes() for pair in both]
    config = DispatchConfig(output_elements={"z": len(inputs[0]) // 4})
    (found,) = open_or_skip(id).dispatch(program(name), inputs, config)
    edges = 4 * len(EDGES[name])
    assert shown(name, bytes(found)[:edges]) == wanted(name)
    (expected,) = open_or_skip("reference").dispatch(program(name), inputs, config)
    assert bytes(found) == bytes(expected)


@pytest.mark.sweep
@pytest.mark.parametrize("id", ["cpu", *IDS])
@by_name
def test_every_backend_gives_the_bits_of_the_reference_for_many_arguments(name, id):
    inputs = [x.tobytes() for x in arguments(FUNCTIONS[name], MANY, 1)]
    config = DispatchConfig(output_elements={"z": MANY})
    (found,) = open_or_skip(id).dispatch(program(name), inputs, config)
    (expected,) = open_or_skip("reference").dispatch(program(name), inputs, config)
    assert bytes(found) == bytes(expected)


@pytest.mark.parametrize("id", first_quick(["cpu", *IDS], 1))
@by_name
def test_numbers_known_while_compiling_give_the_same_edges(name, id):
    backend = open_or_skip(id)
    values = [call(name, *(lit(x, t) for x, t in zip(given, types(name), strict=False))) for *given, _ in EDGES[name]]
    found = b""
    for first in range(0, len(values), PART):
        body = [Store("z", lit(k), value) for k, value in enumerate(values[first : first + PART])]
        folded = Program([write_only("z", 0, types(name)[-1], len(body))], (1, 1, 1), body)
        found += bytes(backend.dispatch(folded, [], DispatchConfig(grid_override=(1, 1, 1)))[0])
    assert shown(name, found) == wanted(name)


@pytest.mark.check
@by_name
def test_the_text_for_cuda_gives_the_edges(name, tmp_path):
    n = len(EDGES[name])
    case = Case(program(name), tuple(x.tobytes() for x in columns(name)), (-(-n // 64), 1, 1), {"z": n})
    (found,) = cuda_host.run_case(case, tmp_path)
    assert shown(name, found) == wanted(name)


@pytest.mark.parametrize("id", ["reference", "cpu"])
def test_kernels_and_generators_say_functions_of_two_by_name_and_power_by_its_operator(id):
    @vyre.kernel
    def named(x: vyre.In[vyre.f32], y: vyre.In[vyre.f32], out: vyre.Out[vyre.f32, 6]) -> None:
        out[0] = x[0] ** y[0]
        out[1] = vyre.pow(x[0], 2)
        out[2] = 2 ** x[0]
        out[3] = vyre.atan2(y[0], x[0])
        length = vyre.hypot(x[0], y[0])
        length **= 2
        out[4] = length
        out[5] = vyre.pow(2, 10)

    found = named.on(id)(np.array([3.0], np.float32), np.array([4.0], np.float32), domain=1)
    assert found.tolist() == [81.0, 9.0, 8.0, float(np.float32(np.arctan2(4, 3))), 25.0, 1024.0]
    x, y = Load("x", GID, dtype=f32), Load("y", GID, dtype=f32)
    assert vyre.pow(x, y) == x**y == BinOp(BinaryOp.POW, x, y)
    assert 2**x == BinOp(BinaryOp.POW, lit(2.0), x)
    assert vyre.atan2(y, 1.0) == BinOp(BinaryOp.ATAN2, y, lit(1.0))


@pytest.mark.parametrize("id", ["reference", "cpu"])
def test_kernels_and_generators_say_exact_functions_by_name_and_remainder_by_its_operator(id):
    @vyre.kernel
    def named(x: vyre.In[vyre.f32], n: vyre.In[vyre.i32], out: vyre.Out[vyre.f32, 8]) -> None:
        out[0] = x[0] % 2.0
        out[1] = vyre.fmod(x[0], -2)
        out[2] = vyre.remainder(x[0], 2)
        out[3] = vyre.ldexp(x[0], n[0])
        out[4] = vyre.ldexp(vyre.frexp_mantissa(x[0]), vyre.frexp_exponent(x[0]))
        out[5] = vyre.nextafter(x[0], 0)
        out[6] = 7.5 % 2 + vyre.ldexp(1, -3)
        rest = x[0]
        rest %= 1
        out[7] = rest

    found = named.on(id)(np.array([-5.5], np.float32), np.array([3], np.int32), domain=1)
    assert found.tolist() == [-1.5, -1.5, 0.5, -44.0, -5.5, -5.4999995231628418, 1.625, -0.5]
    x, n = Load("x", GID, dtype=f32), Load("n", GID, dtype=i32)
    assert x % 2 == vyre.fmod(x, 2.0) == BinOp(BinaryOp.FMOD, x, lit(2.0))
    assert 2 % x == BinOp(BinaryOp.FMOD, lit(2.0), x)
    assert vyre.ldexp(x, 3) == BinOp(BinaryOp.LDEXP, x, lit(3, i32))
    assert vyre.ldexp(x, n) == BinOp(BinaryOp.LDEXP, x, n)


@by_name
def test_the_wire_carries_functions_that_came_later_as_extensions(name):
    op = FUNCTIONS[name]
    blob = program(name).to_wire()
    assert Program.from_wire(blob) == program(name)
    assert parse_program(str(program(name))) == program(name)
    if op.tag > 0xFF:
        assert op.tag == extension_id(f"vyre.py.{name}")
        assert op.tag.to_bytes(4, "little") in blob
