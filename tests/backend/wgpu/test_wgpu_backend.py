"""The wgpu backend as its callers meet it: opening, devices, limits, long loops, deadlines, loss and recovery."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from types import SimpleNamespace

import pytest
from tests.contract.programs import ADD, COUNT, LONG, NEIGHBOUR, NUMBER, TRAP, unwords, words

import vyre
from vyre import In, InOut, Out, gid, u32, u64
from vyre.backends import wgpu as package
from vyre.backends.reference import run
from vyre.backends.wgpu import REGISTRATION
from vyre.backends.wgpu import devices as adapters
from vyre.driver.contract.values import DispatchConfig, ResidentReadRange
from vyre.driver.guard import compile as pipelines
from vyre.driver.guard.backend import guarded
from vyre.driver.selection import registry
from vyre.errors import (
    ArgumentValueError,
    BackendUnavailable,
    DeadlineExceeded,
    DeviceLost,
    InvalidProgram,
    KernelCompileFailed,
    Trap,
    UnsupportedFeature,
    VyreError,
)
from vyre.foundation.ir.dtypes import u32 as u32_type
from vyre.foundation.ir.nodes import Assign, InvocationId, Let, Load, Store, SubgroupReduce, Var
from vyre.foundation.ir.ops import ReduceOp
from vyre.foundation.ir.program import Program, read, workgroup, write_only
from vyre.runtime.device import Artifact

from ...support.busy_devices import under_way
from ...support.device_backends import open_or_skip

GID = InvocationId(0)


@pytest.fixture(scope="module")
def backend():
    opened = open_or_skip("wgpu")
    yield opened
    opened.shutdown()


@pytest.fixture
def guard():
    """A backend of its own behind its guard, for tests that lose the device."""
    opened = guarded(open_or_skip("wgpu"))
    yield opened
    opened.shutdown()


def limited(backend):
    if backend.record.loop_limit is None:
        pytest.skip("this device runs loops of any length")
    return backend.record.loop_limit


def expected(program, inputs, groups=1, **output_elements):
    """What the reference engine gives for so many workgroups along x."""
    return run(program, inputs, grid=(groups, 1, 1), output_elements=output_elements or None).outputs


def again(call):
    """Until it raises."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        call()


def run_alone(code, **environ):
    env = {k: v for k, v in os.environ.items() if k != "XDG_RUNTIME_DIR"} | environ
    code = textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env)


# ---- opening --------------------------------------------------------------------------------------------------------


def test_importing_the_package_loads_no_library():
    done = run_alone("""
        import sys, vyre.backends.wgpu as package
        package.REGISTRATION.probe_key()
        assert not {"wgpu", "numpy"} & set(sys.modules)
        """)
    assert done.returncode == 0, done.stderr


def test_unknown_names_of_the_package_are_unknown():
    assert package.WgpuBackend.id == "wgpu"
    with pytest.raises(AttributeError, match="nothing"):
        package.nothing  # noqa: B018


def test_without_the_library_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "wgpu", None)
    assert package.REGISTRATION.unavailable() == "wgpu is not installed: pip install 'vyre[wgpu]'"
    assert package.REGISTRATION.devices() == ()
    with pytest.raises(BackendUnavailable, match=r"wgpu is not installed.*Fix: pip install 'vyre\[wgpu\]'"):
        adapters.chosen()


def test_without_an_adapter_it_says_so_and_everything_else_works(tmp_path):
    pytest.importorskip("wgpu")
    nowhere = str(tmp_path / "nothing")
    hidden = ("VK_ICD_FILENAMES", "VK_DRIVER_FILES", "LIBGL_DRIVERS_PATH", "__EGL_VENDOR_LIBRARY_FILENAMES")
    done = run_alone(
        """
        import vyre.backends.wgpu as package
        from vyre.backends.reference import REGISTRATION as reference
        from vyre.driver.selection import registry
        from vyre.errors import BackendUnavailable
        print(package.REGISTRATION.unavailable())
        print(package.REGISTRATION.devices())
        with registry.isolated(package.REGISTRATION, reference):
            print([r.id for r in registry.registered_backends_by_precedence()])
            try:
                registry.acquire("wgpu")
            except BackendUnavailable as e:
                print(e)
        """,
        **dict.fromkeys(hidden, nowhere),
        VYRE_CACHE_DIR=str(tmp_path),
    )
    assert (done.returncode, done.stderr) == (0, "")
    why, devices, ids, error = done.stdout.splitlines()
    assert why.startswith("neither Vulkan, Metal, Direct3D nor OpenGL has a device here: install the driver")
    assert (devices, ids) == ("()", "['wgpu', 'reference']")
    assert why in error
    assert "Fix: " in error


def test_a_library_that_breaks_while_it_looks_is_said(monkeypatch):
    def broken():
        raise RuntimeError("the loader is confused")

    monkeypatch.setattr(adapters, "adapters", broken)
    assert package.REGISTRATION.unavailable().startswith(
        "looking for adapters failed (RuntimeError: the loader is confused): see"
    )
    assert package.REGISTRATION.devices() == ()


def test_a_forked_process_is_told_to_spawn(backend):
    if not hasattr(os, "fork"):
        pytest.skip("no fork on this system")
    done = run_alone("""
        import gc, os, sys, warnings
        warnings.simplefilter("ignore")
        from vyre.backends import wgpu as package
        from tests.contract.programs import COUNT, words
        backend = package.REGISTRATION.open()
        assert backend.dispatch(COUNT, [words(1)]) == [words(2)]
        started = backend.dispatch_async(COUNT, [words(1)])
        child = os.fork()
        if not child:
            try:
                backend.dispatch(COUNT, [words(1)])
            except Exception as e:
                print(e)
            print(package.REGISTRATION.unavailable())
            del backend, started
            gc.collect()
            sys.exit(7)  # with all that is done at exit, of which a driver has its part
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert started.result() == [words(2)]
        assert backend.dispatch(COUNT, [words(2)]) == [words(3)]
        """)
    assert (done.returncode, done.stderr) == (0, "")
    assert "spawn" in done.stdout.splitlines()[0]
    assert done.stdout.splitlines()[1] == adapters.FORKED


def test_it_opens_without_a_device_and_runs_behind_its_guard(backend):
    before = threading.active_count()
    with registry.isolated(REGISTRATION):
        opened = registry.acquire("wgpu")
        assert opened.inner._session is None
        assert opened.dispatch(COUNT, [words(1, 2, 3)]) == [words(2, 3, 4)]
        assert threading.active_count() == before
        opened.shutdown()


def test_the_probe_is_asked_again_when_a_driver_comes_or_goes(monkeypatch):
    before = package.REGISTRATION.probe_key()
    assert package.REGISTRATION.probe_key() == before
    chosen = ("WGPU_BACKEND_TYPE", "WGPUPY_WGPU_ADAPTER_NAME", "LIBGL_ALWAYS_SOFTWARE", "GALLIUM_DRIVER")
    for name in ("VK_ICD_FILENAMES", "VK_DRIVER_FILES", *chosen):
        with monkeypatch.context() as patch:
            patch.setenv(name, "another")
            assert package.REGISTRATION.probe_key() != before


# ---- devices --------------------------------------------------------------------------------------------------------


def adapter(device, api="Vulkan", kind="DiscreteGPU"):
    return SimpleNamespace(info={"device": device, "description": "", "backend_type": api, "adapter_type": kind})


def names(found):
    return [(adapters.name_of(a), a.info["backend_type"]) for a in found]


def test_the_best_adapter_comes_first_and_each_device_once():
    found = [
        adapter("llvmpipe", "OpenGL", "CPU"),
        adapter("llvmpipe", "Vulkan", "CPU"),
        adapter("Old card", "OpenGL"),
        adapter("Inside", "Vulkan", "IntegratedGPU"),
        adapter("Big", "Vulkan"),
        adapter("Big/PCIe/SSE2", "OpenGL"),
        adapter("Strange", "Vulkan", "of another kind"),
    ]
    assert names(adapters.ranked(found)) == [
        ("Big", "Vulkan"),
        ("Old card", "OpenGL"),
        ("Inside", "Vulkan"),
        ("Strange", "Vulkan"),
        ("llvmpipe", "Vulkan"),
    ]


def test_opengl_on_the_processor_is_not_used(monkeypatch):
    found = (adapter("llvmpipe (LLVM)", "OpenGL", "CPU"),)
    pytest.importorskip("wgpu")
    monkeypatch.setattr(adapters, "listed", lambda: found)
    assert package.REGISTRATION.devices() == ()
    assert package.REGISTRATION.unavailable() == adapters.ONLY_OPENGL
    with pytest.raises(BackendUnavailable, match=r"may end the process.*Fix: install the driver of the GPU"):
        adapters.chosen()
    monkeypatch.setattr(adapters, "listed", lambda: (*found, adapter("llvmpipe", "Vulkan", "CPU")))
    assert [(d.index, d.name, d.emulated) for d in adapters.infos()] == [(0, "llvmpipe", True)]


@pytest.mark.parametrize("api, starts", [("Vulkan", True), ("Metal", True), ("D3D12", True), ("OpenGL", False)])
def test_no_overlap_is_claimed_where_all_threads_share_a_context(backend, api, starts):
    from vyre.backends.wgpu.backend import capability

    info = dict(backend.adapter.info) | {"backend_type": api, "adapter_type": "DiscreteGPU"}
    found = SimpleNamespace(info=info, limits=backend.adapter.limits, features=backend.adapter.features)
    claimed = capability(found, backend.record)
    assert (claimed.async_compute, claimed.api) == (starts, api)


def test_a_device_is_found_by_index_or_part_of_its_name(monkeypatch):
    found = (adapter("Big One"), adapter("llvmpipe (LLVM)", kind="CPU"))
    monkeypatch.setattr(adapters, "why_none", lambda: None)
    monkeypatch.setattr(adapters, "adapters", lambda: found)
    assert adapters.chosen() is found[0]
    assert adapters.chosen(1) is found[1]
    assert adapters.chosen("LLVMpipe") is found[1]
    for wrong in (2, -1, "radeon", 1.5):
        with pytest.raises(BackendUnavailable, match=r"no device .*Fix: use the index .* 0 Big One, 1 llvmpipe"):
            adapters.chosen(wrong)
    assert [(d.index, d.name, d.emulated) for d in adapters.infos()] == [
        (0, "Big One", False),
        (1, "llvmpipe (LLVM)", True),
    ]


def test_the_registry_opens_a_device_by_name(backend):
    with registry.isolated(REGISTRATION):
        opened = registry.acquire(f"wgpu:{backend.device}")
        assert opened.device == backend.device
        opened.shutdown()


# ---- what it says of itself ------------------------------------------------------------------------------------------


def test_the_capability_names_what_code_depends_on(backend):
    found = backend.capability
    assert found.types == {"u64", "i64", "f16", "bf16"}
    assert (found.deadline, found.subgroup_ops, found.f16) == ("host", False, False)
    assert found.async_compute == (found.api != "OpenGL")
    assert found.max_workgroups_per_dimension == 0xFFFFFFFF
    assert found.extras["adapter"] == backend.device
    assert set(found.extras) >= {"driver", "wgpu", "immediate_bytes", "emulated"}
    assert found.exactness["f32"] == "canonical"
    assert set(found.exactness) >= {"fences", "soft_flush", "native_divide", "loop_limit", "shared_is_zeroed"}
    other = type(backend)(immediates=False)
    assert pipelines.compile(other, ADD).key != pipelines.compile(backend, ADD).key
    other.shutdown()


def test_the_profile_claims_what_the_language_has(backend):
    profile = backend.device_profile()
    assert (profile.backend, profile.device) == ("wgpu", backend.device)
    assert (profile.max_native_int_width, profile.has_mul_high) == (32, False)
    assert profile.supports_device_timestamps == ("timestamp-query" in backend.adapter.features)


def test_the_source_can_be_read(backend):
    text = backend.compile_native(ADD, DispatchConfig()).source
    assert "fn vyre_kernel" in text
    assert "@workgroup_size(4, 1, 1)" in text


def test_a_compiled_program_can_be_stored(backend):
    native = backend.compile_native(NEIGHBOUR, DispatchConfig())
    stored = native.serialize()
    again = backend.load_native(NEIGHBOUR, DispatchConfig(), stored)
    assert again.source == native.source
    assert unwords(again.dispatch([words(1, 2, 3, 4)])[0]) == [2, 3, 4, 1]
    with pytest.raises(KernelCompileFailed, match="damaged"):
        Artifact.from_bytes(stored[:40])


# ---- limits ---------------------------------------------------------------------------------------------------------


def copies(count):
    buffers = [write_only("out", 0, u32_type, 4)] + [read(f"x{k}", k + 1, u32_type, 4) for k in range(count - 1)]
    adds = [Assign("total", Var("total") + Load(f"x{k}", GID)) for k in range(1, count - 1)]
    return Program(buffers, (4, 1, 1), [Let("total", Load("x0", GID)), *adds, Store("out", GID, Var("total"))])


def test_as_many_buffers_as_the_device_has_and_not_one_more(backend):
    most = backend.adapter.limits["max-storage-buffers-per-shader-stage"]
    if most > 64:
        pytest.skip("the device takes more buffers than a program has")
    program = copies(most)
    inputs = [words(k, 1, 2, 3) for k in range(most - 1)]
    assert backend.dispatch(program, inputs) == expected(program, inputs)
    with pytest.raises(
        UnsupportedFeature, match=f"needs {most + 1} storage buffers and max-storage-buffers-per-shader"
    ):
        backend.dispatch(copies(most + 1), [words(1, 1, 1, 1)] * most)


def test_parameters_that_are_too_long_for_immediates_go_through_a_buffer(backend):
    room = backend.adapter.limits["max-immediate-size"] // 4 - 6
    most = min(backend.adapter.limits["max-storage-buffers-per-shader-stage"], 64)
    for count in (min(room, most), min(room + 1, most)):
        program = copies(count)
        inputs = [words(k, 1, 2, 3) for k in range(count - 1)]
        native = backend.compile_native(program, DispatchConfig())
        assert ("var<immediate>" in native.source) == (count <= room)
        assert native.dispatch(inputs) == expected(program, inputs)


def with_shared(nbytes, subgroups):
    value = SubgroupReduce(ReduceOp.ADD, Load("x", GID)) if subgroups else Load("x", GID)
    body = [Store("tile", GID, value), Store("out", GID, Load("tile", GID))]
    buffers = [read("x", 0, u32_type, 64), write_only("out", 1, u32_type, 64), workgroup("tile", u32_type, nbytes // 4)]
    return Program(buffers, (64, 1, 1), body)


def test_all_workgroup_memory_can_be_used_and_no_more(backend):
    most = backend.adapter.limits["max-compute-workgroup-storage-size"]
    inputs = [words(*range(64))]
    for subgroups, room in ((False, most), (True, most - 256)):
        program = with_shared(room, subgroups)
        assert backend.dispatch(program, inputs) == expected(program, inputs)
    with pytest.raises(UnsupportedFeature, match=rf"needs {most + 256} bytes .* max-compute-workgroup-storage-size"):
        backend.dispatch(with_shared(most, True), inputs)
    with pytest.raises((UnsupportedFeature, InvalidProgram), match=str(most)):
        backend.dispatch(with_shared(most + 4, False), inputs)


def test_a_workgroup_over_the_limit_is_refused(backend):
    most = backend.max_invocations_per_workgroup
    inputs = [words(*range(most))]

    def wide(n):
        body = [Store("out", GID, Load("x", GID))]
        return Program([read("x", 0, u32_type, most), write_only("out", 1, u32_type, most)], (n, 1, 1), body)

    assert backend.dispatch(wide(most), inputs) == inputs
    with pytest.raises((UnsupportedFeature, InvalidProgram), match=str(most)):
        backend.dispatch(wide(most + 1), inputs)


def test_a_buffer_over_the_binding_limit_is_refused_with_both_numbers(backend):
    most = backend.max_storage_buffer_bytes
    program = Program([write_only("out", 0, u32_type)], (64, 1, 1), [Store("out", GID, GID)])
    config = DispatchConfig(output_elements={"out": most // 4 + 1}, grid_override=(1, 1, 1))
    with pytest.raises(UnsupportedFeature, match=rf"{most // 4 * 4 + 4} bytes; max is {most}"):
        backend.dispatch(program, [], config)
    with pytest.raises(UnsupportedFeature, match="over max-"):
        backend.allocate_resident(most + 16)


def test_a_grid_over_the_limit_of_the_device_becomes_several_launches(backend):
    groups = backend.adapter.limits["max-compute-workgroups-per-dimension"] + 3
    if groups > 1 << 20:
        pytest.skip("the device takes longer grids than this test")
    config = DispatchConfig(grid_override=(groups, 1, 1), output_elements={"out": 4 * groups})
    (found,) = backend.dispatch(NUMBER, [], config)
    assert unwords(found) == list(range(1, 4 * groups + 1))


# ---- loops ----------------------------------------------------------------------------------------------------------


@vyre.kernel(workgroup=8)
def turning(n: In[u32], out: Out[u32]):
    total = u32(0)
    for k in range(len(n)):
        total = total + (k ^ n[gid.x])
    out[gid.x] = total


@vyre.kernel(workgroup=8)
def parting(n: In[u32], out: Out[u32]):
    turns = u32(0)
    if gid.x & 1 == 0:
        for _ in range(len(n)):
            turns = turns + 1
    else:
        for _ in range(len(n)):
            turns = turns + 2
    out[gid.x] = turns


def looped(backend, kernel, n):
    inputs = [words(*range(n))]
    config = DispatchConfig(grid_override=(1, 1, 1), output_elements={"out": 8})
    found = backend.dispatch(kernel.program, inputs, config)
    assert found == expected(kernel.program, inputs, out=8)


def test_loops_run_up_to_half_of_the_limit_and_not_beyond(backend):
    half = limited(backend) // 2
    looped(backend, turning, half - 1)  # and the turn that finds no more
    with pytest.raises(UnsupportedFeature, match=rf"up to {half + 1} turns.*after \d+ .*Fix: use the cpu backend"):
        looped(backend, turning, half)


def test_the_two_sides_of_a_branch_count_together(backend):
    """Lanes that part go through both sides together: 40,000 turns on each are 80,000."""
    limit = limited(backend)
    with pytest.raises(UnsupportedFeature, match="up to 80002 turns"):
        looped(backend, parting, 40_000)
    looped(backend, parting, limit // 4 - 1)
    with pytest.raises(UnsupportedFeature):
        looped(backend, parting, limit // 4 + 1)


def test_a_loop_without_a_bound_is_refused_and_runs_on_the_processor(backend):
    limited(backend)
    with pytest.raises(UnsupportedFeature, match="loops may take") as caught:
        backend.dispatch(LONG, [words(1)])
    assert "use the cpu backend" in str(caught.value)


@vyre.kernel(workgroup=1)
def counted(n: In[u32], out: Out[u32]):
    total = u32(0)
    for k in range(n[0]):
        total = total + k
    out[gid.x] = total


def test_a_bound_that_the_host_can_see_counts(backend):
    limit = limited(backend)
    config = DispatchConfig(grid_override=(1, 1, 1), output_elements={"out": 1})
    for turns in (0, 1, 1000, limit // 2 - 1):
        assert unwords(backend.dispatch(counted.program, [words(turns)], config)[0]) == [sum(range(turns)) & 0xFFFFFFFF]
    with pytest.raises(UnsupportedFeature):
        backend.dispatch(counted.program, [words(limit)], config)


# ---- time -----------------------------------------------------------------------------------------------------------


@vyre.kernel(workgroup=64)
def spinning(out: InOut[u32]):
    value = gid.x
    for _ in range(30_000):
        value = value * 1664525 + 1013904223
    if gid.x < len(out):
        out[gid.x] = value


@vyre.kernel(workgroup=64)
def spinning_longer(out: InOut[u32]):
    """More turns than an emulated device takes."""
    value = gid.x
    for _ in range(3_000_000):
        value = value * 1664525 + 1013904223
    if gid.x < len(out):
        out[gid.x] = value


def spins(backend):
    """A program, and so many workgroups of it that a test cannot wait for them."""
    if backend.capability.extras["emulated"]:
        return spinning.program, 300_000
    return spinning_longer.program, 30_000_000


def test_a_long_grid_ends_at_its_deadline_and_the_next_dispatch_works(guard):
    program, groups = spins(guard)
    guard.dispatch(program, [words(1)], DispatchConfig(grid_override=(1, 1, 1), timeout=60))
    config = DispatchConfig(grid_override=(groups, 1, 1), timeout=0.2)
    target, before = bytearray(words(7)), words(7)
    with pytest.raises(DeadlineExceeded):
        guard.dispatch(program, [before], config, out=[target])
    assert target == before
    assert guard.dispatch(COUNT, [words(1)]) == [words(2)]
    time.sleep(0.1)
    assert target == before


def test_work_that_cannot_be_stopped_is_left_behind(guard):
    """One part of a launch takes longer than the deadline; the next dispatch runs on another device."""
    if not guard.capability.extras["emulated"]:
        pytest.skip("a GPU is not kept busy that long by one workgroup")
    inner = guard.inner
    guard.dispatch(spinning.program, [words(1)], DispatchConfig(grid_override=(1, 1, 1)))
    guard.compile_native(COUNT, DispatchConfig(timeout=60))
    session = inner.session()
    native = inner.compile_native(spinning.program, DispatchConfig(grid_override=(4000, 1, 1)))
    ahead = native.dispatch_async([words(1)])  # the queue is busy for seconds
    with pytest.raises(DeadlineExceeded):
        guard.dispatch(COUNT, [words(1)], DispatchConfig(timeout=0.2))
    assert guard.device_lost()
    assert guard.dispatch(COUNT, [words(1)]) == [words(2)]
    assert not guard.device_lost()
    assert inner.session() is not session
    with pytest.raises(VyreError):
        ahead.result(1)


def test_a_started_dispatch_returns_at_once_and_ends_later(backend):
    def start(groups):
        native = backend.compile_native(spinning.program, DispatchConfig(grid_override=(groups, 1, 1)))
        data = bytearray(words(*range(64)))
        first, second = native.dispatch_async([data]), native.dispatch_async([data])
        data[:] = bytes(len(data))
        return second, first, native

    second, first, native = under_way(start, [1 << bits for bits in range(8, 24, 2)])
    right = native.dispatch([words(*range(64))])
    assert first.result(60) == right
    assert second.result(60) == right
    assert second.is_ready()


def test_a_timed_dispatch_has_the_time_of_the_device(backend):
    found = backend.dispatch_timed(ADD, [words(1, 2), words(3, 4)])
    assert found.outputs == [words(4, 6)]
    assert 0 < found.device_ns < found.wall_ns


# ---- traps, residency -----------------------------------------------------------------------------------------------


def test_a_trap_is_an_error_with_its_tag(backend):
    with pytest.raises(Trap, match="seven"):
        backend.dispatch(TRAP, [words(0)])
    assert backend.dispatch(COUNT, [words(1)]) == [words(2)]


@pytest.mark.parametrize("offset, data", [(0, b"abc"), (1, b"x"), (3, b"wxyz"), (5, b""), (7, b"k"), (2, b"123456")])
def test_any_bytes_of_resident_memory_can_be_written(backend, offset, data):
    handle = backend.allocate_resident(8)
    backend.upload_resident([(handle, 0, b"ABCDEFGH")])
    backend.upload_resident([(handle, offset, data)])
    expected = bytearray(b"ABCDEFGH")
    expected[offset : offset + len(data)] = data
    assert backend.download_resident([ResidentReadRange(handle, 0, 8)]) == [expected]
    backend.free_resident(handle)


def test_resident_memory_is_computed_on(backend):
    handle = backend.allocate_resident(12)
    backend.upload_resident([(handle, 0, words(1, 2, 3))])
    native = backend.compile_native(COUNT, DispatchConfig())
    for _ in range(3):
        assert native.dispatch_resident([handle]) == [handle]
    assert backend.download_resident([ResidentReadRange(handle, 4, 8)]) == [words(5, 6)]
    backend.free_resident(handle)


# ---- loss -----------------------------------------------------------------------------------------------------------


def test_a_device_that_is_destroyed_while_it_works_is_recovered(guard):
    inner = guard.inner
    old = pipelines.compile(guard, ADD)
    assert old.dispatch([words(1), words(2)]) == [words(3)]
    handle = guard.allocate_resident(4)
    config = DispatchConfig(grid_override=(500, 1, 1))
    guard.dispatch(spinning.program, [words(1)], config.with_(grid_override=(1, 1, 1)))
    timer = threading.Timer(0.05, inner.session().device.raw.destroy)
    timer.start()
    with pytest.raises(DeviceLost):
        again(lambda: guard.dispatch(spinning.program, [words(1)], config))
    timer.join()
    assert guard.device_lost()
    calls = {
        "dispatch": lambda: guard.dispatch(ADD, [words(1), words(2)]),
        "async": lambda: guard.dispatch_async(ADD, [words(1), words(2)]).result(10),
        "compile": lambda: pipelines.compile(guard, COUNT).dispatch([words(1)]),
        "old pipeline": lambda: old.dispatch([words(1), words(2)]),
        "allocate": lambda: guard.allocate_resident(1 << 40),
        "upload": lambda: guard.upload_resident([(handle, 0, words(1))]),
        "flush": guard.flush,
    }
    for call in calls.values():
        with pytest.raises(DeviceLost):
            call()
    guard.try_recover()
    assert not guard.device_lost()
    assert guard.dispatch(ADD, [words(1), words(2)]) == [words(3)]
    for call in (calls["old pipeline"], calls["upload"]):
        with pytest.raises(DeviceLost):
            call()
    assert pipelines.compile(guard, ADD).dispatch([words(1), words(2)]) == [words(3)]


def test_a_native_pipeline_from_before_a_recovery_refuses(backend):
    own = open_or_skip("wgpu")
    native = own.compile_native(COUNT, DispatchConfig())
    assert native.dispatch([words(1)]) == [words(2)]
    own.try_recover()
    with pytest.raises(DeviceLost, match="compile the program again"):
        native.dispatch([words(1)])
    assert own.dispatch(COUNT, [words(1)]) == [words(2)]
    own.shutdown()


def test_what_was_read_stays_after_the_device_is_gone():
    own = open_or_skip("wgpu")
    (found,) = own.dispatch(COUNT, [words(1)])
    view = memoryview(found)
    own.session().device.raw.destroy()
    own.shutdown()
    assert bytes(view) == words(2)


@vyre.kernel(workgroup=64)
def wide(x: In[u64], out: Out[u64]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * u64(0x123456789ABCDEF) + u64(gid.x)


def test_64_bit_integers_are_exact(backend):
    data = os.urandom(8 * 100)
    assert backend.dispatch(wide.program, [data], DispatchConfig(output_elements={"out": 100})) == expected(
        wide.program, [data], 2, out=100
    )


def test_a_resident_range_outside_its_memory_is_refused(backend):
    handle = backend.allocate_resident(8)
    with pytest.raises(ArgumentValueError, match="outside"):
        backend.upload_resident([(handle, 5, b"abcd")])
    backend.free_resident(handle)
