"""What backends on devices share, on each of them: whose memory is written, what a pool never shows, what stays."""

import os
import random
import threading
from dataclasses import replace

import numpy as np
import pytest
from tests.contract.programs import ADD, COUNT, NEIGHBOUR, PLANE, SPLIT, TRAP, unwords, words

from vyre.backends import cuda, opencl, wgpu
from vyre.backends.reference import run
from vyre.conform.programs.random import random_program
from vyre.driver.admission.program import why_not
from vyre.driver.contract.values import (
    DispatchConfig,
    HostResource,
    ResidentDispatchStep,
    ResidentHandle,
    ResidentReadRange,
)
from vyre.driver.guard import compile as pipelines
from vyre.driver.guard.backend import guarded
from vyre.driver.pipeline import attach_store
from vyre.driver.plan.grid import boxes
from vyre.driver.plan.outputs import OutputSlot
from vyre.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    BackendError,
    DeviceLost,
    DeviceOutOfMemory,
    DispatchFailed,
    InvalidProgram,
    KernelCompileFailed,
    Trap,
    UnsupportedFeature,
)
from vyre.foundation.ir.dtypes import u8, u16, u32
from vyre.foundation.ir.nodes import BufLen, Cast, IndirectDispatch, InvocationId, Load, Store, lit
from vyre.foundation.ir.program import Program, read, read_write, write_only
from vyre.runtime import device
from vyre.runtime.device import Artifact, LaunchFacts
from vyre.runtime.memory_pool import MemoryPool, size_class
from vyre.runtime.work import part

from ...support.cpu_kernels import arange, bump, halves, histogram, stirred
from ...support.kept_code import KeptCode

GID = InvocationId(0)
REGISTRATIONS = {r.id: r for r in (cuda.REGISTRATION, opencl.REGISTRATION, wgpu.REGISTRATION)}


def opened(id):
    why = REGISTRATIONS[id].unavailable()
    if why is not None and id in os.environ.get("VYRE_REQUIRE_BACKENDS", "").split(","):
        pytest.fail(f"{id} is required and not available: {why}")
    if why is not None:
        pytest.skip(f"{id}: {why}")
    return REGISTRATIONS[id].open()


@pytest.fixture(scope="module", params=REGISTRATIONS)
def backend(request):
    made = opened(request.param)
    yield made
    made.shutdown()


@pytest.fixture
def own(backend):
    """A backend of the same kind for this test alone."""
    made = opened(backend.id)
    yield made
    made.shutdown()


def poison(backend, *sizes):
    """Let the pool hold rubbish for buffers of these many bytes."""
    session = backend.session()
    session.pool.clear()
    for nbytes in sizes:
        pieces = [session.pool.take(nbytes) for _ in range(3)]
        for piece in pieces:
            batch = session.device.batch()
            batch.write(piece.memory, 0, memoryview(b"\xa5" * piece.nbytes))
            batch.submit().wait(None)
        for piece in pieces:
            session.pool.give(piece)


# ---- memory that is used again --------------------------------------------------------------------------------------


def test_sizes_of_pieces_grow_in_quarters_and_hold_what_is_asked():
    last = 0
    for n in [0, 1, 255, 256, 257, 1000, 1024, 1025, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 30]:
        size = size_class(n)
        assert size >= max(n, last)
        assert size % 16 == 0
        assert n <= 256 or size <= 1.25 * n + 64
        last = size


class CountingDevice:
    """Hands out numbers for memory, of which it has so many bytes."""

    most_bytes = 0

    def __init__(self, memory_bytes):
        self.memory_bytes, self.live = memory_bytes, {}

    def allocate(self, nbytes):
        if sum(self.live.values()) + nbytes > self.memory_bytes:
            raise DeviceOutOfMemory("full", fix="free some")
        self.live[id(piece := object())] = nbytes
        return piece

    def release(self, memory):
        del self.live[id(memory)]


class EndsLater:
    ended = False

    def done(self):
        return self.ended


def test_a_pool_keeps_a_quarter_and_gives_way_when_the_device_is_full():
    device = CountingDevice(8192)
    pool = MemoryPool(device)
    kept, much, more = pool.take(1024), pool.take(1000), pool.take(2048)
    for piece in (kept, much, more):
        pool.give(piece)
    assert pool.idle_bytes == 2048  # the third went back to the device
    assert pool.take(1024) in (kept, much)
    assert pool.reused == 1
    assert sum(device.live.values()) == 2048
    assert pool.take(7000).nbytes == 7168  # for which the idle kilobyte is released
    assert pool.idle_bytes == 0
    with pytest.raises(DeviceOutOfMemory):
        pool.take(1024)


def test_a_piece_is_idle_only_when_its_work_has_ended():
    pool, ticket = MemoryPool(CountingDevice(1 << 20)), EndsLater()
    piece = pool.take(1000)
    pool.give_after(ticket, [piece])
    assert pool.take(1000) is not piece
    ticket.ended = True
    assert pool.take(1000) is piece


def test_outputs_are_zero_wherever_a_program_does_not_store(backend):
    for n in (1, 100, 1000):
        poison(backend, 4 * n, 8 * n)
        (out,) = backend.dispatch(halves.program, [arange(n)], DispatchConfig(output_elements={"out": 2 * n}))
        expected = np.zeros(2 * n, np.uint32)
        expected[::2] = arange(n)
        assert bytes(out) == expected.tobytes()


def test_a_grid_that_is_too_small_leaves_zeros_behind(backend):
    poison(backend, 4000)
    (out,) = backend.dispatch(ADD, [arange(1000), arange(1000)], DispatchConfig(grid_override=(2, 1, 1)))
    assert unwords(out) == [0, 2, 4, 6, 8, 10, 12, 14] + [0] * 992


def test_narrow_outputs_are_zero_too(backend):
    program = Program(
        [read("x", 0, u8), write_only("out", 1, u8), write_only("wide", 2, u16)],
        (4, 1, 1),
        [Store("out", GID + lit(1), Load("x", GID)), Store("wide", GID * lit(2), Cast(u16, Load("x", GID)))],
    )
    for n in (1, 5, 61):
        poison(backend, n, 2 * n)
        x = bytes(range(1, n + 1))
        config = DispatchConfig(output_elements={"out": n, "wide": n}, grid_override=(-(-n // 4), 1, 1))
        expected = run(program, [x], grid=(-(-n // 4), 1, 1), output_elements={"out": n, "wide": n}).outputs
        assert [bytes(o) for o in backend.dispatch(program, [x], config)] == expected


# ---- whose memory is written ----------------------------------------------------------------------------------------


def test_inputs_stay_and_results_are_new(backend):
    x = arange(100)
    first, second = (backend.dispatch(bump.program, [x])[0] for _ in range(2))
    assert bytes(first) == bytes(second) == (2 * arange(100) + 1).tobytes()
    memoryview(first)[:4] = b"abcd"
    assert np.array_equal(x, arange(100))
    assert bytes(backend.dispatch(bump.program, [x])[0]) == bytes(second)


def test_results_go_where_the_caller_wants_them(backend):
    x, low = np.arange(0, 1 << 20, 4099, dtype=np.uint32), OutputSlot(8)
    high = np.zeros(len(x), np.uint32)
    outputs = backend.dispatch(SPLIT, [x], out=[low, high])
    assert outputs == [low, outputs[1]]
    assert outputs[1] is high
    assert np.array_equal(high, x >> 16)
    assert bytes(low) == (x & 0xFFFF).tobytes()
    both = [bytearray(4 * len(x)), bytearray(4 * len(x))]
    assert backend.dispatch(SPLIT, [x], out=both)[1] is both[1]
    assert both == [(x & 0xFFFF).tobytes(), (x >> 16).tobytes()]


def test_an_input_may_be_its_own_output(backend):
    x = arange(1000)
    backend.dispatch(bump.program, [x], out=[x])
    assert np.array_equal(x, 2 * arange(1000) + 1)


def test_scattered_inputs_are_gathered(backend):
    wide = arange(2000)
    assert bytes(backend.dispatch(ADD, [wide[::2], wide[1::2]])[0]) == (wide[::2] + wide[1::2]).tobytes()


@pytest.mark.parametrize("span", [(0, 12), (4, 8), (1, 3), (5, 11), (4, 4), (12, 12)])
def test_only_the_wanted_bytes_come_back(backend, span):
    out = write_only("out", 1, u32, 3).replace(output_byte_range=span)
    program = Program([read("x", 0, u32, 3), out], (4, 1, 1), [Store("out", GID, Load("x", GID) * lit(0x01030507))])
    x = words(1, 2, 3)
    everything = words(0x01030507, 0x02060A0E, 0x03090F15)
    assert bytes(backend.dispatch(program, [x])[0]) == everything[slice(*span)]
    target = bytearray(span[1] - span[0])
    backend.dispatch(program, [x], out=[target])
    assert target == everything[slice(*span)]


def test_a_trap_says_where_and_nothing_is_written(backend):
    target, slot = bytearray(b"\xa5" * 4), OutputSlot.of(bytearray(b"\xa5" * 4))
    for out in ([target], [slot], None):
        for timeout in (None, 30.0):
            with pytest.raises(Trap, match=r"seven.*Fix: ") as e:
                backend.dispatch(TRAP, [words(0)], DispatchConfig(timeout=timeout), out=out)
            assert e.value.context["tag"] == "seven"
            assert e.value.context["invocation"] == (0, 0, 0)
    assert target == bytes(slot) == b"\xa5" * 4


def test_buffers_may_be_empty(backend):
    assert backend.dispatch(COUNT, [b""]) == [b""]
    program = Program(
        [read("x", 0, u32), write_only("out", 1, u32, 2)], (1, 1, 1),
        [Store("out", lit(0), BufLen("x")), Store("out", lit(1), Load("x", lit(0)) + lit(7))],
    )  # fmt: skip
    assert unwords(backend.dispatch(program, [b""])[0]) == [0, 7]
    assert unwords(backend.dispatch(program, [words(5, 6)])[0]) == [2, 12]


def test_a_buffer_over_the_limit_of_the_device_is_refused_with_that_limit(own, monkeypatch):
    native = own.compile_native(COUNT, DispatchConfig())
    monkeypatch.setattr(own, "capability", replace(own.capability, max_storage_buffer_bytes=64))
    assert native.dispatch([bytes(64)]) == [words(*[1] * 16)]
    with pytest.raises(UnsupportedFeature, match=r"'n' has 68 bytes; max is 64.*Fix: "):
        native.dispatch([bytes(68)])


def test_what_may_be_too_long_is_looked_at_with_the_words_of_each_dispatch(own, monkeypatch):
    """As on a device that stops loops: at first nothing is known of the inputs."""
    asked = []

    def check(facts, lengths, grid, word=None):
        rounds = None if word is None else word(1, 0)
        asked.append((tuple(lengths), grid, rounds))
        if rounds is None or rounds > 10:
            raise UnsupportedFeature("loops may take too many turns", fix="use another", name="long loops")

    monkeypatch.setattr(own, "check_launch", check)
    native = own.compile_native(stirred.program, DispatchConfig())
    x = arange(64)
    for _ in range(2):
        native.dispatch([x, words(10)])
        with pytest.raises(UnsupportedFeature, match="too many turns"):
            native.dispatch([x, words(11)])
        with pytest.raises(UnsupportedFeature, match="too many turns"):
            native.dispatch_async([x, words(0xFFFFFFFF)])
    assert asked[0] == ((64, 1, 64), (1, 1, 1), None)
    assert [rounds for _, _, rounds in asked[1:]] == [10, 11, 0xFFFFFFFF] * 2
    (kept,) = native.dispatch_resident([HostResource(x), HostResource(words(10))])
    assert downloaded(own, kept) == bytes(native.dispatch([x, words(10)])[0])
    with pytest.raises(UnsupportedFeature, match="too many turns"):
        native.dispatch_resident([HostResource(x), uploaded(own, words(10))])  # of which the host knows nothing


# ---- grids ----------------------------------------------------------------------------------------------------------


def test_boxes_cover_a_grid_once():
    for grid in [(1, 1, 1), (5, 1, 1), (7, 5, 3), (4, 4, 4), (0, 3, 2)]:
        for most in (1, 2, 4, (3, 2, 1), 100):
            assert_covers(grid, list(boxes(grid, most)))
    assert list(boxes((8, 3, 2), 100)) == [((0, 0, 0), (8, 3, 2))]


@pytest.mark.parametrize("grid", [(1, 1, 1), (5, 1, 1), (7, 5, 3), (1, 1, 9)])
@pytest.mark.parametrize("groups", [1, 2, 6, 7, 8, 36, 1000])
def test_parts_cover_a_grid_once_and_are_no_larger_than_asked(grid, groups):
    found, position = [], 0
    while position < grid[0] * grid[1] * grid[2]:
        found.append(part(grid, position, groups))
        size = found[-1][1]
        assert 0 < size[0] * size[1] * size[2] <= groups
        position += size[0] * size[1] * size[2]
    assert_covers(grid, found)


def assert_covers(grid, found):
    seen = [
        (x, y, z)
        for base, size in found
        for x in range(base[0], base[0] + size[0])
        for y in range(base[1], base[1] + size[1])
        for z in range(base[2], base[2] + size[2])
    ]
    assert sorted(seen) == sorted((x, y, z) for x in range(grid[0]) for y in range(grid[1]) for z in range(grid[2]))


@pytest.mark.parametrize("most", [1, 2, (1, 3, 1)])
@pytest.mark.parametrize("timeout", [None, 60.0])
def test_a_grid_over_the_limit_becomes_several_launches_that_nobody_sees(own, most, timeout):
    config = DispatchConfig(grid_override=(2, 5, 1), output_elements={"out": 80}, timeout=timeout)
    expected = run(PLANE, [], grid=(2, 5, 1), output_elements={"out": 80}).outputs
    own.session().device.most_groups = most
    assert [bytes(o) for o in own.dispatch(PLANE, [], config)] == expected


def test_iterations_see_the_memory_and_the_grid_of_the_last_one(backend):
    """Each pass adds one for every invocation, and writes the grid of the next pass."""
    program = Program(
        [read_write("grid", 0, u32), read_write("n", 1, u32)],
        (4, 1, 1),
        [
            IndirectDispatch("grid", 0),
            Store("n", GID, Load("n", GID) + lit(1)),
            Store("grid", lit(0), Load("grid", lit(3))),
        ],
    )
    grid, n = words(1, 1, 1, 2), words(*[0] * 8)
    for k, expected in ((1, [1] * 4 + [0] * 4), (2, [2] * 4 + [1] * 4), (3, [3] * 4 + [2] * 4)):
        config = DispatchConfig(fixpoint_iterations=k)
        outputs = backend.dispatch(program, [grid, n], config)
        assert unwords(outputs[1]) == expected
        assert unwords(outputs[0]) == [2, 1, 1, 2]
        assert backend.dispatch_async(program, [grid, n], config).result() == outputs
    stopped = backend.dispatch(program, [words(1, 1, 1, 0), n], DispatchConfig(fixpoint_iterations=5))
    assert unwords(stopped[1]) == [1] * 4 + [0] * 4


def test_many_iterations_are_submitted_in_parts(backend):
    config = DispatchConfig(fixpoint_iterations=700)
    assert backend.dispatch(COUNT, [words(1, 2, 3)], config) == [words(701, 702, 703)]
    assert backend.dispatch_async(COUNT, [words(1, 2, 3)], config).result() == [words(701, 702, 703)]


def test_a_grid_that_the_buffer_cannot_hold_is_refused(backend):
    program = Program(
        [write_only("grid", 0, u32), read_write("n", 1, u32)],
        (4, 1, 1),
        [IndirectDispatch("grid", 4), Store("n", GID, lit(1))],
    )
    for iterations in (1, 2):
        config = DispatchConfig(output_elements={"grid": 4}, fixpoint_iterations=iterations)
        assert unwords(backend.dispatch(program, [words(5)], config)[1]) == [5]  # zeros: nothing runs
    config = DispatchConfig(output_elements={"grid": 3}, fixpoint_iterations=2)
    with pytest.raises(InvalidProgram, match=r"no grid in buffer 'grid'.*Fix: bind at least 16 bytes"):
        backend.dispatch(program, [words(5)], config)


def test_a_deadline_in_good_time_changes_nothing(backend):
    x, config = arange(20_000), DispatchConfig(timeout=60)
    expected = backend.dispatch(stirred.program, [x, words(10)])
    assert backend.dispatch(stirred.program, [x, words(10)], config) == expected
    target = bytearray(4 * len(x))
    assert backend.dispatch(stirred.program, [x, words(10)], config, out=[target]) == expected
    assert backend.dispatch_async(stirred.program, [x, words(10)], config).result() == expected
    assert unwords(backend.dispatch(NEIGHBOUR, [words(*range(8))], config)[0]) == [1, 2, 3, 0, 5, 6, 7, 4]


@pytest.mark.check
def test_random_programs_mean_what_the_reference_says(backend):
    ran = 0
    for seed in range(1000, 1024):
        case = random_program(random.Random(seed), max_statements=10)
        if why_not(case.program, backend):
            continue
        config = DispatchConfig(grid_override=case.grid, output_elements=case.output_elements)
        expected = run(case.program, case.inputs, grid=case.grid, output_elements=case.output_elements).outputs
        try:
            found = [bytes(o) for o in backend.dispatch(case.program, case.inputs, config)]
        except UnsupportedFeature:
            continue  # loops that nobody can bound, on a device that bounds them
        ran += 1
        assert found == expected, f"seed {seed}, grid {case.grid}:\n{case.program}"
    assert ran > 3


# ---- time -----------------------------------------------------------------------------------------------------------


def test_times_are_told(backend):
    timed = backend.dispatch_timed(ADD, [arange(5000), arange(5000)])
    assert bytes(timed.outputs[0]) == (2 * arange(5000)).tobytes()
    assert 0 < timed.device_ns < timed.wall_ns
    assert timed.enqueue_ns > 0
    assert 0 <= timed.wait_ns <= timed.wall_ns
    assert backend.device_profile().timing_quality == "device_timestamps"


def test_a_started_dispatch_reads_its_inputs_before_it_returns(backend):
    x = arange(4000)
    pending = backend.dispatch_async(bump.program, [x])
    x[:] = 0
    target = bytearray(16000)
    other = backend.dispatch_async(bump.program, [arange(4000)], out=[target])
    assert bytes(pending.result()[0]) == (2 * arange(4000) + 1).tobytes()
    assert pending.is_ready()
    assert other.result()[0] is target
    assert target == (2 * arange(4000) + 1).tobytes()
    with pytest.raises(DispatchFailed, match="already taken"):
        pending.result()


def test_a_started_dispatch_that_fails_says_so_with_its_label(backend):
    pending = backend.dispatch_async(TRAP, [words(0)], DispatchConfig(label="step 4"))
    with pytest.raises(Trap, match="seven") as e:
        pending.result()
    assert e.value.context["label"] == "step 4"
    with pytest.raises(ArgumentValueError, match="expected 1 input"):
        backend.dispatch_async(TRAP, [])


def test_many_started_dispatches_end_in_any_order(backend):
    pending = [backend.dispatch_async(bump.program, [arange(n)]) for n in range(1, 60)]
    del pending[10:20]  # nobody asks for these
    sizes = [*range(1, 11), *range(21, 60)]
    backend.flush()
    assert all(p.is_ready() for p in pending)
    for n, p in sorted(zip(sizes, pending, strict=True), key=lambda item: -item[0]):
        assert bytes(p.result()[0]) == (2 * arange(n) + 1).tobytes()


def test_dispatches_from_many_threads_equal_the_serial_ones(backend):
    pipeline = pipelines.compile(backend, bump.program)
    sizes = [64, 65, 1000, 70_000]
    expected = {n: (2 * arange(n) + 1).tobytes() for n in sizes}
    wrong = []

    def work(seed):
        rng = random.Random(seed)
        for _ in range(25):
            n = rng.choice(sizes)
            if rng.random() < 0.3:
                (found,) = pipeline.dispatch_async([arange(n)]).result()
            else:
                (found,) = pipeline.dispatch([arange(n)])
            if bytes(found) != expected[n]:
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# ---- what stays on the device ---------------------------------------------------------------------------------------


def uploaded(backend, data):
    handle = backend.allocate_resident(memoryview(data).nbytes)
    backend.upload_resident([(handle, 0, data)])
    return handle


def downloaded(backend, handle):
    return bytes(backend.download_resident([ResidentReadRange(handle, 0, handle.nbytes)])[0])


def test_resident_memory_begins_as_zeros_and_keeps_what_is_written(backend):
    poison(backend, 100)
    handle = backend.allocate_resident(13)
    assert downloaded(backend, handle) == bytes(13)
    expected = bytearray(13)
    rng = random.Random(4)
    for _ in range(60):
        ranges = []
        for _ in range(rng.randint(1, 3)):
            start = rng.randint(0, 13)
            data = rng.randbytes(rng.randint(0, 13 - start))
            expected[start : start + len(data)] = data
            ranges.append((handle, start, data))
        backend.upload_resident(ranges)
        start = rng.randint(0, 13)
        length = rng.randint(0, 13 - start)
        reads = [ResidentReadRange(handle, 0, 13), ResidentReadRange(handle, start, length)]
        assert backend.download_resident(reads) == [expected, expected[start : start + length]]
        targets = [bytearray(13), bytearray(length)]
        assert backend.download_resident(reads, out=targets)[0] is targets[0]
        assert targets == [expected, expected[start : start + length]]
    backend.free_resident(handle)


def test_a_program_runs_over_resident_memory(backend):
    a, b = uploaded(backend, arange(1000)), uploaded(backend, 7 * arange(1000))
    out = backend.allocate_resident(4000)
    for config in (None, DispatchConfig(), DispatchConfig(timeout=30.0), DispatchConfig(fixpoint_iterations=3)):
        pipeline = pipelines.compile(backend, ADD, config)
        for _ in range(3):
            backend.upload_resident([(out, 0, b"\xa5" * 4000)])
            assert pipeline.dispatch_resident([a, b, out]) == [out]
            assert downloaded(backend, out) == (8 * arange(1000)).tobytes()
    assert pipeline.dispatch_resident([out, b, a]) == [a]
    assert downloaded(backend, a) == (15 * arange(1000)).tobytes()


def test_a_pipeline_that_remembers_many_lengths_of_resident_memory_forgets_the_oldest_only(own):
    compiled = pipelines.compile(own, ADD)
    for n in range(1, 66):
        a, b = uploaded(own, arange(n)), uploaded(own, 7 * arange(n))
        (out,) = compiled.dispatch_resident([a, b])
        assert downloaded(own, out) == (8 * arange(n)).tobytes()
        for handle in (a, b, out):
            own.free_resident(handle)
    lengths = [launches.lengths[0] for launches in compiled.native.resident_launches.values()]
    assert lengths == list(range(2, 66))


def test_outputs_that_nobody_gives_memory_for_are_allocated(backend):
    before = backend.metrics()["resident_bytes"]
    pipeline = pipelines.compile(backend, ADD)
    a = uploaded(backend, arange(10))
    host = HostResource(100 * arange(10))
    for resources in ([a, host], [a, host, HostResource()], [HostResource(arange(10)), host]):
        (kept,) = pipeline.dispatch_resident(resources)
        assert downloaded(backend, kept) == (101 * arange(10)).tobytes()
        backend.free_resident(kept)
    (kept,) = pipelines.compile(backend, bump.program).dispatch_resident([HostResource(arange(10))])
    assert downloaded(backend, kept) == (2 * arange(10) + 1).tobytes()
    for handle in (a, kept):
        backend.free_resident(handle)
    assert backend.metrics()["resident_bytes"] == before


def test_resident_outputs_are_zero_where_a_program_does_not_store(backend):
    x, out = uploaded(backend, arange(100)), uploaded(backend, b"\xa5" * 800)
    pipeline = pipelines.compile(backend, halves.program)
    for _ in range(2):
        pipeline.dispatch_resident([x, out])
        expected = np.zeros(200, np.uint32)
        expected[::2] = arange(100)
        assert downloaded(backend, out) == expected.tobytes()
        backend.upload_resident([(out, 0, b"\xa5" * 800)])


def test_longer_resident_memory_is_written_as_far_as_the_buffer_goes(backend):
    program = Program([write_only("out", 0, u8, 5)], (4, 1, 1), [Store("out", lit(1), Cast(u8, lit(7)))])
    out = uploaded(backend, b"\xa5" * 11)
    pipelines.compile(backend, program).dispatch_resident([out])
    assert downloaded(backend, out) == bytes([0, 7, 0, 0, 0]) + b"\xa5" * 6


def test_a_resident_grid_is_read_before_every_launch(backend):
    program = Program(
        [read("grid", 0, u32), read_write("n", 1, u32)],
        (4, 1, 1),
        [IndirectDispatch("grid", 4), Store("n", GID, Load("n", GID) + lit(1))],
    )
    grid, n = uploaded(backend, words(9, 1, 1, 1)), uploaded(backend, bytes(32))
    pipeline = pipelines.compile(backend, program)
    pipeline.dispatch_resident([grid, n])
    backend.upload_resident([(grid, 4, words(2))])
    pipeline.dispatch_resident([grid, n])
    backend.upload_resident([(grid, 4, words(0))])
    pipeline.dispatch_resident([grid, n])
    assert unwords(downloaded(backend, n)) == [2] * 4 + [1] * 4
    with pytest.raises(InvalidProgram, match=r"no grid in buffer 'grid'.*Fix: bind at least 16 bytes"):
        pipeline.dispatch_resident([uploaded(backend, words(1, 1, 1)), n])


def test_a_trap_over_resident_memory_is_told_and_what_was_allocated_is_freed(backend):
    n, before = uploaded(backend, words(0)), backend.metrics()["resident_bytes"]
    pipeline = pipelines.compile(backend, TRAP)
    for resources in ([n], [HostResource(words(0))]):
        with pytest.raises(Trap, match="seven"):
            pipeline.dispatch_resident(resources)
    assert backend.metrics()["resident_bytes"] == before


def test_steps_run_in_order_and_repeat(backend):
    n, two = uploaded(backend, words(1, 2, 3)), HostResource(words(2, 2, 2))
    other = backend.allocate_resident(12)
    steps = [
        ResidentDispatchStep(COUNT, (n,)),
        ResidentDispatchStep(ADD, (n, two, other)),
        ResidentDispatchStep(COUNT, (n,), grid_override=(1, 1, 1), workgroup_override=(2, 1, 1)),
    ]
    reads = [ResidentReadRange(n, 0, 12), ResidentReadRange(other, 4, 8), ResidentReadRange(n, 3, 0)]
    for timed in (False, True):
        backend.upload_resident([(n, 0, words(1, 2, 3))])
        outputs, timing = backend.dispatch_resident(steps, reads=reads, repeat=3, timed=timed)
        assert [bytes(o) for o in outputs] == [words(7, 8, 6), words(9, 8), b""]
        assert (timing is None) == (not timed)
    assert 0 < timing.device_ns < timing.wall_ns
    assert backend.dispatch_resident([], reads=[ResidentReadRange(n, 0, 4)])[0] == [words(7)]
    assert backend.dispatch_resident(steps, reads=[ResidentReadRange(n, 0, 4)], repeat=0)[0] == [words(7)]
    with pytest.raises(Trap, match="seven"):
        backend.dispatch_resident([ResidentDispatchStep(TRAP, (n,))], repeat=2)


@pytest.mark.row("A-BE-9", "A-RES-3")
def test_wrong_uses_of_resident_memory_are_refused(backend):
    handle, other = backend.allocate_resident(8), backend.allocate_resident(8)
    pipeline = pipelines.compile(backend, ADD)
    eight = HostResource(bytes(8))
    freed = backend.allocate_resident(8)
    backend.free_resident(freed)
    foreign = ResidentHandle(handle.owner + 10_000, handle.id, 8)
    never = ResidentHandle(handle.owner, 1 << 40, 8)
    step = ResidentDispatchStep
    upload, download, free = backend.upload_resident, backend.download_resident, backend.free_resident
    over, at = pipeline.dispatch_resident, ResidentReadRange
    refusals = [
        (ArgumentValueError, r"0 bytes cannot be resident.*Fix: allocate at", lambda: backend.allocate_resident(0)),
        (ArgumentValueError, r"nbytes=-1", lambda: backend.allocate_resident(-1)),
        (ArgumentTypeError, r"not a whole number", lambda: backend.allocate_resident(1.5)),
        (ArgumentValueError, r"upload of 4 bytes at 5 is outside .* 8 bytes", lambda: upload([(handle, 5, b"abcd")])),
        (ArgumentValueError, r"byte_offset=-1", lambda: upload([(handle, -1, b"abcd")])),
        (ArgumentTypeError, r"holds no bytes", lambda: upload([(handle, 0, 7)])),
        (ArgumentValueError, r"download of 1 bytes at 8 is outside", lambda: download([at(handle, 8, 1)])),
        (
            ArgumentValueError,
            r"1 range.* into 2",
            lambda: download([at(handle, 0, 1)], out=[bytearray(1)] * 2),
        ),
        (ArgumentValueError, r"0 cannot take .* 2 bytes", lambda: download([at(handle, 0, 2)], out=[bytearray(1)])),
        (ArgumentValueError, r"0 cannot take .* 2 bytes", lambda: download([at(handle, 0, 2)], out=[bytes(2)])),
        (InvalidProgram, r"freed or never allocated.*Fix: allocate it again", lambda: free(freed)),
        (InvalidProgram, r"freed or never allocated", lambda: upload([(never, 0, b"x")])),
        (InvalidProgram, r"memory of another backend instance.*Fix: download it there", lambda: free(foreign)),
        (ArgumentTypeError, r"free_resident got NoneType", lambda: free(None)),
        (InvalidProgram, r"buffer 'a' got memory of another", lambda: over([foreign, eight])),
        (InvalidProgram, r"freed or never allocated", lambda: over([freed, eight])),
        (ArgumentValueError, r"expected 3 .* or 2 for the inputs, .* 1.*order: a, b, out", lambda: over([handle])),
        (ArgumentTypeError, r"resource 0 is bytes.*Fix: pass resident handles", lambda: over([b"", b""])),
        (ArgumentValueError, r"output 'out' is given bytes of the host", lambda: over([handle, eight, eight])),
        (ArgumentValueError, r"'a' and 'out' are the same resident", lambda: over([handle, other, handle])),
        (
            ArgumentValueError,
            r"'out' of a step",
            lambda: backend.dispatch_resident([step(ADD, (handle, eight))]),
        ),
        (ArgumentValueError, r"repeat=-1", lambda: backend.dispatch_resident([], repeat=-1)),
    ]
    for kind, text, use in refusals:
        with pytest.raises(kind, match=text):
            use()
    short = Program([write_only("out", 0, u32, 3)], (4, 1, 1), [Store("out", GID, lit(1))])
    with pytest.raises(
        ArgumentValueError, match=r"'out' needs 12 bytes and its resident memory has 8.*Fix: allocate at"
    ):
        pipelines.compile(backend, short).dispatch_resident([handle])
    for h in (handle, other):
        backend.free_resident(h)
        with pytest.raises(InvalidProgram, match="freed"):
            backend.free_resident(h)


def test_a_launch_that_was_ready_ends_with_its_memory(backend):
    a, out = uploaded(backend, arange(100)), backend.allocate_resident(400)
    native = pipelines.compile(backend, ADD).native
    before = len(native.repeats)  # of memory of other tests
    for _ in range(3):
        native.dispatch_resident([a, a, out])
    assert len(native.repeats) == before + 1
    backend.free_resident(a)
    assert len(native.repeats) == before
    with pytest.raises(InvalidProgram, match="freed"):
        native.dispatch_resident([a, a, out])
    backend.free_resident(out)


def test_resident_memory_has_a_budget(own):
    own.session().device.memory_bytes = 1000
    first = own.allocate_resident(800)
    with pytest.raises(DeviceOutOfMemory, match=r"no room for more resident memory .*Fix: free some") as e:
        own.allocate_resident(101)
    assert e.value.context["limit"] == 900
    own.allocate_resident(100)
    own.free_resident(first)
    own.allocate_resident(800)


# ---- ends -----------------------------------------------------------------------------------------------------------


def test_opening_makes_no_thread_and_no_context(backend):
    before = threading.active_count()
    made = opened(backend.id)
    assert made._session is None
    assert threading.active_count() <= before  # one of another test may end meanwhile
    assert not made.device_lost()
    made.flush()
    made.shutdown()
    made.shutdown()


def test_shutdown_waits_for_what_was_started_and_refuses_the_rest(backend):
    made = opened(backend.id)
    native = made.compile_native(bump.program, DispatchConfig())
    payload = native.serialize()
    pending = native.dispatch_async([arange(70_000)])
    slow = native.dispatch_async([arange(10)], DispatchConfig(fixpoint_iterations=2000))
    made.shutdown()
    made.shutdown()
    assert bytes(pending.result()[0]) == (2 * arange(70_000) + 1).tobytes()
    assert bytes(slow.result()[0]) == (arange(10) + 2000 * (arange(10) + 1)).astype(np.uint32).tobytes()
    for use in (
        lambda: native.dispatch([arange(64)]),
        lambda: native.dispatch_async([arange(64)]),
        lambda: native.dispatch_resident([]),
        lambda: made.dispatch(COUNT, [words(1)]),
        lambda: made.compile_native(COUNT, DispatchConfig()),
        lambda: made.load_native(COUNT, DispatchConfig(), payload),
        lambda: made.allocate_resident(4),
        lambda: made.try_recover(),
    ):
        with pytest.raises(BackendError, match=r"shut down.*Fix: "):
            use()


def test_a_closed_pipeline_refuses(backend):
    native = backend.compile_native(bump.program, DispatchConfig())
    native.dispatch([arange(64)])
    native.close()
    native.close()
    for use in (native.dispatch, native.dispatch_async, native.dispatch_resident):
        with pytest.raises(DispatchFailed, match=r"the pipeline is closed .*Fix: "):
            use([arange(64)])


def test_recovery_ends_pipelines_and_handles_of_the_old_device(own):
    native = own.compile_native(bump.program, DispatchConfig())
    handle = own.allocate_resident(16)
    own.try_recover()
    with pytest.raises(DeviceLost, match=r"recovered after this pipeline was compiled.*Fix: compile the program again"):
        native.dispatch([arange(4)])
    with pytest.raises(InvalidProgram, match="another backend instance"):
        own.download_resident([ResidentReadRange(handle, 0, 4)])
    assert own.dispatch(COUNT, [words(1)]) == [words(2)]


def test_a_recovered_device_is_used_behind_the_guard(own):
    guard = guarded(own)
    pipeline, handle = pipelines.compile(guard, COUNT), guard.allocate_resident(4)
    guard.try_recover()
    with pytest.raises(DeviceLost):
        pipeline.dispatch([words(1)])
    with pytest.raises(DeviceLost, match="before it was recovered"):
        guard.free_resident(handle)
    assert guard.dispatch(COUNT, [words(1)]) == [words(2)]


# ---- code that is kept ----------------------------------------------------------------------------------------------


def test_stored_code_is_used_by_the_next_backend(backend):
    store = KeptCode()
    made, found = opened(backend.id), opened(backend.id)
    for b in (made, found):
        attach_store(b, store)
    for program, inputs in ((COUNT, [words(1, 2)]), (histogram.program, [b"\1\2\1", bytes(1024)])):
        first = pipelines.compile(made, program)
        second = pipelines.compile_with_telemetry(found, program)
        assert second.cache_hit
        assert second.pipeline.native.source == first.native.source
        assert second.pipeline.dispatch(inputs) == first.dispatch(inputs)
    assert (found.metrics()["compiled_programs"], found.metrics()["loaded_programs"]) == (0, 2)
    for b in (made, found):
        b.shutdown()


def test_damaged_code_and_that_of_another_version_are_refused(monkeypatch):
    built = Artifact("text", b"image", LaunchFacts((4, 1, 1), ("a",), {1: ["const", "u32", 1]}, extra={"n": 2}))
    payload = built.to_bytes()
    assert Artifact.from_bytes(payload) == built
    for damaged in (b"", b"vdev", payload[:20], payload[:-1], payload + b"x", b"x" + payload[1:], payload[:-1] + b"x"):
        with pytest.raises(KernelCompileFailed, match=r"the stored code is damaged.*Fix: "):
            Artifact.from_bytes(damaged)
    monkeypatch.setattr(device, "FORMAT", device.FORMAT + 1)
    with pytest.raises(KernelCompileFailed, match=r"the stored code is damaged.*Fix: "):
        Artifact.from_bytes(payload)


def test_many_shapes_and_configs_are_forgotten_in_time(backend):
    native = backend.compile_native(bump.program, DispatchConfig())
    for n in range(1, 150):
        assert bytes(native.dispatch([arange(n)])[0]) == (2 * arange(n) + 1).tobytes()
    for k in range(150):
        config = DispatchConfig(grid_override=(1 + k % 3, 1, 1))  # often at the address of an earlier one
        found = native.dispatch([np.zeros(200, np.uint32)], config)[0]
        assert np.count_nonzero(np.frombuffer(found, np.uint32)) == 64 * (1 + k % 3)
    assert len(native._planned) <= 64
