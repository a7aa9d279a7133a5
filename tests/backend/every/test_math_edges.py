"""The functions of the math library on every backend: one table of edges, and the reference's bits elsewhere."""

import numpy as np
import pytest

from vyre.backends.reference import run
from vyre.conform.programs.random import Case
from vyre.conform.values.ulps import points
from vyre.driver.contract.values import DispatchConfig
from vyre.foundation.ir.dtypes import f32
from vyre.foundation.ir.nodes import InvocationId, Load, Store, UnOp, lit
from vyre.foundation.ir.program import Program, read, write_only
from vyre.foundation.ir.rounding import f32_to_bits
from vyre.foundation.meaning import mathlib

from ...support import cuda_host
from ...support.device_backends import IDS, open_or_skip
from ...support.math_edges import EDGES

GID = InvocationId(0)
FUNCTIONS = {op.text: op for op in mathlib.functions()}
POINTS = 1 << 12
by_name = pytest.mark.parametrize("name", sorted(FUNCTIONS))


def program(name):
    body = [Store("y", GID, UnOp(FUNCTIONS[name], Load("x", GID)))]
    return Program([read("x", 0, f32), write_only("y", 1, f32)], (64, 1, 1), body)


def arguments(name):
    return np.array([x for x, _ in EDGES[name]], np.float32)


def shown(name, found):
    """Edges by their argument, with the bits of the result."""
    return {repr(x): hex(y) for (x, _), y in zip(EDGES[name], np.frombuffer(found, np.uint32).tolist(), strict=True)}


def wanted(name):
    return shown(name, np.array([f32_to_bits(float(np.float32(y))) for _, y in EDGES[name]], np.uint32).tobytes())


def test_every_function_has_edges():
    assert set(EDGES) == set(FUNCTIONS)


@pytest.mark.parametrize("engine", ["numpy", "scalar"])
@by_name
def test_both_engines_of_the_reference_give_the_edges(name, engine):
    x = arguments(name)
    grid = (-(-len(x) // 64), 1, 1)
    found = run(program(name), [x.tobytes()], grid=grid, output_elements={"y": len(x)}, engine=engine)
    assert shown(name, found.outputs[0]) == wanted(name)


@pytest.mark.parametrize("id", ["cpu", *IDS])
@by_name
def test_every_backend_gives_the_edges_and_the_bits_of_the_reference(name, id):
    x = np.concatenate([arguments(name), points(FUNCTIONS[name], POINTS)])
    config = DispatchConfig(output_elements={"y": len(x)})
    (found,) = open_or_skip(id).dispatch(program(name), [x.tobytes()], config)
    edges = 4 * len(EDGES[name])
    assert shown(name, bytes(found)[:edges]) == wanted(name)
    (expected,) = open_or_skip("reference").dispatch(program(name), [x.tobytes()], config)
    assert bytes(found) == bytes(expected)


@pytest.mark.parametrize("id", ["cpu", *IDS])
@by_name
def test_numbers_known_while_compiling_give_the_same_edges(name, id):
    values = [UnOp(FUNCTIONS[name], lit(x)) for x, _ in EDGES[name]]
    body = [Store("y", lit(k), value) for k, value in enumerate(values)]
    folded = Program([write_only("y", 0, f32, len(values))], (1, 1, 1), body)
    (found,) = open_or_skip(id).dispatch(folded, [], DispatchConfig(grid_override=(1, 1, 1)))
    assert shown(name, bytes(found)) == wanted(name)


@by_name
def test_the_text_for_cuda_gives_the_edges(name, tmp_path):
    x = arguments(name)
    case = Case(program(name), (x.tobytes(),), (-(-len(x) // 64), 1, 1), {"y": len(x)})
    (found,) = cuda_host.run_case(case, tmp_path)
    assert shown(name, found) == wanted(name)
