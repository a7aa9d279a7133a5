"""Launches that differ from earlier ones in numbers, sizes or the grid alone: planned in little, right in all."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vyre
from vyre import In, InOut, Out, const, f32, f64, gid, u32
from vyre.driver.counters import counters
from vyre.driver.plan.extent import Extent, confined, line_of
from vyre.driver.plan.reach import reach_of
from vyre.errors import Trap, VyreError

PLACES = ("host", "device")


@vyre.kernel(workgroup=64)
def scale(by: f32, x: In[f32], out: Out[f32]):
    i = gid.x
    if i < len(out):
        out[i] = by * x[i]


@vyre.kernel(workgroup=64)
def first(n: u32, x: In[u32], out: Out[u32]):
    i = gid.x
    if i < n and i < len(x):
        out[i] = x[i] + n


@vyre.kernel(workgroup=(4, 2))
def cells(width: u32, out: InOut[u32]):
    if gid.x < width and gid.y * width + gid.x < len(out):
        out[gid.y * width + gid.x] += 1 + gid.x


@vyre.kernel(workgroup=32)
def shifted(x: In[u32], out: Out[u32], sums: InOut[u32]):
    i = gid.x
    if i < len(out) and i < len(x) and i < len(sums):
        out[i] = x[len(x) - 1 - i]
        sums[i] = sums[i] * 3 + x[i]


@vyre.kernel(workgroup=32)
def checked(x: In[u32], sums: InOut[u32]):
    i = gid.x
    if i < len(sums):
        assert x[i] < 1000, "too large"
        sums[i] = sums[i] + x[i]


def at(place, array):
    return vyre.to_device(array, "cpu") if place == "device" else array


def host(array):
    return array if isinstance(array, np.ndarray) else array.numpy()


# ---- what is planned -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_new_numbers_domains_and_sizes_open_no_route_and_compile_nothing(place):
    on = scale.on("cpu")
    x, out = np.arange(300, dtype=np.float32), np.zeros(300, np.float32)
    given, into = at(place, x), at(place, out)
    on(1.5, given, out=into)
    on(1.5, given, out=into, domain=64)
    before, pipelines = counters(), len(on._pipelines)
    for k in range(40):
        on(k / 7, given, out=into)
        np.testing.assert_array_equal(host(into), np.float32(k / 7) * x)
        on(k / 3, given, out=into, domain=5 * k + 1)
        reached = min(-(-(5 * k + 1) // 64) * 64, 300)
        expected = np.where(np.arange(300) < reached, np.float32(k / 3) * x, np.float32(0))
        np.testing.assert_array_equal(host(into), expected)
        part, part_into = at(place, x[k:]), at(place, out[k:])
        on(2.0, part, out=part_into)
        np.testing.assert_array_equal(host(part_into), 2 * x[k:])
    after = counters()
    assert after["routes_opened"] == before["routes_opened"]
    assert len(on._pipelines) == pipelines
    assert after["plain_dispatches"] - before["plain_dispatches"] == 120


def test_a_number_that_says_how_much_runs_is_planned_for():
    on, x = first.on("cpu"), np.arange(500, dtype=np.uint32)
    routes = None
    for n in (1, 63, 64, 65, 499, 500, 501, 70):
        out = on(n, x)
        expected = np.where(np.arange(500) < n, x + n, 0)
        np.testing.assert_array_equal(out, expected)
        routes = routes or counters()["routes_opened"]
    assert counters()["routes_opened"] == routes


@pytest.mark.parametrize("domain", [0, 1, (3, 2), (4, 2), (5, 3), (1000, 1), (0, 7)])
def test_every_domain_of_two_axes_gives_what_a_new_kernel_gives(domain):
    for earlier in ((4, 4), (9, 1)):
        warm, fresh = np.zeros(60, np.uint32), np.zeros(60, np.uint32)
        cells.on("cpu")(7, warm, domain=earlier)
        warm[:] = 0
        cells.on("cpu")(7, warm, domain=domain)
        cells.on("reference")(7, fresh, domain=domain)
        np.testing.assert_array_equal(warm, fresh)


def test_sizes_that_do_not_fit_are_refused_after_ones_that_do():
    on, x = scale.on("cpu"), np.ones(64, np.float32)
    on(1.0, x, out=np.zeros(64, np.float32))
    compiled = vyre.compile(shifted.program, backend="cpu")
    words = np.arange(8, dtype=np.uint32)
    for _ in range(2):
        compiled.dispatch([words, words], out=[bytearray(32), bytearray(32)])
        with pytest.raises(VyreError, match="no multiple of 4"):
            compiled.dispatch([words.view(np.uint8)[:31], words], out=[bytearray(32), bytearray(32)])
        with pytest.raises(VyreError, match="read-only"):
            compiled.dispatch([words, words], out=[bytes(32), bytearray(32)])
        with pytest.raises(VyreError, match=r"has 32 bytes and the buffer given for it 28"):
            compiled.dispatch([words, words], out=[bytearray(32), bytearray(28)])
        with pytest.raises(VyreError, match="overflowed u32"):
            compiled.dispatch_over(
                [words, words], [bytearray(32), bytearray(32)], ((1 << 30, 1, 1), 32, 32, None, 32, 32), None
            )
        with pytest.raises(VyreError, match="three numbers"):
            compiled.dispatch_over([words, words], [bytearray(32), bytearray(32)], ((), 32, 32, None, 32, 32), None)
        with pytest.raises(VyreError, match="zero"):
            compiled.dispatch_over(
                [words, words], [bytearray(32), bytearray(32)], ((0, 1, 1), 32, 32, None, 32, 32), None
            )


@pytest.mark.parametrize("kernel", [scale, first, shifted])
@given(st.lists(st.integers(0, 1 << 20), min_size=3, max_size=3), st.integers(0, (1 << 32) - 1))
@settings(max_examples=40, deadline=None)
def test_a_line_goes_as_far_as_the_whole_analysis_says(kernel, sizes, number):
    program = kernel.program
    reach, line = reach_of(program), line_of(program)
    names = [b.name for b in program.buffers if b.name not in ("by", "n")]
    lengths, numbers = dict(zip(names, sizes, strict=False)), {"n": number}
    extent = Extent(reach, lengths | {"by": 1, "n": 1}, numbers)
    found = [confined(extent.limits(w, 0)) for w in reach.writes]
    assert line is not None
    told = line.ids(lengths, numbers)
    assert told == (None if None in found else (max(found), reach.writes[found.index(max(found))].buffer))


@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=2), st.lists(st.integers(0, 40), min_size=2, max_size=2), st.data()
)
@settings(max_examples=80, deadline=None)
def test_lengths_after_a_pattern_give_what_a_new_pipeline_gives(elements, out_bytes, data):
    """Whatever the lengths are: the same bytes, or the same error."""
    grid = data.draw(st.sampled_from([None, (1, 1, 1), (3, 1, 1), (2, 1, 1)]))
    inputs = [np.arange(n, dtype=np.uint32).tobytes() for n in elements]
    if data.draw(st.booleans()):
        out_bytes = [4 * elements[0], 4 * elements[1]]
    found, mine = [], patterned()
    for pipeline in (mine, vyre.compile(shifted.program, backend="reference")):
        out = [bytearray(b"\7" * n) for n in out_bytes]
        config = vyre.DispatchConfig(grid_override=grid)
        try:
            if pipeline is mine and grid is not None:
                key = (grid, *map(len, inputs), None, *map(len, out))
                found.append([bytes(b) for b in pipeline.dispatch_over(inputs, out, key, None)])
            else:
                found.append([bytes(b) for b in pipeline.dispatch(inputs, config, out=out)])
        except VyreError as e:
            found.append((type(e), e.message))
    assert found[0] == found[1]


def test_memory_that_a_warm_dispatch_does_not_take_is_dispatched_over_after_a_pattern_too():
    mine, reference = patterned(), vyre.compile(shifted.program, backend="reference")
    for _ in range(2):
        for n, grid in itertools.product((4, 9, 70), ((1, 1, 1), (2, 1, 1), (3, 1, 1))):
            x = np.arange(n, dtype=np.uint32)
            expected = [bytearray(4 * n), bytearray(4 * n)]
            reference.dispatch([x, x + 5], vyre.DispatchConfig(grid_override=grid), out=expected)
            key = grid, 4 * n, 4 * n, None, 4 * n, 4 * n
            for place in ("apart", "off by one", "over its input"):
                given, into = x.copy(), np.empty(n, np.uint32)
                out = {
                    "off by one": np.zeros(4 * n + 1, np.uint8)[1:],
                    "over its input": given,
                }.get(place, np.ones(n, np.uint32))
                mine.dispatch_over([given, x + 5], [out, into], key, None)
                assert [bytes(out), bytes(into)] == [bytes(b) for b in expected]
                with pytest.raises(VyreError, match="share memory"):
                    mine.dispatch_over([given, x + 5], [into, into], key, None)
                out.flags.writeable = False
                with pytest.raises(VyreError, match="read-only"):
                    mine.dispatch_over([given, x + 5], [out, into], (grid, 4 * n, 4 * n, None, -1, 4 * n), None)


def patterned():
    """A pipeline that has planned dispatches after its own grid, and after grids that come with the call."""
    made, words = vyre.compile(shifted.program, backend="cpu"), bytes(16)
    made.dispatch([words, words], out=[bytearray(16), bytearray(16)])
    made.dispatch_over([words, words], [bytearray(16), bytearray(16)], ((1, 1, 1), 16, 16, None, 16, 16), None)
    return made


# ---- at once ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_threads_that_call_one_kernel_with_other_numbers_sizes_and_domains_get_their_own(place):
    on = scale.on("cpu")
    base = np.arange(5000, dtype=np.float32)

    def calls(k):
        rng = np.random.default_rng(k)
        size = 64 + 7 * k
        x = at(place, base[:size])
        out = at(place, np.zeros(size, np.float32))
        for _ in range(150):
            by = float(rng.integers(1, 1000))
            if rng.integers(2):
                on(by, x, out=out)
            else:
                on(by, x, out=out, domain=size + int(rng.integers(500)))
            np.testing.assert_array_equal(host(out), np.float32(by) * base[:size])
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(calls, range(8)))


# ---- in place --------------------------------------------------------------------------------------------------------


def copied(kernel, x, out, sums):
    """What a call gives where nothing shares memory."""
    out, sums = out.copy(), sums.copy()
    kernel.on("reference")(x.copy(), sums, out=out)
    return out, sums


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_views_that_overlap_in_any_way_give_what_copies_give(data):
    base = np.arange(256, dtype=np.uint32) * 7919
    size = data.draw(st.integers(1, 70))
    starts = [data.draw(st.integers(0, 100)) for _ in range(3)]
    if data.draw(st.booleans()):
        starts[1] = starts[0]
    if data.draw(st.booleans()):
        starts[2] = starts[0]
    shared = base.copy()
    x, out, sums = (shared[s : s + size] for s in starts)
    if np.shares_memory(out, sums):
        with pytest.raises(VyreError, match="both written and share memory"):
            shifted.on("cpu")(x, sums, out=out)
        np.testing.assert_array_equal(shared, base)
        return
    expected = copied(shifted, x, out, sums)
    shifted.on("cpu")(x, sums, out=out)
    for got, wanted in zip((out, sums), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
    untouched = np.ones(256, bool)
    for s in starts[1:]:
        untouched[s : s + size] = False
    np.testing.assert_array_equal(shared[untouched], base[untouched])


@vyre.kernel(workgroup=32)
def mirrored(x: In[u32], sums: InOut[u32]):
    i = gid.x
    if i < len(sums):
        sums[i] = sums[i] * 3 + x[len(x) - 1 - i]


def test_one_array_as_input_and_updated_gives_what_copies_give():
    for place in PLACES:
        x = np.arange(100, dtype=np.uint32)
        array, expected = at(place, x), x * 3 + x[::-1]
        mirrored.on("cpu")(array, array)
        np.testing.assert_array_equal(host(array), expected)


def test_an_updated_array_is_worked_in_where_it_lies():
    x = np.arange(1 << 20, dtype=np.uint32)
    on, taken = cells.on("cpu"), []
    on(4, x, domain=(4, 1))
    pages = vyre.acquire("cpu").inner.pages
    before = type(pages).take
    type(pages).take = lambda self, *args, **named: taken.append(args) or before(self, *args, **named)
    try:
        on(4, x, domain=(4, 1))
    finally:
        type(pages).take = before
    assert not taken
    np.testing.assert_array_equal(x[:5], [2, 5, 8, 11, 6])


@pytest.mark.parametrize("place", PLACES)
def test_a_trap_leaves_updated_arrays_as_they_were(place):
    x, sums = np.arange(200, dtype=np.uint32), np.full(200, 5, np.uint32)
    x[150] = 5000
    given, into = at(place, x), at(place, sums)
    for _ in range(3):
        with pytest.raises(Trap, match="too large"):
            checked.on("cpu")(given, into)
        np.testing.assert_array_equal(host(into), 5)


def test_a_shadow_sees_updated_arrays_as_they_were(monkeypatch):
    monkeypatch.setenv("VYRE_SHADOW", "1")
    before = counters()["shadow_samples"]
    x, sums = np.arange(64, dtype=np.uint32), np.ones(64, np.uint32)
    for _ in range(3):
        expected = sums * 3 + x[::-1]
        mirrored.on("cpu")(x, sums)
        np.testing.assert_array_equal(sums, expected)
    assert counters()["shadow_samples"] == before + 3


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5)])
def test_arrays_of_bools_and_of_no_elements_are_updated(shape):
    @vyre.kernel
    def flipped(x: InOut[vyre.bool_]):
        if gid.x < len(x):
            x[gid.x] = not x[gid.x]

    x = np.zeros(shape, bool)
    assert flipped.on("cpu")(x) is x
    assert x.all()


# ---- device arrays in memory of the host -----------------------------------------------------------------------------


def test_results_of_device_arrays_are_device_arrays():
    x = vyre.to_device(np.arange(10, dtype=np.float32), "cpu")
    y = scale(2.0, x)
    z = scale.on("cpu")(0.5, y)
    assert type(y) is type(x)
    assert y.device == x.device
    np.testing.assert_array_equal(z.numpy(), x.numpy())


def test_a_freed_device_array_is_refused_by_a_warm_call():
    x, out = (vyre.to_device(np.ones(64, np.float32), "cpu") for _ in range(2))
    scale.on("cpu")(2.0, x, out=out)
    x.free()
    with pytest.raises(VyreError, match="was freed"):
        scale.on("cpu")(2.0, x, out=out)


def test_device_arrays_of_a_backend_that_was_shut_down_are_refused():
    x = vyre.to_device(np.ones(64, np.float32), "cpu")
    scale(2.0, x)
    x._home.backend.shutdown()
    with pytest.raises(VyreError, match="shut down"):
        scale(2.0, x)
    y = vyre.to_device(np.ones(64, np.float32), "cpu")
    np.testing.assert_array_equal(scale(2.0, y).numpy(), 2)


def test_a_kernel_that_only_another_device_may_run_refuses_these_arrays():
    x = vyre.to_device(np.ones(64, np.float32), "cpu")
    for _ in range(2):
        with pytest.raises(VyreError, match="lives on cpu"):
            scale.on("reference")(2.0, x)


def test_wrong_elements_are_named_as_those_of_a_device_array():
    x = vyre.to_device(np.ones(64, np.float64), "cpu")
    with pytest.raises(VyreError, match="pass a device array of float32"):
        scale.on("cpu")(2.0, x)


# ---- kernels that are generic over types -----------------------------------------------------------------------------

T = TypeVar("T", f32, f64)


@vyre.kernel(workgroup=64)
def scaled(by: T, x: In[T], out: Out[T], *, T: const = f32):  # noqa: N803
    i = gid.x
    if i < len(out):
        out[i] = by * x[i]


def test_a_generic_kernel_finds_the_one_of_its_types_again_and_of_no_others():
    on, compiled = scaled.on("cpu"), []
    for _ in range(3):
        for t, dtype in ((f32, np.float32), (f64, np.float64), (None, np.float32)):
            x = np.arange(5, dtype=dtype)
            found = on(1.5, x) if t is None else on(1.5, x, T=t)
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, dtype(1.5) * x)
            if t is not None:
                np.testing.assert_array_equal(scaled.on("reference")(1.5, x, T=t), found)
        compiled.append(counters()["routes_opened"])
        with pytest.raises(VyreError, match=r"parameter T of scaled is 3, not a type.*Fix: pass T="):
            on(1.5, x, T=3)
        with pytest.raises(VyreError, match=r"x holds float32 and the kernel declares f64"):
            on(1.5, x, T=f64)
    assert compiled[1:] == compiled[:1] * 2
    kernels = [on._chosen({"T": t}) for t in (f32, f64, f32)]
    assert kernels[0] is kernels[2] is not kernels[1]
    assert kernels[0].backend == "cpu"
    assert scaled._chosen({"T": f32}).backend is None
