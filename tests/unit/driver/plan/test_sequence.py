"""One dispatch as several launches: the bytes are those of one launch on a device that can do it in one."""

import random
import struct
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from vyre import u32
from vyre.backends.reference.backend import CAPABILITY, ReferenceBackend
from vyre.conform.programs.random import random_program
from vyre.driver import counters
from vyre.driver.contract import BackendCapability, CompiledPipeline, VyreBackend
from vyre.driver.contract.values import DEFAULT_CONFIG, DispatchConfig, TimedDispatchResult
from vyre.driver.guard import compile as pipeline
from vyre.driver.guard.compile import explain
from vyre.driver.pipeline import compiler
from vyre.driver.plan import OutputSlot, stages
from vyre.errors import (
    ArgumentValueError,
    DeadlineExceeded,
    DeviceLost,
    DispatchFailed,
    InvalidProgram,
    Trap,
    UnsupportedFeature,
)
from vyre.foundation.check.gridsync import contains_grid_sync
from vyre.foundation.ir.nodes import (
    Atomic,
    Barrier,
    Block,
    BufLen,
    If,
    IndirectDispatch,
    InvocationId,
    Let,
    Load,
    Loop,
    Opaque,
    Store,
    Var,
    WorkgroupId,
    lit,
)
from vyre.foundation.ir.nodes import Trap as TrapNode
from vyre.foundation.ir.ops import AtomicOp, Ordering
from vyre.foundation.ir.program import (
    Access,
    BufferDecl,
    LinearType,
    Program,
    output,
    read,
    read_write,
    uniform,
    workgroup,
    write_only,
)

from ....support.tiers import first_quick

SYNC, GID, ZERO = Barrier(Ordering.GRID_SYNC), InvocationId(0), lit(0)
MOST = 3


class Splitting(ReferenceBackend, contract=1):
    """A device without a grid-wide barrier that takes few workgroups. Every launch on it is written down."""

    id = "splitting"
    capability = replace(CAPABILITY, grid_sync=False, max_workgroups_per_dimension=MOST)

    def __init__(self):
        super().__init__()
        self.launches = []

    def start(self, program, inputs, config, out):
        self.launches.append((program, [bytes(memoryview(b)) for b in inputs], config, out))
        return super().start(program, inputs, config, out)


class Whole(Splitting):
    """The same with both."""

    id = "whole"
    capability = CAPABILITY


def words(*values):
    return struct.pack(f"<{len(values)}I", *values)


def unwords(data):
    return list(struct.unpack(f"<{memoryview(data).nbytes // 4}I", data))


def run(backend, program, inputs, config=DEFAULT_CONFIG, **options):
    return [unwords(b) for b in pipeline.compile(backend, program).dispatch(inputs, config, **options)]


def add(buffer, amount, index=ZERO):
    return Store(buffer, index, Load(buffer, index) + amount)


def adding(segments, buffer="x"):
    """x[0] += 1 in each of so many segments."""
    body = [add(buffer, 1)]
    for _ in range(segments - 1):
        body += [SYNC, add(buffer, 1)]
    return Program([read_write(buffer, 0, u32, 1)], (1, 1, 1), body)


@pytest.mark.row("B-GS-07")
def test_the_launches_of_a_program_are_the_same_in_every_process():
    lets = ", ".join(f"Let('{name}', InvocationId(0) + {k})" for k, name in enumerate("qwertyuiop"))
    total = " + ".join(f"Var('{name}')" for name in "poiuytrewq")
    code = f"""
from vyre import u32
from vyre.driver.plan.stages import based_program, stage_programs
from vyre.foundation.ir.nodes import *
from vyre.foundation.ir.ops import Ordering
from vyre.foundation.ir.program import Program, read_write
body = [{lets}, Barrier(Ordering.GRID_SYNC), Store("x", InvocationId(0), {total})]
stages = stage_programs(Program([read_write("x", 0, u32)], (1, 1, 1), body))
print([(p.fingerprint, based_program(p)[0].fingerprint) for p in stages])
"""
    told = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
    assert len(told.pop()) > 4 * 64


@pytest.fixture
def counted():
    """What a test has added to the funnel's counters."""
    before = counters.counters()
    return lambda name: counters.counters()[name] - before[name]


# ---- segments -------------------------------------------------------------------------------------------------------


@pytest.mark.row("A-GS-1", "B-GS-02")
def test_every_segment_is_a_launch_that_gets_what_the_one_before_left(counted):
    backend, slot = Splitting(), OutputSlot(8)
    program = Program([read_write("x", 0, u32, 1)], (1, 1, 1), [Store("x", ZERO, lit(7)), SYNC, add("x", 1)])
    result = pipeline.compile(backend, program).dispatch([words(0)], out=[slot])
    assert result[0] is slot
    assert unwords(slot.view) == [8]
    assert [inputs for _, inputs, _, _ in backend.launches] == [[words(0)], [words(7)]]
    assert not any(contains_grid_sync(p) for p, _, _, _ in backend.launches)
    assert run(backend, adding(3), [words(4)]) == [[7]]
    assert (counted("split_dispatches"), counted("split_segments"), counted("split_sync_points")) == (2, 5, 3)
    assert counted("split_launches") == 5


@pytest.mark.row("A-GS-2", "B-GS-04")
def test_a_device_with_a_grid_wide_barrier_gets_the_program_as_it_is(counted):
    backend, program = Whole(), adding(3)
    assert run(backend, program, [words(4)]) == [[7]]
    assert [p for p, _, _, _ in backend.launches] == [program]
    assert counted("split_dispatches") == 0


@pytest.mark.row("A-GS-3")
def test_a_backend_that_wants_no_hidden_launches_gets_the_program_or_refuses_it():
    class Alone(Splitting):
        capability = replace(Splitting.capability, host_grid_sync_split=False)

    class AloneAndWhole(Whole):
        capability = replace(Whole.capability, host_grid_sync_split=False)

    backend = AloneAndWhole()
    assert run(backend, adding(2), [words(4)]) == [[6]]
    assert len(backend.launches) == 1
    with pytest.raises(UnsupportedFeature, match=r"lacks grid sync"):
        pipeline.compile(Alone(), adding(2))


def test_compiled_code_of_segments_is_shared_and_kept():
    backend = Splitting()
    first = pipeline.compile_with_telemetry(backend, adding(3))
    entries = compiler.pipelines_of(backend).snapshot().entries
    assert entries == 2  # the sequence, and one program for the three equal segments
    assert pipeline.compile_with_telemetry(backend, adding(3)).cache_hit
    assert compiler.pipelines_of(backend).snapshot().entries == entries
    assert first.pipeline.id.startswith("splitting:sequence:")


@pytest.mark.row("B-GS-05")
def test_an_output_written_in_two_segments_keeps_both():
    program = Program(
        [read("a", 0, u32), output("out", 1, u32, 4)],
        (2, 1, 1),
        [Store("out", GID, Load("a", GID)), SYNC, Store("out", GID + 2, Load("a", GID) + 10)],
    )
    backend, config = Splitting(), DispatchConfig(grid_override=(1, 1, 1))
    assert run(backend, program, [words(1, 2)], config) == [[1, 2, 11, 12]]
    assert len(backend.launches) == 2


def test_results_are_those_of_the_program_in_slot_order_and_range():
    ranged = replaced(output("late", 5, u32, 4), output_byte_range=(4, 12))
    program = Program(
        [
            ranged,
            write_only("early", 1, u32),
            read_write("kept", 3, u32),
            read("a", 2, u32),
            read_write("both", 4, u32),
        ],
        (1, 1, 1),
        [
            Store("both", GID, Load("a", GID)),
            SYNC,
            Store("late", GID, Load("both", GID)),
            SYNC,
            Store("early", GID, GID),
        ],
    )
    config = DispatchConfig(grid_override=(4, 1, 1), output_elements={"early": 2})
    kept = bytearray(words(5, 6))
    inputs = [words(10, 11, 12, 13), kept, words(0, 0, 0, 0)]
    splitting, whole = Splitting(), Whole()
    results = pipeline.compile(splitting, program).dispatch(inputs, config)
    assert [unwords(b) for b in results] == [[0, 1], [5, 6], [10, 11, 12, 13], [11, 12]]
    assert [unwords(b) for b in results] == run(whole, program, inputs, config)
    results[1][:] = bytes(8)  # nothing touched it, and still it is not the caller's
    assert kept == words(5, 6)
    touched = [
        sorted((b.name for b in p.bound_buffers), key=lambda n: n != "base") for p, _, _, _ in splitting.launches
    ]
    assert touched == [["base", *names] for names in (["a", "both"], ["both", "late"], ["early"]) for _ in range(2)]


def replaced(decl, **changes):
    return decl.replace(**changes)


def test_an_output_that_is_read_before_it_is_written_reads_as_zero():
    program = Program(
        [output("out", 0, u32, 2), read_write("x", 1, u32)],
        (1, 1, 1),
        [Store("x", GID, Load("out", GID) + 1), SYNC, Store("out", GID, Load("x", GID) + Load("out", GID))],
    )
    assert run(Splitting(), program, [words(9, 9)]) == [[1, 1], [1, 1]]


def test_inputs_stay_what_they_are():
    given = bytearray(words(4))
    strided = np.arange(6, dtype=np.uint32)[::2]
    program = Program(
        [read_write("x", 0, u32), read("a", 1, u32)],
        (1, 1, 1),
        [Store("x", ZERO, Load("a", lit(1))), SYNC, add("x", 1)],
    )
    backend = Splitting()
    config = DispatchConfig(fixpoint_iterations=3)
    assert run(backend, program, [given, memoryview(strided)], config) == [[3]]
    assert given == words(4)
    assert list(strided) == [0, 2, 4]


def test_a_segment_without_effect_is_no_launch_unless_it_may_stop_the_program():
    idle = [SYNC, Block((Let("y", Load("x", ZERO)),)), SYNC]
    backend = Splitting()
    program = Program([read_write("x", 0, u32)], (1, 1, 1), [*idle, add("x", 1), *idle])
    assert run(backend, program, [words(1)]) == [[2]]
    assert len(backend.launches) == 1
    stopping = Program([read_write("x", 0, u32)], (1, 1, 1), [add("x", 1), SYNC, TrapNode(lit(3), "enough")])
    with pytest.raises(Trap, match=r"enough.*launch='segment 2 of 2'"):
        run(backend, stopping, [words(1)])


def test_workgroup_memory_uniforms_lengths_and_odd_declarations_survive():
    program = Program(
        [
            workgroup("tile", u32, 2),
            uniform("u", 0, u32, 2),
            read("length", 1, u32),
            BufferDecl("x", 2, Access.READ_WRITE, u32, linear_type=LinearType.AFFINE),
            replaced(write_only("y", 7, u32), linear_type=LinearType.LINEAR),
        ],
        (1, 1, 1),
        [
            Store("x", GID, Load("u", lit(1))),
            SYNC,
            Store("tile", lit(1), GID),
            Barrier(),
            Store("y", GID, Load("tile", lit(1)) + BufLen("length")),
        ],
    )
    inputs, config = [words(3, 5), words(1, 1, 1), words(0, 0)], DispatchConfig(output_elements={"y": 2})
    splitting = Splitting()
    assert run(splitting, program, inputs, config) == run(Whole(), program, inputs, config) == [[5, 5], [3, 4]]


def test_a_launch_binds_what_it_touches_as_plain_memory():
    lone = replaced(write_only("y", 7, u32), linear_type=LinearType.LINEAR)
    buffers = [uniform("u", 0, u32, 2), read("a", 1, u32), output("out", 2, u32, 4), lone, workgroup("tile", u32, 2)]
    first = [Store("out", BufLen("y"), Load("u", ZERO) + Load("a", GID))]
    second = [Store("y", GID, Load("out", GID)), Store("tile", ZERO, lit(1))]
    program = Program(buffers, (1, 1, 1), [*first, SYNC, *second])
    one, two = stages.stage_programs(program)
    plain_y = replaced(lone, access=Access.READ_ONLY, kind=None, linear_type=LinearType.UNRESTRICTED)
    assert one.buffers == (buffers[0], buffers[1], read_write("out", 2, u32, 4), plain_y)
    assert two.buffers == (read("out", 2, u32, 4), read_write("y", 7, u32), buffers[4])
    inputs, config = [words(1, 2), words(3)], DispatchConfig(output_elements={"y": 2}, grid_override=(1, 1, 1))
    assert run(Splitting(), program, inputs, config) == run(Whole(), program, inputs, config) == [[0, 0, 4, 0], [0, 0]]


def test_limits_and_profiles_of_the_caller_are_about_the_whole():
    class Profiled(Splitting):
        capability = replace(Splitting.capability, extras={"profiles": {"thrice": {"fixpoint_iterations": 3}}})

    assert run(Profiled(), adding(2), [words(0)], DispatchConfig(profile="thrice")) == [[6]]
    narrow = replaced(output("out", 0, u32, 4), output_byte_range=(4, 8))
    program = Program([narrow], (1, 1, 1), [Store("out", lit(1), lit(1)), SYNC, add("out", 1, lit(1))])
    assert run(Splitting(), program, [], DispatchConfig(max_output_bytes=4, grid_override=(1, 1, 1))) == [[2]]


# ---- repetition -----------------------------------------------------------------------------------------------------


def hopping(n):
    """One hop of the flag along a line per pass: everyone looks left, then everyone writes."""
    look = If(lit(n) > GID, (Store("seen", GID, Load("flag", GID) | Load("flag", GID - 1)),))
    move = If(lit(n) > GID, (Store("flag", GID, Load("seen", GID)),))
    return Program([read_write("flag", 0, u32, n), read_write("seen", 1, u32, n)], (1, 1, 1), [look, SYNC, move])


@pytest.mark.row("B-GS-06")
def test_the_sequence_is_repeated_as_a_whole_and_stops_when_nothing_changes(counted):
    n = 6
    start = [words(1, *[0] * (n - 1)), words(*[0] * n)]
    for iterations in (1, 2, 4, n - 1, n, n + 1, 1000, 0xFFFFFFFF):
        backend, before = Splitting(), counted("split_passes")
        config = DispatchConfig(fixpoint_iterations=iterations)
        flag, seen = run(backend, hopping(n), start, config)
        assert flag == seen == [int(i <= iterations) for i in range(n)]
        passes = min(iterations, n)  # the last one only sees that nothing changes
        assert counted("split_passes") - before == passes
        assert len(backend.launches) == 2 * 2 * passes  # two segments in two pieces each
        assert all(config.fixpoint_iterations is None for _, _, config, _ in backend.launches)
    assert counted("fixpoints_reached") == 4  # with n iterations the last one was spent on seeing it
    assert run(Whole(), hopping(n), start, config) == [flag, seen]


def test_a_sequence_that_never_settles_runs_to_the_end():
    config = DispatchConfig(fixpoint_iterations=5)
    assert run(Splitting(), adding(2), [words(1)], config) == run(Whole(), adding(2), [words(1)], config) == [[11]]


def test_memory_that_a_backend_changed_in_place_says_nothing_about_a_fixpoint():
    class InPlace(Launches):
        def dispatch(self, inputs, config=None, *, out=None):
            cell = inputs[0] if isinstance(inputs[0], bytearray) else bytearray(inputs[0])
            cell[0] += 1
            return [cell]

    compiled = pipeline.compile(Compiling(InPlace()), adding(2))
    assert compiled.dispatch([words(0)], DispatchConfig(fixpoint_iterations=3)) == [words(6)]


# ---- grids over the limit -------------------------------------------------------------------------------------------


def places():
    """Where everyone is, and one count for all."""
    index = (InvocationId(2) * 16 + InvocationId(1)) * 16 + GID
    where = (WorkgroupId(2) * 16 + WorkgroupId(1)) * 16 + WorkgroupId(0)
    body = [Store("where", index, where + 1), Let("_", Atomic(AtomicOp.ADD, "count", ZERO, lit(1)))]
    return Program([write_only("where", 0, u32), read_write("count", 1, u32, 1)], (2, 1, 2), body)


@pytest.mark.parametrize("grid", [(3, 3, 3), (4, 1, 1), (1, 4, 1), (1, 1, 4), (7, 4, 5), (3, 6, 2)])
def test_ids_count_on_over_the_launches_of_a_large_grid(grid, counted):
    config = DispatchConfig(grid_override=grid, output_elements={"where": 16**3})
    splitting, whole = Splitting(), Whole()
    assert run(splitting, places(), [words(5)], config) == run(whole, places(), [words(5)], config)
    launches = int(np.prod([-(-n // MOST) for n in grid]))
    assert len(splitting.launches) == launches
    assert all(max(config.grid_override) <= MOST for _, _, config, _ in splitting.launches)
    assert counted("split_launches") == (launches if launches > 1 else 0)
    assert len(whole.launches) == 1


@pytest.mark.parametrize("ask", ["dispatch", "dispatch_timed", "dispatch_async", "dispatch_batch"])
def test_every_way_to_dispatch_splits(ask):
    program = Program(
        [read("a", 0, u32), write_only("out", 1, u32)], (1, 1, 1), [Store("out", GID, Load("a", GID) + 1)]
    )
    compiled, inputs = pipeline.compile(Splitting(), program), [words(1, 2, 3, 4)]
    for given in (None, [bytearray(16)]):
        if ask == "dispatch_batch":
            (result,) = compiled.dispatch_batch([inputs], out=None if given is None else [given])
        else:
            result = getattr(compiled, ask)(inputs, out=given)
            result = (
                result.outputs if ask == "dispatch_timed" else result.result() if ask == "dispatch_async" else result
            )
        assert unwords(result[0]) == [2, 3, 4, 5]
        assert given is None or result[0] is given[0]


def test_the_same_pipeline_serves_small_and_large_grids():
    backend = Splitting()
    program = Program([read("a", 0, u32), write_only("out", 1, u32)], (1, 1, 1), [Store("out", GID, Load("a", GID))])
    compiled = pipeline.compile(backend, program)
    for n, launches in ((3, 1), (4, 2), (3, 1), (9, 3), (4, 2)):
        backend.launches.clear()
        assert unwords(compiled.dispatch([words(*range(n))])[0]) == list(range(n))
        assert len(backend.launches) == launches


def test_a_grid_wide_barrier_in_a_large_grid_waits_for_all_of_it():
    n = 8
    turned = Store("out", GID, Load("x", lit(n - 1) - GID))
    program = Program(
        [write_only("x", 0, u32), write_only("out", 1, u32)], (1, 1, 1), [Store("x", GID, GID), SYNC, turned]
    )
    program = program.replace(buffers=(read_write("x", 0, u32), write_only("out", 1, u32)))

    class BarrierButSmall(Splitting):
        capability = replace(Splitting.capability, grid_sync=True)

    for backend in (Splitting(), BarrierButSmall()):
        assert run(backend, program, [bytes(4 * n)]) == [list(range(n)), list(range(n))[::-1]]
        assert len(backend.launches) == 2 * 3
    assert run(small := BarrierButSmall(), program, [bytes(4 * MOST)])  # which fits
    assert len(small.launches) == 1


def test_the_hidden_uniform_takes_a_free_name_and_slot():
    program = Program(
        [read("base", 0, u32), read("base_", 2, u32), write_only("out", 1, u32), workgroup("tile", u32, 1)],
        (1, 1, 1),
        [Store("tile", ZERO, Load("base_", GID)), Store("out", GID, Load("base", GID) + Load("tile", ZERO))],
    )
    inputs = [words(1, 2, 3, 4), words(10, 20, 30, 40)]
    backend = Splitting()
    assert run(backend, program, inputs) == [[11, 22, 33, 44]]
    launched = backend.launches[0][0]
    assert {b.name: b.binding for b in launched.bound_buffers} == {"base": 0, "out": 1, "base_": 2, "base__": 3}
    assert backend.launches[1][1][-1] == words(3, 0, 0, 3, 0, 0)


def test_another_workgroup_counts_in_its_own_size():
    program = Program([read("a", 0, u32), write_only("out", 1, u32)], (1, 1, 1), [Store("out", GID, Load("a", GID))])
    data, config = words(*range(40)), DispatchConfig(workgroup_override=(4, 1, 1))
    backend = Splitting()
    assert run(backend, program, [data], config) == [list(range(40))]
    assert len(backend.launches) == 4


def test_launches_that_must_stay_one_are_refused_as_before():
    class Cooperative(Splitting):
        capability = replace(Splitting.capability, grid_sync=True, host_grid_sync_split=False)

    plain = Program([read_write("x", 0, u32)], (1, 1, 1), [add("x", 1, GID)])
    config = DispatchConfig(grid_override=(MOST + 1, 1, 1))
    with pytest.raises(InvalidProgram, match="max is 3"):
        run(Cooperative(), plain, [bytes(16)], config.with_(cooperative=True))
    with pytest.raises(InvalidProgram, match="max is 3"):
        run(Cooperative(), adding(2), [bytes(4)], config)
    assert run(Cooperative(), plain, [bytes(16)], config) == [[1, 1, 1, 1]]


def test_a_program_with_an_extension_is_never_given_other_ids():
    body = [Store("x", GID, Load("x", GID)), Let("y", Opaque("test.extension", b""))]
    program = Program([read_write("x", 0, u32)], (1, 1, 1), body)

    class Extended(Compiling):
        capability = BackendCapability(ops=program.ops(), max_workgroups_per_dimension=MOST)

    limits = stages.launch_limits(program, Extended(Launches()), DEFAULT_CONFIG)
    assert limits.max_grid_dim == (MOST, MOST, MOST)
    plain = Program([read_write("x", 0, u32)], (1, 1, 1), body[:1])
    assert min(stages.launch_limits(plain, Extended(Launches()), DEFAULT_CONFIG).max_grid_dim) == 0xFFFFFFFF


def test_a_device_that_takes_no_workgroup_is_given_none():
    class Nothing(Splitting):
        capability = replace(Splitting.capability, max_workgroups_per_dimension=0)

    for program in (adding(1), adding(2)):
        with pytest.raises(InvalidProgram, match="max is 0"):
            run(Nothing(), program, [words(1)])


def test_a_device_that_cannot_run_what_a_large_grid_takes_says_so():
    program = Program([write_only("out", 0, u32)], (1, 1, 1), [Store("out", GID, lit(1))])

    class Little(Compiling):
        capability = BackendCapability(ops=program.ops(), max_workgroups_per_dimension=8)

    config = DispatchConfig(grid_override=(9, 1, 1), output_elements={"out": 9})
    with pytest.raises(UnsupportedFeature, match=r"backend toy does not run the program.*vyre\.load"):
        run(Little(Launches()), program, [], config)


# ---- grids that lie in memory ---------------------------------------------------------------------------------------


def indirect(*body):
    buffers = [read_write("grid", 0, u32, 3), read_write("x", 1, u32)]
    return Program(buffers, (1, 1, 1), [IndirectDispatch("grid", 0), *body])


@pytest.mark.parametrize("grid", [(2, 1, 1), (3, 2, 1), (5, 1, 1), (4, 4, 4), (0, 1, 1), (7, 0, 1)])
@pytest.mark.parametrize("barrier", [False, True])
def test_a_grid_from_memory_is_split_like_any_other(grid, barrier):
    count = Let("_", Atomic(AtomicOp.ADD, "x", GID, WorkgroupId(1) + 1))
    program = indirect(count, *([SYNC, Let("again", Atomic(AtomicOp.ADD, "x", GID, lit(100)))] * barrier))
    inputs = [words(*grid), bytes(32)]
    assert run(Splitting(), program, inputs) == run(Whole(), program, inputs)


def test_an_iteration_may_change_the_grid_of_the_next():
    grow = If(GID.eq(0), (add("grid", 2),))
    program = indirect(Let("_", Atomic(AtomicOp.ADD, "x", GID, lit(1))), SYNC, grow)
    inputs, config = [words(1, 1, 1), bytes(48)], DispatchConfig(fixpoint_iterations=5)
    grid, x = run(Splitting(), program, inputs, config)
    assert ([grid, x] == run(Whole(), program, inputs, config)) is True
    assert grid == [11, 1, 1]
    assert x == [5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0, 0]


def test_a_grid_that_grows_beyond_all_ids_is_refused():
    grow = If(GID.eq(0), (Store("grid", ZERO, lit(0xFFFFFFFF)),))
    program = indirect(add("x", 1), SYNC, grow).replace(workgroup_size=(2, 1, 1))
    for backend in (Splitting(), Whole()):
        with pytest.raises(ArgumentValueError, match="overflowed u32"):
            run(backend, program, [words(1, 1, 1), bytes(4)], DispatchConfig(fixpoint_iterations=2))


def test_a_dispatch_over_no_workgroup_takes_no_time_of_the_device():
    program = indirect(add("x", 1), SYNC, add("x", 1))
    result = pipeline.compile(Splitting(), program).dispatch_timed([words(0, 1, 1), words(5)])
    assert [unwords(b) for b in result.outputs] == [[0, 1, 1], [5]]
    assert (result.device_ns, result.enqueue_ns, result.wait_ns) == (None, None, None)


# ---- time, failures, threads ----------------------------------------------------------------------------------------


class Launches(CompiledPipeline):
    """Adds one to the first byte of its only buffer, and tells times."""

    backend_id, id = "toy", "toy:1"

    def dispatch(self, inputs, config=None, *, out=None):
        return [bytes([inputs[0][0] + 1]) + bytes(inputs[0][1:])]

    def dispatch_timed(self, inputs, config=None, *, out=None):
        return TimedDispatchResult(self.dispatch(inputs, config), 9, 2, 3, 4)


class Compiling(VyreBackend, contract=1):
    id = "toy"
    capability = BackendCapability(max_workgroups_per_dimension=8)

    def __init__(self, native):
        self.native = native

    def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        return self.native.dispatch(inputs, config, out=out)

    def compile_native(self, program, config):
        return self.native


def test_times_are_sums_where_every_launch_tells_them():
    result = pipeline.compile(Compiling(Launches()), adding(3)).dispatch_timed([words(1)])
    assert (result.device_ns, result.enqueue_ns, result.wait_ns) == (6, 9, 12)
    assert result.outputs == [words(4)]
    assert result.wall_ns > 0

    class NotAlways(Launches):
        calls = 0

        def dispatch_timed(self, inputs, config=None, *, out=None):
            self.calls += 1
            told = super().dispatch_timed(inputs, config)
            return replace(told, device_ns=None) if self.calls == 2 else told

    result = pipeline.compile(Compiling(NotAlways()), adding(3)).dispatch_timed([words(1)])
    assert (result.device_ns, result.enqueue_ns, result.wait_ns) == (None, 9, 12)


@pytest.mark.parametrize(
    "error, raised, text",
    [
        (
            DispatchFailed("no luck", fix="try again"),
            DispatchFailed,
            r"no luck.*launch='segment 2 of 3'.*Fix: try again",
        ),
        (OSError("broken pipe"), DispatchFailed, r"raised OSError in segment 2 of 3: broken pipe.*Fix: "),
    ],
)
def test_a_failure_says_in_which_segment(error, raised, text):
    class Failing(Launches):
        calls = 0

        def dispatch(self, inputs, config=None, *, out=None):
            self.calls += 1
            if self.calls == 2:
                raise error
            return super().dispatch(inputs, config)

    given, out = words(1), bytearray(b"mine")
    with pytest.raises(raised, match=text):
        pipeline.compile(Compiling(Failing()), adding(3)).dispatch([given], out=[out])
    assert out == b"mine"


def test_a_failure_in_a_large_grid_says_where():
    program = Program(
        [read_write("x", 0, u32)], (1, 1, 1), [add("x", 1, GID), If(GID.eq(7), (TrapNode(GID, "seven"),))]
    )
    with pytest.raises(Trap, match=r"segment 1 of 1, workgroups \(6, 0, 0\) and on"):
        run(Splitting(), program, [bytes(36)])


@pytest.mark.parametrize("outputs", [None, [], [b"abc"], [words(1), words(2)]])
def test_a_launch_that_returns_something_else_breaks_the_contract(outputs):
    class Wrong(Launches):
        def dispatch(self, inputs, config=None, *, out=None):
            return outputs

    with pytest.raises(DispatchFailed, match=r"toy broke its contract.*buffers of \[4\] bytes.*segment 1 of 2"):
        pipeline.compile(Compiling(Wrong()), adding(2)).dispatch([words(1)])


def test_the_launches_share_one_deadline():
    spin = Loop("k", ZERO, lit(0xFFFFFFFF), (If(Load("x", lit(1)).eq(1), (add("x", 0),)),))
    program = Program([read_write("x", 0, u32, 2)], (1, 1, 1), [add("x", 1), SYNC, spin])
    backend, out = Splitting(), bytearray(b"mine" * 2)
    compiled = pipeline.compile(backend, program, DispatchConfig(timeout=60))
    with pytest.raises(DeadlineExceeded):
        compiled.dispatch([words(1, 1)], DispatchConfig(timeout=0.5), out=[out])
    assert out == b"mine" * 2
    first, second = (config.timeout for _, _, config, _ in backend.launches)
    assert second < first <= 0.5
    assert run(backend, adding(2), [words(1)], DispatchConfig(timeout=60)) == [[3]]


def test_no_launch_starts_after_the_deadline():
    class Slow(Launches):
        calls = 0

        def dispatch(self, inputs, config=None, *, out=None):
            self.calls += 1
            time.sleep(0.3)
            return super().dispatch(inputs, config)

    class Keeping(Compiling):
        capability = replace(Compiling.capability, deadline="cooperative")

    native = Slow()
    compiled = pipeline.compile(Keeping(native), adding(5), DispatchConfig(timeout=60))
    with pytest.raises(DeadlineExceeded, match=r"segment 2 of 5"):
        compiled.dispatch([words(1)], DispatchConfig(timeout=0.2))
    assert native.calls == 1


def test_a_sequence_ends_when_its_device_does():
    class Recovering(Splitting):
        def start(self, program, inputs, config, out):
            if self.launches:
                guard.device_state.lose()
            return super().start(program, inputs, config, out)

    backend = Recovering()
    compiled = pipeline.compile(backend, adding(4))
    guard = compiled.backend
    with pytest.raises(DeviceLost):
        compiled.dispatch([words(1)])
    assert len(backend.launches) == 2


def test_threads_do_not_meet_in_a_sequence():
    compiled, found = pipeline.compile(Splitting(), hopping(5)), []
    config = DispatchConfig(fixpoint_iterations=9)

    def work(k):
        flag = [0] * 5
        flag[k % 5] = k + 1
        for _ in range(5):
            found.append((k, unwords(compiled.dispatch([words(*flag), bytes(20)], config)[0])))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 40
    assert all(flag == [0] * (k % 5) + [k + 1] * (5 - k % 5) for k, flag in found)


def test_the_plan_is_explained():
    backend = Splitting()
    compiled = pipeline.compile(backend, adding(3))
    told = str(compiled.explain([words(1)]))
    assert "launch: in sequence (3 launches, as the device has no grid-wide barrier)" in told
    assert "code: sequence (backend splitting compiled each launch of it)" in told
    told = str(compiled.explain([words(1)], DispatchConfig(grid_override=(4, 4, 1))))
    assert "in sequence (12 launches, as the device has no grid-wide barrier and the device takes 3 workgroups" in told
    plain = Program([read_write("x", 0, u32)], (1, 1, 1), [add("x", 1, GID)])
    assert "in sequence (2 launches, as the device takes 3" in str(explain(plain, [bytes(16)], backend=backend))
    assert "launch: plain" in str(explain(plain, [bytes(12)], backend=backend))
    assert backend.launches == []


# ---- random programs ------------------------------------------------------------------------------------------------


@pytest.mark.row("B-GS-08")
@pytest.mark.parametrize("block", first_quick(range(6), 1))
def test_random_programs_with_grid_wide_barriers_have_the_bytes_of_one_launch(block):
    whole, splitting = Whole(), Splitting()
    for seed in range(block * 12, block * 12 + 12):
        agree(whole, splitting, random_program(random.Random(seed), grid_barriers=True))
    assert len(splitting.launches) > 3 * 12


@pytest.mark.parametrize("block", range(3))
def test_random_programs_do_not_see_that_their_grid_was_split(block):
    class Single(Splitting):
        capability = replace(CAPABILITY, max_workgroups_per_dimension=1)

    whole, single = Whole(), Single()
    for seed in range(block * 12, block * 12 + 12):
        agree(whole, single, random_program(random.Random(seed)))
    assert len(single.launches) > len(whole.launches)


@pytest.mark.sweep
@pytest.mark.parametrize("block", range(20))
def test_many_random_programs_have_the_bytes_of_one_launch(block):
    whole, splitting = Whole(), Splitting()
    for seed in range(10_000 + block * 100, 10_100 + block * 100):
        agree(whole, splitting, random_program(random.Random(seed), grid_barriers=seed % 4 > 0, max_statements=24))


def agree(whole, splitting, case):
    for iterations in (None, 3):
        config = DispatchConfig(
            grid_override=case.grid, output_elements=case.output_elements or None, fixpoint_iterations=iterations
        )
        one, several = (pipeline.compile(b, case.program).dispatch(case.inputs, config) for b in (whole, splitting))
        assert [bytes(b) for b in several] == [bytes(b) for b in one], case.program


def test_nested_wrappers_are_cut_too():
    program = Program(
        [read_write("x", 0, u32, 1)],
        (1, 1, 1),
        [Let("one", lit(1)), Block((add("x", Var("one")), SYNC, Block((add("x", 1), SYNC)))), add("x", Var("one"))],
    )
    backend = Splitting()
    assert run(backend, program, [words(4)]) == [[7]]
    assert len(backend.launches) == 3


def test_determinism_is_asked_of_the_whole_and_not_of_its_launches():
    backend = Splitting()
    first = [Store("out", ZERO, lit(7))]  # by one invocation, which a launch that counts on from a base does not show
    program = Program([output("out", 0, u32, 1)], (2, 1, 1), [If(GID.eq(ZERO), first)])
    config = DispatchConfig(determinism="require", grid_override=(8, 1, 1))
    (found,) = pipeline.compile(backend, program, config).dispatch([])
    assert struct.unpack("<I", found) == (7,)
    assert len(backend.launches) == 3
    with pytest.raises(InvalidProgram, match='determinism="require"'):
        pipeline.compile(backend, program, config).dispatch([], config.with_(grid_override=(8, 2, 1)))
    assert len(backend.launches) == 3
