"""The functions of f64 on every backend that has it: one table of edges, the reference's bits, and mpmath's values."""

import struct

import numpy as np
import pytest

import vyre
from vyre.backends.reference import run
from vyre.conform.programs.random import Case
from vyre.driver.contract.values import DispatchConfig
from vyre.foundation.ir.dtypes import f32, f64, i32
from vyre.foundation.ir.nodes import BinOp, Cast, InvocationId, Let, Load, Store, UnOp, Var, lit
from vyre.foundation.ir.ops import UnaryOp
from vyre.foundation.ir.program import Program, read, write_only
from vyre.foundation.meaning import mathlib

from ...support import cuda_host
from ...support.device_backends import IDS, lacking, open_or_skip
from ...support.doubles import arguments, ulps
from ...support.math_edges_f64 import EDGES
from ...support.tiers import first_quick

GID = InvocationId(0)
FUNCTIONS = {op.text: op for op in mathlib.functions(f64)}
POINTS, MEASURED, MANY = 1 << 10, 400, 1 << 18
PART = 16  # a program has only so many steps
by_name = pytest.mark.parametrize("name", first_quick(sorted(FUNCTIONS, key=lambda name: (name != "sin", name)), 1))


def call(name, *operands):
    op = FUNCTIONS[name]
    return (UnOp if isinstance(op, UnaryOp) else BinOp)(op, *operands)


def program(name):
    *operands, result = types(name)
    inputs = [read("xy"[k], k, t) for k, t in enumerate(operands)]
    body = [Store("z", GID, call(name, *(Load(b.name, GID) for b in inputs)))]
    return Program([*inputs, write_only("z", len(inputs), result)], (64, 1, 1), body)


def types(name):
    """Of the arguments and of the result."""
    return [i32 if isinstance(x, int) else f64 for x in EDGES[name][0]]


def numbers(output, name):
    return np.frombuffer(bytes(output), np.int32 if types(name)[-1] == i32 else np.float64)


def columns(name):
    """The arguments of all edges, by place."""
    given = list(zip(*EDGES[name], strict=True))[:-1]
    return [np.array(x, np.int32 if t == i32 else np.float64) for x, t in zip(given, types(name), strict=False)]


def bits(x):
    if isinstance(x, int):
        return struct.pack("<i", x)
    return struct.pack("<d", x) if x == x else struct.pack("<Q", 0x7FF8 << 48)


def shown(name, found):
    """Edges by their arguments, with the bits of the result."""
    words = numbers(found, name).view(np.uint32 if types(name)[-1] == i32 else np.uint64).tolist()
    return {repr(x): hex(y) for (*x, _), y in zip(EDGES[name], words, strict=True)}


def wanted(name):
    return shown(name, b"".join(bits(y) for *_, y in EDGES[name]))


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
def test_every_backend_with_f64_gives_the_edges_and_the_bits_of_the_reference(name, id):
    backend = open_or_skip(id)
    if f64 in lacking(backend):
        pytest.skip(f"{id} has no f64")
    both = zip(columns(name), arguments(FUNCTIONS[name], POINTS), strict=True)
    inputs = [np.concatenate(pair).tobytes() for pair in both]
    config = DispatchConfig(output_elements={"z": len(inputs[0]) // 8})
    (found,) = backend.dispatch(program(name), inputs, config)
    assert shown(name, bytes(found)[: types(name)[-1].size * len(EDGES[name])]) == wanted(name)
    (expected,) = open_or_skip("reference").dispatch(program(name), inputs, config)
    assert bytes(found) == bytes(expected)


@pytest.mark.sweep
@pytest.mark.parametrize("id", ["cpu", *IDS])
@by_name
def test_every_backend_with_f64_gives_the_bits_of_the_reference_for_many_arguments(name, id):
    backend = open_or_skip(id)
    if f64 in lacking(backend):
        pytest.skip(f"{id} has no f64")
    inputs = [x.tobytes() for x in arguments(FUNCTIONS[name], MANY)]
    config = DispatchConfig(output_elements={"z": MANY})
    (found,) = backend.dispatch(program(name), inputs, config)
    (expected,) = open_or_skip("reference").dispatch(program(name), inputs, config)
    assert bytes(found) == bytes(expected)


@by_name
def test_no_result_is_further_from_the_true_value_than_two_units_of_its_last_place(name):
    operands = arguments(FUNCTIONS[name], MEASURED)
    config = DispatchConfig(output_elements={"z": MEASURED})
    (found,) = open_or_skip("cpu").dispatch(program(name), [x.tobytes() for x in operands], config)
    rows = zip(*(x.tolist() for x in operands), strict=True)
    results = zip(rows, numbers(found, name).tolist(), strict=True)
    off = {row: error for row, y in results if (error := ulps(FUNCTIONS[name], row, y)) is not None}
    assert len(off) > MEASURED // 2
    worst = max(off, key=off.__getitem__)
    assert off[worst] <= 2, f"{name} of {worst} is {off[worst]:.2f} ulp off"


@pytest.mark.check
@by_name
def test_numbers_known_while_compiling_give_the_same_edges(name):
    values = [call(name, *(lit(x, t) for x, t in zip(given, types(name), strict=False))) for *given, _ in EDGES[name]]
    found = b""
    for first in range(0, len(values), PART):
        body = [Store("z", lit(k), value) for k, value in enumerate(values[first : first + PART])]
        folded = Program([write_only("z", 0, types(name)[-1], len(body))], (1, 1, 1), body)
        found += bytes(open_or_skip("cpu").dispatch(folded, [], DispatchConfig(grid_override=(1, 1, 1)))[0])
    assert shown(name, found) == wanted(name)


@pytest.mark.check
@by_name
def test_the_text_for_cuda_gives_the_edges(name, tmp_path):
    n = len(EDGES[name])
    case = Case(program(name), tuple(x.tobytes() for x in columns(name)), (-(-n // 64), 1, 1), {"z": n})
    (found,) = cuda_host.run_case(case, tmp_path)
    assert shown(name, found) == wanted(name)


def test_a_function_finds_the_type_of_its_operand_where_names_do_not_say_it():
    """Of one name in two scopes that is an f32 in one of them, and of a function of a function."""
    body = [
        Let("v", Load("x", GID)),
        Store("z", GID, UnOp(UnaryOp.LOG, UnOp(UnaryOp.EXP, Var("v")))),
        Let("w", Cast(f32, Var("v"))),
        Store("narrow", GID, UnOp(UnaryOp.EXP, Var("w"))),
    ]
    mixed = Program(
        [read("x", 0, f64, 1), write_only("z", 1, f64, 1), write_only("narrow", 2, f32, 1)], (1, 1, 1), body
    )
    for id in ("reference", "cpu"):
        wide, narrow = open_or_skip(id).dispatch(mixed, [struct.pack("<d", 0.7)], DispatchConfig())
        assert abs(struct.unpack("<d", wide)[0] - 0.7) < 1e-15
        assert struct.unpack("<f", narrow)[0] == np.float32(np.exp(np.float32(0.7)))


def test_kernels_say_functions_of_f64_and_wgpu_refuses_them():
    @vyre.kernel
    def k(x: vyre.In[vyre.f64], out: vyre.Out[vyre.f64]) -> None:
        out[vyre.gid.x] = vyre.log(vyre.exp(x[vyre.gid.x])) + 2.0 ** (0.0 * x[vyre.gid.x])

    x = np.array([0.25, -3.0])
    for id in ("reference", "cpu"):
        assert np.abs(k.on(id)(x) - x - 1).max() < 1e-15
    backend = open_or_skip("wgpu")
    with pytest.raises(vyre.VyreError, match="f64"):
        backend.dispatch(k.program, [x.tobytes()], DispatchConfig(output_elements={"out": 2}))


def test_a_function_that_f64_has_not_is_refused():
    found = vyre.validate(Program([read("x", 0, f64), write_only("z", 1, f64)], (1, 1, 1),
                                  [Store("z", GID, UnOp(UnaryOp.ERF, Load("x", GID)))]))  # fmt: skip
    assert any("operand of erf is f64" in str(finding) for finding in found)
