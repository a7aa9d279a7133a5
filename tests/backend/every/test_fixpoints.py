"""`fixpoint_iterations`: a dispatch stops soon after an iteration changes nothing, with the bytes of all of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vyre
from vyre import In, InOut, Out, gid, u8, u32
from vyre.driver import pipeline as pipelines
from vyre.driver.contract.values import DispatchConfig, ResidentReadRange
from vyre.driver.counters import counters, decision_counters
from vyre.errors import DeadlineExceeded, Trap, UnsupportedFeature
from vyre.foundation.ir.dtypes import u32 as word
from vyre.foundation.ir.nodes import IndirectDispatch, InvocationId, Load, Store, lit
from vyre.foundation.ir.program import Program, read_write

from ...support.device_backends import IDS, open_or_skip

MANY = 5000


@pytest.fixture(params=("reference", "cpu", *IDS))
def backend(request):
    return open_or_skip(request.param)


@vyre.kernel(workgroup=64)
def upwards(x: InOut[u32], most: u32):
    if gid.x < len(x) and x[gid.x] < most:
        x[gid.x] += 1


@vyre.kernel(workgroup=64)
def bytes_upwards(x: InOut[u8]):
    if gid.x < len(x) and u32(x[gid.x]) < 40:
        x[gid.x] = u8(u32(x[gid.x]) + 1)


@vyre.kernel(workgroup=64)
def to_and_fro(x: InOut[u32]):
    if gid.x < len(x):
        x[gid.x] ^= 1


@vyre.kernel(workgroup=64)
def trapping(x: InOut[u32]):
    if gid.x < len(x):
        x[gid.x] += 1
        if x[gid.x] == 70:
            vyre.trap("seventy", x[gid.x])


def spared(work):
    """What the work gives, and how many iterations it did not run."""
    before = counters()
    found = work()
    after = counters()
    return found, after["iterations_spared"] - before["iterations_spared"]


def run(backend, kernel, inputs, iterations, **config):
    pipe = pipelines.compile(backend, kernel.program)
    settled = DispatchConfig(fixpoint_iterations=iterations, **config)
    return [bytes(o) for o in pipe.dispatch([np.asarray(x) for x in inputs], settled)]


@pytest.mark.row("C-dc-1")
def test_what_has_settled_is_not_run_to_the_end(backend):
    x = np.arange(1000, 0, -1, dtype=np.uint32) + 90
    x[[0, 300, 600]] = 1
    (found,), saved = spared(lambda: run(backend, upwards, [x, np.uint32(95).tobytes()], MANY))
    assert np.frombuffer(found, np.uint32).tolist() == np.maximum(x, 95).tolist()
    assert saved > MANY // 2  # it settles after 94


@given(start=st.lists(st.integers(0, 300), min_size=1, max_size=40), most=st.integers(0, 300))
@settings(max_examples=20, deadline=None)
def test_bytes_are_those_of_as_many_iterations_as_it_takes(start, most):
    backend = vyre.acquire("cpu")
    x, limit = np.array(start, np.uint32), np.uint32(most).tobytes()
    for iterations in (7, 8, 9, 31, 299, 301, MANY):
        (found,) = run(backend, upwards, [x, limit], iterations)
        expected = np.maximum(x, np.minimum(x + iterations, most).astype(np.uint32))
        assert np.frombuffer(found, np.uint32).tolist() == expected.tolist()


@pytest.mark.parametrize("iterations", [255, 256, 257, 288, 1000])
def test_what_never_settles_runs_to_the_end(backend, iterations):
    x = np.zeros(100, np.uint32)
    (found,), saved = spared(lambda: run(backend, upwards, [x, np.uint32(MANY).tobytes()], iterations))
    assert not saved
    assert set(np.frombuffer(found, np.uint32).tolist()) == {iterations}


def test_what_comes_back_to_where_it_was_has_not_settled(backend):
    x = np.arange(100, dtype=np.uint32)
    for iterations in (1000, 1001):
        (found,), saved = spared(lambda n=iterations: run(backend, to_and_fro, [x], n))
        assert not saved
        assert np.frombuffer(found, np.uint32).tolist() == (x ^ iterations % 2).tolist()


@pytest.mark.parametrize("n", [1, 3, 101])
def test_a_change_of_one_byte_is_seen(backend, n):
    x = np.full(n, 40, np.uint8)
    x[-1] = 0
    (found,), saved = spared(lambda: run(backend, bytes_upwards, [x], MANY))
    assert set(found) == {40}
    assert saved > MANY // 2


def test_a_trap_of_a_late_iteration_is_raised(backend):
    with pytest.raises(Trap, match="seventy"):
        run(backend, trapping, [np.zeros(10, np.uint32)], 1000)


def test_a_deadline_is_kept_and_what_has_settled_meets_it(backend):
    x = np.zeros(10, np.uint32)
    (found,), saved = spared(lambda: run(backend, upwards, [x, np.uint32(5).tobytes()], MANY, timeout=60.0))
    assert set(np.frombuffer(found, np.uint32).tolist()) == {5}
    assert saved > MANY // 2
    with pytest.raises(DeadlineExceeded):
        run(backend, to_and_fro, [np.zeros(1 << 16, np.uint32)], 0xFFFFFFFF, timeout=0.2)


def test_started_and_resident_dispatches_stop_too(backend):
    x, limit = np.zeros(1000, np.uint32), np.uint32(5).tobytes()
    config = DispatchConfig(fixpoint_iterations=MANY)
    pipe = pipelines.compile(backend, upwards.program)
    (found,), saved = spared(lambda: pipe.dispatch_async([x, limit], config).result())
    assert set(np.frombuffer(found, np.uint32).tolist()) == {5}
    assert saved > MANY // 2
    try:
        a, b = backend.allocate_resident(x.nbytes), backend.allocate_resident(4)
    except UnsupportedFeature:
        return  # started dispatches only
    backend.upload_resident([(a, 0, x), (b, 0, limit)])
    _, saved = spared(lambda: pipe.dispatch_resident([a, b], config))
    (found,) = backend.download_resident([ResidentReadRange(a, 0, x.nbytes)])
    assert set(np.frombuffer(found, np.uint32).tolist()) == {5}
    assert saved > MANY // 2


def test_a_grid_in_memory_may_end_it(backend):
    at = InvocationId(0)
    program = Program(
        [read_write("grid", 0, word), read_write("n", 1, word)],
        (4, 1, 1),
        [
            IndirectDispatch("grid", 0),
            Store("n", at, Load("n", at) + 1),
            Store("grid", lit(2), lit(1)),
        ],
    )
    grid, n = np.array([1, 1, 1], np.uint32), np.zeros(4, np.uint32)
    config = DispatchConfig(fixpoint_iterations=600)
    found = backend.dispatch(program, [grid, n], config)
    assert np.frombuffer(found[1], np.uint32).tolist() == [600] * 4
    (_, found), _saved = spared(lambda: backend.dispatch(program, [np.zeros(3, np.uint32), n], config))
    assert np.frombuffer(found, np.uint32).tolist() == [0] * 4


def test_outputs_that_only_the_first_iteration_writes_are_kept(backend):
    @vyre.kernel(workgroup=64)
    def once(x: InOut[u32], seen: In[u32], out: Out[u32]):
        if gid.x < len(x) and x[gid.x] == 0:
            x[gid.x] = 1
            out[gid.x] = seen[gid.x]

    x, seen = np.zeros(100, np.uint32), np.arange(100, dtype=np.uint32)
    found = run(backend, once, [x, seen], MANY)
    assert np.frombuffer(found[1], np.uint32).tolist() == seen.tolist()


def test_explain_says_whether_iterations_may_be_spared(backend):
    x = np.zeros(100, np.uint32)
    pipe = pipelines.compile(backend, upwards.program)
    limit = np.uint32(5).tobytes()
    for iterations, choice in ((2, "all run"), (MANY, "stops early")):
        told = pipe.explain([x, limit], DispatchConfig(fixpoint_iterations=iterations))
        if told.choice("iterations") is None:
            assert backend.id == "reference"
            return
        assert told.choice("iterations") == choice
        before = decision_counters().get(("iterations", choice), 0)
        pipe.dispatch([x, limit], DispatchConfig(fixpoint_iterations=iterations + 1))
        assert decision_counters()[("iterations", choice)] == before + 1
