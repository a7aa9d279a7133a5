"""`vyre.libs.pick` gives what its definitions say, which stand here one element at a time."""

import itertools

import numpy as np
import pytest

import vyre
from vyre.errors import ArgumentTypeError, ArgumentValueError, Trap
from vyre.libs import pick, random, reduce, sort

from ...support.backends_of_libs import BACKENDS, on_backend

SIZES = (0, 1, 31, 33, 257, 2048, 2049, 4097)


def numbers(dtype, n):
    x = np.frombuffer(np.random.default_rng(n).bytes(8 * n), np.uint64).copy()
    return (x & 1).astype(bool) if dtype == "?" else x.view(dtype)[:n].copy()


def require_chosen(dtype, n, backend):
    """Bits move as they are."""
    x, mask = numbers(dtype, n), np.random.default_rng(n + 1).random(n) < 0.4
    yes = [v for v, m in zip(x, mask, strict=True) if m]
    no = [v for v, m in zip(x, mask, strict=True) if not m]
    found = pick.compact(x, mask, backend=backend)
    assert found.dtype == x.dtype
    assert found.tobytes() == np.array(yes, x.dtype).tobytes(), (dtype, n)
    whole, count = pick.partition(x, mask, backend=backend)
    assert whole.tobytes() == np.array(yes + no, x.dtype).tobytes(), (dtype, n)
    assert count == len(yes)
    places = pick.nonzero(mask, backend=backend)
    assert places.dtype == np.uint32
    assert places.tolist() == [k for k in range(n) if mask[k]]
    filled = pick.compact(x, mask, size=5, backend=backend)
    assert filled.tobytes() == np.array([*yes, *[x.dtype.type(0)] * 5][:5], x.dtype).tobytes()


def require_placed(dtype, n, backend):
    x, p = numbers(dtype, n), np.random.default_rng(n).integers(-n, n, 40)
    v = numbers(dtype, 40)
    found = pick.take(x, p, backend=backend)
    assert found.tobytes() == np.array([x[k] for k in p], x.dtype).tobytes(), (dtype, n)
    want = x.copy()
    for k in range(40):
        want[p[k]] = v[k]
    assert pick.scatter(x, p, v, backend=backend).tobytes() == want.tobytes(), (dtype, n)


def require_merged(n, backend):
    rng = np.random.default_rng(n)
    into, v = rng.standard_normal(n).astype(np.float32), rng.standard_normal(300).astype(np.float32)
    p = rng.integers(0, max(n // 2, 1), 300)
    for name, whole in (("add", reduce.sum), ("min", reduce.min), ("max", reduce.max)):
        want = into.copy()
        for k in range(n):
            there = v[p == k]
            if len(there):
                pair = np.float32([into[k], whole(there)])
                want[k] = pair[0] + pair[1] if name == "add" else whole(pair)
        found = getattr(pick, f"scatter_{name}")(into, p, v, backend=backend)
        assert found.tobytes() == want.tobytes(), (name, n)
    assert np.array_equal(pick.bincount(p, n, backend=backend), np.bincount(p, minlength=n))


def require_binned(n, backend):
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    x[::7] = np.tile(np.float32([np.nan, 2, -2, 0, np.inf, -0.0]), n)[: len(x[::7])]
    for bins, kind in ((20, {"range": (-2, 2)}), ([-2, -1, -1, 0.5, 2], {})):
        counts, edges = pick.histogram(x, bins, **kind, backend=backend)
        want = [((x >= a) & (x < b)).sum() for a, b in itertools.pairwise(edges)]
        want[-1] += (x == edges[-1]).sum()
        assert counts.tolist() == want, (bins, n)
    if n == 33:
        assert np.allclose(edges, [-2, -1, -1, 0.5, 2])


@pytest.mark.check
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_picks_as_defined(backend):
    on_backend(backend)
    require_chosen("f4", 33, backend)
    require_placed("u4", 33, backend)
    require_merged(33, backend)
    require_binned(33, backend)


@pytest.mark.check
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n", SIZES)
def test_every_size_and_type_is_picked_as_defined(n, backend):
    on_backend(backend)
    for dtype in ("f4", "u1", "f8", "?", "i2"):
        require_chosen(dtype, n, backend)
        if n:
            require_placed(dtype, n, backend)
    if n:
        require_merged(n, backend)
    require_binned(n, backend)


def test_take_has_axes():
    x = np.random.default_rng(0).standard_normal((4, 5, 3)).astype(np.float32)
    for axis, p in ((0, [[3, 0], [1, 1]]), (1, [4, -5]), (-1, [2])):
        assert np.array_equal(pick.take(x, np.array(p), axis), np.take(x, p, axis))
    rows = pick.scatter(x, np.array([2, 0, 2]), x[:3])
    assert np.array_equal(rows, np.stack([x[1], x[1], x[2], x[3]]))


@pytest.mark.check
def test_places_and_numbers_may_be_of_any_integer_type():
    x = np.arange(9, dtype=np.float64)
    for dtype in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"):
        p = np.array([3, 1, 8, 1], dtype)
        assert pick.take(x, p).tolist() == [3, 1, 8, 1]
        assert pick.bincount(p).tolist() == [0, 2, 0, 1, 0, 0, 0, 0, 1]
        last = np.array([np.iinfo(dtype).max], dtype)
        with pytest.raises(Trap, match="a place outside"):
            pick.take(x, last)
        with pytest.raises(Trap, match="not counted"):
            pick.bincount(last, 9)


def test_results_go_where_the_caller_says():
    x, mask = np.arange(10, dtype=np.float32), np.arange(10) % 3 == 0
    out = np.empty(6, np.float32)
    assert pick.compact(x, mask, out=out) is out
    assert out.tolist() == [0, 3, 6, 9, 0, 0]
    counts = np.ones(4, np.uint32)
    assert pick.bincount(np.array([1, 1, 3]), out=counts) is counts
    assert counts.tolist() == [0, 2, 0, 1]
    assert pick.histogram(x, 2, (0, 4), out=np.empty(2, np.uint32))[0].tolist() == [2, 3]
    d = vyre.to_device(x, "cpu")
    found = pick.compact(d, mask)
    assert type(found) is vyre.DeviceBuffer
    assert found.numpy().tolist() == [0, 3, 6, 9]
    assert pick.bincount(np.array([2, 0, 2]), weights=np.float32([1, 2, 4])).tolist() == [2, 0, 5]


def test_a_sequence_takes_them_as_kernels():
    @vyre.sequence
    def picked(x, mask, p):
        kept = pick.compact(x, mask, size=4)
        return pick.scatter_add(x, p, pick.take(x, p)), kept, pick.histogram(x, 4, (0, 1))[0], pick.bincount(p, 50)

    for seed in range(2):
        x = np.random.default_rng(seed).random(50, np.float32)
        p = np.random.default_rng(seed).integers(0, 50, 20)
        found = picked.on("cpu")(x, x < 0.2, p)
        want = picked.__wrapped__(x, x < 0.2, p)
        assert [f.tobytes() for f in found] == [w.tobytes() for w in want]

    @vyre.sequence
    def how_many(x, mask):
        return pick.compact(x, mask)

    with pytest.raises(ArgumentTypeError, match=r"the number of elements that were kept was read.* Fix: pass size="):
        how_many.on("cpu")(np.zeros(3, np.float32), np.ones(3, bool))
    for read, fix in (
        (lambda x: pick.bincount(x), "pass size="),
        (lambda x: pick.histogram(x, 4), "pass range="),
        (lambda x: sort.unique(x), "pass size="),
        (lambda x: random.default_rng(1).random(3), "with start= as an argument"),
    ):
        with pytest.raises(ArgumentTypeError, match=f"while a sequence is recorded.* Fix: .*{fix}"):
            vyre.sequence(read).on("cpu")(np.zeros(3, np.int16))


def test_what_does_not_fit_is_refused_with_a_fix():
    x = np.zeros(3, np.float32)
    with pytest.raises(Trap, match=r"a place outside of the array.*Fix: correct the input"):
        pick.take(x, np.array([3]))
    with pytest.raises(Trap, match="a place outside of the array"):
        pick.scatter_add(x, np.array([-4]), x[:1])
    with pytest.raises(Trap, match="a number that is not counted"):
        pick.bincount(np.array([1 << 33]), 5)
    with pytest.raises(ArgumentTypeError, match=r"mask holds float32.*Fix: convert it: mask.astype\(np.bool\)"):
        pick.compact(x, x)
    with pytest.raises(ArgumentTypeError, match=r"places holds float64.*Fix: convert it: places.astype\(np.int32\)"):
        pick.take(x, np.array([0.0]))
    with pytest.raises(ArgumentTypeError, match=r"into holds int8.*Fix: convert it: into.astype\(np.int32\)"):
        pick.scatter_add(np.zeros(3, np.int8), np.array([0]), np.zeros(1, np.int8))
    with pytest.raises(ArgumentValueError, match=r"x has shape \(3,\) and mask \(2,\). Fix: pass a mask of the shape"):
        pick.compact(x, np.ones(2, bool))
    with pytest.raises(ArgumentTypeError, match=r"into holds float32 and values int32. Fix: pass values.astype"):
        pick.scatter(x, np.array([0]), np.int32([1]))
    with pytest.raises(ArgumentValueError, match=r"places \(2,\) and values \(1,\). Fix: pass places as one row"):
        pick.scatter(x, np.array([0, 1]), x[:1])
    with pytest.raises(ArgumentValueError, match=r"into has shape \(3, 1\) and not one axis. Fix"):
        pick.scatter_add(x.reshape(3, 1), np.array([0]), np.zeros((1, 1), np.float32))
    with pytest.raises(ArgumentTypeError, match=r"size is 2.5. Fix: pass a whole number"):
        pick.compact(x, x == 0, size=2.5)
    with pytest.raises(ArgumentValueError, match=r"size=-1. Fix: pass a number from 0"):
        pick.nonzero(x, size=-1)
    with pytest.raises(ArgumentValueError, match=r"bins=0. Fix"):
        pick.histogram(x, 0)
    with pytest.raises(ArgumentValueError, match=r"the edges of the bins do not ascend. Fix: pass np.sort"):
        pick.histogram(x, [1, 0])
    with pytest.raises(ArgumentTypeError, match=r"bins=\[1\] are no edges. Fix"):
        pick.histogram(x, [1])
    with pytest.raises(ArgumentTypeError, match=r"range=3 is no pair of numbers. Fix"):
        pick.histogram(x, 4, 3)
    with pytest.raises(ArgumentValueError, match=r"the range from 2.0 to 1.0 has no bins. Fix"):
        pick.histogram(x, 4, (2, 1))
    with pytest.raises(ArgumentValueError, match=r"axis=\(0, 1\) is not one axis. Fix"):
        pick.take(x.reshape(1, 3), np.array([0]), (0, 1))
