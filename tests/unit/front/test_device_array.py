"""Arrays that live on a device: what they are, what kernels do with them, and when their memory goes."""

import copy
import ctypes
import gc
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, Uniform, bf16, bool_, f32, f64, gid, grid_sync, i64, u8, u16, u32
from vyre.driver.contract.exchange import DeviceExchange
from vyre.driver.selection.registry import isolated, locate, refresh
from vyre.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    BackendUnavailable,
    DeviceLost,
    InvalidProgram,
    Trap,
    UnsupportedFeature,
    VyreError,
)
from vyre.front.device import array as device_array
from vyre.front.device import dlpack
from vyre.front.device import home as device_home
from vyre.front.device.array import duplicate
from vyre.front.device.home import home_of, place_of

BACKENDS = ("cpu", "opencl", "wgpu", "cuda")


@pytest.fixture(params=BACKENDS)
def name(request):
    try:
        home_of(request.param)
    except BackendUnavailable as e:
        if request.param in os.environ.get("VYRE_REQUIRE_BACKENDS", "").split(","):
            pytest.fail(f"{request.param} is required: {e}")
        pytest.skip(str(e))
    return request.param


@vyre.kernel(workgroup=64)
def saxpy(alpha: f32, x: In[f32], y: In[f32], out: Out[f32]):
    i = gid.x
    if i < len(out):
        out[i] = alpha * x[i] + y[i]


@vyre.kernel
def bump(x: InOut[u32]):
    if gid.x < len(x):
        x[gid.x] += u32(1)


@vyre.kernel
def both(x: In[u32], n: InOut[u32], out: Out[u32]):
    i = gid.x
    if i < len(x):
        n[i] += x[i]
        out[i] = x[i] * u32(2)


@vyre.kernel
def reverse(x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[len(x) - u32(1) - gid.x]


@vyre.kernel
def scaled(x: In[u32], table: Uniform[u32, 4], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * table[gid.x % u32(4)]


X = np.arange(1000, dtype=np.float32)
Y = np.full(1000, 0.5, np.float32)
N = np.arange(100, dtype=np.uint32)


# ---- arrays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "?"])
def test_an_array_comes_back_as_it_went(name, dtype):
    for shape in ((7,), (3, 5), (), (2, 0, 3), (1, 1, 1)):
        x = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 3, dtype)
        d = vyre.to_device(x, name)
        assert (d.dtype, d.shape, d.size, d.ndim) == (x.dtype, x.shape, x.size, x.ndim)
        assert d.nbytes == x.size * (4 if dtype == "?" else x.itemsize)
        back = d.numpy()
        assert (back.dtype, back.shape) == (x.dtype, x.shape)
        assert np.array_equal(back, x)
        assert np.array_equal(np.asarray(d), x)


def test_scattered_swapped_and_foreign_arrays_of_the_host_are_read(name):
    for x in (X[::3], X.reshape(10, 100).T, X.astype(">f4"), memoryview(X)):
        assert np.array_equal(vyre.to_device(x, name).numpy(), np.asarray(x))


def test_an_array_says_what_it_is(name):
    d = vyre.to_device(X, name)
    assert repr(d) == f"DeviceBuffer(float32, shape=(1000,), device={place_of(name)[1]!r})"
    assert d.device == place_of(name)[1]
    assert len(d) == 1000
    assert vyre.to_device(d, name) is d
    assert vyre.to_device(d, d.device) is d
    with pytest.raises(ArgumentTypeError, match=r"without axes has no length.*Fix: use .size"):
        len(vyre.to_device(np.array(1, np.float32), name))
    assert np.asarray(d, np.float64).dtype == np.float64
    with pytest.raises(ArgumentValueError, match=r"cannot be seen by the host.*Fix: let it be copied"):
        np.asarray(d, copy=False)


def test_an_array_stays_in_its_process(name):
    d = vyre.to_device(X, name)
    for send in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(ArgumentTypeError, match=r"cannot be pickled or copied\. Fix: send d.numpy\(\)"):
            send(d)


def test_what_is_no_array_and_no_device_is_refused():
    with pytest.raises(ArgumentTypeError, match=r"x holds complex64, which no device array does.*Fix: "):
        vyre.to_device(np.ones(3, np.complex64), "cpu")
    with pytest.raises(ArgumentTypeError, match="x is a list"):
        vyre.to_device([1, 2], "cpu")
    with pytest.raises(BackendUnavailable, match="Fix: use one of"):
        vyre.to_device(X, "abacus")
    with pytest.raises(BackendUnavailable, match=r"has no device '7'.*Fix: use one of"):
        vyre.to_device(X, "cpu:7")
    with pytest.raises(ArgumentTypeError, match=r"device is a int\. Fix: name a device"):
        vyre.to_device(X, 0)
    with pytest.raises(UnsupportedFeature, match=r"reference has no resident buffer allocation.*Fix: "):
        vyre.to_device(X, "reference")
    with pytest.raises(ArgumentTypeError, match=r"not made by calling its class\. Fix: use vyre.to_device"):
        vyre.DeviceBuffer(X)


def test_names_of_one_device_mean_one_device(name):
    id, info = locate(name)
    assert id == name
    assert home_of(name) is home_of(f"{name}:{info.index}") is home_of(f"{name}:{info.name}")


# ---- memory ----------------------------------------------------------------------------------------------------------


def resident_bytes(home):
    gc.collect()  # errors of other tests may hold arrays
    home.forget_idle()
    return home.backend.metrics()["resident_bytes"]


def test_memory_goes_with_the_last_who_holds_it(name):
    home = home_of(name)
    before = resident_bytes(home)
    d = vyre.to_device(X, name)
    assert resident_bytes(home) == before + X.nbytes
    e = saxpy(2.0, d, d)
    assert resident_bytes(home) >= before + 2 * X.nbytes
    del d, e
    gc.collect()
    assert resident_bytes(home) <= before + 64  # a number that calls repeat may have stayed
    with vyre.to_device(X, name) as d:
        assert resident_bytes(home) > before + 64
    assert resident_bytes(home) <= before + 64
    d.free()


def test_a_freed_array_is_refused_everywhere(name):
    d = vyre.to_device(X, name)
    saxpy(2.0, d, d, out=vyre.to_device(X, name))
    bump(n := vyre.to_device(N, name))
    bump(n)
    d.free(), n.free()
    assert "freed" in repr(d)
    uses = (
        d.numpy,
        d.__dlpack__,
        lambda: saxpy(2.0, d, X),
        lambda: bump(n),
        lambda: saxpy.start(2.0, X, d),
        lambda: saxpy.explain(2.0, X, d),
        lambda: vyre.to_device(d, name),
    )
    for use in uses:
        with pytest.raises(ArgumentValueError, match=r"was freed.*Fix: use it before free\(\)"):
            use()
    assert not hasattr(d, "__cuda_array_interface__")


def test_small_memory_is_used_again_and_large_memory_is_not_kept(name, monkeypatch):
    home = home_of(name)
    home.forget_idle()
    d = vyre.to_device(X, name)
    handle = d._memory.handle
    del d
    assert vyre.to_device(Y, name)._memory.handle is handle
    monkeypatch.setattr(device_home, "KEPT_BYTES", 4 * X.nbytes)
    d = [vyre.to_device(X, name) for _ in range(6)]
    big = vyre.to_device(np.zeros(4000, np.float32), name)
    del d, big
    assert home._idle_bytes == 4 * X.nbytes
    assert home.forget_idle()
    assert not home.forget_idle()


def test_memory_that_is_dropped_while_the_backend_works_is_freed_later(name):
    home = home_of(name)
    before = resident_bytes(home)
    d = vyre.to_device(X, name)
    home.backend.device_state.inflight.append(None)
    try:
        del d
        assert home.backend.metrics()["resident_bytes"] == before + X.nbytes
    finally:
        home.backend.device_state.inflight.pop()
    home.sweep()
    assert resident_bytes(home) == before


@vyre.kernel(workgroup=64)
def grind(turns: u32, x: InOut[u32]):
    if gid.x < len(x):
        for k in range(turns):
            x[gid.x] = x[gid.x] * 1664525 + k


@vyre.sequence
def grind_twice(turns, x, y):
    grind(turns, x)
    grind(turns, y)


FREEING = {
    "call": lambda turns, d, e: grind(turns, d),
    "call with options": lambda turns, d, e: grind(turns, d, domain=4096),
    "call beside the host": lambda turns, d, e: grind_from(turns, d, np.zeros(1, np.uint32)),
    "sequence": grind_twice,
}


@vyre.kernel(workgroup=64)
def grind_from(turns: u32, x: InOut[u32], y: In[u32]):
    if gid.x < len(x):
        for k in range(turns):
            x[gid.x] = x[gid.x] * 1664525 + k + y[0]


@pytest.mark.parametrize("how", FREEING)
def test_memory_that_is_freed_while_a_call_works_in_it_goes_to_no_other_array_before_the_end(how):
    home, sevens = home_of("cpu"), np.full(4096, 7, np.uint32)
    FREEING[how](1, *(vyre.to_device(sevens, "cpu") for _ in "de"))
    d, e = (vyre.to_device(sevens, "cpu") for _ in "de")
    memory = weakref.ref(d._memory)
    worker = threading.Thread(target=FREEING[how], args=(300_000, d, e))
    worker.start()
    while worker.is_alive() and not home.backend.device_state.inflight:
        time.sleep(0.001)
    d.free()
    held = memory() is not None
    assert held or not worker.is_alive()
    others = [vyre.to_device(sevens, "cpu") for _ in range(4)]
    worker.join()
    assert all(np.array_equal(other.numpy(), sevens) for other in others)
    assert memory() is None


def test_memory_of_a_device_that_was_recovered_is_refused():
    for name in ("opencl", "wgpu"):
        try:
            home = home_of(name)
        except BackendUnavailable:
            continue
        d, n = vyre.to_device(X, name), vyre.to_device(N, name)
        bump(n)
        bump(n)
        home.backend.try_recover()
        for use in (d.numpy, lambda d=d: saxpy(2.0, d, X), lambda n=n: bump(n)):
            with pytest.raises(DeviceLost, match=r"before it was recovered.*Fix: allocate and upload it again"):
                use()
        again = vyre.to_device(X, name)
        assert np.array_equal(saxpy(1.0, again, Y).numpy(), X + Y)
        del d, n


FORKED = """
import os, sys
import numpy as np, vyre
d = vyre.to_device(np.ones(10, np.uint32), sys.argv[1])
child = os.fork()
if not child:
    try:
        d.numpy()
    except vyre.DeviceLost as e:
        print(e, flush=True)
    del d
    os._exit(0)
os.waitpid(child, 0)
print(d.numpy().sum())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_has_no_device_arrays(name):
    options = ["-W", "ignore", "-c", FORKED, name]
    found = subprocess.run([sys.executable, *options], capture_output=True, text=True, timeout=60, check=False)
    refusal, total = found.stdout.splitlines()
    assert "forked" in refusal
    assert "Fix: use the spawn start method" in refusal
    assert total == "10"


# ---- calls -----------------------------------------------------------------------------------------------------------


def test_results_stay_on_the_device(name):
    x, y = vyre.to_device(X, name), vyre.to_device(Y, name)
    for _ in range(3):
        z = saxpy(2.0, x, y)
        assert type(z) is vyre.DeviceBuffer
        assert (z.device, z.dtype, z.shape) == (x.device, np.float32, (1000,))
        assert np.array_equal(z.numpy(), 2 * X + Y)
    assert np.array_equal(saxpy(3.0, z, z).numpy(), 4 * (2 * X + Y))


def test_numbers_may_change_from_call_to_call(name):
    x, out = vyre.to_device(X, name), vyre.to_device(X, name)
    for alpha in (0.0, -0.0, 2.0, 2, 2.5, 0.0, 2.0, -0.0, *range(100), 2.0, 0.0):
        assert saxpy(alpha, x, x, out=out) is out
        wanted = saxpy.on("reference")(float(alpha), X, X)
        assert out.numpy().tobytes() == wanted.tobytes(), alpha
    with pytest.raises(ArgumentTypeError, match="declares one f32 value"):
        saxpy("2", x, x, out=out)


def test_a_number_that_a_call_uses_is_not_forgotten_for_another_one(name, monkeypatch):
    monkeypatch.setattr(device_home, "MOST_CONSTANTS", 3)

    @vyre.kernel
    def line(a: f32, b: f32, x: In[f32], out: Out[f32]):
        if gid.x < len(out):
            out[gid.x] = a * x[gid.x] + b

    x = vyre.to_device(X, name)
    for b in np.repeat(np.arange(5.0), 3):
        assert np.array_equal(line(2.0, float(b), x).numpy(), 2 * X + np.float32(b))


def test_a_number_that_two_threads_bring_at_once_is_there_once(name, monkeypatch):
    home, data = home_of(name), os.urandom(16)
    assert home.constant(data) is None
    upload, faster = home.backend.upload_resident, []

    def another_thread_first(ranges):
        monkeypatch.setattr(home.backend, "upload_resident", upload)
        faster.append(home.constant(data))
        upload(ranges)

    monkeypatch.setattr(device_home, "MOST_CONSTANTS", 1000)  # so that none goes for it
    monkeypatch.setattr(home.backend, "upload_resident", another_thread_first)
    before = home.backend.metrics()["resident_bytes"]
    kept = home.constant(data)
    assert faster == [kept]
    assert home.backend.metrics()["resident_bytes"] == before + 16
    assert home.constant(data) is kept


def test_a_mix_uploads_the_arrays_of_the_host(name):
    x = vyre.to_device(X, name)
    assert np.array_equal(saxpy(2.0, x, Y).numpy(), 2 * X + Y)
    assert np.array_equal(saxpy(2.0, Y, x).numpy(), 2 * Y + X)
    strided = np.repeat(Y, 2)[::2]
    assert np.array_equal(saxpy(2.0, x, strided).numpy(), 2 * X + Y)
    table = np.array([1, 2, 3, 4], np.uint32)
    n = vyre.to_device(N, name)
    for _ in range(3):
        assert np.array_equal(scaled(n, table).numpy(), N * np.tile(table, 25))
        table += 1


def test_results_go_where_the_caller_wants_them(name):
    x, y, out = vyre.to_device(X, name), vyre.to_device(Y, name), vyre.to_device(np.zeros_like(X), name)
    for _ in range(3):
        assert saxpy(2.0, x, y, out=out) is out
        assert np.array_equal(out.numpy(), 2 * X + Y)
    host = np.zeros_like(X)
    assert saxpy(2.0, x, y, out=host) is host
    assert np.array_equal(host, 2 * X + Y)
    assert np.array_equal(saxpy(2.0, x, y, out=None).numpy(), 2 * X + Y)
    assert saxpy(2.0, X, Y, out=out) is out
    assert np.array_equal(out.numpy(), 2 * X + Y)


def test_an_updated_array_is_updated_in_place(name):
    n = vyre.to_device(N, name)
    for k in range(1, 4):
        assert bump(n) is n
        assert np.array_equal(n.numpy(), N + k)
    host = N.copy()
    x = vyre.to_device(N, name)
    found, doubled = both(x, host)
    assert found is host
    assert np.array_equal(host, 2 * N)
    assert np.array_equal(doubled.numpy(), 2 * N)
    updated, host_out = both(x, n, out=np.empty_like(N))
    assert updated is n
    assert np.array_equal(host_out, 2 * N)
    assert np.array_equal(n.numpy(), 2 * N + 3)


def test_an_array_with_more_words_than_ids_is_not_copied_on_its_device():
    d = vyre.to_device(N, "cpu")
    longer = device_array.DeviceBuffer._over(d._at(), d._memory, np.dtype("f8"), (1 << 31,))
    with pytest.raises(ArgumentValueError, match=r"17179869184 bytes is too long .*Fix: pass arrays that do"):
        duplicate(longer)


def test_an_input_that_is_also_written_is_read_as_it_was(name):
    for count in (100, 101):
        n = vyre.to_device(np.arange(count, dtype=np.uint32), name)
        for _ in range(2):
            before = n.numpy()
            assert reverse(n, out=n) is n
            assert np.array_equal(n.numpy(), before[::-1])
    x = vyre.to_device(N, name)
    n, out = both(x, x)
    assert n is x
    assert np.array_equal(x.numpy(), 2 * N)
    assert np.array_equal(out.numpy(), 2 * N)
    narrow = vyre.to_device(np.arange(7, dtype=np.uint8), name)
    assert np.array_equal(duplicate(narrow).numpy(), np.arange(7))
    assert duplicate(narrow)._memory is not narrow._memory


def test_two_results_in_one_place_are_refused(name):
    x, n = vyre.to_device(N, name), vyre.to_device(N, name)
    with pytest.raises(ArgumentValueError, match=r"n and out are both written and share memory\. Fix: pass a copy of"):
        both(x, n, out=n)
    host = N.copy()
    with pytest.raises(ArgumentValueError, match=r"n and out are both written and share memory\. Fix: pass out.copy"):
        both(x, host, out=host)
    assert np.array_equal(n.numpy(), N)


def test_arguments_are_checked_as_those_of_the_host_are(name):
    x = vyre.to_device(X, name)
    with pytest.raises(ArgumentTypeError, match=r"x holds float64 .* declares f32.*Fix: pass a device array"):
        saxpy(2.0, vyre.to_device(X.astype(np.float64), name), x)
    with pytest.raises(ArgumentTypeError, match=r"y holds float64 .* declares f32.*Fix: y.astype"):
        saxpy(2.0, x, X.astype(np.float64))
    with pytest.raises(ArgumentValueError, match=r"the inputs differ.*Fix: pass sizes="):
        saxpy(2.0, x, vyre.to_device(X[:10], name))
    assert saxpy(2.0, x, vyre.to_device(X[:10], name), sizes={"out": 10}, domain=10).shape == (10,)
    with pytest.raises(ArgumentValueError, match=r"table has 3 elements and the kernel declares 4\. Fix: pass 4"):
        scaled(vyre.to_device(N, name), vyre.to_device(N[:3], name))
    read_only = np.zeros_like(X)
    read_only.flags.writeable = False
    with pytest.raises(ArgumentValueError, match="out receives a result and is read-only"):
        saxpy(2.0, x, x, out=read_only)
    for other in (np.float32([1.0]), np.int32([1])):
        with pytest.raises(ArgumentTypeError, match=rf"holds {other.dtype} .* declares u32.*Fix: pass a device array"):
            bump(vyre.to_device(other, name))
    assert bump(vyre.to_device(np.float32([1.0]).view(np.uint32), name)).numpy()[0] == 0x3F800001


def test_the_device_of_the_arguments_runs_the_call(name):
    x = vyre.to_device(X, name)
    for asked in (name, x.device):
        assert np.array_equal(saxpy.on(asked)(2.0, x, x).numpy(), 3 * X)
    other = "cpu" if name != "cpu" else "opencl"
    with pytest.raises(ArgumentValueError, match=rf"x lives on {x.device} and on\('reference'\).*Fix: drop on\(\)"):
        saxpy.on("reference")(2.0, x, x)
    n = vyre.to_device(N, name)
    bump(n)
    bump(n)
    with pytest.raises(ArgumentValueError, match=r"asks for another device"):
        bump.on("reference")(n)
    try:
        y = vyre.to_device(Y, other)
    except BackendUnavailable:
        return
    with pytest.raises(ArgumentValueError, match=rf"x lives on {x.device} and y on {y.device}\. Fix: bring one"):
        saxpy(2.0, x, y)
    assert np.array_equal(saxpy(2.0, x, vyre.to_device(y, name)).numpy(), 2 * X + Y)


def test_a_backend_that_was_opened_anew_is_another_place():
    x = vyre.to_device(X, "cpu")
    refresh()
    y = vyre.to_device(Y, "cpu")
    with pytest.raises(ArgumentValueError, match=r"x and y live on cpu:0, which was opened anew.*Fix: bring both"):
        saxpy(2.0, x, y)
    assert np.array_equal(saxpy(2.0, vyre.to_device(x, "cpu"), vyre.to_device(y, "cpu")).numpy(), 2 * X + Y)


def test_threads_that_meet_at_a_new_backend_find_one_home():
    refresh()
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(home_of, ["cpu"] * 32))
    assert homes == {home_of("cpu")}


def test_shapes_sizes_and_domains_mean_the_same(name):
    m = vyre.to_device(X.reshape(20, 50), name)
    assert saxpy(2.0, m, m).shape == (20, 50)

    @vyre.kernel(workgroup=(8, 8))
    def plane(out: Out[u32], x: In[u32]):
        if gid.x < u32(30) and gid.y < u32(20):
            out[gid.y * u32(30) + gid.x] = gid.x + gid.y * u32(100) + x[0]

    one = vyre.to_device(np.array([7], np.uint32), name)
    for options in ({"sizes": {"out": (20, 30)}}, {"sizes": {"out": 600}, "domain": (30, 20)}):
        assert np.array_equal(plane(one, **options).numpy(), plane.on("reference")(np.array([7], np.uint32), **options))


def test_empty_arrays_and_empty_grids_are_legal(name):
    none = vyre.to_device(X[:0], name)
    assert saxpy(2.0, none, none).shape == (0,)
    assert saxpy(2.0, none, none, out=none) is none
    assert bump(vyre.to_device(N[:0], name)).size == 0
    out = vyre.to_device(X, name)
    x = vyre.to_device(X, name)
    assert saxpy(2.0, x, x, out=out, domain=0) is out
    assert not out.numpy().any()
    assert not saxpy(2.0, x, x, domain=0).numpy().any()
    n = vyre.to_device(N, name)
    assert np.array_equal(bump(n, domain=0).numpy(), N)
    host = X.copy()
    assert not saxpy(2.0, x, x, out=host, domain=0).any()
    f, g = both(vyre.to_device(N[:0], name), n, sizes={"out": 0})
    assert f is n
    assert g.size == 0


def test_bools_narrow_and_wide_elements(name):
    @vyre.kernel
    def flags(x: In[u32], old: In[bool_], out: Out[bool_]):
        if gid.x < len(out):
            out[gid.x] = (x[gid.x] % u32(3) == u32(0)) != old[gid.x]

    old = N % 2 == 0
    wanted = (N % 3 == 0) != old
    for given in (old, vyre.to_device(old, name)):
        found = flags(vyre.to_device(N, name), given)
        assert found.dtype == np.bool_
        assert np.array_equal(found.numpy(), wanted)
    assert np.array_equal(flags(N, found, out=np.empty(100, np.bool_)), (N % 3 == 0) != wanted)
    with pytest.raises(UnsupportedFeature, match=r"(bools as words|no addresses).*Fix: pass d.numpy\(\)"):
        found.__dlpack__()

    @vyre.kernel
    def narrow(x: In[u8], out: Out[u16]):
        if gid.x < len(out):
            out[gid.x] = u16(u32(x[gid.x]) * u32(3))

    x = np.arange(7, dtype=np.uint8)
    assert np.array_equal(narrow(vyre.to_device(x, name)).numpy(), x * np.uint16(3))


def test_calls_that_are_started_and_explained(name):
    x, y = vyre.to_device(X, name), vyre.to_device(Y, name)
    started = saxpy.start(2.0, x, y)
    assert started.is_ready()
    assert np.array_equal(started.result(1.0).numpy(), 2 * X + Y)
    told = saxpy.explain(2.0, x, y)
    assert str(told.decisions[0]) == f"backend: {name} (arguments live on {x.device})"
    assert told.output_bytes == X.nbytes
    assert "nothing is launched" in str(saxpy.explain(2.0, x, y, domain=0))


def test_configs_hold(name):
    x = vyre.to_device(X, name)
    config = vyre.DispatchConfig(timeout=30.0, label="mine")
    assert np.array_equal(saxpy(2.0, x, x, config=config).numpy(), 3 * X)

    @vyre.kernel
    def falls(x: In[u32], out: Out[u32]):
        if x[gid.x] == u32(5):
            vyre.trap("five")
        out[gid.x] = x[gid.x]

    n = vyre.to_device(N[:64], name)
    with pytest.raises(Trap, match="five"):
        falls(n)
    assert np.array_equal(falls(vyre.to_device(N[64:], name), sizes={"out": 36}, grid=1).numpy()[:4], N[64:68])


def test_a_program_in_several_launches_goes_through_the_host(name):
    @vyre.kernel(workgroup=64)
    def turned(x: In[u32], work: InOut[u32], out: Out[u32]):
        i = gid.x
        if i < len(x):
            work[i] = x[i] + u32(1)
        grid_sync()
        if i < len(out):
            out[i] = work[len(work) - u32(1) - i]

    x, work = vyre.to_device(N, name), vyre.to_device(np.zeros_like(N), name)
    for _ in range(2):
        found, out = turned(x, work)
        assert found is work
        assert np.array_equal(work.numpy(), N + 1)
        assert np.array_equal(out.numpy(), (N + 1)[::-1])


def test_a_shadow_sees_calls_over_device_arrays(name, monkeypatch):
    monkeypatch.setenv("VYRE_SHADOW", "1")
    x = vyre.to_device(N, name)
    assert np.array_equal(reverse(x).numpy(), N[::-1])


def test_calls_from_threads_equal_the_serial_ones(name):
    def work(k):
        x = vyre.to_device(X + np.float32(k), name)
        for _ in range(5):
            x = saxpy(1.0, x, vyre.to_device(Y, name))
        return x.numpy()

    with ThreadPoolExecutor(4) as pool:
        for k, found in enumerate(pool.map(work, range(8))):
            assert np.array_equal(found, X + np.float32(k) + 2.5)


def test_random_programs_mean_the_same_over_device_arrays(name):
    rng = np.random.default_rng(5)
    for _ in range(10):
        count = int(rng.integers(1, 300))
        x, n = rng.integers(0, 1 << 32, (2, count), dtype=np.uint32)
        wanted_n, wanted = both.on("reference")(x, n.copy())
        found_n, found = both(vyre.to_device(x, name), vyre.to_device(n, name))
        assert np.array_equal(found.numpy(), wanted)
        assert np.array_equal(found_n.numpy(), wanted_n)


# ---- other libraries, on the host ------------------------------------------------------------------------------------


def test_numpy_sees_the_memory_of_the_processor():
    d = vyre.to_device(X.reshape(10, 100), "cpu")
    assert d.__dlpack_device__() == (1, 0)
    seen = np.from_dlpack(d)
    assert np.array_equal(seen, X.reshape(10, 100))
    assert seen.ctypes.data == d._memory.span[0]
    saxpy(1.0, d, d, out=d)
    assert np.array_equal(seen, 2 * X.reshape(10, 100))
    assert np.array_equal(np.from_dlpack(vyre.to_device(X[:0], "cpu")), X[:0])
    assert np.from_dlpack(vyre.to_device(np.array(3, np.float32), "cpu")) == 3
    assert not hasattr(d, "__cuda_array_interface__")


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 7)])
def test_memory_that_was_lent_stays_until_its_user_is_done(version):
    home = home_of("cpu")
    before = resident_bytes(home)
    d = vyre.to_device(X, "cpu")
    capsule = d.__dlpack__(max_version=version)
    label = b"dltensor_versioned" if version and version[0] else b"dltensor"
    assert dlpack._is_valid(id(capsule), label)
    held = dlpack.read(capsule)
    assert (held.shape, held.type, held.device, held.read_only) == ((1000,), (2, 32), (1, 0), False)
    assert held.strides == (1,)
    assert held.address == d._memory.span[0]
    d.free()
    assert resident_bytes(home) == before + X.nbytes
    del held, capsule
    assert resident_bytes(home) == before
    d = vyre.to_device(X, "cpu")

    class Exporter:
        def __dlpack__(self, **options):
            return d.__dlpack__(max_version=version)

        def __dlpack_device__(self):
            return 1, 0

    seen = np.from_dlpack(Exporter())
    part = seen[10:20]
    d.free()
    del seen
    assert resident_bytes(home) == before + X.nbytes
    assert np.array_equal(part, X[10:20])
    del part
    gc.collect()
    assert resident_bytes(home) == before


def test_what_dlpack_asks_for_is_given_or_refused():
    d = vyre.to_device(X, "cpu")
    copied = np.from_dlpack(d, copy=True)
    assert np.array_equal(copied, X)
    assert copied.ctypes.data != d._memory.span[0]
    with pytest.raises(ArgumentValueError, match=r"stream=5 for memory of the host.*Fix: pass stream=None"):
        d.__dlpack__(stream=5)
    with pytest.raises(UnsupportedFeature, match=r"is not on DLPack device 2:0.*Fix: pass d.numpy"):
        d.__dlpack__(dl_device=(2, 0))


def test_memory_without_addresses_is_not_shared():
    for name in ("opencl", "wgpu"):
        try:
            d = vyre.to_device(X, name)
        except BackendUnavailable:
            continue
        for use in (d.__dlpack__, d.__dlpack_device__):
            with pytest.raises(UnsupportedFeature, match=r"no addresses that other libraries know.*Fix: pass d.numpy"):
                use()
        assert not hasattr(d, "__cuda_array_interface__")
        assert home_of(name).exchange is None


def test_bits_of_bfloat_are_lent_as_such():
    @vyre.kernel
    def halves(x: In[f32], out: Out[bf16]):
        if gid.x < len(out):
            out[gid.x] = bf16(x[gid.x])

    d = halves(vyre.to_device(X, "cpu"))
    assert d.dtype == np.uint16
    assert dlpack.read(d.__dlpack__()).type == (dlpack.BFLOAT, 16)

    @vyre.kernel
    def bits(x: In[u16], out: Out[u32]):
        if gid.x < len(out):
            out[gid.x] = u32(x[gid.x])

    with pytest.raises(
        ArgumentTypeError, match=r"x holds bfloat16 .* declares u16.*Fix: pass a device array of uint16"
    ):
        bits(d)
    assert bits(vyre.to_device(d.numpy(), "cpu")).numpy()[1] == 0x3F80

    @vyre.kernel
    def wider(x: In[bf16], out: Out[f32]):
        if gid.x < len(out):
            out[gid.x] = f32(x[gid.x])

    for carried in (d, vyre.to_device(d.numpy(), "cpu")):
        assert np.array_equal(wider(carried).numpy()[:200], X[:200])


# ---- other libraries, on a device that is made up --------------------------------------------------------------------


class Elsewhere(DeviceExchange):
    """The processor as a device that other libraries have too: type 99, with streams, of which it takes notes."""

    device = (99, 3)
    stream = 77

    def __init__(self, inner):
        self.inner, self.notes, self.kept = inner, [], []

    def adopt(self, address, nbytes):
        return self.inner.adopt(address, nbytes)

    def address(self, handle):
        return self.inner.address(handle)

    def stream_of(self, array):
        return getattr(array, "stream", None)

    def wait_for(self, stream):
        self.notes.append(("wait for", stream))

    def wait_for_all(self, streams):
        self.notes.append(("wait for all", streams))

    def release_to(self, stream):
        self.notes.append(("release to", stream))

    def keep(self, objects):
        self.kept.append(objects)


class Foreign:
    """An array of another library over NumPy's memory, on that device."""

    def __init__(self, array, stream=None, **known):
        self.array, self.asked = array, []
        if stream is not None:
            self.stream = stream
        self.known = known

    def __dlpack_device__(self):
        return Elsewhere.device

    def __dlpack__(self, *, stream=None, **version):
        if "max_version" in version and "old" in self.known:
            raise TypeError("no such argument")
        if "broken" in self.known:
            raise BufferError("it needs its gradient")
        self.asked.append(stream)
        a = self.array
        kind = self.known.get("type") or dlpack.type_of(a.dtype)
        managed = dlpack._ManagedVersioned() if version else dlpack._Managed()
        if version:
            managed.version, managed.flags = dlpack._Version(self.known.get("major", 1), 0), not a.flags.writeable
        sizes = (ctypes.c_int64 * (2 * a.ndim or 1))(*a.shape, *(s // a.itemsize for s in a.strides))
        t = managed.tensor
        t.data, t.device, t.ndim, t.dtype = a.ctypes.data, dlpack._Device(99, 3), a.ndim, dlpack._Type(*kind, 1)
        t.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
        if "no_strides" not in self.known:
            t.strides = ctypes.cast(ctypes.addressof(sizes) + 8 * a.ndim, ctypes.POINTER(ctypes.c_int64))
        self.parts = managed, sizes
        return dlpack._new(ctypes.addressof(managed), dlpack._VERSIONED if version else dlpack._PLAIN, None)


@pytest.fixture
def elsewhere():
    from vyre.backends.cpu.backend import CpuBackend
    from vyre.driver.contract import BackendRegistration, DeviceInfo

    made = []

    class Other(CpuBackend, contract=1):
        id = "other"

        def exchange(self):
            if not made:
                made.append(Elsewhere(super().exchange()))
            return made[0]

    class Plain(CpuBackend, contract=1):
        id = "plain"

    registrations = [
        BackendRegistration(id=kind.id, open=lambda _=0, kind=kind: kind(), devices=lambda: [DeviceInfo(0, "it")])
        for kind in (Plain, Other)
    ]
    with isolated(*registrations):
        assert home_of("other").exchange is not None
        yield made[0]


def test_an_array_of_another_library_is_used_where_it_lies(elsewhere):
    x, out = Foreign(X.copy(), stream=5), Foreign(np.zeros_like(X), stream=5)
    assert saxpy(2.0, x, Y, out=out) is out
    assert np.array_equal(out.array, 2 * X + Y)
    assert x.asked == out.asked == [-1]  # one wait for all, instead of one by each
    assert elsewhere.notes == [("wait for", 5), ("release to", 5)]
    assert len(elsewhere.kept) == 1
    assert len(elsewhere.kept[0]) == 2
    z = saxpy(2.0, x, out)
    assert type(z) is vyre.DeviceBuffer
    assert z.device == "other:0"
    n = Foreign(N.copy(), stream=5)
    assert bump(n) is n
    assert np.array_equal(n.array, N + 1)


def test_a_library_that_does_not_tell_its_stream_is_asked_and_waited_for(elsewhere):
    x = Foreign(X.copy())
    saxpy(2.0, x, Y)
    assert x.asked == [77]
    assert elsewhere.notes == [("release to", None)]
    old = Foreign(X.copy(), old=True)
    assert np.array_equal(saxpy(2.0, old, Y).numpy(), 2 * X + Y)
    assert old.asked == [77]


def test_memory_of_another_library_becomes_an_array_without_a_copy(elsewhere):
    array = X.copy()
    x = Foreign(array, stream=5)
    d = vyre.to_device(x, "other")
    assert d._memory.span[0] == array.ctypes.data
    array[:] = 3
    elsewhere.notes.clear()
    assert np.array_equal(d.numpy(), array)
    assert elsewhere.notes == [("wait for", 5)]  # what the library did meanwhile comes first
    n = vyre.to_device(Foreign(N.copy(), stream=6), "other")
    for _ in range(3):
        elsewhere.notes.clear()
        assert bump(n) is n
        assert elsewhere.notes == [("wait for", 6), ("release to", 6)]
    elsewhere.kept.clear()
    del d
    assert len(elsewhere.kept) == 1  # until our work with it has ended
    assert type(vyre.to_device(x, "plain")) is vyre.DeviceBuffer


def test_zeros_of_a_call_that_runs_nothing_come_after_what_the_library_did(elsewhere):
    array = X.copy()
    out = vyre.to_device(Foreign(array, stream=6), "other")
    elsewhere.notes.clear()
    assert saxpy(2.0, vyre.to_device(Y, "other"), Y, out=out, grid=(0, 1, 1)) is out
    assert elsewhere.notes == [("wait for", 6)]
    assert not array.any()


@pytest.mark.parametrize("dtype", ["u1", "u2", "f4", "u8"])
def test_elements_that_lie_apart_are_gathered_on_the_device(elsewhere, dtype):
    base = np.arange(2 * 3 * 4 * 5, dtype=dtype).reshape(2, 3, 4, 5)
    repeated = np.broadcast_to(base[0, 0, 0], (3, 5))
    for view in (base.transpose(3, 1, 0, 2), base[:, ::2, ::-1, 1:4], base[::-1], repeated):
        d = vyre.to_device(Foreign(view, stream=5), "other")
        assert (d.dtype, d.shape) == (view.dtype, view.shape)
        assert np.array_equal(d.numpy(), view)


def test_a_library_goes_on_with_elements_that_lie_apart_after_they_were_gathered(elsewhere):
    scattered, flags = np.zeros((10, 100), np.float32).T, X > 3
    for array, stream in ((scattered, 5), (flags, 6), (flags[::2], None)):
        elsewhere.notes.clear()
        elsewhere.kept.clear()
        given = Foreign(array, stream=stream)
        assert np.array_equal(vyre.to_device(given, "other").numpy(), array)
        assert elsewhere.notes == [("wait for", stream)] * (stream is not None) + [("release to", stream)]
        assert [type(held).__name__ for (held,) in elsewhere.kept] == ["PyCapsule"]  # until we are done with it


def test_other_forms_of_foreign_arrays(elsewhere):
    flags = N % 3 == 0
    d = vyre.to_device(Foreign(flags, stream=5), "other")
    assert np.array_equal(d.numpy(), flags)
    d = vyre.to_device(Foreign(flags.reshape(10, 10).T, stream=5), "other")
    assert np.array_equal(d.numpy(), flags.reshape(10, 10).T)
    assert vyre.to_device(Foreign(X[:0]), "other").size == 0
    d = vyre.to_device(Foreign(N.astype(np.uint16), type=(dlpack.BFLOAT, 16)), "other")
    assert dlpack.read(d.__dlpack__(stream=1)).type == (dlpack.BFLOAT, 16)
    assert np.array_equal(vyre.to_device(Foreign(X.copy(), no_strides=True), "other").numpy(), X)


def test_what_cannot_be_shared_is_refused(elsewhere):
    x = Foreign(X.copy(), stream=5)
    frozen = X.copy()
    frozen.flags.writeable = False
    shifted = np.frombuffer(bytearray(4004), np.uint8)[1:4001].view(np.float32)
    refusals = [
        (Foreign(np.zeros(2000, np.float32)[::2], stream=5), r"out .* is not contiguous\. Fix: pass a contiguous copy"),
        (Foreign(frozen, stream=5), r"out .* is read-only\. Fix: pass a copy of out"),
        (Foreign(X.copy(), broken=True), r"out cannot be shared: it needs its gradient\. Fix: pass out.detach\(\)"),
        (Foreign(X.copy(), type=(5, 64)), r"out holds elements of a type that kernels do not know.*Fix: convert it"),
        (Foreign(X.copy(), major=2), r"out holds elements of a type that kernels do not know"),
        (Foreign(X.astype(np.float64)), r"out holds float64 and the kernel declares f32.*Fix: pass a device array of"),
        (Foreign(shifted), r"out is not aligned to its elements\. Fix: pass a copy of out"),
    ]
    for out, refusal in refusals:
        with pytest.raises(VyreError, match=refusal):
            saxpy(2.0, x, x, out=out)
    assert np.array_equal(saxpy(1.0, Foreign(frozen, stream=5), x).numpy(), 2 * X)
    kept = vyre.to_device(Foreign(frozen, stream=5), "other")
    with pytest.raises(ArgumentValueError, match=r"out receives a result and is read-only"):
        saxpy(1.0, x, x, out=kept)

    @vyre.kernel
    def flags(x: In[f32], out: Out[bool_]):
        out[gid.x] = x[gid.x] > 1.0

    with pytest.raises(ArgumentValueError, match=r"holds bools of one byte\. Fix: pass an array of vyre.to_device"):
        flags(x, out=Foreign(np.zeros(1000, np.bool_)))
    many = np.zeros((2,) * 9, np.float32).T
    with pytest.raises(ArgumentValueError, match=r"not contiguous and has 9 axes.*Fix: pass a contiguous copy of x"):
        vyre.to_device(Foreign(many, stream=5), "other")


def test_overlapping_foreign_arrays_follow_the_rule(elsewhere):
    memory = np.arange(200, dtype=np.uint32)
    low, high = Foreign(memory[:100], stream=5), Foreign(memory[50:150], stream=5)
    reverse(low, out=high)
    assert np.array_equal(memory[50:150], np.arange(100)[::-1])
    with pytest.raises(ArgumentValueError, match=r"n and out are both written and share memory"):
        both(Foreign(N.copy()), low, out=high)


def test_an_array_on_a_device_of_nobody_is_refused(elsewhere):
    class Alien(Foreign):
        def __dlpack_device__(self):
            return 98, 1

    with pytest.raises(ArgumentTypeError, match=r"that no backend here shares \(DLPack device 98:1\).*Fix: copy x to"):
        saxpy(2.0, Alien(X), Y)


def test_lent_memory_is_used_again_after_its_user(elsewhere):
    d = vyre.to_device(X, "other")
    held = d.__dlpack__(stream=9)
    assert elsewhere.notes == [("release to", 9)]
    untold = d.__dlpack__(stream=-1)
    default = d.__dlpack__()
    assert elsewhere.notes == [("release to", 9), ("release to", 1)]
    elsewhere.notes.clear()
    del held, untold, default, d
    assert elsewhere.notes == [("wait for all", {9, -1, 1})]
    d = vyre.to_device(X, "other")
    for stream in (0, -2, "1", True):
        with pytest.raises(ArgumentValueError, match=r"is not a stream\. Fix: pass the number of a stream, 1 for"):
            d.__dlpack__(stream=stream)


def test_who_takes_no_notice_of_our_stream_finds_the_memory_in_the_default_one(elsewhere, monkeypatch):
    monkeypatch.setattr(device_array, "NVIDIA", Elsewhere.device[0])
    d = vyre.to_device(X, "other")
    assert d.__cuda_array_interface__["stream"] == 77
    assert elsewhere.notes == [("release to", 1)]
    elsewhere.notes.clear()
    assert vyre.to_device(X[:0], "other").__cuda_array_interface__["data"] == (0, False)
    del d
    assert elsewhere.notes == [("wait for all", {-1})]


def test_places_of_others_are_remembered_for_a_while(elsewhere, monkeypatch):
    monkeypatch.setattr(device_home, "MOST_ADOPTED", 4)
    arrays = [Foreign(N.copy(), stream=5) for _ in range(10)]
    for _ in range(2):
        for n in arrays:
            bump(n)
    assert all(np.array_equal(n.array, N + 2) for n in arrays)
    assert len(home_of("other")._adopted) == 4


def test_a_place_that_a_call_uses_is_not_forgotten_for_another_one(elsewhere, monkeypatch):
    monkeypatch.setattr(device_home, "MOST_ADOPTED", 4)
    x, others = Foreign(X.copy(), stream=5), [Foreign(Y.copy(), stream=5) for _ in range(10)]
    for y in others:
        assert np.array_equal(saxpy(2.0, x, y).numpy(), 2 * X + Y)
    for y in others[:2]:
        saxpy(2.0, y, y)
    home, last = home_of("other"), home_of("other").backend.allocate_resident(1)
    monkeypatch.setattr(home, "is_live", lambda handle: handle.id > last.id)  # as after a recovery
    assert np.array_equal(saxpy(2.0, x, others[5]).numpy(), 2 * X + Y)


def test_memory_that_is_read_only_is_lent_as_such(elsewhere):
    frozen = X.copy()
    frozen.flags.writeable = False
    d = vyre.to_device(Foreign(frozen, stream=5), "other")
    assert dlpack.read(d.__dlpack__(stream=5, max_version=(1, 0))).read_only
    with pytest.raises(UnsupportedFeature, match=r"is read-only, which a capsule without a version cannot say"):
        d.__dlpack__(stream=5)
    for copied in (d.__dlpack__(stream=5, copy=True), d.__dlpack__(stream=5, max_version=(1, 0), copy=True)):
        assert not dlpack.read(copied).read_only
    assert not dlpack.read(vyre.to_device(X, "other").__dlpack__(stream=5, max_version=(1, 0))).read_only


# ---- pinned memory ---------------------------------------------------------------------------------------------------


def test_an_empty_array_is_one_of_numpy():
    for dtype, wanted in ((np.float32, "f4"), (f32, "f4"), (vyre.bf16, "u2"), (i64, "i8"), (f64, "f8"), ("u1", "u1")):
        for shape in (5, (2, 3), ()):
            made = vyre.empty(shape, dtype)
            assert (made.dtype, made.shape) == (np.dtype(wanted), shape if isinstance(shape, tuple) else (shape,))


def test_memory_that_needs_no_pinning_is_ordinary(name):
    made = vyre.empty((10, 100), np.float32, pinned_for=name)
    made[:] = X.reshape(10, 100)
    assert made.flags.writeable
    assert made.flags.c_contiguous
    assert np.array_equal(saxpy.on(name)(2.0, made, made), 3 * made)
    assert vyre.empty(0, np.float32, pinned_for=name).size == 0


def test_pinned_memory_goes_with_its_last_view(elsewhere, monkeypatch):
    gone = []

    def pinned(nbytes):
        import weakref

        memory = (ctypes.c_ubyte * nbytes)()
        weakref.finalize(memory, gone.append, nbytes)
        return memory

    monkeypatch.setattr(elsewhere, "pinned", pinned, raising=False)
    made = vyre.empty((4, 5), np.float32, pinned_for="other")
    made[:] = 1
    part = made[1:, ::2]
    del made
    assert gone == []
    assert part.sum() == 9
    del part
    assert gone == [80]


def test_wrong_uses_of_empty_are_refused():
    with pytest.raises(BackendUnavailable, match=r"'abacus' is not linked.*Fix: use one of"):
        vyre.empty(3, np.float32, pinned_for="abacus")
    with pytest.raises(ArgumentTypeError, match=r"pinned_for is a int\. Fix: name a backend"):
        vyre.empty(3, np.float32, pinned_for=1)
    with pytest.raises(ArgumentTypeError, match=r"is not a type of elements\. Fix: pass np.float32"):
        vyre.empty(3, "spam")
    with pytest.raises(ArgumentTypeError, match=r"holds objects of Python\. Fix: pass np.float32"):
        vyre.empty(3, object)
    with pytest.raises(ArgumentValueError, match="shape=-1 is negative"):
        vyre.empty(-1, np.float32)


EXIT = """
import numpy as np, vyre
d = vyre.to_device(np.ones(10, np.float32), "cpu")
seen, capsule = np.from_dlpack(d), d.__dlpack__()
print("fine")
"""


def test_a_process_ends_well_with_memory_lent(tmp_path):
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(EXIT)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "fine\n", "")


# ---- views ----------------------------------------------------------------------------------------------------------


def test_a_view_is_the_same_memory_read_as_other_elements(name):
    d = vyre.to_device(np.array([[1.0, -2.0, 0.5]], np.float32), name)
    bits = d.view(np.uint32)
    assert (bits.dtype, bits.shape, bits.device) == (np.uint32, (1, 3), d.device)
    bump(bits)
    assert np.array_equal(d.numpy().view(np.uint32), np.array([[0x3F800001, 0xC0000001, 0x3F000001]]))
    assert bits._memory is d._memory
    d.free()
    assert bits.numpy()[0, 0] == 0x3F800001


@pytest.mark.parametrize("shape, dtype, seen", [((2, 6), u8, (2, 24)), ((2, 6), f64, (2, 3)), ((0, 4), u16, (0, 8))])
def test_the_last_axis_of_a_view_takes_the_difference(shape, dtype, seen):
    d = vyre.to_device(np.arange(shape[0] * shape[1], dtype=np.uint32).reshape(shape), "cpu")
    found = d.view(dtype)
    assert found.shape == seen
    assert np.array_equal(found.numpy(), d.numpy().view(found.dtype))


@pytest.mark.parametrize(
    "values, dtype, message",
    [
        (
            np.zeros((4, 3), np.uint32),
            np.float64,
            r"has 12 bytes, and float64 takes 8.*astype\(np.float64",
        ),
        (np.array(1, np.uint32), np.uint8, r"one axis or more"),
        (np.zeros(4, np.bool_), np.uint32, "bools as words"),
        (np.zeros(4, np.uint32), bool_, "bools as words"),
        (np.zeros(4, np.uint32), np.complex64, "no kernel has elements of complex64"),
        (np.zeros(4, np.uint32), "nonsense", "not a type of elements"),
    ],
)
def test_a_view_that_cannot_be_is_refused(values, dtype, message):
    d = vyre.to_device(values, "cpu")
    with pytest.raises(VyreError, match=message):
        d.view(dtype)


def test_a_freed_array_has_no_view_and_a_view_of_what_is_written_is_no_other_memory():
    d = vyre.to_device(np.zeros(4, np.uint32), "cpu")
    seen = d.view(f32)
    with pytest.raises(ArgumentValueError, match="share"):
        two_results(d, seen)
    d.free()
    with pytest.raises(ArgumentValueError, match="was freed"):
        d.view(f32)


@vyre.kernel
def two_results(a: InOut[u32], b: InOut[f32]):
    a[gid.x] += 1
    b[gid.x] += 1.0


@vyre.kernel
def scatter(order: In[u32], out: Out[u32]):
    if gid.x < len(order):
        out[order[gid.x]] = gid.x


def test_a_required_proof_is_required_of_calls_on_the_device_too(name):
    order = vyre.to_device(np.array([1, 0], np.uint32), name)
    out = vyre.to_device(np.zeros(2, np.uint32), name)
    strict = vyre.DispatchConfig(determinism="require")
    with pytest.raises(InvalidProgram, match='determinism="require"'):
        scatter(order, out=out, config=strict)
    assert np.asarray(out).tolist() == [0, 0]
    bump(order, config=strict)
    assert np.asarray(order).tolist() == [2, 1]
