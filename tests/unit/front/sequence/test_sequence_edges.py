"""What plain calls take, sequences take too; what they cannot repeat says what to do instead."""

import copy
import gc
import operator
import pickle
from typing import NamedTuple

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, c64, f32, gid, u32, vec3
from vyre.driver.counters import counters
from vyre.errors import ArgumentTypeError, ArgumentValueError, Trap, UnsupportedFeature

from ....support.device_backends import IDS, open_or_skip


class Body(NamedTuple):
    at: vec3
    mass: f32


@vyre.kernel(workgroup=64)
def turn(z: In[c64], out: Out[c64]):
    if gid.x < len(out):
        out[gid.x] = z[gid.x] * c64(0.0, 1.0)


@vyre.kernel(workgroup=64)
def fall(bodies: InOut[Body]):
    if gid.x < len(bodies):
        b = bodies[gid.x]
        bodies[gid.x] = Body(b.at * 0.5, b.mass + 1.0)


@vyre.kernel(workgroup=64)
def heavier(bodies: In[Body], out: Out[Body]):
    if gid.x < len(out):
        b = bodies[gid.x]
        out[gid.x] = Body(b.at, b.mass * 2.0)


@vyre.kernel(workgroup=64)
def add_up(n: u32, x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        total = u32(0)
        for k in range(n):
            total += x[(gid.x + k) % len(x)]
        out[gid.x] = total


@vyre.kernel(workgroup=64)
def reverse(x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[len(x) - 1 - gid.x]


@vyre.kernel(workgroup=64)
def bump(x: InOut[u32]):
    if gid.x < len(x):
        x[gid.x] += 1


@vyre.kernel(workgroup=64)
def picky(x: InOut[u32]):
    if gid.x < len(x):
        assert x[gid.x] != 13
        x[gid.x] += 1


@vyre.kernel(workgroup=64)
def several(x: In[u32], more: In[u32], kept: InOut[u32], first: Out[u32], rest: Out[u32]):
    i = gid.x
    if i < len(first):
        first[i] = x[i] + len(more) + len(kept) + len(rest)
    if i < len(kept):
        kept[i] += 1
    if i < len(rest):
        rest[i] = i


@pytest.fixture(params=("cpu", *IDS, "reference"))
def backend(request):
    if request.param != "reference":
        open_or_skip(request.param)
    return request.param


@pytest.fixture(params=("cpu", *IDS))
def device(request):
    open_or_skip(request.param)
    return request.param


def words(n, seed=1):
    return np.random.default_rng(seed).integers(0, 1 << 32, n, dtype=np.uint32)


def test_a_loop_may_take_as_many_turns_as_a_number_says(backend):
    run, x = vyre.sequence(lambda n, x: add_up(n, reverse(x))).on(backend), words(40)
    for n in (3, 3, 7):
        assert run(n, x).tobytes() == add_up.on("cpu")(n, x[::-1].copy()).tobytes()


def test_a_loop_over_device_arrays_may_take_as_many_turns_as_a_number_says(device):
    d, out = vyre.to_device(words(40), device), vyre.to_device(words(40), device)
    for n in (3, 3, 3, 7):
        expected = add_up.on("cpu")(n, d.numpy()).tobytes()
        add_up(n, d, out=out)
        assert out.numpy().tobytes() == add_up(n, d).numpy().tobytes() == expected


def test_a_loop_that_ends_where_the_device_cannot_know_is_refused_or_right(device):
    @vyre.kernel(workgroup=64)
    def until(x: In[u32], out: Out[u32]):
        if gid.x < len(out):
            turns = u32(0)
            for _ in range(x[0]):
                turns += 1
            out[gid.x] = turns

    run, x = vyre.sequence(lambda x: until(reverse(x))).on(device), np.arange(5, dtype=np.uint32)
    for _ in range(2):
        try:
            found = run(x).tolist()
        except UnsupportedFeature as e:
            found = e.context["name"]
        assert found in ([4] * 5, "long loops")


def test_small_values_come_and_go_as_in_plain_calls(backend):
    def both(z, bodies):
        turned = turn(turn(z))
        fall(bodies)
        return {"turned": turned, "bodies": bodies, "heavier": heavier(bodies)}

    run = vyre.sequence(both).on(backend)
    for k in range(3):
        z = (np.arange(5) + 1j * k).astype(np.complex64)
        bodies = np.zeros(3, [("at", np.float32, 3), ("mass", np.float32)])
        bodies["mass"], bodies["at"] = k, [[1, 2, 3], [4, 5, 6], [7, 8, k]]
        mine, theirs = bodies.copy(), bodies.copy()
        found, expected = run(z, mine), both(z, theirs)
        assert found["bodies"] is mine
        for name, array in found.items():
            assert (array.dtype, array.shape) == (expected[name].dtype, expected[name].shape)
            assert array.tobytes() == expected[name].tobytes()
        assert mine.tobytes() == theirs.tobytes()


def test_small_values_of_several_types_are_refused(backend):
    mixed = np.zeros(3, [("a", np.float32), ("n", np.uint32)])
    with pytest.raises(ArgumentTypeError, match=r"x holds .*which no kernel takes.*Fix: convert it"):
        vyre.sequence(lambda x: reverse(x)).on(backend)(mixed)
    swapped = np.zeros(3, np.dtype({"names": ["b", "a"], "formats": ["f4", "f4"], "offsets": [4, 0]}))
    with pytest.raises(ArgumentTypeError, match="which no kernel takes"):
        vyre.sequence(lambda x: heavier(x)).on(backend)(swapped)


def test_an_array_that_the_function_keeps_is_of_no_use_after_it(device):
    kept = []

    @vyre.sequence
    def keeps(x):
        y = reverse(x)
        kept[:] = [x, y, y.view(np.int32)]
        return reverse(y)

    run, x = keeps.on(device), words(10)
    for _ in range(2):
        assert run(x).tobytes() == x.tobytes()
        for array in kept:
            for use in (array.numpy, lambda array=array: reverse(array), lambda array=array: run(array)):
                with pytest.raises(ArgumentValueError, match=r"was kept beyond its call.*Fix: return it"):
                    use()
            assert not hasattr(array, "__cuda_array_interface__")
    d = vyre.to_device(x, device)
    assert run(d).numpy().tobytes() == x.tobytes()
    assert kept[0] is d
    assert d.numpy().tobytes() == x.tobytes()  # which the caller has anyway

    def fails(x):
        kept[:] = [reverse(x)]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        vyre.sequence(fails).on(device)(x)
    with pytest.raises(ArgumentValueError, match="kept beyond its call"):
        kept[0].numpy()


OPERATORS = {
    "x[0]": lambda x: x[0],
    "x[0] = 1": lambda x: operator.setitem(x, 0, 1),
    "for": lambda x: list(x),
    "in": lambda x: 5 in x,
    "x + 1": lambda x: x + 1,
    "1 + x": lambda x: 1 + x,
    "-x": lambda x: -x,
    "x @ x": lambda x: x @ x,
    "x << 1": lambda x: x << 1,
    "x < 1": lambda x: x < 1,
    "x == 1": lambda x: x == 1,
    "x != x": lambda x: x != x,
    "if x": lambda x: bool(x),
    "x += 1": lambda x: operator.iadd(x, 1),
    "divmod": lambda x: divmod(x, 2),
    "float": lambda x: float(x),
}


@pytest.mark.parametrize("what", OPERATORS)
def test_operators_of_device_arrays_say_what_computes_with_them(what):
    d = vyre.to_device(words(4), "cpu")
    with pytest.raises(ArgumentTypeError, match=r"with which only kernels compute. Fix: write a kernel.*d.numpy\(\)$"):
        OPERATORS[what](d)
    with pytest.raises(ArgumentTypeError, match=r"Fix: write a kernel for it$"):
        vyre.sequence(OPERATORS[what]).on("cpu")(words(4))


@pytest.mark.parametrize("name, instead", [("reshape", r"reshape\(...\)"), ("sum", r"sum\(...\)"), ("T", "T")])
def test_what_arrays_of_the_host_have_and_device_arrays_do_not_is_refused_with_what_to_do(name, instead):
    d = vyre.to_device(words(4), "cpu")
    with pytest.raises(
        AttributeError, match=rf"has no {name}\. Fix: write a kernel for it, or .*d\.numpy\(\)\.{instead}$"
    ):
        getattr(d, name)
    with pytest.raises(AttributeError, match=r"Fix: write a kernel for it$"):
        vyre.sequence(lambda x: getattr(x, name)).on("cpu")(words(4))
    assert not hasattr(d, name)
    with pytest.raises(AttributeError, match=r"^'DeviceBuffer' object has no attribute 'nothing'$"):
        _ = d.nothing
    assert not hasattr(d, "__array_interface__")


@vyre.sequence
def twice(x):
    return reverse(reverse(x))


def test_a_sequence_at_the_top_of_a_module_travels_as_its_name():
    x = words(9)
    assert pickle.loads(pickle.dumps(twice)) is twice
    there = pickle.loads(pickle.dumps(twice.on("cpu")))
    assert there.backend == "cpu"
    assert there(x).tobytes() == x.tobytes()
    assert copy.deepcopy(twice) is copy.copy(twice) is twice
    with pytest.raises(ArgumentTypeError, match=r"<lambda>.*cannot be pickled. Fix: define it at the top"):
        pickle.dumps(vyre.sequence(lambda x: reverse(x)))


def test_empty_arrays_among_others_are_taken(backend):
    def function(x, more, kept, n):
        kept, first, rest = several(x, more, kept, sizes={"first": len(x), "rest": n}, domain=64)
        return reverse(first), rest, kept

    run = vyre.sequence(function).on(backend)
    for n_more, n_kept, n_rest in [(0, 0, 0), (3, 0, 0), (0, 5, 0), (0, 0, 7), (2, 3, 4)]:
        for k in range(3):
            x, more = words(20, k), words(n_more, k)
            mine, theirs = words(n_kept, k), words(n_kept, k)
            found, expected = run(x, more, mine, n_rest), function(x, more, theirs, n_rest)
            assert [f.tobytes() for f in found] == [e.tobytes() for e in expected]
            assert mine.tobytes() == theirs.tobytes()


def test_no_step_after_one_that_trapped_runs(device):
    def careful(x, y):
        bump(y)
        picky(x)
        bump(y)
        picky(y)
        bump(x)

    run = vyre.sequence(careful)
    for bad in (False, True, False, True):
        x, y = np.full(100, 50, np.uint32), np.arange(100, 200, dtype=np.uint32)
        x[70] = 13 if bad else 50
        a, b = vyre.to_device(x, device), vyre.to_device(y, device)
        if bad:
            with pytest.raises(Trap, match="assertion"):
                run(a, b)
            assert b.numpy().tobytes() == (y + np.uint32(1)).tobytes()
            assert set(a.numpy()) <= {13, 50, 51}  # the step that trapped is done in part
        else:
            run(a, b)
            assert b.numpy().tobytes() == (y + np.uint32(3)).tobytes()
            assert a.numpy().tobytes() == (x + np.uint32(2)).tobytes()


def test_a_kernel_that_runs_as_several_dispatches_is_refused_over_device_arrays(device):
    d = vyre.to_device(words(256), device)

    @vyre.kernel(workgroup=64)
    def waits(x: InOut[u32]):
        x[gid.x] += 1
        vyre.grid_sync()
        if gid.x > 0:
            x[gid.x - 1] += x[gid.x]

    def function(x):
        waits(x)

    kept = d.numpy()
    if waits.explain(d).decisions and vyre.acquire(device).supports_grid_sync:
        pytest.skip("one launch does it here")
    with pytest.raises(UnsupportedFeature, match=r"waits runs as several dispatches here.*Fix: call it outside"):
        vyre.sequence(function)(d)
    assert d.numpy().tobytes() == kept.tobytes()


def test_explaining_runs_nothing(device):
    def careful(x):
        picky(x)
        return reverse(x)

    x = np.full(10, 13, np.uint32)
    assert "2 steps" in str(vyre.sequence(careful).on(device).explain(x))
    d = vyre.to_device(x, device)
    vyre.sequence(careful).explain(d)
    assert d.numpy().tobytes() == x.tobytes()
    gc.collect()


def test_a_shadow_checks_every_step_of_a_sequence(device):
    @vyre.sequence
    def checked(x):
        bump(x)
        return reverse(reverse(x))

    x, before = words(100), counters()
    for k in (1, 2):
        with vyre.config(shadow=1):
            assert checked.on(device)(x.copy()).tobytes() == (x + np.uint32(1)).tobytes()
        assert counters()["shadow_samples"] - before["shadow_samples"] == 3 * k


def test_a_stream_of_calls_goes_through_a_sequence():
    told = []
    run = vyre.sequence(lambda n, x: add_up(n, reverse(x))).on("cpu")
    xs = [np.arange(k, 9 + k, dtype=np.uint32) for k in range(4)]
    found = run.map([1, 2, 3, 4], xs, progress=lambda done, total: told.append((done, total)))
    assert [f.tolist() for f in found] == [add_up(k + 1, reverse(x)).tolist() for k, x in enumerate(xs)]
    assert told == [(k, 4) for k in range(1, 5)]
    assert found.decision.choice == "in turn"
    assert [f[0] for f in run.map([1, 2], x=xs[0])] == [8, 15]
    with pytest.raises(ArgumentTypeError, match=r"map\(\) got nothing to go through.*Fix: pass an iterable"):
        run.map()
    with pytest.raises(
        ArgumentTypeError, match=r"argument 1 of .* is a int, not an iterable.*Fix: pass what all calls"
    ):
        run.map(xs, 1)
    with pytest.raises(ArgumentTypeError, match="while a sequence is recorded"):
        vyre.sequence(lambda x: list(run.map([1], [x]))).on("cpu")(xs[0])


def test_what_kernels_have_and_sequences_have_not_says_what_to_do():
    run = vyre.sequence(lambda x: reverse(x))
    with pytest.raises(AttributeError, match=r"a sequence has no start\. Fix: call it on a thread"):
        run.start(np.zeros(3, np.uint32))
    with pytest.raises(AttributeError, match=r"a sequence has no evidence\. Fix: ask the kernel of a step"):
        run.evidence()
    assert not hasattr(run, "program")
    assert pickle.loads(pickle.dumps(copied)).__name__ == "copied"


@vyre.sequence
def copied(x):
    return reverse(x)
