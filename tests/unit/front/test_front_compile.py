"""Kernels and programs through the driver: which backend runs, what it is handed, and what comes back when."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, atomic_add, const, f32, gid, u8, u32
from vyre.backends.reference.backend import CAPABILITY
from vyre.driver.contract import FuturePending
from vyre.driver.contract.values import DEFAULT_CONFIG
from vyre.driver.selection import registry
from vyre.foundation.ir.nodes import Select, Var, lit
from vyre.front import call as front_call
from vyre.front.typed import TypedDispatchExt, dispatch_array, dispatch_f32, dispatch_u32


@vyre.kernel(workgroup=64)
def saxpy(alpha: f32, x: In[f32], y: In[f32], out: Out[f32]):
    if gid.x < len(out):
        out[gid.x] = alpha * x[gid.x] + y[gid.x]


@vyre.kernel(workgroup=64)
def histogram(x: In[u32], bins: InOut[u32]):
    if gid.x < len(x):
        atomic_add(bins, x[gid.x] % len(bins), 1)


@vyre.kernel(workgroup=64)
def copy_words(x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x]


@vyre.kernel(workgroup=64)
def copy_bytes(x: In[u8], out: Out[u8]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x]


@vyre.kernel(workgroup=64)
def negate(x: In[vyre.bool_], out: Out[vyre.bool_]):
    if gid.x < len(out):
        out[gid.x] = not x[gid.x]


@vyre.kernel(workgroup=(8, 8))
def ramp(width: u32, out: Out[u32]):
    if gid.x < width:
        out[gid.y * width + gid.x] = gid.y * 100 + gid.x


REFERENCE = vyre.acquire("reference")


class Recording(vyre.VyreBackend, contract=1):
    """Runs programs on the reference and remembers what it was handed."""

    id = "recording"
    capability = CAPABILITY

    def __init__(self):
        self.inner = REFERENCE
        self.calls = []
        self.down = False

    def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        self.calls.append((inputs, config, out))
        return self.inner.dispatch(program, inputs, config, out=out)

    def shutdown(self):
        self.down = True


@pytest.fixture
def recording():
    """The only backend there is."""
    backend = Recording()
    registration = vyre.BackendRegistration(
        id="recording", open=lambda device=None: backend, precedence=50, kind="host"
    )
    with registry.isolated(registration):
        yield backend


def words(buffer):
    return np.frombuffer(buffer, np.uint8)


X = np.arange(100, dtype=np.uint32)


# ---- which backend


def test_a_plain_call_runs_on_the_backend_that_is_selected(recording):
    assert np.array_equal(copy_words(X), X)
    assert len(recording.calls) == 1


def test_a_registry_of_oracles_alone_still_runs_kernels():
    with registry.isolated(registry.backend_registration("reference")):
        assert vyre.select(copy_words.program).chosen == "reference"
        assert np.array_equal(copy_words(X), X)


def test_an_oracle_is_not_chosen_in_place_of_a_backend_that_does_not_open():
    broken = vyre.BackendRegistration(
        id="broken", open=lambda device=None: None, unavailable=lambda: "its cable is loose", kind="device"
    )
    oracle = registry.backend_registration("reference")
    with registry.isolated(broken, oracle):
        with pytest.raises(vyre.BackendUnavailable, match=r"its cable is loose.*Fix: .*'reference'"):
            copy_words(X)
        assert np.array_equal(copy_words.on("reference")(X), X)


def test_on_runs_there_or_raises(recording):
    assert np.array_equal(copy_words.on("recording")(X), X)
    with pytest.raises(vyre.BackendUnavailable, match=r"'reference' is not linked.*Fix: use one of: recording"):
        copy_words.on("reference")(X)
    assert len(recording.calls) == 1
    with pytest.raises(vyre.ArgumentTypeError, match=r"on\(\) got a int.*Fix: name a backend"):
        copy_words.on(3)


def test_on_names_a_device():
    assert np.array_equal(copy_words.on("reference:0")(X), X)
    with pytest.raises(vyre.BackendUnavailable, match="no device '7'"):
        copy_words.on("reference:7")(X)


def test_on_leaves_the_kernel_as_it_was(recording):
    there = copy_words.on("nowhere")
    assert (copy_words.backend, there.backend) == (None, "nowhere")
    assert there.program is copy_words.program
    copy_words(X)


def test_the_environment_names_the_backend_at_each_call(monkeypatch):
    backend = Recording()
    registration = vyre.BackendRegistration(id="recording", open=lambda device=None: backend, kind="host")
    with registry.isolated(registration, registry.backend_registration("reference")):
        monkeypatch.setenv("VYRE_BACKEND", "reference")
        copy_words(X)
        assert backend.calls == []
        monkeypatch.setenv("VYRE_BACKEND", "recording")
        copy_words(X)
        assert len(backend.calls) == 1
        monkeypatch.setenv("VYRE_BACKEND", "nowhere")
        with pytest.raises(vyre.BackendUnavailable, match="nowhere"):
            copy_words(X)


def test_one_backend_is_opened_per_name_and_spare_ones_are_shut_down():
    opened = []

    def open_one(device=None):
        opened.append(Recording())
        return opened[-1]

    with registry.isolated(vyre.BackendRegistration(id="recording", open=open_one, kind="host")):
        copy_words(X)
        saxpy(1.0, np.ones(3, np.float32), np.ones(3, np.float32))
        copy_words.on("recording")(X[:5])
        assert [len(b.calls) for b in opened] == [3, 0]
        assert [b.down for b in opened] == [False, True]


def test_select_answers_for_a_program_and_chooses_between_values(recording):
    chosen = vyre.select(copy_words.program)
    assert (chosen.chosen, chosen.losers) == ("recording", ())

    @vyre.kernel(workgroup=4)
    def pick(x: In[u32], out: Out[u32]):
        if gid.x < len(out):
            out[gid.x] = vyre.select(x[gid.x] > 1, x[gid.x], 7)

    assert pick(X[:4]).tolist() == [7, 7, 2, 3]
    assert vyre.select(Var("c"), lit(1), lit(2)) == Select(Var("c"), lit(1), lit(2))
    with pytest.raises(vyre.ArgumentTypeError, match="works inside kernels"):
        vyre.select(1, 2, 3)


# ---- compile


def test_compile_gives_a_pipeline_with_the_bytes_of_a_call():
    pipe = vyre.compile(copy_words.program)
    assert isinstance(pipe, vyre.CompiledPipeline)
    (out,) = pipe.dispatch([X], vyre.DispatchConfig(output_elements={"out": 100}))
    assert bytes(out) == copy_words(X).tobytes()
    chosen = vyre.select(copy_words.program).chosen
    assert vyre.compile(copy_words.program, backend=chosen).id == pipe.id


def test_compile_takes_an_acquired_backend_and_a_config(recording):
    pipe = vyre.compile(copy_words.program, backend=recording, config=vyre.DispatchConfig(label="mine"))
    pipe.dispatch([X])
    assert recording.calls[0][1].label == "mine"


def test_compile_wants_a_program():
    with pytest.raises(vyre.ArgumentTypeError, match=r"Kernel, not a program.*Fix: pass kernel\.program"):
        vyre.compile(copy_words)


def test_a_kernel_is_compiled_once_for_all_sizes_and_never_per_call():
    compiled = []

    class Compiling(Recording):
        def compile_native(self, program, config):
            compiled.append(program)

    backend = Compiling()
    with registry.isolated(vyre.BackendRegistration(id="recording", open=lambda device=None: backend, kind="host")):
        for n in (1, 7, 64, 65, 100, 100):
            assert np.array_equal(copy_words(X[:n]), X[:n])
    assert compiled == [copy_words.program]


# ---- what a backend is handed


def test_contiguous_inputs_and_given_outputs_are_handed_over_without_a_copy(recording):
    x, y, out = np.ones(8, np.float32), np.ones(8, np.float32), np.zeros(8, np.float32)
    assert saxpy(2.0, x, y, out=out) is out
    inputs, _, outs = recording.calls[0]
    assert np.shares_memory(words(inputs[1]), x)
    assert np.shares_memory(words(inputs[2]), y)
    assert np.shares_memory(words(outs[0]), out)
    assert out.tolist() == [3] * 8


def test_a_new_result_is_the_memory_that_the_backend_wrote(recording):
    result = copy_words(X)
    assert np.shares_memory(words(recording.calls[0][2][0]), result)
    assert result.flags.writeable


def test_an_output_over_an_input_is_written_after_the_dispatch(recording):
    memory = np.arange(100, dtype=np.uint32)
    copy_words(memory[:90], out=memory[10:])
    inputs, _, outs = recording.calls[0]
    assert np.shares_memory(words(inputs[0]), memory)
    assert not np.shares_memory(words(outs[0]), memory)
    assert np.array_equal(memory[10:], np.arange(90))


def test_an_updated_array_is_read_in_place_and_written_at_the_end(recording):
    bins = np.zeros(4, np.uint32)
    histogram(X, bins)
    inputs, _, outs = recording.calls[0]
    assert np.shares_memory(words(inputs[1]), bins)
    assert not np.shares_memory(words(outs[0]), bins)
    assert bins.tolist() == [25] * 4


def test_an_input_that_is_also_updated_is_read_as_it_was():
    both = np.arange(8, dtype=np.uint32)
    expected = histogram(both.copy(), both.copy())
    assert histogram(both, both) is both
    assert np.array_equal(both, expected)


def test_a_strided_input_is_copied(recording):
    assert np.array_equal(copy_words(X[::2]), X[::2])
    assert not np.shares_memory(words(recording.calls[0][0][0]), X)


def test_empty_arrays_are_handed_over_as_no_bytes(recording):
    assert copy_words(X[:0]).shape == (0,)
    into = np.zeros((0, 3), np.uint32)
    assert copy_words(np.zeros((0, 3), np.uint32), out=into) is into
    assert all(len(memoryview(b)) == 0 for inputs, _, outs in recording.calls for b in (*inputs, *outs))


def test_nothing_runs_over_an_empty_grid(recording):
    bins = np.array([5], np.uint32)
    assert copy_words(X, grid=0).tolist() == [0] * 100
    assert histogram(X, bins, grid=0) is bins
    assert histogram.start(X, bins, grid=0).result() is bins
    assert ramp(0, domain=(0, 4)).shape == (4, 0)
    assert bins.tolist() == [5]
    assert recording.calls == []
    with pytest.raises(vyre.BackendUnavailable):
        copy_words.on("nowhere")(X, grid=0)
    with pytest.raises(vyre.InvalidProgram, match="zero"):
        copy_words(X, config=vyre.DispatchConfig(grid_override=(0, 1, 1)))


def test_bools_are_handed_over_as_words(recording):
    into = np.zeros(3, np.bool_)
    assert negate(np.array([True, False, True]), out=into) is into
    inputs, _, outs = recording.calls[0]
    assert [memoryview(b).nbytes for b in (inputs[0], outs[0])] == [12, 12]
    assert into.tolist() == [False, True, False]


def test_nothing_of_the_callers_is_written_when_a_backend_fails(recording):
    def fail(program, inputs, config=None, *, out=None):
        raise vyre.DispatchFailed("no", fix="try again")

    recording.dispatch = fail
    bins, out = np.zeros(4, np.uint32), np.zeros(100, np.uint32)
    for run in (lambda: histogram(X, bins), lambda: copy_words(X, out=out)):
        with pytest.raises(vyre.DispatchFailed):
            run()
    assert not bins.any()
    assert not out.any()


# ---- what an input may be


class Interface:
    def __init__(self, array):
        self.array = array
        self.__array_interface__ = array.__array_interface__


class DLPack:
    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.device


class DeviceArray:
    __cuda_array_interface__ = {"shape": (1,), "typestr": "<u4", "data": (0, False), "version": 3}  # noqa: RUF012


@pytest.mark.parametrize("wrap", [Interface, DLPack, memoryview, lambda x: x.view(np.matrix).reshape(1, -1)])
def test_what_exposes_its_memory_is_an_input_without_a_copy(recording, wrap):
    x = np.arange(10, dtype=np.uint32)
    assert copy_words(wrap(x)).ravel().tolist() == list(range(10))
    assert np.shares_memory(words(recording.calls[0][0][0]), x)


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_bytes_are_inputs_of_u8(make):
    assert copy_bytes(make(b"abc")).tobytes() == b"abc"


@pytest.mark.parametrize("value", [DLPack(X, (2, 0)), DeviceArray()])
def test_memory_of_a_device_is_refused_with_a_fix(recording, value):
    """Where no backend has that device."""
    with pytest.raises(vyre.ArgumentTypeError, match=r"x lives in the memory of a device.*Fix: copy x to host memory"):
        copy_words(value)


def test_an_array_that_dlpack_cannot_export_is_refused_with_its_reason():
    class Closed(DLPack):
        def __dlpack__(self, **kwargs):
            raise BufferError("its owner is gone")

    with pytest.raises(vyre.ArgumentTypeError, match=r"its owner is gone.*Fix: pass a NumPy array"):
        copy_words(Closed(X))


# ---- config


def test_a_config_reaches_the_backend_with_sizes_and_grid(recording):
    ramp(6, domain=(6, 4), config=vyre.DispatchConfig(label="ramp", timeout=5))
    _, config, outs = recording.calls[0]
    assert (config.label, config.timeout, config.grid_override) == ("ramp", 5.0, (1, 1, 1))
    assert memoryview(outs[0]).nbytes == 24 * 4
    ramp.start(6, domain=(6, 4)).result()
    _, config, outs = recording.calls[1]
    assert (dict(config.output_elements), outs) == ({"out": 24}, None)


def test_a_config_may_hold_the_grid_and_the_sizes():
    config = vyre.DispatchConfig(grid_override=(1, 1, 1), output_elements={"out": 80})
    out = copy_words(X, config=config)
    assert out.shape == (80,)
    assert np.count_nonzero(out) == 63


def test_a_domain_is_covered_by_workgroups_of_the_size_that_runs(recording):
    image = ramp(20, domain=(20, 4))
    again = ramp(20, domain=(20, 4), config=vyre.DispatchConfig(workgroup_override=(4, 4, 1)))
    assert [config.grid_override for _, config, _ in recording.calls] == [(3, 1, 1), (5, 1, 1)]
    assert np.array_equal(image, again)


def test_a_timeout_ends_a_call():
    @vyre.kernel(workgroup=1)
    def forever(out: Out[u32, 1]):
        while out.size > 0:
            out[0] = 1

    with pytest.raises(vyre.DeadlineExceeded):
        forever(config=vyre.DispatchConfig(timeout=0.05))


ONE = vyre.DispatchConfig(grid_override=(1, 1, 1))
SIZED = vyre.DispatchConfig(output_elements={"out": 3})


@pytest.mark.parametrize(
    "options, message, fix",
    [
        ({"config": ONE, "grid": 1}, "grid and config.grid_override are both given", "domain="),
        ({"config": ONE, "domain": 1}, "domain and config.grid_override are both given", "domain="),
        ({"config": SIZED, "sizes": {"out": 3}}, "in sizes and in config.output_elements", "drop one"),
        ({"config": vyre.DispatchConfig(output_elements={"x": 3})}, "no output x to size", "use one of: out"),
        ({"config": {"timeout": 1}}, "config is a dict", "vyre.DispatchConfig(timeout=1.0)"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, message, fix):
    with pytest.raises(vyre.ArgumentTypeError) as caught:
        copy_words(X, **options)
    assert message in str(caught.value).partition("Fix: ")[0]
    assert fix in str(caught.value).partition("Fix: ")[2]


# ---- start


def test_a_started_call_gives_what_the_call_gives():
    x, y = np.linspace(0, 1, 50, dtype=np.float32), np.ones(50, np.float32)
    pending = saxpy.start(2.0, x, y)
    assert isinstance(pending, vyre.PendingDispatch)
    assert np.array_equal(pending.result(timeout=60), saxpy(2.0, x, y))
    assert pending.is_ready()
    with pytest.raises(vyre.DispatchFailed, match="already taken"):
        pending.result()


def test_inputs_may_change_and_outputs_do_not_before_the_result_is_taken():
    x, bins = np.arange(100, dtype=np.uint32), np.zeros(4, np.uint32)
    pending = histogram.start(x, bins)
    x[:] = 0
    while not pending.is_ready():
        pass
    assert bins.tolist() == [0] * 4
    assert pending.result() is bins
    assert bins.tolist() == [25] * 4


def test_a_started_call_writes_into_the_given_output_when_it_is_taken():
    out = np.zeros(100, np.uint32)
    pending = copy_words.start(X, out=out)
    assert pending.result() is out
    assert np.array_equal(out, X)


def test_a_result_that_cannot_be_written_is_kept_for_another_try():
    out = np.zeros(100, np.uint32)
    pending = copy_words.start(X, out=out)
    out.flags.writeable = False
    for _ in range(2):
        with pytest.raises(vyre.ArgumentValueError, match=r"out receives a result and is read-only.*Fix"):
            pending.result()
    out.flags.writeable = True
    out.resize((10, 10), refcheck=False)
    with pytest.raises(vyre.ArgumentValueError, match=r"out has become .*\(10, 10\).*Fix: give it uint32"):
        pending.result()
    out.resize((100,), refcheck=False)
    assert pending.result() is out
    assert np.array_equal(out, X)
    with pytest.raises(vyre.DispatchFailed, match="already taken"):
        pending.result()


def test_a_started_call_can_be_awaited():
    async def both():
        return await asyncio.gather(copy_words.start(X), negate.start(np.array([True])))

    words, flags = asyncio.run(both())
    assert np.array_equal(words, X)
    assert flags.tolist() == [False]


class Later(Recording):
    """Starts dispatches on a thread that waits for a signal."""

    def __init__(self):
        super().__init__()
        self.go = threading.Event()
        self.pool = ThreadPoolExecutor(1)

    def dispatch_async(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        copies = [bytes(b) for b in inputs]
        return FuturePending(self.pool.submit(lambda: self.go.wait() and self.inner.dispatch(program, copies, config)))


def test_a_wait_that_is_too_short_can_be_repeated():
    backend = Later()
    with registry.isolated(vyre.BackendRegistration(id="recording", open=lambda device=None: backend, kind="host")):
        pending = copy_words.start(X)
        assert not pending.is_ready()
        with pytest.raises(vyre.DeadlineExceeded, match="not ended yet"):
            pending.result(timeout=0.01)
        backend.go.set()
        assert np.array_equal(pending.result(timeout=60), X)
    backend.pool.shutdown()


def test_errors_of_a_started_call_are_raised_where_they_belong():
    @vyre.kernel(workgroup=1)
    def fails(x: InOut[u32]):
        x[0] = 9
        vyre.trap("boom", 3)

    with pytest.raises(vyre.ArgumentTypeError):
        copy_words.start(X.astype(np.int64))
    x = np.zeros(1, np.uint32)
    with pytest.raises(vyre.Trap, match="boom"):
        fails.start(x).result()
    assert x.tolist() == [0]


# ---- explain


def test_explain_says_what_would_run_and_runs_nothing(recording):
    told = copy_words.explain(X, grid=2)
    assert recording.calls == []
    assert (told.backend, told.grid, told.output_bytes) == ("recording", (2, 1, 1), 400)
    assert "backend: recording (the first that is available and runs it)" in str(told)
    assert "on('recording') asks for it" in str(copy_words.on("recording").explain(X))


@vyre.kernel(workgroup=(8, 4))
def plane(x: In[u32], out: Out[u32]):
    out[gid.y * 20 + gid.x] = x[gid.y * 20 + gid.x]


@vyre.kernel(workgroup=(8, 4))
def in_place(x: InOut[u32]):
    x[gid.y * 20 + gid.x] = 1


@pytest.mark.parametrize(
    "kernel, options, grid, why",
    [
        (copy_words, {}, (4, 1, 1), "covers the 200 elements of out, the longest output, in workgroups of 64"),
        (copy_words, {"grid": 3}, (3, 1, 1), "grid= of the call"),
        (copy_words, {"domain": 65}, (2, 1, 1), "covers 65, domain= of the call, in workgroups of 64x1x1"),
        (
            copy_words,
            {"config": vyre.DispatchConfig(grid_override=(5, 1, 1))},
            (5, 1, 1),
            "config.grid_override of the call",
        ),
        (
            copy_words,
            {"config": vyre.DispatchConfig(workgroup_override=(32, 1, 1))},
            (7, 1, 1),
            "covers the 200 elements of out, the longest output, in workgroups of 32",
        ),
        (plane, {}, (3, 3, 1), "covers 20x10, the invocations that write out, in workgroups of 8x4x1"),
        (in_place, {}, (3, 3, 1), "covers 20x10, the invocations that write x, in workgroups of 8x4x1"),
        (plane, {"domain": (9, 2)}, (2, 1, 1), "covers 9x2, domain= of the call, in workgroups of 8x4x1"),
        (copy_words, {"grid": 0}, (0, 1, 1), "grid= of the call; it has no workgroup"),
    ],
)
def test_explain_says_where_a_grid_comes_from(recording, kernel, options, grid, why):
    told = kernel.explain(np.zeros((10, 20), np.uint32), **options)
    assert told.grid == grid
    size = "x".join(map(str, grid))
    (decided,) = (d for d in told.decisions if d.what == "grid")
    assert decided.reason == f"{size}: {why}"
    assert decided.choice == ("given" if options.keys() & {"grid", "domain"} or "grid_override" in why else "inferred")
    assert ("grid_override" in str(told)) == ("grid_override" in why)


def test_explain_says_why_other_backends_were_not_chosen():
    backend = Recording()
    ours = vyre.BackendRegistration(id="recording", open=lambda device=None: backend, kind="host", precedence=50)
    gone = vyre.BackendRegistration(id="gone", open=Recording, unavailable=lambda: "it is out", precedence=10)
    with registry.isolated(ours, gone):
        assert "gone: it is out" in str(copy_words.explain(X))


# ---- plans of calls


def test_equal_calls_share_one_plan_and_plans_stay_bounded(monkeypatch):
    @vyre.kernel(workgroup=64)
    def fresh(x: In[u32], out: Out[u32], *, k: const = 1):
        if gid.x < len(out):
            out[gid.x] = x[gid.x] + k

    for _ in range(3):
        fresh(X)
        fresh(X.copy(), config=vyre.DispatchConfig(label="a"))
    assert len(fresh._plans) == 2
    assert fresh(X, k=2)[0] == 2
    assert len(fresh._plans) == 3
    monkeypatch.setattr(front_call, "MAX_PLANS", 8)
    for n in range(40):
        assert len(fresh(X[:n])) == n
    assert len(fresh._plans) <= 8


def test_a_known_call_still_checks_where_its_result_goes():
    out = np.zeros(100, np.uint32)
    copy_words(X, out=out)
    out.setflags(write=False)
    with pytest.raises(vyre.ArgumentValueError, match="read-only"):
        copy_words(X, out=out)
    with pytest.raises(vyre.ArgumentValueError, match="not contiguous"):
        copy_words(X, out=np.zeros(200, np.uint32)[::2])
    with pytest.raises(vyre.ArgumentTypeError, match="not a size"):
        copy_words(X, grid=1) is not None and copy_words(X, grid=True)


def test_a_known_call_still_looks_how_its_arguments_lie_in_memory():
    both = np.arange(200, dtype=np.uint32)
    out = np.zeros(100, np.uint32)
    for x in (X, both[::2], X, both[::-2], np.asfortranarray(X.reshape(10, 10)).reshape(100)):
        assert copy_words(x, out=out) is out
        assert (out == x).all()
    for matrix in (X.reshape(10, 10), X.reshape(10, 10).T, X.reshape(10, 10)):
        assert (copy_words(matrix) == matrix).all()
    memory = both.copy()
    assert (copy_words(memory[:100], out=memory[50:150]) == both[:100]).all()


def test_positional_and_named_arguments_make_the_same_call_in_any_order():
    out = np.zeros(100, np.uint32)
    for result in (copy_words(X), copy_words(x=X), copy_words(X, out=None), copy_words(out=out, x=X)):
        assert (result == X).all()


def test_a_kernel_on_a_backend_is_one_object_for_each_name():
    assert copy_words.on("reference") is copy_words.on("reference").on("reference")
    assert copy_words.on("reference").backend == "reference"
    assert copy_words.backend is None
    for k in range(1000):
        assert copy_words.on(f"no{k}").backend == f"no{k}"
    assert len(copy_words._named) <= 256


def test_many_threads_call_one_kernel():
    def run(n):
        return copy_words(X[:n]).tolist() == list(range(n))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, [n % 100 for n in range(400)]))


# ---- raw programs on arrays


@vyre.kernel(workgroup=4)
def echo_four(x: In[u32], out: Out[u32, 4]):
    out[gid.x] = x[gid.x]


@vyre.kernel(workgroup=4)
def three_bytes(x: In[u8], out: Out[u8, 3]):
    out[gid.x] = x[gid.x]


FOUR = np.array([0x01020304, 0, 1, 0xFFFFFFFF], np.uint32)


@pytest.mark.row("A-TY-1")
def test_words_go_through_a_raw_program_unchanged():
    for run in (dispatch_array, dispatch_u32):
        (out,) = run(REFERENCE, echo_four.program, [FOUR])
        assert out.dtype == np.uint32
        assert np.array_equal(out, FOUR)
    (floats,) = dispatch_f32(REFERENCE, echo_four.program, [np.array([1, 2, 3, 4], np.float32).view(np.uint32)])
    assert floats.tolist() == [1, 2, 3, 4]
    (halves,) = dispatch_array(REFERENCE, echo_four.program, [FOUR], np.uint16)
    assert halves[:2].tolist() == [0x0304, 0x0102]
    (bytes_,) = dispatch_array(REFERENCE, three_bytes.program, [b"abc"])
    assert (bytes_.dtype, bytes_.tobytes()) == (np.uint8, b"abc")


@pytest.mark.row("A-TY-2")
def test_an_output_that_is_no_whole_number_of_elements_is_refused():
    with pytest.raises(vyre.InvalidProgram, match=r"output 0 has 3 bytes.*whole number of 4-byte.*Fix: read it as"):
        dispatch_u32(REFERENCE, three_bytes.program, [b"abc"])
    with pytest.raises(vyre.InvalidProgram, match="whole number of 0-byte"):
        dispatch_array(REFERENCE, three_bytes.program, [b"abc"], np.dtype("V0"))


@pytest.mark.row("A-TY-3")
def test_given_outputs_are_filled_and_returned():
    out, flags = np.zeros((2, 2), np.uint32), np.zeros(2, np.bool_)
    for k in range(2):
        assert dispatch_u32(REFERENCE, echo_four.program, [FOUR + k], out=[out])[0] is out
        assert np.array_equal(out.ravel(), FOUR + k)
    program, config = negate.program, vyre.DispatchConfig(output_elements={"out": 2})
    assert dispatch_array(REFERENCE, program, [np.array([True, False])], None, config, out=[flags])[0] is flags
    assert flags.tolist() == [False, True]
    both = FOUR.copy()
    assert dispatch_array(REFERENCE, echo_four.program, [both], out=[both])[0] is both
    assert np.array_equal(both, FOUR)
    floats = np.zeros(4, np.float32)
    assert dispatch_f32(REFERENCE, echo_four.program, [FOUR], out=[floats])[0] is floats
    assert np.array_equal(floats.view(np.uint32), FOUR)
    with pytest.raises(
        vyre.ArgumentTypeError, match=r"out\[0\] holds float32 and its output is read as uint32.*Fix: pass"
    ):
        dispatch_array(REFERENCE, echo_four.program, [FOUR], out=[floats])
    with pytest.raises(
        vyre.ArgumentTypeError, match=r"out\[0\] receives a result and is a list.*Fix: pass a NumPy array"
    ):
        dispatch_u32(REFERENCE, echo_four.program, [FOUR], out=[[0] * 4])


@pytest.mark.row("A-TY-4")
def test_strided_and_foreign_endian_arrays_give_the_same_answer():
    for other in (np.repeat(FOUR, 2)[::2], FOUR.astype(">u4"), np.asfortranarray(FOUR.reshape(2, 2))):
        assert np.array_equal(dispatch_array(REFERENCE, echo_four.program, [other])[0], FOUR)


def test_arrays_of_other_elements_are_refused():
    for dtype in (object, np.float32, np.int32, np.uint8):
        with pytest.raises(
            vyre.ArgumentTypeError, match=r"arrays\[0\] holds .* declares u32.*Fix: arrays\[0\]\.astype"
        ):
            dispatch_array(REFERENCE, echo_four.program, [np.zeros(4, dtype)])
    for data in (FOUR.tobytes(), bytearray(FOUR.tobytes()), memoryview(FOUR.tobytes())):  # which have no type
        assert np.array_equal(dispatch_array(REFERENCE, echo_four.program, [data])[0], FOUR)
    with pytest.raises(vyre.VyreError, match="input"):
        dispatch_array(REFERENCE, echo_four.program, [FOUR, FOUR])
    with pytest.raises(vyre.ArgumentTypeError, match=r"a str is not a type of elements.*Fix: pass np\.float32"):
        dispatch_array(REFERENCE, echo_four.program, [FOUR], "no such")
    with pytest.raises(vyre.ArgumentTypeError, match=r"arrays\[0\] is a list.*Fix: np\.array"):
        dispatch_array(REFERENCE, echo_four.program, [[1, 2]])


def test_arrays_go_to_what_dispatches():
    for other in (None, "cpu", echo_four):
        with pytest.raises(vyre.ArgumentTypeError, match=r"has no dispatch method.*Fix: pass a backend"):
            dispatch_u32(other, echo_four.program, [FOUR])


def test_a_backend_class_may_have_the_array_methods(recording):
    class Typed(TypedDispatchExt, Recording, contract=1):
        id = "typed"

    backend = Typed.__new__(Typed)
    backend.inner, backend.calls = REFERENCE, []
    assert np.array_equal(backend.dispatch_u32(echo_four.program, [FOUR])[0], FOUR)
    assert np.array_equal(backend.dispatch_f32(echo_four.program, [FOUR])[0].view(np.uint32), FOUR)
    assert len(backend.calls) == 2


# ---- backends that end, and choices that change


class Recovering(Recording):
    """Has state that a recovery replaces."""

    def try_recover(self):
        self.calls.clear()


def opening(kind, opened, **fields):
    def open_one(device=None):
        opened.append(kind())
        return opened[-1]

    return vyre.BackendRegistration(**({"id": "recording", "open": open_one, "kind": "host"} | fields))


@pytest.mark.parametrize("end", ["try_recover", "shutdown"])
@pytest.mark.parametrize("name", [None, "recording"])
def test_a_kernel_outlives_the_state_of_its_backend(name, end):
    opened = []
    with registry.isolated(opening(Recovering, opened)):
        kernel = copy_words if name is None else copy_words.on(name)
        kernel(X)
        before = len(opened)
        getattr(opened[0], end)()
        for _ in range(2):
            assert np.array_equal(kernel(X), X)
        assert len(opened) == before + 1  # the third call has a pipeline again


def test_shutting_down_a_shared_backend_ends_that_instance_alone():
    first = vyre.compile(copy_words.program, backend="reference")
    with first.backend:
        pass
    again = vyre.compile(copy_words.program, backend="reference")
    assert again.backend is not first.backend
    assert again.backend is vyre.compile(copy_words.program, backend="reference").backend
    assert np.array_equal(copy_words.on("reference")(X), X)
    with pytest.raises(vyre.DeviceLost):
        first.dispatch([X])


def test_opening_a_backend_may_compile():
    def open_outer(device=None):
        assert np.array_equal(copy_words.on("recording")(X), X)
        backend = Recording()
        backend.id = "outer"
        return backend

    outer = vyre.BackendRegistration(id="outer", open=open_outer, kind="host")
    done = threading.Event()

    def call():
        assert np.array_equal(copy_words.on("outer")(X), X)
        done.set()

    with registry.isolated(opening(Recording, []), outer):
        threading.Thread(target=call, daemon=True).start()
        assert done.wait(20)


def test_a_backend_of_a_registry_that_changed_while_it_opened_is_not_kept():
    opened = []

    def open_and_refresh(device=None):
        registry.refresh()
        opened.append(Recording())
        return opened[-1]

    with registry.isolated(opening(Recording, [], open=open_and_refresh)):
        vyre.compile(copy_words.program, backend="recording")
        vyre.compile(copy_words.program, backend="recording")
    assert len(opened) == 2


def test_strictness_is_part_of_the_choice(monkeypatch):
    monkeypatch.setenv("VYRE_BACKEND", "nowhere,recording")
    monkeypatch.delenv("VYRE_STRICT", raising=False)
    with registry.isolated(opening(Recording, [])):
        with pytest.warns(vyre.driver.selection.registry.FallbackWarning) as told:
            copy_words(X)
        assert told[0].filename == __file__  # the caller's line
        monkeypatch.setenv("VYRE_STRICT", "1")
        with pytest.raises(vyre.BackendUnavailable, match="nowhere"):
            copy_words(X)


@pytest.mark.parametrize("options", [{"domain": 0}, {"grid": (0, 1, 1)}, {"domain": (5, 0)}])
def test_explain_says_that_an_empty_grid_launches_nothing(recording, options):
    told = copy_words.explain(X, **options)
    assert 0 in told.grid
    assert told.invocations == 0
    assert "launch: none (nothing is launched" in str(told)
    assert copy_words.explain(X[:0]).output_bytes == 0
    assert recording.calls == []


def test_explain_says_that_the_environment_asked(monkeypatch, recording):
    monkeypatch.setenv("VYRE_BACKEND", "recording")
    assert "VYRE_BACKEND=recording asks for it" in str(copy_words.explain(X))


def test_specializations_stay_bounded(monkeypatch):
    @vyre.kernel(workgroup=4)
    def add(x: In[u32], out: Out[u32], *, k: const = 1):
        if gid.x < len(out):
            out[gid.x] = x[gid.x] + k

    monkeypatch.setattr("vyre.front.kernel.MAX_PROGRAMS", 4)
    for k in range(20):
        assert add(X[:2], k=k).tolist() == [k, k + 1]
        assert len(add._programs) <= 4
    assert add.specialize(k=19) is add.specialize(k=19)
    assert add(X[:2], k=0).tolist() == [0, 1]
