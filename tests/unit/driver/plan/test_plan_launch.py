"""The plan of one dispatch: workgroup, grid, words, alignment, repetitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vyre.backends.reference import run
from vyre.driver.contract.values import DispatchConfig
from vyre.driver.plan import BindingPlan, LaunchPlan, OutputSlot, PlannedDispatch, plan_dispatch
from vyre.driver.plan.grid import LaunchGeometryLimits
from vyre.driver.plan.launch import resolve_fixpoint_iterations, resolve_workgroup
from vyre.errors import ArgumentTypeError, ArgumentValueError, InvalidProgram
from vyre.foundation.ir import nodes as ir
from vyre.foundation.ir.dtypes import f64, u32
from vyre.foundation.ir.nodes import lit
from vyre.foundation.ir.ops import BinaryOp
from vyre.foundation.ir.program import Hints, Program, output, read, read_write, workgroup, write_only

X = ir.InvocationId(0)
DOUBLE = ir.Store("o", X, ir.BinOp(BinaryOp.ADD, ir.Load("x", X), ir.Load("x", X)))
PAIR = (read("x", 0, u32), write_only("o", 1, u32))
WIDTHS = (32, 64, 128, 256, 512, 1024)
LIMITS = LaunchGeometryLimits("toy", 1024, (1024, 1024, 64), (65535, 65535, 65535))


def program(*buffers, body=(DOUBLE,), wg=(64, 1, 1)):
    return Program(buffers or PAIR, wg, body)


def launch(p, lengths, limits=None, sizes=None, **config):
    return plan_dispatch(p, [bytes(n) for n in lengths], DispatchConfig(output_elements=sizes, **config), limits).launch


def test_an_empty_plan_is_one_invocation():
    assert LaunchPlan() == LaunchPlan(1, (1, 1, 1), (1, 1, 1), (), 1)
    assert LaunchPlan.prepare(Program.empty(), BindingPlan.build(Program.empty())) == LaunchPlan(param_words=(1,))


@pytest.mark.row("B-LAU-02")
def test_the_plan_of_one_input():
    p = program(read("x", 0, u32, 7).replace(hints=Hints(preferred_alignment=64)), body=())
    assert launch(p, (28,)) == LaunchPlan(7, (64, 1, 1), (1, 1, 1), (7, 7), 64)


def test_the_alignment_is_the_largest_of_all_buffers():
    assert launch(program(read("x", 0, u32), output("d", 1, f64, 1), body=()), (4,)).max_binding_alignment == 8


@pytest.mark.row("B-LAU-07")
def test_an_override_changes_the_grid_and_not_the_words():
    found = launch(program(), (4000,), workgroup_override=(128, 1, 1))
    assert (found.workgroup, found.grid, found.param_words) == ((128, 1, 1), (8, 1, 1), (1000, 1000, 1000))


# ---- which workgroup ------------------------------------------------------------------------------------------------


@pytest.mark.row("B-LAU-04", "B-LAU-06")
@pytest.mark.parametrize(
    "buffers, body, why",
    [
        (PAIR, [ir.Store("o", ir.LocalId(0), lit(1))], "local ids"),
        (PAIR, [ir.Store("o", ir.WorkgroupId(0), lit(1))], "workgroup ids"),
        (PAIR, [ir.Barrier()], "a barrier"),
        (PAIR, [ir.Let("s", ir.SubgroupSize())], "subgroup operations"),
        ((*PAIR, workgroup("s", u32, 4)), [DOUBLE], "workgroup memory"),
    ],
)
def test_a_program_that_knows_its_workgroup_keeps_it(buffers, body, why):
    p = program(*buffers, body=body, wg=(1024, 1, 1))
    assert launch(p, (8192,)).workgroup == (1024, 1, 1)
    assert launch(p, (8192,), workgroup_override=(1024, 1, 1)).workgroup == (1024, 1, 1)
    config = DispatchConfig(workgroup_override=(256, 1, 1), label="step 4")
    with pytest.raises(InvalidProgram, match=rf"workgroup_override \(256, 1, 1\) .*uses {why}.*step 4.*Fix: drop") as e:
        resolve_workgroup(p, config)
    assert "(1024, 1, 1)" in str(e.value)


@pytest.mark.row("B-LAU-06")
def test_a_program_that_does_not_know_its_workgroup_takes_the_callers():
    assert resolve_workgroup(program(), DispatchConfig(workgroup_override=(256, 1, 1))) == (256, 1, 1)
    assert resolve_workgroup(program(), DispatchConfig()) == (64, 1, 1)


@pytest.mark.row("B-LAU-11")
@given(st.integers(0, 3000), st.sampled_from(WIDTHS))
def test_every_workgroup_that_is_allowed_gives_the_same_bytes(n, width):
    p = program(body=[ir.If(ir.BinOp(BinaryOp.LT, X, ir.BufLen("o")), (DOUBLE,))])
    inputs = [np.arange(n, dtype=np.uint32)]
    plan = plan_dispatch(p, inputs, DispatchConfig(workgroup_override=(width, 1, 1)), LIMITS)
    launched = p.replace(workgroup_size=plan.launch.workgroup)
    found = run(launched, inputs, grid=plan.launch.grid, output_elements={"o": n}).outputs
    assert found == [(inputs[0] * 2).tobytes()]


# ---- which grid -----------------------------------------------------------------------------------------------------


@pytest.mark.row("B-LAU-08", "A-VAL-3")
@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_a_grid_override_of_zero_is_refused(grid):
    with pytest.raises(InvalidProgram, match=r"must be non-zero .*zero-sized grid dimensions.*Fix: use 1 or more"):
        launch(program(), (8,), grid_override=grid)


@pytest.mark.row("B-LAU-09")
@pytest.mark.parametrize("wg", [(8, 8, 1), (8, 1, 2)])
def test_a_plane_needs_a_grid_from_the_caller(wg):
    p = program(wg=wg)
    with pytest.raises(InvalidProgram, match=r"a workgroup of \(8, .*backend='toy'.*Fix: .*grid_override") as e:
        plan_dispatch(p, [bytes(8)], DispatchConfig(), LIMITS)
    assert str(wg) in str(e.value)
    found = launch(p, (8,), grid_override=(3, 2, 1))
    assert (found.grid, found.element_count, found.param_words) == ((3, 2, 1), 24, (24, 2, 2))


def test_the_element_count_of_a_grid_fits_32_bits():
    most = (1 << 32) // 64
    assert launch(program(), (8,), grid_override=(most - 1, 1, 1)).element_count == (most - 1) * 64
    with pytest.raises(InvalidProgram, match=r"must fit in u32: element_count overflowed u32.*Fix: use a smaller grid"):
        launch(program(), (8,), grid_override=(most, 1, 1))
    with pytest.raises(ArgumentValueError, match=r"not every global id fits.*Fix: split"):
        launch(program(), (8,), grid_override=(most + 1, 1, 1))


def test_ids_along_every_axis_fit_32_bits():
    with pytest.raises(ArgumentValueError, match=r"not every global id fits.*axis='z'.*Fix: split"):
        launch(program(wg=(1, 1, 64)), (8,), grid_override=(1, 1, (1 << 32) // 64 + 1))


def test_the_workgroup_is_checked_before_anything_else():
    p = program(wg=(2048, 1, 1))
    with pytest.raises(InvalidProgram, match="workgroup of 2048 invocations on backend toy: max is 1024"):
        launch(p, (8,), LIMITS, grid_override=(0, 1, 1))
    with pytest.raises(InvalidProgram, match="zero-sized workgroup dimensions"):
        launch(program(), (8,), workgroup_override=(0, 1, 1))


def test_a_grid_from_memory_wins_over_the_callers_and_may_be_empty():
    p = program(read("x", 0, u32), write_only("o", 1, u32), body=[ir.IndirectDispatch("x", 0), DOUBLE])
    for groups in ((0, 0, 0), (0, 1, 1), (3, 1, 2)):
        plan = plan_dispatch(p, [np.array(groups, np.uint32)], DispatchConfig(grid_override=(9, 9, 9)), LIMITS)
        assert plan.launch.grid == groups
        assert plan.indirect
    with pytest.raises(InvalidProgram, match="grid axis 0 has size 65536 on backend toy: max is 65535"):
        plan_dispatch(p, [np.array((65536, 1, 1), np.uint32)], DispatchConfig(), LIMITS)


@given(st.integers(0, 100_000), st.sampled_from(WIDTHS))
def test_a_line_covers_every_element_and_less_than_a_workgroup_more(n, width):
    found = launch(program(wg=(width, 1, 1)), (4 * n,))
    assert found.element_count == max(n, 1)
    assert 0 <= found.grid[0] * width - found.element_count < width
    assert found.param_words == (max(n, 1), n, n)


# ---- the whole plan -------------------------------------------------------------------------------------------------


def test_a_plan_says_all_that_a_backend_needs():
    p = program(read("x", 0, u32), read_write("b", 2, u32, 3), write_only("o", 1, u32))
    plan = plan_dispatch(p, [bytes(20), bytes(12)], DispatchConfig(fixpoint_iterations=4))
    assert isinstance(plan, PlannedDispatch)
    assert [(b.name, b.element_count) for b in plan.bindings.bindings] == [("x", 5), ("o", 5), ("b", 3)]
    assert plan.launch.grid == (1, 1, 1)
    assert [(o.name, o.layout.read_size) for o in plan.outputs] == [("o", 20), ("b", 12)]
    assert (plan.iterations, plan.indirect, plan.output_bytes) == (4, False, 32)
    assert plan == plan_dispatch(p, [bytearray(20), np.ones(3, np.uint32)], DispatchConfig(fixpoint_iterations=4))


def test_the_byte_budget_is_checked_before_anything_runs():
    assert plan_dispatch(program(), [bytes(20)], DispatchConfig(max_output_bytes=20)).output_bytes == 20
    with pytest.raises(ArgumentValueError, match=r"20 bytes exceeds max_output_bytes=19.*Fix: raise"):
        plan_dispatch(program(), [bytes(20)], DispatchConfig(max_output_bytes=19))


def test_a_buffer_for_an_output_sizes_it_and_must_fit():
    two = program(read("x", 0, u32), read("y", 2, u32), write_only("o", 1, u32))
    plan = plan_dispatch(two, [bytes(20), bytes(8)], out=[bytearray(12)])
    assert plan.output_bytes == 12
    assert plan_dispatch(program(), [bytes(20)], out=[OutputSlot(4)]).output_bytes == 20
    config = DispatchConfig(output_elements={"o": 5})
    with pytest.raises(ArgumentValueError, match=r"'o' has 20 bytes and the buffer given for it 16.*Fix: pass a"):
        plan_dispatch(two, [bytes(20), bytes(8)], config, out=[bytearray(16)])
    with pytest.raises(ArgumentTypeError, match=r"for output 'o' is a read-only bytes.*Fix: pass a bytearray"):
        plan_dispatch(two, [bytes(20), bytes(8)], config, out=[bytes(20)])
    with pytest.raises(ArgumentTypeError, match=r"not contiguous.*Fix: "):
        plan_dispatch(two, [bytes(20), bytes(8)], config, out=[np.zeros(10, np.uint32)[::2]])
    with pytest.raises(ArgumentTypeError, match="list, which holds no bytes"):
        plan_dispatch(two, [bytes(20), bytes(8)], out=[[1]])
    with pytest.raises(ArgumentValueError, match=r"expected 1 output buffer\(s\) and received 0"):
        plan_dispatch(two, [bytes(20), bytes(8)], out=[])


@pytest.mark.row("B-FIX-01")
def test_a_dispatch_launches_once_unless_told_otherwise():
    assert resolve_fixpoint_iterations(DispatchConfig()) == 1
    for k in range(1, 4096):
        assert resolve_fixpoint_iterations(DispatchConfig(fixpoint_iterations=k)) == k


@pytest.mark.row("B-FIX-01")
def test_a_dispatch_of_no_launches_is_refused():
    config = DispatchConfig(fixpoint_iterations=0, label="step 5")
    with pytest.raises(
        InvalidProgram, match=r"fixpoint_iterations must be at least 1: backend toy .*zero-iteration dispatch.*step 5"
    ):
        plan_dispatch(program(), [bytes(4)], config, backend="toy")
