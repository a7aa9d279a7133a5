"""Structural views of a backend, and a program run over a stream of chunks."""

import pytest

from vyre.driver.contract.stream import Backend, Executable, Streamable, stream_chunks
from vyre.driver.contract.values import DispatchConfig
from vyre.errors import ArgumentValueError, DispatchFailed
from vyre.foundation.ir.program import Program

from .doubles import FullBackend, MockBackend, echo
from .programs import COUNT, unwords, words

EMPTY = Program.empty()


@pytest.mark.row("A-CAP-1")
@pytest.mark.parametrize("make", [MockBackend, FullBackend])
def test_every_backend_has_the_identity_of_one(make):
    backend = make()
    assert isinstance(backend, Backend)
    assert (backend.id, backend.version) in (("mock", "unspecified"), ("full", "9.8.7"))
    assert not isinstance(object(), Backend)


@pytest.mark.row("A-CAP-2")
def test_every_backend_is_executable():
    backend = MockBackend()
    assert isinstance(backend, Executable)
    runs: Executable = backend
    assert runs.dispatch(EMPTY, [b"ab"]) == [b"ab"]
    assert not isinstance(object(), Executable)


@pytest.mark.row("A-CAP-3")
def test_a_stream_gives_results_in_order_and_takes_chunks_only_when_asked():
    taken = []

    def chunks():
        for data in (b"ab", b"cd", b"ef", b"gh"):
            taken.append(data)
            yield [data]

    results = stream_chunks(MockBackend(), EMPTY, chunks(), depth=2)
    assert taken == []
    assert next(results) == [b"ab"]
    assert taken == [b"ab", b"cd"]
    assert next(results) == [b"cd"]
    assert taken == [b"ab", b"cd", b"ef"]
    assert list(results) == [[b"ef"], [b"gh"]]


@pytest.mark.row("A-CAP-3")
def test_a_class_with_stream_is_streamable():
    class Streaming(MockBackend):
        def stream(self, program, chunks, config=None):
            return stream_chunks(self, program, chunks)

    assert isinstance(Streaming(), Streamable)
    assert not isinstance(MockBackend(), Streamable)
    assert list(Streaming().stream(EMPTY, [[b"ab"], [b"cd"]])) == [[b"ab"], [b"cd"]]


def test_the_error_of_a_chunk_takes_its_place_and_the_stream_goes_on():
    class Picky(MockBackend):
        def dispatch(self, program, inputs, config=None, *, out=None):
            if inputs == [b"bad"]:
                raise DispatchFailed("a bad chunk", fix="send a good one")
            return echo(inputs)

    results = stream_chunks(Picky(), EMPTY, [[b"a"], [b"bad"], [b"c"]])
    assert next(results) == [b"a"]
    with pytest.raises(DispatchFailed, match="a bad chunk"):
        next(results)
    assert next(results) == [b"c"]
    assert list(results) == []


@pytest.mark.parametrize("depth", [0, -1])
def test_a_stream_needs_at_least_one_dispatch_in_flight(depth):
    with pytest.raises(ArgumentValueError, match=r"starts nothing\. Fix: use 1"):
        stream_chunks(MockBackend(), EMPTY, [], depth=depth)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_producer_may_reuse_one_buffer_for_all_chunks(backend, depth):
    buffer = bytearray(4)

    def chunks():
        for k in range(20):
            buffer[:] = words(k)
            yield [buffer]

    results = stream_chunks(backend, COUNT, chunks(), DispatchConfig(label="stream"), depth=depth)
    assert [unwords(r[0])[0] for r in results] == list(range(1, 21))
