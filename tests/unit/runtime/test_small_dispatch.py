"""Small dispatches over host memory that are repeated: nobody sees from the bytes that the device does them as one."""

import gc
import random
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from tests.contract.programs import ADD, COUNT, SPLIT, TRAP, words

from vyre.backends.cuda.run.small_dispatch import CudaSmallDispatch
from vyre.backends.reference import run
from vyre.conform.programs.random import random_program
from vyre.driver.admission.program import why_not
from vyre.driver.contract.values import DEFAULT_CONFIG, DispatchConfig, HostResource
from vyre.driver.counters import decision_counters
from vyre.driver.plan import plan_dispatch
from vyre.driver.plan.outputs import OutputSlot
from vyre.driver.policy.launch import NEVER, RECORDED, RECORDED_BYTES, WHEN_REPEATED, LaunchCosts
from vyre.errors import ArgumentTypeError, DeviceLost, DeviceOutOfMemory, DispatchFailed, KernelCompileFailed, Trap
from vyre.foundation.ir.dtypes import u8, u32
from vyre.foundation.ir.nodes import If, InvocationId, Let, Load, Store, lit
from vyre.foundation.ir.program import Program, read, read_write, write_only
from vyre.runtime import backend as backends
from vyre.runtime.device import Launch, Slot, Ticket

from ...support.batched_small_dispatch import ByBatch
from ...support.cpu_kernels import arange, bump
from ...support.device_backends import open_or_skip

GID = InvocationId(0)
COSTS = LaunchCosts(launch_ns=3, record_ns=16, replay_ns=1)
FIRST = 8
"""The run at which a dispatch is recorded that costs as much."""
OFTEN = FIRST + 3


@pytest.fixture(scope="module", params=["cuda", "opencl"])
def backend(request):
    made = open_or_skip(request.param)
    made.session().device.small_dispatch_costs = made.session().device.launch_costs = COSTS
    yield made
    made.shutdown()


@pytest.fixture
def recorded(backend, monkeypatch):
    """Those that are made, from here on."""
    device, made = backend.session().device, []
    by = device.small_dispatch if backend.id == "cuda" else lambda *about: ByBatch(device, *about)

    def counted(*about):
        made.append(by(*about))
        return made[-1]

    monkeypatch.setattr(device, "small_dispatch", counted, raising=False)
    return made


def compiled(backend, program, config=DEFAULT_CONFIG):
    """For this test alone."""
    return backend.compile_native(program, config)


def runs_of(made, monkeypatch):
    """Every run of the only small dispatch."""
    (prepared,) = made
    ran, go = [], prepared.go
    monkeypatch.setattr(prepared, "go", lambda: [ran.append(1), go()][1])
    return ran


def test_a_dispatch_that_is_repeated_is_recorded_and_new_inputs_count(backend, recorded, monkeypatch):
    pipeline, target = compiled(backend, ADD), np.zeros(100, np.uint32)
    for k in range(FIRST):
        assert not recorded
        assert bytes(pipeline.dispatch([arange(100), arange(100) + k])[0]) == (2 * arange(100) + k).tobytes()
    ran = runs_of(recorded, monkeypatch)
    for k in range(5):
        assert bytes(pipeline.dispatch([arange(100) + k, arange(100)])[0]) == (2 * arange(100) + k).tobytes()
    assert len(ran) == 5
    for k in range(OFTEN):
        assert pipeline.dispatch([arange(100) * k, arange(100)], out=[target])[0] is target
        assert np.array_equal(target, arange(100) * (k + 1))
    wide = arange(200)
    assert bytes(pipeline.dispatch([wide[::2], wide[1::2]])[0]) == (wide[::2] + wide[1::2]).tobytes()


def test_a_recorded_dispatch_gives_what_counts(backend, recorded):
    pipeline, counted = compiled(backend, SPLIT), DispatchConfig(output_lengths={"high": "low"})
    for k in range(OFTEN):
        low, high = pipeline.dispatch([words(k % 6, 2 << 16, 3 << 16, 4 << 16)], counted)
        assert bytes(low) == words(k % 6, 0, 0, 0)
        assert bytes(high) == words(0, 2, 3, 4)[: 4 * (k % 6)]
    assert recorded


@pytest.fixture
def told(backend, recorded):
    """What is said about the recording of a dispatch, by a device that records."""

    def ask(pipeline, inputs, config=DEFAULT_CONFIG, memory="host"):
        found = pipeline.decisions(plan_dispatch(pipeline.program, inputs, config), config, memory)
        return next(((d.choice, d.reason) for d in found if d.what == "recording"), None)

    return ask


def recordings(choice):
    return decision_counters().get(("recording", choice), 0)


def test_a_plan_says_when_a_dispatch_is_recorded_and_each_is_counted_once(backend, recorded, told):
    pipeline, given = compiled(backend, ADD), [arange(100), arange(100)]
    planned, kept = recordings(WHEN_REPEATED), recordings(RECORDED)
    for k in range(1, OFTEN):
        choice, why = told(pipeline, given)
        if k <= FIRST:
            assert (choice, "from run 8 over buffers of these lengths" in why) == (WHEN_REPEATED, True)
        else:
            assert (choice, why) == (RECORDED, "one call copies its inputs, launches it and copies its results")
        pipeline.dispatch(given)
        assert len(recorded) == (k >= FIRST)
    assert (recordings(WHEN_REPEATED), recordings(RECORDED)) == (planned + 1, kept + 1)
    assert told(pipeline, [arange(9), arange(9)])[0] == WHEN_REPEATED


@pytest.mark.parametrize(
    "costs, first",
    [(LaunchCosts(), None), (LaunchCosts(5, 9, 5), None), (LaunchCosts(5, 20, 1), 5), (LaunchCosts(5, 4, 1), 1)],
)
def test_what_launches_cost_decides_whether_and_when_one_is_recorded(
    backend, recorded, told, monkeypatch, costs, first
):
    monkeypatch.setattr(backend.session().device, "small_dispatch_costs", costs)
    pipeline, given = compiled(backend, ADD), [arange(50), arange(50)]
    before = recordings(NEVER), recordings(RECORDED)
    choice, why = told(pipeline, given)
    found = [bytes(pipeline.dispatch(given)[0]) for _ in range(OFTEN)]
    assert set(found) == {(2 * arange(50)).tobytes()}
    assert len(recorded) == (first is not None)
    after = recordings(NEVER), recordings(RECORDED)
    assert after == (before[0] + (first is None), before[1] + (first is not None))
    if first is None:
        assert (choice, why) == (NEVER, "the device repeats no launch faster than it makes one")
    else:
        assert (choice, f"from run {first} over" in why) == (WHEN_REPEATED, True)


@pytest.mark.parametrize(
    "program, inputs, config, why",
    [
        (
            ADD,
            [arange(9000), arange(9000)],
            DEFAULT_CONFIG,
            "its buffers have 108000 bytes together, and the copies of more than 65536 take longer",
        ),
        (ADD, [arange(9), arange(9)], DispatchConfig(timeout=9.0), "the host looks for a deadline"),
    ],
)
def test_a_plan_says_why_a_dispatch_is_not_recorded(backend, recorded, told, program, inputs, config, why):
    pipeline, before = compiled(backend, program, config), recordings(NEVER)
    assert told(pipeline, inputs, config) == (NEVER, why)
    for _ in range(OFTEN):
        pipeline.dispatch(inputs, config)
    assert not recorded
    assert recordings(NEVER) == before + 1


def test_a_plan_says_that_a_device_refused_to_record(backend, told, monkeypatch):
    def fails(*about):
        raise DeviceOutOfMemory("there is no room", fix="none")

    monkeypatch.setattr(backend.session().device, "small_dispatch", fails)
    pipeline, given = compiled(backend, ADD), [arange(7), arange(7)]
    for _ in range(OFTEN):
        pipeline.dispatch(given)
    assert told(pipeline, given) == (NEVER, "the device refused: there is no room")
    monkeypatch.setattr(backend.session().device, "small_dispatch", lambda *about: None)
    pipeline = compiled(backend, ADD)
    for _ in range(OFTEN):
        pipeline.dispatch(given)
    assert told(pipeline, given) == (NEVER, "the device refused")


def test_a_plan_says_that_a_dispatch_over_resident_memory_is_recorded(backend, told):
    given = [arange(9), arange(9)]
    pipeline, traps = compiled(backend, ADD), compiled(backend, TRAP)
    assert told(pipeline, given, memory="resident") == (
        WHEN_REPEATED, "after some runs over the same memory one call launches all of it"
    )  # fmt: skip
    assert told(pipeline, given, memory="both") == (NEVER, "a buffer comes from the host each time")
    assert told(traps, [words(0)], memory="resident") == (NEVER, "the host looks whether it trapped")
    pipeline.close()
    assert told(pipeline, given) is None


def test_dispatches_over_resident_memory_are_counted_once_for_each_combination_of_lengths(backend):
    pipeline = compiled(backend, ADD)
    handles = [backend.allocate_resident(36) for _ in range(3)]
    later, never = recordings(WHEN_REPEATED), recordings(NEVER)
    for _ in range(3):
        pipeline.dispatch_resident(handles)
    assert (recordings(WHEN_REPEATED), recordings(NEVER)) == (later + 1, never)
    pipeline.dispatch_resident([HostResource(arange(9)), *handles[1:]])
    assert (recordings(WHEN_REPEATED), recordings(NEVER)) == (later + 1, never + 1)


def test_results_of_a_small_dispatch_are_the_callers(backend, recorded):
    pipeline = compiled(backend, ADD)
    kept = [pipeline.dispatch([arange(9), arange(9) + k])[0] for k in range(OFTEN)]
    assert recorded
    for k, found in enumerate(kept):
        assert bytes(found) == (2 * arange(9) + k).tobytes()
        found[0] = 1  # which nobody minds
    assert bytes(pipeline.dispatch([arange(9), arange(9)])[0]) == (2 * arange(9)).tobytes()


def test_what_a_small_dispatch_does_not_store_is_zero_each_time(backend, recorded):
    program = Program(
        [read("x", 0, u32, 8), write_only("out", 1, u32, 8), read_write("n", 2, u32, 1)], (8, 1, 1),
        [
            If(Load("x", GID) % lit(2), [Store("out", GID, Load("x", GID))]),
            If(GID.eq(lit(0)), [Store("n", lit(0), Load("n", lit(0)) + lit(1))]),
        ],
    )  # fmt: skip
    pipeline = compiled(backend, program)
    for k in range(OFTEN):
        x = arange(8) + k
        out, n = pipeline.dispatch([x, words(41 + k)])
        assert bytes(out) == np.where(x % 2, x, 0).astype(np.uint32).tobytes()
        assert bytes(n) == words(42 + k)
    assert recorded


def test_a_trap_of_a_small_dispatch_says_where_and_nothing_is_written(backend, recorded):
    pipeline = compiled(backend, TRAP)
    target, slot = bytearray(b"\xa5" * 4), OutputSlot.of(bytearray(b"\xa5" * 4))
    for out in ([target], [slot], None):
        for _ in range(OFTEN):
            with pytest.raises(Trap, match=r"seven.*Fix: ") as e:
                pipeline.dispatch([words(0)], out=out)
            assert e.value.context["tag"] == "seven"
            assert e.value.context["invocation"] == (0, 0, 0)
    assert target == bytes(slot) == b"\xa5" * 4
    assert len(recorded) == 2  # dispatches into slots are planned each time


@pytest.mark.parametrize("span", [(0, 12), (5, 11), (4, 4)])
def test_only_the_wanted_bytes_of_a_small_dispatch_come_back(backend, recorded, span):
    out = write_only("out", 1, u32, 3).replace(output_byte_range=span)
    program = Program([read("x", 0, u32, 3), out], (4, 1, 1), [Store("out", GID, Load("x", GID) * lit(0x01030507))])
    pipeline, everything = compiled(backend, program), words(0x01030507, 0x02060A0E, 0x03090F15)
    for _ in range(OFTEN):
        assert bytes(pipeline.dispatch([words(1, 2, 3)])[0]) == everything[slice(*span)]
    assert recorded


def test_buffers_of_a_small_dispatch_may_be_empty_narrow_and_several(backend, recorded):
    pipeline = compiled(backend, SPLIT)
    for _ in range(OFTEN):
        low, high = pipeline.dispatch([arange(37) * 0x10001])
        assert bytes(low) == (arange(37) * 0x10001 & 0xFFFF).astype(np.uint32).tobytes()
        assert bytes(high) == (arange(37) * 0x10001 >> 16).astype(np.uint32).tobytes()
    pipeline = compiled(backend, COUNT)
    for _ in range(OFTEN):
        assert pipeline.dispatch([b""]) == [b""]
    program = Program(
        [read("x", 0, u8, 5), write_only("out", 1, u8, 5)], (1, 1, 1), [Store("out", GID, Load("x", GID))]
    )
    pipeline = compiled(backend, program)
    for k in range(OFTEN):
        assert bytes(pipeline.dispatch([bytes(range(k, k + 5))])[0]) == bytes(range(k, k + 5))
    assert len(recorded) >= 2


def test_iterations_of_a_small_dispatch_see_what_the_one_before_left(backend, recorded):
    pipeline, config = compiled(backend, COUNT), DispatchConfig(fixpoint_iterations=5)
    expected = backend.dispatch(COUNT, [words(1, 2, 3)], config)
    for _ in range(OFTEN):
        assert pipeline.dispatch([words(1, 2, 3)], config) == expected
    assert len(recorded) == 1


def test_large_dispatches_and_those_with_a_deadline_get_none(backend, recorded):
    pipeline, x = compiled(backend, ADD), arange(RECORDED_BYTES // 12 + 1)
    for _ in range(OFTEN):
        pipeline.dispatch([x, x])
    config = DispatchConfig(timeout=30.0)
    for _ in range(OFTEN):
        backend.dispatch(ADD, [words(1), words(2)], config)
    assert not recorded
    for _ in range(OFTEN):
        pipeline.dispatch([x[1:], x[1:]])
    assert len(recorded) == 1


def test_memory_that_cannot_be_written_is_refused_after_a_small_dispatch_too(backend, recorded):
    pipeline = compiled(backend, ADD)
    for _ in range(OFTEN):
        pipeline.dispatch([words(1, 2), words(3, 4)], out=[bytearray(8)])
    assert recorded
    with pytest.raises(ArgumentTypeError, match=r"read-only.*Fix: "):
        pipeline.dispatch([words(1, 2), words(3, 4)], out=[bytes(8)])
    with pytest.raises(ArgumentTypeError, match=r"not contiguous.*Fix: "):
        pipeline.dispatch([words(1, 2), words(3, 4)], out=[memoryview(bytearray(16))[::2]])


def test_while_a_small_dispatch_is_in_use_others_go_the_plain_way(backend, recorded, monkeypatch):
    pipeline = compiled(backend, bump.program)
    for _ in range(OFTEN):
        pipeline.dispatch([arange(64)])
    (prepared,) = recorded
    ready, go_on, go = threading.Event(), threading.Event(), prepared.go

    def held():
        ready.set()
        assert go_on.wait(30)
        return go()

    monkeypatch.setattr(prepared, "go", held)
    found = []
    thread = threading.Thread(target=lambda: found.append(pipeline.dispatch([arange(64)])[0]))
    thread.start()
    assert ready.wait(30)
    try:
        assert bytes(pipeline.dispatch([arange(64) + 7])[0]) == (2 * arange(64) + 8).tobytes()
    finally:
        go_on.set()
        thread.join()
    assert bytes(found[0]) == (2 * arange(64) + 1).tobytes()


def test_small_dispatches_of_many_threads_equal_the_serial_ones(backend, recorded):
    pipeline, wrong = compiled(backend, bump.program), []

    def work(seed):
        rng = random.Random(seed)
        for _ in range(100):
            n, k = rng.choice((1, 64, 1000)), rng.randrange(1000)
            (found,) = pipeline.dispatch([arange(n) + k])
            if bytes(found) != (2 * arange(n) + k + 1).astype(np.uint32).tobytes():
                wrong.append((n, k))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert len(recorded) >= 3


def test_a_device_keeps_few_small_dispatches_and_who_lost_one_gets_another(backend, recorded, monkeypatch):
    monkeypatch.setattr(backends, "MAX_SMALL_DISPATCHES", 2)
    pipeline = compiled(backend, bump.program)
    for n in (10, 20, 30, 10):
        for k in range(OFTEN):
            assert bytes(pipeline.dispatch([arange(n) + k])[0]) == (2 * arange(n) + k + 1).tobytes()
    assert len(recorded) == 4
    alive = [weakref.ref(r) for r in recorded]
    recorded.clear()
    assert [r() is not None for r in alive] == [False, False, True, True]


def test_a_small_dispatch_that_is_lost_while_it_is_used_is_not_used_again(backend, recorded, monkeypatch):
    pipeline = compiled(backend, bump.program)
    for _ in range(OFTEN):
        pipeline.dispatch([arange(12)])
    (prepared,) = recorded
    go = prepared.go

    def lost():
        monkeypatch.setattr(backends, "MAX_SMALL_DISPATCHES", 1)
        for _ in range(OFTEN):
            pipeline.dispatch([arange(13)])
        return go()

    monkeypatch.setattr(prepared, "go", lost)
    assert bytes(pipeline.dispatch([arange(12)])[0]) == (2 * arange(12) + 1).tobytes()
    monkeypatch.setattr(prepared, "go", None)
    assert bytes(pipeline.dispatch([arange(12)])[0]) == (2 * arange(12) + 1).tobytes()


@pytest.mark.parametrize("error", [DeviceOutOfMemory, DispatchFailed, KernelCompileFailed])
def test_without_a_recording_the_plain_way_is_taken(backend, monkeypatch, caplog, error):
    caplog.set_level("INFO", "vyre.offload")
    asked = []

    def fails(*about):
        asked.append(1)
        raise error("there is none", fix="none")

    monkeypatch.setattr(backend.session().device, "small_dispatch", fails, raising=False)
    pipeline = compiled(backend, bump.program)
    for _ in range(3 * OFTEN):
        assert bytes(pipeline.dispatch([arange(11)])[0]) == (2 * arange(11) + 1).tobytes()
    assert asked == [1]
    assert [r.getMessage() for r in caplog.records] == ["a small dispatch stays slow: there is none. Fix: none"]


def test_a_device_that_is_lost_while_a_small_dispatch_is_made_says_so(backend, monkeypatch):
    def lost(*about):
        raise DeviceLost("it is gone", fix="none")

    monkeypatch.setattr(backend.session().device, "small_dispatch", lost, raising=False)
    pipeline = compiled(backend, bump.program)
    for _ in range(FIRST - 1):
        pipeline.dispatch([arange(11)])
    with pytest.raises(DeviceLost):
        pipeline.dispatch([arange(11)])


def test_a_program_without_buffers_may_be_repeated(backend, recorded):
    pipeline = compiled(backend, Program([], (1, 1, 1), [Let("x", GID)]))
    config = DispatchConfig(grid_override=(3, 1, 1))
    for _ in range(OFTEN):
        assert pipeline.dispatch([], config) == []
    assert len(recorded) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DispatchFailed("the driver failed", fix="none")])
def test_a_small_dispatch_that_was_interrupted_or_failed_is_not_used_again(backend, recorded, monkeypatch, error):
    class Ends(Ticket):
        def done(self):
            return True

        def wait(self, seconds):
            raise error

        def take(self, into):
            return []

    pipeline = compiled(backend, bump.program)
    for _ in range(OFTEN):
        pipeline.dispatch([arange(12)])
    (prepared,) = recorded
    monkeypatch.setattr(prepared, "go", Ends)
    with pytest.raises(type(error)):
        pipeline.dispatch([arange(12)])
    for _ in range(OFTEN):
        assert bytes(pipeline.dispatch([arange(12)])[0]) == (2 * arange(12) + 1).tobytes()
    assert len(recorded) == 2


def test_a_pipeline_of_a_device_that_was_recovered_is_refused_although_it_was_recorded(backend):
    made = open_or_skip(backend.id)
    try:
        pipeline = made.compile_native(bump.program, DispatchConfig())
        for _ in range(OFTEN):
            pipeline.dispatch([arange(12)])
        made.try_recover()
        with pytest.raises(DeviceLost, match=r"recovered after this pipeline was compiled.*Fix: compile"):
            pipeline.dispatch([arange(12)])
    finally:
        made.shutdown()


def test_a_backend_that_is_dropped_with_its_small_dispatches_leaves_others_alone(backend):
    for _ in range(3):
        made = open_or_skip(backend.id)
        pipeline = compiled(made, bump.program)
        for _ in range(OFTEN):
            pipeline.dispatch([arange(12)])
        made.itself = made, pipeline  # so that the collector finds all of it at once
        del made, pipeline
        gc.collect()
        assert bytes(backend.dispatch(bump.program, [arange(12)])[0]) == (2 * arange(12) + 1).tobytes()
    assert not backend.device_lost()


@pytest.mark.check
def test_random_programs_mean_the_same_in_small_dispatches(backend, recorded):
    ran = 0
    for seed in range(2000, 2024):
        case = random_program(random.Random(seed), max_statements=10)
        if why_not(case.program, backend):
            continue
        config = DispatchConfig(grid_override=case.grid, output_elements=case.output_elements)
        expected = run(case.program, case.inputs, grid=case.grid, output_elements=case.output_elements).outputs
        pipeline = compiled(backend, case.program, config)
        before = len(recorded)
        for _ in range(OFTEN):
            found = [bytes(o) for o in pipeline.dispatch(case.inputs, config)]
            assert found == expected, f"seed {seed}, grid {case.grid}:\n{case.program}"
        ran += len(recorded) > before
    assert ran > 5


@pytest.mark.parametrize("backend", ["cuda"], indirect=True)
def test_memory_of_a_small_dispatch_goes_with_its_pipeline(backend, recorded):
    device = backend.session().device
    live, idle = len(device._live), device.staging._idle_bytes
    for _ in range(3):
        pipeline = backend.compile_native(bump.program, DispatchConfig())
        for _ in range(OFTEN):
            pipeline.dispatch([arange(12)])
        pipeline.close()
        del pipeline
        recorded.clear()
        gc.collect()
        backend.flush()
        assert len(device._live) <= live + 2  # which the pool keeps
        assert device.staging._idle_bytes >= idle


def test_a_small_dispatch_of_cuda_is_its_launches_and_two_that_copy():
    made = []
    pages = [SimpleNamespace(address=k << 20, view=memoryview(bytearray(b"\xa5" * 4096))) for k in (1, 2)]
    left = list(pages)
    device = SimpleNamespace(
        allocate=lambda nbytes: {6 * 256: 1 << 30}[nbytes],
        staging=SimpleNamespace(take=lambda nbytes: left.pop(0), give=lambda page: None),
        graphs=SimpleNamespace(own=lambda device, commands: made.extend(commands)),
        context=SimpleNamespace(lost=True),
        mark=lambda stream: None,
        copier="copier",
        stream=3,
    )
    slots = [
        Slot(300, False, False, True),
        Slot(8, True, False, False),
        Slot(4, True, False, True),
        Slot(0, False, True, False),
        Slot(32, False, True, True),
    ]
    grids, lengths, start = [((0, 0, 0), (3, 1, 1)), ((3, 0, 0), (1, 1, 1))], [75, 2, 1, 0, 8], 1 << 30
    found = CudaSmallDispatch(device, "code", slots, lengths, grids)
    places = [start + 4 * 256, start, start + 2 * 256, start + 256, start + 3 * 256]
    assert made == [
        Launch("copier", (1 << 20, start), (256, 256), (0, 0, 0), (1, 1, 1)),
        *(Launch("code", places, lengths, base, grid) for base, grid in grids),
        Launch("copier", (start + 2 * 256, 2 << 20), (256, 256), (0, 0, 0), (1, 1, 1)),
    ]
    assert bytes(pages[0].view[: 4 * 256]) == bytes(4 * 256)
    assert [v.nbytes for v in found.inputs] == [8, 4]
    assert [v.nbytes for v in found.outputs] == [300, 4, 32]
    found.inputs[1][:] = b"abcd"
    assert bytes(pages[0].view[512:516]) == b"abcd"
    pages[1].view[256:258] = b"xy"
    assert bytes(found.outputs[2][:2]) == b"xy"


def fake_device(made, **more):
    return SimpleNamespace(**{
        "allocate": lambda nbytes: 1 << 30,
        "graphs": SimpleNamespace(own=lambda device, commands: None),
        "context": SimpleNamespace(lost=False),
        "staging": SimpleNamespace(take=lambda nbytes: page(), give=lambda p: made.append("give")),
        "mark": lambda stream: SimpleNamespace(ended=lambda: True, put=lambda stream: None),
        "hold": lambda mark, ends: made.append("hold"),
        "copier": "copier", "stream": 3, "closed": False, "gone": False,
    } | more)  # fmt: skip


def page():
    return SimpleNamespace(address=1 << 20, view=memoryview(bytearray(4096)))


SLOTS = [Slot(4, True, False, True)]


@pytest.mark.parametrize(
    "state, done",
    [
        ({}, ["hold"]),
        ({"gone": True}, []),
        ({"context": SimpleNamespace(lost=True)}, []),
        ({"closed": True}, ["give", "give"]),
        ({"closed": True, "mark": lambda stream: SimpleNamespace(ended=lambda: False)}, []),
    ],
)
def test_pinned_memory_of_a_small_dispatch_comes_back_when_the_device_has_let_go_of_it(state, done):
    made = []
    prepared = CudaSmallDispatch(fake_device(made, **state), "code", SLOTS, [1], [])
    made.clear()
    del prepared
    gc.collect()
    assert made == done


def test_who_waits_for_a_small_dispatch_lets_go_of_what_others_held():
    made = []
    device = fake_device(
        made,
        graphs=SimpleNamespace(own=lambda device, commands: lambda: made.append("launch")),
        wait=lambda mark, seconds: made.append("wait") or True,
        prune=lambda: made.append("prune"),
    )
    ticket = CudaSmallDispatch(device, "code", SLOTS, [1], []).go()
    assert ticket.wait(None)
    assert made[:1] + made[-2:] == ["launch", "wait", "prune"]


def test_a_small_dispatch_that_was_interrupted_before_its_point_was_set_keeps_its_pinned_memory():
    made = []

    def interrupted():
        raise KeyboardInterrupt

    graphs = SimpleNamespace(own=lambda device, commands: interrupted)
    prepared = CudaSmallDispatch(fake_device(made, closed=True, graphs=graphs), "code", SLOTS, [1], [])
    made.clear()
    with pytest.raises(KeyboardInterrupt):
        prepared.go()
    del prepared
    gc.collect()
    assert made == []


def test_a_small_dispatch_that_finds_no_pinned_memory_leaves_none_behind():
    made = []

    def take(nbytes):
        if made:
            raise DeviceOutOfMemory("no memory", fix="none")
        made.append("take")
        return page()

    staging = SimpleNamespace(take=take, give=lambda p: made.append("give"))
    with pytest.raises(DeviceOutOfMemory):
        CudaSmallDispatch(fake_device(made, closed=True, staging=staging), "code", SLOTS, [1], [])
    gc.collect()
    assert made == ["take", "give"]


@pytest.mark.parametrize("backend", ["cuda"], indirect=True)
def test_small_dispatches_of_many_lengths_keep_their_graphs(backend, recorded):
    pipeline = compiled(backend, bump.program)
    for n in range(1, 9):
        for _ in range(OFTEN):
            pipeline.dispatch([arange(n)])
    assert len(recorded) == 8
    before = backend.metrics()
    for _ in range(3):
        for n in range(1, 9):
            assert bytes(pipeline.dispatch([arange(n)])[0]) == (2 * arange(n) + 1).tobytes()
    after = backend.metrics()
    assert after["graphs_launched"] - before["graphs_launched"] == 24
    assert (after["graphs_made"], after["graphs_changed"]) == (before["graphs_made"], before["graphs_changed"])
