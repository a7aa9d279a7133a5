"""The cuda backend: what it says where it cannot run, its driver's answers, and, on a device, order, time and loss."""

import ctypes
import os
import random
import re
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from tests.contract.programs import ADD, COUNT, LONG, NUMBER, TRAP, words

import vyre
from vyre import InOut, gid, u32
from vyre.backends import cuda as package
from vyre.backends.cuda import backend as backends
from vyre.backends.cuda import compile as compiling
from vyre.backends.cuda import device as devices
from vyre.backends.cuda import devices as driver
from vyre.backends.cuda import exactness
from vyre.backends.cuda.device import CudaDevice
from vyre.backends.cuda.devices import Context, Found
from vyre.backends.cuda.emit import vendor_math as native
from vyre.backends.cuda.exactness import Exactness, Mode
from vyre.backends.cuda.run import commands as work
from vyre.backends.cuda.run import staging
from vyre.backends.cuda.run.commands import Numbers
from vyre.backends.cuda.run.exchange import CudaExchange
from vyre.backends.cuda.run.staging import Crew, Staging, StopWords
from vyre.driver.contract.values import DispatchConfig, ResidentReadRange
from vyre.driver.guard import compile as pipelines
from vyre.driver.guard.backend import guarded
from vyre.errors import (
    BackendUnavailable,
    DeadlineExceeded,
    DeviceLost,
    DeviceOutOfMemory,
    DispatchFailed,
    KernelCompileFailed,
    Trap,
)
from vyre.runtime import float_probe as canon
from vyre.runtime.backend import OffloadBackend
from vyre.runtime.device import Artifact, LaunchFacts

from ...support.device_backends import open_or_skip
from ...unit.runtime.test_exits import HAS_WAY

FOUND = Found(0, "Some GPU", "sm_90", 1 << 30, 49152, 1024, (1024, 1024, 64), (2147483647, 65535, 65535))
ONE = DispatchConfig(grid_override=(1, 1, 1))
DEVICE_GONE = 700


def run_alone(code, **environ):
    code = "from tests.backend.cuda.test_cuda_backend import *\n" + textwrap.dedent(code)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)} | environ
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env)


# ---- other libraries ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said, stream", [({"stream": 7}, 7), ({"stream": None}, 1), ({}, 1)])
def test_an_array_that_tells_no_stream_and_cannot_be_asked_is_used_after_the_default_one(said, stream):
    exchange = CudaExchange(SimpleNamespace(found=FOUND))
    older = SimpleNamespace(__cuda_array_interface__=said)
    newer = SimpleNamespace(__cuda_array_interface__=said, __dlpack__=None)
    assert exchange.stream_of(older) == stream
    assert exchange.stream_of(newer) == said.get("stream")
    assert exchange.stream_of(SimpleNamespace(__dlpack__=None)) is None


# ---- where it cannot run --------------------------------------------------------------------------------------------


def test_importing_the_package_loads_no_library():
    code = """
        import sys, vyre.backends.cuda as package
        package.REGISTRATION.probe_key()
        assert not {"cuda", "numpy"} & set(sys.modules)
        """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_unknown_names_of_the_package_are_unknown():
    assert package.CudaBackend.id == "cuda"
    with pytest.raises(AttributeError, match="nothing"):
        package.nothing  # noqa: B018


@pytest.mark.parametrize("missing", ["cuda", "cuda.bindings"])
def test_without_the_bindings_it_says_how_to_get_them(monkeypatch, missing):
    def find(name):
        if missing == "cuda":
            raise ModuleNotFoundError("No module named 'cuda'")

    monkeypatch.setattr(driver, "find_spec", find)
    assert package.REGISTRATION.unavailable() == "cuda-bindings is not installed: pip install 'vyre[cuda]'"


class Library:
    """A driver with one device, as its binding shows it. `answers` are results of calls, by name."""

    class CUresult(SimpleNamespace):
        def __init__(self, code):
            names = {2: "OUT_OF_MEMORY", 100: "NO_DEVICE", 700: "ILLEGAL_ADDRESS", 803: "SYSTEM_DRIVER_MISMATCH"}
            if code not in names:
                raise ValueError(code)
            super().__init__(name=f"CUDA_ERROR_{names[code]}")

    def __init__(self, **answers):
        self.calls = []
        self.answers = {
            "cuInit": (0,),
            "cuDeviceGetCount": (0, 1),
            "cuDriverGetVersion": (0, 13000),
            "cuDeviceGet": (0, 0),
            "cuDevicePrimaryCtxRetain": (0, "context"),
            "cuDevicePrimaryCtxRelease": (0,),
            "cuDevicePrimaryCtxGetState": (0, 0, 0),
            "cuCtxPushCurrent": (0,),
            "cuCtxPopCurrent": (0, "context"),
            "cuMemFreeHost": (0,),
        } | answers

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append(name)
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return call


@pytest.fixture
def fake(monkeypatch):
    """Put a driver in the place of the real one."""

    def install(**answers):
        made = Library(**answers)
        for module in (driver, devices, staging):
            monkeypatch.setattr(module, "library", lambda: made)
        monkeypatch.setattr(driver, "find_spec", lambda name: name)
        monkeypatch.setattr(compiling, "nvrtc", lambda: SimpleNamespace(nvrtcVersion=lambda: (0, 13, 0)))
        monkeypatch.setattr(driver, "_contexts", {})
        return made

    return install


@pytest.mark.parametrize(
    "answers, said",
    [
        ({}, None),
        ({"cuInit": RuntimeError("not found")}, r"^no NVIDIA driver is installed: install it from https://\S+$"),
        ({"cuInit": (100,)}, r"^the NVIDIA driver finds no device: connect one, or see CUDA_VISIBLE_DEVICES$"),
        ({"cuDeviceGetCount": (0, 0)}, r"^the NVIDIA driver finds no device: "),
        ({"cuInit": (3,)}, r"^this process was forked from one that uses .*: use the spawn start method$"),
        ({"cuInit": (803,)}, r"does not start \(SYSTEM_DRIVER_MISMATCH, 803\): reinstall it, or restart the machine$"),
        ({"cuInit": (4711,)}, r"does not start \(4711\): "),
        (
            {"cuDriverGetVersion": (0, 12080)},
            r"runs CUDA 12\.8 and NVRTC compiles for 13\.0: update the driver, or pip ",
        ),
    ],
)
def test_what_is_missing_is_said_with_what_to_do(fake, answers, said):
    fake(**answers)
    why = package.REGISTRATION.unavailable()
    assert (why is None) is (said is None)
    if said is not None:
        assert re.search(said, why), why


def test_bindings_that_do_not_load_and_a_missing_compiler_are_named(fake, monkeypatch):
    fake()

    def broken():
        raise BackendUnavailable("the library NVRTC cannot be loaded: no file", fix="pip install vyre[cuda]")

    monkeypatch.setattr(compiling, "nvrtc", broken)
    assert package.REGISTRATION.unavailable() == "the library NVRTC cannot be loaded: no file: pip install vyre[cuda]"

    def unloadable():
        raise ImportError("undefined symbol")

    monkeypatch.setattr(driver, "library", unloadable)
    assert package.REGISTRATION.unavailable() == (
        "cuda-bindings cannot be loaded (undefined symbol): "
        "reinstall it with pip install --force-reinstall cuda-bindings"
    )


def test_devices_are_asked_for_only_where_there_are_some(fake, monkeypatch):
    fake(cuInit=(100,))
    assert package.REGISTRATION.devices() == ()
    with pytest.raises(BackendUnavailable, match=r"finds no device.*Fix: connect one"):
        driver.found_devices()
    monkeypatch.setattr(backends, "found_devices", lambda: [FOUND])
    assert backends.chosen(None) == backends.chosen(0) == FOUND
    for wrong in (1, -1, "0", True):
        with pytest.raises(BackendUnavailable, match=r"there is no CUDA device .*Fix: use one of: 0 \(Some GPU\)"):
            backends.chosen(wrong)


# ---- the driver's answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code, error, text",
    [
        (2, DeviceOutOfMemory, "no memory while copying.*OUT_OF_MEMORY, 2.*Fix: use smaller buffers"),
        (200, KernelCompileFailed, "cannot read the compiled kernel.*Fix: compile the program again"),
        (701, DispatchFailed, "the driver failed while copying.*Fix: read what the driver says"),
        (DEVICE_GONE, DeviceLost, r"lost while copying.*Fix: call try_recover\(\)"),
        (719, DeviceLost, "lost while copying"),
        (400, DeviceLost, "lost while copying"),
        (900, DispatchFailed, "captures a graph.* while copying.*Fix: call vyre before or after the capture"),
        (906, DispatchFailed, "captures a graph"),
    ],
)
def test_every_failure_is_ours(fake, code, error, text):
    fake()
    context = Context(0)
    with pytest.raises(error, match=text):
        context.ok((code, None), "copying")
    assert context.lost is (error is DeviceLost)
    assert context.ok((0, "found"), "copying") == "found"


def test_after_a_loss_nothing_else_is_said(fake):
    fake()
    context = Context(0)
    for code in (DEVICE_GONE, 2, 1):
        with pytest.raises(DeviceLost):
            context.ok((code,), "allocating memory")


@pytest.mark.parametrize("lost, gone", [(True, []), (False, [True])])
def test_memory_of_a_device_that_is_gone_is_not_freed_and_needs_no_lock(lost, gone):
    device = object.__new__(CudaDevice)
    device.context, device._gone, device._live = SimpleNamespace(lost=lost), gone, {64}
    device.lock = threading.Lock()
    with device.lock:  # as a thread held it that a forked process does not have
        device.free(64)
    assert device._live == {64}


def test_the_kernel_that_copies_is_loaded_once_and_locks_nobody_out(monkeypatch):
    device, free = object.__new__(CudaDevice), []
    device.lock, device.closed, device._copier, device.found = threading.RLock(), False, None, FOUND

    def another():
        free.append(device.lock.acquire(timeout=5))
        if free[-1]:
            device.lock.release()

    def load(self, built):
        other = threading.Thread(target=another)
        other.start()
        other.join()
        return built

    monkeypatch.setattr(devices, "_built_copier", lambda arch: f"copier for {arch}")
    monkeypatch.setattr(CudaDevice, "load", load)
    assert device.copier == device.copier == f"copier for {FOUND.arch}"
    assert free == [True]


def test_what_a_device_has_goes_with_it_and_nothing_is_used_afterwards(fake):
    done = []
    cu = SimpleNamespace(**{
        name: lambda *given, name=name: done.append((name, *given))
        for name in ("cuModuleUnload", "cuMemFreeAsync", "cuMemPoolDestroy", "cuStreamDestroy", "cuEventDestroy")
    })  # fmt: skip
    fake()
    marks, gone, live = {0: [("event", 1)], 2: []}, [], {64}
    devices._clear_away(cu, Context(0), ["stream", "other"], "pool", marks, ["module"], [], live, gone)
    assert gone == [True]
    assert not live
    assert marks == {0: [], 2: []}
    assert done == [
        ("cuModuleUnload", "module"),
        ("cuMemFreeAsync", 64, "stream"),
        ("cuMemPoolDestroy", "pool"),
        ("cuStreamDestroy", "stream"),
        ("cuStreamDestroy", "other"),
        ("cuEventDestroy", "event"),
    ]


def test_a_context_is_retained_once_and_made_anew_after_a_loss(fake):
    cu = fake()
    first = driver.context_of(0)
    assert driver.context_of(0) is first
    assert cu.calls.count("cuDevicePrimaryCtxRetain") == 1
    first.lost = True
    second = driver.context_of(0)
    assert second is not first
    assert cu.calls.count("cuDevicePrimaryCtxRelease") == 1
    assert cu.calls.count("cuDevicePrimaryCtxRetain") == 2


def test_a_lost_context_that_others_hold_is_left_to_them(fake):
    cu = fake(cuDevicePrimaryCtxGetState=(0, 0, 1))
    driver.context_of(0).lost = True
    for _ in range(2):
        with pytest.raises(DeviceLost, match=r"other libraries in this process hold .*Fix: restart the process"):
            driver.context_of(0)
    assert cu.calls.count("cuDevicePrimaryCtxRelease") == 1
    cu.answers["cuDevicePrimaryCtxGetState"] = (0, 0, 0)  # they let go
    assert not driver.context_of(0).lost


def test_a_driver_that_keeps_the_fault_is_told_from_one_that_does_not(fake):
    cu = fake()
    driver.context_of(0).lost = True
    cu.answers["cuDevicePrimaryCtxRetain"] = (DEVICE_GONE, None)
    with pytest.raises(
        DeviceLost, match=r"in which a kernel has faulted.*ILLEGAL_ADDRESS, 700.*Fix: restart the process"
    ):
        driver.context_of(0)


def test_the_context_of_the_thread_is_put_back_also_after_a_failure(fake):
    cu = fake()
    context = Context(0)
    with pytest.raises(ValueError, match="inside"), context.current():
        raise ValueError("inside")
    assert cu.calls[-2:] == ["cuCtxPushCurrent", "cuCtxPopCurrent"]


def test_work_that_was_left_behind_is_waited_for_but_not_for_ever(fake, monkeypatch):
    fake()
    monkeypatch.setattr(devices, "_LEFT_S", 0.05)
    context = Context(0)
    devices._await_left(context)  # there is none
    context.unended = left = SimpleNamespace(ended=lambda: False)
    with pytest.raises(
        DeviceLost, match=r"still runs on the device.*Fix: wait until it ends .* or restart the process"
    ):
        devices._await_left(context)
    left.ended = lambda: True
    devices._await_left(context)
    assert context.unended is None


# ---- bytes on their way ---------------------------------------------------------------------------------------------


def fake_staging(fake):
    blocks = []

    def allocate(nbytes, flags):
        blocks.append(ctypes.create_string_buffer(nbytes))
        return 0, ctypes.addressof(blocks[-1])

    return fake(cuMemHostAlloc=allocate), Staging(Context(0))


def test_host_memory_is_used_again_up_to_a_limit_and_freed_at_the_end(fake, monkeypatch):
    cu, pool = fake_staging(fake)
    small, large = pool.take(1), pool.take(5000)
    assert (small.nbytes, large.nbytes) == (4096, 8192)
    small.view[:3] = b"abc"
    pool.give(small)
    assert pool.take(4096) is small
    pool.give(small)
    monkeypatch.setattr(staging, "KEPT_BYTES", 5000)
    pool.give(large)
    assert cu.calls.count("cuMemFreeHost") == 1
    pool.close()
    assert cu.calls.count("cuMemFreeHost") == 2
    pool.give(pool.take(10))
    assert cu.calls.count("cuMemFreeHost") == 3


def test_a_stop_word_is_zero_whoever_had_it(fake):
    _, pool = fake_staging(fake)
    words_ = StopWords(pool)
    taken = [words_.take() for _ in range(1500)]
    assert len({ctypes.addressof(w) for w in taken}) == 1500
    taken[0].value = 1
    words_.give(taken[0])
    again = words_.take()
    assert ctypes.addressof(again) == ctypes.addressof(taken[0])
    assert again.value == 0


@pytest.mark.parametrize("nbytes", [1, 4096, (1 << 20) + 1, (4 << 20) - 1, 4 << 20, (10 << 20) + 7, 100 << 20])
def test_a_crew_covers_every_byte_once(nbytes):
    found, threads = [], set()

    def work(crew):
        for at, n in crew.pieces():
            assert n <= crew.piece_bytes <= 2 << 20
            found.append((at, n))
            threads.add(threading.get_ident())
            time.sleep(0)

    Crew(nbytes).run(work)
    end = 0
    for at, n in sorted(found):
        assert at == end
        end += n
    assert end == nbytes
    assert nbytes >= staging.SHARED_BYTES or threads == {threading.get_ident()}


def test_a_failure_in_a_crew_stops_it_and_is_told():
    done = []

    def work(crew):
        for at, _ in crew.pieces():
            if at == 6 << 20:
                raise KeyError("in the middle")
            done.append(at)
            time.sleep(0.001)

    with pytest.raises(KeyError, match="in the middle"):
        Crew(1000 << 20).run(work)
    assert len(done) < 100


@pytest.mark.parametrize("takes_last", [False, True])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("traps", [False, True])
@pytest.mark.parametrize("polls", [False, True])
@pytest.mark.parametrize("buffers", [0, 1, 2, 3])
def test_parameters_lie_where_a_kernel_looks_for_them(buffers, polls, traps, whole, takes_last):
    code = SimpleNamespace(buffers=buffers, traps=traps, polls=polls, whole=whole, takes_last=takes_last)
    memories = [0x7F00_0000_0000 + k for k in range(buffers + traps)]
    lengths = [0xFFFF_FF00 + k for k in range(buffers)]
    stops, last, word = [0x7FFF_FFFF_0000] * polls, [0xFFFF_FFFE] * takes_last, [0x7FFF_1111_0000] * whole
    numbers = Numbers(code)
    numbers.set(memories, lengths, (7, 8, 0xFFFFFFFF), stops[0] if polls else None, last, word[0] if whole else None)
    expected = [*memories[:buffers], *lengths, 7, 8, 0xFFFFFFFF, *memories[buffers:], *stops, *word, *last]
    places = (ctypes.c_void_p * len(expected)).from_address(numbers.address)
    for place, value in zip(places, expected, strict=True):
        kind = ctypes.c_uint64 if value > 0xFFFFFFFF else ctypes.c_uint32
        assert place % ctypes.sizeof(kind) == 0
        assert kind.from_address(place).value == value


# ---- exactness ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hard, soft, expected",
    [
        ((), (), Exactness(Mode.NATIVE, True)),
        (("add",), (), Exactness(Mode.SOFT, True)),
        ((), ("add",), Exactness(Mode.NATIVE, False)),
    ],
)
def test_the_fastest_canonical_mode_is_used_and_remembered(monkeypatch, tmp_path, hard, soft, expected):
    runs = []

    def run(device, built):
        runs.append(built)
        return hard if built == "native" else soft

    monkeypatch.setenv("VYRE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(exactness, "identity", lambda found: "key")
    monkeypatch.setattr(exactness, "CudaDevice", lambda found: nullcontext())
    monkeypatch.setattr(nullcontext, "close", lambda self: None, raising=False)
    monkeypatch.setattr(exactness, "build", lambda program, arch, soft=False: "soft" if soft else "native")
    monkeypatch.setattr(canon, "differing", lambda wrong: wrong)
    for _ in range(2):
        assert exactness.exactness_of(FOUND, run) == expected
    assert runs == ["native", "soft"]


@pytest.mark.parametrize("error", [DeviceLost, DeviceOutOfMemory])
def test_a_device_that_gives_no_answer_is_asked_again(monkeypatch, tmp_path, error):
    def run(device, built):
        raise error("no answer", fix="wait")

    monkeypatch.setenv("VYRE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(exactness, "identity", lambda found: "key")
    monkeypatch.setattr(exactness, "CudaDevice", lambda found: nullcontext())
    monkeypatch.setattr(nullcontext, "close", lambda self: None, raising=False)
    monkeypatch.setattr(exactness, "build", lambda program, arch, soft=False: "soft" if soft else "native")
    with pytest.raises(error):
        exactness.exactness_of(FOUND, run)
    monkeypatch.setattr(canon, "differing", lambda wrong: wrong)
    assert exactness.exactness_of(FOUND, lambda device, built: ()) == Exactness(Mode.NATIVE, True)


def test_a_device_that_is_not_canonical_is_refused_with_the_reason(monkeypatch, tmp_path):
    def run(device, built):
        if built == "soft":
            raise DispatchFailed("the driver failed while launching a kernel", fix="update it")
        return ("add", "divide")

    monkeypatch.setenv("VYRE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(exactness, "identity", lambda found: "key")
    monkeypatch.setattr(exactness, "CudaDevice", lambda found: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(exactness, "build", lambda program, arch, soft=False: "soft" if soft else "native")
    monkeypatch.setattr(canon, "differing", lambda wrong: wrong)
    why = exactness.exactness_of(FOUND, run).why_not
    assert why == (
        "its f32 is not the canonical one "
        "(native: results differ in add, divide; soft: the driver failed while launching a kernel)"
    )
    monkeypatch.setattr(backends, "found_devices", lambda: [FOUND])
    monkeypatch.setattr(backends, "exactness_of", lambda found: Exactness(None, why_not=why))
    with pytest.raises(BackendUnavailable, match=r"Some GPU cannot be used: its f32 is not .*Fix: update its driver"):
        package.REGISTRATION.open(0)


# ---- on a device ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def backend():
    opened = open_or_skip("cuda")
    yield opened
    opened.shutdown()


@pytest.fixture
def own():
    opened = open_or_skip("cuda")
    yield opened
    opened.shutdown()


def test_the_record_names_the_device_and_its_tools(backend):
    assert backend.device == package.REGISTRATION.devices()[0].name
    assert "\0" not in backend.device
    extras = backend.capability.extras
    assert extras["arch"].startswith("sm_")
    assert extras["compiler"].startswith("NVRTC ")
    assert backend.capability.exactness == {"f32": "canonical", "mode": "native", "native": dict(native.APART)}
    assert backend.capability.max_shared_bytes % 16 == 0
    assert {"u64", "i64", "f64"} <= backend.capability.types


def test_a_kernel_may_use_all_shared_memory_that_is_claimed(backend):
    from vyre.foundation.ir.dtypes import u32 as word
    from vyre.foundation.ir.nodes import Barrier, InvocationId, Load, LocalId, Store, lit
    from vyre.foundation.ir.program import Program, read_write, workgroup

    count = backend.capability.max_shared_bytes // 4
    body = [
        Store("tile", lit(count - 1), LocalId(0) + 5),
        Barrier(),
        Store("n", InvocationId(0), Load("tile", lit(count - 1))),
    ]
    program = Program([read_write("n", 0, word), workgroup("tile", word, count)], (1, 1, 1), body)
    for timeout in (None, 5.0):
        config = DispatchConfig(grid_override=(1, 1, 1), timeout=timeout)
        assert guarded(backend).dispatch(program, [words(0)], config) == [words(5)]


def test_a_thread_keeps_the_context_that_it_had(backend):
    cu = driver.library()
    seen = []

    def work():
        seen.append(int(cu.cuCtxGetCurrent()[1]))
        seen.append(backend.dispatch(ADD, [words(1, 2), words(3, 4)], ONE))
        seen.append(int(cu.cuCtxGetCurrent()[1]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [0, [words(4, 6)], 0]


@pytest.mark.parametrize("nbytes", [4, 4096, (1 << 20) - 4, 1 << 20, (1 << 20) + 4, (37 << 20) + 12])
def test_bytes_of_every_size_come_back_as_they_were(backend, nbytes):
    device, data = backend.session().device, np.random.default_rng(nbytes).bytes(nbytes)
    memory = device.allocate(-(-(nbytes + 8) // 16) * 16)
    for ahead in (False, True):
        given = bytearray(data)
        batch = device.batch(ahead=ahead)
        batch.write(memory, 4, memoryview(given))
        given[:] = bytes(nbytes)  # which nobody may notice
        batch.read(memory, 4, nbytes)
        batch.read(memory, 7, nbytes - 3)
        target = bytearray(nbytes - 3)
        ticket = batch.submit()
        first, second = ticket.take([None, memoryview(target)])
        assert bytes(first) == data
        assert target == second == data[3:]
        assert ticket.done()
    device.release(memory)


def test_resident_launches_keep_their_order_and_are_not_waited_for(backend):
    guard = guarded(backend)
    n = guard.allocate_resident(1 << 16)
    guard.upload_resident([(n, 0, bytes(1 << 16))])
    pipeline = pipelines.compile(guard, COUNT, DispatchConfig())
    for _ in range(3000):
        assert pipeline.dispatch_resident([n]) == [n]
    found = np.frombuffer(guard.download_resident([ResidentReadRange(n, 0, 1 << 16)])[0], np.uint32)
    assert (found == 3000).all()
    guard.free_resident(n)


def test_memory_that_was_freed_is_not_given_out_before_its_last_use(backend):
    """Freed right behind launches that nobody waited for; the next owner runs beside them."""
    guard = guarded(backend)
    pipeline = pipelines.compile(guard, COUNT, DispatchConfig())
    number = pipelines.compile(
        guard, NUMBER, DispatchConfig(output_elements={"out": 1 << 14}, grid_override=(1 << 12, 1, 1))
    )
    for _ in range(20):
        n = guard.allocate_resident(1 << 16)
        for _ in range(50):
            pipeline.dispatch_resident([n])
        guard.free_resident(n)
        found = number.dispatch_async([]).result()[0]
        assert (np.frombuffer(found, np.uint32) == np.arange(1, (1 << 14) + 1)).all()


def test_a_timed_dispatch_tells_device_time_apart(backend):
    data = np.arange(1 << 20, dtype=np.uint32)
    result = backend.dispatch_timed(COUNT, [data])
    assert 0 < result.device_ns < result.wall_ns
    assert (np.frombuffer(result.outputs[0], np.uint32) == data + 1).all()


def test_a_trap_is_told(backend):
    with pytest.raises(Trap, match="seven"):
        backend.dispatch(TRAP, [words(0)], ONE)


def test_code_that_nobody_needs_is_unloaded(own):
    device = own.session().device
    for k in range(5):
        kept = own.compile_native(COUNT, DispatchConfig())
        assert kept.dispatch([words(k)]) == [words(k + 1)]
        kept.close()
        del kept
    assert len(device._retired) <= 2


def test_a_damaged_image_and_an_absent_one_are_told(backend):
    facts = LaunchFacts((1, 1, 1), extra={"buffers": 0, "block": [1, 1, 1], "each": 1})
    device = backend.session().device
    with pytest.raises(KernelCompileFailed, match=r"was not compiled.*Fix: compile the program again"):
        device.load(Artifact("", b"", facts))
    with pytest.raises(KernelCompileFailed, match="cannot read the compiled kernel"):
        device.load(Artifact("", b"\x7fELF" + bytes(100), facts))
    assert not backend.device_lost()


def test_more_memory_than_there_is_is_refused_and_harms_nobody(backend):
    device = backend.session().device
    with pytest.raises(DeviceOutOfMemory, match=r"no memory while allocating memory.*Fix: use smaller buffers"):
        device.allocate(4 * device.memory_bytes)
    assert not backend.device_lost()
    assert backend.dispatch(COUNT, [words(1)], ONE) == [words(2)]


def test_memory_is_freed_when_nobody_holds_it_and_not_before(own):
    device = own.session().device
    live = len(device._live)
    memory, batch = device.allocate(1 << 20), device.batch()
    device.release(memory)
    batch.zero(memory, 0, 1 << 20)
    batch.read(memory, 0, 8)
    assert len(device._live) == live + 1
    assert bytes(batch.submit().take([None])[0]) == bytes(8)
    del memory, batch
    assert len(device._live) == live


def test_results_that_nobody_takes_leave_nothing_behind(own):
    pipeline = own.compile_native(ADD, ONE)
    device = own.session().device
    for _ in range(300):
        pipeline.dispatch_async([words(1), words(2)])
    time.sleep(0.2)
    pipeline.dispatch_async([words(1), words(2)])
    assert len(device._held) <= work.SPARED + 2
    time.sleep(0.2)
    own.flush()
    assert not device._held


def test_a_closed_device_refuses_work(own):
    device = own.session().device
    memory, batch = device.allocate(256), device.batch()
    device.close()
    device.close()
    assert device.lost()
    device.release(memory)
    with pytest.raises(
        DeviceLost, match=r"the device was closed while filling memory.*Fix: compile, allocate and upload"
    ):
        batch.zero(memory, 0, 256)


def test_backends_of_one_device_share_its_context_and_end_alone(own):
    others = [open_or_skip("cuda") for _ in range(3)]
    for other in others:
        assert other.dispatch(COUNT, [words(1)], ONE) == [words(2)]
        assert other.session().device.context is own.session().device.context
        other.shutdown()
    assert own.dispatch(COUNT, [words(1)], ONE) == [words(2)]


# ---- time -----------------------------------------------------------------------------------------------------------


@vyre.kernel(workgroup=64)
def spinning(out: InOut[u32]):
    """Some tenths of a second that no compiler can shorten."""
    value = gid.x + 1
    for _ in range(60_000_000):
        value = value ^ (value << 13)
        value = value ^ (value >> 17)
        value = value ^ (value << 5)
    if gid.x < len(out):
        out[gid.x] = value


def test_endless_kernels_end_in_time_and_the_next_dispatch_works(backend):
    guard = guarded(backend)
    target = bytearray(words(7))
    for seconds in (0.05, 0.2, 0.1):
        begun = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            guard.dispatch(LONG, [words(7)], DispatchConfig(grid_override=(1, 1, 1), timeout=seconds), out=[target])
        assert seconds <= time.monotonic() - begun < seconds + 30  # others may use the device
        assert not backend.device_lost()
        assert guard.dispatch(COUNT, [words(1)], DispatchConfig(timeout=5.0)) == [words(2)]
        assert target == words(7)


def test_a_stop_ends_nobody_else(backend):
    """Words that stopped a kernel are used again by others, which run to their end."""
    guard = guarded(backend)
    calm = DispatchConfig(timeout=30.0)
    guard.dispatch(COUNT, [words(1)], calm)
    wrong = []

    def work():
        rng = random.Random(1)
        for _ in range(150):
            x = rng.randrange(1000)
            if guard.dispatch(COUNT, [words(x)], calm) != [words(x + 1)]:
                wrong.append(x)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    pipelines.compile(guard, LONG, DispatchConfig(timeout=60))
    for _ in range(5):
        with pytest.raises(DeadlineExceeded):
            guard.dispatch(LONG, [words(7)], DispatchConfig(grid_override=(1, 1, 1), timeout=0.05))
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_deadline_behind_the_work_of_others_does_not_lose_the_device(backend):
    guard = guarded(backend)
    out = guard.allocate_resident(256)
    pipeline = pipelines.compile(guard, spinning.program, DispatchConfig())
    guard.dispatch(COUNT, [words(1)], DispatchConfig(timeout=5.0))
    pipeline.dispatch_resident([out])  # which is waited for, and made ready
    (expected,) = guard.download_resident([ResidentReadRange(out, 0, 256)])
    guard.upload_resident([(out, 0, bytes(256))])
    begun = time.monotonic()
    pipeline.dispatch_resident([out])
    assert time.monotonic() - begun < 0.2
    with pytest.raises(DeadlineExceeded):
        guard.dispatch(COUNT, [words(1)], DispatchConfig(timeout=0.02))
    assert time.monotonic() - begun < 0.3
    assert not backend.device_lost()
    assert guard.dispatch(COUNT, [words(1)], DispatchConfig(timeout=30.0)) == [words(2)]
    assert guard.download_resident([ResidentReadRange(out, 0, 256)]) == [expected]
    guard.free_resident(out)


# ---- loss -----------------------------------------------------------------------------------------------------------

FAULT = """
def fault(index=0):
    '''A kernel of somebody else writes where nothing is.'''
    cu = driver.library()
    context = driver.context_of(index)
    image = compiling.compile_text(
        'extern "C" __global__ void bad(unsigned *p) { p[0] = 1; }', driver.found_devices()[index].arch, [])
    with context.current():
        module = context.ok(cu.cuModuleLoadData(image), "loading")
        function = context.ok(cu.cuModuleGetFunction(module, b"bad"), "loading")
        pointer = ctypes.c_uint64(16)
        places = (ctypes.c_void_p * 1)(ctypes.addressof(pointer))
        cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, ctypes.addressof(places), 0)
        cu.cuCtxSynchronize()

def said(call):
    try:
        return call()
    except vyre.errors.VyreError as e:
        return f"{type(e).__name__}: {e}"
"""


def test_a_fault_elsewhere_is_a_lost_device_and_recovery_works_or_says_what_does():
    open_or_skip("cuda").shutdown()
    done = run_alone(
        FAULT
        + textwrap.dedent("""
        guard = guarded(package.REGISTRATION.open())
        pipeline = pipelines.compile(guard, COUNT, DispatchConfig())
        handle = guard.allocate_resident(64)
        assert guard.dispatch(COUNT, [words(1)], ONE) == [words(2)]
        fault()
        for use in (
            lambda: pipeline.dispatch([words(1)]), lambda: guard.dispatch(COUNT, [words(1)], ONE),
            lambda: guard.allocate_resident(64), lambda: guard.free_resident(handle),
        ):
            text = said(use)
            assert str(text).startswith("DeviceLost"), text
            assert "Fix: " in text, text
        assert guard.device_lost()
        text = said(guard.try_recover)
        if text is None:
            assert guard.dispatch(COUNT, [words(1)], ONE) == [words(2)]
            print("recovered")
        else:
            assert text.startswith("DeviceLost") and "Fix: restart the process" in text, text
            assert str(said(lambda: guard.dispatch(COUNT, [words(1)], ONE))).startswith("DeviceLost")
            print("restart")
        """)
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("recovered", "restart")


def test_a_lost_context_that_another_library_holds_is_not_reset():
    open_or_skip("cuda").shutdown()
    done = run_alone(
        FAULT
        + textwrap.dedent("""
        cu = driver.library()
        cu.cuInit(0)
        assert int(cu.cuDevicePrimaryCtxRetain(cu.cuDeviceGet(0)[1])[0]) == 0
        guard = guarded(package.REGISTRATION.open())
        assert guard.dispatch(COUNT, [words(1)], ONE) == [words(2)]
        fault()
        assert said(lambda: guard.dispatch(COUNT, [words(1)], ONE)).startswith("DeviceLost")
        print(said(guard.try_recover))
        """)
    )
    assert done.returncode == 0, done.stderr
    assert "other libraries in this process hold its context" in done.stdout
    assert "Fix: restart the process" in done.stdout


def test_a_forked_process_is_told_to_be_spawned():
    open_or_skip("cuda").shutdown()
    done = run_alone("""
        import warnings
        warnings.simplefilter("ignore")
        backend = package.REGISTRATION.open()
        backend.dispatch(COUNT, [words(1)], ONE)
        child = os.fork()
        if child == 0:
            try:
                text = str(package.REGISTRATION.unavailable())
            except BaseException as e:
                text = repr(e)
            os.write(1, text.encode())
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert backend.dispatch(COUNT, [words(1)], ONE) == [words(2)]
        """)
    assert done.returncode == 0, done.stderr
    assert "use the spawn start method" in done.stdout


@pytest.mark.parametrize("work", ["none", "started", "left behind"])
def test_a_process_that_ends_waits_for_no_device(work):
    """While one works, nothing that drivers left to be done at exit is done."""
    open_or_skip("cuda").shutdown()
    done = run_alone(f"""
        from tests.unit.runtime.test_exits import endless, register_with_c
        register_with_c(b"what a driver does at exit")
        backend = package.REGISTRATION.open()
        backend.dispatch(COUNT, [words(1)], ONE)
        if {work != "none"}:
            pending = backend.dispatch_async(endless.program, [words(*range(64)), words(0xFFFFFFFF)])
            assert not pending.is_ready()
        if {work == "left behind"}:
            backend.session().close()
        print("left", time.monotonic())
        sys.exit(7)
        """)
    ended = time.monotonic()
    assert done.returncode == 7, done.stderr
    left, *driver = done.stdout.splitlines()
    assert driver == (["what a driver does at exit"] if HAS_WAY and work == "none" else [])
    assert ended - float(left.split()[1]) < 10


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("streams, ended", [((0, 0, 0), True), ((0, 600, 0), True), ((0, 0, 0), False)])
def test_exit_handlers_are_skipped_while_something_runs(streams, ended, lost, monkeypatch):
    context = SimpleNamespace(lost=lost, unended=SimpleNamespace(ended=lambda: ended))
    device = object.__new__(CudaDevice)
    device.context, device.cu = context, SimpleNamespace(cuStreamQuery=lambda stream: (stream,))
    device.stream, *device.beside = streams
    skipped = []
    monkeypatch.setattr(devices, "contexts", lambda: [context])
    monkeypatch.setattr(devices, "_devices", {device})
    monkeypatch.setattr(devices, "skip_exit_handlers", lambda: skipped.append(True))
    devices._leave()
    assert bool(skipped) is (not lost and (any(streams) or not ended))


def test_devices_come_and_go_without_a_trace(backend):
    found = backend.found
    for _ in range(20):
        device = CudaDevice(found)
        memory = device.allocate(1 << 20)
        batch = device.batch()
        batch.zero(memory, 0, 1 << 20)
        batch.read(memory, 0, 16)
        assert bytes(batch.submit().take([None])[0]) == bytes(16)
        device.close()
    assert backend.dispatch(COUNT, [words(1)], ONE) == [words(2)]


def test_counts_have_their_names_before_there_is_a_device():
    backend = object.__new__(package.CudaBackend)
    OffloadBackend.__init__(backend)
    assert dict.fromkeys(CudaDevice.COUNTS, 0).items() <= backend.metrics().items()
