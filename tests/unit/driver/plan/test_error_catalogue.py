"""What planning and launching refuse, with the words by which users find the page about it, and always with a fix."""

import pytest

from vyre.driver.contract.values import DispatchConfig
from vyre.driver.plan.binding import BindingPlan
from vyre.driver.plan.grid import (
    LaunchGeometryLimits,
    check_grid,
    find_indirect_dispatch,
    infer_dispatch_grid_for_count,
    try_coerce_to_pow2_with_tail_mask,
    validate_launch_geometry,
)
from vyre.driver.plan.launch import plan_dispatch
from vyre.driver.plan.outputs import output_layout_from_program
from vyre.errors import VyreError
from vyre.foundation.check.gridsync import segments
from vyre.foundation.check.validate import check
from vyre.foundation.ir.dtypes import u32, vec_type
from vyre.foundation.ir.nodes import (
    Barrier,
    If,
    IndirectDispatch,
    InvocationId,
    Let,
    Load,
    Loop,
    Return,
    Store,
    Var,
    lit,
)
from vyre.foundation.ir.ops import Ordering
from vyre.foundation.ir.program import BufferDecl, Hints, Program, read, read_write, write_only
from vyre.foundation.meaning.subgroup import reduction_offsets

X = read("x", 0, u32, 2)
OUT = write_only("out", 1, u32, 2)
NOTHING = (Return(),)
SYNC = Barrier(Ordering.GRID_SYNC)
LIMITS = LaunchGeometryLimits("toy", 1024, (1024, 1024, 64), (100, 100, 100))


def program(*buffers, body=NOTHING, workgroup=(4, 1, 1)):
    return Program(buffers or (X, OUT), workgroup, body)


def lengths(*given, **options):
    return lambda: BindingPlan.from_input_lengths(program(), given, **options)


def dispatched(of=None, **config):
    planned = of or program()
    inputs = [bytes(8)] * len(planned.host_inputs)
    return lambda: plan_dispatch(planned, inputs, DispatchConfig(**config), LIMITS, "toy")


HINTED = BufferDecl("x", 0, X.access, u32, 2, hints=Hints(0, 48))
RANGED = BufferDecl("out", 0, read_write("out", 0, u32).access, u32, 2, is_output=True, output_byte_range=(4, 12))
GID = InvocationId(0)
ACROSS = [Let("seen", Load("n", GID)), Store("n", GID, lit(1)), SYNC, Store("n", GID, Var("seen"))]

CATALOGUE = {
    "number of inputs": (lengths(), "expected 1 input buffer(s)", "received 0"),
    "length of a static buffer": (lengths(4), "'x'", "expected 8 bytes"),
    "length of resident memory": (lengths(4, resident=True), "'x'", "at least 8 bytes"),
    "alignment": (lambda: BindingPlan.build(program(HINTED)), "'x'", "preferred_alignment=48", "power of two"),
    "type without a size": (
        lambda: BindingPlan.build(program(read("x", 0, vec_type(u32, 0)))),
        "Vec count must be > 0",
    ),
    "output budget": (dispatched(max_output_bytes=7), "8 bytes", "exceeds", "max_output_bytes=7"),
    "output range": (dispatched(of=program(RANGED)), "4:12", "outside output buffer size 8"),
    "no output": (lambda: output_layout_from_program(program(X)), "no output buffer"),
    "grid of zero": (dispatched(grid_override=(1, 0, 1)), "(1, 0, 1)", "non-zero"),
    "workgroup of zero": (lambda: infer_dispatch_grid_for_count(5, (0, 1, 1)), "axis of 0", "non-zero"),
    "ids beyond 32 bits": (lambda: check_grid((1 << 31, 1, 1), (3, 1, 1)), "overflowed u32"),
    "power of two": (lambda: try_coerce_to_pow2_with_tail_mask((1 << 31) + 1), "power-of-two"),
    "indirect alignment": (
        lambda: find_indirect_dispatch(program(body=[IndirectDispatch("x", 6)])),
        "byte 6",
        "not 4-byte aligned",
    ),
    "two indirect grids": (
        lambda: find_indirect_dispatch(program(body=[IndirectDispatch("x", 0), IndirectDispatch("x", 4)])),
        "more than one indirect dispatch source",
    ),
    "a plane without a grid": (dispatched(of=program(workgroup=(4, 2, 1))), "(4, 2, 1)", "toy", "grid_override"),
    "element count": (dispatched(grid_override=((1 << 30), 1, 1)), "must fit in u32"),
    "grid limit": (dispatched(grid_override=(101, 1, 1)), "axis 0", "101", "max is 100"),
    "workgroup limit": (lambda: validate_launch_geometry((1, 1, 65), (1, 1, 1), LIMITS), "axis 2", "65", "max is 64"),
    "no iteration": (
        dispatched(fixpoint_iterations=0),
        "fixpoint_iterations must be at least 1",
        "toy",
        "zero-iteration dispatch",
    ),
    "load across the grid": (
        lambda: segments(program(read_write("n", 0, u32), body=ACROSS)),
        "'seen'",
        "across a grid-wide barrier",
    ),
    "barrier in a branch": (lambda: check(program(body=[If(lit(True), (SYNC,))])), "V201"),
    "barrier in a loop": (lambda: check(program(body=[Loop("k", lit(0), lit(2), (SYNC,))])), "V201"),
    "subgroup width": (lambda: reduction_offsets((1 << 31) + 1), "cannot be rounded to a power of two"),
}


@pytest.mark.parametrize("what", CATALOGUE)
def test_a_refusal_has_its_words_and_a_fix(what):
    refused, *fragments = CATALOGUE[what]
    with pytest.raises(VyreError) as e:
        refused()
    message, _, fix = str(e.value).partition("Fix: ")
    assert [f for f in fragments if f not in str(e.value)] == []
    assert message.strip()
    assert len(fix.split()) > 2


def test_the_same_calls_without_the_mistake_are_accepted():
    assert lengths(8)() is not None
    assert lengths(12, resident=True)() is not None
    assert dispatched(max_output_bytes=8, grid_override=(100, 1, 1), fixpoint_iterations=1)().launch.grid == (100, 1, 1)
    assert check_grid((1 << 31, 1, 1), (2, 1, 1)) == (1 << 31, 1, 1)
    assert try_coerce_to_pow2_with_tail_mask(1 << 31).is_aligned()
    validate_launch_geometry((1, 1, 64), (1, 1, 1), LIMITS)
    check(program(body=[SYNC]))
