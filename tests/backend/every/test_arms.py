"""Steps of a sequence that have nothing to do with each other: side by side where the device can, with equal bytes."""

import threading

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, gid, u32
from vyre.driver.contract.values import ResidentDispatchStep, ResidentReadRange
from vyre.driver.resident.arms import waits_of

from ...support.device_backends import IDS, open_or_skip

TURNS = 300


@pytest.fixture(params=("cpu", *IDS))
def name(request):
    open_or_skip(request.param)
    return request.param


@pytest.fixture(autouse=True)
def one_launch_for_each_step(monkeypatch):
    monkeypatch.setenv("VYRE_FUSION", "no")


@vyre.kernel(workgroup=64)
def long(x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        a: u32 = x[gid.x]
        for k in range(TURNS):
            a = (a ^ (a >> 3)) * 1664525 + k
        out[gid.x] = a


@vyre.kernel(workgroup=64)
def add(x: In[u32], y: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] + y[gid.x]


@vyre.kernel(workgroup=64)
def bump(x: InOut[u32]):
    if gid.x < len(x):
        x[gid.x] += 1


def branches(x, y):
    """A diamond of four arms, and what is updated between them."""
    arms = [long(x), long(y), long(add(x, y)), add(long(x), y)]
    bump(y)
    arms.append(long(y))
    total = arms[0]
    for arm in arms[1:]:
        total = add(total, arm)
    return total, arms


def test_arms_have_the_bytes_of_single_calls(name):
    run = vyre.sequence(branches).on(name)
    for n in (1, 64, 1000):
        for turn in range(4):
            x, y = np.arange(n, dtype=np.uint32) + turn, np.full(n, 7, np.uint32)
            expected_y = y.copy()
            expected, arms = branches(x, expected_y)
            total, found = run(x, y)
            assert total.tobytes() == expected.tobytes()
            assert [a.tobytes() for a in found] == [a.tobytes() for a in arms]
            assert y.tobytes() == expected_y.tobytes()


@pytest.mark.check
def test_arms_of_several_threads_do_not_meet(name):
    run, x = vyre.sequence(branches).on(name), np.arange(64, dtype=np.uint32)
    expected = branches(x, x.copy())[0].tobytes()
    wrong = []

    def work():
        for _ in range(20):
            if run(x, x.copy())[0].tobytes() != expected:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.check
@pytest.mark.parametrize("turns", [1, 3, 40, 300])
def test_repeated_steps_see_what_the_turn_before_left(turns):
    """The last step of a turn and the first of the next one are not beside each other where they share memory."""
    for id in ("cpu", "opencl", "wgpu"):
        try:
            backend = open_or_skip(id)
        except pytest.skip.Exception:
            continue
        a, b, c = (backend.allocate_resident(256) for _ in range(3))
        backend.upload_resident([(h, 0, np.full(64, k, np.uint32)) for k, h in enumerate((a, b))])
        steps = (
            ResidentDispatchStep(bump.program, (a,)),
            ResidentDispatchStep(bump.program, (b,)),
            ResidentDispatchStep(add.program, (a, b, c)),
        )
        for _ in range(2):
            (found,), _ = backend.dispatch_resident(steps, reads=[ResidentReadRange(c, 0, 256)], repeat=turns)
        assert set(np.frombuffer(found, np.uint32).tolist()) == {1 + 4 * turns}


def test_memory_decides_and_no_slot():
    backend = vyre.acquire("cpu")
    a, b, c = (backend.allocate_resident(256) for _ in range(3))
    one, two = ResidentDispatchStep(add.program, (a, a, b)), ResidentDispatchStep(add.program, (b, b, c))
    assert [[w.step for w in found] for found in waits_of([one, two])] == [[], [0]]
    assert [[w.step for w in found] for found in waits_of([one, ResidentDispatchStep(add.program, (a, a, c))])] == [
        [],
        [],
    ]
    other = ResidentDispatchStep(add.program, (a, a, c))
    adopted = waits_of([one, other], lambda id: id in (b.id, c.id))  # which may be the same bytes
    assert [[w.step for w in found] for found in adopted] == [[], [0]]


def test_independent_steps_go_through_several_queues(monkeypatch):
    open_or_skip("opencl")
    from vyre.backends.opencl.run import arms

    seen = []
    monkeypatch.setattr(arms, "lanes_of", lambda after, plain=arms.lanes_of: seen.append(plain(after)) or seen[-1])
    x = np.arange(8, dtype=np.uint32)
    run = vyre.sequence(lambda x: (long(x), long(x), long(x))).on("opencl")
    expected = long(x).tobytes()
    for _ in range(3):
        assert {a.tobytes() for a in run(x)} == {expected}
    assert len(set(seen[0])) >= 2
    vyre.sequence(lambda x: long(long(long(x)))).on("opencl")(x)
    assert len(seen) == 1  # each waits for the one before


def test_explain_says_which_steps_are_beside_each_other(name):
    x = np.arange(8, dtype=np.uint32)
    text = str(vyre.sequence(lambda x: add(long(x), long(x))).on(name).explain(x))
    assert "arm: in turn (it reads what is written by step 2)" in text
    beside = name in ("opencl", "cuda")
    assert ("arm: beside (step 2 has nothing to do with it" in text) == beside
    assert ("this device keeps the order" in text) != beside
