"""Resources, handles and pending results: the plain values that cross the contract."""

import asyncio
import inspect
import threading
from concurrent.futures import Future

import pytest

from vyre.driver.contract import FuturePending, PendingDispatch, ReadyPending
from vyre.driver.contract.values import (
    HostResource,
    ResidentDispatchStep,
    ResidentHandle,
    ResidentOwner,
    ResidentSequenceTiming,
)
from vyre.driver.plan.binding import borrowed_input_slices
from vyre.errors import ArgumentTypeError, DeadlineExceeded, DispatchFailed, InvalidProgram
from vyre.foundation.ir.program import Program


@pytest.mark.row("A-RES-1")
def test_a_host_resource_is_empty_by_default():
    assert HostResource() == HostResource(b"")
    assert HostResource(b"ab").data == b"ab"


@pytest.mark.row("A-RES-2")
def test_two_owners_refuse_each_others_memory():
    a, b = ResidentOwner("mine"), ResidentOwner("mine")
    ours, theirs = a.handle(1, 16), b.handle(1, 16)
    assert ours != theirs
    assert a.resolve(ours, "a dispatch") == 1
    with pytest.raises(InvalidProgram, match=r"a dispatch got memory of another backend instance.*Fix: download") as e:
        a.resolve(theirs, "a dispatch")
    assert e.value.context == {"handle_instance": b.instance, "this_instance": a.instance, "backend": "mine"}
    assert b.instance > a.instance > 0


@pytest.mark.row("A-RES-2")
def test_a_handle_shows_its_owner_and_its_id():
    assert str(ResidentHandle(3, 7, 64)) == "ResidentHandle(owner=3, id=7, nbytes=64)"


def test_a_resident_step_carries_the_workgroup_its_grid_was_made_for():
    step = ResidentDispatchStep(Program.empty(), ())
    assert (step.grid_override, step.workgroup_override) == (None, None)
    assert ResidentSequenceTiming() == ResidentSequenceTiming(0, None, None, None)


@pytest.mark.row("A-PD-1", "A-PD-2")
def test_a_ready_result_keeps_the_buffers_it_was_given():
    slot = bytearray(b"ab")
    pending: PendingDispatch = ReadyPending([slot])
    assert pending.is_ready()
    assert pending.result(timeout=0)[0] is slot


def test_a_future_is_ready_when_it_is_done():
    future: Future[list] = Future()
    pending = FuturePending(future)
    assert not pending.is_ready()
    with pytest.raises(DeadlineExceeded, match=r"has not ended yet \[waited_s=0\.01\]\. Fix: wait longer"):
        pending.result(timeout=0.01)
    future.set_result([b"x"])
    assert pending.is_ready()
    assert pending.result() == [b"x"]
    with pytest.raises(DispatchFailed, match="already taken"):
        pending.await_result()


def test_a_deadline_of_the_dispatch_itself_is_passed_on():
    future: Future[list] = Future()
    error = DeadlineExceeded("it took too long", fix="allow more time")
    future.set_exception(error)
    pending = FuturePending(future)
    for _ in range(2):
        with pytest.raises(DeadlineExceeded) as e:
            pending.result(timeout=1)
        assert e.value is error


@pytest.mark.row("A-PD-3")
def test_awaiting_takes_the_result_too():
    async def twice():
        pending = ReadyPending([b"x"])
        first = await pending
        with pytest.raises(DispatchFailed, match="already taken"):
            await pending
        return first

    assert asyncio.run(twice()) == [b"x"]
    assert not inspect.iscoroutinefunction(PendingDispatch.result)


def test_a_wait_keeps_its_own_time_while_another_thread_waits():
    future: Future[list] = Future()
    pending = FuturePending(future)
    taken: list = []
    waiting = threading.Thread(target=lambda: taken.append(pending.result()))
    waiting.start()
    try:
        for timeout in (0, 0.02, -1):
            with pytest.raises(DeadlineExceeded, match="has not ended yet"):
                pending.result(timeout)
    finally:
        future.set_result([b"x"])
        waiting.join(60)
    assert taken == [[b"x"]]
    with pytest.raises(DispatchFailed, match="already taken"):
        pending.result()


def test_of_many_threads_exactly_one_takes_the_result():
    future: Future[list] = Future()
    pending = FuturePending(future)
    outcomes: list = []

    def take():
        try:
            outcomes.append(pending.result())
        except DispatchFailed as e:
            outcomes.append(e.message)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    future.set_result([b"x"])
    for thread in threads:
        thread.join(60)
    assert sorted(map(str, outcomes)) == ["[b'x']", *["the result was already taken"] * 7]


def test_an_await_that_is_cancelled_takes_nothing():
    future: Future[list] = Future()
    pending = FuturePending(future)

    async def give_up():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_awaited(pending), 0.02)
        future.set_result([b"x"])

    asyncio.run(give_up())
    assert pending.result(timeout=10) == [b"x"]


async def _awaited(pending):
    return await pending


@pytest.mark.parametrize("timeout", [None, 0, 1])
def test_a_timeout_error_of_the_dispatch_is_not_taken_for_one_of_the_wait(timeout):
    future: Future[list] = Future()
    future.set_exception(TimeoutError("socket"))
    with pytest.raises(DispatchFailed, match=r"raised TimeoutError: socket\. Fix: raise DeadlineExceeded"):
        FuturePending(future).result(timeout)


def test_a_result_that_arrives_as_the_wait_ends_is_handed_out():
    class Late(ReadyPending):
        waits = 0

        def _wait(self, timeout):
            self.waits += 1
            if self.waits == 1:
                raise TimeoutError
            return super()._wait(timeout)

    assert Late([b"x"]).result(1) == [b"x"]


@pytest.mark.row("A-SLICE-1")
def test_borrowed_slices_share_the_callers_memory():
    data = bytearray(b"abcd")
    (view,) = borrowed_input_slices([data])
    data[0] = ord("x")
    assert bytes(view) == b"xbcd"
    with pytest.raises(ArgumentTypeError, match=r"output 1 is int, which holds no bytes\. Fix: pass bytes"):
        borrowed_input_slices([data, 7], "output")
