"""Sequences give the bytes of plain calls, on every backend, and leave nothing behind."""

import gc
import threading
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vyre
from vyre import In, InOut, Out, f32, gid, u32
from vyre.errors import ArgumentTypeError, ArgumentValueError, Trap

from ....support.device_backends import IDS, open_or_skip

BACKENDS = ("cpu", *IDS)


@vyre.kernel(workgroup=64)
def mix(a: u32, x: In[u32], y: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * a + (y[gid.x] ^ gid.x)


@vyre.kernel(workgroup=64)
def shuffle(x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[len(x) - 1 - gid.x]


@vyre.kernel(workgroup=64)
def bump(x: InOut[u32]):
    if gid.x < len(x):
        x[gid.x] += 3


@vyre.kernel(workgroup=64)
def evens_only(x: In[u32], out: Out[u32]):
    if gid.x < len(out) and gid.x % 2 == 0:
        out[gid.x] = x[gid.x]


@vyre.kernel(workgroup=64)
def ramp(start: u32, out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = start + gid.x


@vyre.kernel(workgroup=64)
def picky(x: InOut[u32]):
    if gid.x < len(x):
        if x[gid.x] == 13:
            vyre.trap("thirteen", gid.x)
        x[gid.x] += 1


@vyre.kernel(workgroup=64)
def flip(x: In[vyre.bool_], out: Out[vyre.bool_]):
    if gid.x < len(out):
        out[gid.x] = not x[gid.x]


@pytest.fixture(params=BACKENDS)
def backend(request):
    open_or_skip(request.param)
    return request.param


def words(n, seed=1):
    return np.random.default_rng(seed).integers(0, 1 << 32, n, dtype=np.uint32)


@vyre.sequence
def pass_over(x, y, a=5):
    t = mix(a, x, y)
    for _ in range(4):
        t = mix(a, shuffle(t), y)
        bump(t)
    bump(y)
    return t, y, evens_only(t)


def test_repetitions_give_the_bytes_of_plain_calls_and_update_arguments(backend):
    run = pass_over.on(backend)
    for seed in range(4):
        x, y = words(1000, seed), words(1000, seed + 100)
        mine, theirs = y.copy(), y.copy()
        found, expected = run(x, mine), pass_over.__wrapped__(x, theirs)
        assert found[1] is mine
        assert [f.tobytes() for f in found] == [e.tobytes() for e in expected]
        assert mine.tobytes() == theirs.tobytes() != y.tobytes()


def test_a_backend_without_memory_of_its_own_runs_the_function_over_the_hosts():
    x, y = words(50), words(50, 2)
    mine, theirs = y.copy(), y.copy()
    found, expected = pass_over.on("reference")(x, mine), pass_over.__wrapped__(x, theirs)
    assert [f.tobytes() for f in found] == [e.tobytes() for e in expected]
    assert found[1] is mine
    assert mine.tobytes() == theirs.tobytes()


STEPS = st.lists(st.tuples(st.sampled_from(["mix", "shuffle", "bump", "evens"]), st.integers(0, 9), st.integers(0, 9)))


@given(steps=STEPS, sizes=st.sampled_from([1, 31, 64, 65, 300]), seed=st.integers(0, 1 << 30))
@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize("name", BACKENDS)
def test_random_sequences_agree_with_plain_calls(name, steps, sizes, seed):
    open_or_skip(name)

    def function(x, y):
        arrays = [x, y]
        for what, i, j in steps:
            a, b = arrays[i % len(arrays)], arrays[j % len(arrays)]
            if what == "mix":
                arrays.append(mix(i, a, b))
            elif what == "shuffle":
                arrays.append(shuffle(a))
            elif what == "bump":
                bump(a)
            else:
                arrays.append(evens_only(a))
            arrays = arrays[:2] + arrays[2:][-3:]  # the others are dropped, and their memory is used again
        return arrays[::-1]

    run = vyre.sequence(function).on(name)
    for k in range(3):
        x, y = words(sizes, seed + k), words(sizes, seed + k + 50)
        mine, theirs = (x.copy(), y.copy()), (x.copy(), y.copy())
        found, expected = run(*mine), function(*theirs)
        assert [f.tobytes() for f in found] == [e.tobytes() for e in expected]
        assert [f.tobytes() for f in mine] == [e.tobytes() for e in theirs]


def test_the_function_runs_once_for_each_kind_of_arguments(backend):
    runs = []

    @vyre.sequence
    def scaled(x, by, more=0):
        runs.append((by, len(x)))
        return mix(by, x, x)

    run, x = scaled.on(backend), words(100)
    for by in (2, 3, 2, 3):
        assert run(x, by).tobytes() == mix(by, x, x).tobytes()
    assert run(words(70), 2).shape == (70,)
    assert runs == [(2, 100), (3, 100), (2, 70)]
    assert run(x.reshape(10, 10), 2).shape == (10, 10)
    assert len(runs) == 4


def test_all_steps_go_to_the_device_with_one_call(backend, monkeypatch):
    run, x, y = pass_over.on(backend), words(100), words(100, 2)
    run(x, y)
    inner = type(vyre.to_device(x, backend)._home.backend.inner)
    calls = []
    plain = inner.dispatch_resident

    def spied(self, steps, **named):
        calls.append(len(steps))
        return plain(self, steps, **named)

    monkeypatch.setattr(inner, "dispatch_resident", spied)
    with vyre.config(fusion=False):
        run(x, y)
    assert calls == [15]


def test_memory_of_what_the_function_drops_is_used_again(backend):
    @vyre.sequence
    def chain(x, n):
        for k in range(n):
            x = mix(k, x, x)
        return x

    x = words(1024)
    with vyre.config(fusion=False):
        few, many = chain.on(backend).explain(x, 5), chain.on(backend).explain(x, 50)
    assert len(many.steps) == len(many.launches) == 50
    assert many.device_bytes - few.device_bytes < 50 * 16  # numbers, and no more arrays


def test_device_arrays_give_device_arrays_that_later_calls_leave_alone(backend):
    x, y = words(200), words(200, 2)
    on_device = vyre.to_device(x, backend), vyre.to_device(y, backend)
    held = []
    expected = []
    for _ in range(3):
        held.append(pass_over(*on_device))
        expected.append([e.copy() for e in pass_over.__wrapped__(x, y)])
    for k, (found, wanted) in enumerate(zip(held, expected, strict=True)):
        assert found[1] is on_device[1]
        assert [found[0].numpy().tobytes(), found[2].numpy().tobytes()] == [wanted[0].tobytes(), wanted[2].tobytes()], k
    with pytest.raises(ArgumentValueError, match=r"asks for another device.*Fix: drop on\(\)"):
        pass_over.on("reference")(*on_device)


def test_a_result_that_is_given_to_the_next_call_is_not_recorded_again(backend):
    runs = []

    @vyre.sequence
    def step(x, y):
        runs.append(1)
        return mix(3, shuffle(x), y), shuffle(y)

    x, y = words(500), words(500, 2)
    a, b = vyre.to_device(x, backend), vyre.to_device(y, backend)
    for _ in range(12):
        a, b = step(a, b)
        x, y = mix(3, shuffle(x), y), shuffle(y)
    assert len(runs) == 2  # which take turns
    assert (a.numpy().tobytes(), b.numpy().tobytes()) == (x.tobytes(), y.tobytes())


def test_views_of_arguments_and_results_share_their_memory(backend):
    @vyre.sequence
    def viewed(x):
        y = shuffle(x)
        return x.view(np.float32), y.view(np.int32)

    x = words(8)
    for k in range(3):
        d = vyre.to_device(x + np.uint32(k), backend)
        a, b = viewed(d)
        assert a._memory is d._memory
        assert b.numpy().tobytes() == shuffle(d.numpy()).tobytes()
        on_host = viewed.on(backend)(x)
        assert on_host[0].dtype == np.float32
        assert on_host[0].tobytes() == x.tobytes()
        assert on_host[1].tobytes() == shuffle(x).tobytes()


def test_arguments_over_one_memory_are_another_kind_of_call(backend):
    @vyre.sequence
    def both(x, y):
        bump(x)
        return mix(1, x, y)

    x, y = words(10), words(10, 2)
    a, b = vyre.to_device(x, backend), vyre.to_device(y, backend)
    apart = both(a, b).numpy()
    x2 = x.copy()
    assert apart.tobytes() == both.__wrapped__(x2, y).tobytes()
    together = both(a, a.view(np.uint32)).numpy()
    assert together.tobytes() == both.__wrapped__(x2, x2).tobytes()
    assert a.numpy().tobytes() == x2.tobytes()


def test_memory_that_results_no_longer_hold_serves_the_next_call(backend):
    d = vyre.to_device(words(5000), backend)
    home = d._home

    @vyre.sequence
    def twice(x):
        return mix(2, shuffle(x), x)

    last = [twice(d).numpy() for _ in range(20)][-1]
    assert len(next(iter(twice._recordings.values()))) <= 2
    assert last.tobytes() == mix(2, shuffle(d.numpy()), d.numpy()).tobytes()
    residents = home.backend.inner.residents
    before = len(residents._kept)
    del twice
    gc.collect()
    home.sweep()
    home.forget_idle()
    assert len(residents._kept) < before


def test_a_trap_raises_and_leaves_the_arguments_alone(backend):
    @vyre.sequence
    def careful(x):
        bump(x)
        picky(x)
        return x

    run, good = careful.on(backend), words(100) | np.uint32(1 << 20)
    for _ in range(3):
        run(good.copy())
        bad = good.copy()
        bad[50] = 10
        kept = bad.copy()
        with pytest.raises(Trap, match="thirteen"):
            run(bad)
        assert bad.tobytes() == kept.tobytes()
    found = run(good.copy())
    assert found.tobytes() == (good + np.uint32(4)).tobytes()


def test_kernels_that_only_take_numbers_run_on_the_sequences_device(backend):
    @vyre.sequence
    def made(x, n):
        return mix(1, x, ramp(n, sizes={"out": len(x)}))

    x = words(100)
    run = made.on(backend)
    for _ in range(2):
        assert run(x, 7).tobytes() == mix(1, x, np.arange(7, 107, dtype=np.uint32)).tobytes()


class Pair(NamedTuple):
    a: object
    b: object


def test_arrays_come_and_go_in_tuples_lists_and_dicts(backend):
    @vyre.sequence
    def nested(pair, more):
        bump(more["x"][0])
        return {"sum": Pair(mix(1, pair.a, pair.b), 5), "given": more["x"]}

    run, x, y = nested.on(backend), words(10), words(10, 2)
    for k in range(3):
        z = words(10, k)
        more = {"x": [z.copy()]}
        found = run(Pair(x, y), more)
        assert found["sum"].a.tobytes() == mix(1, x, y).tobytes()
        assert found["sum"].b == 5
        assert found["given"][0] is more["x"][0]
        assert more["x"][0].tobytes() == (z + np.uint32(3)).tobytes()


def test_bools_strided_empty_and_swapped_arrays_are_taken(backend):
    @vyre.sequence
    def some(x, b, e):
        return shuffle(x), flip(b), shuffle(e)

    run = some.on(backend)
    for _ in range(2):
        x, b = words(100)[::-2], np.arange(9) % 2 == 0
        found = run(x.astype(">u4"), b, np.empty(0, np.uint32))
        assert found[0].tobytes() == np.ascontiguousarray(x[::-1]).tobytes()
        assert found[1].tolist() == (~b).tolist()
        assert found[2].shape == (0,)


def test_an_array_that_is_passed_twice_is_one_array(backend):
    @vyre.sequence
    def both(x, y):
        bump(x)
        return mix(1, x, y)

    run = both.on(backend)
    for _ in range(2):
        x = words(10)
        other = x.copy()
        assert run(x, x).tobytes() == both.__wrapped__(other, other).tobytes()
        assert x.tobytes() == other.tobytes()


def test_threads_that_call_one_sequence_get_their_own_bytes(backend):
    run, failures = pass_over.on(backend), []

    def work(seed):
        for k in range(8):
            x, y = words(300, seed * 100 + k), words(300, seed)
            mine, theirs = y.copy(), y.copy()
            found, expected = run(x, mine), pass_over.__wrapped__(x, theirs)
            if [f.tobytes() for f in found] != [e.tobytes() for e in expected]:
                failures.append((seed, k))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_a_recovered_device_records_again(backend):
    run, x, y = pass_over.on(backend), words(100), words(100, 2)
    first = run(x, y.copy())[0].tobytes()
    guard = vyre.to_device(x, backend)._home.backend
    try:
        guard.try_recover()
    except vyre.UnsupportedFeature:
        guard.shutdown()
    assert run(x, y.copy())[0].tobytes() == first


def outside(backend):
    x = words(10)
    on_device = vyre.to_device(x, backend)

    def reads(x):
        return x.numpy()

    def converts(x):
        return np.sum(x)

    def starts(x):
        return shuffle.start(x)

    def uploads(x):
        return mix(1, x, vyre.to_device(np.ones(10, np.uint32), backend))

    def captures(x):
        return mix(1, x, np.ones(10, np.uint32))

    def nests(a):
        return pass_over(a, a)

    def returns_text(a):
        return object()

    def configures(a):
        return mix(1, a, a, config=vyre.DispatchConfig(timeout=10.0))

    def goes_elsewhere(a):
        return shuffle.on("reference")(a)

    return [
        (reads, "copied to the host while a sequence is recorded.*Fix: return the array"),
        (converts, "copied to the host while a sequence is recorded"),
        (starts, "a kernel was started while a sequence is recorded"),
        (uploads, "copied to a device while a sequence is recorded"),
        (captures, "no argument of the sequence.*Fix: pass it to the sequence"),
        (nests, "another one is recorded.*Fix: call the function itself"),
        (returns_text, "returned a object, which a repetition would not make again.*Fix: return the arrays"),
        (configures, "timeout in its config, which steps do not have.*Fix: leave it out"),
        (goes_elsewhere, r"asks for another device.*Fix: drop on\(\)|.*Fix: .*numpy"),
        (lambda x: mix(1, x, on_device), "is a DeviceBuffer that is no argument of the sequence"),
    ]


def test_what_a_repetition_could_not_do_again_is_refused_and_nothing_changes(backend):
    for function, why in outside(backend):
        x = words(10)
        kept = x.copy()
        for _ in range(2):
            with pytest.raises((ArgumentTypeError, ArgumentValueError), match=why):
                vyre.sequence(function).on(backend)(x)
        assert x.tobytes() == kept.tobytes()
    assert shuffle(words(3)).shape == (3,)  # this thread records nothing any more


def test_arguments_that_no_sequence_takes_are_refused(backend):
    x = words(10)
    run = pass_over.on(backend)
    with pytest.raises(ArgumentTypeError, match=r"missing a required argument.*Fix: call pass_over\(x, y, a=5\)"):
        run(x)
    with pytest.raises(ArgumentTypeError, match=r"holds <U1.*Fix: convert it"):
        run(x, np.zeros(10, "U1"))
    with pytest.raises(ArgumentTypeError, match="y is a object, not an array"):
        run(x, object())
    y = words(10)
    y.flags.writeable = False
    with pytest.raises(ArgumentValueError, match=r"y receives a result and is read-only.*Fix: pass y.copy\(\)"):
        run(x, y)
    with pytest.raises(ArgumentTypeError, match=r"sequence\(\) got a int.*Fix: write @vyre.sequence"):
        vyre.sequence(5)
    with pytest.raises(ArgumentTypeError, match=r"on\(\) got a int"):
        pass_over.on(5)


def test_explain_shows_steps_copies_memory_and_decisions(backend):
    x, y = words(1000), words(1000, 2)
    kept = y.copy()
    told = pass_over.on(backend).explain(x, y)
    assert y.tobytes() == kept.tobytes()
    text = str(told)
    assert "15 steps" in text
    assert "uploads 8,000 bytes, downloads 12,000" in text
    assert "step 1: mix" in text
    assert "determinism: proved" in text
    device = vyre.to_device(y, backend)
    pass_over.explain(vyre.to_device(x, backend), device)
    assert device.numpy().tobytes() == kept.tobytes()


def test_numbers_of_numpy_and_floats_tell_calls_apart(backend):
    @vyre.kernel(workgroup=64)
    def scale(a: f32, x: In[f32], out: Out[f32]):
        if gid.x < len(out):
            out[gid.x] = x[gid.x] * a

    @vyre.sequence
    def scaled(x, a):
        return scale(a, x)

    x = np.ones(3, np.float32)
    run = scaled.on(backend)
    assert [float(run(x, a)[0]) for a in (0.5, np.float32(0.25), 2, 0.5)] == [0.5, 0.25, 2.0, 0.5]
    assert np.signbit([run(x, 0.0)[0], run(x, -0.0)[0]]).tolist() == [False, True]


@vyre.sequence
def bumped(x, y):
    bump(x)
    return shuffle(y)


def test_arguments_that_share_memory_are_refused_where_one_is_written(backend):
    run = bumped.on(backend)
    x = words(12).reshape(3, 4)
    kept = x.copy()
    pairs = [(x, x[0]), (x[0], x), (x, x[:]), (x, x[::-1]), (x[:2], x[1:]), (x, x.view(np.uint32))]
    for a, b in pairs:
        for _ in range(2):
            with pytest.raises(ArgumentValueError, match=r"share memory, and the sequence writes.*Fix: pass a copy"):
                run(a, b)
    assert x.tobytes() == kept.tobytes()
    found = run(x[:1], x[1:2])  # apart
    assert found.tobytes() == kept[1:2, ::-1].tobytes()
    both = vyre.sequence(lambda x, y: mix(1, x, y)).on(backend)  # only read
    y = words(8)
    for k in range(3):
        z = y + np.uint32(k)
        assert both(z, z[::-1]).tobytes() == mix(1, z, z[::-1]).tobytes()


def test_a_host_array_over_device_memory_is_refused_where_it_is_written():
    d = vyre.to_device(words(8), "cpu")
    seen = np.from_dlpack(d)
    with pytest.raises(ArgumentValueError, match="share memory"):
        bumped(d, seen)


def test_a_device_array_from_elsewhere_is_not_returned(backend):
    d = vyre.to_device(words(8), backend)
    with pytest.raises(ArgumentTypeError, match=r"was not given and did not make.*Fix: pass it to the sequence"):
        vyre.sequence(lambda x: (shuffle(x), d)).on(backend)(words(8))

    def frees(x):
        y = shuffle(x)
        x.free()
        return y

    with pytest.raises(ArgumentTypeError, match="was freed while a sequence is recorded"):
        vyre.sequence(frees)(d)
    assert d.numpy().shape == (8,)


def test_a_sequence_without_arrays_runs_again_on_every_backend(backend):
    made = vyre.sequence(lambda n: ramp(n, sizes={"out": 5}))
    for name in (backend, "reference"):
        for _ in range(3):
            assert made.on(name)(3).tolist() == [3, 4, 5, 6, 7]
            assert vyre.sequence(lambda x: shuffle(x)).on(name)(np.empty(0, np.uint32)).shape == (0,)
    with pytest.raises(ArgumentTypeError, match="missing a required argument"):
        pass_over.on(backend).explain(words(4))
