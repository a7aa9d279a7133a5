"""Work that is kept ready: a launch, or many as one, has the bytes of separate launches, and costs the driver one call.

What devices share runs on each of them; graphs need the hardware.
"""

import ctypes
import threading
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from tests.contract.programs import ADD, COUNT, LONG, TRAP, words

import vyre
from vyre import In, InOut, Out, gid, u32
from vyre.backends.cuda.device import CudaDevice
from vyre.backends.cuda.emit.coarsen import cuda_code
from vyre.backends.cuda.run import staging
from vyre.backends.cuda.run.commands import CudaBatch, Loaded, Numbers, Sent
from vyre.backends.cuda.run.fast_calls import Calls, Setting
from vyre.backends.cuda.run.graphs import OF_A_KIND, Graphs
from vyre.driver.contract.values import DispatchConfig, HostResource, ResidentDispatchStep, ResidentReadRange
from vyre.driver.guard import compile as pipelines
from vyre.driver.guard.backend import guarded
from vyre.errors import (
    DeadlineExceeded,
    DeviceLost,
    DispatchFailed,
    InvalidProgram,
    Trap,
)
from vyre.foundation.ir.nodes import InvocationId
from vyre.lower import LowerOptions, lower
from vyre.runtime.device import Launch, Zero

from ...support.device_backends import IDS, open_or_skip
from .test_cuda_backend import run_alone

N = 100
GID = InvocationId(0)
WORTH_A_GRAPH = CudaDevice.launch_costs.first_recorded_run


@vyre.kernel(workgroup=64)
def add_one(x: InOut[u32]):
    if gid.x < len(x):
        x[gid.x] = x[gid.x] + 1


@vyre.kernel(workgroup=64)
def triple(x: In[u32], y: InOut[u32]):
    if gid.x < len(y):
        y[gid.x] = y[gid.x] * 3 + x[gid.x]


@vyre.kernel(workgroup=64)
def even(x: In[u32], out: Out[u32]):
    """Of its output, every other element stays zero."""
    if 2 * gid.x < len(out):
        out[2 * gid.x] = x[gid.x]


@pytest.fixture(scope="module", params=IDS)
def backend(request):
    made = guarded(open_or_skip(request.param))
    yield made
    made.shutdown()


@pytest.fixture
def cuda():
    made = guarded(open_or_skip("cuda"))
    yield made
    made.shutdown()


def put(backend, data):
    data = np.ascontiguousarray(data)
    handle = backend.allocate_resident(data.nbytes)
    backend.upload_resident([(handle, 0, data)])
    return handle


def got(backend, handle):
    (found,) = backend.download_resident([ResidentReadRange(handle, 0, handle.nbytes)])
    return np.frombuffer(found, np.uint32)


def arange(n=N):
    return np.arange(n, dtype=np.uint32)


def step(kernel, *handles, **options):
    return ResidentDispatchStep(getattr(kernel, "program", kernel), handles, **options)


def expected(x, y, turns):
    for _ in range(turns):
        x = x + np.uint32(1)
        y = y * np.uint32(3) + x
    return x, y


# ---- the same everywhere --------------------------------------------------------------------------------------------


def test_a_sequence_does_what_its_commands_do(backend):
    session = backend.inner.session()
    x, y = put(backend, arange()), put(backend, arange())
    memories = [session.residents.find(h, "a test").memory for h in (x, y)]
    native = pipelines.compile(backend, triple.program).native
    code = native.require_open()
    launch = Launch(code, memories, (N, N), (0, 0, 0), (2, 1, 1))
    go = session.device.sequence([Zero(memories[1], 0, 40), launch, launch])
    for _ in range(3):
        go().wait(None)
    wanted = arange()
    for _ in range(3):
        wanted[:10] = 0
        wanted = (wanted * 3 + arange()) * 3 + arange()
    assert np.array_equal(got(backend, y), wanted)
    assert np.array_equal(got(backend, x), arange())
    for h in (x, y):
        backend.free_resident(h)


def test_a_launch_of_a_sequence_counts_from_its_base(backend):
    session = backend.inner.session()
    x = put(backend, np.zeros(128, np.uint32))
    memory = session.residents.find(x, "a test").memory
    code = pipelines.compile(backend, add_one.program).native.require_open()
    go = session.device.sequence([
        Launch(code, [memory], (128,), (1, 0, 0), (1, 1, 1)), Launch(code, [memory], (128,), (0, 0, 0), (2, 1, 1)),
    ])  # fmt: skip
    go().wait(None)
    go().wait(None)
    assert got(backend, x).tolist() == [2] * 64 + [4] * 64
    backend.free_resident(x)


@pytest.mark.parametrize("turns", [0, 1, 2, 31, 200, 700])
@pytest.mark.parametrize("kind", [list, tuple])
def test_steps_that_are_repeated_have_the_bytes_of_single_launches(backend, turns, kind):
    x, y = put(backend, arange()), put(backend, arange() * 7)
    steps = kind((step(add_one, x), step(triple, x, y)))
    wanted = arange(), arange() * 7
    for _ in range(3):
        reads = [ResidentReadRange(y, 0, 4 * N), ResidentReadRange(y, 0, 0), ResidentReadRange(x, 4, 8)]
        (found, empty, part), timing = backend.dispatch_resident(steps, reads=reads, repeat=turns)
        wanted = expected(*wanted, turns)
        assert timing is None
        assert bytes(found) == wanted[1].tobytes()
        assert bytes(empty) == b""
        assert bytes(part) == wanted[0][1:3].tobytes()
    assert backend.dispatch_resident(steps, repeat=turns) == ([], None)
    assert np.array_equal(got(backend, y), expected(*wanted, turns)[1])
    _, timing = backend.dispatch_resident(steps, repeat=turns, timed=True)
    assert timing.wall_ns > 0
    assert np.array_equal(got(backend, y), expected(*wanted, 2 * turns)[1])
    for h in (x, y):
        backend.free_resident(h)


def test_outputs_of_repeated_dispatches_are_zero_where_nobody_stores(backend):
    x, out = put(backend, arange()), put(backend, np.full(2 * N, 0xA5A5A5A5, np.uint32))
    wanted = np.zeros(2 * N, np.uint32)
    wanted[::2] = arange()
    pipe = pipelines.compile(backend, even.program)
    for _ in range(3):
        assert pipe.dispatch_resident([x, out]) == [out]
        assert np.array_equal(got(backend, out), wanted)
        backend.upload_resident([(out, 0, b"\xa5" * 8 * N)])
    assert len(pipe.native.repeats) == 1
    backend.dispatch_resident([step(even, x, out)], repeat=2)
    assert np.array_equal(got(backend, out), wanted)
    for h in (x, out):
        backend.free_resident(h)


@pytest.mark.parametrize("iterations", [1, 5])
def test_iterations_that_are_repeated_see_what_the_last_one_left(backend, iterations):
    x = put(backend, arange())
    pipe = pipelines.compile(backend, add_one.program, DispatchConfig(fixpoint_iterations=iterations))
    for k in range(1, 4):
        pipe.dispatch_resident([x])
        assert np.array_equal(got(backend, x), arange() + k * iterations)
    assert len(pipe.native.repeats) == 1
    backend.free_resident(x)


def test_steps_end_with_their_memory(backend):
    x, y = put(backend, arange()), put(backend, arange())
    steps = (step(add_one, x), step(triple, x, y))
    for _ in range(2):
        backend.dispatch_resident(steps)
    backend.free_resident(x)
    with pytest.raises(InvalidProgram, match="freed"):
        backend.dispatch_resident(steps)
    assert np.array_equal(got(backend, y), expected(arange(), arange(), 2)[1])
    backend.free_resident(y)


def test_what_is_over_other_memory_stays_ready(backend):
    x, y, z = (put(backend, arange()) for _ in range(3))
    pipe, steps = pipelines.compile(backend, triple.program), (step(add_one, x), step(add_one, y))
    repeats, kept = pipe.native.repeats, backend.inner.session().residents._repeats
    for given in ([x, y], [x, z], [x, y]):
        pipe.dispatch_resident(given)
    backend.dispatch_resident(steps)
    assert (len(repeats), len(kept)) == (2, 1)
    backend.free_resident(z)
    assert (len(repeats), len(kept)) == (1, 1)
    pipe.dispatch_resident([x, y])
    wanted = arange()
    for k in range(3):
        wanted = wanted * 3 + arange() + (k == 2)
        wanted += k == 1  # the step
    assert np.array_equal(got(backend, y), wanted)
    backend.free_resident(y)
    assert (len(repeats), len(kept)) == (0, 0)
    assert x.id not in repeats._uses
    backend.free_resident(x)


def test_a_list_that_changes_between_dispatches_is_another_one(backend):
    x, y = put(backend, arange()), put(backend, arange())
    pipe, given = pipelines.compile(backend, add_one.program), [x]
    for handle in (x, x, y, x, y):
        given[0] = handle
        assert pipe.dispatch_resident(given) == [handle]
        assert pipe.dispatch_resident((handle,)) == [handle]
    assert np.array_equal(got(backend, x), arange() + 6)
    assert np.array_equal(got(backend, y), arange() + 4)
    for h in (x, y):
        backend.free_resident(h)


def test_steps_that_trap_or_take_bytes_of_the_host_are_looked_at_each_time(backend):
    out = put(backend, words(0))
    steps = (step(TRAP, out), step(add_one, out))
    for _ in range(2):
        with pytest.raises(Trap, match="seven"):
            backend.dispatch_resident(steps)
    n = put(backend, words(1, 2))
    data = np.array([5, 6], np.uint32)
    add = (step(triple, HostResource(data), n),)
    backend.dispatch_resident(add)
    data[:] = 100, 200
    backend.dispatch_resident(add)
    assert got(backend, n).tolist() == [(1 * 3 + 5) * 3 + 100, (2 * 3 + 6) * 3 + 200]
    for h in (out, n):
        backend.free_resident(h)


def test_a_list_of_resources_may_change_between_calls(backend):
    x, y = put(backend, arange()), put(backend, arange())
    resources = [x]
    steps = (ResidentDispatchStep(add_one.program, resources),)
    backend.dispatch_resident(steps)
    resources[0] = y
    backend.dispatch_resident(steps)
    assert np.array_equal(got(backend, x), arange() + 1)
    assert np.array_equal(got(backend, y), arange() + 1)
    for h in (x, y):
        backend.free_resident(h)


def test_a_step_that_is_wrong_runs_none(backend):
    x, small = put(backend, arange()), put(backend, words(1))
    wrong = (step(add_one, x), step(COUNT, x, small))
    for _ in range(2):
        with pytest.raises(vyre.VyreError, match="Fix: "):
            backend.dispatch_resident(wrong)
    assert np.array_equal(got(backend, x), arange())
    for h in (x, small):
        backend.free_resident(h)


def test_memory_of_an_incarnation_that_is_over_is_refused_in_steps_that_were_kept(backend):
    made = guarded(open_or_skip(backend.id))
    x = put(made, arange())
    steps, pipe = (step(add_one, x),), pipelines.compile(made, add_one.program)
    for _ in range(2):
        made.dispatch_resident(steps)
        pipe.dispatch_resident([x])
    made.try_recover()
    for use in (lambda: made.dispatch_resident(steps), lambda: pipe.dispatch_resident([x])):
        with pytest.raises(DeviceLost, match="Fix: "):
            use()
    made.shutdown()
    with pytest.raises((DeviceLost, DispatchFailed), match="Fix: "):
        made.dispatch_resident(steps)


def test_work_that_was_left_behind_is_told_before_what_was_kept_runs(backend, monkeypatch):
    x = put(backend, arange())
    pipe = pipelines.compile(backend, add_one.program)
    for _ in range(2):
        pipe.dispatch_resident([x])
    session = backend.inner.session()

    class Unended:
        def done(self):
            return False

    session.left = Unended()
    with pytest.raises(DeviceLost, match="no caller waits for any longer"):
        pipe.native.dispatch_resident([x], pipe.route(None).config)
    session.left = None
    assert np.array_equal(got(backend, x), arange() + 2)
    backend.free_resident(x)


# ---- numbers for the driver -----------------------------------------------------------------------------------------


def drawn(after):
    """Each node of the graphs that are made of fills, with the nodes before it, by a driver that draws them."""
    made = []

    def add(graph, before, count, parameters, context):
        assert count == len(before)
        made.append(tuple(before))
        return len(made) - 1

    driver = SimpleNamespace(
        CUDA_MEMSET_NODE_PARAMS=SimpleNamespace,
        cuGraphCreate=lambda flags: "graph",
        cuGraphAddMemsetNode=add,
        cuGraphInstantiate=lambda graph, flags: 7,
        cuGraphExecDestroy=lambda handle: None,
        cuGraphDestroy=lambda handle: None,
    )
    context = SimpleNamespace(ok=lambda found, doing: found, current=nullcontext, handle=1, lost=False, failed=None)
    calls = SimpleNamespace(launch_graph=lambda graph, stream: 0)
    device = SimpleNamespace(cu=driver, context=context, calls=calls, stream=3, closed=False)
    graphs = Graphs()
    fills = [Zero(64 * k, 0, 64) for k in range(4)]
    for each in after:
        graphs.sequence(device, fills, after=each)()
    return made, graphs.made


def test_branches_of_a_graph_wait_for_what_they_need_alone():
    in_order = [(), (0,), (1,), (2,)]
    assert drawn([None]) == (in_order, 1)
    diamond = [(), (0,), (0,), (1, 2)]
    assert drawn([diamond]) == (diamond, 1)
    assert drawn([None, diamond, in_order]) == (in_order + diamond_of(4), 2)  # the last is of the kind of the first


def diamond_of(first):
    """A diamond, as the driver numbers nodes from `first` on."""
    return [(), (first,), (first,), (first + 1, first + 2)]


def test_a_setting_lies_in_memory_as_the_driver_reads_it():
    ffi = __import__("_cffi_backend").FFI()
    setting = Setting((5, 6, 7), (64, 2, 1), 50_000, 0x7F00_0000_1234, cooperative=True)
    words_ = ffi.cast("unsigned *", setting.address)
    assert [words_[k] for k in range(7)] == [5, 6, 7, 64, 2, 1, 50_000]
    wide = ffi.cast("unsigned long long *", setting.address)
    assert wide[4] == 0x7F00_0000_1234
    attribute = ffi.cast("unsigned *", wide[5])
    assert (attribute[0], attribute[2]) == (2, 1)
    assert words_[12] == 1
    plain = ffi.cast("unsigned *", Setting((1, 1, 1), (1, 1, 1), 0, 0).address)
    assert plain[12] == 0


def test_the_collector_may_give_pinned_memory_back_in_the_middle_of_the_pool(monkeypatch):
    monkeypatch.setattr(staging, "library", lambda: None)
    pool, ended = staging.Staging(SimpleNamespace(lost=True)), []

    def work():
        with pool._lock:
            pool.give(staging.Pinned(4096, 4096, None))
        ended.append(pool.take(100).address)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(10)
    assert ended == [4096]


def test_work_can_be_stopped_while_others_wait_for_room_in_the_queue():
    """Whoever enqueues holds the device's lock meanwhile."""
    device = object.__new__(CudaDevice)
    device.lock, device.ending = threading.RLock(), threading.RLock()
    word, ended = SimpleNamespace(value=0), []
    ticket = Sent(device, SimpleNamespace(ended=lambda: False), stop=word)
    with device.lock:
        thread = threading.Thread(target=lambda: ended.append(ticket.stop()), daemon=True)
        thread.start()
        thread.join(10)
    assert ended == [None]
    assert word.value == 1


@pytest.mark.parametrize("polls", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_the_end_of_a_launch_that_may_have_to_be_stopped_is_marked_before_others_can_fill_the_queue(polls, whole):
    done = []

    def call(name):
        return lambda *arguments: done.append(name)

    names = "cuLaunchKernel", "cuLaunchCooperativeKernel", "cuMemsetD32Async"
    cu, graphs = SimpleNamespace(**{name: call(name) for name in names}), SimpleNamespace(lock=threading.RLock())
    device = SimpleNamespace(cu=cu, stream=1, lock=threading.RLock(), graphs=graphs)
    device.do = lambda doing, call, *arguments: call(*arguments)
    device.mark = lambda stream, timed=False: done.append("mark") or f"mark {len(done)}"
    device.arrived = lambda stream: done.append("arrived") or 4096
    device.stops = SimpleNamespace(take=lambda: ctypes.c_uint32(), give=lambda word: None)
    device.hold, device.prune = lambda mark, ends: None, lambda spared: None
    code = object.__new__(Loaded)
    code.block, code.takes_last, code.buffers, code.shared_bytes, code.function = (64, 1, 1), False, 1, 0, 7
    code.traps, code.polls, code.whole = False, polls, whole
    code._shape, code._lanes = (
        cuda_code(lower(add_one.program, LowerOptions(off=frozenset(("privatize_atomics",))))),
        64,
    )
    code.numbers = Numbers(code)
    batch = CudaBatch(device, False, False, None)
    batch.launch(code, [64], (5,), (0, 0, 0), (1, 1, 1))
    assert done == ["arrived"] * whole + ["cuLaunchCooperativeKernel" if whole else "cuLaunchKernel"] + ["mark"] * polls
    first = batch.submit()._mark
    assert done.count("mark") == 1
    batch.launch(code, [64], (5,), (0, 0, 0), (1, 1, 1))
    batch.zero(64, 0, 4)
    assert batch.submit()._mark != first
    assert done[-2:] == ["cuMemsetD32Async", "mark"]


# ---- on the hardware ------------------------------------------------------------------------------------------------


class Counting:
    """A driver's library that counts what is called."""

    def __init__(self, library, counts):
        self._library, self._counts = library, counts

    def __getattr__(self, name):
        found = getattr(self._library, name)
        if not callable(found) or isinstance(found, type):
            return found

        def call(*arguments):
            self._counts[name] += 1
            return found(*arguments)

        return call


@pytest.fixture
def counted(cuda):
    """The backend, and how often each function of the driver was called: through the binding, or directly."""
    device, counts = cuda.inner.session().device, Counter()
    device.cu = Counting(device.cu, counts)
    direct = device.calls
    device.calls = Counting(direct, counts)
    assert isinstance(direct, Calls)
    return cuda, counts


def test_a_batch_of_32_launches_is_one_call_of_the_driver(counted):
    backend, counts = counted
    x, y = put(backend, arange()), put(backend, arange() * 7)
    steps = (step(add_one, x), step(triple, x, y)) * 16
    backend.dispatch_resident(steps)
    backend.flush()
    for _ in range(3):
        counts.clear()
        backend.dispatch_resident(steps)
        assert counts == {"launch_graph": 1}
    counts.clear()
    backend.dispatch_resident((step(add_one, x),), repeat=32)
    backend.flush()
    counts.clear()
    backend.dispatch_resident(kept := (step(add_one, y),), repeat=32)
    counts.clear()
    backend.dispatch_resident(kept, repeat=32)
    assert counts == {"launch_graph": 1}
    wanted = expected(arange(), arange() * 7, 64)
    assert np.array_equal(got(backend, x), wanted[0] + 32)
    assert np.array_equal(got(backend, y), wanted[1] + 64)
    metrics = backend.metrics()
    assert metrics["graphs_launched"] == 7
    assert metrics["graphs_made"] >= 2


def test_a_warm_launch_is_one_call_and_so_is_one_that_fills_memory_first(counted):
    backend, counts = counted
    x, out = put(backend, arange()), put(backend, np.zeros(2 * N, np.uint32))
    plain, filling = pipelines.compile(backend, add_one.program), pipelines.compile(backend, even.program)
    for _ in range(2):
        plain.dispatch_resident([x])
        filling.dispatch_resident([x, out])
    backend.flush()
    for k in range(1, WORTH_A_GRAPH + 5):
        counts.clear()
        plain.dispatch_resident([x])
        if k != WORTH_A_GRAPH:  # which makes the graph
            assert counts == ({"launch": 1} if k < WORTH_A_GRAPH else {"launch_graph": 1})
        counts.clear()
        filling.dispatch_resident([x, out])
        assert counts == {"launch_graph": 1}
        wanted = np.zeros(2 * N, np.uint32)
        wanted[::2] = arange() + 2 + np.uint32(k)
        assert np.array_equal(got(backend, out), wanted)


def test_single_launches_take_no_graph_from_each_other(counted):
    backend, counts = counted
    pipe = pipelines.compile(backend, add_one.program)
    handles = [put(backend, arange() + k) for k in range(2 * OF_A_KIND)]
    for _ in range(2 * WORTH_A_GRAPH):
        for h in handles:
            pipe.dispatch_resident([h])
    for k, h in enumerate(handles):
        assert np.array_equal(got(backend, h), arange() + np.uint32(k + 2 * WORTH_A_GRAPH))
    counts.clear()
    for h in handles:
        pipe.dispatch_resident([h])
    assert counts == {"launch": OF_A_KIND, "launch_graph": OF_A_KIND}
    assert backend.metrics()["graphs_changed"] == 0


def test_other_memory_changes_a_graph_and_makes_none(counted):
    backend, counts = counted
    y, last = put(backend, arange()), None
    made = []
    for k in range(12):
        x = put(backend, arange() + k)
        if last is not None:
            backend.free_resident(last)  # not before: the memory of this one is to be another
        last = x
        steps = (step(triple, x, y), step(triple, x, y))
        before = got(backend, y)
        for _ in range(2):
            backend.dispatch_resident(steps)
        wanted = before
        for _ in range(4):
            wanted = wanted * 3 + arange() + np.uint32(k)
        assert np.array_equal(got(backend, y), wanted)
        made.append(counts["cuGraphInstantiate"])
        del steps
    assert made == [1] * 12
    assert counts["cuGraphExecKernelNodeSetParams"] >= 11
    assert backend.metrics()["graphs_changed"] == 11


def test_sequences_of_a_kind_take_turns_with_few_graphs(counted):
    backend, counts = counted
    kinds = 3 * OF_A_KIND
    handles = [put(backend, arange() + k) for k in range(kinds)]
    sequences = [(step(add_one, h),) * 3 for h in handles]
    for _ in range(4):
        for steps in sequences:
            backend.dispatch_resident(steps)
    for k, h in enumerate(handles):
        assert np.array_equal(got(backend, h), arange() + np.uint32(k + 12))
    assert counts["cuGraphInstantiate"] == OF_A_KIND


def test_graphs_of_many_kinds_come_and_go(cuda):
    x = put(cuda, arange())
    for k in range(2, 40):
        cuda.dispatch_resident((step(add_one, x),) * k)
    assert np.array_equal(got(cuda, x), arange() + np.uint32(sum(range(2, 40))))
    assert len(cuda.inner.session().device.graphs._kinds) <= 16


def test_a_closed_device_launches_no_graph(cuda):
    session = cuda.inner.session()
    x = put(cuda, arange())
    memory = session.residents.find(x, "a test").memory
    code = pipelines.compile(cuda, add_one.program).native.require_open()
    launch = Launch(code, [memory], (N,), (0, 0, 0), (2, 1, 1))
    go = session.device.sequence([launch, launch])
    go().wait(None)
    session.device.close()
    with pytest.raises(DeviceLost, match=r"closed while launching a graph.*Fix: "):
        go()


def test_a_launch_that_the_driver_refuses_is_an_error_of_ours(cuda):
    session = cuda.inner.session()
    x = put(cuda, arange())
    memory = session.residents.find(x, "a test").memory
    code = pipelines.compile(cuda, add_one.program).native.require_open()
    for go in (
        session.device.ready(code, [memory], (N,), (1, 70_000, 1)),  # the first launch of which is a plain one
        session.device.sequence([Launch(code, [memory], (N,), (0, 0, 0), (1, 70_000, 1))] * 2),
    ):
        with pytest.raises(DispatchFailed, match=r"the driver failed while (launching a kernel|making a graph).*Fix: "):
            go()
    cuda.dispatch(ADD, [arange(), arange()])
    assert not cuda.device_lost()


def launch_behind_endless_work():
    """Let a thread wait for endless work until its deadline, and launch meanwhile."""
    cuda, ended = guarded(open_or_skip("cuda")), []
    x = put(cuda, arange())
    pipe = pipelines.compile(cuda, add_one.program)
    for _ in range(WORTH_A_GRAPH + 2):
        pipe.dispatch_resident([x])
    cuda.flush()

    pipelines.compile(cuda, LONG, DispatchConfig(timeout=60))

    def wait_too_long():
        with pytest.raises(DeadlineExceeded):
            cuda.dispatch(LONG, [words(0)], DispatchConfig(timeout=0.5))
        ended.append(True)

    thread = threading.Thread(target=wait_too_long, daemon=True)
    thread.start()
    count = 0
    while thread.is_alive() and count < 100_000:
        pipe.dispatch_resident([x])
        count += 1
    thread.join(20)
    assert ended == [True]
    assert not cuda.device_lost()
    assert np.array_equal(got(cuda, x), arange() + np.uint32(count + WORTH_A_GRAPH + 2))
    cuda.shutdown()


def test_endless_work_is_stopped_while_another_thread_fills_the_queue_behind_it():
    open_or_skip("cuda").shutdown()
    done = run_alone("from tests.backend.cuda.test_cuda_graphs import *; launch_behind_endless_work()")
    assert done.returncode == 0, done.stderr
