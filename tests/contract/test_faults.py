"""What becomes of calls, pipelines and handles when a device is lost, hangs, recovers, is shut down or forked away."""

import gc
import json
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest

from vyre.driver import device_state
from vyre.driver.contract import VyreBackend
from vyre.driver.contract.values import DispatchConfig, ResidentDispatchStep, ResidentReadRange
from vyre.driver.guard import compile as pipelines
from vyre.driver.guard.backend import GuardedBackend, guarded
from vyre.driver.pipeline import deadline
from vyre.driver.selection.registry import acquire
from vyre.errors import (
    DeadlineExceeded,
    DeviceLost,
    DeviceOutOfMemory,
    DispatchFailed,
    UnsupportedFeature,
    VyreError,
)
from vyre.foundation.ir.dtypes import u8, u32
from vyre.foundation.ir.nodes import Barrier, InvocationId, Load, Return, Store, SubgroupSize, lit
from vyre.foundation.ir.ops import Ordering
from vyre.foundation.ir.program import Program, read, read_write, write_only

from .doubles import FULL, FullBackend, MockBackend, echo
from .programs import ADD, COUNT, LONG, words

ECHO = Program([read("x", 0, u8), write_only("out", 1, u8)], (1, 1, 1), [Return()])
SOON = DispatchConfig(timeout=0.2)
LATE = DispatchConfig(timeout=60)


class Keepsake(FullBackend):
    """A full backend that keeps no time: the driver does."""

    capability = replace(FULL, deadline="none")


@pytest.fixture
def full():
    return guarded(FullBackend())


@pytest.fixture
def untimed():
    guard = guarded(Keepsake())
    yield guard
    guard.inner.unhang()


def ready(guard, program=ECHO):
    """The program compiled for dispatches with a deadline, so that none of their time goes there."""
    pipelines.compile(guard, program, LATE)


def wait_until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.002)


def in_threads(count, work):
    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(count)]
    for t in threads:
        t.start()
    return threads


# ---- loss -----------------------------------------------------------------------------------------------------------

CALLS = {
    "dispatch": lambda b, p, h: b.dispatch(ECHO, [b"a"]),
    "dispatch_borrowed": lambda b, p, h: b.dispatch_borrowed(ECHO, [b"a"]),
    "dispatch_timed": lambda b, p, h: b.dispatch_timed(ECHO, [b"a"]),
    "dispatch_async": lambda b, p, h: b.dispatch_async(ECHO, [b"a"]).result(),
    "compile_native": lambda b, p, h: b.compile_native(ECHO, DispatchConfig()),
    "compile": lambda b, p, h: pipelines.compile(b, ECHO),
    "pipeline.dispatch": lambda b, p, h: p.dispatch([b"a"]),
    "pipeline.dispatch_timed": lambda b, p, h: p.dispatch_timed([b"a"]),
    "pipeline.dispatch_async": lambda b, p, h: p.dispatch_async([b"a"]).result(),
    "pipeline.dispatch_batch": lambda b, p, h: p.dispatch_batch([[b"a"]]),
    "pipeline.dispatch_resident": lambda b, p, h: p.dispatch_resident([h]),
    "allocate_resident": lambda b, p, h: b.allocate_resident(4),
    "upload_resident": lambda b, p, h: b.upload_resident([(h, 0, b"x")]),
    "download_resident": lambda b, p, h: b.download_resident([ResidentReadRange(h, 0, 1)]),
    "free_resident": lambda b, p, h: b.free_resident(h),
    "dispatch_resident": lambda b, p, h: b.dispatch_resident([ResidentDispatchStep(ECHO, (h,))]),
    "exchange": lambda b, p, h: b.exchange(),
    "prepare": lambda b, p, h: b.prepare(),
    "flush": lambda b, p, h: b.flush(),
}


def test_the_calls_are_all_that_reach_a_device():
    asked = {"supported_ops", "device_profile", "metrics", "pipeline_cache_snapshot", "device_lost"}
    ends = {"shutdown", "try_recover"}
    methods = {n for n, m in vars(VyreBackend).items() if callable(m) and not n.startswith("_")}
    assert methods - asked - ends == {name for name in CALLS if "." not in name} - {"compile"}


@pytest.mark.row("T17")
@pytest.mark.parametrize("call", CALLS)
def test_every_call_says_that_the_device_is_lost_and_never_that_memory_is_short(full, call):
    pipeline, handle = pipelines.compile(full, ECHO), full.allocate_resident(4)
    full.inner.lose()
    for _ in range(3):  # the first one notices, the others know
        with pytest.raises(DeviceLost, match=r"the device is lost .*Fix: call try_recover\(\)") as e:
            CALLS[call](full, pipeline, handle)
        assert not isinstance(e.value, MemoryError)
        assert e.value.context["backend"] == "full"
    assert full.device_lost()


@pytest.mark.row("T17")
def test_once_lost_every_other_call_is_refused_without_reaching_the_device(full):
    pipeline, handle = pipelines.compile(full, ECHO), full.allocate_resident(4)
    full.inner.lose()
    with pytest.raises(DeviceLost) as e:
        pipeline.dispatch([b"a"])
    assert isinstance(e.value.__cause__, DeviceOutOfMemory)
    full.inner.calls.clear()
    for call in CALLS.values():
        with pytest.raises(DeviceLost, match="the device is lost"):
            call(full, pipeline, handle)
    assert dict(full.inner.calls) == {}


def test_facts_are_there_after_the_device_is_gone(full):
    full.inner.lose()
    with pytest.raises(DeviceLost):
        full.flush()
    assert full.metrics() == {"launches": 7}
    assert full.device_profile().compute_units == 132
    assert full.supported_ops() == FULL.ops
    assert (full.id, full.version, full.capability) == ("full", "9.8.7", FULL)


def test_memory_that_is_short_is_no_loss(full):
    pipeline = pipelines.compile(full, ECHO)
    full.inner.oom()
    with pytest.raises(DeviceOutOfMemory):
        pipeline.dispatch([b"a"])
    assert not full.device_lost()
    assert pipeline.dispatch([b"a"]) == [b"a"]


def test_a_backend_that_says_that_its_device_is_lost_is_believed():
    class Honest(MockBackend):
        def dispatch(self, *args, **options):
            raise DeviceLost("it fell off the bus", fix="plug it in")

    guard = guarded(Honest())
    pipeline = pipelines.compile(guard, ECHO)
    with pytest.raises(DeviceLost, match="it fell off the bus"):
        pipeline.dispatch([b"a"])
    with pytest.raises(DeviceLost, match="the device is lost"):
        pipeline.dispatch([b"a"])
    with pytest.raises(UnsupportedFeature, match="backend mock has no device recovery"):
        guard.try_recover()


def test_a_backend_that_cannot_even_say_whether_it_is_lost_keeps_its_own_error(caplog):
    class Confused(MockBackend):
        def dispatch(self, *args, **options):
            raise DispatchFailed("no idea", fix="think")

        def device_lost(self):
            raise RuntimeError("no idea either")

    with pytest.raises(DispatchFailed, match="no idea"):
        pipelines.compile(Confused(), ECHO).dispatch([b"a"])
    assert "device_lost() of backend mock raised" in caplog.text
    assert "no idea either" in caplog.text


# ---- recovery -------------------------------------------------------------------------------------------------------


@pytest.mark.row("A-BE-14")
def test_pipelines_and_handles_from_before_refuse_and_new_ones_work(full):
    pipeline, handle = pipelines.compile(full, ECHO), full.allocate_resident(4)
    full.inner.lose()
    full.try_recover()
    assert not full.device_lost()
    with pytest.raises(
        DeviceLost, match=r"recovered after this pipeline was compiled .*Fix: compile the program again"
    ):
        pipeline.dispatch([b"a"])
    again = full.allocate_resident(4)
    assert again == handle, "the backend counts from one again, so only the driver can tell the two apart"
    uses = {
        "upload": lambda h: full.upload_resident([(h, 0, b"x")]),
        "download": lambda h: full.download_resident([ResidentReadRange(h, 0, 1)]),
        "reads": lambda h: full.dispatch_resident([], reads=[ResidentReadRange(h, 0, 1)]),
        "step": lambda h: full.dispatch_resident([ResidentDispatchStep(ECHO, (h,))]),
        "pipeline": lambda h: pipelines.compile(full, ECHO).dispatch_resident([h]),
        "free": lambda h: full.free_resident(h),
    }
    for use in uses.values():
        with pytest.raises(DeviceLost, match=r"memory was on the device before .*Fix: allocate and upload it again"):
            use(handle)
    for use in uses.values():
        use(again)
    assert pipelines.compile(full, ECHO).dispatch([b"b"]) == [b"b"]
    assert full.dispatch(ECHO, [b"c"]) == [b"c"]


def test_a_pipeline_from_before_refuses_with_any_config(full):
    pipeline = pipelines.compile(full, ECHO)
    full.try_recover()
    for config in (None, DispatchConfig(label="new"), DispatchConfig(timeout=60), DispatchConfig(ulp_budget=1)):
        with pytest.raises(DeviceLost, match="recovered after this pipeline was compiled"):
            pipeline.dispatch([b"a"], config)


def test_a_guard_lets_go_of_code_that_no_device_can_run_any_more(full):
    for end in (full.try_recover, full.shutdown):
        full.dispatch(ECHO, [b"a"])
        full.inner.calls.clear()
        end()
        gc.collect()
        assert full.inner.calls["pipeline.close"] == 1


def test_what_a_resident_dispatch_gives_belongs_to_its_incarnation_too(full):
    (kept,) = pipelines.compile(full, ECHO).dispatch_resident([full.allocate_resident(4)])
    assert pipelines.compile(full, ECHO).dispatch_resident([kept]) == [kept]
    full.try_recover()
    with pytest.raises(DeviceLost, match="before it was recovered"):
        pipelines.compile(full, ECHO).dispatch_resident([kept])


def test_a_started_dispatch_does_not_outlive_its_device(full):
    pipeline = pipelines.compile(full, ECHO)
    full.inner.hang()
    pending, waiting = pipeline.dispatch_async([b"a"]), pipeline.dispatch_async([b"b"])
    seen = []

    def wait(_):
        try:
            waiting.result()
        except VyreError as e:
            seen.append(e)

    (thread,) = in_threads(1, wait)
    time.sleep(0.05)
    full.device_state.lose()
    thread.join(60)
    assert [type(e) for e in seen] == [DeviceLost], "who waits is told"
    with pytest.raises(DeviceLost, match="the device is lost"):
        pending.result()
    full.try_recover()
    for handle in (pending, waiting):
        with pytest.raises(DeviceLost, match="recovered after"):
            handle.result()


@pytest.mark.parametrize("backend", [FullBackend, Keepsake])
def test_recovery_does_not_wait_for_threads_that_keep_dispatching(backend):
    guard = guarded(backend())
    guard.inner.hang()
    seen, stop = [], threading.Event()
    config = DispatchConfig(timeout=0.2)

    def work(_):
        while not stop.is_set():
            try:
                guard.dispatch(ECHO, [b"a"], config)
            except (DeviceLost, DeadlineExceeded) as e:
                seen.append(type(e))
                time.sleep(0.001)

    threads = in_threads(8, work)
    wait_until(lambda: guard.device_state.inflight)
    guard.try_recover()  # all this while they keep dispatching
    stop.set()
    for t in threads:
        t.join(60)
        assert not t.is_alive()
    assert set(seen) <= {DeviceLost, DeadlineExceeded}
    guard.inner.unhang()
    wait_until(lambda: not guard.device_lost())
    assert guard.dispatch(ECHO, [b"b"]) == [b"b"]


def test_recovery_waits_for_who_is_running_but_not_for_ever(full, monkeypatch):
    pipeline = pipelines.compile(full, ECHO)
    order = []
    full.inner.hang(0.2)
    monkeypatch.setattr(device_state, "DRAIN_S", 60.0)

    def dispatch(_):
        pipeline.dispatch([b"a"])
        order.append("dispatched")

    (thread,) = in_threads(1, dispatch)
    wait_until(lambda: full.device_state.inflight)
    full.try_recover()
    order.append("recovered")
    thread.join(60)
    assert order == ["dispatched", "recovered"]
    monkeypatch.undo()

    pipeline = pipelines.compile(full, ECHO)
    full.inner.unhang()
    blocked = threading.Event()
    full.inner.run = lambda *_: blocked.wait(60) and echo([b"a"])
    (thread,) = in_threads(1, lambda _: pipeline.dispatch([b"a"]))
    wait_until(lambda: full.device_state.inflight)
    start = time.monotonic()
    full.try_recover()
    assert time.monotonic() - start >= device_state.DRAIN_S
    assert thread.is_alive(), "it was left behind"
    blocked.set()
    thread.join(60)


def test_dispatches_are_refused_while_recovery_goes_on(full):
    pipeline, started, go = pipelines.compile(full, ECHO), threading.Event(), threading.Event()

    def rebuild():
        started.set()
        go.wait(60)

    full.inner.try_recover = rebuild
    (thread,) = in_threads(1, lambda _: full.device_state.recover(rebuild, lambda: False))
    assert started.wait(60)
    for call in CALLS.values():
        with pytest.raises(DeviceLost, match=r"being recovered .*Fix: wait"):
            call(full, pipeline, None)
    go.set()
    thread.join(60)
    assert full.dispatch(ECHO, [b"a"]) == [b"a"]


def test_threads_that_recover_at_once_recover_once(full):
    full.inner.lose()
    with pytest.raises(DeviceLost):
        full.flush()
    gate = threading.Barrier(4)
    slow = full.inner.try_recover

    def work(_):
        gate.wait(60)
        full.try_recover()

    def rebuild():
        time.sleep(0.05)
        slow()

    full.inner.__class__ = type("Slow", (FullBackend,), {"try_recover": lambda self: rebuild()})
    for thread in in_threads(4, work):
        thread.join(60)
    assert full.inner.calls["try_recover"] == 1
    assert full.device_state.incarnation == 2


def test_a_recovery_that_fails_leaves_the_device_lost():
    class Broken(FullBackend):
        def try_recover(self):
            raise RuntimeError("it stays dead")

    class Useless(FullBackend):
        def try_recover(self):
            pass

    for kind, error, text in (
        (Broken, DispatchFailed, "backend full raised RuntimeError: it stays dead"),
        (Useless, DeviceLost, "the device is still lost after recovery"),
    ):
        guard = guarded(kind())
        guard.inner.lose()
        with pytest.raises(error, match=rf"{text}.*Fix: "):
            guard.try_recover()
        with pytest.raises(DeviceLost, match="the device is lost"):
            guard.dispatch(ECHO, [b"a"])


def test_a_recovery_that_fails_does_not_free_a_device_that_is_busy():
    class Broken(Keepsake):
        def try_recover(self):
            raise RuntimeError("it stays busy")

    guard = guarded(Broken())
    ready(guard)
    guard.inner.hang()
    with pytest.raises(DeadlineExceeded):
        guard.dispatch(ECHO, [b"a"], SOON)
    with pytest.raises(DispatchFailed, match="it stays busy"):
        guard.try_recover()
    with pytest.raises(DeviceLost, match="the device is lost"):
        guard.dispatch(ECHO, [b"a"])
    guard.inner.unhang()


def test_a_device_is_not_rebuilt_after_its_backend_was_shut_down(full):
    full.device_state.inflight.append(None)  # a call that never ends: recovery waits for it
    told = []

    def recover(_):
        with pytest.raises(DeviceLost, match="was shut down") as e:
            full.try_recover()
        told.append(e)

    (thread,) = in_threads(1, recover)
    wait_until(lambda: full.device_state.phase is device_state.Phase.RECOVERING)
    full.shutdown()
    thread.join(60)
    assert len(told) == 1
    assert full.inner.calls["try_recover"] == 0
    assert full.inner.calls["shutdown"] == 1


def test_a_shutdown_waits_for_a_device_that_is_being_rebuilt(full):
    order, rebuilding = [], threading.Event()

    def rebuild():
        rebuilding.set()
        time.sleep(0.1)
        order.append("rebuilt")

    def recover(_):
        with pytest.raises(DeviceLost, match="was shut down"):
            full.device_state.recover(rebuild, lambda: False)
        order.append("refused")

    full.inner.shutdown = lambda: order.append("shut down")
    (thread,) = in_threads(1, recover)
    assert rebuilding.wait(60)
    full.shutdown()
    thread.join(60)
    assert order[0] == "rebuilt"
    assert sorted(order) == ["rebuilt", "refused", "shut down"]


def test_a_backend_that_nobody_holds_is_let_go_with_its_code():
    guard = guarded(FullBackend())
    calls = guard.inner.calls
    guard.dispatch(ECHO, [b"a"])
    gone = weakref.ref(guard.inner)
    del guard
    gc.collect()
    assert gone() is None
    assert calls["pipeline.close"] == 1


def test_a_backend_that_cannot_recover_says_so_and_goes_on():
    guard = guarded(MockBackend())
    pipeline = pipelines.compile(guard, ECHO)
    with pytest.raises(UnsupportedFeature, match="backend mock has no device recovery"):
        guard.try_recover()
    assert pipeline.dispatch([b"a"]) == [b"a"]


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(device_state, "time", SimpleNamespace(monotonic=lambda: now.seconds, sleep=time.sleep))
    return now


def lose_and_notice(guard):
    guard.inner.lose()
    with pytest.raises(DeviceLost) as e:
        guard.dispatch(ECHO, [b"a"])
    return str(e.value)


@pytest.mark.row("T18")
def test_a_device_that_dies_three_times_in_ten_seconds_is_given_up(full, clock):
    for _ in range(2):
        assert "Fix: call try_recover()" in lose_and_notice(full)
        full.try_recover()
        assert full.dispatch(ECHO, [b"a"]) == [b"a"]
        clock.seconds += 5
    assert "lost 3 times within 10 s" in lose_and_notice(full)
    clock.seconds += 1000
    for use in (full.try_recover, full.flush, lambda: full.dispatch(ECHO, [b"a"])):
        with pytest.raises(DeviceLost, match=r"not recovered again .*Fix: use another backend"):
            use()
    assert full.inner.calls["try_recover"] == 2
    full.shutdown()


@pytest.mark.row("T18")
def test_a_device_that_dies_three_times_in_a_little_more_is_recovered(full, clock):
    for _ in range(6):
        lose_and_notice(full)
        full.try_recover()
        clock.seconds += 5.1
    assert full.dispatch(ECHO, [b"a"]) == [b"a"]


@pytest.mark.row("T18")
def test_a_loss_that_only_recovery_notices_counts(full):
    for _ in range(2):
        full.inner.lose()
        full.try_recover()
    full.inner.lose()
    with pytest.raises(DeviceLost, match="not recovered again"):
        full.try_recover()


# ---- flush and shutdown ---------------------------------------------------------------------------------------------


def test_flush_returns_when_every_started_dispatch_is_ready(full):
    pipeline = pipelines.compile(full, ECHO)
    full.inner.hang()
    handles = [pipeline.dispatch_async([bytes([k])]) for k in range(20)]
    assert not any(h.is_ready() for h in handles)
    threading.Timer(0.2, full.inner.unhang).start()
    full.flush()
    assert all(h.is_ready() for h in handles)
    assert [bytes(h.result()[0]) for h in handles] == [bytes([k]) for k in range(20)]


def test_flush_waits_for_dispatches_whose_handles_are_gone(full):
    pipeline, target = pipelines.compile(full, ECHO), bytearray(1)
    full.inner.hang()
    pipeline.dispatch_async([b"a"], out=[target])
    gc.collect()
    threading.Timer(0.2, full.inner.unhang).start()
    full.flush()
    assert target == b"a"


def test_flush_leaves_results_and_failures_to_whoever_holds_the_handle(full):
    pipeline = pipelines.compile(full, ECHO)
    full.inner.hang()
    run, full.inner.run = full.inner.run, lambda given, *args: run(given, *args) if given != [b"c"] else 1 / 0
    good, bad, better = (pipeline.dispatch_async([given]) for given in (b"a", b"c", b"b"))
    threading.Timer(0.2, full.inner.unhang).start()
    full.flush()
    assert good.result() == [b"a"]
    assert better.result() == [b"b"]
    with pytest.raises(DispatchFailed, match="ZeroDivisionError"):
        bad.result()


def test_finished_handles_are_not_kept(full):
    pipeline = pipelines.compile(full, ECHO)
    for k in range(100):
        full.inner.hang(0.01)
        pending = pipeline.dispatch_async([bytes([k])])
        if k % 2:
            pending.result()
        else:
            wait_until(pending.is_ready)
    assert len(full.device_state.watched()) <= 2 * 16


def test_shutdown_twice_is_harmless_and_nothing_runs_after_it(full):
    pipeline, handle = pipelines.compile(full, ECHO), full.allocate_resident(4)
    full.shutdown()
    full.shutdown()
    assert full.inner.calls["shutdown"] == 1
    for call in CALLS.values():
        with pytest.raises(DeviceLost, match=r"was shut down .*Fix: acquire it again"):
            call(full, pipeline, handle)
    with pytest.raises(DeviceLost, match="was shut down"):
        full.try_recover()
    assert not full.device_lost()


def test_a_shutdown_in_the_last_moment_before_a_call_refuses_it(full):
    full.inner.device_lost = lambda: full.device_state.shut() and False  # another thread, just after we looked
    with pytest.raises(DeviceLost, match="was shut down"):
        full.allocate_resident(4)
    assert full.inner.calls["allocate_resident"] == 0


def test_a_shutdown_that_fails_is_a_shutdown():
    class Broken(FullBackend):
        def shutdown(self):
            raise OSError("busy")

    guard = guarded(Broken())
    with pytest.raises(DispatchFailed, match=r"backend full raised OSError: busy.*Fix: "):
        guard.shutdown()
    guard.shutdown()
    with pytest.raises(DeviceLost, match="was shut down"):
        guard.flush()


def test_leaving_a_block_on_a_lost_device_shuts_it_down_and_hides_nothing(full):
    def block():
        with full:
            full.dispatch(ECHO, [b"a"])
            full.inner.lose()
            full.dispatch(ECHO, [b"a"])

    with pytest.raises(DeviceLost, match="the device is lost") as e:
        block()
    assert isinstance(e.value.__cause__, DeviceOutOfMemory)
    assert full.inner.calls["shutdown"] == 1
    with full.inner as raw:
        raw.flush = lambda: 1 / 0
        calls = raw.calls["shutdown"]
        with pytest.raises(ZeroDivisionError):
            raw.__exit__()
        assert raw.calls["shutdown"] == calls + 1
        raw.flush = lambda: None


# ---- deadlines ------------------------------------------------------------------------------------------------------

WAYS = {
    "dispatch": lambda p, config, out: p.dispatch([b"a"], config, out=out),
    "dispatch_timed": lambda p, config, out: p.dispatch_timed([b"a"], config, out=out),
    "dispatch_async": lambda p, config, out: p.dispatch_async([b"a"], config, out=out).result(),
    "dispatch_batch": lambda p, config, out: p.dispatch_batch([[b"a"]], config, out=[out]),
}


@pytest.mark.parametrize("kind", [FullBackend, Keepsake])
@pytest.mark.parametrize("way", WAYS)
def test_a_dispatch_ends_at_its_deadline_and_writes_nothing_afterwards(way, kind):
    guard = guarded(kind())
    pipeline, target = pipelines.compile(guard, ECHO), bytearray(b"\xa5")
    ready(guard)
    guard.inner.hang()
    with pytest.raises(DeadlineExceeded, match=r"in time.*Fix: allow more time"):
        WAYS[way](pipeline, SOON, [target])
    assert guard.inner.hangs, "nothing waited for the kernel"
    guard.inner.unhang()
    time.sleep(0.05)  # whatever still runs has its chance
    assert target == b"\xa5"
    wait_until(lambda: guard.device_state.phase is not device_state.Phase.BUSY)
    assert guard.dispatch(ECHO, [b"b"], out=[target]) == [b"b"]


@pytest.mark.parametrize("way", WAYS)
def test_a_dispatch_in_time_writes_where_the_caller_wants(way, untimed):
    target = bytearray(1)
    WAYS[way](pipelines.compile(untimed, ECHO), LATE, [target])
    assert target == b"a"


def test_a_call_that_was_left_behind_keeps_its_device_and_then_gives_it_back(untimed):
    pipeline = pipelines.compile(untimed, ECHO)
    ready(untimed)
    untimed.inner.hang()
    with pytest.raises(DeadlineExceeded):
        pipeline.dispatch([b"a"], SOON)
    assert untimed.device_lost()
    for use in (lambda: pipeline.dispatch([b"a"]), lambda: untimed.dispatch(ECHO, [b"a"]), untimed.flush):
        with pytest.raises(DeviceLost, match=r"an abandoned call still runs .*Fix: wait until it ends"):
            use()
    untimed.inner.unhang()
    wait_until(lambda: not untimed.device_lost())
    assert pipeline.dispatch([b"b"]) == [b"b"], "nothing was lost, so nothing has to be compiled again"


def test_a_call_that_was_left_behind_does_not_disturb_a_later_incarnation(untimed):
    pipeline = pipelines.compile(untimed, ECHO)
    ready(untimed)
    untimed.inner.hang()
    with pytest.raises(DeadlineExceeded):
        pipeline.dispatch([b"a"], SOON)
    untimed.try_recover()  # which also lets the call end
    fresh = pipelines.compile(untimed, ECHO)
    time.sleep(0.05)
    assert fresh.dispatch([b"b"]) == [b"b"]
    with pytest.raises(DeviceLost, match="recovered after"):
        pipeline.dispatch([b"b"])


@pytest.mark.parametrize("timeout", [0.2, 0.8], ids=["during recovery", "after it"])
def test_a_call_that_is_left_behind_while_its_device_is_recovered_belongs_to_the_old_incarnation(untimed, timeout):
    blocked = threading.Event()
    run, untimed.inner.run = untimed.inner.run, lambda *_: blocked.wait(60) and echo([b"a"])
    ready(untimed)

    def dispatch(_):
        with pytest.raises(DeadlineExceeded):
            untimed.dispatch(ECHO, [b"a"], DispatchConfig(timeout=timeout))

    (thread,) = in_threads(1, dispatch)
    wait_until(lambda: untimed.device_state.inflight)
    untimed.try_recover()
    untimed.inner.run = run
    thread.join(60)
    assert untimed.dispatch(ECHO, [b"b"]) == [b"b"]
    blocked.set()
    for _ in range(2):
        ready(untimed)
        untimed.inner.hang()
        with pytest.raises(DeadlineExceeded):
            untimed.dispatch(ECHO, [b"a"], SOON)
        untimed.inner.unhang()
        wait_until(lambda: not untimed.device_lost())
    assert untimed.dispatch(ECHO, [b"b"]) == [b"b"]


def test_code_that_still_runs_is_not_closed(untimed):
    ready(untimed)
    untimed.inner.hang()
    with pytest.raises(DeadlineExceeded):
        untimed.dispatch(ECHO, [b"a"], SOON)
    untimed.shutdown()
    gc.collect()
    assert untimed.inner.calls["pipeline.close"] == 0
    untimed.inner.unhang()
    wait_until(lambda: gc.collect() is not None and untimed.inner.calls["pipeline.close"] == 1)


def test_inputs_of_a_call_that_was_left_behind_are_the_callers_own_again(untimed):
    data = bytearray(b"a")
    ready(untimed)
    untimed.inner.hang()
    with pytest.raises(DeadlineExceeded):
        untimed.dispatch(ECHO, [data], SOON)
    data += b"longer"  # a buffer that somebody looks at cannot be resized


def test_a_call_that_was_left_behind_goes_on_with_the_inputs_it_was_given(untimed):
    data, read_late, run = bytearray(b"a"), [], untimed.inner.run
    untimed.inner.run = lambda inputs, *args: read_late.append((run(inputs, *args), bytes(inputs[0])))
    ready(untimed)
    untimed.inner.hang()
    with pytest.raises(DeadlineExceeded):
        untimed.dispatch(ECHO, [data], SOON)
    data[:] = b"b"
    untimed.inner.unhang()
    wait_until(lambda: read_late)
    assert read_late == [([b"a"], b"a")]


def test_a_call_whose_wait_is_interrupted_is_left_behind_too(untimed, monkeypatch):
    def interrupted(self, timeout=None):
        raise KeyboardInterrupt

    pipeline = pipelines.compile(untimed, ECHO)
    untimed.inner.hang()
    with monkeypatch.context() as patch:
        patch.setattr(deadline.Call, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pipeline.dispatch([b"a"], LATE)
    with pytest.raises(DeviceLost, match="an abandoned call still runs"):
        pipeline.dispatch([b"a"])
    untimed.inner.unhang()
    wait_until(lambda: not untimed.device_lost())
    assert pipeline.dispatch([b"b"]) == [b"b"]


def test_resident_dispatch_has_a_deadline_too(untimed):
    pipeline, handle, blocked = pipelines.compile(untimed, ECHO), untimed.allocate_resident(4), threading.Event()
    touch, untimed.inner.touch = untimed.inner.touch, lambda: blocked.wait(60)
    ready(untimed)
    with pytest.raises(DeadlineExceeded):
        pipeline.dispatch_resident([handle], SOON)
    blocked.set()
    untimed.inner.touch = touch
    wait_until(lambda: not untimed.device_lost())
    assert pipeline.dispatch_resident([handle], LATE) == [handle]


def test_a_device_that_a_deadline_cost_is_recovered_by_the_next_use(full):
    for _ in range(4):  # and however often that happens, it is not given up
        ready(full)
        full.inner.hang()
        with pytest.raises(DeadlineExceeded):
            full.dispatch(ECHO, [b"a"], SOON)
        assert full.device_lost()
        assert full.dispatch(ECHO, [b"b"]) == [b"b"]
    assert full.inner.calls["try_recover"] == 4


def test_a_device_that_a_deadline_cost_stays_lost_where_it_cannot_be_recovered():
    guard = guarded(type("Fragile", (FullBackend,), {"try_recover": VyreBackend.try_recover})())
    ready(guard)
    guard.inner.hang()
    with pytest.raises(DeadlineExceeded):
        guard.dispatch(ECHO, [b"a"], SOON)
    with pytest.raises(DeviceLost, match="the device is lost"):
        guard.dispatch(ECHO, [b"a"])


@pytest.mark.parametrize("kind", [FullBackend, Keepsake])
@pytest.mark.parametrize("timeout", [0, 0.0, 1e-9, 5e-324])
def test_a_dispatch_without_any_time_is_not_started(kind, timeout):
    guard = guarded(kind())
    pipeline = pipelines.compile(guard, ECHO)
    guard.inner.calls.clear()
    for way in (pipeline.dispatch, pipeline.dispatch_timed, pipeline.dispatch_async):
        with pytest.raises(DeadlineExceeded, match=r"in time .*Fix: "):
            way([b"a"], DispatchConfig(timeout=timeout))
    with pytest.raises(DeadlineExceeded):
        pipeline.dispatch_resident([], DispatchConfig(timeout=timeout))
    assert not any(name.startswith(("dispatch", "pipeline")) for name in guard.inner.calls)
    assert not guard.device_lost()


@pytest.mark.parametrize("kind", [FullBackend, Keepsake])
@pytest.mark.parametrize("timeout", [1e9, 1e300, float("inf")])
def test_a_dispatch_with_all_the_time_in_the_world_works(kind, timeout):
    config, guard = DispatchConfig(timeout=timeout), guarded(kind())
    assert guard.dispatch(ECHO, [b"a"], config) == [b"a"]
    assert guard.dispatch_async(ECHO, [b"b"], config).result() == [b"b"]


def test_an_explanation_says_who_keeps_the_deadline():
    for kind, text in ((FullBackend, "kept by backend full as: host"), (Keepsake, "kept by the driver (0.2 s; ")):
        told = pipelines.compile(guarded(kind()), ECHO).explain([b"a"], SOON)
        assert text in str(told)


def test_a_backend_that_wants_to_leave_is_not_held():
    for error in (KeyboardInterrupt, SystemExit):

        class Leaving(MockBackend):
            def dispatch(self, *args, error=error, **options):
                raise error

        for config in (DispatchConfig(), DispatchConfig(timeout=5)):
            with pytest.raises(error):
                guarded(Leaving()).dispatch(ECHO, [b"a"], config)


@pytest.mark.row("T19")
def test_a_long_program_of_the_reference_ends_at_its_deadline_and_the_next_one_runs():
    guard, target = acquire("reference"), bytearray(b"\xa5" * 4)
    ready(guard, LONG)
    with pytest.raises(DeadlineExceeded, match="in time"):
        guard.dispatch(LONG, [words(0)], SOON, out=[target])
    time.sleep(0.05)
    assert target == b"\xa5" * 4
    assert guard.dispatch(COUNT, [words(1)]) == [words(2)]


# ---- signals, forks, threads ----------------------------------------------------------------------------------------


def script(code):
    """What a process of its own prints, as JSON. It has the doubles."""
    prelude = f"import sys\nsys.path.insert(0, {str(__import__('pathlib').Path(__file__).parents[2])!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.row("T19")
def test_ctrl_c_ends_every_wait_at_once():
    took = script(
        """
        import json, os, signal, threading, time
        from tests.contract.test_faults import ECHO, Keepsake, FullBackend
        from tests.contract.programs import COUNT, LONG, words
        from vyre.driver.guard.backend import guarded
        from vyre.driver.selection.registry import acquire
        from vyre.driver.contract.values import DispatchConfig
        from vyre.driver.guard import compile as pipelines
        from vyre.driver import device_state

        device_state.DRAIN_S = 60.0

        def interrupted(wait):
            fired, waits = [], threading.Event()
            def fire():
                waits.wait()
                time.sleep(0.2)
                fired.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)
            threading.Thread(target=fire).start()  # a busy machine may take longer for this than for the rest
            try:
                waits.set()
                wait()
            except KeyboardInterrupt:
                return time.monotonic() - fired[0]
            return None

        def hanging(kind):
            guard = guarded(kind())
            compiled = pipelines.compile(guard, ECHO)
            guard.inner.hang()
            return guard, compiled

        def blocked(guard):
            guard.device_state.inflight.append(None)  # a call that never ends
            return guard

        minute, took = DispatchConfig(timeout=60), {}
        guard, compiled = hanging(Keepsake)
        took["dispatch, the driver keeps the time"] = interrupted(lambda: compiled.dispatch([b"a"], minute))
        guard, compiled = hanging(FullBackend)
        took["dispatch, the backend keeps the time"] = interrupted(lambda: compiled.dispatch([b"a"], minute))
        for kind in (FullBackend, Keepsake):
            guard, compiled = hanging(kind)
            pending = compiled.dispatch_async([b"a"], minute)
            took[f"result of {kind.__name__}"] = interrupted(pending.result)
        guard, compiled = hanging(FullBackend)
        pending = compiled.dispatch_async([b"a"])
        took["flush"] = interrupted(guard.flush)
        guard = blocked(hanging(FullBackend)[0])
        took["recovery"] = interrupted(guard.try_recover)
        guard = blocked(hanging(FullBackend)[0])
        took["shutdown"] = interrupted(guard.shutdown)
        reference = acquire("reference")
        reference.dispatch(COUNT, [words(1)])  # imports what it needs, which does not survive an interrupt
        took["reference"] = interrupted(lambda: reference.dispatch(LONG, [words(0)], minute))
        pending = reference.dispatch_async(LONG, [words(0)], DispatchConfig(timeout=2))
        took["result of the reference"] = interrupted(pending.result)
        print(json.dumps(took))
        """
    )
    assert {name: seconds for name, seconds in took.items() if seconds is None or seconds >= 20} == {}  # of 60 and more
    assert len(took) == 9


@pytest.mark.row("T20")
def test_use_after_fork_is_refused_and_the_parent_is_unharmed():
    seen = script(
        """
        import json, os, threading, time
        from tests.contract.test_faults import CALLS, ECHO, FullBackend
        from vyre.driver.guard.backend import guarded
        from vyre.driver.guard import compile as pipelines
        from vyre.errors import DeviceLost
        import vyre

        guard = guarded(FullBackend())
        compiled, handle = pipelines.compile(guard, ECHO), guard.allocate_resident(4)
        guard.inner.hang(0.5)
        pending = compiled.dispatch_async([b"p"])
        waiter = threading.Thread(target=pending._settle, args=(None,), daemon=True)
        waiter.start()
        time.sleep(0.1)
        guard.device_state._lock.acquire()          # another thread was in the middle of something
        guard.device_state.pipelines._lock.acquire()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            import signal
            signal.alarm(20)                # who waits for a thread that is not here waits for ever
            told = {}
            uses = {**CALLS, "pending": lambda b, p, h: pending.result(), "recover": lambda b, p, h: b.try_recover()}
            for name, use in uses.items():
                try:
                    told[name] = repr(use(guard, compiled, handle))
                except DeviceLost as e:
                    told[name] = str(e)
            calls = dict(guard.inner.calls)
            guard.shutdown()
            told["device calls"] = {k: n for k, n in guard.inner.calls.items() if n != calls.get(k, 0)}
            with vyre.acquire("reference") as anew:
                from tests.contract.programs import COUNT, words
                told["anew"] = anew.dispatch(COUNT, [words(1)]) == [words(2)]
            del compiled, pending, uses
            os.write(write, json.dumps(told).encode())
            os._exit(0)
        guard.device_state.pipelines._lock.release()
        guard.device_state._lock.release()
        os.close(write)
        told = json.loads(os.fdopen(read).read())
        os.waitpid(child, 0)
        parent = [bytes(pending.result()[0]).decode(), bytes(compiled.dispatch([b"q"])[0]).decode()]
        print(json.dumps([told, parent, guard.inner.calls["pipeline.close"]]))
        """
    )
    told, parent, closed = seen
    assert parent == ["p", "q"]
    assert closed == 0
    assert told.pop("device calls") == {}
    assert told.pop("anew") is True
    assert set(told) == {*CALLS, "pending", "recover"}
    for name, text in told.items():
        assert "forked" in text, name
        assert "Fix: use the spawn start method" in text


def test_eight_threads_give_the_bytes_of_a_serial_run():
    guard = acquire("reference")
    config = DispatchConfig(output_elements={"out": 4})
    inputs = [[words(k, 2 * k, 3 * k, 4 * k), words(1, 2, 3, 4)] for k in range(64)]
    serial = [bytes(guard.dispatch(ADD, given, config)[0]) for given in inputs]
    ways = (
        lambda given: guard.dispatch(ADD, given, config),
        lambda given: guard.dispatch_timed(ADD, given, config).outputs,
        lambda given: guard.dispatch_async(ADD, given, config).result(),
        lambda given: guard.dispatch(ADD, given, config.with_(timeout=60)),
    )
    got = [None] * len(inputs)

    def work(first):
        for k in range(first, len(inputs), 8):
            got[k] = bytes(ways[k % len(ways)](inputs[k])[0])

    for thread in in_threads(8, work):
        thread.join(60)
    assert got == serial


# ---- capabilities ---------------------------------------------------------------------------------------------------


@pytest.mark.row("T24")
@pytest.mark.parametrize(
    "body, named",
    [
        ([Store("out", InvocationId(0), SubgroupSize())], "subgroup"),
        ([Store("n", lit(0), Load("x", lit(0))), Barrier(Ordering.GRID_SYNC), Return()], "grid sync"),
    ],
    ids=["subgroups", "grid-wide barriers"],
)
def test_what_a_device_lacks_is_refused_before_anything_is_lowered(body, named):
    class Counting(FullBackend):
        capability = replace(
            FULL,
            ops=None,
            grid_sync=False,
            host_grid_sync_split=False,
            subgroup_ops=False,
            max_workgroup_size=(64, 1, 1),
        )

        def supported_ops(self):
            return VyreBackend.supported_ops(self)

    program = Program([read("x", 0, u32), write_only("out", 1, u32), read_write("n", 2, u32)], (4, 1, 1), body)
    guard = guarded(Counting())
    for use in (
        lambda: guard.dispatch(program, [words(1), words(1)]),
        lambda: pipelines.compile(guard, program),
        lambda: guard.compile_native(program, DispatchConfig()),
    ):
        with pytest.raises(UnsupportedFeature, match=rf"lacks .*{named}[\s\S]*Fix: ") as e:
            use()
        assert named in e.value.context["name"]
    assert guard.inner.calls["compile_native"] == 0
    assert not any(name.startswith("pipeline") for name in guard.inner.calls)


def test_a_fault_of_one_byte_is_one_byte_once():
    guard = guarded(FullBackend())
    guard.inner.wrong_bytes()
    assert guard.dispatch(ECHO, [b"a"]) == [b"`"]
    assert guard.dispatch(ECHO, [b"a"]) == [b"a"]
    assert isinstance(guard, GuardedBackend)
