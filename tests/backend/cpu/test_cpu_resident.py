"""Resident memory of the processor keeps the rules that every backend with resident memory keeps."""

import ctypes
import random
import weakref

import numpy as np
import pytest
from tests.contract.programs import ADD, TRAP, unwords, words

from vyre.backends.cpu.backend import CpuBackend
from vyre.driver.contract.values import DispatchConfig, HostResource, ResidentDispatchStep, ResidentReadRange
from vyre.driver.guard import compile as pipelines
from vyre.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    DeviceOutOfMemory,
    DispatchFailed,
    InvalidProgram,
    Trap,
)
from vyre.foundation.ir.dtypes import u32
from vyre.foundation.ir.nodes import InvocationId, Store, lit
from vyre.foundation.ir.program import Program, write_only

from ...support.cpu_kernels import arange, bump


@pytest.fixture
def backend():
    made = CpuBackend()
    yield made
    made.shutdown()


def uploaded(backend, data):
    handle = backend.allocate_resident(memoryview(data).nbytes)
    backend.upload_resident([(handle, 0, data)])
    return handle


def bytes_of(backend, handle):
    return bytes(backend.download_resident([ResidentReadRange(handle, 0, handle.nbytes)])[0])


def test_memory_begins_as_zeros_and_keeps_what_is_written(backend):
    rng = random.Random(3)
    handle, expected = backend.allocate_resident(13), bytearray(13)
    assert bytes_of(backend, handle) == expected
    for _ in range(30):
        start = rng.randrange(14)
        data = rng.randbytes(rng.randrange(14 - start))
        backend.upload_resident([(handle, start, data), (handle, 0, b"")])
        expected[start : start + len(data)] = data
        out = [bytearray(13), bytearray(len(data))]
        reads = [ResidentReadRange(handle, 0, 13), ResidentReadRange(handle, start, len(data))]
        assert backend.download_resident(reads) == [expected, data]
        assert backend.download_resident(reads, out=out)[0] is out[0]
        assert out == [expected, data]
    backend.upload_resident([(handle, 0, np.arange(24, dtype=np.uint8).reshape(12, 2)[:, 0])])
    assert bytes_of(backend, handle)[:12] == bytes(range(0, 24, 2))
    backend.free_resident(handle)


def test_a_program_works_in_that_memory(backend):
    a, b, out = uploaded(backend, arange(1000)), uploaded(backend, arange(1000)), backend.allocate_resident(4000)
    pipeline = pipelines.compile(backend, ADD)
    for _ in range(3):
        backend.upload_resident([(out, 0, b"\xa5" * 4000)])
        assert pipeline.dispatch_resident([a, b, out]) == [out]
        assert unwords(bytes_of(backend, out)) == list(range(0, 2000, 2))
    before = backend.metrics()["resident_bytes"]
    for resources in ([a, b], [a, HostResource(arange(1000))], [a, b, HostResource()]):
        (kept,) = pipeline.dispatch_resident(resources)
        assert bytes_of(backend, kept) == bytes_of(backend, out)
        backend.free_resident(kept)
    n = uploaded(backend, arange(10))
    assert pipelines.compile(backend, bump.program).dispatch_resident([n]) == [n]
    assert unwords(bytes_of(backend, n)) == list(range(1, 21, 2))
    backend.free_resident(n)
    assert backend.metrics()["resident_bytes"] == before


def test_freed_memory_is_held_by_no_pipeline(backend):
    native = pipelines.compile(backend, bump.program).native
    n = uploaded(backend, arange(10))
    for _ in range(3):
        native.dispatch_resident([n])
    memory = weakref.ref(backend.residents.find(n, "here"))
    backend.free_resident(n)
    assert memory() is None
    with pytest.raises(InvalidProgram, match="was freed or never allocated"):
        native.dispatch_resident([n])


def test_longer_memory_is_written_as_far_as_the_buffer_goes(backend):
    program = Program([write_only("out", 0, u32, 3)], (4, 1, 1), [Store("out", InvocationId(0), lit(7))])
    out = uploaded(backend, b"\xa5" * 16)
    pipelines.compile(backend, program).dispatch_resident([out], DispatchConfig(grid_override=(1, 1, 1)))
    assert bytes_of(backend, out) == words(7, 7, 7) + b"\xa5" * 4
    short = uploaded(backend, b"\xa5" * 8)
    with pytest.raises(ArgumentValueError, match=r"'out' needs 12 bytes and its resident memory has 8"):
        pipelines.compile(backend, program).dispatch_resident([short])


def test_a_trap_leaves_memory_alone_and_frees_what_was_allocated(backend):
    n, before = uploaded(backend, words(0)), backend.metrics()["resident_bytes"]
    with pytest.raises(Trap):
        pipelines.compile(backend, TRAP).dispatch_resident([n])
    assert backend.metrics()["resident_bytes"] == before
    assert bytes_of(backend, n) == words(0)


def test_steps_run_in_order_and_repeat(backend):
    n = uploaded(backend, words(1, 2, 3))
    steps = [ResidentDispatchStep(bump.program, (n,)), ResidentDispatchStep(bump.program, (n,))]
    outputs, timing = backend.dispatch_resident(steps, reads=[ResidentReadRange(n, 0, 12)], repeat=3, timed=True)
    assert unwords(bytes(outputs[0])) == [7, 14, 21]
    assert timing.wall_ns > 0
    assert backend.dispatch_resident(steps, reads=[ResidentReadRange(n, 0, 4)], repeat=0) == ([words(7)], None)
    with pytest.raises(ArgumentValueError, match=r"output 'out' of a step has no resident memory.*Fix: allocate it"):
        backend.dispatch_resident([ResidentDispatchStep(ADD, (n, n))])


def test_wrong_uses_are_refused(backend):
    handle, freed, other = backend.allocate_resident(8), backend.allocate_resident(8), CpuBackend()
    backend.free_resident(freed)
    upload, download, free = backend.upload_resident, backend.download_resident, backend.free_resident
    over, at = pipelines.compile(backend, ADD).native.dispatch_resident, ResidentReadRange
    cases = [
        (ArgumentValueError, r"0 bytes cannot be resident.*Fix: allocate at", lambda: backend.allocate_resident(0)),
        (ArgumentTypeError, r"not a whole number", lambda: backend.allocate_resident(1.5)),
        (DeviceOutOfMemory, r"no room for more resident.*Fix: free some", lambda: backend.allocate_resident(1 << 60)),
        (ArgumentValueError, r"upload of 8 bytes at 1 is outside.*Fix: stay", lambda: upload([(handle, 1, b"x" * 8)])),
        (ArgumentValueError, r"download of 9 bytes at 0 is outside", lambda: download([at(handle, 0, 9)])),
        (ArgumentValueError, r"1 range\(s\) are read into 0 buffer", lambda: download([at(handle, 0, 8)], out=[])),
        (
            ArgumentValueError,
            r"buffer 0 cannot take a range",
            lambda: download([at(handle, 0, 8)], out=[b"x" * 8]),
        ),
        (InvalidProgram, r"was freed or never allocated.*Fix: allocate it again", lambda: free(freed)),
        (InvalidProgram, r"memory of another backend instance", lambda: free(other.allocate_resident(8))),
        (ArgumentTypeError, r"free_resident got NoneType, not resident memory.*Fix: pass a handle", lambda: free(None)),
        (ArgumentTypeError, r"resource 0 is bytes.*Fix: pass resident handles", lambda: over([b"", b""])),
        (ArgumentValueError, r"expected 3 resource\(s\), or 2 for the inputs, and received 1", lambda: over([handle])),
        (ArgumentValueError, r"'a' and 'out' are the same resident", lambda: over([handle, handle, handle])),
        (InvalidProgram, r"was freed or never", lambda: over([handle, freed])),
    ]
    for kind, text, use in cases:
        with pytest.raises(kind, match=text):
            use()
    other.shutdown()
    with pytest.raises(DispatchFailed, match="the backend was shut down"):
        other.allocate_resident(4)


def test_memory_of_others_is_used_where_it_lies(backend):
    array = np.arange(10, dtype=np.uint32)
    exchange = backend.exchange()
    assert exchange.device == (1, 0)
    assert exchange.stream is None
    assert exchange.pinned(100) is None
    handle = exchange.adopt(array.ctypes.data, array.nbytes)
    assert exchange.address(handle) == array.ctypes.data
    pipelines.compile(backend, bump.program).dispatch_resident([handle])
    assert np.array_equal(array, np.arange(1, 21, 2))
    backend.free_resident(handle)
    own = backend.allocate_resident(8)
    ctypes.memmove(exchange.address(own), b"resident", 8)
    assert bytes_of(backend, own) == b"resident"
