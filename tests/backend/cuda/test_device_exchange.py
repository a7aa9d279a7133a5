"""Memory of an NVIDIA device shared with torch, cupy and jax: no copies, and everybody's work in the right order."""

import gc
import os
import threading
import weakref

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, f32, gid, u8, u32
from vyre.driver.contract.values import ResidentReadRange
from vyre.errors import ArgumentTypeError, ArgumentValueError, BackendUnavailable, DispatchFailed
from vyre.front.device.home import home_of

try:
    home_of("cuda")
except BackendUnavailable as e:
    if "cuda" in os.environ.get("VYRE_REQUIRE_BACKENDS", "").split(","):
        raise
    pytest.skip(str(e), allow_module_level=True)

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
torch = pytest.importorskip("torch")
LONG = 40_000_000
"""Turns of a loop that take a device a tenth of a second at least."""
SLEEP = 400_000_000
"""Cycles of a device that are as long."""


@vyre.kernel(workgroup=256)
def saxpy(alpha: f32, x: In[f32], y: In[f32], out: Out[f32]):
    i = gid.x
    if i < len(out):
        out[i] = alpha * x[i] + y[i]


@vyre.kernel
def bump(x: InOut[u32]):
    if gid.x < len(x):
        x[gid.x] += u32(1)


@vyre.kernel(workgroup=64)
def stirred(turns: In[u32], x: In[u32], out: Out[u32]):
    """Ends late, and stores what it read when it began, plus a number that is odd for every odd x."""
    i = gid.x
    a = x[i]
    for _ in range(turns[0]):
        a = a * u32(1664525) + u32(2)
    out[i] = a


@vyre.kernel
def sparse(x: In[u8], out: Out[u8]):
    """Stores every other element; the others are zero."""
    if gid.x < len(out) and gid.x % u32(2) == u32(0):
        out[gid.x] = x[gid.x]


X = np.arange(1000, dtype=np.float32)


def home():
    """The one in use: another file's tests may have ended the one before."""
    return home_of("cuda")


@pytest.fixture
def exchange():
    return home().exchange


def on_device(array):
    return torch.as_tensor(np.asarray(array)).cuda()


def place(d):
    return d.__cuda_array_interface__["data"][0]


# ---- torch -----------------------------------------------------------------------------------------------------------


def test_torch_to_vyre_to_torch_without_a_copy():
    x, y = on_device(X), torch.ones(1000, device="cuda")
    d = vyre.to_device(x, "cuda:0")
    assert place(d) == x.data_ptr()
    z = saxpy(2.0, x, y)
    t = torch.from_dlpack(z)
    assert t.data_ptr() == place(z)
    assert torch.equal(t, 2 * x + y)
    out = torch.zeros_like(x)
    where = out.data_ptr()
    for _ in range(3):
        assert saxpy(2.0, x, y, out=out) is out
        assert out.data_ptr() == where
        assert torch.equal(out, 2 * x + y)
        out.zero_()
    n = torch.zeros(100, dtype=torch.int32, device="cuda")
    for k in range(1, 4):
        words = n.view(torch.uint32)
        assert bump(words) is words
        assert (n == k).all()


def test_forms_of_tensors():
    m = on_device(X).reshape(10, 100)
    for view in (m.t(), m[:, ::3], m[3:7, 10:20], m[0].expand(5, 100)):
        assert torch.equal(torch.from_dlpack(saxpy(1.0, view, torch.zeros(view.shape, device="cuda"))), view)
    for dtype in (torch.int64, torch.float64, torch.uint8, torch.int16, torch.float16, torch.bool):
        t = (on_device(X) % 3).to(dtype)
        assert np.array_equal(vyre.to_device(t[::7], "cuda").numpy(), t[::7].cpu().numpy())
        assert np.array_equal(vyre.to_device(t, "cuda").numpy(), t.cpu().numpy())
    b = torch.ones(7, dtype=torch.bfloat16, device="cuda")
    assert torch.equal(torch.from_dlpack(vyre.to_device(b, "cuda")), b)
    assert vyre.to_device(torch.zeros(0, 3, device="cuda"), "cuda").shape == (0, 3)
    assert saxpy(1.0, torch.zeros(0, device="cuda"), torch.zeros(0, device="cuda")).size == 0


def test_tensors_that_are_refused():
    x = on_device(X)
    with pytest.raises(ArgumentTypeError, match=r"x cannot be shared: .*Fix: pass x.detach\(\)"):
        saxpy(1.0, x.clone().requires_grad_(), x)
    with pytest.raises(ArgumentValueError, match=r"out receives a result and is not contiguous"):
        saxpy(1.0, x, x, out=torch.zeros(1000, 2, device="cuda")[:, 0])
    with pytest.raises(ArgumentTypeError, match=r"x holds float64"):
        saxpy(1.0, x.double(), x)
    with pytest.raises(ArgumentTypeError, match=r"a type that kernels do not know"):
        saxpy(1.0, x.to(torch.complex64), x)
    with pytest.raises(ArgumentValueError, match=r"x lives on cuda:0 and on\('cpu'\)"):
        saxpy.on("cpu")(1.0, x, x)
    with pytest.raises(ArgumentValueError, match=r"x lives on cuda:0 and y on cpu"):
        saxpy(1.0, x, vyre.to_device(X, "cpu"))


def test_overlap_follows_the_rule_over_tensors():
    memory = torch.arange(300, dtype=torch.float32, device="cuda")
    low, high = memory[:200], memory[100:]
    before = memory.clone()
    saxpy(1.0, low, low, out=high)
    assert torch.equal(high, 2 * before[:200])


def test_neighbours_of_bytes_stay_as_they_are():
    for offset in range(5):
        for length in (1, 2, 3, 5, 8, 31, 64, 65):
            memory = torch.full((200,), 0xA5, dtype=torch.uint8, device="cuda")
            x = torch.arange(1, length + 1, dtype=torch.uint8, device="cuda")
            for _ in range(2):
                sparse(x, out=memory[offset : offset + length])
            wanted = np.full(200, 0xA5, np.uint8)
            wanted[offset : offset + length] = np.where(np.arange(length) % 2 == 0, np.arange(1, length + 1), 0)
            assert np.array_equal(memory.cpu().numpy(), wanted), (offset, length)


def test_a_grid_that_does_not_run_at_once_goes_through_the_host():
    @vyre.kernel(workgroup=64)
    def turned(x: In[u32], work: InOut[u32], out: Out[u32]):
        i = gid.x
        if i < len(x):
            work[i] = x[i] + u32(1)
        vyre.grid_sync()
        if i < len(out):
            out[i] = work[len(work) - u32(1) - i]

    for count in (1 << 10, 1 << 22):
        x = torch.arange(count, dtype=torch.int32, device="cuda").view(torch.uint32)
        work = vyre.to_device(np.zeros(count, np.uint32), "cuda")
        found, out = turned(x, work)
        assert found is work
        assert np.array_equal(out.numpy(), np.arange(1, count + 1, dtype=np.uint32)[::-1])
    with pytest.raises(vyre.CooperativeResidencyExceeded):
        turned(x, work, config=vyre.DispatchConfig(cooperative=True))


# ---- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
def test_vyre_reads_after_what_a_side_stream_writes(ordered, monkeypatch, exchange):
    if not ordered:  # then this test must see the difference
        monkeypatch.setattr(type(exchange), "wait_for", lambda self, stream: None)
    side = torch.cuda.Stream()
    y = torch.zeros(1000, device="cuda")
    saxpy(1.0, y, y, out=torch.zeros_like(y))
    torch.cuda.synchronize()
    x, out = torch.zeros(1000, device="cuda"), torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLEEP)
        x.fill_(7.0)
        saxpy(1.0, x, y, out=out)
    home().backend.flush()
    found = vyre.to_device(out, "cuda").numpy() if ordered else None
    torch.cuda.synchronize()
    if ordered:
        assert (found == 7).all()
    else:
        assert (out.cpu() == 0).all()


@pytest.mark.parametrize("ordered", [True, False])
def test_torch_reads_after_what_vyre_writes(ordered, monkeypatch, exchange):
    side = torch.cuda.Stream()
    turns = vyre.to_device(np.array([LONG], np.uint32), "cuda")
    x = torch.ones(64, dtype=torch.int32, device="cuda").view(torch.uint32)
    out = torch.zeros(64, dtype=torch.int32, device="cuda")
    words = out.view(torch.uint32)
    stirred(vyre.to_device(np.array([1], np.uint32), "cuda"), x, out=words)
    stirred(turns, x, out=words)
    torch.cuda.synchronize()
    out.zero_()
    torch.cuda.synchronize()
    if not ordered:
        monkeypatch.setattr(type(exchange), "release_to", lambda self, stream: None)
    with torch.cuda.stream(side):
        stirred(turns, x, out=words)
        seen = out.clone()
    side.synchronize()
    assert bool((seen % 2 == 1).all()) is ordered
    home().backend.flush()
    torch.cuda.synchronize()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_torch_writes_after_vyre_has_copied_elements_that_lie_apart(dtype):
    turns, n = vyre.to_device(np.array([LONG], np.uint32), "cuda"), vyre.to_device(np.ones(64, np.uint32), "cuda")
    x = torch.ones(10, 100, dtype=dtype, device="cuda").t()
    busy = vyre.to_device(np.zeros(64, np.uint32), "cuda")
    for _ in range(6):  # nobody waits once the copy is ready, over memory that takes turns
        x.fill_(1)
        torch.cuda.synchronize()
        stirred(turns, n, out=busy)
        d = vyre.to_device(x, "cuda")
        x.zero_()
        assert (d.numpy() == 1).all()


def test_vyre_reads_after_the_default_stream_where_an_array_tells_none():
    class Older:
        def __init__(self, tensor):
            self.__cuda_array_interface__ = dict(tensor.__cuda_array_interface__, version=3, stream=None)

    x, y = torch.zeros(1000, device="cuda"), vyre.to_device(np.zeros(1000, np.float32), "cuda")
    saxpy(1.0, Older(x), y)
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP)
    x.fill_(7.0)
    z = saxpy(1.0, Older(x), y)
    x.zero_()
    assert (z.numpy() == 7).all()


@pytest.mark.parametrize("ordered", [True, False])
def test_torch_reads_lent_memory_after_what_vyre_writes(ordered, monkeypatch, exchange):
    side = torch.cuda.Stream()
    turns, x = vyre.to_device(np.array([LONG], np.uint32), "cuda"), vyre.to_device(np.ones(64, np.uint32), "cuda")
    out = vyre.to_device(np.zeros(64, np.uint32), "cuda")
    stirred(turns, x, out=out)
    home().backend.upload_resident([(out._memory.handle, 0, bytes(256))])
    if not ordered:
        monkeypatch.setattr(type(exchange), "release_to", lambda self, stream: None)
    stirred(turns, x, out=out)
    with torch.cuda.stream(side):
        seen = torch.from_dlpack(out).view(torch.int32).clone()
    side.synchronize()
    assert bool((seen % 2 == 1).all()) is ordered
    home().backend.flush()


def test_torch_reads_through_the_older_protocol_after_what_vyre_writes():
    turns, x = vyre.to_device(np.array([LONG], np.uint32), "cuda"), vyre.to_device(np.ones(64, np.uint32), "cuda")
    out = vyre.to_device(np.zeros(64, np.uint32), "cuda")
    stirred(turns, x, out=out)
    home().backend.upload_resident([(out._memory.handle, 0, bytes(256))])
    stirred(turns, x, out=out)
    seen = torch.as_tensor(out, device="cuda").view(torch.int32).clone()  # it does not look at the stream it is told
    assert (seen % 2 == 1).all()
    home().backend.flush()


def test_a_call_inside_a_capture_is_refused_and_the_capture_goes_on():
    x, y = on_device(X), on_device(X)
    z = saxpy(1.0, x, y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.add_(1)
        for _ in range(2):
            with pytest.raises(DispatchFailed, match=r"captures a graph.*Fix: call vyre before or after the capture"):
                saxpy(1.0, x, y)
        x.mul_(2)
    graph.replay()
    assert (x.cpu().numpy() == 2 * (X + 1)).all()
    assert (saxpy(1.0, x, y).numpy() == 3 * X + 2).all()
    assert (z.numpy() == 2 * X).all()


@vyre.kernel(workgroup=64)
def even(x: In[u32], out: Out[u32]):
    """Stores every other element; the others are zero."""
    if u32(2) * gid.x < len(out):
        out[u32(2) * gid.x] = x[gid.x]


def test_graphs_fill_memory_of_several_allocators_in_turn():
    x = vyre.to_device(np.ones(100, np.uint32), "cuda")
    ours = [vyre.to_device(np.full(100, 9, np.uint32), "cuda") for _ in range(6)]
    theirs = [torch.full((100,), 9, dtype=torch.int32, device="cuda") for _ in range(6)]
    for _ in range(20):
        for out in (*ours, *(t.view(torch.uint32) for t in theirs)):
            even(x, out=out)
    for found in (*(d.numpy() for d in ours), *(t.cpu().numpy() for t in theirs)):
        assert found.tolist() == [1, 0] * 50


def test_streams_by_number_and_none():
    d = vyre.to_device(X, "cuda")
    for stream in (None, -1, 1, 2, torch.cuda.Stream().cuda_stream):
        del_me = d.__dlpack__(stream=stream)
        del del_me
    for stream in (0, -2):
        with pytest.raises(ArgumentValueError, match="is not a stream"):
            d.__dlpack__(stream=stream)
    d.free()
    assert np.array_equal(vyre.to_device(X, "cuda").numpy(), X)


def test_a_stream_of_another_context_is_refused_and_nothing_is_lost():
    from cuda.bindings import driver as cu

    more = (None,) if cu.CUDA_VERSION >= 13000 else ()
    code, context = cu.cuCtxCreate(*more, 0, 0)
    assert not code
    try:
        _, stream = cu.cuStreamCreate(1)
    finally:
        cu.cuCtxPopCurrent()
    d = vyre.to_device(X, "cuda")
    try:
        with pytest.raises(ArgumentValueError, match=r"does not belong to device 0.*Fix: use arrays, and streams, of"):
            d.__dlpack__(stream=int(stream))
    finally:
        cu.cuCtxDestroy(context)
    assert not home().backend.device_lost()
    assert np.array_equal(d.numpy(), X)


def test_memory_comes_back_to_torch_when_vyre_is_done_with_it():
    turns = vyre.to_device(np.array([LONG], np.uint32), "cuda")
    out = vyre.to_device(np.zeros(64, np.uint32), "cuda")
    x = torch.ones(1 << 20, dtype=torch.int32, device="cuda").view(torch.uint32)
    stirred(turns, x, out=out)
    home().backend.flush()
    gc.collect()
    held = torch.cuda.memory_allocated()
    stirred(turns, x, out=out)
    del x
    assert torch.cuda.memory_allocated() == held  # the kernel still reads it
    assert (out.numpy() % 2 == 1).all()
    home().backend.flush()
    assert torch.cuda.memory_allocated() < held


def test_lent_memory_is_not_used_again_before_its_user_is_done():
    side = torch.cuda.Stream()
    d = vyre.to_device(np.ones(1 << 18, np.float32), "cuda")
    where = place(d)
    with torch.cuda.stream(side):
        t = torch.from_dlpack(d)
        torch.cuda._sleep(SLEEP)
        seen = t + 1
    del t, d
    gc.collect()
    again = vyre.to_device(np.full(1 << 18, 9, np.float32), "cuda")
    side.synchronize()
    assert (seen == 2).all()
    assert place(again) == where


def test_a_tensor_lives_as_long_as_its_array():
    x = on_device(X)
    d = vyre.to_device(x, "cuda")
    gone = weakref.ref(x)
    x.add_(1)
    assert np.array_equal(d.numpy(), X + 1)
    del x
    assert gone() is not None
    assert np.array_equal(saxpy(1.0, d, d).numpy(), 2 * (X + 1))
    d.free()
    home().backend.flush()
    gc.collect()
    assert gone() is None


def test_calls_over_tensors_from_threads():
    failed = []

    def work(k):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                x = torch.full((1000,), float(k), device="cuda")
                for _ in range(50):
                    x = torch.from_dlpack(saxpy(1.0, x, torch.ones(1000, device="cuda")))
                assert (x == k + 50).all()
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_thousand_calls_leave_nothing_behind():
    x, y, out = (torch.ones(1000, device="cuda") for _ in range(3))
    for _ in range(100):
        saxpy(2.0, x, y, out=out)
        saxpy(2.0, x, y)
    torch.cuda.synchronize()
    home().backend.flush()
    objects, allocated = len(gc.get_objects()), torch.cuda.memory_allocated()
    resident = home().backend.metrics()["resident_bytes"]
    for _ in range(1000):
        saxpy(2.0, x, y, out=out)
        torch.from_dlpack(saxpy(2.0, x, y))
    torch.cuda.synchronize()
    home().backend.flush()
    gc.collect()
    assert len(gc.get_objects()) < objects + 500
    assert torch.cuda.memory_allocated() == allocated
    assert home().backend.metrics()["resident_bytes"] == resident


# ---- cupy, jax -------------------------------------------------------------------------------------------------------


def test_cupy_to_vyre_to_cupy_without_a_copy():
    cupy = pytest.importorskip("cupy")
    a, b = cupy.arange(1000, dtype=cupy.float32), cupy.ones(1000, cupy.float32)
    assert place(vyre.to_device(a, "cuda")) == a.data.ptr
    out = cupy.zeros_like(a)
    where = out.data.ptr
    assert saxpy(2.0, a, b, out=out) is out
    assert out.data.ptr == where
    assert bool((out == 2 * a + b).all())
    z = saxpy(2.0, a, b)
    for taken in (cupy.from_dlpack(z), cupy.asarray(z)):
        assert taken.data.ptr == place(z)
        assert bool((taken == 2 * a + b).all())
    n = cupy.zeros(10, cupy.uint32)
    assert bump(n) is n
    assert bool((n == 1).all())
    side = cupy.cuda.Stream(non_blocking=True)
    with side:
        found = saxpy(2.0, a, b, out=cupy.zeros_like(a))
        assert bool((found == 2 * a + b).all())
        assert bool((cupy.asarray(saxpy(1.0, a[::2], b[::2])) == a[::2] + 1).all())


def test_jax_arrays_go_in_and_out():
    jax = pytest.importorskip("jax")
    a = jax.numpy.arange(1000, dtype=jax.numpy.float32)
    if a.devices().pop().platform == "cpu":
        pytest.skip("jax has no device here")
    z = saxpy(2.0, a, a)
    found = jax.dlpack.from_dlpack(z)
    assert found.unsafe_buffer_pointer() == place(z)
    assert np.array_equal(np.asarray(found), 3 * X)


def test_an_array_that_only_has_the_older_protocol():
    class Older:
        def __init__(self, tensor, **said):
            self.tensor = tensor
            self.__cuda_array_interface__ = dict(tensor.__cuda_array_interface__, version=3, **said)

    x = on_device(X)
    torch.cuda.synchronize()
    for stream in (None, 1, 2, torch.cuda.Stream().cuda_stream):
        assert np.array_equal(saxpy(2.0, Older(x, stream=stream), X).numpy(), 3 * X)
    assert np.array_equal(saxpy(2.0, Older(x), X).numpy(), 3 * X)
    assert np.array_equal(vyre.to_device(Older(x[::2]), "cuda").numpy(), X[::2])
    out = Older(torch.zeros_like(x))
    assert saxpy(2.0, Older(x), Older(x), out=out) is out
    assert torch.equal(out.tensor, 3 * x)
    host = Older(x, data=(X.ctypes.data, False))
    with pytest.raises(ArgumentValueError, match=r"is not on device 0\. Fix: pass an array of this device"):
        saxpy(2.0, host, X)


# ---- pinned memory ---------------------------------------------------------------------------------------------------


def test_pinned_memory_is_copied_directly(monkeypatch):
    device = home().backend.inner.session().device
    x, out = (vyre.empty((1 << 10, 1 << 10), np.float32, pinned_for="cuda") for _ in range(2))
    where = x.ctypes.data
    assert device.is_pinned(where, x.nbytes)
    assert device.is_pinned(where + 4096, x.nbytes - 4096)
    assert not device.is_pinned(where, x.nbytes + (1 << 24))
    assert not device.is_pinned(np.zeros(1 << 20, np.float32).ctypes.data, 1 << 22)
    staged = []
    monkeypatch.setattr(type(device), "upload", lambda *a: staged.append("upload"))
    monkeypatch.setattr("vyre.backends.cuda.device.Crew", lambda n: staged.append("download"))
    x[:] = np.arange(1 << 20, dtype=np.float32).reshape(x.shape)
    out[:] = 0
    for _ in range(2):
        saxpy.on("cuda")(2.0, x, x, out=out)
        assert np.array_equal(out, 3 * x)
    assert staged == []
    theirs = torch.empty(1 << 20, dtype=torch.float32, pin_memory=True).numpy().reshape(x.shape)
    saxpy.on("cuda")(2.0, x, x, out=theirs)
    assert np.array_equal(theirs, 3 * x)
    d = vyre.to_device(x, "cuda")
    home().backend.download_resident([ResidentReadRange(d._memory.handle, 0, d.nbytes)], out=[out])
    assert np.array_equal(out, x)
    assert staged == []
    rows = x[10:20]
    del x
    assert device.is_pinned(where, 1 << 12)
    del rows, d
    gc.collect()
    assert not device.is_pinned(where, 1 << 12)


def test_a_started_call_does_not_read_pinned_memory_later():
    x = vyre.empty(1 << 20, np.float32, pinned_for="cuda")
    x[:] = 1
    started = saxpy.on("cuda").start(2.0, x, x)
    x[:] = 9
    assert (started.result() == 3).all()
