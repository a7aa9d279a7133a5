"""Helpers with several results and returns in loops, arrays of each invocation, and small values, on every backend."""

# ruff: noqa: N803 - compile-time parameters are written like types and constants

from __future__ import annotations

from typing import Literal, NamedTuple, TypeVar

import numpy as np
import pytest

import vyre
from vyre import (
    In,
    InOut,
    Out,
    Uniform,
    atomic_add,
    barrier,
    c64,
    conj,
    const,
    cross,
    dot,
    f32,
    f64,
    gid,
    i32,
    length,
    lid,
    local,
    normalize,
    select,
    shared,
    static_range,
    u8,
    u32,
    vec2,
    vec3,
    vec4,
)
from vyre.backends import reference
from vyre.backends.cuda.emit.coarsen import cuda_code
from vyre.foundation.ir.program import MemoryKind
from vyre.lower import LowerOptions, lower

from ...support.device_backends import open_or_skip
from ..cuda.test_cuda_text import cubin, nvrtc_or_skip

BACKENDS = ("reference", "cpu", "opencl", "wgpu", "cuda")
T = TypeVar("T", f32, f64, i32)


class Body(NamedTuple):
    position: vec3
    mass: f32
    kind: u32


class Span(NamedTuple):
    low: f32
    high: f32 = 1.0


@pytest.fixture(params=BACKENDS)
def on(request):
    """A function that gives a kernel on this backend."""
    if request.param not in ("reference", "cpu"):
        open_or_skip(request.param).shutdown()
    return lambda kernel: kernel.on(request.param)


# ---- several results, and returns in loops


@vyre.device
def minmax(a, b):
    if a < b:
        return a, b
    return b, a


@vyre.device
def ends(a: u32) -> tuple[u32, f32, bool]:
    if a == 0:
        return 1, 0.5, True
    return a * 2, 2, False


@vyre.device
def swapped(a, b):
    return b, a


@vyre.kernel
def several(x: In[u32], out: Out[u32]) -> None:
    i = gid.x
    if i < len(x):
        low, high = minmax(x[i], x[(i + 1) % len(x)])
        a, b, c = ends(x[i])
        both = swapped(low, high)
        low, high = swapped(low, high)
        out[i * 8], out[i * 8 + 1] = minmax(low, high)
        out[i * 8 + 2] = a
        out[i * 8 + 3] = u32(b * 4.0) + u32(c)
        out[i * 8 + 4] = low
        out[i * 8 + 5] = both[1] * 1000 + high
        out[i * 8 + 6] = len(both)
        out[i * 8 + 7] = u32(both == swapped(high, low)) + u32(both != (swapped(low, high))) * 2


def test_a_helper_gives_several_values(on):
    x = np.array([7, 3, 0, 0, 9], np.uint32)
    got = on(several)(x, sizes={"out": 40}).reshape(5, 8)
    for i in range(5):
        low, high = sorted((int(x[i]), int(x[(i + 1) % 5])))
        a, b, c = (1, 0.5, True) if x[i] == 0 else (x[i] * 2, 2, False)
        same = (high, low) == (low, high)
        assert got[i].tolist() == [low, high, a, b * 4 + c, high, low * 1000 + low, 2, 1 + 2 * (not same)]


@vyre.device
def first_above(x, start, limit):
    for i in range(start, len(x)):
        if x[i] % 7 == 6:
            continue
        for k in range(3):
            if x[i] + k > limit:
                return i, k
        if x[i] == limit:
            return i, 100
    return 999, 0


@vyre.device
def unrolled(n):
    for k in static_range(5):
        if n % 5 == k:
            return k * 10
        if n > 90:
            break
    return 77


@vyre.device
def until(n: u32) -> u32:
    steps: u32 = 0
    while True:
        if n == 1:
            return steps
        n = n // 2 if n % 2 == 0 else n * 3 + 1
        steps += 1
        if steps > 40:
            return 1000


@vyre.kernel
def searching(x: In[u32], out: Out[u32]) -> None:
    i = gid.x
    if i < len(x):
        at, k = first_above(x, i, x[i])
        out[i * 2] = at * 1000 + k
        out[i * 2 + 1] = unrolled(x[i])


@vyre.kernel
def collatz(x: In[u32], out: Out[u32]) -> None:
    if gid.x < len(x):
        out[gid.x] = until(x[gid.x]) + until(3)


def python_first_above(x, start, limit):
    return first_above.__wrapped__(x, start, limit)


def test_a_helper_returns_from_inside_its_loops(on):
    x = np.random.default_rng(5).integers(0, 100, 60, np.uint32)
    got = on(searching)(x, sizes={"out": 120}).reshape(60, 2)
    plain = x.tolist()
    for i, value in enumerate(plain):
        at, k = python_first_above(plain, i, value)
        want = 77 if value > 90 and value % 5 else value % 5 * 10
        assert got[i].tolist() == [at * 1000 + k, want]


def test_a_helper_returns_from_a_loop_without_end(on):
    x = np.arange(1, 40, dtype=np.uint32)
    try:
        got = on(collatz)(x)
    except vyre.UnsupportedFeature as e:  # a device that ends long loops without a word
        assert "loops" in str(e)  # noqa: PT017
        pytest.skip(e.message)
    assert got.tolist() == [until.__wrapped__(n) + until.__wrapped__(3) for n in range(1, 40)]


# ---- arrays of each invocation


@vyre.device
def raise_all(values, by):
    for k in range(len(values)):
        values[k] += by
    return values[0]


@vyre.kernel
def in_registers(x: In[f32], out: Out[f32]) -> None:
    i = gid.x
    acc = local(f32, 4)
    for k in static_range(4):
        acc[k] = x[i * 4 + k]
    out[i * 2] = acc[0] + raise_all(acc, 1.0) * 10.0 + acc[0] * 100.0
    acc[0], acc[3] = acc[3], acc[0]
    out[i * 2 + 1] = acc[0] * 1000.0 + acc[3] + f32(len(acc))


def test_a_local_array_is_passed_as_itself_and_evaluated_from_left_to_right(on):
    x = np.arange(12, dtype=np.float32)
    got = on(in_registers)(x, domain=3, sizes={"out": 6}).reshape(3, 2)
    for i in range(3):
        first, last = i * 4.0, i * 4.0 + 3
        assert got[i].tolist() == [first + (first + 1) * 10 + (first + 1) * 100, (last + 1) * 1000 + first + 1 + 4]


def test_a_local_array_with_known_indices_is_locals():
    program = in_registers.program
    assert [b.name for b in program.buffers] == ["x", "out"]


@vyre.kernel(workgroup=(4, 2))
def sorting(x: In[u32], out: Out[u32], *, N: const = 24) -> None:
    i = gid.x + gid.y * 8
    values = local(u32, N)
    for k in range(N):
        values[k] = x[i * N + k]
    for a in range(1, N):
        v = values[a]
        at = a
        while at > 0 and values[at - 1] > v:
            values[at] = values[at - 1]
            at -= 1
        values[at] = v
    for k in range(N):
        out[i * N + k] = values[k]


def test_a_local_array_takes_an_index_that_the_kernel_computes(on):
    x = np.random.default_rng(6).integers(0, 1000, 16 * 24, np.uint32)
    run = on(sorting)
    if run.backend == "wgpu":
        pytest.skip("its loops have no bound that is known beforehand")
    got = run(x, domain=(8, 2))
    assert np.array_equal(got.reshape(16, 24), np.sort(x.reshape(16, 24), axis=1))


@vyre.kernel
def beyond(x: In[u32], out: Out[u32]) -> None:
    i = gid.x
    small = local(u32, 5)
    large = local(u32, 50)
    for r in range(3):
        seen = local(u8, 21)  # zero in every turn
        for k in range(30):
            at = (x[i] * 7 + k * r) % 32
            seen[at] = u8(u32(seen[at]) + 1)
            small[(x[i] + k) % 9] += k
            large[(x[i] + k * r) % 60] += u32(seen[at])
        for k in range(8):
            out[(i * 3 + r) * 8 + k] = u32(seen[k * 4]) + small[k] * 100 + large[k * 8] * 10000


def test_an_index_beyond_a_local_array_reads_zero_and_writes_nothing(on):
    x = np.arange(0, 40, 3, dtype=np.uint32)
    got = on(beyond)(x, domain=len(x), sizes={"out": len(x) * 24}).reshape(len(x), 3, 8)
    for i, value in enumerate(x.tolist()):
        small, large = [0] * 5 + [0] * 60, [0] * 64
        for r in range(3):
            seen = [0] * 32
            for k in range(30):
                at = (value * 7 + k * r) % 32
                seen[at] = seen[at] + 1 if at < 21 else 0
                if (value + k) % 9 < 5:
                    small[(value + k) % 9] += k
                if (value + k * r) % 60 < 50:
                    large[(value + k * r) % 60] += seen[at]
            want = [seen[k * 4] + small[k] * 100 + large[k * 8] * 10000 for k in range(8)]
            assert got[i, r].tolist() == want


def test_a_local_array_in_memory_is_no_memory_of_the_workgroup():
    program = beyond.program
    kinds = {b.name: b.kind for b in program.buffers if b.is_workgroup}
    assert set(kinds.values()) == {MemoryKind.LOCAL}
    assert {b.count for b in program.buffers if b.is_own} == {21, 50}
    assert program.requirements.workgroup_bytes == 0
    assert program.determinism.startswith("proved")
    again = type(program).from_wire(program.to_wire())
    assert again == program
    assert vyre.parse(str(program)).fingerprint == program.fingerprint


def test_a_local_array_is_seen_by_its_invocation_alone():
    x = np.arange(64, dtype=np.uint32)
    got = reference.run(beyond.program, [x], grid=(1, 1, 1), output_elements={"out": 64 * 24}, detect_races=True)
    assert not got.races


@vyre.device
def raise_one(values, at):
    values[at] += 1


@vyre.device
def digits(n):
    seen = local(u32, 10)
    for _ in range(4):
        raise_one(seen, n % 10)
        n //= 10
    return f32(seen[7])


@vyre.kernel
def chosen(x: In[u32], out: Out[f32]) -> None:
    if gid.x < len(x):
        out[gid.x] = digits(x[gid.x]) if x[gid.x] > 100 and digits(x[gid.x] + 1) >= 0.0 else -1.0


def test_a_helper_that_stores_to_arrays_of_its_own_has_no_effect(on):
    x = np.array([7, 1777, 7707, 70, 1234], np.uint32)
    assert on(chosen)(x).tolist() == [-1.0, 3.0, 3.0, -1.0, 0.0]


def test_cuda_text_has_arrays_of_each_thread_and_compiles():
    nvrtc_or_skip()
    kernel = lower(beyond.program, LowerOptions(firm=True, own_arrays=True))
    text = cuda_code(kernel).text
    assert "large[50] = {0}; // of each lane" in text
    assert "__shared__" not in text
    assert cubin(kernel, "sm_90", text)


def test_a_grid_wide_barrier_loses_a_local_array():
    with pytest.raises(vyre.KernelError, match="local array 'own' is written before a grid-wide barrier"):
        vyre.kernel(
            source="""
            def k(x: InOut[u32]):
                own = local(u32, 20)
                own[x[gid.x] % 20] = 1
                vyre.grid_sync()
                x[gid.x] = own[x[gid.x + 1] % 20]
            """
        )


@vyre.kernel(workgroup=8)
def across_barriers(x: In[u32], out: Out[u32]) -> None:
    own = local(u32, 20)
    tile = shared(u32, 8)
    for r in range(4):
        tile[lid.x] = x[gid.x] + r + own[(x[gid.x] + r) % 20]
        barrier()
        own[(x[gid.x] + r + 1) % 20] = tile[7 - lid.x]
        barrier()
    out[gid.x] = own[(x[gid.x] + 4) % 20] * 1000 + own[(x[gid.x] + 2) % 20]


def test_a_local_array_keeps_its_elements_across_barriers(on):
    x = np.array([3, 1, 4, 1, 5, 9, 2, 6] * 2, np.uint32)
    got = on(across_barriers)(x)
    for base in (0, 8):
        own = [[0] * 20 for _ in range(8)]
        for r in range(4):
            tile = [int(x[base + k]) + r + own[k][(x[base + k] + r) % 20] for k in range(8)]
            for k in range(8):
                own[k][(x[base + k] + r + 1) % 20] = tile[7 - k]
        want = [own[k][(x[base + k] + 4) % 20] * 1000 + own[k][(x[base + k] + 2) % 20] for k in range(8)]
        assert got[base : base + 8].tolist() == want


# ---- small values


@vyre.device
def reflected(v: vec3, n: vec3) -> vec3:
    return v - 2.0 * dot(v, n) * n


@vyre.kernel
def vectors(a: In[vec3], b: In[vec3], out: Out[f32], turned: Out[vec3]) -> None:
    i = gid.x
    if i < len(a):
        v = cross(a[i], b[i])
        w = normalize(a[i]) + vec3(1.0) / b[i]
        v, w = w, v
        turned[i] = reflected(v, w) if v.x < w.x else -v
        out[i * 4] = dot(a[i], b[i])
        out[i * 4 + 1] = length(b[i])
        out[i * 4 + 2] = select(u32(a[i] == b[i]), vec2(1.0, 2.0), vec2(3.0))[1]
        x, y, z = a[i]
        out[i * 4 + 3] = x - y * z


def test_vectors_round_in_the_order_that_is_documented(on):
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal((50, 3)).astype(np.float32) for _ in range(2))
    b[3] = a[3]
    got, turned = on(vectors)(a, b, sizes={"out": 200})

    def dots(x, y):
        return (x[:, 0] * y[:, 0] + x[:, 1] * y[:, 1]) + x[:, 2] * y[:, 2]

    v = np.stack([a[:, i] * b[:, j] - a[:, j] * b[:, i] for i, j in ((1, 2), (2, 0), (0, 1))], 1)
    w = a / np.sqrt(dots(a, a))[:, None] + np.float32(1) / b
    v, w = w, v
    back = v - (np.float32(2) * dots(v, w))[:, None] * w
    want = np.where(v[:, :1] < w[:, :1], back, -v)
    assert turned.shape == (50, 3)
    assert turned.tobytes() == want.tobytes()
    assert got.reshape(50, 4)[:, 0].tobytes() == dots(a, b).tobytes()
    assert got.reshape(50, 4)[:, 1].tobytes() == np.sqrt(dots(b, b)).tobytes()
    assert got.reshape(50, 4)[:, 2].tolist() == [2.0 if k == 3 else 3.0 for k in range(50)]
    assert got.reshape(50, 4)[:, 3].tobytes() == (a[:, 0] - a[:, 1] * a[:, 2]).tobytes()


@vyre.device
def y_of(v):
    return i32(v.y)


@vyre.kernel
def whole_vectors(x: In[vec2[u32]], out: InOut[vec4[i32]]) -> None:
    i = gid.x
    if i < len(x):
        v = vec4[i32](i32(x[i].x), 2, y_of(x[i]), w=-1)
        out[i] += (v << 1) ^ vec4[i32](out[i].w) // 2 + ~v


def test_vectors_of_integers(on):
    x = np.arange(20, dtype=np.uint32).reshape(10, 2)
    before = np.arange(40, dtype=np.int32).reshape(10, 4)
    out = before.copy()
    v = np.stack([x[:, 0], np.full(10, 2), x[:, 1], np.full(10, -1)], 1).astype(np.int32)
    want = before + ((v << 1) ^ (before[:, 3:] // 2 + ~v))
    assert np.array_equal(on(whole_vectors)(x, out), want)
    assert np.array_equal(out, want)


@vyre.kernel
def spectrum(x: In[c64], factor: c64, out: Out[c64], size: Out[f32]) -> None:
    i = gid.x
    if i < len(x):
        z = x[i] * factor + (2 - conj(x[i])) * 1j - 3.0
        out[i] = z / 2.0
        size[i] = abs(z)


def test_complex_numbers(on):
    rng = np.random.default_rng(8)
    x = (rng.standard_normal(40) + 1j * rng.standard_normal(40)).astype(np.complex64)
    got, size = on(spectrum)(x, 1.5 - 0.25j)
    want = x * np.complex64(1.5 - 0.25j) + (2 - x.conj()) * np.complex64(1j) - np.complex64(3)
    assert got.dtype == np.complex64
    assert got.shape == (40,)
    np.testing.assert_allclose(got, want / 2, rtol=1e-5)
    np.testing.assert_allclose(size, np.abs(want), rtol=1e-5)
    assert got.tobytes() == spectrum.on("reference")(x, 1.5 - 0.25j)[0].tobytes()


@vyre.device
def merged(a: Body, b: Body) -> Body:
    mass = a.mass + b.mass
    return Body((a.position * a.mass + b.position * b.mass) / mass, mass, a.kind)


@vyre.kernel(workgroup=16)
def merging(bodies: In[Body], light: Body, spans: Uniform[Span, Literal[2]], out: Out[Body]) -> None:
    tile = shared(Body, 16)
    near = local(Body, 3)
    i = gid.x
    tile[lid.x] = bodies[i]
    barrier()
    for k in range(5):
        near[k] = tile[(lid.x + k) % 16]
    found = near[bodies[i].kind % 4]
    if found.mass == 0.0:
        found = light
    for k in static_range(2):
        found = merged(found, near[k])
    if found.mass > spans[0].low and found.mass < spans[1].high:
        found = found._replace(kind=found.kind + 100)
    if i < len(out):
        out[i] = found


def test_small_values_lie_in_structured_arrays_shared_memory_and_local_arrays(on):
    rng = np.random.default_rng(9)
    kind = np.dtype([("position", np.float32, 3), ("mass", np.float32), ("kind", np.uint32)])
    bodies = np.zeros(32, kind)
    bodies["position"] = rng.integers(-8, 8, (32, 3))
    bodies["mass"] = rng.integers(1, 9, 32)
    bodies["kind"] = np.arange(32)
    spans = np.array([(5, 0), (0, 12)], np.dtype([("low", "f4"), ("high", "f4")]))
    light = Body((1.0, 2.0, 3.0), 4.0, 7)
    got = on(merging)(bodies, light, spans)
    assert got.dtype == kind
    for i in range(32):
        tile = bodies[i // 16 * 16 : i // 16 * 16 + 16]
        near = [tile[(i % 16 + k) % 16] for k in range(3)]
        index = int(bodies[i]["kind"]) % 4
        position, mass, what = (near[index][n] for n in kind.names) if index < 3 else light
        position, mass = np.array(position, np.float32), np.float32(mass)
        for k in range(2):
            total = mass + near[k]["mass"]
            position = (position * mass + near[k]["position"] * near[k]["mass"]) / total
            mass = total
        assert got[i]["position"].tobytes() == position.tobytes()
        assert got[i]["mass"] == mass
        assert got[i]["kind"] == what + 100 * (5 < mass < 12)


@vyre.kernel
def far(x: In[vec4], out: InOut[vec4], at: u32) -> None:
    if gid.x == 0:
        out[1] = x[at] + 1.0
        out[at] = vec4(9.0)


def test_an_element_beyond_a_buffer_of_small_values_is_zero_and_a_product_that_wraps_is_no_other(on):
    x = np.full((3, 4), 5, np.float32)
    for at in (3, 1 << 30, (1 << 30) + 1, 0xFFFFFFFF):
        out = np.full((2, 4), 7, np.float32)
        on(far)(x, out, at, domain=1)
        assert out.tolist() == [[7.0] * 4, [1.0] * 4]


def test_a_store_to_a_vector_is_proved_deterministic():
    assert vectors.program.determinism.startswith("proved")
    assert whole_vectors.program.determinism.startswith("proved")


# ---- kernels that are generic over a type


@vyre.device
def doubled(x: T) -> T:
    return x + x


@vyre.kernel
def scaled(x: In[T], a: T, out: Out[T], *, T: const = f32, N: const = 2) -> None:
    i = gid.x
    if i < len(out):
        acc = local(T, 2)
        acc[1] = T(N) * x[i]
        out[i] = doubled(acc[1]) + a


@pytest.mark.parametrize("t, dtype", [(f32, np.float32), (i32, np.int32), (f64, np.float64)])
def test_one_kernel_serves_several_types(on, t, dtype):
    run = on(scaled)
    x = np.arange(5).astype(dtype)
    if t == f64 and run.backend == "wgpu":
        with pytest.raises(vyre.UnsupportedFeature):
            run(x, 1, T=t)
        return
    got = run(x, 1, T=t, N=3)
    assert got.dtype == dtype
    assert np.array_equal(got, x * 6 + 1)


@vyre.kernel
def copied(x: In[T], out: Out[T], *, T: const) -> None:
    if gid.x < len(x):
        out[gid.x] = x[gid.x]


def test_a_type_may_be_a_small_value():
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert np.array_equal(copied(x, T=vec3), x)
    with pytest.raises(vyre.ArgumentTypeError, match=r"T of copied has no value.*pass T=vyre\.f32"):
        copied(x)
    with pytest.raises(vyre.ArgumentTypeError, match=r"not a type.*pass T=vyre\.f32"):
        copied(x, T=np.float32)


@vyre.kernel
def tally(x: In[u32], bins: InOut[u32]) -> None:
    own = local(u32, 16)
    for k in range(8):
        own[x[gid.x * 8 + k] % 16] += 1
    for k in range(16):
        atomic_add(bins, k, own[k])


def test_a_local_array_gathers_before_atomics(on):
    x = np.random.default_rng(3).integers(0, 99, 512, np.uint32)
    bins = on(tally)(x, np.zeros(16, np.uint32), domain=64)
    assert bins.tolist() == np.bincount(x % 16, minlength=16).tolist()


def test_a_generic_buffer_may_have_a_rank(on):
    @vyre.kernel(workgroup=(8, 8))
    def twice(x: In[T, vyre.D2], out: Out[T, vyre.D2], *, T: const) -> None:
        if gid.y < x.shape[0] and gid.x < x.shape[1]:
            out[gid.y, gid.x] = x[gid.y, gid.x] * T(2)

    for t, dtype in ((f32, np.float32), (i32, np.int32)):
        x = np.arange(15, dtype=dtype).reshape(3, 5)
        assert on(twice)(x, T=t).tobytes() == (x * 2).astype(dtype).tobytes()
        with pytest.raises(vyre.ArgumentValueError, match="D2"):
            on(twice)(x.ravel(), T=t)
