"""The opencl backend on a real driver: which device, in which mode, and how its dispatches end."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.contract.programs import ADD, COUNT, LONG, NEIGHBOUR, TRAP, unwords, words

from vyre.backends.opencl import REGISTRATION, exactness
from vyre.backends.opencl import backend as backends
from vyre.backends.opencl import devices as platforms
from vyre.backends.opencl.build import build, kernel_text
from vyre.backends.opencl.devices import probe_key, unavailable
from vyre.backends.opencl.emit.text import Mode
from vyre.driver.contract.values import DispatchConfig, ResidentReadRange
from vyre.driver.guard import compile as pipelines
from vyre.driver.guard.backend import guarded
from vyre.driver.selection import registry
from vyre.errors import (
    BackendUnavailable,
    DeadlineExceeded,
    DeviceLost,
    DeviceOutOfMemory,
    DispatchFailed,
    KernelCompileFailed,
    Trap,
    UnsupportedFeature,
)
from vyre.runtime import float_probe as canon
from vyre.runtime.device import Artifact

from ...support.busy_devices import under_way
from ...support.cpu_kernels import ROUNDS, arange, scaled, scaled_wide, stirred
from ...unit.runtime.test_exits import HAS_WAY

ROOT = Path(__file__).parents[3]
WHY = unavailable()
if WHY is not None and "opencl" in os.environ.get("VYRE_REQUIRE_BACKENDS", "").split(","):
    pytest.fail(f"opencl is required and not available: {WHY}", pytrace=False)
needs_driver = pytest.mark.skipif(WHY is not None, reason=f"opencl: {WHY}")


@pytest.fixture(scope="module")
def backend():
    if WHY is not None:
        pytest.skip(f"opencl: {WHY}")
    made = REGISTRATION.open()
    yield made
    made.shutdown()


@pytest.fixture
def on_processor(backend):
    """For what other drivers may rightly do otherwise."""
    if not backend.found.emulated:
        pytest.skip(f"{backend.device} is no processor")


@pytest.fixture
def own(backend):
    made = REGISTRATION.open()
    yield made
    made.shutdown()


def run_python(script, *options, **environ):
    return subprocess.run(
        [sys.executable, *options, "-c", script],
        cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


# ---- which devices there are ----------------------------------------------------------------------------------------


def test_importing_the_package_loads_no_binding():
    script = (
        "import sys, vyre.backends.opencl as o; o.REGISTRATION; assert not {'pyopencl', 'numpy'} & set(sys.modules)"
    )
    done = run_python(script)
    assert done.returncode == 0, done.stderr


def test_unknown_names_of_the_package_are_unknown():
    import vyre.backends.opencl as package

    assert package.OpenCLBackend.id == "opencl"
    with pytest.raises(AttributeError, match="has no attribute 'CudaBackend'"):
        package.CudaBackend  # noqa: B018


def test_a_binding_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(platforms, "find_spec", lambda name: None)
    assert unavailable() == "pyopencl is not installed: pip install 'vyre[opencl]'"


def test_a_binding_that_cannot_be_loaded_is_named(monkeypatch):
    def broken():
        raise ImportError("libOpenCL.so.1: cannot open shared object file")

    monkeypatch.setattr(platforms, "library", broken)
    assert "pyopencl cannot be loaded (libOpenCL.so.1: cannot open" in unavailable()


ASK = """
from vyre.backends.opencl import REGISTRATION
from vyre.driver.selection import registry
print(REGISTRATION.unavailable())
with registry.isolated(REGISTRATION):
    print([d.name for d in registry.devices("opencl")])
    print([b.id for b in registry.registered_backends()])
    try:
        print(registry.acquire("opencl").id)
    except Exception as e:
        print(type(e).__name__, e)
"""


@needs_driver
@pytest.mark.parametrize(
    "files, text",
    [
        ({}, "no OpenCL driver is installed: install"),
        ({"gone.icd": "libgone.so.1\n"}, "no OpenCL driver can be loaded (gone.icd names libgone.so.1): reinstall"),
        ({"odd.icd": ""}, "no OpenCL driver can be loaded (odd.icd names nothing): reinstall"),
        ({"data.icd": "{folder}/data.icd\n"}, "no OpenCL driver can be loaded (data.icd names {folder}/data.icd)"),
        ({"rubbish.icd": "\x01\x02\x00"}, "no OpenCL driver can be loaded (rubbish.icd names what is not text): rein"),
    ],
    ids=["none", "gone", "empty", "no library", "rubbish"],
)
def test_a_machine_without_a_driver_says_so_in_a_sentence(tmp_path, files, text):
    for name, content in files.items():
        (tmp_path / name).write_text(content.format(folder=tmp_path))
    done = run_python(ASK, OCL_ICD_VENDORS=str(tmp_path), VYRE_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    why, devices, listed, opened = done.stdout.splitlines()
    assert why.startswith(text.format(folder=tmp_path))
    assert (devices, listed) == ("[]", "['opencl']")
    assert opened.startswith("BackendUnavailable backend opencl is not available: no OpenCL driver")


@needs_driver
def test_a_broken_driver_beside_a_good_one_does_no_harm(tmp_path):
    (tmp_path / "broken.icd").write_text("libgone.so.1\n")
    for path in platforms.icd_files():
        (tmp_path / Path(path).name).write_text(Path(path).read_text())
    done = run_python(ASK, OCL_ICD_VENDORS=str(tmp_path))
    why, _, _, opened = done.stdout.splitlines()
    assert (why, opened) == ("None", "opencl"), done.stderr


@needs_driver
def test_kernels_run_where_the_user_has_no_folder_for_caches(tmp_path):
    (tmp_path / "file").touch()
    script = """
from tests.contract.programs import COUNT, words
from vyre.backends.opencl import OpenCLBackend
print(OpenCLBackend().dispatch(COUNT, [words(1)]) == [words(2)])
"""
    folders = {"XDG_CACHE_HOME": "file", "POCL_CACHE_DIR": "pocl", "VYRE_CACHE_DIR": "vyre"}
    done = run_python(script, **{name: str(tmp_path / folder) for name, folder in folders.items()})
    assert (done.stdout, done.stderr) == ("True\n", "")


@needs_driver
def test_a_driver_whose_devices_are_hidden_is_named():
    done = run_python(ASK, POCL_DEVICES="none")
    if done.stdout.startswith("None"):
        pytest.skip("this driver's devices cannot be hidden")
    assert done.stdout.startswith("the OpenCL platforms have no device (") or done.stdout.startswith("no OpenCL driver")


class FakePlatform:
    def __init__(self, name, devices):
        self.name, self.version, self.vendor = name, f"OpenCL 3.0 {name} 1.0  built with things", name
        self._devices = devices
        for d in devices:
            d.platform = self

    def get_devices(self):
        return self._devices


class FakeDevice:
    def __init__(self, name, kind):
        self.name, self.type = name, kind


@needs_driver
def test_two_platforms_are_listed_with_their_versions_gpus_first(monkeypatch):
    kinds = platforms.library().device_type
    first = FakePlatform("Slow", [FakeDevice("cpu", kinds.CPU), FakeDevice("card ", kinds.GPU)])
    second = FakePlatform("Fast", [FakeDevice("card", kinds.GPU), FakeDevice("dsp", kinds.ACCELERATOR)])
    monkeypatch.setattr(platforms.library(), "get_platforms", lambda: [first, second])
    found = REGISTRATION.devices()
    assert [(d.index, d.name, d.emulated) for d in found] == [
        (0, "card / OpenCL 3.0 Slow 1.0", False),
        (1, "card / OpenCL 3.0 Fast 1.0", False),
        (2, "dsp / OpenCL 3.0 Fast 1.0", False),
        (3, "cpu / OpenCL 3.0 Slow 1.0", True),
    ]
    assert unavailable() is None
    assert backends.chosen(1).device is second.get_devices()[0]
    assert backends.chosen(None).device is first.get_devices()[1]
    for wrong in (4, -1, "card", True):
        with pytest.raises(BackendUnavailable, match=r"no OpenCL device .*Fix: use one of: 0 \(card / "):
            backends.chosen(wrong)
    with registry.isolated(REGISTRATION), pytest.raises(BackendUnavailable, match="'card' fits 2 devices"):
        registry.acquire("opencl:card")


@needs_driver
@pytest.mark.parametrize("code", [-1, -1001, -32])
def test_a_platform_that_fails_has_no_devices(monkeypatch, code):
    cl = platforms.library()

    class Broken(FakePlatform):
        def get_devices(self):
            raise cl.Error(FakeRecord(code))

    monkeypatch.setattr(cl, "get_platforms", lambda: [Broken("Broken", []), FakePlatform("Empty", [])])
    assert REGISTRATION.devices() == ()
    assert unavailable().startswith("the OpenCL platforms have no device (Broken, Empty): connect one")
    with pytest.raises(BackendUnavailable, match=r"no OpenCL device 0.*Fix: install a driver"):
        backends.chosen(None)


class FakeRecord:
    """What the binding makes an error of."""

    def __init__(self, code):
        self._code = code

    def code(self):
        return self._code

    def routine(self):
        return "clSomething"

    def what(self):
        return "it did not work"

    def is_out_of_memory(self):
        return False


@needs_driver
def test_a_loader_that_fails_is_told(monkeypatch):
    cl = platforms.library()

    def fails():
        raise cl.Error(FakeRecord(-6))

    monkeypatch.setattr(cl, "get_platforms", fails)
    assert unavailable().startswith("the OpenCL loader fails (")


def test_what_was_learned_is_forgotten_when_drivers_change(tmp_path, monkeypatch):
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    before = probe_key()
    assert probe_key() == before
    (tmp_path / "new.icd").write_text("libnew.so")
    after = probe_key()
    assert after != before
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path / "new.icd"))
    assert platforms.icd_files() == [str(tmp_path / "new.icd")]
    assert probe_key() != after


# ---- how it computes ------------------------------------------------------------------------------------------------


def test_the_capability_names_what_code_depends_on(backend):
    facts, device = backend.capability, backend.found.device
    assert facts.exactness["f32"] == "canonical"
    assert facts.extras["driver"] in device.driver_version
    assert facts.max_storage_buffer_bytes == device.max_mem_alloc_size
    assert facts.max_invocations_per_workgroup == device.max_work_group_size
    assert {"u64", "i64", "f16", "bf16"} <= facts.types
    assert ("f64" in facts.types) == ("cl_khr_fp64" in device.extensions)
    assert (facts.f16, facts.bf16, facts.subgroup_ops) == (False, False, False)
    profile = backend.device_profile()
    assert profile.device == backend.device
    assert profile.supports_device_timestamps


@pytest.mark.parametrize("mode", [Mode.NATIVE, Mode.SOFT])
@pytest.mark.parametrize("soft", [False, True])
def test_this_driver_passes_the_probe_in_every_mode(on_processor, own, mode, soft):
    result = exactness.run_probe(own.session().device, build(canon.probe_program(), mode, soft=soft))
    assert canon.differing(result) == ()


@pytest.fixture
def probe_dir(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("VYRE_CACHE_DIR", str(folder))
    return folder


def answers(*wrong):
    """A probe in whose first runs a step is wrong, or which fails; then all is well."""
    asked, truth = [], exactness.run_probe

    def run(device, built):
        asked.append(built)
        right = truth(device, built)
        if len(asked) > len(wrong):
            return right
        if wrong[len(asked) - 1] is not None:
            raise wrong[len(asked) - 1]
        return bytes([right[0] ^ 1]) + right[1:]

    return run, asked


def test_the_first_canonical_mode_is_taken_and_remembered(on_processor, backend, probe_dir):
    device = backend.found.device
    run, asked = answers(None)
    found = exactness.exactness_of(device, run)
    assert (found.mode, found.float64, found.why_not) == (Mode.SOFT, True, None)
    assert len(asked) == 3
    assert exactness.exactness_of(device, run) == found
    assert len(asked) == 3


def test_a_device_that_is_never_canonical_is_not_used(on_processor, probe_dir, monkeypatch):
    run, asked = answers(KernelCompileFailed("no such option", fix="none"), None)
    monkeypatch.setattr(exactness, "run_probe", run)
    for _ in range(2):
        with pytest.raises(
            BackendUnavailable, match=r"not the canonical one \(native: no such option; soft: results diff"
        ):
            REGISTRATION.open()
    assert len(asked) == 2


@pytest.mark.parametrize("error", [DeviceOutOfMemory, DeviceLost])
def test_a_device_that_was_only_busy_is_asked_again(on_processor, backend, probe_dir, error):
    run, asked = answers(error("for now", fix="wait"))
    with pytest.raises(error, match="for now"):
        exactness.exactness_of(backend.found.device, run)
    assert exactness.exactness_of(backend.found.device).mode is Mode.NATIVE
    assert len(asked) == 1


def test_without_exact_f64_there_is_none(on_processor, backend, probe_dir):
    run, _ = answers()
    calls = []

    def second_wrong(device, built):
        calls.append(built)
        right = run(device, built)
        return right if len(calls) == 1 else bytes([right[0] ^ 1]) + right[1:]

    found = exactness.exactness_of(backend.found.device, second_wrong)
    assert (found.mode, found.float64) == (Mode.NATIVE, False)
    assert "f64" not in backends.capability(backend.found, found).types


def test_an_nvidia_device_is_first_asked_in_its_own_assembler():
    class Device:
        platform = FakePlatform("NVIDIA Corporation", [])

    assert exactness.candidates(Device()) == (Mode.PTX, Mode.NATIVE, Mode.SOFT)
    _, text, _ = kernel_text(scaled.program, Mode.PTX)
    assert "mul.rn.ftz.f32" in text
    assert build(LONG, Mode.PTX, poll=True).facts.extra["clock"]


TINY = np.array([1e-40, -3e-42], np.float32)


def test_f32_flushes_and_f64_underflows_gradually(backend):
    assert bytes(backend.dispatch(scaled.program, [TINY])[0]) == np.array([0.0, -0.0], np.float32).tobytes()
    x = np.array([5e-324, 3e-310, 2.3e-308], np.float64)
    assert bytes(backend.dispatch(scaled_wide.program, [x])[0]) == (x * 0.5).tobytes()
    assert (TINY * np.float32(0.5) != 0).all()  # the floats of this process stay as they are


def test_the_kernel_can_be_read(backend):
    native = pipelines.compile(backend, ADD).native
    assert "__kernel" in native.source
    assert "void vyre_kernel" in native.source


# ---- deadlines and signals ------------------------------------------------------------------------------------------


def test_a_program_that_never_ends_ends_at_its_deadline(backend):
    target = bytearray(b"\xa5" * 4)
    guard = guarded(backend)
    pipelines.compile(guard, LONG, DispatchConfig(timeout=60))
    for _ in range(2):
        start = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"in time.*Fix: "):
            guard.dispatch(LONG, [words(0)], DispatchConfig(timeout=0.2), out=[target])
        assert time.monotonic() - start >= 0.2
        assert guard.dispatch(COUNT, [words(1)]) == [words(2)]
    assert not backend.device_lost()
    assert target == b"\xa5" * 4


def test_a_long_grid_ends_at_its_deadline(backend):
    """Each workgroup takes milliseconds, and there are many: minutes of work."""
    x, config = np.zeros(1 << 22, np.uint32), DispatchConfig(timeout=0.2)
    backend.dispatch(stirred.program, [x[:64], words(1)], DispatchConfig(timeout=30))  # which compiles it
    for dispatch in (backend.dispatch, lambda *a: backend.dispatch_async(*a).result()):
        with pytest.raises(DeadlineExceeded):
            dispatch(stirred.program, [x, words(200_000)], config)
        assert backend.dispatch(COUNT, [words(1)]) == [words(2)]


def test_resident_work_has_a_deadline_too(backend):
    n = backend.allocate_resident(4)
    pipeline = pipelines.compile(backend, LONG, DispatchConfig(timeout=60))
    with pytest.raises(DeadlineExceeded):
        pipeline.dispatch_resident([n], DispatchConfig(timeout=0.1))
    backend.upload_resident([(n, 0, words(3))])
    assert backend.download_resident([ResidentReadRange(n, 0, 4)]) == [words(3)]
    backend.free_resident(n)


def test_work_that_cannot_be_stopped_is_left_behind_and_the_device_recovered(own):
    """As on a device whose kernels see neither a word nor a clock."""
    device = own.session().device
    device.polls = False
    guard = guarded(own)
    _, slow = calibrated(own, 1.5)
    pipeline = pipelines.compile(guard, stirred.program)
    pipelines.compile(guard, stirred.program, DispatchConfig(timeout=60))
    handle = guard.allocate_resident(4)
    with pytest.raises(DeadlineExceeded):
        pipeline.dispatch(slow, DispatchConfig(timeout=0.1))
    assert guard.device_lost()
    assert guard.dispatch(COUNT, [words(1)]) == [words(2)]  # on a new device
    assert own.session().device is not device
    with pytest.raises(DeviceLost):
        pipeline.dispatch(slow)
    with pytest.raises(DeviceLost, match="before it was recovered"):
        guard.free_resident(handle)


CTRL_C = """
import os, signal, threading
from tests.contract.programs import COUNT, words
from tests.support.cpu_kernels import arange
from tests.unit.runtime.test_exits import endless
from vyre.backends.opencl import OpenCLBackend
from vyre.driver.guard import compile as pipeline
from vyre.driver.guard.backend import guarded
from vyre.errors import DeviceLost
guard = guarded(OpenCLBackend())
count, compiled = pipeline.compile(guard, COUNT), pipeline.compile(guard, endless.program)
count.dispatch([words(1)])
threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
try:
    compiled.dispatch([arange(64), words(0xFFFFFFFF)])
except KeyboardInterrupt:
    print("interrupted", flush=True)
try:
    count.dispatch([words(1)])
except DeviceLost as e:
    print(e, flush=True)
"""


@needs_driver
@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise")
def test_ctrl_c_ends_hours_of_work_and_the_process_can_end():
    done = run_python(CTRL_C)
    assert done.returncode == 0, done.stderr
    word, then = done.stdout.splitlines()
    assert word == "interrupted"
    assert "still runs on the device" in then
    assert "Fix: wait until it ends, or call try_recover()" in then


AT_EXIT = """
import atexit, sys, time
from tests.unit.runtime.test_exits import endless, register_with_c
register_with_c(b"what a driver does at exit")
atexit.register(lambda: print("releases", sys.getrefcount(memory) == before))
from tests.contract.programs import COUNT, words
from tests.support.cpu_kernels import arange
from vyre.backends.opencl import OpenCLBackend
from vyre.driver.guard import compile as pipeline
backend = OpenCLBackend()
count = pipeline.compile(backend, COUNT)
count.dispatch([words(1)])
memory = backend.session().device.allocate(4)
pending = [backend.dispatch_async(endless.program, [arange(64), words(0xFFFFFFFF)]) for _ in range({started})]
if {left}:
    backend.try_recover()
before = sys.getrefcount(memory)
print("left", time.monotonic())
sys.exit(7)
"""


@needs_driver
@pytest.mark.parametrize("started, left", [(0, False), (0, True), (1, False), (2, False), (1, True)])
def test_a_process_that_ends_waits_for_no_device(started, left):
    """While one works, nothing that drivers left to be done at exit is done, and nothing is released."""
    done = run_python(AT_EXIT.format(started=started, left=left))
    ended = time.monotonic()
    assert done.returncode == 7, done.stderr
    at, releases, *driver = done.stdout.splitlines()
    assert releases == f"releases {started == 0}"
    assert driver == (["what a driver does at exit"] if HAS_WAY and not started else [])
    assert ended - float(at.split()[1]) < 10


# ---- asynchronous dispatch ------------------------------------------------------------------------------------------


def calibrated(backend, seconds):
    """Inputs of a dispatch of one workgroup that takes at least so long."""
    x, rounds = arange(64), 1 << 16
    pipeline = pipelines.compile(backend, stirred.program)
    while True:
        start = time.perf_counter()
        pipeline.dispatch([x, words(rounds)])
        took = time.perf_counter() - start
        if took >= seconds:
            return pipeline, [x, words(rounds)]
        rounds = min(int(rounds * max(1.3 * seconds / took, 2)), 0xFFFFFFFF)


def test_a_started_dispatch_goes_on_by_itself(backend):
    pipeline = pipelines.compile(backend, stirred.program)

    def start(rounds):
        inputs = [arange(64), words(rounds)]
        return pipeline.dispatch_async(inputs), inputs

    pending, inputs = under_way(start, ROUNDS)
    inputs[0][:] = 0
    assert pending.result() == pipeline.dispatch([arange(64), inputs[1]])
    assert pending.is_ready()


def test_started_dispatches_are_under_way_together(backend):
    pipeline = pipelines.compile(backend, stirred.program)

    def start(rounds):
        inputs = [arange(64), words(rounds)]
        return pipeline.dispatch_async(inputs), pipeline.dispatch_async([arange(64), words(1)]), inputs

    first, second, inputs = under_way(start, ROUNDS)
    assert second.result() == pipeline.dispatch([arange(64), words(1)])
    assert first.result() == pipeline.dispatch(inputs)


def test_a_dropped_dispatch_holds_nobody_up_and_its_memory_comes_back(own):
    pipeline = pipelines.compile(own, stirred.program)

    def comes_back_later(rounds):
        pipeline.dispatch_async([arange(64), words(rounds)])  # and nobody keeps it
        idle = own.metrics()["pooled_idle_bytes"]
        own.flush()
        pipeline.dispatch([arange(64), words(1)])
        return own.metrics()["pooled_idle_bytes"] > idle

    assert any(comes_back_later(rounds) for rounds in ROUNDS)


def test_what_dropped_dispatches_read_and_wrote_does_not_pile_up(own):
    pipeline, x = pipelines.compile(own, ADD), arange(1000)
    device = own.session().device
    most = 0
    for _ in range(400):
        pipeline.dispatch_async([x, x])
        most = max(most, len(device._held))
        time.sleep(0.0005)  # on a busy machine the device falls behind
    assert most < 300  # of 400


@pytest.mark.parametrize("submitted", [False, True])
def test_what_a_dropped_copy_reads_stays_until_the_copy_has_ended(own, submitted):
    device = own.session().device
    batch = device.batch()
    batch.lend(device.allocate(16), 0, memoryview(bytes(16)))
    if submitted:
        batch.submit()
    assert not device._held
    del batch
    assert len(device._held) == 1  # it would wait for the copy if it were dropped
    device.batch().submit().wait(None)  # of a queue in order
    device.batch()
    assert not device._held


def test_work_that_was_waited_for_leaves_nothing_with_its_device(own):
    pipeline, x = pipelines.compile(own, ADD), arange(100)
    pipeline.dispatch([x, x])
    pending = pipeline.dispatch_async([x, x])
    pending.result()
    del pending
    assert not own.session().device._held


def test_a_queue_that_cannot_be_opened_is_asked_for_again(own, monkeypatch):
    device = own.session().device
    real = device.cl.CommandQueue

    def full(*_):
        raise device.cl.Error(FakeRecord(-6))

    monkeypatch.setattr(device.cl, "CommandQueue", full)
    for _ in range(2):
        with pytest.raises(DeviceOutOfMemory, match=r"no memory while opening a queue.*Fix: "):
            own.dispatch_async(COUNT, [words(1)])
    monkeypatch.setattr(device.cl, "CommandQueue", real)
    for _ in range(6):
        assert own.dispatch_async(COUNT, [words(1)]).result() == [words(2)]


def test_a_reading_that_is_interrupted_writes_nothing_later(own, monkeypatch):
    x, target = arange(1 << 24), np.zeros(1 << 24, np.uint32)
    pipeline = pipelines.compile(own, ADD)
    pipeline.dispatch([x, x])
    device = own.session().device
    real, waits = device.wait, []

    def wait(event, seconds):
        waits.append(event)
        if len(waits) == 2:  # for the work, for the reading
            raise KeyboardInterrupt
        return real(event, seconds)

    monkeypatch.setattr(device, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        pipeline.dispatch([x, x], out=[target])
    assert device._has_ended(waits[-1])


# ---- loss -----------------------------------------------------------------------------------------------------------


def broken(device):
    """The queue belongs to another context from now on, so that whatever is enqueued fails in the driver."""
    cl = device.cl
    device.queues = [cl.CommandQueue(cl.Context([device.target]))] * 8


def test_a_lost_device_is_told_and_recovered_and_the_old_pipelines_refuse(own):
    guard = guarded(own)
    pipeline, handle = pipelines.compile(guard, COUNT), guard.allocate_resident(4)
    assert pipeline.dispatch([words(1)]) == [words(2)]
    target = bytearray(b"\xa5" * 4)
    broken(own.session().device)
    for use in (
        lambda: pipeline.dispatch([words(1)], out=[target]),
        lambda: pipeline.dispatch([words(1)]),
        lambda: guard.dispatch(ADD, [words(1), words(2)]),
        lambda: guard.allocate_resident(1 << 60),
        lambda: guard.upload_resident([(handle, 0, words(1))]),
    ):
        with pytest.raises(DeviceLost, match="Fix: "):
            use()
        assert guard.device_lost()
    assert target == b"\xa5" * 4
    guard.try_recover()
    assert not guard.device_lost()
    for use in (lambda: pipeline.dispatch([words(1)]), lambda: pipeline.dispatch_resident([handle])):
        with pytest.raises(DeviceLost, match="Fix: "):
            use()
    assert guard.dispatch(COUNT, [words(1)]) == [words(2)]
    assert pipelines.compile(guard, COUNT).dispatch([words(1)]) == [words(2)]


def test_a_dispatch_that_runs_while_the_device_is_lost_is_told(own):
    guard = guarded(own)
    pipeline, inputs = calibrated(guard, 0.5)
    pending = pipeline.dispatch_async(inputs)
    broken(own.session().device)
    with pytest.raises(DeviceLost):
        guard.dispatch(COUNT, [words(1)])
    with pytest.raises(DeviceLost):
        pending.result()
    guard.try_recover()
    assert guard.dispatch(COUNT, [words(1)]) == [words(2)]


def test_statuses_of_the_driver_become_our_errors(own):
    device = own.session().device
    for code, kind, text in (
        (-4, DeviceOutOfMemory, r"no memory while testing .*Fix: use smaller buffers"),
        (-6, DeviceOutOfMemory, "no memory while testing"),
        (-5, DispatchFailed, r"the driver failed while testing .*Fix: read what the driver says"),
        (-61, DispatchFailed, r"a buffer is too large .*Fix: use buffers of at most"),
        (-30, DispatchFailed, "the driver failed"),
        (-36, DeviceLost, r"the device was lost while testing .*Fix: call try_recover"),
        (-4, DeviceLost, "lost"),  # from now on, everything is the loss
    ):
        error = device.failed(code, "testing", "as it says")
        assert type(error) is kind
        with pytest.raises(kind, match=text):
            raise error
    assert device.lost()
    assert own.device_lost()


def test_out_of_resources_is_loss_when_nothing_works_any_more(own, monkeypatch):
    device = own.session().device
    cl = device.cl

    class Dead:
        def finish(self):
            raise cl.Error(FakeRecord(-36))

    device.queues = [Dead()]
    assert type(device.failed(-5, "testing")) is DeviceLost


def test_more_memory_than_there_is_is_refused_and_the_backend_goes_on(own):
    with pytest.raises((DeviceOutOfMemory, DispatchFailed)):
        own.allocate_resident(own.session().device.memory_bytes * 8 // 10 + own.session().device.most_bytes)
    assert own.dispatch(COUNT, [words(1)]) == [words(2)]
    assert own.metrics()["resident_bytes"] == 0


def test_a_kernel_that_does_not_compile_brings_the_log(own):
    built = build(COUNT, Mode.NATIVE)
    with pytest.raises(KernelCompileFailed, match=r"rejected the kernel .*Fix: read the log") as e:
        own.session().device.load(Artifact("__kernel void vyre_kernel( { nonsense", b"", built.facts))
    assert "error" in e.value.context["log"].lower()
    with pytest.raises(KernelCompileFailed):
        own.load_native(COUNT, DispatchConfig(), Artifact("", b"not a binary", built.facts).to_bytes())
    assert own.dispatch(COUNT, [words(1)]) == [words(2)]


def test_a_kernel_with_more_workgroup_memory_than_there_is_is_refused_with_the_limit(own, monkeypatch):
    device = own.session().device

    class Small:
        """The same device with little memory for workgroups."""

        local_mem_size = 8

        def __getattr__(self, name):
            return getattr(target, name)

    target, device.target = device.target, Small()
    monkeypatch.setattr(device.cl.Kernel, "get_work_group_info", lambda kernel, info, on: 16)
    monkeypatch.setattr("vyre.backends.opencl.run.commands._built", lambda *_: real)
    real = own_program(device, target)
    with pytest.raises(
        UnsupportedFeature, match=r"needs 16 bytes of workgroup memory and the device has 8.*Fix: use a s"
    ):
        device.load(build(NEIGHBOUR, Mode.NATIVE))


def own_program(device, target):
    cl = device.cl
    program = cl._cl._Program(device.context, build(NEIGHBOUR, Mode.NATIVE).source)
    program._build(b"", [target])
    return program


def test_an_image_is_loaded_without_its_source(own):
    native = own.compile_native(COUNT, DispatchConfig())
    native.dispatch([words(1)])
    image = own.session().device.image(native.require_open())
    assert image
    loaded = own.load_native(COUNT, DispatchConfig(), Artifact("", image, native.built.facts).to_bytes())
    assert loaded.dispatch([words(1, 2)]) == [words(2, 3)]


# ---- processes ------------------------------------------------------------------------------------------------------


@needs_driver
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_is_told_to_open_its_own():
    script = """
import os
from tests.contract.programs import COUNT, words
from vyre.backends.opencl import OpenCLBackend
from vyre.driver.contract.values import DispatchConfig
from vyre.errors import DispatchFailed
backend = OpenCLBackend()
native = backend.compile_native(COUNT, DispatchConfig())
assert native.dispatch([words(1)]) == [words(2)]
child = os.fork()
if not child:
    for use in (lambda: native.dispatch([words(1)]), lambda: backend.dispatch(COUNT, [words(1)]), backend.prepare):
        try:
            use()
        except DispatchFailed as e:
            assert "spawn" in str(e), e
        else:
            os._exit(3)
    backend.flush()
    backend.shutdown()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert native.dispatch([words(1)]) == [words(2)]
"""
    done = run_python(script, "-W", "ignore::DeprecationWarning")
    assert done.returncode == 0, done.stderr


@needs_driver
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_work_is_dropped_in_a_forked_process_while_a_thread_of_its_parent_uses_the_device():
    script = """
import os, threading
from vyre.backends.opencl import OpenCLBackend
device = OpenCLBackend().session().device
batch = device.batch()
batch.lend(device.allocate(16), 0, memoryview(bytes(16)))
ticket = batch.submit()
del batch
held, over = threading.Event(), threading.Event()
def use():
    with device.lock:
        held.set()
        over.wait()
threading.Thread(target=use).start()
held.wait()
child = os.fork()
if not child:
    del ticket
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
over.set()
"""
    done = run_python(script, "-W", "ignore::DeprecationWarning")
    assert done.returncode == 0, done.stderr


@needs_driver
def test_a_process_ends_with_work_in_flight():
    script = """
from tests.contract.programs import words
from tests.support.cpu_kernels import arange, stirred
from vyre.backends.opencl import OpenCLBackend
pending = OpenCLBackend().dispatch_async(stirred.program, [arange(64), words(0xFFFFFFFF)])
print(pending.is_ready(), flush=True)
"""
    done = run_python(script)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_a_trap_is_the_first_one_of_all_invocations(backend):
    with pytest.raises(Trap) as e:
        backend.dispatch(TRAP, [words(0)])
    assert e.value.context["address"] == 0


def test_threads_wait_without_holding_each_other_up(backend):
    pipeline, inputs = calibrated(backend, 0.3)
    done = []

    def work():
        pipeline.dispatch(inputs)
        done.append(time.monotonic())

    thread = threading.Thread(target=work)
    thread.start()
    steps = 0
    while not done:
        time.sleep(0.002)
        steps += 1
    thread.join()
    assert steps > 2, "a thread that waits lets others go on"
    assert unwords(backend.dispatch(COUNT, [words(4)])[0]) == [5]


@needs_driver
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_that_opens_the_device_anew_is_told_to_spawn():
    script = """
import os
from tests.contract.programs import COUNT, words
from vyre.backends.opencl import REGISTRATION
from vyre.errors import BackendUnavailable
assert REGISTRATION.open().dispatch(COUNT, [words(1)]) == [words(2)]
child = os.fork()
if not child:
    assert "spawn" in REGISTRATION.unavailable()
    try:
        REGISTRATION.open()
    except BackendUnavailable as e:
        os._exit(0 if "forked" in str(e) and "Fix: use the spawn start method" in str(e) else 4)
    os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert REGISTRATION.open().dispatch(COUNT, [words(1)]) == [words(2)]
"""
    done = run_python(script, "-W", "ignore::DeprecationWarning")
    assert done.returncode == 0, done.stderr
