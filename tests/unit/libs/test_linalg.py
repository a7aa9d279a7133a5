"""`vyre.libs.linalg` gives the bytes of its definition, which stands here one operation at a time."""

import numpy as np
import pytest

import vyre
from vyre.errors import ArgumentTypeError, ArgumentValueError
from vyre.libs import linalg, reduce

from ...support import scalar_f32 as scalar
from ...support.backends_of_libs import BACKENDS, on_backend


def product(row, column):
    """Chains of 128 products, added one after the other."""
    total = 0.0
    for start in range(0, len(row), 128):
        t = 0.0
        for v, w in zip(row[start : start + 128], column[start : start + 128], strict=True):
            t = scalar.fma(v, w, t)
        total = scalar.add(total, t)
    return total


def expected(a, b):
    return np.float32([[product(row, column) for column in b.T.tolist()] for row in a.tolist()])


def numbers(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


SHAPES = [(1, 1, 1), (1, 33, 2), (7, 127, 3), (9, 129, 5), (3, 600, 2), (17, 4, 65), (8, 31, 64), (33, 1, 9)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_gives_the_bytes_of_the_definition(backend):
    on_backend(backend)
    for n, k, m in SHAPES:
        a, b = numbers(n, k), numbers(k, m, seed=1)
        want = expected(a, b).tobytes()
        assert linalg.matmul(a, b, backend=backend).tobytes() == want, (n, k, m)
        flipped, turned = np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)
        assert linalg.matmul(flipped, turned, transpose_a=True, transpose_b=True, backend=backend).tobytes() == want
        found = linalg.transpose(a, backend=backend)
        assert found.tobytes() == flipped.tobytes()
        assert found.shape == (k, n)


def test_a_product_gives_the_same_bytes_in_every_company():
    a, b = numbers(5, 20, 300), numbers(5, 300, 10)
    found = linalg.matmul(a, b)
    assert found.shape == (5, 20, 10)
    for k in range(5):
        assert found[k].tobytes() == linalg.matmul(a[k], b[k]).tobytes()
        assert np.array_equal(found[k, 3:4], linalg.matmul(a[k, 3:4], b[k]))
        assert np.array_equal(found[k, :, 2:3], linalg.matmul(a[k], b[k, :, 2:3]))
    assert np.array_equal(linalg.matmul(a, b[0])[4], linalg.matmul(a[4], b[0]))
    assert np.array_equal(linalg.matmul(a[0], b)[4], linalg.matmul(a[0], b[4]))
    assert np.array_equal(linalg.matmul(a[:, ::2], b), found[:, ::2])


def test_a_vector_is_joined_with_each_row_as_by_dot():
    a, x = numbers(40, 700), numbers(700)
    found = linalg.matvec(a, x)
    assert found.tolist() == [reduce.dot(row, x) for row in a]
    assert linalg.matvec(a.reshape(4, 10, 700), x).tobytes() == found.tobytes()
    assert reduce.dot(np.ascontiguousarray(a.T), x, 0).tobytes() == found.tobytes()
    assert np.array_equal(linalg.outer(x, a[0]), np.outer(x, a[0]))


def test_whole_numbers_wrap_and_narrow_ones_are_multiplied_as_words():
    rng = np.random.default_rng(2)
    a, b = rng.integers(-128, 128, (9, 500), dtype=np.int8), rng.integers(-128, 128, (500, 7), dtype=np.int8)
    found = linalg.matmul(a, b)
    assert found.dtype == np.int32
    assert np.array_equal(found, a.astype(np.int32) @ b)
    c = rng.integers(0, 1 << 32, (6, 6), dtype=np.uint32)
    assert np.array_equal(linalg.matmul(c, c), c @ c)
    assert np.allclose(linalg.matmul(c / 2**32, c / 2**32), (c / 2**32) @ (c / 2**32))
    half = a[:, :20].astype(np.float16)
    assert linalg.matmul(half, half, transpose_b=True).dtype == np.float16


def test_transposing_changes_no_bit():
    for dtype in (np.uint8, np.uint16, np.uint32, np.uint64):
        bits = np.frombuffer(np.random.default_rng(3).bytes(70 * 45 * 8), dtype)[: 70 * 45].reshape(2, 35, 45)
        floats = {2: np.float16, 4: np.float32, 8: np.float64}.get(bits.itemsize, np.int8)
        found = linalg.transpose(bits.view(floats))
        assert found.dtype == floats
        assert found.tobytes() == bits.swapaxes(1, 2).tobytes()
    assert np.array_equal(linalg.transpose(bits > 1 << 63), (bits > 1 << 63).swapaxes(1, 2))
    swapped = numbers(4, 9).astype(">f4")
    assert np.array_equal(linalg.transpose(swapped), swapped.T)


def test_results_go_where_the_caller_says():
    a, b = numbers(6, 40), numbers(40, 5)
    want = linalg.matmul(a, b)
    out = np.empty((6, 5), np.float32)
    assert linalg.matmul(a, b, out=out) is out
    assert np.array_equal(out, want)
    d, e = vyre.to_device(a, "cpu"), vyre.to_device(b, "cpu")
    for left, right in ((d, e), (a, e), (d, b)):
        found = linalg.matmul(left, right)
        assert type(found) is vyre.DeviceBuffer
        assert np.array_equal(found.numpy(), want)
    turned = np.empty((40, 6), np.float32)
    assert linalg.transpose(d, out=turned) is turned
    assert np.array_equal(turned, a.T)
    kept = vyre.to_device(np.zeros((40, 6), np.float32), "cpu")
    assert linalg.transpose(a, out=kept) is kept
    assert np.array_equal(kept.numpy(), a.T)
    assert linalg.matmul(np.zeros((3, 0), np.float32), np.zeros((0, 2), np.float32)).tolist() == [[0, 0]] * 3
    assert linalg.matmul(np.zeros((0, 3), np.float32), b[:3]).shape == (0, 5)
    assert linalg.outer(a[0], b[:0, 0]).shape == (40, 0)
    assert linalg.transpose(np.zeros((0, 3))).shape == (3, 0)


def test_a_sequence_takes_them_as_kernels():
    @vyre.sequence
    def gram(x):
        return linalg.matmul(linalg.transpose(x), x), linalg.matmul(x, x, transpose_b=True)

    for seed in range(3):
        x = numbers(30, 20, seed=seed)
        small, large = gram.on("cpu")(x)
        assert small.tobytes() == linalg.matmul(x, x, transpose_a=True).tobytes()
        assert large.tobytes() == linalg.matmul(x, np.ascontiguousarray(x.T)).tobytes()


def test_what_does_not_fit_is_refused_with_a_fix():
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(ArgumentValueError, match=r"shape \(2, 3\) and \(2, 3\) have no product. Fix: pass"):
        linalg.matmul(x, x)
    with pytest.raises(ArgumentValueError, match=r"have no product with what is transposed. Fix"):
        linalg.matmul(x, x[:, :1], transpose_b=True)
    with pytest.raises(ArgumentValueError, match=r"have no product. Fix"):
        linalg.matmul(np.zeros((2, 2, 3), np.float32), np.zeros((3, 3, 1), np.float32))
    with pytest.raises(ArgumentValueError, match=r"b has 1 axes and a matrix two. Fix: call matvec"):
        linalg.matmul(x, x[0])
    with pytest.raises(ArgumentValueError, match=r"a has shape \(2, 3\) and x \(2,\). Fix"):
        linalg.matvec(x, x[:, 0])
    with pytest.raises(ArgumentValueError, match=r"x has 1 axes and a matrix two. Fix"):
        linalg.transpose(x[0])
    with pytest.raises(ArgumentTypeError, match=r"a holds float32 and b float64. Fix"):
        linalg.matmul(x, x.T.astype(np.float64))
    with pytest.raises(ArgumentTypeError, match=r"a holds bool, and this function takes.*Fix"):
        linalg.matmul(x > 0, x.T > 0)
    with pytest.raises(ArgumentValueError, match=r"out has shape \(2, 3\), and the result \(3, 2\). Fix"):
        linalg.transpose(x, out=x)
    with pytest.raises(ArgumentTypeError, match=r"out holds float64. Fix: pass an array of float32"):
        linalg.transpose(x, out=np.zeros((3, 2)))
