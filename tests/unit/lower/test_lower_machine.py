"""Flushes that lowering leaves out are still made by the machine, also behind a compiler that knows that x * 1 is x."""

import struct

import pytest

from vyre.backends.cpu import CpuBackend, Switches
from vyre.backends.cpu.devices import unavailable
from vyre.backends.reference import run
from vyre.driver.contract.values import DispatchConfig
from vyre.foundation.ir.dtypes import f32, u32
from vyre.foundation.ir.nodes import Assign, Bitcast, Cast, If, InvocationId, Let, Load, Loop, Store, Var, lit
from vyre.foundation.ir.program import Program, read, read_write

pytestmark = pytest.mark.skipif(unavailable() is not None, reason="this machine compiles no kernels")
I = InvocationId(0)  # noqa: E741
EDGES = (0, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800000, 0x807FFFFF)
STEPS = {
    "sum": lambda t, x: t + x,
    "product": lambda t, x: t * x,
    "difference": lambda t, x: x - t,
    "other difference": lambda t, x: t - x,
    "quotient": lambda t, x: x / t,
}


@pytest.fixture(scope="module")
def backend():
    return CpuBackend(threads=1)


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("first", [0.0, -0.0, 1.0, -1.0, 2.0])
@pytest.mark.parametrize("name", STEPS)
def test_the_first_turn_of_a_loop_flushes(name, first, turns, backend):
    """The first turn meets a constant, which is neutral for some steps: an optimiser then keeps the loaded value."""
    step = Assign("t", STEPS[name](Var("t"), Load("x", Var("k") + I)))
    body = [Let("t", lit(first)), Loop("k", lit(0), lit(turns), [step]), Store("f", I, Var("t"))]
    program = Program([read("x", 0, f32), read_write("f", 1, f32)], (4, 1, 1), body)
    inputs = (struct.pack(f"<{len(EDGES)}I", *EDGES), bytes(4 * 12))
    expected = run(program, inputs, grid=(3, 1, 1)).outputs
    found = backend.dispatch(program, inputs, DispatchConfig(grid_override=(3, 1, 1)))
    assert [bytes(o) for o in found] == [bytes(o) for o in expected]


KNOWN = {
    "bits": ((0x3F7FFFFF, 0x00800000), lambda w: Bitcast(f32, w), lambda x, y: x * y),
    "conversion": ((0xFFFFFF, 1 << 30), lambda w: Cast(f32, w), lambda x, y: x / y / y / y / y / y),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_branch_that_knows_an_integer_does_not_let_the_compiler_compute_with_its_number(name):
    """(2^24 - 1) * 2^-150 is tiny: zero here, and 2^-126 to a compiler that rounds as if subnormals were kept."""
    words, made, step = KNOWN[name]
    x, y = (Load("words", I + 4 * k) for k in range(2))
    store = Store("f", I, step(made(x), made(y)))
    body = [If(x.eq(lit(words[0])), [If(y.eq(lit(words[1])), [store])])]
    program = Program([read("words", 0, u32), read_write("f", 1, f32)], (4, 1, 1), body)
    inputs = (struct.pack("<8I", *(word for word in words for _ in range(4))), struct.pack("<4f", *[5.0] * 4))
    for switches in (Switches(), Switches(scalar=True)):
        (found,) = CpuBackend(switches, threads=1).dispatch(program, inputs, DispatchConfig(grid_override=(1, 1, 1)))
        assert bytes(found) == bytes(16)
