"""Results that go past the cache: which stores do, when a launch asks for it, and that no byte depends on it."""

import re

import numpy as np
import pytest

import vyre
from vyre import In, Out, barrier, f32, gid, i32, lid, shared, u8, u16, u32, u64
from vyre.backends.cpu import CpuBackend
from vyre.backends.cpu.abi import NEXT
from vyre.backends.cpu.compile import compile_object
from vyre.backends.cpu.device import ffi, load
from vyre.backends.cpu.devices import host
from vyre.backends.cpu.emit import access
from vyre.backends.cpu.emit.kernel import Target, emit
from vyre.backends.cpu.run import warm
from vyre.backends.cpu.run.launch import LaunchWords, lengths_of
from vyre.driver.contract.values import DispatchConfig
from vyre.foundation.ir.dtypes import u32 as u32_type
from vyre.foundation.ir.nodes import InvocationId, Load, Store, lit
from vyre.foundation.ir.program import Program, read, write_only
from vyre.lower import LowerOptions, lower
from vyre.lower.kernel_ir import walk

from ...support.cpu_kernels import arange, bump, compiled, halves, scaled, scaled_wide, shifted

pytestmark = pytest.mark.skipif(not host().x86, reason="stores past the cache are made on x86")
WIDTHS = (4, 8, 16)
HINT = "!nontemporal"
FENCE = b"\x0f\xae\xf8"
SIZES = (1, 3, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000, 4096, 4099)


@vyre.kernel(workgroup=1)
def running(x: In[u32], out: Out[u32]):
    share = len(x) // 4
    total = u32(0)
    for k in range(share):
        total += x[gid.x * share + k]
        out[gid.x * share + k] = total


@vyre.kernel(workgroup=1)
def running_floats(x: In[f32], out: Out[f32]):
    share = len(x) // 4
    total = f32(0)
    for k in range(share):
        total += x[gid.x * share + k]
        out[gid.x * share + k] = total


@vyre.kernel(workgroup=1)
def running_bytes(x: In[u8], out: Out[u8]):
    share = len(x) // 4
    total = u32(0)
    for k in range(share):
        total += u32(x[gid.x * share + k])
        out[gid.x * share + k] = u8(total)


@vyre.kernel(workgroup=64)
def both(x: In[u32], low: Out[u16], high: Out[u64]):
    low[gid.x] = u16(x[gid.x])
    high[gid.x] = u64(x[gid.x]) * u64(3)


@vyre.kernel(workgroup=64)
def looked_up(x: In[u32], out: Out[u32]):
    """All over memory, so that it runs lane by lane."""
    out[gid.x] = x[x[x[x[gid.x]]]]


@vyre.kernel(workgroup=64)
def twice(x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x]
        if x[gid.x] > 7:
            out[gid.x] = 7


@vyre.kernel(workgroup=64)
def some(x: In[u32], out: Out[u32]):
    if x[gid.x] > 7:
        out[gid.x] = x[gid.x]


@vyre.kernel(workgroup=64)
def turned(x: In[i32], out: Out[i32]):
    tile = shared(i32, 64)
    tile[lid.x] = x[gid.x]
    barrier()
    out[gid.x] = tile[63 - lid.x]


def sized(workgroup):
    """out[i] = a[i] + b[i] with guards, in workgroups of any size."""
    at = InvocationId(0)
    body = [Store("out", at, Load("a", at) + Load("b", at))]
    return Program([read("a", 0, u32_type), read("b", 1, u32_type), write_only("out", 2, u32_type)], workgroup, body)


def text_of(program, width=16, **options):
    return emit(lower(program), Target(width=width, mxcsr=True, **options)).text


def version(text, name):
    """The lines of one function, or nothing."""
    found = re.search(rf"^define internal i1 @{name}\(.*?^}}$", text, re.M | re.S)
    return found.group() if found else ""


# ---- which stores ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kernel", [scaled, shifted, scaled_wide, turned, running, running_floats])
def test_a_result_that_is_filled_in_order_has_a_version_past_the_cache(kernel, width):
    text = text_of(kernel.program, width)
    assert HINT in version(text, "stream")
    assert text.count(HINT) == version(text, "stream").count(HINT)
    assert text.count(f"call void @{access.FENCE}()") == 1


@pytest.mark.parametrize("kernel", [bump, halves, twice, some, running_bytes, looked_up])
def test_what_is_read_scattered_stored_twice_in_part_or_now_and_then_has_none(kernel):
    text = text_of(kernel.program)
    assert HINT not in text
    assert not version(text, "stream")
    assert access.FENCE not in text


def test_code_that_looks_at_a_deadline_has_it_too():
    text = emit(lower(running.program, LowerOptions(poll=True)), Target(width=16, mxcsr=True)).text
    assert HINT in version(text, "stream")
    assert "%polls" in version(text, "stream")


def test_other_processors_have_none():
    text = emit(
        lower(
            scaled.program,
        ),
        Target(width=4, mxcsr=False),
    ).text
    assert HINT not in text
    assert access.FENCE not in text


def test_a_body_that_is_long_is_not_compiled_twice():
    at = InvocationId(0)

    def program(steps):
        value = Load("a", at)
        for k in range(steps):
            value = value * lit(2 * k + 3) + Load("a", at)
        return Program([read("a", 0, u32_type), write_only("out", 1, u32_type)], (64, 1, 1), [Store("out", at, value)])

    for steps in range(1, 64):
        long = len(list(walk(lower(program(steps)).body))) > access._LIGHT
        assert (HINT in text_of(program(steps))) == (not long)
    assert long


@pytest.mark.parametrize("workgroup, width, goes", [(64, 16, True), (4, 16, True), (100, 16, True), (6, 16, False)])
def test_workgroups_begin_at_whole_pieces_or_there_is_none(workgroup, width, goes):
    assert (HINT in text_of(sized((workgroup, 1, 1)), width)) == goes


def test_pieces_are_as_long_as_they_are_aligned():
    found = version(text_of(both.program), "stream")
    assert re.findall(r"store (<.*?>) .*align 16, !nontemporal", found) == ["<8 x i16>"] * 2 + ["<2 x i64>"] * 8


def test_the_machine_code_has_the_fence_and_the_stores():
    assert FENCE in compile_object(text_of(scaled.program))
    assert b"\x0f\xc3" in compile_object(text_of(running.program))  # movnti
    assert FENCE not in compile_object(text_of(halves.program))


# ---- which version runs ---------------------------------------------------------------------------------------------


def launched(text, target, x, *, streams, workgroup=64):
    """One launch of a kernel with an input and a result."""
    code, launch = load(compile_object(text)), LaunchWords(2, 4096)
    launch.buffers[0], launch.buffers[1] = ffi.from_buffer(x), ffi.from_buffer(target)
    launch.aim(lengths_of([len(x), len(target)]), (-(-len(x) // workgroup), 1, 1), 4, streams)
    launch.hold = text, target, x
    launch.shared[NEXT] = 0
    code.run(launch.shared, launch.first)


def without(text, name):
    """A module whose version `name` does nothing."""
    body = version(text, name)
    assert body
    head = body.splitlines()[0]
    return text.replace(body, f"{head}\n  ret i1 false\n}}")


@pytest.mark.parametrize("offset, streams, runs", [(0, 1, 1), (0, 0, 0), (4, 1, 1), (1, 1, 0), (2, 1, 0), (3, 1, 0)])
def test_the_version_past_the_cache_runs_when_asked_and_aligned(offset, streams, runs):
    x = np.linspace(-9, 9, 4096, dtype=np.float32)
    space = np.zeros(4096 + 32, np.float32)
    begin = (-space.ctypes.data % 64) // 4 + offset
    text = text_of(scaled.program, host().vector_bits // 32)
    for name, right in (("stream", not runs), ("fast", runs)):
        target = space[begin : begin + 4096]
        target[:] = 7
        launched(without(text, name), target, x, streams=streams)
        assert np.array_equal(target, x / 2) == right


@pytest.mark.parametrize("offset", range(4))
def test_single_elements_need_no_more_than_their_own_alignment(offset):
    x, space = arange(4096), np.zeros(4096 + 4, np.uint32)
    text = text_of(running.program, host().vector_bits // 32)
    target = space[offset : offset + 4096]
    for name, right in (("stream", False), ("fast", True)):
        target[:] = 7
        launched(without(text, name), target, x, streams=1, workgroup=1024)
        want = np.cumsum(x.reshape(4, -1), axis=1, dtype=np.uint32).reshape(-1)
        assert np.array_equal(target, want) == right


# ---- bytes through the backend --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def backend():
    made = CpuBackend(threads=3)
    yield made
    made.shutdown()


@pytest.fixture(params=[0, 1 << 62], ids=["past the cache", "plain"])
def always(request, monkeypatch):
    monkeypatch.setattr(warm, "STREAM_BYTES", request.param)


def places(n, dtype, offset):
    """An array of n elements that begins `offset` elements after a line, and what lies around it."""
    size = np.dtype(dtype).itemsize
    space = np.full(n + 64 + 64 // size, 9, dtype)
    begin = (-space.ctypes.data % 64) // size + 16 + offset
    return space[begin : begin + n], (space[:begin], space[begin + n :])


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4, 7, 12])
def test_any_length_at_any_place_is_stored_whole_and_nothing_else(backend, offset):
    pipeline = compiled(backend, sized((64, 1, 1)))
    for n in SIZES:
        a, b = arange(n) * 7, arange(n)[::-1].copy()
        target, around = places(n, np.uint32, offset)
        for _ in range(2):  # new, and warm
            target[:] = 1
            pipeline.dispatch([a, b], out=[target])
            assert np.array_equal(target, a + b)
            assert all((x == 9).all() for x in around)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("workgroup", [1, 4, 6, 7, 12, 64, 100, 256])
def test_workgroups_of_any_size_give_the_same(backend, workgroup):
    pipeline = compiled(backend, sized((workgroup, 1, 1)))
    for n in SIZES:
        a, b = arange(n) * 7, arange(n)[::-1].copy()
        (out,) = pipeline.dispatch([a, b])
        assert np.array_equal(np.frombuffer(out, np.uint32), a + b)


@pytest.mark.usefixtures("always")
def test_results_of_every_size_of_element(backend):
    pipeline = compiled(backend, both.program)
    for n in SIZES:
        x = arange(n) * 0x01010101
        for offset in (0, 1, 4):
            low, high = places(n, np.uint16, offset)[0], places(n, np.uint64, offset)[0]
            pipeline.dispatch([x], out=[low, high])
            assert np.array_equal(low, x.astype(np.uint16))
            assert np.array_equal(high, x.astype(np.uint64) * 3)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("timeout", [None, 60.0])
@pytest.mark.parametrize("n", [4 * 5, 4 * 1000, 1 << 20])
def test_shares_are_the_same_with_and_without_a_deadline(backend, n, timeout):
    x = arange(n) * 0x9E3779B1
    config = DispatchConfig(timeout=timeout, grid_override=(4, 1, 1))
    pipeline = compiled(backend, running.program, config)
    want = np.cumsum(x.reshape(4, -1), axis=1, dtype=np.uint32).reshape(-1)
    for offset in (0, 1):
        target, around = places(n, np.uint32, offset)
        pipeline.dispatch([x], config, out=[target])
        assert np.array_equal(target, want)
        assert all((x == 9).all() for x in around)
    assert np.array_equal(np.frombuffer(pipeline.dispatch([x], config)[0], np.uint32), want)


@pytest.mark.usefixtures("always")
def test_many_threads_see_what_others_have_stored(backend):
    pipeline = compiled(backend, sized((256, 1, 1)))
    n = (1 << 22) + 5
    b = arange(n)
    for k in range(4):
        a = arange(n) + k
        assert np.array_equal(np.frombuffer(pipeline.dispatch([a, b])[0], np.uint32), a + b)
        assert np.array_equal(np.frombuffer(pipeline.dispatch_async([a, b]).result()[0], np.uint32), a + b)


@pytest.mark.parametrize("short, asks", [(0, True), (1, False)])
def test_results_of_the_size_of_a_cache_ask_for_it(backend, monkeypatch, short, asks):
    monkeypatch.setattr(warm, "STREAM_BYTES", 4096)
    asked = []
    aim = LaunchWords.aim
    monkeypatch.setattr(LaunchWords, "aim", lambda self, *given: (asked.append(given[-1]), aim(self, *given))[1])
    pipeline = compiled(backend, sized((64, 1, 1)))
    x = arange(1024 - short)
    pipeline.dispatch([x, x])
    pipeline.dispatch([x, x], out=[np.zeros_like(x)])
    assert set(asked) == {asks}


def test_results_that_are_also_read_do_not_count(backend, monkeypatch):
    monkeypatch.setattr(warm, "STREAM_BYTES", 4)
    asked = []
    aim = LaunchWords.aim
    monkeypatch.setattr(LaunchWords, "aim", lambda self, *given: (asked.append(given[-1]), aim(self, *given))[1])
    compiled(backend, bump.program).dispatch([arange(1024)])
    assert set(asked) == {False}
