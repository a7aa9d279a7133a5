"""A backend that someone else wrote in a hurry, and callers who pass what they should not: nothing breaks silently."""

import os
import pickle
import threading
import time
from dataclasses import fields, replace

import numpy as np
import pytest

from vyre.backends.reference import run
from vyre.driver.contract import (
    BackendCapability,
    BackendRegistration,
    CompiledPipeline,
    PendingDispatch,
    VyreBackend,
)
from vyre.driver.contract.values import DEFAULT_CONFIG, DispatchConfig
from vyre.driver.guard import compile as pipelines
from vyre.driver.pipeline import CURRENT_PIPELINE_CACHE_KEY_VERSION, PassthroughPipeline, PipelineCacheKey, attach_store
from vyre.driver.plan import plan_dispatch
from vyre.driver.selection.registry import acquire, isolated, register, registered_backends, select
from vyre.errors import (
    ArgumentValueError,
    BackendError,
    BackendUnavailable,
    DeadlineExceeded,
    DeviceLost,
    DeviceOutOfMemory,
    DispatchFailed,
    KernelCompileFailed,
    VyreError,
)

from .programs import ADD, COUNT, LONG, unwords, words

FOUR = DispatchConfig(output_elements={"out": 4})
PAIR = [words(1, 2, 3, 4), words(1, 1, 1, 1)]
ROOM = BackendCapability(max_workgroup_size=(64, 1, 1), max_workgroups_per_dimension=65535)


class Bare(VyreBackend, contract=1):
    """An id, a dispatch and its limits. It trusts that whoever calls it has checked the arguments."""

    id = "bare"
    capability = ROOM

    def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        grid = plan_dispatch(program, inputs, config).launch.grid
        results = run(program, inputs, grid=grid, output_elements=config.output_elements).outputs
        return results if out is None else self.fill(out, results)

    @staticmethod
    def fill(out, results):
        for target, data in zip(out, results, strict=True):
            memoryview(target).cast("B")[:] = data
        return list(out)


def opened(backend, **record):
    """The backend as `acquire` gives it."""
    with isolated(BackendRegistration(id=backend.id, open=lambda device=None: backend, **record)):
        return acquire(backend.id)


@pytest.fixture
def bare():
    backend = opened(Bare())
    yield backend
    backend.shutdown()


def every_way(backend, program=ADD, inputs=PAIR, config=FOUR):
    """All calls that dispatch, each to be made by itself."""

    def compiled():
        return pipelines.compile(backend, program, config)

    def room():
        return [bytearray(16)]

    return {
        "dispatch": lambda: backend.dispatch(program, inputs, config),
        "into": lambda: backend.dispatch(program, inputs, config, out=room()),
        "borrowed": lambda: backend.dispatch_borrowed(program, inputs, config),
        "timed": lambda: backend.dispatch_timed(program, inputs, config),
        "async": lambda: backend.dispatch_async(program, inputs, config).result(),
        "async into": lambda: backend.dispatch_async(program, inputs, config, out=room()).result(),
        "pipeline": lambda: compiled().dispatch(inputs),
        "pipeline into": lambda: compiled().dispatch(inputs, out=room()),
        "pipeline timed": lambda: compiled().dispatch_timed(inputs),
        "pipeline async": lambda: compiled().dispatch_async(inputs).result(),
        "pipeline batch": lambda: compiled().dispatch_batch([inputs, inputs]),
    }


WAYS = sorted(every_way(None))


def test_a_bare_backend_runs_whichever_way_it_is_asked(bare):
    for name, call in every_way(bare).items():
        found = call()
        found = getattr(found, "outputs", found)
        assert (found[0] if name == "pipeline batch" else found) == [words(2, 3, 4, 5)], name


# ---- a backend that says yes to everything and does nothing ----------------------------------------------------------


class Boaster(Bare):
    id = "boaster"
    capability = replace(ROOM, **{f.name: True for f in fields(BackendCapability) if f.type == "bool"})

    def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        raise DeviceOutOfMemory("nothing is left", fix="free something", asked=7)


@pytest.mark.parametrize("way", WAYS)
def test_the_error_of_a_dispatch_is_the_error_of_every_way_to_dispatch(way):
    with pytest.raises(DeviceOutOfMemory, match=r"nothing is left .*asked=7.*Fix: free something") as e:
        every_way(opened(Boaster()))[way]()
    assert e.value.context["asked"] == 7


def test_a_backend_without_a_guard_gives_its_own_error_too():
    backend = Boaster()
    for call in (backend.dispatch, backend.dispatch_borrowed, backend.dispatch_timed, backend.dispatch_async):
        with pytest.raises(DeviceOutOfMemory, match="nothing is left"):
            call(ADD, PAIR, FOUR)


# ---- who registers while others look --------------------------------------------------------------------------------


def test_readers_never_see_half_of_a_registry():
    wrong, ending = [], threading.Event()

    def read():
        known = 0
        while not ending.wait(0.0005):
            ids = [r.id for r in registered_backends()]
            if ids != sorted(ids) or len(ids) < known or ids != [f"b{k:03}" for k in range(len(ids))]:
                wrong.append(ids)
            known = len(ids)

    with isolated():
        readers = [threading.Thread(target=read) for _ in range(16)]
        for reader in readers:
            reader.start()
        for k in range(20):
            register(BackendRegistration(id=f"b{k:03}", open=lambda device=None: Bare()))
        ending.set()
        for reader in readers:
            reader.join()
        assert len(registered_backends()) == 20
    assert wrong == []


# ---- keys of another version ----------------------------------------------------------------------------------------


class Loading(Bare):
    """Compiles once per program, and takes anything that a store gives it."""

    id = "loading"

    def __init__(self):
        self.compiled = self.loaded = 0

    def compile_native(self, program, config):
        self.compiled += 1
        return Kept(self, program, config)

    def load_native(self, program, config, payload):
        self.loaded += 1
        return Kept(self, program, config)


class Kept(PassthroughPipeline):
    def serialize(self):
        return b"code"


class Shelf:
    """A store that remembers under the digest of the key."""

    def __init__(self):
        self.kept = {}

    def load(self, key):
        return self.kept.get(key.digest())

    def save(self, key, payload):
        self.kept[key.digest()] = payload

    def give_up(self, key):
        pass

    def explain(self, key):
        return None


def test_code_of_another_key_version_is_not_found():
    shelf = Shelf()

    def counts():
        backend = Loading()
        attach_store(backend, shelf)
        assert pipelines.compile(backend, ADD, FOUR).dispatch(PAIR) == [words(2, 3, 4, 5)]
        return backend.compiled, backend.loaded

    assert counts() == (1, 0)
    assert counts() == (0, 1)
    key = PipelineCacheKey.of(Loading(), ADD, FOUR)
    older = replace(key, version=CURRENT_PIPELINE_CACHE_KEY_VERSION - 1)
    assert older != key
    assert older.digest() != key.digest()
    shelf.kept = {older.digest(): payload for payload in shelf.kept.values()}
    assert counts() == (1, 0)


# ---- times ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0, 5e-324, 1e-9])
def test_no_time_at_all_is_over_before_anything_starts(timeout):
    class Started(Bare):
        calls = 0

        def dispatch(self, *args, **options):
            self.calls += 1
            return super().dispatch(*args, **options)

    inner = Started()
    target = bytearray(b"\xa5" * 16)
    with pytest.raises(DeadlineExceeded, match=r"in time.*Fix: "):
        opened(inner).dispatch(ADD, PAIR, FOUR.with_(timeout=timeout), out=[target])
    assert inner.calls == 0
    assert target == b"\xa5" * 16


@pytest.mark.parametrize("timeout", [1e6, 1e18, 1.7e308, float("inf")])
def test_all_the_time_in_the_world_is_no_overflow(bare, timeout):
    assert bare.dispatch(ADD, PAIR, FOUR.with_(timeout=timeout)) == [words(2, 3, 4, 5)]
    assert bare.dispatch_async(ADD, PAIR, FOUR.with_(timeout=timeout)).result(timeout=timeout) == [words(2, 3, 4, 5)]


def test_a_backend_that_cannot_stop_is_left_behind_and_used_again_when_it_ends():
    class Slow(Bare):
        def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
            go_on.wait(60)
            return super().dispatch(program, inputs, config, out=out)

    go_on, backend = threading.Event(), opened(Slow())
    target = bytearray(b"\xa5" * 16)
    pipelines.compile(backend, ADD, FOUR.with_(timeout=60))
    with pytest.raises(DeadlineExceeded, match=r"in time.*Fix: "):
        backend.dispatch(ADD, PAIR, FOUR.with_(timeout=0.2), out=[target])
    with pytest.raises(DeviceLost, match="Fix: "):
        backend.dispatch(COUNT, [words(1)])
    go_on.set()
    end = time.monotonic() + 60
    while backend.device_lost() and time.monotonic() < end:
        time.sleep(0.01)
    assert backend.dispatch(COUNT, [words(1)]) == [words(2)]
    assert target == b"\xa5" * 16


# ---- buffers --------------------------------------------------------------------------------------------------------


def test_strided_read_only_empty_and_shared_inputs_are_inputs(bare):
    strided = np.arange(8, dtype=np.uint32)[::2]
    sealed = np.arange(4, dtype=np.uint32)
    sealed.flags.writeable = False
    assert unwords(bare.dispatch(ADD, [strided, sealed], FOUR)[0]) == [0, 3, 6, 9]
    assert bare.dispatch(ADD, [b"", b""], DispatchConfig(output_elements={"out": 0})) == [b""]
    shared = np.array([1, 2, 3, 4], np.uint32)
    bare.dispatch(ADD, [shared, shared], FOUR, out=[shared])
    assert shared.tolist() == [2, 4, 6, 8]


@pytest.mark.parametrize("inputs, received", [([], 0), (PAIR[:1], 1), (PAIR * 2, 4)], ids=["none", "one", "four"])
def test_a_wrong_number_of_inputs_is_told_with_both_numbers(bare, inputs, received):
    for name, call in every_way(bare, inputs=inputs).items():
        with pytest.raises(
            ArgumentValueError, match=rf"expected 2 input buffer\(s\) and received {received}.*Fix: "
        ) as e:
            call()
        assert isinstance(e.value, VyreError), name


# ---- results --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "result",
    [
        None,
        [],
        (bytearray(16),),
        [bytearray(16), bytearray(16)],
        [bytearray(12)],
        [bytearray(20)],
        ["sixteen letters."],
        [16],
        bytearray(16),
    ],
    ids=["nothing", "none", "tuple", "two", "short", "long", "text", "number", "bytes"],
)
@pytest.mark.parametrize("way", WAYS)
def test_a_result_that_was_not_planned_is_the_backends_fault_and_reaches_nobody(way, result):
    class Wrong(Bare):
        def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
            return result

    with pytest.raises(DispatchFailed, match=r"backend bare broke its contract: .*Fix: correct the backend"):
        every_way(opened(Wrong()))[way]()


class Odd(PendingDispatch):
    """A handle that nobody can ask, or one that does not know that its dispatch has ended."""

    def __init__(self, ready, error):
        super().__init__()
        self.ready, self.error = ready, error

    def is_ready(self):
        if isinstance(self.ready, Exception):
            raise self.ready
        return self.ready

    def _wait(self, timeout):
        raise self.error


def starting(pending):
    return opened(type("Starting", (Bare,), {"dispatch_async": lambda self, *args, **options: pending})())


def test_a_handle_that_cannot_say_whether_it_is_ready_fails_as_the_backends_fault():
    with pytest.raises(DispatchFailed, match="backend bare raised ValueError: no idea"):
        starting(Odd(ValueError("no idea"), ValueError("never"))).dispatch_async(ADD, PAIR, FOUR)


def test_a_handle_that_breaks_later_is_not_told_to_whoever_starts_another_dispatch():
    odd = Odd(False, ValueError("broken"))
    guard = starting(odd)
    handles = [guard.dispatch_async(ADD, PAIR, FOUR)]
    odd.ready = ValueError("no idea")
    guard.inner.__class__ = Bare
    for pending in (Odd(False, ValueError("broken")) for _ in range(40)):
        guard.inner.dispatch_async = lambda *args, pending=pending, **options: pending
        handles.append(guard.dispatch_async(ADD, PAIR, FOUR))
    with pytest.raises(DispatchFailed, match="ValueError: no idea"):
        handles[0].is_ready()


def test_a_deadline_of_the_dispatch_ends_the_wait_whatever_its_handle_says():
    late = DeadlineExceeded("the kernel did not end in time", fix="allow more time")
    handle = starting(Odd(False, late)).dispatch_async(ADD, PAIR, FOUR)
    with pytest.raises(DeadlineExceeded, match="the kernel did not end in time"):
        handle.result()


@pytest.mark.parametrize("missing", ["id", "backend_id"])
def test_code_without_a_name_is_the_backends_fault(missing):
    class Nameless(CompiledPipeline):
        id = backend_id = "bare"

        def dispatch(self, inputs, config=None, *, out=None):
            return []

    setattr(Nameless, missing, None)
    guard = opened(type("Careless", (Bare,), {"compile_native": lambda self, program, config: Nameless()})())
    with pytest.raises(KernelCompileFailed, match=rf"to a Nameless without {missing} .*Fix: correct the backend"):
        guard.dispatch(ADD, PAIR, FOUR)


def test_operations_may_be_any_set():
    ops = VyreBackend.supported_ops(Bare())
    guard = opened(type("Loose", (Bare,), {"supported_ops": lambda self: set(ops)})())
    assert unwords(guard.dispatch(ADD, PAIR, FOUR)[0]) == [2, 3, 4, 5]
    assert guard.supported_ops() == ops


def test_a_backend_without_a_capability_record_is_refused():
    with pytest.raises(BackendError, match=r"capability record of backend bare is NoneType .*Fix: correct the backend"):
        opened(type("Blank", (Bare,), {"capability": None})())


def test_other_buffers_than_the_callers_are_copied_to_where_the_caller_wants():
    class Elsewhere(Bare):
        def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
            return super().dispatch(program, inputs, config)

    target = bytearray(16)
    (same,) = opened(Elsewhere()).dispatch(ADD, PAIR, FOUR, out=[target])
    assert same is target
    assert unwords(target) == [2, 3, 4, 5]


# ---- exceptions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("config", [FOUR, FOUR.with_(timeout=60)], ids=["untimed", "timed"])
def test_who_wants_to_leave_is_let_go(way, error, config):
    class Leaving(Bare):
        def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
            raise error("now")

    backend = opened(Leaving())
    with pytest.raises(error, match="now"):
        every_way(backend, config=config)[way]()


@pytest.mark.parametrize("way", WAYS)
def test_a_foreign_error_becomes_ours_and_keeps_its_cause(way):
    class Broken(Bare):
        def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
            return {}["missing"]

    with pytest.raises(DispatchFailed, match=r"backend bare raised KeyError: 'missing'.*label='step 3'.*Fix: ") as e:
        every_way(opened(Broken()), config=FOUR.with_(label="step 3"))[way]()
    cause = e.value
    while not isinstance(cause, KeyError):
        cause = cause.__cause__
    assert pickle.loads(pickle.dumps(e.value)) == e.value


# ---- opening --------------------------------------------------------------------------------------------------------


def test_a_backend_that_never_opens_does_not_keep_the_next_one_waiting(monkeypatch):
    monkeypatch.setenv("VYRE_ACQUIRE_TIMEOUT", "0.1")
    never = threading.Event()
    hangs = BackendRegistration(id="hangs", precedence=1, open=lambda device=None: never.wait(60) and Bare())
    works = BackendRegistration(id="bare", precedence=2, open=lambda device=None: Bare())
    with isolated(hangs, works):
        chosen = select()
    assert chosen.chosen == "bare"
    assert "did not answer within 0.1 s" in dict(chosen.losers)["hangs"]
    with isolated(hangs), pytest.raises(BackendUnavailable, match=r"hangs: .*did not answer within 0\.1 s.*Fix: "):
        select()
    never.set()


# ---- processes ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_backend_does_not_cross_a_fork(bare):
    pipeline = pipelines.compile(bare, ADD, FOUR)
    into, out_of = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for use in (lambda: bare.dispatch(ADD, PAIR, FOUR), lambda: pipeline.dispatch(PAIR)):
            try:
                use()
                said.append("it ran")
            except DeviceLost as e:
                said.append(str(e))
            except BaseException as e:
                said.append(repr(e))
        os.write(out_of, "\n".join(said).encode())
        os._exit(0)
    os.close(out_of)
    with os.fdopen(into) as answers:
        said = answers.read().splitlines()
    assert os.waitpid(child, 0)[1] == 0
    assert len(said) == 2
    assert all("forked" in line and "Fix: use the spawn start method" in line for line in said), said
    assert pipeline.dispatch(PAIR) == [words(2, 3, 4, 5)]


# ---- ends -----------------------------------------------------------------------------------------------------------


def test_a_backend_is_shut_down_once_and_refuses_from_then_on():
    class Ending(Bare):
        ends = 0

        def shutdown(self):
            self.ends += 1

    inner = Ending()
    backend = opened(inner)
    calls = every_way(backend)
    pipeline = pipelines.compile(backend, ADD, FOUR)
    backend.shutdown()
    backend.shutdown()
    assert inner.ends == 1
    for call in (*calls.values(), lambda: pipeline.dispatch(PAIR)):
        with pytest.raises(DeviceLost, match=r"shut down.*Fix: "):
            call()


def test_hours_of_work_are_not_begun_for_outputs_that_do_not_fit(bare):
    for out in ([bytes(4)], [bytearray(8)], [np.zeros(8, np.uint8)[::2]]):
        with pytest.raises(VyreError, match="Fix: "):
            bare.dispatch(LONG, [words(0)], out=out)
