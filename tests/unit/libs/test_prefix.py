"""`vyre.libs.prefix` gives the bytes of its definition, which stands here one operation at a time."""

import math

import numpy as np
import pytest

import vyre
from vyre.errors import ArgumentTypeError, ArgumentValueError
from vyre.libs import prefix

from ...support import scalar_f32 as scalar
from ...support.backends_of_libs import BACKENDS, on_backend


def least(a, b):
    return a if a != a else b if b != b or b < a else a


def most(a, b):
    return a if a != a else b if b != b or a < b else a


RULES = {"sum": (scalar.add, 0.0), "min": (least, math.inf), "max": (most, -math.inf)}


def before_each(x, join, first):
    """What comes before each element: that before its segment of 32, and then the elements of the segment."""
    segments = [x[k : k + 32] for k in range(0, len(x), 32)]
    offsets = [first]
    if len(segments) > 1:
        totals = []
        for segment in segments:
            t = first
            for v in segment:
                t = join(t, v)
            totals.append(t)
        offsets = before_each(totals, join, first)
    found = []
    for offset, segment in zip(offsets, segments, strict=True):
        t = first
        for v in segment:
            found.append(join(offset, t))
            t = join(t, v)
    return found


def up_to_each(x, join, first):
    totals, t = [], first
    for k, v in enumerate(x):
        t = join(first if k % 32 == 0 else t, v)
        totals.append(t)
    offsets = before_each([totals[min(k + 31, len(x) - 1)] for k in range(0, len(x), 32)], join, first)
    return [join(offsets[k // 32], t) for k, t in enumerate(totals)]


def expected(name, x, axis, exclusive=False):
    along = x.reshape(1, -1) if axis is None else np.moveaxis(x, axis, -1)
    f = before_each if exclusive else up_to_each
    problems = along.reshape(-1, along.shape[-1])
    found = np.array([f([scalar.f32(float(v)) for v in p], *RULES[name]) for p in problems], np.float32)
    return found.reshape(-1) if axis is None else np.moveaxis(found.reshape(along.shape), -1, axis)


def numbers(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


SHAPES = [
    ((1,), 0),
    ((31,), 0),
    ((33,), 0),
    ((1023,), None),
    ((5, 1025), 1),
    ((2100, 3), 0),
    ((2, 70, 5), 1),
    ((7, 9), None),
]


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_gives_the_bytes_of_the_definition(backend):
    on_backend(backend)
    for shape, axis in SHAPES:
        x = numbers(shape)
        found = prefix.sum(x, axis, backend=backend)
        want = expected("sum", x, axis)
        assert found.shape == want.shape
        assert found.tobytes() == want.tobytes(), (shape, axis)


@pytest.mark.check
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "name, exclusive", [("sum", True), ("min", False), ("min", True), ("max", False), ("max", True)]
)
def test_the_others_do_too(name, exclusive, backend):
    on_backend(backend)
    edges = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3e38, -3e38, 1.0])
    for shape, axis in SHAPES:
        x = numbers(shape)
        found = getattr(prefix, name)(x, axis, exclusive=exclusive, backend=backend)
        assert found.tobytes() == expected(name, x, axis, exclusive).tobytes(), (shape, axis)
    x = np.random.default_rng(1).choice(edges[edges != 0] if name != "sum" else edges, (50, 70))
    found = getattr(prefix, name)(x, 1, exclusive=exclusive, backend=backend)
    assert found.tobytes() == expected(name, x, 1, exclusive).tobytes()


@pytest.mark.check
def test_a_million_elements_go_by_the_definition():
    x = numbers((1 << 20) + 77)
    found = prefix.sum(x)
    assert found.tobytes() == expected("sum", x, 0).tobytes()
    assert (
        np.abs(found - np.cumsum(x, dtype=np.float64)).max()
        <= np.abs(np.cumsum(x) - np.cumsum(x, dtype=np.float64)).max()
    )


def test_a_problem_gives_the_same_bytes_in_every_company():
    x = numbers((20, 1500))
    whole = prefix.sum(x, 1)
    assert whole.tobytes() == np.stack([prefix.sum(row) for row in x]).tobytes()
    assert whole[:3].tobytes() == prefix.sum(x[:3], 1).tobytes()
    assert np.ascontiguousarray(prefix.sum(np.ascontiguousarray(x.T), 0).T).tobytes() == whole.tobytes()
    assert prefix.sum(x[:, ::2], 1).tobytes() == prefix.sum(np.ascontiguousarray(x[:, ::2]), -1).tobytes()


def test_whole_numbers_give_what_numpy_gives():
    x = np.random.default_rng(1).integers(0, 100, (60, 50), dtype=np.uint8)
    for axis in (None, 0, 1):
        assert np.array_equal(prefix.sum(x, axis), np.cumsum(x, axis))
        before = np.cumsum(x, axis) - (x.reshape(-1) if axis is None else x)
        assert np.array_equal(prefix.sum(x, axis, exclusive=True), before)
    assert prefix.sum(x).dtype == np.uint32
    assert prefix.max(x, 0).dtype == np.uint8
    assert np.array_equal(prefix.max(x, 0), np.maximum.accumulate(x, 0))
    assert prefix.min(x, 1, exclusive=True)[:, 0].tolist() == [255] * 60
    assert prefix.sum(x, dtype=np.float64)[-1] == x.sum()
    assert np.array_equal(prefix.sum(x > 50), np.cumsum(x > 50))
    assert prefix.sum(np.float16([1, 2])).dtype == np.float16


def test_results_go_where_the_caller_says():
    x = numbers((40, 60))
    out = np.empty_like(x)
    assert prefix.max(x, 1, out=out) is out
    assert np.array_equal(out, np.maximum.accumulate(x, 1))
    assert prefix.sum(np.empty((0, 3), np.float32), 0).shape == (0, 3)
    d = vyre.to_device(x, "cpu")
    found = prefix.sum(d, 0)
    assert type(found) is vyre.DeviceBuffer
    assert found.numpy().tobytes() == prefix.sum(x, 0).tobytes()
    same = vyre.to_device(x, "cpu")
    assert prefix.sum(same, 0, out=same) is same
    assert same.numpy().tobytes() == prefix.sum(x, 0).tobytes()


def test_what_does_not_fit_is_refused_with_a_fix():
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(ArgumentValueError, match=r"axis=\(0, 1\) is not one axis. Fix: pass one number"):
        prefix.sum(x, (0, 1))
    with pytest.raises(ArgumentValueError, match=r"axis=2 of an array with 2 axes. Fix"):
        prefix.sum(x, 2)
    with pytest.raises(ArgumentValueError, match=r"out has shape \(3,\), and the result \(2, 3\). Fix"):
        prefix.sum(x, 1, out=np.zeros(3, np.float32))
    with pytest.raises(ArgumentTypeError, match=r"is not one of f32, f64. Fix"):
        prefix.sum(x, 1, dtype=np.int32)


def test_a_sequence_takes_them_as_kernels():
    @vyre.sequence
    def twice(x):
        return prefix.sum(prefix.sum(x, 0), 1)

    for seed in range(3):
        x = numbers((40, 30), seed)
        assert twice.on("cpu")(x).tobytes() == prefix.sum(prefix.sum(x, 0), 1).tobytes()
