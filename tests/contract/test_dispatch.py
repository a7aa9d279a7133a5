"""What every backend does with a dispatch: the bytes, whose memory they are in, and each field of the config."""

import asyncio
import random
import threading
import time
from contextlib import contextmanager
from dataclasses import fields

import numpy as np
import pytest

import vyre
from vyre.backends.reference import run
from vyre.conform.programs.random import random_program
from vyre.driver import counters
from vyre.driver.admission.program import settle_config, why_not
from vyre.driver.contract import CompiledPipeline, PendingDispatch
from vyre.driver.contract.values import DispatchConfig, PersistentThreadMode, SpeculationMode, TimedDispatchResult
from vyre.driver.guard import compile as pipelines
from vyre.driver.pipeline import pipelines_of
from vyre.errors import (
    BackendError,
    DeadlineExceeded,
    DispatchFailed,
    InvalidProgram,
    Trap,
    UnsupportedFeature,
    VyreError,
)
from vyre.foundation.ir.dtypes import u32
from vyre.foundation.ir.nodes import IndirectDispatch, InvocationId, Store, lit
from vyre.foundation.ir.program import Program, read, read_write, write_only

from ..support.tiers import first_quick
from .doubles import MockBackend
from .programs import ADD, COUNT, EXP, LANE, LONG, NEIGHBOUR, NUMBER, PLANE, SCATTER, SPLIT, TRAP, unwords, words

THREE = DispatchConfig(output_elements={"out": 3})
FOUR = DispatchConfig(output_elements={"out": 4})


def compiled(backend, program, config=FOUR):
    return pipelines.compile(backend, program, config)


@contextmanager
def skipped_if_refused(backend):
    """A device that stops long loops refuses programs that may have some."""
    try:
        yield
    except UnsupportedFeature as e:
        pytest.skip(f"{backend.id}: {e}")


def both_ways(backend, program, inputs, config):
    """The same dispatch through the backend and through a compiled pipeline."""
    direct = [bytes(o) for o in backend.dispatch(program, inputs, config)]
    with pipelines.compile(backend, program, config) as pipeline:
        assert [bytes(o) for o in pipeline.dispatch(inputs)] == direct
        assert [bytes(o) for o in pipeline.dispatch(inputs, config)] == direct
    return direct


# ---- bytes ----------------------------------------------------------------------------------------------------------


@pytest.mark.row("A-CP-6")
def test_a_dispatch_gives_outputs_in_slot_order(backend):
    x = words(0x00010002, 0xFFFF0000, 7)
    config = DispatchConfig(output_elements={"low": 3, "high": 3})
    assert both_ways(backend, SPLIT, [x], config) == [words(2, 0, 7), words(1, 0xFFFF, 0)]


@pytest.mark.row("A-CP-6")
def test_workgroup_memory_and_barriers_work(backend):
    config = DispatchConfig(output_elements={"out": 8})
    (out,) = both_ways(backend, NEIGHBOUR, [words(*range(8))], config)
    assert unwords(out) == [1, 2, 3, 0, 5, 6, 7, 4]


def test_inputs_may_be_any_buffer_and_are_not_changed(backend):
    values = [1, 2, 3, 4]
    forms = [words(*values), bytearray(words(*values)), memoryview(words(*values)), np.array(values, np.uint32)]
    forms.append(np.array([1, 9, 2, 9, 3, 9, 4, 9], np.uint32)[::2])
    for a in forms:
        before = bytes(memoryview(a))
        (out,) = backend.dispatch(ADD, [a, words(10, 20, 30, 40)], FOUR)
        assert unwords(out) == [11, 22, 33, 44]
        assert bytes(memoryview(a)) == before


def test_an_inout_buffer_of_the_caller_is_left_alone(backend):
    n = bytearray(words(1, 2))
    (out,) = backend.dispatch(COUNT, [n])
    assert unwords(out) == [2, 3]
    assert unwords(n) == [1, 2]


def test_results_do_not_share_memory_with_anything(backend):
    first = backend.dispatch(NUMBER, [], FOUR)[0]
    second = backend.dispatch(NUMBER, [], FOUR)[0]
    memoryview(first).cast("B")[0] = 99
    assert unwords(second) == [1, 2, 3, 4]


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 1000])
def test_lengths_that_do_not_fill_a_workgroup_are_fine(backend, length):
    a, b = np.arange(length, dtype=np.uint32), np.full(length, 7, np.uint32)
    (out,) = backend.dispatch(ADD, [a, b], DispatchConfig(output_elements={"out": length}))
    assert np.array_equal(np.frombuffer(out, np.uint32), a + b)


def test_borrowed_and_timed_dispatch_give_the_same_bytes(backend):
    inputs = [words(1, 2, 3, 4), words(5, 6, 7, 8)]
    expected = [words(6, 8, 10, 12)]
    assert backend.dispatch_borrowed(ADD, inputs, FOUR) == expected
    timed = backend.dispatch_timed(ADD, inputs, FOUR)
    assert isinstance(timed, TimedDispatchResult)
    assert timed.outputs == expected
    assert timed.wall_ns > 0
    pipeline = compiled(backend, ADD)
    assert pipeline.dispatch_timed(inputs).outputs == expected
    assert pipeline.dispatch_async(inputs).result() == expected
    assert pipeline.dispatch_batch([inputs, inputs]) == [expected, expected]


def test_a_failed_dispatch_does_not_spoil_the_next(backend):
    with pytest.raises(Trap, match="seven"):
        backend.dispatch(TRAP, [words(0)])
    assert backend.dispatch(COUNT, [words(1)]) == [words(2)]


RANDOM_PROGRAMS = 100
BLOCK = 20


@pytest.mark.row("A-CP-6")
@pytest.mark.parametrize("block", first_quick(range(RANDOM_PROGRAMS // BLOCK), 1))
def test_random_programs_mean_what_the_reference_says(backend, block):
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        everything = seed % 2 == 0  # a backend that has less runs the other half
        options = {"max_statements": 10, "wide": everything, "subgroups": everything, "endless": False}
        case = random_program(random.Random(seed), **options)
        if why := why_not(case.program, backend):
            assert backend.id != "reference", why
            continue
        config = DispatchConfig(grid_override=case.grid, output_elements=case.output_elements)
        expected = run(
            case.program, case.inputs, grid=case.grid, output_elements=case.output_elements, engine="scalar"
        ).outputs
        try:
            assert both_ways(backend, case.program, case.inputs, config) == expected
        except Exception as e:
            e.add_note(f"seed {seed}, grid {case.grid}:\n{case.program}")
            raise


@pytest.mark.row("A-BE-15")
def test_the_same_dispatch_gives_the_same_bytes_every_time(backend):
    rng = random.Random(15)
    cases = [random_program(rng, max_statements=8, wide=False, subgroups=False, endless=False) for _ in range(10)]
    seen = {}
    for k in range(300):
        case = cases[rng.randrange(len(cases)) if k >= len(cases) else k]
        config = DispatchConfig(grid_override=case.grid, output_elements=case.output_elements)
        outputs = [bytes(o) for o in backend.dispatch(case.program, case.inputs, config)]
        assert seen.setdefault(id(case), outputs) == outputs


def test_dispatches_from_many_threads_equal_the_serial_ones(backend):
    pipeline = compiled(backend, ADD)
    inputs = [[words(k, k, k, k), words(1, 2, 3, 4)] for k in range(32)]
    expected = [pipeline.dispatch(i) for i in inputs]
    got = [None] * len(inputs)

    def work(first):
        for k in range(first, len(inputs), 4):
            got[k] = pipeline.dispatch(inputs[k]) if k % 2 else backend.dispatch(ADD, inputs[k], FOUR)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == expected


# ---- out= -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["backend", "pipeline"])
def add(request, backend):
    """ADD on four elements with `out`, both ways."""
    if request.param == "backend":
        return lambda inputs, out: backend.dispatch(ADD, inputs, FOUR, out=out)
    return lambda inputs, out: compiled(backend, ADD).dispatch(inputs, out=out)


ONES = words(1, 1, 1, 1)


@pytest.mark.row("A-PD-1")
def test_results_go_where_the_caller_says(add):
    for target in (bytearray(16), np.zeros(4, np.uint32), np.zeros((2, 2), np.int32), memoryview(bytearray(16))):
        result = add([words(1, 2, 3, 4), ONES], [target])
        assert type(result) is list
        assert len(result) == 1
        assert result[0] is target
        assert bytes(memoryview(target)) == words(2, 3, 4, 5)


def test_outputs_may_be_the_inputs(add):
    a = np.array([1, 2, 3, 4], np.uint32)
    add([a, a], [a])
    assert a.tolist() == [2, 4, 6, 8]
    shifted = np.arange(5, dtype=np.uint32)
    add([shifted[:4], ONES], [shifted[1:]])
    assert shifted.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "make, why",
    [
        (lambda: [bytearray(12)], "12"),
        (lambda: [bytearray(20)], "20"),
        (lambda: [bytes(16)], "read-only"),
        (lambda: [np.zeros(8, np.uint32)[::2]], "contiguous"),
        (lambda: ["text"], "str"),
        (list, "out"),
        (lambda: [bytearray(16), bytearray(16)], "out"),
    ],
    ids=["short", "long", "read-only", "strided", "no buffer", "missing", "too many"],
)
def test_an_output_that_does_not_fit_is_refused_and_left_alone(add, make, why):
    out = make()
    before = [bytes(memoryview(o)) for o in out if not isinstance(o, str)]
    with pytest.raises(VyreError, match=rf"{why}.*Fix: "):
        add([words(1, 2, 3, 4), ONES], out)
    assert [bytes(memoryview(o)) for o in out if not isinstance(o, str)] == before


def test_an_output_that_cannot_take_its_result_is_refused_before_hours_of_work(backend):
    config = DispatchConfig(timeout=5)
    pipelines.compile(backend, LONG, config)  # which takes a busy machine longer
    for out in ([bytes(4)], [np.zeros(8, np.uint8)[::2]], [bytearray(8)]):
        with pytest.raises(VyreError, match="Fix: ") as e:
            backend.dispatch(LONG, [words(0)], config, out=out)
        assert not isinstance(e.value, DeadlineExceeded)


def test_a_started_dispatch_keeps_its_own_list_of_outputs(backend):
    target = bytearray(16)
    out = [target]
    pending = backend.dispatch_async(ADD, [words(1, 2, 3, 4), ONES], FOUR, out=out)
    out.clear()
    assert pending.result() == [target]
    assert unwords(target) == [2, 3, 4, 5]


def test_nothing_is_written_when_the_dispatch_fails(backend):
    target = bytearray(b"\xa5" * 4)
    with pytest.raises(Trap):
        backend.dispatch(TRAP, [words(0)], out=[target])
    assert target == b"\xa5" * 4


# ---- asynchronous ---------------------------------------------------------------------------------------------------


@pytest.mark.row("A-PD-4")
def test_a_started_dispatch_does_not_see_later_changes_of_its_inputs(backend):
    a = bytearray(words(1, 2, 3, 4))
    for start in (
        lambda: backend.dispatch_async(ADD, [a, ONES], FOUR),
        lambda: compiled(backend, ADD).dispatch_async([a, ONES]),
    ):
        pending = start()
        a[:] = bytes(16)
        assert isinstance(pending, PendingDispatch)
        assert pending.result(timeout=60) == [words(2, 3, 4, 5)]
        a[:] = words(1, 2, 3, 4)


def test_started_dispatches_end_in_any_order(backend):
    handles = [backend.dispatch_async(COUNT, [words(k)]) for k in range(8)]
    assert [unwords(h.result()[0]) for h in reversed(handles)] == [[k + 1] for k in reversed(range(8))]
    with pytest.raises(DispatchFailed, match="already taken"):
        handles[0].result()


def test_a_started_dispatch_can_be_awaited(backend):
    async def three():
        return await asyncio.gather(*(asyncio.ensure_future(wrap(k)) for k in range(3)))

    async def wrap(k):
        return await backend.dispatch_async(COUNT, [words(k)])

    assert asyncio.run(three()) == [[words(1)], [words(2)], [words(3)]]


@pytest.mark.row("A-PD-1")
def test_a_started_dispatch_writes_into_the_buffers_it_was_given(backend):
    target = bytearray(16)
    (same,) = backend.dispatch_async(ADD, [words(1, 2, 3, 4), ONES], FOUR, out=[target]).result()
    assert same is target
    assert unwords(target) == [2, 3, 4, 5]


@pytest.mark.row("A-BE-5")
def test_what_is_wrong_with_a_dispatch_is_said_when_it_is_started(backend):
    with pytest.raises(VyreError, match="Fix: "):
        backend.dispatch_async(ADD, [ONES], FOUR)


def test_what_goes_wrong_while_it_runs_is_said_with_the_result(backend):
    pending = None
    try:
        pending = backend.dispatch_async(TRAP, [words(0)])
    except Trap:
        return  # it ran at once
    for _ in range(2):  # a failure is no result that could be used up
        with pytest.raises(Trap, match="seven"):
            pending.result()


def test_flush_returns_when_everything_has_ended(backend):
    handles = [backend.dispatch_async(ADD, [ONES, ONES], FOUR) for _ in range(4)]
    backend.flush()
    assert all(h.is_ready() for h in handles)


def test_waiting_too_long_for_a_result_can_be_tried_again(backend):
    compiled(backend, LONG, DispatchConfig(timeout=60))
    try:
        with skipped_if_refused(backend):
            pending = backend.dispatch_async(LONG, [words(0)], DispatchConfig(timeout=1))
    except DeadlineExceeded:
        return  # it ran at once
    if not pending.is_ready():
        with pytest.raises(DeadlineExceeded, match=r"has not ended yet|in time"):  # its second may be over
            pending.result(timeout=0.01)
    with pytest.raises(DeadlineExceeded, match="in time"):
        pending.result()


# ---- lifecycle ------------------------------------------------------------------------------------------------------


def test_a_backend_can_be_prepared_and_shut_down_twice(backend):
    backend.prepare()
    backend.prepare()
    assert backend.dispatch(COUNT, [words(1)]) == [words(2)]
    backend.flush()
    backend.shutdown()
    backend.shutdown()


def test_nothing_runs_after_shutdown(backend):
    pipeline = compiled(backend, ADD)
    backend.shutdown()
    inputs = [ONES, ONES]
    for use in (
        lambda: backend.dispatch(ADD, inputs, FOUR),
        lambda: backend.dispatch_async(ADD, inputs, FOUR),
        lambda: backend.compile_native(ADD, FOUR),
        lambda: pipeline.dispatch(inputs),
        lambda: pipeline.dispatch_async(inputs),
    ):
        with pytest.raises(BackendError, match=r"shut down .*Fix: "):
            use()


def test_what_was_started_before_shutdown_still_ends(backend):
    pending = backend.dispatch_async(ADD, [ONES, ONES], FOUR)
    backend.shutdown()
    assert pending.result() == [words(2, 2, 2, 2)]


def test_a_closed_pipeline_refuses_and_the_backend_goes_on(backend):
    pipeline = backend.compile_native(ADD, FOUR)
    if pipeline is None:
        pytest.skip(f"{backend.id} compiles nothing ahead")
    assert isinstance(pipeline, CompiledPipeline)
    assert pipeline.id.startswith(f"{backend.id}:")
    assert pipeline.backend_id == backend.id
    pipeline.close()
    pipeline.close()
    with pytest.raises(DispatchFailed, match=r"the pipeline is closed .*Fix: "):
        pipeline.dispatch([ONES, ONES])
    assert backend.dispatch(ADD, [ONES, ONES], FOUR) == [words(2, 2, 2, 2)]


def test_metrics_are_numbers_under_stable_names(backend):
    before = dict(backend.metrics())
    backend.dispatch(COUNT, [words(1)])
    after = dict(backend.metrics())
    assert before.keys() == after.keys()
    assert all(name.isidentifier() and type(value) in (int, float) for name, value in after.items())


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inputs, why",
    [([], "0"), ([ONES], "1"), ([ONES] * 3, "3"), ([ONES, b"abc"], "3 bytes"), ([ONES, "text"], "str")],
    ids=["none", "one", "three", "ragged", "no buffer"],
)
def test_inputs_that_do_not_fit_the_program_are_refused(backend, inputs, why):
    with pytest.raises(VyreError, match=rf"{why}.*Fix: "):
        backend.dispatch(ADD, inputs, FOUR)


def test_an_invalid_program_is_refused(backend):
    program = Program([write_only("out", 0, u32)], (1, 1, 1), [Store("nothing", lit(0), lit(1))])
    with pytest.raises(InvalidProgram, match=r"nothing.*Fix: "):
        backend.dispatch(program, [], THREE)


def test_a_grid_may_lie_in_memory(backend):
    program = Program(
        [read("grid", 0, u32), write_only("out", 1, u32)],
        (4, 1, 1),
        [IndirectDispatch("grid", 4), Store("out", InvocationId(0), lit(1))],
    )
    if why := why_not(program, backend):
        pytest.skip(f"{backend.id}: {why}")
    for groups, expected in ((1, 4), (2, 8), (0, 0)):
        (out,) = backend.dispatch(program, [words(9, groups, 1, 1)], DispatchConfig(output_elements={"out": 8}))
        assert sum(unwords(out)) == expected


# ---- each field of the config ---------------------------------------------------------------------------------------


def test_field_profile_must_be_known(backend):
    assert backend.dispatch(COUNT, [words(1)], DispatchConfig(profile="default")) == [words(2)]
    with pytest.raises(VyreError, match=r"no-such-profile.*Fix: "):
        backend.dispatch(COUNT, [words(1)], DispatchConfig(profile="no-such-profile"))


def test_field_profile_fills_in_what_is_not_set(backend):
    assert settle_config(DispatchConfig(profile="interactive"), backend).timeout == 5
    assert settle_config(DispatchConfig(profile="interactive", timeout=1), backend).timeout == 1


@pytest.mark.row("A-CFG-7")
def test_field_timeout_ends_a_dispatch(backend):
    if backend.deadline == "none":
        pytest.skip(f"{backend.id} keeps no deadline")
    assert backend.dispatch(COUNT, [words(1)], DispatchConfig(timeout=60)) == [words(2)]  # the device opens
    compiled(backend, LONG, DispatchConfig(timeout=60))
    target = bytearray(b"\xa5" * 4)
    with skipped_if_refused(backend), pytest.raises(DeadlineExceeded, match=r"in time.*Fix: "):
        backend.dispatch(LONG, [words(0)], DispatchConfig(timeout=0.1), out=[target])
    assert target == b"\xa5" * 4
    assert backend.dispatch(COUNT, [words(1)]) == [words(2)]  # which may have to wait for what was left behind


@pytest.mark.parametrize("timeout", [0, 1e-9])
def test_field_timeout_of_no_time_is_over_at_once(backend, timeout):
    if backend.deadline == "none":
        pytest.skip(f"{backend.id} keeps no deadline")
    with pytest.raises(DeadlineExceeded):
        backend.dispatch(COUNT, [words(1)], DispatchConfig(timeout=timeout))


def test_field_timeout_holds_for_compiling_too_and_what_was_compiled_is_kept(backend, monkeypatch):
    go_on, compilations, compile_native = threading.Event(), [], backend.inner.compile_native

    def slow(program, config):
        compilations.append(program)
        assert go_on.wait(60)
        return compile_native(program, config)

    monkeypatch.setattr(backend.inner, "compile_native", slow)
    program = Program([write_only("out", 0, u32)], (4, 1, 1), [Store("out", InvocationId(0), lit(4711))])
    for timeout in (0, 0.05):
        with pytest.raises(DeadlineExceeded, match=r"not compiled in time.*Fix: call again: compiling goes on") as e:
            backend.dispatch(program, [], FOUR.with_(timeout=timeout))
        assert e.value.context == {"backend": backend.id, "timeout": timeout}
    go_on.set()
    assert backend.dispatch(program, [], FOUR.with_(timeout=60)) == [words(*[4711] * 4)]
    assert len(compilations) == 1


def test_compiling_ahead_has_all_the_time_it_needs(backend, monkeypatch):
    compile_native, slept = backend.inner.compile_native, []
    monkeypatch.setattr(
        backend.inner, "compile_native", lambda *a: slept.append(time.sleep(0.05)) or compile_native(*a)
    )
    program = Program([write_only("out", 0, u32)], (4, 1, 1), [Store("out", InvocationId(0), lit(4712))])
    with compiled(backend, program, FOUR.with_(timeout=0.01)):
        assert slept == [None]


def test_a_program_of_exactly_the_most_steps_runs_and_a_larger_one_is_refused(backend):
    program = Program([write_only("out", 0, u32, 1)], (1, 1, 1), [Store("out", lit(0), lit(7))])
    steps = program.stats.steps
    with vyre.config(max_steps=steps):
        assert backend.dispatch(program, []) == [b"\7\0\0\0"]
    larger = Program(program.buffers, (1, 1, 1), [Store("out", lit(0), lit(7)), Store("out", lit(0), lit(8))])
    message = rf"it has {larger.stats.steps} steps to compile; max is {steps}.*Fix: split it .*VYRE_MAX_STEPS"
    with vyre.config(max_steps=steps), pytest.raises(UnsupportedFeature, match=f"(?s){message}"):
        backend.dispatch(larger, [])


def test_field_label_is_in_the_error(backend):
    for program, inputs in ((TRAP, [words(0)]), (ADD, [])):
        with pytest.raises(VyreError, match="label='step 9'") as e:
            backend.dispatch(program, inputs, DispatchConfig(label="step 9"))
        assert e.value.context["label"] == "step 9"


def test_field_label_is_in_the_telemetry(backend):
    with pipelines.compile(backend, ADD, FOUR.with_(label="step 10")) as pipeline:
        before = counters.label_counters().get("step 10", 0)
        pipeline.dispatch([ONES, ONES])
        assert counters.label_counters()["step 10"] == before + 1
        with pytest.raises(VyreError, match="label='step 10'"):
            pipeline.dispatch([ONES])


def test_field_max_output_bytes_bounds_what_is_read_back(backend):
    both_ways(backend, NUMBER, [], DispatchConfig(output_elements={"out": 4}, max_output_bytes=16))
    with pytest.raises(VyreError, match=r"16 bytes exceeds max_output_bytes=15.*Fix: "):
        backend.dispatch(NUMBER, [], DispatchConfig(output_elements={"out": 4}, max_output_bytes=15))


def test_field_grid_override_counts_workgroups(backend):
    config = DispatchConfig(output_elements={"out": 12})
    assert unwords(both_ways(backend, NUMBER, [], config)[0]) == list(range(1, 13))
    config = config.with_(grid_override=(2, 1, 1))
    assert unwords(both_ways(backend, NUMBER, [], config)[0]) == [*range(1, 9), 0, 0, 0, 0]


def test_field_grid_override_is_needed_for_a_plane(backend):
    config = DispatchConfig(output_elements={"out": 32})
    with pytest.raises(InvalidProgram, match=r"Fix: .*grid_override"):
        backend.dispatch(PLANE, [], config)
    (out,) = both_ways(backend, PLANE, [], config.with_(grid_override=(2, 2, 1)))
    assert unwords(out) == [x + 10 * y for y in range(4) for x in range(8)]


@pytest.mark.parametrize("field", ["grid_override", "workgroup_override"])
@pytest.mark.parametrize("dims", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_fields_of_three_axes_refuse_an_axis_of_zero(backend, field, dims):
    with pytest.raises(VyreError, match=r"zero.*Fix: "):
        backend.dispatch(NUMBER, [], DispatchConfig(output_elements={"out": 4}, **{field: dims}))


def test_field_workgroup_override_changes_the_workgroup(backend):
    config = DispatchConfig(output_elements={"out": 12}, grid_override=(2, 1, 1), workgroup_override=(3, 1, 1))
    assert unwords(both_ways(backend, NUMBER, [], config)[0]) == [*range(1, 7), 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("program", [LANE, NEIGHBOUR], ids=["local ids", "workgroup memory"])
def test_field_workgroup_override_is_refused_where_it_would_change_the_meaning(backend, program):
    with pytest.raises(VyreError, match=r"workgroup_override.*Fix: "):
        backend.dispatch(program, [ONES], FOUR.with_(workgroup_override=(2, 1, 1)))


@pytest.mark.row("A-CFG-5", "B-FIX-01")
@pytest.mark.parametrize("k", [1, 2, 5])
def test_field_fixpoint_iterations_runs_again_over_the_same_memory(backend, k):
    (out,) = both_ways(backend, COUNT, [words(10, 20)], DispatchConfig(fixpoint_iterations=k))
    assert unwords(out) == [10 + k, 20 + k]


@pytest.mark.row("A-CFG-5")
def test_field_fixpoint_iterations_of_zero_is_refused(backend):
    with pytest.raises(InvalidProgram, match=r"fixpoint_iterations must be at least 1.*Fix: ") as e:
        backend.dispatch(COUNT, [words(1)], DispatchConfig(fixpoint_iterations=0))
    assert backend.id in str(e.value)


@pytest.mark.parametrize(
    "field, mode, query",
    [
        ("speculation", SpeculationMode.FORCE, "supports_speculation"),
        ("persistent_thread", PersistentThreadMode.FORCE, "supports_persistent_threads"),
        ("cooperative", True, "supports_grid_sync"),
    ],
)
def test_fields_that_demand_a_capability_are_refused_without_it(backend, field, mode, query):
    config = DispatchConfig(**{field: mode})
    if getattr(backend, query):
        assert backend.dispatch(COUNT, [words(1)], config) == [words(2)]
    else:
        with pytest.raises(UnsupportedFeature, match="Fix: "):
            backend.dispatch(COUNT, [words(1)], config)
    for harmless in {} if mode is True else {"auto", "disable"}:
        assert backend.dispatch(COUNT, [words(1)], DispatchConfig(**{field: harmless})) == [words(2)]


@pytest.mark.row("A-CFG-6")
def test_field_cooperative_is_refused_without_grid_wide_barriers():
    with pytest.raises(UnsupportedFeature, match="Fix: "):
        settle_config(DispatchConfig(cooperative=True), MockBackend())


def test_field_output_elements_sizes_an_output(backend):
    assert len(backend.dispatch(NUMBER, [], DispatchConfig(output_elements={"out": 3}))[0]) == 12
    assert len(backend.dispatch(NUMBER, [], DispatchConfig(output_elements={"out": 5}))[0]) == 20
    with pytest.raises(VyreError, match=r"out.*Fix: "):
        backend.dispatch(NUMBER, [])
    with pytest.raises(VyreError, match=r"nothing.*Fix: "):
        backend.dispatch(NUMBER, [], DispatchConfig(output_elements={"out": 3, "nothing": 3}))


def test_field_output_lengths_gives_what_counts_of_an_output(backend):
    counted = DispatchConfig(output_lengths={"high": "low"})
    for count in (0, 1, 3, 4, 9):
        x = words(count, 2 << 16, 3 << 16, 4 << 16)
        low, high = backend.dispatch(SPLIT, [x], counted)
        assert unwords(low) == [count, 0, 0, 0]
        assert unwords(high) == [0, 2, 3, 4][:count]
        whole = [bytearray(16), bytearray(16)]
        backend.dispatch(SPLIT, [x], counted, out=whole)
        assert [unwords(b) for b in whole] == [[count, 0, 0, 0], [0, 2, 3, 4]]
    with pytest.raises(VyreError, match=r"no output.*Fix: "):
        backend.dispatch(SPLIT, [words(1)], DispatchConfig(output_lengths={"high": "x"}))


@pytest.mark.row("A-HS-5")
def test_field_ulp_budget_asks_for_other_code_where_the_device_has_functions_within_it(backend):
    keys = [pipelines.compile(backend, EXP, FOUR.with_(ulp_budget=n)).key for n in (None, 0, 255)]
    assert keys[0] == keys[1]
    assert (keys[1] != keys[2]) == bool(backend.capability.native_within(255))
    assert pipelines.compile(backend, ADD, FOUR.with_(ulp_budget=255)).key == pipelines.compile(backend, ADD, FOUR).key


IGNORED = [
    ({"speculation": "disable"}, "speculation"),
    ({"persistent_thread": "disable"}, "persistent_threads"),
    ({"profile": "default"}, None),
    ({"ulp_budget": 255}, None),
    ({"workgroup_override": ADD.workgroup_size}, None),
]


@pytest.mark.parametrize("ignored, fact", IGNORED, ids=[next(iter(ignored)) for ignored, _ in IGNORED])
def test_configs_that_differ_in_what_a_backend_ignores_are_compiled_once(backend, ignored, fact):
    if fact is not None and getattr(backend.capability, fact):
        pytest.skip("this backend does not ignore it")
    plain = compiled(backend, ADD)
    before = pipelines_of(backend).snapshot().misses
    assert compiled(backend, ADD, FOUR.with_(**ignored)).native is plain.native
    inputs = [words(1, 2, 3, 4), ONES]
    assert plain.dispatch(inputs, FOUR.with_(**ignored)) == plain.dispatch(inputs)
    assert pipelines_of(backend).snapshot().misses == before


def test_a_profile_is_compiled_as_the_fields_that_it_fills_in(backend):
    fast, same = FOUR.with_(profile="interactive"), FOUR.with_(timeout=1.0)
    assert compiled(backend, ADD, fast).native is compiled(backend, ADD, same).native


def test_field_ulp_budget_keeps_integers_exact(backend):
    inputs = [words(1, 2, 3, 0xFFFFFFFF), ONES]
    assert backend.dispatch(ADD, inputs, FOUR.with_(ulp_budget=255)) == backend.dispatch(ADD, inputs, FOUR)


def test_field_determinism_refuses_what_is_not_proved_and_runs_nothing(backend):
    strict = FOUR.with_(determinism="require", label="strict")
    order, out = words(3, 2, 1, 0), bytearray(16)
    plain = compiled(backend, SCATTER)
    refused = r'determinism="require": the program is not proved .* \(1, 1, 1\) workgroups .*strict.*Fix: write so that'
    for refuse in (
        lambda: backend.dispatch(SCATTER, [order], strict, out=[out]),
        lambda: backend.dispatch_timed(SCATTER, [order], strict, out=[out]),
        lambda: backend.dispatch_async(SCATTER, [order], strict, out=[out]).result(),
        lambda: plain.dispatch([order], strict, out=[out]),
    ):
        with pytest.raises(InvalidProgram, match=refused):
            refuse()
    assert out == bytes(16)
    assert unwords(plain.dispatch([order])[0]) == [3, 2, 1, 0]
    inputs = [words(1, 2, 3, 4), ONES]
    assert backend.dispatch(ADD, inputs, strict) == backend.dispatch(ADD, inputs, FOUR)


def test_field_determinism_is_decided_for_the_grid_of_the_call(backend):
    strict = FOUR.with_(determinism="require")
    assert NUMBER.determinism == "proved for grids with one workgroup along y and z"
    assert unwords(backend.dispatch(NUMBER, [], strict.with_(grid_override=(1, 1, 1)))[0]) == [1, 2, 3, 4]
    with pytest.raises(
        InvalidProgram, match=r"\(1, 2, 1\).*Fix: use one of the grids that it is proved for grids with"
    ):
        backend.dispatch(NUMBER, [], strict.with_(grid_override=(1, 2, 1)))


def test_field_determinism_of_a_grid_in_memory_is_decided_where_the_grid_is_known(backend):
    program = Program(
        [read_write("grid", 0, u32), write_only("out", 1, u32)],
        (4, 1, 1),
        [IndirectDispatch("grid", 0), Store("out", InvocationId(0), lit(1))],
    )
    if why := why_not(program, backend):
        pytest.skip(f"{backend.id}: {why}")
    strict = DispatchConfig(output_elements={"out": 4}, determinism="require")
    assert unwords(backend.dispatch(program, [words(1, 1, 1)], strict)[1]) == [1] * 4
    with pytest.raises(InvalidProgram, match=r"a grid of \(1, 2, 1\)"):
        backend.dispatch(program, [words(1, 2, 1)], strict)
    with pytest.raises(InvalidProgram, match="every grid that it may read from memory"):
        backend.dispatch(program, [words(1, 1, 1)], strict.with_(fixpoint_iterations=2))


def test_every_field_of_the_config_has_its_test():
    names = {f.name for f in fields(DispatchConfig)}
    tested = {name for name in names if any(test.startswith(f"test_field_{name}_") for test in globals())}
    assert names - tested == {"speculation", "persistent_thread"}  # which share one, with cooperative
