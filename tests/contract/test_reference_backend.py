"""What the reference backend is beside being a backend."""

import subprocess
import sys
import threading

import pytest

import vyre
from vyre.backends.reference import REGISTRATION, ReferenceBackend
from vyre.driver.contract.values import DispatchConfig
from vyre.driver.plan.outputs import OutputSlot
from vyre.errors import Trap
from vyre.foundation.ir.dtypes import u32
from vyre.foundation.ir.nodes import IndirectDispatch, InvocationId, Load, Store, lit
from vyre.foundation.ir.program import Program, read_write, write_only

from .programs import ADD, COUNT, TRAP, unwords, words


def test_its_record_says_that_it_is_an_oracle():
    assert (REGISTRATION.id, REGISTRATION.precedence, REGISTRATION.kind) == ("reference", 900, "oracle")
    assert REGISTRATION.unavailable() is None
    assert [(d.index, d.name, d.emulated) for d in REGISTRATION.devices()] == [(0, "Python interpreter", False)]
    opened = REGISTRATION.open()
    assert isinstance(opened, ReferenceBackend)
    assert opened.version == vyre.__version__
    assert vyre.acquire("reference:0").id == "reference"


def test_its_record_loads_neither_numpy_nor_the_engines():
    code = (
        "import sys; from vyre.backends.reference import REGISTRATION; REGISTRATION.unavailable(); "
        "REGISTRATION.devices(); print([m for m in sys.modules if m.startswith('numpy') or 'engine' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_thread_starts_with_the_first_asynchronous_dispatch_and_ends_with_the_backend():
    def threads():
        return [t for t in threading.enumerate() if t.name.startswith("vyre-reference")]

    others = threads()
    backend = ReferenceBackend()
    backend.prepare()
    backend.dispatch(COUNT, [words(1)])
    assert threads() == others
    backend.dispatch_async(COUNT, [words(1)])
    assert len(threads()) == len(others) + 1
    backend.shutdown()
    assert threads() == others


def test_it_counts_its_dispatches():
    backend = ReferenceBackend()
    backend.dispatch(COUNT, [words(1)])
    backend.dispatch_async(COUNT, [words(1)]).result()
    assert backend.metrics() == {"dispatches": 2, "async_dispatches": 1}


def test_flush_leaves_failures_to_whoever_holds_the_handle():
    backend = ReferenceBackend()
    pending = backend.dispatch_async(TRAP, [words(0)])
    backend.flush()
    with pytest.raises(Trap):
        pending.result()


def test_an_iteration_may_change_the_grid_of_the_next():
    program = Program(
        [read_write("grid", 0, u32), read_write("n", 1, u32)],
        (1, 1, 1),
        [
            IndirectDispatch("grid", 0),
            Store("n", InvocationId(0), Load("n", InvocationId(0)) + lit(1)),
            Store("grid", lit(0), lit(3)),
        ],
    )
    config = DispatchConfig(fixpoint_iterations=2)
    grid, n = ReferenceBackend().dispatch(program, [words(1, 1, 1), words(0, 0, 0, 0)], config)
    assert (unwords(grid), unwords(n)) == ([3, 1, 1], [2, 1, 1, 0])


def test_outputs_of_the_program_alone_carry_over_between_iterations():
    program = Program([write_only("out", 0, u32, 2)], (1, 1, 1), [Store("out", lit(0), lit(7))])
    assert ReferenceBackend().dispatch(program, [], DispatchConfig(fixpoint_iterations=3)) == [words(7, 0)]


def test_slots_take_outputs_of_any_length():
    backend, slot = ReferenceBackend(), OutputSlot(16)
    for length in (4, 2, 8):
        data = [words(*range(length))] * 2
        config = DispatchConfig(output_elements={"out": length})
        (same,) = backend.dispatch(ADD, data, config, out=[slot])
        assert same is slot
        assert unwords(bytes(slot)) == [2 * k for k in range(length)]
