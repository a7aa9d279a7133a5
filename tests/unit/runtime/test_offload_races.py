"""Backends on devices when things meet: deadlines and submissions, recovery and launches, the collector and a pool."""

import gc
import math
import threading
import time

import pytest
from tests.contract.programs import ADD, COUNT, LONG, unwords, words

from vyre.driver.contract.values import DispatchConfig, ResidentHandle, ResidentReadRange
from vyre.driver.execute.prepared_resident import MAX_READY, NOTHING, Repeats
from vyre.driver.guard import compile as pipelines
from vyre.driver.guard.backend import guarded
from vyre.driver.plan.grid import box_count, boxes
from vyre.errors import ArgumentTypeError, DeadlineExceeded, DeviceLost, DispatchFailed, InvalidProgram, Trap
from vyre.foundation.ir.dtypes import u32
from vyre.foundation.ir.nodes import IndirectDispatch, Store, lit
from vyre.foundation.ir.nodes import Trap as TrapNode
from vyre.foundation.ir.program import Program, read_write
from vyre.runtime.memory_pool import LEAST_BYTES, MemoryPool

from ...support.cpu_kernels import arange
from .test_offload import CountingDevice, backend, own, uploaded  # noqa: F401 - fixtures

# ---- deadlines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [math.inf, 1e300, 1e18])
def test_a_deadline_may_be_as_far_away_as_anybody_likes(backend, timeout):  # noqa: F811
    config = DispatchConfig(timeout=timeout)
    assert backend.dispatch(COUNT, [words(1)], config) == [words(2)]


def test_time_that_runs_out_while_work_is_sent_off_still_stops_it(own):  # noqa: F811
    device = own.session().device
    if not device.polls:
        pytest.skip(f"{own.id}: its kernels cannot be stopped")
    config = DispatchConfig(timeout=0.2)
    pipeline = own.compile_native(LONG, config.with_(timeout=60))
    make = device.batch

    def slow(**options):
        batch = make(**options)
        submit = batch.submit

        def late():
            ticket = submit()
            time.sleep(0.3)  # after the launch, and before anybody waits for it
            return ticket

        batch.submit = late
        return batch

    device.batch = slow
    with pytest.raises(DeadlineExceeded):
        pipeline.dispatch([words(0)], config)
    del device.batch
    assert not own.device_lost()
    assert device.batch().submit().wait(0.5)  # it comes after whatever still runs, which takes seconds


def test_a_grid_of_more_launches_than_anybody_can_count_keeps_its_deadline(own):  # noqa: F811
    own.session().device.most_groups = 65535
    own.dispatch(ADD, [words(1), words(2)], DispatchConfig(timeout=60))
    config = DispatchConfig(grid_override=(1, 0xFFFFFFFF, 0xFFFFFFFF), timeout=0.3)
    with pytest.raises(DeadlineExceeded):
        own.dispatch(ADD, [words(1), words(2)], config)


@pytest.mark.parametrize("grid", [(5, 2, 1), (4, 4, 4), (1, 9, 3), (0, 3, 1), (9, 1, 1)])
@pytest.mark.parametrize("most", [1, 2, 4, (3, 1, 2), 100])
def test_boxes_are_counted_without_making_them(grid, most):
    assert box_count(grid, most) == len(list(boxes(grid, most)))


@pytest.mark.parametrize("iterations", [255, 256, 257])
def test_started_dispatches_of_many_launches_end_as_the_others(backend, iterations):  # noqa: F811
    config = DispatchConfig(fixpoint_iterations=iterations)
    assert backend.dispatch_async(COUNT, [words(1)], config).result() == [words(iterations + 1)]


def test_a_trap_is_told_before_the_grid_that_follows_it(backend):  # noqa: F811
    program = Program(
        [read_write("grid", 0, u32), read_write("n", 1, u32)],
        (4, 1, 1),
        [IndirectDispatch("grid", 0), Store("grid", lit(0), lit(0xFFFFFFFF)), TrapNode(lit(3), "sprung")],
    )
    with pytest.raises(Trap, match="sprung"):
        backend.dispatch(program, [words(1, 1, 1), words(5)], DispatchConfig(fixpoint_iterations=3))


# ---- recovery -------------------------------------------------------------------------------------------------------


def test_a_dispatch_in_the_middle_of_its_launches_survives_a_recovery(own):  # noqa: F811
    """It is told that the device is gone; its memory is not taken away under it, which would end the process."""
    guard, told = guarded(own), []
    handle, pipeline = guard.allocate_resident(1 << 16), pipelines.compile(guard, COUNT)
    begun = threading.Event()

    def work():
        begun.set()
        try:
            pipeline.dispatch_resident([handle], DispatchConfig(fixpoint_iterations=1_000_000))
        except Exception as e:
            told.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    time.sleep(0.1)
    guard.try_recover()
    for _ in range(20):
        guard.allocate_resident(1 << 16)
    thread.join(30)
    assert [type(e) for e in told] == [DeviceLost]
    assert guard.dispatch(COUNT, [words(1)]) == [words(2)]


class Failed:
    """Work that went wrong after everybody had left."""

    def done(self):
        raise DispatchFailed("the driver failed", fix="none")


def test_work_that_was_left_behind_and_failed_is_over(own):  # noqa: F811
    assert own.dispatch(COUNT, [words(1)]) == [words(2)]
    own.session().left = Failed()
    assert not own.device_lost()
    assert own.dispatch(COUNT, [words(1)]) == [words(2)]


# ---- memory ---------------------------------------------------------------------------------------------------------


class Dropped:
    """As a started dispatch in a cycle: it gives its memory back when the collector comes."""

    def __init__(self, pool, piece):
        self.pool, self.piece, self.itself = pool, piece, self

    def __del__(self):
        self.pool.give(self.piece)


def test_the_collector_may_give_memory_back_in_the_middle_of_the_pool():
    pool, ended = MemoryPool(CountingDevice(1 << 20)), []

    def work():
        Dropped(pool, pool.take(1000))
        with pool._lock:
            gc.collect()
        ended.append(pool.idle_bytes)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(10)
    assert ended == [1024]


def test_a_piece_is_no_larger_than_the_device_allows():
    device = CountingDevice(1 << 20)
    device.most_bytes = 1100
    assert MemoryPool(device).take(1030).nbytes == 1040
    assert MemoryPool(device).take(1000).nbytes == 1024


def test_no_piece_is_smaller_than_the_least_where_nobody_knows_the_most():
    device = CountingDevice(1 << 20)
    assert device.most_bytes == 0
    assert MemoryPool(device).take(0).nbytes == LEAST_BYTES


def test_what_was_ready_lets_go_of_freed_memory_at_once(backend):  # noqa: F811
    a, out = uploaded(backend, arange(100)), backend.allocate_resident(400)
    native = pipelines.compile(backend, ADD).native
    before = len(native.repeats)  # of memory of other tests
    native.dispatch_resident([a, a, out])
    assert len(native.repeats) == before + 1
    backend.free_resident(a)
    assert len(native.repeats) == before
    native.keep_launched(None, [a, a, out], lambda: None, [out])  # by a thread that had found the memory before
    assert len(native.repeats) == before
    with pytest.raises(InvalidProgram, match="freed"):
        native.dispatch_resident([a, a, out])
    backend.free_resident(out)


class Interrupted(list):
    """Handles, one of which another thread frees while they are looked at for the second time."""

    def __init__(self, handles, free):
        super().__init__(handles)
        self.looks, self.thread = 0, threading.Thread(target=free, daemon=True)

    def __iter__(self):
        self.looks += 1
        for handle in super().__iter__():
            yield handle
            if self.looks == 2:
                self.thread.start()
                self.thread.join(0.2)


@pytest.mark.parametrize("end", ["forget", "clear"])
def test_what_ends_while_it_is_kept_is_not_in_the_table(end):
    repeats, handle = Repeats(), ResidentHandle(1, 1, 4)
    given = Interrupted([handle], lambda: repeats.clear() if end == "clear" else repeats.forget(handle))
    repeats.keep(None, given, lambda: None)
    given.thread.join(10)
    assert not repeats.table
    assert not repeats._kept


def test_the_oldest_of_too_many_dispatches_is_no_longer_ready():
    repeats, shared, config = Repeats(), ResidentHandle(1, 0, 4), DispatchConfig()
    each = [[shared, ResidentHandle(1, k, 4)] for k in range(1, MAX_READY + 2)]
    for given in each[:-1]:
        repeats.keep(config, given, list)
    assert repeats.find(id(config), each[0]) is not None
    assert repeats.last != NOTHING
    repeats.keep(config, each[-1], list)
    assert repeats.last == NOTHING  # it was the oldest
    assert repeats.find(id(config), each[0]) is None
    assert all(repeats.find(id(config), given) for given in each[1:])
    assert each[0][1].id not in repeats._uses
    repeats.forget(shared)
    assert (repeats.table, repeats._kept, repeats._uses) == ({}, {}, {})


@pytest.mark.parametrize("out, text", [(7, "out is int, not a list"), ([7], "holds no bytes")])
def test_memory_to_read_into_is_a_list_of_buffers(backend, out, text):  # noqa: F811
    handle = backend.allocate_resident(4)
    with pytest.raises(ArgumentTypeError, match=text):
        backend.download_resident([ResidentReadRange(handle, 0, 4)], out=out)
    assert unwords(backend.download_resident([ResidentReadRange(handle, 0, 4)])[0]) == [0]
    backend.free_resident(handle)
