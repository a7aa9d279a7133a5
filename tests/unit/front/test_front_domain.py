"""How much of a kernel runs where the caller does not say: every invocation that writes, or the call is refused."""

import numpy as np
import pytest

import vyre
from vyre import (
    In,
    InOut,
    Out,
    atomic_add,
    barrier,
    gid,
    i32,
    lid,
    saturating_sub,
    shared,
    static_range,
    trap,
    u32,
    wg,
)  # fmt: skip
from vyre.foundation.ir.nodes import InvocationId, Store, lit
from vyre.foundation.ir.program import Program, read_write

PLANE, SMALL = (10, 20), (4, 4)
WORD = np.uint32


@vyre.kernel(workgroup=(4, 4))
def two(width: u32, a: InOut[u32], b: InOut[u32]):
    if gid.x < width:
        a[gid.y * width + gid.x] = 1
        b[gid.y * width + gid.x] = 1


def zeros(*shape):
    return np.zeros(shape, WORD)


@pytest.mark.parametrize(
    "shapes", [(PLANE, PLANE), (SMALL, PLANE), (PLANE, SMALL), ((200,), PLANE), ((10, 20, 3), (7,))]
)
def test_every_row_of_every_result_is_written_whatever_shapes_they_have(shapes):
    a, b = zeros(*shapes[0]), zeros(*shapes[1])
    two(20, a, b)
    assert a.all()
    assert b.all()


@pytest.mark.parametrize("how", [{"domain": (20, 10)}, {"grid": (5, 3)}])
def test_a_caller_who_says_how_much_runs_may_differ(how):
    a, b = zeros(*SMALL), zeros(*PLANE)
    two(20, a, b, **how)
    assert a.all()
    assert b.all()


# ---- axes that the kernel reads -------------------------------------------------------------------------------------


@vyre.kernel(workgroup=(64, 1))
def rows(a: InOut[u32], width: u32):
    if gid.x < width:
        a[gid.y * width + gid.x] += 1 + gid.y


@vyre.kernel(workgroup=64)
def slabs(a: InOut[u32], width: u32, height: u32):
    if gid.x < width:
        a[(wg.z * height + gid.y) * width + gid.x] += 1


@pytest.mark.parametrize("shape", [(1000, 3), (1, 1), (5, 200)])
def test_a_kernel_that_reads_y_runs_for_every_row(shape):
    a = zeros(*shape)
    rows(a, shape[1])
    assert np.array_equal(a, np.broadcast_to(np.arange(1, shape[0] + 1)[:, None], shape))


def test_a_kernel_that_reads_z_runs_for_every_slab():
    a = zeros(3, 5, 70)
    slabs(a, 70, 5)
    assert (a == 1).all()


@pytest.mark.parametrize("shape", [(3000,), (2, 3, 4), (1000, 3)])
def test_lengths_decide_and_not_shapes(shape):
    a = zeros(*shape)
    rows(a, 3)
    assert a.all()


def test_device_arrays_have_the_same_domain():
    a = vyre.to_device(zeros(1000, 3), "cpu")
    rows(a, 3)
    assert a.numpy().all()
    rows(a, 1)  # a plan for one number is none for another
    assert np.array_equal(a.numpy().ravel(), np.arange(3000) // 3 + 1 + np.arange(3000) + 1)


def test_a_program_that_reads_y_needs_a_grid():
    program = Program([read_write("out", 0, vyre.u32, 8)], (4, 1, 1), [Store("out", InvocationId(1), lit(1))])
    with vyre.backends.cpu.REGISTRATION.open() as backend:
        with pytest.raises(
            vyre.InvalidProgram, match=r"reads the y axis has no natural grid.*Fix: pass .*grid_override"
        ):
            backend.dispatch(program, [bytes(32)])
        (out,) = backend.dispatch(program, [bytes(32)], vyre.DispatchConfig(grid_override=(1, 8, 1)))
    assert np.frombuffer(out, WORD).all()


# ---- one axis -------------------------------------------------------------------------------------------------------


@vyre.kernel(workgroup=8)
def scatter(place: In[u32], out: Out[u32]):
    if gid.x < len(place):
        i = gid.x
        out[place[i]] = i + 1


@vyre.kernel(workgroup=8)
def count(key: In[u32], counts: InOut[u32]):
    if gid.x < len(key):
        atomic_add(counts, key[gid.x], 1)


@vyre.kernel(workgroup=8)
def look_up(which: In[u32], table: In[u32], out: Out[u32]):
    out[gid.x] = table[which[gid.x]]


@vyre.kernel(workgroup=8)
def both(a: InOut[u32], b: InOut[u32]):
    a[gid.x] = 1
    b[gid.x] = 1


def test_every_element_that_an_invocation_reads_for_itself_has_one():
    place = np.full(200, 99, WORD)
    place[[0, 199]] = 5, 3
    found = scatter(place, sizes={"out": 16})
    assert found[[3, 5]].tolist() == [200, 1]


def test_atomics_count_every_element():
    counts = zeros(4)
    count(np.arange(1000, dtype=WORD) % 4, counts)
    assert counts.tolist() == [250] * 4


def test_two_results_of_one_axis_are_covered_to_the_last_element():
    for sizes in ((16, 200), (200, 16)):
        a, b = zeros(sizes[0]), zeros(sizes[1])
        both(a, b)
        assert a.all()
        assert b.all()


@pytest.mark.parametrize(
    "call, groups",
    [
        (
            lambda: look_up.explain(np.zeros(9, WORD), np.zeros(1000, WORD), sizes={"out": 9}),
            2,
        ),  # a table has no invocations
        (lambda: scatter.explain(np.zeros(17, WORD), sizes={"out": 8}), 3),
        (lambda: scatter.explain(np.zeros(8, WORD), sizes={"out": 17}), 1),
        (lambda: count.explain(np.zeros(17, WORD), zeros(8)), 3),
        (lambda: both.explain(zeros(8), zeros(17)), 3),
    ],
)
def test_no_more_runs_than_is_asked_for(call, groups):
    assert call().grid == (groups, 1, 1)


@vyre.kernel(workgroup=8)
def found_by_parts(x: In[u32], out: Out[u32]):
    i = wg.x * 8 + lid.x
    if i < len(x) and x[i] == 999:
        out[0] = i


@vyre.kernel(workgroup=8)
def found_elsewhere(x: In[u32], out: Out[u32]):
    i = gid.x + 1
    if i < len(x) and x[i] == 999:
        out[0] = i


def test_an_id_that_is_put_together_counts_as_the_id():
    x = np.arange(1000, dtype=WORD)
    assert found_by_parts(x, sizes={"out": 1}).tolist() == [999]
    assert found_elsewhere(x, sizes={"out": 1}).tolist() == [999]


# ---- what an index asks for: each kernel notes in `out` that it saw the 999 at the end of x -------------------------


@vyre.kernel(workgroup=8)
def by_pairs(x: In[u32], w: u32, out: Out[u32]):
    for k in range(2):
        if x[gid.x * 2 + k] == 999:
            out[0] = 1


@vyre.kernel(workgroup=8)
def halved(x: In[u32], w: u32, out: Out[u32]):
    if x[gid.x // 2] == 999 and gid.x % 2 == 1:
        out[0] = 1


@vyre.kernel(workgroup=8)
def in_rows(x: In[u32], w: u32, out: Out[u32]):
    for k in range(gid.x * w, gid.x * w + w):
        if x[k] == 999:
            out[0] = 1


@vyre.kernel(workgroup=8)
def from_the_end(x: In[u32], w: u32, out: Out[u32]):
    if x[len(x) - 1 - gid.x] == 999:
        out[0] = 1


@vyre.kernel(workgroup=8)
def moved(x: In[u32], w: u32, out: Out[u32]):
    i = gid.x
    i += w
    if x[min(i, len(x) - 1)] == 999 and x[gid.x] > 0:
        out[0] = 1


@vyre.kernel(workgroup=8)
def split(x: In[u32], w: u32, out: Out[u32]):
    row = gid.x // w
    column = gid.x % w
    if row > 0 and x[row * w + column] == 999:
        out[0] = 1


@vyre.kernel(workgroup=8)
def by_workgroup(x: In[u32], w: u32, out: Out[u32]):
    for k in range(4):
        if x[wg.x * 4 + k] == 999:
            out[0] = 1


@vyre.kernel(workgroup=8)
def to_the_left(x: In[u32], w: u32, out: Out[u32]):
    if gid.x > 0 and x[gid.x - 1] == 999:
        out[0] = 1


SEEN = [
    (by_pairs, 63),
    (halved, 250),
    (in_rows, 32),
    (from_the_end, 125),
    (moved, 125),
    (split, 125),
    (by_workgroup, 250),
    (to_the_left, 126),
]


@pytest.mark.parametrize("kernel, groups", SEEN, ids=lambda k: getattr(k, "__name__", None))
def test_what_is_written_elsewhere_runs_for_every_element_it_reads(kernel, groups):
    x = np.arange(1000, dtype=WORD)
    found = kernel(x, 4, sizes={"out": 1})
    assert found.tolist() == [1]
    assert kernel.explain(x, 4, sizes={"out": 1}).grid == (groups, 1, 1)


@vyre.kernel(workgroup=8)
def mixed(x: In[u32], w: u32, out: InOut[u32]):
    if x[gid.x ^ w] == 999:
        out[0] = 1


@vyre.kernel(workgroup=8)
def wrapped(x: In[u32], w: u32, out: InOut[u32]):
    if x[gid.x % len(x)] == 1:
        out[0] = 1


@vyre.kernel(workgroup=8)
def wrapped_inside(x: In[u32], w: u32, out: InOut[u32]):
    i = gid.x % len(x)
    if i < len(x) and x[i] == 1:
        atomic_add(out, 0, 1)


@vyre.kernel(workgroup=8)
def masked(x: In[u32], w: u32, out: InOut[u32]):
    if x[gid.x & 1023] == 1:
        out[0] = 1


@vyre.kernel(workgroup=8)
def clamped(x: In[u32], w: u32, out: InOut[u32]):
    atomic_add(out, 0, x[min(gid.x, len(x) - 1)])


@pytest.mark.parametrize("kernel", [mixed, wrapped, wrapped_inside, masked, clamped], ids=lambda k: k.__name__)
def test_an_index_that_does_not_say_how_far_ids_go_is_refused(kernel):
    x, out = np.ones(1000, WORD), zeros(1)
    with pytest.raises(
        vyre.ArgumentValueError,
        match=rf"^{kernel.__name__} writes out, and no index and no if around it says how far gid.x goes, nor does the "
        r"index of x, which it reads. Fix: pass domain=\(number of invocations\), such as domain=1000, or write inside "
        r"`if gid.x < n` of a length or number$",
    ):
        kernel(x, 64, out)
    kernel(x, 64, out, domain=1)


@vyre.kernel(workgroup=8)
def ticks(out: InOut[u32]):
    if gid.x % 2 == 0:
        atomic_add(out, 0, 1)


@vyre.kernel(workgroup=8)
def stops(out: InOut[u32]):
    if out[0] == gid.x % 7:
        trap("stop", 0)


@vyre.kernel(workgroup=8)
def one_group(x: In[u32], out: InOut[u32]):
    atomic_add(out, 0, x[lid.x])


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: ticks(zeros(1)), "ticks writes out"),
        (lambda: stops(zeros(1)), "stops traps"),
        (lambda: one_group(zeros(100), zeros(1)), "one_group writes out"),
    ],
)
def test_a_kernel_in_which_nothing_says_how_far_ids_go_is_refused(call, text):
    with pytest.raises(
        vyre.ArgumentValueError, match=rf"^{text}, .* goes. Fix: pass domain=\(number of invocations\), or write inside"
    ):
        call()


@vyre.kernel(workgroup=8)
def striding(x: In[u32], w: u32, out: InOut[u32]):
    for i in range(gid.x, len(x), 64):
        atomic_add(out, 0, x[i])


@vyre.kernel(workgroup=8)
def striding_by(x: In[u32], w: u32, out: InOut[u32]):
    if gid.x < len(x):
        for i in range(gid.x, len(x), w):
            atomic_add(out, 0, x[i])


@vyre.kernel(workgroup=8)
def walking(x: In[u32], w: u32, out: InOut[u32]):
    i = gid.x
    step = 2 * w - 64
    while i < len(x):
        atomic_add(out, 0, x[i])
        i += step


@vyre.kernel(workgroup=8)
def in_place(x: InOut[u32], w: u32, out: InOut[u32]):
    for i in range(gid.x, len(x), 64):
        x[i] += 1
        out[0] = 1000


@vyre.kernel(workgroup=8)
def by_groups(x: In[u32], w: u32, out: InOut[u32]):
    for row in range(wg.x, len(x) // 8, 8):
        atomic_add(out, 0, x[row * 8 + lid.x])


@pytest.mark.parametrize("kernel", [striding, striding_by, walking, in_place, by_groups], ids=lambda k: k.__name__)
def test_a_loop_that_would_meet_elements_again_is_refused_with_its_step(kernel):
    x, out = np.ones(1000, WORD), zeros(1)
    with pytest.raises(
        vyre.ArgumentValueError, match=r"steps of 64, and \d+ invocations would .*Fix: pass domain=64, so that"
    ):
        kernel(x, 64, out)
    kernel(x, 64, out, domain=64)
    assert out.tolist() == [1000]


@vyre.kernel(workgroup=8)
def strided_by_64(x: In[u32], out: InOut[u32]):
    if gid.x < 64:
        for i in range(gid.x, len(x), 64):
            atomic_add(out, 0, x[i])


@vyre.kernel(workgroup=8)
def later_pairs(x: In[u32], out: InOut[u32]):
    for j in range(gid.x + 1, len(x)):
        if x[gid.x] == x[j]:
            atomic_add(out, 0, 1)


@vyre.kernel(workgroup=8)
def pairs(x: In[u32], out: InOut[u32]):
    i = gid.x // len(x)
    j = gid.x % len(x)
    if i < len(x) and x[i] < x[j]:
        atomic_add(out, 0, 1)


@vyre.kernel(workgroup=8)
def chunks(x: In[u32], out: InOut[u32]):
    for i in range(gid.x * 3, min(gid.x * 3 + 3, len(x))):
        atomic_add(out, 0, x[i])


def test_loops_and_pairs_that_say_how_far_ids_go_run():
    x = np.arange(100, dtype=WORD) % 50
    for kernel, groups, wanted in (
        (strided_by_64, 8, x.sum()),
        (later_pairs, 13, 50),
        (pairs, 1250, 49 * 50 * 2),
        (chunks, 5, x.sum()),
    ):
        out = zeros(1)
        kernel(x, out)
        assert out.tolist() == [wanted], kernel
        assert kernel.explain(x, out).grid == (groups, 1, 1), kernel


@vyre.kernel
def counted(n: u32, hits: InOut[u32]):
    if gid.x < n:
        atomic_add(hits, 0, 1)


@vyre.kernel
def counted_down(n: i32, hits: InOut[u32]):
    if n - 1 - i32(gid.x) >= 0:
        atomic_add(hits, 0, 1)


def test_a_number_that_is_passed_says_how_far_ids_go():
    for kernel in (counted, counted_down):
        for n in (1000, 0, np.uint32(65), np.array(64), 1000):
            hits = zeros(1)
            kernel(n, hits)
            assert hits[0] == n
        assert kernel.explain(1000, hits).grid == (16, 1, 1)
    with pytest.raises(vyre.ArgumentValueError, match="n=-1 does not fit u32"):
        counted(-1, hits)
    on_device = vyre.to_device(zeros(1), "cpu")
    for n in (5, 1000):
        counted(n, on_device)
    assert on_device.numpy()[0] == 1005


# ---- natural kernels whose result says how much runs ----------------------------------------------------------------


@vyre.kernel(workgroup=8)
def differences(x: In[u32], w: u32, out: Out[u32]):
    out[gid.x] = x[gid.x + 1] - x[gid.x]


@vyre.kernel(workgroup=8)
def part(x: In[u32], w: u32, out: Out[u32]):
    out[gid.x] = x[gid.x + w]


@vyre.kernel(workgroup=8)
def sums_of_rows(x: In[u32], w: u32, out: Out[u32]):
    s = 0
    for k in range(w):
        s += x[gid.x * w + k]
    out[gid.x] = s


@vyre.kernel(workgroup=8)
def pooled(x: In[u32], w: u32, out: Out[u32]):
    row = gid.x // w
    column = gid.x % w
    out[row * w + column] = x[2 * row * 2 * w + 2 * column]


@vyre.kernel(workgroup=8)
def turned(x: In[u32], w: u32, out: Out[u32]):
    row = gid.x // w
    column = gid.x % w
    out[column * 4 + row] = x[2 * row * 2 * w + 2 * column]


@vyre.kernel(workgroup=8)
def flipped(x: In[u32], w: u32, out: Out[u32]):
    out[w - 1 - gid.x] = x[(gid.x ^ 1) % w]


@vyre.kernel(workgroup=8)
def in_turn(x: In[u32], w: u32, out: Out[u32]):
    s = 0
    if gid.x == 0:
        for i in range(len(x)):
            s += x[i]
        out[0] = s


@vyre.kernel(workgroup=8)
def same_from_all(x: In[u32], w: u32, out: Out[u32]):
    out[lid.x] = x[lid.x] + len(x)


@pytest.mark.parametrize("kernel", [flipped, in_turn, same_from_all], ids=lambda k: k.__name__)
def test_no_more_than_one_workgroup_runs_where_others_write_nothing_new(kernel):
    assert kernel.explain(zeros(1000), 4, sizes={"out": 16}).grid == (1, 1, 1)


@vyre.kernel(workgroup=8)
def strided(x: In[u32], w: u32, out: Out[u32]):
    s = 0
    for i in range(gid.x, len(x), 16):
        s += x[i]
    out[gid.x] = s


RESULTS_DECIDE = [differences, part, sums_of_rows, pooled, turned, strided]


@pytest.mark.parametrize("kernel", RESULTS_DECIDE, ids=lambda k: k.__name__)
def test_a_result_that_is_written_by_id_says_how_much_runs(kernel):
    assert kernel.explain(zeros(1000), 4, sizes={"out": 16}).grid == (2, 1, 1)


@vyre.kernel(workgroup=8)
def checked(x: In[u32], out: Out[u32]):
    out[gid.x] = x[gid.x]
    if x[gid.x] == 999:
        trap("too large", gid.x)


def test_an_invocation_that_may_stop_the_dispatch_runs():
    with pytest.raises(vyre.VyreError, match="too large"):
        checked(np.arange(1000, dtype=WORD), sizes={"out": 16})


@vyre.kernel(workgroup=8)
def halves(x: In[u32], out: Out[u32]):
    if gid.x % 2 == 0:
        out[gid.x // 2] = x[0] + gid.x


@vyre.kernel(workgroup=8)
def one_of_a_group(w: u32, out: Out[u32]):
    if lid.x == 0:
        out[wg.x] = wg.x + w


@vyre.kernel(workgroup=8)
def row_of_a_group(x: In[u32], w: u32, out: Out[u32]):
    tile = shared(u32, 8)
    for k in range(lid.x, w, 8):
        tile[lid.x] += x[wg.x * w + k]
    barrier()
    if lid.x == 0:
        out[wg.x] = tile[0] + tile[1]


def test_a_result_that_several_invocations_share_is_written_to_its_end():
    assert halves(zeros(1), sizes={"out": 100}).tolist() == list(range(0, 200, 2))
    assert one_of_a_group(1, sizes={"out": 100}).tolist() == list(range(1, 101))


def test_a_workgroup_for_each_element_runs_for_short_rows_too():
    x = np.arange(200, dtype=WORD)
    assert np.array_equal(row_of_a_group(x, 2, sizes={"out": 100}), x.reshape(100, 2).sum(1))


# ---- two axes -------------------------------------------------------------------------------------------------------


@vyre.kernel(workgroup=(4, 4))
def splat(x: In[u32], w: u32, out: Out[u32]):
    if gid.x < w:
        out[x[gid.y * w + gid.x]] = 1


@vyre.kernel(workgroup=(4, 4))
def inside(x: In[u32], w: u32, out: Out[u32]):
    if gid.x > 0 and gid.x < w - 1 and gid.y > 0:
        out[(gid.y - 1) * (w - 2) + gid.x - 1] = x[gid.y * w + gid.x]


@vyre.kernel(workgroup=(4, 4))
def blocks(x: In[u32], w: u32, out: Out[u32]):
    if lid.x == 0 and lid.y == 0:
        out[wg.y * (w // 4) + wg.x] = x[gid.y * w + gid.x]


@pytest.mark.parametrize("shape", [PLANE, (200,)])
def test_a_scatter_runs_for_all_that_it_reads(shape):
    x = np.arange(200, dtype=WORD).reshape(shape)
    assert splat(x, 20, sizes={"out": 200}).all()
    assert splat.explain(x, 20, sizes={"out": SMALL}).grid == (5, 3, 1)
    assert np.array_equal(inside(x, 20, sizes={"out": (9, 18)}), x.reshape(PLANE)[1:, 1:19])
    assert np.array_equal(blocks(x, 20, sizes={"out": (2, 5)}), x.reshape(PLANE)[0:8:4, ::4])


@vyre.kernel(workgroup=(4, 4))
def across(w: u32, a: InOut[u32]):
    if gid.y < w:
        a[gid.x * w + gid.y] += 1


def test_a_result_may_be_written_across():
    a = zeros(*PLANE)
    across(20, a)
    assert (a == 1).all()
    assert across.explain(20, a).grid == (3, 5, 1)


@vyre.kernel(workgroup=(8, 8))
def turn_tiles(x: In[u32], w: u32, h: u32, out: Out[u32]):
    tile = shared(u32, 64)
    tile[lid.y * 8 + lid.x] = x[gid.y * w + gid.x]
    barrier()
    out[(wg.x * 8 + lid.y) * h + wg.y * 8 + lid.x] = tile[lid.x * 8 + lid.y]


def test_tiles_without_an_if_stay_inside_their_rows():
    x = np.arange(16 * 24, dtype=WORD).reshape(16, 24)
    assert np.array_equal(turn_tiles(x, 24, 16, sizes={"out": (24, 16)}), x.T)
    assert turn_tiles.explain(x, 24, 16, sizes={"out": (24, 16)}).grid == (3, 2, 1)


@vyre.kernel(workgroup=(8, 8))
def invert(image: In[u32], w: u32, h: u32, out: Out[u32]):
    if gid.x < w and gid.y < h:
        for c in range(3):
            out[(gid.y * w + gid.x) * 3 + c] = 255 - image[(gid.y * w + gid.x) * 3 + c]


def test_an_image_of_three_colours_is_one_of_pixels():
    image = np.arange(10 * 20 * 3, dtype=WORD).reshape(10, 20, 3) % 256
    assert np.array_equal(invert(image, 20, 10), 255 - image)
    assert invert.explain(image, 20, 10).grid == (3, 2, 1)


@vyre.kernel(workgroup=(4, 4))
def product(x: In[u32], y: In[u32], n: u32, k: u32, out: Out[u32]):
    row = wg.y * 4 + lid.y
    column = gid.x
    s = 0
    for i in range(k):
        s += x[row * k + i] * y[i * n + column]
    if column < n:
        out[row * n + column] = s


@vyre.kernel(workgroup=(4, 4))
def grey(x: In[u32], n: u32, k: u32, out: Out[u32]):
    if gid.x < n and gid.y < k:
        out[(k - 1 - gid.y) * n + gid.x] = x[(gid.y * n + gid.x) * 3]


@vyre.kernel(workgroup=(4, 4))
def two_rows_each(x: In[u32], n: u32, k: u32, out: Out[u32]):
    for r in range(2):
        row = wg.y * 8 + lid.y + 4 * r
        if gid.x < n and row < k:
            out[row * n + gid.x] = x[(row * n + gid.x) * 3]


def test_larger_inputs_of_a_plane_that_is_written_by_id_are_natural():
    x, y = np.ones((10, 50), WORD), np.ones((50, 20), WORD)
    assert (product(x, y, 20, 50, sizes={"out": PLANE}) == 50).all()
    for kernel in (grey, two_rows_each):
        assert (kernel(np.ones((*PLANE, 3), WORD), 20, 10, sizes={"out": PLANE}) == 1).all()


@vyre.kernel(workgroup=8)
def mixing(x: In[u32], w: u32, out: Out[u32]):
    a = w
    b = gid.x
    for _ in static_range(60):
        a = a * a + b
        b = b * b // (a + 3)
    out[a] = x[b]


def test_an_index_of_many_products_is_not_followed_for_ever():
    with pytest.raises(vyre.ArgumentValueError, match="Fix: pass domain="):
        mixing(zeros(1000), 3, sizes={"out": 16})


@vyre.kernel(workgroup=(8, 8))
def any_above(image: In[u32], w: u32, out: Out[u32]):
    if gid.x < w and image[gid.y * w + gid.x] > 5:
        out[0] = 1


@vyre.kernel(workgroup=(8, 8))
def any_in_row(image: In[u32], w: u32, out: Out[u32]):
    if gid.x < w and image[gid.y * w + gid.x] > 5:
        out[gid.y] = 1


@vyre.kernel(workgroup=(8, 8))
def any_near(image: In[u32], out: Out[u32]):
    if image[gid.y ^ gid.x] > 5:
        out[0] = 1


@pytest.mark.parametrize("kernel, shape", [(any_above, (1, 1)), (any_in_row, (20, 1)), (any_above, (1,))])
def test_a_short_result_is_no_reason_to_run_a_part_of_the_input(kernel, shape):
    image = np.zeros((20, 30), WORD)
    image[-1, -1] = 9
    assert kernel(image, 30, sizes={"out": shape}).ravel()[-1] == 1
    assert kernel.explain(image, 30, sizes={"out": shape}).grid == (4, 3, 1)
    with pytest.raises(
        vyre.ArgumentValueError, match=r"Fix: pass domain=\(width, height\), such as domain=\(600, height\)"
    ):
        any_near(image, sizes={"out": shape})


@vyre.kernel(workgroup=(1, 8))
def rows_and_more(x: In[u32], a: InOut[u32], seen: InOut[u32]):
    i = gid.y * 17 + gid.x
    a[i] = a[i] + x[i]
    if x[gid.x] > 5:
        seen[0] = 1


@vyre.kernel(workgroup=(1, 1, 8))
def alike(a: InOut[u32]):
    a[(gid.z + gid.y) * 2 + gid.x] += 1


def test_invocations_that_would_write_into_the_rows_of_others_are_refused():
    x, a, seen = zeros(7, 17), zeros(7, 17), zeros(1)
    with pytest.raises(vyre.ArgumentValueError, match=r"room for 17 along gid.x, .* for 119 .*Fix: pass domain="):
        rows_and_more(x, a, seen)
    rows_and_more(x, a, seen, domain=(17, 7))
    with pytest.raises(vyre.ArgumentValueError, match=r"room for 1 along gid.[yz].*Fix: pass domain="):
        alike(zeros(4, 1, 2))
    alike(zeros(4, 1, 2), domain=(2, 1, 4))


# ---- conditions that come true again --------------------------------------------------------------------------------


@vyre.kernel
def not_far_below(n: u32, out: InOut[u32]):
    if n - gid.x < 0xFFFFFF00:  # so it is again 256 ids after it was false first
        atomic_add(out, 0, 1)


@vyre.kernel
def nearly_everywhere(n: u32, out: InOut[u32]):
    if i32(gid.x) - 5 < 0x7FFFFFFF:
        atomic_add(out, 0, 1)


@vyre.kernel
def past(n: u32, out: InOut[u32]):
    if saturating_sub(n, gid.x) < 3:
        atomic_add(out, 0, 1)


@vyre.kernel
def past_twice(n: u32, out: InOut[u32]):
    atomic_add(out, saturating_sub(n - gid.x, 3), 1)


@pytest.mark.parametrize("kernel", [not_far_below, nearly_everywhere, past, past_twice])
def test_a_condition_that_holds_however_far_ids_go_is_no_limit(kernel):
    with pytest.raises(vyre.ArgumentValueError, match=r"says how far gid\.x goes.*Fix: pass domain="):
        kernel(10, zeros(100))
    found = zeros(100)
    kernel(10, found, domain=1000)
    assert found.sum() > 10


@vyre.kernel
def shifted(n: u32, out: InOut[u32]):
    out[saturating_sub(gid.x, n)] = 1


def test_an_index_that_begins_at_zero_goes_to_the_end():
    found = zeros(100)
    shifted(10, found)
    assert found.all()
    assert shifted.explain(10, found).grid == (2, 1, 1)


@vyre.kernel(workgroup=64)
def columns(n: u32, out: InOut[u32]):
    out[lid.x * n + wg.x] = 1


def test_workgroups_that_write_columns_are_as_many_as_fill_the_result():
    assert columns.explain(3, zeros(192)).grid == (3, 1, 1)
    found = zeros(200)  # 64 places of 3 workgroups are 192
    columns(3, found)
    assert found.all()


@vyre.kernel(workgroup=32)
def rows_by_workgroup(x: In[u32], n: u32, out: InOut[u32]):
    start = lid.x * 32
    for k in range(32):
        if start + k < n:
            out[wg.x * n + start + k] = x[wg.x * n + start + k]


@vyre.kernel(workgroup=(8, 8))
def parts_of_rows(x: In[u32], n: u32, out: InOut[u32]):
    if gid.y * 32 < n:
        out[gid.x * n + gid.y * 32] = x[gid.x * n + gid.y * 32]


@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 64, 100])
@pytest.mark.parametrize("kernel, large", [(rows_by_workgroup, 20_000), (parts_of_rows, (800, 32))])
def test_rows_that_are_shorter_than_the_step_of_a_place_are_all_written(kernel, large, n):
    x = np.arange(1, 401, dtype=np.uint32)
    assert kernel(x, n, zeros(400)).tobytes() == kernel(x, n, zeros(400), domain=large).tobytes()
