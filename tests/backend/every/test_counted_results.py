"""Results of which another one says how long they are: no more is read back, and no byte of what counts is missing."""

import asyncio
import pickle

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, atomic_add, gid, i32, u8, u32
from vyre.driver.contract.values import DispatchConfig
from vyre.errors import ArgumentTypeError, ArgumentValueError
from vyre.front.device.home import home_of

from ...support.device_backends import IDS, open_or_skip
from .test_resident_transfers import changed, counted_copies

NAMES = ("reference", "cpu", *IDS)


@pytest.fixture(params=NAMES)
def name(request):
    open_or_skip(request.param)
    return request.param


@vyre.kernel(workgroup=64, lengths={"kept": "n"})
def first_of(x: In[u32], count: u32, kept: Out[u32], n: Out[u32, 1]):
    i = gid.x
    if i < len(kept):
        kept[i] = x[i % len(x)] * 3
    if i == 0:
        n[0] = count


@vyre.kernel(workgroup=64, lengths={"kept": "n"})
def positives(x: In[i32], kept: Out[i32], n: InOut[u32, 1]):
    i = gid.x
    if i < len(x) and x[i] > 0:
        at = atomic_add(n, 0, 1)
        if at < len(kept):
            kept[at] = x[i]


def zero():
    return np.zeros(1, np.uint32)


@pytest.mark.parametrize("count", [0, 1, 100, 101, 2**32 - 1])
def test_a_result_is_as_long_as_its_word_says_and_the_word_is_the_true_count(name, count):
    x = np.arange(100, dtype=np.uint32)
    kept, n = first_of.on(name)(x, count)
    assert kept.tolist() == (x * 3)[: min(count, 100)].tolist()
    assert n.tolist() == [count]
    kept[...] = 7  # it is the caller's


def test_a_count_survives_results_that_have_no_room(name):
    x = np.arange(-50, 100, dtype=np.int32)
    kept, n = positives.on(name)(x, zero(), sizes={"kept": 10})
    assert len(kept) == len({*kept.tolist()}) == 10
    assert {*kept.tolist()} <= {*range(1, 100)}
    assert n.tolist() == [99]
    kept, n = positives.on(name)(x, zero())
    assert sorted(kept.tolist()) == list(range(1, 100))


def test_calls_over_nothing_and_over_several_axes(name):
    kept, n = positives.on(name)(np.zeros(0, np.int32), zero())
    assert kept.shape == (0,)
    assert n.tolist() == [0]
    kept, _ = positives.on(name)(np.ones((4, 5), np.int32), zero())
    assert kept.shape == (20,)
    kept, n = positives.on(name)(np.ones(8, np.int32), np.array([3], np.uint32), domain=0)
    assert kept.tolist() == [0, 0, 0]
    assert n.tolist() == [3]


def test_an_array_of_the_caller_is_filled_as_a_whole(name):
    x, into = np.arange(100, dtype=np.uint32), np.full(100, 9, np.uint32)
    kept, n = first_of.on(name)(x, 4, kept=into)
    assert kept is into
    assert into.tolist() == (x * 3).tolist()
    assert n.tolist() == [4]


def test_every_way_to_call_gives_the_same(name):
    x = np.arange(100, dtype=np.uint32)
    kernel = first_of.on(name)
    expected = [kernel(x, k)[0].tobytes() for k in (0, 5, 100)]
    assert [kernel.start(x, k).result()[0].tobytes() for k in (0, 5, 100)] == expected
    for in_flight in (None, 3):
        assert [kept.tobytes() for kept, _ in kernel.map([x] * 3, (0, 5, 100), in_flight=in_flight)] == expected
    assert kernel(x, 5, config=DispatchConfig(timeout=60))[0].tobytes() == expected[1]

    async def awaited():
        return await kernel.start(x, 5)

    assert asyncio.run(awaited())[0].tobytes() == expected[1]
    for _ in range(60):  # by then a backend may have a faster way
        assert kernel(x, 5)[0].tobytes() == expected[1]


def test_dispatches_of_slots_are_cut_too(name):
    x, backend = np.arange(100, dtype=np.uint32), vyre.acquire(name)
    pipe = vyre.compile(first_of.program, backend=name)
    config, inputs = DispatchConfig(output_lengths={"kept": "n"}), [x, np.uint32(5)]
    for found in (
        backend.dispatch(first_of.program, inputs, config),
        pipe.dispatch(inputs, config),
        pipe.dispatch_timed(inputs, config).outputs,
        pipe.dispatch_async(inputs, config).result(),
        pipe.dispatch_batch([inputs], config)[0],
        *pipe.run_batch([inputs, inputs], config, in_flight=2),
    ):
        assert [bytes(b) for b in found] == [(x * 3)[:5].tobytes(), np.uint32(5).tobytes()]
    whole = pipe.dispatch(inputs, config, out=[bytearray(400), bytearray(4)])
    assert bytes(whole[0]) == (x * 3).tobytes()
    with pytest.raises(ArgumentValueError, match=r"exceeds max_output_bytes=100.*Fix"):
        pipe.dispatch(inputs, config.with_(max_output_bytes=100))


@vyre.sequence
def twice(x, count):
    kept, n = first_of(x, count)
    again, _m = first_of(kept, 3)
    return {"kept": kept, "n": n, "again": again, "whole": first_of(again, 7)[1]}


def test_sequences_read_back_what_counts(name):
    x = np.arange(100, dtype=np.uint32)
    for count in (4, 4, 0, 200):
        found = twice.on(name)(x, count)
        assert found["kept"].tolist() == (x * 3)[: min(count, 100)].tolist()
        assert found["again"].tolist() == [0, 9, 18]
        assert (found["n"].tolist(), found["whole"].tolist()) == ([count], [7])


@vyre.sequence
def counted_on(x, n):
    first, _ = positives(x, n)
    second, _ = positives(x, n)
    return first, second, n


def test_what_a_later_step_counts_leaves_a_result_of_a_sequence_as_long_as_it_was(name):
    x, n = np.arange(-9, 5, dtype=np.int32), zero()
    for start in (0, 1):
        n[0] = start
        first, second, _ = counted_on.on(name)(x, n)
        assert (len(first), len(second), n[0]) == (start + 4, start + 8, start + 8)


def test_a_sequence_copies_no_more_than_that(name):
    if name in ("reference", "cpu"):
        pytest.skip("its memory is that of the host")
    backend, x = home_of(name).backend, np.arange(1000, dtype=np.uint32)
    run = vyre.sequence(lambda x, count: first_of(x, count)[0]).on(name)
    run(x, 5)
    _, told = changed(backend, "download", lambda: run(x, 5))
    assert told[3] == 4 + 5 * 4


def test_results_on_a_device_stay_whole(name):
    if name == "reference":
        pytest.skip("the reference has no memory of its own")
    x = np.arange(100, dtype=np.uint32)
    kept, n = first_of(vyre.to_device(x, name), 4)
    assert kept.numpy().tolist() == (x * 3).tolist()
    assert n.numpy().tolist() == [4]


MANY = 40


def many(outputs):
    """A kernel of so many results with room for 1024 words, each with its word in one array of them."""
    names = [f"out{k}" for k in range(outputs)]
    stores = "\n".join(f"    if i < 1024:\n        {o}[i] = i + {k}" for k, o in enumerate(names))
    text = f"""
def several(x: In[u32], {", ".join(f"{o}: Out[u32, 1024]" for o in names)}, n: Out[u32, {outputs}]):
    i = gid.x
{stores}
    if i < {outputs}:
        n[i] = x[i]
"""
    return vyre.kernel(source=text, workgroup=64, lengths={o: ("n", k) for k, o in enumerate(names)})


@pytest.mark.parametrize("id", IDS)
def test_many_small_results_are_one_copy(id, monkeypatch):
    backend = open_or_skip(id)
    outputs = MANY if id != "wgpu" else 5
    kernel, lengths = many(outputs), np.full(outputs, 4, np.uint32)
    config = DispatchConfig(output_lengths=kernel.lengths, grid_override=(16, 1, 1))
    pipe = vyre.driver.pipeline.compile(backend, kernel.program)
    pipe.dispatch([lengths], config)
    reads = counted_copies(backend, monkeypatch, "read")
    found = pipe.dispatch([lengths], config)
    assert reads == [4 * outputs, 16 * outputs]  # the words, and 640 bytes where there are 40
    assert [np.frombuffer(b, np.uint32).tolist() for b in found[:-1]] == [
        [k, k + 1, k + 2, k + 3] for k in range(outputs)
    ]
    some = np.arange(outputs, dtype=np.uint32) % 3 * 700  # nothing, something, more than there is room for
    found = pipe.dispatch([some], config)
    assert [len(b) // 4 for b in found[:-1]] == np.minimum(some, 1024).tolist()
    whole = pipe.dispatch([some], config.with_(output_lengths=None))
    assert all(bytes(a) == bytes(b)[: len(a)] for a, b in zip(found, whole, strict=True))


def test_a_word_that_is_not_there_is_refused(name):
    @vyre.kernel(lengths={"kept": ("n", 3)})
    def fourth(x: In[u32], kept: Out[u32], n: Out[u32]):
        if gid.x < len(n):
            n[gid.x] = 2

    x = np.arange(8, dtype=np.uint32)
    assert fourth.on(name)(x)[0].shape == (2,)
    for short in (3, 0):
        with pytest.raises(ArgumentValueError, match=r"(element 3 of 'n'|as long as n\[3\] says).*Fix: "):
            fourth.on(name)(x, sizes={"n": short})
    with pytest.raises(ArgumentValueError, match=r"kept is as long as n\[3\] says, and n has 3 elements.*Fix: "):
        vyre.sequence(lambda x: fourth(x, sizes={"n": 3})).on(name)(x)
    with pytest.raises(ArgumentValueError, match=r"kept is as long as n\[3\] says, and n has 0 elements.*Fix: "):
        fourth.on(name)(x[:0])
    with pytest.raises(ArgumentValueError, match=r"output_lengths has 'x', which is no output.*Fix: name two of"):
        first_of.on(name)(x, 1, config=DispatchConfig(output_lengths={"kept": "x"}))


def test_lengths_of_bytes_and_bools(name):
    @vyre.kernel(workgroup=64, lengths={"a": "n", "b": ("n", 1)})
    def small(x: In[u8], a: Out[u8], b: Out[vyre.bool_], n: Out[u32, 2]):
        i = gid.x
        if i < len(x):
            a[i] = x[i]
            b[i] = x[i] > u8(2)
        if i < 2:
            n[i] = 3 + i

    a, b, n = small.on(name)(np.arange(9, dtype=np.uint8))
    assert (a.tolist(), b.tolist(), n.tolist()) == ([0, 1, 2], [False, False, False, True], [3, 4])
    assert b.dtype == bool


def test_explain_says_what_is_read_back():
    x = np.arange(100, dtype=np.uint32)
    assert "results: counted (kept is as long as n[0] says)" in str(first_of.on("cpu").explain(x, 5))
    assert "results:" not in str(first_of.on("cpu").explain(x, 5, kept=x.copy()))


def test_a_kernel_travels_with_its_lengths():
    assert pickle.loads(pickle.dumps(first_of)).lengths == {"kept": ("n", 0)}
    local = many(2)
    arrived = pickle.loads(pickle.dumps(local))
    assert arrived.lengths == local.lengths
    assert [len(o) for o in arrived.on("cpu")(np.array([1, 2], np.uint32), domain=1024)] == [1, 2, 2]


@pytest.mark.parametrize(
    "lengths, said",
    [
        ({"nothing": "n"}, "lengths has 'nothing', which is no result of k"),
        ({"x": "n"}, "lengths has 'x', which is no result of k"),
        ({"n": "n"}, "lengths has 'n', which is no result of k"),
        ({"kept": "n", "other": "kept"}, "lengths has 'other', which is no result of k"),
        ({"kept": "x"}, "the length of 'kept' cannot be element 0 of 'x'.*Fix: count in a result of words"),
        ({"kept": "other"}, "the length of 'kept' cannot be element 0 of 'other'"),
        ({"kept": ("n", 2)}, r"element 2 of 'n'.*Fix: count in a result of words: n: Out\[u32, 3\]"),
        ({"kept": "who"}, "the length of 'kept' cannot be element 0 of 'who'"),
    ],
)
def test_lengths_that_cannot_be_are_refused_where_the_kernel_is_written(lengths, said):
    with pytest.raises(ArgumentValueError, match=said):

        @vyre.kernel(lengths=lengths)
        def k(x: In[u32], kept: Out[u32], other: Out[i32], n: Out[u32, 2]):
            pass


@pytest.mark.parametrize("lengths", [3, ["kept"], {"kept": 3}, {3: "n"}, {"kept": ("n", "m")}, {"kept": ("n", 1.5)}])
def test_lengths_that_are_no_names_are_refused(lengths):
    with pytest.raises(ArgumentTypeError, match="Fix: pass"):
        DispatchConfig(output_lengths=lengths)
    with pytest.raises(ArgumentTypeError, match="Fix: pass"):

        @vyre.kernel(lengths=lengths)
        def k(x: Out[u32]):
            pass


@pytest.mark.parametrize(
    "lengths, said",
    [
        ({"nothing": "n"}, "output_lengths has 'nothing', which is no output.*Fix: name two of: kept, n"),
        ({"kept": "who"}, "output_lengths has 'who', which is no output"),
        ({"kept": "kept"}, "'kept', which says its own length"),
        ({"kept": ("n", 1)}, "the length of 'kept' cannot be element 1 of 'n', which has 1 of u32"),
    ],
)
def test_lengths_that_a_program_has_not_are_refused(lengths, said):
    x = np.arange(10, dtype=np.uint32)
    with pytest.raises(ArgumentValueError, match=said):
        vyre.compile(first_of.program, backend="cpu").dispatch(
            [x, np.uint32(1)], DispatchConfig(output_lengths=lengths)
        )
