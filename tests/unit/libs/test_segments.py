"""`vyre.libs.segments` gives for each segment the bytes that `reduce` and `prefix` give for it alone."""

import itertools

import numpy as np
import pytest

import vyre
from vyre.errors import ArgumentValueError, Trap
from vyre.libs import prefix, reduce, segments

from ...support.backends_of_libs import BACKENDS, on_backend

CUTS = [
    (10, [0, 3, 3, 10]),
    (2000, [0, 1, 2, 70, 1100, 1100, 2000]),
    (300, list(range(0, 301, 5))),
    (1, [0, 1]),
    (257, [1, 33, 64, 65, 255]),
    (3000, [0, 1025, 3000]),
    (20_000, [0, 17_000, 17_001, 20_000]),
    (33, [0, 0, 33, 33]),
]


def require_each_alone(n, cuts, backend, names=("sum", "min", "mean", "any"), running=("sum", "max")):
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    for name in names:
        found = getattr(segments, name)(x, np.array(cuts), backend=backend)
        for s, (a, b) in enumerate(itertools.pairwise(cuts)):
            if a < b:
                assert found[s].tobytes() == getattr(reduce, name)(x[a:b]).tobytes(), (name, n, s)
    for name in running:
        for exclusive in (False, True):
            found = getattr(segments, f"running_{name}")(x, np.array(cuts), exclusive=exclusive, backend=backend)
            want = np.zeros(n, np.float32)
            for a, b in itertools.pairwise(cuts):
                if a < b:
                    want[a:b] = getattr(prefix, name)(x[a:b], exclusive=exclusive)
            assert found.tobytes() == want.tobytes(), (name, exclusive, n)


@pytest.mark.check
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_takes_each_segment_as_if_alone(backend):
    on_backend(backend)
    require_each_alone(*CUTS[1], backend, names=("sum",), running=("sum",))


@pytest.mark.check
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_function_does(backend):
    on_backend(backend)
    names = ("sum", "prod", "min", "max", "mean", "any", "all", "count")
    for n, cuts in CUTS:
        require_each_alone(n, cuts, backend, names=names, running=("sum", "min", "max"))


@pytest.mark.check
def test_long_and_short_segments_beside_each_other():
    cuts = [0, 5, 40_000, 40_001, 700_000, *range(700_000, 800_000, 9)]
    require_each_alone(800_000, cuts, "cpu", names=("sum",))


def test_empty_segments_have_what_the_functions_begin_with():
    x, cuts = np.float32([1, 2]), np.array([0, 0, 2])
    assert segments.sum(x, cuts).tolist() == [0, 3]
    assert segments.min(x, cuts).tolist() == [np.inf, 1]
    assert np.isnan(segments.mean(x, cuts)[0])
    assert segments.max(np.int8([1, 2]), cuts).tolist() == [-128, 2]
    assert segments.all(x[:0], np.array([0, 0])).tolist() == [True]
    assert segments.sum(x, np.array([0])).shape == (0,)
    assert segments.offsets(np.uint32([3, 0, 4])).tolist() == [0, 3, 3, 7]
    assert segments.offsets(np.uint32([])).tolist() == [0]


def test_results_go_where_the_caller_says():
    x, cuts = np.arange(6, dtype=np.int32), np.uint32([0, 2, 6])
    out = np.empty(2, np.int64)
    assert segments.sum(x, cuts, dtype=np.int64, out=out) is out
    assert out.tolist() == [1, 14]
    found = segments.running_sum(vyre.to_device(x, "cpu"), cuts)
    assert type(found) is vyre.DeviceBuffer
    assert found.numpy().tolist() == [0, 1, 2, 5, 9, 14]

    @vyre.sequence
    def of_lengths(x, lengths):
        return segments.sum(x, segments.offsets(lengths))

    for lengths in ([2, 4], [6, 0]):
        want = segments.sum(x, segments.offsets(np.uint32(lengths)))
        assert np.array_equal(of_lengths.on("cpu")(x, np.uint32(lengths)), want)


def test_offsets_that_are_none_are_refused_with_a_fix():
    x = np.zeros(10, np.float32)
    for cuts, why in (([0, 5, 3], "above the next"), ([0, 11], "number of elements"), ([-1, 3], "negative")):
        with pytest.raises(Trap, match=f"{why}.*Fix: correct the input"):
            segments.sum(x, np.array(cuts))
    with pytest.raises(ArgumentValueError, match=r"offsets have shape \(0,\). Fix: pass one number more"):
        segments.sum(x, np.array([], np.uint32))
    with pytest.raises(ArgumentValueError, match=r"x has shape \(2, 5\), and segments are of one row. Fix"):
        segments.sum(x.reshape(2, 5), np.array([0, 3]))
