"""Element counts, parameter words, grids, rounding, indirect grids and the limits of a launch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vyre.backends.reference import run
from vyre.driver.contract import BackendCapability, VyreBackend
from vyre.driver.contract.values import DispatchConfig
from vyre.driver.plan import plan_dispatch
from vyre.driver.plan.binding import BindingPlan
from vyre.driver.plan.grid import (
    LaunchGeometryLimits,
    TailMaskPolicy,
    ceil_cbrt,
    ceil_sqrt,
    check_grid,
    coerce_to_pow2_with_tail_mask,
    dispatch_element_count,
    dispatch_element_count_for_program,
    dispatch_param_words,
    find_indirect_dispatch,
    grid_for_domain,
    infer_dispatch_grid_for_count,
    resolve_indirect_grid,
    try_coerce_to_pow2_with_tail_mask,
    validate_launch_geometry,
    why_workgroup_is_fixed,
)
from vyre.driver.plan.launch import LaunchPlan
from vyre.errors import ArgumentValueError, InvalidProgram
from vyre.foundation.ir import nodes as ir
from vyre.foundation.ir.dtypes import u8, u32
from vyre.foundation.ir.nodes import lit
from vyre.foundation.ir.ops import AtomicOp, ReduceOp
from vyre.foundation.ir.program import Program, output, read, read_write, uniform, workgroup, write_only

X = ir.InvocationId(0)
ADD_ONE = ir.Let("old", ir.Atomic(AtomicOp.ADD, "acc", lit(0), lit(1)))
ACC = read_write("acc", 0, u32, 1)


def program(*buffers, body=(), wg=(256, 1, 1)):
    return Program(buffers, wg, body)


def sized(p, lengths, sizes=None):
    return BindingPlan.from_input_lengths(p, lengths, sizes)


def grid_of(p, lengths, sizes=None, **config):
    inputs = [bytes(n) for n in lengths]
    return plan_dispatch(p, inputs, DispatchConfig(output_elements=sizes, **config)).launch.grid


# ---- how many invocations -------------------------------------------------------------------------------------------


@pytest.mark.row("B-GRID-01")
def test_an_atomic_accumulator_visits_every_input():
    p = program(ACC, read("x", 1, u32), body=[ADD_ONE])
    assert grid_of(p, (4, 4_000_000)) == (3907, 1, 1)


@pytest.mark.row("B-GRID-02")
def test_an_atomic_flag_over_bytes_visits_each_byte():
    p = program(ACC, read("x", 1, u8), body=[ADD_ONE])
    assert grid_of(p, (4, 4097)) == (17, 1, 1)
    plan = BindingPlan.build(p)
    for nbytes in range(1, 10_001):
        n = dispatch_element_count_for_program(p, plan.sized((4, nbytes)).bindings)
        assert infer_dispatch_grid_for_count(n, (256, 1, 1)) == (-(-nbytes // 256), 1, 1)


@pytest.mark.row("B-GRID-03")
def test_an_output_decides_over_a_larger_input():
    p = program(read("x", 0, u32), output("o", 1, u32, 512))
    assert grid_of(p, (4_000_000,)) == (2, 1, 1)


@pytest.mark.row("B-GRID-04")
def test_workgroup_memory_visits_every_input():
    p = program(read("x", 0, u32), output("o", 1, u32, 4), workgroup("s", u32, 256))
    assert grid_of(p, (4096,)) == (4, 1, 1)


@pytest.mark.row("B-GRID-05")
def test_the_largest_output_decides_among_several():
    p = program(read_write("live", 0, u32, 256), output("o", 1, u32, 1), read("x", 2, u32, 5))
    plan = plan_dispatch(p, [bytes(1024), bytes(20)])
    assert (plan.launch.element_count, plan.launch.grid) == (256, (1, 1, 1))


@pytest.mark.row("B-GRID-07")
@pytest.mark.parametrize(
    "collective",
    [
        ir.SubgroupBallot(lit(True)),
        ir.SubgroupReduce(ReduceOp.ADD, lit(1)),
        ir.SubgroupShuffle(lit(1), lit(0)),
        ir.SubgroupLocalId(),
        ir.SubgroupSize(),
    ],
    ids=lambda e: type(e).__name__,
)
def test_a_subgroup_operation_visits_every_input(collective):
    buffers = (read("x", 0, u32, 512), output("o", 1, u32, 16))
    body = [ir.If(ir.BinOp(ir.BinaryOp.LT, X, lit(16)), (ir.Let("v", collective),))]
    p = program(*buffers, body=body)
    assert dispatch_element_count_for_program(p, sized(p, (2048,)).bindings) == 512
    plain = program(*buffers)
    assert dispatch_element_count_for_program(plain, sized(plain, (2048,)).bindings) == 16


@pytest.mark.parametrize(
    "buffers, body, lengths, why",
    [
        ([read("x", 0, u32), output("o", 1, u32, 5)], [], (4000,), "covers the 5 elements of o, the longest output"),
        (
            [read_write("a", 0, u32), output("o", 1, u32, 5)],
            [],
            (40,),
            "covers the 10 elements of a, the longest output",
        ),
        ([read("x", 0, u32), read("y", 1, u32)], [], (4, 40), "covers the 10 elements of y, the longest input"),
        ([read("x", 0, u32), write_only("o", 1, u32)], [], (4,), "covers the 1 element of x, the longest input"),
        (
            [ACC, read("x", 1, u32)],
            [ADD_ONE],
            (4, 40),
            "covers the 10 elements of x, the longest buffer, as it has atomics or subgroup operations",
        ),
        (
            [read("x", 0, u32), output("o", 1, u32, 4), workgroup("s", u32, 256)],
            [],
            (40,),
            "covers the 10 elements of x, the longest buffer, as it has workgroup memory",
        ),
        ([uniform("n", 0, u32)], [], (4,), "covers one invocation, as no buffer has an element"),
    ],
)
def test_a_grid_says_what_it_covers(buffers, body, lengths, why):
    p = program(*buffers, body=body)
    sizes = {"o": 0} if any(b.name == "o" and not b.count for b in buffers) else None
    _, decided = LaunchPlan.prepare(p, sized(p, lengths, sizes)).decisions
    assert (decided.choice, decided.reason) == ("inferred", f"1x1x1: {why}, in workgroups of 256")
    config = DispatchConfig(grid_override=(1, 1, 1))
    _, decided = LaunchPlan.prepare(p, sized(p, lengths, sizes), config).decisions
    assert (decided.choice, decided.reason) == ("given", "1x1x1: grid_override")


def test_uniforms_size_nothing_and_one_invocation_is_the_least():
    p = program(uniform("n", 0, u32), read("x", 1, u32))
    assert dispatch_element_count(sized(p, (4000, 12)).bindings) == 3
    assert dispatch_element_count(sized(p, (4000, 0)).bindings) == 1
    assert dispatch_element_count(()) == 1
    assert grid_of(program(), ()) == (1, 1, 1)


# ---- parameter words ------------------------------------------------------------------------------------------------


@pytest.mark.row("B-PAR-01")
def test_the_word_of_a_buffer_lies_at_its_slot_and_is_its_own_length():
    p = program(output("o", 4, u32, 9), read("x", 1, u32))
    assert dispatch_param_words(sized(p, (12,)).bindings, 7) == (7, 0, 3, 0, 0, 9)
    assert dispatch_param_words(sized(p, (0,)).bindings, 7) == (7, 0, 0, 0, 0, 9)


@pytest.mark.row("B-PAR-02")
def test_a_sparse_table_has_zeros_in_its_gaps():
    p = program(read("a", 9, u32, 4), read("b", 2, u32))
    words = dispatch_param_words(sized(p, (20, 16)).bindings, 11)
    assert len(words) == 11
    assert {k: w for k, w in enumerate(words) if w} == {0: 11, 3: 5, 10: 4}


@pytest.mark.row("B-PAR-03")
def test_an_output_sized_at_dispatch_has_its_length_in_its_word():
    p = program(read("a", 0, u32, 7), write_only("o", 4, u32))
    assert dispatch_param_words(sized(p, (28,), {"o": 11}).bindings, 11) == (11, 7, 0, 0, 0, 11)


def test_workgroup_memory_has_no_word_of_its_own():
    p = program(read("a", 0, u32, 7), workgroup("s", u32, 5), workgroup("t", u32, 6))
    assert dispatch_param_words(sized(p, (28,)).bindings, 7) == (7, 7, 0, 0)
    assert dispatch_param_words((), 1) == (1,)


def test_an_element_count_beyond_32_bits_is_refused():
    with pytest.raises(InvalidProgram, match=r"element_count overflowed u32.*Fix: split"):
        dispatch_param_words((), 1 << 32)


@pytest.mark.row("B-PAR-04")
@settings(max_examples=1000)
@given(st.dictionaries(st.integers(0, 80), st.integers(0, 40), max_size=9), st.integers(0, 3), st.integers(1, 1 << 31))
def test_words_are_a_sparse_table_by_slot(counts, shared, elements):
    buffers = [read(f"b{slot}", slot, u32) for slot in counts] + [workgroup(f"s{k}", u32, 3) for k in range(shared)]
    p = program(*buffers)
    words = dispatch_param_words(sized(p, [4 * counts[b.binding] for b in p.host_inputs]).bindings, elements)
    assert words[0] == elements
    assert len(words) == max([len(buffers) + 1, *(slot + 2 for slot in counts)])
    assert list(words[1:]) == [counts.get(slot, 0) for slot in range(len(words) - 1)]


# ---- grids ----------------------------------------------------------------------------------------------------------


@pytest.mark.row("B-GRID-06")
def test_roots_are_exact_where_floats_are_not():
    assert ceil_sqrt((1 << 32) - 1) == ceil_sqrt(1 << 32) == 65536
    assert ceil_sqrt((1 << 32) + 1) == 65537
    assert ceil_cbrt(2642245**3) == ceil_cbrt(2642245**3 - 1) == 2642245
    assert ceil_cbrt(2642245**3 + 1) == 2642246
    assert [ceil_sqrt(n) for n in range(6)] == [0, 1, 2, 2, 2, 3]
    assert [ceil_cbrt(n) for n in (0, 1, 2, 8, 9, 27, 28)] == [0, 1, 2, 2, 3, 3, 4]


@given(st.integers(1, 1 << 66))
def test_roots_are_the_least_that_suffice(n):
    s, c = ceil_sqrt(n), ceil_cbrt(n)
    assert (s - 1) ** 2 < n <= s**2
    assert (c - 1) ** 3 < n <= c**3


@given(st.integers(0, (1 << 32) - 256), st.tuples(*[st.sampled_from([1, 2, 8, 33, 256])] * 3))
def test_an_inferred_grid_covers_the_count_with_few_lanes_to_spare(n, wg):
    x, y, z = infer_dispatch_grid_for_count(n, wg)
    assert min(x, y, z) >= 1
    assert x * wg[0] * y * wg[1] * z * wg[2] >= n
    if wg[1] == wg[2] == 1:
        assert (x - 1) * wg[0] < max(n, 1)
        assert (y, z) == (1, 1)
    elif wg[2] == 1:
        assert z == 1
        assert max((x - 1) * wg[0], (y - 1) * wg[1]) < max(ceil_sqrt(n), 1)


def test_a_grid_needs_a_workgroup_and_ids_of_32_bits():
    with pytest.raises(InvalidProgram, match=r"axis of 0.*Fix: make every axis non-zero"):
        infer_dispatch_grid_for_count(5, (0, 1, 1))
    assert infer_dispatch_grid_for_count((1 << 32) - 1, (256, 1, 1)) == (1 << 24, 1, 1)
    assert check_grid((1 << 31, 1, 1), (2, 1, 1)) == (1 << 31, 1, 1)
    with pytest.raises(ArgumentValueError, match=r"overflowed u32.*axis='y'.*Fix: split"):
        check_grid((1, 1 << 31, 1), (1, 3, 1))
    with pytest.raises(ArgumentValueError, match=r"overflowed u32.*axis='x'"):
        grid_for_domain(((1 << 32) + 1,), (1, 1, 1))


# ---- powers of two --------------------------------------------------------------------------------------------------


@pytest.mark.row("B-POW2-01")
@pytest.mark.parametrize(
    "count, rounded", [(0, 0), (1, 1), (2, 2), (3, 4), (64, 64), (100, 128), (10**9, 1 << 30), (1 << 31, 1 << 31)]
)
def test_a_count_is_rounded_up_to_a_power_of_two(count, rounded):
    policy = try_coerce_to_pow2_with_tail_mask(count)
    assert policy == coerce_to_pow2_with_tail_mask(count) == TailMaskPolicy(count, rounded, rounded - count)
    assert policy.is_aligned() == (count == rounded)


@pytest.mark.row("B-POW2-01")
@pytest.mark.parametrize("count", [(1 << 31) + 1, (1 << 32) - 1])
def test_a_count_that_has_no_power_of_two_of_32_bits(count):
    with pytest.raises(InvalidProgram, match=r"no power-of-two .*Fix: split"):
        try_coerce_to_pow2_with_tail_mask(count)
    assert coerce_to_pow2_with_tail_mask(count) == TailMaskPolicy(count, count, 0)


# ---- indirect grids -------------------------------------------------------------------------------------------------

MARK = ir.Store("o", X, lit(7))


def indirect(offset=0, *, nested=False, buffer=None):
    node = ir.IndirectDispatch("g", offset)
    first = ir.Block((ir.Region("r", (node,)),)) if nested else node
    return program(buffer or read("g", 0, u32), write_only("o", 1, u32), body=[first, MARK], wg=(4, 1, 1))


@pytest.mark.row("B-IND-01")
def test_the_statement_with_the_grid_is_found_wherever_it_is():
    assert find_indirect_dispatch(program(ACC, body=[ADD_ONE])) is None
    assert resolve_indirect_grid(program(ACC), [b"1234"]) is None
    for nested in (False, True):
        assert find_indirect_dispatch(indirect(8, nested=nested)) == ir.IndirectDispatch("g", 8)


@pytest.mark.row("B-IND-01")
def test_an_indirect_grid_is_aligned_and_there_is_one():
    with pytest.raises(InvalidProgram, match=r"byte 6 is not 4-byte aligned.*Fix: use a multiple"):
        find_indirect_dispatch(indirect(6))
    twice = program(ACC, body=[ir.IndirectDispatch("acc", 0), ir.Block((ir.IndirectDispatch("acc", 0),))])
    with pytest.raises(InvalidProgram, match=r"more than one indirect dispatch source.*Fix: keep one"):
        find_indirect_dispatch(twice)


@pytest.mark.parametrize(
    "data",
    [
        np.array([9, 2, 3, 4], np.uint32),
        np.array([[9, 2], [3, 4]], np.uint32),
        np.array([9, 0, 2, 0, 3, 0, 4, 0], np.uint32)[::2],
        bytes([9, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]),
    ],
    ids=["array", "two axes", "strided", "bytes"],
)
def test_the_grid_is_read_from_any_host_buffer(data):
    assert resolve_indirect_grid(indirect(4), [data]) == (2, 3, 4)


def test_a_grid_that_is_not_there_is_refused():
    assert resolve_indirect_grid(indirect(4), [bytes(16)]) == (0, 0, 0)
    with pytest.raises(
        InvalidProgram, match=r"no grid in buffer .g.: grid ends at 16, beyond 15.*Fix: bind at least 16 bytes"
    ):
        resolve_indirect_grid(indirect(4), [bytes(15)])
    with pytest.raises(InvalidProgram, match=r"'g', which the host does not bind.*Fix: name a bound"):
        resolve_indirect_grid(indirect(buffer=workgroup("g", u32, 3)), [])
    with pytest.raises(InvalidProgram, match="does not bind"):
        resolve_indirect_grid(program(body=[ir.IndirectDispatch("nope", 0)]), [])
    assert resolve_indirect_grid(indirect(buffer=output("g", 0, u32, 3)), []) == (0, 0, 0)


@pytest.mark.row("B-IND-02")
@pytest.mark.parametrize("groups", [(0, 1, 1), (1, 1, 1), (2, 1, 1), (2, 3, 1)])
def test_a_grid_from_memory_runs_as_the_same_grid_given(groups):
    p, direct = indirect(), program(read("g", 0, u32), write_only("o", 1, u32), body=[MARK], wg=(4, 1, 1))
    inputs = [np.array(groups, np.uint32)]
    plan = plan_dispatch(p, inputs, DispatchConfig(output_elements={"o": 12}))
    assert (plan.launch.grid, plan.indirect) == (groups, True)
    found = run(p, inputs, grid=(1, 1, 1), output_elements={"o": 12}).outputs
    assert found == run(direct, inputs, grid=plan.launch.grid, output_elements={"o": 12}).outputs


# ---- what a program sees of its workgroups --------------------------------------------------------------------------

WATCHERS = {
    "local ids": ir.Let("v", ir.LocalId(0)),
    "workgroup ids": ir.Let("v", ir.BinOp(ir.BinaryOp.ADD, lit(1), ir.WorkgroupId(1))),
    "subgroup operations": ir.Loop("k", lit(0), lit(2), (ir.Let("v", ir.SubgroupLocalId()),)),
    "the extension my.op": ir.Let("v", ir.Call("my.op", ())),
    "the extension my.expr": ir.Let("v", ir.Opaque("my.expr", b"")),
    "the extension my.node": ir.OpaqueNode("my.node", b""),
}


@pytest.mark.parametrize("why", WATCHERS)
def test_a_program_that_can_tell_workgroups_apart(why):
    p = program(ACC, body=[ir.Region("r", (WATCHERS[why],))])
    assert why_workgroup_is_fixed(p) == why


def test_a_program_that_cannot_tell_workgroups_apart():
    p = program(ACC, body=[ADD_ONE, ir.Let("n", ir.BinOp(ir.BinaryOp.ADD, X, ir.BufLen("acc")))])
    assert why_workgroup_is_fixed(p) is None


def test_shared_memory_and_barriers_fix_the_workgroup_without_any_id():
    barrier = program(ACC, body=[ir.Barrier()])
    shared = program(ACC, workgroup("s", u32, 4))
    assert [why_workgroup_is_fixed(p) for p in (barrier, shared)] == ["a barrier", "workgroup memory"]


def test_depth_and_sharing_cost_no_stack_and_little_time():
    deep = X
    for _ in range(60):
        deep = ir.BinOp(ir.BinaryOp.ADD, deep, deep)  # 2**60 as a tree
    for _ in range(50_000):
        deep = ir.UnOp(ir.UnaryOp.NEGATE, deep)
    p = program(ACC, body=[ir.Let("v", deep)])
    assert why_workgroup_is_fixed(p) is None
    assert dispatch_element_count_for_program(p, BindingPlan.build(p).bindings) == 1


# ---- limits ---------------------------------------------------------------------------------------------------------

LIMITS = LaunchGeometryLimits("toy", 1024, (1024, 1024, 64), (7, 7, 7))


@pytest.mark.row("B-GEO-01", "A-VAL-2")
def test_an_axis_has_a_limit_of_its_own():
    validate_launch_geometry((1, 1, 64), (1, 1, 1), LIMITS)
    with pytest.raises(InvalidProgram, match=r"workgroup axis 2 has size 65 on backend toy: max is 64.*Fix: "):
        validate_launch_geometry((1, 1, 65), (1, 1, 1), LIMITS)


@pytest.mark.row("B-GEO-02", "A-VAL-1")
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_grid_axis_has_a_limit(axis):
    grid = [1, 1, 1]
    grid[axis] = 8
    p = program(ACC, body=[ADD_ONE])
    with pytest.raises(InvalidProgram, match=rf"grid axis {axis} has size 8 on backend toy: max is 7.*Fix: "):
        plan_dispatch(p, [bytes(4)], DispatchConfig(grid_override=grid), LIMITS)
    assert plan_dispatch(p, [bytes(4)], DispatchConfig(grid_override=(7, 7, 7)), LIMITS).launch.grid == (7, 7, 7)


@pytest.mark.row("B-GEO-02", "A-VAL-1")
def test_a_dimension_of_zero_is_refused_before_any_limit():
    with pytest.raises(InvalidProgram, match=r"zero-sized grid dimensions \(1, 0, 1\) on backend toy.*Fix: make"):
        validate_launch_geometry((2048, 1, 1), (1, 0, 1), LIMITS)
    with pytest.raises(InvalidProgram, match=r"zero-sized workgroup dimensions \(0, 1, 1\)\. Fix: "):
        validate_launch_geometry((0, 1, 1), (1, 1, 1))


def test_a_workgroup_is_bounded_as_a_whole():
    validate_launch_geometry((32, 32, 1), (1, 1, 1), LIMITS)
    with pytest.raises(InvalidProgram, match=r"workgroup of 1056 invocations on backend toy: max is 1024"):
        validate_launch_geometry((33, 32, 1), (1, 1, 1), LIMITS)
    with pytest.raises(InvalidProgram, match=r"invocations per workgroup overflowed u32.*Fix: use a smaller"):
        validate_launch_geometry((65536, 65536, 1), (1, 1, 1))
    validate_launch_geometry((65536, 32768, 1), (1 << 31, 1, 1))


def test_limits_come_from_a_backend():
    class Toy(VyreBackend, contract=1):
        id = "toy"
        capability = BackendCapability(max_workgroup_size=(8, 4, 2), max_workgroups_per_dimension=9)

        def dispatch(self, program, inputs, config=None, *, out=None):
            return []

    assert LaunchGeometryLimits.of(Toy()) == LaunchGeometryLimits("toy", 64, (8, 4, 2), (9, 9, 9))
