"""`Kernel.of_program`: a program that came from a file or a network is called like a kernel."""

import numpy as np
import pytest

import vyre
from vyre.foundation.ir.dtypes import u32
from vyre.foundation.ir.nodes import InvocationId, Load, Store, lit
from vyre.foundation.ir.program import Access, BufferDecl, Program, output, read, read_write, uniform, write_only

from ...support.device_backends import IDS, registration_or_skip

U32 = np.uint32


def add_program(*extra: BufferDecl) -> Program:
    """out[i] = x[i] + by, and acc[i] = x[i] at the same place."""
    i = InvocationId(0)
    x = Load("x", i, dtype=u32)
    return Program(
        [read("x", 0, u32), uniform("by", 1, u32, 1), write_only("out", 2, u32), read_write("acc", 3, u32), *extra],
        (64, 1, 1),
        [Store("out", i, x + Load("by", lit(0), dtype=u32)), Store("acc", i, x)],
    )


@pytest.fixture
def adds():
    return vyre.Kernel.of_program(add_program(), "adds")


def test_buffers_are_parameters_in_slot_order(adds):
    assert [(p.name, p.role) for p in adds.params] == [
        ("x", "in"),
        ("by", "scalar"),
        ("out", "out"),
        ("acc", "inout"),
    ]
    assert (adds.__name__, adds.workgroup) == ("adds", (64, 1, 1))
    assert adds.program == add_program()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_call_is_that_of_a_kernel(adds, backend):
    x, acc = np.arange(100, dtype=U32), np.full(100, 9, U32)
    out, changed = adds.on(backend)(x, 5, acc)
    assert np.array_equal(out, x + 5)
    assert changed is acc
    assert np.array_equal(acc, x)


def test_arguments_are_checked_as_those_of_a_kernel(adds):
    x = np.zeros(3, U32)
    with pytest.raises(vyre.ArgumentTypeError, match="adds needs acc"):
        adds(x, 5)
    with pytest.raises(vyre.ArgumentTypeError, match="x holds int64"):
        adds(x.astype(np.int64), 5, x)


def test_the_part_of_a_buffer_that_comes_back_is_the_result():
    i = InvocationId(0)
    part = BufferDecl("out", 0, Access.READ_WRITE, u32, 8, is_output=True, live_out=True, output_byte_range=(8, 20))
    kernel = vyre.Kernel.of_program(Program([part], (8, 1, 1), [Store("out", i, i)]))
    assert kernel.on("reference")(grid=1).tolist() == [2, 3, 4]


@pytest.mark.parametrize("backend", ["cpu", *IDS])
def test_the_part_of_a_buffer_that_comes_back_is_the_result_over_device_arrays_too(backend):
    registration_or_skip(backend)
    i = InvocationId(0)
    part = BufferDecl("out", 0, Access.READ_WRITE, u32, 8, is_output=True, live_out=True, output_byte_range=(8, 20))
    program = Program([part, read("x", 1, u32)], (8, 1, 1), [Store("out", i, Load("x", i, dtype=u32) + i)])
    kernel, x = vyre.Kernel.of_program(program).on(backend), np.arange(8, dtype=U32)
    there = vyre.to_device(x, backend)
    for _ in range(2):
        made, given, host = kernel(there), vyre.to_device(np.zeros(3, U32), backend), np.zeros(3, U32)
        assert made.numpy().tolist() == [4, 6, 8]
        assert kernel(there, out=given) is given
        assert given.numpy().tolist() == kernel(x, out=given).numpy().tolist() == [4, 6, 8]
        assert kernel(there, out=host) is host
        assert host.tolist() == [4, 6, 8]
    with pytest.raises(vyre.UnsupportedFeature, match=r"gives back a part of a buffer.*Fix: call it outside"):
        vyre.sequence(lambda x: kernel(x)).on(backend)(there)


def test_a_part_that_is_no_array_is_refused():
    part = BufferDecl("out", 0, Access.READ_WRITE, u32, 8, is_output=True, live_out=True, output_byte_range=(0, 6))
    both = BufferDecl("both", 0, Access.READ_WRITE, u32, 8, output_byte_range=(0, 8))
    for buffer in (part, both):
        with pytest.raises(vyre.ArgumentValueError, match=r"gives back a part of itself .* Fix: dispatch the program"):
            vyre.Kernel.of_program(Program([buffer], (8, 1, 1), []))


def test_a_uniform_of_several_elements_is_an_array():
    i = InvocationId(0)
    table = uniform("table", 0, u32, 4)
    kernel = vyre.Kernel.of_program(
        Program([table, output("out", 1, u32, 4)], (4, 1, 1), [Store("out", i, Load("table", i, dtype=u32))])
    )
    assert [p.role for p in kernel.params] == ["uniform", "out"]
    assert kernel.on("reference")(np.arange(4, dtype=U32)).tolist() == [0, 1, 2, 3]


def test_a_buffer_named_like_a_keyword_of_calls_is_refused():
    with pytest.raises(vyre.ArgumentValueError, match=r"named grid, a keyword .* Fix: rename the buffer"):
        vyre.Kernel.of_program(add_program(read("grid", 4, u32)))


def test_an_invalid_program_is_said_by_the_call():
    kernel = vyre.Kernel.of_program(Program([write_only("out", 0, u32)], (4, 1, 1), [Store("nobody", lit(0), lit(1))]))
    with pytest.raises(vyre.InvalidProgram, match="V064"):
        kernel.on("reference")(sizes={"out": 4})


def test_anything_else_than_a_program_is_refused():
    with pytest.raises(vyre.ArgumentTypeError, match=r"got a bytes, not a program. Fix: pass Program.from_wire"):
        vyre.Kernel.of_program(b"VYRE")  # type: ignore[arg-type]


def test_there_is_no_source_to_read(adds):
    with pytest.raises(vyre.ArgumentTypeError, match=r"was made of a program. Fix: read str\(kernel.program\)"):
        adds.source  # noqa: B018
    with pytest.raises(vyre.ArgumentTypeError, match="no compile-time parameter n"):
        adds.specialize(n=3)


def test_a_plan_is_explained(adds):
    told = adds.on("reference").explain(np.zeros(70, U32), 1, np.zeros(70, U32))
    assert (told.backend, told.grid) == ("reference", (2, 1, 1))
