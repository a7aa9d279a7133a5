"""Streams of inputs: bytes, order and errors of plain calls, few on their way, and nothing finished is lost."""

import io
import itertools
import random
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vyre
from vyre import In, InOut, Out, gid, u32
from vyre.driver.counters import decision_counters
from vyre.driver.execute.stream import Hinders
from vyre.errors import ArgumentTypeError, ArgumentValueError, Trap

from ....support.device_backends import IDS, open_or_skip


@vyre.kernel(workgroup=64)
def mix(a: u32, x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * 3 + a


@vyre.kernel(workgroup=64)
def mix_into(a: u32, x: In[u32], out: InOut[u32]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * 3 + a


@vyre.kernel(workgroup=64)
def bump(x: InOut[u32]):
    if gid.x < len(x):
        x[gid.x] += 1


@vyre.kernel(workgroup=64)
def picky(x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        assert x[gid.x] != 13
        out[gid.x] = x[gid.x]


@pytest.fixture(params=("cpu", *IDS, "reference"))
def backend(request):
    if request.param != "reference":
        open_or_skip(request.param)
    return request.param


def words(n, seed=1):
    return np.random.default_rng(seed).integers(0, 1 << 32, n, dtype=np.uint32)


IN_FLIGHT = pytest.mark.parametrize("in_flight", [None, 1, 3])


@IN_FLIGHT
def test_results_come_in_order_with_the_bytes_of_plain_calls(backend, in_flight):
    kernel, xs = mix.on(backend), [words(n, n) for n in (5, 20_000, 1, 0, 64, 20_000)]
    found = list(kernel.map(itertools.count(), xs, in_flight=in_flight))
    assert [f.tobytes() for f in found] == [mix(k, x).tobytes() for k, x in enumerate(xs)]
    pipeline = vyre.compile(mix.program, backend=backend)
    batches = [[np.uint32(k).tobytes(), x] for k, x in enumerate(xs)]
    again = list(pipeline.run_batch(batches, in_flight=in_flight))
    assert [bytes(outs[0]) for outs in again] == [f.tobytes() for f in found]
    assert [bytes(outs[0]) for outs in pipeline.dispatch_batch(batches)] == [f.tobytes() for f in found]


def test_a_stream_that_asks_for_several_has_several_on_their_way(backend):
    kernel, before = mix.on(backend), decision_counters()
    stream = kernel.map([1, 2, 3], [words(9)] * 3, in_flight=2)
    assert [f.tobytes() for f in stream] == [mix(k, words(9)).tobytes() for k in (1, 2, 3)]
    more = {what: n - before.get(what, 0) for what, n in decision_counters().items() if what[0] == "upload"}
    choice = "overlapped" if vyre.acquire(backend).supports_async_compute else "in turn"
    assert more[("upload", choice)] == 3
    assert stream.decision.choice == choice


@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_arguments_are_taken_only_as_results_are(backend, in_flight):
    taken = []

    def arguments():
        for k in range(50):
            taken.append(k)
            yield np.full(10, k, np.uint32)

    stream = mix.on(backend).map(itertools.repeat(0), arguments(), in_flight=in_flight)
    assert taken == []
    for k in range(10):
        assert next(stream)[0] == 3 * k
        assert len(taken) <= k + in_flight
    stream.close()
    assert list(stream) == []
    assert len(taken) < 10 + in_flight


@IN_FLIGHT
def test_an_argument_may_be_filled_again_for_the_next_call(backend, in_flight):
    x = np.zeros(1000, np.uint32)

    def refilled():
        for k in range(6):
            x[:] = k
            yield x

    assert [f[7] for f in mix.on(backend).map([0] * 6, refilled(), in_flight=in_flight)] == [3 * k for k in range(6)]


@IN_FLIGHT
def test_calls_that_share_memory_run_in_turn(backend, in_flight):
    x, y = np.zeros(100, np.uint32), np.zeros(100, np.uint32)
    for k, found in enumerate(bump.on(backend).map([x] * 5, in_flight=in_flight), 1):
        assert found is x
        assert set(x) == {k}
    arrays = [x, y, words(100)]  # each is the input of the next
    for found in mix.on(backend).map([1], [arrays[0]], in_flight=in_flight, out=arrays[1]):
        assert found is y
    pipeline = vyre.compile(mix.program, backend=backend)
    one = np.uint32(1).tobytes()
    inputs, outs = [[one, x], [one, y], [one, arrays[2]]], [[y], [arrays[2]], [x]]
    pipeline.dispatch_batch(inputs, out=outs)
    assert (y[0], arrays[2][0], x[0]) == (16, 49, 148)


@IN_FLIGHT
@pytest.mark.parametrize("form", [np.s_[::2], np.s_[:499:-1], np.s_[500:], "swapped", "number"])
def test_an_argument_that_is_copied_is_what_the_call_before_has_written(backend, in_flight, form):
    y, z = np.zeros(1000, np.uint32), np.zeros(500, np.uint32)
    x, a = np.arange(1000, dtype=np.uint32), np.array(1, np.uint32)
    second = words(500)
    if form == "number":
        numbers, arrays = [a, y[:1].reshape(())], [x, second]
    elif form == "swapped":
        numbers, arrays = [a, a], [x, y[500:].view(y.dtype.newbyteorder())]
    else:
        numbers, arrays = [a, a], [x, y[form]]
    into = mix_into.on(backend)
    list(into.map(numbers, arrays, [y, z], in_flight=in_flight))
    number, array = int(numbers[1]), arrays[1].astype(np.uint32)
    assert np.array_equal(y, x * 3 + 1)
    assert np.array_equal(z, array * 3 + np.uint32(number))


def test_a_batch_overlaps_on_a_device_of_its_own_unless_it_reads_what_it_writes(backend, monkeypatch):
    monkeypatch.setattr("vyre.driver.execute.pipeline.hinders_of", lambda backend: Hinders())
    pipeline, n = vyre.compile(mix.program, backend=backend), 20_000
    one, before = np.uint32(1).tobytes(), decision_counters()
    arrays = [np.full(n, k, np.uint32) for k in range(7)]
    inputs = [[one, arrays[0]], [one, arrays[1]], [one, arrays[4]], [one, arrays[5]]]
    outs = [[arrays[3]], [arrays[4]], [arrays[5]], [arrays[6]]]
    assert pipeline.dispatch_batch(inputs, out=outs) == outs
    assert [int(a[n - 1]) for a in arrays] == [0, 1, 2, 1, 4, 13, 40]
    more = {what: count - before.get(what, 0) for what, count in decision_counters().items() if what[0] == "upload"}
    assert (more["upload", "overlapped"], more["upload", "in turn"]) == (3, 1)  # the third reads what the second writes


@IN_FLIGHT
@pytest.mark.parametrize("number", [0, 2, 4])
def test_an_error_names_its_input_and_those_before_it_have_come(backend, in_flight, number):
    taken, found = [], []

    def arguments():
        for k in range(9):
            taken.append(k)
            yield np.full(10, 13 if k == number else k, np.uint32)

    stream = picky.on(backend).map(arguments(), in_flight=in_flight)
    with pytest.raises(Trap) as caught:
        found.extend(int(each[0]) for each in stream)
    assert found == list(range(number))
    assert caught.value.context["batch_index"] == number
    assert len(taken) <= number + (in_flight or 2)


@IN_FLIGHT
def test_arguments_that_do_not_fit_and_those_that_fail_raise_in_their_turn(backend, in_flight):
    found = []
    stream = mix.on(backend).map([1, 2, 3], [words(3), words(3), np.zeros(3)], in_flight=in_flight)
    with pytest.raises(ArgumentTypeError) as caught:
        found.extend(stream)
    assert (len(found), caught.value.context["batch_index"]) == (2, 2)

    def breaks():
        yield words(3)
        yield words(4)
        raise OSError("no more")

    stream = mix.on(backend).map(itertools.repeat(1), breaks(), in_flight=in_flight)
    assert [len(next(stream)), len(next(stream))] == [3, 4]
    with pytest.raises(OSError, match="no more"):
        next(stream)
    assert list(stream) == []


@IN_FLIGHT
def test_after_an_interrupt_what_was_on_its_way_still_comes(backend, in_flight):
    def interrupted():
        yield from [np.full(5, k, np.uint32) for k in range(3)]
        raise KeyboardInterrupt

    stream, found = mix.on(backend).map(itertools.repeat(0), interrupted(), in_flight=in_flight), []
    with pytest.raises(KeyboardInterrupt):
        found.extend(int(each[0]) for each in stream)
    found += [int(each[0]) for each in stream]
    assert found == [0, 3, 6]
    assert stream.done == 3


@pytest.mark.check
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one that comes inside a __del__
def test_an_interrupt_at_any_time_leaves_no_gap(backend):
    kernel, size = mix.on(backend), 100 if backend == "reference" else 100_000
    xs, main, rng = [np.full(size, k, np.uint32) for k in range(20)], threading.get_ident(), random.Random(1)
    list(kernel.map([0], xs[:1]))
    for _ in range(20):
        begun, sent = threading.Event(), threading.Event()

        def interrupts(after, begun=begun, sent=sent):
            begun.wait()
            sent.wait(after)
            signal.pthread_kill(main, signal.SIGINT)
            sent.set()

        thread = threading.Thread(target=interrupts, args=(rng.random() * 0.003,))
        stream, found = kernel.map(itertools.repeat(0), xs, in_flight=3), []
        thread.start()
        try:
            begun.set()
            found.extend(int(each[0]) for each in stream)
            sent.wait()
        except KeyboardInterrupt:
            found.extend(int(each[0]) for each in stream)
        finally:
            thread.join()
        assert found == [3 * k for k in range(len(found))]


def test_an_interrupt_while_outputs_are_taken_leaves_them(backend, monkeypatch):
    if backend in ("cpu", "reference"):
        pytest.skip("another thread takes them")
    from vyre.runtime import pipeline

    plain, turns = pipeline.collect, []

    def interrupted(*given, **options):
        found = plain(*given, **options)
        turns.append(1)
        if len(turns) == 1:
            raise KeyboardInterrupt
        return found

    x = words(100)
    pending = mix.on(backend).start(1, x)
    monkeypatch.setattr(pipeline, "collect", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pending.result()
    assert pending.result().tobytes() == mix(1, x).tobytes()


def test_an_interrupt_while_progress_is_told_loses_no_result(backend):
    told = []

    def interrupts(done, total):
        told.append(done)
        if told == [1, 2]:
            raise KeyboardInterrupt

    stream = mix.on(backend).map([1, 2, 3, 4], [words(3)] * 4, in_flight=3, progress=interrupts)
    found = [next(stream)]
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    found += stream
    assert [f.tobytes() for f in found] == [mix(k, words(3)).tobytes() for k in (1, 2, 3, 4)[: len(found)]]
    assert len(found) == (4 if stream.decision.choice == "overlapped" else 2)


def test_a_stream_that_is_asked_while_it_looks_for_a_result_refuses_and_goes_on():
    refused = []

    def asks():
        for k in range(3):
            for ask in (lambda: next(stream), lambda: ThreadPoolExecutor(1).submit(next, stream).result()):
                with pytest.raises(ArgumentValueError, match=r"while it looks.*Fix: let one thread") as e:
                    ask()
                refused.append(e)
            yield words(9, k)

    stream = mix.on("cpu").map(itertools.count(), asks(), in_flight=2)
    assert [f.tobytes() for f in stream] == [mix(k, words(9, k)).tobytes() for k in range(3)]
    assert len(refused) == 6


def test_device_arrays_go_through_in_turn(backend):
    if backend == "reference":
        pytest.skip("it keeps nothing on a device")
    xs = [vyre.to_device(words(20, k), backend) for k in range(3)]
    stream = mix.map(range(3), xs, in_flight=2)
    assert [f.numpy().tobytes() for f in stream] == [mix(k, x.numpy()).tobytes() for k, x in enumerate(xs)]
    assert "live on the device" in stream.decision.reason


def test_progress_is_told_after_each_result(monkeypatch):
    told = []
    stream = mix.on("cpu").map(range(4), [words(3)] * 5, progress=lambda done, total: told.append((done, total)))
    assert len(list(stream)) == 4
    assert told == [(k, 4) for k in (1, 2, 3, 4)]
    told.clear()
    list(mix.on("cpu").map(range(2), (words(3) for _ in range(9)), progress=lambda *each: told.append(each)))
    assert told == [(1, None), (2, None)]
    for tty in (True, False):
        shown = io.StringIO()
        shown.isatty = lambda tty=tty: tty
        monkeypatch.setattr(sys, "stderr", shown)
        list(mix.on("cpu").map(range(3), [words(3)] * 3, progress=True))
        assert shown.getvalue().endswith("\r3 of 3\n") == tty
        list(mix.on("cpu").map(itertools.count(), iter([words(3)] * 3), progress=True))
        assert shown.getvalue().endswith("\r3\n") == tty
        assert bool(shown.getvalue()) == tty


def test_what_is_no_stream_is_refused():
    kernel, pipeline = mix.on("cpu"), vyre.compile(mix.program, backend="cpu")
    with pytest.raises(ArgumentTypeError, match=r"got nothing to go through.*Fix: pass an iterable"):
        kernel.map()
    with pytest.raises(ArgumentTypeError, match=r"argument 0 of mix.map\(\) is a int.*Fix: pass what all calls have"):
        kernel.map(2, [words(3)])
    with pytest.raises(ArgumentTypeError, match=r"progress=5 is no function.*Fix: pass progress=True"):
        kernel.map([1], [words(3)], progress=5)
    with pytest.raises(ArgumentTypeError, match="batches is int, not a list"):
        pipeline.run_batch(5)
    with pytest.raises(ArgumentTypeError, match="while a sequence is recorded"):
        vyre.sequence(lambda x: list(mix.map([1], [x]))).on("cpu")(words(3))


@given(
    sizes=st.lists(st.integers(0, 300), max_size=8),
    in_flight=st.sampled_from([None, 1, 2, 7]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=20, deadline=None)
@pytest.mark.parametrize("name", ["cpu", *IDS])
def test_random_streams_give_the_bytes_of_plain_calls(name, sizes, in_flight, seed):
    open_or_skip(name)
    xs, kernel = [words(n, seed + k) for k, n in enumerate(sizes)], mix.on(name)
    found = kernel.map(range(seed, seed + len(xs)), xs, in_flight=in_flight)
    assert [f.tobytes() for f in found] == [kernel(seed + k, x).tobytes() for k, x in enumerate(xs)]


@pytest.mark.parametrize("in_flight, error", [(0, ValueError), (-1, ValueError), (2.5, TypeError), (True, TypeError)])
def test_how_many_are_on_their_way_is_a_whole_number_from_one_on(in_flight, error):
    with pytest.raises(error, match=r"in_flight=.*Fix: pass a number from 1 to \d+$"):
        mix.on("cpu").map([1, 2], [words(9)] * 2, in_flight=in_flight)
    assert len(list(mix.on("cpu").map([1, 2], [words(9)] * 2, in_flight=np.int64(2)))) == 2
