"""The guard: all of the contract reaches the backend, every acquisition has one, and its dispatches pass the funnel."""

import gc
import inspect
import json
import subprocess
import sys
import threading
import time
import weakref
from contextvars import ContextVar

import numpy as np
import pytest

import vyre
from vyre.driver import counters
from vyre.driver.admission.program import capabilities_of, why_not
from vyre.driver.contract import (
    BackendCapability,
    BackendRegistration,
    CompiledPipeline,
    ReadyPending,
    VyreBackend,
)
from vyre.driver.contract.backend import QUERIES
from vyre.driver.contract.values import DispatchConfig, ResidentDispatchStep, ResidentReadRange
from vyre.driver.execute.pipeline import DriverPipeline
from vyre.driver.guard import backend as guard
from vyre.driver.guard import compile as pipelines
from vyre.driver.guard.backend import GuardedBackend, guarded
from vyre.driver.pipeline import deadline
from vyre.driver.selection import registry
from vyre.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    BackendUnavailable,
    DeadlineExceeded,
    DeviceLost,
    DispatchFailed,
    InvalidProgram,
    UnsupportedFeature,
)
from vyre.foundation.ir.dtypes import u8, u32
from vyre.foundation.ir.nodes import Barrier, InvocationId, Return, Store, lit
from vyre.foundation.ir.ops import Ordering
from vyre.foundation.ir.program import Program, read, read_write, write_only

from .doubles import FULL, FullBackend, MockBackend, echo
from .programs import ADD, COUNT, words

ECHO = Program([read("x", 0, u8), write_only("out", 1, u8)], (1, 1, 1), [Return()])
GRID_SYNC = Program(
    [read_write("n", 0, u32)],
    (1, 1, 1),
    [Store("n", InvocationId(0), lit(1)), Barrier(Ordering.GRID_SYNC), Store("n", InvocationId(0), lit(2))],
)
PUBLIC = {name for name in vars(VyreBackend) if not name.startswith("_")}


# ---- forwarding -----------------------------------------------------------------------------------------------------


@pytest.mark.row("A-GS-5")
def test_the_guard_has_every_member_of_the_contract_itself():
    assert PUBLIC - set(QUERIES) - {"contract"} <= set(vars(GuardedBackend))
    for name in PUBLIC:
        member, own = inspect.getattr_static(VyreBackend, name), inspect.getattr_static(GuardedBackend, name)
        if inspect.isfunction(member):
            wanted, given = (list(inspect.signature(inspect.unwrap(m)).parameters) for m in (member, own))
            assert given == wanted, name
    assert not inspect.isabstract(GuardedBackend)


CALLS = {
    "dispatch": (lambda b: b.dispatch(ECHO, [b"a"]), "pipeline.dispatch"),
    "dispatch_borrowed": (lambda b: b.dispatch_borrowed(ECHO, [b"a"]), "pipeline.dispatch"),
    "dispatch_timed": (lambda b: b.dispatch_timed(ECHO, [b"a"]), "pipeline.dispatch_timed"),
    "dispatch_async": (lambda b: b.dispatch_async(ECHO, [b"a"]), "pipeline.dispatch_async"),
    "compile_native": (lambda b: b.compile_native(ECHO, DispatchConfig()), "compile_native"),
    "allocate_resident": (lambda b: b.allocate_resident(4), "allocate_resident"),
    "upload_resident": (lambda b: b.upload_resident([]), "upload_resident"),
    "download_resident": (lambda b: b.download_resident([]), "download_resident"),
    "free_resident": (lambda b: b.free_resident(b.allocate_resident(4)), "free_resident"),
    "dispatch_resident": (lambda b: b.dispatch_resident([]), "dispatch_resident"),
    **{
        name: (lambda b, name=name: getattr(b, name)(), name)
        for name in (
            "prepare", "flush", "shutdown", "device_lost", "try_recover", "supported_ops", "device_profile", "metrics",
            "pipeline_cache_snapshot", "exchange",
        )
    },
}  # fmt: skip


@pytest.mark.row("A-GS-5")
def test_the_table_has_every_method():
    methods = {n for n in PUBLIC if inspect.isfunction(inspect.getattr_static(VyreBackend, n))}
    assert set(CALLS) == methods


@pytest.mark.row("A-GS-5")
@pytest.mark.parametrize("name", CALLS)
def test_every_method_reaches_the_backend(name):
    call, reached = CALLS[name]
    full = guarded(FullBackend())
    call(full)
    assert full.inner.calls[reached] >= 1


@pytest.mark.row("A-GS-5")
def test_every_fact_is_the_backends():
    full = guarded(FullBackend())
    for name in PUBLIC - set(CALLS):
        assert getattr(full, name) == getattr(full.inner, name), name
    assert full.capability is FULL
    full.inner.capability = BackendCapability(f16=True)
    assert full.supports_f16
    assert not full.supports_bf16


@pytest.mark.row("A-GS-5")
def test_a_member_that_is_added_to_the_contract_is_forwarded(monkeypatch):
    monkeypatch.setattr(VyreBackend, "defragment", lambda self, how="gently": f"none, {how}", raising=False)
    monkeypatch.setattr(VyreBackend, "vendor", "nobody", raising=False)

    class Later(FullBackend):
        vendor = "me"

        def defragment(self, how="gently"):
            return f"done, {how}"

    again = guard._forwarding(type("Again", (GuardedBackend,), dict(vars(GuardedBackend))))
    later = again(Later())
    assert later.defragment(how="hard") == "done, hard"
    assert later.vendor == "me"
    later.inner.lose()
    with pytest.raises(DeviceLost):
        later.defragment()


@pytest.mark.row("A-GS-6")
def test_the_profile_is_the_backends():
    assert guarded(FullBackend()).device_profile().compute_units == 132


@pytest.mark.row("A-GS-4")
def test_uploads_and_repeated_sequences_reach_the_backend_unchanged():
    class Recording(FullBackend):
        seen = None

        def upload_resident(self, ranges):
            self.seen = ranges
            super().upload_resident(ranges)

        def dispatch_resident(self, steps, **options):
            self.seen = steps, options
            return super().dispatch_resident(steps, **options)

    full = guarded(Recording())
    a, b = full.allocate_resident(4), full.allocate_resident(4)
    full.upload_resident([(a, 1, b"xy"), (b, 0, b"z")])
    assert full.inner.seen == [(a, 1, b"xy"), (b, 0, b"z")]
    step, ranges = ResidentDispatchStep(ECHO, (a, b), (2, 1, 1)), [ResidentReadRange(a, 1, 2)]
    outputs, timing = full.dispatch_resident([step, step], reads=ranges, repeat=4, timed=True)
    assert full.inner.seen == ([step, step], {"reads": ranges, "repeat": 4, "timed": True})
    assert outputs == [b"xy"]
    assert timing.wall_ns == 1
    raw = full.inner.allocate_resident(4)  # memory of the backend itself may be used through its guard
    full.upload_resident([(raw, 0, b"raw!")])
    assert full.download_resident([ResidentReadRange(raw, 0, 4)]) == [b"raw!"]


def test_what_a_backend_raises_comes_as_one_of_our_errors():
    class Broken(FullBackend):
        def prepare(self):
            raise OSError("no driver")

        def allocate_resident(self, nbytes):
            raise UnsupportedFeature("too big", fix="smaller")

        def metrics(self):
            raise LookupError("facts are as they are")

    broken = guarded(Broken())
    with pytest.raises(DispatchFailed, match=r"backend full raised OSError: no driver .*Fix: read the chained") as e:
        broken.prepare()
    assert isinstance(e.value.__cause__, OSError)
    with pytest.raises(UnsupportedFeature, match="too big"):
        broken.allocate_resident(4)
    with pytest.raises(LookupError):
        broken.metrics()
    assert broken.device_state.inflight == []


# ---- one guard, one funnel ------------------------------------------------------------------------------------------


def test_every_acquisition_gives_a_guard():
    record = BackendRegistration(id="mock", open=MockBackend)
    with registry.isolated(record):
        for got in (
            registry.acquire("mock"),
            registry.acquire_preferred_dispatch_backend(),
            registry.select(ECHO).backend,
            vyre.compile(ECHO, backend="mock").backend,
        ):
            assert isinstance(got, GuardedBackend)
            assert isinstance(got.inner, MockBackend)
            assert got.id == "mock"


def test_a_backend_has_one_guard_however_it_is_reached():
    raw = MockBackend()
    first = guarded(raw)
    assert guarded(raw) is first
    assert guarded(first) is first
    assert pipelines.compile(raw, ECHO).backend is first
    assert "MockBackend" in repr(first)


def test_a_guard_that_nobody_holds_goes_and_what_it_knew_stays():
    raw = FullBackend()
    first = guarded(raw)
    gone = weakref.ref(first)
    first.device_state.lose()
    del first
    gc.collect()
    assert gone() is None
    with pytest.raises(DeviceLost, match="the device is lost"):
        pipelines.compile(raw, ECHO)


def test_dispatches_of_the_guard_pass_the_funnel():
    mock, before = guarded(MockBackend()), counters.counters()
    mock.dispatch(ECHO, [b"a"], DispatchConfig(label="here"))
    mock.dispatch_borrowed(ECHO, [b"a"])
    mock.dispatch_timed(ECHO, [b"a"])
    mock.dispatch_async(ECHO, [b"a"])
    grown = {name: n - before[name] for name, n in counters.counters().items()}
    assert (grown["plain_dispatches"], grown["timed_dispatches"], grown["async_dispatches"]) == (2, 1, 1)
    assert counters.label_counters()["here"] >= 1
    assert isinstance(mock.compile_native(ECHO, DispatchConfig()), DriverPipeline)


def test_a_program_is_looked_for_once_per_config():
    full = guarded(FullBackend())
    for _ in range(3):
        full.dispatch(ECHO, [b"a"])
        full.dispatch(Program.from_wire(ECHO.to_wire()), [b"a"])
        full.dispatch(ECHO, [b"a"], DispatchConfig(label="x"))
    assert full.inner.calls["compile_native"] == 1
    assert full.inner.pipeline_cache_snapshot() is not None
    assert len(full._handles) == 2


def test_handles_are_bounded(monkeypatch):
    monkeypatch.setattr(guard, "_MAX_HANDLES", 3)
    mock = guarded(MockBackend())
    for k in range(10):
        mock.dispatch(ECHO, [b"a"], DispatchConfig(label=str(k)))
    assert len(mock._handles) == 3


def test_an_empty_program_and_wrong_arguments_are_told_apart():
    mock = guarded(MockBackend())
    assert mock.dispatch(Program.empty(), []) == []
    bare = Program.of_entry([read("x", 0, u8), write_only("out", 1, u8)], (1, 1, 1), [Return()])
    with pytest.raises(InvalidProgram, match="top-level Region-wrapped"):
        mock.dispatch(bare, [b"a"])
    with pytest.raises(ArgumentTypeError, match=r"program is str.*Fix: "):
        mock.dispatch("not a program", [])
    with pytest.raises(ArgumentTypeError, match=r"config is int.*Fix: "):
        mock.dispatch(ECHO, [b"a"], 3)


def test_a_backend_that_does_not_return_what_was_planned_is_refused_everywhere():
    class Liar(MockBackend):
        def dispatch(self, program, inputs, config=None, *, out=None):
            return [b"too", b"much"]

    for use in (
        lambda b: b.dispatch(ECHO, [b"a"]),
        lambda b: b.dispatch_timed(ECHO, [b"a"]),
        lambda b: b.dispatch_async(ECHO, [b"a"]).result(),
        lambda b: b.dispatch(ECHO, [b"a"], DispatchConfig(timeout=60)),
    ):
        with pytest.raises(DispatchFailed, match=r"broke its contract.*Fix: correct the backend"):
            use(guarded(Liar()))


# ---- capabilities ---------------------------------------------------------------------------------------------------


def test_a_guard_admits_grid_wide_barriers_that_it_can_split():
    class Core(MockBackend):
        capability = BackendCapability(max_workgroups_per_dimension=64)

    class Never(MockBackend):
        capability = BackendCapability(max_workgroups_per_dimension=64, host_grid_sync_split=False)

    raw = Core()
    for _ in range(2):  # in both orders: what is remembered of one must not be told of the other
        assert why_not(GRID_SYNC, raw) is not None
        assert why_not(GRID_SYNC, guarded(raw)) is None
    assert why_not(GRID_SYNC, guarded(Never())) is not None
    assert capabilities_of(guarded(raw)).grid_sync
    assert not capabilities_of(raw).grid_sync


@pytest.mark.row("A-VAL-11")
def test_what_is_admitted_follows_from_what_a_backend_answers():
    for listing in registry.registered_backends():
        if listing.unavailable() is not None:
            continue
        with registry.acquire(listing.id) as backend:
            offered = capabilities_of(backend)
            assert offered.supported_ops >= backend.supported_ops()
            assert offered.max_invocations == backend.max_invocations_per_workgroup
            assert offered.max_workgroup_bytes == backend.capability.max_shared_bytes
            for has, native in (
                (offered.float16, backend.supports_f16),
                (offered.bfloat16, backend.supports_bf16),
                (offered.subgroup, backend.supports_subgroup_ops),
                (offered.grid_sync, backend.supports_grid_sync),
                (offered.indirect, backend.supports_indirect_dispatch),
                (offered.collectives, backend.supports_distributed_collectives),
            ):
                assert has or not native


# ---- waiting --------------------------------------------------------------------------------------------------------


def test_a_call_with_a_deadline_gives_what_it_gives():
    calls = []
    assert deadline.call_within(lambda: threading.current_thread().name, 60, calls.append) == "vyre-call"
    with pytest.raises(ZeroDivisionError):
        deadline.call_within(lambda: 1 / 0, 60, lambda: calls.append)
    assert calls == []


def test_a_call_that_is_left_behind_says_when_it_ends():
    go, events = threading.Event(), []

    def left_behind():
        events.append("left")
        return lambda: events.append("ended")

    with pytest.raises(DeadlineExceeded, match=r"did not end in time.*Fix: allow more time"):
        deadline.call_within(lambda: go.wait(60), 0.05, left_behind)
    assert events == ["left"]
    go.set()
    end = time.monotonic() + 60
    while events != ["left", "ended"] and time.monotonic() < end:
        time.sleep(0.002)
    assert events == ["left", "ended"]


def test_a_started_call_can_be_asked_for_again_and_again():
    go = threading.Event()
    pending = deadline.CallPending(
        deadline.Call(lambda: go.wait(60) and [b"x"], time.monotonic() + 60, lambda: lambda: None)
    )
    for _ in range(2):
        with pytest.raises(DeadlineExceeded, match="has not ended yet"):
            pending.result(0.01)
    assert not pending.is_ready()
    go.set()
    assert pending.result() == [b"x"]


def test_what_the_caller_has_set_for_his_thread_holds_for_a_call_with_a_deadline():
    mine = ContextVar("mine", default="theirs")
    mine.set("mine")
    assert deadline.call_within(mine.get, 60, lambda: lambda: None) == "mine"


def test_a_wait_for_a_started_dispatch_keeps_its_own_time():
    go = threading.Event()

    class Slow(MockBackend):
        def dispatch_async(self, program, inputs, config=None, *, out=None):
            given = echo(inputs)
            call = deadline.Call(lambda: go.wait(60) and given, time.monotonic() + 60, lambda: lambda: None)
            return deadline.CallPending(call)

    pending = guarded(Slow()).dispatch_async(ECHO, [b"a"])
    for timeout in (0, 0.01, 0.15):  # shorter and longer than a slice of a wait
        start = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="has not ended yet") as e:
            pending.result(timeout)
        assert time.monotonic() - start >= timeout
        assert e.value.context["waited_s"] == timeout
    go.set()
    assert pending.result(60) == [b"a"]


def test_a_handle_that_is_only_ready_when_it_is_asked_is_waited_for_by_flush():
    class Lazy(ReadyPending):
        asked = False

        def is_ready(self):
            return self.asked

        def _wait(self, timeout):
            self.asked = True
            return super()._wait(timeout)

    class Backend(MockBackend):
        def dispatch_async(self, program, inputs, config=None, *, out=None):
            return Lazy(echo(inputs))

    mock = guarded(Backend())
    pending = mock.dispatch_async(ECHO, [b"a"])
    assert not pending.is_ready()
    mock.flush()
    assert pending.is_ready()
    assert pending.result() == [b"a"]


# ---- opening --------------------------------------------------------------------------------------------------------


def hanging(stop):
    def wait(*_):
        stop.wait(60)
        return

    return wait


@pytest.mark.parametrize("where", ["open", "unavailable", "devices"])
def test_a_backend_that_never_answers_is_passed_over(monkeypatch, where):
    monkeypatch.setenv("VYRE_ACQUIRE_TIMEOUT", "1.5")
    stop = threading.Event()
    slow = BackendRegistration(id="slow", precedence=1, **{"open": MockBackend, where: hanging(stop)})

    class Quick(MockBackend):
        id = "quick"

    with registry.isolated(slow, BackendRegistration(id="quick", precedence=2, open=Quick)):
        chosen = registry.select()
        assert chosen.chosen == "quick"
        (loser,) = chosen.losers
        assert loser.name == "slow"
        assert "did not answer within 1.5 s" in loser.reason
        assert "VYRE_ACQUIRE_TIMEOUT" in loser.reason
    stop.set()


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan"])
def test_a_time_to_wait_for_backends_is_a_number_above_zero(monkeypatch, text):
    monkeypatch.setenv("VYRE_ACQUIRE_TIMEOUT", text)
    with (
        registry.isolated(BackendRegistration(id="mock", open=MockBackend)),
        pytest.raises(ArgumentValueError, match=r"VYRE_ACQUIRE_TIMEOUT=.* is not a time to wait.*Fix: set it"),
    ):
        registry.select()


def test_a_named_backend_is_waited_for(monkeypatch):
    monkeypatch.setenv("VYRE_ACQUIRE_TIMEOUT", "0.05")
    go = threading.Event()

    def slowly(*_):
        go.wait(60)
        return MockBackend()

    with registry.isolated(BackendRegistration(id="mock", open=slowly)):
        threading.Timer(0.15, go.set).start()
        assert registry.acquire("mock").id == "mock"
        go.clear()
        with pytest.raises(BackendUnavailable, match="did not answer"):
            registry.acquire_preferred_dispatch_backend()
    go.set()


# ---- the front ------------------------------------------------------------------------------------------------------


@vyre.kernel(workgroup=1)
def bump(n: vyre.InOut[vyre.u32]):
    n[vyre.gid.x] = n[vyre.gid.x] + 1


class Faulty(FullBackend):
    """Runs kernels on the reference, until it is lost."""

    opened = 0

    def __init__(self):
        super().__init__()
        from vyre.backends.reference import ReferenceBackend

        type(self).opened += 1
        self.engine = ReferenceBackend()
        self.capability = self.engine.capability

    def supported_ops(self):
        return self.engine.supported_ops()

    def compile_native(self, program, config):
        return None

    def dispatch_borrowed(self, program, inputs, config=None, *, out=None):
        self.touch()
        return self.engine.dispatch(program, inputs, config, out=out)


@pytest.mark.parametrize("recovers", [True, False])
def test_a_kernel_runs_again_after_its_device_was_lost(recovers):
    members = {"opened": 0} if recovers else {"opened": 0, "try_recover": VyreBackend.try_recover}
    kind = type("Faulty", (Faulty,), members)
    with registry.isolated(BackendRegistration(id="full", open=kind)):
        kernel, n = bump.on("full"), np.zeros(3, np.uint32)
        kernel(n)
        inner = vyre.compile(bump.program, backend="full").backend.inner
        inner.lose()
        with pytest.raises(DeviceLost, match="the device is lost"):
            kernel(n)
        assert n.tolist() == [1, 1, 1]
        kernel(n)
        assert n.tolist() == [2, 2, 2]
        assert kind.opened == (1 if recovers else 2)
        assert inner.calls["try_recover"] == (1 if recovers else 0)


def test_a_kernel_does_not_recover_a_device_for_ever():
    kind = type("Faulty", (Faulty,), {"opened": 0})
    with registry.isolated(BackendRegistration(id="full", open=kind)):
        kernel, n = bump.on("full"), np.zeros(3, np.uint32)
        kernel(n)
        inner = vyre.compile(bump.program, backend="full").backend.inner
        for _ in range(3):
            inner.lose()
            with pytest.raises(DeviceLost):
                kernel(n)
            if inner.calls["try_recover"] < 2:
                kernel(n)
        for _ in range(2):
            with pytest.raises(DeviceLost, match="not recovered again"):
                kernel(n)
        assert kind.opened == 1


def test_kernels_run_in_a_forked_process():
    code = """
import json, os, sys
sys.path.insert(0, %r)
import numpy as np
from tests.contract.test_guard import bump
n = np.zeros(2, np.uint32)
bump.on("reference")(n)
read, write = os.pipe()
if os.fork() == 0:
    bump.on("reference")(n)
    os.write(write, json.dumps(n.tolist()).encode())
    os._exit(0)
os.close(write)
child = json.loads(os.fdopen(read).read())
os.wait()
bump.on("reference")(n)
bump.on("reference")(n)
print(json.dumps([child, n.tolist()]))
"""
    root = str(__import__("pathlib").Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code % root], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[2, 2], [3, 3]]


def test_a_compiled_pipeline_of_a_guard_is_a_pipeline():
    mock = guarded(MockBackend())
    with mock.compile_native(ECHO, DispatchConfig()) as compiled:
        assert isinstance(compiled, CompiledPipeline)
        assert compiled.dispatch([b"a"]) == [b"a"]
    reference = registry.acquire("reference")
    assert reference.dispatch(COUNT, [words(1)]) == [words(2)]
    sizes = DispatchConfig(output_elements={"out": 2})
    assert reference.dispatch_borrowed(ADD, [words(1, 2), words(3, 4)], sizes) == [words(4, 6)]
