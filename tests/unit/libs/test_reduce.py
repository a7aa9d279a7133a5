"""`vyre.libs.reduce` gives the bytes of its definition, which stands here one operation at a time."""

import math

import numpy as np
import pytest

import vyre
from vyre.errors import ArgumentTypeError, ArgumentValueError, UnsupportedFeature
from vyre.libs import reduce

from ...support import scalar_f32 as scalar
from ...support.backends_of_libs import BACKENDS, on_backend

FLOATS = ["sum", "prod", "min", "max", "argmin", "argmax", "any", "all", "count", "mean", "var", "std", "norm"]


def less(a, b):
    return math.copysign(1, a) < math.copysign(1, b) if a == b == 0 else a < b


def least(a, b):
    return a if a != a else b if b != b or less(b, a) else a


def most(a, b):
    return a if a != a else b if b != b or less(a, b) else a


def joined(n, step, join, first):
    """The definition: `step(t, k)` is the chain t with element k."""
    rows = []
    for top in range(0, -(-n // 64), 16):
        row = [first] * 64
        for k in range(top * 64, min((top + 16) * 64, n)):
            row[k % 64] = step(row[k % 64], k)
        rows.append(row)
    while len(rows) > 1:
        above, rows = rows, []
        for top in range(0, len(above), 16):
            row = [first] * 64
            for one in above[top : top + 16]:
                row = [join(a, b) for a, b in zip(row, one, strict=True)]
            rows.append(row)
    (row,) = rows
    while len(row) > 1:
        half = len(row) // 2
        row = [join(row[k], row[k + half]) for k in range(half)]
    return row[0]


def added(n, step):
    return joined(n, step, scalar.add, 0.0)


def defined(name, x, ddof=0):
    """What the function of that name gives for one problem of f32."""
    x, n = [scalar.f32(float(v)) for v in x], len(x)
    if name in ("any", "all", "count"):
        return {"any": any, "all": all, "count": sum}[name](v != 0 for v in x)
    if name in ("min", "argmin", "max", "argmax"):
        pick, first = (least, math.inf) if "min" in name else (most, -math.inf)
        found = joined(n, lambda t, k: pick(t, x[k]), pick, first)
        places = [k for k, v in enumerate(x) if v == found or (v != v and found != found)]
        return places[0] if name.startswith("arg") else found
    if name == "prod":
        return joined(n, lambda t, k: scalar.multiply(t, x[k]), scalar.multiply, 1.0)
    if name == "norm":
        return scalar.root(added(n, lambda t, k: scalar.fma(x[k], x[k], t)))
    total = added(n, lambda t, k: scalar.add(t, x[k]))
    if name == "sum":
        return total
    mean = scalar.divide(total, float(n))
    if name == "mean":
        return mean

    def squared(t, k):
        away = scalar.add(x[k], -mean)
        return scalar.fma(away, away, t)

    var = scalar.divide(added(n, squared), float(n - ddof))
    return var if name == "var" else scalar.root(var)


RESULTS = {"argmin": np.uint32, "argmax": np.uint32, "any": np.bool_, "all": np.bool_, "count": np.uint32}


def expected(name, x, axis):
    """An array of what is defined for each problem."""
    problems = x.reshape(1, -1) if axis is None else np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])
    shape = () if axis is None else np.moveaxis(x, axis, -1).shape[:-1]
    found = [defined(name, problem) for problem in problems]
    return np.array(found, RESULTS.get(name, np.float32)).reshape(shape)


def numbers(shape, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype(np.float32) * np.float32(2) ** rng.integers(-3, 4, shape).astype(np.float32)
    x[rng.random(shape) < 0.02] = 0
    return x


SHAPES = [
    ((1,), 0),
    ((33,), None),
    ((257,), 0),
    ((1025,), 0),
    ((17_001,), None),
    ((7, 65), 1),
    ((70, 5), 0),
    ((1100, 4), 0),
    ((3, 9, 4), 1),
]


def require_defined(name, backend, shapes=SHAPES):
    on_backend(backend)
    for shape, axis in shapes:
        x = numbers(shape)
        found = getattr(reduce, name)(x, axis, backend=backend)
        want = expected(name, x, axis)
        assert np.asarray(found).tobytes() == want.tobytes(), (shape, axis)
        assert np.asarray(found).dtype == want.dtype
        assert np.shape(found) == want.shape


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_gives_the_bytes_of_the_definition(backend):
    require_defined("sum", backend)


@pytest.mark.check
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [name for name in FLOATS if name != "sum"])
def test_every_other_function_does_too(name, backend):
    require_defined(name, backend)


@pytest.mark.check
@pytest.mark.parametrize("backend", BACKENDS)
def test_dot_fuses_the_products_of_its_chains(backend):
    on_backend(backend)
    for shape, axis in SHAPES:
        x, y = numbers(shape), numbers(shape, 1)
        a, b = (v.reshape(1, -1) if axis is None else np.moveaxis(v, axis, -1).reshape(-1, shape[axis]) for v in (x, y))
        want = [
            added(len(p), lambda t, k, p=p, q=q: scalar.fma(float(p[k]), float(q[k]), t))
            for p, q in zip(a, b, strict=True)
        ]
        found = reduce.dot(x, y, axis, backend=backend)
        assert np.asarray(found).tobytes() == np.float32(want).tobytes(), (shape, axis)


@pytest.mark.check
@pytest.mark.parametrize("backend", BACKENDS)
def test_infinities_nans_zeros_and_subnormals_go_by_the_definition(backend):
    on_backend(backend)
    edges = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1.2e-38, 3e38, -3e38, 1.0])
    rng = np.random.default_rng(5)
    for n in (3, 70, 200):
        x = rng.choice(edges, (40, n))
        for name in FLOATS:
            found = getattr(reduce, name)(x, 1, backend=backend)
            assert found.tobytes() == expected(name, x, 1).tobytes(), (name, n)


@pytest.mark.check
def test_a_problem_gives_the_same_bytes_in_every_company():
    x = numbers((64, 1000))
    for name in ("sum", "norm", "std"):
        f = getattr(reduce, name)
        alone = np.array([f(row) for row in x])
        assert f(x, 1).tobytes() == alone.tobytes()
        assert f(x[:3], 1).tobytes() == alone[:3].tobytes()
        assert f(np.ascontiguousarray(x.T), 0).tobytes() == alone.tobytes()
        assert f(x[:, None, :, None], axis=2).tobytes() == alone.tobytes()
        assert f(x[::2, :], 1).tobytes() == alone[::2].tobytes()


def test_several_neighbouring_axes_are_one_problem():
    x = numbers((4, 5, 6, 7))
    assert reduce.sum(x, (1, 2)).tobytes() == reduce.sum(x.reshape(4, 30, 7), 1).tobytes()
    assert reduce.sum(x, (-1, 2, 1)).shape == (4,)
    assert reduce.sum(x, (1, 2), keepdims=True).shape == (4, 1, 1, 7)
    assert reduce.sum(x, keepdims=True).shape == (1, 1, 1, 1)
    with pytest.raises(ArgumentValueError, match=r"not neighbours.*Fix: bring them together"):
        reduce.sum(x, (0, 2))


@pytest.mark.check
@pytest.mark.parametrize("dtype", ["bool", "u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f16", "f64"])
def test_other_types_give_what_numpy_gives(dtype):
    t = np.dtype({"bool": "?"}.get(dtype, dtype[0] + str(int(dtype[1:]) // 8 if dtype != "bool" else 1)))
    x = np.random.default_rng(1).integers(0, 2 if t.kind == "b" else 9, (30, 70)).astype(t)
    for axis in (None, 0, 1):
        for name in ("sum", "min", "max", "argmin", "argmax", "any", "all"):
            assert np.array_equal(getattr(reduce, name)(x, axis), getattr(x, name)(axis)), (name, axis)
        assert np.array_equal(reduce.count(x, axis), np.count_nonzero(x, axis))
        if t.kind != "b":
            assert np.allclose(reduce.dot(x, x, axis), (x.astype(np.int64) ** 2).sum(axis), rtol=1e-3, atol=0)
    assert reduce.min(x).dtype == reduce.max(x, 0).dtype == t
    if dtype not in ("u64", "i64"):
        assert np.allclose(reduce.mean(x, 0), x.astype(np.float64).mean(0), rtol=1e-3)
        assert reduce.std(x).dtype == {"f16": np.float16, "f64": np.float64}.get(dtype, np.float32)


def test_dtype_says_as_what_elements_are_added():
    x = np.full(100, 200, np.uint8)
    assert reduce.sum(x).dtype == np.uint32
    assert reduce.sum(x, dtype=np.float64) == 20000.0
    assert reduce.sum(np.full(3, 1 << 31, np.uint32)) == np.uint32(3 << 31 & 0xFFFFFFFF)
    assert reduce.sum(np.full(3, 1 << 31, np.uint32), dtype=vyre.u64) == 3 << 31
    half = np.full(4096, 1.0, np.float16)
    assert reduce.sum(half).dtype == np.float16
    assert reduce.mean(half, dtype=np.float32).dtype == np.float32
    with pytest.raises(ArgumentTypeError, match=r"is not one of f32, f64. Fix: pass dtype=np.float32"):
        reduce.sum(half, dtype=np.int32)


def test_what_is_empty_is_neutral_or_refused():
    x = np.empty((3, 0, 2), np.float32)
    assert np.array_equal(reduce.sum(x, 1), np.zeros((3, 2)))
    assert np.array_equal(reduce.prod(x, 1), np.ones((3, 2)))
    assert reduce.all(x)
    assert not reduce.any(x)
    assert reduce.count(x) == reduce.norm(x) == 0
    assert reduce.max(x, 0).shape == reduce.argmax(x, 0).shape == reduce.var(x, 0).shape == (0, 2)
    for name in ("min", "max", "argmin", "argmax", "mean"):
        with pytest.raises(ArgumentValueError, match=r"no elements along axis=1.*Fix: pass an array with"):
            getattr(reduce, name)(x, 1)
    with pytest.raises(ArgumentValueError, match=r"ddof=3 and 3 elements. Fix"):
        reduce.var(np.zeros(3, np.float32), ddof=3)


def test_what_does_not_fit_is_refused_with_a_fix():
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(ArgumentValueError, match=r"axis=2 of an array with 2 axes. Fix: pass an axis from -2 to 1"):
        reduce.sum(x, 2)
    with pytest.raises(ArgumentValueError, match=r"axis=0 of an array with 0 axes. Fix: drop it"):
        reduce.sum(x[0, 0, None].reshape(()), 0)
    with pytest.raises(ArgumentTypeError, match=r"axis=1.5 is no axis. Fix"):
        reduce.sum(x, 1.5)
    with pytest.raises(ArgumentValueError, match=r"names an axis twice. Fix"):
        reduce.sum(x, (0, -2))
    with pytest.raises(ArgumentTypeError, match=r"x holds complex64.*Fix: convert it: x.astype\(np.float32\)"):
        reduce.sum(x + 0j)
    with pytest.raises(ArgumentValueError, match=r"x has 8589934592 elements, and places are counted in 32 bits.*Fix"):
        reduce.sum(np.broadcast_to(np.float32(0), (1 << 33,)))
    with pytest.raises(ArgumentTypeError, match=r"x holds bfloat16, and this function takes.*Fix"):
        reduce.sum(vyre.to_device(np.zeros(3, np.uint16), "cpu").view(vyre.bf16))
    with pytest.raises(ArgumentTypeError, match=r"x is a list, not an array. Fix"):
        reduce.sum([1.0, 2.0])
    with pytest.raises(ArgumentTypeError, match=r"x holds int64.*Fix: convert it"):
        reduce.mean(np.arange(3))
    with pytest.raises(ArgumentValueError, match=r"x has shape \(2, 3\) and y \(3, 2\). Fix"):
        reduce.dot(x, x.T)
    with pytest.raises(ArgumentTypeError, match=r"x holds bool, and this function takes f32.*Fix"):
        reduce.dot(x > 0, x > 0)
    with pytest.raises(ArgumentTypeError, match=r"x holds float32 and y float64. Fix"):
        reduce.dot(x, x.astype(np.float64))
    with pytest.raises(ArgumentValueError, match=r"out has shape \(3,\), and the result \(2,\). Fix"):
        reduce.sum(x, 1, out=np.zeros(3, np.float32))
    with pytest.raises(ArgumentTypeError, match=r"out holds float64.*Fix"):
        reduce.sum(x, 1, out=np.zeros(2))
    with pytest.raises(vyre.BackendUnavailable, match="Fix"):
        reduce.sum(x, backend="none")


def test_f64_on_a_backend_without_it_says_so():
    on_backend("wgpu")
    with pytest.raises(UnsupportedFeature, match=r"lacks float64(.|\n)*Fix"):
        reduce.sum(np.zeros(3), backend="wgpu")


def test_results_go_where_the_caller_says():
    x = numbers((5, 300))
    out = np.empty(5, np.float32)
    assert reduce.mean(x, 1, out=out) is out
    assert out.tobytes() == expected("mean", x, 1).tobytes()
    places = np.empty((1, 300), np.uint32)
    assert reduce.argmax(x, 0, keepdims=True, out=places) is places
    assert reduce.sum(np.empty((0, 2), np.float32), 0, out=out[:2]).tolist() == [0, 0]


@pytest.mark.parametrize("backend", ["cpu", "opencl"])
def test_arrays_of_a_device_stay_there(backend):
    on_backend(backend)
    x = numbers((5, 300))
    d = vyre.to_device(x, backend)
    for name in ("sum", "std", "argmin"):
        found = getattr(reduce, name)(d, 1)
        assert type(found) is vyre.DeviceBuffer
        assert found.device == d.device
        assert found.numpy().tobytes() == expected(name, x, 1).tobytes()
    assert reduce.max(d).shape == ()
    assert type(reduce.dot(x, d)) is type(reduce.dot(d, x)) is vyre.DeviceBuffer
    assert reduce.sum(vyre.to_device(np.empty((0, 3), np.float32), backend), 0).numpy().tolist() == [0, 0, 0]
    out = np.empty(5, np.float32)
    assert reduce.var(d, 1, out=out) is out
    with pytest.raises(ArgumentValueError, match=r"lives on.*asks for another device.*Fix"):
        reduce.sum(d, backend="reference" if backend == "cpu" else "cpu")


def test_a_sequence_takes_them_as_kernels():
    @vyre.sequence
    def spread(x):
        return reduce.max(x, 1), reduce.var(x, 1), reduce.argmin(x)

    for seed in range(3):
        x = numbers((4, 500), seed)
        for found, want in zip(
            spread.on("cpu")(x), (reduce.max(x, 1), reduce.var(x, 1), reduce.argmin(x)), strict=True
        ):
            assert found.tobytes() == np.asarray(want).tobytes()


@pytest.mark.sweep
@pytest.mark.parametrize("backend", ["cpu", "opencl", "wgpu"])
def test_the_same_bytes_for_many_shapes(backend):
    on_backend(backend)
    lengths = (1, 2, 31, 32, 33, 63, 64, 65, 255, 256, 257, 1021, 4097, 16_383, 16_385)
    shapes = [(s, a) for n in lengths for b in (1, 3, 16, 64) for s, a in (((b, n), 1), ((n, b), 0)) if n * b < 70_000]
    for name in ("sum", "var"):
        require_defined(name, backend, shapes)
