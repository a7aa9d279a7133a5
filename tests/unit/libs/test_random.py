"""`vyre.libs.random` gives the numbers of its definition: here in Python's integers and single f32 operations."""

import hashlib
import math
import threading

import numpy as np
import pytest

import vyre
from vyre import In, Out, gid, u32
from vyre.conform.values.functions import function
from vyre.errors import ArgumentTypeError, ArgumentValueError, Trap
from vyre.libs import random
from vyre.libs.random import philox4x32, threefry2x32

from ...support import scalar_f32 as scalar
from ...support.backends_of_libs import BACKENDS, on_backend

WORD = 0xFFFFFFFF
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
PHILOX = [
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((WORD,) * 4, (WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (PI, (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]
THREEFRY = [
    ((0,) * 2, (0,) * 2, (0x6B200159, 0x99BA4EFE)),
    ((WORD,) * 2, (WORD,) * 2, (0x1CB996FC, 0xBB002BE7)),
    (PI[:2], PI[2:], (0xC4923A9C, 0x483DF7A0)),
]
"""Counter, key and words, as Random123 publishes them for 10 and for 20 rounds."""


def philox(counter, key):
    a, b, c, d = counter
    k, m = key
    for _ in range(10):
        x, y = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = y >> 32 ^ b ^ k, y & WORD, x >> 32 ^ d ^ m, x & WORD
        k, m = k + 0x9E3779B9 & WORD, m + 0xBB67AE85 & WORD
    return a, b, c, d


def words(i, seed, stream, attempt=0):
    """The words of the block that number i is made of, and which of them is its own."""
    block = i // 256 * 64 + i % 64
    return philox((block & WORD, block >> 32, attempt, stream), (seed & WORD, seed >> 32)), i // 64 % 4


def bits(i, seed, stream):
    found, k = words(i, seed, stream)
    return found[k]


def above_zero(word):
    return scalar.fma(scalar.f32(float(word)), 2.0**-32, 2.0**-33)


def below_one(word):
    return (word >> 8) * 2.0**-24


def uniform(i, seed, stream, low=0.0, width=1.0):
    return scalar.fma(width, below_one(bits(i, seed, stream)), low)


def normal(i, seed, stream, mean=0.0, std=1.0):
    found, k = words(i, seed, stream)
    a, b = found[k // 2 * 2], found[k // 2 * 2 + 1]
    far = scalar.root(scalar.multiply(-2.0, function("log")(above_zero(a))))
    turned = function("sinpi" if k % 2 else "cospi")(2 * below_one(b))
    return scalar.fma(std, scalar.multiply(far, turned), mean)


def exponential(i, seed, stream, scale=1.0):
    return scalar.fma(scale, -function("log")(above_zero(bits(i, seed, stream))), 0.0)


def integer(i, seed, stream, low, width):
    for attempt in range(64):
        found, k = words(i, seed, stream, attempt)
        if found[k] * width & WORD >= 2**32 % width:
            break
    return low + (found[k] * width >> 32)


CASES = [
    ("bits", (), np.uint32, bits, ()),
    ("uniform", (-1.5, 2.0), np.float32, uniform, (-1.5, 3.5)),
    ("normal", (1.0, 0.5), np.float32, normal, (1.0, 0.5)),
    ("exponential", (3.0,), np.float32, exponential, (3.0,)),
    ("integers", (-5, 2_000_000_000), np.int32, integer, (-5, 2_000_000_005)),
]
"""Function, its numbers, the type of what it gives, the definition, and its numbers."""
PLACES = [(1, 0, 0, 0), (33, 5, 1, 0), (257, 1 << 40 | 9, 7, 300), (1000, (1 << 64) - 1, WORD, (1 << 34) - 500)]
"""How many numbers, seed, stream, and from which index on."""


@vyre.kernel
def of_counter(counter: In[u32, 4], key: In[u32, 4], four: Out[u32, 4], two: Out[u32, 2]) -> None:
    if gid.x == 0:
        a, b, c, d = philox4x32(counter[0], counter[1], counter[2], counter[3], key[0], key[1])
        four[0] = a
        four[1] = b
        four[2] = c
        four[3] = d
        e, f = threefry2x32(counter[0], counter[1], key[0], key[1])
        two[0] = e
        two[1] = f


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_generators_give_the_known_answers_of_random123(backend):
    on_backend(backend)
    for counter, key, want in PHILOX:
        found, _ = of_counter.on(backend)(np.uint32(counter), np.uint32([*key, 0, 0]))
        assert tuple(found) == want == philox(counter, key)
    for counter, key, want in THREEFRY:
        _, found = of_counter.on(backend)(np.uint32([*counter, 0, 0]), np.uint32([*key, 0, 0]))
        assert tuple(found) == want


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name, numbers, dtype, defined, values", CASES)
def test_every_backend_gives_the_numbers_of_the_definition(name, numbers, dtype, defined, values, backend):
    on_backend(backend)
    for n, seed, stream, start in PLACES:
        found = getattr(random, name)(n, *numbers, seed=seed, stream=stream, start=start, backend=backend)
        want = np.array([defined(start + k, seed, stream, *values) for k in range(n)], dtype)
        assert found.dtype == dtype
        assert found.tobytes() == want.tobytes(), (n, start)


def test_numbers_do_not_depend_on_how_many_are_drawn_together():
    whole = random.normal((50, 40), seed=3).reshape(-1)
    parts = [random.normal(n, seed=3, start=start) for start, n in ((0, 1), (1, 254), (255, 2), (257, 1743))]
    assert np.concatenate(parts).tobytes() == whole.tobytes()
    assert random.bits((), seed=3, start=777) == random.bits(2000, seed=3)[777]


def test_integers_reach_both_ends_and_no_further():
    found = random.integers(10_000, -3, 3, seed=1)
    assert set(found.tolist()) == {-3, -2, -1, 0, 1, 2}
    assert random.integers(5, 7, 8, seed=1).tolist() == [7] * 5
    everything = random.integers(300, 0, 1 << 32, dtype=np.uint32, seed=1)
    assert everything.tobytes() == random.bits(300, seed=1).tobytes()
    assert random.integers(300, -(1 << 31), 1 << 31, seed=1).view(np.uint32).tolist() == [
        int(v) + (1 << 31) & WORD for v in everything
    ]


def chi_square(observed, expected):
    """In standard deviations from its mean."""
    k = len(observed)
    return (((observed - expected) ** 2 / expected).sum() - (k - 1)) / math.sqrt(2 * (k - 1))


def test_distributions_are_what_they_are_called():
    n = 1 << 18
    u = random.uniform(n, seed=11)
    assert abs(chi_square(np.histogram(u, 256, (0, 1))[0], n / 256)) < 4
    assert 0 <= u.min() < u.max() < 1
    dice = random.integers(n, 0, 6, seed=12)
    assert abs(chi_square(np.bincount(dice), n / 6)) < 4
    z = random.normal(n, seed=13).astype(np.float64)
    deviation = math.sqrt(n)
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((z**power).mean() - mean) < 4 * math.sqrt(variance) / deviation
    cuts = np.linspace(-3, 3, 25)
    below = [0.0, *(math.erfc(-c / math.sqrt(2)) / 2 for c in cuts), 1.0]
    assert abs(chi_square(np.histogram(z, [-np.inf, *cuts, np.inf])[0], np.diff(below) * n)) < 4
    assert abs((z[:-1] * z[1:]).mean()) < 4 / deviation
    assert abs((z[:-64].reshape(-1, 64)[:-1] * z[64:-64].reshape(-1, 64)).mean()) < 4 / deviation
    e = random.exponential(n, 2.0, seed=14).astype(np.float64)
    assert abs(e.mean() - 2) < 8 / deviation
    assert e.min() >= 0
    other = random.normal(n, seed=13, stream=1)
    assert abs((z * other).mean()) < 4 / deviation


NORMALS = "04baeed9502cb95daa35cacbdd62e1e394d6dafb0c9d79eb8bf1501263da09b6"


@pytest.mark.check
@pytest.mark.parametrize("backend", ["cpu", "opencl", "wgpu"])
def test_sixteen_million_normal_numbers_have_the_hash_of_the_docs(backend):
    on_backend(backend)
    found = random.normal(1 << 24, seed=1, backend=backend)
    assert hashlib.sha256(found.tobytes()).hexdigest() == NORMALS


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_permutation_is_the_order_of_words_of_64_bits(backend):
    for n, seed, start in ((1, 0, 0), (300, 2, 77)):
        found = random.permutation(n, seed=seed, start=start, backend=backend)
        keys = [bits(start + n + k, seed, 0) << 32 | bits(start + k, seed, 0) for k in range(n)]
        assert found.dtype == np.uint32
        assert found.tolist() == sorted(range(n), key=keys.__getitem__)
    g = random.default_rng(9)
    assert sorted(g.permutation(10).tolist()) == list(range(10))
    assert g.index == 20
    assert g.permutation(4).tolist() == random.permutation(4, seed=9, start=20).tolist()
    assert random.permutation(0, seed=1).shape == (0,)
    out = np.empty(5, np.uint32)
    assert random.permutation(5, seed=1, out=out) is out
    with pytest.raises(ArgumentValueError, match=r"n=-1 is negative. Fix"):
        random.permutation(-1, seed=1)
    with pytest.raises(ArgumentValueError, match=r"n=4294967295 is too much. Fix: pass a whole number up to"):
        random.permutation(WORD, seed=1)


def test_the_places_of_a_permutation_know_nothing_of_each_other():
    n = 1 << 14
    p = random.permutation(n, seed=21).astype(np.float64)
    for near in (np.arange(n), np.roll(p, 1), np.roll(p, 64)):
        assert abs(np.corrcoef(p, near)[0, 1]) < 4 / math.sqrt(n)


def test_a_generator_counts_what_it_gave():
    g, h = random.default_rng(5), random.Generator(5)
    first = g.random(10)
    assert g.index == 10
    rest = g.random((2, 3))
    assert h.random(16).tobytes() == first.tobytes() + rest.tobytes()
    g.index = 0
    assert g.random() == first[0]
    assert isinstance(g.random(), np.float32)
    assert g.normal(2.0, 0.1, 4).tobytes() == random.normal(4, 2.0, 0.1, seed=5, start=2).tobytes()
    assert g.standard_normal(3).tobytes() == random.normal(3, seed=5, start=6).tobytes()
    assert g.uniform(1, 2, 3).tobytes() == random.uniform(3, 1, 2, seed=5, start=9).tobytes()
    assert g.exponential(size=3).tobytes() == random.exponential(3, seed=5, start=12).tobytes()
    assert g.bits(3).tobytes() == random.bits(3, seed=5, start=15).tobytes()
    assert g.integers(1, 6, 100, endpoint=True).max() == 6
    assert g.integers(4, size=50, dtype=np.uint32).dtype == np.uint32
    out = np.empty((4, 5), np.float32)
    assert g.random(out=out) is out
    assert repr(g) == "Generator(seed=5, stream=0, index=188)"
    assert random.Generator(5, 1).random(4).tobytes() == random.uniform(4, seed=5, stream=1).tobytes()


def test_threads_never_draw_the_same_numbers():
    g, found = random.default_rng(1), []
    threads = [threading.Thread(target=lambda: found.extend(g.bits(8) for _ in range(20))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(np.concatenate(found)) == sorted(random.bits(640, seed=1))


def test_results_go_to_a_device_and_into_sequences():
    d = vyre.to_device(np.zeros(100, np.float32), "cpu")
    assert random.normal(100, seed=2, out=d) is d
    assert d.numpy().tobytes() == random.normal(100, seed=2).tobytes()

    @vyre.sequence
    def noisy(x, start):
        return random.uniform(x.shape, seed=4, start=start)

    for start in (0, 300, 0):
        assert noisy.on("cpu")(d.numpy(), start).tobytes() == random.uniform(100, seed=4, start=start).tobytes()

    g = random.default_rng(1)

    @vyre.sequence
    def counting(x):
        return g.random(x.shape)

    with pytest.raises(ArgumentTypeError, match=r"a generator counted on while a sequence is recorded.*Fix"):
        counting.on("cpu")(d.numpy())


def test_what_does_not_fit_is_refused_with_a_fix():
    with pytest.raises(ArgumentTypeError, match=r"seed is 1.5. Fix: pass a whole number of 64 bits: seed=1"):
        random.bits(3, seed=1.5)
    with pytest.raises(ArgumentValueError, match=r"seed=-1. Fix: pass a number from 0 to"):
        random.default_rng(-1)
    with pytest.raises(ArgumentValueError, match=r"stream=4294967296. Fix"):
        random.bits(3, seed=1, stream=1 << 32)
    with pytest.raises(ArgumentValueError, match=r"are too many. Fix: draw at most"):
        random.bits(3, seed=1, start=(1 << 66) - 2)
    with pytest.raises(ArgumentValueError, match=r"are too many. Fix: draw at most"):
        random.bits((1 << 16, 1 << 16), seed=1)
    with pytest.raises(ArgumentValueError, match=r"std=-1.0 is negative. Fix"):
        random.normal(3, 0, -1.0, seed=1)
    with pytest.raises(ArgumentValueError, match=r"low=nan is not finite as f32. Fix: pass a number from -3.4"):
        random.uniform(3, math.nan, seed=1)
    for mean in (1e39, 10**400, -math.inf):
        with pytest.raises(ArgumentValueError, match=r"mean=.* is not finite as f32. Fix"):
            random.normal(3, mean, seed=1)
    with pytest.raises(ArgumentValueError, match=r"high - low=6e\+38 is not finite as f32. Fix"):
        random.uniform(3, -3e38, 3e38, seed=1)
    for n in ([1, 2, 3], np.zeros(()), 3.0, True, (3,)):
        for draw in (random.permutation, lambda n, seed: random.default_rng(seed).permutation(n)):
            with pytest.raises(ArgumentTypeError, match=r"not how many numbers.*Fix: .*x\[permutation"):
                draw(n, seed=1)
    with pytest.raises(ArgumentTypeError, match=r"scale is \[1\]. Fix"):
        random.exponential(3, [1], seed=1)
    with pytest.raises(ArgumentValueError, match=r"no i32 lies from 3 on and below 3. Fix"):
        random.integers(3, 3, 3, seed=1)
    with pytest.raises(ArgumentValueError, match=r"no u32 lies from -1 on and below 3. Fix"):
        random.integers(3, -1, 3, dtype=np.uint32, seed=1)
    with pytest.raises(ArgumentTypeError, match=r"high is 3.0. Fix"):
        random.integers(3, 0, 3.0, seed=1)
    with pytest.raises(ArgumentTypeError, match=r"is not one of f32, f64. Fix: pass dtype=np.float32"):
        random.default_rng(1).random(3, np.float16)
    with pytest.raises(ArgumentValueError, match=r"out has shape \(4,\), and the result \(3,\). Fix"):
        random.bits(3, seed=1, out=np.zeros(4, np.uint32))
    with pytest.raises(ArgumentValueError, match=r"size=-1 is negative. Fix"):
        random.default_rng(1).bits(-1)


@pytest.mark.check
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_chooses_as_defined(backend):
    on_backend(backend)
    weights = np.float32([1, 0, 3, 4, 0.5])
    upto = np.cumsum(weights)
    u = random.uniform(300, seed=5, stream=2)
    want = [int(np.searchsorted(upto, v, "right")) for v in u * upto[-1]]
    found = random.choice(5, (300,), weights=weights, seed=5, stream=2, backend=backend)
    assert found.dtype == np.uint32
    assert found.tolist() == want
    assert 1 not in found
    waits = random.exponential(5, seed=5)
    order = sorted(range(5), key=lambda k: waits[k] / weights[k] if weights[k] else np.inf)
    assert random.choice(5, 5, replace=False, weights=weights, seed=5, backend=backend).tolist() == order
    few = random.choice(9, (2, 2), replace=False, seed=5, backend=backend)
    assert few.reshape(-1).tolist() == random.permutation(9, seed=5)[:4].tolist()
    assert np.array_equal(random.choice(9, 20, seed=5, backend=backend), random.integers(20, 0, 9, seed=5))
    rows = np.arange(12.0).reshape(4, 3)
    order = random.permutation(4, seed=5)
    assert np.array_equal(random.permutation(rows, seed=5, backend=backend), rows[order])
    assert np.array_equal(random.choice(rows, 3, replace=False, seed=5, backend=backend), rows[order[:3]])


@pytest.mark.check
@pytest.mark.parametrize("backend", BACKENDS[:3])
def test_f64_has_more_of_the_same_numbers(backend):
    on_backend(backend)
    wide = random.uniform((20, 30), seed=3, start=7, dtype=np.float64, backend=backend)
    narrow = random.uniform((20, 30), seed=3, start=7)
    assert wide.dtype == np.float64
    assert np.array_equal(np.floor(wide * 2**24) / 2**24, narrow)
    assert np.array_equal(wide * 2**53, np.floor(wide * 2**53))
    a, b = (words(7, 3, 0, attempt)[0][0] for attempt in (0, 1))
    assert wide[0, 0] == (a >> 5) * 2.0**-27 + (b >> 6) * 2.0**-53
    rng = random.default_rng(3)
    rng.index = 7
    assert np.array_equal(rng.random((20, 30), np.float64), wide)


def test_a_generator_counts_what_choices_take():
    rng = random.default_rng(1)
    assert rng.choice(5).shape == ()
    assert rng.index == 1
    rng.choice(5, 3, replace=False)
    assert rng.index == 11
    rng.choice(5, 3, replace=False, weights=np.ones(5, np.float32))
    assert rng.index == 16
    assert sorted(rng.permutation(np.arange(4)).tolist()) == [0, 1, 2, 3]
    assert rng.index == 24


def test_choices_that_are_none_are_refused_with_a_fix():
    with pytest.raises(ArgumentTypeError, match=r"no seed was passed, and none is made up. Fix: pass seed=1"):
        random.uniform(3)
    with pytest.raises(ArgumentTypeError, match=r"no seed was passed"):
        random.choice(np.arange(3), 2)
    with pytest.raises(ArgumentValueError, match=r"5 of 3 numbers without replacement. Fix: ask for fewer"):
        random.choice(3, 5, replace=False, seed=1)
    with pytest.raises(ArgumentValueError, match=r"2 of 0 numbers. Fix: pass a number above 0"):
        random.choice(0, 2, seed=1)
    with pytest.raises(ArgumentValueError, match=r"weights have shape \(2,\). Fix: pass one row of 3"):
        random.choice(3, 2, weights=np.ones(2, np.float32), seed=1)
    with pytest.raises(Trap, match="a weight is negative, infinite or no number"):
        random.choice(2, 2, weights=np.float32([1, -1]), seed=1)
    for none in ([0, 0, 0], [1e-40, 0, 1e-40], [3e38, 0, 3e38]):
        with pytest.raises(Trap, match="the weights add up to zero or to infinity"):
            random.choice(3, 2, weights=np.float32(none), seed=1)
    with pytest.raises(ArgumentTypeError, match=r"weights holds int64.*Fix: convert it: weights.astype\(np.float32\)"):
        random.choice(2, 2, weights=np.array([1, 2]), seed=1)
