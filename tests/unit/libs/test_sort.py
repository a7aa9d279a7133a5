"""`vyre.libs.sort` puts elements in the one order that is stable, with -0 below +0 and every NaN last."""

import math

import numpy as np
import pytest

import vyre
from vyre.errors import ArgumentTypeError, ArgumentValueError
from vyre.libs import sort

from ...support.backends_of_libs import BACKENDS, on_backend

TYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "f2", "f4")
SHAPES = [(1,), (33,), (257,), (2049,), (3, 40), (2, 2, 700), (5, 1), (4100,)]


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
    with pytest.raises(ArgumentTypeError, match=r"x holds float64, and this function takes f32.*Fix: convert it"):
        sort.sort(np.zeros(3))
    with pytest.raises(ArgumentTypeError, match=r"x holds int64.*Fix: convert it: x.astype\(np.int32\)"):
        sort.sort(np.arange(3))
    with pytest.raises(ArgumentValueError, match=r"x has no axes.*Fix: pass an array with one"):
        sort.sort(np.zeros((), np.float32))
    with pytest.raises(ArgumentTypeError, match=r"out holds int64. Fix: pass an array of uint32"):
        sort.argsort(np.zeros(3, np.float32), out=np.zeros(3, np.int64))
    with pytest.raises(ArgumentValueError, match=r"out has shape \(2,\), and the result \(3,\). Fix"):
        sort.sort(np.zeros(3, np.float32), out=np.zeros(2, np.float32))
