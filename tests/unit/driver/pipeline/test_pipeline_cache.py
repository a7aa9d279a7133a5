"""The memory tier: one compilation per key, what is kept and for how long, and what it counts."""

import gc
import sys
import threading
import time

import pytest

from vyre import u32
from vyre.driver.contract import BackendCapability, CompiledPipeline, VyreBackend
from vyre.driver.contract.values import DEFAULT_CONFIG, DispatchConfig
from vyre.driver.guard import compile as pipeline
from vyre.driver.guard.backend import guarded
from vyre.driver.pipeline import (
    DEFAULT_PIPELINE_CACHE_BYTES,
    DEFAULT_PIPELINE_CACHE_ENTRIES,
    PipelineCacheAudit,
    attach_store,
    compiler,
    pipeline_cache_limits_from_env,
    pipelines_of,
)
from vyre.driver.pipeline import cache as caches
from vyre.driver.pipeline.cache import Entry
from vyre.driver.pipeline.compiler import key_of
from vyre.errors import (
    ArgumentValueError,
    DeadlineExceeded,
    DeviceLost,
    DeviceOutOfMemory,
    KernelCompileFailed,
    UnsupportedFeature,
)
from vyre.foundation.ir.nodes import Lit, Store
from vyre.foundation.ir.program import Program, output

from ....support.kept_code import KeptCode


def storing(value):
    return Program([output("out", 0, u32, 1)], (1, 1, 1), [Store("out", Lit(u32, 0), Lit(u32, value))])


class Native(CompiledPipeline):
    backend_id = "native"

    def __init__(self, program, nbytes=0, payload=None):
        self.id = f"native:{program.fingerprint[:8]}"
        self.nbytes, self.payload, self.closed = nbytes, payload, 0

    def dispatch(self, inputs, config=None, *, out=None):
        return [b"\0\0\0\0"]

    def close(self):
        self.closed += 1


class Compiler(VyreBackend, contract=1):
    """Counts compilations; `on_compile` may wait or fail."""

    id = "native"
    capability = BackendCapability(max_workgroup_size=(64, 1, 1))

    def __init__(self, on_compile=lambda: None, nbytes=0):
        self.on_compile, self.nbytes, self.compiled = on_compile, nbytes, []

    def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        raise AssertionError("it compiles")

    def compile_native(self, program, config):
        self.compiled.append(program)
        self.on_compile()
        return Native(program, self.nbytes)

    def try_recover(self):
        pass

    def shutdown(self):
        pass


# ---- single flight --------------------------------------------------------------------------------------------------


def in_threads(count, work):
    """Run `work` in threads that start together; results or exceptions, in no order."""
    results, barrier = [], threading.Barrier(count)

    def one():
        barrier.wait()
        try:
            results.append(work())
        except BaseException as e:
            results.append(e)

    threads = [threading.Thread(target=one) for _ in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert not any(t.is_alive() for t in threads)
    return results


@pytest.mark.row("A-PL-13")
def test_32_threads_that_compile_one_program_compile_it_once():
    backend = Compiler(lambda: time.sleep(0.2))
    handles = in_threads(32, lambda: pipeline.compile(backend, storing(7)))
    assert len(backend.compiled) == 1
    assert len({id(h.native) for h in handles}) == 1
    assert pipelines_of(backend).snapshot().hits == 31
    assert pipelines_of(backend).snapshot().misses == 1


def test_threads_that_compile_different_programs_do_not_wait_for_each_other():
    together = threading.Barrier(4)
    backend = Compiler(lambda: together.wait(10))  # only returns when all four compile at once
    programs = iter([storing(k) for k in range(4)])
    in_threads(4, lambda: pipeline.compile(backend, next(programs)))
    assert len(backend.compiled) == 4


@pytest.mark.parametrize("error", [KernelCompileFailed("no", fix="report it"), DeviceOutOfMemory("full", fix="free")])
def test_everyone_who_waits_for_a_failing_compilation_gets_an_error_of_his_own(error):
    def fail():
        time.sleep(0.2)  # until the others wait
        raise error

    backend = Compiler(fail)
    results = in_threads(8, lambda: pipeline.compile(backend, storing(7)))
    assert [type(e) for e in results] == [type(error)] * 8
    assert len({id(e) for e in results}) == 8
    assert len({id(e.context) for e in results}) == 8


def test_when_the_compiling_thread_is_interrupted_another_one_takes_over():
    def interrupt_the_first():
        if len(backend.compiled) == 1:
            time.sleep(0.2)
            raise KeyboardInterrupt

    backend = Compiler(interrupt_the_first)
    results = in_threads(4, lambda: pipeline.compile(backend, storing(7)))
    assert len(backend.compiled) == 2
    assert sorted(type(r).__name__ for r in results) == ["DriverPipeline"] * 3 + ["KeyboardInterrupt"]


@pytest.mark.parametrize("within", [None, 30])
def test_an_interruption_anywhere_leaves_nobody_waiting(within):
    """Wherever Python looks for signals while the cache is asked: the next thread that asks gets an answer."""
    places, program = 0, storing(7)
    while True:
        backend = Compiler()
        guard = guarded(backend)
        cache, key = guard.device_state.pipelines, key_of(guard, program, DEFAULT_CONFIG)

        def get(cache=cache, key=key, backend=backend):
            def make(epoch):
                return Entry(backend.compile_native(program, None), 0, "compiled", epoch)

            return cache.get(key, make, within)

        try:
            interrupted(get, places)
        except KeyboardInterrupt:
            places += 1
        else:
            break
        (found,) = in_threads(1, get)
        assert found.entry.native.id == f"native:{program.fingerprint[:8]}"
        assert not cache._flights
    assert places > 20


COLLECTED = {"__del__", "_remove"}
"""Functions of the collector, whose exceptions are nobody's."""


def interrupted(work, after):
    """Run `work` with a KeyboardInterrupt after so many calls that the cache makes, or that are made of it."""

    def look(frame, event, _):
        nonlocal after
        asking = frame if event == "c_return" else frame.f_back if event == "call" else None
        code = asking and asking.f_code
        if code and code.co_filename == caches.__file__ and COLLECTED.isdisjoint((code.co_name, frame.f_code.co_name)):
            after -= 1
            if after < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)


def test_whoever_waits_for_another_ones_compilation_waits_no_longer_than_his_own_time():
    go_on = threading.Event()
    backend = Compiler(lambda: go_on.wait(30))
    first = threading.Thread(target=lambda: pipeline.compile(backend, storing(7)))
    first.start()
    while not backend.compiled:
        time.sleep(0.001)
    with pytest.raises(DeadlineExceeded, match="not compiled in time"):
        guarded(backend).dispatch(storing(7), [], DispatchConfig(timeout=0.01))
    go_on.set()
    first.join(30)
    assert len(backend.compiled) == 1


def test_a_failure_reaches_the_one_who_waits_in_time():
    def fail():
        raise KernelCompileFailed("no", fix="report it")

    backend = Compiler(fail)
    for _ in range(2):
        with pytest.raises(KernelCompileFailed, match="no"):
            guarded(backend).dispatch(storing(7), [], DispatchConfig(timeout=30))
    assert len(backend.compiled) == 1


def test_a_compilation_that_asks_for_itself_is_refused_instead_of_waiting_forever():
    backend = Compiler(lambda: pipeline.compile(backend, storing(7)))
    with pytest.raises(KernelCompileFailed, match=r"asks for the same program compiled.*Fix: let compile_native"):
        pipeline.compile(backend, storing(7))


# ---- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.row("T8")
@pytest.mark.parametrize("kind", [KernelCompileFailed, UnsupportedFeature])
def test_a_lasting_failure_is_remembered_and_raised_again_without_compiling(kind):
    def fail():
        raise kind("the compiler said no", fix="report the kernel", log="line 1")

    backend = Compiler(fail)
    errors = []
    for label in (None, "first", "second"):
        with pytest.raises(kind) as caught:
            pipeline.compile(backend, storing(7), DispatchConfig(label=label))
        errors.append(caught.value)
    assert len(backend.compiled) == 1
    assert [e.context.get("label") for e in errors] == [None, "first", "second"]
    assert all(e.context["log"] == "line 1" for e in errors)
    with pytest.raises(kind):
        pipeline.compile(backend, storing(8))
    assert len(backend.compiled) == 2


def test_a_passing_failure_is_not_remembered():
    failing = True

    def fail_once():
        if failing:
            raise DeviceOutOfMemory("full", fix="free something")

    backend = Compiler(fail_once)
    with pytest.raises(DeviceOutOfMemory):
        pipeline.compile(backend, storing(7))
    failing = False
    pipeline.compile(backend, storing(7))
    assert len(backend.compiled) == 2


def test_a_remembered_failure_holds_no_frames():
    backend = Compiler(lambda: (_ for _ in ()).throw(KernelCompileFailed("no", fix="report it")))
    with pytest.raises(KernelCompileFailed):
        pipeline.compile(backend, storing(7))
    (kept,) = pipelines_of(backend)._failures.values()
    assert kept.__traceback__ is None
    for _ in range(3):
        with pytest.raises(KernelCompileFailed):
            pipeline.compile(backend, storing(7))
    assert kept.__traceback__ is None


def test_recovery_forgets_failures():
    backend = Compiler(lambda: (_ for _ in ()).throw(KernelCompileFailed("no", fix="report it")))
    for _ in range(2):
        with pytest.raises(KernelCompileFailed):
            pipeline.compile(backend, storing(7))
        backend.try_recover()
    assert len(backend.compiled) == 2


# ---- what is kept ---------------------------------------------------------------------------------------------------


def cached(backend, programs):
    """Which of the programs are in memory, found without compiling or touching."""
    cache = pipelines_of(backend)
    return [k for k, p in enumerate(programs) if compiler.key_of(backend, p, DEFAULT_CONFIG) in cache]


@pytest.mark.row("A-PL-14")
def test_the_hottest_programs_stay_when_more_are_compiled_than_fit(monkeypatch):
    monkeypatch.setenv("VYRE_PIPELINE_CACHE_ENTRIES", "4")
    backend, programs = Compiler(), [storing(k) for k in range(7)]
    for p in programs[:4]:
        pipeline.compile(backend, p)
    pipeline.compile(backend, programs[0])  # used again: programs[1] is now the coldest
    for p in programs[4:]:
        pipeline.compile(backend, p)
    assert cached(backend, programs) == [0, 4, 5, 6]
    assert len(backend.compiled) == 7
    assert pipelines_of(backend).snapshot().evictions == 3


@pytest.mark.row("A-PL-14")
def test_the_byte_limit_is_kept_also_against_one_large_pipeline(monkeypatch):
    programs = [storing(k) for k in range(4)]
    own = len(programs[0].to_wire())
    monkeypatch.setenv("VYRE_PIPELINE_CACHE_BYTES", str(3 * (1000 + own)))
    backend = Compiler(nbytes=1000)
    for p in programs:
        pipeline.compile(backend, p)
    assert cached(backend, programs) == [1, 2, 3]
    assert pipelines_of(backend).snapshot().nbytes == 3 * (1000 + own)
    backend.nbytes = 10_000
    large = pipeline.compile(backend, storing(9))
    assert cached(backend, [*programs, storing(9)]) == [1, 2, 3]  # those that fit are worth more
    assert large.dispatch([]) == [b"\0\0\0\0"]  # who compiled it keeps it


def test_what_is_used_often_stays_and_what_was_made_last_is_never_thrown_out_for_it(monkeypatch):
    monkeypatch.setenv("VYRE_PIPELINE_CACHE_ENTRIES", "2")
    programs, backend = [storing(k) for k in range(4)], Compiler()
    for p in (programs[0], programs[0], programs[0], programs[1], programs[2]):
        pipeline.compile(backend, p)
    assert cached(backend, programs) == [0, 2]
    pipeline.compile(backend, programs[3])
    assert cached(backend, programs) == [0, 3]
    assert len(backend.compiled) == 4


@pytest.mark.row("A-PL-12")
def test_limits_default_and_follow_the_environment_at_each_call(monkeypatch):
    assert pipeline_cache_limits_from_env() == (DEFAULT_PIPELINE_CACHE_ENTRIES, DEFAULT_PIPELINE_CACHE_BYTES)
    assert (DEFAULT_PIPELINE_CACHE_ENTRIES, DEFAULT_PIPELINE_CACHE_BYTES) == (256, 256 << 20)
    monkeypatch.setenv("VYRE_PIPELINE_CACHE_ENTRIES", "3")
    monkeypatch.setenv("VYRE_PIPELINE_CACHE_BYTES", "77")
    assert pipeline_cache_limits_from_env() == (3, 77)


@pytest.mark.row("A-PL-12")
@pytest.mark.parametrize("variable", ["VYRE_PIPELINE_CACHE_ENTRIES", "VYRE_PIPELINE_CACHE_BYTES"])
@pytest.mark.parametrize("text", ["0", "abc", "-1", "", " 5", "1e3", "٣"])
def test_a_limit_that_is_no_positive_number_fails_and_names_its_variable(monkeypatch, variable, text):
    monkeypatch.setenv(variable, text)
    with pytest.raises(ArgumentValueError, match=f"{variable}=.* is not a positive whole number.*Fix: set {variable}="):
        pipeline.compile(Compiler(), storing(7))


# ---- release and epochs ---------------------------------------------------------------------------------------------


def test_compiled_code_is_closed_once_when_neither_the_cache_nor_a_handle_holds_it(monkeypatch):
    monkeypatch.setenv("VYRE_PIPELINE_CACHE_ENTRIES", "1")
    backend = Compiler()
    one = pipeline.compile(backend, storing(1))
    two = pipeline.compile(backend, storing(1))
    native = one.native
    pipeline.compile(backend, storing(2))  # throws the first out
    one.close()
    del one
    gc.collect()
    assert native.closed == 0
    two.dispatch([])
    two.close()
    del two
    gc.collect()
    assert native.closed == 1


def test_compiled_code_stays_open_while_a_started_dispatch_is_waited_for(monkeypatch):
    monkeypatch.setenv("VYRE_PIPELINE_CACHE_ENTRIES", "1")
    backend = Compiler()
    handle = pipeline.compile(backend, storing(1))
    native, pending = handle.native, handle.dispatch_async([])
    pipeline.compile(backend, storing(2))
    handle.close()
    del handle
    gc.collect()
    assert native.closed == 0
    pending.result()
    del pending
    gc.collect()
    assert native.closed == 1


@pytest.mark.parametrize("end", ["shutdown", "try_recover"])
def test_pipelines_from_before_a_shutdown_or_recovery_are_refused_and_not_found_again(end):
    backend = Compiler()
    handle = pipeline.compile(backend, storing(7))
    handle.dispatch([])
    getattr(backend, end)()
    for call in (handle.dispatch, handle.dispatch_timed, handle.dispatch_async):
        with pytest.raises(DeviceLost, match=r"shut down or recovered after.*Fix: compile the program again"):
            call([])
    with pytest.raises(DeviceLost):
        handle.dispatch_resident([])
    again = pipeline.compile(backend, storing(7))
    assert len(backend.compiled) == 2
    again.dispatch([])


def test_a_recovery_that_fails_ends_no_pipeline():
    class Hopeless(Compiler):
        def try_recover(self):
            raise DeviceLost("gone", fix="restart")

    backend = Hopeless()
    handle = pipeline.compile(backend, storing(7))
    with pytest.raises(DeviceLost, match="gone"):
        backend.try_recover()
    handle.dispatch([])


def test_what_was_compiled_across_a_recovery_is_not_kept():
    backend = Compiler(lambda: backend.try_recover())
    handle = pipeline.compile(backend, storing(7))
    assert pipelines_of(backend).snapshot().entries == 0
    with pytest.raises(DeviceLost):
        handle.dispatch([])


# ---- counting -------------------------------------------------------------------------------------------------------


def test_each_miss_is_counted_with_its_reason(monkeypatch):
    monkeypatch.setenv("VYRE_PIPELINE_CACHE_ENTRIES", "3")
    backend = Compiler()
    pipeline.compile(backend, storing(1))
    pipeline.compile(backend, storing(2))
    pipeline.compile(backend, storing(2), DispatchConfig(workgroup_override=(2, 1, 1)))
    backend.capability = BackendCapability(max_workgroup_size=(64, 1, 1), f16=True)
    pipeline.compile(backend, storing(2))
    pipeline.compile(backend, storing(2))
    backend.capability = BackendCapability(max_workgroup_size=(64, 1, 1))
    pipeline.compile(backend, storing(1))
    metrics = pipelines_of(backend).metrics()
    assert {name: n for name, n in metrics.items() if "_miss_" in name} == {
        "vyre_pipeline_cache_miss_empty_cache_total": 1,
        "vyre_pipeline_cache_miss_program_changed_total": 1,
        "vyre_pipeline_cache_miss_dispatch_policy_changed_total": 1,
        "vyre_pipeline_cache_miss_device_or_runtime_changed_total": 1,
        "vyre_pipeline_cache_miss_key_absent_total": 1,
        "vyre_pipeline_cache_miss_evicted_total": 0,
        "vyre_pipeline_cache_miss_damaged_total": 0,
    }
    assert metrics["vyre_pipeline_cache_misses_total"] == 5
    assert metrics["vyre_pipeline_cache_hits_total"] == 1
    assert metrics["vyre_pipeline_cache_entries"] == 3


@pytest.mark.row("A-PL-11")
@pytest.mark.parametrize(
    "observed, alarm_bps, rate, alarmed",
    [
        ([True, True, True, False], 0, 7500, False),
        ([True, True, False, None], 7000, 6666, True),
        ([True, None, None, False], 0, 5000, False),
        ([True] * 3 + [False] * 7, 8000, 3000, True),
        ([True] * 8 + [False] * 2, 8000, 8000, False),
        ([False], 0, 0, False),
        ([], 8000, None, False),
        ([None], 8000, None, False),
    ],
)
def test_hit_rates_and_alarms(observed, alarm_bps, rate, alarmed):
    audit = PipelineCacheAudit()
    for hit in observed:
        audit.observe(hit)
    report = audit.snapshot(alarm_bps)
    assert (report.hit_rate_bps, report.below_alarm_threshold) == (rate, alarmed)
    assert report.hits + report.misses + report.unknowns == len(observed)


@pytest.mark.row("A-PL-11")
def test_a_rate_of_very_many_hits_is_exact():
    assert PipelineCacheAudit(hits=2**64 - 1).snapshot().hit_rate_bps == 10_000


# ---- the tier below -------------------------------------------------------------------------------------------------


class Shelf(KeptCode):
    """It may break."""

    broken = False

    def load(self, key):
        if self.broken:
            raise OSError("unreadable")
        return super().load(key)

    def save(self, key, payload):
        if self.broken:
            raise OSError("full")
        super().save(key, payload)


class StorableNative(Native):
    def serialize(self):
        return b"code of " + self.id.encode()


class Storing(Compiler):
    loaded = 0

    def compile_native(self, program, config):
        super().compile_native(program, config)
        return StorableNative(program)

    def load_native(self, program, config, payload):
        if payload.startswith(b"broken"):
            raise KernelCompileFailed("not code", fix="compile it again")
        if payload.startswith(b"surprising"):
            raise IndexError("of a format that nobody thought of")
        if payload.startswith(b"lost"):
            raise DeviceLost("the device is gone", fix="recover it")
        if not payload.startswith(b"code of"):
            return None
        self.loaded += 1
        return StorableNative(program)


def fresh(shelf):
    backend = Storing()
    attach_store(backend, shelf)
    return backend


def test_a_stored_pipeline_is_loaded_instead_of_compiled():
    shelf, program = Shelf(), storing(7)
    first, second = fresh(shelf), fresh(shelf)
    cold = pipeline.compile_with_telemetry(first, program)
    warm = pipeline.compile_with_telemetry(second, program)
    assert (cold.cache_hit, warm.cache_hit) == (False, True)
    assert (len(first.compiled), len(second.compiled), second.loaded) == (1, 0, 1)
    assert list(shelf.kept.values()) == [b"code of " + cold.pipeline.id.encode()]
    pipeline.compile(second, program)
    assert shelf.loads == 2  # the third came from memory
    assert warm.pipeline.dispatch([]) == cold.pipeline.dispatch([])


def test_a_store_is_asked_for_the_complete_key():
    shelf = Shelf()
    pipeline.compile(fresh(shelf), storing(7))
    other = fresh(shelf)
    other.version = "2"
    pipeline.compile(other, storing(7))
    assert len(other.compiled) == 1
    assert len(shelf.kept) == 2


@pytest.mark.parametrize("payload", [b"broken", b"of another format", b"surprising"])
def test_a_stored_pipeline_that_cannot_be_used_is_compiled_and_saved_again(payload):
    shelf = Shelf()
    pipeline.compile(fresh(shelf), storing(7))
    (good,) = shelf.kept.values()
    for key in shelf.kept:
        shelf.kept[key] = payload
    backend = fresh(shelf)
    assert not pipeline.compile_with_telemetry(backend, storing(7)).cache_hit
    assert len(backend.compiled) == 1
    assert list(shelf.kept.values()) == [good]
    assert shelf.calls == ["give up", "reject", "give up"]


@pytest.mark.parametrize(
    "payload, said",
    [(b"broken", "KernelCompileFailed: not code. Fix: compile it again"), (b"surprising", "IndexError: of a format")],
)
def test_why_stored_code_is_not_loaded_is_logged_once_for_each_kind_of_error(payload, said, monkeypatch, caplog):
    monkeypatch.setattr(compiler, "_told", set())
    shelf = Shelf()
    for value in (7, 8):
        pipeline.compile(fresh(shelf), storing(value))
    for key in shelf.kept:
        shelf.kept[key] = payload
    for value in (7, 8):
        pipeline.compile(fresh(shelf), storing(value))
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("vyre.cache", "WARNING")
    start = f"backend {Storing.id} cannot load stored code, which is compiled again: {said}"
    assert record.getMessage().startswith(start)


def test_stored_code_of_another_format_is_compiled_again_without_a_word(caplog):
    shelf = Shelf()
    pipeline.compile(fresh(shelf), storing(7))
    for key in shelf.kept:
        shelf.kept[key] = b"of another format"
    pipeline.compile(fresh(shelf), storing(7))
    assert caplog.records == []


def test_a_device_that_is_lost_while_code_is_loaded_says_so():
    shelf = Shelf()
    pipeline.compile(fresh(shelf), storing(7))
    for key in shelf.kept:
        shelf.kept[key] = b"lost"
    backend = fresh(shelf)
    with pytest.raises(DeviceLost):
        pipeline.compile(backend, storing(7))
    assert backend.compiled == []


def test_a_store_that_fails_costs_time_and_no_answer():
    shelf = Shelf()
    shelf.broken = True
    backend = fresh(shelf)
    assert pipeline.compile(backend, storing(7)).dispatch([]) == [b"\0\0\0\0"]
    assert pipelines_of(backend).metrics()["vyre_pipeline_cache_store_errors_total"] == 2


def test_pipelines_that_cannot_be_serialized_are_not_stored():
    shelf, backend = Shelf(), Compiler()
    attach_store(backend, shelf)
    pipeline.compile(backend, storing(7))
    assert (shelf.loads, shelf.kept) == (0, {})


def test_an_entry_that_outlives_the_names_of_its_module_ends_in_silence(monkeypatch):
    """As at the end of Python, which empties modules before it drops what refers to itself."""
    closed = []

    class Closing(Native):
        def close(self):
            closed.append(self)

    entry = Entry(Closing(storing(7)), 0, "compiled", 0)
    for name in ("sys", "os"):
        monkeypatch.setattr(caches, name, None)
    del entry  # an error here would be a warning of pytest, which is a failure
    gc.collect()
    assert len(closed) == 1
