"""Whose memory a dispatch on the processor reads and writes, and what its pool never shows."""

import gc

import numpy as np
import pytest
from tests.contract.programs import ADD, words

from vyre.backends.cpu import CpuBackend
from vyre.backends.cpu.run import host_pool as memory
from vyre.driver.contract.values import DispatchConfig
from vyre.driver.plan import OutputSlot
from vyre.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    DeviceOutOfMemory,
)
from vyre.foundation.ir.dtypes import u32 as u32_type
from vyre.foundation.ir.nodes import InvocationId, Store, lit
from vyre.foundation.ir.program import Program, write_only

from ...support.cpu_kernels import LARGE, arange, behind, bump, compiled, halves, histogram, shifted

GID = InvocationId(0)


@pytest.fixture(scope="module")
def backend():
    made = CpuBackend(threads=3)
    yield made
    made.shutdown()


# ---- whose memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000, LARGE, LARGE + 1])
def test_small_and_large_dispatches_give_the_same(backend, n):
    pipeline = compiled(backend, bump.program)
    x = arange(n)
    for _ in range(3):
        (out,) = pipeline.dispatch([x])
        assert np.array_equal(np.frombuffer(out, np.uint32), 2 * arange(n) + 1)
        assert np.array_equal(x, arange(n))


def test_a_warm_small_dispatch_takes_the_short_path(backend, monkeypatch):
    pipeline = compiled(backend, bump.program)
    x, target = arange(64), np.zeros(64, np.uint32)
    pipeline.dispatch([x])
    pipeline.dispatch([x], out=[target])
    monkeypatch.setattr(type(pipeline.native), "finish", None)
    assert np.array_equal(np.frombuffer(pipeline.dispatch([x])[0], np.uint32), 2 * x + 1)
    target[:] = 0
    assert pipeline.dispatch([x], out=[target])[0] is target
    assert np.array_equal(target, 2 * x + 1)


@pytest.mark.parametrize("n", [64, LARGE])
def test_results_go_straight_to_the_callers_memory(backend, n):
    pipeline = compiled(backend, bump.program)
    x, target = arange(n), np.full(n, 9, np.uint32)
    for _ in range(2):
        assert pipeline.dispatch([x], out=[target])[0] is target
        assert np.array_equal(target, 2 * x + 1)
    for k in range(1, 4):
        pipeline.dispatch([x], out=[x])  # in place
        assert np.array_equal(x, arange(n) + k * (arange(n) + 1))


@pytest.mark.parametrize("n", [64, LARGE])
def test_results_that_lie_across_an_input_do_not_disturb_it(backend, n):
    pipeline = compiled(backend, behind.program)
    pipeline.dispatch([arange(n)], out=[np.zeros(n, np.uint32)])
    for _ in range(2):
        x = arange(n) + 1
        pipeline.dispatch([x], out=[x])
        assert np.array_equal(x, arange(n))
        x = arange(n + 1) + 1
        pipeline.dispatch([x[1:]], out=[x[:-1]])
        assert np.array_equal(x, [0, *range(2, n + 1), n + 1])
        x = arange(n + 3) + 1
        pipeline.dispatch([x[:-3]], out=[x[3:]])
        assert np.array_equal(x, [1, 2, 3, *range(n)])


@pytest.mark.parametrize("n", [64, LARGE])
def test_memory_that_is_not_aligned_is_copied(backend, monkeypatch, n):
    pipeline = compiled(backend, bump.program)
    raw = bytearray(4 * n + 1)
    memoryview(raw)[1:] = arange(n).tobytes()
    for _ in range(2):
        odd = memoryview(raw)[1:]
        assert np.array_equal(np.frombuffer(pipeline.dispatch([odd])[0], np.uint32), 2 * arange(n) + 1)
        target = bytearray(4 * n + 1)
        pipeline.dispatch([arange(n)], out=[memoryview(target)[1:]])
        assert np.array_equal(np.frombuffer(target[1:], np.uint32), 2 * arange(n) + 1)
    monkeypatch.setattr(type(pipeline.native), "finish", lambda *_: 1 / 0)  # machine code must not see it
    for call in (
        lambda: pipeline.native.dispatch([odd], pipeline.config),
        lambda: pipeline.native.dispatch([arange(n)], pipeline.config, out=[memoryview(target)[1:]]),
    ):
        with pytest.raises(ZeroDivisionError):
            call()
    pipeline.dispatch([arange(n)])


def test_a_wrong_number_of_buffers_is_refused_also_when_warm(backend):
    native = backend.compile_native(ADD, DispatchConfig())
    a, target = arange(64), np.zeros(64, np.uint32)
    native.dispatch([a, a], out=[target])
    native.dispatch([a, a])
    for inputs, out in (([a], [a, target]), ([a, a, a], []), ([a], None), ([a, a, a], None)):
        with pytest.raises(ArgumentValueError, match=r"received [013].*Fix: "):
            native.dispatch(inputs, out=out)
    assert np.array_equal(a, arange(64))


def test_a_read_only_target_is_refused_also_when_warm(backend):
    native = backend.compile_native(ADD, DispatchConfig())
    a = arange(64)
    native.dispatch([a, a], out=[np.zeros(64, np.uint32)])
    with pytest.raises(ArgumentTypeError, match=r"read-only.*Fix: "):
        native.dispatch([a, a], out=[bytes(256)])


def test_scattered_inputs_are_gathered(backend):
    pipeline = compiled(backend, bump.program)
    for _ in range(2):
        (out,) = pipeline.dispatch([np.repeat(arange(64), 2)[::2]])
        assert np.array_equal(np.frombuffer(out, np.uint32), 2 * arange(64) + 1)


def test_slots_take_results(backend):
    slot = OutputSlot(8)
    for n in (2, 64, 2):
        backend.dispatch(bump.program, [arange(n)], out=[slot])
        assert bytes(slot) == (2 * arange(n) + 1).tobytes()


def test_results_are_buffers_of_bytes_that_the_caller_owns(backend):
    for n in (64, LARGE):
        (out,) = backend.dispatch(bump.program, [arange(n)])
        view = memoryview(out)
        assert (view.nbytes, view.readonly, view.format, view.ndim) == (4 * n, False, "B", 1)
        view[0] = 77
        assert backend.dispatch(bump.program, [arange(n)])[0] == (2 * arange(n) + 1).tobytes()


@pytest.mark.parametrize("n", [4, LARGE])
def test_the_host_may_see_a_range_of_an_output(backend, n):
    ranged = write_only("out", 0, u32_type, n).replace(output_byte_range=(5, 4 * n - 3))
    program = Program([ranged], (4, 1, 1), [Store("out", GID, GID + lit(1))])
    (out,) = backend.dispatch(program, [])
    assert bytes(out) == (arange(n) + 1).tobytes()[5:-3]
    target = bytearray(4 * n - 8)
    backend.dispatch(program, [], out=[target])
    assert target == out


def test_buffers_without_elements_are_bound(backend):
    for _ in range(2):
        assert backend.dispatch(bump.program, [b""]) == [b""]
        target = bytearray()
        assert backend.dispatch(shifted.program, [b""], out=[target]) == [b""]
        assert backend.dispatch(histogram.program, [b"", words(5)]) == [words(5)]


# ---- what the pool never shows --------------------------------------------------------------------------------------


@pytest.fixture
def poisoned(backend):
    """A pool whose idle pages are all 0xA5."""

    def poison():
        held = [backend.pages.take(4 * LARGE * k, "poison", zeroed=False)[0] for k in (1, 2, 4) for _ in range(2)]
        for block in held:
            memoryview(block)[:] = b"\xa5" * memoryview(block).nbytes
        del block, held
        gc.collect()
        assert backend.pages.idle_bytes > 0

    return poison


def test_a_pooled_result_is_zero_where_nothing_was_stored(backend, poisoned):
    x = arange(LARGE // 2)
    pipeline = compiled(backend, halves.program, DispatchConfig(output_elements={"out": LARGE}))
    for _ in range(3):
        poisoned()
        (out,) = pipeline.dispatch([x])
        found = np.frombuffer(out, np.uint32)
        assert np.array_equal(found[::2], x)
        assert not found[1::2].any()


def test_a_pooled_result_is_zero_beyond_a_grid_that_is_too_small(backend, poisoned):
    x = arange(LARGE)
    for groups in (1, LARGE // 64 - 1, LARGE // 64):
        poisoned()
        (out,) = backend.dispatch(shifted.program, [x], DispatchConfig(grid_override=(groups, 1, 1)))
        found, stored = np.frombuffer(out, np.uint32), 64 * groups
        assert np.array_equal(found[: stored - 1], x[1:stored])
        assert not found[stored:].any()


def test_the_callers_memory_is_zero_where_nothing_was_stored(backend):
    for n in (64, LARGE):
        target = np.zeros(n, np.uint32)
        for _ in range(2):
            target[:] = 0xA5A5A5A5
            backend.dispatch(halves.program, [arange(n // 2)], out=[target])
            assert np.array_equal(target[::2], arange(n // 2))
            assert not target[1::2].any()


def test_pages_come_back_when_nobody_looks_at_a_result_any_more(backend):
    (out,) = backend.dispatch(bump.program, [arange(LARGE)])
    part = np.frombuffer(out, np.uint32)[5:10]
    del out
    before = part.tolist()
    others = [backend.dispatch(bump.program, [arange(LARGE)])[0] for _ in range(3)]
    assert part.tolist() == before
    idle = backend.pages.idle_bytes
    del part, others
    gc.collect()
    assert backend.pages.idle_bytes > idle
    reused = backend.metrics()["pooled_results_reused"]
    backend.dispatch(bump.program, [arange(LARGE)])
    assert backend.metrics()["pooled_results_reused"] == reused + 1


def test_a_pool_keeps_no_more_than_its_limit():
    pages = memory.HostPool(kept_bytes=4 * memory.POOLED_BYTES)
    held = [pages.take(memory.POOLED_BYTES, "a test", zeroed=True)[0] for _ in range(8)]
    held.clear()
    gc.collect()
    assert pages.idle_bytes == 4 * memory.POOLED_BYTES
    pages.close()
    assert pages.idle_bytes == 0
    pages.take(memory.POOLED_BYTES, "a test", zeroed=True)
    assert pages.idle_bytes == 0


def test_no_memory_is_an_error_that_says_so(monkeypatch):
    def full(*_, **__):
        raise OSError("out of it")

    monkeypatch.setattr(memory.mmap, "mmap", full)
    backend = CpuBackend(threads=2)
    for _ in range(2):
        with pytest.raises(DeviceOutOfMemory, match=r"no memory for buffer 'n' .*Fix: "):
            backend.dispatch(bump.program, [arange(LARGE)])
    with pytest.raises(DeviceOutOfMemory, match=r"no memory for a test .*Fix: "):
        memory.HostPool().take(1 << 62, "a test", zeroed=True)
