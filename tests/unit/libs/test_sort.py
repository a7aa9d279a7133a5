"""`vyre.libs.sort` puts elements in the one order that is stable, with -0 below +0 and every NaN last."""

import math

import numpy as np
import pytest

import vyre
from vyre.errors import ArgumentTypeError, ArgumentValueError
from vyre.libs import sort

from ...support.backends_of_libs import BACKENDS, on_backend

TYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "f2", "f4", "u8", "i8", "f8")
SHAPES = [(1,), (33,), (257,), (2049,), (3, 40), (2, 2, 700), (5, 1), (4100,), (16,)]


def numbers(dtype, shape):
    """Any bits, with equal elements among them, and of floats NaN with several bits and both zeros."""
    n = math.prod(shape)
    x = np.frombuffer(np.random.default_rng([n, len(shape)]).bytes(8 * n), dtype)[:n].copy()
    if dtype[0] == "f":
        x[::5] = np.tile(np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0], dtype), n)[: len(x[::5])]
        x.view("u" + dtype[1])[3::11] |= 1 << 8 * x.itemsize - 1
    else:
        x[::3] = x[0]
    return x.reshape(shape)


def rank(v):
    """What the definition compares."""
    v = v.item()
    return (1, 0.0, 0) if v != v else (0, v, math.copysign(1, v) if v == 0 else 0)


def expected(x):
    """The places of the elements of each row in order."""
    rows = x.reshape(-1, x.shape[-1])
    return np.uint32([sorted(range(len(row)), key=lambda k, row=row: rank(row[k])) for row in rows]).reshape(x.shape)


def require_defined(dtype, shape, backend):
    x = numbers(dtype, shape)
    order = expected(x)
    found = sort.argsort(x, backend=backend)
    assert found.dtype == np.uint32
    assert found.tobytes() == order.tobytes(), (dtype, shape)
    want = np.take_along_axis(x, order.astype(np.int64), -1)
    found = sort.sort(x, backend=backend)
    assert found.dtype == x.dtype
    assert found.tobytes() == want.tobytes(), (dtype, shape)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_sorts_as_defined(backend):
    on_backend(backend)
    for shape in SHAPES[1:4:2]:
        require_defined("f4", shape, backend)


@pytest.mark.check
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_is_sorted_as_defined(dtype, backend):
    on_backend(backend)
    for shape in SHAPES:
        require_defined(dtype, shape, backend)


def require_what_follows(dtype, shape, backend):
    """From the order of the elements, what else there is."""
    x = numbers(dtype, shape)
    ranks = [[rank(v) for v in row] for row in x.reshape(-1, shape[-1])]
    carried = np.arange(x.size, dtype=np.int16).reshape(shape)
    order = expected(x).astype(np.int64)
    keys, values = sort.pairs(x, carried, backend=backend)
    assert keys.tobytes() == np.take_along_axis(x, order, -1).tobytes(), (dtype, shape)
    assert values.tobytes() == np.take_along_axis(carried, order, -1).tobytes(), (dtype, shape)
    k = min(5, shape[-1])
    values, places = sort.topk(x, k, backend=backend)
    want = [sorted(range(len(r)), key=lambda i, r=r: (*(-v for v in r[i]), i))[:k] for r in ranks]
    want = np.uint32(want).reshape(*shape[:-1], k)
    assert places.tobytes() == want.tobytes(), (dtype, shape)
    assert values.tobytes() == np.take_along_axis(x, want.astype(np.int64), -1).tobytes()
    there = keys[..., ::3].copy()
    for side, before in (("left", lambda a, b: a < b), ("right", lambda a, b: a <= b)):
        found = sort.searchsorted(keys, there, side, backend=backend)
        want = [
            [sum(before(a, rank(v)) for a in row) for v in asked]
            for row, asked in zip(ranks, there.reshape(len(ranks), -1), strict=True)
        ]
        assert np.array_equal(found, np.uint32(want).reshape(there.shape)), (dtype, shape, side)


def by_bits(v):
    """Where `unique` puts a number: NaN behind all others, by their bits, and those with a sign last, from the greatest
    bits to the least."""
    bits = int(v.view(f"u{v.itemsize}"))
    signed = bits >> 8 * v.itemsize - 1
    return (*rank(v), (signed, -bits if signed else bits) if v != v else ())


def require_unique(dtype, shape, backend):
    x = numbers(dtype, shape)
    flat = x.reshape(-1)
    first = {}
    for k, v in enumerate(flat):
        first.setdefault(v.tobytes(), k)
    where = sorted(first.values(), key=lambda k: by_bits(flat[k]))
    number = {flat[k].tobytes(): n for n, k in enumerate(where)}
    inverse = [number[v.tobytes()] for v in flat]
    found = sort.unique(x, return_index=True, return_inverse=True, return_counts=True, backend=backend)
    assert found[0].tobytes() == flat[where].tobytes(), (dtype, shape)
    assert found[1].tolist() == where
    assert found[2].reshape(-1).tolist() == inverse
    assert found[3].tolist() == np.bincount(inverse).tolist()


@pytest.mark.check
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", TYPES)
def test_what_follows_from_the_order_is_defined_too(dtype, backend):
    on_backend(backend)
    for shape in ((1,), (16,), (3, 17), (300,), (2, 1030)):
        require_what_follows(dtype, shape, backend)
        require_unique(dtype, shape, backend)


@pytest.mark.check
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_gives_what_follows_from_the_order(backend):
    on_backend(backend)
    require_what_follows("f4", (3, 17), backend)
    require_unique("f4", (40,), backend)


def test_any_axis_is_sorted_in_either_direction():
    x = numbers("i2", (5, 40, 3))
    for axis in (0, 1, 2, -2, None):
        for f in (sort.sort, sort.argsort):
            peer = np.sort if f is sort.sort else np.argsort
            assert np.array_equal(f(x, axis), peer(x, axis=axis, kind="stable"))
        out = np.empty_like(x) if axis is not None else np.empty(x.size, x.dtype)
        assert sort.sort(x, axis, descending=True, out=out) is out
        assert np.array_equal(out, -np.sort(-x.astype(np.int32), axis=axis))
    assert sort.argsort(np.float32([1, np.nan, 1, 2]), descending=True).tolist() == [1, 3, 0, 2]
    assert sort.unique(np.float32([])).shape == (0,)
    found = sort.unique(np.int32([3, 1, 3]), return_counts=True, size=4)
    assert [f.tolist() for f in found] == [[1, 3, 0, 0], [1, 2, 0, 0]]


def test_results_go_where_the_caller_says():
    x = numbers("i4", (3, 500))
    out, order = np.empty_like(x), np.empty(x.shape, np.uint32)
    assert sort.sort(x, out=out) is out
    assert np.array_equal(out, np.sort(x))
    assert sort.argsort(x, out=order) is order
    assert np.array_equal(order, np.argsort(x, kind="stable"))
    assert np.array_equal(sort.sort(x[:, ::2]), np.sort(x[:, ::2]))
    d = vyre.to_device(x, "cpu")
    for f in (sort.sort, sort.argsort):
        found = f(d)
        assert type(found) is vyre.DeviceBuffer
        assert np.array_equal(found.numpy(), f(x))
    assert np.array_equal(d.numpy(), x)
    assert sort.sort(x, out=x) is x
    assert np.array_equal(x, out)
    assert sort.argsort(np.empty((3, 0), np.float32)).shape == sort.sort(np.empty((3, 0), np.float32)).shape == (3, 0)


def test_a_sequence_takes_them_as_kernels():
    @vyre.sequence
    def ranks(x):
        return sort.argsort(sort.argsort(x))

    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((2, 300)).astype(np.float32)
        assert np.array_equal(ranks.on("cpu")(x), np.argsort(np.argsort(x)))


def test_what_does_not_fit_is_refused_with_a_fix():
    with pytest.raises(ArgumentTypeError, match=r"x holds complex64.*Fix"):
        sort.sort(np.zeros(3, np.complex64))
    with pytest.raises(ArgumentValueError, match=r"axis=\(0, 1\) is not one axis. Fix"):
        sort.sort(np.zeros((3, 2), np.float32), axis=(0, 1))
    with pytest.raises(ArgumentValueError, match=r"k=4 of 3 elements. Fix: pass a whole number from 0 to 3"):
        sort.topk(np.zeros(3, np.float32), 4)
    with pytest.raises(ArgumentTypeError, match=r"out is not a tuple of two arrays. Fix"):
        sort.topk(np.zeros(3, np.float32), 2, out=np.zeros(2, np.float32))
    with pytest.raises(ArgumentValueError, match=r"keys have shape \(3,\) and values \(2,\). Fix"):
        sort.pairs(np.zeros(3, np.float32), np.zeros(2))
    with pytest.raises(ArgumentTypeError, match=r"x holds float32 and values int32. Fix: pass values.astype"):
        sort.searchsorted(np.zeros(3, np.float32), np.int32([1]))
    with pytest.raises(ArgumentValueError, match=r"x has shape \(2, 3\) and values \(3,\). Fix"):
        sort.searchsorted(np.zeros((2, 3), np.float32), np.zeros(3, np.float32))
    with pytest.raises(ArgumentValueError, match=r"side='up'. Fix: pass side="):
        sort.searchsorted(np.zeros(3, np.float32), np.zeros(3, np.float32), "up")
    with pytest.raises(ArgumentValueError, match=r"x has no axes.*Fix: pass an array with one"):
        sort.sort(np.zeros((), np.float32))
    with pytest.raises(ArgumentTypeError, match=r"out holds int64. Fix: pass an array of uint32"):
        sort.argsort(np.zeros(3, np.float32), out=np.zeros(3, np.int64))
    with pytest.raises(ArgumentValueError, match=r"out has shape \(2,\), and the result \(3,\). Fix"):
        sort.sort(np.zeros(3, np.float32), out=np.zeros(2, np.float32))
