"""Threads that run machine code: shares of a launch, deadlines, signals, and threads that never come back."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from functools import partial
from math import inf
from pathlib import Path

import numpy as np
import pytest

from vyre.backends.cpu.abi import NEXT
from vyre.backends.cpu.build import ObjectFacts
from vyre.backends.cpu.compile import compile_object
from vyre.backends.cpu.device import ffi, load
from vyre.backends.cpu.run import workers
from vyre.backends.cpu.run.cost import work
from vyre.backends.cpu.run.launch import (
    INLINE_WORK,
    PRIVATE_BYTES,
    SEEN_WORK,
    LaunchWords,
    Schedule,
    decide_threads,
    lengths_of,
    privatize,
    schedule,
)
from vyre.backends.cpu.run.wakeups import WAKE_LOOKS, wakeups
from vyre.backends.cpu.run.workers import Workers, thread_count
from vyre.driver.policy.decision import Decision
from vyre.errors import ArgumentValueError, DeadlineExceeded, DeviceOutOfMemory, Trap

from ...support import cpu_modules

FOREVER = [1, [[0xFFFFFFFF, [], None, [1, []]]]]


def facts(cost=(1, ()), traps=(), private=None, scratch_bytes=1000, lanes="along x"):
    return ObjectFacts(
        scratch_bytes, traps, True, {}, {}, private or {}, [cost[0], list(cost[1])], Decision("lanes", lanes, "")
    )


def launch_of(buffers, groups, chunk=1):
    launch = LaunchWords(len(buffers), 1000)
    for slot, data in enumerate(buffers):
        launch.buffers[slot] = ffi.from_buffer(data)
    launch.hold = buffers
    launch.aim(lengths_of([memoryview(b).nbytes // 4 for b in buffers]), (groups, 1, 1), chunk)
    return launch


@pytest.fixture(params=["machine code", "Python"])
def pool(request, monkeypatch):
    """Threads that sleep in machine code, where the system has that, and as elsewhere."""
    if request.param == "Python":
        monkeypatch.setattr(workers, "wakeups", lambda: None)
    elif wakeups() is None:
        pytest.skip("no such call on this system")
    made = Workers(keep=4, looks=WAKE_LOOKS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def code():
    names = ("ADD", "SPIN", "DEAF", "TRAP", "TALLY", "SCRATCH")
    return {name: load(compile_object(getattr(cpu_modules, name))) for name in names}


# ---- the pool -------------------------------------------------------------------------------------------------------


def test_a_task_runs_on_another_thread(pool):
    found = []
    task = pool.start(lambda: found.append(threading.get_ident()))
    assert task.wait()
    assert found != [threading.get_ident()]


def test_an_idle_thread_is_used_again(pool):
    found = set()
    for _ in range(20):
        assert pool.start(lambda: found.add(threading.get_ident())).wait()
        wait_until(lambda: pool._idle)
    assert len(found) == 1


def test_what_a_task_raises_is_kept_and_its_thread_works_on(pool):
    def fail():
        raise LookupError("inside")

    task = pool.start(fail)
    assert task.wait()
    assert repr(task.error) == "LookupError('inside')"
    wait_until(lambda: pool._idle)
    assert pool.start(lambda: None).wait()
    assert len(pool._idle) <= 1


def test_a_task_lets_go_of_what_it_worked_on(pool):
    class Thing:
        pass

    thing = Thing()
    alive = weakref.ref(thing)
    task = pool.start(partial(id, thing))
    del thing
    assert task.wait()
    wait_until(lambda: gc.collect() is not None and alive() is None)


def test_a_task_that_does_not_end_keeps_no_one_else_from_working(pool):
    hold = threading.Event()
    stuck = [pool.start(hold.wait) for _ in range(8)]
    assert pool.start(lambda: None).wait(60)
    assert not stuck[0].wait(0.01)
    hold.set()
    assert all(task.wait(60) for task in stuck)


def test_a_thread_that_cannot_be_started_is_an_error_that_says_so(pool, monkeypatch):
    def full(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    with pytest.raises(DeviceOutOfMemory, match=r"no thread could be started.*Fix: "):
        pool.start(lambda: None)


def test_threads_beyond_those_kept_end():
    others = set(threading.enumerate())
    pool = Workers(keep=2)
    hold = threading.Event()
    tasks = [pool.start(hold.wait) for _ in range(6)]
    mine = set(threading.enumerate()) - others
    assert len(mine) == 6
    hold.set()
    assert all(task.wait(60) for task in tasks)
    wait_until(lambda: sum(t.is_alive() for t in mine) == 2)
    pool.close()
    wait_until(lambda: not any(t.is_alive() for t in mine))


def test_a_closed_pool_ends_its_threads_when_their_work_ends():
    others = set(threading.enumerate())
    pool = Workers(keep=2)
    hold = threading.Event()
    task = pool.start(hold.wait)
    (thread,) = set(threading.enumerate()) - others
    pool.close()
    hold.set()
    assert task.wait(60)
    thread.join(60)
    assert not thread.is_alive()


def test_the_number_of_threads_can_be_set(monkeypatch):
    monkeypatch.delenv("VYRE_CPU_THREADS", raising=False)
    assert thread_count() >= 1
    monkeypatch.setenv("VYRE_CPU_THREADS", "3")
    assert thread_count() == 3


@pytest.mark.parametrize("text", ["", "0", "-1", "two", "1.5"])
def test_a_number_of_threads_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv("VYRE_CPU_THREADS", text)
    with pytest.raises(ArgumentValueError, match=r"VYRE_CPU_THREADS=.*Fix: "):
        thread_count()


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


# ---- schedules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cost, groups, expected",
    [
        ([1, []], INLINE_WORK, Schedule(1, INLINE_WORK, True)),
        ([INLINE_WORK, []], 1, Schedule(1, 1, True)),
        ([INLINE_WORK + 1, []], 1, Schedule(1, 1, True)),
        ([INLINE_WORK, []], 2, Schedule(2, 1, True)),
        ([INLINE_WORK, []], 3, Schedule(3, 1, True)),
        ([SEEN_WORK, []], 1, Schedule(1, 1, True)),
        ([SEEN_WORK + 1, []], 1, Schedule(1, 1, False)),
        (FOREVER, 1, Schedule(1, 1, False)),
        (FOREVER, 1 << 20, Schedule(4, 64, False)),
        ([1024, []], 1 << 20, Schedule(4, 4096, False, sliced=True)),
        ([SEEN_WORK, []], 1 << 20, Schedule(4, 1, False, sliced=True)),
        ([SEEN_WORK + 1, []], 1 << 20, Schedule(4, 1, False)),
    ],
)
def test_work_is_spread_where_it_is_worth_it(cost, groups, expected):
    assert schedule(facts(cost), work(cost, (), 1), (groups, 1, 1), 4) == expected


@pytest.mark.parametrize("lanes, grid, chunk", [
    ("along x", (63, 64, 1), 252), ("along x", (300, 14, 1), 263), ("along x", (262, 16, 1), 262),
    ("along y", (63, 64, 1), 192), ("in workgroups", (63, 64, 1), 252),
])  # fmt: skip
def test_a_chunk_is_of_whole_rows_where_it_has_more_than_one(lanes, grid, chunk):
    assert schedule(facts((60, ()), lanes=lanes), 60 * 256, grid, 1).chunk == chunk


def test_a_loop_counts_as_often_as_its_bounds_let_it_run():
    cost = [1, [[100, [0, 1], None, [2, [[10, [], None, [3, []]]]]]]]
    assert work(cost, (50, 60), 2) == 2 * (1 + 50 * 3 + 50 * 10 * 4)
    assert work(cost, (500, 600), 1) == 1 + 100 * 3 + 100 * 10 * 4
    assert work(cost, (0, 600), 1) == 1
    assert work(FOREVER, (), 1) == inf
    quarter = ["div", "u32", None, ["len", "u32", 1], ["const", "u32", 4]]
    assert work([0, [[0xFFFFFFFF, [1], quarter, [1, []]]]], (7, 100), 1) == 25 * 2


# ---- launches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [Schedule(1, 1000, True), Schedule(2, 3, True), Schedule(3, 7, False)])
@pytest.mark.parametrize("n", [1, 64, 65, 10_000])
def test_workers_share_a_launch(pool, code, plan, n):
    a, b, out = np.arange(n, dtype=np.uint32), np.full(n, 9, np.uint32), np.zeros(n, np.uint32)
    launch = launch_of([a, b, out], -(-n // 64), plan.chunk)
    launch.run(code["ADD"], pool, plan, None)
    assert np.array_equal(out, a + b)
    out[:] = 0
    launch.run(code["ADD"], pool, plan, time.monotonic() + 60)  # again, from the start
    assert np.array_equal(out, a + b)


def test_a_deadline_stops_the_workers(pool, code):
    a, out = np.ones(256, np.uint32), np.zeros(256, np.uint32)
    launch = launch_of([a, a, out], 4)
    start = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"did not end in time.*Fix: "):
        launch.run(code["SPIN"], pool, Schedule(2, 1, True), start + 0.1)
    assert time.monotonic() - start >= 0.1
    wait_until(lambda: len(pool._idle) == 2)
    launch.run(code["ADD"], pool, Schedule(2, 1, True), None)  # the flag is down again
    assert out.tolist() == [2] * 256


def test_workers_that_hear_nothing_are_left_behind_with_their_memory(pool, code):
    memory = np.zeros(1, np.uint32)
    alive = weakref.ref(memory)
    launch = launch_of([memory], 1)
    with pytest.raises(DeadlineExceeded):
        launch.run(code["DEAF"], pool, Schedule(1, 1, True), time.monotonic() + 0.1)
    del launch
    gc.collect()
    assert alive() is memory
    a, out = np.ones(64, np.uint32), np.zeros(64, np.uint32)
    launch_of([a, a, out], 1).run(code["ADD"], pool, Schedule(2, 1, True), None)  # and others work on
    assert out.tolist() == [2] * 64
    memory[0] = 1
    del memory
    wait_until(lambda: gc.collect() is not None and alive() is None)


def test_a_trap_is_raised_with_its_tag_place_and_invocation(pool, code):
    launch = launch_of([bytearray(4)], 4)
    named = facts(traps=("first", "second"))
    launch.arm((16, 8, 6), (1, 1, 1))
    launch.require_no_trap(named)
    launch.run(code["TRAP"], pool, Schedule(2, 1, True), None)
    with pytest.raises(Trap, match=r"the program trapped: second .*Fix: ") as e:
        launch.require_no_trap(named)
    assert e.value.context == {"address": 77, "tag": "second", "invocation": (3, 4, 5)}


def test_scratch_memory_is_aligned_and_each_workers_own(pool, code):
    out = np.zeros(2, np.uint64)
    launch = launch_of([out], 1)
    launch.run(code["SCRATCH"], pool, Schedule(1, 1, True), None)
    assert out[0]
    assert out[0] % 64 == 0
    assert len({int(ffi.cast("intptr_t", launch.worker(k).words[0])) for k in range(4)}) == 4


# ---- private copies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("count, copied", [(1, True), (PRIVATE_BYTES // 4, True), (PRIVATE_BYTES // 4 + 1, False)])
def test_order_free_atomics_go_to_copies_that_are_merged(pool, code, workers, count, copied):
    data = np.full(count, 5, np.uint32)
    groups = 1 << 19
    launch = launch_of([data], groups, 100)
    merge = privatize(launch, facts(private={0: "ADD"}), ("u32",), (count,), groups, workers)
    owns = [launch.worker(k).privates[0] != ffi.NULL for k in range(workers)]
    assert owns == [copied or workers == 1] * workers
    launch.run(code["TALLY"], pool, Schedule(workers, 100, True), None)
    merge()
    assert data[0] == 5 + groups
    assert (data[1:] == 5).all()


def test_a_buffer_larger_than_the_work_is_not_copied(code):
    launch = launch_of([np.zeros(100, np.uint32)], 10)
    privatize(launch, facts(private={0: "ADD"}), ("u32",), (100,), 99, 2)
    assert launch.worker(1).privates[0] == ffi.NULL


@pytest.mark.parametrize("element", ["u32", "i32"])
@pytest.mark.parametrize("op", ["ADD", "OR", "AND", "XOR", "MIN", "MAX"])
def test_every_merge_is_the_atomic_itself(element, op):
    dtype = {"u32": np.uint32, "i32": np.int32}[element]
    values = np.array([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x12345678], np.uint32).view(dtype)
    combine = {
        "ADD": np.add,
        "OR": np.bitwise_or,
        "AND": np.bitwise_and,
        "XOR": np.bitwise_xor,
        "MIN": np.minimum,
        "MAX": np.maximum,
    }[op]
    for other in values:
        data = values.copy()
        launch = launch_of([data], 1)
        merge = privatize(launch, facts(private={0: op}), (element,), (len(data),), len(data), 2)
        mine = np.frombuffer(ffi.buffer(launch.worker(1).privates[0], data.nbytes), dtype)
        untouched = values.copy()
        merge()
        assert np.array_equal(data, untouched)  # a copy that nobody used changes nothing
        mine[:] = combine(mine, other)
        merge()
        assert np.array_equal(data, combine(values, other))


# ---- signals --------------------------------------------------------------------------------------------------------

INTERRUPTED = """
import signal, sys, threading
import numpy as np
from tests.backend.cpu.test_cpu_workers import launch_of, load, compile_object, Workers, Schedule
from tests.support import cpu_modules
code = load(compile_object(getattr(cpu_modules, sys.argv[1])))
launch, pool = launch_of([np.zeros(1, np.uint32)], 4), Workers(keep=4)
threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
try:
    launch.run(code, pool, Schedule(2, 1, False), None)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise")
@pytest.mark.parametrize("module", ["SPIN", "DEAF"])
def test_ctrl_c_ends_a_launch_of_the_main_thread(module):
    """Also where the code hears nothing: the process then ends with it still running."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, module],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "interrupted\n"


def test_the_counter_starts_anew_for_each_run(pool, code):
    out = np.zeros(64, np.uint32)
    launch = launch_of([out, out, out], 1)
    launch.run(code["ADD"], pool, Schedule(1, 1, True), None)
    assert launch.shared[NEXT] > 0


# ---- threads that sleep in machine code -----------------------------------------------------------------------------


@pytest.mark.parametrize("looks", [0, WAKE_LOOKS])
def test_threads_are_used_again_however_long_they_slept(code, looks):
    if wakeups() is None:
        pytest.skip("no such call on this system")
    pool, n = Workers(keep=4, looks=looks), 1000
    a, out = np.arange(n, dtype=np.uint32), np.zeros(n, np.uint32)
    launch = launch_of([a, a, out], 16, 2)
    for k in range(200):
        out[:] = 0
        launch.run(code["ADD"], pool, Schedule(3, 2, k % 2 == 0), None)
        assert np.array_equal(out, 2 * a)
        if k % 50 == 0:
            time.sleep(0.001)  # longer than one looks
        if k % 20 == 0:
            task = pool.start(lambda: None)  # Python in between
            assert task.wait(60)
            wait_until(lambda: len(pool._idle) >= 2)
        assert len(pool._idle) <= 4
    pool.close()
    assert not pool._idle


def test_launches_of_several_threads_at_once_share_a_pool(pool, code):
    found = []

    def many():
        n = 1000
        a, out = np.arange(n, dtype=np.uint32), np.zeros(n, np.uint32)
        launch = launch_of([a, a, out], 16, 1)
        for _ in range(100):
            out[:] = 0
            launch.run(code["ADD"], pool, Schedule(3, 1, True), None)
            found.append(np.array_equal(out, 2 * a))

    callers = [threading.Thread(target=many) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert found == [True] * 400
    wait_until(lambda: 0 < len(pool._idle) <= 4)


def test_the_memory_of_a_launch_is_let_go_of_when_it_has_ended(pool, code):
    a, out = np.ones(64, np.uint32), np.zeros(64, np.uint32)
    launch = launch_of([a, a, out], 4)
    alive = weakref.ref(launch.hold[2])
    launch.run(code["ADD"], pool, Schedule(2, 1, True), None)
    del launch, out
    wait_until(lambda: gc.collect() is not None and alive() is None)


# ---- what explain tells ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cost, groups, choice, reason",
    [
        ([1, []], 64, "one", "at most 64 instructions; as long as waking others takes"),
        ([INLINE_WORK * 2, []], 1, "one", "at most 8388608 instructions; there is one, or one workgroup"),
        ([INLINE_WORK, []], 3, "several", "at most 12582912 instructions; 3 threads take 1 workgroups at a time"),
        (
            [SEEN_WORK, []],
            9,
            "several",
            "threads take 1 workgroups at a time, and the main thread comes back for signals",
        ),
        (
            FOREVER,
            9,
            "several",
            "work without a bound; 4 threads take 1 workgroups at a time, and the main thread waits",
        ),
        ([1, []], 0, "one", "there is nothing to run"),
    ],
)
def test_the_number_of_threads_is_told_with_its_reason(cost, groups, choice, reason):
    found = decide_threads(facts(cost), (), (1, 1, 1), (groups, 1, 1), 4)
    assert (found.what, found.choice) == ("threads", choice)
    assert found.reason.endswith(reason)
    if groups:
        assert found.numbers["threads"] == schedule(facts(cost), work(cost, (), 1), (groups, 1, 1), 4).workers
        assert found.numbers.get("instructions") == (None if cost is FOREVER else cost[0] * groups)
